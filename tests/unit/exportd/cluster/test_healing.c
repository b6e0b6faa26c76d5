/*
 * test_healing.c - exportd's part in healing.
 *
 * A storage takes the place of a lost one, a storage is declared lost, and rozo fsck gets
 * the inodes that own data, with their paths.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/wire/record.h"
#include "tests/unit/exportd/world.h"

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 23);
    world_start(&w);
    world_make_export(&w, 4, 0);
    env_virtual_advance_ms(&w.env, 1500);
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

/* Replaces storage id by storage i; i < 0: at its own addresses. */
static unsigned replace(uint32_t id, int i, char error[256])
{
    Rozo__AdStorageReplaceReq req = ROZO__AD_STORAGE_REPLACE_REQ__INIT;
    Rozo__AdStorageReplaceResp *resp;
    char *addr = i < 0 ? NULL : w.storages[i].addr;
    unsigned rc;

    req.id = id;
    req.n_addresses = i >= 0;
    req.addresses = &addr;
    rc = world_call_node(&w, ROZO__OP__AD_STORAGE_REPLACE, &req.base,
                         &rozo__ad_storage_replace_resp__descriptor, &resp);
    if (rc == ROZO__STATUS__OK)
        assert_int_equal(resp->storage->id, id);
    if (error != NULL)
        snprintf(error, 256, "%s", resp == NULL ? "" : resp->error);
    rozo__ad_storage_replace_resp__free_unpacked(resp, NULL);
    return rc;
}

static unsigned lost(uint32_t id, bool is, char error[256])
{
    Rozo__AdStorageLostReq req = ROZO__AD_STORAGE_LOST_REQ__INIT;
    Rozo__AdStorageLostResp *resp;
    unsigned rc;

    req.id = id;
    req.lost = is;
    rc = world_call_node(&w, ROZO__OP__AD_STORAGE_LOST, &req.base,
                         &rozo__ad_storage_lost_resp__descriptor, &resp);
    if (error != NULL)
        snprintf(error, 256, "%s", resp == NULL ? "" : resp->error);
    rozo__ad_storage_lost_resp__free_unpacked(resp, NULL);
    return rc;
}

/* ---- replacing a storage ---- */

static void test_a_storage_takes_the_place_of_a_lost_one(void **state)
{
    Rozo__AdStatusResp *s;
    unsigned n_maps = w.storages[0].n_maps;
    char error[256];

    (void)state;
    w.storages[1].down = true; /* id 2 */
    env_virtual_advance_ms(&w.env, 2500);
    OK(replace(2, 7, error));
    assert_string_equal(error, "");
    assert_int_equal(w.storages[7].id, 2);
    assert_true(w.storages[7].replaces);
    env_virtual_advance_ms(&w.env, 2500);
    s = status();
    assert_int_equal(s->n_storages, 4);
    assert_true(s->storages[1]->up);
    assert_string_equal(s->storages[1]->addresses[0], "s7:1");
    assert_string_equal(s->storages[1]->host, "host7");
    status_free(s);
    assert_true(w.storages[0].n_maps > n_maps);
    assert_int_equal(w.storages[7].n_map_storages, 4);
    OK(replace(2, 7, error)); /* repeated: no effect */
    assert_string_equal(error, "it has that place already");
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    s = status(); /* durable */
    assert_int_equal(s->n_storages, 4);
    assert_true(s->storages[1]->up);
    assert_string_equal(s->storages[1]->addresses[0], "s7:1");
    status_free(s);
}

/* A new disk in the old machine has the same address. exportd may not have noticed that
 * the old one is gone. */
static void test_a_new_disk_at_the_old_address(void **state)
{
    Rozo__AdStatusResp *s;

    (void)state;
    memset(w.storages[2].incarnation, 0x99, 16);
    w.storages[2].id = 0;
    OK(replace(3, -1, NULL));
    assert_int_equal(w.storages[2].id, 3);
    assert_true(w.storages[2].replaces);
    env_virtual_advance_ms(&w.env, 2500);
    s = status();
    assert_true(s->storages[2]->up);
    status_free(s);
}

