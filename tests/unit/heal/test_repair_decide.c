/*
 * Goal: decisions about a block are consistent, whichever driver makes them, and
 * whenever. Method: answers made by hand; then, for small k, n and c, every way in which
 * storages may hold a torn version and not answer.
 */
#include "common/wire/record.h"
#include "storaged/heal/decide/repair_decide.h"
#include "tests/unit/unit.h"

enum { NEW = 9, OLD = 5 };

static uint32_t bits(unsigned n)
{
    return (1u << n) - 1;
}

static struct decide_rules rules_of(unsigned k, unsigned n, unsigned c)
{
    return (struct decide_rules){
        .k = k, .n = n, .c = c, .q = quorum_min(k, c), .answered = bits(c)
    };
}

static struct decision decide(const struct decide_rules *r, const struct decide_answer *a,
                              unsigned n)
{
    struct decision d;

    decide_block(r, a, n, &d);
    return d;
}

/* Members of an answer: {version, user_bytes, candidate, projection, kind, level, torn};
 * layout 0 with its spare. */
static void homes_that_lack_it_are_named_with_the_reason(void **state)
{
    const struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 9, 100, 3, 2, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 0, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d = decide(&r, a, 4);

    (void)state;
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 9);
    assert_int_equal(d.user_bytes, 100);
    assert_int_equal(d.stale, 2);
    assert_int_equal(d.damaged, 4);
    assert_int_equal(d.missing, 0);
    assert_int_equal(d.lack, 6);
    assert_int_equal(d.holders, 9);
    assert_int_equal(d.drop, 0);
    assert_true(d.newest);

    r.answered = 0x9; /* candidate 1 did not answer, 2 has no file */
    r.none = 0x4;
    d = decide(&r, a, 2);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.missing, 4);
    assert_int_equal(d.lack, 4);
}

/* A storage with a doubt may have acknowledged something newer, but has nothing of it
 * now. */
static void a_storage_in_doubt_denies_nothing(void **state)
{
    const struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 3, 0, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 0, 0, DECIDE_DATA, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);

    (void)state;
    assert_int_equal(decide(&r, a, 5).version, 5);
    r.doubt = 0x2; /* 0 and 1 may have had 9: two, and q is 3 */
    assert_int_equal(decide(&r, a, 5).what, DECIDE_FORWARD);
    assert_int_equal(decide(&r, a, 5).version, 5);
    r.doubt = 0x6; /* three may */
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED);
    r.fenced = true;
    r.fence_epoch = 1;
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED);
    r.doubt = 0x2;
    assert_int_equal(decide(&r, a, 5).what, DECIDE_FORWARD); /* rolled back */
    assert_int_equal(decide(&r, a, 5).version, 5);
}

static void one_projection_twice_is_one(void **state)
{
    const struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 9, 100, 3, 0, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d = decide(&r, a, 4);

    (void)state;
    /* two storages have it and q is 3: ignored, and left where it is */
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 5);
    assert_int_equal(d.torn, 9);
    assert_int_equal(d.lack, 0);
    assert_int_equal(d.drop, 0);
    assert_false(d.newest);
}

/* A home and a spare have the same projection, and another home has lost what it had: at
 * most two have acknowledged it. */
