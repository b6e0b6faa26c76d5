/*
 * Goal: a watermark never covers what is not durable, and reaches every storage once it
 * is. Method: cases by hand, then random steps against a model that knows the fate of
 * each version.
 */
#include <stdlib.h>

#include "storcli/blocks/blk_commit.h"
#include "tests/unit/unit.h"

static uint64_t v(uint32_t epoch, uint32_t sequence)
{
    return version_make(epoch, sequence);
}

/* Returns the watermark of this epoch as a message would carry it; 0: none. */
static uint64_t mark_of(const struct commit *c, uint32_t epoch)
{
    uint64_t durable[COMMIT_EPOCHS_MAX];
    unsigned n = commit_durable(c, durable);

    for (unsigned i = 0; i < n; i++) {
        if (version_epoch(durable[i]) == epoch)
            return durable[i];
    }
    return 0;
}

/* Makes a write that is pending at candidate 1. */
static void write_one(struct commit *c, uint64_t version, bool ok, bool stable)
{
    struct commit_flight flight;

    commit_begin(c, &flight, version);
    commit_pending(c, 1, version);
    commit_end(c, &flight, ok, stable);
}

static void a_sync_raises_it(void **state)
{
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 1), true, false);
    write_one(&c, v(5, 2), true, false);
    assert_int_equal(mark_of(&c, 5), 0);
    assert_true(commit_wants_sync(&c));
    commit_sync_begin(&c);
    write_one(&c, v(5, 3), true, false); /* too late for the sync in progress */
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 2));
    assert_true(commit_wants_sync(&c));
    assert_int_equal(commit_due(&c), 1 << 1); /* 1 waits for 3, but may need this first */
    commit_confirmed(&c, 1, c.no);
    assert_int_equal(commit_due(&c), 0); /* nothing new */
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_FAILED);
    assert_int_equal(mark_of(&c, 5), v(5, 2));
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 3));
    assert_int_equal(commit_due(&c), 1 << 1);
    assert_false(commit_wants_sync(&c));
    commit_confirmed(&c, 1, c.no - 1); /* about an earlier watermark */
    assert_int_equal(commit_due(&c), 1 << 1);
    commit_confirmed(&c, 1, c.no);
    assert_int_equal(commit_due(&c), 0);
    assert_int_equal(mark_of(&c, 5), 0); /* no storage waits: none is sent */
}

static void what_is_in_flight_holds_it_down(void **state)
{
    struct commit_flight slow;
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 1), true, false);
    commit_begin(&c, &slow, v(5, 2));
    write_one(&c, v(5, 3), true, false);
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 1));
    commit_end(&c, &slow, true, false);
    assert_int_equal(mark_of(&c, 5), v(5, 1));
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 3));
}

static void what_failed_holds_it_down_for_good(void **state)
{
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 1), true, false);
    write_one(&c, v(5, 2), false, false);
    write_one(&c, v(5, 3), true, false);
    write_one(&c, v(6, 1), true, false);
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 1));
    assert_int_equal(mark_of(&c, 6), v(6, 1));
    assert_false(commit_wants_sync(&c));
    assert_int_equal(commit_due(&c), 1 << 1); /* the final value of this epoch */
    commit_confirmed(&c, 1, c.no);
    assert_int_equal(commit_due(&c), 0);
}

static void what_is_lost_holds_it_down_for_good(void **state)
{
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 1), true, false);
    commit_sync_begin(&c);
    write_one(&c, v(5, 2), true, false);
    commit_sync_end(&c, COMMIT_SYNC_LOST);
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), 0);
    assert_false(commit_wants_sync(&c));
}

static void synced_writes_raise_it_by_themselves(void **state)
{
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 1), true, true);
    assert_int_equal(mark_of(&c, 5), v(5, 1));
    write_one(&c, v(5, 2), true, false);
    write_one(&c, v(5, 3), true, true);
    assert_int_equal(mark_of(&c, 5), v(5, 1));
}

static void a_mark_made_again_lowers_it(void **state)
{
    struct commit_flight late;
    struct commit c;

    (void)state;
    commit_init(&c);
    write_one(&c, v(5, 7), true, true);
    assert_int_equal(mark_of(&c, 5), v(5, 7));
    commit_begin(&c, &late, v(5, 0));
    assert_int_equal(mark_of(&c, 5), 0);
    commit_end(&c, &late, true, false);
    assert_int_equal(mark_of(&c, 5), 0);
    commit_sync_begin(&c);
    commit_sync_end(&c, COMMIT_SYNC_DONE);
    assert_int_equal(mark_of(&c, 5), v(5, 7));
}

