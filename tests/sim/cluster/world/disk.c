/*
 * disk.c - a struct disk in simulated memory.
 *
 * In:     disk_submit() of a storage's core. Thread: one.
 * Out:    callbacks after a while, in any order, in the process that sent the request.
 * Keeps:  synced data stays; all other data may be old, new, or mixed by sectors.
 */
#include "tests/sim/cluster/world/disk.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"

enum { HEAD_BYTES = 40 };

/* A request in progress. */
struct sim_disk_wait {
    struct sim_disk_wait *prev, *next;
    struct sim_disk *disk;
    struct disk_req *req;
    unsigned life;
    bool ran; /* executed; its answer is on the way */
    struct env_timer timer;
};

/* ---- bytes ---- */

static struct sim_page *page_find(const struct disk_file *f, uint64_t index)
{
    return index < f->n_pages ? f->pages[index] : NULL;
}

/* Saves the stable bytes before a change of the page. */
static void page_touch(struct disk_file *f, struct sim_page *p)
{
    p->given_up = false;
    if (p->dirty)
        return;
    p->dirty = true;
    p->next_dirty = f->dirty;
    f->dirty = p;
    if (p->here) {
        p->stable = malloc(PAGE);
        assert(p->stable != NULL);
        memcpy(p->stable, p->now, PAGE);
    }
}

static struct sim_page *page_make(struct disk_file *f, uint64_t index)
{
    struct sim_page *p = page_find(f, index);

    if (p != NULL)
        return p;
    if (index >= f->n_pages) {
        uint32_t n = f->n_pages == 0 ? 16 : f->n_pages;

        while (n <= index)
            n *= 2;
        f->pages = realloc(f->pages, n * sizeof(f->pages[0]));
        assert(f->pages != NULL);
        memset(f->pages + f->n_pages, 0, (n - f->n_pages) * sizeof(f->pages[0]));
        f->n_pages = n;
    }
    p = calloc(1, sizeof(*p));
    assert(p != NULL);
    p->index = (uint32_t)index;
    f->pages[index] = p;
    return p;
}

static void page_clean(struct sim_page *p)
{
    free(p->stable);
    p->stable = NULL;
    p->stable_ns = world_clock.now_ns;
    p->dirty = p->given_up = false;
    p->next_dirty = NULL;
}

/* Syncs a file. Returns false if a part failed, which the kernel reports once. */
static bool file_sync(struct disk_file *f)
{
    struct sim_page *kept = NULL;
    bool well = !f->failed;

    while (f->dirty != NULL) {
        struct sim_page *p = f->dirty;

        f->dirty = p->next_dirty;
        if (p->worn && p->here && !p->given_up) {
            well = false;
            p->given_up = world_chance(500000); /* the new bytes are still in memory */
            p->bad = !p->given_up;
        }
        if (p->given_up) {
            p->next_dirty = kept;
            kept = p;
        } else {
            page_clean(p);
        }
    }
    f->dirty = kept;
    f->size_stable = f->size;
    f->failed = false;
    return well;
}

/* Fails a sync: the kernel reports it once, and takes some unwritten pages for clean. */
static void file_sync_fails(struct disk_file *f)
{
    for (struct sim_page *p = f->dirty; p != NULL; p = p->next_dirty)
        p->given_up |= world_chance(500000);
}

static bool is_bad(const struct disk_file *f, uint64_t offset, uint64_t len)
{
    for (uint64_t i = offset / PAGE; len > 0 && i <= (offset + len - 1) / PAGE; i++) {
        const struct sim_page *p = page_find(f, i);

        if (p != NULL && p->here && p->bad)
            return true;
    }
    return false;
}

/* Tears a page: sectors that did not reach the platter get their old bytes back. */
static void page_tear(struct sim_disk *d, struct sim_page *p, unsigned keep_ppm)
{
    bool any = false;

    p->bad |= p->worn && p->here;
    if (!p->here) { /* the change made a hole */
        if (p->stable != NULL && !world_chance(keep_ppm)) {
            memcpy(p->now, p->stable, PAGE);
            p->here = true;
            d->n_pages++;
        }
        return;
    }
    for (unsigned s = 0; s < PAGE / SECTOR; s++) {
        if (world_chance(keep_ppm)) {
            any = true;
            continue;
        }
        if (p->stable != NULL)
            memcpy(p->now + s * SECTOR, p->stable + s * SECTOR, SECTOR);
        else
            memset(p->now + s * SECTOR, 0, SECTOR);
    }
    d->n_torn++;
    if (!any && p->stable == NULL) {
        p->here = false;
        d->n_pages--;
    }
}

