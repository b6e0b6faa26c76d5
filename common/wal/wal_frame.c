/*
 * wal_frame.c - bytes of WAL segments: headers, frames, the search behind damage.
 *
 * In:     sectors and segments from a disk; entries to be framed.
 * Out:    entries, or why bytes are refused; frames.
 * Keeps:  an entry is given only when its frame was written by this use of this
 *         segment (I8).
 * Ask:    every byte position here; users' disks already carry them (docs/FORMATS.md).
 */
#include "common/wal/wal_frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"

enum {
    HEADER_FORMAT_AT = 8,
    HEADER_CRC_AT = 12, /* crc of the 512 bytes with this field zero */
    HEADER_NUMBER_AT = 16,
    HEADER_SALT_AT = 24,
    HEADER_SIZE_AT = 32,
    HEADER_END = 40, /* zero from here */

    FRAME_CRC_AT = 4, /* crc of the salt and the other bytes of the header */
    FRAME_SUM_AT = 8, /* crc of the entry behind its head */
    FRAME_LEN_AT = 12,
    FRAME_KIND_AT = 16, /* then a zero byte */
    FRAME_HEAD_LEN_AT = 18,
    FRAME_SEQUENCE_AT = 20,
    FRAME_NUMBER_AT = 24,
    FRAME_HEAD_SUM_AT = 32, /* crc of the head */
    FRAME_SYNCED_SEQUENCE_AT = 36,
    FRAME_SYNCED_NUMBER_AT = 40,
    FRAME_SINCE_AT = 48,

    FRAME_1_BYTES = 32, /* header of format 1: up to here; no head, no tail */

    /* crc of the salt, the other bytes of the tail, and the head behind it */
    TAIL_CRC_AT = 4,
    TAIL_SEQUENCE_AT = 8,
    TAIL_LEN_AT = 12,
    TAIL_NUMBER_AT = 16,
    TAIL_KIND_AT = 24, /* then a zero byte */
    TAIL_HEAD_LEN_AT = 26,
    TAIL_ZERO_AT = 28,

    SYNCED_BYTES = 12, /* WAL_KIND_SYNCED: segment number (8), sequence (4) */
};

static const char segment_magic[8] = "ROZOJRNL";
static const uint8_t frame_magic[4] = { 'R', 'z', 'J', 'f' };
static const uint8_t tail_magic[4] = { 'R', 'z', 'J', 't' };

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
    put_le32(p + HEADER_FORMAT_AT, h->format == 0 ? WAL_FORMAT : h->format);
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
        return -ROZO_EDAMAGED;
    got.format = get_le32(p + HEADER_FORMAT_AT);
    if (got.format == 0 || got.format > WAL_FORMAT)
        return -ROZO_EUNKNOWN_FORMAT;
    got.number = get_le64(p + HEADER_NUMBER_AT);
    got.salt = get_le64(p + HEADER_SALT_AT);
    got.bytes = get_le64(p + HEADER_SIZE_AT);
    if (got.number == 0 || got.number == UINT64_MAX || got.bytes > WAL_SEGMENT_MAX)
        return -ROZO_EDAMAGED;
    for (unsigned i = HEADER_END; i < SEGMENT_HEADER_BYTES; i++) {
        if (p[i] != 0)
            return -ROZO_EDAMAGED;
    }
    *h = got;
    return 0;
}

int segment_header_get(const uint8_t front[SEGMENT_HEADER_BYTES],
                       const uint8_t back[SEGMENT_HEADER_BYTES], struct segment_header *h)
{
    int rc = header_get(front, h);

    if (rc != -ROZO_EDAMAGED || back == NULL)
        return rc;
    rc = header_get(back, h);
    return rc == -ENODATA ? -ROZO_EDAMAGED : rc;
}

/* ---- frames ---- */

/* Computes the crc of the salt and len bytes at p, without the four bytes of the crc
 * itself. */
static uint32_t salted_crc(const uint8_t *p, size_t len, const struct segment_header *h)
{
    uint8_t salt[8];
    uint32_t crc;

    put_le64(salt, h->salt);
    crc = codec_crc32c(0, salt, sizeof(salt));
    crc = codec_crc32c(crc, p, FRAME_CRC_AT);
    return codec_crc32c(crc, p + FRAME_CRC_AT + 4, len - FRAME_CRC_AT - 4);
}

