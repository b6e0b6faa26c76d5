/*
 * ask.h - a verb's connection to exportd, and the status of the cluster.
 */
#ifndef ROZO_DEPLOY_CLIENT_ASK_H
#define ROZO_DEPLOY_CLIENT_ASK_H

#include "deploy/client/admin.h"
#include "deploy/client/conn.h"

/* A connection and the answer it gave. */
struct asked {
    struct admin *admin;        /* owned */
    struct progress progress;   /* drawn while a request to exportd runs */
    Rozo__AdStatusResp *status; /* owned; NULL unless requested */
};

/**
 * Opens a connection, after filling in what the options left open in conn. Returns 0, or
 * -errno with a message.
 */
int ask_open(struct conn *conn, struct asked *asked, struct err *err);
/** Opens a connection and fetches the status. Returns 0, or -errno with a message. */
int ask_status(struct conn *conn, struct asked *asked, struct err *err);
/** Closes the connection and frees the status. May be called again. */
void ask_close(struct asked *asked);

#endif
