/*
 * Goal: the rules by which a version of a block may be believed. Method: answers made by
 * hand, for layout 1 unless stated
 * otherwise: k = 4, n = 6, c = 8, q = 5.
 */
#include "storcli/rules/resolve.h"
#include "tests/unit/unit.h"

enum { K = 4, Q = 5, ALL = 0xff };

struct want {
    enum resolve_result result;
    uint64_t version;
    uint16_t user_bytes;
    bool doubtful;
};

static void check(const struct resolve_answer *answers, unsigned n, uint32_t told,
                  struct want want)
{
    uint64_t version = 77;
    uint16_t user_bytes = 77;
    bool doubtful = true;
    enum resolve_result result =
        resolve_block(K, Q, ALL, told, answers, n, &version, &user_bytes, &doubtful);

    assert_int_equal(result, want.result);
    if (want.result == RESOLVE_BELOW)
        assert_int_equal(version, want.version);
    if (want.result == RESOLVE_UNCLEAR || want.result == RESOLVE_BELOW)
        return;
    assert_int_equal(version, want.version);
    assert_int_equal(user_bytes, want.user_bytes);
    assert_int_equal(doubtful, want.doubtful);
}

/* Members of an answer: {version, user_bytes, storage, projection, below} */
static void k_agree(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 0, 0, false },
        { 7, 100, 1, 1, false },
        { 7, 100, 2, 2, false },
        { 7, 100, 5, 5, false },
    };

    (void)state;
    check(a, 4, 0x27, (struct want){ RESOLVE_DATA, 7, 100, false });
    check(a, 3, 0x07, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void the_same_projection_twice_is_one(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 0, 0, false },
        { 7, 100, 1, 1, false },
        { 7, 100, 2, 2, false },
        { 7, 100, 6, 2, false },
    };

    (void)state;
    check(a, 4, 0x47, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void lengths_must_agree(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 0, 0, false },
        { 7, 100, 1, 1, false },
        { 7, 100, 2, 2, false },
        { 7, 101, 3, 3, false },
    };

    (void)state;
    check(a, 4, 0x0f, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void newer_is_passed_over_only_when_never_acknowledged(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 0, 0, false }, { 7, 100, 1, 1, false }, { 7, 100, 2, 2, false },
        { 7, 100, 3, 3, false }, { 9, 100, 4, 4, false },
    };

    (void)state;
    /* 4 has the newer one, 5 6 7 have not answered: 4 < q, so 9 cannot have been
     * acknowledged */
    check(a, 5, 0x1f, (struct want){ RESOLVE_DATA, 7, 100, false });
    /* 3 is damaged: only 3 projections of 7 */
    check(a + 1, 4, 0x1e, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void newer_that_may_have_been_acknowledged_is_waited_for(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 0, 0, false }, { 7, 100, 1, 1, false }, { 7, 100, 2, 2, false },
        { 7, 100, 3, 3, false }, { 9, 100, 4, 4, false }, { 9, 100, 5, 5, false },
    };

    (void)state;
    /* 2 holders, all have answered */
    check(a, 6, 0xff, (struct want){ RESOLVE_DATA, 7, 100, false });
    check(a, 6, 0x7f, (struct want){ RESOLVE_DATA, 7, 100, false });
    check(a, 6, 0x3f, (struct want){ RESOLVE_DATA, 7, 100, false }); /* 2 + 2 < 5 */
    check(a, 6, 0x3e,
          (struct want){ RESOLVE_UNCLEAR, 0, 0, false }); /* 0 has more to tell: 2 + 3 */
}

/* Found by the simulation: 8 was acknowledged by 0 and 4..7, then 9 began to replace
 * it on 4..6. Only 0 and 7 still show 8, and neither has answered: 7 must not be
 * returned. */
static void a_version_under_replacement_hides_behind_its_successor(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 1, 1, false }, { 7, 100, 2, 2, false }, { 7, 100, 3, 3, false },
        { 7, 100, 6, 0, false }, { 8, 100, 7, 0, false }, { 9, 100, 4, 4, false },
        { 9, 100, 5, 5, false }, { 9, 100, 6, 5, false },
    };

    (void)state;
    check(a, 8, 0xfe, (struct want){ RESOLVE_BELOW, 9, 0, false });
}

/* A torn overwrite: 9 is on 0..2, and the spares have no file. A request for the version
 * below shows 7. */
