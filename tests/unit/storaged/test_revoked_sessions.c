/*
 * test_revoked_sessions.c - sessions that are over.
 *
 * Goal: a client of a session that is over changes nothing any more (I5), whatever it had
 * in flight when the storage learned of it; all other sessions, and all reads, go on.
 * Method: the table against a plain list; then a whole storage that gets the sessions as
 * from the healer.
 */
#include <stdlib.h>

#include "tests/unit/storaged/world.h"

#define V(epoch, sequence) ((uint64_t)(epoch) << 32 | (sequence))

enum { OK = ROZO__STATUS__OK, FENCED = ROZO__STATUS__FENCED, LONG = REVOKED_MAX };

static uint64_t number(unsigned i)
{
    return (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Checks that sessions from..from + n - 1 are revoked, and no other of the first few
 * thousands. */
static void expect_fenced(const struct revoked_sessions *f, unsigned from, unsigned n)
{
    for (unsigned i = 0; i < 4 * LONG; i++)
        assert_int_equal(revoked_sessions_have(f, number(i)), i >= from && i - from < n);
}

static void test_table(void **state)
{
    static struct revoked_sessions f;
    static uint64_t list[4 * LONG];
    unsigned n_used = 0;

    (void)state;
    for (unsigned i = 0; i < 4 * LONG; i++)
        list[i] = number(i);
    expect_fenced(&f, 0, 0);
    assert_int_equal(revoked_sessions_set(&f, list, 1), 0);
    expect_fenced(&f, 0, 1);
    /* the range moves: the table stays full */
    for (unsigned from = 0; from <= 3 * LONG; from += 97) {
        assert_int_equal(revoked_sessions_set(&f, list + from, LONG), 0);
        if (from % (97 * 20) == 0)
            expect_fenced(&f, from, LONG);
    }
    assert_int_equal(revoked_sessions_set(&f, NULL, 0), 0);
    expect_fenced(&f, 0, 0);
    for (unsigned i = 0; i < REVOKED_SLOTS; i++)
        n_used += f.slots[i] != 0;
    assert_true(n_used <
                REVOKED_SLOTS / 2); /* a search for an absent session ends soon */
    assert_false(revoked_sessions_have(&f, 0) || revoked_sessions_have(&f, UINT64_MAX));
    assert_false(revoked_sessions_may_have(0) || revoked_sessions_may_have(UINT64_MAX));
}

static uint16_t alloc(struct world *w)
{
    Rozo__StAllocReq req = ROZO__ST_ALLOC_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.n_blocks = 8;
    req.to_storage = US;
    return call_run(w, ROZO__OP__ST_ALLOC, &req.base, NULL, 0, NULL);
}

static void fence(struct world *w, uint64_t session)
{
    assert_int_equal(revoked_sessions_set(&w->revoked, &session, 1), 0);
}

static void test_revoked_session_changes_nothing(void **state)
{
    struct seen seen;
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.session = 5;
    assert_int_equal(world_write(&w, 0, 0, 1, V(1, 1), 8192, false, NULL), OK);
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(world_write(&w, 0, 0, 1, V(1, 2), 8192, false, NULL), OK);
    fence(&w, 5);
    assert_int_equal(world_write(&w, 0, 0, 1, V(1, 3), 8192, false, NULL), FENCED);
    assert_int_equal(world_write(&w, 0, 1, 1, V(1, 4), 8192, false, NULL), FENCED);
    assert_int_equal(world_mark(&w, 0, 0, 0, V(1, 5)), FENCED);
    assert_int_equal(alloc(&w), FENCED);
    assert_int_equal(world_durable(&w, V(1, 2)), FENCED);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
    assert_int_equal(seen.version, V(1, 2)); /* the former version */
    assert_int_equal(world_sync(&w), OK);
    /* writes that other nodes decided are accepted whoever wrote them */
    w.role = RPC_ROLE_NODE;
    w.session = 0;
    assert_int_equal(world_write(&w, 0, 1, 1, V(1, 4), 8192, false, NULL), OK);
    w.role = RPC_ROLE_CLIENT;
    w.session = 6;
    assert_int_equal(world_write(&w, 0, 0, 1, V(2, 1), 8192, false, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 1, 1, V(2, 2)), OK);
    assert_int_equal(alloc(&w), OK);
    assert_int_equal(world_durable(&w, V(2, 1)), OK);
    world_free(&w);
}

/* A write that waits for the file when its session is revoked is refused: it must not be
 * stored after a read saw the file without it. */
static void test_waiting_write_of_a_revoked_session_is_refused(void **state)
{
    struct test_call *first, *second;
    struct seen seen;
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.session = 5;
    w.disk.hold_writes = true;
    first = world_write_start(&w, 0, 0, 1, V(1, 1), 8192, false);
    env_virtual_run_posted(&w.v);
    second = world_write_start(&w, 0, 0, 1, V(1, 2), 8192, false);
    env_virtual_run_posted(&w.v);
    fence(&w, 5);
    w.disk.hold_writes = false;
    memdisk_release(&w.disk);
    assert_int_equal(call_finish(second), FENCED);
    assert_int_equal(call_finish(first), OK);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
    assert_int_equal(seen.version, V(1, 1));
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_revoked_session_changes_nothing),
        cmocka_unit_test(test_waiting_write_of_a_revoked_session_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
