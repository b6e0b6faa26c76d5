/*
 * test_fsck.c - the files that exportd lists are compared with those that storages list.
 */
#include <errno.h>
#include <stdlib.h>

#include "deploy/fsck/fsck_join.h"
#include "tests/unit/unit.h"

static struct fsck f;
static uint32_t unlisted; /* bitmap of storages that did not answer */
static uint32_t gone;     /* bitmap of storages that are declared lost */

static enum fsck_heard heard(void *arg, uint32_t storage)
{
    (void)arg;
    if (storage < 32 && (gone >> storage & 1) != 0)
        return FSCK_GONE;
    return storage < 32 && (unlisted >> storage & 1) != 0 ? FSCK_UNLISTED : FSCK_LISTED;
}

static int setup(void **state)
{
    (void)state;
    fsck_init(&f);
    unlisted = gone = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fsck_free(&f);
    return 0;
}

/* Adds a file of layout 0 on these storages. */
static int inode(uint64_t ino, const uint32_t storages[4], bool has_data)
{
    Rozo__AdInodesResp__Inode in = ROZO__AD_INODES_RESP__INODE__INIT;
    Rozo__FileRef ref = ROZO__FILE_REF__INIT;
    struct file_id id = { 1, 7, ino };
    uint8_t bytes[FILE_ID_BYTES];

    file_id_put(bytes, &id);
    ref.file_id = (ProtobufCBinaryData){ sizeof(bytes), bytes };
    ref.codec = 1;
    ref.block_bytes = 8192;
    ref.n_storages = 4;
    ref.storages = (uint32_t *)(uintptr_t)storages;
    in.ref = &ref;
    in.has_data = has_data;
    in.size = 100;
    return fsck_add_inode(&f, &in);
}

static int listed(uint32_t storage, uint64_t ino, uint32_t projections, uint32_t damaged)
{
    Rozo__StListResp__File file = ROZO__ST_LIST_RESP__FILE__INIT;
    Rozo__FileRef ref = ROZO__FILE_REF__INIT;
    struct file_id id = { 1, 7, ino };
    uint8_t bytes[FILE_ID_BYTES];

    file_id_put(bytes, &id);
    ref.file_id = (ProtobufCBinaryData){ sizeof(bytes), bytes };
    file.ref = &ref;
    file.projections = projections;
    file.damaged = damaged;
    file.size = 10;
    return fsck_add_listed(&f, storage, &file);
}

static bool lacks(uint64_t ino, struct fsck_lack *lack)
{
    struct file_id id = { 1, 7, ino };

    return fsck_lacks(&f, fsck_find(&f, &id), heard, NULL, lack);
}

static const uint32_t abcd[4] = { 1, 2, 3, 4 };

static void a_whole_file_lacks_nothing(void **state)
{
    struct fsck_lack lack;

    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(listed(i + 1, 5, 1u << i, 0), 0);
    assert_false(lacks(5, &lack));
    assert_int_equal(f.n_strays, 0);
    assert_int_equal(f.n_projections, 3);
    assert_int_equal(f.bytes, 30);
}

static void homes_that_lack_theirs(void **state)
{
    struct fsck_lack lack;

    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    assert_int_equal(inode(6, abcd, false), 0); /* d alone could have data */
    assert_int_equal(listed(1, 5, 1, 0), 0);
    assert_int_equal(listed(4, 5, 2, 0), 0); /* a spare has the second projection */
    assert_true(lacks(5, &lack));
    assert_int_equal(lack.missing, 6);
    assert_int_equal(lack.n_there, 2);
    assert_false(lack.unreadable);
    assert_false(lacks(6, &lack));
    unlisted = 1 << 3; /* storage 3 did not answer: it may have its own projection */
    assert_true(lacks(5, &lack));
    assert_int_equal(lack.missing, 2);
    assert_int_equal(lack.unlisted, 4);
}

/* Projections on a lost storage are missing, unless a spare has them. */
static void a_storage_that_is_given_up(void **state)
{
    struct fsck_lack lack;

    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    assert_int_equal(listed(2, 5, 2, 0), 0);
    gone = 1 << 1 | 1 << 3;
    assert_true(lacks(5, &lack));
    assert_int_equal(lack.unlisted, 0);
    assert_int_equal(lack.missing, 5);
    assert_true(lack.unreadable);
    /* the spare has the projection of the first home */
    assert_int_equal(listed(4, 5, 1, 0), 0);
    assert_true(lacks(5, &lack));
    assert_int_equal(lack.missing, 4);
    assert_false(lack.unreadable);
    assert_int_equal(listed(4, 5, 4, 0), 0);
    assert_false(lacks(5, &lack));
}

static void too_few_are_left(void **state)
{
    struct fsck_lack lack;

    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    assert_int_equal(listed(2, 5, 2, 0), 0);
    assert_true(lacks(5, &lack));
    assert_true(lack.unreadable);
    unlisted = 1 << 4; /* the spare may have another one */
    assert_true(lacks(5, &lack));
    assert_false(lack.unreadable);
}

