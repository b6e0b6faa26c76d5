/*
 * Goal: calls to exportd end once, in time, and are repeated exactly when md_client.h
 * says so. Method: a channel whose other end is the test, on a virtual clock.
 */
#include <errno.h>

#include "common/base/err.h"
#include "rozomount/session/md_client.h"
#include "tests/unit/rozomount/fake_exportd.h"
#include "tests/unit/unit.h"

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportd;
    struct md_client md;
    struct md_call call;
    unsigned n_lost, n_done;
    int rc;
    uint16_t status;
    bool maybe_repeated;
    size_t answer_len;
};

static void on_lost(void *arg)
{
    ((struct fixture *)arg)->n_lost++;
}

static void on_done(struct md_call *call, int rc)
{
    struct fixture *f = call->arg;

    f->n_done++;
    f->rc = rc;
    f->status = call->status;
    f->maybe_repeated = call->maybe_repeated;
    f->answer_len = call->answer_len;
}

static void setup(struct fixture *f, bool open)
{
    struct md_client_config config = { .timeout_ms = 1000,
                                       .mount_session_lost = on_lost,
                                       .arg = f };

    memset(f, 0, sizeof(*f));
    env_virtual_init(&f->env, 1);
    fake_exportd_init(&f->exportd);
    md_client_init(&f->md, &f->env.env, &f->exportd.channel, &config);
    if (open)
        md_client_session_is_open(&f->md);
}

static void teardown(struct fixture *f)
{
    env_virtual_run_posted(&f->env);
    md_client_close(&f->md);
    env_virtual_close(&f->env);
}

static void send_getattr(struct fixture *f)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = 7;
    md_client_send(&f->md, &f->call, ROZO__OP__MD_GETATTR, &msg.base, 0, on_done, f);
}

static void test_answer_reaches_the_caller_once(void **state)
{
    struct fixture f;
    Rozo__MdEntryResp answer = ROZO__MD_ENTRY_RESP__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;

    (void)state;
    setup(&f, true);
    attr.ino = 7;
    answer.attr = &attr;
    send_getattr(&f);
    assert_int_equal(f.n_done, 0);
    assert_int_equal(f.exportd.n_sent, 1);
    assert_int_equal(f.exportd.sent[0]->op, ROZO__OP__MD_GETATTR);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &answer.base);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(f.rc, 0);
    assert_true(f.answer_len > 0);
    assert_false(f.maybe_repeated);
    env_virtual_advance_ms(&f.env, 5000);
    assert_int_equal(f.n_done, 1);
    teardown(&f);
}

static void test_statuses_become_errnos(void **state)
{
    static const struct {
        unsigned status;
        int rc;
    } table[] = {
        { ROZO__STATUS__NOT_FOUND, -ENOENT },    { ROZO__STATUS__EXISTS, -EEXIST },
        { ROZO__STATUS__NOT_EMPTY, -ENOTEMPTY }, { ROZO__STATUS__STALE_HANDLE, -ESTALE },
        { ROZO__STATUS__BAD_REQUEST, -EIO },     { ROZO__STATUS__UNKNOWN_OP, -EIO },
        { ROZO__STATUS__FENCED, -EIO },          { ROZO__STATUS__NO_DATA, -ENODATA },
        { ROZO__STATUS__TIMED_OUT, -EIO },       { 9999, -EIO },
    };
    struct fixture f;

    (void)state;
    setup(&f, true);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        send_getattr(&f);
        fake_exportd_answer(&f.exportd, 0, (uint16_t)table[i].status, NULL);
        assert_int_equal(md_client_user_errno(f.rc), table[i].rc);
    }
    teardown(&f);
}

static void test_busy_is_asked_again_until_the_deadline(void **state)
{
    struct fixture f;
    unsigned n = 0;
    uint64_t id;

    (void)state;
    setup(&f, true);
    send_getattr(&f);
    while (f.n_done == 0) {
        assert_true(n++ < 1000);
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__BUSY, NULL);
        env_virtual_advance_ms(&f.env, MD_BUSY_PAUSE_MS);
    }
    assert_true(n >= 40 && n <= 60);
    assert_int_equal(md_client_user_errno(f.rc), -EIO);
    send_getattr(&f);
    id = f.exportd.sent[0]->id;
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__BUSY, NULL);
    env_virtual_advance_ms(&f.env, MD_BUSY_PAUSE_MS);
    assert_true(f.exportd.sent[0]->id != id); /* the former id was answered */
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f.rc, 0);
    send_getattr(&f);
    assert_true(f.exportd.sent[0]->id != id);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    teardown(&f);
}

static void test_a_lost_session_makes_calls_wait_and_go_again(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, true);
    send_getattr(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.n_done, 0);
    assert_int_equal(f.exportd.n_sent, 0);
    env_virtual_advance_ms(&f.env, 500);
    md_client_session_is_open(&f.md);
    assert_int_equal(f.exportd.n_sent, 1);
    assert_true(f.exportd.sent[0]->deadline_ms <= 500);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f.rc, 0);
    /* exportd refused the first one before it did anything */
    assert_false(f.maybe_repeated);
    teardown(&f);
}