static void below_a_torn_version_lies_the_one_before(void **state)
{
    const struct resolve_answer a[] = {
        { 9, 100, 0, 0, false }, { 9, 100, 1, 1, false }, { 9, 100, 2, 2, false },
        { 7, 100, 3, 3, false }, { 7, 100, 4, 4, false }, { 7, 100, 5, 5, false },
        { 7, 100, 0, 0, true },  { 7, 100, 1, 1, true },  { 7, 100, 2, 2, true },
    };

    (void)state;
    check(a, 6, 0xff, (struct want){ RESOLVE_BELOW, 9, 0, false });
    check(a, 7, 0xff, (struct want){ RESOLVE_DATA, 7, 100, true });
    check(a, 9, 0xff, (struct want){ RESOLVE_DATA, 7, 100, true });
    check(a, 9, 0xdf, (struct want){ RESOLVE_DATA, 7, 100, true });
    /* two have not answered: 3 + 2 may have acknowledged 9, and more requests do not
     * help */
    check(a, 9, 0x9f, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
    check(a, 6, 0x9f, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

/* Three torn versions each hide some projections of the complete one. */
static void one_below_the_other(void **state)
{
    const struct resolve_answer a[] = {
        { 9, 100, 0, 0, false }, { 9, 100, 1, 1, false }, { 8, 100, 2, 2, false },
        { 8, 100, 3, 3, false }, { 7, 100, 4, 4, false }, { 7, 100, 5, 5, false },
        { 8, 100, 0, 0, true },  { 7, 100, 1, 1, true },  { 7, 100, 0, 0, true },
        { 7, 100, 2, 2, true },
    };

    (void)state;
    check(a, 6, 0xff, (struct want){ RESOLVE_BELOW, 9, 0, false });
    check(a, 8, 0xff, (struct want){ RESOLVE_BELOW, 8, 0, false });
    check(a, 10, 0xff, (struct want){ RESOLVE_DATA, 7, 100, true });
}

/* Five storages have copies of three projections, which is not the same as five
 * acknowledgements. */
static void copies_of_a_projection_were_no_acknowledgements(void **state)
{
    const struct resolve_answer a[] = {
        { 9, 100, 0, 0, false }, { 9, 100, 1, 1, false }, { 9, 100, 2, 2, false },
        { 9, 100, 6, 0, false }, { 9, 100, 7, 1, false }, { 7, 100, 3, 3, false },
        { 7, 100, 4, 4, false }, { 7, 100, 5, 5, false }, { 7, 100, 0, 0, true },
        { 7, 100, 1, 1, true },  { 7, 100, 2, 2, true },
    };

    (void)state;
    check(a, 11, 0xff, (struct want){ RESOLVE_DATA, 7, 100, true });
    check(a, 11, 0xdf, (struct want){ RESOLVE_DATA, 7, 100, true });
    /* 5 and 6 have not answered: they may be the 4th and 5th that acknowledged 9 */
    check(a, 11, 0x9f, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void an_old_hole_is_looked_at_twice(void **state)
{
    const struct resolve_answer a[] = {
        { 9, 100, 0, 0, false }, { 9, 100, 1, 1, false }, { 9, 100, 2, 2, false },
        { 0, 0, 3, 3, false },   { 0, 0, 4, 4, false },   { 0, 0, 5, 5, false },
        { 0, 0, 0, 0, true },    { 0, 0, 1, 1, true },
    };

    (void)state;
    check(a, 6, 0xff, (struct want){ RESOLVE_BELOW, 9, 0, false });
    check(a, 8, 0xff, (struct want){ RESOLVE_HOLE, 0, 0, true });
    check(a, 7, 0xff, (struct want){ RESOLVE_HOLE, 0, 0, true });
}

/* Found by the simulation: misplaced projections keep an old mark, here 6. 8 was
 * acknowledged, then 9. 0..2 had 9 at the first request, and it was committed before the
 * request for the version below. */
static void what_is_committed_meanwhile_is_not_passed_over(void **state)
{
    const struct resolve_answer a[] = {
        { 9, 100, 0, 0, false }, { 9, 100, 1, 1, false }, { 9, 100, 2, 2, false },
        { 9, 100, 5, 0, false }, { 6, 0, 3, 2, false },   { 6, 0, 5, 2, false },
        { 6, 0, 6, 2, false },   { 6, 0, 7, 2, false },   { 0, 0, 0, 0, true },
        { 0, 0, 1, 1, true },    { 0, 0, 2, 2, true },    { 0, 0, 5, 0, true },
    };

    (void)state;
    /* 4 < 5 hide the older version */
    check(a, 8, 0xff, (struct want){ RESOLVE_HOLE, 6, 0, false });
    check(a, 8, 0xef, (struct want){ RESOLVE_BELOW, 9, 0, false });
    check(a, 12, 0xef, (struct want){ RESOLVE_HOLE, 6, 0, true });
}

/* Found by the simulation: 0 and 5 answered before 9 arrived, 1 and 2 after its commit,
 * by which they forgot 8: below it they show 7, which is still in place. 8 was
 * acknowledged long ago. */
static void what_a_commit_forgot_is_not_skipped(void **state)
{
    const struct resolve_answer a[] = {
        { 8, 100, 0, 0, false }, { 8, 100, 5, 5, false }, { 9, 100, 1, 1, false },
        { 9, 100, 2, 2, false }, { 7, 100, 1, 1, true },  { 7, 100, 2, 2, true },
        { 7, 100, 0, 0, true },  { 7, 100, 5, 5, true },
    };

    (void)state;
    check(a, 4, 0xe7, (struct want){ RESOLVE_BELOW, 9, 0, false });
    check(a, 8, 0xe7, (struct want){ RESOLVE_DATA, 7, 100, true });
}

static void silence_of_q_storages_hides_anything(void **state)
{
    const struct resolve_answer a[] = {
        { 7, 100, 6, 0, false },
        { 7, 100, 6, 1, false },
        { 7, 100, 7, 2, false },
        { 7, 100, 7, 3, false },
    };

    (void)state;
    check(a, 4, 0xc0, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

static void holes_count_by_storage(void **state)
{
    const struct resolve_answer marks[] = {
        { 9, 0, 0, 0, false }, { 9, 0, 1, 1, false },   { 9, 0, 6, 0, false },
        { 9, 0, 7, 1, false }, { 7, 100, 2, 2, false },
    };
    const struct resolve_answer never[] = {
        { 0, 0, 0, 0, false },
        { 0, 0, 1, 1, false },
        { 0, 0, 2, 2, false },
        { 0, 0, 3, 3, false },
    };

    (void)state;
    check(marks, 5, 0xc7, (struct want){ RESOLVE_HOLE, 9, 0, false });
    check(marks, 3, 0x43, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
    check(never, 4, 0x0f, (struct want){ RESOLVE_HOLE, 0, 0, false });
}

static void a_storage_that_missed_the_write_does_not_make_a_hole(void **state)
{
    const struct resolve_answer a[] = {
        { 0, 0, 0, 0, false },   { 7, 100, 1, 1, false }, { 7, 100, 2, 2, false },
        { 7, 100, 3, 3, false }, { 7, 100, 4, 4, false },
    };
    const struct resolve_answer lost[] = {
        /* four "hole" answers, three records, one storage did not answer */
        { 0, 0, 0, 0, false },   { 0, 0, 5, 5, false },   { 0, 0, 6, 6, false },
        { 0, 0, 7, 7, false },   { 7, 100, 1, 1, false }, { 7, 100, 2, 2, false },
        { 7, 100, 3, 3, false },
    };

    (void)state;
    check(a, 4, 0x0f, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
    check(a, 5, 0x1f, (struct want){ RESOLVE_DATA, 7, 100, false });
    /* 3 + 1 < 5: never acknowledged, so it counts as never written */
    check(lost, 7, 0xef, (struct want){ RESOLVE_HOLE, 0, 0, false });
}

static void nothing_said_is_unclear(void **state)
{
    (void)state;
    check(NULL, 0, 0, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
    check(NULL, 0, 0xff, (struct want){ RESOLVE_UNCLEAR, 0, 0, false });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k_agree),
        cmocka_unit_test(the_same_projection_twice_is_one),
        cmocka_unit_test(lengths_must_agree),
        cmocka_unit_test(newer_is_passed_over_only_when_never_acknowledged),
        cmocka_unit_test(newer_that_may_have_been_acknowledged_is_waited_for),
        cmocka_unit_test(a_version_under_replacement_hides_behind_its_successor),
        cmocka_unit_test(below_a_torn_version_lies_the_one_before),
        cmocka_unit_test(one_below_the_other),
        cmocka_unit_test(copies_of_a_projection_were_no_acknowledgements),
        cmocka_unit_test(an_old_hole_is_looked_at_twice),
        cmocka_unit_test(what_is_committed_meanwhile_is_not_passed_over),
        cmocka_unit_test(what_a_commit_forgot_is_not_skipped),
        cmocka_unit_test(silence_of_q_storages_hides_anything),
        cmocka_unit_test(holes_count_by_storage),
        cmocka_unit_test(a_storage_that_missed_the_write_does_not_make_a_hole),
        cmocka_unit_test(nothing_said_is_unclear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
