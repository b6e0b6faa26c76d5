/*
 * holder.c - the holder of a mount: waits for its child, starts the next one.
 *
 * In:     descriptors and reports from the child, by a socket; signals.
 * Out:    the child, started again; its exit status, when the mount is over.
 * Keeps:  no thread, no memory of the mount's data: there is nothing here that can fail
 *         with it. A child that dies again and again is not started for ever.
 * Yours:  the limits.
 */
#include "rozomount/hold/holder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/system/systemd.h"
#include "rozomount/hold/held.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"

enum {
    CLONES_MAX = 2 * 64, /* loops of two processes */
    /* a child that did not serve is tried again for so long */
    TRY_S = 60,
    TRY_PAUSE_MS = 200,
    /* children that served and crashed within CRASHES_S; a request that they had read may
     * be the cause, so the last ones do without those */
    CRASHES_MAX = 6,
    CRASHES_WITH_REQUESTS = 3,
    CRASHES_S = 60,
    ARGS_MORE = 8,
    MESSAGE_SERVES = N_HOLDER_GIFTS,
    LOOK_MS = 250, /* between looks whether the child can still run */
};

struct holder {
    const struct holder_config *config;
    char program[PATH_MAX], directory[PATH_MAX];
    int link, table, device, liveness; /* -1: none */
    int clones[CLONES_MAX];
    unsigned n_clones, n_old; /* all, and those of processes before the present one */
    int signals;
    pid_t child;
    bool serves, stops;
    time_t first_try_s;            /* first of the children that did not serve; 0: none */
    time_t crashes_s[CRASHES_MAX]; /* children that served, newest first */
};

static time_t now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void clones_close(struct holder *h, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(h->clones[i]);
    memmove(h->clones, h->clones + n, (h->n_clones - n) * sizeof(h->clones[0]));
    h->n_clones -= n;
    h->n_old = 0;
}

/* ---- messages ---- */

