/*
 * exportd_client.c - a verb's connection to exportd.
 */
#include "deploy/client/exportd_client.h"

#include <string.h>

int exportd_client_open(struct target_options *conn, struct exportd_client *asked,
                        struct err *err)
{
    int rc = target_resolve(conn, false, err);

    memset(asked, 0, sizeof(*asked));
    progress_start(&asked->progress, 1);
    progress_at(&asked->progress, 0, "asking exportd");
    if (rc == 0)
        rc = admin_open(conn->exportd, conn->key, &asked->admin, err);
    return rc;
}

void exportd_client_close(struct exportd_client *asked)
{
    progress_end(&asked->progress);
    if (asked->status != NULL)
        rozo__ad_status_resp__free_unpacked(asked->status, NULL);
    admin_close(asked->admin);
    memset(asked, 0, sizeof(*asked));
}

int exportd_client_status(struct target_options *conn, struct exportd_client *asked,
                          struct err *err)
{
    int rc = exportd_client_open(conn, asked, err);

    if (rc == 0)
        rc = admin_status(asked->admin, &asked->progress, &asked->status, err);
    progress_end(&asked->progress);
    if (rc != 0)
        exportd_client_close(asked);
    return rc;
}
