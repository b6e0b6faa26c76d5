/*
 * Goal: a lookup that finds a directory in another place is distinguished from one that
 * does not, and from a retry of the kernel; directories below a given one are listed
 * deepest first.
 */
#include <stdlib.h>
#include <string.h>

#include "rozomount/kcache/dir_places.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/unit/unit.h"

enum { ROOT = 1, DIR = 5, PID = 77, OTHER_PID = 78 };

static const uint64_t ms = 1000000;

static enum dirplace_verdict found(struct dirplaces *p, uint64_t dir, const char *name,
                                   pid_t pid, uint64_t now_ns)
{
    return dirplaces_found(p, &(struct dirplace){ DIR, dir, name }, pid, now_ns);
}

static void test_where_it_was(void **state)
{
    struct dirplaces *p = dirplaces_new();

    (void)state;
    assert_int_equal(found(p, ROOT, "c", PID, ms), DIRPLACE_UNKNOWN);
    assert_int_equal(found(p, ROOT, "c", PID, ms), DIRPLACE_SAME);
    assert_int_equal(found(p, ROOT, "d", PID, ms), DIRPLACE_MOVED);
    assert_int_equal(found(p, 2, "d", PID, ms), DIRPLACE_MOVED);
    assert_int_equal(found(p, 2, "d", PID, ms), DIRPLACE_SAME);
    dirplaces_note(p, &(struct dirplace){ DIR, 3, "e" });
    assert_int_equal(found(p, 3, "e", PID, ms), DIRPLACE_SAME);
    dirplaces_renamed(p, &(struct dirplace){ DIR, 4, "f" });
    dirplaces_renamed(p, &(struct dirplace){ DIR + 1, 4, "g" }); /* may be a file */
    assert_int_equal(found(p, 4, "f", PID, ms), DIRPLACE_SAME);
    assert_int_equal(dirplaces_found(p, &(struct dirplace){ DIR + 1, 4, "g" }, PID, ms),
                     DIRPLACE_UNKNOWN);
    dirplaces_free(p);
}

static void test_a_retry(void **state)
{
    struct dirplaces *p = dirplaces_new();

    (void)state;
    found(p, ROOT, "c", PID, ms);
    found(p, 2, "c", PID, ms);
    dirplaces_stuck(p, DIR + 1, PID, ms); /* not in the table: no effect */
    assert_int_equal(found(p, 2, "c", PID, ms), DIRPLACE_SAME);
    dirplaces_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", PID, 2 * ms), DIRPLACE_RETRY);
    assert_int_equal(found(p, 2, "c", PID, 2 * ms), DIRPLACE_SAME); /* only once */
    dirplaces_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", OTHER_PID, 2 * ms), DIRPLACE_SAME);
    dirplaces_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", PID, (DIRPLACES_RETRY_MS + 1) * ms), DIRPLACE_SAME);
    dirplaces_stuck(p, DIR, PID, ms);
    /* a move is not a retry */
    assert_int_equal(found(p, 3, "c", PID, 2 * ms), DIRPLACE_MOVED);
    dirplaces_free(p);
}

static void test_what_is_below(void **state)
{
    struct dirplaces *p = dirplaces_new();
    uint64_t *list;
    size_t n;

    (void)state;
    list = dirplaces_below(p, DIR, &n); /* DIR itself is not in the table */
    assert_true(n == 1 && list[0] == DIR);
    free(list);
    dirplaces_note(p, &(struct dirplace){ 13, 12, "z" });
    dirplaces_note(p, &(struct dirplace){ 12, 11, "y" });
    dirplaces_note(p, &(struct dirplace){ 11, DIR, "x" });
    dirplaces_note(p, &(struct dirplace){ DIR, ROOT, "c" });
    dirplaces_note(p, &(struct dirplace){ 20, ROOT, "beside" });
    /* a ring, made of places from two times */
    dirplaces_note(p, &(struct dirplace){ 30, 31, "a" });
    dirplaces_note(p, &(struct dirplace){ 31, 30, "b" });
    list = dirplaces_below(p, DIR, &n);
    assert_int_equal(n, 4);
    assert_true(list[0] == 13 && list[1] == 12 && list[2] == 11 && list[3] == DIR);
    free(list);
    list = dirplaces_below(p, 30, &n);
    assert_true(n == 2 && list[0] == 31 && list[1] == 30);
    free(list);
    dirplaces_free(p);
}

static void test_loose_names(void **state)
{
    struct dirplaces *p = dirplaces_new();
    struct told_name *list;

    (void)state;
    assert_null(dirplaces_take_loose(p, DIR));
    dirplaces_loose_name(p, DIR, "a", false);
    dirplaces_loose_name(p, DIR, "a", true); /* removed and created again */
    dirplaces_loose_name(p, ROOT, "b", false);
    list = dirplaces_take_loose(p, DIR);
    assert_string_equal(list->name, "a");
    assert_true(list->is_dir && list->next == NULL);
    told_names_free(list);
    assert_null(dirplaces_take_loose(p, DIR));
    dirplaces_free(p); /* frees the name in ROOT, too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where_it_was),
        cmocka_unit_test(test_a_retry),
        cmocka_unit_test(test_what_is_below),
        cmocka_unit_test(test_loose_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
