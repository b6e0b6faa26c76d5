/*
 * Goal: every ST_* request does what rozo.proto says. Method: a storage on a disk in
 * memory, and a client that can make each record again to compare it with what it reads.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "storaged/format/projfile.h"
#include "storaged/object/unstable_ranges.h"
#include "tests/unit/storaged/world.h"

#define OK ROZO__STATUS__OK

static const uint64_t v1 = UINT64_C(1) << 32 | 1, v2 = UINT64_C(1) << 32 | 2,
                      v3 = UINT64_C(2) << 32 | 1;

static void poke_byte(struct world *w, unsigned projection, uint64_t offset)
{
    struct disk_file *f = world_file(w, projection);
    uint8_t byte;

    memdisk_peek(f, offset, &byte, 1);
    byte ^= 0x10;
    memdisk_poke(&w->disk, f, offset, &byte, 1);
}

static void test_written_records_are_read(void **state)
{
    static const size_t sizes[] = { 8192, 8191, 4096, 1000, 64, 1 };
    static const uint64_t firsts[] = { 0, 1, 100, 127, 128, 5000 };
    struct world w;

    (void)state;
    world_init(&w, 1);
    for (unsigned at = 0; codec_kind_at(at) != 0; at++) {
        for (w.layout = 0; w.layout < 3; w.layout++) {
            for (unsigned s = 0; s < 6; s++) {
                w.kind = codec_kind_at(at);
                w.id.ino++;
                for (unsigned p = 0; p < codec_n(world_codec(&w)); p++) {
                    struct seen seen[128];

                    assert_int_equal(
                        world_write(&w, p, firsts[s], 128, v1, sizes[s], false, NULL),
                        OK);
                    assert_int_equal(world_read(&w, p, firsts[s], 128, seen, NULL), OK);
                    for (unsigned i = 0; i < 128; i++) {
                        assert_int_equal(seen[i].kind, SEEN_DATA);
                        assert_int_equal(seen[i].user_bytes, sizes[s]);
                    }
                    assert_int_equal(world_read(&w, p, firsts[s] + 127, 2, seen, NULL),
                                     OK);
                    assert_int_equal(seen[1].kind, SEEN_HOLE);
                    assert_int_equal(seen[1].version, 0);
                }
            }
        }
    }
    world_free(&w);
}

static void test_versions_decide(void **state)
{
    struct world w;
    uint64_t newest;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 10, 4, v2, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 10, 4, v2, 8192, false, NULL), OK); /* again */
    /* a record of another length is not the one of that version */
    assert_int_equal(world_write(&w, 0, 10, 4, v2, 100, false, &newest),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(newest, v2);
    assert_int_equal(
        world_write(&w, 0, 8, 3, v1, 8192, false, &newest),
        ROZO__STATUS__STALE_VERSION); /* 10 is newer, so 8 and 9 are refused, too */
    assert_int_equal(newest, v2);
    world_expect(&w, 0, 8, SEEN_HOLE, 0);
    world_expect(&w, 0, 9, SEEN_HOLE, 0);
    world_expect(&w, 0, 10, SEEN_DATA, v2);
    assert_int_equal(world_write(&w, 0, 8, 3, v3, 8192, false, NULL), OK);
    world_expect(&w, 0, 10, SEEN_DATA, v3);
    world_expect(&w, 0, 11, SEEN_DATA, v2);
    assert_int_equal(world_write(&w, 0, 8, 1, 0, 8192, false, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    world_free(&w);
}

static void test_holes_have_versions(void **state)
{
    static const uint64_t lengths[] = { 0, 5, 300, 2000 };
    struct world w;

    (void)state;
    world_init(&w, 1);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t n = lengths[i], last = n == 0 ? 3000 : 20 + n - 1;

        w.id.ino++;
        assert_int_equal(world_write(&w, 0, 0, 128, v1, 8192, false, NULL), OK);
        assert_int_equal(world_write(&w, 0, 128, 100, v1, 8192, true, NULL), OK);
        assert_int_equal(world_mark(&w, 0, 20, n, v2), OK);
        assert_int_equal(world_mark(&w, 0, 20, n, v2), OK); /* again */
        world_expect(&w, 0, 19, SEEN_DATA, v1);
        world_expect(&w, 0, 20, SEEN_HOLE, v2);
        world_expect(&w, 0, last, SEEN_HOLE, v2);
        if (n != 0)
            world_expect(&w, 0, last + 1, last + 1 < 228 ? SEEN_DATA : SEEN_HOLE,
                         last + 1 < 228 ? v1 : 0);
        assert_int_equal(world_write(&w, 0, 20, 1, v1, 8192, false, NULL),
                         ROZO__STATUS__STALE_VERSION);
        assert_int_equal(world_write(&w, 0, 20, 1, v2, 8192, false, NULL),
                         ROZO__STATUS__STALE_VERSION);
        assert_int_equal(world_mark(&w, 0, 18, 3, v1), ROZO__STATUS__STALE_VERSION);
        assert_int_equal(world_write(&w, 0, 20, 1, v3, 8192, false, NULL), OK);
        world_expect(&w, 0, 20, SEEN_DATA, v3);
        assert_int_equal(world_mark(&w, 0, 20, n, v2), ROZO__STATUS__STALE_VERSION);
        assert_int_equal(world_mark(&w, 0, 0, 0, v2), ROZO__STATUS__STALE_VERSION);
        world_expect(&w, 0, 19, SEEN_DATA, v1);
        world_restart(&w, false);
        world_expect(&w, 0, 20, SEEN_DATA, v3);
        world_expect(&w, 0, 21, SEEN_HOLE, v2);
        world_expect(&w, 0, last, SEEN_HOLE, v2);
        assert_int_equal(world_mark(&w, 0, 0, 0, v2), ROZO__STATUS__STALE_VERSION);
    }
    world_free(&w);
}

static void test_truncate_gives_space_back(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(world_write(&w, 0, 128 * i, 128, v1, 8192, false, NULL), OK);
    assert_true(memdisk_allocated(world_file(&w, 0)) >= 8 * 128 * 4096);
    assert_int_equal(world_mark(&w, 0, 130, 0, v2), OK);
    assert_true(memdisk_allocated(world_file(&w, 0)) < 132 * 4096 + 65536);
    assert_true(world_file(&w, 0)->size < 2 * 129 * 4096 + 65536);
    assert_int_equal(world_mark(&w, 0, 2, 20, v2), OK);
    assert_true(memdisk_allocated(world_file(&w, 0)) < 112 * 4096 + 65536);
    assert_int_equal(world_mark(&w, 0, 0, 0, v3), OK);
    assert_true(memdisk_allocated(world_file(&w, 0)) <= 3 * 4096);
    world_free(&w);
}

static void test_a_promised_record_goes_only_after_its_mark_is_durable(void **state)
{
    struct world w;
    unsigned n;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 4, v1, 8192, true, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), OK);
    assert_int_equal(world_commit(&w, v2), OK);
    n = w.disk.n_of[DISK_SYNC];
    w.disk.hold_syncs = true;
    world_apply(&w);
    assert_int_equal(w.disk.n_of[DISK_SYNC], n + 1);
    assert_int_equal(w.disk.n_of[DISK_TRUNCATE], 0);
    w.disk.hold_syncs = false;
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    assert_int_equal(w.disk.n_of[DISK_TRUNCATE], 1);
    world_free(&w);
}

static void test_a_mark_hides_what_could_not_be_removed(void **state)
{
    static const int ops[] = { DISK_TRUNCATE, DISK_PUNCH };

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct world w;

        world_init(&w, 1);
        assert_int_equal(world_write(&w, 0, 0, 128, v1, 8192, false, NULL), OK);
        assert_int_equal(world_write(&w, 0, 900, 128, v1, 8192, false, NULL), OK);
        w.disk.fail_op = ops[i];
        w.disk.fail_at = 1;
        w.disk.fail_rc = -EIO;
        assert_int_equal(world_mark(&w, 0, 0, i == 0 ? 0 : 512, v2), OK);
        w.disk.fail_at = 0;
        world_expect(&w, 0, 5, SEEN_HOLE, v2);
        world_restart(&w, false);
        world_expect(&w, 0, 5, SEEN_HOLE, v2);
        world_expect(&w, 0, 900, i == 0 ? SEEN_HOLE : SEEN_DATA, i == 0 ? v2 : v1);
        assert_int_equal(world_write(&w, 0, 5, 1, v3, 100, false, NULL), OK);
        world_expect(&w, 0, 5, SEEN_DATA, v3);
        world_expect(&w, 0, 6, SEEN_HOLE, v2);
        world_free(&w);
    }
}

/* The storage remembers that a mark need not look for newer records; later records must
 * change that. */
static void test_a_late_mark_spares_newer_records(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 4, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 3, 1, UINT64_C(9) << 32 | 1, 8192, false, NULL),
                     OK);
    world_restart(&w, false);
    assert_int_equal(world_mark(&w, 0, 0, 0, UINT64_C(8) << 32),
                     ROZO__STATUS__STALE_VERSION);
    world_expect(&w, 0, 3, SEEN_DATA, UINT64_C(9) << 32 | 1);
    world_expect(&w, 0, 0, SEEN_DATA, v1);
    world_free(&w);
}

/* A mark repeated on a storage that has newer records leaves those with their bytes. */
static void test_a_mark_goes_below_newer_records(void **state)
{
    static const uint64_t lengths[] = { 0, 20, 300 };
    struct world w;

    (void)state;
    world_init(&w, 1);
    for (unsigned i = 0; i < 3; i++) {
        w.id.ino++;
        assert_int_equal(world_write(&w, 0, 0, 50, v1, 8192, true, NULL), OK);
        assert_int_equal(world_write(&w, 0, 8, 4, v3, 8192, false, NULL), OK);
        assert_int_equal(world_write(&w, 1, 9, 1, v3 + 1, 8192, false, NULL), OK);
        assert_int_equal(world_mark(&w, 0, 5, lengths[i], v2),
                         ROZO__STATUS__STALE_VERSION);
        for (unsigned j = 0; j < 2; j++) { /* repeated */
            assert_int_equal(world_mark_below(&w, 2, 5, lengths[i], v2), OK);
            if (j == 1)
                world_restart(&w, false);
            world_expect(&w, 0, 4, SEEN_DATA, v1);
            world_expect(&w, 0, 5, SEEN_HOLE, v2);
            world_expect(&w, 0, 8, SEEN_DATA, v3);
            world_expect(&w, 0, 11, SEEN_DATA, v3);
            world_expect(&w, 0, 12, SEEN_HOLE, v2);
            world_expect(&w, 0, lengths[i] == 20 ? 25 : 49,
                         lengths[i] == 20 ? SEEN_DATA : SEEN_HOLE,
                         lengths[i] == 20 ? v1 : v2);
            world_expect(&w, 1, 8, SEEN_HOLE, v2);
            world_expect(&w, 1, 9, SEEN_DATA, v3 + 1);
            world_expect(&w, 2, 9, SEEN_HOLE, v2);
        }
    }
    world_free(&w);
}

/* A damaged record may have been newer: it does not become an older hole. */
static void test_a_mark_that_goes_below_leaves_what_is_damaged(void **state)
{
    static const uint64_t lengths[] = { 0, 20, 300 };
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    for (unsigned i = 0; i < 3; i++) {
        struct geometry geo;

        w.id.ino++;
        geometry_init(&geo, codec_get(CODEC_MOJETTE, w.layout, 8192), 0);
        assert_int_equal(world_write(&w, 0, 0, 50, v3, 8192, true, NULL), OK);
        assert_int_equal(world_write(&w, 0, 7, 1, v3 + 1, 8192, true, NULL), OK);
        poke_byte(&w, 0, geometry_head_at(&geo, 7) + 8);
        assert_int_equal(
            world_mark_below(&w, 0, 7, lengths[i] == 20 ? 1 : lengths[i], v3), OK);
        world_expect(&w, 0, 7, SEEN_DAMAGED, 0);
    }
    world_free(&w);
}

