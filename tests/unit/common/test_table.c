/*
 * Goal: a table finds the keys that were put in, and no others, however hashes collide.
 * Method: random changes compared with an array; with few different hashes, and with as
 * many as keys.
 */
#include "common/base/list.h"
#include "common/base/table.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { KEYS = 300, STEPS = 20000 };

struct thing {
    struct table_link link;
    unsigned key;
    bool is_in;
};

static struct thing *find(const struct table *t, unsigned key, uint64_t hash)
{
    for (struct table_link *l = table_find(t, hash); l != NULL;
         l = table_next(l->next, hash)) {
        struct thing *thing = container_of(l, struct thing, link);

        if (thing->key == key)
            return thing;
    }
    return NULL;
}

static void run(unsigned n_hashes)
{
    struct env_virtual env;
    struct thing things[KEYS] = { 0 };
    struct table t = { 0 };
    size_t n = 0;

    env_virtual_init(&env, n_hashes);
    for (unsigned i = 0; i < STEPS; i++) {
        unsigned key = (unsigned)env_virtual_below(&env, KEYS);
        struct thing *thing = &things[key];

        assert_ptr_equal(find(&t, key, key % n_hashes), thing->is_in ? thing : NULL);
        thing->key = key;
        if (thing->is_in)
            table_remove(&t, &thing->link);
        else
            assert_int_equal(table_add(&t, &thing->link, key % n_hashes), 0);
        thing->is_in = !thing->is_in;
        n = thing->is_in ? n + 1 : n - 1;
        assert_int_equal(t.n, n);
    }
    assert_true(t.n_chains <= 2 * KEYS);
    table_free(&t);
    assert_null(table_find(&t, 0));
    env_virtual_close(&env);
}

static void test_against_an_array(void **state)
{
    (void)state;
    run(1);
    run(7);
    run(KEYS);
}

/* Names that differ in a single byte, anywhere, have different hashes. */
static void test_hashes_of_bytes(void **state)
{
    char name[20] = "file-000000000000000";
    uint64_t first = table_hash(name, sizeof(name));

    (void)state;
    assert_int_equal(table_hash(name, sizeof(name)), first);
    for (size_t i = 0; i < sizeof(name); i++) {
        name[i]++;
        assert_int_not_equal(table_hash(name, sizeof(name)), first);
        name[i]--;
        assert_int_not_equal(table_hash(name, i), first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_an_array),
        cmocka_unit_test(test_hashes_of_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
