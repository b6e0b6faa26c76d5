/*
 * Goal: a hint is kept until exactly that hint was listed and is done; bounds hold;
 * restarts keep all hints.
 * Method: random steps against a map of blocks that remembers everything; then the
 * limits.
 */
#include <errno.h>
#include <stdlib.h>

#include "storaged/heal/list/hint_log.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum { BLOCKS = 400 };

static struct env_virtual v;
static struct kv_memory *mem;
static struct hint_log *l;
static struct hint_log_config config;

static void hint_log_again(void)
{
    env_virtual_run_posted(&v);
    hint_log_close(l);
    assert_int_equal(hint_log_open(&config, &l), 0);
}

static int setup(void **state)
{
    (void)state;
    env_virtual_init(&v, 1);
    assert_int_equal(kv_memory_open(&v.env, &mem), 0);
    config = (struct hint_log_config){ .env = &v.env, .kv = kv_memory_kv(mem) };
    assert_int_equal(hint_log_open(&config, &l), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    env_virtual_run_posted(&v);
    hint_log_close(l);
    kv_memory_close(mem);
    env_virtual_close(&v);
    return 0;
}

static struct storcli_target target_of(uint64_t ino)
{
    return (struct storcli_target){ .id = { 1, 2, ino },
                                    .codec = 1,
                                    .layout = 0,
                                    .block_bytes = 8192,
                                    .n_storages = 4,
                                    .storages = { 7, 8, 9, 10 } };
}

static void note(uint32_t storage, uint64_t ino, uint64_t first, uint64_t end,
                 uint64_t version)
{
    struct storcli_target t = target_of(ino);

    assert_int_equal(hint_log_note(l, storage, &t, first, end, version), 0);
}

/* Hints that a scan has listed. */
struct told {
    unsigned n_files, n, stop_at;
    struct storcli_target targets[64];
    struct {
        uint64_t ino;
        struct hint_log_range r;
    } ranges[4096];
};
static struct told told;

static bool on_file(void *arg, const struct storcli_target *t,
                    const struct hint_log_range *ranges, unsigned n)
{
    struct told *to = arg;

    if (to->stop_at != 0 && to->n_files == to->stop_at)
        return false;
    to->targets[to->n_files++ % 64] = *t;
    for (unsigned i = 0; i < n; i++) {
        to->ranges[to->n].ino = t->id.ino;
        to->ranges[to->n++].r = ranges[i];
    }
    return true;
}

static void scan(uint32_t storage)
{
    memset(&told, 0, sizeof(told));
    assert_int_equal(hint_log_scan(l, storage, NULL, on_file, &told), 1);
}

static void test_notes_are_merged(void **state)
{
    (void)state;
    note(9, 1, 10, 20, 5);
    note(9, 1, 30, 40, 6);
    note(9, 1, 20, 25, 7);
    note(8, 1, 0, UINT64_MAX, 7);
    scan(9);
    assert_int_equal(told.n, 2);
    assert_int_equal(told.ranges[0].r.first, 10);
    assert_int_equal(told.ranges[0].r.end, 25);
    assert_int_equal(told.ranges[0].r.version, 7);
    assert_int_equal(told.ranges[1].r.first, 30);
    assert_int_equal(told.targets[0].storages[3], 10);
    assert_int_equal(told.targets[0].block_bytes, 8192);
    assert_int_equal(hint_log_n_ranges(l), 3);
    note(9, 1, 0, 1000, 1);
    scan(9);
    assert_int_equal(told.n, 1);
    assert_int_equal(told.ranges[0].r.version, 7);
    assert_int_equal(hint_log_n_ranges(l), 2);
}

/* The distribution of the latest generation is kept, whichever hint arrives later. */
static void test_the_later_distribution_is_kept(void **state)
{
    struct storcli_target t = target_of(1);

    (void)state;
    note(9, 1, 10, 20, 5);
    t.dist_generation = 3;
    t.n_storages = 5;
    t.storages[4] = 11;
    t.full_quorum = true;
    assert_int_equal(hint_log_note(l, 9, &t, 30, 40, 6), 0);
    note(9, 1, 50, 60, 7);
    for (unsigned i = 0; i < 2; i++) {
        scan(9);
        assert_int_equal(told.n, 3);
        assert_int_equal(told.ranges[2].r.end, 60);
        assert_int_equal(told.targets[0].dist_generation, 3);
        assert_int_equal(told.targets[0].storages[4], 11);
        assert_true(told.targets[0].full_quorum);
        hint_log_again();
    }
}

static void test_hint_that_changed_since_the_scan_is_not_forgotten(void **state)
{
    struct file_id id = target_of(1).id;
    uint64_t first;

    (void)state;
    note(9, 1, 10, 20, 5);
    scan(9);
    first = told.ranges[0].r.note;
    /* an older version within the range, but recorded after the scan */
    note(9, 1, 12, 13, 4);
    assert_int_equal(hint_log_forget(l, 9, &id, first), 0);
    scan(9);
    assert_int_equal(told.n, 1);
    assert_int_not_equal(told.ranges[0].r.note, first);
    assert_int_equal(hint_log_forget(l, 8, &id, told.ranges[0].r.note), 0);
    assert_int_equal(hint_log_forget(l, 9, &id, told.ranges[0].r.note), 0);
    scan(9);
    assert_int_equal(told.n, 0);
    assert_int_equal(hint_log_n_ranges(l), 0);
    assert_int_equal(kv_memory_n_keys(mem), 0);
    note(9, 1, 10, 20, 5);
    hint_log_again();
    note(9, 2, 1, 2, 3);
    scan(9);
    assert_int_equal(told.n, 2);
    assert_int_not_equal(told.ranges[0].r.note, told.ranges[1].r.note);
}

static void on_stable(struct hint_log_wait *w, int rc)
{
    (void)w;
    assert_int_equal(rc, 0);
    w->want = UINT64_MAX; /* called */
}

static void test_synced_hints_survive_a_power_cut(void **state)
{
    struct hint_log_wait a = { .done = on_stable }, b = { .done = on_stable };

    (void)state;
    note(9, 1, 0, 1, 5);
    hint_log_sync(l, &a);
    note(9, 2, 0, 1, 5);
    hint_log_sync(l, &b);
    assert_int_not_equal(a.want, UINT64_MAX);
    env_virtual_run_posted(&v);
    assert_int_equal(a.want, UINT64_MAX);
    assert_int_equal(b.want, UINT64_MAX);
    note(9, 3, 0, 1, 5);
    env_virtual_run_posted(&v);
    kv_memory_kill(mem);
    kv_memory_power_cut(mem, kv_memory_n_unsynced(mem));
    hint_log_again();
    scan(9);
    assert_int_equal(told.n, 2);
}

static void on_failed(struct hint_log_wait *w, int rc)
{
    assert_int_equal(rc, -EIO);
    w->want = UINT64_MAX;
}

static void test_a_store_that_fails_confirms_nothing(void **state)
{
    struct hint_log_wait a = { .done = on_failed };
    struct storcli_target t = target_of(1);

    (void)state;
    kv_memory_kill(mem);
    note(9, 1, 0, 1, 5);
    hint_log_sync(l, &a);
    env_virtual_run_posted(&v);
    assert_int_equal(a.want, UINT64_MAX);
    assert_int_equal(hint_log_note(l, 9, &t, 0, 1, 5), -EIO);
}

static void test_bounds(void **state)
{
    uint64_t everything;

    (void)state;
    config.ranges_max = 100;
    config.files_max = 150;
    hint_log_again();
    for (unsigned i = 0; i < 1000; i++)
        note(9, 1, (uint64_t)i * 10, (uint64_t)i * 10 + 1, i + 1);
    scan(9);
    assert_int_equal(told.n, HINT_LOG_RANGES_MAX);
    assert_int_equal(told.ranges[told.n - 1].r.end, 9991);
    for (unsigned i = 2; i < 150; i++) {
        note(9, i, 5, 6, 1);
        note(9, i, 8, 9, 1);
    }
    scan(9);
    assert_int_equal(told.n_files, 149);
    assert_true(told.n <= HINT_LOG_RANGES_MAX + 148 + 36);
    assert_int_equal(hint_log_n_ranges(l), told.n);
    note(9, 200, 5, 6, 1);
    assert_int_equal(hint_log_everything(l, 9), 0);
    note(9, 201, 5, 6, 1);
    everything = hint_log_everything(l, 9);
    assert_int_not_equal(everything, 0);
    scan(9);
    assert_int_equal(told.n, 0);
    hint_log_again();
    assert_int_equal(hint_log_everything(l, 9), everything);
    note(9, 1, 5, 6, 1);
    assert_int_not_equal(hint_log_everything(l, 9), everything);
    assert_int_equal(hint_log_forget_everything(l, 9, everything), 0);
    assert_int_not_equal(hint_log_everything(l, 9), 0);
    assert_int_equal(hint_log_forget_everything(l, 9, hint_log_everything(l, 9)), 0);
    assert_int_equal(hint_log_everything(l, 9), 0);
    assert_int_equal(hint_log_n_ranges(l), 0);
}

static void test_pages(void **state)
{
    uint8_t after[FILE_ID_BYTES];
    struct file_id id;

    (void)state;
    for (unsigned i = 1; i <= 10; i++)
        note(9, i, 5, 6, 1);
    note(10, 3, 5, 6, 1);
    memset(&told, 0, sizeof(told));
    told.stop_at = 4;
    assert_int_equal(hint_log_scan(l, 9, NULL, on_file, &told), 0);
    assert_int_equal(told.n_files, 4);
    id = told.targets[3].id;
    file_id_put(after, &id);
    told.stop_at = 0;
    assert_int_equal(hint_log_scan(l, 9, after, on_file, &told), 1);
    assert_int_equal(told.n_files, 10);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(told.targets[i].id.ino, i + 1);
}

/* Every hint that was recorded and not forgotten since is listed; forgetting removes what
 * was listed. */
static void test_at_random(void **state)
{
    static bool missed[3][BLOCKS];

    (void)state;
    memset(missed, 0, sizeof(missed));
    for (unsigned step = 0; step < 3000; step++) {
        uint64_t ino = env_virtual_below(&v, 3), first = env_virtual_below(&v, BLOCKS);
        uint64_t n = 1 + env_virtual_below(&v, 4);

        if (first + n > BLOCKS)
            n = BLOCKS - first;
        if (env_virtual_below(&v, 10) != 0) {
            note(9, ino + 1, first, first + n, step + 1);
            for (uint64_t b = first; b < first + n; b++)
                missed[ino][b] = true;
        } else {
            scan(9);
            if (told.n > 0) {
                unsigned i = (unsigned)env_virtual_below(&v, told.n);
                struct file_id id = target_of(told.ranges[i].ino).id;

                assert_int_equal(hint_log_forget(l, 9, &id, told.ranges[i].r.note), 0);
                for (uint64_t b = told.ranges[i].r.first; b < told.ranges[i].r.end; b++)
                    missed[told.ranges[i].ino - 1][b] = false;
            }
        }
        if (step % 50 == 0)
            hint_log_again();
        scan(9);
        for (unsigned f = 0; f < 3; f++) {
            for (unsigned b = 0; b < BLOCKS; b++) {
                bool is_told = false;

                for (unsigned i = 0; i < told.n; i++)
                    is_told |= told.ranges[i].ino == f + 1 &&
                               told.ranges[i].r.first <= b && b < told.ranges[i].r.end;
                assert_true(is_told || !missed[f][b]);
            }
        }
        assert_int_equal(told.n, hint_log_n_ranges(l));
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_notes_are_merged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_later_distribution_is_kept, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_hint_that_changed_since_the_scan_is_not_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(test_synced_hints_survive_a_power_cut, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_store_that_fails_confirms_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_at_random, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
