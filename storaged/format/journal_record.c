/*
 * journal_record.c - pack and check the entries of the overwrite journal.
 *
 *     0 file id (16)   16 codec   17 layout   18 n_storages   19 projection
 *    20 block_bytes (4)   24 first (8)   32 end (8)   40 version (8)   48 epoch (4)
 *    52 projections (4)   56 flags (4)   60 zero (4)   64 blocks (16)
 *    80 storages (32 x 4)   208 zero (8)   216 heads, then bodies
 *
 * In:     bytes whose frame had the right crc; they are checked nevertheless (I8).
 * Keeps:  an entry that journal_record_get() accepts is packed to the same bytes again.
 */
#include "storaged/format/journal_record.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "storaged/format/projfile.h"

enum {
    CODEC_AT = 16,
    LAYOUT_AT = 17,
    N_STORAGES_AT = 18,
    PROJECTION_AT = 19,
    BLOCK_BYTES_AT = 20,
    FIRST_AT = 24,
    END_AT = 32,
    VERSION_AT = 40,
    EPOCH_AT = 48,
    PROJECTIONS_AT = 52,
    FLAGS_AT = 56,
    ZERO_AT = 60,
    BLOCKS_AT = 64,
    STORAGES_AT = 80,
    TAIL_AT = STORAGES_AT + 4 * DIST_MAX,
    FLAG_KEEP_NEWER = 1,
    ANY = 255,
};

static_assert(TAIL_AT + 8 == JOURNAL_RECORD_HEADER_BYTES, "on disk since format 1");

void journal_record_put(uint8_t p[JOURNAL_RECORD_HEADER_BYTES],
                        const struct journal_record *e)
{
    assert(e->file.n_storages <= DIST_MAX);
    memset(p, 0, JOURNAL_RECORD_HEADER_BYTES);
    file_id_put(p, &e->file.id);
    p[CODEC_AT] = e->file.codec;
    p[LAYOUT_AT] = e->file.layout;
    p[N_STORAGES_AT] = e->file.n_storages;
    p[PROJECTION_AT] = e->projection;
    put_le32(p + BLOCK_BYTES_AT, e->file.block_bytes);
    put_le64(p + FIRST_AT, e->first);
    put_le64(p + END_AT, e->end);
    put_le64(p + VERSION_AT, e->version);
    put_le32(p + EPOCH_AT, e->epoch);
    put_le32(p + PROJECTIONS_AT, e->projections);
    put_le32(p + FLAGS_AT, e->keep_newer ? FLAG_KEEP_NEWER : 0);
    put_le64(p + BLOCKS_AT, e->blocks[0]);
    put_le64(p + BLOCKS_AT + 8, e->blocks[1]);
    for (unsigned i = 0; i < e->file.n_storages; i++)
        put_le32(p + STORAGES_AT + 4 * i, e->file.storages[i]);
}

size_t journal_record_head_bytes(const uint8_t p[JOURNAL_RECORD_HEADER_BYTES])
{
    return STORAGES_AT + 4 * (size_t)p[N_STORAGES_AT];
}

bool journal_record_head_widen(const uint8_t *head, size_t len,
                               uint8_t p[JOURNAL_RECORD_HEADER_BYTES])
{
    if (len < STORAGES_AT || len > JOURNAL_RECORD_HEADER_BYTES)
        return false;
    memset(p, 0, JOURNAL_RECORD_HEADER_BYTES);
    memcpy(p, head, len);
    return true;
}

static bool range_is_valid(const struct journal_record *e)
{
    return e->first < PROJFILE_BLOCKS_MAX && e->end > e->first &&
           (e->end == UINT64_MAX || e->end <= PROJFILE_BLOCKS_MAX);
}

