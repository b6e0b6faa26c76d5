/*
 * test_decode.c - any k of n projections give the block back, from exactly their declared
 * bytes.
 *
 * Goal:   every pattern, kind, layout, block size and instruction set, full and short
 *         blocks; lost projections are never read, and neither is memory outside the
 *         buffers.
 * Method: exhaustion; junk for lost projections; unreadable pages directly before the
 *         buffers, then directly behind them. Decoding is linear, so random bytes show a
 *         wrong map. Some controls must fail.
 */
#include "harness.h"

/* ---- every pattern ---- */

static void check_patterns(const struct codec *c, size_t row_bytes, enum side side)
{
    struct block *b = block_new(c, row_bytes, side);
    struct block *before = block_new(c, row_bytes, side);

    block_encode(b);
    block_encode(before);
    for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
        check(block_decodes(b, p));
        check(block_decodes_in_place(b, p));
    }
    for (unsigned i = 0; i < codec_n(c); i++) { /* the input is unchanged */
        check(memcmp(b->bodies[i], before->bodies[i], row_bytes) == 0);
        check(memcmp(b->overhang[i].bytes, before->overhang[i].bytes,
                     b->overhang[i].len) == 0);
    }
    block_free(before);
    block_free(b);
}

static void check_round_trip(const struct codec *c, const struct which *which)
{
    /* plain C is slow: some lengths are enough */
    bool all = !HARNESS_IS_SLOW && which->isa != CODEC_ISA_REF;
    size_t row_bytes;

    for (unsigned i = 0; (row_bytes = row_bytes_at(c, i, all)) != 0; i++) {
        if (i < 10)
            check_patterns(c, row_bytes, AT_FRONT);
        check_patterns(c, row_bytes, AT_END);
    }
}

static void test_any_k_projections_give_the_block_back(void **state)
{
    (void)state;
    for_each_codec(check_round_trip);
}

/* ---- random bins ---- */

/* Any bins are those of some block, since k projections have as many bytes as the rows.
 * So random bins decode to one answer, in every implementation. */
static void check_random_bins(const struct codec *c, const struct which *which)
{
    const struct codec *ref = codec_open_isa(which->kind, codec_k(c), codec_n(c),
                                             codec_block_bytes(c), CODEC_ISA_REF);
    struct codec_plan plan, plan_ref;
    size_t row_bytes;

    for (unsigned l = 0; l < 4 && (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        struct block *b = block_new(c, row_bytes, AT_END);

        for (unsigned i = 0; i < codec_n(c); i++) {
            fill_random(b->bodies[i], row_bytes, i + 1);
            fill_random(b->overhang[i].bytes, b->overhang[i].len, i + 100);
        }
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
            check(codec_plan(c, p, 0, &plan) == 0);
            check(codec_plan(ref, p, 0, &plan_ref) == 0);
            codec_decode(&plan, (const uint8_t *const *)b->bodies,
                         (const uint8_t *const *)b->overhangs, row_bytes, b->out.bytes);
            codec_decode(&plan_ref, (const uint8_t *const *)b->bodies,
                         (const uint8_t *const *)b->overhangs, row_bytes, b->data.bytes);
            check(memcmp(b->out.bytes, b->data.bytes, b->data_bytes) == 0);
        }
        block_free(b);
    }
}

static void test_instruction_sets_agree_on_any_bins(void **state)
{
    (void)state;
    for_each_codec(check_random_bins);
}

/* ---- controls that must fail ---- */

/* Some bins of shorter blocks have no pixel. */
enum { FIVE_UNITS = 4 };

/* Returns whether some pattern reads that byte, so that a flipped bit shows. */
static bool matters(struct block *b, unsigned i, uint8_t *byte)
{
    bool shows = false;

    *byte ^= 0x10;
    for (uint32_t p = pattern_next(b->c, 0); p != 0 && !shows; p = pattern_next(b->c, p))
        shows = (p >> i & 1) != 0 && !block_decodes(b, p);
    *byte ^= 0x10;
    return shows;
}

