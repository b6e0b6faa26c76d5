/*
 * sim_storage.c - execution of requests by a simulated storage, as rozo.proto says.
 *
 * In:     requests that have arrived. Thread: one.
 * Out:    their answers.
 * Keeps:  net->n_bad counts requests that break the protocol.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "tests/sim/sim_net_in.h"

size_t head_bytes(const struct sim_net *net, unsigned projection)
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

/* Checks that the payload is exactly the records that the request announces. */
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
            at += row; /* only overwrites of a record fit */
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
        for (unsigned b = 0; p->here && b < SIM_BLOCKS; b++) {
            record_copy(&p->stable[b], &p->now[b]);
            older_synced(&p->older[b]);
        }
    }
}

static void loose_note(struct sim_storage *s, uint64_t first, uint64_t n,
                       uint64_t version)
{
    if (s->n_unstable == SIM_LOOSE_MAX)
        memmove(s->unstable, s->unstable + 1, --s->n_unstable * sizeof(s->unstable[0]));
    s->unstable[s->n_unstable++] = (struct sim_unstable){ first, n, version };
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
        else
            loose_note(s, req->first_block, req->n_records, 0);
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

/* Chooses for PROJECTION_ANY: most records in
 * the range, the newest on a tie. -1: no file. */
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
        return; /* a hole that was never anything else: all zero */
    record_header_put(head, &h);
    record_seal(head, NULL, 0, NULL, 0);
}

