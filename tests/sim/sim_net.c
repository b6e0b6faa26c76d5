/*
 * sim_net.c - storages and a network in memory, on a virtual clock, with faults.
 *
 * In:     rpc_send(), rpc_cancel() of the engine under test. Thread: one.
 * Out:    answers as a storage would give them, at times and in an order that follow from the seed.
 * Keeps:  a payload is looked at only while the engine owes it: gathered when the request leaves,
 *         which may be late, and never after a cancel.
 */
#include "tests/sim/sim_net.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/bytes.h"

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

enum { RESEND_MS = 50 };

/* Where a request is on its way. */
enum leg {
    LEG_QUEUED,   /* not sent: its payload is still the caller's */
    LEG_TO,       /* on its way, a copy */
    LEG_KEPT,     /* at a storage that hangs */
    LEG_WORKING,  /* the storage works on it */
    LEG_ANSWERED, /* the answer is on its way */
};

struct sim_request {
    struct sim_request *next;
    struct sim_channel *channel;
    struct rpc_request *rq; /* NULL: cancelled or over */
    enum leg leg;
    struct env_timer timer, deadline;
    uint16_t op;
    uint8_t *msg, *payload; /* owned */
    size_t msg_len, payload_len;
    uint16_t status;
    uint8_t *answer_msg, *answer; /* owned */
    size_t answer_msg_len, answer_len;
};

/* ---- counted bytes of records ---- */

static uint8_t *bytes_new(size_t len)
{
    uint32_t *p = malloc(sizeof(uint64_t) + len);

    assert(p != NULL);
    p[0] = 1;
    return (uint8_t *)p + sizeof(uint64_t);
}

static uint8_t *bytes_ref(uint8_t *bytes)
{
    if (bytes != NULL)
        ++*(uint32_t *)(void *)(bytes - sizeof(uint64_t));
    return bytes;
}

static void bytes_unref(uint8_t *bytes)
{
    uint32_t *p = bytes == NULL ? NULL : (uint32_t *)(void *)(bytes - sizeof(uint64_t));

    if (p != NULL && --p[0] == 0)
        free(p);
}

static void record_set(struct sim_record *record, uint64_t version, uint8_t *bytes,
                       uint32_t len)
{
    bytes_unref(record->bytes);
    *record = (struct sim_record){ .version = version, .bytes = bytes, .len = len };
}

static void record_copy(struct sim_record *to, const struct sim_record *from)
{
    uint8_t *bytes = bytes_ref(from->bytes);

    record_set(to, from->version, bytes, from->len);
}

/* ---- what was replaced ---- */

static void older_push(struct sim_older *older, const struct sim_record *record)
{
    if (older->n == older->n_max) {
        older->n_max = older->n_max == 0 ? 4 : older->n_max * 2;
        older->v = realloc(older->v, older->n_max * sizeof(*older->v));
        assert(older->v != NULL);
    }
    older->v[older->n] = (struct sim_record){ 0 };
    record_copy(&older->v[older->n++], record);
}

/* Forget what is older than `version`. */
static void older_forget(struct sim_older *older, uint64_t version)
{
    unsigned n = 0;

    for (unsigned i = 0; i < older->n; i++) {
        if (older->v[i].version < version)
            bytes_unref(older->v[i].bytes);
        else
            older->v[n++] = older->v[i];
    }
    older->n = n;
}

/* Forget `version` and what is newer: the power is gone. */
static void older_forget_from(struct sim_older *older, uint64_t version)
{
    while (older->n > 0 && older->v[older->n - 1].version >= version)
        bytes_unref(older->v[--older->n].bytes);
}

/* A new record or mark. What certainly was a hole before is not kept. */
static void block_replace(const struct sim_net *net, struct sim_projection *p, uint64_t b,
                          uint64_t version, uint8_t *bytes, uint32_t len)
{
    bool is_first =
        p->now[b].version == 0 && p->now[b].bytes == NULL && p->older[b].n == 0;

    if (p->now[b].version != version && !(is_first && bytes != NULL) && !net->no_journal)
        older_push(&p->older[b], &p->now[b]);
    record_set(&p->now[b], version, bytes, len);
}

