/*
 * fuzz_dump.c - a dump of the metadata with any bytes.
 *
 * Goal: the reader reads nothing out of bounds; what it accepts encodes back the same.
 * Input: a byte (odd: the crcs are made right), then the file.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "exportd/backup/dump_format.h"
#include "tests/fuzz/fuzz.h"

enum { AT_HEAD_CRC = 8, AT_HEAD_CHECKED = 12 };

/* Makes the crc of a head or frame right, so that what lies behind it is reached. */
static void head_repair(uint8_t *head)
{
    put_le32(head + AT_HEAD_CRC,
             codec_crc32c(0, head + AT_HEAD_CHECKED, DUMP_HEAD_BYTES - AT_HEAD_CHECKED));
}

static void frame_repair(const struct dump_place *p, uint8_t *frame,
                         const uint8_t *payload, size_t len)
{
    uint32_t crc = codec_crc32c(p->crc, frame + 4, DUMP_FRAME_BYTES - 4);

    put_le32(frame, codec_crc32c(crc, payload, len));
}

/* Checks that a frame that was accepted is the one that a writer makes at this place. */
static void frame_again(struct dump_place p, const uint8_t *frame, const uint8_t *payload,
                        size_t len, bool is_end)
{
    uint8_t again[DUMP_FRAME_BYTES + DUMP_END_BYTES];

    if (is_end) {
        dump_end_put(&p, again);
        assert(memcmp(again + DUMP_FRAME_BYTES, payload, DUMP_END_BYTES) == 0);
    } else {
        assert(dump_items_put(&p, payload, len, again) == 0);
    }
    assert(memcmp(again, frame, DUMP_FRAME_BYTES) == 0);
}

static void frames_take(struct dump_place *p, uint8_t *at, size_t left, bool repair)
{
    while (!p->is_over && left >= DUMP_FRAME_BYTES) {
        struct dump_place before = *p;
        uint8_t *payload = at + DUMP_FRAME_BYTES;
        struct kv_item *items;
        size_t len, n;
        int rc;

        if (dump_frame_size(at, &len) != 0 || len > left - DUMP_FRAME_BYTES)
            return;
        if (repair)
            frame_repair(p, at, payload, len);
        rc = dump_frame_take(p, at, payload, len, &items, &n);
        free(items);
        if (rc != 0)
            return;
        frame_again(before, at, payload, len, p->is_over);
        at = payload + len;
        left -= DUMP_FRAME_BYTES + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dump_place place;
    struct dump_head head;
    uint8_t again[DUMP_HEAD_BYTES], *copy;

    if (size < 1 + DUMP_HEAD_BYTES)
        return 0;
    copy = malloc(size - 1); /* exact size, so that reads behind it are seen */
    assert(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    if (data[0] % 2 == 1)
        head_repair(copy);
    if (dump_head_decode(copy, &head) == 0) {
        dump_head_encode(&head, again);
        assert(memcmp(again, copy, DUMP_HEAD_BYTES) == 0);
        dump_place_begin(&place, copy);
        frames_take(&place, copy + DUMP_HEAD_BYTES, size - 1 - DUMP_HEAD_BYTES,
                    data[0] % 2 == 1);
    }
    free(copy);
    return 0;
}
