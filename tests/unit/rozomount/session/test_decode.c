/*
 * Goal: an answer of exportd is believed only if every field is valid (I8). Method: a
 * valid answer, then the same answer with one field wrong at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rozomount/session/md_decode.h"
#include "tests/unit/unit.h"

/* A valid answer to MD_OPEN; a test may spoil parts of it. */
struct answer {
    Rozo__Attr attr;
    Rozo__FileRef ref;
    Rozo__FileData data;
    uint8_t file_id[FILE_ID_BYTES];
    uint8_t capability[200];
    uint32_t storages[64];
    Rozo__MdOpenResp msg;
};

static void answer_init(struct answer *a)
{
    struct file_id id = { .export_id = 1, .generation = 2, .ino = 50 };

    memset(a, 0, sizeof(*a));
    rozo__attr__init(&a->attr);
    rozo__file_ref__init(&a->ref);
    rozo__file_data__init(&a->data);
    rozo__md_open_resp__init(&a->msg);
    a->attr.ino = 50;
    a->attr.mode = S_IFREG | 0644;
    a->attr.size = 12345;
    a->attr.has_data = true;
    a->attr.mtime_ns = (uint64_t)-1500000000;
    file_id_put(a->file_id, &id);
    a->ref.file_id.len = FILE_ID_BYTES;
    a->ref.file_id.data = a->file_id;
    a->ref.codec = 1;
    a->ref.block_bytes = 8192;
    a->ref.n_storages = 4;
    a->ref.storages = a->storages;
    a->ref.capability.len = 40;
    a->ref.capability.data = a->capability;
    a->data.ref = &a->ref;
    a->data.epoch = 9;
    a->msg.attr = &a->attr;
    a->msg.data = &a->data;
}

static int decode(const struct answer *a, struct md_entry *out)
{
    struct md_call call = { 0 };
    size_t len = rozo__md_open_resp__get_packed_size(&a->msg);
    uint8_t *packed = malloc(len + 1);
    int rc;

    assert_non_null(packed);
    rozo__md_open_resp__pack(&a->msg, packed);
    call.answer = packed;
    call.answer_len = len;
    rc = md_decode_open(&call, out);
    free(packed);
    return rc;
}

static void test_times_that_nanoseconds_do_not_hold(void **state)
{
    struct answer a;
    struct md_entry e;
    struct stat st;

    (void)state;
    answer_init(&a);
    a.attr.atime_ns = (uint64_t)wide_ns_near(wide_ns_make(-62135596800, 7));
    a.attr.atime_more_s = wide_ns_more_s(wide_ns_make(-62135596800, 7));
    a.attr.mtime_ns = (uint64_t)wide_ns_near(wide_ns_make(INT64_MAX, 999999999));
    a.attr.mtime_more_s = wide_ns_more_s(wide_ns_make(INT64_MAX, 999999999));
    assert_int_equal(decode(&a, &e), 0);
    md_attr_to_stat(&e.attr, &st);
    assert_true(st.st_atim.tv_sec == -62135596800 && st.st_atim.tv_nsec == 7);
    assert_true(st.st_mtim.tv_sec == INT64_MAX && st.st_mtim.tv_nsec == 999999999);
    md_entry_drop(&e);
    a.attr.mtime_ns = INT64_MAX;
    a.attr.mtime_more_s = INT64_MAX;
    assert_int_equal(decode(&a, &e), -EBADMSG);
}

static void test_a_good_answer_is_taken(void **state)
{
    struct answer a;
    struct md_entry e;
    struct stat st;

    (void)state;
    answer_init(&a);
    a.attr.token = ROZO__TOKEN_MODE__EXCLUSIVE;
    a.msg.grant = UINT64_MAX;
    assert_int_equal(decode(&a, &e), 0);
    assert_int_equal(e.attr.token, TOKEN_EXCLUSIVE);
    assert_true(e.grant.number == UINT64_MAX);
    assert_int_equal(e.grant.dir, TOKEN_NONE);
    assert_true(e.has_target);
    assert_int_equal(e.target.id.ino, 50);
    assert_int_equal(e.target.n_storages, 4);
    assert_int_equal(e.file.epoch, 9);
    assert_int_equal(e.file.size, 12345);
    md_attr_to_stat(&e.attr, &st);
    assert_int_equal(st.st_mtim.tv_sec, -2); /* before 1970 */
    assert_int_equal(st.st_mtim.tv_nsec, 500000000);
    assert_int_equal(st.st_size, 12345);
}

