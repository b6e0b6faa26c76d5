/*
 * test_cluster.c - storages, volumes, exports, placement, sessions, orphans and removals.
 *
 * Fake storages answer, refuse, hang and come back.
 */
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 11);
    world_start(&w);
    return 0;
}

static int setup_export(void **state)
{
    setup(state);
    world_make_export(&w, 4, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static Rozo__AdStatusResp *status(void)
{
    Rozo__AdStatusReq req = ROZO__AD_STATUS_REQ__INIT;
    Rozo__AdStatusResp *resp;

    OK(world_call_node(&w, ROZO__OP__AD_STATUS, &req.base,
                       &rozo__ad_status_resp__descriptor, &resp));
    return resp;
}

static void status_free(Rozo__AdStatusResp *s)
{
    rozo__ad_status_resp__free_unpacked(s, NULL);
}

/* A member of a quorum refuses the store of another cluster. */
static void test_the_store_of_another_cluster(void **state)
{
    struct exportd_config config = world_config(&w);
    struct exportd *x = NULL;
    struct err err = { 0 };
    uint8_t id[16];

    (void)state;
    memcpy(id, exportd_cluster_id(w.x), sizeof(id));
    assert_int_equal(world_stop(&w), 0);
    id[15] ^= 1;
    config.cluster_id = id;
    assert_int_equal(exportd_open(&w.env.env, w.kv, &config, &x, &err), -EINVAL);
    assert_non_null(strstr(err.text, "another cluster"));
    world_start(&w);
    id[15] ^= 1;
    assert_memory_equal(exportd_cluster_id(w.x), id, sizeof(id));
}

static void test_a_storage_joins(void **state)
{
    char error[256];
    uint32_t id, again;
    Rozo__AdStatusResp *s;

    (void)state;
    OK(t_storage_add(&w, 3, &id, NULL));
    assert_int_equal(id, 1);
    assert_int_equal(w.storages[3].id, 1);
    assert_memory_equal(w.storages[3].cluster_id, exportd_cluster_id(w.x), 16);
    OK(t_storage_add(&w, 3, &again, NULL)); /* repeated: no effect */
    assert_int_equal(again, id);
    OK(t_storage_add(&w, 5, &id, NULL));
    assert_int_equal(id, 2);
    env_virtual_advance_ms(&w.env, 2000);
    s = status();
    assert_int_equal(s->n_storages, 2);
    assert_int_equal(s->n_volumes, 1);
    assert_string_equal(s->volumes[0]->name, "default");
    assert_int_equal(s->volumes[0]->n_storages, 2);
    assert_string_equal(s->storages[0]->addresses[0], "s3:1");
    assert_string_equal(s->storages[0]->host, "host3");
    assert_true(s->storages[0]->up && s->storages[0]->free_bytes == 60ull << 30);
    status_free(s);
    world_kill(&w);
    s = status();
    assert_int_equal(s->n_storages, 2);
    assert_true(s->storages[1]->up);
    status_free(s);
    /* storages that cannot join */
    w.storages[6].down = true;
    IS(IO_ERROR, t_storage_add(&w, 6, NULL, error));
    assert_string_equal(error, "storage at s6:1: Connection refused");
    w.storages[7].hung = true;
    IS(TIMED_OUT, t_storage_add(&w, 7, NULL, error));
    assert_string_equal(error, "storage at s7:1: it does not answer");
    w.storages[8].id = 4;
    memset(w.storages[8].cluster_id, 9, 16);
    IS(WRONG_STORAGE, t_storage_add(&w, 8, NULL, error));
    assert_string_equal(error, "storage at s8:1: it belongs to another cluster");
    w.storages[9].starting = 1000000;
    IS(BUSY, t_storage_add(&w, 9, NULL, error));
    assert_string_equal(
        error, "storage at s9:1: it is busy, maybe still starting: try again soon");
    /* the storage starts meanwhile */
    w.storages[9].starting = 3;
    OK(t_storage_add(&w, 9, &id, NULL));
}

static uint64_t n_requests(unsigned op)
{
    Rozo__AdStatusResp *s = status();
    uint64_t n = 0;

    for (size_t i = 0; i < s->n_requests; i++) {
        if (s->requests[i]->op == op)
            n = s->requests[i]->count;
    }
    status_free(s);
    return n;
}

static void test_requests_are_counted(void **state)
{
    Rozo__MdSyncReq unknown = ROZO__MD_SYNC_REQ__INIT;

    (void)state;
    assert_int_equal(n_requests(ROZO__OP__MD_LOOKUP), 0);
    OK(t_create(&w, 1, "f", S_IFREG | 0644, NULL));
    OK(t_lookup(&w, 1, "f", NULL));
    IS(NOT_FOUND, t_lookup(&w, 1, "g", NULL));
    assert_int_equal(n_requests(ROZO__OP__MD_LOOKUP), 2); /* failed requests count, too */
    assert_int_equal(n_requests(ROZO__OP__MD_CREATE), 1);
    IS(UNKNOWN_OP,
       /* unknown ops below OPS_MAX count, too */
       world_call(&w, 99, &unknown.base, NULL, NULL));
    IS(UNKNOWN_OP, world_call(&w, UINT16_MAX, &unknown.base, NULL, NULL));
    assert_int_equal(n_requests(99), 1);
    world_kill(&w);
    /* counters begin at the start */
    assert_int_equal(n_requests(ROZO__OP__MD_LOOKUP), 0);
}

/* Goal: one storage gets one id, whatever fails meanwhile. Method: the process is killed
 * after each step of an admission; the same command again completes it. */
static void test_an_admission_cut_short(void **state)
{
    Rozo__AdStorageAddReq req = ROZO__AD_STORAGE_ADD_REQ__INIT;
    char *addr = w.storages[0].addr;
    uint8_t msg[64];
    size_t len;
    unsigned n_ids = 0;

    (void)state;
    req.n_addresses = 1;
    req.addresses = &addr;
    len = rozo__ad_storage_add_req__pack(&req, msg);
    for (unsigned ms = 0; ms < 6; ms++) {
        struct answer_got got;
        uint32_t id;

        world_send(&w, ROZO__OP__AD_STORAGE_ADD, RPC_ROLE_NODE, 0, msg, len, &got);
        env_virtual_run_posted(&w.env);
        if (ms > 0)
            env_virtual_advance_ms(&w.env, ms);
        world_kill(&w);
        free(got.msg);
        OK(t_storage_add(&w, 0, &id, NULL));
        assert_int_equal(id, w.storages[0].id);
        OK(t_storage_add(&w, 1, &id, NULL));
        assert_int_not_equal(id, w.storages[0].id);
        n_ids++;
    }
    assert_int_equal(n_ids, 6);
}

static void test_two_admissions_at_once(void **state)
{
    Rozo__AdStorageAddReq req = ROZO__AD_STORAGE_ADD_REQ__INIT;
    struct answer_got got[4];
    uint8_t msg[64];
    Rozo__AdStatusResp *s;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        char *addr = w.storages[i / 2].addr;

        req.n_addresses = 1;
        req.addresses = &addr;
        world_send(&w, ROZO__OP__AD_STORAGE_ADD, RPC_ROLE_NODE, 0, msg,
                   rozo__ad_storage_add_req__pack(&req, msg), &got[i]);
    }
    env_virtual_advance_ms(&w.env, 100);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(got[i].came);
        OK(got[i].status);
        free(got[i].msg);
    }
    s = status();
    assert_int_equal(s->n_storages, 2);
    status_free(s);
}

