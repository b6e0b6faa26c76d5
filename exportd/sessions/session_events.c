/*
 * session_events.c - MD_EVENTS: messages that a session gets without a request.
 *
 * In:     md_lock.c, when a wait is over; token_wait.c, when another session needs a
 *         token; the tick.
 * Out:    answers; events are kept until the session says that it has seen them.
 * Keeps:  I9: recalls that a session does not read are counted.
 */
#include "exportd/sessions/session_events.h"

#include <assert.h>
#include <errno.h>

#include "common/base/units.h"
#include "common/wire/status.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/session.h"

/* Limit of unread recalls; more than a client can owe that reads any. */
enum { RECALLS_UNSEEN_MAX = 2 * CLAIMS_MAX };

/* Event for a session. */
struct event {
    struct list_node link; /* in session->events */
    uint64_t number;
    uint64_t waiter; /* waiter of a lock; 0: a recall */
    int rc;
    struct token_recall recall;
};

struct event_message {
    Rozo__MdEventsResp msg;
    Rozo__MdEventsResp__Event *list[EVENTS_AN_ANSWER];
    Rozo__MdEventsResp__Event events[EVENTS_AN_ANSWER];
};

static void message_fill(const struct session *s, struct event_message *m)
{
    rozo__md_events_resp__init(&m->msg);
    m->msg.events = m->list;
    m->msg.tokens_max = s->tokens_max;
    LIST_FOREACH(node, &s->events) {
        const struct event *e = container_of(node, struct event, link);
        Rozo__MdEventsResp__Event *to;

        if (m->msg.n_events == EVENTS_AN_ANSWER)
            break;
        to = &m->events[m->msg.n_events];
        rozo__md_events_resp__event__init(to);
        to->number = e->number;
        to->waiter = e->waiter;
        to->status = (Rozo__Status)status_from_errno(e->rc);
        to->ino = e->recall.ino;
        to->keep = (Rozo__TokenMode)e->recall.keep;
        to->grant = e->recall.grant;
        to->call = e->recall.call;
        m->list[m->msg.n_events++] = to;
    }
}

/* Answers the held call; rc 0: with the events so far. */
static void session_answer_events(struct session *s, int rc)
{
    struct rpc_call *call = s->events_call;
    struct event_message m;

    if (call == NULL)
        return;
    s->events_call = NULL;
    message_fill(s, &m);
    call_answer(s->export->x, call, rc, rc == 0 ? &m.msg.base : NULL, false);
}

static void event_add(struct session *s, const struct event *what)
{
    struct event *e = malloc(sizeof(*e));

    if (e == NULL)
        abort(); /* an unreported grant would be held for ever */
    *e = *what;
    e->number = ++s->last_event;
    list_add_tail(&s->events, &e->link);
    s->n_events++;
}

void session_tell_lock(struct session *s, uint64_t waiter, int rc)
{
    const struct event e = { .waiter = waiter, .rc = rc };

    event_add(s, &e);
    session_answer_events(s, 0);
}

void session_tell_recall(struct session *s, const struct token_recall *recall)
{
    const struct event e = { .recall = *recall };

    /* beyond that, the session reads no events and will be evicted */
    if (s->n_events < RECALLS_UNSEEN_MAX)
        event_add(s, &e);
}

void session_tell_now(struct session *s)
{
    if (!list_is_empty(&s->events))
        session_answer_events(s, 0);
}

void session_tell_tokens_max(struct session *s, uint32_t max)
{
    if (s->tokens_max == max)
        return;
    s->tokens_max = max;
    session_answer_events(s, 0); /* without a held call, the next answer carries it */
}

static void event_free(struct session *s, struct event *e)
{
    assert(s->n_events > 0);
    list_remove(&e->link);
    s->n_events--;
    free(e);
}

int md_events(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdEventsReq *req = (const Rozo__MdEventsReq *)msg;
    struct session *s = op->session;
    struct event_message m;

    LIST_FOREACH_SAFE(node, &s->events) {
        struct event *e = container_of(node, struct event, link);

        if (req->seen > s->last_event || e->number > req->seen)
            break; /* above the last one: it means events of an earlier session */
        event_free(s, e);
    }
    session_answer_events(s, 0);
    if (!list_is_empty(&s->events)) {
        message_fill(s, &m);
        return md_op_pack(op, &m.msg.base);
    }
    assert(s->events_call == NULL && op->call != NULL);
    s->events_call = op->call;
    s->events_held_ns = env_now_ns(op->x->env);
    op->call = NULL;
    return 0;
}

void session_events_tick(struct session *s)
{
    struct exportd *x = s->export->x;

    if (env_now_ns(x->env) - s->events_held_ns > ms_to_ns(x->config.lease_ms) / 3)
        session_answer_events(s, 0);
}

void session_events_end(struct session *s, int rc)
{
    session_answer_events(s, rc);
    if (rc == -EBUSY)
        return; /* clients send the call to the next start */
    LIST_FOREACH_SAFE(node, &s->events)
        event_free(s, container_of(node, struct event, link));
}
