/*
 * blk_commit.h - how far the writes of one file are durable, and which storages wait to
 * be notified.
 *
 * Pure. An overwrite waits in the journals of the storages until its writer says that it
 * is on stable storage on enough of them (docs/ARCHITECTURE.md, "The life of a write").
 * Each epoch that a file was written with has one *watermark*: every version of that
 * epoch up to it is stable on as many storages as a write needs, or was followed by a
 * later version of its blocks that is.
 */
#ifndef ROZO_STORCLI_BLOCKS_BLK_COMMIT_H
#define ROZO_STORCLI_BLOCKS_BLK_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/wire/record.h"

enum {
    COMMIT_EPOCHS_MAX = 8, /* the storages recover older ones by themselves */
};

/* Write or mark under way, embedded in its operation. */
struct commit_flight {
    struct list_node link; /* in commit.flights, oldest first */
    uint64_t version;
};

/* State of one epoch. Versions are UINT64_MAX for "none". */
struct commit_epoch {
    bool used;
    uint32_t epoch;
    uint64_t oldest;     /* oldest acknowledged version */
    uint64_t newest;     /* newest acknowledged version; 0: none */
    uint64_t unsynced;   /* oldest acknowledged version since the last sync began */
    uint64_t syncing;    /* oldest version that the sync under way covers */
    uint64_t failed;     /* oldest failed version: from here on none gets durable */
    uint64_t durable;    /* watermark; 0: none */
    uint32_t durable_no; /* commit.no when the watermark was raised */
    uint32_t pending;    /* candidates that have versions of it pending */
    uint64_t pending_to[DIST_MAX]; /* newest pending version, by candidate */
};

/* Owned by one file; initialise with commit_init(). */
struct commit {
    struct list_node flights;
    uint32_t no; /* counts changes of watermarks */
    uint32_t
        confirmed_no[DIST_MAX]; /* newest commit.no that each candidate acknowledged */
    bool dropped;
    uint32_t dropped_epoch; /* epochs up to this one are forgotten */
    struct commit_epoch epochs[COMMIT_EPOCHS_MAX];
};

void commit_init(struct commit *c);

/** Registers a write or mark that begins. */
void commit_begin(struct commit *c, struct commit_flight *flight, uint64_t version);
/**
 * Registers the end of a write or mark. stable: on the stable storage of those that
 * acknowledged (O_SYNC).
 */
void commit_end(struct commit *c, struct commit_flight *flight, bool acknowledged,
                bool stable);

/** Begins a sync of all unsynced versions; at most one is under way. */
void commit_sync_begin(struct commit *c);
enum commit_sync {
    COMMIT_SYNC_DONE,
    COMMIT_SYNC_FAILED, /* everything is unsynced as before */
    COMMIT_SYNC_LOST,   /* some of it can never become stable */
};
void commit_sync_end(struct commit *c, enum commit_sync how);

/** Records that this candidate has the version pending, or may have. */
void commit_pending(struct commit *c, unsigned candidate, uint64_t version);
/**
 * Collects the watermarks that some storage waits for, to be sent with a message; returns
 * their number.
 */
unsigned commit_durable(const struct commit *c, uint64_t durable[COMMIT_EPOCHS_MAX]);
/**
 * Records that this candidate answered a message with the watermarks of commit.no `no`.
 */
void commit_confirmed(struct commit *c, unsigned candidate, uint32_t no);
/** Forgets what is pending at a candidate that refuses notices or never answers. */
void commit_forget(struct commit *c, unsigned candidate);

/**
 * Forgets a candidate whose place another storage has taken: it has nothing pending, and
 * no watermark.
 */
void commit_replaced(struct commit *c, unsigned candidate);

/** Returns the newest version that was acknowledged, over all epochs; 0: none. */
uint64_t commit_newest(const struct commit *c);

/**
 * Returns the candidates that wait for a watermark known here, or for one that has risen
 * since they were notified, even if not as far as they wait for: requests under way may
 * wait for the journal space that this frees.
 */
uint32_t commit_due(const struct commit *c);
/** Returns true if a sync would raise a watermark that some candidate waits for. */
bool commit_wants_sync(const struct commit *c);

#endif