static void spoil(struct answer *a, int what)
{
    switch (what) {
    case 0:
        a->msg.attr = NULL;
        break;
    case 1:
        a->attr.ino = 0;
        break;
    case 2:
        a->attr.mode = 0644;
        break;
    case 3:
        a->attr.mode = S_IFREG | 0x80000;
        break;
    case 4:
        a->attr.size = (uint64_t)INT64_MAX + 1;
        break;
    case 5:
        a->attr.blocks = UINT64_MAX / 2;
        break;
    case 6:
        a->data.ref = NULL;
        break;
    case 7:
        a->ref.file_id.len = 15;
        break;
    case 8:
        a->ref.codec = 256;
        break;
    case 9:
        a->ref.layout = 1000;
        break;
    case 10:
        a->ref.block_bytes = 65536;
        break;
    case 11:
        a->ref.n_storages = 0;
        break;
    case 12:
        a->ref.n_storages = DIST_MAX + 1;
        break;
    case 13:
        a->ref.capability.len = 65;
        break;
    case 14:
        a->data.truncate_size = UINT64_MAX;
        break;
    case 15:
        a->attr.ino = 51;
        break; /* data for another inode */
    case 16:
        a->attr.mode = S_IFDIR | 0755;
        break;
    case 17:
        a->ref.stripe = 1;
        break;
    case 18:
        a->msg.data = NULL;
        break;
    case 19:
        a->attr.token = (Rozo__TokenMode)(TOKEN_EXCLUSIVE + 1);
        break;
    case 20:
        a->attr.token = (Rozo__TokenMode)-1;
        break;
    default:
        break;
    }
}

static void test_answer_with_any_single_mistake_is_refused(void **state)
{
    struct answer a;
    struct md_entry e = { .existed = true };

    (void)state;
    for (int what = 0; what <= 20; what++) {
        answer_init(&a);
        spoil(&a, what);
        if (decode(&a, &e) != -EBADMSG)
            fail_msg("mistake %d was believed", what);
    }
    assert_true(e.existed); /* untouched on failure */
}

static void test_garbage_is_refused(void **state)
{
    struct md_call call = { .answer = (const uint8_t *)"\x0a\xff\xff\xff\x0f",
                            .answer_len = 5 };
    struct arena arena;
    struct md_entry e;

    (void)state;
    assert_int_equal(md_decode_entry(&call, &e), -EBADMSG);
    assert_int_equal(md_decode_create(&call, &e), -EBADMSG);
    assert_int_equal(md_decode_open(&call, &e), -EBADMSG);
    assert_null(md_decode_readdir(&call, 0, false, &arena));
    call.answer_len = 0; /* an empty message has no attributes */
    assert_int_equal(md_decode_entry(&call, &e), -EBADMSG);
    /* no entries, and not the end */
    assert_null(md_decode_readdir(&call, 0, false, &arena));
}

static void test_renamed(void **state)
{
    uint64_t ino[] = { 7, 8, 9 };
    struct md_removed r = { .moved = { 1, 1 } };
    Rozo__MdRemovedResp msg = ROZO__MD_REMOVED_RESP__INIT;
    struct md_call call = { 0 };
    uint8_t packed[64];

    (void)state;
    /* no inode: both were names of one inode */
    assert_int_equal(md_decode_removed(&call, &r), 0);
    assert_true(r.moved[0] == 0 && r.moved[1] == 0);
    msg.moved = ino;
    call.answer = packed;
    for (msg.n_moved = 1; msg.n_moved <= 3; msg.n_moved++) {
        call.answer_len = rozo__md_removed_resp__pack(&msg, packed);
        assert_int_equal(md_decode_removed(&call, &r), msg.n_moved < 3 ? 0 : -EBADMSG);
    }
    assert_true(r.moved[0] == 7 && r.moved[1] == 8);
}

/* ---- grants: the same fields in each answer ---- */

