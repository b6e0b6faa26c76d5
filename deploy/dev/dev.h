/*
 * dev.h - private clusters: real daemons as processes of this machine, all in one folder.
 *
 *     DIR/etc    keys, configs, cluster.json (what the cluster consists of), lock
 *     DIR/run    NAME.pid, NAME.proc
 *     DIR/log    NAME.log
 *     DIR/data   NAME/
 */
#ifndef ROZO_DEPLOY_DEV_DEV_H
#define ROZO_DEPLOY_DEV_DEV_H

#include "common/base/err.h"
#include "deploy/cli/process.h"
#include "deploy/dev/dev_plan.h"

enum { DEV_MEMBERS_MAX = 1 + DEV_STORAGES_MAX + DEV_MOUNTS_MAX };

/* What `up` was told. Borrowed strings; 0 and NULL: not said. */
struct dev_wish {
    bool has_layout;
    unsigned layout;
    const char *codec;
    bool has_inline_max;
    unsigned inline_max;
    unsigned n_storages;
    unsigned n_links;
    const char *log_level;
    const char *mounts[DEV_MOUNTS_MAX];
    unsigned n_mounts;
    const char *mount_options;
};

/* A cluster's folder, opened. */
struct dev {
    struct dev_plan plan;
    char run_dir[PATH_MAX];
    int lock_fd; /* -1: looking only */
    struct progress progress;
    bool started[DEV_MEMBERS_MAX]; /* by us, in this run */
    unsigned n_started;
    unsigned n_continued; /* of those that were there: they had been stopped */
};

/**
 * Open the cluster in dir, and keep other runs of `rozo dev` out until dev_close().
 * @param lock false: only look.
 * @return -ENOENT with words when there is none.
 */
int dev_open(const char *dir, bool lock, struct dev **out, struct err *err);
/** Open it, or make it as wished: an empty or new folder. */
int dev_open_or_make(const char *dir, const struct dev_wish *wish, struct dev **out,
                     struct err *err);
void dev_close(struct dev *dev);

/**
 * Start what does not run, continue what SIGSTOP has stopped, make the export, mount. Ends early, and stops what it started, when
 * SIGINT, SIGTERM or SIGHUP comes (-EINTR) or something does not start.
 * dev->n_started tells how many processes were started, n_continued how many continued; both 0: all ran.
 */
int dev_up(struct dev *dev, const struct dev_wish *wish, struct err *err);
/** Unmount, stop. Says on stderr what had to be forced. */
int dev_down(struct dev *dev, struct err *err);
/** @param kill by SIGKILL, as a crash would. -ENOENT: no such member. */
int dev_restart(struct dev *dev, const char *name, bool kill, struct err *err);

void dev_member_look(const struct dev *dev, unsigned member, struct process *out);

#endif
