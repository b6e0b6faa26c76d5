/*
 * wal_frame.h - the bytes of a WAL segment, formats 1 and 2: headers, frames, and their
 * checks.
 *
 * docs/FORMATS.md, "Journal", describes the same bytes in prose. Pure functions on
 * memory; any thread. Bytes from a disk are checked (I8).
 */
#ifndef ROZO_COMMON_WAL_WAL_FRAME_H
#define ROZO_COMMON_WAL_WAL_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct disk_file;

enum {
    WAL_FORMAT = 2,             /* written; format 1 can be read */
    WAL_SEGMENT_MAX = 64 << 20, /* bytes; a scan has one segment in memory at a time */
    WAL_ENTRY_MAX = 1280 << 10, /* bytes of one entry without its frame */
    WAL_SYNCED_MAX = 64 * 12,
    WAL_KIND_SYNCED = 255,       /* the log's own entries, not given by a scan */
    WAL_HEAD_MAX = 216,          /* bytes of an entry that its frame holds twice */
    WAL_SEGMENTS_MAX = 64 * 16,  /* bound for all logs of a disk */
    SEGMENT_HEADER_BYTES = 512,  /* one sector, so a crash leaves it old or new */
    SEGMENT_PAGE_BYTES = 4096,   /* the first and the last page hold a header each */
    WAL_FRAME_HEADER_BYTES = 56, /* frames lie at multiples of 8 */
    WAL_FRAME_TAIL_BYTES = 32,   /* behind the entry; then a copy of its head */
};

/* The place of an entry. Segment numbers only grow: none is used twice in a log. */
struct wal_place {
    uint64_t segment; /* 0: nowhere */
    uint64_t offset;  /* bytes, of the entry (without frame header) in the file */
    uint32_t len;     /* bytes of the entry */
    /* borrowed: for reads and disk_fd() while the entry is wanted; NULL from a scan */
    struct disk_file *file;
    uint8_t slot;      /* the log's, while there is a file */
    uint32_t sequence; /* number of its frame in the segment */
    bool is_damaged;   /* from a scan: only the head is valid */
    /* from a scan: a frame was lost, with its head, that was appended before this one, in
     * the same life of the log or on stable storage */
    bool is_behind_gap;
};

/**
 * Takes an entry found by a scan; one loop's entries come in the order of appending.
 * Returns 0 to go on, -errno to end the scan with it. data: `len` bytes of the entry,
 * unaligned, valid inside the call. If place->is_damaged, only its head: the entry was
 * damaged, or the end of the log was torn (wal_was_synced() says which when the scan is
 * done).
 */
typedef int wal_entry_cb(void *arg, unsigned loop, uint8_t kind,
                         const struct wal_place *place, const uint8_t *data, size_t len);

/* The result of a scan about one segment. */
struct wal_seen {
    uint64_t number;
    unsigned loop;
    uint32_t last; /* sequence of the last valid frame or head */
    /* frames up to this one were on stable storage, as later ones say; UINT32_MAX: all */
    uint32_t synced;
    uint32_t named; /* the last sequence in it that a later frame names as synced */
    uint64_t since; /* the segment that its life of the log began with; 0: not known */
    uint32_t bad_first, bad_last; /* sequences of damaged and missing frames; 0: none */
    uint32_t gap_first, gap_last; /* sequences of frames with not even a valid head */
    uint32_t n_gap;
};

/* The result of a scan beside the entries. */
struct wal_scan_result {
    uint64_t n_entries;
    /* frames and segments of unknown contents that were on stable storage */
    uint64_t n_lost;
    unsigned n_seen;
    struct wal_seen seen[WAL_SEGMENTS_MAX];
    /* segments that end in an incomplete frame, which is usual after a crash */
    uint64_t n_torn;
    /* lost bytes: invalid frames with valid ones behind them in their segment, and
     * segments with two damaged headers */
    uint64_t n_damaged;
    /* pages that cannot be read: frames in them are not counted above if they were the
     * newest ones */
    uint64_t n_unreadable;
};

/* One use of a segment file. */
struct segment_header {
    uint64_t number; /* not 0; grows with each use of any segment of the log */
    uint64_t salt;   /* random for each use; part of the crc of the frames' headers */
    uint64_t bytes;  /* size of the file */
    uint32_t format; /* 0: WAL_FORMAT */
    bool any_crc;    /* not stored: accept entries with a wrong crc */
};

void segment_header_put(uint8_t p[SEGMENT_HEADER_BYTES], const struct segment_header *h);
/**
 * Unpacks a segment header from the first page, or from the copy in the last page if the
 * first is damaged. back NULL: the copy could not be read.
 * @return 0; -ENODATA if erased or never used; -ROZO_EUNKNOWN_FORMAT for a format that
 * this build does not know; -ROZO_EDAMAGED (corrupt). *h is untouched on failure.
 */
int segment_header_get(const uint8_t front[SEGMENT_HEADER_BYTES],
                       const uint8_t back[SEGMENT_HEADER_BYTES],
                       struct segment_header *h);

static inline uint64_t wal_padded(uint64_t len)
{
    return (len + 7) / 8 * 8;
}

/** Returns the bytes from the start of one frame to the next. */
static inline uint64_t wal_frame_bytes(size_t len, size_t head_len)
{
    return WAL_FRAME_HEADER_BYTES + wal_padded(len) + WAL_FRAME_TAIL_BYTES +
           wal_padded(head_len);
}

/* The fields of a frame beside its entry. */
struct frame_says {
    uint32_t sequence; /* counts the frames of its segment from 1 */
    uint8_t kind;
    /*
     * How far the log is on stable storage: all frames up to synced_sequence of
     * synced_segment, since the start of the daemon that began with segment `since`.
     */
    uint64_t since, synced_segment;
    uint32_t synced_sequence;
};

/**
 * Packs the frame around an entry: its header, and the bytes that follow the entry (tail:
 * room for 7 + WAL_FRAME_TAIL_BYTES + WAL_HEAD_MAX; padding first). The head lies in
 * iov[0]. Returns the bytes of the tail.
 */
size_t wal_frame_put(uint8_t p[WAL_FRAME_HEADER_BYTES], uint8_t *tail,
                     const struct segment_header *h, const struct frame_says *says,
                     const struct iovec *iov, unsigned n_iov, size_t len,
                     size_t head_len);

/**
 * Gives every frame of a segment to cb, in order, and adds to *result. bytes: the
 * segment's file from offset 0, len bytes of it; loop: for cb. Returns 0 or the result of
 * cb. Of a damaged frame the head is given if one of its copies is valid; the parser
 * steps over the rest of it, so bytes inside an entry are never taken for a frame. The
 * segments of a loop must come in the order of their numbers.
 */
int segment_parse(const uint8_t *bytes, size_t len, const struct segment_header *h,
                  unsigned loop, wal_entry_cb *cb, void *arg,
                  struct wal_scan_result *result);

/**
 * True if a damaged frame was on stable storage. False if it never was or that is
 * unknown: a torn end.
 */
bool wal_was_synced(const struct wal_scan_result *result, unsigned loop,
                    const struct wal_place *place);

/** Counts the losses after all segments were parsed. */
void segments_parsed(struct wal_scan_result *result);

/**
 * Packs an entry which says that everything found in the segments of a loop is on stable
 * storage now. Append it with the kind WAL_KIND_SYNCED and keep it as long as these
 * segments. Returns its bytes in p.
 */
size_t wal_synced_put(const struct wal_scan_result *result, unsigned loop,
                      uint8_t p[WAL_SYNCED_MAX]);

#endif
