/*
 * Goal: the bytes of projection files and of the identity file. Method: bytes are written
 * and read back, every byte is changed, and the ranges of marks are compared with one
 * version per block.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "storaged/format/identity.h"
#include "storaged/format/projfile.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { N_BLOCKS = 400 };

static struct projfile_header some_header(void)
{
    struct projfile_header h = {
        .id = { 1, 2, UINT64_MAX },
        .codec = CODEC_MOJETTE,
        .layout = 1,
        .projection = 5,
        .n_storages = 8,
        .block_bytes = 8192,
        .epoch = 77,
    };

    for (unsigned i = 0; i < 8; i++)
        h.storages[i] = 1000 + i;
    return h;
}

static void test_header_pages(void **state)
{
    struct projfile_header h = some_header(), got;
    uint8_t page[PROJFILE_PAGE_BYTES];

    (void)state;
    memset(&got, 0, sizeof(got));
    memset(page, 0, sizeof(page));
    assert_int_equal(projfile_header_get(page, &got), -ENODATA);
    projfile_header_put(page, &h);
    assert_memory_equal(page, "ROZOPROJ", 8);
    assert_int_equal(projfile_header_get(page, &got), 0);
    assert_int_equal(got.id.ino, h.id.ino);
    assert_int_equal(got.projection, 5);
    assert_int_equal(got.epoch, 77);
    assert_memory_equal(got.storages, h.storages, sizeof(h.storages));
    for (unsigned i = 0; i < sizeof(page); i++) {
        page[i] ^= 1;
        assert_int_equal(projfile_header_get(page, &got), -ROZO_EDAMAGED);
        page[i] ^= 1;
    }
}

/* Each header has the lowest format that can say what it says. */
static void test_formats_of_headers(void **state)
{
    static const struct {
        bool full, partial;
        uint32_t generation, format;
    } cases[] = {
        { false, true, 0, 1 }, { false, true, 5, 2 }, { true, false, 0, 3 },
        { true, true, 0, 3 },  { true, false, 5, 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct projfile_header h = some_header(), got;
        uint8_t page[PROJFILE_PAGE_BYTES];

        h.full_quorum = cases[i].full;
        h.partial = cases[i].partial;
        h.dist_generation = cases[i].generation;
        projfile_header_put(page, &h);
        assert_int_equal(get_le32(page + 8), cases[i].format);
        assert_int_equal(projfile_header_get(page, &got), 0);
        assert_int_equal(got.full_quorum, h.full_quorum);
        assert_int_equal(got.partial, h.partial);
        assert_int_equal(got.dist_generation, h.dist_generation);
    }
}

/* Header pages that are valid, but have another format or impossible fields. */
static void test_header_pages_of_others(void **state)
{
    static const struct {
        unsigned at;
        uint8_t value;
        int rc;
    } cases[] = {
        { 8, 4, -ROZO_EUNKNOWN_FORMAT }, { 8, 0, -ROZO_EUNKNOWN_FORMAT },
        { 8, 2, -ROZO_EDAMAGED },        { 8, 3, -ROZO_EDAMAGED },
        { 200, 8, -ROZO_EDAMAGED },      { 200, 2, -ROZO_EDAMAGED },
        { 32, 99, -ROZO_EDAMAGED },      { 33, 3, -ROZO_EDAMAGED },
        { 34, 6, -ROZO_EDAMAGED },       { 35, 5, -ROZO_EDAMAGED },
        { 35, 33, -ROZO_EDAMAGED },      { 37, 0, -ROZO_EDAMAGED },
        { 204, 1, -ROZO_EDAMAGED },      { 208, 1, -ROZO_EDAMAGED },
        { 2000, 1, -ROZO_EDAMAGED },
    };
    struct projfile_header h = some_header(), got;
    uint8_t page[PROJFILE_PAGE_BYTES], zero[4] = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t crc;

        projfile_header_put(page, &h);
        page[cases[i].at] = cases[i].value;
        crc = codec_crc32c(0, page, 12);
        crc = codec_crc32c(crc, zero, 4);
        put_le32(page + 12, codec_crc32c(crc, page + 16, sizeof(page) - 16));
        assert_int_equal(projfile_header_get(page, &got), cases[i].rc);
    }
}

