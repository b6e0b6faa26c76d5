/*
 * redist_ask.c - ask storages about one file whose distribution changes.
 *
 * In:     the phases of redist_file.c; answers of storages (checked).
 * Out:    ST_REPAIR, ST_FENCE, ST_REDIST, ST_LIST. Each answer steps the files.
 * Keeps:  one request at a time to each place, and one repair.
 * Yours:  REQUEST_MS.
 */
#include "exportd/redistribution/redist_ask.h"

#include <assert.h>
#include <limits.h>

#include "codec/codec.h"
#include "common/base/log.h"
#include "exportd/cluster/cluster.h"
#include "exportd/namespace/inode_ref.h"
#include "exportd/redistribution/redist_file.h"

enum { REQUEST_MS = 8000 };

void redist_asks_init(struct redist_file *f)
{
    f->repair.ask.file = f;
    for (unsigned i = 0; i < DIST_MAX; i++) {
        f->asks.at[i].file = f;
        f->asks.at[i].place = i;
    }
}

static void ask_ended(struct redist_ask *a)
{
    a->storage->n_out--;
    a->storage = NULL;
}

void redist_asks_cancel(struct redist_file *f)
{
    for (unsigned i = 0; i <= DIST_MAX; i++) {
        struct redist_ask *a = i < DIST_MAX ? &f->asks.at[i] : &f->repair.ask;

        if (a->storage == NULL)
            continue;
        rpc_cancel(&a->rq);
        ask_ended(a);
    }
}

void redist_asks_begin(struct redist_file *f)
{
    f->asks.acked = 0;
    f->repair.n_checks = 0;
}

void redist_asks_forget(struct redist_file *f)
{
    redist_asks_cancel(f);
    f->asks.acked = f->asks.found = 0;
    f->repair.is_new = false;
    f->repair.answer = REPAIR_NO_ANSWER;
}

struct cluster_storage *redist_storage_at(const struct redist_file *f, uint32_t id)
{
    struct cluster_storage *s = storage_find(f->x, id);

    return s != NULL && storage_is_askable(s) ? s : NULL;
}

/* Fills the reference with the distribution before or after the change. */
static void ref_fill(const struct redist_file *f, bool after, uint8_t id[FILE_ID_BYTES],
                     Rozo__FileRef *ref)
{
    inode_ref_fill(f->export->id, &f->in, id, ref);
    if (!after)
        return;
    ref->dist_generation = f->want.generation;
    ref->n_storages = f->want.n_storages;
    ref->storages = (uint32_t *)f->want.storages;
}

static void ask_send(struct redist_ask *a, struct cluster_storage *s, uint16_t op,
                     const ProtobufCMessage *msg,
                     void (*done)(struct rpc_request *rq, int rc))
{
    uint8_t buf[128 + FILE_ID_BYTES + 5 * DIST_MAX];

    assert(a->storage == NULL && protobuf_c_message_get_packed_size(msg) <= sizeof(buf));
    a->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = REQUEST_MS,
        .msg = buf,
        .msg_len = protobuf_c_message_pack(msg, buf),
        .done = done,
    };
    a->storage = s;
    storage_send(s, &a->rq);
}

/* ---- ST_FENCE and ST_REDIST ---- */

static void on_acked(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;

    ask_ended(a);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        f->asks.acked |= UINT32_C(1) << a->place;
    redist_files_soon(f->x);
}

static void fence_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StFenceReq msg = ROZO__ST_FENCE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.ref = &ref;
    msg.epoch = f->in.epoch;
    msg.to_storage = s->facts.id;
    ask_send(&f->asks.at[place], s, ROZO__OP__ST_FENCE, &msg.base, on_acked);
}

static void redist_send(struct redist_file *f, unsigned place, struct cluster_storage *s,
                        bool prepare)
{
    Rozo__StRedistReq msg = ROZO__ST_REDIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, true, id, &ref);
    msg.ref = &ref;
    msg.to_storage = s->facts.id;
    if ((f->fresh >> place & 1) != 0)
        msg.make_partial = UINT32_C(1) << place;
    msg.prepare = prepare;
    ask_send(&f->asks.at[place], s, ROZO__OP__ST_REDIST, &msg.base, on_acked);
}

