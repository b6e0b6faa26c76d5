/*
 * Goal: missed writes are repaired, and nothing else; a rebuild ends whatever crashes; a
 * scrub checks everything; checks and recoveries take place; nothing grows without a
 * bound.
 * Method: five healers on a virtual clock, with a network and disks in memory; repairs
 * are recorded, not made.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "storaged/format/projfile.h"
#include "storaged/heal/list/proj_list.h"
#include "tests/unit/heal/nodes.h"

static int fail_ino_rc; /* result for fail_ino */
static uint64_t fail_ino;

static void on_repair(void *arg, uint32_t own, const struct repair_request *request,
                      struct repair_result *result)
{
    unsigned place = heal_place(&request->target, own);

    (void)arg;
    if (request->target.id.ino == fail_ino)
        result->rc = fail_ino_rc;
    if (result->rc == 0 && (request->flags & REPAIR_PARTIAL) != 0 &&
        !projection_is_whole(own, &request->target, place))
        projection_make(own, &request->target, place, true, 1);
}

static int setup(void **state)
{
    (void)state;
    nodes_init(1);
    fail_ino = 0;
    fake_repairs.fn = on_repair;
    return 0;
}

static uint64_t n_unhealed(unsigned i)
{
    Rozo__StHealthResp *health = node_health(i);
    uint64_t n = health->unhealed;

    assert_int_equal(n > 0, health->problem[0] != '\0');
    rozo__st_health_resp__free_unpacked(health, NULL);
    return n;
}

/* ---- resync ---- */

static void test_missed_writes_are_repaired_once_and_hints_forgotten(void **state)
{
    struct storcli_target a = target_make(10, 1), b = target_make(11, 1);

    (void)state;
    nodes_start_all();
    for (unsigned i = 2; i <= 4; i++) {
        assert_int_equal(node_missed(i, &a, 10, 20, 1, 5), ROZO__STATUS__OK);
        assert_int_equal(node_missed(i, &b, 7, 0, 1, 6), ROZO__STATUS__OK);
    }
    assert_int_equal(node_missed(3, &a, 300, 1, 1, 7), ROZO__STATUS__OK);
    run_ms(15000);
    assert_int_equal(n_seen, 3); /* three peers had hints of them */
    for (unsigned i = 0; i < n_seen; i++) {
        assert_int_equal(seen[i].own, 1);
        assert_int_equal(seen[i].request.flags, 0);
    }
    /* Whole extents are repaired, since the storage may have died in the middle of a
     * write. */
    assert_int_equal(seen[0].request.first_block, 0);
    assert_int_equal(seen[0].request.n_blocks, 128);
    assert_int_equal(seen[1].request.first_block, 256);
    assert_int_equal(seen[1].request.n_blocks, 128);
    assert_int_equal(seen[2].request.first_block, 0);
    assert_int_equal(seen[2].request.n_blocks, 0);
    assert_int_equal(seen[0].request.passed_first, 10);
    assert_int_equal(seen[0].request.passed_end, 30);
    assert_int_equal(seen[1].request.passed_first, 300);
    assert_int_equal(seen[1].request.passed_end, 301);
    assert_int_equal(seen[2].request.passed_first, 7);
    assert_true(seen[2].request.passed_end == UINT64_MAX);
    for (unsigned i = 1; i <= NODES; i++)
        assert_int_equal(node_n_missed(i), 0);
    run_ms(60000);
    assert_int_equal(n_seen, 3);
}

static void test_hints_stay_while_the_repair_fails(void **state)
{
    struct storcli_target a = target_make(10, 1), b = target_make(11, 1);

    (void)state;
    nodes_start_all();
    fail_ino = 10;
    fail_ino_rc = -EIO;
    assert_int_equal(node_missed(2, &a, 10, 20, 1, 5), ROZO__STATUS__OK);
    assert_int_equal(node_missed(2, &b, 10, 20, 1, 5), ROZO__STATUS__OK);
    run_ms(40000);
    assert_true(n_seen >= 4);
    assert_int_equal(node_n_missed(2), 1);
    assert_int_equal(n_unhealed(1), 1);
    fail_ino_rc = -ENOENT; /* the file was removed */
    run_ms(30000);
    assert_int_equal(node_n_missed(2), 0);
    assert_int_equal(n_unhealed(1), 0);
}

/* A hint that arrives while its blocks are repaired stays when the earlier hint is
 * forgotten. */
