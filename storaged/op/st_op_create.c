/*
 * st_op_create.c - creates projection files, quarantines damaged ones, writes mark pages.
 *
 * In:     the requests of storaged/ops, with the object held exclusively. Thread: the
 *         storio loop.
 * Out:    struct disk, object.h.
 * Keeps:  a removed file is not created again; records that may be lost with a damaged
 *         file are not answered as "never written".
 * Ask:    projfile.h for the bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/op/st_op.h"

/* ---- creating projection files and mark pages ---- */

static bool is_emptied(const struct object *obj, unsigned p)
{
    return (obj->emptied >> p & 1) != 0;
}

/* True if earlier contents of the file may be lost: its own, or all of this storage's. */
static bool is_partial_when_made(const struct st_op *op, unsigned p)
{
    return is_emptied(op->obj, p) || op->create.what != CREATES_COMPLETE ||
           identity_is_rebuilt(op->st->config.identity);
}

static bool is_unsynced_when_made(const struct st_op *op, unsigned p)
{
    return (op->obj->unsynced >> p & 1) != 0 &&
           !identity_is_rebuilt(op->st->config.identity);
}

static void create_header(struct st_op *op, unsigned p, uint32_t epoch,
                          const struct mark_range *written)
{
    struct projfile_header h = {
        .id = op->ref.id,
        .codec = op->ref.kind,
        .layout = op->ref.layout,
        .projection = (uint8_t)p,
        .n_storages = op->ref.n_storages,
        .block_bytes = op->ref.block_bytes,
        .full_quorum = op->ref.full_quorum,
        .dist_generation = op->ref.dist_generation,
        .epoch = epoch,
        .partial = is_partial_when_made(op, p),
        .unsynced = is_unsynced_when_made(op, p),
        .prepared = op->create.what == CREATES_PREPARED,
    };

    h.written.version = generation_of_note(op->st->config.generations);
    if (written != NULL && !h.partial)
        h.written = *written;
    memcpy(h.storages, op->ref.storages, sizeof(h.storages));
    projfile_header_put(op->front, &h);
}

static enum st_op_next create_open(struct st_op *op, unsigned p)
{
    assert(op->create.state == CREATE_NONE && p < CODEC_N_MAX);
    op->rc = objects_room_for_file(&op->st->objects);
    if (op->rc == 0 && op->front == NULL) {
        op->front = malloc(PROJFILE_FRONT_BYTES);
        op->rc = op->front == NULL ? -ENOMEM : 0;
    }
    if (op->rc != 0)
        return OP_BAD;
    projfile_path(op->path, &op->obj->id, p);
    op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->path, .create = true };
    st_op_submit(op);
    op->create.state = CREATE_OPENING;
    return OP_WAIT;
}

static enum st_op_next create_opened(struct st_op *op, unsigned p, uint32_t epoch,
                                     const struct mark_range *written)
{
    assert(op->create.state == CREATE_OPENING);
    if (op->rc == 0)
        op->rc = object_add_file(op->obj, p, op->dr.file, op->dr.size);
    if (op->rc != 0) {
        op->create.state = CREATE_NONE;
        return OP_BAD;
    }
    create_header(op, p, epoch, written);
    op->iov = (struct iovec){ .iov_base = op->front, .iov_len = PROJFILE_PAGE_BYTES };
    st_op_write(op, op->obj->proj[p], 0, &op->iov, 1, PROJFILE_PAGE_BYTES);
    op->create.state = CREATE_WRITING;
    return OP_WAIT;
}

/* Removes a file whose header could not be written: it would look like a file that
 * lost it. */
