/*
 * test_attrs.c - attributes, epochs, truncates, xattrs and ACLs, through requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "common/base/bytes.h"
#include "common/base/range_map.h"
#include "common/wire/record.h"
#include "exportd/namespace/acl.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 9);
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

static uint64_t mk(const char *name, uint32_t mode)
{
    struct seen s;

    OK(t_create(&w, 1, name, mode, &s));
    return s.ino;
}

static struct seen get(uint64_t ino)
{
    struct seen s;

    OK(t_getattr(&w, ino, &s));
    return s;
}

static Rozo__MdSetattrReq set(uint64_t ino, uint32_t valid)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = valid;
    return req;
}

/* Checks times that Linux can hold, also those that 64-bit nanoseconds cannot. */
static void test_odd_times(uint64_t f)
{
    static const int64_t seconds[] = { INT64_MIN,   -62135596800, -9223372037,
                                       -9223372036, -1,           0,
                                       9223372035,  9223372036,   9223372037,
                                       15032385535, 253402300799, INT64_MAX };
    Rozo__MdSetattrReq req =
        set(f, ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_MTIME);
    struct seen s;

    for (unsigned i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++) {
        wide_ns atime_ns = wide_ns_make(seconds[i], 999999999);
        wide_ns mtime_ns = wide_ns_make(seconds[i], 1);

        req.atime_ns = wide_ns_near(atime_ns);
        req.atime_more_s = wide_ns_more_s(atime_ns);
        req.mtime_ns = wide_ns_near(mtime_ns);
        req.mtime_more_s = wide_ns_more_s(mtime_ns);
        OK(t_setattr(&w, req, &s));
        assert_true(s.atime_ns == atime_ns && s.mtime_ns == mtime_ns);
        s = get(f);
        assert_true(s.atime_ns == atime_ns && s.mtime_ns == mtime_ns);
        assert_true(s.ctime_ns < INT64_MAX / 2);
    }
    req.mtime_ns = INT64_MAX;
    req.mtime_more_s = INT64_MAX;
    assert_int_equal(t_setattr(&w, req, &s), ROZO__STATUS__INVALID);
}

static void test_mode_owner_times(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    Rozo__MdSetattrReq req =
        set(f, ROZO__SETATTR_BITS__SET_MODE | ROZO__SETATTR_BITS__SET_UID |
                   ROZO__SETATTR_BITS__SET_GID);
    struct seen before = get(f), s;

    (void)state;
    env_virtual_advance_ms(&w.env, 3);
    req.mode = 06711;
    req.uid = 5;
    req.gid = 6;
    OK(t_setattr(&w, req, &s));
    assert_int_equal(s.mode, S_IFREG | 06711);
    assert_int_equal(s.uid, 5);
    assert_int_equal(s.gid, 6);
    assert_true(s.ctime_ns > before.ctime_ns && s.mtime_ns == before.mtime_ns);
    assert_true(s.change > before.change);
    req = set(f, ROZO__SETATTR_BITS__SET_KILL_SUIDGID);
    OK(t_setattr(&w, req, &s));
    assert_int_equal(s.mode, S_IFREG | 0711);
    req = set(f, ROZO__SETATTR_BITS__SET_MODE);
    req.mode =
        06700; /* without group execute, set-gid means mandatory locking and stays */
    OK(t_setattr(&w, req, &s));
    OK(t_setattr(&w, set(f, ROZO__SETATTR_BITS__SET_KILL_SUIDGID), &s));
    assert_int_equal(s.mode, S_IFREG | 02700);
    /* as for a caller outside the group */
    OK(t_setattr(&w, set(f, ROZO__SETATTR_BITS__SET_KILL_SGID), &s));
    assert_int_equal(s.mode, S_IFREG | 0700);
    req = set(f, ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_MTIME);
    req.atime_ns = -5000000001;
    req.mtime_ns = 123456789012345678;
    OK(t_setattr(&w, req, &s));
    assert_true(s.atime_ns == -5000000001 && s.mtime_ns == 123456789012345678);
    test_odd_times(f);
    req = set(f, ROZO__SETATTR_BITS__SET_ATIME_NOW | ROZO__SETATTR_BITS__SET_MTIME_NOW |
                     ROZO__SETATTR_BITS__SET_SYNC);
    OK(t_setattr(&w, req, &s));
    assert_true(s.atime_ns == s.mtime_ns && s.mtime_ns == s.ctime_ns);
}

static void test_setattr_refusals(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644), d = mk("d", S_IFDIR | 0755);
    uint64_t p = mk("p", S_IFIFO | 0644);
    Rozo__MdSetattrReq req = set(f, ROZO__SETATTR_BITS__SET_UID);

    (void)state;
    req.uid = UINT32_MAX;
    IS(INVALID, t_setattr(&w, req, NULL));
    IS(INVALID, t_setattr(&w, set(f, 2048), NULL));
    req = set(f, ROZO__SETATTR_BITS__SET_MODE);
    req.mode = 1 << 20;
    IS(INVALID, t_setattr(&w, req, NULL));
    IS(STALE_HANDLE, t_setattr(&w, set(1234, 0), NULL));
    IS(IS_DIRECTORY, t_truncate(&w, d, 0, NULL));
    IS(INVALID, t_truncate(&w, p, 0, NULL));
    IS(FILE_TOO_BIG, t_truncate(&w, f, UINT64_MAX, NULL));
    OK(t_truncate(&w, f, INT64_MAX, NULL));
}

static void test_epochs_only_grow(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    uint32_t last = 0;
    struct seen s;

    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        if (i % 2 == 0)
            OK(t_open(&w, f, true, &s));
        else
            OK(t_truncate(&w, f, i, &s));
        assert_true(s.epoch > last);
        assert_true(s.with_data && s.n_storages == 4);
        last = s.epoch;
        if (i % 5 == 4) {
            world_kill(&w);
            world_reopen_session(&w);
        }
    }
    OK(t_open(&w, f, false, &s));
    assert_int_equal(s.epoch, 0);
    IS(IS_DIRECTORY, t_open(&w, 1, true, NULL));
    OK(t_open(&w, 1, false, &s));
    assert_false(s.with_data);
    IS(STALE_HANDLE, t_open(&w, 4711, false, NULL));
}

/* Goal: no two writes ever get one version. Method: the power fails again and again
 * before epochs are on stable storage; each epoch given out is above all that were
 * seen. */
