/*
 * wal_list.c - open the segment files of a loop and read their headers.
 *
 * In:     wal_list_start(), from a scan or from wal_start().
 * Out:    disk requests, one at a time; done().
 */
#include "common/wal/wal_list.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wal_path(char path[WAL_PATH_MAX], unsigned loop, unsigned slot)
{
    snprintf(path, WAL_PATH_MAX, "journal/%u.%u", loop, slot);
}

void wal_list_close(struct wal_list *l)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (l->found[i].file != NULL)
            disk_close(l->disk, l->found[i].file);
    }
    l->n = 0;
}

static int found_compare(const void *a, const void *b)
{
    const struct wal_found *x = a, *y = b;

    if (x->h.number != y->h.number)
        return x->h.number < y->h.number ? -1 : 1;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static void list_finish(struct wal_list *l, int rc)
{
    if (rc != 0)
        wal_list_close(l);
    qsort(l->found, l->n, sizeof(l->found[0]), found_compare);
    l->done(l, rc);
}

static void on_open(struct disk_req *dr, int rc);

static void list_open(struct wal_list *l)
{
    assert(l->slot <= WAL_FILES_MAX && l->n <= l->slot);
    if (l->slot == WAL_FILES_MAX) {
        list_finish(l, 0);
        return;
    }
    wal_path(l->path, l->loop, l->slot);
    l->dr =
        (struct disk_req){ .op = DISK_OPEN, .path = l->path, .done = on_open, .arg = l };
    disk_submit(l->disk, &l->dr);
}

static void on_header(struct disk_req *dr, int rc)
{
    struct wal_list *l = dr->arg;
    struct wal_found *f = &l->found[l->n];
    bool is_here = rc == 0 && dr->n_read == SEGMENT_HEADER_BYTES;

    assert(dr == &l->dr && f->file != NULL);
    if (!l->is_back) {
        if (!is_here)
            memset(l->front, f->size == 0 ? 0 : 0xff, sizeof(l->front));
        if (f->size >= 2 * SEGMENT_PAGE_BYTES) {
            l->is_back = true;
            l->iov.iov_base = l->back;
            l->dr = (struct disk_req){ .op = DISK_READ,
                                       .file = f->file,
                                       .offset = f->size - SEGMENT_PAGE_BYTES,
                                       .iov = &l->iov,
                                       .n_iov = 1,
                                       .done = on_header,
                                       .arg = l };
            disk_submit(l->disk, &l->dr);
            return;
        }
    } else {
        l->has_back = is_here;
    }
    f->rc = segment_header_get(l->front, l->has_back ? l->back : NULL, &f->h);
    l->n++;
    l->slot++;
    list_open(l);
}

static void on_open(struct disk_req *dr, int rc)
{
    struct wal_list *l = dr->arg;

    if (rc == -ENOENT) {
        l->slot++;
        list_open(l);
        return;
    }
    if (rc != 0) {
        list_finish(l, rc);
        return;
    }
    l->found[l->n] =
        (struct wal_found){ .slot = l->slot, .file = dr->file, .size = dr->size };
    l->is_back = l->has_back = false;
    l->iov = (struct iovec){ .iov_base = l->front, .iov_len = sizeof(l->front) };
    l->dr = (struct disk_req){ .op = DISK_READ,
                               .file = dr->file,
                               .iov = &l->iov,
                               .n_iov = 1,
                               .done = on_header,
                               .arg = l };
    disk_submit(l->disk, &l->dr);
}

void wal_list_start(struct wal_list *l)
{
    assert(l->disk != NULL && l->done != NULL);
    l->n = 0;
    l->slot = 0;
    list_open(l);
}