static void message_send(int link, unsigned what, int fd)
{
    char byte = (char)what;
    struct iovec iov = { &byte, 1 };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = { .head = { .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS,
                            .cmsg_len = CMSG_LEN(sizeof(int)) } };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (fd >= 0) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    while (sendmsg(link, &msg, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void holder_give(const struct holder_fds *fds, enum holder_gift what, int fd)
{
    if (fds->link >= 0 && fd >= 0)
        message_send(fds->link, what, fd);
}

void holder_serves(const struct holder_fds *fds)
{
    char byte;

    if (fds->link < 0)
        return;
    message_send(fds->link, MESSAGE_SERVES, -1);
    while (recv(fds->link, &byte, 1, 0) < 0 && errno == EINTR)
        ;
}

/* Returns the kind of the next message, and its descriptor; -1: there is none now. */
static int message_take(int link, int *fd)
{
    char byte;
    struct iovec iov = { &byte, 1 };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = &control,
                          .msg_controllen = sizeof(control) };
    const struct cmsghdr *head;

    *fd = -1;
    if (recvmsg(link, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1)
        return -1;
    head = CMSG_FIRSTHDR(&msg);
    if (head != NULL && head->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(head), sizeof(*fd));
    return (unsigned char)byte;
}

static void keep(int *to, int fd)
{
    close_one(to);
    *to = fd;
}

static void child_serves(struct holder *h)
{
    clones_close(h, h->n_old);
    h->first_try_s = 0;
    if (!h->serves && h->config->let_go != NULL)
        h->config->let_go();
    if (!h->serves)
        sd_tell_ready("serving");
    prctl(PR_SET_PDEATHSIG, 0);
    h->serves = true;
    message_send(h->link, MESSAGE_SERVES, -1);
}

/* Takes all messages that have come. */
static void messages_take(struct holder *h)
{
    int what, fd;

    while (h->link >= 0 && (what = message_take(h->link, &fd)) >= 0) {
        if (what == HOLDER_DEVICE && fd >= 0)
            keep(&h->device, fd);
        else if (what == HOLDER_LIVENESS && fd >= 0)
            keep(&h->liveness, fd);
        else if (what == HOLDER_CLONE && fd >= 0 && h->n_clones < CLONES_MAX)
            h->clones[h->n_clones++] = fd;
        else if (fd >= 0)
            close(fd);
        if (what == MESSAGE_SERVES)
            child_serves(h);
    }
}

/* ---- the next child ---- */

/* Returns an argument with a path that does not depend on the directory of the process;
 * owned. */
static char *path_argument(const struct holder *h, const char *before, const char *path)
{
    const char *directory = path[0] == '/' ? "" : h->directory;
    const char *slash = path[0] == '/' ? "" : "/";
    size_t len = strlen(before) + strlen(directory) + strlen(path) + 2;
    char *text = xzalloc(len);

    snprintf(text, len, "%s%s%s%s", before, directory, slash, path);
    return text;
}

/* In the child: becomes the program again, with the descriptors of the mount. */
static void child_run(struct holder *h)
{
    const struct holder_config *c = h->config;
    const int fds[] = { h->link, h->table, h->device };
    char takes[64];
    char **argv;
    sigset_t none;
    size_t n = 0;

    while (c->argv[n] != NULL)
        n++;
    argv = xzalloc((n + ARGS_MORE) * sizeof(*argv));
    memcpy(argv, c->argv, n * sizeof(*argv));
    argv[c->mountpoint_at] = (char *)(uintptr_t)c->mountpoint;
    argv[n++] = (char *)"-o";
    argv[n++] = path_argument(h, "key=", c->key_file);
    if (c->pid_file != NULL) {
        argv[n++] = (char *)"--pid-file";
        argv[n++] = path_argument(h, "", c->pid_file);
    }
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        fcntl(fds[i], F_SETFD, 0);
    snprintf(takes, sizeof(takes), "--take-over=%d,%d,%d", fds[0], fds[1], fds[2]);
    argv[n++] = takes;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(h->program, argv);
    log_error("cannot start %s: %s", h->program, strerror(errno));
    _exit(1);
}

static int link_make(int out[2])
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, out) == 0 ? 0 : -errno;
}

static bool child_start(struct holder *h)
{
    int fds[2];

    if (link_make(fds) != 0)
        return false;
    h->child = fork();
    if (h->child == 0) {
        h->link = fds[1];
        close(fds[0]);
        child_run(h);
    }
    close(fds[1]);
    keep(&h->link, fds[0]);
    return h->child > 0;
}

/* ---- the end of a child ---- */

/* Notes the crash of a child that served. Returns how many there were lately. */
static unsigned crashes_note(struct holder *h)
{
    time_t now = now_s();
    unsigned n = 0;

    memmove(h->crashes_s + 1, h->crashes_s,
            sizeof(h->crashes_s) - sizeof(h->crashes_s[0]));
    h->crashes_s[0] = now;
    while (n < CRASHES_MAX && h->crashes_s[n] != 0 && now - h->crashes_s[n] < CRASHES_S)
        n++;
    return n;
}

static void give_up(const struct holder *h, const char *why)
{
    log_error("%s: %s; programs that use the mount get errors until it is unmounted",
              h->config->mountpoint, why);
    exit(1);
}

/* Starts the next child after one that did not come to serve. */
static void try_again(struct holder *h)
{
    const struct timespec pause = { .tv_nsec = TRY_PAUSE_MS * 1000000L };

    if (h->first_try_s == 0)
        h->first_try_s = now_s();
    if (now_s() - h->first_try_s > TRY_S)
        give_up(h, "no new process could take the mount over");
    nanosleep(&pause, NULL);
}

static void child_is_dead(struct holder *h, int status)
{
    bool served = h->first_try_s == 0 && h->serves;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    unsigned n_crashes;
    bool is_crash;

    h->child = -1;
    if (code == HOLDER_EXIT_LOST)
        give_up(h, "no process can take the mount over");
    if ((code >= 0 && code != HOLDER_EXIT_REPLACE && served) || h->stops || !h->serves ||
        h->device < 0 || mountpoint_is_severed(h->device))
        exit(code >= 0 ? code : 1);
    if (code < 0)
        log_error("%s: the process that served it was killed by signal %d (%s): starting "
                  "a new one",
                  h->config->mountpoint, WTERMSIG(status), strsignal(WTERMSIG(status)));
    /* SIGKILL comes from outside */
    is_crash = served && code < 0 && WTERMSIG(status) != SIGKILL;
    n_crashes = is_crash ? crashes_note(h) : 0;
    if (n_crashes == CRASHES_MAX)
        give_up(h, "its process has crashed too often");
    if (n_crashes >= CRASHES_WITH_REQUESTS) {
        log_warn("%s: calls under way fail, as one of them may be the cause",
                 h->config->mountpoint);
        clones_close(h, h->n_clones);
    }
    h->n_old = h->n_clones;
    if (!served)
        try_again(h);
    else
        h->first_try_s = now_s();
    while (!child_start(h))
        try_again(h);
}

/*
 * Returns true if the first thread of the child has ended; *status is as of wait(2). That
 * waits for a thread that drops a page, and so for the READ of the page.
 */
static bool child_has_ended(const struct holder *h, int *status)
{
    char path[64], line[1024], *at;
    FILE *f;
    bool ended;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)h->child);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    at = fgets(line, sizeof(line), f) == NULL ? NULL : strrchr(line, ')');
    fclose(f);
    ended = at != NULL && at[1] == ' ' && at[2] == 'Z';
    at = ended ? strrchr(line, ' ') : NULL; /* the last field is its status */
    *status = at == NULL ? 0 : atoi(at);    /* 0: none, or not for us to know */
    return *status != 0;
}

