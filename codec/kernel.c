/*
 * kernel.c - XOR of rows, the sweep, and rings, for any geometry. Compiled once for each
 * instruction set, with its flags, KERNEL_TABLE (the name of its struct kernels) and
 * KERNEL_GENERATED (the header of its straight lines).
 *
 * In:     mojette.c, finite.c, codec.c. Thread: any. Allocates nothing.
 * Yours:  everything behind kernel.h. Look at the assembly after a change: the loops keep
 *         their pixels in registers.
 */
#include "codec/kernel.h"

#include <assert.h>
#include <string.h>

#include "codec/vec.h"

#include KERNEL_GENERATED

#define INLINE VEC_INLINE

/* Widest vector of the machine, and the ones that make up pixels of 16, 32 and 64
 * bytes. */
#if defined __AVX512VL__
#    define WIDEST 64
#    define LANE16 16
#    define LANE32 32
#    define LANE64 64
#elif defined __AVX2__
#    define WIDEST 32
#    define LANE16 16
#    define LANE32 32
#    define LANE64 32
#else
#    define WIDEST 16
#    define LANE16 16
#    define LANE32 16
#    define LANE64 16
#endif
#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

typedef PASTE(vec, WIDEST) vec;
#define LOAD  PASTE(ld, WIDEST)
#define STORE PASTE(st, WIDEST)
#define XOR3  PASTE(xor3_, WIDEST)

enum { AT_ONCE = 4 }; /* vectors made by one turn of a loop, to be worth its pointers */

/* ---- sums of rows ---- */

/* dst[x] = XOR of src[0..n-1][x], n_vecs vectors at a time, for as many as fit below
 * `to`. Returns the place where it stopped. */
INLINE ptrdiff_t xor_vecs(uint8_t *dst, const uint8_t *const src[], unsigned n,
                          unsigned n_vecs, ptrdiff_t x, ptrdiff_t to)
{
    for (; x + (ptrdiff_t)n_vecs * WIDEST <= to; x += (ptrdiff_t)n_vecs * WIDEST) {
        vec sum[AT_ONCE];
        unsigned i = 1;

        for (unsigned v = 0; v < n_vecs; v++)
            sum[v] = LOAD(src[0] + x + v * WIDEST);
        for (; i + 1 < n; i += 2) {
            for (unsigned v = 0; v < n_vecs; v++)
                sum[v] = XOR3(sum[v], LOAD(src[i] + x + v * WIDEST),
                              LOAD(src[i + 1] + x + v * WIDEST));
        }
        if (i < n) {
            for (unsigned v = 0; v < n_vecs; v++)
                sum[v] ^= LOAD(src[i] + x + v * WIDEST);
        }
        for (unsigned v = 0; v < n_vecs; v++)
            STORE(dst + x + v * WIDEST, sum[v]);
    }
    return x;
}

/* XORs n sources, a constant at each call: then the pointers stay in registers, and
 * stores to dst cannot change them. */
INLINE ptrdiff_t xor_n(uint8_t *dst, const uint8_t *const sources[], unsigned n,
                       ptrdiff_t x, ptrdiff_t to)
{
    const uint8_t *src[KERNEL_SOURCES_MAX];

    for (unsigned i = 0; i < n; i++)
        src[i] = sources[i];
    x = xor_vecs(dst, src, n, AT_ONCE, x, to);
    return xor_vecs(dst, src, n, 1, x, to);
}

#define CASE_XOR(n) \
    case n:         \
        return xor_n(dst, sources, n, x, to)

/* dst[x] = XOR of all sources, for as many whole vectors as fit below `to`; returns the
 * place where it stopped. */
static ptrdiff_t xor_whole_vecs(uint8_t *dst, const uint8_t *const sources[],
                                unsigned n_sources, ptrdiff_t x, ptrdiff_t to)
{
    switch (n_sources) {
        CASE_XOR(1);
        CASE_XOR(2);
        CASE_XOR(3);
        CASE_XOR(4);
        CASE_XOR(5);
        CASE_XOR(6);
        CASE_XOR(7);
        CASE_XOR(8);
        CASE_XOR(9);
    default: /* too many for registers */
        x = xor_vecs(dst, sources, n_sources, AT_ONCE, x, to);
        return xor_vecs(dst, sources, n_sources, 1, x, to);
    }
}

