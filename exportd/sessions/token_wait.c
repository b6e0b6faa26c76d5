/*
 * token_wait.c - calls that need what other sessions hold: they wait, and run again.
 *
 * In:     md.c's handlers, before they change anything; tokens.c when something was given
 *         back.
 * Out:    recalls, as events; calls run again; grants in answers.
 * Keeps:  I5 with tokens.c. A waiting call has done nothing, and is decoded again when it
 *         runs. A repeated call waits, too, and then finds the answer of the first. I9:
 *         waiting calls are counted.
 */
#include "exportd/sessions/token_wait.h"

#include <assert.h>
#include <errno.h>

#include "common/base/err.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/session_events.h"
#include "exportd/sessions/session_tokens.h"
#include "exportd/sessions/sessions.h"

/* Waiting call. Owned by its session. */
struct parked {
    struct token_waiter waiter;
    struct session *session; /* borrowed */
    struct rpc_call *call;   /* owned; NULL while it runs again */
    enum when_asked when_asked;
    struct list_node link;       /* in session->parked */
    struct list_node ready_link; /* in turns.ready, or alone */
};

static struct exportd *exportd_of(const struct session *s)
{
    return s->export->x;
}

static struct tokens *tokens_of(const struct session *s)
{
    return &s->export->tokens;
}

/* ---- hooks of tokens.c; handled in a turn of their own ---- */

void session_recall(struct token_holder *holder, const struct token_recall *recall)
{
    struct session *s = container_of(holder, struct session, tokens);
    struct exportd *x = exportd_of(s);

    assert(holder->hooks == NULL);
    session_tell_recall(s, recall);
    list_remove(&s->news_link);
    list_add_tail(&x->sessions->turns.news, &s->news_link);
    env_post(x->env, &x->sessions->turns.task);
}

void session_wake(struct token_waiter *waiter)
{
    struct parked *p = container_of(waiter, struct parked, waiter);
    struct exportd *x = exportd_of(p->session);

    if (!list_is_empty(&p->ready_link))
        return;
    list_add_tail(&x->sessions->turns.ready, &p->ready_link);
    env_post(x->env, &x->sessions->turns.task);
}

/* ---- waiting ---- */

static struct parked *parked_new(struct session *s)
{
    struct exportd *x = exportd_of(s);
    struct parked *p;

    if (x->sessions->turns.n_parked >= PARKED_MAX || s->n_parked >= SESSION_PARKED_MAX)
        return NULL;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return NULL;
    p->waiter.holder = &s->tokens;
    p->session = s;
    list_init(&p->ready_link);
    list_add_tail(&s->parked, &p->link);
    s->n_parked++;
    x->sessions->turns.n_parked++;
    return p;
}

static void parked_free(struct parked *p)
{
    assert(p->session->n_parked > 0);
    assert(exportd_of(p->session)->sessions->turns.n_parked > 0);
    tokens_leave(tokens_of(p->session), &p->waiter);
    list_remove(&p->ready_link);
    list_remove(&p->link);
    p->session->n_parked--;
    exportd_of(p->session)->sessions->turns.n_parked--;
    free(p);
}

static int md_op_park(struct md_op *op, const struct token_want *wants, unsigned n,
                      enum when_asked when_asked)
{
    struct parked *p = op->parked != NULL ? op->parked : parked_new(op->session);
    int rc;

    if (p == NULL)
        return -EBUSY;
    assert(p->call == NULL && p->session == op->session);
    rc = tokens_wait(&op->export->tokens, &p->waiter, wants, n, env_now_ns(op->x->env));
    if (rc != 0) {
        if (op->parked == NULL)
            parked_free(p);
        return rc;
    }
    p->when_asked = when_asked;
    p->call = op->call;
    op->call = NULL;
    return -EINPROGRESS;
}

/* Returns true if the session has claimed what it wants. While others may still claim
 * tokens, no more than that is certain. */
static bool wants_are_claimed(const struct md_op *op, const struct token_want *wants,
                              unsigned n)
{
    for (unsigned k = 0; k < n; k++) {
        enum token_mode needed =
            wants[k].kind == WANT_CHANGE ? TOKEN_EXCLUSIVE : TOKEN_SHARED;
        enum token_mode held =
            wants[k].ino == 0
                ? TOKEN_EXCLUSIVE
                : tokens_held(&op->export->tokens, &op->session->tokens, wants[k].ino);

        if (held < needed || held == TOKEN_RANGES)
            return false;
    }
    return true;
}

bool md_op_is_alone(const struct md_op *op)
{
    return op->export->n_sessions == 1 && op->export->n_closed == 0 &&
           token_holder_owes_since(&op->session->tokens) == UINT64_MAX &&
           grace_is_over(op->export);
}

