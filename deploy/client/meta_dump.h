/*
 * meta_dump.h - fetches a dump of the metadata from an exportd into a file.
 */
#ifndef ROZO_DEPLOY_CLIENT_META_DUMP_H
#define ROZO_DEPLOY_CLIENT_META_DUMP_H

#include "deploy/client/meta_client.h"

struct meta_dump {
    /* Set by the caller. */
    struct meta_client *client; /* borrowed */
    uint64_t rate;              /* bytes per second at most; 0: no limit */
    /**
     * Takes the next bytes of the dump. Returns 0, or -errno with a text.
     */
    int (*write)(void *arg, const void *bytes, size_t len, struct err *err);
    void *arg;
    /* Out. */
    struct meta_client_member *source;
    uint64_t bytes, keys, entry; /* entry: newest one of the log; 0: no quorum */
    /* Private. */
    uint64_t number, start_ms, min_entry;
    int rc;
    bool is_last, has_written;
    struct err *err;
};

/**
 * Fetches a dump: from a follower of a quorum if one has what the leader has, so that the
 * leader goes on undisturbed. All that was acknowledged before the call is in it. Returns
 * 0, or -errno with a text; what was written then is no dump.
 */
int meta_dump_fetch(struct meta_dump *d, struct err *err);

#endif
