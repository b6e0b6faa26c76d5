/*
 * test_fs_lock.c - a program's lock when the session is opened again, and signals.
 *
 * Goal: the caller and lock_table.h hear what exportd has done, whatever a signal wants;
 * a request that exportd never had ends with the signal. Method: the operations of a
 * mount with one loop; exportd is a channel whose other end is the test, on a virtual
 * clock. Each signal counts as one that ends its process, as in another pid namespace.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "rozomount/op/handle.h"
#include "rozomount/ops/fuse_ops.h"
#include "tests/unit/rozomount/fake_exportd.h"
#include "tests/unit/rozomount/fake_notices.h"
#include "tests/unit/unit.h"

enum { INO = 42, OWNER = 7, UNDER_WAY = 1 };

struct fuse_req {
    struct loop *loop;
    int rc;    /* the answer, or UNDER_WAY */
    int found; /* result of a test: F_UNLCK, ... */
};

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportd;
    struct options opt;
    struct mount *mount;
    struct loop *loop;
    struct node node;
    struct handle handle;
    struct fuse_req req, test;
    struct mount_session_config config;
    struct stream_reads reads;
};

/* ---- libfuse ---- */

void *fuse_req_userdata(fuse_req_t req)
{
    return req->loop;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
    static const struct fuse_ctx other_namespace = { .pid = 0 };

    (void)req;
    return &other_namespace;
}

int fuse_reply_err(fuse_req_t req, int err)
{
    assert_int_equal(req->rc, UNDER_WAY);
    req->rc = -err;
    return 0;
}

int fuse_reply_lock(fuse_req_t req, const struct flock *lock)
{
    assert_int_equal(req->rc, UNDER_WAY);
    req->rc = 0;
    req->found = lock->l_type;
    return 0;
}

/* Functions that no operation of this test calls. */

int fuse_session_fd(struct fuse_session *se)
{
    (void)se;
    abort();
}

/* ---- the mount ---- */

static void on_lost(void *arg)
{
    (void)arg;
}

static void setup(struct fixture *f)
{
    static const struct md_client_config md = { .timeout_ms = 1000,
                                                .mount_session_lost = on_lost };
    const struct held_room held_room = { 1, 8 };
    const struct held_handle held = { .ino = INO, .kind = HELD_FILE };
    struct err err = { 0 };

    *f = (struct fixture){ .opt.meta_timeout_ms = 1000, .node.n_changing = 1 };
    env_virtual_init(&f->env, 1);
    fake_exportd_init(&f->exportd);
    f->handle.node = &f->node;
    f->loop = calloc(1, sizeof(*f->loop));
    f->mount = calloc(1, sizeof(*f->mount));
    assert_true(f->loop != NULL && f->mount != NULL);
    f->loop->mount = f->mount;
    fuse_op_init_signals(f->loop);
    md_client_init(&f->loop->md, &f->env.env, &f->exportd.channel, &md);
    f->mount->opt = &f->opt;
    f->mount->loops = f->loop;
    f->mount->n_loops = 1;
    f->mount->hold.link = -1;
    f->mount->info.lease_ms = 5000;
    f->mount->wants_events = true; /* the test tells events itself */
    assert_int_equal(held_open(-1, &held_room, &f->mount->held, &err), 0);
    f->handle.number = held_add(f->mount->held, &held, &f->handle);
    f->mount->lock_table = lock_table_new();
    f->mount->tokens = token_cache_new();
    md_client_session_is_open(&f->loop->md);
}

static void on_opened(void *arg, const struct mount_session_info *info)
{
    (void)arg;
    (void)info;
}

