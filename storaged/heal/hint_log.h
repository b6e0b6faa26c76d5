/*
 * hint_log.h - what other storages missed, as far as this one was told; on stable storage, in a kv.
 *
 * A note says: storage S missed blocks [first, end) of a file, versions up to `version`. Notes of one file
 * and storage are kept together, disjoint and merged. Each has a number that changes whenever the note
 * does, so that "I have that now" takes away only what was told and nothing that came since.
 *
 * Bounded: a file with more than HINT_LOG_RANGES_MAX notes for a storage has one that covers all
 * of it; above config.ranges_max notes for a storage new ones cover whole files; above files_max files
 * all becomes one note, "everything". docs/FORMATS.md, "What healing keeps", has the bytes.
 *
 * Core; one thread, that of the env and the kv.
 */
#ifndef ROZO_STORAGED_HEAL_HINT_LOG_H
#define ROZO_STORAGED_HEAL_HINT_LOG_H

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
    uint64_t ranges_max; /* notes for one storage; 0: 65536 */
    uint64_t files_max;  /* files with notes for one storage; 0: 262144 */
};

/** Count what is there. 0, -ENOMEM, -EIO, or -EUCLEAN: it is not a ledger. */
int hint_log_open(const struct hint_log_config *config, struct hint_log **out);
/** Nothing may wait for stable storage. NULL is fine. */
void hint_log_close(struct hint_log *l);

/* Blocks [first, end) of a file. */
struct hint_log_range {
    uint64_t first, end; /* end UINT64_MAX: to the end of everything */
    uint64_t version;
    uint64_t note; /* its number; not 0 */
};

/* Somebody waiting for stable storage. Embedded in its user. */
struct hint_log_wait {
    void (*done)(struct hint_log_wait *w, int rc); /* 0 or -EIO; once, later */
    struct hint_log_wait *next;                    /* the ledger's, as the rest */
    uint64_t want;
    int rc;
};

/**
 * Note it for a storage. The note counts at once, and survives the process; hint_log_sync() says when it is on stable
 * storage. 0, -ENOMEM, -EIO; -ENOSPC: too many storages.
 */
int hint_log_note(struct hint_log *l, uint32_t storage,
                  const struct storcli_target *target, uint64_t first, uint64_t end,
                  uint64_t version);
/** Is every block of [first, end) in notes of that version or later? */
bool hint_log_has(struct hint_log *l, uint32_t storage, const struct file_id *id,
                  uint64_t first, uint64_t end, uint64_t version);
/** All that was noted or forgotten until now is on stable storage when done. */
void hint_log_sync(struct hint_log *l, struct hint_log_wait *w);

/** Other items of the same kv that hint_log_sync() is to cover. They survive the process. 0, -ENOMEM, -EIO. */
int hint_log_commit(struct hint_log *l, const struct kv_item *items, size_t n_items);

/** One note was told and is done with: it goes unless it changed since. 0, -ENOMEM, -EIO. */
int hint_log_forget(struct hint_log *l, uint32_t storage, const struct file_id *id,
                    uint64_t note);
/** The same of "everything". */
int hint_log_forget_everything(struct hint_log *l, uint32_t storage, uint64_t note);

/** One file with notes, from hint_log_scan(). Return false to end the scan before it. */
typedef bool hint_log_file_cb(void *arg, const struct storcli_target *target,
                              const struct hint_log_range *ranges, unsigned n_ranges);
/**
 * Files with notes for a storage, ascending by the bytes of their id, from behind `after` (NULL: from the start). 1:
 * those were all, 0: cb ended it, or -EIO, -ENOMEM.
 */
int hint_log_scan(struct hint_log *l, uint32_t storage, const uint8_t *after,
                  hint_log_file_cb *cb, void *arg);
/** The number of the note "everything" for it; 0: there is none. */
uint64_t hint_log_everything(const struct hint_log *l, uint32_t storage);

/** Notes for all storages; everything counts as one. */
uint64_t hint_log_n_ranges(const struct hint_log *l);

#endif
