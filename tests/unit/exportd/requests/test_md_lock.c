/*
 * test_md_lock.c - locks by requests of sessions, and the events for waiters (I10).
 *
 * Goal:   a lock is never held by two sessions, also when exportd restarts or a session
 *         ends; a grant is reported exactly once, whatever answers get lost.
 * Method: requests to a whole exportd on a virtual clock.
 */
#include <stdlib.h>

#include "tests/unit/exportd/world.h"

enum { GRACE_MS = 21000 };

static struct world w;
static uint64_t s1, s2, ino;

static int setup(void **state)
{
    struct seen seen;

    (void)state;
    world_open(&w, 9);
    world_start(&w);
    world_make_export(&w, 4, 0);
    s1 = w.session;
    w.session = 0;
    world_try_session(&w);
    s2 = w.session;
    assert_true(s1 != s2);
    OK(t_create(&w, 1, "file", 0100644, &seen));
    ino = seen.ino;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static unsigned ask(uint64_t session, uint64_t owner, uint64_t from, uint64_t to,
                    Rozo__Lock__Mode mode, uint64_t waiter)
{
    Rozo__MdLockReq req = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock lock = ROZO__LOCK__INIT;

    lock.ino = ino;
    lock.owner = owner;
    lock.pid = 77;
    lock.from = from;
    lock.to = to;
    lock.mode = mode;
    req.lock = &lock;
    req.waiter = waiter;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_LOCK, &req.base, NULL, NULL);
}

#define UNLOCK ROZO__LOCK__MODE__UNLOCK
#define READ   ROZO__LOCK__MODE__READ
#define WRITE  ROZO__LOCK__MODE__WRITE

/* Sends MD_EVENTS without waiting for the answer. */
static void events_send(uint64_t session, uint64_t seen, struct answer_got *got)
{
    Rozo__MdEventsReq req = ROZO__MD_EVENTS_REQ__INIT;
    uint8_t msg[16];

    req.seen = seen;
    world_send(&w, ROZO__OP__MD_EVENTS, RPC_ROLE_CLIENT, session, msg,
               rozo__md_events_req__pack(&req, msg), got);
    env_virtual_run_posted(&w.env);
}

/* Checks an answer: its only event has this number and waiter; waiter 0: no event. */
static void events_are(struct answer_got *got, uint64_t number, uint64_t waiter)
{
    Rozo__MdEventsResp *r;

    env_virtual_run_posted(&w.env);
    assert_true(got->came);
    assert_int_equal(got->status, ROZO__STATUS__OK);
    r = rozo__md_events_resp__unpack(NULL, got->len, got->msg);
    assert_non_null(r);
    assert_int_equal(r->n_events, waiter != 0);
    if (waiter != 0) {
        assert_int_equal(r->events[0]->number, number);
        assert_int_equal(r->events[0]->waiter, waiter);
        assert_int_equal(r->events[0]->status, ROZO__STATUS__OK);
    }
    rozo__md_events_resp__free_unpacked(r, NULL);
    free(got->msg);
}

static void pass(uint64_t ms)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    for (uint64_t at = 0; at < ms; at += 5000) {
        w.session = s1;
        world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base, NULL, NULL);
        w.session = s2;
        world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base, NULL, NULL);
        env_virtual_advance_ms(&w.env, 5000);
    }
}

static void test_two_sessions(void **state)
{
    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    IS(LOCKED, ask(s2, 1, 9, 11, READ, 0));
    OK(ask(s2, 1, 10, UINT64_MAX, READ, 0));
    IS(INVALID, ask(s1, 1, 5, 5, READ, 0));
    OK(ask(s1, 1, 0, UINT64_MAX, UNLOCK, 0));
    OK(ask(s2, 1, 0, 10, WRITE, 0));
    ino++;
    IS(STALE_HANDLE, ask(s1, 1, 0, 10, WRITE, 0));
    OK(ask(s1, 1, 0, 10, UNLOCK, 0)); /* file is gone: no error */
}