static void test_exports_and_their_refusals(void **state)
{
    Rozo__AdExportCreateReq req = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__AdExportCreateResp *resp;
    char error[256];

    (void)state;
    IS(NOT_FOUND, t_export_create(&w, "main", 0, error));
    assert_string_equal(error, "there is no volume yet: add storages first");
    for (unsigned i = 0; i < 4; i++)
        OK(t_storage_add(&w, i, NULL, NULL));
    IS(INVALID, t_export_create(&w, "main", 1, error));
    assert_string_equal(error,
                        "layout 1 wants 6 storages at least (8 to be safe), volume "
                        "default has 4");
    IS(INVALID, t_export_create(&w, "main", 3, error));
    IS(INVALID, t_export_create(&w, "", 0, error));
    IS(INVALID, t_export_create(&w, "a/b", 0, error));
    IS(INVALID, t_export_create(&w, "..", 0, error));
    OK(t_export_create(&w, "main", 0, error));
    assert_string_equal(error, "");
    IS(EXISTS, t_export_create(&w, "main", 0, error));
    req.name = (char *)(uintptr_t) "x";
    req.codec = (char *)(uintptr_t) "rot13";
    IS(INVALID, world_call_node(&w, ROZO__OP__AD_EXPORT_CREATE, &req.base,
                                &rozo__ad_export_create_resp__descriptor, &resp));
    assert_string_equal(resp->error, "there is no codec rot13; the default is mojette");
    rozo__ad_export_create_resp__free_unpacked(resp, NULL);
    req.codec = (char *)(uintptr_t) "";
    req.block_bytes = 5000;
    IS(INVALID, world_call_node(&w, ROZO__OP__AD_EXPORT_CREATE, &req.base, NULL, NULL));
    req.block_bytes = 4096;
    OK(world_call_node(&w, ROZO__OP__AD_EXPORT_CREATE, &req.base, NULL, NULL));
    /* clients may not administer */
    IS(DENIED, world_call(&w, ROZO__OP__AD_EXPORT_CREATE, &req.base, NULL, NULL));
}

/* Returns the number of storages that the volume of the first export lacks, by its
 * status. */
static unsigned storages_missing(void)
{
    Rozo__AdStatusResp *s = status();
    unsigned n = s->exports[0]->storages_missing;

    status_free(s);
    return n;
}

/* Goal: an export whose volume is too small for its layout says so, when it is made and
 * later. */
static void test_a_volume_that_is_too_small(void **state)
{
    Rozo__AdExportCreateReq req = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__AdStorageLostReq lost = ROZO__AD_STORAGE_LOST_REQ__INIT;
    Rozo__AdExportCreateResp *resp;
    char error[256];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        OK(t_storage_add(&w, i, NULL, NULL));
    req.name = (char *)(uintptr_t) "small";
    OK(world_call_node(&w, ROZO__OP__AD_EXPORT_CREATE, &req.base,
                       &rozo__ad_export_create_resp__descriptor, &resp));
    assert_int_equal(resp->export->storages_missing, 1);
    rozo__ad_export_create_resp__free_unpacked(resp, NULL);
    assert_int_equal(storages_missing(), 1);
    OK(t_storage_add(&w, 3, NULL, NULL));
    assert_int_equal(storages_missing(), 0);
    OK(t_storage_add(&w, 4, NULL, NULL));
    assert_int_equal(storages_missing(), 0);
    for (lost.id = 1; lost.id <= 3; lost.id++) { /* lost: no longer counted */
        lost.lost = true;
        w.storages[lost.id - 1].down = true;
        env_virtual_advance_ms(&w.env, 5000);
        OK(world_call_node(&w, ROZO__OP__AD_STORAGE_LOST, &lost.base, NULL, NULL));
        assert_int_equal(storages_missing(), lost.id - 1);
    }
    IS(INVALID, t_export_create(&w, "main", 0, error));
    assert_string_equal(error,
                        "layout 0 wants 3 storages at least (4 to be safe), volume "
                        "default has 2");
}

static void test_exports_are_strangers(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create(&w, 1, "in main", S_IFREG | 0644, &s));
    OK(t_export_create(&w, "other", 0, NULL));
    {
        Rozo__MdOpenSessionReq req = t_open_session_req();
        Rozo__MdOpenSessionResp *resp;

        req.export_name = (char *)(uintptr_t) "other";
        req.client = (char *)(uintptr_t) "c";
        OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                      &rozo__md_open_session_resp__descriptor, &resp));
        assert_int_equal(resp->n_storages, 4);
        assert_int_equal(resp->root_ino, 1);
        w.session = resp->session;
        rozo__md_open_session_resp__free_unpacked(resp, NULL);
        req.export_name = (char *)(uintptr_t) "none";
        IS(NOT_FOUND, world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base, NULL, NULL));
    }
    IS(NOT_FOUND, t_lookup(&w, 1, "in main", NULL));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

/* ---- placement ---- */

static void test_distributions(void **state)
{
    unsigned n_first[5] = { 0 };
    struct seen s;
    char name[16];

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].free = i == 0 ? 10ull << 30 : 50ull << 30;
    env_virtual_advance_ms(&w.env, 1500);
    for (unsigned i = 0; i < 400; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create_open(&w, 1, name, true, &s));
        assert_int_equal(s.n_storages, 4);
        for (unsigned a = 0; a < 4; a++) {
            assert_in_range(s.storages[a], 1, 4);
            for (unsigned b = 0; b < a; b++)
                assert_int_not_equal(s.storages[a], s.storages[b]);
        }
        n_first[s.storages[0]]++;
    }
    /* 10 of 160 GiB: about 25 of 400 begin with storage 1 */
    assert_in_range(n_first[1], 5, 60);
    assert_in_range(n_first[2], 80, 180);
}

static void test_hosts_are_spread(void **state)
{
    struct seen s;
    char name[16];

    (void)state;
    /* 12 storages on 4 hosts, layout 0: the four of a file are on four hosts */
    for (unsigned i = 0; i < 12; i++)
        snprintf(w.storages[i].host, sizeof(w.storages[i].host), "h%u", i / 3);
    world_make_export(&w, 12, 0);
    env_virtual_advance_ms(&w.env, 1500);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create_open(&w, 1, name, true, &s));
        for (unsigned a = 0; a < 4; a++)
            for (unsigned b = 0; b < a; b++)
                assert_int_not_equal((s.storages[a] - 1) / 3, (s.storages[b] - 1) / 3);
    }
}