static void on_map(void *arg, const struct cluster_map *map)
{
    (void)arg;
    (void)map;
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

/* The clock of the loop; nothing else of its env is used. */
static uint64_t loop_ns;

static uint64_t loop_now(struct env *env)
{
    (void)env;
    return loop_ns;
}

/* Opens a session whose tokens have numbers from 5 on. It is sure until time passes. */
static void session_opens(struct fixture *f)
{
    Rozo__MdOpenSessionResp resp = ROZO__MD_OPEN_SESSION_RESP__INIT;
    static const struct env_ops loop_ops = { .now_ns = loop_now };
    static uint8_t cluster[16] = { 1 };

    f->config = (struct mount_session_config){
        .export_name = "main",
        .client = "here",
        .refs = open_refs_new(),
        .lock_table = f->mount->lock_table,
        .unsynced = unsynced_inodes_new(),
        .reads = &f->reads,
        .tokens = f->mount->tokens,
        .open_timeout_ms = 1000,
        .opened = on_opened,
        .map_changed = on_map,
        .tokens_max = on_lost,
        .clock_is_ahead = on_clock,
        .arg = f,
    };
    f->loop->env.env.ops = &loop_ops;
    loop_ns = env_now_ns(&f->env.env);
    f->mount->session = mount_session_new(&f->env.env, &f->loop->md, &f->config);
    mount_session_open(f->mount->session, on_first, f);
    resp.session = 9;
    resp.export_id = resp.root_ino = resp.codec = 1;
    resp.block_bytes = 8192;
    resp.lease_ms = 20000;
    resp.cluster_id = (ProtobufCBinaryData){ sizeof(cluster), cluster };
    resp.grant = 5;
    assert_int_equal(f->exportd.sent[0]->op, ROZO__OP__MD_OPEN_SESSION);
    fake_exportd_answer(&f->exportd, 0, ROZO__STATUS__OK, &resp.base);
    env_virtual_run_posted(&f->env);
    while (f->exportd.n_sent > 0) /* MD_EVENTS */
        fake_exportd_fail(&f->exportd, 0, -ECANCELED);
    assert_true(loop_may_tell(f->loop));
}

static void session_ends(struct fixture *f)
{
    mount_session_close(f->mount->session, on_lost, f);
    assert_int_equal(f->exportd.sent[0]->op, ROZO__OP__MD_CLOSE_SESSION);
    fake_exportd_answer(&f->exportd, 0, ROZO__STATUS__OK, NULL);
    env_virtual_run_posted(&f->env);
    mount_session_free(f->mount->session);
    open_refs_free(f->config.refs);
    unsynced_inodes_free(f->config.unsynced);
}

static void teardown(struct fixture *f)
{
    assert_int_equal(f->exportd.n_sent, 0);
    assert_true(f->req.rc != UNDER_WAY && f->loop->lock_waits == NULL);
    assert_int_equal(f->mount->n_ops, 0);
    env_virtual_run_posted(&f->env);
    while (f->loop->free_ops != NULL) {
        struct fuse_op *op = f->loop->free_ops;

        f->loop->free_ops = op->memory;
        free(op);
    }
    md_client_close(&f->loop->md);
    held_close(f->mount->held);
    lock_table_free(f->mount->lock_table);
    token_cache_free(f->mount->tokens);
    free(f->handle.owners);
    free(f->mount);
    free(f->loop);
    env_virtual_close(&f->env);
}

static void asks(struct fixture *f, int type, bool sleeps)
{
    struct fuse_file_info fi = { .fh = f->handle.number, .lock_owner = OWNER };
    struct flock fl = { .l_type = (short)type, .l_len = 100 };

    f->req = (struct fuse_req){ .loop = f->loop, .rc = UNDER_WAY };
    f->loop->current_unique++;
    fs_setlk(&f->req, INO, &fi, &fl, sleeps);
}

static void signal_comes(struct fixture *f)
{
    fuse_op_interrupt(f->loop, f->loop->current_unique);
}

/* Opens the session again: exportd gets the table's locks. Returns their number, and the
 * mode of the first. */
static size_t claims(struct fixture *f, unsigned *mode)
{
    size_t n;
    struct table_lock *list = lock_table_list(f->mount->lock_table, &n);

    *mode = n == 0 ? 0 : list[0].mode;
    free(list);
    return n;
}

static void session_is_lost(struct fixture *f)
{
    unsigned mode;

    md_client_session_is_lost(&f->loop->md);
    claims(f, &mode);
}

static void answer(struct fixture *f, uint16_t op, uint16_t status)
{
    assert_int_equal(f->exportd.n_sent, 1);
    assert_int_equal(f->exportd.sent[0]->op, op);
    fake_exportd_answer(&f->exportd, 0, status, NULL);
}

/* Answers the GETATTR that follows a granted lock: the program has it then. */
static void lock_is_taken(struct fixture *f)
{
    Rozo__Attr attr = ROZO__ATTR__INIT;
    Rozo__MdEntryResp entry = ROZO__MD_ENTRY_RESP__INIT;

    assert_int_equal(f->req.rc, UNDER_WAY);
    assert_int_equal(f->exportd.sent[0]->op, ROZO__OP__MD_GETATTR);
    attr.ino = INO;
    attr.mode = S_IFREG | 0644;
    attr.nlink = 1;
    entry.attr = &attr;
    fake_exportd_answer(&f->exportd, 0, ROZO__STATUS__OK, &entry.base);
    assert_int_equal(f->req.rc, 0);
}

static void takes(struct fixture *f, int type)
{
    asks(f, type, true);
    answer(f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
    lock_is_taken(f);
}

static void test_a_signal_ends_a_request_that_exportd_never_had(void **state)
{
    struct fixture f;
    unsigned mode;

    (void)state;
    setup(&f);
    session_is_lost(&f);
    asks(&f, F_WRLCK, true);
    assert_int_equal(f.req.rc, UNDER_WAY);
    signal_comes(&f);
    assert_int_equal(f.req.rc, -EINTR);
    md_client_session_is_open(&f.loop->md);
    assert_int_equal(f.exportd.n_sent_ever, 0);
    assert_int_equal(claims(&f, &mode), 0);
    teardown(&f);
}

/* The answer that grants the lock comes after the list of the next session was made:
 * exportd is asked again. The lock may be held already. */
static void test_a_granted_lock_is_not_given_up_by_a_signal(void **state)
{
    (void)state;
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        struct fixture f;
        unsigned mode;

        setup(&f);
        asks(&f, F_WRLCK, sleeps != 0);
        session_is_lost(&f);
        answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
        signal_comes(&f);
        assert_int_equal(f.req.rc, UNDER_WAY);
        md_client_session_is_open(&f.loop->md);
        answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
        lock_is_taken(&f);
        assert_int_equal(claims(&f, &mode), 1);
        assert_int_equal(mode, ROZO__LOCK__MODE__WRITE);
        teardown(&f);
    }
}

/* exportd has made the lock weaker, and given to others what became free. A claim of the
 * old lock would take that away from them. */
static void test_a_lock_that_became_weaker_is_not_claimed_as_it_was(void **state)
{
    struct fixture f;
    unsigned mode;

    (void)state;
    setup(&f);
    takes(&f, F_WRLCK);
    asks(&f, F_RDLCK, true);
    session_is_lost(&f);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
    signal_comes(&f);
    md_client_session_is_open(&f.loop->md);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
    lock_is_taken(&f);
    assert_int_equal(claims(&f, &mode), 1);
    assert_int_equal(mode, ROZO__LOCK__MODE__READ);
    teardown(&f);
}

/* exportd may have made the lock weaker just before it died, and its answer is lost. The
 * caller hears of it, whatever a signal wants. */
static void test_a_lock_that_becomes_weaker_is_claimed_so(void **state)
{
    struct fixture f;
    unsigned mode;

    (void)state;
    setup(&f);
    takes(&f, F_WRLCK);
    asks(&f, F_RDLCK, true);
    md_client_session_is_lost(&f.loop->md);
    assert_int_equal(claims(&f, &mode), 1);
    assert_int_equal(mode, ROZO__LOCK__MODE__READ);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__NO_SESSION);
    signal_comes(&f);
    md_client_session_is_open(&f.loop->md);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK); /* asked again: a new era */
    lock_is_taken(&f);
    teardown(&f);
}

