/*
 * op.c - what all requests on a file have in common.
 *
 * In:     the ops of this folder. Thread: the storio loop.
 * Out:    struct disk, object.h, rpc_reply().
 * Keeps:  no request touches a projection file before its header page was believed; a file whose
 *         creation did not get to its end counts as absent, everything else as damaged.
 * Ask:    projfile.h for the bytes.
 */
#include "storaged/core/op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/status.h"

enum {
    SPACE_MAX_AGE_MS = 500,
    SPACE_PLENTY = 1 << 30, /* nobody writes so much in SPACE_MAX_AGE_MS */
    SPACE_RESERVE_MAX = 64 << 20,
    REPLY_MESSAGE_MAX = 65536,
};

/* ---- the beginning and the end ---- */

enum op_next op_bad(struct op *op, int rc)
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

/* Who packs a request oddly may get it to another loop: two must never work on one file. */
bool storage_owns(const struct storage *st, const struct file_id *id)
{
    return st->config.n_loops <= 1 ||
           file_id_hash(id) % st->config.n_loops == st->config.loop;
}

int op_ref_check(struct storage *st, const struct rpc_call *call,
                 const Rozo__FileRef *ref, uint32_t to_storage, unsigned rights,
                 struct file_ref *out)
{
    uint32_t us = identity_storage_id(st->config.identity);
    int rc = ref_parse(ref, out);

    if (rc != 0)
        return rc;
    if (us == 0)
        return -EUNATCH;
    if (to_storage != us)
        return -ENXIO;
    if (!ref_has_storage(out, us) || !storage_owns(st, &out->id))
        return -EBADMSG;
    if (call->role == RPC_ROLE_NODE)
        return 0;
    return capability_verify(st->config.key, &out->id, rights, ref->capability.data,
                             ref->capability.len);
}

static void on_op_task(struct env_task *task)
{
    struct op *op = (struct op *)((char *)task - offsetof(struct op, task));

    op->step(op);
}

static void on_op_locked(struct env_task *task)
{
    struct op *op = (struct op *)((char *)task - offsetof(struct op, wait.task));

    op->held = op->wait.exclusive ? OP_HOLDS_EXCLUSIVE : OP_HOLDS_SHARED;
    op->step(op);
}

static void on_op_synced(struct env_task *task)
{
    struct op *op = (struct op *)((char *)task - offsetof(struct op, sync.task));

    op->rc = op->sync.rc;
    op->step(op);
}

struct op *op_new(struct storage *st, struct rpc_call *call, size_t size_bytes,
                  void (*step)(struct op *op), void (*free_more)(struct op *op))
{
    struct op *op = calloc(1, size_bytes);

    assert(size_bytes >= sizeof(*op));
    if (op == NULL)
        return NULL;
    op->st = st;
    op->call = call;
    op->step = step;
    op->free = free_more;
    op->task.fn = on_op_task;
    op->wait.task.fn = on_op_locked;
    op->sync.task.fn = on_op_synced;
    list_init(&op->room_link);
    op->next = st->ops;
    if (op->next != NULL)
        op->next->prev = op;
    st->ops = op;
    st->n_ops++;
    return op;
}

struct op *op_new_internal(struct storage *st, const struct pending_file *f,
                           size_t size_bytes, void (*step)(struct op *op),
                           void (*free_more)(struct op *op),
                           void (*done)(void *arg, int rc), void *arg)
{
    struct op *op = op_new(st, NULL, size_bytes, step, free_more);

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
    };
    memcpy(op->ref.storages, f->ref.storages, sizeof(op->ref.storages));
    return op;
}

void op_end_internal(struct op *op, int rc)
{
    void (*done)(void *arg, int rc) = op->internal_done;
    void *arg = op->internal_arg;

    op_free(op);
    done(arg, rc);
}

void op_start(struct op *op)
{
    env_post(op->st->env, &op->task);
}

void op_unlock(struct op *op)
{
    if (op->held != OP_HOLDS_NOTHING)
        object_unlock(op->obj, op->held == OP_HOLDS_EXCLUSIVE);
    op->held = OP_HOLDS_NOTHING;
}

static void op_let_go(struct op *op)
{
    op_unlock(op);
    if (op->obj != NULL)
        object_put(op->obj);
    op->obj = NULL;
}

static void stop_when_quiet(struct storage *st)
{
    if (st->stopping && st->n_ops == st->n_sending)
        env_post(st->env, &st->stop_task);
}

void op_sending(struct op *op)
{
    op_unlock(op);
    op->sending = true;
    op->st->n_sending++;
    stop_when_quiet(op->st);
}

void op_free(struct op *op)
{
    struct storage *st = op->st;
    bool sending = op->sending;

    op_let_go(op);
    if (op->next != NULL)
        op->next->prev = op->prev;
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        st->ops = op->next;
    if (op->free != NULL)
        op->free(op);
    if (op->entry != NULL)
        pending_entry_put(journal_pending(st->journal), op->entry);
    free(op->front);
    free(op);
    assert(st->n_ops > 0);
    st->n_ops--;
    if (sending)
        st->n_sending--;
    else
        stop_when_quiet(st);
}

