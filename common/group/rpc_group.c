/*
 * rpc_group.c - finds the member that leads, and sends requests to it.
 *
 * In:     rpc_send(), rpc_cancel(); answers of members; timers.
 * Out:    requests to members: MD_WAIT_LEADER, and those of the user. This is core.
 * Keeps:  a request has one id at all members; it ends once, by its deadline. No answer
 *         is taken from a member with fewer starts than one that has led.
 * Yours:  the pauses.
 */
#include "common/group/rpc_group.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/base/units.h"

enum {
    ASK_DEADLINE_MS = 600000,
    ASK_BYTES = 16, /* a packed question */
    AGAIN_MS = 20,  /* before a member is asked that has just refused a request */
    ASK_PAUSE_MS = 100,
    HELD_MS = 1000, /* a question that is answered sooner is asked again after a pause */
    TICK_MS = 250,  /* between looks at the addresses of one exportd */
    HUNG_MS = 2000, /* an address that is suspect for so long gives its requests away */
    REQUEST_OVERHEAD = 512, /* bytes a request counts besides its own */
    ROOM_BYTES = 320,       /* for the message of most requests */
    SPARES_MAX = 64,        /* records of ended requests kept for the next ones */
};
static const uint64_t waiting_max = 64u << 20; /* bytes */

enum member_state {
    MEMBER_NONE,    /* no member has this number */
    MEMBER_ASKED,   /* `ask` is under way */
    MEMBER_PAUSING, /* `pause` runs; then the member is asked */
    /* a leader, when its starts were g->start; asked now and then: `pause` runs, or `ask`
     * is under way */
    MEMBER_LEADS,
};

/* One member. */
struct group_member {
    struct rpc_group *g;
    struct rpc_channel *channel; /* borrowed */
    enum member_state state;
    struct rpc_request ask;
    bool asks; /* `ask` is under way */
    uint64_t asked_ns;
    uint64_t list; /* number of the newest list it gave; 0: none */
    struct env_timer pause;
    unsigned n_out;      /* requests under way, without `ask` */
    uint64_t suspect_ns; /* since then it is suspect; 0: it is not */
};

/* A request, from rpc_send() to done or rpc_cancel(). rq->impl points at it. */
struct group_sent {
    struct rpc_request *rq; /* borrowed, the user's */
    struct rpc_group *g;
    struct list_node link;   /* in g->sent or g->failed */
    struct group_member *at; /* NULL: it waits for a leader, or has failed */
    bool has_placed; /* the user's place() was asked: no second answer can be taken */
    bool has_failed;
    int rc; /* if it has failed */
    uint64_t deadline_ns;
    uint64_t bytes;
    struct env_timer deadline; /* runs while it waits for a leader */
    struct rpc_request inner;  /* while it is at a member */
    size_t room;               /* bytes of msg */
    uint8_t msg[];
};

struct rpc_group {
    struct rpc_channel base; /* must be the first member */
    struct env *env;
    void (*moved)(void *arg);
    void (*told)(void *arg, const struct exportd_list *list, bool leads);
    void *arg;
    struct group_member members[RPC_GROUP_MAX]; /* by number */
    unsigned n_members;                         /* numbers that are or were in use */
    unsigned n_leads;
    unsigned last; /* index of the member that got the last request */
    uint64_t start;
    uint64_t session;
    uint64_t next_id;      /* begins anywhere: groups of one session do not share ids */
    struct list_node sent; /* in order of arrival */
    struct list_node failed;
    struct list_node spares; /* records with ROOM_BYTES */
    unsigned n_spares;
    uint64_t waiting_bytes;
    struct env_timer tick;
    struct env_task task; /* failed requests, end */
    bool is_closing;
    void (*closed)(void *arg);
    void *closed_arg;
};

static struct rpc_group *group_of(struct rpc_channel *base)
{
    return container_of(base, struct rpc_group, base);
}

/* ---- requests ---- */

static uint32_t sent_left_ms(const struct group_sent *s)
{
    uint64_t now_ns = env_now_ns(s->g->env);

    /* not 0, which rpc_send() does not take */
    return now_ns >= s->deadline_ns ? 1 : (uint32_t)ns_to_ms_up(s->deadline_ns - now_ns);
}

/* Takes a request from wherever it is. */
static void sent_remove(struct group_sent *s)
{
    struct rpc_group *g = s->g;

    if (s->at != NULL) {
        assert(s->at->n_out > 0);
        s->at->n_out--;
        s->at = NULL;
    } else if (!s->has_failed) {
        assert(g->waiting_bytes >= s->bytes);
        g->waiting_bytes -= s->bytes;
        env_timer_stop(g->env, &s->deadline);
    }
    list_remove(&s->link);
}