/* Zeros [from, to); whole pages become holes. */
static void file_clear(struct disk_file *f, uint64_t from, uint64_t to)
{
    for (uint64_t i = from / PAGE; i < f->n_pages && i * PAGE < to; i++) {
        struct sim_page *p = f->pages[i];
        uint64_t lo = i * PAGE > from ? 0 : from - i * PAGE;
        uint64_t hi = to - i * PAGE < PAGE ? to - i * PAGE : PAGE;

        if (p == NULL || !p->here)
            continue;
        page_touch(f, p);
        memset(p->now + lo, 0, hi - lo);
        if (lo == 0 && hi == PAGE) {
            p->here = p->reserved = p->bad = p->worn =
                false; /* the place is free again */
            f->disk->n_pages--;
        }
    }
}

static void file_tear(struct disk_file *f, unsigned keep_ppm)
{
    while (f->dirty != NULL) {
        struct sim_page *p = f->dirty;

        f->dirty = p->next_dirty;
        page_tear(f->disk, p, keep_ppm);
        page_clean(p);
    }
    if (!world_chance(keep_ppm))
        f->size = f->size_stable;
    f->size_stable = f->size;
    file_clear(f, f->size, UINT64_MAX);
    while (f->dirty != NULL) { /* the cut leaves nothing to write */
        struct sim_page *p = f->dirty;

        f->dirty = p->next_dirty;
        page_clean(p);
    }
}

static void file_maybe_free(struct disk_file *f)
{
    if (f->n_open != 0 || f->n_names != 0)
        return;
    for (uint32_t i = 0; i < f->n_pages; i++) {
        if (f->pages[i] == NULL)
            continue;
        f->disk->n_pages -= f->pages[i]->here;
        free(f->pages[i]->stable);
        free(f->pages[i]);
    }
    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        f->disk->files = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    free(f->pages);
    free(f);
}

void sim_disk_peek(const struct disk_file *f, uint64_t offset, void *buf, size_t len)
{
    uint8_t *out = buf;

    while (len > 0) {
        size_t in = offset % PAGE;
        size_t n = PAGE - in < len ? PAGE - in : len;
        const struct sim_page *p = page_find(f, offset / PAGE);

        if (p != NULL && p->here)
            memcpy(out, p->now + in, n);
        else
            memset(out, 0, n);
        out += n;
        offset += n;
        len -= n;
    }
}

/* ---- names ---- */

static struct sim_name *name_find(struct sim_disk *d, const char *path, bool make)
{
    struct sim_name *name;
    uint32_t hash = 2166136261u;