static void test_refusals_of_a_replacement(void **state)
{
    char error[256];

    (void)state;
    IS(NOT_FOUND, replace(9, 7, error));
    assert_string_equal(error, "there is no storage 9");
    IS(BUSY, replace(2, 7, error)); /* the old one is up and at another address */
    assert_string_equal(error, "storage at s7:1: the storage whose place it takes is up: "
                               "stop that one first");
    assert_int_equal(w.storages[7].id, 0);
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    IS(IO_ERROR, replace(2, -1, error));
    assert_string_equal(error, "storage at s1:1: Connection refused");
    IS(EXISTS, replace(2, 0, error));
    assert_string_equal(error,
                        "storage at s0:1: it is another storage of this cluster already");
    w.storages[7].n_projections = 5;
    IS(NOT_EMPTY, replace(2, 7, error));
    assert_string_equal(error, "storage at s7:1: its data directory is not empty");
    w.storages[7].n_projections = 0;
    w.storages[8].id = 2;
    memset(w.storages[8].cluster_id, 5, 16);
    IS(WRONG_STORAGE, replace(2, 8, error));
    assert_string_equal(error, "storage at s8:1: it belongs to another cluster");
    memcpy(w.storages[8].cluster_id, exportd_cluster_id(w.x), 16);
    IS(EXISTS, replace(2, 8, error)); /* had the place before a later one: stale */
    w.storages[8].id = 6;
    IS(WRONG_STORAGE, replace(2, 8, error));
    OK(replace(2, 7, error));
    assert_string_equal(error, "");
    w.storages[7].down = true; /* the first disk comes back with its old data */
    w.storages[1].down = false;
    env_virtual_advance_ms(&w.env, 2500);
    IS(EXISTS, replace(2, 1, error));
}

/* Goal: the same command completes a replacement that was cut short; until then the old
 * storage has its place. Method: exportd is killed after each step. */
static void test_a_replacement_cut_short(void **state)
{
    Rozo__AdStorageReplaceReq req = ROZO__AD_STORAGE_REPLACE_REQ__INIT;
    char *addr;
    uint8_t msg[64];
    size_t len;

    (void)state;
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    for (unsigned ms = 0; ms < 6; ms++) {
        struct fake_storage *s = &w.storages[6 + ms];
        struct answer_got got;

        addr = s->addr;
        req.id = 2;
        req.n_addresses = 1;
        req.addresses = &addr;
        len = rozo__ad_storage_replace_req__pack(&req, msg);
        world_send(&w, ROZO__OP__AD_STORAGE_REPLACE, RPC_ROLE_NODE, 0, msg, len, &got);
        env_virtual_run_posted(&w.env);
        if (ms > 0)
            env_virtual_advance_ms(&w.env, ms);
        world_kill(&w);
        free(got.msg);
        OK(replace(2, (int)(6 + ms), NULL));
        assert_int_equal(s->id, 2);
        assert_true(s->replaces);
        s->down = true;
        env_virtual_advance_ms(&w.env, 2500);
    }
}

/* ---- lost storages ---- */

static bool is_lost(unsigned i)
{
    Rozo__AdStatusResp *s = status();
    bool is = s->storages[i]->lost;

    status_free(s);
    return is;
}

static void test_a_lost_storage(void **state)
{
    char error[256], name[16];
    struct seen f;

    (void)state;
    IS(NOT_FOUND, lost(9, true, error));
    IS(BUSY, lost(2, true, error));
    assert_string_equal(error, "storage 2 is up at s1:1: it is not lost");
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    OK(lost(2, true, NULL));
    assert_true(is_lost(1));
    world_power_cut(&w, kv_memory_n_unsynced(w.mem));
    assert_true(is_lost(1));
    world_reopen_session(&w);
    w.storages[2].down = true; /* too few are up, but lost ones are not waited for */
    env_virtual_advance_ms(&w.env, 2500);
    for (unsigned i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create_open(&w, 1, name, true, &f));
        for (unsigned a = 0; a < f.n_storages; a++)
            assert_int_not_equal(f.storages[a], 2);
    }
    OK(lost(2, false, NULL));
    assert_false(is_lost(1));
    OK(lost(2, true, NULL));
    w.storages[1].down = false; /* the lost one comes back */
    env_virtual_advance_ms(&w.env, 2500);
    assert_false(is_lost(1));
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    OK(lost(2, true, NULL));
    OK(replace(2, 9, NULL));
    assert_false(is_lost(1));
}

/* ---- inodes that own data ---- */

