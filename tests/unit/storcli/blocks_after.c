/*
 * Goal: overwrites become stable and are committed in the background, also after the file
 * was closed, at no cost for files that are written once or for a caller's own sync;
 * storages get hints of what homes missed, and of damage that reads found.
 * Method: the engine on simulated storages, which check every watermark, and a virtual
 * clock.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"
#include "tests/sim/sim_net.h"
#include "tests/unit/unit.h"

enum { BS = 8192, NOT_DONE = 1, N = 6, C = 8 };

struct fix {
    struct env_virtual v;
    struct sim_net net;
    struct storcli *cli;
    struct storcli_file *file; /* NULL while it is closed */
    uint32_t sequence;
};

static struct fix *fix_new(void)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct storcli_config config = { 0 };
    struct storcli_peers peers;

    assert_non_null(f);
    env_virtual_init(&f->v, 1);
    sim_net_init(&f->net, &f->v, CODEC_MOJETTE, 1, C);
    peers = sim_net_peers(&f->net, 0);
    assert_int_equal(storcli_new(&f->v.env, &config, &peers, &f->cli), 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    return f;
}

static void fix_free(struct fix *f)
{
    storcli_file_close(f->file);
    storcli_free(f->cli);
    sim_net_close(&f->net); /* asserts that no watermark was wrong */
    env_virtual_close(&f->v);
    free(f);
}

static void on_done(void *arg, int rc)
{
    int *result = arg;

    assert_int_equal(*result, NOT_DONE);
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

static int write_some(struct fix *f, uint64_t first, unsigned n, bool sync)
{
    uint8_t *data = calloc(n, BS);
    int rc = NOT_DONE;

    storcli_write(f->file, version_make(1, ++f->sequence), first, n, data, BS, sync,
                  on_done, &rc);
    wait_done(f, &rc);
    free(data);
    return rc;
}

static int mark_some(struct fix *f, uint64_t first, uint64_t n)
{
    int rc = NOT_DONE;

    storcli_mark(f->file, version_make(1, ++f->sequence), first, n, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

static int sync_file(struct fix *f)
{
    int rc = NOT_DONE;

    storcli_sync(f->file, on_done, &rc);
    wait_done(f, &rc);
    return rc;
}

/* Counts the projections of the file's blocks that still wait for a commit. */
static unsigned n_waiting(const struct fix *f)
{
    unsigned n = 0;

    for (unsigned i = 0; i < C; i++) {
        for (unsigned j = 0; j < N; j++) {
            for (unsigned b = 0; b < SIM_BLOCKS; b++)
                n += f->net.storages[i].projections[j].older[b].n > 0;
        }
    }
    return n;
}

static uint64_t n_of(const struct fix *f, size_t at)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < C; i++) {
        const uint8_t *storage = (const uint8_t *)&f->net.storages[i];

        n += *(const uint64_t *)(const void *)(storage + at);
    }
    return n;
}
#define n_syncs(f)   n_of(f, offsetof(struct sim_storage, n_syncs))
#define n_commits(f) n_of(f, offsetof(struct sim_storage, n_commits))

static void first_writes_cost_nothing(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 100, false), 0);
    env_virtual_advance_ms(&f->v, 60000);
    assert_int_equal(n_syncs(f) + n_commits(f), 0);
    assert_false(env_timer_is_running(&f->file->background.timer));
    fix_free(f);
}

static void an_overwrite_is_synced_and_committed(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    assert_int_equal(n_waiting(f), 2 * N);
    env_virtual_advance_ms(&f->v, 1900);
    assert_int_equal(n_syncs(f), 0);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(n_syncs(f), N);
    assert_int_equal(n_commits(f), N);
    assert_int_equal(n_waiting(f), 0);
    assert_false(storcli_file_is_unsynced(f->file));
    env_virtual_advance_ms(&f->v, 60000); /* nothing more is sent */
    assert_int_equal(n_syncs(f) + n_commits(f), 2 * N);
    assert_false(env_timer_is_running(&f->file->background.timer));
    fix_free(f);
}

