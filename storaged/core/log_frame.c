/*
 * log_frame.c - bytes of journal segments: headers, frames, the search behind damage.
 *
 * In:     sectors and segments as a disk gave them, entries as the journal wants them framed.
 * Out:    the other of the two, or why not.
 * Keeps:  an entry is given only when its frame was written by this use of this segment (I8).
 * Ask:    every byte position here; users' disks already carry them (docs/FORMATS.md).
 */
#include "storaged/core/log_frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "codec/codec.h"
#include "common/bytes.h"

enum {
    HEADER_FORMAT_AT = 8,
    HEADER_CRC_AT = 12, /* of the 512 bytes with this field zero */
    HEADER_NUMBER_AT = 16,
    HEADER_SALT_AT = 24,
    HEADER_SIZE_AT = 32,
    HEADER_END = 40, /* zero from here */

    FRAME_CRC_AT = 4, /* of the salt, then the other bytes of the header */
    FRAME_SUM_AT = 8, /* crc of the entry */
    FRAME_LEN_AT = 12,
    FRAME_KIND_AT = 16, /* then three zero bytes */
    FRAME_SEQUENCE_AT = 20,
    FRAME_NUMBER_AT = 24,
};

static const char segment_magic[8] = "ROZOJRNL";
static const uint8_t frame_magic[4] = { 'R', 'z', 'J', 'f' };

/* ---- segment headers ---- */

static uint32_t header_crc(const uint8_t *p)
{
    uint8_t zero[4] = { 0 };
    uint32_t crc = codec_crc32c(0, p, HEADER_CRC_AT);

    crc = codec_crc32c(crc, zero, sizeof(zero));
    return codec_crc32c(crc, p + HEADER_CRC_AT + 4,
                        SEGMENT_HEADER_BYTES - HEADER_CRC_AT - 4);
}

void segment_header_put(uint8_t p[SEGMENT_HEADER_BYTES], const struct segment_header *h)
{
    assert(h->number != 0);
    memset(p, 0, SEGMENT_HEADER_BYTES);
    memcpy(p, segment_magic, sizeof(segment_magic));
    put_le32(p + HEADER_FORMAT_AT, LOG_FORMAT);
    put_le64(p + HEADER_NUMBER_AT, h->number);
    put_le64(p + HEADER_SALT_AT, h->salt);
    put_le64(p + HEADER_SIZE_AT, h->bytes);
    put_le32(p + HEADER_CRC_AT, header_crc(p));
}

static int header_get(const uint8_t *p, struct segment_header *h)
{
    struct segment_header got = { .any_crc = false };

    if (p[0] == 0 && memcmp(p, p + 1, SEGMENT_HEADER_BYTES - 1) == 0)
        return -ENODATA;
    if (memcmp(p, segment_magic, sizeof(segment_magic)) != 0 ||
        get_le32(p + HEADER_CRC_AT) != header_crc(p))
        return -EUCLEAN;
    if (get_le32(p + HEADER_FORMAT_AT) != LOG_FORMAT)
        return -EPROTONOSUPPORT;
    got.number = get_le64(p + HEADER_NUMBER_AT);
    got.salt = get_le64(p + HEADER_SALT_AT);
    got.bytes = get_le64(p + HEADER_SIZE_AT);
    if (got.number == 0 || got.number == UINT64_MAX || got.bytes > LOG_SEGMENT_MAX)
        return -EUCLEAN;
    for (unsigned i = HEADER_END; i < SEGMENT_HEADER_BYTES; i++) {
        if (p[i] != 0)
            return -EUCLEAN;
    }
    *h = got;
    return 0;
}

int segment_header_get(const uint8_t front[SEGMENT_HEADER_BYTES],
                       const uint8_t back[SEGMENT_HEADER_BYTES], struct segment_header *h)
{
    int rc = header_get(front, h);

    if (rc != -EUCLEAN || back == NULL)
        return rc;
    rc = header_get(back, h);
    return rc == -ENODATA ? -EUCLEAN : rc;
}

/* ---- frames ---- */

