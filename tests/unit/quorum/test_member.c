/*
 * test_member.c - whole members, three of them: log, vote, links, kv. Whatever happens to
 * a minority, what was acknowledged is there on every later leader.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/base/units.h"
#include "exportd/quorum/member_port.h"
#include "exportd/quorum/raft/raft_core.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum { N = 3, KEYS = 20, DELAY_MAX_MS = 8 };

struct world;

/* Link from one member to another. */
struct link {
    struct rpc_channel channel; /* must stay first */
    struct world *w;
    unsigned from, to;
    struct list_node packets;
};

/* Request on its way, there and back. */
struct packet {
    struct rpc_call call; /* must stay first */
    struct list_node node;
    struct link *link;
    struct rpc_request *rq; /* NULL: cancelled */
    uint64_t life;          /* the sender's when it was sent */
    struct env_timer timer, deadline;
    bool is_back;
    uint16_t status;
};

/* Write of the program that tests. */
struct write {
    struct kv_done done;
    struct node *node;
    unsigned key;
    uint64_t val;
    bool is_done;
    int rc;
};

struct node {
    struct world *w;
    unsigned i;
    struct memdisk disk;
    struct kv_memory *below;
    struct kv_quorum *kv;
    struct member *member;
    struct member_port port;
    struct kv_quorum_hooks kv_hooks;
    struct err err;
    bool is_up, leads, is_started, is_stopped;
    int start_rc;
    uint64_t life; /* grows with each end of its process */
    uint64_t term;
};

struct world {
    struct env_virtual v;
    struct node nodes[N];
    struct link links[N][N];
    bool cut[N][N]; /* [from][to]: packets are lost */
    struct raft_config first;
    struct env_mail *mail, **mail_last;
    struct env_task mail_task;
    /* Values of keys: newest acknowledged, and newest written. */
    uint64_t acked[KEYS], written[KEYS];
    uint64_t next_val;
    unsigned n_acked;
    struct list_node packets;
};

/* ---- mail ---- */

static void on_mail_task(struct env_task *task)
{
    struct world *w = container_of(task, struct world, mail_task);

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
    struct world *w = ((struct node *)arg)->w;

    mail->next = NULL;
    *w->mail_last = mail;
    w->mail_last = &mail->next;
    env_post(&w->v.env, &w->mail_task);
}

static uint64_t now_ns(void *arg)
{
    (void)arg;
    return env_now_ns(&((struct node *)arg)->w->v.env);
}

static void on_lead(void *arg, uint64_t term)
{
    struct node *n = arg;

    assert_false(n->leads);
    n->leads = true;
    n->term = term;
    for (unsigned i = 0; i < N; i++) /* one leader a term */
        assert_true(i == n->i || !n->w->nodes[i].leads || n->w->nodes[i].term != term);
}

static void on_depose(void *arg)
{
    ((struct node *)arg)->leads = false;
}

static void on_failed(void *arg, int rc, const char *text)
{
    struct node *n = arg;

    print_message("member %u: %s: %s\n", n->i, text, error_text(rc));
    n->leads = false;
}

/* ---- links ---- */

static void packet_end(struct packet *p, int rc)
{
    struct rpc_request *rq = p->rq;

    env_timer_stop(&p->link->w->v.env, &p->timer);
    env_timer_stop(&p->link->w->v.env, &p->deadline);
    list_remove(&p->node);
    if (rq != NULL) {
        rq->status = p->status;
        rq->impl = NULL;
    }
    free((void *)p->call.msg);
    free(p->call.payload);
    free(p);
    if (rq != NULL)
        rq->done(rq, rc);
}

static bool is_lost(const struct packet *p, unsigned from, unsigned to)
{
    const struct world *w = p->link->w;

    return w->cut[from][to] || !w->nodes[to].is_up ||
           env_virtual_below(&p->link->w->v, 50) == 0;
}

static void on_reply(struct rpc_call *call, uint16_t status, const void *msg,
                     size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                     void (*sent)(void *arg), void *arg)
{
    struct packet *p = (struct packet *)call;

    (void)msg, (void)msg_len, (void)segs, (void)n_segs, (void)sent, (void)arg;
    p->status = status;
    p->is_back = true;
    env_timer_start(&p->link->w->v.env, &p->timer,
                    env_virtual_below(&p->link->w->v, DELAY_MAX_MS));
}

static const struct rpc_call_ops call_ops = { on_reply };

static void on_arrival(struct env_timer *timer)
{
    struct packet *p = container_of(timer, struct packet, timer);
    struct world *w = p->link->w;
    struct node *to = &w->nodes[p->link->to];

    if (p->is_back) {
        if (!is_lost(p, p->link->to, p->link->from))
            packet_end(p, 0);
        return; /* lost: the deadline ends it */
    }
    if (is_lost(p, p->link->from, p->link->to))
        return;
    member_handle(to->member, &p->call);
}

