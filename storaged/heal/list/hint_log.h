/*
 * hint_log.h - hints about writes that other storages missed, on stable storage, in a kv.
 *
 * A hint says: storage S missed blocks [first, end) of a file, versions up to `version`.
 * Hints of one file and storage are kept disjoint and merged. Each has a number (note)
 * that changes whenever the hint does, so that a storage that reports "healed" removes
 * only hints it was shown, and none that came since.
 *
 * Bounded: a file with more than HINT_LOG_RANGES_MAX hints for a storage has the closest
 * ones joined; above config.ranges_max hints for a storage each file has one; above
 * files_max files all hints become one, "everything". docs/FORMATS.md, "What healing
 * keeps", has the bytes.
 *
 * Core; one thread, that of the env and the kv.
 */
#ifndef ROZO_STORAGED_HEAL_LIST_HINT_LOG_H
#define ROZO_STORAGED_HEAL_LIST_HINT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/env/env.h"
#include "common/env/kv.h"
#include "storcli/blocks.h"

enum { HINT_LOG_RANGES_MAX = 64, HINT_LOG_STORAGES_MAX = 4096 };

struct hint_log;

struct hint_log_config {
    struct env *env;     /* borrowed */
    struct kv *kv;       /* borrowed */
    uint64_t ranges_max; /* hints for one storage; 0: 65536 */
    uint64_t files_max;  /* files with hints for one storage; 0: 262144 */
};

/**
 * Opens the log and counts its hints. Returns 0, -ENOMEM, -EIO, or -ROZO_EDAMAGED if
 * the kv has corrupt keys.
 */
int hint_log_open(const struct hint_log_config *config, struct hint_log **out);
/** Closes the log. No wait may be pending. NULL is fine. */
void hint_log_close(struct hint_log *l);

/* Blocks [first, end) of a file. */
struct hint_log_range {
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;
    uint64_t note; /* number of the hint; not 0 */
};

/* A wait for stable storage. Embedded in its user. */
struct hint_log_wait {
    void (*done)(struct hint_log_wait *w, int rc); /* 0 or -EIO; once, later */
    struct hint_log_wait *next;                    /* private, as the rest */
    uint64_t want;
    int rc;
};

/**
 * Adds a hint for a storage. The hint counts at once, and survives the process;
 * hint_log_sync() makes it stable. Returns 0, -ENOMEM, -EIO, or -ENOSPC if there are
 * hints for too many storages.
 */
int hint_log_note(struct hint_log *l, uint32_t storage,
                  const struct storcli_target *target, uint64_t first, uint64_t end,
                  uint64_t version);
/** Returns whether hints of that version or later cover every block of [first, end). */
bool hint_log_has(struct hint_log *l, uint32_t storage, const struct file_id *id,
                  uint64_t first, uint64_t end, uint64_t version);
/** Waits until all that was added or removed before this call is on stable storage. */
void hint_log_sync(struct hint_log *l, struct hint_log_wait *w);

/**
 * Writes other items of the same kv, so that hint_log_sync() covers them. They survive
 * the process. Returns 0, -ENOMEM or -EIO.
 */
int hint_log_commit(struct hint_log *l, const struct kv_item *items, size_t n_items);

/**
 * Removes one hint that was healed, unless it changed since. Returns 0, -ENOMEM or -EIO.
 */
int hint_log_forget(struct hint_log *l, uint32_t storage, const struct file_id *id,
                    uint64_t note);
/** Removes the hint "everything", unless it changed since. Returns 0, -ENOMEM or -EIO. */
int hint_log_forget_everything(struct hint_log *l, uint32_t storage, uint64_t note);

/**
 * Gets one file with hints from hint_log_scan(). Returns false to end the scan before
 * this file.
 */
typedef bool hint_log_file_cb(void *arg, const struct storcli_target *target,
                              const struct hint_log_range *ranges, unsigned n_ranges);
/**
 * Scans files with hints for a storage, in ascending byte order of their id, starting
 * after the id `after` (NULL: at the first). Returns 1 if all were scanned, 0 if cb ended
 * the scan, -EIO or -ENOMEM.
 */
int hint_log_scan(struct hint_log *l, uint32_t storage, const uint8_t *after,
                  hint_log_file_cb *cb, void *arg);
/** Returns the number of the hint "everything" of a storage; 0: there is none. */
uint64_t hint_log_everything(const struct hint_log *l, uint32_t storage);

/** Returns the number of hints for all storages; "everything" counts as one. */
uint64_t hint_log_n_ranges(const struct hint_log *l);

#endif
