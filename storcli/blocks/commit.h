/*
 * commit.h - how far what one file wrote is durable, and which storages wait to hear of it.
 *
 * Pure. What replaces something waits in the journals of the storages until its writer says that
 * it is on stable storage on enough of them (docs/internals/fsync-and-commit.md). For
 * each epoch that a file was written with there is one such word, the *watermark*: every version of
 * that epoch up to it is stable on as many storages as a write needs, or was followed by a later
 * one of its blocks that is.
 */
#ifndef ROZO_STORCLI_BLOCKS_COMMIT_H
#define ROZO_STORCLI_BLOCKS_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/record.h"

enum {
    COMMIT_EPOCHS_MAX =
        8, /* older ones are forgotten: the storages settle those themselves */
};

/* A write or mark under way, embedded in its operation. */
struct commit_flight {
    struct list_node link; /* in commit.flights, oldest first */
    uint64_t version;
};

/* One epoch. Versions are UINT64_MAX for "none". */
struct commit_epoch {
    bool used;
    uint32_t epoch;
    uint64_t oldest;   /* that was acknowledged */
    uint64_t newest;   /* the same; 0: none */
    uint64_t unsynced; /* the oldest acknowledged since the last sync began */
    uint64_t syncing;  /* the oldest that the sync under way is about */
    uint64_t failed;   /* the oldest that failed: nothing from here on is ever durable */
    uint64_t durable;  /* the watermark; 0: none */
    uint32_t durable_no; /* commit.no when it became so */
    uint32_t pending;    /* candidates that said that something of it is pending */
    uint64_t pending_to[DIST_MAX]; /* the newest of that, by candidate */
};

/* commit_init() it. Owned by one file. */
struct commit {
    struct list_node flights;
    uint32_t no;                /* counts changes of watermarks */
    uint32_t told_no[DIST_MAX]; /* of the last word that each candidate has for certain */
    bool dropped;
    uint32_t dropped_epoch; /* up to here nothing is known any more */
    struct commit_epoch epochs[COMMIT_EPOCHS_MAX];
};

void commit_init(struct commit *c);

/** A write or mark begins. */
void commit_begin(struct commit *c, struct commit_flight *flight, uint64_t version);
/** And ends. stable: acknowledged by storages that have it on stable storage (O_SYNC). */
void commit_end(struct commit *c, struct commit_flight *flight, bool acknowledged,
                bool stable);

/** A sync of all that is unsynced begins; at most one is under way. */
void commit_sync_begin(struct commit *c);
enum commit_sync {
    COMMIT_SYNC_DONE,
    COMMIT_SYNC_FAILED, /* all of it is unsynced as before */
    COMMIT_SYNC_LOST,   /* some of it can never become stable */
};
void commit_sync_end(struct commit *c, enum commit_sync how);

/** This candidate's answer to a version said that it is pending there (or it may be). */
void commit_pending(struct commit *c, unsigned candidate, uint64_t version);
/** What a message should carry: the watermarks somebody waits for; returns how many. */
unsigned commit_durable(const struct commit *c, uint64_t durable[COMMIT_EPOCHS_MAX]);
/** A message that carried commit_durable() when c->no was `no` was answered. */
void commit_told(struct commit *c, unsigned candidate, uint32_t no);
/** It will not listen: forget what waits there. */
void commit_forget(struct commit *c, unsigned candidate);

/** Another storage is in this candidate's place: nothing is pending there, and it was told nothing. */
void commit_replaced(struct commit *c, unsigned candidate);

/** The newest version that was acknowledged, of all epochs; 0: none. */
uint64_t commit_newest(const struct commit *c);

/**
 * Candidates that wait for a watermark that is known here, or for one that has come further since they were told, if not as
 * far as they wait for: what is under way may wait for the room that this makes.
 */
uint32_t commit_due(const struct commit *c);
/** Would a sync raise a watermark that some candidate waits for? */
bool commit_wants_sync(const struct commit *c);

#endif