static void test_epochs_lost_with_the_power_are_not_given_again(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    Rozo__MdSyncReq sync = ROZO__MD_SYNC_REQ__INIT;
    uint32_t last = 0;
    struct seen s;

    (void)state;
    if (w.disk != NULL)
        skip(); /* LevelDB's power cannot be cut here */
    OK(world_call(&w, ROZO__OP__MD_SYNC, &sync.base, NULL, NULL));
    for (unsigned i = 0; i < 30; i++) {
        for (unsigned j = 0; j <= i % 7; j++) {
            OK(j % 3 == 2 ? t_truncate(&w, f, j, &s) : t_open(&w, f, true, &s));
            assert_true(s.epoch > last);
            last = s.epoch;
        }
        if (i % 4 == 3)
            OK(world_call(&w, ROZO__OP__MD_SYNC, &sync.base, NULL, NULL));
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        world_reopen_session(&w);
    }
}

static void test_writing(void **state)
{
    struct seen s, before;
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    assert_true(s.with_data && s.epoch == 1 && !s.has_data);
    env_virtual_advance_ms(&w.env, 5);
    OK(t_wrote(&w, s.ino, 1000, &s));
    assert_true(s.has_data && s.size == 1000 && s.blocks == 16);
    OK(t_wrote(&w, s.ino, 10, &s)); /* a size is a lower bound */
    assert_int_equal(s.size, 1000);
    before = s;
    req.ino = s.ino;
    req.mtime_ns = before.ctime_ns + 1000000;
    env_virtual_advance_ms(&w.env, 5);
    OK(world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL, NULL));
    s = get(s.ino);
    assert_true(s.mtime_ns == req.mtime_ns && s.ctime_ns == req.mtime_ns);
    OK(world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL,
                  NULL)); /* repeated: no change */
    assert_true(get(s.ino).change == s.change);
    req.mtime_ns =
        INT64_MAX; /* a client with a wrong clock spoils mtime, as utimens could */
    OK(world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL, NULL));
    assert_true(get(s.ino).ctime_ns < s.ctime_ns + 1000000000);
    req.ino = 1;
    req.has_data = true;
    IS(IS_DIRECTORY, world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL, NULL));
    req.ino = s.ino;
    req.size = (uint64_t)INT64_MAX + 1;
    IS(FILE_TOO_BIG, world_call(&w, ROZO__OP__MD_WROTE, &req.base, NULL, NULL));
}

static void test_create_opens_what_is_there(void **state)
{
    struct seen s, again;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    assert_false(s.existed);
    OK(t_create_open(&w, 1, "f", false, &again));
    assert_true(again.existed && again.ino == s.ino && again.epoch == s.epoch + 1);
    IS(EXISTS, t_create_open(&w, 1, "f", true, NULL));
    mk("d", S_IFDIR | 0755);
    mk("p", S_IFIFO | 0644);
    IS(IS_DIRECTORY, t_create_open(&w, 1, "d", false, NULL));
    IS(EXISTS, t_create_open(&w, 1, "p", false, NULL));
}

static void test_truncate_of_a_file_with_data(void **state)
{
    struct seen s;
    uint64_t f, version;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    OK(t_wrote(&w, f, 100000, NULL));
    OK(t_truncate(&w, f, 50000, &s));
    assert_true(s.size == 50000 && s.truncate_pending && s.truncate_size == 50000);
    assert_true(s.truncate_version == (uint64_t)s.epoch << 32);
    version = s.truncate_version;
    OK(t_truncate(&w, f, 20000, &s)); /* again: the smallest size, the newest version */
    assert_true(s.truncate_size == 20000 && s.truncate_version > version);
    OK(t_truncated(&w, f, version, &s)); /* end of an older truncate: no effect */
    OK(t_open(&w, f, false, &s));
    assert_true(s.truncate_pending && s.truncate_size == 20000);
    version = s.truncate_version;
    world_absent_session(&w);
    world_kill(&w);
    world_reopen_writing(&w, f);
    OK(t_open(&w, f, true, &s));
    assert_true(s.truncate_pending && s.truncate_version == version && s.size == 20000);
    OK(t_truncated(&w, f, version, &s));
    OK(t_open(&w, f, false, &s));
    assert_true(!s.truncate_pending &&
                s.truncate_version == version); /* clients compare versions */
    assert_int_equal(s.size, 20000);
    OK(t_truncated(&w, f, version, &s)); /* repeated: no effect */
    OK(t_truncate(&w, f, 30000, &s));    /* longer: no work */
    assert_true(s.size == 30000 && !s.truncate_pending);
}

/* Goal: I2. A file never shows bytes again that a truncate removed: growth waits for the
 * storages. */
static void test_growth_waits_for_the_truncate(void **state)
{
    struct seen s;
    uint64_t f;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    OK(t_wrote(&w, f, 100000, NULL));
    OK(t_truncate(&w, f, 1000, &s));
    OK(t_truncate(&w, f, 5000, &s)); /* the caller sees its size */
    assert_true(s.size == 5000 && s.truncate_pending && s.truncate_size == 1000);
    OK(t_wrote(&w, f, 7000, &s));
    assert_int_equal(s.size, 7000);
    OK(t_truncated(&w, f, s.truncate_version, &s));
    OK(t_open(&w, f, false, &s));
    assert_true(s.truncate_pending);
    OK(t_truncated(&w, f, s.truncate_version, &s));
    assert_int_equal(s.size, 7000);
    OK(t_open(&w, f, false, &s));
    assert_false(s.truncate_pending);
}

/* Goal: other clients see what is written after a truncate, also when exportd's power
 * fails. */
static void test_a_truncate_that_is_through_is_durable(void **state)
{
    struct seen s;
    uint64_t f;

    (void)state;
    if (w.disk != NULL)
        skip(); /* LevelDB's power cannot be cut here */
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    OK(t_wrote(&w, f, 10000, &s));
    OK(t_truncate(&w, f, 0, &s));
    assert_true(s.truncate_pending);
    OK(t_truncated(&w, f, s.truncate_version, &s));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    world_reopen_session(&w);
    OK(t_open(&w, f, false, &s));
    assert_false(s.truncate_pending);
    assert_int_equal(s.size, 0);
}

static void test_truncate_without_data(void **state)
{
    struct seen s;
    uint64_t f = mk("f", S_IFREG | 0644);

    (void)state;
    OK(t_truncate(&w, f, 1000, &s));
    OK(t_truncate(&w, f, 10, &s));
    assert_true(s.size == 10 && !s.truncate_pending && !s.has_data && s.blocks == 0);
}

/* ---- allocated blocks ---- */

enum { BLOCK_SECTORS = 8192 / 512 };