/* XORs the rest, 16 bytes at a time. */
static void xor_rest(uint8_t *dst, const uint8_t *const src[], unsigned n, ptrdiff_t x,
                     ptrdiff_t to)
{
    for (; x < to; x += 16) {
        vec16 sum = ld16(src[0] + x);

        for (unsigned i = 1; i < n; i++)
            sum ^= ld16(src[i] + x);
        st16(dst + x, sum);
    }
}

/* dst[x..to) = XOR of all sources. */
INLINE void xor_some(uint8_t *dst, const uint8_t *const src[], unsigned n, ptrdiff_t x,
                     ptrdiff_t to)
{
    if (to - x >= WIDEST)
        x = xor_whole_vecs(dst, src, n, x, to);
    xor_rest(dst, src, n, x, to);
}

static void xor_rows(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                     size_t len)
{
    assert(n_sources >= 1 && n_sources <= KERNEL_SOURCES_MAX);
    xor_some(dst, sources, n_sources, 0, (ptrdiff_t)len);
}

/* dst ^= src for 1, 2, 4 or 8 bytes. */
INLINE void add_few(uint8_t *dst, const uint8_t *src, size_t bytes)
{
    uint64_t a = 0, b = 0;

    memcpy(&a, dst, bytes);
    memcpy(&b, src, bytes);
    a ^= b;
    memcpy(dst, &a, bytes);
}

static void add(uint8_t *dst, const uint8_t *src, size_t len)
{
    size_t x = 0;

    for (; x + WIDEST <= len; x += WIDEST)
        STORE(dst + x, LOAD(dst + x) ^ LOAD(src + x));
    for (; x + 16 <= len; x += 16)
        st16(dst + x, ld16(dst + x) ^ ld16(src + x));
    if (len & 8)
        add_few(dst + x, src + x, 8);
    x += len & 8;
    if (len & 4)
        add_few(dst + x, src + x, 4);
    x += len & 4;
    if (len & 2)
        add_few(dst + x, src + x, 2);
    x += len & 2;
    if (len & 1)
        add_few(dst + x, src + x, 1);
}

/* ---- sums of shifted rows ---- */

/* Loops over start[] use a pointer: the compiler would unroll a loop of at most 16 turns.
 * The window [lo, hi) of rows that are under way moves on with x. */

#if WIDEST > 16

/* Vectors of words of which some are masked out; those are not read from memory. A row
 * that begins or ends within a vector is masked, as rows begin and end between pixels of
 * 16 bytes. */
#    if WIDEST == 64
typedef __mmask8 mask;

INLINE __m512i places_from(ptrdiff_t x)
{
    return _mm512_add_epi64(_mm512_set_epi64(56, 48, 40, 32, 24, 16, 8, 0),
                            _mm512_set1_epi64(x));
}

/* Returns the words at the places that lie in the len bytes from `from` on. */
INLINE mask places_within(__m512i places, ptrdiff_t from, ptrdiff_t len)
{
    return _mm512_cmplt_epu64_mask(_mm512_sub_epi64(places, _mm512_set1_epi64(from)),
                                   _mm512_set1_epi64(len));
}

INLINE vec masked_load(mask m, const uint8_t *from)
{
    return (vec)_mm512_maskz_loadu_epi64(m, from);
}

INLINE void masked_store(mask m, uint8_t *to, vec v)
{
    _mm512_mask_storeu_epi64(to, m, (__m512i)v);
}
#        define PLACES __m512i
#    else
typedef __m256i mask;

INLINE __m256i places_from(ptrdiff_t x)
{
    return _mm256_add_epi64(_mm256_set_epi64x(24, 16, 8, 0), _mm256_set1_epi64x(x));
}

/* Compares unsigned by a signed comparison: both sides less 2^63. */
INLINE mask places_within(__m256i places, ptrdiff_t from, ptrdiff_t len)
{
    __m256i least = _mm256_set1_epi64x(INT64_MIN);

    places = _mm256_sub_epi64(places, _mm256_set1_epi64x(from));
    return _mm256_cmpgt_epi64(_mm256_add_epi64(_mm256_set1_epi64x(len), least),
                              _mm256_add_epi64(places, least));
}

