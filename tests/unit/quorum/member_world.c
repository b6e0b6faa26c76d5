/* member_world.c - see member_world.h. */
#include "tests/unit/quorum/member_world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "exportd/quorum/seed_store.h"
#include "tests/unit/unit.h"

enum { DELAY_MAX_MS = 8 };

/* Request on its way, there and back. */
struct packet {
    struct rpc_call call; /* must stay first */
    struct list_node node;
    struct member_link *link;
    struct rpc_request *rq; /* NULL: cancelled */
    struct env_timer timer, deadline;
    bool is_held; /* by its receiver */
    bool is_back, is_late;
    uint16_t status;
    uint8_t *answer, *payload; /* answer; owned */
    size_t answer_len, payload_len;
};

/* ---- mail ---- */

static void on_mail_task(struct env_task *task)
{
    struct member_world *w = container_of(task, struct member_world, mail_task);

    while (w->mail != NULL) {
        struct env_mail *m = w->mail;

        w->mail = m->next;
        if (w->mail == NULL)
            w->mail_last = &w->mail;
        m->fn(m);
    }
}

static void post(void *arg, struct env_mail *mail)
{
    struct member_world *w = ((struct member_node *)arg)->w;

    mail->next = NULL;
    *w->mail_last = mail;
    w->mail_last = &mail->next;
    env_post(&w->v->env, &w->mail_task);
}

static uint64_t now_ns(void *arg)
{
    (void)arg;
    return env_now_ns(&((struct member_node *)arg)->w->v->env);
}

/* Mail for a core, which may hang. */
static void post_core(void *arg, struct env_mail *mail)
{
    struct member_node *n = arg;

    if (n->woken_ns != now_ns(n))
        n->n_wakes++;
    n->woken_ns = now_ns(n);
    if (!n->core_hangs) {
        post(n, mail);
        return;
    }
    mail->next = NULL;
    *n->mail_last = mail;
    n->mail_last = &mail->next;
}

void member_node_resume_core(struct member_node *n)
{
    struct env_mail *m = n->mail;

    n->core_hangs = false;
    n->mail = NULL;
    n->mail_last = &n->mail;
    while (m != NULL) {
        struct env_mail *next = m->next;

        post(n, m);
        m = next;
    }
}

/* One leader a term. */
static void leader_note(struct member_world *w, uint64_t term, uint64_t id)
{
    assert_true(term < MEMBER_TERMS);
    assert_true(w->leader_of[term] == 0 || w->leader_of[term] == id);
    w->leader_of[term] = id;
}

static void on_lead(void *arg, uint64_t term)
{
    struct member_node *n = arg;

    assert_false(n->leads || n->is_witness);
    n->leads = true;
    n->term = term;
    leader_note(n->w, term, n->id);
    if (n->w->lead != NULL)
        n->w->lead(n);
}

static void on_depose(void *arg)
{
    struct member_node *n = arg;

    n->leads = false;
    if (n->w->depose != NULL)
        n->w->depose(n);
}

static void on_failed(void *arg, int rc, const char *text)
{
    struct member_node *n = arg;

    print_message("member %u: %s: %s\n", n->i, text, error_text(rc));
    n->leads = false;
    n->has_failed = true;
}

/* ---- links ---- */

static void packet_end(struct packet *p, int rc)
{
    struct rpc_request *rq = p->rq;

    env_timer_stop(&p->link->w->v->env, &p->timer);
    env_timer_stop(&p->link->w->v->env, &p->deadline);
    list_remove(&p->node);
    if (rq != NULL) {
        rq->status = p->status;
        rq->answer_msg = p->answer;
        rq->answer_msg_len = p->answer_len;
        rq->answer_payload = p->payload;
        rq->answer_payload_len = p->payload_len;
        rq->impl = NULL;
        rq->done(rq, rc);
    }
    free((void *)p->call.msg);
    free(p->call.payload);
    free(p->answer);
    free(p->payload);
    free(p);
}

static bool is_lost(const struct packet *p, unsigned from, unsigned to)
{
    const struct member_world *w = p->link->w;

    return w->cut[from][to] || !w->nodes[to].is_up ||
           (!w->is_lossless && env_virtual_below(p->link->w->v, 50) == 0);
}

static void on_reply(struct rpc_call *call, uint16_t status, const void *msg,
                     size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                     void (*sent)(void *arg), void *arg)
{
    struct packet *p = (struct packet *)call;

    p->status = status;
    p->answer = malloc(msg_len + 1);
    p->answer_len = msg_len;
    for (unsigned i = 0; i < n_segs; i++)
        p->payload_len += segs[i].len;
    p->payload = malloc(p->payload_len + 1);
    assert_true(p->answer != NULL && p->payload != NULL);
    if (msg_len > 0)
        memcpy(p->answer, msg, msg_len);
    p->payload_len = 0;
    for (unsigned i = 0; i < n_segs; i++) {
        memcpy(p->payload + p->payload_len, segs[i].base, segs[i].len);
        p->payload_len += segs[i].len;
    }
    if (sent != NULL)
        sent(arg);
    p->is_held = false;
    p->is_back = true;
    if (p->is_late) {
        packet_end(p, -ETIMEDOUT);
        return;
    }
    env_timer_start(&p->link->w->v->env, &p->timer,
                    env_virtual_below(p->link->w->v, DELAY_MAX_MS));
}

