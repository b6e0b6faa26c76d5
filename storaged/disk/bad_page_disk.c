/*
 * bad_page_disk.c - a disk above a disk that tolerates pages that cannot be read.
 *
 * In:     disk_submit(). Thread: one.
 * Out:    the disk below.
 * Keeps:  a page is called unreadable only after several tries, and never while the
 *         device as a whole fails; nothing that can be read is lost.
 * Yours:  the numbers in bad_page_disk.h.
 *
 * A request that succeeds costs one look at its result. A failed one goes through SIZE ->
 * PAGE (page by page) -> WRITE (if it is a write) -> the callback.
 */
#include "storaged/disk/bad_page_disk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"

/* A read or write that is done page by page. */
struct page_rescue {
    struct bad_page_disk *d; /* borrowed */
    struct disk_req *req;    /* the caller's */
    enum { RESCUE_SIZE, RESCUE_PAGE, RESCUE_WRITE } state;
    uint64_t size;     /* bytes of the file */
    uint64_t from, to; /* whole pages; a read ends at the end of the file at most */
    uint64_t at;       /* the next page */
    unsigned n_tries;  /* reads of that page, since since_ns */
    uint64_t since_ns;
    bool first_bad, last_bad; /* WRITE: that page could not be read */
    uint8_t *bytes;           /* owned; [from, to) */
    struct iovec iov;
    struct disk_req dr;
};

static struct bad_page_disk *bad_page_disk_of(struct disk *disk)
{
    return (struct bad_page_disk *)disk;
}

static uint64_t page_down(uint64_t offset)
{
    return offset - offset % BAD_PAGE_PAGE;
}

static uint64_t page_up(uint64_t offset)
{
    return page_down(offset + BAD_PAGE_PAGE - 1);
}

static uint64_t iov_len(const struct disk_req *req)
{
    uint64_t len = 0;

    for (unsigned i = 0; i < req->n_iov; i++)
        len += req->iov[i].iov_len;
    return len;
}

/* ---- health of the device ---- */

static void window_turn(struct bad_page_disk *d)
{
    uint64_t now = env_now_ns(d->env), window = s_to_ns(BAD_PAGE_WINDOW_S);

    if (now - d->window_ns < window)
        return;
    d->n_errors[1] = now - d->window_ns < 2 * window ? d->n_errors[0] : 0;
    d->n_well[1] = now - d->window_ns < 2 * window ? d->n_well[0] : 0;
    d->n_errors[0] = d->n_well[0] = 0;
    d->window_ns = now;
}

bool bad_page_disk_is_failing(const struct bad_page_disk *d)
{
    uint64_t age_ns = env_now_ns(d->env) - d->window_ns;

    if (age_ns >= 2 * s_to_ns(BAD_PAGE_WINDOW_S))
        return false;
    return d->n_errors[0] + d->n_errors[1] > BAD_PAGE_ERRORS_MAX &&
           (d->n_errors[0] + d->n_errors[1]) * BAD_PAGE_ERRORS_SHARE >
               d->n_well[0] + d->n_well[1];
}

static void error_note(struct bad_page_disk *d)
{
    bool was_sick;

    window_turn(d);
    was_sick = bad_page_disk_is_failing(d);
    d->n_errors[0]++;
    if (!was_sick && bad_page_disk_is_failing(d))
        log_error(
            "the disk fails: %u errors in %d s; replace this storage if that goes on",
            d->n_errors[0] + d->n_errors[1], 2 * BAD_PAGE_WINDOW_S);
}

static void well_note(struct bad_page_disk *d)
{
    window_turn(d);
    d->n_well[0]++;
}

/* ---- known bad pages ---- */

static struct bad_page *known_find(struct bad_page_disk *d, const struct disk_file *f,
                                   uint64_t index)
{
    for (unsigned i = 0; i < d->n_known; i++) {
        if (d->known[i].file == f && d->known[i].index == index)
            return &d->known[i];
    }
    return NULL;
}

/* True if a known bad page lies in these bytes, whether or not it is time to try it
 * again. */
static bool known_any(const struct bad_page_disk *d, const struct disk_file *f,
                      uint64_t offset, uint64_t len)
{
    for (unsigned i = 0; i < d->n_known; i++) {
        uint64_t at = d->known[i].index * BAD_PAGE_PAGE;

        if (d->known[i].file == f && at < offset + len && at + BAD_PAGE_PAGE > offset)
            return true;
    }
    return false;
}

static void known_add(struct bad_page_disk *d, const struct disk_file *f, uint64_t index)
{
    struct bad_page *p = known_find(d, f, index);

    if (p == NULL && d->n_known == BAD_PAGE_KNOWN_MAX)
        memmove(d->known, d->known + 1, --d->n_known * sizeof(d->known[0]));
    if (p == NULL)
        p = &d->known[d->n_known++];
    *p = (struct bad_page){ .file = f,
                            .index = index,
                            .until_ns = env_now_ns(d->env) + s_to_ns(BAD_PAGE_KNOWN_S) };
}