static void test_hint_that_comes_during_its_repair_stays(void **state)
{
    struct storcli_target a = target_make(10, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 5000;
    assert_int_equal(node_missed(2, &a, 10, 20, 1, 5), ROZO__STATUS__OK);
    while (fake_repairs.n_running == 0)
        run_ms(1);
    assert_int_equal(node_missed(2, &a, 12, 1, 1, 4), ROZO__STATUS__OK);
    run_ms(5000);
    assert_int_equal(n_seen, 1);
    assert_int_equal(node_n_missed(2), 1);
    run_ms(30000);
    assert_int_equal(n_seen, 2);
    assert_int_equal(node_n_missed(2), 0);
}

static void test_peers_that_are_down_are_not_asked(void **state)
{
    struct storcli_target a = target_make(10, 1);

    (void)state;
    nodes_start_all();
    assert_int_equal(node_missed(2, &a, 10, 20, 1, 5), ROZO__STATUS__OK);
    nodes[2].up = false;
    memset(nodes[2].n_served, 0, sizeof(nodes[2].n_served));
    run_ms(60000);
    assert_int_equal(n_seen, 0);
    nodes[2].up = true;
    run_ms(15000);
    assert_int_equal(n_seen, 1);
}

static void test_many_notes_go_in_pages(void **state)
{
    (void)state;
    nodes_start_all();
    nodes[1].up = false;
    node_stop(1);
    for (unsigned i = 0; i < 3000; i++) {
        struct storcli_target t = target_make(1000 + i, 1);

        assert_int_equal(node_missed(2, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
        if (i % 7 == 0)
            assert_int_equal(node_missed(3, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
        if (i % 100 == 0)
            assert_int_equal(node_missed(4, &t, 500, 1, 1, 5), ROZO__STATUS__OK);
    }
    nodes[1].up = true;
    fake_repairs.takes_ms = 0;
    node_start(1); /* knows its peers from the stored map */
    run_ms(10000);
    assert_int_equal(n_seen, 3000 + 30);
    for (unsigned i = 2; i <= 4; i++)
        assert_int_equal(node_n_missed(i), 0);
    assert_true(fake_repairs.n_running_most <= 4);
}

static void test_too_much_becomes_everything(void **state)
{
    struct storcli_target t;

    (void)state;
    nodes[2].config.missed_files_max = 5;
    nodes_start_all();
    for (unsigned i = 0; i < 8; i++) {
        t = target_make(1000 + i, 1);
        projection_make(1, &t, 0, false, 1);
        projection_make(2, &t, 1, false, 1);
        assert_int_equal(node_missed(2, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
    }
    assert_int_equal(node_n_missed(2), 1);
    run_ms(30000);
    assert_int_equal(n_seen, 8); /* all listed files, complete or not */
    assert_int_equal(node_n_missed(2), 0);
    run_ms(60000);
    assert_int_equal(n_seen, 8);
}

static void test_clients_want_a_capability(void **state)
{
    struct storcli_target a = target_make(10, 1), foreign = target_make(10, 1);
    Rozo__StMissedReq req = ROZO__ST_MISSED_REQ__INIT;
    Rozo__Missed m = ROZO__MISSED__INIT, *missed = &m;
    uint8_t capability[CAPABILITY_BYTES];
    struct heal_ref ref;

    (void)state;
    nodes_start_all();
    heal_ref_put(&a, &ref);
    m.ref = &ref.ref;
    m.n_blocks = 1;
    m.candidates = 1;
    m.version = 5;
    req.missed = &missed;
    req.n_missed = 1;
    req.to_storage = 2;
#define ASK(role) node_ask(2, role, ROZO__OP__ST_MISSED, &req.base, NULL, NULL)
    assert_int_equal(ASK(RPC_ROLE_CLIENT), ROZO__STATUS__DENIED);
    capability_sign(nodes[1].key, &a.id, CAPABILITY_READ, capability);
    ref.ref.capability.data = capability;
    ref.ref.capability.len = sizeof(capability);
    assert_int_equal(ASK(RPC_ROLE_CLIENT), ROZO__STATUS__DENIED);
    capability_sign(nodes[1].key, &a.id, CAPABILITY_WRITE, capability);
    assert_int_equal(ASK(RPC_ROLE_CLIENT), ROZO__STATUS__OK);
    m.candidates = 8; /* a spare misses nothing */
    assert_int_equal(ASK(RPC_ROLE_NODE), ROZO__STATUS__BAD_REQUEST);
    m.candidates = 1;
    m.first_block = UINT64_MAX - 1;
    m.n_blocks = 9;
    assert_int_equal(ASK(RPC_ROLE_NODE), ROZO__STATUS__BAD_REQUEST);
    m.first_block = 0;
    req.to_storage = 3;
    assert_int_equal(ASK(RPC_ROLE_NODE), ROZO__STATUS__WRONG_STORAGE);
    req.to_storage = 2;
    foreign.storages[1] = 5; /* storage 1 is not in this distribution */
    heal_ref_put(&foreign, &ref);
    assert_int_equal(ASK(RPC_ROLE_NODE), ROZO__STATUS__BAD_REQUEST);
#undef ASK
    assert_int_equal(node_n_missed(2), 1);
}

/* ---- rebuild ---- */

enum { FILES = 60 };

/* Makes FILES files over all nodes, then empties the disk of node 1. */
static void cluster_make(struct storcli_target *files)
{
    for (unsigned i = 0; i < FILES; i++) {
        files[i] = target_make(50 + (uint64_t)i * 97, 1 + i % NODES);
        for (unsigned p = 0; p < 3; p++) {
            if (files[i].storages[p] != 1)
                projection_make(files[i].storages[p], &files[i], p, false, 1);
        }
    }
    atomic_store(&nodes[1].identity.rebuild, true);
}

static void cluster_check(const struct storcli_target *files)
{
    for (unsigned i = 0; i < FILES; i++) {
        unsigned place = heal_place(&files[i], 1);

        if (place < 3)
            assert_true(projection_is_whole(1, &files[i], place));
    }
    assert_false(identity_is_rebuilt(&nodes[1].identity));
    assert_non_null(strstr((char *)nodes[1].disk.identity, "storage: 1\n"));
    assert_null(strstr((char *)nodes[1].disk.identity, "rebuild"));
}

static void test_a_rebuild(void **state)
{
    struct storcli_target files[FILES];
    Rozo__StHealthResp *health;
    unsigned n_homes = 0;

    (void)state;
    cluster_make(files);
    for (unsigned i = 0; i < FILES; i++)
        n_homes += heal_place(&files[i], 1) < 3;
    fake_repairs.takes_ms = 20;
    nodes_start_all();
    run_ms(100); /* all peers are up: no wait */
    health = node_health(1);
    assert_int_equal(health->rebuild_state, 1);
    assert_int_equal(health->rebuild_files, n_homes);
    assert_true(health->rebuild_files_done < n_homes);
    assert_true(health->rebuild_bytes > 0);
    rozo__st_health_resp__free_unpacked(health, NULL);
    run_ms(20000);
    cluster_check(files);
    assert_int_equal(n_seen, n_homes);
    assert_int_equal(nodes[1].n_whole, n_homes);
    for (unsigned i = 0; i < n_seen; i++)
        assert_int_equal(seen[i].request.flags, REPAIR_PARTIAL);
    assert_int_equal(n_unhealed(1), 0);
    health = node_health(1);
    assert_int_equal(health->rebuild_state, 2);
    assert_int_equal(health->rebuild_files_done, n_homes);
    rozo__st_health_resp__free_unpacked(health, NULL);
}

static void test_a_rebuild_goes_on_after_a_crash_at_any_time(void **state)
{
    (void)state;
    for (unsigned at_ms = 1; at_ms < 1200; at_ms += at_ms < 210 ? 7 : 330) {
        struct storcli_target files[FILES];
        unsigned crashes = 0;

        nodes_free();
        setup(NULL);
        cluster_make(files);
        nodes_start_all();
        while (nodes[1].disk.identity_len == 0) {
            run_ms(crashes < 6 ? at_ms + crashes * 3 : 30000);
            if (crashes < 6) {
                node_crash(1);
                if (nodes[1].disk.identity_len == 0) /* as storage.id would say */
                    atomic_store(&nodes[1].identity.rebuild, true);
                node_start(1);
            }
            assert_true(++crashes < 50);
        }
        run_ms(2000);
        cluster_check(files);
    }
}

/* A file that is created behind the position of the rebuild does not stay partial for
 * ever. */
static void test_files_made_during_a_rebuild_become_whole(void **state)
{
    struct storcli_target files[FILES], late = target_make(1, 1);

    (void)state;
    cluster_make(files);
    fake_repairs.takes_ms = 200;
    nodes_start_all();
    run_ms(1600);
    projection_make(1, &late, 0, true, 1);
    run_ms(60000);
    cluster_check(files);
    assert_true(projection_is_whole(1, &late, 0));
}

static void test_a_rebuild_waits_for_all_peers(void **state)
{
    struct storcli_target files[FILES];

    (void)state;
    cluster_make(files);
    nodes[3].up = false;
    nodes_start_all();
    run_ms(60000);
    assert_true(identity_is_rebuilt(&nodes[1].identity));
    assert_true(n_seen > 0);
    nodes[3].up = true;
    run_ms(40000);
    cluster_check(files);
}

static void test_a_rebuild_tries_again_what_failed(void **state)
{
    struct storcli_target files[FILES];

    (void)state;
    cluster_make(files);
    fail_ino = files[0].id.ino;
    fail_ino_rc = -EIO;
    nodes_start_all();
    run_ms(50000);
    assert_true(identity_is_rebuilt(&nodes[1].identity));
    fail_ino = 0;
    run_ms(40000);
    cluster_check(files);
}

/* Spares take the projections of a lost storage: each file once, by its own spare, also
 * over a restart. */
static void test_spares_take_the_projections_of_a_lost_storage(void **state)
{
    struct storcli_target files[FILES];
    unsigned n_stand_in = 0;

    (void)state;
    for (unsigned i = 0; i < FILES; i++) {
        files[i] = target_make(50 + (uint64_t)i * 97, 1 + i % NODES);
        for (unsigned p = 0; p < 3; p++)
            projection_make(files[i].storages[p], &files[i], p, false, 1);
        n_stand_in += heal_place(&files[i], 3) < 3;
    }
    nodes_start_all();
    run_ms(2000);
    assert_int_equal(n_seen, 0);
    node_stop(3);
    nodes_lost = 1 << 3;
    for (unsigned i = 1; i <= NODES; i += 1 + (i == 2))
        node_map(i, 2, NODES);
    run_ms(5);
    node_crash(4);
    node_start(4);
    run_ms(5000);
    assert_in_range(n_seen, n_stand_in, n_stand_in + 12); /* some files of node 4 twice */
    for (unsigned i = 0; i < n_seen; i++) {
        assert_int_equal(heal_place(&seen[i].request.target, seen[i].own), 3);
        assert_true(heal_place(&seen[i].request.target, 3) < 3);
        assert_int_equal(seen[i].request.lost,
                         1 << heal_place(&seen[i].request.target, 3));
    }
    n_seen = 0;
    for (unsigned i = 1; i <= NODES; i += 1 + (i == 2))
        node_map(i, 3, NODES);
    node_stop(4);
    node_start(4);
    run_ms(5000);
    assert_int_equal(n_seen, 0);
    nodes_lost = 0; /* the storage is back, and lost again */
    for (unsigned i = 1; i <= NODES; i += 1 + (i == 2))
        node_map(i, 4, NODES);
    run_ms(5000);
    assert_int_equal(n_seen, 0);
    nodes_lost = 1 << 3;
    for (unsigned i = 1; i <= NODES; i += 1 + (i == 2))
        node_map(i, 5, NODES);
    run_ms(5000);
    assert_int_equal(n_seen, n_stand_in);
}

/* ---- scrub ---- */

static void test_scrub_checks_all_files_and_has_peers_check_theirs(void **state)
{
    struct storcli_target files[FILES];
    Rozo__StHealthResp *health;
    unsigned n_own = 0;

    (void)state;
    for (unsigned i = 0; i < FILES; i++) {
        files[i] = target_make(50 + (uint64_t)i * 97, 1 + i % NODES);
        for (unsigned p = 0; p < 3; p++)
            projection_make(files[i].storages[p], &files[i], p, false, 1);
        n_own += heal_place(&files[i], 1) < 3;
    }
    nodes[2].lacks_ino = (uint32_t)files[0].id.ino; /* homes 1, 2, 3 */
    next_result.has_content = true;
    nodes_start_all();
    node_heal(1, 1, 0);
    run_ms(5000);
    assert_int_equal(n_seen, n_own + 1);
    for (unsigned i = 0; i < n_seen; i++) {
        if (seen[i].own == 1) {
            assert_int_equal(seen[i].request.flags,
                             REPAIR_VERIFY_OWN | REPAIR_CLEAN_SPARES);
        } else { /* the peer that was asked to check */
            assert_int_equal(seen[i].own, 2);
            assert_int_equal(seen[i].request.target.id.ino, files[0].id.ino);
        }
    }
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_files_done, n_own);
    assert_int_equal(health->scrub_files, n_own);
    assert_int_equal(health->scrub_found, 1);
    assert_int_equal(health->n_scrub_findings, 1);
    assert_non_null(strstr(health->scrub_findings[0], "storage 2 lacks the file"));
    rozo__st_health_resp__free_unpacked(health, NULL);
    nodes[2].lacks_ino = 0;
    next_result = (struct repair_result){ .damaged = 2, .healed = 2 };
    node_heal(1, 1, 0);
    run_ms(5000);
    health = node_health(1);
    assert_int_equal(health->scrub_found, 2 * n_own);
    assert_int_equal(health->scrub_healed, 2 * n_own);
    assert_int_equal(health->journal_bytes, 77);
    rozo__st_health_resp__free_unpacked(health, NULL);
    node_stop(1);
    node_start(1);
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_found, 2 * n_own);
    assert_true(health->n_scrub_findings > 0);
    rozo__st_health_resp__free_unpacked(health, NULL);
}

/* A file is on one home and a spare: the next home is asked in any case, and the repair
 * shows that the other one lacks it. */
static void test_scrub_reports_all_homes_that_lack_a_file(void **state)
{
    struct storcli_target t = target_make(50, 1);
    Rozo__StHealthResp *health;

    (void)state;
    projection_make(1, &t, 0, false, 1);
    nodes[2].lacks_ino = nodes[3].lacks_ino = (uint32_t)t.id.ino;
    next_result.has_content = true;
    next_result.none = 1 << 1 | 1 << 2;
    nodes_start_all();
    node_heal(1, 1, 0);
    run_ms(5000);
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_found, 2);
    assert_non_null(strstr(health->scrub_findings[0], "storage 2 lacks the file"));
    assert_non_null(strstr(health->scrub_findings[1], "storage 3 lacks the file"));
    rozo__st_health_resp__free_unpacked(health, NULL);
    assert_int_equal(n_seen, 3); /* all three storages checked the file */
}

static void test_scrub_has_damaged_files_repaired(void **state)
{
    struct storcli_target t = target_make(50, 1);
    char path[64];

    (void)state;
    for (unsigned p = 0; p < 3; p++)
        projection_make(t.storages[p], &t, p, false, 1);
    snprintf(path, sizeof(path), "objects/9e/37/0000000100000002%016x.0", 50);
    memdisk_poke(&nodes[1].disk, memdisk_find(&nodes[1].disk, path), 40, "junk", 4);
    nodes_start_all();
    node_heal(1, 1, 0);
    run_ms(5000);
    /* a second repair of the complete file: its damage was unknown before */
    assert_int_equal(n_seen, 2);
    assert_int_equal(seen[0].own, 1);
    assert_true((seen[0].request.flags & REPAIR_PARTIAL) != 0);
    assert_true((seen[1].request.flags & REPAIR_PARTIAL) == 0);
    assert_true(projection_is_whole(1, &t, 0));
}

/* Checks what the last scrub of node 1 reports, and how many removals it requested. */
static void scrub_expect(const char *words, unsigned found, unsigned unseen,
                         unsigned n_removals)
{
    unsigned before = nodes[1].n_served[ROZO__OP__ST_REMOVE];
    Rozo__StHealthResp *health;

    node_heal(1, 1, 0);
    run_ms(90000); /* enough for a storage that does not answer, too */
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_found, found);
    assert_int_equal(health->scrub_unseen, unseen);
    if (words != NULL)
        assert_non_null(strstr(health->scrub_findings[0], words));
    rozo__st_health_resp__free_unpacked(health, NULL);
    assert_int_equal(nodes[1].n_served[ROZO__OP__ST_REMOVE] - before, n_removals);
}

/* A projection file that does not show its distribution is removed when all other
 * storages say that they have, and had, nothing of it. Otherwise every scrub would find
 * it damaged. */
static void test_corrupt_ownerless_file_is_removed(void **state)
{
    enum {
        ALONE,
        BEGUN_THERE, /* left by a power failure there, or empty */
        EMPTY_THERE,
        GOES, /* in the states before this one the file is removed */
        HEADLESS_THERE = GOES,
        ASIDE_THERE,
        DAMAGED_THERE,
        REBUILT_THERE,
        DOWN,
        GIVEN_UP,
        KEPT,
        N
    };
    struct storcli_target t = target_make(50, 1);
    char path[PROJFILE_PATH_MAX];

    for (unsigned i = 0; i < N; i++) {
        bool is_asked = i < GOES || i == KEPT;

        projection_make(1, &t, 0, false, 1);
        projfile_path(path, &t.id, 0);
        memdisk_poke(&nodes[1].disk, memdisk_find(&nodes[1].disk, path), 40, "junk", 4);
        nodes[3].config.power_was_lost = i == BEGUN_THERE;
        if (i == BEGUN_THERE || i == HEADLESS_THERE)
            leftover_make(3, &t, "2", 20000);
        if (i == EMPTY_THERE)
            leftover_make(3, &t, "2", 0);
        if (i == ASIDE_THERE)
            leftover_make(3, &t, "damaged", 20000);
        if (i == DAMAGED_THERE) {
            projection_make(3, &t, 2, false, 1);
            projfile_path(path, &t.id, 2);
            memdisk_poke(&nodes[3].disk, memdisk_find(&nodes[3].disk, path), 40, "junk",
                         4);
        }
        nodes_lost = i == GIVEN_UP ? 1 << 3 : 0;
        nodes[1].keeps = i == KEPT;
        nodes_start_all();
        if (i == REBUILT_THERE)
            atomic_store(&nodes[3].identity.rebuild, true);
        nodes[3].up = i != DOWN;
        run_ms(3000);
        scrub_expect(is_asked && i != KEPT
                         ? "no other storage has any of it, so it is removed"
                         : "no storage knows its distribution",
                     1, is_asked && i != KEPT ? 0 : 1, is_asked ? 1 : 0);
        if (i < GOES)
            scrub_expect(NULL, 0, 0, 0);
        assert_int_equal(n_seen, 0); /* nothing is repaired */
        nodes[3].up = true;
        atomic_store(&nodes[3].identity.rebuild, false);
        nodes_teardown(state);
        setup(state);
    }
}

/* A storage may be named in a hint it holds itself: it took a mark, but not the write
 * before. */
static void test_hint_about_the_storage_itself_is_repaired(void **state)
{
    struct storcli_target a = target_make(10, 1);

    (void)state;
    nodes_start_all();
    assert_int_equal(node_missed(1, &a, 10, 20, 1, 5), ROZO__STATUS__OK);
    run_ms(15000);
    assert_int_equal(n_seen, 1);
    assert_int_equal(node_n_missed(1), 0);
}

static void test_a_scrub_goes_on_after_a_restart_and_can_be_stopped(void **state)
{
    Rozo__StHealthResp *health;

    (void)state;
    for (unsigned i = 0; i < 400; i++) {
        struct storcli_target t = target_make(50 + (uint64_t)i * 97, 1);

        projection_make(1, &t, 0, false, 1);
    }
    nodes_start_all();
    node_heal(1, 1, 0);
    while (n_seen < 300)
        run_ms(10);
    node_crash(1);
    node_start(1);
    n_seen = 0;
    run_ms(60000);
    assert_int_equal(n_seen, 144); /* resumes at the second page */
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_files_done, 400);
    rozo__st_health_resp__free_unpacked(health, NULL);
    node_heal(1, 1, 0);
    run_ms(100);
    node_heal(1, 2, 0);
    run_ms(60000);
    health = node_health(1);
    assert_int_equal(health->scrub_state, 3);
    assert_true(health->scrub_files_done < 400);
    rozo__st_health_resp__free_unpacked(health, NULL);
}

/* A doubt about lost journal frames ends only with a scrub that checked everything. */
static void test_a_doubt_ends_with_a_scrub_that_sees_everything(void **state)
{
    struct storcli_target t = target_make(50, 1);
    Rozo__StHealthResp *health;

    (void)state;
    projection_make(1, &t, 0, false, 1);
    atomic_store(&nodes[1].identity.losses, 2);
    next_result = (struct repair_result){ .undecided = 1, .has_content = true };
    nodes_start_all();
    run_ms(5000);
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_unseen, 1);
    assert_true(health->doubt);
    rozo__st_health_resp__free_unpacked(health, NULL);
    next_result = (struct repair_result){ .has_content = true };
    run_ms(300000);
    assert_true(identity_is_in_doubt(&nodes[1].identity)); /* no new scrub at once */
    run_ms(600000);
    assert_false(identity_is_in_doubt(&nodes[1].identity));
    health = node_health(1);
    assert_int_equal(health->scrub_unseen, 0);
    assert_false(health->doubt);
    rozo__st_health_resp__free_unpacked(health, NULL);
}

static void test_scrubs_by_schedule_and_after_a_power_loss(void **state)
{
    struct storcli_target t = target_make(50, 1);

    (void)state;
    projection_make(1, &t, 0, false, 1);
    nodes[1].config.scrub_days = 2;
    node_start(1);
    run_ms(3600 * 1000);
    assert_int_equal(n_seen, 0);
    for (unsigned h = 0; h < 48; h++)
        run_ms(3600 * 1000);
    assert_int_equal(n_seen, 1);
    node_crash(1); /* a crash of the process only */
    node_start(1);
    run_ms(1000);
    assert_int_equal(n_seen, 1);
    node_crash(1);
    nodes[1].config.boot = 2;
    node_start(1);
    run_ms(500);
    assert_int_equal(n_seen, 1); /* other storages may still be starting */
    run_ms(1500);
    assert_int_equal(n_seen, 2);
    assert_int_equal(seen[1].request.flags, REPAIR_CLEAN_SPARES);
    node_stop(1);
    nodes[1].config.boot = 3; /* a clean stop before a new boot */
    node_start(1);
    run_ms(1000);
    assert_int_equal(n_seen, 2);
}

/* ---- checks and recovery ---- */

static void test_checks(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    assert_int_equal(node_check(1, &t, 5, 2, false), ROZO__STATUS__OK);
    run_ms(100);
    assert_int_equal(n_seen, 1);
    assert_int_equal(seen[0].request.flags, REPAIR_VERIFY_OWN);
    assert_int_equal(seen[0].request.first_block, 5);
    assert_int_equal(seen[0].request.n_blocks, 2);
    assert_int_equal(node_check(1, &t, 5, 2, true), ROZO__STATUS__OK);
    run_ms(100);
    assert_int_equal(n_seen, 2);
    assert_int_equal(seen[1].request.flags, REPAIR_FENCE | REPAIR_ALL_HOMES);
    /* A check runs and another one waits; later requests join the one that waits. */
    fake_repairs.takes_ms = 1000;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(node_check(1, &t, 5 + i, 2, false), ROZO__STATUS__OK);
    run_ms(5000);
    assert_int_equal(n_seen, 4);
    assert_int_equal(seen[3].request.n_blocks, 11);
}

/* A client with the right to read must not cause a recovery among storages that have
 * nothing of the file. */
static void test_where_a_file_lies_is_not_the_clients_word(void **state)
{
    struct storcli_target t = target_make(10, 1), wrong = t;
    Rozo__StCheckReq req = ROZO__ST_CHECK_REQ__INIT;
    uint8_t capability[CAPABILITY_BYTES];
    struct heal_ref ref;

    (void)state;
    nodes_start_all();
    wrong.storages[1] = 5;
    capability_sign(nodes[1].key, &t.id, CAPABILITY_READ, capability);
    req.ref = &ref.ref;
    req.n_blocks = 1;
    req.to_storage = 1;
    next_result.undecided = 1;
#define ASK(target)                                           \
    (heal_ref_put(target, &ref), ref.ref.capability.len = 24, \
     ref.ref.capability.data = capability,                    \
     node_ask(1, RPC_ROLE_CLIENT, ROZO__OP__ST_CHECK, &req.base, NULL, NULL))
    assert_int_equal(ASK(&wrong), ROZO__STATUS__OK); /* unknown here */
    run_ms(300000);
    assert_true(n_seen > 4);
    for (unsigned i = 0; i < n_seen; i++)
        assert_int_equal(seen[i].request.flags & REPAIR_FENCE, 0);
    /* A second storage has a part of the file now: the distribution in its header
     * counts. */
    projection_make(2, &t, 1, false, 1);
    run_ms(400000);
    assert_true((seen[n_seen - 1].request.flags & REPAIR_FENCE) != 0);
    assert_int_equal(seen[n_seen - 1].request.target.storages[1], t.storages[1]);
    next_result.undecided = 0;
    run_ms(300000);
    next_result.undecided = 1;
    n_seen = 0;
    projection_make(1, &t, 0, false, 1);
    assert_int_equal(ASK(&wrong), ROZO__STATUS__BAD_REQUEST);
    /* the right distribution is accepted */
    assert_int_equal(node_check(1, &t, 0, 1, true), ROZO__STATUS__OK);
    run_ms(1000);
    assert_true(n_seen > 0);
    assert_int_equal(seen[n_seen - 1].request.target.storages[1], t.storages[1]);
    next_result.undecided = 0;
    run_ms(300000);
    next_result.undecided = 1;
    n_seen = 0;
    assert_int_equal(ASK(&t), ROZO__STATUS__OK);
#undef ASK
    run_ms(300000);
    assert_true((seen[n_seen - 1].request.flags & REPAIR_FENCE) != 0);
    next_result.undecided = 0;
}

/* A home that does not answer the recovery of a dead client's file gets a hint. */
static void test_homes_that_did_not_answer_a_recovery_get_hints(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    next_result.unanswered = 1 << 1 | 1 << 3;
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__OK);
    run_ms(100);
    assert_int_equal(n_seen, 1);
    assert_int_equal(node_n_missed(1), 1);
    next_result.unanswered = 0;
    run_ms(15000);
    assert_int_equal(n_seen, 2);
    assert_int_equal(seen[1].own, 2);
    assert_int_equal(seen[1].request.n_blocks, 0);
    assert_int_equal(node_n_missed(1), 0);
}

