/*
 * test_tokens.c - tokens of sessions, and their recall (I5).
 *
 * Goal:   a holder of EXCLUSIVE is the only holder of the inode, whatever is under way; a
 *         holder of a range to write is the only holder of that range. Each waiting call
 *         is answered once all recalled tokens were given back. A recall never waits for
 *         a lock that a kernel holds until its call is answered.
 * Method: first each rule by itself, with three sessions at a whole exportd on a virtual
 *         clock; then clients that act at random, get messages with delay, and hold locks
 *         as kernels do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exportd/tokens/tokens.h"
#include "tests/unit/exportd/world.h"

enum { LIMIT = 64 }; /* tokens of a session in tests with few */
enum { RECALLS_MAX = 256, EVICT_MS = 5000, LEASE_MS = 20000, GRACE_MS = 22000 };
#define NONE      ROZO__TOKEN_MODE__TOKEN_NONE
#define SHARED    ROZO__TOKEN_MODE__SHARED
#define RANGES    ROZO__TOKEN_MODE__RANGES
#define EXCLUSIVE ROZO__TOKEN_MODE__EXCLUSIVE

static struct world w;
static uint64_t s1, s2, s3, dir, file;

static void become(uint64_t session)
{
    w.session = session;
}

static uint64_t one_more(void)
{
    w.session = 0;
    world_reopen_session(&w);
    return w.session;
}

static void cool_down(void)
{
    env_virtual_advance_ms(&w.env, 1100);
}

static uint64_t many[2 * LIMIT];

static void make_many(void)
{
    struct seen seen;
    char name[32];

    for (unsigned i = 0; i < 2 * LIMIT; i++) {
        snprintf(name, sizeof(name), "%u", i);
        OK(t_create(&w, dir, name, S_IFREG | 0644, &seen));
        many[i] = seen.ino;
    }
}

/* Starts the world. few: few tokens for many files. */
static int begin(bool few)
{
    struct seen seen;

    world_open(&w, 9);
    w.evict_ms = EVICT_MS;
    if (few) {
        w.session_tokens_max = LIMIT;
        w.tokens_max = 2 * LIMIT;
    }
    world_start(&w);
    world_make_export(&w, 4, 0);
    s1 = w.session;
    OK(t_create(&w, 1, "dir", S_IFDIR | 0755, &seen));
    dir = seen.ino;
    OK(t_create(&w, dir, "file", S_IFREG | 0644, &seen));
    file = seen.ino;
    if (few)
        make_many();
    world_reopen_session(&w); /* holds nothing */
    s2 = one_more();
    s3 = one_more();
    become(s1);
    w.disobeys = true;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return begin(false);
}

static int setup_few(void **state)
{
    (void)state;
    return begin(true);
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

/* ---- calls that may wait ---- */

static struct answer_got *sent(uint64_t session, unsigned op, const ProtobufCMessage *req)
{
    struct answer_got *got = malloc(sizeof(*got));
    uint8_t msg[512];

    assert_true(protobuf_c_message_get_packed_size(req) <= sizeof(msg));
    world_send(&w, op, RPC_ROLE_CLIENT, session, msg, protobuf_c_message_pack(req, msg),
               got);
    env_virtual_run_posted(&w.env);
    return got;
}

/* Checks the status of the answer. */
static void ends(struct answer_got *got, unsigned status)
{
    env_virtual_run_posted(&w.env);
    assert_true(got->came);
    assert_int_equal(got->status, status);
    free(got->msg);
    free(got);
}

static void *message(struct answer_got *got, const ProtobufCMessageDescriptor *desc)
{
    ProtobufCMessage *m;

    env_virtual_run_posted(&w.env);
    assert_true(got->came);
    m = protobuf_c_message_unpack(desc, NULL, got->len, got->msg);
    assert_non_null(m);
    return m;
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){ strlen(text), (uint8_t *)(uintptr_t)text };
}

static struct answer_got *getattr(uint64_t session, uint64_t ino)
{
    Rozo__MdGetattrReq req = ROZO__MD_GETATTR_REQ__INIT;

    req.ino = ino;
    return sent(session, ROZO__OP__MD_GETATTR, &req.base);
}

static struct answer_got *lookup(uint64_t session, uint64_t parent, const char *name)
{
    Rozo__MdLookupReq req = ROZO__MD_LOOKUP_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    return sent(session, ROZO__OP__MD_LOOKUP, &req.base);
}

static struct answer_got *chmod_to(uint64_t session, uint64_t ino, uint32_t mode)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = ROZO__SETATTR_BITS__SET_MODE;
    req.mode = mode;
    return sent(session, ROZO__OP__MD_SETATTR, &req.base);
}

static struct answer_got *wrote(uint64_t session, uint64_t ino, uint64_t size)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;

    req.ino = ino;
    req.size = size;
    req.has_data = true;
    return sent(session, ROZO__OP__MD_WROTE, &req.base);
}

static struct answer_got *make(uint64_t session, uint64_t parent, const char *name,
                               bool open)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.mode = S_IFREG | 0644;
    req.open = open;
    req.exclusive = !open;
    return sent(session, ROZO__OP__MD_CREATE, &req.base);
}

static struct answer_got *removal(uint64_t session, uint64_t parent, const char *name)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    return sent(session, ROZO__OP__MD_UNLINK, &req.base);
}

static struct answer_got *renamed(uint64_t session, uint64_t parent, const char *name,
                                  uint64_t new_parent, const char *new_name,
                                  uint32_t flags)
{
    Rozo__MdRenameReq req = ROZO__MD_RENAME_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.new_parent = new_parent;
    req.new_name = bytes(new_name);
    req.flags = flags;
    return sent(session, ROZO__OP__MD_RENAME, &req.base);
}

static struct answer_got *rename_to(uint64_t session, uint64_t parent, const char *name,
                                    uint64_t new_parent, const char *new_name)
{
    return renamed(session, parent, name, new_parent, new_name, 0);
}

static struct answer_got *exchange(uint64_t session, uint64_t parent, const char *name,
                                   uint64_t new_parent, const char *new_name)
{
    return renamed(session, parent, name, new_parent, new_name, RENAME_EXCHANGE);
}

static struct answer_got *linked(uint64_t session, uint64_t ino, uint64_t parent,
                                 const char *name)
{
    Rozo__MdLinkReq req = ROZO__MD_LINK_REQ__INIT;

    req.ino = ino;
    req.parent = parent;
    req.name = bytes(name);
    return sent(session, ROZO__OP__MD_LINK, &req.base);
}

static struct answer_got *opened(uint64_t session, uint64_t ino, bool write)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

    req.ino = ino;
    req.write = write;
    return sent(session, ROZO__OP__MD_OPEN, &req.base);
}

static struct answer_got *token(uint64_t session, uint64_t ino, Rozo__TokenMode mode,
                                uint64_t call)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    req.ino = ino;
    req.mode = mode;
    req.call = call;
    return sent(session, ROZO__OP__MD_TOKEN, &req.base);
}

static struct answer_got *range_asked(uint64_t session, Rozo__TokenMode mode,
                                      uint64_t from, uint64_t to)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    req.ino = file;
    req.mode = mode;
    req.call = 1;
    req.offset = from;
    req.length = to - from;
    return sent(session, ROZO__OP__MD_TOKEN, &req.base);
}

static struct answer_got *given_back(uint64_t session, uint64_t ino, Rozo__TokenMode keep,
                                     uint64_t grant)
{
    Rozo__MdGiveBackReq req = ROZO__MD_GIVE_BACK_REQ__INIT;
    Rozo__MdGiveBackReq__Token t = ROZO__MD_GIVE_BACK_REQ__TOKEN__INIT, *list[] = { &t };

    t.ino = ino;
    t.keep = keep;
    t.grant = grant;
    req.n_tokens = 1;
    req.tokens = list;
    return sent(session, ROZO__OP__MD_GIVE_BACK, &req.base);
}

static void give_back(uint64_t session, uint64_t ino, Rozo__TokenMode keep,
                      uint64_t grant)
{
    ends(given_back(session, ino, keep, grant), ROZO__STATUS__OK);
}

/* ---- recalls ---- */

struct recalls {
    unsigned n;
    struct recall {
        uint64_t number, ino, grant, call;
        Rozo__TokenMode keep;
    } list[RECALLS_MAX];
};

static struct answer_got *events(uint64_t session, uint64_t seen)
{
    Rozo__MdEventsReq req = ROZO__MD_EVENTS_REQ__INIT;

    req.seen = seen;
    return sent(session, ROZO__OP__MD_EVENTS, &req.base);
}

static void recalls_read(struct answer_got *got, struct recalls *out)
{
    Rozo__MdEventsResp *resp = message(got, &rozo__md_events_resp__descriptor);

    assert_true(resp->n_events <= RECALLS_MAX);
    out->n = (unsigned)resp->n_events;
    for (unsigned i = 0; i < out->n; i++) {
        const Rozo__MdEventsResp__Event *e = resp->events[i];

        assert_int_equal(e->waiter, 0);
        out->list[i] = (struct recall){ e->number, e->ino, e->grant, e->call, e->keep };
    }
    rozo__md_events_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
}

/* Returns all recalls of a session since it was opened; there must be some. */
static struct recalls recalls_of(uint64_t session)
{
    struct recalls r;

