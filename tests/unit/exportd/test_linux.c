/*
 * test_linux.c - what Linux has beyond POSIX: files that are made without a name.
 */
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

/* The session is back, and holds this inode open; or nothing. */
static void session_is_back(uint64_t ino)
{
    Rozo__MdOpenSessionReq req = ROZO__MD_OPEN_SESSION_REQ__INIT;

    req.export_name = (char *)(uintptr_t)"main";
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
    IS(NOT_FOUND, t_link(&w, s.ino, 1, "again")); /* it has lost its last one */
    OK(t_close(&w, s.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

static void test_a_nameless_file_is_made_as_any(void **state)
{
    struct seen s, d;

    (void)state;
    OK(t_create(&w, 1, "d", S_IFDIR | S_ISGID | 0755, &d));
    OK(t_create_nameless(&w, d.ino, S_IFREG | 0640, &s));
    assert_int_equal(s.gid, 1001); /* that of the directory */
    IS(INVALID, t_create_nameless(&w, d.ino, S_IFDIR | 0755, NULL));
    IS(STALE_HANDLE, t_create_nameless(&w, 999, S_IFREG | 0640, NULL));
    IS(NOT_DIRECTORY, t_create_nameless(&w, s.ino, S_IFREG | 0640, NULL));
    OK(t_rmdir(&w, 1, "d")); /* nothing is in it */
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
    IS(STALE_HANDLE, t_getattr(&w, lost.ino, NULL)); /* nobody claimed it */
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

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_nameless_file_goes_with_its_last_reference),
        T(test_a_nameless_file_gets_a_name_once),
        T(test_a_nameless_file_is_made_as_any),
        T(test_nameless_files_of_a_dead_client_go),
        T(test_nameless_files_over_a_restart),
    };

    return cmocka_run_group_tests_name("exportd.linux", tests, NULL, NULL);
}
