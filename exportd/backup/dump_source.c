/*
 * dump_source.c - a dump that is being given out.
 *
 * In:     AD_META_DUMP. Out: pieces of a dump; a view of the store while one is under
 *         way.
 * Keeps:  a request that is repeated gets the same piece again. I9: one dump at a time,
 *         which ends without its client.
 */
#include "exportd/backup/dump_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/wire/status.h"
#include "exportd/backup/dump_format.h"
#include "exportd/quorum/seed_store.h"
#include "exportd/store/cluster_record.h"
#include "exportd/store/key.h"

struct dump_source {
    struct dump_source_config config;
    uint32_t group;
    struct kv *frozen; /* NULL: no dump is under way */
    uint64_t number;   /* chosen by the client */
    struct dump_head head;
    uint8_t head_bytes[DUMP_HEAD_BYTES];
    uint64_t n_pieces;             /* given out */
    struct dump_place before, now; /* places before and after the last piece */
    struct env_timer idle;
};

/* Piece on its way to the client. */
struct dump_piece {
    struct seed_job *job; /* owned: the items */
    uint8_t begin[DUMP_HEAD_BYTES + DUMP_FRAME_BYTES];
    uint8_t end[DUMP_FRAME_BYTES + DUMP_END_BYTES];
    struct rpc_seg segs[3];
    unsigned n_segs;
};

static void piece_free(void *arg)
{
    struct dump_piece *p = arg;

    seed_job_free(p->job);
    free(p);
}

static void dump_end(struct dump_source *s)
{
    if (s->frozen == NULL)
        return;
    env_timer_stop(s->config.env, &s->idle);
    s->frozen = NULL;
    s->config.thaw(s->config.arg);
}

static void on_idle(struct env_timer *timer)
{
    struct dump_source *s = container_of(timer, struct dump_source, idle);

    log_warn("a dump of the metadata ends: its client has not asked for more");
    dump_end(s);
}

static void refuse(struct rpc_call *call, int rc, const char *text)
{
    Rozo__AdMetaDumpResp resp = ROZO__AD_META_DUMP_RESP__INIT;
    uint8_t msg[ERR_TEXT_MAX + 64];

    resp.error = (char *)text;
    rpc_reply(call, status_from_errno(rc), msg, rozo__ad_meta_dump_resp__pack(&resp, msg),
              NULL, 0, NULL, NULL);
}

/* ---- the begin ---- */

/* Reads from the view what goes into the head. */
static int head_make(struct dump_source *s, struct kv *frozen, struct err *err)
{
    static const uint8_t key[1] = { KEY_CLUSTER };
    struct kv_quorum_place place;
    struct cluster_record cluster;
    bool is_valid;
    size_t len;
    void *val;
    int64_t wall_ns;
    int rc = kv_place_load(frozen, &place, &wall_ns);

    if (rc == 0)
        rc = kv_get(frozen, key, sizeof(key), &val, &len);
    if (rc == -ENOENT)
        return err_set(err, rc, "there are no metadata yet");
    if (rc != 0)
        return err_set(err, rc, "read the metadata store: %s", error_text(rc));
    is_valid = cluster_record_read(&cluster, val, len);
    free(val);
    if (!is_valid)
        return err_set(err, -ROZO_EDAMAGED, "the cluster's record is corrupt");
    if (place.seed.doubt != SEED_NONE)
        return err_set(err, -EBUSY, "this member is copying the metadata of another one");
    s->head = (struct dump_head){
        .group = s->group,
        .index = place.applied,
        .term = place.applied_term,
        .wall_ns = env_wall_ns(s->config.env),
    };
    memcpy(s->head.cluster_id, cluster.cluster_id, sizeof(s->head.cluster_id));
    return 0;
}

static int dump_begin(struct dump_source *s, const Rozo__AdMetaDumpReq *req,
                      struct err *err)
{
    struct kv *frozen;
    int rc;

    if (s->frozen != NULL)
        return err_set(err, -EBUSY,
                       "another dump is under way; one whose client is gone ends after "
                       "%d s",
                       DUMP_IDLE_MS / 1000);
    rc = s->config.freeze(s->config.arg, &frozen);
    if (rc != 0)
        return err_set(err, rc, "open a view of the metadata store: %s", error_text(rc));
    rc = head_make(s, frozen, err);
    if (rc == 0 && s->head.index < req->min_entry)
        rc = err_set(err, -EBUSY, "this member lacks the newest changes");
    if (rc != 0) {
        s->config.thaw(s->config.arg);
        return rc;
    }
    s->frozen = frozen;
    s->number = req->dump;
    s->n_pieces = 0;
    dump_head_encode(&s->head, s->head_bytes);
    dump_place_begin(&s->now, s->head_bytes);
    s->before = s->now;
    return 0;
}

/* ---- pieces ---- */

static void on_read(void *arg, struct seed_job *job, int rc)
{
    (void)arg;
    job->rc = rc;
}