static void so_is_a_mark(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(mark_some(f, 5, 0), 0);
    assert_true(n_waiting(f) > 0);
    env_virtual_advance_ms(&f->v, 3000);
    assert_int_equal(n_waiting(f), 0);
    fix_free(f);
}

static void a_synced_overwrite_is_only_committed(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, true), 0);
    assert_int_equal(write_some(f, 3, 2, true), 0);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(n_waiting(f), 0);
    assert_int_equal(n_syncs(f), 0);
    assert_int_equal(n_commits(f), N);
    fix_free(f);
}

static void the_next_write_reports_it(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(write_some(f, 300, 2, false), 0); /* a first write */
    assert_int_equal(n_waiting(f), 0);
    env_virtual_advance_ms(&f->v, 10000);
    assert_int_equal(n_commits(f), 0);
    assert_int_equal(n_syncs(f), N);
    fix_free(f);
}

static void pressure_hurries(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    f->net.storages[2].pressure = true;
    assert_int_equal(write_some(f, 3, 2, false), 0);
    env_virtual_advance_ms(&f->v, 100); /* no wait for the usual 250 ms */
    assert_int_equal(n_waiting(f), 0);
    fix_free(f);
}

/* A commit that failed at one storage is repeated there later and later; other storages
 * that need one get it at once. */
static void one_that_is_down_does_not_hold_up_those_in_a_hurry(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    sim_storage_set(&f->net, 2, SIM_DOWN);
    f->net.storages[0].pressure = true;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(write_some(f, 3, 2, false), 0);
        env_virtual_advance_ms(&f->v, 1500);
        for (unsigned b = 0; b < 10; b++) {
            assert_int_equal(f->net.storages[0].projections[0].older[b].n, 0);
            assert_int_equal(f->net.storages[1].projections[1].older[b].n, 0);
        }
    }
    fix_free(f);
}

/* A write in flight at one storage may be waiting for the room that the commit of an
 * earlier write makes at another. */
static void what_is_under_way_does_not_hold_up_the_word_of_what_was_before(void **state)
{
    struct fix *f = fix_new();
    uint8_t *data = calloc(2, BS);
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    for (unsigned i = 1; i < C; i++)
        f->net.storages[i].late_ms = 5000;
    storcli_write(f->file, version_make(1, ++f->sequence), 6, 2, data, BS, false, on_done,
                  &rc);
    /* 0 stored it, and waits for a commit up to that version */
    env_virtual_advance_ms(&f->v, 10);
    for (unsigned i = 1; i < C; i++)
        f->net.storages[i].late_ms = 0;
    assert_int_equal(sync_file(f), 0);
    env_virtual_advance_ms(&f->v, 280);
    assert_int_equal(rc, NOT_DONE);
    assert_int_equal(f->net.storages[0].projections[0].older[3].n, 0);
    assert_int_equal(f->net.storages[0].projections[0].older[6].n, 1);
    wait_done(f, &rc);
    assert_int_equal(rc, 0);
    free(data);
    fix_free(f);
}

static void much_pending_hurries(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 512, false), 0);
    for (unsigned i = 0; i < 8; i++) /* 4 MiB each */
        assert_int_equal(write_some(f, 0, 512, false), 0);
    assert_true(f->v.now_ns < UINT64_C(1500) * 1000000 + 1000000000);
    env_virtual_advance_ms(&f->v, 300);
    assert_int_equal(n_waiting(f), 0);
    fix_free(f);
}