static uint32_t body_crc(const struct iovec *iov, unsigned n_iov, size_t head_len)
{
    uint32_t sum = 0;

    for (unsigned i = 0; i < n_iov; i++) {
        size_t skip = i == 0 ? head_len : 0;

        sum = codec_crc32c(sum, (const uint8_t *)iov[i].iov_base + skip,
                           iov[i].iov_len - skip);
    }
    return sum;
}

static size_t tail_put(uint8_t *tail, const struct segment_header *h,
                       const struct frame_says *says, const void *head, size_t len,
                       size_t head_len)
{
    size_t padding = wal_padded(len) - len;
    uint8_t *p = tail + padding;

    memset(tail, 0, padding + WAL_FRAME_TAIL_BYTES);
    memcpy(p, tail_magic, sizeof(tail_magic));
    put_le32(p + TAIL_SEQUENCE_AT, says->sequence);
    put_le32(p + TAIL_LEN_AT, (uint32_t)len);
    put_le64(p + TAIL_NUMBER_AT, h->number);
    p[TAIL_KIND_AT] = says->kind;
    put_le16(p + TAIL_HEAD_LEN_AT, (uint16_t)head_len);
    if (head_len > 0)
        memcpy(p + WAL_FRAME_TAIL_BYTES, head, head_len);
    put_le32(p + TAIL_CRC_AT, salted_crc(p, WAL_FRAME_TAIL_BYTES + head_len, h));
    return padding + WAL_FRAME_TAIL_BYTES + head_len;
}

size_t wal_frame_put(uint8_t p[WAL_FRAME_HEADER_BYTES], uint8_t *tail,
                     const struct segment_header *h, const struct frame_says *says,
                     const struct iovec *iov, unsigned n_iov, size_t len, size_t head_len)
{
    assert(says->kind != 0 && len <= WAL_ENTRY_MAX && says->sequence != 0);
    assert(head_len <= WAL_HEAD_MAX && (head_len == 0 || iov[0].iov_len >= head_len));
    memset(p, 0, WAL_FRAME_HEADER_BYTES);
    memcpy(p, frame_magic, sizeof(frame_magic));
    put_le32(p + FRAME_SUM_AT, body_crc(iov, n_iov, head_len));
    put_le32(p + FRAME_LEN_AT, (uint32_t)len);
    p[FRAME_KIND_AT] = says->kind;
    put_le16(p + FRAME_HEAD_LEN_AT, (uint16_t)head_len);
    put_le32(p + FRAME_SEQUENCE_AT, says->sequence);
    put_le64(p + FRAME_NUMBER_AT, h->number);
    put_le32(p + FRAME_HEAD_SUM_AT,
             head_len == 0 ? 0 : codec_crc32c(0, iov[0].iov_base, head_len));
    put_le32(p + FRAME_SYNCED_SEQUENCE_AT, says->synced_sequence);
    put_le64(p + FRAME_SYNCED_NUMBER_AT, says->synced_segment);
    put_le64(p + FRAME_SINCE_AT, says->since);
    put_le32(p + FRAME_CRC_AT, salted_crc(p, WAL_FRAME_HEADER_BYTES, h));
    return tail_put(tail, h, says, head_len == 0 ? NULL : iov[0].iov_base, len, head_len);
}

/* ---- reading them ---- */

struct parse {
    const uint8_t *bytes;
    uint64_t end; /* end of the bytes that may be frames */
    const struct segment_header *h;
    struct wal_seen *seen;
    unsigned loop;
    wal_entry_cb *cb;
    void *arg;
    struct wal_scan_result *result;
    bool is_behind_gap; /* frames of earlier segments are lost */
};

/* The facts about a frame from its header, or from its tail if the header is damaged. */
struct wal_frame_fields {
    uint64_t at, bytes; /* bytes: the whole frame */
    uint32_t len, sequence;
    uint16_t head_len;
    uint8_t kind;
    const uint8_t *header, *tail; /* NULL: damaged */
};

static bool is_v1(const struct parse *s)
{
    return s->h->format == 1;
}

static size_t header_bytes(const struct parse *s)
{
    return is_v1(s) ? FRAME_1_BYTES : WAL_FRAME_HEADER_BYTES;
}

