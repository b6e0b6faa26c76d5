/*
 * file_size.c - the size of the file, and how far storages and exportd have it.
 *
 * In:     accepted and acknowledged writes, reports, truncates, exportd's answers. Core.
 * Out:    the size for reports and readers; blocks beyond it are forgotten.
 * Keeps:  a size is reported only when the storages have acknowledged every accepted byte
 *         below it.
 */
#include "storcli/file/file_size.h"

#include <string.h>

#include "storcli/file/file_int.h"

/* ---- growing, and cut ---- */

void size_init(struct file *f, uint64_t size)
{
    f->size.now = f->size.meta = size;
}

void size_grows(struct file *f, uint64_t end)
{
    f->size.now = max_u64(f->size.now, end);
}

void size_acked(struct file *f, uint64_t end, uint32_t epoch)
{
    if (end > f->size.acked_end)
        f->size.epoch = epoch;
    f->size.acked_end = max_u64(f->size.acked_end, end);
    f->size.has_data = true;
}

void size_allocated(struct file *f, uint64_t end)
{
    f->size.now = f->size.acked_end = f->size.fresh_end = end;
    f->size.epoch = f->epoch.now;
}

void size_truncated(struct file *f, uint64_t size)
{
    f->size.now = f->size.meta = f->size.reported_end = size;
    f->size.epoch = f->epoch.now;
    f->size.is_unsure = false;
}

void file_forget_beyond(struct file *f, uint64_t size)
{
    if (size < f->size.now)
        blocks_cut(f, size);
    f->size.acked_end = min_u64(f->size.acked_end, size);
    f->size.through_end = min_u64(f->size.through_end, size);
    f->size.reported_end = min_u64(f->size.reported_end, size);
    f->size.fresh_end = min_u64(f->size.fresh_end, size);
    blocks_forget_reserved(f, block_past(f, size));
}

void file_size_recount(struct file *f)
{
    uint64_t size = max_u64(f->size.meta, f->size.acked_end);
    struct frun *run;

    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        size = max_u64(size, f->runs.dirty.v[i]->hi);
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        size = max_u64(size, f->runs.writing.v[i]->hi);
    f->size.now = size;
    /* A block completed from the write that failed has bytes of it beyond what is
     * left. */
    run = frunset_find(&f->runs.dirty, block_of(f, size));
    if (run != NULL)
        memset(frun_byte(run, size), 0, block_start(f, block_of(f, size) + 1) - size);
}

void size_cut(struct file *f, uint64_t size)
{
    f->size.meta = size;
    file_forget_beyond(f, size);
    file_size_recount(f);
}

void size_lost(struct file *f)
{
    f->size.acked_end = f->size.through_end = 0;
    f->size.reported_end = f->size.fresh_end = 0;
}

void size_set_has_data(struct file *f, bool has_data)
{
    f->size.has_data = has_data;
}

void size_set_unreported(struct file *f)
{
    f->size.is_unreported = true;
}

/* ---- exportd's answers ---- */

/* Handles a truncate by another client, newer than our growth of the file: exportd knew
 * that size or has learned it again. Unreported bytes stay until exportd decides on their
 * report. Bytes that it may have forgotten may have been cut off unseen, so our writers
 * get a loss. */
static void size_is_cut(struct file *f, uint64_t size)
{
    bool unreported = f->size.acked_end > f->size.meta;

    trunc_happened(f);
    frun_forget_beyond(f, size);
    f->size.meta = size;
    if (!unreported) {
        if (f->size.is_unsure &&
            max_u64(f->size.reported_end, f->size.fresh_end) > size) {
            file_count_loss(f);
            file_meta_unsure(f);
        }
        file_forget_beyond(f, size);
    }
    file_size_recount(f);
    clean_drop_all(f);
    blocks_forget_reserved(f, 0);
}

/* Returns true if the smaller size comes from a truncate newer than the write that set
 * our size. */
static bool is_cut(const struct file *f, const struct file_attr *attr)
{
    return attr->size < f->size.meta &&
           version_epoch(attr->truncate_version) > f->size.epoch;
}

/* Returns whether exportd may have forgotten the size, and we have nothing to tell it. */
static bool is_exportds(const struct file *f)
{
    return f->size.is_unsure && f->size.acked_end == 0 &&
           max_u64(f->size.reported_end, f->size.fresh_end) == 0;
}

