/*
 * healio.c - the healer's thread: loop, channels, questions to the storios.
 *
 * In:     mail: requests that arrived at the storios, phases of the daemon. TCP answers.
 * Out:    channels of role NODE; LevelDB in DATA/heal; mail to the storios.
 * Keeps:  a struct storage is used on its own thread only; a question has one owner at
 *         any time.
 */
#include "storaged/daemon/healio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "storaged/daemon/storio.h"

/* ---- channels ---- */

static struct rpc_channel *peer_open(void *arg, uint32_t id,
                                     const uint8_t incarnation[IDENTITY_ID_BYTES],
                                     const char *const *addrs, unsigned n_addrs)
{
    struct healio *io = arg;
    struct rpc_channel_config config = {
        .keys = &io->daemon->keys,
        .role = RPC_ROLE_NODE,
        .name = "storaged",
        .addrs = addrs,
        .n_addrs = n_addrs,
        .cluster_id = io->daemon->identity.cluster_id,
        .incarnation = incarnation,
    };
    struct rpc_channel *ch;
    struct err err = { 0 };

    if (rpc_tcp_channel_open(&io->env, &config, &ch, &err) == 0)
        return ch;
    log_warn("channel to storage %u at %s: %s", (unsigned)id, addrs[0], err.text);
    return NULL;
}

static void maybe_stopped(struct healio *io)
{
    if (!io->stopped || io->n_closing > 0)
        return;
    io->stopped = false; /* only once */
    daemon_tell_phase_done(io->daemon, &io->to_first);
}

static void on_channel_closed(void *arg)
{
    struct healio *io = arg;

    io->n_closing--;
    maybe_stopped(io);
}

static void peer_close(void *arg, struct rpc_channel *ch)
{
    struct healio *io = arg;

    io->n_closing++;
    rpc_tcp_channel_close(ch, on_channel_closed, io);
}

/* ---- questions: from storio to storio, and back to the healer ---- */

struct question_trip {
    struct env_mail mail;
    struct healio *io;
    /* The healer's; only the thread that has the mail may touch it. */
    struct heal_question *q;
    void (*ask)(struct storage *st, struct heal_question *q);
    unsigned at; /* index of the storio */
};

static void on_trip_end(struct env_mail *mail)
{
    struct question_trip *trip = (struct question_trip *)mail;
    struct heal_question *q = trip->q;

    free(trip);
    q->answered(q);
}

static void on_trip(struct env_mail *mail)
{
    struct question_trip *trip = (struct question_trip *)mail;
    struct storaged_daemon *d = trip->io->daemon;

    trip->ask(d->storios[trip->at].storage, trip->q);
    if (++trip->at < d->n_storios) {
        env_mailbox_post(&d->storios[trip->at].env, mail);
    } else {
        mail->fn = on_trip_end;
        env_mailbox_post(&trip->io->env, mail);
    }
}

static void trip_begin(struct healio *io, struct heal_question *q,
                       void (*ask)(struct storage *st, struct heal_question *q))
{
    struct question_trip *trip = calloc(1, sizeof(*trip));

    /* No memory even for this: the daemon cannot keep its promises. */
    if (trip == NULL)
        abort();
    *trip = (struct question_trip){ .mail.fn = on_trip, .io = io, .q = q, .ask = ask };
    env_mailbox_post(&io->daemon->storios[0].env, &trip->mail);
}

static void target_of(const struct storage_file *file, struct storcli_target *out)
{
    memset(out, 0, sizeof(*out));
    out->id = file->id;
    out->codec = file->codec;
    out->layout = file->layout;
    out->block_bytes = (uint16_t)file->block_bytes;
    out->n_storages = file->n_storages;
    out->full_quorum = file->full_quorum;
    out->dist_generation = file->dist_generation;
    memcpy(out->storages, file->storages, sizeof(out->storages));
}

static void storage_say_uncommitted(struct storage *st, struct heal_question *q)
{
    struct storage_uncommitted u;
    uint64_t cursor = 0;

    while (q->n_uncommitted < HEAL_UNCOMMITTED_MAX &&
           storage_next_uncommitted(st, q->older_than_ns, &cursor, &u)) {
        struct heal_uncommitted *out = &q->uncommitted[q->n_uncommitted++];

        target_of(&u.file, &out->target);
        out->first = u.first;
        out->end = u.end;
        out->age_ns = u.age_ns;
    }
}

static void storage_say_health(struct storage *st, struct heal_question *q)
{
    storage_health(st, &q->health);
}

static void ask_uncommitted(void *arg, struct heal_question *q)
{
    trip_begin(arg, q, storage_say_uncommitted);
}

static void ask_health(void *arg, struct heal_question *q)
{
    trip_begin(arg, q, storage_say_health);
}

/* ---- reports of a storio: writes taken for another storage, and damage ---- */

enum {
    /* Mails of one storio; above that a report is dropped, and the client's hint or the
     * next reader has to do. */
    STOOD_IN_OUT_MAX = 1024
};

struct handoff_mail {
    struct env_mail mail;
    struct healio *io;
    _Atomic unsigned *n_out; /* counter of the storio */
    struct storage_handoff what;
    bool is_damage; /* only file and blocks of `what` count */
};

