/*
 * quorum_identity.h - which member of which quorum a data directory belongs to.
 *
 * DATA/quorum/identity is written once, when a quorum begins, or begins again with this
 * member alone: a member that lost its disk has none, and so cannot vote as if it had
 * kept its votes. Shell code; docs/FORMATS.md has the bytes.
 */
#ifndef ROZO_EXPORTD_DATADIR_QUORUM_IDENTITY_H
#define ROZO_EXPORTD_DATADIR_QUORUM_IDENTITY_H

#include <stdint.h>

#include "common/base/err.h"
#include "exportd/quorum/raft/raft_msg.h"

struct quorum_identity {
    uint8_t cluster_id[RAFT_MSG_CLUSTER_ID_BYTES];
    unsigned member; /* id in the list of members */
    uint32_t group;  /* number of raft_msg_group */
    bool is_witness; /* DATA/kv has no metadata, and never will */
};

/**
 * Makes the identity of a first member, one of the list. All with the same birth and the
 * same list get the same cluster id.
 * @param birth random bytes, used for one quorum only.
 */
void quorum_identity_make(struct quorum_identity *out, const uint8_t birth[16],
                          const struct raft_config *members, unsigned member);
/** Reads the file. Returns -ENOENT without a text if there is none. */
int quorum_identity_read(const char *data, struct quorum_identity *out, struct err *err);
/** Writes the file, and the directory it is in; both are on stable storage at return. */
int quorum_identity_write(const char *data, const struct quorum_identity *id,
                          struct err *err);
/** Opens DATA/quorum. Returns the descriptor or -errno. */
int quorum_folder_open(const char *data, struct err *err);

#endif
