/*
 * first_member.h - makes a data directory that of a first member of a quorum, in steps.
 *
 * Two users: `exportd --begin-quorum` with a new, empty store, and `rozo meta init` with
 * the store of an exportd that was alone. What a step writes is on stable storage when it
 * returns. Before the last step the directory is what it was, and each step may be
 * repeated; after it the directory is that of a member. Shell code.
 */
#ifndef ROZO_EXPORTD_DATADIR_FIRST_MEMBER_H
#define ROZO_EXPORTD_DATADIR_FIRST_MEMBER_H

#include <uv.h>

#include "common/env/kv.h"
#include "exportd/datadir/quorum_identity.h"

enum first_member_step {
    FIRST_MEMBER_KEYS,     /* keys of kind KEY_QUORUM: all others count as entry 1 */
    FIRST_MEMBER_IDENTITY, /* DATA/quorum/identity */
    FIRST_MEMBER_FORMAT,   /* DATA/format: from here on it is a member */
    FIRST_MEMBER_STEPS
};

struct first_member {
    uv_loop_t *loop; /* borrowed: that of the kv; a step runs it */
    struct kv *kv;   /* borrowed: DATA/kv, used by nobody else meanwhile */
    const char *data;
    const struct raft_config *members; /* with which the quorum begins */
    struct quorum_identity identity;
};

/**
 * Checks that DATA/quorum holds no log and no vote: those of another life would be taken
 * for this one's. Returns 0, or -errno with a text.
 */
int first_member_check(const char *data, struct err *err);
/** Carries out one step. Returns 0, or -errno with a text. */
int first_member_step(const struct first_member *m, enum first_member_step step,
                      struct err *err);
/** Carries out all steps. Returns 0, or -errno with a text. */
int first_member_make(const struct first_member *m, struct err *err);

#endif
