/*
 * bench_codec.h - compares the speed of erasure codes, for `rozo bench codec` and the
 * benchmark in tests/bench/codec.
 *
 * A code is measured through a table of functions, ours and those of others alike. All
 * work on the same buffers, in turn, in many short rounds; bench_codec.c describes the
 * method.
 */
#ifndef ROZO_DEPLOY_BENCH_BENCH_CODEC_H
#define ROZO_DEPLOY_BENCH_BENCH_CODEC_H

#include <jansson.h>
#include <stdio.h>

#include "codec/codec.h"
#include "common/base/err.h"

enum {
    BENCH_CODES_MAX = 32,
    BENCH_LIBS_MAX = 3,
    BENCH_PATTERNS_MAX = 70, /* patterns of lost rows; all of them for k = 8 */
    BENCH_OPS = 2 * (2 + CODEC_M_MAX),
    BENCH_NAME_MAX = 24,
    BENCH_TEXT_MAX = 80,
    BENCH_ROUNDS_MAX = 201,
};

/* One case to measure. */
struct bench_case {
    unsigned k, n;
    size_t block_bytes; /* 4096 or 8192 */
    size_t run_blocks;  /* blocks of one call: 1, or a run */
    bool l2;     /* false: one run over and over; true: runs of about 1 MB in turn */
    bool decode; /* false: encode only */
    unsigned n_rounds; /* 1..BENCH_ROUNDS_MAX */
};

/* Operations, as indexes into the results. Lost rows are rows of data; all parities are
 * present. */
enum { BENCH_ENCODE = 0, BENCH_DECODE = 1 }; /* BENCH_DECODE + number of lost rows */

/* Returns the index for an operation. With `copy` the k rows are copied, too: encode
 * writes all n projections, decode the whole block; otherwise only the parities or only
 * the lost rows. */
static inline unsigned bench_op(unsigned op, bool copy)
{
    return op + (copy ? BENCH_OPS / 2 : 0);
}

/* Core cycles per block. n_patterns is 0 if the code cannot do the operation, or was not
 * asked to. */
struct bench_figure {
    double cycles; /* mean over the patterns of lost rows of the median over the rounds */
    double best;   /* as cycles, of the fastest tenth of the rounds, since timings vary */
    double worst;  /* the slowest pattern */
    double gbs;    /* user bytes, 10^9 per second, at the clock of the core */
    unsigned n_patterns;
};

/* Buffers of one run of blocks. Bodies of one projection are adjacent. */
struct bench_slot {
    uint8_t *data;                /* run_blocks blocks of k rows */
    uint8_t *parity[CODEC_M_MAX]; /* bodies of the projections k..n-1 */
    uint8_t *overhang[CODEC_N_MAX];
    uint8_t *copy[CODEC_N_MAX]; /* bodies of all n, in other memory */
};

/* Buffer sizes of one case, and the patterns of lost rows. */
struct bench_set {
    struct bench_case what;
    size_t row_bytes;                    /* for one block */
    size_t overhang_stride[CODEC_N_MAX]; /* from block to block of a run */
    /* Bitmaps of lost rows, by the number of lost rows. */
    uint32_t lost[CODEC_M_MAX + 1][BENCH_PATTERNS_MAX];
    unsigned n_lost[CODEC_M_MAX + 1];
};

/* Pointers of one call, set before the clock runs. */
struct bench_call {
    const void *way; /* data that the code prepared for the pattern; private to it */
    uint8_t *data;
    uint8_t *from[2 * CODEC_K_MAX];
    uint8_t *to[CODEC_N_MAX];
    uint8_t *overhang[CODEC_N_MAX];
    bool uses_copy;    /* works in slot->copy even if that was not requested */
    unsigned n_copies; /* rows that are copied in addition */
    uint8_t *copy_from[CODEC_N_MAX];
    uint8_t *copy_to[CODEC_N_MAX];
};

struct bench_code;

/* One family of codes. `op` is BENCH_ENCODE or BENCH_DECODE + number of lost rows. */
struct bench_code_ops {
    /* Prepares the tables of one case; NULL if there is no such code. */
    void *(*prepare)(const struct bench_code *code, const struct bench_set *set);
    /* Sets the pointers of one call; false: the code cannot do that. */
    bool (*bind)(const void *state, const struct bench_slot *slot, unsigned op,
                 unsigned pattern, bool copy, struct bench_call *call);
    /* The timed functions. */
    void (*encode)(const void *state, const struct bench_call *call);
    void (*decode)(const void *state, const struct bench_call *call);
    void (*release)(void *state); /* NULL is fine */
    bool computes_nothing;        /* only copies: nothing to check */
};

