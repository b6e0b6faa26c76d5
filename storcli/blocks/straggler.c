/*
 * straggler.c - which storages answer later than others do.
 *
 * In:     times of storages that were asked for equal amounts at one time, so that size
 *         and load make no difference; answers to probes. Thread: the env's.
 * Out:    peer->late; ST_READ of one head to late storages, while others read.
 * Keeps:  if all take equally long none is late; the end of lateness is noticed while
 *         others read or write, within a few probes.
 * Yours:  the limits, how fast lateness is learned and forgotten.
 */
#include "storcli/blocks/straggler.h"

#include <assert.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"

enum {
    LONG_MS = 1000,      /* late for so long: no hiccup, see straggler_for_long() */
    STRAGGLER_MS = 10,   /* later than the others by this, and more than twice as long */
    EXCESS_MAX_MS = 400, /* more is a matter of storages that hang */
    PAUSE_MIN_MS = 100,  /* between two probes */
    PAUSE_MAX_MS = 1600,
    /* late again so soon: probes do not show the cause, send half as many */
    RELAPSE_MS = 3000,
    PROBE_DEADLINE_MS = 1000,
};

void straggler_times_add(struct straggler_times *t, uint64_t took_ns)
{
    unsigned at = t->n++;

    assert(t->n <= DIST_MAX);
    for (; at > 0 && t->took_ns[at - 1] > took_ns; at--)
        t->took_ns[at] = t->took_ns[at - 1];
    t->took_ns[at] = took_ns;
}

void straggler_note_typical(struct storcli *cli, uint64_t took_ns)
{
    if (cli->read_latency_ns == 0)
        cli->read_latency_ns = took_ns;
    else
        cli->read_latency_ns =
            cli->read_latency_ns - cli->read_latency_ns / 4 + took_ns / 4;
}

static void become_straggler(struct storcli *cli, struct straggler *s)
{
    uint64_t now_ns = engine_now_ns(cli);
    bool relapse =
        s->fine_since_ns != 0 && now_ns - s->fine_since_ns < ms_to_ns(RELAPSE_MS);

    s->is_straggler = true;
    s->since_ns = now_ns;
    s->pause_ms = relapse ? s->pause_ms * 2 : PAUSE_MIN_MS;
    if (s->pause_ms > PAUSE_MAX_MS)
        s->pause_ms = PAUSE_MAX_MS;
    s->probe_ns = now_ns + ms_to_ns(s->pause_ms);
    cli->n_stragglers++;
}

/* Takes a new value of the excess; starts or ends lateness. */
static void excess_set(struct storcli *cli, struct straggler *s, uint64_t excess_ns)
{
    uint64_t limit_ns = ms_to_ns(STRAGGLER_MS) + cli->read_latency_ns;

    s->excess_ns = excess_ns;
    if (!s->is_straggler && excess_ns > limit_ns) {
        become_straggler(cli, s);
    } else if (s->is_straggler && excess_ns <= limit_ns / 2) {
        s->is_straggler = false;
        s->fine_since_ns = engine_now_ns(cli);
        cli->n_stragglers--;
    }
}

void straggler_note(struct storcli *cli, struct peer *peer, uint64_t excess_ns,
                    bool at_least)
{
    struct straggler *s = &peer->straggler;

    if (excess_ns > ms_to_ns(EXCESS_MAX_MS))
        excess_ns = ms_to_ns(EXCESS_MAX_MS);
    if (!at_least)
        excess_set(cli, s, s->excess_ns - s->excess_ns / 4 + excess_ns / 4);
    else if (excess_ns > s->excess_ns)
        excess_set(cli, s,
                   excess_ns); /* a storage that was not waited for is avoided at once */
}

static void on_probe_answer(struct rpc_request *rq, int rc)
{
    struct peer *peer = container_of(rq, struct peer, straggler.probe);
    struct straggler *s = &peer->straggler;
    struct storcli *cli = rq->arg;
    uint64_t now_ns = engine_now_ns(cli), took_ns = now_ns - s->sent_ns;
    uint64_t excess_ns =
        rc == 0 && took_ns > cli->read_latency_ns ? took_ns - cli->read_latency_ns : 0;

    s->probing = false;
    s->probe_ns = now_ns + ms_to_ns(s->is_straggler ? s->pause_ms : PAUSE_MIN_MS);
    if (rc != 0 || excess_ns > ms_to_ns(EXCESS_MAX_MS))
        excess_ns = ms_to_ns(EXCESS_MAX_MS);
    excess_set(cli, s, (s->excess_ns + excess_ns) / 2);
}

static void probe_send(struct storcli_file *file, unsigned candidate, uint64_t block)
{
    struct peer *peer = file->peer[candidate];
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(file, msg);

    req.projection = candidate < file->n ? candidate : PROJECTION_ANY;
    req.first_block = block;
    req.n_blocks = 1;
    req.to_storage = file->target.storages[candidate];
    req.heads_only = true;
    len += rozo__st_read_req__pack(&req, msg + len);
    peer->straggler.sent_ns = engine_now_ns(file->cli);
    peer->straggler.probing = true;
    peer->straggler.probe = (struct rpc_request){
        .op = ROZO__OP__ST_READ,
        .deadline_ms = PROBE_DEADLINE_MS,
        .msg = msg,
        .msg_len = len,
        .done = on_probe_answer,
        .arg = file->cli,
    };
    rpc_send(engine_channel(file, candidate), &peer->straggler.probe);
    peer->straggler.probe.msg = NULL; /* copied */
}

static bool probe_is_due(struct storcli_file *file, unsigned candidate)
{
    const struct straggler *s = &file->peer[candidate]->straggler;

    return !s->probing && engine_now_ns(file->cli) >= s->probe_ns &&
           engine_rank(file, candidate) <= PEER_SLOW;
}

void straggler_probe(struct storcli_file *file, uint64_t block)
{
    for (unsigned i = 0; i < file->c; i++) {
        if (file->peer[i]->straggler.is_straggler && probe_is_due(file, i))
            probe_send(file, i, block);
    }
}

void straggler_suspect(struct storcli_file *file, unsigned candidate, uint64_t block)
{
    if (!file->peer[candidate]->straggler.is_straggler && probe_is_due(file, candidate))
        probe_send(file, candidate, block);
}

bool straggler_for_long(const struct storcli *cli, const struct peer *peer)
{
    return peer->straggler.is_straggler &&
           env_now_ns(cli->env) - peer->straggler.since_ns >= ms_to_ns(LONG_MS);
}

void straggler_stop(struct peer *peer)
{
    if (peer->straggler.probing)
        rpc_cancel(&peer->straggler.probe);
    peer->straggler.probing = false;
}
