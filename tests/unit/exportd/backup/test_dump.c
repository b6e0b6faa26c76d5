/*
 * test_dump.c - dumps of the metadata: their bytes, and how they are given out.
 *
 * Goal:   what is read is what was written; a dump that was cut, changed or mixed is no
 *         dump; a request that is repeated gets the same piece.
 * Method: a store in memory of some MiB; calls as from the network, and the answers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/backup/dump_format.h"
#include "exportd/backup/dump_source.h"
#include "exportd/quorum/kv_place.h"
#include "exportd/store/cluster_record.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum { KEYS = 300, VALUE_BYTES = 9000, FILE_MAX = 4 << 20 };

static struct env_virtual env;
static struct kv_memory *mem;
static struct kv *kv;
static struct dump_source *source;
static bool is_frozen;

/* The last answer. */
static struct rpc_call call;
static uint16_t status;
static Rozo__AdMetaDumpResp *answer;
static uint8_t *payload;
static size_t payload_len;

static uint8_t *file;
static size_t file_len;

static void on_done(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

static void put(const void *key, size_t key_len, const void *val, size_t len)
{
    const struct kv_item item = { key, key_len, val, len };
    struct kv_done done = { .fn = on_done };

    kv_commit(kv, &item, 1, &done);
    env_virtual_run_posted(&env);
}

static void cluster_put(uint32_t n_starts)
{
    const struct cluster_record r = { .cluster_id = { 7 }, .n_starts = n_starts };
    struct kv_record_out f;

    cluster_record_write(&f, &r);
    put("A", 1, f.bytes, f.len);
}

static void fill(void)
{
    static uint8_t val[VALUE_BYTES];
    uint8_t key[3] = { 'I' };

    for (unsigned i = 0; i < KEYS; i++) {
        key[1] = (uint8_t)(i >> 8);
        key[2] = (uint8_t)i;
        memset(val, (int)i, sizeof(val));
        put(key, sizeof(key), val, i % 2 == 0 ? sizeof(val) : 0);
    }
}

/* ---- calls ---- */

static int freeze(void *arg, struct kv **out)
{
    (void)arg;
    assert_false(is_frozen);
    is_frozen = true;
    *out = kv;
    return 0;
}

static void thaw(void *arg)
{
    (void)arg;
    assert_true(is_frozen);
    is_frozen = false;
}

static uint64_t bytes(void *arg)
{
    (void)arg;
    return 1000;
}

static void answer_clear(void)
{
    if (answer != NULL)
        rozo__ad_meta_dump_resp__free_unpacked(answer, NULL);
    free(payload);
    answer = NULL;
    payload = NULL;
    payload_len = 0;
}

static void on_reply(struct rpc_call *c, uint16_t code, const void *msg, size_t msg_len,
                     const struct rpc_seg *segs, unsigned n_segs, void (*sent)(void *arg),
                     void *arg)
{
    (void)c;
    status = code;
    answer = rozo__ad_meta_dump_resp__unpack(NULL, msg_len, msg);
    assert_non_null(answer);
    payload = malloc(FILE_MAX);
    assert_non_null(payload);
    for (unsigned i = 0; i < n_segs; i++) {
        memcpy(payload + payload_len, segs[i].base, segs[i].len);
        payload_len += segs[i].len;
    }
    if (sent != NULL)
        sent(arg);
}

static const struct rpc_call_ops call_ops = { on_reply };

static uint16_t ask(uint64_t dump, uint64_t piece, uint64_t min_entry, bool is_over)
{
    Rozo__AdMetaDumpReq req = ROZO__AD_META_DUMP_REQ__INIT;
    uint8_t msg[64];

    answer_clear();
    req.dump = dump;
    req.piece = piece;
    req.min_entry = min_entry;
    req.is_over = is_over;
    call = (struct rpc_call){ .ops = &call_ops, .role = RPC_ROLE_NODE, .msg = msg };
    call.msg_len = rozo__ad_meta_dump_req__pack(&req, msg);
    dump_source_handle(source, &call);
    return status;
}

/* Fetches a whole dump into `file`. */
static void fetch(uint64_t number)
{
    file_len = 0;
    for (uint64_t piece = 0; piece == 0 || !answer->is_last; piece++) {
        assert_int_equal(ask(number, piece, 0, false), ROZO__STATUS__OK);
        memcpy(file + file_len, payload, payload_len);
        file_len += payload_len;
    }
}

static int setup(void **state)
{
    struct dump_source_config config = { .freeze = freeze, .thaw = thaw, .bytes = bytes };

    (void)state;
    env_virtual_init(&env, 3);
    assert_int_equal(kv_memory_open(&env.env, &mem), 0);
    kv = kv_memory_kv(mem);
    config.env = &env.env;
    assert_int_equal(dump_source_open(&config, &source), 0);
    file = malloc(FILE_MAX);
    assert_non_null(file);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    answer_clear();
    dump_source_close(source);
    assert_false(is_frozen);
    kv_memory_close(mem);
    env_virtual_close(&env);
    free(file);
    return 0;
}

/* ---- reading ---- */

/* Reads a dump. Returns 0, or the error; *n: its keys. */
static int read_all(const uint8_t *p, size_t len, uint64_t *n)
{
    static struct dump_place place;
    const uint8_t *end = p + len;
    struct dump_head head;
    int rc = len < DUMP_HEAD_BYTES ? -EINVAL : dump_head_decode(p, &head);

    if (rc != 0)
        return rc;
    dump_place_begin(&place, p);
    p += DUMP_HEAD_BYTES;
    while (rc == 0 && !place.is_over) {
        struct kv_item *items;
        size_t size, n_items;

        if (end - p < DUMP_FRAME_BYTES || dump_frame_size(p, &size) != 0 ||
            (size_t)(end - p) - DUMP_FRAME_BYTES < size)
            return -ROZO_EDAMAGED;
        rc = dump_frame_take(&place, p, p + DUMP_FRAME_BYTES, size, &items, &n_items);
        free(items);
        p += DUMP_FRAME_BYTES + size;
    }
    *n = place.n_keys;
    return rc == 0 && p != end ? -ROZO_EDAMAGED : rc;
}

/* ---- tests ---- */

static void test_a_dump_has_all_keys_but_those_of_the_member(void **state)
{
    static const struct raft_config members = {
        .n = 1, .members = { { .id = 1, .role = RAFT_ROLE_VOTER, .address = "h:1" } }
    };
    uint8_t applied[PLACE_APPLIED_BYTES], val[PLACE_MEMBERS_BYTES_MAX];
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    struct kv_item item = kv_place_applied(applied, 44, 5, 0);
    struct dump_head head;
    uint64_t n;

    (void)state;
    assert_int_equal(ask(9, 0, 0, false), ROZO__STATUS__NOT_FOUND); /* no cluster yet */
    cluster_put(3);
    fill();
    fetch(9);
    assert_int_equal(dump_head_decode(file, &head), 0);
    assert_int_equal(head.index, 0);
    assert_int_equal(head.cluster_id[0], 7);
    assert_int_equal(ask(9, 0, 0, true), ROZO__STATUS__OK);

    put(item.key, item.key_len, item.val, item.val_len);
    item = kv_place_members(val, 1, list, raft_config_encode(&members, list));
    put(item.key, item.key_len, item.val, item.val_len);
    dump_source_set_group(source, 0x01000007);
    assert_int_equal(ask(10, 0, 45, false), ROZO__STATUS__BUSY); /* entry 45 is missing */
    assert_false(is_frozen);
    fetch(10);
    assert_int_equal(dump_head_decode(file, &head), 0);
    assert_int_equal(head.index, 44);
    assert_int_equal(head.term, 5);
    assert_int_equal(head.group, 0x01000007);
    assert_int_equal(read_all(file, file_len, &n), 0);
    assert_int_equal(n, 1 + KEYS);
    assert_int_equal(answer->keys_done, 1 + KEYS);
}

/* A member's own keys in a dump would pass for those of the member that loads it. */
static void test_a_dump_with_a_key_of_a_member_is_none(void **state)
{
    static struct dump_place place;
    uint8_t item[SEED_ITEM_BYTES + 4], head[DUMP_HEAD_BYTES], frame[DUMP_FRAME_BYTES];
    uint8_t *key = item + SEED_ITEM_BYTES;
    struct kv_item *items;
    size_t n, len = seed_item_put(item, "ZH", 2, "vv", 2);

    (void)state;
    dump_head_encode(&(struct dump_head){ .index = 0 }, head);
    dump_place_begin(&place, head);
    assert_int_equal(dump_items_put(&place, item, len, frame), -EBADMSG);
    key[0] = 'Y';
    assert_int_equal(dump_items_put(&place, item, len, frame), 0);
    dump_place_begin(&place, head);
    assert_int_equal(dump_frame_take(&place, frame, item, len, &items, &n), 0);
    free(items);
    key[0] = 'Z'; /* with a crc that is right */
    dump_place_begin(&place, head);
    put_le32(frame, codec_crc32c(codec_crc32c(place.crc, frame + 4, sizeof(frame) - 4),
                                 item, len));
    assert_int_equal(dump_frame_take(&place, frame, item, len, &items, &n),
                     -ROZO_EDAMAGED);
    assert_null(items);
}

static void test_a_store_that_is_being_copied_gives_no_dump(void **state)
{
    const struct seed_mark mark = { .doubt = SEED_BEHIND };
    uint8_t buf[PLACE_SEED_BYTES_MAX];
    const struct kv_item item = kv_place_seed(buf, &mark);

    (void)state;
    cluster_put(3);
    put(item.key, item.key_len, item.val, item.val_len);
    assert_int_equal(ask(9, 0, 0, false), ROZO__STATUS__BUSY);
    assert_non_null(strstr(answer->error, "copying"));
}

static void test_a_repeated_request_gets_the_same_piece(void **state)
{
    uint8_t *first = malloc(FILE_MAX);
    uint64_t n;

    (void)state;
    assert_non_null(first);
    cluster_put(3);
    fill();
    file_len = 0;
    for (uint64_t piece = 0; piece == 0 || !answer->is_last; piece++) {
        size_t len;

        assert_int_equal(ask(9, piece, 0, false), ROZO__STATUS__OK);
        memcpy(first, payload, payload_len);
        len = payload_len;
        assert_int_equal(ask(9, piece, 0, false), ROZO__STATUS__OK);
        assert_int_equal(payload_len, len);
        assert_memory_equal(payload, first, len);
        memcpy(file + file_len, payload, len);
        file_len += len;
    }
    assert_int_equal(read_all(file, file_len, &n), 0);
    assert_int_equal(ask(9, 77, 0, false), ROZO__STATUS__INVALID);
    free(first);
}

static void test_one_dump_at_a_time_which_ends_without_its_client(void **state)
{
    (void)state;
    cluster_put(3);
    fill();
    assert_int_equal(ask(9, 0, 0, false), ROZO__STATUS__OK);
    assert_int_equal(ask(10, 0, 0, false), ROZO__STATUS__BUSY);
    assert_int_equal(ask(10, 1, 0, false), ROZO__STATUS__STALE_HANDLE);
    assert_int_equal(ask(10, 0, 0, true), ROZO__STATUS__OK); /* ends nothing */
    assert_true(is_frozen);
    env_virtual_advance_ms(&env, DUMP_IDLE_MS);
    assert_false(is_frozen);
    assert_int_equal(ask(9, 1, 0, false), ROZO__STATUS__STALE_HANDLE);
    assert_int_equal(ask(10, 0, 0, false), ROZO__STATUS__OK);
    call.role = RPC_ROLE_CLIENT;
    answer_clear();
    dump_source_handle(source, &call);
    assert_int_equal(status, ROZO__STATUS__DENIED);
}

static void test_a_dump_that_was_cut_or_changed_is_none(void **state)
{
    uint8_t *other = malloc(FILE_MAX);
    size_t len;
    uint64_t n;

    (void)state;
    assert_non_null(other);
    cluster_put(3);
    for (unsigned i = 0; i < 20; i++)
        put((uint8_t[]){ 'I', (uint8_t)i }, 2, "value", 5);
    fetch(9);
    assert_int_equal(read_all(file, file_len, &n), 0);
    for (size_t cut = 0; cut < file_len; cut++)
        assert_true(read_all(file, cut, &n) < 0);
    for (size_t at = 0; at < file_len; at++) {
        file[at] ^= 0x20;
        assert_true(read_all(file, file_len, &n) < 0);
        file[at] ^= 0x20;
    }
    assert_true(read_all(file, file_len + 1, &n) < 0);
    memcpy(other, file, file_len);
    len = file_len;
    ask(9, 0, 0, true);
    env_virtual_advance_ms(&env, 1000);
    fetch(10); /* same keys, other head */
    assert_int_equal(file_len, len);
    memcpy(other, file, DUMP_HEAD_BYTES);
    assert_int_equal(read_all(other, len, &n), -ROZO_EDAMAGED);
    free(other);
}

static void test_a_kv_that_has_gone_back_skips_starts(void **state)
{
    const struct boot_record was = { .boot = 5, .stopped_well = true, .last_loss = 2 };
    struct cluster_record cluster;
    struct cluster_return back;
    struct boot_record boot;
    struct kv_record_out f;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(cluster_return_make(kv, 0, &back, &err), -ENOENT);
    cluster_put(30);
    boot_record_write(&f, &was);
    put("B", 1, f.bytes, f.len);
    assert_int_equal(cluster_return_make(kv, UINT32_MAX, &back, &err), 0);
    assert_true(cluster_record_read(&cluster, back.items[0].val, back.items[0].val_len));
    assert_int_equal(cluster.n_starts, 30 + 4096 + 4095);
    assert_int_equal(cluster.cluster_id[0], 7);
    assert_int_equal(cluster.returns, 1); /* an older record has no such number */
    cluster_record_write(&f, &cluster);
    put("A", 1, f.bytes, f.len);
    assert_int_equal(cluster_return_make(kv, 0, &back, &err), 0);
    assert_int_equal(back.cluster.returns, 2);
    assert_true(boot_record_read(&boot, back.items[1].val, back.items[1].val_len));
    assert_true(boot.boot != was.boot && !boot.stopped_well);
    assert_int_equal(boot.last_loss, 2);
    cluster_put(UINT32_MAX - 10);
    assert_int_equal(cluster_return_make(kv, 0, &back, &err), -EOVERFLOW);
    put("A", 1, "x", 1);
    assert_int_equal(cluster_return_make(kv, 0, &back, &err), -ROZO_EDAMAGED);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_dump_has_all_keys_but_those_of_the_member),
        T(test_a_dump_with_a_key_of_a_member_is_none),
        T(test_a_store_that_is_being_copied_gives_no_dump),
        T(test_a_repeated_request_gets_the_same_piece),
        T(test_one_dump_at_a_time_which_ends_without_its_client),
        T(test_a_dump_that_was_cut_or_changed_is_none),
        T(test_a_kv_that_has_gone_back_skips_starts),
    };

    return cmocka_run_group_tests_name("exportd.dump", tests, NULL, NULL);
}
