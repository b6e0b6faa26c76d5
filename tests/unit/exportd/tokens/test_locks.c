/*
 * test_locks.c - fcntl and flock locks: fixed cases, then at random against a table of
 * bytes (I10).
 */
#include <errno.h>
#include <stdlib.h>

#include "exportd/tokens/locks.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

static struct locks l;
static struct lock_holder s1, s2;

static void set_up(void)
{
    locks_init(&l);
    lock_holder_init(&s1);
    lock_holder_init(&s2);
}

static void tear_down(void)
{
    lock_holder_end(&l, &s1);
    lock_holder_end(&l, &s2);
    assert_int_equal(l.n_ranges, 0);
    assert_null(l.inodes);
    locks_free(&l);
}

static struct lock posix(struct lock_holder *holder, uint64_t owner, uint64_t from,
                         uint64_t to, enum lock_mode mode)
{
    return (struct lock){ .ino = 5,
                          .kind = LOCK_POSIX,
                          .holder = holder,
                          .owner = owner,
                          .pid = (uint32_t)owner,
                          .from = from,
                          .to = to,
                          .mode = mode };
}

static int set(struct lock_holder *holder, uint64_t owner, uint64_t from, uint64_t to,
               enum lock_mode mode)
{
    struct lock lock = posix(holder, owner, from, to, mode);

    return locks_set(&l, &lock);
}

struct waiter {
    struct lock_wait wait;
    int n_granted;
};

static void on_granted(struct lock_wait *wait, int rc)
{
    assert_int_equal(rc, 0);
    container_of(wait, struct waiter, wait)->n_granted++;
}

static int wait_for(struct waiter *w, struct lock lock)
{
    *w = (struct waiter){ .wait = { .lock = lock, .granted = on_granted } };
    return locks_wait(&l, &w->wait);
}

static void test_owners_of_two_sessions_exclude_each_other(void **state)
{
    struct lock q = posix(&s2, 1, 0, SPAN_END, LOCK_READ), r;

    (void)state;
    set_up();
    assert_int_equal(set(&s1, 1, 10, 20, LOCK_WRITE), 0);
    assert_int_equal(set(&s2, 1, 19, 21, LOCK_READ),
                     -EAGAIN); /* owner 1 of a different session */
    assert_int_equal(set(&s2, 1, 20, 30, LOCK_WRITE), 0);
    assert_int_equal(set(&s1, 1, 0, 12, LOCK_READ), 0); /* replaces its own lock */
    assert_int_equal(set(&s2, 2, 5, 12, LOCK_READ), 0);
    assert_true(locks_test(&l, &q, &r));
    assert_int_equal(r.from, 12); /* 0..12 is locked to read: no conflict */
    assert_int_equal(r.to, 20);
    assert_int_equal(r.mode, LOCK_WRITE);
    assert_ptr_equal(r.holder, &s1);
    assert_int_equal(set(&s1, 1, 0, SPAN_END, LOCK_NONE), 0);
    assert_false(locks_test(
        &l,
        &(struct lock){
            .ino = 5, .holder = &s2, .owner = 1, .to = SPAN_END, .mode = LOCK_READ },
        &r));
    tear_down();
}

static void test_flock_and_fcntl_do_not_meet(void **state)
{
    struct lock f = posix(&s2, 1, 0, SPAN_END, LOCK_WRITE);

    (void)state;
    set_up();
    f.kind = LOCK_FLOCK;
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_WRITE), 0);
    assert_int_equal(locks_set(&l, &f), 0);
    f.holder = &s1;
    assert_int_equal(locks_set(&l, &f), -EAGAIN);
    tear_down();
}

static void test_waiters_in_order(void **state)
{
    struct waiter a, b, c;

    (void)state;
    set_up();
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_WRITE), 0);
    assert_int_equal(wait_for(&a, posix(&s2, 1, 0, 5, LOCK_WRITE)), -EINPROGRESS);
    assert_int_equal(wait_for(&b, posix(&s2, 2, 0, 1, LOCK_READ)), -EINPROGRESS);
    assert_int_equal(wait_for(&c, posix(&s2, 3, 8, 9, LOCK_READ)), -EINPROGRESS);
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_READ),
                     0); /* weaker than before: readers go on */
    assert_int_equal(a.n_granted + 10 * b.n_granted + 100 * c.n_granted, 110);
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_NONE), 0);
    assert_int_equal(a.n_granted, 0); /* b holds it */
    locks_drop(&l, 5, LOCK_POSIX, &s2, 2);
    assert_int_equal(a.n_granted, 1);
    tear_down();
}

static void test_a_cancelled_wait_gets_nothing(void **state)
{
    struct waiter a;

    (void)state;
    set_up();
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_WRITE), 0);
    assert_int_equal(wait_for(&a, posix(&s2, 1, 0, 5, LOCK_WRITE)), -EINPROGRESS);
    locks_cancel(&l, &a.wait);
    lock_holder_end(&l, &s1);
    assert_int_equal(a.n_granted, 0);
    assert_int_equal(set(&s1, 1, 0, 10, LOCK_WRITE), 0);
    tear_down();
}