void op_enter_again(struct op *op)
{
    op_let_go(op);
    op->enter_state = 0;
}

struct pending_file *op_pending(const struct op *op)
{
    return pending_find(journal_pending(op->st->journal), &op->ref.id);
}

void op_finish(struct op *op, uint16_t status)
{
    rpc_reply_status(op->call, status);
    op_free(op);
}

void op_fail(struct op *op, int rc)
{
    assert(rc != 0);
    if (op->call == NULL) {
        op_end_internal(op, rc);
        return;
    }
    op_finish(op, status_from_errno(rc == -EMFILE ? -EBUSY : rc));
}

void op_finish_message(struct op *op, uint16_t status, const ProtobufCMessage *msg)
{
    reply_message(op->call, status, msg);
    op_free(op);
}

/* Of all, also of what the applier does. */
static enum op_next sync_all(struct op *op)
{
    if (op->syncing) {
        op->syncing = false;
        return op->rc == 0 ? OP_GO : OP_BAD;
    }
    if (object_sync(op->obj, &op->sync))
        return OP_GO;
    op->syncing = true;
    return OP_WAIT;
}

enum op_next op_sync(struct op *op)
{
    if (!op->syncing && op->call != NULL && op->obj->n_synced >= op->obj->n_asked)
        return OP_GO;
    return sync_all(op);
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
           what == DISK_ALLOCATE;
}

static void on_op_disk(struct disk_req *req, int rc)
{
    struct op *op = req->arg;

    op->rc = rc;
    if (is_change(req->op)) { /* now, not before: a sync under way may have missed it */
        op->dr_proj->dirty = true;
        op->obj->n_changes++;
        if (op->call != NULL)
            op->obj->n_asked = op->obj->n_changes;
    }
    op->step(op);
}

void op_submit(struct op *op)
{
    op->dr.done = on_op_disk;
    op->dr.arg = op;
    disk_submit(op->st->disk, &op->dr);
}

void op_read(struct op *op, struct proj *proj, uint64_t offset, void *buf, uint64_t len)
{
    op->iov = (struct iovec){ .iov_base = buf, .iov_len = len };
    op->dr = (struct disk_req){
        .op = DISK_READ,
        .file = proj->file,
        .offset = offset,
        .len = len,
        .iov = &op->iov,
        .n_iov = 1,
    };
    op_submit(op);
}

void op_write(struct op *op, struct proj *proj, uint64_t offset, const struct iovec *iov,
              unsigned n_iov, uint64_t len)
{
    op->dr = (struct disk_req){
        .op = DISK_WRITE,
        .file = proj->file,
        .offset = offset,
        .len = len,
        .iov = iov,
        .n_iov = n_iov,
    };
    op->dr_proj = proj;
    if (offset + len > proj->size)
        proj->size = offset + len; /* even if it fails: nobody knows how much was done */
    op_submit(op);
}

void op_disk(struct op *op, enum disk_op what, struct proj *proj, uint64_t offset,
             uint64_t len)
{
    op->dr = (struct disk_req){
        .op = what,
        .file = proj->file,
        .offset = offset,
        .len = len,
    };
    op->dr_proj = proj;
    op_submit(op);
}

bool op_read_heads(struct op *op, struct proj *proj, uint64_t first, unsigned n,
                   uint8_t *buf)
{
    uint64_t offset = geometry_head_at(&proj->geo, first);
    uint64_t len = n * proj->geo.head_bytes;

    assert(n > 0 && n <= extent_part(first, UINT64_MAX));
    if (offset >= proj->size) {
        memset(buf, 0, len);
        return false;
    }
    op_read(op, proj, offset, buf, len);
    return true;
}

void op_read_heads_done(struct op *op, uint8_t *buf)
{
    assert(op->dr.n_read <= op->dr.len);
    memset(buf + op->dr.n_read, 0, op->dr.len - op->dr.n_read);
}

/* ---- what is known of a projection file ---- */

const struct marks *proj_marks(const struct proj *proj)
{
    static const struct marks none;

    return proj->marks == NULL ? &none : proj->marks;
}

static int marks_keep(struct proj *proj, const struct marks *marks)
{
    if (marks->n == 0) {
        free(proj->marks);
        proj->marks = NULL;
        return 0;
    }
    if (proj->marks == NULL)
        proj->marks = malloc(sizeof(*proj->marks));
    if (proj->marks == NULL)
        return -ENOMEM;
    if (proj->marks != marks)
        *proj->marks = *marks;
    return 0;
}

static const struct marks none_written;

const struct marks *proj_written(const struct proj *proj)
{
    return proj->written == NULL ? &none_written : proj->written;
}

