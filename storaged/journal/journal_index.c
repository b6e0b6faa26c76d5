/*
 * journal_index.c - the index of what waits in the journal.
 *
 * In:     the ops and the journal. Thread: the storio loop.
 * Keeps:  a frame is wanted while a record, a mark or a reader refers to it; the newest
 *         version of a block is found first; a commit removes what it supersedes.
 * Yours:  the hash tables.
 */
#include "storaged/journal/journal_index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/format/projfile.h"

enum { FILES_MIN = 64, BLOCKS_MIN = 256, ANY = 255 };

/* ---- frames ---- */

struct journal_frame *journal_index_add_frame(struct journal_index *p,
                                              const struct wal_place *place)
{
    struct journal_frame *e = calloc(1, sizeof(*e));

    if (e == NULL)
        return NULL;
    e->place = *place;
    e->number = ++p->n_numbers;
    e->n_refs = 1;
    list_add_tail(&p->entries, &e->link);
    return e;
}

void journal_index_put_frame(struct journal_index *p, struct journal_frame *e)
{
    assert(e->n_refs > 0);
    if (--e->n_refs > 0)
        return;
    list_remove(&e->link);
    p->unwanted(p->arg, e);
    free(e);
}

/* ---- files ---- */

/* Hashes a file id. Cheaper than the hash in record headers, since requests look up
 * often. */
static unsigned id_bucket(const struct journal_index *p, const struct file_id *id)
{
    uint64_t x = (id->ino ^ (uint64_t)id->export_id << 32 ^ id->generation) *
                 UINT64_C(0x9e3779b97f4a7c15);

    return (unsigned)(x >> 32) & (p->n_buckets - 1);
}

struct pending_file *journal_index_find(const struct journal_index *p,
                                        const struct file_id *id)
{
    struct pending_file *f;

    if (p->n_files == 0)
        return NULL;
    f = p->buckets[id_bucket(p, id)];
    while (f != NULL && !file_id_equal(&f->ref.id, id))
        f = f->hash_next;
    return f;
}

/* Doubles the buckets if there is memory. */
static void files_grow(struct journal_index *p)
{
    struct pending_file **more = calloc(2 * (size_t)p->n_buckets, sizeof(*more));

    assert((p->n_buckets & (p->n_buckets - 1)) == 0);
    if (more == NULL)
        return;
    free(p->buckets);
    p->buckets = more;
    p->n_buckets *= 2;
    LIST_FOREACH(node, &p->files) {
        struct pending_file *f = container_of(node, struct pending_file, link);
        struct pending_file **bucket = &p->buckets[id_bucket(p, &f->ref.id)];

        f->hash_next = *bucket;
        *bucket = f;
    }
}

struct pending_file *journal_index_get(struct journal_index *p,
                                       const struct storage_file *ref,
                                       const struct codec *codec)
{
    struct pending_file *f = journal_index_find(p, &ref->id), **bucket;

    assert(codec != NULL);
    if (f != NULL && f->codec != codec && f->n_records == 0) { /* marks fit any code */
        f->ref = *ref;
        f->codec = codec;
    }
    if (f != NULL) {
        f->ref.full_quorum |= ref->full_quorum; /* the journal does not store it */
        return f;
    }
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return NULL;
    if (p->n_files >= p->n_buckets)
        files_grow(p);
    f->ref = *ref;
    f->codec = codec;
    f->hash = file_id_hash(&ref->id);
    f->serial = ++p->n_serials;
    list_init(&f->records[false]);
    list_init(&f->records[true]);
    list_init(&f->marks);
    list_init(&f->apply_link);
    list_add_tail(&p->files, &f->link);
    bucket = &p->buckets[id_bucket(p, &f->ref.id)];
    f->hash_next = *bucket;
    *bucket = f;
    p->n_files++;
    return f;
}

