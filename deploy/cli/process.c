/*
 * process.c - daemons of a private cluster: starts them, records, finds and stops them.
 *
 * Keeps:  a pid counts only together with the boot and the start time it was recorded
 *         with; signals go through a pidfd opened before that check. A process runs its
 *         program only after its pid file is on disk, so none can be lost.
 */
#include "deploy/cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"

enum {
    TICK_MS = 100,
    KILL_WAIT_MS = 5000,
    LAST_WORDS_MAX = 700, /* bytes of the log that are shown if a daemon does not start */
    BOOT_ID_MAX = 64,
};

const char *process_state_name(enum process_state state)
{
    static const char *const names[] = { "down", "crashed", "running", "stopped" };

    return names[state];
}

/* ---- identity of a process ---- */

/* Fields of /proc/PID/stat. */
struct proc_stat {
    char state;
    long n_threads;
    uint64_t start_tick;
};

/* Returns the text of field `n`, 3 or more; p is at the blank before field 3. NULL: there
 * are fewer. */
static const char *stat_field(const char *p, unsigned n)
{
    for (unsigned field = 3; field < n && p != NULL; field++)
        p = strchr(p + 1, ' ');
    return p == NULL ? NULL : p + 1;
}

static int proc_stat(pid_t pid, struct proc_stat *out)
{
    char path[64], text[1024];
    const char *p, *n_threads, *start_tick;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (file_read_text(path, text, sizeof(text), NULL) < 0)
        return -ESRCH;
    p = strrchr(text, ')'); /* the name before it may hold anything */
    if (p == NULL || p[1] != ' ' || p[2] == '\0')
        return -ESRCH;
    n_threads = stat_field(p + 1, 20);
    start_tick = stat_field(p + 1, 22);
    out->state = p[2];
    if (start_tick == NULL || sscanf(n_threads, "%ld", &out->n_threads) != 1 ||
        sscanf(start_tick, "%" SCNu64, &out->start_tick) != 1)
        return -ESRCH;
    return 0;
}

static void boot_id(char out[BOOT_ID_MAX])
{
    if (file_read_text("/proc/sys/kernel/random/boot_id", out, BOOT_ID_MAX, NULL) < 0)
        snprintf(out, BOOT_ID_MAX, "unknown");
    out[strcspn(out, "\n")] = '\0';
}

/* Paths of the two files of a process. */
struct pid_files {
    char pid[PATH_MAX];
    char proc[PATH_MAX];
};

static int pid_files_name(struct pid_files *files, const char *run_dir, const char *name,
                          struct err *err)
{
    int rc = path_join(files->pid, err, "%s/%s.pid", run_dir, name);

    return rc != 0 ? rc : path_join(files->proc, err, "%s/%s.proc", run_dir, name);
}

static int pid_files_write(const struct pid_files *files, pid_t pid, const char *program,
                           struct err *err)
{
    char text[PATH_MAX + 256], boot[BOOT_ID_MAX];
    struct proc_stat stat;
    int len, rc;

    rc = proc_stat(pid, &stat);
    if (rc != 0)
        return err_wrap(err, rc, "look at process %d", (int)pid);
    boot_id(boot);
    len = snprintf(text, sizeof(text), "pid %d\nstart %" PRIu64 "\nboot %s\nprogram %s\n",
                   (int)pid, stat.start_tick, boot, program);
    rc = file_replace(files->proc, 0644, text, (size_t)len, err);
    if (rc != 0)
        return rc;
    len = snprintf(text, sizeof(text), "%d\n", (int)pid);
    return file_replace(files->pid, 0644, text, (size_t)len, err);
}

static void pid_files_remove(const char *run_dir, const char *name)
{
    struct pid_files files;

    if (pid_files_name(&files, run_dir, name, NULL) != 0)
        return;
    unlink(files.pid);
    unlink(files.proc);
}

/* Returns whether the pid runs the recorded program. An upgrade may have replaced its
 * file. */
static bool program_is(pid_t pid, const char *program)
{
    static const char deleted[] = " (deleted)";
    char path[64], exe[PATH_MAX + sizeof(deleted)];
    ssize_t n;
    size_t len;

    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    n = readlink(path, exe, sizeof(exe) - 1);
    /* An exiting process has no program any more, but still files. */
    if (n < 0)
        return errno == ENOENT;
    exe[n] = '\0';
    len = strlen(exe);
    if (len > sizeof(deleted) - 1 &&
        strcmp(exe + len - (sizeof(deleted) - 1), deleted) == 0)
        exe[len - (sizeof(deleted) - 1)] = '\0';
    return strcmp(exe, program) == 0;
}

