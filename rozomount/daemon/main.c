/*
 * main.c - rozomount: command line, daemon, signals.
 *
 * The process that was started ends with 0 only once the mount serves. Otherwise it
 * prints the error and ends with 1 (or 2: wrong usage).
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/system/fds.h"
#include "common/system/systemd.h"
#include "rozomount/daemon/fuse_access.h"
#include "rozomount/daemon/mount_run.h"
#include "rozomount/daemon/takeover.h"
#include "rozomount/hold/holder.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/remount.h"
#include "rozomount/options/xalloc.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };
enum { SIGNAL_STATUS = 128 }; /* plus the signal: exit status, as of shells */
enum { LINKS_MIN = 96 };      /* descriptors of loops, and of links to a small cluster */
/* bytes; set, because the C library would raise it */
enum { OWN_PAGES_FROM = 128 << 10 };

static void complain(const struct err *err)
{
    fprintf(stderr, "rozomount: %s\n", err->text);
}

/* ---- daemon ---- */

/*
 * Forks. The child continues with *report; the parent waits for its report and never
 * returns. If the parent is killed before that (^C), the child gets SIGTERM.
 */
static int daemon_fork(int *report, struct err *err)
{
    int fds[2];
    char text[ERR_TEXT_MAX];
    size_t len = 0;
    pid_t pid, parent = getpid();
    ssize_t n;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return err_set(err, -errno, "pipe: %s", strerror(errno));
    pid = fork();
    if (pid < 0)
        return err_set(err, -errno, "fork: %s", strerror(errno));
    if (pid == 0) {
        close(fds[0]);
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(EXIT_FAILED);
        *report = fds[1];
        return 0;
    }
    close(fds[1]);
    while (len < sizeof(text) - 1 &&
           ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0 ||
            (n < 0 && errno == EINTR)))
        len += n > 0 ? (size_t)n : 0;
    text[len] = '\0';
    if (len == 1 && text[0] == '+') /* the child serves */
        _exit(0);
    fprintf(stderr, "rozomount: %s\n",
            len == 0 ? "ended before it could serve (see its log)" : text);
    _exit(EXIT_FAILED);
}

