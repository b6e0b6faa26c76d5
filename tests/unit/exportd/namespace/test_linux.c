/*
 * test_linux.c - features of Linux beyond POSIX: nameless files and the flags of chattr.
 */
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 11);
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

static void pass_s(unsigned seconds)
{
    for (unsigned i = 0; i < seconds; i += 5) {
        env_virtual_advance_ms(&w.env, 5000);
        OK(t_getattr(&w, 1, NULL));
    }
}

static uint64_t inodes_in_use(void)
{
    Rozo__MdStatfsReq req = ROZO__MD_STATFS_REQ__INIT;
    Rozo__MdStatfsResp *resp;
    uint64_t n;

    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    n = resp->files;
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
    return n;
}

/* Opens the session again with this inode open; 0: with none. */
static void session_is_back(uint64_t ino)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();

    req.export_name = (char *)(uintptr_t) "main";
    req.session = w.session;
    req.n_open_inodes = ino != 0;
    req.open_inodes = &ino;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base, NULL, NULL));
}

/* ---- files without a name ---- */

static void test_a_nameless_file_goes_with_its_last_reference(void **state)
{
    struct seen s, root;

    (void)state;
    pass_s(25); /* past the grace */
    OK(t_getattr(&w, 1, &root));
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &s));
    assert_int_equal(s.mode, S_IFREG | 0640);
    assert_int_equal(s.nlink, 0);
    assert_true(s.with_data && s.epoch != 0);
    OK(t_wrote(&w, s.ino, 5, NULL));
    OK(t_open(&w, s.ino, false, NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_getattr(&w, s.ino, NULL));
    assert_int_equal(inodes_in_use(), 2);
    OK(t_close(&w, s.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
    assert_int_equal(inodes_in_use(), 1);
    pass_s(5);
    assert_true(w.storages[0].n_removed == 1 && w.storages[0].removed[0] == s.ino);
    OK(t_getattr(&w, 1, &s));
    assert_true(s.mtime_ns == root.mtime_ns); /* no name came or went */
}

static void test_a_nameless_file_gets_a_name_once(void **state)
{
    struct seen s, d;

    (void)state;
    pass_s(25);
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    OK(t_create(&w, 1, "taken", S_IFREG | 0644, NULL));
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &s));
    OK(t_wrote(&w, s.ino, 5, NULL));
    IS(EXISTS, t_link(&w, s.ino, 1, "taken"));
    OK(t_link(&w, s.ino, d.ino, "f"));
    OK(t_getattr(&w, s.ino, &s));
    assert_int_equal(s.nlink, 1);
    OK(t_link(&w, s.ino, 1, "g"));
    OK(t_close(&w, s.ino, 1));
    OK(t_lookup(&w, d.ino, "f", &s));
    assert_true(s.nlink == 2 && s.size == 5);
    OK(t_open(&w, s.ino, false, NULL));
    OK(t_unlink(&w, d.ino, "f", NULL));
    OK(t_unlink(&w, 1, "g", NULL));
    IS(NOT_FOUND, t_link(&w, s.ino, 1, "again")); /* the last name is gone for good */
    OK(t_close(&w, s.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

static void test_a_nameless_file_is_made_as_any(void **state)
{
    struct seen s, d;

    (void)state;
    OK(t_create(&w, 1, "d", S_IFDIR | S_ISGID | 0755, &d));
    OK(t_create_nameless(&w, d.ino, S_IFREG | 0640, &s));
    assert_int_equal(s.gid, 1001); /* group of the directory */
    IS(INVALID, t_create_nameless(&w, d.ino, S_IFDIR | 0755, NULL));
    IS(STALE_HANDLE, t_create_nameless(&w, 999, S_IFREG | 0640, NULL));
    IS(NOT_DIRECTORY, t_create_nameless(&w, s.ino, S_IFREG | 0640, NULL));
    OK(t_rmdir(&w, 1, "d")); /* the directory is empty */
}

static void test_nameless_files_of_a_dead_client_go(void **state)
{
    struct seen s;

    (void)state;
    pass_s(25);
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &s));
    OK(t_wrote(&w, s.ino, 5, NULL));
    env_virtual_advance_ms(&w.env, 25000);
    world_reopen_session(&w);
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
    assert_int_equal(w.storages[0].n_removed, 1);
}

static void test_nameless_files_over_a_restart(void **state)
{
    struct seen held, named, lost;

    (void)state;
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &held));
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &named));
    OK(t_create_nameless(&w, 1, S_IFREG | 0640, &lost));
    OK(t_link(&w, named.ino, 1, "named"));
    world_kill(&w);
    session_is_back(held.ino);
    pass_s(25);
    IS(STALE_HANDLE, t_getattr(&w, lost.ino, NULL)); /* no session claimed it */
    OK(t_getattr(&w, named.ino, NULL));
    OK(t_link(&w, held.ino, 1, "held"));
    OK(t_close(&w, held.ino, 1));
    OK(t_lookup(&w, 1, "held", NULL));
    world_power_cut(&w, 0);
    session_is_back(0);
    pass_s(25);
    OK(t_lookup(&w, 1, "held", NULL));
    assert_int_equal(inodes_in_use(), 3);
}

