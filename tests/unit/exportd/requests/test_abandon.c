/*
 * test_abandon.c - an exportd whose kv another process may change from now on.
 *
 * Goal:   each call is answered once, and no answer tells what only this exportd
 *         believes; nothing is written or sent any more. Before that, an answer waits
 *         until the kv confirms that it is not stale.
 * Method: a whole exportd on a kv that is deposed, in every state that a call waits in.
 */
#include <sys/stat.h>

#include "common/base/err.h"
#include "tests/unit/exportd/fickle_kv.h"
#include "tests/unit/exportd/world.h"

enum { CALLS_MAX = 16 };

static struct world w;
static struct fickle_kv kv;
static uint64_t s1, s2, dir, file;
static struct answer_got got[CALLS_MAX];
static unsigned n_calls;

static int setup(void **state)
{
    struct seen seen;

    (void)state;
    n_calls = 0;
    world_open(&w, 11);
    fickle_kv_init(&kv, &w.env.env, w.kv);
    w.kv = &kv.kv;
    world_start(&w);
    world_make_export(&w, 4, 0);
    s2 = w.session;
    w.session = 0;
    world_reopen_session(&w);
    s1 = w.session;
    OK(t_create(&w, 1, "file", S_IFREG | 0644, &seen));
    file = seen.ino;
    OK(t_create(&w, 1, "dir", S_IFDIR | 0755, &seen));
    dir = seen.ino;
    w.disobeys = true; /* the session that made it keeps its tokens */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

/* Sends a request whose answer is looked at later. */
static unsigned ask_as(uint64_t session, unsigned op, const ProtobufCMessage *req)
{
    enum rpc_role role = op >= ROZO__OP__AD_STATUS ? RPC_ROLE_NODE : RPC_ROLE_CLIENT;
    uint8_t msg[256];

    assert_true(n_calls < CALLS_MAX &&
                protobuf_c_message_get_packed_size(req) <= sizeof(msg));
    world_send(&w, op, role, session, msg, protobuf_c_message_pack(req, msg),
               &got[n_calls]);
    return n_calls++;
}

static unsigned ask_getattr(uint64_t session, uint64_t ino)
{
    Rozo__MdGetattrReq req = ROZO__MD_GETATTR_REQ__INIT;

    req.ino = ino;
    return ask_as(session, ROZO__OP__MD_GETATTR, &req.base);
}

static unsigned ask_mkdir(const char *name)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = dir;
    req.name = (ProtobufCBinaryData){ strlen(name), (uint8_t *)(uintptr_t)name };
    req.mode = S_IFDIR | 0755;
    req.exclusive = true;
    return ask_as(s1, ROZO__OP__MD_CREATE, &req.base);
}

static unsigned ask_keep_alive(void)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    return ask_as(s1, ROZO__OP__MD_KEEP_ALIVE, &req.base);
}

static void none_has_come(void)
{
    env_virtual_advance_ms(&w.env, 1);
    for (unsigned i = 0; i < n_calls; i++)
        if (got[i].came)
            fail_msg("call %u was answered %u", i, got[i].status);
}

/* Asserts that all answers have this status, or come from before the call since. */
static void all_are(unsigned since, unsigned status)
{
    for (unsigned i = since; i < n_calls; i++) {
        assert_true(got[i].came); /* once: got asserts that */
        assert_int_equal(got[i].status, status);
        if (status == ROZO__STATUS__NOT_LEADER)
            assert_int_equal(got[i].len, 0);
    }
}

static void answers_free(void)
{
    while (n_calls > 0)
        free(got[--n_calls].msg);
}

/* Lets a call wait in each of the ways that there are. */
static void ask_all(void)
{
    Rozo__AdStorageAddReq add = ROZO__AD_STORAGE_ADD_REQ__INIT;
    Rozo__AdInodesReq list = ROZO__AD_INODES_REQ__INIT;
    Rozo__MdEventsReq events = ROZO__MD_EVENTS_REQ__INIT;
    Rozo__MdUnlinkReq unlink = ROZO__MD_UNLINK_REQ__INIT;
    char *addr = w.storages[5].addr;

    ask_as(s2, ROZO__OP__MD_EVENTS, &events.base);
    unlink.parent = 1;
    unlink.name = (ProtobufCBinaryData){ 4, (uint8_t *)(uintptr_t) "file" };
    ask_as(s2, ROZO__OP__MD_UNLINK, &unlink.base); /* waits for a token of the other */
    list.export_id = 1;
    list.with_paths = true;
    list.max_inodes = 10;
    ask_as(0, ROZO__OP__AD_INODES, &list.base);
    w.storages[5].hung = true;
    add.n_addresses = 1;
    add.addresses = &addr;
    ask_as(0, ROZO__OP__AD_STORAGE_ADD, &add.base); /* waits for the storage */
    kv.holds = true;
    ask_mkdir("made");         /* waits for a commit */
    ask_getattr(s1, file);     /* waits for it, too */
    ask_getattr(s1, 12345678); /* an error waits, too */
    ask_keep_alive();          /* waits for a sync */
}

