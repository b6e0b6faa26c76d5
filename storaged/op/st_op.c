/*
 * st_op.c - common parts of all requests on a file: begin, end, disk requests, space.
 *
 * In:     the requests of storaged/ops. Thread: the storio loop.
 * Out:    struct disk, object.h, rpc_reply().
 * Keeps:  one answer to each request (I8: only to those whose fields were checked).
 * Ask:    st_op_lookup.c for the way to a projection file, st_op_info.c, st_op_create.c.
 */
#include "storaged/op/st_op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"

enum {
    /* requests of clients, in two time spans, above which clients are busy */
    CLIENTS_MIN = 8,
    SPACE_MAX_AGE_MS = 500,
    SPACE_PLENTY = 1 << 30, /* bytes; more than anyone writes in SPACE_MAX_AGE_MS */
    REPLY_MESSAGE_MAX = 65536,
};

static const uint64_t CLIENTS_SPAN_NS = 250000000;

/* ---- begin and end ---- */

struct storage_file st_op_file(const struct st_op *op)
{
    struct storage_file f = {
        .id = op->ref.id,
        .codec = op->ref.kind,
        .layout = op->ref.layout,
        .n_storages = op->ref.n_storages,
        .full_quorum = op->ref.full_quorum,
        .dist_generation = op->ref.dist_generation,
        .block_bytes = op->ref.block_bytes,
    };

    assert(op->ref.n_storages <= DIST_MAX);
    memcpy(f.storages, op->ref.storages, op->ref.n_storages * sizeof(f.storages[0]));
    return f;
}

enum st_op_next st_op_bad(struct st_op *op, int rc)
{
    assert(rc != 0);
    op->rc = rc;
    return OP_BAD;
}

static int ref_parse(const Rozo__FileRef *ref, struct file_ref *out)
{
    if (ref == NULL || ref->file_id.len != FILE_ID_BYTES)
        return -EBADMSG;
    if (ref->codec > UINT8_MAX || ref->layout > UINT8_MAX || ref->stripe != 0)
        return -EBADMSG;
    out->codec = codec_get(ref->codec, ref->layout, ref->block_bytes);
    if (out->codec == NULL)
        return -EBADMSG;
    if (ref->n_storages < codec_n(out->codec) || ref->n_storages > DIST_MAX)
        return -EBADMSG;
    file_id_get(ref->file_id.data, &out->id);
    out->kind = (uint8_t)ref->codec;
    out->layout = (uint8_t)ref->layout;
    out->block_bytes = ref->block_bytes;
    out->n_storages = (uint8_t)ref->n_storages;
    out->full_quorum = ref->full_quorum;
    out->dist_generation = ref->dist_generation;
    for (size_t i = 0; i < ref->n_storages; i++)
        out->storages[i] = ref->storages[i];
    return 0;
}

static bool ref_has_storage(const struct file_ref *ref, uint32_t id)
{
    for (unsigned i = 0; i < ref->n_storages; i++) {
        if (ref->storages[i] == id)
            return true;
    }
    return false;
}

/* A request that is packed in an unusual way may reach another loop, and two loops
 * must never work on one file. */
bool storage_owns(const struct storage *st, const struct file_id *id)
{
    assert(st->config.n_loops <= 1 || st->config.loop < st->config.n_loops);
    return st->config.n_loops <= 1 ||
           file_id_hash(id) % st->config.n_loops == st->config.loop;
}

bool storage_has_fenced(const struct storage *st, const struct rpc_call *call)
{
    return call->role == RPC_ROLE_CLIENT && (st->config.mutant & MUTANT_NO_FENCED) == 0 &&
           revoked_sessions_have(st->config.revoked, call->session);
}

/* Parses the ref of a request, and checks that the request is for this storage. */
static int ref_parse_ours(struct storage *st, const Rozo__FileRef *ref,
                          uint32_t to_storage, struct file_ref *out)
{
    uint32_t us = identity_storage_id(st->config.identity);
    int rc = ref_parse(ref, out);

    if (rc != 0)
        return rc;
    if (us == 0)
        return -ROZO_ENOT_ADMITTED;
    return to_storage == us ? 0 : -ROZO_EWRONG_STORAGE;
}