    assert(strlen(path) < PATH_BYTES);
    for (const char *c = path; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    for (name = d->names[hash % NAME_BUCKETS]; name != NULL; name = name->next) {
        if (strcmp(name->path, path) == 0)
            return name;
    }
    if (!make)
        return NULL;
    name = calloc(1, sizeof(*name));
    assert(name != NULL);
    snprintf(name->path, sizeof(name->path), "%s", path);
    name->next = d->names[hash % NAME_BUCKETS];
    d->names[hash % NAME_BUCKETS] = name;
    return name;
}

static void name_point(struct disk_file **at, struct disk_file *f)
{
    struct disk_file *old = *at;

    if (f != NULL)
        f->n_names++;
    *at = f;
    if (old != NULL) {
        old->n_names--;
        file_maybe_free(old);
    }
}

static void change_apply_stable(struct sim_name_change *c)
{
    if (c->to != NULL) {
        name_point(&c->to->stable, c->file);
        if (c->name->stable == c->file)
            name_point(&c->name->stable, NULL);
    } else {
        name_point(&c->name->stable, c->file);
    }
    if (c->file != NULL) {
        c->file->n_names--; /* the reference of the change */
        file_maybe_free(c->file);
    }
}

static void change_drop(struct sim_name_change *c)
{
    if (c->file != NULL) {
        c->file->n_names--;
        file_maybe_free(c->file);
    }
}

static void change_add(struct sim_disk *d, struct sim_name *name, struct sim_name *to,
                       struct disk_file *f)
{
    if (d->n_changes == d->changes_room) {
        d->changes_room = d->changes_room * 2 + 32;
        d->changes = realloc(d->changes, d->changes_room * sizeof(d->changes[0]));
        assert(d->changes != NULL);
    }
    if (f != NULL)
        f->n_names++;
    d->changes[d->n_changes++] =
        (struct sim_name_change){ .name = name, .to = to, .file = f };
}

/* Tells whether `other` is `name` or, with directories, lies in the same directory. */
static bool is_synced_with(const struct sim_disk *d, const struct sim_name *name,
                           const struct sim_name *other)
{
    const char *slash = strrchr(name->path, '/');
    size_t len = slash == NULL ? 0 : (size_t)(slash - name->path) + 1;

    if (name == other || other == NULL || !d->directories)
        return name == other;
    return strncmp(other->path, name->path, len) == 0 &&
           strchr(other->path + len, '/') == NULL;
}

/* Makes the changes of `name`, and older ones that
 * they depend on, stable. NULL: the marked changes. */
static void names_sync(struct sim_disk *d, const struct sim_name *name)
{
    unsigned kept = 0;

    for (unsigned i = d->n_changes; i-- > 0;) {
        struct sim_name_change *c = &d->changes[i];

        if (name != NULL &&
            (is_synced_with(d, name, c->name) || is_synced_with(d, name, c->to)))
            c->synced = true;
        if (!c->synced)
            continue;
        for (unsigned j = 0; c->to != NULL && j < i; j++) {
            struct sim_name_change *b = &d->changes[j];

            if (b->name == c->name || b->to == c->name || b->name == c->to ||
                b->to == c->to)
                b->synced = true;
        }
    }
    for (unsigned i = 0; i < d->n_changes; i++) {
        if (d->changes[i].synced)
            change_apply_stable(&d->changes[i]);
        else
            d->changes[kept++] = d->changes[i];
    }
    d->n_changes = kept;
}

static void names_power_cut(struct sim_disk *d, unsigned keep_ppm)
{
    for (unsigned i = 0; i < d->n_changes; i++) {
        if (world_chance(keep_ppm))
            change_apply_stable(&d->changes[i]);
        else
            change_drop(&d->changes[i]);
    }
    d->n_changes = 0;
    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (struct sim_name *n = d->names[b]; n != NULL; n = n->next)
            name_point(&n->now, n->stable);
    }
}

/* ---- requests ---- */

static int fd_take(struct sim_disk *d, struct disk_file *f)
{
    for (int i = 0; i < DISK_FDS_MAX; i++) {
        if (d->fds[i] == NULL) {
            d->fds[i] = f;
            return i;
        }
    }
    return -EMFILE;
}

static int do_open(struct sim_disk *d, struct disk_req *req)
{
    struct sim_name *name = name_find(d, req->path, req->create);
    struct disk_file *f = name == NULL ? NULL : name->now;

    if (f == NULL && !req->create) {
        name = req->to == NULL ? NULL : name_find(d, req->to, false);
        req->quarantined = name != NULL && name->now != NULL;
        return -ENOENT;
    }
    if (f == NULL) {
        f = calloc(1, sizeof(*f));
        assert(f != NULL);
        f->disk = d;
        f->next = d->files;
        if (f->next != NULL)
            f->next->prev = f;
        d->files = f;
        name_point(&name->now, f);
        change_add(d, name, NULL, f);
    }
    if (f->n_open++ == 0)
        f->fd = fd_take(d, f);
    f->lies = d->lies != NULL && strstr(req->path, d->lies) != NULL;
    req->file = f;
    req->size = f->size;
    return 0;
}

