/*
 * journal.h - the overwrite journal of one loop.
 *
 * A record or mark that replaces something waits in the journal until it is committed;
 * then the applier writes it in place. docs/internals/journal.md
 * explains why. The journal joins the write-ahead log (wal.h), the index of what is
 * pending (journal_index.h), fences, and the applier, which reaches files through hooks.
 * One thread.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/env/disk.h"
#include "common/env/env.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"
#include "storaged/format/journal_record.h"
#include "storaged/journal/journal_index.h"
#include "storaged/object/object.h"

enum {
    APPLY_BLOCKS_MAX = 128, /* blocks that one call of apply_records takes */
};

struct journal;

/*
 * Functions that the journal calls to reach files in place. done(done_arg, rc) comes once
 * and never inside the call. They return 0, or -ENOMEM, and then done does not come.
 */
struct journal_hooks {
    /** True if this loop serves the file. */
    bool (*owns)(void *arg, const struct file_id *id);
    /**
     * Called at the start: removes pending records and marks that lie in place already or
     * whose file is gone.
     */
    int (*resolve)(void *arg, struct pending_file *f, void (*done)(void *arg, int rc),
                   void *done_arg);
    /**
     * Writes the newest committed version of each of n blocks in place, and sets
     * `applied`.
     */
    int (*apply_records)(void *arg, struct pending_file *f, unsigned projection,
                         uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                         void *done_arg);
    int (*apply_mark)(void *arg, struct pending_file *f, const struct pending_mark *mark,
                      void (*done)(void *arg, int rc), void *done_arg);
    void *arg;
};

struct journal_config {
    struct env *env; /* borrowed, like all pointers here */
    struct disk *disk;
    struct objects *objects;
    struct identity *identity;
    struct generations *generations;
    unsigned n_loops, loop;
    uint64_t journal_bytes; /* bytes; all loops together */
    uint64_t reserve_bytes; /* bytes, see struct wal_config */
    /* faults that tests of the simulator switch on */
    bool apply_uncommitted, believe_any_crc;
    struct journal_hooks hooks;
};

/* A task that is posted when the journal may have room, or when an applier has ended. */
struct journal_waiter {
    struct list_node link;
    struct env_task *task; /* borrowed */
};

/** Makes a journal. The config is copied. Returns 0 or -ENOMEM. */
int journal_new(const struct journal_config *config, struct journal **out);
/** Frees a journal with nothing under way. NULL is fine. */
void journal_free(struct journal *j);
/** Replays the log, see storage_start(). done(arg, rc) comes once. */
void journal_start(struct journal *j, void (*done)(void *arg, int rc), void *arg);
/** Starts service, see storage_serve(). done(arg) comes when requests may be taken. */
void journal_serve(struct journal *j, void (*done)(void *arg), void *arg);
/**
 * Applies what is committed, as far as possible, and makes all of it stable; then
 * done(arg). No requests may be under way or come any more.
 */
void journal_stop(struct journal *j, void (*done)(void *arg), void *arg);

struct journal_index *journal_get_index(struct journal *j);
/** True if the journal is more than five eighths full: clients should sync and commit. */
bool journal_has_pressure(const struct journal *j);
/**
 * Counts failed syncs of the journal for the verifier, like those of projection files.
 */
void journal_tell_failures(struct journal *j);
void journal_health(const struct journal *j, Rozo__StHealthResp *out);

/** True if requests must wait: one segment is kept free for copies, fences and drops. */
bool journal_is_full(const struct journal *j);
/** Posts the waiter's task when there may be room, or when an applier has ended. */
void journal_wait(struct journal *j, struct journal_waiter *waiter);
/** Waits like journal_wait() and starts to make room. */
void journal_wait_for_room(struct journal *j, struct journal_waiter *waiter);
/** True if a request that adds a mark to this file must wait. */
bool journal_has_many_marks(const struct pending_file *f, unsigned max);

/** Returns the log, for appends and syncs. */
struct wal *journal_log(struct journal *j);
/**
 * Adds an appended frame to the index. Returns NULL without memory; the frame is released
 * then.
 */
struct journal_frame *journal_frame_new(struct journal *j, const struct wal_append *a);
/**
 * Returns the number of the newest frame. journal_synced() records that all frames up to
 * a number are stable.
 */
uint64_t journal_newest(const struct journal *j);
void journal_synced(struct journal *j, uint64_t number);
/**
 * True if all that is pending of the file is on stable storage. f NULL: nothing is
 * pending.
 */
bool journal_file_is_synced(const struct journal *j, const struct pending_file *f);

/**
 * Commits the versions that requests call durable (StCommitReq.durable).
 * journal_commit_range() commits all in some blocks up to a version.
 */
void journal_commit(struct journal *j, const struct file_id *id, const uint64_t *durable,
                    size_t n);
void journal_commit_range(struct journal *j, const struct file_id *id, uint64_t first,
                          uint64_t end, uint64_t version);

/**
 * Returns the fence of a file: writes of clients with this epoch or an earlier one are
 * refused. 0: none.
 */
uint32_t journal_fence(const struct journal *j, const struct file_id *id);
/**
 * True if the fence was appended after the last failed sync of the journal, or none has
 * failed.
 */
bool journal_fence_is_good(const struct journal *j, const struct file_id *id);
/**
 * True if a sync failed since the start: frames that were appended before it may be lost.
 */
bool journal_has_failed(const struct journal *j);
/**
 * True while a frame is copied: the copy may come to lie behind a drop of its contents.
 */
bool journal_is_copying(const struct journal *j);
/**
 * Records an appended frame of kind JOURNAL_FENCE. Takes its reference. Returns 0 or
 * -ENOMEM.
 */
int journal_fence_note(struct journal *j, const struct file_id *id, uint32_t epoch,
                       struct journal_frame *entry);
/**
 * Records an appended frame of kind JOURNAL_DROP. Keeps it while anything it drops may
 * lie in the log.
 */
void journal_drop_note(struct journal *j, struct journal_frame *entry);

/**
 * Puts off applying a file that could not be applied completely; it is tried again in a
 * while.
 */
void journal_apply_later(const struct journal *j, struct pending_file *f);
/** Starts to apply a file if anything of it is committed. */
void journal_poke(struct journal *j, struct pending_file *f);

#endif
