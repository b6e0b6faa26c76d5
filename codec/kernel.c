/*
 * kernel.c - XOR of rows and the sweep, for any geometry. Compiled once for each
 * instruction set, with its flags, KERNEL_TABLE (the name of its struct kernels) and KERNEL_GENERATED
 * (the header of its straight lines).
 *
 * In:     mojette.c. Thread: any. Allocates nothing, calls nothing.
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

const struct kernels KERNEL_TABLE = {
    .xor_rows = xor_rows,
    .sweep = sweep_run,
    .encodes = kernel_encodes,
    .decodes = kernel_decodes,
    .n_encodes = KERNEL_N_ENCODES,
    .n_decodes = KERNEL_N_DECODES,
};
