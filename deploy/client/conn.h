/*
 * conn.h - how to reach exportd and with which keys: options, environment, /etc/rozo/rozo.yaml.
 */
#ifndef ROZO_DEPLOY_CLIENT_CONN_H
#define ROZO_DEPLOY_CLIENT_CONN_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>

#include "common/base/err.h"

/* Zero-initialise; a struct argp_child {&conn_argp} with this as its input fills it. */
struct conn {
    char exportd[512];         /* "HOST:PORT" */
    char key[PATH_MAX];        /* node key file */
    char client_key[PATH_MAX]; /* client key file, for mounts */
    char config[PATH_MAX];     /* --config, else ROZO_CONFIG, else /etc/rozo/rozo.yaml */
};

/* --exportd, --key and --config; the verb `mount` reads --key as the client key. */
extern const struct argp conn_argp;
extern const struct argp conn_mount_argp;
/* conn_argp alone, for verbs that have no other children. */
extern const struct argp_child conn_children[];

/**
 * Fill what the options left open: from ROZO_EXPORTD, ROZO_KEY (ROZO_CLIENT_KEY), then the
 * config file. What is still missing then is an error with words on how to give it.
 * @param client true: a client key is wanted, false: a node key.
 */
int conn_resolve(struct conn *conn, bool client, struct err *err);

#endif
