/*
 * background.c - background work of a file after its callers have their answers.
 *
 * In:     answers that say `pending`, writes that homes missed, faults that reads found,
 *         the ends of syncs, closing. Thread: the env's.
 * Out:    background syncs (blk_sync.c); ST_COMMIT to storages that get no other request;
 *         ST_MISSED to the holders of data that homes missed; ST_CHECK.
 * Keeps:  a file that only had first writes costs nothing here; memory: at most
 *         LINGER_MAX closed files, each for LINGER_MS; storages recover by themselves
 *         what is abandoned.
 * Yours:  the times.
 */
#include "storcli/blocks/background.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/units.h"
#include "storcli/blocks/engine.h"

enum {
    SYNC_MS = 2000,
    SYNC_RETRY_MAX_MS = 30000,
    SYNC_BYTES = 32 << 20, /* pending bytes: sync at once */
    SYNCS_MAX = 16,        /* background syncs at a time, of one engine */
    SYNCS_MAX_WAIT_MS = 200,
    COMMIT_MS = 250, /* delay of a notice, if no other request carries it */
    COMMIT_DEADLINE_MS = 5000,
    COMMIT_RETRY_MAX_MS = 4000,
    COMMIT_FAILED_MAX = 8, /* in a row: then the storages recover by themselves */
    HINT_MS = 700,
    HINT_DEADLINE_MS = 5000,
    HINT_RETRY_MAX_MS = 10000,
    HINT_WAIT_MS = 1000, /* wait of a sync */
    CHECK_MS = 250,      /* between two hints of one file */
    CHECK_DEADLINE_MS = 5000,
    MISSED_FIELDS_MAX = 64, /* bytes of a Missed without its ref, and its framing */
    LINGER_MAX = 4096,
    LINGER_MS = 30000,
};

/* Request that no caller waits for. */
struct after_call {
    struct rpc_request rq;
    struct after_call *next;
    struct storcli_file *file; /* borrowed */
    unsigned candidate;
    uint32_t no; /* commit.no of the watermarks it carries */
};

static void after_step(struct storcli_file *file);

static void on_after_timer(struct env_timer *timer)
{
    after_step(container_of(timer, struct storcli_file, background.timer));
}

void background_init(struct storcli_file *file)
{
    env_timer_init(&file->background.timer, on_after_timer);
    list_init(&file->background.lingering);
}

static uint64_t backoff_ms(uint64_t first_ms, unsigned n_failed, uint64_t most_ms)
{
    uint64_t ms = n_failed > 16 ? most_ms : first_ms << n_failed;

    return ms < most_ms ? ms : most_ms;
}

/* ---- requests ---- */

static void call_free(struct after_call *call)
{
    struct after_call **link = &call->file->background.calls;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    free(call);
}

static struct after_call *call_new(struct storcli_file *file, unsigned candidate)
{
    struct after_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return NULL;
    call->file = file;
    call->candidate = candidate;
    call->next = file->background.calls;
    file->background.calls = call;
    return call;
}

/* ---- commit notices ---- */

/* Returns true if the storage refuses for good: it has no journal (an old build), or
 * rejects us. */
static bool is_refusal(const struct rpc_request *rq)
{
    return rq->status == ROZO__STATUS__UNKNOWN_OP ||
           rq->status == ROZO__STATUS__BAD_REQUEST ||
           rq->status == ROZO__STATUS__FENCED ||
           rq->status == ROZO__STATUS__WRONG_STORAGE ||
           rq->status == ROZO__STATUS__NO_FILE;
}

static void on_commit_answer(struct rpc_request *rq, int rc)
{
    struct after_call *call = container_of(rq, struct after_call, rq);
    struct storcli_file *file = call->file;
    struct background *a = &file->background;

    a->committing &= ~(1u << call->candidate);
    if (rc == 0 && rq->status == ROZO__STATUS__OK) {
        commit_confirmed(&file->commit, call->candidate, call->no);
        a->n_commit_failed = 0;
    } else if (rc == 0 && is_refusal(rq)) {
        commit_forget(&file->commit, call->candidate);
    } else if (++a->n_commit_failed > COMMIT_FAILED_MAX) {
        commit_forget(&file->commit, call->candidate);
    }
    call_free(call);
    background_kick(file);
}

