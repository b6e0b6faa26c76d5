/*
 * dev_plan.h - the members and options of a private cluster, as kept in
 * DIR/etc/cluster.json.
 */
#ifndef ROZO_DEPLOY_DEV_DEV_PLAN_H
#define ROZO_DEPLOY_DEV_DEV_PLAN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    DEV_METAS_MAX = 5,
    DEV_BIRTH_DIGITS = 32,
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
    char dir[PATH_MAX]; /* absolute; the folder of the file, not part of it */
    bool created;    /* the storages have joined and the export exists: ports are fixed */
    unsigned layout; /* 0..2 */
    char codec[64];
    unsigned inline_max; /* for the export, 0..DEV_INLINE_MAX */
    bool fold;           /* the export has an index of folded names */
    char log_level[16];
    unsigned n_storages; /* 1..DEV_STORAGES_MAX */
    unsigned n_links;    /* listen addresses of each storage, 1..DEV_LINKS_MAX */
    unsigned n_metas;    /* exportds: 1, or 3 or 5 that are a quorum */
    bool has_witness;    /* the last of them keeps no metadata */
    char birth[DEV_BIRTH_DIGITS + 1]; /* number with which the quorum begins */
    /* ports of each exportd: for clients, and for the other exportds */
    uint16_t meta_ports[DEV_METAS_MAX][2];
    uint16_t ports[DEV_STORAGES_MAX][DEV_LINKS_MAX];
    unsigned n_mounts;
    struct dev_mount mounts[DEV_MOUNTS_MAX];
};

/** Returns the text of cluster.json, to be freed; NULL if out of memory. */
char *dev_plan_print(const struct dev_plan *plan);
/** Parses it. Whatever it holds, the result is within the bounds above, or an error. */
int dev_plan_parse(const char *text, struct dev_plan *plan, struct err *err);
/**
 * Loads the plan and sets plan->dir. Returns -ENOENT without a message if dir holds no
 * cluster.
 */
int dev_plan_load(const char *dir, struct dev_plan *plan, struct err *err);
int dev_plan_save(const struct dev_plan *plan, struct err *err);

/* Number of members: exportd (one or several), then the storages, then the mounts. */
unsigned dev_plan_members(const struct dev_plan *plan);
/** Returns the number of those that are daemons. */
unsigned dev_plan_daemons(const struct dev_plan *plan);
/** Returns whether it is the exportd that keeps no metadata. */
bool dev_plan_is_witness(const struct dev_plan *plan, unsigned member);
bool dev_plan_is_exportd(const struct dev_plan *plan, unsigned member);
/** Writes "exportd" (one of several: "exportd-1"), "storaged-1", "mount-2". */
void dev_plan_name(const struct dev_plan *plan, unsigned member, char name[DEV_NAME_MAX]);
/** Returns the mount of a member, NULL for daemons. */
const struct dev_mount *dev_plan_mount(const struct dev_plan *plan, unsigned member);
/**
 * Returns the time after which unwritten data fail there: io_timeout of its options, or
 * the default.
 */
uint32_t dev_mount_io_timeout_ms(const struct dev_mount *m);
/** Returns the ports of a member and their number; none for mounts. */
const uint16_t *dev_plan_ports(const struct dev_plan *plan, unsigned member, unsigned *n);

enum { DEV_EXPORTDS_TEXT = 512 };
/** Writes where clients reach exportd: "127.0.0.1:1", or several with commas between. */
void dev_plan_exportds(const struct dev_plan *plan, char text[DEV_EXPORTDS_TEXT]);

#endif