/* A home missed a version that too few storages have now: readers pass it over, but
 * a storage that is down may have the rest of it. The hint stays until that is known. */
static void test_a_hint_stays_while_what_was_missed_is_torn(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    next_result = (struct repair_result){
        .n_torn = 2, .torn_first = 5, .torn_end = 9, .unanswered = 1 << 3
    };
    assert_int_equal(node_missed(2, &t, 7, 1, 1, 5), ROZO__STATUS__OK);
    run_ms(100000);
    assert_true(n_seen > 2);
    assert_int_equal(node_n_missed(2), 1);
    for (unsigned i = 0; i < n_seen; i++)
        assert_int_equal(seen[i].request.flags & REPAIR_FENCE, 0);
    next_result.torn_end = 7; /* blocks beside it may be torn: clients write there */
    run_ms(200000);
    assert_int_equal(node_n_missed(2), 0);

    next_result = (struct repair_result){ .n_torn = 1, .torn_first = 7, .torn_end = 8 };
    assert_int_equal(node_missed(2, &t, 7, 1, 1, 5), ROZO__STATUS__OK);
    run_ms(200000);
    assert_int_not_equal(seen[n_seen - 1].request.flags & REPAIR_FENCE, 0);
    next_result.n_torn = 0;
    run_ms(300000);
    assert_int_equal(node_n_missed(2), 0);
    assert_int_equal(n_unhealed(1), 0);
}

