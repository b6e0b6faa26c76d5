/*
 * journal_copy.c - copying frames forward, so that one stuck record does not hold the log; and at the start, what lies in
 * no segment of this loop.
 *
 * In:     the timer, the start. Thread: the storio loop.
 * Out:    disk reads, log.h.
 * Keeps:  a frame that was copied is given up when its copy is on stable storage.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "storaged/core/journal_in.h"

static void copy_next(struct journal *j);

void journal_copier_free(struct copier *c)
{
    free(c->bytes);
    free(c->out);
    c->bytes = c->out = NULL;
}

/* Of a frame nothing is left to copy: it goes when the copies are on stable storage. */
static void copy_entry_end(struct journal *j)
{
    journal_copier_free(&j->copier);
    copy_next(j);
}

static void copy_give_up(struct journal *j, int rc)
{
    j->copier.entry->copied = false;
    journal_copier_free(&j->copier);
    j->copying = false;
    if (j->starting < START_DONE) {
        j->start_rc = rc;
        journal_start_step(j);
    } else {
        journal_timer_start(j);
        journal_run(j);
    }
}

static void copy_switch_records(struct copier *c, struct pending_entry *to)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &c->e.file.id);
    struct entry_record records[ENTRY_BLOCKS_MAX];
    int n = entry_records(&c->e, c->out, c->append.len, records);

    assert(n > 0);
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = pending_at_most(
            p, f, c->e.projection, records[i].block, records[i].header.version);

        if (r == NULL || r->entry != c->entry || r->version != records[i].header.version)
            continue; /* it went meanwhile */
        r->entry = to;
        r->body_at = (uint32_t)records[i].body_at;
        to->n_refs++;
        to->n_bytes += (unsigned)r->head_len + r->body_len;
        c->entry->n_bytes -= (unsigned)r->head_len + r->body_len;
        pending_entry_put(p, c->entry);
    }
}

static void copy_switch_mark(struct copier *c, struct pending_entry *to)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &c->e.file.id);

    if (f == NULL)
        return;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->entry != c->entry || m->first != c->e.first || m->end != c->e.end ||
            m->version != c->e.version)
            continue;
        m->entry = to;
        to->n_refs++;
        pending_entry_put(p, c->entry);
        return;
    }
}

static void copy_switch_fence(struct copier *c, struct pending_entry *to)
{
    struct fence *f = *journal_fence_link(c->j, &c->e.file.id);

    if (f == NULL || f->entry != c->entry)
        return;
    f->entry = to;
    to->n_refs++;
    pending_entry_put(&c->j->pending, c->entry);
}

static void copy_entry(struct journal *j);

static void on_copied(struct log_append *append, int rc)
{
    struct copier *c = container_of(append, struct copier, append);
    struct journal *j = c->j;
    struct pending_entry *to =
        rc == 0 ? pending_entry_new(&j->pending, &append->place) : NULL;

    if (rc == 0 && to == NULL) {
        log_release(j->log, &append->place);
        rc = -ENOMEM;
    }
    if (rc != 0) {
        copy_give_up(j, rc);
        return;
    }
    journal_entry_init(j, to, c->entry->kind);
    switch (c->entry->kind) {
    case ENTRY_RECORDS:
        copy_switch_records(c, to);
        break;
    case ENTRY_MARK:
        copy_switch_mark(c, to);
        break;
    case ENTRY_FENCE:
        copy_switch_fence(c, to);
        break;
    default:
        to->n_refs++;
        journal_drop_note(j, to);
        break;
    }
    pending_entry_put(&j->pending, to);
    free(c->out);
    c->out = NULL;
    if (c->entry->kind == ENTRY_MARK)
        copy_entry(j); /* it may be in pieces */
    else
        copy_entry_end(j);
}

/* What is still wanted of the records in c->bytes, as a new frame; false: nothing. */
static bool copy_make_records(struct copier *c, const struct entry *e,
                              struct entry_record *records, int n)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &e->file.id);
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    size_t at = ENTRY_HEADER_BYTES;
    int n_wanted = 0;

    c->e = *e;
    c->e.blocks[0] = c->e.blocks[1] = 0;
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = pending_at_most(p, f, e->projection, records[i].block,
                                                   records[i].header.version);
        unsigned bit = (unsigned)(records[i].block - e->first);

        if (r == NULL || r->entry != c->entry || r->version != records[i].header.version)
            continue;
        c->e.blocks[bit / 64] |= UINT64_C(1) << bit % 64;
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

static bool copy_make_mark(struct copier *c, const struct entry *e)
{
    struct pending_file *f = pending_find(&c->j->pending, &e->file.id);

    c->e = *e;
    c->iov.iov_len = ENTRY_HEADER_BYTES;
    if (f == NULL)
        return false;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->entry != c->entry)
            continue;
        c->e.first = m->first;
        c->e.end = m->end;
        return true;
    }
    return false;
}

