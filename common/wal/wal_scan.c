/*
 * wal_scan.c - read the entries of all logs on a disk, for the replay.
 *
 * In:     wal_scan(), before any log is open.
 * Out:    disk requests, one at a time; the entries, loop by loop, in the order of
 *         appending.
 * Keeps:  an unreadable page costs the entries in it, not those behind it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/wal/wal_list.h"

enum {
    READ_BYTES = 1 << 20,
    READ_PAGE = 4096, /* bytes per read after a read error */
    /* limit for all segments; above it the device is failing and may recover */
    BAD_PAGES_MAX = 64,
};

struct wal_scan {
    struct disk *disk;
    unsigned n_loops_max, last_loop;
    bool any_crc;
    wal_entry_cb *cb;
    void (*done)(void *arg, int rc, const struct wal_scan_result *result);
    void *arg;
    struct wal_scan_result result;
    struct wal_list list;
    unsigned index; /* segment in list */
    uint8_t *bytes; /* contents of the segment; owned */
    uint64_t len, at, slow_until;
    unsigned n_bad; /* unreadable pages */
    struct iovec iov;
    struct disk_req dr;
    struct env_task task;
};

static void scan_finish(struct wal_scan *s, int rc)
{
    wal_list_close(&s->list);
    free(s->bytes);
    segments_parsed(&s->result);
    s->done(s->arg, rc, &s->result);
    free(s);
}

static void scan_next_segment(struct wal_scan *s);

static void on_list(struct wal_list *l, int rc)
{
    struct wal_scan *s = container_of(l, struct wal_scan, list);

    if (rc != 0) {
        scan_finish(s, rc);
        return;
    }
    s->index = 0;
    scan_next_segment(s);
}

static void scan_next_loop(struct wal_scan *s)
{
    wal_list_close(&s->list);
    if (s->list.loop == s->last_loop) {
        scan_finish(s, 0);
        return;
    }
    s->list.loop = (s->list.loop + 1) % s->n_loops_max;
    wal_list_start(&s->list);
}

static void scan_parse(struct wal_scan *s)
{
    struct segment_header h = s->list.found[s->index].h;
    int rc;

    assert(s->index < s->list.n && s->bytes != NULL);
    h.any_crc = s->any_crc;
    rc = segment_parse(s->bytes, s->len, &h, s->list.loop, s->cb, s->arg, &s->result);

    free(s->bytes);
    s->bytes = NULL;
    if (rc != 0) {
        scan_finish(s, rc);
        return;
    }
    s->index++;
    scan_next_segment(s);
}

static void on_read(struct disk_req *dr, int rc);

static void scan_read(struct wal_scan *s)
{
    uint64_t n = s->at < s->slow_until ? READ_PAGE : READ_BYTES;

    assert(s->bytes != NULL);
    if (s->at >= s->len) {
        scan_parse(s);
        return;
    }
    if (n > s->len - s->at)
        n = s->len - s->at;
    s->iov = (struct iovec){ .iov_base = s->bytes + s->at, .iov_len = (size_t)n };
    s->dr = (struct disk_req){ .op = DISK_READ,
                               .file = s->list.found[s->index].file,
                               .offset = s->at,
                               .iov = &s->iov,
                               .n_iov = 1,
                               .done = on_read,
                               .arg = s };
    disk_submit(s->disk, &s->dr);
}

static void on_read(struct disk_req *dr, int rc)
{
    struct wal_scan *s = dr->arg;

    assert(dr == &s->dr && s->at <= s->len);
    if (rc == 0 && dr->n_read == 0) { /* the file became shorter */
        scan_parse(s);
        return;
    }
    if (rc == 0) {
        s->n_bad += dr->n_lost;
        s->at += dr->n_read;
    } else if (s->at >= s->slow_until) {
        s->slow_until = s->at + READ_BYTES;
    } else { /* unreadable page: zeros, which hold no frame */
        memset(s->iov.iov_base, 0, s->iov.iov_len);
        s->at += s->iov.iov_len;
        s->n_bad++;
        s->result.n_unreadable++;
    }
    if (s->n_bad > BAD_PAGES_MAX) {
        log_error(
            "journal: more than %d pages of it cannot be read; replace this storage if "
            "that goes on",
            BAD_PAGES_MAX);
        scan_finish(s, -EIO);
        return;
    }
    scan_read(s);
}

static void scan_next_segment(struct wal_scan *s)
{
    const struct wal_found *f;

    assert(s->index <= s->list.n && s->bytes == NULL);
    while (s->index < s->list.n && s->list.found[s->index].rc == -ENODATA)
        s->index++;
    if (s->index == s->list.n) {
        scan_next_loop(s);
        return;
    }
    f = &s->list.found[s->index];
    if (f->rc == -ROZO_EUNKNOWN_FORMAT) {
        scan_finish(s, f->rc);
        return;
    }
    if (f->rc != 0) { /* frames cannot be found without a header */
        s->result.n_damaged++;
        s->result.n_lost++;
        s->index++;
        scan_next_segment(s);
        return;
    }
    s->len = f->size < f->h.bytes ? f->size : f->h.bytes;
    s->at = s->slow_until = 0;
    s->bytes = malloc((size_t)s->len + 1);
    if (s->bytes == NULL) {
        scan_finish(s, -ENOMEM);
        return;
    }
    scan_read(s);
}

static void on_start(struct env_task *task)
{
    struct wal_scan *s = container_of(task, struct wal_scan, task);

    if (s->n_loops_max == 0)
        scan_finish(s, 0);
    else
        wal_list_start(&s->list);
}

static int scan_start(struct env *env, struct disk *disk, unsigned n_loops_max,
                      unsigned last_loop, bool any_crc, wal_entry_cb *cb,
                      void (*done)(void *arg, int rc,
                                   const struct wal_scan_result *result),
                      void *arg)
{
    struct wal_scan *s = calloc(1, sizeof(*s));

    assert(cb != NULL && done != NULL);
    if (s == NULL)
        return -ENOMEM;
    s->disk = disk;
    s->n_loops_max = n_loops_max;
    s->last_loop = last_loop < n_loops_max ? last_loop : n_loops_max - 1;
    s->list.loop = n_loops_max == 0 ? 0 : (s->last_loop + 1) % n_loops_max;
    s->any_crc = any_crc;
    s->cb = cb;
    s->done = done;
    s->arg = arg;
    s->list.disk = disk;
    s->list.done = on_list;
    s->task.fn = on_start;
    env_post(env, &s->task);
    return 0;
}

int wal_scan(struct env *env, struct disk *disk, unsigned n_loops_max, unsigned last_loop,
             wal_entry_cb *cb,
             void (*done)(void *arg, int rc, const struct wal_scan_result *result),
             void *arg)
{
    return scan_start(env, disk, n_loops_max, last_loop, false, cb, done, arg);
}

int wal_scan_any_crc(struct env *env, struct disk *disk, unsigned n_loops_max,
                     unsigned last_loop, wal_entry_cb *cb,
                     void (*done)(void *arg, int rc,
                                  const struct wal_scan_result *result),
                     void *arg)
{
    return scan_start(env, disk, n_loops_max, last_loop, true, cb, done, arg);
}
