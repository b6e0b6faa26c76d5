/*
 * test_env.c - timers, tasks and messages between threads, of env_uv and env_virtual.
 *
 * Method: the promises of env.h are tested on both envs; the heap of timers is compared
 * with a slow twin.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/env/env_uv.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

static atomic_uint n_writes;

/* Takes the place of the C library's, for libuv as well: counts calls. */
ssize_t write(int fd, const void *buf, size_t n)
{
    atomic_fetch_add(&n_writes, 1);
    return syscall(SYS_write, fd, buf, n);
}

/* Letters of tasks and timers, in the order in which they ran. */
static char trail[64];
static struct env *trail_env;

static void trail_add(char c)
{
    size_t len = strlen(trail);

    assert_true(len + 1 < sizeof(trail));
    trail[len] = c;
    trail[len + 1] = '\0';
}

struct letter {
    struct env_timer timer;
    struct env_task task, other;
    char c;
    int again; /* times to start again, with 0 ms */
};

static void on_letter_timer(struct env_timer *timer)
{
    struct letter *l = (struct letter *)timer;

    trail_add(l->c);
    if (l->again-- > 0)
        env_timer_start(trail_env, timer, 0);
}

static void on_letter_task(struct env_task *task)
{
    struct letter *l = container_of(task, struct letter, task);

    trail_add(l->c);
    if (l->again-- > 0)
        env_post(trail_env, task);
}

static void letters_init(struct letter *l, unsigned n)
{
    memset(l, 0, n * sizeof(*l));
    trail[0] = '\0';
    for (unsigned i = 0; i < n; i++) {
        l[i].c = (char)('a' + i);
        env_timer_init(&l[i].timer, on_letter_timer);
        l[i].task.fn = on_letter_task;
    }
}

/* Checks promises that hold on every env; run() lets a few milliseconds pass. */
static void check_promises(struct env *env, void (*run)(void *), void *arg)
{
    struct letter l[4];
    uint64_t now = env_now_ns(env);

    trail_env = env;
    letters_init(l, 4);
    env_timer_start(env, &l[0].timer, 5);
    env_timer_start(env, &l[1].timer, 1);
    env_timer_start(env, &l[2].timer, 1); /* same deadline, but started later */
    env_post(env, &l[3].task);
    env_post(env, &l[3].task);      /* posted twice, runs once */
    assert_string_equal(trail, ""); /* nothing runs inside the call that starts it */
    run(arg);
    assert_string_equal(trail, "dbca");
    assert_true(env_now_ns(env) >= now + 5000000);

    letters_init(l, 4); /* moved, stopped */
    env_timer_start(env, &l[0].timer, 1);
    env_timer_start(env, &l[0].timer, 4);
    env_timer_start(env, &l[1].timer, 2);
    env_timer_start(env, &l[2].timer, 1);
    assert_true(env_timer_is_running(&l[2].timer));
    env_timer_stop(env, &l[2].timer);
    env_timer_stop(env, &l[2].timer);
    assert_false(env_timer_is_running(&l[2].timer));
    run(arg);
    assert_string_equal(trail, "ba");

    letters_init(l, 4); /* started and posted from inside a callback */
    l[0].again = 2;
    l[1].again = 2;
    env_timer_start(env, &l[0].timer, 0);
    env_post(env, &l[1].task);
    run(arg);
    assert_int_equal(strlen(trail), 6);
    assert_false(env_timer_is_running(&l[0].timer));
}

static void run_virtual(void *arg)
{
    env_virtual_advance_ms(arg, 10);
}

static void virtual_keeps_the_promises(void **state)
{
    struct env_virtual v;

    (void)state;
    env_virtual_init(&v, 7);
    check_promises(&v.env, run_virtual, &v);
    env_virtual_close(&v);
}