    recalls_read(events(session, 0), &r);
    return r;
}

/* Checks that this is the only recall of the session so far. Returns its grant. */
static uint64_t is_recalled(uint64_t session, uint64_t ino, Rozo__TokenMode keep)
{
    struct recalls r = recalls_of(session);

    assert_int_equal(r.n, 1);
    assert_int_equal(r.list[0].number, 1);
    assert_int_equal(r.list[0].ino, ino);
    assert_int_equal(r.list[0].keep, keep);
    return r.list[0].grant;
}

/* Checks that a session got no recall, and closes it. */
static void is_left_alone(uint64_t session)
{
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    struct answer_got *got = events(session, 0), *again;

    assert_false(got->came);
    again = events(session, 0);
    ends(got, ROZO__STATUS__OK); /* without events */
    assert_false(again->came);
    got = again;
    again = sent(session, ROZO__OP__MD_CLOSE_SESSION, &bye.base);
    ends(got, ROZO__STATUS__NO_SESSION);
    ends(again, ROZO__STATUS__OK);
}

/* Returns the token in an answer such as that of MD_GETATTR. */
static Rozo__TokenMode given(struct answer_got *got, uint64_t *grant)
{
    Rozo__MdEntryResp *resp = message(got, &rozo__md_entry_resp__descriptor);
    Rozo__TokenMode mode = resp->attr->token;

    if (grant != NULL)
        *grant = resp->grant;
    rozo__md_entry_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
    return mode;
}

static Rozo__TokenMode given_open(struct answer_got *got, uint64_t *grant)
{
    Rozo__MdOpenResp *resp = message(got, &rozo__md_open_resp__descriptor);
    Rozo__TokenMode mode = resp->attr->token;

    if (grant != NULL)
        *grant = resp->grant;
    rozo__md_open_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
    return mode;
}

/* Checks for a grant of this range, or, with to 0, of the whole file. Returns its
 * serial. */
static uint64_t given_range(struct answer_got *got, uint64_t from, uint64_t to)
{
    Rozo__MdOpenResp *resp = message(got, &rozo__md_open_resp__descriptor);
    uint64_t grant = resp->grant;

    assert_true(to == 0 ? resp->attr->token != RANGES : resp->attr->token == RANGES);
    assert_int_equal(resp->range_from, from);
    assert_int_equal(resp->range_to, to);
    rozo__md_open_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
    return grant;
}

static void given_dirs(struct answer_got *got, Rozo__TokenMode dir_token,
                       Rozo__TokenMode new_dir_token)
{
    Rozo__MdRemovedResp *resp = message(got, &rozo__md_removed_resp__descriptor);

    assert_int_equal(resp->dir_token, dir_token);
    assert_int_equal(resp->new_dir_token, new_dir_token);
    rozo__md_removed_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
}

/* ---- grants ---- */

static void test_answers_give(void **state)
{
    struct answer_got *got = lookup(s1, dir, "file");
    Rozo__MdEntryResp *entry = message(got, &rozo__md_entry_resp__descriptor);
    Rozo__MdCreateResp *created;
    uint64_t grant = entry->grant;

    (void)state;
    assert_true(entry->attr->token == SHARED && entry->dir_token == SHARED);
    assert_true(entry->others && grant >> 40 == 1);
    rozo__md_entry_resp__free_unpacked(entry, NULL);
    ends(got, ROZO__STATUS__OK);
    got = lookup(s2, dir, "none"); /* the absence of a name may be kept, too */
    entry = message(got, &rozo__md_entry_resp__descriptor);
    assert_true(entry->attr == NULL && entry->dir_token == SHARED);
    assert_true(entry->grant > grant);
    grant = entry->grant;
    rozo__md_entry_resp__free_unpacked(entry, NULL);
    ends(got, ROZO__STATUS__NOT_FOUND);
    assert_int_equal(given_open(opened(s2, file, true), NULL), SHARED); /* s1 holds it */
    got = make(s3, 1, "new", true);
    created = message(got, &rozo__md_create_resp__descriptor);
    assert_true(created->attr->token == EXCLUSIVE && created->dir_token == SHARED);
    assert_true(created->others && created->grant > grant);
    rozo__md_create_resp__free_unpacked(created, NULL);
    ends(got, ROZO__STATUS__OK);
}

static void test_single_session_gets_tokens_too(void **state)
{
    uint64_t first, second;

    (void)state;
    is_left_alone(s2);
    is_left_alone(s3);
    assert_int_equal(given_open(opened(s1, file, true), &first), EXCLUSIVE);
    /* a mode never sinks */
    assert_int_equal(given(getattr(s1, file), &second), EXCLUSIVE);
    assert_true(second > first);
    s2 = one_more();
    ends(getattr(s2, 1), ROZO__STATUS__OK);
    is_left_alone(s1);
}

static void test_getattr_recalls_an_exclusive_token_to_shared(void **state)
{
    struct answer_got *got, *again;
    uint64_t grant;

    (void)state;
    assert_int_equal(given_open(opened(s1, file, true), &grant), EXCLUSIVE);
    got = getattr(s2, file);
    again = lookup(s3, dir, "file");
    assert_true(!got->came && !again->came);
    assert_int_equal(is_recalled(s1, file, SHARED), grant);
    assert_int_equal(given(wrote(s1, file, 77), NULL), NONE); /* not granted now */
    assert_false(got->came);
    give_back(s1, file, SHARED, grant);
    ends(again, ROZO__STATUS__OK);
    assert_int_equal(given(got, NULL), NONE); /* several sessions want it */
    cool_down();
    assert_int_equal(given(getattr(s2, file), NULL), SHARED);
    assert_int_equal(given(getattr(s1, file), NULL), SHARED);
}

/* RANGES of which nothing is known cannot be kept: a mount never sends this. */
static void test_token_is_not_lowered_to_unknown_ranges(void **state)
{
    struct answer_got *got;
    uint64_t grant;

    (void)state;
    assert_int_equal(given_open(opened(s1, file, true), &grant), EXCLUSIVE);
    ends(given_back(s1, file, RANGES, grant), ROZO__STATUS__INVALID);
    got = getattr(s2, file);
    assert_int_equal(is_recalled(s1, file, SHARED), grant);
    give_back(s1, file, SHARED, grant);
    ends(got, ROZO__STATUS__OK);
}

static void test_change_recalls_the_tokens_of_all_others(void **state)
{
    struct answer_got *got;
    uint64_t grant2, grant3;

    (void)state;
    assert_int_equal(given(getattr(s2, file), &grant2), SHARED);
    assert_int_equal(given(getattr(s3, file), &grant3), SHARED);
    got = chmod_to(s1, file, 0600);
    assert_int_equal(is_recalled(s2, file, NONE), grant2);
    assert_int_equal(is_recalled(s3, file, NONE), grant3);
    give_back(s2, file, NONE, grant2);
    assert_false(got->came);
    give_back(s2, file, NONE, grant2);   /* repeated: no effect */
    give_back(s3, file, SHARED, grant3); /* not enough */
    assert_false(got->came);
    give_back(s3, file, NONE, grant3);
    assert_int_equal(given(got, NULL), NONE);
}

/* A token granted after the client's message stays. */
static void test_give_back_of_an_older_grant_is_ignored(void **state)
{
    struct answer_got *got;
    uint64_t first, second;

    (void)state;
    assert_int_equal(given(getattr(s1, file), &first), SHARED);
    assert_int_equal(given(getattr(s1, file), &second), SHARED);
    give_back(s1, file, NONE, first);
    got = chmod_to(s2, file, 0600);
    assert_int_equal(is_recalled(s1, file, NONE), second);
    give_back(s1, file, NONE, second);
    ends(got, ROZO__STATUS__OK);
}

static void test_a_removal_asks_side_by_side(void **state)
{
    struct answer_got *got, *news;
    struct recalls r;

    (void)state;
    ends(lookup(s2, dir, "file"), ROZO__STATUS__OK);
    news = events(s2, 0);
    got = removal(s1, dir, "file");
    recalls_read(news, &r); /* one answer with two recalls */
    assert_int_equal(r.n, 2);
    assert_true(r.list[0].ino == dir && r.list[1].ino == file);
    give_back(s2, dir, NONE, r.list[0].grant);
    give_back(s2, file, NONE, r.list[1].grant);
    given_dirs(got, NONE, NONE); /* cooling down */
    ends(removal(s2, dir, "file"), ROZO__STATUS__NOT_FOUND);
}

static void test_a_listing_does_not_wait(void **state)
{
    Rozo__MdReaddirReq req = ROZO__MD_READDIR_REQ__INIT;
    Rozo__MdReaddirResp *resp;
    struct answer_got *got;

    (void)state;
    ends(opened(s1, file, true), ROZO__STATUS__OK);
    ends(make(s1, dir, "other", false), ROZO__STATUS__OK);
    req.ino = dir;
    req.max_entries = 10;
    req.plus = true;
    got = sent(s2, ROZO__OP__MD_READDIR, &req.base);
    resp = message(got, &rozo__md_readdir_resp__descriptor);
    assert_int_equal(resp->n_entries, 2);
    assert_null(resp->entries[0]->attr); /* the writer knows newer attributes */
    assert_int_equal(resp->entries[1]->attr->token, SHARED);
    assert_true(resp->dir_token == SHARED && resp->grant != 0 && resp->others);
    rozo__md_readdir_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
}

