/*
 * Goal: a lookup of an absent file tells whether a quarantined one exists. Method: a real
 * directory whose names are known, or not known, to the filter.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/disk/disk_uv.h"
#include "tests/unit/unit.h"

#define DIR_PATH "objects/0a/f1/"

struct place {
    char path[64];
    int fd;
    uv_loop_t loop;
    struct env_uv env;
    struct disk_uv disk;
    bool done;
    int rc;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    snprintf(p->path, sizeof(p->path), "disk-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY);
    assert_int_equal(uv_loop_init(&p->loop), 0);
    assert_int_equal(env_uv_init(&p->env, &p->loop), 0);
    disk_uv_init(&p->disk, &p->env, p->fd);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    char command[128];

    env_uv_close(&p->env);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&p->loop), 0);
    close(p->fd);
    snprintf(command, sizeof(command), "rm -r %s", p->path);
    assert_int_equal(system(command), 0);
    free(p);
    return 0;
}

static void on_done(struct disk_req *req, int rc)
{
    struct place *p = req->arg;

    p->done = true;
    p->rc = rc;
}

static int ask(struct place *p, struct disk_req *req)
{
    req->done = on_done;
    req->arg = p;
    p->done = false;
    disk_submit(&p->disk.disk, req);
    while (!p->done)
        uv_run(&p->loop, UV_RUN_ONCE);
    return p->rc;
}

static void make(struct place *p, const char *path)
{
    struct disk_req req = { .op = DISK_OPEN, .path = path, .create = true };

    assert_int_equal(ask(p, &req), 0);
    disk_close(&p->disk.disk, req.file);
}

/* Opens `path`, which does not exist, and returns whether the file at `to` was found. */
static bool is_aside(struct place *p, const char *path, const char *to)
{
    struct disk_req req = { .op = DISK_OPEN, .path = path, .to = to };

    assert_int_equal(ask(p, &req), -ENOENT);
    return req.quarantined;
}

static void test_quarantined_files_are_reported(void **state)
{
    struct place *p = *state;
    struct disk_req rename = { .op = DISK_RENAME,
                               .path = DIR_PATH "1.0",
                               .to = DIR_PATH "1.damaged" };

    assert_false(is_aside(p, DIR_PATH "1.0", rename.to)); /* no directory either */
    make(p, rename.path);
    assert_false(is_aside(p, DIR_PATH "1.1", rename.to));
    assert_int_equal(ask(p, &rename), 0);
    for (unsigned known = 0; known < 2; known++) {
        assert_true(is_aside(p, DIR_PATH "1.0", rename.to));
        assert_true(is_aside(p, DIR_PATH "1.1", rename.to));
        assert_false(is_aside(p, DIR_PATH "2.1", DIR_PATH "2.damaged"));
        make(p, DIR_PATH "3.0"); /* the second file makes the disk read the names */
    }
    rename.path = DIR_PATH "3.0";
    rename.to = DIR_PATH "3.damaged";
    assert_int_equal(ask(p, &rename), 0);
    assert_true(is_aside(p, DIR_PATH "3.0", rename.to));
    assert_false(is_aside(p, DIR_PATH "3.1", NULL));
}

/* A lookup that fails is not answered with "does not exist". */
static void test_failed_lookup_is_an_error(void **state)
{
    struct place *p = *state;
    struct disk_req req = { .op = DISK_OPEN, .path = DIR_PATH "1.0", .to = "loop/1" };

    assert_int_equal(symlinkat("loop", p->fd, "loop"), 0);
    assert_int_equal(ask(p, &req), -EIO);
}

/* Returns whether bytes are mapped at offset, and in *next where that ends. */
static bool is_mapped(struct place *p, struct disk_file *file, uint64_t offset,
                      uint64_t len, uint64_t *next)
{
    struct disk_req req = {
        .op = DISK_MAPPED, .file = file, .offset = offset, .len = len
    };

    assert_int_equal(ask(p, &req), 0);
    *next = req.next;
    return req.mapped;
}

static int allocate(struct place *p, struct disk_file *file, uint64_t offset,
                    uint64_t len, struct disk_range *ranges, unsigned *n)
{
    struct iovec iov = { .iov_base = ranges, .iov_len = *n * sizeof(*ranges) };
    struct disk_req req = { .op = DISK_ALLOCATE,
                            .file = file,
                            .grow = true,
                            .offset = offset,
                            .len = len,
                            .iov = &iov,
                            .n_iov = 1 };
    int rc = ask(p, &req);

    *n = (unsigned)(req.n_read / sizeof(*ranges));
    return rc;
}