static void a_closed_file_is_finished(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    storcli_file_close(f->file);
    assert_int_equal(f->cli->n_lingering, 1);
    env_virtual_advance_ms(&f->v, 3000);
    assert_int_equal(f->cli->n_lingering, 0);
    assert_int_equal(n_waiting(f), 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    assert_int_equal(write_some(f, 400, 1, false), 0);
    storcli_file_close(f->file); /* a first write: nothing lingers */
    assert_int_equal(f->cli->n_lingering, 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    fix_free(f);
}

static void the_end_drains_what_lingers(void **state)
{
    for (unsigned n_down = 0; n_down <= 4; n_down += 2) {
        struct fix *f = fix_new();
        int rc = NOT_DONE;
        unsigned ms;

        (void)state;
        assert_int_equal(write_some(f, 0, 10, false), 0);
        assert_int_equal(write_some(f, 3, 2, false), 0);
        for (unsigned i = 0; i < n_down; i++)
            sim_storage_set(&f->net, i, SIM_HUNG);
        storcli_file_close(f->file);
        storcli_drain(f->cli, 2000, on_done, &rc);
        assert_int_equal(rc, NOT_DONE);
        ms = wait_done(f, &rc);
        assert_int_equal(rc, 0);
        assert_true(ms < (n_down == 0 ? 50 : 2100));
        assert_int_equal(f->cli->n_lingering, 0);
        if (n_down == 0)
            assert_int_equal(n_waiting(f), 0);
        storcli_free(f->cli);
        sim_net_close(&f->net);
        env_virtual_close(&f->v);
        free(f);
    }
}

static void lingering_files_are_abandoned_in_the_end(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_DOWN);
    storcli_file_close(f->file);
    env_virtual_advance_ms(&f->v, 29000);
    assert_int_equal(f->cli->n_lingering, 1);
    env_virtual_advance_ms(&f->v, 30000); /* reads that fail take their time */
    assert_int_equal(f->cli->n_lingering, 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    fix_free(f);
}

/* A caller's sync replaces the background sync, or joins it, and takes no longer than it
 * would alone. */
static void a_sync_that_is_asked_for_does_not_wait(void **state)
{
    for (unsigned more = 0; more < 2; more++) {
        struct fix *f = fix_new();
        int rc = NOT_DONE;
        uint64_t n_before;

        (void)state;
        assert_int_equal(write_some(f, 0, 10, false), 0);
        assert_int_equal(write_some(f, 3, 2, false), 0);
        env_virtual_advance_ms(&f->v, 1990);
        while (f->file->syncing == NULL)
            env_virtual_advance_ms(&f->v, 1);
        sim_storage_set(&f->net, 1, SIM_HUNG); /* the background sync would wait for it */
        if (more == 1)
            assert_int_equal(write_some(f, 7, 2, false), 0);
        n_before = n_syncs(f);
        storcli_sync(f->file, on_done, &rc);
        assert_true(wait_done(f, &rc) < 700); /* rpc detects the hang by then */
        assert_int_equal(rc, 0);
        assert_true(more == 0 || n_syncs(f) > n_before);
        for (unsigned b = 0; b < 10; b++)
            assert_true(sim_net_count_since(&f->net, b, version_make(1, 1)) >= N);
        assert_true(sim_net_count_since(&f->net, 3, version_make(1, 2)) >= N);
        assert_true(more == 0 ||
                    sim_net_count_since(&f->net, 7, version_make(1, 3)) >= N);
        fix_free(f);
    }
}

/* A caller's sync does not wait while the background sync tries to read lost projections:
 * it has its own deadline. */
static void a_sync_that_is_asked_for_does_not_wait_for_a_read(void **state)
{
    struct fix *f = fix_new();
    int rc = NOT_DONE;

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    f->net.delay_ms = 20;
    while (f->file->n_ops == 0) /* the background sync reads what 0 had */
        env_virtual_advance_ms(&f->v, 1);
    assert_non_null(f->file->syncing);
    for (unsigned i = 1; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_HUNG);
    env_virtual_advance_ms(&f->v, 10000);
    storcli_file_others_wrote(f->file); /* otherwise it would join the background sync */
    storcli_sync(f->file, on_done, &rc);
    assert_true(wait_done(f, &rc) < 21000);
    assert_int_equal(rc, -EIO);
    for (unsigned i = 0; i < 5; i++)
        sim_storage_set(&f->net, i, SIM_UP);
    assert_int_equal(sync_file(f), 0);
    assert_true(sim_net_count_since(&f->net, 3, version_make(1, 2)) >= N);
    fix_free(f);
}

/* The file is closed and the engine freed while the background sync reads: nothing is
 * waited for. */
static void a_closed_file_is_abandoned_while_it_reads(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    f->net.delay_ms = 20;
    while (f->file->n_ops == 0)
        env_virtual_advance_ms(&f->v, 1);
    env_virtual_advance_ms(&f->v, 1);
    storcli_file_close(f->file);
    assert_int_equal(f->cli->n_lingering, 1);
    storcli_free(f->cli);
    sim_net_close(&f->net);
    env_virtual_close(&f->v);
    free(f);
}

/* A loss that a background sync finds is reported by the caller's next sync, once. */
static void a_loss_is_reported_to_the_sync(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, true), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    for (unsigned i = 0; i < C; i++)
        sim_storage_power_cut(&f->net, i);
    env_virtual_advance_ms(&f->v, 5000);
    assert_true(f->cli->stats.background_syncs > 0);
    assert_true(storcli_file_is_unsynced(f->file));
    assert_int_equal(sync_file(f), -EIO);
    assert_int_equal(sync_file(f), 0);
    assert_false(storcli_file_is_unsynced(f->file));
    fix_free(f);
}

static int settle_file(struct fix *f)
{
    int rc = 1;

    storcli_sync_layer(f->file, on_done, &rc);
    while (rc > 0)
        env_virtual_advance_ms(&f->v, 10);
    return rc;
}

/* A truncate that had to sync reports the loss by failing; the caller's next sync still
 * reports it, too. */
static void a_loss_found_by_a_truncate_is_reported(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    for (unsigned i = 0; i < C; i++)
        sim_storage_power_cut(&f->net, i);
    assert_int_equal(settle_file(f), -EIO);
    assert_int_equal(storcli_file_losses(f->file), 1);
    assert_int_equal(settle_file(f), 0); /* a later one is not affected */
    assert_int_equal(sync_file(f), -EIO);
    assert_int_equal(sync_file(f), 0);
    assert_int_equal(storcli_file_losses(f->file), 1);
    fix_free(f);
}

/* Every sync that was requested before the loss was reported reports it, however far it
 * has come. */
static void a_loss_is_reported_to_all_earlier_syncs(void **state)
{
    struct fix *f = fix_new();
    int rc[2] = { NOT_DONE, NOT_DONE };

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    for (unsigned i = 0; i < C; i++)
        sim_storage_power_cut(&f->net, i);
    assert_int_equal(settle_file(f), -EIO);
    storcli_sync(f->file, on_done, &rc[0]); /* ends as soon as it runs */
    storcli_sync(f->file, on_done, &rc[1]);
    wait_done(f, &rc[1]);
    assert_int_equal(rc[0], -EIO);
    assert_int_equal(rc[1], -EIO);
    assert_int_equal(sync_file(f), 0);
    fix_free(f);
}

/* A sync that is requested after that does not report it, even if another one was always
 * waiting. */
static void a_loss_is_not_reported_for_ever(void **state)
{
    struct fix *f = fix_new();
    int rc[3] = { NOT_DONE, NOT_DONE, NOT_DONE };

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    for (unsigned i = 0; i < C; i++)
        sim_storage_power_cut(&f->net, i);
    assert_int_equal(settle_file(f), -EIO);
    assert_int_equal(write_some(f, 0, 10, false), 0);
    sim_storage_set(&f->net, 0, SIM_HUNG);
    storcli_sync(f->file, on_done, &rc[0]);
    assert_int_equal(write_some(f, 0, 10, false), 0);
    storcli_sync(f->file, on_done, &rc[1]);
    env_virtual_advance_ms(&f->v, 1);
    assert_int_equal(rc[0], NOT_DONE);
    sim_storage_set(&f->net, 1, SIM_HUNG);
    sim_storage_set(&f->net, 0, SIM_UP);
    wait_done(f, &rc[0]);
    assert_int_equal(rc[1], NOT_DONE);
    storcli_sync(f->file, on_done, &rc[2]);
    env_virtual_advance_ms(&f->v, 1);
    sim_storage_set(&f->net, 1, SIM_UP);
    wait_done(f, &rc[2]);
    assert_int_equal(rc[0], -EIO);
    assert_int_equal(rc[1], -EIO);
    assert_int_equal(rc[2], 0);
    fix_free(f);
}

/* A failed write is never committed, and neither are later ones of its epoch. */
static void a_failed_write_is_not_committed(void **state)
{
    struct fix *f = fix_new();
    unsigned n_left;

    (void)state;
    assert_int_equal(write_some(f, 0, 10, true), 0);
    for (unsigned i = 3; i < C; i++)
        f->net.storages[i].refuse_writes = ROZO__STATUS__NO_SPACE;
    for (unsigned i = 3; i < C; i++)
        f->net.storages[i].refuse_all = ROZO__STATUS__NO_SPACE;
    assert_int_equal(write_some(f, 3, 2, false), -ENOSPC);
    for (unsigned i = 3; i < C; i++)
        f->net.storages[i].refuse_writes = f->net.storages[i].refuse_all = 0;
    n_left = n_waiting(f);
    assert_true(n_left > 0);
    assert_int_equal(write_some(f, 300, 2, false), 0);
    assert_int_equal(sync_file(f), 0);
    env_virtual_advance_ms(&f->v, 20000);
    assert_int_equal(n_waiting(f), n_left);
    fix_free(f);
}

static void a_returning_storage_is_notified(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, false), 0);
    assert_int_equal(write_some(f, 3, 2, false), 0);
    assert_int_equal(sync_file(f), 0);
    sim_storage_set(&f->net, 2, SIM_DOWN);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(n_waiting(f), 2);
    sim_storage_set(&f->net, 2, SIM_UP);
    env_virtual_advance_ms(&f->v, 5000);
    assert_int_equal(n_waiting(f), 0);
    fix_free(f);
}

