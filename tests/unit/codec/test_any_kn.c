/*
 * test_any_kn.c - every code for any k, n, block size and row length, with every
 * instruction set.
 *
 * Goal:   all that codec.h says of encode, decode, update, repair, runs and
 *         codec_plan_reads() is also true for k and n that are no layout, and for row
 *         lengths without a straight-line loop.
 * Method: for each k and n some row lengths (one unit, full, random) and random sets of
 *         projections; the generator starts from the same seed each time. Projections are
 *         compared with mojette_ref.c; kinds that have references of their own are
 *         compared with plain C. Every buffer touches an unreadable page with one end and
 *         canaries with the other. Bytes that a plan does not read cannot be read. Stack
 *         is measured in a thread whose stack was painted.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "codec/codec.h"
#include "mojette_ref.h"
#include "tests/unit/unit.h"

enum {
    PAGE = 4096,
    PLACE_BYTES = CODEC_DATA_MAX + PAGE, /* a multiple of pages, with room for canaries */
    CANARY_BYTES = 64,
    CANARY = 0xC5,
    JUNK = 0xA7,
    N_LENGTHS = 3,
    N_PATTERNS = 2,
    N_BLOCKS = 3, /* blocks in a run */
};

_Static_assert(PLACE_BYTES % PAGE == 0, "places are whole pages");

/* ---- random numbers ---- */

static uint64_t chance_state;

/* Returns the next number of splitmix64 by Sebastiano Vigna. */
static uint64_t chance(void)
{
    uint64_t z = (chance_state += 0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* Returns a random number from 0 to below - 1. */
static size_t chance_below(size_t below)
{
    return chance() % below;
}

static void chance_fill(uint8_t *buf, size_t len)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(chance() >> 11);
}

/* Returns `count` random bits of the lowest n. */
static uint32_t chance_bits(unsigned n, unsigned count)
{
    uint32_t bits = 0;

    while ((unsigned)__builtin_popcount(bits) < count)
        bits |= 1u << chance_below(n);
    return bits;
}

/* ---- places: memory between two unreadable pages ---- */

struct place {
    uint8_t *pages; /* PLACE_BYTES of them */
    uint8_t *canary;
};

/* Buffers for all codecs, mapped once. */
struct memory {
    struct place data, out, delta;
    struct place body[CODEC_N_MAX], overhang[CODEC_N_MAX]; /* encoded projections */
    struct place in_body[CODEC_N_MAX],
        in_overhang[CODEC_N_MAX]; /* bytes that a plan may read */
    struct place out_body[CODEC_N_MAX], out_overhang[CODEC_N_MAX];
    uint8_t *unreadable;
};

static struct memory memory;

static void place_new(struct place *p)
{
    uint8_t *map =
        mmap(NULL, PLACE_BYTES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(map, MAP_FAILED);
    p->pages = map + PAGE;
    assert_int_equal(mprotect(p->pages, PLACE_BYTES, PROT_READ | PROT_WRITE), 0);
    p->canary = NULL;
}

/* Returns len bytes of junk at one end of the place or the other; if len is 0, an address
 * that cannot be read. */
static uint8_t *place_take(struct place *p, size_t len)
{
    bool at_end = chance_below(2) != 0;
    uint8_t *bytes = p->pages + (at_end ? PLACE_BYTES - len : 0);

    if (len == 0) {
        p->canary = NULL;
        return memory.unreadable;
    }
    p->canary = at_end ? bytes - CANARY_BYTES : bytes + len;
    memset(p->canary, CANARY, CANARY_BYTES);
    memset(bytes, JUNK, len);
    return bytes;
}

static void place_check(const struct place *p)
{
    static uint8_t canaries[CANARY_BYTES];

    memset(canaries, CANARY, sizeof(canaries));
    if (p->canary != NULL)
        assert_memory_equal(p->canary, canaries, sizeof(canaries));
}

static int memory_new(void **state)
{
    struct place *all[] = { &memory.data, &memory.out, &memory.delta };

    (void)state;
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        place_new(all[i]);
    for (unsigned i = 0; i < CODEC_N_MAX; i++) {
        place_new(&memory.body[i]);
        place_new(&memory.overhang[i]);
        place_new(&memory.in_body[i]);
        place_new(&memory.in_overhang[i]);
        place_new(&memory.out_body[i]);
        place_new(&memory.out_overhang[i]);
    }
    memory.unreadable =
        mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory.unreadable, MAP_FAILED);
    memory.unreadable += 8 * PAGE;
    return 0;
}

/* ---- one block and its projections ---- */

struct block {
    const struct codec *c;
    unsigned k, n;
    size_t row_bytes;
    uint8_t *data; /* k rows */
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
};

static void block_new(struct block *b, const struct codec *c, size_t row_bytes)
{
    *b = (struct block){ c, codec_k(c), codec_n(c), row_bytes, NULL, { NULL }, { NULL } };
    b->data = place_take(&memory.data, b->k * row_bytes);
    chance_fill(b->data, b->k * row_bytes);
    for (unsigned i = 0; i < b->n; i++) {
        b->body[i] = place_take(&memory.body[i], row_bytes);
        b->overhang[i] = place_take(&memory.overhang[i], codec_overhang_bytes(c, i));
    }
    codec_encode(c, b->data, row_bytes, b->body, b->overhang);
    place_check(&memory.data);
    for (unsigned i = 0; i < b->n; i++) {
        place_check(&memory.body[i]);
        place_check(&memory.overhang[i]);
    }
}

static void projection_check(const struct block *b, unsigned i, const uint8_t *body,
                             const uint8_t *overhang)
{
    assert_memory_equal(body, b->body[i], b->row_bytes);
    if (codec_overhang_bytes(b->c, i) != 0)
        assert_memory_equal(overhang, b->overhang[i], codec_overhang_bytes(b->c, i));
}

/* Returns the projections of a code, computed once for both block sizes and all
 * instruction sets. */
static const struct ref_projection *ref_of(const struct codec *c, unsigned kind)
{
    static struct ref_projection r[CODEC_N_MAX];
    static unsigned of_kind, of_k, of_n;

    if (of_kind != kind || of_k != codec_k(c) || of_n != codec_n(c)) {
        of_kind = kind;
        of_k = codec_k(c);
        of_n = codec_n(c);
        for (unsigned i = 0; i < of_n; i++)
            r[i] = ref_projection_of(kind, of_k, of_n, i);
    }
    return r;
}

static void encode_check(const struct block *b, unsigned kind)
{
    static uint8_t bins[CODEC_BLOCK_MAX + CODEC_OVERHANG_MAX];
    const struct codec *plain =
        codec_open_isa(kind, b->k, b->n, codec_block_bytes(b->c), CODEC_ISA_REF);

    for (unsigned i = 0; i < b->n; i++) {
        uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };

        if (kind == CODEC_MOJETTE || kind == CODEC_MOJETTE_NONSYSTEMATIC) {
            const struct ref_projection *r = &ref_of(b->c, kind)[i];

            assert_int_equal(codec_overhang_bytes(b->c, i),
                             (size_t)r->n_overhang * r->pixel_bytes);
            ref_encode(r, b->data, b->row_bytes, bins);
        } else {
            body[i] = bins;
            overhang[i] = bins + b->row_bytes;
            codec_encode(plain, b->data, b->row_bytes, body, overhang);
        }
        projection_check(b, i, bins, bins + b->row_bytes);
    }
}