static void check_no_bin_is_idle(const struct codec *c, const struct which *which)
{
    size_t bin = which->kind == CODEC_MOJETTE_NONSYSTEMATIC ? 16 : 8;
    size_t row_bytes;

    for (unsigned l = 0; (row_bytes = row_bytes_at(c, l, false)) != 0;
         l += l == 0 ? FIVE_UNITS : 1) {
        struct block *b = block_new(c, row_bytes, AT_END);

        block_encode(b);
        for (unsigned i = 0; i < codec_n(c); i++) {
            for (size_t x = 3; x < b->row_bytes; x += bin)
                check(matters(b, i, b->bodies[i] + x));
            for (size_t x = 3; x < b->overhang[i].len; x += bin)
                check(matters(b, i, b->overhangs[i] + x));
        }
        block_free(b);
    }
}

/* This also proves that no more bytes can be trimmed. */
static void test_a_flipped_bit_of_any_bin_spoils_some_read(void **state)
{
    (void)state;
    for_each_code(check_no_bin_is_idle);
}

static void swap(uint8_t **a, uint8_t **b)
{
    uint8_t *old = *a;

    *a = *b;
    *b = old;
}

static void check_swapped(const struct codec *c, const struct which *which)
{
    struct block *b = block_new(c, row_bytes_at(c, 0, false), AT_END);

    (void)which;
    block_encode(b);
    for (unsigned i = 0; i < codec_n(c); i++) {
        for (unsigned j = i + 1; j < codec_n(c); j++) {
            uint32_t both = 1u << i | 1u << j;

            swap(&b->bodies[i], &b->bodies[j]);
            for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p))
                check((p & both) != both || !block_decodes(b, p));
            swap(&b->bodies[i], &b->bodies[j]);
        }
    }
    block_free(b);
}

/* Two projections are swapped, that is, their slopes or coefficients are. */
static void test_swapped_projections_give_another_block(void **state)
{
    (void)state;
    for_each_code(check_swapped);
}

/* ---- addresses and runs ---- */

static void check_odd_addresses(const struct codec *c, const struct which *which)
{
    static uint8_t out[CODEC_DATA_MAX + 64];
    static uint8_t bodies[CODEC_N_MAX][CODEC_BLOCK_MAX + 64],
        overhangs[CODEC_N_MAX][CODEC_OVERHANG_MAX + 64];
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    (void)which;
    for (unsigned l = 0; l < 3 && row_bytes_at(c, l, false) != 0; l++) {
        struct block *b = block_new(c, row_bytes_at(c, l, false), AT_END);

        block_encode(b);
        for (unsigned i = 0; i < codec_n(c); i++) {
            body[i] = memcpy(bodies[i] + 1 + i * 3, b->bodies[i], b->row_bytes);
            overhang[i] =
                memcpy(overhangs[i] + 3 + i, b->overhang[i].bytes, b->overhang[i].len);
        }
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
            check(codec_plan(c, p, 0, &plan) == 0);
            memset(out, JUNK, sizeof(out));
            codec_decode(&plan, body, overhang, b->row_bytes, out + 7);
            check(memcmp(out + 7, b->data.bytes, b->data_bytes) == 0);
        }
        block_free(b);
    }
}

static void test_any_alignment_will_do(void **state)
{
    (void)state;
    for_each_codec(check_odd_addresses);
}

enum { RUN_BLOCKS = 5, RUN_BYTES = RUN_BLOCKS * (CODEC_DATA_MAX + 256) };

/* A run of five blocks with gaps between all buffers. */
struct run {
    struct codec_run shape;
    uint8_t data[RUN_BYTES]; /* decoded data, with gaps of junk */
    uint8_t out[RUN_BYTES];
    uint8_t bodies[CODEC_N_MAX][RUN_BYTES], overhangs[CODEC_N_MAX][RUN_BYTES];
};

static struct run the_run;