/* A storage that refuses connections counts as down at once, whatever the last poll
 * said. */
static void test_a_killed_storage_is_down_at_once(void **state)
{
    Rozo__AdStatusResp *s = status();

    (void)state;
    assert_true(s->storages[1]->up);
    status_free(s);
    w.storages[1].down = true;
    s = status();
    assert_true(!s->storages[1]->up && s->storages[1]->error[0] != '\0');
    assert_true(s->storages[0]->up && s->storages[0]->error[0] == '\0');
    status_free(s);
    w.storages[1].down = false;
    s = status();
    assert_true(s->storages[1]->up);
    status_free(s);
}

/* Makes some files and checks that each has all four candidates and ends with `last`, in
 * any order. */
static void files_end_with(const unsigned *last, unsigned n_last)
{
    static unsigned n_files;
    struct seen s;
    char name[16];

    env_virtual_advance_ms(&w.env, 5000);
    for (unsigned i = 0; i < 20; i++) {
        unsigned found = 0, all = 0;

        snprintf(name, sizeof(name), "f%u", n_files++);
        OK(t_create_open(&w, 1, name, true, &s));
        assert_int_equal(s.n_storages, 4);
        for (unsigned a = 0; a < 4; a++)
            all |= 1u << s.storages[a];
        assert_int_equal(all, 30);
        for (unsigned a = 4 - n_last; a < 4; a++) {
            for (unsigned b = 0; b < n_last; b++)
                found += s.storages[a] == last[b];
        }
        assert_int_equal(found, n_last);
    }
}

/* Goal: a new file has all candidates of its layout, even if storages are down or nearly
 * full. These come last, nearly full ones at the very end and never among the first n. */
static void test_a_new_file_has_all_candidates(void **state)
{
    struct seen s;

    (void)state;
    w.storages[1].hung = true;
    files_end_with((const unsigned[]){ 2 }, 1);
    w.storages[2].down = true;
    files_end_with((const unsigned[]){ 2, 3 }, 2);
    w.storages[0].down = true;
    files_end_with((const unsigned[]){ 1, 2, 3 }, 3);
    w.storages[0].down = w.storages[2].down = false;
    w.storages[0].free = 1000; /* storage 2 hangs, too */
    files_end_with((const unsigned[]){ 2, 1 }, 2);
    files_end_with((const unsigned[]){ 1 }, 1);
    w.storages[1].hung = false;
    files_end_with((const unsigned[]){ 1 }, 1);
    w.storages[1].free = 1000;
    env_virtual_advance_ms(&w.env, 5000);
    IS(NO_SPACE, t_create_open(&w, 1, "h", true, &s));
    OK(t_create(&w, 1, "no data, no space", S_IFDIR | 0755, NULL));
}

/* Goal: a lost storage is no candidate, so a volume may have too few for its layout. */
static void test_a_lost_storage_is_no_candidate(void **state)
{
    Rozo__AdStorageLostReq req = ROZO__AD_STORAGE_LOST_REQ__INIT;
    struct seen s;

    (void)state;
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 5000);
    req.id = 2;
    req.lost = true;
    OK(world_call_node(&w, ROZO__OP__AD_STORAGE_LOST, &req.base, NULL, NULL));
    OK(t_create_open(&w, 1, "f", true, &s));
    assert_int_equal(s.n_storages, 3);
    for (unsigned a = 0; a < 3; a++)
        assert_int_not_equal(s.storages[a], 2);
}

/* Goal: a file that is made with fewer candidates says that its writes need the layout's
 * quorum, if its storages know that; no client that acknowledges with less can write. */
static void test_writers_of_small_files_know_the_quorum(void **state)
{
    Rozo__MdOpenSessionReq open = t_open_session_req();
    struct seen all, few;

    (void)state;
    OK(t_create_open(&w, 1, "all", true, &all));
    assert_int_equal(all.n_storages, 4);
    assert_false(all.full_quorum);
    test_a_lost_storage_is_no_candidate(state);
    OK(t_lookup(&w, 1, "f", &few));
    OK(t_open(&w, few.ino, true, &few));
    assert_true(few.full_quorum);
    w.storages[3].old_quorum = true; /* heals by the smaller one */
    env_virtual_advance_ms(&w.env, 5000);
    OK(t_create_open(&w, 1, "g", true, &few));
    assert_int_equal(few.n_storages, 3);
    assert_false(few.full_quorum);
    open.export_name = (char *)(uintptr_t) "main";
    open.client = (char *)(uintptr_t) "old:1:/mnt";
    open.full_quorum = false;
    IS(NOT_SUPPORTED, world_call(&w, ROZO__OP__MD_OPEN_SESSION, &open.base, NULL, NULL));
    open.read_only = true;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &open.base, NULL, NULL));
}

/* Converts bytes of records, headers included, to user bytes in layout 0. */
static uint64_t user_bytes(uint64_t bytes)
{
    const struct codec *codec = codec_get(CODEC_MOJETTE, 0, 8192);
    uint64_t of_extent = 0;

    for (unsigned i = 0; i < 3; i++)
        of_extent += record_extent_bytes(codec, i);
    return (uint64_t)((double)bytes / (double)of_extent * EXTENT_BLOCKS * 8192);
}

static void test_statfs(void **state)
{
    Rozo__MdStatfsReq req = ROZO__MD_STATFS_REQ__INIT;
    Rozo__MdStatfsResp *resp;

    (void)state;
    env_virtual_advance_ms(&w.env, 1500);
    OK(t_create(&w, 1, "f", S_IFREG | 0644, NULL));
    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    assert_in_range(resp->total_bytes, user_bytes(400ull << 30) - (1 << 20),
                    user_bytes(400ull << 30));
    assert_in_range(resp->unused_bytes, user_bytes(240ull << 30) - (1 << 20),
                    user_bytes(240ull << 30));
    assert_in_range(
        resp->free_bytes, user_bytes(232ull << 30) - (1 << 20),
        user_bytes(232ull << 30)); /* 2 % of each are reserved for open files */
    assert_int_equal(resp->files, 2);
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
    for (unsigned i = 0; i < 4; i++) /* absurd sizes must not overflow */
        w.storages[i].total = w.storages[i].free = UINT64_MAX;
    env_virtual_advance_ms(&w.env, 1500);
    OK(world_call(&w, ROZO__OP__MD_STATFS, &req.base, &rozo__md_statfs_resp__descriptor,
                  &resp));
    assert_true(resp->total_bytes > 4ull << 50 && resp->total_bytes < 4ull << 51);
    assert_true(resp->unused_bytes == resp->total_bytes);
    assert_true(resp->free_bytes <= resp->total_bytes &&
                resp->free_bytes > resp->total_bytes / 100 * 98);
    rozo__md_statfs_resp__free_unpacked(resp, NULL);
}

