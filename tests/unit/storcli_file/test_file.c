/*
 * test_file.c - the rules of the file layer, one by one.
 *
 * Method: a file above the fake engine and exportd of fake_blocks.h, on a virtual clock.
 */
#include <errno.h>
#include <stdlib.h>

#include "fake_blocks.h"
#include "tests/unit/unit.h"

enum { BS = FAKE_BS, DATA_MAX = 4 << 20, WAIT_MS = 600 * 1000 };

struct fx {
    struct fake k;
    struct file *f;
    struct file_config config;
    uint8_t *data; /* DATA_MAX random bytes, owned */
    uint8_t *buf;  /* bytes that were read, owned */
};

/* A call in flight. */
struct call {
    bool done;
    int rc;
    uint8_t *buf;
    size_t len;
    unsigned n_iov;
};

static void on_done(void *arg, int rc)
{
    struct call *c = arg;

    assert_false(c->done);
    c->done = true;
    c->rc = rc;
}

static void on_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct call *c = arg;

    assert_false(c->done);
    c->done = true;
    c->rc = rc;
    c->n_iov = n_iov;
    c->len = 0;
    for (unsigned i = 0; i < n_iov; i++) {
        memcpy(c->buf + c->len, iov[i].iov_base, iov[i].iov_len);
        c->len += iov[i].iov_len;
    }
}

static int wait_call(struct fx *x, struct call *c)
{
    uint64_t limit_ns = x->k.v.now_ns + WAIT_MS * 1000000ull;

    env_virtual_run_posted(&x->k.v);
    while (!c->done && x->k.v.now_ns < limit_ns)
        if (!env_virtual_run_next_timer(&x->k.v))
            break;
    env_virtual_run_posted(&x->k.v);
    assert_true(c->done);
    return c->rc;
}

static void start_write(struct fx *x, struct call *c, uint64_t offset, const void *data,
                        size_t len, unsigned flags)
{
    struct iovec iov = { .iov_base = (void *)data, .iov_len = len };

    *c = (struct call){ 0 };
    file_write(x->f, offset, &iov, 1, flags, on_done, c);
    assert_false(c->done);
}

static int write_at(struct fx *x, uint64_t offset, size_t len, unsigned flags)
{
    struct call c;

    start_write(x, &c, offset, x->data + offset % (DATA_MAX / 2), len, flags);
    return wait_call(x, &c);
}

static void start_read(struct fx *x, struct call *c, uint64_t offset, size_t len,
                       bool direct)
{
    *c = (struct call){ .buf = x->buf };
    file_read(x->f, offset, len, direct, on_read, c);
    assert_false(c->done);
}

static int read_at(struct fx *x, uint64_t offset, size_t len, bool direct, size_t *got)
{
    struct call c;
    int rc;

    start_read(x, &c, offset, len, direct);
    rc = wait_call(x, &c);
    *got = c.len;
    return rc;
}

/* Checks that the range has the bytes of write_at(). */
static void assert_written(struct fx *x, uint64_t offset, size_t len, bool direct)
{
    size_t got;

    assert_int_equal(read_at(x, offset, len, direct, &got), 0);
    assert_int_equal(got, len);
    assert_memory_equal(x->buf, x->data + offset % (DATA_MAX / 2), len);
}

static void assert_zeros(struct fx *x, uint64_t offset, size_t len)
{
    size_t got;

    assert_int_equal(read_at(x, offset, len, false, &got), 0);
    assert_int_equal(got, len);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(x->buf[i], 0);
}

typedef void simple_call(struct file *f, file_done_cb *done, void *arg);

static int do_call(struct fx *x, simple_call *fn)
{
    struct call c = { 0 };

    fn(x->f, on_done, &c);
    assert_false(c.done);
    return wait_call(x, &c);
}

static int close_file(struct fx *x)
{
    int rc = do_call(x, file_close);

    x->f = NULL;
    return rc;
}

static void reopen(struct fx *x)
{
    assert_int_equal(close_file(x), 0);
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
}

static int truncate_to(struct fx *x, uint64_t size)
{
    struct storcli_target target;
    struct file_attr attr;
    struct call c = { 0 };
    int rc = do_call(x, file_truncate_begin);

    if (rc != 0)
        return rc;
    fake_target(&target);
    fake_setattr_size(&x->k, size, &attr);
    file_truncate(x->f, &target, &attr, on_done, &c);
    assert_false(c.done);
    return wait_call(x, &c);
}

static int range_call(struct fx *x, uint64_t offset, uint64_t len, bool punch, bool keep)
{
    struct call c = { 0 };

    if (punch)
        file_punch(x->f, offset, len, on_done, &c);
    else
        file_allocate(x->f, offset, len, keep, on_done, &c);
    assert_false(c.done);
    return wait_call(x, &c);
}

static int seek(struct fx *x, uint64_t offset, bool hole, uint64_t *found)
{
    struct call c = { 0 };

    file_seek(x->f, offset, hole, found, on_done, &c);
    return wait_call(x, &c);
}

static int setup(void **state)
{
    struct fx *x = calloc(1, sizeof(*x));

    fake_init(&x->k, 1);
    x->data = malloc(DATA_MAX);
    x->buf = malloc(DATA_MAX);
    srandom(1);
    for (size_t i = 0; i < DATA_MAX; i++)
        x->data[i] = (uint8_t)(random() % 255 + 1);
    x->f = fake_open(&x->k, &x->config, 1);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fx *x = *state;

    if (x->f != NULL)
        assert_int_equal(close_file(x), 0);
    fake_free(&x->k);
    free(x->data);
    free(x->buf);
    free(x);
    return 0;
}

/* ---- writing ---- */

static void small_writes_become_one_run(void **state)
{
    struct fx *x = *state;

    for (unsigned i = 0; i < 256; i++)
        assert_int_equal(write_at(x, i * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.blocks_written, 256);
    assert_true(x->k.n[FAKE_WRITE] <= 8); /* runs grow: the last ones are long */
    assert_int_equal(x->k.n[FAKE_READ], 0);
    assert_int_equal(x->k.s.size, 256 * BS);
    assert_written(x, 0, 256 * BS, true);
}

static void a_megabyte_is_one_write_and_goes_at_once(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 1 << 20, 0), 0);
    env_virtual_advance_ms(&x->k.v, 50);
    assert_int_equal(x->k.n[FAKE_WRITE], 1);
    assert_int_equal(x->k.last_write_blocks, 256);
}

static void dirty_data_does_not_wait_longer_than_its_delay(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 100, 50, 0), 0);
    env_virtual_advance_ms(&x->k.v, 900);
    assert_int_equal(x->k.n[FAKE_WRITE], 0);
    env_virtual_advance_ms(&x->k.v, 200);
    assert_int_equal(x->k.n[FAKE_WRITE], 1);
    assert_int_equal(x->k.last_user_bytes, 150);
    env_virtual_advance_ms(&x->k.v, 1100);
    assert_int_equal(x->k.s.size, 150);
    assert_true(x->k.s.has_data);
    assert_int_equal(file_mtime_ns(x->f), 0); /* reported */
    assert_int_not_equal(x->k.s.mtime_ns, 0);
}

static void a_partial_block_is_completed_from_storages(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 3 * BS, 0), 0);
    reopen(x);
    assert_int_equal(write_at(x, BS + 10, 20, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.blocks_read, 1);
    assert_int_equal(x->k.last_write_first, 1);
    assert_int_equal(x->k.last_write_blocks, 1);
    assert_written(x, 0, 3 * BS, true);
}

static void bytes_beyond_the_size_are_not_read_for_completion(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(write_at(x, BS + 100, 10, 0), 0); /* behind the end of the file */
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.n[FAKE_READ], 0);
    assert_zeros(x, BS, 100);
    assert_written(x, BS + 100, 10, true);
}

static void writes_with_a_gap_in_one_block_meet(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    reopen(x);
    assert_int_equal(write_at(x, 10, 20, 0), 0);
    assert_int_equal(write_at(x, 1000, 20, 0), 0);
    assert_int_equal(write_at(x, 500, 20, 0), 0);
    assert_written(x, 0, BS, false);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.blocks_read, 1);
    assert_written(x, 0, BS, true);
}

static void a_sparse_file_reads_zeros(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 100 * BS + 7, 10, 0), 0);
    assert_int_equal(file_size(x->f), 100 * BS + 17);
    assert_zeros(x, 0, 1 << 18);
    assert_int_equal(x->k.n[FAKE_READ], 0); /* no storage has had any data */
    assert_int_equal(do_call(x, file_flush), 0);
    assert_zeros(x, 50 * BS, 50 * BS + 7);
}

static void a_block_in_flight_is_not_written_again(void **state)
{
    struct fx *x = *state;
    uint8_t v[3] = { 1, 2, 3 };
    struct call c;
    size_t got;

    x->k.held[FAKE_WRITE] = true;
    for (unsigned i = 0; i < 3; i++) {
        start_write(x, &c, 0, &v[i], 1, 0);
        assert_int_equal(wait_call(x, &c), 0);
        env_virtual_advance_ms(&x->k.v, 3000);
        assert_int_equal(x->k.n[FAKE_WRITE], 1);
        assert_int_equal(read_at(x, 0, 1, false, &got), 0);
        assert_int_equal(x->buf[0], v[i]);
    }
    fake_release(&x->k, FAKE_WRITE);
    assert_int_equal(do_call(x, file_flush), 0);
    /* the two later writes were merged in memory */
    assert_int_equal(x->k.n[FAKE_WRITE], 2);
    assert_int_equal(x->k.s.blocks[0].data[0], 3);
}

static void a_direct_write_is_not_copied(void **state)
{
    struct fx *x = *state;
    uint8_t *data = aligned_alloc(4096, 1 << 20);
    struct call c;

    memcpy(data, x->data, 1 << 20);
    start_write(x, &c, 0, data, 1 << 20, FILE_WRITE_THROUGH);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n[FAKE_WRITE], 1);
    assert_ptr_equal(x->k.last_write_data, data);
    /* the storages have it when the call ends */
    assert_int_equal(x->k.s.blocks[255].user_bytes, BS);
    free(data);
    assert_written(x, 0, 1 << 20, true);
}

