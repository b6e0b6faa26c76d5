/*
 * raft_changes.h - lists of members: the newest that is known to be committed, and those
 * of later entries of the log. Pure.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_CHANGES_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_CHANGES_H

#include "exportd/quorum/raft/raft_msg.h"

/* List of members, and the entry that has it. */
struct raft_member_list {
    uint64_t index; /* 0: no list */
    struct raft_config config;
};
/* Embedded; zero-initialise, then raft_changes_free(). */
struct raft_changes {
    struct raft_member_list base;   /* known to be committed */
    struct raft_member_list *later; /* owned; in order */
    size_t n, max;
};

void raft_changes_free(struct raft_changes *c);
/** Returns the newest list, committed or not. */
const struct raft_member_list *raft_changes_newest(const struct raft_changes *c);
/**
 * Adds the list of an entry; it is not committed yet. Returns 0, -ENOMEM or
 * -ROZO_EDAMAGED: it is not valid.
 */
int raft_changes_add(struct raft_changes *c, uint64_t index, const void *data,
                     size_t len);
/** Makes the oldest later list the base. There must be one. */
void raft_changes_commit(struct raft_changes *c);
/** Drops the lists of this entry and of all after it. */
void raft_changes_truncate(struct raft_changes *c, uint64_t from);
/**
 * Returns true if a leader may go from one list to the other. They differ in one member,
 * so that any two majorities share a voter, and roles go from SPARE to STANDBY to VOTER:
 * libraft does not pause between heartbeats to a member that became a spare (R18), and a
 * voter that became anything else does not campaign, though others may need it (R21). No
 * member becomes a witness, or ceases to be one.
 */
bool raft_change_is_one_step(const struct raft_config *old,
                             const struct raft_config *new);

#endif
