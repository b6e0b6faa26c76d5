/*
 * heal_check.c - checks: blocks reported as wrong (ST_CHECK), and uncommitted content of
 * the journal whose writer is gone.
 *
 * In:     ST_CHECK; a timer that asks our own storage. Thread: the healer's.
 * Out:    jobs of RANK_CHECK.
 * Keeps:  bounded: CHECKS_MAX files, merged; blocks that could not be healed are tried
 *         again, ever less often, until they are.
 * Yours:  the times.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/units.h"
#include "common/wire/capability.h"
#include "common/wire/status.h"
#include "storaged/heal/healer_int.h"

enum {
    CHECKS_MAX = 4096, /* files waiting to be checked */
    TICK_MS = 500,
    DAMAGED_TOLD_MAX = 64, /* lookups of our own files at a time */
    RETRY_MIN_MS = 5000,   /* a check that failed for some time waits as long again */
    RETRY_MAX_MS = 160 * 1000,
    /* Age of undecided blocks that are recovered under a fence. */
    FENCE_AFTER_MS = 15 * 1000,
    /* Longest wait of exportd for the end of a check; its own deadline is 5 s. */
    ABANDONED_WAIT_MS = 3000,
    UNCOMMITTED_TICK_MS = 3000,
    /* Extra wait of each further candidate, so that the one before acts first. */
    UNCOMMITTED_STEP_MS = 4000,
};

static void check_run(struct healer *h, struct heal_check *c);

static struct heal_check *check_find(const struct healer *h, const struct file_id *id)
{
    LIST_FOREACH(node, &h->parts->checks.list) {
        struct heal_check *c = container_of(node, struct heal_check, link);
        const struct file_id *other = &c->job.request.target.id;

        if (file_id_equal(other, id))
            return c;
    }
    return NULL;
}

static void check_free(struct healer *h, struct heal_check *c)
{
    assert(h->parts->checks.n > 0 && h->parts->checks.unhealed >= c->unhealed);
    assert(c->abandoned == NULL);
    list_remove(&c->link);
    h->parts->checks.n--;
    h->parts->checks.unhealed -= c->unhealed;
    free(c);
}

/* Logs hints for these homes, so that they come back to the file, whatever happens to
 * this check. Returns 0 or the first error. */
static int note_homes(struct healer *h, const struct heal_check *c, uint32_t homes)
{
    const struct storcli_target *t = &c->job.request.target;
    unsigned n = codec_n(codec_get(t->codec, t->layout, t->block_bytes));

    int first_rc = 0;

    for (unsigned p = 0; p < n; p++) {
        int rc = 0;

        if ((homes >> p & 1) != 0 && (c->job.request.lost >> p & 1) == 0)
            rc = hint_log_note(h->hints, t->storages[p], t, c->first, c->end, 1);
        if (first_rc == 0)
            first_rc = rc;
    }
    return first_rc;
}

/* Returns whether all storages of the file that are not lost are up. */
static bool all_are_up(struct healer *h, const struct storcli_target *target)
{
    for (unsigned i = 0; i < target->n_storages; i++) {
        struct rpc_channel *ch = healer_channel(h, target->storages[i]);

        if (!healer_is_lost(h, target->storages[i]) &&
            (ch == NULL || rpc_channel_health(ch) != RPC_UP))
            return false;
    }
    return true;
}

/* Answers about an abandoned file, which exportd forgets then: when hints for these homes
 * are on stable storage, or at once if there are none. */
static void abandoned_answer(struct healer *h, const struct heal_check *c,
                             struct rpc_call *call, uint32_t homes)
{
    int rc = note_homes(h, c, homes);

    if (rc != 0 || homes == 0)
        rpc_reply_status(call, status_from_errno(rc));
    else
        hints_reply_stable(h, call);
}

/* Ends the wait of exportd for this check, if it waits. */
static void abandoned_end(struct healer *h, struct heal_check *c, uint32_t homes)
{
    if (c->abandoned != NULL)
        abandoned_answer(h, c, c->abandoned, homes);
    c->abandoned = NULL;
}

/* Accepts the check of an abandoned file. This storage may stop at any time and forget
 * the check, so the answer waits for its end or, if that may take long, for hints. */
static void abandoned_accept(struct healer *h, const struct storcli_target *target,
                             struct rpc_call *call)
{
    struct heal_check *c = check_find(h, &target->id);