/* A storage that recovers a dead client's file may stop before it has decided all of it.
 * The hints outlive it, and every home comes back to the file. */
static void test_homes_of_what_stays_undecided_are_noted(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    nodes[2].up = false;
    next_result = (struct repair_result){ .undecided = 1, .unanswered = 1 << 1 };
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__OK);
    run_ms(100);
    assert_int_equal(node_n_missed(1), 3);
    node_stop(1);
    nodes[2].up = true;
    next_result = (struct repair_result){ 0 };
    n_seen = 0;
    node_start(1);
    run_ms(30000);
    assert_int_equal(n_seen, 3);
    for (unsigned i = 0; i < n_seen; i++)
        assert_int_equal(seen[i].request.n_blocks, 0);
    assert_int_equal(node_n_missed(1), 0);
}

/* The storage stops even before its first look at the file has ended. With a storage down
 * that look decides little, and takes long. */
static void test_homes_are_noted_at_once_if_a_storage_is_down(void **state)
{
    struct storcli_target t = target_make(10, 1);
    uint64_t from_ns;

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 5000;
    nodes[4].up = false;
    kv_memory_set_sync_ms(nodes[1].mem, 50);
    from_ns = env_now_ns(&nodes_env.env);
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__OK);
    assert_in_range(env_now_ns(&nodes_env.env) - from_ns, 0, ms_to_ns(100));
    assert_int_equal(kv_memory_n_unsynced(nodes[1].mem),
                     0); /* exportd forgets the file */
    assert_int_equal(node_n_missed(1), 3);
    fake_repairs.takes_ms = 0;
}

