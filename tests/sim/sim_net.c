/*
 * sim_net.c - storages and a network in memory, on a virtual clock, with faults.
 *
 * In:     rpc_send(), rpc_cancel() of the engine under test. Thread: one.
 * Out:    answers as of real storages; the seed decides their times and order.
 * Keeps:  a payload is read only while the engine must keep it: when the request leaves,
 *         which may be long after rpc_send(), and never after a cancel.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "tests/sim/sim_net_in.h"

enum { RESEND_MS = 50 };

/* ---- the network ---- */

static uint64_t below(struct sim_net *net, uint64_t bound)
{
    return env_virtual_below(net->v, bound);
}

static void request_free(struct sim_request *r)
{
    struct sim_net *net = r->channel->net;
    struct sim_request **link = &net->requests;

    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    env_timer_stop(&net->v->env, &r->timer);
    env_timer_stop(&net->v->env, &r->deadline);
    free(r->msg);
    free(r->payload);
    free(r->answer_msg);
    free(r->answer);
    free(r);
}

static void request_at(struct sim_request *r, enum leg leg, uint64_t after_ms)
{
    r->leg = leg;
    env_timer_start(&r->channel->net->v->env, &r->timer, after_ms);
}

static uint64_t message_delay(struct sim_net *net)
{
    return below(net, net->delay_ms + 1);
}

/* The link broke: drops the answer, if any; the channel sends the request again. */
static void request_again(struct sim_request *r)
{
    free(r->answer_msg);
    free(r->answer);
    r->answer_msg = r->answer = NULL;
    r->answer_msg_len = r->answer_len = 0;
    if (r->rq == NULL)
        request_free(r);
    else
        request_at(r, LEG_QUEUED, RESEND_MS);
}

static void payload_gather(struct sim_request *r)
{
    const struct rpc_request *rq = r->rq;
    size_t at = 0;

    free(r->payload);
    r->payload_len = 0;
    for (unsigned i = 0; i < rq->n_payload; i++)
        r->payload_len += rq->payload[i].iov_len;
    r->payload = malloc(r->payload_len + 1);
    assert(r->payload != NULL && rq->n_payload <= RPC_IOV_MAX);
    for (unsigned i = 0; i < rq->n_payload; i++) {
        memcpy(r->payload + at, rq->payload[i].iov_base, rq->payload[i].iov_len);
        at += rq->payload[i].iov_len;
    }
}

