/*
 * Goal: an overwrite waits in the journal, is read as if it were in place, and is applied
 * only after its commit. Crashes, drops, fences, a full journal and a full disk change
 * nothing of that.
 * Method: a storage on a disk in memory, whose projection file is inspected where it
 * matters.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/wal/wal.h"
#include "storaged/disk/bad_page_disk.h"
#include "storaged/format/projfile.h"
#include "storaged/journal/journal_index.h"
#include "tests/unit/storaged/world.h"

#define OK          ROZO__STATUS__OK
#define STALE       ROZO__STATUS__STALE_VERSION
#define V(epoch, n) ((uint64_t)(epoch) << 32 | (n))

static void expect(struct world *w, uint64_t block, int kind, uint64_t version)
{
    struct seen seen;

    assert_int_equal(world_read(w, 0, block, 1, &seen, NULL), OK);
    assert_int_equal(seen.kind, kind);
    if (kind != SEEN_DAMAGED)
        assert_int_equal(seen.version, version);
}

static void expect_at_most(struct world *w, uint64_t block, uint64_t at_most, int kind,
                           uint64_t version)
{
    struct seen seen;

    assert_int_equal(world_read_at_most(w, 0, block, 1, at_most, &seen), OK);
    assert_int_equal(seen.kind, kind);
    if (kind != SEEN_DAMAGED)
        assert_int_equal(seen.version, version);
}

/* Returns the version in the head that is in place. */
static uint64_t in_place(struct world *w, uint64_t block)
{
    uint8_t head[RECORD_HEADER_BYTES];
    struct record_header h;
    struct geometry geo;

    geometry_init(&geo, world_codec(w), 0);
    memdisk_peek(world_file(w, 0), geometry_head_at(&geo, block), head, sizeof(head));
    record_header_get(head, &h);
    return h.version;
}

static void write_ok(struct world *w, uint64_t first, unsigned n, uint64_t version)
{
    assert_int_equal(world_write(w, 0, first, n, version, 8192, false, NULL), OK);
}

static void test_an_overwrite_waits_for_its_commit(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, 1));
    assert_int_equal(world_health(&w).pending_records, 0); /* first writes go in place */
    write_ok(&w, 2, 3, V(1, 2));
    assert_int_equal(world_health(&w).pending_records, 3);
    assert_int_equal(world_health(&w).uncommitted, 3);
    assert_int_equal(in_place(&w, 2), V(1, 1));
    expect(&w, 2, SEEN_DATA, V(1, 2));
    expect(&w, 5, SEEN_DATA, V(1, 1));
    expect_at_most(&w, 2, V(1, 1), SEEN_DATA, V(1, 1));
    world_apply(&w);
    assert_int_equal(in_place(&w, 2), V(1, 1)); /* no commit allowed it yet */
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    assert_int_equal(world_health(&w).uncommitted, 0);
    assert_int_equal(in_place(&w, 2), V(1, 1));
    world_apply(&w);
    assert_int_equal(in_place(&w, 2), V(1, 2));
    assert_int_equal(world_health(&w).pending_records, 0);
    expect(&w, 2, SEEN_DATA, V(1, 2));
    /* A newer record is in place, and no client can want the replaced one. */
    expect_at_most(&w, 2, V(1, 1), SEEN_HOLE, 0);
    world_restart(&w, false);
    expect(&w, 2, SEEN_DATA, V(1, 2));
    /* the record in place was committed */
    assert_int_equal(world_health(&w).uncommitted, 0);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    world_free(&w);
}

/* A truncate that is finished late is seen by reads below the later writes, also after a
 * restart. */
static void test_a_mark_below_lies_below(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, 1));
    write_ok(&w, 2, 3, V(3, 1));
    assert_int_equal(world_mark_below(&w, 0, 3, 0, V(2, 0)), OK);
    for (unsigned i = 0; i < 2; i++) {
        expect(&w, 2, SEEN_DATA, V(3, 1));
        expect(&w, 3, SEEN_DATA, V(3, 1));
        expect(&w, 5, SEEN_HOLE, V(2, 0));
        expect_at_most(&w, 2, V(3, 0), SEEN_DATA, V(1, 1));
        expect_at_most(&w, 3, V(3, 0), SEEN_HOLE, V(2, 0));
        expect_at_most(&w, 3, V(1, 9), SEEN_DATA, V(1, 1));
        world_restart(&w, false);
    }
    world_free(&w);
}

/* A block that is overwritten again and again is applied when that ends, or after half a
 * minute. */
static void test_blocks_under_overwrite_are_not_applied(void **state)
{
    struct world w;
    unsigned seq = 1;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, seq));
    for (unsigned i = 0; i < 18; i++) {
        write_ok(&w, 2, 3, V(1, ++seq));
        assert_int_equal(world_durable(&w, V(1, seq)), OK);
        env_virtual_advance_ms(&w.v, 1500);
        assert_int_equal(in_place(&w, 2), V(1, 1));
        assert_int_equal(world_health(&w).pending_records, 3);
    }
    for (unsigned i = 0; i < 4; i++) {
        write_ok(&w, 6, 1, V(1, ++seq));
        env_virtual_advance_ms(&w.v, 1500);
    }
    assert_int_equal(in_place(&w, 2), V(1, seq - 4));
    assert_int_equal(in_place(&w, 6), V(1, 1));
    assert_int_equal(world_durable(&w, V(1, seq)), OK);
    world_apply(&w);
    assert_int_equal(in_place(&w, 6), V(1, seq));
    assert_int_equal(world_health(&w).pending_records, 0);
    world_free(&w);
}

static void test_pending_versions_count_as_if_they_lay_in_place(void **state)
{
    struct world w;
    uint64_t newest;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    write_ok(&w, 0, 4, V(1, 5));
    assert_int_equal(world_write(&w, 0, 3, 2, V(1, 3), 8192, false, &newest), STALE);
    assert_int_equal(newest, V(1, 5));
    expect(&w, 4, SEEN_HOLE, 0);
    write_ok(&w, 0, 4, V(1, 5)); /* again */
    assert_int_equal(world_health(&w).pending_records, 4);
    assert_int_equal(world_write(&w, 0, 0, 4, V(1, 5), 100, false, NULL), STALE);
    assert_int_equal(world_mark(&w, 0, 0, 0, V(1, 4)), STALE);
    assert_int_equal(world_mark(&w, 0, 1, 1, V(1, 6)), OK);
    assert_int_equal(world_mark(&w, 0, 1, 1, V(1, 6)), OK);
    assert_int_equal(world_health(&w).pending_records, 5);
    expect(&w, 1, SEEN_HOLE, V(1, 6));
    expect_at_most(&w, 1, V(1, 5), SEEN_DATA, V(1, 5));
    expect_at_most(&w, 1, V(1, 4), SEEN_DATA, V(1, 1));
    assert_int_equal(world_write(&w, 0, 1, 1, V(1, 6), 8192, false, NULL), STALE);
    write_ok(&w, 1, 1, V(1, 7));
    expect(&w, 1, SEEN_DATA, V(1, 7));
    expect_at_most(&w, 1, V(1, 6), SEEN_HOLE, V(1, 6));
    for (unsigned i = 0; i < 2; i++) { /* all of it survives, and is applied */
        world_restart(&w, false);
        expect(&w, 0, SEEN_DATA, V(1, 5));
        expect(&w, 1, SEEN_DATA, V(1, 7));
        expect_at_most(&w, 1, V(1, 6), SEEN_HOLE, V(1, 6));
        expect_at_most(&w, 1, V(1, 4), SEEN_DATA, V(1, 1));
    }
    assert_int_equal(world_commit(&w, V(1, 7)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    assert_int_equal(in_place(&w, 1), V(1, 7));
    assert_int_equal(in_place(&w, 0), V(1, 5));
    world_restart(&w, false);
    expect(&w, 1, SEEN_DATA, V(1, 7));
    expect(&w, 2, SEEN_DATA, V(1, 5));
    world_free(&w);
}

/* The applier writes only the newest of several committed versions. */
static void test_overwritten_versions_are_not_applied(void **state)
{
    struct world w;
    unsigned n_writes;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 1, V(1, 1));
    for (unsigned i = 2; i < 50; i++)
        write_ok(&w, 0, 1, V(1, i));
    n_writes = w.disk.n_of[DISK_WRITE];
    assert_int_equal(world_durable(&w, V(1, 49)), OK);
    world_apply(&w);
    assert_int_equal(w.disk.n_of[DISK_WRITE], n_writes + 2); /* a body and a head */
    assert_int_equal(in_place(&w, 0), V(1, 49));
    assert_int_equal(world_health(&w).pending_records, 0);
    world_free(&w);
}

static void test_a_torn_overwrite_can_be_rolled_back(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    assert_int_equal(world_sync(&w), OK);
    write_ok(&w, 2, 4, V(2, 1)); /* blocks 4 and 5 were holes: in place */
    assert_int_equal(in_place(&w, 4), V(2, 1));
    expect_at_most(&w, 4, V(1, 9), SEEN_HOLE, 0);
    assert_int_equal(world_mark(&w, 0, 10, 0, V(2, 2)), OK);
    assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 2), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(world_fence(&w, 2), OK);
    assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 2), OK);
    for (unsigned i = 0; i < 3; i++) {
        expect(&w, 2, SEEN_DATA, V(1, 1));
        expect(&w, 3, SEEN_DATA, V(1, 1));
        expect(&w, 4, SEEN_HOLE, 0);
        expect(&w, 5, SEEN_HOLE, 0);
        expect(&w, 10, SEEN_HOLE, 0);
        assert_int_equal(world_write(&w, 0, 2, 1, V(2, 9), 8192, false, NULL), STALE);
        assert_int_equal(world_mark(&w, 0, 2, 1, V(2, 9)), STALE);
        assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 2), OK); /* again */
        world_restart(&w, i == 1);
    }
    w.role = RPC_ROLE_NODE; /* versions that were rolled forward are not fenced */
    write_ok(&w, 3, 1, V(2, 1));
    w.role = RPC_ROLE_CLIENT;
    write_ok(&w, 3, 1, V(2, 1)); /* already here */
    write_ok(&w, 2, 1, V(3, 1));
    expect(&w, 2, SEEN_DATA, V(3, 1));
    world_free(&w);
}

