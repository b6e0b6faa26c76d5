/*
 * test_encode.c - codec_encode(), codec_encode_run() and codec_update() make exactly the
 * projections that docs/CODEC.md defines, in exactly the declared bytes.
 *
 * Goal:   for every kind, layout, block size and instruction set, the linear map is the
 *         defined one.
 * Method: blocks with one bit set show the complete map; random blocks of all lengths
 *         show that it is applied linearly; buffers stand between unreadable pages.
 */
#include "definition.h"
#include "harness.h"

enum {
    RANDOM_UPDATES = HARNESS_IS_SLOW ? 12 : 40,
    RUN_BLOCKS = 5
}; /* more than fits into L1 by the estimate of codec.c */

/* Calls that may have functions of their own. */
enum form { WHOLE, CODED_ONLY, RUN_OF_CODED, N_FORMS };

static uint32_t wanted_of(const struct codec *c, enum form form)
{
    uint32_t rows = codec_is_systematic(c) ? (1u << codec_k(c)) - 1 : 0;

    return ((1u << codec_n(c)) - 1) & ~(form == WHOLE ? 0 : rows);
}

/* Encodes in this form: one block, or all of a run. */
static void encode_in_form(const struct block *b, enum form form)
{
    uint32_t wanted = wanted_of(b->c, form);
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_run run = blocks_run(b);

    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = (wanted >> i & 1) != 0 ? b->bodies[i] : NULL;
        overhang[i] = (wanted >> i & 1) != 0 ? b->overhangs[i] : NULL;
    }
    if (form == RUN_OF_CODED)
        codec_encode_run(b->c, &run, b->data.bytes, body, overhang);
    else
        codec_encode(b->c, b->data.bytes, b->row_bytes, body, overhang);
}

static uint8_t zeros[CODEC_BLOCK_MAX + CODEC_OVERHANG_MAX];

/* ---- random blocks ---- */

static void check_random(const struct codec *c, const struct which *which,
                         size_t row_bytes, enum side side, enum form form)
{
    static uint8_t bins[CODEC_BLOCK_MAX + CODEC_OVERHANG_MAX];
    struct block *b =
        blocks_new(c, row_bytes, side, form == RUN_OF_CODED ? RUN_BLOCKS : 1);

    encode_in_form(b, form);
    for (unsigned at = 0; at < b->n_blocks * codec_n(c); at++) {
        unsigned i = at % codec_n(c), block = at / codec_n(c);
        size_t overhang_bytes = codec_overhang_bytes(c, i);

        if ((wanted_of(c, form) >> i & 1) == 0)
            continue;
        definition_encode(c, which, i, b->data.bytes + block * b->data_bytes, row_bytes,
                          bins);
        check(memcmp(b->bodies[i] + block * row_bytes, bins, row_bytes) == 0);
        check(memcmp(b->overhang[i].bytes + block * overhang_bytes, bins + row_bytes,
                     overhang_bytes) == 0);
    }
    block_free(b);
}

static void check_all_lengths(const struct codec *c, const struct which *which)
{
    size_t row_bytes;

    for (unsigned i = 0; (row_bytes = row_bytes_at(c, i, !HARNESS_IS_SLOW)) != 0; i++) {
        for (unsigned form = 0; form < (i < 3 ? N_FORMS : 1); form++) {
            check_random(c, which, row_bytes, AT_FRONT, form);
            check_random(c, which, row_bytes, AT_END, form);
        }
    }
}

static void test_encode_equals_the_definition(void **state)
{
    (void)state;
    for_each_codec(check_all_lengths);
}

/* ---- single bits ---- */

/* Checks that the projections are those of a block that is zero but for one byte, and
 * zeroes them. */
static void check_terms(const struct block *b, unsigned block, uint32_t wanted,
                        const struct which *which, size_t at, uint8_t value)
{
    struct term terms[TERMS_MAX];

    for (; wanted != 0; wanted &= wanted - 1) {
        unsigned i = (unsigned)__builtin_ctz(wanted);
        unsigned n =
            definition_terms(b->c, which, i, b->row_bytes, (unsigned)(at / b->row_bytes),
                             at % b->row_bytes, value, terms);
        size_t overhang_bytes = codec_overhang_bytes(b->c, i);
        uint8_t *body = b->bodies[i] + block * b->row_bytes;
        uint8_t *overhang = b->overhang[i].bytes + block * overhang_bytes;

        for (unsigned t = 0; t < n; t++) { /* subtract the terms: zeros must be left */
            if (terms[t].at < b->row_bytes)
                body[terms[t].at] ^= terms[t].value;
            else
                overhang[terms[t].at - b->row_bytes] ^= terms[t].value;
        }
        check(memcmp(body, zeros, b->row_bytes) == 0);
        check(memcmp(overhang, zeros, overhang_bytes) == 0);
    }
}