static void file_maybe_free(struct journal_index *p, struct pending_file *f)
{
    struct pending_file **at;

    assert(f->n_committed <= f->n_records + f->n_marks);
    if (f->n_records > 0 || f->n_marks > 0 || f->n_users > 0)
        return;
    at = &p->buckets[id_bucket(p, &f->ref.id)];
    while (*at != f)
        at = &(*at)->hash_next;
    *at = f->hash_next;
    list_remove(&f->link);
    list_remove(&f->apply_link);
    p->n_files--;
    free(f);
}

void pending_file_hold(struct pending_file *f)
{
    f->n_users++;
}

void journal_index_put(struct journal_index *p, struct pending_file *f)
{
    assert(f->n_users > 0);
    f->n_users--;
    file_maybe_free(p, f);
}

/* ---- records ---- */

/* Hashes a block so that neighbours share a line of the processor's cache. */
static unsigned block_hash(const struct pending_file *f, unsigned projection,
                           uint64_t block)
{
    uint64_t x = (block / 8 ^ (uint64_t)projection << 56 ^ (uint64_t)f->hash << 24) *
                 UINT64_C(0x9e3779b97f4a7c15);

    return (unsigned)(x >> 32) * 8 + (unsigned)(block % 8);
}

static bool is_of(const struct pending_record *r, const struct pending_file *f,
                  unsigned projection, uint64_t block)
{
    return r->block == block && r->projection == projection && r->file == f;
}

/* Returns the link that points at the newest version of a block, or at the end of its
 * chain. */
static struct pending_record **newest_link(const struct journal_index *p,
                                           const struct pending_file *f,
                                           unsigned projection, uint64_t block)
{
    struct pending_record **at =
        &p->blocks[block_hash(f, projection, block) & (p->n_blocks_buckets - 1)];

    assert(projection < CODEC_N_MAX);
    while (*at != NULL && !is_of(*at, f, projection, block))
        at = &(*at)->hash_next;
    return at;
}

struct pending_record *journal_index_newest(const struct journal_index *p,
                                            const struct pending_file *f,
                                            unsigned projection, uint64_t block)
{
    return f == NULL || f->n_records == 0 ? NULL : *newest_link(p, f, projection, block);
}

struct pending_record *journal_index_at_most(const struct journal_index *p,
                                             const struct pending_file *f,
                                             unsigned projection, uint64_t block,
                                             uint64_t at_most)
{
    struct pending_record *r = journal_index_newest(p, f, projection, block);

    while (r != NULL && r->version > at_most)
        r = r->older;
    return r;
}

static void blocks_grow(struct journal_index *p)
{
    unsigned n = 2 * p->n_blocks_buckets;
    struct pending_record **more = calloc(n, sizeof(*more));

    assert((p->n_blocks_buckets & (p->n_blocks_buckets - 1)) == 0);
    if (more == NULL)
        return;
    for (unsigned i = 0; i < p->n_blocks_buckets; i++) {
        while (p->blocks[i] != NULL) {
            struct pending_record *r = p->blocks[i];
            unsigned to = block_hash(r->file, r->projection, r->block) & (n - 1);

            p->blocks[i] = r->hash_next;
            r->hash_next = more[to];
            more[to] = r;
        }
    }
    free(p->blocks);
    p->blocks = more;
    p->n_blocks_buckets = n;
}

static void count_commit(struct journal_index *p, struct pending_file *f, uint64_t now_ns)
{
    assert(p->n_uncommitted > 0);
    if (f->n_committed++ == 0)
        f->committed_ns = now_ns;
    p->n_uncommitted--;
}

static unsigned record_bytes(const struct pending_record *r)
{
    return (unsigned)r->head_len + r->body_len;
}

static void record_free(struct journal_index *p, struct pending_record *r)
{
    struct pending_file *f = r->file;

    assert(f->n_records > 0 && p->n_records > 0);
    assert(r->committed ? f->n_committed > 0 : p->n_uncommitted > 0);
    assert(r->entry->n_bytes >= record_bytes(r));
    list_remove(&r->link);
    f->n_records--;
    p->n_records--;
    if (r->committed)
        f->n_committed--;
    else
        p->n_uncommitted--;
    r->entry->n_bytes -= record_bytes(r);
    r->entry->n_committed -= r->committed;
    r->entry->n_damaged -= r->damaged;
    journal_index_put_frame(p, r->entry);
    free(r);
}