static uint64_t map_version(unsigned *n_storages)
{
    static uint64_t have;
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;
    Rozo__MdKeepAliveResp *resp;

    req.map_version = have;
    OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base,
                  &rozo__md_keep_alive_resp__descriptor, &resp));
    have = resp->map_version;
    *n_storages = (unsigned)resp->n_storages;
    rozo__md_keep_alive_resp__free_unpacked(resp, NULL);
    return have;
}

static void test_the_map_reaches_clients(void **state)
{
    uint64_t version, newer;
    unsigned n;

    (void)state;
    env_virtual_advance_ms(&w.env, 1500);
    version = map_version(&n);
    assert_int_equal(n, 4);
    assert_true(map_version(&n) == version && n == 0);
    w.storages[0].down = true;
    env_virtual_advance_ms(&w.env, 1500);
    newer = map_version(&n);
    assert_true(newer > version && n == 4);
    OK(t_storage_add(&w, 4, NULL, NULL));
    map_version(&n);
    assert_int_equal(n, 5);
    version = map_version(&n);
    world_kill(&w);
    world_reopen_session(&w);
    assert_true(map_version(&n) > version); /* newer also after a restart */
}

/* ---- the map reaches storages ---- */

static void test_the_map_reaches_storages(void **state)
{
    unsigned n;

    (void)state;
    env_virtual_advance_ms(&w.env, 1500);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(w.storages[i].n_map_storages, 4);
        assert_int_equal(w.storages[i].n_map_up, 4);
    }
    n = w.storages[0].n_maps;
    env_virtual_advance_ms(&w.env, 10000);
    assert_int_equal(w.storages[0].n_maps, n); /* no change, no map */
    w.storages[3].hung = true;
    env_virtual_advance_ms(&w.env, 6000);
    assert_int_equal(w.storages[0].n_map_up, 3);
    assert_true(w.storages[0].map_version > w.storages[3].map_version);
    w.storages[3].hung = false;
    env_virtual_advance_ms(&w.env, 4000);
    assert_int_equal(w.storages[3].n_map_up, 4);
    assert_true(w.storages[3].map_version == w.storages[0].map_version);
    /* sent again after a restart of exportd, with a newer version */
    n = w.storages[0].n_maps;
    world_kill(&w);
    env_virtual_advance_ms(&w.env, 2500);
    assert_true(w.storages[0].n_maps > n);
    assert_int_equal(w.storages[0].n_map_up, 4);
}

static unsigned bye(void)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;

    return world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &req.base, NULL, NULL);
}

/* Goal: a storage that was restarted between two polls gets its map; one of an older
 * build is not disturbed. */
static void test_a_storage_that_forgot_its_map(void **state)
{
    unsigned n;

    (void)state;
    OK(bye()); /* without this the session would end, and storages would get a new map */
    w.storages[0].says_map = true;
    w.storages[1].old = true;
    env_virtual_advance_ms(&w.env, 3500);
    n = w.storages[0].n_maps;
    assert_true(n > 0);
    w.storages[0].map_version = 0; /* as after a restart of the storage */
    env_virtual_advance_ms(&w.env, 2500);
    assert_int_equal(w.storages[0].n_maps, n + 1);
    w.storages[0].map_version += 1ull
                                 /* a later version: exportd was restored from a backup */
                                 << 40;
    env_virtual_advance_ms(&w.env, 2500);
    assert_true(w.storages[2].map_version > 1ull << 40);
    assert_true(w.storages[2].map_version == w.storages[0].map_version);
    w.storages[0].map_version = UINT64_MAX; /* absurd version */
    env_virtual_advance_ms(&w.env, 2500);
    assert_true(w.storages[2].map_version < 1ull << 42);
    env_virtual_advance_ms(&w.env, 30000);
    n = w.storages[1].n_maps;
    env_virtual_advance_ms(&w.env, 20000);
    assert_int_equal(w.storages[1].n_maps, n); /* no error, no flood */
    env_virtual_advance_ms(&w.env, 40000);
    /* repeated to a storage that reports no version */
    assert_in_range(w.storages[1].n_maps, n + 1, n + 2);
}

static void test_a_storage_with_another_disk_is_not_up(void **state)
{
    Rozo__AdStatusResp *s;

    (void)state;
    memset(w.storages[0].incarnation, 0x77, 16);
    w.storages[1].id = 9;
    memset(w.storages[2].cluster_id, 1, 16);
    w.storages[3].id = 0;
    env_virtual_advance_ms(&w.env, 1500);
    s = status();
    for (unsigned i = 0; i < 4; i++) {
        assert_false(s->storages[i]->up);
        assert_true(strlen(s->storages[i]->error) > 10);
    }
    status_free(s);
    OK(t_storage_add(&w, 3, NULL, NULL)); /* the storage had forgotten: admitted again */
    assert_int_equal(w.storages[3].id, 4);
}

/* exportd was restored from a backup that lacks a storage. It is added again, and would
 * refuse the start of the backup. */
static void test_storages_newer_than_the_metadata(void **state)
{
    uint32_t id;

    (void)state;
    w.storages[4].id = 7;
    memcpy(w.storages[4].cluster_id, w.storages[0].cluster_id, 16);
    w.storages[4].map_version = UINT64_C(9) << 32 | 5;
    w.storages[4].says_map = true;
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].down = true;
    OK(t_storage_add(&w, 4, &id, NULL));
    assert_int_equal(id, 7);
    env_virtual_advance_ms(&w.env, 2500);
    assert_true(w.storages[4].map_version >> 32 == 10);
    assert_int_equal(w.storages[4].n_map_storages, 5);
}

static void test_a_storage_that_moved(void **state)
{
    Rozo__AdStatusResp *s;
    uint32_t id;

    (void)state;
    snprintf(w.storages[2].addr, sizeof(w.storages[2].addr), "elsewhere:99");
    OK(t_storage_add(&w, 2, &id, NULL));
    assert_int_equal(id, 3);
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    s = status();
    assert_true(s->storages[2]->up);
    assert_string_equal(s->storages[2]->addresses[0], "elsewhere:99");
    assert_false(s->storages[1]->up);
    assert_string_equal(s->storages[1]->error, "Connection refused");
    status_free(s);
}

/* ---- sessions, orphans ---- */

enum { GRACE_MS = 22000 };

static void keep_alive_for(unsigned ms)
{
    for (unsigned i = 0; i < ms; i += 1000) {
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 1000);
    }
}

static void test_requests_need_a_session(void **state)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    uint64_t session = w.session;

    (void)state;
    w.session = 0;
    IS(NO_SESSION, t_getattr(&w, 1, NULL));
    w.session = session + 1;
    IS(NO_SESSION, t_getattr(&w, 1, NULL));
    w.session = session;
    OK(t_getattr(&w, 1, NULL));
    env_virtual_advance_ms(&w.env, 22000); /* longer than the lease */
    IS(NO_SESSION, t_getattr(&w, 1, NULL));
    world_reopen_session(&w);
    OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &req.base, NULL, NULL));
    IS(NO_SESSION, t_getattr(&w, 1, NULL));
}

