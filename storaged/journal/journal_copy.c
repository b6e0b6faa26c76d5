/*
 * journal_copy.c - copies frames forward, so that one stuck record does not hold the log.
 *
 * In:     the timer; the start, for frames in no segment of this loop. Thread: the storio
 *         loop.
 * Out:    disk reads, wal.h.
 * Keeps:  a copied frame is released only when its copy is stable.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

enum { READS_MAX = 4 }; /* failed reads in a row before a frame counts as lost */
#include "storaged/journal/journal_in.h"

static void copy_next(struct journal *j);

void journal_copier_free(struct copier *c)
{
    free(c->bytes);
    free(c->out);
    c->bytes = c->out = NULL;
}

/* Ends one frame: nothing is left to copy. It is released when the copies are stable. */
static void copy_entry_end(struct journal *j)
{
    assert(j->copying == COPY_FRAMES);
    journal_copier_free(&j->copier);
    copy_next(j);
}

static void copy_abandon(struct journal *j, int rc)
{
    assert(j->copying == COPY_FRAMES && j->copier.entry != NULL);
    j->copier.entry->copied = false;
    journal_copier_free(&j->copier);
    j->copying = COPY_IDLE;
    if (j->starting < START_DONE) {
        j->start_rc = rc;
        journal_start_step(j);
    } else {
        journal_timer_start(j);
        journal_run(j);
    }
}

/* Moves r to the frame `to`. */
static void record_move(struct journal_index *p, struct pending_record *r,
                        struct journal_frame *to)
{
    struct journal_frame *from = r->entry;

    assert(from != to && from->n_refs > 0);
    assert(from->n_bytes >= (unsigned)r->head_len + r->body_len);
    r->entry = to;
    to->n_refs++;
    to->n_bytes += (unsigned)r->head_len + r->body_len;
    to->n_committed += r->committed;
    to->n_damaged += r->damaged;
    from->n_bytes -= (unsigned)r->head_len + r->body_len;
    from->n_committed -= r->committed;
    from->n_damaged -= r->damaged;
    journal_index_put_frame(p, from);
}

static void copy_switch_records(struct copier *c, struct journal_frame *to)
{
    struct journal_index *p = &c->j->index;
    struct pending_file *f = journal_index_find(p, &c->e.file.id);
    struct journal_block records[JOURNAL_RECORD_BLOCKS_MAX];
    int n = journal_record_blocks(&c->e, c->out, c->append.len, records);

    assert(n > 0);
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = journal_index_at_most(
            p, f, c->e.projection, records[i].block, records[i].header.version);

        if (r == NULL || r->entry != c->entry || r->version != records[i].header.version)
            continue; /* removed meanwhile */
        r->body_at = (uint32_t)records[i].body_at;
        record_move(p, r, to);
    }
}

static void copy_switch_damaged(struct copier *c, struct journal_frame *to)
{
    struct journal_index *p = &c->j->index;
    struct pending_file *f = journal_index_find(p, &c->e.file.id);

    for (unsigned i = 0; f != NULL && i < JOURNAL_RECORD_BLOCKS_MAX; i++) {
        struct pending_record *r;

        if (!journal_record_has_block(&c->e, i))
            continue;
        r = journal_index_at_most(p, f, c->e.projection, c->e.first + i, c->e.version);
        if (r != NULL && r->entry == c->entry && r->version == c->e.version && r->damaged)
            record_move(p, r, to);
    }
}

static void copy_switch_mark(struct copier *c, struct journal_frame *to)
{
    struct journal_index *p = &c->j->index;
    struct pending_file *f = journal_index_find(p, &c->e.file.id);

    if (f == NULL)
        return;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->entry != c->entry || m->first != c->e.first || m->end != c->e.end ||
            m->version != c->e.version)
            continue;
        m->entry = to;
        to->n_refs++;
        journal_index_put_frame(p, c->entry);
        return;
    }
}

static void copy_switch_fence(struct copier *c, struct journal_frame *to)
{
    struct fence *f = *journal_fence_link(c->j, &c->e.file.id);
    struct journal_frame **at = journal_is_doubt(&c->e.file.id) ? &c->j->doubt
                                : f != NULL                     ? &f->entry
                                                                : NULL;

    if (at == NULL || *at != c->entry)
        return;
    *at = to;
    to->n_refs++;
    journal_index_put_frame(&c->j->index, c->entry);
}

