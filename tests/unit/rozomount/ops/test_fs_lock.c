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
    int rc; /* the answer, or UNDER_WAY */
};

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportd;
    struct options opt;
    struct mount *mount;
    struct loop *loop;
    struct node node;
    struct handle handle;
    struct fuse_req req;
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

/* Functions that no operation of this test calls. */

int fuse_reply_lock(fuse_req_t req, const struct flock *lock)
{
    (void)req;
    (void)lock;
    abort();
}

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
    const struct held_room held_room = { 1, 8, 1 };
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
    f->mount->info.lease_ms = 5000;
    f->mount->wants_events = true; /* the test tells events itself */
    assert_int_equal(held_open(-1, &held_room, &f->mount->held, &err), 0);
    f->handle.number = held_add(f->mount->held, &held, &f->handle);
    f->mount->lock_table = lock_table_new();
    f->mount->tokens = token_cache_new();
    md_client_session_is_open(&f->loop->md);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_ends_a_request_that_exportd_never_had),
        cmocka_unit_test(test_a_granted_lock_is_not_given_up_by_a_signal),
        cmocka_unit_test(test_a_lock_that_became_weaker_is_not_claimed_as_it_was),
        cmocka_unit_test(test_a_lock_that_becomes_weaker_is_claimed_so),
        cmocka_unit_test(test_a_lock_that_fails_to_become_weaker_is_lost),
        cmocka_unit_test(test_a_signal_cancels_a_wait_that_was_asked_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