/* Tries one bit of each byte, every `step` bytes; step 0: all bits of all bytes. */
static void check_bits(const struct codec *c, const struct which *which, size_t row_bytes,
                       enum form form, size_t step)
{
    struct block *b =
        blocks_new(c, row_bytes, AT_END, form == RUN_OF_CODED ? RUN_BLOCKS : 1);
    size_t n = step == 0 ? b->data_bytes * 8 : b->data_bytes / step;
    size_t at[RUN_BLOCKS];
    uint8_t value[RUN_BLOCKS];

    memset(b->data.bytes, 0, b->n_blocks * b->data_bytes);
    for (size_t first = 0; first < n; first += b->n_blocks) {
        for (size_t block = 0; block < b->n_blocks; block++) {
            size_t x = (first + block) % n; /* the last bytes may be tried twice */

            at[block] = step == 0 ? x / 8 : x * step;
            value[block] = (uint8_t)(1u << (step == 0 ? x : at[block] * 5 + x / 64) % 8);
            b->data.bytes[block * b->data_bytes + at[block]] = value[block];
        }
        encode_in_form(b, form);
        for (unsigned block = 0; block < b->n_blocks; block++) {
            check_terms(b, block, wanted_of(c, form), which, at[block], value[block]);
            b->data.bytes[block * b->data_bytes + at[block]] = 0;
        }
    }
    block_free(b);
}

static void check_single_bits(const struct codec *c, const struct which *which)
{
    size_t step = which->isa == CODEC_ISA_REF && HARNESS_STEP < 7 ? 7 : HARNESS_STEP;
    size_t row_bytes;

    for (unsigned i = 0; (row_bytes = row_bytes_at(c, i, false)) != 0; i++)
        check_bits(c, which, row_bytes, WHOLE, i != 1 ? step : HARNESS_IS_SLOW ? 1 : 0);
    check_bits(c, which, row_bytes_at(c, 0, false), CODED_ONLY, step);
    check_bits(c, which, row_bytes_at(c, 0, false), RUN_OF_CODED, step);
}

/* Single bits are the basis of all blocks: with linearity this checks the encoding of
 * every block. */
static void test_single_bits_go_where_the_definition_says(void **state)
{
    (void)state;
    for_each_codec(check_single_bits);
}

/* The control: the test above fails if two projections are swapped. */
static void check_other_code(const struct codec *c, const struct which *which)
{
    static uint8_t bins[CODEC_BLOCK_MAX + CODEC_OVERHANG_MAX];
    struct block *b = block_new(c, row_bytes_at(c, 0, false), AT_END);

    block_encode(b);
    for (unsigned i = 0; i < codec_n(c); i++) {
        for (unsigned other = 0; other < codec_n(c); other++) {
            definition_encode(c, which, other, b->data.bytes, b->row_bytes, bins);
            check((memcmp(b->bodies[i], bins, b->row_bytes) == 0) == (i == other));
        }
    }
    block_free(b);
}

static void test_no_two_projections_are_alike(void **state)
{
    (void)state;
    for_each_code(check_other_code);
}

/* ---- bytes that are written ---- */

/* Checks that a set of projections is written, and nothing else. */
static void check_wanted(const struct codec *c, const struct which *which)
{
    struct block *b = block_new(c, row_bytes_at(c, 0, false), AT_END);
    struct block *all = block_new(c, b->row_bytes, AT_FRONT);
    static uint8_t junk[CODEC_BLOCK_MAX];
    uint64_t seed = 77;

    (void)which;
    memset(junk, JUNK, sizeof(junk));
    block_encode(all);
    for (unsigned try = 0; try < (HARNESS_IS_SLOW ? 30 : 100); try++) {
        uint32_t wanted = try < codec_n(c) ? 1u <<
        try:
            (uint32_t) random_below(&seed, 1u << codec_n(c));
        uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];

        for (unsigned i = 0; i < codec_n(c); i++) {
            memset(b->bodies[i], JUNK, b->row_bytes);
            memset(b->overhang[i].bytes, JUNK, b->overhang[i].len);
            body[i] = (wanted >> i & 1) != 0 ? b->bodies[i] : NULL;
            overhang[i] = (wanted >> i & 1) != 0 ? b->overhangs[i] : NULL;
        }
        codec_encode(c, b->data.bytes, b->row_bytes, body, overhang);
        for (unsigned i = 0; i < codec_n(c); i++) {
            bool is_wanted = (wanted >> i & 1) != 0;

            check(memcmp(b->bodies[i], is_wanted ? all->bodies[i] : junk, b->row_bytes) ==
                  0);
            check(memcmp(b->overhang[i].bytes, is_wanted ? all->overhang[i].bytes : junk,
                         b->overhang[i].len) == 0);
        }
    }
    block_free(all);
    block_free(b);
}

