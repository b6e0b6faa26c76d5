/*
 * definition.h - what docs/CODEC.md says each code is, byte by byte, to hold codec/ against.
 *
 * The codes are linear: a projection is the sum (XOR) of what each byte of the block adds to it. So what
 * single bytes add says all.
 */
#ifndef ROZO_CODEC_DEFINITION_H
#define ROZO_CODEC_DEFINITION_H

#include "harness.h"

enum { TERMS_MAX = 16 }; /* bytes of one projection that one byte of a block changes */

/* Byte `at` of body and then overhang of a projection has `value` in it. */
struct term {
    size_t at;
    uint8_t value;
};

/** What byte x of row `row`, being `value`, adds to projection i; returns the number of terms. */
unsigned definition_terms(const struct codec *c, const struct which *which, unsigned i,
                          size_t row_bytes, unsigned row, size_t x, uint8_t value,
                          struct term terms[TERMS_MAX]);

/** Projection i of a block, body and then overhang: row_bytes + codec_overhang_bytes() bytes. */
void definition_encode(const struct codec *c, const struct which *which, unsigned i,
                       const uint8_t *data, size_t row_bytes, uint8_t *bins);

#endif