static void test_read_only_sessions(void **state)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    struct seen f;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &f));
    req.export_name = (char *)(uintptr_t) "main";
    req.read_only = true;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    w.session = resp->session;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    IS(READ_ONLY, t_create(&w, 1, "g", S_IFREG | 0644, NULL));
    IS(READ_ONLY, t_unlink(&w, 1, "f", NULL));
    IS(READ_ONLY, t_truncate(&w, f.ino, 0, NULL));
    IS(READ_ONLY, t_open(&w, f.ino, true, NULL));
    IS(READ_ONLY, t_setxattr(&w, f.ino, "user.x", "", 0, 0));
    OK(t_open(&w, f.ino, false, NULL));
    OK(t_lookup(&w, 1, "f", NULL));
}

static void test_an_open_file_outlives_its_name(void **state)
{
    struct seen s;

    (void)state;
    keep_alive_for(21000); /* past the grace */
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_open(&w, s.ino, false, NULL));
    OK(t_wrote(&w, s.ino, 5, NULL));
    OK(t_unlink(&w, 1, "f", NULL));
    OK(t_getattr(&w, s.ino, &s));
    assert_int_equal(s.nlink, 0);
    OK(t_wrote(&w, s.ino, 50, NULL));
    IS(NOT_FOUND, t_link(&w, s.ino, 1, "again"));
    OK(t_close(&w, s.ino, 1));
    OK(t_getattr(&w, s.ino, NULL));
    OK(t_close(&w, s.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
    OK(t_close(&w, s.ino, 1)); /* repeated: no effect */
    keep_alive_for(3000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(w.storages[i].n_removed == 1 && w.storages[i].removed[0] == s.ino);
}

static void test_a_dead_clients_orphans_go(void **state)
{
    struct seen s;

    (void)state;
    keep_alive_for(21000);
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_wrote(&w, s.ino, 5, NULL));
    OK(t_unlink(&w, 1, "f", NULL));
    env_virtual_advance_ms(&w.env, 25000);
    world_reopen_session(&w);
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
    assert_int_equal(w.storages[0].n_removed, 1);
}

static void test_orphans_over_a_restart(void **state)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    struct seen mine, other;
    uint64_t open[2];

    (void)state;
    OK(t_create_open(&w, 1, "mine", true, &mine));
    OK(t_create_open(&w, 1, "other", true, &other));
    OK(t_wrote(&w, mine.ino, 5, NULL));
    OK(t_unlink(&w, 1, "mine", NULL));
    OK(t_unlink(&w, 1, "other", NULL));
    world_absent_session(&w);
    world_kill(&w);
    IS(NO_SESSION, t_getattr(&w, mine.ino, NULL));
    open[0] = mine.ino;
    open[1] = 777777; /* no such inode: no effect */
    req.export_name = (char *)(uintptr_t) "main";
    req.session = w.session;
    req.n_open_inodes = req.n_shared_tokens = 2;
    req.open_inodes = req.shared_tokens = open;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base, NULL, NULL));
    OK(t_getattr(&w, mine.ino, NULL));
    keep_alive_for(5000);
    IS(BUSY, t_getattr(&w, other.ino, NULL)); /* a client may still come and claim it */
    keep_alive_for(18000);
    OK(t_getattr(&w, mine.ino, NULL));
    IS(STALE_HANDLE, t_getattr(&w, other.ino, NULL));
    OK(t_close(&w, mine.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, mine.ino, NULL));
    keep_alive_for(3000);
    assert_int_equal(w.storages[0].n_removed, 2); /* "other" may have data */
}

/* Goal: a file that a client holds open outlives an unlink by another client that came
 * back from the restart earlier. */
static void test_an_unlink_before_all_are_back(void **state)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    struct seen held, loose, dir;
    uint64_t holder = w.session, other;

    (void)state;
    OK(t_create_open(&w, 1, "held", true, &held));
    OK(t_wrote(&w, held.ino, 5, NULL));
    OK(t_create(&w, 1, "loose", S_IFREG | 0644, &loose));
    OK(t_create(&w, 1, "dir", S_IFDIR | 0755, &dir));
    OK(t_create(&w, 1, "new", S_IFREG | 0644, NULL));
    w.session = 0;
    world_reopen_session(&w);
    other = w.session;
    world_kill(&w);
    world_reopen_session(&w);
    IS(BUSY, t_unlink(&w, 1, "held", NULL));
    IS(BUSY, t_rename(&w, 1, "new", 1, "loose", 0));
    IS(BUSY, t_rmdir(&w, 1, "dir"));
    keep_alive_for(5000);
    req.export_name = (char *)(uintptr_t) "main";
    req.session = holder;
    req.n_open_inodes = 1;
    req.open_inodes = &held.ino;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base, NULL, NULL));
    OK(t_unlink(&w, 1, "held", NULL));
    OK(t_rename(&w, 1, "new", 1, "loose", 0));
    OK(t_rmdir(&w, 1, "dir"));
    for (unsigned i = 0; i < 25; i++) {
        w.session = other;
        keep_alive_for(1000);
        w.session = holder;
        OK(t_wrote(&w, held.ino, 6 + i, NULL));
    }
    IS(STALE_HANDLE, t_getattr(&w, loose.ino, NULL));
    IS(STALE_HANDLE, t_getattr(&w, dir.ino, NULL));
    OK(t_close(&w, held.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, held.ino, NULL));
}

/* Opens another session, beside that of the world. */
static uint64_t another_session(void)
{
    uint64_t mine = w.session, other;

    w.session = 0;
    world_reopen_session(&w);
    other = w.session;
    w.session = mine;
    return other;
}

static void keep_both_alive_for(uint64_t other, unsigned ms)
{
    uint64_t mine = w.session;

    for (unsigned i = 0; i < ms; i += 1000) {
        w.session = other;
        OK(t_getattr(&w, 1, NULL));
        w.session = mine;
        keep_alive_for(1000);
    }
}

/* Goal: a client that looked up a name can open the file, though another client has
 * removed it since. */
