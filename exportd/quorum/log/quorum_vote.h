/*
 * quorum_vote.h - term and vote of a member on its disk: two copies, each in its page.
 * The boot record (quorum_boot.c) is kept in the same way.
 *
 * Sans-I/O. A vote is reported as saved when both copies are on stable storage. So one
 * copy may be torn by a loss of power, rot later or become unreadable, and the other one
 * says all that anybody may have relied on.
 */
#ifndef ROZO_EXPORTD_QUORUM_LOG_QUORUM_VOTE_H
#define ROZO_EXPORTD_QUORUM_LOG_QUORUM_VOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/disk.h"

enum { QUORUM_VOTE_PAGE_BYTES = 4096, QUORUM_VOTE_BYTES = 40 };

struct quorum_ballot {
    uint64_t term, vote; /* vote: raft id; 0: none */
};

/* Embedded; zero-initialise, set disk, path, the callbacks and arg. */
struct quorum_vote {
    struct disk *disk; /* borrowed */
    const char *path;  /* name of the file; a constant */
    /** Called after quorum_vote_start(): 0 or an error of the disk. */
    void (*started)(void *arg, int rc);
    /** The ballot is on stable storage; or nothing more can be saved (rc). */
    void (*saved)(void *arg, int rc, struct quorum_ballot ballot);
    void *arg;

    struct quorum_ballot found; /* after the start; zeros: none was ever saved */
    bool is_damaged;            /* after the start: neither copy is valid and readable */

    /* The rest is private. */
    enum quorum_vote_state {
        VOTE_OPEN,
        VOTE_READ,
        VOTE_SYNC_NAME,
        VOTE_SYNC_FOUND,
        VOTE_LEVEL, /* writes the older copy */
        VOTE_IDLE,
        VOTE_WRITE,
        VOTE_SYNC,
        VOTE_FAILED
    } state;
    struct disk_file *file;
    uint64_t number;     /* number of the newest ballot */
    uint64_t numbers[2]; /* numbers of both copies at the start; 0: none is valid there */
    unsigned copy;       /* copy being read or written */
    bool is_there;       /* at the start: a copy has been written */
    bool is_new;
    bool has_next;
    struct quorum_ballot next, writing;
    uint8_t page[QUORUM_VOTE_PAGE_BYTES];
    struct iovec iov;
    struct disk_req dr;
};

/** Reads what was saved. */
void quorum_vote_start(struct quorum_vote *v);
/** Saves a ballot; it replaces an earlier one that is not being written yet. */
void quorum_vote_save(struct quorum_vote *v, struct quorum_ballot ballot);
/** Returns whether nothing is being written. */
bool quorum_vote_is_idle(const struct quorum_vote *v);
/** Closes the file. Nothing may be under way. */
void quorum_vote_close(struct quorum_vote *v);

#endif
