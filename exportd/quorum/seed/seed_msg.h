/*
 * seed_msg.h - questions and answers with which a member gets the store, or entries of
 * the log, from another member. Pure: no clock, no I/O.
 *
 * RF_SEED asks for the next keys of a store, RF_FETCH for entries of a log. Each has a
 * fixed head; answers have a payload, with a crc of all of it. docs/FORMATS.md, "Message
 * of a quorum", has the bytes.
 */
#ifndef ROZO_EXPORTD_QUORUM_SEED_SEED_MSG_H
#define ROZO_EXPORTD_QUORUM_SEED_SEED_MSG_H

#include "common/env/kv.h"
#include "exportd/quorum/raft/raft_msg.h"

enum {
    SEED_MSG_VERSION = 1,
    SEED_KEY_MAX = 1024,
    /* bytes of a payload; a value or an entry that is larger goes alone */
    SEED_PAYLOAD = 1 << 20,
    SEED_ENTRIES_MAX = 256, /* entries of one answer */
    SEED_ITEMS_SPARE = 3,   /* see seed_items_get() */
    SEED_ASK_BYTES_MAX = 64 + SEED_KEY_MAX,
    SEED_ASK_BYTES = 64, /* bytes of a question without its key */
    SEED_CHUNK_BYTES_MAX = 48 + RAFT_CONFIG_BYTES_MAX,
    SEED_LOG_BYTES = 64,
    SEED_VOTER_BYTES = 32, /* without the list */
    SEED_VOTER_BYTES_MAX = SEED_VOTER_BYTES + RAFT_CONFIG_BYTES_MAX,
    SEED_ROW_BYTES = 16, /* before the data of each entry */
    SEED_ITEM_BYTES = 8, /* before the key and value of each item */
};

struct seed_key {
    uint32_t len; /* 0: before all keys */
    uint8_t bytes[SEED_KEY_MAX];
};

/** Makes the key behind all keys, with which a witness asks: it takes none. */
void seed_key_set_end(struct seed_key *key);

/* Question. Plain data. */
struct seed_ask {
    uint64_t from, to; /* raft ids */
    /* RF_SEED: the keys must contain all entries up to here. RF_FETCH: first entry. */
    uint64_t index;
    /* RF_JOIN: barrier_term is the term that the sender wants others to have; 0: any.
     * RF_FETCH: the sender has lost its vote and asks for a barrier. It knows of the one
     * at this index, made in this term; 0: of none. */
    bool wants_barrier;
    uint64_t barrier, barrier_term;
    struct seed_key after; /* RF_SEED: the keys behind this one */
};

/* Answer to RF_SEED, without the items. Plain data. */
struct seed_chunk {
    bool is_last;
    uint64_t applied, applied_term; /* the store had these entries when it was read */
    int64_t wall_ns;                /* clock of the newest one */
    uint64_t members_index;
    uint64_t highest_id;        /* highest id in all lists up to `applied` */
    struct raft_config members; /* newest list up to `applied` */
};

/* Answer to RF_JOIN. Plain data. */
struct seed_voter {
    bool leads; /* the answering member leads in this term, with a lease, and is ready */
    bool in_doubt; /* the member may have lost entries that it had acknowledged */
    bool is_whole; /* the log has all that the member ever acknowledged */
    /* The member began with what was left of its log after a loss of power, and no leader
     * has counted that. */
    bool has_loss;
    bool is_removed;          /* no member any more: only the list counts */
    uint64_t term;            /* persisted */
    uint64_t last, last_term; /* newest entry of its log */
    struct raft_config list;  /* newest list of members that it knows */
};

/* Answer to RF_FETCH, without the entries. Plain data. */
struct seed_log {
    bool leads; /* the answering member leads in this term, and is ready */
    /* a majority of the voters, without the asking member, has the barrier */
    bool is_held;
    uint64_t term;
    uint64_t first;   /* oldest entry that it can give; those in the store are gone */
    uint64_t commit;  /* entries up to here are given */
    uint64_t last;    /* last entry of its log */
    uint64_t barrier; /* index; 0: none was made */
    uint64_t index;   /* first entry of this answer */
    unsigned n;       /* 0..SEED_ENTRIES_MAX */
};

/** Packs a question. Returns the bytes written. */
size_t seed_ask_encode(const struct raft_msg_group *group, const struct seed_ask *ask,
                       uint8_t buf[SEED_ASK_BYTES_MAX]);
/**
 * Unpacks and checks a question. Returns 0, -ROZO_EUNKNOWN_FORMAT, -ROZO_EDEPOSED or
 * -ESTALE (raft_group_check(); or for another member) or -EBADMSG.
 */
int seed_ask_decode(const struct raft_msg_group *group, uint64_t to, const void *buf,
                    size_t len, struct seed_ask *ask);

/** Packs an answer to RF_SEED. Returns the bytes written. */
size_t seed_chunk_encode(const struct seed_chunk *chunk, const void *payload, size_t len,
                         uint8_t buf[SEED_CHUNK_BYTES_MAX]);
/** Unpacks and checks one, with the crc of its payload. Returns as above. */
int seed_chunk_decode(const void *buf, size_t len, const void *payload,
                      size_t payload_len, struct seed_chunk *chunk);

/** Writes an item as part of a payload; buf has room. Returns the bytes written. */
size_t seed_item_put(uint8_t *buf, const void *key, size_t key_len, const void *val,
                     size_t val_len);
/**
 * Checks the items of a payload: keys ascend from `after`, none is longer than
 * SEED_KEY_MAX or a member's own (key_is_of_member()). Returns 0 or -EBADMSG.
 */
int seed_items_check(const uint8_t *p, size_t len, const struct seed_key *after);
/**
 * Checks and unpacks the items of a payload.
 *
 * @param items out: malloc'ed, owned by the caller, with room for SEED_ITEMS_SPARE more;
 *              keys and values point into p.
 * @return 0, -EBADMSG or -ENOMEM; *items is NULL then.
 */
int seed_items_get(const uint8_t *p, size_t len, const struct seed_key *after,
                   struct kv_item **items, size_t *n_items);

/** Packs an answer to RF_JOIN. Returns the bytes written. */
size_t seed_voter_encode(const struct seed_voter *voter,
                         uint8_t buf[SEED_VOTER_BYTES_MAX]);
/** Unpacks and checks one. Returns as above. */
int seed_voter_decode(const void *buf, size_t len, struct seed_voter *voter);

/** Writes what goes before the data of an entry. */
void seed_row_put(uint8_t buf[SEED_ROW_BYTES], const struct raft_log_entry *e);
/** Packs an answer to RF_FETCH; crc: codec_crc32c() over all rows and data. */
void seed_log_encode(const struct seed_log *log, uint32_t crc,
                     uint8_t buf[SEED_LOG_BYTES]);
/**
 * Unpacks and checks one. *entries out: log->n of them; their data points into the
 * payload. Returns as above.
 */
int seed_log_decode(const void *buf, size_t len, const uint8_t *payload,
                    size_t payload_len, struct seed_log *log,
                    struct raft_log_entry entries[SEED_ENTRIES_MAX]);

#endif
