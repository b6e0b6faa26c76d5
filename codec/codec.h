/*
 * codec.h - erasure codes: memory in, memory out.
 *
 * A block of up to block_bytes user bytes is cut into k rows of equal length. The codec
 * turns it into n projections, any k of which give the block back. A projection has a
 * *body* of exactly one row length and an *overhang*: the few bins by which a projection
 * in a slanted direction is longer than a row. The length of the overhang is a constant
 * of (codec, layout, projection), 0 for most; short blocks have an overhang as long as
 * full ones.
 *
 * docs/CODEC.md defines these bins and proves that any k projections suffice.
 *
 * Only codec_open() and its like allocate. Nothing else does, nothing fails unless its
 * signature says so, every call may be made from any thread, and a struct codec is
 * immutable and lives for ever.
 *
 * Sources: J.-P. Guedon (ed.), The Mojette Transform: Theory and Applications, ISTE/Wiley
 * 2009; M. Katz, Questions of Uniqueness and Resolution in Reconstruction from
 * Projections, 1978; N. Normand, A. Kingston, P. Evenou, A Geometry Driven Reconstruction
 * Algorithm for the Mojette Transform, DGCI 2006; D. Pertin et al., Performance
 * Evaluation of the Mojette Erasure Code for Fault-Tolerant Distributed Hot Data Storage,
 * 2015.
 */
#ifndef ROZO_CODEC_H
#define ROZO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODEC_K_MAX = 16,       /* rows */
    CODEC_N_MAX = 20,       /* projections; n - k <= CODEC_M_MAX */
    CODEC_M_MAX = 4,        /* projections that may be lost */
    CODEC_BLOCK_MAX = 8192, /* user bytes in a block; 4096 is the other legal size */
    /* k * row_bytes of any codec, also where k does not divide a block */
    CODEC_DATA_MAX = 12288,
    CODEC_OVERHANG_MAX = 1024, /* bytes of the largest overhang of any codec */
    CODEC_ALIGN = 64,          /* best alignment of every buffer; any works, slower */
};

/* Numbers in inodes, header pages and on the wire: never reuse one. */
enum codec_kind {
    CODEC_MOJETTE = 1, /* systematic: k rows, then n - k projections (p, 1) */
    CODEC_MOJETTE_NONSYSTEMATIC = 2, /* the papers': n projections, p around 0, trimmed */
    CODEC_MOJETTE_FINITE = 3,        /* systematic, bins modulo 17: no overhang */
    CODEC_RS = 4,                    /* systematic Reed-Solomon (Cauchy), by isa-l */
};

/* Instruction sets the inner loops are built for, worst first. */
enum codec_isa {
    CODEC_ISA_REF,    /* plain C, 8 bytes at a time */
    CODEC_ISA_128,    /* 16-byte vectors: SSE2, NEON */
    CODEC_ISA_AVX2,   /* 32 */
    CODEC_ISA_AVX512, /* 64: F, BW, VL, DQ */
    CODEC_ISA_COUNT,
};

/* The three layouts every cluster knows; see codec_layout(). */
struct codec_layout {
    uint8_t layout; /* 0, 1, 2 */
    uint8_t k;      /* rows; projections a read needs */
    uint8_t n;      /* projections written */
    uint8_t safe;   /* candidate storages of a distribution */
};

struct codec;

/**
 * Returns the entry of the table of layouts: 0 (2,3,4), 1 (4,6,8), 2 (8,12,16); NULL for
 * any other number.
 */
const struct codec_layout *codec_layout(unsigned layout);

/**
 * Return the name of a kind ("mojette", "rs", ...), NULL if unknown; and the kind of a
 * name, 0 if unknown.
 */
const char *codec_kind_name(unsigned kind);
unsigned codec_kind_by_name(const char *name);
/** Returns the i-th known kind, for listings; 0 past the last. */
unsigned codec_kind_at(unsigned i);

/**
 * Returns the name of an instruction set ("ref", "sse2" or "neon", "avx2", "avx512");
 * NULL past the last.
 */
const char *codec_isa_name(enum codec_isa isa);
/** Returns true when this build has it and this machine can run it. */
bool codec_isa_usable(enum codec_isa isa);
/**
 * Returns the best usable one, or the one that ROZO_CODEC_ISA names if that is usable
 * (any other name is ignored). Found once.
 */
enum codec_isa codec_isa_default(void);

/**
 * Returns the codec of (kind, k, n, block_bytes). Made on first use, thread-safe, never
 * freed; equal arguments give an equal pointer.
 * @return NULL with errno EINVAL when there is no such kind, k is not 1..CODEC_K_MAX, n -
 *         k not 1..CODEC_M_MAX, or block_bytes neither 4096 nor 8192; with ENOMEM when
 *         there is no memory.
 */
const struct codec *codec_open(unsigned kind, unsigned k, unsigned n, size_t block_bytes);
/**
 * Returns a codec with the loops of one instruction set, for tests and benchmarks; EINVAL
 * if not usable.
 */
const struct codec *codec_open_isa(unsigned kind, unsigned k, unsigned n,
                                   size_t block_bytes, enum codec_isa isa);
/** Calls codec_open() for one of the three layouts; NULL for any other. */
const struct codec *codec_get(unsigned kind, unsigned layout, size_t block_bytes);

unsigned codec_k(const struct codec *c);
unsigned codec_n(const struct codec *c);
size_t codec_block_bytes(const struct codec *c);
/** Returns the unit of row lengths: each is a multiple of it; 16..256, a power of two. */
size_t codec_row_unit(const struct codec *c);
/**
 * Returns true when projection i < k is row i itself, so that a healthy read computes
 * nothing.
 */
