/*
 * file_run.c - runs of blocks in memory: dirty ones that take writes, clean ones that
 * were read.
 *
 * In:     frun_place() from writes, clean_add() from fetches and finished writes. Core.
 * Out:    fills are started through fetch_start(), runs that are full are wanted.
 * Keeps:  the order of the three sets (file_int.h); unwritten bytes of a dirty run's
 *         memory are zero until they are filled.
 * Yours:  sizes of buffers, which clean data is kept and for how long.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storcli/file/file_int.h"

enum {
    RUN_BYTES_LONG = 64 << 10, /* a full run of this many bytes is written at once */
    POOL_MAX_DEFAULT = 256 << 20,
};

/* ---- memory ---- */

int file_pool_new(uint64_t max_bytes, struct file_pool **out)
{
    struct file_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return -ENOMEM;
    list_init(&pool->cached);
    pool->max_bytes = max_bytes != 0 ? max_bytes : POOL_MAX_DEFAULT;
    pool->scratch.all_max = pool->max_bytes;
    *out = pool;
    return 0;
}

void file_pool_free(struct file_pool *pool)
{
    if (pool == NULL)
        return;
    assert(pool->n_bufs == 0);
    scratch_free(&pool->scratch);
    free(pool);
}

struct fbuf *fbuf_new(struct file_pool *pool, size_t bytes)
{
    struct fbuf *buf = calloc(1, sizeof(*buf));

    if (buf == NULL)
        return NULL;
    buf->data = scratch_get(&pool->scratch, bytes);
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
    scratch_put(&buf->pool->scratch, buf->data, buf->bytes);
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

/* Makes a run. Every set has room for every run, so that moving between them cannot
 * fail. */
struct frun *frun_new(struct file *f)
{
    struct frun *run;

    if (frunset_reserve(&f->dirty, f->n_runs + 1) != 0 ||
        frunset_reserve(&f->writing, f->n_runs + 1) != 0 ||
        frunset_reserve(&f->clean, f->n_runs + 1) != 0)
        return NULL;
    run = calloc(1, sizeof(*run));
    if (run == NULL)
        return NULL;
    run->f = f;
    run->cut = UINT64_MAX;
    list_init(&run->link);
    f->n_runs++;
    return run;
}

void frun_free(struct frun *run)
{
    list_remove(&run->link);
    fbuf_drop(run->buf);
    run->f->n_runs--;
    free(run);
}

/* ---- clean ---- */

static void clean_remove(struct frun *run)
{
    struct file *f = run->f;

    frunset_remove(&f->clean, run);
    f->clean_bytes -= frun_bytes(run);
    frun_free(run);
    if (f->clean.n == 0)
        list_remove(&f->pool_link);
}

static void clean_is_used(struct frun *run)
{
    struct file *f = run->f;

    run->is_used_up = false;
    list_remove(&run->link);
    list_add_tail(&f->lru, &run->link);
    list_remove(&f->pool_link);
    list_add_tail(&f->pool->cached, &f->pool_link);
}

static bool is_being_read(struct file *f, const struct frun *run)
{
    LIST_FOREACH(node, &f->reads) {
        const struct read_fop *r = container_of(node, struct read_fop, active);

        if (block_of(f, r->offset) < run->end && block_past(f, r->end) > run->first)
            return true;
    }
    return false;
}

static bool clean_is_old(const struct frun *run)
{
    const struct file *f = run->f;

    return f->config.cache_ms != FILE_CACHE_UNTIL_DROPPED &&
           env_now_ns(f->env) - run->born_ns > f->config.cache_ms * 1000000ull;
}

struct frun *clean_find(struct file *f, uint64_t block, uint64_t start_ns)
{
    struct frun *run = frunset_find(&f->clean, block);