void proj_written_copy(const struct proj *proj, struct marks *out)
{
    const struct marks *w = proj_written(proj);

    out->n = w->n; /* what is kept ends behind its n-th range */
    memcpy(out->ranges, w->ranges, w->n * sizeof(w->ranges[0]));
}

int proj_written_keep(struct proj *proj, const struct marks *written)
{
    size_t len = offsetof(struct marks, ranges) + written->n * sizeof(written->ranges[0]);
    struct marks *copy = written->n == 0 ? NULL : malloc(len);

    if (copy == NULL && written->n != 0)
        return -ENOMEM;
    if (copy != NULL)
        memcpy(copy, written, len);
    free(proj->written);
    proj->written = copy;
    return 0;
}

uint64_t proj_blocks(const struct proj *proj)
{
    const struct marks *written = proj_written(proj);
    uint64_t blocks = geometry_blocks(&proj->geo, proj->size);
    uint64_t end = written->n == 0 ? 0 : written->ranges[written->n - 1].end;

    return blocks > end ? blocks : end;
}

static bool is_lost(const struct proj *proj, uint64_t block)
{
    return marks_find(proj_written(proj), block) != 0 ||
           (proj->partial && marks_find(proj_marks(proj), block) == 0);
}

uint64_t proj_lost_version(const struct proj *proj)
{
    return proj->floor_set ? version_make(proj->floor_epoch, UINT32_MAX) : proj->newest;
}

void proj_set_floor(struct proj *proj)
{
    if (proj->floor_set)
        return;
    proj->floor_set = true;
    proj->floor_epoch = version_epoch(proj->newest);
}

enum record_state op_inspect(const struct op *op, unsigned p, uint64_t block,
                             const uint8_t *head, struct record_header *h)
{
    const struct proj *proj = object_ready(op->obj, p);
    enum record_state state =
        record_inspect(head, op->obj->hash, block, p, op->ref.block_bytes, h);

    if (proj == NULL)
        return state;
    if (record_header_is_zero(head))
        return is_lost(proj, block) ? RECORD_IS_DAMAGED : state;
    /* Nobody looks at the crc of data here. But a page with its epoch was written before it. */
    if (state == RECORD_IS_DATA && version_epoch(h->version) > proj->epoch)
        return RECORD_IS_DAMAGED;
    return state;
}

enum scan_state { SCAN_NEXT, SCAN_SEEKING, SCAN_READING };

static enum op_next scan_read(struct op *op, struct proj *proj, struct head_scan *scan)
{
    scan->n = extent_part(scan->at, scan->end);
    scan->state = SCAN_NEXT;
    if (!op_read_heads(op, proj, scan->at, scan->n, scan->buf))
        return OP_GO;
    scan->state = SCAN_READING;
    return OP_WAIT;
}

/* The extent of the first block >= at that is known to have a head; UINT64_MAX: none. */
static uint64_t written_extent(const struct proj *proj, uint64_t at)
{
    uint64_t block = marks_next(proj_written(proj), at);

    return block == UINT64_MAX ? block : block / EXTENT_BLOCKS * EXTENT_BLOCKS;
}

/* The answer to DISK_NEXT_DATA: on from there. */
static enum op_next scan_found(struct op *op, struct proj *proj, struct head_scan *scan)
{
    uint64_t block;

    scan->state = SCAN_NEXT;
    if (op->rc != 0 && op->rc != -ENODATA)
        return OP_BAD;
    block = op->rc != 0 ? UINT64_MAX : geometry_extent_of(&proj->geo, op->dr.next);
    if (block > written_extent(proj, scan->at))
        block = written_extent(proj, scan->at); /* a hole there is a loss to be seen */
    if (block > scan->at)
        scan->at = block;
    if (scan->at >= scan->end)
        return OP_GO; /* n is 0 */
    return scan_read(op, proj, scan);
}

enum op_next op_scan(struct op *op, struct proj *proj, struct head_scan *scan)
{
    switch ((enum scan_state)scan->state) {
    case SCAN_NEXT:
        scan->at += scan->n;
        scan->n = 0;
        if (scan->at >= scan->end)
            return OP_GO;
        if (!scan->skip_holes)
            return scan_read(op, proj, scan);
        if (geometry_extent_at(&proj->geo, scan->at) >= proj->size) {
            uint64_t block = written_extent(proj, scan->at);

            scan->at = block > scan->at ? block : scan->at;
            if (scan->at < scan->end)
                return scan_read(op, proj, scan);
            scan->at = scan->end;
            return OP_GO;
        }
        scan->state = SCAN_SEEKING;
        op_disk(op, DISK_NEXT_DATA, proj, geometry_head_at(&proj->geo, scan->at), 0);
        return OP_WAIT;
    case SCAN_SEEKING:
        return scan_found(op, proj, scan);
    case SCAN_READING:
        scan->state = SCAN_NEXT;
        if (op->rc != 0)
            return OP_BAD;
        op_read_heads_done(op, scan->buf);
        return OP_GO;
    }
    return OP_BAD;
}