/* The newest that is not newer than at_most (0: of all); NULL: a hole that never was anything else. */
static const struct sim_record *block_at(const struct sim_net *net,
                                         const struct sim_projection *p, uint64_t b,
                                         uint64_t at_most)
{
    if (at_most == 0 || net->no_at_most || p->now[b].version <= at_most)
        return &p->now[b];
    for (unsigned i = p->older[b].n; i > 0; i--) {
        if (p->older[b].v[i - 1].version <= at_most)
            return &p->older[b].v[i - 1];
    }
    return NULL;
}

/* `version` takes its place for good, and is synced there. */
static void block_apply(struct sim_net *net, struct sim_projection *p, unsigned b,
                        uint64_t version)
{
    unsigned q = quorum_write(codec_k(net->codec), net->n_storages);

    if (sim_net_count_since(net, b, version) < q)
        net->n_unsafe++;
    older_forget(&p->older[b], version);
    if (p->now[b].version == version) {
        record_copy(&p->stable[b], &p->now[b]);
    } else if (p->stable[b].version < version) {
        assert(p->older[b].n > 0 && p->older[b].v[0].version == version);
        record_copy(&p->stable[b], &p->older[b].v[0]);
    }
}

/* The newest pending version that this watermark covers; 0: none. */
static uint64_t block_covered(const struct sim_projection *p, unsigned b,
                              uint64_t durable)
{
    uint64_t found = 0;

    if (p->older[b].n == 0)
        return 0;
    for (unsigned i = 1; i <= p->older[b].n; i++) { /* v[0] lies in place */
        uint64_t v = i == p->older[b].n ? p->now[b].version : p->older[b].v[i].version;

        if (version_epoch(v) == version_epoch(durable) && v <= durable)
            found = v;
    }
    return found;
}

static void storage_commit(struct sim_net *net, struct sim_storage *s, size_t n_durable,
                           const uint64_t *durable)
{
    for (size_t d = 0; d < n_durable; d++) {
        for (unsigned i = 0; i < codec_n(net->codec); i++) {
            struct sim_projection *p = &s->projections[i];

            for (unsigned b = 0; p->here && b < SIM_BLOCKS; b++) {
                uint64_t version = block_covered(p, b, durable[d]);

                if (version == 0)
                    continue;
                p->here_stable = true;
                block_apply(net, p, b, version);
            }
        }
    }
}

static bool is_pending(const struct sim_projection *p, uint64_t first, uint64_t end)
{
    for (uint64_t b = first; p->here && b < end && b < SIM_BLOCKS; b++) {
        if (p->older[b].n > 0)
            return true;
    }
    return false;
}

/* ---- what storages do ---- */

static size_t head_bytes(const struct sim_net *net, unsigned projection)
{
    return RECORD_HEADER_BYTES + codec_overhang_bytes(net->codec, projection);
}

static void answer_pack(struct sim_request *r, const ProtobufCMessage *msg)
{
    r->answer_msg_len = protobuf_c_message_get_packed_size(msg);
    r->answer_msg = malloc(r->answer_msg_len + 1);
    assert(r->answer_msg != NULL);
    protobuf_c_message_pack(msg, r->answer_msg);
}

static uint16_t bad(struct sim_net *net)
{
    net->n_bad++;
    return ROZO__STATUS__BAD_REQUEST;
}

/* Is every record of the payload what the request says, to the byte? */
static bool write_payload_ok(const struct sim_net *net, const Rozo__StWriteReq *req,
                             const struct sim_request *r)
{
    size_t head = head_bytes(net, req->projection), sum = req->n_records * head;

    if (r->payload_len < sum)
        return false;
    for (unsigned i = 0; i < req->n_records; i++) {
        struct record_header h;

        if (record_inspect(r->payload + i * head, file_id_hash(&net->target.id),
                           req->first_block + i, req->projection, net->target.block_bytes,
                           &h) != RECORD_IS_DATA)
            return false;
        sum += codec_row_bytes(net->codec, h.user_bytes);
    }
    return sum == r->payload_len;
}

