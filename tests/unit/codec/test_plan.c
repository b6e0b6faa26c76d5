/*
 * test_plan.c - codec_plan() finds a way or refuses, codec_plan_reads() lists exactly the
 * bytes that are read, and codec_repair() makes the projections that codec_encode()
 * makes.
 *
 * Method: every set of projections; bytes that the plan does not read are junk, and every
 * bin that it reads must show in the result.
 */
#include <errno.h>

#include "harness.h"

/* ---- plans ---- */

static void check_plans(const struct codec *c, const struct which *which)
{
    struct codec_plan plan, untouched;
    uint32_t all = (1u << codec_n(c)) - 1;

    (void)which;
    memset(&untouched, JUNK, sizeof(untouched));
    for (uint32_t have = 0; have <= all; have++) {
        uint32_t want = have;

        plan = untouched;
        if ((unsigned)__builtin_popcount(have) < codec_k(c)) {
            check(codec_plan(c, have, 0, &plan) == -EINVAL);
            check(codec_plan(c, have | ~all, 0, &plan) == -EINVAL);
            check(memcmp(&plan, &untouched, sizeof(plan)) == 0);
            continue;
        }
        while ((unsigned)__builtin_popcount(want) > codec_k(c))
            want &= ~(1u << (31 - __builtin_clz(want)));
        check(codec_plan(c, have, 0, &plan) == 0);
        check(plan.reads == want && plan.wanted == 0 && plan.codec == c);
        check(codec_plan(c, have | ~all, 0, &plan) == 0);
        check(plan.reads == want);
    }
}

static void test_a_plan_uses_the_first_k_or_is_refused(void **state)
{
    (void)state;
    for_each_codec(check_plans);
}

/* Checks whether `wanted` can be made from `have`, and if so which projections the plan
 * reads. */
static void check_repair_plan(const struct codec *c, uint32_t have, uint32_t wanted)
{
    struct codec_plan plan, untouched;
    uint32_t all = (1u << codec_n(c)) - 1;
    bool is_there = wanted != 0 && (wanted & ~(have & all)) == 0;
    bool can = (wanted & ~all) == 0 &&
               (is_there || (unsigned)__builtin_popcount(have & all) >= codec_k(c));

    memset(&untouched, JUNK, sizeof(untouched));
    plan = untouched;
    check(codec_plan(c, have, wanted, &plan) == (can ? 0 : -EINVAL));
    if (!can) {
        check(memcmp(&plan, &untouched, sizeof(plan)) == 0);
        return;
    }
    check(plan.codec == c && plan.wanted == wanted);
    check((plan.reads & ~(have & all)) == 0);
    check(plan.reads == (is_there ? wanted : plan.reads)); /* a copy reads its source */
    check((unsigned)__builtin_popcount(plan.reads) <= codec_k(c) || is_there);
}

static void check_repair_plans(const struct codec *c, const struct which *which)
{
    uint64_t seed = 5;

    (void)which;
    for (unsigned try = 0; try < 20000; try++) {
        uint32_t beyond = try % 5 == 0 ? 0xffffffffu << codec_n(c) : 0;
        uint32_t have = (uint32_t)random_below(&seed, 1u << codec_n(c));
        uint32_t wanted = (uint32_t)random_below(&seed, 1u << codec_n(c));

        if (try % 3 == 0) /* only a few */
            wanted &= (uint32_t)random_below(&seed, 1u << codec_n(c)) & 0x249249;
        check_repair_plan(c, have | beyond, wanted);
        if (try % 50 == 0)
            check_repair_plan(c, have, wanted | 1u << codec_n(c));
    }
}

static void test_a_repair_plan_is_made_or_refused(void **state)
{
    (void)state;
    for_each_code(check_repair_plans);
    for_some_k_and_n(check_repair_plans);
}

/* ---- bytes that plans read ---- */