/* A fence holds also where no file exists, and returns a version that leads to a later
 * epoch. */
static void test_fences(void **state)
{
    struct world w;
    uint64_t newest;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_fence(&w, 5), OK);
    assert_int_equal(world_fence(&w, 3), OK); /* the later fence counts */
    world_restart(&w, true);
    assert_int_equal(world_write(&w, 0, 0, 1, V(5, 7), 8192, false, &newest), STALE);
    assert_int_equal(newest, V(5, UINT32_MAX));
    assert_null(world_file(&w, 0));
    write_ok(&w, 0, 1, V(6, 1));
    world_free(&w);
}

static void test_power_cuts_keep_what_was_synced(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(40); seed += UNIT_STEP) {
        struct world w;
        struct seen seen[6];

        world_init(&w, seed);
        write_ok(&w, 0, 6, V(1, 1));
        assert_int_equal(world_sync(&w), OK);
        write_ok(&w, 0, 2, V(1, 2));
        assert_int_equal(world_write(&w, 0, 2, 1, V(1, 3), 8192, true, NULL), OK);
        write_ok(&w, 3, 2, V(1, 4)); /* not synced */
        world_restart(&w, true);
        assert_int_equal(world_read(&w, 0, 0, 6, seen, NULL), OK);
        assert_int_equal(seen[0].version, V(1, 2));
        assert_int_equal(seen[1].version, V(1, 2));
        assert_int_equal(seen[2].version, V(1, 3));
        assert_true(seen[3].version == V(1, 1) || seen[3].version == V(1, 4));
        assert_int_equal(seen[3].version, seen[4].version); /* one frame */
        for (unsigned i = 0; i < 6; i++)
            assert_int_equal(seen[i].kind, SEEN_DATA);
        world_free(&w);
    }
}

/* A power cut at any request while records are applied leaves the old or the new one,
 * never a torn one. */
