/*
 * Goal: a missed write that was recorded stays recorded, however many there are; others
 * are recorded only when the list had to become coarse. Method: random ranges against a
 * model of single blocks.
 */
#include <stdlib.h>

#include "storcli/rules/missed_writes.h"
#include "tests/unit/unit.h"

enum { BLOCKS = 5000 };

static uint32_t random_state;

static uint32_t rnd(uint32_t bound)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % bound;
}

static void check_model(const struct missed *m, const struct missed_range *model,
                        bool exact)
{
    uint64_t end = 0;
    unsigned r = 0;

    assert_true(m->n <= MISSED_RANGES_MAX);
    for (unsigned i = 0; i < m->n; i++) { /* sorted, without overlap */
        assert_true(m->ranges[i].first_block < m->ranges[i].end_block);
        assert_true(i == 0 || m->ranges[i].first_block > end);
        end = m->ranges[i].end_block;
    }
    for (unsigned b = 0; b < BLOCKS; b++) {
        bool inside;

        while (r < m->n && m->ranges[r].end_block <= b)
            r++;
        inside = r < m->n && m->ranges[r].first_block <= b;
        if (model[b].candidates == 0) {
            assert_false(exact && inside);
            continue;
        }
        assert_true(inside);
        assert_int_equal(model[b].candidates & ~m->ranges[r].candidates, 0);
        assert_int_equal(model[b].holders & ~m->ranges[r].holders, 0);
        assert_true(model[b].version <= m->ranges[r].version);
    }
}

static void nothing_is_forgotten(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        struct missed_range *model = calloc(BLOCKS, sizeof(*model));
        struct missed m = { 0 }, other = { 0 };
        unsigned n = seed % 2 == 0 ? 30 : 300;

        assert_non_null(model);
        random_state = seed;
        for (unsigned i = 0; i < n; i++) {
            uint64_t first = rnd(BLOCKS - 20);
            struct missed_range range = {
                .first_block = first,
                .end_block = first + 1 + rnd(20),
                .version = 1 + rnd(1000),
                .candidates = 1u << rnd(6),
                .holders = 1u << rnd(8),
            };

            assert_true(missed_add(rnd(4) == 0 ? &other : &m, &range));
            for (uint64_t b = first; b < range.end_block; b++) {
                model[b].candidates |= range.candidates;
                model[b].holders |= range.holders;
                if (range.version > model[b].version)
                    model[b].version = range.version;
            }
        }
        assert_true(missed_move(&m, &other));
        assert_true(missed_is_empty(&other));
        check_model(&m, model, n == 30);
        missed_free(&m);
        missed_free(&other);
        free(model);
    }
}

static void to_the_end_of_everything(void **state)
{
    struct missed m = { 0 };

    (void)state;
    assert_true(
        missed_add(&m, &(struct missed_range){ 100, UINT64_MAX, 7, 1, 2, false }));
    assert_true(missed_add(&m, &(struct missed_range){ 500, 510, 9, 4, 8, true }));
    assert_true(missed_add(&m, &(struct missed_range){ 10, 20, 8, 1, 2, false }));
    assert_int_equal(m.n, 2);
    assert_int_equal(m.ranges[1].first_block, 100);
    assert_true(m.ranges[1].end_block == UINT64_MAX);
    assert_int_equal(m.ranges[1].version, 9);
    assert_int_equal(m.ranges[1].candidates, 5);
    assert_int_equal(missed_holders(&m), 10);
    assert_true(missed_is_urgent(&m)); /* urgent because a joined part is */
    missed_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_forgotten),
        cmocka_unit_test(to_the_end_of_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