/* Copies all projections, with junk where the plan does not read. */
static void keep_what_is_read(const struct codec_plan *plan, const struct block *from,
                              struct block *to)
{
    for (unsigned i = 0; i < codec_n(from->c); i++) {
        struct codec_reads reads;

        codec_plan_reads(plan, i, from->row_bytes, &reads);
        check(reads.body_from <= reads.body_to && reads.body_to <= from->row_bytes);
        check(reads.overhang_from <= reads.overhang_to);
        check(reads.overhang_to <= from->overhang[i].len);
        if ((plan->reads >> i & 1) == 0)
            check((reads.body_to | reads.overhang_to | reads.body_from |
                   reads.overhang_from) == 0);
        memset(to->bodies[i], JUNK, to->row_bytes);
        memset(to->overhang[i].bytes, JUNK, to->overhang[i].len);
        memcpy(to->bodies[i] + reads.body_from, from->bodies[i] + reads.body_from,
               reads.body_to - reads.body_from);
        memcpy(to->overhang[i].bytes + reads.overhang_from,
               from->overhang[i].bytes + reads.overhang_from,
               reads.overhang_to - reads.overhang_from);
    }
}

/* Checks that a flipped bit of this byte shows. */
static void check_matters(struct block *b, uint32_t pattern, uint8_t *byte)
{
    *byte ^= 0x08;
    check(!block_decodes(b, pattern));
    *byte ^= 0x08;
}

static void check_reads_of(struct block *whole, struct block *cut, uint32_t pattern,
                           bool every_bin)
{
    size_t bin = codec_row_unit(whole->c) <= 64 ? 16 : codec_row_unit(whole->c) / 16;
    struct codec_plan plan;

    check(codec_plan(whole->c, pattern, 0, &plan) == 0);
    keep_what_is_read(&plan, whole, cut);
    check(block_decodes(cut, pattern)); /* nothing else is read */
    for (unsigned i = 0; i < codec_n(whole->c) && every_bin; i++) {
        struct codec_reads reads;

        codec_plan_reads(&plan, i, whole->row_bytes, &reads);
        for (size_t x = reads.body_from; x < reads.body_to; x += bin)
            check_matters(cut, pattern, cut->bodies[i] + x);
        for (size_t x = reads.overhang_from; x < reads.overhang_to; x += bin)
            check_matters(cut, pattern, cut->overhangs[i] + x);
    }
}

static void check_reads(const struct codec *c, const struct which *which)
{
    size_t row_bytes;

    for (unsigned l = 0; (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        struct block *whole = block_new(c, row_bytes, AT_END);
        struct block *cut = block_new(c, row_bytes, AT_END);
        bool every_bin = l > 0 && l < 5 && which->isa == codec_isa_default();

        block_encode(whole);
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p))
            check_reads_of(whole, cut, p, every_bin);
        block_free(cut);
        block_free(whole);
    }
}

static void test_a_plan_reads_what_it_says_and_all_of_it(void **state)
{
    (void)state;
    for_each_codec(check_reads);
}

/* ---- repair ---- */

static bool is_as_encoded(const struct block *made, const struct block *encoded,
                          unsigned i)
{
    return memcmp(made->bodies[i], encoded->bodies[i], made->row_bytes) == 0 &&
           memcmp(made->overhang[i].bytes, encoded->overhang[i].bytes,
                  made->overhang[i].len) == 0;
}

/* Makes `wanted` from `have`, with junk for the others, and checks that nothing else is
 * written. */
static void check_repair_of(const struct block *encoded, struct block *cut,
                            struct block *made, uint32_t have, uint32_t wanted)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    uint8_t *out_body[CODEC_N_MAX], *out_overhang[CODEC_N_MAX];
    struct codec_plan plan;

    check(codec_plan(encoded->c, have, wanted, &plan) == 0);
    keep_what_is_read(&plan, encoded, cut);
    for (unsigned i = 0; i < codec_n(encoded->c); i++) {
        bool is_wanted = (wanted >> i & 1) != 0;

        body[i] = plan.reads >> i & 1 ? cut->bodies[i] : NULL;
        overhang[i] = plan.reads >> i & 1 ? cut->overhangs[i] : NULL;
        out_body[i] = is_wanted ? made->bodies[i] : NULL;
        out_overhang[i] = is_wanted ? made->overhangs[i] : NULL;
        memset(made->bodies[i], JUNK, made->row_bytes);
        memset(made->overhang[i].bytes, JUNK, made->overhang[i].len);
    }
    codec_repair(&plan, body, overhang, encoded->row_bytes, out_body, out_overhang);
    for (unsigned i = 0; i < codec_n(encoded->c); i++) {
        if (wanted >> i & 1)
            check(is_as_encoded(made, encoded, i));
    }
}

