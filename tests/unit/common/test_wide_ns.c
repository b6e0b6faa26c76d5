/*
 * test_wide_ns.c - times of inodes: seconds and nanoseconds, and their form on the wire.
 */
#include "common/wire/wide_ns.h"
#include "tests/unit/unit.h"

static void there_and_back(int64_t seconds, uint32_t rest)
{
    struct timespec ts = { .tv_sec = seconds, .tv_nsec = rest };
    wide_ns t = wide_ns_of_timespec(ts);
    struct timespec back = wide_ns_to_timespec(t);
    bool fits = seconds > -9223372036 && seconds < 9223372035;

    assert_true(wide_ns_is_fine(t));
    assert_true(back.tv_sec == ts.tv_sec && back.tv_nsec == ts.tv_nsec);
    assert_true(wide_ns_join(wide_ns_near(t), wide_ns_more_s(t)) == t);
    if (fits)
        assert_true(wide_ns_more_s(t) == 0 && wide_ns_near(t) == t);
}

static void test_there_and_back(void **state)
{
    static const int64_t seconds[] = { INT64_MIN,
                                       INT64_MIN + 1,
                                       INT64_MIN + 9223372036,
                                       -9223372037,
                                       -9223372036,
                                       -9223372035,
                                       -2,
                                       -1,
                                       0,
                                       1,
                                       9223372034,
                                       9223372035,
                                       9223372036,
                                       9223372037,
                                       INT64_MAX - 9223372036,
                                       INT64_MAX - 1,
                                       INT64_MAX };

    (void)state;
    for (unsigned i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++) {
        there_and_back(seconds[i], 0);
        there_and_back(seconds[i], 1);
        there_and_back(seconds[i], 999999999);
    }
}

/* A time sent only as 64-bit nanoseconds becomes the nearest possible one, to the second:
 * it does not wrap. */
static void test_a_peer_that_knows_only_nanoseconds(void **state)
{
    (void)state;
    assert_true(wide_ns_near(wide_ns_make(INT64_MAX, 5)) > INT64_MAX - 2ll * NS_PER_S);
    assert_true(wide_ns_near(wide_ns_make(15032385535, 5)) > INT64_MAX - 2ll * NS_PER_S);
    assert_true(wide_ns_near(wide_ns_make(INT64_MIN, 5)) < INT64_MIN + 2ll * NS_PER_S);
    assert_true(wide_ns_near(wide_ns_make(-62135596800, 5)) < INT64_MIN + 2ll * NS_PER_S);
}

static void test_seconds_beyond_64_bits_are_refused(void **state)
{
    (void)state;
    assert_false(wide_ns_is_fine(wide_ns_join(INT64_MAX, INT64_MAX)));
    assert_false(wide_ns_is_fine(wide_ns_join(INT64_MIN, INT64_MIN)));
    assert_false(wide_ns_is_fine(wide_ns_join(-1, INT64_MIN)));
    assert_true(wide_ns_is_fine(wide_ns_join(0, INT64_MIN)));
    assert_true(wide_ns_is_fine(wide_ns_join(NS_PER_S - 1, INT64_MAX)));
    assert_true(wide_ns_is_fine(wide_ns_join(INT64_MIN, INT64_MAX)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_a_peer_that_knows_only_nanoseconds),
        cmocka_unit_test(test_seconds_beyond_64_bits_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