/* Reports ranges of blocks, up to a pair of zeros, as allocated, or as freed. */
static struct seen told(uint64_t ino, uint64_t size, const uint64_t (*ranges)[2],
                        bool freed)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    ProtobufCBinaryData *into = freed ? &req.freed : &req.allocated;
    uint8_t buf[1024 * SPAN_PACKED_MAX];
    struct range_map map = { 0 };
    struct seen s;

    for (; (*ranges)[1] != 0; ranges++)
        assert_int_equal(range_map_put(&map, (*ranges)[0], (*ranges)[1], 1), 0);
    req.ino = ino;
    req.size = size;
    req.has_data = true;
    req.reports_blocks = true;
    into->len = range_map_pack(&map, 1, 1024, buf);
    into->data = buf;
    range_map_free(&map);
    OK(t_wrote_req(&w, &req, &s));
    return s;
}

static void holds(uint64_t ino, uint64_t n_blocks)
{
    assert_int_equal(get(ino).blocks, n_blocks * BLOCK_SECTORS);
}

static void test_allocated_blocks_are_counted(void **state)
{
    struct seen s;
    uint64_t f;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    f = s.ino;
    holds(f, 0);
    told(f, 100 * 8192, (const uint64_t[][2]){ { 10, 12 }, { 0, 0 } }, false);
    holds(f, 2);
    told(f, 0, (const uint64_t[][2]){ { 10, 12 }, { 0, 0 } }, false); /* repeated */
    holds(f, 2);
    told(f, 0, (const uint64_t[][2]){ { 0, 1 }, { 11, 20 }, { 99, 101 }, { 0, 0 } },
         false);
    holds(f, 13);
    world_stop(&w);
    world_start(&w);
    world_reopen_session(&w);
    OK(t_open(&w, f, true, &s));
    holds(f, 13);
    told(f, 0, (const uint64_t[][2]){ { 5, 11 }, { 90, 100 }, { 0, 0 } }, true);
    holds(f, 11);
    told(f, 0, (const uint64_t[][2]){ { 1, 11 }, { 0, 0 } }, false);
    holds(f, 21);
    OK(t_truncate(&w, f, 15 * 8192 + 1, &s));
    holds(f, 16);
    OK(t_truncate(&w, f, 100 * 8192, &s));
    holds(f, 16);
    told(f, 0, (const uint64_t[][2]){ { 0, 16 }, { 0, 0 } }, true);
    holds(f, 0);
    told(f, 0, (const uint64_t[][2]){ { 50, 51 }, { 0, 0 } }, false);
    OK(t_truncate(&w, f, 0, &s));
    holds(f, 0);
}

/* In a file with too many pieces the narrowest holes count as data; no data are left
 * out. */
static void test_more_allocated_ranges_than_the_bound(void **state)
{
    static uint64_t ranges[1025][2];
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    for (uint64_t m = 0; m < 5; m++) {
        for (uint64_t i = 0; i < 1024; i++) {
            ranges[i][0] = (m * 1024 + i) * 10;
            ranges[i][1] = ranges[i][0] + 1 + i % 2;
        }
        told(s.ino, 0, (const uint64_t(*)[2])ranges, false);
        if (m < 4)
            holds(s.ino, (m + 1) * 1536);
    }
    assert_true(get(s.ino).blocks >= 5 * 1536 * BLOCK_SECTORS);
    assert_true(get(s.ino).blocks <= 5 * 10240 * BLOCK_SECTORS);
}

/* A writer that cannot report all its writes may have left blocks in holes; a count by a
 * later client corrects it. */
static void test_unreported_blocks_are_corrected_by_a_count(void **state)
{
    Rozo__MdWroteReq counted = ROZO__MD_WROTE_REQ__INIT;
    Rozo__MdCloseReq bye = ROZO__MD_CLOSE_REQ__INIT;
    struct seen s, dense;

    (void)state;
    OK(t_create_open(&w, 1, "dense", true, &dense));
    told(dense.ino, 2 * 8192, (const uint64_t[][2]){ { 0, 2 }, { 0, 0 } }, false);
    OK(t_create_open(&w, 1, "f", true, &s));
    told(s.ino, 100 * 8192, (const uint64_t[][2]){ { 10, 12 }, { 0, 0 } }, false);
    OK(t_open(&w, s.ino, true, &s));
    assert_false(s.blocks_unsure);
    bye.ino = s.ino;
    bye.unreported = true;
    OK(world_call(&w, ROZO__OP__MD_CLOSE, &bye.base, NULL, NULL));
    bye.ino = dense.ino;
    OK(world_call(&w, ROZO__OP__MD_CLOSE, &bye.base, NULL, NULL));
    OK(t_open(&w, s.ino, true, &s));
    assert_true(s.blocks_unsure);
    OK(t_open(&w, dense.ino, true, &dense));
    assert_false(dense.blocks_unsure); /* without a hole none can be missing */
    told(s.ino, 0, (const uint64_t[][2]){ { 20, 21 }, { 0, 0 } }, false);
    OK(t_open(&w, s.ino, true, &s));
    assert_true(s.blocks_unsure);
    counted.ino = s.ino;
    counted.reports_blocks = counted.blocks_counted = true;
    OK(t_wrote_req(&w, &counted, &s));
    holds(s.ino, 3);
    OK(t_open(&w, s.ino, true, &s));
    assert_false(s.blocks_unsure);
}

/* A client that reports no blocks, of an older build, counts as having written the whole
 * file. */
static void test_client_that_reports_no_blocks_wrote_the_whole_file(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    told(s.ino, 100 * 8192, (const uint64_t[][2]){ { 10, 12 }, { 0, 0 } }, false);
    OK(t_wrote(&w, s.ino, 101 * 8192, &s));
    holds(s.ino, 101);
}

static void test_invalid_allocated_ranges_are_refused(void **state)
{
    static const uint8_t bad[][4] = { { 0, 0 }, { 0x80, 0x80, 0x80 }, { 5, 1, 0, 1 } };
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    req.ino = s.ino;
    req.reports_blocks = true;
    for (unsigned i = 0; i < 3; i++) {
        req.allocated = (ProtobufCBinaryData){ 2 + i, (uint8_t *)(uintptr_t)bad[i] };
        assert_int_equal(t_wrote_req(&w, &req, &s), ROZO__STATUS__INVALID);
    }
    holds(s.ino, 0);
}

/* Blocks of a directory would make its record unreadable. */
static void test_only_files_have_blocks(void **state)
{
    static const uint8_t two[] = { 1, 2 };
    const uint32_t modes[] = { S_IFDIR | 0755, S_IFIFO | 0644 };
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    struct seen s;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        req.ino = mk(i == 0 ? "d" : "p", modes[i]);
        req.reports_blocks = true;
        req.allocated = (ProtobufCBinaryData){ sizeof(two), (uint8_t *)(uintptr_t)two };
        assert_int_not_equal(t_wrote_req(&w, &req, &s), ROZO__STATUS__OK);
        assert_int_equal(get(req.ino).mode, modes[i]);
    }
}

