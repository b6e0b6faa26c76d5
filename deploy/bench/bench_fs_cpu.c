/*
 * bench_fs_cpu.c - CPU time and memory of the processes of a private cluster.
 *
 * In:     the plan of a cluster of `rozo dev`; its pid files.
 * Out:    sums by kind of process.
 * Keeps:  sums are exact to the microsecond; only their division into user and system
 *         time is counted in ticks of 10 ms. A process that ends or restarts during a
 *         measurement makes sums smaller, never negative.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "deploy/bench/bench_fs.h"
#include "deploy/cli/fsutil.h"
#include "deploy/cli/process.h"

const char *fsb_kind_name(enum fsb_kind kind)
{
    static const char *const names[FSB_KINDS] = { "exportd", "storaged", "mount",
                                                  "bench" };

    return names[kind];
}

static enum fsb_kind kind_of(const struct dev_plan *plan, unsigned member)
{
    return dev_plan_is_exportd(plan, member)      ? FSB_EXPORTD
           : dev_plan_mount(plan, member) != NULL ? FSB_MOUNT
                                                  : FSB_STORAGED;
}

/* Reads /proc/PID/what of a member, and its pid. Returns false if it does not run. */
static bool member_read(const struct dev_plan *plan, unsigned member, const char *what,
                        char *out, size_t size, pid_t *pid)
{
    char path[PATH_MAX], name[DEV_NAME_MAX];
    struct process p;

    if (path_join(path, NULL, "%s/run", plan->dir) != 0)
        return false;
    dev_plan_name(plan, member, name);
    process_look(path, name, &p);
    if (p.state != PROCESS_RUNNING && p.state != PROCESS_STOPPED)
        return false;
    *pid = p.pid;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)p.pid, what);
    return file_read_text(path, out, size, NULL) > 0;
}

/* Returns the CPU seconds of a process, 0 if it is gone. */
static double total_s(pid_t pid)
{
    struct timespec used;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
        return 0;
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

void fsb_cpu_now(const struct dev_plan *cluster, struct fsb_cpu *out)
{
    double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    unsigned n = cluster == NULL ? 0 : dev_plan_members(cluster);
    struct rusage self;
    char text[4096];

    memset(out, 0, sizeof(*out));
    for (unsigned i = 0; i < n; i++) {
        enum fsb_kind kind = kind_of(cluster, i);
        unsigned long user, sys;
        const char *rest;
        pid_t pid;

        if (!member_read(cluster, i, "stat", text, sizeof(text), &pid))
            continue;
        rest = strrchr(text, ')'); /* the name before it may hold any bytes */
        if (rest == NULL ||
            sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                   &sys) != 2)
            continue;
        out->user_s[kind] += (double)user * tick_s;
        out->sys_s[kind] += (double)sys * tick_s;
        out->total_s[kind] += total_s(pid);
    }
    getrusage(RUSAGE_SELF, &self);
    out->user_s[FSB_SELF] =
        (double)self.ru_utime.tv_sec + (double)self.ru_utime.tv_usec / 1e6;
    out->sys_s[FSB_SELF] =
        (double)self.ru_stime.tv_sec + (double)self.ru_stime.tv_usec / 1e6;
    out->total_s[FSB_SELF] = total_s(getpid());
}

static double above_0(double value)
{
    return value > 0 ? value : 0;
}

void fsb_cpu_since(const struct fsb_cpu *before, const struct fsb_cpu *after,
                   struct fsb_cpu *out)
{
    for (unsigned k = 0; k < FSB_KINDS; k++) {
        double user = above_0(after->user_s[k] - before->user_s[k]);
        double sys = above_0(after->sys_s[k] - before->sys_s[k]);

        out->total_s[k] = above_0(after->total_s[k] - before->total_s[k]);
        out->user_s[k] = user + sys > 0 ? out->total_s[k] * user / (user + sys) : 0;
        out->sys_s[k] = out->total_s[k] - out->user_s[k];
    }
}

void fsb_peak_now(const struct dev_plan *cluster, uint64_t out[FSB_KINDS])
{
    unsigned n = cluster == NULL ? 0 : dev_plan_members(cluster);
    char text[8192];

    for (unsigned i = 0; i < n; i++) {
        enum fsb_kind kind = kind_of(cluster, i);
        const char *line;
        uint64_t bytes;
        pid_t pid;

        if (!member_read(cluster, i, "status", text, sizeof(text), &pid))
            continue;
        line = strstr(text, "\nVmHWM:");
        bytes = line == NULL ? 0 : strtoull(line + strlen("\nVmHWM:"), NULL, 10) * 1024;
        if (bytes > out[kind])
            out[kind] = bytes;
    }
}
