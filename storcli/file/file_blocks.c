/*
 * file_blocks.c - allocated blocks of the file: reports to exportd for st_blocks, and the
 * number for our own readers meanwhile.
 *
 * In:     acknowledged writes, punches, allocations, truncates; exportd's answers. Core.
 * Out:    ranges of blocks in reports.
 * Keeps:  a block that storages have is in `known`, and reported before a flush ends; a
 *         report may come twice.
 * Yours:  how many ranges are kept.
 */
#include "storcli/file/file_blocks.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "storcli/file/file_int.h"

enum blocks_change { BLOCKS_ALLOCATED = 1, BLOCKS_FREED = 2 };

enum {
    KNOWN_MAX = 2 * FILE_RANGES_MAX,
    RESERVED_MAX = 256, /* ranges that are remembered; more are forgotten */
    COUNT_CLOSING_NS = NS_PER_S,
};

/* Sets a range. Out of memory ends the process: it is as small as an operation, and
 * cannot be reported. */
static void put(struct range_map *spans, uint64_t first, uint64_t end, unsigned value)
{
    if (value == 0 && spans->n == 0)
        return;
    if (range_map_put(spans, first, end, value) != 0)
        abort();
}

/* Puts all ranges of `from` on top of those in `to`. */
static void put_all(struct range_map *to, const struct range_map *from)
{
    for (size_t i = 0; i < from->n; i++)
        put(to, from->list[i].from, from->list[i].to, from->list[i].value);
}

static void know_all(struct file_blocks *b, const struct range_map *changes)
{
    for (size_t i = 0; i < changes->n; i++)
        put(&b->known, changes->list[i].from, changes->list[i].to,
            changes->list[i].value == BLOCKS_ALLOCATED ? BLOCKS_ALLOCATED : 0);
}

/* ---- blocks that a dead client did not report ---- */

static void count_next(struct file *f);

/* Stops the search if it is under way. */
static void count_abandon(struct file_blocks *b)
{
    if (b->count == COUNT_BUSY)
        b->count = COUNT_NONE;
}

static void on_data_end(void *arg, int rc)
{
    struct file *f = arg;
    struct file_blocks *b = &f->blocks;

    b->seek_busy = false;
    if (rc == 0 && b->count == COUNT_BUSY && b->n_freed == b->seek_n_freed) {
        blocks_allocated(f, b->count_at, b->found);
        b->count_at = b->found;
    }
    if (rc != 0)
        count_abandon(b);
    count_next(f);
}

static void on_data(void *arg, int rc)
{
    struct file *f = arg;
    struct file_blocks *b = &f->blocks;

    b->seek_busy = false;
    if (rc != 0)
        count_abandon(b); /* the next opening tries again */
    if (b->count != COUNT_BUSY || b->found >= b->hole_end) {
        b->count_at = b->hole_end;
        count_next(f);
        return;
    }
    b->count_at = b->found;
    b->seek_busy = true;
    storcli_seek(f->sf, b->count_at, b->hole_end, true, &b->found, on_data_end, f);
}

static void count_end(struct file *f)
{
    f->blocks.count = COUNT_DONE;
    file_changed(f);
    file_wake(f); /* a close waits for it */
}

/* Returns true if a close has waited long enough for the count: the file may be opened
 * again soon. */
static bool is_too_late(const struct file *f)
{
    return f->life != FILE_OPEN &&
           env_now_ns(f->env) - f->blocks.count_ns > COUNT_CLOSING_NS;
}

/* Searches from hole to hole. */
static void count_next(struct file *f)
{
    struct file_blocks *b = &f->blocks;
    uint64_t end = block_past(f, f->size.meta);
    const struct mapped_range *s = range_map_find(&b->known, b->count_at);

    if (is_too_late(f))
        count_abandon(b);
    if (b->seek_busy || b->count != COUNT_BUSY) {
        file_wake(f);
        return;
    }
    if (s != NULL && s->from <= b->count_at) {
        b->count_at = s->to;
        s = range_map_find(&b->known, b->count_at);
    }
    if (b->count_at >= end) {
        count_end(f);
        return;
    }
    b->hole_end = s == NULL ? end : min_u64(end, s->from);
    b->seek_n_freed = b->n_freed;
    b->seek_busy = true;
    storcli_seek(f->sf, b->count_at, b->hole_end, false, &b->found, on_data, f);
}

