/* Goal: a recall waits for every rename in its directory, and for no other one. */
#include "rozomount/tokens/rename_barrier.h"
#include "tests/unit/unit.h"

enum { A = 5, B = 6, C = 7 };

static unsigned n_ready(struct rename_barrier *r, struct rename_under_way *u)
{
    struct list_node ready;
    unsigned n = 0;

    list_init(&ready);
    rename_barrier_end(r, u, &ready);
    LIST_FOREACH_SAFE(link, &ready) {
        list_remove(link);
        n++;
    }
    return n;
}

static void test_calls_wait_for_renames_in_their_directory(void **state)
{
    struct rename_under_way first = { 0 }, second = { 0 };
    struct rename_waiter in_a = { .dir = A }, in_b = { .dir = B }, in_c = { .dir = C };
    struct rename_barrier *r = rename_barrier_new();

    (void)state;
    assert_false(rename_barrier_wait(r, &in_a));
    rename_barrier_begin(r, &first, A, B);
    rename_barrier_begin(r, &second, B, B);
    assert_true(rename_barrier_wait(r, &in_a));
    assert_true(rename_barrier_wait(r, &in_b));
    assert_false(rename_barrier_wait(r, &in_c));
    assert_int_equal(n_ready(r, &first), 1); /* in_a is ready */
    assert_int_equal(n_ready(r, &first), 0); /* the first rename is over */
    assert_false(rename_barrier_wait(r, &in_a));
    assert_int_equal(n_ready(r, &second), 1);
    rename_barrier_begin(r, &first, C, A); /* started again */
    assert_true(rename_barrier_wait(r, &in_c));
    assert_int_equal(n_ready(r, &first), 1);
    rename_barrier_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        test_calls_wait_for_renames_in_their_directory) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