INLINE vec masked_load(mask m, const uint8_t *from)
{
    return (vec)_mm256_maskload_epi64((const long long *)from, m);
}

INLINE void masked_store(mask m, uint8_t *to, vec v)
{
    _mm256_maskstore_epi64((long long *)to, m, (__m256i)v);
}
#        define PLACES __m256i
#    endif

/* Writes one vector from byte x on, of rows lo..hi-1 that may begin and end within. Four
 * rows at a time, some of which add nothing: a loop that ends elsewhere each time costs
 * more. */
INLINE void masked_write(const struct kernel_sum *sum, size_t lo, size_t hi,
                         const uint8_t *base, ptrdiff_t x, ptrdiff_t to, uint8_t *dst)
{
    const PLACES places = places_from(x);
    const uint8_t *const *src = sum->src + 1;
    const ptrdiff_t *start = sum->start, row_bytes = sum->row_bytes;
    mask wanted = places_within(places, x, to - x);
    size_t n_fours = sum->n_rows & ~(size_t)3, i = lo & ~(size_t)3;
    vec v = { 0 };

    if (base != NULL)
        v = masked_load(wanted, base + x);
    for (; i < hi && i < n_fours; i += 4) {
        for (size_t j = i; j < i + 4; j++)
            v ^= masked_load(places_within(places, start[j], row_bytes), src[j] + x);
    }
    for (; i < hi; i++)
        v ^= masked_load(places_within(places, start[i], row_bytes), src[i] + x);
    masked_store(wanted, dst + x, v);
}

static void sum_masked(struct kernel_sum *sum, const struct kernel_part *parts,
                       unsigned n_parts)
{
    const ptrdiff_t *start = sum->start;
    size_t lo = 0, hi = 0, n = sum->n_rows;
    ptrdiff_t all_from = n == 0 ? PTRDIFF_MIN : start[n - 1]; /* all rows are under way */
    ptrdiff_t all_to = n == 0 ? PTRDIFF_MAX : start[0] + sum->row_bytes;

    for (unsigned p = 0; p < n_parts; p++) {
        ptrdiff_t x = parts[p].from, to = parts[p].to, whole = to < all_to ? to : all_to;
        uint8_t *dst = parts[p].dst - x;
        const uint8_t *base = parts[p].base == NULL ? NULL : parts[p].base - x;
        bool has_base = base != NULL;

        for (; x < to; x += WIDEST) {
            if (x >= all_from && x + WIDEST <= whole) {
                sum->src[0] = base;
                x = xor_whole_vecs(dst, sum->src + !has_base, (unsigned)n + has_base, x,
                                   whole);
                if (x == to)
                    break;
            }
            while (lo < n && start[lo] + sum->row_bytes <= x)
                lo++;
            while (hi < n && start[hi] < x + WIDEST)
                hi++;
            masked_write(sum, lo, hi, base, x, to, dst);
        }
    }
}

#endif

/* Writes stretch by stretch, between the bytes where a row begins or ends. */
static void sum_stretches(struct kernel_sum *sum, const struct kernel_part *parts,
                          unsigned n_parts)
{
    const ptrdiff_t *start = sum->start;
    unsigned lo = 0, hi = 0, n = sum->n_rows;

    for (unsigned p = 0; p < n_parts; p++) {
        ptrdiff_t x = parts[p].from, to = parts[p].to, until;
        uint8_t *dst = parts[p].dst - x;

        for (; x < to; x = until) {
            const uint8_t **src;
            unsigned n_src;

            while (lo < n && start[lo] + sum->row_bytes <= x)
                lo++;
            while (hi < n && start[hi] <= x)
                hi++;
            until = to;
            if (hi < n && start[hi] < until)
                until = start[hi];
            if (lo < hi && start[lo] + sum->row_bytes < until)
                until = start[lo] + sum->row_bytes;
            src = &sum->src[1 + lo];
            n_src = hi - lo;
            if (parts[p].base != NULL) {
                /* in place of a row that has ended */
                *--src = parts[p].base - parts[p].from;
                n_src++;
            }
            if (n_src == 0)
                memset(dst + x, 0, (size_t)(until - x));
            else
                xor_some(dst, src, n_src, x, until);
        }
    }
}