/* Damage that cannot be newer than the mark is a hole while the mark is pending, and
 * stays one when it is applied, in one piece or more. */
static void test_a_mark_that_goes_below_covers_older_damage(void **state)
{
    static const uint64_t lengths[] = { 1, 20, 0 };
    struct geometry geo;
    struct world w;

    (void)state;
    world_init(&w, 1);
    geometry_init(&geo, codec_get(CODEC_MOJETTE, w.layout, 8192), 0);
    for (unsigned i = 0; i < 3; i++) {
        w.id.ino++;
        assert_int_equal(world_write(&w, 0, 0, 50, v1, 8192, true, NULL), OK);
        poke_byte(&w, 0, geometry_head_at(&geo, 7) + 8);
        poke_byte(&w, 0, geometry_head_at(&geo, 22) + 8);
        assert_int_equal(world_mark_below(&w, 0, 7, 1, v3), OK);
        assert_int_equal(world_mark_below(&w, 0, 22, lengths[i], v3), OK);
        for (unsigned j = 0; j < 3; j++) {
            world_expect(&w, 0, 6, SEEN_DATA, v1);
            world_expect(&w, 0, 7, SEEN_HOLE, v3);
            world_expect(&w, 0, 22, SEEN_HOLE, v3);
            if (j == 0) {
                assert_int_equal(world_durable(&w, v3), OK);
                world_apply(&w);
            } else {
                world_restart(&w, false);
            }
        }
    }
    world_free(&w);
}

/* A mark over a lost file is refused with the same status each time, never as too old:
 * the client would only repeat it. */
static void test_a_mark_that_goes_below_leaves_what_was_lost(void **state)
{
    const uint64_t fresh = UINT64_C(9) << 32;
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 10, v1, 8192, true, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), 0);
    world_restart(&w, false);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world_mark_below(&w, 0, 3, 0, v2), ROZO__STATUS__DAMAGED);
        if (i == 1)
            world_restart(&w, false);
    }
    assert_int_equal(world_mark(&w, 0, 3, 0, fresh), OK);
    world_expect(&w, 0, 2, SEEN_DAMAGED, 0);
    world_expect(&w, 0, 3, SEEN_HOLE, fresh);
    world_free(&w);
}

static void test_any_projection_and_what_is_present(void **state)
{
    struct world w;
    struct seen seen[4];
    uint32_t present;

    (void)state;
    world_init(&w, 1);
    w.layout = 1;
    assert_int_equal(world_read(&w, 255, 0, 4, seen, NULL), ROZO__STATUS__NO_FILE);
    assert_int_equal(world_write(&w, 2, 0, 1, v3, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 5, 0, 2, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 4, 3, 1, v2, 8192, false, NULL), OK);
    /* projection 5 has more records */
    assert_int_equal(world_read(&w, 255, 0, 4, seen, &present), OK);
    assert_int_equal(present, 1 << 2 | 1 << 5 | 1 << 4);
    assert_int_equal(seen[0].version, v1);
    assert_int_equal(seen[1].kind, SEEN_DATA);
    /* projection 2 has a newer record */
    assert_int_equal(world_read(&w, 255, 0, 1, seen, NULL), OK);
    assert_int_equal(seen[0].version, v3);
    assert_int_equal(world_read(&w, 1, 0, 1, seen, NULL), ROZO__STATUS__NO_FILE);
    /* all are removed, and projection 0 is made */
    assert_int_equal(world_mark(&w, 0, 0, 0, v3 + 1), OK);
    for (unsigned p = 0; p < 6; p++) {
        uint16_t status = world_read(&w, p, 0, 1, seen, &present);

        assert_int_equal(status, p == 1 || p == 3 ? ROZO__STATUS__NO_FILE : OK);
        if (status == OK)
            assert_int_equal(seen[0].version, v3 + 1);
    }
    assert_int_equal(present, 1 | 1 << 2 | 1 << 5 | 1 << 4);
    world_free(&w);
}

/* Returns whether an answer to a request of this role says that clients are served. */
static bool says_that_it_serves_clients(struct world *w, enum rpc_role role)
{
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    Rozo__StReadResp *resp;
    struct test_call *c;
    struct test_ref ref;
    bool says;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.n_blocks = 1;
    req.to_storage = US;
    req.heads_only = true;
    w->role = role;
    assert_int_equal(call_run(w, ROZO__OP__ST_READ, &req.base, NULL, 0, &c), OK);
    w->role = RPC_ROLE_CLIENT;
    resp = rozo__st_read_resp__unpack(NULL, c->msg_len, c->msg);
    says = resp->serves_clients;
    rozo__st_read_resp__free_unpacked(resp, NULL);
    call_free(c);
    return says;
}

static void test_nodes_learn_whether_clients_are_served(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    for (unsigned i = 0; i < 50; i++) /* nodes do not count as clients */
        assert_false(says_that_it_serves_clients(&w, RPC_ROLE_NODE));
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
    assert_true(says_that_it_serves_clients(&w, RPC_ROLE_NODE));
    assert_false(says_that_it_serves_clients(&w, RPC_ROLE_CLIENT));
    env_virtual_advance_ms(&w.v, 700);
    assert_false(says_that_it_serves_clients(&w, RPC_ROLE_NODE));
    for (unsigned i = 0; i < 20; i++) { /* occasional requests are no reason to wait */
        assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
        env_virtual_advance_ms(&w.v, 100);
        assert_false(says_that_it_serves_clients(&w, RPC_ROLE_NODE));
    }
    world_free(&w);
}

static void test_next_finds_records_and_marks(void **state)
{
    struct world w;
    uint64_t block;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_next(&w, 0, &block), ROZO__STATUS__NO_FILE);
    assert_int_equal(world_write(&w, 0, 1000, 3, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 1, 5000, 1, v1, 8192, false, NULL), OK);
    assert_int_equal(world_next(&w, 0, &block), OK);
    assert_int_equal(block, 1000);
    assert_int_equal(world_next(&w, 1002, &block), OK);
    assert_int_equal(block, 1002);
    assert_int_equal(world_next(&w, 1003, &block), OK);
    assert_int_equal(block, 5000);
    assert_int_equal(world_next(&w, 5001, &block), OK);
    assert_int_equal(block, UINT64_MAX);
    assert_int_equal(world_next(&w, UINT64_MAX, &block), OK);
    assert_int_equal(block, UINT64_MAX);
    assert_int_equal(world_mark(&w, 0, 9000, 0, v2), OK);
    assert_int_equal(world_next(&w, 5001, &block), OK);
    assert_int_equal(block, 9000);
    assert_int_equal(world_next(&w, UINT64_MAX - 1, &block), OK);
    assert_int_equal(block, UINT64_MAX - 1);
    world_free(&w);
}

/* A header rots that was read long ago. */
static void test_stat_with_look_again_reads_the_header_again(void **state)
{
    Rozo__StStatReq req = ROZO__ST_STAT_REQ__INIT;
    struct seen seen;
    struct test_ref ref;
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, true, NULL), OK);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.look_again = true;
    assert_int_equal(call_run(&w, ROZO__OP__ST_STAT, &req.base, NULL, 0, NULL), OK);
    world_expect(&w, 0, 0, SEEN_DATA, v1);
    poke_byte(&w, 0, 40);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
    w.role = RPC_ROLE_CLIENT; /* a client's word does not count */
    assert_int_equal(call_run(&w, ROZO__OP__ST_STAT, &req.base, NULL, 0, NULL), OK);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), OK);
    w.role = RPC_ROLE_NODE;
    assert_int_equal(call_run(&w, ROZO__OP__ST_STAT, &req.base, NULL, 0, NULL), OK);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__DAMAGED);
    world_free(&w);
}

/* One request removes several files: those of another loop are named in the answer, and
 * stay. */
static void test_remove_takes_many(void **state)
{
    enum { FILES = 9 };
    struct world w;
    struct file_id ids[FILES];
    uint8_t bytes[FILES][FILE_ID_BYTES];
    ProtobufCBinaryData more[FILES];
    Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;
    Rozo__StRemoveResp *resp;
    struct test_call *call;
    unsigned n_elsewhere = 0;

    (void)state;
    world_init(&w, 1);
    for (unsigned i = 0; i < FILES; i++) {
        w.id.ino = 100 + i;
        ids[i] = w.id;
        file_id_put(bytes[i], &w.id);
        more[i] = (ProtobufCBinaryData){ FILE_ID_BYTES, bytes[i] };
        if (i != 4) /* an absent file counts as removed */
            assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    }
    req.file_id = more[0];
    req.more = more + 1;
    req.n_more = FILES - 1;
    req.to_storage = US;
    w.role = RPC_ROLE_NODE;
    w.config.n_loops = 2;
    w.config.loop = file_id_hash(&ids[0]) % 2;
    world_restart(&w, false);
    assert_int_equal(call_run(&w, ROZO__OP__ST_REMOVE, &req.base, NULL, 0, &call), OK);
    resp = rozo__st_remove_resp__unpack(NULL, call->msg_len, call->msg);
    assert_non_null(resp);
    call_free(call);
    assert_int_equal(resp->n_failed, 0);
    for (unsigned i = 0; i < FILES; i++) {
        bool ours = file_id_hash(&ids[i]) % 2 == w.config.loop;

        w.id = ids[i];
        if (!ours)
            assert_int_equal(resp->elsewhere[n_elsewhere++], i);
        assert_true((world_file(&w, 0) == NULL) == (ours || i == 4));
    }
    assert_int_equal(resp->n_elsewhere, n_elsewhere);
    assert_true(n_elsewhere > 0 && n_elsewhere < FILES - 1);
    rozo__st_remove_resp__free_unpacked(resp, NULL);
    more[3].len--; /* all of the request is valid, or nothing is done */
    w.id = ids[0];
    assert_int_equal(call_run(&w, ROZO__OP__ST_REMOVE, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    more[3].len++;
    req.unfinished = true;
    assert_int_equal(call_run(&w, ROZO__OP__ST_REMOVE, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    world_free(&w);
}

/* A late write does not create a removed file again, though many other files were removed
 * since (up to some thousands). */
static void test_removals_are_remembered(void **state)
{
    enum { FILES = 800 };
    struct world w;
    uint64_t first;

    (void)state;
    world_init(&w, 1);
    first = w.id.ino;
    for (w.id.ino = first; w.id.ino < first + FILES; w.id.ino++)
        assert_int_equal(world_remove(&w), OK);
    for (w.id.ino = first; w.id.ino < first + FILES; w.id.ino++)
        assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                         ROZO__STATUS__NO_FILE);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    world_free(&w);
}

static void test_remove_leaves_nothing(void **state)
{
    struct world w;
    struct seen seen;
    struct test_call *read;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    struct test_ref ref;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_remove(&w), OK);
    world_restart(&w, false);
    for (unsigned p = 0; p < 3; p++)
        assert_int_equal(world_write(&w, p, 0, 100, v1, 8192, false, NULL), OK);
    w.hold_sent = true; /* the old bytes are still being sent to a client */
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.n_blocks = 100;
    req.to_storage = US;
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &req.base, NULL, 0, &read), OK);
    assert_non_null(read->sent);
    w.hold_sent = false;
    assert_int_equal(world_remove(&w), OK);
    for (unsigned p = 0; p < 3; p++)
        assert_null(world_file(&w, p));
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NO_FILE);
    /* A write in flight at the removal does not bring the file back. */
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                     ROZO__STATUS__NO_FILE);
    assert_int_equal(world_mark(&w, 1, 0, 1, v2), ROZO__STATUS__NO_FILE);
    assert_int_equal(world_mark(&w, 255, 0, 0, v2), ROZO__STATUS__NO_FILE);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NO_FILE);
    for (unsigned p = 0; p < 3; p++)
        assert_null(world_file(&w, p));
    call_free(read);
    w.role = RPC_ROLE_CLIENT;
    world_free(&w);
}

