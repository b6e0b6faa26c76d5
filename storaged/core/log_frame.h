/*
 * log_frame.h - the bytes of a journal segment, format 1: its two headers, its frames, and which of
 * them can be believed. docs/FORMATS.md, "Journal", has the same in prose.
 *
 * Pure functions on memory; any thread. What comes from a disk is not believed (I8).
 */
#ifndef ROZO_STORAGED_LOG_FRAME_H
#define ROZO_STORAGED_LOG_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storaged/core/log.h"

enum {
    SEGMENT_HEADER_BYTES = 512,  /* one sector: it is old or new, never half */
    SEGMENT_PAGE_BYTES = 4096,   /* the first and the last page hold a header each */
    LOG_FRAME_HEADER_BYTES = 32, /* frames lie at multiples of 8 */
};

/* One use of a segment file. */
struct segment_header {
    uint64_t number; /* not 0; grows with each use of any segment of the log */
    uint64_t salt;   /* random for each use: goes into the crc of its frames' headers */
    uint64_t bytes;  /* of the file */
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

/** Bytes from one frame to the next. */
static inline uint64_t log_frame_bytes(size_t len)
{
    return (LOG_FRAME_HEADER_BYTES + (uint64_t)len + 7) / 8 * 8;
}

/** The header of the frame of an entry: sequence counts the frames of its segment from 1. */
void log_frame_put(uint8_t p[LOG_FRAME_HEADER_BYTES], const struct segment_header *h,
                   uint32_t sequence, uint8_t kind, const struct iovec *iov,
                   unsigned n_iov, size_t len);

/**
 * Give every whole frame of a segment to cb, in order, and add what was seen to *result. bytes: the segment's file,
 * from offset 0; len: what there is of it. loop: for cb. Returns 0 or what cb returned. A frame whose
 * header is damaged costs its entry only: the next one is looked for; one whose entry is damaged is stepped over, so
 * that nothing inside an entry is ever taken for a frame.
 */
int segment_parse(const uint8_t *bytes, size_t len, const struct segment_header *h,
                  unsigned loop, log_entry_cb *cb, void *arg,
                  struct log_scan_result *result);

#endif
