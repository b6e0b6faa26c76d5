/*
 * process.h - daemons of a private cluster: starts them, records pid files, finds and
 * stops them.
 *
 * RUN/NAME.pid holds the pid. RUN/NAME.proc beside it proves that this pid is still our
 * process: it has the boot it was started in, its start time, its program. No other
 * process is ever signalled.
 */
#ifndef ROZO_DEPLOY_CLI_PROCESS_H
#define ROZO_DEPLOY_CLI_PROCESS_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "deploy/cli/deadline.h"
#include "deploy/cli/progress.h"

enum process_state {
    PROCESS_DOWN,    /* no pid file: never started, or stopped by us */
    PROCESS_CRASHED, /* a pid file without its process */
    PROCESS_RUNNING,
    PROCESS_STOPPED, /* stopped by SIGSTOP */
};
/** Returns "down", "crashed", "running" or "stopped". */
const char *process_state_name(enum process_state state);

/* A process, by its pid file and /proc. Plain data. */
struct process {
    enum process_state state;
    pid_t pid;           /* set for a crashed one, too */
    uint64_t start_tick; /* field 22 of /proc/PID/stat */
};

/** Looks up a process by its pid file. Damaged files count as PROCESS_DOWN. */
void process_look(const char *run_dir, const char *name, struct process *out);

/* How to start a process. Borrowed strings. */
struct process_spec {
    const char *name;
    const char *run_dir;
    const char *log_path; /* gets stdout and stderr, appended */
    const char *work_dir; /* core files would go there */
    char *const *argv;    /* argv[0] is the program's path */
};

/* A process that was started and has not reported that it serves. */
struct launch {
    char name[32];
    char log_path[PATH_MAX];
    char run_dir[PATH_MAX];
    pid_t pid;
    int pid_fd, notify_fd; /* -1: not open */
    off_t log_offset;      /* where its own output begins */
};

/**
 * Starts a process in a session of its own, without our file descriptors; its pid is
 * recorded before its program runs. launch_wait() or launch_forget() must follow.
 */
int process_launch(const struct process_spec *spec, struct launch *out, struct err *err);
/**
 * Waits until the process reports READY=1, as with sd_notify().
 * @param stop checked ten times a second: once it is not 0, returns -EINTR.
 * @return 0; -ECHILD: it ended (the end of its log is in err); -ETIMEDOUT: the process is
 * left as it is, its pid file too.
 */
int launch_wait(struct launch *l, uint32_t timeout_ms, const volatile sig_atomic_t *stop,
                struct progress *progress, struct err *err);
void launch_forget(struct launch *l);

/**
 * Ends a process: SIGTERM (and SIGCONT, in case it is stopped), after timeout_ms SIGKILL;
 * then removes the pid file.
 * @return 0 if it ended or was not there; 1 if it had to be killed; -errno if it could
 * not be ended.
 */
int process_end(const char *run_dir, const char *name, uint32_t timeout_ms,
                struct progress *progress, struct err *err);
/** Sends a signal. Returns 0, or -ESRCH if the process is not there. */
int process_signal(const char *run_dir, const char *name, int sig);
/** Waits until it ends by itself. Returns 0 or -ETIMEDOUT. */
int process_wait_end(const char *run_dir, const char *name, struct deadline *deadline,
                     struct progress *progress);

#endif
