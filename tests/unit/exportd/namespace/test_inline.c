/*
 * test_inline.c - data of small files that exportd keeps, through requests.
 *
 * Goal:   an inode is inline or on storages; only data of the newest epoch that are newer
 *         than the stored ones are taken; storages are not asked to remove files that
 *         they never had.
 */
#include "common/wire/record.h"
#include "tests/unit/exportd/world.h"

enum { INLINE_MAX = 8192 };

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 11);
    w.inline_max = INLINE_MAX;
    world_start(&w);
    world_make_export(&w, 4, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

/* Closes a file whose writer failed: storages may have unreported bytes. */
static void close_unreported(uint64_t ino)
{
    Rozo__MdCloseReq req = ROZO__MD_CLOSE_REQ__INIT;

    req.ino = ino;
    req.n_references = 1;
    req.unreported = true;
    OK(world_call(&w, ROZO__OP__MD_CLOSE, &req.base, NULL, NULL));
}

static unsigned put(uint64_t ino, uint64_t version, const char *text, uint64_t size)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    Rozo__MdEntryResp *resp;
    unsigned status;

    req.ino = ino;
    req.size = size;
    req.epoch = version_epoch(version);
    req.inline_version = version;
    req.inline_data = (ProtobufCBinaryData){ strlen(text), (uint8_t *)(uintptr_t)text };
    status = world_call(&w, ROZO__OP__MD_WROTE, &req.base,
                        &rozo__md_entry_resp__descriptor, &resp);
    rozo__md_entry_resp__free_unpacked(resp, NULL);
    return status;
}

/* Checks the data. text NULL: on storages; "": none yet. */
static void check(uint64_t ino, const char *text, uint64_t size)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdOpenResp *resp;

    req.ino = ino;
    req.no_reference = true;
    OK(world_call(&w, ROZO__OP__MD_OPEN, &req.base, &rozo__md_open_resp__descriptor,
                  &resp));
    assert_int_equal(resp->attr->size, size);
    assert_int_equal(resp->data->inline_max, INLINE_MAX);
    assert_int_equal(resp->data->on_storages, text == NULL);
    assert_int_equal(resp->data->inline_data.len, text == NULL ? 0 : strlen(text));
    if (resp->data->inline_data.len > 0)
        assert_memory_equal(resp->data->inline_data.data, text, strlen(text));
    assert_int_equal(resp->data->inline_version != 0, resp->data->inline_data.len != 0);
    rozo__md_open_resp__free_unpacked(resp, NULL);
}

static void test_newer_bytes_of_the_newest_epoch_are_taken(void **state)
{
    struct seen s;
    uint64_t e;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    e = s.epoch;
    check(s.ino, "", 0);
    OK(put(s.ino, version_make((uint32_t)e, 1), "hello", 5));
    OK(put(s.ino, version_make((uint32_t)e, 3), "hello world", 11));
    OK(put(s.ino, version_make((uint32_t)e, 3), "hello world", 11)); /* repeated */
    IS(STALE_VERSION, put(s.ino, version_make((uint32_t)e, 2), "late", 11));
    check(s.ino, "hello world", 11);
    OK(t_open(&w, s.ino, true, &s)); /* a newer epoch was given out */
    IS(STALE_VERSION, put(s.ino, version_make((uint32_t)e, 4), "older", 11));
    OK(put(s.ino, version_make(s.epoch, 1), "newer", 11));
    check(s.ino, "newer", 11);
    IS(INVALID, put(s.ino, version_make(s.epoch, 2), "longer than that", 11 - 11));
    OK(t_getattr(&w, s.ino, &s));
    assert_true(s.has_data && s.blocks == 16);
}

static void test_truncate_of_inline_data(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    OK(t_truncate(&w, s.ino, 100, &s));
    assert_false(s.truncate_pending);
    check(s.ino, "hello", 100);
    OK(t_truncate(&w, s.ino, 2, &s));
    assert_false(s.truncate_pending);
    check(s.ino, "he", 2);
    OK(t_truncate(&w, s.ino, 50, &s));
    check(s.ino, "he", 50);
    IS(STALE_VERSION, put(s.ino, version_make(s.epoch - 1, 1), "hello", 50));
    OK(t_truncate(&w, s.ino, 0, &s));
    check(s.ino, "", 0);
    OK(put(s.ino, version_make(s.epoch, 1), "again", 5));
    check(s.ino, "again", 5);
}

/* A client that reports an old size again with its fsync does not undo a truncate by
 * another client. */
static void test_size_reported_again_does_not_undo_a_truncate(void **state)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    req.ino = s.ino;
    req.size = 5;
    req.epoch = s.epoch;
    req.sync = true;
    OK(t_truncate(&w, s.ino, 2, &s));
    OK(world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL, NULL));
    check(s.ino, "he", 2);
}

static void test_moving_to_storages_is_for_good(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    OK(t_wrote_in(&w, s.ino, 100000, s.epoch, NULL));
    check(s.ino, NULL, 100000);
    IS(STALE_VERSION, put(s.ino, version_make(s.epoch, 9), "hello", 100000));
    OK(t_truncate(&w, s.ino, 3, &s));
    assert_true(s.truncate_pending);
    check(s.ino, NULL, 3);
}