static void test_power_cuts_while_applying(void **state)
{
    (void)state;
    for (unsigned cut = 1; cut < 40; cut++) {
        struct world w;
        struct seen seen[20];

        world_init(&w, cut);
        write_ok(&w, 0, 20, V(1, 1));
        write_ok(&w, 5, 10, V(2, 2));
        assert_int_equal(world_mark(&w, 0, 17, 0, V(2, 3)), OK);
        assert_int_equal(world_sync(&w), OK);
        assert_int_equal(world_commit(&w, V(2, 3)), OK);
        w.disk.cut_at = w.disk.n_requests + cut;
        world_apply(&w);
        world_restart(&w, true);
        assert_int_equal(world_read(&w, 0, 0, 20, seen, NULL), OK);
        for (unsigned b = 0; b < 20; b++) {
            assert_int_equal(seen[b].kind, b < 17 ? SEEN_DATA : SEEN_HOLE);
            assert_int_equal(seen[b].version, b >= 17            ? V(2, 3)
                                              : b >= 5 && b < 15 ? V(2, 2)
                                                                 : V(1, 1));
        }
        assert_int_equal(world_commit(&w, V(2, 3)), OK);
        world_apply(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        assert_int_equal(world_read(&w, 0, 0, 20, seen, NULL), OK);
        assert_int_equal(seen[6].version, V(2, 2));
        assert_int_equal(seen[18].version, V(2, 3));
        world_free(&w);
    }
}

/* Makes a world with the smallest possible journal. */
static void small_init(struct world *w, uint64_t seed)
{
    world_init(w, seed);
    w->config.journal_bytes = 1;
    world_restart(w, false);
}

static void test_a_full_journal_pushes_back_and_loses_nothing(void **state)
{
    struct world w;
    struct seen seen[128];
    struct test_call *c;
    unsigned n = 2;
    uint16_t status = OK;

    (void)state;
    small_init(&w, 1);
    write_ok(&w, 0, 128, V(1, 1));
    while (n < 1000 && status == OK) {
        c = world_write_start(&w, 0, 0, 128, V(1, n), 8192, false);
        env_virtual_advance_ms(&w.v, 1);
        if (!c->done) { /* waits for room, then gets BUSY */
            env_virtual_advance_ms(&w.v, 10000);
            assert_true(c->done);
        }
        status = call_finish(c);
        n += status == OK;
    }
    assert_int_equal(status, ROZO__STATUS__BUSY);
    assert_true(world_health(&w).journal_bytes <= world_health(&w).journal_max_bytes);
    assert_int_equal(world_read(&w, 0, 0, 128, seen, NULL), OK);
    assert_int_equal(seen[77].version, V(1, n - 1));
    write_ok(&w, 500, 1, V(1, n)); /* a first write needs no journal */
    assert_int_equal(world_sync(&w), OK);
    world_restart(&w, true);
    assert_int_equal(world_read(&w, 0, 0, 128, seen, NULL), OK);
    assert_int_equal(seen[77].version, V(1, n - 1));
    /* A write that waits for room goes on when a commit makes room. */
    c = world_write_start(&w, 0, 0, 128, V(1, 2000), 8192, false);
    env_virtual_run_posted(&w.v);
    assert_false(c->done);
    assert_int_equal(world_durable(&w, V(1, n)), OK);
    env_virtual_advance_ms(&w.v, 3000);
    assert_true(c->done);
    assert_int_equal(call_finish(c), OK);
    expect(&w, 3, SEEN_DATA, V(1, 2000));
    for (unsigned i = 0; i < 100; i++) {
        write_ok(&w, 0, 128, V(1, 3000 + i));
        assert_int_equal(world_durable(&w, V(1, 3000 + i)), OK);
        world_apply(&w);
    }
    expect(&w, 3, SEEN_DATA, V(1, 3099));
    world_free(&w);
}

/* A record that is never committed does not hold up the others: it is copied forward. */
static void test_a_stuck_record_is_copied_forward(void **state)
{
    struct world w;

    (void)state;
    small_init(&w, 1);
    write_ok(&w, 0, 128, V(1, 1));
    assert_int_equal(world_fence(&w, 0x7000), OK);
    w.role = RPC_ROLE_NODE;
    write_ok(&w, 5, 1, V(9, 1)); /* a later epoch */
    assert_int_equal(world_mark(&w, 0, 300, 500, V(9, 2)), OK);
    assert_int_equal(world_sync(&w), OK);
    for (unsigned i = 0; i < 200; i++) {
        write_ok(&w, 10, 100, V(10, i));
        assert_int_equal(world_durable(&w, V(10, i)), OK);
        world_apply(&w);
    }
    assert_int_equal(in_place(&w, 5), V(1, 1));
    expect(&w, 5, SEEN_DATA, V(9, 1));
    expect(&w, 400, SEEN_HOLE, V(9, 2));
    world_restart(&w, true);
    expect(&w, 5, SEEN_DATA, V(9, 1));
    expect(&w, 400, SEEN_HOLE, V(9, 2));
    expect_at_most(&w, 5, V(8, 1), SEEN_DATA, V(1, 1));
    w.role = RPC_ROLE_CLIENT;
    assert_int_equal(world_write(&w, 0, 900, 1, V(0x7000, 1), 8192, false, NULL), STALE);
    world_free(&w);
}

/* A frame of block 0 stays in the log behind a stuck one, though a newer version was
 * applied. The file cannot be read at the start, so the frame is not known to be older:
 * its commit must not apply it. */
static void test_old_frame_of_an_unreadable_file_replaces_nothing_newer(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.config.journal_bytes = 64 << 20;
    world_restart(&w, false);
    write_ok(&w, 0, 128, V(1, 1));
    write_ok(&w, 130, 1, V(1, 1));
    write_ok(&w, 130, 1, V(9, 1)); /* stuck in the first segment */
    write_ok(&w, 0, 1, V(1, 2));
    for (unsigned i = 0; i < 40; i++)
        write_ok(&w, i == 24 ? 0 : 1, 127, V(1, 3 + i));
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(world_durable(&w, V(1, 1000)), OK);
    world_apply(&w);
    assert_int_equal(in_place(&w, 0), V(1, 27));
    w.disk.fail_path = "objects/";
    w.disk.fail_op = DISK_OPEN;
    w.disk.fail_rc = -EIO;
    w.disk.fail_at = 1;
    world_restart(&w, false);
    assert_int_equal(w.disk.fail_at, 0);
    expect(&w, 0, SEEN_DATA, V(1, 27));
    expect(&w, 130, SEEN_DATA, V(9, 1));
    assert_int_equal(world_write(&w, 0, 0, 1, V(1, 26), 8192, false, NULL), STALE);
    assert_int_equal(world_durable(&w, V(1, 1000)), OK);
    world_apply(&w);
    expect(&w, 0, SEEN_DATA, V(1, 27));
    assert_int_equal(in_place(&w, 0), V(1, 27));
    world_free(&w);
}

/* I12: an overwrite needs no space. */
static void test_overwrites_go_on_when_the_disk_is_full(void **state)
{
    struct world w;

    (void)state;
    small_init(&w, 1);
    write_ok(&w, 0, 100, V(1, 1));
    w.disk.total = UINT64_C(1) << 30;
    w.disk.free_reported = 0;
    w.disk.pages_max = w.disk.n_pages;
    env_virtual_advance_ms(&w.v, 1000);
    assert_int_equal(world_write(&w, 0, 500, 1, V(1, 2), 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    for (unsigned i = 0; i < 60; i++) {
        write_ok(&w, 0, 100, V(1, 10 + i));
        assert_int_equal(world_sync(&w), OK);
        assert_int_equal(world_durable(&w, V(1, 10 + i)), OK);
        world_apply(&w);
    }
    expect(&w, 50, SEEN_DATA, V(1, 69));
    world_free(&w);
}

static void test_remove_takes_what_is_pending(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    write_ok(&w, 0, 4, V(1, 2));
    assert_int_equal(world_remove(&w), OK);
    assert_int_equal(world_health(&w).pending_records, 0);
    world_restart(&w, false);
    assert_int_equal(world_health(&w).pending_records, 0);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NO_FILE);
    world_free(&w);
}

static void on_started(void *arg, int rc)
{
    assert_int_equal(rc, 0);
    ++*(unsigned *)arg;
}

/* Opens a daemon of n loops on the disk of w: all take over, then all serve. */
static void loops_open(struct world *w, struct storage **loops, unsigned n)
{
    unsigned n_started = 0;

    for (unsigned i = 0; i < n; i++) {
        w->config.n_loops = n;
        w->config.loop = i;
        assert_int_equal(storage_open(&w->config, &loops[i]), 0);
        storage_start(loops[i], on_started, &n_started);
        env_virtual_run_posted(&w->v);
    }
    assert_int_equal(n_started, n);
    for (unsigned i = 0; i < n; i++)
        storage_serve(loops[i]);
    env_virtual_run_posted(&w->v);
}

/* Each loop takes over the files it owns now, whichever loop wrote their frames. */
static void test_the_number_of_loops_changes(void **state)
{
    static const unsigned counts[] = { 3, 2, 5, 1 };
    struct storage *loops[5];
    struct world w;

    (void)state;
    world_init(&w, 1);
    for (w.id.ino = 1; w.id.ino <= 6; w.id.ino++) {
        write_ok(&w, 0, 4, V(1, 1));
        write_ok(&w, 1, 2, V(1, 2));
        assert_int_equal(world_mark(&w, 0, 3, 0, V(1, 3)), OK);
        assert_int_equal(world_sync(&w), OK);
        assert_int_equal(world_fence(&w, 1), OK);
    }
    storage_close(w.storage);
    for (unsigned i = 0; i < 4; i++) {
        loops_open(&w, loops, counts[i]);
        for (w.id.ino = 1; w.id.ino <= 6; w.id.ino++) {
            w.storage = loops[file_id_hash(&w.id) % counts[i]];
            expect(&w, 1, SEEN_DATA, V(1, 2));
            expect(&w, 3, SEEN_HOLE, V(1, 3));
            expect_at_most(&w, 1, V(1, 1), SEEN_DATA, V(1, 1));
            assert_int_equal(world_write(&w, 0, 9, 1, V(1, 9), 8192, false, NULL), STALE);
        }
        for (unsigned l = 0; counts[i] > 1 && l < counts[i]; l++)
            storage_close(loops[l]);
        if (counts[i] > 1)
            memdisk_power_cut(&w.disk);
    }
    w.storage = loops[0];
    assert_int_equal(world_health(&w).pending_records, 6 * 3);
    world_free(&w);
}

/* Frames that a loop dropped of a file it took over do not come back from the log of the
 * former owner. */
static void test_drops_after_the_number_of_loops_changed(void **state)
{
    struct storage *loops[5];
    struct world w;
    unsigned n_dropped = 0;

    (void)state;
    world_init(&w, 1);
    storage_close(w.storage);
    for (unsigned i = 0; i < 3; i++) {
        unsigned n = i == 0 ? 2 : 3;

        loops_open(&w, loops, n);
        for (w.id.ino = 1; w.id.ino <= 24; w.id.ino++) {
            unsigned hash = file_id_hash(&w.id);
            bool is_moved = hash % 2 == 1 && hash % 3 == 0;

            w.storage = loops[hash % n];
            if (i == 0) {
                write_ok(&w, 0, 1, V(1, 1));
                write_ok(&w, 0, 1, V(1, 2));
                assert_int_equal(world_sync(&w), OK);
            } else if (i == 1 && is_moved) {
                assert_int_equal(world_fence(&w, 1), OK);
                assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 1), OK);
                n_dropped++;
            }
            expect(&w, 0, SEEN_DATA, i > 0 && is_moved ? V(1, 1) : V(1, 2));
        }
        for (unsigned l = 0; l < n; l++)
            storage_close(loops[l]);
    }
    assert_true(n_dropped > 0);
    w.storage = NULL;
    world_free(&w);
}

static void test_uncommitted_files_are_listed_on_request(void **state)
{
    struct storage_uncommitted u;
    struct world w;
    uint64_t cursor = 0;

    (void)state;
    world_init(&w, 1);
    for (w.id.ino = 1; w.id.ino <= 3; w.id.ino++) {
        write_ok(&w, 0, 20, V(1, 1));
        write_ok(&w, 4, 3, V(1, 2));
        write_ok(&w, 10, 1, V(2, 2));
    }
    w.id.ino = 2;
    assert_int_equal(world_commit(&w, UINT64_MAX), OK);
    assert_false(storage_next_uncommitted(w.storage, 1000000000, &cursor, &u));
    env_virtual_advance_ms(&w.v, 1000);
    cursor = 0;
    assert_true(storage_next_uncommitted(w.storage, 1000000000, &cursor, &u));
    assert_int_equal(u.file.id.ino, 1);
    assert_int_equal(u.first, 4);
    assert_int_equal(u.end, 11);
    assert_int_equal(u.newest, V(2, 2));
    assert_true(storage_next_uncommitted(w.storage, 1000000000, &cursor, &u));
    assert_int_equal(u.file.id.ino, 3);
    assert_int_equal(u.file.n_storages, 4);
    assert_false(storage_next_uncommitted(w.storage, 1000000000, &cursor, &u));
    world_free(&w);
}

