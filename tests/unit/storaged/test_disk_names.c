/*
 * Goal: a name that exists is never called absent, and most absent names are known as
 * absent. Method: a directory of files, some made before it is read and some later.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/disk/disk_names.h"
#include "tests/unit/unit.h"

enum { FILES = 200 };

struct place {
    char path[64];
    int fd;
    struct disk_names names;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    snprintf(p->path, sizeof(p->path), "names-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY);
    assert_int_equal(mkdirat(p->fd, "objects", 0700), 0);
    assert_int_equal(mkdirat(p->fd, "objects/0a", 0700), 0);
    assert_int_equal(mkdirat(p->fd, "objects/0a/f1", 0700), 0);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    char command[128];

    close(p->fd);
    snprintf(command, sizeof(command), "rm -r %s", p->path);
    assert_int_equal(system(command), 0);
    free(p);
    return 0;
}

static void name_of(char name[64], unsigned i, unsigned projection)
{
    snprintf(name, 64, "objects/0a/f1/%032x.%u", i, projection);
}

static void make(struct place *p, unsigned i)
{
    char name[64];
    int fd;

    name_of(name, i, i % 6);
    fd = openat(p->fd, name, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void learn(struct place *p, const char *name)
{
    disk_names_learn(&p->names, p->fd, name);
    disk_names_learn(&p->names, p->fd, name);
}

/* Checks that most absent names are known to be absent, and that no existing one is. */
static void check(const struct place *p, unsigned n)
{
    unsigned n_absent = 0;
    char name[64];

    for (unsigned i = 0; i < FILES; i++) {
        for (unsigned projection = 0; projection < 6; projection++) {
            bool is_there = i < n && projection == i % 6;

            name_of(name, i, projection);
            if (is_there)
                assert_false(disk_names_lack(&p->names, name));
            n_absent += disk_names_lack(&p->names, name);
        }
    }
    assert_true(n_absent > (FILES * 6 - n) * 9 / 10);
}

static void test_names_that_were_there_and_names_that_come(void **state)
{
    struct place *p = *state;
    char name[64];

    for (unsigned i = 0; i < FILES / 2; i++)
        make(p, i);
    name_of(name, 0, 0);
    learn(p, name);
    check(p, FILES / 2);
    for (unsigned i = FILES / 2; i < FILES; i++) {
        name_of(name, i, i % 6);
        make(p, i);
        disk_names_add(&p->names, name);
    }
    check(p, FILES);
}

static void test_names_of_a_directory_that_was_not_read_are_not_denied(void **state)
{
    struct place *p = *state;
    char name[64];

    name_of(name, 1, 1);
    assert_false(disk_names_lack(&p->names, name));
    /* learned once: perhaps it is never asked for again */
    disk_names_learn(&p->names, p->fd, name);
    assert_false(disk_names_lack(&p->names, name));
    disk_names_learn(&p->names, p->fd, name);
    assert_true(disk_names_lack(&p->names, name));
    assert_false(disk_names_lack(&p->names, "objects/0b/f1/00.1"));
    assert_false(disk_names_lack(&p->names, "objects/0a/f2/00.1"));
    assert_false(disk_names_lack(&p->names, "objects/0A/f1/00.1"));
    assert_false(disk_names_lack(&p->names, "objects/0a/f1/"));
    assert_false(disk_names_lack(&p->names, "objects/0a/f1"));
    assert_false(disk_names_lack(&p->names, "journal/0a/f1/00.1"));
    assert_false(disk_names_lack(&p->names, "storage.id"));
    learn(p, "objects/1a/f1/00.1"); /* takes the slot; that directory does not exist */
    assert_false(disk_names_lack(&p->names, "objects/1a/f1/00.1"));
    assert_false(disk_names_lack(&p->names, name));
}

/* A directory of too many names is not read: otherwise each question would read all of
 * them again. */
static void test_a_directory_of_too_many_names_is_left_alone(void **state)
{
    struct place *p = *state;
    char name[64];

    for (unsigned i = 0; i < 2100; i++)
        make(p, i);
    name_of(name, 5000, 1);
    learn(p, name);
    assert_false(disk_names_lack(&p->names, name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_that_were_there_and_names_that_come,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_names_of_a_directory_that_was_not_read_are_not_denied, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_directory_of_too_many_names_is_left_alone,
                                        setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
