/*
 * exportd_client.h - a verb's connection to exportd, and the status of the cluster.
 */
#ifndef ROZO_DEPLOY_CLIENT_EXPORTD_CLIENT_H
#define ROZO_DEPLOY_CLIENT_EXPORTD_CLIENT_H

#include "deploy/client/admin.h"
#include "deploy/client/target_options.h"

/* A connection and the answer it gave. */
struct exportd_client {
    struct admin *admin;        /* owned */
    struct progress progress;   /* drawn while a request to exportd runs */
    Rozo__AdStatusResp *status; /* owned; NULL unless requested */
};

/**
 * Opens a connection, after filling in what the options left open in conn. Returns 0, or
 * -errno with a message.
 */
int exportd_client_open(struct target_options *conn, struct exportd_client *asked,
                        struct err *err);
/** Opens a connection and fetches the status. Returns 0, or -errno with a message. */
int exportd_client_status(struct target_options *conn, struct exportd_client *asked,
                          struct err *err);
/** Closes the connection and frees the status. May be called again. */
void exportd_client_close(struct exportd_client *asked);

#endif