static void sum_run(struct kernel_sum *sum, const struct kernel_part *parts,
                    unsigned n_parts)
{
#if WIDEST > 16
    if (!sum->is_whole) {
        sum_masked(sum, parts, n_parts);
        return;
    }
#endif
    sum_stretches(sum, parts, n_parts);
}

/* ---- skewed sums ---- */

enum { SKEW_PASS = WIDEST == 64 ? 256 : 128 };
/* Part of the rows that a pass gets. */
enum skew_part { SKEW_WHOLE, SKEW_SOME, SKEW_NONE };

_Static_assert((int)SKEW_PASS <= (int)KERNEL_SKEW_SPILL, "a pass is written as a whole");

#define SHIFT 16
#if WIDEST == 64
#    define LANE 64
#else
#    define LANE 16
#endif
#include "codec/kernel_skew.h"

#define SHIFT 32
#define LANE  WIDEST
#include "codec/kernel_skew.h"

static void skew(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows, size_t shift,
                 size_t row_bytes, size_t len)
{
    if (shift == 16)
        skew_by16(dst, rows, n_rows, (ptrdiff_t)row_bytes, (ptrdiff_t)len);
    else
        skew_by32(dst, rows, n_rows, (ptrdiff_t)row_bytes, (ptrdiff_t)len);
}

/* ---- the sweep ---- */

enum {
    FEW = 4,  /* rows whose inputs all fit into registers */
    HELD = 8, /* rows of which a pixel each fits into registers */
};

#define STEP 16
#define LANE LANE16
#include "codec/kernel_sweep.h"

#define STEP 32
#define LANE LANE32
#include "codec/kernel_sweep.h"

#define STEP 64
#define LANE LANE64
#include "codec/kernel_sweep.h"

/* Returns the rows that use of the row above the pixel made `bytes` before. */
static uint32_t near_rows(const struct kernel_sweep *sweep, unsigned bytes)
{
    uint32_t near = 0;

    for (unsigned i = 1; i < sweep->n_rows; i++)
        near |= (uint32_t)(sweep->from[i - 1][i - 1] - sweep->from[i][i - 1] ==
                           (int32_t)bytes)
                << i;
    return near;
}

/* Makes steps [s, end), `bytes` bytes each. Only codes with small pixels have more rows
 * than FEW. */
INLINE void sweep_steps(const int32_t from[][KERNEL_SWEEP_MAX], unsigned n,
                        unsigned bytes, uint32_t active, uint32_t near, ptrdiff_t s,
                        ptrdiff_t end, uint8_t *rows)
{
    const uint32_t all = (1u << n) - 1; /* usual, and a constant saves the loop a test */

    if (n > FEW)
        sweep_n16(from, n, active, near, s, end, rows);
    else if (bytes == 16 && active == all)
        sweep_n16(from, n, all, near, s, end, rows);
    else if (bytes == 16)
        sweep_n16(from, n, active, near, s, end, rows);
    else if (bytes == 32 && active == all)
        sweep_n32(from, n, all, near, s, end, rows);
    else if (bytes == 32)
        sweep_n32(from, n, active, near, s, end, rows);
    else if (active == all)
        sweep_n64(from, n, all, near, s, end, rows);
    else
        sweep_n64(from, n, active, near, s, end, rows);
}

/* Sweeps n rows, a constant. Cuts the steps where a row begins or ends: in between the
 * rows under way do not change. */