static const struct rpc_call_ops call_ops = { on_reply };

static void on_stored(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

/* Handles a request to a node that waits, or that was added and has not started. */
static void waiting_handle(struct member_node *n, struct rpc_call *call)
{
    static struct kv_done done = { .fn = on_stored };
    struct seed_adoption a;

    if (call->op != ROZO__OP__RF_ADOPT) {
        rpc_reply_status(call, ROZO__STATUS__WRONG_STORAGE);
        return;
    }
    assert_int_equal(seed_adopt_decode(call->msg, call->msg_len, &a), 0);
    if (n->id == 0 && a.id != 0) {
        for (unsigned i = 0; i < n->w->n_nodes; i++)
            assert_true(n->w->nodes[i].id != a.id); /* never used before */
        n->id = a.id;
        n->is_witness = a.is_witness;
        seed_store_adopt(kv_memory_kv(n->below), &a, &done);
        env_virtual_run_posted(n->w->v);
        kv_sync(kv_memory_kv(n->below), &done);
        env_virtual_run_posted(n->w->v);
    }
    seed_adopt_answer(call, a.id == n->id || a.id == 0 ? 0 : -EEXIST, "");
}

static void on_arrival(struct env_timer *timer)
{
    struct packet *p = container_of(timer, struct packet, timer);
    struct member_world *w = p->link->w;
    struct member_node *to = &w->nodes[p->link->to];

    if (p->is_back) {
        if (!is_lost(p, p->link->to, p->link->from))
            packet_end(p, 0);
        return; /* lost: the deadline ends it */
    }
    if (is_lost(p, p->link->from, p->link->to))
        return;
    p->is_held = true;
    if (to->member != NULL)
        member_handle(to->member, &p->call);
    else
        waiting_handle(to, &p->call);
}

static void on_deadline(struct env_timer *timer)
{
    struct packet *p = container_of(timer, struct packet, deadline);
    struct rpc_request *rq = p->rq;

    if (!p->is_held) {
        packet_end(p, -ETIMEDOUT);
        return;
    }
    p->is_late = true; /* ends when its holder answers */
    p->rq = NULL;
    if (rq != NULL)
        rq->done(rq, -ETIMEDOUT);
}

static void link_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct member_link *l = (struct member_link *)ch;
    struct packet *p = calloc(1, sizeof(*p));
    uint8_t *msg = malloc(rq->msg_len);
    size_t len = 0;

    assert_true(p != NULL && msg != NULL);
    l->n_calls++;
    for (unsigned i = 0; i < rq->n_payload; i++)
        len += rq->payload[i].iov_len;
    memcpy(msg, rq->msg, rq->msg_len);
    p->call = (struct rpc_call){ .ops = &call_ops,
                                 .op = rq->op,
                                 .role = RPC_ROLE_NODE,
                                 .msg = msg,
                                 .msg_len = rq->msg_len,
                                 .payload = malloc(len + 1),
                                 .payload_len = len };
    assert_non_null(p->call.payload);
    len = 0;
    for (unsigned i = 0; i < rq->n_payload; i++) {
        memcpy(p->call.payload + len, rq->payload[i].iov_base, rq->payload[i].iov_len);
        len += rq->payload[i].iov_len;
    }
    p->link = l;
    p->rq = rq;
    rq->impl = p;
    env_timer_init(&p->timer, on_arrival);
    env_timer_init(&p->deadline, on_deadline);
    list_add_tail(&l->w->packets, &p->node);
    env_timer_start(&l->w->v->env, &p->timer, env_virtual_below(l->w->v, DELAY_MAX_MS));
    env_timer_start(&l->w->v->env, &p->deadline, rq->deadline_ms);
}

static void link_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct packet *p = rq->impl;

    (void)ch;
    p->rq = NULL;
}

static const struct rpc_channel_ops link_ops = { .send = link_send,
                                                 .cancel = link_cancel };

static struct rpc_channel *peer_open(void *arg, const char *address)
{
    struct member_node *n = arg;
    unsigned to = (unsigned)(address[1] - '0');

    assert_true(to < n->w->n_nodes);
    if (n->i == n->w->scripted_node && n->w->scripted[to] != NULL)
        return n->w->scripted[to];
    return &n->w->links[n->i][to].channel;
}

