/*
 * Goal: pages that cannot be read cost no more than themselves. Method: a file with a bad
 * page is read and written in every way, above a disk that counts its requests.
 */
#include <errno.h>
#include <stdlib.h>

#include "storaged/disk/bad_page_disk.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum { PAGES = 6, BAD = 2, SIZE = PAGES * BAD_PAGE_PAGE - 1000 };

struct bench {
    struct env_virtual v;
    struct memdisk mem;
    struct bad_page_disk bad_pages;
    struct disk_file *file;
    struct disk_req dr;
    bool is_done;
    int rc;
    uint8_t bytes[SIZE];
    uint8_t got[PAGES * BAD_PAGE_PAGE];
};

static void on_done(struct disk_req *dr, int rc)
{
    struct bench *b = dr->arg;

    assert_false(b->is_done);
    b->is_done = true;
    b->rc = rc;
}

static int ask(struct bench *b, struct disk_req dr)
{
    b->dr = dr;
    b->dr.done = on_done;
    b->dr.arg = b;
    if (b->dr.file == NULL)
        b->dr.file = b->file;
    b->is_done = false;
    disk_submit(&b->bad_pages.disk, &b->dr);
    assert_false(b->is_done);
    env_virtual_run_posted(&b->v);
    assert_true(b->is_done);
    return b->rc;
}

static int read_at(struct bench *b, uint64_t offset, uint64_t len)
{
    struct iovec iov = { .iov_base = b->got, .iov_len = len };

    memset(b->got, 0xcc, sizeof(b->got));
    return ask(
        b, (struct disk_req){
               .op = DISK_READ, .offset = offset, .len = len, .iov = &iov, .n_iov = 1 });
}

/* Writes in two pieces. */
static int write_at(struct bench *b, uint64_t offset, uint64_t len, bool salvages)
{
    struct iovec iov[2] = { { .iov_base = b->bytes + offset, .iov_len = len / 3 },
                            { .iov_base = b->bytes + offset + len / 3,
                              .iov_len = len - len / 3 } };

    for (uint64_t i = 0; i < len; i++)
        b->bytes[offset + i] = (uint8_t)(b->bytes[offset + i] + 1);
    return ask(b, (struct disk_req){ .op = DISK_WRITE,
                                     .salvages = salvages,
                                     .offset = offset,
                                     .len = len,
                                     .iov = iov,
                                     .n_iov = 2 });
}

static void bench_init(struct bench **out)
{
    struct bench *b = calloc(1, sizeof(*b));

    env_virtual_init(&b->v, 1);
    memdisk_init(&b->mem, &b->v);
    b->mem.fail_rc = -EIO;
    bad_page_disk_init(&b->bad_pages, &b->v.env, &b->mem.disk);
    assert_int_equal(
        ask(b, (struct disk_req){ .op = DISK_OPEN, .path = "f", .create = true }), 0);
    b->file = b->dr.file;
    for (unsigned i = 0; i < SIZE; i++)
        b->bytes[i] = (uint8_t)(i * 7 + i / BAD_PAGE_PAGE);
    assert_int_equal(write_at(b, 0, SIZE, false), 0);
    *out = b;
}

static void bench_free(struct bench *b)
{
    disk_close(&b->bad_pages.disk, b->file);
    memdisk_free(&b->mem);
    env_virtual_close(&b->v);
    free(b);
}

/* Checks that the bytes read from `offset` on are those written, but for pages in `lost`
 * (a bitmap). */
static void check_got(const struct bench *b, uint64_t offset, uint64_t len, unsigned lost)
{
    for (uint64_t i = offset; i < offset + len; i++) {
        bool is_lost = (lost >> i / BAD_PAGE_PAGE & 1) != 0;

        assert_int_equal(b->got[i - offset], is_lost ? BAD_PAGE_FILL : b->bytes[i]);
    }
}

static void test_a_bad_page_costs_itself(void **state)
{
    struct bench *b;
    unsigned n_reads;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, BAD * BAD_PAGE_PAGE);
    assert_int_equal(read_at(b, 100, SIZE), 0);
    assert_int_equal(b->dr.n_read, SIZE - 100);
    assert_int_equal(b->dr.n_lost, 1);
    check_got(b, 100, SIZE - 100, 1u << BAD);
    /* The page is known as bad now: it is neither read nor reported again. */
    n_reads = b->mem.n_of[DISK_READ];
    assert_int_equal(read_at(b, BAD * BAD_PAGE_PAGE + 5, 50), 0);
    assert_int_equal(b->dr.n_lost, 0);
    assert_int_equal(b->mem.n_of[DISK_READ], n_reads);
    check_got(b, BAD * BAD_PAGE_PAGE + 5, 50, 1u << BAD);
    assert_int_equal(ask(b, (struct disk_req){ .op = DISK_WARM, .len = SIZE }), -EIO);
    assert_int_equal(
        ask(b, (struct disk_req){ .op = DISK_WARM, .len = 2 * BAD_PAGE_PAGE }), 0);
    /* The page is tried again after a while, since the cable may have been the cause. */
    env_virtual_advance_ms(&b->v, BAD_PAGE_KNOWN_S * 1000 + 1);
    assert_int_equal(read_at(b, BAD * BAD_PAGE_PAGE, 10), 0);
    assert_true(b->mem.n_of[DISK_READ] > n_reads);
    bench_free(b);
}

