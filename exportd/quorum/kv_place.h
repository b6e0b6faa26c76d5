/*
 * kv_place.h - keys that are a member's own (key_is_of_member()): the entry of the log
 * up to which all other keys are complete, the list of members, the highest id, and the
 * mark of a copy that is not complete. docs/FORMATS.md, "Metadata keys", has the bytes.
 */
#ifndef ROZO_EXPORTD_QUORUM_KV_PLACE_H
#define ROZO_EXPORTD_QUORUM_KV_PLACE_H

#include "common/env/kv.h"
#include "exportd/quorum/raft/raft_msg.h"
#include "exportd/quorum/seed/seed_msg.h"

/* Reason why a member gets its store from another one. The values are on disk; a higher
 * one asks for more before the member takes part again. */
enum seed_doubt {
    SEED_NONE = 0,      /* the store is complete */
    SEED_BEHIND = 1,    /* the other members no longer have the entries that it lacks */
    SEED_LOG_LOST = 2,  /* entries that it has acknowledged may be missing */
    SEED_VOTE_LOST = 3, /* likewise; and it may have voted in terms that it forgot */
};

/* State of a store that is copied from another member. Plain data. */
struct seed_mark {
    enum seed_doubt doubt;
    bool is_copied; /* no key is missing any more, only entries */
    /* SEED_BEHIND: entry that the SEED of the leader named */
    uint64_t needed;
    /* The keys up to the cursor contain all entries up to this one; 0: nothing is copied,
     * keys of an old store may lie there. */
    uint64_t index, term;
    uint64_t newest;        /* some of the keys may contain entries up to this one */
    int64_t wall_ns;        /* clock of the newest entry */
    struct seed_key cursor; /* last key copied */
};

/* Place in the log, as the kv of a member holds it. */
struct kv_quorum_place {
    uint64_t applied, applied_term; /* newest entry that it holds; 0: none */
    struct raft_config members;     /* newest list at or before applied; n 0: none */
    uint64_t members_index;
    /* highest id that was in a list at or before applied: ids are not used again */
    uint64_t highest_id;
    /* The newest entry that came with a copy, not through the log, and its term; the
     * first entry of a group if there was none. A witness only. */
    uint64_t copied, copied_term;
    struct seed_mark seed; /* doubt SEED_NONE: the kv is complete; else applied is 0 */
};

enum {
    PLACE_APPLIED_BYTES = 24,
    PLACE_MEMBERS_BYTES_MAX = 8 + RAFT_CONFIG_BYTES_MAX,
    PLACE_HIGHEST_BYTES = 8,
    PLACE_COPIED_BYTES = 16,
    PLACE_SEED_BYTES_MAX = 48 + SEED_KEY_MAX,
};

/* Each makes the item that sets a key; buf takes its value. */
struct kv_item kv_place_applied(uint8_t buf[PLACE_APPLIED_BYTES], uint64_t index,
                                uint64_t term, int64_t wall_ns);
/** list: raft_config_encode(). */
struct kv_item kv_place_members(uint8_t buf[PLACE_MEMBERS_BYTES_MAX], uint64_t index,
                                const void *list, size_t len);
/**
 * Sets the highest id that was in a list. Without this key it is that of the newest list.
 */
struct kv_item kv_place_highest(uint8_t buf[PLACE_HIGHEST_BYTES], uint64_t id);
/** Sets the newest entry that came with a copy. */
struct kv_item kv_place_copied(uint8_t buf[PLACE_COPIED_BYTES], uint64_t index,
                               uint64_t term);
struct kv_item kv_place_seed(uint8_t buf[PLACE_SEED_BYTES_MAX],
                             const struct seed_mark *mark);
/** Each makes the item that deletes a key. */
struct kv_item kv_place_no_applied(void);
struct kv_item kv_place_no_seed(void);

/**
 * Reads the place. Returns 0, -EIO, -ENOMEM, or -ROZO_EDAMAGED if the keys are not valid.
 */
int kv_place_load(struct kv *below, struct kv_quorum_place *place, int64_t *wall_ns);

#endif