static void store_records(struct sim_net *net, struct sim_projection *p,
                          const Rozo__StWriteReq *req, const struct sim_request *r,
                          bool full)
{
    size_t head = head_bytes(net, req->projection), at = req->n_records * head;

    p->here = p->here || !full;
    for (unsigned i = 0; i < req->n_records; i++) {
        struct record_header h;
        size_t row;
        uint8_t *bytes;

        record_header_get(r->payload + i * head, &h);
        row = codec_row_bytes(net->codec, h.user_bytes);
        if (full && (!p->here || p->now[req->first_block + i].bytes == NULL)) {
            at += row; /* only what replaces a record fits */
            continue;
        }
        bytes = bytes_new(head + row);
        memcpy(bytes, r->payload + i * head, head);
        memcpy(bytes + head, r->payload + at, row);
        at += row;
        block_replace(net, p, req->first_block + i, h.version, bytes,
                      (uint32_t)(head + row));
    }
}

static void storage_sync(struct sim_storage *s)
{
    for (unsigned i = 0; i < CODEC_N_MAX; i++) {
        struct sim_projection *p = &s->projections[i];

        p->here_stable = p->here;
        p->tail_stable = p->tail_version;
        for (unsigned b = 0; p->here && b < SIM_BLOCKS; b++)
            record_copy(&p->stable[b], &p->now[b]);
    }
}

static bool is_fenced(const struct sim_storage *s, uint64_t version)
{
    return s->fence != 0 && version_epoch(version) <= s->fence;
}

static uint16_t do_write(struct sim_net *net, struct sim_storage *s,
                         struct sim_request *r)
{
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;
    uint16_t status = ROZO__STATUS__OK;
    struct sim_projection *p;

    if (req == NULL || req->projection >= codec_n(net->codec) || req->n_records == 0 ||
        req->n_records > EXTENT_BLOCKS || req->to_storage != s->id ||
        req->first_block + req->n_records > SIM_BLOCKS ||
        !write_payload_ok(net, req, r)) {
        rozo__st_write_req__free_unpacked(req, NULL);
        return bad(net);
    }
    s->n_writes++;
    storage_commit(net, s, req->n_durable, req->durable);
    p = &s->projections[req->projection];
    for (unsigned i = 0; i < req->n_records; i++) {
        uint64_t version =
            get_le64(r->payload + i * head_bytes(net, req->projection) + 16);
        uint64_t have = p->here ? p->now[req->first_block + i].version : 0;

        if (have > version || (have != version && is_fenced(s, version)))
            status = ROZO__STATUS__STALE_VERSION;
        if (have > resp.newest_version)
            resp.newest_version = have;
    }
    if (status == ROZO__STATUS__OK) {
        store_records(net, p, req, r, s->refuse_writes == ROZO__STATUS__NO_SPACE);
        if (s->refuse_writes == ROZO__STATUS__NO_SPACE)
            status = ROZO__STATUS__NO_SPACE;
        if (req->sync)
            storage_sync(s);
        resp.newest_version = 0;
        resp.pending = is_pending(p, req->first_block, req->first_block + req->n_records);
        resp.pressure = s->pressure;
        s->n_pending += resp.pending;
    }
    resp.verifier = s->verifier;
    answer_pack(r, &resp.base);
    rozo__st_write_req__free_unpacked(req, NULL);
    return status;
}

static unsigned count_in_range(const struct sim_projection *p, uint64_t first, uint64_t n,
                               uint64_t *newest)
{
    unsigned count = 0;

    *newest = 0;
    for (uint64_t b = first; b < first + n && b < SIM_BLOCKS; b++) {
        count += p->now[b].bytes != NULL;
        if (p->now[b].version > *newest)
            *newest = p->now[b].version;
    }
    return count;
}

/* For PROJECTION_ANY: most records in the range, the newest on a tie. -1: nothing is here. */
static int pick_any(const struct sim_net *net, const struct sim_storage *s,
                    const Rozo__StReadReq *req)
{
    unsigned best_count = 0;
    uint64_t best_newest = 0;
    int best = -1;

    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        uint64_t newest;
        unsigned count;

        if (!s->projections[i].here)
            continue;
        count =
            count_in_range(&s->projections[i], req->first_block, req->n_blocks, &newest);
        if (best >= 0 &&
            (count < best_count || (count == best_count && newest <= best_newest)))
            continue;
        best = (int)i;
        best_count = count;
        best_newest = newest;
    }
    return best;
}

static void hole_head(const struct sim_net *net, uint8_t *head, unsigned projection,
                      uint64_t block, uint64_t version)
{
    const struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .flags = RECORD_HOLE,
        .file_hash = file_id_hash(&net->target.id),
        .version = version,
        .block = block,
    };

    if (version == 0)
        return; /* all zero */
    record_header_put(head, &h);
    record_seal(head, NULL, 0, NULL, 0);
}

