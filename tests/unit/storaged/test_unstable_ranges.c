/*
 * Goal: an unstable range is never forgotten too early, and few bytes of memory hold all
 * of them. Method: ranges everywhere, with syncs between them.
 */
#include <stdbool.h>

#include "storaged/object/unstable_ranges.h"
#include "tests/unit/unit.h"

/* Many ranges are kept as few and coarse ones that cover all of them. */
static void test_unstable_ranges_are_bounded(void **state)
{
    struct unstable_ranges l = { 0 };
    struct unstable_range ranges[UNSTABLE_LIST_MAX];
    unsigned n = 0;
    uint64_t from = UINT64_MAX;

    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        unstable_ranges_add(&l, i * i * 10, i * i * 10 + 3, 1000 - i);
        if (i == 50)
            unstable_ranges_sync(&l, 1);
    }
    unstable_ranges_get(&l, ranges, &n, &from);
    assert_true(n <= 2 * UNSTABLE_RANGES_MAX && from == 901);
    for (uint64_t i = 0; i < 100; i++) {
        bool in = false;

        for (unsigned r = 0; r < n; r++)
            in = in || (ranges[r].first <= i * i * 10 && i * i * 10 + 3 <= ranges[r].end);
        assert_true(in);
    }
    for (unsigned r = 1; r < n; r++)
        assert_true(ranges[r - 1].end < ranges[r].first);
}

static bool holds(const struct unstable_ranges *l, uint64_t block)
{
    struct unstable_range ranges[UNSTABLE_LIST_MAX];
    unsigned n = 0;
    uint64_t from = UINT64_MAX;
    bool found = false;

    unstable_ranges_get(l, ranges, &n, &from);
    for (unsigned i = 0; i < n; i++)
        found = found || (ranges[i].first <= block && block < ranges[i].end);
    return found;
}

static void test_synced_range_is_dropped_after_a_while(void **state)
{
    const uint64_t span = (uint64_t)UNSTABLE_MS * 1000000;
    struct unstable_ranges l = { 0 };

    (void)state;
    unstable_ranges_add(&l, 5, 6, 1);
    unstable_ranges_sync(&l, 100 * span); /* the count of syncs starts here */
    unstable_ranges_add(&l, 10, 11, 1);
    unstable_ranges_sync(&l, 101 * span - 1);
    assert_true(holds(&l, 5) && holds(&l, 10));
    unstable_ranges_sync(&l, 101 * span);
    assert_true(holds(&l, 5) && holds(&l, 10)); /* the latter was added a moment ago */
    unstable_ranges_add(&l, 20, 21, 1);
    unstable_ranges_sync(&l, 102 * span);
    assert_false(holds(&l, 5) || holds(&l, 10));
    assert_true(holds(&l, 20));
    unstable_ranges_add(&l, 30, 31, 1);
    assert_true(holds(&l, 30)); /* no sync happens any more */
    unstable_ranges_sync(&l, 200 * span);
    assert_true(!holds(&l, 20) && holds(&l, 30));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unstable_ranges_are_bounded),
        cmocka_unit_test(test_synced_range_is_dropped_after_a_while),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