/* A client with the wrong distribution would store records where no reader looks for
 * them. */
static void test_another_distribution_than_the_files_is_refused(void **state)
{
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;
    Rozo__StMarkReq mark = ROZO__ST_MARK_REQ__INIT;
    uint8_t payload[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX + 8192];
    struct test_ref ref;
    struct world w;
    size_t head, body = 8192;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, true, NULL), OK);
    head = RECORD_HEADER_BYTES + codec_overhang_bytes(world_codec(&w), 0);
    body = codec_row_bytes(world_codec(&w), 8192);
    record_fill(&w, payload, payload + head, 0, 1, v2, 8192);
    ref_init(&w, &ref);
    req.ref = mark.ref = &ref.ref;
    req.first_block = mark.first_block = 1;
    req.n_records = mark.n_blocks = 1;
    req.to_storage = mark.to_storage = US;
    mark.version = v3;
    mark.projection = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t was = ref.storages[0];

        if (i % 2 == 0)
            ref.storages[0] = 99;
        else
            ref.ref.n_storages--;
        assert_int_equal(
            call_run(&w, ROZO__OP__ST_WRITE, &req.base, payload, head + body, NULL),
            ROZO__STATUS__BAD_REQUEST);
        assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &mark.base, NULL, 0, NULL),
                         ROZO__STATUS__BAD_REQUEST);
        ref.storages[0] = was;
        ref.ref.n_storages += i % 2;
        if (i == 1)
            world_restart(&w, false); /* read from its header now */
    }
    world_expect(&w, 0, 1, SEEN_HOLE, 0);
    assert_int_equal(
        call_run(&w, ROZO__OP__ST_WRITE, &req.base, payload, head + body, NULL), OK);
    world_expect(&w, 0, 1, SEEN_DATA, v2);
    world_free(&w);
}

static void test_truncate_waits_for_no_write_and_cuts_none_short(void **state)
{
    struct world w;
    struct test_call *read;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    struct test_ref ref;
    uint64_t size;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    assert_int_equal(world_write(&w, 0, 0, 128, v1, 8192, false, NULL), OK);
    size = world_file(&w, 0)->size;
    w.hold_sent = true;
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.n_blocks = 128;
    req.to_storage = US;
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &req.base, NULL, 0, &read), OK);
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), OK);
    assert_int_equal(world_file(&w, 0)->size, size); /* sendfile still finds its bytes */
    assert_true(memdisk_allocated(world_file(&w, 0)) <= 3 * 4096);
    w.hold_sent = false;
    call_free(read);
    world_expect(&w, 0, 0, SEEN_HOLE, v2);
    world_free(&w);
}

static void test_syncs_are_shared_and_cover_what_was_acknowledged(void **state)
{
    struct world w;
    struct test_call *a[4], *late;
    unsigned n_syncs, n_names;

    (void)state;
    world_init(&w, 1);
    n_syncs = w.disk.n_of[DISK_SYNC];
    n_names = w.disk.n_of[DISK_SYNC_NAME];
    assert_int_equal(world_sync(&w), ROZO__STATUS__NO_FILE);
    w.disk.hold_syncs = true;
    for (unsigned i = 0; i < 4; i++)
        a[i] = world_write_start(&w, 0, i, 1, v1, 8192, true);
    env_virtual_run_posted(&w.v);
    /* for the first write; the others arrived while it ran */
    assert_int_equal(w.disk.n_held, 1);
    late = world_write_start(&w, 0, 9, 1, v1, 8192, true);
    env_virtual_run_posted(&w.v);
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    assert_true(a[0]->done);
    assert_false(late->done);
    assert_int_equal(w.disk.n_held, 1); /* one sync for all other writes */
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(a[i]->done && a[i]->status == OK);
        call_free(a[i]);
    }
    assert_true(late->done);
    call_free(late);
    w.disk.hold_syncs = false;
    assert_int_equal(w.disk.n_of[DISK_SYNC] - n_syncs, 2);
    assert_int_equal(w.disk.n_of[DISK_SYNC_NAME] - n_names, 1);
    assert_int_equal(world_sync(&w), OK); /* nothing is left to do */
    assert_int_equal(w.disk.n_of[DISK_SYNC] - n_syncs, 2);
    /* unknown now: data that the former process left unsynced */
    world_restart(&w, false);
    n_syncs = w.disk.n_of[DISK_SYNC];
    n_names = w.disk.n_of[DISK_SYNC_NAME];
    assert_int_equal(world_sync(&w), OK);
    assert_int_equal(w.disk.n_of[DISK_SYNC] - n_syncs, 1);
    assert_int_equal(w.disk.n_of[DISK_SYNC_NAME] - n_names, 1);
    world_free(&w);
}

static void test_a_failed_sync_is_reported_and_changes_the_verifier(void **state)
{
    struct world w;
    struct test_call *c;
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    Rozo__StSyncResp *resp;
    struct test_ref ref;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    w.disk.fail_op = DISK_SYNC;
    w.disk.fail_at = 1;
    w.disk.fail_rc = -EIO;
    assert_int_equal(world_sync(&w), ROZO__STATUS__IO_ERROR);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    assert_int_equal(call_run(&w, ROZO__OP__ST_SYNC, &req.base, NULL, 0, &c), OK);
    resp = rozo__st_sync_resp__unpack(NULL, c->msg_len, c->msg);
    assert_int_equal(resp->verifier, w.config.boot + 1);
    rozo__st_sync_resp__free_unpacked(resp, NULL);
    call_free(c);
    /* a client that wrote before that and syncs only now must see the change, too */
    world_restart(&w, false);
    assert_int_equal(call_run(&w, ROZO__OP__ST_SYNC, &req.base, NULL, 0, &c), OK);
    resp = rozo__st_sync_resp__unpack(NULL, c->msg_len, c->msg);
    assert_int_equal(resp->verifier, w.config.boot + 1);
    rozo__st_sync_resp__free_unpacked(resp, NULL);
    call_free(c);
    world_free(&w);
}

/* Syncs, and returns the unstable ranges of the answer in its order: records as
 * "first+n", marks as "first+n@version". */
static const char *loose_of(struct world *w, uint64_t *from)
{
    static char text[512];
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    Rozo__StSyncResp *resp;
    struct test_call *c;
    struct test_ref ref;
    size_t len = 0;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.others = true;
    assert_int_equal(call_run(w, ROZO__OP__ST_SYNC, &req.base, NULL, 0, &c), OK);
    resp = rozo__st_sync_resp__unpack(NULL, c->msg_len, c->msg);
    text[0] = 0;
    for (size_t i = 0; i < resp->n_unstable; i++) {
        const Rozo__StCommitReq__Range *r = resp->unstable[i];

        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                r->version == 0 ? "%llu+%llu " : "%llu+%llu@%llx ",
                                (unsigned long long)r->first_block,
                                (unsigned long long)r->n_blocks,
                                (unsigned long long)r->version);
    }
    *from = resp->unstable_from;
    rozo__st_sync_resp__free_unpacked(resp, NULL);
    call_free(c);
    return text;
}

static void test_a_sync_lists_unstable_ranges(void **state)
{
    struct world w;
    uint64_t from;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 10, 4, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 14, 2, v2, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 40, 1, v2, 8192, true, NULL), OK); /* O_SYNC */
    assert_string_equal(loose_of(&w, &from), "10+6 ");
    assert_true(from == v1);
    /* the client that asked may have died */
    assert_string_equal(loose_of(&w, &from), "10+6 ");
    env_virtual_advance_ms(&w.v, 2 * UNSTABLE_MS + 1);
    assert_string_equal(loose_of(&w, &from), "");
    assert_true(from == UINT64_MAX);

    assert_int_equal(world_write(&w, 0, 12, 1, v3, 8192, false, NULL), OK); /* pending */
    assert_int_equal(world_mark(&w, 0, 14, 2, v3), OK);
    assert_string_equal(loose_of(&w, &from), "14+2@200000001 12+1 ");
    assert_true(from == v3);
    env_virtual_advance_ms(&w.v, 2 * UNSTABLE_MS + 1);
    world_restart(&w, false);
    assert_string_equal(loose_of(&w, &from), "14+2@200000001 12+1 ");
    assert_int_equal(world_commit(&w, v3), OK);
    assert_string_equal(loose_of(&w, &from), "");
    world_free(&w);
}

static uint64_t write_verifier(const struct test_call *c)
{
    Rozo__StWriteResp *resp = rozo__st_write_resp__unpack(NULL, c->msg_len, c->msg);
    uint64_t verifier;

    assert_non_null(resp);
    verifier = resp->verifier;
    rozo__st_write_resp__free_unpacked(resp, NULL);
    return verifier;
}

static uint64_t mark_verifier(const struct test_call *c)
{
    Rozo__StMarkResp *resp = rozo__st_mark_resp__unpack(NULL, c->msg_len, c->msg);
    uint64_t verifier;

    assert_non_null(resp);
    verifier = resp->verifier;
    rozo__st_mark_resp__free_unpacked(resp, NULL);
    return verifier;
}

/* Starts a sync of another client that will fail. */
static struct test_call *bad_sync_start(struct world *w)
{
    struct test_call *sync = world_sync_start(w);

    w->disk.hold_syncs = true;
    w->disk.fail_op = DISK_SYNC;
    w->disk.fail_at = 1;
    w->disk.fail_rc = -EIO;
    env_virtual_run_posted(&w->v);
    assert_int_equal(w->disk.n_held, 1);
    return sync;
}

/* Lets that sync fail; c, which waits for its first write or its sync, goes on. */
static void bad_sync_end(struct world *w, struct test_call *sync, struct test_call *c)
{
    env_virtual_run_posted(&w->v);
    assert_false(c->done);
    w->disk.hold_syncs = w->disk.hold_writes = false;
    memdisk_release(&w->disk);
    assert_int_equal(call_finish(sync), ROZO__STATUS__IO_ERROR);
    assert_true(c->done);
}

/* A failed sync may lose bytes that were in flight. The answer carries the verifier of
 * the write's beginning, so the client notices; the one after the failure would pass for
 * safe at the next sync. */
static void test_a_write_answers_with_the_verifier_of_its_beginning(void **state)
{
    /* Writes that wait: one more record; the first of a unit, with heads for all of it;
     * another projection. */
    static const struct {
        unsigned projection;
        uint64_t first;
    } tries[] = { { 0, 1 }, { 0, 100 }, { 1, 0 } };
    struct world w;
    struct test_call *sync, *c;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        world_init(&w, 1);
        assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
        sync = bad_sync_start(&w);
        w.disk.hold_writes = true;
        c = world_write_start(&w, tries[i].projection, tries[i].first, 1, v1, 8192,
                              false);
        bad_sync_end(&w, sync, c);
        assert_int_equal(c->status, OK);
        assert_int_equal(write_verifier(c), w.config.boot);
        call_free(c);
        c = world_write_start(&w, 0, 2, 1, v1, 8192, false);
        env_virtual_run_posted(&w.v);
        assert_int_equal(write_verifier(c), w.config.boot + 1);
        call_free(c);
        world_free(&w);
    }
}

/* The write's own sync succeeds, but the failed one before may have lost its bytes. */
static void test_a_synced_write_is_refused_when_a_sync_failed_meanwhile(void **state)
{
    struct world w;
    struct test_call *sync, *c;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    sync = bad_sync_start(&w);
    w.disk.hold_writes = true;
    c = world_write_start(&w, 0, 1, 1, v1, 8192, true);
    bad_sync_end(&w, sync, c);
    assert_int_equal(c->status, ROZO__STATUS__IO_ERROR);
    call_free(c);
    assert_int_equal(world_write(&w, 0, 1, 1, v1, 8192, true, NULL), OK);
    world_free(&w);
}

