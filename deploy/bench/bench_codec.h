/*
 * bench_codec.h - how fast erasure codes are, side by side: what `rozo bench codec` and the
 * benchmark in tests/bench/codec share.
 *
 * A code is measured through a table of functions, ours and those of others alike. All work on
 * the same buffers, in turn, in many short rounds; see bench_codec.c for how.
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
    BENCH_PATTERNS_MAX = 70, /* of lost rows; all of them for k = 8 */
    BENCH_OPS = 2 * (2 + CODEC_M_MAX),
    BENCH_NAME_MAX = 24,
    BENCH_TEXT_MAX = 80,
    BENCH_ROUNDS_MAX = 201,
};

/* What is measured in one go. */
struct bench_case {
    unsigned k, n;
    size_t block_bytes; /* 4096 or 8192 */
    size_t run_blocks;  /* blocks of one call: 1, or a run */
    bool l2;     /* false: one run over and over; true: runs of about 1 MB in turn */
    bool decode; /* false: encode only */
    unsigned n_rounds; /* 1..BENCH_ROUNDS_MAX */
};

/* What is done: an index into the results. Lost are rows of data, all parities are there. */
enum { BENCH_ENCODE = 0, BENCH_DECODE = 1 }; /* BENCH_DECODE + number of lost rows */

/* With `copy` the k rows are copied too: at encode all n projections are written, at decode the
 * whole block. Without, only the parities or only the lost rows. */
static inline unsigned bench_op(unsigned op, bool copy)
{
    return op + (copy ? BENCH_OPS / 2 : 0);
}

/* Core cycles of one block. n_patterns is 0 when the code cannot do it, or was not asked to. */
struct bench_figure {
    double cycles; /* mean over the patterns of lost rows of the median over the rounds */
    double best;   /* as cycles, of the fastest tenth of the rounds: codes have moods */
    double worst;  /* the slowest pattern */
    double gbs;    /* user bytes, 10^9 a second, at the clock it ran with */
    unsigned n_patterns;
};

/* Buffers of one run of blocks. Bodies of one projection lie one after the other. */
struct bench_slot {
    uint8_t *data;                /* run_blocks blocks of k rows */
    uint8_t *parity[CODEC_M_MAX]; /* bodies of the projections k..n-1 */
    uint8_t *overhang[CODEC_N_MAX];
    uint8_t *copy[CODEC_N_MAX]; /* bodies of all n, elsewhere */
};

/* The buffers of one case, and the patterns of lost rows. */
struct bench_set {
    struct bench_case what;
    size_t row_bytes;                    /* of one block */
    size_t overhang_stride[CODEC_N_MAX]; /* from block to block of a run */
    uint32_t lost[CODEC_M_MAX + 1]
                 [BENCH_PATTERNS_MAX]; /* bitmaps of rows, by their number */
    unsigned n_lost[CODEC_M_MAX + 1];
};

/* Pointers of one call, made before the clock runs. */
struct bench_call {
    const void *way; /* what the code prepared for the pattern, its own */
    uint8_t *data;
    uint8_t *from[2 * CODEC_K_MAX];
    uint8_t *to[CODEC_N_MAX];
    uint8_t *overhang[CODEC_N_MAX];
    bool uses_copy;    /* works in slot->copy even when not asked to */
    unsigned n_copies; /* rows that are copied beside */
    uint8_t *copy_from[CODEC_N_MAX];
    uint8_t *copy_to[CODEC_N_MAX];
};

struct bench_code;

/* One family of codes. `op` is BENCH_ENCODE or BENCH_DECODE + number of lost rows. */
struct bench_code_ops {
    /* The tables of one case; NULL when there is no such code. */
    void *(*prepare)(const struct bench_code *code, const struct bench_set *set);
    /* The pointers of one call; false: cannot do that. */
    bool (*bind)(const void *state, const struct bench_slot *slot, unsigned op,
                 unsigned pattern, bool copy, struct bench_call *call);
    /* What is timed. */
    void (*encode)(const void *state, const struct bench_call *call);
    void (*decode)(const void *state, const struct bench_call *call);
    void (*release)(void *state); /* NULL is fine */
    bool computes_nothing;        /* copies only: there is nothing to check */
};