static void test_a_lock_that_fails_to_become_weaker_is_lost(void **state)
{
    struct fixture f;
    unsigned mode;

    (void)state;
    setup(&f);
    takes(&f, F_WRLCK);
    asks(&f, F_RDLCK, false);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__NO_LOCKS);
    assert_int_equal(f.req.rc, -ENOLCK);
    assert_int_equal(claims(&f, &mode), 0);
    assert_true(lock_table_is_lost(f.mount->lock_table, INO));
    teardown(&f);
}

/* A waiter asks again in the next session. Its first wait may go on at exportd, so the
 * signal must cancel it there. */
static void test_a_signal_cancels_a_wait_that_was_asked_again(void **state)
{
    struct fixture f;
    unsigned mode;

    (void)state;
    setup(&f);
    asks(&f, F_WRLCK, true);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__IN_PROGRESS);
    session_is_lost(&f);
    locks_ask_again(f.loop);
    signal_comes(&f);
    assert_int_equal(f.req.rc, UNDER_WAY);
    md_client_session_is_open(&f.loop->md);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__IN_PROGRESS);
    answer(&f, ROZO__OP__MD_LOCK_CANCEL, ROZO__STATUS__OK);
    assert_int_equal(f.req.rc, -EINTR);
    assert_int_equal(claims(&f, &mode), 0);
    teardown(&f);
}

/* ---- tests for a lock ---- */

/* Tests for a lock. Returns true if exportd is asked. */
static bool test_asks(struct fixture *f)
{
    struct fuse_file_info fi = { .fh = f->handle.number, .lock_owner = OWNER + 1 };
    struct flock fl = { .l_type = F_WRLCK, .l_len = 100 };
    unsigned n = f->exportd.n_sent;

    f->test = (struct fuse_req){ .loop = f->loop, .rc = UNDER_WAY };
    fs_getlk(&f->test, INO, &fi, &fl);
    if (f->exportd.n_sent == n) {
        assert_int_equal(f->test.rc, 0);
        assert_int_equal(f->test.found, F_UNLCK);
        return false;
    }
    assert_int_equal(f->exportd.sent[n]->op, ROZO__OP__MD_LOCK_TEST);
    return true;
}

