/*
 * projfile.h - the projection file: header page, mark pages, where records lie.
 * docs/FORMATS.md, "Projection files", has the same in prose.
 *
 * Every disk of every user carries these bytes: change nothing without a new format number.
 * Pure functions on memory; any thread. What comes from a disk is not believed (I8).
 */
#ifndef ROZO_STORAGED_FORMAT_PROJFILE_H
#define ROZO_STORAGED_FORMAT_PROJFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/record.h"

enum {
    PROJFILE_FORMAT = 1,
    PROJFILE_FORMAT_REDIST = 2, /* headers with a dist_generation that is not 0 */
    PROJFILE_PAGE_BYTES = 4096,
    PROJFILE_MARKS_AT = 4096, /* two pages, used in turn */
    PROJFILE_COPY_AT = 12288, /* the header again, since the distribution changed */
    PROJFILE_EXTENTS_AT = 16384,
    PROJFILE_FRONT_BYTES = PROJFILE_EXTENTS_AT, /* header, both mark pages, the copy */
    PROJFILE_PATH_MAX = 64,
    MARKS_MAX = 169,         /* ranges that fit in a mark page */
    PROJFILE_NO_VERSION = 1, /* below all of records and marks, but not 0 */
};
/* Block indices stay below this, so that no offset in a projection file overflows. */
#define PROJFILE_BLOCKS_MAX ((uint64_t)1 << 47)

/* Blocks [first, end), and a version or generation. */
struct mark_range {
    uint64_t first, end; /* end UINT64_MAX: to the end of everything */
    uint64_t version;    /* not 0 */
};

/* A file, as its FileRef says. */
struct storage_file {
    struct file_id id;
    uint8_t codec, layout, n_storages;
    uint32_t block_bytes;
    uint32_t dist_generation; /* the journal's entries do not have it: 0 then */
    uint32_t storages[DIST_MAX];
};

/* Page 0: enough to read the file back without the metadata daemon. */
struct projfile_header {
    struct file_id id;
    uint8_t codec; /* enum codec_kind */
    uint8_t layout;
    uint8_t projection;
    uint8_t n_storages;
    uint32_t block_bytes;
    uint32_t stripe;
    uint32_t epoch; /* of the write that made the file: see marks_page.epoch */
    bool
        partial; /* made in place of a lost one: what was never written here is unknown */
    bool unsynced; /* and no sync of that one ever ended; only where it is partial */
    struct mark_range
        written; /* by that write, noted in this generation; 0 to 0: nothing */
    uint32_t dist_generation; /* of the distribution: 0, and one more for each change */
    uint32_t storages[DIST_MAX];
};

void projfile_header_put(uint8_t page[PROJFILE_PAGE_BYTES],
                         const struct projfile_header *h);
/**
 * @return 0; -ENODATA when the page is all zero (a creation that did not get to the end);
 * -EPROTONOSUPPORT for a format this build does not know; -EUCLEAN for anything else. *h is
 * untouched on failure.
 */
int projfile_header_get(const uint8_t page[PROJFILE_PAGE_BYTES],
                        struct projfile_header *h);
/**
 * The header of a file from its front: of the page and its copy the valid one, of two the one
 * with the higher dist_generation. Fails as projfile_header_get() of the page.
 */
int projfile_front_get(const uint8_t front[PROJFILE_FRONT_BYTES],
                       struct projfile_header *h);
/** True when no build wrote page and copy like that: each is zero, or its crc is wrong. */
bool projfile_front_is_broken(const uint8_t front[PROJFILE_FRONT_BYTES]);
/** True when page and copy are all zero. */
bool projfile_front_is_empty(const uint8_t front[PROJFILE_FRONT_BYTES]);

/*
 * Ranges, sorted, disjoint, none empty. Two uses: *marks* (the blocks are holes of `version` unless
 * a newer record lies there), and the *written* blocks (each has a head that is not zero, noted in
 * generation `version`: a zero head there means that the file lost it).
 */
struct marks {
    unsigned n;
    struct mark_range ranges[MARKS_MAX];
};

