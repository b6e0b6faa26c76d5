/*
 * test_sessions.c - sessions over restarts of exportd (I10).
 *
 * Goal:   only sessions that were open at the last start may take up what they held;
 *         others wait for that and no longer. An ended session stays ended, and what it
 *         held is given away only when no late write of it can succeed (I5).
 * Method: two sessions at a whole exportd on a virtual clock; a lock shows which of them
 *         holds it.
 */
#include <stdlib.h>

#include "tests/unit/exportd/world.h"

enum { LEASE_MS = 20000, LATE_MS = LEASE_MS + 2000 };

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

static void lock_init(Rozo__Lock *lock)
{
    rozo__lock__init(lock);
    lock->ino = ino;
    lock->owner = 1;
    lock->to = 10;
    lock->mode = ROZO__LOCK__MODE__WRITE;
}

/* Takes the one lock of these tests, for a session. */
static unsigned lock(uint64_t session)
{
    Rozo__MdLockReq req = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock msg;

    lock_init(&msg);
    req.lock = &msg;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_LOCK, &req.base, NULL, NULL);
}

/* Opens this session (0: a new one) of an export, with or without the lock. Returns its
 * id; *lost: locks it lost. */
static uint64_t come_to(const char *export_name, uint64_t session, bool has, size_t *lost)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    Rozo__Lock msg, *locks[] = { &msg };
    uint64_t id;

    lock_init(&msg);
    req.export_name = (char *)(uintptr_t)export_name;
    req.client = (char *)"test";
    req.session = session;
    req.n_locks = has;
    req.locks = locks;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    id = resp->session;
    if (lost != NULL)
        *lost = resp->n_locks_lost;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    return id;
}

static uint64_t come(uint64_t session, bool has, size_t *lost)
{
    return come_to("main", session, has, lost);
}

static unsigned bye(uint64_t session)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;

    w.session = session;
    return world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &req.base, NULL, NULL);
}

static void test_no_grace_after_all_sessions_were_closed(void **state)
{
    (void)state;
    OK(bye(s1));
    OK(bye(s2));
    world_kill(&w);
    OK(lock(come(0, false, NULL)));
}

/* Goal: a client evicted because of a recall does not rely on its tokens for longer than
 * that: a lease that is not configured is at most evict_ms. */
static void test_a_lease_that_is_not_given_is_no_longer_than_a_recall(void **state)
{
    (void)state;
    w.lease_ms = 0;
    w.evict_ms = 3000;
    world_kill(&w);
    world_reopen_session(&w);
    assert_int_equal(w.lease_told_ms, 3000);
    w.evict_ms = 60000;
    world_kill(&w);
    world_reopen_session(&w);
    assert_int_equal(w.lease_told_ms, 20000);
    w.lease_ms = 9000;
    w.evict_ms = 3000;
    world_kill(&w);
    world_reopen_session(&w);
    assert_int_equal(w.lease_told_ms, 9000);
}

static void test_grace_ends_when_all_sessions_are_back(void **state)
{
    size_t lost;

    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(BUSY, lock(s2));
    IS(BUSY, lock(come(0, false, NULL))); /* a new session does not end the wait */
    assert_int_equal(come(s1, true, &lost), s1);
    assert_int_equal(lost, 0);
    IS(LOCKED, lock(s2)); /* no time has passed */
    OK(bye(s1));
    OK(lock(s2));
}

static void test_grace_ends_when_missing_sessions_are_closed(void **state)
{
    (void)state;
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(BUSY, lock(s2));
    OK(bye(s1)); /* not even opened again */
    IS(NO_SESSION, bye(s1));
    OK(lock(s2));
    OK(bye(s2));
    world_kill(&w);
    OK(lock(come(0, false, NULL)));
}

/* Lets time pass and keeps only this session alive. */
static void pass(uint64_t session, uint64_t ms)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    w.session = session;
    for (uint64_t at = 0; at < ms; at += 2000) {
        OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base, NULL, NULL));
        env_virtual_advance_ms(&w.env, 2000);
    }
}