static void count_start(struct file *f, const struct file_attr *attr)
{
    struct file_blocks *b = &f->blocks;

    if (b->count == COUNT_DONE && attr->blocks_known == BLOCKS_ALL)
        b->count = COUNT_NONE;
    if (attr->blocks_known == BLOCKS_ALL || attr->epoch == 0 || b->count != COUNT_NONE ||
        b->seek_busy || f->inl.place != PLACE_STORAGES || f->life != FILE_OPEN)
        return;
    b->count = COUNT_BUSY;
    b->count_at = 0;
    b->count_ns = env_now_ns(f->env);
    count_next(f);
}

/* ---- answers of exportd, reports to it ---- */

void blocks_adopt(struct file *f, const struct file_attr *attr)
{
    struct file_blocks *b = &f->blocks;

    if (attr->blocks_known == BLOCKS_UNKNOWN || attr->size_age == SIZE_OLD)
        return;
    range_map_free(&b->known);
    b->is_known = true;
    put_all(&b->known, &attr->blocks);
    know_all(b, &b->sent);
    know_all(b, &b->unreported);
    count_start(f, attr);
}

void blocks_count_stop(struct file *f)
{
    f->blocks.count = COUNT_NONE;
}

void blocks_forget(struct file *f)
{
    f->blocks.is_known = false;
    blocks_count_stop(f);
    range_map_free(&f->blocks.known);
}

/* Bounds the set: past a number of holes, reporting everything is cheaper than keeping
 * it. */
static void bound(struct file *f)
{
    if (f->blocks.known.n > KNOWN_MAX)
        blocks_forget(f);
    if (f->blocks.unreported.n >= FILE_RANGES_REPORTED_MAX)
        file_report(f, f->report.change, false, f->report.no);
}

void blocks_allocated(struct file *f, uint64_t first, uint64_t end)
{
    struct file_blocks *b = &f->blocks;

    if (f->inl.place != PLACE_STORAGES || range_map_least(&b->known, first, end) != 0)
        return;
    put(&b->known, first, end, BLOCKS_ALLOCATED);
    put(&b->unreported, first, end, BLOCKS_ALLOCATED);
    file_changed(f);
    bound(f);
}

void blocks_freed(struct file *f, uint64_t first, uint64_t end)
{
    struct file_blocks *b = &f->blocks;

    if (first >= end || (b->is_known && range_map_most(&b->known, first, end) == 0))
        return;
    b->n_freed++;
    put(&b->known, first, end, 0);
    put(&b->unreported, first, end, BLOCKS_FREED);
    file_changed(f);
    bound(f);
}

void blocks_cut(struct file *f, uint64_t size)
{
    struct file_blocks *b = &f->blocks;
    uint64_t first = block_past(f, size);

    b->n_freed++;
    put(&b->known, first, UINT64_MAX, 0);
    put(&b->unreported, first, UINT64_MAX, 0);
    put(&b->sent, first, UINT64_MAX, 0);
    put(&b->reported, first, UINT64_MAX, 0);
}

bool blocks_are_none(const struct file *f)
{
    return f->blocks.is_known && f->blocks.known.n == 0;
}

bool blocks_are_reported(const struct file *f)
{
    return f->blocks.unreported.n == 0;
}

void blocks_lose(struct file *f)
{
    blocks_forget(f);
    range_map_free(&f->blocks.unreported);
    range_map_free(&f->blocks.reported);
}

static size_t pack(const struct range_map *spans, unsigned value, const uint8_t **out)
{
    uint8_t *bytes = malloc(spans->n * SPAN_PACKED_MAX + 1);

    if (bytes == NULL)
        abort();
    *out = bytes;
    return range_map_pack(spans, value, FILE_RANGES_REPORTED_MAX, bytes);
}

