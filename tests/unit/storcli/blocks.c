/*
 * Goal: each promise of storcli/blocks.h by itself, with every kind of code. Method: the
 * engine on simulated storages and a virtual clock; the test injects each fault, and time
 * passes only when the test says so.
 */
#include "storcli/blocks.h"

#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"
#include "tests/sim/sim_net.h"
#include "tests/unit/unit.h"

enum { BS = 8192, NOT_DONE = 1 };

static unsigned kind; /* enum codec_kind; all tests run once with each kind */

struct fix {
    struct env_virtual v;
    struct sim_net net;
    struct storcli *cli;
    struct storcli_file *file;
    unsigned n, k, q;
};

static struct fix *fix_new_with(unsigned layout, unsigned n_storages,
                                struct storcli_config config)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct storcli_peers peers;

    assert_non_null(f);
    env_virtual_init(&f->v, 1);
    sim_net_init(&f->net, &f->v, kind, layout, n_storages);
    peers = sim_net_peers(&f->net, 0);
    assert_int_equal(storcli_new(&f->v.env, &config, &peers, &f->cli), 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    f->k = codec_layout(layout)->k;
    f->n = codec_layout(layout)->n;
    f->q = quorum_write(codec_layout(layout), n_storages);
    return f;
}

static struct fix *fix_new(unsigned layout)
{
    return fix_new_with(layout, codec_layout(layout)->safe, (struct storcli_config){ 0 });
}

static void fix_free(struct fix *f)
{
    storcli_file_close(f->file);
    storcli_free(f->cli); /* asserts that no buffer is still lent */
    sim_net_close(&f->net);
    env_virtual_close(&f->v);
    free(f);
}

static void on_done(void *arg, int rc)
{
    int *result = arg;

    assert_int_equal(*result, NOT_DONE); /* called exactly once */
    *result = rc;
}

/* Lets time pass until the call is done. Returns how many ms that took. */
static unsigned wait_done(struct fix *f, const int *result)
{
    unsigned ms = 0;

    for (; *result == NOT_DONE; ms++) {
        assert_true(ms < 60000);
        env_virtual_advance_ms(&f->v, 1);
    }
    return ms;
}

static uint8_t *pattern(uint64_t seed, uint64_t first, unsigned n, size_t last)
{
    uint8_t *data = aligned_alloc(4096, (size_t)n * BS);

    assert_non_null(data);
    memset(data, 0, (size_t)n * BS);
    for (size_t i = 0; i < (size_t)(n - 1) * BS + last; i++)
        data[i] = (uint8_t)((first * BS + i) * 2654435761u >> 13 ^ seed * 37);
    return data;
}

static int write_ms(struct fix *f, uint64_t version, uint64_t first, unsigned n,
                    size_t last, bool sync, unsigned *ms)
{
    uint8_t *data = pattern(version, first, n, last);
    int rc = NOT_DONE;

    storcli_write(f->file, version, first, n, data, last, sync, on_done, &rc);
    assert_int_equal(rc, NOT_DONE);
    *ms = wait_done(f, &rc);
    free(data); /* the engine must not use it any more; asan checks that */
    return rc;
}

static int write_blocks(struct fix *f, uint64_t version, uint64_t first, unsigned n,
                        size_t last)
{
    unsigned ms;

    return write_ms(f, version, first, n, last, false, &ms);
}

/* Reads, and compares with the data that version `version` wrote to [first, first +
 * n). */
static int read_ms(struct fix *f, uint64_t version, uint64_t first, unsigned n,
                   size_t last, unsigned *ms)
{
    uint8_t *expected = pattern(version, first, n, last);
    uint8_t *data = malloc((size_t)n * BS);
    uint16_t *user_bytes = malloc(n * sizeof(*user_bytes));
    int rc = NOT_DONE;

    assert_true(data != NULL && user_bytes != NULL);
    memset(data, 0xaa, (size_t)n * BS);
    storcli_read(f->file, first, n, data, user_bytes, on_done, &rc);
    assert_int_equal(rc, NOT_DONE);
    *ms = wait_done(f, &rc);
    if (rc == 0) {
        assert_memory_equal(data, expected, (size_t)n * BS);
        for (unsigned i = 0; i < n; i++)
            assert_int_equal(user_bytes[i], i + 1 == n ? last : BS);
    }
    free(expected);
    free(data);
    free(user_bytes);
    return rc;
}

static int read_blocks(struct fix *f, uint64_t version, uint64_t first, unsigned n,
                       size_t last)
{
    unsigned ms;

    return read_ms(f, version, first, n, last, &ms);
}

static int sync_file(struct fix *f)
{
    int rc = NOT_DONE;

    storcli_sync(f->file, on_done, &rc);
    assert_int_equal(rc, NOT_DONE);
    wait_done(f, &rc);
    return rc;
}

static int mark_blocks(struct fix *f, uint64_t version, uint64_t first, uint64_t n)
{
    int rc = NOT_DONE;

    storcli_mark(f->file, version, first, n, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

static void set_homes(struct fix *f, unsigned first, unsigned n, enum sim_state state)
{
    for (unsigned i = first; i < first + n; i++)
        sim_storage_set(&f->net, i, state);
}

static uint64_t n_requests(const struct fix *f)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < f->net.n_storages; i++)
        n += f->net.storages[i].n_reads + f->net.storages[i].n_writes;
    return n;
}

static struct storcli_stats stats_of(const struct fix *f)
{
    struct storcli_stats stats;

    storcli_get_stats(f->cli, &stats);
    return stats;
}

/* ---- healthy ---- */

static void written_blocks_are_read(void **state)
{
    static const struct {
        uint64_t first;
        unsigned n;
        size_t last;
    } runs[] = {
        { 0, 1, 1 },    { 0, 1, 8192 },     { 3, 2, 700 },    { 127, 2, 4096 },
        { 5, 128, 64 }, { 128, 128, 8192 }, { 1, 590, 8191 }, { 130, 5, 65 },
    };

    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);

        for (unsigned i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
            uint64_t version = version_make(1, i + 1);

            assert_int_equal(
                write_blocks(f, version, runs[i].first, runs[i].n, runs[i].last), 0);
            assert_int_equal(
                read_blocks(f, version, runs[i].first, runs[i].n, runs[i].last), 0);
        }
        fix_free(f);
    }
}

static void a_healthy_run_costs_n_writes_and_k_reads(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);

        assert_int_equal(write_blocks(f, 1, 128, 128, BS), 0);
        assert_int_equal(n_requests(f), f->n);
        assert_int_equal(read_blocks(f, 1, 128, 128, BS), 0);
        assert_int_equal(n_requests(f), f->n + f->k);
        for (unsigned i = 0; i < f->k; i++)
            assert_int_equal(f->net.storages[i].n_reads, 1);
        assert_int_equal(stats_of(f).blocks_decoded,
                         codec_is_systematic(f->net.codec) ? 0 : 128);
        assert_int_equal(stats_of(f).blocks_read, 128);
        assert_int_equal(stats_of(f).blocks_written, 128);
        fix_free(f);
    }
}

static void marks_make_holes(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t data[3 * BS], zero[BS] = { 0 };
    uint16_t user_bytes[3];
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 10, BS), 0);
    assert_int_equal(mark_blocks(f, 2, 4, 1), 0);
    storcli_read(f->file, 3, 3, data, user_bytes, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_int_equal(user_bytes[0], BS);
    assert_int_equal(user_bytes[1], 0);
    assert_int_equal(user_bytes[2], BS);
    assert_memory_equal(data + BS, zero, BS);
    assert_int_equal(mark_blocks(f, 1, 4, 1), -ESTALE);
    assert_int_equal(write_blocks(f, 1, 4, 1, BS), -ESTALE);
    assert_int_equal(write_blocks(f, 4, 8, 1, BS), 0);
    assert_int_equal(mark_blocks(f, 3, 7, 0), -ESTALE);
    rc = NOT_DONE;
    storcli_mark_below(f->file, 3, 7, 0, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    rc = NOT_DONE;
    storcli_read(f->file, 7, 3, data, user_bytes, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_int_equal(user_bytes[0], 0);
    assert_int_equal(user_bytes[1], BS); /* newer records are unchanged */
    assert_int_equal(user_bytes[2], 0);
    assert_int_equal(mark_blocks(f, 5, 0, 0), 0);
    rc = NOT_DONE;
    storcli_read(f->file, 7, 3, data, user_bytes, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_int_equal(user_bytes[0] + user_bytes[1] + user_bytes[2], 0);
    fix_free(f);
}

static void never_written_blocks_of_a_file_that_is_there_are_holes(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t data[BS], zero[BS] = { 0 };
    uint16_t user_bytes = 9;
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 1, BS), 0);
    storcli_read(f->file, 400, 1, data, &user_bytes, on_done, &rc);
    assert_true(wait_done(f, &rc) < 30);
    assert_int_equal(rc, 0);
    assert_int_equal(user_bytes, 0);
    assert_memory_equal(data, zero, BS);
    fix_free(f);
}

static void no_projection_anywhere_is_an_error_not_zeros(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t data[BS];
    int rc = NOT_DONE;

    (void)state;
    storcli_read(f->file, 0, 1, data, NULL, on_done, &rc);
    assert_true(wait_done(f, &rc) <
                6000); /* all storages answered: it does not wait for the deadline */
    assert_int_equal(rc, -EIO);
    fix_free(f);
}

static void targets_that_make_no_sense_are_refused(void **state)
{
    struct fix *f = fix_new(1);
    struct storcli_target t = f->net.target;
    struct storcli_file *file;

    (void)state;
    t.codec = 99;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.layout = 3;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.block_bytes = 512;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.n_storages = 5;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.n_storages = 10; /* n = 6 acknowledgements would not be a quorum */
    t.storages[8] = 9, t.storages[9] = 10;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.storages[3] = t.storages[2];
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.capability_len = 65;
    assert_int_equal(storcli_file_open(f->cli, &t, &file), -EINVAL);
    t = f->net.target;
    t.capability[3] = 9;
    assert_int_equal(storcli_file_update(f->file, &t), 0);
    t.storages[0] = 77;
    assert_int_equal(storcli_file_update(f->file, &t), -EINVAL);
    fix_free(f);
}

/* ---- storages down or hung ---- */

static void every_pattern_of_lost_storages_is_read_back(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 2; layout++) {
        struct fix *f = fix_new(layout);

        assert_int_equal(write_blocks(f, 1, 100, 60, 777), 0);
        for (uint32_t away = 0; away < 1u << f->n; away++) {
            unsigned ms;

            if ((unsigned)__builtin_popcount(away) > f->n - f->k)
                continue;
            for (unsigned i = 0; i < f->n; i++)
                sim_storage_set(&f->net, i, (away >> i & 1) != 0 ? SIM_DOWN : SIM_UP);
            assert_int_equal(read_ms(f, 1, 100, 60, 777, &ms), 0);
            assert_true(ms < 100);
        }
        fix_free(f);
    }
}

