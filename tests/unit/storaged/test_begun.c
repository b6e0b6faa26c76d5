/*
 * Goal: a projection file whose header was lost in a power failure is known to have had
 * nothing stable. It is created again or removed when a node that knows all storages says
 * so, and no other file is. A corrupt file is removed only after the node has said that
 * no other storage ever had any of it.
 * Method: a storage on a disk in memory whose header page is zeroed or changed, with and
 * without a power cut.
 */
#include <errno.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "storaged/format/projfile.h"
#include "tests/unit/storaged/world.h"

enum {
    OK = ROZO__STATUS__OK,
    NO_FILE = ROZO__STATUS__NO_FILE,
    DAMAGED = ROZO__STATUS__DAMAGED
};

static const uint64_t v1 = UINT64_C(1) << 32 | 1, v2 = UINT64_C(2) << 32 | 1;

/* Returns the status of a read of block 0 of projection 0. */
static uint16_t ask(struct world *w, bool *unsynced)
{
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    Rozo__StReadResp *resp;
    struct test_ref ref;
    struct test_call *c;
    uint16_t status;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.n_blocks = 1;
    req.to_storage = US;
    req.heads_only = true;
    status = call_run(w, ROZO__OP__ST_READ, &req.base, NULL, 0, &c);
    resp = rozo__st_read_resp__unpack(NULL, c->msg_len, c->msg);
    *unsynced = resp != NULL && resp->unsynced;
    rozo__st_read_resp__free_unpacked(resp, NULL);
    call_free(c);
    return status;
}

static void expect(struct world *w, uint16_t status, bool unsynced)
{
    bool said;

    assert_int_equal(ask(w, &said), status);
    assert_int_equal(said, unsynced);
}

static uint16_t remove_as(struct world *w, bool unfinished, bool ruined)
{
    Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    uint16_t status;

    file_id_put(id, &w->id);
    req.file_id.data = id;
    req.file_id.len = sizeof(id);
    req.to_storage = US;
    req.unfinished = unfinished;
    req.ruined = ruined;
    w->role = RPC_ROLE_NODE;
    status = call_run(w, ROZO__OP__ST_REMOVE, &req.base, NULL, 0, NULL);
    w->role = RPC_ROLE_CLIENT;
    return status;
}

static uint16_t remove_begun(struct world *w)
{
    return remove_as(w, true, false);
}

static uint16_t remove_ruin(struct world *w)
{
    return remove_as(w, true, true);
}

enum how { ZEROED, EMPTIED, CHANGED };

/* Makes a file with a record, then removes or changes its header. */
static void begin(struct world *w, enum how how, bool power)
{
    static const uint8_t zeros[PROJFILE_PAGE_BYTES];
    struct disk_file *f;

    world_init(w, 1);
    assert_int_equal(world_write(w, 0, 0, 3, v1, 8192, false, NULL), OK);
    if (power) { /* loses what the notes say of this file, but not the file */
        assert_int_equal(world_sync(w), OK);
        world_restart(w, true);
    }
    f = world_file(w, 0);
    if (how == ZEROED)
        memdisk_poke(&w->disk, f, 0, zeros, sizeof(zeros));
    else if (how == CHANGED)
        memdisk_poke(&w->disk, f, 40, "junk", 4);
    else
        memdisk_cut_file(f, 0);
    world_restart(w, false);
}

static void test_only_what_was_begun_is_removed(void **state)
{
    static const struct {
        enum how how;
        bool power, goes;
    } cases[] = {
        { ZEROED, true, true },   { ZEROED, false, false },  { EMPTIED, true, true },
        { EMPTIED, false, true }, { CHANGED, false, false }, { CHANGED, true, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool unsynced = cases[i].power && cases[i].how != CHANGED;
        struct world w;

        begin(&w, cases[i].how, cases[i].power);
        expect(&w, DAMAGED, unsynced);
        assert_int_equal(remove_begun(&w), OK);
        expect(&w, cases[i].goes ? NO_FILE : DAMAGED, unsynced && !cases[i].goes);
        if (cases[i].goes) /* writable again */
            assert_int_equal(world_write(&w, 0, 0, 3, v1, 8192, false, NULL), OK);
        world_free(&w);
    }
}

/* A file that is complete, in use, pending or quarantined is more than a beginning, and
 * stays. */
static void test_nothing_that_counts_is_removed(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 3, v1, 8192, true, NULL), OK);
    assert_int_equal(remove_begun(&w), OK);
    expect(&w, OK, false);
    world_restart(&w, false);
    assert_int_equal(remove_begun(&w), OK);
    expect(&w, OK, false);
    world_free(&w);

    begin(&w, CHANGED, true);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                     ROZO__STATUS__STALE_VERSION);
    /* quarantined */
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, false, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), 0);
    world_restart(&w, false);
    assert_int_equal(remove_begun(&w), OK);
    expect(&w, DAMAGED, false);
    world_free(&w);
}