static int do_read(struct disk_req *req)
{
    uint64_t at = req->offset, left;

    left = at < req->file->size ? req->file->size - at : 0;
    req->n_read = 0;
    for (unsigned i = 0; i < req->n_iov && left > 0; i++) {
        uint64_t len = req->iov[i].iov_len < left ? req->iov[i].iov_len : left;

        if (is_bad(req->file, at, len))
            return -EIO;
        sim_disk_peek(req->file, at, req->iov[i].iov_base, len);
        at += len;
        left -= len;
        req->n_read += len;
    }
    return 0;
}

/* Tells whether the write covers the whole page at `at`, in any number of pieces. */
static bool is_whole_page(uint64_t at, uint64_t from, uint64_t to)
{
    return at / PAGE * PAGE >= from && at / PAGE * PAGE + PAGE <= to;
}

/* Writes; max_bytes: the process dies after so many. */
static int do_write(struct sim_disk *d, struct disk_req *req, uint64_t max_bytes)
{
    struct disk_file *f = req->file;
    uint64_t at = req->offset, end = req->offset, n_written = 0;

    for (unsigned i = 0; i < req->n_iov; i++)
        end += req->iov[i].iov_len;
    for (unsigned i = 0; i < req->n_iov; i++) {
        const uint8_t *from = req->iov[i].iov_base;
        uint64_t left = req->iov[i].iov_len;

        while (left > 0 && n_written < max_bytes) {
            uint64_t in = at % PAGE, n = PAGE - in < left ? PAGE - in : left;
            struct sim_page *p;

            if (n > max_bytes - n_written)
                n = max_bytes - n_written;
            if (at + n > FILE_BYTES_MAX)
                return -EFBIG;
            p = page_make(f, at / PAGE);
            if (!p->here && d->n_pages >= d->pages_max)
                return -ENOSPC;
            if (p->here && p->bad && !is_whole_page(at, req->offset, end))
                return -EIO; /* the rest of the page is unreadable */
            p->bad = false;
            page_touch(f, p);
            if (!p->here) {
                memset(p->now, 0, PAGE);
                p->here = true;
                d->n_pages++;
            }
            p->reserved = false;
            memcpy(p->now + in, from, n);
            at += n;
            from += n;
            left -= n;
            n_written += n;
            if (at > f->size)
                f->size = at;
        }
    }
    return 0;
}

static void note_taken(struct disk_req *req, uint64_t at)
{
    struct disk_range *ranges = req->n_iov == 0 ? NULL : req->iov->iov_base;

    if (ranges == NULL)
        return;
    if (req->n_read > 0 && ranges[req->n_read - 1].to == at)
        ranges[req->n_read - 1].to = at + PAGE;
    else if (req->n_read < req->iov->iov_len / sizeof(*ranges))
        ranges[req->n_read++] = (struct disk_range){ at, at + PAGE };
}

static int do_allocate(struct sim_disk *d, struct disk_req *req)
{
    uint64_t need = 0;

    req->n_read = 0;
    if (req->offset + req->len > FILE_BYTES_MAX)
        return -EFBIG;
    for (uint64_t i = req->offset / PAGE; i * PAGE < req->offset + req->len; i++) {
        const struct sim_page *p = page_find(req->file, i);

        need += p == NULL || !p->here;
    }
    if (d->n_pages + need > d->pages_max)
        return -ENOSPC;
    for (uint64_t i = req->offset / PAGE; i * PAGE < req->offset + req->len; i++) {
        struct sim_page *p = page_make(req->file, i);

        if (p->here)
            continue;
        page_touch(req->file, p);
        memset(p->now, 0, PAGE);
        p->here = p->reserved = true;
        d->n_pages++;
        note_taken(req, i * PAGE);
    }
    if (req->n_iov > 0)
        req->n_read *= sizeof(struct disk_range);
    if (req->grow && req->file->size < req->offset + req->len)
        req->file->size = req->offset + req->len;
    return 0;
}

static int do_mapped(struct disk_req *req)
{
    uint64_t end = req->offset + req->len, at = req->offset / PAGE;
    const struct sim_page *p = page_find(req->file, at);

    req->mapped = p != NULL && p->here;
    for (; at * PAGE < end; at++) {
        p = page_find(req->file, at);
        if ((p != NULL && p->here) != req->mapped)
            break;
    }
    req->next = at * PAGE < end ? at * PAGE : end;
    return 0;
}

