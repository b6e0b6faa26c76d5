/*
 * test_names_check.c - AD_NAMES: names against their places, the index and the inodes.
 *
 * Goal:   each damage to the keys of names is found, with the name and the inode, and
 *         nothing else is; what other keys prove is repaired, and only that.
 * Method: a tree of names; exportd is stopped, a key is put or deleted, and it starts
 *         again. kv_check() holds after a repair.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "common/base/bytes.h"
#include "exportd/namespace/fold.h"
#include "exportd/namespace/namespace.h"
#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/world.h"

enum { NAMED_MAX = 16, KEYS_A_CALL = 3, RECORD_MAX = 64 };

static struct world w;
static uint64_t dir, file, linked; /* inodes: /Dir, /Dir/Clip.mov, /One and /Dir/Two */
static uint64_t cookie;            /* cookie of Clip.mov */

/* Fault as the answer names it. */
struct found {
    unsigned kind;
    uint64_t dir, ino;
    char name[256];
    bool repaired;
};
static struct found faults[NAMED_MAX];
static unsigned n_faults;
static uint64_t n_names;

static unsigned call(const Rozo__AdNamesReq *req, Rozo__AdNamesResp **resp)
{
    return world_call_node(&w, ROZO__OP__AD_NAMES, &req->base,
                           &rozo__ad_names_resp__descriptor, resp);
}

static void take(const Rozo__AdNamesResp *resp)
{
    for (size_t i = 0; i < resp->n_faults; i++) {
        const Rozo__AdNamesResp__Fault *f = resp->faults[i];
        struct found *out = &faults[n_faults++];

        assert_true(n_faults <= NAMED_MAX);
        *out = (struct found){ f->kind, f->dir, f->ino, "", f->repaired };
        if (f->name.len > 0)
            memcpy(out->name, f->name.data, f->name.len);
    }
    n_names += resp->n_names;
}

/* Checks all names of the export, so many keys a call. */
static void check_by(uint32_t keys, bool repair)
{
    Rozo__AdNamesReq req = ROZO__AD_NAMES_REQ__INIT;
    uint8_t cursor[KEY_BYTES_MAX];

    n_faults = 0;
    n_names = 0;
    req.export_id = 1;
    req.max_keys = keys;
    req.repair = repair;
    do {
        Rozo__AdNamesResp *resp;

        OK(call(&req, &resp));
        take(resp);
        req.cursor = (ProtobufCBinaryData){ resp->cursor.len, cursor };
        if (resp->cursor.len > 0)
            memcpy(cursor, resp->cursor.data, resp->cursor.len);
        rozo__ad_names_resp__free_unpacked(resp, NULL);
    } while (req.cursor.len > 0);
}

static void check(bool repair)
{
    check_by(KEYS_A_CALL, repair);
}

/* Checks that the only fault is this one. name "": unknown. */
static void fault_is(unsigned kind, uint64_t in, const char *name, uint64_t ino,
                     bool repaired)
{
    assert_int_equal(n_faults, 1);
    assert_int_equal(faults[0].kind, kind);
    assert_int_equal(faults[0].dir, in);
    assert_string_equal(faults[0].name, name);
    assert_int_equal(faults[0].ino, ino);
    assert_int_equal(faults[0].repaired, repaired);
}

/* ---- damage ---- */

static void key_put(const struct key *k, const void *val, size_t len)
{
    assert_int_equal(world_stop(&w), 0);
    world_put(&w, &(struct kv_item){ k->bytes, k->len, val, len });
    world_start(&w);
    world_reopen_session(&w);
}

static void key_delete(const struct key *k)
{
    key_put(k, NULL, 0);
}

static struct key dentry_key(uint64_t in, const char *name)
{
    struct key k;

    key_name(&k, KEY_DENTRY, 1, in, name, strlen(name));
    return k;
}

static struct key order_key(uint64_t in, uint64_t at)
{
    struct key k;

    key_order(&k, 1, in, at);
    return k;
}

static struct key folded_key(uint64_t in, const char *name, uint64_t at)
{
    struct folded f;
    struct key k;

    fold_name((const uint8_t *)name, strlen(name), &f);
    key_folded(&k, 1, in, fold_hash(&f), at);
    return k;
}