/* A file whose header is invalid is removed when no other storage has, or had, any of it:
 * its bytes alone are useless. */
static void test_a_corrupt_file_is_removed(void **state)
{
    (void)state;
    for (unsigned how = ZEROED; how <= CHANGED; how++) {
        for (unsigned power = 0; power < 2; power++) {
            struct world w;
            uint64_t failures;

            begin(&w, how, power);
            failures = generations_failures(&w.generations);
            assert_int_equal(remove_ruin(&w), OK);
            /* a client that wrote there and has not synced writes again */
            if (how == CHANGED)
                assert_true(generations_failures(&w.generations) > failures);
            expect(&w, NO_FILE, false);
            world_restart(&w, false);
            expect(&w, NO_FILE, false);
            assert_int_equal(world_write(&w, 0, 0, 3, v1, 8192, true, NULL), OK);
            world_expect(&w, 0, 2, SEEN_DATA, v1);
            world_free(&w);
        }
    }
}

/* Gives the quarantined file a valid header, as if only its marks had rotted. */
static void make_aside_sound(struct world *w)
{
    uint8_t page[PROJFILE_PAGE_BYTES];
    char path[PROJFILE_PATH_MAX];

    projfile_path_quarantined(path, &w->id);
    memdisk_peek(world_file(w, 0), 0, page, sizeof(page));
    memdisk_poke(&w->disk, memdisk_find(&w->disk, path), 0, page, sizeof(page));
}

/* Files that were quarantined earlier are removed, too. Otherwise some blocks would stay
 * unknown for ever. */
static void test_a_corrupt_file_is_removed_with_its_quarantined_copy(void **state)
{
    (void)state;
    for (unsigned sound = 0; sound < 2; sound++) {
        struct world w;

        begin(&w, CHANGED, true);
        assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                         ROZO__STATUS__STALE_VERSION);
        assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, true, NULL), OK);
        if (sound)
            make_aside_sound(&w);
        world_restart(&w, false);
        assert_int_equal(remove_ruin(&w), DAMAGED); /* a new file is in its place */
        expect(&w, OK, false);
        memdisk_poke(&w.disk, world_file(&w, 0), 40, "junk", 4);
        world_restart(&w, false);
        assert_int_equal(remove_ruin(&w), OK);
        expect(&w, NO_FILE, false);
        world_restart(&w, false);
        expect(&w, NO_FILE, false);
        world_free(&w);
    }
}

/* Gives the file a later format in a page that is otherwise valid. */
static void make_foreign(struct world *w)
{
    uint8_t page[PROJFILE_PAGE_BYTES];

    memdisk_peek(world_file(w, 0), 0, page, sizeof(page));
    put_le32(page + 8, PROJFILE_FORMAT + 1);
    put_le32(page + 12, 0);
    put_le32(page + 12, codec_crc32c(0, page, sizeof(page)));
    memdisk_poke(&w->disk, world_file(w, 0), 0, page, sizeof(page));
}

/* A file that may be of use is not corrupt: valid, of a later build, of another place, in
 * use, pending, or unreadable for now. */