static void answer_scatter(struct rpc_request *rq, const uint8_t *from,
                           const struct iovec *iov, unsigned n_iov, size_t len)
{
    size_t at = 0;

    for (unsigned i = 0; i < n_iov; i++) {
        assert(at + iov[i].iov_len <= len);
        memcpy(iov[i].iov_base, from + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert(at == len); /* place() must describe exactly the whole answer */
    (void)rq;
}

static int answer_receive(struct sim_request *r, struct rpc_request *rq)
{
    size_t head = r->answer_len < rq->recv_head_len ? r->answer_len : rq->recv_head_len;
    struct iovec iov[RPC_IOV_MAX];
    int n;

    rq->answer_payload_len = r->answer_len;
    rq->answer_payload = NULL;
    if (rq->place == NULL) {
        rq->answer_payload = r->answer;
        return 0;
    }
    if (head > 0)
        memcpy(rq->recv_head, r->answer, head);
    if (r->answer_len == head)
        return 0;
    n = rq->place(rq, r->answer_len - head, iov);
    if (n < 0)
        return n;
    answer_scatter(rq, r->answer + head, iov, (unsigned)n, r->answer_len - head);
    return 0;
}

static void request_done(struct sim_request *r, int rc)
{
    struct rpc_request *rq = r->rq;

    r->rq = NULL;
    env_timer_stop(&r->channel->net->v->env, &r->deadline);
    if (rq == NULL)
        return;
    rq->status = r->status;
    rq->answer_msg = r->answer_msg;
    rq->answer_msg_len = r->answer_msg_len;
    if (rc == 0)
        rc = answer_receive(r, rq);
    rq->done(rq, rc);
}

static bool is_away(const struct sim_storage *s)
{
    return s->state == SIM_DOWN || s->state == SIM_CONNECTING;
}

static void request_arrives(struct sim_request *r)
{
    struct sim_storage *s = r->channel->storage;
    struct sim_net *net = r->channel->net;

    if (s->state == SIM_HUNG)
        r->leg = LEG_KEPT;
    else
        request_at(r, LEG_WORKING, s->slow_ms == 0 ? 0 : below(net, s->slow_ms));
}

static void request_leaves(struct sim_request *r)
{
    struct sim_net *net = r->channel->net;
    struct sim_storage *s = r->channel->storage;

    if (r->rq == NULL) {
        request_free(r);
        return;
    }
    if (r->channel->is_dead)
        return; /* the request stays in the queue forever */
    if (is_away(s)) {
        request_at(r, LEG_QUEUED, RESEND_MS);
        return;
    }
    payload_gather(r);
    if (s->state == SIM_HUNG && r->channel->suspect_at_ns == 0)
        r->channel->suspect_at_ns = net->v->now_ns + (uint64_t)SIM_SUSPECT_MS * 1000000;
    request_at(r, LEG_TO, message_delay(net));
}

static void on_request_timer(struct env_timer *timer)
{
    struct sim_request *r = container_of(timer, struct sim_request, timer);
    struct sim_net *net = r->channel->net;
    struct sim_storage *s = r->channel->storage;
    bool lost = is_away(s) || (s->lossy_ppm != 0 && below(net, 1000000) < s->lossy_ppm);

    switch (r->leg) {
    case LEG_QUEUED:
        request_leaves(r);
        return;
    case LEG_TO:
        if (lost)
            request_again(r);
        else
            request_arrives(r);
        return;
    case LEG_WORKING:
        if (s->state == SIM_HUNG) {
            r->leg = LEG_KEPT;
            return;
        }
        if (is_away(s)) {
            request_again(r);
            return;
        }
        r->status = storage_carry_out(net, s, r);
        request_at(r, LEG_ANSWERED, message_delay(net) + s->late_ms);
        return;
    case LEG_ANSWERED:
        if (lost) {
            request_again(r);
            return;
        }
        if (r->channel->is_dead)
            return;
        r->channel->suspect_at_ns = 0;
        request_done(r, 0);
        request_free(r);
        return;
    case LEG_KEPT:
        assert(false);
    }
}

static void on_request_deadline(struct env_timer *timer)
{
    struct sim_request *r = container_of(timer, struct sim_request, deadline);

    request_done(r, -ETIMEDOUT); /* the copy in transit still arrives */
}

static void sim_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct sim_channel *channel = container_of(ch, struct sim_channel, ch);
    struct sim_request *r = calloc(1, sizeof(*r));

    assert(r != NULL && rq->deadline_ms != 0);
    r->channel = channel;
    r->rq = rq;
    rq->impl = r;
    r->op = rq->op;
    r->session = rq->session;
    r->msg = malloc(rq->msg_len + 1);
    assert(r->msg != NULL);
    memcpy(r->msg, rq->msg, rq->msg_len);
    r->msg_len = rq->msg_len;
    r->next = channel->net->requests;
    channel->net->requests = r;
    env_timer_init(&r->timer, on_request_timer);
    env_timer_init(&r->deadline, on_request_deadline);
    env_timer_start(&channel->net->v->env, &r->deadline, rq->deadline_ms);
    request_at(r, LEG_QUEUED, below(channel->net, 2));
}

static void sim_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct sim_request *r = rq->impl;

    assert(r->rq == rq && &r->channel->ch == ch);
    r->rq = NULL;
    env_timer_stop(&r->channel->net->v->env, &r->deadline);
}

static enum rpc_health sim_health(struct rpc_channel *ch)
{
    const struct sim_channel *channel = container_of(ch, struct sim_channel, ch);

    if (channel->storage->state == SIM_DOWN)
        return RPC_DOWN;
    if (channel->storage->state == SIM_CONNECTING)
        return RPC_CONNECTING;
    if (channel->suspect_at_ns != 0 && channel->net->v->now_ns >= channel->suspect_at_ns)
        return RPC_SUSPECT;
    return RPC_UP;
}

void sim_net_kill_client(struct sim_net *net, unsigned client)
{
    for (unsigned i = 0; i < net->n_storages; i++)
        net->channels[client][i].is_dead = true;
    for (struct sim_request *r = net->requests; r != NULL; r = r->next) {
        if (r->channel->is_dead && r->leg == LEG_TO && below(net, 2) == 0)
            request_at(r, LEG_QUEUED, 0);
    }
}

static const struct rpc_channel_ops sim_channel_ops = {
    .send = sim_send,
    .cancel = sim_cancel,
    .health = sim_health,
};

/* ---- set-up and faults ---- */