/* A file is removed during its background sync after the close: on some storages already,
 * on others not yet. */
static void nothing_is_made_again_of_a_closed_file(void **state)
{
    for (unsigned n_removed = 1; n_removed <= N; n_removed++) {
        struct fix *f = fix_new();

        (void)state;
        assert_int_equal(write_some(f, 0, 10, false), 0);
        assert_int_equal(write_some(f, 3, 2, false), 0);
        storcli_file_close(f->file);
        for (unsigned i = 0; i < n_removed; i++)
            f->net.storages[i].projections[i].here = false;
        f->net.storages[0].refuse_all = ROZO__STATUS__NO_FILE;
        env_virtual_advance_ms(&f->v, 10000);
        assert_int_equal(f->cli->n_lingering, 0);
        for (unsigned i = 0; i < C; i++) {
            for (unsigned j = 0; j < N; j++)
                assert_int_equal(f->net.storages[i].projections[j].here,
                                 i == j && i >= n_removed);
        }
        f->net.storages[0].refuse_all = 0;
        assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
        fix_free(f);
    }
}

/* ---- missed writes ---- */

#define n_missed(f) n_of(f, offsetof(struct sim_storage, n_missed))
#define n_checks(f) n_of(f, offsetof(struct sim_storage, n_checks))

