/*
 * kv.h - a key-value store as daemons use it: get, ordered scan, atomic batch, sync.
 *
 * Keys are compared as unsigned bytes. A commit is seen by every get and iterator that
 * starts after kv_commit() has returned; its callback says that it survives the end of
 * this process. kv_sync()'s callback says that all commits made before the call are on
 * stable storage. Callbacks come exactly once, in order (commits among themselves), and
 * never before the call has returned. Everything belongs to one thread, that of the env
 * the kv was opened with. Implementations: kv_leveldb.h; kv_quorum.h, above another one;
 * kv_memory.h (tests).
 */
#ifndef ROZO_COMMON_ENV_KV_H
#define ROZO_COMMON_ENV_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv;

/* One change of a batch. Memory is the caller's, borrowed while kv_commit() runs. */
struct kv_item {
    const void *key;
    size_t key_len;  /* not 0 */
    const void *val; /* NULL: delete the key; the key may be absent */
    size_t val_len;
};

/* End of a commit or sync. Embedded in its user's struct; free again when fn is
 * called. */
struct kv_done {
    void (*fn)(struct kv_done *done, int rc); /* 0 or -errno */
    struct kv_done *next;                     /* the kv's */
    int rc;                                   /* the kv's */
};

/* Place in the ordered keys. Invalid after the next commit: scans are short. */
struct kv_iter;
struct kv_iter_ops {
    void (*seek)(struct kv_iter *it, const void *key, size_t key_len);
    bool (*valid)(struct kv_iter *it);
    void (*next)(struct kv_iter *it);
    const void *(*key)(struct kv_iter *it, size_t *len_bytes);
    const void *(*val)(struct kv_iter *it, size_t *len_bytes);
    int (*error)(struct kv_iter *it);
    void (*close)(struct kv_iter *it);
};
struct kv_iter {
    const struct kv_iter_ops *ops;
};

struct kv_ops {
    int (*get)(struct kv *kv, const void *key, size_t key_len, void **val,
               size_t *val_len);
    int (*iter_open)(struct kv *kv, struct kv_iter **out);
    void (*commit)(struct kv *kv, const struct kv_item *items, size_t n_items,
                   struct kv_done *done);
    void (*sync)(struct kv *kv, struct kv_done *done);
    bool (*confirm)(struct kv *kv, struct kv_done *done); /* NULL: always true */
    int64_t (*stamp_ns)(struct kv *kv, int64_t wall_ns);  /* NULL: wall_ns */
    uint64_t (*free_bytes)(struct kv *kv);
};
struct kv {
    const struct kv_ops *ops;
};

/**
 * Gets a value. Returns 0 and *val to free() (never NULL, also when empty), -ENOENT,
 * -EIO, -ROZO_EDAMAGED (the store is corrupt there) or -ENOMEM.
 */
static inline int kv_get(struct kv *kv, const void *key, size_t key_len, void **val,
                         size_t *val_len)
{
    return kv->ops->get(kv, key, key_len, val, val_len);
}
static inline int kv_iter_open(struct kv *kv, struct kv_iter **out)
{
    return kv->ops->iter_open(kv, out);
}
/**
 * Commits all items or none. If a key comes more than once its last item counts. If a
 * commit fails so do those that begin before its callback has come.
 */
static inline void kv_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                             struct kv_done *done)
{
    kv->ops->commit(kv, items, n_items, done);
}
/** Syncs. One sync at a time: the next only after done. */
static inline void kv_sync(struct kv *kv, struct kv_done *done)
{
    kv->ops->sync(kv, done);
}
/**
 * Confirms that what was read before this call is not stale: no other process could have
 * changed it. Returns true if that is certain now; else done comes, with 0 or
 * -ROZO_ENOT_LEADER. done NULL: only asks, nothing comes.
 */
static inline bool kv_confirm(struct kv *kv, struct kv_done *done)
{
    return kv->ops->confirm == NULL || kv->ops->confirm(kv, done);
}
/**
 * Returns the time with which changes are stamped, ns since 1970: wall_ns, or the newest
 * time with which any process stamped them if that is later.
 */
static inline int64_t kv_stamp_ns(struct kv *kv, int64_t wall_ns)
{
    return kv->ops->stamp_ns == NULL ? wall_ns : kv->ops->stamp_ns(kv, wall_ns);
}
/**
 * Returns the bytes free for more: those of the file system below, less the need of the
 * kv for its own clean-up. UINT64_MAX: unknown.
 */
static inline uint64_t kv_free_bytes(struct kv *kv)
{
    return kv->ops->free_bytes(kv);
}

/** Moves to the first key >= key. */
static inline void kv_iter_seek(struct kv_iter *it, const void *key, size_t key_len)
{
    it->ops->seek(it, key, key_len);
}
/** Returns false past the last key, or after an error. */
static inline bool kv_iter_valid(struct kv_iter *it)
{
    return it->ops->valid(it);
}
static inline void kv_iter_next(struct kv_iter *it)
{
    it->ops->next(it);
}
/** Returns the key, borrowed until the iterator moves. */
static inline const void *kv_iter_key(struct kv_iter *it, size_t *len_bytes)
{
    return it->ops->key(it, len_bytes);
}
static inline const void *kv_iter_val(struct kv_iter *it, size_t *len_bytes)
{
    return it->ops->val(it, len_bytes);
}
/** Returns 0, or -EIO or -ROZO_EDAMAGED: the scan is incomplete. */
static inline int kv_iter_error(struct kv_iter *it)
{
    return it->ops->error(it);
}
/** Closes an iterator. NULL is fine. */
static inline void kv_iter_close(struct kv_iter *it)
{
    if (it != NULL)
        it->ops->close(it);
}

#endif