static void test_rename_grants_the_new_directory_to_the_holder_of_the_old(void **state)
{
    struct answer_got *got;
    struct recalls r;

    (void)state;
    ends(getattr(s1, dir), ROZO__STATUS__OK);
    ends(getattr(s2, 1), ROZO__STATUS__OK);
    got = rename_to(s1, dir, "file", 1, "moved");
    r = recalls_of(s2);
    give_back(s2, 1, NONE, r.list[0].grant);
    given_dirs(got, SHARED, SHARED); /* though one of them is cooling */
}

static void test_a_rename_gives_nothing_new_where_several_change_names(void **state)
{
    struct answer_got *got;
    struct recalls r;

    (void)state;
    ends(getattr(s2, dir), ROZO__STATUS__OK);
    got = rename_to(s1, dir, "file", dir, "moved");
    r = recalls_of(s2);
    give_back(s2, dir, NONE, r.list[0].grant);
    given_dirs(got, NONE, NONE);
    ends(rename_to(s2, dir, "moved", dir, "file"), ROZO__STATUS__OK);
    given_dirs(rename_to(s1, dir, "file", 1, "moved"), NONE, SHARED);
}

/* Names kept in the new directory are kept in the old one, too. */
static void test_exchange_grants_both_directories_to_the_holder_of_one(void **state)
{
    struct answer_got *got;
    struct recalls r;

    (void)state;
    ends(make(s1, 1, "other", false), ROZO__STATUS__OK);
    ends(getattr(s2, dir), ROZO__STATUS__OK);
    got = exchange(s1, dir, "file", 1, "other");
    r = recalls_of(s2);
    give_back(s2, dir, NONE, r.list[0].grant);
    given_dirs(got, SHARED, SHARED);
}

/* ---- MD_TOKEN ---- */

static void test_in_order_of_arrival(void **state)
{
    struct answer_got *two, *three, *see;
    uint64_t grant;
    struct recalls r;

    (void)state;
    assert_int_equal(given_open(token(s1, file, EXCLUSIVE, 11), &grant), EXCLUSIVE);
    two = token(s2, file, EXCLUSIVE, 22);
    three = token(s3, file, SHARED, 33);
    assert_int_equal(is_recalled(s1, file, NONE), grant);
    r = recalls_of(s1);
    assert_int_equal(r.list[0].call, 11);
    give_back(s1, file, NONE, grant);
    assert_false(three->came);
    assert_int_equal(given_open(two, &grant), EXCLUSIVE);
    r = recalls_of(s2); /* at once: the next one waits */
    assert_true(r.n == 1 && r.list[0].call == 22 && r.list[0].keep == SHARED);
    see = getattr(s1, file);
    assert_false(see->came);
    give_back(s2, file, SHARED, grant);
    assert_int_equal(given_open(three, NULL), SHARED);
    assert_int_equal(given(see, NULL), NONE);
}

/* A recall names the call only if nothing was granted after it. */
static void test_a_later_grant_hides_the_call(void **state)
{
    struct answer_got *got;
    struct recalls r;

    (void)state;
    ends(token(s1, file, SHARED, 11), ROZO__STATUS__OK);
    ends(getattr(s1, file), ROZO__STATUS__OK);
    got = chmod_to(s2, file, 0600);
    r = recalls_of(s1);
    assert_int_equal(r.list[0].call, 0);
    give_back(s1, file, NONE, r.list[0].grant);
    ends(got, ROZO__STATUS__OK);
}

static void test_token_requests_are_checked(void **state)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    (void)state;
    ends(token(s1, dir, EXCLUSIVE, 1), ROZO__STATUS__IS_DIRECTORY);
    ends(token(s1, 99999, SHARED, 1), ROZO__STATUS__STALE_HANDLE);
    ends(token(s1, file, SHARED, 0), ROZO__STATUS__INVALID);
    ends(token(s1, file, NONE, 1), ROZO__STATUS__INVALID);
    ends(token(s1, dir, SHARED, 1), ROZO__STATUS__OK);
    req.ino = file;
    req.call = 1;
    req.mode = (Rozo__TokenMode)7;
    ends(sent(s1, ROZO__OP__MD_TOKEN, &req.base), ROZO__STATUS__INVALID);
}

static uint32_t epoch_of(uint64_t session, uint32_t epoch)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;
    Rozo__MdOpenResp *resp;
    struct answer_got *got;

    req.ino = file;
    req.mode = EXCLUSIVE;
    req.call = 5;
    req.epoch = epoch;
    got = sent(session, ROZO__OP__MD_TOKEN, &req.base);
    resp = message(got, &rozo__md_open_resp__descriptor);
    epoch = resp->data->epoch;
    rozo__md_open_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
    return epoch;
}

static void test_an_epoch_stays_while_nobody_else_writes(void **state)
{
    struct seen mine, other;
    uint32_t epoch;

    (void)state;
    OK(t_open(&w, file, true, &mine));
    assert_int_equal(epoch_of(s1, mine.epoch), mine.epoch);
    give_back(s1, file, NONE, UINT64_MAX);
    become(s2);
    OK(t_open(&w, file, true, &other));
    give_back(s2, file, NONE, UINT64_MAX);
    epoch = epoch_of(s1, mine.epoch);
    assert_true(epoch > other.epoch);
    assert_int_equal(epoch_of(s1, epoch), epoch);
}

/* ---- sessions with a recall themselves ---- */

static void test_names_do_not_wait_where_one_is_asked(void **state)
{
    struct answer_got *got, *link;
    uint64_t grant;

    (void)state;
    assert_int_equal(given(getattr(s2, dir), &grant), SHARED);
    got = make(s1, dir, "new", false);
    assert_false(got->came);
    ends(make(s2, dir, "other", false), ROZO__STATUS__RETRY);
    ends(removal(s2, dir, "file"), ROZO__STATUS__RETRY);
    ends(rename_to(s2, 1, "dir", dir, "x"), ROZO__STATUS__RETRY);
    ends(chmod_to(s2, dir, 0700), ROZO__STATUS__RETRY);
    assert_int_equal(given(getattr(s2, dir), NULL), NONE);
    ends(lookup(s2, dir, "file"), ROZO__STATUS__OK);
    link = linked(s3, file, dir, "link"); /* s3 has no recall: it waits in the queue */
    assert_false(link->came);
    give_back(s2, dir, NONE, grant);
    ends(got, ROZO__STATUS__OK);
    give_back(s2, file, NONE, UINT64_MAX);
    ends(link, ROZO__STATUS__OK);
}

/* The call arrives before the recall. */
static void test_names_that_wait_are_sent_back(void **state)
{
    struct answer_got *first, *second, *third;

    (void)state;
    ends(getattr(s2, dir), ROZO__STATUS__OK);
    ends(getattr(s3, 1), ROZO__STATUS__OK);
    first = rename_to(s2, dir, "file", 1, "moved"); /* waits for s3 */
    second = make(s1, dir, "new", false);           /* waits behind the first */
    third = make(s2, dir, "other", false);          /* waits behind the second */
    assert_true(!first->came && !second->came && !third->came);
    give_back(s3, 1, NONE, UINT64_MAX);
    ends(first, ROZO__STATUS__OK); /* s2 still holds the directory, which is recalled */
    ends(third, ROZO__STATUS__RETRY);
    assert_false(second->came);
    give_back(s2, dir, NONE, UINT64_MAX);
    ends(second, ROZO__STATUS__OK);
}

static void keep_alive(uint64_t session)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    become(session);
    OK(world_call(&w, ROZO__OP__MD_KEEP_ALIVE, &req.base, NULL, NULL));
}

/* Two kernels hold a directory that they must give back, for a rename that waits for the
 * other one. */
static void test_names_that_wait_for_each_other_are_sent_back(void **state)
{
    struct answer_got *one, *two;

    (void)state;
    ends(getattr(s1, dir), ROZO__STATUS__OK);
    ends(getattr(s2, 1), ROZO__STATUS__OK);
    one = make(s1, 1, "x", false);
    two = make(s2, dir, "y", false);
    assert_false(one->came || two->came);
    for (unsigned ms = 0; ms < 2000; ms += 1000) {
        keep_alive(s1);
        keep_alive(s2);
        env_virtual_advance_ms(&w.env, 1000);
    }
    ends(one, ROZO__STATUS__RETRY);
    ends(two, ROZO__STATUS__RETRY);
    give_back(s1, dir, NONE, UINT64_MAX);
    give_back(s2, 1, NONE, UINT64_MAX);
    ends(make(s1, 1, "x", false), ROZO__STATUS__OK);
    ends(make(s2, dir, "y", false), ROZO__STATUS__OK);
}

static void test_holder_may_report_its_writes_while_calls_wait(void **state)
{
    struct answer_got *got, *mode, *again;
    uint64_t grant;

    (void)state;
    assert_int_equal(given(getattr(s2, file), &grant), SHARED);
    got = chmod_to(s1, file, 0600);
    mode = chmod_to(s2, file, 0660);
    again = token(s2, file, SHARED, 5);
    assert_true(!got->came && !mode->came && !again->came);
    ends(wrote(s2, file, 10), ROZO__STATUS__OK);
    give_back(s2, file, NONE, grant);
    ends(got, ROZO__STATUS__OK);
    ends(mode, ROZO__STATUS__OK);
    assert_int_equal(given_open(again, NULL), SHARED);
}