static void a_write_goes_to_spares_at_once_when_storages_are_down(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned ms;

        for (unsigned i = 0; i < f->n - f->k; i++)
            sim_storage_set(&f->net, i * 2, SIM_DOWN);
        assert_int_equal(write_ms(f, 1, 0, 20, BS, false, &ms), 0);
        assert_true(ms < 50);
        assert_int_equal(sim_net_count(&f->net, 3, 1, false, 0), f->n);
        assert_int_equal(stats_of(f).spares, f->n - f->k);
        assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
        fix_free(f);
    }
}

static void a_hung_storage_costs_one_short_wait(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned ms;

        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        for (unsigned i = 0; i < f->n - f->k; i++)
            sim_storage_set(&f->net, i, SIM_HUNG);
        assert_int_equal(read_ms(f, 1, 0, 20, BS, &ms), 0);
        assert_true(ms < 250);
        assert_int_equal(read_ms(f, 1, 0, 20, BS, &ms), 0);
        assert_true(ms < 30); /* known as unreachable by now */
        assert_int_equal(write_ms(f, 2, 0, 20, BS, false, &ms), 0);
        assert_true(ms < 700);
        assert_int_equal(sim_net_count(&f->net, 3, 2, false, 0), f->n);
        for (unsigned i = 0; i < 20; i++) {
            env_virtual_advance_ms(&f->v, 400);
            assert_int_equal(write_ms(f, 3 + i, 0, 20, BS, false, &ms), 0);
            assert_true(ms < 100);
            assert_int_equal(read_ms(f, 3 + i, 0, 20, BS, &ms), 0);
            assert_true(ms < 100);
        }
        /* The hung storages wake up and do what they were asked long ago: old data is
         * never returned. */
        for (unsigned i = 0; i < f->n - f->k; i++)
            sim_storage_set(&f->net, i, SIM_UP);
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(read_ms(f, 22, 0, 20, BS, &ms), 0);
            env_virtual_advance_ms(&f->v, 1);
        }
        fix_free(f);
    }
}

static void spares_that_hang_too_do_not_add_up(void **state)
{
    struct fix *f = fix_new(2);
    unsigned ms;

    (void)state;
    sim_storage_set(&f->net, 3, SIM_HUNG);
    for (unsigned i = 12; i < 15; i++)
        sim_storage_set(&f->net, i, SIM_HUNG);
    assert_int_equal(write_ms(f, 1, 0, 5, BS, false, &ms), 0);
    assert_true(ms < 2000);
    assert_int_equal(sim_net_count(&f->net, 3, 1, false, 0), f->n);
    fix_free(f);
}

static void without_spares_the_quorum_is_enough(void **state)
{
    struct fix *f = fix_new_with(1, 6, (struct storcli_config){ 0 }); /* q = 5 */
    unsigned ms;

    (void)state;
    sim_storage_set(&f->net, 0, SIM_HUNG);
    assert_int_equal(write_ms(f, 1, 0, 5, BS, false, &ms), 0);
    assert_true(ms < 2000);
    assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), 0);
    assert_int_equal(write_ms(f, 2, 0, 5, BS, false, &ms), 0);
    assert_true(ms < 100);
    fix_free(f);
}

/*
 * Goal: a file with fewer candidates than its layout needs as many acknowledgements as
 * any other. No write, mark or sync succeeds with k of them.
 */
static void fewer_candidates_make_no_quorum_smaller(void **state)
{
    static const unsigned want[] = { 3, 5, 9 };

    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        unsigned n = codec_layout(layout)->n, safe = codec_layout(layout)->safe;

        for (unsigned c = n; c <= safe; c++) {
            struct fix *f = fix_new_with(layout, c, (struct storcli_config){ 0 });
            unsigned away = c - want[layout], ms;
            int rc = NOT_DONE;

            for (unsigned i = 0; i < away; i++)
                sim_storage_set(&f->net, i, SIM_DOWN);
            assert_int_equal(write_ms(f, 1, 0, 5, BS, false, &ms), 0);
            assert_true(ms < 2000);
            sim_storage_set(&f->net, away, SIM_DOWN);
            assert_int_equal(write_ms(f, 2, 10, 5, BS, false, &ms), -EIO);
            assert_in_range(ms, 19000, 21000);
            storcli_mark(f->file, 3, 20, 5, on_done, &rc);
            wait_done(f, &rc);
            assert_int_equal(rc, -EIO);
            rc = NOT_DONE;
            storcli_sync(f->file, on_done, &rc);
            wait_done(f, &rc);
            assert_int_equal(rc, -EIO); /* too few storages have the first write */
            sim_storage_set(&f->net, away, SIM_UP);
            assert_int_equal(write_ms(f, 4, 10, 5, BS, false, &ms), 0);
            assert_int_equal(sync_file(f), 0);
            fix_free(f);
        }
    }
}

/* Writes as a writer that dies: only the first n_new storages take it. */
static void write_torn(struct fix *f, uint64_t version, uint64_t first, unsigned n,
                       unsigned n_new)
{
    uint8_t *data = pattern(version, first, n, BS);
    int rc = NOT_DONE;

    for (unsigned i = n_new; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__IO_ERROR;
    storcli_write(f->file, version, first, n, data, BS, false, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, -EIO);
    for (unsigned i = n_new; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_writes = 0;
    free(data);
}

/* Goal: in a file with fewer candidates, a torn write and a storage without an answer
 * leave a block undecided if an earlier build may have acknowledged the write with k. If
 * all writes needed the layout's quorum, the block is what it was before. */
static void what_was_never_acknowledged_is_passed_over(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct fix *f = fix_new_with(0, 3, (struct storcli_config){ 0 });
        struct storcli_target target = f->net.target;

        target.full_quorum = full != 0;
        storcli_file_close(f->file);
        assert_int_equal(storcli_file_open(f->cli, &target, &f->file), 0);
        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        write_torn(f, 2, 5, 1, 1);
        sim_storage_set(&f->net, 2, SIM_DOWN);
        assert_int_equal(read_blocks(f, 1, 0, 20, BS), full ? 0 : -EIO);
        fix_free(f);
    }
}

static void too_few_storages_wait_and_go_on_when_they_return(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t *data = pattern(2, 0, 5, BS), *got = malloc(5 * BS);
    int write_rc = NOT_DONE, read_rc = NOT_DONE;

    (void)state;
    assert_non_null(got);
    assert_int_equal(write_blocks(f, 1, 100, 5, BS), 0);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, i < 3 ? SIM_DOWN : SIM_HUNG);
    storcli_write(f->file, 2, 0, 5, data, BS, false, on_done, &write_rc);
    storcli_read(f->file, 100, 5, got, NULL, on_done, &read_rc);
    env_virtual_advance_ms(&f->v, 10000);
    assert_int_equal(write_rc, NOT_DONE);
    assert_int_equal(read_rc, NOT_DONE);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_UP);
    env_virtual_advance_ms(&f->v, 500);
    assert_int_equal(write_rc, 0);
    assert_int_equal(read_rc, 0);
    assert_int_equal(read_blocks(f, 1, 100, 5, BS), 0);
    assert_int_equal(read_blocks(f, 2, 0, 5, BS), 0);
    free(data);
    free(got);
    fix_free(f);
}

/* After a loss of power storages answer BUSY until they know what they have: that answer
 * counts for nothing. */
static void busy_answers_count_for_nothing(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t *got = malloc(5 * BS), *expected = pattern(1, 0, 5, BS);
    int rc = NOT_DONE, none_rc = NOT_DONE;

    (void)state;
    assert_non_null(got);
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    for (unsigned i = 0; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_all = ROZO__STATUS__BUSY;
    storcli_read(f->file, 0, 5, got, NULL, on_done, &rc);
    /* longer than a read waits for storages when the answer is unclear */
    env_virtual_advance_ms(&f->v, 4500);
    assert_int_equal(rc, NOT_DONE);
    for (unsigned i = 0; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_all = 0;
    assert_true(wait_done(f, &rc) < 2000);
    assert_int_equal(rc, 0);
    assert_memory_equal(got, expected, 5 * BS);
    fix_free(f);

    /* A version that none of them has then is an error, well before the deadline. */
    f = fix_new(1);
    for (unsigned i = 0; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_all = ROZO__STATUS__BUSY;
    storcli_read(f->file, 0, 1, got, NULL, on_done, &none_rc);
    env_virtual_advance_ms(&f->v, 4500);
    for (unsigned i = 0; i < f->net.n_storages; i++)
        f->net.storages[i].refuse_all = 0;
    env_virtual_advance_ms(&f->v, 2500);
    assert_int_equal(none_rc, NOT_DONE);
    assert_true(wait_done(f, &none_rc) < 8000);
    assert_int_equal(none_rc, -EIO);
    free(got);
    free(expected);
    fix_free(f);
}

/* The kernel sends several requests for one read(2): only the first of them waits for the
 * full time. */
static void a_file_that_is_out_of_reach_is_so_soon_the_second_time(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t *got = malloc(5 * BS);
    int rc = NOT_DONE;
    unsigned ms;

    (void)state;
    assert_non_null(got);
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, i < 3 ? SIM_DOWN : SIM_HUNG);
    assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), -EIO);
    assert_in_range(ms, 19000, 21000);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), -EIO);
        assert_in_range(ms, 2500, 3500);
    }
    /* One storage is reachable again. That is too few, but requests wait again. */
    storcli_read(f->file, 0, 5, got, NULL, on_done, &rc);
    env_virtual_advance_ms(&f->v, 2000);
    sim_storage_set(&f->net, 0, SIM_UP);
    env_virtual_advance_ms(&f->v, 10000);
    assert_int_equal(rc, NOT_DONE);
    sim_storage_set(&f->net, 1, SIM_UP);
    sim_storage_set(&f->net, 2, SIM_UP);
    assert_true(wait_done(f, &rc) < 200);
    assert_int_equal(rc, 0);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), -EIO);
    assert_in_range(ms, 19000, 21000);
    free(got);
    fix_free(f);
}

