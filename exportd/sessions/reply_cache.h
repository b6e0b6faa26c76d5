/*
 * reply_cache.h - the newest answers of a session, for repeated requests.
 *
 * A client whose connection broke sends its unanswered requests again, with the same ids.
 * A request that was executed must not be executed again: a mkdir would find its own
 * directory, an unlink would remove a file that was made since. Bounded in number, time
 * and memory. Over restarts of exportd, reply_log.c keeps which requests were executed.
 */
#ifndef ROZO_EXPORTD_SESSIONS_REPLY_CACHE_H
#define ROZO_EXPORTD_SESSIONS_REPLY_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/rpc/rpc.h"

enum {
    REPLIES_MAX = 1024, /* answers of a session; more than its requests under way */
    /* larger answers are not kept; no op that changes something has them */
    REPLY_BYTES_MAX = 4096,
    REPLY_KEEP_MS = 120000, /* ms; no client repeats a request after so long */
};

/* Identity of a request within its session. */
struct reply_to {
    uint64_t id;
    uint32_t crc; /* crc of its message */
    uint16_t op;
};

/* Answer. Owned by the reply cache of its session. */
struct reply {
    struct list_node link; /* in replies->all, oldest first */
    struct reply *next;    /* next in the bucket */
    struct reply_to to;
    uint64_t kept_ns;
    bool sync; /* may leave only when stable */
    int rc;
    size_t len;
    uint8_t msg[];
};

struct reply_cache {
    struct list_node all;
    unsigned n;
    struct reply **buckets; /* owned; NULL while the cache is empty */
};

struct reply_to reply_cache_to(const struct rpc_call *call);
void reply_cache_init(struct reply_cache *r);
/** Returns the answer that this request got before; NULL: none. Borrowed. */
const struct reply *reply_cache_find(const struct reply_cache *r,
                                     const struct rpc_call *call);
/**
 * Keeps an answer. Without memory it is not kept. Nor are BUSY and ERETRY for an id that
 * the client has chosen: nothing was done, and the request comes again under this id.
 */
void reply_cache_keep(struct reply_cache *r, const struct reply_to *to, int rc, bool sync,
                      const uint8_t *msg, size_t len, uint64_t now_ns);
/** Drops answers older than REPLY_KEEP_MS. */
void reply_cache_trim(struct reply_cache *r, uint64_t now_ns);
void reply_cache_free(struct reply_cache *r);

#endif
