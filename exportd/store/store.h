/*
 * store.h - the kv as operations use it: cached, with a pending batch shared by one turn.
 *
 * Reads see what was put before them. All changes of one turn of the loop are one commit, made by
 * a posted task; what they mean may be told to others only after store_when_committed(). Several
 * operations share the batch, so an operation checks everything first and then changes without
 * failing. Running out of memory while changing ends the process: half an operation must never
 * be committed.
 */
#ifndef ROZO_EXPORTD_STORE_STORE_H
#define ROZO_EXPORTD_STORE_STORE_H

#include "common/base/list.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "exportd/store/key.h"

struct store;

/* Somebody waiting for the changes made so far. Embedded in its user's struct. */
struct store_wait {
    void (*fn)(struct store_wait *wait, int rc); /* once; never inside store_when_...() */
    struct list_node link;                       /* the store's */
};

/** @param cache_max bytes of keys and values kept in memory, roughly. */
int store_open(struct env *env, struct kv *kv, size_t cache_max, struct store **out);
/** Nothing may be pending, committing or syncing: see store_is_idle(). NULL is fine. */
void store_close(struct store *s);

/**
 * 0, -ENOENT, -EIO or -ENOMEM. *val is the store's: it lives until the key is put or deleted,
 * or until store_trim().
 */
int store_get(struct store *s, const struct key *key, const uint8_t **val, size_t *len);
void store_put(struct store *s, const struct key *key, const void *val, size_t len);
void store_delete(struct store *s, const struct key *key);

/**
 * Iterate over what is there, the pending batch included (it is committed first). Not in the
 * middle of an operation's changes; put nothing while it is open.
 */
int store_scan(struct store *s, struct kv_iter **out);

/** Forget what was used longest ago until the cache fits. Between operations. */
void store_trim(struct store *s);

/** True when nothing is pending or on its way: what was read may be told at once. */
bool store_is_clean(const struct store *s);
/** True when also no sync is under way and nobody waits. */
bool store_is_idle(const struct store *s);
/** fn when everything put so far survives the end of this process (0), or will not (-errno). */
void store_when_committed(struct store *s, struct store_wait *wait);
/** fn when everything put so far is on stable storage. Waiters share a sync. */
void store_when_synced(struct store *s, struct store_wait *wait);
/** Start a sync if there is anything a sync would cover. */
void store_sync_soon(struct store *s);

/** 0, or why nothing can be changed any more: a commit or sync has failed. */
int store_error(const struct store *s);
uint64_t store_free_bytes(struct store *s);

#endif
