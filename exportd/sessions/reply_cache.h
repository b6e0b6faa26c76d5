/*
 * reply_cache.h - the last answers of a session, for requests that come twice.
 *
 * A client whose connection broke sends its unanswered requests again, with the ids they had. What
 * was done the first time must not be done again: a mkdir would find its own directory, an unlink
 * take a file that somebody else made since. Bounded in number and time, and in memory; of what must not be done
 * again reply_log.c keeps over restarts of exportd that it was.
 */
#ifndef ROZO_EXPORTD_SESSIONS_REPLY_CACHE_H
#define ROZO_EXPORTD_SESSIONS_REPLY_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/rpc/rpc.h"

enum {
    REPLIES_MAX = 1024, /* of a session; more than it has requests under way */
    REPLY_BYTES_MAX =
        4096, /* larger ones are not kept: no op that changes something has them */
    REPLY_KEEP_MS = 120000, /* no client asks for so long */
};

/* A request, as a session knows it from others. */
struct reply_to {
    uint64_t id;
    uint32_t crc; /* of its message */
    uint16_t op;
};

/* One answer. Owned by its session's replies. */
struct reply {
    struct list_node link; /* in replies->all, oldest first */
    struct reply *next;    /* in its bucket */
    struct reply_to to;
    uint64_t kept_ns;
    bool sync; /* it may leave only when durable */
    int rc;
    size_t len;
    uint8_t msg[];
};

struct reply_cache {
    struct list_node all;
    unsigned n;
    struct reply **buckets; /* owned; NULL while there is none */
};

struct reply_to reply_cache_to(const struct rpc_call *call);
void reply_cache_init(struct reply_cache *r);
/** What was answered to this request when it came before; NULL: it did not. Borrowed. */
const struct reply *reply_cache_find(const struct reply_cache *r,
                                     const struct rpc_call *call);
/** Remember an answer. Without memory it is forgotten. */
void reply_cache_keep(struct reply_cache *r, const struct reply_to *to, int rc, bool sync,
                      const uint8_t *msg, size_t len, uint64_t now_ns);
/** Forget what is older than REPLY_KEEP_MS. */
void reply_cache_trim(struct reply_cache *r, uint64_t now_ns);
void reply_cache_free(struct reply_cache *r);

#endif
