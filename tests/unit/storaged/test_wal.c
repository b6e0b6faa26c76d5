/*
 * Goal: the write-ahead log. Method: a model of what was appended, synced and released.
 * After restarts, full disks, damage and a power cut at every request a scan finds all
 * entries that were synced and are wanted, in order and byte for byte, and none that was
 * not appended.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/wal/wal.h"
#include "common/wal/wal_frame.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum {
    ENTRIES_MAX = 256,
    BIG = 900 << 10, /* two fit into a segment */
    SLOTS = 4,
    /* leading bytes of an entry that its frame has twice if the entry is longer */
    HEAD = 8,
};

enum entry_state { NOT_DONE, FAILED, APPENDED, SYNCED, LOST, RELEASED };

struct journal_record {
    struct wal_append a;
    struct bench *b;
    enum entry_state state;
    unsigned n_found, n_heads; /* times found complete; times found with its head only */
    unsigned loop;
    uint8_t *bytes;
    struct iovec iov[2];
};

struct bench {
    struct env_virtual v;
    struct memdisk disk;
    struct wal *wal;
    struct wal_config config;
    struct journal_record entries[ENTRIES_MAX];
    unsigned n;
    unsigned last_done; /* id of the last append that ended: they end in order */
    /* id of the last entry found for each loop: a scan gives them in order */
    unsigned last_found[8];
    struct wal_scan_result seen; /* result of the last scan */
    int scan_rc;
    bool is_scanned, keep;
    struct wal_place places[ENTRIES_MAX]; /* places from the last scan */
};

struct waiter {
    struct wal_wait w;
    bool is_done;
    int rc;
};

/* ---- the bench ---- */

static void bench_init(struct bench *b, uint64_t seed)
{
    memset(b, 0, sizeof(*b));
    env_virtual_init(&b->v, seed);
    memdisk_init(&b->disk, &b->v);
    b->config = (struct wal_config){ .env = &b->v.env,
                                     .disk = &b->disk.disk,
                                     .n_loops = 1,
                                     .n_loops_max = 3,
                                     .segment_bytes = WAL_SEGMENT_MIN,
                                     .slots = SLOTS };
}

static void on_rc(void *arg, int rc)
{
    *(int *)arg = rc;
}

static void on_stopped(void *arg)
{
    *(bool *)arg = true;
}

static int bench_open(struct bench *b)
{
    int rc = 1;

    assert_int_equal(wal_open(&b->config, &b->wal), 0);
    wal_start(b->wal, on_rc, &rc);
    assert_int_equal(rc, 1);
    env_virtual_run_posted(&b->v);
    assert_int_not_equal(rc, 1);
    return rc;
}

static int bench_forget(struct bench *b)
{
    int rc = 1;

    wal_forget_old(b->wal, on_rc, &rc);
    assert_int_equal(rc, 1);
    env_virtual_run_posted(&b->v);
    assert_int_not_equal(rc, 1);
    return rc;
}

static void bench_close(struct bench *b)
{
    bool is_stopped = false;

    if (b->wal == NULL)
        return;
    wal_stop(b->wal, on_stopped, &is_stopped);
    env_virtual_run_posted(&b->v);
    assert_true(is_stopped);
    wal_close(b->wal);
    b->wal = NULL;
}

/* Kills the log without a note that its frames were synced. */
static void bench_kill(struct bench *b)
{
    wal_close(b->wal);
    b->wal = NULL;
}

static void bench_free(struct bench *b)
{
    bench_close(b);
    for (unsigned i = 0; i < b->n; i++)
        free(b->entries[i].bytes);
    memdisk_free(&b->disk);
    env_virtual_close(&b->v);
}

static void entry_fill(uint8_t *bytes, size_t len, uint32_t id)
{
    uint64_t x = (id + 1) * UINT64_C(0x9e3779b97f4a7c15);

    memset(bytes, (int)id, len);
    for (size_t i = 0; i + 8 <= len; i += 64)
        put_le64(bytes + i, x + i);
    put_le32(bytes, id);
}

static void on_appended(struct wal_append *a, int rc)
{
    struct journal_record *e = (struct journal_record *)a;
    unsigned id = (unsigned)(e - e->b->entries);

    assert_int_equal(e->state, NOT_DONE);
    assert_true(rc == 0 || rc == -EIO || rc == -ENOSPC);
    assert_true(e->b->last_done <= id);
    e->b->last_done = id;
    e->state = rc == 0 ? APPENDED : FAILED;
}

/* Appends an entry in two pieces. Returns its index, which is also in its first four
 * bytes. */
static unsigned bench_append(struct bench *b, size_t len)
{
    struct journal_record *e = &b->entries[b->n];

    assert_true(b->n < ENTRIES_MAX && len >= 8);
    e->b = b;
    e->loop = b->config.loop;
    e->bytes = malloc(len);
    assert_non_null(e->bytes);
    entry_fill(e->bytes, len, b->n);
    e->iov[0] = (struct iovec){ .iov_base = e->bytes, .iov_len = len / 3 };
    e->iov[1] =
        (struct iovec){ .iov_base = e->bytes + len / 3, .iov_len = len - len / 3 };
    e->a = (struct wal_append){ .kind = (uint8_t)(1 + b->n % 3),
                                .iov = e->iov,
                                .n_iov = 2,
                                .len = len,
                                .head_len = len / 3 >= HEAD ? HEAD : 0,
                                .done = on_appended };
    wal_append(b->wal, &e->a);
    assert_int_equal(e->state, NOT_DONE);
    return b->n++;
}

