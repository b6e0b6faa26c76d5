/*
 * st_op_info.c - facts about a projection file beside its records, and walks over its
 * heads.
 *
 * In:     the requests of storaged/ops. Thread: the storio loop.
 * Out:    struct disk, by st_op_read() and st_op_disk().
 * Keeps:  I2, a zero head of a block that is known to be written is damaged, not a hole.
 * Ask:    projfile.h for the bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/op/st_op.h"

const struct marks *proj_marks(const struct proj *proj)
{
    static const struct marks none;

    return proj->marks == NULL ? &none : proj->marks;
}

int proj_marks_keep(struct proj *proj, const struct marks *marks)
{
    assert(marks->n <= MARKS_MAX);
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

    out->n = w->n; /* the copy has room for n ranges only */
    memcpy(out->ranges, w->ranges, w->n * sizeof(w->ranges[0]));
}

int proj_written_keep(struct proj *proj, const struct marks *written)
{
    size_t len = offsetof(struct marks, ranges) + written->n * sizeof(written->ranges[0]);
    struct marks *copy = written->n == 0 ? NULL : malloc(len);

    assert(written->n <= MARKS_MAX);
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

struct disk_range proj_body_pages(const struct proj *proj, uint64_t first, unsigned n)
{
    const uint64_t page = PROJFILE_PAGE_BYTES;
    uint64_t from = geometry_body_at(&proj->geo, first);
    uint64_t to = from + n * proj->geo.stride;

    assert(n > 0 && n <= extent_part(first, UINT64_MAX));
    return (struct disk_range){
        .from = (from + page - 1) / page * page,
        .to = (to < proj->size ? to : proj->size) / page * page,
    };
}

static bool is_lost(const struct proj *proj, uint64_t block)
{
    return marks_find(proj_written(proj), block) != 0 ||
           (proj->partial && marks_find(proj_marks(proj), block) == 0);
}

bool proj_lost_floor(const struct proj *proj, uint64_t block, const uint8_t *head,
                     uint64_t *version)
{
    uint64_t floor = proj->floors == NULL ? 0 : marks_find(proj->floors, block);

    if (floor == 0 && proj->lost.known && proj->partial && record_header_is_zero(head) &&
        marks_find(proj_written(proj), block) == 0) /* nothing written here since */
        floor = version_make(proj->lost.last, UINT32_MAX);
    *version = floor != 0 ? floor : proj->newest;
    return floor != 0;
}

bool proj_is_under(const struct proj *proj, uint64_t block, const uint8_t *head,
                   const struct pending_mark *m)
{
    uint64_t lost;
    bool has_floor = proj_lost_floor(proj, block, head, &lost);

    if ((proj->partial && !has_floor) || (m->passed && proj->newest > m->version))
        return false;
    return !m->keep_newer || lost <= m->version;
}

/* Notes the floor in memory; a range that finds no room is refused once more. */
void proj_set_floor(struct proj *proj, uint64_t first, uint64_t end)
{
    uint64_t floor = version_make(version_epoch(proj->newest), UINT32_MAX);

    assert(first < end);
    if (proj->floors == NULL)
        proj->floors = calloc(1, sizeof(*proj->floors));
    if (proj->floors == NULL || marks_cover(proj->floors, first, end))
        return;
    while (!marks_fits(proj->floors, first, end, floor))
        marks_remove(proj->floors, marks_smallest(proj->floors));
    marks_apply(proj->floors, first, end, floor);
}

void proj_forget_floor(struct proj *proj, uint64_t first, uint64_t end)
{
    assert(first < end);
    if (proj->floors == NULL)
        return;
    while (!marks_cut(proj->floors, first, end))
        marks_remove(proj->floors, marks_smallest(proj->floors));
    if (proj->floors->n > 0)
        return;
    free(proj->floors);
    proj->floors = NULL;
}

int st_op_no_file(const struct st_op *op)
{
    bool is_lost = op->obj->emptied != 0 || identity_is_rebuilt(op->st->config.identity);

    return is_lost ? -ROZO_EDAMAGED : -ROZO_ENO_FILE;
}

bool st_op_was_never_synced(const struct st_op *op)
{
    uint32_t bad = op->obj->emptied | object_damaged(op->obj);

    return bad != 0 && (bad & ~op->obj->unsynced) == 0 &&
           !identity_is_rebuilt(op->st->config.identity);
}

enum record_state st_op_inspect(const struct st_op *op, unsigned p, uint64_t block,
                                const uint8_t *head, struct record_header *h)
{
    const struct proj *proj = object_ready(op->obj, p);
    enum record_state state =
        record_inspect(head, op->obj->hash, block, p, op->ref.block_bytes, h);

    assert(p < CODEC_N_MAX);
    if (proj == NULL)
        return state;
    if (record_header_is_zero(head))
        return is_lost(proj, block) ? RECORD_IS_DAMAGED : state;
    /* The crc of data is not checked here. But a page with its epoch was written
     * before it. */
    if (state == RECORD_IS_DATA && version_epoch(h->version) > proj->epoch)
        return RECORD_IS_DAMAGED;
    return state;
}

/* ---- walks over heads ---- */

void head_scan_start(struct head_scan *scan, uint64_t first, uint64_t end,
                     bool skip_holes)
{
    assert(scan->state == SCAN_OFF && scan->buf != NULL);
    scan->at = first;
    scan->end = end;
    scan->n = 0;
    scan->skip_holes = skip_holes;
    scan->state = SCAN_NEXT;
}

void head_scan_stop(struct head_scan *scan)
{
    assert(scan->state == SCAN_NEXT); /* no request is under way */
    scan->state = SCAN_OFF;
}

static enum st_op_next scan_read(struct st_op *op, struct proj *proj,
                                 struct head_scan *scan)
{
    assert(scan->n == 0 && scan->at < scan->end);
    scan->n = extent_part(scan->at, scan->end);
    scan->state = SCAN_NEXT;
    if (!st_op_read_heads(op, proj, scan->at, scan->n, scan->buf))
        return OP_GO;
    scan->state = SCAN_READING;
    return OP_WAIT;
}

/* Returns the first block of the next extent, from `at` on, with a written block;
 * UINT64_MAX: none. */
static uint64_t written_extent(const struct proj *proj, uint64_t at)
{
    uint64_t block = marks_next(proj_written(proj), at);

    return block == UINT64_MAX ? block : block / EXTENT_BLOCKS * EXTENT_BLOCKS;
}

/* Continues where DISK_NEXT_DATA found data. */
static enum st_op_next scan_found(struct st_op *op, struct proj *proj,
                                  struct head_scan *scan)
{
    uint64_t block;

    assert(scan->n == 0 && scan->state == SCAN_SEEKING);
    scan->state = SCAN_NEXT;
    if (op->rc != 0 && op->rc != -ENODATA)
        return OP_BAD;
    block = op->rc != 0 ? UINT64_MAX : geometry_extent_of(&proj->geo, op->dr.next);
    /* a hole in written blocks must be seen as a loss */
    if (block > written_extent(proj, scan->at))
        block = written_extent(proj, scan->at);
    if (block > scan->at)
        scan->at = block;
    if (scan->at >= scan->end)
        return OP_GO; /* n is 0 */
    return scan_read(op, proj, scan);
}

/* Starts with the next extent. */
static enum st_op_next scan_next(struct st_op *op, struct proj *proj,
                                 struct head_scan *scan)
{
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
    st_op_disk(op, DISK_NEXT_DATA, proj, geometry_head_at(&proj->geo, scan->at), 0);
    return OP_WAIT;
}

static enum st_op_next scan_was_read(struct st_op *op, struct head_scan *scan)
{
    scan->state = SCAN_NEXT;
    if (op->rc != 0)
        return OP_BAD;
    st_op_read_heads_done(op, scan->buf);
    return OP_GO;
}

enum st_op_next st_op_scan(struct st_op *op, struct proj *proj, struct head_scan *scan)
{
    enum st_op_next next;

    assert(head_scan_is_on(scan));
    if (scan->state == SCAN_WRITING) {
        if (op->rc != 0)
            return OP_BAD;
        scan->state = SCAN_NEXT;
    }
    if (scan->state == SCAN_SEEKING)
        next = scan_found(op, proj, scan);
    else if (scan->state == SCAN_READING)
        next = scan_was_read(op, scan);
    else
        next = scan_next(op, proj, scan);
    if (next == OP_GO && scan->n == 0)
        scan->state = SCAN_OFF;
    return next;
}

enum st_op_next st_op_scan_write(struct st_op *op, struct proj *proj,
                                 struct head_scan *scan)
{
    uint64_t len = scan->n * proj->geo.head_bytes;

    assert(scan->state == SCAN_NEXT && scan->n > 0);
    op->iov = (struct iovec){ .iov_base = scan->buf, .iov_len = len };
    scan->state = SCAN_WRITING;
    st_op_write(op, proj, geometry_head_at(&proj->geo, scan->at), &op->iov, 1, len);
    return OP_WAIT;
}
