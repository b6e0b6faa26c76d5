/*
 * file_run.c - runs of blocks in memory: dirty ones that take writes, and those being
 * written.
 *
 * In:     frun_place() from writes, runs_set_off() when they are written. Core.
 * Out:    fills are started through fetch_start(), runs that are full are wanted.
 * Keeps:  the order of the three sets (file_int.h); unwritten bytes of a dirty run's
 *         memory are zero until they are filled.
 * Yours:  sizes of buffers.
 */
#include "storcli/file/file_run.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "storcli/file/file_int.h"

enum {
    RUN_BYTES_LONG = 64 << 10, /* a full run of this many bytes is written at once */
    POOL_MAX_DEFAULT = 256 << 20,
    POOL_IDLE_MAX = 8 << 20,
};

/* ---- memory ---- */

int file_pool_new(uint64_t max_bytes, struct file_pool **out)
{
    struct file_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return -ENOMEM;
    list_init(&pool->cached);
    pool->max_bytes = max_bytes != 0 ? max_bytes : POOL_MAX_DEFAULT;
    pool->bufs.idle_max_bytes = POOL_IDLE_MAX;
    pool->bufs.all_max_bytes = pool->max_bytes;
    pool->bufs.dense = true;
    *out = pool;
    return 0;
}

void file_pool_free(struct file_pool *pool)
{
    if (pool == NULL)
        return;
    assert(pool->n_bufs == 0 && pool->bufs.lent_bytes == 0);
    bufpool_trim(&pool->bufs);
    free(pool);
}

struct fbuf *fbuf_new(struct file_pool *pool, size_t bytes)
{
    struct fbuf *buf = calloc(1, sizeof(*buf));

    if (buf == NULL)
        return NULL;
    buf->data = bufpool_get(&pool->bufs, bytes);
    if (buf->data == NULL) {
        free(buf);
        return NULL;
    }
    buf->pool = pool;
    buf->bytes = bytes;
    buf->n_refs = 1;
    pool->n_bufs++;
    return buf;
}

struct fbuf *fbuf_share(struct fbuf *buf)
{
    buf->n_refs++;
    return buf;
}

void fbuf_drop(struct fbuf *buf)
{
    if (buf == NULL || --buf->n_refs > 0)
        return;
    buf->pool->n_bufs--;
    bufpool_put(&buf->pool->bufs, buf->data, buf->bytes);
    free(buf);
}

/* ---- sets ---- */

int frunset_reserve(struct frunset *set, unsigned n)
{
    unsigned n_max = set->n_max != 0 ? set->n_max : 8;
    struct frun **v;

    if (n <= set->n_max)
        return 0;
    while (n_max < n)
        n_max *= 2;
    v = realloc(set->v, n_max * sizeof(struct frun *));
    if (v == NULL)
        return -ENOMEM;
    set->v = v;
    set->n_max = n_max;
    return 0;
}