static int append_now(struct bench *b, size_t len)
{
    unsigned id = bench_append(b, len);

    env_virtual_run_posted(&b->v);
    assert_int_not_equal(b->entries[id].state, NOT_DONE);
    return b->entries[id].state == APPENDED ? 0 : -1;
}

static void on_wait_done(struct wal_wait *w, int rc)
{
    struct waiter *x = (struct waiter *)w;

    assert_false(x->is_done);
    x->is_done = true;
    x->rc = rc;
}

static int bench_sync(struct bench *b)
{
    struct waiter x = { .w.done = on_wait_done };
    unsigned n = b->n;

    if (!wal_sync(b->wal, &x.w)) {
        assert_false(x.is_done);
        env_virtual_run_posted(&b->v);
        assert_true(x.is_done);
    }
    for (unsigned i = 0; i < n; i++) { /* a later sync says nothing about lost ones */
        if (b->entries[i].state == APPENDED)
            b->entries[i].state = x.rc == 0 ? SYNCED : LOST;
    }
    return x.rc;
}

static void bench_release(struct bench *b, unsigned id)
{
    enum entry_state state = b->entries[id].state;

    if (state == APPENDED || state == SYNCED || state == LOST)
        wal_release(b->wal, &b->entries[id].a.place);
    b->entries[id].state = RELEASED;
}

static int on_found(void *arg, unsigned loop, uint8_t kind, const struct wal_place *place,
                    const uint8_t *data, size_t len)
{
    struct bench *b = arg;
    struct journal_record *e;
    uint32_t id;

    assert_true(len >= 8);
    id = get_le32(data);
    assert_true(id < b->n); /* ids that were never appended are an error */
    e = &b->entries[id];
    assert_int_equal(loop, e->loop);
    assert_int_equal(kind, e->a.kind);
    assert_int_equal(place->len, e->a.len);
    if (place->is_damaged) {
        assert_int_equal(len, e->a.head_len);
        assert_memory_equal(data, e->bytes, len);
        b->places[id] = *place;
        e->n_heads++;
        return 0;
    }
    assert_int_equal(len, e->a.len);
    assert_memory_equal(data, e->bytes, len);
    assert_int_equal(place->len, len);
    assert_true(id + 1 > b->last_found[loop]);
    b->last_found[loop] = id + 1;
    b->places[id] = *place;
    e->n_found++;
    return 0;
}

static void on_scanned(void *arg, int rc, const struct wal_scan_result *result)
{
    struct bench *b = arg;

    b->is_scanned = true;
    b->scan_rc = rc;
    b->seen = *result;
}

static int bench_scan(struct bench *b)
{
    for (unsigned i = 0; i < b->n; i++)
        b->entries[i].n_found = b->entries[i].n_heads = 0;
    memset(b->last_found, 0, sizeof(b->last_found));
    b->is_scanned = false;
    assert_int_equal(wal_scan(&b->v.env, &b->disk.disk, 3, 2, on_found, on_scanned, b),
                     0);
    assert_false(b->is_scanned);
    env_virtual_run_posted(&b->v);
    assert_true(b->is_scanned);
    return b->scan_rc;
}

/* Checks that a scan finds each entry that was synced and not released, once. */
static void bench_check(struct bench *b)
{
    assert_int_equal(bench_scan(b), 0);
    for (unsigned i = 0; i < b->n; i++) {
        assert_true(b->entries[i].n_found <= 1);
        if (b->entries[i].state == SYNCED)
            assert_int_equal(b->entries[i].n_found, 1);
    }
}

static unsigned found(const struct bench *b)
{
    return (unsigned)b->seen.n_entries;
}

static struct disk_file *segment_file(struct bench *b, unsigned slot)
{
    char path[40];

    snprintf(path, sizeof(path), "journal/%u.%u", b->config.loop, slot);
    return memdisk_find(&b->disk, path);
}

/* ---- tests ---- */

static void test_entries_come_back_in_order(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_scan(&b), 0);
    assert_int_equal(found(&b), 0);
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 20; i++)
        bench_append(&b, 8 + i * 4001);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    assert_int_equal(found(&b), 20);
    assert_int_equal(b.seen.n_torn + b.seen.n_damaged, 0);
    for (unsigned i = 0; i < 20; i++) { /* reading one back is a disk read at its place */
        const struct wal_place *p = &b.entries[i].a.place;
        uint8_t got[8];

        memdisk_peek(p->file, p->offset, got, sizeof(got));
        assert_memory_equal(got, b.entries[i].bytes, sizeof(got));
        assert_int_equal(p->offset % 8, 0);
        assert_int_equal(p->offset, b.places[i].offset);
        assert_int_equal(p->segment, b.places[i].segment);
    }
    bench_free(&b);
}

static void test_an_entry_may_be_as_big_as_promised(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    assert_int_equal(append_now(&b, WAL_ENTRY_MAX), 0);
    assert_int_equal(append_now(&b, WAL_ENTRY_MAX), 0);
    assert_int_equal(wal_used_bytes(b.wal), 2 * WAL_SEGMENT_MIN);
    assert_int_equal(wal_max_bytes(b.wal), SLOTS * WAL_SEGMENT_MIN);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    assert_int_equal(found(&b), 2);
    bench_free(&b);
}