static void do_give_back(struct disk_req *req)
{
    for (uint64_t at = req->offset; at < req->offset + req->len; at += PAGE) {
        const struct sim_page *p = page_find(req->file, at / PAGE);

        if (p != NULL && p->here && p->reserved)
            file_clear(req->file, at, at + PAGE);
    }
}

static int do_next_data(struct disk_req *req)
{
    const struct disk_file *f = req->file;

    for (uint64_t i = req->offset / PAGE; i < f->n_pages && i * PAGE < f->size; i++) {
        if (f->pages[i] == NULL || !f->pages[i]->here || f->pages[i]->reserved)
            continue;
        req->next = i * PAGE > req->offset ? i * PAGE : req->offset;
        return req->next < f->size ? 0 : -ENODATA;
    }
    return -ENODATA;
}

static int remove_one(struct sim_disk *d, const char *path)
{
    struct sim_name *name = name_find(d, path, false);

    if (name == NULL || name->now == NULL)
        return -ENOENT;
    name_point(&name->now, NULL);
    change_add(d, name, NULL, NULL);
    return 0;
}

static int do_remove(struct sim_disk *d, struct disk_req *req)
{
    char path[PATH_BYTES + 16];
    int rc = -ENOENT;

    if (req->n_names == 0)
        return remove_one(d, req->path);
    for (unsigned i = 0; i <= req->n_names; i++) {
        if (i == req->n_names)
            snprintf(path, sizeof(path), "%sdamaged", req->path);
        else
            snprintf(path, sizeof(path), "%s%u", req->path, i);
        if (remove_one(d, path) == 0)
            rc = 0;
    }
    return rc;
}

static int do_rename(struct sim_disk *d, struct disk_req *req)
{
    struct sim_name *name = name_find(d, req->path, false);
    struct sim_name *to = name_find(d, req->to, true);
    struct disk_file *f = name == NULL ? NULL : name->now;

    if (f == NULL)
        return -ENOENT;
    change_add(d, name, to, f);
    name_point(&to->now, f);
    name_point(&name->now, NULL);
    return 0;
}

static uint64_t file_allocated(const struct disk_file *f)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < f->n_pages; i++)
        n += f->pages[i] != NULL && f->pages[i]->here;
    return n * PAGE;
}

static int do_sync_name(struct sim_disk *d, struct disk_req *req)
{
    struct sim_name *name = name_find(d, req->path, false);

    if (name != NULL)
        names_sync(d, name);
    return 0;
}

static int do_save_identity(struct sim_disk *d, struct disk_req *req)
{
    d->identity_len = 0;
    for (unsigned i = 0; i < req->n_iov; i++) {
        assert(d->identity_len + req->iov[i].iov_len <= sizeof(d->identity));
        memcpy(d->identity + d->identity_len, req->iov[i].iov_base, req->iov[i].iov_len);
        d->identity_len += req->iov[i].iov_len;
    }
    return 0;
}

/* Splits "objects/XX/YY/NAME" into its directory
 * and NAME. Returns NULL for any other path. */
static const char *name_split(const char *path, uint64_t *directory)
{
    unsigned high, low;
    int len = 0;

    if (sscanf(path, "objects/%2x/%2x/%n", &high, &low, &len) != 2 || len == 0)
        return NULL;
    *directory = high << 8 | low;
    return path + len;
}

/* Returns the first name after (directory, after),
 * or NULL. A scan is enough: names are few. */
static const char *name_after(const struct sim_disk *d, uint64_t directory,
                              const char *after, uint64_t *found)
{
    const char *best = NULL;

    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (const struct sim_name *n = d->names[b]; n != NULL; n = n->next) {
            uint64_t at = 0;
            const char *name = n->now == NULL ? NULL : name_split(n->path, &at);

            if (name == NULL || at < directory ||
                (at == directory && after != NULL && strcmp(name, after) <= 0))
                continue;
            if (best != NULL &&
                (at > *found || (at == *found && strcmp(name, best) >= 0)))
                continue;
            best = name;
            *found = at;
        }
    }
    return best;
}