int st_op_ref_check_elsewhere(struct storage *st, const Rozo__FileRef *ref,
                              uint32_t to_storage, struct file_ref *out)
{
    int rc = ref_parse_ours(st, ref, to_storage, out);

    if (rc != 0)
        return rc;
    return ref_has_storage(out, to_storage) || !storage_owns(st, &out->id) ? -EBADMSG : 0;
}

int st_op_ref_check(struct storage *st, const struct rpc_call *call,
                    const Rozo__FileRef *ref, uint32_t to_storage, unsigned rights,
                    struct file_ref *out)
{
    int rc = ref_parse_ours(st, ref, to_storage, out);

    if (rc != 0)
        return rc;
    if (!ref_has_storage(out, to_storage) || !storage_owns(st, &out->id))
        return -EBADMSG;
    if (call->role == RPC_ROLE_NODE)
        return 0;
    if ((rights & CAPABILITY_WRITE) != 0 && storage_has_fenced(st, call))
        return -ROZO_EFENCED;
    return capability_verify(st->config.key, &out->id, rights, ref->capability.data,
                             ref->capability.len);
}

static void on_op_task(struct env_task *task)
{
    struct st_op *op = container_of(task, struct st_op, task);

    st_op_run_next(op);
}

static void on_op_locked(struct env_task *task)
{
    struct st_op *op = container_of(task, struct st_op, wait.task);

    assert(op->held == OP_HOLDS_NOTHING && op->obj != NULL);
    op->held = op->wait.exclusive ? OP_HOLDS_EXCLUSIVE : OP_HOLDS_SHARED;
    st_op_run_next(op);
}

static void on_op_synced(struct env_task *task)
{
    struct st_op *op = container_of(task, struct st_op, sync.task);

    assert(op->syncing && op->obj != NULL);
    op->rc = op->sync.rc;
    st_op_run_next(op);
}

static void clients_go_on(struct storage *st)
{
    uint64_t now = env_now_ns(st->env), passed = now - st->clients.from_ns;

    if (passed < CLIENTS_SPAN_NS)
        return;
    st->clients.n_before = passed < 2 * CLIENTS_SPAN_NS ? st->clients.n : 0;
    st->clients.n = 0;
    st->clients.from_ns = now;
}

bool storage_serves_clients(struct storage *st)
{
    clients_go_on(st);
    return st->clients.n + st->clients.n_before >= CLIENTS_MIN;
}

struct st_op *st_op_new(struct storage *st, struct rpc_call *call,
                        const struct st_op_kind *kind)
{
    struct st_op *op = calloc(1, kind->bytes);

    assert(kind->bytes >= sizeof(*op) && kind->steps[0] != NULL);
    if (op == NULL && call != NULL)
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
    if (op == NULL)
        return NULL;
    if (call != NULL && call->role != RPC_ROLE_NODE) {
        clients_go_on(st);
        st->clients.n++;
    }
    op->st = st;
    op->call = call;
    op->kind = kind;
    op->task.fn = on_op_task;
    op->wait.task.fn = on_op_locked;
    op->sync.task.fn = on_op_synced;
    list_init(&op->journal.room.link);
    op->next = st->ops;
    if (op->next != NULL)
        op->next->prev = op;
    st->ops = op;
    st->n_ops++;
    return op;
}

struct st_op *st_op_new_internal(struct storage *st, const struct pending_file *f,
                                 const struct st_op_kind *kind,
                                 void (*done)(void *arg, int rc), void *arg)
{
    struct st_op *op = st_op_new(st, NULL, kind);

    assert(f != NULL && done != NULL);
    if (op == NULL)
        return NULL;
    op->internal_done = done;
    op->internal_arg = arg;
    op->ref = (struct file_ref){
        .id = f->ref.id,
        .codec = f->codec,
        .kind = f->ref.codec,
        .layout = f->ref.layout,
        .n_storages = f->ref.n_storages,
        .block_bytes = f->ref.block_bytes,
        .full_quorum = f->ref.full_quorum,
        .dist_generation = f->ref.dist_generation,
    };
    memcpy(op->ref.storages, f->ref.storages, sizeof(op->ref.storages));
    return op;
}

