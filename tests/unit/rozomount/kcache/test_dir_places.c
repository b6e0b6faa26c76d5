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

static enum dir_place_verdict found(struct dir_places *p, uint64_t dir, const char *name,
                                    pid_t pid, uint64_t now_ns)
{
    return dir_places_found(p, &(struct dir_place){ DIR, dir, name }, pid, now_ns);
}

static void test_found_place_is_compared_with_the_last_one(void **state)
{
    struct dir_places *p = dir_places_new();

    (void)state;
    assert_int_equal(found(p, ROOT, "c", PID, ms), DIR_PLACE_UNKNOWN);
    assert_int_equal(found(p, ROOT, "c", PID, ms), DIR_PLACE_SAME);
    assert_int_equal(found(p, ROOT, "d", PID, ms), DIR_PLACE_MOVED);
    assert_int_equal(found(p, 2, "d", PID, ms), DIR_PLACE_MOVED);
    assert_int_equal(found(p, 2, "d", PID, ms), DIR_PLACE_SAME);
    dir_places_note(p, &(struct dir_place){ DIR, 3, "e" });
    assert_int_equal(found(p, 3, "e", PID, ms), DIR_PLACE_SAME);
    dir_places_renamed(p, &(struct dir_place){ DIR, 4, "f" });
    dir_places_renamed(p, &(struct dir_place){ DIR + 1, 4, "g" }); /* may be a file */
    assert_int_equal(found(p, 4, "f", PID, ms), DIR_PLACE_SAME);
    assert_int_equal(dir_places_found(p, &(struct dir_place){ DIR + 1, 4, "g" }, PID, ms),
                     DIR_PLACE_UNKNOWN);
    dir_places_free(p);
}

static void test_a_retry(void **state)
{
    struct dir_places *p = dir_places_new();

    (void)state;
    found(p, ROOT, "c", PID, ms);
    found(p, 2, "c", PID, ms);
    dir_places_stuck(p, DIR + 1, PID, ms); /* not in the table: no effect */
    assert_int_equal(found(p, 2, "c", PID, ms), DIR_PLACE_SAME);
    dir_places_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", PID, 2 * ms), DIR_PLACE_RETRY);
    assert_int_equal(found(p, 2, "c", PID, 2 * ms), DIR_PLACE_SAME); /* only once */
    dir_places_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", OTHER_PID, 2 * ms), DIR_PLACE_SAME);
    dir_places_stuck(p, DIR, PID, ms);
    assert_int_equal(found(p, 2, "c", PID, (DIRPLACES_RETRY_MS + 1) * ms),
                     DIR_PLACE_SAME);
    dir_places_stuck(p, DIR, PID, ms);
    /* a move is not a retry */
    assert_int_equal(found(p, 3, "c", PID, 2 * ms), DIR_PLACE_MOVED);
    dir_places_free(p);
}

static void test_directories_below_a_directory_are_found(void **state)
{
    struct dir_places *p = dir_places_new();
    uint64_t *list;
    size_t n;

    (void)state;
    list = dir_places_below(p, DIR, &n); /* DIR itself is not in the table */
    assert_true(n == 1 && list[0] == DIR);
    free(list);
    dir_places_note(p, &(struct dir_place){ 13, 12, "z" });
    dir_places_note(p, &(struct dir_place){ 12, 11, "y" });
    dir_places_note(p, &(struct dir_place){ 11, DIR, "x" });
    dir_places_note(p, &(struct dir_place){ DIR, ROOT, "c" });
    dir_places_note(p, &(struct dir_place){ 20, ROOT, "beside" });
    /* a ring, made of places from two times */
    dir_places_note(p, &(struct dir_place){ 30, 31, "a" });
    dir_places_note(p, &(struct dir_place){ 31, 30, "b" });
    list = dir_places_below(p, DIR, &n);
    assert_int_equal(n, 4);
    assert_true(list[0] == 13 && list[1] == 12 && list[2] == 11 && list[3] == DIR);
    free(list);
    list = dir_places_below(p, 30, &n);
    assert_true(n == 2 && list[0] == 31 && list[1] == 30);
    free(list);
    dir_places_free(p);
}

static void test_loose_names(void **state)
{
    struct dir_places *p = dir_places_new();
    struct kernel_name *list;

    (void)state;
    assert_null(dir_places_take_untokened(p, DIR));
    dir_places_note_untokened(p, DIR, "a", false);
    dir_places_note_untokened(p, DIR, "a", true); /* removed and created again */
    dir_places_note_untokened(p, ROOT, "b", false);
    list = dir_places_take_untokened(p, DIR);
    assert_string_equal(list->name, "a");
    assert_true(list->is_dir && list->next == NULL);
    kernel_names_free(list);
    assert_null(dir_places_take_untokened(p, DIR));
    dir_places_free(p); /* frees the name in ROOT, too */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_place_is_compared_with_the_last_one),
        cmocka_unit_test(test_a_retry),
        cmocka_unit_test(test_directories_below_a_directory_are_found),
        cmocka_unit_test(test_loose_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
