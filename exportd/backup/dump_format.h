/*
 * dump_format.h - a dump: all metadata of a cluster, as of one moment, in one file. Pure.
 *
 * A dump is a head, frames with keys in ascending order, and a frame that ends it. Each
 * frame has a crc that depends on the head and on the place of the frame, so a dump
 * without its end, or with a part of another one, is not taken for a dump.
 * docs/FORMATS.md, "Dump of the metadata", has the bytes.
 */
#ifndef ROZO_EXPORTD_BACKUP_DUMP_FORMAT_H
#define ROZO_EXPORTD_BACKUP_DUMP_FORMAT_H

#include "exportd/quorum/seed/seed_msg.h"

enum {
    DUMP_FORMAT = 1,
    DUMP_HEAD_BYTES = 64,
    DUMP_FRAME_BYTES = 16, /* before the payload of a frame */
    DUMP_END_BYTES = 16,   /* payload of the last frame */
    DUMP_PAYLOAD_MAX = 8 << 20,
};

/* Head. Plain data. */
struct dump_head {
    uint8_t cluster_id[RAFT_MSG_CLUSTER_ID_BYTES];
    uint32_t group;       /* number of raft_msg_group; 0 also without a quorum */
    uint64_t index, term; /* newest entry of the log that it has; 0: there was no log */
    int64_t wall_ns;      /* when it was made, by that machine's clock; ns since 1970 */
};
void dump_head_encode(const struct dump_head *head, uint8_t buf[DUMP_HEAD_BYTES]);
/**
 * Unpacks and checks it. Returns 0, -ROZO_EUNKNOWN_FORMAT, -EINVAL (no dump) or
 * -ROZO_EDAMAGED.
 */
int dump_head_decode(const uint8_t buf[DUMP_HEAD_BYTES], struct dump_head *out);

/* Place in a dump that is written or read, from dump_place_begin(). Plain data. */
struct dump_place {
    uint32_t crc;      /* crc of the head */
    uint32_t n_frames; /* before this place */
    uint64_t n_keys, n_bytes;
    struct seed_key last; /* last key */
    bool is_over;         /* the end was there */
};
void dump_place_begin(struct dump_place *p, const uint8_t head[DUMP_HEAD_BYTES]);

/**
 * Makes the head of a frame for items (seed_item_put()) that follow the place, 1 to
 * DUMP_PAYLOAD_MAX bytes, and goes on behind it. Returns 0, -EBADMSG (they are not valid)
 * or -ENOMEM.
 */
int dump_items_put(struct dump_place *p, const uint8_t *items, size_t len,
                   uint8_t frame[DUMP_FRAME_BYTES]);
/** Makes the last frame. */
void dump_end_put(struct dump_place *p, uint8_t buf[DUMP_FRAME_BYTES + DUMP_END_BYTES]);

/** Reads how many bytes of payload follow. Returns 0 or -ROZO_EDAMAGED. */
int dump_frame_size(const uint8_t frame[DUMP_FRAME_BYTES], size_t *len);
/**
 * Checks the frame at the place, and goes on behind it.
 *
 * @param items out: malloc'ed, owned by the caller; keys and values point into payload.
 *              NULL if it is the last frame: p->is_over is true then.
 * @return 0, -ROZO_EDAMAGED or -ENOMEM.
 */
int dump_frame_take(struct dump_place *p, const uint8_t frame[DUMP_FRAME_BYTES],
                    const uint8_t *payload, size_t len, struct kv_item **items,
                    size_t *n_items);

#endif