/* Makes the record of a name; its first 13 bytes begin that of its place. */
static void record(uint8_t out[21], uint64_t ino, uint32_t type, uint64_t at)
{
    out[0] = 1;
    put_le64(out + 1, ino);
    put_le32(out + 9, type);
    put_le64(out + 13, at);
}

static void dentry_put_raw(uint64_t in, const char *name, uint64_t ino, uint32_t type,
                           uint64_t at)
{
    struct key k = dentry_key(in, name);
    uint8_t val[21];

    record(val, ino, type, at);
    key_put(&k, val, sizeof(val));
}

static void order_put_raw(uint64_t in, uint64_t at, const char *name, uint64_t ino,
                          uint32_t type)
{
    struct key k = order_key(in, at);
    uint8_t val[RECORD_MAX];

    record(val, ino, type, 0);
    memcpy(val + 13, name, strlen(name));
    key_put(&k, val, 13 + strlen(name));
}

/* ---- the tree ---- */

static uint64_t cookie_of(uint64_t in, const char *name)
{
    struct key k = dentry_key(in, name);
    void *val;
    size_t len;
    uint64_t at;

    assert_int_equal(kv_get(w.kv, k.bytes, k.len, &val, &len), 0);
    at = get_le64((uint8_t *)val + 13);
    free(val);
    return at;
}

static void begin(bool fold)
{
    struct seen s;

    world_open(&w, 7);
    w.fold = fold;
    world_start(&w);
    world_make_export(&w, 4, 0);
    OK(t_create(&w, 1, "Dir", S_IFDIR | 0755, &s));
    dir = s.ino;
    OK(t_create(&w, dir, "Clip.mov", S_IFREG | 0644, &s));
    file = s.ino;
    OK(t_create(&w, dir, "clip.MOV", S_IFREG | 0644, &s));
    OK(t_create(&w, 1, "One", S_IFREG | 0644, &s));
    linked = s.ino;
    OK(t_link(&w, linked, dir, "Two"));
    cookie = cookie_of(dir, "Clip.mov");
}

static void end_damaged(void)
{
    w.damaged = true;
    world_close(&w);
}

/* Repairs; there is nothing to find after that, and kv_check() agrees. */
static void end_repaired(unsigned kind, uint64_t in, const char *name, uint64_t ino)
{
    size_t n_keys = world_n_keys(&w);

    check(false);
    fault_is(kind, in, name, ino, false);
    assert_int_equal(world_n_keys(&w), n_keys);
    check(true);
    fault_is(kind, in, name, ino, true);
    check(false);
    assert_int_equal(n_faults, 0);
    world_kill(&w); /* the repair was on stable storage */
    world_reopen_session(&w);
    check(true);
    assert_int_equal(n_faults, 0);
    world_close(&w);
}

/* A repair leaves all as it is. */
static void end_in_doubt(unsigned kind, uint64_t in, const char *name, uint64_t ino)
{
    size_t n_keys = world_n_keys(&w);

    check(false);
    fault_is(kind, in, name, ino, false);
    check(true);
    fault_is(kind, in, name, ino, false);
    check(false);
    fault_is(kind, in, name, ino, false);
    assert_int_equal(world_n_keys(&w), n_keys);
    end_damaged();
}

/* ---- tests ---- */

static void test_sound_names_have_no_faults(void **state)
{
    (void)state;
    for (unsigned fold = 0; fold < 2; fold++) {
        begin(fold != 0);
        for (uint32_t keys = 1; keys <= NAMESPACE_CHECK_KEYS_MAX; keys++) {
            if (keys > 20 && keys < NAMESPACE_CHECK_KEYS_MAX)
                continue;
            check_by(keys, keys % 2 == 0);
            assert_int_equal(n_faults, 0);
            assert_int_equal(n_names, 5);
        }
        world_close(&w);
    }
}

static void test_name_that_the_index_lacks(void **state)
{
    struct key k;

    (void)state;
    begin(true);
    k = folded_key(dir, "Clip.mov", cookie);
    key_delete(&k);
    end_repaired(ROZO__AD_NAMES_RESP__KIND__NAME_UNFOLDED, dir, "Clip.mov", file);
}

static void test_entry_of_the_index_without_a_name(void **state)
{
    struct key k;

    (void)state;
    begin(true);
    k = folded_key(dir, "gone", 99);
    key_put(&k, "", 0);
    end_repaired(ROZO__AD_NAMES_RESP__KIND__FOLDED_NAMELESS, dir, "", 0);
}