bool blocks_send(struct file *f, struct file_meta_call *call)
{
    struct file_blocks *b = &f->blocks;
    bool is_all = b->unreported.n <= FILE_RANGES_REPORTED_MAX;

    call->reports_blocks = true;
    call->blocks_counted = b->count == COUNT_DONE && is_all;
    range_map_free(&b->sent); /* the old content has been reported */
    if (is_all) {
        b->sent = b->unreported;
        b->unreported = (struct range_map){ 0 };
    } else {
        for (size_t i = 0; i < FILE_RANGES_REPORTED_MAX; i++)
            put(&b->sent, b->unreported.list[i].from, b->unreported.list[i].to,
                b->unreported.list[i].value);
        put(&b->unreported, 0, b->unreported.list[FILE_RANGES_REPORTED_MAX - 1].to, 0);
    }
    if (b->sent.n == 0)
        return true;
    call->allocated_len = pack(&b->sent, BLOCKS_ALLOCATED, &call->allocated);
    call->freed_len = pack(&b->sent, BLOCKS_FREED, &call->freed);
    return is_all;
}

void blocks_sent(struct file *f, bool ok, bool durable)
{
    struct file_blocks *b = &f->blocks;

    if (ok && f->report.call.blocks_counted && b->count == COUNT_DONE)
        b->count = COUNT_NONE;
    if (ok && durable) {
        range_map_free(&b->reported);
    } else if (ok) {
        put_all(&b->reported, &b->sent);
    } else {
        put_all(&b->sent, &b->unreported); /* newer changes came meanwhile */
        range_map_free(&b->unreported);
        b->unreported = b->sent;
        b->sent = (struct range_map){ 0 };
    }
    range_map_free(&b->sent);
}

void blocks_report_again(struct file *f)
{
    struct file_blocks *b = &f->blocks;

    put_all(&b->reported, &b->unreported);
    range_map_free(&b->unreported);
    b->unreported = b->reported;
    b->reported = (struct range_map){ 0 };
}

void blocks_free(struct file *f)
{
    range_map_free(&f->blocks.known);
    range_map_free(&f->blocks.unreported);
    range_map_free(&f->blocks.sent);
    range_map_free(&f->blocks.reported);
    range_map_free(&f->blocks.reserved);
}

/* ---- reservations ---- */

void blocks_forget_reserved(struct file *f, uint64_t first)
{
    if (first == 0 || range_map_put(&f->blocks.reserved, first, SPAN_END, 0) != 0)
        range_map_free(&f->blocks.reserved);
}

void blocks_reserved(struct file *f, uint64_t first, uint64_t end)
{
    if (range_map_put(&f->blocks.reserved, first, end, 1) != 0 ||
        f->blocks.reserved.n > RESERVED_MAX)
        blocks_forget_reserved(f, 0);
}

void blocks_unreserved(struct file *f, uint64_t first, uint64_t end)
{
    if (range_map_put(&f->blocks.reserved, first, end, 0) != 0)
        blocks_forget_reserved(f, 0);
}

void blocks_not_reserved(const struct file *f, uint64_t *first, uint64_t *end)
{
    const struct mapped_range *span = range_map_find(&f->blocks.reserved, *first);

    if (span != NULL && span->from <= *first)
        *first = min_u64(span->to, *end);
    span = *first < *end ? range_map_find(&f->blocks.reserved, *end - 1) : NULL;
    if (span != NULL && span->from < *end)
        *end = max_u64(span->from, *first);
}

/* ---- the number for our readers ---- */

static void add_runs(struct range_map *all, const struct frunset *set)
{
    for (unsigned i = 0; i < set->n; i++)
        put(all, set->v[i]->first, set->v[i]->end, BLOCKS_ALLOCATED);
}

static uint64_t set_end(const struct frunset *set)
{
    return set->n == 0 ? 0 : set->v[set->n - 1]->end;
}

uint64_t file_allocated(const struct file *f, uint64_t reported)
{
    const struct file_blocks *b = &f->blocks;
    struct range_map all = { 0 };
    uint64_t bytes;

    if (f->runs.dirty.n == 0 && f->runs.writing.n == 0 && b->unreported.n == 0 &&
        b->sent.n == 0)
        return reported;
    if (f->inl.place == PLACE_EXPORTD)
        return max_u64(reported,
                       max_u64(set_end(&f->runs.dirty), set_end(&f->runs.writing)) *
                           f->bs);
    put_all(&all, b->is_known ? &b->known : &b->sent);
    if (!b->is_known)
        put_all(&all, &b->unreported);
    add_runs(&all, &f->runs.dirty);
    add_runs(&all, &f->runs.writing);
    bytes = range_map_total(&all, BLOCKS_ALLOCATED) * f->bs;
    range_map_free(&all);
    return b->is_known ? bytes : reported + bytes; /* rather too many than none */
}
