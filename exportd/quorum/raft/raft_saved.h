/*
 * raft_saved.h - checks of the state with which a member of a quorum starts. Pure.
 */
#ifndef ROZO_EXPORTD_QUORUM_RAFT_RAFT_SAVED_H
#define ROZO_EXPORTD_QUORUM_RAFT_RAFT_SAVED_H

#include "common/base/err.h"
#include "exportd/quorum/raft/raft_core.h"

/** Returns 0, or -ROZO_EDAMAGED with *err: term, log and store do not go together. */
int raft_saved_check(const struct raft_core_saved *s, struct err *err);

#endif