static void test_lock_test_returns_the_lock_of_the_holder(void **state)
{
    Rozo__MdLockTestReq req = ROZO__MD_LOCK_TEST_REQ__INIT;
    Rozo__MdLockTestResp *resp;
    Rozo__Lock lock = ROZO__LOCK__INIT;

    (void)state;
    OK(ask(s1, 1, 3, 10, WRITE, 0));
    lock.ino = ino;
    lock.owner = 2;
    lock.to = UINT64_MAX;
    lock.mode = READ;
    req.lock = &lock;
    w.session = s1;
    OK(world_call(&w, ROZO__OP__MD_LOCK_TEST, &req.base,
                  &rozo__md_lock_test_resp__descriptor, &resp));
    assert_int_equal(resp->lock->from, 3);
    assert_int_equal(resp->lock->pid, 77);
    rozo__md_lock_test_resp__free_unpacked(resp, NULL);
    w.session = s2;
    OK(world_call(&w, ROZO__OP__MD_LOCK_TEST, &req.base,
                  &rozo__md_lock_test_resp__descriptor, &resp));
    assert_int_equal(resp->lock->pid, 0); /* the owner may be on another machine */
    rozo__md_lock_test_resp__free_unpacked(resp, NULL);
}

static void test_waiter_gets_an_event_when_the_lock_is_free(void **state)
{
    struct answer_got got, again;

    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    events_send(s2, 0, &got);
    assert_false(got.came);
    IS(IN_PROGRESS, ask(s2, 1, 0, 10, WRITE, 5));
    IS(IN_PROGRESS, ask(s2, 1, 0, 10, WRITE, 5)); /* repeated, to be sure */
    OK(ask(s1, 1, 0, 10, UNLOCK, 0));
    events_are(&got, 1, 5);
    events_send(s2, 0, &again); /* the first answer was lost */
    events_are(&again, 1, 5);
    events_send(s2, 1, &got);
    assert_false(got.came);
    IS(LOCKED, ask(s1, 1, 0, 10, WRITE, 0));
    events_send(s2, 1, &again); /* as over a second link: the first call is released */
    events_are(&got, 0, 0);
    pass(10000);
    events_are(&again, 0, 0); /* held long enough */
}

static unsigned cancel(uint64_t session, uint64_t waiter)
{
    Rozo__MdLockCancelReq req = ROZO__MD_LOCK_CANCEL_REQ__INIT;

    req.waiter = waiter;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_LOCK_CANCEL, &req.base, NULL, NULL);
}

static void test_cancelled_wait_gets_no_lock(void **state)
{
    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    IS(IN_PROGRESS, ask(s2, 1, 0, 10, WRITE, 5));
    IS(NOT_FOUND, cancel(s1, 5)); /* numbers belong to a session */
    OK(cancel(s2, 5));
    IS(NOT_FOUND, cancel(s2, 5));
    OK(ask(s1, 1, 0, 10, UNLOCK, 0));
    OK(ask(s1, 1, 0, 10, WRITE, 0));
}

static void test_the_end_of_a_session_releases(void **state)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    struct answer_got got, hers;

    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    IS(IN_PROGRESS, ask(s2, 1, 0, 10, WRITE, 5));
    /* the waiter goes, too, without a lock */
    IS(IN_PROGRESS, ask(s1, 2, 0, 10, WRITE, 6));
    events_send(s2, 0, &got);
    events_send(s1, 0, &hers);
    w.session = s1;
    OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &req.base, NULL, NULL));
    events_are(&got, 1, 5);
    assert_int_equal(hers.status, ROZO__STATUS__NO_SESSION);
    free(hers.msg);
    OK(ask(s2, 1, 0, 10, UNLOCK, 0));
    w.session = s2;
    pass(30000);
}

/* Opens the session again, with the lock it holds. Returns the number of lost locks. */
static size_t claim(uint64_t session, uint64_t from, uint64_t to)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    Rozo__Lock lock = ROZO__LOCK__INIT, *locks[] = { &lock };
    size_t n;

    lock.ino = ino;
    lock.owner = 1;
    lock.from = from;
    lock.to = to;
    lock.mode = WRITE;
    req.export_name = (char *)"main";
    req.client = (char *)"test";
    req.session = session;
    req.n_locks = 1;
    req.locks = locks;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    assert_int_equal(resp->session, session);
    assert_int_equal(resp->events, 0);
    n = resp->n_locks_lost;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    return n;
}

static void test_locks_are_kept_for_their_sessions_over_a_restart(void **state)
{
    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    world_kill(&w);
    assert_int_equal(claim(s2, 20, 30), 0);
    w.session = s2;
    IS(BUSY, ask(s2, 1, 0, 10, WRITE, 0)); /* a client may still come back for it */
    IS(BUSY, ask(s2, 1, 0, 10, WRITE, 7));
    OK(ask(s2, 1, 20, 25, UNLOCK, 0));
    assert_int_equal(claim(s1, 0, 10), 0);
    assert_int_equal(claim(s1, 0, 10), 0); /* repeated: no effect */
    pass(GRACE_MS);
    IS(LOCKED, ask(s2, 1, 0, 10, WRITE, 0));
    IS(LOCKED, ask(s1, 1, 25, 30, WRITE, 0));
    OK(ask(s1, 1, 20, 25, WRITE, 0));
}

