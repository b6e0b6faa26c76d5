/*
 * record.c - packs, unpacks, seals and inspects record headers and file ids.
 *
 * In:     bytes from disks and peers: none of them are believed (I8). Any thread.
 * Out:    struct record_header, struct file_id, crcs.
 * Ask:    every byte position here; users' disks already carry them (docs/FORMATS.md).
 */
#include "common/wire/record.h"

#include <assert.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"

static_assert(RECORD_HEADER_BYTES == 32, "on disk since format 1");
static_assert(FILE_ID_BYTES == 16, "on disk since format 1");

void file_id_put(uint8_t *p, const struct file_id *id)
{
    put_le32(p, id->export_id);
    put_le32(p + 4, id->generation);
    put_le64(p + 8, id->ino);
}

void file_id_get(const uint8_t *p, struct file_id *id)
{
    id->export_id = get_le32(p);
    id->generation = get_le32(p + 4);
    id->ino = get_le64(p + 8);
}

uint32_t file_id_hash(const struct file_id *id)
{
    uint8_t bytes[FILE_ID_BYTES];

    file_id_put(bytes, id);
    return codec_crc32c(0, bytes, sizeof(bytes));
}

void record_header_put(uint8_t p[RECORD_HEADER_BYTES], const struct record_header *h)
{
    put_le32(p, h->crc);
    p[4] = h->format;
    p[5] = h->projection;
    p[6] = h->flags;
    p[7] = 0;
    put_le16(p + 8, h->user_bytes);
    put_le16(p + 10, 0);
    put_le32(p + 12, h->file_hash);
    put_le64(p + 16, h->version);
    put_le64(p + 24, h->block);
}

void record_header_get(const uint8_t p[RECORD_HEADER_BYTES], struct record_header *h)
{
    *h = (struct record_header){
        .crc = get_le32(p),
        .format = p[4],
        .projection = p[5],
        .flags = p[6],
        .user_bytes = get_le16(p + 8),
        .file_hash = get_le32(p + 12),
        .version = get_le64(p + 16),
        .block = get_le64(p + 24),
    };
}

bool record_header_is_zero(const uint8_t p[RECORD_HEADER_BYTES])
{
    uint64_t words[RECORD_HEADER_BYTES / 8];

    memcpy(words, p, sizeof(words));
    return (words[0] | words[1] | words[2] | words[3]) == 0;
}

/* The overhang usually follows the header directly: then one crc covers both. */
uint32_t record_crc(const uint8_t p[RECORD_HEADER_BYTES], const void *overhang,
                    size_t overhang_bytes, const void *body, size_t body_bytes)
{
    bool is_behind = overhang_bytes != 0 && overhang == p + RECORD_HEADER_BYTES;
    size_t head_bytes = RECORD_HEADER_BYTES - 4 + (is_behind ? overhang_bytes : 0);
    uint32_t crc = codec_crc32c(0, p + 4, head_bytes);

    if (overhang_bytes != 0 && !is_behind)
        crc = codec_crc32c(crc, overhang, overhang_bytes);
    if (body_bytes != 0)
        crc = codec_crc32c(crc, body, body_bytes);
    return crc;
}

void record_seal(uint8_t p[RECORD_HEADER_BYTES], const void *overhang,
                 size_t overhang_bytes, const void *body, size_t body_bytes)
{
    put_le32(p, record_crc(p, overhang, overhang_bytes, body, body_bytes));
}

enum record_state record_inspect(const uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                                 uint64_t block, unsigned projection, size_t block_bytes,
                                 struct record_header *h)
{
    record_header_get(p, h);
    if (record_header_is_zero(p))
        return RECORD_IS_HOLE;
    if (h->format != RECORD_FORMAT || p[7] != 0 || p[10] != 0 || p[11] != 0)
        return RECORD_IS_DAMAGED;
    if (h->file_hash != file_hash || h->block != block || h->projection != projection)
        return RECORD_IS_DAMAGED;
    if (h->flags == RECORD_HOLE) {
        if (h->user_bytes != 0 || h->crc != record_crc(p, NULL, 0, NULL, 0))
            return RECORD_IS_DAMAGED;
        return RECORD_IS_HOLE;
    }
    /* no data has version 0: it means half of a head above half of an older one */
    if (h->flags != 0 || h->user_bytes == 0 || h->user_bytes > block_bytes ||
        h->version == 0)
        return RECORD_IS_DAMAGED;
    return RECORD_IS_DATA;
}

uint64_t record_extent_bytes(const struct codec *codec, unsigned projection)
{
    uint64_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(codec, projection);
    uint64_t heads = (EXTENT_BLOCKS * head + RECORD_PAGE_BYTES - 1) / RECORD_PAGE_BYTES *
                     RECORD_PAGE_BYTES;

    return heads + EXTENT_BLOCKS * codec_row_bytes(codec, codec_block_bytes(codec));
}

unsigned quorum_write(const struct codec_layout *layout, unsigned c)
{
    return quorum_min(layout->k, c > layout->safe ? c : layout->safe);
}

unsigned quorum_read(const struct codec_layout *layout, unsigned c, bool full)
{
    assert(c >= layout->k);
    return full ? quorum_write(layout, c) : quorum_min(layout->k, c);
}
