/*
 * smb_config.h - an SMB gateway of this machine: one smbd with its shares, and the texts
 * that it is run by.
 *
 * All of it lies in one folder, which no other Samba reads: gateway.json (what the user
 * asked for), smb.conf (made from it), local.conf (the user's own), and smbd's state.
 */
#ifndef ROZO_DEPLOY_SAMBA_SMB_CONFIG_H
#define ROZO_DEPLOY_SAMBA_SMB_CONFIG_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "common/base/err.h"

enum {
    SMB_SHARES_MAX = 32,
    SMB_NAME_MAX = 80,    /* longest name of a share or an export */
    SMB_USERS_MAX = 1024, /* characters of a list of users */
    SMB_LISTEN_MAX = 256,
    SMB_PORT = 445,
};

struct smb_share {
    char name[SMB_NAME_MAX + 1];
    char export_name[SMB_NAME_MAX + 1];
    char mount[PATH_MAX];
    char users[SMB_USERS_MAX]; /* "anna,@cutters"; "": everybody with a password */
    bool exclusive;            /* no other gateway or program writes there */
};

/* Plain data, about 180 KB: allocate it. */
struct smb_gateway {
    char dir[PATH_MAX];
    char listen[SMB_LISTEN_MAX]; /* addresses, with commas; "": all */
    unsigned port;
    unsigned n_shares;
    struct smb_share shares[SMB_SHARES_MAX];
};

/**
 * Reads the gateway of a folder; one that is not there has no shares and port SMB_PORT.
 * @return 0; -EEXIST: the folder holds other things, so it is not ours to write to;
 * other -errno.
 */
int smb_gateway_load(struct smb_gateway *g, const char *dir, struct err *err);
/** Writes gateway.json, atomically. */
int smb_gateway_store(const struct smb_gateway *g, struct err *err);
/** Finds a share by its name, in any case as clients do. NULL: there is none. */
struct smb_share *smb_share_find(struct smb_gateway *g, const char *name);
/** Removes a share of this gateway. */
void smb_share_remove(struct smb_gateway *g, struct smb_share *share);

/** Tells whether smbd and clients take the name of a share. */
bool smb_name_is_good(const char *name);
/** Tells whether a path means itself in smb.conf, in a unit and for a shell. */
bool smb_path_is_good(const char *path);
/** Tells whether a list of addresses does: "10.0.0.1,10.0.1.1/24". */
bool smb_listen_is_good(const char *text);

/** Returns the text of smb.conf, to be freed. findmnt: the path of that program. */
char *smb_conf_text(const struct smb_gateway *g, const char *findmnt);
/** Returns the text of the systemd unit, to be freed. smbd: the path of that program. */
char *smb_unit_text(const struct smb_gateway *g, const char *smbd);
/** Returns the text with which local.conf begins. */
const char *smb_local_text(void);
/** Tells whether smb.conf in this text is one that we wrote. */
bool smb_conf_is_ours(const char *text);
/** Writes the name of the mount unit of a path: "/srv/a-b": "srv-a\x2db.mount". */
void smb_mount_unit(const char *path, char out[PATH_MAX * 4 + 8]);
/** Returns a gateway as JSON, without its state. */
json_t *smb_gateway_json(const struct smb_gateway *g);

#endif