static void a_direct_write_takes_part_of_a_block_along(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 20 * BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(write_at(x, 100, 10 * BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(write_at(x, 20 * BS - 5, 10, FILE_WRITE_THROUGH), 0);
    assert_written(x, 0, 20 * BS + 5, true);
    assert_int_equal(x->k.s.blocks[20].user_bytes, 5);
}

static void a_direct_write_goes_after_older_dirty_data(void **state)
{
    struct fx *x = *state;
    uint8_t old[BS];
    struct call c;

    memset(old, 7, sizeof(old));
    start_write(x, &c, BS, old, BS, 0);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(write_at(x, 0, 4 * BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(x->k.n[FAKE_WRITE], 2);
    assert_written(x, 0, 4 * BS, false);
    assert_written(x, 0, 4 * BS, true);
}

static void a_synchronous_write_is_stable_when_done(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 100, FILE_WRITE_SYNC), 0);
    assert_int_equal(x->k.n_write_sync, 1);
    assert_int_equal(x->k.n_wrote_sync, 1);
    assert_int_equal(x->k.s.size, 100);
    assert_false(x->k.unsynced);
    assert_int_equal(write_at(x, 0, 8 * BS, FILE_WRITE_SYNC), 0);
    assert_int_equal(x->k.n_wrote_sync, 2);
    assert_false(x->k.unsynced);
}

/* Checks that the file has nothing in flight, and no timer that would start something. */
static void assert_at_rest(struct fx *x)
{
    unsigned n = 0, n_later = 0;

    assert_true(file_is_clean(x->f));
    assert_true(list_is_empty(&x->k.requests));
    assert_int_equal(file_mtime_ns(x->f), 0);
    for (unsigned i = 0; i < FAKE_KINDS; i++)
        n += x->k.n[i];
    env_virtual_advance_ms(&x->k.v, 100 * 1000);
    for (unsigned i = 0; i < FAKE_KINDS; i++)
        n_later += x->k.n[i];
    assert_int_equal(n, n_later);
}

/* Writes n blocks and makes them stable. */
static void make_stable(struct fx *x, unsigned n)
{
    assert_int_equal(write_at(x, 0, n * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 1);
    assert_int_equal(x->k.n_write_sync, 0);
    assert_int_equal(x->k.n_wrote_sync, 1);
}

static void an_overwrite_is_stable_as_it_is_written(void **state)
{
    struct fx *x = *state;
    int64_t before_ns;

    make_stable(x, 8);
    before_ns = x->k.s.mtime_ns;
    x->k.v.now_ns += 1000000;
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    assert_int_equal(write_at(x, 4 * BS + 7, 99, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 1);
    assert_int_equal(x->k.n_write_sync, 2);
    assert_int_equal(x->k.n[FAKE_WROTE], 2);
    assert_int_equal(x->k.n_wrote_sync, 2);
    assert_true(x->k.s.mtime_ns > before_ns);
    assert_false(x->k.unsynced);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_WROTE], 2); /* nothing is left to report */
    assert_at_rest(x);
    assert_int_equal(x->k.n[FAKE_WROTE], 2);
}

static void the_time_is_told_beside_an_overwrite(void **state)
{
    struct fx *x = *state;
    struct call sync = { 0 };

    make_stable(x, 8);
    for (unsigned i = 0; i < 2; i++) {
        x->k.held[FAKE_WRITE] = true;
        x->k.v.now_ns += 1000000;
        if (i == 0)
            assert_int_equal(write_at(x, BS, BS, 0), 0);
        sync.done = false;
        if (i == 0)
            file_sync(x->f, on_done, &sync);
        else
            start_write(x, &sync, BS, x->data, BS, FILE_WRITE_SYNC);
        env_virtual_run_posted(&x->k.v);
        while (x->k.n_wrote_sync < i + 2 && env_virtual_run_next_timer(&x->k.v))
            env_virtual_run_posted(&x->k.v);
        assert_int_equal(x->k.n_wrote_sync, i + 2);
        assert_false(sync.done);
        fake_release(&x->k, FAKE_WRITE);
        assert_int_equal(wait_call(x, &sync), 0);
        assert_int_equal(x->k.n_write_sync, i + 1);
        assert_int_equal(x->k.n[FAKE_WROTE], i + 2);
    }
}

static void what_grows_is_told_beside_its_sync(void **state)
{
    struct fx *x = *state;

    make_stable(x, 8);
    assert_int_equal(write_at(x, 8 * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n_write_sync, 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 2);
    assert_int_equal(x->k.n_wrote_sync, 2);
    assert_int_equal(x->k.s.size, 9 * BS);
}

static void of_much_one_sync_makes_all_stable(void **state)
{
    struct fx *x = *state;

    make_stable(x, 64);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(write_at(x, 3 * i * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n_write_sync, 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 2);
    assert_false(x->k.unsynced);
}

static void a_time_that_was_not_told_ahead_is_told_later(void **state)
{
    struct fx *x = *state;

    make_stable(x, 8);
    x->k.v.now_ns += 1000000;
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    x->k.fail_next[FAKE_WROTE] = -EIO;
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_WROTE], 3);
    assert_int_equal(x->k.n_wrote_sync, 2); /* one report failed */
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    x->k.fail_all[FAKE_WROTE] = -EIO;
    assert_int_equal(do_call(x, file_sync), -EIO);
    x->k.fail_all[FAKE_WROTE] = 0;
    x->k.fail_next[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), -EIO);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_written(x, BS, BS, true);
    assert_at_rest(x);
}

static void what_is_synchronous_is_told_with_older_bytes_below(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 100, 0), 0);
    assert_int_equal(write_at(x, 8 * BS, BS, FILE_WRITE_SYNC), 0);
    assert_int_equal(x->k.s.size, 9 * BS);
    assert_written(x, 0, 100, true);
}

static void what_is_flushed_is_told_whatever_came_meanwhile(void **state)
{
    struct fx *x = *state;
    struct call flush = { 0 }, write;

    assert_int_equal(write_at(x, 8 * BS, BS, 0), 0);
    x->k.held[FAKE_WRITE] = true;
    file_sync(x->f, on_done, &flush);
    env_virtual_run_posted(&x->k.v);
    start_write(x, &write, 0, x->data, 100, 0);
    assert_int_equal(wait_call(x, &write), 0);
    fake_release(&x->k, FAKE_WRITE);
    assert_int_equal(wait_call(x, &flush), 0);
    assert_int_equal(x->k.s.size, 9 * BS);
}

static void an_append_goes_to_the_end(void **state)
{
    struct fx *x = *state;
    struct call c[10];

    for (unsigned i = 0; i < 10; i++)
        start_write(x, &c[i], 0, x->data + i * 1000, 1000, FILE_WRITE_APPEND);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(wait_call(x, &c[i]), 0);
    assert_written(x, 0, 10000, false);
    assert_int_equal(file_size(x->f), 10000);
}

static void writers_wait_when_too_much_is_dirty(void **state)
{
    struct fx *x = *state;
    struct call c[12];
    unsigned n_done = 0;

    x->k.held[FAKE_WRITE] = true;
    for (unsigned i = 0; i < 12; i++)
        start_write(x, &c[i], (uint64_t)i << 20, x->data, 1 << 20, 0);
    env_virtual_advance_ms(&x->k.v, 5000);
    for (unsigned i = 0; i < 12; i++)
        n_done += c[i].done;
    assert_int_equal(n_done, 8); /* write_behind_max */
    assert_int_equal(x->k.n[FAKE_WRITE], 8);
    fake_release(&x->k, FAKE_WRITE);
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(wait_call(x, &c[i]), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, 12 << 20);
}

static void a_zero_length_write_does_nothing(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 1000, 0, 0), 0);
    assert_int_equal(write_at(x, 1000, 0, FILE_WRITE_SYNC), 0);
    assert_int_equal(file_size(x->f), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_WROTE], 0);
}

static void a_write_beyond_all_bounds_is_refused(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, INT64_MAX - 5, 10, 0), -EFBIG);
    assert_int_equal(write_at(x, FILE_DATA_END_MAX - 5, 10, 0), -EFBIG);
    assert_int_equal(range_call(x, FILE_DATA_END_MAX - 5, 10, false, false), -EFBIG);
    assert_int_equal(file_size(x->f), 0);
}

/* ---- failures ---- */

static void what_cannot_be_written_is_kept_and_told_until_it_is(void **state)
{
    struct fx *x = *state;

    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, 3 * BS, 0), 0);
    env_virtual_advance_ms(&x->k.v, 2000);
    assert_true(x->k.n[FAKE_WRITE] >= 1);
    assert_int_equal(do_call(x, file_flush), -EIO);
    assert_int_equal(do_call(x, file_sync), -EIO);
    assert_written(x, 0, 3 * BS, false);
    assert_int_equal(write_at(x, BS, 100, 0), 0); /* later writes are accepted */
    assert_int_equal(x->k.s.size, 0);
    x->k.fail_all[FAKE_WRITE] = 0;
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, 3 * BS);
    assert_written(x, 0, 3 * BS, true);
}

static void a_failed_run_is_tried_again_by_itself(void **state)
{
    struct fx *x = *state;

    x->k.fail_next[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    env_virtual_advance_ms(&x->k.v, 6000);
    assert_int_equal(x->k.n[FAKE_WRITE], 2);
    assert_int_equal(x->k.s.size, BS);
    assert_int_equal(do_call(x, file_flush), 0); /* nothing was lost */
}

static void a_writer_without_room_hears_why(void **state)
{
    struct fx *x = *state;

    x->k.fail_all[FAKE_WRITE] = -ENOSPC;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(write_at(x, (uint64_t)i << 20, 1 << 20, 0), 0);
    assert_int_equal(write_at(x, 8 << 20, 1 << 20, 0), -ENOSPC);
    assert_int_equal(close_file(x), -ENOSPC);
    assert_int_equal(x->k.s.size, 0);
}

static void close_tells_what_is_lost(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    assert_int_equal(close_file(x), -EIO);
    assert_int_equal(x->k.s.size, BS);
}

/* The close reports the data as lost and does not write it: another client's later data
 * stays. */
static void what_was_told_lost_takes_nobodys_place(void **state)
{
    struct fx *x = *state;

    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    x->k.fail_all[FAKE_WRITE] = 0;
    x->k.min_epoch = x->k.s.epoch + 1; /* as if another client has overwritten it */
    assert_int_equal(close_file(x), -EIO);
    assert_int_equal(x->k.n[FAKE_RENEW], 0);
}

/* exportd did not hear from this client for so long that it gave the file to another one,
 * which cut off the bytes that were not reported. */
static void what_exportd_cut_off_is_told_to_be_lost(void **state)
{
    struct fx *x = *state;
    uint64_t losses = file_losses(x->f);

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, BS, 3 * BS, 0), 0);
    x->k.cut_epoch = ++x->k.s.epoch;
    assert_int_equal(do_call(x, file_sync), -EIO);
    assert_int_equal(file_losses(x->f), losses + 1); /* other handles see the loss */
    assert_int_equal(x->k.s.size, BS);
    assert_int_equal(file_size(x->f), BS);
    /* a new epoch makes writes possible again */
    assert_int_equal(write_at(x, BS, 2 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    assert_int_equal(x->k.s.size, 3 * BS);
    assert_written(x, 0, BS, true);
}

static void a_failed_direct_write_does_not_lengthen_the_file(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), 0);
    x->k.fail_next[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, BS, BS, FILE_WRITE_THROUGH), -EIO);
    assert_int_equal(file_size(x->f), BS);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, BS);
}

static void a_newer_writer_makes_us_take_a_fresh_epoch(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    x->k.min_epoch = 9;
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    assert_int_equal(version_epoch(x->k.s.blocks[0].version), 9);
}

static void a_refused_capability_is_renewed_once(void **state)
{
    struct fx *x = *state;

    x->k.denied = true;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    x->k.fail_all[FAKE_WRITE] = -EACCES;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), -EACCES);
    assert_int_equal(x->k.n[FAKE_RENEW], 2);
    x->k.fail_all[FAKE_WRITE] = 0;
    file_drop_cache(x->f);
    x->k.denied = true;
    assert_written(x, 0, BS, false);
    x->k.denied = true;
    assert_int_equal(do_call(x, file_sync), 0);
}

/* Each kind of call on a file that has moved, any number of times, succeeds on the new
 * storages. */
static void a_file_that_moved_is_asked_for_again(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };
    uint64_t found;

    assert_int_equal(write_at(x, 0, 8 * BS, FILE_WRITE_SYNC), 0);
    fake_move(&x->k);
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    fake_move(&x->k);
    assert_int_equal(write_at(x, BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    fake_move(&x->k);
    assert_int_equal(do_call(x, file_sync), 0);
    fake_move(&x->k);
    file_drop_cache(x->f);
    assert_written(x, 0, 8 * BS, false);
    fake_move(&x->k);
    assert_written(x, 0, 8 * BS, true);
    fake_move(&x->k);
    file_seek(x->f, 0, true, &found, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(found, 8 * BS);
    fake_move(&x->k);
    c = (struct call){ 0 };
    file_allocate(x->f, 0, 20 * BS, false, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n_allocs, 2);
    assert_int_equal(x->k.n_allocs_again, 1);
    fake_move(&x->k);
    c = (struct call){ 0 };
    file_punch(x->f, 2 * BS, 2 * BS, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_zeros(x, 2 * BS, 2 * BS);
    fake_move(&x->k);
    assert_int_equal(truncate_to(x, BS + 100), 0);
    assert_written(x, 0, BS + 100, true);
    assert_int_equal(x->k.file_generation, 9);
    assert_int_equal(x->k.n_moved, 9);
}

/* A client that only reads asks for no epoch: an epoch would take away the one of others,
 * and the client may not be allowed to write. */
static void a_reader_of_a_moved_file_takes_no_epoch(void **state)
{
    struct fx *x = *state;
    uint64_t found;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, 4 * BS, FILE_WRITE_SYNC), 0);
    assert_int_equal(close_file(x), 0);
    x->f = fake_open(&x->k, &x->config, 0);
    fake_move(&x->k);
    x->k.fail_all[FAKE_RENEW] = -EROFS;
    assert_written(x, 0, 4 * BS, false);
    fake_move(&x->k);
    file_seek(x->f, 0, true, &found, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 0);
    assert_int_equal(x->k.n[FAKE_LOAD], 2);
}

/* While exportd holds the file closed it parks the client's question: storages get no
 * requests in that time. */
static void a_file_held_closed_is_waited_for(void **state)
{
    struct fx *x = *state;
    struct call w, r;
    unsigned n;

    assert_int_equal(write_at(x, 0, 4 * BS, FILE_WRITE_SYNC), 0);
    file_drop_cache(x->f);
    fake_move(&x->k);
    x->k.held[FAKE_RENEW] = x->k.held[FAKE_LOAD] = true;
    start_write(x, &w, 0, x->data + 7, BS, FILE_WRITE_THROUGH);
    start_read(x, &r, BS, BS, false);
    env_virtual_advance_ms(&x->k.v, 1000);
    n = x->k.n_moved;
    assert_int_equal(n, 2);
    env_virtual_advance_ms(&x->k.v, 60000);
    assert_int_equal(x->k.n_moved, n);
    assert_false(w.done || r.done);
    fake_release(&x->k, FAKE_RENEW);
    fake_release(&x->k, FAKE_LOAD);
    assert_int_equal(wait_call(x, &w), 0);
    assert_int_equal(wait_call(x, &r), 0);
    assert_memory_equal(x->buf, x->data + BS, BS);
}

/* exportd and the storages contradict each other: after some questions each call ends
 * with a normal error. */
static void a_file_that_is_nowhere_is_an_error(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };
    uint64_t found;
    size_t got;

    assert_int_equal(write_at(x, 0, 4 * BS, FILE_WRITE_THROUGH), 0);
    file_drop_cache(x->f);
    x->k.dist_generation = 5;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), -EIO);
    assert_true(x->k.n[FAKE_RENEW] >= 2 && x->k.n[FAKE_RENEW] <= 20);
    assert_int_equal(read_at(x, 0, BS, true, &got), -EIO);
    assert_int_equal(do_call(x, file_sync), -EIO);
    file_seek(x->f, 0, true, &found, on_done, &c);
    assert_int_equal(wait_call(x, &c), -EIO);
    c = (struct call){ 0 };
    file_allocate(x->f, 0, 20 * BS, false, on_done, &c);
    assert_int_equal(wait_call(x, &c), -EIO);
    c = (struct call){ 0 };
    file_punch(x->f, 2 * BS, 2 * BS, on_done, &c);
    assert_int_equal(wait_call(x, &c), -EIO);
    assert_true(x->k.n[FAKE_LOAD] <= 80);
    x->k.told_generation = 5;
    assert_int_equal(do_call(x, file_sync), 0);
    assert_written(x, BS, 3 * BS, true);
}

