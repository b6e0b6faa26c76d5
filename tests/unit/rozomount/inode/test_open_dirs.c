/*
 * Goal: the last known attributes of a removed directory are returned while a process has
 * it open.
 */
#include <sys/stat.h>

#include "rozomount/inode/open_dirs.h"
#include "rozomount/session/md_decode.h"
#include "tests/unit/unit.h"

enum { DIR = 5, OTHER = 6 };

static const struct md_attr first = { .ino = DIR,
                                      .mode = S_IFDIR | 0755,
                                      .nlink = 3,
                                      .uid = 1,
                                      .token = TOKEN_SHARED };
static const struct md_attr later = { .ino = DIR, .mode = S_IFDIR | 0700, .nlink = 2 };

static void test_last_attributes_are_kept_while_the_directory_is_open(void **state)
{
    struct open_dirs *dirs = open_dirs_new();
    struct md_attr attr;

    (void)state;
    assert_false(open_dirs_last(dirs, DIR, &attr));
    open_dirs_note(dirs, &first);
    open_dirs_add(dirs, DIR, NULL);
    assert_false(open_dirs_last(dirs, DIR, &attr)); /* the directory was not open then */
    open_dirs_add(dirs, DIR, &first);
    assert_true(open_dirs_last(dirs, DIR, &attr));
    assert_true(attr.ino == DIR && attr.uid == 1 && attr.mode == (S_IFDIR | 0755));
    assert_true(attr.nlink == 0 && attr.token == TOKEN_NONE);
    open_dirs_note(dirs, &later);
    open_dirs_add(dirs, DIR, NULL);
    assert_true(open_dirs_last(dirs, DIR, &attr));
    assert_int_equal(attr.mode, S_IFDIR | 0700);
    assert_false(open_dirs_last(dirs, OTHER, &attr));
    open_dirs_remove(dirs, DIR);
    open_dirs_remove(dirs, DIR);
    assert_true(open_dirs_last(dirs, DIR, &attr));
    open_dirs_remove(dirs, DIR);
    assert_false(open_dirs_last(dirs, DIR, &attr));
    open_dirs_add(dirs, OTHER, NULL); /* left open: freed at the end */
    open_dirs_free(dirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        test_last_attributes_are_kept_while_the_directory_is_open) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