/* ---- xattrs ---- */

static void test_xattrs(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    static char val[65537], back[65537];
    size_t len;

    (void)state;
    IS(NO_DATA, t_getxattr(&w, f, "user.a", back, &len));
    IS(NO_DATA, t_removexattr(&w, f, "user.a"));
    IS(NO_DATA, t_setxattr(&w, f, "user.a", "1", 1, XATTR_REPLACE));
    OK(t_setxattr(&w, f, "user.a", "1", 1, XATTR_CREATE));
    IS(EXISTS, t_setxattr(&w, f, "user.a", "1", 1, XATTR_CREATE));
    IS(INVALID, t_setxattr(&w, f, "user.a", "1", 1, 3));
    IS(INVALID, t_setxattr(&w, f, "user.a", "1", 1, 8));
    OK(t_setxattr(&w, f, "user.a", "22", 2, XATTR_REPLACE));
    OK(t_getxattr(&w, f, "user.a", back, &len));
    assert_int_equal(len, 2);
    OK(t_setxattr(&w, f, "user.empty", "", 0, 0));
    OK(t_getxattr(&w, f, "user.empty", back, &len));
    assert_int_equal(len, 0);
    memset(val, 'v', sizeof(val));
    OK(t_setxattr(&w, f, "trusted.big", val, 65536, 0));
    OK(t_getxattr(&w, f, "trusted.big", back, &len));
    assert_int_equal(len, 65536);
    assert_memory_equal(val, back, 65536);
    IS(TOO_BIG, t_setxattr(&w, f, "user.big", val, 65537, 0));
    OK(t_setxattr(&w, f, "security.selinux", "x", 1, 0));
    IS(NOT_SUPPORTED, t_setxattr(&w, f, "system.other", "x", 1, 0));
    IS(NOT_SUPPORTED, t_setxattr(&w, f, "rozo.locate", "x", 1, 0));
    IS(NOT_SUPPORTED, t_setxattr(&w, f, "user.", "x", 1, 0));
    IS(NOT_SUPPORTED, t_getxattr(&w, f, "nonsense", back, &len));
    OK(t_removexattr(&w, f, "user.a"));
    IS(NO_DATA, t_getxattr(&w, f, "user.a", back, &len));
    IS(STALE_HANDLE, t_setxattr(&w, 999, "user.a", "x", 1, 0));
}

/* Calls check() with the xattrs of each entry of the root that a listing brings; NULL:
 * it brings none. */
static void list_xattrs(bool plus, bool xattrs,
                        void (*check)(const char *name, const Rozo__XattrSet *set))
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    char name[256];

    req.ino = 1;
    req.max_entries = 4096;
    req.plus = plus;
    req.xattrs = xattrs;
    OK(world_call(&w, ROZO__OP__MD_READDIR, &req.base, &rozo__md_readdir_resp__descriptor,
                  &resp));
    assert_true(resp->end);
    for (size_t i = 0; i < resp->n_entries; i++) {
        snprintf(name, sizeof(name), "%.*s", (int)resp->entries[i]->name.len,
                 (const char *)resp->entries[i]->name.data);
        check(name, resp->entries[i]->xattrs);
    }
    rozo__md_readdir_resp__free_unpacked(resp, NULL);
}

static void no_xattrs_came(const char *name, const Rozo__XattrSet *set)
{
    (void)name;
    assert_null(set);
}

static void expect_xattr(const Rozo__XattrSet *set, unsigned at, const char *name,
                         const char *value)
{
    assert_int_equal(set->names[at].len, strlen(name));
    assert_memory_equal(set->names[at].data, name, strlen(name));
    assert_int_equal(set->values[at].len, strlen(value));
    assert_memory_equal(set->values[at].data, value, strlen(value));
}

static void small_xattrs_came(const char *name, const Rozo__XattrSet *set)
{
    if (strcmp(name, "few") != 0 && strcmp(name, "most") != 0) {
        assert_null(set);
        return;
    }
    assert_non_null(set);
    assert_int_equal(set->n_names, name[0] == 'f' ? 3 : 16);
    assert_int_equal(set->n_values, set->n_names);
    if (name[0] != 'f')
        return;
    expect_xattr(set, 0, "user.two", "22");
    expect_xattr(set, 1, "security.one", "1");
    expect_xattr(set, 2, "user.empty", "");
}

static unsigned n_sets;

static void xattrs_are_counted(const char *name, const Rozo__XattrSet *set)
{
    (void)name;
    n_sets += set != NULL;
}

/* Calls check() with the xattrs that a LOOKUP of the name brings; NULL: none. */
static void lookup_xattrs(const char *name, bool xattrs,
                          void (*check)(const char *name, const Rozo__XattrSet *set))
{
    Rozo__MdLookupReq req = ROZO__MD_LOOKUP_REQ__INIT;
    Rozo__MdEntryResp *resp;

    req.parent = 1;
    req.name = (ProtobufCBinaryData){ strlen(name), (uint8_t *)(uintptr_t)name };
    req.xattrs = xattrs;
    OK(world_call(&w, ROZO__OP__MD_LOOKUP, &req.base, &rozo__md_entry_resp__descriptor,
                  &resp));
    assert_true(resp->grant != 0 && resp->attr->token != ROZO__TOKEN_MODE__TOKEN_NONE);
    assert_int_equal(resp->dir_token, ROZO__TOKEN_MODE__SHARED);
    check(name, resp->xattrs);
    rozo__md_entry_resp__free_unpacked(resp, NULL);
}

static void test_lookup_with_xattrs(void **state)
{
    static const char *const names[] = { "few", "large", "most", "none" };
    static char val[1025];
    uint64_t few = mk("few", S_IFREG | 0644), large = mk("large", S_IFREG | 0644);
    uint64_t most = mk("most", S_IFREG | 0644);
    char name[256];

    (void)state;
    mk("none", S_IFREG | 0644);
    OK(t_setxattr(&w, few, "user.two", "22", 2, 0));
    OK(t_setxattr(&w, few, "security.one", "1", 1, 0));
    OK(t_setxattr(&w, few, "user.empty", "", 0, 0));
    OK(t_setxattr(&w, large, "user.b", val, 1025, 0));
    for (unsigned i = 0; i < 16; i++) { /* the largest answer */
        snprintf(name, sizeof(name), "user.%056u", i);
        OK(t_setxattr(&w, most, name, val, 1024, 0));
    }
    for (unsigned i = 0; i < 4; i++) {
        lookup_xattrs(names[i], false, no_xattrs_came);
        lookup_xattrs(names[i], true, small_xattrs_came);
    }
}

