/*
 * Goal: I8, no message of a peer makes the storage crash, hang or believe wrong data.
 * Method: requests with each field at its extremes, capabilities of other files, payloads
 * of every wrong length, heads that lie, and random bytes.
 */
#include <stdlib.h>

#include "codec/codec.h"
#include "storaged/format/projfile.h"
#include "tests/unit/storaged/world.h"

#define OK ROZO__STATUS__OK

static const uint64_t v1 = UINT64_C(1) << 32 | 1;

/* All that a data request may carry, valid at the start. */
struct hostile {
    struct test_ref ref;
    Rozo__StWriteReq write;
    Rozo__StReadReq read;
    Rozo__StMarkReq mark;
    Rozo__StAllocReq alloc;
    Rozo__StSyncReq sync;
    Rozo__StStatReq stat;
    Rozo__StNextReq next;
    Rozo__StRedistReq redist;
    uint8_t payload[4 * (RECORD_HEADER_BYTES + 4096)];
    size_t payload_len;
};

static void hostile_init(struct world *w, struct hostile *h)
{
    memset(h, 0, sizeof(*h));
    ref_init(w, &h->ref);
    rozo__st_write_req__init(&h->write);
    rozo__st_read_req__init(&h->read);
    rozo__st_mark_req__init(&h->mark);
    rozo__st_alloc_req__init(&h->alloc);
    rozo__st_sync_req__init(&h->sync);
    rozo__st_stat_req__init(&h->stat);
    rozo__st_next_req__init(&h->next);
    rozo__st_redist_req__init(&h->redist);
    h->redist.ref = &h->ref.ref;
    h->redist.to_storage = US;
    h->write.ref = h->read.ref = h->mark.ref = h->alloc.ref = &h->ref.ref;
    h->sync.ref = h->stat.ref = h->next.ref = &h->ref.ref;
    h->write.to_storage = h->read.to_storage = h->mark.to_storage = US;
    h->alloc.to_storage = h->sync.to_storage = h->stat.to_storage = h->next.to_storage =
        US;
    h->write.n_records = h->read.n_blocks = 4;
    h->mark.n_blocks = h->alloc.n_blocks = 4;
    h->mark.version = v1 + 1;
    for (unsigned i = 0; i < 4; i++)
        record_fill(w, h->payload + i * RECORD_HEADER_BYTES,
                    h->payload + 4 * RECORD_HEADER_BYTES + i * 4096, 0, i, v1, 8192);
    h->payload_len = sizeof(h->payload);
}

static uint16_t do_write(struct world *w, struct hostile *h)
{
    return call_run(w, ROZO__OP__ST_WRITE, &h->write.base, h->payload, h->payload_len,
                    NULL);
}

/* Sends each kind of request; each must answer `want`. */
static void all_answer(struct world *w, struct hostile *h, uint16_t want)
{
    assert_int_equal(do_write(w, h), want);
    assert_int_equal(call_run(w, ROZO__OP__ST_READ, &h->read.base, NULL, 0, NULL), want);
    assert_int_equal(call_run(w, ROZO__OP__ST_MARK, &h->mark.base, NULL, 0, NULL), want);
    assert_int_equal(call_run(w, ROZO__OP__ST_ALLOC, &h->alloc.base, NULL, 0, NULL),
                     want);
    assert_int_equal(call_run(w, ROZO__OP__ST_SYNC, &h->sync.base, NULL, 0, NULL), want);
    assert_int_equal(call_run(w, ROZO__OP__ST_STAT, &h->stat.base, NULL, 0, NULL), want);
    assert_int_equal(call_run(w, ROZO__OP__ST_NEXT, &h->next.base, NULL, 0, NULL), want);
}

static unsigned n_projections(const struct world *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->disk.n_files; i++)
        n += strncmp(w->disk.files[i]->path, "objects/", 8) == 0;
    return n;
}

