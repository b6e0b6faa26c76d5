/*
 * file_read.c - reads, from memory and from the storages.
 *
 * In:     file_read(). Core.
 * Out:    pieces of memory to the callback: dirty, writing and clean runs, and zeros for
 *         bytes that were never written. Missing blocks are fetched into clean runs
 *         first.
 * Keeps:  a read sees every write accepted before it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storcli/file/file_int.h"

enum {
    READ_BYTES_MAX = 1 << 20,
    READ_IOV_MAX = 1024, /* two pieces for each of 257 blocks at most, and some air */
    ZERO_BYTES = 64 << 10,
};

static const uint8_t zeros[ZERO_BYTES] __attribute__((aligned(4096)));

/* Answer under construction. */
struct pieces {
    struct iovec iov[READ_IOV_MAX];
    unsigned n;
};

static void add_piece(struct pieces *p, const uint8_t *data, uint64_t len)
{
    struct iovec *last = p->n > 0 ? &p->iov[p->n - 1] : NULL;

    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == data) {
        last->iov_len += len;
        return;
    }
    assert(p->n < READ_IOV_MAX);
    p->iov[p->n++] = (struct iovec){ .iov_base = (void *)data, .iov_len = len };
}

static void add_zeros(struct pieces *p, uint64_t len)
{
    while (len > 0) {
        uint64_t part = min_u64(len, ZERO_BYTES);

        add_piece(p, zeros, part);
        len -= part;
    }
}

static void read_end(struct read_fop *r, int rc, const struct iovec *iov, unsigned n_iov)
{
    file_read_cb *done = r->read_done;
    void *arg = r->op.arg;
    struct fetch *own = r->own;

    fop_leave(&r->op);
    cache_read_ends(r);
    free(r);
    done(arg, rc, iov, n_iov);
    fetch_free(own);
}

/* ---- through the cache ---- */

/* Adds valid bytes from pos on to the answer. 0: they must be fetched (up to
 * *missing_end), or a dirty block must be filled (*fill). */
static uint64_t take_piece(struct read_fop *r, struct pieces *p, uint64_t pos,
                           uint64_t end, uint64_t *missing_end, struct frun **fill)
{
    struct file *f = r->op.f;
    uint64_t block = block_of(f, pos);
    struct frun *run = frunset_find(&f->runs.dirty, block);
    uint64_t dirty_next = frunset_next(&f->runs.dirty, block), to = end;

    if (run != NULL && pos >= frun_from(run) && pos < frun_to(run)) {
        to = min_u64(end, frun_to(run));
        add_piece(p, frun_byte(run, pos), to - pos);
        return to - pos;
    }
    if (run != NULL) {
        *fill = run;
        return 0;
    }
    if (dirty_next != UINT64_MAX)
        to = min_u64(to, block_start(f, dirty_next));
    run = frunset_find(&f->runs.writing, block);
    if (run != NULL) {
        to = min_u64(to, block_start(f, run->end));
        add_piece(p, frun_byte(run, pos), to - pos);
        return to - pos;
    }
    if (frunset_next(&f->runs.writing, block) != UINT64_MAX)
        to = min_u64(to, block_start(f, frunset_next(&f->runs.writing, block)));
    if (pos >= storage_end(f)) {
        add_zeros(p, to - pos);
        return to - pos;
    }
    to = min_u64(to, storage_end(f));
    run = clean_find(f, block, r->op.start_ns);
    if (run != NULL) {
        to = min_u64(to, block_start(f, run->end));
        add_piece(p, frun_byte(run, pos), to - pos);
        cache_used_up(run, r->offset, to);
        return to - pos;
    }
    if (frunset_next(&f->cache.clean, block) != UINT64_MAX &&
        frunset_next(&f->cache.clean, block) > block)
        to = min_u64(to, block_start(f, frunset_next(&f->cache.clean, block)));
    *missing_end = to;
    return 0;
}

/* Walks the range; fetches all that is missing. True: the answer is complete. */
static bool gather(struct read_fop *r, struct pieces *p, uint64_t end, int *rc)
{
    struct file *f = r->op.f;
    struct fetch *wait = NULL;
    struct frun *fill = NULL;
    bool complete = true;

    for (uint64_t pos = r->offset; pos < end && *rc == 0;) {
        uint64_t missing_end = 0;
        struct frun *run = NULL;
        uint64_t n = take_piece(r, p, pos, end, &missing_end, &run);

        if (n == 0 && run != NULL) {
            if (frun_complete(run))
                continue; /* completed from memory */
            if (run->failed_clock > r->op.clock)
                *rc = run->rc;
            complete = false;
            fill = run;
            n = min_u64(end, block_start(f, run->end)) - pos;
        } else if (n == 0) {
            complete = false;
            if (f->queue.exclusive == NULL)
                *rc = fetch_missing(f, block_of(f, pos), block_past(f, missing_end),
                                    !r->exact, &wait);
            n = missing_end - pos;
        }
        pos += n;
    }
    if (complete || *rc != 0)
        return complete;
    if (wait != NULL)
        fop_wait(&r->op, &wait->waiters);
    else if (fill != NULL)
        fop_wait(&r->op, &f->runs.waiters);
    else
        fop_wait(&r->op, &f->queue.exclusive_waiters);
    return false;
}

