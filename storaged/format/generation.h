/*
 * generation.h - what a power loss may have taken: the file DATA/storage.generations.
 *
 * Time is cut into generations. A note in a projection file ("these blocks were written") carries
 * the generation it was made in. The daemon ends a generation now and then by bringing the whole
 * file system to stable storage; what was noted before that cannot be missing after a power loss.
 * What was noted later may be true of bytes that never reached the disk: the machine went down, and
 * those generations are listed as lost for ever. Everything else is kept.
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
    GENERATIONS_LOST_MAX = 64, /* ranges; then the two that are closest become one */
    GENERATIONS_TEXT_MAX = 4096,
    GENERATION_STABLE = 1, /* a note that is on stable storage, whenever it was made */
};

/* What the file says. */
struct generations_file {
    uint64_t boot;     /* of the machine, when it was written */
    uint64_t failures; /* how often unsynced bytes may have been lost otherwise */
    uint64_t stable;   /* all up to this one are on stable storage */
    uint64_t last;     /* none above this one is in use */
    unsigned n_lost;
    struct {
        uint64_t first, last;
    } lost[GENERATIONS_LOST_MAX]; /* ascending, disjoint */
};

/*
 * Shared by all loops of a daemon. file.lost does not change once they run; the rest of file
 * belongs to who ends generations.
 */
struct generations {
    _Atomic uint64_t current, stable, failures;
    _Atomic unsigned n_open; /* so many must end until all notes are stable */
    _Atomic bool muted;      /* the file could not be saved: notes die with the process */
    struct generations_file file;
};

/** What a note made now carries: the next one, since what it speaks of may still be under way. */
static inline uint64_t generation_of_note(struct generations *g)
{
    atomic_store_explicit(&g->n_open, 2, memory_order_relaxed);
    if (atomic_load_explicit(&g->muted, memory_order_relaxed))
        return UINT64_MAX;
    return atomic_load_explicit(&g->current, memory_order_acquire) + 1;
}
/** A sync failed, or worse: clients see it in the verifier, also those that come after a restart. */
static inline void generations_lost_bytes(struct generations *g)
{
    atomic_fetch_add_explicit(&g->failures, 1, memory_order_relaxed);
    atomic_store_explicit(&g->n_open, 2, memory_order_relaxed);
}
static inline uint64_t generations_failures(const struct generations *g)
{
    return atomic_load_explicit(&g->failures, memory_order_relaxed);
}
/** Is what a note of that generation speaks of here, as far as power losses go? */
bool generation_is_kept(const struct generations *g, uint64_t generation);
/** Was there any power loss? Then what nobody had synced may be here in part. */
static inline bool generations_lost_any(const struct generations *g)
{
    return g->file.n_lost > 0;
}
/** May the note be on stable storage while newer bytes of its file are not? */
static inline bool generation_is_ended(const struct generations *g, uint64_t generation)
{
    return generation <= atomic_load_explicit(&g->current, memory_order_acquire);
}
/** GENERATION_STABLE when it is that by now. */
static inline uint64_t generation_or_stable(const struct generations *g,
                                            uint64_t generation)
{
    return generation <= atomic_load_explicit(&g->stable, memory_order_acquire)
               ? (uint64_t)GENERATION_STABLE
               : generation;
}

/**
 * Begin, with what the file says (all zero: there is none) and the number of this boot: after
 * another boot, what was not stable is lost. Then g->file is to be saved before the first note.
 */
void generations_begin(struct generations *g, const struct generations_file *file,
                       uint64_t boot);
/** False: save g->file first (it says now that one more is in use). */
bool generations_may_advance(struct generations *g);
/** The next generation begins; returns the one that ended, for generations_mark_stable(). */
uint64_t generations_advance(struct generations *g);
/** All up to `ended` is on stable storage; then g->file is to be saved. */
void generations_mark_stable(struct generations *g, uint64_t ended);
/** After a clean stop nothing is in doubt: then g->file is to be saved. */
void generations_end(struct generations *g);

/** g->file as it is to be saved. */
void generations_prepare(struct generations *g);
/** The text of the file; returns its length. */
size_t generations_print(char text[GENERATIONS_TEXT_MAX],
                         const struct generations_file *f);
/** 0, -EPROTONOSUPPORT or -EUCLEAN with words in err; *out is untouched then. */
int generations_parse(const char *text, size_t len, struct generations_file *out,
                      struct err *err);

#endif