    if (c == NULL) {
        rpc_reply_status(call, ROZO__STATUS__OK);
    } else if (c->abandoned != NULL || !all_are_up(h, target)) {
        abandoned_answer(h, c, call, UINT32_MAX);
    } else {
        c->abandoned = call;
        c->abandoned_ns = env_now_ns(h->env);
    }
}

/* Logs hints after a repair of all homes: for homes that did not answer it, and for all
 * of them when it first leaves blocks undecided, which any of them may lack. */
static void note_repaired(struct healer *h, const struct heal_check *c,
                          const struct repair_result *result)
{
    bool is_left = result->undecided > 0 && c->undecided_ns == 0;

    if ((c->job.request.flags & REPAIR_ALL_HOMES) != 0)
        note_homes(h, c, is_left ? UINT32_MAX : result->unanswered);
}

static uint64_t age_ms(const struct healer *h, const struct heal_check *c)
{
    return ns_to_ms(env_now_ns(h->env) - c->since_ns);
}

static void retry_later(struct healer *h, struct heal_check *c)
{
    uint64_t wait_ms = age_ms(h, c);

    assert(c->state == CHECK_WAITS);
    if (wait_ms < RETRY_MIN_MS)
        wait_ms = RETRY_MIN_MS;
    if (wait_ms > RETRY_MAX_MS)
        wait_ms = RETRY_MAX_MS;
    c->ready_ns = env_now_ns(h->env) + ms_to_ns(wait_ms);
}

/* Returns whether undecided blocks will not be completed by a client any more, for
 * example a write of which a power failure left too little. */
static bool is_stuck(const struct healer *h, const struct heal_check *c)
{
    return c->undecided_ns != 0 &&
           env_now_ns(h->env) - c->undecided_ns >= ms_to_ns(FENCE_AFTER_MS);
}

static void note_undecided(struct healer *h, struct heal_check *c,
                           const struct repair_result *result)
{
    if (result->undecided + result->n_torn == 0)
        c->undecided_ns = repair_is_good(result) ? 0 : c->undecided_ns;
    else if (c->undecided_ns == 0)
        c->undecided_ns = env_now_ns(h->env);
    else if (is_stuck(h, c) && !c->unproven)
        c->flags |= REPAIR_FENCE | REPAIR_ALL_HOMES;
}

/* Repeats a check that was extended meanwhile. */
static void run_again(struct healer *h, struct heal_check *c)
{
    c->since_ns = env_now_ns(h->env);
    check_run(h, c);
}

static void on_located(struct heal_locate *l)
{
    struct heal_check *c = container_of(l, struct heal_check, locate);
    struct healer *h = l->h;
    bool again = c->state == CHECK_RUNS_AGAIN;

    assert(c->state != CHECK_WAITS);
    c->state = CHECK_WAITS;
    if (l->known) {
        c->job.request.target = l->target;
        c->unproven = false;
        c->flags |= REPAIR_FENCE | REPAIR_ALL_HOMES;
    }
    if (again)
        run_again(h, c);
    else if (l->known)
        check_run(h, c);
    else
        retry_later(h, c);
}

/* Asks other storages for the file's distribution: its blocks need a fence, and only a
 * client has described the file so far. */
static void check_locate(struct healer *h, struct heal_check *c)
{
    assert(c->state == CHECK_WAITS && c->unproven);
    c->state = CHECK_RUNS;
    c->locate.done = on_located;
    heal_locate_start(h, &c->locate, &c->job.request.target.id);
}

/* Returns whether all is healed, but our unreadable file of a projection of another home
 * stays, since that needs all storages. Until it goes, readers take us for one that may
 * have something newer. */
static bool keeps_spoiled(const struct healer *h, const struct heal_check *c,
                          const struct repair_result *result)
{
    unsigned place = heal_place(&c->job.request.target, h->us);

    return (c->flags & REPAIR_CLEAN_SPARES) != 0 && c->job.request.lost == 0 &&
           result->rc == 0 && place != DIST_MAX && (result->spoiled >> place & 1) != 0;
}