int md_op_wants(struct md_op *op, const struct token_want *wants, unsigned n,
                enum when_asked when_asked)
{
    enum token_verdict verdict;

    if (md_op_is_alone(op))
        return 0;
    if (!grace_is_over(op->export))
        return wants_are_claimed(op, wants, n) ? 0 : -EBUSY;
    verdict = tokens_judge(&op->export->tokens, &op->session->tokens,
                           op->parked == NULL ? NULL : &op->parked->waiter, wants, n);
    if (verdict == TOKENS_FREE)
        return 0;
    if (verdict == TOKENS_ASKED && when_asked != ASKED_WAITS)
        return when_asked == ASKED_FAILS ? -ROZO_ERETRY : 0;
    return md_op_park(op, wants, n, when_asked);
}

static void parked_run(struct parked *p)
{
    struct rpc_call *call = p->call;

    p->call = NULL;
    tokens_leave(tokens_of(p->session), &p->waiter);
    exportd_of(p->session)->hooks->run_call(exportd_of(p->session), call, p);
    if (p->call == NULL)
        parked_free(p);
}

static void parked_look(struct parked *p)
{
    enum token_verdict verdict;

    assert(p->call != NULL);
    list_remove(&p->ready_link);
    verdict = tokens_look(tokens_of(p->session), &p->waiter,
                          env_now_ns(exportd_of(p->session)->env));
    if (verdict == TOKENS_FREE ||
        (verdict == TOKENS_ASKED && p->when_asked != ASKED_WAITS))
        parked_run(p);
}

static void on_turn(struct env_task *task)
{
    struct token_turns *turns = container_of(task, struct token_turns, task);

    while (!list_is_empty(&turns->ready))
        parked_look(container_of(turns->ready.next, struct parked, ready_link));
    while (!list_is_empty(&turns->news)) {
        struct session *s = container_of(turns->news.next, struct session, news_link);

        list_remove(&s->news_link);
        session_tell_now(s);
    }
}

void token_turns_init(struct token_turns *turns)
{
    list_init(&turns->ready);
    list_init(&turns->news);
    turns->task.fn = on_turn;
}

bool token_turns_are_over(const struct token_turns *turns)
{
    return !turns->task.queued;
}

void session_send_back(struct session *s)
{
    struct exportd *x = exportd_of(s);

    LIST_FOREACH_SAFE(node, &s->parked) {
        struct parked *p = container_of(node, struct parked, link);
        struct rpc_call *call = p->call;
        struct reply_to to;

        if (p->when_asked != ASKED_FAILS)
            continue;
        assert(call != NULL);
        parked_free(p);
        to = reply_cache_to(call);
        reply_cache_keep(&s->replies, &to, -ROZO_ERETRY, false, NULL, 0,
                         env_now_ns(x->env));
        call_answer(x, call, -ROZO_ERETRY, NULL, false);
    }
}

void session_parked_end(struct session *s, int rc)
{
    while (!list_is_empty(&s->parked)) {
        struct parked *p = container_of(s->parked.next, struct parked, link);
        struct rpc_call *call = p->call;

        assert(call != NULL);
        parked_free(p);
        call_answer(exportd_of(s), call, rc, NULL, false);
    }
}

void session_drop_tokens(struct session *s)
{
    session_parked_end(s, -ROZO_ENO_SESSION);
    list_remove(&s->news_link);
    token_holder_end(tokens_of(s), &s->tokens);
}

/* ---- grants ---- */

static Rozo__TokenMode grant(struct md_op *op, const struct token_grant *what)
{
    struct token_grant g = *what;
    enum token_mode mode;

    if (g.how == GRANT_UNASKED && !grace_is_over(op->export))
        g.mode = tokens_held(&op->export->tokens, &op->session->tokens, g.ino);
    g.serial = op->grant != 0 ? op->grant : op->x->last_grant + 1;
    mode = tokens_grant(&op->export->tokens, &op->session->tokens, &g,
                        env_now_ns(op->x->env));
    if (mode != TOKEN_NONE)
        op->grant = op->x->last_grant = g.serial;
    return (Rozo__TokenMode)mode;
}

Rozo__TokenMode md_op_grant(struct md_op *op, uint64_t ino, enum token_mode mode)
{
    const struct token_grant g = { .ino = ino, .mode = mode, .how = GRANT_UNASKED };

    return grant(op, &g);
}

Rozo__TokenMode md_op_grant_asked(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call)
{
    return md_op_grant_range(op, ino, mode, call, &(struct token_range){ 0 });
}

