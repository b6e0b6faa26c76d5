/*
 * test_core_watch.c - a core that stands still is noticed; one that is only slow is not.
 */
#include "exportd/quorum/core_watch.h"
#include "tests/unit/unit.h"

static void a_core_that_stands_still_is_noticed(void **state)
{
    struct core_watch w = { .serves_since_ns = 100, .n_calls = 7 };

    (void)state;
    assert_int_equal(core_watch_look(&w, 1000), 0); /* no question is out */
    core_watch_asked(&w, 1000);
    assert_int_equal(core_watch_look(&w, 1500), 500);
    assert_int_equal(core_watch_look(&w, 3000), 2000);
    core_watch_answered(&w);
    assert_int_equal(core_watch_look(&w, 3500), 0);
}

static void a_core_that_opens_may_take_long(void **state)
{
    struct core_watch w = { .serves_since_ns = 0 };

    (void)state;
    core_watch_asked(&w, 1000);
    assert_int_equal(core_watch_look(&w, 9000), 0);
    w.serves_since_ns = 9000;
    assert_int_equal(core_watch_look(&w, 9500), 500);
}

/* Many sessions come back in one turn of the loop, each with many tokens. */
static void a_core_that_takes_calls_does_not_hang(void **state)
{
    struct core_watch w = { .serves_since_ns = 100 };

    (void)state;
    core_watch_asked(&w, 1000);
    for (uint64_t now = 1500; now < 9000; now += 500) {
        w.n_calls++;
        assert_int_equal(core_watch_look(&w, now), 0);
    }
    assert_int_equal(core_watch_look(&w, 9000), 500);
    assert_int_equal(core_watch_look(&w, 10500), 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_that_stands_still_is_noticed),
        cmocka_unit_test(a_core_that_opens_may_take_long),
        cmocka_unit_test(a_core_that_takes_calls_does_not_hang),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