static int do_list(struct sim_disk *d, struct disk_req *req)
{
    uint64_t directory = req->offset, found = 0;
    const char *name = name_after(d, directory, req->path, &found);

    assert(req->n_iov == 1);
    if (name == NULL)
        return -ENODATA;
    req->directory = directory = found;
    req->n_read = 0;
    req->more = false;
    while (name != NULL && found == directory) {
        size_t len = strlen(name) + 1;

        if (req->n_read + len > req->iov->iov_len) {
            req->more = true;
            break;
        }
        memcpy((char *)req->iov->iov_base + req->n_read, name, len);
        req->n_read += len;
        name = name_after(d, directory, name, &found);
    }
    return 0;
}

static int carry_out(struct sim_disk *d, struct disk_req *req)
{
    switch (req->op) {
    case DISK_OPEN:
        return do_open(d, req);
    case DISK_READ:
        return do_read(req);
    case DISK_WRITE:
        return do_write(d, req, UINT64_MAX);
    case DISK_SYNC:
        return req->file->lies || file_sync(req->file) ? 0 : -EIO;
    case DISK_SYNC_NAME:
        return do_sync_name(d, req);
    case DISK_TRUNCATE:
        file_clear(req->file, req->offset, UINT64_MAX);
        req->file->size = req->offset;
        return 0;
    case DISK_ALLOCATE:
        return do_allocate(d, req);
    case DISK_GIVE_BACK:
        do_give_back(req);
        return 0;
    case DISK_MAPPED:
        return do_mapped(req);
    case DISK_PUNCH:
        file_clear(req->file, req->offset, req->offset + req->len);
        return 0;
    case DISK_NEXT_DATA:
        return do_next_data(req);
    case DISK_STAT:
        req->size = req->file->size;
        req->allocated = file_allocated(req->file);
        return 0;
    case DISK_WARM:
        return req->offset + req->len > req->file->size ||
                       is_bad(req->file, req->offset, req->len)
                   ? -EIO
                   : 0;
    case DISK_REMOVE:
        return do_remove(d, req);
    case DISK_RENAME:
        return do_rename(d, req);
    case DISK_SPACE:
        req->total = d->pages_max * PAGE;
        req->free = d->n_pages < d->pages_max ? (d->pages_max - d->n_pages) * PAGE : 0;
        return 0;
    case DISK_REPLACE:
        return do_save_identity(d, req);
    case DISK_LIST:
        return do_list(d, req);
    }
    assert(false);
    return -EIO;
}

static bool may_fail(enum disk_op op)
{
    return op == DISK_READ || op == DISK_WRITE || op == DISK_SYNC || op == DISK_OPEN;
}

static int fails(struct disk_req *req)
{
    if (req->op == DISK_SYNC)
        file_sync_fails(req->file);
    return -EIO;
}

static void wait_unlink(struct sim_disk_wait *w)
{
    if (w->prev != NULL)
        w->prev->next = w->next;
    else
        w->disk->waits = w->next;
    if (w->next != NULL)
        w->next->prev = w->prev;
}

static void on_wait(struct env_timer *timer)
{
    struct sim_disk_wait *w = container_of(timer, struct sim_disk_wait, timer);
    struct sim_disk *d = w->disk;
    struct disk_req *req = w->req;
    struct proc *before;

    if (d->health.hangs && !w->ran) {
        world_timer_start_us(timer, 10000 + world_below(5000));
        return;
    }
    if (!w->ran) {
        w->ran = true;
        req->rc = may_fail(req->op) && world_chance(d->health.error_ppm)
                      ? fails(req)
                      : carry_out(d, req);
        world_trace((uint64_t)req->op << 40 ^ req->offset);
    }
    if (d->proc->hung) {
        world_timer_start_us(timer, 10000);
        return;
    }
    assert(d->proc->alive && d->proc->life == w->life);
    wait_unlink(w);
    free(w);
    before = proc_enter(d->proc);
    req->done(req, req->rc);
    proc_leave(before);
}

static void disk_submit_op(struct disk *disk, struct disk_req *req)
{
    struct sim_disk *d = (struct sim_disk *)disk;
    struct proc *before = proc_enter(&world_clock.world);
    struct sim_disk_wait *w = calloc(1, sizeof(*w));

    assert(w != NULL && before == d->proc);
    d->n_requests++;
    w->disk = d;
    w->req = req;
    w->life = d->proc->life;
    w->next = d->waits;
    if (w->next != NULL)
        w->next->prev = w;
    d->waits = w;
    env_timer_init(&w->timer, on_wait);
    world_timer_start_us(&w->timer, 5 + world_below(d->health.delay_us + 1));
    proc_leave(before);
}

