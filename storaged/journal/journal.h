/*
 * journal.h - the overwrite journal of one loop: what replaces something waits in it until it is committed,
 * then it is applied. docs/ARCHITECTURE.md, "The overwrite journal".
 *
 * It ties together the log (wal.h), the index of what is pending (journal_index.h), fences, and the applier, which
 * writes in place through its hooks. One thread.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/env/env.h"
#include "storaged/disk/disk.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"
#include "storaged/format/journal_record.h"
#include "storaged/journal/journal_index.h"
#include "storaged/object/object.h"

enum {
    APPLY_BLOCKS_MAX = 128, /* that one call of apply_records takes */
};

struct journal;

/*
 * The journal calls these to reach files in place; done(done_arg, rc) comes once and never inside
 * the call. They return 0, or -ENOMEM, and then done does not come.
 */
struct journal_hooks {
    /** True if this loop serves the file. */
    bool (*owns)(void *arg, const struct file_id *id);
    /** At the start: removes from what is pending whatever lies in place already or has no file. */
    int (*resolve)(void *arg, struct pending_file *f, void (*done)(void *arg, int rc),
                   void *done_arg);
    /** Writes the newest committed version of each of n blocks in place, and sets `applied`. */
    int (*apply_records)(void *arg, struct pending_file *f, unsigned projection,
                         uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                         void *done_arg);
    int (*apply_mark)(void *arg, struct pending_file *f, const struct pending_mark *mark,
                      void (*done)(void *arg, int rc), void *done_arg);
    void *arg;
};

struct journal_config {
    struct env *env; /* borrowed, as all that it points at */
    struct disk *disk;
    struct objects *objects;
    struct identity *identity;
    struct generations *generations;
    unsigned n_loops, loop;
    uint64_t journal_bytes;                  /* of all loops together */
    uint64_t reserve_bytes;                  /* see struct wal_config */
    bool apply_uncommitted, believe_any_crc; /* faults for tests of the simulator */
    struct journal_hooks hooks;
};

/* A task that is posted when the journal may have room, or an applier has ended. */
struct journal_waiter {
    struct list_node link;
    struct env_task *task; /* borrowed */
};

/** 0 or -ENOMEM. The config is copied. */
int journal_new(const struct journal_config *config, struct journal **out);
/** Nothing under way. NULL is fine. */
void journal_free(struct journal *j);
/** See storage_start(). */
void journal_start(struct journal *j, void (*done)(void *arg, int rc), void *arg);
/** See storage_serve(): done(arg) when requests may be taken. */
void journal_serve(struct journal *j, void (*done)(void *arg), void *arg);
/** Apply what is committed, as far as that works, and bring all to stable storage; then done(arg). No
 * requests are under way, and none come any more. */
void journal_stop(struct journal *j, void (*done)(void *arg), void *arg);

struct journal_index *journal_get_index(struct journal *j);
/** Filled above five eighths: clients should sync and commit. */
bool journal_has_pressure(const struct journal *j);
/** Failed syncs of the journal go into the verifier, as those of projection files. */
void journal_tell_failures(struct journal *j);
void journal_health(const struct journal *j, Rozo__StHealthResp *out);

/** True if requests wait: one segment is kept free for copies, fences and drops. */
bool journal_is_full(const struct journal *j);
/** Posts the waiter's task when there may be room, or an applier has ended. */
void journal_wait(struct journal *j, struct journal_waiter *waiter);
/** The same, and the journal begins to make room. */
void journal_wait_for_room(struct journal *j, struct journal_waiter *waiter);
/** True if a request that adds a mark to this file waits. */
bool journal_has_many_marks(const struct pending_file *f, unsigned max);

/** For appends and syncs. */
struct wal *journal_log(struct journal *j);
/** The entry of a frame that was appended; NULL: no memory, and the frame was released. */
struct journal_frame *journal_frame_new(struct journal *j, const struct wal_append *a);
/** The number of the newest frame, and that all frames up to one are on stable storage. */
uint64_t journal_newest(const struct journal *j);
void journal_synced(struct journal *j, uint64_t number);
/** True if all that is pending of the file (NULL: nothing) is on stable storage. */
bool journal_file_is_synced(const struct journal *j, const struct pending_file *f);

/** Versions that are durable, as requests carry them (StCommitReq.durable). */
void journal_commit(struct journal *j, const struct file_id *id, const uint64_t *durable,
                    size_t n);
void journal_commit_range(struct journal *j, const struct file_id *id, uint64_t first,
                          uint64_t end, uint64_t version);

/** Writes of clients with this epoch or an earlier one are refused; 0: none are. */
uint32_t journal_fence(const struct journal *j, const struct file_id *id);
/** Was it appended since the last sync of the journal that failed, if one did? */
bool journal_fence_is_good(const struct journal *j, const struct file_id *id);
/** A sync failed in this life: frames that were appended before it may be lost. */
bool journal_has_failed(const struct journal *j);
/** A frame is being appended anew: it may come to lie behind one that takes back what is in it. */
bool journal_is_copying(const struct journal *j);
/** A frame of kind JOURNAL_FENCE was appended (its reference is taken). 0 or -ENOMEM. */
int journal_fence_note(struct journal *j, const struct file_id *id, uint32_t epoch,
                       struct journal_frame *entry);
/** A frame of kind JOURNAL_DROP was: kept as long as what it takes away may lie in the log. */
void journal_drop_note(struct journal *j, struct journal_frame *entry);

/** Some of it could not be applied, and stays: it is tried again in a while. */
void journal_apply_later(const struct journal *j, struct pending_file *f);
/** Of a file something may be there to be applied: sees to it. */
void journal_poke(struct journal *j, struct pending_file *f);

#endif