static void test_a_file_that_may_be_of_use_is_not_corrupt(void **state)
{
    enum { GOOD, FOREIGN, MOVED, IN_USE, PENDING, UNREAD, N };

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        struct world w;

        world_init(&w, 1);
        assert_int_equal(world_write(&w, 0, 0, 3, v1, 8192, true, NULL), OK);
        if (i == PENDING)
            assert_int_equal(world_write(&w, 0, 0, 3, v2, 8192, true, NULL), OK);
        if (i == FOREIGN)
            make_foreign(&w);
        if (i == MOVED) {
            uint8_t page[PROJFILE_PAGE_BYTES];

            assert_int_equal(world_write(&w, 1, 0, 3, v1, 8192, true, NULL), OK);
            memdisk_peek(world_file(&w, 1), 0, page, sizeof(page));
            memdisk_poke(&w.disk, world_file(&w, 0), 0, page, sizeof(page));
        }
        if (i == PENDING || i == IN_USE)
            memdisk_poke(&w.disk, world_file(&w, 0), 40, "junk", 4);
        if (i == UNREAD)
            memdisk_spoil(world_file(&w, 0), 0);
        if (i != IN_USE)
            world_restart(&w, false);
        assert_int_equal(remove_ruin(&w), DAMAGED);
        assert_non_null(world_file(&w, 0));
        world_free(&w);
    }
}

static void test_only_an_unfinished_file_can_be_corrupt(void **state)
{
    struct world w;

    (void)state;
    begin(&w, CHANGED, false);
    assert_int_equal(remove_as(&w, false, true), ROZO__STATUS__BAD_REQUEST);
    expect(&w, DAMAGED, false);
    world_free(&w);
}

/* A file begins again, and stays so, when no storage has anything that only this file may
 * have had. */
static void test_a_damaged_file_marked_complete_begins_empty(void **state)
{
    (void)state;
    for (unsigned how = ZEROED; how <= CHANGED; how++) {
        struct seen seen[3];
        struct world w;

        begin(&w, how, how != CHANGED);
        expect(&w, DAMAGED, how != CHANGED);
        assert_int_equal(world_whole(&w, 1), OK);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(world_read(&w, 0, 0, 3, seen, NULL), OK);
            assert_int_equal(seen[0].kind, SEEN_HOLE);
            assert_int_equal(seen[2].kind, SEEN_HOLE);
            world_restart(&w, i == 1);
        }
        world_free(&w);
    }
}

/* A file that replaces a lost one knows, over restarts, that the blocks it lacks were
 * never synced. */
static void test_blocks_that_a_replacement_lacks_were_never_synced(void **state)
{
    struct world w;

    (void)state;
    for (unsigned how = ZEROED; how <= CHANGED; how++) {
        begin(&w, how, true);
        w.role = RPC_ROLE_NODE;
        assert_int_equal(world_write(&w, 0, 2, 1, v1, 8192, true, NULL), OK);
        w.role = RPC_ROLE_CLIENT;
        for (unsigned i = 0; i < 3; i++) {
            Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
            struct test_ref ref;
            struct test_call *c;

            ref_init(&w, &ref);
            req.ref = &ref.ref;
            req.n_blocks = 1;
            req.to_storage = US;
            req.heads_only = true;
            assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &req.base, NULL, 0, &c), OK);
            assert_int_equal(c->payload[6] & RECORD_DAMAGED, RECORD_DAMAGED);
            assert_int_equal((c->payload[6] & RECORD_TORN) != 0, how != CHANGED);
            call_free(c);
            world_restart(&w, i == 1);
        }
        world_free(&w);
    }
}

static void fail_next(struct world *w, enum disk_op op, unsigned at)
{
    w->disk.fail_op = op;
    w->disk.fail_at = at;
    w->disk.fail_rc = -ENOSPC;
    w->disk.fail_path = "objects/";
}

/* No file is left when a mark or an allocation creates one and its first page cannot be
 * written. */
static void test_a_header_does_not_stay_without_its_page(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 2; how++) {
        Rozo__StAllocReq alloc = ROZO__ST_ALLOC_REQ__INIT;
        struct test_ref ref;
        struct world w;

        world_init(&w, 1);
        fail_next(&w, DISK_WRITE, 2); /* the header is the first write */
        ref_init(&w, &ref);
        alloc.ref = &ref.ref;
        alloc.n_blocks = 8;
        alloc.to_storage = US;
        assert_int_equal(
            how == 0 ? call_run(&w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL)
                     : world_mark(&w, 0, 0, 0, v2),
            ROZO__STATUS__NO_SPACE);
        expect(&w, NO_FILE, false);
        world_restart(&w, false);
        expect(&w, NO_FILE, false);
        assert_int_equal(world_write(&w, 0, 0, 3, v1, 8192, false, NULL), OK);
        world_free(&w);
    }
}