/* Makes a header page by letter: this generation, another file, a later format, torn, or
 * zeros. */
static void front_page_make(uint8_t *page, char what)
{
    struct projfile_header h = some_header();

    memset(page, 0, PROJFILE_PAGE_BYTES);
    if (what == '-')
        return;
    h.dist_generation = what >= '0' && what <= '9' ? (uint32_t)(what - '0') : 7;
    h.id.ino += what == 'o';
    projfile_header_put(page, &h);
    if (what == 'x')
        page[100] ^= 1;
    if (what != 'f')
        return;
    put_le32(page + 8, PROJFILE_FORMAT_QUORUM + 1);
    put_le32(page + 12, 0);
    put_le32(page + 12, codec_crc32c(0, page, PROJFILE_PAGE_BYTES));
}

/* The complete one of page and copy counts; if both are, the later one does; a torn one
 * never. */
static void test_a_header_and_its_copy(void **state)
{
    static const struct {
        char page, copy;
        int rc; /* generation, or the error */
        bool broken, empty;
    } cases[] = {
        { '0', '-', 0, 0, 0 },
        { '0', 'x', 0, 0, 0 },
        { '0', '1', 1, 0, 0 },
        { '1', '1', 1, 0, 0 },
        { '2', '1', 2, 0, 0 },
        { '1', 'x', 1, 0, 0 },
        { 'x', '1', 1, 0, 0 },
        { '-', '2', 2, 0, 0 },
        { '1', '2', 2, 0, 0 },
        { '1', 'o', 1, 0, 0 },
        { '1', '0', 1, 0, 0 },
        { '3', '-', 3, 0, 0 },
        { 'x', 'x', -ROZO_EDAMAGED, 1, 0 },
        { '-', '-', -ENODATA, 1, 1 },
        { 'x', '-', -ROZO_EDAMAGED, 1, 0 },
        { '-', 'x', -ENODATA, 1, 0 },
        { 'x', '0', -ROZO_EDAMAGED, 0, 0 },
        { 'f', '1', -ROZO_EUNKNOWN_FORMAT, 0, 0 },
        { '1', 'f', -ROZO_EUNKNOWN_FORMAT, 0, 0 },
        { 'x', 'f', -ROZO_EUNKNOWN_FORMAT, 0, 0 },
    };
    uint8_t front[PROJFILE_FRONT_BYTES];
    struct projfile_header got;

    (void)state;
    memset(front, 0x5a, sizeof(front));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc;

        front_page_make(front, cases[i].page);
        front_page_make(front + PROJFILE_COPY_AT, cases[i].copy);
        rc = projfile_front_get(front, &got);
        assert_int_equal(rc == 0 ? (int)got.dist_generation : rc, cases[i].rc);
        assert_int_equal(projfile_front_is_broken(front), cases[i].broken);
        assert_int_equal(projfile_front_is_empty(front), cases[i].empty);
    }
}

static void test_mark_pages(void **state)
{
    struct marks m = { .n = 0 }, got, written = { .n = 0 }, got_written;
    struct marks_page h = {
        .sequence = 9, .epoch = 3, .file_hash = 0x1234, .projection = 2
    };
    struct marks_page got_h;
    uint8_t page[PROJFILE_PAGE_BYTES];

    (void)state;
    for (unsigned i = 0; i < MARKS_MAX; i++)
        marks_apply(&m, 10 * i, 10 * i + 5, i + 1);
    assert_int_equal(m.n, MARKS_MAX);
    assert_false(marks_fits(&m, 7, 8, 1000));
    assert_true(marks_fits(&m, 5, 10, 1));
    assert_true(marks_fits(&m, 0, UINT64_MAX, 1000));
    projfile_marks_put(page, &h, &m, &written);
    assert_int_equal(projfile_marks_get(page, &got_h, &got, &got_written), 0);
    assert_int_equal(got_h.sequence, 9);
    assert_int_equal(got_h.epoch, 3);
    assert_int_equal(got.n, m.n);
    assert_memory_equal(got.ranges, m.ranges, sizeof(m.ranges));
    for (unsigned i = 0; i < sizeof(page); i += 3) {
        page[i] ^= 0x80;
        assert_int_equal(projfile_marks_get(page, &got_h, &got, &got_written),
                         -ROZO_EDAMAGED);
        page[i] ^= 0x80;
    }
    m.ranges[3].end = m.ranges[4].first + 1; /* overlapping, with a valid crc */
    projfile_marks_put(page, &h, &m, &written);
    assert_int_equal(projfile_marks_get(page, &got_h, &got, &got_written),
                     -ROZO_EDAMAGED);
    memset(page, 0, sizeof(page));
    assert_int_equal(projfile_marks_get(page, &got_h, &got, &got_written), -ENODATA);
}