static void only_so_many_epochs_are_kept(void **state)
{
    struct commit c;
    uint64_t durable[COMMIT_EPOCHS_MAX];

    (void)state;
    commit_init(&c);
    write_one(&c, v(1, 1), false, false);
    for (uint32_t epoch = 2; epoch <= 9; epoch++)
        write_one(&c, v(epoch, 1), true, true);
    assert_int_equal(commit_durable(&c, durable), 8);
    write_one(&c, v(1, 2), true, true); /* failures of epoch 1 are forgotten */
    assert_int_equal(mark_of(&c, 1), 0);
    assert_int_equal(mark_of(&c, 2), v(2, 1));
    write_one(&c, v(10, 1), true, true);
    assert_int_equal(mark_of(&c, 2), 0);
    assert_int_equal(mark_of(&c, 10), v(10, 1));
}

/* ---- at random ---- */

enum { EPOCHS = 3, VERSIONS = 60, FLIGHTS = 6 };

enum fate { UNUSED, FLYING, ACKED, SYNCING, STABLE, FAILED };

static uint32_t random_state;

static uint32_t rnd(uint32_t bound)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % bound;
}

struct model {
    struct commit c;
    enum fate fate[EPOCHS][VERSIONS];
    uint32_t next[EPOCHS];
    struct commit_flight flights[FLIGHTS];
    bool flying[FLIGHTS];
    bool syncing;
};

static void model_check(const struct model *m)
{
    for (uint32_t e = 0; e < EPOCHS; e++) {
        uint64_t mark = mark_of(&m->c, e + 1);

        for (uint32_t i = 1; mark != 0 && v(e + 1, i) <= mark; i++)
            assert_int_equal(m->fate[e][i], STABLE);
    }
}

static void model_begin(struct model *m, unsigned slot)
{
    uint32_t e = rnd(EPOCHS);

    if (m->next[e] + 1 >= VERSIONS)
        return;
    m->fate[e][++m->next[e]] = FLYING;
    commit_begin(&m->c, &m->flights[slot], v(e + 1, m->next[e]));
    commit_pending(&m->c, rnd(DIST_MAX), v(e + 1, m->next[e]));
    m->flying[slot] = true;
}

static void model_end(struct model *m, unsigned slot)
{
    uint64_t version = m->flights[slot].version;
    bool ok = rnd(40) != 0, stable = rnd(4) == 0;

    m->fate[version_epoch(version) - 1][(uint32_t)version] = !ok      ? FAILED
                                                             : stable ? STABLE
                                                                      : ACKED;
    commit_end(&m->c, &m->flights[slot], ok, stable);
    m->flying[slot] = false;
}

static void model_turn(struct model *m, enum fate from, enum fate to)
{
    for (unsigned e = 0; e < EPOCHS; e++) {
        for (unsigned i = 0; i < VERSIONS; i++)
            m->fate[e][i] = m->fate[e][i] == from ? to : m->fate[e][i];
    }
}

static void model_sync(struct model *m)
{
    if (!m->syncing) {
        model_turn(m, ACKED, SYNCING);
        commit_sync_begin(&m->c);
    } else if (rnd(3) == 0) {
        model_turn(m, SYNCING, ACKED);
        commit_sync_end(&m->c, COMMIT_SYNC_FAILED);
    } else {
        model_turn(m, SYNCING, STABLE);
        commit_sync_end(&m->c, COMMIT_SYNC_DONE);
    }
    m->syncing = !m->syncing;
}

static void it_never_covers_what_is_not_durable(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= unit_seeds(300); seed += UNIT_STEP) {
        struct model *m = calloc(1, sizeof(*m));

        assert_non_null(m);
        random_state = seed;
        commit_init(&m->c);
        for (unsigned i = 0; i < 400; i++) {
            unsigned slot = rnd(FLIGHTS);

            if (rnd(4) == 0)
                model_sync(m);
            else if (m->flying[slot])
                model_end(m, slot);
            else
                model_begin(m, slot);
            model_check(m);
        }
        free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sync_raises_it),
        cmocka_unit_test(what_is_in_flight_holds_it_down),
        cmocka_unit_test(what_failed_holds_it_down_for_good),
        cmocka_unit_test(what_is_lost_holds_it_down_for_good),
        cmocka_unit_test(synced_writes_raise_it_by_themselves),
        cmocka_unit_test(a_mark_made_again_lowers_it),
        cmocka_unit_test(only_so_many_epochs_are_kept),
        cmocka_unit_test(it_never_covers_what_is_not_durable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
