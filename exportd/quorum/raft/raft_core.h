/*
 * raft_core.h - one member's part in a raft group: elections, replication, commit index,
 * lease. Wraps raft_step() of libraft 0.22.1 and guards against its defects (numbers in
 * docs/internals/metadata-quorum.md).
 *
 * Pure: no I/O, no threads, no clock. The caller reports events; after each it takes the
 * results with raft_core_take() and carries them out. It keeps the log: the core knows
 * only the terms of entries, never their data. One thread.
 *
 * Times are nanoseconds of a monotonic clock that also runs while the machine is
 * suspended (CLOCK_BOOTTIME). Clocks of different members need not agree.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_CORE_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "exportd/quorum/raft/raft_msg.h"

struct raft_core;

enum {
    RAFT_ELECTION_MS = 800, /* E: a follower waits E to 2 E for its leader */
    RAFT_PROMISE_MS = 300,  /* P: no follower votes or campaigns sooner after one */
    RAFT_HEARTBEAT_MS = 50, /* pause between heartbeats */
    /* entries that are not committed; a leader refuses more */
    RAFT_UNCOMMITTED_MAX = 4096,
};

struct raft_core_options {
    uint64_t id; /* raft id of this member, not 0 */
    struct raft_msg_group group;
    unsigned election_ms;  /* 0: RAFT_ELECTION_MS; the same on all members */
    unsigned heartbeat_ms; /* 0: RAFT_HEARTBEAT_MS */
    /* time for which a follower keeps to its leader in any case: the lease rests on it.
     * If the leader refuses links (raft_core_refused()) it keeps to it no longer, else
     * for election_ms. 0: election_ms. The same on all members. */
    unsigned promise_ms;
    uint32_t seed; /* for election timeouts: random */
    /* Entries count when a majority has written them, before they are synced: as leader,
     * and as follower of a leader with the same setting. */
    bool is_lazy;
};

/**
 * Makes a core; it does nothing before raft_core_start(). Options are copied. Returns 0
 * or -ENOMEM.
 */
int raft_core_open(const struct raft_core_options *options, struct raft_core **out);
/** Frees a core in any state. NULL is fine. */
void raft_core_free(struct raft_core *core);
/**
 * Checks the libraft that the program runs with: elects a core of one member, commits an
 * entry. For starts of daemons. Returns 0, or -ROZO_EUNKNOWN_FORMAT with *err.
 */
int raft_core_check_library(struct err *err);

/* Stable state of a member that starts. Everything is borrowed during
 * raft_core_start(). */
struct raft_core_saved {
    uint64_t term; /* 0: never started */
    uint64_t vote; /* raft id; 0: none in this term */
    /* newest entry whose effect the store (LevelDB) holds; 0: none. A new group begins
     * with index 1, term 1 and a list with its first member. */
    uint64_t applied, applied_term;
    struct raft_config config; /* newest list at or before applied; n 0 if applied is 0 */
    uint64_t config_index;     /* 1..applied */
    /* the log, in order, without gaps. It begins at or before applied + 1, and does not
     * end before applied; n_entries 0: it is empty. Data is looked at only for
     * RAFT_ENTRY_CONFIG and may be NULL for the others. */
    const struct raft_log_entry *entries;
    size_t n_entries;
};

/*
 * Events. Each returns 0 or a negative result; after 0, and after -EAGAIN, -EBUSY,
 * -EINVAL, -EMSGSIZE, -EBADMSG, -ESTALE and -ROZO_ENOT_LEADER (refused, nothing has
 * changed), the core goes on. Any other result is fatal: the caller stops this member.
 * raft_core_take() follows each event before the next. now_ns never goes back; if it
 * does, the core keeps the later time.
 */

/**
 * Starts. A member that is the only voter leads at once. No vote is given for one
 * election timeout: this member may have promised a leader before it restarted. Returns
 * 0, -ENOMEM, or -ROZO_EDAMAGED with *err: the log and the store do not meet, or a list
 * of members is not valid.
 */
int raft_core_start(struct raft_core *core, uint64_t now_ns,
                    const struct raft_core_saved *saved, struct err *err);
/** Lets time pass. May come at any time; due at raft_core_out.next_ns. */
int raft_core_tick(struct raft_core *core, uint64_t now_ns);
/**
 * Receives a message from raft_msg_decode(). entries, and their data, are borrowed until
 * raft_core_take() has returned and its entries are dealt with.
 *
 * @return 0, also if the message is out of date and ignored; -EBADMSG if its fields do
 *         not go together with the state of this member: the peer is faulty.
 *         -ROZO_EDAMAGED: a leader has other entries where this member's are committed.
 */
