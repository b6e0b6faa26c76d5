/*
 * projfile.c - bytes of projection files: header page, mark pages, offsets, names.
 *
 * In:     pages from a disk; structs to be written.
 * Out:    structs, or why a page is refused; pages.
 * Keeps:  what *_get() accepts, *_put() writes back the same.
 * Ask:    every byte position here; users' disks already carry them (docs/FORMATS.md).
 */
#include "storaged/format/projfile.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"

enum {
    /* Common start of both kinds of page: 8 magic, 4 format, 4 crc of the page with
     * this field zero. */
    FORMAT_AT = 8,
    CRC_AT = 12,

    HEADER_ID_AT = 16,
    HEADER_CODEC_AT = 32,
    HEADER_LAYOUT_AT = 33,
    HEADER_PROJECTION_AT = 34,
    HEADER_N_STORAGES_AT = 35,
    HEADER_BLOCK_BYTES_AT = 36,
    HEADER_STRIPE_AT = 40,
    HEADER_EPOCH_AT = 44,
    HEADER_STORAGES_AT = 48,
    HEADER_WRITTEN_AT = HEADER_STORAGES_AT + 4 * DIST_MAX,
    HEADER_FLAGS_AT = HEADER_WRITTEN_AT + 24,
    HEADER_GENERATION_AT = HEADER_FLAGS_AT + 4,
    HEADER_END = HEADER_GENERATION_AT + 4,

    MARKS_SEQUENCE_AT = 16,
    MARKS_HASH_AT = 24,
    MARKS_N_AT = 28,
    MARKS_PROJECTION_AT = 30,
    MARKS_EPOCH_AT = 32,
    MARKS_N_WRITTEN_AT = 36,
    MARKS_FLAGS_AT = 38,
    MARKS_RANGES_AT = 40,
    MARK_BYTES = 24,

    FLAG_PARTIAL = 1, /* flags of both kinds of page */
    FLAG_UNSYNCED = 2,
    FLAG_PREPARED = 4,    /* headers with a dist_generation only */
    FLAG_FULL_QUORUM = 8, /* headers of format 3 */

    UNIT_BLOCKS_SLANTED = 16, /* value if heads have overhangs */
};

static_assert(MARKS_RANGES_AT + MARKS_MAX * MARK_BYTES == PROJFILE_PAGE_BYTES,
              "on disk since format 1");

static const char header_magic[8] = "ROZOPROJ";
static const char marks_magic[8] = "ROZOMARK";

static uint32_t page_crc(const uint8_t *page)
{
    static const uint8_t zero[4];
    uint32_t crc = codec_crc32c(0, page, CRC_AT);

    crc = codec_crc32c(crc, zero, sizeof(zero));
    return codec_crc32c(crc, page + CRC_AT + 4, PROJFILE_PAGE_BYTES - CRC_AT - 4);
}

static void page_seal(uint8_t *page, const char magic[8], uint32_t format)
{
    memcpy(page, magic, 8);
    put_le32(page + FORMAT_AT, format);
    put_le32(page + CRC_AT, page_crc(page));
}

/* Checks the crc before the format: only a page with a right crc can be called an
 * unknown format. */
static int page_check(const uint8_t *page, const char magic[8], uint32_t format_max)
{
    if (bytes_are_zero(page, PROJFILE_PAGE_BYTES))
        return -ENODATA;
    if (memcmp(page, magic, 8) != 0 || get_le32(page + CRC_AT) != page_crc(page))
        return -ROZO_EDAMAGED;
    if (get_le32(page + FORMAT_AT) == 0 || get_le32(page + FORMAT_AT) > format_max)
        return -ROZO_EUNKNOWN_FORMAT;
    return 0;
}

static void range_put(uint8_t *p, const struct mark_range *r)
{
    put_le64(p, r->first);
    put_le64(p + 8, r->end);
    put_le64(p + 16, r->version);
}

