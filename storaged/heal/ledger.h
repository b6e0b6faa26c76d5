/*
 * ledger.h - what other storages missed, as far as this one was told; on stable storage, in a kv.
 *
 * A note says: storage S missed blocks [first, end) of a file, versions up to `version`. Notes of one file
 * and storage are kept together, disjoint and merged. Each has a number that changes whenever the note
 * does, so that "I have that now" takes away only what was told and nothing that came since.
 *
 * Bounded: a file with more than LEDGER_RANGES_MAX notes for a storage has one that covers all
 * of it; above config.ranges_max notes for a storage new ones cover whole files; above files_max files
 * all becomes one note, "everything". docs/FORMATS.md, "What healing keeps", has the bytes.
 *
 * Core; one thread, that of the env and the kv.
 */
#ifndef ROZO_STORAGED_HEAL_LEDGER_H
#define ROZO_STORAGED_HEAL_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/env/env.h"
#include "common/env/kv.h"
#include "storcli/blocks.h"

enum { LEDGER_RANGES_MAX = 64, LEDGER_STORAGES_MAX = 4096 };

struct ledger;

struct ledger_config {
    struct env *env;     /* borrowed */
    struct kv *kv;       /* borrowed */
    uint64_t ranges_max; /* notes for one storage; 0: 65536 */
    uint64_t files_max;  /* files with notes for one storage; 0: 262144 */
};

/** Count what is there. 0, -ENOMEM, -EIO, or -EUCLEAN: it is not a ledger. */
int ledger_open(const struct ledger_config *config, struct ledger **out);
/** Nothing may wait for stable storage. NULL is fine. */
void ledger_close(struct ledger *l);

/* Blocks [first, end) of a file. */
struct ledger_range {
    uint64_t first, end; /* end UINT64_MAX: to the end of everything */
    uint64_t version;
    uint64_t note; /* its number; not 0 */
};

/* Somebody waiting for stable storage. Embedded in its user. */
struct ledger_wait {
    void (*done)(struct ledger_wait *w, int rc); /* 0 or -EIO; once, later */
    struct ledger_wait *next;                    /* the ledger's, as the rest */
    uint64_t want;
    int rc;
};

/**
 * Note it for a storage. The note counts at once, and survives the process; ledger_sync() says when it is on stable
 * storage. 0, -ENOMEM, -EIO; -ENOSPC: too many storages.
 */
int ledger_note(struct ledger *l, uint32_t storage, const struct storcli_target *target,
                uint64_t first, uint64_t end, uint64_t version);
/** Is every block of [first, end) in notes of that version or later? */
bool ledger_has(struct ledger *l, uint32_t storage, const struct file_id *id,
                uint64_t first, uint64_t end, uint64_t version);
/** All that was noted or forgotten until now is on stable storage when done. */
void ledger_sync(struct ledger *l, struct ledger_wait *w);

/** Other items of the same kv that ledger_sync() is to cover. They survive the process. 0, -ENOMEM, -EIO. */
int ledger_commit(struct ledger *l, const struct kv_item *items, size_t n_items);

/** One note was told and is done with: it goes unless it changed since. 0, -ENOMEM, -EIO. */
int ledger_forget(struct ledger *l, uint32_t storage, const struct file_id *id,
                  uint64_t note);
/** The same of "everything". */
int ledger_forget_everything(struct ledger *l, uint32_t storage, uint64_t note);

/** One file with notes, from ledger_scan(). Return false to end the scan before it. */
typedef bool ledger_file_cb(void *arg, const struct storcli_target *target,
                            const struct ledger_range *ranges, unsigned n_ranges);
/**
 * Files with notes for a storage, ascending by the bytes of their id, from behind `after` (NULL: from the start). 1:
 * those were all, 0: cb ended it, or -EIO, -ENOMEM.
 */
int ledger_scan(struct ledger *l, uint32_t storage, const uint8_t *after,
                ledger_file_cb *cb, void *arg);
/** The number of the note "everything" for it; 0: there is none. */
uint64_t ledger_everything(const struct ledger *l, uint32_t storage);

/** Notes for all storages; everything counts as one. */
uint64_t ledger_n_ranges(const struct ledger *l);

#endif