static void on_checked(struct heal_job *job, const struct repair_result *result)
{
    struct heal_check *c = container_of(job, struct heal_check, job);
    struct healer *h = job->h;
    bool good = repair_is_good(result), again = c->state == CHECK_RUNS_AGAIN;

    assert(c->state != CHECK_WAITS);
    assert(h->parts->checks.unhealed >= c->unhealed);
    c->state = CHECK_WAITS;
    h->parts->checks.unhealed -= c->unhealed;
    c->unhealed = 0;
    note_repaired(h, c, result);
    note_undecided(h, c, result);
    c->is_spoiled = good && result->n_torn == 0 && keeps_spoiled(h, c, result);
    if (again) {
        run_again(h, c);
    } else if (c->is_spoiled) {
        abandoned_end(h, c, result->unanswered);
        retry_later(h, c);
    } else if (good && result->n_torn == 0) {
        abandoned_end(h, c, result->unanswered);
        check_free(h, c);
    } else {
        abandoned_end(h, c, UINT32_MAX);
        c->unhealed = good ? result->n_torn : repair_n_unhealed(result);
        h->parts->checks.unhealed += c->unhealed;
        if (good) { /* all but the torn blocks are good */
            c->first = result->torn_first;
            c->end = result->torn_end;
        }
        if (c->unproven && is_stuck(h, c))
            check_locate(h, c);
        else
            retry_later(h, c);
    }
}

static void check_run(struct healer *h, struct heal_check *c)
{
    struct repair_request *r = &c->job.request;

    assert(c->state == CHECK_WAITS && c->first < c->end);
    r->first_block = c->first;
    r->n_blocks = c->end == UINT64_MAX ? 0 : c->end - c->first;
    r->flags = c->flags;
    c->state = CHECK_RUNS;
    c->job.done = on_checked;
    heal_job_submit(h, &c->job, RANK_CHECK);
}

/* Merges the description of a file into its check. A storage's description replaces a
 * client's. Of two distributions the later counts; a check under way finds it by
 * itself. */
static int take_word(struct heal_check *c, const struct storcli_target *target,
                     bool unproven)
{
    struct storcli_target *ours = &c->job.request.target;

    if (heal_same_target(ours, target)) {
        if (!unproven) /* from now on nothing counts that a client said of it */
            ours->full_quorum =
                target->full_quorum || (!c->unproven && ours->full_quorum);
        c->unproven = c->unproven && unproven;
        return 0;
    }
    if (!c->unproven && !unproven && ours->dist_generation != target->dist_generation) {
        if (c->state == CHECK_WAITS && target->dist_generation > ours->dist_generation)
            *ours = *target;
        return 0;
    }
    if (unproven)
        return -EBADMSG;
    if (!c->unproven || c->state != CHECK_WAITS)
        return -EBUSY;
    c->job.request.target = *target;
    c->unproven = false;
    return 0;
}

static int add(struct healer *h, const struct storcli_target *target, uint64_t first,
               uint64_t end, uint32_t flags, bool unproven)
{
    struct heal_check *c = check_find(h, &target->id);

    assert(first < end);
    if (c != NULL) {
        int rc = take_word(c, target, unproven);

        if (rc != 0)
            return rc;
        if (c->state != CHECK_WAITS &&
            (first < c->first || end > c->end || (flags & ~c->flags) != 0 ||
             c->job.repair != NULL))
            c->state = CHECK_RUNS_AGAIN;
        c->first = first < c->first ? first : c->first;
        c->end = end > c->end ? end : c->end;
        c->flags |= flags;
        if (c->state == CHECK_WAITS)
            check_run(h, c);
        return 0;
    }
    if (h->parts->checks.n >= CHECKS_MAX)
        return -EBUSY;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->job.request.target = *target;
    c->first = first;
    c->end = end;
    c->flags = flags;
    c->unproven = unproven;
    c->since_ns = env_now_ns(h->env);
    list_add_tail(&h->parts->checks.list, &c->link);
    h->parts->checks.n++;
    check_run(h, c);
    return 0;
}

int heal_check_add(struct healer *h, const struct storcli_target *target, uint64_t first,
                   uint64_t end, uint32_t flags)
{
    return add(h, target, first, end, flags, false);
}

/* ---- ST_CHECK ---- */

static int check_parse(struct healer *h, const struct rpc_call *call,
                       const Rozo__StCheckReq *req, struct storcli_target *target)
{
    int rc = req == NULL ? -EBADMSG : heal_target_get(req->ref, target);

    if (rc != 0)
        return rc;
    if (!heal_range_is_good(req->first_block, req->n_blocks))
        return -EBADMSG;
    if (req->to_storage != h->us)
        return -ROZO_EWRONG_STORAGE;
    if (heal_place(target, h->us) == DIST_MAX)
        return -EBADMSG;
    if (call->role == RPC_ROLE_NODE)
        return 0;
    if (req->abandoned)
        return -EACCES;
    return capability_verify(h->config.key, &target->id, CAPABILITY_READ,
                             req->ref->capability.data, req->ref->capability.len);
}