/* A partial file, which replaces a lost storage's, reads as unknown until it is complete
 * again. */
static void test_a_partial_file_becomes_whole(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    atomic_store(&w.identity.rebuild, true);
    write_ok(&w, 3, 2, V(1, 1));
    expect(&w, 3, SEEN_DATA, V(1, 1));
    expect(&w, 5, SEEN_DAMAGED, 0);
    assert_int_equal(world_health(&w).pending_records, 0); /* a first write */
    assert_int_equal(world_fence(&w, 1), OK);
    assert_int_equal(world_drop(&w, 4, 1, 0, 1), OK);
    expect(&w, 4, SEEN_DAMAGED, 0); /* unknown again, not a hole */
    /* names another projection, which is not here */
    assert_int_equal(world_whole(&w, 1 << 1), OK);
    expect(&w, 5, SEEN_DAMAGED, 0);
    assert_int_equal(world_whole(&w, 1), OK);
    for (unsigned i = 0; i < 3; i++) {
        expect(&w, 3, SEEN_DATA, V(1, 1));
        expect(&w, 4, SEEN_HOLE, 0);
        expect(&w, 5, SEEN_HOLE, 0);
        world_restart(&w, i > 0);
    }
    world_free(&w);
}

/* A node removes what a spare held for another storage, and damage where nothing was ever
 * written. */
static void test_a_node_cleans_up(void **state)
{
    struct world w;
    struct geometry geo;
    uint8_t byte = 0x5a;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 10, V(1, 1));
    write_ok(&w, 3, 2, V(1, 5));
    assert_int_equal(world_write(&w, 1, 0, 10, V(1, 1), 8192, false, NULL), OK);
    geometry_init(&geo, world_codec(&w), 0);
    memdisk_poke(&w.disk, world_file(&w, 0), geometry_head_at(&geo, 7) + 9, &byte, 1);
    memdisk_poke(&w.disk, world_file(&w, 0), geometry_head_at(&geo, 20) + 9, &byte, 1);
    expect(&w, 7, SEEN_DAMAGED, 0);
    assert_int_equal(world_clean(&w, 20, 1, 1, 1), OK);
    assert_int_equal(world_clean(&w, 0, 7, V(1, 4), 1), OK);
    for (unsigned i = 0; i < 2; i++) {
        struct seen seen;

        expect(&w, 20, SEEN_HOLE, 0);
        expect(&w, 2, SEEN_HOLE, 0);
        expect(&w, 3, SEEN_DATA, V(1, 5)); /* newer */
        expect(&w, 7, SEEN_DAMAGED, 0);    /* outside the requested range */
        expect(&w, 8, SEEN_DATA, V(1, 1));
        assert_int_equal(world_read(&w, 1, 2, 1, &seen, NULL), OK);
        assert_int_equal(seen.kind, SEEN_DATA);
        world_restart(&w, i == 0);
    }
    assert_int_equal(world_clean(&w, 0, 7, V(1, 5), 1), OK);
    expect(&w, 3, SEEN_HOLE, 0);
    assert_int_equal(world_health(&w).pending_records, 0);
    world_free(&w);
}

/* Goal: what a spare drops is space again, and nothing beside it goes, whatever the
 * power takes. */
static void test_dropped_copies_of_a_spare_free_their_space(void **state)
{
    (void)state;
    for (unsigned cut = 0; cut < 12; cut++) {
        struct world w;
        uint64_t before, after;

        world_init(&w, 1 + cut);
        write_ok(&w, 0, 100, V(1, 1));
        write_ok(&w, 100, 100, V(1, 1));
        assert_int_equal(world_sync(&w), OK);
        before = memdisk_allocated(world_file(&w, 0));
        w.disk.cut_at = cut == 0 ? 0 : w.disk.n_requests + cut;
        (void)world_clean(&w, 20, 120, V(1, 1), 1);
        world_restart(&w, true);
        assert_int_equal(world_clean(&w, 20, 120, V(1, 1), 1), OK);
        after = memdisk_allocated(world_file(&w, 0));
        assert_true(cut > 0 || after + 110 * 4096 <= before);
        for (unsigned block = 0; block < 200; block++) {
            bool cleaned = block >= 20 && block < 140;

            expect(&w, block, cleaned ? SEEN_HOLE : SEEN_DATA, cleaned ? 0 : V(1, 1));
        }
        world_free(&w);
    }
}

/* One file's sync does not wait for what others have in the journal. */
static void test_a_sync_is_only_for_who_has_something_to_sync(void **state)
{
    struct world w;
    unsigned n;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    write_ok(&w, 0, 2, V(1, 2));
    w.id.ino++;
    write_ok(&w, 0, 4, V(1, 1));
    write_ok(&w, 0, 2, V(1, 2));
    n = w.disk.n_of[DISK_SYNC];
    assert_int_equal(world_sync(&w), OK);
    /* one of the file, one of the journal */
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 2);
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 2);
    w.id.ino--;
    assert_int_equal(world_sync(&w), OK);
    /* the last journal sync was for all */
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 3);
    write_ok(&w, 0, 1, V(1, 3));
    w.id.ino++;
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 3);
    w.id.ino--;
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 4);
    /* The applier needs no sync either: what it has not synced is in the journal. */
    assert_int_equal(world_commit(&w, V(1, 3)), OK);
    w.disk.hold_syncs = true;
    world_apply(&w);
    n = w.disk.n_of[DISK_SYNC];
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(w.disk.n_of[DISK_SYNC], n);
    w.disk.hold_syncs = false;
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    assert_int_equal(world_health(&w).pending_records, 2); /* records of the other file */
    world_free(&w);
}

static void on_stopped(void *arg)
{
    *(bool *)arg = true;
}

static void test_a_clean_stop_applies_what_is_committed(void **state)
{
    struct world w;
    bool stopped = false;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    write_ok(&w, 0, 2, V(1, 2));
    write_ok(&w, 2, 2, V(1, 3));
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    storage_stop(w.storage, on_stopped, &stopped);
    env_virtual_run_posted(&w.v);
    assert_true(stopped);
    assert_false(env_virtual_run_next_timer(&w.v)); /* no timer is left */
    assert_int_equal(in_place(&w, 0), V(1, 2));
    assert_int_equal(in_place(&w, 2), V(1, 1));
    world_restart(&w, true);
    assert_int_equal(world_health(&w).uncommitted, 2);
    expect(&w, 2, SEEN_DATA, V(1, 3));
    world_free(&w);
}

/* A killed process leaves its frames in the page cache: a sync by the next process covers
 * them, too. */
static void test_a_sync_after_a_kill_covers_the_journal(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        struct world w;

        world_init(&w, seed);
        write_ok(&w, 0, 4, V(1, 1));
        assert_int_equal(world_sync(&w), OK);
        write_ok(&w, 0, 4, V(1, 2));
        world_restart(&w, false);
        assert_int_equal(world_sync(&w), OK);
        world_restart(&w, true);
        for (unsigned i = 0; i < 4; i++)
            expect(&w, i, SEEN_DATA, V(1, 2));
        world_free(&w);
    }
}

/* A record that is synced in the journal needs its projection file: the sync makes both
 * stable. */
static void test_a_synced_overwrite_has_its_file(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        struct world w;

        world_init(&w, seed);
        write_ok(&w, 0, 2, V(1, 1)); /* creates the file, not synced */
        assert_int_equal(world_write(&w, 0, 0, 2, V(1, 2), 8192, true, NULL), OK);
        world_restart(&w, true);
        expect(&w, 0, SEEN_DATA, V(1, 2));
        expect(&w, 1, SEEN_DATA, V(1, 2));
        world_free(&w);
    }
}

/* An overwrite of a file that was never synced goes with that file: readers would not see
 * it, so no client would ever commit or drop it. */
