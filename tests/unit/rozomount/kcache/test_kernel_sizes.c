/*
 * Goal: a file whose size another mount has changed is stale until the kernel forgets it,
 * and no other file is.
 */
#include "rozomount/kcache/kernel_sizes.h"
#include "tests/unit/unit.h"

enum { INO = 7 };

static const struct kernel_size *said(uint64_t size, uint64_t change)
{
    static struct kernel_size s;

    s = (struct kernel_size){ INO, size, change };
    return &s;
}

static int setup(void **state)
{
    struct kernel_sizes *sizes = kernel_sizes_new();

    kernel_sizes_note(sizes, said(100, 1));
    *state = sizes;
    return 0;
}

static int teardown(void **state)
{
    kernel_sizes_free(*state);
    return 0;
}

static void test_a_size_that_others_changed_is_stale_until_forgotten(void **state)
{
    struct kernel_sizes *sizes = *state;

    assert_false(
        kernel_sizes_is_stale(sizes, said(100, 2))); /* others changed something else */
    assert_true(kernel_sizes_is_stale(sizes, said(101, 3)));
    kernel_sizes_note(sizes, said(101, 3)); /* the kernel ignores it */
    assert_true(kernel_sizes_is_stale(sizes, said(101, 3)));
    kernel_sizes_own(sizes, said(5, 4));
    assert_true(kernel_sizes_is_stale(sizes, said(5, 4)));
    kernel_sizes_forget(sizes, INO);
    /* the kernel's size is unknown */
    assert_false(kernel_sizes_is_stale(sizes, said(9, 9)));
    kernel_sizes_note(sizes, said(9, 9));
    assert_false(kernel_sizes_is_stale(sizes, said(9, 9)));
    assert_true(kernel_sizes_is_stale(sizes, said(8, 10)));
}

static void test_own_changes_of_the_size_are_not_taken_for_others(void **state)
{
    struct kernel_sizes *sizes = *state;

    assert_false(kernel_sizes_wrote(sizes, said(200, 2), 200));
    /* several changes and a rename at once */
    assert_false(kernel_sizes_wrote(sizes, said(300, 5), 400));
    kernel_sizes_own(sizes, said(10, 7));
    assert_false(kernel_sizes_wrote(sizes, said(400, 6), 400)); /* a late answer */
    assert_false(kernel_sizes_wrote(sizes, said(10, 8), 10));
    assert_false(kernel_sizes_is_stale(sizes, said(10, 8)));
    assert_false(kernel_sizes_is_stale(sizes, said(300, 5))); /* an old answer */
}

static void test_changes_of_others_between_two_own_ones_are_noticed(void **state)
{
    struct kernel_sizes *sizes = *state;

    assert_true(kernel_sizes_wrote(sizes, said(500, 3), 200)); /* others extended it */
    kernel_sizes_forget(sizes, INO);
    kernel_sizes_note(sizes, said(100, 1));
    assert_true(kernel_sizes_wrote(sizes, said(50, 3), 100)); /* others cut it */
}

static void test_after_an_answer_that_was_lost(void **state)
{
    struct kernel_sizes *sizes = *state;

    kernel_sizes_unsure(sizes, INO);
    assert_false(kernel_sizes_is_stale(sizes, said(300, 2)));
    assert_true(kernel_sizes_is_stale(sizes, said(301, 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_a_size_that_others_changed_is_stale_until_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_own_changes_of_the_size_are_not_taken_for_others, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_changes_of_others_between_two_own_ones_are_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_an_answer_that_was_lost, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
