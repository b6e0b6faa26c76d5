/*
 * Goal: who looks for a file that is not there is told whether another one lies aside. Method: a real directory, with
 * the names in it known and not known to the filter.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storaged/disk_uv.h"
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

/* What `path`, which is not there, brings to light. */
static bool is_aside(struct place *p, const char *path, const char *to)
{
    struct disk_req req = { .op = DISK_OPEN, .path = path, .to = to };

    assert_int_equal(ask(p, &req), -ENOENT);
    return req.aside;
}

static void test_what_lies_aside_is_told(void **state)
{
    struct place *p = *state;
    struct disk_req rename = { .op = DISK_RENAME,
                               .path = DIR_PATH "1.0",
                               .to = DIR_PATH "1.damaged" };

    assert_false(is_aside(p, DIR_PATH "1.0", rename.to)); /* not even the directory */
    make(p, rename.path);
    assert_false(is_aside(p, DIR_PATH "1.1", rename.to));
    assert_int_equal(ask(p, &rename), 0);
    for (unsigned known = 0; known < 2; known++) {
        assert_true(is_aside(p, DIR_PATH "1.0", rename.to));
        assert_true(is_aside(p, DIR_PATH "1.1", rename.to));
        assert_false(is_aside(p, DIR_PATH "2.1", DIR_PATH "2.damaged"));
        make(p, DIR_PATH "3.0"); /* the second one has the names read */
    }
    rename.path = DIR_PATH "3.0";
    rename.to = DIR_PATH "3.damaged";
    assert_int_equal(ask(p, &rename), 0);
    assert_true(is_aside(p, DIR_PATH "3.0", rename.to));
    assert_false(is_aside(p, DIR_PATH "3.1", NULL));
}

/* That cannot be told: then neither is it "not there". */
static void test_who_cannot_look_says_so(void **state)
{
    struct place *p = *state;
    struct disk_req req = { .op = DISK_OPEN, .path = DIR_PATH "1.0", .to = "loop/1" };

    assert_int_equal(symlinkat("loop", p->fd, "loop"), 0);
    assert_int_equal(ask(p, &req), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_lies_aside_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_cannot_look_says_so, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
