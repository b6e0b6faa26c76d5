/*
 * st_op_lookup.c - gives a request its object and lock, and looks up projection files.
 *
 * In:     st_op_enter(), from all ops. Thread: the storio loop.
 * Out:    struct disk, object.h.
 * Keeps:  no request uses a projection file before its header was checked; an unfinished
 *         creation counts as absent, everything else that is not valid as damaged.
 * Ask:    projfile.h for the bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "storaged/op/st_op.h"

/* Removes written blocks that a power loss may have taken: their loss is no damage. */
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

/* Takes the mark page in `slot` into proj if it is valid and newer. */
static int front_take_page(struct st_op *op, unsigned p, int slot, struct marks *marks,
                           struct marks *written)
{
    struct proj *proj = op->obj->proj[p];
    struct marks_page page;
    int rc =
        projfile_marks_get(op->front + PROJFILE_MARKS_AT + slot * PROJFILE_PAGE_BYTES,
                           &page, marks, written);

    assert(slot == 0 || slot == 1);
    if (rc == 0 && (page.file_hash != op->obj->hash || page.projection != p))
        rc = -ROZO_EDAMAGED;
    if (rc != 0 || page.sequence <= proj->marks_sequence)
        return rc;
    proj->marks_sequence = page.sequence;
    proj->marks_slot = proj->synced_slot = slot;
    proj->partial = page.partial; /* cleared by a repair after the header was written */
    proj->unsynced = page.unsynced;
    if (page.epoch > proj->epoch)
        proj->epoch = page.epoch;
    written_keep_certain(op->st, written);
    rc = proj_marks_keep(proj, marks);
    return rc == 0 ? proj_written_keep(proj, written) : rc;
}

/* Decides whether a corrupt page in `slot` matters, that is, if it looks newer than
 * the other and a sync may have made it stable. A page being written when the power
 * failed was not synced. If the file ends within the pages, is_cut_in_pages() notices. */
static bool page_is_missed(const struct st_op *op, unsigned p, int slot)
{
    const struct generations *g = op->st->config.generations;
    const struct proj *proj = op->obj->proj[p];
    uint64_t at = PROJFILE_MARKS_AT + (uint64_t)slot * PROJFILE_PAGE_BYTES;

    if (proj->marks_slot < 0)
        return true;
    return !generations_lost_any(g) && generations_failures(g) == 0 &&
           at + PROJFILE_PAGE_BYTES <= proj->size &&
           projfile_marks_seem_newer(op->front + at, proj->marks_sequence);
}

/* Takes the newest valid mark page into proj. */
static int front_marks(struct st_op *op, unsigned p)
{
    struct marks *got = malloc(2 * sizeof(*got));
    int rcs[2];

    if (got == NULL)
        return -ENOMEM;
    for (int slot = 0; slot < 2; slot++)
        rcs[slot] = front_take_page(op, p, slot, &got[0], &got[1]);
    free(got);
    for (int slot = 0; slot < 2; slot++) {
        if (rcs[slot] == -ENOMEM || rcs[slot] == -ROZO_EUNKNOWN_FORMAT)
            return rcs[slot];
    }
    for (int slot = 0; slot < 2; slot++) {
        if (rcs[slot] == -ROZO_EDAMAGED && page_is_missed(op, p, slot))
            return -ROZO_EDAMAGED;
    }
    return 0;
}

/* Makes proj partial: it had more than what is left. Until a page says so, only memory
 * does. */
static void front_has_lost(struct st_op *op, unsigned p)
{
    struct proj *proj = op->obj->proj[p];

    proj->unsaved = !proj->partial;
    proj->partial = true;
    st_op_tell_damaged(op, 0, UINT64_MAX);
}

/* Takes the written blocks from the header, if there is no mark page. The creator
 * wrote heads or a page at once, and a page before blocks in further extents than
 * those of the header. */
