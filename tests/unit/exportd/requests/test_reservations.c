/*
 * test_reservations.c - streams that are reserved: admission with the reason of a
 * refusal, what lasts, and what storages hear of it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/exportd/world.h"

enum { MB = 1000000 };

static struct world w;

/* Layout 0: two storages serve a block, so each moves half of a stream. */
static int setup(void **state)
{
    (void)state;
    world_open(&w, 31);
    world_start(&w);
    world_make_export(&w, 4, 0);
    for (unsigned i = 0; i < 4; i++)
        w.storages[i].stream_bytes = 100 * MB;
    env_virtual_advance_ms(&w.env, 5000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static char why[256]; /* text of the last answer */

static unsigned reserve_of(const char *export, const char *host, unsigned reads,
                           unsigned writes, uint64_t rate)
{
    Rozo__AdStreamReserveReq req = ROZO__AD_STREAM_RESERVE_REQ__INIT;
    Rozo__AdStreamReserveResp *resp;
    Rozo__Stream s = ROZO__STREAM__INIT;
    unsigned status;

    s.export = (char *)(uintptr_t) export;
    s.host = (char *)(uintptr_t)host;
    s.reads = reads;
    s.writes = writes;
    s.rate = rate;
    req.stream = &s;
    status = world_call_node(&w, ROZO__OP__AD_STREAM_RESERVE, &req.base,
                             &rozo__ad_stream_reserve_resp__descriptor, &resp);
    snprintf(why, sizeof(why), "%s", resp == NULL ? "" : resp->error);
    rozo__ad_stream_reserve_resp__free_unpacked(resp, NULL);
    return status;
}

static unsigned reserve(const char *host, unsigned reads, unsigned writes, unsigned mb)
{
    return reserve_of("main", host, reads, writes, (uint64_t)mb * MB);
}

static unsigned release(const char *host)
{
    Rozo__AdStreamReleaseReq req = ROZO__AD_STREAM_RELEASE_REQ__INIT;

    req.export = (char *)"main";
    req.host = (char *)(uintptr_t)host;
    return world_call_node(&w, ROZO__OP__AD_STREAM_RELEASE, &req.base, NULL, NULL);
}

static Rozo__AdStreamListResp *list(void)
{
    Rozo__AdStreamListReq req = ROZO__AD_STREAM_LIST_REQ__INIT;
    Rozo__AdStreamListResp *resp;

    OK(world_call_node(&w, ROZO__OP__AD_STREAM_LIST, &req.base,
                       &rozo__ad_stream_list_resp__descriptor, &resp));
    return resp;
}

static void streams_are_reserved_while_storages_can_carry_them(void **state)
{
    (void)state;
    OK(reserve("edit1", 5, 1, 25)); /* 6 * 12.5 = 75 MB/s of each storage */
    IS(NO_SPACE, reserve("edit2", 2, 1, 25));
    assert_non_null(strstr(why, "storage 1"));
    assert_non_null(strstr(why, "carries 100.0 MB/s of streams: 75.0 are reserved, and "
                                "this needs 37.5 more"));
    OK(reserve("edit2", 2, 0, 25));
    IS(NO_SPACE, reserve("edit3", 1, 0, 25));
    /* A host's own streams are replaced, so they are not in its own way. */
    OK(reserve("edit1", 6, 0, 25));
    IS(NO_SPACE, reserve("edit1", 7, 0, 25));
    OK(release("edit2"));
    IS(NOT_FOUND, release("edit2"));
    OK(reserve("edit1", 8, 0, 25));
}

static void the_weakest_storage_and_its_links_count(void **state)
{
    (void)state;
    w.storages[2].stream_bytes = 20 * MB;
    w.storages[3].link_bytes = 15 * MB;
    env_virtual_advance_ms(&w.env, 5000);
    IS(NO_SPACE, reserve("edit1", 1, 1, 25));
    assert_non_null(strstr(why, "storage 3"));
    w.storages[2].stream_bytes = 100 * MB;
    env_virtual_advance_ms(&w.env, 5000);
    OK(reserve("edit1", 1, 1, 25)); /* each direction has a link to itself */
    IS(NO_SPACE, reserve("edit2", 1, 0, 25));
    assert_non_null(strstr(why, "links (1) of storage 4"));
    assert_non_null(strstr(why, "15.0 MB/s from it: 12.5 are reserved"));
    IS(NO_SPACE, reserve("edit2", 0, 1, 25));
    assert_non_null(strstr(why, "to it"));
}

static void a_storage_that_says_nothing_is_named(void **state)
{
    (void)state;
    w.storages[1].stream_bytes = 0;
    env_virtual_advance_ms(&w.env, 5000);
    IS(INVALID, reserve("edit1", 1, 0, 25));
    assert_non_null(strstr(why, "storage 2"));
    assert_non_null(strstr(why, "set storaged.stream_mb there"));
    w.storages[1].stream_bytes = 100 * MB;
    env_virtual_advance_ms(&w.env, 5000);
    w.storages[1].down = true;
    env_virtual_advance_ms(&w.env, 5000);
    OK(reserve("edit1", 1, 0, 25)); /* known from when it was up */
    world_kill(&w);
    world_reopen_session(&w);
    env_virtual_advance_ms(&w.env, 5000);
    IS(INVALID, reserve("edit1", 2, 0, 25));
    assert_non_null(strstr(why, "storage 2"));
    assert_non_null(strstr(why, "is not up, and has not said"));
}

static void reservations_last_and_storages_hear_of_them(void **state)
{
    Rozo__AdStreamListResp *l;

    (void)state;
    OK(reserve("edit1", 5, 1, 25));
    OK(reserve("edit2", 1, 0, 10));
    OK(reserve("edit3", 1, 0, 10));
    OK(release("edit3"));
    for (unsigned round = 0; round < 2; round++) {
        env_virtual_advance_ms(&w.env, 8000);
        for (unsigned i = 0; i < 4; i++)
            assert_in_range(w.storages[i].reserved, 80 * MB, 80 * MB + 10);
        l = list();
        assert_int_equal(l->n_streams, 2);
        assert_string_equal(l->streams[0]->host, "edit1");
        assert_string_equal(l->streams[0]->export, "main");
        assert_int_equal(l->streams[0]->reads, 5);
        assert_int_equal(l->streams[0]->writes, 1);
        assert_int_equal(l->streams[0]->rate, 25 * MB);
        assert_string_equal(l->streams[1]->host, "edit2");
        assert_int_equal(l->n_limits, 4);
        assert_int_equal(l->limits[3]->stream_bytes, 100 * MB);
        assert_in_range(l->limits[3]->read_bytes, 67500000, 67500010);
        assert_in_range(l->limits[3]->written_bytes, 12500000, 12500010);
        rozo__ad_stream_list_resp__free_unpacked(l, NULL);
        /* All that was answered is stable. */
        world_power_cut(&w, kv_memory_n_unsynced(w.mem));
        world_reopen_session(&w);
    }
    OK(release("edit1"));
    OK(release("edit2"));
    env_virtual_advance_ms(&w.env, 8000);
    assert_int_equal(w.storages[0].reserved, 0);
}

/* Answers a keep-alive of the session, which is of host "test". */
static uint64_t keep_alive(uint64_t n_reads, uint64_t n_late)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;
    Rozo__MdKeepAliveResp *resp;
    uint64_t rate;

    req.stream_reads = n_reads;
    req.late_reads = n_late;
    OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base,
                  &rozo__md_keep_alive_resp__descriptor, &resp));
    rate = resp->stream_rate;
    rozo__md_keep_alive_resp__free_unpacked(resp, NULL);
    return rate;
}

