/*
 * codec_impl.h - internals that the codecs share behind codec.h. Only files in codec/
 * include this.
 *
 * A codec is a row of the table in codec.c: a struct codec_ops. To add one, write its
 * functions, give it a number in enum codec_kind, and put it in the table.
 */
#ifndef ROZO_CODEC_IMPL_H
#define ROZO_CODEC_IMPL_H

#include <stdatomic.h>

#include "codec/codec.h"
#include "codec/kernel.h"

/* Part of a projection's geometry that is a constant of (kind, k, n, projection). */
struct codec_projection {
    int16_t p;               /* direction (p, 1); 0 for a row of a systematic code */
    int16_t first_bin;       /* first bin kept, in the coordinate t = column - row * p */
    uint16_t overhang_bytes; /* kept bins beyond the row length, in bytes */
};

/* Way to rebuild the lost rows from one set of k projections. Made once, under a lock, in
 * its place in codec->ways; read only from then on. */
struct codec_way {
    atomic_bool is_made; /* the other members may be used */
    uint8_t n_lost; /* number of rows not in `uses`: all k of a non-systematic code */
    uint8_t lost[CODEC_K_MAX];    /* ascending */
    uint8_t via[CODEC_K_MAX];     /* used projections that are not rows; n_lost of them */
    uint32_t uses;                /* projections that are read: k bits */
    uint32_t kept;                /* rows among them: systematic codes only */
    kernel_decode_fn *full;       /* for blocks of full rows; NULL: none */
    _Alignas(64) uint8_t extra[]; /* ops->way_bytes more, private to the kind */
};

/* Immutable once made, but for ways. Lives for ever. */
struct codec {
    const struct codec_ops *ops;   /* static */
    const struct kernels *kernels; /* static */
    unsigned k, n;
    uint32_t block_bytes;
    uint32_t row_unit;       /* every row is a multiple of it; a power of two */
    uint32_t full_row_bytes; /* row length of a full block */
    unsigned n_plain;        /* projections that are rows: k, or none */
    uint32_t coded;          /* projections that are not rows, as a bitmap */
    struct codec_projection projections[CODEC_N_MAX];
    kernel_encode_fn *encode_coded; /* all of `coded` of a full block; NULL: none */
    kernel_encode_fn *encode_far;   /* as encode_coded, for blocks that are not in L1 */
    kernel_encode_fn *encode_all;   /* as encode_coded, and the rows */
    uint8_t *ways; /* one struct codec_way for each set of k of n, by rank */
    size_t way_bytes;
    _Alignas(64) uint8_t extra[]; /* ops->codec_bytes more, private to the kind */
};

/* One kind of code. */
struct codec_ops {
    unsigned kind;    /* enum codec_kind */
    const char *name; /* as in a volume's configuration */
    bool systematic;
    size_t codec_bytes; /* size of codec->extra */
    size_t way_bytes;   /* size of way->extra */
    /* Fills in row_unit, projections, extra; ops, kernels, k, n, block_bytes are set. */
    void (*geometry)(struct codec *c);
    /* Encodes as codec_encode(), without the rows of a systematic code. */
    void (*encode)(const struct codec *c, const uint8_t *data, size_t row_bytes,
                   uint8_t *const body[], uint8_t *const overhang[]);
    /* Writes projection i, which is not a row, from k rows anywhere. NULL: only encode
     * can. */
    void (*project)(const struct codec *c, unsigned i, const uint8_t *const rows[],
                    size_t row_bytes, uint8_t *body, uint8_t *const overhang[]);
    /* Fills in extra, which is zero; uses, kept, lost and via are set (via ascending by
     * slope). */
    void (*plan)(const struct codec *c, struct codec_way *way);
    /* Writes the lost rows: to rows[lost]. */
    void (*decode)(const struct codec *c, const struct codec_way *way,
                   const uint8_t *const body[], const uint8_t *const overhang[],
                   size_t row_bytes, uint8_t *const rows[]);
    /* Updates as codec_update(), without the rows of a systematic code. */
    void (*update)(const struct codec *c, unsigned row, size_t from, size_t len,
                   const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                   uint8_t *const overhang[]);
    /* Reads of a projection that is not a row, see codec_plan_reads(); NULL: all of
     * it. */
    void (*reads)(const struct codec *c, const struct codec_way *way, unsigned i,
                  size_t row_bytes, struct codec_reads *reads);
};

extern const struct codec_ops mojette_ops;
extern const struct codec_ops mojette_nonsystematic_ops;
extern const struct codec_ops mojette_finite_ops;
extern const struct codec_ops rs_ops;

#endif
