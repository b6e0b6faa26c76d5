/*
 * survey.h - which storages hold data that other clients wrote and that may not be
 * stable.
 *
 * A mount that did not write a file does not know which storages hold its data. So
 * storages list, with their answer to a sync, the blocks that are *unstable*
 * (StSyncResp): written by clients and not known to be stable on enough storages. When
 * all storages answered and a quorum lists equal blocks, all that hold them have synced
 * them. Else the heads of those blocks are read, and the result is a list of unsynced
 * ranges with their holders, as if this client had written them.
 *
 * Private to storcli/blocks. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_SURVEY_H
#define ROZO_STORCLI_BLOCKS_SURVEY_H

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"

enum {
    SURVEY_RANGES_MAX = 128, /* ranges of one storage; more are not believed */
};

/* Unstable blocks, or an unstable mark, that a storage listed. */
struct survey_range {
    uint64_t first_block, end_block; /* end UINT64_MAX: to the end of the file */
    uint64_t version;                /* version of the mark; 0: blocks */
    uint32_t who;                    /* candidates that listed it */
};

/* Owned by one sync; initialise with survey_init(). */
struct survey {
    struct storcli_file *file;   /* borrowed */
    struct survey_range *ranges; /* owned */
    unsigned n_ranges, ranges_max;
    uint64_t from;   /* oldest version that may be unstable; UINT64_MAX: none */
    bool incomplete; /* an invalid list came: as if no answer had */

    /* state while it runs */
    struct env_task task;
    struct unsynced *into; /* borrowed */
    storcli_done_cb *done;
    void *arg;
    bool found;  /* something was added */
    unsigned at; /* index in the list above, sorted by then */
    uint64_t next_block;
    unsigned n_blocks;
    uint64_t *versions; /* owned, like the next one */
    struct holders *holders;
};

void survey_init(struct survey *s, struct storcli_file *file);
void survey_free(struct survey *s);
/** Takes this candidate's answer to a sync that asked for unstable blocks. */
void survey_heard(struct survey *s, unsigned candidate, const Rozo__StSyncResp *resp);
/**
 * Returns true if something may be on too few storages. synced: candidates that answered.
 */
bool survey_is_due(const struct survey *s, uint32_t synced);
/**
 * Adds the unstable blocks and marks to `into`, unless it has them, with their holders,
 * and with the projections that are missing where they are fewer than n. done comes with
 * 0, -EIO when the value of an unstable block cannot be found out, -EACCES or -ENOMEM.
 */
void survey_start(struct survey *s, struct unsynced *into, storcli_done_cb *done,
                  void *arg);

#endif