static void test_the_last_page_ends_where_the_file_does(void **state)
{
    struct bench *b;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, SIZE - 1);
    assert_int_equal(read_at(b, SIZE - 10, 3000), 0);
    assert_int_equal(b->dr.n_read, 10);
    check_got(b, SIZE - 10, 10, 1u << (PAGES - 1));
    assert_int_equal(read_at(b, SIZE + 500, 100), 0);
    assert_int_equal(b->dr.n_read, 0);
    bench_free(b);
}

static void test_one_error_is_tried_again(void **state)
{
    struct bench *b;

    (void)state;
    bench_init(&b);
    for (unsigned n = 1; n <= 4; n++) {
        b->mem.fail_op = DISK_READ;
        b->mem.fail_at = 1;
        assert_int_equal(read_at(b, 0, SIZE), 0);
        assert_int_equal(b->dr.n_lost, 0);
        check_got(b, 0, SIZE, 0);
    }
    b->mem.fail_op = DISK_WRITE;
    b->mem.fail_at = 1;
    assert_int_equal(write_at(b, 50, 9000, true), 0);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    check_got(b, 0, SIZE, 0);
    b->mem.fail_at = 1; /* a write that may lose no bytes gets the error */
    assert_int_equal(write_at(b, 50, 9000, false), -EIO);
    bench_free(b);
}

/* A bad page that is written in part loses its other bytes, and can be read again without
 * them. */
static void test_bad_page_that_is_written_in_part_can_be_read(void **state)
{
    struct bench *b;
    uint64_t at = BAD * BAD_PAGE_PAGE + 1000;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, at);
    assert_int_equal(write_at(b, at, 500, false), -EIO);
    assert_int_equal(write_at(b, at, 500, true), 0);
    assert_int_equal(b->dr.n_lost, 1);
    assert_int_equal(b->bad_pages.n_known, 0);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    assert_int_equal(b->dr.n_lost, 0);
    for (unsigned i = 0; i < SIZE; i++) {
        bool is_around = i / BAD_PAGE_PAGE == BAD && (i < at || i >= at + 500);

        assert_int_equal(b->got[i], is_around ? BAD_PAGE_FILL : b->bytes[i]);
    }
    bench_free(b);
}

/* A write over three pages, the last one bad, loses only the bytes behind its end. */
static void test_only_bad_pages_are_lost(void **state)
{
    struct bench *b;
    uint64_t at = (BAD - 2) * BAD_PAGE_PAGE + 300, len = 2 * BAD_PAGE_PAGE;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, at + len);
    memdisk_spoil(b->file, at + BAD_PAGE_PAGE); /* covered by the write */
    assert_int_equal(write_at(b, at, len, true), 0);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    for (unsigned i = 0; i < SIZE; i++) {
        bool is_behind = i / BAD_PAGE_PAGE == BAD && i >= at + len;

        assert_int_equal(b->got[i], is_behind ? BAD_PAGE_FILL : b->bytes[i]);
    }
    assert_int_equal(memdisk_find(&b->mem, "f")->size, SIZE);
    bench_free(b);
}

/* A write that may lose no bytes heals a bad page when it covers all of it. */
static void test_a_whole_page_heals(void **state)
{
    struct bench *b;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, BAD * BAD_PAGE_PAGE);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    assert_int_equal(b->bad_pages.n_known, 1);
    assert_int_equal(write_at(b, BAD * BAD_PAGE_PAGE, BAD_PAGE_PAGE, false), 0);
    assert_int_equal(b->bad_pages.n_known, 0);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    check_got(b, 0, SIZE, 0);
    bench_free(b);
}

/* Errors of a device that fails as a whole say nothing about single pages. */
static void test_a_failing_device(void **state)
{
    struct bench *b;

    (void)state;
    bench_init(&b);
    b->mem.fails = true;
    for (unsigned i = 0; i < 2 * BAD_PAGE_ERRORS_MAX; i++) {
        assert_int_equal(write_at(b, i % PAGES * BAD_PAGE_PAGE, 100, false), -EIO);
    }
    assert_true(bad_page_disk_is_failing(&b->bad_pages));
    assert_int_equal(read_at(b, 0, 100), -EIO);
    assert_int_equal(write_at(b, 0, 100, true), -EIO);
    assert_int_equal(b->bad_pages.n_known, 0);
    b->mem.fails = false;
    assert_int_equal(read_at(b, 3 * BAD_PAGE_PAGE, 100), 0);
    env_virtual_advance_ms(&b->v, 2 * BAD_PAGE_WINDOW_S * 1000);
    assert_false(bad_page_disk_is_failing(&b->bad_pages));
    bench_free(b);
}

/* Bad pages of a closed file are forgotten: another file may take its address in
 * memory. */
static void test_a_closed_file_is_forgotten(void **state)
{
    struct bench *b;

    (void)state;
    bench_init(&b);
    memdisk_spoil(b->file, 0);
    assert_int_equal(read_at(b, 0, SIZE), 0);
    assert_int_equal(b->bad_pages.n_known, 1);
    disk_close(&b->bad_pages.disk, b->file);
    assert_int_equal(b->bad_pages.n_known, 0);
    assert_int_equal(ask(b, (struct disk_req){ .op = DISK_OPEN, .path = "f" }), 0);
    bench_free(b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_bad_page_costs_itself),
        cmocka_unit_test(test_the_last_page_ends_where_the_file_does),
        cmocka_unit_test(test_one_error_is_tried_again),
        cmocka_unit_test(test_bad_page_that_is_written_in_part_can_be_read),
        cmocka_unit_test(test_only_bad_pages_are_lost),
        cmocka_unit_test(test_a_whole_page_heals),
        cmocka_unit_test(test_a_failing_device),
        cmocka_unit_test(test_a_closed_file_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