/* Forgets the pages of [offset, end): they can be read again or are gone. */
static void known_forget(struct bad_page_disk *d, const struct disk_file *f,
                         uint64_t offset, uint64_t end)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < d->n_known; i++) {
        const struct bad_page *p = &d->known[i];
        uint64_t at = p->index * BAD_PAGE_PAGE;

        if (p->file != f || at >= end || at + BAD_PAGE_PAGE <= offset)
            d->known[kept++] = *p;
    }
    d->n_known = kept;
}

/* ---- page by page ---- */

static void rescue_step(struct page_rescue *p);

static void rescue_end(struct page_rescue *p, int rc)
{
    struct disk_req *req = p->req;

    free(p->bytes);
    free(p);
    req->done(req, rc);
}

static void on_rescue(struct disk_req *dr, int rc);

static void rescue_submit(struct page_rescue *p, enum disk_op op, uint64_t offset,
                          void *bytes, uint64_t len)
{
    p->iov = (struct iovec){ .iov_base = bytes, .iov_len = len };
    p->dr = (struct disk_req){ .op = op,
                               .file = p->req->file,
                               .offset = offset,
                               .len = len,
                               .iov = &p->iov,
                               .n_iov = len > 0,
                               .done = on_rescue,
                               .arg = p };
    disk_submit(p->d->below, &p->dr);
}

static void copy_out(struct page_rescue *p)
{
    struct disk_req *req = p->req;
    uint64_t at = req->offset;

    req->n_read = 0;
    for (unsigned i = 0; i < req->n_iov && at < p->to; i++) {
        uint64_t left = p->to - at;
        uint64_t n = req->iov[i].iov_len < left ? req->iov[i].iov_len : left;

        memcpy(req->iov[i].iov_base, p->bytes + (at - p->from), n);
        req->n_read += n;
        at += n;
    }
}

static void copy_in(struct page_rescue *p)
{
    const struct disk_req *req = p->req;
    uint64_t at = req->offset - p->from;

    for (unsigned i = 0; i < req->n_iov; i++) {
        memcpy(p->bytes + at, req->iov[i].iov_base, req->iov[i].iov_len);
        at += req->iov[i].iov_len;
    }
}

/* Writes the request; a page at its end that could not be read is written whole. */
static void write_now(struct page_rescue *p)
{
    const struct disk_req *req = p->req;
    uint64_t from = p->first_bad ? p->from : req->offset;
    uint64_t to = p->last_bad ? p->to : req->offset + iov_len(req);

    copy_in(p);
    p->state = RESCUE_WRITE;
    rescue_submit(p, DISK_WRITE, from, p->bytes + (from - p->from), to - from);
}

/* True if the page must be read. A write needs only the pages at its ends that it
 * covers in part. */
static bool is_needed(const struct page_rescue *p, uint64_t page)
{
    const struct disk_req *req = p->req;

    if (req->op == DISK_READ)
        return true;
    return page < p->size &&
           (page < req->offset || page + BAD_PAGE_PAGE > req->offset + iov_len(req));
}

/* Takes n bytes of a page; the rest, behind the end of the file, becomes zeros. */
static void page_take(struct page_rescue *p, uint64_t n)
{
    memset(p->bytes + (p->at - p->from) + n, 0, BAD_PAGE_PAGE - n);
    p->at += BAD_PAGE_PAGE;
    p->n_tries = 0;
    p->since_ns = env_now_ns(p->d->env);
}

static void page_lost(struct page_rescue *p)
{
    uint64_t left = p->size - p->at;
    uint64_t n = left < BAD_PAGE_PAGE ? left : BAD_PAGE_PAGE;

    p->req->n_unread += p->req->op == DISK_READ;
    p->first_bad |= p->at == p->from;
    p->last_bad |= p->at + BAD_PAGE_PAGE == p->to;
    memset(p->bytes + (p->at - p->from), BAD_PAGE_FILL, n);
    page_take(p, n);
}

/* Reads the next page that is needed. Returns false if there is none. */
static bool page_next(struct page_rescue *p)
{
    for (; p->at < page_up(p->to); p->at += BAD_PAGE_PAGE) {
        struct bad_page *known = known_find(p->d, p->req->file, p->at / BAD_PAGE_PAGE);

        if (!is_needed(p, p->at))
            continue;
        if (known != NULL && p->n_tries == 0 && p->req->op == DISK_READ &&
            known->until_ns > env_now_ns(p->d->env)) {
            page_lost(p);
            p->at -= BAD_PAGE_PAGE; /* the loop adds it again */
            continue;
        }
        rescue_submit(p, DISK_READ, p->at, p->bytes + (p->at - p->from), BAD_PAGE_PAGE);
        return true;
    }
    return false;
}

static void page_read(struct page_rescue *p, int rc)
{
    struct bad_page_disk *d = p->d;

    if (rc == 0) {
        well_note(d);
        known_forget(d, p->req->file, p->at, p->at + BAD_PAGE_PAGE);
        page_take(p, p->dr.n_read);
        return;
    }
    d->n_read_errors++;
    if (++p->n_tries < BAD_PAGE_TRIES &&
        env_now_ns(d->env) - p->since_ns < ms_to_ns(BAD_PAGE_TRY_MS))
        return;
    error_note(d);
    p->req->n_lost += known_find(d, p->req->file, p->at / BAD_PAGE_PAGE) == NULL;
    known_add(d, p->req->file, p->at / BAD_PAGE_PAGE);
    page_lost(p);
}

