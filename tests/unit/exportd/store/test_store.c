/*
 * test_store.c - batches of the store: how much is committed together.
 */
#include <stdlib.h>
#include <string.h>

#include "exportd/store/store.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum { VALUE_BYTES = 100 << 10, OPERATIONS = 100 };

struct waiter {
    struct store_wait wait;
    unsigned n;
    int rc;
};

static void on_committed(struct store_wait *wait, int rc)
{
    struct waiter *w = (struct waiter *)wait;

    w->n++;
    w->rc = rc;
}

/* One operation: two keys that belong together. */
static void operation(struct store *s, uint32_t number)
{
    static const uint8_t bytes[VALUE_BYTES];
    struct key k;

    key_id(&k, KEY_VOLUME, number);
    store_put(s, &k, bytes, sizeof(bytes));
    key_id(&k, KEY_EXPORT, number);
    store_put(s, &k, bytes, sizeof(bytes));
}

/* Many operations of one turn, 20 MiB, are not one batch: a log entry has a limit. */
static void a_large_turn_is_committed_in_parts(void **state)
{
    struct waiter w = { .wait.fn = on_committed };
    struct kv_memory *m;
    struct env_virtual v;
    struct store *s;

    (void)state;
    env_virtual_init(&v, 1);
    assert_int_equal(kv_memory_open(&v.env, &m), 0);
    assert_int_equal(store_open(&v.env, kv_memory_kv(m), 1 << 20, &s), 0);
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        operation(s, i);
        store_end_operation(s);
        assert_int_equal(kv_memory_n_keys(m) % 2, 0); /* each operation is whole */
    }
    assert_true(kv_memory_n_commits(m) >=
                2 * OPERATIONS * VALUE_BYTES / (STORE_BATCH_BYTES + 2 * VALUE_BYTES));
    store_when_committed(s, &w.wait);
    env_virtual_run_posted(&v);
    assert_int_equal(w.n, 1);
    assert_int_equal(w.rc, 0);
    assert_int_equal(kv_memory_n_keys(m), 2 * OPERATIONS);
    assert_true(store_is_idle(s));
    store_close(s);
    kv_memory_close(m);
    env_virtual_close(&v);
}

/* A turn of small changes stays one commit, whatever is changed twice. */
static void a_small_turn_is_one_commit(void **state)
{
    struct kv_memory *m;
    struct env_virtual v;
    struct store *s;
    struct key k;

    (void)state;
    env_virtual_init(&v, 1);
    assert_int_equal(kv_memory_open(&v.env, &m), 0);
    assert_int_equal(store_open(&v.env, kv_memory_kv(m), 1 << 20, &s), 0);
    key_id(&k, KEY_VOLUME, 1);
    for (unsigned i = 0; i < 100000; i++) {
        store_put(s, &k, "12345678", 8);
        store_end_operation(s);
    }
    assert_int_equal(kv_memory_n_commits(m), 0);
    env_virtual_run_posted(&v);
    assert_int_equal(kv_memory_n_commits(m), 1);
    store_close(s);
    kv_memory_close(m);
    env_virtual_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_turn_is_committed_in_parts),
        cmocka_unit_test(a_small_turn_is_one_commit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