static void copy_entry(struct journal *j);
static void copy_damaged(struct journal *j);

static void on_copied(struct wal_append *append, int rc)
{
    struct copier *c = container_of(append, struct copier, append);
    struct journal *j = c->j;
    struct journal_frame *to =
        rc == 0 ? journal_index_add_frame(&j->index, &append->place) : NULL;

    assert(j->copying == COPY_FRAMES && c->out != NULL);
    if (rc == 0 && to == NULL) {
        wal_release(j->wal, &append->place);
        rc = -ENOMEM;
    }
    if (rc != 0) {
        copy_abandon(j, rc);
        return;
    }
    if (j->copy_first == 0)
        j->copy_first = to->place.segment;
    journal_frame_init(j, to, c->e.kind);
    switch (c->e.kind) {
    case JOURNAL_RECORDS:
        copy_switch_records(c, to);
        break;
    case JOURNAL_DAMAGED:
        copy_switch_damaged(c, to);
        break;
    case JOURNAL_MARK:
        copy_switch_mark(c, to);
        break;
    case JOURNAL_FENCE:
        copy_switch_fence(c, to);
        break;
    default:
        to->n_refs++;
        journal_drop_note(j, to);
        break;
    }
    journal_index_put_frame(&j->index, to);
    free(c->out);
    c->out = NULL;
    if (c->e.kind == JOURNAL_MARK)
        copy_entry(j); /* the mark may have been split */
    else if (c->e.kind == JOURNAL_RECORDS || c->e.kind == JOURNAL_DAMAGED)
        copy_damaged(j);
    else
        copy_entry_end(j);
}

static void copy_append(struct journal *j)
{
    struct copier *c = &j->copier;

    assert(c->out != NULL && c->iov.iov_len >= JOURNAL_RECORD_HEADER_BYTES);
    journal_record_put(c->out, &c->e);
    c->iov.iov_base = c->out;
    c->append = (struct wal_append){ .kind = c->e.kind,
                                     .iov = &c->iov,
                                     .n_iov = 1,
                                     .len = c->iov.iov_len,
                                     .head_len = journal_record_head_bytes(c->out),
                                     .done = on_copied };
    wal_append(j->wal, &c->append);
}

/* Finds a damaged record of a frame. Walks over everything, since a damaged journal is
 * rare. NULL: none. */
static struct pending_record *damaged_find(struct journal *j,
                                           const struct journal_frame *entry)
{
    if (entry->n_damaged == 0)
        return NULL;
    LIST_FOREACH(file_node, &j->index.files) {
        struct pending_file *f = container_of(file_node, struct pending_file, link);

        PENDING_FOREACH(node, f)
        {
            struct pending_record *r = container_of(node, struct pending_record, link);

            if (r->entry == entry && r->damaged)
                return r;
        }
    }
    return NULL;
}

/* Copies the damaged records of a frame as such: one version of one extent's blocks at
 * a time. */
static void copy_damaged(struct journal *j)
{
    struct copier *c = &j->copier;
    const struct pending_record *r = damaged_find(j, c->entry);

    assert(j->copying == COPY_FRAMES && c->entry->n_refs > 0);
    free(c->out);
    c->out = r == NULL ? NULL : malloc(JOURNAL_RECORD_HEADER_BYTES);
    if (r == NULL) {
        copy_entry_end(j);
        return;
    }
    if (c->out == NULL) {
        copy_abandon(j, -ENOMEM);
        return;
    }
    c->e = (struct journal_record){ .kind = JOURNAL_DAMAGED,
                                    .file = r->file->ref,
                                    .codec = r->file->codec,
                                    .projection = r->projection,
                                    .first = r->block,
                                    .version = r->version };
    for (unsigned i = 0; i < JOURNAL_RECORD_BLOCKS_MAX; i++) {
        const struct pending_record *x = journal_index_at_most(
            &j->index, r->file, r->projection, r->block + i, r->version);

        if (x != NULL && x->entry == c->entry && x->damaged && x->version == r->version)
            c->e.blocks[i / 64] |= UINT64_C(1) << i % 64;
    }
    c->iov.iov_len = JOURNAL_RECORD_HEADER_BYTES;
    copy_append(j);
}

