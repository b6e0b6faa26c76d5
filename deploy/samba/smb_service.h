/*
 * smb_service.h - checks the configuration of an SMB gateway, runs it under systemd, and
 * finds its smbd.
 */
#ifndef ROZO_DEPLOY_SAMBA_SMB_SERVICE_H
#define ROZO_DEPLOY_SAMBA_SMB_SERVICE_H

#include <stdio.h>
#include <sys/types.h>

#include "deploy/samba/smb_config.h"

/* The gateway of a machine that systemd starts; others are started by hand. */
#define SMB_DIR  "/var/lib/rozo/smb"
#define SMB_UNIT "rozo-smb.service"

/* Programs of other packages, by their paths. */
struct smb_programs {
    char smbd[PATH_MAX];
    char testparm[PATH_MAX];
    char pdbedit[PATH_MAX];
    char findmnt[PATH_MAX];
};

/** Returns the folder of the gateway: dir if given, else ROZO_SMB_DIR, else SMB_DIR. */
const char *smb_dir(const char *dir);
/**
 * Finds the programs, and the modules that smb.conf names. If one is missing, the error
 * says which Debian package has it.
 */
int smb_programs_find(struct smb_programs *p, struct err *err);
/**
 * Makes the folder, has testparm check the new configuration together with local.conf,
 * and replaces the old one. If testparm refuses it, nothing has changed.
 */
int smb_apply(const struct smb_gateway *g, const struct smb_programs *p, struct err *err);
/** Returns the pid of the smbd that serves this gateway; 0: none does. */
pid_t smb_pid(const struct smb_gateway *g);
/** Returns -EADDRINUSE if another program listens on the port. */
int smb_port_check(const struct smb_gateway *g, struct err *err);
/** Tells whether systemd runs here, and is to run this gateway. */
bool smb_has_systemd(const struct smb_gateway *g);
/** Installs the unit and starts it; one that runs reads its configuration again. */
int smb_unit_start(const struct smb_gateway *g, const struct smb_programs *p,
                   struct err *err);
/**
 * Ends the gateway's smbd and removes the unit, gateway.json and smb.conf. Passwords, the
 * state of Samba and local.conf stay.
 */
int smb_remove(const struct smb_gateway *g, struct err *err);
/** Tells whether a user has a password for this gateway. */
bool smb_user_has_password(const struct smb_gateway *g, const struct smb_programs *p,
                           const char *user);

/** Returns the gateway and its state as JSON: null if there is none. */
json_t *smb_status_json(const char *dir);
/** Prints `before`, the gateway and its state; nothing if there is none. */
void smb_status_print(const char *dir, const char *before, FILE *to);

#endif