/* A check that is compared with our own file's distribution first. */
struct check_call {
    struct healer *h;
    struct rpc_call *call; /* call of a client; NULL: found by our own storage */
    struct storcli_target target;
    uint64_t first, end;
};

/* Takes the distribution of our own file. The capability covers the file id only: with a
 * made-up distribution, our records would look like a write that no other storage has.
 * Without a file here nothing can be compared, so no fence follows. */
static int own_target_take(struct check_call *cc, const struct storcli_target *own)
{
    if (cc->call != NULL && own->dist_generation > cc->target.dist_generation)
        return -ROZO_EMOVED;
    if (cc->call != NULL && own->dist_generation == cc->target.dist_generation &&
        !heal_same_target(own, &cc->target))
        return -EBADMSG;
    cc->target = *own;
    return 0;
}

static void on_own_file(void *arg, const struct proj_list_result *result)
{
    struct check_call *cc = arg;
    struct healer *h = cc->h;
    bool known = result->rc == 0 && result->n_files > 0 && result->files[0].known;
    int rc = h->stopping ? -EBUSY : 0;

    if (rc == 0 && known)
        rc = own_target_take(cc, &result->files[0].target);
    if (rc == 0)
        rc =
            add(h, &cc->target, cc->first, cc->end,
                REPAIR_VERIFY_OWN | (cc->call == NULL ? REPAIR_CLEAN_SPARES : 0), !known);
    if (cc->call != NULL)
        rpc_reply_status(cc->call, status_from_errno(rc));
    assert(cc->call != NULL || h->parts->checks.n_lookups > 0);
    h->parts->checks.n_lookups -= cc->call == NULL;
    free(cc);
    healer_idle(h);
}

static int check_own_file(struct healer *h, struct rpc_call *call,
                          const struct storcli_target *target, uint64_t first,
                          uint64_t end)
{
    const struct proj_list_request request = {
        .has_after = true, .after = target->id, .only = true, .max_files = 1
    };
    struct check_call *cc = calloc(1, sizeof(*cc));
    struct list_op *op;
    int rc = -ENOMEM;

    if (cc != NULL) {
        *cc = (struct check_call){ h, call, *target, first, end };
        rc = proj_list_start(h->env, h->config.disk, &request, on_own_file, cc, &op);
    }
    if (rc == 0)
        h->n_busy++;
    else
        free(cc);
    return rc;
}

/* Checks damage found by our own storage. If there is no room, the next reader or a scrub
 * finds it again. */
void healer_damaged(struct healer *h, const struct storcli_target *target, uint64_t first,
                    uint64_t end)
{
    if (h->stopping || !h->started || h->us == 0 ||
        heal_place(target, h->us) == DIST_MAX ||
        h->parts->checks.n_lookups >= DAMAGED_TOLD_MAX)
        return;
    if (check_own_file(h, NULL, target, first, end) == 0)
        h->parts->checks.n_lookups++;
}

void heal_check_handle(struct healer *h, struct rpc_call *call)
{
    Rozo__StCheckReq *req = rozo__st_check_req__unpack(NULL, call->msg_len, call->msg);
    struct storcli_target target;
    int rc = check_parse(h, call, req, &target);
    bool answered = false;

    assert(call->op == ROZO__OP__ST_CHECK && h->us != 0);
    if (rc == 0) {
        uint64_t first = req->first_block;
        uint64_t end = req->n_blocks == 0 ? UINT64_MAX : first + req->n_blocks;

        if (call->role == RPC_ROLE_NODE) {
            rc = heal_check_add(h, &target, first, end,
                                req->abandoned ? REPAIR_FENCE | REPAIR_ALL_HOMES
                                               : (uint32_t)REPAIR_VERIFY_OWN);
            answered = rc == 0 && req->abandoned;
            if (answered)
                abandoned_accept(h, &target, call);
        } else {
            rc = check_own_file(h, call, &target, first, end);
            answered = rc == 0; /* the reply comes later */
        }
    }
    if (!answered)
        rpc_reply_status(call, status_from_errno(rc));
    rozo__st_check_req__free_unpacked(req, NULL);
}

/* ---- recovery of uncommitted content ---- */