static void record_lost(struct journal *j, struct pending_record *r)
{
    assert(!r->damaged);
    log_error("block %llu of file %08x%08x%016llx: its record in the journal is damaged",
              (unsigned long long)r->block, r->file->ref.id.export_id,
              r->file->ref.id.generation, (unsigned long long)r->file->ref.id.ino);
    pending_record_spoil(r);
    j->n_damaged++;
}

/* Declares all records of a frame lost that cannot be read or unpacked. */
static void copy_lost(struct journal *j)
{
    LIST_FOREACH(file_node, &j->index.files) {
        struct pending_file *f = container_of(file_node, struct pending_file, link);

        PENDING_FOREACH(node, f)
        {
            struct pending_record *r = container_of(node, struct pending_record, link);

            if (r->entry == j->copier.entry && !r->damaged)
                record_lost(j, r);
        }
    }
    copy_damaged(j);
}

/* True if a record is the one that was written. */
static bool record_is_good(const struct copier *c, const struct pending_record *r,
                           const struct journal_block *at, size_t head)
{
    const uint8_t *p = c->bytes + at->head_at;

    return memcmp(p, r->head, head) == 0 && at->body_len == r->body_len &&
           at->header.crc == record_crc(p, p + RECORD_HEADER_BYTES,
                                        at->body_len > 0 ? head - RECORD_HEADER_BYTES : 0,
                                        c->bytes + at->body_at, at->body_len);
}

/* Makes a new frame of the wanted records in c->bytes. Returns false if there are
 * none. */
static bool copy_make_records(struct copier *c, const struct journal_record *e,
                              struct journal_block *records, int n)
{
    struct journal_index *p = &c->j->index;
    struct pending_file *f = journal_index_find(p, &e->file.id);
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    size_t at = JOURNAL_RECORD_HEADER_BYTES;
    int n_wanted = 0;

    assert(n >= 0 && n <= JOURNAL_RECORD_BLOCKS_MAX && c->out != NULL);
    c->e = *e;
    c->e.version = 0;
    c->e.blocks[0] = c->e.blocks[1] = 0;
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = journal_index_at_most(
            p, f, e->projection, records[i].block, records[i].header.version);
        unsigned bit = (unsigned)(records[i].block - e->first);

        if (r == NULL || r->entry != c->entry || r->damaged ||
            r->version != records[i].header.version)
            continue;
        if (!record_is_good(c, r, &records[i], head)) {
            record_lost(c->j, r);
            continue;
        }
        c->e.blocks[bit / 64] |= UINT64_C(1) << bit % 64;
        if (r->version > c->e.version)
            c->e.version = r->version;
        records[n_wanted++] = records[i];
    }
    for (int i = 0; i < n_wanted; i++) {
        memcpy(c->out + at, c->bytes + records[i].head_at, head);
        at += head;
    }
    for (int i = 0; i < n_wanted; i++) {
        memcpy(c->out + at, c->bytes + records[i].body_at, records[i].body_len);
        at += records[i].body_len;
    }
    c->iov.iov_len = at;
    return n_wanted > 0;
}

/* Makes a new frame of a mark, all of which is in the index. */
static bool copy_make_mark(struct copier *c)
{
    assert(c->entry->kind == JOURNAL_MARK);
    LIST_FOREACH(file_node, &c->j->index.files) {
        struct pending_file *f = container_of(file_node, struct pending_file, link);

        LIST_FOREACH(node, &f->marks) {
            struct pending_mark *m = container_of(node, struct pending_mark, link);

            if (m->entry != c->entry)
                continue;
            c->e = (struct journal_record){ .kind = JOURNAL_MARK,
                                            .file = f->ref,
                                            .codec = f->codec,
                                            .projection = m->projection,
                                            .keep_newer = m->keep_newer,
                                            .first = m->first,
                                            .end = m->end,
                                            .version = m->version };
            c->iov.iov_len = JOURNAL_RECORD_HEADER_BYTES;
            return true;
        }
    }
    return false;
}

/* Leaves the damaged frame of a fence or drop where it is; it keeps its segment while
 * it counts. */
static void copy_skip(struct journal *j)
{
    struct copier *c = &j->copier;

    log_error("journal: the frame of a fence or drop is damaged; a later start may not "
              "find it");
    j->n_lost++;
    c->entry->copied = true;
    copy_entry_end(j);
}