static void too_few_storages_for_too_long_is_an_error(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_DOWN);
    assert_int_equal(write_ms(f, 2, 0, 5, BS, false, &ms), -EIO);
    assert_in_range(ms, 19000, 21000);
    assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), -EIO);
    assert_in_range(ms, 19000, 21000);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_UP);
    assert_int_equal(write_blocks(f, 3, 0, 5, BS), 0);
    assert_int_equal(read_blocks(f, 3, 0, 5, BS), 0);
    fix_free(f);
}

static void a_storage_unknown_to_the_shell_is_as_if_down(void **state)
{
    struct fix *f = fix_new(1);
    struct storcli_target target = f->net.target;
    struct storcli_file *file = f->file;

    (void)state;
    target.storages[1] = 4000; /* the cluster map does not have that storage yet */
    assert_int_equal(storcli_file_open(f->cli, &target, &f->file), 0);
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    assert_int_equal(read_blocks(f, 1, 0, 5, BS), 0);
    storcli_file_close(f->file);
    f->file = file;
    fix_free(f);
}

/* ---- refusals ---- */

static void full_storages(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    f->net.storages[0].refuse_writes = ROZO__STATUS__NO_SPACE;
    f->net.storages[3].refuse_writes = ROZO__STATUS__NO_SPACE;
    assert_int_equal(write_ms(f, 1, 0, 5, BS, false, &ms), 0); /* the spares take it */
    assert_int_equal(sim_net_count(&f->net, 3, 1, false, 0), f->n);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__NO_SPACE;
    assert_int_equal(write_ms(f, 2, 0, 5, BS, false, &ms), -ENOSPC);
    assert_true(ms < 100);
    /* a write that needs no space is accepted */
    assert_int_equal(read_blocks(f, 2, 0, 5, BS), 0);
    fix_free(f);
}

static void a_refused_capability(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_all = ROZO__STATUS__DENIED;
    assert_int_equal(write_ms(f, 2, 0, 5, BS, false, &ms), -EACCES);
    assert_true(ms < 100);
    assert_int_equal(read_ms(f, 1, 0, 5, BS, &ms), -EACCES);
    assert_true(ms < 100);
    assert_int_equal(sync_file(f), -EACCES);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_all = 0;
    assert_int_equal(sync_file(f), 0);
    fix_free(f);
}

/* Writes of a session that is over fail. Earlier data stays: reads and syncs go on, but
 * projections that were lost are not rebuilt. */
static void a_session_that_is_over(void **state)
{
    struct fix *f = fix_new(1);
    int rc = NOT_DONE;
    unsigned ms;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    /* the first storage that learns of it */
    f->net.storages[2].refuse_writes = ROZO__STATUS__FENCED;
    assert_int_equal(write_ms(f, 2, 5, 5, BS, false, &ms), -EIO);
    assert_true(ms < 100);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__FENCED;
    assert_int_equal(write_ms(f, 3, 0, 5, BS, false, &ms), -EIO);
    assert_true(ms < 100);
    assert_int_equal(mark_blocks(f, 4, 0, 5), -EIO);
    assert_int_equal(read_blocks(f, 1, 0, 5, BS), 0);
    assert_int_equal(sync_file(f), 0);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_writes = 0;
    assert_int_equal(write_blocks(f, 5, 0, 5, BS), 0);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__FENCED;
    sim_storage_set(&f->net, 1, SIM_DOWN);
    storcli_sync(f->file, on_done, &rc);
    assert_true(wait_done(f, &rc) < 2000);
    assert_int_equal(rc, -EIO);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].refuse_writes = 0;
    assert_int_equal(sync_file(f), 0); /* a new session */
    fix_free(f);
}

static void assert_sessions(const struct fix *f, uint64_t session)
{
    for (unsigned i = 1; i < f->n; i++) /* storage 0 hangs */
        assert_int_equal(f->net.storages[i].session, session);
}

/* A write goes on under the session in which it began, also to spares and in later
 * pieces. Later writes have the new session. */
static void a_write_keeps_its_session(void **state)
{
    struct fix *f = fix_new(1);
    struct storcli_target target = f->net.target;
    uint8_t *data = pattern(2, 0, 300, BS);
    int rc = NOT_DONE;

    (void)state;
    target.session = 7;
    assert_int_equal(storcli_file_update(f->file, &target), 0);
    assert_int_equal(write_blocks(f, 1, 0, 300, BS), 0);
    assert_sessions(f, 7);
    sim_storage_set(&f->net, 0, SIM_HUNG);
    f->net.storages[f->n].session = 0;
    storcli_write(f->file, 2, 0, 300, data, BS, false, on_done, &rc);
    target.session = 9;
    assert_int_equal(storcli_file_update(f->file, &target), 0);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_int_equal(f->net.storages[f->n].session, 7); /* a spare */
    assert_sessions(f, 7);
    target.session = 0; /* only another capability */
    assert_int_equal(storcli_file_update(f->file, &target), 0);
    assert_int_equal(mark_blocks(f, 3, 0, 5), 0);
    assert_sessions(f, 9);
    free(data);
    fix_free(f);
}

static void storages_that_fail_or_belong_to_nobody(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    f->net.storages[1].refuse_writes = ROZO__STATUS__IO_ERROR;
    f->net.storages[2].refuse_all = ROZO__STATUS__NOT_ADMITTED;
    assert_int_equal(write_blocks(f, 1, 0, 5, BS), 0);
    assert_int_equal(sim_net_count(&f->net, 3, 1, false, 0), f->n);
    assert_int_equal(read_blocks(f, 1, 0, 5, BS), 0);
    fix_free(f);
}

/* ---- damage ---- */

static void damaged_records_are_passed_by(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 128, BS), 0);
    assert_true(sim_storage_rot(&f->net, 0, 0, 17));
    assert_true(sim_storage_rot(&f->net, 2, 2, 17));
    assert_true(sim_storage_rot(&f->net, 3, 3, 90));
    assert_int_equal(read_ms(f, 1, 0, 128, BS, &ms), 0);
    assert_true(ms < 100);
    assert_int_equal(stats_of(f).damaged, 3);
    assert_int_equal(stats_of(f).blocks_decoded,
                     codec_is_systematic(f->net.codec) ? 2 : 128);
    /* the other storages were asked only about blocks that were unclear */
    assert_true(f->net.storages[4].n_read_blocks <= 90 - 17 + 1);
    fix_free(f);
}

static void too_much_damage_is_an_error_never_zeros(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned ms;

        assert_int_equal(write_blocks(f, 1, 0, 10, BS), 0);
        for (unsigned i = 0; i <= f->n - f->k; i++)
            assert_true(sim_storage_rot(&f->net, i, i, 5));
        assert_int_equal(read_ms(f, 1, 0, 10, BS, &ms), -EIO);
        assert_true(ms < 8000);
        assert_int_equal(read_blocks(f, 1, 0, 1, BS), 0);
        fix_free(f);
    }
}

/* ---- versions ---- */

static void an_interrupted_overwrite_leaves_the_old_or_the_new(void **state)
{
    (void)state;
    for (unsigned n_new = 0; n_new <= 6; n_new++) {
        struct fix *f = fix_new(1);
        uint8_t *data = pattern(2, 0, 4, BS), *expected, got[4 * BS];
        int write_rc = NOT_DONE, rc = NOT_DONE;

        assert_int_equal(write_blocks(f, 1, 0, 4, BS), 0);
        /* no other storage takes it while the writer lives */
        for (unsigned i = n_new; i < 8; i++)
            f->net.storages[i].refuse_writes = ROZO__STATUS__IO_ERROR;
        storcli_write(f->file, 2, 0, 4, data, BS, false, on_done, &write_rc);
        wait_done(f, &write_rc);
        assert_int_equal(write_rc, n_new >= 5 ? 0 : -EIO);
        storcli_read(f->file, 0, 4, got, NULL, on_done, &rc);
        wait_done(f, &rc);
        expected = pattern(n_new >= 4 ? 2 : 1, 0, 4, BS);
        assert_int_equal(rc, 0);
        assert_memory_equal(got, expected, sizeof(got));
        free(expected);
        free(data);
        fix_free(f);
    }
}

/* Several torn overwrites of one block and its neighbours, one above the other. */
static void below_what_is_torn_lies_what_was(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned ms;

        assert_int_equal(write_blocks(f, 1, 0, 300, BS), 0);
        write_torn(f, 2, 5, 100, f->k - 1);
        write_torn(f, 3, 90, 100, f->k - 1);
        write_torn(f, 4, 95, 2, 1);
        write_torn(f, 5, 95, 200, f->k - 1);
        assert_int_equal(read_ms(f, 1, 0, 300, BS, &ms), 0);
        assert_true(ms < 200);
        assert_true(layout == 0 || stats_of(f).below > 100);
        /* without at_most reads there are too few projections of any version */
        f->net.no_at_most = true;
        if (layout > 0)
            assert_int_equal(read_blocks(f, 1, 0, 300, BS), -EIO);
        f->net.no_at_most = false;
        assert_int_equal(write_blocks(f, 6, 5, 290, BS), 0);
        assert_int_equal(read_blocks(f, 6, 5, 290, BS), 0);
        fix_free(f);
    }
}

/* A later mark below a torn version counts for readers of what is below. */
static void below_what_is_torn_lies_a_later_mark(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint16_t user_bytes[3];
        uint8_t got[3 * BS];
        int rc = NOT_DONE;

        assert_int_equal(write_blocks(f, 1, 0, 30, BS), 0);
        write_torn(f, 3, 5, 10, f->k - 1);
        storcli_mark_below(f->file, 2, 6, 0, on_done, &rc);
        wait_done(f, &rc);
        assert_int_equal(rc, 0);
        rc = NOT_DONE;
        storcli_read(f->file, 5, 3, got, user_bytes, on_done, &rc);
        wait_done(f, &rc);
        assert_int_equal(rc, 0);
        assert_int_equal(user_bytes[0], BS);
        assert_int_equal(user_bytes[1], 0);
        assert_int_equal(user_bytes[2], 0);
        fix_free(f);
    }
}