static void on_deadline(struct env_timer *timer)
{
    packet_end(container_of(timer, struct packet, deadline), -ETIMEDOUT);
}

static void link_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct link *l = (struct link *)ch;
    struct packet *p = calloc(1, sizeof(*p));
    uint8_t *msg = malloc(rq->msg_len);
    size_t len = 0;

    assert_true(p != NULL && msg != NULL);
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
    env_timer_start(&l->w->v.env, &p->timer, env_virtual_below(&l->w->v, DELAY_MAX_MS));
    env_timer_start(&l->w->v.env, &p->deadline, rq->deadline_ms);
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
    struct node *n = arg;
    unsigned to = (unsigned)(address[1] - '0');

    assert_true(to < N && to != n->i);
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
    struct node *n = arg;

    n->is_started = true;
    n->start_rc = rc;
}

static void on_stopped(void *arg)
{
    ((struct node *)arg)->is_stopped = true;
}

static void node_start(struct node *n)
{
    struct kv_quorum_config kv = { &n->w->v.env, kv_memory_kv(n->below), &n->kv_hooks };
    struct member_config config = {
        .env = &n->w->v.env,
        .disk = &n->disk.disk,
        .peers = { peer_open, peer_close, n },
        .id = 100 + n->i,
        .now_ns = now_ns,
        .now_arg = n,
        .keep_bytes = 6 << 20,
        .segment_bytes = 2 << 20,
    };

    n->port = (struct member_port){ .post_member = post,
                                    .post_core = post,
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
    n->is_started = n->is_stopped = n->leads = false;
    n->is_up = true;
    member_start(n->member, &n->err, on_started, n);
    while (!n->is_started) {
        env_virtual_run_posted(&n->w->v);
        if (!n->is_started)
            assert_true(env_virtual_run_next_timer(&n->w->v));
    }
    if (n->start_rc != 0)
        print_message("member %u: %s\n", n->i, n->err.text);
    assert_int_equal(n->start_rc, 0);
}

/* Ends the process of a member; power: unsynced data of its disk may be lost. */
static void node_kill(struct node *n, bool power)
{
    n->is_up = n->leads = false;
    n->life++;
    n->disk.is_cut = power;
    member_stop(n->member, on_stopped, n);
    kv_quorum_depose(n->kv);
    for (unsigned i = 0; i < 1000 && !(n->is_stopped && kv_quorum_is_idle(n->kv)); i++) {
        env_virtual_run_posted(&n->w->v);
        if (!n->is_stopped)
            env_virtual_run_next_timer(&n->w->v);
    }
    env_virtual_run_posted(&n->w->v);
    assert_true(n->is_stopped && kv_quorum_is_idle(n->kv));
    member_free(n->member);
    kv_quorum_close(n->kv);
    n->member = NULL;
    n->kv = NULL;
    if (power) {
        memdisk_power_cut(&n->disk);
        kv_memory_power_cut(
            n->below, env_virtual_below(&n->w->v, kv_memory_n_unsynced(n->below) + 1));
    }
}

static void on_begun(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

static void world_init(struct world *w, uint64_t seed)
{
    struct kv_done begun = { .fn = on_begun };

    memset(w, 0, sizeof(*w));
    env_virtual_init(&w->v, seed);
    w->mail_last = &w->mail;
    w->mail_task.fn = on_mail_task;
    w->next_val = 1;
    list_init(&w->packets);
    for (unsigned i = 0; i < N; i++) {
        char address[8];

        snprintf(address, sizeof(address), "m%u", i);
        assert_int_equal(raft_config_set(&w->first, 100 + i, RAFT_ROLE_VOTER, address),
                         0);
        for (unsigned j = 0; j < N; j++)
            w->links[i][j] =
                (struct link){ .channel.ops = &link_ops, .w = w, .from = i, .to = j };
    }
    for (unsigned i = 0; i < N; i++) {
        struct node *n = &w->nodes[i];

        n->w = w;
        n->i = i;
        memdisk_init(&n->disk, &w->v);
        assert_int_equal(kv_memory_open(&w->v.env, &n->below), 0);
        kv_quorum_begin(kv_memory_kv(n->below), &w->first, &begun);
        env_virtual_run_posted(&w->v);
        kv_sync(kv_memory_kv(n->below), &begun);
        env_virtual_run_posted(&w->v);
    }
    for (unsigned i = 0; i < N; i++)
        node_start(&w->nodes[i]);
}

static void world_free(struct world *w)
{
    for (unsigned i = 0; i < N; i++) {
        if (w->nodes[i].is_up)
            node_kill(&w->nodes[i], false);
        memdisk_free(&w->nodes[i].disk);
        kv_memory_close(w->nodes[i].below);
    }
    LIST_FOREACH_SAFE(node, &w->packets)
        packet_end(container_of(node, struct packet, node), -ENOTCONN);
    env_virtual_run_posted(&w->v);
    env_virtual_close(&w->v);
}

/* Asserts that at most one member may answer without asking. */
static void leases_check(struct world *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N; i++)
        n += w->nodes[i].is_up &&
             member_lease_until_ns(w->nodes[i].member) > env_now_ns(&w->v.env);
    assert_true(n <= 1);
}

static void run_ms(struct world *w, unsigned ms)
{
    for (unsigned i = 0; i < ms; i++) {
        env_virtual_advance_ms(&w->v, 1);
        leases_check(w);
    }
}

/* Returns the member that leads with a lease, or NULL. */
static struct node *leader(struct world *w)
{
    for (unsigned i = 0; i < N; i++) {
        struct node *n = &w->nodes[i];

        if (n->is_up && n->leads &&
            member_lease_until_ns(n->member) > env_now_ns(&w->v.env))
            return n;
    }
    return NULL;
}

static struct node *wait_for_leader(struct world *w)
{
    for (unsigned ms = 0; ms < 20000; ms++) {
        if (leader(w) != NULL)
            return leader(w);
        run_ms(w, 1);
    }
    fail_msg("nobody leads");
    return NULL;
}

static void on_written(struct kv_done *done, int rc)
{
    struct write *x = (struct write *)done;
    struct world *w = x->node->w;

    if (rc == 0) {
        w->n_acked++;
        if (x->val > w->acked[x->key])
            w->acked[x->key] = x->val;
    }
    free(x);
}

/* Writes one more value with a leader, one that is deposed perhaps. */
static void write_one(struct world *w, struct node *n, size_t len)
{
    struct write *x = calloc(1, sizeof(*x));
    uint8_t *val = calloc(1, len);
    char key[8];
    struct kv_item item = { key, 3, val, len };

    assert_true(x != NULL && val != NULL && len >= 8);
    x->done.fn = on_written;
    x->node = n;
    x->key = (unsigned)env_virtual_below(&w->v, KEYS);
    x->val = w->next_val++;
    w->written[x->key] = x->val;
    snprintf(key, sizeof(key), "K%02u", x->key);
    memcpy(val, &x->val, sizeof(x->val));
    kv_commit(kv_quorum_kv(n->kv), &item, 1, &x->done);
    free(val);
}

static uint64_t value_of(struct kv *kv, unsigned key)
{
    char name[8];
    void *val = NULL;
    size_t len;
    uint64_t v = 0;

    snprintf(name, sizeof(name), "K%02u", key);
    if (kv_get(kv, name, 3, &val, &len) == 0)
        memcpy(&v, val, sizeof(v));
    free(val);
    return v;
}

/* A leader has everything that was acknowledged; values of a key only grow. */
static void leader_check(struct world *w, struct node *n)
{
    for (unsigned k = 0; k < KEYS; k++) {
        uint64_t v = value_of(kv_quorum_kv(n->kv), k);

        assert_true(v >= w->acked[k] && v <= w->written[k]);
    }
}

static void all_are_equal(struct world *w)
{
    struct member_status a, b;

    for (unsigned ms = 0; ms < 10000; ms++) {
        bool same = true;

        member_status(w->nodes[0].member, &a);
        for (unsigned i = 0; i < N; i++) {
            member_status(w->nodes[i].member, &b);
            same = same && a.applied == b.applied && b.applied == b.last;
        }
        if (same)
            break;
        run_ms(w, 1);
    }
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = 0; k < KEYS; k++)
            assert_int_equal(value_of(kv_memory_kv(w->nodes[i].below), k),
                             value_of(kv_memory_kv(w->nodes[0].below), k));
}

