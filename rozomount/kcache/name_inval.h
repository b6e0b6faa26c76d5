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
    NAME_INVAL_LOCKED_MAX = 3, /* directories that the kernel locks for one call */
    NAME_INVAL_LONG_MS = 100,  /* the kernel does not get a lock so soon: it cannot */
};

struct name_inval;
struct token_cache;

/* The names of one directory, while they are dropped. Embedded. */
struct dropped_names {
    struct list_node link; /* in dropping->drops */
    uint64_t dir, since_ns;
    bool is_old; /* all of them were made old: they need not be dropped */
};

struct name_inval *name_inval_new(void);
void name_inval_free(struct name_inval *name_inval);

/** From now on the kernel drops names of dir that were told before now. */
void name_inval_begin(struct name_inval *name_inval, struct dropped_names *drop,
                      uint64_t dir, uint64_t now_ns);
void name_inval_end(struct name_inval *name_inval, struct dropped_names *drop);
bool name_inval_is_old(struct name_inval *name_inval, const struct dropped_names *drop);

/**
 * Must the kernel let go of a lock before these are dropped? locked: NAME_INVAL_LOCKED_MAX directories (0: none) that it has locked for a
 * call. Those of others may have been on their way for long, too, which they are not when no two calls wait for each other.
 */
bool name_inval_needs_lock(struct name_inval *name_inval, const uint64_t *locked,
                           uint64_t now_ns);
/** A listing with attributes goes to the kernel (with the lock of the tokens), or has come there. */
void name_inval_listing_goes(struct name_inval *name_inval, uint64_t dir);
void name_inval_listing_came(struct name_inval *name_inval, uint64_t dir);
/** With the lock of the tokens: the kernel has just been made to believe no name that it knew. */
void name_inval_made_old(struct name_inval *name_inval, struct token_cache *tokens,
                         const uint64_t *locked);

#endif