static void daemon_report(int report, const char *text)
{
    size_t len = strlen(text);

    while (len != 0) {
        ssize_t n = write(report, text, len);

        if (n < 0 && errno != EINTR)
            break;
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
    close(report);
}

/* Closes standard input and output; log messages go to the journal, or nowhere. */
static void daemon_let_go(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int journal = sd_journal_stream_fd("rozomount", LOG_INFO, 0);

    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    if (journal >= 0)
        dup2(journal, STDERR_FILENO);
    else if (null >= 0)
        dup2(null, STDERR_FILENO);
    if (journal > STDERR_FILENO)
        close(journal);
    if (null > STDERR_FILENO)
        close(null);
    if (chdir("/") != 0)
        log_warn("chdir /: %s", strerror(errno));
}

/* ---- running ---- */

static void end_by_signal(int sig)
{
    _exit(SIGNAL_STATUS + sig);
}

/*
 * Lets signals end the first process of a container, too, before there is a mount: the
 * kernel drops those for which such a process has no handler.
 */
static void catch_signals_as_init(void)
{
    struct sigaction action = { .sa_handler = end_by_signal };

    if (getpid() != 1)
        return;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* Writes the process to signal: the holder, if there is one. */
static int write_pid_file(const char *path, pid_t pid, struct err *err)
{
    FILE *f;

    if (path == NULL)
        return 0;
    f = fopen(path, "we");
    if (f == NULL || fprintf(f, "%d\n", (int)pid) < 0 || fflush(f) != 0) {
        int rc = err_set(err, -errno, "pid file %s: %s", path, strerror(errno));

        if (f != NULL) {
            fclose(f);
            unlink(path);
        }
        return rc;
    }
    fclose(f);
    return 0;
}

static void on_stop_signal(void *arg)
{
    log_info("stopping: got a signal");
    sd_tell_stopping();
    mount_unmount(arg);
}

static void on_upgrade_signal(uv_signal_t *handle, int number)
{
    (void)number;
    mount_hand_over(handle->data);
}

/* Signals that main() watches on the loop of the mount. */
struct signals {
    struct stop_signals stop;
    uv_signal_t upgrade; /* SIGUSR2: another process is to take the mount over */
};

static void on_loops_end(void *arg)
{
    struct signals *signals = arg;

    stop_signals_close(&signals->stop);
    uv_close((uv_handle_t *)&signals->upgrade, NULL);
}

static int signals_start(struct signals *signals, struct mount *m)
{
    uv_loop_t *loop = &m->loops[0].uv;
    int rc = stop_signals_start(&signals->stop, loop, on_stop_signal, m);

    uv_signal_init(loop, &signals->upgrade);
    signals->upgrade.data = m;
    if (rc == 0)
        rc = uv_signal_start(&signals->upgrade, on_upgrade_signal, SIGUSR2);
    uv_unref((uv_handle_t *)&signals->upgrade);
    return rc;
}

/*
 * Opens the session, catches signals, mounts, in this order: as soon as the mount is
 * visible a signal may end it.
 */
static int start(struct mount *m, struct options *opt, struct signals *signals,
                 struct err *err)
{
    int rc = mount_open(m, opt, err);

    if (rc != 0)
        return rc;
    m->before_end = on_loops_end;
    m->before_end_arg = signals;
    rc = signals_start(signals, m);
    if (rc != 0)
        log_warn("cannot catch signals: %s", error_text(rc));
    return mount_start(m, err);
}

/* Reports that the mount serves. *report: pipe to the waiting parent; -1 afterwards. */
static void say_that_we_serve(const struct mount *m, int *report)
{
    const struct options *opt = m->opt;

    if (*report >= 0)
        daemon_let_go();
    log_info("%s %s %s, %u loop%s", opt->spec,
             mount_takes_over(m) ? "taken over on" : "mounted on", opt->mountpoint,
             m->n_loops, m->n_loops == 1 ? "" : "s");
    if (!mount_has_holder(m))
        sd_tell_ready("serving");
    holder_serves(&m->hold);
    if (*report >= 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        daemon_report(*report, "+");
    }
    *report = -1;
}

/* Lets go of nothing: exportd and the holder wait for the next process. */
static _Noreturn void fail_to_take_over(const struct err *err, int rc)
{
    log_error("cannot take the mount over: %s", err->text);
    _exit(rc == -ROZO_ENO_SESSION ? HOLDER_EXIT_LOST : EXIT_FAILED);
}

static int run(struct options *opt, const struct holder_fds *hold, int *report,
               struct err *err)
{
    struct mount *m = xzalloc(sizeof(*m));
    struct signals signals = { 0 };
    int rc, started;

    m->hold = *hold;
    rc = start(m, opt, &signals, err);

    if (rc != 0 && mount_takes_over(m))
        fail_to_take_over(err, rc);
    if (rc != 0) {
        free(m);
        return err_wrap(err, rc, "mount %s", opt->spec);
    }
    started = mount_takes_over(m)
                  ? 0
                  : write_pid_file(opt->pid_file,
                                   mount_has_holder(m) ? getppid() : getpid(), err);
    if (started == 0)
        say_that_we_serve(m, report);
    else
        mount_unmount(m);
    rc = mount_run(m);
    free(m);
    if (started != 0)
        return err_wrap(err, started, "mount %s", opt->spec);
    if (opt->pid_file != NULL)
        unlink(opt->pid_file);
    if (rc != 0)
        return err_set(err, rc, "%s: some data could not be stored (see the log)",
                       opt->mountpoint);
    log_info("%s: all data are written out; rozomount ends", opt->mountpoint);
    return 0;
}

/* Makes the holder of the mount, if one is wanted. */
static int hold_as_told(const struct options *opt, char *const *argv, int report,
                        struct holder_fds *hold, struct err *err)
{
    const struct holder_config config = {
        .argv = argv,
        .mountpoint_at = opt->mountpoint_at,
        .mountpoint = opt->mountpoint,
        .key_file = opt->key_file,
        .pid_file = opt->pid_file,
        .report = report,
        .let_go = report >= 0 ? daemon_let_go : NULL,
    };

    return opt->holder == HOLDER_WANTED ? holder_start(&config, hold, err) : 0;
}

/* Mounts, in a child process unless in the foreground. Returns the exit status. */
static int mount_as_told(struct options *opt, char *const *argv)
{
    struct holder_fds hold = { -1, -1, -1 };
    struct err err = { 0 };
    int report = -1;
    int rc = options_check_mountpoint(opt, &err);

    if (rc == 0)
        rc = fuse_access_check(&err);
    if (rc == 0)
        rc = fds_claim("rozomount", FDS_PROCESS + LINKS_MIN, NULL, 0, &err);
    if (rc == 0 && opt->run == RUN_BACKGROUND)
        rc = daemon_fork(&report, &err);
    if (rc == 0)
        rc = hold_as_told(opt, argv, report, &hold, &err);
    if (rc == 0)
        rc = run(opt, &hold, &report, &err);
    if (rc == 0)
        return 0;
    if (report >= 0)
        daemon_report(report, err.text);
    else
        complain(&err);
    return EXIT_FAILED;
}

/* Goes on with a mount whose process has died. Returns the exit status. */
static int take_over(struct options *opt)
{
    const struct holder_fds hold = { opt->takes_over[0], opt->takes_over[1],
                                     opt->takes_over[2] };
    struct err err = { 0 };
    int report = -1;

    for (unsigned i = 0; i < 3; i++)
        fcntl(opt->takes_over[i], F_SETFD, FD_CLOEXEC);
    if (opt->run == RUN_BACKGROUND)
        daemon_let_go();
    if (run(opt, &hold, &report, &err) == 0)
        return 0;
    log_error("%s", err.text);
    return EXIT_FAILED;
}

static int remount_as_told(struct options *opt)
{
    struct err err = { 0 };

    if (remount(opt, &err) == 0)
        return 0;
    complain(&err);
    return EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct options opt = { 0 };
    struct err err = { 0 };
    int status = 0;
    int rc = options_parse(&opt, argc, argv, &err);

    log_init("rozomount");
    log_set_level(opt.log_level);
    signal(SIGPIPE, SIG_IGN);
    catch_signals_as_init();
    /* freed blocks of this size go back at once */
    mallopt(M_MMAP_THRESHOLD, OWN_PAGES_FROM);
    if (rc != 0) {
        complain(&err);
        status = EXIT_USAGE;
    } else if (opt.print != PRINT_NOTHING) {
        printf("%s",
               opt.print == PRINT_HELP ? options_help : "rozomount " ROZO_VERSION "\n");
    } else {
        status = opt.takes_over[0] >= 0 ? take_over(&opt)
                 : opt.remount          ? remount_as_told(&opt)
                                        : mount_as_told(&opt, argv);
    }
    options_free(&opt);
    return status;
}
