/*
 * test_disk.c - the disk that exportd finds at start: empty, foreign, damaged.
 *
 * Goal:   a damaged or missing store is reported and left as it is; a log with a cut end
 *         loses only what was never durable.
 * Method: a store of a known history, then one file is changed from outside.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <uv.h>

#include "common/kv/kv_leveldb.h"
#include "common/system/fds.h"
#include "exportd/datadir/datadir.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { N_KEYS = 500 };

static struct env_virtual env;
static uv_loop_t loop;
static char dir[64];

static int setup(void **state)
{
    (void)state;
    env_virtual_init(&env, 1);
    assert_int_equal(uv_loop_init(&loop), 0);
    snprintf(dir, sizeof(dir), "/tmp/rozo-test-disk.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    env_virtual_close(&env);
    assert_int_equal(uv_loop_close(&loop), 0);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

/* ---- the store ---- */

static void on_done(struct kv_done *done, int rc)
{
    assert_int_equal(rc, 0);
    done->fn = NULL;
}

/* Makes a store by N_KEYS commits of one key each, and closes it. */
static void store_make(void)
{
    struct kv_leveldb *k;
    struct err err = { 0 };

    assert_int_equal(kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &k, &err),
                     0);
    for (unsigned i = 0; i < N_KEYS; i++) {
        struct kv_done done = { .fn = on_done };
        char key[16], val[100];
        struct kv_item item = { key, 6, val, sizeof(val) };

        snprintf(key, sizeof(key), "k%05u", i);
        memset(val, (int)i, sizeof(val));
        kv_commit(kv_leveldb_kv(k), &item, 1, &done);
        env_virtual_run_posted(&env);
        assert_null(done.fn);
    }
    kv_leveldb_close(k);
}

/* Committed changes can be made stable even if no descriptor is left to open the logs. */
static void test_a_sync_without_descriptors(void **state)
{
    struct kv_done done = { .fn = on_done };
    struct kv_item item = { "key", 3, "val", 3 };
    struct rlimit old, none;
    struct kv_leveldb *k;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &k, &err),
                     0);
    kv_commit(kv_leveldb_kv(k), &item, 1, &done);
    env_virtual_run_posted(&env);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){ 0, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    done.fn = on_done; /* expects 0 */
    kv_sync(kv_leveldb_kv(k), &done);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_null(done.fn);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    kv_leveldb_close(k);
}

/* Commits large values under numbers from `first` on, so that LevelDB begins logs, and
 * writes and merges tables. */
static void many_commit(struct kv_leveldb *k, unsigned first, unsigned n)
{
    static char val[200 << 10];

    for (unsigned i = first; i < first + n; i++) {
        struct kv_done done = { .fn = on_done };
        char key[16];
        struct kv_item item = { key, 6, val, sizeof(val) };

        snprintf(key, sizeof(key), "k%05u", i);
        memset(val, (int)i, sizeof(val));
        kv_commit(kv_leveldb_kv(k), &item, 1, &done);
        env_virtual_run_posted(&env);
        assert_null(done.fn);
    }
}