static void test_encode_writes_what_is_wanted_only(void **state)
{
    (void)state;
    for_each_codec(check_wanted);
    for_some_k_and_n(check_wanted);
}

static void check_odd_addresses(const struct codec *c, const struct which *which)
{
    static uint8_t data[CODEC_DATA_MAX + 64];
    static uint8_t bodies[CODEC_N_MAX][CODEC_BLOCK_MAX + 64],
        overhangs[CODEC_N_MAX][CODEC_OVERHANG_MAX + 64];
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    size_t row_bytes;

    (void)which;
    for (unsigned i = 0; i < codec_n(c); i++) {
        body[i] = bodies[i] + 1 + i * 3;
        overhang[i] = overhangs[i] + 3 + i;
    }
    for (unsigned l = 0; (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        struct block *b = block_new(c, row_bytes, AT_END);

        block_encode(b);
        memcpy(data + 5, b->data.bytes, b->data_bytes);
        codec_encode(c, data + 5, row_bytes, body, overhang);
        for (unsigned i = 0; i < codec_n(c); i++) {
            check(memcmp(body[i], b->bodies[i], row_bytes) == 0);
            check(memcmp(overhang[i], b->overhang[i].bytes, b->overhang[i].len) == 0);
        }
        block_free(b);
    }
}

static void test_any_alignment_will_do(void **state)
{
    (void)state;
    for_each_codec(check_odd_addresses);
}

/* ---- runs ---- */

enum { RUN_BYTES = RUN_BLOCKS * (CODEC_DATA_MAX + 256) };

/* Checks a run of five blocks with gaps: the same bytes as from single calls, and
 * untouched gaps. */
static void check_run(const struct codec *c, size_t row_bytes, uint32_t wanted)
{
    static uint8_t data[RUN_BYTES], bodies[CODEC_N_MAX][RUN_BYTES],
        overhangs[CODEC_N_MAX][RUN_BYTES];
    static uint8_t want_body[RUN_BYTES], want_overhang[RUN_BYTES];
    uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    struct codec_run run = {
        RUN_BLOCKS, row_bytes, row_bytes * codec_k(c) + 48, row_bytes + 80, { 0 }
    };
    struct block *b = block_new(c, row_bytes, AT_END);
    size_t whole = RUN_BLOCKS * run.data_stride;

    fill_random(data, whole, row_bytes);
    for (unsigned i = 0; i < codec_n(c); i++) {
        run.overhang_stride[i] = codec_overhang_bytes(c, i) + 16 * i;
        if ((wanted >> i & 1) == 0)
            continue;
        body[i] = bodies[i];
        overhang[i] = codec_overhang_bytes(c, i) != 0 ? overhangs[i] : NULL;
        memset(bodies[i], JUNK, whole);
        memset(overhangs[i], JUNK, whole);
    }
    codec_encode_run(c, &run, data, body, overhang);
    for (unsigned i = 0; i < codec_n(c); i++) {
        if ((wanted >> i & 1) == 0)
            continue;
        memset(want_body, JUNK, whole);
        memset(want_overhang, JUNK, whole);
        for (unsigned at = 0; at < RUN_BLOCKS; at++) {
            memcpy(b->data.bytes, data + at * run.data_stride, b->data_bytes);
            block_encode(b);
            memcpy(want_body + at * run.body_stride, b->bodies[i], row_bytes);
            memcpy(want_overhang + at * run.overhang_stride[i], b->overhang[i].bytes,
                   b->overhang[i].len);
        }
        check(memcmp(bodies[i], want_body, whole) == 0);
        check(memcmp(overhangs[i], want_overhang, whole) == 0);
    }
    block_free(b);
}

static void check_runs(const struct codec *c, const struct which *which)
{
    uint32_t all = (1u << codec_n(c)) - 1, rows = (1u << codec_k(c)) - 1;
    size_t row_bytes;

    (void)which;
    for (unsigned l = 0; l < 3 && (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        check_run(c, row_bytes, all);
        check_run(c, row_bytes, all & ~rows);
        check_run(c, row_bytes, 2);
    }
}

static void test_a_run_equals_single_calls(void **state)
{
    (void)state;
    for_each_codec(check_runs);
}

/* ---- update ---- */

/* Changes a range of a row, and with it the projections in `wanted`: they must be those
 * of the new block. */
static void check_update(struct block *b, struct block *again, unsigned row, size_t from,
                         size_t len, uint32_t wanted, uint64_t seed)
{
    /* the delta ends at the unreadable page */
    uint8_t *delta = b->out.bytes + b->data_bytes - len;
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];

    block_encode(b);
    fill_random(delta, len, seed);
    memcpy(again->data.bytes, b->data.bytes, b->data_bytes);
    for (size_t x = 0; x < len; x++)
        again->data.bytes[row * b->row_bytes + from + x] ^= delta[x];
    block_encode(again);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = (wanted >> i & 1) != 0 ? b->bodies[i] : NULL;
        overhang[i] = (wanted >> i & 1) != 0 ? b->overhangs[i] : NULL;
    }
    codec_update(b->c, row, from, len, delta, b->row_bytes, body, overhang);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        if ((wanted >> i & 1) == 0)
            continue;
        check(memcmp(b->bodies[i], again->bodies[i], b->row_bytes) == 0);
        check(memcmp(b->overhang[i].bytes, again->overhang[i].bytes,
                     b->overhang[i].len) == 0);
    }
    memcpy(b->data.bytes, again->data.bytes, b->data_bytes);
}

