/*
 * fuzz_codec.c - the codecs with arguments that their contract allows or must refuse.
 *
 * Goal: codec_open_isa() and codec_plan() refuse exactly the illegal arguments; any k
 * projections give the block back; update, repair and runs give the same bytes as encode;
 * no byte beside a buffer changes. The loops in plain C are the reference for the others.
 * Input: a codec (kind, k, n, block bytes, instruction set: first used as they are, then
 * made legal), a length, a seed for the bytes, then operations.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "codec/codec.h"
#include "tests/fuzz/fuzz.h"

enum {
    OPS_MAX = 16,
    BLOCKS_MAX = 5, /* blocks of a run; some loops are for long runs only */
    GAP_MAX = 64,   /* bytes between the blocks of a run */
    MARGIN = 64,    /* bytes of canaries on both sides of a buffer */
    JUNK = 0xA7,
    BUFFER_BYTES = BLOCKS_MAX * (CODEC_DATA_MAX + GAP_MAX) + 3 * MARGIN,
};

struct input {
    const uint8_t *data;
    size_t size;
};

/* Returns the next bytes as a number; zeros after the end. */
static uint32_t take(struct input *in, unsigned n_bytes)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < n_bytes; i++) {
        value = value << 8 | (in->size > 0 ? *in->data : 0);
        in->data += in->size > 0;
        in->size -= in->size > 0;
    }
    return value;
}

/* ---- buffers with canaries ---- */

struct buffer {
    uint8_t room[BUFFER_BYTES];
    uint8_t *bytes;
    size_t len;
};

/* Returns room for len bytes, full of junk, at any alignment. */
static uint8_t *buffer_place(struct buffer *b, size_t len, unsigned alignment)
{
    b->bytes = b->room + MARGIN + alignment % MARGIN;
    b->len = len;
    assert(b->bytes + len + MARGIN <= b->room + sizeof(b->room));
    memset(b->bytes - MARGIN, ~JUNK, MARGIN);
    memset(b->bytes, JUNK, len);
    memset(b->bytes + len, ~JUNK, MARGIN);
    return b->bytes;
}

static void buffer_check(const struct buffer *b)
{
    for (int i = 0; i < MARGIN; i++) {
        assert(b->bytes[i - MARGIN] == (uint8_t)~JUNK);
        assert(b->bytes[b->len + (size_t)i] == (uint8_t)~JUNK);
    }
}

static void fill(uint8_t *bytes, size_t len, uint32_t seed)
{
    uint64_t x = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;

    for (size_t i = 0; i < len; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (uint8_t)(x >> 24);
    }
}

/* ---- a block and its projections ---- */

struct projections {
    struct buffer bodies[CODEC_N_MAX], overhangs[CODEC_N_MAX];
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
};

/* The current block and its projections. */
struct world {
    const struct codec *c;
    const struct codec *judge; /* reference: the same code in plain C */
    unsigned k, n;
    size_t row_bytes;
    struct buffer data, out;
    struct projections now;  /* updated by the operations */
    struct projections made; /* result of the current operation */
};

static struct world the_world;

/* Places n_blocks blocks with gaps for the
 * projections in `wanted`; NULL for the others. */
static void projections_place(const struct world *w, struct projections *p,
                              const struct codec_run *run, uint32_t wanted,
                              unsigned alignment)
{
    for (unsigned i = 0; i < w->n; i++) {
        size_t overhang_bytes = codec_overhang_bytes(w->c, i);

        p->body[i] = p->overhang[i] = NULL;
        p->bodies[i].bytes = p->overhangs[i].bytes = NULL;
        if ((wanted >> i & 1) == 0)
            continue;
        p->body[i] = buffer_place(&p->bodies[i], run->n_blocks * run->body_stride,
                                  alignment * (i + 1));
        if (overhang_bytes != 0)
            p->overhang[i] = buffer_place(
                &p->overhangs[i], run->n_blocks * run->overhang_stride[i], alignment + i);
    }
}

static void projections_check(const struct world *w, const struct projections *p)
{
    for (unsigned i = 0; i < w->n; i++) {
        if (p->bodies[i].bytes != NULL)
            buffer_check(&p->bodies[i]);
        if (p->overhangs[i].bytes != NULL)
            buffer_check(&p->overhangs[i]);
    }
}