/* A listing brings all xattrs of an inode, or none of them: not if one is large, if there
 * are many, or if the answer would get too long. */
static void test_listing_with_xattrs(void **state)
{
    static char val[1025];
    uint64_t few = mk("few", S_IFREG | 0644), large = mk("large", S_IFREG | 0644);
    uint64_t most = mk("most", S_IFREG | 0644), many = mk("many", S_IFREG | 0644);
    uint64_t names = mk("names", S_IFREG | 0644);
    char name[256];

    (void)state;
    mk("none", S_IFREG | 0644);
    OK(t_setxattr(&w, few, "user.two", "22", 2, 0));
    OK(t_setxattr(&w, few, "security.one", "1", 1, 0));
    OK(t_setxattr(&w, few, "user.empty", "", 0, 0));
    OK(t_setxattr(&w, large, "user.a", "1", 1, 0));
    OK(t_setxattr(&w, large, "user.b", val, 1025, 0));
    for (unsigned i = 0; i < 17; i++) {
        snprintf(name, sizeof(name), "user.%u", i);
        OK(t_setxattr(&w, many, name, "1", 1, 0));
        if (i < 16)
            OK(t_setxattr(&w, most, name, val, 1024, 0));
        snprintf(name, sizeof(name), "user.%0200u", i);
        if (i < 5)
            OK(t_setxattr(&w, names, name, "1", 1, 0));
    }
    list_xattrs(true, false, no_xattrs_came);
    list_xattrs(false, true, no_xattrs_came);
    list_xattrs(true, true, small_xattrs_came);
    OK(t_setxattr(&w, most, "user.16", "1", 1, 0));
    OK(t_removexattr(&w, most, "user.16"));
    list_xattrs(true, true, small_xattrs_came);
    for (unsigned i = 0; i < 1100; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_setxattr(&w, mk(name, S_IFREG | 0644), "user.a", val, 1024, 0));
    }
    list_xattrs(true, true, xattrs_are_counted);
    assert_in_range(n_sets, 900, 1024);
}

static unsigned list_names(uint64_t ino, char *names, size_t *len)
{
    Rozo__MdListxattrReq req = ROZO__MD_LISTXATTR_REQ__INIT;
    Rozo__MdListxattrResp *resp;
    unsigned status;

    req.ino = ino;
    status = world_call(&w, ROZO__OP__MD_LISTXATTR, &req.base,
                        &rozo__md_listxattr_resp__descriptor, &resp);
    if (resp != NULL) {
        *len = resp->names.len;
        if (*len > 0)
            memcpy(names, resp->names.data, *len);
    }
    rozo__md_listxattr_resp__free_unpacked(resp, NULL);
    return status;
}

static void test_list_of_xattrs(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    static char names[70000];
    char name[300];
    size_t len, keys;
    unsigned n = 0;

    (void)state;
    OK(list_names(f, names, &len));
    assert_int_equal(len, 0);
    OK(t_setxattr(&w, f, "user.one", "", 0, 0));
    OK(t_setxattr(&w, f, "user.two", "2", 1, 0));
    OK(t_setxattr(&w, f, "user.one", "1", 1, 0));
    OK(list_names(f, names, &len));
    assert_int_equal(len, 18);
    assert_memory_equal(names, "user.one\0user.two", 18);
    OK(t_removexattr(&w, f, "user.one"));
    OK(list_names(f, names, &len));
    assert_memory_equal(names, "user.two", 9);
    OK(t_removexattr(&w, f, "user.two"));
    OK(list_names(f, names, &len));
    assert_int_equal(len, 0);
    /* names of 255 bytes until the list is full */
    memset(name, 'n', sizeof(name));
    memcpy(name, "user.", 5);
    name[255] = '\0';
    for (;; n++) {
        unsigned status;

        name[100] = (char)('a' + n % 26);
        name[101] = (char)('a' + n / 26);
        status = t_setxattr(&w, f, name, "v", 1, 0);
        if (status != ROZO__STATUS__OK) {
            assert_int_equal(status, ROZO__STATUS__NO_SPACE);
            break;
        }
    }
    assert_int_equal(n, 65536 / 256);
    OK(list_names(f, names, &len));
    assert_int_equal(len, 65536);
    name[255] = 'n';
    name[256] = '\0';
    IS(OUT_OF_RANGE, t_setxattr(&w, f, name, "v", 1, 0));
    /* all xattrs go with the file */
    keys = world_n_keys(&w);
    OK(t_unlink(&w, 1, "f", NULL));
    assert_int_equal(keys - world_n_keys(&w),
                     256 + 1 + 3); /* values, list, inode, names */
}

/* ---- ACLs ---- */

struct ace {
    uint16_t tag, perm;
    uint32_t id;
};
enum { NOBODY = -1 };
#define U_OBJ(p)                  \
    {                             \
        0x01, p, (uint32_t)NOBODY \
    }
#define USER(i, p) \
    {              \
        0x02, p, i \
    }
#define G_OBJ(p)                  \
    {                             \
        0x04, p, (uint32_t)NOBODY \
    }
#define GROUP(i, p) \
    {               \
        0x08, p, i  \
    }
#define MASK(p)                   \
    {                             \
        0x10, p, (uint32_t)NOBODY \
    }
#define OTHER(p)                  \
    {                             \
        0x20, p, (uint32_t)NOBODY \
    }

static size_t acl_pack(uint8_t *buf, const struct ace *e, unsigned n)
{
    put_le32(buf, 2);
    for (unsigned i = 0; i < n; i++) {
        put_le16(buf + 4 + i * 8, e[i].tag);
        put_le16(buf + 6 + i * 8, e[i].perm);
        put_le32(buf + 8 + i * 8, e[i].id);
    }
    return 4 + (size_t)n * 8;
}

