/*
 * session_takeover.h - sessions of processes that died and whose mounts other processes
 * took over.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_TAKEOVER_H
#define ROZO_EXPORTD_SESSIONS_SESSION_TAKEOVER_H

#include "exportd/cluster/exportd_state.h"

struct session;

/**
 * Lets a client have session `id`, whose process is certainly dead, under a new id.
 * Returns 0; -EBUSY: storages may still take writes of that process, ask again;
 * -ROZO_ENO_SESSION: the session has ended, or belongs to another export.
 */
int session_take_over(struct exportd *x, struct export *e, uint64_t id,
                      const char *client, bool read_only, struct session **out);

/* Messages about what a session holds. Owned; held_messages_free(). */
struct held_messages {
    size_t n_inodes, n_locks;
    Rozo__HeldInode *inodes, **inode_list;
    uint64_t
        *tokens; /* inodes, as many as session->tokens.n; n_shared with SHARED first */
    size_t n_shared;
    Rozo__Lock *locks, **lock_list;
};
/** Returns 0 or -ENOMEM. */
int held_messages_make(struct session *s, struct held_messages *h);
void held_messages_free(struct held_messages *h);

#endif