void st_op_end_internal(struct st_op *op, int rc)
{
    void (*done)(void *arg, int rc) = op->internal_done;
    void *arg = op->internal_arg;

    assert(op->call == NULL && done != NULL);
    st_op_free(op);
    done(arg, rc);
}

void st_op_start(struct st_op *op, int rc)
{
    assert(op->step == 0 && op->held == OP_HOLDS_NOTHING);
    if (rc != 0)
        st_op_fail(op, rc);
    else
        env_post(op->st->env, &op->task);
}

void st_op_unlock(struct st_op *op)
{
    assert(op->held == OP_HOLDS_NOTHING || op->obj != NULL);
    if (op->held != OP_HOLDS_NOTHING)
        object_unlock(op->obj, op->held == OP_HOLDS_EXCLUSIVE);
    op->held = OP_HOLDS_NOTHING;
}

static void st_op_let_go(struct st_op *op)
{
    st_op_unlock(op);
    if (op->obj != NULL)
        object_put(op->obj);
    op->obj = NULL;
}

static void stop_when_quiet(struct storage *st)
{
    assert(st->n_sending <= st->n_ops);
    if (st->stopping && st->n_ops == st->n_sending)
        env_post(st->env, &st->stop_task);
}

void st_op_sending(struct st_op *op)
{
    assert(op->call != NULL && !op->sending);
    st_op_unlock(op);
    op->sending = true;
    op->st->n_sending++;
    stop_when_quiet(op->st);
}

void st_op_free(struct st_op *op)
{
    struct storage *st = op->st;
    bool sending = op->sending;

    assert(op->prev != NULL ? op->prev->next == op : st->ops == op);
    assert(op->journal.append == NULL && list_is_empty(&op->journal.room.link));
    assert(op->journal.sync == WAL_SYNC_NONE || op->journal.sync == WAL_SYNC_JOINED);
    st_op_let_go(op);
    if (op->next != NULL)
        op->next->prev = op->prev;
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        st->ops = op->next;
    if (op->kind->free != NULL)
        op->kind->free(op);
    if (op->journal.entry != NULL)
        journal_index_put_frame(journal_get_index(st->journal), op->journal.entry);
    free(op->front);
    free(op);
    assert(st->n_ops > 0);
    st->n_ops--;
    if (sending)
        st->n_sending--;
    else
        stop_when_quiet(st);
}

void st_op_enter_again(struct st_op *op)
{
    st_op_let_go(op);
    op->enter.state = ENTER_OBJECT;
}

struct pending_file *st_op_pending_file(const struct st_op *op)
{
    return journal_index_find(journal_get_index(op->st->journal), &op->ref.id);
}

void st_op_finish(struct st_op *op, uint16_t status)
{
    assert(op->call != NULL && !op->sending);
    rpc_reply_status(op->call, status);
    st_op_free(op);
}

void st_op_fail(struct st_op *op, int rc)
{
    assert(rc != 0);
    if (op->call == NULL) {
        st_op_end_internal(op, rc);
        return;
    }
    st_op_finish(op, status_from_errno(rc));
}

void st_op_fail_busy(struct st_op *op)
{
    st_op_fail(op, op->rc == -ENOSPC ? -EBUSY : op->rc);
}

void st_op_finish_message(struct st_op *op, uint16_t status, const ProtobufCMessage *msg)
{
    assert(op->call != NULL && !op->sending);
    reply_message(op->call, status, msg);
    st_op_free(op);
}

/* ---- steps ---- */

static void op_is_done(struct st_op *op)
{
    if (op->kind->done != NULL)
        op->kind->done(op);
    else if (op->call == NULL)
        st_op_end_internal(op, 0);
    else
        st_op_finish(op, ROZO__STATUS__OK);
}

static void op_has_failed(struct st_op *op)
{
    assert(op->rc != 0);
    if (op->kind->failed != NULL)
        op->kind->failed(op);
    else
        st_op_fail(op, op->rc);
}

