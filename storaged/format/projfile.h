/*
 * projfile.h - the projection file: header page, mark pages, where records lie.
 *
 * docs/FORMATS.md, "Projection file", describes the same bytes in prose. They are on
 * users' disks: any change needs a new format number. Pure functions on memory; any
 * thread. Bytes from a disk are checked (I8).
 */
#ifndef ROZO_STORAGED_FORMAT_PROJFILE_H
#define ROZO_STORAGED_FORMAT_PROJFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/wire/record.h"

enum {
    PROJFILE_FORMAT = 1,
    PROJFILE_FORMAT_REDIST = 2, /* headers whose dist_generation is not 0 */
    PROJFILE_FORMAT_QUORUM = 3, /* headers with full_quorum */
    PROJFILE_PAGE_BYTES = 4096,
    PROJFILE_MARKS_AT = 4096, /* two pages, written in turn */
    /* a second header page, used after a change of the distribution */
    PROJFILE_COPY_AT = 12288,
    PROJFILE_EXTENTS_AT = 16384,
    /* header, both mark pages, second header */
    PROJFILE_FRONT_BYTES = PROJFILE_EXTENTS_AT,
    PROJFILE_PATH_MAX = 64,
    MARKS_MAX = 169,         /* ranges that fit in a mark page */
    PROJFILE_NO_VERSION = 1, /* version below those of all records and marks */
};
/* Bound of all block indices, so that no offset in a projection file overflows. */
#define PROJFILE_BLOCKS_MAX ((uint64_t)1 << 47)

/* Blocks [first, end) with a version, or with a generation. */
struct mark_range {
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;    /* not 0 */
};

/* A file and its distribution, as its FileRef says. */
struct storage_file {
    struct file_id id;
    uint8_t codec, layout, n_storages;
    uint32_t block_bytes;
    bool full_quorum;         /* false in entries of the journal, which do not store it */
    uint32_t dist_generation; /* 0 in entries of the journal, which do not store it */
    uint32_t storages[DIST_MAX];
};

/* Page 0, which is enough to read the file back without exportd. */
struct projfile_header {
    struct file_id id;
    uint8_t codec; /* enum codec_kind */
    uint8_t layout;
    uint8_t projection;
    uint8_t n_storages;
    uint32_t block_bytes;
    uint32_t stripe;
    uint32_t epoch; /* epoch of the write that made the file, see marks_page.epoch */
    /* made in place of a lost file: blocks with no record are unknown, not holes */
    bool partial;
    bool unsynced; /* partial, and no sync of the lost file had ended */
    /* partial; made for a change of the distribution that may never take effect */
    bool prepared;
    bool full_quorum; /* as in FileRef */
    /* blocks of that write, version: the generation; 0 to 0: none */
    struct mark_range written;
    uint32_t dist_generation; /* 0, plus one for each change of the distribution */
    uint32_t storages[DIST_MAX];
};

void projfile_header_put(uint8_t page[PROJFILE_PAGE_BYTES],
                         const struct projfile_header *h);
/**
 * Unpacks a header page.
 * @return 0; -ENODATA if the page is all zero (an unfinished creation);
 * -ROZO_EUNKNOWN_FORMAT for a format this build does not know; -ROZO_EDAMAGED if it is
 * corrupt. *h is untouched on failure.
 */
int projfile_header_get(const uint8_t page[PROJFILE_PAGE_BYTES],
                        struct projfile_header *h);
/**
 * Unpacks the header of a file: the valid one of the two header pages, or the one with
 * the higher dist_generation if both are valid. Fails like projfile_header_get() of the
 * first page.
 */
int projfile_front_get(const uint8_t front[PROJFILE_FRONT_BYTES],
                       struct projfile_header *h);
/** True if neither header page is valid: each is all zero or has a wrong crc. */
bool projfile_front_is_broken(const uint8_t front[PROJFILE_FRONT_BYTES]);
/** True if both header pages are all zero. */
bool projfile_front_is_empty(const uint8_t front[PROJFILE_FRONT_BYTES]);

/*
 * Sorted, disjoint, non-empty ranges, with two uses. *Marks*: the blocks are holes of
 * `version` unless a newer record lies there. *Written* blocks: each has a head that is
 * not zero, noted in generation `version`, so a zero head there means that the file lost
 * it.
 */
struct marks {
    unsigned n;
    struct mark_range ranges[MARKS_MAX];
};

/* Pages 1 and 2; the valid one with the higher sequence counts. */
struct marks_page {
    uint64_t sequence; /* not 0 */
    /* upper bound of the epochs in this file, so a mark of a later epoch need not look
     * for newer records */
    uint32_t epoch;
    uint32_t file_hash;
    uint8_t projection;
    bool partial, unsynced; /* as in the header */
};

