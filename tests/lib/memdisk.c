/*
 * memdisk.c - a struct disk in memory.
 *
 * In:     disk_submit(). Out: callbacks by env_post(), on a virtual clock.
 * Keeps:  synced data survives a power cut; all other data may be old, new or torn.
 */
#include "tests/lib/memdisk.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"

static struct memdisk *mem_of(struct disk *disk)
{
    return (struct memdisk *)disk;
}

static struct mem_page *page_find(const struct disk_file *f, uint64_t index)
{
    struct mem_page *p = f->buckets[index % MEM_BUCKETS];

    while (p != NULL && p->index != index)
        p = p->next;
    return p;
}

static struct mem_page *page_make(struct disk_file *f, uint64_t index)
{
    struct mem_page *p = page_find(f, index);

    if (p == NULL) {
        p = calloc(1, sizeof(*p));
        assert(p != NULL);
        p->index = index;
        p->next = f->buckets[index % MEM_BUCKETS];
        f->buckets[index % MEM_BUCKETS] = p;
    }
    return p;
}

void memdisk_peek(const struct disk_file *f, uint64_t offset, void *buf, uint64_t len)
{
    uint8_t *out = buf;

    while (len > 0) {
        uint64_t in = offset % MEM_PAGE;
        uint64_t n = MEM_PAGE - in < len ? MEM_PAGE - in : len;
        struct mem_page *p = page_find(f, offset / MEM_PAGE);

        if (p != NULL && p->here)
            memcpy(out, p->now + in, n);
        else
            memset(out, 0, n);
        out += n;
        offset += n;
        len -= n;
    }
}

void memdisk_spoil(struct disk_file *f, uint64_t offset)
{
    page_make(f, offset / MEM_PAGE)->is_bad = true;
}

/* Tells whether the range has a bad page; for a
 * write, one that it does not cover completely. */
static bool has_bad(const struct disk_file *f, uint64_t offset, uint64_t len,
                    bool is_write)
{
    for (uint64_t at = offset / MEM_PAGE * MEM_PAGE; at < offset + len; at += MEM_PAGE) {
        const struct mem_page *p = page_find(f, at / MEM_PAGE);

        if (p != NULL && p->is_bad &&
            !(is_write && at >= offset && at + MEM_PAGE <= offset + len))
            return true;
    }
    return false;
}

/* Writes as many bytes as find space; returns their number. */
static uint64_t write_bytes(struct memdisk *d, struct disk_file *f, uint64_t offset,
                            const uint8_t *in_bytes, uint64_t len)
{
    uint64_t done = 0;

    while (done < len) {
        uint64_t in = (offset + done) % MEM_PAGE;
        uint64_t n = MEM_PAGE - in < len - done ? MEM_PAGE - in : len - done;
        struct mem_page *p = page_make(f, (offset + done) / MEM_PAGE);

        p->is_dirty = true;
        p->is_bad = false;
        if (!p->here) {
            if (p->index >= f->reserved && !p->reserved) {
                if (d->pages_max != 0 && d->n_pages >= d->pages_max)
                    break;
                d->n_pages++;
            }
            memset(p->now, 0, MEM_PAGE);
            p->here = true;
            p->reserved = false;
        }
        memcpy(p->now + in, in_bytes + done, n);
        done += n;
    }
    if (offset + done > f->size && done > 0)
        f->size = offset + done;
    return done;
}

void memdisk_poke(struct memdisk *d, struct disk_file *f, uint64_t offset,
                  const void *buf, uint64_t len)
{
    write_bytes(d, f, offset, buf, len);
    memdisk_settle(d);
}

/* Zeros [from, to) and frees whole pages. */
static void clear_bytes(struct memdisk *d, struct disk_file *f, uint64_t from,
                        uint64_t to)
{
    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        for (struct mem_page *p = f->buckets[b]; p != NULL; p = p->next) {
            uint64_t at = p->index * MEM_PAGE;
            uint64_t lo = at > from ? at : from;
            uint64_t hi = to - at < MEM_PAGE && at < to ? to : at + MEM_PAGE;

            if (p->reserved && at >= from && at + MEM_PAGE <= to) {
                p->reserved = false;
                d->n_pages--;
            }
            if (!p->here || at >= to || at + MEM_PAGE <= from)
                continue;
            p->is_dirty = true;
            memset(p->now + (lo - at), 0, hi - lo);
            if (lo == at && hi == at + MEM_PAGE) {
                p->here = false;
                if (p->index >= f->reserved)
                    d->n_pages--;
            }
        }
    }
}

