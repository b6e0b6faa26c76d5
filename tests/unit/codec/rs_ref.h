/*
 * rs_ref.h - a slow and obvious second implementation of the Reed-Solomon code, for
 * comparison with codec/rs.c. It shares no code with that file or with isa-l.
 */
#ifndef ROZO_RS_REF_H
#define ROZO_RS_REF_H

#include <stddef.h>
#include <stdint.h>

/** Returns a * b as polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1. */
uint8_t rs_ref_multiply(uint8_t a, uint8_t b);

/** Returns the coefficient of row j in projection i of a code with k rows: 1 or 0 for i <
 * k, 1 / (i ^ j) for the others. */
uint8_t rs_ref_coefficient(unsigned k, unsigned i, unsigned j);

/** Makes projection i of the k rows at data; out takes row_bytes bytes. */
void rs_ref_encode(unsigned k, unsigned i, const uint8_t *data, size_t row_bytes,
                   uint8_t *out);

#endif