static void test_session_that_returns_after_the_grace_is_over(void **state)
{
    uint64_t late;
    size_t lost;

    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    pass(s2, LEASE_MS - 2000);
    IS(BUSY, lock(s2));
    pass(s2, 4000);
    late = come(s1, true, &lost);
    assert_true(late != s1);
    assert_int_equal(lost, 1); /* not taken, but another session might have */
    IS(NO_SESSION, lock(s1));
    OK(lock(s2));
    IS(LOCKED, lock(late));
}

static void test_session_ended_after_the_grace_stays_ended(void **state)
{
    size_t lost;

    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    pass(s2, LATE_MS);
    OK(lock(s2));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    assert_true(come(s1, true, &lost) != s1);
    assert_int_equal(lost, 1);
    assert_int_equal(come(s2, true, &lost), s2);
    assert_int_equal(lost, 0);
}

static void test_session_ended_by_its_lease_is_over_after_a_power_cut(void **state)
{
    uint64_t again;
    size_t lost;

    (void)state;
    OK(lock(s1));
    pass(s2, LATE_MS);
    OK(lock(s2));
    world_power_cut(&w,
                    kv_memory_n_unsynced(w.mem)); /* the next start knows of the end */
    again = come(s1, true, &lost);
    assert_true(again != s1);
    assert_int_equal(lost, 1);
    IS(BUSY, lock(again));
    assert_int_equal(come(s2, true, &lost), s2);
    assert_int_equal(lost, 0);
    IS(LOCKED, lock(again));
    IS(NO_SESSION, lock(s1));
}

static void pass_without_a_store(uint64_t session, uint64_t ms)
{
    w.session = session;
    for (uint64_t at = 0; at < ms; at += 2000) {
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 2000);
    }
}

/* An end that cannot be stored may be unknown to the next start, so nothing is given
 * away. */
static void test_end_that_cannot_be_stored_frees_no_lock(void **state)
{
    (void)state;
    OK(lock(s1));
    kv_memory_kill(w.mem);
    pass_without_a_store(s2, LATE_MS);
    IS(LOCKED, lock(s2));
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(w.storages[i].n_fenced, 0); /* the session may write on */
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    kv_memory_kill(w.mem);
    pass_without_a_store(s2, LATE_MS);
    IS(BUSY, lock(s2));
    world_kill(&w);
    assert_int_equal(come(s1, true, NULL), s1);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(LOCKED, lock(s2));
}

/* ---- storages that may still take its writes ---- */

static void test_revoked_sessions_are_sent_to_storages(void **state)
{
    (void)state;
    OK(lock(s1));
    pass(s2, LATE_MS);
    OK(lock(s2));
    OK(bye(come(0, false, NULL)));
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(w.storages[i].n_fenced, 1);
        assert_true(t_is_fenced(&w, i, s1));
        w.storages[i].n_fenced = 0;
    }
    world_power_cut(&w, kv_memory_n_unsynced(w.mem)); /* the next start sends it, too */
    assert_int_equal(come(s2, true, NULL), s2);
    pass(s2, 2000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(t_is_fenced(&w, i, s1) && w.storages[i].n_fenced == 1);
}

/* Opens a session that reports the process of another one as dead. */
static uint64_t come_instead(uint64_t dead)
{
    uint64_t ids[] = { 12345, dead, 0 }; /* unknown ids: no effect */
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    uint64_t id;

    req.export_name = (char *)"main";
    req.client = (char *)"test";
    req.dead_sessions = ids;
    req.n_dead_sessions = 3;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    id = resp->session;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    assert_true(id != dead);
    return id;
}

/* The lease of a session whose process is dead is not awaited, but the storages are. */
static void test_session_reported_dead_ends_at_once(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    come_instead(s1);
    IS(NO_SESSION, lock(s1));
    pass(s2, 2000);
    IS(LOCKED, lock(s2));
    w.storages[1].no_maps = w.storages[2].no_maps = false;
    pass(s2, 2000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(t_is_fenced(&w, i, s1) && !t_is_fenced(&w, i, s2));
    OK(lock(s2));
    come_instead(s1); /* repeated: no effect */
    IS(LOCKED, lock(come_instead(s1)));
}

/* A mount that lives on reports others of its machine, but never itself. */
static void test_keep_alive_reports_a_dead_session(void **state)
{
    uint64_t ids[] = { s2, s1, 0 };
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    (void)state;
    OK(lock(s1));
    IS(LOCKED, lock(s2));
    req.dead_sessions = ids;
    req.n_dead_sessions = 3;
    w.session = s2;
    OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base, NULL, NULL));
    IS(NO_SESSION, lock(s1));
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(t_is_fenced(&w, 0, s1) && !t_is_fenced(&w, 0, s2));
}