/* Returns a run of one block without gaps. */
static struct codec_run single(const struct world *w)
{
    struct codec_run run = { 1, w->row_bytes, w->row_bytes * w->k, w->row_bytes, { 0 } };

    for (unsigned i = 0; i < w->n; i++)
        run.overhang_stride[i] = codec_overhang_bytes(w->c, i);
    return run;
}

static bool projection_equals(const struct world *w, unsigned i, const uint8_t *body,
                              const uint8_t *overhang, const struct projections *p)
{
    size_t overhang_bytes = codec_overhang_bytes(w->c, i);

    return memcmp(body, p->body[i], w->row_bytes) == 0 &&
           (overhang_bytes == 0 || memcmp(overhang, p->overhang[i], overhang_bytes) == 0);
}

/* ---- opening ---- */

static bool is_legal(uint32_t kind, uint32_t k, uint32_t n, uint32_t block_bytes,
                     uint32_t isa)
{
    return codec_kind_name(kind) != NULL && k >= 1 && k <= CODEC_K_MAX && n > k &&
           n - k <= CODEC_M_MAX && (block_bytes == 4096 || block_bytes == 8192) &&
           isa < CODEC_ISA_COUNT && codec_isa_usable(isa);
}

/* Opens the codec with the input's arguments; if
 * they are refused, with legal ones near them. */
static void world_open(struct world *w, struct input *in)
{
    static const uint16_t sizes[] = { 4096, 8192 };
    uint32_t kind = take(in, 1), k = take(in, 1), n = take(in, 1);
    uint32_t block_bytes = take(in, 2), isa = take(in, 1), n_kinds = 0;

    errno = 0;
    w->c = codec_open_isa(kind, k, n, block_bytes, isa);
    assert((w->c != NULL) == is_legal(kind, k, n, block_bytes, isa));
    assert(w->c != NULL || errno == EINVAL);
    while (codec_kind_at(n_kinds) != 0)
        n_kinds++;
    if (w->c == NULL) {
        kind = codec_kind_at(kind % n_kinds);
        w->k = k % CODEC_K_MAX + 1;
        w->n = w->k + n % CODEC_M_MAX + 1;
        block_bytes = sizes[block_bytes % 2];
        isa %= CODEC_ISA_COUNT;
        w->c = codec_open_isa(kind, w->k, w->n, block_bytes,
                              codec_isa_usable(isa) ? isa : CODEC_ISA_REF);
    }
    assert(w->c != NULL && codec_block_bytes(w->c) == block_bytes);
    w->k = codec_k(w->c);
    w->n = codec_n(w->c);
    w->judge = codec_open_isa(kind, w->k, w->n, block_bytes, CODEC_ISA_REF);
}

static void world_fill(struct world *w, struct input *in)
{
    unsigned alignment = take(in, 1);
    struct codec_run run = single(w);
    uint32_t all = (1u << w->n) - 1;

    fill(buffer_place(&w->data, w->row_bytes * w->k, alignment), w->row_bytes * w->k,
         take(in, 3));
    projections_place(w, &w->now, &run, all, alignment / 3);
    codec_encode(w->judge, w->data.bytes, w->row_bytes, w->now.body, w->now.overhang);
    projections_check(w, &w->now);
}

/* ---- operations ---- */

/* Encodes any set of projections: equal to the reference, and no other byte changes. */
static void op_encode(struct world *w, struct input *in)
{
    uint32_t wanted = take(in, 3) & ((1u << w->n) - 1);
    struct codec_run run = single(w);

    projections_place(w, &w->made, &run, wanted, take(in, 1));
    codec_encode(w->c, w->data.bytes, w->row_bytes, w->made.body, w->made.overhang);
    projections_check(w, &w->made);
    for (unsigned i = 0; i < w->n; i++) {
        if (wanted >> i & 1)
            assert(
                projection_equals(w, i, w->made.body[i], w->made.overhang[i], &w->now));
    }
}