static void virtual_time_is_exact(void **state)
{
    struct env_virtual v;
    struct letter l[2];
    uint64_t now;

    (void)state;
    env_virtual_init(&v, 7);
    trail_env = &v.env;
    letters_init(l, 2);
    now = env_now_ns(&v.env);
    env_timer_start(&v.env, &l[0].timer, 1000);
    env_timer_start(&v.env, &l[1].timer, 3000);
    env_virtual_advance_ms(&v, 999);
    assert_string_equal(trail, "");
    env_virtual_advance_ms(&v, 1);
    assert_string_equal(trail, "a");
    assert_false(env_virtual_run_until_idle(&v, 1999));
    assert_true(env_virtual_run_next_timer(&v));
    assert_string_equal(trail, "ab");
    assert_int_equal(env_now_ns(&v.env) - now, 3000000000);
    assert_false(env_virtual_run_next_timer(&v));
    assert_true(env_virtual_run_until_idle(&v, 0));
    env_virtual_close(&v);
}

static void same_seed_same_chance(void **state)
{
    struct env_virtual a, b, c;
    uint8_t x[13], y[13], z[13];

    (void)state;
    env_virtual_init(&a, 1);
    env_virtual_init(&b, 1);
    env_virtual_init(&c, 2);
    env_random(&a.env, x, sizeof(x));
    env_random(&b.env, y, sizeof(y));
    env_random(&c.env, z, sizeof(z));
    assert_memory_equal(x, y, sizeof(x));
    assert_memory_not_equal(x, z, sizeof(x));
    for (unsigned i = 0; i < 1000; i++)
        assert_true(env_virtual_below(&a, 10) < 10);
}

/* Starts, moves and stops timers at random: the heap must give the same order as a search
 * of all timers. */
static void heap_matches_slow_twin(void **state)
{
    enum { N = 200 };
    struct env_timer timers[N];
    struct env_virtual v;
    struct timers heap = { 0 };
    uint64_t now = 0;

    (void)state;
    env_virtual_init(&v, 42);
    memset(timers, 0, sizeof(timers));
    for (unsigned i = 0; i < N; i++)
        env_timer_init(&timers[i], NULL);
    for (unsigned round = 0; round < 20000; round++) {
        struct env_timer *t = &timers[env_virtual_below(&v, N)];
        struct env_timer *first = NULL, *due;

        if (env_virtual_below(&v, 3) != 0)
            timers_start(&heap, t, now + env_virtual_below(&v, 50));
        else
            timers_stop(&heap, t);
        if (env_virtual_below(&v, 4) == 0)
            now++;
        for (unsigned i = 0; i < N; i++) {
            if (env_timer_is_running(&timers[i]) &&
                (first == NULL || timers[i].expires_ns < first->expires_ns ||
                 (timers[i].expires_ns == first->expires_ns &&
                  timers[i].order < first->order)))
                first = &timers[i];
        }
        assert_int_equal(timers_next_ns(&heap),
                         first == NULL ? UINT64_MAX : first->expires_ns);
        due = timers_pop_due(&heap, now, UINT64_MAX);
        assert_ptr_equal(due, first != NULL && first->expires_ns <= now ? first : NULL);
    }
    for (unsigned i = 0; i < N; i++)
        timers_stop(&heap, &timers[i]);
    timers_free(&heap);
}

struct uv_fixture {
    uv_loop_t loop;
    struct env_uv e;
};

static void uv_setup(struct uv_fixture *f)
{
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(env_uv_init(&f->e, &f->loop), 0);
}