/* Reserved space is distinguished from data, and only reserved space is given back. */
static void test_space_is_reserved_and_given_back(void **state)
{
    struct place *p = *state;
    static uint8_t bytes[8192];
    struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
    struct disk_req open = { .op = DISK_OPEN, .path = DIR_PATH "9.0", .create = true };
    struct disk_req write = {
        .op = DISK_WRITE, .offset = 65536, .len = sizeof(bytes), .iov = &iov, .n_iov = 1
    };
    struct disk_req stat = { .op = DISK_STAT }, back = { .op = DISK_GIVE_BACK };
    struct disk_range ranges[8];
    unsigned n = 8;
    uint64_t next;

    memset(bytes, 7, sizeof(bytes));
    assert_int_equal(ask(p, &open), 0);
    write.file = stat.file = back.file = open.file;
    /* nothing is written yet, but the space is reserved */
    assert_int_equal(ask(p, &write), 0);
    write = (struct disk_req){ .op = DISK_MAPPED, .file = open.file, .len = 4096 };
    if (ask(p, &write) != 0) {
        print_message("[  INFO  ] the file system here has no FIEMAP: not tested\n");
        disk_close(&p->disk.disk, open.file);
        skip();
    }
    assert_false(is_mapped(p, open.file, 0, 1 << 20, &next));
    assert_int_equal(next, 65536);
    assert_true(is_mapped(p, open.file, 65536, 1 << 20, &next));
    assert_int_equal(next, 65536 + sizeof(bytes));

    assert_int_equal(allocate(p, open.file, 32768, 131072, ranges, &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(ranges[0].from, 32768);
    assert_int_equal(ranges[0].to, 65536);
    assert_int_equal(ranges[1].from, 65536 + sizeof(bytes));
    assert_int_equal(ranges[1].to, 163840);
    assert_true(is_mapped(p, open.file, 32768, 131072, &next));
    assert_int_equal(next, 163840);
    assert_int_equal(ask(p, &stat), 0);
    assert_int_equal(stat.size, 163840);
    n = 8;
    assert_int_equal(allocate(p, open.file, 32768, 131072, ranges, &n), 0);
    assert_int_equal(n, 0);

    back.offset = 40960;
    back.len = 65536;
    assert_int_equal(ask(p, &back), 0);
    assert_true(is_mapped(p, open.file, 32768, 131072, &next));
    assert_int_equal(next, 40960);
    assert_true(is_mapped(p, open.file, 65536, 8192, &next)); /* data stay */
    assert_false(is_mapped(p, open.file, 65536 + sizeof(bytes), 131072, &next));
    assert_int_equal(next, 40960 + 65536);
    disk_close(&p->disk.disk, open.file);
}

/* A new name can be made stable when no descriptor is left to open its directories. */
static void test_a_name_is_synced_without_descriptors(void **state)
{
    struct place *p = *state;
    struct disk_req req = { .op = DISK_SYNC_NAME, .path = DIR_PATH "1.0" };
    struct rlimit old, none;

    make(p, req.path);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){ 0, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(ask(p, &req), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

static bool close_one(void *arg, unsigned below)
{
    int *idle = arg;

    if (*idle < 0 || (unsigned)*idle >= below)
        return false;
    close(*idle);
    *idle = -1;
    return true;
}

/* Opens and lists get the descriptor of an idle file. If there is none they fail with
 * EMFILE, and succeed later. */
static void test_idle_files_make_room(void **state)
{
    struct place *p = *state;
    char names[256];
    struct iovec iov = { names, sizeof(names) };
    struct disk_req open = { .op = DISK_OPEN, .path = DIR_PATH "1.0" };
    struct disk_req list = { .op = DISK_LIST, .iov = &iov, .n_iov = 1 };
    struct rlimit old, none;
    int idle = dup(0), fd;

    make(p, open.path);
    p->env.close_idle = close_one;
    p->env.close_idle_arg = &idle;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){ (rlim_t)idle + 1, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(ask(p, &open), 0);
    assert_int_equal(idle, -1);
    assert_int_equal(ask(p, &list), -EMFILE);
    idle = fd = disk_fd(&p->disk.disk, open.file); /* unused from here on */
    assert_int_equal(ask(p, &list), 0);
    assert_int_equal(list.n_read, sizeof("1.0"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(dup2(0, fd), fd);
    disk_close(&p->disk.disk, open.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quarantined_files_are_reported, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_failed_lookup_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(test_space_is_reserved_and_given_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_name_is_synced_without_descriptors, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_idle_files_make_room, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
