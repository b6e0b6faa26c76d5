/*
 * test_replies.c - requests repeated after a broken connection are executed once.
 *
 * Method: each request is sent, and sent again with its id after an event that would make
 *         it fail or do harm. The second answer is identical to the first, or says
 *         DONE_BEFORE if exportd was restarted meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "exportd/sessions/reply_cache.h"
#include "exportd/store/key.h"
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

/* Request that can be sent again. */
struct sent {
    unsigned op;
    uint64_t id, session;
    size_t len;
    uint8_t msg[1024];
    struct answer_got first;
};

static void send(struct sent *s, struct answer_got *got)
{
    w.again_id = s->id;
    world_send(&w, s->op, RPC_ROLE_CLIENT, s->session, s->msg, s->len, got);
    w.again_id = 0;
    for (unsigned i = 0; !got->came; i++) {
        assert_true(i < 1000);
        env_virtual_run_posted(&w.env);
        if (!got->came)
            env_virtual_advance_ms(&w.env, 1);
        if (!got->came)
            world_obey(&w);
    }
}

static struct sent first(unsigned op, const ProtobufCMessage *req, unsigned status)
{
    struct sent s = { .op = op, .id = 1000000 + ++w.n_ids, .session = w.session };

    s.len = protobuf_c_message_get_packed_size(req);
    assert_true(s.len <= sizeof(s.msg));
    protobuf_c_message_pack(req, s.msg);
    send(&s, &s.first);
    assert_int_equal(s.first.status, status);
    return s;
}

/* Sends the request again and checks that the answer is identical. Frees s. */
static void again(struct sent *s)
{
    struct answer_got got;

    send(s, &got);
    assert_int_equal(got.status, s->first.status);
    assert_int_equal(got.len, s->first.len);
    if (got.len > 0)
        assert_memory_equal(got.msg, s->first.msg, got.len);
    free(got.msg);
    free(s->first.msg);
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){ strlen(text), (uint8_t *)(uintptr_t)text };
}

static struct sent mkdir_once(const char *name, unsigned status)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = 1;
    req.name = bytes(name);
    req.mode = S_IFDIR | 0755;
    req.exclusive = true;
    return first(ROZO__OP__MD_CREATE, &req.base, status);
}

static struct sent unlink_once(const char *name, unsigned status)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;

    req.parent = 1;
    req.name = bytes(name);
    return first(ROZO__OP__MD_UNLINK, &req.base, status);
}

static void test_repeated_report_of_a_size_is_done_once(void **state)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;
    struct seen f;
    struct sent s;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &f));
    req.ino = f.ino;
    req.has_data = true;
    req.size = 8192;
    s = first(ROZO__OP__MD_WROTE, &req.base, ROZO__STATUS__OK);
    OK(t_truncate(&w, f.ino, 100, &f));
    OK(t_truncated(&w, f.ino, f.truncate_version, NULL));
    again(&s); /* later than all requests that came after it */
    OK(t_getattr(&w, f.ino, &f));
    assert_int_equal(f.size, 100);
}