/* ---- looking up projection files ---- */

enum enter_state {
    ENTER_OBJECT,
    ENTER_LOCK,
    ENTER_LOOK,
    ENTER_OPENED,
    ENTER_READ,
    ENTER_EMPTY
};

/* What a power loss may have taken is not held against the file. */
static void written_keep_certain(const struct storage *st, struct marks *written)
{
    const struct generations *g = st->config.generations;
    unsigned n = 0;

    for (unsigned i = 0; i < written->n; i++) {
        struct mark_range r = written->ranges[i];

        if (!generation_is_kept(g, r.version))
            continue;
        written->ranges[n++] = r;
    }
    written->n = n;
}

/* The page in `slot` goes into proj if it is valid and newer than what is there. */
static int front_take_page(struct op *op, unsigned p, int slot, struct marks *marks,
                           struct marks *written)
{
    struct proj *proj = op->obj->proj[p];
    struct marks_page page;
    int rc =
        projfile_marks_get(op->front + PROJFILE_MARKS_AT + slot * PROJFILE_PAGE_BYTES,
                           &page, marks, written);

    if (rc == 0 && (page.file_hash != op->obj->hash || page.projection != p))
        rc = -EUCLEAN;
    if (rc != 0 || page.sequence <= proj->marks_sequence)
        return rc;
    proj->marks_sequence = page.sequence;
    proj->marks_slot = proj->synced_slot = slot;
    proj->partial = page.partial; /* it may have become whole since the header was made */
    if (page.epoch > proj->epoch)
        proj->epoch = page.epoch;
    written_keep_certain(op->st, written);
    rc = marks_keep(proj, marks);
    return rc == 0 ? proj_written_keep(proj, written) : rc;
}

/* The newest valid of the two mark pages goes into proj. */
static int front_marks(struct op *op, unsigned p)
{
    struct marks *got = malloc(2 * sizeof(*got));
    int worst = 0;

    if (got == NULL)
        return -ENOMEM;
    for (int slot = 0; slot < 2; slot++) {
        int rc = front_take_page(op, p, slot, &got[0], &got[1]);

        if (rc == -ENOMEM || rc == -EPROTONOSUPPORT || (rc == -EUCLEAN && worst == 0))
            worst = rc;
    }
    free(got);
    if (worst == -ENOMEM || worst == -EPROTONOSUPPORT)
        return worst;
    return op->obj->proj[p]->marks_slot >= 0 ? 0 : worst; /* one torn, the other whole */
}

/*
 * No page was ever written, or they are gone: only the header speaks of what was written. Who made the
 * file wrote heads or a page at once, and a page before more than the extents of that range.
 */
static int front_no_pages(struct op *op, unsigned p, const struct projfile_header *h)
{
    struct proj *proj = op->obj->proj[p];
    struct marks written = { .n = h->written.end != 0, .ranges = { h->written } };
    uint64_t told = (h->written.end + EXTENT_BLOCKS - 1) / EXTENT_BLOCKS * EXTENT_BLOCKS;

    if (!generation_is_kept(op->st->config.generations, h->written.version))
        return 0; /* a power loss may have taken anything */
    if (proj->size < PROJFILE_MARKS_AT + PROJFILE_PAGE_BYTES ||
        geometry_blocks(&proj->geo, proj->size) > told)
        proj->partial = true;
    return proj_written_keep(proj, &written);
}

/* 0: ready. -ENODATA: perhaps unfinished. -EBADMSG: the request does not know this file. */
static int front_check(struct op *op, unsigned p, size_t len)
{
    struct proj *proj = op->obj->proj[p];
    struct projfile_header h;
    int rc;

    memset(op->front + len, 0, PROJFILE_FRONT_BYTES - len);
    rc = projfile_header_get(op->front, &h);
    if (rc != 0)
        return rc;
    if (len < PROJFILE_PAGE_BYTES)
        return -EUCLEAN; /* cut short within the header page's own zeros */
    if (file_id_hash(&h.id) != op->obj->hash || h.id.ino != op->obj->id.ino ||
        h.id.generation != op->obj->id.generation ||
        h.id.export_id != op->obj->id.export_id)
        return -EUCLEAN;
    if (h.projection != p)
        return -EUCLEAN;
    if (h.codec != op->ref.kind || h.layout != op->ref.layout ||
        h.block_bytes != op->ref.block_bytes || h.stripe != 0)
        return -EBADMSG;
    proj->epoch = h.epoch;
    proj->partial = h.partial;
    rc = front_marks(op, p);
    if (rc == 0 && proj->marks_slot < 0)
        rc = front_no_pages(op, p, &h);
    if (rc != 0)
        return rc;
    if (proj->partial)
        log_warn("%s: lost some of its bytes, or is in place of one that was damaged",
                 op->path);
    proj->newest = (uint64_t)proj->epoch << 32 | UINT32_MAX;
    proj->name_dirty = true; /* nobody knows any more */
    proj->promised = true;
    return 0;
}