/* ---- the flags of chattr ---- */

enum { I = ROZO__FILE_FLAGS__FLAG_IMMUTABLE, A = ROZO__FILE_FLAGS__FLAG_APPEND };

static unsigned set_flags(uint64_t ino, uint32_t flags)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = ROZO__SETATTR_BITS__SET_FLAGS;
    req.file_flags = flags;
    return t_setattr(&w, req, NULL);
}

static unsigned set(uint64_t ino, uint32_t valid)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = valid;
    req.mode = 0600;
    return t_setattr(&w, req, NULL);
}

static unsigned open_to_append(uint64_t ino)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

    req.ino = ino;
    req.write = req.append = true;
    return world_call(&w, ROZO__OP__MD_OPEN, &req.base, NULL, NULL);
}

static unsigned fresh_epoch(uint64_t ino)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

    req.ino = ino;
    req.write = req.no_reference = true;
    return world_call(&w, ROZO__OP__MD_OPEN, &req.base, NULL, NULL);
}

static unsigned token_to_write(uint64_t ino, bool knows_flags)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    req.ino = ino;
    req.mode = ROZO__TOKEN_MODE__EXCLUSIVE;
    req.call = 1;
    req.knows_flags = knows_flags;
    return world_call(&w, ROZO__OP__MD_TOKEN, &req.base, NULL, NULL);
}

static void test_flags_are_stored_and_returned(void **state)
{
    struct seen f, d, s;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &f));
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    env_virtual_advance_ms(&w.env, 5);
    OK(set_flags(f.ino, A));
    OK(set_flags(d.ino, I));
    OK(t_getattr(&w, f.ino, &s));
    assert_true(s.file_flags == A && s.ctime_ns > f.ctime_ns && s.mtime_ns == f.mtime_ns);
    IS(NOT_SUPPORTED, set_flags(f.ino, 4));
    IS(NOT_SUPPORTED, set_flags(f.ino, A | 64));
    OK(t_symlink(&w, 1, "l", "f", &s));
    IS(NOT_SUPPORTED, set_flags(s.ino, I));
    world_kill(&w);
    world_reopen_session(&w);
    OK(t_getattr(&w, f.ino, &s));
    assert_int_equal(s.file_flags, A);
    OK(t_getattr(&w, d.ino, &s));
    assert_int_equal(s.file_flags, I);
    OK(set_flags(d.ino, 0));
    OK(t_create(&w, d.ino, "new", S_IFREG | 0644, &s));
    assert_int_equal(s.file_flags, 0);
}

/* Checks that a request is refused with these flags, or not, and works without them. */
static void flag_says(uint64_t ino, uint32_t flags, bool refuses, unsigned status)
{
    if (refuses)
        assert_int_equal(status, ROZO__STATUS__NOT_PERMITTED);
    else
        assert_int_equal(status, ROZO__STATUS__OK);
    OK(set_flags(ino, flags)); /* a flag never prevents changes of flags */
}

static void test_flags_of_a_file(void **state)
{
    static const uint32_t all[] = { 0, A, I, I | A };
    struct seen s;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
    OK(t_setxattr(&w, s.ino, "user.a", "1", 1, 0));
    for (unsigned i = 0; i < 4; i++) {
        uint32_t f = all[i];
        uint64_t ino = s.ino;
        bool now_too = (f & I) != 0;

        OK(set_flags(ino, f));
        /* as an old client does */
        flag_says(ino, f, f != 0, t_open(&w, ino, true, NULL));
        flag_says(ino, f, now_too, open_to_append(ino));
        flag_says(ino, f, f != 0, t_truncate(&w, ino, 0, NULL));
        flag_says(ino, f, f != 0, set(ino, ROZO__SETATTR_BITS__SET_MODE));
        flag_says(ino, f, f != 0, set(ino, ROZO__SETATTR_BITS__SET_UID));
        flag_says(ino, f, f != 0, set(ino, ROZO__SETATTR_BITS__SET_MTIME));
        flag_says(ino, f, f != 0, set(ino, ROZO__SETATTR_BITS__SET_MTIME_NOW));
        flag_says(
            ino, f, false,
            set(ino, ROZO__SETATTR_BITS__SET_MTIME | ROZO__SETATTR_BITS__SET_WRITTEN));
        flag_says(ino, f, f != 0,
                  set(ino, ROZO__SETATTR_BITS__SET_MTIME | ROZO__SETATTR_BITS__SET_MODE |
                               ROZO__SETATTR_BITS__SET_WRITTEN));
        flag_says(ino, f, now_too,
                  set(ino, ROZO__SETATTR_BITS__SET_ATIME_NOW |
                               ROZO__SETATTR_BITS__SET_MTIME_NOW));
        flag_says(ino, f, false, set(ino, ROZO__SETATTR_BITS__SET_KILL_SUIDGID));
        flag_says(ino, f, f != 0, t_setxattr(&w, ino, "user.a", "2", 1, 0));
        flag_says(ino, f, f != 0, token_to_write(ino, false)); /* as an old client does */
        flag_says(ino, f, false, token_to_write(ino, true));
        /* Earlier writes may still be reported and, where they were lost, be stored
         * again. */
        flag_says(ino, f, false, t_wrote(&w, ino, 50, NULL));
        flag_says(ino, f, false, fresh_epoch(ino));
        if (f != 0) {
            IS(NOT_PERMITTED, t_removexattr(&w, ino, "user.a"));
            IS(NOT_PERMITTED, t_link(&w, ino, 1, "g"));
            IS(NOT_PERMITTED, t_rename(&w, 1, "f", 1, "g", 0));
            IS(NOT_PERMITTED, t_unlink(&w, 1, "f", NULL));
        }
    }
}