static void test_which_acls_are_valid(void **state)
{
    static const struct {
        bool valid, exact;
        uint32_t mode;
        unsigned n;
        struct ace e[8];
    } table[] = {
        { true, true, 0754, 3, { U_OBJ(7), G_OBJ(5), OTHER(4) } },
        { true, false, 0734, 4, { U_OBJ(7), G_OBJ(5), MASK(3), OTHER(4) } },
        { true, false, 0760, 5, { U_OBJ(7), USER(5, 7), G_OBJ(5), MASK(6), OTHER(0) } },
        { true,
          false,
          0770,
          6,
          { U_OBJ(7), USER(5, 7), USER(4, 1), G_OBJ(5), MASK(7), OTHER(0) } },
        { true,
          false,
          0770,
          6,
          { U_OBJ(7), G_OBJ(5), GROUP(1, 1), GROUP(2, 2), MASK(7), OTHER(0) } },
        { false,
          false,
          0,
          4,
          { U_OBJ(7), USER(5, 7), G_OBJ(5), OTHER(0) } }, /* no mask */
        { false, false, 0, 4, { U_OBJ(7), G_OBJ(5), GROUP(5, 7), OTHER(0) } },
        { false, false, 0, 2, { U_OBJ(7), G_OBJ(5) } },
        { false, false, 0, 2, { G_OBJ(5), OTHER(5) } },
        { false, false, 0, 4, { U_OBJ(7), U_OBJ(7), G_OBJ(5), OTHER(5) } },
        { false, false, 0, 4, { U_OBJ(7), G_OBJ(5), G_OBJ(5), OTHER(5) } },
        { false, false, 0, 4, { U_OBJ(7), G_OBJ(5), OTHER(5), OTHER(5) } },
        { false, false, 0, 4, { U_OBJ(7), G_OBJ(5), OTHER(5), MASK(5) } },
        { false, false, 0, 5, { U_OBJ(7), G_OBJ(5), USER(1, 5), MASK(5), OTHER(5) } },
        { false, false, 0, 3, { U_OBJ(8), G_OBJ(5), OTHER(4) } },
        { false, false, 0, 3, { U_OBJ(7), { 0x03, 1, 1 }, OTHER(4) } },
        { false, false, 0, 3, { U_OBJ(7), { 0, 1, 1 }, OTHER(4) } },
        { false,
          false,
          0,
          5,
          { U_OBJ(7), USER(UINT32_MAX, 7), G_OBJ(5), MASK(6), OTHER(0) } },
    };
    uint8_t buf[128];

    (void)state;
    for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        size_t len = acl_pack(buf, table[i].e, table[i].n);
        bool exact;

        if ((acl_check(buf, len) == 0) != table[i].valid)
            fail_msg("table entry %u", i);
        assert_int_not_equal(acl_check(buf, len - 1), 0);
        if (!table[i].valid)
            continue;
        assert_int_equal(acl_mode(buf, len, &exact), table[i].mode);
        assert_int_equal(exact, table[i].exact);
        put_le32(buf, 3); /* unknown version */
        assert_int_not_equal(acl_check(buf, len), 0);
    }
    assert_int_not_equal(acl_check(buf, 0), 0);
    assert_int_not_equal(acl_check(buf, 3), 0);
}

static const struct ace acl_user5[] = { U_OBJ(6), USER(5, 7), G_OBJ(4), MASK(7),
                                        OTHER(0) };
static const struct ace acl_plain[] = { U_OBJ(7), G_OBJ(1), OTHER(0) };

/* Attributes say which classes of xattrs exist, so that clients need not ask for
 * others. */
static void test_classes_of_xattrs(void **state)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } classes[] = {
        { "user.a", ROZO__XATTR_BITS__XATTRS_USER },
        { "trusted.a", ROZO__XATTR_BITS__XATTRS_TRUSTED },
        { "security.a", ROZO__XATTR_BITS__XATTRS_SECURITY },
    };
    uint64_t f = mk("f", S_IFREG | 0644);
    uint64_t d = mk("d", S_IFDIR | 0755);
    struct seen s;
    uint32_t bits = ROZO__XATTR_BITS__XATTRS_TOLD;
    uint8_t acl[64];
    size_t len = acl_pack(acl, acl_user5, 5);

    (void)state;
    assert_int_equal(get(f).xattrs, bits);
    for (unsigned i = 0; i < 3; i++) {
        OK(t_setxattr(&w, f, classes[i].name, "1", 1, 0));
        bits |= classes[i].bit;
        assert_int_equal(get(f).xattrs, bits);
    }
    OK(t_setxattr(&w, f, "user.b", "1", 1, 0));
    for (unsigned i = 0; i < 3; i++) {
        OK(t_removexattr(&w, f, classes[i].name));
        bits &= ~classes[i].bit | ROZO__XATTR_BITS__XATTRS_USER; /* user.b is there */
        assert_int_equal(get(f).xattrs, bits);
    }
    OK(t_removexattr(&w, f, "user.b"));
    assert_int_equal(get(f).xattrs, ROZO__XATTR_BITS__XATTRS_TOLD);
    OK(t_setxattr(&w, d, "system.posix_acl_default", acl, len, 0));
    assert_int_equal(get(d).xattrs, ROZO__XATTR_BITS__XATTRS_TOLD |
                                        ROZO__XATTR_BITS__XATTRS_ACL_DEFAULT);
    OK(t_setxattr(&w, f, "system.posix_acl_access", acl, len, 0));
    assert_int_equal(get(f).xattrs,
                     ROZO__XATTR_BITS__XATTRS_TOLD | ROZO__XATTR_BITS__XATTRS_ACL_ACCESS);
    OK(t_unlink(&w, 1, "f", &s)); /* xattrs go with the last name */
    assert_int_equal(s.xattrs, ROZO__XATTR_BITS__XATTRS_TOLD);
}