/* A torn first write reads as the hole that was there before, once it is certain that the
 * write was not completed and committed in between. */
static void a_torn_first_write_is_a_hole(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint8_t got[3 * BS], zero[BS] = { 0 };
        uint16_t user_bytes[3];
        int rc = NOT_DONE;

        assert_int_equal(write_blocks(f, 1, 0, 3, BS), 0);
        write_torn(f, 2, 5, 1, f->k - 1);
        storcli_read(f->file, 4, 3, got, user_bytes, on_done, &rc);
        assert_true(wait_done(f, &rc) < 300);
        assert_int_equal(rc, 0);
        assert_int_equal(user_bytes[1], 0);
        assert_memory_equal(got + BS, zero, BS);
        fix_free(f);
    }
}

/* Between the two requests of a reader a write is completed, synced and committed. Its
 * holders know nothing of the version it replaced any more, which must not pass for a
 * hole. */
static void a_commit_meanwhile_makes_no_hole(void **state)
{
    struct fix *f = fix_new(1);
    uint8_t *new = pattern(12, 0, 1, BS), got[BS];
    uint64_t n_before = 0;
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 11, 0, 1, BS), 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(write_blocks(f, 12, 0, 1, BS), 0);
    assert_int_equal(sync_file(f), 0);
    for (unsigned i = 3; i < 6; i++) /* as if the write had not reached them yet */
        sim_storage_swap(&f->net, i, 0);
    storcli_read(f->file, 0, 1, got, NULL, on_done, &rc);
    for (unsigned i = 0; n_before < 6; i++) { /* until each home was asked once */
        assert_true(i < 100);
        env_virtual_advance_ms(&f->v, 1);
        n_before = 0;
        for (unsigned j = 0; j < 6; j++)
            n_before += f->net.storages[j].n_reads;
    }
    assert_int_equal(rc, NOT_DONE);
    for (unsigned i = 3; i < 6; i++)
        sim_storage_swap(&f->net, i, 0);
    for (unsigned i = 0; i < 3; i++)
        sim_storage_apply(&f->net, i);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_memory_equal(got, new, BS);
    free(new);
    fix_free(f);
}

static void a_storage_that_missed_writes_is_not_believed(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 128, BS), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    sim_storage_set(&f->net, 2, SIM_DOWN);
    assert_int_equal(write_blocks(f, 2, 0, 128, BS), 0);
    sim_storage_set(&f->net, 0, SIM_UP);
    sim_storage_set(&f->net, 2, SIM_UP);
    assert_int_equal(read_blocks(f, 2, 0, 128, BS), 0);
    sim_storage_set(&f->net, 4, SIM_DOWN);
    sim_storage_set(&f->net, 6, SIM_DOWN);
    assert_int_equal(read_blocks(f, 2, 0, 128, BS), 0);
    assert_true(stats_of(f).stale > 0);
    fix_free(f);
}

/* The third home was down during the overwrite; the first one lost it, and reports a
 * doubt. */
static void a_storage_in_doubt_is_not_trusted_for_the_newest(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint64_t n_reads = 0;

        assert_int_equal(write_blocks(f, version_make(1, 1), 0, 8, BS), 0);
        assert_int_equal(sync_file(f), 0);
        for (unsigned i = f->k; i < f->n; i++)
            sim_storage_set(&f->net, i, SIM_DOWN);
        assert_int_equal(write_blocks(f, version_make(1, 2), 0, 8, BS), 0);
        for (unsigned i = f->k; i < f->n; i++)
            sim_storage_set(&f->net, i, SIM_UP);
        sim_storage_power_cut(&f->net, 0);
        f->net.storages[0].doubt = true;
        /* only storages with the old version, or with the doubt, answer */
        for (unsigned i = 1; i < f->k; i++)
            sim_storage_set(&f->net, i, SIM_HUNG);
        assert_int_equal(read_blocks(f, version_make(1, 2), 0, 8, BS), -EIO);
        for (unsigned i = 1; i < f->k; i++)
            sim_storage_set(&f->net, i, SIM_UP);
        env_virtual_advance_ms(&f->v, 1000);
        assert_int_equal(read_blocks(f, version_make(1, 2), 0, 8, BS), 0);
        /* blocks without a newer version need one more request, and no others */
        assert_int_equal(write_blocks(f, version_make(1, 3), 100, 1, BS), 0);
        for (unsigned i = 0; i < f->net.n_storages; i++)
            n_reads -= f->net.storages[i].n_reads;
        assert_int_equal(read_blocks(f, version_make(1, 3), 100, 1, BS), 0);
        for (unsigned i = 0; i < f->net.n_storages; i++)
            n_reads += f->net.storages[i].n_reads;
        assert_int_equal(n_reads, f->k + 1);
        fix_free(f);
    }
}

/* A home that lost a record in a power failure answers "never written", like a spare that
 * has other blocks of the file. If both answer first, the records on the k other homes
 * look like a version that was never acknowledged. */
static void blocks_forgotten_by_one_home_are_read_from_the_others(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct fix *f = fix_new(0);

        sim_storage_set(&f->net, 2, SIM_DOWN);
        assert_int_equal(write_blocks(f, version_make(1, 1), 50, 1, BS), 0);
        sim_storage_set(&f->net, 2, SIM_UP);
        assert_int_equal(sync_file(f), 0);
        assert_int_equal(write_blocks(f, version_make(1, 2), i, 1, BS), 0);
        sim_storage_power_cut(&f->net, 0);
        f->net.storages[2].slow_ms = 40;
        assert_int_equal(read_blocks(f, version_make(1, 2), i, 1, BS), 0);
        fix_free(f);
    }
}

/* The engine requests another projection in place of one that does not arrive; its
 * storage is not among the first ones next time. */
static void a_slow_storage_is_not_waited_for(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint64_t ns;

        assert_int_equal(write_blocks(f, version_make(1, 1), 0, 8, BS), 0);
        f->net.storages[0].slow_ms = 2000;
        ns = env_now_ns(&f->v.env);
        assert_int_equal(read_blocks(f, version_make(1, 1), 0, 8, BS), 0);
        assert_true(env_now_ns(&f->v.env) - ns < UINT64_C(500000000));
        assert_true(stats_of(f).hedges > 0);
        ns = env_now_ns(&f->v.env);
        assert_int_equal(read_blocks(f, version_make(1, 1), 0, 8, BS), 0);
        assert_true(env_now_ns(&f->v.env) - ns < UINT64_C(50000000));
        f->net.storages[0].slow_ms = 0;
        fix_free(f);
    }
}

/* ---- stragglers ---- */

enum { LATE_MS = 100 };

static bool is_straggler(const struct fix *f, unsigned storage)
{
    return f->file->peer[storage]->straggler.is_straggler;
}

/* The first read asks another storage after a while, later reads at once. The straggler
 * is still used for everything else. */
static void reads_bypass_a_straggler(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint64_t n_reads, n_others = 0;
        unsigned ms;

        assert_int_equal(write_blocks(f, 1, 0, 300, BS), 0);
        assert_int_equal(read_blocks(f, 1, 0, 300, BS), 0);
        f->net.storages[0].late_ms = LATE_MS;
        assert_int_equal(read_ms(f, 1, 0, 300, BS, &ms), 0);
        assert_true(ms < 40);
        assert_true(is_straggler(f, 0));
        assert_int_equal(engine_rank(f->file, 0), PEER_GOOD);
        n_reads = f->net.storages[0].n_reads;
        for (unsigned i = f->n; i < f->net.n_storages; i++)
            n_others += f->net.storages[i].n_reads;
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(read_ms(f, 1, i, 2, BS, &ms), 0);
            assert_true(ms < 10);
            env_virtual_advance_ms(&f->v, 10);
        }
        /* probed five times a second */
        assert_in_range(f->net.storages[0].n_reads, n_reads + 4, n_reads + 12);
        for (unsigned i = f->n; i < f->net.n_storages; i++)
            n_others -= f->net.storages[i].n_reads;
        assert_int_equal(n_others, 0); /* spares are not asked: they have nothing */
        assert_int_equal(f->cli->n_stragglers, 1);
        fix_free(f);
    }
}

static void a_straggler_that_is_fast_again_is_read_again(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint64_t n_reads, n_decoded;
        unsigned ms;

        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        f->net.storages[0].late_ms = LATE_MS;
        for (unsigned i = 0; i < 300; i++) {
            assert_int_equal(read_ms(f, 1, 0, 20, BS, &ms), 0);
            assert_true(ms < 40);
            env_virtual_advance_ms(&f->v, 10);
        }
        assert_true(is_straggler(f, 0));
        f->net.storages[0].late_ms = 0;
        for (unsigned i = 0; i < 200; i++) {
            assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
            env_virtual_advance_ms(&f->v, 10);
        }
        assert_false(is_straggler(f, 0));
        assert_int_equal(f->cli->n_stragglers, 0);
        n_reads = f->net.storages[0].n_reads;
        n_decoded = stats_of(f).blocks_decoded;
        assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
        assert_int_equal(f->net.storages[0].n_reads, n_reads + 1);
        if (codec_is_systematic(f->file->codec))
            assert_int_equal(stats_of(f).blocks_decoded, n_decoded);
        fix_free(f);
    }
}

/* When all storages are equally far away, none is a straggler: more requests would only
 * cost time. */
static void equally_slow_storages_are_no_stragglers(void **state)
{
    static const unsigned far_ms[] = { 30, 100 };

    (void)state;
    for (unsigned t = 0; t < 2; t++) {
        struct fix *f = fix_new(1);
        struct storcli_stats stats = { 0 };

        for (unsigned i = 0; i < f->net.n_storages; i++)
            f->net.storages[i].late_ms = far_ms[t];
        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        for (unsigned i = 0; i < 50; i++) {
            assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
            assert_int_equal(f->cli->n_stragglers, 0);
            if (i == 0) /* the distance is known from now on */
                stats = stats_of(f);
        }
        assert_int_equal(stats_of(f).hedges, stats.hedges);
        if (codec_is_systematic(f->file->codec))
            assert_int_equal(stats_of(f).blocks_decoded, stats.blocks_decoded);
        fix_free(f);
    }
}