/* All storages are up. A storage that stops forgets the check, and exportd forgets the
 * file with the answer, so that waits for the end of the check. */
static void test_an_abandoned_file_is_checked_before_the_answer(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 1000;
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__OK);
    assert_int_equal(fake_repairs.n_ended, 1);
    assert_int_equal(node_n_missed(1), 0);
    fake_repairs.takes_ms = 0;
}

/* The check lasts, or leaves something: hints take its place before the answer. */
static void test_homes_are_noted_if_a_check_lasts(void **state)
{
    struct storcli_target t = target_make(10, 1);
    uint64_t from_ns;

    (void)state;
    nodes_start_all();
    kv_memory_set_sync_ms(nodes[1].mem, 50);
    fake_repairs.takes_ms = 9000;
    from_ns = env_now_ns(&nodes_env.env);
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__OK);
    assert_in_range(env_now_ns(&nodes_env.env) - from_ns, ms_to_ns(2900), ms_to_ns(3600));
    assert_int_equal(fake_repairs.n_ended, 0);
    assert_int_equal(kv_memory_n_unsynced(nodes[1].mem), 0);
    assert_int_equal(node_n_missed(1), 3);
    fake_repairs.takes_ms = 100;
    next_result.undecided = 1;
    assert_int_equal(node_check(2, &t, 0, 0, true), ROZO__STATUS__OK);
    assert_int_equal(kv_memory_n_unsynced(nodes[2].mem), 0);
    assert_int_equal(node_n_missed(2), 3);
    next_result.undecided = 0;
    fake_repairs.takes_ms = 0;
}

static void on_stop_timer(struct env_timer *timer)
{
    (void)timer;
    node_stop_begin(1);
}

/* A storage stops before the check of an abandoned file has ended: exportd hears no OK,
 * and asks the next one. */
static void test_a_stop_refuses_an_abandoned_file(void **state)
{
    struct storcli_target t = target_make(10, 1);
    struct env_timer timer;

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 9000;
    env_timer_init(&timer, on_stop_timer);
    env_timer_start(&nodes_env.env, &timer, 500);
    assert_int_equal(node_check(1, &t, 0, 0, true), ROZO__STATUS__BUSY);
    node_stop(1);
    fake_repairs.takes_ms = 0;
}

/* A client abandoned a torn write: no decision is allowed without a fence. When all
 * storages answer, the healer sets one up. */