static void test_access_acls(void **state)
{
    uint64_t f = mk("f", S_IFREG | 0644);
    Rozo__MdSetattrReq req = set(f, ROZO__SETATTR_BITS__SET_MODE);
    uint8_t buf[128], back[65536];
    size_t len = acl_pack(buf, acl_user5, 5), back_len;
    struct seen s;

    (void)state;
    IS(NO_DATA, t_getxattr(&w, f, ACL_NAME_ACCESS, back, &back_len));
    OK(t_setxattr(&w, f, ACL_NAME_ACCESS, buf, len, 0));
    assert_int_equal(get(f).mode, S_IFREG | 0670); /* the mode follows */
    OK(t_getxattr(&w, f, ACL_NAME_ACCESS, back, &back_len));
    assert_int_equal(back_len, len);
    assert_memory_equal(back, buf, len);
    req.mode = 0531; /* chmod: owner, mask and other follow */
    OK(t_setattr(&w, req, &s));
    assert_int_equal(s.mode, S_IFREG | 0531);
    OK(t_getxattr(&w, f, ACL_NAME_ACCESS, back, &back_len));
    assert_int_equal(get_le16(back + 6), 5);
    assert_int_equal(get_le16(back + 6 + 8), 7);  /* user 5 keeps what it had */
    assert_int_equal(get_le16(back + 6 + 16), 4); /* the group, too */
    assert_int_equal(get_le16(back + 6 + 24), 3);
    assert_int_equal(get_le16(back + 6 + 32), 1);
    /* an ACL that says no more than a mode is not kept */
    len = acl_pack(buf, acl_plain, 3);
    OK(t_setxattr(&w, f, ACL_NAME_ACCESS, buf, len, 0));
    assert_int_equal(get(f).mode, S_IFREG | 0710);
    IS(NO_DATA, t_getxattr(&w, f, ACL_NAME_ACCESS, back, &back_len));
    OK(list_names(f, (char *)back, &back_len));
    assert_int_equal(back_len, 0);
    IS(INVALID, t_setxattr(&w, f, ACL_NAME_ACCESS, buf, len - 8, 0));
    len = acl_pack(buf, acl_user5, 5);
    OK(t_setxattr(&w, f, ACL_NAME_ACCESS, buf, len, 0));
    OK(t_setxattr(&w, f, ACL_NAME_ACCESS, "", 0, 0)); /* an empty value removes the ACL */
    IS(NO_DATA, t_getxattr(&w, f, ACL_NAME_ACCESS, back, &back_len));
    OK(t_setxattr(&w, f, ACL_NAME_ACCESS, buf, len, 0));
    OK(t_removexattr(&w, f, ACL_NAME_ACCESS));
    IS(NO_DATA, t_removexattr(&w, f, ACL_NAME_ACCESS));
}

static void test_set_gid_and_acls(void **state)
{
    uint64_t f = mk("f", S_IFREG | 02755);
    Rozo__MdSetxattrReq req = ROZO__MD_SETXATTR_REQ__INIT;
    uint8_t buf[128];

    (void)state;
    req.ino = f;
    req.name =
        (ProtobufCBinaryData){ strlen(ACL_NAME_ACCESS), (uint8_t *)ACL_NAME_ACCESS };
    req.value = (ProtobufCBinaryData){ acl_pack(buf, acl_user5, 5), buf };
    OK(world_call(&w, ROZO__OP__MD_SETXATTR, &req.base, NULL, NULL));
    assert_int_equal(get(f).mode, S_IFREG | 02670);
    req.kill_sgid = true;
    OK(world_call(&w, ROZO__OP__MD_SETXATTR, &req.base, NULL, NULL));
    assert_int_equal(get(f).mode, S_IFREG | 0670);
}

static unsigned create_umask(uint64_t parent, const char *name, uint32_t mode,
                             struct seen *out)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;
    unsigned status;

    req.parent = parent;
    req.name = (ProtobufCBinaryData){ strlen(name), (uint8_t *)(uintptr_t)name };
    req.mode = mode;
    req.umask = 077;
    req.target = (ProtobufCBinaryData){ 1, (uint8_t *)(uintptr_t) "t" };
    status = world_call(&w, ROZO__OP__MD_CREATE, &req.base, NULL, NULL);
    OK(t_lookup(&w, parent, name, out));
    return status;
}

static void test_default_acls_are_inherited(void **state)
{
    uint64_t d = mk("d", S_IFDIR | 0755), f = mk("f", S_IFREG | 0644);
    uint8_t buf[128], back[65536];
    size_t len = acl_pack(buf, acl_user5, 5), back_len;
    struct seen s;

    (void)state;
    IS(DENIED, t_setxattr(&w, f, ACL_NAME_DEFAULT, buf, len, 0));
    OK(t_setxattr(&w, f, ACL_NAME_DEFAULT, "", 0, 0));
    OK(t_setxattr(&w, d, ACL_NAME_DEFAULT, buf, len, 0));
    assert_int_equal(get(d).mode, S_IFDIR | 0755); /* a default ACL changes no mode */
    /* umask has no effect; mode limits the ACL, and the ACL the mode */
    OK(create_umask(d, "file", S_IFREG | 0666, &s));
    assert_int_equal(s.mode, S_IFREG | 0660);
    OK(t_getxattr(&w, s.ino, ACL_NAME_ACCESS, back, &back_len));
    assert_int_equal(get_le16(back + 6 + 24), 6); /* the mask, limited */
    IS(NO_DATA, t_getxattr(&w, s.ino, ACL_NAME_DEFAULT, back, &back_len));
    OK(create_umask(d, "sub", S_IFDIR | 0777, &s));
    assert_int_equal(s.mode, S_IFDIR | 0670);
    OK(t_getxattr(&w, s.ino, ACL_NAME_DEFAULT, back, &back_len));
    assert_memory_equal(back, buf, len);
    OK(create_umask(s.ino, "deeper", S_IFREG | 0600, &s));
    assert_int_equal(s.mode, S_IFREG | 0600);
    OK(t_getxattr(&w, s.ino, ACL_NAME_ACCESS, back, &back_len));
    OK(create_umask(d, "link", S_IFLNK | 0777, &s));
    assert_int_equal(s.mode, S_IFLNK | 0777);
    IS(NOT_SUPPORTED, t_setxattr(&w, s.ino, ACL_NAME_ACCESS, buf, len, 0));
    /* a default ACL that says no more than a mode leaves no ACL, but still overrides
     * umask */
    len = acl_pack(buf, acl_plain, 3);
    OK(t_setxattr(&w, d, ACL_NAME_DEFAULT, buf, len, 0));
    OK(create_umask(d, "file2", S_IFREG | 0777, &s));
    assert_int_equal(s.mode, S_IFREG | 0710);
    IS(NO_DATA, t_getxattr(&w, s.ino, ACL_NAME_ACCESS, back, &back_len));
    OK(t_removexattr(&w, d, ACL_NAME_DEFAULT));
    OK(create_umask(d, "file3", S_IFREG | 0777, &s));
    assert_int_equal(s.mode, S_IFREG | 0700);
}

/* seen: the access time that the mount knew; -1: none. */
static unsigned read_at(uint64_t ino, wide_ns seen, int64_t at_ns, bool strict)
{
    Rozo__MdAtimesReq__Read read = ROZO__MD_ATIMES_REQ__READ__INIT, *list[] = { &read };
    Rozo__MdAtimesReq req = ROZO__MD_ATIMES_REQ__INIT;

    read.ino = ino;
    read.at_ns = at_ns;
    read.has_seen = seen != -1;
    read.seen_ns = wide_ns_near(seen);
    read.seen_more_s = wide_ns_more_s(seen);
    req.reads = list;
    req.n_reads = 1;
    req.strict = strict;
    return world_call(&w, ROZO__OP__MD_ATIMES, &req.base, NULL, NULL);
}