void memdisk_cut_file(struct disk_file *f, uint64_t size)
{
    struct memdisk none = { .n_pages = UINT64_MAX / 2 };

    clear_bytes(&none, f, size, UINT64_MAX);
    f->size = f->size_durable = size;
}

uint64_t memdisk_allocated(const struct disk_file *f)
{
    uint64_t n = 0;

    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        for (const struct mem_page *p = f->buckets[b]; p != NULL; p = p->next)
            n += p->here || p->reserved;
    }
    return n * MEM_PAGE;
}

struct disk_file *memdisk_find(struct memdisk *d, const char *path)
{
    for (unsigned i = 0; i < d->n_files; i++) {
        if (d->files[i]->linked && strcmp(d->files[i]->path, path) == 0)
            return d->files[i];
    }
    return NULL;
}

struct disk_file *memdisk_by_fd(struct memdisk *d, int fd)
{
    assert(fd >= 0 && (unsigned)fd < d->n_files);
    return d->files[fd];
}

/* ---- requests ---- */

static bool is_out_of_fds(const struct memdisk *d)
{
    return d->fds_max != 0 && d->n_fds >= d->fds_max;
}

static int do_open(struct memdisk *d, struct disk_req *req)
{
    struct disk_file *f = memdisk_find(d, req->path);

    if (is_out_of_fds(d) && d->close_idle != NULL)
        d->close_idle(d->close_idle_arg);
    if (is_out_of_fds(d)) /* before the name is looked up, as in Linux */
        return -EMFILE;
    if (f == NULL && !req->create) {
        req->quarantined = req->to != NULL && memdisk_find(d, req->to) != NULL;
        return -ENOENT;
    }
    if (f == NULL) {
        assert(d->n_files < MEM_FILES_MAX && strlen(req->path) < sizeof(f->path));
        f = calloc(1, sizeof(*f));
        assert(f != NULL);
        snprintf(f->path, sizeof(f->path), "%s", req->path);
        f->linked = true;
        d->files[d->n_files++] = f;
    }
    f->n_open++;
    d->n_fds++;
    req->file = f;
    req->size = f->size;
    return 0;
}

static int do_read(struct disk_req *req)
{
    uint64_t at = req->offset;
    uint64_t left = at < req->file->size ? req->file->size - at : 0;

    req->n_read = 0;
    for (unsigned i = 0; i < req->n_iov && left > 0; i++) {
        uint64_t len = req->iov[i].iov_len < left ? req->iov[i].iov_len : left;

        if (has_bad(req->file, at, len, false))
            return -EIO;
        memdisk_peek(req->file, at, req->iov[i].iov_base, len);
        at += len;
        left -= len;
        req->n_read += len;
    }
    return 0;
}

static int do_write(struct memdisk *d, struct disk_req *req)
{
    uint64_t at = req->offset, sum = 0;

    for (unsigned i = 0; i < req->n_iov; i++)
        sum += req->iov[i].iov_len;
    assert(sum == req->len);
    if (has_bad(req->file, req->offset, sum, true))
        return -EIO;
    for (unsigned i = 0; i < req->n_iov; i++) {
        uint64_t len = req->iov[i].iov_len;

        if (write_bytes(d, req->file, at, req->iov[i].iov_base, len) != len)
            return -ENOSPC;
        at += len;
    }
    return 0;
}

static void sync_file(struct disk_file *f)
{
    f->size_durable = f->size;
    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        for (struct mem_page *p = f->buckets[b]; p != NULL; p = p->next) {
            if (!p->is_dirty)
                continue;
            p->is_dirty = false;
            p->here_durable = p->here;
            memcpy(p->durable, p->now, MEM_PAGE);
        }
    }
}

static int do_next_data(struct disk_req *req)
{
    uint64_t best = UINT64_MAX;

    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        for (struct mem_page *p = req->file->buckets[b]; p != NULL; p = p->next) {
            uint64_t at = p->index * MEM_PAGE;

            if (p->here && at + MEM_PAGE > req->offset && at < req->file->size &&
                at < best)
                best = at;
        }
    }
    if (best == UINT64_MAX || req->offset >= req->file->size)
        return -ENODATA;
    req->next = best > req->offset ? best : req->offset;
    return 0;
}

static int do_remove(struct memdisk *d, struct disk_req *req)
{
    int rc = -ENOENT;

    for (unsigned i = 0; i <= req->n_names; i++) {
        char path[80];
        struct disk_file *f;

        if (req->n_names == 0)
            snprintf(path, sizeof(path), "%s", req->path);
        else if (i == req->n_names)
            snprintf(path, sizeof(path), "%sdamaged", req->path);
        else
            snprintf(path, sizeof(path), "%s%u", req->path, i);
        f = memdisk_find(d, path);
        if (f == NULL)
            continue;
        f->linked = false;
        rc = 0;
    }
    return rc;
}

