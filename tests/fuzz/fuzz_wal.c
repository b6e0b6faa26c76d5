/*
 * fuzz_wal.c - a WAL segment with any bytes that a disk may return.
 *
 * Goal: whatever a segment contains, its scan reads nothing out of bounds, ends, and
 * returns only entries that were appended, each at most once and in order.
 * Input: a byte of flags, then patches of a good segment: offset (2 bytes), length (1),
 * bytes. If patches are sealed, the frame header at each gets the right checksum.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/wal/wal_frame.h"
#include "tests/fuzz/fuzz.h"

enum {
    BYTES = 64 << 10,
    ENTRIES = 12,
    HEAD = 8,      /* bytes of an entry that its frame has twice */
    SEAL = 1,      /* seals patched frame headers */
    SEAL_HEAD = 2, /* seals both segment headers */
    CUT = 4,       /* cuts the file */
};

struct seen {
    const uint8_t *bytes;
    size_t len;
    uint64_t last;
    bool is_sealed;
};

static const struct segment_header header = { .number = 7,
                                              .salt = 0x1234567890abcdef,
                                              .bytes = BYTES };

static int on_entry(void *arg, unsigned loop, uint8_t kind, const struct wal_place *place,
                    const uint8_t *data, size_t len)
{
    struct seen *seen = arg;

    assert(loop == 3 && kind != 0);
    assert(place->offset > seen->last && place->offset + place->len <= seen->len);
    if (place->is_damaged) {
        assert(len > 0 && len <= WAL_HEAD_MAX);
        assert(seen->is_sealed || (len == HEAD && get_le32(data) < ENTRIES));
        seen->last = place->offset + place->len - 1;
        return 0;
    }
    assert(data == seen->bytes + place->offset && place->len == len);
    seen->last = place->offset + len - (len > 0);
    if (seen->is_sealed)
        return 0;
    assert(len >= 8 && get_le32(data) < ENTRIES && get_le32(data + 4) == len);
    for (size_t i = 8; i < len; i++)
        assert(data[i] == (uint8_t)(data[0] * 31 + i));
    return 0;
}

static size_t good_segment(uint8_t *bytes)
{
    size_t at = SEGMENT_PAGE_BYTES;

    memset(bytes, 0, BYTES);
    segment_header_put(bytes, &header);
    segment_header_put(bytes + BYTES - SEGMENT_PAGE_BYTES, &header);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint8_t *data = bytes + at + WAL_FRAME_HEADER_BYTES;
        size_t len = 8 + i * 333;
        struct iovec iov = { .iov_base = data, .iov_len = len };

        put_le32(data, i);
        put_le32(data + 4, (uint32_t)len);
        for (size_t k = 8; k < len; k++)
            data[k] = (uint8_t)(i * 31 + k);
        wal_frame_put(bytes + at, data + len, &header,
                      &(struct frame_says){ .sequence = i + 1, .kind = (uint8_t)(1 + i) },
                      &iov, 1, len, HEAD);
        at += wal_frame_bytes(len, HEAD);
    }
    return at;
}

/* Seals a frame header: checksum over the salt and the rest of the header. */
static void seal_frame(uint8_t *p)
{
    uint8_t salt[8];
    uint32_t crc;

    put_le64(salt, header.salt);
    crc = codec_crc32c(0, salt, sizeof(salt));
    crc = codec_crc32c(crc, p, 4);
    put_le32(p + 4, codec_crc32c(crc, p + 8, WAL_FRAME_HEADER_BYTES - 8));
}

static void seal_header(uint8_t *p)
{
    put_le32(p + 12, 0);
    put_le32(p + 12, codec_crc32c(0, p, SEGMENT_HEADER_BYTES));
}

static void patch(uint8_t *bytes, const uint8_t *data, size_t size, bool seal)
{
    while (size > 3) {
        size_t at = get_le16(data);
        size_t len = data[2] < size - 3 ? data[2] : size - 3;

        if (at + len > BYTES)
            len = BYTES - at;
        memcpy(bytes + at, data + 3, len);
        at = at / 8 * 8;
        if (seal && at + WAL_FRAME_HEADER_BYTES <= BYTES)
            seal_frame(bytes + at);
        data += 3 + len;
        size -= 3 + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wal_scan_result result = { .n_entries = 0 };
    struct segment_header h;
    struct seen seen = { .len = BYTES };
    uint8_t *bytes, *exact;

    if (size < 1)
        return 0;
    bytes = malloc(BYTES);
    assert(bytes != NULL);
    good_segment(bytes);
    patch(bytes, data + 1, size - 1, (data[0] & SEAL) != 0);
    if ((data[0] & SEAL_HEAD) != 0) {
        seal_header(bytes);
        seal_header(bytes + BYTES - SEGMENT_PAGE_BYTES);
    }
    if ((data[0] & CUT) != 0)
        seen.len = BYTES / 256 * (data[0] | 1u) / 2;
    exact = malloc(seen.len);
    assert(exact != NULL);
    memcpy(exact, bytes, seen.len);
    seen.bytes = exact;
    seen.is_sealed = (data[0] & (SEAL | SEAL_HEAD)) != 0;
    if (seen.len >= SEGMENT_HEADER_BYTES &&
        segment_header_get(bytes, bytes + BYTES - SEGMENT_PAGE_BYTES, &h) == 0) {
        uint8_t again[SEGMENT_HEADER_BYTES];
        bool is_front;

        segment_header_put(again, &h);
        is_front = memcmp(again, bytes, sizeof(again)) == 0;
        assert(is_front ||
               memcmp(again, bytes + BYTES - SEGMENT_PAGE_BYTES, sizeof(again)) == 0);
        segment_parse(exact, seen.len, &h, 3, on_entry, &seen, &result);
        assert(result.n_entries <= BYTES / WAL_FRAME_HEADER_BYTES);
    }
    free(exact);
    free(bytes);
    return 0;
}