static void test_syncs_are_shared(void **state)
{
    struct waiter x[6];
    struct bench b;
    unsigned n;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    memset(x, 0, sizeof(x));
    assert_true(wal_sync(b.wal, &x[0].w)); /* nothing to sync: nothing was appended */
    append_now(&b, 100);
    n = b.disk.n_of[DISK_SYNC];
    b.disk.hold_syncs = true;
    for (unsigned i = 0; i < 6; i++)
        x[i].w.done = on_wait_done;
    assert_false(wal_sync(b.wal, &x[0].w));
    assert_false(wal_sync(b.wal, &x[1].w));
    append_now(&b, 100); /* the sync in progress began before this append */
    for (unsigned i = 2; i < 6; i++)
        assert_false(wal_sync(b.wal, &x[i].w));
    env_virtual_run_posted(&b.v);
    assert_int_equal(b.disk.n_of[DISK_SYNC], n + 1);
    memdisk_release(&b.disk);
    env_virtual_run_posted(&b.v);
    assert_true(x[0].is_done && x[1].is_done && !x[2].is_done && !x[5].is_done);
    assert_int_equal(b.disk.n_of[DISK_SYNC], n + 2);
    b.disk.hold_syncs = false;
    memdisk_release(&b.disk);
    env_virtual_run_posted(&b.v);
    for (unsigned i = 0; i < 6; i++)
        assert_true(x[i].is_done && x[i].rc == 0);
    assert_int_equal(b.disk.n_of[DISK_SYNC], n + 2);
    assert_true(wal_sync(b.wal, &x[0].w));
    bench_free(&b);
}

static void test_a_sync_waits_for_appends_under_way(void **state)
{
    struct waiter x = { .w.done = on_wait_done };
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 50);
    b.disk.hold_writes = true;
    bench_append(&b, 100);
    assert_false(wal_sync(b.wal, &x.w));
    env_virtual_run_posted(&b.v);
    assert_false(x.is_done);
    b.disk.hold_writes = false;
    memdisk_release(&b.disk);
    env_virtual_run_posted(&b.v);
    assert_true(x.is_done && x.rc == 0);
    bench_free(&b);
}

/* A sync does not wait for ever for an append that fails before it is written. */
static void test_a_sync_does_not_wait_for_an_append_that_failed(void **state)
{
    struct waiter x = { .w.done = on_wait_done };
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    b.disk.fail_op = DISK_WRITE; /* the write of the first segment's header fails */
    b.disk.fail_at = 1;
    b.disk.fail_rc = -EIO;
    bench_append(&b, 100);
    assert_false(wal_sync(b.wal, &x.w));
    env_virtual_run_posted(&b.v);
    assert_int_equal(b.entries[0].state, FAILED);
    assert_true(x.is_done && x.rc == 0);
    bench_free(&b);
}

/* An entry may be released after the log has stopped. */
static void test_a_release_after_the_stop(void **state)
{
    bool stopped = false;
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    bench_release(&b, 0);
    wal_stop(b.wal, on_stopped, &stopped);
    env_virtual_run_posted(&b.v);
    assert_true(stopped);
    bench_release(&b, 1); /* the last entry of its segment */
    wal_close(b.wal);
    b.wal = NULL;
    env_virtual_run_posted(&b.v);
    bench_free(&b);
}

static void test_a_failed_sync_is_reported_and_its_segment_left(void **state)
{
    struct bench b;
    uint64_t segment;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 100);
    segment = wal_newest(b.wal);
    assert_int_equal(wal_failures(b.wal), 0);
    b.disk.fail_op = DISK_SYNC;
    b.disk.fail_at = 1;
    b.disk.fail_rc = -EIO;
    assert_int_equal(bench_sync(&b), -EIO);
    assert_int_equal(wal_failures(b.wal), 1);
    append_now(&b, 100); /* never into pages that may not get written */
    assert_true(wal_newest(b.wal) > segment);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    bench_free(&b);
}

static void test_released_segments_are_used_again(void **state)
{
    struct bench b;
    uint64_t pages;

    (void)state;
    bench_init(&b, 1);
    b.config.slots = 2;
    assert_int_equal(bench_open(&b), 0);
    pages = b.disk.n_pages;
    b.disk.pages_max = pages; /* the disk is full: no page more */
    for (unsigned i = 0; i < 60; i++) {
        assert_int_equal(append_now(&b, BIG), 0);
        assert_int_equal(bench_sync(&b), 0);
        if (i >= 1)
            bench_release(&b, i - 1);
        assert_true(wal_oldest_wanted(b.wal) == 0 ||
                    wal_oldest_wanted(b.wal) == b.entries[i].a.place.segment);
    }
    assert_int_equal(b.disk.n_pages, pages);
    assert_int_equal(b.disk.n_files, 2);
    assert_true(b.entries[59].a.place.segment >= 29);
    bench_check(&b);
    assert_true(found(&b) <= 4);
    bench_free(&b);
}

/* Segments of an earlier life are not read before they are written: whole pages are
 * written, so bytes that cannot be read there lose nothing. */
static void test_bytes_of_an_earlier_use_of_a_segment_are_not_read(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.config.slots = 2;
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 60; i++) {
        /* all but the headers, which are zero */
        for (unsigned slot = 0; slot < 2; slot++) {
            struct disk_file *f = segment_file(&b, slot);
            bool is_current = i > 0 && f == b.entries[i - 1].a.place.file;

            for (uint64_t at = MEM_PAGE; !is_current && at + MEM_PAGE < f->size;
                 at += MEM_PAGE)
                memdisk_spoil(f, at);
        }
        assert_int_equal(append_now(&b, WAL_SEGMENT_MIN / 20 - 200 - i), 0);
        bench_release(&b, i);
    }
    assert_int_equal(bench_sync(&b), 0);
    assert_true(b.entries[59].a.place.segment > 2);
    bench_free(&b);
}