static void run_fill(const struct codec *c, size_t row_bytes, struct run *r)
{
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];

    memset(r, JUNK, sizeof(*r));
    r->shape = (struct codec_run){
        RUN_BLOCKS, row_bytes, row_bytes * codec_k(c) + 48, row_bytes + 80, { 0 }
    };
    for (unsigned i = 0; i < codec_n(c); i++) {
        r->shape.overhang_stride[i] = codec_overhang_bytes(c, i) + 16 * i;
        body[i] = r->bodies[i];
        overhang[i] = r->overhangs[i];
    }
    for (unsigned at = 0; at < RUN_BLOCKS; at++)
        fill_random(r->data + at * r->shape.data_stride, row_bytes * codec_k(c), at + 1);
    codec_encode_run(c, &r->shape, r->data, body, overhang);
}

/* Decodes with rows in place: all rows of the pattern, every other one, or none. */
static void check_run_pattern(const struct codec *c, struct run *r, uint32_t pattern,
                              uint32_t in_place)
{
    const uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    size_t row_bytes = r->shape.row_bytes;
    struct codec_plan plan;

    check(codec_plan(c, pattern, 0, &plan) == 0);
    memset(r->out, JUNK, sizeof(r->out));
    for (unsigned i = 0; i < codec_n(c); i++) {
        if ((pattern >> i & 1) == 0)
            continue;
        body[i] = r->bodies[i];
        overhang[i] = r->overhangs[i];
        if (i >= codec_k(c) || !codec_is_systematic(c) || (in_place >> i & 1) == 0)
            continue;
        body[i] = r->out + i * row_bytes;
        for (unsigned at = 0; at < RUN_BLOCKS; at++)
            memcpy(r->out + at * r->shape.data_stride + i * row_bytes,
                   r->bodies[i] + at * r->shape.body_stride, row_bytes);
    }
    codec_decode_run(&plan, &r->shape, body, overhang, r->out);
    check(memcmp(r->out, r->data, RUN_BLOCKS * r->shape.data_stride) == 0);
}

static void check_runs(const struct codec *c, const struct which *which)
{
    (void)which;
    for (unsigned l = 0; l < (HARNESS_IS_SLOW ? 2 : 3) && row_bytes_at(c, l, false) != 0;
         l++) {
        run_fill(c, row_bytes_at(c, l, false), &the_run);
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
            check_run_pattern(c, &the_run, p,
                              p % 3 == 0   ? 0xffffff
                              : p % 3 == 1 ? 0x555555
                                           : 0);
        }
    }
}

static void test_a_run_equals_single_calls(void **state)
{
    (void)state;
    for_each_codec(check_runs);
}

/* ---- codes that are no layout ---- */

static void check_some_k_and_n(const struct codec *c, const struct which *which)
{
    (void)which;
    for (unsigned l = 0; l < 4 && row_bytes_at(c, l, false) != 0; l++) {
        struct block *b =
            block_new(c, row_bytes_at(c, l, false), l % 2 == 0 ? AT_FRONT : AT_END);
        uint64_t seed = l + 1;
        uint32_t p = pattern_next(c, 0);

        block_encode(b);
        while (p != 0) {
            check(block_decodes(b, p));
            for (size_t skip = random_below(&seed, codec_n(c) > 12 ? 300 : 9) + 1;
                 skip > 0 && p != 0; skip--)
                p = pattern_next(c, p);
        }
        block_free(b);
    }
}

static void test_other_k_and_n_give_the_block_back(void **state)
{
    (void)state;
    for_some_k_and_n(check_some_k_and_n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_k_projections_give_the_block_back),
        cmocka_unit_test(test_instruction_sets_agree_on_any_bins),
        cmocka_unit_test(test_a_flipped_bit_of_any_bin_spoils_some_read),
        cmocka_unit_test(test_swapped_projections_give_another_block),
        cmocka_unit_test(test_any_alignment_will_do),
        cmocka_unit_test(test_a_run_equals_single_calls),
        cmocka_unit_test(test_other_k_and_n_give_the_block_back),
    };

    return cmocka_run_group_tests_name("codec.decode", tests, NULL, NULL);
}
