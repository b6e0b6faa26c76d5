/*
 * file_cache.c - data equal to the storages': clean runs, fetches that bring them, and
 * reading ahead of sequential readers.
 *
 * In:     clean_add() from fetches and finished writes, fetch_start(), reads. Core.
 * Out:    storcli_read(); clean runs; fills of dirty ones.
 * Keeps:  a clean block is never older than what the storages had when it was fetched,
 *         and goes when the block is written.
 * Yours:  which clean data is kept and for how long; which reader counts as sequential,
 *         and how far ahead it is served.
 */
#include "storcli/file/file_cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "storcli/file/file_int.h"

enum {
    AHEAD_BYTES_MIN = 256 << 10,
    /* parallel requests of one reader come in any order */
    STREAM_SLACK_BYTES = 256 << 10,
    AHEAD_FETCHES_MAX = 32,
    STEPS_SURE = 2, /* equal steps in a row, after the first: not by chance */
};

/* Storages that take so long are far away, or busy: more must be on its way. */
static const uint64_t FAR_NS = 8000000;

/* ---- clean ---- */

static void clean_remove(struct frun *run)
{
    struct file *f = run->f;

    frunset_remove(&f->cache.clean, run);
    f->cache.bytes -= frun_bytes(run);
    frun_free(run);
    if (f->cache.clean.n == 0)
        list_remove(&f->cache.pool_link);
}

static void clean_is_used(struct frun *run)
{
    struct file *f = run->f;

    run->state = FRUN_CLEAN;
    list_remove(&run->link);
    list_add_tail(&f->cache.lru, &run->link);
    list_remove(&f->cache.pool_link);
    list_add_tail(&f->pool->cached, &f->cache.pool_link);
}

static bool is_being_read(struct file *f, const struct frun *run)
{
    LIST_FOREACH(node, &f->cache.reads) {
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
    struct frun *run = frunset_find(&f->cache.clean, block);

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
    LIST_FOREACH_SAFE(node, &f->cache.lru) {
        struct frun *run = container_of(node, struct frun, link);

        if (f->cache.bytes <= max_bytes)
            return;
        if (!is_being_read(f, run))
            clean_remove(run);
    }
}

/* Marks a run that a stream has read to its end: it goes when no read needs it; earlier
 * ones go now. Used up runs come first in the list. */
static void clean_is_used_up(struct frun *run)
{
    struct file *f = run->f;

    LIST_FOREACH_SAFE(node, &f->cache.lru) {
        struct frun *before = container_of(node, struct frun, link);

        if (before->state != FRUN_USED_UP)
            break;
        if (before != run && !is_being_read(f, before))
            clean_remove(before);
    }
    run->state = FRUN_USED_UP;
    list_remove(&run->link);
    list_add_after(&f->cache.lru, &run->link);
}

bool pool_make_room(struct file_pool *pool, uint64_t bytes)
{
    LIST_FOREACH_SAFE(node, &pool->cached) {
        if (pool->bufs.lent_bytes + bytes <= pool->max_bytes)
            break;
        clean_shrink(container_of(node, struct file, cache.pool_link), 0);
    }
    return pool->bufs.lent_bytes + bytes <= pool->max_bytes;
}

void clean_drop_all(struct file *f)
{
    clean_forget(f, 0, UINT64_MAX);
}

static void clean_start_timer(struct file *f);

static void on_clean_timer(struct env_timer *timer)
{
    struct file *f = container_of(timer, struct file, cache.timer);

    LIST_FOREACH_SAFE(node, &f->cache.lru) {
        struct frun *run = container_of(node, struct frun, link);

        if (clean_is_old(run) && !is_being_read(f, run))
            clean_remove(run);
    }
    clean_start_timer(f);
}

static void clean_start_timer(struct file *f)
{
    if (f->cache.clean.n == 0 || f->life != FILE_OPEN ||
        env_timer_is_running(&f->cache.timer) ||
        f->config.cache_ms == FILE_CACHE_UNTIL_DROPPED)
        return;
    env_timer_init(&f->cache.timer, on_clean_timer);
    env_timer_start(f->env, &f->cache.timer, f->config.cache_ms + 1);
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
    f->cache.bytes -= frun_bytes(run);
    if (before >= after) {
        run->end = run->first + before;
    } else {
        run->data += (end - run->first) * f->bs;
        run->first = end;
    }
    f->cache.bytes += frun_bytes(run);
}

static void clean_cut_out(struct file *f, uint64_t first, uint64_t end)
{
    for (unsigned i = frunset_index(&f->cache.clean, first);
         i < f->cache.clean.n && f->cache.clean.v[i]->first < end;
         i = frunset_index(&f->cache.clean, first))
        clean_trim(f->cache.clean.v[i], first, end);
}

static void fetches_spoil(struct file *f, uint64_t first, uint64_t end, bool fills_too)
{
    LIST_FOREACH(node, &f->cache.fetches) {
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
    frunset_add(&f->cache.clean, run);
    clean_is_used(run);
    f->cache.bytes += frun_bytes(run);
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
               frunset_find(&f->runs.dirty, to) == NULL &&
               frunset_find(&f->runs.writing, to) == NULL)
            to++;
        if (to > from)
            clean_add_piece(f, buf, buf->data + (from - first) * f->bs, from, to,
                            stale != NULL);
        from = to + 1;
    }
    clean_shrink(f, f->cache.bytes_max);
    pool_make_room(f->pool, 0);
    clean_start_timer(f);
}