static int decode_entry(unsigned token, unsigned dir, struct md_entry *out,
                        struct md_grant *nothing)
{
    Rozo__MdEntryResp msg = ROZO__MD_ENTRY_RESP__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;
    struct md_call call = { 0 };
    uint8_t packed[256];
    int rc;

    attr.ino = 5;
    attr.mode = S_IFDIR | 0755;
    attr.token = (Rozo__TokenMode)token;
    msg.attr = &attr;
    msg.grant = 77;
    msg.dir_token = (Rozo__TokenMode)dir;
    msg.others = true;
    call.answer = packed;
    call.answer_len = rozo__md_entry_resp__pack(&msg, packed);
    rc = md_decode_entry(&call, out);
    assert_int_equal(md_decode_no_entry(&call, nothing),
                     dir <= TOKEN_EXCLUSIVE ? 0 : -EBADMSG);
    return rc;
}

static int decode_create(unsigned token, unsigned dir, struct md_entry *out)
{
    Rozo__MdCreateResp msg = ROZO__MD_CREATE_RESP__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;
    struct md_call call = { 0 };
    uint8_t packed[256];

    attr.ino = 5;
    attr.mode = S_IFDIR | 0755;
    attr.token = (Rozo__TokenMode)token;
    msg.attr = &attr;
    msg.grant = 77;
    msg.dir_token = (Rozo__TokenMode)dir;
    msg.others = true;
    call.answer = packed;
    call.answer_len = rozo__md_create_resp__pack(&msg, packed);
    return md_decode_create(&call, out);
}

static int decode_removed(unsigned dir, unsigned new_dir, struct md_removed *out)
{
    Rozo__MdRemovedResp msg = ROZO__MD_REMOVED_RESP__INIT;
    struct md_call call = { 0 };
    uint8_t packed[256];

    msg.grant = 77;
    msg.dir_token = (Rozo__TokenMode)dir;
    msg.new_dir_token = (Rozo__TokenMode)new_dir;
    call.answer = packed;
    call.answer_len = rozo__md_removed_resp__pack(&msg, packed);
    return md_decode_removed(&call, out);
}

static bool decode_page(unsigned token, unsigned dir)
{
    Rozo__MdReaddirResp msg = ROZO__MD_READDIR_RESP__INIT;
    Rozo__MdReaddirResp__Entry entry = ROZO__MD_READDIR_RESP__ENTRY__INIT;
    Rozo__MdReaddirResp__Entry *list[] = { &entry };
    Rozo__Attr attr = ROZO__ATTR__INIT;
    Rozo__MdReaddirResp *out;
    struct arena arena;
    struct md_call call = { 0 };
    uint8_t packed[256];

    attr.ino = entry.ino = 5;
    attr.mode = entry.type = S_IFREG;
    attr.token = (Rozo__TokenMode)token;
    entry.name.data = (uint8_t *)"a";
    entry.name.len = 1;
    entry.cookie = 1;
    entry.attr = &attr;
    msg.entries = list;
    msg.n_entries = 1;
    msg.grant = 77;
    msg.dir_token = (Rozo__TokenMode)dir;
    call.answer = packed;
    call.answer_len = rozo__md_readdir_resp__pack(&msg, packed);
    out = md_decode_readdir(&call, 0, true, &arena);
    arena_free(&arena);
    return out != NULL;
}

static void grant_is(const struct md_grant *g, enum token_mode dir,
                     enum token_mode new_dir, bool others)
{
    assert_int_equal(g->number, 77);
    assert_int_equal(g->dir, dir);
    assert_int_equal(g->new_dir, new_dir);
    assert_int_equal(g->others, others);
}