static void test_a_full_log_says_so(void **state)
{
    struct bench b;
    unsigned n = 0;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    while (append_now(&b, BIG) == 0)
        n++;
    assert_int_equal(n, 2 * SLOTS);
    assert_int_equal(wal_used_bytes(b.wal), wal_max_bytes(b.wal));
    assert_int_equal(append_now(&b, 100), 0); /* a little room is left */
    assert_int_not_equal(append_now(&b, BIG), 0);
    bench_release(&b, 0);
    assert_int_not_equal(append_now(&b, BIG), 0);
    assert_int_equal(wal_oldest_wanted(b.wal), b.entries[1].a.place.segment);
    bench_release(&b, 1);
    assert_int_equal(append_now(&b, BIG), 0);
    assert_int_equal(wal_oldest(b.wal), b.entries[2].a.place.segment);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    bench_free(&b);
}

/* The segment being written is used again when none of its entries is wanted. */
static void test_a_released_current_segment_is_used_again(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.config.slots = 2;
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    assert_int_not_equal(append_now(&b, BIG), 0);
    bench_release(&b, 2);
    bench_release(&b, 3);
    assert_int_equal(append_now(&b, BIG), 0);
    bench_free(&b);
}

static void test_a_full_disk_gives_two_segments_or_an_error(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.disk.pages_max = WAL_SEGMENT_MIN / MEM_PAGE + 5;
    assert_int_equal(bench_open(&b), -ENOSPC);
    wal_close(b.wal);
    b.disk.pages_max = 2 * WAL_SEGMENT_MIN / MEM_PAGE + 5;
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    assert_int_not_equal(append_now(&b, BIG), 0);
    assert_int_equal(wal_max_bytes(b.wal), 2 * WAL_SEGMENT_MIN);
    assert_int_equal(bench_sync(&b), 0);
    b.disk.pages_max = 0; /* room was made */
    env_virtual_advance_ms(&b.v, 2000);
    assert_int_equal(append_now(&b, BIG), 0);
    assert_int_equal(wal_max_bytes(b.wal), SLOTS * WAL_SEGMENT_MIN);
    bench_check(&b);
    bench_free(&b);
}

/* A try that can allocate only a part of a segment takes space from other users for a
 * moment: it is not repeated before the disk says that there is room. */
static void test_a_full_disk_is_asked_before_the_next_try(void **state)
{
    struct bench b;
    unsigned n;

    (void)state;
    bench_init(&b, 1);
    b.config.reserve_bytes = UINT64_MAX;
    b.disk.total = UINT64_C(1) << 30;
    b.disk.free_reported = b.disk.total / 100 + WAL_SEGMENT_MIN - 1;
    b.disk.pages_max = 2 * WAL_SEGMENT_MIN / MEM_PAGE + 5;
    assert_int_equal(bench_open(&b), 0);
    assert_int_equal(b.disk.n_of[DISK_ALLOCATE], 3);
    b.disk.pages_max = 0; /* there is room, but other users need it */
    n = b.disk.n_of[DISK_SPACE];
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    assert_int_not_equal(append_now(&b, BIG), 0);
    env_virtual_advance_ms(&b.v, 5000);
    assert_true(b.disk.n_of[DISK_SPACE] > n);
    assert_int_equal(b.disk.n_of[DISK_ALLOCATE], 3);
    b.disk.free_reported++;
    env_virtual_advance_ms(&b.v, 2000);
    assert_true(b.disk.n_of[DISK_ALLOCATE] > 3);
    assert_int_equal(append_now(&b, BIG), 0);
    bench_check(&b);
    bench_free(&b);
}

static void test_a_disk_that_cannot_reserve_is_filled(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.disk.fail_op = DISK_ALLOCATE;
    b.disk.fail_at = 1;
    b.disk.fail_rc = -EIO;
    assert_int_equal(bench_open(&b), 0);
    assert_int_equal(memdisk_allocated(segment_file(&b, 0)), WAL_SEGMENT_MIN);
    assert_int_equal(append_now(&b, 100), 0);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    bench_free(&b);
}

static void test_after_a_restart_old_entries_stay_until_forgotten(void **state)
{
    struct bench b;
    uint64_t newest;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 5; i++)
        append_now(&b, BIG);
    assert_int_equal(bench_sync(&b), 0);
    newest = wal_newest(b.wal);
    bench_close(&b);
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 1000);
    assert_true(wal_newest(b.wal) > newest);
    assert_int_equal(bench_sync(&b), 0);
    bench_close(&b); /* before wal_forget_old() */
    bench_check(&b);
    assert_int_equal(found(&b), 6);
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 1000);
    assert_int_equal(bench_sync(&b), 0);
    for (unsigned i = 0; i < 6; i++)
        b.entries[i].state = RELEASED;
    assert_int_equal(bench_forget(&b), 0);
    bench_check(&b);
    assert_int_equal(found(&b), 1);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(append_now(&b, BIG - 1000), i < 8 ? 0 : -1);
    bench_free(&b);
}

static void test_adopted_entries_need_no_space(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.config.slots = 2;
    assert_int_equal(bench_open(&b), 0);
    b.disk.pages_max = b.disk.n_pages;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    assert_int_equal(bench_sync(&b), 0);
    bench_close(&b);
    bench_check(&b);
    assert_int_equal(bench_open(&b), 0);
    assert_int_equal(wal_adopt(b.wal, &b.places[1]), 0);
    b.entries[0].state = b.entries[2].state = b.entries[3].state = RELEASED;
    assert_int_equal(bench_forget(&b), 0);
    assert_int_equal(wal_adopt(b.wal, &b.places[1]), -ENOENT);
    b.entries[1].a.place = b.places[1];
    assert_int_equal(append_now(&b, BIG), 0); /* where the second segment was before */
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    assert_int_equal(found(&b), 3);
    assert_int_equal(wal_oldest_wanted(b.wal), b.places[1].segment);
    bench_release(&b, 1);
    append_now(&b, BIG);
    assert_int_equal(append_now(&b, BIG), 0);
    bench_free(&b);
}

