/*
 * healio.h - the healer of the storage daemon on a thread and a libuv loop of its own. Shell code.
 *
 * It is a client of all storages, our own too, over TCP. Requests for it arrive on the storios' listeners and
 * are mailed here, as requests for another storio are.
 */
#ifndef ROZO_STORAGED_DAEMON_HEALIO_H
#define ROZO_STORAGED_DAEMON_HEALIO_H

#include <stdatomic.h>

#include <uv.h>

#include "common/env/env_uv.h"
#include "common/kv/kv_leveldb.h"
#include "common/rpc/rpc_tcp.h"
#include "storaged/daemon/disk_uv.h"
#include "storaged/heal/healer.h"
#include "storaged/ops/storage.h"

struct daemon;

/* Belongs to its thread once that runs, but for the mails. */
struct healio {
    struct daemon *daemon; /* borrowed */
    uv_thread_t thread;
    uv_loop_t loop;
    bool loop_open;
    struct env_uv env;
    struct disk_uv disk;
    struct capability_key *key; /* owned */
    struct kv_leveldb *kv;      /* owned */
    struct healer *healer;      /* owned */
    unsigned n_closing;         /* channels on their way out */
    bool stopped;               /* the healer is; the phase ends with the last channel */
    struct env_mail to_us;      /* from the first storio: the next phase */
    struct env_mail to_first;   /* from us: the phase is done */
};

/** What is not ours to find out: rates, days, boot. The rest of config is filled in here. Main's thread. */
int healio_open(struct healio *io, struct daemon *d, const char *data_dir,
                const struct healer_config *config, struct err *err);
/** Run until the daemon stops. Its own thread. */
void healio_run(struct healio *io);
/** After that, or a failed open. Main's thread. */
void healio_free(struct healio *io);

/**
 * A storio's storage took what another is to hold: mailed to the healer. On that storio's thread; n_out counts its mails
 * under way, and bounds them.
 */
void healio_handoff(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_handoff *what);
/** The same way: healer_damaged(). */
void healio_damaged(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_damaged *what);
/** For a phase mail of the daemon: see storio.c. On our thread. */
void healio_phase(struct healio *io, unsigned phase);

#endif