/* ---- duplicates, ends ---- */

static void test_a_call_that_comes_again_is_done_once(void **state)
{
    struct answer_got *got, *again;
    struct seen s;
    uint64_t grant;

    (void)state;
    assert_int_equal(given(getattr(s2, file), &grant), SHARED);
    got = linked(s1, file, 1, "link");
    w.again_id = w.n_ids;
    again = linked(s1, file, 1, "link");
    assert_true(!got->came && !again->came);
    w.again_id = 0;
    give_back(s2, file, NONE, grant);
    ends(got, ROZO__STATUS__OK);
    ends(again, ROZO__STATUS__OK); /* identical to the first answer */
    w.again_id = w.n_ids - 1;      /* the give-back has an id, too */
    ends(linked(s1, file, 1, "link"), ROZO__STATUS__OK);
    w.again_id = 0;
    become(s1);
    OK(t_getattr(&w, file, &s));
    assert_int_equal(s.nlink, 2);
}

static void test_the_end_of_a_session_lets_go(void **state)
{
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;
    struct answer_got *one, *three, *other;

    (void)state;
    ends(opened(s2, file, true), ROZO__STATUS__OK);
    ends(getattr(s1, dir), ROZO__STATUS__OK);
    one = getattr(s1, file);
    other = chmod_to(s2, dir, 0700); /* waits for s1 */
    three = token(s3, file, EXCLUSIVE, 5);
    assert_true(!one->came && !three->came && !other->came);
    ends(sent(s2, ROZO__OP__MD_CLOSE_SESSION, &bye.base), ROZO__STATUS__OK);
    ends(other, ROZO__STATUS__NO_SESSION);
    ends(one, ROZO__STATUS__OK);
    ends(three, ROZO__STATUS__OK);
}

/* Log output until log_has_said(). */
struct log_heard {
    FILE *file;
    int stderr_fd;
};

static void log_hear(struct log_heard *heard)
{
    fflush(stderr);
    heard->file = tmpfile();
    assert_non_null(heard->file);
    heard->stderr_fd = dup(STDERR_FILENO);
    assert_true(dup2(fileno(heard->file), STDERR_FILENO) >= 0);
}

static bool log_has_said(struct log_heard *heard, const char *words)
{
    char line[1024];
    bool has = false;

    fflush(stderr);
    dup2(heard->stderr_fd, STDERR_FILENO);
    close(heard->stderr_fd);
    rewind(heard->file);
    while (fgets(line, sizeof(line), heard->file) != NULL)
        has |= strstr(line, words) != NULL;
    fclose(heard->file);
    return has;
}

static void test_session_that_does_not_give_back_is_evicted(void **state)
{
    struct log_heard heard;
    struct answer_got *got;

    (void)state;
    ends(opened(s1, file, true), ROZO__STATUS__OK);
    got = getattr(s2, file);
    for (unsigned ms = 0; ms < EVICT_MS; ms += 1000) {
        assert_false(got->came);
        keep_alive(s1);
        keep_alive(s2);
        env_virtual_advance_ms(&w.env, 1000);
    }
    w.env.now_ns += 60000000000ull; /* exportd itself was suspended: does not count */
    env_virtual_advance_ms(&w.env, 100);
    keep_alive(s1);
    assert_false(got->came);
    for (unsigned ms = 0; ms < 2000; ms += 1000) {
        env_virtual_advance_ms(&w.env, 1000);
        keep_alive(s2);
    }
    ends(getattr(s1, file), ROZO__STATUS__NO_SESSION);
    log_hear(&heard);
    for (unsigned ms = 2000; ms < LEASE_MS; ms += 1000) {
        assert_false(got->came); /* the client may not know, and rely on its tokens */
        keep_alive(s2);
        env_virtual_advance_ms(&w.env, 1000);
    }
    assert_false(log_has_said(&heard, "stay reserved")); /* all have confirmed */
    env_virtual_advance_ms(&w.env, 1000);
    ends(got, ROZO__STATUS__OK);
}

static void test_a_stop_sends_back(void **state)
{
    struct answer_got *got;

    (void)state;
    ends(opened(s1, file, true), ROZO__STATUS__OK);
    got = getattr(s2, file);
    assert_false(got->came);
    assert_int_equal(world_stop(&w), 0);
    ends(got, ROZO__STATUS__BUSY);
    world_start(&w);
}

/* ---- claims ---- */

struct claim {
    uint64_t shared[2], exclusive[2];
    unsigned n_shared, n_exclusive, n_ranges;
    Rozo__TokenRange **ranges;
};

/* Claims tokens. Returns true if all are held then. */
static bool claims(uint64_t session, struct claim c, uint64_t *grant)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    bool lost;

    req.export_name = (char *)(uintptr_t) "main";
    req.client = (char *)(uintptr_t) "test";
    req.session = session;
    req.n_shared_tokens = c.n_shared;
    req.shared_tokens = c.shared;
    req.n_exclusive_tokens = c.n_exclusive;
    req.exclusive_tokens = c.exclusive;
    req.n_ranges = c.n_ranges;
    req.ranges = c.ranges;
    become(session);
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    assert_int_equal(resp->session, session);
    assert_int_not_equal(resp->grant, 0);
    if (grant != NULL)
        *grant = resp->grant;
    lost = resp->tokens_lost;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    return !lost;
}

static const struct claim nothing;

static void test_a_restart_takes_nothing_away(void **state)
{
    uint64_t before, grant;
    struct answer_got *got;

    (void)state;
    assert_int_equal(given_open(opened(s1, file, true), &before), EXCLUSIVE);
    ends(lookup(s2, 1, "dir"), ROZO__STATUS__OK);
    world_kill(&w);
    assert_true(claims(s2, (struct claim){ .shared = { dir }, .n_shared = 1 }, NULL));
    /* a session that is not back may be writing it */
    ends(getattr(s2, file), ROZO__STATUS__BUSY);
    ends(lookup(s2, dir, "file"), ROZO__STATUS__BUSY);
    ends(getattr(s2, dir), ROZO__STATUS__OK);
    ends(make(s2, dir, "new", false), ROZO__STATUS__BUSY);
    ends(token(s2, file, SHARED, 5), ROZO__STATUS__BUSY);
    ends(lookup(s2, dir, "none"), ROZO__STATUS__NOT_FOUND);
    assert_true(
        claims(s1, (struct claim){ .exclusive = { file }, .n_exclusive = 1 }, &grant));
    assert_true(grant > before);
    /* calls of the holder go on */
    assert_int_equal(given(wrote(s1, file, 100), NULL), EXCLUSIVE);
    /* no new tokens are granted */
    assert_int_equal(given(getattr(s1, 1), NULL), NONE);
    ends(chmod_to(s1, file, 0600), ROZO__STATUS__OK);
    assert_true(claims(s3, nothing, NULL)); /* all sessions are back */
    ends(make(s1, 1, "more", false), ROZO__STATUS__OK);
    got = getattr(s2, file);
    assert_true(is_recalled(s1, file, SHARED) > grant); /* grant of the later answers */
    give_back(s1, file, NONE, UINT64_MAX);
    ends(got, ROZO__STATUS__OK);
}

static void test_claims_that_exclude_each_other(void **state)
{
    (void)state;
    world_kill(&w);
    assert_true(claims(s1, (struct claim){ .shared = { file }, .n_shared = 1 }, NULL));
    assert_false(claims(
        s2,
        (struct claim){
            .shared = { dir }, .exclusive = { file }, .n_shared = 1, .n_exclusive = 1 },
        NULL));
    ends(getattr(s2, dir), ROZO__STATUS__OK); /* directory: never EXCLUSIVE */
    assert_true(claims(s3, (struct claim){ .shared = { file }, .n_shared = 1 }, NULL));
    ends(chmod_to(s2, dir, 0700), ROZO__STATUS__OK); /* no session holds it */
}

/* After a broken link exportd still knows the holdings of a session. */
static void test_claim_after_a_broken_link_adds_nothing(void **state)
{
    struct answer_got *got;
    uint64_t grant, newer;

    (void)state;
    ends(opened(s1, file, true), ROZO__STATUS__OK);
    ends(getattr(s1, dir), ROZO__STATUS__OK);
    assert_true(claims(s1, (struct claim){ .shared = { file }, .n_shared = 1 }, &grant));
    ends(chmod_to(s2, dir, 0700), ROZO__STATUS__OK); /* not claimed, so dropped */
    ends(getattr(s2, file), ROZO__STATUS__OK);
    got = chmod_to(s2, file, 0600);
    assert_int_equal(is_recalled(s1, file, NONE), grant);
    assert_true(claims(s1, (struct claim){ .shared = { file }, .n_shared = 1 }, &newer));
    assert_int_equal(recalls_of(s1).list[1].grant, newer); /* recalled once more */
    give_back(s1, file, NONE, grant);
    assert_false(got->came);
    assert_false(
        claims(s1, (struct claim){ .exclusive = { file }, .n_exclusive = 1 }, NULL));
    ends(got, ROZO__STATUS__OK); /* nothing is held any more */
}