/* Returns whether all threads are dead. A zombie may be just the first thread: others may
 * still hold files and mounts. */
static bool is_dead(const struct proc_stat *stat)
{
    return stat->state == 'X' || (stat->state == 'Z' && stat->n_threads <= 1);
}

void process_look(const char *run_dir, const char *name, struct process *out)
{
    char text[PATH_MAX + 256], program[PATH_MAX] = "", boot[BOOT_ID_MAX],
                               boot_then[BOOT_ID_MAX] = "";
    struct pid_files files;
    struct proc_stat stat;
    int pid = 0;

    memset(out, 0, sizeof(*out));
    if (pid_files_name(&files, run_dir, name, NULL) != 0 ||
        file_read_text(files.proc, text, sizeof(text), NULL) < 0 ||
        sscanf(text, "pid %d\nstart %" SCNu64 "\nboot %63[^\n]\nprogram %4095[^\n]", &pid,
               &out->start_tick, boot_then, program) != 4 ||
        pid <= 1)
        return;
    out->pid = pid;
    out->state = PROCESS_CRASHED;
    boot_id(boot);
    if (strcmp(boot, boot_then) != 0 || proc_stat(pid, &stat) != 0 ||
        stat.start_tick != out->start_tick || is_dead(&stat) ||
        (stat.state != 'Z' && !program_is(pid, program)))
        return;
    out->state =
        stat.state == 'T' || stat.state == 't' ? PROCESS_STOPPED : PROCESS_RUNNING;
}

/* ---- starting ---- */

/* Opens a datagram socket with a name that cannot be guessed; READY=1 comes here, as at a
 * service manager. */
static int notify_open(char name[64], struct err *err)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    uint64_t nonce[2] = { 0 };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1, len;

    if (fd < 0)
        return err_wrap(err, -errno, "make a socket");
    if (getrandom(nonce, sizeof(nonce), 0) != sizeof(nonce))
        nonce[0] = (uint64_t)getpid();
    len = snprintf(name, 64, "@rozo-dev-%016" PRIx64 "%016" PRIx64, nonce[0], nonce[1]);
    memcpy(addr.sun_path + 1, name + 1,
           (size_t)len - 1); /* abstract: no file to leave behind */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) != 0 ||
        bind(fd, (const struct sockaddr *)&addr,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)len)) != 0) {
        int rc = err_wrap(err, -errno, "make a socket to hear from daemons");

        close(fd);
        return rc;
    }
    return fd;
}

/* Waits for the go, then becomes the daemon. Runs in the child; returns only on an error,
 * its errno. */
static int child_become(const struct process_spec *spec, int go_fd, int log_fd,
                        const char *notify_name)
{
    sigset_t none;
    char go;
    int null_fd;
    ssize_t n;

    if (setsid() < 0 || chdir(spec->work_dir) != 0) /* a later ^C is not for us */
        return errno;
    do
        n = read(go_fd, &go, 1);
    while (n < 0 && errno == EINTR);
    /* The parent died before it recorded our pid. */
    if (n != 1)
        _exit(1);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    null_fd = open("/dev/null", O_RDONLY);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        return errno;
    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0)
        return errno;
    setenv("NOTIFY_SOCKET", notify_name, 1);
    execv(spec->argv[0], spec->argv);
    return errno;
}

/* Lets the child run its program. Returns 0, or the -errno of its failure. */
static int child_go(int go_fd, int result_fd)
{
    int failed = 0;
    ssize_t n;

    if (write(go_fd, "g", 1) != 1)
        return -errno;
    do
        n = read(result_fd, &failed, sizeof(failed));
    while (n < 0 && errno == EINTR);
    /* Exec closed the pipe: success. */
    return n == 0 ? 0 : n == sizeof(failed) ? -failed : -EIO;
}

