/*
 * Goal: every dead session is reported, whatever else is in the directory. Method: a
 * directory, and processes that record a session there and are killed.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/system/boot_id.h"
#include "rozomount/session/liveness.h"
#include "tests/unit/unit.h"

static const uint8_t ours[PULSE_CLUSTER_BYTES] = { 1, 0xab };
static const uint8_t theirs[PULSE_CLUSTER_BYTES] = { 2 };

static char dir[64];
static struct liveness *p;
static size_t n;

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/rozo-pulse-XXXXXX");
    assert_non_null(mkdtemp(dir));
    p = NULL;
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    liveness_free(p, true);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

/* Starts a process that records this session and lives. */
static pid_t process_start(const uint8_t *cluster, uint64_t session)
{
    int fds[2];
    char c;
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        liveness_note(liveness_new(dir), cluster, session);
        if (write(fds[1], "+", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(fds[0], &c, 1), 1);
    close(fds[0]);
    close(fds[1]);
    return pid;
}

static void process_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Returns the sum of the sessions that are found dead; n: their number. */
static uint64_t look(void)
{
    const uint64_t *ids;
    uint64_t sum = 0;

    liveness_free(p, true);
    p = liveness_new(dir);
    ids = liveness_find_dead(p, &n);
    for (size_t i = 0; i < n; i++)
        sum += ids[i];
    return sum;
}

/* A mount of this cluster has reported what it found. */
static void reported_by(struct liveness *mount, const uint8_t *cluster)
{
    liveness_note(mount, cluster, 500);
    liveness_dead_are_reported(mount);
}

static void file_make(const char *name, mode_t mode)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(mknod(path, mode, 0), 0);
}

static void test_mount_that_lives_is_not_found_dead(void **state)
{
    pid_t pid = process_start(ours, 7);

    (void)state;
    look();
    assert_int_equal(n, 0);
    liveness_note(p, ours, 8);
    kill(pid, SIGSTOP); /* a process that hangs is alive */
    look();
    assert_int_equal(n, 0);
    process_kill(pid);
    assert_int_equal(look(), 7);
}

static void test_reported_session_is_forgotten(void **state)
{
    (void)state;
    process_kill(process_start(ours, 7));
    process_kill(process_start(theirs, 100));
    process_kill(process_start(ours, 9));
    assert_int_equal(look(), 116);
    assert_int_equal(look(), 116);
    reported_by(p, theirs);
    assert_int_equal(look(), 16);
    assert_int_equal(n, 2);
    reported_by(p, ours);
    assert_int_equal(look(), 0);
}

/* Mounts of two clusters start at the same time: one must not hide the dead from the
 * other, because only one of them has the right exportd. */
static void test_two_mounts_that_start_together_both_find_a_dead_one(void **state)
{
    struct liveness *other;
    size_t found;

    (void)state;
    process_kill(process_start(ours, 7));
    other = liveness_new(dir);
    assert_int_equal(look(), 7);
    assert_int_equal(liveness_find_dead(other, &found)[0], 7);
    assert_int_equal(found, 1);
    reported_by(p, ours);
    reported_by(other, theirs);
    liveness_free(other, true);
    assert_int_equal(look(), 0);
}

static void test_a_session_after_another(void **state)
{
    (void)state;
    look();
    liveness_note(p, ours, 7);
    liveness_note(p, ours, 7);
    liveness_note(p, ours, 30);
    liveness_free(p, false); /* exportd was not there to receive the report */
    p = NULL;
    assert_int_equal(look(), 30);
    liveness_note(p, ours, 31);
    liveness_free(p, true);
    p = NULL;
    assert_int_equal(look(), 30);
}

static void test_other_files_in_the_directory_are_ignored(void **state)
{
    char name[128];

    (void)state;
    file_make("junk", S_IFREG | 0600);
    file_make("01ab0000000000000000000000000000-0000000000000007-0000000000000007",
              S_IFREG | 0600); /* from another boot */
    snprintf(name, sizeof(name),
             "01ab0000000000000000000000000000-0000000000000008-%016llx",
             (unsigned long long)boot_number());
    file_make(name, S_IFIFO | 0600);
    name[38] = 'x';
    file_make(name, S_IFREG | 0600);
    look();
    assert_int_equal(n, 0);
}

static void file_path(char path[256], const char *cluster, unsigned session)
{
    snprintf(path, 256, "%s/%s0000000000000000000000000000-%016x-%016llx", dir, cluster,
             session, (unsigned long long)boot_number());
}

static void file_set_time(const char *path, time_t at_s)
{
    const struct timespec times[2] = { { .tv_sec = at_s }, { .tv_sec = at_s } };

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_session_found_dead_a_day_ago_is_forgotten(void **state)
{
    char path[256];

    (void)state;
    process_kill(process_start(ours, 7));
    file_path(path, "01ab", 7);
    assert_int_equal(look(), 7);
    file_set_time(path, 0);
    look();
    assert_int_equal(n, 0);
    assert_int_equal(access(path, F_OK), -1);
}

/* A mount that has run for days has an old file when it is killed. */
static void test_age_of_a_session_does_not_hide_its_death(void **state)
{
    pid_t pid = process_start(ours, 7);
    char path[256];

    (void)state;
    file_path(path, "01ab", 7);
    file_set_time(path, 1000);
    look();
    assert_int_equal(n, 0);
    process_kill(pid);
    assert_int_equal(look(), 7);
    assert_int_equal(look(), 7);
}

/* Mounts of clusters that are gone leave files that nobody reports. */
static void test_many_dead_of_others_do_not_hide_one(void **state)
{
    char path[256];
    uint64_t sum = 0;

    (void)state;
    for (unsigned i = 1; i <= PULSE_DEAD_MAX + 50; i++) {
        file_path(path, "0200", i);
        file_make(strrchr(path, '/') + 1, S_IFREG | 0600);
        assert_int_equal(truncate(path, 1), 0); /* found before */
        file_set_time(path, time(NULL) - 2000 + i);
        sum += i > 51 ? i : 0; /* the newest, less the one for which ours makes room */
    }
    process_kill(process_start(ours, 1000000));
    assert_int_equal(look(), 1000000 + sum);
    liveness_note(p, ours, 500); /* from now on those of others do not count at all */
    assert_int_equal(liveness_find_dead(p, &n)[0], 1000000);
    assert_int_equal(n, 1);
    reported_by(p, ours);
    assert_int_equal(look(), sum + 51);
    assert_int_equal(n, PULSE_DEAD_MAX);
}

static void test_a_directory_that_others_can_write(void **state)
{
    (void)state;
    process_kill(process_start(ours, 7));
    assert_int_equal(chmod(dir, 0777), 0);
    look();
    assert_int_equal(n, 0);
    liveness_note(p, ours, 8);
}

static void test_no_directory(void **state)
{
    (void)state;
    p = liveness_new("/proc/none/rozo");
    liveness_find_dead(p, &n);
    assert_int_equal(n, 0);
    liveness_note(p, ours, 8);
    reported_by(p, ours);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_mount_that_lives_is_not_found_dead),
        T(test_reported_session_is_forgotten),
        T(test_two_mounts_that_start_together_both_find_a_dead_one),
        T(test_a_session_after_another),
        T(test_other_files_in_the_directory_are_ignored),
        T(test_session_found_dead_a_day_ago_is_forgotten),
        T(test_age_of_a_session_does_not_hide_its_death),
        T(test_many_dead_of_others_do_not_hide_one),
        T(test_a_directory_that_others_can_write),
        T(test_no_directory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
