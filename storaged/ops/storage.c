/*
 * storage.c - the dispatcher of the storage daemon; ST_INFO, ST_ADMIT, start and stop.
 *
 * In:     storage_handle(), from the shell. Thread: the storio loop.
 * Out:    rpc_reply(), struct disk.
 * Keeps:  every call is answered once; the number of requests under way is bounded (I9).
 */
#include "storaged/ops/storage.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/wire/status.h"
#include "storaged/ops/st_requests.h"

enum {
    FILES_MAX_DEFAULT = 1024,
    OPS_MAX_DEFAULT = 4096,
    JOURNAL_BYTES_DEFAULT = 256 << 20,
};

/* ---- ST_INFO ---- */

/* Says which map is kept. The healer's loop may replace it meanwhile: then none. */
static void info_map(const struct identity *id, Rozo__StInfoResp *resp)
{
    uint64_t start = atomic_load(&id->map_start);

    resp->map_version = atomic_load(&id->map_version);
    resp->map_returns = (uint32_t)(start >> 32);
    if (identity_start(resp->map_version, resp->map_returns) != start)
        resp->map_version = 0;
}

static void info_reply(struct st_op *op)
{
    const struct storage_config *config = &op->st->config;
    Rozo__StInfoResp resp = ROZO__ST_INFO_RESP__INIT;
    struct identity *id = config->identity;

    resp.version = (char *)(uintptr_t)config->version;
    resp.host = (char *)(uintptr_t)config->host;
    resp.rack = (char *)(uintptr_t)config->rack;
    resp.data_dir = (char *)(uintptr_t)config->data_dir;
    resp.addresses = (char **)(uintptr_t)config->addresses;
    resp.n_addresses = config->n_addresses;
    resp.incarnation.data = id->incarnation;
    resp.incarnation.len = IDENTITY_ID_BYTES;
    resp.storage_id = identity_storage_id(id);
    info_map(id, &resp);
    if (resp.storage_id != 0) {
        resp.cluster_id.data = id->cluster_id;
        resp.cluster_id.len = IDENTITY_ID_BYTES;
    }
    resp.stream_bytes = config->stream_bytes;
    resp.link_bytes = config->link_bytes;
    resp.total_bytes = op->st->space_total;
    resp.free_bytes = storage_space_left(op->st);
    resp.disk_id = config->disk_id;
    resp.knows_full_quorum = true;
    resp.knows_returns = true;
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

/* Forces a fresh value. */
static enum st_op_next info_forget(struct st_op *op)
{
    op->st->space_known = false;
    return OP_GO;
}

static enum st_op_next info_space(struct st_op *op)
{
    return st_op_space(op, 0);
}

static const struct st_op_kind info_kind = {
    .bytes = sizeof(struct st_op),
    .done = info_reply,
    .steps = { info_forget, info_space },
};

void storage_handle_info(struct storage *st, struct rpc_call *call)
{
    struct st_op *op = st_op_new(st, call, &info_kind);

    if (op != NULL)
        st_op_start(op, 0);
}

/* ---- ST_ADMIT ---- */

struct admit_op {
    struct st_op op; /* must be first */
    uint8_t cluster_id[IDENTITY_ID_BYTES];
    uint32_t storage_id;
    bool rebuild, saving;
    char text[IDENTITY_TEXT_MAX];
};

/* Checks whether we are admitted already; then a repeated request is fine. */
static enum st_op_next admit_check(struct st_op *op)
{
    const struct admit_op *a = (const struct admit_op *)op;
    const struct identity *id = op->st->config.identity;
    uint32_t us = identity_storage_id(id);

    if (us == 0 && op->st->admitting)
        return st_op_bad(op, -EBUSY);
    if (us == 0)
        return OP_GO;
    return us == a->storage_id &&
                   memcmp(id->cluster_id, a->cluster_id, IDENTITY_ID_BYTES) == 0
               ? OP_DONE
               : st_op_bad(op, -ROZO_EWRONG_STORAGE);
}

static enum st_op_next admit_save(struct st_op *op)
{
    struct admit_op *a = (struct admit_op *)op;

    if (a->saving) {
        op->st->admitting = false;
        return op->rc == 0 ? OP_GO : OP_BAD;
    }
    a->saving = op->st->admitting = true;
    op->iov.iov_base = a->text;
    op->iov.iov_len = identity_print(a->text, op->st->config.identity->incarnation,
                                     a->cluster_id, a->storage_id, a->rebuild);
    op->dr = (struct disk_req){
        .op = DISK_REPLACE,
        .path = IDENTITY_FILE,
        .iov = &op->iov,
        .n_iov = 1,
        .len = op->iov.iov_len,
    };
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next admit_take(struct st_op *op)
{
    const struct admit_op *a = (const struct admit_op *)op;
    struct storage *st = op->st;
    struct identity *id = st->config.identity;

    memcpy(id->cluster_id, a->cluster_id, IDENTITY_ID_BYTES);
    atomic_store_explicit(&id->rebuild, a->rebuild, memory_order_release);
    atomic_store_explicit(&id->storage_id, a->storage_id, memory_order_release);
    log_info("admitted as storage %u%s", (unsigned)a->storage_id,
             a->rebuild ? ", in place of a lost one" : "");
    if (st->config.admitted != NULL)
        st->config.admitted(st->config.arg);
    return OP_GO;
}

static const struct st_op_kind admit_kind = {
    .bytes = sizeof(struct admit_op),
    .steps = { admit_check, admit_save, admit_take },
};

static int admit_parse(struct admit_op *a, const struct rpc_call *call,
                       const Rozo__StAdmitReq *req)
{
    static const uint8_t none[IDENTITY_ID_BYTES];

    if (req == NULL || req->cluster_id.len != IDENTITY_ID_BYTES || req->storage_id == 0 ||
        memcmp(req->cluster_id.data, none, IDENTITY_ID_BYTES) == 0)
        return -EBADMSG;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    memcpy(a->cluster_id, req->cluster_id.data, IDENTITY_ID_BYTES);
    a->storage_id = req->storage_id;
    a->rebuild = req->replaces;
    return 0;
}

void storage_handle_admit(struct storage *st, struct rpc_call *call)
{
    Rozo__StAdmitReq *req = rozo__st_admit_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &admit_kind);

    if (op != NULL)
        st_op_start(op, admit_parse((struct admit_op *)op, call, req));
    rozo__st_admit_req__free_unpacked(req, NULL);
}

/* ---- the dispatcher ---- */

static const struct {
    uint16_t op;
    void (*handle)(struct storage *st, struct rpc_call *call);
} handlers[] = {
    { ROZO__OP__ST_WRITE, storage_handle_write },
    { ROZO__OP__ST_READ, storage_handle_read },
    { ROZO__OP__ST_MARK, storage_handle_mark },
    { ROZO__OP__ST_SYNC, storage_handle_sync },
    { ROZO__OP__ST_REMOVE, storage_handle_remove },
    { ROZO__OP__ST_STAT, storage_handle_stat },
    { ROZO__OP__ST_NEXT, storage_handle_next },
    { ROZO__OP__ST_ALLOC, storage_handle_alloc },
    { ROZO__OP__ST_COMMIT, storage_handle_commit },
    { ROZO__OP__ST_FENCE, storage_handle_fence },
    { ROZO__OP__ST_DROP, storage_handle_drop },
    { ROZO__OP__ST_INFO, storage_handle_info },
    { ROZO__OP__ST_ADMIT, storage_handle_admit },
    { ROZO__OP__ST_REDIST, storage_handle_redist },
};

/* Refuses requests of an exportd that was replaced, and of one whose map is not on stable
 * storage here. An admission comes before any map, and it and a removal stay right
 * whoever leads. */
static int start_check(const struct storage *st, const struct rpc_call *call)
{
    bool early = call->op == ROZO__OP__ST_ADMIT || call->op == ROZO__OP__ST_REMOVE;
    int rc = call->role == RPC_ROLE_NODE
                 ? identity_check_start(st->config.identity, call->session)
                 : 0;

    return rc == -EBUSY && early ? 0 : rc;
}

void storage_handle(void *storage, struct rpc_call *call)
{
    struct storage *st = storage;
    int rc = -ENOSYS;

    if (!st->serving || st->stopping || st->n_ops >= st->config.ops_max) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (handlers[i].op != call->op)
            continue;
        rc = start_check(st, call);
        if (rc == 0)
            handlers[i].handle(st, call);
        break;
    }
    if (rc != 0)
        rpc_reply_status(call, status_from_errno(rc));
}