static void test_stop_answers_calls_that_wait_for_events(void **state)
{
    struct answer_got got;

    (void)state;
    events_send(s2, 0, &got);
    assert_false(got.came);
    assert_int_equal(world_stop(&w), 0);
    assert_true(got.came);
    assert_int_equal(got.status, ROZO__STATUS__BUSY);
    free(got.msg);
    world_start(&w);
}

/* ---- tokens of locks ---- */

/* Tests for a WRITE lock of all bytes by another owner. Returns the grant of the token of
 * the inode's locks, 0: none; *found: there is a lock. */
static uint64_t test_all(uint64_t session, bool wants_token, bool *found)
{
    Rozo__MdLockTestReq req = ROZO__MD_LOCK_TEST_REQ__INIT;
    Rozo__MdLockTestResp *resp;
    Rozo__Lock lock = ROZO__LOCK__INIT;
    uint64_t grant;

    lock.ino = ino;
    lock.owner = 99;
    lock.to = UINT64_MAX;
    lock.mode = WRITE;
    req.lock = &lock;
    req.wants_token = wants_token;
    w.session = session;
    OK(world_call(&w, ROZO__OP__MD_LOCK_TEST, &req.base,
                  &rozo__md_lock_test_resp__descriptor, &resp));
    *found = resp->lock != NULL;
    grant = resp->grant;
    rozo__md_lock_test_resp__free_unpacked(resp, NULL);
    return grant;
}

static void lock_send(uint64_t session, struct answer_got *got)
{
    Rozo__MdLockReq req = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock lock = ROZO__LOCK__INIT;
    uint8_t msg[128];

    lock.ino = ino;
    lock.owner = 1;
    lock.to = 10;
    lock.mode = WRITE;
    req.lock = &lock;
    world_send(&w, ROZO__OP__MD_LOCK, RPC_ROLE_CLIENT, session, msg,
               rozo__md_lock_req__pack(&req, msg), got);
    env_virtual_run_posted(&w.env);
}

static void lock_token_gives_back(uint64_t session, uint64_t grant)
{
    Rozo__MdGiveBackReq req = ROZO__MD_GIVE_BACK_REQ__INIT;
    Rozo__MdGiveBackReq__Token token = ROZO__MD_GIVE_BACK_REQ__TOKEN__INIT,
                               *list = &token;

    token.ino = ino | 1ull << 63;
    token.grant = grant;
    req.n_tokens = 1;
    req.tokens = &list;
    w.session = session;
    OK(world_call(&w, ROZO__OP__MD_GIVE_BACK, &req.base, NULL, NULL));
}

static void test_lock_waits_until_the_token_of_locks_is_back(void **state)
{
    struct answer_got events, lock;
    Rozo__MdEventsResp *r;
    uint64_t grant;
    bool found;

    (void)state;
    w.disobeys = true;
    events_send(s1, 0, &events);
    assert_int_equal(test_all(s1, false, &found), 0); /* a mount of an earlier build */
    grant = test_all(s1, true, &found);
    assert_true(grant != 0 && !found);
    lock_send(s2, &lock);
    assert_false(lock.came);
    assert_true(events.came);
    r = rozo__md_events_resp__unpack(NULL, events.len, events.msg);
    assert_int_equal(r->n_events, 1);
    assert_int_equal(r->events[0]->waiter, 0);
    assert_int_equal(r->events[0]->ino, ino | 1ull << 63);
    assert_int_equal(r->events[0]->keep, ROZO__TOKEN_MODE__TOKEN_NONE);
    assert_int_equal(r->events[0]->grant, grant);
    rozo__md_events_resp__free_unpacked(r, NULL);
    free(events.msg);
    /* exportd itself still says that there is no lock, and gives no new token */
    assert_int_equal(test_all(s1, true, &found), 0);
    assert_false(found);
    assert_false(lock.came);
    lock_token_gives_back(s1, grant);
    env_virtual_run_posted(&w.env);
    assert_true(lock.came);
    assert_int_equal(lock.status, ROZO__STATUS__OK);
    free(lock.msg);
    assert_int_equal(test_all(s1, true, &found), 0);
    assert_true(found);
    OK(ask(s2, 1, 0, 10, UNLOCK, 0));
    /* recalled a moment ago: nothing is granted unasked for a while */
    assert_int_equal(test_all(s1, true, &found), 0);
    assert_false(found);
    env_virtual_advance_ms(&w.env, 1500);
    assert_true(test_all(s1, true, &found) != 0);
}

