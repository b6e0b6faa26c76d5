/*
 * kernel.c - XOR of rows, the sweep, and rings, for any geometry. Compiled once for each
 * instruction set, with its flags, KERNEL_TABLE (the name of its struct kernels) and KERNEL_GENERATED
 * (the header of its straight lines).
 *
 * In:     mojette.c, finite.c. Thread: any. Allocates nothing, calls nothing.
 * Yours:  everything behind kernel.h. Look at the assembly after a change: the loops keep
 *         their pixels in registers.
 */
#include "codec/kernel.h"

#include <assert.h>
#include <string.h>

#include "codec/vec.h"

#include KERNEL_GENERATED

#define INLINE VEC_INLINE

/* The widest vector there is, and those that pixels of 16, 32 and 64 bytes are made of. */
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

enum {
    AT_ONCE = 4
}; /* vectors that one turn of a loop makes, to be worth its pointers */

/* ---- sums of rows ---- */

/*
 * dst[x] = XOR of src[0..n-1][x], n_vecs vectors at a time, for as many as fit below `to`. Returns
 * where it stopped.
 */
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

/* With n a constant wherever it is called: then the pointers stay in registers, and stores to dst
 * cannot change them. */
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

/* dst[x] = XOR of all sources, for as many whole vectors as fit below `to`; returns where it stopped. */
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
    default: /* too many to be kept in registers */
        x = xor_vecs(dst, sources, n_sources, AT_ONCE, x, to);
        return xor_vecs(dst, sources, n_sources, 1, x, to);
    }
}

/* What is left, 16 bytes at a time. */
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

/* Loops over start[] are written with a pointer: the compiler would unroll what looks like at most 16
 * turns. The window [lo, hi) of rows that are under way moves on with x. */

#if WIDEST > 16

/* Vectors of words of which some are masked out; those are not looked at in memory. A row that begins or
 * ends within a vector is masked, as rows begin and end between pixels of 16 bytes. */
#    if WIDEST == 64
typedef __mmask8 mask;

INLINE __m512i places_from(ptrdiff_t x)
{
    return _mm512_add_epi64(_mm512_set_epi64(56, 48, 40, 32, 24, 16, 8, 0),
                            _mm512_set1_epi64(x));
}

/* Those of the words at the places that lie in the len bytes from `from` on. */
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

/* An unsigned comparison by a signed one: both sides less 2^63. */
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

/* One vector from byte x on, of rows lo..hi-1 that may begin and end within. Four rows at a time, with
 * some that add nothing: a loop that ends elsewhere each time costs more. */
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

static void sum_run(struct kernel_sum *sum, const struct kernel_part *parts,
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

#else

/* Stretch by stretch between the bytes where a row begins or ends. */
static void sum_run(struct kernel_sum *sum, const struct kernel_part *parts,
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
                *--src =
                    parts[p].base - parts[p].from; /* in place of a row that has ended */
                n_src++;
            }
            if (n_src == 0)
                memset(dst + x, 0, (size_t)(until - x));
            else
                xor_some(dst, src, n_src, x, until);
        }
    }
}

#endif

/* ---- skewed sums ---- */

/*
 * As in Horner's rule: the sum so far moves on by `shift`, then the next row is added, in the same place each
 * time. A pass does that to some neighbouring vectors in registers; what moves out of them at each row is what
 * moves into those of the next pass.
 */
#if WIDEST == 64
#    define SKEW_WIDTH 64
enum { SKEW_LANE = 64, SKEW_LANES = 4 };
typedef vec64 skew_lane;
typedef vec64 skew_moved; /* the last vector: the end of it moves out */

INLINE void skew_move(skew_lane sum[], skew_moved *moved, size_t shift)
{
    __m512i before = (__m512i)*moved;

    *moved = sum[SKEW_LANES - 1];
    for (unsigned i = 0; i < SKEW_LANES; i++) {
        __m512i v = (__m512i)sum[i];

        sum[i] = (vec64)(shift == 16 ? _mm512_alignr_epi64(v, before, 6)
                                     : _mm512_alignr_epi64(v, before, 4));
        before = v;
    }
}

/* The first `left` bytes of a vector. */
INLINE skew_lane skew_load_some(const uint8_t *from, ptrdiff_t left)
{
    return masked_load(places_within(places_from(0), 0, left > 0 ? left : 0), from);
}
#else
#    define SKEW_WIDTH 16
enum { SKEW_LANE = 16, SKEW_LANES = 8 };
typedef vec16 skew_lane;
typedef struct {
    vec16 pixels[2]; /* `shift` bytes of them */
} skew_moved;

INLINE void skew_move(skew_lane sum[], skew_moved *moved, size_t shift)
{
    skew_moved before = *moved;
    int n = (int)shift / 16;

    for (int i = 0; i < n; i++)
        moved->pixels[i] = sum[SKEW_LANES - n + i];
    for (int i = SKEW_LANES - 1; i >= 0; i--)
        sum[i] = i >= n ? sum[i - n] : before.pixels[i];
}

INLINE skew_lane skew_load_some(const uint8_t *from, ptrdiff_t left)
{
    return left > 0 ? ld16(from) : (skew_lane){ 0 };
}
#endif