/* Takes r out of its block's chain and frees it; its file stays. */
static void record_cut(struct journal_index *p, struct pending_record *r)
{
    struct pending_record **at = newest_link(p, r->file, r->projection, r->block);

    assert(*at != NULL && (*at)->version >= r->version);
    if (*at == r) {
        struct pending_record *older = r->older;

        if (older != NULL) {
            older->hash_next = r->hash_next;
            *at = older;
        } else {
            *at = r->hash_next;
            p->n_blocks--;
        }
    } else {
        struct pending_record *newer = *at;

        while (newer->older != r)
            newer = newer->older;
        newer->older = r->older;
    }
    record_free(p, r);
}

void pending_record_spoil(struct pending_record *r)
{
    assert(r->entry->n_bytes >= r->body_len && r->version != 0);
    r->entry->n_bytes -= r->body_len;
    r->entry->n_damaged += !r->damaged;
    r->body_len = 0;
    r->damaged = true;
    memset(r->head, 0, r->head_len);
    damaged_head_put(r->head, r->file->hash, r->projection, r->block, r->version, false);
}

void journal_index_remove_record(struct journal_index *p, struct pending_record *r)
{
    struct pending_file *f = r->file;

    record_cut(p, r);
    file_maybe_free(p, f);
}

/* Removes versions older than a committed one: no request can ask for them. */
static void older_cut(struct journal_index *p, struct pending_record *r)
{
    assert(r->committed);
    while (r->older != NULL) {
        struct pending_record *older = r->older;

        r->older = older->older;
        record_free(p, older);
    }
}

static void record_commit(struct journal_index *p, struct pending_record *r,
                          uint64_t now_ns)
{
    assert(!r->committed);
    r->committed = true;
    r->entry->n_committed++;
    list_remove(&r->link);
    list_add_tail(&r->file->records[true], &r->link);
    count_commit(p, r->file, now_ns);
    older_cut(p, r);
}

static bool is_durable(const struct pending_file *f, uint64_t version)
{
    for (unsigned i = 0; i < f->n_durable; i++) {
        if (version_epoch(f->durable[i]) == version_epoch(version))
            return version <= f->durable[i];
    }
    return false;
}

static void record_link(struct journal_index *p, struct pending_record *r)
{
    struct pending_record **at = newest_link(p, r->file, r->projection, r->block);

    assert(r->older == NULL && r->hash_next == NULL);
    if (*at == NULL || (*at)->version < r->version) {
        r->older = *at;
        if (*at == NULL)
            p->n_blocks++;
        else
            r->hash_next = (*at)->hash_next;
        *at = r;
        return;
    }
    for (at = &(*at)->older; *at != NULL && (*at)->version > r->version;)
        at = &(*at)->older;
    r->older = *at;
    *at = r;
}

int journal_index_add_record(struct journal_index *p, struct pending_file *f,
                             struct journal_frame *e, unsigned projection,
                             const uint8_t *head, size_t head_len,
                             const struct record_header *h, size_t body_at,
                             size_t body_len, uint64_t now_ns)
{
    struct pending_record *same =
        journal_index_at_most(p, f, projection, h->block, h->version);
    struct pending_record *r = malloc(sizeof(*r) + head_len);
    bool was_committed = false;
    bool damaged = (h->flags & RECORD_DAMAGED) != 0;

    assert(e->n_refs > 0 && h->version != 0);
    if (r == NULL)
        return -ENOMEM;
    if (damaged && same != NULL && same->version == h->version && !same->damaged) {
        free(r);
        return 0;
    }
    *r = (struct pending_record){
        .file = f,
        .entry = e,
        .block = h->block,
        .version = h->version,
        .since_ns = now_ns,
        .body_at = (uint32_t)body_at,
        .body_len = (uint16_t)body_len,
        .head_len = (uint16_t)head_len,
        .projection = (uint8_t)projection,
        .damaged = damaged,
    };
    memcpy(r->head, head, head_len);
    e->n_refs++;
    e->n_bytes += record_bytes(r);
    e->n_damaged += damaged;
    list_add_tail(&f->records[false], &r->link);
    f->n_records++;
    f->added_ns = now_ns;
    p->n_records++;
    p->n_uncommitted++;
    if (same != NULL && same->version == h->version) {
        was_committed = same->committed;
        r->since_ns = same->since_ns;
        record_cut(p, same);
    }
    if (p->n_blocks >= p->n_blocks_buckets)
        blocks_grow(p);
    record_link(p, r);
    if (e->number > f->last_number)
        f->last_number = e->number;
    if (was_committed || is_durable(f, r->version))
        record_commit(p, r, now_ns);
    return 0;
}