static void commit_send(struct storcli_file *file, unsigned candidate)
{
    struct after_call *call = call_new(file, candidate);
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    uint64_t durable[COMMIT_EPOCHS_MAX];
    uint8_t msg[MSG_BYTES_MAX];
    size_t len;

    if (call == NULL)
        return;
    len = engine_msg_begin(file, msg);
    req.to_storage = file->target.storages[candidate];
    req.durable = durable;
    req.n_durable = commit_durable(&file->commit, durable);
    len += rozo__st_commit_req__pack(&req, msg + len);
    call->no = file->commit.no;
    call->rq = (struct rpc_request){
        .op = ROZO__OP__ST_COMMIT,
        .deadline_ms = COMMIT_DEADLINE_MS,
        .msg = msg,
        .msg_len = len,
        .session = file->target.session,
        .done = on_commit_answer,
    };
    file->cli->stats.commits++;
    file->background.committing |= 1u << candidate;
    rpc_send(engine_channel(file, candidate), &call->rq);
    call->rq.msg = NULL; /* copied */
}

static uint64_t commit_pause_ns(const struct background *a)
{
    bool at_once = (a->hurry || a->pressed) && a->n_commit_failed == 0;
    uint64_t first_ms = at_once ? 0 : COMMIT_MS;

    return ms_to_ns(backoff_ms(first_ms, a->n_commit_failed, COMMIT_RETRY_MAX_MS));
}

static void step_commit(struct storcli_file *file, uint64_t now_ns)
{
    struct background *a = &file->background;
    uint32_t due = commit_due(&file->commit) & ~a->committing;

    if (due == 0) {
        a->commit_at_ns = 0;
        a->pressed = a->pressed && commit_wants_sync(&file->commit);
        return;
    }
    if (a->commit_at_ns == 0 || (a->pressed && a->n_commit_failed == 0))
        a->commit_at_ns = now_ns + commit_pause_ns(a);
    if (now_ns < a->commit_at_ns)
        return;
    a->commit_at_ns = 0;
    for (unsigned i = 0; i < file->c; i++) {
        if ((due >> i & 1) == 0)
            continue;
        if (engine_is_up(file, i))
            commit_send(file, i);
        else if (++a->n_commit_failed > COMMIT_FAILED_MAX)
            commit_forget(&file->commit, i);
    }
    if ((commit_due(&file->commit) & ~a->committing) != 0)
        a->commit_at_ns = now_ns + commit_pause_ns(a);
}

/* ---- syncs in the background ---- */

static void step_sync(struct storcli_file *file, uint64_t now_ns)
{
    struct background *a = &file->background;

    if (!commit_wants_sync(&file->commit) || file->syncing != NULL) {
        a->sync_at_ns = 0;
        return;
    }
    if (a->sync_at_ns == 0)
        a->sync_at_ns =
            now_ns + ms_to_ns(backoff_ms(a->hurry && a->n_sync_failed == 0 ? 0 : SYNC_MS,
                                         a->n_sync_failed, SYNC_RETRY_MAX_MS));
    if (now_ns < a->sync_at_ns)
        return;
    if (file->cli->n_background >= SYNCS_MAX) {
        a->sync_at_ns = now_ns + ms_to_ns(SYNCS_MAX_WAIT_MS);
        return;
    }
    a->sync_at_ns = 0;
    engine_sync_background(file);
}

void background_pending(struct storcli_file *file, uint64_t n_bytes, bool pressure)
{
    struct background *a = &file->background;

    a->pending_bytes += n_bytes;
    a->pressed |= pressure;
    if ((pressure || a->pending_bytes >= SYNC_BYTES) && a->n_sync_failed == 0)
        a->sync_at_ns = engine_now_ns(file->cli);
    else if (env_timer_is_running(&a->timer))
        return; /* the timer will run after_step() anyway */
    background_kick(file);
}

void background_sync_began(struct storcli_file *file)
{
    file->background.pending_bytes = 0;
    file->background.sync_at_ns = 0;
}

void background_sync_ended(struct storcli_file *file, int rc)
{
    if (rc == -ENOENT) /* the file was removed */
        file->background.linger_until_ns = 0;
    if (rc != -ECANCELED) /* a caller wants a sync of its own */
        file->background.n_sync_failed = rc == 0 ? 0 : file->background.n_sync_failed + 1;
    background_kick(file);
}