static void marks_check(const struct marks *m, const uint64_t *model, uint64_t beyond)
{
    uint64_t next = UINT64_MAX;

    for (unsigned i = 0; i < m->n; i++) {
        assert_true(m->ranges[i].first < m->ranges[i].end);
        assert_true(i == 0 || m->ranges[i - 1].end <= m->ranges[i].first);
        assert_true(i == 0 || m->ranges[i - 1].end < m->ranges[i].first ||
                    m->ranges[i - 1].version != m->ranges[i].version);
    }
    assert_int_equal(marks_find(m, UINT64_MAX - 1), beyond);
    if (beyond != 0)
        next = N_BLOCKS;
    for (unsigned b = N_BLOCKS; b-- > 0;) {
        assert_int_equal(marks_find(m, b), model[b]);
        if (model[b] != 0)
            next = b;
        assert_int_equal(marks_next(m, b), next);
    }
}

static void test_marks_against_one_version_per_block(void **state)
{
    struct env_virtual v;

    (void)state;
    env_virtual_init(&v, 5);
    for (unsigned round = 0; round < 30; round++) {
        uint64_t model[N_BLOCKS] = { 0 }, beyond = 0;
        struct marks m = { .n = 0 };

        for (unsigned i = 0; i < 150; i++) {
            uint64_t first = env_virtual_below(&v, N_BLOCKS);
            uint64_t end = first + 1 + env_virtual_below(&v, N_BLOCKS - first);
            uint64_t version = 1 + env_virtual_below(&v, round < 15 ? 5 : 1000),
                     newest = 0;

            if (env_virtual_below(&v, 20) == 0)
                end = UINT64_MAX;
            else if (env_virtual_below(&v, 4) != 0 && end > first + 4)
                end = first + 4;
            if (!marks_fits(&m, first, end, version)) {
                unsigned k = marks_smallest(&m);

                for (uint64_t b = m.ranges[k].first; b < m.ranges[k].end; b++)
                    model[b] = 0;
                marks_remove(&m, k);
                continue;
            }
            for (uint64_t b = first; b < N_BLOCKS && b < end; b++)
                newest = model[b] > newest ? model[b] : newest;
            if (end == UINT64_MAX && beyond > newest)
                newest = beyond;
            assert_int_equal(marks_newest(&m, first, end), newest);
            if (i % 5 == 4 && marks_cut(&m, first, end)) {
                for (uint64_t b = first; b < N_BLOCKS && b < end; b++)
                    model[b] = 0;
                beyond = end == UINT64_MAX ? 0 : beyond;
                assert_int_equal(marks_newest(&m, first, end), 0);
                assert_false(marks_cover(&m, first, end));
                marks_check(&m, model, beyond);
                continue;
            }
            marks_apply(&m, first, end, version);
            assert_true(marks_cover(&m, first, end));
            for (uint64_t b = first; b < N_BLOCKS && b < end; b++)
                model[b] = version > model[b] ? version : model[b];
            if (end == UINT64_MAX && version > beyond)
                beyond = version;
            marks_check(&m, model, beyond);
        }
    }
    env_virtual_close(&v);
}

