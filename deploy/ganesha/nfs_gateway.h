/*
 * nfs_gateway.h - the gateway of NFS of this machine: ganesha.nfsd over mounts of rozo.
 *
 * A gateway has a folder of its own, NFS_DIR or --dir: gateway.json (its settings),
 * ganesha.conf (made from them), local.conf (the user's, may be absent), and what ganesha
 * remembers of its clients. /etc/ganesha is neither read nor written.
 */
#ifndef ROZO_DEPLOY_GANESHA_NFS_GATEWAY_H
#define ROZO_DEPLOY_GANESHA_NFS_GATEWAY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "deploy/cli/cli.h"

#define NFS_DIR  "/var/lib/rozo/nfs"
#define NFS_UNIT "rozo-nfs.service"

enum {
    NFS_FSID_TEXT = 37, /* a UUID */
    NFS_EXPORTS_MAX = 64,
    NFS_EXPORT_ID_MAX = 65535,
    NFS_CLIENTS_MAX = 1024,
    NFS_PORT = 2049,
    NFS_GRACE_S = 30
};

/* One export that is served. */
struct nfs_export {
    char name[256];
    char mount[PATH_MAX];          /* where it is mounted */
    char fsid[NFS_FSID_TEXT];      /* xattr rozo.fsid of that mount */
    uint32_t id;                   /* 1..NFS_EXPORT_ID_MAX, part of file handles */
    char pseudo[256];              /* path that clients mount */
    char clients[NFS_CLIENTS_MAX]; /* "": all */
    char squash[8];                /* "root", "none" or "all" */
    bool read_only;
};

/* The settings. */
struct nfs_gateway {
    char dir[PATH_MAX];
    unsigned port, grace_s;
    bool v4_only; /* no NFS v3, which needs rpcbind */
    unsigned n_exports;
    struct nfs_export exports[NFS_EXPORTS_MAX];
};

/** Returns the folder of the gateway: dir if given, else ROZO_NFS_DIR, else NFS_DIR. */
const char *nfs_dir(const char *dir);
/** Reads the settings; without any: defaults, and no exports. */
int nfs_gateway_load(struct nfs_gateway *g, const char *dir, struct err *err);
/** Refuses a folder that holds something and was never that of a gateway. */
int nfs_folder_check(const struct nfs_gateway *g, struct err *err);
struct nfs_export *nfs_export_find(struct nfs_gateway *g, const char *name);
/** Writes the settings and ganesha.conf. */
int nfs_apply(const struct nfs_gateway *g, struct err *err);
/** Returns the text of ganesha.conf, to be freed; NULL: out of memory. */
char *nfs_config_text(const struct nfs_gateway *g);

/**
 * Finds where an export is mounted, and asks that mount for e->fsid and e->id.
 * e->mount is where it must be, or "".
 */
int nfs_export_locate(struct nfs_export *e, const char *name, struct err *err);
/** Checks that the export is mounted where it was. The empty folder below is no mount. */
int nfs_export_check(const struct nfs_export *e, struct err *err);

/**
 * Returns whether the result of nfs_export_check() means that the mount has ended for
 * good. One that waits for exportd may fail calls, but lives.
 */
bool nfs_mount_has_ended(int rc);

/**
 * Runs ganesha.nfsd as a child until it ends, and passes signals on to it; ends it when a
 * mount is gone. g must stay for the life of the process.
 * @return 0: a signal asked it to end.
 */
int nfs_run(const struct nfs_gateway *g, struct err *err);
/** Checks that ganesha.nfsd is installed. */
int nfs_program_check(struct err *err);
/** Locks the gateway's folder for the life of this process and of its children. */
int nfs_lock(const struct nfs_gateway *g, struct err *err);
/** Returns whether a gateway runs with this folder. */
bool nfs_runs(const char *dir);

/** Returns whether the gateway is a unit of systemd. */
bool nfs_has_unit(const struct nfs_gateway *g);
/** Returns the text of the unit, to be freed; NULL: out of memory. */
char *nfs_unit_text(const struct nfs_gateway *g, const char *program);
/** Writes, enables and (re)starts the unit. */
int nfs_unit_start(const struct nfs_gateway *g, struct err *err);
/** Stops the gateway and removes its settings and its unit. */
int nfs_remove(const struct nfs_gateway *g, struct err *err);

/** Returns the gateway's state as JSON; null if there is none. */
json_t *nfs_status_json(const char *dir);
/** Prints it, after `before`; nothing if there is none. */
void nfs_status_print(const char *dir, const char *before, FILE *to);

#endif