/* ---- marks ---- */

const struct pending_mark *pending_file_mark_at(const struct pending_file *f,
                                                uint64_t block, uint64_t at_most)
{
    const struct pending_mark *newest = NULL;

    if (f == NULL || f->n_marks == 0)
        return NULL;
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->first <= block && block < m->end && m->version <= at_most)
            newest = m; /* ascending versions */
    }
    return newest;
}

uint64_t pending_file_mark_over(const struct pending_file *f, uint64_t block,
                                uint64_t at_most)
{
    const struct pending_mark *m = pending_file_mark_at(f, block, at_most);

    return m == NULL ? 0 : m->version;
}

void pending_file_marks_pass(struct pending_file *f, uint64_t first, uint64_t end,
                             uint64_t version)
{
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->first < end && first < m->end && m->version < version)
            m->passed = true;
    }
}

uint64_t pending_file_marks_newest(const struct pending_file *f, uint64_t first,
                                   uint64_t end)
{
    uint64_t newest = 0;

    if (f == NULL || f->n_marks == 0)
        return 0;
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->first < end && first < m->end)
            newest = m->version;
    }
    return newest;
}

static void mark_free(struct journal_index *p, struct pending_file *f,
                      struct pending_mark *m)
{
    assert(f->n_marks > 0 && p->n_marks > 0);
    assert(m->committed ? f->n_committed > 0 : p->n_uncommitted > 0);
    list_remove(&m->link);
    f->n_marks--;
    p->n_marks--;
    if (m->committed)
        f->n_committed--;
    else
        p->n_uncommitted--;
    journal_index_put_frame(p, m->entry);
    free(m);
}

void journal_index_remove_mark(struct journal_index *p, struct pending_file *f,
                               struct pending_mark *m)
{
    mark_free(p, f, m);
    file_maybe_free(p, f);
}

/* Inserts a mark behind all that are not newer. */
static void mark_link(struct pending_file *f, struct pending_mark *m)
{
    struct list_node *at = f->marks.prev;

    assert(m->version != 0);
    while (at != &f->marks &&
           container_of(at, struct pending_mark, link)->version > m->version)
        at = at->prev;
    list_add_after(at, &m->link);
}

/* Splits m at `at`: m keeps [m->first, at); a new mark behind it gets the rest. */
static int mark_split(struct journal_index *p, struct pending_file *f,
                      struct pending_mark *m, uint64_t at)
{
    struct pending_mark *rest;

    if (at <= m->first || at >= m->end)
        return 0;
    rest = malloc(sizeof(*rest));
    if (rest == NULL)
        return -ENOMEM;
    *rest = *m;
    rest->first = m->end = at;
    rest->entry->n_refs++;
    list_add_after(&m->link, &rest->link);
    f->n_marks++;
    p->n_marks++;
    if (rest->committed)
        f->n_committed++;
    else
        p->n_uncommitted++;
    return 0;
}

/* Removes what a committed mark supersedes, for a mark over few blocks: without a walk
 * over all records of the file. */
