/*
 * fsck_join.h - compares the files that exportd knows with the projections that storages
 * hold.
 *
 * First all inodes are added, then all that storages list. So a file created in between
 * looks ownerless, and a removed one looks missing: both are only candidates until
 * exportd has been asked again. Takes about 60 bytes per file, and 4 for each storage of
 * a distribution that no file before had.
 *
 * A file *moved* if a storage has a later distribution of it than exportd, whose data
 * then are from a backup (docs/internals/redistribution.md).
 */
#ifndef ROZO_DEPLOY_FSCK_FSCK_JOIN_H
#define ROZO_DEPLOY_FSCK_FSCK_JOIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/wire/record.h"

/* One file as exportd knows it. */
struct fsck_file {
    struct file_id id;
    uint64_t size;
    uint32_t dist;  /* index of its distribution in fsck.storages */
    uint32_t later; /* 1 + index of the latest distribution; 0: the file did not move */
    uint32_t dist_generation; /* generation of the latest distribution */
    uint16_t homes;           /* bitmap: home i has projection i */
    uint16_t anywhere;        /* bitmap: projections on any storage of the distribution */
    uint16_t damaged;         /* bitmap: home i has a damaged projection file */
    uint8_t codec, layout;
    uint8_t n_storages;
    bool block_4k;
    bool full_quorum; /* as in FileRef */
    bool has_data;
    bool orphan; /* has no name left */
};

/* Projections on a storage that belong to no inode, or should not be there. */
struct fsck_stray {
    struct file_id id;
    uint32_t storage;
    uint32_t projections; /* bitmap */
    uint64_t bytes;
    bool misplaced; /* the file exists, but this storage is not in its distribution */
    /* Set later: exportd never gave out this number, or this generation of it. */
    bool unknown;
    bool dropped; /* set later: belongs to a file after all */
    bool named;   /* set later: the inode is lost, and a name leads to it */
};

struct fsck {
    struct fsck_file *files; /* owned */
    size_t n_files, files_max;
    /* Owned; open addressing, n_index is a power of 2; 0: free, else index in files +
     * 1. */
    uint32_t *index;
    size_t n_index;
    uint32_t *storages; /* owned; all distributions */
    size_t n_storages, storages_max;
    uint32_t *dist_index; /* owned; indexes of distributions + 1, by hash */
    size_t n_dist_index, n_dists;
    struct fsck_stray *strays; /* owned */
    size_t n_strays, strays_max;
    uint64_t n_projections, bytes; /* sums over all that storages listed */
};

void fsck_init(struct fsck *f);
void fsck_free(struct fsck *f);
/**
 * Adds an inode; adding it twice has no effect. Returns 0, -EBADMSG if it is invalid, or
 * -ENOMEM.
 */
int fsck_add_inode(struct fsck *f, const Rozo__AdInodesResp__Inode *in);
/** Adds one file of a storage. Returns 0, -EBADMSG if it is invalid, or -ENOMEM. */
int fsck_add_listed(struct fsck *f, uint32_t storage, const Rozo__StListResp__File *file);
/** Returns the file; NULL: exportd did not list it. */
struct fsck_file *fsck_find(struct fsck *f, const struct file_id *id);
/** Returns the storages of a file, file->n_storages of them. */
const uint32_t *fsck_storages(const struct fsck *f, const struct fsck_file *file);

/** Returns the storages of a file that moved, and their number. */
const uint32_t *fsck_later(const struct fsck *f, const struct fsck_file *file,
                           unsigned *n);

/* State of a storage for the comparison. */
enum fsck_heard {
    FSCK_UNLISTED, /* may have anything */
    FSCK_LISTED,   /* has listed everything */
    FSCK_GONE,     /* lost for good: projections that no other storage has are lost */
};

/* Faults of a file with data. */
struct fsck_lack {
    /* Bitmap of homes that lack their projection: they listed everything, or are lost for
     * good and no spare has it. */
    uint16_t missing;
    uint16_t damaged;  /* bitmap of homes with a damaged projection */
    uint32_t unlisted; /* bitmap of candidates that were not listed */
    unsigned n_there;  /* distinct projections seen that are not damaged */
    bool unreadable;   /* fewer than k, although all candidates were listed */
    /* The file moved; nothing else is known then. */
    bool moved;
};
/**
 * Finds the faults of a file.
 * @return false if there are none.
 */
bool fsck_lacks(const struct fsck *f, const struct fsck_file *file,
                enum fsck_heard (*heard)(void *arg, uint32_t storage), void *arg,
                struct fsck_lack *out);

#endif
