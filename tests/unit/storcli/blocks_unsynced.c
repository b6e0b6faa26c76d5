/*
 * Goal: no storage with unsynced data is forgotten, however much is written; a statement
 * about a range is true for each of its blocks. Method: random adds against a model of
 * single blocks.
 */
#include <stdlib.h>

#include "storcli/rules/unsynced.h"
#include "tests/unit/unit.h"

enum { BLOCKS = 20000 };

static uint32_t random_state;

static uint32_t rnd(uint32_t bound)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % bound;
}

static struct holders held_by(uint32_t who, unsigned shift)
{
    struct holders held = { .all = who, .any = who };

    memset(held.projection, UNSYNCED_NO_PROJECTION, sizeof(held.projection));
    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((who >> i & 1) != 0)
            held.projection[i] = (uint8_t)((i + shift) % 6);
    }
    return held;
}

static void check_model(const struct unsynced *u, const struct holders *model, bool exact)
{
    uint64_t block = 0;
    uint32_t any = 0;

    assert_true(u->n_ranges <= UNSYNCED_RANGES_MAX);
    for (uint32_t i = 0; i < u->n_ranges; i++) {
        const struct unsynced_range *range = &u->ranges[i];

        assert_true(range->first_block < range->end_block && range->first_block >= block);
        for (; block < range->first_block; block++)
            assert_int_equal(model[block].any, 0);
        for (; block < range->end_block; block++) {
            uint32_t all = range->held.all;

            if (model[block].any == 0) {
                assert_false(exact); /* only a coarse range may have gaps */
                continue;
            }
            assert_int_equal(model[block].any & ~range->held.any, 0);
            assert_int_equal(all & ~model[block].all, 0);
            for (unsigned c = 0; c < DIST_MAX; c++) {
                if ((all >> c & 1) != 0)
                    assert_int_equal(range->held.projection[c],
                                     model[block].projection[c]);
            }
            if (exact)
                assert_int_equal(all, model[block].all);
        }
        any |= range->held.any;
    }
    assert_int_equal(unsynced_any(u), any);
}

static void run(unsigned n_adds, unsigned longest, bool exact)
{
    struct holders *model = calloc(BLOCKS, sizeof(*model));
    struct unsynced u = { 0 };

    assert_non_null(model);
    for (unsigned i = 0; i < n_adds; i++) {
        unsigned n = 1 + rnd(longest), first = rnd(BLOCKS - n);
        struct holders held = held_by(rnd(4) == 0 ? 0xbe : 0x3f, rnd(8) == 0);

        unsynced_add(&u, rnd(3) + 1, first, n, &held);
        for (unsigned b = first; b < first + n; b++)
            model[b] = held;
        if (i % 64 == 0 || i + 1 == n_adds)
            check_model(&u, model, exact);
    }
    unsynced_free(&u);
    free(model);
}

static void ranges_are_exact_while_few(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 10; seed++) {
        random_state = seed;
        run(300, 100, true);
    }
}

static void ranges_are_bounded_and_forget_nobody(void **state)
{
    (void)state;
    random_state = 5;
    run(6000, 3, false);
}

static void pieces_of_one_write_are_one_range(void **state)
{
    struct unsynced u = { 0 };
    struct holders held = held_by(0x3f, 0);

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        unsynced_add(&u, 7, i * 128, 128, &held);
    assert_int_equal(u.n_ranges, 1);
    assert_int_equal(u.ranges[0].end_block, 128000);
    unsynced_free(&u);
}

/* Returns whether the block is listed at this version or a lower one (which makes a sync
 * do more, not less). */
static bool is_listed(const struct unsynced *u, uint64_t block, uint64_t version)
{
    for (uint32_t i = 0; i < u->n_ranges; i++) {
        if (block >= u->ranges[i].first_block && block < u->ranges[i].end_block)
            return u->ranges[i].version <= version;
    }
    for (uint32_t i = 0; i < u->n_marks; i++) {
        const struct unsynced_mark *m = &u->marks[i];

        if (m->version == version && block >= m->first_block &&
            (m->n_blocks == 0 || block < m->first_block + m->n_blocks))
            return true;
    }
    return false;
}

static void marks_are_bounded(void **state)
{
    struct unsynced u = { 0 };

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        struct holders held = held_by(0x3f, 0);

        unsynced_add_mark(&u, 100 + i, 10 * i, i == 0 ? 0 : 1 + i % 7, &held);
    }
    assert_int_equal(u.n_marks, UNSYNCED_MARKS_MAX);
    assert_int_equal(u.marks[0].n_blocks, 0); /* a mark without an end stays one */
    for (unsigned i = 1; i < 100; i++) {
        assert_true(is_listed(&u, 10 * i, 100 + i));
        assert_true(is_listed(&u, 10 * i + i % 7, 100 + i));
    }
    for (uint32_t i = 0; i < u.n_ranges; i++) {
        assert_false(u.ranges[i].gaps);
        assert_int_equal(u.ranges[i].held.all, 0x3f);
    }
    unsynced_free(&u);
}

