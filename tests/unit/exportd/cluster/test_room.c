/*
 * test_room.c - the room that statfs promises can be used.
 *
 * Goal:   placement fills the storages so that many files can have the promised bytes,
 *         whatever the sizes, hosts and racks of storages.
 * Method: files of 64 MiB are created and "written" by taking their rows from the free
 *         bytes of the file's storages, until a row finds no room; exportd learns that by
 *         its polls.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "tests/unit/exportd/world.h"

enum { FILE_MIB = 64, FILES_A_POLL = 5 };
static const uint64_t gib = 1ull << 30;

static struct world w;

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static void begin(unsigned seed)
{
    world_open(&w, seed);
    world_start(&w);
}

/* Waits until all storages were polled. */
static void polled(void)
{
    env_virtual_advance_ms(&w.env, 2500);
}

static Rozo__MdStatfsResp statfs(void)
{
    Rozo__MdStatfsReq req = ROZO__MD_STATFS_REQ__INIT;
    Rozo__MdStatfsResp *resp, copy;

    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    copy = *resp;
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
    return copy;
}

static uint64_t row_bytes(unsigned layout, unsigned projection)
{
    const struct codec *codec = codec_get(CODEC_MOJETTE, layout, 8192);

    return record_extent_bytes(codec, projection) * (FILE_MIB << 20) / 8192 /
           EXTENT_BLOCKS;
}

/* Returns the user bytes of n rows, one on each of the n storages of a row. */
static uint64_t user_of_rows(unsigned layout, double row)
{
    double rows = 0;

    for (unsigned i = 0; i < codec_layout(layout)->n; i++)
        rows += (double)row_bytes(layout, i);
    return (uint64_t)(row * codec_layout(layout)->n / rows * (FILE_MIB << 20));
}

/* Takes row i from its home, or from a spare that has room and no row of this file
 * yet. */
static bool write_row(const struct seen *s, unsigned layout, unsigned i, bool *has_row)
{
    unsigned n = codec_layout(layout)->n;

    for (unsigned c = i; c < s->n_storages; c = c < n ? n : c + 1) {
        struct fake_storage *st = &w.storages[s->storages[c] - 1];

        if (has_row[c] || st->free < row_bytes(layout, i))
            continue;
        has_row[c] = true;
        st->free -= row_bytes(layout, i);
        return true;
    }
    return false;
}

/* Writes files until one does not fit. Returns their bytes. */
static uint64_t write_until_full(unsigned layout, unsigned *n_of)
{
    static unsigned round;
    uint64_t written = 0;

    round++;
    for (unsigned f = 0;; f++) {
        bool has_row[DIST_MAX] = { false };
        char name[32];
        struct seen s;

        if (f % FILES_A_POLL == 0)
            polled();
        snprintf(name, sizeof(name), "r%u.%u", round, f);
        if (t_create_open(&w, 1, name, true, &s) != ROZO__STATUS__OK)
            return written;
        for (unsigned i = 0; i < codec_layout(layout)->n; i++) {
            if (!write_row(&s, layout, i, has_row))
                return written;
            if (n_of != NULL)
                n_of[s.storages[i] - 1]++;
        }
        written += FILE_MIB << 20;
    }
}

static void sizes(unsigned n, const unsigned *gibs)
{
    for (unsigned i = 0; i < n; i++)
        w.storages[i].total = w.storages[i].free = gibs[i] * gib;
}

/* Checks that about as much as promised can be written, and that no more is promised
 * then. */
static void expect_promise_is_kept(unsigned layout, uint64_t at_least)
{
    uint64_t promised, written;

    polled();
    promised = statfs().free_bytes;
    assert_true(promised >= at_least);
    written = write_until_full(layout, NULL);
    assert_true((double)written >= 0.98 * (double)promised);
    assert_true((double)written <= 1.03 * (double)promised); /* into the reserve */
    polled();
    assert_true(statfs().free_bytes < promised / 50);
}

static void test_storages_of_different_sizes(void **state)
{
    static const unsigned cases[][4] = {
        { 40, 10, 10, 10 }, { 10, 10, 10, 10 }, { 10, 20, 30, 40 },
        { 40, 40, 40, 2 },  { 40, 40, 3, 3 },
    };
    static const double rows[] = { 15, 13.33, 30, 40.66, 6 }; /* GiB on each of three */

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double row = rows[i] * 0.98 * (double)gib;

        begin(i + 1);
        sizes(4, cases[i]);
        world_make_export(&w, 4, 0);
        expect_promise_is_kept(0, user_of_rows(0, row * 0.99));
        if (i + 1 < sizeof(cases) / sizeof(cases[0]))
            world_close(&w);
    }
}

static void test_a_larger_layout(void **state)
{
    static const unsigned gibs[] = { 4, 4, 4, 8, 8, 8, 16, 16, 32 };

    (void)state;
    begin(7);
    sizes(9, gibs);
    world_make_export(&w, 9, 1);
    expect_promise_is_kept(
        1, user_of_rows(1, 12 * 0.97 * (double)gib)); /* (4+4+4+8+8+8+12*3)/6 */
}