INLINE void sweep_rows(const struct kernel_sweep *sweep, unsigned n, uint8_t *rows)
{
    unsigned pixel = n > FEW ? 16 : sweep->pixel_bytes;
    unsigned stride = n > FEW ? 16 : sweep->stride_bytes;
    uint32_t near_stride = near_rows(sweep, stride), near_pixel = near_rows(sweep, pixel);
    ptrdiff_t s = PTRDIFF_MAX, end = PTRDIFF_MIN, next, row_bytes = sweep->row_bytes;
    const int32_t(*from)[KERNEL_SWEEP_MAX] = sweep->from;
    int32_t ours[FEW][KERNEL_SWEEP_MAX]; /* stores to rows cannot change them */

    for (unsigned i = 0; i < n; i++) {
        ptrdiff_t delay = sweep->delay[i];

        s = delay < s ? delay : s;
        end = delay + row_bytes > end ? delay + row_bytes : end;
        for (unsigned j = 0; n <= FEW && j < n; j++)
            ours[i][j] = from[i][j];
    }
    if (n <= FEW)
        from = (const int32_t(*)[KERNEL_SWEEP_MAX])ours;
    for (; s < end; s = next) {
        uint32_t active = 0;
        ptrdiff_t whole;

        next = end;
        for (unsigned i = 0; i < n; i++) {
            ptrdiff_t begin = sweep->delay[i], stop = begin + row_bytes;

            active |= (uint32_t)(begin <= s && s < stop) << i;
            next = s < begin && begin < next ? begin : next;
            next = s < stop && stop < next ? stop : next;
        }
        whole = s + ((next - s) & -(ptrdiff_t)stride);
        if (s < whole)
            sweep_steps(from, n, stride, active, near_stride, s, whole, rows);
        if (whole < next)
            sweep_steps(from, n, pixel, active, near_pixel, whole, next, rows);
    }
}

#define CASE_SWEEP(n)               \
    case n:                         \
        sweep_rows(sweep, n, rows); \
        break

static void sweep_run(const struct kernel_sweep *sweep, uint8_t *rows)
{
    assert(sweep->n_rows <= FEW || sweep->pixel_bytes == 16);
    switch (sweep->n_rows) {
        CASE_SWEEP(2);
        CASE_SWEEP(3);
        CASE_SWEEP(4);
        CASE_SWEEP(5);
        CASE_SWEEP(6);
        CASE_SWEEP(7);
        CASE_SWEEP(8);
        CASE_SWEEP(9);
        CASE_SWEEP(10);
        CASE_SWEEP(11);
        CASE_SWEEP(12);
        CASE_SWEEP(13);
        CASE_SWEEP(14);
        CASE_SWEEP(15);
        CASE_SWEEP(16);
    default:
        assert(!"no more rows than KERNEL_SWEEP_MAX");
    }
}

/* ---- rings ---- */

/* Adds a source to the 17 sums, which stay in registers if there are enough: hence a case
 * for each turn. pixel_bytes is a constant here for common pixels. */
#define ADD_PIXEL(bytes, turn, c)                      \
    sum[((c) + RING_PIXELS - (turn)) % RING_PIXELS] ^= \
        PASTE(ld, bytes)(from + (c)*pixel_bytes)

#define CASE_TURN(bytes, turn)          \
    case turn:                          \
        ADD_PIXEL(bytes, turn, 0);      \
        ADD_PIXEL(bytes, turn, 1);      \
        ADD_PIXEL(bytes, turn, 2);      \
        ADD_PIXEL(bytes, turn, 3);      \
        ADD_PIXEL(bytes, turn, 4);      \
        ADD_PIXEL(bytes, turn, 5);      \
        ADD_PIXEL(bytes, turn, 6);      \
        ADD_PIXEL(bytes, turn, 7);      \
        ADD_PIXEL(bytes, turn, 8);      \
        ADD_PIXEL(bytes, turn, 9);      \
        ADD_PIXEL(bytes, turn, 10);     \
        ADD_PIXEL(bytes, turn, 11);     \
        ADD_PIXEL(bytes, turn, 12);     \
        ADD_PIXEL(bytes, turn, 13);     \
        ADD_PIXEL(bytes, turn, 14);     \
        ADD_PIXEL(bytes, turn, 15);     \
        if (turns[i].is_ring)           \
            ADD_PIXEL(bytes, turn, 16); \
        break

/* X(0) .. X(15): the sums are only ever named by constants, otherwise they would be in
 * memory. */
#define EACH_PIXEL(X) \
    X(0);             \
    X(1);             \
    X(2);             \
    X(3);             \
    X(4);             \
    X(5);             \
    X(6);             \
    X(7);             \
    X(8);             \
    X(9);             \
    X(10);            \
    X(11);            \
    X(12);            \
    X(13);            \
    X(14);            \
    X(15)

#define CLEAR(at) sum[at] = zero
#define FOLD(at)  sum[at] ^= sum[RING_PIXELS - 1]