/* Reads a varint of at most 10 bytes. Returns false if it does not end before `end`. */
static bool varint_take(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t byte = *(*p)++;

        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Reads the length of field 1 (bytes), which clients put first in a message. */
static bool field_one_take(const uint8_t **p, const uint8_t *end, uint64_t *len)
{
    uint64_t tag;

    return varint_take(p, end, &tag) && tag == (1 << 3 | 2) && varint_take(p, end, len) &&
           *len <= (uint64_t)(end - *p);
}

uint32_t storage_route(uint16_t op, const uint8_t *msg, size_t msg_len)
{
    const uint8_t *p = msg, *end = msg + msg_len;
    struct file_id id;
    uint64_t len;

    if (op == ROZO__OP__ST_INFO || op == ROZO__OP__ST_ADMIT)
        return 0;
    if (!field_one_take(&p, end, &len))
        return 0;
    if (op != ROZO__OP__ST_REMOVE) {
        end = p + len;
        if (!field_one_take(&p, end, &len))
            return 0;
    }
    if (len != FILE_ID_BYTES)
        return 0;
    file_id_get(p, &id);
    return file_id_hash(&id);
}

/* ---- start and stop ---- */

static void stop_step(struct storage *st);

static void on_journal_stopped(void *arg)
{
    struct storage *st = arg;

    assert(st->stop_state == STOP_JOURNAL && st->n_ops == st->n_sending);
    st->stop_state = STOP_SYNC;
    env_post(st->env, &st->stop_task);
}

static void on_stop_task(struct env_task *task)
{
    stop_step(container_of(task, struct storage, stop_task));
}

static void on_stop_synced(struct env_task *task)
{
    struct storage *st = container_of(task, struct storage, stop_wait.task);

    object_put(st->stop_object); /* a failure is already logged */
    stop_step(st);
}

/* Syncs the next object that needs it. All objects are idle, since no request is under
 * way. */
static void stop_step(struct storage *st)
{
    struct object *obj;

    assert(st->stopping);
    if (st->stop_state == STOP_REQUESTS) {
        st->stop_state = STOP_JOURNAL;
        journal_stop(st->journal, on_journal_stopped, st);
    }
    if (st->stop_state != STOP_SYNC)
        return;
    while ((obj = objects_next_unsynced(&st->objects)) != NULL) {
        st->stop_object = obj;
        if (!object_sync(obj, &st->stop_wait))
            return;
        object_put(obj);
    }
    st->stop_state = STOP_DONE;
    st->stop_done(st->stop_arg);
}

void storage_stop(struct storage *st, void (*done)(void *arg), void *arg)
{
    assert(!st->stopping);
    st->stopping = true;
    st->stop_done = done;
    st->stop_arg = arg;
    if (st->n_ops == st->n_sending)
        env_post(st->env, &st->stop_task);
}

static void on_start_task(struct env_task *task)
{
    struct storage *st = container_of(task, struct storage, start_task);

    journal_start(st->journal, st->start_done, st->start_arg);
}

void storage_start(struct storage *st, void (*done)(void *arg, int rc), void *arg)
{
    assert(!st->serving && !st->stopping);
    st->start_done = done;
    st->start_arg = arg;
    st->start_task.fn = on_start_task;
    env_post(st->env, &st->start_task);
}

static void on_serving(void *arg)
{
    struct storage *st = arg;

    assert(!st->serving);
    st->serving = true;
}

void storage_serve(struct storage *st)
{
    journal_serve(st->journal, on_serving, st);
}

bool storage_close_idle(struct storage *st, unsigned below)
{
    return objects_close_idle(&st->objects, below);
}

void storage_health(const struct storage *st, Rozo__StHealthResp *out)
{
    static char sick[] = "its disk fails: many errors in a short time";
    const struct bad_page_disk *d = &st->bad_pages;

    journal_health(st->journal, out);
    if (bad_page_disk_is_failing(d))
        out->problem = sick;
    out->unreadable_pages += d->n_known;
    out->disk_errors += d->n_read_errors + d->n_write_errors;
}

static void uncommitted_add(struct storage_uncommitted *out, uint64_t first, uint64_t end,
                            uint64_t version, uint64_t age_ns)
{
    assert(first < end && version != 0);
    out->first = first < out->first ? first : out->first;
    out->end = end > out->end ? end : out->end;
    out->newest = version > out->newest ? version : out->newest;
    out->age_ns = age_ns > out->age_ns ? age_ns : out->age_ns;
}

/* Describes the uncommitted records and marks of f as one range. */
static bool uncommitted_of(struct pending_file *f, uint64_t now_ns,
                           struct storage_uncommitted *out)
{
    *out = (struct storage_uncommitted){ .file = f->ref, .first = UINT64_MAX };
    LIST_FOREACH(node, &f->records[false]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (!r->committed)
            uncommitted_add(out, r->block, r->block + 1, r->version,
                            now_ns - r->since_ns);
    }
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (!m->committed)
            uncommitted_add(out, m->first, m->end, m->version, now_ns - m->since_ns);
    }
    return out->newest != 0;
}