/* Goal: for a file any mode may be granted, for a directory at most SHARED. */
static void test_grants(void **state)
{
    struct md_entry e;
    struct md_grant nothing;
    struct md_removed r;

    (void)state;
    for (unsigned mode = 0; mode < 5; mode++) {
        bool is_mode = mode <= TOKEN_EXCLUSIVE;

        assert_int_equal(decode_entry(mode, 0, &e, &nothing), is_mode ? 0 : -EBADMSG);
        assert_int_equal(decode_create(mode, 0, &e), is_mode ? 0 : -EBADMSG);
        assert_int_equal(decode_page(mode, 0), is_mode);
        assert_int_equal(decode_entry(0, mode, &e, &nothing), is_mode ? 0 : -EBADMSG);
        assert_int_equal(decode_create(0, mode, &e), is_mode ? 0 : -EBADMSG);
        assert_int_equal(decode_page(0, mode), is_mode);
        assert_int_equal(decode_removed(mode, 0, &r), is_mode ? 0 : -EBADMSG);
        assert_int_equal(decode_removed(0, mode, &r), is_mode ? 0 : -EBADMSG);
    }
    assert_int_equal(decode_entry(TOKEN_SHARED, TOKEN_SHARED, &e, &nothing), 0);
    assert_int_equal(e.attr.token, TOKEN_SHARED);
    grant_is(&e.grant, TOKEN_SHARED, TOKEN_NONE, true);
    grant_is(&nothing, TOKEN_SHARED, TOKEN_NONE, true);
    assert_int_equal(decode_create(TOKEN_EXCLUSIVE, TOKEN_SHARED, &e), 0);
    assert_int_equal(e.attr.token, TOKEN_EXCLUSIVE);
    grant_is(&e.grant, TOKEN_SHARED, TOKEN_NONE, true);
    assert_int_equal(decode_removed(TOKEN_NONE, TOKEN_SHARED, &r), 0);
    grant_is(&r.grant, TOKEN_NONE, TOKEN_SHARED, false);
}

static bool readdir_is_fine(const char *name, size_t name_len, uint64_t ino,
                            uint32_t type, uint64_t cookie, bool with_attr,
                            uint64_t attr_ino, bool plus)
{
    Rozo__MdReaddirResp msg = ROZO__MD_READDIR_RESP__INIT;
    Rozo__MdReaddirResp__Entry entry = ROZO__MD_READDIR_RESP__ENTRY__INIT;
    Rozo__MdReaddirResp__Entry *list[] = { &entry };
    Rozo__Attr attr = ROZO__ATTR__INIT;
    Rozo__MdReaddirResp *out;
    struct arena arena;
    struct md_call call = { 0 };
    uint8_t packed[1024];

    attr.ino = attr_ino;
    attr.mode = S_IFREG | 0600;
    entry.name.len = name_len;
    entry.name.data = (uint8_t *)name;
    entry.ino = ino;
    entry.type = type;
    entry.cookie = cookie;
    entry.attr = with_attr ? &attr : NULL;
    msg.n_entries = 1;
    msg.entries = list;
    call.answer = packed;
    call.answer_len = rozo__md_readdir_resp__pack(&msg, packed);
    out = md_decode_readdir(&call, 10, plus, &arena);
    arena_free(&arena);
    return out != NULL;
}

/* Decodes the answer of a LOOKUP with this set. */
static bool entry_is_fine(Rozo__XattrSet *set, Rozo__Attr *attr)
{
    Rozo__MdEntryResp msg = ROZO__MD_ENTRY_RESP__INIT;
    static uint8_t packed[65536];
    struct md_call call = { .answer = packed };
    const Rozo__XattrSet *out;
    struct md_entry entry;
    struct arena arena;

    msg.attr = attr;
    msg.xattrs = set;
    call.answer_len = rozo__md_entry_resp__pack(&msg, packed);
    out = md_decode_entry_xattrs(&call, &arena);
    assert_int_equal(md_decode_entry(&call, &entry) == 0, out != NULL);
    if (out == NULL)
        return false;
    assert_int_equal(out->n_names, set->n_names);
    arena_free(&arena);
    msg.xattrs = NULL;
    call.answer_len = rozo__md_entry_resp__pack(&msg, packed);
    assert_null(md_decode_entry_xattrs(&call, &arena));
    return true;
}

/* Decodes a page with one entry that has n xattrs, and a name without a value more if
 * it is `odd`; and the answer of a LOOKUP with such a set. */