/* Packs the heads, then the bodies. Flags a corrupt head, as a real storage does. */
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
        resp.doubt = s->doubt;
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
    if (status == ROZO__STATUS__OK)
        loose_note(s, req->first_block, req->n_blocks, req->version);
    for (unsigned i = 0; status == ROZO__STATUS__OK && i < codec_n(net->codec); i++) {
        struct sim_projection *p = &s->projections[i];

        for (uint64_t b = req->first_block; p->here && b < end; b++) {
            if (p->now[b].version < req->version)
                block_replace(net, p, b, req->version, NULL, 0);
            else if (p->now[b].version > req->version)
                block_mark_below(p, (unsigned)b, req->version);
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

        ok = m->ref != NULL && m->ref->n_storages == net->target.n_storages &&
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
    Rozo__StCommitReq__Range unstable[SIM_LOOSE_MAX], *list[SIM_LOOSE_MAX];

    if (req == NULL || req->to_storage != s->id) {
        rozo__st_sync_req__free_unpacked(req, NULL);
        return bad(net);
    }
    storage_commit(net, s, req->n_durable, req->durable);
    for (; req->others && resp.n_unstable < s->n_unstable; resp.n_unstable++) {
        Rozo__StCommitReq__Range *range = list[resp.n_unstable] =
            &unstable[resp.n_unstable];

        rozo__st_commit_req__range__init(range);
        range->first_block = s->unstable[resp.n_unstable].first;
        range->n_blocks = s->unstable[resp.n_unstable].n;
        range->version = s->unstable[resp.n_unstable].version;
    }
    resp.unstable = list;
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

static uint64_t alloc_used(const struct sim_storage *s)
{
    uint64_t used = 0;

    for (unsigned i = 0; i < s->n_allocs; i++)
        used += s->allocs[i].to - s->allocs[i].from;
    return used;
}

static void alloc_give_back(struct sim_storage *s, uint64_t from, uint64_t to)
{
    for (unsigned i = 0; i < s->n_allocs; i++) {
        if (s->allocs[i].from == from && s->allocs[i].to == to)
            s->allocs[i--] = s->allocs[--s->n_allocs];
    }
}

static bool is_reserved(const struct sim_storage *s, const Rozo__StAllocReq *req)
{
    for (unsigned i = 0; i < s->n_allocs; i++) {
        const struct sim_alloc *a = &s->allocs[i];

        if (a->projection == req->projection && a->first <= req->first_block &&
            a->first + a->n >= req->first_block + req->n_blocks)
            return true;
    }
    return false;
}

static uint16_t alloc_take(struct sim_net *net, struct sim_storage *s,
                           const Rozo__StAllocReq *req, Rozo__StAllocResp *resp)
{
    static uint64_t taken[2];
    struct sim_alloc *a = &s->allocs[s->n_allocs];
    uint64_t bytes =
        req->n_blocks * record_extent_bytes(net->codec, req->projection) / EXTENT_BLOCKS;

    if (is_reserved(s, req))
        return ROZO__STATUS__OK;
    if (s->alloc_room != 0 && bytes > s->alloc_room - alloc_used(s))
        return ROZO__STATUS__NO_SPACE;
    s->projections[req->projection].here = true;
    if (s->n_allocs == SIM_ALLOCS_MAX)
        return ROZO__STATUS__OK; /* table full: no test looks at this one */
    *a = (struct sim_alloc){ .projection = req->projection,
                             .first = req->first_block,
                             .n = req->n_blocks,
                             .from = s->alloc_at + 16384,
                             .to = s->alloc_at + 16384 + bytes };
    s->n_allocs++;
    s->alloc_at += bytes;
    taken[0] = a->from;
    taken[1] = a->to;
    resp->taken = taken;
    resp->n_taken = 2;
    return ROZO__STATUS__OK;
}

static uint16_t do_alloc(struct sim_net *net, struct sim_storage *s,
                         struct sim_request *r)
{
    Rozo__StAllocReq *req = rozo__st_alloc_req__unpack(NULL, r->msg_len, r->msg);
    Rozo__StAllocResp resp = ROZO__ST_ALLOC_RESP__INIT;
    uint16_t status = ROZO__STATUS__OK;

    if (req == NULL || req->projection >= codec_n(net->codec) ||
        (req->n_blocks != 0 && req->n_give_back != 0)) {
        rozo__st_alloc_req__free_unpacked(req, NULL);
        return bad(net);
    }
    for (size_t i = 0; i < req->n_give_back; i += 2)
        alloc_give_back(s, req->give_back[i], req->give_back[i + 1]);
    if (req->n_blocks != 0)
        status = alloc_take(net, s, req, &resp);
    resp.left_bytes = s->alloc_room == 0 ? UINT64_MAX : s->alloc_room - alloc_used(s);
    if (status == ROZO__STATUS__OK)
        answer_pack(r, &resp.base);
    rozo__st_alloc_req__free_unpacked(req, NULL);
    return status;
}

static bool changes_something(uint16_t op)
{
    return op == ROZO__OP__ST_WRITE || op == ROZO__OP__ST_MARK ||
           op == ROZO__OP__ST_ALLOC || op == ROZO__OP__ST_COMMIT ||
           op == ROZO__OP__ST_MISSED;
}

static bool has_file(const struct sim_net *net, const struct sim_storage *s)
{
    for (unsigned i = 0; i < codec_n(net->codec); i++) {
        if (s->projections[i].here)
            return true;
    }
    return false;
}

/* Returns the generation in the file reference that every request begins with. */
static uint32_t ref_generation(const struct sim_request *r)
{
    uint32_t generation = 0;

    if (r->op == ROZO__OP__ST_SYNC) { /* ST_SYNC differs from ST_NEXT
                                       * in the types of other fields */
        Rozo__StSyncReq *req = rozo__st_sync_req__unpack(NULL, r->msg_len, r->msg);

        generation = req == NULL || req->ref == NULL ? 0 : req->ref->dist_generation;
        rozo__st_sync_req__free_unpacked(req, NULL);
    } else {
        Rozo__StNextReq *req = rozo__st_next_req__unpack(NULL, r->msg_len, r->msg);

        generation = req == NULL || req->ref == NULL ? 0 : req->ref->dist_generation;
        rozo__st_next_req__free_unpacked(req, NULL);
    }
    return generation;
}

static bool is_of_old_distribution(const struct sim_net *net, const struct sim_storage *s,
                                   const struct sim_request *r)
{
    return s->dist_generation != 0 && has_file(net, s) && r->op != ROZO__OP__ST_COMMIT &&
           r->op != ROZO__OP__ST_MISSED && r->op != ROZO__OP__ST_CHECK &&
           ref_generation(r) < s->dist_generation;
}

uint16_t storage_carry_out(struct sim_net *net, struct sim_storage *s,
                           struct sim_request *r)
{
    if (changes_something(r->op))
        s->session = r->session;
    if (s->refuse_all != 0)
        return s->refuse_all;
    if (s->refuse_writes != 0 &&
        !(s->refuse_writes == ROZO__STATUS__NO_SPACE && r->op == ROZO__OP__ST_WRITE) &&
        (r->op == ROZO__OP__ST_WRITE || r->op == ROZO__OP__ST_MARK ||
         r->op == ROZO__OP__ST_ALLOC ||
         (r->op == ROZO__OP__ST_SYNC && s->refuse_writes != ROZO__STATUS__FENCED)))
        return s->refuse_writes;
    if (is_of_old_distribution(net, s, r))
        return ROZO__STATUS__STALE_DISTRIBUTION;
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
