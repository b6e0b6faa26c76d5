/*
 * target_options.h - address and keys of exportd: from options, environment,
 * /etc/rozo/rozo.yaml.
 */
#ifndef ROZO_DEPLOY_CLIENT_TARGET_OPTIONS_H
#define ROZO_DEPLOY_CLIENT_TARGET_OPTIONS_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>

#include "common/base/err.h"

/* Zero-initialise; filled in by a struct argp_child {&target_argp} that has this as its
 * input. */
struct target_options {
    char exportd[512];         /* "HOST:PORT[,HOST:PORT...]" */
    char key[PATH_MAX];        /* node key file */
    char client_key[PATH_MAX]; /* client key file, for mounts */
    char config[PATH_MAX];     /* --config, else ROZO_CONFIG, else /etc/rozo/rozo.yaml */
};

/* Parse --exportd, --key and --config; the verb `mount` reads --key as the client key. */
extern const struct argp target_argp;
extern const struct argp target_mount_argp;
/* Has target_argp alone, for verbs without other children. */
extern const struct argp_child target_children[];

/**
 * Fills in what the options left open: from ROZO_EXPORTD, ROZO_KEY (ROZO_CLIENT_KEY),
 * then the config file. If something is still missing, returns an error that says how to
 * give it.
 * @param client true: a client key is needed, false: a node key.
 */
int target_resolve(struct target_options *conn, bool client, struct err *err);

#endif