static void test_entry_of_the_index_that_leads_elsewhere(void **state)
{
    struct key k;

    (void)state;
    begin(true);
    k = folded_key(dir, "other", cookie);
    key_put(&k, "", 0);
    end_repaired(ROZO__AD_NAMES_RESP__KIND__FOLDED_OTHER, dir, "Clip.mov", 0);
}

static void test_index_of_an_export_that_has_none(void **state)
{
    struct key k;

    (void)state;
    begin(false);
    k = folded_key(dir, "Clip.mov", cookie);
    key_put(&k, "", 0);
    end_repaired(ROZO__AD_NAMES_RESP__KIND__FOLDED_NAMELESS, dir, "", 0);
}

static void test_name_without_its_place(void **state)
{
    struct key k;

    (void)state;
    begin(false);
    k = order_key(dir, cookie);
    key_delete(&k);
    end_repaired(ROZO__AD_NAMES_RESP__KIND__NAME_UNLISTED, dir, "Clip.mov", file);
}

/* Goal: the entry of the index stays when the place that it leads to is put again. */
static void test_repaired_place_keeps_the_index(void **state)
{
    char real[256];
    struct key k;

    (void)state;
    begin(true);
    k = order_key(dir, cookie);
    key_delete(&k);
    check(false);
    assert_int_equal(n_faults, 2);
    assert_int_equal(faults[1].kind, ROZO__AD_NAMES_RESP__KIND__FOLDED_NAMELESS);
    check(true);
    fault_is(ROZO__AD_NAMES_RESP__KIND__NAME_UNLISTED, dir, "Clip.mov", file, true);
    OK(t_real_name(&w, dir, "CLIP.mov", real));
    assert_string_equal(real, "Clip.mov");
    world_close(&w);
}

static void test_place_without_its_name(void **state)
{
    (void)state;
    begin(false);
    order_put_raw(dir, 99, "lost", file, S_IFREG);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS, dir, "lost", file);
}

static void test_place_of_a_name_that_is_elsewhere(void **state)
{
    (void)state;
    begin(false);
    order_put_raw(dir, 99, "Clip.mov", file, S_IFREG);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS, dir, "Clip.mov", file);
}

static void test_place_that_is_corrupt(void **state)
{
    struct key k;

    (void)state;
    begin(false);
    k = order_key(dir, 99);
    key_put(&k, "x", 1);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS, dir, "", 0);
}

static void test_place_with_another_inode(void **state)
{
    (void)state;
    begin(true);
    order_put_raw(dir, cookie, "Clip.mov", linked, S_IFREG);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__LISTED_OTHER, dir, "Clip.mov", file);
}

/* Goal: an entry of the index is not deleted while it is open which name is right. */
static void test_place_with_another_name(void **state)
{
    size_t n_keys;

    (void)state;
    begin(true);
    order_put_raw(dir, cookie, "Renamed", file, S_IFREG);
    n_keys = world_n_keys(&w);
    check(true);
    assert_int_equal(n_faults, 3);
    assert_int_equal(faults[0].kind, ROZO__AD_NAMES_RESP__KIND__LISTED_OTHER);
    assert_string_equal(faults[0].name, "Clip.mov");
    assert_int_equal(faults[1].kind, ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS);
    assert_string_equal(faults[1].name, "Renamed");
    assert_int_equal(faults[2].kind, ROZO__AD_NAMES_RESP__KIND__FOLDED_OTHER);
    for (unsigned i = 0; i < n_faults; i++)
        assert_false(faults[i].repaired);
    assert_int_equal(world_n_keys(&w), n_keys);
    end_damaged();
}

static void test_name_of_a_missing_inode(void **state)
{
    struct key k;

    (void)state;
    begin(true);
    key_ino(&k, KEY_INODE, 1, file);
    key_delete(&k);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING, dir, "Clip.mov", file);
}

static void test_name_of_a_corrupt_inode(void **state)
{
    struct key k;

    (void)state;
    begin(true);
    key_ino(&k, KEY_INODE, 1, file);
    key_put(&k, "xyz", 3);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__NAME_OF_NOTHING, dir, "Clip.mov", file);
}