/* Four storages have the newest, acknowledged version, and one of them is a straggler.
 * Reads wait for it, before and after it is known to be slow; the older version, which
 * more storages have, is never believed. */
static void a_late_witness_is_heard(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
    for (unsigned i = 5; i < 8; i++)
        sim_storage_set(&f->net, i, SIM_DOWN);
    assert_int_equal(write_blocks(f, 2, 0, 20, BS), 0); /* acknowledged by 0 to 4 */
    assert_int_equal(sim_net_count(&f->net, 3, 2, false, 0), f->q);
    for (unsigned i = 5; i < 8; i++)
        sim_storage_set(&f->net, i, SIM_UP);
    sim_storage_set(&f->net, 4, SIM_DOWN);
    f->net.storages[0].late_ms = LATE_MS;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(read_ms(f, 2, 0, 20, BS, &ms), 0);
        assert_in_range(ms, LATE_MS, i == 0 ? 400 : 160);
    }
    assert_true(is_straggler(f, 0));
    assert_int_equal(engine_rank(f->file, 0), PEER_GOOD);
    fix_free(f);
}

/* Writes wait for a straggler until it was slow for a while. Then n others get every
 * write, a sync needs no more storages, and the copies on the straggler are committed. */
static void writes_bypass_a_straggling_home(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        uint64_t version = 1, spares, ns;
        unsigned ms, n_missed;

        assert_int_equal(write_blocks(f, version, 0, 3, BS), 0);
        f->net.storages[0].late_ms = LATE_MS;
        for (unsigned i = 0; i < 16; i++) {
            assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
            assert_true(ms < LATE_MS + 20);
        }
        assert_true(is_straggler(f, 0));
        assert_int_equal(engine_rank(f->file, 0), PEER_GOOD);
        for (unsigned i = 0; i < 20; i++) {
            spares = stats_of(f).spares;
            assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
            assert_true(ms < 20);
            assert_int_equal(stats_of(f).spares, spares + 1);
            for (unsigned b = 0; b < 3; b++)
                assert_int_equal(sim_net_count(&f->net, b, version, false, 1), f->n);
            assert_int_equal(read_blocks(f, version, 0, 3, BS), 0);
        }
        ns = env_now_ns(&f->v.env);
        assert_int_equal(sync_file(f), 0); /* the straggler has some of the first */
        assert_true(env_now_ns(&f->v.env) - ns < ms_to_ns(3 * LATE_MS));
        assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
        env_virtual_advance_ms(&f->v, 1000); /* all hints are sent by then */
        n_missed = f->net.storages[1].n_missed;
        assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
        ns = env_now_ns(&f->v.env);
        assert_int_equal(sync_file(f), 0);
        assert_true(env_now_ns(&f->v.env) - ns < ms_to_ns(40));
        /* no hint: it gets the block soon */
        assert_int_equal(f->net.storages[1].n_missed, n_missed);
        assert_false(storcli_file_is_unsynced(f->file));
        env_virtual_advance_ms(&f->v, 1000);
        for (unsigned b = 0; b < 3; b++) {
            assert_int_equal(f->net.storages[0].projections[0].now[b].version, version);
            assert_int_equal(f->net.storages[0].projections[0].older[b].n, 0);
        }
        /* a hint: the block must be checked there */
        assert_int_equal(f->net.storages[1].n_missed, n_missed + 1);
        f->net.storages[0].late_ms = 0;
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(write_blocks(f, ++version, 0, 3, BS), 0);
            env_virtual_advance_ms(&f->v, 10);
        }
        assert_false(is_straggler(f, 0));
        spares = stats_of(f).spares;
        assert_int_equal(write_blocks(f, ++version, 0, 3, BS), 0);
        assert_int_equal(stats_of(f).spares, spares);
        fix_free(f);
    }
}

/* Hints of what a straggler has not answered yet are sent together within a second, also
 * after the close. Hints of what a home that is down missed are sent at once. */
static void hints_for_a_straggling_home_are_sent_soon(void **state)
{
    (void)state;
    for (unsigned down = 0; down < 2; down++) {
        struct fix *f = fix_new(1);
        uint64_t version = 0;
        unsigned n_missed, ms;

        f->net.storages[0].late_ms = LATE_MS;
        for (unsigned i = 0; i < 20; i++)
            assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
        env_virtual_advance_ms(&f->v, 2000);
        n_missed = f->net.storages[1].n_missed;
        assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
        assert_true(ms < 20);
        if (down == 1) {
            sim_storage_set(&f->net, 5, SIM_DOWN);
            assert_int_equal(write_ms(f, ++version, 0, 3, BS, false, &ms), 0);
        }
        storcli_file_close(f->file);
        env_virtual_advance_ms(&f->v, 20);
        assert_int_equal(f->net.storages[1].n_missed, n_missed + down);
        env_virtual_advance_ms(&f->v, 1000);
        assert_int_equal(f->net.storages[1].n_missed, n_missed + 1);
        assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
        fix_free(f);
    }
}

/* Writes do not go to spares because of a wait of 20 ms for a disk, or because all
 * storages are equally far away. */
static void writes_go_to_spares_for_no_hiccup(void **state)
{
    struct fix *f = fix_new(1);
    uint64_t version = 0;

    (void)state;
    for (unsigned i = 0; i < 13; i++) { /* slow for 200 ms each */
        f->net.storages[i % 6].late_ms = LATE_MS;
        for (unsigned j = 0; j < 2; j++)
            assert_int_equal(write_blocks(f, ++version, 0, 1, BS), 0);
        f->net.storages[i % 6].late_ms = 0;
        for (unsigned j = 0; j < 50; j++) {
            assert_int_equal(write_blocks(f, ++version, 0, 1, BS), 0);
            env_virtual_advance_ms(&f->v, 10);
        }
    }
    assert_int_equal(stats_of(f).spares, 0);
    for (unsigned i = 0; i < f->net.n_storages; i++)
        f->net.storages[i].late_ms = LATE_MS;
    for (unsigned j = 0; j < 30; j++)
        assert_int_equal(write_blocks(f, ++version, 0, 1, BS), 0);
    assert_int_equal(stats_of(f).spares, 0);
    fix_free(f);
}

/* The first writes of a new mount wait for connections to the homes, and do not go to
 * spares. A home that cannot be reached is waited for once, as long as for one that does
 * not answer. */
static void writes_wait_for_homes_that_are_being_connected_to(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;
    int rc = NOT_DONE;
    uint8_t *data = pattern(1, 0, 20, BS);

    (void)state;
    set_homes(f, 0, 3, SIM_CONNECTING);
    storcli_write(f->file, 1, 0, 20, data, BS, false, on_done, &rc);
    env_virtual_advance_ms(&f->v, 100);
    assert_int_equal(rc, NOT_DONE);
    set_homes(f, 0, 3, SIM_UP);
    wait_done(f, &rc);
    free(data);
    assert_int_equal(rc, 0);
    assert_int_equal(stats_of(f).spares, 0);
    for (unsigned i = f->n; i < f->net.n_storages; i++)
        assert_int_equal(f->net.storages[i].n_writes, 0);
    sim_storage_set(&f->net, 1, SIM_CONNECTING);
    assert_int_equal(write_ms(f, 2, 0, 20, BS, false, &ms), 0);
    assert_true(ms >= 400);
    assert_int_equal(stats_of(f).spares, 1);
    assert_int_equal(write_ms(f, 3, 0, 20, BS, false, &ms), 0);
    assert_true(ms < 400);
    assert_int_equal(stats_of(f).spares, 2);
    assert_int_equal(read_blocks(f, 3, 0, 20, BS), 0);
    fix_free(f);
}

/* A home that was waited for without success is used again once it is connected: no
 * reachable storage is left out. */
static void writes_wait_for_homes_that_were_long_connected_to(void **state)
{
    struct storcli_config config = { 0 };
    struct fix *f = fix_new_with(1, codec_layout(1)->n, config);
    int rc = NOT_DONE;
    uint8_t *data = pattern(1, 0, 20, BS);

    (void)state;
    set_homes(f, 0, f->n, SIM_CONNECTING);
    storcli_write(f->file, 1, 0, 20, data, BS, false, on_done, &rc);
    env_virtual_advance_ms(&f->v, 3000);
    assert_int_equal(rc, NOT_DONE);
    set_homes(f, 0, f->n, SIM_UP);
    wait_done(f, &rc);
    free(data);
    assert_int_equal(rc, 0);
    for (unsigned i = 0; i < f->n; i++)
        assert_true(f->net.storages[i].n_writes > 0);
    env_virtual_advance_ms(&f->v, 2000);
    for (unsigned i = 0; i < f->n; i++)
        assert_int_equal(f->net.storages[i].n_missed, 0);
    fix_free(f);
}

/* A spare may hold several projections of a file, even of one block, at different
 * versions. */
static void a_spare_is_asked_for_all_it_holds(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    sim_storage_set(&f->net, 3, SIM_DOWN);
    sim_storage_set(&f->net, 7, SIM_DOWN);
    assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0); /* 6 gets projection 3 */
    sim_storage_set(&f->net, 3, SIM_UP);
    sim_storage_set(&f->net, 7, SIM_UP);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    /* 6, 7: projections 0, 1 of block 0 */
    assert_int_equal(write_blocks(f, 2, 0, 1, BS), 0);
    sim_storage_set(&f->net, 0, SIM_UP);
    sim_storage_set(&f->net, 1, SIM_UP);
    sim_storage_set(&f->net, 4, SIM_DOWN);
    sim_storage_set(&f->net, 5, SIM_DOWN);
    assert_int_equal(read_blocks(f, 2, 0, 1, BS), 0);
    assert_int_equal(read_blocks(f, 1, 1, 19, BS), 0);
    fix_free(f);
}

/* ---- sync ---- */

static void sync_makes_it_stable(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    assert_false(storcli_file_is_unsynced(f->file));
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(f->net.storages[0].n_syncs, 0);
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    assert_int_equal(mark_blocks(f, 2, 3, 2), 0);
    assert_true(storcli_file_is_unsynced(f->file));
    assert_int_equal(sync_file(f), 0);
    assert_false(storcli_file_is_unsynced(f->file));
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(f->net.storages[i].n_syncs, i < 6);
        sim_storage_power_cut(&f->net, i);
    }
    assert_int_equal(read_blocks(f, 1, 10, 30, BS), 0);
    fix_free(f);
}

