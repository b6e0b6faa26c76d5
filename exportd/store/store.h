/*
 * store.h - the kv as operations use it: cached, with one pending batch.
 *
 * Reads see all earlier puts. All changes of one turn of the loop are one commit, which a
 * posted task makes, or several if they are large; an operation's changes are in one.
 * Their effect may be answered only after store_when_committed().
 * Operations share the batch, so each checks everything first and then changes without
 * failing. Running out of memory during a change ends the process, because half an
 * operation must never be committed.
 */
#ifndef ROZO_EXPORTD_STORE_STORE_H
#define ROZO_EXPORTD_STORE_STORE_H

#include "common/base/list.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "exportd/store/key.h"

struct store;

enum {
    /* bytes, largest value: the set of allocated blocks of a file has 80 KiB at most */
    STORE_VALUE_MAX = 128 << 10,
    /* a batch that has so many bytes is committed at the end of an operation */
    STORE_BATCH_BYTES = 1 << 20,
};

/* Waiter for the changes made so far. Embedded in the caller's struct. */
struct store_wait {
    /* called once, never inside store_when_...() */
    void (*fn)(struct store_wait *wait, int rc);
    struct list_node link; /* used by the store */
};

/**
 * Opens the store over a kv.
 *
 * @param cache_max bytes of keys and values kept in memory, roughly.
 */
int store_open(struct env *env, struct kv *kv, size_t cache_max, struct store **out);
/**
 * Closes the store. Nothing may be pending, committing or syncing, see store_is_idle().
 * NULL is fine.
 */
void store_close(struct store *s);

/**
 * Reads a value. Returns 0, -ENOENT, -EIO, -ROZO_EDAMAGED or -ENOMEM. *val belongs to the
 * store and is valid until the key is put or deleted, or until store_trim().
 */
int store_get(struct store *s, const struct key *key, const uint8_t **val, size_t *len);
void store_put(struct store *s, const struct key *key, const void *val, size_t len);
void store_delete(struct store *s, const struct key *key);

/**
 * Opens an iterator over all keys. Commits the pending batch first, so do not call it in
 * the middle of an operation's changes. Put nothing while the iterator is open.
 */
int store_scan(struct store *s, struct kv_iter **out);

/**
 * Says that an operation's changes are complete: commits the pending batch if it is
 * large. Call it between operations that may be many in one turn.
 */
void store_end_operation(struct store *s);
/**
 * Evicts the least recently used entries until the cache fits. Call it between
 * operations; it implies store_end_operation().
 */
void store_trim(struct store *s);

/**
 * Returns true if nothing is pending or being committed: what was read may be answered at
 * once.
 */
bool store_is_clean(const struct store *s);
/** Returns true if the store is clean, no sync is under way and no waiter is queued. */
bool store_is_idle(const struct store *s);
/**
 * Calls the waiter once all puts so far survive the end of this process (0), or cannot be
 * committed (-errno).
 */
void store_when_committed(struct store *s, struct store_wait *wait);
/** Calls the waiter when all puts so far are on stable storage. Waiters share a sync. */
void store_when_synced(struct store *s, struct store_wait *wait);
/** Starts a sync if there is anything to sync. */
void store_sync_soon(struct store *s);

/**
 * Returns true if nothing that was read can be stale; else done comes, as from
 * kv_confirm(). Asked when everything was read, before the answer leaves.
 */
bool store_confirm(struct store *s, struct kv_done *done);
/** Returns the time for stamps, ns since 1970: never below that of the newest change. */
int64_t store_stamp_ns(struct store *s);
/**
 * Writes nothing more, as if a commit had failed with -ROZO_ENOT_LEADER: another process
 * may change the kv from now on.
 */
void store_abandon(struct store *s);

/**
 * Returns 0, or the error of a commit or sync that failed: nothing can be changed after
 * that.
 */
int store_error(const struct store *s);
uint64_t store_free_bytes(struct store *s);

#endif