static void test_invalid_references_of_files_are_refused(void **state)
{
    struct world w;
    struct hostile h;
    uint8_t long_id[17] = { 0 };

    (void)state;
    world_init(&w, 1);
#define WRONG(field, value)  \
    hostile_init(&w, &h);    \
    h.ref.ref.field = value; \
    all_answer(&w, &h, ROZO__STATUS__BAD_REQUEST)
    WRONG(file_id.len, 15);
    WRONG(file_id.len, 0);
    WRONG(codec, 0);
    WRONG(codec, 1 + 256);
    WRONG(codec, UINT32_MAX);
    WRONG(layout, 3);
    WRONG(layout, 256);
    WRONG(block_bytes, 0);
    WRONG(block_bytes, 8191);
    WRONG(block_bytes, UINT32_MAX);
    WRONG(stripe, 1);
    WRONG(n_storages, 0);
    WRONG(n_storages, 2); /* fewer than n, and this storage is not among them */
#undef WRONG
    hostile_init(&w, &h);
    h.ref.ref.file_id.data = long_id;
    h.ref.ref.file_id.len = sizeof(long_id);
    all_answer(&w, &h, ROZO__STATUS__BAD_REQUEST);
    hostile_init(&w, &h);
    h.ref.storages[US - 1] = 77; /* a distribution that lacks this storage */
    all_answer(&w, &h, ROZO__STATUS__BAD_REQUEST);
    hostile_init(&w, &h);
    h.write.ref = h.read.ref = h.mark.ref = h.alloc.ref = NULL;
    h.sync.ref = h.stat.ref = h.next.ref = NULL;
    all_answer(&w, &h, ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(n_projections(&w), 0);
    world_free(&w);
}

static void test_rights_are_asked_for(void **state)
{
    struct world w;
    struct hostile h;
    struct file_id other;

    (void)state;
    world_init(&w, 1);
    hostile_init(&w, &h);
    h.ref.capability[5] ^= 1;
    all_answer(&w, &h, ROZO__STATUS__DENIED);
    hostile_init(&w, &h);
    h.ref.ref.capability.len--;
    all_answer(&w, &h, ROZO__STATUS__DENIED);
    hostile_init(&w, &h);
    h.ref.ref.capability.len = 0;
    all_answer(&w, &h, ROZO__STATUS__DENIED);
    hostile_init(&w, &h);
    other = w.id;
    other.generation++;
    capability_sign(w.key, &other, CAPABILITY_READ | CAPABILITY_WRITE, h.ref.capability);
    all_answer(&w, &h, ROZO__STATUS__DENIED);
    hostile_init(&w, &h);
    capability_sign(w.key, &w.id, CAPABILITY_READ, h.ref.capability);
    assert_int_equal(do_write(&w, &h), ROZO__STATUS__DENIED);
    assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL),
                     ROZO__STATUS__DENIED);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &h.alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__DENIED);
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                     ROZO__STATUS__NO_FILE);
    capability_sign(w.key, &w.id, CAPABILITY_WRITE, h.ref.capability);
    assert_int_equal(do_write(&w, &h), OK);
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                     ROZO__STATUS__DENIED);
    h.ref.ref.capability.len = 0;
    w.role = RPC_ROLE_NODE; /* daemons need no capability */
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL), OK);
    h.write.to_storage = h.read.to_storage = h.mark.to_storage = US + 1;
    h.alloc.to_storage = h.sync.to_storage = h.stat.to_storage = h.next.to_storage = 0;
    all_answer(&w, &h, ROZO__STATUS__WRONG_STORAGE);
    world_free(&w);
}

static void test_numbers_at_their_extremes(void **state)
{
    static const uint64_t firsts[] = { PROJFILE_BLOCKS_MAX, PROJFILE_BLOCKS_MAX - 3,
                                       UINT64_MAX, UINT64_MAX - 3, UINT64_C(1) << 63 };
    struct world w;
    struct hostile h;

    (void)state;
    world_init(&w, 1);
    hostile_init(&w, &h);
    for (unsigned i = 0; i < 5; i++) {
        h.write.first_block = h.read.first_block = firsts[i];
        h.mark.first_block = h.alloc.first_block = firsts[i];
        assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
        assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                         ROZO__STATUS__BAD_REQUEST);
        assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL),
                         ROZO__STATUS__BAD_REQUEST);
        assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &h.alloc.base, NULL, 0, NULL),
                         ROZO__STATUS__BAD_REQUEST);
    }
    hostile_init(&w, &h);
    h.write.projection = h.read.projection = h.mark.projection = h.alloc.projection = 3;
    assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &h.alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    hostile_init(&w, &h);
    h.write.projection = h.alloc.projection = 255;
    assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &h.alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    h.mark.n_blocks = h.alloc.n_blocks = UINT64_MAX;
    h.alloc.projection = 0;
    h.read.n_blocks = 129;
    assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_ALLOC, &h.alloc.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    h.read.n_blocks = 0;
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    hostile_init(&w, &h);
    h.mark.version = 0;
    assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(n_projections(&w), 0);
    h.mark.version = UINT64_MAX; /* legal, if unwise */
    h.mark.n_blocks = 0;
    assert_int_equal(call_run(&w, ROZO__OP__ST_MARK, &h.mark.base, NULL, 0, NULL), OK);
    assert_int_equal(do_write(&w, &h), ROZO__STATUS__STALE_VERSION);
    world_free(&w);
}