static void mark_cut_blocks(struct journal_index *p, struct pending_file *f,
                            const struct pending_mark *m)
{
    for (uint64_t block = m->first; block < m->end; block++) {
        for (unsigned i = 0; i < codec_n(f->codec); i++) {
            struct pending_record *r =
                journal_index_at_most(p, f, i, block, m->version - 1);

            while (r != NULL) {
                struct pending_record *older = r->older;

                record_cut(p, r);
                r = older;
            }
        }
    }
}

/* Commits a mark; removes the older records under it. */
static void mark_commit(struct journal_index *p, struct pending_file *f,
                        struct pending_mark *m, uint64_t now_ns)
{
    assert(!m->committed && m->first < m->end);
    m->committed = true;
    count_commit(p, f, now_ns);
    if (m->end - m->first < f->n_records / codec_n(f->codec)) {
        mark_cut_blocks(p, f, m);
        return;
    }
    PENDING_FOREACH_SAFE(node, f)
    {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->version < m->version && m->first <= r->block && r->block < m->end)
            record_cut(p, r);
    }
}

int journal_index_add_mark(struct journal_index *p, struct pending_file *f,
                           struct journal_frame *e, const struct pending_mark *mark)
{
    struct pending_mark *m = malloc(sizeof(*m));

    assert(e->n_refs > 0 && mark->version != 0 && mark->first < mark->end);
    if (m == NULL)
        return -ENOMEM;
    *m = *mark;
    LIST_FOREACH_SAFE(node, &f->marks) { /* repeated request */
        struct pending_mark *old = container_of(node, struct pending_mark, link);

        if (old->version != mark->version || old->first != mark->first ||
            old->end != mark->end)
            continue;
        m->passed |= old->passed;
        mark_free(p, f, old);
    }
    m->entry = e;
    m->committed = m->applied = false;
    e->n_refs++;
    mark_link(f, m);
    f->n_marks++;
    p->n_marks++;
    p->n_uncommitted++;
    if (e->number > f->last_number)
        f->last_number = e->number;
    if (mark->committed || is_durable(f, m->version))
        mark_commit(p, f, m, mark->since_ns);
    return 0;
}

void journal_index_remove_all(struct journal_index *p, struct pending_file *f)
{
    pending_file_hold(f);
    PENDING_FOREACH_SAFE(node, f)
    record_cut(p, container_of(node, struct pending_record, link));
    LIST_FOREACH_SAFE(node, &f->marks)
        mark_free(p, f, container_of(node, struct pending_mark, link));
    journal_index_put(p, f);
}

/* ---- commits ---- */

/* Stores the watermark of an epoch. Returns false if it is known. */
static bool durable_note(struct pending_file *f, uint64_t durable)
{
    unsigned oldest = 0;

    assert(f->n_durable <= PENDING_EPOCHS_MAX);
    for (unsigned i = 0; i < f->n_durable; i++) {
        if (version_epoch(f->durable[i]) == version_epoch(durable)) {
            if (durable <= f->durable[i])
                return false;
            f->durable[i] = durable;
            return true;
        }
        if (f->durable[i] < f->durable[oldest])
            oldest = i;
    }
    if (f->n_durable < PENDING_EPOCHS_MAX)
        f->durable[f->n_durable++] = durable;
    else if (durable > f->durable[oldest])
        f->durable[oldest] = durable; /* records below are committed */
    return true;
}

/* Commits the versions from `least` to `version` in [first, end). */
static bool commit(struct journal_index *p, struct pending_file *f, uint64_t first,
                   uint64_t end, uint64_t least, uint64_t version, uint64_t now_ns)
{
    struct list_node news;
    bool any;

    assert(first < end);
    pending_file_hold(f);
    list_init(&news);
    LIST_FOREACH_SAFE(node, &f->records[false]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->version < least || r->version > version || r->block < first ||
            r->block >= end)
            continue;
        list_remove(&r->link);
        list_add_tail(&news, &r->link);
    }
    any = !list_is_empty(&news);
    while (!list_is_empty(&news)) /* removes older versions of its block from any list */
        record_commit(p, container_of(news.next, struct pending_record, link), now_ns);
    for (struct list_node *node = f->marks.next; node != &f->marks; node = node->next) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->committed || m->version < least || m->version > version ||
            m->first >= end || m->end <= first)
            continue;
        if (mark_split(p, f, m, first) != 0 || mark_split(p, f, m, end) != 0)
            continue; /* the client commits again */
        if (m->first < first)
            continue; /* the next mark is the part in the range */
        mark_commit(p, f, m, now_ns);
        any = true;
    }
    journal_index_put(p, f);
    return any;
}

