/*
 * Goal: held locks are listed, lost ones are not, and an owner gets an error when it
 * releases a lost one. Method: calls in a fixed order.
 */
#include <errno.h>
#include <stdlib.h>

#include "rozomount/session/lock_table.h"
#include "tests/unit/unit.h"

static struct lock_table *lock_table;

static int setup(void **state)
{
    (void)state;
    lock_table = lock_table_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    lock_table_free(lock_table);
    return 0;
}

static int set(uint64_t owner, uint64_t from, uint64_t to, unsigned mode)
{
    struct table_lock lock = { .ino = 5,
                               .owner = owner,
                               .from = from,
                               .to = to,
                               .mode = mode,
                               .era = lock_table_era(lock_table) };

    return lock_table_set(lock_table, &lock);
}

static bool lose(uint64_t owner, uint64_t from, uint64_t to)
{
    struct table_lock lock = { .ino = 5, .owner = owner, .from = from, .to = to };

    return lock_table_lose(lock_table, &lock);
}

static size_t n_listed(void)
{
    size_t n;

    free(lock_table_list(lock_table, &n));
    return n;
}

static void test_lost_and_let_go(void **state)
{
    uint64_t *inos;
    size_t n;

    (void)state;
    assert_null(lock_table_inodes(lock_table, &n));
    assert_int_equal(set(1, 0, 10, 2), 0);
    assert_int_equal(set(2, 20, 30, 1), 0);
    assert_int_equal(n_listed(), 2);
    assert_false(lock_table_is_lost(lock_table, 5));
    assert_true(lose(1, 0, 10));
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_false(lock_table_is_lost(lock_table, 6));
    assert_false(lose(1, 0, 10)); /* already lost */
    assert_false(lose(3, 0, 10)); /* no lock was there */
    assert_int_equal(n_listed(), 1);
    assert_int_equal(lock_table_look(lock_table, 5, 1), LOCK_TABLE_LOST);
    assert_int_equal(lock_table_look(lock_table, 5, 2), LOCK_TABLE_SOME);
    inos = lock_table_inodes(lock_table, &n);
    assert_int_equal(n, 2);
    assert_true(inos[0] == 5 && inos[1] == 5);
    free(inos);
    assert_int_equal(lock_table_look(lock_table, 6, 1), 0);
    assert_int_equal(set(1, 50, 60, 0), 0);
    assert_int_equal(lock_table_look(lock_table, 5, 1),
                     LOCK_TABLE_LOST); /* not the lost range */
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_int_equal(set(1, 0, UINT64_MAX, 0), -EIO);
    assert_false(lock_table_is_lost(lock_table, 5));
    assert_int_equal(lock_table_look(lock_table, 5, 1), 0);
    assert_int_equal(set(1, 0, UINT64_MAX, 0), 0);
    assert_int_equal(set(1, 0, 10, 2), 0);
    assert_int_equal(lock_table_take(lock_table, 5, false, 1), LOCK_TABLE_SOME);
    assert_int_equal(lock_table_take(lock_table, 5, false, 1), 0);
}

static void test_a_part_is_lost(void **state)
{
    (void)state;
    assert_int_equal(set(1, 0, 10, 2), 0);
    assert_int_equal(set(1, 10, 20, 1), 0);
    assert_true(lose(1, 5, 15));
    assert_int_equal(n_listed(), 2);
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_int_equal(lock_table_look(lock_table, 5, 1),
                     LOCK_TABLE_SOME | LOCK_TABLE_LOST);
    assert_int_equal(set(1, 5, 10, 0), -EIO);
    assert_int_equal(lock_table_look(lock_table, 5, 1),
                     LOCK_TABLE_SOME | LOCK_TABLE_LOST);
    assert_int_equal(lock_table_take(lock_table, 5, false, 1),
                     LOCK_TABLE_SOME | LOCK_TABLE_LOST);
    assert_int_equal(n_listed(), 0);
}

/* An inode counts as lost until the last owner that lost a lock has released, in whatever
 * way. */
static void test_several_have_lost(void **state)
{
    (void)state;
    for (uint64_t owner = 1; owner <= 3; owner++) {
        assert_int_equal(set(owner, 10 * owner, 10 * owner + 10, 2), 0);
        assert_true(lose(owner, 0, 100));
        assert_false(lose(owner, 0, 100));
    }
    assert_int_equal(set(1, 0, UINT64_MAX, 0), -EIO);
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_int_equal(lock_table_take(lock_table, 5, false, 2), LOCK_TABLE_LOST);
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_false(lock_table_is_lost(lock_table, 6));
    assert_int_equal(set(3, 25, 35, 1), -EIO); /* the rest stays lost */
    assert_true(lock_table_is_lost(lock_table, 5));
    assert_int_equal(set(3, 35, 40, 0), -EIO);
    assert_false(lock_table_is_lost(lock_table, 5));
    assert_true(lose(3, 0, 100));
    assert_true(lock_table_is_lost(lock_table, 5)); /* lock_table_free() frees it */
}