static Rozo__AdInodesResp *inodes(Rozo__AdInodesReq req)
{
    Rozo__AdInodesResp *resp;

    req.export_id = 1;
    OK(world_call_node(&w, ROZO__OP__AD_INODES, &req.base,
                       &rozo__ad_inodes_resp__descriptor, &resp));
    return resp;
}

static uint64_t ino_of(const Rozo__AdInodesResp__Inode *in)
{
    struct file_id id;

    assert_int_equal(in->ref->file_id.len, FILE_ID_BYTES);
    file_id_get(in->ref->file_id.data, &id);
    assert_int_equal(id.export_id, 1);
    return id.ino;
}

static void inodes_free(Rozo__AdInodesResp *resp)
{
    rozo__ad_inodes_resp__free_unpacked(resp, NULL);
}

static uint64_t make_file(uint64_t dir, const char *name)
{
    struct seen f;

    OK(t_create_open(&w, dir, name, true, &f));
    OK(t_wrote(&w, f.ino, 12345, NULL));
    OK(t_close(&w, f.ino, 1));
    return f.ino;
}

static void test_files_are_listed(void **state)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp;
    uint64_t with_data[100];
    bool end;
    char name[16];
    unsigned n = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        with_data[i] = make_file(1, name);
        OK(t_create(&w, 1, strcat(name, "d"), S_IFDIR | 0755, NULL));
        OK(t_create(&w, 1, strcat(name, "e"), S_IFREG | 0644, NULL)); /* owns no data */
    }
    req.max_inodes = 7;
    do {
        resp = inodes(req);
        for (size_t i = 0; i < resp->n_inodes; i++) {
            assert_true(n < 100);
            assert_true(ino_of(resp->inodes[i]) == with_data[n++]);
            assert_true(resp->inodes[i]->has_data && !resp->inodes[i]->orphan);
            assert_int_equal(resp->inodes[i]->size, 12345);
            assert_int_equal(resp->inodes[i]->ref->n_storages, 4);
            assert_string_equal(resp->inodes[i]->path, "");
        }
        assert_true(resp->end || resp->after > req.after);
        req.after = resp->after;
        end = resp->end;
        inodes_free(resp);
        resp = NULL;
    } while (!end);
    assert_int_equal(n, 100);
    req.max_inodes = 0;
    IS(INVALID, world_call_node(&w, ROZO__OP__AD_INODES, &req.base, NULL, NULL));
    req.max_inodes = 4097;
    IS(INVALID, world_call_node(&w, ROZO__OP__AD_INODES, &req.base, NULL, NULL));
    req.max_inodes = 7;
    req.export_id = 9;
    IS(NOT_FOUND, world_call_node(&w, ROZO__OP__AD_INODES, &req.base, NULL, NULL));
    IS(DENIED, world_call(&w, ROZO__OP__AD_INODES, &req.base, NULL, NULL));
}

/* Goal: a listing continues through long stretches without files. */
static void test_a_listing_through_many_directories(void **state)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    char name[16];
    uint64_t first, last;
    unsigned n = 0, n_calls = 0;

    (void)state;
    first = make_file(1, "first");
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(name, sizeof(name), "d%u", i);
        OK(t_create(&w, 1, name, S_IFDIR | 0755, NULL));
    }
    last = make_file(1, "last");
    req.max_inodes = 4096;
    for (bool end = false; !end;) {
        Rozo__AdInodesResp *resp = inodes(req);

        n_calls++;
        for (size_t i = 0; i < resp->n_inodes; i++)
            assert_true(ino_of(resp->inodes[i]) == (n++ == 0 ? first : last));
        end = resp->end;
        req.after = resp->after;
        inodes_free(resp);
    }
    assert_int_equal(n, 2);
    assert_true(n_calls > 1);
}

