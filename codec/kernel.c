/*
 * kernel.c - XOR of rows, the sweep, and rings, for any geometry. Compiled once for each
 * instruction set, with its flags, KERNEL_TABLE (the name of its struct kernels) and KERNEL_GENERATED
 * (the header of its straight lines).
 *
 * In:     mojette.c, finite.c. Thread: any. Allocates nothing, calls nothing.
 * Yours:  everything behind kernel.h. Look at the assembly after a change: the loops keep
 *         their pointers in registers and their pixels in vectors.
 */
#include "codec/kernel.h"

#include <assert.h>
#include <stdbool.h>

#include KERNEL_GENERATED

#define INLINE static inline __attribute__((always_inline))

/* Pixels in memory: any alignment, and they may alias whatever the caller calls them. */
typedef uint64_t pixel16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t pixel64 __attribute__((vector_size(64), aligned(1), may_alias));

INLINE void xor_n(uint8_t *dst, const uint8_t *const sources[], unsigned n, size_t len)
{
    const uint8_t *src[KERNEL_SOURCES_MAX]; /* stores to dst cannot change these */
    size_t x = 0;

    for (unsigned i = 0; i < n; i++)
        src[i] = sources[i];
    for (; x + sizeof(pixel64) <= len; x += sizeof(pixel64)) {
        pixel64 sum = *(const pixel64 *)(src[0] + x);

        for (unsigned i = 1; i < n; i++)
            sum ^= *(const pixel64 *)(src[i] + x);
        *(pixel64 *)(dst + x) = sum;
    }
    for (; x < len; x += sizeof(pixel16)) {
        pixel16 sum = *(const pixel16 *)(src[0] + x);

        for (unsigned i = 1; i < n; i++)
            sum ^= *(const pixel16 *)(src[i] + x);
        *(pixel16 *)(dst + x) = sum;
    }
}

#define CASE_XOR(n)                  \
    case n:                          \
        xor_n(dst, sources, n, len); \
        break

static void xor_rows(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                     size_t len)
{
    assert(n_sources >= 1 && n_sources <= KERNEL_SOURCES_MAX);
    switch (n_sources) {
        CASE_XOR(1);
        CASE_XOR(2);
        CASE_XOR(3);
        CASE_XOR(4);
        CASE_XOR(5);
        CASE_XOR(6);
        CASE_XOR(7);
        CASE_XOR(8);
    default:
        xor_n(dst, sources, n_sources, len);
    }
}

/*
 * Steps [s, end) of a sweep over n rows of pixels of the given type. `guarded` steps
 * leave out the rows that have not begun or are done. In the others all rows are under
 * way, and the pixel that row i wants of row i + 1 is the one just rebuilt: it stays in a
 * register, which halves the chain of one pixel waiting for another.
 */
#define DEFINE_SWEEP(pixel)                                                             \
    INLINE void sweep_steps_##pixel(const struct kernel_sweep *sweep, unsigned n,       \
                                    bool guarded, ptrdiff_t s, ptrdiff_t end,           \
                                    uint8_t *rows)                                      \
    {                                                                                   \
        for (; s < end; s++) {                                                          \
            ptrdiff_t at = s * (ptrdiff_t)sizeof(pixel);                                \
            pixel below = { 0 }; /* of row i + 1, this step's */                        \
                                                                                        \
            for (unsigned i = n; i-- > 0;) {                                            \
                ptrdiff_t column = s - sweep->delay[i];                                 \
                pixel sum;                                                              \
                                                                                        \
                if (guarded && (column < 0 || column >= sweep->n_cols))                 \
                    continue;                                                           \
                sum = *(const pixel *)(rows + (sweep->from[i][i] + at));                \
                for (unsigned j = 0; j < n; j++) {                                      \
                    if (j != i && (guarded || j != i + 1))                              \
                        sum ^= *(const pixel *)(rows + (sweep->from[i][j] + at));       \
                }                                                                       \
                sum ^= guarded ? (pixel){ 0 } : below;                                  \
                below = sum;                                                            \
                *(pixel *)(rows + (sweep->from[i][i] + at)) = sum;                      \
                *(pixel *)(sweep->to[i] + column * (ptrdiff_t)sizeof(pixel)) = sum;     \
            }                                                                           \
        }                                                                               \
    }                                                                                   \
                                                                                        \
    INLINE void sweep_##pixel(const struct kernel_sweep *shared, unsigned n,            \
                              uint8_t *rows)                                            \
    {                                                                                   \
        struct kernel_sweep sweep = *shared; /* ours: stores to out cannot change it */ \
        ptrdiff_t first = sweep.delay[0], last = sweep.delay[0];                        \
        ptrdiff_t all_from, all_to, end;                                                \
                                                                                        \
        for (unsigned i = 1; i < n; i++) {                                              \
            first = sweep.delay[i] < first ? sweep.delay[i] : first;                    \
            last = sweep.delay[i] > last ? sweep.delay[i] : last;                       \
        }                                                                               \
        end = last + sweep.n_cols;                                                      \
        all_to = first + sweep.n_cols;                                                  \
        all_from = last < all_to ? last : all_to;                                       \
        sweep_steps_##pixel(&sweep, n, true, first, all_from, rows);                    \
        sweep_steps_##pixel(&sweep, n, false, all_from, all_to, rows);                  \
        sweep_steps_##pixel(&sweep, n, true, all_to, end, rows);                        \
    }

DEFINE_SWEEP(pixel16)
DEFINE_SWEEP(pixel64)

static void sweep_run(const struct kernel_sweep *sweep, unsigned pixel_bytes,
                      uint8_t *rows)
{
    assert(sweep->n_rows >= 1 && sweep->n_rows <= KERNEL_SWEEP_MAX);
    for (unsigned i = 0; i + 1 < sweep->n_rows; i++)
        assert(sweep->from[i][i + 1] == sweep->from[i + 1][i + 1]);
    assert(pixel_bytes == sizeof(pixel16) || pixel_bytes == sizeof(pixel64));
    if (pixel_bytes == sizeof(pixel64)) {
        if (sweep->n_rows == 2)
            sweep_pixel64(sweep, 2, rows);
        else
            sweep_pixel64(sweep, sweep->n_rows, rows);
        return;
    }
    switch (sweep->n_rows) {
    case 2:
        sweep_pixel16(sweep, 2, rows);
        break;
    case 3:
        sweep_pixel16(sweep, 3, rows);
        break;
    case 4:
        sweep_pixel16(sweep, 4, rows);
        break;
    case 8:
        sweep_pixel16(sweep, 8, rows);
        break;
    default:
        sweep_pixel16(sweep, sweep->n_rows, rows);
    }
}

/* ---- rings ---- */

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
    .xor_rows = xor_rows,
    .sweep = sweep_run,
    .ring_sum = ring_sum,
    .ring_divide = ring_divide,
    .encodes = kernel_encodes,
    .decodes = kernel_decodes,
    .n_encodes = KERNEL_N_ENCODES,
    .n_decodes = KERNEL_N_DECODES,
};
