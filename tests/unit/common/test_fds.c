/*
 * Goal: shares of descriptors stay within the limit and cover the least of each part.
 * Method: many limits, with the parts of storages that have 1 to 16 loops.
 */
#include "common/system/fds.h"
#include "tests/unit/unit.h"

enum { N_PARTS = 4 };

static void shares_check(unsigned n_fds, unsigned fixed, const struct fds_part *given)
{
    struct fds_part parts[N_PARTS];
    unsigned need = fixed, sum = fixed;
    bool fits;

    for (unsigned i = 0; i < N_PARTS; i++) {
        parts[i] = given[i];
        need += given[i].least;
    }
    fits = fds_divide(n_fds, fixed, parts, N_PARTS);
    assert_int_equal(fits, n_fds >= need);
    for (unsigned i = 0; fits && i < N_PARTS; i++) {
        assert_true(parts[i].share >= parts[i].least);
        assert_true(parts[i].most == 0 || parts[i].share <= parts[i].most);
        sum += parts[i].share;
    }
    assert_true(!fits || sum <= n_fds);
}

static void test_shares_keep_to_the_limit(void **state)
{
    (void)state;
    for (unsigned loops = 1; loops <= 16; loops *= 2) {
        const struct fds_part parts[N_PARTS] = {
            FDS_KV_PART,
            { .least = loops * 64, .eighths = 4, .most = 16384 },
            { .least = loops * 32, .eighths = 2, .most = loops * 4096 },
            { .least = 32, .eighths = 1 },
        };

        for (unsigned n_fds = 0; n_fds < 10000; n_fds++)
            shares_check(n_fds, 40 + loops * 64, parts);
        for (unsigned n_fds = 10000; n_fds <= FDS_MAX; n_fds = n_fds * 5 / 4)
            shares_check(n_fds, 40 + loops * 64, parts);
        shares_check(FDS_MAX, 40 + loops * 64, parts);
    }
}

static void test_remaining_descriptors_are_divided(void **state)
{
    struct fds_part parts[2] = { { .least = 10, .eighths = 6 },
                                 { .least = 20, .eighths = 2, .most = 30 } };

    (void)state;
    assert_true(fds_divide(110, 40, parts, 2));
    assert_int_equal(parts[0].share, 10 + 30);
    assert_int_equal(parts[1].share, 30);
    assert_false(fds_divide(69, 40, parts, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_keep_to_the_limit),
        cmocka_unit_test(test_remaining_descriptors_are_divided),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
