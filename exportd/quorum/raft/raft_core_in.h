/*
 * raft_core_in.h - what the files of the core share.
 *
 * raft_core.c: life, events of the caller, what follows from them.
 * raft_collect.c: results of libraft. raft_receive.c: messages of other members.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_CORE_IN_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_CORE_IN_H

#include <raft.h>

#include "exportd/quorum/raft/raft_changes.h"
#include "exportd/quorum/raft/raft_core.h"
#include "exportd/quorum/raft/raft_lease.h"
#include "exportd/quorum/raft/raft_synced.h"

#if RAFT_VERSION_NUMBER != 2201
#    error "the core is written for libraft 0.22.1: other versions free other memory"
#endif

/* Term and vote. */
struct ballot {
    uint64_t term, vote;
};

/* Leader whose heartbeats this follower accepts. */
struct heard {
    uint64_t from, term;
    uint64_t sent_ns; /* newest of its times, by its clock */
    uint64_t at_ns;   /* last heartbeat came then, by our clock */
    bool is_lazy;     /* the leader counts what is written */
    uint64_t match;   /* the own log is the same up to here */
};

/* Transfer of leadership. After a failure it lasts until it cannot succeed late. */
struct transfer {
    bool is_active;
    uint64_t to;         /* waits for this member's entries (R22); 0: libraft has begun */
    uint64_t until_ns;   /* with to: it fails then */
    uint64_t sent_index; /* last index in the TIMEOUT_NOW; 0: none was sent */
    bool is_voided;      /* an entry after sent_index was appended */
};

/* Loss of power that a leader has to count. */
struct core_loss {
    uint64_t term; /* this member came back from one in this term; 0: none, or counted */
    bool is_heard; /* leader: another member came back from one */
    bool is_counted; /* leader: it is counted */
};

struct raft_core {
    struct raft raft;
    struct raft_core_options options;
    char address[RAFT_ADDRESS_MAX + 1]; /* name of this member; libraft wants one */
    bool is_started, is_broken;
    bool is_taken;   /* the results of the last event were taken */
    bool is_hurried; /* the leader is dead: short election timeouts */
    uint64_t now_ns;
    uint64_t votes_from_ns; /* no vote is given before (R5) */

    struct ballot ballot, saved; /* newest; on stable storage */
    struct heard heard;
    struct raft_lease lease; /* leader */
    struct transfer transfer;
    uint64_t first_own; /* leader: first entry of its term; 0: not yet appended */
    uint64_t log_last;  /* newest entry that the caller has got */
    struct raft_synced synced;
    uint64_t sync_to; /* the log shall be synced up to here, at once */
    /* highest place of a list of members. What is written counts when the log is synced
     * up to here: else a loss of power might bring back a list that was dropped, or an
     * older one. */
    uint64_t list_to;
    struct core_loss loss;
    uint64_t stable_told; /* leaders said: up to here all is synced by a majority */
    uint64_t covered;     /* witness: leaders said so; leader: found so */

    struct raft_changes changes; /* lists of members */

    struct raft_core_out out;
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX + 2];
    struct ballot before;                       /* ballot before this event */
    void *barrier;                              /* owned; data of libraft's own entry */
    uint8_t config_data[RAFT_CONFIG_BYTES_MAX]; /* data of a new list of members */
    struct raft_msg *messages;                  /* owned */
    size_t messages_max;
    unsigned n_messages;
    bool messages_are_out; /* the caller has got them */
};

static inline uint64_t core_lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- raft_core.c ---- */

/** Begins an event. Returns 0, or -EIO after a fatal result. */
int core_event_begin(struct raft_core *core, uint64_t now_ns);
/** Ends an event after its steps; rc: of those. Returns 0 or a fatal -errno. */
int core_event_end(struct raft_core *core, int rc);
/**
 * Steps libraft and collects what it wants. answered: the message that was received, or
 * NULL. core_event_end() sees to state changes and commits afterwards.
 */
int core_step(struct raft_core *core, struct raft_event *event,
              const struct raft_msg *answered);
/** Returns the term of an entry, as libraft's trail knows it; 0: it does not. */
uint64_t core_trail_term(const struct raft_trail *t, uint64_t index);
/**
 * Tells libraft that the oldest change is committed. Once it knows the commit index, and
 * once a later change follows: leaders append none before.
 */
int core_change_report(struct raft_core *core);
/** Returns true if this member is the only voter: it elects itself. */
bool core_is_only_voter(const struct raft_core *core);
/** Ends short election timeouts: there is a leader. */
void core_hurry_end(struct raft_core *core);

/* ---- raft_collect.c ---- */

/** Returns true if entries count when they are written. */
bool core_counts_written(const struct raft_core *core);
/** Takes over the entries that libraft wants to append. Returns 0 or -errno. */
int core_collect_entries(struct raft_core *core, const struct raft_update *update);
/** Takes over a message that libraft wants to send. answered: as for core_step(). */
void core_collect_message(struct raft_core *core, const struct raft_message *lib,
                          const struct raft_msg *answered);
/** Adds a message to send. Returns NULL if it is lost. */
struct raft_msg *core_message_add(struct raft_core *core, enum raft_msg_kind kind,
                                  uint64_t to, uint64_t term);
/**
 * Says in an answer to an APPEND how far the log is synced. A leader that is not lazy
 * hears of synced entries only.
 */
void core_say_synced(const struct raft_core *core, struct raft_msg *m);
/**
 * Returns up to which entry all voters that keep the metadata have synced their logs, as
 * far as they have said so in this term.
 */
uint64_t core_covered(const struct raft_core *core);

#endif