static void test_another_number_of_loops(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    b.config.n_loops = 3;
    for (unsigned loop = 0; loop < 3; loop++) {
        b.config.loop = loop;
        assert_int_equal(bench_open(&b), 0);
        for (unsigned i = 0; i < 3; i++)
            append_now(&b, BIG);
        assert_int_equal(bench_sync(&b), 0);
        bench_close(&b);
    }
    bench_check(&b);
    assert_int_equal(found(&b), 9);
    b.config.n_loops = 1;
    b.config.loop = 0;
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 100);
    assert_int_equal(bench_sync(&b), 0);
    for (unsigned i = 0; i < 9; i++)
        b.entries[i].state = RELEASED;
    assert_int_equal(bench_forget(&b), 0);
    bench_check(&b);
    assert_int_equal(found(&b), 1);
    assert_null(memdisk_find(&b.disk, "journal/1.0"));
    assert_null(memdisk_find(&b.disk, "journal/2.1"));
    bench_free(&b);
}

/* Each write and each sync fails in turn: segments of other loops are removed all the
 * same. */
static void test_segments_of_other_loops_are_removed_despite_errors(void **state)
{
    static const enum disk_op ops[] = { DISK_WRITE, DISK_SYNC };

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned at = 1; at < 16; at++) {
            struct bench b;

            bench_init(&b, 1);
            b.config.n_loops = 2;
            for (unsigned loop = 0; loop < 2; loop++) {
                b.config.loop = loop;
                assert_int_equal(bench_open(&b), 0);
                for (unsigned n = 0; n < 3; n++)
                    append_now(&b, BIG);
                assert_int_equal(bench_sync(&b), 0);
                bench_close(&b);
            }
            b.config.n_loops = 1;
            b.config.loop = 0;
            assert_int_equal(bench_open(&b), 0);
            b.disk.fail_op = (int)ops[i];
            b.disk.fail_at = at;
            b.disk.fail_rc = -EIO;
            bench_forget(&b);
            b.disk.fail_at = 0;
            for (unsigned slot = 0; slot < 4; slot++) {
                char path[32];

                snprintf(path, sizeof(path), "journal/1.%u", slot);
                assert_null(memdisk_find(&b.disk, path));
            }
            bench_free(&b);
        }
    }
}

static void test_another_size_of_segments(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    for (unsigned i = 0; i < 5; i++)
        append_now(&b, BIG);
    assert_int_equal(bench_sync(&b), 0);
    /* larger, then smaller, with fewer slots */
    for (unsigned size = 3; size >= 2; size--) {
        bench_close(&b);
        b.config.segment_bytes = size << 20;
        b.config.slots = 2;
        bench_check(&b);
        assert_int_equal(bench_open(&b), 0);
        append_now(&b, BIG);
        assert_int_equal(bench_sync(&b), 0);
        for (unsigned i = 0; i + 1 < b.n; i++)
            b.entries[i].state = RELEASED;
        assert_int_equal(bench_forget(&b), 0);
        env_virtual_run_posted(&b.v);
        bench_check(&b);
        for (unsigned i = 0; i < WAL_SLOTS_MAX * 2; i++) {
            if (segment_file(&b, i) != NULL)
                assert_int_equal(segment_file(&b, i)->size, b.config.segment_bytes);
        }
        assert_int_equal(wal_used_bytes(b.wal), b.config.segment_bytes);
    }
    bench_free(&b);
}

/* ---- damage ---- */

/* Five entries in the first segment, synced. */
static void bench_five(struct bench *b)
{
    bench_init(b, 1);
    assert_int_equal(bench_open(b), 0);
    for (unsigned i = 0; i < 5; i++)
        append_now(b, 5000);
    assert_int_equal(bench_sync(b), 0);
    bench_kill(b);
    bench_check(b);
}

static void poke_byte(struct bench *b, uint64_t at)
{
    struct disk_file *f = segment_file(b, 0);
    uint8_t byte;

    memdisk_peek(f, at, &byte, 1);
    byte ^= 0x10;
    memdisk_poke(&b->disk, f, at, &byte, 1);
}

static void test_damage_costs_what_it_hits(void **state)
{
    static const struct {
        unsigned entry;
        int at; /* offset in the entry */
        unsigned n_found, n_torn, n_damaged;
    } cases[] = {
        { 4, 4999, 4, 1, 0 },
        { 4, 0, 4, 1, 0 },
        { 4, -1, 4, 1, 0 },
        { 4, -32, 4, 1, 0 },
        { 2, 17, 4, 0, 1 },
        { 2, -56, 4, 0, 1 },
        { 2, -20, 4, 0, 1 },
        { 0, -56, 4, 0, 1 },
        { 0, -16, 4, 0, 1 },
        { 0, 5000, 5, 0, 0 }, /* only the tail */
        { 0, -SEGMENT_PAGE_BYTES - 56 + 100, 5, 0,
          0 }, /* a segment's header has a copy */
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench b;

        bench_five(&b);
        poke_byte(&b, (uint64_t)((int64_t)b.places[cases[i].entry].offset + cases[i].at));
        assert_int_equal(bench_scan(&b), 0);
        assert_int_equal(found(&b), cases[i].n_found);
        assert_int_equal(b.seen.n_torn, cases[i].n_torn);
        assert_int_equal(b.seen.n_damaged, cases[i].n_damaged);
        assert_int_equal(b.entries[cases[i].entry].n_heads, cases[i].n_found == 4);
        assert_int_equal(b.seen.n_lost, 0);
        bench_free(&b);
    }
}