/* Repairs each lost projection from each set of k, and random sets from random ones. */
static void check_repairs_of_length(const struct codec *c, size_t row_bytes,
                                    enum side side, bool every_one)
{
    struct block *encoded = block_new(c, row_bytes, AT_END);
    struct block *cut = block_new(c, row_bytes, side),
                 *made = block_new(c, row_bytes, side);
    uint64_t seed = row_bytes;

    block_encode(encoded);
    for (uint32_t p = pattern_next(c, 0); p != 0 && every_one; p = pattern_next(c, p)) {
        for (unsigned i = 0; i < codec_n(c); i++) {
            if ((p >> i & 1) == 0)
                check_repair_of(encoded, cut, made, p, 1u << i);
        }
    }
    for (unsigned try = 0; try < 60; try++) {
        uint32_t have = 0, wanted = 0;

        while ((unsigned)__builtin_popcount(have) < codec_k(c))
            have |= 1u << random_below(&seed, codec_n(c));
        while (wanted == 0)
            wanted = (uint32_t)random_below(&seed, 1u << codec_n(c));
        if (try % 4 == 0) /* copies: fewer than k are enough */
            wanted = have = have & wanted ? have & wanted : have;
        check_repair_of(encoded, cut, made, have, wanted);
    }
    block_free(made);
    block_free(cut);
    block_free(encoded);
}

static void check_repairs(const struct codec *c, const struct which *which)
{
    size_t row_bytes;

    for (unsigned l = 0; (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        bool every_one = l < 3 && !(which->isa == CODEC_ISA_REF && l == 0);

        check_repairs_of_length(c, row_bytes, l % 2 == 0 ? AT_END : AT_FRONT, every_one);
    }
}

static void test_repair_equals_encode(void **state)
{
    (void)state;
    for_each_codec(check_repairs);
}

static void check_some_repairs(const struct codec *c, const struct which *which)
{
    (void)which;
    for (unsigned l = 0; l < 3 && row_bytes_at(c, l, false) != 0; l++)
        check_repairs_of_length(c, row_bytes_at(c, l, false), AT_END, codec_n(c) < 8);
}

static void test_repair_of_other_k_and_n(void **state)
{
    (void)state;
    for_some_k_and_n(check_some_repairs);
}

/* The control: a bad bin in a source shows in the repaired projection. */
static void check_bad_source(const struct codec *c, const struct which *which)
{
    struct block *b = block_new(c, row_bytes_at(c, 0, false), AT_END);
    struct block *made = block_new(c, b->row_bytes, AT_END);
    uint32_t have = (1u << codec_k(c)) - 1;
    struct codec_plan plan;

    (void)which;
    block_encode(b);
    for (unsigned wanted = codec_k(c); wanted < codec_n(c); wanted++) {
        check(codec_plan(c, have, 1u << wanted, &plan) == 0);
        for (unsigned source = 0; source < codec_k(c); source++) {
            uint8_t *bad = b->bodies[source] + b->row_bytes / 2;

            *bad ^= 1;
            codec_repair(&plan, (const uint8_t *const *)b->bodies,
                         (const uint8_t *const *)b->overhangs, b->row_bytes, made->bodies,
                         made->overhangs);
            check(!is_as_encoded(made, b, wanted));
            *bad ^= 1;
        }
        codec_repair(&plan, (const uint8_t *const *)b->bodies,
                     (const uint8_t *const *)b->overhangs, b->row_bytes, made->bodies,
                     made->overhangs);
        check(is_as_encoded(made, b, wanted));
    }
    block_free(made);
    block_free(b);
}

static void test_a_flipped_bit_shows_in_what_is_repaired(void **state)
{
    (void)state;
    for_each_code(check_bad_source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plan_uses_the_first_k_or_is_refused),
        cmocka_unit_test(test_a_repair_plan_is_made_or_refused),
        cmocka_unit_test(test_a_plan_reads_what_it_says_and_all_of_it),
        cmocka_unit_test(test_repair_equals_encode),
        cmocka_unit_test(test_repair_of_other_k_and_n),
        cmocka_unit_test(test_a_flipped_bit_shows_in_what_is_repaired),
    };

    return cmocka_run_group_tests_name("codec.plan", tests, NULL, NULL);
}