/* Heads, then bodies. A head that is no head is flagged, as a real storage does. */
static void read_payload(const struct sim_net *net, const struct sim_projection *p,
                         const Rozo__StReadReq *req, unsigned projection,
                         struct sim_request *r)
{
    size_t head = head_bytes(net, projection), at = req->n_blocks * head;

    r->answer = calloc(1, at + req->n_blocks * codec_block_bytes(net->codec));
    assert(r->answer != NULL);
    for (unsigned i = 0; i < req->n_blocks; i++) {
        uint64_t block = req->first_block + i;
        uint8_t *out = r->answer + i * head;
        const struct sim_record *record =
            block < SIM_BLOCKS ? block_at(net, p, block, req->at_most) : NULL;
        struct record_header h;

        if (record == NULL || record->bytes == NULL) {
            hole_head(net, out, projection, block,
                      record != NULL        ? record->version
                      : block >= SIM_BLOCKS ? p->tail_version
                                            : 0);
            continue;
        }
        memcpy(out, record->bytes, head);
        if (record_inspect(out, file_id_hash(&net->target.id), block, projection,
                           net->target.block_bytes, &h) != RECORD_IS_DATA ||
            head + codec_row_bytes(net->codec, h.user_bytes) != record->len) {
            memset(out, 0, head);
            out[6] = RECORD_DAMAGED;
            continue;
        }
        if (req->heads_only)
            continue;
        memcpy(r->answer + at, record->bytes + head, record->len - head);
        at += record->len - head;
    }
    r->answer_len = at;
}

static uint16_t do_read(struct sim_net *net, struct sim_storage *s, struct sim_request *r)
{
    Rozo__StReadReq *req = rozo__st_read_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StReadResp resp = ROZO__ST_READ_RESP__INIT;
    uint16_t status = ROZO__STATUS__OK;
    int projection;

    if (req == NULL || req->n_blocks == 0 || req->n_blocks > EXTENT_BLOCKS ||
        req->to_storage != s->id ||
        (req->projection >= codec_n(net->codec) && req->projection != 255)) {
        rozo__st_read_req__free_unpacked(req, NULL);
        return bad(net);
    }
    s->n_reads++;
    s->n_read_blocks += req->n_blocks;
    projection = req->projection == 255 ? pick_any(net, s, req) : (int)req->projection;
    if (projection < 0 || !s->projections[projection].here) {
        status = ROZO__STATUS__NO_FILE;
    } else {
        for (unsigned i = 0; i < codec_n(net->codec); i++)
            resp.present |= (uint32_t)s->projections[i].here << i;
        resp.projection = (uint32_t)projection;
        read_payload(net, &s->projections[projection], req, (unsigned)projection, r);
        answer_pack(r, &resp.base);
    }
    rozo__st_read_req__free_unpacked(req, NULL);
    return status;
}

static bool mark_is_stale(const struct sim_projection *p, const Rozo__StMarkReq *req,
                          uint64_t end)
{
    for (uint64_t b = req->first_block; b < end; b++) {
        if (p->here && p->now[b].version > req->version)
            return true;
    }
    return false;
}

static uint16_t do_mark(struct sim_net *net, struct sim_storage *s, struct sim_request *r)
{
    Rozo__StMarkReq *req = rozo__st_mark_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StMarkResp resp = ROZO__ST_MARK_RESP__INIT;
    uint16_t status = ROZO__STATUS__OK;
    uint64_t end;

    if (req == NULL || req->to_storage != s->id || req->version == 0) {
        rozo__st_mark_req__free_unpacked(req, NULL);
        return bad(net);
    }
    s->n_marks++;
    storage_commit(net, s, req->n_durable, req->durable);
    if (is_fenced(s, req->version))
        status = ROZO__STATUS__STALE_VERSION;
    end = req->n_blocks == 0 || req->first_block + req->n_blocks > SIM_BLOCKS
              ? SIM_BLOCKS
              : req->first_block + req->n_blocks;
    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        if (!req->keep_newer && mark_is_stale(&s->projections[i], req, end))
            status = ROZO__STATUS__STALE_VERSION;
    }
    if (status == ROZO__STATUS__OK && req->projection != 255)
        s->projections[req->projection].here = true;
    for (unsigned i = 0; status == ROZO__STATUS__OK && i < codec_n(net->codec); i++) {
        struct sim_projection *p = &s->projections[i];

        for (uint64_t b = req->first_block; p->here && b < end; b++) {
            if (p->now[b].version < req->version)
                block_replace(net, p, b, req->version, NULL, 0);
        }
        resp.pending |= is_pending(p, req->first_block, end);
        if (p->here && req->n_blocks == 0 && p->tail_version < req->version)
            p->tail_version = req->version;
    }
    rozo__st_mark_req__free_unpacked(req, NULL);
    resp.pressure = s->pressure;
    resp.verifier = s->verifier;
    answer_pack(r, &resp.base);
    return status;
}

