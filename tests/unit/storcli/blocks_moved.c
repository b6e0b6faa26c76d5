/*
 * Goal: a file that gets another distribution is read and written at its new storages, no
 * earlier acknowledgement or loss is forgotten, and no answer is made of two
 * distributions. Method: the engine on simulated storages whose headers have a
 * generation, and a virtual clock.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "storcli/blocks/engine.h"
#include "tests/sim/sim_net.h"
#include "tests/unit/unit.h"

/* Layout 0: k 2, n 3; a write needs 3. The file begins at storages 1..3; NEW is a fourth
 * one. */
enum { BS = 8192, NOT_DONE = 1, K = 2, N = 3, NEW = 3, SIMS = 5, SOON_MS = 200 };

struct fix {
    struct env_virtual v;
    struct sim_net net;
    struct storcli *cli;
    struct storcli_file *file;
    struct storcli_target target; /* the file's latest target */
};

static struct fix *fix_new(void)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct storcli_config config = { 0 };
    struct storcli_peers peers;

    assert_non_null(f);
    env_virtual_init(&f->v, 1);
    sim_net_init(&f->net, &f->v, CODEC_MOJETTE, 0, SIMS);
    f->net.target.n_storages = N;
    f->target = f->net.target;
    peers = sim_net_peers(&f->net, 0);
    assert_int_equal(storcli_new(&f->v.env, &config, &peers, &f->cli), 0);
    assert_int_equal(storcli_file_open(f->cli, &f->target, &f->file), 0);
    return f;
}