/* Pages 1 and 2: the valid one with the higher sequence counts. */
struct marks_page {
    uint64_t sequence; /* not 0 */
    uint32_t
        epoch; /* nothing in this file is of a later epoch; so a mark of a later one need
                          not look for newer records */
    uint32_t file_hash;
    uint8_t projection;
    bool partial, unsynced; /* as in the header */
};

/** The two together have at most MARKS_MAX ranges. */
void projfile_marks_put(uint8_t page[PROJFILE_PAGE_BYTES], const struct marks_page *h,
                        const struct marks *marks, const struct marks *written);
/** @return 0; -ENODATA when all zero; -EPROTONOSUPPORT; -EUCLEAN. Outputs untouched on failure. */
int projfile_marks_get(const uint8_t page[PROJFILE_PAGE_BYTES], struct marks_page *h,
                       struct marks *marks, struct marks *written);

/**
 * Of a page that is not to be believed: does it look newer than the one of this sequence? That may be wrong, as any of its bytes.
 */
bool projfile_marks_seem_newer(const uint8_t page[PROJFILE_PAGE_BYTES],
                               uint64_t sequence);

/** The version of the mark over block, 0: none. */
uint64_t marks_find(const struct marks *m, uint64_t block);
/** Is every block of [first, end) in a range? */
bool marks_cover(const struct marks *m, uint64_t first, uint64_t end);
/** The newest mark that touches [first, end); 0: none. */
uint64_t marks_newest(const struct marks *m, uint64_t first, uint64_t end);
/** The first marked block >= block; UINT64_MAX: none. */
uint64_t marks_next(const struct marks *m, uint64_t block);
/**
 * Lay a mark over [first, end); it replaces, cuts and splits what is older there, where a newer
 * one lies it changes nothing. The caller has seen marks_fits().
 */
void marks_apply(struct marks *m, uint64_t first, uint64_t end, uint64_t version);
/** Would *m still fit its page after that? */
bool marks_fits(const struct marks *m, uint64_t first, uint64_t end, uint64_t version);
/** Take [first, end) out; false, and nothing changes, when it would not fit then. */
bool marks_cut(struct marks *m, uint64_t first, uint64_t end);
/** Index of the range with the fewest blocks. m->n not 0. */
unsigned marks_smallest(const struct marks *m);
void marks_remove(struct marks *m, unsigned index);

/* Where the records of one projection lie. */
struct geometry {
    const struct codec *codec;
    uint64_t head_bytes;   /* record header + overhang */
    uint64_t heads_bytes;  /* head area of an extent: whole pages */
    uint64_t stride;       /* a full body; power of two */
    uint64_t extent_bytes; /* head area + body area */
    unsigned
        unit_blocks; /* their heads are at most a page: the first write to one of them
                              gives all a head; divides EXTENT_BLOCKS */
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
/** Blocks that a file of size bytes may hold: those of every extent it reaches into. */
uint64_t geometry_blocks(const struct geometry *g, uint64_t size);
/** The first block of the extent that holds byte offset; 0 for the pages before the extents. */
uint64_t geometry_extent_of(const struct geometry *g, uint64_t offset);

/**
 * "objects/xx/yy/<file id in hex>." into path, to be followed by the projection's number. The
 * two levels come from export and inode number so that 256 neighbouring inodes share a directory.
 */
void projfile_path_prefix(char path[PROJFILE_PATH_MAX], const struct file_id *id);
/** The whole path. */
void projfile_path(char path[PROJFILE_PATH_MAX], const struct file_id *id,
                   unsigned projection);
/** Of what was put aside as damaged, whichever projection it was. */
void projfile_path_aside(char path[PROJFILE_PATH_MAX], const struct file_id *id);

/** A packed RECORD_HOLE header, sealed. */
void hole_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                   unsigned projection, uint64_t block, uint64_t version);
/** The head of a block of which nothing can be believed any more, not even that nothing newer than `version` was here. */
void damaged_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                      unsigned projection, uint64_t block, uint64_t version, bool torn);

#endif