/* ---- notes of what was missed ---- */

static void note_missed(struct storcli_file *file, const struct missed_range *range)
{
    struct background *a = &file->background;
    bool was_urgent = missed_is_urgent(&a->missed);

    if (!missed_add(&a->missed, range))
        return;
    if (range->urgent && !was_urgent)
        a->hint_at_ns = 0; /* perhaps at once */
    if (a->hint_at_ns == 0)
        background_kick(file);
}

void background_missed(struct storcli_file *file, uint64_t version, uint64_t first_block,
                       uint64_t n_blocks, const struct holders *held, uint32_t in_flight)
{
    struct missed_range range = {
        .first_block = first_block,
        .end_block = n_blocks == 0 ? UINT64_MAX : first_block + n_blocks,
        .version = version,
        .holders = held->any,
    };

    for (unsigned i = 0; i < file->n; i++) {
        if ((held->any >> i & 1) == 0 || held->projection[i] != i)
            range.candidates |= 1u << i;
    }
    range.urgent = (range.candidates & ~in_flight) != 0;
    if (range.candidates != 0)
        note_missed(file, &range);
}

void background_lost(struct storcli_file *file, uint32_t homes, uint64_t first_block,
                     uint64_t end_block, uint64_t version, const struct holders *held)
{
    uint64_t newest = commit_newest(&file->commit); /* 0: others wrote it */
    const struct missed_range range = {
        .first_block = first_block,
        .end_block = end_block,
        .version = newest > version ? newest : version,
        .holders = held->any,
        .candidates = homes & ((1u << file->n) - 1),
        .urgent = true,
    };

    if (range.candidates != 0)
        note_missed(file, &range);
}

/* Ends the sending of notes: all answers that could come have. */
static void hints_sent(struct storcli_file *file)
{
    struct background *a = &file->background;

    if (a->stored || a->refused || !missed_move(&a->missed, &a->sending))
        missed_free(&a->sending);
    a->n_hint_failed = a->stored ? 0 : a->n_hint_failed + 1;
    background_kick(file);
}

static void on_missed_answer(struct rpc_request *rq, int rc)
{
    struct after_call *call = container_of(rq, struct after_call, rq);
    struct storcli_file *file = call->file;
    struct background *a = &file->background;

    a->stored |= rc == 0 && rq->status == ROZO__STATUS__OK;
    a->refused |= rc == 0 && is_refusal(rq);
    call_free(call);
    if (--a->n_sending == 0)
        hints_sent(file);
    engine_sync_look(file);
}

/* Packs field 1 of StMissedReq: a Missed, whose own field 1 is the packed ref that begins
 * every message. */
static size_t missed_pack(const struct storcli_file *file,
                          const struct missed_range *range, uint8_t *out)
{
    Rozo__Missed missed = ROZO__MISSED__INIT;
    uint8_t fields[MISSED_FIELDS_MAX];
    size_t at = 0, n_fields, len;

    missed.first_block = range->first_block;
    missed.n_blocks =
        range->end_block == UINT64_MAX ? 0 : range->end_block - range->first_block;
    missed.candidates = range->candidates;
    missed.version = range->version;
    n_fields = rozo__missed__pack(&missed, fields);
    out[at++] = 1 << 3 | 2;
    for (len = file->ref_len + n_fields; len >= 0x80; len >>= 7)
        out[at++] = (uint8_t)(len | 0x80);
    out[at++] = (uint8_t)len;
    memcpy(out + at, file->ref, file->ref_len);
    memcpy(out + at + file->ref_len, fields, n_fields);
    return at + file->ref_len + n_fields;
}

static void hint_send(struct storcli_file *file, unsigned candidate, uint8_t *msg,
                      size_t len)
{
    struct after_call *call = call_new(file, candidate);
    Rozo__StMissedReq req = ROZO__ST_MISSED_REQ__INIT;

    if (call == NULL)
        return;
    req.to_storage = file->target.storages[candidate];
    call->rq = (struct rpc_request){
        .op = ROZO__OP__ST_MISSED,
        .deadline_ms = HINT_DEADLINE_MS,
        .msg = msg,
        .msg_len = len + rozo__st_missed_req__pack(&req, msg + len),
        .session = file->target.session,
        .done = on_missed_answer,
    };
    file->background.n_sending++;
    rpc_send(engine_channel(file, candidate), &call->rq);
    call->rq.msg = NULL; /* copied */
}