static void test_paths(void **state)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp;
    uint64_t only[8], dir = 1;
    char name[32], deep[400] = "";
    struct seen d, f;

    (void)state;
    for (unsigned i = 0; i < 30; i++) {
        snprintf(name, sizeof(name), "dir%u", i);
        OK(t_create(&w, dir, name, S_IFDIR | 0755, &d));
        for (unsigned j = 0; j < 300; j++) { /* many names around the file */
            snprintf(name, sizeof(name), "x%u", j);
            OK(t_create(&w, dir, name, S_IFREG | 0644, NULL));
        }
        snprintf(deep + strlen(deep), sizeof(deep) - strlen(deep), "dir%u/", i);
        dir = d.ino;
    }
    only[0] = make_file(dir, "deep");
    only[1] = make_file(1, "top");
    only[2] = 777777; /* never given out */
    OK(t_create_open(&w, 1, "orphan", true, &f));
    OK(t_wrote(&w, f.ino, 1, NULL));
    OK(t_unlink(&w, 1, "orphan", NULL));
    only[3] = f.ino;
    only[4] = make_file(1, "linked");
    OK(t_link(&w, only[4], dir, "other name"));
    only[5] = 1;       /* a directory: a file by this number is not of a removed inode */
    only[6] = only[1]; /* repeated: listed once */
    req.only = only;
    req.n_only = 7;
    req.with_paths = true;
    resp = inodes(req);
    assert_true(resp->end);
    assert_int_equal(resp->n_inodes, 4);
    assert_int_equal(resp->n_unknown, 2);
    assert_true(resp->unknown[0] == 777777 && resp->unknown[1] == 1);
    strcat(deep, "deep");
    assert_string_equal(resp->inodes[0]->path, deep);
    assert_string_equal(resp->inodes[1]->path, "top");
    assert_true(ino_of(resp->inodes[2]) == f.ino && resp->inodes[2]->orphan);
    assert_string_equal(resp->inodes[2]->path, "");
    assert_true(strstr(resp->inodes[3]->path, "linked") != NULL ||
                strstr(resp->inodes[3]->path, "/other name") != NULL);
    inodes_free(resp);
    /* a listing with paths, too */
    req.n_only = 0;
    req.max_inodes = 1024;
    resp = inodes(req);
    assert_int_equal(resp->n_inodes, 4);
    assert_string_equal(resp->inodes[0]->path, deep);
    inodes_free(resp);
    req.max_inodes = 1025;
    IS(INVALID, world_call_node(&w, ROZO__OP__AD_INODES, &req.base, NULL, NULL));
}

static const struct env_ops *ops;
static unsigned n_turns;

static void timer_start_counted(struct env *env, struct env_timer *timer, uint64_t ms)
{
    n_turns += ms == 0;
    ops->timer_start(env, timer, ms);
}

/* Goal: the names of a huge directory are not scanned once for each directory in it that
 * has a file of the answer. */
static void test_paths_below_a_huge_directory(void **state)
{
    enum { N_DIRS = 9000, EACH = 90 };
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp;
    uint64_t only[N_DIRS / EACH];
    struct env_ops counted;
    char name[32];
    struct seen d;

    (void)state;
    for (unsigned i = 0; i < N_DIRS; i++) {
        snprintf(name, sizeof(name), "d%u", i);
        OK(t_create(&w, 1, name, S_IFDIR | 0755, &d));
        if (i % EACH == 0)
            only[i / EACH] = make_file(d.ino, "f");
    }
    req.only = only;
    req.n_only = N_DIRS / EACH;
    req.with_paths = true;
    ops = w.env.env.ops;
    counted = *ops;
    counted.timer_start = timer_start_counted;
    n_turns = 0;
    w.env.env.ops = &counted;
    resp = inodes(req);
    w.env.env.ops = ops;
    assert_in_range(n_turns, 1, 20);
    assert_int_equal(resp->n_inodes, N_DIRS / EACH);
    for (unsigned i = 0; i < resp->n_inodes; i++) {
        snprintf(name, sizeof(name), "d%u/f", i * EACH);
        assert_string_equal(resp->inodes[i]->path, name);
    }
    inodes_free(resp);
}

/* Goal: fsck can distinguish inodes that were removed, or are being removed, from those
 * that never existed. */