/* Goal: when exportd repeats a ref that storages refuse, it hears so, and is asked
 * with pauses: what it takes to find the later distribution is no error for
 * programs. */
static void exportd_has_time_to_find_a_later_distribution(void **state)
{
    struct fx *x = *state;
    struct call w, r;

    assert_int_equal(write_at(x, 0, 4 * BS, FILE_WRITE_SYNC), 0);
    file_drop_cache(x->f);
    x->k.dist_generation = 5;
    start_write(x, &w, 0, x->data + 7, BS, FILE_WRITE_THROUGH);
    start_read(x, &r, BS, BS, false);
    env_virtual_advance_ms(&x->k.v, 4000);
    assert_false(w.done || r.done);
    assert_true(x->k.n_told_moved > 1 && x->k.n_told_moved < 30);
    x->k.told_generation = 5;
    assert_int_equal(wait_call(x, &w), 0);
    assert_int_equal(wait_call(x, &r), 0);
    assert_memory_equal(x->buf, x->data + BS, BS);
    x->k.n_told_moved = 0;
    fake_move(&x->k);
    file_drop_cache(x->f);
    start_read(x, &r, BS, BS, false);
    assert_int_equal(wait_call(x, &r), 0);
    assert_int_equal(x->k.n_told_moved, 0);
}

/* Goal: after an answer that was sent before the move and comes late, the file stays
 * where it is, and so does what is reserved there. */
static void a_late_answer_does_not_move_it_back(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;
    struct call c = { 0 };
    unsigned n_allocs;

    fake_target(&target);
    fake_attr(&x->k, &attr);
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_SYNC), 0);
    file_allocate(x->f, 0, 20 * BS, true, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    n_allocs = x->k.n_allocs;
    attr.epoch = x->k.s.epoch;
    attr.size = BS, attr.has_data = true;
    fake_move(&x->k);
    target.dist_generation = x->k.told_generation;
    attr.epoch = 0; /* as in the open of a reader */
    file_refresh(x->f, &target, &attr);
    assert_int_equal(x->k.file_generation, 1);
    c = (struct call){ 0 };
    file_allocate(x->f, 0, 20 * BS, true, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    /* nothing was reserved at the new storages */
    assert_int_equal(x->k.n_allocs, n_allocs + 1);
    target.dist_generation = 0;
    attr.epoch = x->k.s.epoch + 1;
    file_refresh(x->f, &target, &attr);
    assert_int_equal(x->k.file_generation, 1);
    c = (struct call){ 0 };
    file_allocate(x->f, 0, 20 * BS, true, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n_allocs, n_allocs + 1);
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_SYNC), 0);
}

static void without_an_epoch_one_is_asked_for(void **state)
{
    struct fx *x = *state;

    assert_int_equal(close_file(x), 0);
    x->f = fake_open(&x->k, &x->config, 0);
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_SYNC), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    x->k.fail_all[FAKE_RENEW] = -ESTALE;
    x->k.min_epoch = 100;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_SYNC), -ESTALE);
}

static void an_unreadable_base_fails_the_write_out(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 2 * BS, 0), 0);
    reopen(x);
    x->k.fail_all[FAKE_READ] = -EIO;
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    assert_int_equal(write_at(x, 100, 10, 0), -EIO); /* the gap cannot be filled */
    x->k.fail_all[FAKE_READ] = 0;
    assert_int_equal(do_call(x, file_flush), 0);
    assert_written(x, 0, 2 * BS, true);
}

/* ---- given back to exportd, for other clients ---- */

static void giving_up_writes_what_can_be_written(void **state)
{
    struct fx *x = *state;

    assert_true(file_is_clean(x->f));
    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_false(file_is_clean(x->f));
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_int_equal(x->k.s.size, 10);
    assert_int_equal(file_losses(x->f), 0);
    assert_false(file_has_unreported(x->f));
    assert_at_rest(x);
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    x->k.fail_next[FAKE_WROTE] = -EIO;
    assert_int_equal(do_call(x, file_flush), -EIO);
    assert_false(file_is_clean(x->f)); /* to be reported later */
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_int_equal(x->k.s.size, 20);
    assert_at_rest(x);
    x->k.fail_next[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), -EIO);
    assert_int_equal(do_call(x, file_abandon), 0); /* the writer got that error */
    assert_at_rest(x);
}

static void what_cannot_be_written_is_given_up(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 100, 3 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    assert_int_equal(do_call(x, file_abandon), -EIO);
    assert_int_equal(file_size(x->f), BS);
    assert_int_equal(file_losses(x->f), 1);
    assert_true(file_has_unreported(x->f));
    assert_at_rest(x);
    x->k.fail_all[FAKE_WRITE] = 0;
    assert_at_rest(x);
    assert_int_equal(x->k.s.size, BS);
    assert_int_equal(write_at(x, 0, 2 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 2 * BS);
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_written(x, 0, 2 * BS, true);
    assert_int_equal(file_losses(x->f), 1);
}

static void who_may_not_write_any_more_tries_nothing(void **state)
{
    struct fx *x = *state;
    unsigned n_writes, n_told;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, 100, 3 * BS, 0), 0);
    n_writes = x->k.n[FAKE_WRITE];
    n_told = x->k.n[FAKE_WROTE];
    assert_int_equal(do_call(x, file_lose_all), -EIO);
    assert_true(x->k.n[FAKE_WRITE] == n_writes && x->k.n[FAKE_WROTE] == n_told);
    assert_int_equal(file_size(x->f), BS);
    assert_true(file_losses(x->f) > 0);
    assert_at_rest(x);
    assert_int_equal(write_at(x, 0, 2 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 2 * BS);
}

/* A new epoch does not bring another session: what began under a session that is over
 * must not be written under the next one. */
static void only_who_opens_brings_another_session(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;

    fake_target(&target);
    fake_attr(&x->k, &attr);
    attr.epoch = 2;
    target.session = 7;
    file_refresh(x->f, &target, &attr);
    assert_int_equal(x->k.session, 7);
    x->k.min_epoch = 3;
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    assert_int_equal(x->k.session, 7);
    attr.epoch = x->k.s.epoch;
    target.session = 9;
    file_refresh(x->f, &target, &attr);
    assert_int_equal(x->k.session, 9);
}

static void what_lies_behind_a_loss_is_told(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(write_at(x, 8 * BS, BS, 0), 0);
    x->k.in_order = true;
    x->k.fail_next[FAKE_WRITE] = -ENOSPC;
    file_abandon(x->f, on_done, &c);
    assert_int_equal(wait_call(x, &c), -ENOSPC);
    assert_int_equal(x->k.s.size, 9 * BS);
    assert_written(x, 8 * BS, BS, true);
    assert_at_rest(x);
}

/* Other clients wait for the file: a write that failed again is not retried while the
 * rest is in flight. */
static void what_fails_while_giving_up_is_not_tried_again(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 8 * BS, BS, 0), 0);
    reopen(x);
    x->k.n[FAKE_WRITE] = 0;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(write_at(x, 8 * BS + 5, 5, 0), 0);
    x->k.held[FAKE_READ] = true; /* the second write waits for the rest of its block */
    x->k.fail_next[FAKE_WRITE] = -EIO;
    file_abandon(x->f, on_done, &c);
    env_virtual_advance_ms(&x->k.v, 60 * 1000);
    assert_false(c.done);
    assert_int_equal(x->k.n[FAKE_WRITE], 1);
    fake_release(&x->k, FAKE_READ);
    assert_int_equal(wait_call(x, &c), -EIO);
    assert_int_equal(x->k.n[FAKE_WRITE], 2);
    assert_at_rest(x);
    assert_written(x, 8 * BS, BS, false);
}

/* Data that was reported as lost is not written with a new epoch when the file is given
 * back, as at a close: another client may have written there since. */
static void what_was_told_lost_is_not_given_a_fresh_epoch(void **state)
{
    struct fx *x = *state;

    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    x->k.fail_all[FAKE_WRITE] = 0;
    x->k.min_epoch = x->k.s.epoch + 1;
    assert_int_equal(do_call(x, file_abandon), -EIO);
    assert_int_equal(x->k.n[FAKE_RENEW], 0);
    assert_at_rest(x);
}

static void what_waits_for_bytes_that_are_given_up_hears_of_it(void **state)
{
    struct fx *x = *state;
    struct call sync = { 0 }, flush = { 0 }, c = { 0 };

    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    file_abandon(x->f, on_done, &c);
    file_sync(x->f, on_done, &sync);
    assert_int_equal(wait_call(x, &c), -EIO);
    assert_int_equal(wait_call(x, &sync), -EIO);
    x->k.fail_all[FAKE_WRITE] = 0;
    x->k.fail_all[FAKE_WROTE] = -EIO;
    assert_int_equal(write_at(x, 0, BS, 0), 0);
    c.done = sync.done = false;
    file_abandon(x->f, on_done, &c);
    file_sync(x->f, on_done, &sync);
    file_flush(x->f, on_done, &flush);
    assert_int_equal(wait_call(x, &c), -EIO);
    assert_int_equal(wait_call(x, &sync), -EIO);
    assert_int_equal(wait_call(x, &flush), -EIO);
    x->k.fail_all[FAKE_WROTE] = 0;
    assert_at_rest(x);
}

static void what_exportd_cannot_be_told_is_given_up(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 100, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    x->k.fail_all[FAKE_WROTE] = -ESTALE;
    assert_int_equal(write_at(x, 100, 2 * BS, 0), 0);
    assert_int_equal(do_call(x, file_abandon), -ESTALE);
    assert_int_equal(file_size(x->f), 100);
    assert_int_equal(file_losses(x->f), 1);
    assert_true(file_has_unreported(x->f));
    x->k.fail_all[FAKE_WROTE] = 0;
    assert_at_rest(x);
    assert_int_equal(x->k.s.size, 100);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 100);
    assert_written(x, 0, 100, false);
    assert_int_equal(write_at(x, 100, 100, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 200);
    assert_written(x, 100, 100, true);
}

/* exportd ignores this client's sizes, and the client asks for the reason: file_abandon()
 * waits for the answer, too. */
static void who_gives_up_waits_for_what_is_asked(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, BS, 3 * BS, 0), 0);
    x->k.cut_epoch = ++x->k.s.epoch;
    x->k.held[FAKE_RENEW] = true;
    file_abandon(x->f, on_done, &c);
    env_virtual_advance_ms(&x->k.v, 5000);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    assert_false(c.done);
    fake_release(&x->k, FAKE_RENEW);
    assert_int_equal(wait_call(x, &c), -EIO);
    assert_int_equal(file_size(x->f), BS);
    assert_at_rest(x);
}

/* A block that was abandoned while it was being completed is read again for a later
 * write. */