static void what_cannot_be_believed_does_not_count(void **state)
{
    struct fsck_lack lack;

    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    assert_int_equal(listed(1, 5, 1, 1), 0);
    assert_int_equal(listed(2, 5, 2, 0), 0);
    assert_int_equal(listed(3, 5, 0, 4), 0);
    assert_true(lacks(5, &lack));
    assert_int_equal(lack.damaged, 5);
    assert_int_equal(lack.missing, 0);
    assert_int_equal(lack.n_there, 1);
    assert_true(lack.unreadable);
}

static void what_nobody_owns(void **state)
{
    (void)state;
    assert_int_equal(inode(5, abcd, true), 0);
    assert_int_equal(listed(1, 9, 3, 0), 0);
    assert_int_equal(listed(8, 5, 1, 0), 0); /* not in its distribution */
    assert_int_equal(f.n_strays, 2);
    assert_int_equal(f.strays[0].id.ino, 9);
    assert_int_equal(f.strays[0].projections, 3);
    assert_false(f.strays[0].misplaced);
    assert_true(f.strays[1].misplaced && f.strays[1].storage == 8);
}

static void nonsense_is_refused(void **state)
{
    Rozo__AdInodesResp__Inode in = ROZO__AD_INODES_RESP__INODE__INIT;
    Rozo__StListResp__File file = ROZO__ST_LIST_RESP__FILE__INIT;
    Rozo__FileRef ref = ROZO__FILE_REF__INIT;
    uint8_t bytes[FILE_ID_BYTES] = { 1 };
    uint32_t storages[40] = { 0 };

    (void)state;
    assert_int_equal(fsck_add_inode(&f, &in), -EBADMSG);
    assert_int_equal(fsck_add_listed(&f, 1, &file), -EBADMSG);
    in.ref = file.ref = &ref;
    ref.file_id = (ProtobufCBinaryData){ 5, bytes };
    assert_int_equal(fsck_add_inode(&f, &in), -EBADMSG);
    assert_int_equal(fsck_add_listed(&f, 1, &file), -EBADMSG);
    ref.file_id.len = sizeof(bytes);
    ref.block_bytes = 8192;
    ref.storages = storages;
    for (ref.n_storages = 0; ref.n_storages <= 40; ref.n_storages++)
        assert_int_equal(fsck_add_inode(&f, &in),
                         ref.n_storages < 3 || ref.n_storages > DIST_MAX ? -EBADMSG : 0);
    /* a later distribution of too few or too many */
    for (ref.n_storages = 0; ref.n_storages <= 40; ref.n_storages++) {
        ref.dist_generation++;
        assert_int_equal(fsck_add_listed(&f, 1, &file),
                         ref.n_storages < 3 || ref.n_storages > DIST_MAX ? -EBADMSG : 0);
    }
    ref.layout = 3;
    ref.n_storages = 4;
    bytes[1] = 9;
    assert_int_equal(fsck_add_inode(&f, &in), -EBADMSG);
    file.projections = file.damaged = UINT32_MAX; /* any bits are accepted */
    assert_int_equal(fsck_add_listed(&f, 1, &file), 0);
}

/* Goal: tables that grow lose no entry, and distributions are shared. */
static void many_files(void **state)
{
    struct fsck_lack lack;

    (void)state;
    for (uint64_t ino = 1; ino <= 20000; ino++) {
        uint32_t on[4] = { 1, 2 + (uint32_t)(ino % 2), 2 + (uint32_t)((ino + 1) % 2),
                           10 + (uint32_t)(ino % 3000) };

        assert_int_equal(inode(ino, on, true), 0);
        assert_int_equal(inode(ino, on, true), 0); /* adding it twice has no effect */
    }
    assert_int_equal(f.n_files, 20000);
    /* 3000 is even, so ino % 3000 determines ino % 2 */
    assert_int_equal(f.n_dists, 3000);
    for (uint64_t ino = 1; ino <= 20000; ino++) {
        assert_int_equal(listed(1, ino, 1, 0), 0);
        assert_int_equal(listed(2 + (uint32_t)(ino % 2), ino, 2, 0), 0);
        if (ino != 7777)
            assert_int_equal(listed(2 + (uint32_t)((ino + 1) % 2), ino, 4, 0), 0);
    }
    for (uint64_t ino = 1; ino <= 20000; ino++)
        assert_true(lacks(ino, &lack) == (ino == 7777));
    assert_int_equal(f.n_strays, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_whole_file_lacks_nothing),
        T(homes_that_lack_theirs),
        T(a_storage_that_is_given_up),
        T(too_few_are_left),
        T(what_cannot_be_believed_does_not_count),
        T(what_nobody_owns),
        T(nonsense_is_refused),
        T(many_files),
    };

    return cmocka_run_group_tests_name("deploy.fsck", tests, NULL, NULL);
}
