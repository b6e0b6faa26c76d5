/*
 * fold.c - folds names: canonical decomposition and order, then simple case folding.
 *
 * In:     bytes of names. Out: code points, and their hash in keys of the index.
 * Keeps:  the same bytes give the same hash for ever (FOLD_RULES): no table of the
 *         system is asked, since another version of it would change indexes on disks.
 */
#include "exportd/namespace/fold.h"

#include <assert.h>
#include <string.h>

#include <openssl/evp.h>

#include "common/base/bytes.h"
#include "common/base/log.h"

enum {
    STRAY_BYTE = 0x110000, /* first number that is no code point */
    HANGUL_FIRST = 0xac00,
    HANGUL_N = 11172,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7,
    HANGUL_N_V = 21,
    HANGUL_N_T = 28,
    SHA256_BYTES = 32,
};

/*
 * Decodes one character. Returns its bytes; 1 and a stray byte if they are not UTF-8:
 * overlong, a surrogate, beyond the last code point, or cut off.
 */
static size_t point_decode(const uint8_t *p, size_t len, uint32_t *point)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t n = p[0] < 0x80             ? 1
               : (p[0] & 0xe0) == 0xc0 ? 2
               : (p[0] & 0xf0) == 0xe0 ? 3
               : (p[0] & 0xf8) == 0xf0 ? 4
                                       : 0;
    uint32_t c;

    assert(len > 0);
    *point = n == 1 ? p[0] : STRAY_BYTE + p[0];
    if (n < 2 || n > len)
        return 1;
    c = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 1;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[n] || c >= STRAY_BYTE || (c >= 0xd800 && c < 0xe000))
        return 1;
    *point = c;
    return n;
}

/* Returns the value of a point; 0: it is in no run. */
static int32_t run_value(const struct fold_run *runs, size_t n, uint32_t point)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (runs[mid].last < point)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == n || point < runs[low].first ||
        (point - runs[low].first) % runs[low].step != 0)
        return 0;
    return runs[low].value;
}

static const struct fold_parts *parts_find(uint32_t point)
{
    size_t low = 0, high = fold_n_pairs;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (fold_pairs[mid].point < point)
            low = mid + 1;
        else
            high = mid;
    }
    return low < fold_n_pairs && fold_pairs[low].point == point ? &fold_pairs[low] : NULL;
}

static void point_add(struct folded *out, uint32_t point)
{
    assert(out->n < FOLD_POINTS_MAX);
    out->points[out->n++] = point;
}

static void hangul_add(struct folded *out, uint32_t syllable)
{
    uint32_t tail = syllable % HANGUL_N_T;

    point_add(out, HANGUL_L + syllable / (HANGUL_N_V * HANGUL_N_T));
    point_add(out, HANGUL_V + syllable / HANGUL_N_T % HANGUL_N_V);
    if (tail != 0)
        point_add(out, HANGUL_T + tail);
}

/* Adds a point, decomposed. Only first parts have parts again. */
static void decomposed_add(struct folded *out, uint32_t point)
{
    uint32_t seconds[4];
    size_t n = 0;

    for (const struct fold_parts *p; point >= 0x80 && (p = parts_find(point)) != NULL;
         point = p->first) {
        assert(n < sizeof(seconds) / sizeof(seconds[0]));
        seconds[n++] = p->second;
    }
    if (point >= HANGUL_FIRST && point < HANGUL_FIRST + HANGUL_N)
        hangul_add(out, point - HANGUL_FIRST);
    else
        point_add(out, point);
    while (n-- > 0) {
        if (seconds[n] != 0)
            point_add(out, seconds[n]);
    }
}

/* Puts marks that follow each other into the order of their classes, and no others. */
static void marks_order(struct folded *f)
{
    for (size_t i = 1; i < f->n; i++) {
        uint32_t point = f->points[i];
        int32_t class = point < 0x80 ? 0 : run_value(fold_classes, fold_n_classes, point);
        size_t at = i;

        /* A class of 0 is never above another one, and stops each that is. */
        while (class != 0 && at > 0 &&
               run_value(fold_classes, fold_n_classes, f->points[at - 1]) > class) {
            f->points[at] = f->points[at - 1];
            at--;
        }
        f->points[at] = point;
    }
}

void fold_name(const uint8_t *name, size_t len, struct folded *out)
{
    bool is_ascii = true;

    assert(len <= NAMESPACE_NAME_MAX);
    out->n = 0;
    for (size_t at = 0; at < len;) {
        uint32_t point;

        at += point_decode(name + at, len - at, &point);
        is_ascii = is_ascii && point < 0x80;
        decomposed_add(out, point);
    }
    if (!is_ascii)
        marks_order(out);
    /* No folded point has parts, so nothing needs to be decomposed or ordered again. */
    for (size_t i = 0; i < out->n; i++)
        out->points[i] += (uint32_t)run_value(fold_cases, fold_n_cases, out->points[i]);
}

bool fold_equal(const struct folded *a, const struct folded *b)
{
    return a->n == b->n && memcmp(a->points, b->points, a->n * sizeof(a->points[0])) == 0;
}

uint64_t fold_hash(const struct folded *f)
{
    uint8_t bytes[4 * FOLD_POINTS_MAX], hash[SHA256_BYTES];

    for (size_t i = 0; i < f->n; i++)
        put_le32(bytes + 4 * i, f->points[i]);
    if (EVP_Digest(bytes, 4 * f->n, hash, NULL, EVP_sha256(), NULL) != 1)
        log_out_of_memory("while a name was folded");
    return get_le64(hash);
}
