/*
 * fold.h - names as readers of another case or normalisation see them.
 *
 * Two names fold to the same points if they differ only in case (Unicode's simple case
 * folding) or in canonical equivalence (NFC, NFD). Bytes that are not UTF-8 stay as they
 * are and equal only themselves. See docs/internals/names.md.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_FOLD_H
#define ROZO_EXPORTD_NAMESPACE_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "exportd/store/key.h"

enum {
    /*
     * Number of these rules, in records of exports: Unicode 15.0.0, simple. Indexes lie
     * on disks, so other tables or steps need another number, and these stay.
     */
    FOLD_RULES = 1,
    /* points of one name: at most two for each of its bytes */
    FOLD_POINTS_MAX = 2 * NAMESPACE_NAME_MAX,
};

/* Folded name. */
struct folded {
    size_t n;
    uint32_t points[FOLD_POINTS_MAX]; /* code points; from 0x110000 on: stray bytes */
};

/** Folds a name of at most NAMESPACE_NAME_MAX bytes. */
void fold_name(const uint8_t *name, size_t len, struct folded *out);
bool fold_equal(const struct folded *a, const struct folded *b);
/** Returns the part of an index key that stands for a folded name. */
uint64_t fold_hash(const struct folded *f);

/* ---- fold_table.c: ascending, without overlaps ---- */

/*
 * Points first, first + step, ... last, which have one value: the difference to the
 * folded point, or the canonical combining class.
 */
struct fold_run {
    uint32_t first, last;
    uint16_t step;
    int32_t value;
};
extern const struct fold_run fold_cases[];
extern const struct fold_run fold_classes[]; /* no class 0 */
extern const size_t fold_n_cases, fold_n_classes;

/* Canonical decomposition of a point; not of Hangul syllables. */
struct fold_parts {
    uint32_t point;
    uint32_t first;  /* may have parts itself */
    uint32_t second; /* 0: none */
};
extern const struct fold_parts fold_pairs[];
extern const size_t fold_n_pairs;

#endif
