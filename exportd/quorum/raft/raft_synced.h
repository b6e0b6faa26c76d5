/*
 * raft_synced.h - how far logs are on stable storage: that of this member, and on a
 * leader those of the others.
 *
 * A log is first written (to the page cache, where a loss of power may destroy it), then
 * synced. Pure.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_SYNCED_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_SYNCED_H

#include "exportd/quorum/raft/raft_msg.h"

/* Newest entries for which it holds; 0: none. Plain data. */
struct raft_synced {
    uint64_t written, synced; /* own log; synced may be the higher one */
    /* leader: the others, since it leads */
    unsigned n_peers;
    struct {
        uint64_t id, index;
    } peers[RAFT_SERVERS_MAX];
};

/** The own log drops this entry and all after it. */
void raft_synced_truncate(struct raft_synced *s, uint64_t from);
/** Forgets what is known of the others: this member begins to lead. */
void raft_synced_lead(struct raft_synced *s);
/**
 * Notes that another member of this list has synced its log up to an entry. What is known
 * of former members makes room for those of the list.
 */
void raft_synced_peer(struct raft_synced *s, const struct raft_config *config,
                      uint64_t id, uint64_t index);
/** Returns up to which entry a member has synced its log; 0: not known. */
uint64_t raft_synced_of(const struct raft_synced *s, uint64_t self, uint64_t id);
/** Returns up to which entry a majority of the voters has synced its log. */
uint64_t raft_synced_majority(const struct raft_synced *s,
                              const struct raft_config *config, uint64_t self);

#endif
