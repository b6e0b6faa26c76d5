/*
 * run.c - restores one file from its projection files and the entries of journals.
 *
 * In:     salvage_run(). For every extent: the heads of all sources, then, where needed,
 *         their bodies.
 * Out:    bytes to a sink, a report.
 * Keeps:  a block is given only if k distinct projections of one version with right crcs
 *         decode to it; it is a hole only if k storages say so at one version, or if
 *         nothing contradicts it.
 * Yours:  how much is read at a time.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "storaged/format/projfile.h"
#include "storaged/salvage/salvage.h"

enum {
    SOURCES_MAX = 64,
    HEAD_MAX = RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX,
};

/* A projection file. */
struct source {
    int fd; /* owned */
    uint8_t dir, projection;
    bool is_doubtful; /* where no head is, the content is unknown */
    /* Created in place of a lost one; otherwise its front is unreadable. */
    bool is_partial;
    /* Quarantined, and its storage has a newer file, which counts instead. */
    bool is_replaced;
    struct geometry geo;
    uint64_t size;
    struct marks marks, written;
    /* Buffers of the current extent. */
    uint8_t *heads, *bodies; /* owned */
    bool has_bodies, heads_missing;
};

/* The statement of one storage about a block: data or a hole, at a version. */
struct claim {
    uint64_t version;
    bool is_hole;
    uint8_t dir, projection;
    uint16_t user_bytes;
    struct source *source;                /* set if the record is in place */
    const struct salvage_waiting *record; /* set if it is in a journal */
};

/* All claims about one block, newest first. */
struct claims {
    unsigned n;
    bool is_damaged; /* some record or page was invalid */
    bool is_short;   /* out of memory: claims are missing */
    /* Bits: storages that may have something newer than their claim. */
    uint64_t dirs_unknown;
    /* Bits: no head is there, and the record of written blocks is unreadable. */
    uint64_t dirs_blank;
    struct claim *list; /* owned */
    size_t room;
};

/* A projection of the current block, with a right crc. */
struct part {
    uint8_t head[HEAD_MAX];
    uint8_t body[CODEC_DATA_MAX];
};

enum fate { FATE_HOLE, FATE_DATA, FATE_UNREADABLE };

struct run {
    struct salvage *s;
    enum salvage_mode mode;
    salvage_sink *sink;
    void (*tick)(void *arg, uint64_t n_bytes);
    void *arg;
    struct salvage_report *report;
    const struct codec *codec;
    uint32_t hash;
    struct source *sources[SOURCES_MAX];
    unsigned n_sources;
    uint64_t dirs_empty;   /* bits: storages of the file that have nothing of it: holes */
    uint64_t dirs_unknown; /* bits: storages with unreadable parts */
    unsigned n_absent,     /* storages of the file that were not given */
        quorum;            /* fewest storages that an acknowledged write may be on */
    /* Indexes in s->waiting: marks, then records; record advances. */
    size_t mark, record, end;
    struct part *parts;           /* CODEC_N_MAX */
    uint8_t *block;               /* decoded */
    uint8_t *out;                 /* user bytes of an extent */
    uint16_t lens[EXTENT_BLOCKS]; /* user bytes of its blocks, 0: none */
    struct claims claims;         /* for the current block */
    uint64_t n_ticked;
};

/* ---- sources ---- */

static void source_free(struct source *src)
{
    if (src == NULL)
        return;
    if (src->fd >= 0)
        close(src->fd);
    free(src->heads);
    free(src->bodies);
    free(src);
}

