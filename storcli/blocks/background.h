/*
 * background.h - background work of a file after its callers have their answers: syncs,
 * commit notices that let storages apply their journals, missed-write notes, and hints
 * (ST_CHECK) about faults that reads found. Continues after the file was closed.
 */
#ifndef ROZO_STORCLI_BLOCKS_BACKGROUND_H
#define ROZO_STORCLI_BLOCKS_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/env/env.h"
#include "storcli/rules/missed_writes.h"

struct storcli;
struct storcli_file;
struct after_call;
struct holders;

/* Embedded in a file. */
struct background {
    struct env_timer timer;
    struct after_call *calls; /* owned: requests under way */
    uint32_t committing;      /* candidates that a commit notice is under way to */
    uint64_t sync_at_ns;      /* ns, monotonic: next background sync; 0: none is wanted */
    uint64_t commit_at_ns;    /* ns, monotonic: next commit notices; 0: none are due */
    uint64_t pending_bytes;   /* since the last sync began */
    bool pressed;             /* a storage has little room left in its journal */
    unsigned n_sync_failed;   /* background syncs that failed in a row */
    unsigned n_commit_failed;
    struct missed missed;  /* noted, not sent */
    struct missed sending; /* on its way to storages that took the data */
    unsigned n_sending;    /* answers of it still to come */
    bool stored;           /* a storage has stored it */
    bool refused;          /* a storage does not keep notes */
    uint64_t hint_at_ns;   /* ns, monotonic: next sending of notes; 0: none */
    uint64_t sent_ns;      /* ns, monotonic: start of the sending under way */
    unsigned n_hint_failed;
    bool checking;
    uint64_t check_ns; /* ns, monotonic: no hint before it */
    bool closed;
    bool hurry;                 /* the engine is ending: no delays */
    uint64_t linger_until_ns;   /* ns, monotonic; closed: abandoned after it */
    struct list_node lingering; /* closed: in cli->lingering */
};

/** Initialises the background work of a file. */
void background_init(struct storcli_file *file);
/**
 * Records that an answer said `pending` for n_bytes of user data; pressure: sync at once.
 */
void background_pending(struct storcli_file *file, uint64_t n_bytes, bool pressure);
/**
 * Schedules the work that is due now, after a write, mark or sync ended or a storage was
 * notified.
 */
void background_kick(struct storcli_file *file);
/**
 * Notes the homes that lack a write (n_blocks 0: a mark to the end) which the storages in
 * held acknowledged.
 * @param coming homes that the data is on its way to and that are only late: no sync
 *               waits for notes of these.
 */
void background_missed(struct storcli_file *file, uint64_t version, uint64_t first_block,
                       uint64_t n_blocks, const struct holders *held, uint32_t in_flight);
/**
 * Notes that these homes, as far as known, have lost data of the range that they had
 * taken.
 */
void background_lost(struct storcli_file *file, uint32_t homes, uint64_t first_block,
                     uint64_t end_block, uint64_t version, const struct holders *held);
/**
 * Returns true while a sync that would succeed should wait for missed-write notes on
 * their way to storages. The wait is short (1 s). If no storage takes the note the sync
 * succeeds all the same: the bytes are safe where they are, and versions keep stale data
 * from being believed; only healing must find the gap by itself (reads, the scrub) if
 * this client ends before it could send the note. Homes that are only late need no wait.
 */
bool background_must_wait(struct storcli_file *file);
/** Returns true if there is a note that a sync would wait for. */
bool background_has_unsent(const struct storcli_file *file);
/**
 * Sends a hint that a read found these blocks damaged, stale or missing at a home that is
 * up.
 */
void background_check(struct storcli_file *file, unsigned candidate, uint64_t first_block,
                      uint64_t n_blocks);
/**
 * Forgets a candidate whose place another storage has taken: requests to it end, notes do
 * not name it.
 */
void background_replaced(struct storcli_file *file, unsigned candidate);
/** Retries soon what failed with the old distribution: the file has another one. */
void background_relocated(struct storcli_file *file);
/** Resets the background sync timer: a sync began. */
void background_sync_began(struct storcli_file *file);
/** Records the end of a background sync, and schedules the next if it failed. */
void background_sync_ended(struct storcli_file *file, int rc);
/** Returns true if work is left for after the close. */
bool background_is_needed(struct storcli_file *file);
/** Takes over a closed file: it is freed when its work is done or abandoned. */
void background_delay(struct storcli_file *file);
/** Does the remaining work of a closed file without delays. */
void background_flush(struct storcli_file *file);
/** Cancels all requests and timers. */
void background_stop(struct storcli_file *file);

#endif