struct bench_code {
    char name[BENCH_NAME_MAX];
    const struct bench_code_ops *ops;
    const void *lib; /* borrowed from bench_codes: a foreign library */
    /* For foreign codes: the function, where the library has several. */
    const void *encode;
    unsigned kind; /* for rozo's codes */
    enum codec_isa isa;
};

/* List of codes. Zero-initialise; end with bench_codes_free(). */
struct bench_codes {
    struct bench_code code[BENCH_CODES_MAX];
    unsigned n_codes;
    /* Owned: functions of foreign libraries, which stay open. */
    void *lib[BENCH_LIBS_MAX];
    unsigned n_libs;
};

void bench_codes_free(struct bench_codes *codes);

/**
 * Adds rozo's codes with the best instruction set; with `isas` those of lesser ones, too.
 */
void bench_add_ours(struct bench_codes *codes, bool isas);
/**
 * Adds the installed foreign codes: ISA-L of the system, the one below ISAL_PREFIX or the
 * one that tests/bench/codec/get-isal.sh built, Jerasure, and memcpy. They are opened at
 * run time; rozo is linked with none of them. With `isas` ISA-L's code for lesser
 * instruction sets, too.
 */
void bench_add_rivals(struct bench_codes *codes, bool isas);
/** Keeps only codes whose name begins with `name`. */
void bench_keep(struct bench_codes *codes, const char *name);

struct bench_results {
    struct bench_figure figure[BENCH_CODES_MAX][BENCH_OPS];
    double ghz;     /* measured clock of the core */
    float *samples; /* owned; cycles per block, by code, operation, pattern, round */
    unsigned n_rounds;
};

/**
 * Returns how many times as long code `theirs` takes as code `ours` for the same
 * operation: the median of the ratios by round, mean over the patterns. This ratio is
 * stable even if other load slows both down.
 */
double bench_ratio(const struct bench_results *results, unsigned theirs, unsigned ours,
                   unsigned op);
/** Frees results. NULL is fine, and so are zeros. */
void bench_results_free(struct bench_results *results);

/** Called often while it measures. */
typedef void bench_tick_cb(void *arg);

/**
 * Measures all codes on one case. Previous contents of `results` are not freed. First
 * each code must decode correctly.
 * @return 0; -ENOMEM; -EINVAL if rozo has no such (k, n); -EIO if a code is wrong.
 */
int bench_run(const struct bench_codes *codes, const struct bench_case *what,
              bench_tick_cb *tick, void *arg, struct bench_results *results,
              struct err *err);

/**
 * Repeats one operation for for_s seconds, for a profiler: the first code, the first
 * pattern of lost rows.
 * @param cycles out: core cycles per block.
 * @return as bench_run(); -ENOENT if there is no such code or it cannot do that.
 */
int bench_loop(const struct bench_codes *codes, const struct bench_case *what,
               unsigned op, bool copy, double for_s, double *cycles, struct err *err);

/* Unit of a table. */
enum bench_unit { BENCH_CYCLES, BENCH_GBS };

/** Writes "(6, 4), blocks of 8 KB, hot in L1", without a newline. Returns text. */
const char *bench_case_text(const struct bench_case *what, char text[BENCH_TEXT_MAX]);
/** Prints the results as a table, 80 columns wide. */
void bench_print(const struct bench_codes *codes, const struct bench_case *what,
                 const struct bench_results *results, enum bench_unit unit, FILE *to);
/**
 * Returns the results as JSON, an object for each case with a list of figures:
 * {"k", "n", "block_bytes", "run_bytes", "place": "l1" or "l2", "core_ghz", "figures":
 * [{"code", "op": "encode" or "decode", "lost", "copy", "cycles", "best", "worst",
 * "gb_s", "patterns"}]}. NULL: out of memory.
 */
json_t *bench_json(const struct bench_codes *codes, const struct bench_case *what,
                   const struct bench_results *results);

#endif