static void test_a_mark_answers_with_the_verifier_of_its_beginning(void **state)
{
    struct world w;
    struct test_call *sync, *c;
    unsigned n_writes;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 2, v1, 8192, false, NULL), OK);
    sync = bad_sync_start(&w);
    w.disk.hold_writes = true;
    c = world_mark_start(&w, 0, 1, 1, v2, false);
    bad_sync_end(&w, sync, c);
    assert_int_equal(c->status, OK);
    assert_int_equal(mark_verifier(c), w.config.boot);
    call_free(c);
    n_writes = w.disk.n_of[DISK_WRITE];
    c = world_mark_start(&w, 0, 1, 1, v2, false);
    env_virtual_run_posted(&w.v);
    assert_int_equal(c->status, OK);
    assert_int_equal(mark_verifier(c), w.config.boot + 1);
    assert_int_equal(w.disk.n_of[DISK_WRITE], n_writes); /* goes into the journal */
    call_free(c);
    world_free(&w);
}

/*
 * A mark removes what an earlier sync made stable only when the mark is stable. Of two
 * syncs in flight one reports that the mark's bytes are lost, the other succeeds.
 */
static void test_a_mark_removes_nothing_when_its_sync_failed(void **state)
{
    struct world w;
    uint64_t allocated;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 2, v1, 8192, true, NULL), OK);
    allocated = memdisk_allocated(world_file(&w, 0));
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), OK);
    w.disk.fail_op = DISK_SYNC;
    w.disk.fail_at = 1;
    w.disk.fail_rc = -EIO;
    assert_int_equal(world_commit(&w, v2), OK);
    env_virtual_advance_ms(&w.v, 2600);
    assert_int_equal(w.disk.fail_at, 0);
    assert_true(memdisk_allocated(world_file(&w, 0)) >= allocated);
    world_expect(&w, 0, 0, SEEN_HOLE, v2);
    world_apply(&w);
    assert_true(memdisk_allocated(world_file(&w, 0)) < allocated);
    world_expect(&w, 0, 0, SEEN_HOLE, v2);
    world_free(&w);
}

/* A record that grows within its page needs no new space. */
static void test_a_short_record_grows_on_a_full_disk(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.disk.total = w.disk.free_reported = UINT64_C(1) << 40;
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 100, true, NULL), OK);
    w.disk.free_reported = 0;
    env_virtual_advance_ms(&w.v, 10000);
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 5000, false, NULL), OK);
    world_expect(&w, 0, 0, SEEN_DATA, v2);
    /* A run replaces some records and adds others: the storage takes the former, and the
     * answer is NO_SPACE. */
    w.disk.free_reported = UINT64_C(1) << 40;
    assert_int_equal(world_write(&w, 0, 126, 1, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 130, 2, v1, 8192, true, NULL), OK);
    w.disk.free_reported = 0;
    env_virtual_advance_ms(&w.v, 10000);
    assert_int_equal(world_write(&w, 0, 124, 10, v2, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    for (unsigned b = 124; b < 134; b++) {
        bool was = b == 126 || b == 130 || b == 131;

        world_expect(&w, 0, b, was ? SEEN_DATA : SEEN_HOLE, was ? v2 : 0);
    }
    assert_int_equal(world_write(&w, 1, 0, 3, v2, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE); /* no file was created */
    world_free(&w);
}

static void test_small_caches_serve_many_files(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    storage_close(w.storage);
    w.config.files_max = 4;
    assert_int_equal(storage_open(&w.config, &w.storage), 0);
    world_start(&w);
    for (unsigned round = 0; round < 3; round++) {
        for (w.id.ino = 1; w.id.ino <= 60; w.id.ino++)
            assert_int_equal(world_write(&w, 0, round, 1, v1, 500, round == 1, NULL), OK);
    }
    for (w.id.ino = 1; w.id.ino <= 60; w.id.ino++) {
        for (unsigned round = 0; round < 3; round++) {
            assert_int_equal(world_read(&w, 0, round, 1, &seen, NULL), OK);
            assert_int_equal(seen.kind, SEEN_DATA);
        }
    }
    world_free(&w);
}

static bool close_idle(void *arg)
{
    return storage_close_idle(((struct world *)arg)->storage, UINT_MAX);
}

/* A storage with fewer descriptors than files_max closes idle files and loses no data. */
static void test_idle_files_make_room_for_others(void **state)
{
    struct world w;
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    w.disk.fds_max = w.disk.n_fds + 3;
    w.disk.close_idle = close_idle;
    w.disk.close_idle_arg = &w;
    for (unsigned round = 0; round < 3; round++) {
        for (w.id.ino = 1; w.id.ino <= 60; w.id.ino++)
            assert_int_equal(world_write(&w, 0, round, 1, v1, 500, round == 1, NULL), OK);
    }
    assert_false(storage_close_idle(w.storage, 0)); /* no descriptor is below 0 */
    for (w.id.ino = 1; w.id.ino <= 60; w.id.ino++) {
        assert_int_equal(world_sync(&w), OK);
        for (unsigned round = 0; round < 3; round++) {
            assert_int_equal(world_read(&w, 0, round, 1, &seen, NULL), OK);
            assert_int_equal(seen.kind, SEEN_DATA);
        }
    }
    world_free(&w);
}

/* Without a descriptor and an idle file, every request is BUSY: no file counts as
 * damaged or absent. Later all requests succeed. */
static void test_requests_without_a_descriptor_are_answered_busy(void **state)
{
    struct world w;
    struct seen seen[2];
    uint64_t block;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 2, v1, 8192, true, NULL), OK);
    world_restart(&w, false);
    w.disk.fds_max = w.disk.n_fds;
    w.disk.close_idle = close_idle;
    w.disk.close_idle_arg = &w;
    assert_int_equal(world_read(&w, 0, 0, 2, seen, NULL), ROZO__STATUS__BUSY);
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, true, NULL), ROZO__STATUS__BUSY);
    assert_int_equal(world_write(&w, 1, 0, 1, v2, 8192, true, NULL), ROZO__STATUS__BUSY);
    assert_int_equal(world_mark(&w, 0, 0, 1, v2), ROZO__STATUS__BUSY);
    assert_int_equal(world_sync(&w), ROZO__STATUS__BUSY);
    assert_int_equal(world_next(&w, 0, &block), ROZO__STATUS__BUSY);
    w.disk.fds_max = 0;
    assert_int_equal(world_read(&w, 0, 0, 2, seen, NULL), OK);
    assert_int_equal(seen[1].kind, SEEN_DATA);
    assert_int_equal(seen[1].version, v1);
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, true, NULL), OK);
    world_expect(&w, 0, 0, SEEN_DATA, v2);
    world_free(&w);
}

static void test_requests_on_one_file_go_in_turn(void **state)
{
    struct world w;
    struct test_call *c[40];
    struct seen seen;

    (void)state;
    world_init(&w, 1);
    for (unsigned i = 0; i < 40; i++)
        c[i] = world_write_start(&w, 0, 0, 128, v1 + i, 8192, i % 7 == 0);
    env_virtual_run_posted(&w.v);
    for (unsigned i = 0; i < 40; i++) {
        assert_true(c[i]->done && c[i]->status == OK);
        call_free(c[i]);
    }
    assert_int_equal(world_read(&w, 0, 127, 1, &seen, NULL), OK);
    assert_int_equal(seen.version, v1 + 39);
    world_free(&w);
}

static void test_too_many_requests_are_answered_busy(void **state)
{
    struct world w;
    struct test_call *c[12];
    unsigned n_busy = 0;

    (void)state;
    world_init(&w, 1);
    storage_close(w.storage);
    w.config.ops_max = 8;
    assert_int_equal(storage_open(&w.config, &w.storage), 0);
    world_start(&w);
    for (unsigned i = 0; i < 12; i++)
        c[i] = world_write_start(&w, 0, i, 1, v1, 8192, false);
    env_virtual_run_posted(&w.v);
    for (unsigned i = 0; i < 12; i++) {
        assert_true(c[i]->done);
        n_busy += c[i]->status == ROZO__STATUS__BUSY;
        call_free(c[i]);
    }
    assert_int_equal(n_busy, 4);
    world_free(&w);
}

static void test_a_full_disk_refuses_first_writes_and_harms_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.disk.total = 1 << 30;
    w.disk.free_reported = 1 << 29;
    assert_int_equal(world_write(&w, 0, 0, 10, v1, 8192, false, NULL), OK);
    w.disk.free_reported = 1 << 20; /* below 1 % */
    env_virtual_advance_ms(&w.v, 1000);
    assert_int_equal(world_write(&w, 0, 10, 1, v1, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    assert_int_equal(world_write(&w, 0, 5, 10, v2, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    /* replacing records is accepted: see write_space() */
    world_expect(&w, 0, 5, SEEN_DATA, v2);
    world_expect(&w, 0, 10, SEEN_HOLE, 0);
    /* replacing needs no space */
    assert_int_equal(world_write(&w, 0, 0, 10, v2, 8192, false, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 3, 1, v3), OK);
    world_expect(&w, 0, 5, SEEN_DATA, v2);
    world_free(&w);
}

/* The file system's own ENOSPC, at every page that may be missing. */
static void test_running_out_of_space_leaves_old_records_whole(void **state)
{
    (void)state;
    for (unsigned extra = 0; extra < 40; extra++) {
        struct world w;
        struct seen seen[20];
        uint16_t status;

        world_init(&w, extra);
        assert_int_equal(world_write(&w, 0, 120, 8, v1, 8192, true, NULL), OK);
        w.disk.pages_max = w.disk.n_pages + extra;
        /* over two extents */
        status = world_write(&w, 0, 116, 20, v2, 8192, false, NULL);
        assert_int_equal(status, extra >= 14 ? OK : ROZO__STATUS__NO_SPACE);
        assert_int_equal(world_read(&w, 0, 116, 20, seen, NULL), OK);
        for (unsigned i = 0; i < 20; i++) {
            bool old = i >= 4 && i < 12;

            if (status == OK || (seen[i].kind == SEEN_DATA && !old))
                assert_int_equal(seen[i].version, v2);
            else
                assert_int_equal(seen[i].kind, old ? SEEN_DATA : SEEN_HOLE);
            if (status != OK && old)
                assert_int_equal(seen[i].version, v1);
        }
        world_free(&w);
    }
}

/* Every disk request of a few operations fails once, in every way that a disk may
 * fail. */
static void test_disk_errors_become_answers(void **state)
{
    static const int errors[] = { -EIO, -ENOSPC, -ENOMEM, -EMFILE };

    (void)state;
    for (unsigned e = 0; e < 4; e++) {
        for (unsigned at = 1; at < 60; at++) {
            struct world w;
            struct seen seen[3];
            uint64_t block;

            world_init(&w, at);
            w.disk.fail_at = at;
            w.disk.fail_rc = errors[e];
            world_write(&w, 0, 0, 3, v1, 8192, true, NULL);
            world_mark(&w, 1, 1, 1, v2);
            world_write(&w, 0, 0, 3, v3, 8192, false, NULL);
            world_mark(&w, 0, 0, 0, v3 + 1);
            world_next(&w, 0, &block);
            world_sync(&w);
            world_remove(&w);
            w.disk.fail_at = 0;
            world_restart(&w, false);
            assert_int_equal(world_write(&w, 0, 0, 3, v3 + 2, 8192, true, NULL), OK);
            assert_int_equal(world_read(&w, 0, 0, 3, seen, NULL), OK);
            assert_int_equal(seen[2].version, v3 + 2);
            assert_int_equal(seen[2].kind, SEEN_DATA);
            world_free(&w);
        }
    }
}

static void break_mark_pages(struct world *w)
{
    uint8_t byte;

    for (unsigned slot = 0; slot < 2; slot++) {
        memdisk_peek(world_file(w, 0), PROJFILE_MARKS_AT + 4096 * slot, &byte, 1);
        if (byte != 0)
            poke_byte(w, 0, PROJFILE_MARKS_AT + 4096 * slot + 50);
    }
}

/* A healer asks for heads only, and gets the large marks in a list of their own. */
static void test_next_gives_marks_to_a_healer(void **state)
{
    struct world w;
    struct test_ref ref;
    struct test_call *c;
    Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;
    Rozo__StNextResp *resp;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 5000, 1, v1, 8192, false, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 1000, 1000, v2), OK);
    assert_int_equal(world_mark(&w, 0, 9000, 0, v2 + 1), OK);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.from_block = 1500;
    req.heads = true;
    req.to_storage = US;
    assert_int_equal(call_run(&w, ROZO__OP__ST_NEXT, &req.base, NULL, 0, &c), OK);
    resp = rozo__st_next_resp__unpack(NULL, c->msg_len, c->msg);
    assert_non_null(resp);
    assert_int_equal(resp->block, 5000);
    assert_int_equal(resp->n_marks, 2);
    assert_int_equal(resp->marks[0]->first_block, 1000);
    assert_int_equal(resp->marks[0]->n_blocks, 1000);
    assert_int_equal(resp->marks[0]->version, v2);
    assert_int_equal(resp->marks[1]->first_block, 9000);
    assert_int_equal(resp->marks[1]->n_blocks, 0);
    rozo__st_next_resp__free_unpacked(resp, NULL);
    call_free(c);
    world_free(&w);
}

/* A record that all storages decided on replaces a damaged one, though it is not
 * newer. */
static void test_a_node_replaces_what_is_damaged(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
    assert_int_equal(world_write(&w, 0, 3, 1, v2, 8192, true, NULL), OK);
    poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * 7 + 8);
    poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * 8 + 8);
    world_restart(&w, false);
    world_expect(&w, 0, 7, SEEN_DAMAGED, 0);
    w.role = RPC_ROLE_NODE;
    assert_int_equal(world_write(&w, 0, 7, 1, v1, 8192, true, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 8, 1, v1), OK);
    world_expect(&w, 0, 7, SEEN_DATA, v1);
    world_expect(&w, 0, 8, SEEN_HOLE, v1);
    poke_byte(&w, 0, 40); /* the header page */
    world_restart(&w, false);
    w.auto_apply = false;
    assert_int_equal(world_write(&w, 0, 7, 1, v1, 8192, true, NULL), OK);
    world_expect(&w, 0, 7, SEEN_DATA, v1);
    world_expect(&w, 0, 8, SEEN_DAMAGED, 0);
    world_free(&w);
}

