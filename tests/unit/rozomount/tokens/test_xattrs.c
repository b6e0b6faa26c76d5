/*
 * Goal: xattrs that a mount has cached are right as long as they are used, whatever is
 * given back, changed or in flight in between, and take bounded memory. Method: calls of
 * token_cache.h in a fixed order; answers as bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rozomount/session/md_decode.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/unit/unit.h"

enum { TOLD = ROZO__XATTR_BITS__XATTRS_TOLD, USER = ROZO__XATTR_BITS__XATTRS_USER };

static struct token_cache *t;

static int setup(void **state)
{
    (void)state;
    t = token_cache_new();
    token_cache_opened(t, 10, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    token_cache_free(t);
    return 0;
}

static void note_since(uint64_t ino, uint32_t classes, uint64_t grant, uint64_t changes)
{
    token_cache_lock(t);
    token_cache_note_xattrs(t, ino, classes, grant, changes);
    token_cache_unlock(t);
}

static void note(uint64_t ino, uint32_t classes, uint64_t grant)
{
    note_since(ino, classes, grant, token_cache_changes(t));
}

/* Caches an xattr; value NULL: it does not exist. */
static void keep(uint64_t ino, const char *name, const char *value, uint64_t grant)
{
    const struct cached_xattr x = { value != NULL, value == NULL ? 0 : strlen(value),
                                    (const uint8_t *)value };

    token_cache_lock(t);
    token_cache_keep_xattr(t, ino, name, &x, grant, token_cache_changes(t));
    token_cache_unlock(t);
}

static bool knows(uint64_t ino, const char *name)
{
    struct known_xattr x;

    return token_cache_find_xattr(t, ino, name, &x);
}

static bool is_absent(uint64_t ino, const char *name)
{
    struct known_xattr x;

    return token_cache_find_xattr(t, ino, name, &x) && !x.is_there;
}

static bool is(uint64_t ino, const char *name, const char *value)
{
    struct known_xattr x;

    return token_cache_find_xattr(t, ino, name, &x) && x.is_there &&
           x.len == strlen(value) && memcmp(x.value, value, x.len) == 0;
}

static void give_back(uint64_t ino, enum token_mode keep_mode, uint64_t grant)
{
    token_cache_recall(t, ino, keep_mode);
    if (keep_mode == TOKEN_NONE)
        assert_false(knows(ino, "user.a")); /* none is used during the recall */
    token_cache_gave_back(t, ino, keep_mode, grant);
}

static void test_a_class_that_is_not_there_has_no_name(void **state)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } classes[] = {
        { ROZO__XATTR_BITS__XATTRS_SECURITY, "security.capability" },
        { ROZO__XATTR_BITS__XATTRS_ACL_ACCESS, "system.posix_acl_access" },
        { ROZO__XATTR_BITS__XATTRS_ACL_DEFAULT, "system.posix_acl_default" },
        { ROZO__XATTR_BITS__XATTRS_USER, "user.DOSATTRIB" },
        { ROZO__XATTR_BITS__XATTRS_TRUSTED, "trusted.overlay.opaque" },
    };

    (void)state;
    for (size_t has = 0; has < 5; has++) {
        uint64_t ino = 5 + has;

        token_cache_grant(t, ino, TOKEN_SHARED, 11);
        assert_false(knows(ino, "user.a"));
        note(ino, 0, 11); /* from an exportd that does not say which there are */
        assert_false(knows(ino, "user.a") || knows(ino, ""));
        note(ino, TOLD | classes[has].bit, 11);
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(knows(ino, classes[i].name), i != has);
            assert_int_equal(is_absent(ino, classes[i].name), i != has);
        }
        assert_false(knows(ino, "") || knows(ino, "system.other"));
    }
    note(5, TOLD, 11);
    assert_true(is(5, "", "")); /* there are no names */
    assert_false(knows(99, "user.a"));
}