/** Packs a mark page. The two lists together have at most MARKS_MAX ranges. */
void projfile_marks_put(uint8_t page[PROJFILE_PAGE_BYTES], const struct marks_page *h,
                        const struct marks *marks, const struct marks *written);
/**
 * Unpacks a mark page.
 * @return 0; -ENODATA if all zero; -ROZO_EUNKNOWN_FORMAT (unknown format);
 * -ROZO_EDAMAGED (corrupt). The outputs are untouched on failure.
 */
int projfile_marks_get(const uint8_t page[PROJFILE_PAGE_BYTES], struct marks_page *h,
                       struct marks *marks, struct marks *written);

/**
 * True if a corrupt mark page looks newer than `sequence`. The answer may be wrong,
 * because any byte of the page may be.
 */
bool projfile_marks_seem_newer(const uint8_t page[PROJFILE_PAGE_BYTES],
                               uint64_t sequence);

/** Returns the version of the mark over block, or 0 if there is none. */
uint64_t marks_find(const struct marks *m, uint64_t block);
/** True if every block of [first, end) lies in a range. */
bool marks_cover(const struct marks *m, uint64_t first, uint64_t end);
/**
 * Returns the newest version of the marks that touch [first, end), or 0 if there are
 * none.
 */
uint64_t marks_newest(const struct marks *m, uint64_t first, uint64_t end);
/** Returns the first marked block >= block, or UINT64_MAX. */
uint64_t marks_next(const struct marks *m, uint64_t block);
/**
 * Lays a mark over [first, end). Replaces, cuts and splits older marks there; newer ones
 * stay. The caller has checked marks_fits().
 */
void marks_apply(struct marks *m, uint64_t first, uint64_t end, uint64_t version);
/** True if *m would still fit into its page after that marks_apply(). */
bool marks_fits(const struct marks *m, uint64_t first, uint64_t end, uint64_t version);
/**
 * Takes [first, end) out. Returns false and changes nothing if the result would not fit
 * into a page.
 */
bool marks_cut(struct marks *m, uint64_t first, uint64_t end);
/** Returns the index of the range with the fewest blocks. m->n must not be 0. */
unsigned marks_smallest(const struct marks *m);
void marks_remove(struct marks *m, unsigned index);

/* The places of the records of one projection. */
struct geometry {
    const struct codec *codec;
    uint64_t head_bytes;   /* bytes of record header and overhang */
    uint64_t heads_bytes;  /* bytes of an extent's head area: whole pages */
    uint64_t stride;       /* bytes of a full body; a power of two */
    uint64_t extent_bytes; /* bytes of head area and body area */
    /* blocks that get their heads together, at the first write to any of them; their
     * heads fit into a page; divides EXTENT_BLOCKS */
    unsigned unit_blocks;
};

void geometry_init(struct geometry *g, const struct codec *codec, unsigned projection);

static inline uint64_t geometry_extent_at(const struct geometry *g, uint64_t block)
{
    return PROJFILE_EXTENTS_AT + block / EXTENT_BLOCKS * g->extent_bytes;
}
static inline uint64_t geometry_head_at(const struct geometry *g, uint64_t block)
{
    return geometry_extent_at(g, block) + block % EXTENT_BLOCKS * g->head_bytes;
}
static inline uint64_t geometry_body_at(const struct geometry *g, uint64_t block)
{
    return geometry_extent_at(g, block) + g->heads_bytes +
           block % EXTENT_BLOCKS * g->stride;
}
/**
 * Returns how many blocks a file of size bytes may hold: those of every extent it reaches
 * into.
 */
uint64_t geometry_blocks(const struct geometry *g, uint64_t size);
/**
 * Returns the first block of the extent that holds byte offset; 0 for the pages before
 * the extents.
 */
uint64_t geometry_extent_of(const struct geometry *g, uint64_t offset);

/**
 * Writes "objects/xx/yy/<file id in hex>." into path, to be followed by the projection's
 * number. xx/yy come from export and inode number: 256 neighbouring inodes share a
 * directory.
 */
void projfile_path_prefix(char path[PROJFILE_PATH_MAX], const struct file_id *id);
/** Writes the whole path of a projection file. */
void projfile_path(char path[PROJFILE_PATH_MAX], const struct file_id *id,
                   unsigned projection);
/**
 * Writes the path of the quarantined (damaged) projection file, whichever projection it
 * was.
 */
void projfile_path_quarantined(char path[PROJFILE_PATH_MAX], const struct file_id *id);

/** Packs a sealed RECORD_HOLE header. */
void hole_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                   unsigned projection, uint64_t block, uint64_t version);
/**
 * Packs the head of a block whose record is lost and may have been newer than `version`.
 */
void damaged_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                      unsigned projection, uint64_t block, uint64_t version, bool torn);

#endif
