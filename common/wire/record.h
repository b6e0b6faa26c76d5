/*
 * record.h - the record: header, overhang and body of one projection of one block, on
 * disk and on the wire; file ids, versions, quorums. docs/FORMATS.md describes the bytes
 * in prose.
 *
 * Every disk of every user carries these bytes: change nothing without a new format
 * number.
 */
#ifndef ROZO_COMMON_WIRE_RECORD_H
#define ROZO_COMMON_WIRE_RECORD_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RECORD_HEADER_BYTES = 32,
    RECORD_FORMAT = 1,
    EXTENT_BLOCKS = 128, /* blocks of one extent: one head area, then one body area */
    RECORD_PAGE_BYTES = 4096, /* a head area is whole pages */
    FILE_ID_BYTES = 16,
    DIST_MAX = 32,         /* storages of one distribution */
    REMOVE_FILES_MAX = 64, /* files of one ST_REMOVE */
};

struct codec;
struct codec_layout;

/* Identity of a file for ever: inode numbers are never reused within an export. */
struct file_id {
    uint32_t export_id;
    uint32_t generation;
    uint64_t ino;
};

static inline bool file_id_equal(const struct file_id *a, const struct file_id *b)
{
    return a->ino == b->ino && a->generation == b->generation &&
           a->export_id == b->export_id;
}

/** Packs an id: little-endian, FILE_ID_BYTES at p. */
void file_id_put(uint8_t *p, const struct file_id *id);
void file_id_get(const uint8_t *p, struct file_id *id);
/**
 * Returns the crc32c of the 16 bytes: it goes into every record, so that a misdirected
 * one is seen.
 */
uint32_t file_id_hash(const struct file_id *id);

/* A version orders the writes of one block: the epoch exportd gave out, then the writer's
 * count. */
static inline uint64_t version_make(uint32_t epoch, uint32_t sequence)
{
    return (uint64_t)epoch << 32 | sequence;
}
static inline uint32_t version_epoch(uint64_t version)
{
    return (uint32_t)(version >> 32);
}

enum record_flags {
    RECORD_HOLE = 1,    /* truncated or punched at this version; no overhang, no body */
    RECORD_DAMAGED = 2, /* only in read answers: the data here cannot be believed */
    RECORD_TORN = 4, /* with DAMAGED: a body for this head is known never to have come */
    /* with DAMAGED, to nodes: a mark of this version is pending, and the damage below it
     * may be newer */
    RECORD_MARKED = 8,
};

/* Record header, unpacked. */
struct record_header {
    uint32_t crc;   /* crc32c over the rest of the header, the overhang and the body */
    uint8_t format; /* RECORD_FORMAT; an all-zero header is a hole of version 0 */
    uint8_t projection;  /* index, 0..n-1 */
    uint8_t flags;       /* enum record_flags */
    uint16_t user_bytes; /* bytes of the block, 1..block size; 0 for holes */
    uint32_t file_hash;  /* file_id_hash() */
    uint64_t version;
    uint64_t block; /* block index in the file */
};

/* Little-endian layout: 0 crc, 4 format, 5 projection, 6 flags, 7 zero, 8 user_bytes,
 * 10 zero (2 bytes), 12 file_hash, 16 version, 24 block. */
void record_header_put(uint8_t p[RECORD_HEADER_BYTES], const struct record_header *h);
void record_header_get(const uint8_t p[RECORD_HEADER_BYTES], struct record_header *h);
/** Returns true when all 32 bytes are zero: never written. */
bool record_header_is_zero(const uint8_t p[RECORD_HEADER_BYTES]);
/**
 * Returns the crc of a packed header (without its crc field), overhang and body. NULL
 * with length 0 is fine.
 */
uint32_t record_crc(const uint8_t p[RECORD_HEADER_BYTES], const void *overhang,
                    size_t overhang_bytes, const void *body, size_t body_bytes);
/** Computes the crc and puts it into the packed header. */
void record_seal(uint8_t p[RECORD_HEADER_BYTES], const void *overhang,
                 size_t overhang_bytes, const void *body, size_t body_bytes);

enum record_state {
    RECORD_IS_DATA,    /* right file, block and projection; crc not checked */
    RECORD_IS_HOLE,    /* all zero (version 0) or a hole mark */
    RECORD_IS_DAMAGED, /* wrong format, file, block or projection; impossible sizes */
};
/**
 * Inspects a packed header that should be of (file_hash, block, projection). Fills *h
 * (also for an all-zero header: version 0). Does not check the crc of data records (that
 * needs the body), but checks that of hole marks.
 */
enum record_state record_inspect(const uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                                 uint64_t block, unsigned projection, size_t block_bytes,
                                 struct record_header *h);

/**
 * Returns the bytes of an extent of one projection, EXTENT_BLOCKS full records: whole
 * pages of heads (header and overhang), then their bodies.
 */
uint64_t record_extent_bytes(const struct codec *codec, unsigned projection);

/**
 * Returns max(k, c - k + 1): the fewest of c storages that share one with any k of them,
 * and not fewer than k.
 */
static inline unsigned quorum_min(unsigned k, unsigned c)
{
    return k > c - k + 1 ? k : c - k + 1;
}
/**
 * Returns the acknowledgements without which a write never succeeds: as many as a file
 * with all candidates of its layout needs (3, 5, 9). A file with fewer candidates needs
 * as many, so that the number does not depend on unreachable storages.
 */
unsigned quorum_write(const struct codec_layout *layout, unsigned c);
/**
 * Returns the fewest storages that an acknowledged write of a file with c candidates may
 * be on. Readers, healing and salvage rely on no more, so that they never pass over one.
 * full: no write of the file was acknowledged with less than quorum_write()
 * (FileRef.full_quorum). Else quorum_min(), as earlier builds acknowledged; that is less
 * if the file has fewer candidates than its layout.
 */
unsigned quorum_read(const struct codec_layout *layout, unsigned c, bool full);

#endif