static void file_close(struct disk_file *f)
{
    struct proc *before = proc_enter(&world_clock.world);

    assert(f->n_open > 0);
    if (--f->n_open == 0 && f->fd >= 0)
        f->disk->fds[f->fd] = NULL;
    file_maybe_free(f);
    proc_leave(before);
}

static void disk_close_op(struct disk *disk, struct disk_file *file)
{
    (void)disk;
    file_close(file);
}

static int disk_fd_op(struct disk *disk, const struct disk_file *file)
{
    (void)disk;
    return file->fd;
}

static const struct disk_ops sim_disk_ops = {
    .submit = disk_submit_op,
    .close = disk_close_op,
    .fd = disk_fd_op,
};

/* ---- the world's side ---- */

void sim_disk_init(struct sim_disk *d, struct proc *proc, uint64_t pages_max)
{
    *d = (struct sim_disk){ .disk = { .ops = &sim_disk_ops },
                            .proc = proc,
                            .health = { .delay_us = 300 },
                            .pages_max = pages_max };
}

/* Ends a request whose process died: the kernel may still execute it. */
static void wait_orphaned(struct sim_disk_wait *w)
{
    struct disk_req *req = w->req;
    uint64_t what = world_below(3);

    if (w->ran || what == 0)
        return;
    if (req->op == DISK_OPEN && !req->create)
        return;
    if (req->op == DISK_WRITE)
        do_write(w->disk, req, what == 1 ? world_below(req->len + 1) : UINT64_MAX);
    else
        carry_out(w->disk, req);
}

void sim_disk_proc_died(struct sim_disk *d)
{
    while (d->waits != NULL) {
        struct sim_disk_wait *w = d->waits;

        wait_orphaned(w);
        wait_unlink(w);
        timers_stop(&world_clock.world.timers, &w->timer);
        free(w);
    }
    for (struct disk_file *f = d->files, *next; f != NULL; f = next) {
        next = f->next;
        if (f->n_open != 0) {
            f->n_open = 1;
            file_close(f);
        }
    }
}

void sim_disk_power_cut(struct sim_disk *d)
{
    static const unsigned keeps[] = { 0, 0, 1000000, 500000, 500000, 900000, 100000 };
    unsigned keep_ppm = keeps[world_below(sizeof(keeps) / sizeof(keeps[0]))];

    assert(d->waits == NULL);
    names_power_cut(d, keep_ppm);
    for (struct disk_file *f = d->files; f != NULL; f = f->next)
        file_tear(f, keep_ppm);
}

bool sim_disk_sync_all(struct sim_disk *d)
{
    bool well = true;

    for (struct disk_file *f = d->files; f != NULL; f = f->next) {
        f->failed = !file_sync(f);
        well = well && !f->failed;
    }
    for (unsigned i = 0; i < d->n_changes; i++)
        d->changes[i].synced = true;
    names_sync(d, NULL);
    return well;
}

static void disk_move(struct sim_disk *to, const struct sim_disk *from)
{
    *to = *from;
    for (struct disk_file *f = to->files; f != NULL; f = f->next)
        f->disk = to;
}

void sim_disk_swap(struct sim_disk *d, struct sim_disk *other)
{
    struct sim_disk moved;

    assert(d->waits == NULL && other->waits == NULL);
    disk_move(&moved, d);
    disk_move(d, other);
    disk_move(other, &moved);
}

void sim_disk_wipe(struct sim_disk *d, struct sim_disk *old)
{
    assert(d->waits == NULL);
    if (old != NULL) {
        disk_move(old, d);
        sim_disk_init(d, d->proc, d->pages_max);
        d->directories = old->directories;
        return;
    }
    for (unsigned i = 0; i < d->n_changes; i++)
        change_drop(&d->changes[i]);
    d->n_changes = 0;
    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (struct sim_name *n = d->names[b]; n != NULL; n = n->next) {
            name_point(&n->now, NULL);
            name_point(&n->stable, NULL);
        }
    }
    assert(d->files == NULL && d->n_pages == 0);
    d->identity_len = 0;
}