static void a_block_given_up_is_completed_anew(void **state)
{
    struct fx *x = *state;
    unsigned n;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    reopen(x);
    x->k.fail_all[FAKE_READ] = -EIO;
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    assert_int_equal(do_call(x, file_abandon), -EIO);
    assert_at_rest(x);
    x->k.fail_all[FAKE_READ] = 0;
    n = x->k.n[FAKE_READ];
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_int_equal(x->k.n[FAKE_READ], n + 1);
    assert_written(x, 0, BS, true);
}

/* exportd does not know of the truncate, so no other client will finish it: this client
 * must not do so later, over the data of others. */
static void a_cut_that_only_we_know_of_is_given_up(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;
    struct call c = { 0 };

    x->k.fail_all[FAKE_WROTE] = -EIO;
    assert_int_equal(write_at(x, 0, 4 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    fake_target(&target);
    fake_setattr_size(&x->k, BS, &attr); /* exportd sees a larger size */
    x->k.fail_all[FAKE_MARK] = -EIO;
    file_truncate(x->f, &target, &attr, on_done, &c);
    assert_int_equal(wait_call(x, &c), -EIO);
    x->k.fail_all[FAKE_WROTE] = x->k.fail_all[FAKE_MARK] = 0;
    assert_false(file_is_clean(x->f));
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_true(file_has_unreported(x->f));
    assert_at_rest(x);
    x->k.n[FAKE_MARK] = 0;
    assert_int_equal(write_at(x, 8 * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_MARK], 0);
}

/* ---- another client had the token in between ---- */

/* Truncates the file to `size` as another client that writes nothing and has finished
 * it. */
static void another_cuts(struct fx *x, uint64_t size)
{
    struct fake_state *s = &x->k.s;

    s->epoch++;
    s->truncate_version = version_make(s->epoch, 0);
    s->size = s->truncate_size = size;
    x->k.acked_end = size;
    for (uint64_t b = size / BS; b < FAKE_BLOCKS; b++) {
        struct fake_block *block = &s->blocks[b];
        uint64_t keep = b * BS < size ? size - b * BS : 0;

        block->version = version_make(s->epoch, 1);
        block->user_bytes = (uint16_t)keep;
        if (block->data != NULL)
            memset(block->data + keep, 0, BS - keep);
    }
}

/* Extends the file to `size` as another client, with one byte in its last block. */
static void another_grows(struct fx *x, uint64_t size)
{
    struct fake_block *block = &x->k.s.blocks[(size - 1) / BS];

    x->k.s.size = x->k.acked_end = size;
    if (block->data == NULL)
        block->data = calloc(1, BS);
    block->data[(size - 1) % BS] = 1;
    block->user_bytes = (uint16_t)((size - 1) % BS + 1);
    block->version = version_make(++x->k.s.epoch, 1);
}

/* Takes a token, and with it exportd's attributes; also a new epoch to write, if another
 * client has a later one. */
static void take_token(struct fx *x, bool to_write)
{
    struct storcli_target target;
    struct file_attr attr;

    if (to_write && x->k.s.epoch != file_epoch(x->f))
        x->k.min_epoch = ++x->k.s.epoch;
    fake_target(&target);
    fake_attr(&x->k, &attr);
    attr.epoch = to_write ? x->k.s.epoch : 0;
    x->k.n_updates = 0;
    file_drop_cache(x->f);
    file_refresh(x->f, &target, &attr);
    assert_int_equal(file_size(x->f), x->k.s.size);
    assert_true(file_is_clean(x->f));
    assert_int_equal(x->k.n_updates, to_write);
    assert_true(!to_write || file_epoch(x->f) == x->k.s.epoch);
}

static void bytes_that_another_cut_off_stay_away(void **state)
{
    struct fx *x = *state;
    uint64_t size = 3 * BS + 7;
    size_t got;

    x->config.cache_ms = FILE_CACHE_UNTIL_DROPPED;
    reopen(x);
    assert_int_equal(write_at(x, 0, 5 * BS, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_written(x, 0, 5 * BS, false);
    another_cuts(x, 10);
    another_grows(x, size);
    take_token(x, true);
    assert_written(x, 0, 10, false);
    assert_zeros(x, 10, size - 11);
    assert_int_equal(read_at(x, size - 1, BS, false, &got), 0);
    assert_int_equal(got, 1);
    assert_int_equal(x->buf[0], 1);
    assert_int_equal(write_at(x, 4 * BS, BS, 0), 0); /* behind the size that it left */
    assert_zeros(x, size, BS - 7);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 0);
    assert_int_equal(x->k.s.size, 5 * BS);
    assert_zeros(x, 10, size - 11);
    assert_zeros(x, size, BS - 7);
    assert_written(x, 4 * BS, BS, true);
    assert_int_equal(file_losses(x->f), 0);
}

static void who_appends_with_a_token_appends_at_the_new_end(void **state)
{
    struct fx *x = *state;
    struct call c;

    assert_int_equal(write_at(x, 0, 5 * BS, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    another_cuts(x, 10);
    take_token(x, true);
    start_write(x, &c, 0, x->data + 10, 20, FILE_WRITE_APPEND);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(file_size(x->f), 30);
    assert_int_equal(do_call(x, file_abandon), 0);
    assert_int_equal(x->k.s.size, 30);
    assert_written(x, 0, 30, false);
    take_token(x, true); /* a new capability with the same epoch */
    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    another_grows(x, 2 * BS);
    take_token(x, false); /* to read: the epoch stays */
    assert_written(x, 0, 30, false);
    assert_zeros(x, 30, 2 * BS - 31);
}

/* A size that this client reported before is not reported again after others have cut it:
 * exportd has not forgotten it. */
static void a_size_that_another_cut_is_not_told_again(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 5 * BS, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    another_cuts(x, 10);
    take_token(x, true);
    x->k.cut_epoch = x->k.s.epoch;
    another_grows(x, 6 * BS);
    take_token(x, true);
    x->k.s.size = 10; /* a power cut of exportd takes the growth */
    file_report_again(x->f);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 10);
    assert_int_equal(file_size(x->f), 10);
    assert_int_equal(file_losses(x->f), 0);
}

/* Some other client has cut the file, and this client does not know it since it takes no
 * token. */
static void a_sync_after_another_has_cut_loses_nothing(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 5 * BS, 0), 0);
    assert_int_equal(do_call(x, file_abandon), 0);
    another_cuts(x, 10);
    x->k.acked_end = 5 * BS; /* acknowledged and reported before */
    x->k.cut_epoch = x->k.s.epoch;
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 10);
    assert_int_equal(file_size(x->f), 10);
    assert_int_equal(file_losses(x->f), 0);
    assert_true(file_is_clean(x->f));
}

/* ---- reports to exportd ---- */

static void a_size_is_told_only_when_all_below_it_is_acknowledged(void **state)
{
    struct fx *x = *state;

    x->k.held[FAKE_WRITE] = true;
    assert_int_equal(write_at(x, 0, 1 << 20, 0), 0); /* held back */
    env_virtual_advance_ms(&x->k.v, 100);
    x->k.held[FAKE_WRITE] = false; /* later writes are not held */
    assert_int_equal(write_at(x, 1 << 20, 1 << 20, 0), 0);
    env_virtual_advance_ms(&x->k.v, 5000);
    assert_int_equal(x->k.s.size, 0);
    assert_int_equal(file_size(x->f), 2 << 20);
    fake_release(&x->k, FAKE_WRITE);
    env_virtual_advance_ms(&x->k.v, 2000);
    assert_int_equal(x->k.s.size, 2 << 20);
}

/* exportd received the size, and its power failed before that was stable. */
static void sync_tells_a_size_again_that_was_not_told_durably(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 100, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, 100);
    x->k.s.size = 0;
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 100);
    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0); /* exportd has it on stable storage now */
    assert_int_equal(x->k.last_wrote_size, 0);
}

/* exportd may have forgotten a size that another client reported; a size that was stable
 * is not reported again. */
static void what_exportd_may_have_forgotten_is_told_again(void **state)
{
    struct fx *x = *state;

    x->k.s.size = 300; /* from another client, and known to this one */
    assert_int_equal(write_at(x, 0, 300, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, 0, 200, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.s.size = 50;
    file_report_again(x->f);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 200);
    assert_int_equal(file_size(x->f), 300); /* acknowledged by this client */
    x->k.s.size = 50;
    file_report_again(x->f); /* exportd's size is final now */
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 50);
}

/* A report in flight may have reached the exportd before its restart or the one after it:
 * it does not count. */
static void a_report_under_way_is_told_again(void **state)
{
    struct fx *x = *state;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, 100, 0), 0);
    x->k.held[FAKE_WROTE] = true;
    file_sync(x->f, on_done, &c);
    env_virtual_advance_ms(&x->k.v, 100);
    assert_false(c.done);
    file_report_again(x->f);
    x->k.held[FAKE_WROTE] = false;
    fake_release(&x->k, FAKE_WROTE);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n_wrote_sync, 2);
    assert_int_equal(x->k.s.size, 100);
}

static void sync_syncs_storages_and_exportd_when_there_is_need(void **state)
{
    struct fx *x = *state;

    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_SYNC] + x->k.n[FAKE_WROTE], 0);
    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 0);
    assert_int_equal(x->k.n_wrote_sync, 0);
    assert_int_equal(do_call(x, file_sync), 0); /* reported, but not on stable storage */
    assert_int_equal(x->k.n[FAKE_SYNC], 1);
    assert_int_equal(x->k.n_wrote_sync, 1);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_SYNC], 1);
    assert_int_equal(x->k.n[FAKE_WROTE], 2);
}

static void a_sync_that_fails_says_so_and_can_be_repeated(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10, 0), 0);
    x->k.fail_next[FAKE_SYNC] = -EIO;
    assert_int_equal(do_call(x, file_sync), -EIO);
    x->k.fail_next[FAKE_WROTE] = -EIO;
    assert_int_equal(do_call(x, file_flush), 0); /* already reported */
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), -EIO);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 20);
    assert_false(x->k.unsynced);
}

static void a_forgotten_mtime_is_not_told(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_int_not_equal(file_mtime_ns(x->f), 0);
    file_forget_mtime(x->f);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.mtime_ns, 0);
}

static void other_clients_sizes_are_adopted(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10, 0), 0);
    fake_attr(&x->k, &attr);
    file_refresh(x->f, NULL, &attr); /* size 0: from before the write */
    assert_int_equal(file_size(x->f), 10);
    assert_int_equal(do_call(x, file_flush), 0);
    attr.size = 5000;
    attr.has_data = true;
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), 5000);
    attr.size = 3;
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), 3);
    assert_written(x, 0, 3, false);
}

/* Truncates the file to nothing as another client that has finished it. */
static void another_cuts_all(struct fx *x, struct file_attr *attr)
{
    fake_setattr_size(&x->k, 0, attr);
    x->k.s.truncate_pending = attr->truncate_pending = false;
    for (unsigned i = 0; i < FAKE_BLOCKS; i++)
        free(x->k.s.blocks[i].data);
    memset(x->k.s.blocks, 0, sizeof(x->k.s.blocks));
}

/* Some other client has cut the file before this one reported its changes; the next open
 * sees the new size. A later write extends the file to its own end, and no further. */