static int64_t atime_of(uint64_t ino)
{
    return (int64_t)get(ino).atime_ns;
}

static void set_atime(uint64_t ino, wide_ns atime_ns, struct seen *out)
{
    Rozo__MdSetattrReq set = ROZO__MD_SETATTR_REQ__INIT;

    set.ino = ino;
    set.valid = ROZO__SETATTR_BITS__SET_ATIME;
    set.atime_ns = wide_ns_near(atime_ns);
    set.atime_more_s = wide_ns_more_s(atime_ns);
    OK(t_setattr(&w, set, out));
}

/* By the rules of relatime; nothing else of the inode changes. */
static void test_access_times(void **state)
{
    const int64_t s = INT64_C(1000000000);
    struct seen f, g;
    int64_t t;

    (void)state;
    OK(t_create(&w, 1, "atimes", S_IFREG | 0644, &f));
    env_virtual_advance_ms(&w.env, 10000);
    t = f.ctime_ns + 5 * s;
    OK(read_at(f.ino, f.atime_ns, t, false));
    assert_int_equal(atime_of(f.ino), t);
    OK(read_at(f.ino, t, t + s, false)); /* once since the last change */
    OK(read_at(f.ino, f.atime_ns, t, false));
    assert_int_equal(atime_of(f.ino), t);
    OK(read_at(f.ino, t, t + s, true));
    OK(read_at(f.ino, f.atime_ns, t, true)); /* a repeat that comes late */
    assert_int_equal(atime_of(f.ino), t + s);
    OK(t_getattr(&w, f.ino, &g));
    assert_true(g.change == f.change && g.ctime_ns == f.ctime_ns);
    assert_true(g.mtime_ns == f.mtime_ns);
    /* a day later it moves again; a clock that is ahead is not believed */
    OK(read_at(f.ino, t + s, t + 100000 * s, false));
    assert_int_equal(atime_of(f.ino), t + s);
    w.env.now_ns += UINT64_C(90000) * 1000000000; /* no timer runs on the way */
    world_reopen_session(&w);
    OK(read_at(f.ino, t + s, t + 86401 * s, false));
    assert_int_equal(atime_of(f.ino), t + 86401 * s);
    OK(read_at(f.ino + 12345, -1, t, false)); /* gone, or never there */
}

/* Two mounts report, and one changes the inode, whatever exportd hears first. */
static void test_access_times_that_follow_others(void **state)
{
    const int64_t s = INT64_C(1000000000);
    struct seen f, g;

    (void)state;
    OK(t_create(&w, 1, "reads", S_IFREG | 0644, &f));
    env_virtual_advance_ms(&w.env, 10000);
    /* read, then changed: the change does not take the read away */
    OK(t_setattr(&w, set(f.ino, ROZO__SETATTR_BITS__SET_MODE), &g));
    assert_true(g.ctime_ns > f.ctime_ns + 5 * s);
    OK(read_at(f.ino, -1, f.ctime_ns + s, false)); /* as far as one can know */
    assert_true(atime_of(f.ino) == f.atime_ns);
    OK(read_at(f.ino, f.atime_ns, f.ctime_ns + s, false));
    assert_int_equal(atime_of(f.ino), f.ctime_ns + s);
    /* the other mount knew an older time, and read after the change */
    env_virtual_advance_ms(&w.env, 10000);
    OK(read_at(f.ino, f.atime_ns, g.ctime_ns + s, false));
    assert_int_equal(atime_of(f.ino), g.ctime_ns + s);
    /* set, far out: reads before that do not count, the next one does */
    set_atime(f.ino, wide_ns_make(-62135596800, 7), &g);
    OK(read_at(f.ino, f.atime_ns, g.ctime_ns - s, true));
    OK(t_getattr(&w, f.ino, &g));
    assert_true(g.atime_ns == wide_ns_make(-62135596800, 7));
    OK(read_at(f.ino, g.atime_ns, g.ctime_ns - s, false));
    assert_int_equal(atime_of(f.ino), g.ctime_ns - s);
    /* set to a time to come: a read that has seen it moves it back if each counts */
    set_atime(f.ino, wide_ns_make(INT64_MAX, 0), &g);
    env_virtual_advance_ms(&w.env, 10000);
    OK(read_at(f.ino, g.atime_ns, g.ctime_ns + s, false));
    OK(read_at(f.ino, -1, g.ctime_ns + s, true));
    OK(t_getattr(&w, f.ino, &g));
    assert_true(g.atime_ns == wide_ns_make(INT64_MAX, 0));
    OK(read_at(f.ino, g.atime_ns, g.ctime_ns + s, true));
    assert_int_equal(atime_of(f.ino), g.ctime_ns + s);
}

static void test_too_many_access_times(void **state)
{
    static Rozo__MdAtimesReq__Read reads[1025], *list[1025];
    Rozo__MdAtimesReq req = ROZO__MD_ATIMES_REQ__INIT;

    (void)state;
    for (unsigned i = 0; i < 1025; i++) {
        rozo__md_atimes_req__read__init(&reads[i]);
        reads[i].ino = 1;
        list[i] = &reads[i];
    }
    req.reads = list;
    req.n_reads = 1025;
    IS(INVALID, world_call(&w, ROZO__OP__MD_ATIMES, &req.base, NULL, NULL));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_mode_owner_times),
        T(test_access_times),
        T(test_access_times_that_follow_others),
        T(test_too_many_access_times),
        T(test_setattr_refusals),
        T(test_epochs_only_grow),
        T(test_epochs_lost_with_the_power_are_not_given_again),
        T(test_writing),
        T(test_create_opens_what_is_there),
        T(test_truncate_of_a_file_with_data),
        T(test_growth_waits_for_the_truncate),
        T(test_a_truncate_that_is_through_is_durable),
        T(test_truncate_without_data),
        T(test_allocated_blocks_are_counted),
        T(test_more_allocated_ranges_than_the_bound),
        T(test_unreported_blocks_are_corrected_by_a_count),
        T(test_client_that_reports_no_blocks_wrote_the_whole_file),
        T(test_invalid_allocated_ranges_are_refused),
        T(test_only_files_have_blocks),
        T(test_xattrs),
        T(test_listing_with_xattrs),
        T(test_lookup_with_xattrs),
        T(test_list_of_xattrs),
        T(test_classes_of_xattrs),
        T(test_which_acls_are_valid),
        T(test_access_acls),
        T(test_set_gid_and_acls),
        T(test_default_acls_are_inherited),
    };

    return cmocka_run_group_tests_name("exportd.attrs", tests, NULL, NULL);
}
