/*
 * healio.h - the healer of the storage daemon on a thread and a libuv loop of its own.
 * Shell code.
 *
 * It is a client of all storages, our own too, over TCP. Requests for it arrive on the
 * storios' listeners and are mailed here, as requests for another storio are.
 */
#ifndef ROZO_STORAGED_DAEMON_HEALIO_H
#define ROZO_STORAGED_DAEMON_HEALIO_H

#include <stdatomic.h>

#include <uv.h>

#include "common/disk/disk_uv.h"
#include "common/env/env_uv.h"
#include "common/kv/kv_leveldb.h"
#include "common/rpc/rpc_tcp.h"
#include "storaged/heal/healer.h"
#include "storaged/ops/storage.h"

struct storaged_daemon;

/* The healer's loop. Belongs to its thread once that runs, except for the mails. */
struct healio {
    struct storaged_daemon *daemon; /* borrowed */
    uv_thread_t thread;
    uv_loop_t loop;
    bool loop_open;
    struct env_uv env;
    struct disk_uv disk;
    struct capability_key *key; /* owned */
    struct kv_leveldb *kv;      /* owned */
    struct healer *healer;      /* owned */
    unsigned n_closing;         /* channels being closed */
    /* The healer has stopped; the phase ends when the last channel is closed. */
    bool stopped;
    struct env_mail to_us;    /* from the first storio: the next phase */
    struct env_mail to_first; /* to the first storio: the phase is done */
};

/**
 * Opens the healer. config has rates, days and boot; the rest of it is filled in here.
 * Called on main's thread.
 */
int healio_open(struct healio *io, struct storaged_daemon *d, const char *data_dir,
                const struct healer_config *config, struct err *err);
/** Runs until the daemon stops. Called on its own thread. */
void healio_run(struct healio *io);
/** Frees all, after healio_run() or a failed open. Called on main's thread. */
void healio_free(struct healio *io);

/**
 * Mails the healer that a storio's storage took a write meant for another storage. Called
 * on that storio's thread; n_out counts and bounds its mails under way.
 */
void healio_handoff(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_handoff *what);
/** Mails a call of healer_damaged() in the same way. */
void healio_damaged(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_damaged *what);
/** Begins a phase of the daemon; see storio.c. Called on the healer's thread. */
void healio_phase(struct healio *io, unsigned phase);

#endif
