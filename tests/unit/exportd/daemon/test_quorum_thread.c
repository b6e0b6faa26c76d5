/*
 * test_quorum_thread.c - members on threads of their own.
 *
 * Goal:   mail between the loops arrives on the right one; a member hands over when the
 *         core beside it hangs, and when it is asked.
 * Method: three members with their threads, links and disks; their cores are loops that
 *         the test runs in turn, or does not run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "exportd/daemon/quorum_thread.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum { THREADS = 3, DEADLINE_MS = 60000, PORT = 4701 };

static const struct rpc_keys keys = { true, true, { 1 }, { 2 } };
static const struct quorum_section section;
static char dir[64];

/* One member, and the loop of its core. */
struct side {
    uv_loop_t loop;
    struct env_uv env;
    bool hangs; /* the loop does not run */
    struct kv_memory *below;
    struct kv_quorum_hooks hooks;
    struct kv_quorum *kv;
    struct member_port port;
    struct quorum_identity identity;
    struct quorum_thread *thread;
    struct err err;
    pthread_t core; /* the thread that runs the loop */
    int dir_fd;
    bool is_started, is_stopped, leads;
    unsigned n_led, n_deposed;
};
static struct side sides[THREADS];

/* Runs the loops of all cores that do not hang. */
static void turn(void)
{
    for (unsigned i = 0; i < THREADS; i++)
        if (!sides[i].hangs)
            uv_run(&sides[i].loop, UV_RUN_NOWAIT);
    usleep(500);
}

static uint64_t now_ms(void)
{
    return ns_to_ms(uv_hrtime());
}

#define TURN_UNTIL(condition)                                           \
    do {                                                                \
        for (uint64_t end_ms = now_ms() + DEADLINE_MS; !(condition);) { \
            assert_true(now_ms() < end_ms);                             \
            turn();                                                     \
        }                                                               \
    } while (0)

/* ---- a side ---- */

static void on_done(struct kv_done *done, int rc)
{
    (void)rc;
    done->fn = NULL;
}

static void done_wait(const struct kv_done *done)
{
    TURN_UNTIL(done->fn == NULL);
}

static void post_core(void *arg, struct env_mail *mail)
{
    env_mailbox_post(&((struct side *)arg)->env, mail);
}

static void post_member(void *arg, struct env_mail *mail)
{
    quorum_thread_post(((struct side *)arg)->thread, mail);
}

static void on_lead(void *arg, uint64_t term)
{
    struct side *s = arg;

    assert_true(term > 0 && !s->leads);
    assert_true(pthread_equal(pthread_self(), s->core));
    s->leads = true;
    s->n_led++;
    quorum_thread_core_serves(s->thread, true);
}

static void on_depose(void *arg)
{
    struct side *s = arg;

    assert_true(pthread_equal(pthread_self(), s->core));
    s->leads = false;
    s->n_deposed++;
    quorum_thread_core_serves(s->thread, false);
}

static void on_failed(void *arg, int rc, const char *text)
{
    (void)arg;
    fail_msg("%s: %s", text, error_text(rc));
}

static void on_started(void *arg, int rc)
{
    struct side *s = arg;

    assert_int_equal(rc, 0);
    assert_true(pthread_equal(pthread_self(), s->core));
    s->is_started = true;
}

static void on_stopped(void *arg)
{
    ((struct side *)arg)->is_stopped = true;
}

/* The addresses are this process's own: nobody else listens there. */
static void members_make(struct raft_config *members)
{
    unsigned pid = (unsigned)getpid();

    memset(members, 0, sizeof(*members));
    for (unsigned i = 0; i < THREADS; i++) {
        char address[64];

        snprintf(address, sizeof(address), "127.%u.%u.%u:%u", 1 + pid / 62500 % 250,
                 1 + pid / 250 % 250, 1 + pid % 250, PORT + i);
        assert_int_equal(raft_config_set(members, i + 1, RAFT_ROLE_VOTER, address), 0);
    }
}

static void kv_make(struct side *s, const struct raft_config *members)
{
    struct kv_quorum_config config = { .env = &s->env.env, .hooks = &s->hooks };
    struct kv_done done = { .fn = on_done };

    assert_int_equal(kv_memory_open(&s->env.env, &s->below), 0);
    kv_quorum_begin(kv_memory_kv(s->below), members, &done);
    while (done.fn != NULL)
        uv_run(&s->loop, UV_RUN_NOWAIT);
    s->port = (struct member_port){ .post_member = post_member,
                                    .post_core = post_core,
                                    .post_arg = s,
                                    .lead = on_lead,
                                    .depose = on_depose,
                                    .failed = on_failed,
                                    .arg = s };
    s->hooks = member_port_kv_hooks(&s->port);
    config.below = kv_memory_kv(s->below);
    assert_int_equal(kv_quorum_open(&config, &s->kv, &s->err), 0);
    s->port.kv = s->kv;
}

