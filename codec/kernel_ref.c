/*
 * kernel_ref.c - the loops in plain C: slow, obvious, on every machine, kept for ever.
 *
 * In:     mojette.c, finite.c, codec.c. Thread: any. Allocates nothing.
 * Keeps:  exactly the contract of kernel.h: the other instruction sets are tested against
 *         it.
 */
#include <string.h>

#include "codec/kernel.h"

static void xor_word(uint8_t *dst, const uint8_t *src)
{
    uint64_t a, b;

    memcpy(&a, dst, sizeof(a));
    memcpy(&b, src, sizeof(b));
    a ^= b;
    memcpy(dst, &a, sizeof(a));
}

static void xor_rows(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                     size_t len)
{
    memcpy(dst, sources[0], len);
    for (unsigned i = 1; i < n_sources; i++) {
        for (size_t x = 0; x < len; x += sizeof(uint64_t))
            xor_word(dst + x, sources[i] + x);
    }
}

static void add(uint8_t *dst, const uint8_t *src, size_t len)
{
    for (size_t x = 0; x < len; x++)
        dst[x] ^= src[x];
}

static void sum_part(const struct kernel_sum *sum, const struct kernel_part *part)
{
    for (ptrdiff_t x = part->from; x < part->to; x++) {
        uint8_t *dst = part->dst + (x - part->from);

        *dst = part->base != NULL ? part->base[x - part->from] : 0;
        for (unsigned i = 0; i < sum->n_rows; i++) {
            if (sum->start[i] <= x && x < sum->start[i] + sum->row_bytes)
                *dst ^= sum->src[1 + i][x];
        }
    }
}

static void sum_run(struct kernel_sum *sum, const struct kernel_part *parts,
                    unsigned n_parts)
{
    for (unsigned i = 0; i < n_parts; i++)
        sum_part(sum, &parts[i]);
}

static void skew(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows, size_t shift,
                 size_t row_bytes, size_t len)
{
    for (size_t x = 0; x < len; x++) {
        dst[x] = 0;
        for (unsigned i = 0; i < n_rows; i++) {
            if (x >= i * shift && x - i * shift < row_bytes)
                dst[x] ^= rows[i][x - i * shift];
        }
    }
}

static void sweep_pixel(const struct kernel_sweep *sweep, unsigned i, uint8_t *at)
{
    for (unsigned j = 0; j < sweep->n_rows; j++) {
        if (j == i)
            continue;
        for (size_t x = 0; x < sweep->pixel_bytes; x += sizeof(uint64_t))
            xor_word(at + sweep->from[i][i] + x, at + sweep->from[i][j] + x);
    }
}

static void sweep_run(const struct kernel_sweep *sweep, uint8_t *rows)
{
    ptrdiff_t first = sweep->delay[0], last = sweep->delay[0];

    for (unsigned i = 1; i < sweep->n_rows; i++) {
        first = sweep->delay[i] < first ? sweep->delay[i] : first;
        last = sweep->delay[i] > last ? sweep->delay[i] : last;
    }
    for (ptrdiff_t s = first; s < last + sweep->row_bytes; s += sweep->pixel_bytes) {
        for (unsigned i = sweep->n_rows; i-- > 0;) {
            if (s >= sweep->delay[i] && s < sweep->delay[i] + sweep->row_bytes)
                sweep_pixel(sweep, i, rows + s);
        }
    }
}

static void ring_sum(uint8_t *dst, bool folds, const struct kernel_turn turns[],
                     unsigned n_turns, size_t pixel_bytes)
{
    for (size_t x = 0; x < pixel_bytes; x += sizeof(uint64_t)) {
        uint8_t sum[RING_PIXELS][sizeof(uint64_t)] = { { 0 } };
        unsigned n_dst = folds ? RING_PIXELS - 1 : RING_PIXELS;

        for (unsigned i = 0; i < n_turns; i++) {
            for (unsigned at = 0; at < RING_PIXELS; at++) {
                unsigned pixel = (at + turns[i].turn) % RING_PIXELS;

                if (pixel < RING_PIXELS - 1 || turns[i].is_ring)
                    xor_word(sum[at], turns[i].from + pixel * pixel_bytes + x);
            }
        }
        for (unsigned at = 0; at < n_dst; at++) {
            if (folds)
                xor_word(sum[at], sum[RING_PIXELS - 1]);
            memcpy(dst + at * pixel_bytes + x, sum[at], sizeof(uint64_t));
        }
    }
}

static void ring_divide(uint8_t *ring, const uint8_t *from, const uint8_t *also,
                        unsigned turn, unsigned step, size_t pixel_bytes)
{
    unsigned at = RING_PIXELS - 1;

    memset(ring + at * pixel_bytes, 0, pixel_bytes);
    for (unsigned i = 1; i < RING_PIXELS; i++) {
        unsigned next = (at + 2 * step) % RING_PIXELS;
        size_t one = (at + turn) % RING_PIXELS, two = (at + turn + step) % RING_PIXELS;

        memcpy(ring + next * pixel_bytes, ring + at * pixel_bytes, pixel_bytes);
        for (size_t x = 0; x < pixel_bytes; x += sizeof(uint64_t)) {
            xor_word(ring + next * pixel_bytes + x, from + one * pixel_bytes + x);
            xor_word(ring + next * pixel_bytes + x, from + two * pixel_bytes + x);
            if (also == NULL)
                continue;
            xor_word(ring + next * pixel_bytes + x, also + one * pixel_bytes + x);
            xor_word(ring + next * pixel_bytes + x, also + two * pixel_bytes + x);
        }
        at = next;
    }
}

const struct kernels kernels_ref = {
    .skew_pays = 2,
    .xor_rows = xor_rows,
    .add = add,
    .sum = sum_run,
    .skew = skew,
    .sweep = sweep_run,
    .ring_sum = ring_sum,
    .ring_divide = ring_divide,
};
