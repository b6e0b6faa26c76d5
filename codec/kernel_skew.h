/*
 * kernel_skew.h - sums of rows that are shifted by SHIFT bytes each, with vectors of LANE
 * bytes. kernel.c includes it once for each SHIFT; it defines skew_by16() or skew_by32().
 *
 * As in Horner's rule: the sum so far moves on by SHIFT, then the next row is added, in
 * the same place each time. A pass does that to SKEW_PASS neighbouring bytes in
 * registers; the bytes that move out of them at each row move into those of the next
 * pass.
 *
 * In:     kernel.c. Thread: any.
 * Yours:  all of it. A LANE is 64, or divides SHIFT: then moving on is only another name
 *         for a register.
 */

#define NAME(word) PASTE(word, SHIFT)
#define LANE_LOAD  PASTE(ld, LANE)
#define LANE_STORE PASTE(st, LANE)

enum {
    NAME(n_lanes) = SKEW_PASS / LANE,
    NAME(n_moved) = LANE < SHIFT ? SHIFT / LANE : 1
};

typedef PASTE(vec, LANE) NAME(lane_of);

/* The end of a pass; for vectors longer than SHIFT, all of the last one. */
typedef struct {
    NAME(lane_of) lanes[NAME(n_moved)];
} NAME(moved_by);

INLINE void NAME(move_by)(NAME(lane_of) sum[], NAME(moved_by) * moved)
{
    const int n = NAME(n_moved), last = NAME(n_lanes) - 1;
    NAME(moved_by) before = *moved;

    for (int i = 0; i < n; i++)
        moved->lanes[i] = sum[last - n + 1 + i];
    for (int i = last; i >= 0; i--) {
        NAME(lane_of) from = i >= n ? sum[i - n] : before.lanes[i];
#if LANE == 64
        from = (vec64)_mm512_alignr_epi64((__m512i)sum[i], (__m512i)from, 8 - SHIFT / 8);
#endif
        sum[i] = from;
    }
}

/* Makes one pass, from byte x on. left counts only where the pass gets some of the
 * rows. */
INLINE void NAME(skew_pass)(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows,
                            ptrdiff_t x, enum skew_part part, ptrdiff_t left,
                            NAME(moved_by) moved[])
{
    NAME(lane_of) sum[NAME(n_lanes)] = { { 0 } };
#if LANE > 16
    mask has[NAME(n_lanes)];

    for (int i = 0; i < NAME(n_lanes); i++)
        has[i] = places_within(places_from(0), 0, left > i * LANE ? left - i * LANE : 0);
#endif
    for (unsigned row = n_rows; row-- > 0;) {
        const uint8_t *from = rows[row] + x;

        NAME(move_by)(sum, &moved[row]);
        for (int i = 0; i < NAME(n_lanes); i++, from += LANE) {
            if (part == SKEW_WHOLE)
                sum[i] ^= LANE_LOAD(from);
#if LANE > 16
            else if (part == SKEW_SOME)
                sum[i] ^= masked_load(has[i], from);
#else
            else if (part == SKEW_SOME && left > i * LANE)
                sum[i] ^= LANE_LOAD(from);
#endif
        }
    }
    for (int i = 0; i < NAME(n_lanes); i++)
        LANE_STORE(dst + x + i * LANE, sum[i]);
}

static void NAME(skew_by)(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows,
                          ptrdiff_t row_bytes, ptrdiff_t len)
{
    NAME(moved_by) moved[CODEC_K_MAX];
    ptrdiff_t x = 0;

    for (unsigned row = 0; row < n_rows; row++)
        moved[row] = (NAME(moved_by)){ 0 };
    for (; x < len && x + SKEW_PASS <= row_bytes; x += SKEW_PASS)
        NAME(skew_pass)(dst, rows, n_rows, x, SKEW_WHOLE, 0, moved);
    if (x < len && x < row_bytes) {
        NAME(skew_pass)(dst, rows, n_rows, x, SKEW_SOME, row_bytes - x, moved);
        x += SKEW_PASS;
    }
    for (; x < len; x += SKEW_PASS)
        NAME(skew_pass)(dst, rows, n_rows, x, SKEW_NONE, 0, moved);
}

#undef NAME
#undef LANE_LOAD
#undef LANE_STORE
#undef SHIFT
#undef LANE