/* Damage is distinguished from a torn end: a later frame says how far all was stable.
 * When the log is quiet for a moment, or stops, it writes such a frame by itself. */
static void test_damage_of_synced_frames_is_no_torn_end(void **state)
{
    (void)state;
    for (unsigned say = 0; say < 4; say++) {
        struct bench b;

        bench_init(&b, 1);
        assert_int_equal(bench_open(&b), 0);
        append_now(&b, 5000);
        append_now(&b, 5000);
        assert_int_equal(bench_sync(&b), 0);
        if (say == 1)
            append_now(&b, 100);
        if (say == 2) {
            struct waiter x = { .w.done = on_wait_done };
            unsigned n_syncs = b.disk.n_of[DISK_SYNC];

            env_virtual_advance_ms(&b.v, 2 * WAL_QUIET_MS);
            assert_int_equal(b.disk.n_of[DISK_SYNC], n_syncs + 1);
            /* the log wrote the statement */
            env_virtual_advance_ms(&b.v, 2 * WAL_QUIET_MS);
            assert_int_equal(b.disk.n_of[DISK_SYNC], n_syncs + 1);
            /* the statement's own frame needs no sync */
            assert_true(wal_sync(b.wal, &x.w));
        }
        if (say == 3)
            bench_close(&b);
        else
            bench_kill(&b);
        assert_int_equal(bench_scan(&b), 0);
        poke_byte(&b, b.places[1].offset + 77);
        assert_int_equal(bench_scan(&b), 0);
        assert_int_equal(b.entries[1].n_heads, 1);
        assert_int_equal(wal_was_synced(&b.seen, 0, &b.places[1]), say != 0);
        assert_int_equal(b.seen.n_lost, 0);
        poke_byte(&b, b.places[1].offset -
                          3); /* header and tail: the entry cannot be identified */
        poke_byte(&b, b.places[1].offset + 5000);
        assert_int_equal(bench_scan(&b), 0);
        assert_int_equal(b.entries[1].n_heads, 0);
        assert_int_equal(b.seen.n_lost, say != 0);
        bench_free(&b);
    }
}

/* A torn end of an earlier life is still one after a later frame says that all frames
 * found are stable now. */
static void test_torn_end_is_no_damage_after_later_syncs(void **state)
{
    uint8_t bytes[WAL_SYNCED_MAX];
    struct iovec iov = { .iov_base = bytes };
    struct journal_record note = { .loop = 0 };
    struct bench b;

    (void)state;
    bench_five(&b);
    poke_byte(&b, b.places[4].offset + 77);
    assert_int_equal(bench_scan(&b), 0);
    assert_false(wal_was_synced(&b.seen, 0, &b.places[4]));
    note.b = &b;
    iov.iov_len = wal_synced_put(&b.seen, 0, bytes);
    assert_true(iov.iov_len > 0);
    assert_int_equal(bench_open(&b), 0);
    note.a = (struct wal_append){ .kind = WAL_KIND_SYNCED,
                                  .iov = &iov,
                                  .n_iov = 1,
                                  .len = iov.iov_len,
                                  .done = on_appended };
    b.last_done = 0;
    note.b = &b;
    b.entries[b.n] = note;
    b.entries[b.n].loop = 9; /* never found */
    wal_append(b.wal, &b.entries[b.n].a);
    env_virtual_run_posted(&b.v);
    b.n++;
    poke_byte(&b, b.places[2].offset + 77);
    assert_int_equal(bench_scan(&b), 0);
    assert_false(wal_was_synced(&b.seen, 0, &b.places[4]));
    assert_true(wal_was_synced(&b.seen, 0, &b.places[2]));
    bench_free(&b);
}

/* The log of the former format. */
static void test_the_former_format_is_read(void **state)
{
    struct bench b;
    struct segment_header h = { .number = 1, .salt = 77, .format = 1 };
    uint8_t p[SEGMENT_HEADER_BYTES], frame[32], salt[8];

    (void)state;
    bench_five(&b);
    h.bytes = b.config.segment_bytes;
    segment_header_put(p, &h);
    memdisk_poke(&b.disk, segment_file(&b, 0), 0, p, sizeof(p));
    put_le64(salt, h.salt);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t at = SEGMENT_PAGE_BYTES + i * (32 + 5000);
        struct journal_record *e = &b.entries[i];
        uint32_t crc = codec_crc32c(0, salt, 8);

        memset(frame, 0, sizeof(frame));
        memcpy(frame, "RzJf", 4);
        put_le32(frame + 8, codec_crc32c(0, e->bytes, 5000));
        put_le32(frame + 12, 5000);
        frame[16] = e->a.kind;
        put_le32(frame + 20, i + 1);
        put_le64(frame + 24, h.number);
        crc = codec_crc32c(crc, frame, 4);
        put_le32(frame + 4, codec_crc32c(crc, frame + 8, 24));
        memdisk_poke(&b.disk, segment_file(&b, 0), at, frame, sizeof(frame));
        memdisk_poke(&b.disk, segment_file(&b, 0), at + 32, e->bytes, 5000);
    }
    assert_int_equal(bench_scan(&b), 0);
    assert_int_equal(found(&b), 3);
    poke_byte(&b, SEGMENT_PAGE_BYTES + 32 + 100);
    assert_int_equal(bench_scan(&b), 0);
    assert_int_equal(found(&b), 2);
    bench_free(&b);
}

