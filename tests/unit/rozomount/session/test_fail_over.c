/*
 * test_fail_over.c - a mount's session when another exportd takes the lead.
 *
 * Goal:   the next leader gets the session with all that the mount holds, then the calls
 *         that were under way, as the same calls; nothing goes to the former leader.
 * Method: session, calls and group as in a mount of one loop; two exportds are channels
 *         whose other end is the test, on a virtual clock.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/group/rpc_group.h"
#include "rozomount/session/mount_session.h"
#include "tests/unit/rozomount/fake_exportd.h"
#include "tests/unit/unit.h"

enum { N = 2, SESSION = 77, INO = 42 };

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportds[N];
    struct rpc_group *group;
    struct md_client md;
    struct md_call call;
    struct open_refs *refs;
    struct lock_table *lock_table;
    struct unsynced_inodes *unsynced;
    struct stream_reads reads;
    struct token_cache *tokens;
    struct mount_session *session;
    unsigned n_opened, n_closed, n_done, n_tokens_lost;
    int rc;
    uint16_t status;
    bool maybe_repeated;
};

static void on_lost(void *arg)
{
    mount_session_lost(((struct fixture *)arg)->session);
}

static void on_opened(void *arg, const struct mount_session_info *info)
{
    struct fixture *f = arg;

    f->n_opened++;
    rpc_group_set_session(f->group, info->id);
    md_client_session_is_open(&f->md);
}

static void on_map(void *arg, const struct cluster_map *map)
{
    (void)arg;
    (void)map;
}

static void on_tokens_lost(void *arg)
{
    ((struct fixture *)arg)->n_tokens_lost++;
}

static void on_tokens_max(void *arg)
{
    (void)arg;
}

static void on_clock(void *arg, int64_t ns)
{
    (void)arg;
    (void)ns;
}

static void on_first(void *arg, int rc)
{
    (void)arg;
    assert_int_equal(rc, 0);
}

static void on_closed(void *arg)
{
    ((struct fixture *)arg)->n_closed++;
}

static void on_moved(void *arg)
{
    struct fixture *f = arg;

    md_client_channel_is_up(&f->md);
    if (f->session != NULL)
        mount_session_link_is_up(f->session);
}

static void on_done(struct md_call *call, int rc)
{
    struct fixture *f = call->arg;

    f->n_done++;
    f->rc = rc;
    f->status = call->status;
    f->maybe_repeated = call->maybe_repeated;
}

/* Returns the place of the only request of this kind at an exportd; -1: none. */
static int find(struct fixture *f, unsigned x, unsigned op)
{
    const struct fake_exportd *e = &f->exportds[x];
    int found = -1;

    for (unsigned i = 0; i < e->n_sent; i++) {
        if (e->sent[i]->op == op) {
            assert_int_equal(found, -1);
            found = (int)i;
        }
    }
    return found;
}

static void answer(struct fixture *f, unsigned x, unsigned op, uint16_t status,
                   const ProtobufCMessage *msg)
{
    int i = find(f, x, op);

    assert_true(i >= 0);
    fake_exportd_answer(&f->exportds[x], (unsigned)i, status, msg);
}

static void leads(struct fixture *f, unsigned x, uint64_t start)
{
    Rozo__MdWaitLeaderResp resp = ROZO__MD_WAIT_LEADER_RESP__INIT;

    resp.start = start;
    answer(f, x, ROZO__OP__MD_WAIT_LEADER, ROZO__STATUS__OK, &resp.base);
}

static void answer_open(struct fixture *f, unsigned x, uint64_t session, uint64_t grant)
{
    static uint8_t cluster[16] = { 1 };
    Rozo__MdOpenSessionResp r = ROZO__MD_OPEN_SESSION_RESP__INIT;

    r.session = session;
    r.export_id = 3;
    r.root_ino = 1;
    r.lease_ms = 20000;
    r.cluster_id.len = sizeof(cluster);
    r.cluster_id.data = cluster;
    r.now_ns = env_wall_ns(&f->env.env);
    r.map_version = 5;
    r.grant = grant;
    r.tokens_max = 1000;
    answer(f, x, ROZO__OP__MD_OPEN_SESSION, ROZO__STATUS__OK, &r.base);
}