static void test_own_locks_need_no_token_of_locks(void **state)
{
    uint64_t first, second;
    bool found;

    (void)state;
    w.disobeys = true;
    first = test_all(s1, true, &found);
    OK(ask(s1, 1, 0, 10, WRITE, 0)); /* waits for nobody */
    second = test_all(s1, true, &found);
    assert_true(found && first != 0 && second > first);
    assert_int_equal(test_all(s2, true, &found), 0); /* s1 has a lock */
    assert_true(found);
}

static void test_no_token_of_locks_while_another_session_waits(void **state)
{
    bool found;

    (void)state;
    OK(ask(s1, 1, 0, 10, WRITE, 0));
    IS(IN_PROGRESS, ask(s2, 1, 0, 10, WRITE, 5));
    assert_int_equal(test_all(s1, true, &found), 0);
    OK(ask(s1, 1, 0, 10, UNLOCK, 0));
    assert_int_equal(test_all(s1, true, &found), 0); /* s2 has it now */
    assert_true(found);
}

static void test_flock_needs_no_token_of_locks(void **state)
{
    Rozo__MdLockReq req = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock lock = ROZO__LOCK__INIT;
    bool found;

    (void)state;
    w.disobeys = true;
    assert_true(test_all(s1, true, &found) != 0);
    lock.ino = ino;
    lock.flock = true;
    lock.owner = 1;
    lock.to = UINT64_MAX;
    lock.mode = WRITE;
    req.lock = &lock;
    w.session = s2;
    OK(world_call(&w, ROZO__OP__MD_LOCK, &req.base, NULL, NULL));
    assert_true(test_all(s1, true, &found) != 0);
    assert_false(found);
}

/* Goal: no lock waits for a mount that is gone, nor for tokens of an earlier start. */
static void test_tokens_of_locks_end_with_session_and_start(void **state)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    struct answer_got lock;
    bool found;

    (void)state;
    w.disobeys = true;
    assert_true(test_all(s1, true, &found) != 0);
    lock_send(s2, &lock);
    assert_false(lock.came);
    w.session = s1;
    OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &req.base, NULL, NULL));
    env_virtual_run_posted(&w.env);
    assert_true(lock.came);
    assert_int_equal(lock.status, ROZO__STATUS__OK);
    free(lock.msg);
    OK(ask(s2, 1, 0, 10, UNLOCK, 0));
    w.session = 0;
    world_try_session(&w);
    s1 = w.session;
    env_virtual_advance_ms(&w.env, 1500);
    assert_true(test_all(s1, true, &found) != 0);
    world_kill(&w);
    for (unsigned i = 0; i < 2; i++) {
        w.session = i == 0 ? s1 : s2;
        world_reopen_session(&w);
    }
    OK(ask(s2, 1, 0, 10, WRITE, 0));
    assert_int_equal(test_all(s1, true, &found), 0);
    assert_true(found);
}

static void test_no_token_of_locks_without_an_inode(void **state)
{
    bool found;

    (void)state;
    ino += 1000;
    assert_int_equal(test_all(s1, true, &found), 0);
    ino = ino - 1000 + (1ull << 63);
    assert_int_equal(test_all(s1, true, &found), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_two_sessions),
        T(test_lock_test_returns_the_lock_of_the_holder),
        T(test_waiter_gets_an_event_when_the_lock_is_free),
        T(test_cancelled_wait_gets_no_lock),
        T(test_the_end_of_a_session_releases),
        T(test_locks_are_kept_for_their_sessions_over_a_restart),
        T(test_stop_answers_calls_that_wait_for_events),
        T(test_lock_waits_until_the_token_of_locks_is_back),
        T(test_own_locks_need_no_token_of_locks),
        T(test_no_token_of_locks_while_another_session_waits),
        T(test_flock_needs_no_token_of_locks),
        T(test_tokens_of_locks_end_with_session_and_start),
        T(test_no_token_of_locks_without_an_inode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