static void test_xattrs_are_cached_until_they_change(void **state)
{
    uint64_t before;

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    note(5, TOLD | USER, 11);
    keep(5, "user.a", "one", 11);
    keep(5, "user.b", NULL, 11);
    keep(5, "user.empty", "", 11);
    keep(5, "", "user.a", 11);
    assert_true(is(5, "user.a", "one") && is_absent(5, "user.b") && is(5, "", "user.a"));
    assert_true(is(5, "user.empty", ""));
    assert_false(knows(5, "user.c") || knows(5, "user."));
    keep(5, "user.a", "other", 11);
    assert_true(is(5, "user.a", "other"));
    /* A change of this mount: neither cached xattrs nor answers from before it are used
     * until it is answered. */
    before = token_cache_changes(t);
    token_cache_xattrs_change(t, 5, true);
    assert_false(knows(5, "user.a") || knows(5, "trusted.a"));
    note(5, TOLD, 11);
    keep(5, "user.a", "other", 11);
    assert_false(knows(5, "user.a"));
    token_cache_forget_attr(t, 5, before);
    token_cache_xattrs_change(t, 5, false);
    note_since(5, TOLD, 11, before);
    assert_false(knows(5, "user.a"));
    note(5, TOLD | USER, 11);
    assert_true(is_absent(5, "trusted.a"));
    assert_false(knows(5, "user.a"));
}

static void test_cached_xattrs_go_with_the_token(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    note(5, TOLD | USER, 11);
    keep(5, "user.a", "one", 11);
    give_back(5, TOKEN_SHARED, 12);
    assert_true(is(5, "user.a", "one")); /* not changed by others since */
    give_back(5, TOKEN_NONE, 13);
    assert_false(knows(5, "user.a"));
    token_cache_grant(t, 5, TOKEN_SHARED, 15);
    assert_false(knows(5, "user.a"));
    note(5, TOLD, 12); /* late answers from before */
    keep(5, "user.a", "one", 13);
    assert_false(knows(5, "user.a"));
    note(5, TOLD, 15);
    assert_true(is_absent(5, "user.a"));
    /* given back among many, without a recall ... */
    assert_true(token_cache_recall_plain(t, 5));
    token_cache_grant(t, 5, TOKEN_SHARED, 16); /* ... while an answer grants it again */
    token_cache_gave_back(t, 5, TOKEN_NONE, 15);
    assert_false(knows(5, "user.a"));
    token_cache_grant(t, 5, TOKEN_SHARED, 17);
    assert_false(knows(5, "user.a"));
    note(5, TOLD, 17);
    assert_true(is_absent(5, "user.a"));
    token_cache_opened(t, 20, false); /* exportd may have lost its power */
    assert_false(knows(5, "user.a"));
    note(5, TOLD, 20);
    assert_true(is_absent(5, "user.a"));
    token_cache_opened(t, 30, true);
    assert_false(knows(5, "user.a"));
    note(5, TOLD, 31); /* not believed before the token is given back */
    assert_false(knows(5, "user.a"));
}

static void test_xattrs_are_not_cached_with_ranges(void **state)
{
    const struct held_range range = { .ino = 5, .to = 8192, .size = 100000 };

    (void)state;
    token_cache_grant_range(t, &range, 11);
    note(5, TOLD, 11);
    keep(5, "user.a", "one", 11);
    assert_false(knows(5, "user.a"));
}

/* Caches all xattrs of an inode: user.a, user.b, ... of these values. */
static void keep_all(uint64_t ino, unsigned n, const char *const *values, uint64_t grant)
{
    struct all_xattrs all = { .n = n };
    char names[XATTR_SET_MAX][16];

    for (unsigned i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "user.%c", 'a' + (int)i);
        all.names[i] = (struct listed_name){ names[i], strlen(names[i]) };
        all.values[i] =
            (struct cached_xattr){ true, strlen(values[i]), (const uint8_t *)values[i] };
    }
    token_cache_lock(t);
    token_cache_keep_all_xattrs(t, ino, &all, grant, token_cache_changes(t));
    token_cache_unlock(t);
}