static void who_took_it_hears_who_missed_it(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 10, true), 0);
    assert_int_equal(n_missed(f), 0);
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_some(f, 20, 10, false), 0); /* 6 gets projection 1 */
    assert_int_equal(write_some(f, 30, 10, false), 0);
    assert_int_equal(mark_some(f, 5, 2), 0);
    env_virtual_advance_ms(&f->v, 1000);
    for (unsigned i = 0; i < C; i++) {
        const struct sim_storage *s = &f->net.storages[i];
        bool took = i != 1 && i != 7;

        assert_int_equal(s->n_missed, took);
        assert_int_equal(s->missed_blocks[1], took ? 22 : 0);
        assert_int_equal(s->missed_blocks[0], 0);
    }
    env_virtual_advance_ms(&f->v, 30000); /* sent once */
    assert_int_equal(n_missed(f), N);
    sim_storage_set(&f->net, 1, SIM_UP);
    assert_int_equal(write_some(f, 40, 10, false), 0);
    env_virtual_advance_ms(&f->v, 3000);
    assert_int_equal(n_missed(f), N);
    fix_free(f);
}

static void a_sync_sees_to_it_that_they_hear(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_some(f, 20, 10, false), 0);
    assert_int_equal(sync_file(f), 0);
    assert_true(n_missed(f) >= 1);
    /* a home that fails after it took a write may not have it when it is back */
    assert_int_equal(write_some(f, 100, 5, false), 0);
    sim_storage_set(&f->net, 2, SIM_DOWN);
    assert_int_equal(sync_file(f), 0);
    env_virtual_advance_ms(&f->v, 2000);
    assert_int_equal(f->net.storages[3].missed_blocks[1], 15);
    assert_true(f->net.storages[3].missed_blocks[2] >= 5);
    fix_free(f);
}

