/*
 * codec.h - erasure codes: memory in, memory out.
 *
 * A block of up to block_bytes user bytes is cut into k rows of equal length. The codec turns
 * it into n projections, any k of which give the block back. A projection has a *body* of
 * exactly one row length and an *overhang*: the few bins by which a projection in a slanted
 * direction is longer than a row. The length of the overhang is a constant of (codec, layout,
 * projection), 0 for most; short blocks have the same overhang as full ones.
 *
 * Which bins those are, and why any k projections suffice, stands in docs/CODEC.md.
 *
 * Everything here allocates nothing and cannot fail unless a signature says otherwise; every
 * call may be made from any thread; a struct codec is immutable and lives for ever.
 *
 * Sources: J.-P. Guedon (ed.), The Mojette Transform: Theory and Applications, ISTE/Wiley 2009;
 * M. Katz, Questions of Uniqueness and Resolution in Reconstruction from Projections, 1978;
 * N. Normand, A. Kingston, P. Evenou, A Geometry Driven Reconstruction Algorithm for the Mojette
 * Transform, DGCI 2006; D. Pertin et al., Performance Evaluation of the Mojette Erasure Code for
 * Fault-Tolerant Distributed Hot Data Storage, 2015.
 */
#ifndef ROZO_CODEC_H
#define ROZO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODEC_K_MAX = 16,          /* rows */
    CODEC_N_MAX = 20,          /* projections; n - k <= CODEC_M_MAX */
    CODEC_M_MAX = 4,           /* projections that may be lost */
    CODEC_BLOCK_MAX = 8192,    /* user bytes in a block; 4096 is the other legal size */
    CODEC_OVERHANG_MAX = 1024, /* bytes of the largest overhang of any codec */
    CODEC_ALIGN = 64,          /* wanted alignment of every buffer; any works, slower */
    CODEC_PLAN_BYTES = 512,    /* a struct codec_plan fits in this */
};

/* Numbers as they stand in inodes, header pages and on the wire: never reuse one. */
enum codec_kind {
    CODEC_MOJETTE = 1, /* systematic: k rows, then n - k projections (p, 1) */
    CODEC_MOJETTE_NONSYSTEMATIC = 2, /* the papers': n projections, p around 0, trimmed */
};

/* The three layouts every cluster knows; see codec_layout(). */
struct codec_layout {
    uint8_t layout; /* 0, 1, 2 */
    uint8_t k;      /* rows; projections a read needs */
    uint8_t n;      /* projections written */
    uint8_t safe;   /* candidate storages of a distribution */
};

struct codec;

/** The table of layouts: 0 (2,3,4), 1 (4,6,8), 2 (8,12,16); NULL for any other number. */
const struct codec_layout *codec_layout(unsigned layout);

/** Name of a kind ("mojette", "mojette-nonsystematic"), NULL if unknown; and back, 0 if unknown. */
const char *codec_kind_name(unsigned kind);
unsigned codec_kind_by_name(const char *name);
/** The i-th known kind, for listings; 0 past the last. */
unsigned codec_kind_at(unsigned i);

/**
 * The codec of (kind, layout, block_bytes). Built on first use, thread-safe, never freed.
 * @return NULL when there is no such kind or layout, or block_bytes is not 4096 or 8192.
 */
const struct codec *codec_get(unsigned kind, unsigned layout, size_t block_bytes);

unsigned codec_k(const struct codec *c);
unsigned codec_n(const struct codec *c);
size_t codec_block_bytes(const struct codec *c);
/** Pixel size: every row length is a multiple of this. Power of two, 16..64. */
size_t codec_pixel_bytes(const struct codec *c);
/** True when projection i < k is row i itself, so that a healthy read computes nothing. */
bool codec_is_systematic(const struct codec *c);

/**
 * Bytes of one row of a block that holds user_bytes (0..block_bytes): ceil(user_bytes / (k *
 * pixel)) * pixel, 0 for 0. It is also the length of the body of every projection. A full
 * block's rows are block_bytes / k.
 */
size_t codec_row_bytes(const struct codec *c, size_t user_bytes);

/** Bytes of the overhang of projection i, 0..CODEC_OVERHANG_MAX; the same for short blocks. */
size_t codec_overhang_bytes(const struct codec *c, unsigned i);

/**
 * Encode one block.
 *
 * @param data      k * row_bytes bytes: row l starts at data + l * row_bytes. The caller has
 *                  padded the user's bytes with zeros up to there.
 * @param row_bytes what codec_row_bytes() said, not 0.
 * @param body      n pointers; body[i] takes row_bytes bytes of projection i, all written.
 *                  NULL: not wanted (rows of a systematic code are sent from data itself).
 *                  Must not overlap data or one another.
 * @param overhang  n pointers, looked at only where codec_overhang_bytes() is not 0 and body[i]
 *                  is not NULL; takes that many bytes, all written.
 */
void codec_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                  uint8_t *const body[], uint8_t *const overhang[]);

/* How to get the rows back from one set of projections. Make it once, use it for many blocks. */
struct codec_plan {
    _Alignas(8) uint8_t opaque[CODEC_PLAN_BYTES];
};

/**
 * Plan a decode from exactly the projections whose bits are set in `have`; bits beyond the
 * first k set ones (lowest index first) are ignored.
 * @return 0, or -EINVAL when fewer than k bits below n are set (*plan untouched).
 */
int codec_plan_init(const struct codec *c, uint32_t have, struct codec_plan *plan);

/** The projections the plan reads, a bitmap with exactly k bits. */
uint32_t codec_plan_uses(const struct codec_plan *plan);

/**
 * Decode one block.
 *
 * @param body      n pointers; those in codec_plan_uses() are read, the others ignored. For a
 *                  systematic code body[i] for i < k may be data + i * row_bytes itself: then
 *                  the row is already in place and is not copied.
 * @param overhang  n pointers, read where a used projection has an overhang.
 * @param row_bytes as at encode.
 * @param data      out: k * row_bytes bytes, all written. Otherwise must not overlap bodies.
 * Uses no more than 64 KB of stack.
 */
void codec_decode(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes, uint8_t *data);

/** crc32c (Castagnoli, reflected, init and xorout ~0) of len bytes, continuing from crc (0 to start). */
uint32_t codec_crc32c(uint32_t crc, const void *buf, size_t len);

#endif
