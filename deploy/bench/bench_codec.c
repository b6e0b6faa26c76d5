/*
 * bench_codec.c - measures erasure codes side by side.
 *
 * In:     a case and a list of codes.
 * Out:    core cycles per block for each code and operation.
 * Keeps:  fair to all codes. All use the same buffers, 64-byte aligned; what can be
 *         prepared is prepared; in each round every code does the same work once, and
 *         another one begins in each round; a figure is the median over the rounds. Every
 *         code has decoded before what it encoded, and after the clock stopped the data
 *         must still be the same.
 * Yours:  numbers of rounds and patterns, sizes of samples.
 *
 * Cycles: the time stamp counter ticks at a constant rate, the core does not. So each
 * round also times a chain of dependent additions, one core cycle each on every processor
 * we know (register to register, since additions of constants vanish in newer ones), and
 * ticks are divided by that.
 *
 * Warming: processors that have not computed with 512 bits for some microseconds do so at
 * less than half their speed for about the first three. So the same work is done untimed
 * before each sample, for long enough; otherwise a code would pay for the code before it.
 *
 * Pointers: a load waits for older stores that it might have to see, and some address
 * bits decide. If the page of a code's array of pointers resembles one it writes to, a
 * call of 115 cycles takes 335. Which pages do is luck, so the pointers are in other
 * pages in each round.
 */
#include "deploy/bench/bench_codec.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/units.h"
#if defined(__x86_64__)
#    include <x86intrin.h>
#endif

enum {
    WARM_CYCLES = 20000, /* before each sample, see the head of this file */
    SAMPLE_CYCLES = 40000,
    CALLS_PLACES = 16, /* pages that hold the pointers of a call in turn */
    REPEATS_MIN = 4,
    REPEATS_MAX = 512,
    CHAIN_CYCLES = 64 * 32,
    L2_BYTES = 1 << 20,
    L2_PATTERNS_MAX = 6,
    CHECK_SEED = 20217,
};

/* Codes of rozo. */

struct ours {
    const struct bench_set *set; /* borrowed */
    const struct codec *codec;
    struct codec_run run, run_copy;
    struct codec_plan plan[CODEC_M_MAX + 1][BENCH_PATTERNS_MAX];
};

static void *ours_prepare(const struct bench_code *code, const struct bench_set *set)
{
    const struct bench_case *what = &set->what;
    const struct codec *codec =
        codec_open_isa(code->kind, what->k, what->n, what->block_bytes, code->isa);
    struct ours *o = calloc(1, sizeof(*o));

    if (o == NULL)
        abort(); /* without memory a benchmark is useless */
    if (codec == NULL || codec_row_bytes(codec, what->block_bytes) != set->row_bytes) {
        free(o);
        return NULL;
    }
    o->set = set;
    o->codec = codec;
    o->run = (struct codec_run){ .n_blocks = what->run_blocks,
                                 .row_bytes = set->row_bytes,
                                 .data_stride = what->k * set->row_bytes,
                                 .body_stride = set->row_bytes };
    memcpy(o->run.overhang_stride, set->overhang_stride, sizeof(o->run.overhang_stride));
    for (unsigned lost = 0; lost <= what->n - what->k; lost++) {
        for (unsigned p = 0; p < set->n_lost[lost]; p++) {
            if (codec_plan(codec, ~set->lost[lost][p], 0, &o->plan[lost][p]) != 0)
                abort(); /* k projections are present */
        }
    }
    return o;
}

static bool ours_bind(const void *state, const struct bench_slot *slot, unsigned op,
                      unsigned pattern, bool copy, struct bench_call *call)
{
    const struct ours *o = state;
    unsigned k = o->set->what.k, n = o->set->what.n;

    memset(call, 0, sizeof(*call));
    copy = copy || !codec_is_systematic(o->codec); /* no row is a projection */
    call->data = slot->data;
    call->uses_copy = copy;
    for (unsigned i = 0; i < n; i++) {
        call->to[i] = copy ? slot->copy[i] : i >= k ? slot->parity[i - k] : NULL;
        call->from[i] = i < k && !copy ? slot->data + i * o->set->row_bytes : call->to[i];
        call->overhang[i] = slot->overhang[i];
    }
    if (op != BENCH_ENCODE)
        call->way = &o->plan[op - BENCH_DECODE][pattern];
    return true;
}

