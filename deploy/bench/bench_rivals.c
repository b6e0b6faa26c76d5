/*
 * bench_rivals.c - foreign erasure codes, and memcpy as the optimum, for bench_codec.c.
 *
 * In:     installed shared libraries, opened by bench_add_rivals().
 * Keeps:  nothing here is linked with rozo. Each library is used as well as its interface
 *         allows: tables, inverse matrices and schedules are made before the clock runs,
 *         a run of blocks is one call with long rows, and at decode only lost rows are
 *         computed.
 * Yours:  more codes: a row in bench_add_rivals() and a struct bench_code_ops.
 */
#include <assert.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_codec.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define OPEN_MODE (RTLD_NOW | RTLD_LOCAL) /* sanitizers refuse RTLD_DEEPBIND */
#else
#    define OPEN_MODE \
        (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) /* each ISA-L calls its own kernels */
#endif

typedef void isal_encode(int len, int k, int rows, unsigned char *tables,
                         unsigned char **data, unsigned char **coding);

/* Functions of one ISA-L; see its headers erasure_code.h and raid.h. */
struct isal {
    void (*init_tables)(int k, int rows, unsigned char *matrix, unsigned char *tables);
    /* For all instruction sets but GFNI. */
    void (*init_tables_base)(int k, int rows, unsigned char *matrix,
                             unsigned char *tables);
    void (*init_tables_gfni)(int k, int rows, unsigned char *matrix,
                             unsigned char *tables); /* NULL before 2.31 */
    void (*gen_cauchy)(unsigned char *matrix, int n, int k);
    int (*invert)(unsigned char *in, unsigned char *out, int k);
    int (*xor_gen)(int n_vectors, int len, void **array);
    int (*pq_gen)(int n_vectors, int len, void **array);
    isal_encode *encode;
};

/* Functions of Jerasure; see its headers jerasure.h, reed_sol.h and cauchy.h. */
struct jerasure {
    int *(*vandermonde)(int k, int m, int w);
    int *(*cauchy)(int k, int m, int w);
    int *(*to_bits)(int k, int m, int w, int *matrix);
    int **(*to_schedule)(int k, int m, int w, int *bits);
    void (*free_schedule)(int **schedule);
    int (*invert)(int *in, int *out, int rows, int w);
    void (*dotprod)(int k, int w, int *row, int *from_ids, int to_id, char **from,
                    char **to, int size);
    void (*encode)(int k, int m, int w, int *matrix, char **from, char **to, int size);
    void (*run_schedule)(int k, int m, int w, int **schedule, char **from, char **to,
                         int size, int packet_bytes);
};

/* The matrix of one pattern of lost rows, in the form that its code needs. */
struct way {
    uint32_t lost;     /* bitmap of rows; 0: encode */
    unsigned n_to;     /* rows made */
    unsigned char *gf; /* ISA-L's tables */
    int *matrix;       /* n_to x k coefficients */
    int **schedule;    /* Jerasure's, NULL where unused */
};

/* A systematic code by a matrix, as all foreign codes are. */
struct rival {
    const struct bench_set *set; /* borrowed */
    const struct isal *isal;
    const struct jerasure *jerasure;
    isal_encode *encode;
    void (*tables)(int k, int rows, unsigned char *matrix, unsigned char *tables);
    int k, m, w, len, packet_bytes;
    /* The last of several lost rows is the XOR of the others and parity 0. */
    bool xor_last;
    /* By op and pattern. */
    struct way way[BENCH_DECODE + CODEC_M_MAX + 1][BENCH_PATTERNS_MAX];
};

static void *rival_new(const struct bench_code *code, const struct bench_set *set)
{
    struct rival *r = calloc(1, sizeof(*r));

    if (r == NULL)
        abort(); /* without memory a benchmark is useless */
    r->set = set;
    r->k = (int)set->what.k;
    r->m = (int)(set->what.n - set->what.k);
    r->len = (int)(set->row_bytes * set->what.run_blocks);
    (void)code;
    return r;
}

static void rival_release(void *state)
{
    struct rival *r = state;

    if (r == NULL)
        return;
    for (unsigned op = 0; op <= BENCH_DECODE + CODEC_M_MAX; op++) {
        for (unsigned p = 0; p < BENCH_PATTERNS_MAX; p++) {
            struct way *way = &r->way[op][p];

            free(way->gf);
            free(way->matrix);
            if (way->schedule != NULL)
                r->jerasure->free_schedule(way->schedule);
        }
    }
    free(r);
}