/* Storages of one host count together if there are hosts enough for one row each. */
static void test_hosts_and_racks_count(void **state)
{
    static const unsigned gibs[] = { 10, 10, 10, 10, 10, 10 };

    (void)state;
    begin(8);
    sizes(6, gibs);
    for (unsigned i = 0; i < 6; i++) /* four on a, one on b, one on c */
        snprintf(w.storages[i].host, sizeof(w.storages[i].host), "%c",
                 i < 4 ? 'a' : 'a' + (char)i - 3);
    world_make_export(&w, 6, 0);
    polled();
    assert_in_range(statfs().free_bytes, user_of_rows(0, 9.7 * (double)gib),
                    user_of_rows(0, 9.8 * (double)gib));
    for (unsigned i = 0; i < 6; i++) /* only two hosts: two rows go to one */
        snprintf(w.storages[i].host, sizeof(w.storages[i].host), "%c", i < 4 ? 'a' : 'b');
    polled();
    assert_in_range(statfs().free_bytes, user_of_rows(0, 19.5 * (double)gib),
                    user_of_rows(0, 19.7 * (double)gib));
    for (unsigned i = 0; i < 6; i++) {
        snprintf(w.storages[i].host, sizeof(w.storages[i].host), "%u", i);
        snprintf(w.storages[i].rack, sizeof(w.storages[i].rack), "%c", i < 1 ? 'x' : 'y');
    }
    polled(); /* one row on x, two on y */
    assert_in_range(statfs().free_bytes, user_of_rows(0, 9.7 * (double)gib),
                    user_of_rows(0, 9.8 * (double)gib));
}

static void test_only_storages_that_can_take_data_count(void **state)
{
    static const unsigned gibs[] = { 10, 10, 10, 10 };
    Rozo__MdStatfsResp all, told;

    (void)state;
    begin(9);
    sizes(4, gibs);
    world_make_export(&w, 4, 0);
    polled();
    all = statfs();
    w.storages[0].down = true;
    polled();
    told = statfs();
    assert_int_equal(told.total_bytes, all.total_bytes); /* the storage will be back */
    assert_in_range(told.free_bytes, user_of_rows(0, 9.7 * (double)gib),
                    user_of_rows(0, 9.8 * (double)gib));
    w.storages[1].down = true; /* two storages: no write can succeed */
    polled();
    assert_int_equal(statfs().free_bytes, 0);
    w.storages[0].down = w.storages[1].down = false;
    w.storages[2].free = w.storages[3].free = gib / 10; /* full */
    polled();
    told = statfs();
    assert_int_equal(told.free_bytes, 0);
    assert_true(told.unused_bytes > user_of_rows(0, 6.6 * (double)gib));
}

/* Four daemons on one file system have its bytes only once. */
static void test_storages_that_share_a_disk_share_its_room(void **state)
{
    static const unsigned gibs[] = { 12, 12, 12, 12 };
    Rozo__MdStatfsResp told;

    (void)state;
    begin(10);
    sizes(4, gibs);
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].disk_id = 77;
    world_make_export(&w, 4, 0);
    polled();
    told = statfs();
    assert_in_range(told.total_bytes, user_of_rows(0, 3.99 * (double)gib),
                    user_of_rows(0, 4 * (double)gib));
    assert_in_range(told.free_bytes, user_of_rows(0, 3.9 * (double)gib),
                    user_of_rows(0, 3.93 * (double)gib));
    w.storages[0].disk_id = 0; /* as in an older build */
    polled();
    assert_true(statfs().total_bytes > told.total_bytes);
}

/* Equal storages are homes equally often, and together with changing ones. */
static void test_equal_storages_get_equally_many(void **state)
{
    static const unsigned gibs[] = { 10, 10, 10, 10, 10, 10, 10, 10 };
    unsigned n_of[8] = { 0 }, pairs[8][8] = { { 0 } };
    char name[16];

    (void)state;
    begin(11);
    sizes(8, gibs);
    world_make_export(&w, 8, 0);
    polled();
    for (unsigned f = 0; f < 800; f++) {
        struct seen s;

        snprintf(name, sizeof(name), "f%u", f);
        OK(t_create_open(&w, 1, name, true, &s));
        for (unsigned i = 0; i < 3; i++) {
            n_of[s.storages[i] - 1]++;
            for (unsigned j = 0; j < 3; j++)
                pairs[s.storages[i] - 1][s.storages[j] - 1]++;
        }
    }
    for (unsigned i = 0; i < 8; i++) {
        assert_in_range(n_of[i], 295, 305);
        for (unsigned j = 0; j < 8; j++)
            assert_in_range(pairs[i][j], 1, 305);
        for (unsigned j = 0; j < 8; j++) /* 86 on average: random, not a fixed circle */
            assert_true(i == j || pairs[i][j] < 172);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_storages_of_different_sizes, teardown),
        cmocka_unit_test_teardown(test_a_larger_layout, teardown),
        cmocka_unit_test_teardown(test_hosts_and_racks_count, teardown),
        cmocka_unit_test_teardown(test_only_storages_that_can_take_data_count, teardown),
        cmocka_unit_test_teardown(test_storages_that_share_a_disk_share_its_room,
                                  teardown),
        cmocka_unit_test_teardown(test_equal_storages_get_equally_many, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
