/*
 * encode.c - turns one block into sealed records.
 *
 * In:     a block in memory. Any thread.
 * Out:    coded bodies, packed heads with their crc, while the block is hot in the cache.
 */
#include "storcli/rules/encode.h"

#include <assert.h>

/* Writes all headers before the coding: the crc after it reads them in wider words than
 * they were written in, and would wait for each to leave the store buffer. */
static void heads_put(const struct encode_block *b, uint32_t want, uint8_t *const head[])
{
    for (unsigned i = 0; i < codec_n(b->codec); i++) {
        const struct record_header h = {
            .format = RECORD_FORMAT,
            .projection = (uint8_t)i,
            .user_bytes = b->user_bytes,
            .file_hash = b->file_hash,
            .version = b->version,
            .block = b->block,
        };

        if ((want >> i & 1) != 0)
            record_header_put(head[i], &h);
    }
}

void encode_seal(const struct encode_block *b, const uint8_t *data, uint32_t want,
                 uint8_t *const head[], uint8_t *const body[])
{
    const struct codec *c = b->codec;
    unsigned n = codec_n(c), k = codec_k(c);
    size_t row_bytes = codec_row_bytes(c, b->user_bytes);
    bool rows = codec_is_systematic(c), any_coded = false;
    uint8_t *coded[CODEC_N_MAX], *overhang[CODEC_N_MAX];

    heads_put(b, want, head);
    for (unsigned i = 0; i < n; i++) {
        bool wanted = (want >> i & 1) != 0;
        bool is_coded = wanted && !(rows && i < k);

        coded[i] = is_coded ? body[i] : NULL;
        overhang[i] = wanted ? head[i] + RECORD_HEADER_BYTES : NULL;
        any_coded = any_coded || is_coded;
    }
    if (any_coded)
        codec_encode(c, data, row_bytes, coded, overhang);
    for (unsigned i = 0; i < n; i++) {
        if ((want >> i & 1) != 0)
            record_seal(head[i], overhang[i], codec_overhang_bytes(c, i),
                        coded[i] != NULL ? coded[i] : data + i * row_bytes, row_bytes);
    }
}