static void test_an_overwrite_goes_with_a_file_that_was_never_synced(void **state)
{
    unsigned n_lost = 0;

    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(60); seed += UNIT_STEP) {
        struct storage_uncommitted u;
        uint64_t cursor = 0;
        struct world w;
        struct seen seen;

        world_init(&w, seed);
        assert_int_equal(world_write(&w, 1, 0, 2, V(1, 1), 8192, true, NULL), OK);
        write_ok(&w, 0, 2, V(1, 1)); /* creates another file */
        write_ok(&w, 0, 2, V(1, 2));
        w.id.ino++; /* the journal is shared by all files */
        write_ok(&w, 0, 1, V(1, 1));
        assert_int_equal(world_write(&w, 0, 0, 1, V(1, 2), 8192, true, NULL), OK);
        assert_int_equal(world_commit(&w, UINT64_MAX), OK);
        w.id.ino--;
        world_restart(&w, true);
        env_virtual_advance_ms(&w.v, 1000);
        if (world_read(&w, 0, 0, 1, &seen, NULL) == ROZO__STATUS__NO_FILE) {
            n_lost++;
            while (storage_next_uncommitted(w.storage, 1000000000, &cursor, &u))
                assert_int_not_equal(u.file.id.ino, w.id.ino);
        }
        world_free(&w);
    }
    assert_true(n_lost > 0);
}

/* Marks that are never committed are bounded, small ones too: more get BUSY, and ST_NEXT
 * can list all. */
static void test_many_small_marks_push_back(void **state)
{
    Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;
    struct test_call *c;
    struct test_ref ref;
    struct world w;
    unsigned n = 0;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 1, V(1, 1));
    for (; n < PENDING_MARKS_MAX; n++)
        assert_int_equal(world_mark(&w, 0, 2 * n, 1, V(1, 2 + n)), OK);
    c = world_mark_start(&w, 0, 2 * n, 1, V(1, 2 + n), false);
    env_virtual_advance_ms(&w.v, 10000);
    assert_true(c->done);
    assert_int_equal(call_finish(c), ROZO__STATUS__BUSY);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.heads = true;
    assert_int_equal(call_run(&w, ROZO__OP__ST_NEXT, &req.base, NULL, 0, &c), OK);
    call_free(c);
    assert_int_equal(world_durable(&w, V(1, 2 + n)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    assert_int_equal(world_mark(&w, 0, 2 * n, 1, V(1, 3 + n)), OK);
    world_free(&w);
}

/* A fence and a drop that are repeated after a failed journal sync are written again. */
static void test_fences_and_drops_after_a_failed_sync(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        struct world w;

        world_init(&w, seed);
        write_ok(&w, 0, 1, V(1, 1));
        write_ok(&w, 0, 1, V(2, 1));
        assert_int_equal(world_sync(&w), OK);
        w.disk.fail_op = DISK_SYNC;
        w.disk.fail_rc = -EIO;
        w.disk.fail_at = 1;
        assert_int_equal(world_fence(&w, 2), ROZO__STATUS__IO_ERROR);
        w.disk.fail_at = 0;
        assert_int_equal(world_fence(&w, 2), OK);
        w.disk.fail_at = 1;
        assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 2), ROZO__STATUS__IO_ERROR);
        w.disk.fail_at = 0;
        assert_int_equal(world_drop(&w, 0, 0, V(1, 1), 2), OK);
        world_restart(&w, true);
        expect(&w, 0, SEEN_DATA, V(1, 1));
        assert_int_equal(world_write(&w, 0, 0, 1, V(2, 9), 8192, false, NULL), STALE);
        world_free(&w);
    }
}

/* The sync of a file fails while the journal sync for the same request is still in
 * progress. */
static void test_a_file_that_fails_waits_for_the_journal(void **state)
{
    (void)state;
    for (unsigned is_write = 0; is_write < 2; is_write++) {
        struct disk_req *journal;
        struct test_call *call;
        struct world w;

        world_init(&w, 1);
        write_ok(&w, 0, 1, V(1, 1));
        w.disk.hold_syncs = true;
        w.disk.fail_op = DISK_SYNC;
        w.disk.fail_rc = -EIO;
        w.disk.fail_at = 2;
        if (!is_write)
            write_ok(&w, 0, 1, V(1, 2));
        /* Block 0 goes to the journal, block 1 goes in place. */
        call = is_write ? world_write_start(&w, 0, 0, 2, V(1, 2), 8192, true)
                        : world_sync_start(&w);
        env_virtual_run_posted(&w.v);
        assert_int_equal(w.disk.n_held, 2);
        journal = w.disk.held[0];
        w.disk.held[0] = w.disk.held[1];
        w.disk.n_held = 1;
        memdisk_release(&w.disk);
        env_virtual_run_posted(&w.v);
        assert_false(call->done);
        w.disk.held[w.disk.n_held++] = journal;
        w.disk.hold_syncs = false;
        memdisk_release(&w.disk);
        assert_int_equal(call_finish(call), ROZO__STATUS__IO_ERROR);
        world_free(&w);
    }
}

/* A mark for a file that does not exist here yet may have named another code. */
static void test_a_mark_before_the_file_in_another_code(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_mark(&w, 255, 0, 0, V(1, 1)), OK);
    w.layout = 2;
    assert_int_equal(world_write(&w, 11, 0, 1, V(1, 2), 8192, false, NULL), OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_read(&w, 11, 0, 1, &seen, NULL), OK);
        assert_int_equal(seen.version, V(1, 2));
        world_restart(&w, false);
    }
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    assert_int_equal(world_read(&w, 11, 0, 1, &seen, NULL), OK);
    assert_int_equal(seen.version, V(1, 2));
    world_free(&w);
}

/* A record is dropped while it is being copied forward: the copy does not bring it
 * back. */
/* Returns the first place in the journal that has these bytes. */
static uint64_t journal_find(struct world *w, const void *bytes, size_t len,
                             struct disk_file **out)
{
    static uint8_t page[MEM_PAGE * 2];

    for (unsigned i = 0; i < w->disk.n_files; i++) {
        struct disk_file *f = w->disk.files[i];

        if (!f->linked || strncmp(f->path, "journal/", 8) != 0)
            continue;
        for (uint64_t from = 0; from < f->size; from += MEM_PAGE) {
            const uint8_t *hit;

            memdisk_peek(f, from, page, sizeof(page));
            hit = memmem(page, sizeof(page), bytes, len);
            if (hit == NULL)
                continue;
            *out = f;
            return from + (uint64_t)(hit - page);
        }
    }
    fail_msg("not in the journal");
    return 0;
}

/* Flips a bit of the frame: `back` bytes before these bytes, then `at` bytes on. */
static void rot_before(struct world *w, const void *bytes, size_t len, int back,
                       unsigned at)
{
    struct disk_file *f;
    uint64_t where = journal_find(w, bytes, len, &f) - (uint64_t)back + at;
    uint8_t byte;

    memdisk_peek(f, where, &byte, 1);
    byte ^= 4;
    memdisk_poke(&w->disk, f, where, &byte, 1);
}

static void rot(struct world *w, const void *bytes, size_t len, unsigned at)
{
    rot_before(w, bytes, len, 0, at);
}

/* A committed version may be the newest nowhere else: when it rots, the replaced one does
 * not come back. */
static void test_rot_below_a_commit_is_damage_in_place(void **state)
{
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, 1));
    write_ok(&w, 2, 3, V(1, 2));
    record_fill(&w, head, body, 0, 3, V(1, 2), 8192);
    rot(&w, body, 512, 100);
    expect(&w, 3, SEEN_DAMAGED, 0);
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    expect(&w, 2, SEEN_DATA, V(1, 2));
    expect(&w, 3, SEEN_DAMAGED, 0);
    expect(&w, 4, SEEN_DATA, V(1, 2));
    world_restart(&w, false);
    expect(&w, 3, SEEN_DAMAGED, 0);
    w.role = RPC_ROLE_NODE; /* a healer */
    write_ok(&w, 3, 1, V(1, 2));
    expect(&w, 3, SEEN_DATA, V(1, 2));
    world_free(&w);
}

/* Overwrites blocks 2 to 4, which then wait in the journal, and makes the page of block 3
 * there unreadable. Returns the page's offset in that file, *f. */
static uint64_t unreadable_make(struct world *w, struct disk_file **f)
{
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
    uint64_t where;

    write_ok(w, 0, 8, V(1, 1));
    write_ok(w, 2, 3, V(1, 2));
    assert_int_equal(world_sync(w), OK);
    record_fill(w, head, body, 0, 3, V(1, 2), 8192);
    where = journal_find(w, body, 512, f);
    memdisk_spoil(*f, where);
    return where;
}

/* How the state of an unreadable journal record ends. */
enum unread_end { PAGE_COMES_BACK, SOMEBODY_HEALS, ENDS_MAX };

/* A page that cannot be read may be readable later: a committed record in it is not
 * abandoned for that. */