unsigned frunset_index(const struct frunset *set, uint64_t block)
{
    unsigned lo = 0, hi = set->n;

    while (lo < hi) {
        unsigned mid = lo + (hi - lo) / 2;

        if (set->v[mid]->end > block)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

struct frun *frunset_find(const struct frunset *set, uint64_t block)
{
    unsigned i = frunset_index(set, block);

    return i < set->n && set->v[i]->first <= block ? set->v[i] : NULL;
}

uint64_t frunset_next(const struct frunset *set, uint64_t block)
{
    unsigned i = frunset_index(set, block);

    return i < set->n ? set->v[i]->first : UINT64_MAX;
}

bool frunset_overlaps(const struct frunset *set, uint64_t first, uint64_t end)
{
    return frunset_next(set, first) < end;
}

void frunset_add(struct frunset *set, struct frun *run)
{
    unsigned i = frunset_index(set, run->first);

    assert(run->first < run->end);
    assert(i == set->n || set->v[i]->first >= run->end);
    assert(set->n < set->n_max);
    memmove(&set->v[i + 1], &set->v[i], (set->n - i) * sizeof(struct frun *));
    set->v[i] = run;
    set->n++;
}

void frunset_remove(struct frunset *set, struct frun *run)
{
    unsigned i = frunset_index(set, run->first);

    assert(i < set->n && set->v[i] == run);
    set->n--;
    memmove(&set->v[i], &set->v[i + 1], (set->n - i) * sizeof(struct frun *));
}

void runs_init(struct file *f, uint32_t blocks)
{
    waitlist_init(&f->runs.waiters);
    f->runs.blocks = blocks;
    f->runs.next_id = 1;
}

void runs_free(struct file *f)
{
    assert(f->runs.dirty.n == 0 && f->runs.writing.n == 0);
    free(f->runs.dirty.v);
    free(f->runs.writing.v);
}

/* Makes a run. Every set has room for every run, so that moving between them cannot
 * fail. */
struct frun *frun_new(struct file *f)
{
    struct frun *run;

    if (frunset_reserve(&f->runs.dirty, f->runs.n + 1) != 0 ||
        frunset_reserve(&f->runs.writing, f->runs.n + 1) != 0 ||
        cache_reserve(f, f->runs.n + 1) != 0)
        return NULL;
    run = calloc(1, sizeof(*run));
    if (run == NULL)
        return NULL;
    run->f = f;
    run->cut = UINT64_MAX;
    list_init(&run->link);
    f->runs.n++;
    return run;
}

void frun_free(struct frun *run)
{
    list_remove(&run->link);
    fbuf_drop(run->buf);
    run->f->runs.n--;
    free(run);
}

/* ---- dirty ---- */

/* Copies bytes [from, to) of a block from the data below a dirty run, if no storage must
 * be asked. */
static bool edge_from_memory(struct frun *run, uint64_t from, uint64_t to)
{
    struct file *f = run->f;
    struct frun *below = frunset_find(&f->runs.writing, block_of(f, from));

    if (below == NULL && f->inl.place == PLACE_EXPORTD) {
        inline_copy(f, frun_byte(run, from), from, to);
        return true;
    }
    if (below == NULL)
        below = clean_find(f, block_of(f, from), UINT64_MAX);
    if (below != NULL && below->was_read && from < storage_end(f) &&
        f->inl.place == PLACE_STORAGES)
        storcli_file_completes(f->sf, block_of(f, from));
    if (below != NULL)
        memcpy(frun_byte(run, from), frun_byte(below, from), to - from);
    return below != NULL || from >= storage_end(f); /* zeros are there already */
}

static void edges_from_memory(struct frun *run)
{
    struct file *f = run->f;

    if (!run->head_ok)
        run->head_ok = edge_from_memory(run, block_start(f, run->first), run->lo);
    if (!run->tail_ok)
        run->tail_ok = edge_from_memory(run, run->hi, block_start(f, run->end));
}

void frun_fill(struct frun *run, uint64_t block, const uint8_t *data)
{
    struct file *f = run->f;
    uint64_t start = block_start(f, block);

    if (block == run->first && !run->head_ok) {
        memcpy(frun_byte(run, start), data, run->lo - start);
        run->head_ok = true;
    }
    if (block == run->end - 1 && !run->tail_ok) {
        memcpy(frun_byte(run, run->hi), data + (run->hi - start),
               start + f->bs - run->hi);
        run->tail_ok = true;
    }
}

static void start_fill(struct frun *run, uint64_t block)
{
    struct file *f = run->f;
    struct fetch *fetch = fetch_find(f, FETCH_FILL, block);
    int rc = 0;

    if (fetch == NULL)
        rc = fetch_start(f, FETCH_FILL, block, 1, &fetch);
    if (rc != 0)
        file_failed(run, rc);
}

bool frun_complete(struct frun *run)
{
    edges_from_memory(run);
    if (!run->head_ok)
        start_fill(run, run->first);
    if (!run->tail_ok && (run->head_ok || run->end - run->first > 1))
        start_fill(run, run->end - 1);
    return run->head_ok && run->tail_ok;
}

/* Chooses how far a new dirty run at block should reach: as far as the write, and a full
 * run once the writes are known to be a sequence. */
static uint64_t choose_cap_end(struct file *f, uint64_t block, uint64_t end)
{
    uint64_t grid_end = block - block % f->runs.blocks + f->runs.blocks;
    uint64_t want = end - block_start(f, block), n = 1;

    if (f->runs.write_streak >= RUN_BYTES_LONG)
        want = (uint64_t)f->runs.blocks * f->bs;
    else if (f->runs.write_streak >= CODEC_BLOCK_MAX && want < RUN_BYTES_LONG)
        want = RUN_BYTES_LONG;
    while (n * f->bs < want && n < f->runs.blocks)
        n *= 2;
    return min_u64(block + n, grid_end);
}

static int dirty_new(struct file *f, uint64_t pos, uint64_t end, struct frun **out)
{
    uint64_t block = block_of(f, pos);
    struct frun *run = frun_new(f);

    if (run == NULL)
        return -ENOMEM;
    run->first = block;
    run->end = block + 1;
    run->cap_end = choose_cap_end(f, block, end);
    run->buf = fbuf_new(f->pool, (run->cap_end - block) * f->bs);
    if (run->buf == NULL) {
        frun_free(run);
        return -ENOMEM;
    }
    run->data = run->buf->data;
    run->lo = run->hi = pos;
    run->head_ok = pos == block_start(f, block);
    run->state = FRUN_DIRTY;
    run->id = f->runs.next_id++;
    run->born_ns = env_now_ns(f->env);
    if (!run->head_ok || end < block_start(f, block + 1))
        memset(run->data, 0, f->bs);
    frunset_add(&f->runs.dirty, run);
    f->runs.bytes += f->bs;
    file_start_write_timer(f);
    *out = run;
    return 0;
}

/* Returns the dirty run that can take bytes from pos on, or NULL. */
static struct frun *dirty_at(struct file *f, uint64_t pos)
{
    uint64_t block = block_of(f, pos);
    struct frun *run = frunset_find(&f->runs.dirty, block);

    if (run != NULL || block == 0 || pos != block_start(f, block))
        return run;
    run = frunset_find(&f->runs.dirty, block - 1);
    return run != NULL && frun_to(run) == pos && run->cap_end > block ? run : NULL;
}

/* Extends the run by the blocks up to byte `limit`; bytes beyond it in them become
 * zero. */
static void dirty_extend(struct frun *run, uint64_t limit)
{
    struct file *f = run->f;
    uint64_t end = block_past(f, limit);

    if (end <= run->end)
        return;
    memset(frun_byte(run, limit), 0, block_start(f, end) - limit);
    f->runs.bytes += (end - run->end) * f->bs;
    run->end = end;
    run->tail_ok = false;
}

int64_t frun_place(struct file *f, uint64_t pos, uint64_t end, const uint8_t *src,
                   bool sync, struct fop *op)
{
    struct frun *run = dirty_at(f, pos);
    uint64_t limit, next;
    int rc = 0;

    if (run == NULL)
        rc = dirty_new(f, pos, end, &run);
    if (rc != 0)
        return rc;
    next = frunset_next(&f->runs.dirty, run->end);
    limit = min_u64(end, block_start(f, min_u64(run->cap_end, next)));
    if (pos > frun_to(run) || limit < frun_from(run))
        frun_complete(run);
    if (pos > frun_to(run) || limit < frun_from(run)) { /* a gap of unknown bytes */
        if (run->failed_clock > op->clock)
            return run->rc;
        fop_wait(op, &f->runs.waiters);
        return 0;
    }
    dirty_extend(run, limit);
    if (src != NULL)
        memcpy(frun_byte(run, pos), src, limit - pos);
    else
        memset(frun_byte(run, pos), 0, limit - pos);
    run->lo = min_u64(run->lo, pos);
    run->hi = max_u64(run->hi, limit);
    run->head_ok |= run->lo == block_start(f, run->first);
    run->tail_ok |= run->hi == block_start(f, run->end);
    run->sync |= sync;
    edges_from_memory(run);
    clean_forget(f, block_of(f, pos), block_past(f, limit));
    size_grows(f, limit);
    if (run->hi == block_start(f, run->cap_end) && frun_bytes(run) >= RUN_BYTES_LONG)
        frun_want(run);
    return (int64_t)(limit - pos);
}

/* ---- writing ---- */

void runs_set_off(struct frun *run)
{
    struct file *f = run->f;

    /* A fill that later writes made needless must not fill a later run. */
    clean_forget_all(f, run->first, run->end);
    frunset_remove(&f->runs.dirty, run);
    frunset_add(&f->runs.writing, run);
}

void runs_take_out(struct frun *run)
{
    frunset_remove(&run->f->runs.writing, run);
    run->f->runs.bytes -= frun_bytes(run);
}

struct frun *runs_add_direct(struct file *f, struct write_fop *w, uint64_t first,
                             uint64_t end, const uint8_t *data, bool sync)
{
    struct frun *run = frun_new(f);

    if (run == NULL)
        return NULL;
    assert(!frunset_overlaps(&f->runs.dirty, first, end));
    assert(!frunset_overlaps(&f->runs.writing, first, end));
    clean_forget(f, first, end);
    run->direct = w;
    run->data = (uint8_t *)data; /* never written to: writing runs are not */
    run->first = first;
    run->end = run->cap_end = end;
    run->lo = block_start(f, first);
    run->hi = block_start(f, end);
    run->head_ok = run->tail_ok = true;
    run->sync = sync;
    run->id = f->runs.next_id++;
    run->born_ns = env_now_ns(f->env);
    frunset_add(&f->runs.writing, run);
    f->runs.bytes += frun_bytes(run);
    return run;
}

void runs_write_begins(struct file *f, uint64_t offset)
{
    if (offset != f->runs.write_next)
        f->runs.write_streak = 0;
}

void runs_wrote(struct file *f, uint64_t from, uint64_t to)
{
    f->runs.write_streak += to - from;
    f->runs.write_next = to;
}

void runs_end_sequence(struct file *f)
{
    f->runs.write_streak = 0;
}

/* ---- truncate, close ---- */

static void dirty_remove(struct frunset *set, struct frun *run)
{
    assert(run->state != FRUN_FLYING && run->direct == NULL);
    frun_unwant(run);
    frunset_remove(set, run);
    run->f->runs.bytes -= frun_bytes(run);
    frun_free(run);
}

static void cut_set(struct file *f, struct frunset *set, uint64_t size)
{
    for (unsigned i = set->n; i-- > 0;) {
        struct frun *run = set->v[i];
        uint64_t end = block_past(f, size);

        if (run->lo >= size) {
            dirty_remove(set, run);
        } else if (run->end >= end && block_start(f, run->end) > size) {
            assert(run->state != FRUN_FLYING && run->direct == NULL);
            f->runs.bytes -= (run->end - end) * f->bs;
            run->end = end;
            memset(frun_byte(run, size), 0, block_start(f, end) - size);
            run->hi = min_u64(run->hi, size);
            run->tail_ok |= run->hi == size;
        }
    }
}

void frun_cut(struct file *f, uint64_t size)
{
    cut_set(f, &f->runs.dirty, size);
    cut_set(f, &f->runs.writing, size);
    clean_forget_all(f, block_of(f, size), UINT64_MAX);
}

void frun_apply_cut(struct frun *run)
{
    uint64_t head = max_u64(block_start(run->f, run->first), run->cut);
    uint64_t tail = max_u64(run->hi, run->cut), end = block_start(run->f, run->end);

    if (run->direct == NULL && head < run->lo)
        memset(frun_byte(run, head), 0, run->lo - head);
    if (run->direct == NULL && tail < end)
        memset(frun_byte(run, tail), 0, end - tail);
    run->cut = UINT64_MAX;
}

static void forget_beyond(struct frunset *set, uint64_t size)
{
    for (unsigned i = 0; i < set->n; i++) {
        struct frun *run = set->v[i];

        run->cut = min_u64(run->cut, size);
        if (run->state != FRUN_FLYING) /* the engine has it: it must not change */
            frun_apply_cut(run);
    }
}

void frun_forget_beyond(struct file *f, uint64_t size)
{
    forget_beyond(&f->runs.dirty, size);
    forget_beyond(&f->runs.writing, size);
    clean_forget(f, block_of(f, size), UINT64_MAX);
    fetches_limit(f, size);
}

void frun_drop_unsent(struct file *f)
{
    while (f->runs.dirty.n > 0)
        dirty_remove(&f->runs.dirty, f->runs.dirty.v[0]);
    file_size_recount(f);
}

void frun_drop_dirty(struct file *f)
{
    frun_drop_unsent(f);
    while (f->runs.writing.n > 0)
        dirty_remove(&f->runs.writing, f->runs.writing.v[0]);
    file_size_recount(f);
}