static bool no_more(const struct md_call *call)
{
    return call->answered; /* false here: the question comes before the answer */
}

/* Goal: a call that must not run under another session than the one in which it began is
 * not sent under the next one. */
static void test_call_that_may_not_be_repeated_ends_with_its_session(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, true);
    send_getattr(&f);
    f.call.may_go = no_more;
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    assert_int_equal(f.n_done, 0);
    md_client_session_is_open(&f.md);
    assert_int_equal(f.exportd.n_sent, 0);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(f.rc, -EIO);
    assert_false(f.call.answered);
    send_getattr(&f); /* the next call is sent without a question */
    assert_int_equal(f.exportd.n_sent, 1);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f.rc, 0);
    teardown(&f);
}

static void test_no_session_in_time_is_eio(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, false);
    send_getattr(&f);
    assert_int_equal(f.exportd.n_sent, 0);
    env_virtual_advance_ms(&f.env, 999);
    assert_int_equal(f.n_done, 0);
    env_virtual_advance_ms(&f.env, 2);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(f.rc, -EIO);
    teardown(&f);
}

static void test_sessionless_calls_do_not_wait(void **state)
{
    struct fixture f;
    Rozo__MdKeepAliveReq msg = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    (void)state;
    setup(&f, false);
    md_client_send(&f.md, &f.call, ROZO__OP__MD_KEEP_ALIVE, &msg.base, MD_SESSIONLESS,
                   on_done, &f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    assert_int_equal(f.rc, -ROZO_ENO_SESSION);
    assert_int_equal(f.status, ROZO__STATUS__NO_SESSION);
    assert_int_equal(f.n_lost, 0);
    teardown(&f);
}

static void test_a_link_that_came_back_may_mean_a_second_execution(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, true);
    md_client_channel_is_up(&f.md);
    send_getattr(&f);
    md_client_channel_is_up(&f.md); /* the link broke, and the channel sent again */
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__EXISTS, NULL);
    assert_int_equal(f.rc, -EEXIST);
    assert_true(f.maybe_repeated);
    send_getattr(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__EXISTS, NULL);
    assert_false(f.maybe_repeated);
    teardown(&f);
}

/* exportd died between a request and its answer. The new process refuses the repeated
 * request (NO_SESSION), and later recognises it by its id if the old process did it. */
static void test_a_restart_of_exportd_may_mean_a_second_execution(void **state)
{
    struct fixture f;
    uint64_t id;

    (void)state;
    setup(&f, true);
    md_client_channel_is_up(&f.md);
    send_getattr(&f);
    md_client_channel_is_up(&f.md);
    id = f.exportd.sent[0]->id;
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    assert_int_equal(f.n_lost, 1);
    md_client_session_is_open(&f.md);
    /* the new process may know the id */
    assert_true(id != 0 && f.exportd.sent[0]->id == id);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__DONE_BEFORE, NULL);
    assert_int_equal(f.rc, -ROZO_EDONE_BEFORE);
    assert_int_equal(f.status, ROZO__STATUS__DONE_BEFORE);
    assert_true(f.maybe_repeated);
    teardown(&f);
}

static void test_transport_errors_are_eio(void **state)
{
    static const int rcs[] = { -ETIMEDOUT, -ENOTCONN, -EBADMSG };
    struct fixture f;

    (void)state;
    setup(&f, true);
    for (size_t i = 0; i < sizeof(rcs) / sizeof(rcs[0]); i++) {
        send_getattr(&f);
        fake_exportd_fail(&f.exportd, 0, rcs[i]);
        assert_int_equal(md_client_user_errno(f.rc), -EIO);
        assert_false(f.call.answered);
    }
    teardown(&f);
}

static void test_cancel_at_every_stage(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, true);
    send_getattr(&f);
    assert_false(md_client_cancel(&f.call, true)); /* exportd may have it */
    assert_true(md_client_cancel(&f.call, false));
    assert_int_equal(f.exportd.n_cancelled, 1);
    assert_false(md_client_cancel(&f.call, false)); /* the call is idle */

    send_getattr(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__BUSY, NULL);
    assert_true(md_client_cancel(&f.call, true));

    send_getattr(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    assert_true(md_client_cancel(&f.call, true));
    md_client_session_is_open(&f.md);
    assert_int_equal(f.exportd.n_sent, 0);
    env_virtual_advance_ms(&f.env, 5000);
    assert_int_equal(f.n_done, 0);
    teardown(&f);
}

