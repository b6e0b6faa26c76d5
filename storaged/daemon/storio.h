/*
 * storio.h - one loop of the storage daemon: its listener, its share of the files. Shell code.
 *
 * A file belongs to one loop, by a hash of its id. A request that arrives elsewhere is mailed
 * there, and its answer back; with one address there is one loop and no mail.
 */
#ifndef ROZO_STORAGED_DAEMON_STORIO_H
#define ROZO_STORAGED_DAEMON_STORIO_H

#include <uv.h>

#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "storaged/daemon/disk_uv.h"
#include "storaged/daemon/healio.h"
#include "storaged/daemon/sync_generation.h"
#include "storaged/ops/storage.h"

enum { STORIOS_MAX = RPC_ADDR_MAX };

/* Each begins when all storios and the healer have done the one before. */
enum {
    PHASE_STARTING,
    PHASE_SERVING,
    PHASE_STOP_HEALER,
    PHASE_STOP_STORAGE,
    PHASE_CLOSE_SERVER,
    PHASE_END,
};

struct daemon;

/* Everything but the two atomics of the mailbox and `mail`s belongs to its thread once it runs. */
struct storio {
    struct daemon *daemon; /* borrowed */
    unsigned index;
    uv_thread_t thread; /* not of the first, which runs on main's */
    uv_loop_t loop;
    bool loop_open;
    struct env_uv env;
    struct disk_uv disk;
    struct capability_key *key; /* owned */
    struct storage *storage;    /* owned */
    struct rpc_server *server;  /* owned; NULL once closed */
    unsigned n_forwarded;       /* calls that came here and are with another loop */
    _Atomic unsigned n_handoff; /* mails of healio_handoff() */
    bool closed; /* the server is; end when nothing is forwarded any more */
    struct env_mail
        to_us; /* from the first: the next phase of stopping, a new identity */
    struct env_mail to_first; /* from us: the phase is done */
    struct env_mail identity_mail;
    struct env_mail idle_mail;   /* to us: another loop lacks descriptors */
    _Atomic unsigned idle_below; /* with it, see env_uv.h; 0: it is not under way */
};

/* What all loops share. Written before they run; `phase` and `n_done` by the first only. */
struct daemon {
    struct rpc_keys keys;
    struct identity identity;
    struct revoked_sessions revoked;
    struct generations generations;
    struct sync_generation sync_generation; /* the first one's */
    int dir_fd;
    unsigned files_max, conns_max; /* of each loop */
    unsigned kv_fds;               /* descriptors of the healer's LevelDB */
    unsigned n_storios;
    struct storio storios[STORIOS_MAX];
    struct healio healio;
    unsigned phase, n_done;              /* of starting and stopping */
    bool serving, stop_wanted;           /* the first one's, as the phase */
    void (*on_serving)(void);            /* once, on its thread */
    const char *addresses[RPC_ADDR_MAX]; /* as configured, with the real ports; owned */
};

/** The process has no descriptor left: every storio is mailed to close some idle files. Any thread, before PHASE_END. */
void daemon_close_idle(struct daemon *d, unsigned below);

/** Loop, env, disk, listening socket; not serving yet. Main's thread. */
int storio_open(struct storio *io, struct daemon *d, unsigned index, const char *address,
                struct err *err);
/** The storage behind it, when all addresses are known. config: what is the same for all. */
int storio_start(struct storio *io, const struct storage_config *config, struct err *err);
/** Run until stopped. */
void storio_run(struct storio *io);
/** After run, or a failed open or start. Main's thread. */
void storio_free(struct storio *io);

/** The healer has done the phase; mail is its own. On its thread. */
void daemon_tell_phase_done(struct daemon *d, struct env_mail *mail);
/** Stop all: answer what is under way, sync, close, end. On the first one's thread. */
void daemon_stop(struct daemon *d);

#endif