/* Returns whether the file is old enough for us to recover it. The lowest candidate acts
 * first; if it is up, it is enough. */
static bool is_our_turn(const struct healer *h, const struct heal_uncommitted *u)
{
    uint64_t ms = h->config.uncommitted_ms +
                  (uint64_t)heal_place(&u->target, h->us) * UNCOMMITTED_STEP_MS;

    return u->age_ns >= ms_to_ns(ms);
}

/* Returns whether a check under a fence covers it already; one is enough, however often
 * it tries. */
static bool is_settling(const struct healer *h, const struct heal_uncommitted *u)
{
    const struct heal_check *c = check_find(h, &u->target.id);

    return c != NULL && (c->flags & REPAIR_FENCE) != 0 && c->first <= u->first &&
           c->end >= u->end;
}

static void on_uncommitted(struct heal_question *q)
{
    struct healer *h = container_of(q, struct heal_parts, checks.question)->h;

    assert(h->parts->checks.asking && q->n_uncommitted <= HEAL_UNCOMMITTED_MAX);
    h->parts->checks.asking = false;
    for (unsigned i = 0; i < q->n_uncommitted && !h->stopping; i++) {
        const struct heal_uncommitted *u = &q->uncommitted[i];

        bool whole = u->first == 0 && u->end == UINT64_MAX;

        /* the whole file is damaged here: on a spare it may have to be dropped */
        if (is_our_turn(h, u) && !is_settling(h, u))
            heal_check_add(h, &u->target, u->first, u->end,
                           REPAIR_FENCE | REPAIR_ALL_HOMES |
                               (whole ? REPAIR_CLEAN_SPARES : 0));
    }
    healer_idle(h);
}

static void on_uncommitted_timer(struct env_timer *timer)
{
    struct healer *h =
        container_of(timer, struct heal_parts, checks.uncommitted_timer)->h;

    assert(h->started && !h->stopping);
    env_timer_start(h->env, &h->parts->checks.uncommitted_timer, UNCOMMITTED_TICK_MS);
    if (h->us == 0 || h->parts->checks.asking)
        return;
    h->parts->checks.asking = true;
    h->n_busy++;
    h->parts->checks.question.n_uncommitted = 0;
    h->parts->checks.question.older_than_ns = ms_to_ns(h->config.uncommitted_ms);
    h->parts->checks.question.answered = on_uncommitted;
    h->config.ask_uncommitted(h->config.arg, &h->parts->checks.question);
}

/* ---- start and stop ---- */

static void on_check_timer(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, checks.timer)->h;
    uint64_t now = env_now_ns(h->env);

    assert(h->started && !h->stopping);
    env_timer_start(h->env, &h->parts->checks.timer, TICK_MS);
    LIST_FOREACH_SAFE(node, &h->parts->checks.list) {
        struct heal_check *c = container_of(node, struct heal_check, link);

        if (c->abandoned != NULL && now - c->abandoned_ns >= ms_to_ns(ABANDONED_WAIT_MS))
            abandoned_end(h, c, UINT32_MAX);
        if (c->state == CHECK_WAITS && c->ready_ns <= now &&
            (!c->is_spoiled || all_are_up(h, &c->job.request.target)))
            check_run(h, c);
    }
}

void heal_checks_init(struct healer *h)
{
    list_init(&h->parts->checks.list);
}

void heal_checks_start(struct healer *h)
{
    env_timer_init(&h->parts->checks.timer, on_check_timer);
    env_timer_start(h->env, &h->parts->checks.timer, TICK_MS);
    env_timer_init(&h->parts->checks.uncommitted_timer, on_uncommitted_timer);
    env_timer_start(h->env, &h->parts->checks.uncommitted_timer, UNCOMMITTED_TICK_MS);
}

/* Stops. Jobs were cancelled before. exportd asks another storage for abandoned files. */
void heal_checks_stop(struct healer *h)
{
    if (h->started) {
        env_timer_stop(h->env, &h->parts->checks.timer);
        env_timer_stop(h->env, &h->parts->checks.uncommitted_timer);
    }
    LIST_FOREACH_SAFE(node, &h->parts->checks.list) {
        struct heal_check *c = container_of(node, struct heal_check, link);

        if (c->abandoned != NULL)
            rpc_reply_status(c->abandoned, ROZO__STATUS__BUSY);
        c->abandoned = NULL;
        check_free(h, c);
    }
}