static void ours_encode(const void *state, const struct bench_call *call)
{
    const struct ours *o = state;

    codec_encode(o->codec, call->data, o->set->row_bytes, call->to, call->overhang);
}

static void ours_decode(const void *state, const struct bench_call *call)
{
    const struct ours *o = state;

    codec_decode(call->way, (const uint8_t *const *)call->from,
                 (const uint8_t *const *)call->overhang, o->set->row_bytes, call->data);
}

static void ours_encode_run(const void *state, const struct bench_call *call)
{
    const struct ours *o = state;

    codec_encode_run(o->codec, &o->run, call->data, call->to, call->overhang);
}

static void ours_decode_run(const void *state, const struct bench_call *call)
{
    const struct ours *o = state;

    codec_decode_run(call->way, &o->run, (const uint8_t *const *)call->from,
                     (const uint8_t *const *)call->overhang, call->data);
}

static const struct bench_code_ops ours_ops = {
    .prepare = ours_prepare,
    .bind = ours_bind,
    .encode = ours_encode,
    .decode = ours_decode,
    .release = free,
};

/* Codes many blocks in one call; listed under that name only for runs. */
static const struct bench_code_ops ours_run_ops = {
    .prepare = ours_prepare,
    .bind = ours_bind,
    .encode = ours_encode_run,
    .decode = ours_decode_run,
    .release = free,
};

static void ours_add(struct bench_codes *codes, unsigned kind, enum codec_isa isa,
                     bool name_isa)
{
    struct bench_code *code = &codes->code[codes->n_codes++];

    assert(codes->n_codes <= BENCH_CODES_MAX);
    memset(code, 0, sizeof(*code));
    code->ops = &ours_ops;
    code->kind = kind;
    code->isa = isa;
    snprintf(code->name, sizeof(code->name), "%s%s%s",
             kind == CODEC_MOJETTE_NONSYSTEMATIC ? "mojette-nonsys"
                                                 : codec_kind_name(kind),
             name_isa ? " " : "", name_isa ? codec_isa_name(isa) : "");
}

void bench_add_ours(struct bench_codes *codes, bool isas)
{
    for (unsigned i = 0; codec_kind_at(i) != 0; i++)
        ours_add(codes, codec_kind_at(i), codec_isa_default(), false);
    for (enum codec_isa isa = codec_isa_default(); isas && isa-- > CODEC_ISA_REF;) {
        if (codec_isa_usable(isa)) {
            ours_add(codes, CODEC_MOJETTE, isa, true);
            ours_add(codes, CODEC_MOJETTE_FINITE, isa, true);
        }
    }
}

void bench_keep(struct bench_codes *codes, const char *name)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < codes->n_codes; i++) {
        if (strncmp(codes->code[i].name, name, strlen(name)) == 0)
            codes->code[kept++] = codes->code[i];
    }
    codes->n_codes = kept;
}

/* The clock. */

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    uint64_t now;

    _mm_lfence();
    now = __rdtsc();
    _mm_lfence();
    return now;
#else
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return timespec_to_ns(now);
#endif
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Runs CHAIN_CYCLES additions, each waiting for the one before. */
static void chain_run(void)
{
    uint64_t sum = 1, step = 3;

    for (unsigned i = 0; i < CHAIN_CYCLES / 64; i++) {
#if defined(__x86_64__)
        __asm__ volatile(".rept 64\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(step));
#elif defined(__aarch64__)
        __asm__ volatile(".rept 64\n\tadd %0, %0, %1\n\t.endr" : "+r"(sum) : "r"(step));
#else
#    error "say here how this machine adds"
#endif
    }
}

/* Returns ticks per core cycle; the minimum of a few, since an interrupt only adds. */
static double ticks_per_cycle(void)
{
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < 4; i++) {
        uint64_t start = ticks();
        uint64_t took;

        chain_run();
        took = ticks() - start;
        if (took < least)
            least = took;
    }
    return (double)least / CHAIN_CYCLES;
}