/* A sync waits for a hint, but only until one storage has it. */
static void a_sync_goes_on_when_one_has_heard(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct fix *f = fix_new();
        uint64_t before_ns;

        (void)state;
        sim_storage_set(&f->net, 1, SIM_DOWN);
        assert_int_equal(write_some(f, 20, 10, i == 0), 0);
        /* true after a stable write, too */
        assert_true(storcli_file_is_unsynced(f->file));
        before_ns = f->v.now_ns;
        assert_int_equal(sync_file(f), 0);
        assert_true(f->v.now_ns - before_ns < WATCH_TICK_MS * UINT64_C(1000000));
        assert_true(n_missed(f) >= 1);
        assert_false(storcli_file_is_unsynced(f->file));
        fix_free(f);
    }
}

/* When no storage takes hints, a sync is delayed for a moment only. */
static void an_unreachable_storage_delays_no_sync(void **state)
{
    struct fix *f = fix_new();
    uint64_t before_ns;

    (void)state;
    f->net.refuse_missed = ROZO__STATUS__IO_ERROR;
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_some(f, 20, 10, false), 0);
    before_ns = f->v.now_ns;
    assert_int_equal(sync_file(f), 0);
    assert_true(f->v.now_ns - before_ns < UINT64_C(1200) * 1000000);
    env_virtual_advance_ms(&f->v, 5000);
    f->net.refuse_missed = 0;
    env_virtual_advance_ms(&f->v, 20000); /* the hint is sent again */
    assert_int_equal(f->net.storages[3].missed_blocks[1], 10);
    f->net.refuse_missed = ROZO__STATUS__UNKNOWN_OP; /* unknown request: not sent again */
    assert_int_equal(write_some(f, 30, 10, false), 0);
    env_virtual_advance_ms(&f->v, 2000);
    f->net.refuse_missed = 0;
    env_virtual_advance_ms(&f->v, 20000);
    assert_int_equal(f->net.storages[3].missed_blocks[1], 10);
    fix_free(f);
}

static void hints_are_sent_after_the_close(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_some(f, 20, 10, false), 0);
    storcli_file_close(f->file);
    assert_int_equal(f->cli->n_lingering, 1);
    env_virtual_advance_ms(&f->v, 1500);
    assert_int_equal(f->cli->n_lingering, 0);
    assert_int_equal(n_missed(f), N);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    fix_free(f);
}

/* Hints are sent at the close, without waiting for more to go with them: when the writer
 * of a closed file dies, exportd asks no storage to check it. */
static void hints_are_sent_at_the_close(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    sim_storage_set(&f->net, 1, SIM_DOWN);
    assert_int_equal(write_some(f, 20, 10, true), 0);
    env_virtual_advance_ms(&f->v, 50);
    assert_int_equal(n_missed(f), 0); /* waits for more hints */
    storcli_file_close(f->file);
    env_virtual_advance_ms(&f->v, 10);
    assert_int_equal(n_missed(f), N);
    assert_int_equal(f->cli->n_lingering, 0);
    assert_int_equal(storcli_file_open(f->cli, &f->net.target, &f->file), 0);
    fix_free(f);
}