/* c->bytes has the frame. */
static void copy_entry(struct journal *j)
{
    struct copier *c = &j->copier;
    struct entry_record records[ENTRY_BLOCKS_MAX];
    uint32_t len = c->entry->place.len;
    struct entry e;
    bool any = true;
    int n = 0;
    int rc = entry_get(c->entry->kind, c->bytes, len, &e);

    if (rc == 0 && e.kind == ENTRY_RECORDS)
        n = entry_records(&e, c->bytes, len, records);
    c->out = malloc(len);
    if (rc != 0 || n < 0 || c->out == NULL) {
        copy_give_up(j, c->out == NULL ? -ENOMEM : -EIO);
        return;
    }
    c->iov.iov_base = c->out;
    if (e.kind == ENTRY_RECORDS) {
        any = copy_make_records(c, &e, records, n);
    } else if (e.kind == ENTRY_MARK) {
        any = copy_make_mark(c, &e);
    } else {
        c->e = e;
        c->iov.iov_len = ENTRY_HEADER_BYTES;
    }
    if (!any) {
        copy_entry_end(j);
        return;
    }
    entry_put(c->out, &c->e);
    c->append = (struct log_append){ .kind = e.kind,
                                     .iov = &c->iov,
                                     .n_iov = 1,
                                     .len = c->iov.iov_len,
                                     .done = on_copied };
    log_append(j->log, &c->append);
}

static void on_copy_read(struct disk_req *dr, int rc)
{
    struct copier *c = dr->arg;

    if (rc == 0 && dr->n_read != c->entry->place.len)
        rc = -EIO;
    if (rc != 0)
        copy_give_up(c->j, rc);
    else
        copy_entry(c->j);
}

/* Take the frame in hand: read it, unless its bytes are here. */
static void copy_entry_start(struct journal *j, struct pending_entry *entry)
{
    struct copier *c = &j->copier;

    c->j = j;
    c->entry = entry;
    if (j->n_held == 0)
        j->copy_failures = log_failures(j->log);
    if (j->n_held == j->held_max) {
        unsigned max = j->held_max * 2 + 64;
        struct pending_entry **more = realloc(j->held, max * sizeof(*more));

        if (more == NULL) {
            copy_give_up(j, -ENOMEM);
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
    if (c->bytes != NULL) {
        copy_entry(j);
        return;
    }
    c->bytes = malloc(entry->place.len);
    if (c->bytes == NULL || entry->place.file == NULL) {
        copy_give_up(j, c->bytes == NULL ? -ENOMEM : -EIO);
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
    disk_submit(j->st->disk, &c->dr);
}

/* The copies are on stable storage. But if a sync failed since, perhaps not, and no later sync would tell: then
 * what was copied stays wanted, too, until the next start. */
static void held_release(struct journal *j)
{
    if (j->n_held > 0 && j->copy_failures != log_failures(j->log)) {
        log_error("journal: a sync failed; what was copied stays where it was");
        j->n_held = 0;
    }
    while (j->n_held > 0)
        pending_entry_put(&j->pending, j->held[--j->n_held]);
    journal_wake(j);
}

static void on_copies_synced(struct log_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, copy_wait);

    j->copy_syncing = false;
    held_release(j);
    if (j->starting < START_DONE) {
        j->start_rc = rc;
        journal_start_step(j);
        return;
    }
    journal_timer_start(j);
    journal_run(j);
}

/* All frames are copied. */
static void copies_sync(struct journal *j)
{
    j->copying = false;
    if (j->n_held > 0) {
        j->copy_wait.done = on_copies_synced;
        j->copy_syncing = !log_sync(j->log, &j->copy_wait);
        if (j->copy_syncing)
            return;
        held_release(j);
    }
    if (j->starting < START_DONE)
        journal_start_step(j);
    else
        journal_run(j);
}

/* At the start: those whose bytes lie in no segment of ours. Later: those of the segment to be emptied. */
static bool is_to_be_copied(const struct journal *j, const struct pending_entry *e)
{
    if (e->copied)
        return false;
    if (j->starting < START_DONE)
        return e->data != NULL;
    return e->place.segment == j->copy_segment && e->kind != ENTRY_DROP;
}

static void copy_next(struct journal *j)
{
    LIST_FOREACH(node, &j->pending.entries) {
        struct pending_entry *e = container_of(node, struct pending_entry, link);

        if (is_to_be_copied(j, e)) {
            copy_entry_start(j, e);
            return;
        }
    }
    copies_sync(j);
}

void journal_copy_start(struct journal *j)
{
    j->copying = true;
    copy_next(j);
}

/* Is it worth it? What is committed will be applied instead. */
void journal_copy_maybe_start(struct journal *j)
{
    uint64_t segment = log_oldest_wanted(j->log);
    uint64_t bytes = 0;

    if (j->copying || j->copy_syncing || j->stopping || !journal_has_pressure(j) ||
        segment == 0 || segment == log_newest(j->log))
        return;
    if (j->n_held > 0) { /* the last sync failed: those first */
        copies_sync(j);
        return;
    }
    LIST_FOREACH(node, &j->pending.entries) {
        const struct pending_entry *e = container_of(node, struct pending_entry, link);

        if (e->place.segment == segment)
            bytes += e->n_bytes + ENTRY_HEADER_BYTES;
    }
    if (bytes > journal_segment_bytes(j) / 2)
        return;
    j->copy_segment = segment;
    journal_copy_start(j);
}