/* Copies a frame; c->bytes has its contents if they are needed. */
static void copy_entry(struct journal *j)
{
    struct copier *c = &j->copier;
    struct journal_block records[JOURNAL_RECORD_BLOCKS_MAX];
    uint32_t len = c->entry->place.len;
    bool is_mark = c->entry->kind == JOURNAL_MARK, any = true;
    struct journal_record e;
    int n = 0;
    int rc = is_mark ? 0 : journal_record_get(c->entry->kind, c->bytes, len, &e);

    assert(is_mark || c->bytes != NULL);
    if (rc == 0 && c->entry->kind == JOURNAL_RECORDS)
        n = journal_record_blocks(&e, c->bytes, len, records);
    if (rc != 0 || n < 0) {
        if (c->entry->kind == JOURNAL_RECORDS)
            copy_lost(j);
        else
            copy_skip(j);
        return;
    }
    c->out =
        malloc(len > JOURNAL_RECORD_HEADER_BYTES ? len : JOURNAL_RECORD_HEADER_BYTES);
    if (c->out == NULL) {
        copy_abandon(j, -ENOMEM);
        return;
    }
    if (is_mark) {
        any = copy_make_mark(c);
    } else if (e.kind == JOURNAL_RECORDS) {
        any = copy_make_records(c, &e, records, n);
    } else {
        c->e = e;
        memset(c->out, 0, JOURNAL_RECORD_HEADER_BYTES);
        c->iov.iov_len = JOURNAL_RECORD_HEADER_BYTES;
    }
    if (any)
        copy_append(j);
    else if (c->entry->kind == JOURNAL_RECORDS)
        copy_damaged(j);
    else
        copy_entry_end(j);
}

static void on_copy_read(struct disk_req *dr, int rc)
{
    struct copier *c = dr->arg;

    assert(c->j->copying == COPY_FRAMES && c->bytes != NULL);
    bool is_short = rc == 0 && dr->n_read != c->entry->place.len;

    if (rc != 0 && ++c->n_failed < READS_MAX)
        copy_abandon(c->j, rc); /* the timer tries again */
    else if ((rc != 0 || is_short) && c->entry->kind == JOURNAL_RECORDS)
        copy_lost(c->j);
    else if (rc != 0 || is_short)
        copy_skip(c->j);
    else
        copy_entry(c->j);
    if (rc == 0)
        c->n_failed = 0;
}

/* Starts with a frame: reads it unless its bytes are in memory. */
static void copy_entry_start(struct journal *j, struct journal_frame *entry)
{
    struct copier *c = &j->copier;

    assert(c->bytes == NULL && c->out == NULL && !entry->copied);
    c->j = j;
    c->entry = entry;
    if (j->n_held == 0)
        j->copy_failures = wal_failures(j->wal);
    if (j->n_held == j->held_max) {
        unsigned max = j->held_max * 2 + 64;
        struct journal_frame **more = realloc(j->held, max * sizeof(*more));

        if (more == NULL) {
            copy_abandon(j, -ENOMEM);
            return;
        }
        j->held = more;
        j->held_max = max;
    }
    j->held[j->n_held++] = entry;
    entry->n_refs++;
    entry->copied = true;
    c->bytes = entry->data;
    entry->data = NULL;
    if (entry->kind == JOURNAL_DAMAGED) {
        copy_damaged(j);
        return;
    }
    if (c->bytes != NULL || entry->kind == JOURNAL_MARK) {
        copy_entry(j);
        return;
    }
    c->bytes = malloc(entry->place.len);
    if (c->bytes == NULL || entry->place.file == NULL) {
        copy_abandon(j, c->bytes == NULL ? -ENOMEM : -EIO);
        return;
    }
    c->iov = (struct iovec){ .iov_base = c->bytes, .iov_len = entry->place.len };
    c->dr = (struct disk_req){ .op = DISK_READ,
                               .file = entry->place.file,
                               .offset = entry->place.offset,
                               .iov = &c->iov,
                               .n_iov = 1,
                               .done = on_copy_read,
                               .arg = c };
    disk_submit(j->config.disk, &c->dr);
}

/* Releases the copied frames: their copies are stable. But if a sync failed since,
 * they may not be, and no later sync would report it. Then the frames stay held and
 * are copied again soon; at the start, they stay until the next start. */