static void unreadable_record_is_applied(enum unread_end end)
{
    struct disk_file *f;
    struct world w;
    uint64_t where;
    uint8_t byte;

    world_init(&w, 1);
    where = unreadable_make(&w, &f);
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    world_apply(&w);
    assert_true(world_health(&w).pending_records > 0);
    assert_int_equal(in_place(&w, 3), V(1, 1));
    if (end == PAGE_COMES_BACK) {
        memdisk_peek(f, where, &byte, 1);
        memdisk_poke(&w.disk, f, where, &byte, 1);
        env_virtual_advance_ms(&w.v, (BAD_PAGE_KNOWN_S + 5) * 1000);
    } else {
        w.role = RPC_ROLE_NODE;
        write_ok(&w, 2, 3, V(1, 2));
        world_apply(&w);
        world_apply(&w);
    }
    assert_int_equal(world_health(&w).pending_records, 0);
    for (unsigned b = 2; b < 5; b++) {
        expect(&w, b, SEEN_DATA, V(1, 2));
        assert_int_equal(in_place(&w, b), V(1, 2));
    }
    world_free(&w);
}

/* Commits a newer mark, which removes the unreadable record while its page is tried
 * again: the block is a hole then, not damaged. */
static void unreadable_record_is_removed(unsigned n_reads)
{
    struct disk_file *f;
    struct world w;

    world_init(&w, 1);
    unreadable_make(&w, &f);
    assert_int_equal(world_mark(&w, 0, 3, 1, V(1, 3)), OK);
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    w.disk.hold_reads = true;
    for (unsigned i = 0; i < n_reads; i++) {
        world_apply(&w);
        memdisk_release(&w.disk);
    }
    world_apply(&w);
    assert_int_equal(world_durable(&w, V(1, 3)), OK);
    w.disk.hold_reads = false;
    memdisk_release(&w.disk);
    env_virtual_advance_ms(&w.v, (BAD_PAGE_KNOWN_S + 5) * 1000);
    expect(&w, 3, SEEN_HOLE, V(1, 3));
    world_free(&w);
}

static void test_unreadable_record_is_removed_while_its_page_is_tried(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 12; n++)
        unreadable_record_is_removed(n);
}

/* A stop does not wait for an unreadable record. The next start finds it damaged until it
 * is healed. */
static void test_stop_does_not_wait_for_an_unreadable_record(void **state)
{
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
    struct disk_file *f;
    struct world w;
    uint64_t where;
    bool stopped = false;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, 1));
    write_ok(&w, 3, 1, V(1, 2));
    assert_int_equal(world_sync(&w), OK);
    record_fill(&w, head, body, 0, 3, V(1, 2), 8192);
    where = journal_find(&w, body, 512, &f);
    memdisk_spoil(f, where);
    assert_int_equal(world_durable(&w, V(1, 2)), OK);
    storage_stop(w.storage, on_stopped, &stopped);
    env_virtual_advance_ms(&w.v, 30000);
    assert_true(stopped);
    world_restart(&w, false);
    expect(&w, 3, SEEN_DAMAGED, 0);
    w.role = RPC_ROLE_NODE;
    write_ok(&w, 3, 1, V(1, 2));
    expect(&w, 3, SEEN_DATA, V(1, 2));
    world_free(&w);
}

static void test_unreadable_record_stays_until_it_can_be_applied(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ENDS_MAX; i++)
        unreadable_record_is_applied((enum unread_end)i);
}

/* Zeroes a head, as no head ever is while the file says that it has one. */
static void rot_in_place(struct world *w, uint64_t block)
{
    uint8_t head[RECORD_HEADER_BYTES] = { 0 };
    struct geometry geo;

    geometry_init(&geo, world_codec(w), 0);
    memdisk_poke(&w->disk, world_file(w, 0), geometry_head_at(&geo, block), head,
                 sizeof(head));
}

/* A mark below a rotten record does not show through: neither while it waits nor once it
 * is applied. */
static void test_rot_above_a_mark_is_damage(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
        struct world w;

        world_init(&w, 1);
        write_ok(&w, 0, 8, V(1, 1));
        assert_int_equal(world_mark(&w, 0, 2, 3, V(1, 2)), OK);
        write_ok(&w, 3, 1, V(2, 1));
        record_fill(&w, head, body, 0, 3, V(2, 1), 8192);
        if (i == 0)
            rot(&w, body, 512, 100);
        assert_int_equal(world_durable(&w, V(2, 1)), OK);
        world_apply(&w);
        if (i == 1)
            rot_in_place(&w, 3);
        assert_int_equal(world_health(&w).pending_records, 1); /* only the mark */
        for (unsigned n = 0; n < 2; n++) {
            expect(&w, 2, SEEN_HOLE, V(1, 2));
            expect(&w, 3, SEEN_DAMAGED, 0);
            if (i == 0) /* otherwise its frame is found and heals the block */
                world_restart(&w, false);
        }
        assert_int_equal(world_durable(&w, V(1, 2)), OK);
        world_apply(&w);
        assert_int_equal(in_place(&w, 2), V(1, 2));
        expect(&w, 3, SEEN_DAMAGED, 0);
        w.role = RPC_ROLE_NODE;
        write_ok(&w, 3, 1, V(2, 1));
        expect(&w, 3, SEEN_DATA, V(2, 1));
        world_free(&w);
    }
}

/* A flipped bit anywhere in the frame of an overwrite damages its blocks alone after a
 * restart. The version below stays readable with at_most, and healing makes the block
 * complete. */
static void test_rot_of_a_frame_is_damage_of_its_blocks(void **state)
{
    static const struct {
        /* distance before the first head: 216 bytes of entry, then the header of the
         * frame */
        int back;
        unsigned at;
    } cases[] = { { 0, 1 },    { 0, 20 },       { 216, 3 },
                  { 216, 26 }, { 216 + 56, 0 }, { 216 + 56, 13 } };

    (void)state;
    for (unsigned i = 0; i < 2 + sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
        struct world w;

        world_init(&w, 1);
        write_ok(&w, 0, 8, V(1, 1));
        write_ok(&w, 2, 2, V(1, 2));
        assert_int_equal(world_sync(&w), OK);
        record_fill(&w, head, body, 0, 2, V(1, 2), 8192);
        if (i < 2) {
            rot(&w, body, 512, 300 * i);
            /* this frame says that the one before was synced */
            write_ok(&w, 5, 1, V(1, 3));
        } else {
            rot_before(&w, head, RECORD_HEADER_BYTES, cases[i - 2].back, cases[i - 2].at);
            env_virtual_advance_ms(&w.v, 1000); /* the log records it by itself */
        }
        /* first finds damage, then the note about it */
        for (unsigned n = 0; n < 3; n++) {
            world_restart(&w, false);
            expect(&w, 1, SEEN_DATA, V(1, 1));
            expect(&w, 2, SEEN_DAMAGED, 0);
            expect(&w, 3, SEEN_DAMAGED, 0);
            expect(&w, 4, SEEN_DATA, V(1, 1));
            expect_at_most(&w, 2, V(1, 1), SEEN_DATA, V(1, 1));
        }
        assert_int_equal(world_write(&w, 0, 2, 1, V(1, 1), 8192, false, NULL), STALE);
        w.role = RPC_ROLE_NODE;
        write_ok(&w, 2, 1, V(1, 2));
        expect(&w, 2, SEEN_DATA, V(1, 2));
        assert_int_equal(world_commit(&w, V(1, 3)), OK);
        world_apply(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        expect(&w, 2, SEEN_DATA, V(1, 2));
        expect(&w, 3, SEEN_DAMAGED, 0);
        write_ok(&w, 3, 1, V(1, 2));
        assert_int_equal(world_sync(&w), OK);
        world_restart(&w, true);
        expect(&w, 2, SEEN_DATA, V(1, 2));
        expect(&w, 3, SEEN_DATA, V(1, 2));
        world_free(&w);
    }
}

/* Zeroes a page of the journal, with all small frames in it. */
static void lose_page(struct world *w, uint64_t at)
{
    static const uint8_t zeros[MEM_PAGE];

    for (unsigned i = 0; i < w->disk.n_files; i++) {
        struct disk_file *f = w->disk.files[i];
        uint8_t page[MEM_PAGE];

        memdisk_peek(f, at, page, sizeof(page));
        if (strncmp(f->path, "journal/", 8) != 0 ||
            memcmp(page, zeros, sizeof(zeros)) == 0)
            continue;
        memdisk_poke(&w->disk, f, at, zeros, sizeof(zeros));
        return;
    }
    fail_msg("not in the journal");
}

static bool is_in_doubt(struct world *w)
{
    struct seen seen;

    assert_int_equal(world_read(w, 0, 100, 1, &seen, NULL), OK);
    return w->doubt;
}

/* Frames of unknown blocks were lost: any block may have had something newer until a
 * scrub is complete. */
static void test_lost_frames_are_a_doubt_of_all(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 40, V(1, 1));
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(world_write(&w, 0, i, 1, V(1, 2 + i), 64, false, NULL), OK);
    assert_int_equal(world_sync(&w), OK);
    write_ok(&w, 35, 1, V(1, 40)); /* this frame says that the ones before are stable */
    assert_int_equal(world_sync(&w), OK);
    assert_false(is_in_doubt(&w));
    lose_page(&w, 2 * MEM_PAGE);
    for (unsigned i = 0; i < 4; i++) { /* first finds the loss, then the note about it */
        world_restart(&w, i == 3);
        assert_true(is_in_doubt(&w));
        if (i < 2)
            assert_int_equal(world_sync(&w), OK);
    }
    w.config.n_loops = 2; /* every loop has the doubt */
    w.config.loop = 1 - file_id_hash(&w.id) % 2;
    world_restart(&w, false);
    w.config.loop = file_id_hash(&w.id) % 2;
    world_restart(&w, false);
    assert_true(is_in_doubt(&w));
    w.config.n_loops = 1;
    w.config.loop = 0;
    world_restart(&w, false);
    assert_true(is_in_doubt(&w));
    /* The doubt stays in an empty journal, however often it is copied forward. */
    assert_int_equal(world_commit(&w, V(1, 40)), OK);
    for (unsigned i = 0; i < 60; i++) {
        assert_int_equal(world_write(&w, 0, 0, 40, V(2, i), 8192, false, NULL), OK);
        assert_int_equal(world_commit(&w, V(2, i)), OK);
        world_apply(&w);
    }
    world_restart(&w, false);
    assert_true(is_in_doubt(&w));
    w.identity.losses_healed = w.identity.losses;
    assert_false(is_in_doubt(&w));
    for (unsigned i = 0; i < 60; i++) {
        assert_int_equal(world_write(&w, 0, 0, 40, V(3, i), 8192, false, NULL), OK);
        assert_int_equal(world_commit(&w, V(3, i)), OK);
        world_apply(&w);
    }
    world_restart(&w, false);
    assert_false(is_in_doubt(&w));
    world_free(&w);
}