static struct mark_range range_get(const uint8_t *p)
{
    return (struct mark_range){ get_le64(p), get_le64(p + 8), get_le64(p + 16) };
}

/* Accepts the range of a header: none, or blocks that a file may have. */
static bool range_is_valid(const struct mark_range *r)
{
    if (r->first == 0 && r->end == 0)
        return true;
    return r->first < r->end && r->end <= PROJFILE_BLOCKS_MAX && r->version != 0;
}

static unsigned flags_of(bool partial, bool unsynced)
{
    return partial ? FLAG_PARTIAL | (unsynced ? FLAG_UNSYNCED : 0) : 0;
}

static bool flags_are_valid(unsigned flags, unsigned known)
{
    unsigned of_partial = flags & ~(unsigned)FLAG_FULL_QUORUM;

    return (flags & ~known) == 0 && (of_partial == 0 || (flags & FLAG_PARTIAL) != 0);
}

/* Returns the lowest format that has all of *h: earlier builds read what they can. */
static uint32_t header_format(const struct projfile_header *h)
{
    if (h->full_quorum)
        return PROJFILE_FORMAT_QUORUM;
    return h->dist_generation == 0 ? PROJFILE_FORMAT : PROJFILE_FORMAT_REDIST;
}

void projfile_header_put(uint8_t page[PROJFILE_PAGE_BYTES],
                         const struct projfile_header *h)
{
    memset(page, 0, PROJFILE_PAGE_BYTES);
    file_id_put(page + HEADER_ID_AT, &h->id);
    page[HEADER_CODEC_AT] = h->codec;
    page[HEADER_LAYOUT_AT] = h->layout;
    page[HEADER_PROJECTION_AT] = h->projection;
    page[HEADER_N_STORAGES_AT] = h->n_storages;
    put_le32(page + HEADER_BLOCK_BYTES_AT, h->block_bytes);
    put_le32(page + HEADER_STRIPE_AT, h->stripe);
    put_le32(page + HEADER_EPOCH_AT, h->epoch);
    assert(h->n_storages <= DIST_MAX);
    for (unsigned i = 0; i < h->n_storages; i++)
        put_le32(page + HEADER_STORAGES_AT + 4 * i, h->storages[i]);
    range_put(page + HEADER_WRITTEN_AT, &h->written);
    assert(!h->prepared || (h->partial && h->dist_generation != 0));
    put_le32(page + HEADER_FLAGS_AT, flags_of(h->partial, h->unsynced) |
                                         (h->prepared ? FLAG_PREPARED : 0) |
                                         (h->full_quorum ? FLAG_FULL_QUORUM : 0));
    put_le32(page + HEADER_GENERATION_AT, h->dist_generation);
    page_seal(page, header_magic, header_format(h));
}

int projfile_header_get(const uint8_t page[PROJFILE_PAGE_BYTES],
                        struct projfile_header *h)
{
    struct projfile_header got;
    const struct codec *codec;
    int rc = page_check(page, header_magic, PROJFILE_FORMAT_QUORUM);
    unsigned flags, known = FLAG_PARTIAL | FLAG_UNSYNCED;
    size_t used;

