/*
 * test_frame_clock.c - deadlines, lateness and the search of `rozo bench streams`, in a
 * time that is made up.
 */
#include <stdlib.h>

#include "common/base/units.h"
#include "deploy/bench/frame_clock.h"
#include "tests/unit/unit.h"

/* Frames of 1 MB at 25 MB/s, one each 40 ms; read-ahead of 2 s; 100 frames from 1 s
 * on. */
static struct frame_clock *clock_new(void)
{
    struct frame_clock *c = calloc(1, sizeof(*c));

    c->start_ns = s_to_ns(1);
    c->frame_bytes = 1000000;
    c->rate = 25000000;
    c->ahead_ns = s_to_ns(2);
    c->n_frames = 100;
    return c;
}

static void frames_have_their_times(void **state)
{
    struct frame_clock *c = clock_new();

    (void)state;
    assert_int_equal(frame_begin_ns(c, 0), ms_to_ns(1000));
    assert_int_equal(frame_begin_ns(c, 25), ms_to_ns(2000));
    assert_int_equal(frame_due_ns(c, 25), ms_to_ns(4000));
    assert_int_equal(frame_clock_end_ns(c), ms_to_ns(1000 + 99 * 40 + 2000));
    assert_int_equal(frame_clock_wait_ns(c, ms_to_ns(400)), ms_to_ns(600));
    assert_int_equal(frame_clock_wait_ns(c, ms_to_ns(1000)), 0);
    /* No rounding adds up: 1 MiB at 23.976 frames a second, a day later. */
    c->frame_bytes = 1 << 20;
    c->rate = 25140658;
    assert_in_range(frame_begin_ns(c, 2071526) - c->start_ns, s_to_ns(86399),
                    s_to_ns(86401));
    free(c);
}

static void a_frame_is_late_after_its_time(void **state)
{
    struct frame_clock *c = clock_new();

    (void)state;
    frame_clock_done(c, ms_to_ns(1000), ms_to_ns(1010), true);
    assert_int_equal(c->spare_ns, ms_to_ns(1990));
    frame_clock_done(c, ms_to_ns(1040), frame_due_ns(c, 1), true); /* just in time */
    assert_int_equal(c->n_late, 0);
    assert_int_equal(c->spare_ns, 0);
    frame_clock_done(c, ms_to_ns(3040), frame_due_ns(c, 2) + 1, true);
    assert_int_equal(c->n_late, 1);
    /* A frame that failed is late even when its time has not come. */
    frame_clock_done(c, ms_to_ns(3080), ms_to_ns(3081), false);
    assert_int_equal(c->n_late, 2);
    assert_int_equal(c->n_failed, 1);
    assert_int_equal(c->n_done, 4);
    free(c);
}

/* A storage hangs for 3 s, 1 s longer than the player has in memory. */
static void a_hang_makes_late_what_the_player_lacked(void **state)
{
    struct frame_clock *c = clock_new();
    uint64_t now = c->start_ns, took = ms_to_ns(1), n_expected;

    (void)state;
    while (c->n_done < c->n_frames) {
        uint64_t begun;

        frame_clock_skip(c, now);
        begun = now + frame_clock_wait_ns(c, now);
        now = begun + (c->n_done == 50 ? s_to_ns(3) : took);
        /* Before the hang ends, those that are not there count. */
        if (c->n_done == 50) {
            assert_int_equal(frame_clock_late(c, now - s_to_ns(1)), 0);
            assert_int_equal(frame_clock_late(c, now), 25);
        }
        frame_clock_done(c, begun, now, true);
    }
    /* Frame 50 is due 2 s after its begin: 25 frames were due in the last second. The
     * player passes over those that it had not begun. The next one is due just then. */
    n_expected = 25 + 1;
    assert_int_equal(c->n_skipped, 24);
    assert_int_equal(c->n_late, n_expected);
    assert_int_equal(c->n_failed, 0);
    assert_int_equal(c->spare_ns, 0);
    assert_int_equal(frame_clock_late(c, UINT64_MAX), n_expected);
    assert_int_equal(c->took.n, 100 - 24);
    assert_int_equal(c->took.max_ns, s_to_ns(3));
    assert_in_range(fsb_hist_share(&c->took, 0.5), ms_to_ns(1), ms_to_ns(1) * 104 / 100);
    assert_in_range(fsb_hist_share(&c->took, 0.99), ms_to_ns(1), ms_to_ns(1) * 104 / 100);
    free(c);
}

static void a_hang_within_the_read_ahead_makes_nothing_late(void **state)
{
    struct frame_clock *c = clock_new();
    uint64_t now = c->start_ns;

    (void)state;
    while (c->n_done < c->n_frames) {
        uint64_t begun = now + frame_clock_wait_ns(c, now);

        now = begun + ms_to_ns(c->n_done == 50 ? 1900 : 1);
        frame_clock_done(c, begun, now, true);
    }
    assert_int_equal(c->n_late, 0);
    assert_int_equal(c->spare_ns, ms_to_ns(100));
    free(c);
}

static void frames_that_never_came_are_late_at_the_end(void **state)
{
    struct frame_clock *c = clock_new();

    (void)state;
    for (unsigned i = 0; i < 10; i++)
        frame_clock_done(c, frame_begin_ns(c, i), frame_begin_ns(c, i) + 1000, true);
    /* Interrupted: frames that are not due yet do not count. */
    assert_int_equal(frame_clock_late(c, frame_due_ns(c, 10)), 0);
    assert_int_equal(frame_clock_late(c, frame_due_ns(c, 10) + 1), 1);
    frame_clock_skip(c, frame_due_ns(c, 14) + 1);
    assert_int_equal(c->n_late, 5);
    assert_int_equal(c->n_done, 15);
    assert_int_equal(c->spare_ns, 0);
    frame_clock_skip(c, UINT64_MAX);
    assert_int_equal(c->n_late, 90);
    assert_int_equal(c->n_done, 100);
    free(c);
}

/* Returns what is found when `capacity` streams hold, and how many trials it takes. */
static unsigned found(unsigned first, unsigned capacity, unsigned max, unsigned *n_trials)
{
    struct stream_find find = { .n = first, .max = max };
    bool more = true;

    for (*n_trials = 0; more; ++*n_trials) {
        assert_in_range(find.n, 1, max);
        assert_in_range(*n_trials, 0, 30);
        more = stream_find_next(&find, find.n <= capacity);
    }
    return find.held;
}

static void the_highest_number_is_found(void **state)
{
    unsigned n_trials;

    (void)state;
    for (unsigned capacity = 0; capacity <= 20; capacity++) {
        for (unsigned first = 1; first <= 20; first++)
            assert_int_equal(found(first, capacity, 64, &n_trials), capacity);
    }
    for (unsigned capacity = 21; capacity < 1000; capacity += 7) {
        unsigned n = found(5, capacity, 1000, &n_trials);

        assert_in_range(n, capacity * 95 / 100, capacity);
        assert_in_range(n_trials, 1, 16);
    }
    assert_int_equal(found(5, 5000, 64, &n_trials), 64); /* no more can be tried */
    assert_int_equal(found(64, 64, 64, &n_trials), 64);
    assert_int_equal(n_trials, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_have_their_times),
        cmocka_unit_test(a_frame_is_late_after_its_time),
        cmocka_unit_test(a_hang_makes_late_what_the_player_lacked),
        cmocka_unit_test(a_hang_within_the_read_ahead_makes_nothing_late),
        cmocka_unit_test(frames_that_never_came_are_late_at_the_end),
        cmocka_unit_test(the_highest_number_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
