/*
 * Goal: a mount recognises itself among others, whatever its path looks like, and
 * whatever is mounted over it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

#include "rozomount/options/mountpoint.h"
#include "tests/unit/unit.h"

static const char list[] =
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "40 22 0:52 / /mnt rw,nosuid shared:9 master:3 - fuse.rozomount h:4700/main rw\n"
    "41 40 0:53 / /mnt rw - tmpfs tmpfs rw\n"
    "42 22 0:54 / /with\\040blank\\134and\\011tab rw - fuse.rozomount h:4700/a\\040b rw\n"
    "43 22 0:55 /mnt /elsewhere rw - ext4 /dev/x rw\n"
    "not a line\n"
    "44 22 0:56 / /cut\n";

static bool find(const char *path, struct mountpoint *out)
{
    FILE *f = fmemopen((void *)list, strlen(list), "r");
    bool found;

    assert_non_null(f);
    found = mountpoint_find(f, path, out);
    fclose(f);
    return found;
}

static void test_the_topmost_counts(void **state)
{
    struct mountpoint info;

    (void)state;
    assert_true(find("/mnt", &info));
    assert_int_equal(info.id, 41);
    assert_int_equal(info.dev_major, 0);
    assert_int_equal(info.dev_minor, 53);
    assert_string_equal(info.type, "tmpfs");
    assert_true(find("/", &info));
    assert_int_equal(info.dev_major, 254);
}

static void test_mount_below_the_mount_point_is_found(void **state)
{
    static const struct {
        const char *list;
        bool covered;
    } table[] = {
        { "40 22 0:52 / /mnt rw - fuse.rozomount h rw\n", false },
        { "22 1 0:1 / / rw - ext4 x rw\n40 22 0:52 / /mnt rw - fuse.rozomount h rw\n"
          "41 22 0:53 / /mnt2 rw - tmpfs tmpfs rw\n",
          false },
        { "41 40 0:53 / /mnt/sub rw - tmpfs tmpfs rw\n"
          "40 22 0:52 / /mnt rw - fuse.rozomount h rw\n",
          true },
        /* a directory of the mount is mounted elsewhere, with a mount below it */
        { "40 22 0:52 / /mnt rw - fuse.rozomount h rw\n"
          "42 22 0:52 /d /d rw - fuse.rozomount h rw\n"
          "43 42 0:53 / /d/sub rw - tmpfs tmpfs rw\n",
          true },
        { "40 22 0:52 / /mnt rw - fuse.rozomount h rw\n"
          "42 22 0:52 /d /d rw - fuse.rozomount h rw\n"
          "43 22 0:53 / /e rw - tmpfs tmpfs rw\n",
          false },
    };
    const struct mountpoint at = { .dev_major = 0, .dev_minor = 52 };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        FILE *f = fmemopen((void *)table[i].list, strlen(table[i].list), "r");

        assert_non_null(f);
        assert_int_equal(mountpoint_is_covered(f, &at), table[i].covered);
        fclose(f);
    }
}

static void test_odd_paths(void **state)
{
    struct mountpoint info;

    (void)state;
    assert_true(find("/with blank\\and\ttab", &info));
    assert_int_equal(info.dev_minor, 54);
    assert_string_equal(info.type, "fuse.rozomount");
}

static void test_absent_mount_points_are_not_found(void **state)
{
    struct mountpoint info = { .dev_minor = 7 };

    (void)state;
    assert_false(find("/mn", &info));
    assert_false(find("/mnt/", &info));
    assert_false(find("/cut", &info));
    assert_false(find("line", &info));
    assert_int_equal(info.dev_minor, 7);
}

static void test_flags(void **state)
{
    static const char *const words[] = {
        "ro", "nosuid", "noexec", "exec", "noatime", "rw"
    };
    unsigned long flags = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_true(mountpoint_flag(words[i], &flags));
    assert_int_equal(flags, MS_NOSUID | MS_NOATIME);
    assert_false(mountpoint_flag("frob", &flags));
    assert_false(mountpoint_flag("", &flags));
}

/* No mount of this machine counts as a dead mount of ours at /proc or /. */
static void test_mounts_that_live_are_not_dropped(void **state)
{
    (void)state;
    assert_false(mountpoint_is_ours("/proc"));
    assert_false(mountpoint_drop_dead("/proc"));
    assert_false(mountpoint_drop_dead("/nowhere/at/all"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_topmost_counts),
        cmocka_unit_test(test_mount_below_the_mount_point_is_found),
        cmocka_unit_test(test_odd_paths),
        cmocka_unit_test(test_absent_mount_points_are_not_found),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_mounts_that_live_are_not_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