void sim_disk_read_fd(void *disk, int fd, uint64_t offset, void *buf, size_t len)
{
    struct sim_disk *d = disk;

    assert(fd >= 0 && fd < DISK_FDS_MAX && d->fds[fd] != NULL);
    assert(offset + len <= d->fds[fd]->size);
    sim_disk_peek(d->fds[fd], offset, buf, len);
    if (is_bad(d->fds[fd], offset, len)) /* a real link would break here */
        memset(buf, 0x5a, len);
}

static bool page_says_something(const struct sim_page *p)
{
    static const uint8_t zeros[PAGE];

    return memcmp(p->now, zeros, PAGE) != 0;
}

/* Chooses a random page that is not all zeros and has been stable for so long. */
static struct sim_page *page_pick(struct sim_disk *d, const char *what, uint64_t age_ns)
{
    struct sim_page *at = NULL;
    uint64_t n = 0;

    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (struct sim_name *name = d->names[b]; name != NULL; name = name->next) {
            struct disk_file *f = name->now;

            for (uint32_t i = 0; f != NULL && i < f->n_pages; i++) {
                struct sim_page *p = f->pages[i];

                if (strstr(name->path, what) == NULL || p == NULL || !p->here || p->dirty)
                    continue;
                if (world_clock.now_ns - p->stable_ns < age_ns)
                    continue;
                if (page_says_something(p) && world_below(++n) == 0)
                    at = p;
            }
        }
    }
    return at;
}

static bool rot(struct sim_page *at, uint64_t n_bytes)
{
    uint64_t bit;

    if (at == NULL)
        return false;
    bit = world_below(n_bytes * 8);
    at->now[bit / 8] ^= (uint8_t)(1u << bit % 8);
    return true;
}

bool sim_disk_rot(struct sim_disk *d, const char *what)
{
    return rot(page_pick(d, what, 0), PAGE);
}

bool sim_disk_rot_old(struct sim_disk *d, const char *what, uint64_t age_ns)
{
    return rot(page_pick(d, what, age_ns), PAGE);
}

bool sim_disk_rot_head(struct sim_disk *d, const char *what)
{
    return rot(page_pick(d, what, 0), HEAD_BYTES);
}

bool sim_disk_spoil(struct sim_disk *d, const char *what, bool worn)
{
    struct sim_page *at = page_pick(d, what, 0);

    if (at == NULL)
        return false;
    at->bad = true;
    at->worn = worn;
    return true;
}

void sim_disk_ruin(struct sim_disk *d, const char *what)
{
    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (struct sim_name *name = d->names[b]; name != NULL; name = name->next) {
            struct disk_file *f = name->now;

            for (uint32_t i = 0; f != NULL && i < f->n_pages; i++) {
                struct sim_page *p = f->pages[i];

                if (strstr(name->path, what) != NULL && p != NULL && p->here && !p->dirty)
                    memset(p->now, 0x5a, SECTOR);
            }
        }
    }
}

static void pages_each(struct sim_disk *d, void (*visit)(struct sim_page *p))
{
    for (struct disk_file *f = d->files; f != NULL; f = f->next) {
        for (uint32_t i = 0; i < f->n_pages; i++) {
            if (f->pages[i] != NULL)
                visit(f->pages[i]);
        }
    }
}

static void page_unspoil(struct sim_page *p)
{
    p->bad = false;
}

static void page_unwear(struct sim_page *p)
{
    p->worn = false;
}

void sim_disk_unspoil(struct sim_disk *d)
{
    pages_each(d, page_unspoil);
}

void sim_disk_unwear(struct sim_disk *d)
{
    pages_each(d, page_unwear);
}

void sim_disk_each(struct sim_disk *d,
                   void (*visit)(void *arg, const char *path, struct disk_file *f),
                   void *arg)
{
    for (unsigned b = 0; b < NAME_BUCKETS; b++) {
        for (struct sim_name *n = d->names[b]; n != NULL; n = n->next) {
            if (n->now != NULL)
                visit(arg, n->path, n->now);
        }
    }
}
