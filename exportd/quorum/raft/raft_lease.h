/*
 * raft_lease.h - times at which followers acknowledged their leader. Pure: no clock.
 *
 * A message carries the time at which it was sent, by the sender's clock, and the answer
 * carries it back. So the leader compares only times of its own clock, and an answer that
 * is late proves no more than its question asked.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_LEASE_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "exportd/quorum/raft/raft_msg.h"

struct raft_lease_peer {
    uint64_t id;
    uint64_t acked_ns; /* newest heartbeat that it has acknowledged was sent then */
    /* acked_ns when it last had all entries that the leader believes it has */
    uint64_t whole_ns;
};
/* Acknowledgements in one term of a leader. Embedded; raft_lease_begin(). */
struct raft_lease {
    uint64_t since_ns; /* start of leadership */
    unsigned n;
    struct raft_lease_peer peers[RAFT_SERVERS_MAX];
};

/** Begins the term of a leader, without any acknowledgement. */
void raft_lease_begin(struct raft_lease *lease, uint64_t now_ns);
/** Makes the peers those of this list; those that stay keep their times. */
void raft_lease_members(struct raft_lease *lease, const struct raft_config *config);
/**
 * Notes an acknowledgement of what was sent at echo_ns. Times before the term or in the
 * future are ignored, and peers that are not members.
 */
void raft_lease_acked(struct raft_lease *lease, uint64_t id, uint64_t echo_ns,
                      uint64_t now_ns);
/** Returns when the newest heartbeat was sent that a peer has acknowledged; 0: none. */
uint64_t raft_lease_acked_ns(const struct raft_lease *lease, uint64_t id);
/** Notes that with this acknowledgement the peer had all that it was believed to have. */
void raft_lease_whole(struct raft_lease *lease, uint64_t id, uint64_t echo_ns);
/** Returns true if an answer was made after the peer last had all its entries. */
bool raft_lease_is_after_whole(const struct raft_lease *lease, uint64_t id,
                               uint64_t echo_ns);
/**
 * Returns the latest time so that a majority of the voters has acknowledged what was sent
 * then or later; self counts as if it had acknowledged now. 0: there is none.
 */
uint64_t raft_lease_confirmed(const struct raft_lease *lease,
                              const struct raft_config *config, uint64_t self,
                              uint64_t now_ns);

#endif
