/*
 * test_kv.c - the two kvs and the store above them.
 *
 * The kvs must give identical answers to random batches, and keep the promises of a kv
 * over crashes; the store is tested for its cache, one commit a turn, and shared syncs.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <uv.h>

#include "common/kv/kv_leveldb.h"
#include "common/system/fds.h"
#include "exportd/store/store.h"
#include "tests/unit/exportd/world.h"

static struct env_virtual env;
static struct kv_memory *mem;
static struct kv *m;
static struct kv_leveldb *ldb;
static uv_loop_t loop;
static char dir[64];
static unsigned n_done;
static int last_rc;

static unsigned below(unsigned bound)
{
    return (unsigned)env_virtual_below(&env, bound);
}

static int setup(void **state)
{
    struct err err = { 0 };

    (void)state;
    env_virtual_init(&env, 3);
    assert_int_equal(kv_memory_open(&env.env, &mem), 0);
    m = kv_memory_kv(mem);
    assert_int_equal(uv_loop_init(&loop), 0);
    snprintf(dir, sizeof(dir), "/tmp/rozo-test-kv.XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &ldb, &err),
                     0);
    n_done = 0;
    return 0;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    kv_leveldb_close(ldb);
    assert_int_equal(uv_loop_close(&loop), 0);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    kv_memory_close(mem);
    env_virtual_close(&env);
    return 0;
}

static void on_done(struct kv_done *done, int rc)
{
    (void)done;
    n_done++;
    last_rc = rc;
}

static void on_failed(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, -EIO);
    n_done++;
}

static void both_commit(struct kv *l, const struct kv_item *items, size_t n)
{
    struct kv_done a = { .fn = on_done }, b = { .fn = on_done };
    unsigned before = n_done;

    kv_commit(m, items, n, &a);
    kv_commit(l, items, n, &b);
    assert_int_equal(n_done, before); /* never inside the call */
    env_virtual_run_posted(&env);
    assert_int_equal(n_done, before + 2);
    assert_int_equal(last_rc, 0);
}

static void compare_scan(struct kv *l, const void *from, size_t from_len)
{
    struct kv_iter *x, *y;
    size_t xn, yn;

    assert_int_equal(kv_iter_open(m, &x), 0);
    assert_int_equal(kv_iter_open(l, &y), 0);
    kv_iter_seek(x, from, from_len);
    kv_iter_seek(y, from, from_len);
    for (; kv_iter_valid(x); kv_iter_next(x), kv_iter_next(y)) {
        const void *p, *q;

        assert_true(kv_iter_valid(y));
        p = kv_iter_key(x, &xn);
        q = kv_iter_key(y, &yn);
        assert_int_equal(xn, yn);
        assert_memory_equal(p, q, xn);
        p = kv_iter_val(x, &xn);
        q = kv_iter_val(y, &yn);
        assert_int_equal(xn, yn);
        if (xn > 0)
            assert_memory_equal(p, q, xn);
    }
    assert_false(kv_iter_valid(y));
    assert_int_equal(kv_iter_error(y), 0);
    kv_iter_close(x);
    kv_iter_close(y);
}

static void compare_get(struct kv *l, const void *key, size_t key_len)
{
    void *x = NULL, *y = NULL;
    size_t xn = 0, yn = 0;
    int rc = kv_get(m, key, key_len, &x, &xn);

    assert_int_equal(kv_get(l, key, key_len, &y, &yn), rc);
    if (rc == 0) {
        assert_int_equal(xn, yn);
        assert_memory_equal(x, y, xn);
    }
    free(x);
    free(y);
}

static void sync_both(struct kv *l)
{
    struct kv_done a = { .fn = on_done }, b = { .fn = on_done };
    unsigned before = n_done;

    kv_sync(m, &a);
    kv_sync(l, &b);
    assert_int_equal(n_done, before);
    while (n_done < before + 2) {
        env_virtual_run_posted(&env);
        uv_run(&loop, UV_RUN_ONCE);
    }
    assert_int_equal(last_rc, 0);
}