static void test_removed_inode_stays_while_another_may_have_found_it(void **state)
{
    uint64_t mine = w.session, other = another_session();
    struct seen opened, loose, dir, old, s;

    (void)state;
    keep_both_alive_for(other, 21000);
    OK(t_create(&w, 1, "opened", S_IFREG | 0644, &opened));
    OK(t_create(&w, 1, "loose", S_IFREG | 0644, &loose));
    OK(t_create(&w, 1, "dir", S_IFDIR | 0755, &dir));
    OK(t_create(&w, 1, "old", S_IFREG | 0644, &old));
    OK(t_create(&w, 1, "new", S_IFREG | 0644, NULL));
    OK(t_unlink(&w, 1, "opened", NULL));
    OK(t_unlink(&w, 1, "loose", NULL));
    OK(t_rmdir(&w, 1, "dir"));
    OK(t_rename(&w, 1, "new", 1, "old", 0));
    w.session = other;
    IS(NOT_FOUND, t_lookup(&w, 1, "opened", NULL));
    OK(t_open(&w, opened.ino, true, NULL));
    OK(t_getattr(&w, opened.ino, &s));
    assert_int_equal(s.nlink, 0);
    IS(NOT_FOUND, t_link(&w, loose.ino, 1, "again"));
    OK(t_getattr(&w, old.ino, &s));
    OK(t_getattr(&w, dir.ino, &s));
    assert_int_equal(s.nlink, 0);
    IS(NOT_FOUND, t_lookup(&w, dir.ino, "x", NULL));
    IS(NOT_FOUND, t_create(&w, dir.ino, "x", S_IFREG | 0644, NULL));
    w.session = mine;
    keep_both_alive_for(other, 4000);
    IS(STALE_HANDLE, t_getattr(&w, loose.ino, NULL));
    IS(STALE_HANDLE, t_getattr(&w, old.ino, NULL));
    IS(STALE_HANDLE, t_getattr(&w, dir.ino, NULL));
    w.session = other;
    OK(t_wrote(&w, opened.ino, 5, NULL));
    OK(t_close(&w, opened.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, opened.ino, NULL));
    w.session = mine;
    keep_both_alive_for(other, 3000);
    assert_int_equal(w.storages[0].n_removed, 1);
}

/* A file that is closed for the last time just after its removal stays for a moment,
 * too. */
static void test_inode_stays_for_a_moment_after_its_last_close(void **state)
{
    uint64_t other = another_session();
    struct seen s;

    (void)state;
    keep_both_alive_for(other, 21000);
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_unlink(&w, 1, "f", NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_getattr(&w, s.ino, NULL));
    keep_both_alive_for(other, 4000);
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

static void test_no_unlink_is_delayed_when_space_is_short(void **state)
{
    uint64_t other = another_session();
    struct seen s;

    (void)state;
    keep_both_alive_for(other, 21000);
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
    w.storages[2].free = 0;
    keep_both_alive_for(other, 3000);
    OK(t_unlink(&w, 1, "f", NULL));
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

static void test_delayed_unlink_over_a_restart(void **state)
{
    uint64_t mine = w.session, other = another_session();
    struct seen s;

    (void)state;
    keep_both_alive_for(other, 21000);
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
    OK(t_unlink(&w, 1, "f", NULL));
    world_kill(&w);
    w.session = other;
    world_reopen_session(&w);
    w.session = mine;
    world_reopen_session(&w);
    keep_both_alive_for(other, 2000);
    IS(STALE_HANDLE, t_getattr(&w, s.ino, NULL));
}

/* Goal: I10 counts only time in which clients could reach exportd. Method: exportd is
 * suspended for a minute, as if stopped or waiting for its disk; then the clients go
 * on. */
static void test_sleep_of_our_own_ends_no_session(void **state)
{
    struct seen s;

    (void)state;
    keep_alive_for(21000);
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_unlink(&w, 1, "f", NULL));
    w.env.now_ns += 60000000000ull;
    env_virtual_advance_ms(&w.env, 10000);
    OK(t_getattr(&w, s.ino, NULL));
    env_virtual_advance_ms(&w.env, 22000); /* time of the clients counts */
    IS(NO_SESSION, t_getattr(&w, s.ino, NULL));
    world_absent_session(&w);
    world_kill(&w);
    w.env.now_ns += 60000000000ull; /* in the grace, too */
    world_reopen_session(&w);
    IS(BUSY, t_create(&w, 1, "g", S_IFREG | 0644, &s));
    env_virtual_advance_ms(&w.env, 2000);
    IS(BUSY, t_create(&w, 1, "g", S_IFREG | 0644, &s));
    keep_alive_for(20000);
    OK(t_create(&w, 1, "g", S_IFREG | 0644, &s));
}

/* ---- files of a dead client ---- */

static unsigned n_checked(uint64_t ino)
{
    unsigned n = 0;

    for (unsigned i = 0; i < 4; i++)
        for (unsigned c = 0; c < w.storages[i].n_checked; c++)
            n += w.storages[i].checked[c] == ino;
    return n;
}

/* Goal: one storage checks, once, each file that a dead client held open for writing, and
 * no other file. */
static void test_a_dead_clients_files_are_checked(void **state)
{
    struct seen writes, reads, closed, cut, done, fresh;

    (void)state;
    keep_alive_for(2000);
    OK(t_create_open(&w, 1, "writes", true, &writes));
    OK(t_wrote(&w, writes.ino, 5, NULL));
    OK(t_create_open(&w, 1, "reads", true, &reads));
    OK(t_wrote(&w, reads.ino, 5, NULL));
    OK(t_close(&w, reads.ino, 1));
    OK(t_open(&w, reads.ino, false, NULL));
    OK(t_create_open(&w, 1, "closed", true, &closed));
    OK(t_wrote(&w, closed.ino, 5, NULL));
    OK(t_close(&w, closed.ino, 1));
    OK(t_create_open(&w, 1, "cut", true, &cut));
    OK(t_wrote(&w, cut.ino, 50000, NULL));
    OK(t_close(&w, cut.ino, 1));
    OK(t_truncate(&w, cut.ino, 5, NULL)); /* truncate by path, never finished */
    OK(t_create_open(&w, 1, "done", true, &done));
    OK(t_wrote(&w, done.ino, 50000, NULL));
    OK(t_close(&w, done.ino, 1));
    OK(t_truncate(&w, done.ino, 5, &done));
    assert_true(done.truncate_pending);
    OK(t_truncated(&w, done.ino, done.truncate_version, NULL));
    OK(t_create_open(&w, 1, "fresh", true, &fresh));     /* may have been written */
    w.storages[writes.storages[0] - 1].no_checks = true; /* the first candidate refuses */
    env_virtual_advance_ms(&w.env, 40000);
    assert_int_equal(n_checked(writes.ino), 1);
    assert_int_equal(n_checked(cut.ino), 1);
    assert_int_equal(n_checked(fresh.ino), 1);
    assert_int_equal(n_checked(reads.ino) + n_checked(closed.ino) + n_checked(done.ino),
                     0);
}

static void test_checks_wait_for_a_storage(void **state)
{
    struct seen a, b, gone;

    (void)state;
    keep_alive_for(21000); /* past the grace */
    OK(t_create_open(&w, 1, "a", true, &a));
    OK(t_create_open(&w, 1, "gone", true, &gone));
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].no_checks = true;
    env_virtual_advance_ms(&w.env, 60000);
    assert_int_equal(n_checked(a.ino), 0);
    w.session = 0;
    world_reopen_session(&w);
    OK(t_unlink(&w, 1, "gone", NULL));
    w.storages[2].no_checks = false;
    keep_alive_for(10000);
    assert_int_equal(n_checked(a.ino), 1);
    assert_int_equal(n_checked(gone.ino), 0);
    /* a client that closes its session has stored its writes */
    OK(t_create_open(&w, 1, "b", true, &b));
    OK(bye());
    env_virtual_advance_ms(&w.env, 30000);
    assert_int_equal(n_checked(b.ino), 0);
}