static void a_newer_truncate_is_believed_at_once(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    /* the mtime must be reported */
    assert_int_equal(write_at(x, 0, BS, FILE_WRITE_THROUGH), 0);
    another_cuts_all(x, &attr);
    fake_target(&target);
    attr.epoch = ++x->k.s.epoch;
    x->k.min_epoch = attr.epoch;
    file_refresh(x->f, &target, &attr);
    assert_int_equal(file_size(x->f), 0);
    assert_int_equal(write_at(x, 100, 100, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 200);
    assert_int_equal(file_size(x->f), 200);
    assert_zeros(x, 0, 100);
    assert_written(x, 100, 100, true);
}

/* The news of a truncate arrives with the new epoch that a write, or a punch, needed
 * because of it. */
static void check_news_of_a_cut(struct fx *x, bool alone)
{
    struct call c = { 0 };
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    another_cuts_all(x, &attr);
    x->k.min_epoch = x->k.s.epoch + 1;
    if (alone) {
        x->k.fail_next[FAKE_MARK] = -ESTALE;
        file_punch(x->f, BS, BS, on_done, &c);
        assert_int_equal(wait_call(x, &c), 0);
        assert_int_equal(x->k.n[FAKE_RENEW], 1);
        assert_int_equal(file_size(x->f), 0);
    }
    assert_int_equal(write_at(x, 2 * BS, 100, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], 1);
    /* other clients can see what was synced */
    assert_int_equal(x->k.s.size, 2 * BS + 100);
    assert_int_equal(file_size(x->f), 2 * BS + 100);
    assert_zeros(x, 0, 2 * BS);
}

static void a_cut_that_a_write_hears_of(void **state)
{
    check_news_of_a_cut(*state, false);
}

static void a_cut_that_a_punch_hears_of(void **state)
{
    check_news_of_a_cut(*state, true);
}

/* exportd lost its power and forgot a size; others may have cut off the bytes behind it.
 * The writers here get an error. */
static void a_cut_below_a_size_in_doubt_is_a_loss(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, BS, 3 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.s.size = BS;
    x->k.cut_epoch = ++x->k.s.epoch;
    file_report_again(x->f);
    fake_attr(&x->k, &attr);
    attr.truncate_version = version_make(x->k.cut_epoch, 0);
    attr.epoch = x->k.min_epoch = ++x->k.s.epoch;
    fake_target(&target);
    file_refresh(x->f, &target, &attr);
    assert_int_equal(file_size(x->f), BS);
    assert_int_equal(file_losses(x->f), 1);
}

/* ---- truncate ---- */

static void truncate_marks_cuts_and_tells(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(truncate_to(x, 3 * BS + 100), 0);
    assert_int_equal(x->k.last_mark_first, 4);
    assert_int_equal(x->k.last_mark_blocks, 0);
    assert_int_equal(x->k.last_mark_version, version_make(x->k.s.epoch, 0));
    assert_int_equal(x->k.last_write_first, 3);
    assert_int_equal(x->k.last_user_bytes, 100);
    assert_int_equal(x->k.s.blocks[3].user_bytes, 100);
    assert_true(x->k.s.blocks[3].version > version_make(x->k.s.epoch, 0));
    assert_false(x->k.s.truncate_pending);
    assert_int_equal(file_size(x->f), 3 * BS + 100);
    assert_written(x, 0, 3 * BS + 100, false);
    assert_int_equal(truncate_to(x, 8 * BS), 0); /* longer again, with zeros */
    assert_zeros(x, 3 * BS + 100, 5 * BS - 100);
    assert_int_equal(write_at(x, 7 * BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_zeros(x, 3 * BS + 100, 4 * BS - 100);
}

static void truncate_of_dirty_data_needs_no_look_at_storages(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0); /* unwritten */
    fake_target(&target);
    fake_setattr_size(&x->k, 100, &attr);
    file_truncate(x->f, &target, &attr, on_done, &c);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n[FAKE_READ], 0);
    assert_int_equal(x->k.s.blocks[0].user_bytes, 100);
    assert_int_equal(x->k.s.size, 100);
    assert_written(x, 0, 100, true);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, 100);
}

static void a_truncate_that_failed_is_finished_before_the_file_grows(void **state)
{
    struct fx *x = *state;
    unsigned n;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    x->k.fail_all[FAKE_MARK] = -EIO;
    assert_int_equal(truncate_to(x, 100), -EIO);
    assert_int_equal(file_size(x->f), 100);
    assert_int_equal(write_at(x, 50, 50, 0), 0); /* within the size: accepted */
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(write_at(x, 100, 10, 0), -EIO);
    assert_int_equal(file_size(x->f), 100);
    x->k.fail_all[FAKE_MARK] = 0;
    n = x->k.n[FAKE_TRUNCATED];
    assert_int_equal(write_at(x, 5 * BS, 10, 0), 0);
    assert_int_equal(x->k.n[FAKE_TRUNCATED], n + 1);
    assert_false(x->k.s.truncate_pending);
    assert_zeros(x, 100, 5 * BS - 100);
    reopen(x);
    assert_zeros(x, 100, 5 * BS - 100);
}

/* A client that sees a size of a later epoch believes that the truncate is finished. It
 * is not, so the file must not grow, or the old bytes would come back. */
static void a_file_made_longer_over_a_truncate_that_failed_has_no_old_bytes(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    x->k.fail_all[FAKE_MARK] = -EIO;
    assert_int_equal(truncate_to(x, 100), -EIO);
    assert_int_equal(truncate_to(x, 8 * BS), -EIO);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(write_at(x, 50, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_true(x->k.s.truncate_pending);
    x->k.fail_all[FAKE_MARK] = 0;
    assert_int_equal(write_at(x, 7 * BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_false(x->k.s.truncate_pending);
    reopen(x);
    assert_zeros(x, 100, 7 * BS - 100);
}

/* The marks and the cut block must be stable first: exportd forgets a truncate that it
 * received, and a power cut must not undo it. */
static void exportd_hears_of_a_truncate_once_it_is_stable_on_the_storages(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;
    struct call c = { 0 };

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    x->k.fail_all[FAKE_SYNC] = -EIO;
    assert_int_equal(truncate_to(x, 3 * BS + 100), -EIO);
    assert_int_equal(x->k.n[FAKE_TRUNCATED], 0);
    assert_true(x->k.s.truncate_pending);
    x->k.fail_all[FAKE_SYNC] = 0;
    x->k.held[FAKE_SYNC] = true;
    assert_int_equal(do_call(x, file_truncate_begin), 0);
    fake_target(&target);
    fake_setattr_size(&x->k, 2 * BS, &attr);
    file_truncate(x->f, &target, &attr, on_done, &c);
    env_virtual_advance_ms(&x->k.v, 5000);
    assert_false(c.done);
    assert_int_equal(x->k.n[FAKE_MARK], 2);
    assert_int_equal(x->k.n[FAKE_TRUNCATED], 0);
    fake_release(&x->k, FAKE_SYNC);
    assert_int_equal(wait_call(x, &c), 0);
    assert_int_equal(x->k.n[FAKE_TRUNCATED], 1);
    assert_false(x->k.s.truncate_pending);
}

/* A writer died before it reported its data: the next writer cuts off what may lie behind
 * exportd's size. */
static void what_a_dead_client_never_told_of_is_cut_off(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 3 * BS, 0), 0);
    assert_int_equal(close_file(x), 0);
    fake_setattr_size(&x->k, BS + 10, &attr);
    x->k.s.has_data = false;
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    assert_int_equal(write_at(x, 4 * BS, 10, 0), 0);
    assert_false(x->k.s.truncate_pending);
    assert_zeros(x, BS + 10, 3 * BS - 10);
    assert_int_equal(do_call(x, file_flush), 0);
    reopen(x);
    assert_zeros(x, BS + 10, 3 * BS - 10);
}

static void a_dead_clients_truncate_is_finished(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(close_file(x), 0);
    fake_setattr_size(&x->k, BS + 10, &attr); /* as a client that died then */
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    assert_int_equal(x->k.n[FAKE_MARK], 0);
    assert_written(x, 0, BS + 10, false);
    assert_int_equal(write_at(x, 4 * BS, 10, 0), 0);
    assert_int_equal(x->k.last_mark_version, attr.truncate_version);
    assert_int_equal(x->k.last_mark_first, 2);
    assert_false(x->k.s.truncate_pending);
    assert_zeros(x, BS + 10, 3 * BS - 10);
    reopen(x);
    assert_zeros(x, BS + 10, 3 * BS - 10);
    assert_written(x, 4 * BS, 10, false);
}

/* A truncate needed a mark with a newer version than exportd knew, and its client died.
 * Another client must be able to finish it, or the file could not grow any more. */
static void a_dead_clients_truncate_with_newer_marks_is_finished(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(close_file(x), 0);
    fake_setattr_size(&x->k, BS + 10, &attr);
    x->k.s.blocks[5].version = version_make(50, 1);
    x->k.s.blocks[5].user_bytes = 0;
    memset(x->k.s.blocks[5].data, 0, BS);
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    assert_int_equal(write_at(x, 8 * BS, 10, 0), 0);
    assert_int_equal(x->k.n[FAKE_MARK], 2); /* one refused, one below newer records */
    assert_false(x->k.s.truncate_pending);
    reopen(x);
    assert_zeros(x, BS + 10, 7 * BS - 10);
    assert_written(x, 8 * BS, 10, false);
}

/* A dirty block is completed from storages and its write is refused; the new epoch brings
 * the news that another client has cut off those bytes. They must not come back, neither
 * now nor below a late mark when another client finishes the truncate. alone: a punch
 * waits for the block. */
static void check_foreign_truncate_meanwhile(struct fx *x, bool alone)
{
    struct call flush = { 0 }, punch = { 0 };
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    file_drop_cache(x->f);
    assert_int_equal(write_at(x, 4 * BS + 100, 10, 0), 0);
    x->k.held[FAKE_WRITE] = true;
    if (alone)
        file_punch(x->f, 4 * BS + 50, 10, on_done, &punch);
    file_flush(x->f, on_done, &flush);
    env_virtual_advance_ms(&x->k.v, 200); /* completed, and in flight */
    fake_setattr_size(&x->k, BS + 10, &attr);
    x->k.min_epoch = x->k.s.epoch + 1;
    fake_release(&x->k, FAKE_WRITE);
    if (alone)
        assert_int_equal(wait_call(x, &punch), 0);
    assert_int_equal(wait_call(x, &flush), 0);
    assert_zeros(x, BS + 10, 3 * BS + 90);
    assert_written(x, 4 * BS + 100, 10, false);
    assert_false(x->k.s.truncate_pending);
    assert_int_equal(close_file(x), 0);
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    assert_int_equal(write_at(x, 9 * BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    file_drop_cache(x->f);
    assert_zeros(x, BS + 10, 3 * BS + 90);
    assert_written(x, 4 * BS + 100, 10, true);
    assert_zeros(x, 4 * BS + 110, 5 * BS - 110);
}

static void what_another_cuts_off_does_not_come_back(void **state)
{
    check_foreign_truncate_meanwhile(*state, false);
}

static void nor_below_a_punch(void **state)
{
    check_foreign_truncate_meanwhile(*state, true);
}

/* The attributes were read before this client reported a size, and the answer arrives
 * after that. */
static void an_answer_that_was_overtaken_does_not_make_the_file_shorter(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    fake_attr(&x->k, &attr);
    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    attr.size_age = SIZE_PERHAPS_OLD;
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), 10 * BS);
    assert_written(x, 0, 10 * BS, false);
    attr.size_age = SIZE_NEW; /* cut by another client */
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), 0);
}

/* The answer of an open was lost, and the repeated one is from before this client's
 * truncate. */
static void nor_longer(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    fake_attr(&x->k, &attr);
    assert_int_equal(truncate_to(x, BS), 0);
    attr.size_age = SIZE_OLD;
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), BS);
    attr.size_age = SIZE_PERHAPS_OLD; /* written by another client */
    file_refresh(x->f, NULL, &attr);
    assert_int_equal(file_size(x->f), 10 * BS);
}

/* An fsync reports the size of a truncate again, since exportd's power may have
 * failed. */
static void an_fsync_tells_the_size_of_a_truncate(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(truncate_to(x, 5 * BS), 0);
    x->k.s.size = 10; /* exportd lost the truncate */
    x->k.acked_end = 5 * BS;
    assert_int_equal(write_at(x, BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, 5 * BS);
}

static void a_pending_truncate_that_somebody_finished_is_let_go(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(close_file(x), 0);
    fake_setattr_size(&x->k, BS, &attr);
    x->f = fake_open(&x->k, &x->config, x->k.s.epoch + 1);
    x->k.s.truncate_pending = false; /* finished by another client, which wrote then */
    x->k.s.blocks[2].version = version_make(50, 1);
    assert_int_equal(write_at(x, 3 * BS, 10, 0), 0);
    assert_int_equal(x->k.n[FAKE_MARK], 1);
    assert_int_equal(x->k.n[FAKE_TRUNCATED], 0);
}

static void writes_wait_while_a_truncate_is_held(void **state)
{
    struct fx *x = *state;
    struct storcli_target target;
    struct file_attr attr;
    struct call w, t = { 0 };

    assert_int_equal(write_at(x, 0, 4 * BS, 0), 0);
    assert_int_equal(do_call(x, file_truncate_begin), 0);
    assert_int_equal(x->k.s.size, 4 * BS);
    start_write(x, &w, 8 * BS, x->data, 10, 0);
    env_virtual_advance_ms(&x->k.v, 5000);
    assert_false(w.done);
    file_truncate_cancel(x->f);
    assert_int_equal(wait_call(x, &w), 0);
    assert_int_equal(do_call(x, file_truncate_begin), 0);
    start_write(x, &w, 2 * BS, x->data, 10, 0);
    fake_target(&target);
    fake_setattr_size(&x->k, BS, &attr);
    file_truncate(x->f, &target, &attr, on_done, &t);
    assert_int_equal(wait_call(x, &t), 0);
    assert_int_equal(wait_call(x, &w), 0);
    assert_int_equal(file_size(x->f), 2 * BS + 10);
    assert_zeros(x, BS, BS);
}

/* The answer to a truncate was lost. exportd may have given it an epoch above this
 * client's, and a client that finishes it would cut off writes of older epochs. */
static void nothing_is_written_under_a_truncate_that_may_have_happened(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_truncate_begin), 0);
    fake_setattr_size(&x->k, 100, &attr);
    file_truncate_unsure(x->f);
    assert_int_equal(write_at(x, 5 * BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.last_mark_version, attr.truncate_version);
    assert_true(x->k.s.blocks[5].version > attr.truncate_version);
    assert_false(x->k.s.truncate_pending);
    assert_int_equal(x->k.s.size, 5 * BS + 10);
    assert_zeros(x, 100, 5 * BS - 100);
    reopen(x);
    assert_zeros(x, 100, 5 * BS - 100);
    assert_written(x, 5 * BS, 10, false);
}