/* Sets the pointers of a call. For a foreign code, the rows of a run are adjacent: row l
 * of the whole run is at data + l * len. That divides the same bytes in another way, the
 * best one for codes by matrix. */
static bool rival_bind(const void *state, const struct bench_slot *slot, unsigned op,
                       unsigned pattern, bool copy, struct bench_call *call)
{
    const struct rival *r = state;
    const struct way *way = &r->way[op][pattern];
    unsigned k = (unsigned)r->k, m = (unsigned)r->m, n_from = 0, n_to = 0;
    size_t len = (size_t)r->len;

    memset(call, 0, sizeof(*call));
    call->way = way;
    for (unsigned i = 0; i < k; i++) {
        uint8_t *row = slot->data + i * len;

        if (op != BENCH_ENCODE && (way->lost >> i & 1) != 0) {
            call->to[n_to++] = row;
            continue;
        }
        call->from[n_from++] = op != BENCH_ENCODE && copy ? slot->copy[i] : row;
        if (copy) {
            call->copy_from[call->n_copies] = op == BENCH_ENCODE ? row : slot->copy[i];
            call->copy_to[call->n_copies++] = op == BENCH_ENCODE ? slot->copy[i] : row;
        }
    }
    for (unsigned j = 0; j < m; j++) {
        uint8_t *parity = copy ? slot->copy[k + j] : slot->parity[j];

        if (op == BENCH_ENCODE)
            call->to[j] = parity;
        else if (n_from < k)
            call->from[n_from++] = parity;
    }
    if (r->xor_last && n_to > 1) {
        /* from[k..2k-1]: every row but the last lost one, if it is in data, and parity
         * 0. */
        for (unsigned i = 0, n = k; i < k; i++) {
            uint8_t *row = slot->data + i * len;

            if (row != call->to[n_to - 1])
                call->from[n++] = copy && (way->lost >> i & 1) == 0 ? slot->copy[i] : row;
        }
        call->from[2 * k - 1] = copy ? slot->copy[k] : slot->parity[0];
    }
    return true;
}

static void copy_rows(const struct bench_call *call, int len)
{
    for (unsigned i = 0; i < call->n_copies; i++)
        memcpy(call->copy_to[i], call->copy_from[i], (size_t)len);
}

/* Selects the k x k rows of the generator that belong to the survivors that bind() reads:
 * rows of the unit matrix, then parities. */
static void survivors(const struct rival *r, const int *parity_rows, uint32_t lost,
                      int *out)
{
    int at = 0;

    memset(out, 0, sizeof(*out) * (size_t)(r->k * r->k));
    for (int i = 0; i < r->k; i++) {
        if ((lost >> i & 1) == 0)
            out[at++ * r->k + i] = 1;
    }
    for (int j = 0; at < r->k; j++, at++)
        memcpy(out + at * r->k, parity_rows + j * r->k, sizeof(*out) * (size_t)r->k);
}

/* Returns the rows of the inverse that make the lost rows. */
static int *lost_rows_of(const struct rival *r, const int *inverse, uint32_t lost)
{
    int *rows = calloc((size_t)(r->k * r->k), sizeof(*rows));
    int at = 0;

    if (rows == NULL)
        abort();
    for (int i = 0; i < r->k; i++) {
        if ((lost >> i & 1) != 0)
            memcpy(rows + at++ * r->k, inverse + i * r->k, sizeof(*rows) * (size_t)r->k);
    }
    return rows;
}

/* Fills in every way; the code's own functions invert and prepare the matrix. Returns
 * false if it is singular. */