/* ---- fetches ---- */

struct fetch *fetch_find(struct file *f, enum fetch_kind kind, uint64_t block)
{
    LIST_FOREACH(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);
        uint64_t i = block - fetch->first;

        if (fetch->kind == kind && block >= fetch->first && i < fetch->n &&
            (fetch->stale[i / 64] >> i % 64 & 1) == 0)
            return fetch;
    }
    return NULL;
}

void fetch_free(struct fetch *fetch)
{
    if (fetch == NULL)
        return;
    assert(list_is_empty(&fetch->waiters.ops));
    fbuf_drop(fetch->buf);
    free(fetch);
}

static void fill_done(struct fetch *fetch, int rc)
{
    struct file *f = fetch->f;
    struct frun *run = frunset_find(&f->runs.dirty, fetch->first);

    if (run != NULL && rc != 0) {
        file_failed(run, rc);
    } else if (run != NULL && (fetch->stale[0] & 1) == 0) {
        if (f->inl.place == PLACE_STORAGES)
            storcli_file_completes(f->sf, fetch->first);
        frun_fill(run, fetch->first, fetch->buf->data);
    }
    waitlist_wake(f, &f->runs.waiters);
}

static void cache_done(struct fetch *fetch, int rc)
{
    struct file *f = fetch->f;

    if (rc == 0) {
        f->cache.fetch_ns =
            (3 * f->cache.fetch_ns + env_now_ns(f->env) - fetch->started_ns) / 4;
        clean_add(f, fetch->buf, fetch->first, fetch->n, fetch->stale);
    }
    LIST_FOREACH(node, &fetch->waiters.ops)
        container_of(node, struct fop, link)->fetch_rc = rc;
    waitlist_wake(f, &fetch->waiters);
}

/* Clears the bytes beyond the valid end: never written, or cut off. */
static void fetch_limit(struct fetch *fetch)
{
    struct file *f = fetch->f;
    uint64_t start = block_start(f, fetch->first);
    uint64_t bytes = (uint64_t)fetch->n * f->bs;
    uint64_t keep = fetch->limit > start ? min_u64(fetch->limit - start, bytes) : 0;

    memset(fetch->buf->data + keep, 0, bytes - keep);
}

void fetch_answered(struct fetch *fetch, int rc)
{
    struct file *f = fetch->f;

    file_wake(f);
    if (rc == -EACCES && !fetch->denied) {
        fetch->denied = fetch->waits = true;
        file_renew(f);
        return;
    }
    if (rc == -ROZO_EMOVED && fetch->n_moved++ < MOVED_TRIES_MAX) {
        fetch->moved = true;
        file_is_refused(f, fetch->n_moved);
        file_reload(f);
        return;
    }
    rc = plain_errno(rc);
    list_remove(&fetch->link);
    f->cache.n_fetches--;
    fetch->rc = rc;
    if (rc == 0)
        fetch_limit(fetch);
    if (fetch->kind == FETCH_OWN) {
        fetch->done(fetch, fetch->arg);
        return;
    }
    if (fetch->kind == FETCH_FILL)
        fill_done(fetch, rc);
    else
        cache_done(fetch, rc);
    fetch_free(fetch);
}

static void on_fetched(void *arg, int rc)
{
    fetch_answered(arg, rc);
}