/* Lets a step be the next one. */
static void op_goto(struct st_op *op, st_op_step *step)
{
    op->step = 0;
    while (op->kind->steps[op->step] != step) {
        assert(op->kind->steps[op->step] != NULL);
        op->step++;
    }
}

void st_op_run_next(struct st_op *op)
{
    for (;;) {
        st_op_step *step = op->kind->steps[op->step];

        switch (step == NULL ? OP_DONE : step(op)) {
        case OP_GO:
            op->step++;
            continue;
        case OP_AGAIN:
            st_op_enter_again(op);
            op_goto(op, st_op_enter);
            continue;
        case OP_WAIT:
            return;
        case OP_BAD:
            op_has_failed(op);
            return;
        case OP_DONE:
            op_is_done(op);
            return;
        }
    }
}

enum st_op_next st_op_sync_all(struct st_op *op)
{
    assert(op->obj != NULL);
    if (op->syncing) {
        op->syncing = false;
        return op->rc == 0 ? OP_GO : OP_BAD;
    }
    if (object_sync(op->obj, &op->sync))
        return OP_GO;
    op->syncing = true;
    return OP_WAIT;
}

enum st_op_next st_op_sync(struct st_op *op)
{
    if (!op->syncing && op->call != NULL && op->obj->n_synced >= op->obj->n_asked)
        return OP_GO;
    return st_op_sync_all(op);
}

uint64_t storage_verifier(const struct storage *st)
{
    journal_tell_failures(st->journal);
    return st->config.boot + generations_failures(st->config.generations);
}

void reply_message(struct rpc_call *call, uint16_t status, const ProtobufCMessage *msg)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *buf = malloc(len + 1);

    if (buf == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        return;
    }
    protobuf_c_message_pack(msg, buf);
    rpc_reply(call, status, buf, len, NULL, 0, NULL, NULL);
    free(buf);
}

/* ---- disk ---- */

static bool is_change(enum disk_op what)
{
    return what == DISK_WRITE || what == DISK_TRUNCATE || what == DISK_PUNCH ||
           what == DISK_ALLOCATE || what == DISK_GIVE_BACK;
}

void st_op_tell_damaged(const struct st_op *op, uint64_t first, uint64_t end)
{
    const struct storage_config *config = &op->st->config;
    struct storage_damaged what = { .first = first, .end = end };

    if (config->damaged == NULL)
        return;
    what.file = st_op_file(op);
    config->damaged(config->damaged_arg, &what);
}

/* Reports pages of a projection file that cannot be read; all blocks of their extents
 * must be checked. */
static void tell_lost(const struct st_op *op, const struct disk_req *req)
{
    uint64_t end = req->offset + req->len;

    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = op->obj->proj[p];

        if (proj == NULL || proj->file != req->file)
            continue;
        log_error(
            "projection %u of file %08x%08x%016llx: %u pages from byte %llu on cannot "
            "be read",
            p, op->ref.id.export_id, op->ref.id.generation,
            (unsigned long long)op->ref.id.ino, req->n_lost,
            (unsigned long long)req->offset);
        if (req->offset < PROJFILE_EXTENTS_AT)
            st_op_tell_damaged(op, 0, UINT64_MAX);
        else
            st_op_tell_damaged(op, geometry_extent_of(&proj->geo, req->offset),
                               geometry_extent_of(&proj->geo, end - 1) + EXTENT_BLOCKS);
    }
}

static void on_op_disk(struct disk_req *req, int rc)
{
    struct st_op *op = req->arg;

    assert(req == &op->dr);
    op->rc = rc;
    if (req->n_lost > 0)
        tell_lost(op, req);
    if (is_change(req->op)) { /* counted now: a sync under way may have missed it */
        op->dr_proj->dirty = true;
        op->obj->n_changes++;
        if (op->call != NULL)
            op->obj->n_asked = op->obj->n_changes;
    }
    st_op_run_next(op);
}