    if (run == NULL)
        return NULL;
    if (run->born_ns < start_ns && clean_is_old(run)) {
        /* an operation that began earlier may still take it */
        if (!is_being_read(f, run))
            clean_remove(run);
        return NULL;
    }
    clean_is_used(run);
    return run;
}

/* Drops clean runs down to max_bytes. A run being read stays until its reader has it:
 * else readers could starve. */
void clean_shrink(struct file *f, uint64_t max_bytes)
{
    LIST_FOREACH_SAFE(node, &f->lru) {
        struct frun *run = container_of(node, struct frun, link);

        if (f->clean_bytes <= max_bytes)
            return;
        if (!is_being_read(f, run))
            clean_remove(run);
    }
}

/* Marks the run. Used up runs come first in the list. */
void clean_is_used_up(struct frun *run)
{
    struct file *f = run->f;

    LIST_FOREACH_SAFE(node, &f->lru) {
        struct frun *before = container_of(node, struct frun, link);

        if (!before->is_used_up)
            break;
        if (before != run && !is_being_read(f, before))
            clean_remove(before);
    }
    run->is_used_up = true;
    list_remove(&run->link);
    list_add_after(&f->lru, &run->link);
}

bool pool_make_room(struct file_pool *pool, uint64_t bytes)
{
    LIST_FOREACH_SAFE(node, &pool->cached) {
        if (pool->scratch.lent_bytes + bytes <= pool->max_bytes)
            break;
        clean_shrink(container_of(node, struct file, pool_link), 0);
    }
    return pool->scratch.lent_bytes + bytes <= pool->max_bytes;
}

void clean_drop_all(struct file *f)
{
    clean_forget(f, 0, UINT64_MAX);
}

static void on_clean_timer(struct env_timer *timer)
{
    struct file *f = container_of(timer, struct file, clean_timer);

    LIST_FOREACH_SAFE(node, &f->lru) {
        struct frun *run = container_of(node, struct frun, link);

        if (clean_is_old(run) && !is_being_read(f, run))
            clean_remove(run);
    }
    clean_start_timer(f);
}

void clean_start_timer(struct file *f)
{
    if (f->clean.n == 0 || f->closing || env_timer_is_running(&f->clean_timer) ||
        f->config.cache_ms == FILE_CACHE_UNTIL_DROPPED)
        return;
    env_timer_init(&f->clean_timer, on_clean_timer);
    env_timer_start(f->env, &f->clean_timer, f->config.cache_ms + 1);
}

/* Takes [first, end) out of a clean run. Of two remaining parts only the longer stays,
 * and a part that would hold much more memory than it is worth does not. */
static void clean_trim(struct frun *run, uint64_t first, uint64_t end)
{
    struct file *f = run->f;
    uint64_t before = first > run->first ? first - run->first : 0;
    uint64_t after = end < run->end ? run->end - end : 0;

    if (max_u64(before, after) * f->bs * 2 < run->buf->bytes) {
        clean_remove(run);
        return;
    }
    f->clean_bytes -= frun_bytes(run);
    if (before >= after) {
        run->end = run->first + before;
    } else {
        run->data += (end - run->first) * f->bs;
        run->first = end;
    }
    f->clean_bytes += frun_bytes(run);
}

static void clean_cut_out(struct file *f, uint64_t first, uint64_t end)
{
    for (unsigned i = frunset_index(&f->clean, first);
         i < f->clean.n && f->clean.v[i]->first < end;
         i = frunset_index(&f->clean, first))
        clean_trim(f->clean.v[i], first, end);
}

static void fetches_spoil(struct file *f, uint64_t first, uint64_t end, bool fills_too)
{
    LIST_FOREACH(node, &f->fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);
        uint64_t from = max_u64(first, fetch->first);
        uint64_t to = min_u64(end, fetch->first + fetch->n);

        if (fetch->kind == FETCH_FILL && !fills_too)
            continue;
        for (uint64_t b = from; b < to; b++)
            fetch->stale[(b - fetch->first) / 64] |= 1ull << (b - fetch->first) % 64;
    }
}

void clean_forget(struct file *f, uint64_t first, uint64_t end)
{
    clean_cut_out(f, first, end);
    fetches_spoil(f, first, end, false);
}

void clean_forget_all(struct file *f, uint64_t first, uint64_t end)
{
    clean_cut_out(f, first, end);
    fetches_spoil(f, first, end, true);
}

static bool is_stale(const uint64_t *stale, uint64_t i)
{
    return stale != NULL && (stale[i / 64] >> i % 64 & 1) != 0;
}

static void clean_add_piece(struct file *f, struct fbuf *buf, uint8_t *data,
                            uint64_t first, uint64_t end, bool was_read)
{
    struct fbuf *own = NULL;
    struct frun *run;

    if ((end - first) * f->bs * 2 < buf->bytes) {
        /* Little in a large buffer: only the last block, which an appender needs again,
         * is copied. */
        own = fbuf_new(f->pool, f->bs);
        if (own == NULL)
            return;
        memcpy(own->data, data + (end - 1 - first) * f->bs, f->bs);
        data = own->data;
        first = end - 1;
    }
    run = frun_new(f);
    if (run == NULL) {
        fbuf_drop(own);
        return;
    }
    run->buf = own != NULL ? own : fbuf_share(buf);
    run->data = data;
    run->first = first;
    run->end = end;
    run->state = FRUN_CLEAN;
    run->was_read = was_read;
    run->born_ns = env_now_ns(f->env);
    frunset_add(&f->clean, run);
    clean_is_used(run);
    f->clean_bytes += frun_bytes(run);
}