/* A mark is complete in its head, and the copy of it is as good. Without crcs another
 * range would become holes. */
static void test_rot_of_a_mark_changes_nothing(void **state)
{
    (void)state;
    for (unsigned mutant = 0; mutant < 2; mutant++) {
        struct world w;

        world_init(&w, 1);
        write_ok(&w, 0, 8, V(1, 1));
        assert_int_equal(world_mark(&w, 0, 2, 1, V(1, 2)), OK);
        assert_int_equal(world_sync(&w), OK);
        rot_before(&w, "RzJf", 4, 0, 56 + 32); /* end of the mark: 7 instead of 3 */
        w.config.mutant = mutant == 0 ? 0 : MUTANT_NO_CRC_CHECK;
        for (unsigned n = 0; n < 2; n++) {
            world_restart(&w, false);
            expect(&w, 2, SEEN_HOLE, V(1, 2));
            if (mutant == 0)
                expect(&w, 5, SEEN_DATA, V(1, 1));
            else
                expect(&w, 5, SEEN_HOLE, V(1, 2));
        }
        world_free(&w);
    }
}

/* Frames of the last sync are known as stable, wherever the power is cut, once the log
 * was quiet for a moment: damage to them is not taken for a torn end, even when their
 * whole page is lost. */
static void test_rot_of_what_was_synced_last(void **state)
{
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];

    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        bool stopped = false;
        struct world w;

        world_init(&w, 1 + i / 4);
        write_ok(&w, 0, 8, V(1, 1));
        write_ok(&w, 2, 2, V(1, 2));
        assert_int_equal(world_sync(&w), OK);
        if (i % 4 == 0)
            assert_int_equal(world_write(&w, 0, 5, 1, V(1, 3), 64, false, NULL), OK);
        if (i % 4 == 3) {
            storage_stop(w.storage, on_stopped, &stopped);
            env_virtual_run_posted(&w.v);
            assert_true(stopped);
        } else {
            env_virtual_advance_ms(&w.v, 2 * WAL_QUIET_MS);
        }
        memdisk_power_cut(&w.disk);
        w.config.boot++;
        record_fill(&w, head, body, 0, 3, V(1, 2), 8192);
        if (i % 4 != 2)
            rot(&w, body, 512, 300);
        for (uint64_t at = MEM_PAGE; i % 4 == 2 && at < 4 * MEM_PAGE; at += MEM_PAGE)
            lose_page(&w, at);
        for (unsigned n = 0; n < 2; n++) {
            world_restart(&w, n > 0);
            if (i % 4 == 2) {
                assert_true(is_in_doubt(&w));
                continue;
            }
            assert_false(is_in_doubt(&w));
            expect(&w, 2, SEEN_DAMAGED, 0);
            expect(&w, 3, SEEN_DAMAGED, 0);
            expect(&w, 4, SEEN_DATA, V(1, 1));
        }
        world_free(&w);
    }
}

/* A frame that a power cut tore, and that was never synced, is not damage. */
static void test_a_torn_frame_is_no_damage(void **state)
{
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], body[8192];
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 8, V(1, 1));
    write_ok(&w, 5, 1, V(1, 2));
    assert_int_equal(world_sync(&w), OK);
    write_ok(&w, 2, 2, V(1, 3));
    record_fill(&w, head, body, 0, 3, V(1, 3), 8192);
    rot(&w, body, 512, 300);
    for (unsigned n = 0; n < 3; n++) {
        world_restart(&w, false);
        expect(&w, 2, SEEN_DATA, V(1, 1));
        expect(&w, 3, SEEN_DATA, V(1, 1));
        expect(&w, 5, SEEN_DATA, V(1, 2));
    }
    world_free(&w);
}

/* A file is closed and opened again between two writes of the applier: unsynced data
 * stays in the journal. */
static void test_unsynced_data_of_a_closed_file_stays_in_the_journal(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        Rozo__StStatReq req = ROZO__ST_STAT_REQ__INIT;
        struct test_call *look;
        struct test_ref ref;
        struct seen seen;
        struct world w;

        world_init(&w, 1 + i);
        for (unsigned n = 1; n <= 2; n++) {
            for (unsigned p = 0; p < 2; p++)
                assert_int_equal(world_write(&w, p, 0, 1, V(1, n), 8192, true, NULL), OK);
        }
        assert_int_equal(world_durable(&w, V(1, 2)), OK);
        env_virtual_advance_ms(&w.v, 2 * WAL_QUIET_MS);
        w.disk.hold_writes = true;
        world_apply(&w);
        assert_int_equal(w.disk.n_held, 1); /* the sync of the first file */
        ref_init(&w, &ref);
        req.ref = &ref.ref;
        req.to_storage = US;
        req.look_again = true;
        w.role = RPC_ROLE_NODE;
        look = call_start(&w, ROZO__OP__ST_STAT, &req.base, NULL, 0);
        env_virtual_run_posted(&w.v);
        assert_false(look->done);
        w.disk.fail_op = DISK_OPEN;
        w.disk.fail_rc = -EIO;
        w.disk.fail_at = 1;
        w.disk.hold_writes = false;
        memdisk_release(&w.disk);
        env_virtual_run_posted(&w.v);
        assert_true(look->done);
        assert_int_equal(call_finish(look), ROZO__STATUS__IO_ERROR);
        assert_int_equal(world_health(&w).pending_records, 2);
        world_restart(&w, true);
        for (unsigned p = 0; p < 2; p++) {
            assert_int_equal(world_read(&w, p, 0, 1, &seen, NULL), OK);
            assert_int_equal(seen.kind, SEEN_DATA);
            assert_int_equal(seen.version, V(1, 2));
        }
        assert_int_equal(world_durable(&w, V(1, 2)), OK);
        world_apply(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        world_free(&w);
    }
}

