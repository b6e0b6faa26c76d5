/*
 * Goal: journal records are decoded as they were encoded, and no other bytes are
 * accepted. Method: every kind once; then each byte of the header is changed in turn, and
 * every shorter length is tried.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "storaged/format/journal_record.h"
#include "tests/unit/storaged/world.h"

static struct journal_record sample(uint8_t kind)
{
    struct journal_record e = {
        .kind = kind,
        .file = { .id = { 1, 2, 300 },
                  .codec = CODEC_MOJETTE,
                  .layout = 0,
                  .n_storages = 4,
                  .block_bytes = 8192,
                  .storages = { 1, 2, 3, 4 } },
    };

    e.codec = codec_get(e.file.codec, e.file.layout, e.file.block_bytes);
    switch (kind) {
    case JOURNAL_RECORDS:
    case JOURNAL_DAMAGED:
        e.version = 3;
        e.projection = 1;
        e.first = 77;
        e.blocks[0] = 1 | UINT64_C(1) << 63;
        e.blocks[1] = 2;
        break;
    case JOURNAL_MARK:
        e.projection = 255;
        e.keep_newer = true;
        e.first = 5;
        e.end = UINT64_MAX;
        e.version = UINT64_C(3) << 32;
        break;
    case JOURNAL_FENCE:
        e.epoch = 9;
        break;
    default:
        e.first = 5;
        e.end = 17;
        e.version = 12;
        e.epoch = 9;
        e.projections = 5;
        break;
    }
    return e;
}

static void test_headers_come_back(void **state)
{
    (void)state;
    for (uint8_t kind = JOURNAL_RECORDS; kind <= JOURNAL_DAMAGED; kind++) {
        struct journal_record e = sample(kind), got;
        uint8_t p[JOURNAL_RECORD_HEADER_BYTES], again[JOURNAL_RECORD_HEADER_BYTES];

        journal_record_put(p, &e);
        assert_true(journal_record_head_widen(p, journal_record_head_bytes(p), again));
        assert_memory_equal(again, p, sizeof(p)); /* all other bytes are zero */
        assert_int_equal(journal_record_get(kind, p, sizeof(p), &got), 0);
        assert_int_equal(got.first, e.first);
        assert_int_equal(got.end, e.end);
        assert_int_equal(got.version, e.version);
        assert_int_equal(got.epoch, e.epoch);
        assert_int_equal(got.file.storages[3], 4);
        assert_ptr_equal(got.codec, e.codec);
        for (size_t len = 0; len < sizeof(p); len++)
            assert_int_equal(journal_record_get(kind, p, len, &got), -ROZO_EDAMAGED);
        /* an accepted header can be encoded again */
        for (size_t i = 0; i < sizeof(p); i++) {
            uint8_t was = p[i];

            for (unsigned bit = 0; bit < 8; bit++) {
                p[i] = (uint8_t)(was ^ 1u << bit);
                if (journal_record_get(kind, p, sizeof(p), &got) == 0) {
                    journal_record_put(again, &got);
                    assert_memory_equal(again, p, sizeof(p));
                }
            }
            p[i] = was;
        }
        assert_int_equal(journal_record_get(0, p, sizeof(p), &got), -ROZO_EDAMAGED);
        assert_int_equal(journal_record_get(JOURNAL_DAMAGED + 1, p, sizeof(p), &got),
                         -ROZO_EDAMAGED);
    }
}

static void test_records_are_where_the_header_says(void **state)
{
    struct journal_record e = sample(JOURNAL_RECORDS);
    struct journal_block r[JOURNAL_RECORD_BLOCKS_MAX];
    struct world w;
    uint8_t *p = malloc(65536);
    size_t head, row, len;

    (void)state;
    world_init(&w, 1);
    head = RECORD_HEADER_BYTES + codec_overhang_bytes(e.codec, 1);
    row = codec_row_bytes(e.codec, 8192);
    journal_record_put(p, &e);
    for (unsigned i = 0; i < 3; i++) {
        static const uint64_t blocks[] = { 77, 77 + 63, 77 + 65 };

        record_fill(&w, p + JOURNAL_RECORD_HEADER_BYTES + i * head,
                    p + JOURNAL_RECORD_HEADER_BYTES + 3 * head + (i == 2 ? 1 : i) * row,
                    1, blocks[i], 100 + i, i == 1 ? 0 : 8192);
    }
    len = JOURNAL_RECORD_HEADER_BYTES + 3 * head + 2 * row;
    assert_int_equal(journal_record_blocks(&e, p, len, r), 3);
    assert_int_equal(r[1].block, 77 + 63);
    assert_int_equal(r[1].body_len, 0);
    assert_int_equal(r[2].header.version, 102);
    assert_int_equal(r[2].body_at, len - row);
    assert_int_equal(journal_record_blocks(&e, p, len - 1, r), -ROZO_EDAMAGED);
    assert_int_equal(journal_record_blocks(&e, p, len + 1, r), -ROZO_EDAMAGED);
    e.first++;
    assert_int_equal(journal_record_blocks(&e, p, len, r), -ROZO_EDAMAGED);
    free(p);
    world_free(&w);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers_come_back),
        cmocka_unit_test(test_records_are_where_the_header_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