static void setup(struct fixture *f)
{
    struct rpc_channel *channels[N];
    struct rpc_group_config group = {
        .members = channels, .n_members = N, .moved = on_moved, .arg = f
    };
    struct md_client_config md = { .timeout_ms = 10000,
                                   .mount_session_lost = on_lost,
                                   .arg = f };
    struct mount_session_config config = {
        .export_name = "main",
        .client = "here:1:/mnt",
        .open_timeout_ms = 10000,
        .opened = on_opened,
        .map_changed = on_map,
        .tokens_lost = on_tokens_lost,
        .tokens_max = on_tokens_max,
        .clock_is_ahead = on_clock,
        .arg = f,
    };

    memset(f, 0, sizeof(*f));
    env_virtual_init(&f->env, 1);
    for (unsigned i = 0; i < N; i++) {
        fake_exportd_init(&f->exportds[i]);
        channels[i] = &f->exportds[i].channel;
    }
    assert_int_equal(rpc_group_new(&f->env.env, &group, &f->group), 0);
    md_client_init(&f->md, &f->env.env, rpc_group_channel(f->group), &md);
    f->refs = config.refs = open_refs_new();
    f->lock_table = config.lock_table = lock_table_new();
    f->tokens = config.tokens = token_cache_new();
    f->unsynced = config.unsynced = unsynced_inodes_new();
    config.reads = &f->reads;
    f->session = mount_session_new(&f->env.env, &f->md, &config);
    mount_session_open(f->session, on_first, f);
    leads(f, 0, 5);
    answer_open(f, 0, SESSION, 1000);
}

/* Closes everything; exportd x leads. */
static void teardown(struct fixture *f, unsigned x)
{
    mount_session_close(f->session, on_closed, f);
    answer(f, x, ROZO__OP__MD_CLOSE_SESSION, ROZO__STATUS__OK, NULL);
    assert_int_equal(f->n_closed, 1);
    md_client_close(&f->md);
    rpc_group_close(f->group, on_closed, f);
    env_virtual_run_posted(&f->env);
    assert_int_equal(f->n_closed, 2);
    mount_session_free(f->session);
    open_refs_free(f->refs);
    lock_table_free(f->lock_table);
    token_cache_free(f->tokens);
    unsynced_inodes_free(f->unsynced);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(f->exportds[i].n_sent, 0);
    env_virtual_close(&f->env);
}

/* Begins a call, and holds an open inode, a lock and a token. */
static uint64_t begin(struct fixture *f)
{
    struct table_lock lock = { .ino = INO, .owner = 7, .to = 10, .mode = 2 };
    Rozo__MdCreateReq msg = ROZO__MD_CREATE_REQ__INIT;

    open_refs_add(f->refs, INO);
    lock.era = lock_table_era(f->lock_table);
    assert_int_equal(lock_table_set(f->lock_table, &lock), 0);
    token_cache_grant(f->tokens, INO, TOKEN_SHARED, 1001);
    msg.name.data = (uint8_t *)(uintptr_t) "name";
    msg.name.len = 4;
    md_client_send(&f->md, &f->call, ROZO__OP__MD_CREATE, &msg.base, 0, on_done, f);
    assert_true(find(f, 0, ROZO__OP__MD_CREATE) >= 0);
    return f->call.rq.id;
}

static void assert_all_is_claimed(struct fixture *f, unsigned x)
{
    const struct fake_exportd *e = &f->exportds[x];
    int i = find(f, x, ROZO__OP__MD_OPEN_SESSION);
    Rozo__MdOpenSessionReq *req;

    assert_true(i >= 0);
    req = rozo__md_open_session_req__unpack(NULL, e->msg_len[i], e->msg[i]);
    assert_non_null(req);
    assert_int_equal(req->session, SESSION);
    assert_int_equal(req->n_open_inodes, 1);
    assert_int_equal(req->n_locks, 1);
    assert_int_equal(req->n_shared_tokens, 1);
    rozo__md_open_session_req__free_unpacked(req, NULL);
}