static void held_release(struct journal *j)
{
    bool failed = j->n_held > 0 && j->copy_failures != wal_failures(j->wal);

    assert(j->n_held <= j->held_max);
    j->redo_first = j->redo_last = 0;
    if (failed)
        log_error("journal: a sync failed; the copied frames are kept");
    if (failed && j->starting < START_DONE) {
        j->n_held = 0;
    } else if (failed) {
        j->redo_first = j->copy_first != 0 ? j->copy_first : wal_newest(j->wal);
        j->redo_last = wal_newest(j->wal);
    }
    while (!failed && j->n_held > 0)
        journal_index_put_frame(&j->index, j->held[--j->n_held]);
    j->copy_first = 0;
    journal_wake(j);
}

/* Copies again. Entries are in the order of the log, so copies lie behind all held
 * frames. */
static void redo_start(struct journal *j)
{
    assert(j->redo_first <= j->redo_last);
    j->copy_failures = wal_failures(j->wal);
    journal_copy_start(j);
}

static void on_copies_synced(struct wal_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, copy_wait);

    assert(j->copying == COPY_SYNCS);
    j->copying = COPY_IDLE;
    held_release(j);
    if (j->starting < START_DONE) {
        j->keep_old |= rc != 0;
        journal_start_step(j);
        return;
    }
    journal_timer_start(j);
    journal_run(j);
}

/* Syncs the copies when all frames are copied. */
static void copies_sync(struct journal *j)
{
    assert(j->copying != COPY_SYNCS);
    j->copying = COPY_IDLE;
    if (j->n_held > 0) {
        j->copy_wait.done = on_copies_synced;
        if (!wal_sync(j->wal, &j->copy_wait)) {
            j->copying = COPY_SYNCS;
            return;
        }
        held_release(j);
    }
    if (j->starting < START_DONE)
        journal_start_step(j);
    else
        journal_run(j);
}

/* Selects, at the start, frames in no segment of this loop; later, those of the
 * segment to be emptied. */
static bool is_to_be_copied(const struct journal *j, const struct journal_frame *e)
{
    if (e->copied)
        return false;
    if (j->starting < START_DONE)
        return e->data != NULL;
    if (e->kind == JOURNAL_DROP || e->kind == WAL_KIND_SYNCED)
        return false;
    if (j->redo_last != 0)
        return e->place.segment >= j->redo_first && e->place.segment <= j->redo_last;
    return e->place.segment == j->copy_segment;
}

/* Continues behind the last copied frame, which is held. */
static void copy_next(struct journal *j)
{
    struct list_node *entries = &j->index.entries;
    struct list_node *node =
        j->n_held > 0 ? j->held[j->n_held - 1]->link.next : entries->next;

    assert(j->copying == COPY_FRAMES);
    for (; node != entries; node = node->next) {
        struct journal_frame *e = container_of(node, struct journal_frame, link);

        if (is_to_be_copied(j, e)) {
            copy_entry_start(j, e);
            return;
        }
    }
    copies_sync(j);
}

void journal_copy_start(struct journal *j)
{
    assert(j->copying == COPY_IDLE);
    j->copying = COPY_FRAMES;
    copy_next(j);
}

/* Starts a copy if it is worth it. Committed records are applied instead, while the
 * appliers work. */
void journal_copy_maybe_start(struct journal *j)
{
    uint64_t segment = wal_oldest_wanted(j->wal);
    uint64_t bytes = 0;

    if (j->copying != COPY_IDLE || j->stopping != NOT_STOPPING ||
        !journal_has_pressure(j) || segment == 0 || segment == wal_newest(j->wal))
        return;
    if (j->redo_last != 0) {
        redo_start(j);
        return;
    }
    if (j->n_held > 0) { /* the last round was aborted: its frames first */
        copies_sync(j);
        return;
    }
    LIST_FOREACH(node, &j->index.entries) {
        const struct journal_frame *e = container_of(node, struct journal_frame, link);

        if (e->place.segment != segment)
            continue;
        if (e->n_committed > 0 && j->n_appliers > 0)
            return;
        bytes += e->n_bytes + JOURNAL_RECORD_HEADER_BYTES;
    }
    if (bytes > journal_segment_bytes(j) / 2)
        return;
    j->copy_segment = segment;
    journal_copy_start(j);
}