static void a_synced_write_needs_no_sync(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;

    (void)state;
    assert_int_equal(write_ms(f, 1, 0, 40, BS, true, &ms), 0);
    assert_false(storcli_file_is_unsynced(f->file));
    for (unsigned i = 0; i < 8; i++)
        sim_storage_power_cut(&f->net, i);
    assert_int_equal(read_blocks(f, 1, 0, 40, BS), 0);
    fix_free(f);
}

static void projections_of_a_lost_storage_are_rebuilt(void **state)
{
    static const enum sim_state how[] = { SIM_DOWN, SIM_HUNG };

    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        for (unsigned h = 0; h < 2; h++) {
            struct fix *f = fix_new(layout);
            int rc = NOT_DONE;

            assert_int_equal(write_blocks(f, 1, 0, 300, 99), 0);
            assert_int_equal(write_blocks(f, 2, 17, 5, BS), 0);
            assert_int_equal(mark_blocks(f, 3, 40, 10), 0);
            for (unsigned i = 0; i < f->n - f->k; i++)
                sim_storage_set(&f->net, 1 + i, how[h]);
            storcli_sync(f->file, on_done, &rc);
            assert_true(wait_done(f, &rc) < 2000);
            assert_int_equal(rc, 0);
            for (unsigned i = 0; i < f->net.n_storages; i++)
                sim_storage_power_cut(&f->net, i);
            assert_int_equal(sim_net_count(&f->net, 16, 1, true, 0), f->n);
            assert_int_equal(sim_net_count(&f->net, 18, 2, true, 0), f->n);
            assert_int_equal(sim_net_count(&f->net, 299, 1, true, 0), f->n);
            /* readable with the same storages still down */
            assert_int_equal(read_blocks(f, 2, 17, 5, BS), 0);
            assert_int_equal(read_blocks(f, 1, 0, 17, BS), 0);
            fix_free(f);
        }
    }
}

/* A truncate, then a write during which storages fail: the spares have newer records in
 * the range of the mark that must be repeated there. */
static void a_mark_is_made_again_below_newer_records(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        for (unsigned to_end = 0; to_end < 2; to_end++) {
            struct fix *f = fix_new(layout);
            unsigned n_lost = f->n - f->k, n_storages = f->net.n_storages;
            int rc = NOT_DONE;

            assert_int_equal(write_blocks(f, 1, 0, 300, BS), 0);
            assert_int_equal(sync_file(f), 0);
            assert_int_equal(mark_blocks(f, 2, 0, to_end ? 0 : 400), 0);
            assert_int_equal(write_blocks(f, 3, 0, 100, BS), 0);
            for (unsigned i = 0; i < n_lost; i++)
                sim_storage_set(&f->net, i, SIM_DOWN);
            assert_int_equal(write_blocks(f, 4, 100, 50, BS), 0);
            assert_int_equal(write_blocks(f, 5, 170, 3, BS), 0);
            storcli_sync(f->file, on_done, &rc);
            assert_true(wait_done(f, &rc) < 2000);
            assert_int_equal(rc, 0);
            for (unsigned i = 0; i < n_storages; i++)
                sim_storage_power_cut(&f->net, i);
            for (unsigned b = 0; b < 300; b++) {
                uint64_t version = b < 100               ? 3
                                   : b < 150             ? 4
                                   : b >= 170 && b < 173 ? 5
                                                         : 2;

                assert_int_equal(sim_net_count(&f->net, b, version, true, 0) >= f->n,
                                 true);
            }
            /* readable with the same storages still down */
            assert_int_equal(read_blocks(f, 3, 0, 100, BS), 0);
            assert_int_equal(read_blocks(f, 4, 100, 50, BS), 0);
            fix_free(f);
        }
    }
}

/* There are more changes than the list can keep separately. */
static void many_small_changes_are_made_again(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 2; layout++) {
        struct fix *f = fix_new(layout);
        int rc = NOT_DONE;

        assert_int_equal(write_blocks(f, 1, 0, 600, BS), 0);
        assert_int_equal(sync_file(f), 0);
        for (unsigned i = 0; i < 150; i++)
            assert_int_equal(mark_blocks(f, 2 + i, i * 4, 1), 0);
        assert_int_equal(mark_blocks(f, 1000, 590, 0), 0);
        for (unsigned i = 0; i < f->n - f->k; i++)
            sim_storage_set(&f->net, i, SIM_DOWN);
        storcli_sync(f->file, on_done, &rc);
        assert_true(wait_done(f, &rc) < 5000);
        assert_int_equal(rc, 0);
        for (unsigned i = 0; i < f->net.n_storages; i++)
            sim_storage_power_cut(&f->net, i);
        for (unsigned i = 0; i < 147; i++)
            assert_true(sim_net_count(&f->net, i * 4, 2 + i, true, 0) >= f->n);
        assert_true(sim_net_count(&f->net, 599, 1000, true, 0) >= f->n);
        fix_free(f);
    }
}

static void a_storage_that_forgot_unsynced_writes_is_noticed(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    sim_storage_power_cut(&f->net, 1);
    sim_storage_power_cut(&f->net, 4);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(sim_net_count(&f->net, 3, 1, true, 0), f->n);
    fix_free(f);
}

static void blocks_forgotten_by_all_are_an_error_once(void **state)
{
    struct fix *f = fix_new(1);
    int rc = NOT_DONE, rc2 = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    for (unsigned i = 0; i < 8; i++)
        sim_storage_power_cut(&f->net, i);
    storcli_sync(f->file, on_done, &rc);
    env_virtual_run_posted(&f->v);
    storcli_sync(f->file, on_done, &rc2); /* waits for the same blocks */
    wait_done(f, &rc);
    wait_done(f, &rc2);
    assert_int_equal(rc, -EIO);
    assert_int_equal(rc2, -EIO);
    assert_int_equal(sync_file(f), 0);
    fix_free(f);
}

static void a_sync_that_cannot_be_is_an_error_and_can_be_repeated(void **state)
{
    struct fix *f = fix_new(0);
    unsigned ms;
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    sim_storage_set(&f->net, 3, SIM_DOWN);
    storcli_sync(f->file, on_done, &rc);
    ms = wait_done(f, &rc);
    assert_int_equal(rc, -EIO); /* 2 of a quorum of 3 */
    assert_in_range(ms, 19000, 21000);
    assert_true(storcli_file_is_unsynced(f->file));
    sim_storage_set(&f->net, 0, SIM_UP);
    assert_int_equal(sync_file(f), 0);
    assert_false(storcli_file_is_unsynced(f->file));
    fix_free(f);
}

static void open_again(struct fix *f)
{
    storcli_file_close(f->file);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    storcli_file_others_wrote(f->file);
}

static void refuse_all(struct fix *f, unsigned first, unsigned n, uint16_t status)
{
    for (unsigned i = first; i < first + n; i++)
        f->net.storages[i].refuse_all = status;
}

/* Storages have no descriptors left: a write fails after one timeout, and so does the
 * sync. */
static void busy_storages_cost_each_call_one_timeout(void **state)
{
    struct fix *f = fix_new(0);
    uint8_t *data = pattern(2, 0, 40, BS);
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    refuse_all(f, 0, f->net.n_storages, ROZO__STATUS__BUSY);
    storcli_write(f->file, 2, 0, 40, data, BS, false, on_done, &rc);
    assert_in_range(wait_done(f, &rc), 19000, 21000);
    assert_int_equal(rc, -EIO);
    rc = NOT_DONE;
    storcli_sync(f->file, on_done, &rc);
    assert_in_range(wait_done(f, &rc), 19000, 21000);
    assert_int_equal(rc, -EIO);
    refuse_all(f, 0, f->net.n_storages, 0);
    assert_int_equal(sync_file(f), 0);
    free(data);
    fix_free(f);
}

/* Others wrote, so that the sync reads what is unstable before it asks for the rest. */
static void a_busy_storage_costs_a_sync_of_what_others_wrote_one_timeout(void **state)
{
    struct fix *f = fix_new(0);
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    open_again(f);
    refuse_all(f, 0, 1, ROZO__STATUS__BUSY);
    storcli_sync(f->file, on_done, &rc);
    assert_in_range(wait_done(f, &rc), 0, 21000);
    assert_int_equal(rc, 0);
    fix_free(f);
}

/* A spare that refuses everything as too old, since its own record there is damaged, does
 * not count as a place for the projection. */
static void a_home_that_finds_all_too_old_is_none(void **state)
{
    struct fix *f = fix_new(1);
    unsigned ms;
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 40, BS), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    f->net.storages[6].refuse_writes = ROZO__STATUS__STALE_VERSION;
    storcli_sync(f->file, on_done, &rc);
    ms = wait_done(f, &rc);
    assert_int_equal(rc, 0);
    assert_true(ms < 1000);
    assert_int_equal(sim_net_count(&f->net, 3, 1, true, 1 << 0), f->n); /* 7 gets it */
    fix_free(f);
}

/* A projection is found on a storage that is the home of another one. */
static void a_projection_on_anothers_optimal_storage_is_found(void **state)
{
    struct fix *f = fix_new(0);

    (void)state;
    sim_storage_set(&f->net, 0, SIM_DOWN);
    assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0); /* 3 gets 0, 1 gets 1, 2 gets 2 */
    sim_storage_set(&f->net, 0, SIM_UP);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(sync_file(f), 0); /* 0 gets 1 */
    sim_storage_power_cut(&f->net, 1); /* loses all: its data was not synced */
    sim_storage_set(&f->net, 1, SIM_UP);
    assert_int_equal(sim_net_count(&f->net, 3, 1, true, 0), 3);
    assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
    sim_storage_set(&f->net, 3, SIM_DOWN); /* n - k = 1 of {0, 2, 3} fails */
    assert_int_equal(sim_net_count(&f->net, 3, 1, true, 1 << 3), 2);
    assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
    fix_free(f);
}

/* A power failure takes a block, and then the program writes a part of it: the rest was
 * read as a hole. A write of the whole block would lose nothing. */
