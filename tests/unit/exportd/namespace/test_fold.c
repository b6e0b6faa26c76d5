/*
 * test_fold.c - names in another case or normalisation: the folding and its index.
 *
 * Goal:   names fold as Unicode 15.0 says, any bytes are a name, and the rules never
 *         change; the index answers with an existing name, the equal one before the
 *         oldest one, and looks at a few keys of the store, however many names there are.
 * Method: known words and every code point; exportd over a kv that counts reads.
 */
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "exportd/namespace/fold.h"
#include "exportd/namespace/namespace.h"
#include "exportd/store/key.h"
#include "exportd/store/kv_record.h"
#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static bool same(const char *a, const char *b)
{
    struct folded fa, fb;

    fold_name((const uint8_t *)a, strlen(a), &fa);
    fold_name((const uint8_t *)b, strlen(b), &fb);
    assert_int_equal(fold_equal(&fa, &fb), fold_hash(&fa) == fold_hash(&fb));
    return fold_equal(&fa, &fb);
}

static void test_case(void **state)
{
    (void)state;
    assert_true(same("Clip_0001.MOV", "clip_0001.mov"));
    assert_true(same("\u00c4\u00d6\u00dc", "\u00e4\u00f6\u00fc"));
    assert_true(same("\u0416", "\u0436"));                         /* Cyrillic */
    assert_true(same("\u03a3\u03c3\u03c2", "\u03c3\u03c3\u03c3")); /* sigma, final too */
    assert_true(same("\u1e9e", "\u00df"));                         /* sharp s, capital */
    assert_true(same("\U00010400", "\U00010428"));                 /* Deseret, 4 bytes */
    assert_true(same("\u212a", "k"));                              /* Kelvin */
    assert_true(same("\u01c5", "\u01c6"));                         /* title case */
    /* Simple folding maps one character to one, and the same in each language. */
    assert_false(same("\u00df", "ss"));
    assert_false(same("\ufb03", "ffi"));
    assert_false(same("\u0131", "i")); /* dotless i */
    assert_false(same("\u0130", "i")); /* dotted capital I */
    assert_false(same("I", "\u0131"));
    assert_true(same("I", "i"));
    assert_true(same("\u0130", "i\u0307"));
    assert_false(same("a", "b"));
    assert_false(same("a", "aa"));
    assert_false(same("\uff41", "a")); /* full width is another character */
}

static void test_normalisation(void **state)
{
    (void)state;
    assert_true(same("\u00e9", "e\u0301"));
    assert_true(same("\u00c9", "e\u0301"));
    assert_true(same("\u1ea5", "a\u0302\u0301")); /* in two steps */
    assert_false(same("\u1ea5", "a\u0301\u0302"));
    /* The order of marks of different classes says nothing, that of equal ones does. */
    assert_true(same("q\u0323\u0307", "q\u0307\u0323"));
    assert_true(same("\u1e0d\u0307", "\u1e0b\u0323"));
    assert_false(same("q\u0301\u0307", "q\u0307\u0301"));
    assert_false(same("q\u0323x\u0307", "q\u0307x\u0323"));
    /* A mark that folds to a letter is put in order before. */
    assert_true(same("\u1fb3\u0301", "\u0391\u0301\u0345"));
    assert_true(same("\u1fbc", "\u03b1\u03b9"));
    /* Hangul: syllables of two and of three. */
    assert_true(same("\uac00", "\u1100\u1161"));
    assert_true(same("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"));
    assert_true(same("\ud7a3", "\u1112\u1175\u11c2"));
    assert_false(same("\uac00", "\uac01"));
    assert_true(same("\u2126", "\u03c9")); /* Ohm */
    assert_true(same("\u0344", "\u0308\u0301"));
    assert_false(same("\ufb01", "fi")); /* only compatible */
}

