/*
 * kernel_file.c - open files and their pages in the kernel.
 *
 * In:     operations of programs, answers of the mount, invalidations.
 * Out:    behaviour of pages and sizes as kernel.h says.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster/kernel/kernel_int.h"
#include "tests/sim/cluster/world/proc.h"

enum { READ_AHEAD_MAX = 8 }; /* pages */

/* ---- pages ---- */

static uint8_t *page_bytes(struct kpage *p)
{
    if (p->bytes == NULL)
        p->bytes = calloc(1, KPAGE);
    assert(p->bytes != NULL);
    return p->bytes;
}

void kpages_free(struct kinode *i)
{
    for (unsigned n = 0; n < KPAGES_MAX; n++)
        free(i->pages[n].bytes);
}

void kpages_drop(struct kernel *k, struct kinode *i, unsigned from, unsigned end)
{
    for (unsigned n = from; n < end && n < KPAGES_MAX; n++) {
        struct kpage *p = &i->pages[n];

        k->counts.n_invalidated += p->is_here;
        p->drop = p->locked;
        if (!p->locked)
            p->is_here = p->is_piece = false;
    }
}

/* Forgets the ends noted in pages: the file may be longer now. */
static void kpages_forget_ends(struct kinode *i)
{
    for (unsigned n = 0; n < KPAGES_MAX; n++)
        i->pages[n].ends = false;
}

static void page_wait(struct kop *op, struct kinode *i, unsigned page,
                      void (*step)(struct kop *op))
{
    op->page = page;
    op->step = step;
    list_add_tail(&i->page_waiters, &op->wait);
}

static void page_unlock(struct kinode *i, unsigned page, bool is_here)
{
    struct kpage *p = &i->pages[page];

    assert(p->locked);
    p->locked = false;
    p->is_here = is_here && !p->drop;
    p->is_piece &= !is_here && !p->drop;
    p->drop = false;
    LIST_FOREACH_SAFE(n, &i->page_waiters) {
        struct kop *op = container_of(n, struct kop, wait);

        if (op->page != page)
            continue;
        list_remove(&op->wait);
        kop_later(op, op->step);
    }
}

void kinode_set_size(struct kernel *k, struct kinode *i, uint64_t size)
{
    if (i->size == size)
        return;
    i->size = size;
    kpages_drop(k, i, 0, KPAGES_MAX);
}

/* Drops a page after its READ; an earlier waiter may have used and locked it again. */
static void invalidate_next(struct kop *op)
{
    if (!op->inode->pages[op->page].locked)
        kpages_drop(op->k, op->inode, op->page, op->page + 1);
    op->page++;
    kpages_invalidate(op);
}

void kpages_invalidate(struct kop *op)
{
    for (; op->page < op->page_end; op->page++) {
        if (op->inode->pages[op->page].locked) {
            page_wait(op, op->inode, op->page, invalidate_next);
            return;
        }
        kpages_drop(op->k, op->inode, op->page, op->page + 1);
    }
    kop_end(op, 0);
}

static unsigned page_of(uint64_t off)
{
    assert(off <= (uint64_t)KPAGES_MAX * KPAGE);
    return (unsigned)(off / KPAGE);
}
static unsigned page_after(uint64_t end)
{
    return page_of(end + KPAGE - 1);
}

/* ---- open files ---- */

struct kfile *kfile_find(struct kernel *k, uint64_t fh)
{
    LIST_FOREACH(n, &k->files) {
        struct kfile *f = container_of(n, struct kfile, link);

        if (f->fh == fh)
            return f;
    }
    return NULL;
}

void kfile_add(struct kop *op)
{
    struct kfile *f = calloc(1, sizeof(*f));

    assert(f != NULL);
    f->fh = op->below.fh;
    f->inode = op->inode;
    f->inode->n_files++;
    f->is_direct = op->below.is_direct;
    f->is_parallel = op->below.is_parallel;
    f->keeps_names = op->below.keeps_names;
    list_add_tail(&op->k->files, &f->link);
}