/* Commits made without a free descriptor are stored, and later ones are not refused. */
static void test_commits_without_descriptors(void **state)
{
    enum { N = 200, FDS = 128 };
    int fds[FDS];
    unsigned n_fds;
    struct rlimit old, none;
    struct kv_leveldb *k;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &k, &err),
                     0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (unsigned round = 0; round < 2; round++) {
        many_commit(k, round * 2 * N, 1); /* refills the reserve */
        none = (struct rlimit){ FDS, old.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        for (n_fds = 0; n_fds < FDS && (fds[n_fds] = dup(0)) >= 0; n_fds++)
            ;
        many_commit(k, round * 2 * N, N);
        while (n_fds > 0)
            close(fds[--n_fds]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        env_virtual_advance_ms(&env, 2000);
        many_commit(k, round * 2 * N + N, N);
    }
    for (unsigned i = 0; i < 4 * N; i++) {
        char key[16];
        void *val;
        size_t len;

        snprintf(key, sizeof(key), "k%05u", i);
        assert_int_equal(kv_get(kv_leveldb_kv(k), key, 6, &val, &len), 0);
        assert_int_equal(len, 200 << 10);
        assert_int_equal(((char *)val)[len - 1], (char)i);
        free(val);
    }
    kv_leveldb_close(k);
}

/* Counts the keys, which must be the first ones, without a gap. -1: the store does not
 * open. */
static int store_count(struct err *err)
{
    struct kv_leveldb *k;
    int n = 0;

    if (kv_leveldb_open(&env.env, &loop, dir, false, FDS_KV_MIN, &k, err) != 0)
        return -1;
    for (unsigned i = 0; i < N_KEYS; i++) {
        char key[16];
        void *val;
        size_t len;

        snprintf(key, sizeof(key), "k%05u", i);
        if (kv_get(kv_leveldb_kv(k), key, 6, &val, &len) != 0)
            continue;
        assert_int_equal(n, i);
        free(val);
        n++;
    }
    kv_leveldb_close(k);
    return n;
}

/* Finds the only file in the store with this ending that is not empty. */
static void store_file(const char *end, char path[512])
{
    DIR *d = opendir(dir);
    struct dirent *e;
    struct stat st;

    path[0] = '\0';
    while ((e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        char name[512];

        snprintf(name, sizeof(name), "%s/%s", dir, e->d_name);
        if (n < strlen(end) || strcmp(e->d_name + n - strlen(end), end) != 0 ||
            stat(name, &st) != 0 || st.st_size == 0)
            continue;
        assert_string_equal(path, "");
        snprintf(path, 512, "%s", name);
    }
    closedir(d);
    assert_string_not_equal(path, "");
}

static void test_a_log_cut_short(void **state)
{
    char path[512];
    struct stat st;
    struct err err = { 0 };

    (void)state;
    store_make();
    store_file(".log", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 20), 0);
    assert_int_equal(store_count(&err), N_KEYS - 1);
}

static void test_a_log_damaged_in_its_middle(void **state)
{
    char path[512], byte;
    struct stat st, after;
    struct err err = { 0 };
    int fd;

    (void)state;
    store_make();
    store_file(".log", path);
    assert_int_equal(stat(path, &st), 0);
    fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
    assert_int_equal(store_count(&err), -1);
    assert_non_null(strstr(err.text, "is damaged"));
    assert_non_null(strstr(err.text, dir));
    assert_int_equal(stat(path, &after), 0); /* still there, for analysis */
    assert_int_equal(after.st_size, st.st_size);
    fd = open(path, O_RDWR);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
    assert_int_equal(store_count(&err), N_KEYS);
}

static void test_a_store_without_its_head(void **state)
{
    char path[512], away[600];
    struct err err = { 0 };

    (void)state;
    store_make();
    snprintf(path, sizeof(path), "%s/CURRENT", dir);
    snprintf(away, sizeof(away), "%s.away", dir);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(store_count(&err), -1);
    assert_non_null(strstr(err.text, "is its disk mounted"));
    assert_int_equal(rename(away, path), 0); /* no other file was touched */
    assert_int_equal(store_count(&err), N_KEYS);
    store_file(".ldb", path); /* opening has made a table of the log */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(store_count(&err), -1);
    assert_non_null(strstr(err.text, "is damaged"));
}

/* ---- the data directory ---- */

static void file_write(const char *name, const char *text)
{
    char path[600];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int open_again(bool *is_new, struct err *err)
{
    int fd = -1, rc = datadir_open(dir, false, &fd, is_new, err);

    if (fd >= 0)
        close(fd);
    return rc;
}

static bool file_says(const char *name, const char *text)
{
    char path[512], got[128] = "";
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(got, 1, sizeof(got) - 1, f) > 0);
    fclose(f);
    return strcmp(got, text) == 0;
}

static void test_a_new_directory(void **state)
{
    struct err err = { 0 };
    bool is_new = false;
    int fd = -1, other = -1;

    (void)state;
    assert_int_equal(datadir_open(dir, false, &fd, &is_new, &err), 0);
    assert_true(is_new);
    assert_int_equal(datadir_open(dir, false, &other, &is_new, &err), -EWOULDBLOCK);
    assert_non_null(strstr(err.text, "in use by another exportd"));
    close(fd);
    assert_int_equal(open_again(&is_new, &err), 0); /* cut short: made from the start */
    assert_true(is_new);
    assert_int_equal(datadir_begin(dir, false, &err), 0);
    assert_int_equal(open_again(&is_new, &err), 0);
    assert_false(is_new);
}

static void test_directories_that_are_not_ours(void **state)
{
    struct err err = { 0 };
    bool is_new;

    (void)state;
    file_write("thesis.tex", "");
    assert_int_equal(open_again(&is_new, &err), -ENOTEMPTY);
    assert_non_null(strstr(err.text, "thesis.tex"));
    file_write("format", "rozo storaged format 1\n");
    assert_int_equal(open_again(&is_new, &err), -EINVAL);
    file_write("format", "rozo exportd format 4\n");
    assert_int_equal(open_again(&is_new, &err), -EINVAL);
    assert_non_null(strstr(err.text, "a newer rozo"));
    file_write("format", "");
    assert_int_equal(open_again(&is_new, &err), -EINVAL);
    file_write("format", "rozo exportd format 2\n");
    assert_int_equal(open_again(&is_new, &err), 0);
    assert_false(is_new);
}

/* A data directory of an older build is converted; the older build refuses it then, since
 * it could not read all inodes. */
static void test_a_directory_of_an_older_format(void **state)
{
    struct err err = { 0 };
    bool is_new;

    (void)state;
    file_write("format", "rozo exportd format 0\n");
    assert_int_equal(open_again(&is_new, &err), -EINVAL);
    file_write("format", "rozo exportd format 1\n");
    assert_int_equal(open_again(&is_new, &err), 0);
    assert_false(is_new);
    assert_true(file_says("format", "rozo exportd format 2\n"));
}

/* Each of both kinds of exportd refuses the directory of the other. */
static void test_a_directory_of_a_member(void **state)
{
    struct err err = { 0 };
    int fd = -1;
    bool is_new;

    (void)state;
    assert_int_equal(datadir_begin(dir, true, &err), 0);
    assert_true(file_says("format", "rozo exportd format 3\n"));
    assert_int_equal(open_again(&is_new, &err), -EINVAL);
    assert_non_null(strstr(err.text, "a member of a quorum"));
    assert_int_equal(datadir_open(dir, true, &fd, &is_new, &err), 0);
    assert_false(is_new);
    close(fd);
    assert_true(file_says("format", "rozo exportd format 3\n"));
    for (unsigned format = 1; format <= 2; format++) {
        file_write("format",
                   format == 1 ? "rozo exportd format 1\n" : "rozo exportd format 2\n");
        assert_int_equal(datadir_open(dir, true, &fd, &is_new, &err), -EINVAL);
        assert_non_null(strstr(err.text, "an exportd without a quorum"));
    }
    assert_true(file_says("format", "rozo exportd format 2\n"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_sync_without_descriptors),
        T(test_commits_without_descriptors),
        T(test_a_log_cut_short),
        T(test_a_log_damaged_in_its_middle),
        T(test_a_store_without_its_head),
        T(test_a_new_directory),
        T(test_directories_that_are_not_ours),
        T(test_a_directory_of_an_older_format),
        T(test_a_directory_of_a_member),
    };

    return cmocka_run_group_tests_name("exportd.disk", tests, NULL, NULL);
}