static uint64_t frame_bytes(const struct parse *s, const struct wal_frame_fields *f)
{
    return is_v1(s) ? wal_padded(FRAME_1_BYTES + (uint64_t)f->len)
                    : wal_frame_bytes(f->len, f->head_len);
}

/* Reads a frame header that belongs to this use of the segment. */
static bool frame_header_get(const struct parse *s, uint64_t at,
                             struct wal_frame_fields *f)
{
    const uint8_t *p = s->bytes + at;

    if (s->end - at < header_bytes(s) ||
        memcmp(p, frame_magic, sizeof(frame_magic)) != 0 ||
        get_le64(p + FRAME_NUMBER_AT) != s->h->number ||
        get_le32(p + FRAME_CRC_AT) != salted_crc(p, header_bytes(s), s->h))
        return false;
    *f = (struct wal_frame_fields){ .at = at,
                                    .len = get_le32(p + FRAME_LEN_AT),
                                    .sequence = get_le32(p + FRAME_SEQUENCE_AT),
                                    .head_len =
                                        is_v1(s) ? 0 : get_le16(p + FRAME_HEAD_LEN_AT),
                                    .kind = p[FRAME_KIND_AT],
                                    .header = p };
    f->bytes = frame_bytes(s, f);
    return true;
}

static bool frame_tail_get(const struct parse *s, uint64_t at, struct wal_frame_fields *f)
{
    const uint8_t *p = s->bytes + at;
    uint64_t before;
    size_t head_len;

    if (at > s->end || s->end - at < WAL_FRAME_TAIL_BYTES || is_v1(s) ||
        memcmp(p, tail_magic, sizeof(tail_magic)) != 0 ||
        get_le64(p + TAIL_NUMBER_AT) != s->h->number)
        return false;
    head_len = get_le16(p + TAIL_HEAD_LEN_AT);
    if (head_len > WAL_HEAD_MAX || s->end - at - WAL_FRAME_TAIL_BYTES < head_len ||
        get_le32(p + TAIL_CRC_AT) != salted_crc(p, WAL_FRAME_TAIL_BYTES + head_len, s->h))
        return false;
    *f = (struct wal_frame_fields){ .len = get_le32(p + TAIL_LEN_AT),
                                    .sequence = get_le32(p + TAIL_SEQUENCE_AT),
                                    .head_len = (uint16_t)head_len,
                                    .kind = p[TAIL_KIND_AT],
                                    .tail = p };
    before = WAL_FRAME_HEADER_BYTES + wal_padded(f->len);
    f->at = at - before;
    f->bytes = frame_bytes(s, f);
    return f->len <= WAL_ENTRY_MAX && at >= before + SEGMENT_PAGE_BYTES;
}

static bool frame_makes_sense(const struct wal_frame_fields *f, uint64_t from)
{
    return f->at >= from && f->kind != 0 && f->sequence != 0 && f->len <= WAL_ENTRY_MAX &&
           f->head_len <= WAL_HEAD_MAX && f->head_len <= f->len;
}

/* Finds the next frame from `from` on, where the previous one ended. */
static bool frame_next(const struct parse *s, uint64_t from, struct wal_frame_fields *f)
{
    for (uint64_t at = from; at < s->end; at += 8) {
        struct wal_frame_fields other;
        bool is_header;

        /* first byte of each magic; unused space is zero */
        if (s->bytes[at] != frame_magic[0])
            continue;
        is_header = frame_header_get(s, at, f);
        if (!is_header && !frame_tail_get(s, at, f))
            continue;
        if (!frame_makes_sense(f, from) || f->sequence <= s->seen->last)
            continue;
        if (is_header && f->bytes <= s->end - f->at &&
            frame_tail_get(s, at + WAL_FRAME_HEADER_BYTES + wal_padded(f->len), &other) &&
            other.sequence == f->sequence && other.head_len == f->head_len)
            f->tail = other.tail;
        return true;
    }
    return false;
}

static void note_bad(struct wal_seen *seen, uint32_t first, uint32_t last)
{
    if (seen->bad_first == 0)
        seen->bad_first = first;
    seen->bad_last = last;
}

/* Notes frames of which not even the head is left. */
static void note_gap(struct wal_seen *seen, uint32_t first, uint32_t last)
{
    if (first > last)
        return;
    note_bad(seen, first, last);
    if (seen->gap_first == 0)
        seen->gap_first = first;
    seen->gap_last = last;
    seen->n_gap += last - first + 1;
}