int raft_core_receive(struct raft_core *core, uint64_t now_ns, const struct raft_msg *msg,
                      const struct raft_log_entry *entries);
/**
 * Reports that the log is written up to an entry, so that the end of the process does no
 * harm. For is_lazy; otherwise it changes nothing. Reports may be late, as the next ones.
 */
int raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                      uint64_t term);
/**
 * Reports that the log is persisted up to an entry. Reports of entries that have been
 * truncated since are ignored, so reports may be late; they come in the order of writing.
 */
int raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                        uint64_t term);
/**
 * Reports that a term and vote of raft_core_out are on stable storage. Until the newest
 * are, the core holds back its messages and the commit index.
 */
int raft_core_vote_persisted(struct raft_core *core, uint64_t now_ns, uint64_t term,
                             uint64_t vote);
/**
 * Appends n entries (1..RAFT_MSG_ENTRIES_MAX) as leader: kind BATCH, data and len from
 * the caller; the core sets index and term. They come back in raft_core_out.entries; data
 * is borrowed until they are dealt with. Returns 0, -ROZO_ENOT_LEADER (also during a
 * transfer of leadership), -EMSGSIZE (R7) or -EBUSY: RAFT_UNCOMMITTED_MAX.
 */
int raft_core_submit(struct raft_core *core, uint64_t now_ns,
                     struct raft_log_entry *entries, unsigned n);
/**
 * Changes the list of members as leader. It differs from raft_core_config() in one
 * member: added, removed, or another role or address. Roles go from SPARE to STANDBY and,
 * once raft_core_match() shows that the member has caught up, to VOTER; never back. The
 * leader does not remove itself: it hands over first (R18, R21).
 *
 * @return 0; -ROZO_ENOT_LEADER; -EINVAL; -EAGAIN: no entry of this term is committed yet
 *         (R2), another change is not committed, or the new voter lacks the newest list.
 */
int raft_core_change(struct raft_core *core, uint64_t now_ns,
                     const struct raft_config *config);
/**
 * Appends an empty entry as leader, for a member that has lost its vote. *index: of that
 * entry. Returns 0, -ROZO_ENOT_LEADER or -EBUSY.
 */
int raft_core_barrier(struct raft_core *core, uint64_t now_ns, uint64_t *index);
/**
 * Sets the term in which this member came back from a loss of power that may not be
 * counted yet (raft_core_out.loss on the leader); 0: none. That ends by itself when the
 * leader of a later term says that losses are counted.
 */
void raft_core_set_loss(struct raft_core *core, uint64_t term);
/** Returns whether it came back from a loss that may not be counted yet. */
bool raft_core_has_loss(const struct raft_core *core);
/** The leader has counted losses; it says so to the others. Until it ends to lead. */
void raft_core_loss_counted(struct raft_core *core);
/**
 * Asks as leader for all entries so far to be synced by a majority, soon. Returns 0 or
 * -ROZO_ENOT_LEADER.
 */
int raft_core_want_stable(struct raft_core *core, uint64_t now_ns);
/**
 * Hands leadership over to a voter that is no witness; 0: to the one with the longest log
 * of those that are heard. Before the call the caller withdraws the lease from everybody
 * who answers by it. The core has no lease from here on, until the transfer has failed
 * and cannot succeed late. After an election timeout without success this member goes
 * on as leader.
 * Returns 0, -ROZO_ENOT_LEADER, -EBUSY (under way), or -EINVAL: no such voter.
 */
int raft_core_transfer(struct raft_core *core, uint64_t now_ns, uint64_t to);
/**
 * Asks whether the log may drop all entries before first_index (1..applied + 1); the
 * store holds everything up to applied, which is not above the commit index. Returns 0:
 * it may; or -EAGAIN: the store holds nothing new since the last time (or the start).
 */
int raft_core_trim(struct raft_core *core, uint64_t now_ns, uint64_t applied,
                   uint64_t first_index);
/**
 * Reports that a peer's machine refuses links: its process is dead, as it seems. If it
 * was the leader, this follower votes when promise_ms have passed since its last
 * heartbeat, and campaigns after one to two times promise_ms. The next heartbeat ends
 * that. No lease depends on whether the report is true.
 */
int raft_core_refused(struct raft_core *core, uint64_t now_ns, uint64_t peer);