static void pipes_close(int fds[4])
{
    for (unsigned i = 0; i < 4; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

int process_launch(const struct process_spec *spec, struct launch *out, struct err *err)
{
    int pipes[4] = { -1, -1, -1, -1 }; /* go: read 0, write 1; result: read 2, write 3 */
    struct pid_files files;
    char notify_name[64];
    int log_fd = -1, rc;

    memset(out, 0, sizeof(*out));
    out->pid_fd = out->notify_fd = -1;
    snprintf(out->name, sizeof(out->name), "%s", spec->name);
    rc = pid_files_name(&files, spec->run_dir, spec->name, err);
    if (rc == 0)
        rc = path_join(out->log_path, err, "%s", spec->log_path);
    if (rc == 0)
        rc = path_join(out->run_dir, err, "%s", spec->run_dir);
    if (rc != 0)
        return rc;
    log_fd = open(spec->log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (log_fd < 0)
        return err_wrap(err, -errno, "open %s", spec->log_path);
    out->log_offset = lseek(log_fd, 0, SEEK_END);
    out->notify_fd = notify_open(notify_name, err);
    rc = out->notify_fd < 0 ? out->notify_fd : 0;
    if (rc == 0 && (pipe2(pipes, O_CLOEXEC) != 0 || pipe2(pipes + 2, O_CLOEXEC) != 0))
        rc = err_wrap(err, -errno, "make a pipe");
    if (rc != 0)
        goto out;
    out->pid = fork();
    if (out->pid == 0) {
        close(pipes[1]);
        int failed = child_become(spec, pipes[0], log_fd, notify_name);
        ssize_t n = write(pipes[3], &failed, sizeof(failed));

        _exit(n == sizeof(failed) ? 127 : 126);
    }
    if (out->pid < 0) {
        rc = err_wrap(err, -errno, "start %s", spec->argv[0]);
        goto out;
    }
    out->pid_fd = pidfd_open(out->pid, 0);
    close(pipes[0]);
    close(pipes[3]);
    pipes[0] = pipes[3] = -1;
    rc = out->pid_fd < 0 ? err_wrap(err, -errno, "watch %s", spec->name) : 0;
    if (rc == 0)
        rc = pid_files_write(&files, out->pid, spec->argv[0], err);
    if (rc == 0) {
        rc = child_go(pipes[1], pipes[2]);
        if (rc != 0)
            err_wrap(err, rc, "run %s", spec->argv[0]);
    }
    if (rc != 0) { /* program never ran: closing the pipe ends the child */
        pipes_close(pipes);
        waitpid(out->pid, NULL, 0);
        pid_files_remove(spec->run_dir, spec->name);
    }
out:
    pipes_close(pipes);
    close(log_fd);
    if (rc != 0)
        launch_forget(out);
    return rc;
}

void launch_forget(struct launch *l)
{
    if (l->pid_fd >= 0)
        close(l->pid_fd);
    if (l->notify_fd >= 0)
        close(l->notify_fd);
    l->pid_fd = l->notify_fd = -1;
}

/* Returns whether a READY=1 of this very process has come. */
static bool launch_is_ready(struct launch *l)
{
    char text[1024];
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int) * 16)];
        struct cmsghdr align;
    } control;

    for (;;) {
        struct iovec iov = { .iov_base = text, .iov_len = sizeof(text) - 1 };
        struct msghdr msg = { .msg_iov = &iov,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof(control.bytes) };
        ssize_t n = recvmsg(l->notify_fd, &msg, MSG_CMSG_CLOEXEC);
        pid_t sender = 0;

        if (n < 0)
            return false;
        text[n] = '\0';
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL;
             c = CMSG_NXTHDR(&msg, c)) {
            if (c->cmsg_level != SOL_SOCKET)
                continue;
            if (c->cmsg_type == SCM_CREDENTIALS)
                sender = ((const struct ucred *)CMSG_DATA(c))->pid;
            if (c->cmsg_type == SCM_RIGHTS) { /* unwanted descriptors, as of FDSTORE=1 */
                size_t n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                for (size_t i = 0; i < n_fds; i++)
                    close(((const int *)CMSG_DATA(c))[i]);
            }
        }
        if (sender == l->pid &&
            (strncmp(text, "READY=1", 7) == 0 || strstr(text, "\nREADY=1") != NULL))
            return true;
    }
}

/* Reads the end of what it wrote into its log since it was started. */
static void last_words(const struct launch *l, char *out, size_t size)
{
    struct stat st;
    off_t from = l->log_offset;
    ssize_t n = -1;
    int fd = open(l->log_path, O_RDONLY | O_CLOEXEC);
    char *line;

    out[0] = '\0';
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0) {
        if (st.st_size - from > (off_t)size - 1)
            from = st.st_size - ((off_t)size - 1);
        n = pread(fd, out, size - 1, from);
    }
    close(fd);
    out[n < 0 ? 0 : n] = '\0';
    line = strchr(out, '\n');
    if (from != l->log_offset && line != NULL) /* begins with a whole line */
        memmove(out, line + 1, strlen(line + 1) + 1);
    n = (ssize_t)strlen(out);
    while (n > 0 && out[n - 1] == '\n')
        out[--n] = '\0';
}