void fetch_read(struct fetch *fetch)
{
    if (fetch->f->inl.place != PLACE_STORAGES) {
        inline_read(fetch);
        return;
    }
    storcli_read(fetch->f->sf, fetch->first, fetch->n, fetch->buf->data,
                 fetch->user_bytes, on_fetched, fetch);
}

int fetch_start(struct file *f, enum fetch_kind kind, uint64_t first, uint32_t n,
                struct fetch **out)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));

    assert(n > 0 && n <= FETCH_BLOCKS_MAX);
    if (fetch == NULL)
        return -ENOMEM;
    fetch->buf = fbuf_new(f->pool, (size_t)n * f->bs);
    if (fetch->buf == NULL) {
        free(fetch);
        return -ENOMEM;
    }
    fetch->f = f;
    fetch->kind = kind;
    fetch->first = first;
    fetch->n = n;
    fetch->limit = storage_end(f);
    fetch->started_ns = env_now_ns(f->env);
    waitlist_init(&fetch->waiters);
    list_add_tail(&f->cache.fetches, &fetch->link);
    f->cache.n_fetches++;
    fetch_read(fetch);
    *out = fetch;
    return 0;
}

void fetches_renewed(struct file *f, int rc)
{
    LIST_FOREACH_SAFE(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        if (!fetch->waits)
            continue;
        fetch->waits = false;
        if (rc == 0)
            fetch_read(fetch);
        else
            fetch_answered(fetch, -EACCES);
    }
}

void fetches_limit(struct file *f, uint64_t size)
{
    LIST_FOREACH(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        fetch->limit = min_u64(fetch->limit, size);
    }
}

/* ---- ahead ---- */

/* Starts fetches for the missing blocks of [first, end). */
int fetch_missing(struct file *f, uint64_t first, uint64_t end, bool join,
                  struct fetch **first_out)
{
    int rc = 0;

    for (uint64_t b = first; b < end && rc == 0;) {
        uint64_t to = min_u64(end, b - b % f->cache.fetch_blocks + f->cache.fetch_blocks);
        struct fetch *fetch = join ? fetch_find(f, FETCH_CACHE, b) : NULL;

        if (frunset_find(&f->runs.dirty, b) != NULL ||
            frunset_find(&f->runs.writing, b) != NULL ||
            clean_find(f, b, env_now_ns(f->env)) != NULL) {
            b++;
            continue;
        }
        if (fetch == NULL) {
            uint64_t n = 1;

            while (b + n < to && !(join && fetch_find(f, FETCH_CACHE, b + n) != NULL) &&
                   frunset_find(&f->runs.dirty, b + n) == NULL &&
                   frunset_find(&f->runs.writing, b + n) == NULL &&
                   frunset_find(&f->cache.clean, b + n) == NULL)
                n++;
            rc = fetch_start(f, FETCH_CACHE, b, (uint32_t)n, &fetch);
            to = b + n;
        } else {
            to = fetch->first + fetch->n;
        }
        if (rc == 0 && first_out != NULL && *first_out == NULL)
            *first_out = fetch;
        b = to;
    }
    return rc;
}

static struct stream *find_stream(struct file *f, uint64_t offset)
{
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        struct stream *s = &f->cache.streams[i];

        if (s->used_ns != 0 && offset + STREAM_SLACK_BYTES >= s->next &&
            offset <= s->next + STREAM_SLACK_BYTES)
            return s;
    }
    return NULL;
}

static struct stream *oldest_stream(struct file *f)
{
    struct stream *oldest = &f->cache.streams[0];

    for (unsigned i = 1; i < STREAMS_MAX; i++)
        if (f->cache.streams[i].used_ns < oldest->used_ns)
            oldest = &f->cache.streams[i];
    return oldest;
}

static uint64_t ahead_max_now(const struct file *f)
{
    return f->cache.fetch_ns > FAR_NS ? f->config.read_ahead_far_max
                                      : f->config.read_ahead_max;
}

static struct stream *follow_stream(struct file *f, uint64_t offset, uint64_t end)
{
    struct stream *s = find_stream(f, offset);
    uint64_t ahead_max = ahead_max_now(f);

    if (s == NULL) {
        s = oldest_stream(f);
        s->next = end;
        s->ahead = 0;
        s->window = offset == 0 ? min_u64(AHEAD_BYTES_MIN, ahead_max) : 0;
    } else if (end > s->next) {
        s->next = end;
        s->window = min_u64(max_u64(2 * s->window, AHEAD_BYTES_MIN), ahead_max);
    }
    s->used_ns = env_now_ns(f->env);
    return s;
}

