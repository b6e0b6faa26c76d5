/*
 * made.c - records as a client makes them.
 */
#include "tests/unit/heal/made.h"

#include <string.h>

const struct codec *made_codec(const struct storcli_target *t)
{
    return codec_get(t->codec, t->layout, t->block_bytes);
}

uint16_t made_user_bytes(const struct storcli_target *t, uint64_t block, uint64_t version)
{
    return (uint16_t)(1 + (block * 2654435761u + version * 40503u) % t->block_bytes);
}

size_t made_record(const struct storcli_target *t, unsigned projection, uint64_t block,
                   uint64_t version, uint8_t *head, uint8_t *body)
{
    const struct codec *codec = made_codec(t);
    uint16_t user = made_user_bytes(t, block, version);
    size_t row = codec_row_bytes(codec, user);
    uint8_t data[CODEC_DATA_MAX] = { 0 };
    uint8_t *bodies[CODEC_N_MAX] = { 0 }, *overhangs[CODEC_N_MAX] = { 0 };
    const struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .user_bytes = user,
        .file_hash = file_id_hash(&t->id),
        .version = version,
        .block = block,
    };

    for (unsigned i = 0; i < user; i++)
        data[i] = (uint8_t)(i * 7 + block * 31 + version * 13 + (version >> 32));
    bodies[projection] = body;
    overhangs[projection] = head + RECORD_HEADER_BYTES;
    if (projection < codec_k(codec) && codec_is_systematic(codec))
        memcpy(body, data + projection * row, row);
    else
        codec_encode(codec, data, row, bodies, overhangs);
    record_header_put(head, &h);
    record_seal(head, head + RECORD_HEADER_BYTES, codec_overhang_bytes(codec, projection),
                body, row);
    return row;
}