static void test_bytes_that_are_not_utf8(void **state)
{
    static const char *const stray[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\x81",
        "\xc3",
        "\xe0\x80\x80",
        "\xe1\x80",
        "\xed\xa0\x80",
        "\xf0\x80\x80\x80",
        "\xf4\x90",
        "\xf5\x80",
        "\xff",
        "\xfe\xff",
        "\xe9",
        "\xc9",
        "\xc3(",
        "\xe2\x82",
        "\xf0\x9f\x92",
        "\xf4\x90\x80\x80",
        "\xed\xbf\xbf",
    };
    const size_t n = sizeof(stray) / sizeof(stray[0]);
    struct folded f;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++)
            assert_int_equal(same(stray[i], stray[j]), i == j);
        fold_name((const uint8_t *)stray[i], strlen(stray[i]), &f);
        assert_int_equal(f.n, strlen(stray[i]));
    }
    assert_false(same("\xc1\x81", "A")); /* overlong */
    assert_true(same("A\xff\xc3\x89", "a\xff\xc3\xa9"));
    assert_true(same("\xc3\xc3\x89", "\xc3\xc3\xa9"));
    /* Latin-1 has no case here: nobody knows that it is Latin-1. */
    assert_false(same("\xe9", "\xc9"));
}

static void test_longest_names(void **state)
{
    char name[256], other[256];
    struct folded f;

    (void)state;
    memset(name, 'A', 255);
    memset(other, 'a', 255);
    name[255] = other[255] = 0;
    assert_true(same(name, other));
    for (unsigned i = 0; i < 254; i += 2)
        memcpy(name + i, "\u0390", 2); /* three points of two bytes */
    name[254] = 0;
    fold_name((const uint8_t *)name, 254, &f);
    assert_int_equal(f.n, 381);
    for (unsigned i = 0; i < 255; i += 3)
        memcpy(name + i, "\u1f82", 3); /* four points of three bytes */
    fold_name((const uint8_t *)name, 255, &f);
    assert_int_equal(f.n, 340);
    /* All marks, each class below the one before. */
    for (unsigned i = 0; i < 254; i += 2)
        memcpy(name + i, i % 4 == 0 ? "\u0301" : "\u0323", 2);
    fold_name((const uint8_t *)name, 254, &f);
    assert_int_equal(f.n, 127);
    for (unsigned i = 1; i < f.n; i++)
        assert_true(f.points[i - 1] == 0x323 || f.points[i] == 0x301);
}