enum st_op_next st_op_create_undo(struct st_op *op, unsigned p)
{
    if (op->create.state == CREATE_UNDOING) {
        op->create.state = CREATE_NONE;
        return st_op_bad(op, op->create.rc);
    }
    if (op->obj->state[p] == PROJ_READY && op->obj->syncing)
        return st_op_bad(op, op->rc); /* the sync has the file open */
    if (op->obj->proj[p]->partial && !identity_is_rebuilt(op->st->config.identity))
        op->obj->emptied |= UINT32_C(1) << p; /* the file replaced a quarantined one */
    projfile_path(op->path, &op->obj->id, p);
    object_drop_file(op->obj, p, PROJ_UNKNOWN); /* a part may be left: look again */
    op->create.rc = op->rc;
    op->dr = (struct disk_req){ .op = DISK_REMOVE, .path = op->path };
    op->create.state = CREATE_UNDOING;
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next create_written(struct st_op *op, unsigned p, uint32_t epoch)
{
    struct object *obj = op->obj;
    struct proj *proj = obj->proj[p];

    assert(proj != NULL && op->create.state == CREATE_WRITING);
    op->create.state = CREATE_NONE;
    if (op->rc != 0 && is_emptied(obj, p)) {
        object_drop_file(obj, p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    if (op->rc != 0)
        return st_op_create_undo(op, p);
    proj->n_homes = op->ref.n_storages;
    memcpy(proj->homes, op->ref.storages, sizeof(proj->homes));
    proj->dist_generation = op->ref.dist_generation;
    proj->epoch = epoch;
    proj->name_dirty = true;
    proj->partial = is_partial_when_made(op, p);
    proj->unsynced = is_unsynced_when_made(op, p);
    /* lost records refused older epochs */
    if (is_emptied(obj, p) && epoch > 0 && !st_op_is_decided(op))
        proj->lost = (struct lost_epochs){ .known = true, .last = epoch - 1 };
    if (is_emptied(obj, p)) /* partial until a repair has checked all */
        st_op_tell_damaged(op, 0, UINT64_MAX);
    obj->emptied &= ~(UINT32_C(1) << p);
    obj->unsynced &= ~(UINT32_C(1) << p);
    obj->state[p] = PROJ_READY;
    return OP_GO;
}

static struct file_id *removed_set(struct storage *st, const struct file_id *id)
{
    /* Hash again, since the ids of one loop share some bits. */
    uint32_t hash = file_id_hash(id) * UINT32_C(2654435761);

    return &st->removed[(hash >> (32 - REMOVED_BITS)) * REMOVED_WAYS];
}

void st_op_note_removed(struct st_op *op)
{
    struct file_id *set = removed_set(op->st, &op->ref.id);

    assert(op->held == OP_HOLDS_EXCLUSIVE);
    if (st_op_was_removed(op)) /* repeated request */
        return;
    memmove(set + 1, set, (REMOVED_WAYS - 1) * sizeof(set[0]));
    set[0] = op->ref.id;
}

bool st_op_was_removed(struct st_op *op)
{
    const struct file_id *id = &op->ref.id, *set = removed_set(op->st, id);

    for (unsigned i = 0; i < REMOVED_WAYS; i++) {
        if (file_id_equal(id, &set[i]))
            return true;
    }
    return false;
}

enum st_op_next st_op_create(struct st_op *op, unsigned p, uint32_t epoch,
                             const struct mark_range *written)
{
    assert(op->held == OP_HOLDS_EXCLUSIVE);
    switch (op->create.state) {
    case CREATE_NONE:
        assert(op->obj->state[p] == PROJ_ABSENT);
        if (st_op_was_removed(op))
            return st_op_bad(op, -ROZO_ENO_FILE);
        return create_open(op, p);
    case CREATE_OPENING:
        return create_opened(op, p, epoch, written);
    case CREATE_WRITING:
        return create_written(op, p, epoch);
    case CREATE_UNDOING:
        break;
    }
    return st_op_create_undo(op, p);
}

/* A header without a mark page would stand for a file that lost the rest. */
enum st_op_next st_op_first_page(struct st_op *op, unsigned p)
{
    static const struct marks none;
    enum st_op_next next;

    assert(op->create.state == CREATE_NONE || op->create.state == CREATE_UNDOING);
    if (op->create.state != CREATE_NONE)
        return st_op_create_undo(op, p);
    next = st_op_write_marks(op, p, &none, &none, 0);
    return next == OP_BAD ? st_op_create_undo(op, p) : next;
}

/* ---- damaged files and files without a header ---- */

enum st_op_next st_op_seek_quarantined(struct st_op *op, unsigned p)
{
    struct object *obj = op->obj;

    assert(op->held == OP_HOLDS_EXCLUSIVE && p < CODEC_N_MAX);
    assert(op->create.quarantined == QUARANTINE_NONE ||
           op->create.quarantined == QUARANTINE_SEEKING);
    if (op->create.quarantined == QUARANTINE_NONE) {
        if (obj->state[p] != PROJ_ABSENT || (obj->sought >> p & 1) != 0)
            return OP_GO;
        projfile_path_quarantined(op->quarantined, &op->obj->id);
        op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->quarantined };
        op->create.quarantined = QUARANTINE_SEEKING;
        st_op_submit(op);
        return OP_WAIT;
    }
    op->create.quarantined = QUARANTINE_NONE;
    if (op->rc != 0 && op->rc != -ENOENT)
        return OP_BAD;
    if (op->rc == 0) {
        disk_close(op->st->disk, op->dr.file);
        obj->emptied |= UINT32_C(1) << p;
    }
    obj->sought |= UINT32_C(1) << p;
    return OP_GO;
}

/* Starts. OP_GO with QUARANTINE_NONE: nothing is in the way. */
static enum st_op_next quarantine_begin(struct st_op *op, unsigned p, uint64_t version)
{
    struct object *obj = op->obj;
    bool is_damaged = obj->state[p] == PROJ_DAMAGED;

    if (!is_damaged) {
        enum st_op_next next = st_op_seek_quarantined(op, p);

        if (next != OP_GO)
            return next;
    }
    if (!is_damaged && !(obj->state[p] == PROJ_ABSENT && is_emptied(obj, p)))
        return OP_GO;
    if (is_damaged && (obj->foreign >> p & 1) != 0)
        return st_op_bad(op, -ROZO_EDAMAGED);
    if (!st_op_is_decided(op) &&
        (!obj->lost.known || version_epoch(version) <= obj->lost.last)) {
        if (!obj->lost.known || version_epoch(version) > obj->lost.last)
            obj->lost.last = version_epoch(version);
        obj->lost.known = true;
        return st_op_bad(op, -ROZO_ESTALE_VERSION);
    }
    op->create.quarantined = QUARANTINE_LOOKING;
    return OP_GO;
}

/* True if marks are pending that the other projections here need. */
static bool is_mark_wanted(const struct st_op *op, unsigned p)
{
    const struct pending_file *f = st_op_pending_file(op);

    return f != NULL && f->n_marks > 0 &&
           (object_present(op->obj) & ~(UINT32_C(1) << p)) != 0;
}

/* Refuses clients if marks are pending; they have spares. A healer will recover what
 * is pending. */
static enum st_op_next quarantine_look(struct st_op *op, unsigned p)
{
    enum st_op_next next;

    op->want |= file_ref_projections(&op->ref);
    next = st_op_enter(op);
    if (next != OP_GO)
        return next;
    if (is_mark_wanted(op, p) && !st_op_is_decided(op))
        return st_op_bad(op, -ROZO_EDAMAGED);
    projfile_path(op->path, &op->obj->id, p);
    projfile_path_quarantined(op->quarantined, &op->obj->id);
    if (op->obj->state[p] == PROJ_DAMAGED)
        op->dr = (struct disk_req){ .op = DISK_RENAME,
                                    .path = op->path,
                                    .to = op->quarantined };
    else
        op->dr = (struct disk_req){ .op = DISK_SYNC_NAME, .path = op->path };
    op->create.quarantined =
        op->dr.op == DISK_RENAME ? QUARANTINE_RENAMING : QUARANTINE_SYNCING_NAME;
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next quarantine_renamed(struct st_op *op, unsigned p)
{
    struct object *obj = op->obj;

    assert(obj->state[p] == PROJ_DAMAGED);
    if (op->rc != 0)
        return OP_BAD;
    log_warn(
        "%s: damaged, so it was renamed to %s and a new file is made; blocks that were "
        "only in the old one are unknown",
        op->path, op->quarantined);
    /* unsynced records are lost with the old file */
    generations_lost_bytes(op->st->config.generations);
    obj->state[p] = PROJ_ABSENT;
    obj->emptied |= UINT32_C(1) << p;
    op->dr = (struct disk_req){ .op = DISK_SYNC_NAME, .path = op->path };
    op->create.quarantined = QUARANTINE_SYNCING_NAME;
    st_op_submit(op);
    return OP_WAIT;
}

/* Drops the journal's entries of p, stable: they may be older than the records of the
 * lost file, so they must not count for its replacement. This comes after the rename
 * is stable: should the old file's pages be readable again, its pending records would
 * be missing. */
static enum st_op_next quarantine_drop(struct st_op *op, unsigned p)
{
    const struct pending_drop d = {
        .end = UINT64_MAX,
        .keep = UINT64_MAX,
        .projections = UINT32_C(1) << p,
        .epoch = is_mark_wanted(op, p) ? 0 : UINT32_MAX,
    };

    /* pending records may be unsynced */
    if (op->journal.append == NULL && st_op_pending_file(op) != NULL)
        generations_lost_bytes(op->st->config.generations);
    if (op->front == NULL)
        op->front = malloc(PROJFILE_FRONT_BYTES);
    if (op->front == NULL)
        return st_op_bad(op, -ENOMEM);
    return st_op_append_drop(op, &d, op->front);
}

static enum st_op_next quarantine_go_on(struct st_op *op, unsigned p)
{
    enum st_op_next next;

    switch (op->create.quarantined) {
    case QUARANTINE_LOOKING:
        return quarantine_look(op, p);
    case QUARANTINE_RENAMING:
        return quarantine_renamed(op, p);
    case QUARANTINE_SYNCING_NAME:
        if (op->rc != 0)
            return OP_BAD;
        op->create.quarantined = QUARANTINE_DROPPING;
        /* fall through */
    case QUARANTINE_DROPPING:
        next = quarantine_drop(op, p);
        if (next != OP_GO)
            return next;
        st_op_wal_sync_start(op);
        op->create.quarantined = QUARANTINE_SYNCING_DROP;
        /* fall through */
    default:
        return st_op_wal_sync_end(op);
    }
}

enum st_op_next st_op_quarantine(struct st_op *op, unsigned p, uint64_t version)
{
    enum st_op_next next;

    assert(op->held == OP_HOLDS_EXCLUSIVE && p < CODEC_N_MAX);
    if (op->create.quarantined == QUARANTINE_NONE ||
        op->create.quarantined == QUARANTINE_SEEKING) {
        next = quarantine_begin(op, p, version);
        if (next != OP_GO || op->create.quarantined == QUARANTINE_NONE)
            return next;
    }
    next = quarantine_go_on(op, p);
    if (next != OP_WAIT)
        op->create.quarantined = QUARANTINE_NONE;
    return next;
}

/* Fits the written ranges into the page beside the marks; leaves out the smallest
 * ones. */
static void written_fit(const struct storage *st, const struct marks *marks,
                        const struct marks *written, struct marks *out)
{
    assert(marks->n <= MARKS_MAX && written->n <= MARKS_MAX);
    out->n = 0;
    for (unsigned i = 0; i < written->n; i++) {
        struct mark_range r = written->ranges[i];
        struct mark_range *last = out->n > 0 ? &out->ranges[out->n - 1] : NULL;

        r.version = generation_or_stable(st->config.generations, r.version);
        if (last != NULL && last->end == r.first && last->version == r.version)
            last->end = r.end;
        else
            out->ranges[out->n++] = r;
    }
    while (marks->n + out->n > MARKS_MAX)
        marks_remove(out, marks_smallest(out));
}

static enum st_op_next marks_submit(struct st_op *op, unsigned p,
                                    const struct marks *marks,
                                    const struct marks *written, uint32_t epoch)
{
    struct proj *proj = op->obj->proj[p];
    int slot = proj->synced_slot == 0 ? 1 : 0; /* the page that may be lost */
    struct marks_page page = {
        .sequence = ++proj->marks_sequence,
        .epoch = epoch > proj->epoch ? epoch : proj->epoch,
        .file_hash = op->obj->hash,
        .projection = (uint8_t)p,
        .partial = proj->partial,
        .unsynced = proj->unsynced,
    };
    struct marks fits;

    if (op->front == NULL)
        op->front = malloc(PROJFILE_FRONT_BYTES);
    if (op->front == NULL)
        return st_op_bad(op, -ENOMEM);
    written_fit(op->st, marks, written, &fits);
    projfile_marks_put(op->front, &page, marks, &fits);
    op->iov = (struct iovec){ .iov_base = op->front, .iov_len = PROJFILE_PAGE_BYTES };
    st_op_write(op, proj, PROJFILE_MARKS_AT + (uint64_t)slot * PROJFILE_PAGE_BYTES,
                &op->iov, 1, PROJFILE_PAGE_BYTES);
    op->create.marks_slot = slot;
    op->create.marks = MARKS_WRITING;
    return OP_WAIT;
}

static enum st_op_next marks_written(struct st_op *op, unsigned p,
                                     const struct marks *marks,
                                     const struct marks *written, uint32_t epoch)
{
    struct proj *proj = op->obj->proj[p];
    struct marks fits;

    assert(op->create.marks_slot == 0 || op->create.marks_slot == 1);
    op->create.marks = MARKS_NONE;
    if (op->rc == 0)
        op->rc = proj_marks_keep(proj, marks);
    written_fit(op->st, marks, written, &fits);
    if (op->rc == 0)
        op->rc = proj_written_keep(proj, &fits);
    if (op->rc != 0)
        return OP_BAD;
    proj->unsaved = false;
    proj->marks_slot = op->create.marks_slot;
    proj->synced_slot = 1 - op->create.marks_slot;
    proj->n_pages++;
    if (epoch > proj->epoch)
        proj->epoch = epoch;
    return OP_GO;
}

enum st_op_next st_op_write_marks(struct st_op *op, unsigned p, const struct marks *marks,
                                  const struct marks *written, uint32_t epoch)
{
    assert(op->obj->proj[p] != NULL);
    assert(op->held == OP_HOLDS_EXCLUSIVE);
    if (op->create.marks == MARKS_WRITING)
        return marks_written(op, p, marks, written, epoch);
    /* Wait for a sync that may call the page in our slot stable. When one ends another
     * may have begun; but while we hold the lock, only for requests that came before. */
    while (op->syncing || op->obj->syncing) {
        enum st_op_next next = st_op_sync_all(op);

        if (next != OP_GO)
            return next;
    }
    return marks_submit(op, p, marks, written, epoch);
}
