/*
 * test_kernel_notify.c - the kernel is asked to drop names, attributes and pages, by
 * several threads when it has to wait, and the caller is informed at the end.
 *
 * Method: a fake kernel that holds back its answers to notices of some inodes; mail goes
 * to a list.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/range_map.h"
#include "rozomount/kcache/kernel_notify.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"
#include "tests/unit/rozomount/fake_notices.h"
#include "tests/unit/unit.h"

enum {
    NOTICES_MAX = 128,
    MAIL_MAX = 2048,
    HELD = 1000 /* the first inode whose notices are not answered */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char notices[NOTICES_MAX][64]; /* notices that have begun */
    unsigned n_notices, n_held, n_mail;
    struct env_mail *mail[MAIL_MAX];
    bool hold;
} t = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* ---- the fake kernel and the mailbox ---- */

int notice(fuse_ino_t ino, const char *text)
{
    pthread_mutex_lock(&t.lock);
    snprintf(t.notices[t.n_notices++ % NOTICES_MAX], sizeof(t.notices[0]), "%s", text);
    t.n_held += ino >= HELD;
    pthread_cond_broadcast(&t.changed);
    while (ino >= HELD && t.hold)
        pthread_cond_wait(&t.changed, &t.lock);
    t.n_held -= ino >= HELD;
    pthread_cond_broadcast(&t.changed);
    pthread_mutex_unlock(&t.lock);
    return 0;
}

void env_mailbox_post(struct env_uv *e, struct env_mail *mail)
{
    (void)e;
    pthread_mutex_lock(&t.lock);
    t.mail[t.n_mail++] = mail;
    pthread_cond_broadcast(&t.changed);
    pthread_mutex_unlock(&t.lock);
}

static void wait_for(const unsigned *count, unsigned n)
{
    pthread_mutex_lock(&t.lock);
    while (*count != n)
        pthread_cond_wait(&t.changed, &t.lock);
    pthread_mutex_unlock(&t.lock);
}

static unsigned now(const unsigned *count)
{
    unsigned n;

    pthread_mutex_lock(&t.lock);
    n = *count;
    pthread_mutex_unlock(&t.lock);
    return n;
}

static void answer_all(void)
{
    pthread_mutex_lock(&t.lock);
    t.hold = false;
    pthread_cond_broadcast(&t.changed);
    pthread_mutex_unlock(&t.lock);
}

static int begin(void **state)
{
    (void)state;
    pthread_mutex_lock(&t.lock);
    t.n_notices = t.n_mail = 0;
    t.hold = true;
    pthread_mutex_unlock(&t.lock);
    return 0;
}

static int kernel_fd = -1;

int fuse_session_fd(struct fuse_session *se)
{
    (void)se;
    return kernel_fd;
}

/* ---- jobs ---- */

/* Appends a name to others; the recaller takes ownership of the list. */
static struct kernel_name *a_name(struct kernel_name *others, const char *name,
                                  bool is_dir)
{
    size_t len = strlen(name);
    struct kernel_name *n = xzalloc(sizeof(*n) + len + 1), **end = &others;

    n->is_dir = is_dir;
    memcpy(n->name, name, len);
    while (*end != NULL)
        end = &(*end)->next;
    *end = n;
    return others;
}

static void submit(struct kernel_notify *r, struct notify_job *job, uint64_t ino)
{
    *job = (struct notify_job){ .ino = ino };
    kernel_notify_submit(r, job);
}

/* ---- tests ---- */

static void test_pages_and_attributes_are_dropped(void **state)
{
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, true);
    struct notify_job all = { .ino = 7, .to = SPAN_END };
    struct notify_job some = { .ino = 8, .from = 4096, .to = 12288 };
    struct notify_job tail = { .ino = 9, .from = 4096, .to = SPAN_END };
    struct notify_job none = { .ino = 10 };

    (void)state;
    kernel_notify_submit(r, &all);
    wait_for(&t.n_mail, 1);
    kernel_notify_submit(r, &some);
    wait_for(&t.n_mail, 2);
    kernel_notify_submit(r, &tail);
    wait_for(&t.n_mail, 3);
    kernel_notify_submit(r, &none);
    wait_for(&t.n_mail, 4);
    kernel_notify_stop(r);
    assert_int_equal(t.n_notices, 4);
    assert_string_equal(t.notices[0], "inode 7 0+0");
    assert_string_equal(t.notices[1], "inode 8 4096+8192");
    assert_string_equal(t.notices[2], "inode 9 4096+0");
    assert_string_equal(t.notices[3], "inode 10 -1+0");
    assert_ptr_equal(t.mail[0], &all.mail);
    assert_ptr_equal(t.mail[3], &none.mail);
}