/* Pending records over a damaged file are not reported, so a record that all others
 * decided on may be older. */
static void test_a_node_replaces_what_is_damaged_below_what_is_pending(void **state)
{
    struct world w;

    (void)state;
    for (unsigned how = 0; how < 2; how++) {
        world_init(&w, how);
        assert_int_equal(world_write(&w, 0, 0, 10, v1, 8192, true, NULL), OK);
        if (how == 0)
            assert_int_equal(world_mark(&w, 0, 0, 0, v3), OK);
        else
            assert_int_equal(world_write(&w, 0, 0, 10, v3, 8192, false, NULL), OK);
        assert_int_equal(world_sync(&w), OK);
        poke_byte(&w, 0, 40); /* the header page */
        world_restart(&w, false);
        assert_int_equal(world_write(&w, 0, 7, 1, v2, 8192, true, NULL),
                         ROZO__STATUS__STALE_VERSION);
        w.role = RPC_ROLE_NODE;
        assert_int_equal(world_write(&w, 0, 7, 1, v2, 8192, true, NULL), OK);
        for (unsigned i = 0; i < 2; i++) {
            world_expect(&w, 0, 7, SEEN_DATA, v2);
            world_expect(&w, 0, 8, SEEN_DAMAGED, 0);
            world_restart(&w, true);
        }
        world_free(&w);
    }
}

static void test_rotten_and_cut_projection_files_are_damaged(void **state)
{
    struct world w;
    struct seen seen[200];
    uint64_t block;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 1000, 0, v1 + 1), OK);
    world_restart(&w, false);
    poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * 7 + 8); /* the head of block 7 */
    assert_int_equal(world_read(&w, 0, 0, 100, seen, NULL), OK);
    assert_int_equal(seen[6].kind, SEEN_DATA);
    assert_int_equal(seen[7].kind, SEEN_DAMAGED);
    assert_int_equal(seen[8].kind, SEEN_DATA);
    assert_int_equal(world_write(&w, 0, 7, 1, v2, 8192, true, &block),
                     ROZO__STATUS__STALE_VERSION); /* unknown what was there before */
    assert_int_equal(block >> 32, 1);
    assert_int_equal(world_write(&w, 0, 7, 1, v3, 8192, true, NULL), OK); /* healed */
    world_expect(&w, 0, 7, SEEN_DATA, v3);

    poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * 9 + 22); /* the version of block 9 */
    world_expect(&w, 0, 9, SEEN_DAMAGED, 0);
    assert_int_equal(world_write(&w, 0, 9, 1, v3 + 1, 8192, true, NULL), OK);
    world_expect(&w, 0, 9, SEEN_DATA, v3 + 1);

    memdisk_cut_file(world_file(&w, 0), PROJFILE_EXTENTS_AT + 4096 + 50 * 4096 + 100);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 100, seen, NULL), OK);
    assert_int_equal(seen[49].kind, SEEN_DATA);
    assert_int_equal(seen[50].kind, SEEN_DAMAGED);
    assert_int_equal(seen[99].kind, SEEN_DAMAGED);

    break_mark_pages(&w);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_sync(&w), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_next(&w, 0, &block), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_read(&w, 255, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    break_mark_pages(&w); /* all healed again */
    world_restart(&w, false);
    world_expect(&w, 0, 1000, SEEN_HOLE, v1 + 1);

    poke_byte(&w, 0, 40); /* the header page */
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_remove(&w), OK);
    world_restart(&w, false);
    assert_int_equal(world_write(&w, 0, 0, 1, v3, 8192, true, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), 100);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    memdisk_cut_file(world_file(&w, 0), 0);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    world_free(&w);
}

/* The refusal of one write is about what was lost before; a later record that rots needs
 * a refusal again. */
static void test_record_that_rots_later_is_refused_once_more(void **state)
{
    static const unsigned blocks[] = { 7, 9 };
    struct world w;
    uint64_t newest;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
    world_restart(&w, false);
    poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * 7 + 8);
    assert_int_equal(world_write(&w, 0, 7, 1, v2, 8192, true, NULL),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(&w, 0, 7, 1, v3, 8192, true, NULL), OK);
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t epoch = 5 + 4 * i, late = (epoch - 1) << 32 | 1,
                       fresh = (epoch + 1) << 32 | 1;
        unsigned block = blocks[i];

        assert_int_equal(world_write(&w, 0, block, 1, epoch << 32 | 1, 8192, true, NULL),
                         OK);
        poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * block + 8);
        world_expect(&w, 0, block, SEEN_DAMAGED, 0);
        for (unsigned j = 0; j < 2; j++) { /* any number of times */
            assert_int_equal(world_write(&w, 0, block, 1, late, 8192, true, &newest),
                             ROZO__STATUS__STALE_VERSION);
            assert_int_equal(newest >> 32, epoch);
            assert_int_equal(world_mark(&w, 0, block, 1, late),
                             ROZO__STATUS__STALE_VERSION);
        }
        assert_int_equal(world_write(&w, 0, block, 1, fresh, 8192, true, NULL), OK);
        world_expect(&w, 0, block, SEEN_DATA, fresh);
    }
    world_free(&w);
}

/* Each of several damaged blocks is refused once, whatever is accepted in between. */
static void test_each_damaged_block_is_refused_once(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.auto_apply = true;
    assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
    world_restart(&w, false);
    for (unsigned block = 10; block < 20; block++) {
        poke_byte(&w, 0, PROJFILE_EXTENTS_AT + 32 * block + 8);
        assert_int_equal(world_write(&w, 0, block, 1, v2, 8192, true, NULL),
                         ROZO__STATUS__STALE_VERSION);
    }
    for (unsigned block = 20; block-- > 10;) /* newest first */
        assert_int_equal(world_write(&w, 0, block, 1, v3 + block, 8192, true, NULL), OK);
    world_free(&w);
}

/* Checks that the first writer must take a new epoch; then a new file begins, in which
 * all blocks that were not written are unknown. */
static void check_is_replaced(struct world *w)
{
    const uint64_t late = UINT64_C(5) << 32 | 1, fresh = UINT64_C(6) << 32 | 1,
                   fresher = UINT64_C(7) << 32 | 1;
    struct seen seen[200];
    uint64_t newest, block;

    assert_int_equal(world_read(w, 0, 0, 1, seen, NULL), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_write(w, 0, 3, 2, late, 8192, false, &newest),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(newest, late);
    assert_int_equal(world_write(w, 0, 3, 2, v1, 8192, false, &newest),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(w, 0, 3, 2, fresh, 8192, false, NULL), OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_read(w, 0, 0, 128, seen, NULL), OK);
        assert_int_equal(seen[2].kind, SEEN_DAMAGED); /* never a hole */
        assert_int_equal(seen[3].version, fresh);
        assert_int_equal(seen[4].version, fresh);
        assert_int_equal(seen[5].kind, SEEN_DAMAGED);
        assert_int_equal(seen[127].kind, SEEN_DAMAGED);
        assert_int_equal(world_next(w, 70, &block), OK);
        assert_int_equal(block, 70);
        assert_int_equal(world_sync(w), OK);
        world_restart(w, i == 0);
    }
    assert_int_equal(world_mark(w, 0, 100, 0, fresh + 1), ROZO__STATUS__STALE_VERSION);
    /* the mark's range is known then */
    assert_int_equal(world_mark(w, 0, 100, 0, fresher), OK);
    assert_int_equal(world_mark(w, 0, 50, 10, fresher + 1), OK);
    world_restart(w, false);
    world_expect(w, 0, 49, SEEN_DAMAGED, 0);
    world_expect(w, 0, 50, SEEN_HOLE, fresher + 1);
    world_expect(w, 0, 60, SEEN_DAMAGED, 0);
    world_expect(w, 0, 1 << 20, SEEN_HOLE, fresher);
}

static void test_a_damaged_file_makes_way_for_new_records(void **state)
{
    static const uint8_t zeros[4096];

    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        struct world w;
        struct disk_file *f;
        uint64_t newest;

        world_init(&w, how);
        w.auto_apply = true;
        assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
        assert_int_equal(world_mark(&w, 0, 1000, 0, v2), OK);
        f = world_file(&w, 0);
        if (how == 0)
            poke_byte(&w, 0, 40);
        else if (how == 1)
            break_mark_pages(&w);
        else if (how == 2)
            memdisk_poke(&w.disk, f, 0, zeros, sizeof(zeros));
        else
            memdisk_cut_file(f, 0);
        world_restart(&w, false);
        newest = w.disk.n_of[DISK_RENAME];
        check_is_replaced(&w);
        assert_int_equal(w.disk.n_of[DISK_RENAME], newest + (how < 3));
        assert_true(how == 3 ? f == world_file(&w, 0)
                             : f->linked && f != world_file(&w, 0));
        assert_int_equal(world_remove(&w), OK);
        assert_false(f->linked); /* the quarantined file, too */
        world_free(&w);
    }
}

/* The file is quarantined, there is no room for the new one, and the daemon ends: the
 * loss is not forgotten. */