enum raft_core_role {
    RAFT_CORE_FOLLOWER, /* members that do not vote, too */
    RAFT_CORE_CANDIDATE,
    RAFT_CORE_LEADER,
};
/*
 * Results of an event, in the order in which to carry them out. Arrays belong to the core
 * and are valid until the next event; data of entries is borrowed as the event says, or
 * belongs to the core for as long as the arrays.
 */
struct raft_core_out {
    /* term and vote to persist (fdatasync), then raft_core_vote_persisted(); 0: the same
     * as before. Entries are written to disk only after them: the next start refuses a
     * log with a later term. Later results replace earlier ones not written yet. */
    uint64_t new_term, new_vote;
    /* the log drops this entry and all after it, before it appends; 0: none */
    uint64_t truncate_from;
    /* entries to append; their persistence is reported with raft_core_persisted() */
    const struct raft_log_entry *entries;
    unsigned n_entries;
    /* messages to send, in order if possible; losing some does no harm. An APPEND with n
     * entries gets them from the log: index + 1 .. index + n. The log must not have been
     * truncated below that since; then the message is dropped. */
    const struct raft_msg *messages;
    unsigned n_messages;
    /* all entries up to here are committed, and persisted here (is_lazy: written). Never
     * goes back. */
    uint64_t commit;
    /* all entries up to here, at most commit, are synced here and by a majority: apply
     * them to the store. No loss of power takes them back. Never goes back. */
    uint64_t stable;
    /* all voters that keep the metadata have synced their logs up to here, as far as this
     * member knows: a leader or witness. Never goes back. */
    uint64_t covered;
    /* syncs of the log may wait; false: sync at once all that is written, and report */
    bool may_wait;
    /* state of this member */
    enum raft_core_role role;
    uint64_t term;
    uint64_t leader; /* raft id; 0: not known */
    /* leader: an entry of its own term is stable: it may answer */
    bool is_ready;
    /* leader: it, or a member that acknowledged entries in this term, came back from a
     * loss of power that is not counted yet */
    bool loss;
    /* member to which a SEED went, since the log does not reach back to what it needs;
     * 0: none */
    uint64_t seeding;
    /* leader's index with which this member is to seed itself: a SEED came; 0: none */
    uint64_t seed_to;
    bool seed_lost; /* with it: the leader knows that this member had more entries */
    /* member that has lost entries that it had acknowledged: it must join again (R3); 0:
     * none */
    uint64_t lost;
    /* latest time for the next raft_core_tick() */
    uint64_t next_ns;
};
/** Takes the results of the last event. */
void raft_core_take(struct raft_core *core, struct raft_core_out *out);

/* Questions; they change nothing. */

/**
 * Returns the time at which the newest round of heartbeats was sent that a majority has
 * acknowledged: at that time, or later, this member was the leader. An answer to a
 * request that came before it is not stale. 0: not leader, not ready, or no round yet.
 */
uint64_t raft_core_confirmed_ns(const struct raft_core *core);
/**
 * Returns until when no other member can be the leader: three quarters of the promise
 * after raft_core_confirmed_ns(). 0: no lease; so from the start of a transfer of
 * leadership.
 */
uint64_t raft_core_lease_until_ns(const struct raft_core *core);
/** Returns the newest list of members, committed or not; n 0: not a member yet. */
const struct raft_config *raft_core_config(const struct raft_core *core);
/** Returns the index of the newest list; 0: none. *is_committed (may be NULL): it is. */
uint64_t raft_core_config_index(const struct raft_core *core, bool *is_committed);
/**
 * Leader: the highest index that it believes a member to have persisted (for RF_JOIN, and
 * before a change to VOTER). Returns 0, -ROZO_ENOT_LEADER or -ENOENT.
 */
int raft_core_match(const struct raft_core *core, uint64_t id, uint64_t *index);
/**
 * Leader: returns whether the member has acknowledged a heartbeat of the last election
 * timeout; always true for itself.
 */
bool raft_core_is_heard(const struct raft_core *core, uint64_t id);
/**
 * Leader: returns whether a majority of the voters has synced the entry, not counting the
 * member `without`.
 */
bool raft_core_is_held(const struct raft_core *core, uint64_t index, uint64_t without);
/** Returns the newest index of the log, persisted or not. */
uint64_t raft_core_last_index(const struct raft_core *core);
/** Returns the term of an entry of the log; 0: trimmed, or not there yet. */
uint64_t raft_core_term_of(const struct raft_core *core, uint64_t index);

#endif