static void test_names(void **state)
{
    Rozo__MdLinkReq link = ROZO__MD_LINK_REQ__INIT;
    Rozo__MdRenameReq rename = ROZO__MD_RENAME_REQ__INIT;
    Rozo__MdRmdirReq rmdir = ROZO__MD_RMDIR_REQ__INIT;
    struct sent s = mkdir_once("d", ROZO__STATUS__OK);
    struct seen a, b;

    (void)state;
    again(&s);
    s = mkdir_once("d", ROZO__STATUS__EXISTS); /* a new id is a new request */
    OK(t_rmdir(&w, 1, "d"));
    again(&s); /* a refusal is repeated */
    IS(NOT_FOUND, t_lookup(&w, 1, "d", NULL));

    OK(t_create(&w, 1, "f", S_IFREG | 0644, &a));
    link.ino = a.ino;
    link.parent = 1;
    link.name = bytes("g");
    s = first(ROZO__OP__MD_LINK, &link.base, ROZO__STATUS__OK);
    again(&s);
    OK(t_getattr(&w, a.ino, &a));
    assert_int_equal(a.nlink, 2);

    s = unlink_once("g", ROZO__STATUS__OK);
    OK(t_create(&w, 1, "g", S_IFREG | 0644, &b)); /* made by another client */
    again(&s);
    OK(t_lookup(&w, 1, "g", NULL));

    rename.parent = rename.new_parent = 1;
    rename.name = bytes("f");
    rename.new_name = bytes("h");
    s = first(ROZO__OP__MD_RENAME, &rename.base, ROZO__STATUS__OK);
    OK(t_create(&w, 1, "f", S_IFREG | 0644, NULL));
    again(&s);
    OK(t_lookup(&w, 1, "f", NULL));
    OK(t_lookup(&w, 1, "h", &b));
    assert_true(b.ino == a.ino);
    rename.flags = 2; /* exchange */
    s = first(ROZO__OP__MD_RENAME, &rename.base, ROZO__STATUS__OK);
    again(&s);
    OK(t_lookup(&w, 1, "f", &b));
    assert_true(b.ino == a.ino);

    OK(t_create(&w, 1, "d", S_IFDIR | 0755, NULL));
    rmdir.parent = 1;
    rmdir.name = bytes("d");
    s = first(ROZO__OP__MD_RMDIR, &rmdir.base, ROZO__STATUS__OK);
    OK(t_create(&w, 1, "d", S_IFDIR | 0755, NULL));
    again(&s);
    OK(t_lookup(&w, 1, "d", NULL));
}

/* One open is one reference and one epoch; one close is one reference less. */
static void test_references(void **state)
{
    Rozo__MdCreateReq create = ROZO__MD_CREATE_REQ__INIT;
    Rozo__MdOpenReq open = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdCloseReq close = ROZO__MD_CLOSE_REQ__INIT;
    struct sent s;
    struct seen f, g;

    (void)state;
    create.parent = 1;
    create.name = bytes("f");
    create.mode = S_IFREG | 0644;
    create.open = create.exclusive = true;
    s = first(ROZO__OP__MD_CREATE, &create.base, ROZO__STATUS__OK);
    again(&s);
    OK(t_lookup(&w, 1, "f", &f));
    open.ino = close.ino = f.ino;
    open.write = true;
    s = first(ROZO__OP__MD_OPEN, &open.base, ROZO__STATUS__OK);
    again(&s);
    OK(t_open(&w, f.ino, true, &g));
    assert_int_equal(g.epoch, 3);
    OK(t_unlink(&w, 1, "f", NULL));
    close.n_references = 1;
    s = first(ROZO__OP__MD_CLOSE, &close.base, ROZO__STATUS__OK);
    again(&s);
    s = first(ROZO__OP__MD_CLOSE, &close.base, ROZO__STATUS__OK);
    again(&s);
    OK(t_getattr(&w, f.ino, NULL)); /* one is left */
    OK(t_close(&w, f.ino, 1));
    IS(STALE_HANDLE, t_getattr(&w, f.ino, NULL));
}

static void test_attributes(void **state)
{
    Rozo__MdSetattrReq set = ROZO__MD_SETATTR_REQ__INIT;
    Rozo__MdSetxattrReq setx = ROZO__MD_SETXATTR_REQ__INIT;
    Rozo__MdRemovexattrReq removex = ROZO__MD_REMOVEXATTR_REQ__INIT;
    struct sent s;
    struct seen f;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &f));
    set.ino = setx.ino = removex.ino = f.ino;
    set.valid = ROZO__SETATTR_BITS__SET_SIZE;
    s = first(ROZO__OP__MD_SETATTR, &set.base, ROZO__STATUS__OK);
    OK(t_wrote(&w, f.ino, 5, NULL)); /* written after the truncate */
    again(&s);
    OK(t_getattr(&w, f.ino, &f));
    assert_int_equal(f.size, 5);
    setx.name = removex.name = bytes("user.a");
    setx.flags = 1; /* create */
    s = first(ROZO__OP__MD_SETXATTR, &setx.base, ROZO__STATUS__OK);
    again(&s);
    s = first(ROZO__OP__MD_REMOVEXATTR, &removex.base, ROZO__STATUS__OK);
    again(&s);
}