/* One pass, from byte x on, where `left` bytes of the rows are left. */
INLINE void skew_pass(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows,
                      size_t shift, ptrdiff_t x, ptrdiff_t left, skew_moved moved[])
{
    const bool is_whole = left >= SKEW_LANE * SKEW_LANES;
    skew_lane sum[SKEW_LANES] = { { 0 } };

    for (unsigned row = n_rows; row-- > 0;) {
        skew_move(sum, &moved[row], shift);
        for (int i = 0; i < SKEW_LANES && left > 0; i++) {
            const uint8_t *from = rows[row] + x + i * SKEW_LANE;

            sum[i] ^= is_whole ? PASTE(ld, SKEW_WIDTH)(from)
                               : skew_load_some(from, left - i * SKEW_LANE);
        }
    }
    for (int i = 0; i < SKEW_LANES; i++)
        PASTE(st, SKEW_WIDTH)(dst + x + i * SKEW_LANE, sum[i]);
}

INLINE void skew_by(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows,
                    size_t shift, ptrdiff_t row_bytes, ptrdiff_t len)
{
    const ptrdiff_t pass = SKEW_LANE * SKEW_LANES;
    skew_moved moved[CODEC_K_MAX];
    ptrdiff_t x = 0;

    for (unsigned row = 0; row < n_rows; row++)
        moved[row] = (skew_moved){ 0 };
    for (; x < len && x + pass <= row_bytes; x += pass)
        skew_pass(dst, rows, n_rows, shift, x, pass, moved);
    for (; x < len && x < row_bytes; x += pass)
        skew_pass(dst, rows, n_rows, shift, x, row_bytes - x, moved);
    for (; x < len; x += pass)
        skew_pass(dst, rows, n_rows, shift, x, 0, moved);
}

static void skew(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows, size_t shift,
                 size_t row_bytes, size_t len)
{
    if (shift == 16)
        skew_by(dst, rows, n_rows, 16, (ptrdiff_t)row_bytes, (ptrdiff_t)len);
    else
        skew_by(dst, rows, n_rows, 32, (ptrdiff_t)row_bytes, (ptrdiff_t)len);
}

/* ---- the sweep ---- */

enum { FEW = 4 }; /* rows of which a pixel each fits into registers */

#define STEP 16
#define LANE LANE16
#include "codec/kernel_sweep.h"

#define STEP 32
#define LANE LANE32
#include "codec/kernel_sweep.h"

#define STEP 64
#define LANE LANE64
#include "codec/kernel_sweep.h"

/* The rows that want of the row above what was made `bytes` before. */
static uint32_t near_rows(const struct kernel_sweep *sweep, unsigned bytes)
{
    uint32_t near = 0;

    for (unsigned i = 1; i < sweep->n_rows; i++)
        near |= (uint32_t)(sweep->from[i - 1][i - 1] - sweep->from[i][i - 1] == bytes)
                << i;
    return near;
}

/* Steps [s, end), `bytes` bytes each. */
INLINE void sweep_steps(const struct kernel_sweep *sweep, unsigned bytes, uint32_t active,
                        uint32_t near, ptrdiff_t s, ptrdiff_t end, uint8_t *rows)
{
    if (bytes == 64)
        sweep_by64(sweep, active, near, s, end, rows);
    else if (bytes == 32)
        sweep_by32(sweep, active, near, s, end, rows);
    else
        sweep_by16(sweep, active, near, s, end, rows);
}

/* Cut the steps where a row begins or ends: in between the same rows are under way. */
static void sweep_run(const struct kernel_sweep *sweep, uint8_t *rows)
{
    uint32_t near_stride = near_rows(sweep, sweep->stride_bytes);
    uint32_t near_pixel = near_rows(sweep, sweep->pixel_bytes);
    ptrdiff_t s = PTRDIFF_MAX, end = PTRDIFF_MIN, next;

    assert(sweep->n_rows >= 1 && sweep->n_rows <= KERNEL_SWEEP_MAX);
    for (unsigned i = 0; i < sweep->n_rows; i++) {
        ptrdiff_t to = sweep->delay[i] + sweep->row_bytes;

        s = sweep->delay[i] < s ? sweep->delay[i] : s;
        end = to > end ? to : end;
    }
    for (; s < end; s = next) {
        uint32_t active = 0;
        ptrdiff_t whole;

        next = end;
        for (unsigned i = 0; i < sweep->n_rows; i++) {
            ptrdiff_t from = sweep->delay[i], to = from + sweep->row_bytes;

            active |= (uint32_t)(from <= s && s < to) << i;
            next = s < from && from < next ? from : next;
            next = s < to && to < next ? to : next;
        }
        whole = s + ((next - s) & -(ptrdiff_t)sweep->stride_bytes);
        if (s < whole)
            sweep_steps(sweep, sweep->stride_bytes, active, near_stride, s, whole, rows);
        if (whole < next)
            sweep_steps(sweep, sweep->pixel_bytes, active, near_pixel, whole, next, rows);
    }
}

/* ---- rings ---- */

