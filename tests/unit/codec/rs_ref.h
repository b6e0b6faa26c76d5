/*
 * rs_ref.h - the Reed-Solomon code again, slow and obvious, to hold codec/rs.c against. Shares
 * nothing with it, nor with isa-l.
 */
#ifndef ROZO_RS_REF_H
#define ROZO_RS_REF_H

#include <stddef.h>
#include <stdint.h>

/** a * b as polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1. */
uint8_t rs_ref_multiply(uint8_t a, uint8_t b);

/** What row j counts in projection i of a code with k rows: 1 or 0 for i < k, 1 / (i ^ j) for the others. */
uint8_t rs_ref_coefficient(unsigned k, unsigned i, unsigned j);

/** Projection i of the k rows at data; out takes row_bytes bytes. */
void rs_ref_encode(unsigned k, unsigned i, const uint8_t *data, size_t row_bytes,
                   uint8_t *out);

#endif