static void test_two_damaged_headers_are_noticed_and_forgotten(void **state)
{
    struct bench b;

    (void)state;
    bench_five(&b);
    poke_byte(&b, 100);
    poke_byte(&b, WAL_SEGMENT_MIN - 4096 + 100);
    assert_int_equal(bench_scan(&b), 0);
    assert_int_equal(found(&b), 0);
    assert_int_equal(b.seen.n_damaged, 1);
    for (unsigned i = 0; i < 5; i++)
        b.entries[i].state = RELEASED;
    assert_int_equal(bench_open(&b), 0);
    assert_int_equal(bench_forget(&b), 0);
    for (unsigned i = 0; i < 2 * SLOTS; i++)
        assert_int_equal(append_now(&b, BIG), 0);
    assert_int_equal(bench_sync(&b), 0);
    bench_check(&b);
    assert_int_equal(b.seen.n_damaged, 0);
    bench_free(&b);
}

static void test_a_page_that_cannot_be_read_costs_its_entries(void **state)
{
    struct bench b;

    (void)state;
    bench_five(&b);
    for (unsigned nth = 5; nth < 40; nth++) { /* behind the opens and the headers */
        b.disk.fail_op = DISK_READ;
        b.disk.fail_at = nth;
        b.disk.fail_rc = -EIO;
        assert_int_equal(bench_scan(&b), 0);
        assert_true(found(&b) >= 3);
    }
    bench_free(&b);
}

static void test_another_format_is_refused(void **state)
{
    struct bench b;
    uint8_t p[SEGMENT_HEADER_BYTES];
    int rc = 1;

    (void)state;
    bench_five(&b);
    memdisk_peek(segment_file(&b, 0), 0, p, sizeof(p));
    p[8] = WAL_FORMAT + 1;
    put_le32(p + 12, 0);
    put_le32(p + 12, codec_crc32c(0, p, sizeof(p)));
    memdisk_poke(&b.disk, segment_file(&b, 0), 0, p, sizeof(p));
    assert_int_equal(bench_scan(&b), -ROZO_EUNKNOWN_FORMAT);
    assert_int_equal(wal_open(&b.config, &b.wal), 0);
    wal_start(b.wal, on_rc, &rc);
    env_virtual_run_posted(&b.v);
    assert_int_equal(rc, -ROZO_EUNKNOWN_FORMAT);
    wal_close(b.wal);
    b.wal = NULL;
    bench_free(&b);
}

/* An entry contains a copy of the segment in which it lies; then the frame around it is
 * damaged. */
static void test_frames_inside_an_entry_are_not_believed(void **state)
{
    struct bench b;
    uint8_t *copy = malloc(WAL_SEGMENT_MIN), tail[WAL_FRAME_TAIL_BYTES + 8];
    struct journal_record *e;

    (void)state;
    assert_non_null(copy);
    bench_init(&b, 1);
    assert_int_equal(bench_open(&b), 0);
    append_now(&b, 1000);
    append_now(&b, 5000);
    memdisk_peek(segment_file(&b, 0), 0, copy, 16384);
    bench_append(&b, 16384 + 8);
    e = &b.entries[2];
    memcpy(e->bytes + 8, copy, 16384);
    wal_frame_put(copy, tail, &(struct segment_header){ .number = 1 },
                  &(struct frame_says){ .sequence = 9, .kind = 1 }, NULL, 0, 0, 0);
    memcpy(e->bytes + 16, copy, WAL_FRAME_HEADER_BYTES); /* no entry can guess the salt */
    env_virtual_run_posted(&b.v);
    append_now(&b, 100);
    /* a byte of the header first, then bytes of the entry, too */
    poke_byte(&b, e->a.place.offset - 12);
    assert_int_equal(bench_scan(&b), 0);
    assert_int_equal(found(&b), 3);
    assert_int_equal(b.entries[2].n_found, 0);
    bench_free(&b);
    free(copy);
}

/* ---- failures ---- */

/* A life of a log: two turns of the ring, some entries released, one kept for long, then
 * a restart. */
static bool life(struct bench *b, bool is_second)
{
    static const uint32_t sizes[] = { 40, BIG, 8, 70000, BIG, 4096 };

    if (bench_open(b) != 0)
        return false;
    if (is_second) {
        for (unsigned i = 0; i < b->n; i++) {
            if (b->entries[i].n_found > 0 && b->entries[i].state == SYNCED) {
                assert_int_equal(wal_adopt(b->wal, &b->places[i]), 0);
                b->entries[i].a.place = b->places[i];
            }
        }
        if (bench_forget(b) != 0)
            return true;
    }
    for (unsigned i = 0; i < 18; i++) {
        unsigned id = b->n;

        append_now(b, sizes[i % 6]);
        if (i % 3 == 2)
            bench_sync(b);
        if (id >= 6 && id % 9 != 1)
            bench_release(b, id - 5);
    }
    bench_sync(b);
    return true;
}

static void close_after(struct bench *b, bool is_open)
{
    if (is_open) {
        bench_close(b);
    } else {
        env_virtual_run_posted(&b->v);
        wal_close(b->wal);
        b->wal = NULL;
    }
}