    if (rc != 0)
        return rc;
    got = (struct projfile_header){
        .codec = page[HEADER_CODEC_AT],
        .layout = page[HEADER_LAYOUT_AT],
        .projection = page[HEADER_PROJECTION_AT],
        .n_storages = page[HEADER_N_STORAGES_AT],
        .block_bytes = get_le32(page + HEADER_BLOCK_BYTES_AT),
        .stripe = get_le32(page + HEADER_STRIPE_AT),
        .epoch = get_le32(page + HEADER_EPOCH_AT),
        .dist_generation = get_le32(page + HEADER_GENERATION_AT),
    };
    file_id_get(page + HEADER_ID_AT, &got.id);
    codec = codec_get(got.codec, got.layout, got.block_bytes);
    if (codec == NULL || got.projection >= codec_n(codec))
        return -ROZO_EDAMAGED;
    if (got.n_storages < codec_n(codec) || got.n_storages > DIST_MAX)
        return -ROZO_EDAMAGED;
    for (unsigned i = 0; i < got.n_storages; i++)
        got.storages[i] = get_le32(page + HEADER_STORAGES_AT + 4 * i);
    used = HEADER_STORAGES_AT + 4u * got.n_storages;
    if (!bytes_are_zero(page + used, HEADER_WRITTEN_AT - used) ||
        !bytes_are_zero(page + HEADER_END, PROJFILE_PAGE_BYTES - HEADER_END))
        return -ROZO_EDAMAGED;
    got.written = range_get(page + HEADER_WRITTEN_AT);
    flags = get_le32(page + HEADER_FLAGS_AT);
    known |= got.dist_generation != 0 ? FLAG_PREPARED : 0;
    got.full_quorum = get_le32(page + FORMAT_AT) == PROJFILE_FORMAT_QUORUM;
    known |= got.full_quorum ? FLAG_FULL_QUORUM : 0;
    if (!range_is_valid(&got.written) || !flags_are_valid(flags, known))
        return -ROZO_EDAMAGED;
    got.partial = (flags & FLAG_PARTIAL) != 0;
    got.unsynced = (flags & FLAG_UNSYNCED) != 0;
    got.prepared = (flags & FLAG_PREPARED) != 0;
    if (header_format(&got) != get_le32(page + FORMAT_AT) ||
        got.full_quorum != ((flags & FLAG_FULL_QUORUM) != 0))
        return -ROZO_EDAMAGED;
    *h = got;
    return 0;
}

static bool same_file(const struct projfile_header *a, const struct projfile_header *b)
{
    return file_id_equal(&a->id, &b->id) && a->projection == b->projection;
}

int projfile_front_get(const uint8_t front[PROJFILE_FRONT_BYTES],
                       struct projfile_header *h)
{
    struct projfile_header page, copy;
    int rc = projfile_header_get(front, &page);
    int copy_rc = projfile_header_get(front + PROJFILE_COPY_AT, &copy);

    if (rc == -ROZO_EUNKNOWN_FORMAT || copy_rc == -ROZO_EUNKNOWN_FORMAT)
        return -ROZO_EUNKNOWN_FORMAT;
    /* builds never write such a copy */
    if (copy_rc == 0 && copy.dist_generation == 0)
        copy_rc = -ROZO_EDAMAGED;
    if (copy_rc == 0 && (rc != 0 || (same_file(&page, &copy) &&
                                     copy.dist_generation > page.dist_generation)))
        *h = copy;
    else if (rc != 0)
        return rc;
    else
        *h = page;
    return 0;
}

static bool is_broken(const uint8_t *page)
{
    int rc = page_check(page, header_magic, PROJFILE_FORMAT_QUORUM);

    return rc == -ENODATA || rc == -ROZO_EDAMAGED;
}

bool projfile_front_is_broken(const uint8_t front[PROJFILE_FRONT_BYTES])
{
    return is_broken(front) && is_broken(front + PROJFILE_COPY_AT);
}

bool projfile_front_is_empty(const uint8_t front[PROJFILE_FRONT_BYTES])
{
    return bytes_are_zero(front, PROJFILE_PAGE_BYTES) &&
           bytes_are_zero(front + PROJFILE_COPY_AT, PROJFILE_PAGE_BYTES);
}