static void look_damaged(struct op *op, int why)
{
    log_warn("%s: %s", op->path,
             why == -EPROTONOSUPPORT ? "its format is newer than this build knows"
                                     : "its header or mark pages are damaged");
    object_drop_file(op->obj, op->p, PROJ_DAMAGED);
    if (why == -EPROTONOSUPPORT)
        op->obj->foreign |= UINT32_C(1) << op->p;
}

/* After the front pages were read. */
static enum op_next look_front(struct op *op)
{
    struct object *obj = op->obj;
    int rc = op->rc;

    if (rc == 0)
        rc = front_check(op, op->p, op->dr.n_read);
    if (rc == 0) {
        obj->state[op->p] = PROJ_READY;
        obj->proj[op->p]->dirty = true; /* an earlier process may have left it unsynced */
        obj->n_asked = ++obj->n_changes;
    } else if (rc == -ENODATA) {
        op_disk(op, DISK_NEXT_DATA, obj->proj[op->p], PROJFILE_PAGE_BYTES, 0);
        op->enter_state = ENTER_EMPTY;
        return OP_WAIT;
    } else if (rc == -EUCLEAN || rc == -EPROTONOSUPPORT) {
        look_damaged(op, rc);
    } else {
        object_drop_file(obj, op->p, PROJ_UNKNOWN);
        op->rc = rc;
        return OP_BAD;
    }
    op->enter_state = ENTER_LOOK;
    return OP_GO;
}