static void test_only_an_equal_request_counts_as_repeated(void **state)
{
    struct sent s = mkdir_once("d", ROZO__STATUS__OK), t = s;
    struct answer_got got;

    (void)state;
    t.msg[t.len - 1] ^= 1; /* a different message under this id: no longer exclusive */
    send(&t, &got);
    IS(EXISTS, got.status);
    free(got.msg);
    t = s;
    t.op = ROZO__OP__MD_RMDIR; /* a different op; the fields fit */
    send(&t, &got);
    OK(got.status);
    free(got.msg);
    t = s;
    w.session = 0;
    world_reopen_session(&w);
    t.session = w.session; /* a different session */
    send(&t, &got);
    OK(got.status);
    free(got.msg);
    free(s.first.msg);
}

static void test_bounds(void **state)
{
    struct sent s = mkdir_once("d", ROZO__STATUS__OK), t;
    struct answer_got got;

    (void)state;
    for (unsigned i = 0; i < REPLIES_MAX - 1; i++)
        IS(NOT_FOUND, t_unlink(&w, 1, "none", NULL));
    t = s;
    send(&t, &got);
    OK(got.status);
    free(got.msg);
    IS(NOT_FOUND, t_unlink(&w, 1, "none", NULL));
    send(&t, &got); /* not remembered any more, so executed */
    IS(EXISTS, got.status);
    free(got.msg);
    free(s.first.msg);
    s = mkdir_once("e", ROZO__STATUS__OK);
    for (unsigned i = 0; i <= REPLY_KEEP_MS; i += 1000) {
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 1000);
    }
    env_virtual_advance_ms(&w.env, 1000);
    send(&s, &got);
    IS(EXISTS, got.status);
    free(got.msg);
    free(s.first.msg);
}

/* I4: an answer is not repeated if its change was lost. */
static void test_answer_of_a_lost_change_is_not_repeated(void **state)
{
    struct sent s = mkdir_once("d", ROZO__STATUS__OK), t;
    struct answer_got got;

    (void)state;
    free(s.first.msg);
    kv_memory_kill(w.mem);
    t = mkdir_once("e", ROZO__STATUS__IO_ERROR);
    free(t.first.msg);
    send(&t, &got);
    IS(IO_ERROR, got.status);
    free(got.msg);
    send(&s, &got);
    IS(IO_ERROR, got.status);
    free(got.msg);
    world_kill(&w);
    world_reopen_session(&w); /* a new process has no answers */
    send(&s, &got);
    IS(DONE_BEFORE, got.status); /* only the record of the executed one is left */
    free(got.msg);
    send(&t, &got);
    OK(got.status);
    free(got.msg);
}

/* ---- over restarts ---- */

/* Sends the request again and returns the status; *ino: inode that it made. Frees s. */
static unsigned status_again(struct sent *s, uint64_t *ino)
{
    struct answer_got got;
    Rozo__MdDoneResp *resp;

    s->session = w.session;
    send(s, &got);
    if (ino != NULL) {
        resp = rozo__md_done_resp__unpack(NULL, got.len, got.msg);
        assert_non_null(resp);
        *ino = resp->ino;
        rozo__md_done_resp__free_unpacked(resp, NULL);
    }
    free(got.msg);
    free(s->first.msg);
    s->first.msg = NULL;
    return got.status;
}

static void restart(void)
{
    world_kill(&w);
    world_reopen_session(&w);
}

/* Returns the number of records of a session; 0: of all. */
static unsigned n_kept(uint64_t session)
{
    struct kv_iter *it;
    unsigned n = 0;
    size_t len;

    env_virtual_run_posted(&w.env);
    assert_int_equal(kv_iter_open(w.kv, &it), 0);
    for (kv_iter_seek(it, "R", 1); kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &len);

        if (key[0] != KEY_DONE)
            break;
        assert_int_equal(len, 13);
        n += session == 0 || key_get_u64(key + 1) == session;
    }
    kv_iter_close(it);
    return n;
}