/* ---- removal from the storages ---- */

static uint64_t file_with_data(const char *name)
{
    struct seen s;

    OK(t_create_open(&w, 1, name, true, &s));
    OK(t_wrote(&w, s.ino, 5, NULL));
    OK(t_close(&w, s.ino, 1));
    return s.ino;
}

static void test_files_without_data_skip_the_storages(void **state)
{
    struct seen s;
    char name[16];

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create_open(&w, 1, name, true, &s));
        OK(t_close(&w, s.ino, 1));
        OK(t_unlink(&w, 1, name, NULL));
    }
    /* a file whose client died may have unreported data */
    OK(t_create_open(&w, 1, "f", true, &s));
    assert_int_equal(t_trash(&w), 0);
    env_virtual_advance_ms(&w.env, 25000);
    world_reopen_session(&w);
    OK(t_unlink(&w, 1, "f", NULL));
    keep_alive_for(3000);
    for (unsigned i = 0; i < 4; i++)
        assert_true(w.storages[i].n_removed == 1 && w.storages[i].removed[0] == s.ino);
    assert_int_equal(t_trash(&w), 0);
}

static void are_all_told_of(uint64_t ino)
{
    keep_alive_for(3000);
    for (unsigned i = 0; i < 4; i++) {
        const struct fake_storage *s = &w.storages[i];

        assert_true(s->n_removed > 0 && s->removed[s->n_removed - 1] == ino);
    }
    assert_int_equal(t_trash(&w), 0);
}

/* A truncate leaves marks at storages, so a file that was only cut must be removed from
 * them. */
static void test_a_file_that_was_only_cut_is_removed_from_storages(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_truncate(&w, s.ino, 1234567, &s));
    OK(t_truncate(&w, s.ino, 567, &s));
    assert_true(s.truncate_pending);
    OK(t_truncated(&w, s.ino, s.truncate_version, NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "f", NULL));
    are_all_told_of(s.ino);
    /* whether the truncate was finished makes no difference */
    OK(t_create_open(&w, 1, "g", true, &s));
    OK(t_truncate(&w, s.ino, 1234567, &s));
    OK(t_truncate(&w, s.ino, 567, &s));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "g", NULL));
    are_all_told_of(s.ino);
}

/* Storages may have files of an inode without data: after a reservation, or a write that
 * failed. */
static void test_file_without_data_is_removed_from_storages(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &s));
    OK(t_close_stored(&w, s.ino, 1));
    OK(t_open(&w, s.ino, false, &s)); /* a later reader changes nothing */
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, "f", NULL));
    are_all_told_of(s.ino);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* One request removes many files, of all loops of the storage; one failing removal delays
 * no other. */
static void test_removals_go_together(void **state)
{
    uint64_t inos[200];
    char name[16];

    (void)state;
    env_virtual_advance_ms(&w.env, 1500);
    for (unsigned i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        inos[i] = file_with_data(name);
    }
    w.storages[1].n_loops = 3;
    w.storages[2].removes_not = inos[7];
    for (unsigned i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_unlink(&w, 1, name, NULL));
    }
    keep_alive_for(4000);
    assert_int_equal(w.storages[0].n_removed, 200);
    assert_true(w.storages[0].n_remove_requests < 20);
    assert_int_equal(w.storages[1].n_removed, 200);
    assert_true(w.storages[1].n_remove_requests < 60);
    assert_int_equal(w.storages[2].n_removed, 199);
    assert_int_equal(t_trash(&w), 1);
    w.storages[2].removes_not = 0;
    keep_alive_for(20000);
    assert_int_equal(w.storages[2].n_removed, 200);
    assert_true(w.storages[2].removed[199] == inos[7]);
    assert_int_equal(t_trash(&w), 0);
    for (unsigned i = 0; i < 4; i++) {
        qsort(w.storages[i].removed, 200, sizeof(uint64_t), by_number);
        assert_memory_equal(w.storages[i].removed, inos, sizeof(inos));
    }
}

static void test_deletions_reach_every_storage_in_the_end(void **state)
{
    uint64_t inos[600];
    char name[16];

    (void)state;
    env_virtual_advance_ms(&w.env, 1500);
    for (unsigned i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        inos[i] = file_with_data(name);
    }
    w.storages[1].hung = true;
    w.storages[2].no_removes = true;
    for (unsigned i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_unlink(&w, 1, name, NULL));
    }
    keep_alive_for(20000);
    assert_int_equal(w.storages[0].n_removed, 600);
    assert_int_equal(w.storages[3].n_removed, 600);
    assert_int_equal(w.storages[1].n_removed, 0);
    assert_int_equal(t_trash(&w), 1200);
    world_kill(&w);
    world_reopen_session(&w);
    assert_int_equal(t_trash(&w), 1200);
    w.storages[1].hung = false;
    keep_alive_for(20000);
    assert_int_equal(w.storages[1].n_removed, 600);
    assert_int_equal(t_trash(&w), 600);
    w.storages[2].no_removes = false;
    keep_alive_for(20000);
    assert_int_equal(w.storages[2].n_removed, 600);
    assert_int_equal(t_trash(&w), 0);
    for (unsigned i = 0; i < 4; i++) {
        qsort(w.storages[i].removed, 600, sizeof(uint64_t), by_number);
        assert_memory_equal(w.storages[i].removed, inos, sizeof(inos));
    }
}

/* Goal: a number that a client or a storage may know is never given to another file.
 * Method: create, cut the power so that it is forgotten, create again, also some starts
 * later. */
static void test_inode_numbers_are_not_used_again_after_a_power_cut(void **state)
{
    uint64_t given[12];

    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        struct seen s;

        OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
        given[i] = s.ino;
        for (unsigned j = 0; j < i; j++)
            assert_true(given[j] != s.ino);
        for (unsigned n = 0; n <= i % 3; n++) {
            world_power_cut(&w, kv_memory_n_unsynced(w.mem));
            world_reopen_session(&w);
        }
        IS(NOT_FOUND, t_lookup(&w, 1, "f", NULL));
    }
}

/* Goal: an existing file never loses its projections. Method: unlink, let time pass, cut
 * the power so that everything unsynced is lost; if the name is back, no storage has been
 * asked. */
