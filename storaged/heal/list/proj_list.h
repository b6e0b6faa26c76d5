/*
 * proj_list.h - lists the projection files of this storage, from directory names, header
 * and mark pages. For ST_LIST, the scrub and the rebuild.
 *
 * Files come in one order on every storage: by the number of their directory, then by
 * file id (export, generation, inode number). Core: one thread, that of the env and the
 * disk.
 */
#ifndef ROZO_STORAGED_HEAL_LIST_PROJ_LIST_H
#define ROZO_STORAGED_HEAL_LIST_PROJ_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/env/disk.h"
#include "common/env/env.h"
#include "storcli/blocks.h"

enum {
    LIST_FILES_MAX = 1024, /* in one answer */
    /* Files whose pages one request reads; may make the answer shorter. */
    LIST_LOOKED_AT_MAX = 256,
};

/* One file, as its pages on this storage describe it. */
struct proj_list_file {
    struct storcli_target target; /* no capability; only the id if !known */
    bool known;                   /* a header page is valid */
    uint32_t projections;         /* bitmap of those on this storage, damaged ones too */
    uint32_t damaged, partial;    /* bitmaps */
    /* Bitmap, disjoint from projections: a header page was never completely written. */
    uint32_t unfinished;
    uint64_t size, allocated; /* sum over projections, bytes */
    uint64_t blocks; /* number of blocks up to the last that may have a record here */
};

/* Selects the files to list. Zero-initialise. */
struct proj_list_request {
    bool has_after;
    struct file_id after;  /* the list begins after this file */
    bool only;             /* lists just `after` itself: one file or none */
    unsigned max_files;    /* 1..LIST_FILES_MAX, in effect LIST_LOOKED_AT_MAX at most */
    uint32_t with_storage; /* not 0: only files with this storage in their distribution */
    /* Lists by names alone, without pages; includes names of quarantined files. */
    bool ids_only;
    /* with_storage: also files whose pages here do not tell their distribution. */
    bool damaged_too;
};

/* The answer; freed when the callback returns. */
struct proj_list_result {
    int rc; /* 0; or -EIO, -ENOMEM: nothing was listed */
    const struct proj_list_file *files;
    unsigned n_files;
    bool end;             /* no more files follow */
    struct file_id after; /* if !end: the next list begins after this file */
    bool quarantined;     /* for `only`: a quarantined copy of the file exists */
};
typedef void proj_list_done_cb(void *arg, const struct proj_list_result *result);

struct list_op;
/**
 * Starts a list. Returns 0 or -ENOMEM. Calls done(arg) later, once, unless it is
 * cancelled.
 */
int proj_list_start(struct env *env, struct disk *disk,
                    const struct proj_list_request *request, proj_list_done_cb *done,
                    void *arg, struct list_op **out);
/**
 * Cancels a list: done is not called. It is freed once the disk has answered the request
 * under way.
 */
void proj_list_cancel(struct list_op *op);

/** Compares file ids in the order of lists; returns <0, 0 or >0. */
int list_order(const struct file_id *a, const struct file_id *b);

/* ---- conversion between a target and a FileRef ---- */

/**
 * Converts a FileRef. Returns 0, or -EBADMSG if the code is unknown or the distribution
 * does not fit it.
 */
int heal_target_get(const Rozo__FileRef *ref, struct storcli_target *out);
/** Returns whether a file can have these blocks. n_blocks 0: no end. */
bool heal_range_is_good(uint64_t first, uint64_t n_blocks);
/* A FileRef with all that it points to. Needs no free; valid as long as the target is. */
struct heal_ref {
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};
/** Converts a target, without its capability. */
void heal_ref_put(const struct storcli_target *target, struct heal_ref *out);
/** Returns whether code and distribution are the same. The file id is not compared. */
bool heal_same_target(const struct storcli_target *a, const struct storcli_target *b);
/** Returns the place of a storage in the distribution; DIST_MAX: none. */
unsigned heal_place(const struct storcli_target *target, uint32_t storage);

#endif
