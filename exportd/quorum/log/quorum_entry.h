/*
 * quorum_entry.h - a log entry in memory, shared by the threads of a member; and the
 * bytes of a batch.
 *
 * An entry is counted. Its data does not change after quorum_entry_new()'s caller has
 * filled it; index and term are set once, by the member that appends it, before another
 * thread sees it again.
 *
 * A batch is one kv_commit(): the absolute new values of keys, so applying it twice does
 * no harm. docs/FORMATS.md, "Metadata log", has the bytes.
 */
#ifndef ROZO_EXPORTD_QUORUM_LOG_QUORUM_ENTRY_H
#define ROZO_EXPORTD_QUORUM_LOG_QUORUM_ENTRY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/env/kv.h"
#include "exportd/quorum/raft/raft_msg.h"

struct quorum_entry {
    atomic_uint n_users;
    struct raft_log_entry e; /* data: `bytes` */
    uint8_t bytes[];
};

/** Makes an entry of len bytes with one user. Returns NULL without memory. */
struct quorum_entry *quorum_entry_new(enum raft_entry_kind kind, size_t len);
/** Adds a user. Any thread that is one. */
struct quorum_entry *quorum_entry_use(struct quorum_entry *entry);
/** Ends a use; the last one frees the entry. Any thread. NULL is fine. */
void quorum_entry_free(struct quorum_entry *entry);

enum {
    QUORUM_BATCH_FORMAT = 1,
    QUORUM_PART_HEAD_BYTES = 4,   /* bytes of an entry before its part of the batch */
    QUORUM_BATCH_HEAD_BYTES = 28, /* bytes of a batch before its items */
    QUORUM_BATCH_ITEM_BYTES = 8,  /* bytes of an item beside its key and value */
    QUORUM_BATCH_KEY_MAX = UINT16_MAX,
    /* Entries of a batch that is too large for one. They go into the log together. */
    QUORUM_PARTS_MAX = RAFT_MSG_ENTRIES_MAX,
};

/* Facts about a batch. Plain data. */
struct quorum_batch_head {
    int64_t wall_ns; /* clock of the leader, ns since 1970 */
    uint64_t reign;  /* random number of the time for which this leader led */
    uint64_t number; /* number of the commit in that time */
};

/**
 * Makes the entries of a batch.
 *
 * @param parts out: n of them, 1..QUORUM_PARTS_MAX; the caller is their user.
 * @return n, -EFBIG, -EINVAL (a key is a member's own, key_is_of_member()) or -ENOMEM.
 */
int quorum_batch_new(const struct kv_item *items, size_t n_items,
                     const struct quorum_batch_head *head,
                     struct quorum_entry *parts[QUORUM_PARTS_MAX]);
/**
 * Checks the head of an entry. *part and *part_len: its part of the batch, in the entry;
 * *more: the batch goes on in the next entry. Returns 0, -ROZO_EUNKNOWN_FORMAT or
 * -ROZO_EDAMAGED.
 */
int quorum_part_get(const struct quorum_entry *entry, const uint8_t **part,
                    size_t *part_len, bool *more);
/**
 * Unpacks and checks a batch: all its parts, one after the other.
 *
 * @param items out: malloc'ed, owned by the caller, with room for QUORUM_ITEMS_SPARE
 *              more; keys and values point into p.
 * @return 0, -ROZO_EDAMAGED (not a batch), or -ENOMEM; *items is NULL then.
 */
int quorum_batch_get(const uint8_t *p, size_t len, struct kv_item **items,
                     size_t *n_items, struct quorum_batch_head *head);
enum { QUORUM_ITEMS_SPARE = 2 };

#endif
