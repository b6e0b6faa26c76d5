/*
 * dev_plan.h - what a private cluster consists of, as kept in DIR/etc/cluster.json.
 */
#ifndef ROZO_DEPLOY_DEV_DEV_PLAN_H
#define ROZO_DEPLOY_DEV_DEV_PLAN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    DEV_STORAGES_MAX = 64,
    DEV_LINKS_MAX = 8,
    DEV_MOUNTS_MAX = 32,
    DEV_OPTIONS_MAX = 512,
    DEV_NAME_MAX = 32,
    DEV_INLINE_MAX = 65536,
    DEV_PLAN_FORMAT = 1,
};

/* One rozomount: mount-<number>. */
struct dev_mount {
    unsigned number;
    char path[PATH_MAX];           /* absolute */
    char options[DEV_OPTIONS_MAX]; /* further -o options, "" for none */
};

/* Plain data, large: allocate it. */
struct dev_plan {
    char dir[PATH_MAX]; /* absolute; where the plan was read, not part of the file */
    bool created;       /* the storages have joined and the export is there: ports stay */
    unsigned layout;    /* 0..2 */
    char codec[64];
    unsigned inline_max; /* of the export, 0..DEV_INLINE_MAX */
    char log_level[16];
    unsigned n_storages; /* 1..DEV_STORAGES_MAX */
    unsigned n_links;    /* listen addresses of each storage, 1..DEV_LINKS_MAX */
    uint16_t exportd_port;
    uint16_t ports[DEV_STORAGES_MAX][DEV_LINKS_MAX];
    unsigned n_mounts;
    struct dev_mount mounts[DEV_MOUNTS_MAX];
};

/** The text of cluster.json; free() it. NULL out of memory. */
char *dev_plan_print(const struct dev_plan *plan);
/** Read it back; whatever it holds, the result is within the bounds above, or an error. */
int dev_plan_parse(const char *text, struct dev_plan *plan, struct err *err);
/** -ENOENT without words when dir holds no cluster. Sets plan->dir. */
int dev_plan_load(const char *dir, struct dev_plan *plan, struct err *err);
int dev_plan_save(const struct dev_plan *plan, struct err *err);

/* Members are numbered: 0 exportd, then the storages, then the mounts. */
unsigned dev_plan_members(const struct dev_plan *plan);
/** "exportd", "storaged-1", "mount-2". */
void dev_plan_name(const struct dev_plan *plan, unsigned member, char name[DEV_NAME_MAX]);
/** The mount of a member, NULL for daemons. */
const struct dev_mount *dev_plan_mount(const struct dev_plan *plan, unsigned member);
/** What is not stored within this time fails there: io_timeout of its options, or its default. */
uint32_t dev_mount_io_timeout_ms(const struct dev_mount *m);
/** Ports of a member and how many; none for mounts. */
const uint16_t *dev_plan_ports(const struct dev_plan *plan, unsigned member, unsigned *n);

#endif
