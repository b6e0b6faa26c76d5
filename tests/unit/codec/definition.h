/*
 * definition.h - each code byte by byte, as docs/CODEC.md defines it, for comparison with
 * codec/.
 *
 * The codes are linear: a projection is the sum (XOR) of the contributions of the block's
 * bytes. So the contributions of single bytes describe a code completely.
 */
#ifndef ROZO_CODEC_DEFINITION_H
#define ROZO_CODEC_DEFINITION_H

#include "harness.h"

enum { TERMS_MAX = 16 }; /* bytes of one projection that one byte of a block changes */

/* A contribution: `value` is added to byte `at` of a projection, which is its body and
 * then its overhang. */
struct term {
    size_t at;
    uint8_t value;
};

/** Lists the terms that byte x of row `row`, being `value`, adds to projection i; returns
 * their number. */
unsigned definition_terms(const struct codec *c, const struct which *which, unsigned i,
                          size_t row_bytes, unsigned row, size_t x, uint8_t value,
                          struct term terms[TERMS_MAX]);

/** Makes projection i of a block, body and then overhang: row_bytes +
 * codec_overhang_bytes() bytes. */
void definition_encode(const struct codec *c, const struct which *which, unsigned i,
                       const uint8_t *data, size_t row_bytes, uint8_t *bins);

#endif