static void test_grace_does_not_wait_for_a_session_reported_dead(void **state)
{
    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    pass(s2, 2000);
    IS(BUSY, lock(s2));
    come_instead(s1);
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(t_is_fenced(&w, 0, s1));
    assert_true(come(s1, false, NULL) != s1);
}

/* One of four storages can complete no write of two rows; two can. */
static void test_too_few_storages_have_confirmed_the_revoked_session(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    pass(s2, LATE_MS + 40000);
    IS(NO_SESSION, lock(s1));
    IS(LOCKED, lock(s2));
    w.storages[1].no_maps = false;
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(t_is_fenced(&w, 1, s1) && !t_is_fenced(&w, 2, s1));
    w.storages[2].no_maps = false;
    pass(s2, 2000);
    assert_true(
        t_is_fenced(&w, 2, s1)); /* not awaited, but it gets the map all the same */
}

static void test_end_of_a_session_waits_for_storages_that_are_up(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = true;
    pass(s2, LATE_MS + 2000);
    IS(LOCKED, lock(s2));
    pass(s2, 10000); /* not for ever */
    OK(lock(s2));
}

static void test_end_of_a_session_does_not_wait_for_a_down_storage(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].down = true;
    pass(s2, LATE_MS);
    OK(lock(s2));
    w.storages[1].down = false;
    pass(s2, 4000);
    assert_true(t_is_fenced(&w, 1, s1));
}

static void give_up(unsigned storage)
{
    Rozo__AdStorageLostReq req = ROZO__AD_STORAGE_LOST_REQ__INIT;

    req.id = w.storages[storage].id;
    req.lost = true;
    OK(world_call_node(&w, ROZO__OP__AD_STORAGE_LOST, &req.base, NULL, NULL));
}

static void test_end_of_a_session_does_not_wait_for_a_lost_storage(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].down = w.storages[2].down = true;
    pass(s2, LATE_MS + 40000);
    IS(LOCKED, lock(s2));
    give_up(2);
    pass(s2, 2000);
    OK(lock(s2));
}

/* The record of the session is gone, but the next start waits for the storages, too. */
static void test_restart_while_storages_get_a_revoked_session(void **state)
{
    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    pass(s2, LATE_MS);
    for (unsigned i = 0; i < 2; i++) {
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        assert_int_equal(come(s2, false, NULL), s2);
        assert_true(come(s1, true, NULL) != s1);
        pass(s2, LATE_MS);
        IS(BUSY, lock(s2));
    }
    w.storages[1].no_maps = false;
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(t_is_fenced(&w, 1, s1));
}

static void test_session_that_does_not_return_is_fenced(void **state)
{
    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    pass(s2, LATE_MS + 20000);
    IS(BUSY, lock(s2));
    w.storages[1].no_maps = false;
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(t_is_fenced(&w, 0, s1) && t_is_fenced(&w, 1, s1) &&
                !t_is_fenced(&w, 0, s2));
}

/* Gives storages the map of an exportd that has begun later. */
static void storages_know_a_later_start(bool they_say_so)
{
    for (unsigned i = 0; i < 4; i++) {
        w.storages[i].map_version += UINT64_C(3) << 32;
        w.storages[i].says_map = they_say_so;
    }
}

/* An exportd that was replaced takes no answer of a storage for a confirmation, and does
 * not number its map above that of its successor. */