static void hints_send(struct storcli_file *file)
{
    struct background *a = &file->background;
    uint32_t holders = missed_holders(&a->missed);
    uint8_t *msg = malloc((a->missed.n + 1) * (file->ref_len + MISSED_FIELDS_MAX + 8));
    size_t len = 0;

    a->stored = a->refused = false;
    a->sent_ns = engine_now_ns(file->cli);
    if (msg == NULL || !missed_move(&a->sending, &a->missed))
        holders = 0;
    for (unsigned i = 0; i < a->sending.n; i++)
        len += missed_pack(file, &a->sending.ranges[i], msg + len);
    for (unsigned i = 0; i < file->c; i++) {
        if ((holders >> i & 1) != 0 && engine_is_up(file, i))
            hint_send(file, i, msg, len);
    }
    free(msg);
    if (a->n_sending == 0)
        hints_sent(file);
}

/* Returns true if notes must go now. No other client looks at a closed file when this one
 * dies: exportd relies on its notes having been sent by then. */
static bool sends_at_once(const struct background *a)
{
    return (a->hurry || (a->closed && missed_is_urgent(&a->missed))) &&
           a->n_hint_failed == 0;
}

static void step_hints(struct storcli_file *file, uint64_t now_ns)
{
    struct background *a = &file->background;

    if (a->n_sending != 0 || missed_is_empty(&a->missed)) {
        a->hint_at_ns = 0;
        return;
    }
    if (a->hint_at_ns == 0)
        a->hint_at_ns =
            now_ns + ms_to_ns(backoff_ms(sends_at_once(a) ? 0 : HINT_MS, a->n_hint_failed,
                                         HINT_RETRY_MAX_MS));
    if (now_ns < a->hint_at_ns)
        return;
    a->hint_at_ns = 0;
    hints_send(file);
}

bool background_has_unsent(const struct storcli_file *file)
{
    const struct background *a = &file->background;

    return (missed_is_urgent(&a->missed) && a->n_hint_failed == 0) ||
           (a->n_sending != 0 && missed_is_urgent(&a->sending) && !a->stored);
}

bool background_must_wait(struct storcli_file *file)
{
    struct background *a = &file->background;
    uint64_t now_ns = engine_now_ns(file->cli);

    if (a->n_sending == 0 && missed_is_urgent(&a->missed) && a->n_hint_failed == 0)
        hints_send(file);
    return a->n_sending != 0 && missed_is_urgent(&a->sending) && !a->stored &&
           now_ns - a->sent_ns < ms_to_ns(HINT_WAIT_MS);
}

/* ---- another distribution ---- */

void background_replaced(struct storcli_file *file, unsigned candidate)
{
    struct after_call *call = file->background.calls;

    while (call != NULL) {
        if (call->candidate != candidate) {
            call = call->next;
            continue;
        }
        rpc_cancel(&call->rq);
        call->rq.done(&call->rq, -ECANCELED);
        call = file->background.calls; /* the call is gone */
    }
    missed_replaced(&file->background.missed, candidate);
    missed_replaced(&file->background.sending, candidate);
}

void background_relocated(struct storcli_file *file)
{
    struct background *a = &file->background;

    a->n_sync_failed = a->n_commit_failed = a->n_hint_failed = 0;
    a->sync_at_ns = a->commit_at_ns = a->hint_at_ns = 0;
    background_kick(file);
}

/* ---- hints ---- */

static void on_check_answer(struct rpc_request *rq, int rc)
{
    struct after_call *call = container_of(rq, struct after_call, rq);

    (void)rc; /* a busy storage gets it again */
    call->file->background.checking = false;
    call_free(call);
}