static int folder_open(unsigned i)
{
    char path[96];
    int fd;

    snprintf(path, sizeof(path), "%s/%u", dir, i);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%u/journal", dir, i);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%u", dir, i);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void side_open(unsigned i, const struct raft_config *members)
{
    struct side *s = &sides[i];
    const char *listen[1] = { members->members[i].address };
    const struct member_clients clients = { .n = 0 };
    struct quorum_thread_config config = { .keys = &keys,
                                           .listen = listen,
                                           .n_listen = 1,
                                           .dir_fd = s->dir_fd = folder_open(i),
                                           .is_lazy = true,
                                           .clients = &clients,
                                           .section = &section,
                                           .identity = &s->identity,
                                           .core = &s->env,
                                           .port = &s->port };

    s->core = pthread_self();
    s->identity.member = i + 1;
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(env_uv_init(&s->env, &s->loop), 0);
    kv_make(s, members);
    config.place = kv_quorum_place(s->kv);
    if (quorum_thread_open(&config, &s->thread, &s->err) != 0)
        fail_msg("%s", s->err.text);
    assert_int_equal(quorum_thread_start(s->thread, &s->err, on_started, s), 0);
}

static void side_close(struct side *s)
{
    quorum_thread_close(s->thread);
    kv_quorum_close(s->kv);
    kv_memory_close(s->below);
    close(s->dir_fd);
    env_uv_close(&s->env);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
}

static int setup(void **state)
{
    struct raft_config members;

    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/rozo-test-thread.XXXXXX");
    assert_non_null(mkdtemp(dir));
    members_make(&members);
    for (unsigned i = 0; i < THREADS; i++)
        side_open(i, &members);
    for (unsigned i = 0; i < THREADS; i++)
        TURN_UNTIL(sides[i].is_started);
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    for (unsigned i = 0; i < THREADS; i++)
        quorum_thread_stop(sides[i].thread, on_stopped, &sides[i]);
    for (unsigned i = 0; i < THREADS; i++)
        TURN_UNTIL(sides[i].is_stopped && kv_quorum_is_idle(sides[i].kv));
    for (unsigned i = 0; i < THREADS; i++)
        side_close(&sides[i]);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

/* ---- tests ---- */

/* Returns the side that leads, whose core does not hang, or NULL. */
static struct side *leader(void)
{
    for (unsigned i = 0; i < THREADS; i++)
        if (sides[i].leads && !sides[i].hangs)
            return &sides[i];
    return NULL;
}

static bool all_have(const char *value)
{
    for (unsigned i = 0; i < THREADS; i++) {
        void *val;
        size_t len;
        bool is_same;

        if (kv_get(kv_memory_kv(sides[i].below), "K", 1, &val, &len) != 0)
            return false;
        is_same = len == strlen(value) && memcmp(val, value, len) == 0;
        free(val);
        if (!is_same)
            return false;
    }
    return true;
}

/* Commits a value at the member that leads. On a busy machine another one may lead before
 * that is done. */
static void commit(const char *value)
{
    const struct kv_item item = { "K", 1, value, strlen(value) };
    struct kv_done done;

    do {
        TURN_UNTIL(leader() != NULL);
        done = (struct kv_done){ .fn = on_done };
        kv_commit(kv_quorum_kv(leader()->kv), &item, 1, &done);
        done_wait(&done);
        assert_true(done.rc == 0 || done.rc == -ROZO_ENOT_LEADER);
    } while (done.rc != 0);
}

static void a_commit_reaches_all_cores_by_mail(void **state)
{
    (void)state;
    commit("first");
    TURN_UNTIL(all_have("first")); /* stable, too */
}

static void on_asked(struct quorum_ask *ask)
{
    ask->done = NULL;
}

static void a_member_answers_questions_of_its_core(void **state)
{
    struct quorum_ask ask = { .done = on_asked };
    unsigned n_deposed;
    struct side *s;

    (void)state;
    quorum_thread_ask_status(sides[1].thread, &ask);
    TURN_UNTIL(ask.done == NULL);
    assert_int_equal(ask.status.id, sides[1].identity.member);
    assert_int_equal(ask.status.members.n, THREADS);
    do {
        TURN_UNTIL(leader() != NULL);
        s = leader();
        n_deposed = s->n_deposed;
        ask = (struct quorum_ask){ .done = on_asked };
        quorum_thread_ask_transfer(s->thread, &ask);
        TURN_UNTIL(ask.done == NULL);
    } while (ask.rc != 0);
    TURN_UNTIL(s->n_deposed > n_deposed);
    TURN_UNTIL(leader() != NULL);
}

/* The loop of the core that serves stands still; the member's own does not. */
static void a_member_hands_over_when_its_core_hangs(void **state)
{
    const struct kv_item item = { "K", 1, "late", 4 };
    struct kv_done late = { .fn = on_done };
    unsigned n_deposed;
    struct side *s;

    (void)state;
    TURN_UNTIL(leader() != NULL);
    s = leader();
    n_deposed = s->n_deposed;
    s->hangs = true;
    commit("other");       /* at another member */
    assert_true(s->leads); /* as far as it knows */
    kv_commit(kv_quorum_kv(s->kv), &item, 1, &late);
    s->hangs = false;
    TURN_UNTIL(s->n_deposed > n_deposed);
    done_wait(&late);
    assert_int_equal(late.rc, -ROZO_ENOT_LEADER);
    TURN_UNTIL(all_have("other"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_reaches_all_cores_by_mail),
        cmocka_unit_test(a_member_answers_questions_of_its_core),
        cmocka_unit_test(a_member_hands_over_when_its_core_hangs),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