static void test_all_xattrs_of_an_inode(void **state)
{
    static const char *const values[] = { "one", "", "three" };
    struct known_xattr x;

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep(5, "user.old", "x", 11);
    keep_all(5, 3, values, 11);
    assert_true(is(5, "user.a", "one") && is(5, "user.b", "") &&
                is(5, "user.c", "three"));
    assert_true(is_absent(5, "user.d") && is_absent(5, "user.old") &&
                is_absent(5, "security.NTACL") &&
                is_absent(5, "system.posix_acl_access"));
    assert_false(knows(5, "system.other")); /* exportd may answer with another error */
    assert_true(token_cache_find_xattr(t, 5, "", &x) && x.is_there && x.len == 21);
    assert_memory_equal(x.value, "user.a\0user.b\0user.c", 21);
    keep_all(5, 0, NULL, 11);
    assert_true(is(5, "", "") && is_absent(5, "user.a"));
    /* An answer for one name since then changes nothing for the others. */
    keep(5, "user.z", NULL, 11);
    assert_true(is_absent(5, "user.a") && is_absent(5, "user.z"));
    token_cache_xattrs_change(t, 5, true);
    keep_all(5, 3, values, 11);
    token_cache_xattrs_change(t, 5, false);
    assert_false(knows(5, "user.a") || knows(5, "user.d") || knows(5, ""));
    keep_all(5, 3, values, 11);
    give_back(5, TOKEN_NONE, 13);
    keep_all(5, 3, values, 13);
    assert_false(knows(5, "user.a") || knows(5, "user.d"));
}

/* A value that is not kept, and a set that was evicted, say nothing about other names. */
static void test_a_part_of_all_xattrs(void **state)
{
    static char large[XATTR_CACHED_MAX + 2];
    const char *values[] = { "one", large };
    static const char *const most[XATTR_SET_MAX] = { "0",  "1",  "2",  "3", "4",  "5",
                                                     "6",  "7",  "8",  "9", "10", "11",
                                                     "12", "13", "14", "15" };

    (void)state;
    memset(large, 'x', XATTR_CACHED_MAX + 1);
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep_all(5, 2, values, 11);
    assert_true(is(5, "user.a", "one"));
    assert_false(knows(5, "user.b") || knows(5, "user.c"));
    large[XATTR_CACHED_MAX] = '\0';
    keep_all(5, 2, values, 11);
    assert_true(is(5, "user.b", large) && is_absent(5, "user.c"));
    for (uint64_t ino = 6; knows(5, "user.c"); ino++) {
        assert_true(ino < 1 << 20);
        token_cache_grant(t, ino, TOKEN_SHARED, 11);
        keep_all(ino, XATTR_SET_MAX, most, 11);
        assert_true(is(ino, "user.p", "15") && is_absent(ino, "user.q"));
    }
    assert_false(knows(5, "user.a") || knows(5, "user.b") || knows(5, ""));
}

/* ---- bounds ---- */

static void test_large_xattrs_are_not_cached(void **state)
{
    char large[XATTR_CACHED_MAX + 2], name[16];

    (void)state;
    memset(large, 'x', sizeof(large));
    large[XATTR_CACHED_MAX + 1] = '\0';
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep(5, "user.a", large, 11);
    assert_false(knows(5, "user.a"));
    large[XATTR_CACHED_MAX] = '\0';
    keep(5, "user.a", large, 11);
    assert_true(is(5, "user.a", large));
    for (unsigned i = 0; i < 2 * XATTR_CACHE_ENTRIES_MAX; i++) {
        snprintf(name, sizeof(name), "user.%u", i);
        keep(5, name, "x", 11);
    }
    assert_true(is(5, "user.a", large) && is(5, "user.1", "x"));
    assert_false(knows(5, name));
}

static void test_the_cache_is_bounded(void **state)
{
    enum { INODES = 2 * XATTR_CACHE_BYTES_MAX / XATTR_CACHED_MAX };
    struct xattr_set **sets = calloc(INODES, sizeof(struct xattr_set *));
    const uint8_t value[XATTR_CACHED_MAX] = { 0 };
    const struct cached_xattr x = { true, sizeof(value), value };
    struct cached_xattr found;
    struct xattr_cache c;
    unsigned n = 0;

    (void)state;
    assert_non_null(sets);
    xattr_cache_init(&c);
    for (unsigned i = 0; i < INODES; i++) {
        xattr_cache_put(&c, &sets[i], "user.a", &x);
        assert_true(c.bytes <= XATTR_CACHE_BYTES_MAX);
        assert_true(xattr_cache_find(sets[i], "user.a", &found));
    }
    assert_null(sets[0]); /* the oldest one */
    for (unsigned i = 0; i < INODES; i++) {
        n += sets[i] != NULL;
        xattr_cache_drop(&c, &sets[i]);
        assert_null(sets[i]);
    }
    assert_true(n > INODES / 3);
    assert_int_equal(c.bytes, 0);
    free(sets);
}