static void a_truncate_that_turns_out_not_to_have_happened(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_truncate_begin), 0);
    x->k.fail_next[FAKE_RENEW] = -EIO; /* exportd is still down */
    file_truncate_unsure(x->f);
    env_virtual_advance_ms(&x->k.v, 1000);
    assert_written(x, 0, 10 * BS, false);
    x->k.fail_all[FAKE_RENEW] = -EIO;
    assert_int_equal(write_at(x, 12 * BS, 10, 0), -EIO);
    assert_int_equal(range_call(x, 0, BS, true, true), -EIO);
    assert_int_equal(do_call(x, file_truncate_begin), -EIO);
    x->k.fail_all[FAKE_RENEW] = 0;
    assert_int_equal(write_at(x, 12 * BS, 10, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    reopen(x);
    assert_written(x, 0, 10 * BS, false);
    assert_zeros(x, 10 * BS, 2 * BS);
    assert_written(x, 12 * BS, 10, false);
}

/* An answer to a question from before the truncate says nothing about it. */
static void an_older_question_does_not_answer_for_a_truncate(void **state)
{
    struct fx *x = *state;
    struct file_attr attr;
    unsigned n;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.min_epoch = x->k.s.epoch + 5; /* makes the write ask for an epoch */
    x->k.held[FAKE_RENEW] = true;
    n = x->k.n[FAKE_RENEW];
    assert_int_equal(write_at(x, 20 * BS, 10, 0), 0);
    env_virtual_advance_ms(&x->k.v, 5000);
    assert_int_equal(x->k.n[FAKE_RENEW], n + 1);
    file_truncate_unsure(x->f);
    fake_release(&x->k, FAKE_RENEW);
    env_virtual_run_posted(&x->k.v);
    fake_setattr_size(&x->k, 3 * BS, &attr);
    x->k.held[FAKE_RENEW] = false;
    fake_release(&x->k, FAKE_RENEW);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.n[FAKE_RENEW], n + 2);
    assert_false(x->k.s.truncate_pending);
    reopen(x);
    assert_written(x, 0, 3 * BS, false);
    assert_zeros(x, 3 * BS, 17 * BS);
    assert_written(x, 20 * BS, 10, false);
}

/* ---- punch, allocate, seek ---- */

static void punch_marks_whole_blocks_and_zeros_the_rest(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(range_call(x, BS + 100, 5 * BS, true, false), 0);
    assert_int_equal(x->k.last_mark_first, 2);
    assert_int_equal(x->k.last_mark_blocks, 4);
    assert_written(x, 0, BS + 100, false);
    assert_zeros(x, BS + 100, 5 * BS);
    assert_written(x, 6 * BS + 100, 4 * BS - 100, false);
    assert_int_equal(do_call(x, file_flush), 0);
    file_drop_cache(x->f);
    assert_zeros(x, BS + 100, 5 * BS);
    assert_written(x, 6 * BS + 100, 4 * BS - 100, true);
    assert_int_equal(x->k.s.blocks[3].user_bytes, 0);
    assert_int_equal(file_size(x->f), 10 * BS);
}

/* A dirty run over the range may wait for another run that does not touch the range, and
 * that would wait for the punch. */
static void punch_waits_for_no_run_that_waits_for_the_punch(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.fail_all[FAKE_WRITE] = -EIO;
    assert_int_equal(write_at(x, 2 * BS, 3 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), -EIO);
    x->k.fail_all[FAKE_WRITE] = 0;
    assert_int_equal(write_at(x, 4 * BS, 3 * BS, 0), 0);
    assert_int_equal(range_call(x, 6 * BS, 2 * BS, true, true), 0);
    assert_zeros(x, 6 * BS, 2 * BS);
    assert_written(x, 0, 6 * BS, false);
    assert_int_equal(do_call(x, file_flush), 0);
}

static void punch_stays_within_the_size(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 2 * BS + 10, 0), 0);
    assert_int_equal(range_call(x, 2 * BS, 100 * BS, true, false), 0);
    assert_int_equal(x->k.last_mark_first, 2);
    assert_int_equal(x->k.last_mark_blocks, 1);
    assert_int_equal(file_size(x->f), 2 * BS + 10);
    assert_int_equal(range_call(x, 3 * BS, 10, true, false), 0);
    assert_int_equal(range_call(x, 10, 10, true, false), 0);
    assert_zeros(x, 10, 10);
    assert_zeros(x, 2 * BS, 10);
    assert_written(x, 20, 2 * BS - 20, false);
}

static void allocate_reserves_and_grows(void **state)
{
    struct fx *x = *state;
    struct call c;

    assert_false(file_has_stored(x->f));
    assert_int_equal(range_call(x, 0, 10 * BS, false, true), 0);
    /* makes later punches reach the storages */
    assert_true(file_has_stored(x->f) && file_has_data(x->f));
    assert_int_equal(file_size(x->f), 0);
    assert_int_equal(range_call(x, 0, 10 * BS + 1, false, false), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, 10 * BS + 1); /* reported like the size of a write */
    assert_zeros(x, 0, 10 * BS + 1);
    start_write(x, &c, 5 * BS, x->data, 10, 0);
    assert_int_equal(wait_call(x, &c), 0);
    assert_zeros(x, 0, 5 * BS);
    x->k.fail_next[FAKE_ALLOC] = -ENOSPC;
    assert_int_equal(range_call(x, 40 * BS, 5 * BS, false, false), -ENOSPC);
    assert_int_equal(file_size(x->f), 10 * BS + 1);
}

/* Allocation block by block, as posix_fallocate() does it; only blocks that may have been
 * freed are requested again. */
static void what_is_reserved_is_not_asked_for_again(void **state)
{
    struct fx *x = *state;

    for (unsigned i = 1; i <= 64; i++)
        assert_int_equal(range_call(x, 0, i * (BS / 2), false, i % 2 == 0), 0);
    assert_int_equal(x->k.n_allocs, 6); /* 1, 2, 4, 8, 16, 32 blocks */
    assert_int_equal(x->k.last_alloc_blocks, 32);
    assert_int_equal(range_call(x, 3 * BS + 5, 20 * BS, false, false), 0);
    assert_int_equal(x->k.n_allocs, 6);
    assert_int_equal(file_size(x->f), 63 * (BS / 2));
    assert_int_equal(do_call(x, file_flush), 0);
    assert_true(x->k.s.has_data);

    assert_int_equal(range_call(x, 8 * BS, 2 * BS, true, false), 0); /* a punch */
    assert_int_equal(range_call(x, 0, 31 * BS, false, false), 0);
    assert_int_equal(x->k.n_allocs, 7);
    assert_int_equal(x->k.last_alloc_first, 8);
    assert_int_equal(x->k.last_alloc_blocks, 2);
    assert_int_equal(truncate_to(x, 20 * BS), 0);
    assert_int_equal(range_call(x, 10 * BS, 15 * BS, false, false), 0);
    assert_int_equal(x->k.n_allocs, 8);
    assert_int_equal(x->k.last_alloc_first, 20);
    file_drop_cache(x->f); /* others may have freed all of it */
    assert_int_equal(range_call(x, 0, BS, false, false), 0);
    assert_int_equal(x->k.n_allocs, 9);
    /* the second try requests no more than needed */
    x->k.fail_next[FAKE_ALLOC] = -ENOSPC;
    assert_int_equal(range_call(x, 0, 2 * BS, false, false), 0);
    assert_int_equal(x->k.n_allocs, 11);
    assert_int_equal(x->k.last_alloc_blocks, 1);
}

/* Storages may have created files, whether the allocation succeeds or not: exportd is
 * informed that there is data, so that they will be removed. */
static void exportd_hears_of_what_was_reserved(void **state)
{
    struct fx *x = *state;

    x->k.fail_next[FAKE_ALLOC] = -ENOSPC;
    assert_int_equal(range_call(x, 0, BS, false, true), -ENOSPC);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_true(x->k.s.has_data);
    assert_int_equal(x->k.s.size, 0);
}

static void seek_sees_storages_and_memory(void **state)
{
    struct fx *x = *state;
    uint64_t at = 0;

    assert_int_equal(seek(x, 0, false, &at), -ENXIO);
    assert_int_equal(write_at(x, 4 * BS, 2 * BS, 0), 0);
    assert_int_equal(seek(x, 0, false, &at), 0); /* found in memory */
    assert_int_equal(at, 4 * BS);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(write_at(x, 6 * BS, 10, 0), 0);
    assert_int_equal(write_at(x, 20 * BS + 5, 10, 0), 0);
    assert_int_equal(seek(x, 100, false, &at), 0);
    assert_int_equal(at, 4 * BS);
    assert_int_equal(seek(x, 5 * BS + 1, false, &at), 0);
    assert_int_equal(at, 5 * BS + 1);
    /* from the storages, then from memory */
    assert_int_equal(seek(x, 4 * BS, true, &at), 0);
    assert_int_equal(at, 7 * BS);
    assert_int_equal(seek(x, 7 * BS, false, &at), 0);
    assert_int_equal(at, 20 * BS);
    assert_int_equal(seek(x, 20 * BS, true, &at), 0); /* the end is a hole */
    assert_int_equal(at, 20 * BS + 15);
    assert_int_equal(seek(x, 20 * BS + 15, true, &at), -ENXIO);
    assert_int_equal(seek(x, 1, true, &at), 0);
    assert_int_equal(at, 1);
}

/* ---- reading ---- */

static void a_sequential_reader_is_served_from_ahead(void **state)
{
    struct fx *x = *state;
    unsigned n;
    size_t got;

    assert_int_equal(write_at(x, 0, 2 << 20, 0), 0);
    reopen(x);
    x->k.n[FAKE_READ] = 0;
    x->k.blocks_read = 0;
    for (unsigned i = 0; i < 16; i++)
        assert_written(x, i * (128 << 10), 128 << 10, false);
    assert_true(x->k.n[FAKE_READ] <= 8);
    assert_int_equal(x->k.blocks_read, 512); /* each block once */
    n = x->k.n[FAKE_READ];
    assert_written(x, (2 << 20) - 100, 100, false);
    assert_int_equal(x->k.n[FAKE_READ], n);
    assert_int_equal(read_at(x, 2 << 20, 100, false, &got), 0); /* behind the end */
    assert_int_equal(got, 0);
    env_virtual_advance_ms(&x->k.v, 1500); /* data that is too old is not used */
    assert_written(x, (2 << 20) - 100, 100, false);
    assert_int_equal(x->k.n[FAKE_READ], n + 1);
}

static void write_much(struct fx *x, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += 1 << 20)
        assert_int_equal(write_at(x, at, 1 << 20, 0), 0);
}

/* Two readers take turns in one file, as for two tracks of a film: read-ahead follows
 * each. */
static void two_streams_in_one_file_are_both_served_from_ahead(void **state)
{
    struct fx *x = *state;
    uint64_t half = 2 << 20;

    write_much(x, 4 << 20);
    reopen(x);
    x->k.n[FAKE_READ] = 0;
    x->k.blocks_read = 0;
    for (unsigned i = 0; i < 16; i++) {
        assert_written(x, i * (128 << 10), 128 << 10, false);
        assert_written(x, half + i * (128 << 10), 128 << 10, false);
    }
    assert_true(x->k.n[FAKE_READ] <= 16);
    assert_true(x->k.blocks_read <= 1024 + 8); /* hardly any block is read twice */
}

/* Reads n pieces at equal distances, and checks that read-ahead fetches each block once,
 * before it is needed. */