static bool xattr_set_is_fine(unsigned n, size_t name_len, size_t value_len, bool odd)
{
    Rozo__MdReaddirResp msg = ROZO__MD_READDIR_RESP__INIT;
    Rozo__MdReaddirResp__Entry entry = ROZO__MD_READDIR_RESP__ENTRY__INIT;
    Rozo__MdReaddirResp__Entry *list[] = { &entry };
    Rozo__XattrSet set = ROZO__XATTR_SET__INIT;
    Rozo__Attr attr = ROZO__ATTR__INIT;
    ProtobufCBinaryData names[64], values[64];
    static uint8_t bytes[2048], packed[65536];
    struct md_call call = { .answer = packed };
    Rozo__MdReaddirResp *out;
    struct arena arena;

    memset(bytes, 'u', sizeof(bytes));
    for (unsigned i = 0; i < 64; i++) {
        names[i] = (ProtobufCBinaryData){ name_len, bytes };
        values[i] = (ProtobufCBinaryData){ value_len, bytes };
    }
    attr.ino = entry.ino = 5;
    attr.mode = entry.type = S_IFREG;
    entry.name = (ProtobufCBinaryData){ 1, bytes };
    entry.cookie = 1;
    entry.attr = &attr;
    entry.xattrs = &set;
    set.names = names;
    set.values = values;
    set.n_values = n;
    set.n_names = n + odd;
    msg.entries = list;
    msg.n_entries = 1;
    call.answer_len = rozo__md_readdir_resp__pack(&msg, packed);
    out = md_decode_readdir(&call, 0, true, &arena);
    if (out != NULL)
        arena_free(&arena);
    assert_int_equal(entry_is_fine(&set, &attr), out != NULL);
    return out != NULL;
}

/* Goal: what is kept as all xattrs of an inode fits into what keeps it. */
static void test_sets_of_xattrs(void **state)
{
    (void)state;
    assert_true(xattr_set_is_fine(0, 0, 0, false));
    assert_true(xattr_set_is_fine(16, 63, 1024, false));
    assert_false(xattr_set_is_fine(16, 64, 1024, false)); /* too many bytes of names */
    assert_false(xattr_set_is_fine(17, 10, 10, false));
    assert_false(xattr_set_is_fine(1, 10, 1025, false));
    assert_true(xattr_set_is_fine(1, 255, 0, false));
    assert_false(xattr_set_is_fine(1, 256, 0, false));
    assert_false(xattr_set_is_fine(1, 0, 0, false));
    assert_false(xattr_set_is_fine(3, 10, 10, true));
}

static void test_directory_pages(void **state)
{
    char long_name[256];

    (void)state;
    memset(long_name, 'n', sizeof(long_name));
    assert_true(readdir_is_fine("a", 1, 5, S_IFREG, 11, true, 5, true));
    assert_true(readdir_is_fine("a", 1, 5, S_IFREG, 11, false, 5, false));
    assert_true(readdir_is_fine(long_name, 255, 5, S_IFREG, 11, true, 5, true));
    assert_true(readdir_is_fine("...", 3, 5, S_IFREG, MD_COOKIE_MAX, true, 5, true));
    assert_false(readdir_is_fine(long_name, 256, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine("", 0, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine("a/b", 3, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine("a\0b", 3, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine(".", 1, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine("..", 2, 5, S_IFREG, 11, true, 5, true));
    assert_false(readdir_is_fine("a", 1, 0, S_IFREG, 11, true, 0, true));
    assert_false(readdir_is_fine("a", 1, 5, 0, 11, true, 5, true));
    assert_false(readdir_is_fine("a", 1, 5, S_IFREG, 10, true, 5, true));
    assert_false(readdir_is_fine("a", 1, 5, S_IFREG, MD_COOKIE_MAX + 1, true, 5, true));
    /* written by another mount */
    assert_true(readdir_is_fine("a", 1, 5, S_IFREG, 11, false, 5, true));
    assert_false(readdir_is_fine("a", 1, 5, S_IFREG, 11, true, 6, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_answer_is_taken),
        cmocka_unit_test(test_times_that_nanoseconds_do_not_hold),
        cmocka_unit_test(test_answer_with_any_single_mistake_is_refused),
        cmocka_unit_test(test_garbage_is_refused),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_grants),
        cmocka_unit_test(test_sets_of_xattrs),
        cmocka_unit_test(test_directory_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