static void rescue_sized(struct page_rescue *p)
{
    const struct disk_req *req = p->req;
    uint64_t end = req->offset + iov_len(req);

    p->size = p->dr.size;
    p->from = p->at = page_down(req->offset);
    p->since_ns = env_now_ns(p->d->env);
    p->to = page_up(end);
    if (req->op == DISK_READ) {
        p->to = p->size < end ? p->size : end;
        if (p->to < p->from)
            p->to = p->from;
    }
    p->bytes = malloc(page_up(p->to) - p->from + 1);
    p->state = RESCUE_PAGE;
}

/* Handles the answer of the disk below. Returns false if the request has ended. */
static bool rescue_take(struct page_rescue *p, int rc)
{
    struct bad_page_disk *d = p->d;

    switch (p->state) {
    case RESCUE_SIZE:
        if (rc == 0 && p->req->op != DISK_WARM) {
            rescue_sized(p);
            rc = p->bytes == NULL ? -ENOMEM : 0;
        } else if (rc == 0) {
            rc = -EIO;
        }
        break;
    case RESCUE_PAGE:
        if (rc == 0 || (rc == -EIO && !bad_page_disk_is_failing(d))) {
            page_read(p, rc);
            rc = 0;
        }
        break;
    case RESCUE_WRITE:
        if (rc == 0) {
            known_forget(d, p->req->file, p->dr.offset, p->dr.offset + p->dr.len);
        } else if (rc == -EIO) {
            error_note(d);
            d->n_write_errors++;
        }
        rescue_end(p, rc);
        return false;
    }
    if (rc != 0)
        rescue_end(p, rc);
    return rc == 0;
}

static void on_rescue(struct disk_req *dr, int rc)
{
    struct page_rescue *p = dr->arg;

    if (rescue_take(p, rc))
        rescue_step(p);
}

static void rescue_step(struct page_rescue *p)
{
    if (page_next(p))
        return;
    if (p->req->op == DISK_WRITE) {
        write_now(p);
        return;
    }
    copy_out(p);
    rescue_end(p, 0);
}

/* Begins page by page. Returns false if there is no memory. */
static bool rescue_begin(struct bad_page_disk *d, struct disk_req *req)
{
    struct page_rescue *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return false;
    p->d = d;
    p->req = req;
    rescue_submit(p, DISK_STAT, 0, NULL, 0);
    return true;
}

/* ---- the disk above ---- */

static void on_below(struct disk_req *req, int rc)
{
    struct bad_page_disk *d = req->above;

    req->done = req->above_done;
    if (rc == 0)
        well_note(d);
    /* the disk completed its pages, so they are readable */
    if (rc == 0 && req->op == DISK_WRITE)
        known_forget(d, req->file, req->offset, req->offset + iov_len(req));
    if (rc == -EIO) {
        error_note(d);
        d->n_read_errors += req->op == DISK_READ;
        d->n_write_errors += req->op == DISK_WRITE;
        if (!bad_page_disk_is_failing(d) && (req->op == DISK_READ || req->salvages) &&
            rescue_begin(d, req))
            return;
    }
    req->done(req, rc);
}

static void bad_page_disk_submit(struct disk *disk, struct disk_req *req)
{
    struct bad_page_disk *d = bad_page_disk_of(disk);

    req->n_lost = req->n_unread = 0;
    switch (req->op) {
    case DISK_READ:
    case DISK_WARM:
        if (known_any(d, req->file, req->offset,
                      req->op == DISK_WARM ? req->len : iov_len(req)) &&
            rescue_begin(d, req))
            return;
        break;
    case DISK_TRUNCATE:
        known_forget(d, req->file, req->offset, UINT64_MAX);
        break;
    case DISK_PUNCH:
        known_forget(d, req->file, req->offset, req->offset + req->len);
        break;
    default:
        break;
    }
    if (req->op == DISK_READ || req->op == DISK_WRITE) {
        req->above = d;
        req->above_done = req->done;
        req->done = on_below;
    }
    disk_submit(d->below, req);
}

static void bad_page_disk_close(struct disk *disk, struct disk_file *file)
{
    known_forget(bad_page_disk_of(disk), file, 0, UINT64_MAX);
    disk_close(bad_page_disk_of(disk)->below, file);
}

static int bad_page_disk_fd(struct disk *disk, const struct disk_file *file)
{
    return disk_fd(bad_page_disk_of(disk)->below, file);
}

static const struct disk_ops bad_page_disk_ops = {
    .submit = bad_page_disk_submit,
    .close = bad_page_disk_close,
    .fd = bad_page_disk_fd,
};

void bad_page_disk_init(struct bad_page_disk *d, struct env *env, struct disk *below)
{
    *d = (struct bad_page_disk){ .disk = { .ops = &bad_page_disk_ops },
                                 .below = below,
                                 .env = env,
                                 .window_ns = env_now_ns(env) };
}