void projfile_marks_put(uint8_t page[PROJFILE_PAGE_BYTES], const struct marks_page *h,
                        const struct marks *marks, const struct marks *written)
{
    uint8_t *p = page + MARKS_RANGES_AT;

    assert(marks->n + written->n <= MARKS_MAX);
    memset(page, 0, PROJFILE_PAGE_BYTES);
    put_le64(page + MARKS_SEQUENCE_AT, h->sequence);
    put_le32(page + MARKS_HASH_AT, h->file_hash);
    put_le16(page + MARKS_N_AT, (uint16_t)marks->n);
    put_le16(page + MARKS_N_WRITTEN_AT, (uint16_t)written->n);
    put_le16(page + MARKS_FLAGS_AT, (uint16_t)flags_of(h->partial, h->unsynced));
    page[MARKS_PROJECTION_AT] = h->projection;
    put_le32(page + MARKS_EPOCH_AT, h->epoch);
    for (unsigned i = 0; i < marks->n; i++, p += MARK_BYTES)
        range_put(p, &marks->ranges[i]);
    for (unsigned i = 0; i < written->n; i++, p += MARK_BYTES)
        range_put(p, &written->ranges[i]);
    page_seal(page, marks_magic, PROJFILE_FORMAT);
}

/* Checks that the n ranges at p are sorted, disjoint and not empty. */
static bool ranges_are_valid(const uint8_t *p, unsigned n)
{
    uint64_t last_end = 0;

    for (unsigned i = 0; i < n; i++, p += MARK_BYTES) {
        struct mark_range r = range_get(p);

        if (r.first < last_end || r.end <= r.first || r.version == 0)
            return false;
        last_end = r.end;
    }
    return true;
}

static void ranges_get(const uint8_t *p, unsigned n, struct marks *out)
{
    out->n = n;
    for (unsigned i = 0; i < n; i++, p += MARK_BYTES)
        out->ranges[i] = range_get(p);
}

int projfile_marks_get(const uint8_t page[PROJFILE_PAGE_BYTES], struct marks_page *h,
                       struct marks *marks, struct marks *written)
{
    unsigned n = get_le16(page + MARKS_N_AT);
    unsigned n_written = get_le16(page + MARKS_N_WRITTEN_AT);
    unsigned flags = get_le16(page + MARKS_FLAGS_AT);
    const uint8_t *more = page + MARKS_RANGES_AT + (size_t)MARK_BYTES * n;
    size_t used = MARKS_RANGES_AT + (size_t)MARK_BYTES * (n + n_written);
    int rc = page_check(page, marks_magic, PROJFILE_FORMAT);

    if (rc != 0)
        return rc;
    if (n + n_written > MARKS_MAX || get_le64(page + MARKS_SEQUENCE_AT) == 0 ||
        page[MARKS_PROJECTION_AT + 1] != 0 ||
        !flags_are_valid(flags, FLAG_PARTIAL | FLAG_UNSYNCED) ||
        !bytes_are_zero(page + used, PROJFILE_PAGE_BYTES - used))
        return -ROZO_EDAMAGED;
    if (!ranges_are_valid(page + MARKS_RANGES_AT, n) ||
        !ranges_are_valid(more, n_written))
        return -ROZO_EDAMAGED;
    if (n_written > 0 &&
        range_get(more + (size_t)MARK_BYTES * (n_written - 1)).end > PROJFILE_BLOCKS_MAX)
        return -ROZO_EDAMAGED;
    *h = (struct marks_page){
        .sequence = get_le64(page + MARKS_SEQUENCE_AT),
        .epoch = get_le32(page + MARKS_EPOCH_AT),
        .file_hash = get_le32(page + MARKS_HASH_AT),
        .projection = page[MARKS_PROJECTION_AT],
        .partial = flags != 0,
        .unsynced = (flags & FLAG_UNSYNCED) != 0,
    };
    ranges_get(page + MARKS_RANGES_AT, n, marks);
    ranges_get(more, n_written, written);
    return 0;
}

bool projfile_marks_seem_newer(const uint8_t page[PROJFILE_PAGE_BYTES], uint64_t sequence)
{
    return get_le64(page + MARKS_SEQUENCE_AT) > sequence;
}