static void follow_stepper(struct stepper *t, uint64_t offset, uint64_t len)
{
    int64_t step = (int64_t)(offset - t->at);
    bool same = step == t->step && step != 0 && len == t->len;

    t->n_same = same ? t->n_same + 1 : 0;
    t->n_ahead -= same && t->n_ahead > 0;
    if (!same)
        t->n_ahead = 0;
    t->step = step;
    t->at = offset;
    t->len = len;
}

/* Fetches the next reads of a stepper, without the data between them. */
static void step_ahead(struct file *f, uint64_t limit)
{
    struct stepper *t = &f->cache.stepper;
    uint64_t most = min_u64(ahead_max_now(f) / t->len, AHEAD_FETCHES_MAX / 2);

    if (t->n_same < STEPS_SURE)
        return;
    most = min_u64(most, UINT64_C(1) << min_u64(t->n_same - STEPS_SURE + 1, 8));
    while (t->n_ahead < most && f->cache.n_fetches < AHEAD_FETCHES_MAX) {
        uint64_t from = t->at + (uint64_t)t->step * (t->n_ahead + 1);
        uint64_t end = min_u64(block_past(f, from + t->len), limit);

        if (from > FILE_DATA_END_MAX || block_of(f, from) >= end)
            return; /* before the beginning, or beyond the end */
        if (fetch_missing(f, block_of(f, from), end, true, NULL) != 0)
            return;
        t->n_ahead++;
    }
}

/* Keeps window bytes ahead of the reader, but below `within`, in pieces that are worth a
 * request. */
void cache_read_ahead(struct file *f, uint64_t offset, uint64_t end, uint64_t within)
{
    struct stream *s = follow_stream(f, offset, end);
    uint64_t limit = min_u64(block_past(f, storage_end(f)), block_of(f, within));
    uint64_t target = min_u64(block_past(f, s->next + s->window), limit);

    if (s->window == 0)
        follow_stepper(&f->cache.stepper, offset, end - offset);
    if (f->life != FILE_OPEN || f->queue.exclusive != NULL || !pool_make_room(f->pool, 0))
        return;
    if (s->window == 0) {
        step_ahead(f, limit);
        return;
    }
    s->ahead = max_u64(s->ahead, block_past(f, s->next));
    while (s->ahead < target && f->cache.n_fetches < AHEAD_FETCHES_MAX) {
        uint64_t grid =
            s->ahead - s->ahead % f->cache.fetch_blocks + f->cache.fetch_blocks;
        uint64_t to = min_u64(grid, target);

        if (to != grid && to != limit && (to - s->ahead) * f->bs < s->window / 2)
            return; /* more will come */
        if (fetch_missing(f, s->ahead, to, true, NULL) != 0)
            return;
        s->ahead = to;
    }
}

void cache_used_up(struct frun *run, uint64_t offset, uint64_t end)
{
    struct file *f = run->f;
    const struct stream *s;

    if (end != block_start(f, run->end))
        return;
    s = find_stream(f, offset);
    if (s != NULL && s->window >= f->config.read_ahead_max) {
        clean_is_used_up(run);
        return;
    }
    list_remove(&run->link);
    list_add_after(&f->cache.lru, &run->link);
}

/* ---- begin and end ---- */

void cache_read_begins(struct read_fop *r)
{
    list_add_tail(&r->op.f->cache.reads, &r->active);
}

void cache_read_ends(struct read_fop *r)
{
    list_remove(&r->active);
}

int cache_reserve(struct file *f, unsigned n)
{
    return frunset_reserve(&f->cache.clean, n);
}

void cache_init(struct file *f, uint32_t fetch_blocks)
{
    list_init(&f->cache.lru);
    list_init(&f->cache.pool_link);
    list_init(&f->cache.fetches);
    list_init(&f->cache.reads);
    env_timer_init(&f->cache.timer, on_clean_timer);
    f->cache.fetch_blocks = fetch_blocks;
    f->cache.bytes_max =
        4 * f->config.read_ahead_max; /* not less than twice the far one */
}

void cache_free(struct file *f)
{
    assert(list_is_empty(&f->cache.fetches));
    clean_drop_all(f);
    env_timer_stop(f->env, &f->cache.timer);
    free(f->cache.clean.v);
}
