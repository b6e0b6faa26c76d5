/*
 * offline.h - a loop for commands that change a data directory while exportd does not
 * run: they wait for one thing at a time. Shell code.
 */
#ifndef ROZO_EXPORTD_OFFLINE_OFFLINE_H
#define ROZO_EXPORTD_OFFLINE_OFFLINE_H

#include <uv.h>

#include "common/kv/kv_leveldb.h"
#include "common/rpc/rpc_tcp.h"
#include "exportd/datadir/daemon_config.h"

/* From offline_open() to offline_close(). */
struct offline {
    const struct exportd_settings *config; /* borrowed */
    struct rpc_keys keys;
    uv_loop_t loop;
    struct env_uv env;
    struct env_timer tick;
    bool is_done, is_due;
    int rc;
};

/** Opens the loop and reads the node key. Returns 0 or -errno with a text. */
int offline_open(struct offline *o, const struct exportd_settings *config,
                 struct err *err);
void offline_close(struct offline *o);
/** Runs the loop until o->is_done, and clears that. */
void offline_wait(struct offline *o);
/** Commits items to the kv, or syncs it (no items), and waits until that is done. */
int offline_commit(struct offline *o, struct kv *kv, const struct kv_item *items,
                   size_t n_items, struct err *err);
int offline_sync(struct offline *o, struct kv *kv, struct err *err);
/** Opens the store DATA/NAME. may_create: makes it if it is missing. */
int offline_store_open(struct offline *o, const char *name, bool may_create,
                       struct kv_leveldb **out, struct err *err);
uint32_t offline_chance(struct offline *o);
/** Returns true if a member of a quorum answers at this address. Takes up to 3 s. */
bool offline_member_answers(struct offline *o, const char *address);

#endif
