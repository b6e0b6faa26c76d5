/*
 * name_inval.h - the names that the kernel is dropping because of a recall of their
 * directory's token.
 *
 * The kernel drops a name under the lock of its directory. A program's call may hold that
 * lock while it waits for us, and we, at exportd, for another mount. From Linux 6.16 on
 * all dentries of a mount can be invalidated at once without a lock. That ends the wait,
 * except for a directory whose listing with attributes is on its way to the kernel: the
 * kernel caches those names when they arrive. A call that changes a name holds the lock
 * of the directory, so no listing is on its way there.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_NAME_INVAL_H
#define ROZO_ROZOMOUNT_KCACHE_NAME_INVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    NAME_INVAL_LOCKED_MAX = 3, /* directories locked by the kernel for one call */
    NAME_INVAL_LONG_MS = 100,  /* a drop that takes longer waits for a lock */
};

struct name_inval;
struct token_cache;

/* The names of one directory that are being dropped. Embedded in the recall. */
struct dropped_names {
    struct list_node link; /* in name_inval->drops */
    uint64_t dir, since_ns;
    bool is_old; /* all were invalidated at once: no drop needed */
};

struct name_inval *name_inval_new(void);
void name_inval_free(struct name_inval *name_inval);

/** Notes that the kernel starts to drop the names of dir that it got before now. */
void name_inval_begin(struct name_inval *name_inval, struct dropped_names *drop,
                      uint64_t dir, uint64_t now_ns);
void name_inval_end(struct name_inval *name_inval, struct dropped_names *drop);
bool name_inval_is_old(struct name_inval *name_inval, const struct dropped_names *drop);

/**
 * Returns true if the kernel may have to release a lock before these names can be
 * dropped. locked: NAME_INVAL_LOCKED_MAX directories (0: none) that it has locked for a
 * call. Also true if names of other directories have waited for long, since two calls may
 * then wait for each other.
 */
bool name_inval_needs_lock(struct name_inval *name_inval, const uint64_t *locked,
                           uint64_t now_ns);
/**
 * Notes that a listing with attributes is sent to the kernel (needs the lock of the token
 * cache), or has arrived there.
 */
void name_inval_listing_goes(struct name_inval *name_inval, uint64_t dir);
void name_inval_listing_came(struct name_inval *name_inval, uint64_t dir);
/**
 * Notes that the kernel has just invalidated all dentries, see kernel_notify_age(). Needs
 * the lock of the token cache.
 */
void name_inval_made_old(struct name_inval *name_inval, struct token_cache *tokens,
                         const uint64_t *locked);

#endif