static void test_removed_files(void **state)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__AdInodesResp *resp;
    uint64_t ino = make_file(1, "f"), only[2] = { ino, 1000 };
    struct file_id id;

    (void)state;
    for (unsigned i = 0; i < 23; i++) { /* past the grace */
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 1000);
    }
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 2500);
    OK(t_unlink(&w, 1, "f", NULL));
    req.only = only;
    req.n_only = 2;
    for (unsigned i = 0; i < 2; i++) { /* first no storage was asked, then one was not */
        resp = inodes(req);
        assert_int_equal(resp->n_inodes, 1);
        assert_true(ino_of(resp->inodes[0]) == ino && resp->inodes[0]->removed);
        file_id_get(resp->inodes[0]->ref->file_id.data, &id);
        assert_int_not_equal(id.generation, 0);
        assert_true(resp->n_unknown == 1 && resp->unknown[0] == 1000);
        inodes_free(resp);
        env_virtual_advance_ms(&w.env, 9000);
        OK(t_getattr(&w, 1, NULL));
    }
    assert_int_equal(w.storages[0].n_removed, 1);
    w.storages[1].down = false;
    env_virtual_advance_ms(&w.env, 9000);
    resp = inodes(req);
    assert_int_equal(resp->n_inodes, 0);
    assert_int_equal(resp->n_unknown, 1); /* the removed one is not among them */
    inodes_free(resp);
}

/* Goal: only numbers that were given out and do not exist are reported as removed: never
 * those that a loss of power took, nor those skipped between two starts. */
static void test_numbers_that_were_never_given_out(void **state)
{
    uint64_t removed[6], forgotten[6], only[14];
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    Rozo__MdSyncReq sync = ROZO__MD_SYNC_REQ__INIT;
    Rozo__AdInodesResp *resp;
    struct seen f;

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        OK(t_create(&w, 1, "removed", S_IFREG | 0644, &f));
        removed[i] = f.ino;
        OK(t_unlink(&w, 1, "removed", NULL));
        OK(world_call(&w, ROZO__OP__MD_SYNC, &sync.base, NULL, NULL));
        if (i % 2 == 0) { /* in odd rounds, some starts without a change in between */
            OK(t_create(&w, 1, "forgotten", S_IFREG | 0644, &f));
            forgotten[i] = f.ino;
        } else {
            forgotten[i] = removed[i] + 1000;
        }
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        world_kill(&w);
        world_reopen_session(&w);
        OK(t_getattr(&w, 1, NULL));
    }
    memcpy(only, removed, sizeof(removed));
    memcpy(only + 6, forgotten, sizeof(forgotten));
    only[12] = 0;
    only[13] = UINT64_MAX;
    req.only = only;
    req.n_only = 14;
    /* an inode removed while it might be open is an orphan for a while */
    for (unsigned i = 0; i < 23; i++) {
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 1000);
    }
    resp = inodes(req);
    assert_int_equal(resp->n_inodes, 0);
    assert_int_equal(resp->n_unknown, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_true(resp->unknown[i] == only[6 + i]);
    inodes_free(resp);
}

/* Goal: exportd can stop in the middle of a long call. */
static void test_a_stop_while_paths_are_made(void **state)
{
    Rozo__AdInodesReq req = ROZO__AD_INODES_REQ__INIT;
    struct answer_got got[6];
    uint8_t msg[64];
    size_t len;
    char name[16];
    unsigned n_busy = 0;

    (void)state;
    for (unsigned i = 0; i < 9000; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        OK(t_create(&w, 1, name, S_IFREG | 0644, NULL));
    }
    make_file(1, "z");
    req.export_id = 1;
    req.max_inodes = 10;
    req.with_paths = true;
    len = rozo__ad_inodes_req__pack(&req, msg);
    for (unsigned i = 0; i < 6; i++)
        world_send(&w, ROZO__OP__AD_INODES, RPC_ROLE_NODE, 0, msg, len, &got[i]);
    OK(world_stop(&w));
    for (unsigned i = 0; i < 6; i++) {
        assert_true(got[i].came);
        n_busy += got[i].status == ROZO__STATUS__BUSY;
        free(got[i].msg);
    }
    assert_in_range(n_busy, 2, 6);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_storage_takes_the_place_of_a_lost_one),
        T(test_a_new_disk_at_the_old_address),
        T(test_refusals_of_a_replacement),
        T(test_a_replacement_cut_short),
        T(test_a_lost_storage),
        T(test_files_are_listed),
        T(test_a_listing_through_many_directories),
        T(test_paths),
        T(test_paths_below_a_huge_directory),
        T(test_removed_files),
        T(test_numbers_that_were_never_given_out),
        T(test_a_stop_while_paths_are_made),
    };

    return cmocka_run_group_tests_name("exportd.healing", tests, NULL, NULL);
}