static void three_members_hold_what_one_commits(void **state)
{
    struct world *w = malloc(sizeof(*w));
    struct node *n;

    (void)state;
    world_init(w, 1);
    n = wait_for_leader(w);
    for (unsigned i = 0; i < 50; i++)
        write_one(w, n, 8);
    write_one(w, n, 3 << 20); /* in several entries */
    run_ms(w, 500);
    assert_int_equal(w->n_acked, 51);
    leader_check(w, n);
    all_are_equal(w);
    world_free(w);
    free(w);
}

static void leadership_goes_over_when_asked(void **state)
{
    struct world *w = malloc(sizeof(*w));
    struct node *a, *b;
    uint64_t at_ns;

    (void)state;
    world_init(w, 2);
    a = wait_for_leader(w);
    for (unsigned i = 0; i < 10; i++)
        write_one(w, a, 8);
    run_ms(w, 200);
    at_ns = env_now_ns(&w->v.env);
    assert_int_equal(member_transfer(a->member, 0), 0);
    write_one(w, a, 8); /* refused, or never acknowledged */
    b = wait_for_leader(w);
    assert_ptr_not_equal(a, b);
    assert_true(env_now_ns(&w->v.env) - at_ns <= ms_to_ns(300));
    leader_check(w, b);
    all_are_equal(w);
    world_free(w);
    free(w);
}