static void two_copies_of_one_projection_are_rolled_back(void **state)
{
    struct decide_answer a[] = {
        { 9, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
        { 9, 100, 3, 2, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 0, 0, 1, 1, DECIDE_DAMAGED, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 1, .torn = false },
        { 0, 0, 3, 2, DECIDE_HOLE, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.fenced = true;
    d = decide(&r, a, 6);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 5);
    assert_int_equal(d.drop, 0xc);
    assert_int_equal(d.damaged, 2);
    r.answered = 0xd; /* candidate 1 did not answer: it may be the second projection */
    assert_int_equal(decide(&r, a, 3).what, DECIDE_UNDECIDED);
    r.answered = 0xf;
    /* different projections: they can complete it */
    a[1].projection = a[5].projection = 0;
    assert_int_equal(decide(&r, a, 6).version, 9);
}

/* A spare lost what it had, took a mark, and does not know any more which of the two
 * is newer. The writer is gone, and the homes never heard of the mark. */
static void a_mark_over_damage_is_rolled_back_under_its_fence(void **state)
{
    struct decide_answer a[] = {
        { 5, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
        { 9, 0, 3, 0, DECIDE_DAMAGED, 0, .torn = false, .marked = true },
        { 0, 0, 3, 0, DECIDE_DAMAGED, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d = decide(&r, a, 4);

    (void)state;
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 5);
    assert_int_equal(d.torn, 9); /* a fence is wanted */
    assert_int_equal(d.drop, 0);
    assert_true(d.newest);
    r.fenced = true;
    d = decide(&r, a, 4);
    assert_int_equal(d.what, DECIDE_BELOW);
    assert_int_equal(d.version, 9);
    d = decide(&r, a, 5);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 5);
    assert_int_equal(d.drop, 0x8);
    a[3].version |= UINT64_C(1) << 32; /* above the fence */
    assert_int_equal(decide(&r, a, 5).version, 5);
    assert_int_equal(decide(&r, a, 5).drop, 0);
}

/* The damage hides whether the storage acknowledged the mark, or has it at all. */
static void a_mark_over_damage_may_be_acknowledged(void **state)
{
    const struct decide_answer a[] = {
        { 9, 0, 0, 0, DECIDE_HOLE, 0, .torn = false },
        { 5, 100, 0, 0, DECIDE_DATA, 1, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
        { 9, 0, 3, 0, DECIDE_DAMAGED, 0, .torn = false, .marked = true },
        { 0, 0, 3, 0, DECIDE_DAMAGED, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);

    (void)state;
    r.fenced = true;
    assert_int_equal(decide(&r, a, 6).version, 5); /* two had it at most, and q is 3 */
    assert_int_equal(decide(&r, a, 6).drop, 0x9);
    r.doubt = 0x2; /* a third may have had it */
    assert_int_equal(decide(&r, a, 6).what, DECIDE_UNDECIDED);
}

/* All storages lost power, and the unsynced version is torn at too many homes: it was
 * never acknowledged as stable. */
static void a_write_torn_before_a_sync_is_rolled_back(void **state)
{
    struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 9, 0, 1, 1, DECIDE_DAMAGED, 0, .torn = true },
        { 9, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = true },
        { 0, 0, 0, 0, DECIDE_HOLE, 1, .torn = false }, /* a first write, in place */
        { 0, 0, 1, 1, DECIDE_HOLE, 1, .torn = false },
        { 0, 0, 2, 2, DECIDE_HOLE, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.answered = 7;
    r.none = 8;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_UNDECIDED); /* damaged for readers */
    assert_int_equal(d.torn, 9);
    r.fenced = true;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_BELOW);
    assert_int_equal(d.version, 9);
    d = decide(&r, a, 6);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 0);
    assert_int_equal(d.drop, 1);
    assert_int_equal(d.damaged, 6);
    assert_int_equal(d.lack, 6);

    a[1].torn = a[2].torn = false; /* rotten: may have been stable */
    assert_int_equal(decide(&r, a, 6).what, DECIDE_UNDECIDED);
    a[2].torn = true;
    r.answered =
        5; /* a candidate that did not answer may have had it, and bring it back */
    a[1] = a[2];
    assert_int_equal(decide(&r, a, 2).what, DECIDE_UNDECIDED);

    a[0] = (struct decide_answer){ 9, 0, 0, 0, DECIDE_DAMAGED, 0, .torn = true };
    a[1] = (struct decide_answer){ 9, 0, 1, 1, DECIDE_DAMAGED, 0, .torn = true };
    r.answered = 7;
    assert_int_equal(decide(&r, a, 3).what, DECIDE_BELOW);
    d = decide(&r, a, 6);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.lack, 7);
}

/* A spare has the only projection left of a first write. Two homes lost their headers
 * before any sync, and the third has other damage: too few say that nothing was there
 * before, but nothing else can have been. */
static void what_too_few_know_to_have_been_nothing_is_nothing(void **state)
{
    struct decide_answer a[] = {
        { 0, 0, 0, 0, DECIDE_DAMAGED, 0, .torn = true },
        { 0, 0, 1, 1, DECIDE_DAMAGED, 0, .torn = true },
        { 0, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = false },
        { 9, 100, 3, 1, DECIDE_DATA, 0, .torn = false },
        { 0, 0, 3, 1, DECIDE_HOLE, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED); /* no fence is up */
    r.fenced = true;
    assert_int_equal(decide(&r, a, 4).what, DECIDE_BELOW);
    d = decide(&r, a, 5);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 0);
    assert_int_equal(d.user_bytes, 0);
    assert_int_equal(d.drop, 8);
    assert_int_equal(d.damaged, 7);
    assert_int_equal(d.lack, 7);

    a[1].torn = false; /* three may have acknowledged it */
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED);
    a[1].torn = true;
    a[4].kind = DECIDE_DAMAGED; /* two may have acknowledged the version before */
    assert_int_equal(decide(&r, a, 5).what, DECIDE_FORWARD);
    a[0].torn = false; /* three may have */
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED);
    a[0].torn = true;
    r.doubt = 3;
    assert_int_equal(decide(&r, a, 5).what, DECIDE_UNDECIDED);
}

