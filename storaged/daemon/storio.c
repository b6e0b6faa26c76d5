/*
 * storio.c - the loops of the storage daemon, and how requests and stops travel between
 * them.
 *
 * In:     calls from rpc_server, mail from other storios.
 * Out:    storage_handle() of the loop that owns the file.
 * Keeps:  a struct storage is touched by its own thread only; no mail goes to a loop that
 *         ended: stopping goes in phases, each begun when all have done the one before.
 */
#include "storaged/daemon/storio.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/log.h"

/* ---- requests that arrive on one loop and belong to another, or to the healer ---- */

/* A forwarded call. Its way: arrived -> owner -> (answer) arrived -> (sent) owner, freed
 * there. */
struct forward {
    struct rpc_call call;  /* the call as the owner sees it; first */
    struct rpc_call *real; /* call of the loop where it arrived, until it is answered */
    struct storio *arrived;
    struct env_uv *owner;
    rpc_handler_cb *handler; /* runs on the owner's thread */
    void *handler_arg;
    struct env_mail mail; /* has one destination at a time */
    uint16_t status;
    uint8_t *msg; /* owned copy of the answer's message */
    size_t msg_len;
    const struct rpc_seg *segs; /* borrowed from the owner until sent */
    unsigned n_segs;
    void (*sent)(void *arg);
    void *sent_arg;
};

static void storio_maybe_ended(struct storio *io);

static void on_forward_done(struct env_mail *mail)
{
    struct forward *f = container_of(mail, struct forward, mail);

    if (f->sent != NULL)
        f->sent(f->sent_arg);
    free(f->msg);
    free(f);
}

static void on_forward_sent(void *arg)
{
    struct forward *f = arg;
    struct storio *io = f->arrived;

    f->mail.fn = on_forward_done;
    env_mailbox_post(f->owner, &f->mail);
    io->n_forwarded--;
    storio_maybe_ended(io);
}

static void on_forward_answer(struct env_mail *mail)
{
    struct forward *f = container_of(mail, struct forward, mail);

    rpc_reply(f->real, f->status, f->msg, f->msg_len, f->segs, f->n_segs, on_forward_sent,
              f);
}

static void forward_reply(struct rpc_call *call, uint16_t status, const void *msg,
                          size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                          void (*sent)(void *arg), void *arg)
{
    struct forward *f = (struct forward *)call;

    f->status = status;
    f->msg = malloc(msg_len + 1);
    if (f->msg == NULL) {
        f->status = ROZO__STATUS__NO_MEMORY;
        msg_len = 0;
        n_segs = 0;
    } else if (msg_len > 0) {
        memcpy(f->msg, msg, msg_len);
    }
    f->msg_len = msg_len;
    f->segs = segs;
    f->n_segs = n_segs;
    f->sent = sent;
    f->sent_arg = arg;
    f->mail.fn = on_forward_answer;
    env_mailbox_post(&f->arrived->env, &f->mail);
}

static const struct rpc_call_ops forward_ops = { .reply = forward_reply };

static void on_forward_call(struct env_mail *mail)
{
    struct forward *f = container_of(mail, struct forward, mail);

    f->handler(f->handler_arg, &f->call);
}

static void storio_forward(struct storio *io, struct env_uv *owner,
                           rpc_handler_cb *handler, void *handler_arg,
                           struct rpc_call *call)
{
    struct forward *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        return;
    }
    f->call = *call;
    f->call.ops = &forward_ops;
    f->real = call;
    f->arrived = io;
    f->owner = owner;
    f->handler = handler;
    f->handler_arg = handler_arg;
    f->mail.fn = on_forward_call;
    io->n_forwarded++;
    env_mailbox_post(owner, &f->mail);
}

static void on_call(void *arg, struct rpc_call *call)
{
    struct storio *io = arg;
    struct storaged_daemon *d = io->daemon;
    struct storio *owner;

    if (healer_serves(call->op)) {
        storio_forward(io, &d->healio.env, healer_handle, d->healio.healer, call);
        return;
    }
    owner = d->n_storios == 1
                ? io
                : &d->storios[storage_route(call->op, call->msg, call->msg_len) %
                              d->n_storios];

    if (owner == io)
        storage_handle(io->storage, call);
    else
        storio_forward(io, &owner->env, storage_handle, owner->storage, call);
}