static uint16_t do_commit(struct sim_net *net, struct sim_storage *s,
                          struct sim_request *r)
{
    Rozo__StCommitReq *req = rozo__st_commit_req__unpack(NULL, r->msg_len, r->msg);
    bool ok = req != NULL && req->to_storage == s->id && req->n_durable > 0 &&
              req->n_ranges == 0;

    s->n_commits++;
    if (ok)
        storage_commit(net, s, req->n_durable, req->durable);
    rozo__st_commit_req__free_unpacked(req, NULL);
    return ok ? ROZO__STATUS__OK : bad(net);
}

static uint16_t do_missed(struct sim_net *net, struct sim_storage *s,
                          struct sim_request *r)
{
    Rozo__StMissedReq *req = rozo__st_missed_req__unpack(NULL, r->msg_len, r->msg);
    bool ok = req != NULL && req->to_storage == s->id && req->n_missed > 0;

    s->n_missed++;
    if (ok && net->refuse_missed != 0) {
        rozo__st_missed_req__free_unpacked(req, NULL);
        return net->refuse_missed;
    }
    for (size_t i = 0; ok && i < req->n_missed; i++) {
        const Rozo__Missed *m = req->missed[i];

        ok = m->ref != NULL && m->ref->n_storages == net->n_storages &&
             m->ref->capability.len == net->target.capability_len && m->version != 0 &&
             m->candidates != 0 && m->candidates >> codec_n(net->codec) == 0;
        for (unsigned j = 0; ok && j < codec_n(net->codec); j++) {
            if ((m->candidates >> j & 1) != 0)
                s->missed_blocks[j] +=
                    m->n_blocks == 0 ? SIM_BLOCKS - m->first_block : m->n_blocks;
        }
    }
    rozo__st_missed_req__free_unpacked(req, NULL);
    return ok ? ROZO__STATUS__OK : bad(net);
}

static uint16_t do_check(struct sim_net *net, struct sim_storage *s,
                         struct sim_request *r)
{
    Rozo__StCheckReq *req = rozo__st_check_req__unpack(NULL, r->msg_len, r->msg);
    bool ok =
        req != NULL && req->to_storage == s->id && req->n_blocks > 0 && !req->abandoned;

    s->n_checks++;
    rozo__st_check_req__free_unpacked(req, NULL);
    return ok ? ROZO__STATUS__OK : bad(net);
}

static uint16_t do_sync(struct sim_net *net, struct sim_storage *s, struct sim_request *r)
{
    Rozo__StSyncReq *req = rozo__st_sync_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StSyncResp resp = ROZO__ST_SYNC_RESP__INIT;

    if (req == NULL || req->to_storage != s->id) {
        rozo__st_sync_req__free_unpacked(req, NULL);
        return bad(net);
    }
    storage_commit(net, s, req->n_durable, req->durable);
    rozo__st_sync_req__free_unpacked(req, NULL);
    s->n_syncs++;
    storage_sync(s);
    resp.verifier = s->verifier;
    answer_pack(r, &resp.base);
    return ROZO__STATUS__OK;
}

static uint16_t do_next(struct sim_net *net, struct sim_storage *s, struct sim_request *r)
{
    Rozo__StNextReq *req = rozo__st_next_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StNextResp resp = ROZO__ST_NEXT_RESP__INIT;
    bool here = false;

    if (req == NULL)
        return bad(net);
    resp.block = UINT64_MAX;
    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        const struct sim_projection *p = &s->projections[i];

        here = here || p->here;
        for (uint64_t b = req->from_block; p->here && b < SIM_BLOCKS && b < resp.block;
             b++) {
            if (p->now[b].version != 0)
                resp.block = b;
        }
    }
    rozo__st_next_req__free_unpacked(req, NULL);
    answer_pack(r, &resp.base);
    return here ? ROZO__STATUS__OK : ROZO__STATUS__NO_FILE;
}