/* Pixels in memory: any alignment, and they may alias whatever the caller calls them. */
typedef uint64_t pixel16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t pixel64 __attribute__((vector_size(64), aligned(1), may_alias));

/* One vector of each of the 17 pixels, from byte x of them on. */
#define DEFINE_RING(pixel)                                                            \
    INLINE void ring_sum_##pixel(uint8_t *dst, bool folds,                            \
                                 const struct kernel_turn turns[], unsigned n_turns,  \
                                 ptrdiff_t pixel_bytes)                               \
    {                                                                                 \
        pixel sum[RING_PIXELS];                                                       \
                                                                                      \
        for (int at = 0; at < RING_PIXELS; at++)                                      \
            sum[at] = (pixel){ 0 };                                                   \
        for (unsigned i = 0; i < n_turns; i++) {                                      \
            const uint8_t *from = turns[i].from;                                      \
            int turn = turns[i].turn, n_pixels = turns[i].n_pixels, at = 0;           \
                                                                                      \
            for (; at < n_pixels - turn; at++)                                        \
                sum[at] ^= *(const pixel *)(from + (at + turn) * pixel_bytes);        \
            for (at = RING_PIXELS - turn; at < RING_PIXELS; at++)                     \
                sum[at] ^=                                                            \
                    *(const pixel *)(from + (at + turn - RING_PIXELS) * pixel_bytes); \
        }                                                                             \
        for (int at = 0; folds && at < RING_PIXELS - 1; at++)                         \
            sum[at] ^= sum[RING_PIXELS - 1];                                          \
        for (int at = 0; at < RING_PIXELS - 1; at++)                                  \
            *(pixel *)(dst + at * pixel_bytes) = sum[at];                             \
        if (!folds)                                                                   \
            *(pixel *)(dst + (RING_PIXELS - 1) * pixel_bytes) = sum[RING_PIXELS - 1]; \
    }                                                                                 \
                                                                                      \
    INLINE void ring_divide_##pixel(uint8_t *ring, const uint8_t path[],              \
                                    ptrdiff_t pixel_bytes)                            \
    {                                                                                 \
        pixel old[RING_PIXELS], last = { 0 };                                         \
                                                                                      \
        for (int at = 0; at < RING_PIXELS; at++)                                      \
            old[at] = *(const pixel *)(ring + at * pixel_bytes);                      \
        *(pixel *)(ring + (RING_PIXELS - 1) * pixel_bytes) = last;                    \
        for (int i = 0; i < 3 * (RING_PIXELS - 1); i += 3) {                          \
            last ^= old[path[i]] ^ old[path[i + 1]];                                  \
            *(pixel *)(ring + path[i + 2] * pixel_bytes) = last;                      \
        }                                                                             \
    }

DEFINE_RING(pixel16)
DEFINE_RING(pixel64)

static void ring_sum(uint8_t *dst, bool folds, const struct kernel_turn turns[],
                     unsigned n_turns, size_t pixel_bytes)
{
    struct kernel_turn at[KERNEL_SOURCES_MAX];
    ptrdiff_t bytes = (ptrdiff_t)pixel_bytes, x = 0;

    assert(n_turns >= 1 && n_turns <= KERNEL_SOURCES_MAX);
    for (unsigned i = 0; i < n_turns; i++) {
        assert(turns[i].turn < RING_PIXELS);
        at[i] = turns[i];
    }
    while (x < bytes) {
        ptrdiff_t size =
            bytes - x >= (ptrdiff_t)sizeof(pixel64) ? sizeof(pixel64) : sizeof(pixel16);

        if (size == sizeof(pixel64))
            ring_sum_pixel64(dst + x, folds, at, n_turns, bytes);
        else
            ring_sum_pixel16(dst + x, folds, at, n_turns, bytes);
        for (unsigned i = 0; i < n_turns; i++)
            at[i].from += size;
        x += size;
    }
}

static void ring_divide(uint8_t *ring, unsigned turn, unsigned step, size_t pixel_bytes)
{
    uint8_t path[3 * (RING_PIXELS - 1)]; /* two that are added, and where the sum goes */
    ptrdiff_t bytes = (ptrdiff_t)pixel_bytes, x = 0;
    unsigned at = RING_PIXELS - 1;

    assert(turn < RING_PIXELS && step >= 1 && step < RING_PIXELS);
    for (unsigned i = 0; i < 3 * (RING_PIXELS - 1); i += 3) {
        path[i] = (uint8_t)((at + turn) % RING_PIXELS);
        path[i + 1] = (uint8_t)((at + turn + step) % RING_PIXELS);
        path[i + 2] = (uint8_t)(at = (at + 2 * step) % RING_PIXELS);
    }
    for (; bytes - x >= (ptrdiff_t)sizeof(pixel64); x += (ptrdiff_t)sizeof(pixel64))
        ring_divide_pixel64(ring + x, path, bytes);
    for (; x < bytes; x += (ptrdiff_t)sizeof(pixel16))
        ring_divide_pixel16(ring + x, path, bytes);
}

const struct kernels KERNEL_TABLE = {
    .skew_pays = WIDEST == 16 ? 8 : 2,
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
