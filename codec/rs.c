/*
 * rs.c - systematic Reed-Solomon over GF(2^8), computed by isa-l.
 *
 * In:     codec.c, through struct codec_ops. Thread: any. Allocates nothing.
 * Out:    isa-l's matrices and loops.
 * Keeps:  the field, x^8 + x^4 + x^3 + x^2 + 1, and the matrix, 1 / (i ^ j) for
 *         projection i and row j: data on disks depend on them. Frozen vectors in
 *         tests/unit/codec check them.
 * Yours:  whose loops compute it.
 * Ask:    docs/CODEC.md; the manual of isa-l for the tables.
 *
 * A projection i >= k is the sum over the rows j of 1 / (i ^ j) times row j, byte by
 * byte. Any square part of such a (Cauchy) matrix can be inverted, so any k projections
 * give the rows back: the present ones are k rows of the matrix (identity above, Cauchy
 * below), and the lost rows of its inverse rebuild the lost rows of the block.
 */
#include <assert.h>
#include <string.h>

#include "codec/codec_impl.h"
#include "codec/isal.h"

enum {
    ROW_UNIT = 64,                         /* isa-l's loops then leave no rest */
    TABLE_BYTES = 32,                      /* isa-l's, for one coefficient */
    SET_BYTES = TABLE_BYTES * CODEC_K_MAX, /* for the coefficients of one sum */
};

/* Multiplication engine. The functions have isa-l's signatures; each engine has tables of
 * its own. */
struct rs_engine {
    void (*tables)(int k, int sums, unsigned char *coefficients, unsigned char *tables);
    void (*encode)(int len, int k, int sums, unsigned char *tables, unsigned char **from,
                   unsigned char **to);
    void (*update)(int len, int k, int sums, int which, unsigned char *tables,
                   unsigned char *from, unsigned char **to);
};

/* In codec->extra. Only isa-l knows the order of the tables of several sums, hence those
 * of each projection alone, too. */
struct rs_codec {
    const struct rs_engine *engine;
    _Alignas(64) unsigned char matrix[CODEC_N_MAX * CODEC_K_MAX]; /* n rows of k */
    _Alignas(64) unsigned char all[CODEC_M_MAX * SET_BYTES]; /* all n - k projections */
    _Alignas(64) unsigned char each[CODEC_M_MAX][SET_BYTES];
};

/* In way->extra: n_lost sums of the k projections that are used, in ascending order. */
struct rs_way {
    unsigned char tables[CODEC_M_MAX * SET_BYTES];
};

static const struct rs_codec *rs_of(const struct codec *c)
{
    return (const struct rs_codec *)c->extra;
}

/* ---- the engine in plain C: the tables are the coefficients ---- */

/* Multiplies eight bytes at once: twice each byte of x is x << 1, less the polynomial if
 * a bit falls out. */
static uint64_t ref_multiply(uint64_t x, unsigned by)
{
    const uint64_t low = UINT64_C(0x0101010101010101);
    uint64_t product = 0;

    for (; by != 0; by >>= 1) {
        if ((by & 1) != 0)
            product ^= x;
        x = (x & 0x7f * low) << 1 ^ (x >> 7 & low) * 0x1d;
    }
    return product;
}

static void ref_tables(int k, int sums, unsigned char *coefficients,
                       unsigned char *tables)
{
    memcpy(tables, coefficients, (size_t)k * (size_t)sums);
}

static void ref_update(int len, int k, int sums, int which, unsigned char *tables,
                       unsigned char *from, unsigned char **to)
{
    for (int sum = 0; sum < sums; sum++) {
        for (int x = 0; x < len; x += 8) {
            size_t bytes = len - x < 8 ? (size_t)(len - x) : 8;
            uint64_t source = 0, target = 0;

            memcpy(&source, from + x, bytes);
            memcpy(&target, to[sum] + x, bytes);
            target ^= ref_multiply(source, tables[sum * k + which]);
            memcpy(to[sum] + x, &target, bytes);
        }
    }
}

static void ref_encode(int len, int k, int sums, unsigned char *tables,
                       unsigned char **from, unsigned char **to)
{
    for (int sum = 0; sum < sums; sum++)
        memset(to[sum], 0, (size_t)len);
    for (int row = 0; row < k; row++)
        ref_update(len, k, sums, row, tables, from[row], to);
}

static const struct rs_engine engine_ref = { ref_tables, ref_encode, ref_update };

/* ---- isa-l's engines ---- */

/* isa-l's choice for this machine */
static const struct rs_engine engine_isal = { ec_init_tables, ec_encode_data,
                                              ec_encode_data_update };

#ifdef __x86_64__
/* Makes the tables for isa-l's functions of one instruction set: ec_init_tables() of
 * newer versions makes different ones, for GFNI. */
static void nibble_tables(int k, int sums, unsigned char *coefficients,
                          unsigned char *tables)
{
    for (int i = 0; i < k * sums; i++)
        gf_vect_mul_init(coefficients[i], tables + (size_t)i * TABLE_BYTES);
}

static const struct rs_engine engine_sse = { nibble_tables, ec_encode_data_sse,
                                             ec_encode_data_update_sse };
static const struct rs_engine engine_avx2 = { nibble_tables, ec_encode_data_avx2,
                                              ec_encode_data_update_avx2 };
#endif

/* Chooses the engine. For the best instruction set of this machine isa-l decides; lower
 * ones are called by name. */
static const struct rs_engine *engine_of(const struct kernels *kernels)
{
    if (kernels == kernels_of(CODEC_ISA_REF))
        return &engine_ref;
#ifdef __x86_64__
    if (kernels == kernels_of(CODEC_ISA_128) && codec_isa_usable(CODEC_ISA_AVX2))
        return &engine_sse; /* a machine with AVX2 has the SSSE3 that it takes */
    if (kernels == kernels_of(CODEC_ISA_AVX2) && codec_isa_usable(CODEC_ISA_AVX512))
        return &engine_avx2;
#endif
    return &engine_isal;
}

