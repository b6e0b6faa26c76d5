/*
 * test_kernel_inval.c - invalidations reach the kernel in the order in which they were
 * added, and a waiting caller is called when its own are done.
 *
 * Method: a fake kernel whose answer to a notice can be held back; mail goes to a list.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "rozomount/kcache/kernel_inval.h"
#include "tests/unit/rozomount/fake_notices.h"
#include "tests/unit/unit.h"

enum { NOTICES_MAX = 16, MAIL_MAX = 16 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char notices[NOTICES_MAX][64]; /* notices that have begun */
    unsigned n_notices, n_allowed; /* notices allowed to end */
    struct env_mail *mail[MAIL_MAX];
    unsigned n_mail;
} t = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* ---- the fake kernel and the mailbox ---- */

int notice(fuse_ino_t ino, const char *text)
{
    unsigned mine;

    (void)ino;
    pthread_mutex_lock(&t.lock);
    mine = t.n_notices++;
    snprintf(t.notices[mine % NOTICES_MAX], sizeof(t.notices[0]), "%s", text);
    pthread_cond_broadcast(&t.changed);
    while (mine >= t.n_allowed)
        pthread_cond_wait(&t.changed, &t.lock);
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
    while (*count < n)
        pthread_cond_wait(&t.changed, &t.lock);
    assert_int_equal(*count, n);
    pthread_mutex_unlock(&t.lock);
}

static void allow(unsigned n)
{
    pthread_mutex_lock(&t.lock);
    t.n_allowed += n;
    pthread_cond_broadcast(&t.changed);
    pthread_mutex_unlock(&t.lock);
}

static unsigned mails(void)
{
    unsigned n;

    pthread_mutex_lock(&t.lock);
    n = t.n_mail;
    pthread_mutex_unlock(&t.lock);
    return n;
}

static int begin(void **state)
{
    (void)state;
    t.n_notices = t.n_allowed = t.n_mail = 0;
    return 0;
}

/* ---- tests ---- */

static void test_invalidations_are_sent_one_by_one_in_order(void **state)
{
    struct kernel_inval *inv = kernel_inval_start(NULL, true);
    char name[] = "name";

    (void)state;
    kernel_inval_add(inv, 7);
    kernel_inval_add_name(inv, 1, name);
    name[0] = 'x'; /* the name was copied */
    kernel_inval_add(inv, 8);
    wait_for(&t.n_notices, 1); /* no second one before the first is answered */
    allow(3);
    wait_for(&t.n_notices, 3);
    kernel_inval_stop(inv);
    assert_string_equal(t.notices[0], "inode 7 0+0");
    assert_string_equal(t.notices[1], "expire 1 name");
    assert_string_equal(t.notices[2], "inode 8 0+0");
}

static void test_wait_ends_when_all_earlier_invalidations_are_done(void **state)
{
    struct kernel_inval *inv = kernel_inval_start(NULL, true);
    struct kernel_inval_wait none = { 0 }, first = { 0 }, both = { 0 };

    (void)state;
    kernel_inval_wait(inv, &none);
    assert_int_equal(mails(), 1);
    kernel_inval_add_name(inv, 1, "a");
    kernel_inval_wait(inv, &first);
    kernel_inval_add(inv, 8);
    kernel_inval_wait(inv, &both);
    wait_for(&t.n_notices, 1);
    assert_int_equal(mails(), 1);
    allow(1);
    wait_for(&t.n_notices, 2);
    wait_for(&t.n_mail, 2);
    assert_ptr_equal(t.mail[1], &first.mail);
    allow(1);
    wait_for(&t.n_mail, 3);
    assert_ptr_equal(t.mail[2], &both.mail);
    kernel_inval_stop(inv);
}

static void test_a_kernel_that_cannot_expire_drops(void **state)
{
    struct kernel_inval *inv = kernel_inval_start(NULL, false);

    (void)state;
    allow(1);
    kernel_inval_add_name(inv, 1, "a");
    wait_for(&t.n_notices, 1);
    kernel_inval_stop(inv);
    assert_string_equal(t.notices[0], "drop 1 a");
}

static void test_stop_ends_pending_waits(void **state)
{
    struct kernel_inval *inv = kernel_inval_start(NULL, true);
    struct kernel_inval_wait second = { 0 };

    (void)state;
    kernel_inval_add(inv, 7);
    kernel_inval_add(inv, 8);
    kernel_inval_wait(inv, &second);
    wait_for(&t.n_notices, 1);
    allow(2);
    kernel_inval_stop(inv);
    assert_int_equal(mails(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_invalidations_are_sent_one_by_one_in_order, begin),
        cmocka_unit_test_setup(test_wait_ends_when_all_earlier_invalidations_are_done,
                               begin),
        cmocka_unit_test_setup(test_a_kernel_that_cannot_expire_drops, begin),
        cmocka_unit_test_setup(test_stop_ends_pending_waits, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
