/*
 * dev.h - private clusters: real daemons as processes of this machine, all in one folder.
 *
 *     DIR/etc    keys, configs, cluster.json (the members of the cluster), lock
 *     DIR/run    NAME.pid, NAME.proc
 *     DIR/log    NAME.log
 *     DIR/data   NAME/
 */
#ifndef ROZO_DEPLOY_DEV_DEV_H
#define ROZO_DEPLOY_DEV_DEV_H

#include "common/base/err.h"
#include "deploy/cli/process.h"
#include "deploy/dev/dev_plan.h"

enum { DEV_MEMBERS_MAX = DEV_METAS_MAX + DEV_STORAGES_MAX + DEV_MOUNTS_MAX };

/* Options of `up`. Borrowed strings; 0 and NULL: not given. */
struct dev_wish {
    bool has_layout;
    unsigned layout;
    const char *codec;
    bool has_inline_max;
    unsigned inline_max;
    bool has_names;
    bool fold;
    unsigned n_storages;
    unsigned n_links;
    unsigned n_metas;
    bool has_witness;
    const char *log_level;
    const char *mounts[DEV_MOUNTS_MAX];
    unsigned n_mounts;
    const char *mount_options;
};

/* An open cluster folder. */
struct dev {
    struct dev_plan plan;
    char run_dir[PATH_MAX];
    int lock_fd; /* -1: read only */
    struct progress progress;
    bool started[DEV_MEMBERS_MAX]; /* started by this run */
    unsigned n_started;
    unsigned n_continued; /* members that were stopped by a signal and continued */
};

/**
 * Opens the cluster in dir, and locks out other runs of `rozo dev` until dev_close().
 * @param lock false: reads only, without the lock.
 * @return 0; -ENOENT with a message if there is no cluster; other -errno.
 */
int dev_open(const char *dir, bool lock, struct dev **out, struct err *err);
/** Opens the cluster, or creates it as wished in an empty or new folder. */
int dev_open_or_make(const char *dir, const struct dev_wish *wish, struct dev **out,
                     struct err *err);
void dev_close(struct dev *dev);

/**
 * Starts members that do not run, continues those stopped by SIGSTOP, creates the export,
 * mounts. On SIGINT, SIGTERM or SIGHUP (-EINTR), or if something does not start, it ends
 * early and stops what it started. dev->n_started tells how many processes were started,
 * n_continued how many continued; both 0: all ran.
 */
int dev_up(struct dev *dev, const struct dev_wish *wish, struct err *err);
/** Unmounts and stops all. Reports on stderr what had to be forced. */
int dev_down(struct dev *dev, struct err *err);
/**
 * Restarts a member. @param kill by SIGKILL, as a crash would. Returns -ENOENT if there
 * is no such member.
 */
int dev_restart(struct dev *dev, const char *name, bool kill, struct err *err);

void dev_member_look(const struct dev *dev, unsigned member, struct process *out);

#endif
