/*
 * Goal: a note that a power loss may have made untrue is never believed again; every
 * other one is.
 * Method: daemons that start, end generations and die are checked against a list of what
 * was stable.
 */
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/format/generation.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

#define START "rozo-generations\nformat: 1\nboot: 0\n"

static void test_the_text_is_read_back(void **state)
{
    static const char *const bad[] = {
        "",
        "rozo-generations\n",
        "rozo-generations\nformat: 1\n",
        START "failures: 1\nstable: 5\nlast: 4\n",
        START "failures: 1\nstable: 5\nlast: 9",
        START "failures: 1\nstable: 5\nlast: 9\nlost: 3\n",
        START "failures: 1\nstable: 5\nlast: 9\nlost: 3 2\n",
        START "failures: 1\nstable: 5\nlast: 9\nlost: 3 6\n",
        START "failures: 1\nstable: 5\nlast: 9\nlost: 1 3\nlost: 3 4\n",
        START "stable: 5\nlast: 9\n",
        "rozo-generations\nformat: 1\nboot: g\nfailures: 1\nstable: 5\nlast: 9\n",
        START "failures: 1\nstable: 5\nlast: 18446744073709551616\n",
        START "failures: 1\nstable: -5\nlast: 9\n",
    };
    struct generations_file f = {
        .boot = 0xabc, .failures = 17, .stable = 300, .last = 303, .n_lost = 64
    };
    struct generations_file got;
    char text[GENERATIONS_TEXT_MAX], again[GENERATIONS_TEXT_MAX];
    struct err err = { 0 };
    size_t len;

    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        f.lost[i].first = 4 * i + 2;
        f.lost[i].last = 4 * i + 4;
    }
    len = generations_print(text, &f);
    assert_int_equal(generations_parse(text, len, &got, &err), 0);
    assert_int_equal(got.boot, 0xabc);
    assert_int_equal(got.failures, 17);
    assert_int_equal(generations_print(again, &got), len);
    assert_memory_equal(text, again, len);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(&err, 0, sizeof(err));
        assert_int_equal(generations_parse(bad[i], strlen(bad[i]), &got, &err),
                         -ROZO_EDAMAGED);
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(generations_parse("rozo-generations\nformat: 2\n", 27, &got, &err),
                     -ROZO_EUNKNOWN_FORMAT);
}

/* Makes 300 starts; each note remembers whether it was stable when the power was cut. */
static void test_notes_that_may_be_lost_are_not_kept(void **state)
{
    struct generations_file file = { .n_lost = 0 };
    struct env_virtual v;
    struct {
        uint64_t generation;
        bool stable, lost;
    } notes[600] = { 0 };
    unsigned n = 0, n_kept = 0;
    uint64_t boot = 1;

    (void)state;
    env_virtual_init(&v, 7);
    for (unsigned start = 0; start < 300; start++) {
        struct generations g;
        bool power = env_virtual_below(&v, 3) == 0;

        memset(&g, 0, sizeof(g));
        generations_begin(&g, &file, boot);
        file = g.file; /* saved */
        for (unsigned i = 0; i < 4; i++) {
            uint64_t ended;

            if (n < 600 && env_virtual_below(&v, 2) == 0)
                notes[n++].generation = generation_of_note(&g);
            if (env_virtual_below(&v, 2) == 0)
                continue;
            if (!generations_may_advance(&g))
                file = g.file;
            ended = generations_advance(&g);
            if (env_virtual_below(&v, 4) == 0)
                continue; /* the sync failed */
            generations_mark_stable(&g, ended);
            file = g.file;
            for (unsigned k = 0; k < n; k++)
                notes[k].stable |= notes[k].generation <= ended;
        }
        if (!power && env_virtual_below(&v, 2) == 0) {
            generations_end(&g);
            file = g.file;
            for (unsigned k = 0; k < n; k++)
                notes[k].stable = true;
        }
        for (unsigned k = 0; k < n; k++) {
            bool kept = generation_is_kept(&g, notes[k].generation);

            assert_false(notes[k].lost && kept);
            n_kept += kept;
            if (power)
                notes[k].lost |= !notes[k].stable;
            if (file.n_lost < GENERATIONS_LOST_MAX && !notes[k].lost)
                assert_true(kept);
        }
        boot += power;
    }
    assert_true(n_kept > 1000);
    assert_int_equal(file.n_lost, GENERATIONS_LOST_MAX);
    env_virtual_close(&v);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_text_is_read_back),
        cmocka_unit_test(test_notes_that_may_be_lost_are_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