static void test_twins(void **state)
{
    struct kv *l = kv_leveldb_kv(ldb);
    char keys[8][4], vals[8][40];
    struct kv_item items[8];

    (void)state;
    for (unsigned i = 0; i < 3000; i++) {
        unsigned n = below(8), n_items = 0;

        for (unsigned k = 0; k < n; k++) {
            snprintf(keys[k], sizeof(keys[k]), "%c%c", 'a' + below(20),
                     below(3) == 0 ? 0 : 0x80);
            snprintf(vals[k], sizeof(vals[k]), "%u", below(1000000));
            items[n_items++] =
                (struct kv_item){ keys[k], 2, below(3) == 0 ? NULL : vals[k], below(6) };
        }
        both_commit(l, items, n_items);
        snprintf(keys[0], sizeof(keys[0]), "%c%c", 'a' + below(20), 0x80);
        compare_get(l, keys[0], 2);
        if (below(20) == 0)
            compare_scan(l, keys[0], below(3));
        if (below(200) == 0)
            sync_both(l);
        if (below(400) == 0) { /* closed and opened again: nothing is lost */
            struct err err = { 0 };

            kv_leveldb_close(ldb);
            assert_int_equal(
                kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &ldb, &err), 0);
            l = kv_leveldb_kv(ldb);
            compare_scan(l, "", 0);
        }
    }
}

/* The disk takes nothing for a while, then writes again. What was committed behind the
 * failed commit must not be kept without it; later ones are. */
static void test_commits_behind_a_failed_one_fail(void **state)
{
    const struct kv_item items[2] = { { "a", 1, "1", 1 }, { "b", 1, "1", 1 } };
    const struct rlimit none = { 0, RLIM_INFINITY };
    struct kv *l = kv_leveldb_kv(ldb);
    struct kv_done done[2] = { { .fn = on_failed }, { .fn = on_failed } };
    struct err err = { 0 };
    struct rlimit before;
    void *val;
    size_t len;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    kv_commit(l, &items[0], 1, &done[0]);
    setrlimit(RLIMIT_FSIZE, &before);
    kv_commit(l, &items[1], 1, &done[1]);
    n_done = 0;
    env_virtual_run_posted(&env);
    assert_int_equal(n_done, 2);
    done[0] = (struct kv_done){ .fn = on_done };
    kv_commit(l, &items[0], 1, &done[0]);
    env_virtual_run_posted(&env);
    assert_int_equal(last_rc, 0);
    kv_leveldb_close(ldb);
    assert_int_equal(kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &ldb, &err),
                     0);
    assert_int_equal(kv_get(kv_leveldb_kv(ldb), "b", 1, &val, &len), -ENOENT);
    assert_int_equal(kv_get(kv_leveldb_kv(ldb), "a", 1, &val, &len), 0);
    free(val);
}

static void test_a_second_process_is_refused(void **state)
{
    struct kv_leveldb *other;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(
        kv_leveldb_open(&env.env, &loop, dir, true, FDS_KV_MIN, &other, &err), -EIO);
    assert_non_null(strstr(err.text, dir));
}

/* ---- the store ---- */

static struct store *store;
static unsigned n_waits;

static int setup_store(void **state)
{
    setup(state);
    assert_int_equal(store_open(&env.env, m, 20000, &store), 0);
    n_waits = 0;
    return 0;
}

static int teardown_store(void **state)
{
    env_virtual_run_posted(&env);
    store_close(store);
    return teardown(state);
}

struct waiter {
    struct store_wait wait;
    bool came;
    int rc;
    uint64_t n_unsynced; /* value at the callback */
};

static void on_wait(struct store_wait *wait, int rc)
{
    struct waiter *waiter = container_of(wait, struct waiter, wait);

    assert_false(waiter->came);
    waiter->came = true;
    waiter->rc = rc;
    waiter->n_unsynced = kv_memory_n_unsynced(mem);
    n_waits++;
}

