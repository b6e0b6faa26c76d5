/*
 * prove.c - ST_REPAIR: repairs a whole file until a pass over all of it finds nothing to
 * do.
 *
 * In:     ST_REPAIR, from exportd. Thread: the healer's.
 * Out:    jobs of RANK_CHECK; rpc_reply().
 * Keeps:  an answer describes a run that began after the first request for it came; a
 *         result is given to one request, once. Bounded: PROOFS_MAX runs; those that
 *         ended longest ago are dropped first.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/wire/status.h"
#include "storaged/heal/healer_int.h"

enum {
    PROOFS_MAX = 64,
    ANSWER_MS = 4000, /* a request waits this long, then it is answered IN_PROGRESS */
    PAUSE_MS = 300,   /* writes under way may be complete by then */
    PLAIN_RUNS = 2,   /* runs without a fence, which would lock out a live writer */
    RUNS_MAX = 5,
};

enum proof_state { PROOF_RUNS, PROOF_PAUSES, PROOF_ENDED };

/* One proof, found by the number that its requester chose. */
struct proof {
    struct heal_job job;   /* first */
    struct list_node link; /* in h->parts->proofs.list */
    uint64_t run;
    struct rpc_call *call; /* waiting request; NULL: none */
    struct env_timer call_timer, pause_timer;
    enum proof_state state;
    unsigned n_runs;
    /* Set once it ended. */
    int rc; /* 0: `sound` is valid */
    bool sound;
    char problem[160];
};

static void proof_free(struct healer *h, struct proof *p)
{
    assert(h->parts->proofs.n > 0);
    env_timer_stop(h->env, &p->call_timer);
    env_timer_stop(h->env, &p->pause_timer);
    list_remove(&p->link);
    h->parts->proofs.n--;
    free(p);
}

static void call_refuse(struct healer *h, struct proof *p, uint16_t status)
{
    struct rpc_call *call = p->call;

    p->call = NULL;
    env_timer_stop(h->env, &p->call_timer);
    if (call != NULL)
        rpc_reply_status(call, status);
}

/* Answers the waiting request with the result and frees the proof; without one the result
 * waits for the next request. */
static void proof_tell(struct healer *h, struct proof *p)
{
    Rozo__StRepairResp resp = ROZO__ST_REPAIR_RESP__INIT;
    struct rpc_call *call = p->call;

    if (p->state != PROOF_ENDED || call == NULL)
        return;
    if (p->rc != 0) {
        call_refuse(h, p, status_from_errno(p->rc));
    } else {
        resp.sound = p->sound;
        resp.problem = p->problem;
        heal_reply(call, &resp.base);
    }
    proof_free(h, p);
}

static void proof_run(struct proof *p)
{
    struct repair_request *r = &p->job.request;

    assert(p->state != PROOF_ENDED && p->n_runs < RUNS_MAX);
    r->flags = REPAIR_PROVE | REPAIR_ALL_HOMES | REPAIR_CLEAN_SPARES;
    if (p->n_runs >= PLAIN_RUNS)
        r->flags |= REPAIR_FENCE;
    p->n_runs++;
    p->state = PROOF_RUNS;
    heal_job_submit(p->job.h, &p->job, RANK_CHECK);
}

static void on_pause_timer(struct env_timer *timer)
{
    proof_run(container_of(timer, struct proof, pause_timer));
}

/* Returns whether another run may find the file sound: not if a storage is down or the
 * run failed as a whole. */
static bool is_worth_another(const struct proof *p, const struct repair_result *r)
{
    return !r->sound && p->n_runs < RUNS_MAX && r->rc != -ENOENT &&
           (r->unanswered & ~p->job.request.lost) == 0;
}

static void on_proved(struct heal_job *job, const struct repair_result *result)
{
    struct proof *p = (struct proof *)job;
    struct healer *h = job->h;

    assert(p->state == PROOF_RUNS);
    if (result->rc != -ROZO_EMOVED && is_worth_another(p, result)) {
        p->state = PROOF_PAUSES;
        env_timer_start(h->env, &p->pause_timer, PAUSE_MS);
        return;
    }
    p->state = PROOF_ENDED;
    p->rc = result->rc == -ROZO_EMOVED ? -ROZO_EMOVED : 0;
    p->sound = result->sound;
    snprintf(p->problem, sizeof(p->problem), "%s", result->sound ? "" : result->problem);
    proof_tell(h, p);
}