static void test_replaced_exportd_takes_no_answer_for_a_confirmation(void **state)
{
    uint64_t version;

    (void)state;
    w.in_quorum = true;
    for (unsigned say = 0; say < 2; say++) {
        w.n_deposed = 0;
        for (unsigned i = 0; i < 4; i++)
            w.storages[i].map_version = 0;
        world_kill(&w);
        s1 = come(s1, false, NULL);
        s2 = come(s2, false, NULL);
        pass(s2, LATE_MS);
        s1 = come(0, false, NULL);
        OK(lock(s1));
        assert_int_equal(w.n_deposed, 0);
        storages_know_a_later_start(say != 0);
        version = w.storages[0].map_version;
        pass(s2, LATE_MS + 20000);
        IS(LOCKED, lock(s2));
        assert_int_equal(w.n_deposed, 1);
        for (unsigned i = 0; i < 4; i++)
            assert_true(!t_is_fenced(&w, i, s1) && w.storages[i].map_version == version);
    }
}

/* A single exportd whose metadata were restored from a backup goes on above what storages
 * know, so they take its fences. */
static void test_restored_exportd_goes_on_above_the_map_of_storages(void **state)
{
    (void)state;
    OK(lock(s1));
    storages_know_a_later_start(true);
    w.storages[3].says_map = false; /* an older build */
    pass(s2, LATE_MS + 20000);
    OK(lock(s2));
    for (unsigned i = 0; i < 4; i++)
        assert_true(t_is_fenced(&w, i, s1) && !t_is_fenced(&w, i, s2));
    world_kill(&w);
    assert_int_equal(come(s2, true, NULL), s2);
    pass(s2, 2000);
    OK(lock(s2));
    assert_true(w.storages[3].map_version == w.storages[0].map_version);
}

/* Makes a second export, with a file of the same number as in the first. Returns a
 * session of it. */
static uint64_t other_export(void)
{
    uint64_t session;
    struct seen seen;

    OK(t_export_create(&w, "other", 0, NULL));
    session = come_to("other", 0, false, NULL);
    w.session = session;
    OK(t_create(&w, 1, "file", 0100644, &seen));
    assert_int_equal(seen.ino, ino);
    return session;
}

/* Takes a token to write the file of these tests. */
static unsigned token(uint64_t session)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    req.ino = ino;
    req.mode = ROZO__TOKEN_MODE__EXCLUSIVE;
    req.call = 1;
    w.session = session;
    return world_call(&w, ROZO__OP__MD_TOKEN, &req.base, NULL, NULL);
}

/* Makes an orphan that no session will claim. Returns its number. */
static uint64_t orphan(uint64_t session)
{
    struct seen seen;

    w.session = session;
    OK(t_create_nameless(&w, 1, 0100644, &seen));
    return seen.ino;
}

/* A mount that does not come back holds up the mounts of its export, and no others. */
static void test_a_grace_is_of_one_export(void **state)
{
    uint64_t other = other_export(), orphans[2] = { orphan(s2), orphan(other) };

    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(BUSY, lock(come(0, false, NULL)));
    assert_int_equal(come_to("other", other, false, NULL), other);
    OK(lock(other));
    OK(token(other));
    IS(BUSY, lock(s2));
    IS(BUSY, token(s2));
    w.session = other;
    pass(other, 2000);
    IS(STALE_HANDLE, t_getattr(&w, orphans[1], NULL));
    for (unsigned i = 0; i < 4; i++) /* only the mount of `main` has not come back */
        assert_false(t_is_fenced(&w, i, s1) || t_is_fenced(&w, i, s2) ||
                     t_is_fenced(&w, i, other));
    for (unsigned s = 0; s < LATE_MS; s += 2000) {
        pass(other, 2000);
        pass(s2, 2000);
    }
    assert_true(t_is_fenced(&w, 0, s1) && !t_is_fenced(&w, 0, s2) &&
                !t_is_fenced(&w, 0, other));
    OK(lock(s2));
    OK(token(s2));
    w.session = s2;
    IS(STALE_HANDLE, t_getattr(&w, orphans[0], NULL));
    assert_true(come(s1, false, NULL) != s1);
}

/* Storages that do not confirm the end of a session hold up the mounts of its export, and
 * no others. */