static void check_updates(const struct codec *c, const struct which *which)
{
    uint32_t all = (1u << codec_n(c)) - 1;
    uint64_t seed = which->kind * 1000 + codec_n(c);
    size_t row_bytes;

    for (unsigned l = 0; (row_bytes = row_bytes_at(c, l, false)) != 0; l++) {
        struct block *b = block_new(c, row_bytes, l % 2 != 0 ? AT_FRONT : AT_END);
        struct block *again = block_new(c, row_bytes, AT_END);

        check_update(b, again, 0, 0, row_bytes, all, 1);
        check_update(b, again, codec_k(c) - 1, row_bytes - 1, 1, all, 2);
        check_update(b, again, codec_k(c) - 1, row_bytes, 0, all, 3);
        for (unsigned try = 0; try < RANDOM_UPDATES; try++) {
            unsigned row = (unsigned)random_below(&seed, codec_k(c));
            size_t from = random_below(&seed, row_bytes);
            size_t len = random_below(&seed, row_bytes - from) + 1;

            check_update(b, again, row, from, try % 4 == 0 ? (len & 15) : len,
                         try % 3 == 0 ? (uint32_t)random_below(&seed, all) : all, seed);
        }
        block_free(again);
        block_free(b);
    }
}

static void test_update_equals_encoding_again(void **state)
{
    (void)state;
    for_each_codec(check_updates);
    for_some_k_and_n(check_updates);
}

/* Updates projections of zeros with each byte alone: this shows the map again. */
static void check_update_bytes(const struct codec *c, const struct which *which)
{
    for (unsigned l = 1; l < 4 && row_bytes_at(c, l, false) != 0; l++) {
        struct block *b = block_new(c, row_bytes_at(c, l, false), AT_END);

        for (unsigned i = 0; i < codec_n(c); i++) {
            memset(b->bodies[i], 0, b->row_bytes);
            memset(b->overhang[i].bytes, 0, b->overhang[i].len);
        }
        for (size_t at = 0; at < b->data_bytes; at++) {
            uint8_t value = (uint8_t)(1u << (at * 5 + at / 64) % 8);

            codec_update(c, (unsigned)(at / b->row_bytes), at % b->row_bytes, 1, &value,
                         b->row_bytes, b->bodies, b->overhangs);
            check_terms(b, 0, wanted_of(c, WHOLE), which, at, value);
        }
        block_free(b);
    }
}

static void test_update_of_a_byte_goes_where_the_definition_says(void **state)
{
    (void)state;
    for_each_codec(check_update_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_equals_the_definition),
        cmocka_unit_test(test_single_bits_go_where_the_definition_says),
        cmocka_unit_test(test_no_two_projections_are_alike),
        cmocka_unit_test(test_encode_writes_what_is_wanted_only),
        cmocka_unit_test(test_any_alignment_will_do),
        cmocka_unit_test(test_a_run_equals_single_calls),
        cmocka_unit_test(test_update_equals_encoding_again),
        cmocka_unit_test(test_update_of_a_byte_goes_where_the_definition_says),
    };

    return cmocka_run_group_tests_name("codec.encode", tests, NULL, NULL);
}