static void test_restart(void **state)
{
    Rozo__MdLinkReq link = ROZO__MD_LINK_REQ__INIT;
    Rozo__MdRenameReq rename = ROZO__MD_RENAME_REQ__INIT;
    Rozo__MdRmdirReq rmdir = ROZO__MD_RMDIR_REQ__INIT;
    Rozo__MdSetxattrReq setx = ROZO__MD_SETXATTR_REQ__INIT;
    Rozo__MdRemovexattrReq removex = ROZO__MD_REMOVEXATTR_REQ__INIT;
    struct sent sents[7];
    struct seen a, d;
    uint64_t made;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, &a));
    OK(t_create(&w, 1, "u", S_IFREG | 0644, NULL));
    OK(t_create(&w, 1, "r", S_IFDIR | 0755, NULL));
    sents[0] = mkdir_once("d", ROZO__STATUS__OK);
    sents[1] = unlink_once("u", ROZO__STATUS__OK);
    rmdir.parent = 1;
    rmdir.name = bytes("r");
    sents[2] = first(ROZO__OP__MD_RMDIR, &rmdir.base, ROZO__STATUS__OK);
    link.ino = setx.ino = removex.ino = a.ino;
    link.parent = rename.parent = rename.new_parent = 1;
    link.name = rename.name = bytes("g");
    sents[3] = first(ROZO__OP__MD_LINK, &link.base, ROZO__STATUS__OK);
    rename.new_name = bytes("h");
    sents[4] = first(ROZO__OP__MD_RENAME, &rename.base, ROZO__STATUS__OK);
    setx.name = removex.name = bytes("user.a");
    setx.flags = 1; /* create */
    sents[5] = first(ROZO__OP__MD_SETXATTR, &setx.base, ROZO__STATUS__OK);
    sents[6] = first(ROZO__OP__MD_REMOVEXATTR, &removex.base, ROZO__STATUS__OK);
    OK(t_lookup(&w, 1, "d", &d));
    OK(t_create(&w, 1, "u", S_IFREG | 0644, NULL)); /* made by another client */
    restart();
    restart();
    IS(DONE_BEFORE, status_again(&sents[0], &made));
    assert_true(made == d.ino);
    for (unsigned i = 1; i < 7; i++)
        IS(DONE_BEFORE, status_again(&sents[i], NULL));
    OK(t_lookup(&w, 1, "u", NULL));
    OK(t_getattr(&w, a.ino, &a));
    assert_int_equal(a.nlink, 2);
}

static struct sent setattr_once(uint64_t ino, uint32_t valid, uint64_t size,
                                uint32_t mode)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = valid;
    req.size = size;
    req.mode = mode;
    return first(ROZO__OP__MD_SETATTR, &req.base, ROZO__STATUS__OK);
}

/* Changes that others made between the two requests stay: bytes behind a truncate, a
 * mode. */
static void test_attributes_over_a_restart(void **state)
{
    Rozo__MdWroteReq wrote = ROZO__MD_WROTE_REQ__INIT;
    struct sent cut, mode, told;
    struct seen f;

    (void)state;
    OK(t_create_open(&w, 1, "f", true, &f));
    OK(t_wrote(&w, f.ino, 1000, NULL));
    wrote.ino = f.ino;
    wrote.has_data = true;
    wrote.size = 3000;
    wrote.epoch = f.epoch;
    told = first(ROZO__OP__MD_WROTE, &wrote.base, ROZO__STATUS__OK);
    cut = setattr_once(f.ino, ROZO__SETATTR_BITS__SET_SIZE, 100, 0);
    mode = setattr_once(f.ino, ROZO__SETATTR_BITS__SET_MODE, 0, 0600);
    restart();
    OK(t_getattr(&w, f.ino, &f));
    assert_int_equal(f.size, 100);
    OK(t_open(&w, f.ino, true, &f));
    OK(t_truncated(&w, f.ino, f.truncate_version, NULL));
    OK(t_wrote(&w, f.ino, 2000, NULL));
    free(setattr_once(f.ino, ROZO__SETATTR_BITS__SET_MODE, 0, 0644).first.msg);
    IS(DONE_BEFORE, status_again(&cut, NULL));
    IS(DONE_BEFORE, status_again(&mode, NULL));
    OK(status_again(&told, NULL)); /* a size is judged by its epoch */
    OK(t_getattr(&w, f.ino, &f));
    assert_int_equal(f.size, 2000);
    assert_int_equal(f.mode & 07777, 0644);
}