static void on_call_timer(struct env_timer *timer)
{
    struct proof *p = container_of(timer, struct proof, call_timer);

    assert(p->call != NULL);
    call_refuse(p->job.h, p, ROZO__STATUS__IN_PROGRESS);
}

static struct proof *proof_find(const struct healer *h, const struct storcli_target *t,
                                uint64_t run)
{
    LIST_FOREACH(node, &h->parts->proofs.list) {
        struct proof *p = container_of(node, struct proof, link);
        const struct storcli_target *other = &p->job.request.target;

        if (p->run == run && heal_same_target(t, other) &&
            list_order(&t->id, &other->id) == 0)
            return p;
    }
    return NULL;
}

/* Makes room by dropping the proof that ended first and was not fetched. */
static bool make_room(struct healer *h)
{
    if (h->parts->proofs.n < PROOFS_MAX)
        return true;
    LIST_FOREACH(node, &h->parts->proofs.list) {
        struct proof *p = container_of(node, struct proof, link);

        if (p->state == PROOF_ENDED) {
            proof_free(h, p);
            return true;
        }
    }
    return false;
}

static struct proof *proof_new(struct healer *h, const struct storcli_target *target,
                               uint64_t run)
{
    struct proof *p = make_room(h) ? calloc(1, sizeof(*p)) : NULL;

    if (p == NULL)
        return NULL;
    assert(h->parts->proofs.n < PROOFS_MAX);
    p->job.request.target = *target;
    p->job.fixed = true;
    p->job.done = on_proved;
    p->job.h = h;
    p->run = run;
    env_timer_init(&p->call_timer, on_call_timer);
    env_timer_init(&p->pause_timer, on_pause_timer);
    list_add_tail(&h->parts->proofs.list, &p->link);
    h->parts->proofs.n++;
    proof_run(p);
    return p;
}

static int prove_parse(const struct healer *h, const struct rpc_call *call,
                       const Rozo__StRepairReq *req, struct storcli_target *target)
{
    int rc = req == NULL ? -EBADMSG : heal_target_get(req->ref, target);

    if (rc != 0)
        return rc;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (req->to_storage != h->us)
        return -ROZO_EWRONG_STORAGE;
    return heal_place(target, h->us) == DIST_MAX ? -EBADMSG : 0;
}

void prove_handle(struct healer *h, struct rpc_call *call)
{
    Rozo__StRepairReq *req = rozo__st_repair_req__unpack(NULL, call->msg_len, call->msg);
    struct storcli_target target;
    struct proof *p = NULL;
    int rc = prove_parse(h, call, req, &target);

    assert(call->op == ROZO__OP__ST_REPAIR && h->us != 0);
    if (rc == 0) {
        p = proof_find(h, &target, req->run);
        if (p == NULL)
            p = proof_new(h, &target, req->run);
        rc = p == NULL ? -EBUSY : 0;
    }
    rozo__st_repair_req__free_unpacked(req, NULL);
    if (rc != 0) {
        rpc_reply_status(call, status_from_errno(rc));
        return;
    }
    /* Ends an older request for it, whose link broke. */
    call_refuse(h, p, ROZO__STATUS__IN_PROGRESS);
    p->call = call;
    env_timer_start(h->env, &p->call_timer, ANSWER_MS);
    proof_tell(h, p);
}

void proofs_init(struct healer *h)
{
    list_init(&h->parts->proofs.list);
}

/* Stops. Jobs were cancelled before. */
void proofs_stop(struct healer *h)
{
    LIST_FOREACH_SAFE(node, &h->parts->proofs.list) {
        struct proof *p = container_of(node, struct proof, link);

        call_refuse(h, p, ROZO__STATUS__BUSY);
        proof_free(h, p);
    }
}