static int place_open(const struct salvage *s, const struct salvage_place *place)
{
    char path[PROJFILE_PATH_MAX];

    assert(place->dir < s->n_dirs);
    if (place->projection == SALVAGE_QUARANTINED)
        projfile_path_quarantined(path, &place->id);
    else
        projfile_path(path, &place->id, place->projection);
    return openat(s->dirs[place->dir].fd, path,
                  O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Reads the header page of a file. Returns -ENOENT if it cannot be opened. */
static int place_header(const struct salvage *s, const struct salvage_place *place,
                        struct projfile_header *h)
{
    uint8_t front[PROJFILE_FRONT_BYTES];
    int fd = place_open(s, place), rc;

    if (fd < 0)
        return -ENOENT;
    salvage_pread(fd, front, sizeof(front), 0);
    close(fd);
    rc = projfile_front_get(front, h);
    if (rc == 0 && (file_id_compare(&h->id, &place->id) != 0 ||
                    (place->projection != SALVAGE_QUARANTINED &&
                     place->projection != h->projection)))
        rc = -ROZO_EDAMAGED; /* the header of another file */
    return rc;
}

/* Header pages of a file, read once. */
struct headers {
    int rc[SOURCES_MAX];
    struct projfile_header list[SOURCES_MAX];
};

static bool is_coded_alike(const struct projfile_header *a,
                           const struct projfile_header *b)
{
    return a->codec == b->codec && a->layout == b->layout &&
           a->block_bytes == b->block_bytes;
}

static bool is_coded_as(const struct projfile_header *h, const struct storage_file *ref)
{
    return h->codec == ref->codec && h->layout == ref->layout &&
           h->block_bytes == ref->block_bytes;
}

/* Returns the fewest storages that an acknowledged write may be on: headers of an earlier
 * distribution may have fewer candidates. full: any header has full_quorum. */
static unsigned quorum_of_headers(const struct headers *hs, size_t n,
                                  const struct storage_file *ref, bool full)
{
    const struct codec_layout *layout = codec_layout(ref->layout);
    unsigned q = layout->k, q_min = 0;

    if (ref->n_storages >= layout->k)
        q = quorum_read(layout, ref->n_storages, full);
    for (size_t i = 0; i < n; i++) {
        if (hs->rc[i] != 0 || !is_coded_as(&hs->list[i], ref))
            continue;
        q = quorum_read(layout, hs->list[i].n_storages, full);
        q_min = q_min == 0 || q < q_min ? q : q_min;
    }
    return q_min == 0 ? q : q_min;
}

/* Finds the distribution of the file: that of the latest generation in any header. */
static void file_ref_lies(const struct headers *hs, size_t n, struct storage_file *out,
                          unsigned *quorum)
{
    bool known = false, full = false;

    for (size_t i = 0; i < n; i++) {
        const struct projfile_header *h = &hs->list[i];

        if (hs->rc[i] != 0 || !is_coded_as(h, out))
            continue;
        full |= h->full_quorum;
        if (known && h->dist_generation <= out->dist_generation)
            continue;
        known = true;
        out->dist_generation = h->dist_generation;
        out->n_storages = h->n_storages;
        memcpy(out->storages, h->storages, sizeof(out->storages));
    }
    if (codec_layout(out->layout) != NULL)
        *quorum = quorum_of_headers(hs, n, out, full);
}

/* Finds the code of the file, as most headers say, else as a journal says; and its
 * distribution. */
static void file_ref(const struct salvage *s, const struct salvage_file *file,
                     const struct headers *hs, struct storage_file *out, unsigned *quorum)
{
    const struct storage_file *waiting = salvage_ref_of(s, &file->id);
    size_t n = file->n < SOURCES_MAX ? file->n : SOURCES_MAX;
    unsigned best = 0;

    memset(out, 0, sizeof(*out));
    out->id = file->id;
    if (waiting != NULL)
        *out = *waiting;
    for (size_t i = 0; i < n; i++) {
        const struct projfile_header *h = &hs->list[i];
        unsigned alike = 0;

        for (size_t k = 0; k < n && hs->rc[i] == 0; k++)
            alike += hs->rc[k] == 0 && is_coded_alike(h, &hs->list[k]);
        if (alike <= best)
            continue;
        best = alike;
        out->codec = h->codec;
        out->layout = h->layout;
        out->block_bytes = h->block_bytes;
    }
    file_ref_lies(hs, n, out, quorum);
}

/* Finds the projection of a file without a readable header, by its records.
 * SALVAGE_QUARANTINED: unknown. */
static uint8_t projection_probe(const struct run *run, int fd)
{
    uint8_t *heads = malloc(EXTENT_BLOCKS * HEAD_MAX);
    uint8_t found = SALVAGE_QUARANTINED;

    for (unsigned p = 0; heads != NULL && p < codec_n(run->codec); p++) {
        struct geometry g;
        struct record_header h;

        geometry_init(&g, run->codec, p);
        salvage_pread(fd, heads, (size_t)(EXTENT_BLOCKS * g.head_bytes),
                      PROJFILE_EXTENTS_AT);
        for (unsigned b = 0; b < EXTENT_BLOCKS && found == SALVAGE_QUARANTINED; b++) {
            if (!record_header_is_zero(heads + b * g.head_bytes) &&
                record_inspect(heads + b * g.head_bytes, run->hash, b, p,
                               codec_block_bytes(run->codec), &h) != RECORD_IS_DAMAGED)
                found = (uint8_t)p;
        }
    }
    free(heads);
    return found;
}

/* Reads the pages of marks and written ranges. If there are none, or they are damaged,
 * the content is unknown where no head is. */
static void source_read_marks(struct source *src, uint32_t hash,
                              const struct projfile_header *h)
{
    uint64_t best = 0;
    unsigned n_empty = 0;

    for (unsigned i = 0; i < 2; i++) {
        static struct marks marks, written;
        uint8_t page[PROJFILE_PAGE_BYTES];
        struct marks_page mh;
        int rc;

        salvage_pread(src->fd, page, sizeof(page),
                      PROJFILE_MARKS_AT + i * PROJFILE_PAGE_BYTES);
        rc = projfile_marks_get(page, &mh, &marks, &written);
        n_empty += rc == -ENODATA;
        if (rc != 0 || mh.file_hash != hash || mh.projection != src->projection ||
            mh.sequence <= best)
            continue;
        best = mh.sequence;
        src->marks = marks;
        src->written = written;
        src->is_doubtful |= mh.partial;
        src->is_partial |= mh.partial;
    }
    if (best == 0) {
        src->is_doubtful |= n_empty < 2 || h == NULL || src->size < PROJFILE_EXTENTS_AT;
        if (h != NULL && h->written.first < h->written.end) {
            src->written.n = 1;
            src->written.ranges[0] = h->written;
            src->written.ranges[0].version = 1;
        }
        /* A mark page was written before these blocks, and is lost. */
        if (h != NULL &&
            geometry_blocks(&src->geo, src->size) >
                (h->written.end + EXTENT_BLOCKS - 1) / EXTENT_BLOCKS * EXTENT_BLOCKS)
            src->is_doubtful = true;
    }
}

/* Opens a source. Returns NULL if the file is unusable. */
static struct source *source_open(struct run *run, const struct salvage_place *place,
                                  int rc, const struct projfile_header *h)
{
    const struct storage_file *ref = &run->report->ref;
    struct source *src = calloc(1, sizeof(*src));
    struct stat st;

    if (src == NULL)
        return NULL;
    src->fd = place_open(run->s, place);
    rc = src->fd < 0 || fstat(src->fd, &st) != 0 || !S_ISREG(st.st_mode) ? -ENOENT : rc;
    /* The front was lost: not just an interrupted creation. */
    if (rc == -ENODATA && st.st_size > PROJFILE_EXTENTS_AT)
        rc = -ROZO_EDAMAGED;
    if (rc == -ENOENT || rc == -ENODATA || rc == -ROZO_EUNKNOWN_FORMAT) {
        run->report->n_headers_damaged += rc != -ENODATA;
        source_free(src);
        return NULL;
    }
    if (rc == 0 && !is_coded_as(h, ref))
        rc = -ROZO_EDAMAGED;
    run->report->n_headers_damaged += rc != 0;
    src->size = (uint64_t)st.st_size;
    src->dir = place->dir;
    src->projection = rc == 0 ? h->projection : place->projection;
    if (src->projection == SALVAGE_QUARANTINED)
        src->projection = projection_probe(run, src->fd);
    if (src->projection >= codec_n(run->codec)) {
        source_free(src);
        return NULL;
    }
    geometry_init(&src->geo, run->codec, src->projection);
    src->is_partial = rc == 0 && h->partial;
    src->is_doubtful = rc != 0 || h->partial || place->projection == SALVAGE_QUARANTINED;
    source_read_marks(src, run->hash, rc == 0 ? h : NULL);
    /* The file in its place has taken these over. */
    if (place->projection == SALVAGE_QUARANTINED)
        src->marks.n = src->written.n = 0;
    src->heads = malloc((size_t)(EXTENT_BLOCKS * src->geo.head_bytes));
    src->bodies = malloc((size_t)(EXTENT_BLOCKS * src->geo.stride));
    if (src->heads == NULL || src->bodies == NULL) {
        source_free(src);
        return NULL;
    }
    return src;
}

/* ---- extents ---- */

/* Returns the first block >= from that the source may have; UINT64_MAX: none. */
static uint64_t source_next(const struct source *src, uint64_t from)
{
    uint64_t at = geometry_extent_at(&src->geo, from), block = UINT64_MAX, noted;

    assert(from % EXTENT_BLOCKS == 0);
    if (at < src->size) {
        off_t data = lseek(src->fd, (off_t)at, SEEK_DATA);

        if (data >= 0)
            block = geometry_extent_of(&src->geo, (uint64_t)data);
        else if (errno != ENXIO)
            block = from;
    }
    if (block < from)
        block = from;
    noted = marks_next(&src->written, from);
    return noted < block ? noted : block;
}

static uint64_t extent_next(struct run *run, uint64_t from)
{
    uint64_t best = UINT64_MAX;

    assert(from % EXTENT_BLOCKS == 0 && run->record <= run->end);
    while (run->record < run->end && run->s->waiting[run->record].first < from)
        run->record++;

    for (unsigned i = 0; i < run->n_sources; i++) {
        uint64_t block = source_next(run->sources[i], from);

        if (block < best)
            best = block;
    }
    if (run->record < run->end && run->s->waiting[run->record].first < best)
        best = run->s->waiting[run->record].first;
    if (best >= PROJFILE_BLOCKS_MAX)
        return UINT64_MAX;
    return best / EXTENT_BLOCKS * EXTENT_BLOCKS;
}

static void tick(struct run *run, uint64_t n_bytes)
{
    run->n_ticked += n_bytes;
    if (run->tick != NULL)
        run->tick(run->arg, n_bytes);
}

static void extent_load(struct run *run, uint64_t first)
{
    assert(first % EXTENT_BLOCKS == 0);
    for (unsigned i = 0; i < run->n_sources; i++) {
        struct source *src = run->sources[i];
        uint64_t at = geometry_extent_at(&src->geo, first);
        size_t len = (size_t)(EXTENT_BLOCKS * src->geo.head_bytes);
        size_t behind = at + len > src->size ? (size_t)(at + len - src->size) : 0;

        if (behind > len)
            behind = len;
        src->heads_missing = salvage_pread(src->fd, src->heads, len, at) > behind;
        src->has_bodies = false;
        tick(run, len - behind);
    }
}

static void source_load_bodies(struct run *run, struct source *src, uint64_t first)
{
    size_t len = (size_t)(EXTENT_BLOCKS * src->geo.stride);

    assert(first % EXTENT_BLOCKS == 0);
    if (src->has_bodies)
        return;
    salvage_pread(src->fd, src->bodies, len,
                  geometry_extent_at(&src->geo, first) + src->geo.heads_bytes);
    src->has_bodies = true;
    tick(run, len);
}

/* ---- claims ---- */

/* Orders claims: newest first, data before holes, by projection, by storage. */
static int claim_compare(const struct claim *a, const struct claim *b)
{
    if (a->version != b->version)
        return a->version > b->version ? -1 : 1;
    if (a->is_hole != b->is_hole)
        return a->is_hole ? 1 : -1;
    if (a->projection != b->projection)
        return a->projection - b->projection;
    return a->dir - b->dir;
}

static void claim_add(struct claims *c, const struct claim *claim)
{
    unsigned i = c->n;
    void *list = c->list;

    assert(c->n <= c->room && claim->dir < SALVAGE_DIRS_MAX);
    while (i > 0 && claim_compare(&c->list[i - 1], claim) > 0)
        i--;
    for (unsigned k = i; k > 0 && claim_compare(&c->list[k - 1], claim) == 0; k--) {
        /* Journals may hold copies of entries. */
        if (c->list[k - 1].source == NULL && claim->source == NULL)
            return;
    }
    if (salvage_grow(&list, &c->room, c->n, sizeof(*claim)) != 0) {
        c->is_short = true;
        return;
    }
    c->list = list;
    memmove(&c->list[i + 1], &c->list[i], (c->n - i) * sizeof(*claim));
    c->list[i] = *claim;
    c->n++;
}

static void claim_of_source(struct run *run, struct claims *c, struct source *src,
                            uint64_t block)
{
    const uint8_t *head =
        src->heads + block % EXTENT_BLOCKS * (size_t)src->geo.head_bytes;
    uint64_t mark = marks_find(&src->marks, block);
    struct claim claim = { .dir = src->dir,
                           .projection = src->projection,
                           .source = src };
    struct record_header h;
    enum record_state state = record_inspect(head, run->hash, block, src->projection,
                                             codec_block_bytes(run->codec), &h);
    bool is_empty = record_header_is_zero(head);
    uint64_t bit = src->is_replaced ? 0 : UINT64_C(1) << src->dir;

    if (mark != 0 && (state == RECORD_IS_DAMAGED || is_empty || h.version < mark)) {
        claim.is_hole = true;
        claim.version = mark;
        claim_add(c, &claim);
    }
    if (state == RECORD_IS_DAMAGED ||
        (is_empty && marks_find(&src->written, block) != 0)) {
        c->is_damaged = true;
        c->dirs_unknown |= bit;
        return;
    }
    if (is_empty && (mark != 0 || src->is_doubtful || src->heads_missing)) {
        c->is_damaged |= mark == 0 && src->heads_missing;
        if (src->is_partial || src->heads_missing)
            c->dirs_unknown |= mark == 0 || src->heads_missing ? bit : 0;
        else if (mark == 0)
            c->dirs_blank |= bit;
        return;
    }
    claim.version = h.version;
    claim.is_hole = state == RECORD_IS_HOLE;
    claim.user_bytes = h.user_bytes;
    claim_add(c, &claim);
}

static void claims_of_journals(struct run *run, struct claims *c, uint64_t block)
{
    const struct salvage_waiting *w = run->s->waiting;

    for (size_t i = run->mark; i < run->end && w[i].is_mark && w[i].first <= block; i++) {
        if (block < w[i].end)
            claim_add(c, &(struct claim){
                             .version = w[i].version, .is_hole = true, .dir = w[i].dir });
    }
    while (run->record < run->end && w[run->record].first < block)
        run->record++;
    for (size_t i = run->record; i < run->end && w[i].first == block; i++) {
        if (w[i].projection >= codec_n(run->codec) ||
            w[i].user_bytes > codec_block_bytes(run->codec))
            continue; /* belongs to a file with another code */
        claim_add(c, &(struct claim){ .version = w[i].version,
                                      .is_hole = w[i].body_len == 0,
                                      .dir = w[i].dir,
                                      .projection = w[i].projection,
                                      .user_bytes = w[i].user_bytes,
                                      .record = &w[i] });
    }
}

/* Returns the storages whose "never written" counts: none that has a record in place in
 * another projection file. Entries of its journal are newer than that claim, so they do
 * not matter. */
static uint64_t dirs_without_data(const struct claims *c)
{
    uint64_t dirs = ~(c->dirs_unknown | c->dirs_blank);

    for (unsigned i = 0; i < c->n; i++) {
        if (!c->list[i].is_hole && c->list[i].source != NULL)
            dirs &= ~(UINT64_C(1) << c->list[i].dir);
    }
    return dirs;
}

/* ---- parts: records with a right crc ---- */

static int segment_fd(struct salvage *s, uint32_t segment)
{
    const struct salvage_segment *g = &s->segments[segment];

    assert(segment < s->n_segments);
    if (s->segment_fd >= 0 && s->segment_open == segment)
        return s->segment_fd;
    if (s->segment_fd >= 0)
        close(s->segment_fd);
    s->segment_fd = openat(s->dirs[g->dir].fd, g->name,
                           O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    s->segment_open = segment;
    return s->segment_fd;
}

/* Loads head and body of a claim. Returns false if they are invalid. */
static bool part_load(struct run *run, const struct claim *claim, uint64_t block,
                      struct part *part)
{
    size_t overhang = codec_overhang_bytes(run->codec, claim->projection);
    size_t len = codec_row_bytes(run->codec, claim->user_bytes);
    struct record_header h;

    assert((claim->source == NULL) != (claim->record == NULL));
    if (claim->source != NULL) {
        struct source *src = claim->source;

        source_load_bodies(run, src, block / EXTENT_BLOCKS * EXTENT_BLOCKS);
        memcpy(part->head,
               src->heads + block % EXTENT_BLOCKS * (size_t)src->geo.head_bytes,
               RECORD_HEADER_BYTES + overhang);
        memcpy(part->body, src->bodies + block % EXTENT_BLOCKS * (size_t)src->geo.stride,
               len);
    } else {
        const struct salvage_waiting *w = claim->record;
        int fd = segment_fd(run->s, w->segment);

        if (fd < 0 ||
            salvage_pread(fd, part->head, RECORD_HEADER_BYTES + overhang, w->head_at) >
                0 ||
            salvage_pread(fd, part->body, len, w->body_at) > 0)
            return false;
        tick(run, len);
    }
    return record_inspect(part->head, run->hash, block, claim->projection,
                          codec_block_bytes(run->codec), &h) == RECORD_IS_DATA &&
           h.version == claim->version && h.user_bytes == claim->user_bytes &&
           h.crc == record_crc(part->head, part->head + RECORD_HEADER_BYTES, overhang,
                               part->body, len);
}

/* Gathers checked projections of one version with this many user bytes, from claims
 * [from, to). */
static uint32_t parts_gather(struct run *run, struct claims *c, unsigned from,
                             unsigned to, uint16_t user_bytes, uint64_t block)
{
    unsigned k = codec_k(run->codec), n = 0;
    uint32_t present = 0;

    assert(from < to && to <= c->n);
    for (unsigned i = from; i < to && n < k; i++) {
        const struct claim *claim = &c->list[i];
        uint32_t bit = UINT32_C(1) << claim->projection;

        if (claim->is_hole || (present & bit) != 0 || claim->user_bytes != user_bytes)
            continue;
        if (run->mode == SALVAGE_READ &&
            !part_load(run, claim, block, &run->parts[claim->projection])) {
            c->is_damaged = true;
            c->dirs_unknown |= UINT64_C(1)
                               << claim->dir; /* the true version may be another */
            continue;
        }
        present |= bit;
        n++;
    }
    return n == k ? present : 0;
}

static void block_decode(struct run *run, uint32_t present, uint16_t user_bytes,
                         uint64_t block)
{
    const uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    size_t block_bytes = codec_block_bytes(run->codec);
    struct codec_plan plan;
    int rc = codec_plan(run->codec, present, 0, &plan);

    assert(rc == 0);
    for (unsigned p = 0; p < codec_n(run->codec); p++) {
        body[p] = run->parts[p].body;
        overhang[p] = run->parts[p].head + RECORD_HEADER_BYTES;
    }
    codec_decode(&plan, body, overhang, codec_row_bytes(run->codec, user_bytes),
                 run->block);
    memcpy(run->out + block % EXTENT_BLOCKS * block_bytes, run->block, user_bytes);
}

/* ---- blocks ---- */

/* Judges one version. Sets *present for data. */
static enum fate version_judge(struct run *run, struct claims *c, unsigned from,
                               unsigned to, uint64_t block, uint32_t *present,
                               uint16_t *user_bytes)
{
    uint64_t dirs = 0;
    uint64_t version = c->list[from].version;

    assert(from < to && to <= c->n);
    for (unsigned i = from; i < to; i++) {
        const struct claim *claim = &c->list[i];

        if (claim->is_hole) {
            dirs |= UINT64_C(1) << claim->dir;
            continue;
        }
        /* Handled with the first of them. */
        if (i > from && claim->user_bytes == c->list[from].user_bytes)
            continue;
        *present = parts_gather(run, c, i, to, claim->user_bytes, block);
        *user_bytes = claim->user_bytes;
        if (*present != 0)
            return FATE_DATA;
    }
    if (version == 0)
        dirs = (dirs | run->dirs_empty) & dirs_without_data(c);
    return (unsigned)__builtin_popcountll(dirs) >= codec_k(run->codec) ? FATE_HOLE
                                                                       : FATE_UNREADABLE;
}

/* Returns whether a version with too few projections may be complete with the unknown
 * parts. */
static bool version_may_be_whole(const struct run *run, const struct claims *c,
                                 unsigned from, unsigned to)
{
    uint64_t dirs = 0, projections = 0, unknown = c->dirs_unknown | c->dirs_blank;

    for (unsigned i = from; i < to; i++) {
        const struct claim *claim = &c->list[i];
        uint64_t dir = UINT64_C(1) << claim->dir;

        if ((unknown & dir) != 0)
            continue; /* already counted as unknown */
        if (claim->is_hole)
            dirs |= dir;
        else
            projections |= UINT64_C(1) << claim->projection;
    }
    return run->report->n_absent_storages +
               (unsigned)(__builtin_popcountll(projections) + __builtin_popcountll(dirs) +
                          __builtin_popcountll(unknown)) >=
           codec_k(run->codec);
}

struct verdict {
    enum fate fate;
    uint16_t user_bytes;
    uint64_t version;
    bool is_older, is_outdated;
};

static void claims_judge(struct run *run, struct claims *c, uint64_t block,
                         struct verdict *v)
{
    unsigned k = codec_k(run->codec), from = 0, to;
    bool has_more = false, has_data = false;

    *v = (struct verdict){ .fate = FATE_HOLE };
    for (; from < c->n; from = to) {
        uint64_t version = c->list[from].version;
        uint32_t present = 0;
        enum fate fate;

        for (to = from; to < c->n && c->list[to].version == version; to++)
            ;
        /* All claims are "never written". */
        if (version == 0 && !has_more && !c->is_damaged)
            return;
        fate = version_judge(run, c, from, to, block, &present, &v->user_bytes);
        if (fate != FATE_UNREADABLE) {
            v->fate = fate;
            v->version = version;
            if (fate == FATE_DATA && run->mode == SALVAGE_READ)
                block_decode(run, present, v->user_bytes, block);
            /* A hole in any case. */
            if (fate == FATE_HOLE && !has_data)
                v->is_older = v->is_outdated = false;
            return;
        }
        has_more = true;
        has_data |= !c->list[from].is_hole; /* data come first */
        v->is_older = true;
        v->is_outdated |= version_may_be_whole(run, c, from, to);
        if (v->user_bytes == 0)
            v->user_bytes = c->list[from].user_bytes;
    }
    /* A storage without a file also counts for "never written". */
    if (!has_more && !c->is_damaged)
        return;
    if ((unsigned)__builtin_popcountll(run->dirs_empty & dirs_without_data(c)) >= k)
        return;
    v->fate = FATE_UNREADABLE;
    v->is_older = v->is_outdated = false;
}

static void block_judge(struct run *run, struct claims *c, uint64_t block,
                        struct verdict *v)
{
    unsigned n_lost;

    claims_judge(run, c, block, v);
    n_lost = run->n_absent + (unsigned)__builtin_popcountll(c->dirs_unknown);
    /* All holders of an acknowledged write may be among them. */
    if (v->fate != FATE_UNREADABLE && !run->report->is_unsure && n_lost >= run->quorum)
        v->is_outdated = v->is_older = true;
}

static void report_unreadable(struct salvage_report *r, uint64_t block)
{
    assert(r->n_ranges <= SALVAGE_RANGES_MAX);
    r->n_unreadable++;
    if (r->n_ranges > 0 && r->ranges[r->n_ranges - 1].end == block) {
        r->ranges[r->n_ranges - 1].end++;
    } else if (r->n_ranges < SALVAGE_RANGES_MAX) {
        r->ranges[r->n_ranges].first = block;
        r->ranges[r->n_ranges++].end = block + 1;
    }
}

static void block_run(struct run *run, uint64_t block)
{
    struct claims *c = &run->claims;
    struct salvage_report *r = run->report;
    struct verdict v;
    uint64_t end;

    c->n = 0;
    c->is_damaged = false;
    c->dirs_unknown = run->dirs_unknown;
    c->dirs_blank = 0;
    for (unsigned i = 0; i < run->n_sources; i++)
        claim_of_source(run, c, run->sources[i], block);
    claims_of_journals(run, c, block);
    block_judge(run, c, block, &v);
    r->n_older += v.is_older;
    r->n_outdated += v.is_outdated;
    if (v.fate == FATE_HOLE)
        return;
    if (v.fate == FATE_UNREADABLE) {
        report_unreadable(r, block);
    } else {
        r->n_data++;
        r->n_damaged += c->is_damaged;
        run->lens[block % EXTENT_BLOCKS] = v.user_bytes;
    }
    end = block * codec_block_bytes(run->codec) + v.user_bytes;
    if (v.user_bytes > 0 && end > r->size)
        r->size = end;
}

/* Writes adjacent blocks together. */
static int extent_write(struct run *run, uint64_t first)
{
    size_t block_bytes = codec_block_bytes(run->codec);
    unsigned i = 0;

    assert(first % EXTENT_BLOCKS == 0 && run->sink != NULL);
    while (i < EXTENT_BLOCKS) {
        unsigned from = i;
        size_t len = 0;
        int rc;

        do {
            len += run->lens[i];
        } while (run->lens[i++] == block_bytes && i < EXTENT_BLOCKS);
        if (len == 0)
            continue;
        rc = run->sink(run->arg, (first + from) * block_bytes,
                       run->out + from * block_bytes, len);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- files ---- */

static bool has_storage(const struct storage_file *ref, uint32_t id)
{
    for (unsigned i = 0; i < ref->n_storages; i++) {
        if (ref->storages[i] == id)
            return true;
    }
    return false;
}

static bool has_place(const struct salvage *s, const struct salvage_file *file,
                      unsigned dir)
{
    for (size_t i = 0; i < file->n; i++) {
        if (s->places[file->first + i].dir == dir)
            return true;
    }
    return false;
}

/* Counts storages that were not given, finds those that never had anything of the file,
 * and those where that is unknown. */
static void run_count_storages(struct run *run, const struct salvage_file *file)
{
    const struct storage_file *ref = &run->report->ref;
    unsigned n_given = 0, n_nameless = 0;

    assert(run->dirs_empty == 0 && run->dirs_unknown == 0);
    for (unsigned i = 0; i < run->s->n_dirs; i++) {
        const struct salvage_dir *d = &run->s->dirs[i];
        bool has = has_place(run->s, file, i);

        if (!d->has_identity && has)
            n_nameless++;
        if (!d->has_identity || !has_storage(ref, d->storage_id))
            continue;
        n_given++;
        if (d->is_journal_cut || (!has && (d->is_rebuilt || d->is_cut)))
            run->dirs_unknown |= UINT64_C(1) << i;
        if (!has && !d->is_rebuilt && !d->is_cut)
            run->dirs_empty |= UINT64_C(1) << i;
    }
    run->report->n_absent_storages =
        ref->n_storages > n_given ? ref->n_storages - n_given : 0;
    run->n_absent = run->report->n_absent_storages > n_nameless
                        ? run->report->n_absent_storages - n_nameless
                        : 0;
}

/* Opens a source for each projection file. If it is unusable, its storage counts as
 * unknown. */
static void sources_open(struct run *run, const struct salvage_file *file,
                         const struct headers *hs)
{
    uint64_t dirs_quarantined = 0, dirs_in_place = 0;

    for (size_t i = 0; i < file->n; i++) {
        const struct salvage_place *place = &run->s->places[file->first + i];
        bool is_quarantined = place->projection == SALVAGE_QUARANTINED;
        struct source *src =
            i >= SOURCES_MAX ? NULL : source_open(run, place, hs->rc[i], &hs->list[i]);
        uint64_t bit = UINT64_C(1) << place->dir;

        if (src == NULL) {
            *(is_quarantined ? &dirs_quarantined : &run->dirs_unknown) |= bit;
            continue;
        }
        src->is_replaced = is_quarantined;
        dirs_in_place |= is_quarantined ? 0 : bit;
        run->sources[run->n_sources++] = src;
        run->report->projections |= UINT32_C(1) << src->projection;
    }
    for (unsigned i = 0; i < run->n_sources; i++) {
        struct source *src = run->sources[i];

        src->is_replaced = src->is_replaced && (dirs_in_place >> src->dir & 1) != 0;
    }
    run->dirs_unknown |= dirs_quarantined & ~dirs_in_place;
    run->report->is_unsure =
        run->n_absent + (unsigned)__builtin_popcountll(run->dirs_unknown) >= run->quorum;
}

static int run_open(struct run *run, const struct salvage_file *file,
                    const struct headers *hs)
{
    size_t block_bytes = codec_block_bytes(run->codec);

    assert(run->n_sources == 0 && run->codec != NULL);
    sources_open(run, file, hs);
    salvage_waiting_of(run->s, &file->id, &run->mark, &run->end);
    run->record = run->mark;
    while (run->record < run->end && run->s->waiting[run->record].is_mark)
        run->record++;
    run->parts = malloc(CODEC_N_MAX * sizeof(*run->parts));
    run->block = malloc(CODEC_DATA_MAX);
    run->out = malloc(EXTENT_BLOCKS * block_bytes);
    return run->parts == NULL || run->block == NULL || run->out == NULL ? -ENOMEM : 0;
}

static int run_extents(struct run *run)
{
    uint64_t first = 0;
    int rc = 0;

    while (rc == 0 && (first = extent_next(run, first)) != UINT64_MAX) {
        memset(run->lens, 0, sizeof(run->lens));
        extent_load(run, first);
        for (unsigned i = 0; i < EXTENT_BLOCKS; i++)
            block_run(run, first + i);
        rc = run->claims.is_short ? -ENOMEM : 0;
        if (rc == 0 && run->sink != NULL && run->mode == SALVAGE_READ)
            rc = extent_write(run, first);
        first += EXTENT_BLOCKS;
    }
    return rc;
}

int salvage_run(struct salvage *s, const struct salvage_file *file,
                enum salvage_mode mode, salvage_sink *sink,
                void (*on_tick)(void *arg, uint64_t n_bytes), void *arg,
                struct salvage_report *report)
{
    struct run run = { .s = s,
                       .mode = mode,
                       .sink = sink,
                       .tick = on_tick,
                       .arg = arg,
                       .report = report,
                       .hash = file_id_hash(&file->id) };
    static struct headers hs;
    int rc = 0;

    assert(file->n > 0 && file->first + file->n <= s->n_places);
    memset(report, 0, sizeof(*report));
    report->n_files = (unsigned)file->n;
    for (size_t i = 0; i < file->n && i < SOURCES_MAX; i++)
        hs.rc[i] = place_header(s, &s->places[file->first + i], &hs.list[i]);
    file_ref(s, file, &hs, &report->ref, &run.quorum);
    run.codec = codec_get(report->ref.codec, report->ref.layout, report->ref.block_bytes);
    report->codec = run.codec;
    if (run.codec == NULL) {
        report->n_headers_damaged = report->n_files;
        return 0;
    }
    run_count_storages(&run, file);
    rc = run_open(&run, file, &hs);
    if (rc == 0)
        rc = run_extents(&run);
    for (unsigned i = 0; i < run.n_sources; i++)
        source_free(run.sources[i]);
    free(run.claims.list);
    free(run.parts);
    free(run.block);
    free(run.out);
    return rc;
}

bool salvage_is_whole(const struct salvage_report *r)
{
    return r->codec != NULL && r->n_unreadable == 0 && r->n_outdated == 0 &&
           !r->is_unsure;
}