static enum op_next look_opened(struct op *op)
{
    if (op->rc == -ENOENT) {
        op->obj->state[op->p] = PROJ_ABSENT;
        op->enter_state = ENTER_LOOK;
        return OP_GO;
    }
    if (op->rc != 0)
        return OP_BAD;
    op->rc = object_add_file(op->obj, op->p, op->dr.file, op->dr.size);
    if (op->rc == 0 && op->front == NULL) {
        op->front = malloc(PROJFILE_FRONT_BYTES);
        op->rc = op->front == NULL ? -ENOMEM : 0;
    }
    if (op->rc != 0) {
        object_drop_file(op->obj, op->p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    op_read(op, op->obj->proj[op->p], 0, op->front, PROJFILE_FRONT_BYTES);
    op->enter_state = ENTER_READ;
    return OP_WAIT;
}

/* A page of zeros where the header should be: only if nothing follows it was it never finished. */
static enum op_next look_empty(struct op *op)
{
    if (op->rc == -ENODATA) {
        object_drop_file(op->obj, op->p, PROJ_ABSENT);
        op->obj->emptied |= UINT32_C(1) << op->p;
    } else if (op->rc == 0) {
        look_damaged(op, -EUCLEAN);
    } else {
        object_drop_file(op->obj, op->p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    op->enter_state = ENTER_LOOK;
    return OP_GO;
}

/* The next projection nobody has looked for; OP_GO when there is none. */
static enum op_next look_next(struct op *op)
{
    struct object *obj = op->obj;

    for (op->p = 0; op->p < CODEC_N_MAX; op->p++) {
        if ((op->want >> op->p & 1) != 0 && obj->state[op->p] == PROJ_UNKNOWN)
            break;
    }
    if (op->p == CODEC_N_MAX)
        return OP_GO;
    op->rc = objects_room_for_file(&op->st->objects);
    if (op->rc != 0)
        return OP_BAD;
    projfile_path(op->path, &obj->id, op->p);
    op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->path };
    op_submit(op);
    op->enter_state = ENTER_OPENED;
    return OP_WAIT;
}

/* With the lock in hand: is it the one we need, on an object that is still the file's? */
static enum op_next enter_locked(struct op *op)
{
    if (op->obj->dead) {
        op_let_go(op);
        op->enter_state = ENTER_OBJECT;
        return OP_GO;
    }
    if (op->held == OP_HOLDS_SHARED && !object_knows(op->obj, op->ref.codec, op->want)) {
        op_unlock(op);
        op->enter_state = ENTER_LOCK;
        return OP_GO;
    }
    if (!object_recode(op->obj, op->ref.codec))
        return op_bad(op, -EBADMSG);
    if (op->look_again)
        object_forget(op->obj);
    op->look_again = false;
    op->enter_state = ENTER_LOOK;
    return OP_GO;
}

static enum op_next enter_lock(struct op *op)
{
    bool exclusive = op->exclusive || !object_knows(op->obj, op->ref.codec, op->want);

    op->enter_state = ENTER_LOCK;
    if (!object_lock(op->obj, &op->wait, exclusive))
        return OP_WAIT;
    op->held = exclusive ? OP_HOLDS_EXCLUSIVE : OP_HOLDS_SHARED;
    return OP_GO;
}

static enum op_next enter_object(struct op *op)
{
    op->rc = object_get(&op->st->objects, &op->ref.id, &op->obj);
    if (op->rc != 0)
        return OP_BAD;
    op->enter_state = ENTER_LOCK;
    return OP_GO;
}

/* Everything is looked up. Those who only read let other readers in. */
static enum op_next enter_done(struct op *op)
{
    if (!op->exclusive && op->held == OP_HOLDS_EXCLUSIVE) {
        object_downgrade(op->obj);
        op->held = OP_HOLDS_SHARED;
    }
    op->rc = 0;
    return OP_GO;
}

enum op_next op_enter(struct op *op)
{
    enum op_next next = OP_GO;

    while (next == OP_GO) {
        switch ((enum enter_state)op->enter_state) {
        case ENTER_OBJECT:
            next = enter_object(op);
            break;
        case ENTER_LOCK:
            next = op->held == OP_HOLDS_NOTHING ? enter_lock(op) : enter_locked(op);
            break;
        case ENTER_LOOK:
            next = look_next(op);
            if (next == OP_GO)
                return enter_done(op);
            break;
        case ENTER_OPENED:
            next = look_opened(op);
            break;
        case ENTER_READ:
            next = look_front(op);
            break;
        case ENTER_EMPTY:
            next = look_empty(op);
            break;
        }
    }
    return next;
}

/* ---- space ---- */

static uint64_t space_reserve(const struct storage *st)
{
    uint64_t one_percent = st->space_total / 100;

    if (st->config.reserve_bytes != UINT64_MAX)
        return st->config.reserve_bytes;
    return one_percent < SPACE_RESERVE_MAX ? one_percent : SPACE_RESERVE_MAX;
}

uint64_t storage_space_left(const struct storage *st)
{
    uint64_t taken = space_reserve(st) + st->space_used_since;

    return st->space_free > taken ? st->space_free - taken : 0;
}

/* What statfs said is good for half a second while there is plenty, whoever else writes to the
 * same device; near the end it is asked for every write, or the reserve would be gone. */
static bool space_is_fresh(const struct storage *st, uint64_t len)
{
    uint64_t age_ns = env_now_ns(st->env) - st->space_at_ns;

    return st->space_known && age_ns < SPACE_MAX_AGE_MS * UINT64_C(1000000) &&
           storage_space_left(st) > SPACE_PLENTY + len;
}

enum op_next op_space(struct op *op, uint64_t len)
{
    struct storage *st = op->st;

    if (op->dr.op == DISK_SPACE) { /* the answer */
        op->dr.op = DISK_STAT;     /* ask anew the next time */
        if (op->rc != 0)
            return OP_BAD;
        st->space_known = true;
        st->space_at_ns = env_now_ns(st->env);
        st->space_total = op->dr.total;
        st->space_free = op->dr.free;
        st->space_used_since = 0;
    } else if (!space_is_fresh(st, len)) {
        op->dr = (struct disk_req){ .op = DISK_SPACE };
        op_submit(op);
        return OP_WAIT;
    }
    if (storage_space_left(st) < len)
        return op_bad(op, -ENOSPC);
    st->space_used_since += len;
    return OP_GO;
}

/* ---- making projection files and mark pages ---- */

static bool is_emptied(const struct object *obj, unsigned p)
{
    return (obj->emptied >> p & 1) != 0;
}

/* Where everything was lost, so was what this file may have had. */
static bool is_partial_when_made(const struct op *op, unsigned p)
{
    return is_emptied(op->obj, p) || identity_is_rebuilt(op->st->config.identity);
}

static void create_header(struct op *op, unsigned p, uint32_t epoch,
                          const struct mark_range *written)
{
    struct projfile_header h = {
        .id = op->ref.id,
        .codec = op->ref.kind,
        .layout = op->ref.layout,
        .projection = (uint8_t)p,
        .n_storages = op->ref.n_storages,
        .block_bytes = op->ref.block_bytes,
        .epoch = epoch,
        .partial = is_partial_when_made(op, p),
    };

    h.written.version = generation_of_note(op->st->config.generations);
    if (written != NULL && !h.partial)
        h.written = *written;
    memcpy(h.storages, op->ref.storages, sizeof(h.storages));
    projfile_header_put(op->front, &h);
}

static enum op_next create_open(struct op *op, unsigned p)
{
    op->rc = objects_room_for_file(&op->st->objects);
    if (op->rc == 0 && op->front == NULL) {
        op->front = malloc(PROJFILE_FRONT_BYTES);
        op->rc = op->front == NULL ? -ENOMEM : 0;
    }
    if (op->rc != 0)
        return OP_BAD;
    projfile_path(op->path, &op->obj->id, p);
    op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->path, .create = true };
    op_submit(op);
    op->create_state = 1;
    return OP_WAIT;
}

static enum op_next create_opened(struct op *op, unsigned p, uint32_t epoch,
                                  const struct mark_range *written)
{
    if (op->rc == 0)
        op->rc = object_add_file(op->obj, p, op->dr.file, op->dr.size);
    if (op->rc != 0) {
        op->create_state = 0;
        return OP_BAD;
    }
    create_header(op, p, epoch, written);
    op->iov = (struct iovec){ .iov_base = op->front, .iov_len = PROJFILE_PAGE_BYTES };
    op_write(op, op->obj->proj[p], 0, &op->iov, 1, PROJFILE_PAGE_BYTES);
    op->create_state = 2;
    return OP_WAIT;
}

/* No room for a header: without it the file would stand for one that was lost. */
enum op_next op_create_undo(struct op *op, unsigned p)
{
    if (op->create_state == 3) {
        op->create_state = 0;
        return op_bad(op, op->create_rc);
    }
    if (op->obj->state[p] == PROJ_READY && op->obj->syncing)
        return op_bad(op, op->rc); /* that has its file in hand */
    projfile_path(op->path, &op->obj->id, p);
    object_drop_file(op->obj, p,
                     PROJ_UNKNOWN); /* perhaps something is left: look again */
    op->create_rc = op->rc;
    op->dr = (struct disk_req){ .op = DISK_REMOVE, .path = op->path };
    op->create_state = 3;
    op_submit(op);
    return OP_WAIT;
}

static enum op_next create_written(struct op *op, unsigned p, uint32_t epoch)
{
    struct object *obj = op->obj;
    struct proj *proj = obj->proj[p];

    op->create_state = 0;
    if (op->rc != 0 && is_emptied(obj, p)) {
        object_drop_file(obj, p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    if (op->rc != 0)
        return op_create_undo(op, p);
    proj->epoch = epoch;
    proj->name_dirty = true;
    proj->partial = is_partial_when_made(op, p);
    if (is_emptied(obj, p) && epoch > 0 &&
        !op_is_decided(op)) { /* what was lost was refused until this epoch came */
        proj->floor_set = true;
        proj->floor_epoch = epoch - 1;
    }
    obj->emptied &= ~(UINT32_C(1) << p);
    obj->state[p] = PROJ_READY;
    return OP_GO;
}

static struct file_id *removed_slot(struct storage *st, const struct file_id *id)
{
    /* spread anew: those of this loop are alike in some bits */
    return &st->removed[file_id_hash(id) * UINT32_C(2654435761) >> (32 - REMOVED_BITS)];
}

void op_note_removed(struct op *op)
{
    *removed_slot(op->st, &op->ref.id) = op->ref.id;
}

bool op_was_removed(struct op *op)
{
    const struct file_id *id = &op->ref.id, *slot = removed_slot(op->st, id);

    return id->ino == slot->ino && id->export_id == slot->export_id &&
           id->generation == slot->generation;
}

enum op_next op_create(struct op *op, unsigned p, uint32_t epoch,
                       const struct mark_range *written)
{
    assert(op->held == OP_HOLDS_EXCLUSIVE);
    switch (op->create_state) {
    case 0:
        assert(op->obj->state[p] == PROJ_ABSENT);
        if (op_was_removed(op))
            return op_bad(op, -ENOMEDIUM);
        return create_open(op, p);
    case 1:
        return create_opened(op, p, epoch, written);
    case 2:
        return create_written(op, p, epoch);
    default:
        return op_create_undo(op, p);
    }
}

/* ---- damaged files, and those that lost their header ---- */

static void aside_path(struct op *op)
{
    projfile_path_prefix(op->aside, &op->obj->id);
    memcpy(op->aside + strlen(op->aside), "damaged", sizeof("damaged"));
}

enum op_next op_seek_aside(struct op *op, unsigned p)
{
    struct object *obj = op->obj;

    if (op->aside_state == 0) {
        if (obj->state[p] != PROJ_ABSENT || (obj->sought >> p & 1) != 0)
            return OP_GO;
        aside_path(op);
        op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->aside };
        op->aside_state = 2;
        op_submit(op);
        return OP_WAIT;
    }
    op->aside_state = 0;
    if (op->rc != 0 && op->rc != -ENOENT)
        return OP_BAD;
    if (op->rc == 0) {
        disk_close(op->st->disk, op->dr.file);
        obj->emptied |= UINT32_C(1) << p;
    }
    obj->sought |= UINT32_C(1) << p;
    return OP_GO;
}

static enum op_next aside_renamed(struct op *op, unsigned p)
{
    struct object *obj = op->obj;

    op->aside_state = 0;
    if (op->rc != 0)
        return OP_BAD;
    log_warn(
        "%s: damaged, so it is %s now and a new file begins; what was only in the old "
        "one is unknown",
        op->path, op->aside);
    generations_lost_bytes(
        op->st->config.generations); /* unsynced records went with it */
    obj->state[p] = PROJ_ABSENT;
    obj->emptied |= UINT32_C(1) << p;
    return OP_GO;
}

enum op_next op_put_aside(struct op *op, unsigned p, uint64_t version)
{
    struct object *obj = op->obj;
    bool is_damaged = obj->state[p] == PROJ_DAMAGED;

    if (op->aside_state == 1)
        return aside_renamed(op, p);
    if (!is_damaged) {
        enum op_next next = op_seek_aside(op, p);

        if (next != OP_GO)
            return next;
    }
    if (!is_damaged && !(obj->state[p] == PROJ_ABSENT && is_emptied(obj, p)))
        return OP_GO;
    if (is_damaged && (obj->foreign >> p & 1) != 0)
        return op_bad(op, -EUCLEAN);
    if (!op_is_decided(op) &&
        (!obj->floor_set || version_epoch(version) <= obj->floor_epoch)) {
        if (!obj->floor_set || version_epoch(version) > obj->floor_epoch)
            obj->floor_epoch = version_epoch(version);
        obj->floor_set = true;
        return op_bad(op, -EREMCHG);
    }
    if (!is_damaged)
        return OP_GO;
    projfile_path(op->path, &obj->id, p);
    aside_path(op);
    op->dr = (struct disk_req){ .op = DISK_RENAME, .path = op->path, .to = op->aside };
    op->aside_state = 1;
    op_submit(op);
    return OP_WAIT;
}

/* The page is full of marks: what is known of the smallest ranges is not told. */
static void written_fit(const struct storage *st, const struct marks *marks,
                        const struct marks *written, struct marks *out)
{
    out->n = 0;
    for (unsigned i = 0; i < written->n; i++) {
        struct mark_range r = written->ranges[i];
        struct mark_range *last = out->n > 0 ? &out->ranges[out->n - 1] : NULL;

        r.version = generation_settled(st->config.generations, r.version);
        if (last != NULL && last->end == r.first && last->version == r.version)
            last->end = r.end;
        else
            out->ranges[out->n++] = r;
    }
    while (marks->n + out->n > MARKS_MAX)
        marks_remove(out, marks_smallest(out));
}

static enum op_next marks_submit(struct op *op, unsigned p, const struct marks *marks,
                                 const struct marks *written, uint32_t epoch)
{
    struct proj *proj = op->obj->proj[p];
    int slot = proj->synced_slot == 0 ? 1 : 0; /* the one that may be lost */
    struct marks_page page = {
        .sequence = ++proj->marks_sequence,
        .epoch = epoch > proj->epoch ? epoch : proj->epoch,
        .file_hash = op->obj->hash,
        .projection = (uint8_t)p,
        .partial = proj->partial,
    };
    struct marks fits;

    if (op->front == NULL)
        op->front = malloc(PROJFILE_FRONT_BYTES);
    if (op->front == NULL)
        return op_bad(op, -ENOMEM);
    written_fit(op->st, marks, written, &fits);
    projfile_marks_put(op->front, &page, marks, &fits);
    op->iov = (struct iovec){ .iov_base = op->front, .iov_len = PROJFILE_PAGE_BYTES };
    op_write(op, proj, PROJFILE_MARKS_AT + (uint64_t)slot * PROJFILE_PAGE_BYTES, &op->iov,
             1, PROJFILE_PAGE_BYTES);
    op->marks_slot = slot;
    op->marks_state = 1;
    return OP_WAIT;
}

static enum op_next marks_written(struct op *op, unsigned p, const struct marks *marks,
                                  const struct marks *written, uint32_t epoch)
{
    struct proj *proj = op->obj->proj[p];
    struct marks fits;

    op->marks_state = 0;
    if (op->rc == 0)
        op->rc = marks_keep(proj, marks);
    written_fit(op->st, marks, written, &fits);
    if (op->rc == 0)
        op->rc = proj_written_keep(proj, &fits);
    if (op->rc != 0)
        return OP_BAD;
    proj->unsaved = false;
    proj->marks_slot = op->marks_slot;
    proj->synced_slot = 1 - op->marks_slot;
    proj->n_pages++;
    if (epoch > proj->epoch)
        proj->epoch = epoch;
    return OP_GO;
}

enum op_next op_write_marks(struct op *op, unsigned p, const struct marks *marks,
                            const struct marks *written, uint32_t epoch)
{
    assert(op->held == OP_HOLDS_EXCLUSIVE);
    if (op->marks_state == 1)
        return marks_written(op, p, marks, written, epoch);
    /* A sync may be about to promise the page in the slot we would take. When one ends, another may
     * have begun; but while we hold the lock only those who asked before. */
    while (op->syncing || op->obj->syncing) {
        enum op_next next = sync_all(op);

        if (next != OP_GO)
            return next;
    }
    return marks_submit(op, p, marks, written, epoch);
}