static void test_deadlocks_are_refused(void **state)
{
    struct waiter a, b, c;

    (void)state;
    set_up();
    assert_int_equal(set(&s1, 1, 0, 1, LOCK_WRITE), 0);
    assert_int_equal(set(&s1, 2, 1, 2, LOCK_WRITE), 0);
    assert_int_equal(set(&s2, 1, 2, 3, LOCK_WRITE), 0);
    assert_int_equal(wait_for(&a, posix(&s1, 1, 1, 2, LOCK_READ)), -EINPROGRESS);
    assert_int_equal(wait_for(&b, posix(&s1, 2, 2, 3, LOCK_READ)), -EINPROGRESS);
    assert_int_equal(wait_for(&c, posix(&s2, 1, 0, 1, LOCK_READ)), -EDEADLK);
    assert_int_equal(wait_for(&c, posix(&s2, 2, 0, 1, LOCK_READ)),
                     -EINPROGRESS); /* not b's owner */
    locks_drop(&l, 5, LOCK_POSIX, &s2, 1);
    assert_int_equal(b.n_granted, 1);
    assert_int_equal(a.n_granted + c.n_granted, 0);
    locks_cancel(&l, &a.wait);
    locks_cancel(&l, &c.wait);
    tear_down();
}

/* ---- at random, against bytes ---- */

enum { BYTES = 24, OWNERS = 6, STEPS = 20000, WAITERS = 3 };

struct process {
    struct lock_holder *holder;
    uint64_t owner;
    enum lock_mode has[BYTES];
    struct waiter waiter;
    bool waits;
};

static struct process processes[OWNERS];
static struct env_virtual env;

static unsigned below(unsigned bound)
{
    return (unsigned)env_virtual_below(&env, bound);
}

static bool model_is_free(const struct process *me, const struct lock *lock)
{
    for (unsigned p = 0; p < OWNERS; p++) {
        for (uint64_t b = lock->from; &processes[p] != me && b < lock->to; b++) {
            if (processes[p].has[b] + lock->mode > LOCK_WRITE &&
                lock->mode != LOCK_NONE && processes[p].has[b] != LOCK_NONE)
                return false;
        }
    }
    return true;
}

static void model_put(struct process *me, const struct lock *lock)
{
    for (uint64_t b = lock->from; b < lock->to; b++)
        me->has[b] = lock->mode;
}

static void on_random_granted(struct lock_wait *wait, int rc)
{
    struct process *me =
        container_of(container_of(wait, struct waiter, wait), struct process, waiter);

    assert_int_equal(rc, 0);
    assert_true(me->waits);
    me->waits = false;
    assert_true(model_is_free(me, &wait->lock));
    model_put(me, &wait->lock);
}

static void random_step(void)
{
    struct process *me = &processes[below(OWNERS)];
    uint64_t from = below(BYTES);
    struct lock lock =
        posix(me->holder, me->owner, from, from + 1 + below((unsigned)(BYTES - from)),
              (enum lock_mode)below(3));
    bool is_free = model_is_free(me, &lock);
    struct lock in_way;
    int rc;

    if (me->waits) {
        if (below(4) == 0) {
            locks_cancel(&l, &me->waiter.wait);
            me->waits = false;
        }
        return;
    }
    assert_int_equal(locks_test(&l, &lock, &in_way), !is_free);
    if (is_free || below(2) == 0) {
        if (is_free)
            model_put(me, &lock); /* before waiters are granted theirs */
        assert_int_equal(locks_set(&l, &lock), is_free ? 0 : -EAGAIN);
        return;
    }
    me->waiter.wait = (struct lock_wait){ .lock = lock, .granted = on_random_granted };
    me->waits = true;
    rc = locks_wait(&l, &me->waiter.wait);
    me->waits = rc == -EINPROGRESS;
    assert_true(rc == -EINPROGRESS || rc == -EDEADLK);
}

static void test_at_random(void **state)
{
    unsigned n_waiting = 0;

    (void)state;
    set_up();
    env_virtual_init(&env, 1);
    for (unsigned p = 0; p < OWNERS; p++)
        processes[p] =
            (struct process){ .holder = p % 2 == 0 ? &s1 : &s2, .owner = p / 2 };
    for (unsigned step = 0; step < STEPS; step++) {
        random_step();
        /* Never all of them: a ring of waits would have been refused. */
        n_waiting = 0;
        for (unsigned p = 0; p < OWNERS; p++)
            n_waiting += processes[p].waits;
        assert_true(n_waiting < OWNERS);
    }
    for (unsigned p = 0; p < OWNERS; p++) {
        if (processes[p].waits)
            locks_cancel(&l, &processes[p].waiter.wait);
    }
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners_of_two_sessions_exclude_each_other),
        cmocka_unit_test(test_flock_and_fcntl_do_not_meet),
        cmocka_unit_test(test_waiters_in_order),
        cmocka_unit_test(test_a_cancelled_wait_gets_nothing),
        cmocka_unit_test(test_deadlocks_are_refused),
        cmocka_unit_test(test_at_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