Rozo__TokenMode md_op_grant_range(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call, struct token_range *range)
{
    struct token_range given = { 0 };
    const struct token_grant g = { .ino = ino,
                                   .mode = mode,
                                   .how = GRANT_ASKED,
                                   .call = call,
                                   .range = *range,
                                   .given = &given };
    Rozo__TokenMode has = grant(op, &g);

    *range = given;
    return has;
}

/* Accepts a failed claim of an inode that is gone: exportd forgot its tokens, and the
 * session need not know. */
static int claimed(struct session *s, uint64_t ino, int rc)
{
    struct inode in;

    return rc == -EAGAIN && namespace_getattr(&s->export->ns, ino, &in) == -ESTALE ? 0
                                                                                   : rc;
}

static int claim_one(struct session *s, uint64_t ino, enum token_mode mode, bool fresh)
{
    return claimed(s, ino, tokens_claim(tokens_of(s), &s->tokens, ino, mode, fresh));
}

static int claim_range(struct session *s, const Rozo__TokenRange *r, bool fresh)
{
    const struct token_range range = { r->from, r->to };

    if (range.from >= range.to)
        return -EINVAL;
    return claimed(s, r->ino,
                   tokens_claim_range(tokens_of(s), &s->tokens, r->ino, &range,
                                      r->write ? TOKEN_WRITE : TOKEN_READ, fresh));
}

/* Takes all claims or fails: a token that only the session believes in would do harm. */
static int claim_all(struct session *s, const Rozo__MdOpenSessionReq *req, bool fresh)
{
    int rc = 0;

    if (req->n_shared_tokens + req->n_exclusive_tokens > CLAIMS_MAX ||
        req->n_ranges > CLAIMS_MAX)
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < req->n_shared_tokens; i++)
        rc = claim_one(s, req->shared_tokens[i], TOKEN_SHARED, fresh);
    for (size_t i = 0; rc == 0 && i < req->n_exclusive_tokens; i++)
        rc = claim_one(s, req->exclusive_tokens[i], TOKEN_EXCLUSIVE, fresh);
    for (size_t i = 0; rc == 0 && i < req->n_ranges; i++)
        rc = claim_range(s, req->ranges[i], fresh);
    return rc;
}

uint64_t session_keep_tokens(struct session *s)
{
    uint64_t grant = ++exportd_of(s)->last_grant;

    tokens_claim_all(&s->tokens);
    tokens_claimed(tokens_of(s), &s->tokens, grant);
    return grant;
}

bool session_claim_tokens(struct session *s, const Rozo__MdOpenSessionReq *req,
                          bool fresh, uint64_t *grant)
{
    struct exportd *x = exportd_of(s);
    bool claims = req->n_shared_tokens + req->n_exclusive_tokens + req->n_ranges > 0;
    int rc = !claims ? 0 : s->id != req->session ? -EAGAIN : claim_all(s, req, fresh);

    if (rc != 0)
        token_holder_end(tokens_of(s), &s->tokens);
    *grant = ++x->last_grant;
    tokens_claimed(tokens_of(s), &s->tokens, *grant);
    return rc == 0;
}

int md_give_back(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdGiveBackReq *req = (const Rozo__MdGiveBackReq *)msg;
    uint64_t now_ns = env_now_ns(op->x->env);

    for (size_t i = 0; i < req->n_tokens; i++) {
        const Rozo__MdGiveBackReq__Token *t = req->tokens[i];

        if ((unsigned)t->keep > TOKEN_EXCLUSIVE || t->keep == ROZO__TOKEN_MODE__RANGES)
            return -EINVAL;
        tokens_give_back(&op->export->tokens, &op->session->tokens, t->ino,
                         (enum token_mode)t->keep, t->grant, now_ns);
    }
    return 0;
}

/* ---- for checks ---- */

/* Arguments for on_each(). */
struct each {
    void (*fn)(void *arg, const struct exportd_token *token);
    void *arg;
    uint32_t export_id;
};

static void on_each(void *arg, const struct token_holder *holder, uint64_t ino,
                    enum token_mode mode, const struct range_map *ranges)
{
    const struct each *each = arg;
    const struct session *s = container_of(holder, struct session, tokens);

    if (holder->hooks != NULL) /* exportd's own tokens */
        return;
    const struct exportd_token token = {
        .export_id = each->export_id,
        .session = s->id,
        .ino = ino,
        .mode = mode,
        .ranges = ranges,
    };

    each->fn(each->arg, &token);
}

void exportd_each_token(const struct exportd *x,
                        void (*fn)(void *arg, const struct exportd_token *token),
                        void *arg)
{
    LIST_FOREACH(node, &x->exports) {
        const struct export *e = container_of(node, struct export, link);
        struct each each = { fn, arg, e->id };

        tokens_each(&e->tokens, on_each, &each);
    }
}