static void sent_free(struct group_sent *s)
{
    struct rpc_group *g = s->g;

    if (s->room != ROOM_BYTES || g->n_spares == SPARES_MAX) {
        free(s);
        return;
    }
    list_add_after(&g->spares, &s->link);
    g->n_spares++;
}

/* Ends a request that was removed; done() may do anything, also close the group. */
static void sent_done(struct group_sent *s, int rc)
{
    struct rpc_request *rq = s->rq;

    rq->impl = NULL;
    sent_free(s);
    rq->done(rq, rc);
}

static void sent_fail_later(struct group_sent *s, int rc)
{
    sent_remove(s);
    s->has_failed = true;
    s->rc = rc;
    list_add_tail(&s->g->failed, &s->link);
    env_post(s->g->env, &s->g->task);
}

static void sent_wait(struct group_sent *s)
{
    assert(s->at == NULL && !s->has_failed);
    s->g->waiting_bytes += s->bytes;
    env_timer_start(s->g->env, &s->deadline, sent_left_ms(s));
}

/* Takes a request back from its member, whose answer then does not count. */
static void sent_take_back(struct group_sent *s)
{
    rpc_cancel(&s->inner);
    s->at->n_out--;
    s->at = NULL;
    sent_wait(s);
    if (s->has_placed)
        sent_fail_later(s, -ENOTCONN);
}

static void on_sent_deadline(struct env_timer *timer)
{
    struct group_sent *s = container_of(timer, struct group_sent, deadline);
    bool down = rpc_channel_health(&s->g->base) <= RPC_CONNECTING;

    sent_remove(s);
    sent_done(s, down ? -ENOTCONN : -ETIMEDOUT);
}

/* ---- to a member that leads ---- */

static bool member_leads(const struct group_member *m)
{
    return m->state == MEMBER_LEADS;
}

static bool member_is_better(const struct group_member *m, bool is_up,
                             const struct group_member *best, bool best_is_up)
{
    if (best == NULL || is_up != best_is_up)
        return best == NULL || is_up;
    return m->n_out < best->n_out;
}

/* Returns the member for the next request; NULL: none leads. */
static struct group_member *group_choose(struct rpc_group *g)
{
    struct group_member *best = NULL;
    bool best_is_up = false;

    if (g->n_leads == 1 && member_leads(&g->members[g->last]))
        return &g->members[g->last];
    for (unsigned i = 1; i <= g->n_members; i++) {
        struct group_member *m = &g->members[(g->last + i) % g->n_members];
        bool is_up;

        if (!member_leads(m))
            continue;
        is_up = rpc_channel_health(m->channel) == RPC_UP;
        if (member_is_better(m, is_up, best, best_is_up)) {
            best = m;
            best_is_up = is_up;
        }
    }
    return best;
}

static void on_inner_done(struct rpc_request *inner, int rc);

static int on_inner_place(struct rpc_request *inner, size_t rest_len, struct iovec *iov)
{
    struct group_sent *s = inner->arg;
    struct rpc_request *rq = s->rq;

    s->has_placed = true;
    rq->status = inner->status;
    rq->answer_msg = inner->answer_msg;
    rq->answer_msg_len = inner->answer_msg_len;
    rq->answer_payload_len = inner->answer_payload_len;
    return rq->place(rq, rest_len, iov);
}

static void sent_start(struct group_sent *s, struct group_member *m, uint32_t deadline_ms)
{
    struct rpc_group *g = s->g;
    const struct rpc_request *rq = s->rq;

    assert(s->at == NULL && member_leads(m));
    s->at = m;
    m->n_out++;
    g->last = (unsigned)(m - g->members);
    s->inner = (struct rpc_request){
        .op = rq->op,
        .deadline_ms = deadline_ms,
        .msg = s->msg,
        .msg_len = rq->msg_len,
        .payload = rq->payload,
        .n_payload = rq->n_payload,
        .recv_head = rq->recv_head,
        .recv_head_len = rq->recv_head_len,
        .place = rq->place == NULL ? NULL : on_inner_place,
        .done = on_inner_done,
        .arg = s,
        .session = rq->session,
        .again = rq->id,
        .start = (uint32_t)g->start,
    };
    if (g->n_leads > 1 && !env_timer_is_running(&g->tick))
        env_timer_start(g->env, &g->tick, TICK_MS);
    rpc_send(m->channel, &s->inner);
}