static void test_a_quarantined_file_is_not_forgotten(void **state)
{
    const uint64_t v5 = UINT64_C(5) << 32, v6 = UINT64_C(6) << 32;
    struct world w;
    struct seen seen[10];

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 10, v1, 8192, true, NULL), OK);
    poke_byte(&w, 0, 40);
    world_restart(&w, false);
    assert_int_equal(world_write(&w, 0, 3, 1, v5, 8192, false, NULL),
                     ROZO__STATUS__STALE_VERSION);
    w.disk.fail_op = DISK_WRITE;
    w.disk.fail_at = 1;
    w.disk.fail_rc = -ENOSPC;
    w.disk.fail_path = "objects/";
    assert_int_equal(world_write(&w, 0, 3, 1, v6, 8192, false, NULL),
                     ROZO__STATUS__NO_SPACE);
    assert_int_equal(w.disk.n_of[DISK_RENAME], 1);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 10, seen, NULL), ROZO__STATUS__DAMAGED);
    assert_int_equal(world_write(&w, 0, 3, 1, v5, 8192, false, NULL),
                     ROZO__STATUS__STALE_VERSION);
    assert_int_equal(world_write(&w, 0, 3, 1, v6, 8192, false, NULL), OK);
    assert_int_equal(world_read(&w, 0, 0, 10, seen, NULL), OK);
    assert_int_equal(seen[2].kind, SEEN_DAMAGED);
    assert_int_equal(seen[3].version, v6);
    world_free(&w);
}

/* A first write may fail at any point: blocks never written are holes, or there is no
 * file. */
static void test_a_failed_first_write_leaves_holes(void **state)
{
    static const int errors[] = { -EIO, -ENOSPC, -ENOMEM, -EMFILE };

    (void)state;
    for (unsigned i = 0; i < 4 * 2 * 30; i++) {
        struct world w;
        struct seen seen[3];
        uint64_t first = i / 4 % 2 == 0 ? 0 : 130;
        uint16_t status;

        world_init(&w, i);
        w.disk.fail_at = 1 + i / 8;
        w.disk.fail_rc = errors[i % 4];
        world_write(&w, 0, first, i / 4 % 2 == 0 ? 100 : 126, v1, 8192, false, NULL);
        world_write(&w, 0, 1000, 128, v1 + 1, 8192, false, NULL);
        w.disk.fail_at = 0;
        for (unsigned k = 0; k < 2; k++) {
            for (uint64_t b = 126; b < 1200; b += 1014) {
                status = world_read(&w, 0, b, 3, seen, NULL);
                assert_true(status == OK || status == ROZO__STATUS__NO_FILE);
                if (status == OK)
                    assert_int_equal(seen[0].kind, SEEN_HOLE);
            }
            world_restart(&w, false);
        }
        world_free(&w);
    }
}

/* A file of an unknown format is not replaced. */
static void test_a_foreign_file_is_left_alone(void **state)
{
    struct world w;
    uint8_t page[4096];
    uint32_t crc;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, true, NULL), OK);
    memdisk_peek(world_file(&w, 0), 0, page, sizeof(page));
    put_le32(page + 8, PROJFILE_FORMAT_QUORUM + 1);
    put_le32(page + 12, 0);
    crc = codec_crc32c(0, page, sizeof(page));
    put_le32(page + 12, crc);
    memdisk_poke(&w.disk, world_file(&w, 0), 0, page, sizeof(page));
    world_restart(&w, false);
    for (uint64_t epoch = 2; epoch < 5; epoch++) {
        assert_int_equal(world_write(&w, 0, 0, 1, epoch << 32 | 1, 8192, true, NULL),
                         ROZO__STATUS__DAMAGED);
        assert_int_equal(world_mark(&w, 0, 0, 0, epoch << 32 | 2), ROZO__STATUS__DAMAGED);
    }
    assert_int_equal(w.disk.n_of[DISK_RENAME], 0);
    world_free(&w);
}

/* Lost bytes of a file, cut off or zeroed anywhere, are damage, never a hole. */
static void test_lost_bytes_are_not_holes(void **state)
{
    static const uint8_t zeros[8192];
    static const uint64_t cuts[] = {
        4096, 4097, 8192, 12288, 16384, 16385, 16384 + 2000, 20480, 20481, 300000, 600000,
    };

    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        for (unsigned i = 0; i < 11 + 8; i++) {
            struct world w;
            struct seen seen[400];
            unsigned p, n_here = 0;
            uint16_t status = OK;

            world_init(&w, i);
            w.layout = layout;
            p = codec_n(world_codec(&w)) - 1; /* with an overhang, in layouts 1 and 2 */
            assert_int_equal(world_write(&w, p, 0, 100, v1, 8192, false, NULL), OK);
            assert_int_equal(world_write(&w, p, 130, 40, v1, 8192, false, NULL), OK);
            assert_int_equal(world_write(&w, p, 270, 1, v1, 8192, false, NULL), OK);
            if (i % 2 == 0)
                world_settle(&w);
            if (i < 11)
                memdisk_cut_file(world_file(&w, p), cuts[i]);
            else
                memdisk_poke(&w.disk, world_file(&w, p), 4096 + (i - 11) * 4096, zeros,
                             i % 3 == 0 ? 8192 : 4096);
            world_restart(&w, false);
            for (unsigned b = 0; b < 400; b += 100)
                status = world_read(&w, p, b, 100, seen + b, NULL);
            assert_true(status == OK || status == ROZO__STATUS__DAMAGED);
            for (unsigned b = 0; b < 271 && status == OK; b++) {
                bool written = b < 100 || (b >= 130 && b < 170) || b == 270;

                assert_false(written && seen[b].kind == SEEN_HOLE);
                n_here += seen[b].kind == SEEN_DATA;
            }
            assert_true(n_here < 141 || i > 8);
            world_free(&w);
        }
    }
}

/* Makes a file with two mark pages, and blocks 0 to 9, 300 and 600; then cuts it at
 * `size`. */
static void begin_cut_file(struct world *w, unsigned seed, uint64_t size)
{
    world_init(w, seed);
    w->auto_apply = true;
    assert_int_equal(world_write(w, 0, 0, 10, v1, 8192, true, NULL), OK);
    assert_int_equal(world_write(w, 0, 300, 1, v1, 8192, true, NULL), OK);
    assert_int_equal(world_write(w, 0, 600, 1, v1, 8192, true, NULL), OK);
    for (unsigned i = 0; i < 3; i++) /* a loss of power cannot have cut it */
        world_settle(w);
    memdisk_cut_file(world_file(w, 0), size);
    memdisk_settle(&w->disk); /* a power cut does not bring it back either */
    world_restart(w, false);
}

static void expect_nothing_forgotten(struct world *w)
{
    static const uint64_t lost[] = { 5, 300, 600 };

    for (unsigned i = 0; i < 3; i++)
        world_expect(w, 0, lost[i], SEEN_DAMAGED, 0);
}

/* A file that was cut before its extents knows that it lost something, also after it has
 * grown again. */
static void test_a_cut_file_knows_it_after_it_grew(void **state)
{
    static const uint64_t cuts[] = { 4096, 5000, 8192, 9000, 12288, 16384, 17000 };
    static const uint64_t firsts[] = { 2, 140, 900 };

    (void)state;
    for (unsigned i = 0; i < 7 * 3 * 4; i++) {
        uint64_t first = firsts[i / 7 % 3];
        unsigned how = i / 21;
        struct world w;

        begin_cut_file(&w, i, cuts[i % 7]);
        if (how == 3) /* not opened in between */
            w.role = RPC_ROLE_NODE;
        else
            expect_nothing_forgotten(&w);
        if (how == 1)
            assert_int_equal(world_mark(&w, 0, first, 1, UINT64_C(3) << 32), OK);
        else
            assert_int_equal(
                world_write(&w, 0, first, 1, UINT64_C(3) << 32, 8192, how == 0, NULL),
                OK);
        w.role = RPC_ROLE_CLIENT;
        for (unsigned k = 0; k < 4; k++) {
            expect_nothing_forgotten(&w);
            world_restart(&w, k == 2);
        }
        world_free(&w);
    }
}

/* Returns the offset of the mark page with the higher sequence, or of the other one. */
static uint64_t mark_page_at(struct world *w, bool newer)
{
    uint64_t sequences[2];

    for (unsigned slot = 0; slot < 2; slot++) {
        uint8_t bytes[8];

        memdisk_peek(world_file(w, 0), PROJFILE_MARKS_AT + 4096 * slot + 16, bytes, 8);
        sequences[slot] = get_le64(bytes);
        assert_true(sequences[slot] != 0);
    }
    return PROJFILE_MARKS_AT + 4096 * ((sequences[1] > sequences[0]) == newer);
}

/* Writes block 5, a large mark over blocks 100 to 1099, then a mark of the next version
 * over all, synced. */
static void begin_two_marks(struct world *w, unsigned seed, bool power_failed)
{
    world_init(w, seed);
    w->auto_apply = true;
    assert_int_equal(world_write(w, 0, 5, 1, v1, 8192, true, NULL), OK);
    if (power_failed) {
        world_restart(w, true);
        assert_int_equal(world_write(w, 0, 5, 1, v1, 8192, true, NULL), OK);
    }
    assert_int_equal(world_mark(w, 0, 100, 1000, v2), OK);
    assert_int_equal(world_sync(w), OK);
    assert_int_equal(world_mark(w, 0, 0, 2000, v3), OK);
    assert_int_equal(world_sync(w), OK);
    for (unsigned i = 0; i < 3; i++)
        world_settle(w);
}

static void break_mark_page(struct world *w, bool newer, uint64_t byte)
{
    poke_byte(w, 0, mark_page_at(w, newer) + byte);
    memdisk_settle(&w->disk);
    world_restart(w, false);
}

/* A rotten mark page may have been synced, and the other one is older: the blocks are
 * unknown. */
static void test_a_rotten_mark_page_does_not_pass_for_the_one_before(void **state)
{
    static const uint64_t bytes[] = { 12, 33, 50, 4095 };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct seen seen;
        struct world w;

        begin_two_marks(&w, i, false);
        break_mark_page(&w, true, bytes[i]);
        assert_int_equal(world_read(&w, 0, 500, 1, &seen, NULL), ROZO__STATUS__DAMAGED);
        world_free(&w);
    }
}

static void test_an_older_mark_page_may_rot(void **state)
{
    static const uint64_t bytes[] = { 12, 33, 50, 4095 };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct world w;

        begin_two_marks(&w, i, false);
        break_mark_page(&w, false, bytes[i]);
        world_expect(&w, 0, 5, SEEN_HOLE, v3);
        world_expect(&w, 0, 500, SEEN_HOLE, v3);
        world_expect(&w, 0, 1500, SEEN_HOLE, v3);
        world_free(&w);
    }
}

/* A torn mark page was never promised by a sync, so the one before it counts. */
static void test_a_torn_mark_page_gives_way_to_the_one_before(void **state)
{
    struct seen seen;
    struct world w;

    (void)state;
    begin_two_marks(&w, 1, true);
    break_mark_page(&w, true, 50);
    assert_int_equal(world_read(&w, 0, 500, 1, &seen, NULL), OK);
    assert_int_equal(seen.kind, SEEN_HOLE);
    world_free(&w);
}

/* Nothing is written to a cut file until the note of the loss is stable. */
static void test_a_cut_file_that_cannot_say_so_gets_no_longer(void **state)
{
    static const enum disk_op ops[] = { DISK_WRITE, DISK_SYNC };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t version = UINT64_C(3) << 32;
        struct world w;

        begin_cut_file(&w, i, i < 2 ? 4096 : 8192);
        w.disk.fail_op = ops[i % 2];
        w.disk.fail_at = 1;
        w.disk.fail_rc = -EIO;
        w.disk.fail_path = "objects/";
        assert_int_equal(world_write(&w, 0, 900, 1, version, 8192, false, NULL),
                         ROZO__STATUS__IO_ERROR);
        assert_int_equal(w.disk.fail_at, 0);
        assert_true(world_file(&w, 0)->size <= PROJFILE_FRONT_BYTES);
        expect_nothing_forgotten(&w);
        assert_int_equal(world_write(&w, 0, 900, 1, version, 8192, false, NULL), OK);
        world_restart(&w, true);
        expect_nothing_forgotten(&w);
        world_free(&w);
    }
}

