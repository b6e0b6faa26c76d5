/*
 * seed_store.h - copies the store of another member into the kv of this one, and reads
 * chunks for others.
 *
 * The member (member_seed.c, member_source.c) gives jobs, the side of the kv carries them
 * out. A copy has a mark in the kv (kv_place.h) from its first change to its end, so a
 * crash at any time leaves either a complete kv or one that goes on being copied. Each
 * change is one commit together with the mark.
 *
 * The copy is exact although the source changes meanwhile: a chunk replaces all keys
 * behind the cursor, and each entry of the log since then is applied to the keys up to
 * the cursor. Batches have absolute values, so an entry that a chunk contains already
 * does no harm once all entries up to the newest chunk are applied.
 */
#ifndef ROZO_EXPORTD_QUORUM_SEED_STORE_H
#define ROZO_EXPORTD_QUORUM_SEED_STORE_H

#include "common/base/list.h"
#include "exportd/quorum/kv_place.h"
#include "exportd/quorum/log/quorum_entry.h"
#include "exportd/quorum/seed/seed_adopt.h"

enum seed_job_kind {
    SEED_JOB_READ,  /* chunk for another member: keys behind mark.cursor */
    SEED_JOB_BEGIN, /* marks the kv, removes the old keys if mark.index is 0 */
    SEED_JOB_CHUNK,
    SEED_JOB_ENTRIES,
    SEED_JOB_END, /* the copy is complete: the kv is that of mark.index */
};

/* Work for the side of the kv. Owned by the member, lent until hooks.seeded. */
struct seed_job {
    enum seed_job_kind kind;
    struct seed_mark mark;   /* state of the copy; changed by the job */
    struct seed_chunk chunk; /* READ: out. CHUNK: in */
    uint8_t *bytes;          /* items of the chunk, seed_item_put(). READ: malloc'ed */
    size_t len;
    struct quorum_entry **entries; /* ENTRIES: n_entries, in order */
    unsigned n_entries;
    int rc;                       /* out */
    struct kv_quorum_place place; /* out: place of the kv, after END the new one */
    void *arg;                    /* the member's */
    struct list_node link;        /* the kv's */
};
/** Frees a job with its bytes and uses of entries. NULL is fine. */
void seed_job_free(struct seed_job *job);

/* Embedded; zero-initialise, set below, done and arg. */
struct seed_store {
    struct kv *below; /* borrowed */
    /** The job is done. Also called inside seed_store_run(). */
    void (*done)(void *arg, struct seed_job *job, int rc);
    void *arg;
    bool is_witness; /* keys are not kept */
    /* The rest is private. */
    struct seed_job *job; /* under way; reads are done at once */
    unsigned n_commits;   /* under way */
    int rc;
    bool is_syncing;
    struct kv_done sync;
    /* parts of a batch whose last one has not come */
    uint8_t *parts; /* owned */
    size_t parts_len;
};
void seed_store_run(struct seed_store *s, struct seed_job *job);
/** Frees what the store holds. No job is under way. */
void seed_store_clear(struct seed_store *s);

/**
 * Makes an empty kv that of a new member: it copies the store of another one when it
 * starts, and has no vote before that. done comes when the commit survives the end of
 * this process.
 */
void seed_store_adopt(struct kv *below, const struct seed_adoption *a,
                      struct kv_done *done);

#endif