void kfile_open(struct kop *op)
{
    kfile_add(op);
    if (!op->below.keeps_cache && !op->k->config.deaf)
        kpages_drop(op->k, op->inode, 0, KPAGES_MAX);
}

static void opened(struct kop *op)
{
    if (op->below.rc == 0)
        kfile_open(op);
    kop_end(op, op->below.rc);
}

static void passed_on(struct kop *op)
{
    kop_end(op, op->below.rc);
}

static void do_release(struct kop *op)
{
    struct kfile *f = kfile_find(op->k, op->r.fh);

    assert(f != NULL);
    if (f->n_ahead != 0) {
        f->release = op;
        return;
    }
    f->inode->n_files--;
    list_remove(&f->link);
    free(f);
    kop_ask(op, &op->r, passed_on);
}

static bool is_direct(const struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);

    return (f != NULL && f->is_direct) || (op->r.flags & O_DIRECT) != 0;
}

/* ---- read ---- */

static void read_on(struct kop *op);

static uint64_t read_size(const struct kop *op)
{
    return op->inode->size > op->size_answered ? op->inode->size : op->size_answered;
}

static void read_later(struct kop *op)
{
    read_on(op);
}

/* Takes the end of the file from a short READ. If Linux ignores it, Linux reads zeros up
 * to its own end, and the model notes the end in the pages (see kernel.h); not if another
 * READ ended the file meanwhile: those two answers of the mount contradict each other. */
static void read_ends(struct kop *op, uint64_t end)
{
    struct kinode *i = op->inode;

    if (op->version >= i->version && !i->unstable) {
        i->version = i->ended = ++op->k->version;
        i->size = end;
        return;
    }
    if (i->version == i->ended && !i->unstable)
        return;
    for (unsigned n = page_of(end); n < page_of(op->pos) + op->n_pages; n++) {
        i->pages[n].ends = true;
        i->pages[n].end = n == page_of(end) ? (unsigned)(end % KPAGE) : 0;
    }
}

static void kpages_take(struct kop *op)
{
    struct kinode *i = op->inode;
    unsigned first = page_of(op->pos);
    uint64_t got = op->below.rc == 0 ? op->below.data_len : 0;
    uint64_t asked = (uint64_t)op->n_pages * KPAGE, end = (uint64_t)first * KPAGE + got;

    for (unsigned n = 0; n < op->n_pages; n++) {
        uint8_t *bytes = page_bytes(&i->pages[first + n]);
        uint64_t at = (uint64_t)n * KPAGE;
        uint64_t len = got <= at ? 0 : got - at < KPAGE ? got - at : KPAGE;

        memcpy(bytes, op->memory + at, len);
        memset(bytes + len, 0, KPAGE - len);
        i->pages[first + n].ends = false;
        page_unlock(i, first + n, op->below.rc == 0);
    }
    free(op->memory);
    op->memory = NULL;
    if (op->below.rc != 0 || got == asked)
        return;
    if (end < i->size)
        read_ends(op, end);
    if (end < op->size_answered)
        op->size_answered = end;
}

static void kpages_read(struct kop *op)
{
    bool was_more = op->n_pages > 1;

    op->is_ahead = false;
    kpages_take(op);
    op->alone = op->below.rc != 0;
    if (op->below.rc != 0 && !was_more)
        kop_end(op, op->below.rc);
    else if (world_chance(500000))
        kop_later(op, read_later); /* after the waiters of the pages */
    else
        kop_wake(op, read_on);
}

static void kpages_read_ahead(struct kop *op)
{
    struct kfile *f = kfile_find(op->k, op->r.fh);

    kpages_take(op);
    if (--f->n_ahead == 0 && f->release != NULL)
        kop_later(f->release, do_release);
    kop_end(op, 0);
}

static unsigned pages_lock(struct kinode *i, unsigned first, unsigned end)
{
    unsigned n = first;

    for (; n < end && !i->pages[n].is_here && !i->pages[n].locked; n++) {
        if (i->pages[n].is_piece && n != first)
            break;
        i->pages[n].locked = true;
    }
    return n - first;
}

