/*
 * quorum_init.h - AD_META_INIT: an exportd that is alone becomes a quorum of one.
 *
 * The daemon gives the request to quorum_init_take(). If that takes it, the daemon stops
 * and closes its core in order, so that all is stable, then calls quorum_init_data(), and
 * opens the member with quorum_node_open(); it answers with quorum_init_answer(). Shell
 * code, one thread.
 */
#ifndef ROZO_EXPORTD_DAEMON_QUORUM_INIT_H
#define ROZO_EXPORTD_DAEMON_QUORUM_INIT_H

#include "common/env/env_uv.h"
#include "common/env/kv.h"
#include "common/rpc/rpc_tcp.h"
#include "exportd/datadir/daemon_config.h"

enum { QUORUM_INIT_ID = 1 }; /* number of the member that it becomes */

/* Embedded in the daemon's struct; zero-initialise, set the borrowed ones. */
struct quorum_init {
    const struct exportd_settings *config; /* borrowed */
    const struct rpc_keys *keys;           /* borrowed */
    struct env_uv *env;                    /* borrowed */
    /* The rest is private. */
    struct rpc_call *call;     /* owned; NULL: no request is under way */
    struct rpc_server *listen; /* owned: shows that the member can listen */
    struct raft_config members;
};

/**
 * Makes the list of members: this one, at the address `wished` or, if that is "", the
 * first one of quorum.listen. Returns 0, or -EINVAL with a text: others could not reach
 * it there.
 */
int quorum_init_members(const struct quorum_section *section, const char *wished,
                        struct raft_config *out, struct err *err);
/**
 * Takes the call. Returns true if the core must stop now; the answer follows with
 * quorum_init_answer(). False: it has been refused.
 * @param is_member this exportd is a member of a quorum.
 */
bool quorum_init_take(struct quorum_init *i, struct rpc_call *call, bool is_member);
/**
 * Makes the data directory that of a member, see first_member.h. Runs the loop of env.
 * Returns 0, or -errno with a text.
 * @param kv used by nobody; all in it is on stable storage.
 * @param cluster_id 16 bytes: stays that of the cluster, so storages, mounts and keys go
 *               on.
 */
int quorum_init_data(struct quorum_init *i, struct kv *kv, const uint8_t *cluster_id,
                     struct err *err);
/** Answers the request: rc 0, or an error with its text. */
void quorum_init_answer(struct quorum_init *i, int rc, const struct err *err);

#endif
