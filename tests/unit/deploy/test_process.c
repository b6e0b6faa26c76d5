/*
 * test_process.c - starting, finding and ending processes. The daemon is this program
 * itself; its first argument selects how it behaves.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/cli/ports.h"
#include "deploy/cli/process.h"
#include "tests/unit/unit.h"

static char self[PATH_MAX];
static char folder[] = "/tmp/rozo-unit-XXXXXX";
static const volatile sig_atomic_t never = 0;

/* ---- the daemon ---- */

static void tell_ready(void)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    const char *name = getenv("NOTIFY_SOCKET");
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    if (name == NULL || name[0] != '@')
        _exit(40);
    memcpy(addr.sun_path + 1, name + 1, strlen(name) - 1);
    if (sendto(fd, "STATUS=x\nREADY=1", 16, 0, (const struct sockaddr *)&addr,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) != 16)
        _exit(41);
    close(fd);
}

/* Counts the inherited file descriptors beyond 0, 1, 2. */
static int n_inherited(void)
{
    int n = 0;

    for (int fd = 3; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void *pause_for_ever(void *arg)
{
    while (pause() < 0)
        ;
    return arg;
}

static void end_first_thread(void)
{
    pthread_t other;

    if (pthread_create(&other, NULL, pause_for_ever, NULL) == 0)
        pthread_exit(NULL);
    _exit(42);
}

static int daemon_main(const char *how)
{
    int inherited = n_inherited();

    fprintf(stderr, "hello from %s, leader %d, inherited %d\n", how,
            getsid(0) == getpid(), inherited);
    if (strcmp(how, "--fails") == 0)
        return 3;
    if (strcmp(how, "--stubborn") == 0)
        signal(SIGTERM, SIG_IGN);
    if (strcmp(how, "--silent") != 0)
        tell_ready();
    if (strcmp(how, "--half-dead") == 0)
        end_first_thread();
    for (;;)
        pause();
}

/* ---- the tests ---- */

static int start(const char *how, struct launch *l, struct err *err)
{
    static char log_path[PATH_MAX];
    char *argv[] = { self, (char *)how, NULL };
    struct process_spec spec = { .name = "d",
                                 .run_dir = folder,
                                 .log_path = log_path,
                                 .work_dir = "/",
                                 .argv = argv };

    snprintf(log_path, sizeof(log_path), "%s/d.log", folder);
    return process_launch(&spec, l, err);
}

static int start_and_wait(const char *how, uint32_t timeout_ms, struct err *err)
{
    struct progress progress;
    struct launch l;
    int rc = start(how, &l, err);

    progress_start(&progress, 1);
    return rc != 0 ? rc : launch_wait(&l, timeout_ms, &never, &progress, err);
}

static int end(uint32_t timeout_ms)
{
    struct progress progress;
    struct err err = { 0 };

    progress_start(&progress, 1);
    return process_end(folder, "d", timeout_ms, &progress, &err);
}

static enum process_state look(void)
{
    struct process p;

    process_look(folder, "d", &p);
    return p.state;
}

static void wait_for_state(enum process_state state)
{
    for (unsigned i = 0; i < 500 && look() != state; i++)
        usleep(10000);
    assert_int_equal(look(), state);
}

static void a_daemon_starts_and_ends(void **state)
{
    char path[PATH_MAX], text[1024];
    struct err err = { 0 };

    (void)state;
    assert_int_equal(look(), PROCESS_DOWN);
    assert_int_equal(start_and_wait("--serves", 10000, &err), 0);
    assert_int_equal(look(), PROCESS_RUNNING);
    assert_int_equal(end(10000), 0);
    assert_int_equal(look(), PROCESS_DOWN);
    snprintf(path, sizeof(path), "%s/d.log", folder);
    assert_true(file_read_text(path, text, sizeof(text), NULL) > 0);
    assert_non_null(strstr(text, "hello from --serves, leader 1, inherited 0"));
    snprintf(path, sizeof(path), "%s/d.pid", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(end(1000), 0); /* ending a process that does not run succeeds */
}

static void one_that_fails_leaves_its_words(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(start_and_wait("--fails", 10000, &err), -ECHILD);
    assert_non_null(strstr(err.text, "status 3"));
    assert_non_null(strstr(err.text, "hello from --fails"));
    /* output of an earlier run is not shown */
    assert_null(strstr(err.text, "hello from --serves"));
    assert_int_equal(end(1000), 0);
}

static void one_that_never_serves_times_out(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(start_and_wait("--silent", 300, &err), -ETIMEDOUT);
    assert_int_equal(look(), PROCESS_RUNNING);
    assert_int_equal(end(10000), 0);
}

static void waiting_can_be_interrupted(void **state)
{
    volatile sig_atomic_t stop = 1;
    struct progress progress;
    struct err err = { 0 };
    struct launch l;

    (void)state;
    progress_start(&progress, 1);
    assert_int_equal(start("--silent", &l, &err), 0);
    assert_int_equal(launch_wait(&l, 60000, &stop, &progress, &err), -EINTR);
    assert_int_equal(end(10000), 0);
}

/* By which the child says that a signal has interrupted it. -1: it gets none. */
static int interrupted_fds[2] = { -1, -1 };

static void on_alarm(int sig)
{
    (void)sig;
    if (write(interrupted_fds[1], "i", 1) != 1)
        _exit(43);
}

static void in_the_child(void)
{
    struct itimerval soon = { .it_value = { .tv_usec = 100000 } };
    struct sigaction action = { .sa_handler = on_alarm };

    if (interrupted_fds[1] < 0)
        return;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
}

/* Keeps the parent in fork() until the signal has interrupted the child, which waits for
 * the parent's go by then. */
static void in_the_parent(void)
{
    char text;

    if (interrupted_fds[0] >= 0 && read(interrupted_fds[0], &text, 1) != 1)
        abort();
}

/* A ^C reaches the child as well. It must not be taken for the end of the parent. */
static void a_signal_to_the_child_changes_nothing(void **state)
{
    struct err err = { 0 };

    (void)state;
    signal(SIGPIPE, SIG_IGN); /* as rozo does */
    assert_int_equal(pthread_atfork(NULL, in_the_parent, in_the_child), 0);
    assert_int_equal(pipe2(interrupted_fds, O_CLOEXEC), 0);
    assert_int_equal(start_and_wait("--serves", 10000, &err), 0);
    for (unsigned i = 0; i < 2; i++) {
        close(interrupted_fds[i]);
        interrupted_fds[i] = -1;
    }
    assert_int_equal(end(10000), 0);
}

static void a_program_that_is_not_there(void **state)
{
    char *argv[] = { "/nowhere/daemon", NULL };
    struct process_spec spec = { .name = "d",
                                 .run_dir = folder,
                                 .log_path = "/dev/null",
                                 .work_dir = "/",
                                 .argv = argv };
    struct err err = { 0 };
    struct launch l;

    (void)state;
    assert_int_equal(process_launch(&spec, &l, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/daemon"));
    assert_int_equal(look(), PROCESS_DOWN);
}

static void a_stubborn_one_is_killed(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(start_and_wait("--stubborn", 10000, &err), 0);
    assert_int_equal(end(200), 1);
    assert_int_equal(look(), PROCESS_DOWN);
}

static void a_stopped_one_ends_too(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(start_and_wait("--serves", 10000, &err), 0);
    assert_int_equal(process_signal(folder, "d", SIGSTOP), 0);
    wait_for_state(PROCESS_STOPPED);
    assert_int_equal(end(10000), 0);
}

static void a_crash_is_seen(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(start_and_wait("--serves", 10000, &err), 0);
    assert_int_equal(process_signal(folder, "d", SIGKILL), 0);
    wait_for_state(PROCESS_CRASHED);
    assert_int_equal(process_signal(folder, "d", SIGTERM), -ESRCH);
    assert_int_equal(end(1000), 0);
    assert_int_equal(look(), PROCESS_DOWN);
}

/* Goal: a process that ends during the search is reported as gone only when nothing of it
 * is left. Its first thread ends first, and stays a zombie until the last one has ended.
 * Method: a process that stays so. */
static void one_whose_first_thread_has_ended_is_there(void **state)
{
    char path[64], text[1024] = "";
    struct err err = { 0 };
    struct process p;

    (void)state;
    assert_int_equal(start_and_wait("--half-dead", 10000, &err), 0);
    process_look(folder, "d", &p);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)p.pid);
    for (unsigned i = 0; i < 500 && strstr(text, ") Z ") == NULL; i++) {
        usleep(10000);
        assert_true(file_read_text(path, text, sizeof(text), NULL) > 0);
    }
    assert_non_null(strstr(text, ") Z "));
    assert_int_equal(look(), PROCESS_RUNNING);
    assert_int_equal(end(10000), 0);
    assert_int_equal(kill(p.pid, 0), -1);
}

/* Goal: another process that got the pid of a dead daemon is never signalled. Method: the
 * files of a live process (this one), with one value wrong at a time. */
static void a_recycled_pid_is_not_ours(void **state)
{
    char boot[64], path[PATH_MAX], text[PATH_MAX + 512];
    const char *forms[] = { "pid %1$d\nstart 1\nboot %2$s\nprogram %3$s\n",
                            "pid %1$d\nstart 1\nboot other\nprogram %3$s\n",
                            "pid 1\nstart 1\nboot %2$s\nprogram %3$s\n",
                            "pid -1\nstart 1\nboot %2$s\nprogram %3$s\n",
                            "pid",
                            "" };

    (void)state;
    assert_true(
        file_read_text("/proc/sys/kernel/random/boot_id", boot, sizeof(boot), NULL) > 0);
    boot[strcspn(boot, "\n")] = '\0';
    snprintf(path, sizeof(path), "%s/d.proc", folder);
    for (unsigned i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof(text), forms[i], (int)getpid(), boot, self);
#pragma GCC diagnostic pop
        assert_int_equal(file_replace(path, 0600, text, strlen(text), NULL), 0);
        assert_int_not_equal(look(), PROCESS_RUNNING);
        assert_int_equal(process_signal(folder, "d", SIGKILL), -ESRCH);
    }
    assert_int_equal(end(100), 0);
}

enum { PORTS_ALL = PORTS_LAST - PORTS_FIRST + 1, PORTS_N = 6000 };

/* Picks n ports for an owner. Asserts that they are not in `used`, and adds them. */
static void pick(const char *owner, bool used[PORTS_ALL], unsigned n)
{
    static uint16_t ports[PORTS_ALL];

    assert_int_equal(ports_pick(owner, ports, n, NULL), 0);
    for (unsigned i = 0; i < n; i++) {
        assert_in_range(ports[i], PORTS_FIRST, PORTS_LAST);
        assert_false(used[ports[i] - PORTS_FIRST]);
        used[ports[i] - PORTS_FIRST] = true;
    }
}

/* Ports of a cluster stay its own while no daemon listens on them, until its folder is
 * removed. */
static void ports_are_free_and_reserved(void **state)
{
    static bool used[PORTS_ALL], used_later[PORTS_ALL];
    char a[PATH_MAX], b[PATH_MAX], kept[PATH_MAX];
    struct err err = { 0 };
    uint16_t more[PORTS_N];

    (void)state;
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(a, sizeof(a), "%s/a", folder);
    snprintf(b, sizeof(b), "%s/b", folder);
    snprintf(kept, sizeof(kept), "%s/rozo-dev-ports-%u", folder, (unsigned)getuid());
    assert_int_equal(mkdir(a, 0700) | mkdir(b, 0700), 0);
    pick(a, used, PORTS_N);
    pick(b, used, PORTS_N);
    assert_int_equal(ports_pick("/nowhere", more, PORTS_N, &err), -EADDRNOTAVAIL);
    assert_int_equal(rmdir(a), 0);
    /* The reservations of a folder that never came hold for a minute. */
    assert_int_equal(ports_pick("/nowhere", more, PORTS_N, &err), -EADDRNOTAVAIL);
    assert_int_equal(rmdir(b), 0);
    for (unsigned i = 0; i < PORTS_ALL; i++) {
        const struct timespec old[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
        char name[PATH_MAX + 8];

        snprintf(name, sizeof(name), "%s/%u", kept, PORTS_FIRST + i);
        utimensat(AT_FDCWD, name, old, AT_SYMLINK_NOFOLLOW);
    }
    pick("/nowhere", used_later, PORTS_N);
    for (unsigned i = 0; i < PORTS_ALL; i++) {
        char name[PATH_MAX + 8];

        snprintf(name, sizeof(name), "%s/%u", kept, PORTS_FIRST + i);
        unlink(name);
    }
    assert_int_equal(rmdir(kept), 0);
    unsetenv("XDG_RUNTIME_DIR");
}

static int folder_set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int folder_tear_down(void **state)
{
    static const char *const names[] = { "d.log", "d.pid", "d.proc" };
    char path[PATH_MAX];

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_daemon_starts_and_ends),
        cmocka_unit_test(one_that_fails_leaves_its_words),
        cmocka_unit_test(one_that_never_serves_times_out),
        cmocka_unit_test(waiting_can_be_interrupted),
        cmocka_unit_test(a_signal_to_the_child_changes_nothing),
        cmocka_unit_test(a_program_that_is_not_there),
        cmocka_unit_test(a_stubborn_one_is_killed),
        cmocka_unit_test(a_stopped_one_ends_too),
        cmocka_unit_test(a_crash_is_seen),
        cmocka_unit_test(one_whose_first_thread_has_ended_is_there),
        cmocka_unit_test(a_recycled_pid_is_not_ours),
        cmocka_unit_test(ports_are_free_and_reserved),
    };
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0)
        return 1;
    self[n] = '\0';
    if (argc == 2 && strncmp(argv[1], "--", 2) == 0)
        return daemon_main(argv[1]);
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