/* Checks the fields of each kind; those that a kind does not use must be zero. */
static bool fields_are_valid(const struct journal_record *e)
{
    unsigned n = codec_n(e->codec);
    bool has_blocks = (e->blocks[0] | e->blocks[1]) != 0;

    switch (e->kind) {
    case JOURNAL_RECORDS:
    case JOURNAL_DAMAGED:
        return e->projection < n && has_blocks && e->end == 0 && e->epoch == 0 &&
               e->projections == 0 && !e->keep_newer && e->first < PROJFILE_BLOCKS_MAX &&
               (e->version != 0 || e->kind == JOURNAL_RECORDS);
    case JOURNAL_MARK:
        return (e->projection < n || e->projection == ANY) && !has_blocks &&
               range_is_valid(e) && e->version != 0 && e->epoch == 0 &&
               e->projections == 0;
    case JOURNAL_FENCE:
        return e->projection == 0 && !has_blocks && e->first == 0 && e->end == 0 &&
               e->version == 0 && e->epoch != 0 && e->projections == 0 && !e->keep_newer;
    case JOURNAL_DROP:
        return e->projection == 0 && !has_blocks && range_is_valid(e) && !e->keep_newer &&
               e->projections >> n == 0;
    default:
        return false;
    }
}

int journal_record_get(uint8_t kind, const uint8_t *p, size_t len,
                       struct journal_record *out)
{
    uint8_t again[JOURNAL_RECORD_HEADER_BYTES];
    struct journal_record e = { .kind = kind };

    if (len < JOURNAL_RECORD_HEADER_BYTES ||
        (kind != JOURNAL_RECORDS && len > JOURNAL_RECORD_HEADER_BYTES))
        return -ROZO_EDAMAGED;
    file_id_get(p, &e.file.id);
    e.file.codec = p[CODEC_AT];
    e.file.layout = p[LAYOUT_AT];
    e.file.n_storages = p[N_STORAGES_AT];
    e.file.block_bytes = get_le32(p + BLOCK_BYTES_AT);
    e.codec = codec_get(e.file.codec, e.file.layout, e.file.block_bytes);
    if (e.codec == NULL || e.file.n_storages < codec_n(e.codec) ||
        e.file.n_storages > DIST_MAX)
        return -ROZO_EDAMAGED;
    for (unsigned i = 0; i < e.file.n_storages; i++)
        e.file.storages[i] = get_le32(p + STORAGES_AT + 4 * i);
    e.projection = p[PROJECTION_AT];
    e.first = get_le64(p + FIRST_AT);
    e.end = get_le64(p + END_AT);
    e.version = get_le64(p + VERSION_AT);
    e.epoch = get_le32(p + EPOCH_AT);
    e.projections = get_le32(p + PROJECTIONS_AT);
    e.keep_newer = get_le32(p + FLAGS_AT) == FLAG_KEEP_NEWER;
    e.blocks[0] = get_le64(p + BLOCKS_AT);
    e.blocks[1] = get_le64(p + BLOCKS_AT + 8);
    journal_record_put(again, &e);
    if (!fields_are_valid(&e) || memcmp(again, p, JOURNAL_RECORD_HEADER_BYTES) != 0)
        return -ROZO_EDAMAGED;
    *out = e;
    return 0;
}

int journal_record_blocks(const struct journal_record *e, const uint8_t *p, size_t len,
                          struct journal_block *out)
{
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    uint32_t hash = file_id_hash(&e->file.id);
    size_t at = JOURNAL_RECORD_HEADER_BYTES;
    int n = 0;

    assert(e->kind == JOURNAL_RECORDS);
    for (unsigned i = 0; i < JOURNAL_RECORD_BLOCKS_MAX; i++) {
        if (!journal_record_has_block(e, i))
            continue;
        out[n++] = (struct journal_block){ .block = e->first + i, .head_at = at };
        at += head;
    }
    if (at > len)
        return -ROZO_EDAMAGED;
    for (int i = 0; i < n; i++) {
        struct journal_block *r = &out[i];
        enum record_state state =
            record_inspect(p + r->head_at, hash, r->block, e->projection,
                           e->file.block_bytes, &r->header);

        if (state == RECORD_IS_DAMAGED || r->header.version == 0)
            return -ROZO_EDAMAGED;
        r->body_at = at;
        if (state == RECORD_IS_DATA)
            r->body_len = codec_row_bytes(e->codec, r->header.user_bytes);
        at += r->body_len;
        if (at > len)
            return -ROZO_EDAMAGED;
    }
    return at == len ? n : -ROZO_EDAMAGED;
}