/* Truncates and appends go on for ever: of each mark only the part that no later one
 * covers is kept. */
static void newer_marks_take_the_place_of_older_ones(void **state)
{
    struct unsynced u = { 0 };
    struct holders held = held_by(0x3f, 0);

    (void)state;
    for (unsigned i = 0; i < 10; i++)
        unsynced_add_mark(&u, 10 + i, 1000, 0, &held);
    assert_int_equal(u.n_marks, 1);
    /* left of the previous mark: [1000, 1200) */
    unsynced_add_mark(&u, 20, 1200, 0, &held);
    assert_int_equal(u.n_marks, 2);
    assert_int_equal(u.marks[0].n_blocks, 200);
    assert_int_equal(u.marks[0].version, 19);
    unsynced_add_mark(&u, 21, 900, 150, &held);
    assert_int_equal(u.marks[0].first_block, 1050);
    assert_int_equal(u.marks[0].n_blocks, 150);
    unsynced_add_mark(&u, 22, 1100, 10, &held); /* in the middle: both marks stay */
    assert_int_equal(u.n_marks, 4);
    unsynced_add_mark(&u, 5, 1205, 20, &held); /* older than the mark that covers it */
    assert_int_equal(u.n_marks, 4);
    unsynced_add_mark(&u, 5, 1190, 0, &held);
    assert_int_equal(u.n_marks, 4);
    unsynced_add_mark(&u, 23, 0, 0, &held);
    assert_int_equal(u.n_marks, 1);
    assert_int_equal(u.marks[0].n_blocks, 0);
    /* the file grows: only the newest mark has no end */
    for (unsigned i = 0; i < 200; i++)
        unsynced_add_mark(&u, 24 + i, i * 10, 0, &held);
    assert_true(u.n_marks <= UNSYNCED_MARKS_MAX);
    for (unsigned i = 0; i < 199; i++)
        assert_true(is_listed(&u, 10 * i + 9, 24 + i));
    assert_true(is_listed(&u, 1u << 30, 24 + 199));
    unsynced_free(&u);
}

/* A storage was down for some of many small writes: blocks that it has are not mixed with
 * blocks that it lacks. */
static void what_others_hold_stays_apart(void **state)
{
    struct unsynced u = { 0 };
    struct holders a = held_by(0x3f, 0), b = held_by(0xbe, 0);

    (void)state;
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t block = i * 7919 % 20011 * 3;

        unsynced_add(&u, 1 + i, block, 1, i % 3000 < 300 ? &a : &b);
        assert_true(u.n_ranges < UNSYNCED_RANGES_MAX);
        if (i < 1300)
            assert_true(is_listed(&u, block, 1 + i));
    }
    for (uint32_t i = 0; i < u.n_ranges; i++)
        assert_true(u.ranges[i].held.any != 0);
    unsynced_free(&u);
    for (unsigned i = 0; i < 4000; i++)
        unsynced_add(&u, 1 + i, i * 3, 1, i / 10 % 10 == 0 ? &a : &b);
    for (uint32_t i = 0; i < u.n_ranges; i++)
        assert_int_equal(u.ranges[i].held.all, u.ranges[i].held.any);
    unsynced_free(&u);
}

static void another_verifier_means_lost(void **state)
{
    struct unsynced u = { 0 };
    struct holders held = held_by(0x3f, 0);

    (void)state;
    assert_false(unsynced_verify(&u, 2, 11));
    unsynced_add(&u, 5, 0, 10, &held);
    assert_false(unsynced_verify(&u, 2, 11));
    assert_int_equal(u.ranges[0].held.gone, 0);
    assert_true(unsynced_verify(&u, 2, 12));
    assert_int_equal(u.ranges[0].held.gone, 0x04);
    assert_int_equal(u.ranges[0].held.all, 0x3b);
    assert_int_equal(u.ranges[0].held.any, 0x3b);
    unsynced_free(&u);
}

/* Counts the most projections that can be chosen from storages that hold random ones, one
 * of each storage, by trying all ways. */
static unsigned most_projections(const uint32_t *has, unsigned i, unsigned c,
                                 uint32_t had)
{
    unsigned most;

    if (i == c)
        return (unsigned)__builtin_popcount(had);
    most = most_projections(has, i + 1, c, had);
    for (unsigned p = 0; p < 6; p++) {
        if ((has[i] & ~had) >> p & 1) {
            unsigned n = most_projections(has, i + 1, c, had | 1u << p);

            most = n > most ? n : most;
        }
    }
    return most;
}

