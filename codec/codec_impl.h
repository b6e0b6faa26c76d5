/*
 * codec_impl.h - what the codecs share behind codec.h. Nobody outside codec/ includes
 * this.
 *
 * A codec is a row of the table in codec.c: a struct codec_ops. To add one, write its
 * functions, give it a number in enum codec_kind, and put it in the table.
 */
#ifndef ROZO_CODEC_IMPL_H
#define ROZO_CODEC_IMPL_H

#include "codec/codec.h"

/* The part of a projection's geometry that is a constant of (kind, layout,
 * projection). */
struct codec_projection {
    int16_t p;         /* direction (p, 1); 0 for a row of a systematic code */
    int16_t first_bin; /* the first bin kept, in the coordinate t = column - row * p */
    uint16_t overhang_bytes; /* kept bins beyond the row length, in bytes */
};

/* Immutable once built. */
struct codec {
    const struct codec_ops *ops;       /* static */
    const struct codec_layout *layout; /* static */
    uint32_t block_bytes;
    uint32_t pixel_bytes;
    struct codec_projection projections[CODEC_N_MAX];
};

/* What lies in struct codec_plan: row `lost[i]` is rebuilt from projection `via[i]`. */
struct codec_plan_impl {
    const struct codec *codec; /* borrowed; codecs live for ever */
    uint32_t uses;             /* projections that are read */
    uint32_t kept;             /* rows that are among them: systematic codes only */
    uint8_t n_lost;
    uint8_t lost[CODEC_K_MAX];  /* ascending */
    uint8_t via[CODEC_K_MAX];   /* ascending p */
    int16_t delay[CODEC_K_MAX]; /* of the sweep, in columns; see mojette.c */
    uint16_t margin;            /* of the sweep, in columns */
};

_Static_assert(sizeof(struct codec_plan_impl) <= CODEC_PLAN_BYTES,
               "grow CODEC_PLAN_BYTES");

/* One kind of code. */
struct codec_ops {
    unsigned kind;    /* enum codec_kind */
    const char *name; /* as in a volume's configuration */
    bool systematic;
    /* Fill in pixel_bytes and projections; ops, layout and block_bytes are set. */
    void (*geometry)(struct codec *c);
    void (*encode)(const struct codec *c, const uint8_t *data, size_t row_bytes,
                   uint8_t *const body[], uint8_t *const overhang[]);
    /* codec and uses are set, the rest is zero; uses has exactly k bits. */
    void (*plan)(struct codec_plan_impl *plan);
    void (*decode)(const struct codec_plan_impl *plan, const uint8_t *const body[],
                   const uint8_t *const overhang[], size_t row_bytes, uint8_t *data);
};

extern const struct codec_ops mojette_ops;
extern const struct codec_ops mojette_nonsystematic_ops;

#endif