static void test_flags_of_a_directory(void **state)
{
    struct seen d, s;
    unsigned n = 0;
    char name[8];

    (void)state;
    OK(t_create(&w, 1, "o", S_IFREG | 0644, &s));
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
    OK(t_create(&w, d.ino, "f", S_IFREG | 0644, NULL));
    OK(t_create(&w, d.ino, "e", S_IFDIR | 0755, NULL));
    for (uint32_t f = I; f <= (I | A); f++) {
        unsigned adds = (f & I) != 0 ? ROZO__STATUS__NOT_PERMITTED : ROZO__STATUS__OK;

        OK(set_flags(d.ino, f));
        snprintf(name, sizeof(name), "n%u", n++);
        assert_int_equal(t_create(&w, d.ino, name, S_IFREG | 0644, NULL), adds);
        snprintf(name, sizeof(name), "n%u", n++);
        assert_int_equal(t_link(&w, s.ino, d.ino, name), adds);
        assert_int_equal(t_create_nameless(&w, d.ino, S_IFREG | 0644, NULL), adds);
        IS(EXISTS, t_create(&w, d.ino, "f", S_IFREG | 0644, NULL));
        IS(EXISTS, t_link(&w, s.ino, d.ino, "f"));
        IS(NOT_PERMITTED, t_unlink(&w, d.ino, "f", NULL));
        IS(NOT_PERMITTED, t_rmdir(&w, d.ino, "e"));
        IS(NOT_PERMITTED, t_rename(&w, d.ino, "f", 1, "f", 0));
        IS(NOT_PERMITTED, t_rename(&w, d.ino, "f", d.ino, "g", 0));
        IS(NOT_PERMITTED, t_rename(&w, 1, "o", d.ino, "f", 0));
        IS(NOT_PERMITTED, t_rename(&w, 1, "o", d.ino, "f", RENAME_EXCHANGE));
        IS(NOT_PERMITTED, t_rename(&w, d.ino, "f", 1, "o", RENAME_EXCHANGE));
        IS(NOT_PERMITTED, t_rename(&w, 1, "d", 1, "x", 0));
        OK(t_rename(&w, d.ino, "f", d.ino, "f", 0)); /* no change */
        OK(t_create(&w, 1, "empty", S_IFDIR | 0755, NULL));
        IS(NOT_PERMITTED, t_rename(&w, 1, "empty", 1, "d", 0));
        IS(NOT_PERMITTED, t_rmdir(&w, 1, "d"));
        OK(t_rmdir(&w, 1, "empty"));
        snprintf(name, sizeof(name), "n%u", n++);
        assert_int_equal(t_rename(&w, 1, "o", d.ino, name, RENAME_WHITEOUT), adds);
        if (adds == ROZO__STATUS__OK) {
            OK(set_flags(d.ino, 0));
            OK(t_rename(&w, d.ino, name, 1, "o", 0));
        }
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_nameless_file_goes_with_its_last_reference),
        T(test_a_nameless_file_gets_a_name_once),
        T(test_a_nameless_file_is_made_as_any),
        T(test_nameless_files_of_a_dead_client_go),
        T(test_nameless_files_over_a_restart),
        T(test_flags_are_stored_and_returned),
        T(test_flags_of_a_file),
        T(test_flags_of_a_directory),
    };

    return cmocka_run_group_tests_name("exportd.linux", tests, NULL, NULL);
}