void sim_net_init(struct sim_net *net, struct env_virtual *v, unsigned kind,
                  unsigned layout, unsigned n_storages)
{
    memset(net, 0, sizeof(*net));
    assert(n_storages <= SIM_STORAGES_MAX);
    net->v = v;
    net->codec = codec_get(kind, layout, 8192);
    net->n_storages = n_storages;
    net->delay_ms = 2;
    net->target = (struct storcli_target){
        .id = { .export_id = 1, .generation = 7, .ino = 42 },
        .codec = (uint8_t)kind,
        .layout = (uint8_t)layout,
        .block_bytes = 8192,
        .n_storages = (uint8_t)n_storages,
        .capability = { 1, 2, 3 },
        .capability_len = 16,
    };
    for (unsigned i = 0; i < n_storages; i++) {
        net->target.storages[i] = i + 1;
        net->storages[i].id = i + 1;
        net->storages[i].verifier = i + 100;
        net->storages[i].projections =
            calloc(CODEC_N_MAX, sizeof(*net->storages[i].projections));
        assert(net->storages[i].projections != NULL);
        for (unsigned client = 0; client < SIM_CLIENTS_MAX; client++) {
            net->channels[client][i] = (struct sim_channel){
                .ch = { .ops = &sim_channel_ops },
                .net = net,
                .storage = &net->storages[i],
            };
        }
    }
}

void sim_net_close(struct sim_net *net)
{
    assert(net->n_bad == 0 && net->n_unsafe == 0);
    while (net->requests != NULL)
        request_free(net->requests);
    for (unsigned i = 0; i < net->n_storages; i++) {
        for (unsigned j = 0; j < CODEC_N_MAX; j++) {
            for (unsigned b = 0; b < SIM_BLOCKS; b++) {
                record_set(&net->storages[i].projections[j].now[b], 0, NULL, 0);
                record_set(&net->storages[i].projections[j].stable[b], 0, NULL, 0);
                older_forget(&net->storages[i].projections[j].older[b], UINT64_MAX);
                free(net->storages[i].projections[j].older[b].v);
            }
        }
        free(net->storages[i].projections);
    }
}

static struct rpc_channel *peers_channel(void *arg, uint32_t storage_id)
{
    struct sim_channel *channels = arg;

    if (storage_id == 0 || storage_id > channels[0].net->n_storages)
        return NULL;
    return &channels[storage_id - 1].ch;
}

struct storcli_peers sim_net_peers(struct sim_net *net, unsigned client)
{
    return (struct storcli_peers){ .channel = peers_channel,
                                   .arg = net->channels[client] };
}

void sim_storage_set(struct sim_net *net, unsigned storage, enum sim_state state)
{
    struct sim_storage *s = &net->storages[storage];
    bool was_hung = s->state == SIM_HUNG;

    s->state = state;
    if (!was_hung || state == SIM_HUNG)
        return;
    for (unsigned client = 0; client < SIM_CLIENTS_MAX; client++)
        net->channels[client][storage].suspect_at_ns = 0;
    for (struct sim_request *r = net->requests; r != NULL; r = r->next) {
        if (r->channel->storage == s && r->leg == LEG_KEPT) /* cancelled ones, too */
            request_at(r, LEG_WORKING, below(net, 5));
    }
}

void sim_storage_power_cut(struct sim_net *net, unsigned storage)
{
    struct sim_storage *s = &net->storages[storage];

    s->verifier += 1000;
    s->n_unstable = 0;
    for (unsigned i = 0; i < CODEC_N_MAX; i++) {
        struct sim_projection *p = &s->projections[i];

        p->here = p->here_stable;
        p->tail_version = p->tail_stable;
        for (unsigned b = 0; b < SIM_BLOCKS; b++) {
            older_forget_from(&p->older[b], p->stable[b].version);
            record_copy(&p->now[b], &p->stable[b]);
        }
    }
}

void sim_storage_apply(struct sim_net *net, unsigned storage)
{
    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        struct sim_projection *p = &net->storages[storage].projections[i];

        for (unsigned b = 0; p->here && b < SIM_BLOCKS; b++) {
            if (p->older[b].n > 0)
                block_apply(net, p, b, p->now[b].version);
        }
    }
}

void sim_storage_swap(struct sim_net *net, unsigned storage, unsigned block)
{
    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        struct sim_projection *p = &net->storages[storage].projections[i];
        struct sim_older *older = &p->older[block];
        struct sim_record record = p->now[block];

        if (older->n == 0)
            continue;
        p->now[block] = older->v[older->n - 1];
        older->v[older->n - 1] = record;
    }
}