/* ---- decode and repair ---- */

/* Returns len bytes of which only [from, to) have the data; the others cannot be read, or
 * are junk. */
static const uint8_t *partly(struct place *p, const uint8_t *whole, size_t from,
                             size_t to)
{
    uint8_t *bytes = place_take(p, to - from);

    if (from == to)
        return memory.unreadable;
    memcpy(bytes, whole + from, to - from);
    return bytes - from;
}

/* Gives the plan exactly the bytes that it reads, and no more. */
static void inputs_take(const struct block *b, const struct codec_plan *plan,
                        const uint8_t *body[], const uint8_t *overhang[])
{
    for (unsigned i = 0; i < b->n; i++) {
        struct codec_reads r;

        codec_plan_reads(plan, i, b->row_bytes, &r);
        assert_true(r.body_from <= r.body_to && r.body_to <= b->row_bytes);
        assert_true(r.overhang_from <= r.overhang_to &&
                    r.overhang_to <= codec_overhang_bytes(b->c, i));
        if ((plan->reads >> i & 1) == 0)
            assert_int_equal(r.body_to + r.overhang_to, 0);
        body[i] = partly(&memory.in_body[i], b->body[i], r.body_from, r.body_to);
        overhang[i] = partly(&memory.in_overhang[i], b->overhang[i], r.overhang_from,
                             r.overhang_to);
    }
}

