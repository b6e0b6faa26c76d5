/*
 * name_inval.h - the names that the kernel is dropping, because the token of their directory is on its way back.
 *
 * It drops a name under the lock of its directory, which a call of a program may hold that waits for us, and we, at exportd, for
 * another mount. From Linux 6.16 on all names of a mount can be made old at once, without a lock: whoever waits for such a
 * drop then need not. Except where a listing with attributes is on its way to the kernel, which believes
 * its names from when it takes them. Whoever changes a name in a directory has its lock, and no listing is on its way there.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_NAME_INVAL_H
#define ROZO_ROZOMOUNT_KCACHE_NAME_INVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    DROPPING_LOCKED_MAX = 3, /* directories that the kernel locks for one call */
    DROPPING_LONG_MS = 100,  /* the kernel does not get a lock so soon: it cannot */
};

struct dropping;
struct tokens;

/* The names of one directory, while they are dropped. Embedded. */
struct dropped_names {
    struct list_node link; /* in dropping->drops */
    uint64_t dir, since_ns;
    bool is_old; /* all of them were made old: they need not be dropped */
};

struct dropping *dropping_new(void);
void dropping_free(struct dropping *dropping);

/** From now on the kernel drops names of dir that were told before now. */
void dropping_begin(struct dropping *dropping, struct dropped_names *drop, uint64_t dir,
                    uint64_t now_ns);
void dropping_end(struct dropping *dropping, struct dropped_names *drop);
bool dropping_is_old(struct dropping *dropping, const struct dropped_names *drop);

/**
 * Must the kernel let go of a lock before these are dropped? locked: DROPPING_LOCKED_MAX directories (0: none) that it has locked for a
 * call. Those of others may have been on their way for long, too, which they are not when no two calls wait for each other.
 */
bool dropping_needs_lock(struct dropping *dropping, const uint64_t *locked,
                         uint64_t now_ns);
/** A listing with attributes goes to the kernel (with the lock of the tokens), or has come there. */
void dropping_listing_goes(struct dropping *dropping, uint64_t dir);
void dropping_listing_came(struct dropping *dropping, uint64_t dir);
/** With the lock of the tokens: the kernel has just been made to believe no name that it knew. */
void dropping_made_old(struct dropping *dropping, struct tokens *tokens,
                       const uint64_t *locked);

#endif