static void read_steps(struct fx *x, uint64_t from, int64_t step, unsigned n)
{
    enum { LEN = 64 << 10 };

    x->k.n[FAKE_READ] = 0;
    x->k.blocks_read = 0;
    for (unsigned i = 0; i < n; i++) {
        assert_written(x, from + (uint64_t)(step * i), LEN, false);
        if (i == n / 2) /* fetched before they are requested */
            assert_true(x->k.blocks_read >= (i + 4) * (LEN / BS));
    }
    /* Each requested block was read once, and no block between them. */
    assert_int_equal(x->k.blocks_read, n * (LEN / BS));
}

static void a_reader_in_equal_steps_is_served_from_ahead(void **state)
{
    struct fx *x = *state;
    uint64_t size = 8 << 20, from = 512 << 10;

    write_much(x, size);
    reopen(x);
    read_steps(x, from, 512 << 10, 15);
    reopen(x);
    read_steps(x, size - (448 << 10), -(512 << 10), 16); /* backwards */
}

static void who_jumps_about_is_given_what_he_asks_for(void **state)
{
    struct fx *x = *state;
    unsigned n = 0;

    write_much(x, 8 << 20);
    reopen(x);
    x->k.blocks_read = 0;
    for (unsigned i = 1; i < 12; i++, n++)
        assert_written(x, (uint64_t)((i * 5) % 13) * (600 << 10), BS, false);
    assert_int_equal(x->k.blocks_read, n);
}

/* Read-ahead requests more while answers take long. */
static void far_storages_are_asked_further_ahead(void **state)
{
    struct fx *x = *state;
    struct call r;
    uint64_t most = 0, at;

    write_much(x, 8 << 20);
    reopen(x);
    x->k.blocks_read = 0;
    for (at = 0; at < 3 << 20; at += 128 << 10) {
        x->k.held[FAKE_READ] = true;
        start_read(x, &r, at, 128 << 10, false);
        env_virtual_advance_ms(&x->k.v, 40);
        fake_release(&x->k, FAKE_READ);
        assert_int_equal(wait_call(x, &r), 0);
        most = x->k.blocks_read * BS - at > most ? x->k.blocks_read * BS - at : most;
    }
    assert_true(most > 3 << 20);
    assert_true(most < 5 << 20);
}

/* With FILE_CACHE_UNTIL_DROPPED the owner says when others have written: cached data does
 * not expire before that. */
static void clean_data_are_kept_until_they_are_dropped(void **state)
{
    struct fx *x = *state;
    unsigned n;

    x->config.cache_ms = FILE_CACHE_UNTIL_DROPPED;
    assert_int_equal(write_at(x, 0, 4 * BS, 0), 0);
    reopen(x);
    assert_written(x, 0, 4 * BS, false);
    n = x->k.n[FAKE_READ];
    env_virtual_advance_ms(&x->k.v, 3600 * 1000);
    assert_written(x, 0, 4 * BS, false);
    assert_int_equal(x->k.n[FAKE_READ], n);
    assert_false(env_virtual_run_next_timer(&x->k.v));
    file_drop_cache(x->f);
    assert_written(x, 0, 4 * BS, false);
    assert_int_equal(x->k.n[FAKE_READ], n + 1);
}

/* A read in flight when the cache is dropped may be older than what others wrote. */
static void what_is_being_fetched_is_dropped_too(void **state)
{
    struct fx *x = *state;
    struct call r;

    x->config.cache_ms = FILE_CACHE_UNTIL_DROPPED;
    assert_int_equal(write_at(x, 0, 512 * BS, 0), 0);
    reopen(x);
    x->k.held[FAKE_READ] = true;
    start_read(x, &r, 0, 4 * BS, false);
    env_virtual_advance_ms(&x->k.v, 100);
    assert_true(x->k.blocks_read > 4); /* some of it is read-ahead */
    file_drop_cache(x->f);
    fake_release(&x->k, FAKE_READ);
    assert_int_equal(wait_call(x, &r), 0);
    env_virtual_advance_ms(&x->k.v, 100);
    x->k.n[FAKE_READ] = 0;
    assert_written(x, 4 * BS, 32 * BS, false);
    assert_int_not_equal(x->k.n[FAKE_READ], 0);
}

/* A read in flight when the cache is dropped does not complete a dirty block either. */
static void what_completes_a_block_is_dropped_too(void **state)
{
    struct fx *x = *state;
    struct call flush = { 0 };

    assert_int_equal(write_at(x, 0, BS, 0), 0);
    reopen(x);
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    x->k.held[FAKE_READ] = true;
    file_flush(x->f, on_done, &flush);
    env_virtual_advance_ms(&x->k.v, 100);
    assert_int_equal(x->k.n[FAKE_READ], 1);
    file_drop_cache(x->f);
    fake_release(&x->k, FAKE_READ);
    assert_int_equal(wait_call(x, &flush), 0);
    assert_int_equal(x->k.n[FAKE_READ], 2);
    assert_written(x, 0, BS, true);
}

/* The engine learns which bytes of a written block come from storages: a power failure
 * may have taken what was there before. */
static void what_was_read_and_completes_a_block_is_told_of(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 4 * BS, 0), 0);
    assert_int_equal(write_at(x, 10, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(write_at(x, 20, 10, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.n_completes, 0); /* all bytes are this client's own */
    reopen(x);
    assert_written(x, 0, 4 * BS, false);
    x->k.n[FAKE_READ] = 0;
    assert_int_equal(write_at(x, 2 * BS + 10, 10, 0), 0); /* completed from the cache */
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.n[FAKE_READ], 0);
    assert_int_not_equal(x->k.n_completes, 0);
    assert_int_equal(x->k.last_completed, 2);
    file_drop_cache(x->f);
    assert_int_equal(write_at(x, BS + 10, 10, 0), 0); /* completed by a read */
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.last_completed, 1);
    assert_int_equal(truncate_to(x, 3 * BS + 10), 0);
    assert_int_equal(x->k.last_completed, 3);
}

static void a_random_reader_reads_only_what_he_asks_for(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 0, 2 << 20, 0), 0);
    reopen(x);
    x->k.blocks_read = 0;
    assert_written(x, 400 * BS, BS, false);
    assert_written(x, 100 * BS + 5, BS, false);
    assert_written(x, 300 * BS, 10, false);
    assert_int_equal(x->k.blocks_read, 4);
}

static void a_direct_read_asks_storages_and_sees_accepted_writes(void **state)
{
    struct fx *x = *state;
    unsigned n;

    assert_int_equal(write_at(x, 0, 10 * BS, 0), 0);
    assert_written(x, 5, 9 * BS, true);
    assert_int_equal(x->k.n[FAKE_WRITE], 1);
    n = x->k.n[FAKE_READ];
    assert_written(x, 5, 9 * BS, true);
    assert_int_equal(x->k.n[FAKE_READ], n + 1);
}

static void a_read_that_fails_elsewhere_is_tried_alone(void **state)
{
    struct fx *x = *state;
    size_t got;

    assert_int_equal(write_at(x, 0, 1 << 20, 0), 0);
    reopen(x);
    x->k.fail_next[FAKE_READ] = -EIO;
    assert_written(x, 0, BS, false);
    x->k.fail_all[FAKE_READ] = -EIO;
    file_drop_cache(x->f);
    assert_int_equal(read_at(x, 0, BS, false, &got), -EIO);
    assert_int_equal(read_at(x, 0, BS, true, &got), -EIO);
}