static void fix_free(struct fix *f)
{
    storcli_file_close(f->file);
    storcli_free(f->cli);
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

static unsigned wait_done(struct fix *f, const int *result)
{
    unsigned ms = 0;

    for (; *result == NOT_DONE; ms++) {
        assert_true(ms < 60000);
        env_virtual_advance_ms(&f->v, 1);
    }
    return ms;
}

static uint8_t *pattern(uint64_t version, uint64_t first, unsigned n)
{
    uint8_t *data = aligned_alloc(4096, (size_t)n * BS);

    assert_non_null(data);
    for (size_t i = 0; i < (size_t)n * BS; i++)
        data[i] = (uint8_t)((first * BS + i) * 2654435761u >> 13 ^ version * 37);
    return data;
}

static int write_blocks(struct fix *f, uint64_t version, uint64_t first, unsigned n)
{
    uint8_t *data = pattern(version, first, n);
    int rc = NOT_DONE;

    storcli_write(f->file, version, first, n, data, BS, false, on_done, &rc);
    wait_done(f, &rc);
    free(data);
    return rc;
}

/* Reads, and compares with the data that this version wrote. */
static int read_blocks(struct fix *f, uint64_t version, uint64_t first, unsigned n)
{
    uint8_t *expected = pattern(version, first, n), *data = malloc((size_t)n * BS);
    int rc = NOT_DONE;

    assert_non_null(data);
    storcli_read(f->file, first, n, data, NULL, on_done, &rc);
    wait_done(f, &rc);
    if (rc == 0)
        assert_memory_equal(data, expected, (size_t)n * BS);
    free(data);
    free(expected);
    return rc;
}

static int sync_file(struct fix *f)
{
    int rc = NOT_DONE;

    storcli_sync(f->file, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

/* Returns a target of the next distribution generation, with these storages by id. */
static struct storcli_target next_target(struct fix *f, unsigned n, const uint32_t *ids)
{
    struct storcli_target t = f->target;

    t.dist_generation++;
    t.n_storages = (uint8_t)n;
    memcpy(t.storages, ids, n * sizeof(*ids));
    return t;
}

/* Gives these storages the new header, as exportd does. */
static void redistribute(struct fix *f, uint32_t at, uint32_t generation)
{
    for (unsigned i = 0; i < SIMS; i++) {
        if ((at >> i & 1) != 0)
            f->net.storages[i].dist_generation = generation;
    }
}

static const uint32_t grown_ids[] = { 1, 2, 3, 4 };
static const uint32_t replaced_ids[] = { 1, 5, 3, 4 };

/* Does the complete change: the headers, and the ref of the mount. */
static void grow(struct fix *f)
{
    f->target = f->net.target = next_target(f, 4, grown_ids);
    redistribute(f, 1 << 0 | 1 << 1 | 1 << 2, f->target.dist_generation);
    assert_int_equal(storcli_file_update(f->file, &f->target), 0);
}

static void a_file_is_written_at_its_new_storages(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    assert_int_equal(sync_file(f), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    assert_int_equal(write_blocks(f, 2, 0, 5), -EIO); /* 2 of 3 are too few */
    sim_storage_set(&f->net, 0, SIM_UP);
    assert_int_equal(write_blocks(f, 3, 0, 5), 0);
    grow(f);
    assert_int_equal(storcli_file_dist_generation(f->file), 1);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    assert_int_equal(write_blocks(f, 4, 1, 3), 0);
    assert_true(f->net.storages[NEW].n_writes > 0);
    assert_int_equal(read_blocks(f, 4, 1, 3), 0);
    assert_int_equal(read_blocks(f, 3, 4, 1), 0);
    assert_int_equal(sync_file(f), 0);
    assert_true(f->net.storages[NEW].n_syncs > 0);
    fix_free(f);
}

static void storages_of_a_lower_generation_serve_the_new_ref(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    f->target = f->net.target = next_target(f, 4, grown_ids);
    redistribute(f, 1 << 1, 1);
    assert_int_equal(storcli_file_update(f->file, &f->target), 0);
    assert_int_equal(read_blocks(f, 1, 0, 5), 0);
    assert_int_equal(write_blocks(f, 2, 0, 5), 0);
    fix_free(f);
}

/* Makes each kind of call with a ref that the storages know to be old. */
static void an_old_ref_ends_with_its_errno(void **state)
{
    struct fix *f = fix_new();
    struct storcli_place places[DIST_MAX];
    uint8_t *data = pattern(1, 0, 300);
    uint64_t found;
    uint64_t n_writes;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 300), 0);
    redistribute(f, 7, 1);
    n_writes = f->net.storages[0].n_writes;
    for (unsigned what = 0; what < 8; what++) {
        int rc = NOT_DONE;

        switch (what) {
        case 0:
            storcli_write(f->file, 2, 0, 300, data, BS, false, on_done, &rc);
            break;
        case 1:
            storcli_read(f->file, 0, 300, data, NULL, on_done, &rc);
            break;
        case 2:
            storcli_mark(f->file, 3, 0, 0, on_done, &rc);
            break;
        case 3:
            storcli_sync(f->file, on_done, &rc);
            break;
        case 4:
            storcli_seek(f->file, 0, 300, false, &found, on_done, &rc);
            break;
        case 5:
            storcli_alloc(f->file, 0, 300, false, on_done, &rc);
            break;
        case 6:
            storcli_locate(f->file, places, on_done, &rc);
            break;
        case 7:
            storcli_sync_layer(f->file, on_done, &rc);
            break;
        }
        assert_true(wait_done(f, &rc) < SOON_MS);
        assert_int_equal(rc, -ROZO_EMOVED);
    }
    assert_int_equal(f->net.storages[0].n_writes, n_writes);
    assert_true(storcli_file_is_unsynced(f->file));
    grow(f);
    assert_int_equal(read_blocks(f, 1, 290, 5), 0);
    assert_int_equal(sync_file(f), 0);
    free(data);
    fix_free(f);
}

/* The two other storages could answer the read, but another client may have written with
 * the new ref already. */
static void no_read_is_made_of_two_distributions(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    for (unsigned i = 0; i < K; i++) {
        redistribute(f, 7, 0);
        redistribute(f, 1u << i, 1);
        assert_int_equal(read_blocks(f, 1, 0, 5), -ROZO_EMOVED);
    }
    fix_free(f);
}

static unsigned n_reserved(const struct fix *f)
{
    unsigned n = 0;

    for (unsigned i = 0; i < SIMS; i++)
        n += f->net.storages[i].n_allocs;
    return n;
}

/* Reserves with a ref that storage 2 knows to be old. The answer of storage 0 is late;
 * when it comes, all storages have the new header. */
static void reserve_with_an_old_ref(struct fix *f)
{
    uint32_t generation = f->target.dist_generation + 1;
    int rc = NOT_DONE;

    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    redistribute(f, 1 << 2, generation);
    f->net.storages[0].late_ms = 50;
    storcli_alloc(f->file, 0, 300, false, on_done, &rc);
    env_virtual_advance_ms(&f->v, 20);
    assert_int_equal(n_reserved(f), 2);
    redistribute(f, (1 << SIMS) - 1, generation);
    assert_true(wait_done(f, &rc) < SOON_MS);
    assert_int_equal(rc, -ROZO_EMOVED);
    assert_int_equal(n_reserved(f), 2); /* the storages refuse the old ref */
    f->net.storages[0].late_ms = 0;
}

static int reserve(struct fix *f, bool again)
{
    int rc = NOT_DONE;

    storcli_alloc(f->file, 0, 300, again, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

/* The call is repeated with the new ref, and fails. If it is another call, other clients
 * may need what was reserved. */
static void what_an_old_ref_reserved_is_given_back(void **state)
{
    (void)state;
    for (unsigned again = 0; again < 2; again++) {
        struct fix *f = fix_new();

        reserve_with_an_old_ref(f);
        f->net.storages[2].alloc_room = f->net.storages[NEW].alloc_room = 1;
        grow(f);
        assert_int_equal(reserve(f, again), -ENOSPC);
        assert_int_equal(n_reserved(f), again ? 0 : 2);
        fix_free(f);
    }
}

/* The first call took a spare in the place of a home, and the repeated one the home. */
static void a_spare_that_is_not_needed_with_the_new_ref_gives_back(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    grow(f);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    reserve_with_an_old_ref(f);
    assert_int_equal(f->net.storages[NEW].n_allocs, 1);
    sim_storage_set(&f->net, 1, SIM_UP);
    f->target = f->net.target = next_target(f, 4, grown_ids);
    assert_int_equal(storcli_file_update(f->file, &f->target), 0);
    assert_int_equal(reserve(f, true), 0);
    assert_int_equal(f->net.storages[NEW].n_allocs, 0);
    assert_int_equal(n_reserved(f), N);
    fix_free(f);
}

static void a_late_answer_does_not_bring_the_old_ref_back(void **state)
{
    struct fix *f = fix_new();
    struct storcli_target old = f->target, other;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    grow(f);
    old.capability[0] = 77;
    assert_int_equal(storcli_file_update(f->file, &old), 0);
    assert_int_equal(storcli_file_dist_generation(f->file), 1);
    assert_int_equal(f->file->target.capability[0], 77);
    assert_int_equal(read_blocks(f, 1, 0, 5), 0);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_blocks(f, 2, 0, 5), 0);
    other = f->target;
    other.storages[3] = 5; /* other candidates with the same generation */
    assert_int_equal(storcli_file_update(f->file, &other), -EINVAL);
    other = next_target(f, N, grown_ids); /* a list never becomes shorter */
    assert_int_equal(storcli_file_update(f->file, &other), -EINVAL);
    other = next_target(f, 4, grown_ids);
    other.layout = 1; /* a file never changes its layout */
    assert_int_equal(storcli_file_update(f->file, &other), -EINVAL);
    fix_free(f);
}

enum call { CALL_WRITE, CALL_READ, CALL_MARK, CALL_SYNC, CALL_SEEK, CALLS };

static void call_start(struct fix *f, enum call what, uint8_t *data, int *rc)
{
    static uint64_t found;

    switch (what) {
    case CALL_WRITE:
        storcli_write(f->file, 2, 0, 300, data, BS, false, on_done, rc);
        break;
    case CALL_READ:
        storcli_read(f->file, 0, 300, data, NULL, on_done, rc);
        break;
    case CALL_MARK:
        storcli_mark(f->file, 2, 0, 0, on_done, rc);
        break;
    case CALL_SYNC:
        storcli_sync(f->file, on_done, rc);
        break;
    default:
        storcli_seek(f->file, 0, 300, false, &found, on_done, rc);
        break;
    }
}

/* All storages hang, so a call in flight would take long to end. A call that begins then
 * waits for the new ref. */
static void what_is_under_way_ends_and_what_begins_waits(void **state)
{
    (void)state;
    for (enum call what = 0; what < CALLS; what++) {
        struct fix *f = fix_new();
        uint8_t *data = pattern(2, 0, 300), *expected = pattern(3, 0, 300);
        int rc = NOT_DONE, next_rc = NOT_DONE;

        assert_int_equal(write_blocks(f, 1, 0, 300), 0);
        for (unsigned i = 0; i < N; i++)
            sim_storage_set(&f->net, i, SIM_HUNG);
        call_start(f, what, data, &rc);
        env_virtual_advance_ms(&f->v, 5);
        grow(f);
        assert_int_equal(f->file->c, N);
        assert_int_equal(storcli_file_dist_generation(f->file), 1);
        storcli_write(f->file, 3, 0, 300, expected, BS, false, on_done, &next_rc);
        assert_int_equal(f->net.storages[NEW].n_writes, 0);
        assert_true(wait_done(f, &rc) < SOON_MS);
        assert_int_equal(rc, -ROZO_EMOVED);
        assert_int_equal(f->file->c, 4);
        for (unsigned i = 1; i < N; i++) /* NEW is the spare of 0 */
            sim_storage_set(&f->net, i, SIM_UP);
        wait_done(f, &next_rc);
        assert_int_equal(next_rc, 0);
        assert_true(f->net.storages[NEW].n_writes > 0);
        sim_storage_set(&f->net, 0, SIM_UP);
        assert_int_equal(read_blocks(f, 3, 0, 300), 0);
        assert_int_equal(sync_file(f), 0);
        free(expected);
        free(data);
        fix_free(f);
    }
}

/* A background sync is in progress: it repairs a lost projection, or waits for a storage.
 * It does not delay the new ref. */
static void a_background_sync_is_no_obstacle(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 300), 0);
    assert_int_equal(sync_file(f), 0);
    /* pending: a background sync follows */
    assert_int_equal(write_blocks(f, 2, 0, 300), 0);
    sim_storage_set(&f->net, 0, SIM_HUNG);
    for (unsigned ms = 0; f->file->syncing == NULL; ms++) {
        assert_true(ms < 10000);
        env_virtual_advance_ms(&f->v, 1);
    }
    assert_int_equal(f->file->n_ops, 0);
    grow(f);
    assert_int_equal(f->file->c, 4);
    sim_storage_set(&f->net, 0, SIM_UP);
    assert_int_equal(write_blocks(f, 3, 0, 5), 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(read_blocks(f, 2, 5, 50), 0);
    fix_free(f);
}

/* exportd has made sure that the data is stable at the other homes: no call waits for the
 * lost one. */
static void a_lost_home_is_replaced(void **state)
{
    struct fix *f = fix_new();
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, 1, 0, 50), 0);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    f->net.storages[4].verifier = 99; /* differs from that of the replaced storage */
    f->target = f->net.target = next_target(f, 4, replaced_ids);
    redistribute(f, 1 << 0 | 1 << 2, 1);
    assert_int_equal(storcli_file_update(f->file, &f->target), 0);
    storcli_sync(f->file, on_done, &rc);
    assert_true(wait_done(f, &rc) < SOON_MS);
    assert_int_equal(rc, 0);
    assert_int_equal(f->net.storages[4].n_writes + f->net.storages[NEW].n_writes, 0);
    assert_int_equal(read_blocks(f, 1, 0, 50), 0);
    assert_int_equal(write_blocks(f, 2, 0, 50), 0);
    /* the storage with id 5 is the home now */
    assert_true(f->net.storages[4].n_writes > 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(sim_net_count(&f->net, 7, 2, true, 0), N);
    fix_free(f);
}

/* Hints of missed writes do not name a storage that was replaced. */
static void hints_do_not_name_replaced_storages(void **state)
{
    struct missed m = { 0 };
    struct missed_range range = { .first_block = 0,
                                  .end_block = 5,
                                  .version = 1,
                                  .candidates = 1 << 1,
                                  .holders = 1 << 0 | 1 << 2 };

    (void)state;
    assert_true(missed_add(&m, &range));
    range.first_block = 10, range.end_block = 12, range.candidates = 1 << 1 | 1 << 2;
    range.holders = 1 << 0;
    assert_true(missed_add(&m, &range));
    range.first_block = 20, range.end_block = 22, range.candidates = 1 << 0;
    range.holders = 1 << 1;
    assert_true(missed_add(&m, &range));
    missed_replaced(&m, 1);
    assert_int_equal(m.n, 1);
    assert_int_equal(m.ranges[0].first_block, 10);
    assert_int_equal(m.ranges[0].candidates, 1 << 2);
    assert_int_equal(missed_holders(&m), 1 << 0);
    missed_free(&m);
}

/* A loss from before the change is reported once, whatever ended in between, even if it
 * was found and not reported yet. */
static void loss_and_change(bool is_found_before)
{
    struct fix *f = fix_new();
    int synced = NOT_DONE, settled = NOT_DONE;

    assert_int_equal(write_blocks(f, 1, 0, 5), 0);
    for (unsigned i = 0; i < N; i++)
        sim_storage_power_cut(&f->net, i);
    assert_int_equal(write_blocks(f, 2, 10, 5), 0); /* gets the new verifiers */
    if (is_found_before) {
        storcli_sync_layer(f->file, on_done, &settled);
        wait_done(f, &settled);
        assert_int_equal(settled, -EIO);
        assert_int_equal(write_blocks(f, 3, 20, 5), 0);
    }
    redistribute(f, 1 << 2, 1);
    assert_int_equal(sync_file(f), -ROZO_EMOVED);
    assert_int_equal(sync_file(f), -ROZO_EMOVED);
    sim_storage_set(&f->net, 0, SIM_HUNG);
    storcli_sync(f->file, on_done, &synced);
    env_virtual_advance_ms(&f->v, 5);
    grow(f);
    wait_done(f, &synced);
    assert_int_equal(synced, -ROZO_EMOVED);
    sim_storage_set(&f->net, 0, SIM_UP);
    assert_int_equal(sync_file(f), -EIO);
    assert_int_equal(storcli_file_losses(f->file), 1);
    assert_int_equal(sync_file(f), 0);
    fix_free(f);
}

static void a_loss_is_reported_after_the_change(void **state)
{
    (void)state;
    loss_and_change(false);
    loss_and_change(true);
}

/* Pending versions at storages that stay are synced and committed with the new ref. */
static void watermarks_go_on(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_blocks(f, version_make(1, 1), 0, 5), 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(write_blocks(f, version_make(1, 2), 0, 5), 0);
    grow(f);
    env_virtual_advance_ms(&f->v, 5000);
    for (unsigned i = 0; i < N; i++) {
        for (unsigned p = 0; p < N; p++)
            assert_int_equal(f->net.storages[i].projections[p].older[0].n, 0);
    }
    assert_int_equal(commit_due(&f->file->commit), 0);
    fix_free(f);
}

/* The file is closed while its overwrites are not stable yet: the background sync goes
 * on, and ends. */
static void a_closed_file_ends(void **state)
{
    struct fix *f = fix_new();
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_blocks(f, version_make(1, 1), 0, 5), 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(write_blocks(f, version_make(1, 2), 0, 5), 0);
    redistribute(f, 7, 1);
    storcli_file_close(f->file); /* no new ref arrives for it */
    storcli_drain(f->cli, 2000, on_done, &rc);
    assert_true(wait_done(f, &rc) < 3000);
    assert_int_equal(storcli_file_open(f->cli, &f->target, &f->file), 0);
    fix_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_written_at_its_new_storages),
        cmocka_unit_test(storages_of_a_lower_generation_serve_the_new_ref),
        cmocka_unit_test(an_old_ref_ends_with_its_errno),
        cmocka_unit_test(what_an_old_ref_reserved_is_given_back),
        cmocka_unit_test(a_spare_that_is_not_needed_with_the_new_ref_gives_back),
        cmocka_unit_test(no_read_is_made_of_two_distributions),
        cmocka_unit_test(a_late_answer_does_not_bring_the_old_ref_back),
        cmocka_unit_test(what_is_under_way_ends_and_what_begins_waits),
        cmocka_unit_test(a_background_sync_is_no_obstacle),
        cmocka_unit_test(a_lost_home_is_replaced),
        cmocka_unit_test(hints_do_not_name_replaced_storages),
        cmocka_unit_test(a_loss_is_reported_after_the_change),
        cmocka_unit_test(watermarks_go_on),
        cmocka_unit_test(a_closed_file_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