/* Renames at once. Durability of the new name
 * (DISK_SYNC_NAME in its directory) is not modelled. */
static int do_rename(struct memdisk *d, struct disk_req *req)
{
    struct disk_file *f = memdisk_find(d, req->path), *old = memdisk_find(d, req->to);

    if (f == NULL)
        return -ENOENT;
    if (old != NULL)
        old->linked = false;
    assert(strlen(req->to) < 62);
    memset(f->path, 0, 62);
    memcpy(f->path, req->to, strlen(req->to));
    return 0;
}

static bool is_mapped(const struct disk_file *f, uint64_t index)
{
    const struct mem_page *p = page_find(f, index);

    return index < f->reserved || (p != NULL && (p->here || p->reserved));
}

static int do_mapped(struct disk_req *req)
{
    struct disk_file *f = req->file;
    uint64_t at = req->offset / MEM_PAGE, last = (req->offset + req->len - 1) / MEM_PAGE;

    req->mapped = is_mapped(f, at);
    req->next = req->offset + req->len;
    for (unsigned b = 0; b < MEM_BUCKETS && !req->mapped; b++) {
        for (const struct mem_page *p = f->buckets[b]; p != NULL; p = p->next) {
            if (p->index > at && p->index <= last && is_mapped(f, p->index) &&
                p->index * MEM_PAGE < req->next)
                req->next = p->index * MEM_PAGE;
        }
    }
    for (; req->mapped && at <= last; at++) {
        if (is_mapped(f, at))
            continue;
        req->next = at * MEM_PAGE;
        break;
    }
    return 0;
}

static void note_taken(struct disk_req *req, uint64_t at)
{
    struct disk_range *ranges = req->iov->iov_base, *last = ranges + req->n_read - 1;

    if (req->n_read > 0 && last->to == at)
        last->to = at + MEM_PAGE;
    else if (req->n_read < req->iov->iov_len / sizeof(*ranges))
        ranges[req->n_read++] = (struct disk_range){ at, at + MEM_PAGE };
}

/* Reserves page by page as ext4 does; if space runs out, frees all of them again. */
static int reserve_pages(struct memdisk *d, struct disk_req *req)
{
    struct disk_file *f = req->file;
    int rc = 0;

    req->n_read = 0;
    for (uint64_t at = req->offset; rc == 0 && at < req->offset + req->len;
         at += MEM_PAGE) {
        if (is_mapped(f, at / MEM_PAGE))
            continue;
        if (d->pages_max != 0 && d->n_pages >= d->pages_max) {
            rc = -ENOSPC;
            break;
        }
        page_make(f, at / MEM_PAGE)->reserved = true;
        d->n_pages++;
        note_taken(req, at);
    }
    for (uint64_t i = 0; rc != 0 && i < req->n_read; i++) {
        const struct disk_range *r = (const struct disk_range *)req->iov->iov_base + i;

        clear_bytes(d, f, r->from, r->to);
    }
    if (req->grow && f->size < req->offset + req->len)
        f->size = req->offset + req->len;
    req->n_read *= sizeof(struct disk_range);
    return rc;
}

static void give_back(struct memdisk *d, const struct disk_req *req)
{
    for (uint64_t at = req->offset; at < req->offset + req->len; at += MEM_PAGE) {
        struct mem_page *p = page_find(req->file, at / MEM_PAGE);

        if (p == NULL || !p->reserved)
            continue;
        p->reserved = false;
        d->n_pages--;
    }
}

/* Reserves from the start of a file only, as journal segments ask for it. */
static int reserve(struct memdisk *d, struct disk_file *f, uint64_t len)
{
    uint64_t pages = (len + MEM_PAGE - 1) / MEM_PAGE, need = pages - f->reserved;

    if (pages <= f->reserved)
        return 0;
    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        for (const struct mem_page *p = f->buckets[b]; p != NULL; p = p->next)
            need -= p->here && p->index >= f->reserved && p->index < pages;
    }
    if (d->pages_max != 0 && d->n_pages + need > d->pages_max)
        return -ENOSPC;
    d->n_pages += need;
    f->reserved = pages;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns the lowest non-empty directory >= from; in
 * `from`, only names after `after`. UINT_MAX: none. */