static struct key key_of(unsigned i)
{
    struct key k;

    key_ino(&k, KEY_INODE, 1, i);
    return k;
}

static void put(unsigned i, const char *val)
{
    struct key k = key_of(i);

    store_put(store, &k, val, strlen(val));
}

static void expect(unsigned i, const char *val)
{
    struct key k = key_of(i);
    const uint8_t *got;
    size_t len;
    int rc = store_get(store, &k, &got, &len);

    if (val == NULL) {
        assert_int_equal(rc, -ENOENT);
        return;
    }
    assert_int_equal(rc, 0);
    assert_int_equal(len, strlen(val));
    assert_memory_equal(got, val, len);
}

static void on_nothing(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

static void test_one_commit_a_turn(void **state)
{
    struct waiter a = { .wait.fn = on_wait }, b = { .wait.fn = on_wait };
    struct key k = key_of(2);

    (void)state;
    put(1, "one");
    put(2, "two");
    put(1, "uno");
    expect(1, "uno");
    store_when_committed(store, &a.wait);
    store_delete(store, &k);
    expect(2, NULL);
    store_when_committed(store, &b.wait);
    assert_false(store_is_clean(store));
    assert_int_equal(n_waits, 0);
    assert_int_equal(kv_memory_n_commits(mem), 0);
    env_virtual_run_posted(&env);
    assert_int_equal(n_waits, 2);
    assert_int_equal(a.rc, 0);
    assert_int_equal(kv_memory_n_commits(mem), 1);
    assert_int_equal(kv_memory_n_keys(mem), 1);
    assert_true(store_is_clean(store) && store_is_idle(store));
}

static void test_syncs_are_shared(void **state)
{
    struct waiter w[5] = { 0 };

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        w[i].wait.fn = on_wait;
        put(i, "x");
        store_when_synced(store, &w[i].wait);
    }
    env_virtual_run_posted(&env);
    assert_int_equal(n_waits, 5);
    for (unsigned i = 0; i < 5; i++)
        assert_true(w[i].came && w[i].rc == 0 && w[i].n_unsynced == 0);
    assert_int_equal(kv_memory_n_commits(mem), 1);
    put(1, "y");
    env_virtual_run_posted(&env);
    assert_int_equal(kv_memory_n_unsynced(mem), 1);
    store_sync_soon(store);
    env_virtual_run_posted(&env);
    assert_int_equal(kv_memory_n_unsynced(mem), 0);
}

static void test_a_scan_sees_the_pending_batch(void **state)
{
    struct kv_iter *it;
    size_t len;

    (void)state;
    put(7, "seven");
    assert_int_equal(store_scan(store, &it), 0);
    kv_iter_seek(it, "I", 1);
    assert_true(kv_iter_valid(it));
    assert_memory_equal(kv_iter_val(it, &len), "seven", 5);
    kv_iter_close(it);
    assert_false(store_is_clean(store)); /* being committed: must not be answered yet */
    env_virtual_run_posted(&env);
    assert_true(store_is_clean(store));
}

/* A deleted key leaves no entry in the cache: a later value in the kv is found. */
static void test_deleted_key_leaves_the_cache(void **state)
{
    struct key k = key_of(1);
    struct kv_item item = { k.bytes, k.len, "new", 3 };
    struct waiter w = { .wait.fn = on_wait };
    struct kv_done done = { .fn = on_nothing };

    (void)state;
    put(1, "one");
    put(2, "two");
    env_virtual_run_posted(&env);
    store_delete(store, &k);
    store_when_committed(store, &w.wait);
    expect(1, NULL);
    env_virtual_run_posted(&env);
    assert_true(w.came && w.rc == 0);
    /* written past the store, to see where the store looks */
    kv_commit(m, &item, 1, &done);
    expect(1, "new");
    expect(2, "two");
    store_delete(store, &k); /* a key that was read again can be deleted again */
    expect(1, NULL);
    env_virtual_run_posted(&env);
    expect(1, NULL);
    assert_int_equal(kv_memory_n_keys(mem), 1);
}

