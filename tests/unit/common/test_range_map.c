/* test_range_map.c - maps from ranges to values, compared with an array. */
#include <errno.h>

#include "common/base/range_map.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { CELLS = 40, STEPS = 20000, VALUES = 3 };

static void check(const struct range_map *s, const unsigned *cells)
{
    uint64_t end = 0;
    unsigned value = 0;

    for (size_t i = 0; i < s->n; i++) {
        assert_true(s->list[i].from < s->list[i].to && s->list[i].value != 0);
        assert_true(i == 0 || s->list[i].from > end || s->list[i].value != value);
        assert_true(s->list[i].from >= end);
        end = s->list[i].to;
        value = s->list[i].value;
    }
    for (unsigned c = 0; c < CELLS; c++) {
        const struct mapped_range *at = range_map_find(s, c);

        assert_int_equal(at == NULL || at->from > c ? 0 : at->value, cells[c]);
    }
}

static void test_like_an_array(void **state)
{
    struct env_virtual env;
    struct range_map s = { 0 };
    unsigned cells[CELLS] = { 0 };

    (void)state;
    env_virtual_init(&env, 1);
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t from = env_virtual_below(&env, CELLS);
        uint64_t to = from + 1 + env_virtual_below(&env, CELLS - from);
        unsigned value = (unsigned)env_virtual_below(&env, VALUES + 1);
        unsigned what = (unsigned)env_virtual_below(&env, 3);
        unsigned least = UINT32_MAX, most = 0;

        assert_int_equal(what == 0   ? range_map_put(&s, from, to, value)
                         : what == 1 ? range_map_raise(&s, from, to, value)
                                     : range_map_lower(&s, from, to, value),
                         0);
        for (uint64_t c = from; c < to; c++) {
            if (what == 0 || (what == 1 && cells[c] < value) ||
                (what == 2 && cells[c] > value))
                cells[c] = value;
        }
        check(&s, cells);
        from = env_virtual_below(&env, CELLS);
        to = from + 1 + env_virtual_below(&env, CELLS - from);
        for (uint64_t c = from; c < to; c++) {
            least = cells[c] < least ? cells[c] : least;
            most = cells[c] > most ? cells[c] : most;
        }
        assert_int_equal(range_map_least(&s, from, to), least);
        assert_int_equal(range_map_most(&s, from, to), most);
    }
    range_map_free(&s);
}

static void test_the_end_of_everything(void **state)
{
    struct range_map s = { 0 };

    (void)state;
    assert_int_equal(range_map_put(&s, 0, SPAN_END, 2), 0);
    assert_int_equal(range_map_lower(&s, 5, SPAN_END, 1), 0);
    assert_int_equal(s.n, 2);
    assert_int_equal(range_map_least(&s, 5, SPAN_END), 1);
    assert_int_equal(range_map_raise(&s, 5, SPAN_END, 2), 0);
    assert_int_equal(s.n, 1);
    assert_int_equal(range_map_put(&s, 0, SPAN_END, 0), 0);
    assert_int_equal(s.n, 0);
    range_map_free(&s);
}

/* A packed map is unpacked as it was, in pieces and as a whole; bytes that are no packed
 * map are refused. */
static void test_packed(void **state)
{
    struct env_virtual env;
    uint8_t buf[64 * SPAN_PACKED_MAX];
    unsigned n_taken = 0;

    (void)state;
    env_virtual_init(&env, 5);
    for (unsigned round = 0; round < 2000; round++) {
        struct range_map a = { 0 }, b = { 0 };
        uint64_t at = 0;
        size_t len;

        for (unsigned i = env_virtual_below(&env, 30); i > 0; i--) {
            uint64_t gap =
                1 + env_virtual_below(&env, 2) * env_virtual_below(&env, UINT32_MAX);
            uint64_t n = 1 + env_virtual_below(&env, 300);

            at += gap - (a.n == 0);
            assert_int_equal(range_map_put(&a, at, at + n, 1 + (i & 1)), 0);
            at += n;
        }
        for (unsigned value = 1; value <= 2; value++) {
            len = range_map_pack(&a, value, 64, buf);
            assert_int_equal(range_map_unpack(&b, buf, len, UINT64_MAX, 64, value), 0);
        }
        assert_int_equal(a.n, b.n);
        for (size_t i = 0; i < a.n; i++)
            assert_true(a.list[i].from == b.list[i].from &&
                        a.list[i].to == b.list[i].to &&
                        a.list[i].value == b.list[i].value);
        if (len > 0) { /* packed bytes of the ranges with value 2 */
            size_t n = 0;

            for (size_t i = 0; i < a.n; i++)
                n += a.list[i].value == 2;
            assert_int_equal(range_map_unpack(&b, buf, len, UINT64_MAX, n - 1, 2),
                             -EINVAL);
            assert_int_equal(range_map_unpack(&b, buf, len - 1, UINT64_MAX, n, 2),
                             -EINVAL);
        }
        range_map_free(&b);
        len = env_virtual_below(&env, sizeof(buf));
        env_random(&env.env, buf, len);
        if (range_map_unpack(&b, buf, len, 1000000, 64, 1) == 0) {
            n_taken++;
            assert_true(b.n == 0 || b.list[b.n - 1].to <= 1000000);
        }
        range_map_free(&a);
        range_map_free(&b);
    }
    assert_true(n_taken > 0);
    assert_int_equal(
        range_map_unpack(&(struct range_map){ 0 }, (uint8_t[]){ 0, 0 }, 2, 9, 9, 1),
        -EINVAL);
    env_virtual_close(&env);
}

static void test_joined(void **state)
{
    struct range_map s = { 0 };

    (void)state;
    assert_int_equal(range_map_join(&s, 1), 0);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(range_map_put(&s, i * 100, i * 100 + 1 + i % 10, 1), 0);
    assert_int_equal(range_map_join(&s, 100), 0);
    assert_int_equal(s.n, 100);
    assert_int_equal(range_map_join(&s, 90), 0);
    assert_int_equal(s.n, 81); /* nine gaps of 90, and all ten gaps of 91 */
    assert_int_equal(range_map_total(&s, 1), 550 + 9 * 90 + 10 * 91);
    assert_int_equal(range_map_join(&s, 3), 0);
    assert_true(s.n >= 1 && s.n <= 3);
    assert_true(s.list[0].from == 0 && s.list[s.n - 1].to == 9910);
    range_map_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_an_array),
        cmocka_unit_test(test_the_end_of_everything),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_joined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