/* True if frames of unknown contents are lost that were on stable storage. */
static bool gap_was_synced(const struct wal_seen *seen)
{
    return seen->n_gap > 0 && seen->gap_first <= seen->synced;
}

/* True if a segment lost such frames, or its end. */
static bool stable_is_lost(const struct wal_seen *seen)
{
    return gap_was_synced(seen) || seen->named > seen->last;
}

/* Notes that all before (number, sequence) is on stable storage, from segment `since`
 * on. */
static void note_synced(struct parse *s, uint64_t since, uint64_t number,
                        uint32_t sequence)
{
    for (unsigned i = 0; i < s->result->n_seen; i++) {
        struct wal_seen *seen = &s->result->seen[i];

        if (seen->loop != s->loop || seen->number < since || seen->number > number)
            continue;
        if (seen->number < number)
            seen->synced = UINT32_MAX;
        else if (seen->synced < sequence)
            seen->synced = sequence;
        if (seen->number == number && sequence != UINT32_MAX && seen->named < sequence)
            seen->named = sequence;
        if (seen != s->seen && stable_is_lost(seen))
            s->is_behind_gap = true;
    }
}

/* Takes what a valid header says. What was lost before counts for this segment if it
 * belongs to the same life of the log. */
static void note_says(struct parse *s, const uint8_t *header)
{
    uint64_t since = get_le64(header + FRAME_SINCE_AT);

    note_synced(s, since, get_le64(header + FRAME_SYNCED_NUMBER_AT),
                get_le32(header + FRAME_SYNCED_SEQUENCE_AT));
    if (s->seen->since != 0)
        return;
    s->seen->since = since;
    for (unsigned i = 0; i < s->result->n_seen; i++) {
        const struct wal_seen *other = &s->result->seen[i];

        if (other != s->seen && other->loop == s->loop && other->since == since &&
            other->n_gap > 0)
            s->is_behind_gap = true;
    }
}

static void note_synced_entry(struct parse *s, const uint8_t *p, size_t len)
{
    for (size_t at = 0; at + SYNCED_BYTES <= len; at += SYNCED_BYTES) {
        uint64_t number = get_le64(p + at);

        note_synced(s, number, number, get_le32(p + at + 8));
    }
}

static int frame_give(struct parse *s, const struct wal_frame_fields *f,
                      const uint8_t *data, size_t len, bool is_damaged)
{
    struct wal_place place = { .segment = s->h->number,
                               .offset = f->at + header_bytes(s),
                               .len = f->len,
                               .sequence = f->sequence,
                               .is_damaged = is_damaged,
                               .is_behind_gap = s->is_behind_gap || s->seen->n_gap > 0 };

    if (f->kind == WAL_KIND_SYNCED) {
        if (!is_damaged)
            note_synced_entry(s, data, len);
        return 0;
    }
    return s->cb(s->arg, s->loop, f->kind, &place, data, len);
}

/* Gives the valid part of a frame; *is_whole: all of it is valid. */
static int frame_judge(struct parse *s, const struct wal_frame_fields *f, bool *is_whole)
{
    const uint8_t *data = s->bytes + f->at + header_bytes(s);
    bool any = s->h->any_crc, head_ok, body_ok;

    *is_whole = false;
    if (f->bytes > s->end - f->at)
        return 0; /* the file is shorter than it was */
    body_ok = f->header != NULL &&
              (any || get_le32(f->header + FRAME_SUM_AT) ==
                          codec_crc32c(0, data + f->head_len, f->len - f->head_len));
    head_ok =
        is_v1(s) || (f->header != NULL && (any || f->head_len == 0 ||
                                           get_le32(f->header + FRAME_HEAD_SUM_AT) ==
                                               codec_crc32c(0, data, f->head_len)));
    if (head_ok && body_ok) {
        *is_whole = true;
        s->result->n_entries += f->kind != WAL_KIND_SYNCED;
        return frame_give(s, f, data, f->len, false);
    }
    if (f->head_len > 0 && f->header != NULL && head_ok)
        return frame_give(s, f, data, f->head_len, true);
    if (f->head_len > 0 && f->tail != NULL)
        return frame_give(s, f, f->tail + WAL_FRAME_TAIL_BYTES, f->head_len, true);
    if (f->kind != WAL_KIND_SYNCED)
        note_gap(s->seen, f->sequence, f->sequence);
    return 0;
}