/* True if the file is known to be damaged. */
static bool is_damaged(struct storage *st, const struct file_id *id)
{
    struct object *obj;
    bool damaged;

    if (object_get(&st->objects, id, &obj) != 0)
        return false;
    damaged = object_damaged(obj) != 0;
    object_put(obj);
    return damaged;
}

bool storage_next_uncommitted(struct storage *st, uint64_t older_than_ns,
                              uint64_t *cursor, struct storage_uncommitted *out)
{
    uint64_t now_ns = env_now_ns(st->env);

    LIST_FOREACH(node, &journal_get_index(st->journal)->files) {
        struct pending_file *f = container_of(node, struct pending_file, link);

        if (f->serial <= *cursor || f->n_records + f->n_marks == f->n_committed)
            continue;
        *cursor = f->serial;
        if (!uncommitted_of(f, now_ns, out) || out->age_ns < older_than_ns)
            continue;
        if (is_damaged(st, &out->file.id)) {
            out->first = 0; /* a damaged file is repaired as a whole */
            out->end = UINT64_MAX;
        }
        return true;
    }
    return false;
}

static bool on_owns(void *storage, const struct file_id *id)
{
    return storage_owns(storage, id);
}

static int storage_journal_new(struct storage *st)
{
    const struct storage_config *c = &st->config;
    const struct journal_config config = {
        .env = st->env,
        .disk = st->disk,
        .objects = &st->objects,
        .identity = c->identity,
        .generations = c->generations,
        .n_loops = c->n_loops,
        .loop = c->loop,
        .journal_bytes = c->journal_bytes,
        .reserve_bytes = c->reserve_bytes,
        .apply_uncommitted = (c->mutant & MUTANT_NO_COMMIT_RULE) != 0,
        .believe_any_crc = (c->mutant & MUTANT_NO_CRC_CHECK) != 0,
        .hooks = { on_owns, storage_resolve, storage_apply_records, storage_apply_mark,
                   st },
    };

    return journal_new(&config, &st->journal);
}