/* Plans, and checks that a plan is made if and only if one exists. */
static bool plan_make(const struct world *w, uint32_t present, uint32_t wanted,
                      struct codec_plan *plan)
{
    uint32_t all = (1u << w->n) - 1;
    bool is_there = wanted != 0 && (wanted & ~(present & all)) == 0;
    bool is_enough = (unsigned)__builtin_popcount(present & all) >= w->k;
    bool can = (wanted & ~all) == 0 && (is_there || is_enough);
    int rc = codec_plan(w->c, present, wanted, plan);

    assert(rc == (can ? 0 : -EINVAL));
    if (!can)
        return false;
    assert(plan->codec == w->c && plan->wanted == wanted);
    assert((plan->reads & ~(present & all)) == 0 && plan->reads != 0);
    return true;
}

/* Copies the ranges that the plan reads; junk
 * around them, NULL for unread projections. */
static void sources_make(struct world *w, const struct codec_plan *plan,
                         struct projections *p, unsigned alignment)
{
    struct codec_run run = single(w);

    projections_place(w, p, &run, plan->reads, alignment);
    for (unsigned i = 0; i < w->n; i++) {
        struct codec_reads r;

        codec_plan_reads(plan, i, w->row_bytes, &r);
        assert(r.body_from <= r.body_to && r.body_to <= w->row_bytes);
        assert(r.overhang_from <= r.overhang_to);
        assert(r.overhang_to <= codec_overhang_bytes(w->c, i));
        assert((plan->reads >> i & 1) != 0 || (r.body_to == 0 && r.overhang_to == 0));
        if (r.body_from < r.body_to)
            memcpy(p->body[i] + r.body_from, w->now.body[i] + r.body_from,
                   r.body_to - r.body_from);
        if (r.overhang_from < r.overhang_to)
            memcpy(p->overhang[i] + r.overhang_from, w->now.overhang[i] + r.overhang_from,
                   r.overhang_to - r.overhang_from);
    }
}

static void op_decode(struct world *w, struct input *in)
{
    uint32_t present = take(in, 4), in_place = take(in, 2);
    unsigned alignment = take(in, 1);
    const uint8_t *body[CODEC_N_MAX];
    struct codec_plan plan;

    if (!plan_make(w, present, 0, &plan))
        return;
    assert((unsigned)__builtin_popcount(plan.reads) == w->k);
    sources_make(w, &plan, &w->made, alignment);
    buffer_place(&w->out, w->row_bytes * w->k, alignment * 7);
    for (unsigned i = 0; i < w->n; i++) {
        body[i] = w->made.body[i];
        if (i >= w->k || !codec_is_systematic(w->c) || (plan.reads >> i & 1) == 0 ||
            (in_place >> i & 1) == 0)
            continue;
        body[i] = w->out.bytes + i * w->row_bytes;
        memcpy(w->out.bytes + i * w->row_bytes, w->made.body[i], w->row_bytes);
    }
    codec_decode(&plan, body, (const uint8_t *const *)w->made.overhang, w->row_bytes,
                 w->out.bytes);
    buffer_check(&w->out);
    projections_check(w, &w->made);
    assert(memcmp(w->out.bytes, w->data.bytes, w->row_bytes * w->k) == 0);
}

static void op_repair(struct world *w, struct input *in)
{
    static struct projections sources;
    uint32_t present = take(in, 4), wanted = take(in, 4);
    unsigned alignment = take(in, 1);
    struct codec_run run = single(w);
    struct codec_plan plan;

    if (wanted >> 31 == 0) /* if the top bit is set, the illegal value stays */
        wanted &= (1u << w->n) - 1;
    if (wanted == 0 || !plan_make(w, present, wanted, &plan))
        return;
    sources_make(w, &plan, &sources, alignment);
    projections_place(w, &w->made, &run, wanted, alignment + 5);
    codec_repair(&plan, (const uint8_t *const *)sources.body,
                 (const uint8_t *const *)sources.overhang, w->row_bytes, w->made.body,
                 w->made.overhang);
    projections_check(w, &w->made);
    projections_check(w, &sources);
    for (unsigned i = 0; i < w->n; i++) {
        if (wanted >> i & 1)
            assert(
                projection_equals(w, i, w->made.body[i], w->made.overhang[i], &w->now));
    }
}