/* The power is cut anywhere in the write that extends a cut file. */
static void test_a_cut_file_knows_it_after_a_loss_of_power(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        struct world w;

        begin_cut_file(&w, i, i % 2 == 0 ? 4096 : 8192);
        w.disk.cut_at = w.disk.n_requests + 1 + i / 2 % 20;
        world_write(&w, 0, 900, 1, UINT64_C(3) << 32, 8192, false, NULL);
        world_restart(&w, true);
        expect_nothing_forgotten(&w);
        world_free(&w);
    }
}

/* A write to new blocks goes on during a sync; the note that they exist is written
 * later. */
static void test_new_blocks_wait_for_no_sync(void **state)
{
    struct world w;
    struct test_ref ref;
    struct test_call *c;
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;

    (void)state;
    world_init(&w, 1);
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 200, 1, v1, 8192, false, NULL), OK);
    w.disk.hold_syncs = true;
    c = call_start(&w, ROZO__OP__ST_SYNC, &req.base, NULL, 0);
    env_virtual_run_posted(&w.v);
    assert_false(c->done);
    assert_int_equal(world_write(&w, 0, 400, 1, v1, 8192, false, NULL), OK);
    w.disk.hold_syncs = false;
    memdisk_release(&w.disk);
    env_virtual_run_posted(&w.v);
    assert_int_equal(c->status, OK);
    call_free(c);
    assert_int_equal(world_write(&w, 0, 0, 1, v2, 8192, false, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), 20480 + 8192);
    world_restart(&w, false);
    world_expect(&w, 0, 0, SEEN_DATA, v2);
    world_expect(&w, 0, 200, SEEN_DAMAGED, 0);
    world_expect(&w, 0, 400, SEEN_DAMAGED, 0);
    world_expect(&w, 0, 600, SEEN_HOLE, 0);
    world_free(&w);
}

/* Too many ranges for the page, each too large for heads: the next mark is refused, and
 * the file is intact. */
static void test_huge_marks_have_an_end(void **state)
{
    const uint64_t step = UINT64_C(1) << 30;
    struct world w;
    unsigned n = 0;

    (void)state;
    world_init(&w, 1);
    while (n < 200 && world_mark(&w, 0, n * step, step / 2, v1 + n) == OK)
        n++;
    assert_true(n == MARKS_MAX);
    assert_true(memdisk_allocated(world_file(&w, 0)) < 100000);
    assert_int_equal(world_mark(&w, 0, n * step, step / 2, v1 + n),
                     ROZO__STATUS__NO_SPACE);
    for (unsigned i = 0; i < n; i += 20) {
        world_expect(&w, 0, i * step + 7, SEEN_HOLE, v1 + i);
        world_expect(&w, 0, i * step + step / 2, SEEN_HOLE, 0);
    }
    assert_int_equal(world_write(&w, 0, 5, 1, v3, 8192, false, NULL), OK);
    assert_int_equal(world_mark(&w, 0, 1000, 0, v3 + 1), OK); /* replaces many marks */
    world_expect(&w, 0, 5 * step, SEEN_HOLE, v3 + 1);
    world_free(&w);
}

/* A file is cut while a daemon has it open. */
static void test_a_file_cut_while_it_is_open(void **state)
{
    struct world w;
    struct seen seen[100];

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 100, v1, 8192, true, NULL), OK);
    assert_int_equal(world_write(&w, 0, 100, 20, v1, 100, true, NULL), OK);
    assert_int_equal(world_read(&w, 0, 20, 100, seen, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), PROJFILE_EXTENTS_AT + 4096 + 50 * 4096 + 100);
    assert_int_equal(world_read(&w, 0, 0, 100, seen, NULL), ROZO__STATUS__IO_ERROR);
    assert_int_equal(world_read(&w, 0, 55, 2, seen, NULL), ROZO__STATUS__IO_ERROR);
    assert_int_equal(world_read(&w, 0, 0, 50, seen, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), PROJFILE_EXTENTS_AT + 32 * 10);
    assert_int_equal(world_read(&w, 0, 20, 100, seen, NULL), OK);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(seen[i].kind, SEEN_DAMAGED);
    assert_int_equal(world_write(&w, 0, 20, 100, v3, 8192, true, NULL), OK);
    assert_int_equal(world_read(&w, 0, 20, 100, seen, NULL), OK);
    assert_int_equal(seen[99].version, v3);
    world_free(&w);
}

/* A block that was never written stays a hole over restarts and power cuts. */
static void test_holes_stay_holes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(60); seed += UNIT_STEP) {
        struct world w;
        struct seen seen[128];

        world_init(&w, seed);
        w.layout = seed % 3;
        for (unsigned round = 0; round < 4; round++) {
            for (unsigned i = 0; i < 12; i++) {
                uint64_t b = env_virtual_below(&w.v, 60) * 10;

                assert_int_equal(world_write(&w, 0, b, 1 + b % 3, v1 + (i + 12 * round),
                                             8192, i % 5 == 0, NULL),
                                 OK);
                if (env_virtual_below(&w.v, 6) == 0)
                    world_settle(&w);
                if (env_virtual_below(&w.v, 6) == 0)
                    world_restart(&w, false);
            }
            world_restart(&w, true);
            for (unsigned b = 0; b < 600; b += 100) {
                uint16_t status = world_read(&w, 0, b, 100, seen, NULL);

                if (status != OK) { /* only data that was never synced */
                    assert_int_equal(status, ROZO__STATUS__NO_FILE);
                    continue;
                }
                for (unsigned i = 0; i < 100; i++)
                    if ((b + i) % 10 > 2)
                        assert_int_equal(seen[i].kind, SEEN_HOLE);
            }
            if (world_sync(&w) != OK)
                break;
        }
        world_free(&w);
    }
}

static void test_a_file_of_another_is_damaged(void **state)
{
    struct world w;
    struct seen seen;
    uint8_t page[4096];

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, true, NULL), OK);
    memdisk_peek(world_file(&w, 0), 0, page, sizeof(page));
    w.id.ino++;
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, true, NULL), OK);
    memdisk_poke(&w.disk, world_file(&w, 0), 0, page, sizeof(page));
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__DAMAGED);
    w.id.ino--;
    w.block_bytes = 4096; /* a request with a wrong block size */
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__BAD_REQUEST);
    world_free(&w);
}

static void test_stat_and_alloc(void **state)
{
    struct world w;
    struct test_call *c;
    Rozo__StAllocReq alloc = ROZO__ST_ALLOC_REQ__INIT;
    Rozo__StStatReq stat = ROZO__ST_STAT_REQ__INIT;
    Rozo__StStatResp *resp;
    struct test_ref ref;
    unsigned n;

    (void)state;
    world_init(&w, 1);
    ref_init(&w, &ref);
    n = w.disk.n_of[DISK_ALLOCATE];
    alloc.ref = stat.ref = &ref.ref;
    alloc.to_storage = stat.to_storage = US;
    alloc.projection = 2;
    alloc.first_block = 100;
    assert_int_equal(call_run(&w, ROZO__OP__ST_STAT, &stat.base, NULL, 0, NULL),
                     ROZO__STATUS__NO_FILE);
    alloc.n_blocks = UINT64_C(1) << 48;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST); /* behind the last possible block */
    alloc.n_blocks = 1000;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL), OK);
    assert_int_equal(w.disk.n_of[DISK_ALLOCATE] - n, 1);
    alloc.n_blocks = 2;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL), OK);
    assert_int_equal(w.disk.n_of[DISK_ALLOCATE] - n, 3);
    alloc.n_blocks = UINT64_C(1) << 46;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__NO_SPACE);
    world_expect(&w, 2, 100, SEEN_HOLE, 0);
    assert_int_equal(call_run(&w, ROZO__OP__ST_STAT, &stat.base, NULL, 0, &c), OK);
    resp = rozo__st_stat_resp__unpack(NULL, c->msg_len, c->msg);
    assert_int_equal(resp->n_projections, 1);
    assert_int_equal(resp->projections[0]->projection, 2);
    assert_string_equal(resp->projections[0]->path, world_file(&w, 2)->path);
    rozo__st_stat_resp__free_unpacked(resp, NULL);
    call_free(c);
    world_free(&w);
}

/* A storage is admitted in place of a lost one: blocks it does not have, the lost one may
 * have had. */
static void test_admission_in_place_of_a_lost_one(void **state)
{
    struct world w;
    struct seen seen[2];
    uint8_t cluster[16] = { 9 };
    Rozo__StAdmitReq req = ROZO__ST_ADMIT_REQ__INIT;

    (void)state;
    world_init(&w, 1);
    atomic_store(&w.identity.storage_id, 0);
    req.cluster_id.data = cluster;
    req.cluster_id.len = sizeof(cluster);
    req.storage_id = US;
    req.replaces = true;
    w.role = RPC_ROLE_NODE;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL), OK);
    assert_non_null(strstr((char *)w.disk.identity, "rebuild: yes\n"));
    assert_true(identity_is_rebuilt(&w.identity));
    assert_int_equal(world_read(&w, 0, 4, 2, seen, NULL), ROZO__STATUS__DAMAGED);
    w.role = RPC_ROLE_CLIENT; /* a client would take the answer for "never written" */
    assert_int_equal(world_read(&w, 0, 4, 2, seen, NULL), ROZO__STATUS__DAMAGED);
    w.role = RPC_ROLE_NODE;
    assert_int_equal(world_write(&w, 0, 5, 1, v1, 8192, true, NULL), OK);
    assert_int_equal(world_read(&w, 0, 4, 2, seen, NULL), OK);
    assert_int_equal(seen[0].kind, SEEN_DAMAGED);
    assert_int_equal(seen[1].kind, SEEN_DATA);
    world_restart(&w, false);
    assert_int_equal(world_read(&w, 0, 4, 2, seen, NULL), OK);
    assert_int_equal(seen[0].kind, SEEN_DAMAGED);
    assert_int_equal(seen[1].kind, SEEN_DATA);
    world_free(&w);
}

static void test_admission(void **state)
{
    struct world w;
    struct seen seen;
    struct test_call *c;
    uint8_t cluster[16];
    Rozo__StAdmitReq req = ROZO__ST_ADMIT_REQ__INIT;
    Rozo__StInfoReq info = ROZO__ST_INFO_REQ__INIT;
    Rozo__StInfoResp *resp;
    struct identity id = { .storage_id = 0 };

    (void)state;
    world_init(&w, 1);
    atomic_store(&w.identity.storage_id, 0);
    memset(cluster, 9, sizeof(cluster));
    req.cluster_id.data = cluster;
    req.cluster_id.len = sizeof(cluster);
    req.storage_id = US;
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NOT_ADMITTED);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL),
                     ROZO__STATUS__NOT_ADMITTED);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__DENIED);
    w.role = RPC_ROLE_NODE;
    w.disk.fail_op = DISK_REPLACE;
    w.disk.fail_at = 1;
    w.disk.fail_rc = -EIO;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__IO_ERROR);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NOT_ADMITTED);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL), OK);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL), OK);
    assert_int_equal(
        identity_parse((char *)w.disk.identity, w.disk.identity_len, &id, NULL), 0);
    assert_int_equal(id.storage_id, US);
    assert_memory_equal(id.cluster_id, cluster, sizeof(cluster));
    req.storage_id = US + 1;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__WRONG_STORAGE);
    req.storage_id = US;
    cluster[0]++;
    assert_int_equal(call_run(&w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__WRONG_STORAGE);
    assert_int_equal(world_read(&w, 0, 0, 1, &seen, NULL), ROZO__STATUS__NO_FILE);
    assert_int_equal(call_run(&w, ROZO__OP__ST_INFO, &info.base, NULL, 0, &c), OK);
    resp = rozo__st_info_resp__unpack(NULL, c->msg_len, c->msg);
    assert_int_equal(resp->storage_id, US);
    assert_int_equal(resp->cluster_id.len, 16);
    assert_int_equal(resp->total_bytes, UINT64_C(1) << 40);
    assert_string_equal(resp->host, "here");
    rozo__st_info_resp__free_unpacked(resp, NULL);
    call_free(c);
    world_free(&w);
}