/* Answers the newest request, a test: this token came, and there is a lock or none. */
static void test_is_answered(struct fixture *f, uint64_t grant, bool locked)
{
    Rozo__MdLockTestResp resp = ROZO__MD_LOCK_TEST_RESP__INIT;
    Rozo__Lock lock = ROZO__LOCK__INIT;

    lock.mode = ROZO__LOCK__MODE__WRITE;
    lock.to = 1;
    resp.lock = locked ? &lock : NULL;
    resp.grant = grant;
    assert_int_equal(f->test.rc, UNDER_WAY);
    fake_exportd_answer(&f->exportd, f->exportd.n_sent - 1, ROZO__STATUS__OK, &resp.base);
    assert_int_equal(f->test.rc, 0);
    assert_int_equal(f->test.found, locked ? F_WRLCK : F_UNLCK);
}

static void test_locks_are_tested_here_under_their_token(void **state)
{
    struct token_cache_claim claim;
    struct fixture f;

    (void)state;
    setup(&f);
    session_opens(&f);
    assert_true(test_asks(&f));
    test_is_answered(&f, 0, false); /* no token */
    assert_true(test_asks(&f));
    test_is_answered(&f, 7, false);
    assert_false(test_asks(&f));
    assert_false(test_asks(&f));
    token_cache_gave_back(f.mount->tokens, token_of_locks(INO), TOKEN_NONE, 7);
    assert_true(test_asks(&f));
    test_is_answered(&f, 7, false); /* made before the recall */
    assert_true(test_asks(&f));
    test_is_answered(&f, 8, false);
    assert_false(test_asks(&f));
    /* the next session begins without */
    token_cache_claim(f.mount->tokens, &claim);
    assert_int_equal(claim.n_shared + claim.n_exclusive + claim.n_ranges, 0);
    free(claim.shared);
    free(claim.exclusive);
    free(claim.ranges);
    token_cache_opened(f.mount->tokens, 9, false);
    assert_true(test_asks(&f));
    test_is_answered(&f, 9, true);
    session_ends(&f);
    teardown(&f);
}

/* exportd may have done what a call asks for before its answer is here: then another
 * mount has seen it, and this one must agree. */
static void test_exportd_is_asked_while_locks_of_this_mount_change(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    session_opens(&f);
    assert_true(test_asks(&f));
    test_is_answered(&f, 7, false);
    asks(&f, F_WRLCK, false);
    assert_true(test_asks(&f)); /* MD_LOCK is under way */
    test_is_answered(&f, 8, true);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__OK);
    assert_true(test_asks(&f)); /* the call has not returned */
    test_is_answered(&f, 8, true);
    lock_is_taken(&f);
    assert_true(test_asks(&f)); /* held */
    test_is_answered(&f, 8, true);
    asks(&f, F_RDLCK, false);
    answer(&f, ROZO__OP__MD_LOCK, ROZO__STATUS__NO_LOCKS);
    assert_int_equal(f.req.rc, -ENOLCK);
    assert_true(test_asks(&f)); /* lost */
    test_is_answered(&f, 8, false);
    assert_true(
        (lock_table_take(f.mount->lock_table, INO, false, OWNER) & LOCK_TABLE_LOST) != 0);
    assert_false(test_asks(&f)); /* no lock is left here */
    session_ends(&f);
    teardown(&f);
}

static void test_exportd_is_asked_when_the_session_is_unsure(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    session_opens(&f);
    assert_true(test_asks(&f));
    test_is_answered(&f, 7, false);
    assert_false(test_asks(&f));
    loop_ns += 20000000000; /* the lease is over, and no timer has run yet */
    assert_true(test_asks(&f));
    test_is_answered(&f, 0, true);
    session_ends(&f);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_ends_a_request_that_exportd_never_had),
        cmocka_unit_test(test_a_granted_lock_is_not_given_up_by_a_signal),
        cmocka_unit_test(test_a_lock_that_became_weaker_is_not_claimed_as_it_was),
        cmocka_unit_test(test_a_lock_that_becomes_weaker_is_claimed_so),
        cmocka_unit_test(test_a_lock_that_fails_to_become_weaker_is_lost),
        cmocka_unit_test(test_a_signal_cancels_a_wait_that_was_asked_again),
        cmocka_unit_test(test_locks_are_tested_here_under_their_token),
        cmocka_unit_test(test_exportd_is_asked_while_locks_of_this_mount_change),
        cmocka_unit_test(test_exportd_is_asked_when_the_session_is_unsure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