static void pages_ask(struct kop *op, void (*step)(struct kop *op))
{
    const struct request read = {
        .kind = REQUEST_READ,
        .ino = op->r.ino,
        .fh = op->r.fh,
        .flags = op->r.flags & ~O_DIRECT,
        .off = op->pos / KPAGE * KPAGE,
        .len = (uint64_t)op->n_pages * KPAGE,
    };

    op->memory = malloc(read.len);
    assert(op->memory != NULL && op->n_pages > 0);
    op->below.data = op->memory;
    kop_ask(op, &read, step);
}

/* Asks in parallel for missing pages after cached ones. */
static void read_ahead(struct kop *op, unsigned first, unsigned end)
{
    struct kinode *i = op->inode;
    struct kfile *f = kfile_find(op->k, op->r.fh);

    for (; f != NULL && first < end; first++) {
        const struct kpage *p = &i->pages[first];
        struct kop *ahead;

        if (p->is_here || p->locked || p->is_piece)
            continue;
        ahead = kop_spawn(op);
        ahead->is_ahead = true;
        ahead->pos = (uint64_t)first * KPAGE;
        ahead->n_pages = pages_lock(i, first, end);
        first += ahead->n_pages;
        f->n_ahead++;
        pages_ask(ahead, kpages_read_ahead);
    }
}

/* Reads the missing pages from op->pos on, and some more. */
static void read_pages(struct kop *op)
{
    struct kinode *i = op->inode;
    unsigned first = page_of(op->pos),
             end = page_after(op->end) + (unsigned)world_below(READ_AHEAD_MAX);

    if (end > page_after(read_size(op)))
        end = page_after(read_size(op));
    op->is_ahead = !i->pages[first].is_piece && !op->alone;
    op->n_pages = pages_lock(i, first, op->is_ahead ? end : first + 1);
    pages_ask(op, kpages_read);
    if (op->is_ahead)
        read_ahead(op, first + op->n_pages, end);
}

static void read_on(struct kop *op)
{
    struct kinode *i = op->inode;

    while (op->pos < op->end && op->pos < read_size(op)) {
        struct kpage *p = &i->pages[page_of(op->pos)];
        uint64_t end = (op->pos / KPAGE + 1) * KPAGE;

        if (p->locked) {
            page_wait(op, i, page_of(op->pos), read_later);
            return;
        }
        if (!p->is_here) {
            read_pages(op);
            return;
        }
        if (end > op->end)
            end = op->end;
        if (end > read_size(op))
            end = read_size(op);
        if (p->ends && end > op->pos / KPAGE * KPAGE + p->end) {
            op->k->counts.n_overtaken++;
            op->end = op->pos / KPAGE * KPAGE + p->end;
            end = op->end > op->pos ? op->end : op->pos;
        }
        op->k->counts.n_pages++;
        memcpy(op->req->data + (op->pos - op->r.off), p->bytes + op->pos % KPAGE,
               end - op->pos);
        op->pos = end;
    }
    op->req->data_len = op->pos - op->r.off;
    kop_end(op, 0);
}

static void read_answered(struct kop *op)
{
    op->req->data_len = op->below.rc == 0 ? op->below.data_len : 0;
    kop_end(op, op->below.rc);
}

/* Reads; the size is as new as it can be. */
static void read_begin(struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);

    if (!is_direct(op)) {
        read_on(op);
    } else if ((f == NULL || !f->is_direct) && op->pos >= read_size(op)) {
        op->req->data_len = 0;
        kop_end(op, 0);
    } else {
        op->below.data = op->req->data;
        kop_ask(op, &op->r, read_answered);
    }
}

/* Takes the size from an answer, even if an invalidation
 * overtook it (Linux does not): see kernel.h. */
static void read_sized(struct kop *op)
{
    if (op->below.rc != 0) {
        kop_end(op, op->below.rc);
        return;
    }
    op->size_answered = (uint64_t)op->below.st.st_size;
    op->k->counts.n_overtaken +=
        op->inode->version > op->version && op->inode->size < op->size_answered;
    kattr_learn(op, op->inode, &op->below.st, op->below.attr_timeout_s);
    read_begin(op);
}