/* Goal: a directory's name is expired, not dropped, since a process may be below it: the
 * next use looks it up again. */
static void test_names_of_directories_expire_and_others_are_dropped(void **state)
{
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, true);
    struct notify_job job = { .ino = 5 };

    (void)state;
    job.names = a_name(a_name(NULL, "dir", true), "file", false);
    kernel_notify_submit(r, &job);
    wait_for(&t.n_mail, 1);
    kernel_notify_stop(r);
    assert_null(job.names);
    assert_int_equal(t.n_notices, 3);
    assert_string_equal(t.notices[0], "expire 5 dir");
    assert_string_equal(t.notices[1], "drop 5 file");
    assert_string_equal(t.notices[2], "inode 5 -1+0");
}

static void test_a_kernel_that_cannot_expire_drops(void **state)
{
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, false);
    struct notify_job job = { .ino = 5, .names = a_name(NULL, "dir", true) };

    (void)state;
    kernel_notify_submit(r, &job);
    wait_for(&t.n_mail, 1);
    kernel_notify_stop(r);
    assert_string_equal(t.notices[0], "drop 5 dir");
}

/* Goal: a job does not wait for calls in which other jobs wait for the kernel. */
static void test_there_are_threads_for_all_that_wait(void **state)
{
    enum { LOCK_TABLE_JOBS = 40 };
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, true);
    struct notify_job held[LOCK_TABLE_JOBS], job;

    (void)state;
    for (unsigned i = 0; i < LOCK_TABLE_JOBS; i++)
        submit(r, &held[i], HELD + i);
    wait_for(&t.n_held, LOCK_TABLE_JOBS);
    submit(r, &job, 7);
    wait_for(&t.n_mail, 1);
    assert_ptr_equal(t.mail[0], &job.mail);
    answer_all();
    wait_for(&t.n_mail, LOCK_TABLE_JOBS + 1);
    submit(r, &job, 8);
    wait_for(&t.n_mail, LOCK_TABLE_JOBS + 2);
    kernel_notify_stop(r);
}

static void *stop_it(void *arg)
{
    kernel_notify_stop(arg);
    return NULL;
}

/* Goal: kernel_notify_stop() waits for calls in progress, and posts jobs that have not
 * begun. */
static void test_the_end_waits_for_calls_under_way(void **state)
{
    enum { AT_A_TIME = 1024, MORE = 6 }; /* AT_A_TIME is THREADS_MAX */
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, true);
    static struct notify_job jobs[AT_A_TIME + MORE];
    pthread_t thread;

    (void)state;
    for (unsigned i = 0; i < AT_A_TIME + MORE; i++)
        submit(r, &jobs[i], HELD + i);
    wait_for(&t.n_held, AT_A_TIME);
    assert_int_equal(pthread_create(&thread, NULL, stop_it, r), 0);
    wait_for(&t.n_mail, MORE);
    answer_all();
    pthread_join(thread, NULL);
    assert_int_equal(now(&t.n_mail), AT_A_TIME + MORE);
    assert_int_equal(now(&t.n_notices), AT_A_TIME);
}

/* Goal: a call that the kernel never answers does not hold up the end, and its mail is
 * not sent after the end. */
static void test_a_call_that_is_never_answered_is_left(void **state)
{
    static struct kernel_notify *r;
    static struct notify_job job; /* outlives the test, and so does r */

    (void)state;
    r = kernel_notify_start(NULL, NULL, true);
    submit(r, &job, HELD);
    wait_for(&t.n_held, 1);
    kernel_notify_stop(r); /* gives up after 2 s */
    answer_all();
    wait_for(&t.n_held, 0);
    assert_int_equal(now(&t.n_mail), 0);
}

