/*
 * Goal: reads are noted by the rules of relatime, shown, and reported once, with the
 * access time that they follow.
 */
#include "rozomount/inode/atimes.h"
#include "tests/unit/unit.h"

#define S   INT64_C(1000000000)
#define DAY (86400 * S)

static struct atimes *a;
static struct atime_note n[ATIMES_REPORT_MAX];

static int setup(void **state)
{
    (void)state;
    a = atimes_new(ATIMES_RELATIVE, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    atimes_free(a);
    a = NULL;
    return 0;
}

static void use(enum atimes_mode mode, bool no_directories)
{
    atimes_free(a);
    a = atimes_new(mode, no_directories);
}

/* Returns the access time that a stat shows with these times from exportd. */
static int64_t shown(uint64_t ino, int64_t atime, int64_t changed)
{
    const struct md_attr attr = {
        .ino = ino, .atime_ns = atime, .mtime_ns = changed, .ctime_ns = changed
    };

    return (int64_t)atimes_of(a, &attr);
}

/* The read's time is `at`: exportd's clock is taken to be that much behind. */
static bool read_of(uint64_t ino, int64_t at, int64_t atime, int64_t changed)
{
    struct inode_times t = { atime, changed, changed };
    bool moves = atimes_note(a, ino, at + S / 10, &t, false);

    assert_true(t.atime_ns == (moves ? at : atime));
    return moves;
}

static unsigned taken(void)
{
    return atimes_take(a, INT64_MAX, n, ATIMES_REPORT_MAX);
}

static void assert_note(const struct atime_note *note, uint64_t ino, int64_t seen,
                        int64_t at)
{
    assert_int_equal(note->ino, ino);
    assert_int_equal(note->read.at_ns, at);
    assert_true(note->read.has_seen && note->read.seen_ns == seen);
}

static void test_the_first_read_after_a_change_counts(void **state)
{
    (void)state;
    assert_int_equal(shown(7, 10 * S, 10 * S), 10 * S);
    assert_true(read_of(7, 20 * S, 10 * S, 10 * S));
    assert_false(read_of(7, 30 * S, 20 * S, 10 * S));
    assert_false(read_of(7, 30 * S, 10 * S, 10 * S)); /* exportd's answer is older */
    assert_int_equal(shown(7, 10 * S, 10 * S), 20 * S);
    assert_int_equal(atimes_waiting(a), 1);
    assert_int_equal(taken(), 1);
    assert_note(&n[0], 7, 10 * S, 20 * S);
    assert_int_equal(atimes_waiting(a), 0);
    assert_int_equal(taken(), 0);
    assert_int_equal(shown(7, 10 * S, 10 * S), 20 * S);
    assert_int_equal(shown(7, 20 * S, 10 * S), 20 * S);
    assert_true(read_of(7, 50 * S, 20 * S, 40 * S));
    assert_int_equal(shown(7, 20 * S, 40 * S), 50 * S);
    assert_int_equal(taken(), 1);
    assert_note(&n[0], 7, 20 * S, 50 * S);
}

/* Between the read and its report the inode is changed here. */
static void test_a_change_does_not_take_a_read_away(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    assert_int_equal(shown(7, 10 * S, 30 * S), 20 * S);
    assert_true(read_of(7, 40 * S, 10 * S, 30 * S));
    assert_int_equal(taken(), 1);
    assert_note(&n[0], 7, 10 * S, 40 * S); /* exportd has heard of none of the two */
}

/* A read that follows a reported one names that one, whatever older answers say. */
static void test_reads_follow_reported_ones(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    taken();
    assert_true(read_of(7, 40 * S, 10 * S, 30 * S));
    taken();
    assert_note(&n[0], 7, 20 * S, 40 * S);
    assert_true(read_of(7, 60 * S, 5 * S, 50 * S)); /* set by another mount */
    taken();
    assert_note(&n[0], 7, 5 * S, 60 * S);
}

static void test_read_counts_again_a_day_later(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    taken();
    assert_false(read_of(7, 20 * S + DAY - 1, 20 * S, 10 * S));
    assert_true(read_of(7, 20 * S + DAY, 20 * S, 10 * S));
    assert_int_equal(taken(), 1);
    assert_int_equal(shown(7, 20 * S, 10 * S), 20 * S + DAY);
}

/* The estimate of exportd's clock lags behind the change that exportd stamped. */
static void test_a_read_is_later_than_what_it_follows(void **state)
{
    struct inode_times t = { 10 * S, 20 * S, 20 * S + 5 };

    (void)state;
    assert_true(atimes_note(a, 7, 20 * S, &t, false));
    assert_true(t.atime_ns == 20 * S + 6);
    assert_int_equal(shown(7, 10 * S, 20 * S + 5), 20 * S + 6);
    t = (struct inode_times){ 10 * S, 20 * S + 7, 20 * S + 5 };
    assert_true(atimes_note(a, 8, 20 * S, &t, false));
    assert_true(t.atime_ns == 20 * S + 8);
    /* exportd's clock was set back */
    t = (struct inode_times){ 10 * S, 900 * S, 900 * S };
    assert_true(atimes_note(a, 9, 20 * S, &t, false));
    assert_true(t.atime_ns == 20 * S - S / 10);
}

static void test_atime_of_exportd_is_shown_if_the_own_read_does_not_count(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    assert_int_equal(shown(7, 25 * S, 10 * S),
                     25 * S); /* a later read of another mount */
    assert_int_equal(shown(7, 15 * S, 10 * S), 15 * S); /* an earlier read had counted */
    assert_int_equal(shown(7, 15 * S, 18 * S), 20 * S); /* changed since */
    assert_int_equal(shown(7, 5 * S, 30 * S), 5 * S);   /* set by another mount */
}

/* exportd decides if a read is due that this mount cannot judge: each one is reported. */
static void test_reads_of_inodes_with_unknown_times_are_all_reported(void **state)
{
    struct inode_times t = { 10 * S, 10 * S, 10 * S };

    (void)state;
    assert_true(atimes_note(a, 7, 20 * S, NULL, true));
    assert_true(atimes_note(a, 7, 30 * S, NULL, true));
    assert_int_equal(shown(7, 10 * S, 25 * S), 30 * S);
    assert_int_equal(shown(7, 10 * S, 35 * S), 10 * S);
    assert_int_equal(taken(), 1);
    assert_true(n[0].read.at_ns == 30 * S && !n[0].read.has_seen);
    assert_true(atimes_note(a, 8, 20 * S, &t, true));
    assert_true(atimes_note(a, 8, 30 * S, &t, true));
    assert_int_equal(taken(), 1);
    assert_note(&n[0], 8, 10 * S, 30 * S);
}

static void test_strict_counts_each_read_and_none_does_not(void **state)
{
    (void)state;
    use(ATIMES_STRICT, false);
    assert_true(read_of(7, 20 * S, 10 * S, 10 * S));
    taken();
    assert_true(read_of(7, 30 * S, 20 * S, 10 * S));
    assert_int_equal(taken(), 1);
    assert_note(&n[0], 7, 20 * S, 30 * S);
    assert_int_equal(shown(7, 20 * S, 10 * S), 30 * S);
    assert_true(read_of(7, 30 * S + 1, 30 * S, 10 * S));
    assert_true(atimes_is_strict(a));
    use(ATIMES_NONE, false);
    assert_false(atimes_counts(a, false) || atimes_counts(a, true));
    assert_false(atimes_note(a, 7, 20 * S, NULL, true));
    assert_int_equal(taken(), 0);
    assert_int_equal(shown(7, 10 * S, 10 * S), 10 * S);
}

static void test_directories_can_be_left_out(void **state)
{
    (void)state;
    assert_true(atimes_counts(a, true) && atimes_counts(a, false));
    use(ATIMES_RELATIVE, true);
    assert_true(!atimes_counts(a, true) && atimes_counts(a, false));
}

static void test_an_atime_that_is_set_wins(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    atimes_forget(a, 7);
    assert_int_equal(taken(), 0);
    assert_int_equal(shown(7, 3 * S, 10 * S), 3 * S);
    read_of(7, 20 * S, 10 * S, 10 * S);
    taken();
    atimes_forget(a, 7);
    atimes_give_back(a, n, 1); /* the report failed, and is not repeated */
    assert_int_equal(taken(), 0);
}

static void test_reads_that_could_not_be_reported_are_reported_later(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    read_of(8, 21 * S, 10 * S, 10 * S);
    read_of(9, 22 * S, 10 * S, 10 * S);
    assert_int_equal(atimes_take(a, INT64_MAX, n, 2), 2);
    read_of(8, 40 * S, 21 * S, 30 * S); /* read once more meanwhile */
    atimes_give_back(a, n, 2);
    assert_int_equal(atimes_waiting(a), 3);
    assert_int_equal(taken(), 3);
    assert_note(&n[0], 7, 10 * S, 20 * S);
    assert_note(&n[1], 9, 10 * S, 22 * S);
    assert_note(&n[2], 8, 10 * S, 40 * S); /* exportd has not heard of the read between */
}

/* Programs read a file and set its access time at once to what it was. */
static void test_reads_of_the_last_second_wait(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    read_of(8, 19 * S, 10 * S, 10 * S);
    assert_int_equal(atimes_take(a, 20 * S, n, 8), 1);
    assert_int_equal(n[0].ino, 8);
    assert_int_equal(atimes_take(a, 21 * S - 1, n, 8), 0);
    assert_int_equal(atimes_take(a, 21 * S, n, 8), 1);
    read_of(9, 20 * S, 10 * S, 10 * S);
    assert_int_equal(atimes_take(a, 15 * S, n, 8), 1); /* the clock was set back */
}

static void test_exportd_that_refused_a_report_gets_no_more(void **state)
{
    (void)state;
    read_of(7, 20 * S, 10 * S, 10 * S);
    atimes_refused(a);
    assert_false(read_of(8, 30 * S, 10 * S, 10 * S));
    assert_int_equal(taken(), 0);
    assert_int_equal(shown(7, 10 * S, 10 * S), 10 * S);
}

static void test_notes_are_bounded_and_reports_short(void **state)
{
    unsigned all = 0, k;

    (void)state;
    for (uint64_t ino = 1; ino <= ATIMES_MAX; ino++)
        read_of(ino, (int64_t)ino * S, 0, 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(taken(), ATIMES_REPORT_MAX);
    for (uint64_t ino = 1; ino <= 4 * ATIMES_REPORT_MAX + 100; ino++)
        read_of(ATIMES_MAX + ino, (int64_t)ino * S, 0, 0); /* reported ones go first */
    while ((k = taken()) > 0) {
        assert_true(k <= ATIMES_REPORT_MAX);
        assert_true(n[0].ino > 4 * ATIMES_REPORT_MAX + 100);
        all += k;
    }
    assert_int_equal(all, ATIMES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_the_first_read_after_a_change_counts),
        TEST(test_a_change_does_not_take_a_read_away),
        TEST(test_reads_follow_reported_ones),
        TEST(test_read_counts_again_a_day_later),
        TEST(test_a_read_is_later_than_what_it_follows),
        TEST(test_atime_of_exportd_is_shown_if_the_own_read_does_not_count),
        TEST(test_reads_of_inodes_with_unknown_times_are_all_reported),
        TEST(test_strict_counts_each_read_and_none_does_not),
        TEST(test_directories_can_be_left_out),
        TEST(test_an_atime_that_is_set_wins),
        TEST(test_reads_that_could_not_be_reported_are_reported_later),
        TEST(test_reads_of_the_last_second_wait),
        TEST(test_exportd_that_refused_a_report_gets_no_more),
        TEST(test_notes_are_bounded_and_reports_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
