/*
 * test_takeover.c - sessions of dead processes that other processes continue (I5).
 *
 * Goal:   the next process gets all that the session held, once no late write of the dead
 *         one can succeed, and nobody else gets any of it. Changes that were done are not
 *         done again.
 * Method: two sessions at a whole exportd on a virtual clock.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/exportd/world.h"

enum { LEASE_MS = 20000 };

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
    w.session = s1;
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

static unsigned lock(uint64_t session)
{
    Rozo__MdLockReq req = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock msg = ROZO__LOCK__INIT;

    msg.ino = ino;
    msg.owner = 1;
    msg.to = 10;
    msg.mode = ROZO__LOCK__MODE__WRITE;
    req.lock = &msg;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_LOCK, &req.base, NULL, NULL);
}

static unsigned open_file(uint64_t session)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

    req.ino = ino;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_OPEN, &req.base, NULL, NULL);
}

/* An answer about a session that was taken over. */
struct taken {
    uint64_t id;
    size_t n_locks, n_inodes, n_tokens;
    uint64_t lock_ino;
    uint32_t n_references;
};

static unsigned take_over(uint64_t session, const char *client, struct taken *out)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp = NULL;
    unsigned status;

    *out = (struct taken){ 0 };
    req.export_name = (char *)"main";
    req.client = (char *)(uintptr_t)client;
    req.takes_over = session;
    status = world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                        &rozo__md_open_session_resp__descriptor, &resp);
    if (status != ROZO__STATUS__OK)
        return status;
    assert_true(resp->took_over && resp->grant != 0);
    *out = (struct taken){ .id = resp->session,
                           .n_locks = resp->n_held_locks,
                           .n_inodes = resp->n_held_inodes,
                           .n_tokens = resp->n_held_tokens + resp->n_held_exclusive };
    if (resp->n_held_locks != 0)
        out->lock_ino = resp->held_locks[0]->ino;
    if (resp->n_held_inodes != 0)
        out->n_references = resp->held_inodes[0]->n_references;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    return status;
}

/* Asks until it is not BUSY, as a mount does. */
static unsigned take_over_soon(uint64_t session, const char *client, struct taken *out)
{
    unsigned status = take_over(session, client, out);

    for (unsigned i = 0; status == ROZO__STATUS__BUSY && i < 100; i++) {
        env_virtual_advance_ms(&w.env, 20);
        status = take_over(session, client, out);
    }
    return status;
}

static void test_the_next_process_gets_all_of_the_session(void **state)
{
    struct taken got, again;

    (void)state;
    OK(lock(s1));
    OK(open_file(s1));
    OK(open_file(s1));
    OK(take_over_soon(s1, "next", &got));
    assert_true(got.id != s1 && got.n_locks == 1 && got.lock_ino == ino);
    assert_true(got.n_inodes == 1 && got.n_references == 2 && got.n_tokens > 0);
    for (unsigned i = 0; i < 4; i++)
        assert_true(t_is_fenced(&w, i, s1) && !t_is_fenced(&w, i, got.id));
    IS(NO_SESSION, lock(s1));
    IS(LOCKED, lock(s2));
    OK(lock(got.id));
    OK(take_over(s1, "next", &again)); /* the answer was lost */
    assert_true(again.id == got.id);
}

static void test_takeover_waits_until_storages_refuse_the_dead_process(void **state)
{
    struct taken got;

    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    for (unsigned i = 0; i < 10; i++) {
        IS(BUSY, take_over(s1, "next", &got));
        env_virtual_advance_ms(&w.env, 100);
        IS(LOCKED, lock(s2));
    }
    w.storages[1].no_maps = w.storages[2].no_maps = false;
    OK(take_over_soon(s1, "next", &got));
    IS(LOCKED, lock(s2));
}

static void test_a_session_that_ended_cannot_be_continued(void **state)
{
    struct taken got;

    (void)state;
    OK(lock(s1));
    for (unsigned i = 0; i < LEASE_MS / 2000 + 1; i++) {
        env_virtual_advance_ms(&w.env, 2000);
        lock(s2); /* lives on */
    }
    IS(NO_SESSION, take_over_soon(s1, "next", &got));
    IS(NO_SESSION, take_over(12345, "next", &got));
}

/* The process that began to take the session over may die, too. */
static void test_another_process_can_take_its_place(void **state)
{
    struct taken got, second;

    (void)state;
    OK(lock(s1));
    OK(take_over_soon(s1, "next", &got));
    OK(take_over_soon(s1, "third", &second)); /* does not know the id of the second */
    assert_true(second.id != got.id && second.id != s1 && second.n_locks == 1);
    assert_true(t_is_fenced(&w, 0, got.id) && !t_is_fenced(&w, 0, second.id));
    IS(NO_SESSION, lock(got.id));
    OK(lock(second.id));
}

static void test_a_session_that_no_process_continues_goes_to_others(void **state)
{
    struct taken got;

    (void)state;
    OK(lock(s1));
    IS(BUSY, take_over(s1, "next", &got));
    for (unsigned i = 0; i < 11; i++) {
        env_virtual_advance_ms(&w.env, 2000);
        lock(s2);
    }
    OK(lock(s2));
    IS(NO_SESSION, take_over(s1, "next", &got));
}

static unsigned make(uint64_t session, uint64_t id, const char *name)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = 1;
    req.name = (ProtobufCBinaryData){ strlen(name), (uint8_t *)(uintptr_t)name };
    req.mode = 0040755;
    w.session = session;
    w.again_id = id;
    return world_call(&w, ROZO__OP__MD_CREATE, &req.base, NULL, NULL);
}

static void test_a_change_that_was_done_is_not_done_again(void **state)
{
    const uint64_t id = RPC_ID_CHOSEN | 512;
    struct taken got;
    unsigned status;

    (void)state;
    OK(make(s1, id, "made"));
    w.again_id = 0;
    OK(take_over_soon(s1, "next", &got));
    status = make(got.id, id, "made");
    IS(DONE_BEFORE, status);
    OK(make(got.id, id + 256, "other"));
    w.again_id = 0;
}

/* A call that exportd has not done is sent again under its id. */
static void test_a_change_that_was_busy_is_done_later(void **state)
{
    const uint64_t id = RPC_ID_CHOSEN | 512;

    (void)state;
    world_kill(&w);
    w.session = s1;
    world_reopen_session(&w);
    IS(BUSY, make(s1, id, "made")); /* until the other session is back, too */
    w.again_id = 0;
    w.session = s2;
    world_reopen_session(&w);
    OK(make(s1, id, "made"));
    w.again_id = 0;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_the_next_process_gets_all_of_the_session),
        T(test_takeover_waits_until_storages_refuse_the_dead_process),
        T(test_a_session_that_ended_cannot_be_continued),
        T(test_another_process_can_take_its_place),
        T(test_a_session_that_no_process_continues_goes_to_others),
        T(test_a_change_that_was_done_is_not_done_again),
        T(test_a_change_that_was_busy_is_done_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