static void test_a_drop_while_its_record_is_copied(void **state)
{
    struct test_call *c;
    struct test_ref ref;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;
    struct world w;
    unsigned i = 0;

    (void)state;
    small_init(&w, 1);
    write_ok(&w, 0, 128, V(1, 1));
    write_ok(&w, 5, 1, V(9, 1));
    assert_int_equal(world_fence(&w, 9), OK);
    while (world_health(&w).journal_bytes * 2 <= world_health(&w).journal_max_bytes) {
        write_ok(&w, 10, 100, V(10, i));
        assert_true(++i < 200);
    }
    assert_int_equal(world_sync(&w), OK);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.first_block = 5;
    req.n_blocks = 1;
    req.keep = V(1, 1);
    req.epoch = 9;
    w.role = RPC_ROLE_NODE;
    w.disk.hold_writes = true;
    c = call_start(&w, ROZO__OP__ST_DROP, &req.base, NULL, 0);
    env_virtual_run_posted(&w.v);
    assert_int_equal(w.disk.n_held, 1); /* the frame of the drop */
    world_durable(&w, V(10, i));
    env_virtual_advance_ms(&w.v, 600); /* the copy is appended after it */
    w.disk.hold_writes = false;
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    assert_true(c->done);
    assert_int_equal(call_finish(c), OK);
    expect(&w, 5, SEEN_DATA, V(1, 1));
    world_restart(&w, false);
    expect(&w, 5, SEEN_DATA, V(1, 1));
    world_free(&w);
}

/* Records that a spare applied and then removed do not come back from frames that are not
 * erased yet. */
static void test_dropped_records_do_not_come_back_from_the_journal(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 2, V(1, 1));
    write_ok(&w, 0, 1, V(1, 2));
    write_ok(&w, 0, 1, V(1, 3));
    assert_int_equal(world_durable(&w, V(1, 3)), OK);
    world_apply(&w);
    assert_int_equal(in_place(&w, 0), V(1, 3));
    assert_int_equal(world_clean(&w, 0, 0, V(1, 3), 1), OK);
    for (unsigned i = 0; i < 3; i++) {
        expect(&w, 0, SEEN_HOLE, 0);
        assert_int_equal(world_health(&w).pending_records, 0);
        world_restart(&w, i == 1);
    }
    world_free(&w);
}

/* A mark for all projections of a storage that has none does not wait: no client would
 * ever commit it. */
static void test_a_mark_of_nothing_does_not_wait(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_mark(&w, 255, 3, 0, V(2, 0)), OK);
    assert_int_equal(world_health(&w).uncommitted, 0);
    assert_int_equal(world_read(&w, 255, 3, 1, &seen, NULL), ROZO__STATUS__NO_FILE);
    world_free(&w);
}

/* A mark that was applied to existing projections arrives again for a projection that is
 * being created. */
static void test_a_mark_that_was_applied_is_none_of_a_new_projection(void **state)
{
    struct test_call *c;
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 1, 0, 8, V(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_mark(&w, 1, 0, 0, V(2, 0)), OK);
    assert_int_equal(world_sync(&w), OK);
    w.disk.hold_syncs = true;
    assert_int_equal(world_durable(&w, V(2, 0)), OK);
    world_apply(&w); /* all but the sync */
    assert_int_not_equal(world_health(&w).pending_records, 0);
    w.role = RPC_ROLE_NODE;
    c = world_mark_start(&w, 0, 128, 128, V(2, 0), false);
    env_virtual_run_posted(&w.v);
    w.disk.hold_syncs = false;
    memdisk_release(&w.disk);
    assert_int_equal(call_finish(c), OK);
    assert_int_equal(world_commit(&w, V(2, 0)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    assert_int_equal(world_read(&w, 0, 130, 1, &seen, NULL), OK);
    assert_int_equal(seen.kind, SEEN_HOLE);
    assert_int_equal(seen.version, V(2, 0));
    world_free(&w);
}

/* A head that rotted but kept its version is replaced by the record that all storages
 * decided on. */
static void test_a_rotten_head_of_the_same_version_is_healed(void **state)
{
    struct geometry geo;
    struct world w;
    uint8_t byte;

    (void)state;
    world_init(&w, 1);
    write_ok(&w, 0, 4, V(1, 1));
    world_settle(&w);
    geometry_init(&geo, world_codec(&w), 0);
    memdisk_peek(world_file(&w, 0), geometry_head_at(&geo, 2), &byte, 1);
    byte ^= 4; /* a byte of the crc */
    memdisk_poke(&w.disk, world_file(&w, 0), geometry_head_at(&geo, 2), &byte, 1);
    expect(&w, 2, SEEN_DAMAGED, 0);
    assert_int_equal(world_write(&w, 0, 2, 1, V(1, 1), 8192, false, NULL), STALE);
    w.role = RPC_ROLE_NODE;
    write_ok(&w, 2, 1, V(1, 1));
    expect(&w, 2, SEEN_DATA, V(1, 1));
    assert_int_equal(world_commit(&w, V(1, 1)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    expect(&w, 2, SEEN_DATA, V(1, 1));
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_overwrite_waits_for_its_commit),
        cmocka_unit_test(test_blocks_under_overwrite_are_not_applied),
        cmocka_unit_test(test_a_mark_below_lies_below),
        cmocka_unit_test(test_pending_versions_count_as_if_they_lay_in_place),
        cmocka_unit_test(test_overwritten_versions_are_not_applied),
        cmocka_unit_test(test_a_torn_overwrite_can_be_rolled_back),
        cmocka_unit_test(test_fences),
        cmocka_unit_test(test_power_cuts_keep_what_was_synced),
        cmocka_unit_test(test_power_cuts_while_applying),
        cmocka_unit_test(test_a_full_journal_pushes_back_and_loses_nothing),
        cmocka_unit_test(test_a_stuck_record_is_copied_forward),
        cmocka_unit_test(test_old_frame_of_an_unreadable_file_replaces_nothing_newer),
        cmocka_unit_test(test_overwrites_go_on_when_the_disk_is_full),
        cmocka_unit_test(test_remove_takes_what_is_pending),
        cmocka_unit_test(test_the_number_of_loops_changes),
        cmocka_unit_test(test_drops_after_the_number_of_loops_changed),
        cmocka_unit_test(test_uncommitted_files_are_listed_on_request),
        cmocka_unit_test(test_a_partial_file_becomes_whole),
        cmocka_unit_test(test_a_node_cleans_up),
        cmocka_unit_test(test_dropped_copies_of_a_spare_free_their_space),
        cmocka_unit_test(test_a_sync_is_only_for_who_has_something_to_sync),
        cmocka_unit_test(test_a_clean_stop_applies_what_is_committed),
        cmocka_unit_test(test_a_sync_after_a_kill_covers_the_journal),
        cmocka_unit_test(test_a_synced_overwrite_has_its_file),
        cmocka_unit_test(test_an_overwrite_goes_with_a_file_that_was_never_synced),
        cmocka_unit_test(test_many_small_marks_push_back),
        cmocka_unit_test(test_dropped_records_do_not_come_back_from_the_journal),
        cmocka_unit_test(test_fences_and_drops_after_a_failed_sync),
        cmocka_unit_test(test_a_file_that_fails_waits_for_the_journal),
        cmocka_unit_test(test_a_mark_before_the_file_in_another_code),
        cmocka_unit_test(test_rot_below_a_commit_is_damage_in_place),
        cmocka_unit_test(test_unreadable_record_stays_until_it_can_be_applied),
        cmocka_unit_test(test_unreadable_record_is_removed_while_its_page_is_tried),
        cmocka_unit_test(test_stop_does_not_wait_for_an_unreadable_record),
        cmocka_unit_test(test_rot_above_a_mark_is_damage),
        cmocka_unit_test(test_rot_of_a_frame_is_damage_of_its_blocks),
        cmocka_unit_test(test_rot_of_a_mark_changes_nothing),
        cmocka_unit_test(test_lost_frames_are_a_doubt_of_all),
        cmocka_unit_test(test_rot_of_what_was_synced_last),
        cmocka_unit_test(test_a_torn_frame_is_no_damage),
        cmocka_unit_test(test_unsynced_data_of_a_closed_file_stays_in_the_journal),
        cmocka_unit_test(test_a_drop_while_its_record_is_copied),
        cmocka_unit_test(test_a_mark_of_nothing_does_not_wait),
        cmocka_unit_test(test_a_mark_that_was_applied_is_none_of_a_new_projection),
        cmocka_unit_test(test_a_rotten_head_of_the_same_version_is_healed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