static void on_handoff(struct env_mail *mail)
{
    struct handoff_mail *m = (struct handoff_mail *)mail;
    const struct storage_handoff *w = &m->what;
    struct storcli_target target;

    target_of(&w->file, &target);
    if (m->is_damage)
        healer_damaged(m->io->healer, &target, w->first, w->end);
    else
        healer_handoff(m->io->healer, &target, target.storages[w->projection], w->first,
                       w->end, w->version);
    atomic_fetch_sub(m->n_out, 1);
    free(m);
}

static void handoff_mail_send(struct healio *io, _Atomic unsigned *n_out,
                              const struct storage_handoff *what, bool is_damage)
{
    struct handoff_mail *m;

    if (atomic_load(n_out) >= STOOD_IN_OUT_MAX)
        return;
    m = malloc(sizeof(*m));
    if (m == NULL)
        return;
    *m = (struct handoff_mail){ .mail.fn = on_handoff,
                                .io = io,
                                .n_out = n_out,
                                .what = *what,
                                .is_damage = is_damage };
    atomic_fetch_add(n_out, 1);
    env_mailbox_post(&io->env, &m->mail);
}

void healio_handoff(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_handoff *what)
{
    handoff_mail_send(io, n_out, what, false);
}

void healio_damaged(struct healio *io, _Atomic unsigned *n_out,
                    const struct storage_damaged *what)
{
    struct storage_handoff as = { .file = what->file,
                                  .first = what->first,
                                  .end = what->end };

    handoff_mail_send(io, n_out, &as, true);
}

/* ---- phases ---- */

static void on_healer_stopped(void *arg)
{
    struct healio *io = arg;

    io->stopped = true;
    maybe_stopped(io);
}

void healio_phase(struct healio *io, unsigned phase)
{
    switch (phase) {
    case PHASE_SERVING:
        healer_start(io->healer);
        break;
    case PHASE_STOP_HEALER:
        healer_stop(io->healer, on_healer_stopped, io);
        return;
    case PHASE_END:
        env_uv_close(&io->env);
        return;
    default:
        break;
    }
    daemon_tell_phase_done(io->daemon, &io->to_first);
}

/* ---- start and stop ---- */

static int kv_open(struct healio *io, const char *data_dir, struct err *err)
{
    char *dir;
    int rc;

    if (asprintf(&dir, "%s/heal", data_dir) < 0)
        return err_set(err, -ENOMEM, "out of memory");
    rc = kv_leveldb_open(&io->env.env, &io->loop, dir, true, io->daemon->kv_fds, &io->kv,
                         err);
    if (rc != 0)
        rc = err_wrap(err, rc,
                      "the healer's state (if the disk is sound, move %s away and scrub "
                      "all storages)",
                      dir);
    free(dir);
    return rc;
}

static int healer_make(struct healio *io, const struct healer_config *config,
                       struct err *err)
{
    struct healer_config mine = *config;

    mine.env = &io->env.env;
    mine.disk = &io->disk.disk;
    mine.kv = kv_leveldb_kv(io->kv);
    mine.identity = &io->daemon->identity;
    mine.revoked = &io->daemon->revoked;
    mine.key = io->key;
    mine.peers = (struct healer_peers){ peer_open, peer_close, io };
    mine.ask_uncommitted = ask_uncommitted;
    mine.ask_health = ask_health;
    mine.arg = io;
    return healer_open(&mine, &io->healer, err);
}

static bool on_close_idle(void *arg, unsigned below)
{
    struct healio *io = arg;

    daemon_close_idle(io->daemon, below);
    return false; /* the other loops close them later */
}

int healio_open(struct healio *io, struct storaged_daemon *d, const char *data_dir,
                const struct healer_config *config, struct err *err)
{
    int rc;

    io->daemon = d;
    rc = uv_loop_init(&io->loop);
    io->loop_open = rc == 0;
    if (rc == 0)
        rc = env_uv_init(&io->env, &io->loop);
    if (rc == 0)
        rc = capability_key_new(d->keys.node, 0, &io->key);
    if (rc != 0)
        return err_wrap(err, rc, "start the loop of healing");
    io->env.close_idle = on_close_idle;
    io->env.close_idle_arg = io;
    disk_uv_init(&io->disk, &io->env, d->dir_fd);
    rc = kv_open(io, data_dir, err);
    return rc == 0 ? healer_make(io, config, err) : rc;
}

void healio_run(struct healio *io)
{
    daemon_tell_phase_done(io->daemon, &io->to_first); /* the thread is running */
    uv_run(&io->loop, UV_RUN_DEFAULT);
}

void healio_free(struct healio *io)
{
    healer_close(io->healer); /* closes channels if it never ran */
    while (io->n_closing > 0)
        uv_run(&io->loop, UV_RUN_ONCE);
    if (io->env.impl != NULL)
        env_uv_close(&io->env);
    if (io->loop_open) {
        uv_run(&io->loop, UV_RUN_DEFAULT); /* closes handles */
        uv_loop_close(&io->loop);
    }
    kv_leveldb_close(io->kv);
    capability_key_free(io->key);
}