static void a_write_during_a_fetch_is_not_forgotten(void **state)
{
    struct fx *x = *state;
    uint8_t fresh[BS];
    struct call r, w;

    memset(fresh, 9, sizeof(fresh));
    assert_int_equal(write_at(x, 0, 4 * BS, 0), 0);
    reopen(x);
    x->k.held[FAKE_READ] = true;
    start_read(x, &r, 0, 4 * BS, false);
    env_virtual_advance_ms(&x->k.v, 100);
    start_write(x, &w, BS, fresh, BS, 0);
    assert_int_equal(wait_call(x, &w), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    env_virtual_advance_ms(&x->k.v, 5000); /* not in the cache any more */
    fake_release(&x->k, FAKE_READ);
    assert_int_equal(wait_call(x, &r), 0);
    assert_int_equal(x->buf[0], x->data[0]);
    start_read(x, &r, BS, BS, false);
    assert_int_equal(wait_call(x, &r), 0);
    assert_memory_equal(x->buf, fresh, BS);
}

static void files_share_a_pool(void **state)
{
    struct fx *x = *state;
    struct file_config config = { 0 };
    struct file *first = x->f;
    uint64_t big = 1 << 20;

    assert_int_equal(file_pool_new(2 << 20, &config.pool), 0);
    x->f = fake_open(&x->k, &config, 2);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(write_at(x, i * big, big, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_written(x, i * big, big, false);
    assert_int_equal(close_file(x), 0);
    file_pool_free(config.pool);
    x->f = first;
}

/* Cached data of an idle file gives room to other files. */
static void clean_data_of_idle_files_make_room(void **state)
{
    struct fx *x = *state;
    struct file_config config = { .cache_ms = FILE_CACHE_UNTIL_DROPPED };
    struct file *own = x->f, *idle;
    struct call one, two;
    unsigned n;

    assert_int_equal(file_pool_new(64 * BS, &config.pool), 0);
    idle = x->f = fake_open(&x->k, &config, 2);
    assert_int_equal(write_at(x, 0, 60 * BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->f = fake_open(&x->k, &config, 3);
    x->k.held[FAKE_WRITE] = true;
    start_write(x, &one, 128 * BS, x->data, 32 * BS, 0);
    start_write(x, &two, 300 * BS, x->data, 8 * BS, 0);
    env_virtual_run_posted(&x->k.v);
    assert_true(one.done && two.done); /* copied into the pool */
    x->k.held[FAKE_WRITE] = false;
    fake_release(&x->k, FAKE_WRITE);
    assert_int_equal(close_file(x), 0);
    x->f = idle;
    n = x->k.n[FAKE_READ];
    assert_written(x, 0, 60 * BS, false);
    assert_int_not_equal(x->k.n[FAKE_READ], n);
    assert_int_equal(close_file(x), 0);
    file_pool_free(config.pool);
    x->f = own;
}

static void file_punch_last(struct file *f, file_done_cb *done, void *arg)
{
    file_punch(f, 200 * BS, BS, done, arg);
}

static bool told_of(const struct fx *x, uint64_t first, uint64_t end)
{
    for (uint64_t b = 0; b < FAKE_BLOCKS; b++)
        if (x->k.s.allocated[b] != (b >= first && b < end))
            return false;
    return true;
}

/* A client that opens a file for writing after another writer died asks the storages for
 * unreported data, in the holes only. */
static void blocks_that_nobody_told_of_are_found(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 50 * BS, 10 * BS, 0), 0);
    assert_int_equal(write_at(x, 200 * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_punch_last), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_true(told_of(x, 50, 60));
    memset(x->k.s.allocated + 52, 0, 3); /* as if they were never reported */
    x->k.s.uncounted = true;
    x->k.fail_next[FAKE_SEEK] = -EIO;
    reopen(x);
    env_virtual_advance_ms(&x->k.v, 3000);
    /* the failed count does not stop writes */
    assert_true(x->k.s.uncounted && !told_of(x, 50, 60));
    assert_int_equal(write_at(x, 52 * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    x->k.n[FAKE_SEEK] = 0;
    reopen(x);
    env_virtual_advance_ms(&x->k.v, 3000);
    assert_true(!x->k.s.uncounted && told_of(x, 50, 60));
    assert_in_range(x->k.n[FAKE_SEEK], 3, 6);
    reopen(x);
    env_virtual_advance_ms(&x->k.v, 3000);
    assert_in_range(x->k.n[FAKE_SEEK], 3, 6);
    x->k.s.allocated[55] = 0;
    x->k.s.uncounted = true;
    reopen(x);
    reopen(x); /* counted although the file is closed at once */
    assert_true(!x->k.s.uncounted && told_of(x, 50, 60));
}

/* A range that is punched while the storages are asked is not counted as their data. */
static void a_punch_beside_the_count_counts(void **state)
{
    struct fx *x = *state;

    assert_int_equal(write_at(x, 200 * BS, BS, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    x->k.s.allocated[200] = 0;
    x->k.s.uncounted = true;
    x->k.held[FAKE_SEEK] = true;
    reopen(x);
    assert_int_equal(do_call(x, file_punch_last), 0);
    x->k.held[FAKE_SEEK] = false;
    fake_release(&x->k, FAKE_SEEK);
    env_virtual_advance_ms(&x->k.v, 3000);
    assert_true(!x->k.s.uncounted && told_of(x, 0, 0));
}

/* Files that cannot be written out must not take memory without a bound (I9). */
static void who_finds_the_pool_full_writes_from_his_own_memory(void **state)
{
    struct fx *x = *state;
    struct file_config config = { 0 };
    struct file *own = x->f, *first;
    struct call one, two;

    assert_int_equal(file_pool_new(64 * BS, &config.pool), 0);
    first = x->f = fake_open(&x->k, &config, 2);
    x->k.held[FAKE_WRITE] = true;
    assert_int_equal(write_at(x, 0, 64 * BS, 0), 0);
    x->f = fake_open(&x->k, &config, 3);
    start_write(x, &two, 128 * BS, x->data, 64 * BS, 0);
    env_virtual_advance_ms(&x->k.v, 1000);
    assert_false(two.done);
    assert_ptr_equal(x->k.last_write_data, x->data); /* not a copy */
    /* a small write is always copied */
    start_write(x, &one, 300 * BS + 1, x->data, 10, 0);
    x->k.held[FAKE_WRITE] = false;
    fake_release(&x->k, FAKE_WRITE);
    assert_int_equal(wait_call(x, &two), 0);
    assert_int_equal(wait_call(x, &one), 0);
    assert_int_equal(close_file(x), 0);
    x->f = first;
    assert_int_equal(close_file(x), 0);
    file_pool_free(config.pool);
    x->f = own;
}

/* ---- moving data from exportd to the storages ---- */

static void start_inlined(struct fx *x)
{
    x->k.s.inline_max = 2 * BS;
    x->k.s.inline_version = 1;
    x->k.s.inline_data = x->data;
    x->k.s.inline_len = BS;
    x->k.s.size = BS;
    x->k.s.has_data = true;
    reopen(x);
}

static void data_that_exportd_had_move_to_the_storages(void **state)
{
    struct fx *x = *state;

    start_inlined(x);
    assert_int_equal(write_at(x, 2 * BS, BS, 0), 0);
    assert_int_equal(x->k.n[FAKE_WRITE], 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_true(x->k.s.on_storages);
    assert_int_equal(x->k.s.size, 3 * BS);
    assert_int_equal(file_losses(x->f), 0);
    reopen(x);
    assert_written(x, 0, BS, true);
}

/* A power failure takes what the storages had not synced yet. A sync reports that once,
 * and the next one succeeds, but exportd must keep its data. */
static void data_that_storages_lose_on_the_move_stay_at_exportd(void **state)
{
    struct fx *x = *state;

    start_inlined(x);
    assert_int_equal(write_at(x, 2 * BS, BS, 0), 0);
    x->k.losses = 1;
    x->k.fail_all[FAKE_SYNC] = -EIO;
    assert_int_equal(do_call(x, file_sync), -EIO);
    x->k.fail_all[FAKE_SYNC] = 0;
    assert_int_equal(do_call(x, file_sync), 0);
    assert_false(x->k.s.on_storages);
    assert_int_equal(file_losses(x->f), 2); /* writes since then are lost, too */
    assert_int_equal(file_size(x->f), BS);
    x->k.n[FAKE_READ] = 0;
    assert_written(x, 0, BS, false);
    assert_int_equal(x->k.n[FAKE_READ], 0);

    assert_int_equal(write_at(x, 2 * BS, BS, 0), 0); /* moves this time */
    assert_int_equal(do_call(x, file_sync), 0);
    assert_true(x->k.s.on_storages);
    assert_written(x, 0, BS, true);
}

/* A loss is noticed while a block is on its way to the storages: the move ends after
 * it. */
static void a_lost_move_ends_when_nothing_is_on_its_way(void **state)
{
    struct fx *x = *state;
    struct call sync = { 0 }, write;

    start_inlined(x);
    assert_int_equal(write_at(x, 2 * BS, BS, 0), 0);
    x->k.held[FAKE_WRITE] = true;
    file_sync(x->f, on_done, &sync);
    while (x->k.n[FAKE_WRITE] == 0)
        assert_true(env_virtual_run_next_timer(&x->k.v));
    x->k.losses = 1;
    start_write(x, &write, 3 * BS, x->data, BS, FILE_WRITE_SYNC);
    fake_release(&x->k, FAKE_WRITE);
    assert_int_equal(wait_call(x, &sync), -EIO);
    assert_int_equal(wait_call(x, &write), -EIO);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_false(x->k.s.on_storages);
    assert_int_equal(file_size(x->f), BS);
}

/* The token was given back, so another mount may have the file, and then exportd lost its
 * power: nobody has those bytes any more. */
static void bytes_that_exportd_forgot_after_they_were_given_back_are_lost(void **state)
{
    struct fx *x = *state;

    start_inlined(x);
    assert_int_equal(write_at(x, BS, 100, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, BS + 100);
    file_drop_cache(x->f);
    x->k.s.size = BS;
    x->k.s.inline_version = 1;
    file_report_again(x->f);
    assert_int_equal(file_losses(x->f), 1);
    assert_int_equal(do_call(x, file_flush), 0);
    assert_int_equal(x->k.s.size, BS); /* no zeros in place of the bytes */
    assert_int_equal(file_size(x->f), BS);

    assert_int_equal(write_at(x, BS, 50, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(x->k.s.size, BS + 50);
    file_drop_cache(x->f);
    file_report_again(x->f); /* synced bytes are not lost */
    assert_int_equal(file_losses(x->f), 1);
}

/* The next write comes before the next report: it is not put behind zeros. */
static void a_write_after_forgotten_bytes_does_not_bring_back_their_size(void **state)
{
    struct fx *x = *state;

    start_inlined(x);
    assert_int_equal(write_at(x, BS, 1000, 0), 0);
    assert_int_equal(do_call(x, file_flush), 0);
    file_drop_cache(x->f);
    x->k.s.size = BS;
    x->k.s.inline_version = 1;
    file_report_again(x->f);
    assert_int_equal(write_at(x, BS, 100, 0), 0);
    assert_int_equal(do_call(x, file_sync), 0);
    assert_int_equal(file_losses(x->f), 1);
    assert_int_equal(x->k.s.size, BS + 100);
    assert_int_equal(file_size(x->f), BS + 100);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(small_writes_become_one_run),
        T(a_megabyte_is_one_write_and_goes_at_once),
        T(dirty_data_does_not_wait_longer_than_its_delay),
        T(a_partial_block_is_completed_from_storages),
        T(bytes_beyond_the_size_are_not_read_for_completion),
        T(writes_with_a_gap_in_one_block_meet),
        T(a_sparse_file_reads_zeros),
        T(a_block_in_flight_is_not_written_again),
        T(a_direct_write_is_not_copied),
        T(a_direct_write_takes_part_of_a_block_along),
        T(a_direct_write_goes_after_older_dirty_data),
        T(a_synchronous_write_is_stable_when_done),
        T(an_overwrite_is_stable_as_it_is_written),
        T(the_time_is_told_beside_an_overwrite),
        T(what_grows_is_told_beside_its_sync),
        T(of_much_one_sync_makes_all_stable),
        T(a_time_that_was_not_told_ahead_is_told_later),
        T(what_is_synchronous_is_told_with_older_bytes_below),
        T(what_is_flushed_is_told_whatever_came_meanwhile),
        T(an_append_goes_to_the_end),
        T(writers_wait_when_too_much_is_dirty),
        T(a_zero_length_write_does_nothing),
        T(a_write_beyond_all_bounds_is_refused),
        T(what_cannot_be_written_is_kept_and_told_until_it_is),
        T(a_failed_run_is_tried_again_by_itself),
        T(a_writer_without_room_hears_why),
        T(close_tells_what_is_lost),
        T(what_was_told_lost_takes_nobodys_place),
        T(what_exportd_cut_off_is_told_to_be_lost),
        T(a_failed_direct_write_does_not_lengthen_the_file),
        T(a_newer_writer_makes_us_take_a_fresh_epoch),
        T(a_refused_capability_is_renewed_once),
        T(a_file_that_moved_is_asked_for_again),
        T(a_reader_of_a_moved_file_takes_no_epoch),
        T(exportd_has_time_to_find_a_later_distribution),
        T(a_file_held_closed_is_waited_for),
        T(a_file_that_is_nowhere_is_an_error),
        T(a_late_answer_does_not_move_it_back),
        T(without_an_epoch_one_is_asked_for),
        T(an_unreadable_base_fails_the_write_out),
        T(giving_up_writes_what_can_be_written),
        T(what_cannot_be_written_is_given_up),
        T(who_may_not_write_any_more_tries_nothing),
        T(only_who_opens_brings_another_session),
        T(what_lies_behind_a_loss_is_told),
        T(what_fails_while_giving_up_is_not_tried_again),
        T(what_was_told_lost_is_not_given_a_fresh_epoch),
        T(what_waits_for_bytes_that_are_given_up_hears_of_it),
        T(what_exportd_cannot_be_told_is_given_up),
        T(who_gives_up_waits_for_what_is_asked),
        T(a_block_given_up_is_completed_anew),
        T(a_cut_that_only_we_know_of_is_given_up),
        T(bytes_that_another_cut_off_stay_away),
        T(who_appends_with_a_token_appends_at_the_new_end),
        T(a_size_that_another_cut_is_not_told_again),
        T(a_sync_after_another_has_cut_loses_nothing),
        T(a_size_is_told_only_when_all_below_it_is_acknowledged),
        T(sync_tells_a_size_again_that_was_not_told_durably),
        T(what_exportd_may_have_forgotten_is_told_again),
        T(a_report_under_way_is_told_again),
        T(sync_syncs_storages_and_exportd_when_there_is_need),
        T(a_sync_that_fails_says_so_and_can_be_repeated),
        T(a_forgotten_mtime_is_not_told),
        T(other_clients_sizes_are_adopted),
        T(a_newer_truncate_is_believed_at_once),
        T(a_cut_that_a_write_hears_of),
        T(a_cut_that_a_punch_hears_of),
        T(a_cut_below_a_size_in_doubt_is_a_loss),
        T(truncate_marks_cuts_and_tells),
        T(truncate_of_dirty_data_needs_no_look_at_storages),
        T(a_truncate_that_failed_is_finished_before_the_file_grows),
        T(a_file_made_longer_over_a_truncate_that_failed_has_no_old_bytes),
        T(exportd_hears_of_a_truncate_once_it_is_stable_on_the_storages),
        T(what_a_dead_client_never_told_of_is_cut_off),
        T(a_dead_clients_truncate_is_finished),
        T(a_dead_clients_truncate_with_newer_marks_is_finished),
        T(an_answer_that_was_overtaken_does_not_make_the_file_shorter),
        T(nor_longer),
        T(an_fsync_tells_the_size_of_a_truncate),
        T(what_another_cuts_off_does_not_come_back),
        T(nor_below_a_punch),
        T(a_pending_truncate_that_somebody_finished_is_let_go),
        T(writes_wait_while_a_truncate_is_held),
        T(nothing_is_written_under_a_truncate_that_may_have_happened),
        T(a_truncate_that_turns_out_not_to_have_happened),
        T(an_older_question_does_not_answer_for_a_truncate),
        T(punch_marks_whole_blocks_and_zeros_the_rest),
        T(punch_waits_for_no_run_that_waits_for_the_punch),
        T(punch_stays_within_the_size),
        T(allocate_reserves_and_grows),
        T(what_is_reserved_is_not_asked_for_again),
        T(exportd_hears_of_what_was_reserved),
        T(seek_sees_storages_and_memory),
        T(a_sequential_reader_is_served_from_ahead),
        T(two_streams_in_one_file_are_both_served_from_ahead),
        T(a_reader_in_equal_steps_is_served_from_ahead),
        T(who_jumps_about_is_given_what_he_asks_for),
        T(far_storages_are_asked_further_ahead),
        T(clean_data_are_kept_until_they_are_dropped),
        T(what_is_being_fetched_is_dropped_too),
        T(what_completes_a_block_is_dropped_too),
        T(what_was_read_and_completes_a_block_is_told_of),
        T(a_random_reader_reads_only_what_he_asks_for),
        T(a_direct_read_asks_storages_and_sees_accepted_writes),
        T(a_read_that_fails_elsewhere_is_tried_alone),
        T(a_write_during_a_fetch_is_not_forgotten),
        T(files_share_a_pool),
        T(clean_data_of_idle_files_make_room),
        T(blocks_that_nobody_told_of_are_found),
        T(a_punch_beside_the_count_counts),
        T(who_finds_the_pool_full_writes_from_his_own_memory),
        T(data_that_exportd_had_move_to_the_storages),
        T(data_that_storages_lose_on_the_move_stay_at_exportd),
        T(a_lost_move_ends_when_nothing_is_on_its_way),
        T(bytes_that_exportd_forgot_after_they_were_given_back_are_lost),
        T(a_write_after_forgotten_bytes_does_not_bring_back_their_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