static size_t utf8_put(uint8_t *p, uint32_t c)
{
    if (c < 0x80) {
        p[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        p[0] = (uint8_t)(0xc0 | c >> 6);
        p[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        p[0] = (uint8_t)(0xe0 | c >> 12);
        p[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        p[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    p[0] = (uint8_t)(0xf0 | c >> 18);
    p[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    p[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    p[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* Rules on users' disks: another number here needs another FOLD_RULES. */
static void test_every_code_point_folds_as_ever(void **state)
{
    uint8_t name[8], bytes[4 * 16];
    uint32_t crc = 0;
    unsigned n_changed = 0;
    struct folded f, again;

    (void)state;
    assert_int_equal(FOLD_RULES, 1);
    for (uint32_t c = 1; c < 0x110000; c++) {
        size_t len = 0;

        if (c >= 0xd800 && c < 0xe000)
            continue;
        fold_name(name, utf8_put(name, c), &f);
        assert_true(f.n >= 1 && f.n <= 4);
        for (size_t i = 0; i < f.n; i++) {
            put_le32(bytes + 4 * i, f.points[i]);
            len += 4;
        }
        crc = codec_crc32c(crc, bytes, len);
        if (f.n == 1 && f.points[0] == c)
            continue;
        n_changed++;
        uint8_t folded[16];

        len = 0;
        for (size_t i = 0; i < f.n; i++)
            len += utf8_put(folded + len, f.points[i]);
        fold_name(folded, len, &again); /* a second time changes nothing */
        assert_true(fold_equal(&f, &again));
    }
    assert_int_equal(n_changed, 14306);
    assert_int_equal(crc, 0xae97e867);
}

/* Adds a random character, or a byte that fits nowhere. Returns its bytes. */
static size_t random_put(uint8_t *p)
{
    static const uint32_t from[] = { 0x20, 0xc0, 0x300, 0x370, 0x1e00, 0xac00, 0x1d150 };
    static const uint32_t n[] = { 0x60, 0x140, 0x70, 0x90, 0x200, 0x2bb0, 0x80 };
    unsigned kind = (unsigned)env_virtual_below(&w.env, 8);

    if (kind == 7) {
        *p = (uint8_t)(0x80 + env_virtual_below(&w.env, 0x80));
        return 1;
    }
    return utf8_put(p, from[kind] + (uint32_t)env_virtual_below(&w.env, n[kind]));
}

/* Folds random names; the fold of a fold, written as a name, is itself. */
static void test_random_names(void **state)
{
    uint8_t name[260], folded[4 * FOLD_POINTS_MAX];
    struct folded f, again;
    unsigned n_again = 0;

    (void)state;
    world_open(&w, 7);
    for (unsigned i = 0; i < 20000 / UNIT_STEP; i++) {
        size_t max = env_virtual_below(&w.env, 256), len = 0, folded_len = 0;

        while (len < max)
            len += random_put(name + len);
        len = len > 255 ? 255 : len;
        fold_name(name, len, &f);
        for (size_t k = 0; k < f.n; k++) {
            if (f.points[k] < 0x110000)
                folded_len += utf8_put(folded + folded_len, f.points[k]);
            else
                folded[folded_len++] = (uint8_t)(f.points[k] - 0x110000);
        }
        if (folded_len > 255)
            continue;
        fold_name(folded, folded_len, &again);
        assert_true(fold_equal(&f, &again));
        n_again++;
    }
    assert_true(n_again > 5000 / UNIT_STEP);
    world_close(&w);
}

/* ---- the index ---- */

static void begin(bool fold)
{
    world_open(&w, 1);
    w.fold = fold;
    world_start(&w);
    world_make_export(&w, 4, 0);
}

static void file(const char *name)
{
    OK(t_create(&w, 1, name, S_IFREG | 0644, NULL));
}

static void found(const char *name, const char *expected)
{
    char real[256] = "";

    OK(t_real_name(&w, 1, name, real));
    assert_string_equal(real, expected);
}

static void not_found(const char *name)
{
    char real[256];

    IS(NOT_FOUND, t_real_name(&w, 1, name, real));
}

static void test_names_are_found(void **state)
{
    struct seen s;
    char real[256];

    (void)state;
    begin(true);
    not_found("clip.mov");
    file("Clip.mov");
    found("Clip.mov", "Clip.mov");
    found("CLIP.MOV", "Clip.mov");
    not_found("clip");
    not_found("clip.mov ");
    file("\u00e9t\u00e9");
    found("E\u0301TE\u0301", "\u00e9t\u00e9");
    file("na\xefve");
    found("NA\xefVE", "na\xefve");
    not_found("NA\xcfVE");
    OK(t_create(&w, 1, "Dir", S_IFDIR | 0755, &s));
    found("dIR", "Dir");
    IS(NOT_FOUND, t_real_name(&w, s.ino, "clip.mov", real)); /* not in this directory */
    OK(t_symlink(&w, 1, "Link", "clip.mov", NULL));
    found("LINK", "Link");
    IS(INVALID, t_real_name(&w, 1, "", real));
    IS(INVALID, t_real_name(&w, 1, "a/b", real));
    IS(STALE_HANDLE, t_real_name(&w, 12345, "a", real));
    OK(t_lookup(&w, 1, "Clip.mov", &s));
    IS(NOT_DIRECTORY, t_real_name(&w, s.ino, "a", real));
    world_kill(&w); /* the index is as lasting as the names */
    world_reopen_session(&w);
    found("CLIP.MOV", "Clip.mov");
    world_close(&w);
}

static void test_several_names_fold_to_one(void **state)
{
    struct seen s;

    (void)state;
    begin(true);
    file("a");
    OK(t_lookup(&w, 1, "a", &s));
    OK(t_link(&w, s.ino, 1, "A"));
    file("\u00e9");
    file("\u00c9");
    file("E\u0301");
    found("a", "a");
    found("A", "A");
    found("e\u0301", "\u00e9"); /* none is equal: the oldest */
    OK(t_unlink(&w, 1, "\u00e9", NULL));
    found("e\u0301", "\u00c9");
    OK(t_unlink(&w, 1, "a", NULL));
    found("a", "A");
    OK(t_unlink(&w, 1, "A", NULL));
    not_found("a");
    OK(t_unlink(&w, 1, "\u00c9", NULL));
    found("\u00e9", "E\u0301");
    OK(t_unlink(&w, 1, "E\u0301", NULL));
    not_found("\u00e9");
    kv_check(w.kv);
    world_close(&w);
}

static void test_renames(void **state)
{
    struct seen d;
    char real[256];

    (void)state;
    begin(true);
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    file("One");
    OK(t_rename(&w, 1, "One", 1, "ONE", 0)); /* only the case */
    found("one", "ONE");
    file("Two");
    OK(t_rename(&w, 1, "ONE", 1, "Two", RENAME_EXCHANGE));
    found("one", "ONE");
    found("two", "Two");
    OK(t_rename(&w, 1, "ONE", 1, "Two", 0)); /* takes its place */
    not_found("one");
    found("two", "Two");
    OK(t_rename(&w, 1, "Two", d.ino, "Three", 0));
    not_found("two");
    OK(t_real_name(&w, d.ino, "three", real));
    assert_string_equal(real, "Three");
    OK(t_rename(&w, d.ino, "Three", 1, "four", RENAME_WHITEOUT));
    OK(t_real_name(&w, d.ino, "three", real)); /* the whiteout */
    found("FOUR", "four");
    OK(t_unlink(&w, d.ino, "Three", NULL));
    OK(t_rmdir(&w, 1, "d"));
    not_found("D");
    OK(t_create_nameless(&w, 1, S_IFREG | 0600, &d));
    OK(t_link(&w, d.ino, 1, "Named"));
    found("named", "Named");
    kv_check(w.kv);
    world_close(&w);
}

static void test_other_exports_have_no_index(void **state)
{
    char real[256];
    uint8_t val[8];
    size_t len;

    (void)state;
    begin(false);
    file("a");
    IS(NOT_SUPPORTED, t_real_name(&w, 1, "A", real));
    IS(NOT_SUPPORTED, t_real_name(&w, 1, "a", real));
    /* Earlier mounts ask so, and then read the directory. */
    IS(NOT_SUPPORTED, t_getxattr(&w, 1, "glusterfs.get_real_filename:A", val, &len));
    world_close(&w); /* checks that there are no keys of an index */
}

static void test_unknown_rules_are_refused(void **state)
{
    struct kv_record_out f;
    struct kv_item item;
    struct key k;

    (void)state;
    for (uint32_t rules = FOLD_RULES; rules <= FOLD_RULES + 1; rules++) {
        begin(true);
        assert_int_equal(world_stop(&w), 0);
        kv_record_begin(&f);
        kv_record_put_text(&f, "main");
        for (unsigned i = 0; i < 6; i++) {
            static const uint32_t facts[] = { 1, 1, 0, 8192, 4 }; /* 4: folded */

            kv_record_put_u32(&f, i < 5 ? facts[i] : rules);
        }
        key_id(&k, KEY_EXPORT, 1);
        item = (struct kv_item){ k.bytes, k.len, f.bytes, f.len };
        world_put(&w, &item);
        assert_int_equal(world_try_start(&w), rules == FOLD_RULES);
        w.damaged = rules != FOLD_RULES;
        world_close(&w);
    }
}

/* Puts a key of the index that says that the name with this cookie folds as `name`. */
static void index_put(const char *name, uint64_t cookie)
{
    struct folded f;
    struct key k;

    fold_name((const uint8_t *)name, strlen(name), &f);
    key_folded(&k, 1, 1, fold_hash(&f), cookie);
    world_put(&w, &(struct kv_item){ k.bytes, k.len, "", 0 });
}

static void test_the_index_is_not_believed(void **state)
{
    char real[256];

    (void)state;
    begin(true);
    file("other"); /* the first cookie */
    file("Clip");
    assert_int_equal(world_stop(&w), 0);
    index_put("clip", NAMESPACE_COOKIE_FIRST); /* as if the hashes were equal */
    index_put("gone", 99);
    world_start(&w);
    world_reopen_session(&w);
    found("CLIP", "Clip");
    found("OTHER", "other");
    IS(IO_ERROR, t_real_name(&w, 1, "gone", real)); /* the store is corrupt */
    w.damaged = true;
    world_close(&w);
}

/* ---- a large directory, over a kv that counts ---- */

struct counted_iter {
    struct kv_iter it; /* must stay first */
    struct kv_iter *below;
};
static struct kv counted; /* above the kv that the world made */
static struct kv *counted_below;
static unsigned n_reads;

static void counted_seek(struct kv_iter *it, const void *key, size_t len)
{
    n_reads++;
    kv_iter_seek(((struct counted_iter *)it)->below, key, len);
}
static bool counted_valid(struct kv_iter *it)
{
    return kv_iter_valid(((struct counted_iter *)it)->below);
}
static void counted_next(struct kv_iter *it)
{
    n_reads++;
    kv_iter_next(((struct counted_iter *)it)->below);
}
static const void *counted_key(struct kv_iter *it, size_t *len)
{
    return kv_iter_key(((struct counted_iter *)it)->below, len);
}
static const void *counted_val(struct kv_iter *it, size_t *len)
{
    return kv_iter_val(((struct counted_iter *)it)->below, len);
}
static int counted_error(struct kv_iter *it)
{
    return kv_iter_error(((struct counted_iter *)it)->below);
}
static void counted_close(struct kv_iter *it)
{
    kv_iter_close(((struct counted_iter *)it)->below);
    free(it);
}

static int counted_get(struct kv *kv, const void *key, size_t key_len, void **val,
                       size_t *val_len)
{
    (void)kv;
    n_reads++;
    return kv_get(counted_below, key, key_len, val, val_len);
}
static int counted_open(struct kv *kv, struct kv_iter **out)
{
    static const struct kv_iter_ops ops = {
        counted_seek, counted_valid, counted_next,  counted_key,
        counted_val,  counted_error, counted_close,
    };
    struct counted_iter *it = calloc(1, sizeof(*it));

    (void)kv;
    it->it.ops = &ops;
    *out = &it->it;
    return kv_iter_open(counted_below, &it->below);
}
static void counted_commit(struct kv *kv, const struct kv_item *items, size_t n,
                           struct kv_done *done)
{
    (void)kv;
    kv_commit(counted_below, items, n, done);
}
static void counted_sync(struct kv *kv, struct kv_done *done)
{
    (void)kv;
    kv_sync(counted_below, done);
}
static uint64_t counted_free(struct kv *kv)
{
    (void)kv;
    return kv_free_bytes(counted_below);
}

/* Returns the reads of one question, of which nothing is cached. */
static unsigned reads_of(uint64_t dir, const char *name, const char *expected)
{
    char real[256] = "";

    assert_int_equal(world_stop(&w), 0);
    world_start(&w);
    world_reopen_session(&w);
    n_reads = 0;
    if (expected == NULL) {
        IS(NOT_FOUND, t_real_name(&w, dir, name, real));
    } else {
        OK(t_real_name(&w, dir, name, real));
        assert_string_equal(real, expected);
    }
    return n_reads;
}

static void test_a_large_directory_is_not_scanned(void **state)
{
    static const struct kv_ops ops = {
        .get = counted_get,
        .iter_open = counted_open,
        .commit = counted_commit,
        .sync = counted_sync,
        .free_bytes = counted_free,
    };
    const unsigned n = 100000 / UNIT_STEP;
    struct seen large, small;
    unsigned there, absent;
    char name[64];

    (void)state;
    world_open(&w, 1);
    counted_below = w.kv;
    counted.ops = &ops;
    w.kv = &counted;
    w.fold = true;
    world_start(&w);
    world_make_export(&w, 4, 0);
    OK(t_create(&w, 1, "small", S_IFDIR | 0755, &small));
    OK(t_create(&w, small.ino, "Clip_00777.mov", S_IFREG | 0644, NULL));
    OK(t_create(&w, 1, "large", S_IFDIR | 0755, &large));
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "Clip_%05u.mov", i);
        OK(t_create(&w, large.ino, name, S_IFREG | 0644, NULL));
    }
    there = reads_of(large.ino, "CLIP_00777.MOV", "Clip_00777.mov");
    absent = reads_of(large.ino, "CLIP_00777.MO", NULL);
    print_message("%u names: %u reads find one, %u that there is none\n", n, there,
                  absent);
    /* the inode, the equal name, the index, the name there, perhaps a step behind it */
    assert_in_range(there, 4, 5);
    assert_int_equal(absent, 3);
    assert_int_equal(reads_of(small.ino, "CLIP_00777.MOV", "Clip_00777.mov"), there);
    assert_int_equal(reads_of(small.ino, "CLIP_00777.MO", NULL), absent);
    w.kv = counted_below;
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case),
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_bytes_that_are_not_utf8),
        cmocka_unit_test(test_longest_names),
        cmocka_unit_test(test_every_code_point_folds_as_ever),
        cmocka_unit_test(test_random_names),
        cmocka_unit_test(test_names_are_found),
        cmocka_unit_test(test_several_names_fold_to_one),
        cmocka_unit_test(test_renames),
        cmocka_unit_test(test_other_exports_have_no_index),
        cmocka_unit_test(test_unknown_rules_are_refused),
        cmocka_unit_test(test_the_index_is_not_believed),
        cmocka_unit_test(test_a_large_directory_is_not_scanned),
    };

    return cmocka_run_group_tests_name("exportd.fold", tests, NULL, NULL);
}
