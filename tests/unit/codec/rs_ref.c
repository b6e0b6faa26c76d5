/*
 * rs_ref.c - the Reed-Solomon code from its definition. This file must stay slow and
 * obvious.
 */
#include "rs_ref.h"

#include <string.h>

uint8_t rs_ref_multiply(uint8_t a, uint8_t b)
{
    unsigned product = 0;

    for (unsigned bit = 0; bit < 8; bit++) {
        if (b >> bit & 1)
            product ^= (unsigned)a << bit;
    }
    for (unsigned bit = 15; bit >= 8; bit--) {
        if (product >> bit & 1)
            product ^= 0x11du << (bit - 8);
    }
    return (uint8_t)product;
}

uint8_t rs_ref_coefficient(unsigned k, unsigned i, unsigned j)
{
    uint8_t inverse = 1;

    if (i < k)
        return i == j;
    while (rs_ref_multiply((uint8_t)(i ^ j), inverse) != 1)
        inverse++;
    return inverse;
}

void rs_ref_encode(unsigned k, unsigned i, const uint8_t *data, size_t row_bytes,
                   uint8_t *out)
{
    memset(out, 0, row_bytes);
    for (unsigned j = 0; j < k; j++) {
        uint8_t products[256], coefficient = rs_ref_coefficient(k, i, j);

        for (unsigned byte = 0; byte < 256; byte++)
            products[byte] = rs_ref_multiply(coefficient, (uint8_t)byte);
        for (size_t x = 0; x < row_bytes; x++)
            out[x] ^= products[data[j * row_bytes + x]];
    }
}