static bool ways_make(struct rival *r, const int *parity_rows,
                      int (*invert)(const struct rival *r, int *in, int *out),
                      void (*finish)(struct rival *r, struct way *way))
{
    int square[CODEC_K_MAX * CODEC_K_MAX], inverse[CODEC_K_MAX * CODEC_K_MAX];
    size_t bytes = sizeof(int) * (size_t)(r->m * r->k);
    struct way *way = &r->way[BENCH_ENCODE][0];

    way->n_to = (unsigned)r->m;
    way->matrix = malloc(bytes);
    if (way->matrix == NULL)
        abort();
    memcpy(way->matrix, parity_rows, bytes);
    finish(r, way);
    for (unsigned lost = 1; lost <= CODEC_M_MAX; lost++) {
        for (unsigned p = 0; p < r->set->n_lost[lost]; p++) {
            way = &r->way[BENCH_DECODE + lost][p];
            way->lost = r->set->lost[lost][p];
            way->n_to = lost;
            survivors(r, parity_rows, way->lost, square);
            if (invert(r, square, inverse) != 0)
                return false;
            way->matrix = lost_rows_of(r, inverse, way->lost);
            finish(r, way);
        }
    }
    return true;
}

/* ISA-L: dot products with a Cauchy matrix. */

static int isal_invert(const struct rival *r, int *in, int *out)
{
    unsigned char from[CODEC_K_MAX * CODEC_K_MAX], to[CODEC_K_MAX * CODEC_K_MAX];
    int rc;

    for (int i = 0; i < r->k * r->k; i++)
        from[i] = (unsigned char)in[i];
    rc = r->isal->invert(from, to, r->k);
    for (int i = 0; i < r->k * r->k; i++)
        out[i] = to[i];
    return rc;
}

static void isal_finish(struct rival *r, struct way *way)
{
    unsigned char matrix[CODEC_M_MAX * CODEC_K_MAX];
    size_t n = way->n_to * (size_t)r->k;

    for (size_t i = 0; i < n; i++)
        matrix[i] = (unsigned char)way->matrix[i];
    way->gf = aligned_alloc(64, (32 * n + 63) / 64 * 64);
    if (way->gf == NULL)
        abort();
    r->tables(r->k, (int)way->n_to, matrix, way->gf);
}

static void *isal_prepare(const struct bench_code *code, const struct bench_set *set)
{
    struct rival *r = rival_new(code, set);
    unsigned char full[CODEC_N_MAX * CODEC_K_MAX];
    int parity[CODEC_M_MAX * CODEC_K_MAX];

    r->isal = code->lib;
    memcpy(&r->encode, &code->encode, sizeof(r->encode));
    r->tables = code->encode == NULL                 ? r->isal->init_tables
                : strstr(code->name, "gfni") != NULL ? r->isal->init_tables_gfni
                                                     : r->isal->init_tables_base;
    if (code->encode == NULL)
        r->encode = r->isal->encode;
    r->isal->gen_cauchy(full, r->k + r->m, r->k);
    for (int i = 0; i < r->m * r->k; i++)
        parity[i] = full[r->k * r->k + i];
    if (!ways_make(r, parity, isal_invert, isal_finish)) {
        rival_release(r);
        return NULL;
    }
    return r;
}

static void isal_run(const void *state, const struct bench_call *call)
{
    const struct rival *r = state;
    const struct way *way = call->way;

    copy_rows(call, r->len);
    if (way->n_to > 0)
        r->encode(r->len, r->k, (int)way->n_to, way->gf, (unsigned char **)call->from,
                  (unsigned char **)call->to);
}

static const struct bench_code_ops isal_ops = {
    .prepare = isal_prepare,
    .bind = rival_bind,
    .encode = isal_run,
    .decode = isal_run,
    .release = rival_release,
};

/* ISA-L's RAID: xor_gen for one parity and for one lost row, pq_gen for two parities. */

static void *raid_prepare(const struct bench_code *code, const struct bench_set *set)
{
    struct rival *r;

    if (set->what.n - set->what.k > 2 || set->what.k < 2)
        return NULL;
    r = rival_new(code, set);
    r->isal = code->lib;
    r->way[BENCH_ENCODE][0].n_to = (unsigned)r->m;
    for (unsigned p = 0; p < set->n_lost[1]; p++) {
        r->way[BENCH_DECODE + 1][p].n_to = 1;
        r->way[BENCH_DECODE + 1][p].lost = set->lost[1][p];
    }
    return r;
}

static bool raid_bind(const void *state, const struct bench_slot *slot, unsigned op,
                      unsigned pattern, bool copy, struct bench_call *call)
{
    const struct rival *r = state;

    if (op > BENCH_DECODE + 1 || !rival_bind(state, slot, op, pattern, copy, call))
        return false;
    for (unsigned j = 0; j < CODEC_M_MAX;
         j++) /* one array: rows to read, then rows to make */
        call->from[r->k + (int)j] = call->to[j];
    return true;
}