/* A client that failed while moving a file has left bytes on storages; the next one moves
 * it with no other change. */
static void test_moving_again_changes_nothing_else(void **state)
{
    struct seen s;
    uint32_t epoch;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    close_unreported(s.ino);
    OK(t_open(&w, s.ino, true, &s));
    epoch = s.epoch;
    OK(t_truncated(&w, s.ino, s.truncate_version, &s));
    OK(t_wrote_in(&w, s.ino, 5, epoch, NULL));
    check(s.ino, NULL, 5);
}

/* If an answer said "on storages", because of a pending truncate there, writes go to
 * storages from then on. */
static void test_file_on_storages_because_of_a_truncate_stays_there(void **state)
{
    struct seen s;
    uint32_t epoch;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_truncate(&w, s.ino, 100, &s));
    assert_false(s.truncate_pending);
    OK(t_truncate(&w, s.ino, 50, &s));
    assert_true(s.truncate_pending);
    check(s.ino, NULL, 50);
    epoch = s.epoch;
    OK(t_truncated(&w, s.ino, s.truncate_version, &s));
    check(s.ino, NULL, 50);
    IS(STALE_VERSION, put(s.ino, version_make(epoch, 9), "hello", 50));
}

/* If a file open elsewhere is moved and then cut to nothing, data on storages begin to
 * count. */
static void test_truncate_to_nothing_cuts_off_old_data_on_storages(void **state)
{
    uint64_t writer = w.session;
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    w.session = 0;
    world_reopen_session(&w);
    OK(t_open(&w, s.ino, true, &s));
    OK(t_open(&w, s.ino, true, &s));
    close_unreported(s.ino);
    w.session = writer;
    OK(t_truncate(&w, s.ino, 2, &s));
    assert_false(s.truncate_pending);
    OK(t_truncate(&w, s.ino, 0, &s));
    assert_true(s.truncate_pending && s.truncate_size == 0);
}

static void test_removal_of_an_inline_file_needs_no_storage(void **state)
{
    size_t n_keys = world_n_keys(&w);
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "f", NULL));
    assert_int_equal(t_trash(&w), 0);
    assert_int_equal(world_n_keys(&w), n_keys);
}

/* A client that failed may have begun to move a file: its data on storages are cut off
 * before it is moved again. */
static void test_old_data_on_storages_is_cut_off_before_a_move(void **state)
{
    struct seen s;
    uint32_t epoch;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    close_unreported(s.ino);
    check(s.ino, "hello", 5);
    OK(t_open(&w, s.ino, true, &s));
    assert_true(s.truncate_pending && s.truncate_size == 0);
    IS(STALE_VERSION, put(s.ino, version_make(s.epoch, 1), "HELLO", 5));
    epoch = s.epoch;
    OK(t_truncated(&w, s.ino, s.truncate_version, &s));
    OK(put(s.ino, version_make(epoch, 1), "HELLO", 5));
    check(s.ino, "HELLO", 5);
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "f", NULL));
    assert_int_equal(t_trash(&w), 1); /* storages have marks of it */
}

static void test_inline_data_is_there_after_a_restart(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(put(s.ino, version_make(s.epoch, 1), "hello", 5));
    OK(t_close(&w, s.ino, 1));
    world_kill(&w);
    world_reopen_session(&w);
    check(s.ino, "hello", 5);
}

/* Inline data fill the disk faster than the tick looks at it; a store that failed to
 * write takes no more changes. */
static void test_inline_data_is_refused_when_exportd_has_no_room(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    kv_memory_set_free(w.mem, (64 << 20) + 20);
    env_virtual_advance_ms(&w.env, 1100);
    IS(NO_SPACE, put(s.ino, version_make(s.epoch, 1), "hello world", 11));
    OK(put(s.ino, version_make(s.epoch, 2), "hello", 5));
    IS(NO_SPACE, put(s.ino, version_make(s.epoch, 3), "HELLO!", 6));
    check(s.ino, "hello", 5);
    OK(t_truncate(&w, s.ino, 2, &s));
    kv_memory_set_free(w.mem, UINT64_MAX);
    env_virtual_advance_ms(&w.env, 1100);
    OK(put(s.ino, version_make(s.epoch, 4), "HELLO!", 6));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_newer_bytes_of_the_newest_epoch_are_taken),
        T(test_truncate_of_inline_data),
        T(test_size_reported_again_does_not_undo_a_truncate),
        T(test_moving_to_storages_is_for_good),
        T(test_moving_again_changes_nothing_else),
        T(test_file_on_storages_because_of_a_truncate_stays_there),
        T(test_truncate_to_nothing_cuts_off_old_data_on_storages),
        T(test_removal_of_an_inline_file_needs_no_storage),
        T(test_old_data_on_storages_is_cut_off_before_a_move),
        T(test_inline_data_is_there_after_a_restart),
        T(test_inline_data_is_refused_when_exportd_has_no_room),
    };

    return cmocka_run_group_tests_name("exportd.inline", tests, NULL, NULL);
}
