/*
 * codec_impl.h - what the codecs share behind codec.h. Nobody outside codec/ includes
 * this.
 *
 * A codec is a row of the table in codec.c: a struct codec_ops. To add one, write its
 * functions, give it a number in enum codec_kind, and put it in the table.
 */
#ifndef ROZO_CODEC_IMPL_H
#define ROZO_CODEC_IMPL_H

#include <stdatomic.h>

#include "codec/codec.h"
#include "codec/kernel.h"

/* The part of a projection's geometry that is a constant of (kind, k, n, projection). */
struct codec_projection {
    int16_t p;         /* direction (p, 1); 0 for a row of a systematic code */
    int16_t first_bin; /* the first bin kept, in the coordinate t = column - row * p */
    uint16_t overhang_bytes; /* kept bins beyond the row length, in bytes */
};

/*
 * How the lost rows come back from one set of k projections. Made once, under a lock, in
 * its place in codec->ways; read only from then on.
 */
struct codec_way {
    atomic_bool is_made; /* the rest may be looked at */
    uint8_t n_lost; /* rows that are not among `uses`: all k of a non-systematic code */
    uint8_t lost[CODEC_K_MAX];    /* ascending */
    uint8_t via[CODEC_K_MAX];     /* the used projections that are not rows; as many */
    uint32_t uses;                /* projections that are read: k bits */
    uint32_t kept;                /* rows that are among them: systematic codes only */
    kernel_decode_fn *full;       /* for blocks of full rows; NULL: there is none */
    _Alignas(64) uint8_t extra[]; /* ops->way_bytes() more, of the kind's own */
};

/* Immutable once made, but for ways. Lives for ever. */
struct codec {
    const struct codec_ops *ops;   /* static */
    const struct kernels *kernels; /* static */
    unsigned k, n;
    uint32_t block_bytes;
    uint32_t row_unit;       /* every row is a multiple of it; a power of two */
    uint32_t full_row_bytes; /* of a full block */
    unsigned n_plain;        /* projections that are rows: k, or none */
    uint32_t coded;          /* projections that are not rows, as a bitmap */
    struct codec_projection projections[CODEC_N_MAX];
    kernel_encode_fn
        *encode_coded; /* of a full block, all of `coded`; NULL: there is none */
    kernel_encode_fn *encode_far; /* the same for blocks that are not in L1 */
    kernel_encode_fn *encode_all; /* the same and the rows */
    uint8_t *ways; /* one struct codec_way for each set of k of n, by rank */
    size_t way_bytes;
    _Alignas(64) uint8_t extra[]; /* ops->codec_bytes more, of the kind's own */
};

/* One kind of code. */
struct codec_ops {
    unsigned kind;    /* enum codec_kind */
    const char *name; /* as in a volume's configuration */
    bool systematic;
    size_t codec_bytes; /* of codec->extra */
    size_t way_bytes;   /* of way->extra */
    /* Fill in row_unit, projections, extra; ops, kernels, k, n, block_bytes are set. */
    void (*geometry)(struct codec *c);
    /* As codec_encode(), rows of a systematic code left out. */
    void (*encode)(const struct codec *c, const uint8_t *data, size_t row_bytes,
                   uint8_t *const body[], uint8_t *const overhang[]);
    /* Write projection i, which is not a row, of k rows that lie anywhere. NULL: only encode can. */
    void (*project)(const struct codec *c, unsigned i, const uint8_t *const rows[],
                    size_t row_bytes, uint8_t *body, uint8_t *const overhang[]);
    /* uses, kept, lost and via are set (via ascending by slope), extra is zero. */
    void (*plan)(const struct codec *c, struct codec_way *way);
    /* Write the lost rows: to rows[lost]. */
    void (*decode)(const struct codec *c, const struct codec_way *way,
                   const uint8_t *const body[], const uint8_t *const overhang[],
                   size_t row_bytes, uint8_t *const rows[]);
    /* As codec_update(), rows of a systematic code left out. */
    void (*update)(const struct codec *c, unsigned row, size_t from, size_t len,
                   const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                   uint8_t *const overhang[]);
    /* As codec_plan_reads() of a projection that is not a row; NULL: all of it. */
    void (*reads)(const struct codec *c, const struct codec_way *way, unsigned i,
                  size_t row_bytes, struct codec_reads *reads);
};

extern const struct codec_ops mojette_ops;
extern const struct codec_ops mojette_nonsystematic_ops;
extern const struct codec_ops mojette_finite_ops;
extern const struct codec_ops rs_ops;

#endif