static unsigned list_directory(struct memdisk *d, unsigned from, const char *after,
                               const char **names, unsigned *n)
{
    unsigned best = UINT_MAX;

    *n = 0;
    for (unsigned i = 0; i < d->n_files; i++) {
        unsigned hi, lo, dir;
        const char *name = d->files[i]->path + strlen("objects/xx/yy/");

        if (!d->files[i]->linked ||
            sscanf(d->files[i]->path, "objects/%2x/%2x/", &hi, &lo) != 2)
            continue;
        dir = hi << 8 | lo;
        if (dir < from || dir > best ||
            (dir == from && after != NULL && strcmp(name, after) <= 0))
            continue;
        if (dir < best)
            *n = 0;
        best = dir;
        names[(*n)++] = name;
    }
    return best;
}

static int do_list(struct memdisk *d, struct disk_req *req)
{
    const char *names[MEM_FILES_MAX];
    char *to = req->iov->iov_base;
    size_t left = req->iov->iov_len;
    unsigned n;
    unsigned dir = list_directory(d, (unsigned)req->offset, req->path, names, &n);

    req->more = false;
    if (dir == UINT_MAX)
        return -ENODATA;
    qsort(names, n, sizeof(names[0]), by_name);
    for (unsigned i = 0; i < n && !req->more; i++) {
        size_t len = strlen(names[i]) + 1;

        req->more = len > left;
        if (!req->more) {
            memcpy(to, names[i], len);
            to += len;
            left -= len;
        }
    }
    req->n_read = req->iov->iov_len - left;
    req->directory = dir;
    return 0;
}

static int run(struct memdisk *d, struct disk_req *req)
{
    switch (req->op) {
    case DISK_OPEN:
        return do_open(d, req);
    case DISK_READ:
        return do_read(req);
    case DISK_WRITE:
        return do_write(d, req);
    case DISK_SYNC:
        sync_file(req->file);
        return 0;
    case DISK_SYNC_NAME:
        if (memdisk_find(d, req->path) != NULL) /* NULL: the file was removed */
            memdisk_find(d, req->path)->name_durable = true;
        return 0;
    case DISK_TRUNCATE:
        clear_bytes(d, req->file, req->offset, UINT64_MAX);
        req->file->size = req->offset;
        return 0;
    case DISK_PUNCH:
        clear_bytes(d, req->file, req->offset, req->offset + req->len);
        return 0;
    case DISK_NEXT_DATA:
        return do_next_data(req);
    case DISK_STAT:
        req->size = req->file->size;
        req->allocated = memdisk_allocated(req->file);
        return 0;
    case DISK_ALLOCATE:
        assert(req->len > 0 && req->len < UINT64_C(1) << 62);
        return req->n_iov == 0 ? reserve(d, req->file, req->len) : reserve_pages(d, req);
    case DISK_GIVE_BACK:
        give_back(d, req);
        return 0;
    case DISK_MAPPED:
        return do_mapped(req);
    case DISK_WARM:
        return req->offset + req->len <= req->file->size &&
                       !has_bad(req->file, req->offset, req->len, false)
                   ? 0
                   : -EIO;
    case DISK_REMOVE:
        return do_remove(d, req);
    case DISK_RENAME:
        return do_rename(d, req);
    case DISK_SPACE:
        req->total = d->total == 0 ? UINT64_C(1) << 40 : d->total;
        req->free = d->total == 0 ? UINT64_C(1) << 40 : d->free_reported;
        return 0;
    case DISK_REPLACE: /* the identity file is the only one that is replaced */
        d->identity_len = req->iov->iov_len;
        memcpy(d->identity, req->iov->iov_base, d->identity_len);
        return 0;
    case DISK_LIST:
        return do_list(d, req);
    }
    abort();
}

static void on_done(struct env_task *task)
{
    struct disk_req *req = container_of(task, struct disk_req, task);

    req->done(req, req->rc);
}

static void finish(struct memdisk *d, struct disk_req *req)
{
    req->task = (struct env_task){ .fn = on_done };
    env_post(&d->v->env, &req->task);
}

static bool is_failing(struct memdisk *d, const struct disk_req *req)
{
    const char *path = req->file != NULL ? req->file->path : req->path;

    if (d->fail_path != NULL &&
        (path == NULL || strncmp(path, d->fail_path, strlen(d->fail_path)) != 0))
        return false;
    if (d->fails && (req->op == DISK_READ || req->op == DISK_WRITE))
        return true;
    if (d->fail_at == 0 || (d->fail_op >= 0 && d->fail_op != (int)req->op))
        return false;
    return --d->fail_at == 0;
}