#define MULTIPLES(x)                                                                   \
    {                                                                                  \
        0, (x) % 17, (x)*2 % 17, (x)*3 % 17, (x)*4 % 17, (x)*5 % 17, (x)*6 % 17,       \
            (x)*7 % 17, (x)*8 % 17, (x)*9 % 17, (x)*10 % 17, (x)*11 % 17, (x)*12 % 17, \
            (x)*13 % 17, (x)*14 % 17, (x)*15 % 17, (x)*16 % 17                         \
    }

/* x * y modulo 17: tables, for loops that would wait for arithmetic. */
static const uint8_t multiple[RING_PIXELS][RING_PIXELS] = {
    MULTIPLES(0),  MULTIPLES(1),  MULTIPLES(2),  MULTIPLES(3),  MULTIPLES(4),
    MULTIPLES(5),  MULTIPLES(6),  MULTIPLES(7),  MULTIPLES(8),  MULTIPLES(9),
    MULTIPLES(10), MULTIPLES(11), MULTIPLES(12), MULTIPLES(13), MULTIPLES(14),
    MULTIPLES(15), MULTIPLES(16)
};

/* Remainders of numbers below 2 * 17. */
static const uint8_t modulo[] = { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11,
                                  12, 13, 14, 15, 16, 0,  1,  2,  3,  4, 5,  6,
                                  7,  8,  9,  10, 11, 12, 13, 14, 15, 16 };

#define DEFINE_RING(bytes)                                                             \
    INLINE void ring_sum_##bytes(uint8_t *dst, bool folds,                             \
                                 const struct kernel_turn turns[], unsigned n_turns,   \
                                 ptrdiff_t pixel_bytes)                                \
    {                                                                                  \
        for (ptrdiff_t x = 0; x < pixel_bytes; x += bytes) {                           \
            PASTE(vec, bytes) sum[RING_PIXELS], zero = { 0 };                          \
                                                                                       \
            EACH_PIXEL(CLEAR);                                                         \
            CLEAR(16);                                                                 \
            for (unsigned i = 0; i < n_turns; i++) {                                   \
                const uint8_t *from = turns[i].from + x;                               \
                                                                                       \
                switch (turns[i].turn) {                                               \
                    CASE_TURN(bytes, 0);                                               \
                    CASE_TURN(bytes, 1);                                               \
                    CASE_TURN(bytes, 2);                                               \
                    CASE_TURN(bytes, 3);                                               \
                    CASE_TURN(bytes, 4);                                               \
                    CASE_TURN(bytes, 5);                                               \
                    CASE_TURN(bytes, 6);                                               \
                    CASE_TURN(bytes, 7);                                               \
                    CASE_TURN(bytes, 8);                                               \
                    CASE_TURN(bytes, 9);                                               \
                    CASE_TURN(bytes, 10);                                              \
                    CASE_TURN(bytes, 11);                                              \
                    CASE_TURN(bytes, 12);                                              \
                    CASE_TURN(bytes, 13);                                              \
                    CASE_TURN(bytes, 14);                                              \
                    CASE_TURN(bytes, 15);                                              \
                    CASE_TURN(bytes, 16);                                              \
                default:                                                               \
                    assert(!"a turn is less than a whole one");                        \
                }                                                                      \
            }                                                                          \
            if (folds) {                                                               \
                EACH_PIXEL(FOLD);                                                      \
            } else {                                                                   \
                STORE_PIXEL_##bytes(16);                                               \
            }                                                                          \
            EACH_PIXEL(STORE_PIXEL_##bytes);                                           \
        }                                                                              \
    }                                                                                  \
                                                                                       \
    /* n vectors of each pixel at once: n is a constant. */                            \
    INLINE void ring_divide_##bytes(uint8_t *ring, const uint8_t *from,                \
                                    const uint8_t *also, unsigned turn, unsigned step, \
                                    ptrdiff_t pixel_bytes, unsigned n)                 \
    {                                                                                  \
        const uint8_t *to_one = modulo + modulo[RING_PIXELS - 1 + turn];               \
        const uint8_t *to_two = modulo + modulo[*to_one + step];                       \
        const uint8_t *walk = multiple[modulo[2 * step]];                              \
                                                                                       \
        for (ptrdiff_t x = 0; x < pixel_bytes; x += n * bytes) {                       \
            PASTE(vec, bytes) last[4] = { { 0 }, { 0 }, { 0 }, { 0 } };                \
                                                                                       \
            _Pragma("GCC unroll 17") for (int i = 0; i < RING_PIXELS; i++)             \
            {                                                                          \
                ptrdiff_t at = modulo[RING_PIXELS - 1 + walk[i]] * pixel_bytes + x;    \
                ptrdiff_t one = to_one[walk[i]] * pixel_bytes + x;                     \
                ptrdiff_t two = to_two[walk[i]] * pixel_bytes + x;                     \
                                                                                       \
                for (unsigned v = 0; v < n * bytes; v += bytes) {                      \
                    PASTE(st, bytes)(ring + at + v, last[v / bytes]);                  \
                    last[v / bytes] = PASTE(xor3_, bytes)(                             \
                        last[v / bytes], PASTE(ld, bytes)(from + one + v),             \
                        PASTE(ld, bytes)(from + two + v));                             \
                    if (also != NULL)                                                  \
                        last[v / bytes] = PASTE(xor3_, bytes)(                         \
                            last[v / bytes], PASTE(ld, bytes)(also + one + v),         \
                            PASTE(ld, bytes)(also + two + v));                         \
                }                                                                      \
            }                                                                          \
        }                                                                              \
    }