/* Returns ticks between two readings of the clock. */
static double ticks_of_nothing(void)
{
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < 100; i++) {
        uint64_t start = ticks();
        uint64_t took = ticks() - start;

        if (took < least)
            least = took;
    }
    return (double)least;
}

/* Buffers and patterns. */

/* State of one case. */
struct bench {
    struct bench_set set;
    const struct bench_codes *codes; /* borrowed */
    void *state[BENCH_CODES_MAX];    /* NULL: no such code */
    const struct bench_code_ops *ops[BENCH_CODES_MAX];
    struct bench_slot *slots;       /* owned */
    uint8_t *call_pages;            /* owned; room for calls at CALLS_PLACES places */
    struct bench_call *calls;       /* within call_pages, one per slot */
    unsigned n_slots, n_slots_copy; /* about 1 MB together, without and with the copies */
    uint8_t *memory;                /* owned */
    size_t memory_bytes;
    uint8_t *data_was; /* owned; data of all slots, one after the other */
    float *samples;    /* owned: [code][op][pattern][round] */
    double nothing;    /* ticks */
};

static size_t align_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static unsigned rank_max(const struct bench *b)
{
    return b->set.what.decode ? b->set.what.n - b->set.what.k : 0;
}

/* Lists all bitmaps of `lost` of k rows, or as many of them as wanted, spread evenly. */
static void patterns_list(struct bench_set *set, unsigned lost, unsigned n_max)
{
    unsigned k = set->what.k, n_all = 0, seen = 0;

    for (uint32_t map = 0; map < 1u << k; map++)
        n_all += (unsigned)__builtin_popcount(map) == lost;
    if (n_max > n_all)
        n_max = n_all;
    set->n_lost[lost] = 0;
    for (uint32_t map = 0; map < 1u << k; map++) {
        if ((unsigned)__builtin_popcount(map) != lost)
            continue;
        if (seen++ * n_max / n_all >= set->n_lost[lost])
            set->lost[lost][set->n_lost[lost]++] = map;
        if (set->n_lost[lost] == n_max)
            break;
    }
}

/* Sets one overhang area for all of our codes, as large as the largest. */
static int overhangs_measure(struct bench_set *set)
{
    const struct bench_case *what = &set->what;

    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        const struct codec *c =
            codec_open(codec_kind_at(i), what->k, what->n, what->block_bytes);

        for (unsigned p = 0; c != NULL && p < what->n; p++) {
            size_t bytes = align_up(codec_overhang_bytes(c, p), 64);

            if (bytes > set->overhang_stride[p])
                set->overhang_stride[p] = bytes;
        }
    }
    return 0;
}

/* Bytes of the calls at one place. */
static size_t calls_bytes(const struct bench *b)
{
    return align_up(b->n_slots * sizeof(*b->calls), 4096);
}

static void calls_move(struct bench *b, unsigned place)
{
    b->calls =
        (struct bench_call *)(b->call_pages + place % CALLS_PLACES * calls_bytes(b));
}

/* Allocates the slots. A slot is its data, then its parities, then overhangs, adjacent;
 * copies are in a separate part. */