static void test_payloads_that_do_not_fit(void **state)
{
    static const uint32_t counts[] = { 0, 1, 3, 5, 128, 129, UINT32_MAX };
    struct world w;
    struct hostile h;

    (void)state;
    world_init(&w, 1);
    hostile_init(&w, &h);
    for (size_t len = 0; len < sizeof(h.payload); len += 61) {
        h.payload_len = len;
        assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    }
    h.payload_len = sizeof(h.payload);
    for (unsigned i = 0; i < 7; i++) {
        h.write.n_records = counts[i];
        assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    }
    h.write.n_records = 4;
    assert_int_equal(call_run(&w, ROZO__OP__ST_READ, &h.read.base, h.payload, 10, NULL),
                     ROZO__STATUS__BAD_REQUEST);
    /* every byte but those of the crc */
    for (unsigned at = 4; at < RECORD_HEADER_BYTES; at++) {
        if (at >= 16 && at < 24)
            continue; /* the version: any but 0 will do */
        hostile_init(&w, &h);
        h.payload[2 * RECORD_HEADER_BYTES + at] ^= 0x41;
        assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    }
    hostile_init(&w, &h);
    memset(h.payload + RECORD_HEADER_BYTES, 0, RECORD_HEADER_BYTES); /* "never written" */
    assert_int_equal(do_write(&w, &h), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(n_projections(&w), 0);
    hostile_init(&w, &h);
    assert_int_equal(do_write(&w, &h), OK);
    world_free(&w);
}

/* Sends the messages of valid requests with some bytes changed, and bytes that are no
 * message. */
static void test_bytes_by_chance(void **state)
{
    struct world w;
    struct hostile h;
    uint8_t good[9][512], buf[512];
    size_t len[9];

    (void)state;
    world_init(&w, 9);
    hostile_init(&w, &h);
    len[1] = protobuf_c_message_pack(&h.write.base, good[1]);
    len[2] = protobuf_c_message_pack(&h.read.base, good[2]);
    len[3] = protobuf_c_message_pack(&h.mark.base, good[3]);
    len[4] = protobuf_c_message_pack(&h.sync.base, good[4]);
    len[5] = protobuf_c_message_pack(&h.stat.base, good[5]);
    len[6] = protobuf_c_message_pack(&h.next.base, good[6]);
    len[7] = protobuf_c_message_pack(&h.alloc.base, good[7]);
    h.ref.ref.dist_generation = 1;
    h.redist.make_partial = 1;
    len[8] = protobuf_c_message_pack(&h.redist.base, good[8]);
    for (unsigned i = 0; i < 20000; i++) {
        unsigned which = 1 + (unsigned)env_virtual_below(&w.v, 8);
        uint16_t op = (uint16_t)env_virtual_below(&w.v, ROZO__OP__ST_REDIST + 1);
        size_t n = len[which];
        struct test_call *c;

        memcpy(buf, good[which], n);
        for (uint64_t k = env_virtual_below(&w.v, 6); k > 0; k--)
            buf[env_virtual_below(&w.v, n)] = (uint8_t)env_virtual_below(&w.v, 256);
        if (env_virtual_below(&w.v, 4) == 0)
            n = env_virtual_below(&w.v, n + 1);
        w.role = env_virtual_below(&w.v, 2) == 0 ? RPC_ROLE_NODE : RPC_ROLE_CLIENT;
        c = call_start_raw(&w, op, buf, n, h.payload,
                           op == ROZO__OP__ST_WRITE ? h.payload_len : 0);
        storage_route(op, buf, n);
        env_virtual_run_posted(&w.v);
        assert_true(c->done);
        call_free(c);
    }
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_invalid_references_of_files_are_refused),
        cmocka_unit_test(test_rights_are_asked_for),
        cmocka_unit_test(test_numbers_at_their_extremes),
        cmocka_unit_test(test_payloads_that_do_not_fit),
        cmocka_unit_test(test_bytes_by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