/* ---- a new identity, which every listener sends in its Hellos ---- */

static void on_identity_mail(struct env_mail *mail)
{
    struct storio *io = container_of(mail, struct storio, identity_mail);

    if (io->server != NULL)
        rpc_server_set_cluster_id(io->server, io->daemon->identity.cluster_id);
}

/* Distributes the new identity. On the first loop, once in the life of a data
 * directory. */
static void on_admitted(void *arg)
{
    struct storaged_daemon *d = arg;

    for (unsigned i = 0; i < d->n_storios; i++) {
        d->storios[i].identity_mail.fn = on_identity_mail;
        env_mailbox_post(&d->storios[i].env, &d->storios[i].identity_mail);
    }
}

/* ---- when descriptors run out ---- */

static void on_idle_mail(struct env_mail *mail)
{
    struct storio *io = container_of(mail, struct storio, idle_mail);
    unsigned below = atomic_exchange(&io->idle_below, 0);

    if (io->storage != NULL)
        storage_close_idle(io->storage, below);
}

void daemon_close_idle(struct storaged_daemon *d, unsigned below)
{
    for (unsigned i = 0; i < d->n_storios; i++) {
        struct storio *io = &d->storios[i];

        if (io->env.impl == NULL || atomic_exchange(&io->idle_below, below) != 0)
            continue;
        io->idle_mail.fn = on_idle_mail;
        env_mailbox_post(&io->env, &io->idle_mail);
    }
}

/* Closes idle files of this loop now. If it has none, asks the other loops to close some
 * of theirs a moment later. */
static bool on_close_idle(void *arg, unsigned below)
{
    struct storio *io = arg;

    if (io->storage != NULL && storage_close_idle(io->storage, below))
        return true;
    daemon_close_idle(io->daemon, below);
    return false;
}

/* ---- start and stop in phases ---- */

static void on_phase(struct env_mail *mail);

static void on_healio_phase(struct env_mail *mail)
{
    struct healio *io = container_of(mail, struct healio, to_us);

    healio_phase(io, io->daemon->phase);
}

/* Lets every loop begin the next phase. On the first loop's thread. */
static void next_phase(struct storaged_daemon *d)
{
    d->phase++;
    d->n_done = 0;
    for (unsigned i = 0; i < d->n_storios; i++) {
        d->storios[i].to_us.fn = on_phase;
        env_mailbox_post(&d->storios[i].env, &d->storios[i].to_us);
    }
    d->healio.to_us.fn = on_healio_phase;
    env_mailbox_post(&d->healio.env, &d->healio.to_us);
}

static void phase_done(struct storaged_daemon *d)
{
    if (++d->n_done < d->n_storios + 1 || d->phase == PHASE_END)
        return;
    if (d->phase == PHASE_SERVING) {
        d->serving = true;
        d->on_serving();
    }
    if (d->phase != PHASE_SERVING || d->stop_wanted)
        next_phase(d);
}

static void on_storio_phase_done(struct env_mail *mail)
{
    phase_done(container_of(mail, struct storio, to_first)->daemon);
}

static void tell_phase_done(struct storio *io)
{
    io->to_first.fn = on_storio_phase_done;
    env_mailbox_post(&io->daemon->storios[0].env, &io->to_first);
}

static void on_healio_phase_done(struct env_mail *mail)
{
    phase_done(container_of(mail, struct healio, to_first)->daemon);
}

void daemon_tell_phase_done(struct storaged_daemon *d, struct env_mail *mail)
{
    mail->fn = on_healio_phase_done;
    env_mailbox_post(&d->storios[0].env, mail);
}

static void storio_maybe_ended(struct storio *io)
{
    if (io->closed && io->n_forwarded == 0) {
        io->closed = false; /* only once */
        tell_phase_done(io);
    }
}

static void on_server_closed(void *arg)
{
    struct storio *io = arg;

    io->server = NULL;
    io->closed = true;
    storio_maybe_ended(io);
}

static void on_storage_stopped(void *arg)
{
    tell_phase_done(arg);
}

/* Begins a phase. daemon->phase was written before the mail and does not change until
 * this loop reports. */