/* ---- hints ---- */

static int read_some(struct fix *f, uint64_t first, unsigned n)
{
    uint8_t *data = malloc((size_t)n * BS);
    int rc = NOT_DONE;

    assert_non_null(data);
    storcli_read(f->file, first, n, data, NULL, on_done, &rc);
    wait_done(f, &rc);
    free(data);
    return rc;
}

static void faults_found_by_reads_are_reported_to_the_home(void **state)
{
    struct fix *f = fix_new();

    (void)state;
    assert_int_equal(write_some(f, 0, 100, false), 0);
    assert_int_equal(read_some(f, 0, 100), 0);
    assert_int_equal(n_checks(f), 0);
    assert_true(sim_storage_rot(&f->net, 2, 2, 17)); /* damaged */
    assert_int_equal(read_some(f, 0, 100), 0);
    env_virtual_advance_ms(&f->v, 20);
    assert_int_equal(f->net.storages[2].n_checks, 1);
    assert_int_equal(n_checks(f), 1);
    for (unsigned i = 0; i < 50; i++) /* at most four hints a second */
        assert_int_equal(read_some(f, 0, 100), 0);
    assert_true(n_checks(f) <= 1 + f->v.now_ns / 250000000);
    sim_storage_set(&f->net, 0, SIM_DOWN);
    assert_int_equal(write_some(f, 200, 10, false), 0); /* missing, and an old version */
    assert_int_equal(write_some(f, 50, 1, false), 0);
    sim_storage_set(&f->net, 0, SIM_UP);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(read_some(f, 205, 1), 0);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(f->net.storages[0].n_checks, 1);
    assert_int_equal(read_some(f, 50, 1), 0);
    env_virtual_advance_ms(&f->v, 1000);
    assert_int_equal(f->net.storages[0].n_checks, 2);
    fix_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_writes_cost_nothing),
        cmocka_unit_test(an_overwrite_is_synced_and_committed),
        cmocka_unit_test(so_is_a_mark),
        cmocka_unit_test(a_synced_overwrite_is_only_committed),
        cmocka_unit_test(the_next_write_reports_it),
        cmocka_unit_test(pressure_hurries),
        cmocka_unit_test(one_that_is_down_does_not_hold_up_those_in_a_hurry),
        cmocka_unit_test(what_is_under_way_does_not_hold_up_the_word_of_what_was_before),
        cmocka_unit_test(much_pending_hurries),
        cmocka_unit_test(a_closed_file_is_finished),
        cmocka_unit_test(the_end_drains_what_lingers),
        cmocka_unit_test(lingering_files_are_abandoned_in_the_end),
        cmocka_unit_test(a_sync_that_is_asked_for_does_not_wait),
        cmocka_unit_test(a_loss_is_reported_to_the_sync),
        cmocka_unit_test(a_loss_is_reported_to_all_earlier_syncs),
        cmocka_unit_test(a_loss_is_not_reported_for_ever),
        cmocka_unit_test(a_loss_found_by_a_truncate_is_reported),
        cmocka_unit_test(a_failed_write_is_not_committed),
        cmocka_unit_test(a_returning_storage_is_notified),
        cmocka_unit_test(nothing_is_made_again_of_a_closed_file),
        cmocka_unit_test(a_sync_that_is_asked_for_does_not_wait_for_a_read),
        cmocka_unit_test(a_closed_file_is_abandoned_while_it_reads),
        cmocka_unit_test(who_took_it_hears_who_missed_it),
        cmocka_unit_test(a_sync_sees_to_it_that_they_hear),
        cmocka_unit_test(a_sync_goes_on_when_one_has_heard),
        cmocka_unit_test(an_unreachable_storage_delays_no_sync),
        cmocka_unit_test(hints_are_sent_after_the_close),
        cmocka_unit_test(hints_are_sent_at_the_close),
        cmocka_unit_test(faults_found_by_reads_are_reported_to_the_home),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