static void raid_run(const void *state, const struct bench_call *call)
{
    const struct rival *r = state;
    const struct way *way = call->way;

    copy_rows(call, r->len);
    if (way->n_to == 1)
        r->isal->xor_gen(r->k + 1, r->len, (void **)call->from);
    else if (way->n_to == 2)
        r->isal->pq_gen(r->k + 2, r->len, (void **)call->from);
}

static const struct bench_code_ops raid_ops = {
    .prepare = raid_prepare,
    .bind = raid_bind,
    .encode = raid_run,
    .decode = raid_run,
    .release = rival_release,
};

/* Jerasure, Vandermonde: the first parity is a plain XOR, which decode uses. */

static int jerasure_invert(const struct rival *r, int *in, int *out)
{
    return r->jerasure->invert(in, out, r->k, r->w);
}

/* Returns the code with all its ways, NULL if it has none; takes parity. */
static struct rival *jerasure_ready(struct rival *r, int *parity,
                                    void (*finish)(struct rival *r, struct way *way))
{
    bool fine = parity != NULL && ways_make(r, parity, jerasure_invert, finish);

    free(parity);
    if (fine)
        return r;
    rival_release(r);
    return NULL;
}

static void vandermonde_finish(struct rival *r, struct way *way)
{
    (void)r;
    (void)way;
}

static void *vandermonde_prepare(const struct bench_code *code,
                                 const struct bench_set *set)
{
    struct rival *r = rival_new(code, set);

    r->jerasure = code->lib;
    r->w = 8;
    r->xor_last = true;
    return jerasure_ready(r, r->jerasure->vandermonde(r->k, r->m, r->w),
                          vandermonde_finish);
}

static void vandermonde_encode(const void *state, const struct bench_call *call)
{
    const struct rival *r = state;
    const struct way *way = call->way;

    copy_rows(call, r->len);
    r->jerasure->encode(r->k, r->m, r->w, way->matrix, (char **)call->from,
                        (char **)call->to, r->len);
}

static void vandermonde_decode(const void *state, const struct bench_call *call)
{
    static int ids[CODEC_K_MAX] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    };
    static int ones[CODEC_K_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct rival *r = state;
    const struct way *way = call->way;

    copy_rows(call, r->len);
    for (unsigned i = 0; i < way->n_to; i++) {
        bool by_xor = way->n_to > 1 && i + 1 == way->n_to;

        r->jerasure->dotprod(r->k, r->w, by_xor ? ones : way->matrix + i * (unsigned)r->k,
                             ids, r->k + (int)i,
                             (char **)call->from + (by_xor ? r->k : 0), (char **)call->to,
                             r->len);
    }
}

static const struct bench_code_ops vandermonde_ops = {
    .prepare = vandermonde_prepare,
    .bind = rival_bind,
    .encode = vandermonde_encode,
    .decode = vandermonde_decode,
    .release = rival_release,
};

/* Jerasure, Cauchy: bits of 4-bit words, XOR schedules. */

static void cauchy_finish(struct rival *r, struct way *way)
{
    int *bits = r->jerasure->to_bits(r->k, (int)way->n_to, r->w, way->matrix);

    if (bits == NULL)
        abort();
    way->schedule = r->jerasure->to_schedule(r->k, (int)way->n_to, r->w, bits);
    free(bits);
    if (way->schedule == NULL)
        abort();
}

static void *cauchy_prepare(const struct bench_code *code, const struct bench_set *set)
{
    struct rival *r;

    if (set->what.n > 16)
        return NULL; /* 4-bit words have no more points */
    r = rival_new(code, set);
    r->jerasure = code->lib;
    r->w = 4;
    r->packet_bytes = r->len / r->w < 1024 ? r->len / r->w : 1024; /* stays in L1 */
    return jerasure_ready(r, r->jerasure->cauchy(r->k, r->m, r->w), cauchy_finish);
}

static void cauchy_run(const void *state, const struct bench_call *call)
{
    const struct rival *r = state;
    const struct way *way = call->way;

    copy_rows(call, r->len);
    if (way->n_to > 0)
        r->jerasure->run_schedule(r->k, (int)way->n_to, r->w, way->schedule,
                                  (char **)call->from, (char **)call->to, r->len,
                                  r->packet_bytes);
}