/* Adopts a size. A smaller one may be an answer from before our own report: it is
 * believed only if no report is on its way, or with the truncate that caused it. An
 * exclusive operation may be a truncate, which knows better. */
void size_adopt(struct file *f, const struct file_attr *attr)
{
    uint64_t size = attr->size;

    if (attr->size_age == SIZE_OLD ||
        (attr->size_age == SIZE_PERHAPS_OLD && size < f->size.meta))
        return;
    if (size == f->size.meta || (size > f->size.meta && f->queue.exclusive != NULL))
        return;
    if (size > f->size.meta) {
        f->size.meta = size;
        f->size.now = max_u64(f->size.now, size);
    } else if (file_is_reported(f) || is_exportds(f)) {
        file_forget_beyond(f, size);
        f->size.meta = size;
        file_size_recount(f);
    } else {
        if (is_cut(f, attr))
            size_is_cut(f, size);
        return;
    }
    clean_drop_all(f); /* changed by another client */
    blocks_forget_reserved(f, 0);
}

/* ---- reports ---- */

static uint64_t set_unacked(const struct file *f, const struct frunset *set,
                            uint64_t size)
{
    for (unsigned i = frunset_index(set, block_of(f, f->size.meta)); i < set->n; i++)
        if (set->v[i]->hi > f->size.meta)
            size = min_u64(size, max_u64(set->v[i]->lo, f->size.meta));
    return size;
}

/* Returns the largest size that may be reported. */
static uint64_t reportable_size(const struct file *f)
{
    uint64_t size = max_u64(f->size.meta, f->size.acked_end);

    size = set_unacked(f, &f->runs.writing, set_unacked(f, &f->runs.dirty, size));
    return max_u64(size, min_u64(f->size.through_end, f->size.acked_end));
}

/* Limits a size reported again with a later epoch than a pending truncate's: exportd
 * would take a larger one as the end of that truncate. It knows the size after the
 * truncate from the client that asked for it. */
static uint64_t below_truncate(const struct file *f, uint64_t size)
{
    bool is_later = f->trunc.pending && f->size.epoch > version_epoch(f->trunc.version);

    return is_later ? min_u64(size, f->trunc.size) : size;
}

/* Returns the size for a report. With sync, one reported before and not known to be
 * durable is reported again, as exportd's power may have failed meanwhile; unless another
 * client has cut the file since. */
uint64_t size_to_report(const struct file *f, bool sync)
{
    uint64_t size = reportable_size(f);

    if (size > f->size.meta)
        return size;
    if (f->size.is_unsure)
        return below_truncate(
            f, min_u64(size, max_u64(f->size.reported_end, f->size.fresh_end)));
    return sync && f->size.reported_end <= f->size.meta
               ? below_truncate(f, f->size.reported_end)
               : 0;
}

void size_reported(struct file *f, uint64_t size, bool is_same, bool durable)
{
    if (is_same)
        f->size.meta = max_u64(f->size.meta, size);
    f->size.reported_end = durable ? 0 : max_u64(f->size.reported_end, size);
}

void size_is_fresh(struct file *f, uint64_t end)
{
    f->size.fresh_end = max_u64(f->size.fresh_end, end);
}

void size_nothing_fresh(struct file *f)
{
    f->size.fresh_end = 0;
}

void file_is_through(struct file *f, uint64_t end)
{
    if (end <= f->size.through_end)
        return;
    f->size.through_end = end;
    if (end > f->size.meta) /* an earlier report may have had less */
        file_changed(f);
}

void size_unsure(struct file *f)
{
    f->size.is_unsure = true;
}

void size_sure(struct file *f)
{
    f->size.is_unsure = false;
}

void size_known(struct file *f, uint64_t size)
{
    f->size.is_unsure = false;
    if (size == f->size.meta)
        return;
    f->size.meta = size;
    file_size_recount(f);
    clean_drop_all(f);
}

/* ---- for readers of the size ---- */

uint64_t file_size(const struct file *f)
{
    return f->size.now;
}

bool file_has_data(const struct file *f)
{
    return f->size.has_data || f->runs.dirty.n > 0 || f->runs.writing.n > 0;
}

bool file_has_unreported(const struct file *f)
{
    return f->size.is_unreported;
}