static void test_a_fence_holds_up_one_export(void **state)
{
    uint64_t other = other_export();

    (void)state;
    OK(lock(s1));
    w.storages[1].no_maps = w.storages[2].no_maps = true;
    for (unsigned s = 0; s < LATE_MS; s += 2000) {
        pass(other, 2000);
        pass(s2, 2000);
    }
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    assert_int_equal(come_to("other", other, false, NULL), other);
    OK(lock(other));
    IS(BUSY, lock(s2));
    w.storages[1].no_maps = w.storages[2].no_maps = false;
    pass(s2, 2000);
    OK(lock(s2));
}

/* An export that was made after the start has nobody to wait for. */
static void test_a_new_export_has_no_grace(void **state)
{
    (void)state;
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(BUSY, lock(s2));
    OK(lock(other_export()));
}

static void test_newest_revoked_sessions_are_sent_up_to_the_bound(void **state)
{
    uint64_t first = come(0, false, NULL), last = 0;

    (void)state;
    for (unsigned i = 0; i < 4000; i++)
        last = come(0, false, NULL);
    pass(s2, LATE_MS);
    assert_int_equal(w.storages[0].n_fenced, 4002); /* s1 included */
    assert_true(t_is_fenced(&w, 0, first) && t_is_fenced(&w, 0, last));
    for (unsigned i = 0; i < 200; i++)
        last = come(0, false, NULL);
    pass(s2, LATE_MS);
    assert_int_equal(w.storages[3].n_fenced, 4096);
    assert_true(!t_is_fenced(&w, 3, first) && t_is_fenced(&w, 3, last));
    world_kill(&w);
    pass_without_a_store(come(s2, false, NULL), 2000);
    assert_int_equal(w.storages[3].n_fenced, 4096);
}

static void test_new_session_is_stored_before_it_is_answered(void **state)
{
    uint64_t third;

    (void)state;
    third = come(0, false, NULL);
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    assert_int_equal(come(s1, false, NULL), s1);
    assert_int_equal(come(s2, false, NULL), s2);
    IS(BUSY, lock(s2));
    assert_int_equal(come(third, false, NULL), third);
    OK(lock(s2));
}