static const struct bench_code_ops cauchy_ops = {
    .prepare = cauchy_prepare,
    .bind = rival_bind,
    .encode = cauchy_run,
    .decode = cauchy_run,
    .release = rival_release,
};

/* memcpy: n packets at encode, k packets at decode, the time of a code that costs
 * nothing. */

static void *memcpy_prepare(const struct bench_code *code, const struct bench_set *set)
{
    return rival_new(code, set);
}

static bool memcpy_bind(const void *state, const struct bench_slot *slot, unsigned op,
                        unsigned pattern, bool copy, struct bench_call *call)
{
    const struct rival *r = state;
    unsigned n = (unsigned)(op == BENCH_ENCODE ? r->k + r->m : r->k);

    (void)pattern;
    (void)copy;
    memset(call, 0, sizeof(*call));
    call->n_copies = n;
    call->uses_copy = true;
    for (unsigned i = 0; i < n; i++) {
        uint8_t *row = slot->data + i % (unsigned)r->k * (size_t)r->len;

        call->copy_from[i] = op == BENCH_ENCODE ? row : slot->copy[i];
        call->copy_to[i] = op == BENCH_ENCODE ? slot->copy[i] : row;
    }
    return true;
}

static void memcpy_run(const void *state, const struct bench_call *call)
{
    const struct rival *r = state;

    copy_rows(call, r->len);
}

static const struct bench_code_ops memcpy_ops = {
    .prepare = memcpy_prepare,
    .bind = memcpy_bind,
    .encode = memcpy_run,
    .decode = memcpy_run,
    .release = rival_release,
    .computes_nothing = true,
};

/* Search for the libraries. */

struct symbol {
    const char *name;
    void *at; /* a function pointer */
};

/* Looks up all symbols; false if one is missing. ISO C has no cast from void * to a
 * function, POSIX does. */
static bool symbols_find(void *lib, const struct symbol *symbols)
{
    for (const struct symbol *s = symbols; s->name != NULL; s++) {
        void *found = dlsym(lib, s->name);

        if (found == NULL)
            return false;
        memcpy(s->at, &found, sizeof(found));
    }
    return true;
}

/* Writes "2.31" for /x/libisal.so.2.0.31, "?" if the name does not tell. */
static void isal_version(void *lib, char *out, size_t size)
{
    struct link_map *map = NULL;
    char *path = NULL;
    const char *tail;
    unsigned minor;

    snprintf(out, size, "?");
    if (dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0)
        path = realpath(map->l_name, NULL);
    tail = path == NULL ? NULL : strstr(path, "libisal.so.2.0.");
    if (tail != NULL && sscanf(tail, "libisal.so.2.0.%u", &minor) == 1)
        snprintf(out, size, "2.%u", minor);
    free(path);
}

/* Returns memory for a library's functions, freed with the codes. */
static void *lib_add(struct bench_codes *codes, size_t size)
{
    void *functions = calloc(1, size);

    if (functions == NULL)
        abort();
    assert(codes->n_libs < BENCH_LIBS_MAX);
    codes->lib[codes->n_libs++] = functions;
    return functions;
}

void bench_codes_free(struct bench_codes *codes)
{
    for (unsigned i = 0; i < codes->n_libs; i++)
        free(codes->lib[i]);
    memset(codes, 0, sizeof(*codes));
}

static struct bench_code *code_add(struct bench_codes *codes, const void *lib,
                                   const struct bench_code_ops *ops)
{
    struct bench_code *code = &codes->code[codes->n_codes++];

    assert(codes->n_codes <= BENCH_CODES_MAX);
    memset(code, 0, sizeof(*code));
    code->lib = lib;
    code->ops = ops;
    return code;
}

/* Returns whether the processor can run a function. isa-l has all functions on every
 * machine. */
static bool can_run(const char *name)
{
#if defined(__x86_64__)
    return (strstr(name, "avx2") == NULL || __builtin_cpu_supports("avx2")) &&
           (strstr(name, "gfni") == NULL || __builtin_cpu_supports("gfni"));
#else
    (void)name;
    return false;
#endif
}

