/*
 * quorum_node.h - exportd as a member of a quorum: the kv, the member on its thread, and
 * the core that runs here while this member leads.
 *
 * Used like exportd.h, by the core's thread. Shell code.
 */
#ifndef ROZO_EXPORTD_DAEMON_QUORUM_NODE_H
#define ROZO_EXPORTD_DAEMON_QUORUM_NODE_H

#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "exportd/cluster/exportd_config.h"
#include "exportd/datadir/daemon_config.h"
#include "exportd/datadir/quorum_identity.h"

struct quorum_node;

struct quorum_node_config {
    struct env_uv *env;                   /* borrowed */
    struct kv *below;                     /* borrowed */
    const struct rpc_keys *keys;          /* borrowed */
    const char *data;                     /* borrowed: the data directory */
    const struct quorum_section *section; /* borrowed */
    const char *const *listen; /* where it listens for clients; borrowed while opened */
    unsigned listen_count;
    struct exportd_config core;
    /** Ends the connections of clients; may come before the server is open. */
    void (*end_conns)(void *arg);
    void *arg;
};

enum {
    QUORUM_NODE_FDS = 128, /* descriptors: loop, log, links to and from other members */
};

/**
 * Opens the member, and begins to start it. Runs the loop of env until it has started or
 * failed to. Returns 0, or -errno with a text.
 */
int quorum_node_open(const struct quorum_node_config *config, struct quorum_node **out,
                     struct err *err);
/** Returns the id of the cluster, 16 bytes. */
const uint8_t *quorum_node_cluster_id(const struct quorum_node *n);
/** Returns whether this member is a witness: it has no metadata. */
bool quorum_node_is_witness(const struct quorum_node *n);
/** Returns the number of the group (raft_msg_group). */
uint32_t quorum_node_group(const struct quorum_node *n);
/** Handles a request of a client: an rpc_handler_cb whose arg is the struct. */
void quorum_node_handle(void *arg, struct rpc_call *call);
/** A connection of clients is gone: an rpc_server_config.conn_closed. */
void quorum_node_conn_closed(void *arg, uint64_t conn_id);
/**
 * Hands leadership over if this member leads, then stops; done(arg, rc). Further requests
 * are answered NOT_LEADER. quorum_node_close() follows.
 */
void quorum_node_stop(struct quorum_node *n, void (*done)(void *arg, int rc), void *arg);
/** Frees it after a stop. NULL is fine. */
void quorum_node_close(struct quorum_node *n);
/** Logs where it listens for members. */
void quorum_node_tell(const struct quorum_node *n);

#endif