/* A leader that is cut off answers nothing once its lease has ended. */
static void a_leader_that_is_cut_off_gives_up(void **state)
{
    struct world *w = malloc(sizeof(*w));
    struct node *a, *b;

    (void)state;
    world_init(w, 3);
    a = wait_for_leader(w);
    for (unsigned i = 0; i < N; i++)
        w->cut[a->i][i] = w->cut[i][a->i] = true;
    write_one(w, a, 8);
    run_ms(w, RAFT_ELECTION_MS);
    assert_true(member_lease_until_ns(a->member) <= env_now_ns(&w->v.env));
    b = wait_for_leader(w);
    assert_ptr_not_equal(a, b);
    for (unsigned i = 0; i < 20; i++)
        write_one(w, b, 8);
    run_ms(w, 300);
    assert_int_equal(w->n_acked, 20);
    memset(w->cut, 0, sizeof(w->cut));
    run_ms(w, 2000);
    assert_false(a->leads);
    all_are_equal(w);
    leader_check(w, wait_for_leader(w));
    world_free(w);
    free(w);
}

/* The log is trimmed; entries that are not in memory are read for members that return. */
static void a_member_that_was_away_gets_what_it_missed(void **state)
{
    struct world *w = malloc(sizeof(*w));
    struct member_status s;
    struct node *n, *away;

    (void)state;
    world_init(w, 4);
    n = wait_for_leader(w);
    away = &w->nodes[(n->i + 1) % N];
    node_kill(away, false);
    for (unsigned i = 0; i < 40; i++) {
        write_one(w, n, 64 << 10);
        run_ms(w, 20);
    }
    run_ms(w, 300);
    assert_int_equal(w->n_acked, 40);
    node_start(away);
    all_are_equal(w);
    for (unsigned i = 0; i < 100; i++) { /* everybody is there: the log stays small */
        write_one(w, n, 256 << 10);
        run_ms(w, 20);
    }
    all_are_equal(w);
    for (unsigned i = 0; i < N; i++) {
        member_status(w->nodes[i].member, &s);
        assert_true(s.first > 40 && s.log_bytes <= 12 << 20);
    }
    for (unsigned i = 0; i < N; i++) {
        node_kill(&w->nodes[i], true);
        node_start(&w->nodes[i]);
    }
    leader_check(w, wait_for_leader(w));
    all_are_equal(w);
    world_free(w);
    free(w);
}

/* Kills, losses of power of a minority, and partitions, while values are written. */
static void by_chance(void **state)
{
    struct world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 100; seed < 100 + unit_seeds(80); seed++) {
        unsigned n_acked;

        world_init(w, seed);
        for (unsigned i = 0; i < 300; i++) {
            struct node *n = &w->nodes[env_virtual_below(&w->v, N)];
            unsigned n_up = 0;

            for (unsigned j = 0; j < N; j++)
                n_up += w->nodes[j].is_up;
            switch (env_virtual_below(&w->v, 40)) {
            case 0:
                if (n->is_up && n_up == N)
                    node_kill(n, env_virtual_below(&w->v, 2) == 0);
                break;
            case 1:
            case 2:
            case 3:
                if (!n->is_up)
                    node_start(n);
                break;
            case 4:
                for (unsigned j = 0; j < N; j++)
                    w->cut[n->i][j] = env_virtual_below(&w->v, 2) == 0;
                break;
            case 5:
            case 6:
            case 7:
                memset(w->cut, 0, sizeof(w->cut));
                break;
            case 8:
                if (n->is_up)
                    member_transfer(n->member, 0);
                break;
            default:
                if (n->is_up && n->leads)
                    write_one(w, n, 8 + env_virtual_below(&w->v, 3000));
            }
            run_ms(w, (unsigned)env_virtual_below(&w->v, 60));
            if (leader(w) != NULL)
                leader_check(w, leader(w));
        }
        memset(w->cut, 0, sizeof(w->cut));
        for (unsigned i = 0; i < N; i++)
            if (!w->nodes[i].is_up)
                node_start(&w->nodes[i]);
        run_ms(w, 3000);
        n_acked = w->n_acked;
        write_one(w, wait_for_leader(w), 8);
        run_ms(w, 1000);
        assert_true(w->n_acked > n_acked);
        leader_check(w, wait_for_leader(w));
        all_are_equal(w);
        world_free(w);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_members_hold_what_one_commits),
        cmocka_unit_test(leadership_goes_over_when_asked),
        cmocka_unit_test(a_leader_that_is_cut_off_gives_up),
        cmocka_unit_test(a_member_that_was_away_gets_what_it_missed),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