static void holes_count_storages(void **state)
{
    const struct decide_answer a[] = {
        { 9, 0, 0, 0, DECIDE_HOLE, 0, .torn = false },
        { 9, 0, 3, 1, DECIDE_HOLE, 0, .torn = false },
        { 9, 0, 3, 2, DECIDE_HOLE, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d = decide(&r, a, 5);

    (void)state;
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 9);
    assert_int_equal(d.user_bytes, 0);
    assert_int_equal(d.lack, 6);
    assert_int_equal(d.holders, 9);
}

static void a_spare_may_hold_all_that_is_needed(void **state)
{
    const struct decide_answer a[] = {
        { 9, 100, 3, 0, DECIDE_DATA, 0, .torn = false },
        { 9, 100, 3, 1, DECIDE_DATA, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.answered = 0x8;
    r.none = 0x7;
    d = decide(&r, a, 2);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.missing, 7);
}

static void never_written_is_a_decision_too(void **state)
{
    const struct decide_answer a[] = {
        { 0, 0, 0, 0, DECIDE_HOLE, 0, .torn = false },
        { 0, 0, 1, 1, DECIDE_HOLE, 0, .torn = false },
        { 0, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.answered = 0x7;
    r.none = 0x8;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 0);
    assert_int_equal(d.lack, 4);
    assert_int_equal(d.damaged, 4);

    r.answered = 0;
    r.none = 0xf;
    assert_int_equal(decide(&r, a, 0).what, DECIDE_NOTHING);
    r.none = 0x3;
    assert_int_equal(decide(&r, a, 0).what, DECIDE_UNDECIDED);
}

/* Three candidates, all of which must have a version that was acknowledged: one has
 * nothing, and the others do not know what they had. */
static void what_all_but_one_may_have_lost_was_never_written(void **state)
{
    struct decide_answer a[] = {
        { 0, 0, 0, 0, DECIDE_HOLE, 0, .torn = false },
        { 0, 0, 1, 1, DECIDE_DAMAGED, 0, .torn = false },
        { 0, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = true },
    };
    struct decide_rules r = rules_of(2, 3, 3);
    struct decision d;

    (void)state;
    r.q = 3;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_UNDECIDED);
    assert_int_equal(d.torn, 0);
    assert_true(d.unwritten); /* a fence helps, although no version was seen */
    a[2].torn = false;
    assert_true(decide(&r, a, 3).unwritten);
    r.fenced = true;
    r.fence_epoch = 1;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 0);
    assert_int_equal(d.damaged, 6);
    assert_false(d.unwritten);

    r.q = 2; /* an earlier build may have acknowledged a version at these two */
    assert_int_equal(decide(&r, a, 3).what, DECIDE_UNDECIDED);
    r.fenced = false;
    assert_false(decide(&r, a, 3).unwritten);
    r.q = 3;
    r.answered = 0x4; /* two did not answer: they may have a version that can be read */
    assert_false(decide(&r, a + 2, 1).unwritten);
    r.answered = 0x7;
    a[0].kind = DECIDE_DATA; /* a version was seen: torn asks for the fence */
    a[0].version = 9;
    assert_false(decide(&r, a, 3).unwritten);
}

static void older_versions_are_asked_for_before_a_roll_back(void **state)
{
    struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 0, 0, 2, 2, DECIDE_DAMAGED, 0, .torn = false },
        { 5, 100, 0, 0, DECIDE_DATA, 1, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.answered = 0x7;
    r.none = 0x8;
    r.fenced = true;
    d = decide(&r, a, 3);
    assert_int_equal(d.what, DECIDE_BELOW);
    assert_int_equal(d.version, 9);
    d = decide(&r, a, 4);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, 5);
    assert_int_equal(d.drop, 1);
    assert_int_equal(d.lack, 4);
    /* three of four may have acknowledged it, as far as a reader knows */
    r.fenced = false;
    r.none = 0;
    assert_int_equal(decide(&r, a, 4).what, DECIDE_UNDECIDED);
    assert_int_equal(decide(&r, a, 4).torn, 9);
}

