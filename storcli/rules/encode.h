/*
 * encode.h - turns one block into sealed records: header, overhang, crc, and the coded
 * bodies.
 */
#ifndef ROZO_STORCLI_RULES_ENCODE_H
#define ROZO_STORCLI_RULES_ENCODE_H

#include "codec/codec.h"
#include "common/wire/record.h"

/* Identity of the records of one block. */
struct encode_block {
    const struct codec *codec;
    uint32_t file_hash;
    uint16_t user_bytes; /* 1..block bytes */
    uint64_t version;
    uint64_t block; /* index in the file */
};

/** Returns the bytes of a packed header and the overhang of a projection. */
static inline size_t encode_head_bytes(const struct codec *c, unsigned projection)
{
    return RECORD_HEADER_BYTES + codec_overhang_bytes(c, projection);
}

/**
 * Encodes and seals the records of one block.
 * @param data the block, zero beyond its user bytes; rows of a systematic code are its
 *             bodies.
 * @param want bitmap of the projections to make.
 * @param head n pointers; each wanted one takes encode_head_bytes(), sealed.
 * @param body n pointers; each wanted one that is no row of a systematic code takes one
 *             row.
 */
void encode_seal(const struct encode_block *b, const uint8_t *data, uint32_t want,
                 uint8_t *const head[], uint8_t *const body[]);

#endif
