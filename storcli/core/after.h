/*
 * after.h - what is done for a file when its callers have their answers: a sync in the background
 * and the notices to storages that may then apply what they keep in their journals; also after
 * the file was closed.
 */
#ifndef ROZO_STORCLI_AFTER_H
#define ROZO_STORCLI_AFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env.h"
#include "common/list.h"

struct storcli;
struct storcli_file;
struct after_call;

/* Embedded in a file. */
struct after {
    struct env_timer timer;
    struct after_call *calls; /* owned: requests under way */
    uint32_t committing;      /* candidates among these */
    uint64_t sync_at_ns;      /* a sync in the background begins; 0: none is wanted */
    uint64_t commit_at_ns;    /* notices go out; 0: none are due */
    uint64_t pending_bytes;   /* since the last sync began */
    unsigned n_sync_failed;   /* in the background, one after the other */
    unsigned n_commit_failed;
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
