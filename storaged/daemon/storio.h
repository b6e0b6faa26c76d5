/*
 * storio.h - one loop of the storage daemon: its listener, its share of the files. Shell
 * code.
 *
 * A file belongs to one loop, by a hash of its id. A request that arrives elsewhere is
 * mailed there, and its answer back; with one address there is one loop and no mail.
 */
#ifndef ROZO_STORAGED_DAEMON_STORIO_H
#define ROZO_STORAGED_DAEMON_STORIO_H

#include <uv.h>

#include "common/disk/disk_uv.h"
#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "storaged/daemon/healio.h"
#include "storaged/daemon/sync_generation.h"
#include "storaged/ops/storage.h"

enum { STORIOS_MAX = RPC_ADDR_MAX };

/* Phases of the daemon. Each begins when all storios and the healer have done the one
 * before. */
enum {
    PHASE_STARTING,
    PHASE_SERVING,
    PHASE_STOP_HEALER,
    PHASE_STOP_STORAGE,
    PHASE_CLOSE_SERVER,
    PHASE_END,
};

struct storaged_daemon;

/* One loop. Belongs to its thread once it runs, except for the mails and the atomics of
 * the mailbox. */
struct storio {
    struct storaged_daemon *daemon; /* borrowed */
    unsigned index;
    uv_thread_t thread; /* unused in the first, which runs on main's thread */
    uv_loop_t loop;
    bool loop_open;
    struct env_uv env;
    struct disk_uv disk;
    struct capability_key *key; /* owned */
    struct storage *storage;    /* owned */
    struct rpc_server *server;  /* owned; NULL once closed */
    unsigned n_forwarded;       /* calls that arrived here and are with another loop */
    _Atomic unsigned n_handoff; /* mails of healio_handoff() under way */
    bool closed; /* the server is closed; the loop ends when no forwarded call is left */
    /* From the first: the next phase of stopping, or a new identity. */
    struct env_mail to_us;
    struct env_mail to_first; /* to the first: the phase is done */
    struct env_mail identity_mail;
    struct env_mail idle_mail;   /* to us: another loop lacks descriptors */
    _Atomic unsigned idle_below; /* argument of idle_mail; 0: it is not in flight */
};

/* State shared by all loops. Written before they run; `phase` and `n_done` by the first
 * only. */
struct storaged_daemon {
    struct rpc_keys keys;
    struct identity identity;
    struct revoked_sessions revoked;
    struct generations generations;
    struct sync_generation sync_generation; /* used by the first loop */
    int dir_fd;
    unsigned files_max, conns_max; /* for each loop */
    unsigned kv_fds;               /* descriptors for the healer's LevelDB */
    unsigned n_storios;
    struct storio storios[STORIOS_MAX];
    struct healio healio;
    unsigned phase, n_done;              /* for starting and stopping */
    bool serving, stop_wanted;           /* used by the first loop, as the phase */
    void (*on_serving)(void);            /* called once, on the first loop's thread */
    const char *addresses[RPC_ADDR_MAX]; /* owned; as configured, with the real ports */
};

/**
 * Asks every storio by mail to close some idle files, because the process has no
 * descriptor left. Any thread, before PHASE_END.
 *
 * @param below see close_idle in env_uv.h
 */
void daemon_close_idle(struct storaged_daemon *d, unsigned below);
/**
 * Opens loop, env, disk and listening socket; does not serve yet. Called on main's
 * thread.
 */
int storio_open(struct storio *io, struct storaged_daemon *d, unsigned index,
                const char *address, struct err *err);
/**
 * Starts its storage, once all addresses are known. config: settings common to
 * all loops.
 */
int storio_start(struct storio *io, const struct storage_config *config, struct err *err);
/** Runs until stopped. */
void storio_run(struct storio *io);
/** Frees all, after storio_run() or a failed open or start. Called on main's thread. */
void storio_free(struct storio *io);

/** Reports that the healer has done the phase; mail is its own. Called on its thread. */
void daemon_tell_phase_done(struct storaged_daemon *d, struct env_mail *mail);
/**
 * Stops all loops: answers requests under way, syncs, closes, ends. Called on the first
 * loop's thread.
 */
void daemon_stop(struct storaged_daemon *d);

#endif