static void peer_close(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    (void)ch;
}

/* ---- members ---- */

static void on_started(void *arg, int rc)
{
    struct member_node *n = arg;

    n->is_started = true;
    n->start_rc = rc;
}

static void on_stopped(void *arg)
{
    ((struct member_node *)arg)->is_stopped = true;
}

void member_node_begin(struct member_node *n)
{
    struct kv_quorum_config kv = { .env = &n->w->v->env,
                                   .below = kv_memory_kv(n->below),
                                   .hooks = &n->kv_hooks,
                                   .is_witness = n->is_witness };
    struct member_config config = {
        .env = &n->w->v->env,
        .disk = &n->disk.disk,
        .peers = { peer_open, peer_close, n },
        .group = n->w->group,
        .id = n->id,
        .now_ns = now_ns,
        .now_arg = n,
        .keep_bytes = n->w->keep_bytes,
        .sources = &n->w->first,
        .seed_rate = n->w->seed_rate,
        .segment_bytes = 2 << 20,
        .is_lazy = n->w->is_lazy,
        .is_witness = n->is_witness,
        .boot = n->boot + 1,
    };

    n->port = (struct member_port){ .post_member = post,
                                    .post_core = post_core,
                                    .post_arg = n,
                                    .now_ns = now_ns,
                                    .now_arg = n,
                                    .lead = on_lead,
                                    .depose = on_depose,
                                    .failed = on_failed,
                                    .arg = n };
    n->kv_hooks = member_port_kv_hooks(&n->port);
    assert_int_equal(kv_quorum_open(&kv, &n->kv, &n->err), 0);
    config.hooks = member_port_member_hooks(&n->port);
    config.place = kv_quorum_place(n->kv);
    assert_int_equal(member_open(&config, &n->member), 0);
    n->port.kv = n->kv;
    n->port.member = n->member;
    n->is_started = n->is_stopped = n->leads = n->core_hangs = n->has_failed = false;
    n->mail_last = &n->mail;
    n->is_up = true;
    if (n->w->started != NULL)
        n->w->started(n);
    member_start(n->member, &n->err, on_started, n);
}

void member_node_start(struct member_node *n)
{
    member_node_begin(n);
    while (!n->is_started) {
        env_virtual_run_posted(n->w->v);
        if (!n->is_started)
            assert_true(env_virtual_run_next_timer(n->w->v));
    }
    if (n->start_rc != 0)
        print_message("member %u: %s\n", n->i, n->err.text);
    assert_int_equal(n->start_rc, 0);
}

static bool is_at_rest(struct member_node *n)
{
    bool ended = n->w->ended == NULL || n->w->ended(n);

    return ended && n->is_stopped && kv_quorum_is_idle(n->kv);
}

/* Stops a member, and frees it. */
static void node_end(struct member_node *n)
{
    assert_non_null(n->member);
    n->is_up = n->leads = false;
    n->life++;
    member_node_resume_core(n);
    member_stop(n->member, on_stopped, n);
    for (unsigned i = 0; i < 1000 && !is_at_rest(n); i++) {
        env_virtual_run_posted(n->w->v);
        if (!is_at_rest(n))
            env_virtual_run_next_timer(n->w->v);
    }
    env_virtual_run_posted(n->w->v);
    assert_true(is_at_rest(n));
    member_free(n->member);
    kv_quorum_close(n->kv);
    n->member = NULL;
    n->kv = NULL;
}

void member_node_stop(struct member_node *n)
{
    node_end(n);
}

void member_node_lose_power(struct member_node *n)
{
    n->boot++;
    memdisk_power_cut(&n->disk);
    kv_memory_power_cut(n->below,
                        env_virtual_below(n->w->v, kv_memory_n_unsynced(n->below) + 1));
}

void member_node_kill(struct member_node *n, bool power)
{
    n->disk.is_cut = true; /* a process that dies writes nothing more */
    node_end(n);
    n->disk.is_cut = false;
    if (power)
        member_node_lose_power(n);
}

