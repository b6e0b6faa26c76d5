/*
 * generation.h - which written blocks a power loss may have taken:
 * DATA/storage.generations.
 *
 * Time is cut into generations. A note in a projection file ("these blocks were written")
 * carries the generation in which it was made. The daemon ends a generation now and then:
 * it brings the whole file system to stable storage, so blocks noted in an ended
 * generation cannot be missing after a power loss. A later note may speak of bytes that
 * never reached the disk because the machine went down; those generations are listed as
 * lost for ever. A note of any other generation is true.
 */
#ifndef ROZO_STORAGED_FORMAT_GENERATION_H
#define ROZO_STORAGED_FORMAT_GENERATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    GENERATIONS_FORMAT = 1,
    GENERATIONS_LOST_MAX = 64, /* ranges; above it the two closest ones are merged */
    GENERATIONS_TEXT_MAX = 4096,
    GENERATION_STABLE = 1, /* generation of a note that is stable, whenever made */
};

/* The contents of the file. */
struct generations_file {
    uint64_t boot; /* boot id of the machine at the last save */
    /* count of possible losses of unsynced bytes without a power loss */
    uint64_t failures;
    uint64_t stable; /* the newest one up to which all are on stable storage */
    uint64_t last;   /* the highest generation in use */
    unsigned n_lost;
    struct {
        uint64_t first, last;
    } lost[GENERATIONS_LOST_MAX]; /* ascending, disjoint */
};

/*
 * One per daemon, shared by its loops. file.lost is constant while the loops run; the
 * rest of file belongs to the thread that ends generations.
 */
struct generations {
    _Atomic uint64_t current, stable, failures;
    _Atomic unsigned n_open; /* generations that must end until all notes are stable */
    /* the file could not be saved: new notes are not kept over a restart */
    _Atomic bool muted;
    struct generations_file file;
};

/**
 * Returns the generation for a note made now: the next one, because the write that the
 * note speaks of may still be under way. UINT64_MAX (never kept) if the file could not be
 * saved.
 */
static inline uint64_t generation_of_note(struct generations *g)
{
    atomic_store_explicit(&g->n_open, 2, memory_order_relaxed);
    if (atomic_load_explicit(&g->muted, memory_order_relaxed))
        return UINT64_MAX;
    return atomic_load_explicit(&g->current, memory_order_acquire) + 1;
}
/**
 * Counts a failed sync or another possible loss of bytes. Clients see the count in the
 * verifier, also after a restart.
 */
static inline void generations_lost_bytes(struct generations *g)
{
    atomic_fetch_add_explicit(&g->failures, 1, memory_order_relaxed);
    atomic_store_explicit(&g->n_open, 2, memory_order_relaxed);
}
static inline uint64_t generations_failures(const struct generations *g)
{
    return atomic_load_explicit(&g->failures, memory_order_relaxed);
}
/**
 * True if no power loss can have taken the blocks that a note of that generation speaks
 * of.
 */
bool generation_is_kept(const struct generations *g, uint64_t generation);
/**
 * True if any power loss is listed. Blocks that were never synced may then be here in
 * part.
 */
static inline bool generations_lost_any(const struct generations *g)
{
    return g->file.n_lost > 0;
}
/**
 * True if a note of that generation may be on stable storage while newer bytes of its
 * file are not.
 */
static inline bool generation_is_ended(const struct generations *g, uint64_t generation)
{
    return generation <= atomic_load_explicit(&g->current, memory_order_acquire);
}
/**
 * Returns GENERATION_STABLE if the generation is on stable storage by now, else
 * `generation`.
 */
static inline uint64_t generation_or_stable(const struct generations *g,
                                            uint64_t generation)
{
    return generation <= atomic_load_explicit(&g->stable, memory_order_acquire)
               ? (uint64_t)GENERATION_STABLE
               : generation;
}

/**
 * Starts with the contents of the file (all zero if there is none) and the boot id.
 * After another boot, generations that were not stable become lost. The caller saves
 * g->file before the first note.
 */
void generations_begin(struct generations *g, const struct generations_file *file,
                       uint64_t boot);
/**
 * Returns false if g->file must be saved first: it says now that one more generation is
 * in use.
 */
bool generations_may_advance(struct generations *g);
/** Starts the next generation. Returns the ended one, for generations_mark_stable(). */
uint64_t generations_advance(struct generations *g);
/**
 * Records that all generations up to `ended` are on stable storage. The caller then saves
 * g->file.
 */
void generations_mark_stable(struct generations *g, uint64_t ended);
/** Marks all generations as stable, for a clean stop. The caller then saves g->file. */
void generations_end(struct generations *g);

/** Brings g->file up to date before it is saved. */
void generations_prepare(struct generations *g);
/** Prints the text of the file. Returns its length. */
size_t generations_print(char text[GENERATIONS_TEXT_MAX],
                         const struct generations_file *f);
/**
 * Parses the text of the file. Returns 0, -ROZO_EUNKNOWN_FORMAT (unknown format) or
 * -ROZO_EDAMAGED (corrupt) with a message in err; *out is untouched then.
 */
int generations_parse(const char *text, size_t len, struct generations_file *out,
                      struct err *err);

#endif