static void test_each_call_is_answered_once(void **state)
{
    unsigned n_commits, n_syncs, n_sent, since, executed;

    (void)state;
    w.again_id = 1u << 30;
    executed = ask_mkdir("before");
    w.again_id = 0;
    env_virtual_advance_ms(&w.env, 5);
    assert_int_equal(got[executed].status, ROZO__STATUS__OK);
    free(got[executed].msg);
    n_calls = 0;
    ask_all();
    none_has_come();
    n_commits = kv.n_commits;
    n_syncs = kv.n_syncs;
    n_sent = w.n_sent;
    fickle_kv_depose(&kv);
    assert_int_equal(world_abandon(&w), -ROZO_ENOT_LEADER);
    all_are(0, ROZO__STATUS__NOT_LEADER);
    since = n_calls;
    assert_true(since == 8 && kv.n_commits == n_commits && kv.n_syncs == n_syncs);
    assert_int_equal(w.n_sent, n_sent);
    answers_free();
    fickle_kv_init(&kv, &w.env.env, kv.below);
    world_start(&w); /* no half of a change is there */
    world_reopen_session(&w);
    OK(t_lookup(&w, dir, "before", NULL));
    IS(NOT_FOUND, t_lookup(&w, dir, "made", NULL));
}

static void ended(void *arg, int rc)
{
    *(int *)arg = rc;
}

static void test_requests_after_the_abandon_get_not_leader(void **state)
{
    int rc = 1;

    (void)state;
    w.again_id = 1u << 30;
    OK(t_create(&w, dir, "made", S_IFDIR | 0755, NULL));
    fickle_kv_depose(&kv);
    exportd_abandon(w.x, ended, &rc);
    ask_mkdir("made"); /* a repeated request: executed, but who knows */
    w.again_id = 0;
    ask_mkdir("other");
    ask_getattr(s1, file);
    ask_getattr(99, file);
    ask_keep_alive();
    all_are(0, ROZO__STATUS__NOT_LEADER);
    env_virtual_advance_ms(&w.env, 5);
    assert_int_equal(rc, -ROZO_ENOT_LEADER);
    ask_getattr(s1, file); /* before the close */
    all_are(0, ROZO__STATUS__NOT_LEADER);
    answers_free();
    exportd_close(w.x);
    w.x = NULL;
    kv.deposed = false;
}

/* A deposed kv whose exportd does not know it yet, in a stop perhaps. */
static void test_answers_of_a_deposed_kv_tell_nothing(void **state)
{
    int rc = 1;

    (void)state;
    w.again_id = 1u << 30;
    OK(t_create(&w, dir, "made", S_IFDIR | 0755, NULL));
    fickle_kv_depose(&kv);
    ask_getattr(s1, file);
    ask_getattr(s1, 12345678); /* status only */
    ask_keep_alive();
    env_virtual_run_posted(&w.env);
    ask_mkdir("made"); /* again */
    w.again_id = 0;
    ask_mkdir("other");
    env_virtual_run_posted(&w.env);
    all_are(0, ROZO__STATUS__NOT_LEADER);
    exportd_stop(w.x, ended, &rc);
    ask_getattr(s1, file);
    env_virtual_advance_ms(&w.env, 5);
    assert_int_equal(rc, -ROZO_ENOT_LEADER); /* not: everything is stored */
    all_are(0, ROZO__STATUS__NOT_LEADER);
    answers_free();
    exportd_close(w.x);
    w.x = NULL;
    kv.deposed = false;
}

static void test_a_start_can_be_abandoned(void **state)
{
    (void)state;
    assert_int_equal(world_stop(&w), 0);
    kv.holds = true;
    world_begin_start(&w);
    env_virtual_advance_ms(&w.env, 1500);
    assert_int_equal(exportd_is_ready(w.x), 0);
    ask_getattr(s1, file);
    none_has_come(); /* the start is not committed yet */
    fickle_kv_depose(&kv);
    assert_int_equal(world_abandon(&w), -ROZO_ENOT_LEADER);
    all_are(0, ROZO__STATUS__NOT_LEADER);
    answers_free();
    kv.deposed = false;
}

static void never(void *arg, int rc)
{
    (void)arg;
    fail_msg("the stop has ended with %d", rc);
}