static int memory_make(struct bench *b)
{
    const struct bench_case *what = &b->set.what;
    size_t body = b->set.row_bytes * what->run_blocks;
    size_t plain = what->n * body, copies = what->n * body, overhangs = 0;
    uint8_t *at;

    for (unsigned i = 0; i < what->n; i++)
        overhangs += b->set.overhang_stride[i] * what->run_blocks;
    b->n_slots = what->l2 ? (unsigned)(L2_BYTES / plain) : 1;
    b->n_slots_copy = what->l2 ? (unsigned)(L2_BYTES / (what->k * body + copies)) : 1;
    if (b->n_slots == 0)
        b->n_slots = 1;
    if (b->n_slots_copy == 0)
        b->n_slots_copy = 1;
    b->memory_bytes =
        align_up(b->n_slots * (plain + overhangs + copies) + 2 * 4096, 1 << 21);
    b->memory = aligned_alloc(1 << 21, b->memory_bytes);
    b->slots = calloc(b->n_slots, sizeof(*b->slots));
    b->call_pages = aligned_alloc(4096, CALLS_PLACES * calls_bytes(b));
    b->calls = (struct bench_call *)b->call_pages;
    b->data_was = malloc(b->n_slots * what->k * body);
    if (b->memory == NULL || b->slots == NULL || b->call_pages == NULL ||
        b->data_was == NULL)
        return -ENOMEM;
    /* L2 is indexed by physical address. */
    madvise(b->memory, b->memory_bytes, MADV_HUGEPAGE);
    memset(b->memory, 0, b->memory_bytes);
    at = b->memory;
    for (unsigned s = 0; s < b->n_slots; s++) {
        struct bench_slot *slot = &b->slots[s];

        slot->data = at;
        at += what->k * body;
        for (unsigned j = 0; j < what->n - what->k; j++, at += body)
            slot->parity[j] = at;
        for (unsigned i = 0; i < what->n; i++) {
            slot->overhang[i] = at;
            at += b->set.overhang_stride[i] * what->run_blocks;
        }
    }
    at = b->memory + align_up((size_t)(at - b->memory), 4096);
    for (unsigned s = 0; s < b->n_slots; s++) {
        for (unsigned i = 0; i < what->n; i++, at += body)
            b->slots[s].copy[i] = at;
    }
    assert(at <= b->memory + b->memory_bytes);
    return 0;
}

static void data_fill(struct bench *b)
{
    size_t bytes = b->set.what.k * b->set.row_bytes * b->set.what.run_blocks;
    uint64_t x = CHECK_SEED;

    for (unsigned s = 0; s < b->n_slots; s++) {
        for (size_t i = 0; i < bytes; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            b->slots[s].data[i] = (uint8_t)(x >> 56);
        }
        memcpy(b->data_was + s * bytes, b->slots[s].data, bytes);
    }
}

static bool data_is_right(const struct bench *b, unsigned s)
{
    size_t bytes = b->set.what.k * b->set.row_bytes * b->set.what.run_blocks;

    return memcmp(b->slots[s].data, b->data_was + s * bytes, bytes) == 0;
}

/* Overwrites what is lost: rows of data if the others are in place, else all of it. */
static void data_spoil(const struct bench *b, unsigned c, unsigned s, uint32_t lost,
                       bool copy)
{
    const struct bench_case *what = &b->set.what;
    size_t row = b->set.row_bytes;
    bool ours = b->ops[c] == &ours_ops || b->ops[c] == &ours_run_ops;

    if (copy) {
        memset(b->slots[s].data, 0xa5, what->k * row * what->run_blocks);
        return;
    }
    for (unsigned i = 0; i < what->k; i++) {
        if ((lost >> i & 1) == 0)
            continue;
        if (!ours) { /* rows of a run are long, see rival_bind() */
            memset(b->slots[s].data + i * row * what->run_blocks, 0xa5,
                   row * what->run_blocks);
            continue;
        }
        for (size_t block = 0; block < what->run_blocks; block++)
            memset(b->slots[s].data + (block * what->k + i) * row, 0xa5, row);
    }
}

/* Measuring. */

static bool call_bind(const struct bench *b, unsigned c, unsigned s, unsigned op,
                      unsigned pattern, bool copy)
{
    return b->ops[c]->bind(b->state[c], &b->slots[s], op, pattern, copy, &b->calls[s]);
}

static void encode_all(const struct bench *b, unsigned c, unsigned n_slots, bool copy)
{
    for (unsigned s = 0; s < n_slots; s++) {
        call_bind(b, c, s, BENCH_ENCODE, 0, copy);
        b->ops[c]->encode(b->state[c], &b->calls[s]);
    }
}

