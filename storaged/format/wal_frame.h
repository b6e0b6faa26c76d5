/*
 * wal_frame.h - the bytes of a journal segment, formats 1 and 2: its two headers, its frames, and which of
 * them can be believed. docs/FORMATS.md, "Journal", has the same in prose.
 *
 * Pure functions on memory; any thread. What comes from a disk is not believed (I8).
 */
#ifndef ROZO_STORAGED_FORMAT_WAL_FRAME_H
#define ROZO_STORAGED_FORMAT_WAL_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct disk_file;

enum {
    WAL_FORMAT = 2,             /* written; 1 is read, too */
    WAL_SEGMENT_MAX = 64 << 20, /* bytes; a scan has one in memory at a time */
    WAL_ENTRY_MAX = 1280 << 10, /* bytes of one entry without its frame */
    WAL_SYNCED_MAX = 64 * 12,
    WAL_KIND_SYNCED = 255,       /* entries of the log's own, not given by a scan */
    WAL_HEAD_MAX = 216,          /* bytes of an entry that its frame holds twice */
    WAL_SEGMENTS_MAX = 64 * 16,  /* of all logs on a disk */
    SEGMENT_HEADER_BYTES = 512,  /* one sector: it is old or new, never half */
    SEGMENT_PAGE_BYTES = 4096,   /* the first and the last page hold a header each */
    WAL_FRAME_HEADER_BYTES = 56, /* frames lie at multiples of 8 */
    WAL_FRAME_TAIL_BYTES = 32,   /* behind the entry; then its head once more */
};

/* Where an entry lies. Segment numbers grow for ever; one is never used twice in a log. */
struct wal_place {
    uint64_t segment; /* 0: nowhere */
    uint64_t
        offset; /* of the entry itself, behind its frame header, in its segment's file */
    uint32_t len;           /* bytes of the entry */
    struct disk_file *file; /* borrowed: good for reads and disk_fd() while the entry is
                               wanted; NULL from a scan */
    uint8_t slot;           /* the log's, as long as there is a file */
    uint32_t sequence;      /* of its frame in its segment */
    bool is_damaged;        /* from a scan: only the head can be believed */
};

/**
 * An entry found by a scan, in the order it was appended (within one loop's log). data: the entry, `len` bytes, not
 * aligned, valid inside the call. Where place->is_damaged, data is its head and len that of the head: the entry was damaged, or the
 * end of the log was torn (wal_was_synced() tells, when the scan is done). Return 0 to go on, -errno to give up with it.
 */
typedef int wal_entry_cb(void *arg, unsigned loop, uint8_t kind,
                         const struct wal_place *place, const uint8_t *data, size_t len);

/* What a scan learned of one segment. */
struct wal_seen {
    uint64_t number;
    unsigned loop;
    uint32_t last; /* sequence of the last frame that can be believed, or its head */
    uint32_t
        synced; /* frames up to this one were on stable storage, later ones say; UINT32_MAX: all */
    uint32_t bad_first, bad_last; /* sequences of damaged and missing frames; 0: none */
    uint32_t gap_first, gap_last; /* of those of which not even the head is left */
    uint32_t n_gap;
};

/* What a scan saw beside entries. */
struct wal_scan_result {
    uint64_t n_entries;
    uint64_t
        n_lost; /* frames and segments that were on stable storage, and nobody can tell what was in them */
    unsigned n_seen;
    struct wal_seen seen[WAL_SEGMENTS_MAX];
    uint64_t
        n_torn; /* segments that end in a frame that is not whole: usual after a crash */
    uint64_t
        n_damaged; /* frames that cannot be believed though later ones of their segment can, and segments
                           whose headers are both damaged: bytes were lost */
};

/* One use of a segment file. */
struct segment_header {
    uint64_t number; /* not 0; grows with each use of any segment of the log */
    uint64_t salt;   /* random for each use: goes into the crc of its frames' headers */
    uint64_t bytes;  /* of the file */
    uint32_t format; /* 0: WAL_FORMAT */
    bool any_crc;    /* not stored: entries are believed whatever their crc */
};

void segment_header_put(uint8_t p[SEGMENT_HEADER_BYTES], const struct segment_header *h);
/**
 * From the header in the first page and the copy in the last one, which counts when the first is
 * damaged. back NULL: could not be read. @return 0; -ENODATA when erased or never used;
 * -EPROTONOSUPPORT for a format that this build does not know; -EUCLEAN. *h is untouched on failure.
 */
int segment_header_get(const uint8_t front[SEGMENT_HEADER_BYTES],
                       const uint8_t back[SEGMENT_HEADER_BYTES],
                       struct segment_header *h);

static inline uint64_t wal_padded(uint64_t len)
{
    return (len + 7) / 8 * 8;
}

/** Bytes from one frame to the next. */
static inline uint64_t wal_frame_bytes(size_t len, size_t head_len)
{
    return WAL_FRAME_HEADER_BYTES + wal_padded(len) + WAL_FRAME_TAIL_BYTES +
           wal_padded(head_len);
}

/* What the frame says beside its entry. */
struct frame_says {
    uint32_t sequence; /* counts the frames of its segment from 1 */
    uint8_t kind;
    /* Of the log's own life, that began with segment `since`: all frames before this one of this segment are on
     * stable storage, and this one. */
    uint64_t since, synced_segment;
    uint32_t synced_sequence;
};

/**
 * The header of the frame of an entry, and what goes behind it (tail: room for 7 + WAL_FRAME_TAIL_BYTES + WAL_HEAD_MAX; padding
 * first). The head lies in iov[0]. Returns the bytes of the tail.
 */
size_t wal_frame_put(uint8_t p[WAL_FRAME_HEADER_BYTES], uint8_t *tail,
                     const struct segment_header *h, const struct frame_says *says,
                     const struct iovec *iov, unsigned n_iov, size_t len,
                     size_t head_len);

/**
 * Give every frame of a segment to cb, in order, and add what was seen to *result. bytes: the segment's file,
 * from offset 0; len: what there is of it. loop: for cb. Returns 0 or what cb returned. Of a damaged frame the head
 * is given if one of its copies is left; it is stepped over, so that nothing inside an entry is ever taken for a frame. A loop's
 * segments come in the order of their numbers.
 */
int segment_parse(const uint8_t *bytes, size_t len, const struct segment_header *h,
                  unsigned loop, wal_entry_cb *cb, void *arg,
                  struct wal_scan_result *result);

/** Was what a scan found damaged on stable storage? Else it never was, or nobody knows: a torn end. */
bool wal_was_synced(const struct wal_scan_result *result, unsigned loop,
                    const struct wal_place *place);

/** All segments are parsed: count what was lost. */
void segments_parsed(struct wal_scan_result *result);

/** Say of the segments of before: all that was found in them is on stable storage now. The entry, to be appended with the kind
 * WAL_KIND_SYNCED and kept for as long as these segments are; bytes of it in p. */
size_t wal_synced_put(const struct wal_scan_result *result, unsigned loop,
                      uint8_t p[WAL_SYNCED_MAX]);

#endif