static void test_a_stop_becomes_one(void **state)
{
    (void)state;
    ask_all();
    none_has_come();
    exportd_stop(w.x, never, NULL);
    env_virtual_advance_ms(&w.env, 50); /* no majority: nothing becomes stable */
    fickle_kv_depose(&kv);
    assert_int_equal(world_abandon(&w), -ROZO_ENOT_LEADER);
    for (unsigned i = 0; i < n_calls; i++)
        assert_true(got[i].came && (got[i].status == ROZO__STATUS__NOT_LEADER ||
                                    got[i].status == ROZO__STATUS__BUSY));
    answers_free();
    kv.deposed = false;
}

/* A change, reads, errors and keep-alives: each leaves after a confirmation only. */
static void test_every_answer_is_confirmed(void **state)
{
    (void)state;
    kv.no_lease = true;
    ask_getattr(s1, file);
    ask_getattr(s1, 12345678);
    ask_getattr(99, file);
    none_has_come();
    assert_int_equal(kv.n_asked, 3);
    ask_mkdir("made");
    ask_mkdir("made"); /* EXIST: of what is not committed yet */
    ask_keep_alive();
    none_has_come();
    assert_int_equal(kv.n_asked, 6);
    fickle_kv_confirm(&kv);
    env_virtual_run_posted(&w.env);
    assert_int_equal(got[0].status, ROZO__STATUS__OK);
    assert_int_equal(got[1].status, ROZO__STATUS__STALE_HANDLE);
    assert_int_equal(got[2].status, ROZO__STATUS__NO_SESSION);
    assert_int_equal(got[3].status, ROZO__STATUS__OK);
    assert_int_equal(got[4].status, ROZO__STATUS__EXISTS);
    assert_int_equal(got[5].status, ROZO__STATUS__OK);
    answers_free();
    ask_getattr(s1, file);
    ask_keep_alive();
    none_has_come();
    fickle_kv_depose(&kv); /* there has been a later leader */
    env_virtual_run_posted(&w.env);
    all_are(0, ROZO__STATUS__NOT_LEADER);
    answers_free();
    assert_int_equal(world_abandon(&w), -ROZO_ENOT_LEADER);
    kv.no_lease = kv.deposed = false;
}

/* A stop waits for confirmations. */
static void test_a_stop_answers_what_waits_for_a_confirmation(void **state)
{
    int rc = 1;

    (void)state;
    kv.no_lease = true;
    ask_getattr(s1, file);
    none_has_come();
    exportd_stop(w.x, ended, &rc);
    env_virtual_advance_ms(&w.env, 20);
    assert_int_equal(rc, 1);
    fickle_kv_confirm(&kv);
    env_virtual_advance_ms(&w.env, 5);
    assert_int_equal(rc, 0);
    all_are(0, ROZO__STATUS__OK);
    answers_free();
    exportd_close(w.x);
    w.x = NULL;
}

/* Times never lie below those of a former leader, whose clock was ahead. */
static void test_times_do_not_go_back(void **state)
{
    const int64_t ahead_ns = INT64_C(2000000000) * 1000000000; /* 2033 */
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;
    Rozo__MdKeepAliveResp *resp;
    struct seen seen;

    (void)state;
    kv.stamp_ns = ahead_ns;
    OK(t_create(&w, dir, "made", S_IFDIR | 0755, &seen));
    assert_true(seen.ctime_ns == ahead_ns && seen.mtime_ns == ahead_ns);
    OK(t_setxattr(&w, file, "user.a", "1", 1, 0));
    OK(t_getattr(&w, file, &seen));
    assert_true(seen.ctime_ns == ahead_ns);
    OK(t_link(&w, file, 1, "link"));
    OK(t_rename(&w, 1, "link", 1, "moved", 0));
    OK(t_truncate(&w, file, 10, &seen));
    assert_true(seen.mtime_ns == ahead_ns);
    OK(t_unlink(&w, 1, "moved", NULL));
    OK(t_getattr(&w, 1, &seen));
    assert_true(seen.ctime_ns == ahead_ns && seen.mtime_ns == ahead_ns);
    OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base,
                  &rozo__md_keep_alive_resp__descriptor, &resp));
    assert_int_equal(resp->now_ns, ahead_ns);
    rozo__md_keep_alive_resp__free_unpacked(resp, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_call_is_answered_once),
        TEST(requests_after_the_abandon_get_not_leader),
        TEST(answers_of_a_deposed_kv_tell_nothing),
        TEST(a_start_can_be_abandoned),
        TEST(a_stop_becomes_one),
        TEST(every_answer_is_confirmed),
        TEST(a_stop_answers_what_waits_for_a_confirmation),
        TEST(times_do_not_go_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