static void test_answer_of_a_refused_request_is_not_stored(void **state)
{
    struct sent s = unlink_once("none", ROZO__STATUS__NOT_FOUND), t;

    (void)state;
    OK(t_create(&w, 1, "none", S_IFREG | 0644, NULL));
    t = mkdir_once("none", ROZO__STATUS__EXISTS);
    OK(t_unlink(&w, 1, "none", NULL));
    assert_int_equal(n_kept(w.session), 2); /* for these two changes */
    restart();
    OK(status_again(&t, NULL));
    IS(IS_DIRECTORY, status_again(&s, NULL));
}

/* A loss of power takes the change and its record, or neither. */
static void test_loss_of_power(void **state)
{
    (void)state;
    for (unsigned lost = 0; lost < 6; lost++) {
        struct sent s[4];
        char name[8];
        unsigned status;

        for (unsigned i = 0; i < 4; i++) {
            snprintf(name, sizeof(name), "%u-%u", lost, i);
            s[i] = mkdir_once(name, ROZO__STATUS__OK);
        }
        world_power_cut(&w, lost);
        world_reopen_session(&w);
        for (unsigned i = 0; i < 4; i++) {
            snprintf(name, sizeof(name), "%u-%u", lost, i);
            status = t_lookup(&w, 1, name, NULL);
            assert_int_equal(status_again(&s[i], NULL), status == ROZO__STATUS__OK
                                                            ? ROZO__STATUS__DONE_BEFORE
                                                            : ROZO__STATUS__OK);
        }
    }
}

static void test_the_oldest_are_replaced(void **state)
{
    struct sent s[3];
    char name[16];

    (void)state;
    s[0] = mkdir_once("a", ROZO__STATUS__OK);
    s[1] = mkdir_once("b", ROZO__STATUS__OK);
    for (unsigned i = 0; i < REPLIES_MAX - 2; i++) {
        snprintf(name, sizeof(name), "%u", i);
        OK(t_create(&w, 1, name, S_IFDIR | 0755, NULL));
    }
    assert_int_equal(n_kept(w.session), REPLIES_MAX);
    restart();
    s[2] = mkdir_once("c", ROZO__STATUS__OK); /* replaces "a" */
    assert_int_equal(n_kept(w.session), REPLIES_MAX);
    restart();
    IS(EXISTS, status_again(&s[0], NULL));
    IS(DONE_BEFORE, status_again(&s[1], NULL));
    IS(DONE_BEFORE, status_again(&s[2], NULL));
}

/* Lets time pass and keeps the session alive. */
static void pass(uint64_t ms)
{
    for (uint64_t at = 0; at < ms; at += 2000) {
        OK(t_getattr(&w, 1, NULL));
        env_virtual_advance_ms(&w.env, 2000);
    }
}

static void test_replies_go_with_a_closed_session(void **state)
{
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    uint64_t one = w.session;

    (void)state;
    for (unsigned restarted = 0; restarted < 2; restarted++) {
        OK(t_create(&w, 1, restarted ? "a" : "b", S_IFDIR | 0755, NULL));
        assert_int_equal(n_kept(w.session), 1);
        one = w.session;
        if (restarted)
            world_kill(&w);
        OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &bye.base, NULL, NULL));
        w.session = 0;
        world_reopen_session(&w);
        assert_true(w.session != one);
        OK(t_create(&w, 1, restarted ? "c" : "d", S_IFDIR | 0755, NULL));
        pass(70000);
        assert_int_equal(n_kept(one), 0);
        assert_int_equal(n_kept(w.session), 1);
        OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &bye.base, NULL, NULL));
        w.session = 0;
        world_reopen_session(&w);
        pass(70000);
        assert_int_equal(n_kept(0), 0);
    }
}

/* A client whose session has ended repeats its requests in another one; after a while no
 * records are left. */
