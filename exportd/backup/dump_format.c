/*
 * dump_format.c - bytes of a dump.
 *
 * Keeps:  nothing of a frame is taken before its crc, its number and its keys have been
 *         checked; the end says how much there must have been.
 * Ask:    the bytes. Users' backups carry them.
 */
#include "exportd/backup/dump_format.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"

static const uint8_t magic[8] = { 'r', 'o', 'z', 'o', 'd', 'u', 'm', 'p' };

/* Head. Then the head of a frame. */
enum {
    AT_CRC = 8,
    AT_FORMAT = 12,
    AT_CLUSTER = 16,
    AT_GROUP = 32,
    AT_ZERO = 36,
    AT_INDEX = 40,
    AT_TERM = 48,
    AT_WALL = 56,
};
enum { AT_NUMBER = 4, AT_KIND = 8, AT_LEN = 12 };
enum { KIND_ITEMS = 1, KIND_END = 2 };

void dump_head_encode(const struct dump_head *head, uint8_t buf[DUMP_HEAD_BYTES])
{
    memset(buf, 0, DUMP_HEAD_BYTES);
    memcpy(buf, magic, sizeof(magic));
    put_le32(buf + AT_FORMAT, DUMP_FORMAT);
    memcpy(buf + AT_CLUSTER, head->cluster_id, sizeof(head->cluster_id));
    put_le32(buf + AT_GROUP, head->group);
    put_le64(buf + AT_INDEX, head->index);
    put_le64(buf + AT_TERM, head->term);
    put_le64(buf + AT_WALL, (uint64_t)head->wall_ns);
    put_le32(buf + AT_CRC, codec_crc32c(0, buf + AT_FORMAT, DUMP_HEAD_BYTES - AT_FORMAT));
}

int dump_head_decode(const uint8_t buf[DUMP_HEAD_BYTES], struct dump_head *out)
{
    if (memcmp(buf, magic, sizeof(magic)) != 0)
        return -EINVAL;
    if (get_le32(buf + AT_CRC) !=
        codec_crc32c(0, buf + AT_FORMAT, DUMP_HEAD_BYTES - AT_FORMAT))
        return -ROZO_EDAMAGED;
    if (get_le32(buf + AT_FORMAT) != DUMP_FORMAT)
        return -ROZO_EUNKNOWN_FORMAT;
    *out = (struct dump_head){
        .group = get_le32(buf + AT_GROUP),
        .index = get_le64(buf + AT_INDEX),
        .term = get_le64(buf + AT_TERM),
        .wall_ns = (int64_t)get_le64(buf + AT_WALL),
    };
    memcpy(out->cluster_id, buf + AT_CLUSTER, sizeof(out->cluster_id));
    if (get_le32(buf + AT_ZERO) != 0 || out->index > RAFT_NUMBER_MAX ||
        out->term > RAFT_NUMBER_MAX || (out->index == 0) != (out->term == 0))
        return -ROZO_EDAMAGED;
    return 0;
}

void dump_place_begin(struct dump_place *p, const uint8_t head[DUMP_HEAD_BYTES])
{
    memset(p, 0, sizeof(*p));
    p->crc = codec_crc32c(0, head, DUMP_HEAD_BYTES);
}

/* Returns the crc of a frame at this place. */
static uint32_t frame_crc(const struct dump_place *p,
                          const uint8_t frame[DUMP_FRAME_BYTES], const uint8_t *payload,
                          size_t len)
{
    uint32_t crc = codec_crc32c(p->crc, frame + AT_NUMBER, DUMP_FRAME_BYTES - AT_NUMBER);

    return codec_crc32c(crc, payload, len);
}

static void frame_put(const struct dump_place *p, unsigned kind, const uint8_t *payload,
                      size_t len, uint8_t frame[DUMP_FRAME_BYTES])
{
    memset(frame, 0, DUMP_FRAME_BYTES);
    put_le32(frame + AT_NUMBER, p->n_frames);
    frame[AT_KIND] = (uint8_t)kind;
    put_le32(frame + AT_LEN, (uint32_t)len);
    put_le32(frame, frame_crc(p, frame, payload, len));
}

/* Goes on behind a frame of items. */
static void place_advance(struct dump_place *p, const struct kv_item *items,
                          size_t n_items, size_t len)
{
    const struct kv_item *last = &items[n_items - 1];

    p->n_frames++;
    p->n_keys += n_items;
    p->n_bytes += len;
    p->last.len = (uint32_t)last->key_len;
    memcpy(p->last.bytes, last->key, last->key_len);
}

int dump_items_put(struct dump_place *p, const uint8_t *items, size_t len,
                   uint8_t frame[DUMP_FRAME_BYTES])
{
    struct kv_item *list;
    size_t n;
    int rc;

    assert(!p->is_over && len > 0 && len <= DUMP_PAYLOAD_MAX);
    rc = seed_items_get(items, len, &p->last, &list, &n);
    if (rc != 0)
        return rc;
    frame_put(p, KIND_ITEMS, items, len, frame);
    place_advance(p, list, n, len);
    free(list);
    return 0;
}

void dump_end_put(struct dump_place *p, uint8_t buf[DUMP_FRAME_BYTES + DUMP_END_BYTES])
{
    uint8_t *payload = buf + DUMP_FRAME_BYTES;

    assert(!p->is_over);
    put_le64(payload, p->n_keys);
    put_le64(payload + 8, p->n_bytes);
    frame_put(p, KIND_END, payload, DUMP_END_BYTES, buf);
    p->is_over = true;
}

int dump_frame_size(const uint8_t frame[DUMP_FRAME_BYTES], size_t *len)
{
    *len = get_le32(frame + AT_LEN);
    return *len > 0 && *len <= DUMP_PAYLOAD_MAX ? 0 : -ROZO_EDAMAGED;
}

static int end_take(struct dump_place *p, const uint8_t *payload, size_t len)
{
    if (len != DUMP_END_BYTES || get_le64(payload) != p->n_keys ||
        get_le64(payload + 8) != p->n_bytes)
        return -ROZO_EDAMAGED;
    p->is_over = true;
    return 0;
}

int dump_frame_take(struct dump_place *p, const uint8_t frame[DUMP_FRAME_BYTES],
                    const uint8_t *payload, size_t len, struct kv_item **items,
                    size_t *n_items)
{
    int rc;

    *items = NULL;
    if (p->is_over || len != get_le32(frame + AT_LEN) || len > DUMP_PAYLOAD_MAX ||
        get_le32(frame) != frame_crc(p, frame, payload, len) ||
        get_le32(frame + AT_NUMBER) != p->n_frames ||
        !bytes_are_zero(frame + AT_KIND + 1, 3))
        return -ROZO_EDAMAGED;
    if (frame[AT_KIND] == KIND_END)
        return end_take(p, payload, len);
    if (frame[AT_KIND] != KIND_ITEMS || len == 0)
        return -ROZO_EDAMAGED;
    rc = seed_items_get(payload, len, &p->last, items, n_items);
    if (rc != 0)
        return rc == -ENOMEM ? rc : -ROZO_EDAMAGED;
    place_advance(p, *items, *n_items, len);
    return 0;
}