static void a_loss_is_reported_though_the_block_was_completed_without_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        unsigned completed = i % 2, ms;
        bool sync = i >= 2;
        struct fix *f = fix_new(0);

        assert_int_equal(write_blocks(f, 1, 0, 1, BS), 0);
        for (unsigned s = 0; s < f->net.n_storages; s++)
            sim_storage_power_cut(&f->net, s);
        if (completed)
            storcli_file_completes(f->file, 0);
        assert_int_equal(write_ms(f, 2, 0, 1, BS, sync, &ms), 0);
        assert_int_equal(sync_file(f), completed ? -EIO : 0);
        assert_int_equal(storcli_file_losses(f->file), completed);
        assert_int_equal(sync_file(f), 0);
        assert_int_equal(storcli_file_losses(f->file), completed);
        fix_free(f);
    }
}

/* Write, close, open again, fsync (cp a b; sync b); then all storages lose power. */
static void a_sync_after_reopening_makes_it_stable(void **state)
{
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);

        (void)state;
        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        storcli_file_close(f->file);
        assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
        storcli_file_others_wrote(f->file); /* file_open() makes this call, too */
        assert_true(storcli_file_is_unsynced(f->file));
        assert_int_equal(sync_file(f), 0);
        assert_false(storcli_file_is_unsynced(f->file));
        for (unsigned i = 0; i < f->net.n_storages; i++)
            sim_storage_power_cut(&f->net, i);
        assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
        fix_free(f);
    }
}

/* Opens the file as another client does with file_open(). */
/* Homes [first, first + n) lose their unsynced data while they are unreachable, and come
 * back. */
static void come_back_without_it(struct fix *f, unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++)
        sim_storage_power_cut(&f->net, i);
    set_homes(f, first, n, SIM_UP);
}

/* As many homes as a file may lose are down during another client's fsync, and then lose
 * power; after that as many others become unreachable. */
static void others_data_is_synced_at_as_many_as_a_write_needs(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        for (unsigned over = 0; over < 2; over++) {
            struct fix *f = fix_new(layout);
            unsigned away = f->n - f->k, first = f->n - away;

            if (over) {
                assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
                assert_int_equal(sync_file(f), 0);
            }
            assert_int_equal(write_blocks(f, 2, 0, 20, BS), 0);
            open_again(f);
            set_homes(f, first, away, SIM_DOWN);
            assert_int_equal(sync_file(f), 0);
            assert_int_equal(sim_net_count(&f->net, 3, 2, true, 0), f->n);
            come_back_without_it(f, first, away);
            set_homes(f, 0, away, SIM_DOWN);
            assert_int_equal(read_blocks(f, 2, 0, 20, BS), 0);
            fix_free(f);
        }
    }
}

static void others_holes_are_synced_at_as_many_as_a_write_needs(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned away = f->n - f->k, first = f->n - away;

        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        assert_int_equal(sync_file(f), 0);
        assert_int_equal(mark_blocks(f, 2, 5, 10), 0);
        open_again(f);
        set_homes(f, first, away, SIM_DOWN);
        assert_int_equal(sync_file(f), 0);
        assert_true(sim_net_count(&f->net, 7, 2, true, 0) >= f->n);
        fix_free(f);
    }
}

/* Some homes hung during the write and got it later: the spares have the same
 * projections, and are needed to replace what other homes lost. */
static void what_two_have_leaves_one_for_what_is_lost(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);
        unsigned away = f->n - f->k;

        set_homes(f, 0, away, SIM_HUNG);
        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        set_homes(f, 0, away, SIM_UP);
        env_virtual_advance_ms(&f->v, 100);
        assert_int_equal(sim_net_count(&f->net, 3, 1, false, UINT32_MAX << f->n), f->n);
        open_again(f);
        set_homes(f, f->n - away, away, SIM_DOWN);
        assert_int_equal(sync_file(f), 0);
        come_back_without_it(f, f->n - away, away);
        set_homes(f, 0, away, SIM_DOWN);
        assert_int_equal(read_blocks(f, 1, 0, 20, BS), 0);
        fix_free(f);
    }
}

/* A home came back from a power failure before the fsync: it answers, but has nothing. */
static void lost_projections_of_others_data_are_rebuilt(void **state)
{
    (void)state;
    for (unsigned layout = 0; layout < 3; layout++) {
        struct fix *f = fix_new(layout);

        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        for (unsigned i = f->q - 1; i < f->n; i++)
            sim_storage_power_cut(&f->net, i);
        open_again(f);
        assert_int_equal(sync_file(f), 0);
        assert_int_equal(sim_net_count(&f->net, 3, 1, true, 0), f->n);
        fix_free(f);
    }
}

/* The sync sends one request to each storage when all answer, or when nothing is
 * unsynced. */
static void a_sync_of_others_data_asks_once(void **state)
{
    (void)state;
    for (unsigned away = 0; away < 2; away++) {
        struct fix *f = fix_new(0);

        assert_int_equal(write_blocks(f, 1, 0, 20, BS), 0);
        if (away)
            assert_int_equal(sync_file(f), 0);
        for (unsigned i = 0; away && i < f->n; i++)
            f->net.storages[i].n_unstable = 0; /* as if it was written long ago */
        open_again(f);
        for (unsigned i = 0; i < f->net.n_storages; i++)
            f->net.storages[i].n_syncs = f->net.storages[i].n_reads = 0;
        sim_storage_set(&f->net, f->n, away ? SIM_DOWN : SIM_UP);
        assert_int_equal(sync_file(f), 0);
        for (unsigned i = 0; i < f->n; i++) {
            assert_int_equal(f->net.storages[i].n_syncs, 1);
            assert_int_equal(f->net.storages[i].n_reads, 0);
        }
        fix_free(f);
    }
}

/* The last block, short and synced, is extended while most storages are full. What was
 * stored must stay readable. */
static void a_full_cluster_does_not_harm_the_last_block(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 1, 100), 0);
    assert_int_equal(sync_file(f), 0);
    for (unsigned i = 3; i < 8; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__NO_SPACE;
    assert_int_equal(write_blocks(f, 2, 0, 1, 5000), -ENOSPC);
    /* the old data would be right, too */
    assert_int_equal(read_blocks(f, 2, 0, 1, 5000), 0);
    fix_free(f);
}

/* ---- the rest ---- */

static void seek_finds_data_and_holes(void **state)
{
    struct fix *f = fix_new(1);
    static const struct {
        uint64_t from;
        bool hole;
        uint64_t found;
    } cases[] = {
        { 0, false, 150 },   { 150, false, 150 },        { 155, false, 155 },
        { 160, false, 500 }, { 503, false, UINT64_MAX }, { 0, true, 0 },
        { 150, true, 156 },  { 500, true, 502 },         { 501, true, 502 },
        { 700, true, 600 },
    };

    (void)state;
    assert_int_equal(write_blocks(f, 1, 150, 10, BS), 0);
    assert_int_equal(write_blocks(f, 2, 500, 2, 5), 0);
    assert_int_equal(mark_blocks(f, 3, 156, 4), 0);
    assert_int_equal(mark_blocks(f, 4, 520, 0), 0); /* from there without an end */
    for (unsigned away = 0; away < 3; away++) {
        for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            uint64_t found = 12345;
            int rc = NOT_DONE;

            storcli_seek(f->file, cases[i].from, 600, cases[i].hole, &found, on_done,
                         &rc);
            assert_true(wait_done(f, &rc) < 1000);
            assert_int_equal(rc, 0);
            assert_int_equal(found, cases[i].found);
        }
        sim_storage_set(&f->net, away * 2, away == 0 ? SIM_HUNG : SIM_DOWN);
    }
    fix_free(f);
}

static void alloc_and_locate(void **state)
{
    struct fix *f = fix_new(1);
    struct storcli_place places[DIST_MAX];
    int rc = NOT_DONE;

    (void)state;
    storcli_alloc(f->file, 0, 100, false, on_done, &rc);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    sim_storage_set(&f->net, 2, SIM_HUNG);
    rc = NOT_DONE;
    storcli_locate(f->file, places, on_done, &rc);
    assert_true(wait_done(f, &rc) < 1100);
    assert_int_equal(rc, 0);
    assert_true(places[0].reachable);
    assert_int_equal(places[0].storage_id, 1);
    assert_int_equal(places[0].projections, 1);
    assert_int_equal(places[0].allocated_bytes, 8192);
    assert_string_equal(places[0].path, "objects/00/00/f");
    assert_false(places[1].reachable);
    assert_false(places[2].reachable);
    assert_true(places[7].reachable);
    assert_int_equal(places[7].projections, 0);
    sim_storage_set(&f->net, 1, SIM_UP);
    sim_storage_set(&f->net, 2, SIM_UP);
    /* the spares have room for two projections */
    for (unsigned full = 0; full < 3; full++) {
        f->net.storages[4 - full].refuse_writes = ROZO__STATUS__NO_SPACE;
        rc = NOT_DONE;
        storcli_alloc(f->file, 0, 100, false, on_done, &rc);
        wait_done(f, &rc);
        assert_int_equal(rc, full < 2 ? 0 : -ENOSPC);
    }
    fix_free(f);
}

/* Checks that every projection of each block has space on exactly one storage, and no
 * storage has two of one block. */
static void expect_reserved(const struct fix *f, uint64_t first, uint64_t n)
{
    for (uint64_t b = first; b < first + n; b++) {
        uint32_t projections = 0, storages = 0;

        for (unsigned i = 0; i < f->net.n_storages; i++) {
            const struct sim_storage *s = &f->net.storages[i];

            for (unsigned a = 0; a < s->n_allocs; a++) {
                const struct sim_alloc *x = &s->allocs[a];

                if (b < x->first || b >= x->first + x->n)
                    continue;
                assert_true((projections >> x->projection & 1) == 0);
                assert_true((storages >> i & 1) == 0);
                projections |= 1u << x->projection;
                storages |= 1u << i;
            }
        }
        assert_int_equal(projections, (1u << f->n) - 1);
    }
}

static void expect_nothing_reserved(const struct fix *f)
{
    for (unsigned i = 0; i < f->net.n_storages; i++)
        assert_int_equal(f->net.storages[i].n_allocs, 0);
}