/* Returns the index of the first range that ends after block, or m->n. */
static unsigned marks_lower(const struct marks *m, uint64_t block)
{
    unsigned lo = 0, hi = m->n;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (m->ranges[mid].end <= block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

uint64_t marks_find(const struct marks *m, uint64_t block)
{
    unsigned i = marks_lower(m, block);

    return i < m->n && m->ranges[i].first <= block ? m->ranges[i].version : 0;
}

bool marks_cover(const struct marks *m, uint64_t first, uint64_t end)
{
    for (unsigned i = marks_lower(m, first); first < end && i < m->n; i++) {
        if (m->ranges[i].first > first)
            return false;
        first = m->ranges[i].end;
    }
    return first >= end;
}

uint64_t marks_newest(const struct marks *m, uint64_t first, uint64_t end)
{
    uint64_t newest = 0;

    for (unsigned i = marks_lower(m, first); i < m->n && m->ranges[i].first < end; i++) {
        if (m->ranges[i].version > newest)
            newest = m->ranges[i].version;
    }
    return newest;
}

uint64_t marks_next(const struct marks *m, uint64_t block)
{
    unsigned i = marks_lower(m, block);

    if (i == m->n)
        return UINT64_MAX;
    return m->ranges[i].first > block ? m->ranges[i].first : block;
}

/* Room for the result of one apply to MARKS_MAX ranges: each gap between them, and
 * both ends. */
struct marks_draft {
    unsigned n;
    struct mark_range ranges[2 * MARKS_MAX + 3];
};

static void draft_add(struct marks_draft *d, uint64_t first, uint64_t end,
                      uint64_t version)
{
    struct mark_range *last = d->n > 0 ? &d->ranges[d->n - 1] : NULL;

    if (first >= end)
        return;
    if (last != NULL && last->end == first && last->version == version) {
        last->end = end;
        return;
    }
    assert(d->n < sizeof(d->ranges) / sizeof(d->ranges[0]));
    d->ranges[d->n++] = (struct mark_range){ first, end, version };
}

static void draft_make(struct marks_draft *d, const struct marks *m, uint64_t first,
                       uint64_t end, uint64_t version)
{
    uint64_t at = first; /* the part of the new mark that is not laid yet begins here */

    d->n = 0;
    for (unsigned i = 0; i < m->n; i++) {
        const struct mark_range *r = &m->ranges[i];
        uint64_t from = r->first > first ? r->first : first;
        uint64_t to = r->end < end ? r->end : end;

        if (r->end <= first) {
            draft_add(d, r->first, r->end, r->version);
            continue;
        }
        if (r->first >= end) {
            draft_add(d, at, end, version);
            at = end;
            draft_add(d, r->first, r->end, r->version);
            continue;
        }
        draft_add(d, r->first, from, r->version);
        draft_add(d, at, from, version);
        draft_add(d, from, to, r->version > version ? r->version : version);
        draft_add(d, to, r->end, r->version);
        at = to;
    }
    draft_add(d, at, end, version);
}

void marks_apply(struct marks *m, uint64_t first, uint64_t end, uint64_t version)
{
    struct marks_draft d;

    assert(first < end && version != 0);
    draft_make(&d, m, first, end, version);
    assert(d.n <= MARKS_MAX);
    m->n = d.n;
    memcpy(m->ranges, d.ranges, d.n * sizeof(d.ranges[0]));
}

bool marks_fits(const struct marks *m, uint64_t first, uint64_t end, uint64_t version)
{
    struct marks_draft d;

    draft_make(&d, m, first, end, version);
    return d.n <= MARKS_MAX;
}

bool marks_cut(struct marks *m, uint64_t first, uint64_t end)
{
    struct marks_draft d = { .n = 0 };

    assert(first < end);
    for (unsigned i = 0; i < m->n; i++) {
        const struct mark_range *r = &m->ranges[i];

        draft_add(&d, r->first, r->end < first ? r->end : first, r->version);
        draft_add(&d, r->first > end ? r->first : end, r->end, r->version);
    }
    if (d.n > MARKS_MAX)
        return false;
    m->n = d.n;
    memcpy(m->ranges, d.ranges, d.n * sizeof(d.ranges[0]));
    return true;
}

unsigned marks_smallest(const struct marks *m)
{
    unsigned best = 0;

    assert(m->n > 0);
    for (unsigned i = 1; i < m->n; i++) {
        if (m->ranges[i].end - m->ranges[i].first <
            m->ranges[best].end - m->ranges[best].first)
            best = i;
    }
    return best;
}

void marks_remove(struct marks *m, unsigned index)
{
    assert(index < m->n);
    m->n--;
    memmove(&m->ranges[index], &m->ranges[index + 1],
            (m->n - index) * sizeof(m->ranges[0]));
}

void geometry_init(struct geometry *g, const struct codec *codec, unsigned projection)
{
    uint64_t stride = codec_row_bytes(codec, codec_block_bytes(codec));
    uint64_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(codec, projection);
    uint64_t extent = record_extent_bytes(codec, projection);

    assert((stride & (stride - 1)) == 0);
    *g = (struct geometry){
        .codec = codec,
        .head_bytes = head,
        .heads_bytes = extent - EXTENT_BLOCKS * stride,
        .stride = stride,
        .extent_bytes = extent,
        .unit_blocks = head == RECORD_HEADER_BYTES ? EXTENT_BLOCKS : UNIT_BLOCKS_SLANTED,
    };
}

uint64_t geometry_blocks(const struct geometry *g, uint64_t size)
{
    if (size <= PROJFILE_EXTENTS_AT)
        return 0;
    return (size - PROJFILE_EXTENTS_AT + g->extent_bytes - 1) / g->extent_bytes *
           EXTENT_BLOCKS;
}

uint64_t geometry_extent_of(const struct geometry *g, uint64_t offset)
{
    if (offset < PROJFILE_EXTENTS_AT)
        return 0;
    return (offset - PROJFILE_EXTENTS_AT) / g->extent_bytes * EXTENT_BLOCKS;
}

void projfile_path_prefix(char path[PROJFILE_PATH_MAX], const struct file_id *id)
{
    unsigned dir = (unsigned)((id->ino >> 8) + (uint64_t)id->export_id * 40503) & 0xffff;
    int n = snprintf(path, PROJFILE_PATH_MAX,
                     "objects/%02x/%02x/%08" PRIx32 "%08" PRIx32 "%016" PRIx64 ".",
                     dir >> 8, dir & 0xff, id->export_id, id->generation, id->ino);

    assert(n > 0 && n <= PROJFILE_PATH_MAX - (int)sizeof("damaged"));
}

void projfile_path(char path[PROJFILE_PATH_MAX], const struct file_id *id,
                   unsigned projection)
{
    size_t n;

    projfile_path_prefix(path, id);
    n = strlen(path);
    snprintf(path + n, PROJFILE_PATH_MAX - n, "%u", projection);
}

void projfile_path_quarantined(char path[PROJFILE_PATH_MAX], const struct file_id *id)
{
    projfile_path_prefix(path, id);
    strcat(path, "damaged");
}

void hole_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                   unsigned projection, uint64_t block, uint64_t version)
{
    struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .flags = RECORD_HOLE,
        .file_hash = file_hash,
        .version = version,
        .block = block,
    };

    record_header_put(p, &h);
    record_seal(p, NULL, 0, NULL, 0);
}

void damaged_head_put(uint8_t p[RECORD_HEADER_BYTES], uint32_t file_hash,
                      unsigned projection, uint64_t block, uint64_t version, bool torn)
{
    struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .flags = RECORD_DAMAGED | (torn ? RECORD_TORN : 0),
        .file_hash = file_hash,
        .version = version,
        .block = block,
    };

    record_header_put(p, &h);
    record_seal(p, NULL, 0, NULL, 0);
}