/* Updates the block and its projections; the reference encodes the new block. */
static void op_update(struct world *w, struct input *in)
{
    unsigned row = take(in, 1) % w->k;
    size_t from = take(in, 2) % (w->row_bytes + 1);
    size_t len = take(in, 2) % (w->row_bytes - from + 1);
    struct codec_run run = single(w);
    uint8_t *delta = buffer_place(&w->out, len, take(in, 1));

    fill(delta, len, take(in, 2));
    codec_update(w->c, row, from, len, delta, w->row_bytes, w->now.body, w->now.overhang);
    buffer_check(&w->out);
    projections_check(w, &w->now);
    for (size_t x = 0; x < len; x++)
        w->data.bytes[row * w->row_bytes + from + x] ^= delta[x];
    projections_place(w, &w->made, &run, (1u << w->n) - 1, 0);
    codec_encode(w->judge, w->data.bytes, w->row_bytes, w->made.body, w->made.overhang);
    for (unsigned i = 0; i < w->n; i++)
        assert(projection_equals(w, i, w->made.body[i], w->made.overhang[i], &w->now));
}

/* Encodes several copies of the block with gaps, then decodes them. */
static void op_run(struct world *w, struct input *in)
{
    static struct buffer blocks;
    struct codec_run run = single(w);
    uint32_t present = take(in, 4), made = (1u << w->n) - 1;
    struct codec_plan plan;

    if (present >> 31 != 0) /* mostly: systematic rows need no copy */
        made &= ~((1u << w->k) - 1);
    run.n_blocks = take(in, 1) % (BLOCKS_MAX + 1);
    run.data_stride += take(in, 1) % GAP_MAX;
    run.body_stride += take(in, 1) % GAP_MAX;
    for (unsigned i = 0; i < w->n; i++)
        run.overhang_stride[i] += i * 3 % GAP_MAX;
    buffer_place(&blocks, run.n_blocks * run.data_stride, take(in, 1));
    for (size_t b = 0; b < run.n_blocks; b++)
        memcpy(blocks.bytes + b * run.data_stride, w->data.bytes, w->row_bytes * w->k);
    projections_place(w, &w->made, &run, made, 1);
    codec_encode_run(w->c, &run, blocks.bytes, w->made.body, w->made.overhang);
    projections_check(w, &w->made);
    for (size_t at = 0; at < run.n_blocks * w->n; at++) {
        size_t b = at / w->n, i = at % w->n;
        const uint8_t *overhang = w->made.overhang[i];

        if (overhang != NULL)
            overhang += b * run.overhang_stride[i];
        if (made >> i & 1)
            assert(projection_equals(w, (unsigned)i,
                                     w->made.body[i] + b * run.body_stride, overhang,
                                     &w->now));
    }
    if (!plan_make(w, present & made, 0, &plan))
        return;
    buffer_place(&w->out, run.n_blocks * run.data_stride, 9);
    codec_decode_run(&plan, &run, (const uint8_t *const *)w->made.body,
                     (const uint8_t *const *)w->made.overhang, w->out.bytes);
    buffer_check(&w->out);
    assert(memcmp(w->out.bytes, blocks.bytes, run.n_blocks * run.data_stride) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const ops[])(struct world *, struct input *) = { op_encode, op_decode,
                                                                   op_repair, op_update,
                                                                   op_run };
    struct input in = { data, size };
    struct world *w = &the_world;
    size_t user_bytes;

    world_open(w, &in);
    user_bytes = take(&in, 2) % (codec_block_bytes(w->c) + 1);
    w->row_bytes = codec_row_bytes(w->c, user_bytes);
    assert(w->row_bytes % codec_row_unit(w->c) == 0);
    assert(w->row_bytes * w->k >= user_bytes);
    assert((w->row_bytes != 0) == (user_bytes != 0));
    if (user_bytes == 0)
        return 0;
    world_fill(w, &in);
    for (unsigned i = 0; i < OPS_MAX && in.size > 0; i++)
        ops[take(&in, 1) % (sizeof(ops) / sizeof(ops[0]))](w, &in);
    return 0;
}
