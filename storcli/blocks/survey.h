/*
 * survey.h - what others wrote and nobody is known to have made stable: which storages have it?
 *
 * A mount that did not write a file knows nothing of who holds what. So storages tell it, with their sync, which
 * blocks are *loose* (StSyncResp). When all of them answered, and a quorum tells of the same, all who hold it have
 * synced it. Else the heads of those blocks are read, and what was found is a list of what is unsynced, with its holders, as if
 * we had written it ourselves.
 *
 * Private to storcli/blocks. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_SURVEY_H
#define ROZO_STORCLI_BLOCKS_SURVEY_H

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"

enum {
    SURVEY_TOLD_MAX = 128, /* of one storage's ranges: more are not believed */
};

/* Blocks or a mark that one storage told of. */
struct survey_told {
    uint64_t first_block, end_block; /* end UINT64_MAX: to the end of everything */
    uint64_t version;                /* 0: blocks */
    uint32_t who;                    /* candidates */
};

/* survey_init() it. Owned by one sync. */
struct survey {
    struct storcli_file *file; /* borrowed */
    struct survey_told *told;  /* owned */
    unsigned n_told, told_max;
    uint64_t from;   /* no block older than this version is loose; UINT64_MAX: none is */
    bool incomplete; /* somebody told nonsense: like one who did not answer */

    /* while it runs */
    struct env_task task;
    struct unsynced *into; /* borrowed */
    storcli_done_cb *done;
    void *arg;
    bool found;  /* something was added */
    unsigned at; /* in told, sorted by then */
    uint64_t next_block;
    unsigned n_blocks;
    uint64_t *versions; /* owned, as the next */
    struct holders *holders;
};

void survey_init(struct survey *s, struct storcli_file *file);
void survey_free(struct survey *s);
/** This candidate's answer to a sync that asked for it. */
void survey_heard(struct survey *s, unsigned candidate, const Rozo__StSyncResp *resp);
/** Is there anything that may be at too few? synced: all who answered. */
bool survey_is_due(const struct survey *s, uint32_t synced);
/**
 * Add what is loose to `into`, unless that knows of it: ranges and marks with those who hold them, and what they lack
 * where they are fewer than n. done comes with 0, or -EIO when the value of a loose block cannot be found out, -EACCES, -ENOMEM.
 */
void survey_start(struct survey *s, struct unsynced *into, storcli_done_cb *done,
                  void *arg);

#endif