static int front_no_pages(struct st_op *op, unsigned p, const struct projfile_header *h)
{
    struct proj *proj = op->obj->proj[p];
    struct marks written = { .n = h->written.end != 0, .ranges = { h->written } };
    uint64_t told = (h->written.end + EXTENT_BLOCKS - 1) / EXTENT_BLOCKS * EXTENT_BLOCKS;

    if (!generation_is_kept(op->st->config.generations, h->written.version))
        return 0; /* a power loss may have taken anything */
    if (proj->size <= PROJFILE_EXTENTS_AT ||
        geometry_blocks(&proj->geo, proj->size) > told)
        front_has_lost(op, p); /* a page existed and is lost */
    return proj_written_keep(proj, &written);
}

/* True if the file ends before the heads that its mark page notes, or within the other
 * page: the remaining page may be the older one. */
static bool is_cut_in_pages(const struct proj *proj)
{
    return proj->marks_slot >= 0 && proj->size <= PROJFILE_EXTENTS_AT &&
           (proj_written(proj)->n > 0 || proj->size % PROJFILE_PAGE_BYTES != 0);
}

/* Checks the front of a file. 0: ready. -ENODATA: perhaps unfinished. -EBADMSG: the
 * request does not fit the file. */
static int front_check(struct st_op *op, unsigned p, size_t len)
{
    struct proj *proj = op->obj->proj[p];
    struct projfile_header h;
    int rc;

    assert(len <= PROJFILE_FRONT_BYTES);
    memset(op->front + len, 0, PROJFILE_FRONT_BYTES - len);
    rc = projfile_front_get(op->front, &h);
    if (rc != 0)
        return rc;
    if (len < PROJFILE_PAGE_BYTES)
        return -ROZO_EDAMAGED; /* cut within the zeros of the header page */
    if (!file_id_equal(&h.id, &op->obj->id) || h.projection != p)
        return -ROZO_EDAMAGED;
    if (h.codec != op->ref.kind || h.layout != op->ref.layout ||
        h.block_bytes != op->ref.block_bytes || h.stripe != 0)
        return -EBADMSG;
    proj->n_homes = h.n_storages;
    memcpy(proj->homes, h.storages, sizeof(proj->homes));
    proj->dist_generation = h.dist_generation;
    proj->epoch = h.epoch;
    proj->partial = h.partial;
    proj->unsynced = h.unsynced;
    rc = front_marks(op, p);
    if (rc == 0 && proj->marks_slot < 0)
        rc = front_no_pages(op, p, &h);
    if (rc != 0)
        return rc;
    if (is_cut_in_pages(proj))
        front_has_lost(op, p);
    if (proj->partial)
        log_warn("%s: incomplete: it lost bytes, or replaces a damaged file", op->path);
    proj->newest = (uint64_t)proj->epoch << 32 | UINT32_MAX;
    proj->name_dirty = true; /* unknown after a start */
    proj->promised = true;
    return 0;
}

static void look_damaged(struct st_op *op, int why)
{
    assert(why == -ROZO_EDAMAGED || why == -ROZO_EUNKNOWN_FORMAT);
    log_warn("%s: %s", op->path,
             why == -ROZO_EUNKNOWN_FORMAT ? "its format is newer than this build knows"
                                          : "its header or mark pages are damaged");
    object_drop_file(op->obj, op->enter.p, PROJ_DAMAGED);
    if (why == -ROZO_EUNKNOWN_FORMAT)
        op->obj->foreign |= UINT32_C(1) << op->enter.p;
    else
        st_op_tell_damaged(op, 0, UINT64_MAX);
}

/* Plans another read of an unreadable page, unless the file is replaced before. */
static void look_unread(struct st_op *op)
{
    op->obj->unread |= UINT32_C(1) << op->enter.p;
    op->obj->unread_until_ns = env_now_ns(op->st->env) + s_to_ns(BAD_PAGE_KNOWN_S);
}

