/*
 * test_spans.c - maps from ranges to values, against an array.
 */
#include "common/env_virtual.h"
#include "common/spans.h"
#include "tests/unit/unit.h"

enum { CELLS = 40, STEPS = 20000, VALUES = 3 };

static void check(const struct spans *s, const unsigned *cells)
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
        const struct span *at = spans_find(s, c);

        assert_int_equal(at == NULL || at->from > c ? 0 : at->value, cells[c]);
    }
}

static void test_like_an_array(void **state)
{
    struct env_virtual env;
    struct spans s = { 0 };
    unsigned cells[CELLS] = { 0 };

    (void)state;
    env_virtual_init(&env, 1);
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t from = env_virtual_below(&env, CELLS);
        uint64_t to = from + 1 + env_virtual_below(&env, CELLS - from);
        unsigned value = (unsigned)env_virtual_below(&env, VALUES + 1);
        unsigned what = (unsigned)env_virtual_below(&env, 3);
        unsigned least = UINT32_MAX, most = 0;

        assert_int_equal(what == 0   ? spans_put(&s, from, to, value)
                         : what == 1 ? spans_raise(&s, from, to, value)
                                     : spans_lower(&s, from, to, value),
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
        assert_int_equal(spans_least(&s, from, to), least);
        assert_int_equal(spans_most(&s, from, to), most);
    }
    spans_free(&s);
}

static void test_the_end_of_everything(void **state)
{
    struct spans s = { 0 };

    (void)state;
    assert_int_equal(spans_put(&s, 0, SPAN_END, 2), 0);
    assert_int_equal(spans_lower(&s, 5, SPAN_END, 1), 0);
    assert_int_equal(s.n, 2);
    assert_int_equal(spans_least(&s, 5, SPAN_END), 1);
    assert_int_equal(spans_raise(&s, 5, SPAN_END, 2), 0);
    assert_int_equal(s.n, 1);
    assert_int_equal(spans_put(&s, 0, SPAN_END, 0), 0);
    assert_int_equal(s.n, 0);
    spans_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_an_array),
        cmocka_unit_test(test_the_end_of_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