static void a_home_below_a_dropped_version_gets_its_missing_blocks(void **state)
{
    const struct decide_answer a[] = {
        { 9, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { 3, 100, 0, 0, DECIDE_DATA, 1, .torn = false },
        { 5, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { 5, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    d = decide(&r, a, 4);
    assert_int_equal(d.lack, 0); /* kept without a fence: it has something newer */
    r.fenced = true;
    d = decide(&r, a, 4);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.drop, 1);
    assert_int_equal(d.stale, 1);
}

static void an_epoch_above_the_fence_is_not_resolved(void **state)
{
    const uint64_t v1 = version_make(3, 1), v2 = version_make(4, 1);
    const struct decide_answer a[] = {
        { v2, 100, 0, 0, DECIDE_DATA, 0, .torn = false },
        { v1, 100, 0, 0, DECIDE_DATA, 1, .torn = false },
        { v1, 100, 1, 1, DECIDE_DATA, 0, .torn = false },
        { v1, 100, 2, 2, DECIDE_DATA, 0, .torn = false },
    };
    struct decide_rules r = rules_of(2, 3, 4);
    struct decision d;

    (void)state;
    r.fenced = true;
    r.fence_epoch = 3;
    d = decide(&r, a, 4);
    assert_int_equal(d.what, DECIDE_FORWARD);
    assert_int_equal(d.version, v1);
    assert_int_equal(d.drop, 0);
    assert_int_equal(d.torn, v2);
    r.fence_epoch = 4;
    assert_int_equal(decide(&r, a, 4).drop, 1);
}

/* Every subset of candidates has the torn version (home i has projection i; spares have
 * those of absent homes) and all others have the old one. Of these, every subset does not
 * answer a driver. */
static unsigned answers_of(unsigned n, unsigned c, uint32_t torn, uint32_t answered,
                           struct decide_answer *a)
{
    unsigned n_answers = 0, missed = 0;

    for (unsigned i = 0; i < c; i++) {
        bool has = (torn >> i & 1) != 0;
        unsigned p = i;

        if (i >= n) { /* the projection of the next home without it */
            while (missed < n && (torn >> missed & 1) != 0)
                missed++;
            if (missed == n || !has)
                continue;
            p = missed++;
        }
        if ((answered >> i & 1) == 0)
            continue;
        if (has)
            a[n_answers++] =
                (struct decide_answer){ NEW,         10, (uint8_t)i,   (uint8_t)p,
                                        DECIDE_DATA, 0,  .torn = false };
        a[n_answers++] = (struct decide_answer){ i < n ? OLD : 0,
                                                 i < n ? 20 : 0,
                                                 (uint8_t)i,
                                                 (uint8_t)p,
                                                 i < n ? DECIDE_DATA : DECIDE_HOLE,
                                                 has,
                                                 .torn = false };
    }
    return n_answers;
}

enum outcome { LEFT, FORWARD, BACK };

static enum outcome outcome_of(const struct decide_rules *rules, uint32_t torn,
                               uint32_t unanswered)
{
    struct decide_rules r = *rules;
    struct decide_answer a[DECIDE_ANSWERS_MAX];
    struct decision d;
    uint32_t missing = 0;
    unsigned n;

    r.answered &= ~unanswered;
    for (unsigned i = r.n; i < r.c; i++) { /* a spare without a record has no file */
        if ((r.answered >> i & 1) != 0 && (torn >> i & 1) == 0) {
            r.answered &= ~(1u << i);
            missing |= 1u << i;
        }
    }
    r.none = missing;
    n = answers_of(r.n, r.c, torn, r.answered, a);
    decide_block(&r, a, n, &d);
    if (d.what != DECIDE_FORWARD)
        return LEFT;
    if (d.version == 0) { /* only spares answer, q is more than all homes: no effect */
        assert_true(!r.fenced && d.lack == 0 && d.drop == 0);
        return LEFT;
    }
    assert_true(d.version == NEW || d.version == OLD);
    if (d.version == NEW) {
        assert_int_equal(d.drop, 0);
        return FORWARD;
    }
    if (!r.fenced || d.drop == 0)
        return LEFT; /* ignored, or not seen: not resolved */
    for (unsigned i = 0; i < r.c; i++)
        assert_int_equal(d.drop >> i & 1, (torn & r.answered) >> i & 1);
    return BACK;
}

static void check_all(unsigned k, unsigned n, unsigned c)
{
    struct decide_rules r = rules_of(k, n, c);

    for (unsigned fenced = 0; fenced < 2; fenced++) {
        r.fenced = fenced != 0;
        for (uint32_t torn = 0; torn <= bits(c); torn++) {
            bool forward = false, back = false;
            unsigned holders = (unsigned)__builtin_popcount(torn);

            for (uint32_t unanswered = 0; unanswered <= bits(c); unanswered++) {
                enum outcome o = outcome_of(&r, torn, unanswered);

                forward |= o == FORWARD;
                back |= o == BACK;
            }
            assert_false(forward && back);
            if (holders >= r.q) /* may have been acknowledged */
                assert_false(back);
            if (holders >= r.k && holders <= n)
                assert_true(outcome_of(&r, torn, 0) == FORWARD);
            if (fenced && holders > 0 && holders < r.k)
                assert_true(outcome_of(&r, torn, 0) == BACK);
        }
    }
}

static void no_two_drivers_contradict_each_other(void **state)
{
    (void)state;
    check_all(2, 3, 4);
    check_all(2, 3, 5);
    check_all(2, 4, 5);
    check_all(3, 4, 6);
    check_all(4, 6, 8);
}

/* The first driver is interrupted anywhere: the second one sees its unfinished work, and
 * decides the same. */
static void a_half_done_decision_is_found_again(void **state)
{
    const unsigned k = 4, n = 6, c = 8;
    struct decide_rules r = rules_of(k, n, c);

    (void)state;
    r.fenced = true;
    for (uint32_t torn = 1; torn < 1u << n; torn++) {
        enum outcome first = outcome_of(&r, torn, 0);

        for (uint32_t done = torn; done != 0; done = (done - 1) & torn) {
            uint32_t now =
                first == FORWARD ? torn | (~torn & done << 1 & bits(n)) : torn & ~done;
            enum outcome again = outcome_of(&r, now, 0);

            if (now == 0)
                assert_true(again == BACK || again == LEFT);
            else
                assert_int_equal(again, first);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_that_lack_it_are_named_with_the_reason),
        cmocka_unit_test(a_storage_in_doubt_denies_nothing),
        cmocka_unit_test(one_projection_twice_is_one),
        cmocka_unit_test(two_copies_of_one_projection_are_rolled_back),
        cmocka_unit_test(a_mark_over_damage_is_rolled_back_under_its_fence),
        cmocka_unit_test(a_mark_over_damage_may_be_acknowledged),
        cmocka_unit_test(a_write_torn_before_a_sync_is_rolled_back),
        cmocka_unit_test(what_too_few_know_to_have_been_nothing_is_nothing),
        cmocka_unit_test(holes_count_storages),
        cmocka_unit_test(a_spare_may_hold_all_that_is_needed),
        cmocka_unit_test(never_written_is_a_decision_too),
        cmocka_unit_test(what_all_but_one_may_have_lost_was_never_written),
        cmocka_unit_test(older_versions_are_asked_for_before_a_roll_back),
        cmocka_unit_test(a_home_below_a_dropped_version_gets_its_missing_blocks),
        cmocka_unit_test(an_epoch_above_the_fence_is_not_resolved),
        cmocka_unit_test(no_two_drivers_contradict_each_other),
        cmocka_unit_test(a_half_done_decision_is_found_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