static void test_name_of_another_type(void **state)
{
    (void)state;
    begin(false);
    dentry_put_raw(dir, "Clip.mov", dir, S_IFREG, cookie);
    check(true);
    assert_int_equal(n_faults, 2); /* readdir has the earlier inode */
    assert_int_equal(faults[0].kind, ROZO__AD_NAMES_RESP__KIND__NAME_OF_OTHER);
    assert_int_equal(faults[1].kind, ROZO__AD_NAMES_RESP__KIND__LISTED_OTHER);
    end_damaged();
}

static void test_name_that_is_corrupt(void **state)
{
    struct key k;

    (void)state;
    begin(false);
    k = dentry_key(dir, "Clip.mov");
    key_put(&k, "xyz", 3);
    check(true);
    assert_int_equal(n_faults, 2);
    assert_int_equal(faults[0].kind, ROZO__AD_NAMES_RESP__KIND__NAME_CORRUPT);
    assert_string_equal(faults[0].name, "Clip.mov");
    assert_int_equal(faults[1].kind, ROZO__AD_NAMES_RESP__KIND__LISTED_NAMELESS);
    end_damaged();
}

static void test_names_in_no_directory(void **state)
{
    (void)state;
    begin(false);
    dentry_put_raw(file, "x", linked, S_IFREG, 99);
    order_put_raw(file, 99, "x", linked, S_IFREG);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__NAME_OUTSIDE, file, "x", linked);
}

static void test_directory_with_two_names(void **state)
{
    (void)state;
    begin(false);
    dentry_put_raw(dir, "Loop", dir, S_IFDIR, 99);
    order_put_raw(dir, 99, "Loop", dir, S_IFDIR);
    end_in_doubt(ROZO__AD_NAMES_RESP__KIND__DIR_ELSEWHERE, dir, "Loop", dir);
}

static void test_questions_are_checked(void **state)
{
    Rozo__AdNamesReq req = ROZO__AD_NAMES_REQ__INIT;
    static uint8_t cursors[][6] = { { 'D', 0, 0, 0, 2, 0 }, { 'I', 0, 0, 0, 1, 0 } };
    uint8_t longest[KEY_BYTES_MAX + 1] = { 'D', 0, 0, 0, 1 };

    (void)state;
    begin(true);
    req.export_id = 1;
    for (req.max_keys = 0; req.max_keys <= 513; req.max_keys += 513)
        IS(INVALID, call(&req, NULL));
    req.max_keys = 10;
    for (unsigned i = 0; i < 2; i++) {
        req.cursor = (ProtobufCBinaryData){ 6, cursors[i] };
        IS(INVALID, call(&req, NULL));
        req.cursor.len = 3;
        IS(INVALID, call(&req, NULL));
    }
    req.cursor = (ProtobufCBinaryData){ sizeof(longest), longest };
    IS(INVALID, call(&req, NULL));
    req.cursor.len = sizeof(longest) - 1;
    OK(call(&req, NULL));
    req.cursor.len = 0;
    req.export_id = 2;
    IS(NOT_FOUND, call(&req, NULL));
    req.export_id = 1;
    IS(DENIED, world_call(&w, ROZO__OP__AD_NAMES, &req.base, NULL, NULL));
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_names_have_no_faults),
        cmocka_unit_test(test_name_that_the_index_lacks),
        cmocka_unit_test(test_entry_of_the_index_without_a_name),
        cmocka_unit_test(test_entry_of_the_index_that_leads_elsewhere),
        cmocka_unit_test(test_index_of_an_export_that_has_none),
        cmocka_unit_test(test_name_without_its_place),
        cmocka_unit_test(test_repaired_place_keeps_the_index),
        cmocka_unit_test(test_place_without_its_name),
        cmocka_unit_test(test_place_of_a_name_that_is_elsewhere),
        cmocka_unit_test(test_place_that_is_corrupt),
        cmocka_unit_test(test_place_with_another_inode),
        cmocka_unit_test(test_place_with_another_name),
        cmocka_unit_test(test_name_of_a_missing_inode),
        cmocka_unit_test(test_name_of_a_corrupt_inode),
        cmocka_unit_test(test_name_of_another_type),
        cmocka_unit_test(test_name_that_is_corrupt),
        cmocka_unit_test(test_names_in_no_directory),
        cmocka_unit_test(test_directory_with_two_names),
        cmocka_unit_test(test_questions_are_checked),
    };

    return cmocka_run_group_tests_name("exportd.names_check", tests, NULL, NULL);
}