struct bench_code {
    char name[BENCH_NAME_MAX];
    const struct bench_code_ops *ops;
    const void *lib;    /* borrowed from bench_codes: a rival's functions */
    const void *encode; /* of a rival: the function, where it has several */
    unsigned kind;      /* of rozo */
    enum codec_isa isa;
};

/* Zero-initialise; bench_codes_free(). */
struct bench_codes {
    struct bench_code code[BENCH_CODES_MAX];
    unsigned n_codes;
    void
        *lib[BENCH_LIBS_MAX]; /* owned: functions of rivals; what was opened stays open */
    unsigned n_libs;
};

void bench_codes_free(struct bench_codes *codes);

/** Add rozo's codes with the best instruction set; with `isas` those of lesser ones too. */
void bench_add_ours(struct bench_codes *codes, bool isas);
/**
 * Add what is installed here of others: ISA-L of the system, the one below ISAL_PREFIX or the one that
 * tests/bench/codec/get-isal.sh built, Jerasure, and memcpy. They are opened at run time and
 * rozo is linked with none of them. With `isas` ISA-L's code for lesser instruction sets too.
 */
void bench_add_rivals(struct bench_codes *codes, bool isas);
/** Keep only codes whose name begins with it. */
void bench_keep(struct bench_codes *codes, const char *name);

struct bench_results {
    struct bench_figure figure[BENCH_CODES_MAX][BENCH_OPS];
    double ghz;     /* of the core, as measured */
    float *samples; /* owned; cycles of a block, by code, operation, pattern, round */
    unsigned n_rounds;
};

/**
 * How many times as long code `theirs` takes as code `ours` for the same operation: the median of the
 * ratios round by round, mean over the patterns. It holds still where both rise and fall with
 * what else the machine does.
 */
double bench_ratio(const struct bench_results *results, unsigned theirs, unsigned ours,
                   unsigned op);
/** NULL is fine, and so is one of zeros. */
void bench_results_free(struct bench_results *results);

/** Called often while it measures. */
typedef void bench_tick_cb(void *arg);

/**
 * Measure all codes on one case. What `results` held before is not freed. First each has to show that what it decodes is right.
 * @return 0; -ENOMEM; -EINVAL when rozo has no such (k, n); -EIO
 *         when a code is wrong.
 */
int bench_run(const struct bench_codes *codes, const struct bench_case *what,
              bench_tick_cb *tick, void *arg, struct bench_results *results,
              struct err *err);

/**
 * Do one thing over and over for so long, for a profiler: the first code, the first pattern of lost rows.
 * @param cycles out: core cycles of one block.
 * @return as bench_run(); -ENOENT when there is no such code or it cannot do that.
 */
int bench_loop(const struct bench_codes *codes, const struct bench_case *what,
               unsigned op, bool copy, double for_s, double *cycles, struct err *err);

/* What a table tells. */
enum bench_unit { BENCH_CYCLES, BENCH_GBS };

/** "(6, 4), blocks of 8 KB, hot in L1", without a newline. Returns text. */
const char *bench_case_text(const struct bench_case *what, char text[BENCH_TEXT_MAX]);
/** Print what was measured as a table, 80 columns wide. */
void bench_print(const struct bench_codes *codes, const struct bench_case *what,
                 const struct bench_results *results, enum bench_unit unit, FILE *to);
/**
 * The same as JSON, an object for each case with a list of figures:
 * {"k", "n", "block_bytes", "run_bytes", "place": "l1" or "l2", "core_ghz", "figures": [{"code", "op":
 * "encode" or "decode", "lost", "copy", "cycles", "best", "worst", "gb_s", "patterns"}]}. NULL: no memory.
 */
json_t *bench_json(const struct bench_codes *codes, const struct bench_case *what,
                   const struct bench_results *results);

#endif
