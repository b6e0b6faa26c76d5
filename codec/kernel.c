/*
 * kernel.c - XOR of rows and the sweep: where the codec's time goes.
 *
 * In:     mojette.c. Thread: any. Allocates nothing, calls nothing.
 * Yours:  everything behind kernel.h. Look at the assembly after a change: the loops keep
 *         their pointers in registers and their pixels in vectors.
 */
#include "codec/kernel.h"

#include <assert.h>
#include <stdbool.h>

/* One function for each kind of machine. Not under sanitizers: the choice runs in the
 * loader, before they are ready. Not with clang, whose version of it (14) does not
 * link across files. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#    define KERNEL __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#    define KERNEL
#endif

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

KERNEL void kernel_xor(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                       size_t len)
{
    assert(n_sources >= 1 && n_sources <= KERNEL_SOURCES_MAX);
    switch (n_sources) {
    case 1:
        xor_n(dst, sources, 1, len);
        break;
    case 2:
        xor_n(dst, sources, 2, len);
        break;
    case 3:
        xor_n(dst, sources, 3, len);
        break;
    case 4:
        xor_n(dst, sources, 4, len);
        break;
    case 5:
        xor_n(dst, sources, 5, len);
        break;
    case 6:
        xor_n(dst, sources, 6, len);
        break;
    case 7:
        xor_n(dst, sources, 7, len);
        break;
    case 8:
        xor_n(dst, sources, 8, len);
        break;
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
                                    uint8_t *rows, uint8_t *out)                        \
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
                *(pixel *)(out + (sweep->to[i] + at)) = sum;                            \
            }                                                                           \
        }                                                                               \
    }                                                                                   \
                                                                                        \
    INLINE void sweep_##pixel(const struct kernel_sweep *shared, unsigned n,            \
                              uint8_t *rows, uint8_t *out)                              \
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
        sweep_steps_##pixel(&sweep, n, true, first, all_from, rows, out);               \
        sweep_steps_##pixel(&sweep, n, false, all_from, all_to, rows, out);             \
        sweep_steps_##pixel(&sweep, n, true, all_to, end, rows, out);                   \
    }

DEFINE_SWEEP(pixel16)
DEFINE_SWEEP(pixel64)

KERNEL void kernel_sweep(const struct kernel_sweep *sweep, unsigned pixel_bytes,
                         uint8_t *rows, uint8_t *out)
{
    assert(sweep->n_rows >= 1 && sweep->n_rows <= KERNEL_SWEEP_MAX);
    for (unsigned i = 0; i + 1 < sweep->n_rows; i++)
        assert(sweep->from[i][i + 1] == sweep->from[i + 1][i + 1]);
    assert(pixel_bytes == sizeof(pixel16) || pixel_bytes == sizeof(pixel64));
    if (pixel_bytes == sizeof(pixel64)) {
        if (sweep->n_rows == 2)
            sweep_pixel64(sweep, 2, rows, out);
        else
            sweep_pixel64(sweep, sweep->n_rows, rows, out);
        return;
    }
    switch (sweep->n_rows) {
    case 2:
        sweep_pixel16(sweep, 2, rows, out);
        break;
    case 3:
        sweep_pixel16(sweep, 3, rows, out);
        break;
    case 4:
        sweep_pixel16(sweep, 4, rows, out);
        break;
    case 8:
        sweep_pixel16(sweep, 8, rows, out);
        break;
    default:
        sweep_pixel16(sweep, sweep->n_rows, rows, out);
    }
}