static void test_the_session_is_over(void **state)
{
    (void)state;
    for (unsigned restarted = 0; restarted < 2; restarted++) {
        struct sent s = mkdir_once(restarted ? "a" : "b", ROZO__STATUS__OK);
        uint64_t late = w.session;

        if (restarted)
            world_kill(&w);
        w.session = 0;
        world_try_session(&w);
        pass(50000); /* the lease ends */
        w.session = late;
        world_try_session(&w);
        assert_true(w.session != late);
        IS(DONE_BEFORE, status_again(&s, NULL));
        assert_int_equal(n_kept(late), 1);
        pass(REPLY_KEEP_MS + 70000);
        assert_int_equal(n_kept(late), 0);
    }
    assert_int_equal(n_kept(0), 0);
}

static void test_replies_of_many_closed_sessions_are_removed(void **state)
{
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    uint64_t stays = w.session;

    (void)state;
    OK(t_create(&w, 1, "a", S_IFDIR | 0755, NULL));
    for (unsigned k = 0; k < 6; k++) {
        w.session = 0;
        world_try_session(&w);
        for (unsigned i = 0; i < REPLIES_MAX; i++) {
            OK(t_setxattr(&w, 1, "user.a", "x", 1, 0));
        }
        OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &bye.base, NULL, NULL));
        w.session = stays;
        OK(t_getattr(&w, 1, NULL));
    }
    assert_true(n_kept(0) > 5 * REPLIES_MAX);
    pass(70000);
    assert_int_equal(n_kept(0), 1);
    assert_int_equal(n_kept(stays), 1);
}

/* I8: records may hold anything. */
static void test_damaged(void **state)
{
    struct sent s = mkdir_once("a", ROZO__STATUS__OK),
                t = mkdir_once("b", ROZO__STATUS__OK);
    struct kv_item item;
    struct key k;

    (void)state;
    OK((unsigned)world_stop(&w));
    key_start(&k, KEY_DONE);
    key_add_u64(&k, w.session);
    key_add_u32(&k, 0);
    item = (struct kv_item){ k.bytes, k.len, "\1xyz", 4 };
    world_put(&w, &item);
    k.bytes[k.len - 2] = 0xff; /* a slot that does not exist */
    world_put(&w, &item);
    world_start(&w);
    world_reopen_session(&w);
    IS(EXISTS, status_again(&s, NULL));
    IS(DONE_BEFORE, status_again(&t, NULL));
}

/* A request repeated before its first answer has left is executed once and answered
 * twice, after the commit. */
static void test_again_before_the_commit(void **state)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;
    struct answer_got got[3];
    uint8_t msg[64];
    size_t len;

    (void)state;
    OK(t_create(&w, 1, "f", S_IFREG | 0644, NULL));
    req.parent = 1;
    req.name = bytes("f");
    len = rozo__md_unlink_req__pack(&req, msg);
    w.again_id = 77777;
    for (unsigned i = 0; i < 3; i++)
        world_send(&w, ROZO__OP__MD_UNLINK, RPC_ROLE_CLIENT, w.session, msg, len,
                   &got[i]);
    w.again_id = 0;
    for (unsigned i = 0; i < 3; i++)
        assert_false(got[i].came);
    env_virtual_run_posted(&w.env);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(got[i].came);
        OK(got[i].status);
        free(got[i].msg);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_names),
        T(test_repeated_report_of_a_size_is_done_once),
        T(test_references),
        T(test_attributes),
        T(test_only_an_equal_request_counts_as_repeated),
        T(test_bounds),
        T(test_answer_of_a_lost_change_is_not_repeated),
        T(test_again_before_the_commit),
        T(test_restart),
        T(test_attributes_over_a_restart),
        T(test_answer_of_a_refused_request_is_not_stored),
        T(test_loss_of_power),
        T(test_the_oldest_are_replaced),
        T(test_replies_go_with_a_closed_session),
        T(test_the_session_is_over),
        T(test_replies_of_many_closed_sessions_are_removed),
        T(test_damaged),
    };

    return cmocka_run_group_tests_name("exportd.replies", tests, NULL, NULL);
}