static uint16_t do_stat(struct sim_net *net, struct sim_storage *s, struct sim_request *r)
{
    Rozo__StStatResp resp = ROZO__ST_STAT_RESP__INIT;
    Rozo__StStatResp__Projection projections[CODEC_N_MAX];
    Rozo__StStatResp__Projection *list[CODEC_N_MAX];

    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        Rozo__StStatResp__Projection *p = &projections[i];

        if (!s->projections[i].here)
            continue;
        rozo__st_stat_resp__projection__init(p);
        p->projection = i;
        p->size = 4096;
        p->allocated = 8192;
        p->path = (char *)"objects/00/00/f";
        list[resp.n_projections++] = p;
    }
    resp.projections = list;
    answer_pack(r, &resp.base);
    return ROZO__STATUS__OK;
}

static uint16_t do_alloc(struct sim_net *net, struct sim_storage *s,
                         struct sim_request *r)
{
    Rozo__StAllocReq *req = rozo__st_alloc_req__unpack(NULL, r->msg_len, r->msg);

    if (req == NULL || req->projection >= codec_n(net->codec) || req->n_blocks == 0) {
        rozo__st_alloc_req__free_unpacked(req, NULL);
        return bad(net);
    }
    s->projections[req->projection].here = true;
    rozo__st_alloc_req__free_unpacked(req, NULL);
    return ROZO__STATUS__OK;
}

static uint16_t carry_out(struct sim_net *net, struct sim_storage *s,
                          struct sim_request *r)
{
    if (s->refuse_all != 0)
        return s->refuse_all;
    if (s->refuse_writes != 0 &&
        !(s->refuse_writes == ROZO__STATUS__NO_SPACE && r->op == ROZO__OP__ST_WRITE) &&
        (r->op == ROZO__OP__ST_WRITE || r->op == ROZO__OP__ST_MARK ||
         r->op == ROZO__OP__ST_ALLOC || r->op == ROZO__OP__ST_SYNC))
        return s->refuse_writes;
    switch (r->op) {
    case ROZO__OP__ST_WRITE:
        return do_write(net, s, r);
    case ROZO__OP__ST_READ:
        return do_read(net, s, r);
    case ROZO__OP__ST_MARK:
        return do_mark(net, s, r);
    case ROZO__OP__ST_SYNC:
        return do_sync(net, s, r);
    case ROZO__OP__ST_COMMIT:
        return do_commit(net, s, r);
    case ROZO__OP__ST_MISSED:
        return do_missed(net, s, r);
    case ROZO__OP__ST_CHECK:
        return do_check(net, s, r);
    case ROZO__OP__ST_NEXT:
        return do_next(net, s, r);
    case ROZO__OP__ST_STAT:
        return do_stat(net, s, r);
    case ROZO__OP__ST_ALLOC:
        return do_alloc(net, s, r);
    default:
        return bad(net);
    }
}

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

/* The link broke: an answer, if any, is lost; the channel sends again. */
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
    assert(at == len); /* the contract of place() */
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
        return; /* stays in the queue for ever */
    if (s->state == SIM_DOWN) {
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
    bool lost =
        s->state == SIM_DOWN || (s->lossy_ppm != 0 && below(net, 1000000) < s->lossy_ppm);

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
        if (s->state == SIM_DOWN) {
            request_again(r);
            return;
        }
        r->status = carry_out(net, s, r);
        request_at(r, LEG_ANSWERED, message_delay(net));
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

    request_done(r, -ETIMEDOUT); /* what was sent goes its way without us */
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
        if (r->channel->storage == s && r->leg == LEG_KEPT) /* late, cancelled or not */
            request_at(r, LEG_WORKING, below(net, 5));
    }
}

void sim_storage_power_cut(struct sim_net *net, unsigned storage)
{
    struct sim_storage *s = &net->storages[storage];

    s->verifier += 1000;
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
    bytes = bytes_new(record->len); /* the stable copy is another matter */
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