static void decode_check(const struct block *b, uint32_t present)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    size_t bytes = b->k * b->row_bytes;
    struct codec_plan plan;
    uint8_t *out;

    assert_int_equal(codec_plan(b->c, present, 0, &plan), 0);
    assert_int_equal(plan.reads & ~present, 0);
    assert_int_equal(__builtin_popcount(plan.reads), b->k);
    inputs_take(b, &plan, body, overhang);
    out = place_take(&memory.out, bytes);
    codec_decode(&plan, body, overhang, b->row_bytes, out);
    assert_memory_equal(out, b->data, bytes);
    for (unsigned i = 0; codec_is_systematic(b->c) && i < b->k; i++) {
        if (present >> i & 1)
            body[i] = out + i * b->row_bytes;
        else
            memset(out + i * b->row_bytes, JUNK, b->row_bytes);
    }
    codec_decode(&plan, body, overhang, b->row_bytes, out);
    assert_memory_equal(out, b->data, bytes);
    place_check(&memory.out);
}

static void repair_check(const struct block *b, uint32_t present, uint32_t wanted)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    uint8_t *out_body[CODEC_N_MAX], *out_overhang[CODEC_N_MAX];
    struct codec_plan plan;

    assert_int_equal(codec_plan(b->c, present, wanted, &plan), 0);
    inputs_take(b, &plan, body, overhang);
    for (unsigned i = 0; i < b->n; i++) {
        bool is_wanted = wanted >> i & 1;
        size_t overhang_bytes = codec_overhang_bytes(b->c, i);

        out_body[i] = place_take(&memory.out_body[i], is_wanted ? b->row_bytes : 0);
        out_overhang[i] =
            place_take(&memory.out_overhang[i], is_wanted ? overhang_bytes : 0);
    }
    codec_repair(&plan, body, overhang, b->row_bytes, out_body, out_overhang);
    for (unsigned i = 0; i < b->n; i++) {
        if (wanted >> i & 1)
            projection_check(b, i, out_body[i], out_overhang[i]);
        place_check(&memory.out_body[i]);
        place_check(&memory.out_overhang[i]);
    }
}

/* Checks that the test can fail: a bit that the plan reads is flipped. */
static void flip_check(const struct block *b, uint32_t present)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    size_t bytes = b->k * b->row_bytes;
    struct codec_plan plan;
    struct codec_reads r;
    unsigned i;
    uint8_t *out = place_take(&memory.out, bytes);

    assert_int_equal(codec_plan(b->c, present, 0, &plan), 0);
    inputs_take(b, &plan, body, overhang);
    do {
        i = (unsigned)chance_below(b->n);
        codec_plan_reads(&plan, i, b->row_bytes, &r);
    } while (r.body_from == r.body_to && r.overhang_from == r.overhang_to);
    if (r.body_from < r.body_to)
        ((uint8_t *)body[i])[r.body_from + chance_below(r.body_to - r.body_from)] ^= 4;
    else
        ((uint8_t *)overhang[i])[r.overhang_from] ^= 4;
    codec_decode(&plan, body, overhang, b->row_bytes, out);
    assert_memory_not_equal(out, b->data, bytes);
}

/* ---- update ---- */

/* Changes some bytes of a row and updates some projections: they must be those of the new
 * block. */
static void update_check(const struct block *b)
{
    size_t from = chance_below(b->row_bytes), len = chance_below(b->row_bytes - from + 1);
    unsigned row = (unsigned)chance_below(b->k);
    uint32_t wanted = chance() >> 7 & ((1u << b->n) - 1);
    uint8_t *delta = place_take(&memory.delta, len);
    uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    uint8_t *changed = b->data + row * b->row_bytes + from;

    for (unsigned i = 0; i < b->n; i++) {
        size_t overhang_bytes = codec_overhang_bytes(b->c, i);

        if ((wanted >> i & 1) == 0)
            continue;
        body[i] = place_take(&memory.out_body[i], b->row_bytes);
        overhang[i] = place_take(&memory.out_overhang[i], overhang_bytes);
        memcpy(body[i], b->body[i], b->row_bytes);
        if (overhang_bytes != 0)
            memcpy(overhang[i], b->overhang[i], overhang_bytes);
    }
    for (size_t x = 0; x < len; x++) {
        delta[x] = (uint8_t)(chance() >> 9);
        changed[x] ^= delta[x];
    }
    codec_update(b->c, row, from, len, delta, b->row_bytes, body, overhang);
    codec_encode(b->c, b->data, b->row_bytes, b->body, b->overhang);
    for (unsigned i = 0; i < b->n; i++) {
        if ((wanted >> i & 1) == 0)
            continue;
        projection_check(b, i, body[i], overhang[i]);
        place_check(&memory.out_body[i]);
        place_check(&memory.out_overhang[i]);
    }
}

