/* test_fsutil.c - output files of verbs. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "tests/unit/unit.h"

static char dir[] = "/tmp/rozo-test-files-XXXXXX";
static char path[sizeof(dir) + 16];

static void test_a_file_takes_the_place_of_another(void **state)
{
    char text[16];
    struct err err;

    (void)state;
    assert_int_equal(file_replace(path, 0600, "old one", 7, &err), 0);
    assert_int_equal(file_replace(path, 0600, "new", 3, &err), 0);
    assert_int_equal(file_read_text(path, text, sizeof(text), &err), 3);
    assert_memory_equal(text, "new", 3);
    unlink(path);
}

/* `--json /dev/null`, run by root, must not replace the device with a file. */
static void test_fifo_is_written_to_and_not_replaced(void **state)
{
    struct stat st;
    char text[16];
    struct err err;
    int fd;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    fd = open(path, O_RDWR | O_NONBLOCK);
    assert_true(fd >= 0);
    assert_int_equal(file_replace(path, 0600, "told", 4, &err), 0);
    assert_int_equal(read(fd, text, sizeof(text)), 4);
    assert_memory_equal(text, "told", 4);
    close(fd);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_takes_the_place_of_another),
        cmocka_unit_test(test_fifo_is_written_to_and_not_replaced),
    };
    int rc;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/file", dir);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return rc;
}