static void test_the_cache_forgets_and_finds_again(void **state)
{
    char val[16];

    (void)state;
    for (unsigned i = 0; i < 5000; i++) {
        snprintf(val, sizeof(val), "%u", i);
        put(i, val);
        if (i % 10 == 0) {
            env_virtual_run_posted(&env);
            store_trim(store);
        }
    }
    for (unsigned i = 0; i < 5000; i += 7) {
        snprintf(val, sizeof(val), "%u", i);
        expect(i, val);
        store_trim(store);
        expect(i + 100000, NULL);
    }
}

static void test_a_failed_commit_leaves_nothing(void **state)
{
    struct waiter a = { .wait.fn = on_wait }, b = { .wait.fn = on_wait };

    (void)state;
    put(1, "old");
    env_virtual_run_posted(&env);
    kv_memory_kill(mem);
    put(1, "new");
    put(2, "two");
    store_when_committed(store, &a.wait);
    store_when_synced(store, &b.wait);
    env_virtual_run_posted(&env);
    assert_true(a.came && a.rc == -EIO && b.came && b.rc == -EIO);
    assert_int_equal(store_error(store), -EIO);
    expect(1, "old");
    expect(2, NULL);
    put(3, "three"); /* only a bug of a caller would do this: it has no effect */
    store_when_committed(store, &(struct waiter){ .wait.fn = on_wait }.wait);
    env_virtual_run_posted(&env);
    expect(3, NULL);
}

static void ldb_put(const char *key, const char *val)
{
    const struct kv_item item = { key, strlen(key), val, strlen(val) };
    struct kv_done done = { .fn = on_done };

    kv_commit(kv_leveldb_kv(ldb), &item, 1, &done);
    env_virtual_run_posted(&env);
    assert_int_equal(last_rc, 0);
}

static void test_a_frozen_view_shows_nothing_later(void **state)
{
    struct kv *frozen, *second;
    struct kv_iter *it;
    unsigned n = 0;
    size_t len;
    void *val;

    (void)state;
    ldb_put("a", "old");
    assert_int_equal(kv_leveldb_freeze(ldb, &frozen), 0);
    assert_int_equal(kv_leveldb_freeze(ldb, &second), -EBUSY);
    ldb_put("a", "new");
    ldb_put("b", "new");
    assert_int_equal(kv_get(frozen, "a", 1, &val, &len), 0);
    assert_int_equal(len, 3);
    assert_memory_equal(val, "old", 3);
    free(val);
    assert_int_equal(kv_get(frozen, "b", 1, &val, &len), -ENOENT);
    assert_int_equal(kv_iter_open(frozen, &it), 0);
    for (kv_iter_seek(it, "", 0); kv_iter_valid(it); kv_iter_next(it))
        n++;
    assert_int_equal(kv_iter_error(it), 0);
    kv_iter_close(it);
    assert_int_equal(n, 1);
    kv_leveldb_thaw(ldb);
    assert_int_equal(kv_get(kv_leveldb_kv(ldb), "a", 1, &val, &len), 0);
    assert_memory_equal(val, "new", 3);
    free(val);
    assert_int_equal(kv_leveldb_freeze(ldb, &frozen), 0); /* close ends it */
}

#define T(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)
#define TS(name) cmocka_unit_test_setup_teardown(name, setup_store, teardown_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_twins),
        T(test_commits_behind_a_failed_one_fail),
        T(test_a_second_process_is_refused),
        T(test_a_frozen_view_shows_nothing_later),
        TS(test_one_commit_a_turn),
        TS(test_syncs_are_shared),
        TS(test_a_scan_sees_the_pending_batch),
        TS(test_deleted_key_leaves_the_cache),
        TS(test_the_cache_forgets_and_finds_again),
        TS(test_a_failed_commit_leaves_nothing),
    };

    return cmocka_run_group_tests_name("exportd.kv", tests, NULL, NULL);
}