static int alloc_blocks(struct fix *f, uint64_t first, uint64_t n)
{
    int rc = NOT_DONE;

    storcli_alloc(f->file, first, n, false, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

/* Layout 1: 6 of 8 storages. If all homes become full at once, the spares still have
 * room. */
static void all_candidates_can_be_reserved_to_the_end(void **state)
{
    enum { EXTENTS = 60 };
    struct fix *f = fix_new(1);
    uint64_t row = record_extent_bytes(f->net.codec, 5) + 1;
    uint64_t room = EXTENTS * row + (128 << 10);

    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        assert_true(record_extent_bytes(f->net.codec, i < 6 ? i : 0) < row + 8192);
        f->net.storages[i].alloc_room = room;
    }
    /* 8 storages have 60 rows each: 80 extents of 6 rows, less the differences in size
     * between projections. */
    assert_int_equal(alloc_blocks(f, 5, 76 * EXTENT_BLOCKS), 0);
    expect_reserved(f, 5, 76 * EXTENT_BLOCKS);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].n_allocs = 0;
    assert_int_equal(alloc_blocks(f, 0, 92 * EXTENT_BLOCKS), -ENOSPC);
    expect_nothing_reserved(f);
    for (unsigned i = 0; i < 8; i++) /* different amounts of space */
        f->net.storages[i].alloc_room = (i < 4 ? 20 : 50) * row + (128 << 10);
    assert_int_equal(alloc_blocks(f, 0, 35 * EXTENT_BLOCKS), 0);
    expect_reserved(f, 0, 35 * EXTENT_BLOCKS);
    fix_free(f);
}

/* A storage that a new mount has not reached yet is not full. One that cannot be reached
 * is waited for, though not until the deadline. */
static void reserving_waits_for_spares_that_are_being_connected_to(void **state)
{
    struct fix *f = fix_new(1);
    uint64_t before_ns;
    int rc = NOT_DONE;

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].alloc_room = i < 2 ? 1 << 20 : 64 << 20;
    for (unsigned i = 6; i < 8; i++)
        sim_storage_set(&f->net, i, SIM_CONNECTING);
    storcli_alloc(f->file, 0, 64 * EXTENT_BLOCKS, false, on_done, &rc);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(rc, NOT_DONE);
    for (unsigned i = 6; i < 8; i++)
        sim_storage_set(&f->net, i, SIM_UP);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    expect_reserved(f, 0, 64 * EXTENT_BLOCKS);
    for (unsigned i = 0; i < 8; i++)
        f->net.storages[i].n_allocs = 0;
    sim_storage_set(&f->net, 7, SIM_CONNECTING);
    before_ns = env_now_ns(&f->v.env);
    assert_int_equal(alloc_blocks(f, 0, 64 * EXTENT_BLOCKS), -ENOSPC);
    assert_true(env_now_ns(&f->v.env) - before_ns < ms_to_ns(10000));
    sim_storage_set(&f->net, 7, SIM_UP);
    expect_nothing_reserved(f);
    fix_free(f);
}

/* Space is given back after any failure: a full storage, an error, a storage that goes
 * down. */
static void what_cannot_be_reserved_is_given_back(void **state)
{
    struct fix *f = fix_new(1);

    (void)state;
    for (unsigned i = 3; i < 8; i++)
        f->net.storages[i].alloc_room = 4 << 20;
    assert_int_equal(alloc_blocks(f, 0, 1000 * EXTENT_BLOCKS), -ENOSPC);
    expect_nothing_reserved(f);
    for (unsigned i = 3; i < 8; i++)
        f->net.storages[i].refuse_all = ROZO__STATUS__DENIED;
    assert_int_equal(alloc_blocks(f, 0, 10), -EACCES);
    expect_nothing_reserved(f);
    for (unsigned i = 0; i < 8; i++) {
        f->net.storages[i].refuse_all = 0;
        f->net.storages[i].alloc_room = 0;
    }
    assert_int_equal(alloc_blocks(f, 0, 10), 0);
    expect_reserved(f, 0, 10);
    fix_free(f);
}

static void memory_is_bounded_and_all_get_their_turn(void **state)
{
    enum { OPS = 64 };
    struct fix *f = fix_new_with(1, 8, (struct storcli_config){ .memory_max = 4 << 20 });
    uint8_t *data = pattern(1, 0, 64, BS);
    int rc[OPS];

    (void)state;
    for (unsigned i = 0; i < OPS; i++) {
        rc[i] = NOT_DONE;
        storcli_write(f->file, version_make(1, 1 + i), 64 * (i % 8), 64, data, BS, false,
                      on_done, &rc[i]);
        assert_true(f->cli->memory_used <= 4 << 20);
    }
    for (unsigned i = 0; i < OPS; i++) {
        wait_done(f, &rc[i]);
        assert_true(f->cli->memory_used <= 4 << 20);
        assert_true(f->cli->scratch.lent_bytes <= 8 << 20);
    }
    assert_int_equal(f->cli->memory_used, 0);
    free(data);
    fix_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_cluster_does_not_harm_the_last_block),
        cmocka_unit_test(a_sync_after_reopening_makes_it_stable),
        cmocka_unit_test(a_loss_is_reported_though_the_block_was_completed_without_it),
        cmocka_unit_test(others_data_is_synced_at_as_many_as_a_write_needs),
        cmocka_unit_test(others_holes_are_synced_at_as_many_as_a_write_needs),
        cmocka_unit_test(lost_projections_of_others_data_are_rebuilt),
        cmocka_unit_test(what_two_have_leaves_one_for_what_is_lost),
        cmocka_unit_test(a_sync_of_others_data_asks_once),
        cmocka_unit_test(a_projection_on_anothers_optimal_storage_is_found),
        cmocka_unit_test(written_blocks_are_read),
        cmocka_unit_test(a_healthy_run_costs_n_writes_and_k_reads),
        cmocka_unit_test(marks_make_holes),
        cmocka_unit_test(never_written_blocks_of_a_file_that_is_there_are_holes),
        cmocka_unit_test(no_projection_anywhere_is_an_error_not_zeros),
        cmocka_unit_test(targets_that_make_no_sense_are_refused),
        cmocka_unit_test(every_pattern_of_lost_storages_is_read_back),
        cmocka_unit_test(a_write_goes_to_spares_at_once_when_storages_are_down),
        cmocka_unit_test(a_hung_storage_costs_one_short_wait),
        cmocka_unit_test(spares_that_hang_too_do_not_add_up),
        cmocka_unit_test(without_spares_the_quorum_is_enough),
        cmocka_unit_test(fewer_candidates_make_no_quorum_smaller),
        cmocka_unit_test(what_was_never_acknowledged_is_passed_over),
        cmocka_unit_test(too_few_storages_wait_and_go_on_when_they_return),
        cmocka_unit_test(too_few_storages_for_too_long_is_an_error),
        cmocka_unit_test(busy_answers_count_for_nothing),
        cmocka_unit_test(a_file_that_is_out_of_reach_is_so_soon_the_second_time),
        cmocka_unit_test(a_storage_unknown_to_the_shell_is_as_if_down),
        cmocka_unit_test(full_storages),
        cmocka_unit_test(a_refused_capability),
        cmocka_unit_test(a_session_that_is_over),
        cmocka_unit_test(a_write_keeps_its_session),
        cmocka_unit_test(storages_that_fail_or_belong_to_nobody),
        cmocka_unit_test(damaged_records_are_passed_by),
        cmocka_unit_test(too_much_damage_is_an_error_never_zeros),
        cmocka_unit_test(an_interrupted_overwrite_leaves_the_old_or_the_new),
        cmocka_unit_test(below_what_is_torn_lies_what_was),
        cmocka_unit_test(below_what_is_torn_lies_a_later_mark),
        cmocka_unit_test(a_torn_first_write_is_a_hole),
        cmocka_unit_test(a_commit_meanwhile_makes_no_hole),
        cmocka_unit_test(a_storage_that_missed_writes_is_not_believed),
        cmocka_unit_test(a_storage_in_doubt_is_not_trusted_for_the_newest),
        cmocka_unit_test(blocks_forgotten_by_one_home_are_read_from_the_others),
        cmocka_unit_test(a_slow_storage_is_not_waited_for),
        cmocka_unit_test(reads_bypass_a_straggler),
        cmocka_unit_test(a_straggler_that_is_fast_again_is_read_again),
        cmocka_unit_test(equally_slow_storages_are_no_stragglers),
        cmocka_unit_test(a_late_witness_is_heard),
        cmocka_unit_test(writes_bypass_a_straggling_home),
        cmocka_unit_test(hints_for_a_straggling_home_are_sent_soon),
        cmocka_unit_test(writes_go_to_spares_for_no_hiccup),
        cmocka_unit_test(writes_wait_for_homes_that_are_being_connected_to),
        cmocka_unit_test(writes_wait_for_homes_that_were_long_connected_to),
        cmocka_unit_test(a_spare_is_asked_for_all_it_holds),
        cmocka_unit_test(sync_makes_it_stable),
        cmocka_unit_test(a_synced_write_needs_no_sync),
        cmocka_unit_test(projections_of_a_lost_storage_are_rebuilt),
        cmocka_unit_test(a_mark_is_made_again_below_newer_records),
        cmocka_unit_test(many_small_changes_are_made_again),
        cmocka_unit_test(a_storage_that_forgot_unsynced_writes_is_noticed),
        cmocka_unit_test(blocks_forgotten_by_all_are_an_error_once),
        cmocka_unit_test(a_sync_that_cannot_be_is_an_error_and_can_be_repeated),
        cmocka_unit_test(busy_storages_cost_each_call_one_timeout),
        cmocka_unit_test(a_busy_storage_costs_a_sync_of_what_others_wrote_one_timeout),
        cmocka_unit_test(a_home_that_finds_all_too_old_is_none),
        cmocka_unit_test(seek_finds_data_and_holes),
        cmocka_unit_test(alloc_and_locate),
        cmocka_unit_test(reserving_waits_for_spares_that_are_being_connected_to),
        cmocka_unit_test(all_candidates_can_be_reserved_to_the_end),
        cmocka_unit_test(what_cannot_be_reserved_is_given_back),
        cmocka_unit_test(memory_is_bounded_and_all_get_their_turn),
    };

    int rc = 0;

    for (unsigned i = 0; (kind = codec_kind_at(i)) != 0; i += UNIT_STEP)
        rc |= cmocka_run_group_tests_name(codec_kind_name(kind), tests, NULL, NULL);
    return rc;
}