static void mem_submit(struct disk *disk, struct disk_req *req)
{
    struct memdisk *d = mem_of(disk);

    if (d->is_cut || ++d->n_requests == d->cut_at) {
        /* The last write may reach the page cache. The storage's
         * reaction to the errors is irrelevant: its machine is down. */
        if (!d->is_cut && req->op == DISK_WRITE && env_virtual_below(d->v, 2) == 0)
            run(d, req);
        d->is_cut = true;
        req->rc = -EIO;
        finish(d, req);
        return;
    }
    assert((unsigned)req->op < MEM_OPS);
    d->n_of[req->op]++;
    req->rc = is_failing(d, req) ? d->fail_rc : run(d, req);
    if ((d->hold_syncs && req->op == DISK_SYNC) ||
        (d->hold_writes && req->op == DISK_WRITE) ||
        (d->hold_reads && req->op == DISK_READ)) {
        assert(d->n_held < 16);
        d->held[d->n_held++] = req;
        return;
    }
    finish(d, req);
}

void memdisk_release(struct memdisk *d)
{
    unsigned n = d->n_held;

    d->n_held = 0;
    for (unsigned i = 0; i < n; i++)
        finish(d, d->held[i]);
}

static void mem_close(struct disk *disk, struct disk_file *file)
{
    assert(file->n_open > 0);
    file->n_open--;
    mem_of(disk)->n_fds--;
}

/* Returns the index in d->files, kept in the unused
 * end of path; file segments carry it as their fd. */
static int mem_fd(struct disk *disk, const struct disk_file *file)
{
    (void)disk;
    return (int)(uint8_t)file->path[62] | (int)(uint8_t)file->path[63] << 8;
}

static void mem_number(struct memdisk *d)
{
    for (unsigned i = 0; i < d->n_files; i++) {
        d->files[i]->path[62] = (char)(i & 0xff);
        d->files[i]->path[63] = (char)(i >> 8);
    }
}

static void mem_submit_numbered(struct disk *disk, struct disk_req *req)
{
    mem_submit(disk, req);
    if (req->op == DISK_OPEN)
        mem_number(mem_of(disk));
}

static const struct disk_ops mem_ops = {
    .submit = mem_submit_numbered,
    .close = mem_close,
    .fd = mem_fd,
};

void memdisk_init(struct memdisk *d, struct env_virtual *v)
{
    *d = (struct memdisk){ .disk.ops = &mem_ops, .v = v, .fail_op = -1 };
}

static void file_free(struct disk_file *f)
{
    for (unsigned b = 0; b < MEM_BUCKETS; b++) {
        while (f->buckets[b] != NULL) {
            struct mem_page *p = f->buckets[b];

            f->buckets[b] = p->next;
            free(p);
        }
    }
    free(f);
}

void memdisk_free(struct memdisk *d)
{
    for (unsigned i = 0; i < d->n_files; i++)
        file_free(d->files[i]);
    d->n_files = 0;
}

void memdisk_settle(struct memdisk *d)
{
    for (unsigned i = 0; i < d->n_files; i++) {
        sync_file(d->files[i]);
        d->files[i]->name_durable = true;
    }
}

static void page_power_cut(struct memdisk *d, struct mem_page *p)
{
    if (!p->here && !p->here_durable)
        return;
    switch (env_virtual_below(d->v, 4)) {
    case 0: /* written out just before the power cut */
        return;
    case 1: /* torn: some sectors old, some new */
        if (p->here && p->here_durable) {
            for (unsigned s = 0; s < MEM_PAGE; s += 512) {
                if (env_virtual_below(d->v, 2) == 0)
                    memcpy(p->now + s, p->durable + s, 512);
            }
            return;
        }
        break;
    default:
        break;
    }
    p->here = p->here_durable;
    memcpy(p->now, p->durable, MEM_PAGE);
}

void memdisk_power_cut(struct memdisk *d)
{
    for (unsigned i = 0; i < d->n_files; i++) {
        struct disk_file *f = d->files[i];

        if (!f->name_durable && env_virtual_below(d->v, 2) == 0)
            f->linked = false;
        if (env_virtual_below(d->v, 2) == 0)
            f->size = f->size_durable;
        for (unsigned b = 0; b < MEM_BUCKETS; b++) {
            for (struct mem_page *p = f->buckets[b]; p != NULL; p = p->next)
                page_power_cut(d, p);
        }
        if (f->size < UINT64_MAX)
            clear_bytes(d, f, f->size, UINT64_MAX);
    }
    memdisk_settle(d);
    d->is_cut = false;
    d->cut_at = 0;
}