void st_op_submit(struct st_op *op)
{
    assert(!is_change(op->dr.op) ||
           (op->dr_proj != NULL && op->held == OP_HOLDS_EXCLUSIVE));
    op->dr.done = on_op_disk;
    op->dr.arg = op;
    disk_submit(op->st->disk, &op->dr);
}

void st_op_read(struct st_op *op, struct proj *proj, uint64_t offset, void *buf,
                uint64_t len)
{
    assert(proj->file != NULL && len > 0);
    op->iov = (struct iovec){ .iov_base = buf, .iov_len = len };
    op->dr = (struct disk_req){
        .op = DISK_READ,
        .file = proj->file,
        .offset = offset,
        .len = len,
        .iov = &op->iov,
        .n_iov = 1,
    };
    st_op_submit(op);
}

void st_op_write(struct st_op *op, struct proj *proj, uint64_t offset,
                 const struct iovec *iov, unsigned n_iov, uint64_t len)
{
    assert(proj->file != NULL && n_iov > 0 && len > 0);
    op->dr = (struct disk_req){
        .op = DISK_WRITE,
        .file = proj->file,
        .offset = offset,
        .len = len,
        .iov = iov,
        .n_iov = n_iov,
    };
    op->dr.salvages = st_op_is_decided(op); /* clients have spares */
    op->dr_proj = proj;
    if (offset + len > proj->size)
        proj->size = offset + len; /* a failed write may have written any part */
    st_op_submit(op);
}

void st_op_disk(struct st_op *op, enum disk_op what, struct proj *proj, uint64_t offset,
                uint64_t len)
{
    assert(proj->file != NULL);
    op->dr = (struct disk_req){
        .op = what,
        .file = proj->file,
        .offset = offset,
        .len = len,
    };
    op->dr_proj = proj;
    st_op_submit(op);
}

bool st_op_read_heads(struct st_op *op, struct proj *proj, uint64_t first, unsigned n,
                      uint8_t *buf)
{
    uint64_t offset = geometry_head_at(&proj->geo, first);
    uint64_t len = n * proj->geo.head_bytes;

    assert(n > 0 && n <= extent_part(first, UINT64_MAX));
    if (offset >= proj->size) {
        memset(buf, 0, len);
        return false;
    }
    st_op_read(op, proj, offset, buf, len);
    return true;
}

void st_op_read_heads_done(struct st_op *op, uint8_t *buf)
{
    assert(op->dr.n_read <= op->dr.len);
    memset(buf + op->dr.n_read, 0, op->dr.len - op->dr.n_read);
}

/* ---- space ---- */

uint64_t storage_space_left(const struct storage *st)
{
    uint64_t taken =
        disk_reserve(st->config.reserve_bytes, st->space_total) + st->space_used_since;

    return st->space_free > taken ? st->space_free - taken : 0;
}

/* True if the last DISK_SPACE is good enough: half a second while there is plenty of
 * space, whoever else writes to the device. Near the end each write asks again, or the
 * reserve would be used up. */
static bool space_is_fresh(const struct storage *st, uint64_t len)
{
    uint64_t age_ns = env_now_ns(st->env) - st->space_at_ns;

    return st->space_known && age_ns < ms_to_ns(SPACE_MAX_AGE_MS) &&
           storage_space_left(st) > SPACE_PLENTY + len;
}

enum st_op_next st_op_space(struct st_op *op, uint64_t len)
{
    struct storage *st = op->st;

    if (op->dr.op == DISK_SPACE) { /* the answer to our request */
        op->dr.op = DISK_STAT;     /* the next call asks again */
        if (op->rc != 0)
            return OP_BAD;
        st->space_known = true;
        st->space_at_ns = env_now_ns(st->env);
        st->space_total = op->dr.total;
        st->space_free = op->dr.free;
        st->space_used_since = 0;
    } else if (!space_is_fresh(st, len)) {
        op->dr = (struct disk_req){ .op = DISK_SPACE };
        st_op_submit(op);
        return OP_WAIT;
    }
    if (storage_space_left(st) < len)
        return st_op_bad(op, -ENOSPC);
    st->space_used_since += len;
    return OP_GO;
}
