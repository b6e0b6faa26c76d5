/*
 * test_unreported.c - unreported bytes beyond the end of a file.
 *
 * Goal:   bytes that a writer left beyond the end without a report never show when the
 *         file grows: the next writer finds a truncate to finish. A writer that lives and
 *         may be about to report is not harmed.
 */
#include <sys/stat.h>

#include "tests/unit/exportd/world.h"

enum { LEASE_MS = 20000 };

static struct world w;
static uint64_t alice, bob; /* sessions */

static void become(uint64_t session)
{
    w.session = session;
}

static int setup(void **state)
{
    (void)state;
    world_open(&w, 9);
    world_start(&w);
    world_make_export(&w, 4, 0);
    alice = w.session;
    become(0);
    world_reopen_session(&w);
    bob = w.session;
    become(alice);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

/* Lets time pass with calls of this session only. */
static void pass(uint64_t session, unsigned ms)
{
    become(session);
    for (; ms > 0; ms -= 1000) {
        struct seen s;

        env_virtual_advance_ms(&w.env, 1000);
        OK(t_getattr(&w, 1, &s));
    }
}

/* Makes a file of 1000 bytes that the current session has open for writing. */
static uint64_t writing(void)
{
    struct seen s;

    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_wrote(&w, s.ino, 1000, &s));
    return s.ino;
}

static void test_close_leaves_no_truncate_pending(void **state)
{
    uint64_t f = writing();
    struct seen s;

    (void)state;
    OK(t_close(&w, f, 1));
    become(bob);
    OK(t_open(&w, f, true, &s));
    assert_false(s.truncate_pending);
}

static void test_unreported_bytes_of_a_dead_session_are_cut_off(void **state)
{
    uint64_t f = writing();
    struct seen s;
    uint32_t epoch;

    (void)state;
    become(bob);
    OK(t_open(&w, f, true, &s)); /* the dead session may still live */
    assert_false(s.truncate_pending);
    OK(t_close(&w, f, 1));
    pass(bob, LEASE_MS + 2000);
    OK(t_open(&w, f, false, &s)); /* a reader changes nothing */
    assert_false(s.truncate_pending);
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 1000 && s.size == 1000);
    assert_int_equal(s.truncate_version >> 32, s.epoch);
    epoch = s.epoch;
    OK(t_truncated(&w, f, s.truncate_version, NULL));
    OK(t_close(&w, f, 2));
    OK(t_open(&w, f, true, &s)); /* only once */
    assert_false(s.truncate_pending);
    assert_true(s.epoch > epoch);
}

/* A client that was only cut off comes back and reports bytes that were cut off: its
 * report says so. */
static void test_session_that_returns_learns_that_its_bytes_were_cut_off(void **state)
{
    struct seen s, cut;
    uint64_t f;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    OK(t_wrote_in(&w, f, 1000, s.epoch, &cut));
    assert_true(!cut.cut && cut.size == 1000);
    pass(bob, LEASE_MS + 2000);
    OK(t_open(&w, f, true, &cut));
    assert_true(cut.truncate_pending);
    become(0);
    world_reopen_session(&w);
    for (unsigned done = 0; done < 2; done++) {
        struct seen late;

        OK(t_wrote_in(&w, f, 5000, s.epoch, &late));
        assert_true(late.cut && late.size == 1000);
        OK(t_wrote_in(&w, f, 800, s.epoch, &late)); /* the file was that long already */
        assert_true(!late.cut);
        OK(t_truncated(&w, f, cut.truncate_version, &late));
    }
    OK(t_open(&w, f, true, &s));
    OK(t_wrote_in(&w, f, 4000, s.epoch, &cut));
    assert_true(!cut.cut && cut.size == 4000);
}

static void test_bytes_of_a_live_session_are_not_cut_off(void **state)
{
    uint64_t f = writing();
    struct seen s;

    (void)state;
    become(bob);
    OK(t_open(&w, f, true, &s));
    pass(bob, LEASE_MS + 2000);  /* the other session dies */
    OK(t_open(&w, f, true, &s)); /* bob may have bytes to report himself */
    assert_false(s.truncate_pending);
    OK(t_wrote(&w, f, 3000, &s));
    OK(t_close(&w, f, 2));
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 3000);
}

static void test_truncate_cuts_off_unreported_bytes_too(void **state)
{
    uint64_t f = writing();
    struct seen s;

    (void)state;
    pass(bob, LEASE_MS + 2000);
    OK(t_truncate(&w, f, 5000, &s)); /* longer: zeros in between */
    assert_true(s.truncate_pending && s.truncate_size == 1000 && s.size == 5000);
    OK(t_truncated(&w, f, s.truncate_version, &s));
    assert_int_equal(s.size, 5000);
}