static void assert_call_is_at(struct fixture *f, unsigned x, uint64_t id)
{
    int i = find(f, x, ROZO__OP__MD_CREATE);

    assert_true(i >= 0);
    assert_int_equal(f->exportds[x].sent[i]->id, id);
    assert_int_equal(f->exportds[x].sent[i]->session, SESSION);
}

static void end_call(struct fixture *f, unsigned x)
{
    answer(f, x, ROZO__OP__MD_CREATE, ROZO__STATUS__DONE_BEFORE, NULL);
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->rc, -ROZO_EDONE_BEFORE);
    assert_int_equal(f->status, ROZO__STATUS__DONE_BEFORE);
    assert_true(f->maybe_repeated);
    assert_int_equal(f->n_tokens_lost, 0);
    assert_int_equal(lock_table_look(f->lock_table, INO, 7), LOCK_TABLE_SOME);
    open_refs_remove(f->refs, INO, 1);
}

/* The former leader hangs or is cut off: it answers nothing any more. */
static void test_the_next_leader_gets_session_and_calls(void **state)
{
    struct fixture f;
    uint64_t id;

    (void)state;
    setup(&f);
    id = begin(&f);
    leads(&f, 1, 6);
    assert_int_equal(find(&f, 0, ROZO__OP__MD_CREATE), -1);
    assert_int_equal(find(&f, 0, ROZO__OP__MD_EVENTS), -1);
    assert_call_is_at(&f, 1, id);
    answer(&f, 1, ROZO__OP__MD_CREATE, ROZO__STATUS__NO_SESSION, NULL);
    answer(&f, 1, ROZO__OP__MD_EVENTS, ROZO__STATUS__NO_SESSION, NULL);
    answer(&f, 1, ROZO__OP__MD_KEEP_ALIVE, ROZO__STATUS__NO_SESSION, NULL);
    assert_all_is_claimed(&f, 1);
    assert_int_equal(find(&f, 1, ROZO__OP__MD_CREATE), -1); /* waits for the session */
    answer_open(&f, 1, SESSION, 2000);
    assert_int_equal(f.n_opened, 2);
    assert_call_is_at(&f, 1, id);
    end_call(&f, 1);
    teardown(&f, 1);
}

/* The former leader steps down in order; the next one needs a while. */
static void test_calls_wait_while_nobody_leads(void **state)
{
    struct fixture f;
    uint64_t id;

    (void)state;
    setup(&f);
    id = begin(&f);
    answer(&f, 0, ROZO__OP__MD_CREATE, ROZO__STATUS__NOT_LEADER, NULL);
    answer(&f, 0, ROZO__OP__MD_EVENTS, ROZO__STATUS__NOT_LEADER, NULL);
    env_virtual_advance_ms(&f.env, 1000);
    assert_int_equal(f.n_done, 0);
    leads(&f, 1, 6);
    answer(&f, 1, ROZO__OP__MD_CREATE, ROZO__STATUS__NO_SESSION, NULL);
    assert_all_is_claimed(&f, 1);
    answer(&f, 1, ROZO__OP__MD_OPEN_SESSION, ROZO__STATUS__NOT_LEADER, NULL);
    env_virtual_advance_ms(&f.env, 100);
    leads(&f, 0, 7); /* the first one again, in the middle of the opening */
    assert_all_is_claimed(&f, 0);
    answer_open(&f, 0, SESSION, 3000);
    assert_call_is_at(&f, 0, id);
    end_call(&f, 0);
    teardown(&f, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_next_leader_gets_session_and_calls),
        cmocka_unit_test(test_calls_wait_while_nobody_leads),
    };

    return cmocka_run_group_tests_name("fail_over", tests, NULL, NULL);
}