bool journal_index_commit(struct journal_index *p, struct pending_file *f,
                          uint64_t durable, uint64_t now_ns)
{
    if (!durable_note(f, durable))
        return false;
    return commit(p, f, 0, UINT64_MAX, version_make(version_epoch(durable), 0), durable,
                  now_ns);
}

bool journal_index_commit_range(struct journal_index *p, struct pending_file *f,
                                uint64_t first, uint64_t end, uint64_t version,
                                uint64_t now_ns)
{
    return commit(p, f, first, end, 0, version, now_ns);
}

/* ---- drops ---- */

bool pending_drop_covers(const struct pending_drop *d, unsigned projection,
                         uint64_t version)
{
    if (d->projections != 0 && projection == ANY)
        return d->epoch != 0 && version <= d->keep;
    if (d->projections != 0)
        return projection < 32 && (d->projections >> projection & 1) != 0 &&
               version <= d->keep;
    return version > d->keep && version_epoch(version) <= d->epoch;
}

int journal_index_drop(struct journal_index *p, struct pending_file *f,
                       const struct pending_drop *d)
{
    int n = 0, rc = 0;

    assert(d->first < d->end);
    pending_file_hold(f);
    PENDING_FOREACH_SAFE(node, f)
    {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->block < d->first || r->block >= d->end ||
            !pending_drop_covers(d, r->projection, r->version))
            continue;
        record_cut(p, r);
        n++;
    }
    for (struct list_node *node = f->marks.next; node != &f->marks && rc == 0;) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        node = node->next;
        if (m->first >= d->end || m->end <= d->first ||
            !pending_drop_covers(d, ANY, m->version))
            continue;
        rc = mark_split(p, f, m, d->end);
        if (rc == 0)
            rc = mark_split(p, f, m, d->first);
        if (rc != 0)
            break;
        if (m->first < d->first) /* the part behind it is the one to remove */
            m = container_of(m->link.next, struct pending_mark, link);
        mark_free(p, f, m);
        n++;
    }
    journal_index_put(p, f);
    return rc < 0 ? rc : n;
}

/* ---- init and close ---- */

int journal_index_init(struct journal_index *p,
                       void (*unwanted)(void *arg, struct journal_frame *entry),
                       void *arg)
{
    *p = (struct journal_index){
        .n_buckets = FILES_MIN,
        .n_blocks_buckets = BLOCKS_MIN,
        .unwanted = unwanted,
        .arg = arg,
    };
    list_init(&p->files);
    list_init(&p->entries);
    p->buckets = calloc(p->n_buckets, sizeof(*p->buckets));
    p->blocks = calloc(p->n_blocks_buckets, sizeof(*p->blocks));
    return p->buckets == NULL || p->blocks == NULL ? -ENOMEM : 0;
}

static void ignore(void *arg, struct journal_frame *entry)
{
    (void)arg;
    (void)entry;
}

void journal_index_close(struct journal_index *p)
{
    p->unwanted = ignore;
    if (p->buckets != NULL && p->blocks != NULL) {
        while (!list_is_empty(&p->files)) {
            struct pending_file *f =
                container_of(p->files.next, struct pending_file, link);

            f->n_users = 0;
            journal_index_remove_all(p, f);
        }
        while (!list_is_empty(&p->entries)) { /* references that were never released */
            struct journal_frame *e =
                container_of(p->entries.next, struct journal_frame, link);

            e->n_refs = 1;
            journal_index_put_frame(p, e);
        }
    }
    free(p->buckets);
    free(p->blocks);
}