static bool is_unread_due(const struct st_op *op)
{
    return op->obj->unread != 0 && env_now_ns(op->st->env) >= op->obj->unread_until_ns;
}

static void unread_forget(struct object *obj)
{
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if ((obj->unread >> p & 1) != 0 && obj->state[p] == PROJ_DAMAGED)
            object_drop_file(obj, p, PROJ_UNKNOWN);
    }
    obj->unread = 0;
}

/* Continues after the front pages were read. */
static enum st_op_next look_front(struct st_op *op)
{
    struct object *obj = op->obj;
    int rc = op->rc;

    assert(op->held == OP_HOLDS_EXCLUSIVE && obj->proj[op->enter.p] != NULL);
    if (rc == 0)
        rc = front_check(op, op->enter.p, op->dr.n_read);
    if (rc == 0) {
        obj->state[op->enter.p] = PROJ_READY;
        obj->proj[op->enter.p]->dirty =
            true; /* a previous process may have left it unsynced */
        obj->n_asked = ++obj->n_changes;
    } else if (rc == -ENODATA) {
        st_op_disk(op, DISK_NEXT_DATA, obj->proj[op->enter.p], PROJFILE_PAGE_BYTES, 0);
        op->enter.state = ENTER_EMPTY;
        return OP_WAIT;
    } else if (rc == -ROZO_EDAMAGED || rc == -ROZO_EUNKNOWN_FORMAT) {
        look_damaged(op, rc);
        if (op->dr.n_lost > 0)
            look_unread(op);
    } else {
        object_drop_file(obj, op->enter.p, PROJ_UNKNOWN);
        op->rc = rc;
        return OP_BAD;
    }
    op->enter.state = ENTER_LOOK;
    return OP_GO;
}

static enum st_op_next look_opened(struct st_op *op)
{
    assert(op->obj->state[op->enter.p] == PROJ_UNKNOWN);
    if (op->rc == -ENOENT) {
        op->obj->state[op->enter.p] = PROJ_ABSENT;
        if (op->dr.quarantined) /* the replacement was perhaps not finished */
            op->obj->emptied |= UINT32_C(1) << op->enter.p;
        op->enter.none_quarantined |= op->dr.to != NULL && !op->dr.quarantined;
        op->enter.state = ENTER_LOOK;
        return OP_GO;
    }
    if (op->rc != 0)
        return OP_BAD;
    op->rc = object_add_file(op->obj, op->enter.p, op->dr.file, op->dr.size);
    if (op->rc == 0 && op->front == NULL) {
        op->front = malloc(PROJFILE_FRONT_BYTES);
        op->rc = op->front == NULL ? -ENOMEM : 0;
    }
    if (op->rc != 0) {
        object_drop_file(op->obj, op->enter.p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    st_op_read(op, op->obj->proj[op->enter.p], 0, op->front, PROJFILE_FRONT_BYTES);
    op->enter.state = ENTER_READ;
    return OP_WAIT;
}

/* Judges a zero page in place of the header: the creation was unfinished only if
 * nothing follows. */
static enum st_op_next look_empty(struct st_op *op)
{
    assert(op->obj->proj[op->enter.p] != NULL);
    if (op->rc == -ENODATA) {
        object_drop_file(op->obj, op->enter.p, PROJ_ABSENT);
        op->obj->emptied |= UINT32_C(1) << op->enter.p;
    } else if (op->rc == 0) {
        look_damaged(op, -ROZO_EDAMAGED);
    } else {
        object_drop_file(op->obj, op->enter.p, PROJ_UNKNOWN);
        return OP_BAD;
    }
    op->enter.state = ENTER_LOOK;
    if (!generations_lost_any(op->st->config.generations))
        return OP_GO;
    projfile_path_quarantined(op->quarantined, &op->obj->id);
    op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->quarantined };
    op->enter.state = ENTER_QUARANTINED;
    st_op_submit(op);
    return OP_WAIT;
}

/* Looks for a quarantined file, since a power loss took the header. Without one, no
 * sync of the file had ended. */
static enum st_op_next look_quarantined(struct st_op *op)
{
    if (op->rc == -ENOENT)
        op->obj->unsynced |= UINT32_C(1) << op->enter.p;
    else if (op->rc == 0)
        disk_close(op->st->disk, op->dr.file);
    op->enter.state = ENTER_LOOK;
    return OP_GO;
}

/* Writes, stable, that the file is partial before it is changed: a file that was cut
 * short shows that only until it is longer again, perhaps after a restart. */
static enum st_op_next look_partial(struct st_op *op)
{
    struct proj *proj = op->obj->proj[op->enter.p];
    enum st_op_next next;