static void test_undecided_blocks_are_recovered_with_a_fence(void **state)
{
    struct storcli_target t = target_make(10, 1);
    unsigned n = 0;

    (void)state;
    nodes_start_all();
    next_result = (struct repair_result){ .undecided = 1, .unanswered = 1 << 2 };
    assert_int_equal(node_missed(2, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
    assert_int_equal(node_check(3, &t, 7, 1, false), ROZO__STATUS__OK);
    run_ms(60000);
    for (unsigned i = 0; i < n_seen; i++)
        assert_true(seen[i].own == 3 || (seen[i].request.flags & REPAIR_FENCE) == 0);
    next_result.unanswered = 0; /* all storages answer now */
    n_seen = 0;
    run_ms(200000);
    for (unsigned i = 0; i < n_seen; i++) {
        if ((seen[i].request.flags & REPAIR_FENCE) != 0) {
            assert_int_equal(seen[i].request.flags & REPAIR_ALL_HOMES, REPAIR_ALL_HOMES);
            n |= 1u << seen[i].own;
        }
    }
    assert_int_equal(n, 1 << 1 | 1 << 2 | 1 << 3); /* 2: by the hint that 1 gave it */
    next_result.undecided = 0;
    run_ms(200000);
    assert_int_equal(n_unhealed(1), 0);
    assert_int_equal(n_unhealed(3), 0);
}

/* A client died before it sent hints of its writes, so the spare that took them records
 * them. A hint of the client itself counts instead. */
static void test_spare_records_hints_of_its_handoffs(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    node_stop(1);
    for (unsigned i = 0; i < 10; i++)
        healer_handoff(nodes[4].healer, &t, 1, 10 + i, 12 + i, 5);
    assert_int_equal(node_missed(4, &t, 10, 30, 1, 6), ROZO__STATUS__OK);
    run_ms(6000);
    assert_int_equal(node_n_missed(4), 1); /* no second hint */
    healer_handoff(nodes[4].healer, &t, 1, 100, 101, 7);
    assert_int_equal(node_n_missed(4), 1);
    run_ms(6000);
    assert_int_equal(node_n_missed(4), 2);
    for (unsigned i = 0; i < 6000; i++) /* bounded: the oldest are recorded at once */
        healer_handoff(nodes[4].healer, &t, 1, 1000 + i * 2, 1001 + i * 2, 8);
    assert_true(node_n_missed(4) > 2);
    node_stop(4); /* a stop records the others, too */
    node_start(4);
    node_start(1);
    run_ms(15000);
    assert_int_equal(node_n_missed(4), 0);
    assert_int_equal(seen[n_seen - 1].own, 1);
    assert_true(seen[n_seen - 1].request.first_block +
                    seen[n_seen - 1].request.n_blocks >=
                1000 + 6000 * 2 - 1);
}

static unsigned n_seen_of(uint32_t own)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_seen; i++)
        n += seen[i].own == own;
    return n;
}

/* All is healed, but the unreadable file of a spare stays while a storage is down. The
 * check goes on when all are up, until the file is gone. */
static void test_a_check_lasts_while_a_spare_keeps_a_damaged_file(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    node_crash(1);
    next_result.spoiled = 1u << 3;
    healer_damaged(nodes[4].healer, &t, 0, UINT64_MAX);
    run_ms(400 * 1000);
    assert_int_equal(n_seen_of(4), 1);
    node_start(1);
    run_ms(200 * 1000);
    assert_in_range(n_seen_of(4), 2, 3);
    next_result.spoiled = 0;
    run_ms(400 * 1000);
    assert_in_range(n_seen_of(4), 3, 4);
    n_seen = 0;
    run_ms(400 * 1000);
    assert_int_equal(n_seen_of(4), 0);
    assert_int_equal(n_unhealed(4), 0);
}

static void test_checks_are_tried_again_and_bounded(void **state)
{
    struct storcli_target t = target_make(10, 1);
    unsigned n_busy = 0;

    (void)state;
    nodes_start_all();
    next_result = (struct repair_result){ .undecided = 1 };
    assert_int_equal(node_check(1, &t, 5, 2, false), ROZO__STATUS__OK);
    run_ms(7000);
    assert_int_equal(n_seen, 2);
    assert_int_equal(n_unhealed(1), 1);
    next_result.undecided = 0;
    run_ms(20000);
    assert_int_equal(n_seen, 3);
    assert_int_equal(n_unhealed(1), 0);
    run_ms(600000);
    assert_int_equal(n_seen, 3);
    fake_repairs.takes_ms = 1000000000;
    for (unsigned i = 0; i < 4200; i++) {
        t = target_make(100 + i, 1);
        n_busy += node_check(1, &t, 5, 2, false) == ROZO__STATUS__BUSY;
    }
    assert_int_equal(n_busy, 4200 - 4096);
    assert_true(fake_repairs.n_running <= 6);
}

static void test_second_storage_waits_longer_before_a_recovery(void **state)
{
    (void)state;
    nodes_start_all();
    for (unsigned i = 1; i <= 2; i++) {
        nodes[i].uncommitted =
            (struct heal_uncommitted){ .target = target_make(10, 1),
                                       .first = 3,
                                       .end = 5,
                                       .age_ns = UINT64_C(11000000000) };
        nodes[i].has_uncommitted = true;
    }
    run_ms(4000);
    assert_true(n_seen >= 1);
    for (unsigned i = 0; i < n_seen; i++) {
        /* the second storage of the distribution waits longer */
        assert_int_equal(seen[i].own, 1);
        assert_int_equal(seen[i].request.flags, REPAIR_FENCE | REPAIR_ALL_HOMES);
        assert_int_equal(seen[i].request.first_block, 3);
        assert_int_equal(seen[i].request.n_blocks, 2);
    }
    nodes[1].has_uncommitted = false;
    n_seen = 0;
    nodes[2].uncommitted.age_ns = UINT64_C(15000000000);
    run_ms(4000);
    assert_true(n_seen >= 1);
    assert_int_equal(seen[0].own, 2);
}

/* ---- limits ---- */