/* A quarantined file that nothing replaces yet is not treated as if it had never
 * existed. */
static void test_quarantined_files_are_not_forgotten(void **state)
{
    struct world w;

    (void)state;
    begin(&w, CHANGED, false);
    w.role = RPC_ROLE_NODE;
    fail_next(&w, DISK_SYNC_NAME, 1); /* fails right after the rename */
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    expect(&w, DAMAGED, false);
    world_restart(&w, false);
    fail_next(&w, DISK_WRITE, 2); /* created, but its page finds no room */
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), ROZO__STATUS__NO_SPACE);
    assert_null(world_file(&w, 0));
    expect(&w, DAMAGED, false);
    world_free(&w);
}

/* Quarantines a file, and kills the storage before another one is in its place. */
static void put_aside_and_kill(struct world *w)
{
    begin(w, CHANGED, false);
    w->role = RPC_ROLE_NODE;
    fail_next(w, DISK_SYNC_NAME, 1); /* fails right after the rename */
    assert_int_equal(world_write(w, 0, 0, 1, v2, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    w->role = RPC_ROLE_CLIENT;
    assert_null(world_file(w, 0));
    world_restart(w, false);
}

/* No request, whichever comes first, is answered as if the file had never existed. */
static void test_a_quarantined_file_is_not_denied_after_a_restart(void **state)
{
    struct seen seen[3];
    struct world w;
    uint64_t block;

    (void)state;
    put_aside_and_kill(&w);
    expect(&w, DAMAGED, false);
    world_restart(&w, false);
    assert_int_equal(world_next(&w, 0, &block), DAMAGED);
    world_restart(&w, false);
    assert_int_equal(world_sync(&w), DAMAGED); /* otherwise an fsync would pass over it */
    world_restart(&w, true);
    assert_int_equal(world_read(&w, 255, 0, 3, seen, NULL), DAMAGED);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, true, NULL), OK);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world_read(&w, 0, 0, 3, seen, NULL), OK);
        assert_int_equal(seen[0].version, v2);
        assert_int_equal(seen[1].kind, SEEN_DAMAGED);
        world_restart(&w, i == 1);
    }
    world_free(&w);
}

/* Unless the disk can tell whether a file was quarantined, the answer is an error, not
 * "no". */
static void test_failed_look_for_a_quarantined_file_is_an_error(void **state)
{
    struct world w;

    (void)state;
    put_aside_and_kill(&w);
    fail_next(&w, DISK_OPEN, 1);
    w.disk.fail_rc = -EIO;
    expect(&w, ROZO__STATUS__IO_ERROR, false);
    expect(&w, DAMAGED, false);
    world_free(&w);
}

enum { HEADER_ROT = 40, ALL_HERE = 255 };

static uint64_t v(unsigned epoch, unsigned count)
{
    return (uint64_t)epoch << 32 | count;
}

static void rot_header(struct world *w, unsigned projection)
{
    uint8_t byte;

    memdisk_peek(world_file(w, projection), HEADER_ROT, &byte, 1);
    byte ^= 0x10;
    memdisk_poke(&w->disk, world_file(w, projection), HEADER_ROT, &byte, 1);
}

/* Applies a mark over the whole file, and writes block 2 into the hole: in place, without
 * the journal. */