/* Sends what waits to members that lead. */
static void group_dispatch(struct rpc_group *g)
{
    LIST_FOREACH(node, &g->sent) {
        struct group_sent *s = container_of(node, struct group_sent, link);
        struct group_member *m = s->at == NULL ? group_choose(g) : NULL;

        if (m == NULL)
            continue;
        g->waiting_bytes -= s->bytes;
        env_timer_stop(g->env, &s->deadline);
        sent_start(s, m, sent_left_ms(s));
    }
}

static void group_moves(struct rpc_group *g)
{
    if (g->moved != NULL)
        g->moved(g->arg);
    group_dispatch(g);
}

/* Takes the requests back that are under way at a member. */
static void member_take_back(struct group_member *m)
{
    LIST_FOREACH_SAFE(node, &m->g->sent) {
        struct group_sent *s = container_of(node, struct group_sent, link);

        if (s->at == m)
            sent_take_back(s);
    }
}

/* ---- who leads ---- */

static void on_ask_done(struct rpc_request *rq, int rc);

static void ask_send(struct group_member *m)
{
    Rozo__MdWaitLeaderReq req = ROZO__MD_WAIT_LEADER_REQ__INIT;
    uint8_t msg[ASK_BYTES];

    req.wants_list = m->g->told != NULL;
    req.list = m->list;
    m->asks = true;
    m->asked_ns = env_now_ns(m->g->env);
    m->ask = (struct rpc_request){
        .op = ROZO__OP__MD_WAIT_LEADER,
        .deadline_ms = ASK_DEADLINE_MS,
        .msg = msg,
        .msg_len = rozo__md_wait_leader_req__pack(&req, msg),
        .done = on_ask_done,
        .arg = m,
        .again = ++m->g->next_id,
    };
    assert(m->ask.msg_len <= sizeof(msg));
    rpc_send(m->channel, &m->ask);
}

static void member_ask(struct group_member *m)
{
    m->state = MEMBER_ASKED;
    ask_send(m);
}

static void on_pause(struct env_timer *timer)
{
    struct group_member *m = container_of(timer, struct group_member, pause);

    if (m->state == MEMBER_LEADS)
        ask_send(m);
    else
        member_ask(m);
}

static void member_ask_later(struct group_member *m, uint32_t pause_ms)
{
    m->state = MEMBER_PAUSING;
    env_timer_start(m->g->env, &m->pause, pause_ms);
}

/* Asks a member that leads for its list, after a while. */
static void member_look_later(struct group_member *m)
{
    m->state = MEMBER_LEADS;
    if (m->g->told != NULL)
        env_timer_start(m->g->env, &m->pause, RPC_GROUP_LOOK_MS);
}

static void member_leads_no_more(struct group_member *m, uint32_t pause_ms)
{
    assert(member_leads(m) && m->g->n_leads > 0);
    m->g->n_leads--;
    m->suspect_ns = 0;
    if (m->asks)
        m->state = MEMBER_ASKED; /* the answer decides */
    else
        member_ask_later(m, pause_ms);
}

/* Takes the lead, and the requests, from all members that had fewer starts. */
static void group_depose(struct rpc_group *g, uint64_t start)
{
    g->start = start;
    for (unsigned i = 0; i < g->n_members; i++) {
        struct group_member *m = &g->members[i];

        if (member_leads(m))
            member_leads_no_more(m, 0);
        member_take_back(m);
    }
}

static void member_takes_lead(struct group_member *m, uint64_t start)
{
    struct rpc_group *g = m->g;
    bool is_first;

    if (start < g->start) {
        member_ask_later(m, ASK_PAUSE_MS); /* deposed: a later one has led */
        return;
    }
    if (start > g->start)
        group_depose(g, start);
    is_first = g->n_leads++ == 0;
    member_look_later(m);
    if (is_first)
        group_moves(g);
}

/* Has all members connected: one of them will lead. */
static void group_connect(struct rpc_group *g)
{
    for (unsigned i = 0; i < g->n_members; i++) {
        if (g->members[i].state != MEMBER_NONE &&
            rpc_channel_health(g->members[i].channel) <= RPC_CONNECTING)
            rpc_connect_now(g->members[i].channel);
    }
}

/* Gives the list of an answer to the user. */
static void list_take(struct group_member *m, const Rozo__MdWaitLeaderResp *r, bool leads)
{
    struct exportd_list list;

    if (m->g->told == NULL || r->list == m->list || !exportd_list_take(r, &list))
        return;
    m->list = r->list;
    m->g->told(m->g->arg, &list, leads);
}