    assert(op->held == OP_HOLDS_EXCLUSIVE && proj != NULL);
    if (op->enter.state == ENTER_PARTIAL) {
        next =
            st_op_write_marks(op, op->enter.p, proj_marks(proj), proj_written(proj), 0);
        if (next != OP_GO)
            return next;
        st_op_disk(op, DISK_SYNC, proj, 0, 0);
        op->enter.state = ENTER_PARTIAL_SYNCED;
        return OP_WAIT;
    }
    if (op->rc != 0) {
        proj->unsaved = true;
        return OP_BAD;
    }
    op->enter.state = ENTER_LOOK;
    return OP_GO;
}

static bool look_finds_unsaid(struct st_op *op)
{
    for (op->enter.p = 0; op->access != OP_SHARES && op->enter.p < CODEC_N_MAX;
         op->enter.p++) {
        const struct proj *proj = object_ready(op->obj, op->enter.p);

        if ((op->want >> op->enter.p & 1) != 0 && proj != NULL && proj->partial &&
            proj->unsaved)
            return true;
    }
    return false;
}

/* Looks up the next unknown projection. OP_GO: there is none. */
static enum st_op_next look_next(struct st_op *op)
{
    struct object *obj = op->obj;

    for (op->enter.p = 0; op->enter.p < CODEC_N_MAX; op->enter.p++) {
        if ((op->want >> op->enter.p & 1) != 0 && obj->state[op->enter.p] == PROJ_UNKNOWN)
            break;
    }
    if (op->enter.p == CODEC_N_MAX)
        return OP_GO;
    op->rc = objects_room_for_file(&op->st->objects);
    if (op->rc != 0)
        return OP_BAD;
    projfile_path(op->path, &obj->id, op->enter.p);
    projfile_path_quarantined(op->quarantined, &op->obj->id);
    op->dr =
        (struct disk_req){ .op = DISK_OPEN,
                           .path = op->path,
                           .to = op->enter.none_quarantined ? NULL : op->quarantined };
    st_op_submit(op);
    op->enter.state = ENTER_OPENED;
    return OP_WAIT;
}

/* Waits for a sync before forgetting the projections; if answers are being sent, BUSY. */
static enum st_op_next enter_forget(struct st_op *op)
{
    assert(op->held == OP_HOLDS_EXCLUSIVE);
    while (op->syncing || op->obj->syncing) {
        enum st_op_next next = st_op_sync_all(op);

        if (next != OP_GO)
            return next;
    }
    if (op->obj->n_sends > 0)
        return st_op_bad(op, -EBUSY);
    object_forget(op->obj);
    op->access = OP_EXCLUSIVE;
    op->enter.state = ENTER_LOOK;
    return OP_GO;
}

/* Checks, with the lock held, that the object is still the file's and the lock is
 * strong enough. */
static enum st_op_next enter_locked(struct st_op *op)
{
    assert(op->held != OP_HOLDS_NOTHING && op->obj != NULL);
    if (op->changes && storage_has_fenced(op->st, op->call))
        return st_op_bad(op, -ROZO_EFENCED); /* the session has ended meanwhile */
    if (op->obj->dead) {
        st_op_enter_again(op);
        return OP_GO;
    }
    op->enter.none_quarantined = false; /* unknown from here on */
    if (op->held == OP_HOLDS_SHARED && !object_knows(op->obj, op->ref.codec, op->want)) {
        st_op_unlock(op);
        op->enter.state = ENTER_LOCK;
        return OP_GO;
    }
    if (!object_recode(op->obj, op->ref.codec))
        return st_op_bad(op, -EBADMSG);
    if (op->held == OP_HOLDS_EXCLUSIVE && is_unread_due(op))
        unread_forget(op->obj);
    if (op->access == OP_LOOKS_AGAIN)
        return enter_forget(op);
    op->enter.state = ENTER_LOOK;
    return OP_GO;
}

static enum st_op_next enter_lock(struct st_op *op)
{
    bool exclusive = op->access != OP_SHARES || is_unread_due(op) ||
                     !object_knows(op->obj, op->ref.codec, op->want);

