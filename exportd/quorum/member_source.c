/*
 * member_source.c - gives other members chunks of the store and entries of the log.
 *
 * In:     RF_SEED, RF_FETCH. Out: jobs for the kv's side, reads of the log, answers.
 * Keeps:  only committed entries are given. I9: few questions are answered at a time,
 *         others are refused and asked again.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/base/log.h"
#include "exportd/quorum/member_in.h"

/* Frees what an answer consists of: its bytes are with the transport. */
static void source_free(void *arg)
{
    struct member_source *s = arg;

    for (unsigned i = 0; i < s->log.n; i++)
        quorum_entry_free(s->entries[i]);
    seed_job_free(s->job);
    free(s);
}

/* The question is answered, or has failed. */
static void source_leave(struct member_source *s)
{
    struct member *m = s->m;

    list_remove(&s->link);
    m->n_sources--;
    member_stop_look(m);
}

static void source_fail(struct member_source *s, uint16_t status)
{
    rpc_reply_status(s->call, status);
    source_leave(s);
    source_free(s);
}

/* ---- the log ---- */

static void log_send(struct member_source *s)
{
    struct rpc_seg segs[2 * SEED_ENTRIES_MAX];
    uint8_t head[SEED_LOG_BYTES];
    uint32_t crc = codec_crc32c(0, NULL, 0);

    for (unsigned i = 0; i < s->log.n; i++) {
        const struct raft_log_entry *e = &s->entries[i]->e;

        seed_row_put(s->rows[i], e);
        crc = codec_crc32c(crc, s->rows[i], SEED_ROW_BYTES);
        crc = codec_crc32c(crc, e->data, e->len);
        segs[2 * i] = (struct rpc_seg){ .base = s->rows[i], .len = SEED_ROW_BYTES };
        segs[2 * i + 1] = (struct rpc_seg){ .base = e->data, .len = e->len };
    }
    seed_log_encode(&s->log, crc, head);
    source_leave(s);
    if (s->log.n == 0) {
        rpc_reply(s->call, ROZO__STATUS__OK, head, sizeof(head), NULL, 0, NULL, NULL);
        source_free(s);
    } else {
        rpc_reply(s->call, ROZO__STATUS__OK, head, sizeof(head), segs, 2 * s->log.n,
                  source_free, s);
    }
}

static void log_next(struct member_source *s);

static void on_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry)
{
    struct member_source *s = container_of(r, struct member_source, read);

    if (rc != 0 || s->m->state != MEMBER_RUNS) {
        quorum_entry_free(entry);
        source_fail(s, ROZO__STATUS__BUSY);
        return;
    }
    s->len += entry->e.len;
    s->entries[s->log.n++] = entry;
    log_next(s);
}

/* Takes the next entry; sends when enough are there. */
static void log_next(struct member_source *s)
{
    struct quorum_log *log = s->m->log;

    while (s->log.n < SEED_ENTRIES_MAX) {
        uint64_t index = s->log.index + s->log.n;
        struct quorum_entry *entry;

        if (index < quorum_log_first(log) || index > quorum_log_last(log) ||
            index > s->log.commit ||
            (s->log.n > 0 &&
             s->len + quorum_log_get(log, index, NULL).len > SEED_PAYLOAD))
            break;
        quorum_log_get(log, index, &entry);
        if (entry == NULL) {
            s->read = (struct quorum_log_read){ .index = index, .done = on_read };
            quorum_log_read(log, &s->read);
            return;
        }
        s->len += entry->e.len;
        s->entries[s->log.n++] = quorum_entry_use(entry);
    }
    log_send(s);
}

/* Makes a barrier, or looks how far the one is that was asked for. */
static void barrier_look(struct member *m, const struct seed_ask *ask,
                         struct seed_log *log)
{
    if (ask->barrier != 0 && ask->barrier_term == m->term) {
        log->barrier = ask->barrier;
        log->is_held = raft_core_is_held(m->core, ask->barrier, ask->from);
        return;
    }
    member_event(m, raft_core_barrier(m->core, member_now_ns(m), &log->barrier));
}

static void log_give(struct member_source *s)
{
    struct member *m = s->m;

    s->log.leads = member_leads_for_sure(m);
    s->log.term = m->term;
    if (s->log.leads && s->ask.wants_barrier)
        barrier_look(m, &s->ask, &s->log);
    if (m->state != MEMBER_RUNS || s->ask.index == 0) {
        source_fail(s, ROZO__STATUS__BUSY);
        return;
    }
    member_log_range(m, &s->log.first, &s->log.last);
    s->log.commit = m->stable; /* no loss of power takes these back */
    s->log.index = s->ask.index;
    log_next(s);
}

/* ---- the store ---- */

void member_source_read(struct member *m, struct seed_job *job)
{
    struct member_source *s = job->arg;
    uint8_t head[SEED_CHUNK_BYTES_MAX];
    struct rpc_seg seg = { .base = job->bytes, .len = job->len };
    size_t len;

    assert(s->m == m && s->job == job);
    if (job->rc == -EFBIG)
        log_error("quorum: a key or value is too large to be copied to another member");
    if (job->rc != 0 || m->state != MEMBER_RUNS || job->chunk.applied == 0) {
        source_fail(s, ROZO__STATUS__BUSY);
        return;
    }
    len = seed_chunk_encode(&job->chunk, job->bytes, job->len, head);
    source_leave(s);
    if (job->len == 0) {
        rpc_reply(s->call, ROZO__STATUS__OK, head, len, NULL, 0, NULL, NULL);
        source_free(s);
    } else {
        rpc_reply(s->call, ROZO__STATUS__OK, head, len, &seg, 1, source_free, s);
    }
}

static void store_give(struct member_source *s)
{
    struct member *m = s->m;

    s->job = calloc(1, sizeof(*s->job));
    if (s->job == NULL) {
        source_fail(s, ROZO__STATUS__BUSY);
        return;
    }
    s->job->kind = SEED_JOB_READ;
    s->job->mark.cursor = s->ask.after;
    s->job->arg = s;
    m->n_jobs++;
    m->config.hooks.seed(m->config.hooks.arg, s->job);
}

void member_source_handle(struct member *m, struct rpc_call *call)
{
    struct member_source *s = NULL;
    struct seed_ask ask;

    if (!member_ask_read(m, call, &ask))
        return;
    if (m->state == MEMBER_RUNS && m->n_sources < SOURCES_MAX)
        s = calloc(1, sizeof(*s));
    if (s == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    s->m = m;
    s->call = call;
    s->ask = ask;
    list_add_tail(&m->sources, &s->link);
    m->n_sources++;
    if (call->op == ROZO__OP__RF_SEED && m->config.is_witness)
        source_fail(s, ROZO__STATUS__NOT_SUPPORTED); /* there is no store here */
    else if (call->op == ROZO__OP__RF_SEED)
        store_give(s);
    else
        log_give(s);
}
