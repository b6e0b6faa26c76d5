/*
 * kernel_sweep.h - the steps of a sweep, STEP bytes each, made of vectors of LANE bytes.
 * kernel.c includes it once for each STEP; it defines sweep_n16(), sweep_n32() or
 * sweep_n64().
 *
 * In:     kernel.c. Thread: any.
 * Yours:  all of it. The chain of one pixel waiting for another is the cost, look there
 *         first.
 */

#define NAME(word) PASTE(word, STEP)
#define LANE_LOAD  PASTE(ld, LANE)
#define LANE_STORE PASTE(st, LANE)

typedef PASTE(vec, LANE) NAME(lane);

/* STEP bytes of a row. */
typedef struct {
    NAME(lane) lanes[STEP / LANE];
} NAME(piece);

INLINE NAME(piece) NAME(piece_load)(const uint8_t *from)
{
    NAME(piece) piece;

    for (unsigned i = 0; i < STEP / LANE; i++)
        piece.lanes[i] = LANE_LOAD(from + i * LANE);
    return piece;
}

INLINE void NAME(piece_store)(uint8_t *to, NAME(piece) piece)
{
    for (unsigned i = 0; i < STEP / LANE; i++)
        LANE_STORE(to + i * LANE, piece.lanes[i]);
}

INLINE NAME(piece) NAME(piece_xor)(NAME(piece) a, NAME(piece) b)
{
    for (unsigned i = 0; i < STEP / LANE; i++)
        a.lanes[i] ^= b.lanes[i];
    return a;
}

/* Makes steps [s, end) while exactly the rows in `active` are under way, the others being
 * zero wherever this step or the one before touches them. from is sweep->from, or a copy
 * that stores to rows cannot change.
 *
 * Row i uses the pixel of row i + 1 made in this step and, if i is in `near`, the pixel
 * of row i - 1 made in the step before. If n is a constant and not too great, those
 * pixels stay in registers. */
INLINE void NAME(sweep_n)(const int32_t from[][KERNEL_SWEEP_MAX], unsigned n,
                          uint32_t active, uint32_t near, ptrdiff_t s, ptrdiff_t end,
                          uint8_t *rows)
{
    const NAME(piece) zero = { 0 };
    const bool is_held = n <= HELD;
    NAME(piece) before[HELD] = { 0 }; /* row i, in the step before */

    for (unsigned i = 1; is_held && i < n; i++) {
        if ((near & active) >> i & 1)
            before[i - 1] = NAME(piece_load)(rows + from[i][i - 1] + s);
    }
    for (; s < end; s += STEP) {
        NAME(piece) sum = zero; /* row i + 1, in this step */
        uint8_t *at = rows + s;

#pragma GCC unroll 16
        for (unsigned i = n; i-- > 0;) {
            NAME(piece) below = sum;

            sum = zero;
            if (active >> i & 1) {
                sum = NAME(piece_load)(at + from[i][i]);
#pragma GCC unroll 16
                for (unsigned j = 0; j < n; j++) {
                    if (j != i && j != i + 1 && (j + 1 != i || !is_held))
                        sum = NAME(piece_xor)(sum, NAME(piece_load)(at + from[i][j]));
                }
                if (i > 0 && is_held)
                    sum =
                        NAME(piece_xor)(sum, (near >> i & 1) != 0
                                                 ? before[i - 1]
                                                 : NAME(piece_load)(at + from[i][i - 1]));
                sum = NAME(piece_xor)(sum, below);
                NAME(piece_store)(at + from[i][i], sum);
            }
            if (is_held)
                before[i] = sum;
        }
    }
}

#undef NAME
#undef LANE_LOAD
#undef LANE_STORE
#undef STEP
#undef LANE
