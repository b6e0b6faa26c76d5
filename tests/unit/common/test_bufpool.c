/*
 * Goal: a pool lends buffers of the size asked for, and keeps no more than it may.
 * Method: all sizes once; then bounds, one at a time. Under AddressSanitizer nothing is
 * kept, so there only sizes are tested.
 */
#include <string.h>

#include "common/base/bufpool.h"
#include "tests/unit/unit.h"

enum { MB = 1 << 20 };

#if defined(__SANITIZE_ADDRESS__)
enum { KEEPS = 0 };
#else
enum { KEEPS = 1 };
#endif

static void buffers_have_the_size_that_was_asked_for(void **state)
{
    (void)state;
    for (int dense = 0; dense < 2; dense++) {
        struct bufpool pool = { .idle_max_bytes = 64 * MB, .dense = dense };

        for (size_t len = 1; len <= (size_t)16 * MB; len += len / 9 + 1) {
            uint8_t *buf = bufpool_get(&pool, len);
            size_t lent = pool.lent_bytes;

            assert_true(lent >= len && (len <= 4096 || lent <= 2 * len));
            assert_true(dense || len <= 4096 || lent <= len + len / 4);
            assert_int_equal((uintptr_t)buf % (dense ? 64 : 4096), 0);
            memset(buf, 1, len);
            bufpool_put(&pool, buf, len);
            assert_int_equal(pool.lent_bytes, 0);
            assert_true(pool.idle_bytes <= pool.idle_max_bytes);
        }
        bufpool_trim(&pool);
        assert_int_equal(pool.idle_bytes, 0);
    }
}

static void the_largest_size_is_kept_like_others(void **state)
{
    struct bufpool pool = { .idle_max_bytes = 16 * MB };
    void *buf = bufpool_get(&pool, 16 * MB);

    (void)state;
    bufpool_put(&pool, buf, 16 * MB);
    assert_int_equal(pool.idle_bytes, KEEPS * 16 * MB);
    bufpool_trim(&pool);
    assert_int_equal(pool.idle_bytes, 0);
}

static void the_size_that_is_not_wanted_any_more_makes_room(void **state)
{
    struct bufpool pool = { .idle_max_bytes = 2 * MB };
    void *old = bufpool_get(&pool, MB), *other = bufpool_get(&pool, 4096),
         *big = bufpool_get(&pool, 2 * MB - 4096);

    (void)state;
    bufpool_put(&pool, old, MB);
    bufpool_put(&pool, other, 4096);
    bufpool_put(&pool, big, 2 * MB - 4096); /* has the size of 2 MB */
    assert_int_equal(pool.idle_bytes, KEEPS * 2 * MB);
    big = bufpool_get(&pool, 2 * MB);
    assert_int_equal(pool.idle_bytes, 0);
    bufpool_put(&pool, big, 2 * MB);
    bufpool_trim(&pool);
}

static void a_buffer_beyond_the_bound_is_not_kept(void **state)
{
    struct bufpool pool = { .idle_max_bytes = MB };

    (void)state;
    bufpool_put(&pool, bufpool_get(&pool, 2 * MB), 2 * MB);
    assert_int_equal(pool.idle_bytes, 0);
}

static void more_is_kept_while_little_is_lent(void **state)
{
    struct bufpool pool = { .idle_max_bytes = MB,
                            .all_max_bytes = 4 * MB,
                            .dense = true };
    void *bufs[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        bufs[i] = bufpool_get(&pool, MB);
    for (unsigned i = 0; i < 4; i++)
        bufpool_put(&pool, bufs[i], MB);
    assert_int_equal(pool.idle_bytes, KEEPS * 4 * MB);
    bufs[0] = bufpool_get(&pool, 4 * MB);
    bufpool_put(&pool, bufpool_get(&pool, MB), MB);
    assert_int_equal(pool.idle_bytes, KEEPS * MB);
    bufpool_put(&pool, bufs[0], 4 * MB);
    assert_int_equal(pool.idle_bytes, KEEPS * 4 * MB);
    bufpool_trim(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_have_the_size_that_was_asked_for),
        cmocka_unit_test(the_largest_size_is_kept_like_others),
        cmocka_unit_test(the_size_that_is_not_wanted_any_more_makes_room),
        cmocka_unit_test(a_buffer_beyond_the_bound_is_not_kept),
        cmocka_unit_test(more_is_kept_while_little_is_lent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