static void on_phase(struct env_mail *mail)
{
    struct storio *io = container_of(mail, struct storio, to_us);

    switch (io->daemon->phase) {
    case PHASE_SERVING:
        storage_serve(io->storage);
        tell_phase_done(io);
        break;
    case PHASE_STOP_HEALER: /* the healer is a client of this loop */
        tell_phase_done(io);
        break;
    case PHASE_STOP_STORAGE:
        storage_stop(io->storage, on_storage_stopped, io);
        break;
    case PHASE_CLOSE_SERVER:
        rpc_server_close(io->server, on_server_closed, io);
        break;
    case PHASE_END:
        storage_close(io->storage); /* stops timers of the env */
        io->storage = NULL;
        env_uv_close(&io->env);
        break;
    }
}

void daemon_stop(struct storaged_daemon *d)
{
    assert(d->phase <= PHASE_SERVING && !d->stop_wanted);
    sync_generation_stop(&d->sync_generation);
    /* A phase begins only when all loops have done the one before. */
    d->stop_wanted = true;
    if (d->serving)
        next_phase(d);
}

/* ---- open, run, free ---- */

int storio_open(struct storio *io, struct storaged_daemon *d, unsigned index,
                const char *address, struct err *err)
{
    struct rpc_server_config config = {
        .keys = &d->keys,
        .name = "storaged",
        .conns_max = d->conns_max,
        .handler = on_call,
        .arg = io,
        .cluster_id = d->identity.cluster_id,
        .incarnation = d->identity.incarnation,
    };
    int rc;

    io->daemon = d;
    io->index = index;
    rc = uv_loop_init(&io->loop);
    io->loop_open = rc == 0;
    if (rc == 0)
        rc = env_uv_init(&io->env, &io->loop);
    if (rc == 0)
        rc = capability_key_new(d->keys.node, 0, &io->key);
    if (rc != 0)
        return err_wrap(err, rc, "start a loop");
    io->env.close_idle = on_close_idle;
    io->env.close_idle_arg = io;
    disk_uv_init(&io->disk, &io->env, d->dir_fd);
    return rpc_server_open(&io->env, &config, &address, 1, &io->server, err);
}

/* Ends the process if the journal cannot be used: nothing was acknowledged yet, though
 * other loops may run already. */
static void on_storage_started(void *arg, int rc)
{
    if (rc != 0) {
        log_error("the journal cannot be used: %s", error_text(rc));
        exit(1);
    }
    tell_phase_done(arg);
}

static void on_handoff(void *arg, const struct storage_handoff *what)
{
    struct storio *io = arg;

    healio_handoff(&io->daemon->healio, &io->n_handoff, what);
}

static void on_damaged(void *arg, const struct storage_damaged *what)
{
    struct storio *io = arg;

    healio_damaged(&io->daemon->healio, &io->n_handoff, what);
}

int storio_start(struct storio *io, const struct storage_config *config, struct err *err)
{
    struct storage_config mine = *config;
    int rc;

    mine.env = &io->env.env;
    mine.disk = &io->disk.disk;
    mine.identity = &io->daemon->identity;
    mine.revoked = &io->daemon->revoked;
    mine.n_loops = io->daemon->n_storios;
    mine.loop = io->index;
    mine.generations = &io->daemon->generations;
    mine.key = io->key;
    mine.admitted = on_admitted;
    mine.arg = io->daemon;
    mine.handoff = on_handoff;
    mine.handoff_arg = io;
    mine.damaged = on_damaged;
    mine.damaged_arg = io;
    rc = storage_open(&mine, &io->storage);
    if (rc != 0)
        return err_wrap(err, rc, "start");
    storage_start(io->storage, on_storage_started, io); /* continues when the loop runs */
    return 0;
}

void storio_run(struct storio *io)
{
    uv_run(&io->loop, UV_RUN_DEFAULT);
}

static void on_server_given_up(void *arg)
{
    struct storio *io = arg;

    io->server = NULL;
}

void storio_free(struct storio *io)
{
    if (io->server != NULL) /* the loop never ran */
        rpc_server_close(io->server, on_server_given_up, io);
    while (io->server != NULL)
        uv_run(&io->loop, UV_RUN_ONCE);
    storage_close(io->storage); /* stops timers of the env */
    if (io->env.impl != NULL)
        env_uv_close(&io->env);
    capability_key_free(io->key);
    if (io->loop_open) {
        uv_run(&io->loop, UV_RUN_DEFAULT); /* closes handles */
        uv_loop_close(&io->loop);
    }
}