bool redist_ask_all(struct redist_file *f, uint32_t places, enum redist_request what)
{
    const uint32_t *ids = what == REQUEST_FENCE ? f->in.storages : f->want.storages;

    for (unsigned i = 0; i < DIST_MAX; i++) {
        struct cluster_storage *s;

        if ((places >> i & 1) == 0 || (f->asks.acked >> i & 1) != 0 ||
            f->asks.at[i].storage != NULL)
            continue;
        s = redist_storage_at(f, ids[i]);
        if (s != NULL && what == REQUEST_FENCE)
            fence_send(f, i, s);
        else if (s != NULL)
            redist_send(f, i, s, what == REQUEST_PREPARE);
    }
    return (f->asks.acked & places) == places;
}

/* ---- builds that do not know these requests ---- */

static void storage_is_too_old(struct cluster_storage *s)
{
    if (s->redist != REDIST_TOO_OLD)
        log_warn("storage %u is too old for files to get other storages: those that have "
                 "it keep the storages that they have; upgrade it",
                 s->facts.id);
    s->redist = REDIST_TOO_OLD;
}

static void on_probed(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);

    if (rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP)
        storage_is_too_old(a->storage);
    else if (rc == 0)
        a->storage->redist = REDIST_KNOWN;
    ask_ended(a);
    redist_files_soon(a->file->x);
}

/* Asks for what every build refuses: one that knows the request names another reason. */
static void probe_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StRedistReq msg = ROZO__ST_REDIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.ref = &ref;
    ask_send(&f->asks.at[place], s, ROZO__OP__ST_REDIST, &msg.base, on_probed);
}

enum redist_result redist_probe(struct redist_file *f)
{
    enum redist_result r = REDIST_NEXT;

    for (uint32_t i = 0; i < f->want.n_storages; i++) {
        struct cluster_storage *s = storage_find(f->x, f->want.storages[i]);

        if (s == NULL || s->facts.lost || s->redist == REDIST_KNOWN)
            continue;
        if (s->redist == REDIST_TOO_OLD ||
            redist_storage_at(f, f->want.storages[i]) == NULL)
            return REDIST_FAILED;
        if (f->asks.at[i].storage == NULL)
            probe_send(f, i, s);
        r = REDIST_WAIT;
    }
    return r;
}

/* ---- ST_LIST: a later distribution that storages have ---- */

/* Takes the reference of a header if it is later, and fits the file as it was. */
static void found_take(struct redist_file *f, unsigned place, const Rozo__FileRef *ref)
{
    if (ref == NULL || ref->dist_generation <= f->in.dist_generation ||
        ref->dist_generation < f->want.generation || ref->n_storages > DIST_MAX ||
        ref->n_storages < f->in.n_storages || ref->codec != f->in.codec ||
        ref->layout != f->in.layout || ref->block_bytes != f->in.block_bytes)
        return;
    for (size_t i = 0; i < ref->n_storages; i++) {
        if (storage_find(f->x, ref->storages[i]) == NULL) {
            log_error(
                "inode %llu of export %u lies on storage %u, which is not known here: "
                "add it (rozo storage add), then the file can be read again",
                (unsigned long long)f->in.ino, f->export->id, ref->storages[i]);
            return;
        }
    }
    if (ref->dist_generation > f->want.generation)
        f->asks.found = 0;
    f->asks.found |= UINT32_C(1) << place;
    f->want.generation = ref->dist_generation;
    f->want.n_storages = (uint32_t)ref->n_storages;
    memcpy(f->want.storages, ref->storages, ref->n_storages * sizeof(ref->storages[0]));
}

static void on_found(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;
    Rozo__StListResp *resp = NULL;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_list_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    for (size_t i = 0; resp != NULL && i < resp->n_files; i++) {
        const Rozo__FileRef *got = resp->files[i]->ref;

        if (got != NULL && got->file_id.len == FILE_ID_BYTES &&
            memcmp(got->file_id.data, id, FILE_ID_BYTES) == 0)
            found_take(f, a->place, got);
    }
    rozo__st_list_resp__free_unpacked(resp, NULL);
    f->asks.acked |= UINT32_C(1) << a->place;
    ask_ended(a);
    redist_files_soon(f->x);
}