static void isal_add(struct bench_codes *codes, void *lib, bool isas)
{
    static const struct {
        const char *name, *symbol;
    } lesser[] = { { "avx2+gfni", "ec_encode_data_avx2_gfni" },
                   { "avx2", "ec_encode_data_avx2" },
                   { "sse", "ec_encode_data_sse" } };
    struct isal *isal = lib_add(codes, sizeof(*isal));
    const struct symbol symbols[] = {
        { "ec_init_tables", &isal->init_tables },
        { "ec_encode_data", &isal->encode },
        { "gf_gen_cauchy1_matrix", &isal->gen_cauchy },
        { "gf_invert_matrix", &isal->invert },
        { "xor_gen", &isal->xor_gen },
        { "pq_gen", &isal->pq_gen },
        { 0 },
    };
    const struct symbol base[] = { { "ec_init_tables_base", &isal->init_tables_base },
                                   { 0 } };
    const struct symbol gfni[] = { { "ec_init_tables_gfni", &isal->init_tables_gfni },
                                   { 0 } };
    char version[8];

    /* Not installed, or an unknown version. */
    if (lib == NULL || !symbols_find(lib, symbols))
        return;
    /* Before GFNI there was one kind. */
    if (!symbols_find(lib, base))
        isal->init_tables_base = isal->init_tables;
    isal_version(lib, version, sizeof(version));
    snprintf(code_add(codes, isal, &isal_ops)->name, BENCH_NAME_MAX, "isa-l %s", version);
    snprintf(code_add(codes, isal, &raid_ops)->name, BENCH_NAME_MAX, "isa-l %s raid",
             version);
    for (unsigned i = 0; isas && i < sizeof(lesser) / sizeof(lesser[0]); i++) {
        void *encode = dlsym(lib, lesser[i].symbol);
        struct bench_code *code;

        if (encode == NULL || !can_run(lesser[i].name) ||
            (strstr(lesser[i].name, "gfni") != NULL && !symbols_find(lib, gfni)))
            continue;
        code = code_add(codes, isal, &isal_ops);
        code->encode = encode;
        snprintf(code->name, BENCH_NAME_MAX, "isa-l %s %s", version, lesser[i].name);
    }
}

static void jerasure_add(struct bench_codes *codes, const char *path)
{
    void *lib = dlopen(path, OPEN_MODE);
    struct jerasure *j = lib_add(codes, sizeof(*j));
    const struct symbol symbols[] = {
        { "reed_sol_vandermonde_coding_matrix", &j->vandermonde },
        { "cauchy_good_general_coding_matrix", &j->cauchy },
        { "jerasure_matrix_to_bitmatrix", &j->to_bits },
        { "jerasure_smart_bitmatrix_to_schedule", &j->to_schedule },
        { "jerasure_free_schedule", &j->free_schedule },
        { "jerasure_invert_matrix", &j->invert },
        { "jerasure_matrix_dotprod", &j->dotprod },
        { "jerasure_matrix_encode", &j->encode },
        { "jerasure_schedule_encode", &j->run_schedule },
        { 0 },
    };

    if (lib == NULL || !symbols_find(lib, symbols))
        return;
    snprintf(code_add(codes, j, &vandermonde_ops)->name, BENCH_NAME_MAX,
             "jerasure vandermonde");
    snprintf(code_add(codes, j, &cauchy_ops)->name, BENCH_NAME_MAX, "jerasure cauchy");
}

void bench_add_rivals(struct bench_codes *codes, bool isas)
{
    const char *prefix = getenv("ISAL_PREFIX"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    /* Opened by its bare name, hence first: afterwards that name would find the other
     * one. */
    void *system = dlopen("libisal.so.2", OPEN_MODE);
    char path[4096];

    if (prefix != NULL)
        snprintf(path, sizeof(path), "%s/lib/libisal.so.2", prefix);
    else if (cache != NULL)
        snprintf(path, sizeof(path), "%s/rozo-bench/isal/lib/libisal.so.2", cache);
    else
        snprintf(path, sizeof(path), "%s/.cache/rozo-bench/isal/lib/libisal.so.2",
                 home == NULL ? "/root" : home);
    isal_add(codes, dlopen(path, OPEN_MODE), isas);
    isal_add(codes, system, isas);
    jerasure_add(codes, "libJerasure.so.2");
    snprintf(code_add(codes, NULL, &memcpy_ops)->name, BENCH_NAME_MAX, "memcpy");
}
