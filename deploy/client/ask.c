/*
 * ask.c - a verb's connection to exportd.
 */
#include "deploy/client/ask.h"

#include <string.h>

int ask_open(struct conn *conn, struct asked *asked, struct err *err)
{
    int rc = conn_resolve(conn, false, err);

    memset(asked, 0, sizeof(*asked));
    progress_start(&asked->progress, 1);
    progress_at(&asked->progress, 0, "asking exportd");
    if (rc == 0)
        rc = admin_open(conn->exportd, conn->key, &asked->admin, err);
    return rc;
}

void ask_close(struct asked *asked)
{
    progress_end(&asked->progress);
    if (asked->status != NULL)
        rozo__ad_status_resp__free_unpacked(asked->status, NULL);
    admin_close(asked->admin);
    memset(asked, 0, sizeof(*asked));
}

int ask_status(struct conn *conn, struct asked *asked, struct err *err)
{
    int rc = ask_open(conn, asked, err);

    if (rc == 0)
        rc = admin_status(asked->admin, &asked->progress, &asked->status, err);
    progress_end(&asked->progress);
    if (rc != 0)
        ask_close(asked);
    return rc;
}