void clean_add(struct file *f, struct fbuf *buf, uint64_t first, uint32_t n,
               const uint64_t *stale)
{
    uint64_t end = first + n, from = first;

    /* a reader's own fetch may bring blocks that are here */
    clean_cut_out(f, first, end);
    while (from < end) {
        uint64_t to = from;

        while (to < end && !is_stale(stale, to - first) &&
               frunset_find(&f->dirty, to) == NULL &&
               frunset_find(&f->writing, to) == NULL)
            to++;
        if (to > from)
            clean_add_piece(f, buf, buf->data + (from - first) * f->bs, from, to,
                            stale != NULL);
        from = to + 1;
    }
    clean_shrink(f, f->clean_max);
    pool_make_room(f->pool, 0);
    clean_start_timer(f);
}

/* ---- dirty ---- */

/* Copies bytes [from, to) of a block from the data below a dirty run, if no storage must
 * be asked. */
static bool edge_from_memory(struct frun *run, uint64_t from, uint64_t to)
{
    struct file *f = run->f;
    struct frun *below = frunset_find(&f->writing, block_of(f, from));

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
    uint64_t grid_end = block - block % f->run_blocks + f->run_blocks;
    uint64_t want = end - block_start(f, block), n = 1;

    if (f->write_streak >= RUN_BYTES_LONG)
        want = (uint64_t)f->run_blocks * f->bs;
    else if (f->write_streak >= CODEC_BLOCK_MAX && want < RUN_BYTES_LONG)
        want = RUN_BYTES_LONG;
    while (n * f->bs < want && n < f->run_blocks)
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
    run->id = f->next_id++;
    run->born_ns = env_now_ns(f->env);
    if (!run->head_ok || end < block_start(f, block + 1))
        memset(run->data, 0, f->bs);
    frunset_add(&f->dirty, run);
    f->dirty_bytes += f->bs;
    file_start_write_timer(f);
    *out = run;
    return 0;
}

/* Returns the dirty run that can take bytes from pos on, or NULL. */
static struct frun *dirty_at(struct file *f, uint64_t pos)
{
    uint64_t block = block_of(f, pos);
    struct frun *run = frunset_find(&f->dirty, block);

    if (run != NULL || block == 0 || pos != block_start(f, block))
        return run;
    run = frunset_find(&f->dirty, block - 1);
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
    f->dirty_bytes += (end - run->end) * f->bs;
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
    next = frunset_next(&f->dirty, run->end);
    limit = min_u64(end, block_start(f, min_u64(run->cap_end, next)));
    if (pos > frun_to(run) || limit < frun_from(run))
        frun_complete(run);
    if (pos > frun_to(run) || limit < frun_from(run)) { /* a gap of unknown bytes */
        if (run->failed_clock > op->clock)
            return run->rc;
        fop_wait(op, &f->run_waiters);
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

/* ---- truncate, close ---- */

static void dirty_remove(struct frunset *set, struct frun *run)
{
    assert(run->state != FRUN_FLYING && run->direct == NULL);
    frun_unwant(run);
    frunset_remove(set, run);
    run->f->dirty_bytes -= frun_bytes(run);
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
            f->dirty_bytes -= (run->end - end) * f->bs;
            run->end = end;
            memset(frun_byte(run, size), 0, block_start(f, end) - size);
            run->hi = min_u64(run->hi, size);
            run->tail_ok |= run->hi == size;
        }
    }
}

void frun_cut(struct file *f, uint64_t size)
{
    cut_set(f, &f->dirty, size);
    cut_set(f, &f->writing, size);
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
    forget_beyond(&f->dirty, size);
    forget_beyond(&f->writing, size);
    clean_forget(f, block_of(f, size), UINT64_MAX);
    LIST_FOREACH(node, &f->fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        fetch->limit = min_u64(fetch->limit, size);
    }
}

void frun_drop_unsent(struct file *f)
{
    while (f->dirty.n > 0)
        dirty_remove(&f->dirty, f->dirty.v[0]);
    file_size_recount(f);
}

void frun_drop_dirty(struct file *f)
{
    frun_drop_unsent(f);
    while (f->writing.n > 0)
        dirty_remove(&f->writing, f->writing.v[0]);
    file_size_recount(f);
}