bool sim_storage_rot(struct sim_net *net, unsigned storage, unsigned projection,
                     unsigned block)
{
    struct sim_record *record =
        &net->storages[storage].projections[projection].now[block];
    uint8_t *bytes;
    uint64_t bit;

    if (record->bytes == NULL)
        return false;
    bytes = bytes_new(record->len); /* the stable copy stays intact */
    memcpy(bytes, record->bytes, record->len);
    bit = below(net, record->len * 8ull);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    record_set(record, record->version, bytes, record->len);
    return true;
}

static bool record_is_right(const struct sim_net *net, const struct sim_record *record,
                            unsigned projection, unsigned block)
{
    size_t head = head_bytes(net, projection);
    struct record_header h;

    if (record->bytes == NULL)
        return true;
    return record_inspect(record->bytes, file_id_hash(&net->target.id), block, projection,
                          net->target.block_bytes, &h) == RECORD_IS_DATA &&
           record_crc(record->bytes, record->bytes + RECORD_HEADER_BYTES,
                      head - RECORD_HEADER_BYTES, record->bytes + head,
                      record->len - head) == h.crc;
}

void sim_net_dump(const struct sim_net *net, unsigned block)
{
    static const char *const states[] = { "up", "down", "hung" };

    for (unsigned i = 0; i < net->n_storages; i++) {
        const struct sim_storage *s = &net->storages[i];

        fprintf(stderr, "storage %u %s refuses %u %u:", i, states[s->state],
                s->refuse_writes, s->refuse_all);
        for (unsigned j = 0; j < codec_n(net->codec); j++) {
            const struct sim_projection *p = &s->projections[j];

            if (p->here)
                fprintf(stderr, " p%u %s %llx (stable %llx)", j,
                        p->now[block].bytes == NULL ? "hole" : "data",
                        (unsigned long long)p->now[block].version,
                        (unsigned long long)p->stable[block].version);
            for (unsigned o = p->older[block].n; p->here && o > 0; o--)
                fprintf(stderr, " over %llx",
                        (unsigned long long)p->older[block].v[o - 1].version);
        }
        fprintf(stderr, "\n");
    }
}

unsigned sim_net_count(struct sim_net *net, unsigned block, uint64_t version, bool stable,
                       uint32_t away)
{
    uint32_t projections = 0, hole_storages = 0;

    for (unsigned i = 0; i < net->n_storages; i++) {
        for (unsigned j = 0; j < codec_n(net->codec) && (away >> i & 1) == 0; j++) {
            const struct sim_projection *p = &net->storages[i].projections[j];
            const struct sim_record *record = stable ? &p->stable[block] : &p->now[block];

            if (!(stable ? p->here_stable : p->here) || record->version != version ||
                !record_is_right(net, record, j, block))
                continue;
            if (record->bytes == NULL)
                hole_storages |= 1u << i;
            else
                projections |= 1u << j;
        }
    }
    return (unsigned)__builtin_popcount(projections != 0 ? projections : hole_storages);
}

uint64_t sim_net_newest(const struct sim_net *net, unsigned block)
{
    uint64_t newest = 0;

    for (unsigned i = 0; i < net->n_storages; i++) {
        for (unsigned j = 0; j < codec_n(net->codec); j++) {
            const struct sim_projection *p = &net->storages[i].projections[j];

            if (p->here && p->now[block].version > newest)
                newest = p->now[block].version;
        }
    }
    return newest;
}

unsigned sim_net_count_since(struct sim_net *net, unsigned block, uint64_t version)
{
    uint32_t storages = 0;

    for (unsigned i = 0; i < net->n_storages; i++) {
        for (unsigned j = 0; j < codec_n(net->codec); j++) {
            const struct sim_projection *p = &net->storages[i].projections[j];

            if (p->here_stable && p->stable[block].version >= version)
                storages |= 1u << i;
        }
    }
    return (unsigned)__builtin_popcount(storages);
}

unsigned sim_net_most_since(struct sim_net *net, unsigned block, uint64_t version)
{
    unsigned most = 0;

    for (unsigned i = 0; i < net->n_storages; i++) {
        for (unsigned j = 0; j < codec_n(net->codec); j++) {
            const struct sim_projection *p = &net->storages[i].projections[j];
            uint64_t v = p->stable[block].version;
            unsigned n = 0;

            if (p->here_stable && v >= version)
                n = sim_net_count(net, block, v, true, 0);
            most = n > most ? n : most;
        }
    }
    return most;
}