static void on_begun(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

static void member_node_store_make(struct member_node *n)
{
    memdisk_init(&n->disk, n->w->v);
    assert_int_equal(kv_memory_open(&n->w->v->env, &n->below), 0);
}

void member_node_spoil(struct member_node *n, const char *path, uint64_t from,
                       uint64_t to)
{
    struct disk_file *f = memdisk_find(&n->disk, path);
    uint8_t bad[64];

    memset(bad, 0x5a, sizeof(bad));
    for (uint64_t at = from; f != NULL && at < to; at += MEM_PAGE)
        memdisk_poke(&n->disk, f, at, bad, sizeof(bad));
}

void member_node_empty(struct member_node *n)
{
    assert_false(n->is_up);
    memdisk_free(&n->disk);
    kv_memory_close(n->below);
    member_node_store_make(n);
}

void member_world_init(struct member_world *w, struct env_virtual *v)
{
    struct kv_done begun = { .fn = on_begun };

    w->v = v;
    w->mail = NULL;
    w->mail_last = &w->mail;
    w->mail_task = (struct env_task){ .fn = on_mail_task };
    w->first = (struct raft_config){ 0 };
    memset(w->scripted, 0, sizeof(w->scripted));
    w->scripted_node = 0;
    w->group = (struct raft_msg_group){ .number = 0 };
    memset(w->leader_of, 0, sizeof(w->leader_of));
    w->keep_bytes = 6 << 20;
    w->seed_rate = 0;
    member_world_connect_all(w);
    list_init(&w->packets);
    w->n_nodes = MEMBERS;
    for (unsigned i = 0; i < MEMBERS; i++) {
        char address[8];

        snprintf(address, sizeof(address), "m%u", i);
        assert_int_equal(raft_config_set(&w->first, 100 + i, RAFT_ROLE_VOTER, address),
                         0);
    }
    if (w->has_witness)
        raft_config_set_witness(&w->first, 100 + MEMBERS - 1);
    for (unsigned i = 0; i < NODES_MAX; i++)
        for (unsigned j = 0; j < NODES_MAX; j++)
            w->links[i][j] = (struct member_link){
                .channel.ops = &link_ops, .w = w, .from = i, .to = j
            };
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct member_node *n = &w->nodes[i];

        *n = (struct member_node){ .w = w,
                                   .i = i,
                                   .id = 100 + i,
                                   .is_witness =
                                       raft_config_is_witness(&w->first, 100 + i) };
        member_node_store_make(n);
        kv_quorum_begin(kv_memory_kv(n->below), &w->first, &begun);
        env_virtual_run_posted(w->v);
        kv_sync(kv_memory_kv(n->below), &begun);
        env_virtual_run_posted(w->v);
    }
    for (unsigned i = 0; i < MEMBERS; i++)
        member_node_start(&w->nodes[i]);
}

struct member_node *member_world_new(struct member_world *w)
{
    struct member_node *n = &w->nodes[w->n_nodes];

    assert_true(w->n_nodes < NODES_MAX);
    *n = (struct member_node){ .w = w, .i = w->n_nodes++, .is_up = true };
    member_node_store_make(n);
    return n;
}

void member_world_start_added(struct member_world *w)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        struct member_node *n = &w->nodes[i];

        if (n->is_up && n->member == NULL && n->id != 0)
            member_node_start(n);
    }
}

void member_world_free(struct member_world *w)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        if (w->nodes[i].is_up && w->nodes[i].member != NULL)
            member_node_kill(&w->nodes[i], false);
        memdisk_free(&w->nodes[i].disk);
        kv_memory_close(w->nodes[i].below);
    }
    LIST_FOREACH_SAFE(node, &w->packets)
        packet_end(container_of(node, struct packet, node), -ENOTCONN);
    env_virtual_run_posted(w->v);
}

void member_world_cut_off(struct member_world *w, unsigned i)
{
    for (unsigned j = 0; j < w->n_nodes; j++)
        w->cut[i][j] = w->cut[j][i] = true;
}

void member_world_connect_all(struct member_world *w)
{
    memset(w->cut, 0, sizeof(w->cut));
}

/* Asserts that at most one member may answer without asking, and that a term has one
 * leader, also one that has ended meanwhile. */
static void leaders_check(struct member_world *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->n_nodes; i++) {
        struct member_status s;

        if (!w->nodes[i].is_up || w->nodes[i].member == NULL)
            continue;
        n += member_lease_until_ns(w->nodes[i].member) > env_now_ns(&w->v->env);
        member_status(w->nodes[i].member, &s);
        if (!s.leads)
            continue;
        assert_true(s.term < MEMBER_TERMS);
        assert_true(w->leader_of[s.term] == 0 || w->leader_of[s.term] == s.id);
        w->leader_of[s.term] = s.id;
    }
    assert_true(n <= 1);
}

void member_world_run_ms(struct member_world *w, unsigned ms)
{
    for (unsigned i = 0; i < ms; i++) {
        env_virtual_advance_ms(w->v, 1);
        leaders_check(w);
    }
}

struct member_node *member_world_leader(struct member_world *w)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        struct member_node *n = &w->nodes[i];

        if (n->is_up && n->leads &&
            member_lease_until_ns(n->member) > env_now_ns(&w->v->env))
            return n;
    }
    return NULL;
}

struct member_node *member_world_wait_for_leader(struct member_world *w)
{
    for (unsigned ms = 0; ms < 20000; ms++) {
        if (member_world_leader(w) != NULL)
            return member_world_leader(w);
        member_world_run_ms(w, 1);
    }
    fail_msg("nobody leads");
    return NULL;
}