static void test_session_that_returns_after_the_grace_has_no_tokens(void **state)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;

    (void)state;
    world_kill(&w);
    assert_true(claims(s2, nothing, NULL));
    for (unsigned ms = 0; ms < GRACE_MS; ms += 1000) {
        keep_alive(s2);
        env_virtual_advance_ms(&w.env, 1000);
    }
    req.export_name = (char *)(uintptr_t) "main";
    req.client = (char *)(uintptr_t) "test";
    req.session = s1;
    req.n_shared_tokens = 1;
    req.shared_tokens = &file;
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    assert_true(resp->tokens_lost && resp->session != s1);
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    ends(chmod_to(s2, file, 0600), ROZO__STATUS__OK);
}

/* ---- ranges ---- */

enum { UNIT_BYTES = 8192, N_UNITS = 100 };

static uint64_t last_recall(uint64_t session)
{
    struct recalls r = recalls_of(session);

    assert_true(r.n > 0 && r.list[r.n - 1].keep == NONE);
    return r.list[r.n - 1].grant;
}

static struct answer_got *write_asked(uint64_t session, uint64_t unit)
{
    return range_asked(session, EXCLUSIVE, unit * UNIT_BYTES, (unit + 1) * UNIT_BYTES);
}

/* Gives s1 the file before unit 50 and s2 the rest. Out: the grants. */
static void make_two_halves(uint64_t *grant1, uint64_t *grant2)
{
    struct answer_got *got;
    uint64_t grant;

    ends(wrote(s1, file, N_UNITS * UNIT_BYTES), ROZO__STATUS__OK);
    grant = given_range(write_asked(s1, 10), 0, 0);
    got = write_asked(s2, 50);
    give_back(s1, file, NONE, grant);
    grant = given_range(got, 11 * UNIT_BYTES, SPAN_END); /* no other session was there */
    got = write_asked(s1, 49);
    give_back(s2, file, NONE, grant);
    *grant1 = given_range(got, 0, 50 * UNIT_BYTES);
    *grant2 = given_range(write_asked(s2, 51), 50 * UNIT_BYTES, SPAN_END);
}

static void test_writers_of_two_halves_get_ranges(void **state)
{
    struct answer_got *got;
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    got = wrote(s1, file, 0); /* no recall is needed */
    assert_int_equal(given(got, &grant1), RANGES);
    got = write_asked(s1, 70); /* a single stray access gets only that unit */
    assert_false(got->came);
    give_back(s2, file, NONE, last_recall(s2));
    given_range(got, 52 * UNIT_BYTES, SPAN_END); /* s2 was not there */
    given_range(range_asked(s2, SHARED, 51 * UNIT_BYTES + 5, 51 * UNIT_BYTES + 6),
                50 * UNIT_BYTES, 52 * UNIT_BYTES);
    given_range(range_asked(s1, SHARED, 51 * UNIT_BYTES, 52 * UNIT_BYTES),
                51 * UNIT_BYTES, 52 * UNIT_BYTES); /* s1 and s2 may read it */
    got = write_asked(s2, 51);
    assert_false(got->came);
    give_back(s1, file, NONE, last_recall(s1));
    given_range(got, 50 * UNIT_BYTES, SPAN_END);
}

/* Sessions that use the whole file get it in turn. */
static void test_writer_that_often_leaves_its_half_gets_the_whole_file(void **state)
{
    static const unsigned strays = 8;
    struct answer_got *got;
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    for (unsigned i = 0; i <= strays; i++) {
        got = write_asked(s1, 51);
        give_back(s2, file, NONE, last_recall(s2));
        if (i == strays) {
            given_range(got, 0, 0);
            return;
        }
        given_range(got, 51 * UNIT_BYTES, 52 * UNIT_BYTES);
        got = write_asked(s2, 51);
        give_back(s1, file, NONE, last_recall(s1));
        given_range(got, 50 * UNIT_BYTES, SPAN_END);
    }
}

static void test_getattr_recalls_all_ranges(void **state)
{
    struct answer_got *got;
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    got = getattr(s3, file);
    give_back(s1, file, NONE, grant1 - 1); /* an older grant */
    assert_false(got->came);
    give_back(s2, file, NONE, last_recall(s2));
    assert_false(got->came);
    give_back(s1, file, NONE, last_recall(s1));
    assert_int_equal(given(got, NULL), NONE);
}

static void test_the_size_stays_while_there_are_ranges(void **state)
{
    struct answer_got *got;
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    got = write_asked(s1, N_UNITS);
    assert_false(got->came);
    give_back(s2, file, NONE, last_recall(s2));
    given_range(got, 0, 0);
}

/* A mount asks for the whole file first; exportd does not rely on that. */
static void test_growth_reported_with_ranges_waits_for_other_sessions(void **state)
{
    struct answer_got *got;
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    got = wrote(s1, file, N_UNITS * UNIT_BYTES + 1);
    assert_false(got->came);
    give_back(s2, file, NONE, last_recall(s2));
    ends(got, ROZO__STATUS__OK);
}

static void test_ranges_are_claimed(void **state)
{
    static Rozo__TokenRange low = ROZO__TOKEN_RANGE__INIT, high = ROZO__TOKEN_RANGE__INIT;
    static Rozo__TokenRange *lows[] = { &low }, *highs[] = { &high };
    struct claim first = { .ranges = lows, .n_ranges = 1 };
    struct claim second = { .ranges = highs, .n_ranges = 1 };
    uint64_t grant1, grant2;

    (void)state;
    make_two_halves(&grant1, &grant2);
    low.ino = high.ino = file;
    low.write = high.write = true;
    low.to = high.from = 50 * UNIT_BYTES;
    high.to = SPAN_END;
    assert_true(claims(s1, first, NULL));
    world_kill(&w);
    assert_true(claims(s1, first, NULL));
    assert_true(claims(s2, second, NULL));
    ends(wrote(s2, file, 0), ROZO__STATUS__OK);
    high.from -= UNIT_BYTES;
    assert_false(claims(s2, second, NULL));
    assert_false(claims(s3, (struct claim){ .shared = { file }, .n_shared = 1 }, NULL));
}

/* ---- bounds ---- */

static void no_recall(struct token_holder *holder, const struct token_recall *recall)
{
    (void)holder;
    (void)recall;
    fail();
}

static void no_wake(struct token_waiter *waiter)
{
    (void)waiter;
    fail();
}

static void test_a_session_has_only_so_many(void **state)
{
    static const struct token_hooks hooks = { no_recall, no_wake };
    static const struct token_limits limits = { LIMIT, 4 * LIMIT };
    struct token_holder holder;
    struct tokens t;
    size_t n_all = 0;
    uint64_t ino = 0;

    (void)state;
    tokens_init(&t, &hooks, &limits, &n_all);
    token_holder_init(&holder);
    for (struct token_grant g = { .mode = TOKEN_SHARED }; ino < LIMIT + 5;) {
        g.ino = ++ino;
        g.serial = ino;
        assert_int_equal(tokens_grant(&t, &holder, &g, 0) == TOKEN_SHARED, ino <= LIMIT);
    }
    assert_int_equal(n_all, LIMIT);
    for (struct token_grant g = { .mode = TOKEN_SHARED, .how = GRANT_ASKED };
         tokens_have_room(&t, &holder, 1);) {
        g.ino = g.serial = ++ino;
        assert_int_equal(tokens_grant(&t, &holder, &g, 0), TOKEN_SHARED);
    }
    assert_int_equal(n_all, LIMIT + LIMIT / 4);
    tokens_inode_gone(&t, 5);
    assert_true(tokens_have_room(&t, &holder, 1));
    token_holder_end(&t, &holder);
    assert_true(n_all == 0 && t.by_ino.n == 0);
    tokens_free(&t);
}

/* ---- few tokens for all ---- */

/* Returns true if the session gets a token of file i. */
static bool gets(uint64_t session, unsigned i)
{
    uint64_t grant;

    return given(getattr(session, many[i]), &grant) != NONE;
}

static void hold(uint64_t session, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        assert_true(gets(session, i));
}

static void test_surplus_tokens_of_a_session_are_recalled(void **state)
{
    struct recalls r;

    (void)state;
    hold(s1, LIMIT);
    assert_false(gets(s1, LIMIT));
    cool_down();
    r = recalls_of(s1);
    assert_true(r.n > 0 && r.list[0].ino == many[0] && r.list[0].keep == NONE);
    for (unsigned i = 0; i < 4 * EVICT_MS / 1000; i++) { /* no session waits for them */
        keep_alive(s1);
        cool_down();
    }
    assert_false(gets(s1, LIMIT));
    for (unsigned i = 0; i < LIMIT / 2; i++)
        give_back(s1, many[i], NONE, UINT64_MAX);
    assert_true(gets(s1, LIMIT));
    cool_down();
    assert_true(gets(s1, 0)); /* no cooling after a recall for which no session waited */
}

static void hears_max(struct answer_got *got, uint32_t max)
{
    Rozo__MdEventsResp *resp = message(got, &rozo__md_events_resp__descriptor);

    assert_int_equal(resp->tokens_max, max);
    rozo__md_events_resp__free_unpacked(resp, NULL);
    ends(got, ROZO__STATUS__OK);
}