/* ---- runs ---- */

/* Checks that a run has the same projections as its blocks one by one. */
static void run_check(const struct codec *c, size_t row_bytes)
{
    static uint8_t data[N_BLOCKS * CODEC_DATA_MAX], out[N_BLOCKS * CODEC_DATA_MAX];
    static uint8_t bodies[CODEC_N_MAX][N_BLOCKS * (CODEC_BLOCK_MAX + 64)];
    static uint8_t overhangs[CODEC_N_MAX][N_BLOCKS * CODEC_OVERHANG_MAX];
    static uint8_t bins[CODEC_N_MAX][CODEC_BLOCK_MAX],
        beyond[CODEC_N_MAX][CODEC_OVERHANG_MAX];
    unsigned k = codec_k(c), n = codec_n(c);
    struct codec_run run = { .n_blocks = N_BLOCKS,
                             .row_bytes = row_bytes,
                             .data_stride = CODEC_DATA_MAX,
                             .body_stride = row_bytes + 16 * chance_below(4) };
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX], *one[CODEC_N_MAX],
        *one_beyond[CODEC_N_MAX];
    struct codec_plan plan;

    chance_fill(data, sizeof(data));
    for (unsigned i = 0; i < n; i++) {
        body[i] = bodies[i];
        overhang[i] = overhangs[i];
        one[i] = bins[i];
        one_beyond[i] = beyond[i];
        run.overhang_stride[i] = codec_overhang_bytes(c, i);
    }
    codec_encode_run(c, &run, data, body, overhang);
    for (size_t b = 0; b < N_BLOCKS; b++) {
        codec_encode(c, data + b * run.data_stride, row_bytes, one, one_beyond);
        for (unsigned i = 0; i < n; i++) {
            assert_memory_equal(bodies[i] + b * run.body_stride, bins[i], row_bytes);
            assert_memory_equal(overhangs[i] + b * run.overhang_stride[i], beyond[i],
                                run.overhang_stride[i]);
        }
    }
    memset(out, JUNK, sizeof(out));
    assert_int_equal(codec_plan(c, chance_bits(n, k), 0, &plan), 0);
    codec_decode_run(&plan, &run, (const uint8_t *const *)body,
                     (const uint8_t *const *)overhang, out);
    for (size_t b = 0; b < N_BLOCKS; b++)
        assert_memory_equal(out + b * run.data_stride, data + b * run.data_stride,
                            k * row_bytes);
}

/* ---- all checks of a codec ---- */

static void codec_check(const struct codec *c, unsigned kind)
{
    size_t unit = codec_row_unit(c);
    size_t n_units = codec_row_bytes(c, codec_block_bytes(c)) / unit;
    const size_t lengths[N_LENGTHS] = { unit, unit * (1 + chance_below(n_units)),
                                        unit * n_units };
    unsigned k = codec_k(c), n = codec_n(c);

    for (unsigned l = 0; l < N_LENGTHS; l++) {
        struct block b;

        block_new(&b, c, lengths[l]);
        encode_check(&b, kind);
        for (unsigned i = 0; i < N_PATTERNS; i++) {
            uint32_t present =
                chance_bits(n, k + (unsigned)(i == 0 ? 0 : chance_below(n - k)));
            uint32_t wanted = chance_bits(n, 1 + (unsigned)chance_below(n));

            decode_check(&b, present);
            repair_check(&b, present, wanted);
            repair_check(&b, present, 1u << chance_below(n));
            flip_check(&b, present);
            update_check(&b);
        }
        run_check(c, lengths[l]);
    }
}

static void kind_check(unsigned kind, enum codec_isa isa)
{
    for (unsigned k = 1; k <= CODEC_K_MAX; k++) {
        for (unsigned n = k + 1; n <= k + CODEC_M_MAX; n++) {
            for (size_t bytes = 4096; bytes <= 8192; bytes *= 2) {
                const struct codec *c = codec_open_isa(kind, k, n, bytes, isa);

                assert_non_null(c);
                codec_check(c, kind);
            }
        }
    }
}

