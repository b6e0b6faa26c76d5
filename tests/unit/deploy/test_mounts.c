/* test_mounts.c - parsing of mountinfo, and paths that may not answer. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/cli/mounts.h"
#include "tests/unit/unit.h"

static const char MOUNTINFO[] =
    "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    "26 25 0:5 / /dev rw,nosuid shared:2 master:3 - devtmpfs udev rw,size=8k\n"
    "27 25 0:44 / /mnt/with\\040blank rw - fuse.rozomount 127.0.0.1:1/main rw\n"
    "28 25 0:45 / /mnt/twice rw - ext4 /dev/vdb rw\n"
    "29 28 0:46 / /mnt/twice rw shared:4 - fuse.rozomount x rw\n"
    "30 25 0:47 / /mnt/short\n"
    "nonsense\n"
    "31 25 0:48 / /mnt/last rw - tmpfs x rw";

static void finds_the_topmost_mount(void **state)
{
    static const struct {
        const char *path, *type;
    } cases[] = {
        { "/", "ext4" },
        { "/dev", "devtmpfs" },
        { "/mnt/with blank", "fuse.rozomount" },
        { "/mnt/twice", "fuse.rozomount" },
        { "/mnt/last", "tmpfs" },
    };
    char type[64];

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(mountinfo_find(MOUNTINFO, cases[i].path, type, sizeof(type)));
        assert_string_equal(type, cases[i].type);
    }
    assert_false(mountinfo_find(MOUNTINFO, "/mnt", type, sizeof(type)));
    assert_false(mountinfo_find(MOUNTINFO, "/mnt/short", type, sizeof(type)));
    assert_false(mountinfo_find("", "/", type, sizeof(type)));
    /* A changed root need not be a mount point. */
    assert_int_equal(mount_find("/proc", type, sizeof(type), NULL), 1);
    assert_int_equal(mount_find("/nowhere at all", type, sizeof(type), NULL), 0);
}

static void mounts_come_in_order_with_their_sources(void **state)
{
    static const char *const want[] = { "/ /dev/vda rw,relatime",
                                        "/dev udev rw,nosuid",
                                        "/mnt/with blank 127.0.0.1:1/main rw",
                                        "/mnt/twice /dev/vdb rw",
                                        "/mnt/twice x rw",
                                        "/mnt/last x rw" };
    const char *at = MOUNTINFO;
    struct mount_entry entry;
    char told[sizeof(entry)];

    (void)state;
    for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_true(mountinfo_next(&at, &entry));
        snprintf(told, sizeof(told), "%s %s %s", entry.path, entry.source, entry.options);
        assert_string_equal(told, want[i]);
    }
    assert_false(mountinfo_next(&at, &entry));
    assert_false(mountinfo_next(&at, &entry));
    at = "1 2 3:4 / /mnt rw - tmpfs"; /* the source is empty */
    assert_true(mountinfo_next(&at, &entry));
    assert_string_equal(entry.source, "");
}

/* Goal: a mount that a later one covers does not count, whatever that one is of. */
static void mounts_of_an_export_are_counted(void **state)
{
    static const char all[] = "1 0 1:1 / / rw - ext4 /dev/vda rw\n"
                              "2 1 1:2 / /mnt/a rw,noatime - fuse.rozomount h:1/main rw\n"
                              "3 1 1:3 / /mnt/b rw - fuse.rozomount h:1/main rw\n"
                              "4 3 1:4 / /mnt/b rw,noatime - fuse.rozomount h:1/main rw\n"
                              "5 1 1:5 / /mnt/c rw - fuse.rozomount h:1/main rw\n"
                              "6 5 1:6 / /mnt/c rw - fuse.rozomount h:1/other rw\n"
                              "7 1 1:7 / /mnt/d rw - fuse.rozomount h:1/main rw\n"
                              "8 7 1:8 / /mnt/d rw - tmpfs x rw\n"
                              "9 1 1:9 / /mnt/e rw - fuse.sshfs h:1/main rw\n";
    struct mount_entry m;

    (void)state;
    assert_int_equal(mounts_count(all, "main", "", &m), 2);
    assert_string_equal(m.path, "/mnt/b");
    assert_string_equal(m.options, "rw,noatime");
    assert_int_equal(mounts_count(all, "main", "/mnt/a", &m), 1);
    assert_string_equal(m.path, "/mnt/a");
    assert_int_equal(mounts_count(all, "main", "/mnt/c", &m), 0);
    assert_int_equal(mounts_count(all, "main", "/mnt/d", &m), 0);
    assert_int_equal(mounts_count(all, "main", "/mnt/e", &m), 0);
    assert_int_equal(mounts_count(all, "other", "", &m), 1);
    assert_string_equal(m.path, "/mnt/c");
    assert_int_equal(mounts_count("", "main", "", &m), 0);
}

static void absolute_paths(void **state)
{
    char cwd[PATH_MAX], out[PATH_MAX], wanted[2 * PATH_MAX];

    (void)state;
    assert_non_null(realpath(".", cwd));
    assert_int_equal(path_absolute("not-there", out, NULL), 0);
    snprintf(wanted, sizeof(wanted), "%s/not-there", cwd);
    assert_string_equal(out, wanted);
    assert_int_equal(path_absolute("/proc/../tmp/not-there///", out, NULL), 0);
    assert_string_equal(out, "/tmp/not-there");
    assert_int_equal(path_absolute("/top", out, NULL), 0);
    assert_string_equal(out, "/top");
    assert_int_equal(path_absolute("/", out, NULL), 0);
    assert_string_equal(out, "/");
    assert_int_equal(path_absolute(".", out, NULL), 0);
    assert_string_equal(out, cwd);
    assert_true(path_absolute("", out, NULL) < 0);
    assert_true(path_absolute("/no such parent/x", out, NULL) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_topmost_mount),
        cmocka_unit_test(mounts_come_in_order_with_their_sources),
        cmocka_unit_test(mounts_of_an_export_are_counted),
        cmocka_unit_test(absolute_paths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