static void test_a_restart_in_the_grace(void **state)
{
    size_t lost;

    (void)state;
    OK(lock(s1));
    world_kill(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    pass(s2, 6000);
    world_kill(&w);
    assert_int_equal(come(s1, true, &lost), s1);
    assert_int_equal(lost, 0);
    IS(BUSY, lock(s1)); /* s2 must come back first */
    assert_int_equal(come(s2, false, NULL), s2);
    IS(LOCKED, lock(s2));
}

static void test_an_id_that_was_never_given_out(void **state)
{
    size_t lost;

    (void)state;
    OK(lock(s1));
    assert_true(come(s1 + 1, true, &lost) != s1 + 1); /* never given out */
    assert_int_equal(lost, 1);
    world_kill(&w);
    assert_true(come(s1 + 1, true, &lost) != s1 + 1);
    assert_int_equal(lost, 1);
}

static void record_key(uint64_t id, uint8_t key[9])
{
    key[0] = 'C';
    for (unsigned i = 0; i < 8; i++)
        key[1 + i] = (uint8_t)(id >> 8 * (7 - i));
}

static void record_put(uint64_t id, const void *val, size_t len)
{
    uint8_t key[9];

    record_key(id, key);
    world_put(&w, &(struct kv_item){ key, sizeof(key), val, len });
}

/* An exportd of an older build left no records of its sessions. */
static void test_sessions_of_an_older_exportd(void **state)
{
    size_t lost;

    (void)state;
    OK(lock(s1));
    assert_int_equal(world_stop(&w), 0);
    record_put(0, NULL, 0);
    record_put(s1, NULL, 0);
    record_put(s2, NULL, 0);
    world_start(&w);
    assert_int_equal(come(s2, false, &lost), s2);
    IS(BUSY, lock(s2));
    assert_int_equal(come(s1, true, &lost), s1);
    assert_int_equal(lost, 0);
    IS(BUSY, lock(s2)); /* the number of sessions is unknown */
    for (unsigned i = 0; i < LATE_MS; i += 5500) {
        pass(s1, 4000);
        pass(s2, 1500);
    }
    IS(LOCKED, lock(s2));
    world_kill(&w);
    assert_int_equal(come(s1, true, &lost), s1);
    assert_int_equal(come(s2, false, &lost), s2);
    IS(LOCKED, lock(s2));
}

static void test_a_shorter_lease(void **state)
{
    static const uint8_t told[] = { 1, 40, 0xee, 2, 0, 0, 0, 0, 0 }; /* 192 s */

    (void)state;
    assert_int_equal(world_stop(&w), 0);
    record_put(0, told, sizeof(told));
    world_start(&w);
    assert_int_equal(come(s2, false, NULL), s2);
    pass(s2, 180000);
    IS(BUSY, lock(s2)); /* s1 may rely on its lease */
    pass(s2, 20000);
    OK(lock(s2));
}

static void test_a_damaged_record(void **state)
{
    (void)state;
    w.damaged = true;
    assert_int_equal(world_stop(&w), 0);
    record_put(s1, "\x01\x02", 2);
    assert_false(world_try_start(&w));
    record_put(s1, NULL, 0);
    world_put(&w, &(struct kv_item){ "F\0\0\0\0\0\0\0\1", 9, "\x01\x02", 2 });
    assert_false(world_try_start(&w));
    world_put(&w, &(struct kv_item){ "F\0\0\0\0\0\0\0\1", 9, NULL, 0 });
    world_start(&w);
}

static uint64_t starts_told(void)
{
    Rozo__MdWaitLeaderReq req = ROZO__MD_WAIT_LEADER_REQ__INIT;
    Rozo__MdWaitLeaderResp *resp;
    uint64_t start;

    w.session = 0;
    OK(world_call(&w, ROZO__OP__MD_WAIT_LEADER, &req.base,
                  &rozo__md_wait_leader_resp__descriptor, &resp));
    start = resp->start;
    rozo__md_wait_leader_resp__free_unpacked(resp, NULL);
    return start;
}

static void test_an_exportd_alone_leads(void **state)
{
    uint64_t first = starts_told();

    (void)state;
    assert_true(first > 0);
    assert_int_equal(starts_told(), first);
    world_kill(&w);
    assert_int_equal(starts_told(), first + 1);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_no_grace_after_all_sessions_were_closed),
        T(test_a_lease_that_is_not_given_is_no_longer_than_a_recall),
        T(test_grace_ends_when_all_sessions_are_back),
        T(test_grace_ends_when_missing_sessions_are_closed),
        T(test_session_that_returns_after_the_grace_is_over),
        T(test_session_ended_after_the_grace_stays_ended),
        T(test_session_ended_by_its_lease_is_over_after_a_power_cut),
        T(test_end_that_cannot_be_stored_frees_no_lock),
        T(test_revoked_sessions_are_sent_to_storages),
        T(test_session_reported_dead_ends_at_once),
        T(test_keep_alive_reports_a_dead_session),
        T(test_grace_does_not_wait_for_a_session_reported_dead),
        T(test_too_few_storages_have_confirmed_the_revoked_session),
        T(test_end_of_a_session_waits_for_storages_that_are_up),
        T(test_end_of_a_session_does_not_wait_for_a_down_storage),
        T(test_end_of_a_session_does_not_wait_for_a_lost_storage),
        T(test_restart_while_storages_get_a_revoked_session),
        T(test_session_that_does_not_return_is_fenced),
        T(test_replaced_exportd_takes_no_answer_for_a_confirmation),
        T(test_restored_exportd_goes_on_above_the_map_of_storages),
        T(test_a_grace_is_of_one_export),
        T(test_a_fence_holds_up_one_export),
        T(test_a_new_export_has_no_grace),
        T(test_newest_revoked_sessions_are_sent_up_to_the_bound),
        T(test_new_session_is_stored_before_it_is_answered),
        T(test_a_restart_in_the_grace),
        T(test_an_id_that_was_never_given_out),
        T(test_sessions_of_an_older_exportd),
        T(test_a_shorter_lease),
        T(test_a_damaged_record),
        T(test_an_exportd_alone_leads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