static void on_stopped(void *arg)
{
    *(bool *)arg = true;
}

/* Admits again, as an exportd of this start does. */
static uint16_t admit_as(struct world *w, uint64_t start)
{
    Rozo__StAdmitReq req = ROZO__ST_ADMIT_REQ__INIT;

    req.cluster_id = (ProtobufCBinaryData){ 16, w->identity.cluster_id };
    req.storage_id = US;
    w->role = RPC_ROLE_NODE;
    w->session = start;
    return call_run(w, ROZO__OP__ST_ADMIT, &req.base, NULL, 0, NULL);
}

/* An exportd that was replaced changes nothing. One whose map is not here yet must wait
 * with it, but for admissions and removals. */
static void test_an_exportd_that_was_replaced(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    memset(w.identity.cluster_id, 9, IDENTITY_ID_BYTES);
    w.session = 4; /* no start, since a client names it */
    atomic_store(&w.identity.map_version, UINT64_C(5) << 32 | 3);
    atomic_store(&w.identity.map_start, 5);
    assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    assert_int_equal(world_fence(&w, 7), ROZO__STATUS__DEPOSED);
    assert_int_equal(world_remove(&w), ROZO__STATUS__DEPOSED);
    assert_int_equal(world_leave(&w), ROZO__STATUS__DEPOSED);
    assert_int_equal(admit_as(&w, 4), ROZO__STATUS__DEPOSED);
    assert_int_equal(admit_as(&w, 6), OK);
    w.role = RPC_ROLE_CLIENT;
    assert_int_equal(world_write(&w, 0, 1, 1, v2, 8192, false, NULL), OK);
    assert_int_equal(world_fence(&w, 7), ROZO__STATUS__BUSY);
    w.session = 5;
    assert_int_equal(world_fence(&w, 7), OK);
    w.session = 0;
    assert_int_equal(world_fence(&w, 8), OK);
    /* metadata that have gone back since: who does not know of it removes nothing, also
     * after more starts */
    atomic_store(&w.identity.map_start, UINT64_C(1) << 32 | 4);
    w.session = 6;
    assert_int_equal(world_remove(&w), ROZO__STATUS__DEPOSED);
    assert_int_equal(admit_as(&w, 6), ROZO__STATUS__DEPOSED);
    w.session = UINT64_C(1) << 32 | 5;
    assert_int_equal(world_fence(&w, 9), ROZO__STATUS__BUSY);
    assert_int_equal(world_remove(&w), OK);
    world_free(&w);
}

static void test_stop_answers_and_syncs(void **state)
{
    struct world w;
    struct test_call *c;
    bool stopped = false;
    unsigned n_syncs;

    (void)state;
    world_init(&w, 1);
    n_syncs = w.disk.n_of[DISK_SYNC];
    for (w.id.ino = 1; w.id.ino < 5; w.id.ino++)
        assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), OK);
    c = world_write_start(&w, 0, 0, 1, v1, 8192, false);
    storage_stop(w.storage, on_stopped, &stopped);
    assert_false(stopped);
    assert_int_equal(world_write(&w, 0, 1, 1, v1, 8192, false, NULL), ROZO__STATUS__BUSY);
    env_virtual_run_posted(&w.v);
    assert_true(c->done && c->status == OK);
    assert_true(stopped);
    assert_int_equal(w.disk.n_of[DISK_SYNC] - n_syncs, 5);
    call_free(c);
    world_restart(&w, true);
    for (w.id.ino = 1; w.id.ino <= 5; w.id.ino++)
        world_expect(&w, 0, 0, SEEN_DATA, v1);
    world_free(&w);
}

/* One file is never worked on by two loops, however its requests are packed. */
static void test_a_file_of_another_loop_is_refused(void **state)
{
    struct world w;
    uint32_t hash;

    (void)state;
    world_init(&w, 1);
    hash = file_id_hash(&w.id);
    for (unsigned loop = 0; loop < 3; loop++) {
        uint16_t status = hash % 3 == loop ? OK : ROZO__STATUS__BAD_REQUEST;

        storage_close(w.storage);
        w.config.n_loops = 3;
        w.config.loop = loop;
        assert_int_equal(storage_open(&w.config, &w.storage), 0);
        world_start(&w);
        assert_int_equal(world_write(&w, 0, 0, 1, v1, 8192, false, NULL), status);
        assert_int_equal(world_remove(&w), status);
    }
    world_free(&w);
}

/* A mark does not hide a loss behind the end of a file if it may be older than what was
 * lost. */
static void test_a_mark_does_not_cover_up_a_loss(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(world_write(&w, 0, 0, 128, v1, 8192, false, NULL), OK);
    assert_int_equal(world_write(&w, 0, 128 * 5, 128, v3 + 5, 8192, false, NULL), OK);
    memdisk_cut_file(world_file(&w, 0), PROJFILE_EXTENTS_AT + 8192);
    world_restart(&w, false);
    assert_int_equal(world_mark(&w, 0, 128 * 4, 0, v3), ROZO__STATUS__STALE_VERSION);
    world_expect(&w, 0, 128 * 5, SEEN_DAMAGED, 0);
    assert_int_equal(world_mark(&w, 0, 128 * 4, 0, UINT64_C(3) << 32), OK);
    world_expect(&w, 0, 128 * 5, SEEN_HOLE, UINT64_C(3) << 32);
    world_free(&w);
}

static void test_routes_are_by_file(void **state)
{
    struct world w;
    struct test_ref ref;
    Rozo__StReadReq read = ROZO__ST_READ_REQ__INIT;
    Rozo__StRemoveReq remove = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t buf[512];
    size_t len;

    (void)state;
    world_init(&w, 1);
    ref_init(&w, &ref);
    read.ref = &ref.ref;
    read.n_blocks = 5;
    len = protobuf_c_message_pack(&read.base, buf);
    assert_int_equal(storage_route(ROZO__OP__ST_READ, buf, len), file_id_hash(&w.id));
    for (size_t i = 0; i < len; i++)
        storage_route(ROZO__OP__ST_READ, buf, i);
    remove.file_id.data = ref.id;
    remove.file_id.len = sizeof(ref.id);
    len = protobuf_c_message_pack(&remove.base, buf);
    assert_int_equal(storage_route(ROZO__OP__ST_REMOVE, buf, len), file_id_hash(&w.id));
    assert_int_equal(storage_route(ROZO__OP__ST_INFO, buf, len), 0);
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_record_grows_on_a_full_disk),
        cmocka_unit_test(test_written_records_are_read),
        cmocka_unit_test(test_versions_decide),
        cmocka_unit_test(test_holes_have_versions),
        cmocka_unit_test(test_truncate_gives_space_back),
        cmocka_unit_test(test_a_promised_record_goes_only_after_its_mark_is_durable),
        cmocka_unit_test(test_a_mark_hides_what_could_not_be_removed),
        cmocka_unit_test(test_a_late_mark_spares_newer_records),
        cmocka_unit_test(test_a_mark_goes_below_newer_records),
        cmocka_unit_test(test_a_mark_that_goes_below_leaves_what_is_damaged),
        cmocka_unit_test(test_a_mark_that_goes_below_covers_older_damage),
        cmocka_unit_test(test_a_mark_that_goes_below_leaves_what_was_lost),
        cmocka_unit_test(test_any_projection_and_what_is_present),
        cmocka_unit_test(test_nodes_learn_whether_clients_are_served),
        cmocka_unit_test(test_next_finds_records_and_marks),
        cmocka_unit_test(test_stat_with_look_again_reads_the_header_again),
        cmocka_unit_test(test_remove_takes_many),
        cmocka_unit_test(test_removals_are_remembered),
        cmocka_unit_test(test_remove_leaves_nothing),
        cmocka_unit_test(test_another_distribution_than_the_files_is_refused),
        cmocka_unit_test(test_truncate_waits_for_no_write_and_cuts_none_short),
        cmocka_unit_test(test_syncs_are_shared_and_cover_what_was_acknowledged),
        cmocka_unit_test(test_a_sync_lists_unstable_ranges),
        cmocka_unit_test(test_a_failed_sync_is_reported_and_changes_the_verifier),
        cmocka_unit_test(test_a_write_answers_with_the_verifier_of_its_beginning),
        cmocka_unit_test(test_a_synced_write_is_refused_when_a_sync_failed_meanwhile),
        cmocka_unit_test(test_a_mark_answers_with_the_verifier_of_its_beginning),
        cmocka_unit_test(test_a_mark_removes_nothing_when_its_sync_failed),
        cmocka_unit_test(test_small_caches_serve_many_files),
        cmocka_unit_test(test_idle_files_make_room_for_others),
        cmocka_unit_test(test_requests_without_a_descriptor_are_answered_busy),
        cmocka_unit_test(test_requests_on_one_file_go_in_turn),
        cmocka_unit_test(test_too_many_requests_are_answered_busy),
        cmocka_unit_test(test_a_full_disk_refuses_first_writes_and_harms_nothing),
        cmocka_unit_test(test_running_out_of_space_leaves_old_records_whole),
        cmocka_unit_test(test_disk_errors_become_answers),
        cmocka_unit_test(test_next_gives_marks_to_a_healer),
        cmocka_unit_test(test_a_node_replaces_what_is_damaged),
        cmocka_unit_test(test_a_node_replaces_what_is_damaged_below_what_is_pending),
        cmocka_unit_test(test_rotten_and_cut_projection_files_are_damaged),
        cmocka_unit_test(test_record_that_rots_later_is_refused_once_more),
        cmocka_unit_test(test_each_damaged_block_is_refused_once),
        cmocka_unit_test(test_a_damaged_file_makes_way_for_new_records),
        cmocka_unit_test(test_a_quarantined_file_is_not_forgotten),
        cmocka_unit_test(test_a_failed_first_write_leaves_holes),
        cmocka_unit_test(test_a_foreign_file_is_left_alone),
        cmocka_unit_test(test_lost_bytes_are_not_holes),
        cmocka_unit_test(test_a_cut_file_knows_it_after_it_grew),
        cmocka_unit_test(test_a_rotten_mark_page_does_not_pass_for_the_one_before),
        cmocka_unit_test(test_an_older_mark_page_may_rot),
        cmocka_unit_test(test_a_torn_mark_page_gives_way_to_the_one_before),
        cmocka_unit_test(test_a_cut_file_that_cannot_say_so_gets_no_longer),
        cmocka_unit_test(test_a_cut_file_knows_it_after_a_loss_of_power),
        cmocka_unit_test(test_new_blocks_wait_for_no_sync),
        cmocka_unit_test(test_huge_marks_have_an_end),
        cmocka_unit_test(test_a_file_cut_while_it_is_open),
        cmocka_unit_test(test_holes_stay_holes),
        cmocka_unit_test(test_a_file_of_another_is_damaged),
        cmocka_unit_test(test_stat_and_alloc),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_admission_in_place_of_a_lost_one),
        cmocka_unit_test(test_an_exportd_that_was_replaced),
        cmocka_unit_test(test_stop_answers_and_syncs),
        cmocka_unit_test(test_routes_are_by_file),
        cmocka_unit_test(test_a_file_of_another_loop_is_refused),
        cmocka_unit_test(test_a_mark_does_not_cover_up_a_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