static void find_send(struct redist_file *f, unsigned place, struct cluster_storage *s)
{
    Rozo__StListReq msg = ROZO__ST_LIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;

    ref_fill(f, false, id, &ref);
    msg.to_storage = s->facts.id;
    msg.after = ref.file_id;
    msg.only = true;
    msg.max_files = 1;
    ask_send(&f->asks.at[place], s, ROZO__OP__ST_LIST, &msg.base, on_found);
}

bool redist_find(struct redist_file *f)
{
    bool all = true;

    for (uint32_t i = 0; i < f->in.n_storages; i++) {
        struct cluster_storage *s = redist_storage_at(f, f->in.storages[i]);

        if (s == NULL || (f->asks.acked >> i & 1) != 0)
            continue;
        if (f->asks.at[i].storage == NULL)
            find_send(f, i, s);
        all = false;
    }
    return all;
}

/* ---- ST_REPAIR ---- */

static void on_repaired(struct rpc_request *rq, int rc)
{
    struct redist_ask *a = container_of(rq, struct redist_ask, rq);
    struct redist_file *f = a->file;
    struct redist_repair *r = &f->repair;
    Rozo__StRepairResp *resp = NULL;

    r->answer = REPAIR_UNSOUND;
    if (rc == 0 && rq->status == ROZO__STATUS__IN_PROGRESS)
        r->answer = REPAIR_NO_ANSWER;
    else if (rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP)
        r->answer = REPAIR_TOO_OLD;
    else if (rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION)
        r->answer = REPAIR_OUTDATED;
    else if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_repair_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (resp != NULL && resp->sound)
        r->answer = REPAIR_SOUND;
    rozo__st_repair_resp__free_unpacked(resp, NULL); /* NULL is fine */
    if (r->answer == REPAIR_TOO_OLD)
        storage_is_too_old(a->storage);
    r->is_new = r->answer != REPAIR_NO_ANSWER;
    if (r->is_new)
        r->run = 0;
    ask_ended(a);
    redist_files_soon(f->x);
}

/* Chooses a home to ask; a different one after each check. */
static struct cluster_storage *repair_choose(struct redist_file *f, bool after)
{
    const uint32_t *ids = after ? f->want.storages : f->in.storages;
    unsigned n = codec_layout(f->in.layout)->n;

    for (unsigned i = 0; i < n; i++) {
        unsigned place = (f->repair.home + i) % n;
        struct cluster_storage *s =
            place < (after ? f->want.n_storages : f->in.n_storages)
                ? redist_storage_at(f, ids[place])
                : NULL;

        if (s != NULL && (after || (f->fresh >> place & 1) == 0)) {
            f->repair.home = place;
            return s;
        }
    }
    return NULL;
}

enum redist_result redist_repair(struct redist_file *f, bool after)
{
    Rozo__StRepairReq msg = ROZO__ST_REPAIR_REQ__INIT;
    struct redist_repair *r = &f->repair;
    uint8_t id[FILE_ID_BYTES];
    struct cluster_storage *s;
    Rozo__FileRef ref;

    if (r->ask.storage != NULL)
        return REDIST_WAIT;
    if (r->is_new) {
        r->is_new = false;
        r->n_checks++;
        r->home++;
        return r->answer == REPAIR_SOUND ? REDIST_NEXT : REDIST_FAILED;
    }
    s = repair_choose(f, after);
    if (s == NULL) {
        r->n_checks = UINT_MAX;
        return REDIST_FAILED;
    }
    while (r->run == 0)
        env_random(f->x->env, &r->run, sizeof(r->run));
    ref_fill(f, after, id, &ref);
    msg.ref = &ref;
    msg.to_storage = s->facts.id;
    msg.run = r->run;
    ask_send(&r->ask, s, ROZO__OP__ST_REPAIR, &msg.base, on_repaired);
    return REDIST_WAIT;
}