static void each_holder_counts_for_one_projection(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        uint32_t has[DIST_MAX] = { 0 }, had = 0, holes = rnd(2) == 0 ? rnd(64) : 0;
        struct holders held;

        for (unsigned c = 0; c < 6; c++) {
            if (rnd(4) != 0)
                has[c] = rnd(2) == 0 ? 1u << rnd(6) : rnd(64);
        }
        held = holders_of(has, holes);
        assert_int_equal(held.gone, 0);
        assert_int_equal(held.all, held.any & ~held.bare);
        assert_int_equal(held.bare & ~holes, 0);
        for (unsigned c = 0; c < DIST_MAX; c++) {
            assert_int_equal(held.any >> c & 1, has[c] != 0);
            if ((held.all >> c & 1) == 0)
                continue;
            assert_true((has[c] >> held.projection[c] & 1) != 0);
            had |= 1u << held.projection[c];
        }
        assert_int_equal(__builtin_popcount(had), most_projections(has, 0, 6, 0));
    }
}

static void what_is_stable_takes_the_place_of_what_is_not(void **state)
{
    struct unsynced u = { 0 };
    struct holders held = held_by(0x3f, 0);

    (void)state;
    unsynced_add(&u, 5, 0, 10, &held);
    unsynced_remove(&u, 20, 1);
    assert_int_equal(u.n_ranges, 1);
    unsynced_remove(&u, 4, 2);
    assert_int_equal(u.n_ranges, 2);
    assert_true(unsynced_has(&u, 3) && unsynced_has(&u, 6));
    assert_false(unsynced_has(&u, 4) || unsynced_has(&u, 5));
    unsynced_remove(&u, 0, 4);
    unsynced_remove(&u, 6, 100);
    assert_true(unsynced_is_empty(&u));
    unsynced_free(&u);
    for (unsigned i = 0; i < UNSYNCED_RANGES_MAX + 100; i++) {
        unsynced_add(&u, 5, i * 100, 99, &held);
        unsynced_remove(&u, i * 100 + 1, 1);
        assert_true(u.n_ranges <= UNSYNCED_RANGES_MAX);
    }
    unsynced_free(&u);
}

static void a_failed_sync_comes_back_below_the_newer(void **state)
{
    struct unsynced newer = { 0 }, older = { 0 };
    struct holders a = held_by(0x3f, 0), b = held_by(0xbe, 0);

    (void)state;
    unsynced_add(&older, 5, 0, 100, &a);
    unsynced_add_mark(&older, 5, 200, 10, &a);
    unsynced_verify(&older, 0, 1);
    unsynced_add(&newer, 6, 50, 10, &b);
    unsynced_verify(&newer, 0, 2); /* 0 lost all that was older */
    unsynced_merge_older(&newer, &older);
    assert_true(unsynced_is_empty(&older));
    assert_int_equal(newer.n_ranges, 3);
    assert_int_equal(newer.ranges[1].first_block, 50);
    assert_int_equal(newer.ranges[1].end_block, 60);
    assert_int_equal(newer.ranges[1].held.any, 0xbe);
    assert_int_equal(newer.ranges[0].held.gone, 1);
    assert_int_equal(newer.ranges[2].end_block, 100);
    assert_int_equal(newer.n_marks, 1);
    unsynced_free(&newer);
}

/* The gaps of a coarse newer range do not count as covered by it. */
static void a_coarse_newer_list_forgets_nothing_older(void **state)
{
    struct unsynced newer = { 0 }, older = { 0 };
    struct holders a = held_by(0x3f, 0), b = held_by(0xbe, 0);

    (void)state;
    /* every other block: becomes coarse */
    for (unsigned i = 0; i < UNSYNCED_RANGES_MAX; i++)
        unsynced_add(&newer, 9, 2 * i, 1, &b);
    assert_true(newer.ranges[0].gaps);
    unsynced_add(&older, 5, 0, 4 * UNSYNCED_RANGES_MAX, &a);
    unsynced_merge_older(&newer, &older);
    assert_int_equal(unsynced_any(&newer), 0xbf);
    assert_int_equal(newer.ranges[0].first_block, 0);
    assert_int_equal(newer.ranges[0].version, 5);
    assert_int_equal(newer.ranges[0].held.any, 0xbf);
    assert_int_equal(newer.ranges[newer.n_ranges - 1].end_block, 4 * UNSYNCED_RANGES_MAX);
    unsynced_free(&newer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_exact_while_few),
        cmocka_unit_test(ranges_are_bounded_and_forget_nobody),
        cmocka_unit_test(pieces_of_one_write_are_one_range),
        cmocka_unit_test(marks_are_bounded),
        cmocka_unit_test(newer_marks_take_the_place_of_older_ones),
        cmocka_unit_test(what_others_hold_stays_apart),
        cmocka_unit_test(what_is_stable_takes_the_place_of_what_is_not),
        cmocka_unit_test(another_verifier_means_lost),
        cmocka_unit_test(each_holder_counts_for_one_projection),
        cmocka_unit_test(a_failed_sync_comes_back_below_the_newer),
        cmocka_unit_test(a_coarse_newer_list_forgets_nothing_older),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
