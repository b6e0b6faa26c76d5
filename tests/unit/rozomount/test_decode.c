/*
 * Goal: what exportd says is believed only when every field makes sense (I8).
 * Method: a good answer, then the same with one thing wrong at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rozomount/md_decode.h"
#include "tests/unit/unit.h"

/* A good answer to MD_OPEN, whose parts a test may spoil. */
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

static void test_a_good_answer_is_taken(void **state)
{
    struct answer a;
    struct md_entry e;
    struct stat st;

    (void)state;
    answer_init(&a);
    assert_int_equal(decode(&a, &e), 0);
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
        break; /* data of another file */
    case 16:
        a->attr.mode = S_IFDIR | 0755;
        break;
    case 17:
        a->ref.stripe = 1;
        break;
    case 18:
        a->msg.data = NULL;
        break;
    default:
        break;
    }
}

static void test_one_thing_wrong_and_it_is_refused(void **state)
{
    struct answer a;
    struct md_entry e = { .existed = true };

    (void)state;
    for (int what = 0; what <= 18; what++) {
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
    struct md_entry e;

    (void)state;
    assert_int_equal(md_decode_entry(&call, &e), -EBADMSG);
    assert_int_equal(md_decode_create(&call, &e), -EBADMSG);
    assert_int_equal(md_decode_open(&call, &e), -EBADMSG);
    assert_null(md_decode_readdir(&call, 0, false));
    call.answer_len = 0; /* an empty message has no attributes */
    assert_int_equal(md_decode_entry(&call, &e), -EBADMSG);
    assert_null(md_decode_readdir(&call, 0, false)); /* no entries, and not the end */
}

static void test_renamed(void **state)
{
    uint64_t ino[] = { 7, 8, 9 }, moved[2] = { 1, 1 };
    Rozo__MdRemovedResp msg = ROZO__MD_REMOVED_RESP__INIT;
    struct md_call call = { 0 };
    uint8_t packed[64];

    (void)state;
    assert_int_equal(md_decode_renamed(&call, moved), 0); /* two names of one inode */
    assert_true(moved[0] == 0 && moved[1] == 0);
    msg.moved = ino;
    call.answer = packed;
    for (msg.n_moved = 1; msg.n_moved <= 3; msg.n_moved++) {
        call.answer_len = rozo__md_removed_resp__pack(&msg, packed);
        assert_int_equal(md_decode_renamed(&call, moved), msg.n_moved < 3 ? 0 : -EBADMSG);
    }
    assert_true(moved[0] == 7 && moved[1] == 8);
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
    out = md_decode_readdir(&call, 10, plus);
    rozo__md_readdir_resp__free_unpacked(out, NULL);
    return out != NULL;
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
    assert_false(readdir_is_fine("a", 1, 5, S_IFREG, 11, false, 5, true));
    assert_false(readdir_is_fine("a", 1, 5, S_IFREG, 11, true, 6, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_answer_is_taken),
        cmocka_unit_test(test_one_thing_wrong_and_it_is_refused),
        cmocka_unit_test(test_garbage_is_refused),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_directory_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