static struct wal_seen *seen_add(struct wal_scan_result *result, unsigned loop,
                                 uint64_t number)
{
    if (result->n_seen == WAL_SEGMENTS_MAX)
        return NULL;
    result->seen[result->n_seen] = (struct wal_seen){ .number = number, .loop = loop };
    return &result->seen[result->n_seen++];
}

static int parse_frames(struct parse *s)
{
    struct wal_seen *seen = s->seen;
    uint64_t at = SEGMENT_PAGE_BYTES;
    uint64_t n_bad = 0;
    struct wal_frame_fields f;

    while (frame_next(s, at, &f)) {
        bool is_whole;
        int rc;

        n_bad += f.sequence - 1 - seen->last;
        note_gap(seen, seen->last + 1, f.sequence - 1);
        seen->last = f.sequence;
        if (f.header != NULL && !is_v1(s))
            note_says(s, f.header);
        rc = frame_judge(s, &f, &is_whole);
        if (rc != 0)
            return rc;
        n_bad += !is_whole;
        /* the gap before it is damage, or lost with the power before a sync */
        if (is_whole) {
            s->result->n_damaged += n_bad;
            n_bad = 0;
        } else {
            note_bad(seen, f.sequence, f.sequence);
        }
        if (f.bytes > s->end - f.at || f.sequence == UINT32_MAX)
            break;
        at = f.at + f.bytes;
    }
    s->result->n_torn += n_bad > 0;
    return 0;
}

int segment_parse(const uint8_t *bytes, size_t len, const struct segment_header *h,
                  unsigned loop, wal_entry_cb *cb, void *arg,
                  struct wal_scan_result *result)
{
    struct parse s = { .bytes = bytes,
                       .end = h->bytes < len ? h->bytes : len,
                       .h = h,
                       .loop = loop,
                       .cb = cb,
                       .arg = arg,
                       .result = result };

    /* the copy of the header is no frame */
    if (s.end == h->bytes && s.end >= SEGMENT_PAGE_BYTES)
        s.end -= SEGMENT_PAGE_BYTES;
    for (unsigned i = 0; i < result->n_seen; i++)
        if (result->seen[i].loop == loop && stable_is_lost(&result->seen[i]))
            s.is_behind_gap = true;
    s.seen = seen_add(result, loop, h->number);
    return s.seen == NULL ? -EOVERFLOW : parse_frames(&s);
}

void segments_parsed(struct wal_scan_result *result)
{
    for (unsigned i = 0; i < result->n_seen; i++) {
        const struct wal_seen *seen = &result->seen[i];

        if (gap_was_synced(seen))
            result->n_lost += seen->gap_last <= seen->synced ? seen->n_gap : 1;
        if (seen->named > seen->last)
            result->n_lost += seen->named - seen->last;
    }
}

bool wal_was_synced(const struct wal_scan_result *result, unsigned loop,
                    const struct wal_place *place)
{
    for (unsigned i = 0; i < result->n_seen; i++) {
        const struct wal_seen *seen = &result->seen[i];

        if (seen->loop == loop && seen->number == place->segment)
            return place->sequence <= seen->synced;
    }
    return false;
}

/* Returns the last sequence that is surely no torn end: those frames were here before
 * the sync. */
static uint32_t synced_now(const struct wal_seen *seen)
{
    if (seen->bad_last <= seen->synced)
        return seen->synced > seen->last ? seen->synced : seen->last;
    return seen->bad_first - 1 > seen->synced ? seen->bad_first - 1 : seen->synced;
}

size_t wal_synced_put(const struct wal_scan_result *result, unsigned loop,
                      uint8_t p[WAL_SYNCED_MAX])
{
    size_t at = 0;

    for (unsigned i = 0; i < result->n_seen && at < WAL_SYNCED_MAX; i++) {
        const struct wal_seen *seen = &result->seen[i];

        if (seen->loop != loop)
            continue;
        put_le64(p + at, seen->number);
        put_le32(p + at + 8, synced_now(seen));
        at += SYNCED_BYTES;
    }
    return at;
}