static void test_limit_is_lower_when_all_sessions_hold_too_many(void **state)
{
    struct answer_got *first, *second, *third;

    (void)state;
    hold(s1, LIMIT * 3 / 4);
    hold(s2, LIMIT * 3 / 4);
    hold(s3, LIMIT / 4);
    first = events(s1, 0);
    second = events(s2, 0);
    third = events(s3, 0);
    assert_false(first->came || second->came || third->came);
    cool_down();
    /* five eighths of all, minus those of the third session */
    hears_max(first, LIMIT / 2);
    hears_max(second, LIMIT / 2);
    hears_max(third, LIMIT / 2);
    for (unsigned i = 0; i < LIMIT * 3 / 4; i++) {
        give_back(s1, many[i], NONE, UINT64_MAX);
        give_back(s2, many[i], NONE, UINT64_MAX);
    }
    first = events(s1, UINT64_MAX);
    cool_down();
    hears_max(first, LIMIT); /* enough again */
}

/* ---- random actions ---- */

enum {
    N_CLIENTS = 4,
    N_CALLS = 6, /* calls under way per client */
    N_INODES = 4096,
    N_DIRS = 2,
    N_NAMES = 3,
    DUE_MAX = 512,
    STEPS = 40000,
    SEEDS = 20,
    RANGES_MAX = 1024, /* ranges claimed at a time */
    /* units of a file for ranges; each client mostly works in its own part */
    FILE_UNITS = 16,
};
enum access { NO_ACCESS, TO_READ, TO_WRITE };

/* Token that a client knows of. */
struct kept {
    Rozo__TokenMode mode;
    uint8_t access[FILE_UNITS]; /* for RANGES: enum access */
    uint64_t ino, grant;
    uint64_t recalled; /* newest grant that was recalled; grants up to it are void */
};

struct call {
    bool out, looked_at;
    unsigned op;
    bool locks[N_DIRS]; /* directories locked by the kernel until the answer */
    uint64_t new_dir;   /* target directory of a rename */
    uint64_t ino;       /* inode with attributes in the answer */
    uint64_t about;     /* inode that the call is about; 0: names */
    uint64_t number;    /* number in MD_TOKEN */
    bool writes;
    struct answer_got got;
};

struct client {
    uint64_t session, void_below, seen;
    struct kept kept[N_INODES];
    struct call calls[N_CALLS];
    struct answer_got events;
    bool asks, away;
    unsigned n_due, n_backs;
    struct recall due[DUE_MAX];   /* recalls not answered yet */
    struct recall backs[DUE_MAX]; /* give-backs under way */
};

static struct client clients[N_CLIENTS];
static uint64_t random_state, dirs[N_DIRS], n_numbers;
static unsigned n_used; /* used inodes, up to N_INODES */
static bool gone[N_INODES];
static uint64_t n_shared_by_ranges;

static unsigned below(unsigned n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((random_state >> 33) % n);
}

static struct kept *kept_of(struct client *c, uint64_t ino)
{
    uint64_t at = ino % (1 << 20); /* each start of exportd begins so much higher */

    assert_true(at < N_INODES);
    if (at >= n_used)
        n_used = (unsigned)at + 1;
    c->kept[at].ino = ino;
    return &c->kept[at];
}

static void kept_set(struct kept *k, Rozo__TokenMode mode)
{
    k->mode = mode;
    memset(k->access, NO_ACCESS, sizeof(k->access));
}

static void ranges_are_apart(unsigned i)
{
    for (unsigned unit = 0; unit < FILE_UNITS; unit++) {
        unsigned n = 0, n_writers = 0;

        for (unsigned c = 0; c < N_CLIENTS; c++) {
            n += clients[c].kept[i].access[unit] != NO_ACCESS;
            n_writers += clients[c].kept[i].access[unit] == TO_WRITE;
        }
        assert_true(n_writers == 0 || n == 1);
    }
}

/* Checks I5 as clients see it: a token ends when the client gives it back, and begins
 * when the client gets the answer. */
static void nobody_is_wrong(void)
{
    for (unsigned i = 0; i < n_used; i++) {
        unsigned n = 0, n_exclusive = 0, n_ranged = 0;

        for (unsigned c = 0; c < N_CLIENTS; c++) {
            n += clients[c].kept[i].mode != NONE;
            n_exclusive += clients[c].kept[i].mode == EXCLUSIVE;
            n_ranged += clients[c].kept[i].mode == RANGES;
        }
        assert_true(n_exclusive == 0 || n == 1);
        assert_true(n_ranged == 0 || n == n_ranged);
        if (n_ranged > 1) {
            n_shared_by_ranges++;
            ranges_are_apart(i);
        }
    }
}

/* Checks that an answer that has just left exportd is true. */
static void call_look_at(struct client *c, struct call *call)
{
    Rozo__TokenMode harm = call->op == ROZO__OP__MD_SETATTR ? SHARED : RANGES;

    call->looked_at = true;
    if (call->got.status == ROZO__STATUS__STALE_HANDLE && call->about != 0)
        gone[kept_of(c, call->about) - c->kept] = true;
    if (call->got.status != ROZO__STATUS__OK || call->ino == 0)
        return;
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        if (&clients[i] != c)
            assert_true(kept_of(&clients[i], call->ino)->mode < harm);
    }
}

static void look_around(void)
{
    env_virtual_run_posted(&w.env);
    for (unsigned c = 0; c < N_CLIENTS; c++) {
        for (unsigned i = 0; i < N_CALLS; i++) {
            struct call *call = &clients[c].calls[i];

            if (call->out && call->got.came && !call->looked_at)
                call_look_at(&clients[c], call);
        }
    }
    nobody_is_wrong();
}

/* ---- messages to clients ---- */

static bool is_void(const struct client *c, const struct kept *k, uint64_t grant)
{
    return grant < c->void_below || grant <= k->recalled;
}

/* Notes a granted mode. RANGES alone do not say which. */
static void taken(struct client *c, uint64_t ino, Rozo__TokenMode mode, uint64_t grant)
{
    struct kept *k = kept_of(c, ino);

    if (mode == NONE || is_void(c, k, grant) || grant < k->grant)
        return;
    if (mode == RANGES && k->mode != RANGES)
        return;
    if (mode != RANGES)
        kept_set(k, mode);
    k->grant = grant;
}

/* Adds a granted range to those that are held, in whatever order answers arrive. */
static void range_taken(struct client *c, const struct call *call,
                        const Rozo__MdOpenResp *r)
{
    struct kept *k = kept_of(c, r->attr->ino);
    uint8_t access = call->writes ? TO_WRITE : TO_READ;

    if (is_void(c, k, r->grant))
        return;
    if (r->grant > k->grant)
        k->grant = r->grant;
    if (k->mode != NONE && k->mode != RANGES)
        return;
    k->mode = RANGES;
    for (uint64_t unit = r->range_from / UNIT_BYTES;
         unit < FILE_UNITS && unit * UNIT_BYTES < r->range_to; unit++)
        if (k->access[unit] < access)
            k->access[unit] = access;
}

static void attr_taken(struct client *c, const Rozo__Attr *a, uint64_t grant)
{
    if (a != NULL)
        taken(c, a->ino, a->token, grant);
}

static void dirs_taken(struct client *c, const struct call *call, Rozo__TokenMode mode,
                       uint64_t grant)
{
    for (unsigned d = 0; d < N_DIRS; d++) {
        if (call->locks[d] && dirs[d] != call->new_dir)
            taken(c, dirs[d], mode, grant);
    }
}

static void answer_taken(struct client *c, const struct call *call)
{
    const struct answer_got *g = &call->got;

    if (call->op == ROZO__OP__MD_CREATE) {
        Rozo__MdCreateResp *r = rozo__md_create_resp__unpack(NULL, g->len, g->msg);

        attr_taken(c, r->attr, r->grant);
        dirs_taken(c, call, r->dir_token, r->grant);
        rozo__md_create_resp__free_unpacked(r, NULL);
    } else if (call->op == ROZO__OP__MD_OPEN || call->op == ROZO__OP__MD_TOKEN) {
        Rozo__MdOpenResp *r = rozo__md_open_resp__unpack(NULL, g->len, g->msg);

        if (r->range_to != 0)
            range_taken(c, call, r);
        else
            attr_taken(c, r->attr, r->grant);
        rozo__md_open_resp__free_unpacked(r, NULL);
    } else if (call->op == ROZO__OP__MD_UNLINK || call->op == ROZO__OP__MD_RENAME) {
        Rozo__MdRemovedResp *r = rozo__md_removed_resp__unpack(NULL, g->len, g->msg);

        attr_taken(c, r->removed, r->grant);
        dirs_taken(c, call, r->dir_token, r->grant);
        if (call->new_dir != 0)
            taken(c, call->new_dir, r->new_dir_token, r->grant);
        rozo__md_removed_resp__free_unpacked(r, NULL);
    } else {
        Rozo__MdEntryResp *r = rozo__md_entry_resp__unpack(NULL, g->len, g->msg);

        attr_taken(c, r->attr, r->grant);
        if (call->op == ROZO__OP__MD_LOOKUP)
            dirs_taken(c, call, r->dir_token, r->grant);
        rozo__md_entry_resp__free_unpacked(r, NULL);
    }
}