/* ---- geometry, encode, update ---- */

static void rs_geometry(struct codec *c)
{
    struct rs_codec *rs = (struct rs_codec *)c->extra;
    int k = (int)c->k, sums = (int)(c->n - c->k);
    unsigned char *coefficients = rs->matrix + c->k * c->k;

    c->row_unit = ROW_UNIT;
    gf_gen_cauchy1_matrix(rs->matrix, (int)c->n, k);
    rs->engine = engine_of(c->kernels);
    rs->engine->tables(k, sums, coefficients, rs->all);
    for (int i = 0; i < sums; i++)
        rs->engine->tables(k, 1, coefficients + i * k, rs->each[i]);
}

/* Casts away const for isa-l, which takes pointers to its inputs as if it wrote there. */
static unsigned char *unconst(const uint8_t *bytes)
{
    return (unsigned char *)(uintptr_t)bytes;
}

static void rs_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                      uint8_t *const body[], uint8_t *const overhang[])
{
    const struct rs_codec *rs = rs_of(c);
    unsigned char *rows[CODEC_K_MAX], *to[CODEC_M_MAX];
    int len = (int)row_bytes, k = (int)c->k;
    unsigned n_wanted = 0, sums = c->n - c->k;

    (void)overhang;
    for (unsigned row = 0; row < c->k; row++)
        rows[row] = unconst(data + row * row_bytes);
    for (unsigned i = 0; i < sums; i++)
        n_wanted += (to[i] = body[c->k + i]) != NULL;
    if (n_wanted == sums)
        rs->engine->encode(len, k, (int)sums, unconst(rs->all), rows, to);
    for (unsigned i = 0; n_wanted < sums && i < sums; i++) {
        if (to[i] != NULL)
            rs->engine->encode(len, k, 1, unconst(rs->each[i]), rows, &to[i]);
    }
    isal_leave();
}

/* Makes one projection, its rows anywhere. */
static void rs_project(const struct codec *c, unsigned i, const uint8_t *const rows[],
                       size_t row_bytes, uint8_t *body, uint8_t *const overhang[])
{
    unsigned char *from[CODEC_K_MAX];

    (void)overhang;
    for (unsigned row = 0; row < c->k; row++)
        from[row] = unconst(rows[row]);
    rs_of(c)->engine->encode((int)row_bytes, (int)c->k, 1,
                             unconst(rs_of(c)->each[i - c->k]), from, &body);
    isal_leave();
}

static void rs_update(const struct codec *c, unsigned row, size_t from, size_t len,
                      const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                      uint8_t *const overhang[])
{
    const struct rs_codec *rs = rs_of(c);

    (void)row_bytes, (void)overhang;
    for (unsigned i = 0; i < c->n - c->k && len > 0; i++) {
        unsigned char *to = body[c->k + i];

        if (to == NULL)
            continue;
        to += from;
        rs->engine->update((int)len, (int)c->k, 1, (int)row, unconst(rs->each[i]),
                           unconst(delta), &to);
    }
    isal_leave();
}

/* ---- decode ---- */

static void rs_plan(const struct codec *c, struct codec_way *way)
{
    const struct rs_codec *rs = rs_of(c);
    struct rs_way *sums = (struct rs_way *)way->extra;
    unsigned char used[CODEC_K_MAX * CODEC_K_MAX], inverse[CODEC_K_MAX * CODEC_K_MAX];
    unsigned char coefficients[CODEC_M_MAX * CODEC_K_MAX];
    unsigned n = 0;
    int rc;

    if (way->n_lost == 0)
        return;
    assert(way->n_lost <= CODEC_M_MAX);
    for (uint32_t uses = way->uses; uses != 0; uses &= uses - 1)
        memcpy(used + n++ * c->k, rs->matrix + (unsigned)__builtin_ctz(uses) * c->k,
               c->k);
    assert(n == c->k);
    rc = gf_invert_matrix(used, inverse, (int)c->k);
    assert(rc == 0); /* a Cauchy matrix can be inverted */
    for (unsigned i = 0; i < way->n_lost; i++)
        memcpy(coefficients + i * c->k, inverse + way->lost[i] * c->k, c->k);
    rs->engine->tables((int)c->k, way->n_lost, coefficients, sums->tables);
}

static void rs_decode(const struct codec *c, const struct codec_way *way,
                      const uint8_t *const body[], const uint8_t *const overhang[],
                      size_t row_bytes, uint8_t *const rows[])
{
    const struct rs_way *sums = (const struct rs_way *)way->extra;
    unsigned char *from[CODEC_K_MAX], *to[CODEC_M_MAX];
    unsigned n = 0;

    (void)overhang;
    for (uint32_t uses = way->uses; uses != 0; uses &= uses - 1)
        from[n++] = unconst(body[__builtin_ctz(uses)]);
    for (unsigned i = 0; i < way->n_lost; i++)
        to[i] = rows[way->lost[i]];
    rs_of(c)->engine->encode((int)row_bytes, (int)c->k, way->n_lost,
                             unconst(sums->tables), from, to);
    isal_leave();
}

const struct codec_ops rs_ops = {
    .kind = CODEC_RS,
    .name = "rs",
    .systematic = true,
    .codec_bytes = sizeof(struct rs_codec),
    .way_bytes = sizeof(struct rs_way),
    .geometry = rs_geometry,
    .encode = rs_encode,
    .plan = rs_plan,
    .decode = rs_decode,
    .update = rs_update,
    .project = rs_project,
};