static void test_geometry_never_overlaps(void **state)
{
    (void)state;
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        for (unsigned layout = 0; layout < 3; layout++) {
            for (size_t size = 4096; size <= 8192; size += 4096) {
                const struct codec *c = codec_get(codec_kind_at(i), layout, size);

                for (unsigned p = 0; p < codec_n(c); p++) {
                    struct geometry g;

                    geometry_init(&g, c, p);
                    assert_int_equal(geometry_head_at(&g, 0), 16384);
                    assert_true(geometry_head_at(&g, 127) + g.head_bytes <=
                                geometry_body_at(&g, 0));
                    assert_int_equal(geometry_body_at(&g, 0) % 4096, 0);
                    assert_int_equal(geometry_body_at(&g, 127) + g.stride,
                                     geometry_head_at(&g, 128));
                    assert_true(geometry_body_at(&g, PROJFILE_BLOCKS_MAX) < INT64_MAX);
                    assert_int_equal(geometry_blocks(&g, 16384), 0);
                    assert_int_equal(geometry_blocks(&g, 16385), 128);
                    assert_int_equal(geometry_blocks(&g, 16385 + g.extent_bytes), 256);
                    assert_int_equal(geometry_extent_of(&g, geometry_body_at(&g, 255)),
                                     128);
                }
            }
        }
    }
}

static void test_paths(void **state)
{
    char path[PROJFILE_PATH_MAX];

    (void)state;
    projfile_path(path, &(struct file_id){ 0, 0x1, 0x123456 }, 11);
    assert_string_equal(path, "objects/12/34/00000000000000010000000000123456.11");
    projfile_path(path, &(struct file_id){ UINT32_MAX, UINT32_MAX, UINT64_MAX }, 19);
    assert_int_equal(strlen(path), strlen("objects/12/34/.19") + 32);
}

static void test_identity_texts(void **state)
{
    static const char *const bad[] = {
        "",
        "rozo-storage\n",
        "rozo-storage\nformat: 1\n",
        "rozo-storage\nformat: 0\nincarnation: 00112233445566778899aabbccddeeff\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddee\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\nx",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\n"
        "cluster: 00112233445566778899aabbccddeeff\nstorage: 0\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\n"
        "cluster: 00112233445566778899aabbccddeeff\nstorage: 4294967296\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\n"
        "cluster: 00112233445566778899aabbccddeeff\nstorage: 1\n\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\n"
        "cluster: 00112233445566778899aabbccddeeff\nstorage: 1\nrebuild: no\n",
        "rozo-storage\nformat: 1\nincarnation: 00112233445566778899aabbccddeeff\n"
        "cluster: 00112233445566778899aabbccddeeff\nstorage: 1\nrebuild: yes\nx",
    };
    static const char newer[] = "rozo-storage\nformat: 7\nwhatever";
    uint8_t incarnation[16] = { 0xab, 1 }, cluster[16] = { 0xcd, 2 };
    char text[IDENTITY_TEXT_MAX];
    struct identity id = { .storage_id = 9 };
    struct err err = { 0 };
    size_t len;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(identity_parse(bad[i], strlen(bad[i]), &id, &err),
                         -ROZO_EDAMAGED);
    assert_int_equal(identity_parse(newer, strlen(newer), &id, &err),
                     -ROZO_EUNKNOWN_FORMAT);
    assert_string_equal(err.text, "format 7, this build reads up to 1");
    assert_int_equal(id.storage_id, 9);
    len = identity_print(text, incarnation, cluster, 0, false);
    assert_int_equal(identity_parse(text, len, &id, &err), 0);
    assert_int_equal(id.storage_id, 0);
    len = identity_print(text, incarnation, cluster, 4294967295, false);
    assert_int_equal(identity_parse(text, len, &id, &err), 0);
    assert_int_equal(id.storage_id, 4294967295);
    assert_memory_equal(id.incarnation, incarnation, 16);
    assert_memory_equal(id.cluster_id, cluster, 16);
    assert_false(identity_is_rebuilt(&id));
    len = identity_print(text, incarnation, cluster, 3, true);
    assert_int_equal(identity_parse(text, len, &id, &err), 0);
    assert_int_equal(id.storage_id, 3);
    assert_true(identity_is_rebuilt(&id));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_pages),
        cmocka_unit_test(test_formats_of_headers),
        cmocka_unit_test(test_header_pages_of_others),
        cmocka_unit_test(test_a_header_and_its_copy),
        cmocka_unit_test(test_mark_pages),
        cmocka_unit_test(test_marks_against_one_version_per_block),
        cmocka_unit_test(test_geometry_never_overlaps),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_identity_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