static bool call_hear(struct client *c, struct call *call)
{
    if (!call->out || !call->got.came)
        return false;
    if (call->got.len > 0)
        answer_taken(c, call);
    free(call->got.msg);
    memset(call, 0, sizeof(*call));
    return true;
}

static void events_ask(struct client *c)
{
    Rozo__MdEventsReq req = ROZO__MD_EVENTS_REQ__INIT;
    uint8_t msg[16];

    req.seen = c->seen;
    c->asks = true;
    world_send(&w, ROZO__OP__MD_EVENTS, RPC_ROLE_CLIENT, c->session, msg,
               rozo__md_events_req__pack(&req, msg), &c->events);
}

static bool events_hear(struct client *c)
{
    struct recalls r;
    struct answer_got *got;

    if (!c->asks) {
        events_ask(c);
        return true;
    }
    if (!c->events.came)
        return false;
    c->asks = false;
    if (c->events.status != ROZO__STATUS__OK) {
        free(c->events.msg);
        return true;
    }
    got = malloc(sizeof(*got));
    *got = c->events;
    recalls_read(got, &r);
    for (unsigned i = 0; i < r.n; i++) {
        assert_true(c->n_due < DUE_MAX && r.list[i].number == c->seen + 1);
        c->due[c->n_due++] = r.list[i];
        c->seen = r.list[i].number;
    }
    return true;
}

/* ---- recalls answered by clients ---- */

static bool is_locked(const struct client *c, uint64_t ino)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        for (unsigned d = 0; d < N_DIRS; d++) {
            if (c->calls[i].out && c->calls[i].locks[d] && dirs[d] == ino)
                return true;
        }
    }
    return false;
}

static bool is_out(const struct client *c, uint64_t number)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        if (number != 0 && c->calls[i].out && c->calls[i].number == number)
            return true;
    }
    return false;
}

static void give_back_soon(struct client *c, struct recall what)
{
    assert_true(c->n_backs < DUE_MAX);
    c->backs[c->n_backs++] = what;
}

/* Answers a recall, unless the kernel is not ready for that. */
static bool due_answer(struct client *c, unsigned i)
{
    struct recall r = c->due[i];
    struct kept *k = kept_of(c, r.ino);

    if (is_locked(c, r.ino) || is_out(c, r.call))
        return false;
    c->due[i] = c->due[--c->n_due];
    if (r.grant < k->grant)
        r.grant = k->grant;
    if (k->recalled < r.grant)
        k->recalled = r.grant;
    if (k->mode == RANGES)
        r.keep = NONE; /* RANGES can only be given back completely */
    if (k->mode > r.keep)
        kept_set(k, r.keep);
    give_back_soon(c, r);
    return true;
}

static void back_send(struct client *c, unsigned i)
{
    Rozo__MdGiveBackReq req = ROZO__MD_GIVE_BACK_REQ__INIT;
    Rozo__MdGiveBackReq__Token t = ROZO__MD_GIVE_BACK_REQ__TOKEN__INIT, *list[] = { &t };
    uint8_t msg[64];

    t.ino = c->backs[i].ino;
    t.keep = c->backs[i].keep;
    t.grant = c->backs[i].grant;
    c->backs[i] = c->backs[--c->n_backs];
    req.n_tokens = 1;
    req.tokens = list;
    world_send(&w, ROZO__OP__MD_GIVE_BACK, RPC_ROLE_CLIENT, c->session, msg,
               rozo__md_give_back_req__pack(&req, msg), NULL);
}

/* ---- requests of clients ---- */

static void call_send(struct client *c, struct call *call, unsigned op,
                      const ProtobufCMessage *req)
{
    uint8_t msg[256];

    call->out = true;
    call->op = op;
    world_send(&w, op, RPC_ROLE_CLIENT, c->session, msg,
               protobuf_c_message_pack(req, msg), &call->got);
}

/* Returns a file that some client knows, or a directory. */
static uint64_t some_inode(bool only_files)
{
    for (unsigned tries = 0;; tries++) {
        unsigned at = below(n_used);
        const struct kept *k = &clients[below(N_CLIENTS)].kept[at];

        if (k->ino > 1 && (!gone[at] || tries > 1000) &&
            (!only_files || (k->ino != dirs[0] && k->ino != dirs[1])))
            return k->ino;
    }
}

static ProtobufCBinaryData some_name(void)
{
    static const char *const names[N_NAMES] = { "a", "b", "c" };

    return bytes(names[below(N_NAMES)]);
}

static void ask_names(struct client *c, struct call *call)
{
    unsigned d = below(N_DIRS), e = below(N_DIRS);

    if (is_locked(c, dirs[d]) || is_locked(c, dirs[e]))
        return;
    call->locks[d] = true;
    switch (below(6)) {
    case 0: {
        Rozo__MdLookupReq req = ROZO__MD_LOOKUP_REQ__INIT;

        req.parent = dirs[d];
        req.name = some_name();
        call_send(c, call, ROZO__OP__MD_LOOKUP, &req.base);
        break;
    }
    case 1: {
        Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

        req.parent = dirs[d];
        req.name = some_name();
        req.mode = S_IFREG | 0644;
        req.open = below(2) == 0;
        call_send(c, call, ROZO__OP__MD_CREATE, &req.base);
        break;
    }
    case 2: {
        Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;

        req.parent = dirs[d];
        req.name = some_name();
        call_send(c, call, ROZO__OP__MD_UNLINK, &req.base);
        break;
    }
    case 3: {
        Rozo__MdLinkReq req = ROZO__MD_LINK_REQ__INIT;

        req.parent = dirs[d];
        req.name = some_name();
        req.ino = some_inode(true);
        call_send(c, call, ROZO__OP__MD_LINK, &req.base);
        break;
    }
    case 4: {
        Rozo__MdRenameReq req = ROZO__MD_RENAME_REQ__INIT;

        call->locks[e] = true;
        req.parent = dirs[d];
        req.name = some_name();
        req.new_parent = call->new_dir = dirs[e];
        req.new_name = some_name();
        req.flags = below(4) == 0 ? 2 : 0;
        call_send(c, call, ROZO__OP__MD_RENAME, &req.base);
        break;
    }
    default: { /* as the kernel does in a rename, with the locks that it needs */
        Rozo__MdGetattrReq req = ROZO__MD_GETATTR_REQ__INIT;

        call->locks[e] = true;
        call->ino = req.ino = some_inode(false);
        call_send(c, call, ROZO__OP__MD_GETATTR, &req.base);
    }
    }
}

/* Chooses bytes, mostly in the client's own part. */
static void bytes_choose(const struct client *c, Rozo__MdTokenReq *req)
{
    static const unsigned part = FILE_UNITS / N_CLIENTS;
    unsigned from = (unsigned)(c - clients) * part + below(part), n = 1 + below(2);

    if (below(6) == 0)
        from = below(FILE_UNITS);
    req->offset = from * UNIT_BYTES + below(UNIT_BYTES);
    req->length = n * UNIT_BYTES - below(UNIT_BYTES);
}

static void ask_token(struct client *c, struct call *call, uint64_t ino)
{
    Rozo__MdTokenReq req = ROZO__MD_TOKEN_REQ__INIT;

    req.ino = ino;
    req.mode = below(2) == 0 ? SHARED : EXCLUSIVE;
    if (below(8) != 0)
        bytes_choose(c, &req);
    call->writes = req.mode == EXCLUSIVE;
    call->number = req.call = ++n_numbers;
    call_send(c, call, ROZO__OP__MD_TOKEN, &req.base);
}

static void ask_inode(struct client *c, struct call *call)
{
    uint64_t ino = some_inode(below(3) != 0);

    call->about = ino;
    switch (below(9)) {
    case 0: {
        Rozo__MdGetattrReq req = ROZO__MD_GETATTR_REQ__INIT;

        call->ino = req.ino = ino;
        call_send(c, call, ROZO__OP__MD_GETATTR, &req.base);
        break;
    }
    case 1: {
        Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

        if (is_locked(c, ino))
            return;
        for (unsigned d = 0; d < N_DIRS; d++)
            call->locks[d] = dirs[d] == ino;
        call->ino = req.ino = ino;
        req.valid = ROZO__SETATTR_BITS__SET_MODE;
        req.mode = 0600;
        call_send(c, call, ROZO__OP__MD_SETATTR, &req.base);
        break;
    }
    case 2: {
        Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;

        req.ino = ino;
        req.size = below(3) == 0 ? below(1000) : below(FILE_UNITS + 1) * UNIT_BYTES;
        req.has_data = true;
        call_send(c, call, ROZO__OP__MD_WROTE, &req.base);
        break;
    }
    case 3: {
        Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;

        req.no_reference = kept_of(c, ino)->mode == RANGES; /* asks for an epoch */
        call->ino = req.no_reference ? 0 : ino;
        req.ino = ino;
        req.write = req.no_reference || below(2) == 0;
        call_send(c, call, ROZO__OP__MD_OPEN, &req.base);
        break;
    }
    default:
        ask_token(c, call, ino);
    }
}

/* ---- ends and beginnings ---- */