static void cached_step(struct read_fop *r)
{
    struct pieces p;
    uint64_t end = min_u64(r->end, r->op.f->size.now);
    int rc = 0;

    p.n = 0;
    if (r->op.fetch_rc != 0 && r->exact) {
        read_end(r, r->op.fetch_rc, NULL, 0);
        return;
    }
    if (r->op.fetch_rc != 0) { /* perhaps only blocks outside this read are bad */
        r->op.fetch_rc = 0;
        r->exact = true;
    }
    if (gather(r, &p, end, &rc))
        read_end(r, 0, p.iov, p.n);
    else if (rc != 0)
        read_end(r, rc, NULL, 0);
}

/* ---- direct ---- */

static void on_own(struct fetch *fetch, void *arg)
{
    struct read_fop *r = arg;

    r->own_busy = false;
    r->op.fetch_rc = fetch->rc;
    fop_ready(&r->op);
}

static void direct_answer(struct read_fop *r)
{
    struct file *f = r->op.f;
    uint64_t end = min_u64(r->end, f->size.now), pos = r->offset, had = r->offset;
    struct pieces p;

    p.n = 0;
    if (r->own != NULL && pos < end) {
        had = min_u64(end, block_start(f, r->own->first + r->own->n));
        add_piece(&p, r->own->buf->data + (pos - block_start(f, r->own->first)),
                  had - pos);
    }
    if (had < end)
        add_zeros(&p, end - had);
    read_end(r, 0, p.iov, p.n);
}

/* Reads directly: bytes accepted before are written first, then the storages are
 * asked. */
static void direct_step(struct read_fop *r)
{
    struct file *f = r->op.f;
    uint64_t first = block_of(f, r->offset), end = block_past(f, r->end);
    int rc = r->op.fetch_rc;

    if (r->own_busy)
        return;
    if (rc == 0 && r->own != NULL) {
        direct_answer(r);
        return;
    }
    if (rc == 0 && !r->drained) {
        if (file_is_pending(f, first, end, r->before_id, r->op.clock, &rc)) {
            fop_wait(&r->op, &f->runs.waiters);
            return;
        }
        r->drained = rc == 0;
    }
    if (rc == 0 && f->queue.exclusive != NULL) {
        fop_wait(&r->op, &f->queue.exclusive_waiters);
        return;
    }
    end = min_u64(end, block_past(f, storage_end(f)));
    if (rc == 0 && first >= end) {
        direct_answer(r);
        return;
    }
    if (rc == 0)
        rc = fetch_start(f, FETCH_OWN, first, (uint32_t)(end - first), &r->own);
    if (rc != 0) {
        read_end(r, rc, NULL, 0);
        return;
    }
    r->own->done = on_own;
    r->own->arg = r;
    r->own_busy = true;
}

/* ---- both ---- */

static void read_step(struct fop *op)
{
    struct read_fop *r = container_of(op, struct read_fop, op);
    struct file *f = op->f;
    uint64_t offset = r->offset, end = min_u64(r->end, f->size.now), within = r->within;
    bool begins = false;

    if (!r->begun) {
        r->begun = true;
        r->end = end;
        r->before_id = f->runs.next_id;
        cache_read_begins(r);
        if (r->offset >= r->end) {
            read_end(r, 0, NULL, 0);
            return;
        }
        begins = !r->direct;
    }
    if (r->direct)
        direct_step(r);
    else
        cached_step(r); /* r may be gone now */
    if (begins)
        cache_read_ahead(f, offset, end, within);
}

void file_read(struct file *f, uint64_t offset, size_t len, bool direct,
               file_read_cb *done, void *arg)
{
    file_read_within(f, offset, len, UINT64_MAX, direct, done, arg);
}

void file_read_within(struct file *f, uint64_t offset, size_t len, uint64_t within,
                      bool direct, file_read_cb *done, void *arg)
{
    struct read_fop *r = fop_new(f, sizeof(*r), FOP_READ, read_step, NULL, arg);

    assert(len <= READ_BYTES_MAX);
    r->read_done = done;
    r->offset = offset;
    r->end = offset > UINT64_MAX - len ? offset : offset + len;
    r->within = within;
    r->direct = direct;
    list_init(&r->active);
    fop_queue(&r->op);
}