#define STORE_PIXEL_16(at) st16(dst + (at)*pixel_bytes + x, sum[at])
#define STORE_PIXEL_32(at) st32(dst + (at)*pixel_bytes + x, sum[at])
#define STORE_PIXEL_64(at) st64(dst + (at)*pixel_bytes + x, sum[at])

DEFINE_RING(16)
#if WIDEST >= 32
DEFINE_RING(32)
#endif
#if WIDEST >= 64
DEFINE_RING(64)
#endif

static void ring_sum(uint8_t *dst, bool folds, const struct kernel_turn turns[],
                     unsigned n_turns, size_t pixel_bytes)
{
    assert(n_turns >= 1 && n_turns <= RING_SOURCES_MAX);
    if (pixel_bytes == 64)
        PASTE(ring_sum_, LANE64)(dst, folds, turns, n_turns, 64);
    else if (pixel_bytes == 32)
        PASTE(ring_sum_, LANE32)(dst, folds, turns, n_turns, 32);
    else if (pixel_bytes % LANE64 == 0)
        PASTE(ring_sum_, LANE64)(dst, folds, turns, n_turns, (ptrdiff_t)pixel_bytes);
    else
        ring_sum_16(dst, folds, turns, n_turns, (ptrdiff_t)pixel_bytes);
}

#define DIVIDE(bytes, pixel_bytes, n)                                                 \
    do {                                                                              \
        if (also == NULL)                                                             \
            PASTE(ring_divide_, bytes)(ring, from, NULL, turn, step, pixel_bytes, n); \
        else                                                                          \
            PASTE(ring_divide_, bytes)(ring, from, also, turn, step, pixel_bytes, n); \
    } while (0)

static void ring_divide(uint8_t *ring, const uint8_t *from, const uint8_t *also,
                        unsigned turn, unsigned step, size_t pixel_bytes)
{
    assert(turn < RING_PIXELS && step >= 1 && step < RING_PIXELS);
    if (pixel_bytes == 64)
        DIVIDE(LANE64, 64, 64 / LANE64);
    else if (pixel_bytes == 32)
        DIVIDE(LANE32, 32, 32 / LANE32);
    else if (pixel_bytes % 64 == 0)
        DIVIDE(LANE64, (ptrdiff_t)pixel_bytes, 64 / LANE64);
    else
        DIVIDE(16, (ptrdiff_t)pixel_bytes, 1);
}

const struct kernels KERNEL_TABLE = {
    .skew_pays = WIDEST == 16   ? 8
                 : WIDEST == 64 ? 3
                                : 2,
    .xor_rows = xor_rows,
    .add = add,
    .sum = sum_run,
    .skew = skew,
    .sweep = sweep_run,
    .ring_sum = ring_sum,
    .ring_divide = ring_divide,
    .encodes = kernel_encodes,
    .decodes = kernel_decodes,
    .n_encodes = KERNEL_N_ENCODES,
    .n_decodes = KERNEL_N_DECODES,
};