void background_check(struct storcli_file *file, unsigned candidate, uint64_t first_block,
                      uint64_t n_blocks)
{
    struct background *a = &file->background;
    uint64_t now_ns = engine_now_ns(file->cli);
    Rozo__StCheckReq req = ROZO__ST_CHECK_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    struct after_call *call;
    size_t len;

    if (a->checking || now_ns < a->check_ns || !engine_is_up(file, candidate))
        return;
    call = call_new(file, candidate);
    if (call == NULL)
        return;
    a->checking = true;
    a->check_ns = now_ns + ms_to_ns(CHECK_MS);
    file->cli->stats.checks++;
    len = engine_msg_begin(file, msg);
    req.first_block = first_block;
    req.n_blocks = n_blocks;
    req.to_storage = file->target.storages[candidate];
    len += rozo__st_check_req__pack(&req, msg + len);
    call->rq = (struct rpc_request){
        .op = ROZO__OP__ST_CHECK,
        .deadline_ms = CHECK_DEADLINE_MS,
        .msg = msg,
        .msg_len = len,
        .done = on_check_answer,
    };
    rpc_send(engine_channel(file, candidate), &call->rq);
    call->rq.msg = NULL; /* copied */
}

/* ---- all of it ---- */

static uint64_t sooner(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns == 0 || (b_ns != 0 && b_ns < a_ns) ? b_ns : a_ns;
}

bool background_is_needed(struct storcli_file *file)
{
    return file->syncing != NULL || commit_due(&file->commit) != 0 ||
           commit_wants_sync(&file->commit) || file->background.n_sending != 0 ||
           !missed_is_empty(&file->background.missed);
}

static void after_step(struct storcli_file *file)
{
    struct background *a = &file->background;
    uint64_t now_ns = engine_now_ns(file->cli), wake_ns;

    if (a->closed && (!background_is_needed(file) || now_ns >= a->linger_until_ns) &&
        engine_file_end(file))
        return;
    step_commit(file, now_ns);
    step_sync(file, now_ns);
    step_hints(file, now_ns);
    wake_ns = sooner(a->hint_at_ns, sooner(a->commit_at_ns, a->sync_at_ns));
    if (a->closed) /* a sync that begins to read in this turn cannot be stopped */
        wake_ns = sooner(wake_ns, now_ns < a->linger_until_ns
                                      ? a->linger_until_ns
                                      : now_ns + ms_to_ns(WATCH_POLL_MS));
    if (wake_ns == 0)
        env_timer_stop(file->cli->env, &a->timer);
    else
        env_timer_start(file->cli->env, &a->timer,
                        wake_ns > now_ns ? ns_to_ms_up(wake_ns - now_ns) : 0);
}

void background_kick(struct storcli_file *file)
{
    struct background *a = &file->background;
    uint64_t now_ns = engine_now_ns(file->cli);

    if (!a->closed && !background_is_needed(file))
        return;
    if (!env_timer_is_running(&a->timer) || a->timer.expires_ns > now_ns)
        env_timer_start(file->cli->env, &a->timer, 0);
}

void background_delay(struct storcli_file *file)
{
    struct background *a = &file->background;

    a->closed = true;
    a->linger_until_ns = engine_now_ns(file->cli) + ms_to_ns(LINGER_MS);
    if (file->cli->n_lingering >= LINGER_MAX)
        a->linger_until_ns = 0;
    if (a->hint_at_ns != 0 && sends_at_once(a))
        a->hint_at_ns = engine_now_ns(file->cli);
    list_add_tail(&file->cli->lingering, &a->lingering);
    file->cli->n_lingering++;
    background_kick(file);
}

void background_flush(struct storcli_file *file)
{
    struct background *a = &file->background;
    uint64_t now_ns = engine_now_ns(file->cli);

    a->hurry = true;
    a->sync_at_ns = a->sync_at_ns != 0 ? now_ns : 0;
    a->commit_at_ns = a->commit_at_ns != 0 ? now_ns : 0;
    a->hint_at_ns = a->hint_at_ns != 0 ? now_ns : 0;
    background_kick(file);
}

void background_stop(struct storcli_file *file)
{
    struct background *a = &file->background;

    while (a->calls != NULL) {
        struct after_call *call = a->calls;

        rpc_cancel(&call->rq);
        call_free(call);
    }
    missed_free(&a->missed);
    missed_free(&a->sending);
    env_timer_stop(file->cli->env, &a->timer);
    if (!list_is_empty(&a->lingering)) {
        list_remove(&a->lingering);
        file->cli->n_lingering--;
    }
}
