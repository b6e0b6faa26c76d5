/*
 * ask.h - a verb's connection to exportd, and the status of the cluster that came over it.
 */
#ifndef ROZO_DEPLOY_CLIENT_ASK_H
#define ROZO_DEPLOY_CLIENT_ASK_H

#include "deploy/client/admin.h"
#include "deploy/client/conn.h"

/* A connection and what came over it. */
struct asked {
    struct admin *admin;        /* owned */
    struct progress progress;   /* drawn while exportd is asked */
    Rozo__AdStatusResp *status; /* owned; NULL unless asked for */
};

/** Fills what the options left open in conn. 0, or -errno with words. */
int ask_open(struct conn *conn, struct asked *asked, struct err *err);
/** The same, and ask for the status. */
int ask_status(struct conn *conn, struct asked *asked, struct err *err);
/** Closes the connection and frees the status. Again is fine. */
void ask_close(struct asked *asked);

#endif