/* Checks that a code decodes what it encoded: every pattern, both ways, every slot. */
static int code_check(const struct bench *b, unsigned c, struct err *err)
{
    for (unsigned copy = 0; copy < 2; copy++) {
        encode_all(b, c, b->n_slots, copy);
        for (unsigned lost = 0; lost <= rank_max(b); lost++) {
            for (unsigned p = 0; p < b->set.n_lost[lost]; p++) {
                for (unsigned s = 0; s < b->n_slots; s++) {
                    if (!call_bind(b, c, s, BENCH_DECODE + lost, p, copy))
                        continue;
                    if (!b->ops[c]->computes_nothing)
                        data_spoil(b, c, s, b->set.lost[lost][p], copy);
                    b->ops[c]->decode(b->state[c], &b->calls[s]);
                    if (!data_is_right(b, s))
                        return err_set(err, -EIO, "%s (%u, %u) decodes rows %#x wrongly",
                                       b->codes->code[c].name, b->set.what.n,
                                       b->set.what.k, b->set.lost[lost][p]);
                }
            }
        }
    }
    return 0;
}

/* Returns the n_rounds samples of one code, operation and pattern; negative: none. */
static float *samples_of(float *samples, unsigned n_rounds, unsigned c, unsigned op,
                         unsigned pattern)
{
    return samples +
           (((size_t)c * BENCH_OPS + op) * BENCH_PATTERNS_MAX + pattern) * n_rounds;
}

/* Times one operation of one code, in ticks per block. Negative: it cannot do that. */
static double sample_take(const struct bench *b, unsigned c, unsigned op,
                          unsigned pattern, bool copy, double per_cycle)
{
    void (*run)(const void *state, const struct bench_call *call) =
        op == BENCH_ENCODE ? b->ops[c]->encode : b->ops[c]->decode;
    unsigned n_slots;
    const void *state = b->state[c];
    uint64_t start, took;
    unsigned repeats, n_warm = 0;

    if (!call_bind(b, c, 0, op, pattern, copy))
        return -1;
    n_slots = copy || b->calls[0].uses_copy ? b->n_slots_copy : b->n_slots;
    if (op != BENCH_ENCODE)
        encode_all(b, c, n_slots, copy);
    for (unsigned s = 0; s < n_slots; s++)
        call_bind(b, c, s, op, pattern, copy);
    start = ticks();
    do {
        for (unsigned s = 0; s < n_slots; s++)
            run(state, &b->calls[s]);
        n_warm++;
        took = ticks() - start;
    } while ((double)took < WARM_CYCLES * per_cycle);
    if (n_slots > 1) {
        start = ticks();
        for (unsigned s = 0; s < n_slots; s++)
            run(state, &b->calls[s]);
        took = ticks() - start;
        repeats = n_slots;
    } else {
        repeats = (unsigned)(SAMPLE_CYCLES * per_cycle * n_warm / (double)took);
        repeats = repeats < REPEATS_MIN   ? REPEATS_MIN
                  : repeats > REPEATS_MAX ? REPEATS_MAX
                                          : repeats;
        start = ticks();
        for (unsigned i = 0; i < repeats; i++)
            run(state, &b->calls[0]);
        took = ticks() - start;
    }
    return ((double)took - b->nothing) / repeats / (double)b->set.what.run_blocks;
}