static void test_long_messages(void **state)
{
    struct fixture f;
    static uint8_t value[RPC_MSG_MAX + 1];
    Rozo__MdSetxattrReq msg = ROZO__MD_SETXATTR_REQ__INIT;

    (void)state;
    setup(&f, true);
    msg.value.data = value;
    msg.value.len = 65536;
    md_client_send(&f.md, &f.call, ROZO__OP__MD_SETXATTR, &msg.base, 0, on_done, &f);
    assert_true(f.exportd.sent[0]->msg_len > 65536);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f.rc, 0);
    msg.value.len = sizeof(value);
    md_client_send(&f.md, &f.call, ROZO__OP__MD_SETXATTR, &msg.base, 0, on_done, &f);
    assert_int_equal(f.n_done, 1); /* never called inside md_client_send() */
    assert_false(md_client_cancel(&f.call, false));
    env_virtual_run_posted(&f.env);
    assert_int_equal(f.n_done, 2);
    assert_int_equal(f.rc, -E2BIG);
    teardown(&f);
}

static void send_unlink(struct fixture *f)
{
    Rozo__MdUnlinkReq msg = ROZO__MD_UNLINK_REQ__INIT;
    static uint8_t name[2 * MD_MSG_INLINE];

    msg.parent = 7;
    msg.name.data = name;
    msg.name.len = sizeof(name);
    md_client_send(&f->md, &f->call, ROZO__OP__MD_UNLINK, &msg.base, MD_AGAIN, on_done,
                   f);
}

static void test_call_answered_with_retry_is_sent_again(void **state)
{
    struct fixture f;
    size_t len;

    (void)state;
    setup(&f, true);
    send_unlink(&f);
    len = f.exportd.sent[0]->msg_len;
    for (unsigned i = 1; i <= 3; i++) {
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__RETRY, NULL);
        assert_int_equal(f.n_done, i);
        assert_int_equal(f.rc, -ROZO_ERETRY);
        assert_true(md_client_send_again(&f.call, 10));
        assert_int_equal(f.exportd.n_sent, 0);
        env_virtual_advance_ms(&f.env, 10);
        assert_int_equal(f.exportd.n_sent, 1);
        assert_int_equal(f.exportd.sent[0]->msg_len, len);
        assert_true(f.exportd.sent[0]->deadline_ms <= 1000 - 10 * i);
    }
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f.rc, 0);
    teardown(&f);
}

static void test_call_answered_with_retry_keeps_its_deadline(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f, true);
    send_unlink(&f);
    env_virtual_advance_ms(&f.env, 995);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__RETRY, NULL);
    assert_false(md_client_send_again(&f.call, 10));
    env_virtual_advance_ms(&f.env, 100);
    assert_int_equal(f.exportd.n_sent, 0);
    assert_int_equal(f.n_done, 1);
    send_unlink(&f); /* the deadline has passed */
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__RETRY, NULL);
    assert_true(md_client_cancel(&f.call, false)); /* cancelled before it is sent again */
    send_unlink(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__RETRY, NULL);
    assert_true(md_client_send_again(&f.call, 10));
    assert_true(md_client_cancel(&f.call, true)); /* exportd has done nothing */
    env_virtual_advance_ms(&f.env, 100);
    assert_int_equal(f.exportd.n_sent, 0);
    teardown(&f);
}

/* A link broke before the request was refused, or only while it waited to be sent
 * again. */
static void test_call_answered_with_retry_may_have_been_repeated(void **state)
{
    struct fixture f;

    (void)state;
    for (unsigned before = 0; before < 2; before++) {
        setup(&f, true);
        send_unlink(&f);
        if (before)
            md_client_channel_is_up(&f.md);
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__RETRY, NULL);
        assert_true(md_client_send_again(&f.call, 10));
        if (!before)
            md_client_channel_is_up(&f.md);
        env_virtual_advance_ms(&f.env, 10);
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NOT_FOUND, NULL);
        assert_int_equal(f.rc, -ENOENT);
        assert_int_equal(f.maybe_repeated, before);
        teardown(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_reaches_the_caller_once),
        cmocka_unit_test(test_statuses_become_errnos),
        cmocka_unit_test(test_busy_is_asked_again_until_the_deadline),
        cmocka_unit_test(test_a_lost_session_makes_calls_wait_and_go_again),
        cmocka_unit_test(test_call_that_may_not_be_repeated_ends_with_its_session),
        cmocka_unit_test(test_no_session_in_time_is_eio),
        cmocka_unit_test(test_sessionless_calls_do_not_wait),
        cmocka_unit_test(test_a_link_that_came_back_may_mean_a_second_execution),
        cmocka_unit_test(test_a_restart_of_exportd_may_mean_a_second_execution),
        cmocka_unit_test(test_transport_errors_are_eio),
        cmocka_unit_test(test_cancel_at_every_stage),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_call_answered_with_retry_is_sent_again),
        cmocka_unit_test(test_call_answered_with_retry_keeps_its_deadline),
        cmocka_unit_test(test_call_answered_with_retry_may_have_been_repeated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
