/*
 * resync.h - hints of peers about what we missed. Inside storaged/heal only.
 *
 * Only resync.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_RESYNC_H
#define ROZO_STORAGED_HEAL_RESYNC_H

#include "storaged/heal/jobs/heal_ask.h"
#include "storaged/heal/jobs/heal_jobs.h"

/* One hint of a peer about a write that we missed. */
struct hint {
    struct storcli_target target;
    uint64_t first, end, version, note;
    unsigned peer; /* index in resync.peers */
    unsigned group;
};
/* Hints that are repaired together. */
struct hint_group {
    struct heal_job job;
    struct healer *h;
    bool good;
};
/* One peer's list of hints in a round. */
struct resync_peer {
    struct heal_ask ask;
    uint32_t id;
    bool heard, end;
    bool has_after;
    uint8_t after[FILE_ID_BYTES];
};
/* One round of asking all peers for writes that we missed. */
struct resync {
    bool under_way;
    struct env_timer timer;
    struct resync_peer *peers; /* owned */
    unsigned n_peers, n_waiting, max_ranges;
    struct hint *entries; /* owned */
    unsigned n_entries, entries_room;
    struct hint_group *groups; /* owned */
    unsigned n_groups, n_running;
    unsigned n_bad;                     /* rounds in a row that left something unhealed */
    uint64_t unhealed, unhealed_before; /* blocks; in this round, in the one before */
};

void resync_start(struct healer *h);
void resync_stop(struct healer *h);

#endif