static void do_read(struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);
    const struct request getattr = { .kind = REQUEST_GETATTR,
                                     .ino = op->r.ino,
                                     .fh = op->r.fh };

    op->pos = op->r.off;
    op->end = op->r.off + op->r.len;
    if ((f == NULL || !f->is_direct) && op->end > op->inode->size &&
        !kattr_is_believed(op->inode))
        kop_ask(op, &getattr, read_sized);
    else
        read_begin(op);
}

/* ---- write ---- */

static void write_end(struct kop *op, int rc)
{
    struct kinode *i = op->inode;

    kattr_drop(op->k, i);
    if (rc == 0 && op->pos > i->size)
        i->size = op->pos;
    i->unstable = false;
    kpages_forget_ends(i);
    kop_end(op, rc);
}

static void write_batch(struct kop *op);

static void batch_written(struct kop *op)
{
    struct kinode *i = op->inode;
    int rc = op->below.rc;
    uint64_t end = op->pos + op->n_pages; /* bytes, see write_batch() */

    for (unsigned n = page_of(op->pos); n < page_after(end); n++) {
        if (n == op->page_end) { /* a piece of a page: the rest of it is missing */
            i->pages[n].is_piece = true;
            page_unlock(i, n, false);
        } else if (rc != 0)
            kpages_drop(op->k, i, n, n + 1);
    }
    if (rc == 0)
        op->pos = end;
    if (rc != 0 || op->pos == op->end)
        write_end(op, rc);
    else
        write_batch(op);
}

/* Puts bytes into the pages, then asks the mount.
 * op->n_pages: bytes; op->page_end: the locked page. */
static void write_batch(struct kop *op)
{
    struct kinode *i = op->inode;
    struct request write = op->r;
    const uint8_t *data = op->r.data;
    uint64_t pos = op->pos;

    op->page_end = KPAGES_MAX;
    while (pos < op->end && op->page_end == KPAGES_MAX) {
        unsigned n = page_of(pos);
        uint64_t end =
            (pos / KPAGE + 1) * KPAGE < op->end ? (pos / KPAGE + 1) * KPAGE : op->end;
        struct kpage *p = &i->pages[n];

        if (p->locked && pos > op->pos)
            break;
        if (p->locked) {
            page_wait(op, i, n, write_batch);
            return;
        }
        if (p->is_here || end - pos == KPAGE) {
            memcpy(page_bytes(p) + pos % KPAGE, data + (pos - op->r.off), end - pos);
            p->is_here = true;
            p->is_piece = false;
        } else {
            p->locked = true;
            op->page_end = n;
        }
        pos = end;
    }
    op->n_pages = (unsigned)(pos - op->pos);
    write.off = op->pos;
    write.len = op->n_pages;
    write.data = data + (op->pos - op->r.off);
    kop_ask(op, &write, batch_written);
}

static void direct_written(struct kop *op)
{
    kpages_drop(op->k, op->inode, page_of(op->pos), page_after(op->end));
    if (op->below.rc == 0)
        op->pos = op->end;
    write_end(op, op->below.rc);
}

/* Tells whether the write may run in parallel: it does not
 * make the file longer, and no file of the inode caches pages. */
static bool write_is_parallel(const struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);

    if (f == NULL || !f->is_parallel || (op->r.flags & O_APPEND) != 0 ||
        op->r.off + op->r.len > op->inode->size)
        return false;
    LIST_FOREACH(n, &op->k->files) {
        const struct kfile *other = container_of(n, struct kfile, link);

        if (other->inode == op->inode && !other->is_direct)
            return false;
    }
    return true;
}

