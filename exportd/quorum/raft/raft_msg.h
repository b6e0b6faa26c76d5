/*
 * raft_msg.h - messages between the members of a quorum, log entries and the list of
 * members, in memory and as bytes. Pure: no clock, no I/O, no libraft.
 *
 * A message is a head and a payload. The head has all numbers and a table of the entries,
 * the payload is the data of these entries, one after the other. docs/FORMATS.md
 * describes the bytes. A member is known by its raft id, the number that its config
 * gives it.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_MSG_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RAFT_MSG_VERSION = 1,
    RAFT_MSG_CLUSTER_ID_BYTES = 16,
    RAFT_MSG_ENTRIES_MAX = 64,      /* entries of one message, and in flight to a peer */
    RAFT_ENTRY_BYTES_MAX = 1 << 20, /* bytes of data of one entry */
    RAFT_MSG_PAYLOAD_MAX = 1 << 20, /* bytes of data of all entries of one message */
    RAFT_MSG_FIXED_BYTES = 104,     /* bytes of a head without its table */
    RAFT_MSG_ROW_BYTES = 16,        /* bytes of the table for each entry */
    RAFT_MSG_HEAD_MAX = RAFT_MSG_FIXED_BYTES + RAFT_MSG_ROW_BYTES * RAFT_MSG_ENTRIES_MAX,
    RAFT_SERVERS_MAX = 15,  /* members of a group, whatever their roles */
    RAFT_ADDRESS_MAX = 255, /* bytes of an address, without its final zero */
    /* each: id, 16 hexadecimal digits, space, address, zero, role; padded to 8 bytes */
    RAFT_CONFIG_BYTES_MAX = 9 + RAFT_SERVERS_MAX * (8 + 17 + RAFT_ADDRESS_MAX + 2) + 7,
};
/* Largest term and index, so that nothing overflows. */
#define RAFT_NUMBER_MAX (UINT64_MAX >> 2)

/* Kind of a log entry. The values are on disk and on the wire. */
enum raft_entry_kind {
    RAFT_ENTRY_BATCH = 1,  /* data of the caller: one batch of the kv */
    RAFT_ENTRY_EMPTY = 2,  /* nothing to apply: the first entry of a leader's term */
    RAFT_ENTRY_CONFIG = 3, /* list of members, raft_config_encode() */
};

/* Log entry. data is borrowed: each function says from whom and for how long. */
struct raft_log_entry {
    uint64_t index; /* 1.. */
    uint64_t term;  /* 1.. */
    enum raft_entry_kind kind;
    uint32_t len; /* 1..RAFT_ENTRY_BYTES_MAX */
    const void *data;
};

/* Role of a member. The values are on disk and on the wire. */
enum raft_role {
    RAFT_ROLE_STANDBY = 0, /* gets the log, does not vote */
    RAFT_ROLE_VOTER = 1,
    RAFT_ROLE_SPARE = 2, /* listed; gets nothing */
};
struct raft_member {
    uint64_t id; /* not 0 */
    enum raft_role role;
    bool is_witness; /* keeps log and vote, but no metadata; for good */
    /* text for the caller, such as host:port; printable ASCII, may be "" */
    char address[RAFT_ADDRESS_MAX + 1];
};
/* List of members, in ascending order of ids. Plain data. */
struct raft_config {
    unsigned n; /* 1..RAFT_SERVERS_MAX; 0: no list */
    struct raft_member members[RAFT_SERVERS_MAX];
};

/** Returns the member with this id, or NULL. */
const struct raft_member *raft_config_find(const struct raft_config *config, uint64_t id);
unsigned raft_config_n_voters(const struct raft_config *config);
/** Returns whether a member can serve: it votes and is no witness. */
bool raft_member_can_serve(const struct raft_member *member);
/** Returns whether the list has this member, and it is a witness. */
bool raft_config_is_witness(const struct raft_config *config, uint64_t id);
/** Returns the number of witnesses, also of those that do not vote yet. */
unsigned raft_config_n_witnesses(const struct raft_config *config);
/** Returns the highest id of the list; 0: it is empty. */
uint64_t raft_config_highest(const struct raft_config *config);
/**
 * Adds a member, which is no witness, or changes its role and address; keeps the order.
 * Returns 0, -EINVAL (id, role or address is not allowed) or -ENOSPC.
 */
int raft_config_set(struct raft_config *config, uint64_t id, enum raft_role role,
                    const char *address);
/** Makes a member of the list a witness. */
void raft_config_set_witness(struct raft_config *config, uint64_t id);
/** Removes a member. Returns 0 or -ENOENT. */
int raft_config_remove(struct raft_config *config, uint64_t id);
/**
 * Packs a list as the data of a RAFT_ENTRY_CONFIG. It must be valid and not empty.
 * Returns the bytes written, at most RAFT_CONFIG_BYTES_MAX.
 */
size_t raft_config_encode(const struct raft_config *config,
                          uint8_t buf[RAFT_CONFIG_BYTES_MAX]);
/**
 * Unpacks and checks a list: known version, ids in ascending order and not 0, known
 * roles, at least one voter that is no witness, nothing missing or left over. Returns 0
 * or -EBADMSG; *config is undefined then. config NULL: only checks.
 */
int raft_config_decode(const void *buf, size_t len, struct raft_config *config);