/* Meaning of an answer to MD_WAIT_LEADER. */
enum ask_says { SAYS_LEADS, SAYS_NOT_LEADER, SAYS_NOTHING };

static enum ask_says ask_read(struct group_member *m, int rc, uint64_t *start)
{
    const struct rpc_request *rq = &m->ask;
    bool leads = rc == 0 && rq->status == ROZO__STATUS__OK;
    bool refuses = rc == 0 && rq->status == ROZO__STATUS__NOT_LEADER;
    Rozo__MdWaitLeaderResp *r = NULL;

    *start = 0;
    if (rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP)
        return SAYS_LEADS; /* older than quorums */
    if (leads || refuses)
        r = rozo__md_wait_leader_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (r != NULL) {
        *start = r->start;
        list_take(m, r, leads && r->start >= m->g->start);
        rozo__md_wait_leader_resp__free_unpacked(r, NULL);
    }
    return refuses ? SAYS_NOT_LEADER : r != NULL ? SAYS_LEADS : SAYS_NOTHING;
}

/* Takes the answer of a member to which requests go. */
static void leading_says(struct group_member *m, enum ask_says says, uint64_t start)
{
    struct rpc_group *g = m->g;

    if (says == SAYS_NOT_LEADER) {
        member_leads_no_more(m, AGAIN_MS);
        if (g->n_leads == 0)
            group_connect(g);
        return;
    }
    member_look_later(m);
    if (says != SAYS_LEADS || start <= g->start)
        return;
    if (g->start == 0) {
        g->start = start; /* an only member is taken to lead before it is asked */
        return;
    }
    group_depose(g, start); /* deposed in between, now leading again */
    env_timer_stop(g->env, &m->pause);
    member_takes_lead(m, start);
}

static void on_ask_done(struct rpc_request *rq, int rc)
{
    struct group_member *m = rq->arg;
    bool was_held = env_now_ns(m->g->env) - m->asked_ns >= ms_to_ns(HELD_MS);
    enum ask_says says;
    uint64_t start;

    assert(m->asks && (m->state == MEMBER_ASKED || m->state == MEMBER_LEADS));
    m->asks = false;
    says = ask_read(m, rc, &start);
    if (m->state == MEMBER_LEADS)
        leading_says(m, says, start);
    else if (says == SAYS_LEADS)
        member_takes_lead(m, start);
    else
        member_ask_later(m, was_held ? 0 : ASK_PAUSE_MS);
}

/* Sends a request again that a member refused because it does not lead. */
static void sent_refused(struct group_sent *s)
{
    struct group_member *m = s->at, *next;

    m->n_out--;
    s->at = NULL;
    sent_wait(s);
    if (s->has_placed) {
        sent_fail_later(s, -ENOTCONN);
        return;
    }
    if (member_leads(m))
        member_leads_no_more(m, AGAIN_MS);
    next = group_choose(m->g);
    if (next != NULL)
        group_moves(m->g);
    else
        group_connect(m->g);
}

static void on_inner_done(struct rpc_request *inner, int rc)
{
    struct group_sent *s = inner->arg;
    struct rpc_request *rq = s->rq;

    if (rc == 0 && inner->status == ROZO__STATUS__NOT_LEADER) {
        sent_refused(s);
        return;
    }
    rq->status = inner->status;
    rq->answer_msg = inner->answer_msg;
    rq->answer_msg_len = inner->answer_msg_len;
    rq->answer_payload = inner->answer_payload;
    rq->answer_payload_len = inner->answer_payload_len;
    sent_remove(s);
    sent_done(s, rc);
}

/* ---- addresses of one exportd ---- */

/* Returns true if an address of exportd has not worked for too long. */
static bool member_has_failed(struct group_member *m)
{
    uint64_t now_ns = env_now_ns(m->g->env);

    switch (rpc_channel_health(m->channel)) {
    case RPC_UP:
        m->suspect_ns = 0;
        return false;
    case RPC_SUSPECT:
        if (m->suspect_ns == 0)
            m->suspect_ns = now_ns;
        return now_ns - m->suspect_ns >= ms_to_ns(HUNG_MS);
    default:
        return true;
    }
}