int storage_open(const struct storage_config *config, struct storage **out)
{
    struct storage *st = calloc(1, sizeof(*st));
    int rc;

    if (st == NULL)
        return -ENOMEM;
    st->config = *config;
    if (st->config.ops_max == 0)
        st->config.ops_max = OPS_MAX_DEFAULT;
    if (st->config.files_max == 0)
        st->config.files_max = FILES_MAX_DEFAULT;
    if (st->config.journal_bytes == 0)
        st->config.journal_bytes = JOURNAL_BYTES_DEFAULT;
    st->env = config->env;
    bad_page_disk_init(&st->bad_pages, config->env, config->disk);
    st->disk = &st->bad_pages.disk;
    st->copies.idle_max_bytes = COPIES_IDLE_MAX;
    st->stop_task.fn = on_stop_task;
    st->stop_wait.task.fn = on_stop_synced;
    rc = objects_init(&st->objects, st->env, st->disk, config->generations,
                      st->config.files_max);
    if (rc == 0)
        rc = storage_journal_new(st);
    if (rc != 0) {
        objects_close(&st->objects); /* accepts a failed init */
        free(st);
        return rc;
    }
    *out = st;
    return 0;
}

void storage_close(struct storage *st)
{
    if (st == NULL)
        return;
    assert(st->n_ops == 0);
    journal_free(st->journal);
    objects_close(&st->objects);
    bufpool_trim(&st->copies);
    free(st);
}