    assert(op->held == OP_HOLDS_NOTHING);
    op->enter.state = ENTER_LOCK;
    if (!object_lock(op->obj, &op->wait, exclusive))
        return OP_WAIT;
    op->held = exclusive ? OP_HOLDS_EXCLUSIVE : OP_HOLDS_SHARED;
    return OP_GO;
}

static enum st_op_next enter_object(struct st_op *op)
{
    assert(op->obj == NULL);
    op->rc = object_get(&op->st->objects, &op->ref.id, &op->obj);
    if (op->rc != 0)
        return OP_BAD;
    op->enter.state = ENTER_LOCK;
    return OP_GO;
}

/* Ends the lookup. Readers let other readers in. */
static enum st_op_next enter_done(struct st_op *op)
{
    const struct file_ref *ref = &op->ref;

    assert(op->held == OP_HOLDS_EXCLUSIVE ||
           (op->held == OP_HOLDS_SHARED && op->access == OP_SHARES));
    /* Requests of the journal were checked when they came. */
    if (op->call != NULL && !op->any_homes)
        op->rc = object_check_homes(op->obj, op->want, ref->storages, ref->n_storages,
                                    ref->dist_generation);
    else
        op->rc = 0;
    if (op->rc != 0)
        return OP_BAD;
    if (op->access == OP_SHARES && op->held == OP_HOLDS_EXCLUSIVE) {
        object_downgrade(op->obj);
        op->held = OP_HOLDS_SHARED;
    }
    op->rc = 0;
    return OP_GO;
}

enum st_op_next st_op_enter(struct st_op *op)
{
    enum st_op_next next = OP_GO;

    while (next == OP_GO) {
        switch (op->enter.state) {
        case ENTER_OBJECT:
            next = enter_object(op);
            break;
        case ENTER_LOCK:
            next = op->held == OP_HOLDS_NOTHING ? enter_lock(op) : enter_locked(op);
            break;
        case ENTER_LOOK:
            next = look_next(op);
            if (next != OP_GO)
                break;
            if (!look_finds_unsaid(op))
                return enter_done(op);
            op->enter.state = ENTER_PARTIAL;
            break;
        case ENTER_OPENED:
            next = look_opened(op);
            break;
        case ENTER_READ:
            next = look_front(op);
            break;
        case ENTER_PARTIAL:
        case ENTER_PARTIAL_SYNCED:
            next = look_partial(op);
            break;
        case ENTER_EMPTY:
            next = look_empty(op);
            break;
        case ENTER_QUARANTINED:
            next = look_quarantined(op);
            break;
        }
    }
    return next;
}

enum st_op_next st_op_enter_present(struct st_op *op)
{
    enum st_op_next next = st_op_enter(op);

    if (next == OP_GO && object_present(op->obj) == 0) {
        bool is_lost = op->obj->emptied != 0 && !st_op_was_never_synced(op);

        return st_op_bad(op, is_lost ? -ROZO_EDAMAGED : -ROZO_ENO_FILE);
    }
    return next;
}
