/*
 * fsck_join.h - what exportd says of files, and storages of projections, held against each other.
 *
 * First all inodes are added, then all that storages list: what was created in between then looks like nobody's,
 * and what was removed like missing. So both are candidates only, until exportd has been asked again.
 * Takes about 50 bytes a file, and 4 for each storage of a distribution that no file before had.
 */
#ifndef ROZO_DEPLOY_VERBS_FSCK_JOIN_H
#define ROZO_DEPLOY_VERBS_FSCK_JOIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/base/record.h"

/* One file as exportd knows it. */
struct fsck_file {
    struct file_id id;
    uint64_t size;
    uint32_t dist;  /* where its storages begin, in fsck.storages */
    uint16_t homes; /* bitmap: home i has projection i */
    uint16_t
        anywhere; /* bitmap: projections that lie on some storage of the distribution */
    uint16_t damaged; /* bitmap: home i has one that cannot be believed */
    uint8_t codec, layout;
    uint8_t n_storages;
    bool block_4k;
    bool has_data;
    bool orphan; /* it has no name left */
};

/* What a storage holds of something that no inode owns, or that it should not hold. */
struct fsck_stray {
    struct file_id id;
    uint32_t storage;
    uint32_t projections; /* bitmap */
    uint64_t bytes;
    bool misplaced; /* the file is there, this storage is not in its distribution */
    bool
        unknown; /* set later: exportd never gave this number, or this generation of it, out */
    bool dropped; /* set later: it is somebody's after all */
};

struct fsck {
    struct fsck_file *files; /* owned */
    size_t n_files, files_max;
    uint32_t *
        index; /* owned; open addressing, n_index is a power of 2; 0: free, else place + 1 */
    size_t n_index;
    uint32_t *storages; /* owned; all distributions */
    size_t n_storages, storages_max;
    uint32_t *dist_index; /* owned; where distributions begin + 1, by hash */
    size_t n_dist_index, n_dists;
    struct fsck_stray *strays; /* owned */
    size_t n_strays, strays_max;
    uint64_t n_projections, bytes; /* of all that storages listed */
};

void fsck_init(struct fsck *f);
void fsck_free(struct fsck *f);
/** 0, -EBADMSG when it makes no sense, -ENOMEM. Twice is once. */
int fsck_add_inode(struct fsck *f, const Rozo__AdInodesResp__Inode *in);
/** The same of one file on a storage. */
int fsck_add_listed(struct fsck *f, uint32_t storage, const Rozo__StListResp__File *file);
/** NULL: exportd did not tell of it. */
struct fsck_file *fsck_find(struct fsck *f, const struct file_id *id);
/** The storages of a file: file->n_storages of them. */
const uint32_t *fsck_storages(const struct fsck *f, const struct fsck_file *file);

/* What is known of a storage. */
enum fsck_heard {
    FSCK_SILENT, /* it may have anything */
    FSCK_LISTED, /* it has told all it has */
    FSCK_GONE,   /* given up: what nobody else has of it is lost */
};

/* What is wrong with a file that has data. */
struct fsck_lack {
    uint16_t
        missing; /* bitmap of homes that told all they have, and lack their projection; of those that are
                         gone and whose projection no spare has */
    uint16_t damaged; /* bitmap of homes whose projection cannot be believed */
    uint32_t silent;  /* bitmap of candidates that were not looked at */
    unsigned n_there; /* distinct projections seen, not damaged */
    bool unreadable;  /* fewer than k, and nobody is silent */
};
/** @return false when nothing is wrong. */
bool fsck_lacks(const struct fsck *f, const struct fsck_file *file,
                enum fsck_heard (*heard)(void *arg, uint32_t storage), void *arg,
                struct fsck_lack *out);

#endif