static void test_only_durable_removals_are_sent_to_storages(void **state)
{
    (void)state;
    for (unsigned ms = 0; ms < 60; ms += 3) {
        uint64_t ino = file_with_data("f");
        Rozo__MdSyncReq req = ROZO__MD_SYNC_REQ__INIT;
        unsigned n = w.storages[0].n_removed;

        OK(world_call(&w, ROZO__OP__MD_SYNC, &req.base, NULL, NULL));
        env_virtual_advance_ms(&w.env, 950);
        OK(t_unlink(&w, 1, "f", NULL));
        env_virtual_advance_ms(&w.env, ms);
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        world_reopen_session(&w);
        if (t_lookup(&w, 1, "f", NULL) == ROZO__STATUS__OK) {
            assert_int_equal(w.storages[0].n_removed, n);
            OK(t_unlink(&w, 1, "f", NULL));
        }
        keep_alive_for(23000); /* the grace, in which a client might still claim it */
        assert_true(w.storages[0].n_removed > n);
        assert_true(w.storages[0].removed[w.storages[0].n_removed - 1] == ino);
    }
}

/* ---- the store is full or broken ---- */

static void test_a_nearly_full_disk_refuses_growth(void **state)
{
    struct seen s;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &s));
    kv_memory_set_free(w.mem, 1000);
    env_virtual_advance_ms(&w.env, 1100);
    IS(NO_SPACE, t_create(&w, 1, "g", S_IFREG | 0644, NULL));
    IS(NO_SPACE, t_link(&w, s.ino, 1, "g"));
    IS(NO_SPACE, t_rename(&w, 1, "f", 1, "g", RENAME_WHITEOUT));
    IS(NO_SPACE, t_setxattr(&w, s.ino, "user.x", "", 0, 0));
    OK(t_truncate(&w, s.ino, 5, NULL));
    OK(t_unlink(&w, 1, "f", NULL));
    kv_memory_set_free(w.mem, UINT64_MAX);
    env_virtual_advance_ms(&w.env, 1100);
    OK(t_create(&w, 1, "g", S_IFREG | 0644, NULL));
}

/* Goal: on an export made with sync, no acknowledged change is lost with the power. */
static void test_a_sync_export(void **state)
{
    Rozo__AdExportCreateReq create = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__MdOpenSessionReq open = t_open_session_req();
    Rozo__AdStatusResp *s;
    struct seen d;

    (void)state;
    create.name = open.export_name = (char *)(uintptr_t) "careful";
    create.sync = true;
    OK(world_call_node(&w, ROZO__OP__AD_EXPORT_CREATE, &create.base, NULL, NULL));
    for (unsigned i = 0; i < 3; i++) {
        Rozo__MdOpenSessionResp *resp;

        OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &open.base,
                      &rozo__md_open_session_resp__descriptor, &resp));
        w.session = resp->session;
        rozo__md_open_session_resp__free_unpacked(resp, NULL);
        keep_alive_for(GRACE_MS);
        OK(t_create(&w, 1, "d", S_IFDIR | 0755, &d));
        OK(t_setxattr(&w, d.ino, "user.a", "x", 1, 0));
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &open.base,
                      &rozo__md_open_session_resp__descriptor, &resp));
        w.session = resp->session;
        rozo__md_open_session_resp__free_unpacked(resp, NULL);
        keep_alive_for(GRACE_MS);
        OK(t_lookup(&w, 1, "d", NULL));
        OK(t_removexattr(&w, d.ino, "user.a"));
        OK(t_rmdir(&w, 1, "d"));
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    }
    s = status();
    assert_int_equal(s->n_exports, 2);
    assert_true(!s->exports[0]->sync && s->exports[1]->sync);
    status_free(s);
}

static void test_a_store_that_cannot_write(void **state)
{
    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, NULL));
    kv_memory_kill(w.mem);
    IS(IO_ERROR, t_create(&w, 1, "g", S_IFREG | 0644, NULL));
    IS(IO_ERROR, t_unlink(&w, 1, "f", NULL));
    OK(t_lookup(&w, 1, "f", NULL));            /* existing names are served */
    IS(NOT_FOUND, t_lookup(&w, 1, "g", NULL)); /* no other name is */
    world_kill(&w);
    world_reopen_session(&w);
    OK(t_create(&w, 1, "g", S_IFREG | 0644, NULL));
}

#define T(name, setup) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_the_store_of_another_cluster, setup),
        T(test_a_storage_joins, setup),
        T(test_requests_are_counted, setup_export),
        T(test_an_admission_cut_short, setup),
        T(test_two_admissions_at_once, setup),
        T(test_exports_and_their_refusals, setup),
        T(test_a_volume_that_is_too_small, setup),
        T(test_exports_are_strangers, setup_export),
        T(test_distributions, setup_export),
        T(test_hosts_are_spread, setup),
        T(test_a_new_file_has_all_candidates, setup_export),
        T(test_a_lost_storage_is_no_candidate, setup_export),
        T(test_writers_of_small_files_know_the_quorum, setup_export),
        T(test_a_killed_storage_is_down_at_once, setup_export),
        T(test_statfs, setup_export),
        T(test_the_map_reaches_clients, setup_export),
        T(test_the_map_reaches_storages, setup_export),
        T(test_a_storage_that_forgot_its_map, setup_export),
        T(test_a_storage_with_another_disk_is_not_up, setup_export),
        T(test_storages_newer_than_the_metadata, setup_export),
        T(test_a_storage_that_moved, setup_export),
        T(test_requests_need_a_session, setup_export),
        T(test_read_only_sessions, setup_export),
        T(test_an_open_file_outlives_its_name, setup_export),
        T(test_a_dead_clients_orphans_go, setup_export),
        T(test_orphans_over_a_restart, setup_export),
        T(test_removed_inode_stays_while_another_may_have_found_it, setup_export),
        T(test_inode_stays_for_a_moment_after_its_last_close, setup_export),
        T(test_no_unlink_is_delayed_when_space_is_short, setup_export),
        T(test_delayed_unlink_over_a_restart, setup_export),
        T(test_an_unlink_before_all_are_back, setup_export),
        T(test_sleep_of_our_own_ends_no_session, setup_export),
        T(test_a_dead_clients_files_are_checked, setup_export),
        T(test_checks_wait_for_a_storage, setup_export),
        T(test_files_without_data_skip_the_storages, setup_export),
        T(test_a_file_that_was_only_cut_is_removed_from_storages, setup_export),
        T(test_file_without_data_is_removed_from_storages, setup_export),
        T(test_removals_go_together, setup_export),
        T(test_deletions_reach_every_storage_in_the_end, setup_export),
        T(test_inode_numbers_are_not_used_again_after_a_power_cut, setup_export),
        T(test_only_durable_removals_are_sent_to_storages, setup_export),
        T(test_a_nearly_full_disk_refuses_growth, setup_export),
        T(test_a_sync_export, setup_export),
        T(test_a_store_that_cannot_write, setup_export),
    };

    return cmocka_run_group_tests_name("exportd.cluster", tests, NULL, NULL);
}