static void on_tick(struct env_timer *timer)
{
    struct rpc_group *g = container_of(timer, struct rpc_group, tick);
    unsigned n_out = 0, n_failed = 0, n_up = 0;
    bool failed[RPC_GROUP_MAX] = { false };

    if (g->n_leads < 2)
        return;
    for (unsigned i = 0; i < g->n_members; i++) {
        struct group_member *m = &g->members[i];

        n_out += m->n_out;
        if (!member_leads(m))
            continue;
        failed[i] = member_has_failed(m) && m->n_out > 0;
        n_failed += failed[i];
        n_up += rpc_channel_health(m->channel) == RPC_UP;
    }
    for (unsigned i = 0; n_up > 0 && i < g->n_members; i++) {
        if (failed[i])
            member_take_back(&g->members[i]);
    }
    if (n_up > 0 && n_failed > 0)
        group_moves(g);
    if (n_out > 0)
        env_timer_start(g->env, &g->tick, TICK_MS);
    for (unsigned i = 0; n_out == 0 && i < g->n_members; i++)
        g->members[i].suspect_ns = 0; /* unknown from now on */
}

/* ---- the channel ---- */

/* Returns a record with room for a message; its other members are not set. */
static struct group_sent *sent_alloc(struct rpc_group *g, size_t msg_len)
{
    size_t room = msg_len > ROOM_BYTES ? msg_len : ROOM_BYTES;
    struct group_sent *s;

    if (room == ROOM_BYTES && g->n_spares > 0) {
        s = container_of(g->spares.next, struct group_sent, link);
        list_remove(&s->link);
        g->n_spares--;
        return s;
    }
    s = malloc(sizeof(*s) + room);
    assert(s != NULL);
    s->room = room;
    return s;
}

static struct group_sent *sent_new(struct rpc_group *g, struct rpc_request *rq)
{
    struct group_sent *s = sent_alloc(g, rq->msg_len);

    s->rq = rq;
    s->g = g;
    s->at = NULL;
    s->has_placed = s->has_failed = false;
    s->deadline_ns = env_now_ns(g->env) + ms_to_ns(rq->deadline_ms);
    s->bytes = REQUEST_OVERHEAD + rq->msg_len;
    for (unsigned i = 0; i < rq->n_payload; i++)
        s->bytes += rq->payload[i].iov_len;
    if (rq->msg_len != 0)
        memcpy(s->msg, rq->msg, rq->msg_len);
    env_timer_init(&s->deadline, on_sent_deadline);
    return s;
}

static void group_send(struct rpc_channel *base, struct rpc_request *rq)
{
    struct rpc_group *g = group_of(base);
    struct group_sent *s = sent_new(g, rq);
    struct group_member *m = g->is_closing ? NULL : group_choose(g);

    assert(rq->deadline_ms != 0);
    if (rq->session == 0)
        rq->session = g->session;
    rq->id = rq->again != 0 ? rq->again : ++g->next_id;
    rq->impl = s;
    rq->answer_msg = NULL;
    rq->answer_msg_len = 0;
    rq->answer_payload = NULL;
    rq->answer_payload_len = 0;
    list_add_tail(&g->sent, &s->link);
    if (m != NULL) {
        sent_start(s, m, rq->deadline_ms);
        return;
    }
    sent_wait(s);
    if (g->is_closing || g->waiting_bytes > waiting_max)
        sent_fail_later(s, -ENOTCONN);
}

static void group_cancel(struct rpc_channel *base, struct rpc_request *rq)
{
    struct group_sent *s = rq->impl;

    (void)base;
    assert(s != NULL && s->rq == rq);
    if (s->at != NULL)
        rpc_cancel(&s->inner);
    sent_remove(s);
    rq->impl = NULL;
    sent_free(s);
}

/* RPC_UP if a member that leads is up; RPC_SUSPECT if only others are. */
static enum rpc_health group_health(struct rpc_channel *base)
{
    struct rpc_group *g = group_of(base);
    enum rpc_health best = RPC_DOWN;

    for (unsigned i = 0; i < g->n_members; i++) {
        struct group_member *m = &g->members[i];
        enum rpc_health health =
            m->state == MEMBER_NONE ? RPC_DOWN : rpc_channel_health(m->channel);

        if (health == RPC_UP && !member_leads(m))
            health = RPC_SUSPECT;
        if (health > best)
            best = health;
    }
    return best;
}

static const struct rpc_channel_ops group_ops = {
    .send = group_send,
    .cancel = group_cancel,
    .health = group_health,
};

/* ---- life ---- */

