/* Goal: the command line is understood as mount(8), fstab and administrators write it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rozomount/options/options.h"
#include "tests/unit/unit.h"

/* Parses "rozomount" and words separated by single blanks. */
static int parse(struct options *opt, const char *line, struct err *err)
{
    char copy[512];
    char *argv[32] = { (char *)"rozomount" };
    char *save = NULL;
    int argc = 1;

    memset(opt, 0, sizeof(*opt));
    memset(err, 0, sizeof(*err));
    assert_true(strlen(line) < sizeof(copy));
    memcpy(copy, line, strlen(line) + 1);
    for (char *w = strtok_r(copy, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    return options_parse(opt, argc, argv, err);
}

static void test_options_of_fstab_are_accepted(void **state)
{
    struct options opt;
    struct err err;

    (void)state;
    assert_int_equal(parse(&opt,
                           "h1:5000,h2,[::1]:7/main /mnt -o "
                           "rw,_netdev,nosuid,noatime,nodiratime,key=/k,"
                           "x-systemd.automount,loops=3 -n -s",
                           &err),
                     0);
    assert_int_equal(opt.n_addrs, 3);
    assert_string_equal(opt.addrs[0], "h1:5000");
    assert_string_equal(opt.addrs[1], "h2:4700");
    assert_string_equal(opt.addrs[2], "[::1]:7");
    assert_string_equal(opt.export_name, "main");
    assert_string_equal(opt.mountpoint, "/mnt");
    assert_string_equal(opt.key_file, "/k");
    /* libfuse does not know nodiratime */
    assert_string_equal(opt.kernel_opts, "rw,nosuid,noatime");
    assert_int_equal(opt.loops, 3);
    assert_int_equal(opt.run, RUN_BACKGROUND);
    assert_true(opt.atimes == ATIMES_NONE && opt.nodiratime && !opt.read_only);
    options_free(&opt);
}

static void test_values(void **state)
{
    struct options opt;
    struct err err;

    (void)state;
    assert_int_equal(
        parse(&opt,
              "-f -oattr_timeout=0.5,hedge_ms=30 h/e m -o ro,write_behind=2M "
              "--pid-file /run/p -o meta_timeout=2,log_level=debug,nonempty,"
              "writeback_cache,cache=direct",
              &err),
        0);
    assert_true(opt.run == RUN_FOREGROUND && opt.nonempty && opt.writeback_cache &&
                !opt.remount);
    assert_int_equal(opt.cache, OPTIONS_CACHE_DIRECT);
    assert_true(opt.attr_timeout_s == 0.5 && opt.entry_timeout_s == 1.0);
    assert_int_equal(opt.hedge_ms, 30);
    assert_int_equal(opt.write_behind_max, 2 << 20);
    assert_int_equal(opt.meta_timeout_ms, 2000);
    assert_int_equal(opt.log_level, LOG_LEVEL_DEBUG);
    assert_string_equal(opt.pid_file, "/run/p");
    assert_string_equal(opt.kernel_opts, "ro");
    assert_true(opt.atimes == ATIMES_RELATIVE && !opt.nodiratime && opt.read_only);
    options_free(&opt);
}

/* mount(8) repeats the options that the kernel lists. */
static void test_remount(void **state)
{
    struct options opt;
    struct err err;

    (void)state;
    assert_int_equal(
        parse(&opt,
              "h/e /mnt -o rw,relatime,user_id=0,group_id=0,default_permissions,"
              "allow_other,max_read=1048576,remount,ro,nosuid",
              &err),
        0);
    assert_true(opt.remount);
    assert_string_equal(opt.kernel_opts, "rw,ro,nosuid");
    options_free(&opt);
    assert_int_equal(parse(&opt, "h/e /mnt -o comment=remount,x-remount,rw", &err), 0);
    assert_false(opt.remount);
    options_free(&opt);
}

/* The last word counts. */
static void test_access_times(void **state)
{
    static const struct {
        const char *words;
        enum atimes_mode mode;
    } cases[] = {
        { "relatime", ATIMES_RELATIVE },
        { "strictatime", ATIMES_STRICT },
        { "noatime,strictatime,diratime", ATIMES_STRICT },
        { "strictatime,relatime,lazytime", ATIMES_RELATIVE },
        { "noatime,atime,ro,rw", ATIMES_RELATIVE },
        { "nodiratime,diratime,noatime", ATIMES_NONE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct options opt;
        struct err err;
        char line[100];

        snprintf(line, sizeof(line), "h/e /mnt -o %s", cases[i].words);
        assert_int_equal(parse(&opt, line, &err), 0);
        assert_true(opt.atimes == cases[i].mode && !opt.nodiratime && !opt.read_only);
        options_free(&opt);
    }
}

static void test_wrong_usage_gives_a_message(void **state)
{
    static const struct {
        const char *line, *words;
    } table[] = {
        { "", "want what to mount" },
        { "h/e", "want what to mount" },
        { "h/e /mnt more", "too many arguments" },
        { "h /mnt", "HOST[:PORT]/EXPORT" },
        { "/e /mnt", "HOST[:PORT]/EXPORT" },
        { "h/ /mnt", "HOST[:PORT]/EXPORT" },
        { "h/e/f /mnt", "HOST[:PORT]/EXPORT" },
        { "h:0/e /mnt", "no HOST[:PORT]" },
        { "h:99999/e /mnt", "no HOST[:PORT]" },
        { "h:1x/e /mnt", "no HOST[:PORT]" },
        { "::1/e /mnt", "no HOST[:PORT]" },
        { "h/e /mnt -o frobnicate", "unknown option frobnicate" },
        { "h/e /mnt -o frob=1", "unknown option frob=1" },
        { "h/e /mnt -o user_id=0", "unknown option user_id=0" },
        { "h/e /mnt -o remount,frob=1", "unknown option frob=1" },
        { "h/e /mnt -o loops=0", "want a number from 1" },
        { "h/e /mnt -o loops=x", "want a number from 1" },
        { "h/e /mnt -o attr_timeout=-1", "want seconds" },
        { "h/e /mnt -o attr_timeout=nan", "want seconds" },
        { "h/e /mnt -o meta_timeout=0", "0.1 to 86400" },
        { "h/e /mnt -o write_behind=8Q", "want a size" },
        { "h/e /mnt -o log_level=loud", "want error, warn" },
        { "h/e /mnt -o", "-o wants options" },
        { "h/e /mnt --frob", "unknown option --frob" },
        { "h/e /mnt --pid-file", "wants a file" },
    };
    struct options opt;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(parse(&opt, table[i].line, &err), -EINVAL);
        if (strstr(err.text, table[i].words) == NULL)
            fail_msg("\"%s\" says: %s", table[i].line, err.text);
        options_free(&opt);
    }
}

static void test_mount_points(void **state)
{
    char dir[] = "/tmp/rozo-test-options-XXXXXX";
    char path[128], line[256];
    struct options opt;
    struct err err;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(line, sizeof(line), "h/e %s/", dir);
    parse(&opt, line, &err);
    assert_int_equal(options_check_mountpoint(&opt, &err), 0);
    assert_string_equal(opt.mountpoint, dir); /* without the slash */
    snprintf(path, sizeof(path), "%s/file", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(options_check_mountpoint(&opt, &err), -ENOTEMPTY);
    assert_non_null(strstr(err.text, "not empty"));
    opt.nonempty = true;
    assert_int_equal(options_check_mountpoint(&opt, &err), 0);
    options_free(&opt);
    snprintf(line, sizeof(line), "h/e %s", path);
    parse(&opt, line, &err);
    assert_int_equal(options_check_mountpoint(&opt, &err), -ENOTDIR);
    options_free(&opt);
    unlink(path);
    parse(&opt, line, &err);
    assert_int_equal(options_check_mountpoint(&opt, &err), -ENOENT);
    options_free(&opt);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_of_fstab_are_accepted),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_remount),
        cmocka_unit_test(test_access_times),
        cmocka_unit_test(test_wrong_usage_gives_a_message),
        cmocka_unit_test(test_mount_points),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