/* Kind of a message. The values are on the wire. */
enum raft_msg_kind {
    RAFT_MSG_APPEND = 1, /* entries, or a heartbeat */
    RAFT_MSG_APPENDED = 2,
    RAFT_MSG_VOTE = 3, /* request for a vote, or for a pre-vote */
    RAFT_MSG_VOTED = 4,
    RAFT_MSG_SEED = 5,        /* "your log ends before mine begins: seed yourself" */
    RAFT_MSG_TIMEOUT_NOW = 6, /* "campaign at once": transfer of leadership */
    RAFT_MSG_SYNC = 7,        /* "sync your log up to this entry, and say so" */
};
enum raft_msg_flags {
    RAFT_MSG_PRE_VOTE = 1, /* VOTE, VOTED */
    RAFT_MSG_DISRUPT = 2,  /* VOTE: the leader asked for this election */
    RAFT_MSG_GRANTED = 4,  /* VOTED */
    /* APPEND: the leader counts what is written. APPENDED: the answer to such a leader */
    RAFT_MSG_LAZY = 8,
    /* APPENDED: the sender came back from a loss of power that may not be counted yet.
     * APPEND: losses are counted in this term */
    RAFT_MSG_LOSS = 16,
    RAFT_MSG_LOST = 32, /* SEED: the receiver had entries that it lacks now */
    RAFT_MSG_FLAGS_ALL = 63,
};

/* Message, unpacked. Plain data. */
struct raft_msg {
    enum raft_msg_kind kind;
    unsigned flags;    /* enum raft_msg_flags */
    uint64_t from, to; /* raft ids */
    uint64_t term;
    uint64_t sent_ns; /* clock of the sender when it made this message */
    /* APPENDED: sent_ns of the newest APPEND of this term that the sender has accepted
     * from the receiver; 0: none */
    uint64_t echo_ns;
    /* APPEND to a witness: all voters that keep the metadata have synced their logs up to
     * this entry; 0: not known */
    uint64_t covered;
    /* APPEND: entry before the first one. APPENDED: index is what was rejected, 0: OK.
     * VOTE, TIMEOUT_NOW: last entry of the sender. SEED: newest entry in its store.
     * SYNC: entry up to which the log shall be synced. */
    uint64_t index, index_term;
    /* APPENDED: newest entry that the sender has and that matches. LAZY APPEND: entries
     * up to this one are committed and synced by a majority */
    uint64_t last;
    /* APPEND: commit index of the leader. LAZY APPENDED: how far the sender's log is
     * synced, at most `last` */
    uint64_t commit;
    unsigned n; /* APPEND: entries, 0..RAFT_MSG_ENTRIES_MAX */
};

/* Group to which messages belong: checked by the decoder. Plain data. */
struct raft_msg_group {
    uint8_t cluster_id[RAFT_MSG_CLUSTER_ID_BYTES];
    /* 0, or in the upper 8 bits how often the group began again with one member, below
     * them chance: members that do not belong to the same beginning share nothing */
    uint32_t number;
};
/**
 * Makes the number of a group that begins again after this one; chance: random bits.
 * Returns 0, or -EOVERFLOW: it has begun 255 times.
 */
int raft_group_next(uint32_t number, uint32_t chance, uint32_t *next);
/**
 * Checks to which group a message belongs. Returns 0 if to this one; -ROZO_EDEPOSED if
 * the sender is of this group before it began again: it has no part in it any more;
 * -ESTALE if it is of another one.
 */
int raft_group_check(const struct raft_msg_group *group,
                     const uint8_t cluster_id[RAFT_MSG_CLUSTER_ID_BYTES],
                     uint32_t number);

/**
 * Packs the head of a message. entries: msg->n entries that follow msg->index, in order;
 * their terms and lengths go into the head, their data follows as the payload. They must
 * fit into one message, see raft_msg_fill(). Returns the bytes written, at most
 * RAFT_MSG_HEAD_MAX.
 */
size_t raft_msg_encode(const struct raft_msg_group *group, const struct raft_msg *msg,
                       const struct raft_log_entry *entries,
                       uint8_t head[RAFT_MSG_HEAD_MAX]);
/**
 * Returns how many of n entries go into one message: at most RAFT_MSG_ENTRIES_MAX and
 * RAFT_MSG_PAYLOAD_MAX bytes; at least 1 if n is not 0. If it is fewer than n, the caller
 * sets msg->n to it, sends, and goes on with raft_msg_advance().
 */
unsigned raft_msg_fill(const struct raft_log_entry *entries, unsigned n);
/** Makes the APPEND follow the last of the msg->n entries that went with it. */
void raft_msg_advance(struct raft_msg *msg, const struct raft_log_entry *last);

/**
 * Unpacks and checks a message; all that libraft takes for granted is checked here, or by
 * raft_core_receive() where it depends on the state.
 *
 * @param to      raft id of this member.
 * @param entries out: msg->n entries; their data points into payload.
 * @return 0; -ROZO_EUNKNOWN_FORMAT for another version; -ROZO_EDEPOSED if the sender is
 *         of the group before it began again; -ESTALE if it is for another cluster, group
 *         or member (an earlier one at this address); -EBADMSG for anything else that is
 *         not valid.
 */
int raft_msg_decode(const struct raft_msg_group *group, uint64_t to, const void *head,
                    size_t head_len, const void *payload, size_t payload_len,
                    struct raft_msg *msg,
                    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX]);

#endif