/* A lock that exportd granted before the list was made may be missing in it, so its era
 * is refused. */
static void test_another_era(void **state)
{
    struct table_lock lock = { .ino = 5, .owner = 1, .to = 10, .mode = 2 };

    (void)state;
    lock.era = lock_table_era(lock_table);
    assert_int_equal(n_listed(), 0);
    assert_int_equal(lock_table_set(lock_table, &lock), -EAGAIN);
    assert_int_equal(lock_table_look(lock_table, 5, 1), 0);
    lock.era = lock_table_era(lock_table);
    assert_int_equal(lock_table_set(lock_table, &lock), 0);
    assert_int_equal(n_listed(), 1);
    lock.mode = 0;
    assert_int_equal(lock_table_set(lock_table, &lock), -EAGAIN);
    assert_int_equal(lock_table_look(lock_table, 5, 1), LOCK_TABLE_SOME);
}

/* While a lock becomes weaker another mount may read: it is claimed as READ. Only where
 * exportd cannot refuse that: the owner holds the whole range. */
static void test_range_that_becomes_weaker_is_listed_so(void **state)
{
    struct table_lock lock = { .ino = 5, .owner = 1, .from = 2, .to = 8, .mode = 1 };
    struct table_lock *list;
    size_t n;

    (void)state;
    assert_false(lock_table_weaken(lock_table, &lock));
    assert_int_equal(set(1, 3, 10, 2), 0);
    assert_false(lock_table_weaken(lock_table, &lock));
    assert_int_equal(set(1, 0, 3, 1), 0);
    assert_true(lock_table_weaken(lock_table, &lock));
    assert_false(lock_table_weaken(lock_table, &lock));
    list = lock_table_list(lock_table, &n);
    assert_int_equal(n, 2);
    assert_int_equal(list[0].to, 8);
    assert_int_equal(list[0].mode, 1);
    assert_int_equal(list[1].mode, 2);
    free(list);
    assert_true(lose(1, 9, 10));
    lock.to = 10;
    assert_false(lock_table_weaken(lock_table, &lock));
    lock.to = 9;
    assert_true(lock_table_weaken(lock_table, &lock));
}

/* While an unlock is under way another mount may get the lock: it is not claimed. */
static void test_range_being_released_is_not_listed(void **state)
{
    struct table_lock unlock = { .ino = 5, .owner = 1, .from = 2, .to = 8 };
    size_t n;
    struct table_lock *list;

    (void)state;
    assert_int_equal(set(1, 0, 10, 2), 0);
    lock_table_release(lock_table, &unlock);
    lock_table_release(lock_table, &unlock); /* the request is sent again */
    list = lock_table_list(lock_table, &n);
    assert_int_equal(n, 2);
    assert_true(list[0].from == 0 && list[0].to == 2);
    assert_true(list[1].from == 8 && list[1].to == 10);
    free(list);
    assert_true(lose(1, 0, 10)); /* not the range in the middle */
    assert_int_equal(set(1, 2, 8, 0), 0);
    assert_int_equal(lock_table_look(lock_table, 5, 1), LOCK_TABLE_LOST);
    assert_int_equal(set(1, 0, 10, 0), -EIO);
    assert_int_equal(lock_table_look(lock_table, 5, 1), 0);
}

/* After an unlock that failed a close must ask exportd again. */
static void test_range_whose_unlock_failed_stays(void **state)
{
    struct table_lock unlock = { .ino = 5, .owner = 1, .from = 0, .to = 10 };

    (void)state;
    assert_int_equal(set(1, 0, 10, 1), 0);
    lock_table_release(lock_table, &unlock);
    assert_int_equal(lock_table_look(lock_table, 5, 1), LOCK_TABLE_SOME);
    assert_int_equal(set(1, 0, 10, 2), 0); /* locked again */
    assert_int_equal(n_listed(), 1);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_lost_and_let_go),
        T(test_a_part_is_lost),
        T(test_several_have_lost),
        T(test_another_era),
        T(test_range_that_becomes_weaker_is_listed_so),
        T(test_range_being_released_is_not_listed),
        T(test_range_whose_unlock_failed_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