static void uv_teardown(struct uv_fixture *f)
{
    env_uv_close(&f->e);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static void set_flag(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

static void run_uv(void *arg)
{
    struct uv_fixture *f = arg;
    bool over = false;
    uv_timer_t t = { .data = &over };

    uv_timer_init(&f->loop, &t);
    uv_timer_start(&t, set_flag, 10, 0);
    while (!over)
        uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&t, NULL);
    uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void uv_keeps_the_promises(void **state)
{
    struct uv_fixture f;
    uint8_t x[300] = { 0 }, y[300] = { 0 };

    (void)state;
    uv_setup(&f);
    check_promises(&f.e.env, run_uv, &f);
    env_random(&f.e.env, x, sizeof(x));
    env_random(&f.e.env, y, sizeof(y));
    assert_memory_not_equal(x, y, sizeof(x));
    assert_true(env_wall_ns(&f.e.env) > 1767225600ll * 1000000000);
    uv_teardown(&f);
}

/* Tasks that others post, also from inside a task, run before those posted to run last;
 * each runs once. */
static void uv_runs_last_what_is_to_be_last(void **state)
{
    struct uv_fixture f;
    struct letter l[4];

    (void)state;
    uv_setup(&f);
    trail_env = &f.e.env;
    letters_init(l, 4);
    l[2].again = 2;
    env_uv_post_last(&f.e, &l[0].task);
    env_uv_post_last(&f.e, &l[1].task);
    env_uv_post_last(&f.e, &l[0].task);
    env_post(&f.e.env, &l[2].task);
    env_post(&f.e.env, &l[3].task);
    run_uv(&f);
    assert_string_equal(trail, "cdccab");
    /* a task that runs last posts a normal one, which runs before the next last one */
    l[1].again = 1;
    trail[0] = '\0';
    env_uv_post_last(&f.e, &l[1].task);
    env_uv_post_last(&f.e, &l[0].task);
    run_uv(&f);
    assert_string_equal(trail, "bba");
    uv_teardown(&f);
}

/* Four threads post numbered letters; all arrive, and those of one thread in order. */
enum { POSTERS = 4, LETTERS = 5000 };
struct post {
    struct env_mail mail;
    unsigned thread, number;
    struct poster *owner;
};
struct poster {
    struct env_uv *e;
    pthread_t thread;
    struct post posts[LETTERS];
    unsigned next; /* next number expected; used by the receiving thread only */
    unsigned *n_all;
};

static void on_post(struct env_mail *mail)
{
    struct post *p = (struct post *)mail;

    assert_int_equal(p->number, p->owner->next++);
    ++*p->owner->n_all;
}

static void *poster_main(void *arg)
{
    struct poster *p = arg;

    for (unsigned i = 0; i < LETTERS; i++) {
        p->posts[i] = (struct post){ .mail.fn = on_post, .number = i, .owner = p };
        env_mailbox_post(p->e, &p->posts[i].mail);
    }
    return NULL;
}

static void mail_arrives_once_and_in_order(void **state)
{
    struct uv_fixture f;
    struct poster *posters = calloc(POSTERS, sizeof(*posters));
    unsigned n = 0;

    (void)state;
    uv_setup(&f);
    for (unsigned i = 0; i < POSTERS; i++) {
        posters[i].e = &f.e;
        posters[i].n_all = &n;
        assert_int_equal(
            pthread_create(&posters[i].thread, NULL, poster_main, &posters[i]), 0);
    }
    while (n < POSTERS * LETTERS)
        uv_run(&f.loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < POSTERS; i++)
        pthread_join(posters[i].thread, NULL);
    uv_teardown(&f);
    free(posters);
}

/* Messages that lie in the mailbox together cost one wake-up. */
static void many_mails_are_one_write(void **state)
{
    struct uv_fixture f;
    struct poster p = { .n_all = &(unsigned){ 0 } };

    (void)state;
    uv_setup(&f);
    p.e = &f.e;
    for (unsigned i = 1; i <= 3; i++) {
        atomic_store(&n_writes, 0);
        p.next = 0;
        poster_main(&p);
        assert_int_equal(atomic_load(&n_writes), 1);
        while (*p.n_all < i * LETTERS)
            uv_run(&f.loop, UV_RUN_ONCE);
    }
    uv_teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(virtual_keeps_the_promises),
        cmocka_unit_test(virtual_time_is_exact),
        cmocka_unit_test(same_seed_same_chance),
        cmocka_unit_test(heap_matches_slow_twin),
        cmocka_unit_test(uv_keeps_the_promises),
        cmocka_unit_test(uv_runs_last_what_is_to_be_last),
        cmocka_unit_test(mail_arrives_once_and_in_order),
        cmocka_unit_test(many_mails_are_one_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