static void test_power_cut_at_every_request(void **state)
{
    (void)state;
    for (unsigned cut = 1;; cut += UNIT_STEP) {
        static struct bench b;
        bool is_cut;

        bench_init(&b, cut);
        close_after(&b, life(&b, false));
        bench_check(&b);
        b.disk.cut_at = b.disk.n_requests + cut;
        close_after(&b, life(&b, true));
        is_cut = b.disk.is_cut;
        memdisk_power_cut(&b.disk);
        bench_check(&b);
        assert_int_equal(bench_open(&b), 0); /* the log goes on */
        assert_int_equal(append_now(&b, 500), 0);
        assert_int_equal(bench_sync(&b), 0);
        bench_check(&b);
        bench_free(&b);
        if (!is_cut)
            return;
    }
}

/* A starting log appends the entries of the earlier life again; the power may be cut at
 * any time. */
static void test_power_cut_while_old_ones_are_forgotten(void **state)
{
    (void)state;
    for (unsigned cut = 1;; cut += UNIT_STEP) {
        static struct bench b;
        bool is_cut;
        unsigned first;

        bench_init(&b, cut);
        close_after(&b, life(&b, false));
        bench_check(&b);
        b.disk.cut_at = b.disk.n_requests + cut;
        first = b.n;
        if (bench_open(&b) == 0) {
            append_now(&b, 3000);
            if (bench_sync(&b) == 0) { /* covers all earlier entries */
                for (unsigned i = 0; i < first; i++)
                    b.entries[i].state = RELEASED;
                bench_forget(&b);
            }
            close_after(&b, true);
        } else {
            close_after(&b, false);
        }
        is_cut = b.disk.is_cut;
        memdisk_power_cut(&b.disk);
        bench_check(&b);
        if (b.entries[first].n_found == 1 && found(&b) > 1) {
            /* Entries left of the earlier life, oldest first, have no gap at their
             * end. */
            uint64_t oldest = UINT64_MAX;

            for (unsigned i = 0; i < first; i++) {
                if (b.entries[i].n_found > 0 && b.places[i].segment < oldest)
                    oldest = b.places[i].segment;
            }
            for (unsigned i = 0; i < first; i++) {
                if (b.entries[i].a.place.segment > oldest)
                    assert_true(b.entries[i].n_found == 1);
            }
        }
        bench_free(&b);
        if (!is_cut)
            return;
    }
}

/* Any one request fails: all callbacks are called, all that was reported as safe is safe,
 * and the log goes on. */
static void test_every_request_fails_once(void **state)
{
    (void)state;
    for (unsigned nth = 1;; nth += UNIT_STEP) {
        static struct bench b;
        bool is_open, is_over;

        bench_init(&b, nth);
        b.disk.fail_at = nth;
        b.disk.fail_rc = nth % 3 == 0 ? -ENOSPC : -EIO;
        is_open = life(&b, false);
        is_over = b.disk.fail_at != 0;
        b.disk.fail_at = 0;
        if (is_open) {
            for (unsigned i = 0; i + 3 < b.n; i++) {
                if (b.entries[i].state != RELEASED)
                    bench_release(&b, i);
            }
            env_virtual_advance_ms(&b.v, 3000);
            assert_int_equal(append_now(&b, 100), 0);
            assert_int_equal(bench_sync(&b), 0);
        }
        close_after(&b, is_open);
        bench_check(&b);
        bench_free(&b);
        if (is_over)
            return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_come_back_in_order),
        cmocka_unit_test(test_an_entry_may_be_as_big_as_promised),
        cmocka_unit_test(test_syncs_are_shared),
        cmocka_unit_test(test_a_sync_waits_for_appends_under_way),
        cmocka_unit_test(test_a_sync_does_not_wait_for_an_append_that_failed),
        cmocka_unit_test(test_a_release_after_the_stop),
        cmocka_unit_test(test_a_failed_sync_is_reported_and_its_segment_left),
        cmocka_unit_test(test_released_segments_are_used_again),
        cmocka_unit_test(test_bytes_of_an_earlier_use_of_a_segment_are_not_read),
        cmocka_unit_test(test_a_full_log_says_so),
        cmocka_unit_test(test_a_released_current_segment_is_used_again),
        cmocka_unit_test(test_a_full_disk_gives_two_segments_or_an_error),
        cmocka_unit_test(test_a_full_disk_is_asked_before_the_next_try),
        cmocka_unit_test(test_a_disk_that_cannot_reserve_is_filled),
        cmocka_unit_test(test_after_a_restart_old_entries_stay_until_forgotten),
        cmocka_unit_test(test_adopted_entries_need_no_space),
        cmocka_unit_test(test_another_number_of_loops),
        cmocka_unit_test(test_segments_of_other_loops_are_removed_despite_errors),
        cmocka_unit_test(test_another_size_of_segments),
        cmocka_unit_test(test_damage_costs_what_it_hits),
        cmocka_unit_test(test_damage_of_synced_frames_is_no_torn_end),
        cmocka_unit_test(test_torn_end_is_no_damage_after_later_syncs),
        cmocka_unit_test(test_the_former_format_is_read),
        cmocka_unit_test(test_two_damaged_headers_are_noticed_and_forgotten),
        cmocka_unit_test(test_a_page_that_cannot_be_read_costs_its_entries),
        cmocka_unit_test(test_another_format_is_refused),
        cmocka_unit_test(test_frames_inside_an_entry_are_not_believed),
        cmocka_unit_test(test_power_cut_at_every_request),
        cmocka_unit_test(test_power_cut_while_old_ones_are_forgotten),
        cmocka_unit_test(test_every_request_fails_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