/* Joins adjacent ranges of one access. */
static void ranges_claim(const struct kept *k, Rozo__MdOpenSessionReq *req)
{
    static Rozo__TokenRange ranges[RANGES_MAX];
    static Rozo__TokenRange *list[RANGES_MAX];

    req->ranges = list;
    for (unsigned unit = 0; k->mode == RANGES && unit < FILE_UNITS; unit++) {
        Rozo__TokenRange *r = &ranges[req->n_ranges];

        if (k->access[unit] == NO_ACCESS)
            continue;
        if (unit > 0 && k->access[unit] == k->access[unit - 1]) {
            r[-1].to += UNIT_BYTES;
            continue;
        }
        assert_true(req->n_ranges < RANGES_MAX);
        rozo__token_range__init(r);
        r->ino = k->ino;
        r->from = (uint64_t)unit * UNIT_BYTES;
        r->to = r->from + UNIT_BYTES;
        r->write = k->access[unit] == TO_WRITE;
        list[req->n_ranges++] = r;
    }
}

static void client_opens(struct client *c)
{
    static uint64_t shared[N_INODES], exclusive[N_INODES];
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;

    req.export_name = (char *)(uintptr_t) "main";
    req.client = (char *)(uintptr_t) "test";
    req.session = c->session;
    req.shared_tokens = shared;
    req.exclusive_tokens = exclusive;
    for (unsigned i = 0; i < n_used; i++) {
        if (c->kept[i].mode == SHARED)
            shared[req.n_shared_tokens++] = c->kept[i].ino;
        if (c->kept[i].mode == EXCLUSIVE)
            exclusive[req.n_exclusive_tokens++] = c->kept[i].ino;
        ranges_claim(&c->kept[i], &req);
    }
    OK(world_call(&w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                  &rozo__md_open_session_resp__descriptor, &resp));
    assert_false(resp->tokens_lost);
    assert_true(c->session == 0 || c->session == resp->session);
    for (unsigned i = 0; i < n_used; i++) {
        if (c->kept[i].mode != NONE)
            c->kept[i].grant = resp->grant;
    }
    c->session = resp->session;
    c->void_below = resp->grant;
    c->away = false;
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
}

/* Drops all events; exportd sends new recalls again. */
static void client_forgets_events(struct client *c)
{
    c->n_due = c->n_backs = 0;
    c->seen = 0;
    if (c->asks && c->events.came)
        free(c->events.msg);
    c->asks = false;
}

static void client_remounts(struct client *c)
{
    Rozo__MdCloseSessionReq bye = ROZO__MD_CLOSE_SESSION_REQ__INIT;

    for (unsigned i = 0; i < n_used; i++)
        kept_set(&c->kept[i], NONE);
    w.session = c->session;
    OK(world_call(&w, ROZO__OP__MD_CLOSE_SESSION, &bye.base, NULL, NULL));
    client_forgets_events(c);
    c->session = 0;
    client_opens(c);
}

static void exportd_dies(void)
{
    w.session = 0;
    world_kill(&w);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        client_forgets_events(&clients[i]);
        clients[i].away = true;
    }
}

/* ---- all together ---- */

static void client_step(struct client *c)
{
    struct call *call = &c->calls[below(N_CALLS)];

    if (c->away) {
        if (below(20) == 0)
            client_opens(c);
        return;
    }
    switch (below(10)) {
    case 0:
    case 1:
        if (!call->out)
            ask_names(c, call);
        break;
    case 2:
    case 3:
        if (!call->out)
            ask_inode(c, call);
        break;
    case 4:
    case 5:
        call_hear(c, call);
        break;
    case 6:
        events_hear(c);
        break;
    case 7:
        if (c->n_due > 0)
            due_answer(c, below(c->n_due));
        break;
    case 8:
        if (c->n_backs > 0)
            back_send(c, below(c->n_backs));
        break;
    default: {
        struct kept *k = &c->kept[below(n_used)];

        if (below(50) == 0) {
            client_opens(c); /* the link broke */
        } else if (below(200) == 0) {
            client_remounts(c);
            /* as if there were no room for the token */
        } else if (k->mode != NONE && below(4) == 0) {
            kept_set(k, k->mode == EXCLUSIVE && below(2) == 0 ? SHARED : NONE);
            if (k->mode == NONE && k->recalled < k->grant)
                k->recalled = k->grant;
            give_back_soon(
                c, (struct recall){ .ino = k->ino, .keep = k->mode, .grant = k->grant });
        }
    }
    }
    if (!call->out)
        memset(call, 0, sizeof(*call));
}

/* Lets everything end, without new requests. */
static void all_comes_to_rest(void)
{
    bool moves = true;

    for (unsigned turn = 0; moves; turn++) {
        assert_true(turn < 1000);
        moves = false;
        for (unsigned i = 0; i < N_CLIENTS; i++) {
            struct client *c = &clients[i];

            if (c->away)
                client_opens(c);
            for (unsigned k = 0; k < N_CALLS; k++)
                moves = call_hear(c, &c->calls[k]) || moves;
            moves = events_hear(c) || moves;
            for (unsigned k = c->n_due; k-- > 0;)
                moves = due_answer(c, k) || moves;
            while (c->n_backs > 0)
                back_send(c, 0);
            look_around();
        }
    }
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        assert_int_equal(clients[i].n_due, 0);
        for (unsigned k = 0; k < N_CALLS; k++)
            assert_false(clients[i].calls[k].out);
    }
}

static void random_run(uint64_t seed)
{
    struct seen seen;

    random_state = seed;
    memset(clients, 0, sizeof(clients));
    memset(gone, 0, sizeof(gone));
    n_used = 0;
    world_open(&w, seed);
    w.disobeys = true;
    w.evict_ms = 3600000;
    world_start(&w);
    world_make_export(&w, 4, 0);
    for (unsigned d = 0; d < N_DIRS; d++) {
        OK(t_create(&w, 1, d == 0 ? "d" : "e", S_IFDIR | 0755, &seen));
        dirs[d] = seen.ino;
        OK(t_create(&w, dirs[d], "a", S_IFREG | 0644, &seen));
        kept_of(&clients[0], dirs[d]);
        kept_of(&clients[0], seen.ino);
    }
    clients[0].session = w.session;
    for (unsigned i = 0; i < N_CLIENTS; i++)
        client_opens(&clients[i]);
    for (unsigned i = 0; i < STEPS; i++) {
        client_step(&clients[below(N_CLIENTS)]);
        look_around();
        if (below(100) == 0) {
            env_virtual_advance_ms(&w.env, below(1200));
            look_around();
        }
        if (below(1000) == 0)
            exportd_dies();
        if (below(3000) == 0)
            all_comes_to_rest();
    }
    all_comes_to_rest();
    world_stop(&w);
    for (unsigned i = 0; i < N_CLIENTS; i++)
        client_forgets_events(&clients[i]);
    world_close(&w);
}

static void test_clients_that_do_anything(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        random_run(seed);
    assert_int_not_equal(n_shared_by_ranges, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_answers_give),
        T(test_single_session_gets_tokens_too),
        T(test_getattr_recalls_an_exclusive_token_to_shared),
        T(test_token_is_not_lowered_to_unknown_ranges),
        T(test_change_recalls_the_tokens_of_all_others),
        T(test_give_back_of_an_older_grant_is_ignored),
        T(test_a_removal_asks_side_by_side),
        T(test_a_listing_does_not_wait),
        T(test_rename_grants_the_new_directory_to_the_holder_of_the_old),
        T(test_a_rename_gives_nothing_new_where_several_change_names),
        T(test_exchange_grants_both_directories_to_the_holder_of_one),
        T(test_in_order_of_arrival),
        T(test_a_later_grant_hides_the_call),
        T(test_token_requests_are_checked),
        T(test_an_epoch_stays_while_nobody_else_writes),
        T(test_names_do_not_wait_where_one_is_asked),
        T(test_names_that_wait_are_sent_back),
        T(test_names_that_wait_for_each_other_are_sent_back),
        T(test_holder_may_report_its_writes_while_calls_wait),
        T(test_a_call_that_comes_again_is_done_once),
        T(test_the_end_of_a_session_lets_go),
        T(test_session_that_does_not_give_back_is_evicted),
        T(test_a_stop_sends_back),
        T(test_a_restart_takes_nothing_away),
        T(test_claims_that_exclude_each_other),
        T(test_claim_after_a_broken_link_adds_nothing),
        T(test_session_that_returns_after_the_grace_has_no_tokens),
        T(test_writers_of_two_halves_get_ranges),
        T(test_writer_that_often_leaves_its_half_gets_the_whole_file),
        T(test_getattr_recalls_all_ranges),
        T(test_the_size_stays_while_there_are_ranges),
        T(test_growth_reported_with_ranges_waits_for_other_sessions),
        T(test_ranges_are_claimed),
        cmocka_unit_test(test_a_session_has_only_so_many),
        cmocka_unit_test_setup_teardown(test_surplus_tokens_of_a_session_are_recalled,
                                        setup_few, teardown),
        cmocka_unit_test_setup_teardown(
            test_limit_is_lower_when_all_sessions_hold_too_many, setup_few, teardown),
        cmocka_unit_test(test_clients_that_do_anything),
    };

    return cmocka_run_group_tests_name("exportd.tokens", tests, NULL, NULL);
}
