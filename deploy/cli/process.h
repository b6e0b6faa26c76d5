/*
 * process.h - daemons of a private cluster: started, recorded in a pid file, found again, stopped.
 *
 * RUN/NAME.pid holds the pid; RUN/NAME.proc beside it what proves that this pid is still our
 * process: the boot it was started in, its start time, its program. Nobody else is ever signalled.
 */
#ifndef ROZO_DEPLOY_CLI_PROCESS_H
#define ROZO_DEPLOY_CLI_PROCESS_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "deploy/cli/patience.h"
#include "deploy/cli/progress.h"

enum process_state {
    PROCESS_DOWN,    /* no pid file: never started, or stopped by us */
    PROCESS_CRASHED, /* a pid file, but its process is gone */
    PROCESS_RUNNING,
    PROCESS_STOPPED, /* by SIGSTOP */
};
/** "down", "crashed", "running", "stopped". */
const char *process_state_name(enum process_state state);

/* What a pid file and /proc tell. Plain data. */
struct process {
    enum process_state state;
    pid_t pid;           /* also of a crashed one */
    uint64_t start_tick; /* field 22 of /proc/PID/stat */
};

/** Look a process up by its pid file. Damaged files count as PROCESS_DOWN. */
void process_look(const char *run_dir, const char *name, struct process *out);

/* How to start one. Borrowed strings. */
struct process_spec {
    const char *name;
    const char *run_dir;
    const char *log_path; /* appended to: its stdout and stderr */
    const char *work_dir; /* where core files would lie */
    char *const *argv;    /* argv[0] is the program's path */
};

/* One that was started and has not said yet that it serves. */
struct launch {
    char name[32];
    char log_path[PATH_MAX];
    char run_dir[PATH_MAX];
    pid_t pid;
    int pid_fd, notify_fd; /* -1: not there */
    off_t log_offset;      /* where its own words begin */
};

/**
 * Start it: a session of its own, no file descriptors of ours, its pid recorded before its
 * program runs. launch_wait() or launch_forget() must follow.
 */
int process_launch(const struct process_spec *spec, struct launch *out, struct err *err);
/**
 * Wait until it says READY=1 as sd_notify() does.
 * @param stop looked at ten times a second: once it is not 0, -EINTR.
 * @return 0; -ECHILD: it ended (its last words are in err); -ETIMEDOUT; the process is left
 * as it is, its pid file too.
 */
int launch_wait(struct launch *l, uint32_t timeout_ms, const volatile sig_atomic_t *stop,
                struct progress *progress, struct err *err);
void launch_forget(struct launch *l);

/**
 * End it: SIGTERM (and SIGCONT, should it be stopped), after timeout_ms SIGKILL; then the pid
 * file goes.
 * @return 0 it is gone or was not there; 1 it had to be killed; -errno it could not be.
 */
int process_end(const char *run_dir, const char *name, uint32_t timeout_ms,
                struct progress *progress, struct err *err);
/** Send it a signal. -ESRCH when it is not there. */
int process_signal(const char *run_dir, const char *name, int sig);
/** Wait until it ends by itself. 0, or -ETIMEDOUT. */
int process_wait_end(const char *run_dir, const char *name, struct patience *patience,
                     struct progress *progress);

#endif
