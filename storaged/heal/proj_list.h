/*
 * proj_list.h - which projection files are here: names from the directories, header and mark pages read.
 * For ST_LIST, the scrub and the rebuild.
 *
 * Files come in one order on every storage: by the number of their directory, then by file id
 * (export, generation, inode number). Core: one thread, that of the env and the disk.
 */
#ifndef ROZO_STORAGED_HEAL_PROJ_LIST_H
#define ROZO_STORAGED_HEAL_PROJ_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/env/env.h"
#include "storaged/disk/disk.h"
#include "storcli/blocks.h"

enum {
    LIST_FILES_MAX = 1024, /* of one answer */
    LIST_LOOKED_AT_MAX =
        256, /* files whose pages one request reads; the answer may be shorter for it */
};

/* One file as its pages here describe it. */
struct proj_list_file {
    struct storcli_target target; /* without capability; only the id when !known */
    bool known;                   /* a header page was believed */
    uint32_t projections;         /* bitmap of what is here, damaged ones too */
    uint32_t damaged, partial;    /* bitmaps */
    uint32_t unfinished; /* bitmap, not in projections: no header page ever got there */
    uint64_t size, allocated; /* summed, bytes */
    uint64_t blocks;          /* behind the last that may have a record here */
};

/* What to list. Zero-initialise. */
struct proj_list_request {
    bool has_after;
    struct file_id after; /* go on behind this one */
    bool only;            /* just `after` itself: one file or none */
    unsigned max_files;   /* 1..LIST_FILES_MAX; above LIST_LOOKED_AT_MAX it is that */
    uint32_t
        with_storage; /* not 0: only files with this storage in their distribution ... */
    bool ids_only; /* what the names tell, no pages; also names of what was put aside */
    bool damaged_too; /* ... and those of which nobody here can tell it */
};

/* The answer; gone when the callback returns. */
struct proj_list_result {
    int rc; /* 0 or -EIO, -ENOMEM: nothing was listed */
    const struct proj_list_file *files;
    unsigned n_files;
    bool end;             /* there are no more behind these */
    struct file_id after; /* !end: go on behind this one */
    bool aside;           /* of `only`: it was put aside as damaged */
};
typedef void proj_list_done_cb(void *arg, const struct proj_list_result *result);

struct list_op;
/** 0 or -ENOMEM. Later done(arg), once, unless it is cancelled. */
int proj_list_start(struct env *env, struct disk *disk,
                    const struct proj_list_request *request, proj_list_done_cb *done,
                    void *arg, struct list_op **out);
/** No callback any more; it goes when the disk has answered what is under way. */
void proj_list_cancel(struct list_op *op);

/** <0, 0, >0: the order of lists. */
int list_order(const struct file_id *a, const struct file_id *b);

/* ---- between a target and a FileRef ---- */

/** 0, or -EBADMSG: not a file with a known code and a distribution that fits it. */
int heal_target_get(const Rozo__FileRef *ref, struct storcli_target *out);
/** Can a file have these blocks? n_blocks 0: to the end of everything. */
bool heal_range_is_good(uint64_t first, uint64_t n_blocks);
/* A FileRef with all it points at; nothing to free, good as long as the target is. */
struct heal_ref {
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};
/** Without capability. */
void heal_ref_put(const struct storcli_target *target, struct heal_ref *out);
/** The same code and distribution? The file is not looked at. */
bool heal_same_target(const struct storcli_target *a, const struct storcli_target *b);
/** The place of a storage in the distribution; DIST_MAX: it has none. */
unsigned heal_place(const struct storcli_target *target, uint32_t storage);

#endif