bool codec_is_systematic(const struct codec *c);

/**
 * Returns the bytes of one row of a block that holds user_bytes (0..block_bytes):
 * ceil(user_bytes / (k * unit)) * unit, 0 for 0. It is also the length of the body of
 * every projection. A full block's rows are block_bytes / k where k divides it.
 */
size_t codec_row_bytes(const struct codec *c, size_t user_bytes);

/**
 * Returns the bytes of the overhang of projection i, 0..CODEC_OVERHANG_MAX; short blocks
 * have as many.
 */
size_t codec_overhang_bytes(const struct codec *c, unsigned i);

/**
 * Encodes one block.
 *
 * @param data      k * row_bytes bytes: row l starts at data + l * row_bytes. The caller
 *                  has padded the user's bytes with zeros up to there.
 * @param row_bytes the value of codec_row_bytes(), not 0.
 * @param body      n pointers; body[i] takes row_bytes bytes of projection i, all
 *                  written. NULL: not wanted (rows of a systematic code are sent from
 *                  data itself). Must not overlap data or one another.
 * @param overhang  n pointers, used only where codec_overhang_bytes() is not 0 and
 *                  body[i] is not NULL; takes that many bytes, all written.
 */
void codec_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                  uint8_t *const body[], uint8_t *const overhang[]);

/* Run of blocks at even distances. All blocks have one row_bytes. */
struct codec_run {
    size_t n_blocks;
    size_t row_bytes;
    size_t data_stride;                  /* from block to block, bytes */
    size_t body_stride;                  /* stride of every body */
    size_t overhang_stride[CODEC_N_MAX]; /* stride of each projection's overhang */
};

/**
 * Calls codec_encode() for every block of a run; the pointers are those of its first
 * block.
 */
void codec_encode_run(const struct codec *c, const struct codec_run *run,
                      const uint8_t *data, uint8_t *const body[],
                      uint8_t *const overhang[]);

/**
 * Updates projections after a change of one row: the code is linear.
 *
 * @param delta     len bytes: old XOR new bytes of row `row` from its byte `from` on. Any
 *                  from and len within the row will do.
 * @param body      n pointers, to whole bodies: the change is XORed in. NULL: not wanted.
 * @param overhang  n pointers, as in codec_encode(): the change is XORed in.
 */
void codec_update(const struct codec *c, unsigned row, size_t from, size_t len,
                  const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                  uint8_t *const overhang[]);

/* Plan to make data from one set of projections. Small; copy it as you like. */
struct codec_plan {
    const struct codec *codec; /* lives for ever */
    /* cached by the codec, lives for ever; NULL: only copies */
    const struct codec_way *way;
    uint32_t reads;  /* projections that are read: k, or all wanted ones to copy */
    uint32_t wanted; /* projections that are made; 0: the block itself */
};

/**
 * Plans how to make data from the projections whose bits are set in `present`; bits
 * beyond n are ignored. Computed once for each set of k projections and cached.
 *
 * @param wanted 0: the k rows, by codec_decode(). Otherwise a bitmap of projections, by
 *               codec_repair(). If all of them are present they are copied; otherwise k
 *               are read, of these rows are copied, and all other wanted ones are made.
 * @return 0, or -EINVAL when fewer than k are present and not all wanted ones are, or
 *         wanted has bits beyond n (*plan untouched).
 */
int codec_plan(const struct codec *c, uint32_t present, uint32_t wanted,
               struct codec_plan *plan);

/* Bytes [from, to) of a body and of an overhang. */
struct codec_reads {
    uint32_t body_from, body_to;
    uint32_t overhang_from, overhang_to;
};

/**
 * Returns the bytes that the plan reads of projection i of a block of that row length:
 * all or fewer, none (all zero) for a projection that is not in plan->reads.
 */
void codec_plan_reads(const struct codec_plan *plan, unsigned i, size_t row_bytes,
                      struct codec_reads *reads);

/**
 * Decodes one block by a plan with wanted == 0. Uses no more than 72 KB of stack.
 *
 * @param body      n pointers; those in plan->reads are read, NULL will do for the
 *                  others. For a systematic code body[i] for i < k may be data + i *
 *                  row_bytes itself: then the row is already in place and is not copied.
 * @param overhang  n pointers, read where a used projection has an overhang.
 * @param row_bytes as in codec_encode().
 * @param data      out: k * row_bytes bytes, all written. Otherwise must not overlap
 *                  bodies.
 */
void codec_decode(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes, uint8_t *data);

/**
 * Calls codec_decode() for every block of a run. body_stride is that of bodies that are
 * not in place; bodies in place use data_stride.
 */
void codec_decode_run(const struct codec_plan *plan, const struct codec_run *run,
                      const uint8_t *const body[], const uint8_t *const overhang[],
                      uint8_t *data);

/**
 * Makes the wanted projections of one block by a plan with wanted != 0, for healing. Out
 * must not overlap in. Uses no more than 72 KB of stack.
 *
 * @param body, overhang as in codec_decode().
 * @param out_body        n pointers, those of wanted projections take row_bytes bytes
 *                        each.
 * @param out_overhang    n pointers, those of wanted projections that have one.
 */
void codec_repair(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes,
                  uint8_t *const out_body[], uint8_t *const out_overhang[]);

/**
 * Returns the crc32c (Castagnoli, reflected, init and xorout ~0) of len bytes, continuing
 * from crc (0 to start).
 */
uint32_t codec_crc32c(uint32_t crc, const void *buf, size_t len);

#endif
