/*
 * coder.h - turn one block into sealed records: header, overhang, crc, and the coded bodies.
 */
#ifndef ROZO_STORCLI_BLOCKS_CODER_H
#define ROZO_STORCLI_BLOCKS_CODER_H

#include "codec/codec.h"
#include "common/base/record.h"

/* Which record. */
struct coder_block {
    const struct codec *codec;
    uint32_t file_hash;
    uint16_t user_bytes; /* 1..block bytes */
    uint64_t version;
    uint64_t block; /* index in the file */
};

/** Bytes of a packed header and the overhang of a projection. */
static inline size_t coder_head_bytes(const struct codec *c, unsigned projection)
{
    return RECORD_HEADER_BYTES + codec_overhang_bytes(c, projection);
}

/**
 * @param data the block, zero beyond its user bytes; rows of a systematic code are its bodies.
 * @param want bitmap of the projections wanted.
 * @param head n pointers; those wanted take coder_head_bytes(), sealed.
 * @param body n pointers; those wanted and not rows of a systematic code take one row.
 */
void coder_seal(const struct coder_block *b, const uint8_t *data, uint32_t want,
                uint8_t *const head[], uint8_t *const body[]);

#endif