static void on_task(struct env_task *task)
{
    struct rpc_group *g = container_of(task, struct rpc_group, task);
    void (*closed)(void *arg);
    void *arg;

    while (!list_is_empty(&g->failed)) {
        struct group_sent *s = container_of(g->failed.next, struct group_sent, link);
        int rc = s->rc;

        sent_remove(s);
        sent_done(s, rc);
    }
    if (!g->is_closing || g->task.queued)
        return;
    closed = g->closed;
    arg = g->closed_arg;
    LIST_FOREACH_SAFE(node, &g->spares)
        free(container_of(node, struct group_sent, link));
    free(g);
    closed(arg);
}

/* Makes the member with this number; its state is set by the caller. */
static struct group_member *member_make(struct rpc_group *g, unsigned i,
                                        struct rpc_channel *channel)
{
    struct group_member *m = &g->members[i];

    *m = (struct group_member){ .g = g, .channel = channel };
    env_timer_init(&m->pause, on_pause);
    if (g->n_members <= i)
        g->n_members = i + 1;
    return m;
}

int rpc_group_new(struct env *env, const struct rpc_group_config *config,
                  struct rpc_group **out)
{
    struct rpc_group *g = calloc(1, sizeof(*g));

    assert(config->n_members > 0 && config->n_members <= RPC_GROUP_MAX);
    if (g == NULL)
        return -ENOMEM;
    g->base.ops = &group_ops;
    g->env = env;
    g->moved = config->moved;
    g->told = config->told;
    g->arg = config->arg;
    env_random(env, &g->next_id, sizeof(g->next_id));
    list_init(&g->sent);
    list_init(&g->failed);
    list_init(&g->spares);
    env_timer_init(&g->tick, on_tick);
    g->task.fn = on_task;
    for (unsigned i = 0; i < config->n_members; i++)
        member_make(g, i, config->members[i]);
    if (g->n_members == 1) {
        g->n_leads = 1;
        g->members[0].state = MEMBER_LEADS;
        if (g->told != NULL)
            ask_send(&g->members[0]);
    }
    for (unsigned i = 0; g->n_members > 1 && i < g->n_members; i++)
        member_ask(&g->members[i]);
    *out = g;
    return 0;
}

/* Ends all that is under way at a member. */
static void member_end(struct group_member *m)
{
    if (m->state == MEMBER_NONE)
        return;
    env_timer_stop(m->g->env, &m->pause);
    if (m->asks)
        rpc_cancel(&m->ask);
    m->asks = false;
    member_take_back(m);
}

void rpc_group_close(struct rpc_group *g, void (*closed)(void *arg), void *arg)
{
    assert(!g->is_closing && closed != NULL);
    g->is_closing = true;
    g->closed = closed;
    g->closed_arg = arg;
    env_timer_stop(g->env, &g->tick);
    for (unsigned i = 0; i < g->n_members; i++)
        member_end(&g->members[i]);
    while (!list_is_empty(&g->sent))
        sent_fail_later(container_of(g->sent.next, struct group_sent, link), -ENOTCONN);
    env_post(g->env, &g->task);
}

struct rpc_channel *rpc_group_channel(struct rpc_group *g)
{
    return &g->base;
}

void rpc_group_set_session(struct rpc_group *g, uint64_t session)
{
    g->session = session;
}

uint64_t rpc_group_start(const struct rpc_group *g)
{
    return g->start;
}

void rpc_group_at_least(struct rpc_group *g, uint64_t start)
{
    if (start > g->start && !g->is_closing)
        group_depose(g, start);
}

void rpc_group_down(struct rpc_group *g, unsigned member)
{
    if (!g->is_closing && member_leads(&g->members[member]) && g->n_leads == 1)
        group_connect(g);
}

int rpc_group_add(struct rpc_group *g, struct rpc_channel *channel)
{
    unsigned i = 0;

    assert(!g->is_closing);
    while (i < g->n_members && g->members[i].state != MEMBER_NONE)
        i++;
    if (i == RPC_GROUP_MAX)
        return -ENOSPC;
    member_ask(member_make(g, i, channel));
    return (int)i;
}

void rpc_group_remove(struct rpc_group *g, unsigned member)
{
    struct group_member *m = &g->members[member];

    bool has_requests = m->n_out > 0;

    assert(!g->is_closing && m->state != MEMBER_NONE);
    member_end(m);
    g->n_leads -= member_leads(m);
    m->state = MEMBER_NONE;
    if (g->n_leads == 0)
        group_connect(g);
    else if (has_requests)
        group_moves(g);
}

bool rpc_group_leads(const struct rpc_group *g, unsigned member)
{
    return member_leads(&g->members[member]);
}
