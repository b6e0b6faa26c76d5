/*
 * deletion.h - removed files, until each storage has confirmed.
 */
#ifndef ROZO_EXPORTD_CLUSTER_DELETION_H
#define ROZO_EXPORTD_CLUSTER_DELETION_H

#include <stdbool.h>

#include "exportd/store/key.h"

struct cluster_storage;
struct deletion_batch;
struct deletion_round;
struct exportd;
struct file_id;
struct inode;

/* Removed files that are not confirmed: new ones, or those that one storage missed. */
struct deletions {
    uint64_t n;
    struct key cursor;                /* place in their records */
    struct deletion_round *round;     /* round under way; NULL: none */
    struct deletion_batch *gathering; /* removals to be sent to a storage; NULL: none */
    uint64_t retry_ns;                /* not before: the last round failed */
};

int deletion_load(struct exportd *x);
void deletion_tick(struct exportd *x);
/** Hook of the name space: notes a removed file. */
void export_deleted(void *arg, const struct inode *in);
/**
 * Notes that a storage has a projection file of a removed inode. Returns false if its
 * removal is already under way or queued.
 */
bool deletion_add(struct cluster_storage *s, const struct file_id *id);
/** Returns true if no request and no round is under way. */
bool deletions_are_over(const struct deletions *d);
/** Returns the number of removals that this storage has not confirmed. */
uint64_t deletions_missed(const struct cluster_storage *s);
/** Returns the number of removals that some storage has not confirmed, each counted. */
uint64_t deletions_waiting(const struct exportd *x);
/** Cancels what is under way. */
void deletion_free(struct exportd *x);

#endif