/* Reads the keys behind the place. */
static int items_read(struct dump_source *s, struct dump_piece *p)
{
    struct seed_store store = { .below = s->frozen, .done = on_read };

    p->job = calloc(1, sizeof(*p->job));
    if (p->job == NULL)
        return -ENOMEM;
    p->job->kind = SEED_JOB_READ;
    p->job->mark.cursor = s->now.last;
    seed_store_run(&store, p->job);
    return p->job->rc != 0 || p->job->len <= DUMP_PAYLOAD_MAX ? p->job->rc : -EFBIG;
}

static void seg_add(struct dump_piece *p, const void *base, size_t len)
{
    p->segs[p->n_segs++] = (struct rpc_seg){ .base = base, .len = len };
}

/* Makes the piece at the place, and goes on behind it. */
static int piece_make(struct dump_source *s, uint64_t number, struct dump_piece *p)
{
    size_t at = 0;
    int rc = items_read(s, p);

    if (rc != 0)
        return rc;
    if (number == 0) {
        memcpy(p->begin, s->head_bytes, DUMP_HEAD_BYTES);
        at = DUMP_HEAD_BYTES;
    }
    if (p->job->len > 0) {
        rc = dump_items_put(&s->now, p->job->bytes, p->job->len, p->begin + at);
        if (rc != 0)
            return rc;
        at += DUMP_FRAME_BYTES;
    }
    if (at > 0)
        seg_add(p, p->begin, at);
    if (p->job->len > 0)
        seg_add(p, p->job->bytes, p->job->len);
    if (p->job->chunk.is_last) {
        dump_end_put(&s->now, p->end);
        seg_add(p, p->end, sizeof(p->end));
    }
    return 0;
}

static void piece_send(struct dump_source *s, struct rpc_call *call, struct dump_piece *p)
{
    Rozo__AdMetaDumpResp resp = ROZO__AD_META_DUMP_RESP__INIT;
    uint8_t msg[128];

    resp.is_last = s->now.is_over;
    resp.bytes_all = s->config.bytes(s->config.arg);
    resp.bytes_done = s->now.n_bytes;
    resp.keys_done = s->now.n_keys;
    resp.entry = s->head.index;
    rpc_reply(call, ROZO__STATUS__OK, msg, rozo__ad_meta_dump_resp__pack(&resp, msg),
              p->segs, p->n_segs, piece_free, p);
}

static void piece_give(struct dump_source *s, struct rpc_call *call, uint64_t number)
{
    struct dump_piece *p;
    int rc;

    if (number + 1 == s->n_pieces) { /* again */
        s->now = s->before;
        s->n_pieces--;
    }
    if (number != s->n_pieces || s->now.is_over) {
        refuse(call, -EINVAL, "this is not the next piece of the dump");
        return;
    }
    p = calloc(1, sizeof(*p));
    s->before = s->now;
    rc = p == NULL ? -ENOMEM : piece_make(s, number, p);
    if (rc == 0) {
        s->n_pieces++;
        piece_send(s, call, p);
        return;
    }
    refuse(call, rc,
           rc == -ESTALE ? "the metadata store had to be opened again: begin again"
                         : error_text(rc));
    if (p != NULL)
        piece_free(p);
    dump_end(s);
}

static void take(struct dump_source *s, struct rpc_call *call,
                 const Rozo__AdMetaDumpReq *req)
{
    bool is_known = s->frozen != NULL && s->number == req->dump;
    struct err err = { 0 };
    int rc = 0;

    if (req->is_over) {
        if (is_known)
            dump_end(s);
        rpc_reply_status(call, ROZO__STATUS__OK);
        return;
    }
    if (!is_known && req->piece == 0)
        rc = dump_begin(s, req, &err);
    else if (!is_known)
        rc = err_set(&err, -ESTALE, "exportd does not know this dump: begin again");
    if (rc != 0) {
        refuse(call, rc, err.text);
        return;
    }
    env_timer_start(s->config.env, &s->idle, DUMP_IDLE_MS);
    piece_give(s, call, req->piece);
}

void dump_source_handle(struct dump_source *s, struct rpc_call *call)
{
    Rozo__AdMetaDumpReq *req;

    if (call->role != RPC_ROLE_NODE) {
        rpc_reply_status(call, ROZO__STATUS__DENIED);
        return;
    }
    req = rozo__ad_meta_dump_req__unpack(NULL, call->msg_len, call->msg);
    if (req == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
        return;
    }
    take(s, call, req);
    rozo__ad_meta_dump_req__free_unpacked(req, NULL);
}

/* ---- life ---- */

int dump_source_open(const struct dump_source_config *config, struct dump_source **out)
{
    struct dump_source *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return -ENOMEM;
    s->config = *config;
    env_timer_init(&s->idle, on_idle);
    *out = s;
    return 0;
}

void dump_source_set_group(struct dump_source *s, uint32_t group)
{
    s->group = group;
}

void dump_source_close(struct dump_source *s)
{
    if (s == NULL)
        return;
    dump_end(s);
    free(s);
}
