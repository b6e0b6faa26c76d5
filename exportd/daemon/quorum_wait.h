/*
 * quorum_wait.h - an exportd without data that waits until a quorum adds it.
 *
 * Its config has a section `quorum` with `listen` only. It listens for members and for
 * clients, serves nobody, and has no vote. Shell code.
 */
#ifndef ROZO_EXPORTD_DAEMON_QUORUM_WAIT_H
#define ROZO_EXPORTD_DAEMON_QUORUM_WAIT_H

#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "exportd/datadir/daemon_config.h"

struct quorum_wait_config {
    struct env_uv *env;                      /* borrowed; its loop is run */
    const struct rpc_keys *keys;             /* borrowed */
    const struct exportd_settings *settings; /* borrowed */
    unsigned conns_max;
};

/**
 * Waits until a quorum has added this exportd, then makes its data directory that of a
 * member with an empty store, which copies that of another one when it starts. All of it
 * is on stable storage at return. Returns 0; -ECANCELED: a signal stops the process; or
 * -errno with a text.
 */
int quorum_wait(const struct quorum_wait_config *config, struct err *err);

#endif