static int launch_tell_end(struct launch *l, struct err *err)
{
    char words[LAST_WORDS_MAX], how[64];
    int status = 0;

    if (waitpid(l->pid, &status, 0) != l->pid)
        snprintf(how, sizeof(how), "ended");
    else if (WIFSIGNALED(status))
        snprintf(how, sizeof(how), "died of signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof(how), "ended with status %d", WEXITSTATUS(status));
    last_words(l, words, sizeof(words));
    return err_set(err, -ECHILD, "%s %s before it served. %s %s:\n%s", l->name, how,
                   words[0] == '\0' ? "There is nothing in" : "The end of", l->log_path,
                   words);
}

int launch_wait(struct launch *l, uint32_t timeout_ms, const volatile sig_atomic_t *stop,
                struct progress *progress, struct err *err)
{
    uint64_t end_ms = clock_ms() + timeout_ms;
    int rc = -EAGAIN;

    while (rc == -EAGAIN) {
        struct pollfd fds[2] = { { .fd = l->notify_fd, .events = POLLIN },
                                 { .fd = l->pid_fd, .events = POLLIN } };

        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR)
            rc = err_wrap(err, -errno, "wait for %s", l->name);
        else if (launch_is_ready(l))
            rc = 0;
        else if (fds[1].revents != 0)
            rc = launch_tell_end(l, err);
        else if (*stop != 0)
            rc = err_set(err, -EINTR, "interrupted");
        else if (clock_ms() >= end_ms)
            rc = err_set(err, -ETIMEDOUT,
                         "%s runs but did not say in %u s that it serves; see %s",
                         l->name, timeout_ms / 1000, l->log_path);
        progress_tick(progress);
    }
    launch_forget(l);
    return rc;
}

/* ---- ending ---- */

/* Waits for the end of a pidfd's process. Returns whether it came. */
static bool pid_fd_wait(int fd, pid_t pid, struct deadline *deadline,
                        struct progress *progress)
{
    struct pollfd pfd = { .fd = fd, .events = POLLIN };

    do {
        if (poll(&pfd, 1, TICK_MS) > 0) {
            waitpid(pid, NULL, WNOHANG); /* if it is a child of ours */
            return true;
        }
        progress_tick(progress);
    } while (!deadline_is_over(deadline));
    return false;
}

/* Opens a pidfd that certainly is the recorded process. Returns -ESRCH if that is
 * gone. */
static int process_open(const char *run_dir, const char *name, struct process *p)
{
    int fd;

    process_look(run_dir, name, p);
    if (p->state != PROCESS_RUNNING && p->state != PROCESS_STOPPED)
        return -ESRCH;
    fd = pidfd_open(p->pid, 0);
    if (fd < 0)
        return -errno;
    /* Looked up again, since the pid may have been reused before the fd was opened. */
    process_look(run_dir, name, p);
    if (p->state != PROCESS_RUNNING && p->state != PROCESS_STOPPED) {
        close(fd);
        return -ESRCH;
    }
    return fd;
}

int process_end(const char *run_dir, const char *name, uint32_t timeout_ms,
                struct progress *progress, struct err *err)
{
    struct deadline deadline = { .end_ms = clock_ms() + timeout_ms };
    struct process p;
    int fd = process_open(run_dir, name, &p);
    int rc = 0;

    if (fd < 0 && fd != -ESRCH)
        return err_wrap(err, fd, "stop %s (pid %d)", name, (int)p.pid);
    if (fd >= 0) {
        if (pidfd_send_signal(fd, SIGTERM, NULL, 0) != 0 ||
            pidfd_send_signal(fd, SIGCONT, NULL, 0) != 0)
            rc = errno == ESRCH ? 0 : -errno;
        if (rc == 0 && !pid_fd_wait(fd, p.pid, &deadline, progress)) {
            rc = 1;
            pidfd_send_signal(fd, SIGKILL, NULL, 0);
            deadline.end_ms = clock_ms() + KILL_WAIT_MS;
            if (!pid_fd_wait(fd, p.pid, &deadline, progress))
                rc = -ETIMEDOUT;
        }
        close(fd);
    }
    if (rc < 0)
        return err_wrap(err, rc, "stop %s (pid %d)", name, (int)p.pid);
    pid_files_remove(run_dir, name);
    return rc;
}

int process_signal(const char *run_dir, const char *name, int sig)
{
    struct process p;
    int fd = process_open(run_dir, name, &p);
    int rc = 0;

    if (fd < 0)
        return fd;
    if (pidfd_send_signal(fd, sig, NULL, 0) != 0)
        rc = -errno;
    close(fd);
    return rc;
}

int process_wait_end(const char *run_dir, const char *name, struct deadline *deadline,
                     struct progress *progress)
{
    struct process p;
    int fd = process_open(run_dir, name, &p);
    bool ended;

    if (fd < 0)
        return 0;
    ended = pid_fd_wait(fd, p.pid, deadline, progress);
    close(fd);
    return ended ? 0 : -ETIMEDOUT;
}