static void isa_check(enum codec_isa isa)
{
    if (!codec_isa_usable(isa)) {
        print_message("no %s here\n", codec_isa_name(isa));
        skip();
    }
    chance_state = 20150406;
    for (unsigned i = 0; codec_kind_at(i) != 0; i++)
        kind_check(codec_kind_at(i), isa);
}

static void test_plain_c(void **state)
{
    (void)state;
    isa_check(CODEC_ISA_REF);
}

static void test_vectors_of_16_bytes(void **state)
{
    (void)state;
    isa_check(CODEC_ISA_128);
}

static void test_vectors_of_32_bytes(void **state)
{
    (void)state;
    isa_check(CODEC_ISA_AVX2);
}

static void test_vectors_of_64_bytes(void **state)
{
    (void)state;
    isa_check(CODEC_ISA_AVX512);
}

/* ---- stack ---- */

enum { STACK_BYTES = 512 * 1024, STACK_MAX = 72 * 1024 };

/* A call that runs in a thread with a painted stack. */
struct measured {
    const struct codec_plan *plan;
    const uint8_t *const *body, *const *overhang;
    uint8_t *const *out_body, *const *out_overhang;
    uint8_t *data; /* where to decode to; NULL: repair */
    size_t row_bytes;
};

static void *thread_call(void *arg)
{
    struct measured *m = arg;

    if (m->plan == NULL)
        return NULL; /* stack that a thread takes by itself */
    if (m->data != NULL)
        codec_decode(m->plan, m->body, m->overhang, m->row_bytes, m->data);
    else
        codec_repair(m->plan, m->body, m->overhang, m->row_bytes, m->out_body,
                     m->out_overhang);
    return NULL;
}

/* Returns how many bytes of its stack a thread has written to. */
static size_t stack_taken(struct measured *m)
{
    static _Alignas(PAGE) uint8_t stack[STACK_BYTES];
    pthread_attr_t attr;
    pthread_t thread;
    size_t clean = 0;

    memset(stack, JUNK, sizeof(stack));
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstack(&attr, stack, sizeof(stack)), 0);
    assert_int_equal(pthread_create(&thread, &attr, thread_call, m), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
    while (clean < sizeof(stack) && stack[clean] == JUNK)
        clean++;
    return sizeof(stack) - clean;
}

/* Measures decode and repair of the code that needs the most stack. */
static void check_stack(enum codec_isa isa)
{
    const struct codec *c =
        codec_open_isa(CODEC_MOJETTE_NONSYSTEMATIC, CODEC_K_MAX, CODEC_N_MAX, 8192, isa);
    struct measured nothing = { NULL, NULL, NULL, NULL, NULL, NULL, 0 };
    uint8_t *out_body[CODEC_N_MAX], *out_overhang[CODEC_N_MAX];
    struct codec_plan decode, repair;
    struct block b;

    assert_non_null(c);
    block_new(&b, c, codec_row_bytes(c, 8192));
    for (unsigned i = 0; i < b.n; i++) {
        out_body[i] = place_take(&memory.out_body[i], b.row_bytes);
        out_overhang[i] = place_take(&memory.out_overhang[i], codec_overhang_bytes(c, i));
    }
    assert_int_equal(codec_plan(c, 0xFFFF, 0, &decode), 0);
    assert_int_equal(codec_plan(c, 0xFFFF, 1u << 19, &repair), 0);
    {
        struct measured m = { &decode,
                              (const uint8_t *const *)b.body,
                              (const uint8_t *const *)b.overhang,
                              out_body,
                              out_overhang,
                              place_take(&memory.out, b.k * b.row_bytes),
                              b.row_bytes };
        size_t idle = stack_taken(&nothing);

        assert_in_range(stack_taken(&m) - idle, 1, STACK_MAX);
        m.plan = &repair;
        m.data = NULL;
        assert_in_range(stack_taken(&m) - idle, 1, STACK_MAX);
    }
}

static void test_decode_and_repair_need_little_stack(void **state)
{
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __OPTIMIZE__
    skip();
#endif
    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        if (codec_isa_usable(isa))
            check_stack(isa);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_c),
        cmocka_unit_test(test_vectors_of_16_bytes),
        cmocka_unit_test(test_vectors_of_32_bytes),
        cmocka_unit_test(test_vectors_of_64_bytes),
        cmocka_unit_test(test_decode_and_repair_need_little_stack),
    };

    return cmocka_run_group_tests_name("codec.any_kn", tests, memory_new, NULL);
}