static void write_locked(struct kop *op)
{
    struct kinode *i = op->inode;

    if (!op->locks[0].alone && !write_is_parallel(op)) { /* no longer parallel */
        kop_unlock(op);
        kop_lock(op, i, true);
        kop_locked(op, write_locked);
        return;
    }
    op->k->counts.n_beside += i->n_readers > 1;
    if ((op->r.flags & O_APPEND) != 0)
        op->r.off = i->size;
    op->pos = op->r.off;
    op->end = op->r.off + op->r.len;
    i->unstable = op->end > i->size;
    if (is_direct(op)) {
        kpages_drop(op->k, i, page_of(op->pos), page_after(op->end));
        kop_ask(op, &op->r, direct_written);
    } else {
        write_batch(op);
    }
}

/* ---- truncate, fallocate ---- */

static void truncated(struct kop *op)
{
    struct kinode *i = op->inode;

    i->unstable = false;
    kpages_forget_ends(i);
    if (op->below.rc == 0)
        kattr_set(op->k, i, &op->below.st, op->below.attr_timeout_s);
    else if (op->below.rc == -EINTR)
        i->invalid = true;
    kop_end(op, op->below.rc);
}

static void truncate_locked(struct kop *op)
{
    op->inode->unstable = true;
    kop_ask(op, &op->r, truncated);
}

/* Drops the pages inside; zeros the parts of the pages at the ends. */
static void kpages_punch(struct kop *op, uint64_t off, uint64_t end)
{
    for (unsigned n = page_of(off); n < page_after(end); n++) {
        uint64_t at = (uint64_t)n * KPAGE, from = off > at ? off - at : 0;
        uint64_t to = end - at < KPAGE ? end - at : KPAGE;

        if (to - from == KPAGE)
            kpages_drop(op->k, op->inode, n, n + 1);
        else if (op->inode->pages[n].is_here)
            memset(op->inode->pages[n].bytes + from, 0, to - from);
    }
}

static void allocated(struct kop *op)
{
    struct kinode *i = op->inode;
    uint64_t end = op->r.off + op->r.len;

    i->unstable = false;
    kpages_forget_ends(i);
    if (op->below.rc == 0) {
        kattr_drop(op->k, i);
        if ((op->r.flags & FALLOC_FL_KEEP_SIZE) == 0 && end > i->size)
            i->size = end;
        if ((op->r.flags & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0)
            kpages_punch(op, op->r.off, end);
    }
    kop_end(op, op->below.rc);
}

static void allocate_locked(struct kop *op)
{
    if ((op->r.flags & FALLOC_FL_KEEP_SIZE) == 0)
        op->inode->unstable = true;
    kop_ask(op, &op->r, allocated);
}

/* ---- all of them ---- */

static void pass_locked(struct kop *op)
{
    kop_ask(op, &op->r, passed_on);
}

/* Waits for writers; a FLUSH itself holds no lock. */
static void flush_locked(struct kop *op)
{
    kop_unlock(op);
    kop_ask(op, &op->r, passed_on);
}

static void alone(struct kop *op, void (*step)(struct kop *op))
{
    kop_lock(op, op->inode, true);
    kop_locked(op, step);
}

void kfile_ask(struct kop *op)
{
    kop_pin(op, op->r.ino);
    switch (op->r.kind) {
    case REQUEST_OPEN:
        kop_ask(op, &op->r, opened);
        break;
    case REQUEST_RELEASE:
    case REQUEST_RELEASEDIR:
        do_release(op);
        break;
    case REQUEST_READ:
        do_read(op);
        break;
    case REQUEST_WRITE:
        kop_lock(op, op->inode, !write_is_parallel(op));
        kop_locked(op, write_locked);
        break;
    case REQUEST_TRUNCATE:
        alone(op, truncate_locked);
        break;
    case REQUEST_FALLOCATE:
        alone(op, allocate_locked);
        break;
    case REQUEST_FLUSH:
        alone(op, flush_locked);
        break;
    case REQUEST_GETXATTR:
    case REQUEST_LISTXATTR:
        kop_ask(op, &op->r, passed_on);
        break;
    default: /* FSYNC, SEEK, changes of xattrs */
        alone(op, pass_locked);
        break;
    }
}