static void test_bytes_may_be_unreported_in_any_file_after_a_restart(void **state)
{
    uint64_t f = writing(), g;
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "g", true, &s));
    g = s.ino;
    OK(t_wrote(&w, g, 10, &s));
    OK(t_close(&w, g, 1));
    world_kill(&w);
    world_reopen_writing(&w, f);
    OK(t_open(&w, f, true, &s)); /* others may still come back */
    assert_false(s.truncate_pending);
    OK(t_close(&w, f, 1));
    pass(w.session, LEASE_MS + 2000);
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 1000);
    OK(t_open(&w, g, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 10);
    OK(t_create_open(&w, 1, "h", true, &s)); /* made after the start */
    OK(t_wrote(&w, s.ino, 10, &s));
    OK(t_close(&w, s.ino, 1));
    OK(t_open(&w, s.ino, true, &s));
    assert_false(s.truncate_pending);
}

/* A client that could not store or report its writes says so when it closes. */
static void test_close_with_unreported_writes_makes_a_truncate_pending(void **state)
{
    uint64_t f = writing();
    Rozo__MdCloseReq req = ROZO__MD_CLOSE_REQ__INIT;
    struct seen s;

    (void)state;
    req.ino = f;
    req.n_references = 1;
    req.unreported = true;
    OK(world_call(&w, ROZO__OP__MD_CLOSE, &req.base, NULL, NULL));
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 1000);
}

static uint32_t losses(void)
{
    Rozo__MdSyncReq req = ROZO__MD_SYNC_REQ__INIT;
    Rozo__MdSyncResp *resp;
    uint32_t n;

    req.ino = 1;
    OK(world_call(&w, ROZO__OP__MD_SYNC, &req.base, &rozo__md_sync_resp__descriptor,
                  &resp));
    n = resp->losses;
    rozo__md_sync_resp__free_unpacked(resp, NULL);
    return n;
}

static void both_come_back(void)
{
    become(bob);
    world_reopen_session(&w);
    become(alice);
    world_reopen_session(&w);
}

static void test_only_a_power_cut_counts_as_a_loss(void **state)
{
    struct seen s;
    uint32_t n;

    (void)state;
    if (w.disk != NULL)
        skip(); /* LevelDB's power cannot be cut here */
    assert_int_equal(losses(), 0);
    world_kill(&w);
    both_come_back();
    assert_int_equal(losses(), 0);
    OK(t_create(&w, 1, "synced", S_IFREG | 0644, &s));
    n = losses();
    OK(t_create(&w, 1, "lost", S_IFREG | 0644, &s));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    both_come_back();
    IS(NOT_FOUND, t_lookup(&w, 1, "lost", &s));
    OK(t_lookup(&w, 1, "synced", &s));
    assert_true(losses() > n);
    n = losses();
    /* orderly stop, then the machine is switched off */
    assert_int_equal(world_stop(&w), 0);
    w.boot++;
    world_start(&w);
    world_reopen_session(&w);
    assert_int_equal(losses(), n);
}

/* A loss of power can take the open of a file, but not the bytes written to it. */
static void test_bytes_are_cut_off_when_a_power_cut_took_the_open(void **state)
{
    struct seen s;
    uint64_t f;

    (void)state;
    if (w.disk != NULL)
        skip();
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
    f = s.ino;
    losses(); /* makes everything so far stable */
    OK(t_open(&w, f, true, &s));
    OK(t_wrote(&w, f, 1000, &s));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    world_reopen_session(&w);
    pass(w.session, LEASE_MS + 2000);
    OK(t_getattr(&w, f, &s));
    assert_true(s.size == 0 && !s.has_data);
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 0);
}

/* A client finished a pending truncate after its open had made a newer one, which the
 * power took. */
static void test_newer_truncated_report_ends_an_older_pending_truncate(void **state)
{
    struct seen s;
    uint64_t f;

    (void)state;
    if (w.disk != NULL)
        skip();
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    OK(t_wrote_in(&w, f, 10000, s.epoch, NULL));
    OK(t_truncate(&w, f, 1000, &s));
    assert_true(s.truncate_pending);
    OK(t_wrote_in(&w, f, 2000, s.epoch, NULL)); /* not before the truncate is done */
    losses();                                   /* makes everything so far stable */
    OK(t_truncate(&w, f, 500, &s));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    both_come_back();
    OK(t_truncated(&w, f, s.truncate_version, NULL));
    OK(t_wrote_in(&w, f, 5000, s.epoch, &s));
    assert_true(!s.cut && s.size == 5000);
    OK(t_open(&w, f, false, &s));
    assert_true(!s.truncate_pending && s.size == 5000);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_close_leaves_no_truncate_pending),
        T(test_unreported_bytes_of_a_dead_session_are_cut_off),
        T(test_session_that_returns_learns_that_its_bytes_were_cut_off),
        T(test_bytes_of_a_live_session_are_not_cut_off),
        T(test_truncate_cuts_off_unreported_bytes_too),
        T(test_bytes_may_be_unreported_in_any_file_after_a_restart),
        T(test_close_with_unreported_writes_makes_a_truncate_pending),
        T(test_only_a_power_cut_counts_as_a_loss),
        T(test_bytes_are_cut_off_when_a_power_cut_took_the_open),
        T(test_newer_truncated_report_ends_an_older_pending_truncate),
    };

    return cmocka_run_group_tests_name("exportd.unreported", tests, NULL, NULL);
}
