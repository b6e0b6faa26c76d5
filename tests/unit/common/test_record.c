/*
 * test_record.c - the bytes of record headers and file ids, and the check of bytes from a
 * peer.
 */
#include "codec/codec.h"
#include "common/wire/record.h"
#include "tests/unit/unit.h"

static const struct record_header sample = {
    .format = RECORD_FORMAT,
    .projection = 5,
    .user_bytes = 0x1234,
    .file_hash = 0xa1b2c3d4,
    .version = 0x1122334455667788,
    .block = 0x0102030405060708,
};

static void header_bytes_never_change(void **state)
{
    static const uint8_t expected[RECORD_HEADER_BYTES] = {
        0x78, 0x56, 0x34, 0x12, 1,    5,    0,    0,    0x34, 0x12, 0,
        0,    0xd4, 0xc3, 0xb2, 0xa1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
        0x22, 0x11, 8,    7,    6,    5,    4,    3,    2,    1,
    };
    uint8_t p[RECORD_HEADER_BYTES];
    struct record_header h = sample, back;

    (void)state;
    h.crc = 0x12345678;
    record_header_put(p, &h);
    assert_memory_equal(p, expected, sizeof(p));
    record_header_get(p, &back);
    assert_memory_equal(&back.version, &h.version, sizeof(h.version));
    assert_int_equal(back.crc, h.crc);
    assert_int_equal(back.user_bytes, h.user_bytes);
    assert_int_equal(back.block, h.block);
    assert_int_equal(back.file_hash, h.file_hash);
}

static void file_id_bytes_never_change(void **state)
{
    static const uint8_t expected[FILE_ID_BYTES] = { 1, 0, 0, 0, 2, 0, 0, 0, 3 };
    const struct file_id id = { .export_id = 1, .generation = 2, .ino = 3 };
    struct file_id back;
    uint8_t p[FILE_ID_BYTES];

    (void)state;
    file_id_put(p, &id);
    assert_memory_equal(p, expected, sizeof(p));
    file_id_get(p, &back);
    assert_memory_equal(&back, &id, sizeof(id));
    assert_int_not_equal(file_id_hash(&id), 0);
}

static void seal_covers_header_overhang_and_body(void **state)
{
    uint8_t p[RECORD_HEADER_BYTES], overhang[64] = { 1 }, body[512] = { 2 };
    struct record_header h;
    uint32_t crc;

    (void)state;
    record_header_put(p, &sample);
    record_seal(p, overhang, sizeof(overhang), body, sizeof(body));
    record_header_get(p, &h);
    crc = record_crc(p, overhang, sizeof(overhang), body, sizeof(body));
    assert_int_equal(h.crc, crc);
    body[511] ^= 1;
    assert_int_not_equal(record_crc(p, overhang, 64, body, 512), crc);
    body[511] ^= 1;
    overhang[63] ^= 1;
    assert_int_not_equal(record_crc(p, overhang, 64, body, 512), crc);
    overhang[63] ^= 1;
    for (unsigned i = 4; i < RECORD_HEADER_BYTES; i++) {
        p[i] ^= 0x10;
        assert_int_not_equal(record_crc(p, overhang, 64, body, 512), crc);
        p[i] ^= 0x10;
    }
    assert_int_equal(record_crc(p, overhang, 64, body, 512), crc);
}

static enum record_state inspect(const uint8_t *p, struct record_header *h)
{
    return record_inspect(p, sample.file_hash, sample.block, sample.projection, 8192, h);
}

static void hole_zero_and_damage_are_told_apart(void **state)
{
    uint8_t p[RECORD_HEADER_BYTES] = { 0 };
    struct record_header h, mark = sample;

    (void)state;
    assert_true(record_header_is_zero(p));
    assert_int_equal(inspect(p, &h), RECORD_IS_HOLE);
    assert_int_equal(h.version, 0);

    mark.flags = RECORD_HOLE;
    mark.user_bytes = 0;
    record_header_put(p, &mark);
    assert_int_equal(inspect(p, &h), RECORD_IS_DAMAGED); /* not sealed */
    record_seal(p, NULL, 0, NULL, 0);
    assert_int_equal(inspect(p, &h), RECORD_IS_HOLE);
    assert_int_equal(h.version, sample.version);

    record_header_put(p, &sample);
    assert_int_equal(inspect(p, &h), RECORD_IS_DATA);
}

static void any_wrong_field_is_damage(void **state)
{
    static const unsigned fields[] = { 4, 5, 6, 7, 10, 11, 12, 15, 24, 31 };
    uint8_t p[RECORD_HEADER_BYTES];
    struct record_header h = sample;

    (void)state;
    for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        record_header_put(p, &sample);
        p[fields[i]] ^= 0x40;
        assert_int_equal(inspect(p, &h), RECORD_IS_DAMAGED);
    }
    h = sample;
    h.user_bytes = 0;
    record_header_put(p, &h);
    assert_int_equal(inspect(p, &h), RECORD_IS_DAMAGED);
    h.user_bytes = 8193;
    record_header_put(p, &h);
    assert_int_equal(inspect(p, &h), RECORD_IS_DAMAGED);
    h.user_bytes = 8192;
    record_header_put(p, &h);
    assert_int_equal(inspect(p, &h), RECORD_IS_DATA);
    h.flags = RECORD_DAMAGED;
    record_header_put(p, &h);
    assert_int_equal(inspect(p, &h), RECORD_IS_DAMAGED);
}

static void quorums_of_the_layouts(void **state)
{
    (void)state;
    assert_int_equal(quorum_min(2, 4), 3);
    assert_int_equal(quorum_min(4, 8), 5);
    assert_int_equal(quorum_min(8, 16), 9);
    assert_int_equal(quorum_min(8, 12), 8);
}

/* Goal: the write quorum is the same for any number of candidates from k + 1 on; n
 * acknowledgements are enough. No reader overlooks such a write: any k other storages
 * include one that has it. */
static void a_write_needs_the_same_with_fewer_candidates(void **state)
{
    static const unsigned want[] = { 3, 5, 9 };

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        const struct codec_layout *l = codec_layout(i);

        for (unsigned c = l->n; c <= l->safe; c++) {
            assert_int_equal(quorum_write(l, c), want[i]);
            assert_true(quorum_write(l, c) > l->k && quorum_write(l, c) <= l->n);
            assert_int_equal(quorum_read(l, c, true), quorum_write(l, c));
            assert_int_equal(quorum_read(l, c, false), quorum_min(l->k, c));
            assert_true(quorum_write(l, c) >= quorum_min(l->k, c));
            assert_true(quorum_min(l->k, c) + l->k > c);
        }
    }
    /* A file may have more candidates than its layout, as many as n acknowledgements
     * allow. */
    assert_int_equal(quorum_write(codec_layout(1), 9), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_bytes_never_change),
        cmocka_unit_test(file_id_bytes_never_change),
        cmocka_unit_test(seal_covers_header_overhang_and_body),
        cmocka_unit_test(hole_zero_and_damage_are_told_apart),
        cmocka_unit_test(any_wrong_field_is_damage),
        cmocka_unit_test(quorums_of_the_layouts),
        cmocka_unit_test(a_write_needs_the_same_with_fewer_candidates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