/* The support for aging names is detected at the start; it is off if another file system
 * is mounted below, or if the mount point is unknown. */
static void test_support_for_aging_names_is_detected(void **state)
{
    const struct mountpoint nowhere = { .dev_major = 4095, .dev_minor = 1 };
    uint8_t head[33];
    struct kernel_notify *r;
    int fds[2];

    (void)state;
    r = kernel_notify_start(NULL, &nowhere, true);
    assert_false(kernel_notify_can_age(r)); /* the kernel refuses */
    kernel_notify_stop(r);
    assert_int_equal(pipe2(fds, O_DIRECT), 0); /* O_DIRECT keeps messages apart */
    kernel_fd = fds[1];
    r = kernel_notify_start(NULL, NULL, true);
    assert_false(kernel_notify_can_age(r));
    assert_int_equal(read(fds[0], head, sizeof(head)), 32); /* prune, tested below */
    kernel_notify_stop(r);
    r = kernel_notify_start(NULL, &nowhere, true);
    assert_true(kernel_notify_can_age(r));
    assert_int_equal(read(fds[0], head, sizeof(head)), 16);
    assert_int_equal(read(fds[0], head, sizeof(head)), 32);
    assert_true(kernel_notify_age(r));
    assert_int_equal(read(fds[0], head, sizeof(head)), 16);
    assert_int_equal(head[0], 16);
    assert_int_equal(head[4], 8);
    kernel_notify_stop(r);
    close(fds[0]);
    close(fds[1]);
    kernel_fd = -1;
}

/* One job drops the attributes of many inodes. */
static void test_many_inodes_are_dropped_by_one_job(void **state)
{
    const uint64_t inos[] = { 5, 6, 7 };
    struct kernel_notify *r = kernel_notify_start(NULL, NULL, true);
    struct notify_job job = { .more = inos, .n_more = 3 };

    (void)state;
    kernel_notify_submit(r, &job);
    wait_for(&t.n_mail, 1);
    assert_int_equal(now(&t.n_notices), 3);
    assert_string_equal(t.notices[0], "inode 5 -1+0");
    assert_string_equal(t.notices[2], "inode 7 -1+0");
    kernel_notify_stop(r);
}

static void test_support_for_pruning_is_detected(void **state)
{
    struct kernel_notify *r;
    uint32_t words[10];
    int fds[2];

    (void)state;
    r = kernel_notify_start(NULL, NULL, true);
    assert_false(kernel_notify_can_prune(r)); /* the kernel refuses */
    kernel_notify_stop(r);
    assert_int_equal(pipe2(fds, O_DIRECT), 0);
    kernel_fd = fds[1];
    r = kernel_notify_start(NULL, NULL, true);
    assert_true(kernel_notify_can_prune(r));
    assert_int_equal(read(fds[0], words, sizeof(words)), 32); /* a trial with no inode */
    assert_true(words[0] == 32 && words[1] == 9 && words[4] == 0);
    kernel_notify_prune(r, 5 | 7ull << 32);
    assert_int_equal(read(fds[0], words, sizeof(words)), 40);
    assert_true(words[0] == 40 && words[1] == 9 && words[4] == 1);
    assert_true(words[8] == 5 && words[9] == 7);
    assert_true(kernel_notify_is_known(r, 5));
    assert_string_equal(t.notices[0], "inode 5 -1+0");
    kernel_notify_stop(r);
    close(fds[0]);
    close(fds[1]);
    kernel_fd = -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_pages_and_attributes_are_dropped, begin),
        cmocka_unit_test_setup(test_names_of_directories_expire_and_others_are_dropped,
                               begin),
        cmocka_unit_test_setup(test_a_kernel_that_cannot_expire_drops, begin),
        cmocka_unit_test_setup(test_support_for_aging_names_is_detected, begin),
        cmocka_unit_test_setup(test_many_inodes_are_dropped_by_one_job, begin),
        cmocka_unit_test_setup(test_support_for_pruning_is_detected, begin),
        cmocka_unit_test_setup(test_there_are_threads_for_all_that_wait, begin),
        cmocka_unit_test_setup(test_the_end_waits_for_calls_under_way, begin),
        cmocka_unit_test_setup(test_a_call_that_is_never_answered_is_left, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