static void mark_and_write(struct world *w)
{
    world_init(w, 1);
    assert_int_equal(world_write(w, 0, 0, 8, v(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_mark(w, ALL_HERE, 0, UINT64_C(1) << 40, v(1, 2)), OK);
    assert_int_equal(world_sync(w), OK);
    assert_int_equal(world_commit(w, v(1, 2)), OK);
    world_apply(w);
    assert_int_equal(world_health(w).pending_records, 0);
    assert_int_equal(world_write(w, 0, 2, 1, v(1, 3), 8192, true, NULL), OK);
    world_expect(w, 0, 2, SEEN_DATA, v(1, 3));
}

/* Quarantines the file: the first request asks for a new epoch, the second one
 * quarantines. */
static void put_aside(struct world *w, uint64_t block)
{
    assert_int_equal(world_write(w, 0, block, 1, v(2, 1), 8192, true, NULL),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(w, 0, block, 1, v(3, 1), 8192, true, NULL), OK);
}

/* Frames of a quarantined file do not count for its replacement. An applied mark is found
 * until its segment is erased, and would turn blocks that the lost file had above it into
 * holes. */
static void test_frames_of_a_quarantined_file_do_not_count(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct world w;

        mark_and_write(&w);
        rot_header(&w, 0);
        world_restart(&w, false);
        put_aside(&w, 6);
        for (unsigned i = 0; i < 3; i++) {
            world_expect(&w, 0, 2, SEEN_DAMAGED, 0);
            world_expect(&w, 0, 6, SEEN_DATA, v(3, 1));
            world_expect(&w, 0, 7, SEEN_DAMAGED, 0);
            if (how == 1) { /* in place now if it were pending */
                assert_int_equal(world_commit(&w, v(1, 3)), OK);
                world_apply(&w);
            }
            if (how != 2)
                world_restart(&w, i == 1);
        }
        world_free(&w);
    }
}

/* Nothing is pending when the file is quarantined; only the log still has the frame of
 * the mark. */
static void test_released_mark_of_a_quarantined_file_is_not_found_later(void **state)
{
    struct world w;

    (void)state;
    mark_and_write(&w);
    rot_header(&w, 0);
    world_restart(&w, false);
    /* The commit goes to all that is here, which is nothing: the file cannot be read. */
    assert_int_equal(world_commit(&w, v(1, 2)), OK);
    world_apply(&w);
    assert_int_equal(world_health(&w).pending_records, 0);
    put_aside(&w, 6);
    world_expect(&w, 0, 2, SEEN_DAMAGED, 0);
    world_restart(&w, false);
    assert_int_equal(world_commit(&w, v(1, 2)), OK);
    world_apply(&w);
    world_expect(&w, 0, 2, SEEN_DAMAGED, 0);
    world_free(&w);
}

/* Synced records that were pending become unknown, never the version below; later records
 * stay. */
static void test_pending_records_of_a_quarantined_file_are_unknown(void **state)
{
    (void)state;
    for (unsigned committed = 0; committed < 2; committed++) {
        struct world w;

        world_init(&w, 1);
        assert_int_equal(world_write(&w, 0, 0, 8, v(1, 1), 8192, true, NULL), OK);
        assert_int_equal(world_write(&w, 0, 1, 3, v(1, 2), 8192, true, NULL), OK);
        if (committed)
            assert_int_equal(world_commit(&w, v(1, 2)), OK);
        rot_header(&w, 0);
        world_restart(&w, false);
        if (committed)
            assert_int_equal(world_commit(&w, v(1, 2)), OK);
        put_aside(&w, 3);
        assert_int_equal(world_write(&w, 0, 3, 1, v(3, 2), 8192, true, NULL), OK);
        for (unsigned i = 0; i < 3; i++) {
            world_expect(&w, 0, 0, SEEN_DAMAGED, 0);
            world_expect(&w, 0, 1, SEEN_DAMAGED, 0);
            world_expect(&w, 0, 3, SEEN_DATA, v(3, 2));
            world_restart(&w, i == 1);
        }
        world_free(&w);
    }
}

/* A node that knows all storages sends the record that was pending: the storage keeps it,
 * and does not take it for one that is already here. */
static void test_a_record_that_was_pending_comes_again(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 8, v(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_write(&w, 0, 1, 3, v(1, 2), 8192, true, NULL), OK);
    rot_header(&w, 0);
    world_restart(&w, false);
    w.role = RPC_ROLE_NODE;
    assert_int_equal(world_write(&w, 0, 1, 3, v(1, 2), 8192, true, NULL), OK);
    w.role = RPC_ROLE_CLIENT;
    for (unsigned i = 0; i < 3; i++) {
        world_expect(&w, 0, 1, SEEN_DATA, v(1, 2));
        world_expect(&w, 0, 5, SEEN_DAMAGED, 0);
        world_restart(&w, i == 1);
    }
    world_free(&w);
}

/* A pending mark is for all projections of a storage. While another projection waits for
 * it, the damaged file stays and clients get DAMAGED; once it is applied there, the file
 * is quarantined. */
static void test_a_mark_that_another_projection_waits_for_stays(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 8, v(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_write(&w, 1, 0, 8, v(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_mark(&w, ALL_HERE, 4, 0, v(1, 2)), OK);
    assert_int_equal(world_sync(&w), OK);
    rot_header(&w, 0);
    world_restart(&w, false);
    assert_int_equal(world_write(&w, 0, 2, 1, v(2, 1), 8192, true, NULL),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(&w, 0, 2, 1, v(3, 1), 8192, true, NULL), DAMAGED);
    world_expect(&w, 1, 5, SEEN_HOLE, v(1, 2));
    assert_int_equal(world_commit(&w, v(1, 2)), OK);
    world_apply(&w);
    assert_int_equal(world_write(&w, 0, 2, 1, v(3, 1), 8192, true, NULL), OK);
    for (unsigned i = 0; i < 3; i++) {
        world_expect(&w, 0, 2, SEEN_DATA, v(3, 1));
        world_expect(&w, 0, 5, SEEN_DAMAGED, 0);
        world_expect(&w, 1, 3, SEEN_DATA, v(1, 1));
        world_expect(&w, 1, 5, SEEN_HOLE, v(1, 2));
        world_restart(&w, i == 1);
    }
    world_free(&w);
}

/* A stop, or a failed journal, at any moment between the old file and the new one leaves
 * the blocks unknown. */
static void test_a_crash_while_a_file_is_quarantined(void **state)
{
    static const enum disk_op ops[] = { DISK_RENAME, DISK_SYNC_NAME, DISK_WRITE,
                                        DISK_SYNC };

    (void)state;
    for (unsigned i = 0; i < 4 * 3; i++) {
        struct world w;

        mark_and_write(&w);
        rot_header(&w, 0);
        world_restart(&w, false);
        assert_int_equal(world_write(&w, 0, 6, 1, v(2, 1), 8192, true, NULL),
                         ROZO__STATUS__STALE_VERSION);
        w.disk.fail_op = ops[i / 3];
        w.disk.fail_at = 1 + i % 3 / 2;
        w.disk.fail_rc = -EIO;
        w.disk.fail_path = NULL;
        world_write(&w, 0, 6, 1, v(3, 1), 8192, true, NULL);
        w.disk.fail_at = 0;
        if (i % 3 != 0)
            world_restart(&w, false);
        if (world_write(&w, 0, 6, 1, v(4, 1), 8192, true, NULL) != OK)
            assert_int_equal(world_write(&w, 0, 6, 1, v(5, 1), 8192, true, NULL), OK);
        for (unsigned k = 0; k < 3; k++) {
            world_expect(&w, 0, 2, SEEN_DAMAGED, 0);
            world_restart(&w, k == 1);
        }
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_was_begun_is_removed),
        cmocka_unit_test(test_nothing_that_counts_is_removed),
        cmocka_unit_test(test_a_corrupt_file_is_removed),
        cmocka_unit_test(test_a_corrupt_file_is_removed_with_its_quarantined_copy),
        cmocka_unit_test(test_a_file_that_may_be_of_use_is_not_corrupt),
        cmocka_unit_test(test_only_an_unfinished_file_can_be_corrupt),
        cmocka_unit_test(test_a_damaged_file_marked_complete_begins_empty),
        cmocka_unit_test(test_blocks_that_a_replacement_lacks_were_never_synced),
        cmocka_unit_test(test_a_header_does_not_stay_without_its_page),
        cmocka_unit_test(test_quarantined_files_are_not_forgotten),
        cmocka_unit_test(test_a_quarantined_file_is_not_denied_after_a_restart),
        cmocka_unit_test(test_failed_look_for_a_quarantined_file_is_an_error),
        cmocka_unit_test(test_frames_of_a_quarantined_file_do_not_count),
        cmocka_unit_test(test_released_mark_of_a_quarantined_file_is_not_found_later),
        cmocka_unit_test(test_pending_records_of_a_quarantined_file_are_unknown),
        cmocka_unit_test(test_a_record_that_was_pending_comes_again),
        cmocka_unit_test(test_a_mark_that_another_projection_waits_for_stays),
        cmocka_unit_test(test_a_crash_while_a_file_is_quarantined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