static void late_reads_are_counted_by_host(void **state)
{
    Rozo__AdStreamListResp *l;

    (void)state;
    assert_int_equal(keep_alive(0, 0), 0);
    OK(reserve("tes", 1, 0, 10));
    OK(reserve("test2", 1, 0, 10));
    assert_int_equal(keep_alive(0, 0), 0);
    OK(reserve("test", 1, 0, 25));
    assert_int_equal(keep_alive(50, 3), 25 * MB);
    assert_int_equal(keep_alive(70, 4), 25 * MB);
    l = list();
    assert_int_equal(l->n_streams, 3);
    for (unsigned i = 0; i < 3; i++) {
        bool ours = strcmp(l->streams[i]->host, "test") == 0;

        assert_int_equal(l->streams[i]->n_reads, ours ? 70 : 0);
        assert_int_equal(l->streams[i]->n_late, ours ? 4 : 0);
    }
    rozo__ad_stream_list_resp__free_unpacked(l, NULL);
    OK(release("test"));
    assert_int_equal(keep_alive(70, 4), 0);
}

static void wrong_wishes_are_refused(void **state)
{
    char long_name[300];

    (void)state;
    memset(long_name, 'h', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    IS(NOT_FOUND, reserve_of("none", "edit1", 1, 0, MB));
    assert_string_equal(why, "there is no export none");
    IS(INVALID, reserve("", 1, 0, 25));
    IS(INVALID, reserve("two words", 1, 0, 25));
    IS(INVALID, reserve(long_name, 1, 0, 25));
    IS(INVALID, reserve("edit1", 0, 0, 25));
    IS(INVALID, reserve("edit1", 1, 0, 0));
    IS(INVALID, reserve("edit1", 10001, 0, 1));
    IS(INVALID, reserve("edit1", UINT32_MAX, 1, 1)); /* a sum of 0 */
    IS(INVALID, reserve_of("main", "edit1", 1, 0, UINT64_MAX));
    IS(NO_SPACE, reserve_of("main", "edit1", 10000, 10000, 1000000000000));
    IS(NOT_FOUND, release("edit1"));
}

/* A client may not reserve. */
static void only_administrators_reserve(void **state)
{
    Rozo__AdStreamListReq req = ROZO__AD_STREAM_LIST_REQ__INIT;

    (void)state;
    IS(DENIED, world_call(&w, ROZO__OP__AD_STREAM_LIST, &req.base, NULL, NULL));
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(streams_are_reserved_while_storages_can_carry_them),
        T(the_weakest_storage_and_its_links_count),
        T(a_storage_that_says_nothing_is_named),
        T(reservations_last_and_storages_hear_of_them),
        T(late_reads_are_counted_by_host),
        T(wrong_wishes_are_refused),
        T(only_administrators_reserve),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