/* ---- answers ---- */

static int decode(const ProtobufCMessage *msg,
                  int (*how)(const struct md_call *call, struct md_xattr *out),
                  struct md_xattr *out)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *packed = malloc(len + 1);
    struct md_call call = { 0 };
    int rc;

    assert_non_null(packed);
    protobuf_c_message_pack(msg, packed);
    call.answer = packed;
    call.answer_len = len;
    rc = how(&call, out);
    for (size_t cut = 0; rc == 0 && cut < len; cut++) { /* only must not crash */
        struct md_xattr x = { 0 };

        call.answer_len = cut;
        how(&call, &x);
        md_xattr_drop(&x);
    }
    free(packed);
    return rc;
}

static void test_answers_are_checked(void **state)
{
    Rozo__MdGetxattrResp get = ROZO__MD_GETXATTR_RESP__INIT;
    Rozo__MdListxattrResp list = ROZO__MD_LISTXATTR_RESP__INIT;
    uint8_t bytes[65537] = "user.a";
    struct md_xattr x = { 0 };

    (void)state;
    assert_int_equal(decode(&get.base, md_decode_xattr, &x), 0);
    assert_true(x.len == 0 && x.grant == 0); /* an older exportd's NO_DATA */
    get.value = (ProtobufCBinaryData){ 6, bytes };
    get.grant = 17;
    assert_int_equal(decode(&get.base, md_decode_xattr, &x), 0);
    assert_true(x.len == 6 && memcmp(x.value, bytes, 6) == 0);
    assert_int_equal(x.grant, 17);
    md_xattr_drop(&x);
    get.value.len = sizeof(bytes);
    assert_int_equal(decode(&get.base, md_decode_xattr, &x), -EBADMSG);
    list.names = (ProtobufCBinaryData){ 6, bytes };
    assert_int_equal(decode(&list.base, md_decode_xattr_names, &x), -EBADMSG);
    list.names.len = 7; /* with the zero byte at its end */
    assert_int_equal(decode(&list.base, md_decode_xattr_names, &x), 0);
    assert_int_equal(x.len, 7);
    md_xattr_drop(&x);
}

static void test_real_names_are_checked(void **state)
{
    Rozo__MdRealNameResp resp = ROZO__MD_REAL_NAME_RESP__INIT;
    uint8_t bytes[256];
    struct md_xattr x = { 0 };

    (void)state;
    memset(bytes, 'n', sizeof(bytes));
    for (size_t len = 0; len <= 256; len++) {
        resp.name = (ProtobufCBinaryData){ len, bytes };
        assert_int_equal(decode(&resp.base, md_decode_real_name, &x),
                         len >= 1 && len <= 255 ? 0 : -EBADMSG);
        if (len < 1 || len > 255)
            continue;
        assert_int_equal(x.len, len + 1); /* Samba expects a zero byte */
        assert_true(memcmp(x.value, bytes, len) == 0 && x.value[len] == 0);
        md_xattr_drop(&x);
    }
    resp.name = (ProtobufCBinaryData){ 3, (uint8_t *)"a/b" };
    assert_int_equal(decode(&resp.base, md_decode_real_name, &x), -EBADMSG);
    resp.name = (ProtobufCBinaryData){ 3, (uint8_t *)"a\0b" };
    assert_int_equal(decode(&resp.base, md_decode_real_name, &x), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_class_that_is_not_there_has_no_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_xattrs_are_cached_until_they_change, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_cached_xattrs_go_with_the_token, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_xattrs_are_not_cached_with_ranges, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_all_xattrs_of_an_inode, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_part_of_all_xattrs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_xattrs_are_not_cached, setup,
                                        teardown),
        cmocka_unit_test(test_the_cache_is_bounded),
        cmocka_unit_test(test_answers_are_checked),
        cmocka_unit_test(test_real_names_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