/* Reaps children; one that ends is taken for dead as soon as it cannot run any more. */
static void children_look(struct holder *h)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == h->child) {
            messages_take(h);
            child_is_dead(h, status);
        }
    }
    if (h->child > 0 && child_has_ended(h, &status)) {
        messages_take(h);
        child_is_dead(h, status);
    }
}

/* ---- the holder ---- */

static void on_signal(struct holder *h)
{
    struct signalfd_siginfo info;

    if (read(h->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGUSR2) {
        kill(h->child, SIGUSR2);
    } else if (info.ssi_signo != SIGCHLD) {
        h->stops = true;
        kill(h->child, SIGTERM);
    }
}

static _Noreturn void holder_run(struct holder *h)
{
    struct pollfd fds[2];

    for (;;) {
        fds[0] = (struct pollfd){ .fd = h->signals, .events = POLLIN };
        fds[1] = (struct pollfd){ .fd = h->link, .events = POLLIN };
        if (poll(fds, 2, LOOK_MS) < 0)
            continue;
        if ((fds[1].revents & POLLIN) != 0)
            messages_take(h);
        else if (fds[1].revents != 0)
            close_one(&h->link); /* the child is dying */
        if (fds[0].revents != 0)
            on_signal(h);
        children_look(h);
    }
}

static int signals_catch(sigset_t *before)
{
    static const int caught[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR2 };
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, before);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int holder_init(struct holder *h, struct err *err)
{
    ssize_t n = readlink("/proc/self/exe", h->program, sizeof(h->program) - 1);

    h->device = h->liveness = h->link = -1;
    if (n <= 0 || getcwd(h->directory, sizeof(h->directory)) == NULL)
        return err_set(err, -errno, "find the program in /proc: %s", strerror(errno));
    h->table = held_memory(&held_room_of_mount);
    if (h->table < 0)
        return err_set(err, h->table, "memory for the table of open files: %s",
                       strerror(-h->table));
    return 0;
}

int holder_start(const struct holder_config *config, struct holder_fds *fds,
                 struct err *err)
{
    struct holder *h = xzalloc(sizeof(*h));
    int rc = holder_init(h, err), link[2];
    sigset_t before;

    if (rc == 0 && (rc = link_make(link)) != 0)
        err_set(err, rc, "socketpair: %s", strerror(-rc));
    if (rc != 0) {
        free(h);
        return rc;
    }
    h->config = config;
    h->signals = signals_catch(&before);
    h->child = fork();
    if (h->child != 0 && h->child != -1) {
        close(link[1]);
        if (config->report >= 0)
            close(config->report);
        h->link = link[0];
        prctl(PR_SET_NAME, "rozomount-hold");
        holder_run(h);
    }
    rc = h->child < 0 ? err_set(err, -errno, "fork: %s", strerror(errno)) : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(h->signals);
    close(link[0]);
    *fds = (struct holder_fds){ .link = link[1], .table = h->table, .device = -1 };
    free(h);
    return rc;
}
