/*
 * quorum_thread.h - the thread of a member: its loop, its disk, the server for other
 * members and the channels to them.
 *
 * A thread of its own, so that no stall of exportd's core delays a heartbeat. The other
 * way round it watches the core: if the loop of a core that serves has not turned for
 * CORE_STALL_MS, it hands leadership over. Everything here is called on the core's
 * thread. Shell code.
 */
#ifndef ROZO_EXPORTD_DAEMON_QUORUM_THREAD_H
#define ROZO_EXPORTD_DAEMON_QUORUM_THREAD_H

#include "common/base/list.h"
#include "common/rpc/rpc_tcp.h"
#include "exportd/datadir/daemon_config.h"
#include "exportd/datadir/quorum_identity.h"
#include "exportd/quorum/member_port.h"

struct quorum_thread;

enum { CORE_STALL_MS = 2000 };

struct quorum_thread_config {
    const struct rpc_keys *keys; /* borrowed */
    const char *const *listen;   /* borrowed while it is opened */
    unsigned n_listen;
    int dir_fd;                           /* DATA/quorum; borrowed */
    bool is_lazy;                         /* acknowledge: memory */
    const struct member_clients *clients; /* member_config.clients */
    const struct quorum_section *section; /* borrowed while it is opened */
    const struct raft_config *sources;    /* member_config.sources */
    const struct quorum_identity *identity;
    const struct kv_quorum_place *place;
    struct env_uv *core; /* borrowed */
    /* borrowed; its mail to the member goes to quorum_thread_post() */
    struct member_port *port;
};

/**
 * Makes the member and listens; nothing runs yet. Sets port->member. Returns 0 or -errno
 * with a text.
 */
int quorum_thread_open(const struct quorum_thread_config *config,
                       struct quorum_thread **out, struct err *err);
/**
 * Starts the thread and, on it, the member. started(arg, rc): as of member_start(), err
 * must live until then. Returns 0, or -errno: the thread did not start.
 */
int quorum_thread_start(struct quorum_thread *t, struct err *err,
                        void (*started)(void *arg, int rc), void *arg);
/**
 * Says whether the core serves clients; on the core's thread. Then its loop must turn, or
 * calls be handled: after CORE_STALL_MS without either the member hands leadership over.
 * A core that opens may take longer.
 */
void quorum_thread_core_serves(struct quorum_thread *t, bool serves);
/** A call reaches the core; on the core's thread. */
void quorum_thread_core_works(struct quorum_thread *t);
/**
 * Ends the process: a member that cannot keep what it promised does not go on; a new
 * start reads what the disk holds. A hook `failed`, of any thread; arg is not used.
 */
void quorum_thread_failed(void *arg, int rc, const char *text);
/** Posts mail to the thread; any thread, in order. */
void quorum_thread_post(struct quorum_thread *t, struct env_mail *mail);
/**
 * Stops the member, which has started or failed to; asks under way end. After
 * stopped(arg) it sends no more mail to the core.
 */
void quorum_thread_stop(struct quorum_thread *t, void (*stopped)(void *arg), void *arg);
/** Ends the thread and frees it; the member has stopped or was never started. */
void quorum_thread_close(struct quorum_thread *t);
/** Returns the port listened on. */
uint16_t quorum_thread_port(const struct quorum_thread *t, unsigned at);

/* A question to the member. Embedded in its user's struct, which lives until done. */
struct quorum_ask {
    void (*done)(struct quorum_ask *ask); /* on the core's thread */
    uint64_t to;                          /* transfer: its target, 0: any voter */
    struct member_change change;          /* change: all but `done` */
    int rc;                               /* out, transfer and change */
    struct member_status status;          /* out */
    /* The rest is private. */
    struct env_mail mail;
    struct list_node link;
    struct quorum_thread *t;
    uint64_t end_ns;
};
/** Asks for the state of the member. */
void quorum_thread_ask_status(struct quorum_thread *t, struct quorum_ask *ask);
/**
 * Hands leadership over. rc: 0 when it does not lead any more; -ROZO_ENOT_LEADER: it did
 * not; -EINVAL: no such voter; -ETIMEDOUT: nobody took over, it still leads.
 */
void quorum_thread_ask_transfer(struct quorum_thread *t, struct quorum_ask *ask);
/** Changes the list of members. rc: as of member_change.done, with a text there. */
void quorum_thread_ask_change(struct quorum_thread *t, struct quorum_ask *ask);

#endif