static uint32_t frame_crc(const uint8_t *p, const struct segment_header *h)
{
    uint8_t salt[8];
    uint32_t crc;

    put_le64(salt, h->salt);
    crc = codec_crc32c(0, salt, sizeof(salt));
    crc = codec_crc32c(crc, p, FRAME_CRC_AT);
    return codec_crc32c(crc, p + FRAME_CRC_AT + 4,
                        LOG_FRAME_HEADER_BYTES - FRAME_CRC_AT - 4);
}

void log_frame_put(uint8_t p[LOG_FRAME_HEADER_BYTES], const struct segment_header *h,
                   uint32_t sequence, uint8_t kind, const struct iovec *iov,
                   unsigned n_iov, size_t len)
{
    uint32_t sum = 0;

    assert(kind != 0 && len <= LOG_ENTRY_MAX && sequence != 0);
    for (unsigned i = 0; i < n_iov; i++)
        sum = codec_crc32c(sum, iov[i].iov_base, iov[i].iov_len);
    memset(p, 0, LOG_FRAME_HEADER_BYTES);
    memcpy(p, frame_magic, sizeof(frame_magic));
    put_le32(p + FRAME_SUM_AT, sum);
    put_le32(p + FRAME_LEN_AT, (uint32_t)len);
    p[FRAME_KIND_AT] = kind;
    put_le32(p + FRAME_SEQUENCE_AT, sequence);
    put_le64(p + FRAME_NUMBER_AT, h->number);
    put_le32(p + FRAME_CRC_AT, frame_crc(p, h));
}

/* Is there a header of this use of the segment, not older than `sequence`? `room`: bytes from p on. */
static bool frame_header_is_whole(const uint8_t *p, size_t room,
                                  const struct segment_header *h, uint32_t sequence)
{
    return room >= LOG_FRAME_HEADER_BYTES &&
           memcmp(p, frame_magic, sizeof(frame_magic)) == 0 &&
           get_le64(p + FRAME_NUMBER_AT) == h->number &&
           get_le32(p + FRAME_CRC_AT) == frame_crc(p, h) && p[FRAME_KIND_AT] != 0 &&
           get_le32(p + FRAME_SEQUENCE_AT) >= sequence &&
           get_le32(p + FRAME_LEN_AT) <= LOG_ENTRY_MAX;
}

static bool frame_entry_is_whole(const uint8_t *p, size_t room, bool any_crc)
{
    uint32_t len = get_le32(p + FRAME_LEN_AT);

    return room - LOG_FRAME_HEADER_BYTES >= len &&
           (any_crc || get_le32(p + FRAME_SUM_AT) ==
                           codec_crc32c(0, p + LOG_FRAME_HEADER_BYTES, len));
}

int segment_parse(const uint8_t *bytes, size_t len, const struct segment_header *h,
                  unsigned loop, log_entry_cb *cb, void *arg,
                  struct log_scan_result *result)
{
    uint64_t at = SEGMENT_PAGE_BYTES, end = h->bytes < len ? h->bytes : len;
    uint32_t sequence = 1;
    bool is_torn = false;

    if (end == h->bytes && end >= SEGMENT_PAGE_BYTES)
        end -= SEGMENT_PAGE_BYTES; /* the copy of the header */
    while (at < end) {
        const uint8_t *p = bytes + at;
        struct log_place place = { .segment = h->number };
        int rc;

        if (!frame_header_is_whole(p, end - at, h, sequence)) {
            at += 8;
            continue;
        }
        place.offset = at + LOG_FRAME_HEADER_BYTES;
        place.len = get_le32(p + FRAME_LEN_AT);
        at += log_frame_bytes(place.len);
        if (!frame_entry_is_whole(p, end - (uint64_t)(p - bytes), h->any_crc)) {
            is_torn = true;
            continue;
        }
        is_torn = false;
        /* Frames that are missing before a whole one: bytes were lost. */
        result->n_damaged += get_le32(p + FRAME_SEQUENCE_AT) - sequence;
        sequence = get_le32(p + FRAME_SEQUENCE_AT) + 1;
        result->n_entries++;
        rc = cb(arg, loop, p[FRAME_KIND_AT], &place, p + LOG_FRAME_HEADER_BYTES,
                place.len);
        if (rc != 0)
            return rc;
        if (sequence == 0)
            break;
    }
    result->n_torn += is_torn;
    return 0;
}
