/*
 * after.h - what is done for a file when its callers have their answers: a sync in the background
 * and the notices to storages that may then apply what they keep in their journals, notes of what
 * some homes missed, hints at what reads found wrong; also after the file was closed.
 */
#ifndef ROZO_STORCLI_BLOCKS_AFTER_H
#define ROZO_STORCLI_BLOCKS_AFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/env/env.h"
#include "storcli/blocks/missed.h"

struct storcli;
struct storcli_file;
struct after_call;
struct holders;

/* Embedded in a file. */
struct after {
    struct env_timer timer;
    struct after_call *calls; /* owned: requests under way */
    uint32_t committing;      /* candidates among these */
    uint64_t sync_at_ns;      /* a sync in the background begins; 0: none is wanted */
    uint64_t commit_at_ns;    /* notices go out; 0: none are due */
    uint64_t pending_bytes;   /* since the last sync began */
    bool pressed;             /* a storage has little room left in its journal */
    unsigned n_sync_failed;   /* in the background, one after the other */
    unsigned n_commit_failed;
    struct missed missed;  /* not told */
    struct missed telling; /* on its way to those who took it */
    unsigned n_telling;    /* answers to come */
    bool told;             /* one of them has it */
    bool refused;          /* one of them does not keep notes */
    uint64_t tell_at_ns;   /* 0: nothing is to be told */
    uint64_t telling_ns;   /* since when */
    unsigned n_tell_failed;
    bool checking;
    uint64_t check_ns; /* no hint before this */
    bool closed;
    bool hurry;                 /* the engine is to end */
    uint64_t give_up_ns;        /* closed: not after this */
    struct list_node lingering; /* closed: in cli->lingering */
};

void after_init(struct storcli_file *file);
/** An answer said `pending` of so many bytes; or `pressure`: hurry. */
void after_pending(struct storcli_file *file, uint64_t n_bytes, bool pressure);
/** A write, mark or sync ended, or a storage was told something: see what is to be done now. */
void after_look(struct storcli_file *file);
/**
 * A write (n_blocks 0: a mark to the end) was acknowledged by those in held: homes may lack it. coming: homes to which it is
 * on its way, and of which it is only known that they are late.
 */
void after_missed(struct storcli_file *file, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, const struct holders *held, uint32_t coming);
/** These homes have lost what they had taken of it, as far as we know. */
void after_lost(struct storcli_file *file, uint32_t homes, uint64_t first_block,
                uint64_t end_block, uint64_t version, const struct holders *held);
/**
 * For a sync that would succeed: are notes of what homes missed still on their way to storages? It waits a
 * little. When nobody can be told it succeeds all the same: the bytes are safe where they are, and
 * versions keep what is stale from being believed; only healing has to find it by itself (reads, the scrub)
 * if this client ends before it could tell. Nor does it wait where homes are only late: they have it soon.
 */
bool after_must_wait(struct storcli_file *file);
/** Is there a note that a sync would wait for? */
bool after_has_untold(const struct storcli_file *file);
/** A read found that these blocks are damaged, stale or missing at a home that is up. */
void after_check(struct storcli_file *file, unsigned candidate, uint64_t first_block,
                 uint64_t n_blocks);
/** Another storage is in this candidate's place: requests to the old one end, and notes do not name it. */
void after_replaced(struct storcli_file *file, unsigned candidate);
/** The file has another distribution: what failed with the old one is tried again soon. */
void after_relocated(struct storcli_file *file);
/** A sync began. */
void after_sync_began(struct storcli_file *file);
/** A sync that nobody asked for ended. */
void after_sync_ended(struct storcli_file *file, int rc);
/** Is there anything left for after the close? */
bool after_is_needed(struct storcli_file *file);
/** The file was closed: from here on it is ours, and freed when all is done or given up. */
void after_linger(struct storcli_file *file);
/** Closed: do at once what is still to be done. */
void after_hurry(struct storcli_file *file);
/** Nothing comes any more. */
void after_stop(struct storcli_file *file);

#endif