/* Runs all operations of all codes once. */
static void round_run(struct bench *b, unsigned round, bench_tick_cb *tick, void *arg,
                      double *clock, uint64_t *n_clocks)
{
    unsigned n_codes = b->codes->n_codes;

    calls_move(b, round);
    for (unsigned copy = 0; copy < 2; copy++) {
        for (unsigned op = BENCH_ENCODE; op <= BENCH_DECODE + rank_max(b); op++) {
            unsigned n_patterns =
                op == BENCH_ENCODE ? 1 : b->set.n_lost[op - BENCH_DECODE];

            if (copy && op > BENCH_DECODE && n_patterns > L2_PATTERNS_MAX)
                n_patterns = L2_PATTERNS_MAX;
            if (!b->set.what.decode && op != BENCH_ENCODE)
                break;
            for (unsigned p = 0; p < n_patterns; p++) {
                double per_cycle = ticks_per_cycle();

                *clock += per_cycle;
                ++*n_clocks;
                for (unsigned i = 0; i < n_codes; i++) {
                    unsigned c = (i + round) % n_codes;

                    if (b->state[c] != NULL)
                        samples_of(b->samples, b->set.what.n_rounds, c,
                                   bench_op(op, copy), p)[round] =
                            (float)(sample_take(b, c, op, p, copy, per_cycle) /
                                    per_cycle);
                }
            }
            if (tick != NULL)
                tick(arg);
        }
    }
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* Returns the sample below which `tenths` tenths of all are. */
static float quantile(const float *samples, unsigned n, unsigned tenths)
{
    float sorted[BENCH_ROUNDS_MAX];

    memcpy(sorted, samples, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_floats);
    return sorted[n * tenths / 10];
}

static void figure_make(const struct bench_results *results, size_t block_bytes,
                        unsigned c, unsigned op, struct bench_figure *f)
{
    for (unsigned p = 0; p < BENCH_PATTERNS_MAX; p++) {
        const float *s = samples_of(results->samples, results->n_rounds, c, op, p);
        double cycles;

        if (s[0] < 0)
            continue; /* never filled in, or impossible */
        cycles = quantile(s, results->n_rounds, 5);
        f->cycles += cycles;
        f->best += quantile(s, results->n_rounds, 1);
        f->n_patterns++;
        if (cycles > f->worst)
            f->worst = cycles;
    }
    if (f->n_patterns == 0)
        return;
    f->cycles /= f->n_patterns;
    f->best /= f->n_patterns;
    if (f->cycles >= 1) /* otherwise it did nothing */
        f->gbs = (double)block_bytes * results->ghz / f->cycles;
}

double bench_ratio(const struct bench_results *results, unsigned theirs, unsigned ours,
                   unsigned op)
{
    float ratio[BENCH_ROUNDS_MAX];
    unsigned n_patterns = 0;
    double sum = 0;

    for (unsigned p = 0; p < BENCH_PATTERNS_MAX; p++) {
        const float *t = samples_of(results->samples, results->n_rounds, theirs, op, p);
        const float *o = samples_of(results->samples, results->n_rounds, ours, op, p);

        if (t[0] < 0 || o[0] < 0)
            continue;
        for (unsigned r = 0; r < results->n_rounds; r++)
            ratio[r] = t[r] / (o[r] > 1 ? o[r] : 1);
        sum += quantile(ratio, results->n_rounds, 5);
        n_patterns++;
    }
    return n_patterns == 0 ? 0 : sum / n_patterns;
}

void bench_results_free(struct bench_results *results)
{
    if (results == NULL)
        return;
    free(results->samples);
    results->samples = NULL;
}

static void bench_free(struct bench *b)
{
    if (b == NULL)
        return;
    for (unsigned c = 0; c < BENCH_CODES_MAX; c++) {
        if (b->state[c] != NULL)
            b->ops[c]->release(b->state[c]);
    }
    free(b->memory);
    free(b->slots);
    free(b->call_pages);
    free(b->data_was);
    free(b->samples);
    free(b);
}

static int bench_new(const struct bench_codes *codes, const struct bench_case *what,
                     struct bench **out, struct err *err)
{
    struct bench *b = calloc(1, sizeof(*b));
    const struct codec *mojette;
    size_t n_samples;
    int rc = -ENOMEM;

    if (b == NULL)
        goto out;
    b->codes = codes;
    b->set.what = *what;
    assert(what->n_rounds > 0 && what->n_rounds <= BENCH_ROUNDS_MAX);
    mojette = codec_open(CODEC_MOJETTE, what->k, what->n, what->block_bytes);
    if (mojette == NULL) {
        rc = err_set(err, -EINVAL, "rozo has no code (%u, %u)", what->n, what->k);
        goto out;
    }
    b->set.row_bytes = codec_row_bytes(mojette, what->block_bytes);
    overhangs_measure(&b->set);
    rc = memory_make(b);
    if (rc != 0)
        goto out;
    data_fill(b);
    for (unsigned lost = 0; lost <= rank_max(b); lost++)
        patterns_list(&b->set, lost,
                      what->l2 || what->run_blocks > 1 ? L2_PATTERNS_MAX
                                                       : BENCH_PATTERNS_MAX);
    rc = -ENOMEM;
    n_samples = (size_t)codes->n_codes * BENCH_OPS * BENCH_PATTERNS_MAX * what->n_rounds;
    b->samples = malloc(n_samples * sizeof(*b->samples));
    if (b->samples == NULL)
        goto out;
    for (size_t i = 0; i < n_samples; i++)
        b->samples[i] = -1;
    for (unsigned c = 0; c < codes->n_codes; c++) {
        b->ops[c] = codes->code[c].ops;
        if (b->ops[c] == &ours_ops && what->run_blocks > 1)
            b->ops[c] = &ours_run_ops;
        b->state[c] = b->ops[c]->prepare(&codes->code[c], &b->set);
    }
    *out = b;
    return 0;
out:
    bench_free(b);
    return err_wrap(err, rc, "benchmark");
}

int bench_run(const struct bench_codes *codes, const struct bench_case *what,
              bench_tick_cb *tick, void *arg, struct bench_results *results,
              struct err *err)
{
    struct bench *b = NULL;
    double clock = 0, /* ticks per core cycle, summed n_clocks times */ started_s, hertz;
    uint64_t started, n_clocks = 0;
    int rc = bench_new(codes, what, &b, err);

    if (rc != 0)
        return rc;
    memset(results, 0, sizeof(*results));
    for (unsigned c = 0; c < codes->n_codes && rc == 0; c++) {
        if (b->state[c] != NULL)
            rc = code_check(b, c, err);
    }
    if (rc == 0) {
        b->nothing = ticks_of_nothing();
        started = ticks();
        started_s = seconds();
        for (unsigned round = 0; round < what->n_rounds; round++)
            round_run(b, round, tick, arg, &clock, &n_clocks);
        hertz = (double)(ticks() - started) / (seconds() - started_s);
        for (unsigned s = 0; s < b->n_slots && rc == 0; s++) {
            if (!data_is_right(b, s))
                rc = err_set(err, -EIO, "a code has spoiled the data while it was timed");
        }
        results->samples = b->samples;
        results->n_rounds = what->n_rounds;
        b->samples = NULL;
        results->ghz = hertz / 1e9 / (clock / (double)n_clocks);
        for (unsigned c = 0; rc == 0 && c < codes->n_codes; c++) {
            for (unsigned op = 0; op < BENCH_OPS; op++)
                figure_make(results, what->block_bytes, c, op, &results->figure[c][op]);
        }
    }
    bench_free(b);
    return rc;
}

int bench_loop(const struct bench_codes *codes, const struct bench_case *what,
               unsigned op, bool copy, double for_s, double *cycles, struct err *err)
{
    struct bench *b = NULL;
    double until_s = seconds() + for_s, least = 0;
    int rc = codes->n_codes == 0 ? err_set(err, -ENOENT, "no such code is here")
                                 : bench_new(codes, what, &b, err);

    if (rc != 0)
        return rc;
    if (b->state[0] == NULL || !call_bind(b, 0, 0, op, 0, copy))
        rc = err_set(err, -ENOENT, "%s cannot do that", codes->code[0].name);
    while (rc == 0 && seconds() < until_s) {
        double per_cycle = ticks_per_cycle();

        for (unsigned i = 0; i < 1000; i++) {
            double took = sample_take(b, 0, op, 0, copy, per_cycle) / per_cycle;

            if (least == 0 || took < least)
                least = took;
        }
    }
    *cycles = least;
    bench_free(b);
    return rc;
}