static void test_limits(void **state)
{
    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 100;
    fake_repairs.bytes = 1000000;
    node_heal(1, 0, 10000000); /* 10 MB: ten repairs a second */
    for (unsigned i = 0; i < 100; i++) {
        struct storcli_target t = target_make(1000 + i, 1);

        assert_int_equal(node_missed(2, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
    }
    while (n_seen == 0)
        run_ms(10);
    run_ms(5000);
    assert_in_range(n_seen, 40, 60);
    run_ms(10000);
    assert_int_equal(n_seen, 100);
    assert_int_equal(fake_repairs.n_running_most, 4);
}

/* ---- lists, maps ---- */

static void test_lists_are_served(void **state)
{
    Rozo__StListReq req = ROZO__ST_LIST_REQ__INIT;
    Rozo__StListResp *resp;
    struct storcli_target t = target_make(10, 1);
    uint8_t *answer, id[FILE_ID_BYTES];
    size_t len;

    (void)state;
    nodes_start_all();
    projection_make(1, &t, 0, false, 1);
    req.to_storage = 1;
    req.max_files = 10;
    assert_int_equal(
        node_ask(1, RPC_ROLE_CLIENT, ROZO__OP__ST_LIST, &req.base, NULL, NULL),
        ROZO__STATUS__DENIED);
    assert_int_equal(
        node_ask(1, RPC_ROLE_NODE, ROZO__OP__ST_LIST, &req.base, &answer, &len),
        ROZO__STATUS__OK);
    resp = rozo__st_list_resp__unpack(NULL, len, answer);
    free(answer);
    assert_int_equal(resp->n_files, 1);
    assert_true(resp->end);
    assert_int_equal(resp->files[0]->projections, 1);
    assert_int_equal(resp->files[0]->ref->n_storages, 4);
    assert_false(resp->never_had);
    rozo__st_list_resp__free_unpacked(resp, NULL);
    req.only = true;
    req.after = (ProtobufCBinaryData){ sizeof(id), id };
    for (unsigned i = 0; i < 3; i++) { /* present; absent; absent during a rebuild */
        file_id_put(
            id, &(struct file_id){ t.id.export_id, t.id.generation, t.id.ino + (i > 0) });
        atomic_store(&nodes[1].identity.rebuild, i == 2);
        node_ask(1, RPC_ROLE_NODE, ROZO__OP__ST_LIST, &req.base, &answer, &len);
        resp = rozo__st_list_resp__unpack(NULL, len, answer);
        free(answer);
        assert_int_equal(resp->n_files, i == 0 ? 1 : 0);
        assert_int_equal(resp->never_had, i == 1);
        rozo__st_list_resp__free_unpacked(resp, NULL);
    }
    req.max_files = 0;
    assert_int_equal(node_ask(1, RPC_ROLE_NODE, ROZO__OP__ST_LIST, &req.base, NULL, NULL),
                     ROZO__STATUS__BAD_REQUEST);
}

/* The disk of storage 2 was replaced: its channel goes to the new one, and hints of what
 * the new one missed are not given to the old one. */
static void test_replaced_disks(void **state)
{
    static const uint8_t old[16] = { 7 }, now[16] = { 8 };
    struct storcli_target t = target_make(10, 1);
    Rozo__StMissedListReq list = ROZO__ST_MISSED_LIST_REQ__INIT;
    Rozo__StMissedDoneReq done = ROZO__ST_MISSED_DONE_REQ__INIT;

    (void)state;
    node_start(1);
    memcpy(nodes_incarnations[2], old, sizeof(old));
    node_map(1, 5, 4);
    assert_memory_equal(nodes[1].wanted[2], old, sizeof(old));
    assert_int_equal(node_missed(1, &t, 0, 1, 2, 5), ROZO__STATUS__OK);
    memset(nodes[1].wanted, 0xff, sizeof(nodes[1].wanted));
    memcpy(nodes_incarnations[2], now, sizeof(now));
    node_map(1, 6, 4);
    assert_memory_equal(nodes[1].wanted[2], now, sizeof(now));
    assert_int_equal(nodes[1].wanted[3][0], 0xff); /* other channels are unchanged */
    assert_int_equal(nodes[1].n_open, 4);
    list.storage = done.storage = 2;
    list.to_storage = done.to_storage = 1;
    list.max_ranges = 16;
#define ASK(op, req) node_ask(1, RPC_ROLE_NODE, op, &(req).base, NULL, NULL)
    list.incarnation = (ProtobufCBinaryData){ 16, (uint8_t *)(uintptr_t)old };
    done.incarnation = list.incarnation;
    assert_int_equal(ASK(ROZO__OP__ST_MISSED_LIST, list), ROZO__STATUS__WRONG_STORAGE);
    assert_int_equal(ASK(ROZO__OP__ST_MISSED_DONE, done), ROZO__STATUS__WRONG_STORAGE);
    list.incarnation = (ProtobufCBinaryData){ 16, (uint8_t *)(uintptr_t)now };
    done.incarnation = list.incarnation;
    assert_int_equal(ASK(ROZO__OP__ST_MISSED_LIST, list), ROZO__STATUS__OK);
    assert_int_equal(ASK(ROZO__OP__ST_MISSED_DONE, done), ROZO__STATUS__OK);
    list.incarnation.len = 0; /* an older storage sends none */
    assert_int_equal(ASK(ROZO__OP__ST_MISSED_LIST, list), ROZO__STATUS__OK);
#undef ASK
}

static uint32_t map_returns; /* StMapReq.returns of the next maps */

static uint16_t map_fenced(unsigned i, uint64_t version, const uint64_t *sessions,
                           size_t n)
{
    Rozo__StMapReq req = ROZO__ST_MAP_REQ__INIT;

    req.version = version;
    req.returns = map_returns;
    req.to_storage = i;
    req.fenced = (uint64_t *)(uintptr_t)sessions;
    req.n_fenced = n;
    return node_ask(i, RPC_ROLE_NODE, ROZO__OP__ST_MAP, &req.base, NULL, NULL);
}

static void test_maps(void **state)
{
    (void)state;
    node_start(1);
    node_map(1, 5, 3);
    assert_int_equal(nodes[1].n_open, 3);
    assert_int_equal(nodes[1].identity.map_version, 5);
    assert_int_equal(map_fenced(1, 4, NULL, 0), ROZO__STATUS__STALE_VERSION);
    assert_int_equal(nodes[1].n_open, 3);
    node_stop(1);
    node_start(1); /* the stored map serves until a new one arrives */
    assert_int_equal(nodes[1].n_open, 3);
    assert_int_equal(nodes[1].identity.map_version, 5);
    node_map(1, 6, 2);
    assert_int_equal(nodes[1].n_open, 2);
    atomic_store(&nodes[2].identity.storage_id, 0);
    node_start(2);
    {
        Rozo__StHealthReq req = ROZO__ST_HEALTH_REQ__INIT;

        assert_int_equal(
            node_ask(2, RPC_ROLE_NODE, ROZO__OP__ST_HEALTH, &req.base, NULL, NULL),
            ROZO__STATUS__NOT_ADMITTED);
        atomic_store(&nodes[2].identity.storage_id, 2);
        assert_int_equal(
            node_ask(2, RPC_ROLE_NODE, ROZO__OP__ST_HEALTH, &req.base, NULL, NULL),
            ROZO__STATUS__OK);
    }
}

/* A map is in force, and acknowledged, once it is on stable storage; an older map revokes
 * nothing. */
static void test_fenced_sessions(void **state)
{
    static uint64_t many[REVOKED_MAX + 1];
    struct identity *id = &nodes[1].identity;
    struct revoked_sessions *revoked = &nodes[1].revoked;

    (void)state;
    for (uint64_t i = 0; i <= REVOKED_MAX; i++)
        many[i] = 1000 + i;
    node_start(1);
    assert_int_equal(map_fenced(1, 5, (uint64_t[]){ 7, 8 }, 2), ROZO__STATUS__OK);
    assert_true(revoked_sessions_have(revoked, 7) && revoked_sessions_have(revoked, 8));
    for (unsigned power = 0; power < 2; power++) {
        node_crash(1);
        if (power != 0)
            kv_memory_power_cut(nodes[1].mem, kv_memory_n_unsynced(nodes[1].mem));
        revoked_sessions_set(revoked, NULL, 0);
        atomic_store(&id->map_version, 0);
        node_start(1);
        assert_int_equal(id->map_version, 5);
        assert_true(revoked_sessions_have(revoked, 7) &&
                    revoked_sessions_have(revoked, 8));
        assert_int_equal(map_fenced(1, 4, NULL, 0), ROZO__STATUS__STALE_VERSION);
        assert_int_equal(map_fenced(1, 5, NULL, 0), ROZO__STATUS__OK); /* repeated */
        assert_true(revoked_sessions_have(revoked, 7) && id->map_version == 5);
    }
    assert_int_equal(map_fenced(1, 6, (uint64_t[]){ 0 }, 1), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(map_fenced(1, 6, many, REVOKED_MAX + 1), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(id->map_version, 5);
    assert_int_equal(map_fenced(1, 6, many, REVOKED_MAX), ROZO__STATUS__OK);
    assert_true(revoked_sessions_have(revoked, 1000) &&
                !revoked_sessions_have(revoked, 7));
    assert_int_equal(id->map_version, 6);
}

/* A map that cannot be stored is not acknowledged. */
static void test_a_map_that_is_not_stable(void **state)
{
    (void)state;
    node_start(1);
    assert_int_equal(map_fenced(1, 5, (uint64_t[]){ 7 }, 1), ROZO__STATUS__OK);
    kv_memory_kill(nodes[1].mem);
    assert_int_equal(map_fenced(1, 6, (uint64_t[]){ 7, 8 }, 2), ROZO__STATUS__IO_ERROR);
    assert_int_equal(map_fenced(1, 6, (uint64_t[]){ 7, 8 }, 2), ROZO__STATUS__IO_ERROR);
    assert_int_equal(nodes[1].identity.map_version, 5);
}

#define MAP(start, n) ((uint64_t)(start) << 32 | (n))

/* Asks as an exportd of this start does. */
static uint16_t ask_as(uint64_t start)
{
    Rozo__StHealthReq req = ROZO__ST_HEALTH_REQ__INIT;
    uint16_t status;

    nodes_session = start;
    status = node_ask(1, RPC_ROLE_NODE, ROZO__OP__ST_HEALTH, &req.base, NULL, NULL);
    nodes_session = 0;
    return status;
}

/* Metadata that have gone back to an earlier state win over those that have not, however
 * often these were started since. */
static void test_metadata_that_have_gone_back(void **state)
{
    (void)state;
    node_start(1);
    assert_int_equal(map_fenced(1, MAP(9000, 1), NULL, 0), ROZO__STATUS__OK);
    map_returns = 1;
    assert_int_equal(map_fenced(1, MAP(4200, 1), (uint64_t[]){ 7 }, 1), ROZO__STATUS__OK);
    for (unsigned again = 0; again < 2; again++) {
        map_returns = 0;
        assert_int_equal(map_fenced(1, MAP(9000, 1), NULL, 0), ROZO__STATUS__DEPOSED);
        assert_int_equal(map_fenced(1, MAP(9001, 1), NULL, 0), ROZO__STATUS__DEPOSED);
        assert_int_equal(ask_as(9001), ROZO__STATUS__DEPOSED);
        assert_int_equal(ask_as(MAP(1, 4200)), ROZO__STATUS__OK);
        assert_int_equal(ask_as(MAP(1, 4201)), ROZO__STATUS__BUSY);
        assert_true(revoked_sessions_have(&nodes[1].revoked, 7));
        assert_true(nodes[1].identity.map_start == MAP(1, 4200));
        map_returns = 1;
        assert_int_equal(map_fenced(1, MAP(4199, 5), NULL, 0), ROZO__STATUS__DEPOSED);
        node_crash(1); /* the number is kept with the map */
        atomic_store(&nodes[1].identity.map_version, 0);
        atomic_store(&nodes[1].identity.map_start, 0);
        node_start(1);
    }
    assert_int_equal(map_fenced(1, MAP(4201, 1), NULL, 0), ROZO__STATUS__OK);
    map_returns = 0;
}

/* An exportd that was replaced is refused from the moment at which the map of a later
 * start is on stable storage; that one is served from this moment on. */
static void test_an_exportd_that_was_replaced(void **state)
{
    struct revoked_sessions *revoked = &nodes[1].revoked;
    Rozo__StHealthReq health = ROZO__ST_HEALTH_REQ__INIT;

    (void)state;
    node_start(1);
    assert_int_equal(ask_as(4), ROZO__STATUS__BUSY); /* no map is here yet */
    assert_int_equal(map_fenced(1, MAP(4, 9), NULL, 0), ROZO__STATUS__OK);
    assert_int_equal(ask_as(4), ROZO__STATUS__OK);
    assert_int_equal(ask_as(5), ROZO__STATUS__BUSY);
    assert_int_equal(map_fenced(1, MAP(5, 1), (uint64_t[]){ 7 }, 1), ROZO__STATUS__OK);
    for (unsigned power = 0; power < 3; power++) {
        assert_int_equal(ask_as(4), ROZO__STATUS__DEPOSED);
        assert_int_equal(ask_as(5), ROZO__STATUS__OK);
        assert_int_equal(ask_as(6), ROZO__STATUS__BUSY);
        assert_int_equal(ask_as(0), ROZO__STATUS__OK); /* an older build, or no exportd */
        assert_int_equal(ask_as(MAP(1, 5)), ROZO__STATUS__BUSY); /* a later return */
        assert_int_equal(map_fenced(1, MAP(4, 10), NULL, 0), ROZO__STATUS__DEPOSED);
        assert_int_equal(map_fenced(1, MAP(5, 0), NULL, 0), ROZO__STATUS__STALE_VERSION);
        assert_true(revoked_sessions_have(revoked, 7));
        node_crash(1);
        if (power != 0)
            kv_memory_power_cut(nodes[1].mem, kv_memory_n_unsynced(nodes[1].mem));
        atomic_store(&nodes[1].identity.map_version, 0);
        atomic_store(&nodes[1].identity.map_start, 0);
        node_start(1);
    }
    nodes_session = 4; /* a client's session is no start */
    assert_int_equal(
        node_ask(1, RPC_ROLE_CLIENT, ROZO__OP__ST_HEALTH, &health.base, NULL, NULL),
        ROZO__STATUS__OK);
    nodes_session = 0;
    kv_memory_kill(nodes[1].mem);
    assert_int_equal(map_fenced(1, MAP(6, 0), NULL, 0), ROZO__STATUS__IO_ERROR);
    assert_int_equal(ask_as(6), ROZO__STATUS__BUSY);
    assert_int_equal(ask_as(5), ROZO__STATUS__OK);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, nodes_teardown)
    static const struct CMUnitTest tests[] = {
        T(test_missed_writes_are_repaired_once_and_hints_forgotten),
        T(test_hints_stay_while_the_repair_fails),
        T(test_hint_that_comes_during_its_repair_stays),
        T(test_peers_that_are_down_are_not_asked),
        T(test_many_notes_go_in_pages),
        T(test_too_much_becomes_everything),
        T(test_clients_want_a_capability),
        T(test_a_rebuild),
        T(test_a_rebuild_goes_on_after_a_crash_at_any_time),
        T(test_files_made_during_a_rebuild_become_whole),
        T(test_a_rebuild_waits_for_all_peers),
        T(test_a_rebuild_tries_again_what_failed),
        T(test_spares_take_the_projections_of_a_lost_storage),
        T(test_scrub_checks_all_files_and_has_peers_check_theirs),
        T(test_scrub_reports_all_homes_that_lack_a_file),
        T(test_scrub_has_damaged_files_repaired),
        T(test_corrupt_ownerless_file_is_removed),
        T(test_hint_about_the_storage_itself_is_repaired),
        T(test_a_scrub_goes_on_after_a_restart_and_can_be_stopped),
        T(test_scrubs_by_schedule_and_after_a_power_loss),
        T(test_a_doubt_ends_with_a_scrub_that_sees_everything),
        T(test_checks),
        T(test_where_a_file_lies_is_not_the_clients_word),
        T(test_a_hint_stays_while_what_was_missed_is_torn),
        T(test_homes_that_did_not_answer_a_recovery_get_hints),
        T(test_homes_of_what_stays_undecided_are_noted),
        T(test_homes_are_noted_at_once_if_a_storage_is_down),
        T(test_an_abandoned_file_is_checked_before_the_answer),
        T(test_homes_are_noted_if_a_check_lasts),
        T(test_a_stop_refuses_an_abandoned_file),
        T(test_undecided_blocks_are_recovered_with_a_fence),
        T(test_spare_records_hints_of_its_handoffs),
        T(test_a_check_lasts_while_a_spare_keeps_a_damaged_file),
        T(test_checks_are_tried_again_and_bounded),
        T(test_second_storage_waits_longer_before_a_recovery),
        T(test_limits),
        T(test_lists_are_served),
        T(test_replaced_disks),
        T(test_maps),
        T(test_fenced_sessions),
        T(test_a_map_that_is_not_stable),
        T(test_metadata_that_have_gone_back),
        T(test_an_exportd_that_was_replaced),
    };
#undef T

    return cmocka_run_group_tests(tests, NULL, NULL);
}
