/*
 * Goal: the session opens, stays alive, comes back, and ends; exportd's answers are
 * checked. Method: a channel whose other end is the test, on a virtual clock.
 */
#include <errno.h>
#include <stdlib.h>

#include "rozomount/session/mount_session.h"
#include "tests/unit/rozomount/fake_exportd.h"
#include "tests/unit/unit.h"

struct fixture {
    struct env_virtual env;
    struct fake_exportd exportd;
    struct md_client md;
    struct open_refs *refs;
    struct lock_table *lock_table;
    struct unsynced_inodes *unsynced;
    struct mount_session *session;
    unsigned n_opened, n_first, n_maps, n_closed;
    int rc;
    struct mount_session_info info;
    struct cluster_map *map;
    int64_t ahead_ns;
    unsigned n_lost, n_unsure, n_tokens_lost, n_tokens_max;
    unsigned n_opened_when_lost; /* value of n_opened when the tokens were lost */
    struct token_cache *tokens;
    struct token_recall_seen {
        uint64_t ino, grant, call;
        enum token_mode keep;
        unsigned n;
    } recall;
    uint64_t lost_ino;
    unsigned n_reports; /* reports of dead sessions */
    struct stream_reads reads;
};

static void on_lost(void *arg)
{
    mount_session_lost(((struct fixture *)arg)->session);
}
static void on_opened(void *arg, const struct mount_session_info *info)
{
    struct fixture *f = arg;

    f->n_opened++;
    f->info = *info;
    md_client_session_is_open(&f->md);
}
static void on_map(void *arg, const struct cluster_map *map)
{
    struct fixture *f = arg;

    f->n_maps++;
    free(f->map);
    f->map = cluster_map_copy(map);
}
static void on_lock_lost(void *arg, uint64_t ino)
{
    struct fixture *f = arg;

    f->n_lost++;
    f->lost_ino = ino;
}
static void on_recall(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                      uint64_t call)
{
    struct fixture *f = arg;

    f->recall.ino = ino;
    f->recall.keep = keep;
    f->recall.grant = grant;
    f->recall.call = call;
    f->recall.n++;
}
static void on_tokens_max(void *arg)
{
    ((struct fixture *)arg)->n_tokens_max++;
}
static void on_tokens_lost(void *arg)
{
    struct fixture *f = arg;

    f->n_tokens_lost++;
    f->n_opened_when_lost = f->n_opened;
}
static void on_unsure(void *arg)
{
    ((struct fixture *)arg)->n_unsure++;
}
static void on_ahead(void *arg, int64_t ns)
{
    ((struct fixture *)arg)->ahead_ns += ns;
}
static const uint64_t *find_dead(void *arg, size_t *n)
{
    static const uint64_t dead[] = { 50, 51 };
    struct fixture *f = arg;

    *n = f->n_reports < 2 ? 2 - f->n_reports : 0;
    return dead + 2 - *n;
}
static void on_dead_reported(void *arg)
{
    ((struct fixture *)arg)->n_reports++;
}
static void on_first(void *arg, int rc)
{
    struct fixture *f = arg;

    f->n_first++;
    f->rc = rc;
}
static void on_closed(void *arg)
{
    ((struct fixture *)arg)->n_closed++;
}

static void setup(struct fixture *f)
{
    struct md_client_config md = { .timeout_ms = 1000,
                                   .mount_session_lost = on_lost,
                                   .arg = f };
    struct mount_session_config config = {
        .find_dead = find_dead,
        .dead_are_reported = on_dead_reported,
        .export_name = "main",
        .client = "here:1:/mnt",
        .open_timeout_ms = 2000,
        .opened = on_opened,
        .map_changed = on_map,
        .lock_lost = on_lock_lost,
        .recall = on_recall,
        .tokens_max = on_tokens_max,
        .tokens_lost = on_tokens_lost,
        .unsure = on_unsure,
        .clock_is_ahead = on_ahead,
        .arg = f,
    };

    memset(f, 0, sizeof(*f));
    env_virtual_init(&f->env, 1);
    fake_exportd_init(&f->exportd);
    md_client_init(&f->md, &f->env.env, &f->exportd.channel, &md);
    f->refs = config.refs = open_refs_new();
    f->lock_table = config.lock_table = lock_table_new();
    f->tokens = config.tokens = token_cache_new();
    f->unsynced = config.unsynced = unsynced_inodes_new();
    config.reads = &f->reads;
    f->session = mount_session_new(&f->env.env, &f->md, &config);
    mount_session_open(f->session, on_first, f);
}

static void teardown(struct fixture *f)
{
    env_virtual_run_posted(&f->env);
    mount_session_free(f->session);
    open_refs_free(f->refs);
    lock_table_free(f->lock_table);
    token_cache_free(f->tokens);
    unsynced_inodes_free(f->unsynced);
    free(f->map);
    md_client_close(&f->md);
    env_virtual_close(&f->env);
}

static void answer_open(struct fixture *f, uint64_t session, uint32_t lease_ms,
                        unsigned n_storages, Rozo__Storage **storages)
{
    static uint8_t cluster[16] = { 1 };
    Rozo__MdOpenSessionResp r = ROZO__MD_OPEN_SESSION_RESP__INIT;

    r.session = session;
    r.export_id = 3;
    r.root_ino = 1;
    r.lease_ms = lease_ms;
    r.cluster_id.len = sizeof(cluster);
    r.cluster_id.data = cluster;
    r.now_ns = env_wall_ns(&f->env.env);
    r.map_version = 5;
    r.n_storages = n_storages;
    r.storages = storages;
    assert_int_equal(f->exportd.sent[0]->op, ROZO__OP__MD_OPEN_SESSION);
    fake_exportd_answer(&f->exportd, 0, ROZO__STATUS__OK, &r.base);
}

static void close_it(struct fixture *f)
{
    mount_session_close(f->session, on_closed, f);
    assert_int_equal(f->exportd.sent[0]->op, ROZO__OP__MD_CLOSE_SESSION);
    fake_exportd_answer(&f->exportd, 0, ROZO__STATUS__OK, NULL);
    assert_int_equal(f->n_closed, 1);
    assert_int_equal(f->exportd.n_sent, 0);
    env_virtual_advance_ms(&f->env, 60000);
    assert_int_equal(f->exportd.n_sent, 0); /* no more keep-alive */
}

static void test_open_keep_alive_close(void **state)
{
    struct fixture f;
    Rozo__Storage s = ROZO__STORAGE__INIT;
    Rozo__Storage *list[] = { &s };
    char *addrs[] = { (char *)"127.0.0.1:1", (char *)"127.0.0.2:1" };
    Rozo__MdKeepAliveResp alive = ROZO__MD_KEEP_ALIVE_RESP__INIT;

    (void)state;
    setup(&f);
    s.id = 9;
    s.n_addresses = 2;
    s.addresses = addrs;
    answer_open(&f, 77, 3000, 1, list);
    assert_int_equal(f.n_first, 1);
    assert_int_equal(f.rc, 0);
    assert_int_equal(f.info.id, 77);
    assert_int_equal(f.info.export_id, 3);
    assert_int_equal(f.map->n_storages, 1);
    assert_int_equal(f.map->storages[0].id, 9);
    assert_string_equal(f.map->storages[0].addrs[1], "127.0.0.2:1");
    for (unsigned i = 0; i < 5; i++) {
        env_virtual_advance_ms(&f.env, 1000);
        assert_int_equal(f.exportd.n_sent, 1);
        assert_int_equal(f.exportd.sent[0]->op, ROZO__OP__MD_KEEP_ALIVE);
        alive.map_version = 5 + i;
        alive.now_ns = env_wall_ns(&f.env.env);
        alive.n_storages = i == 3 ? 1 : 0;
        alive.storages = list;
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
    }
    assert_int_equal(f.n_maps, 2);
    assert_int_equal(f.ahead_ns, 0);
    close_it(&f);
    teardown(&f);
}

/* A read is late when it takes longer than its bytes at the rate of a stream, or fails.
 * Short ones do not count. exportd says the rate, and gets the counts. */
static void test_reads_of_reserved_streams_are_counted(void **state)
{
    enum { MIB = 1 << 20, RATE = 25000000 };
    const uint64_t just_ns = (uint64_t)MIB * 1000000000 / RATE;
    Rozo__MdKeepAliveResp alive = ROZO__MD_KEEP_ALIVE_RESP__INIT;
    Rozo__MdKeepAliveReq *req;
    struct fixture f;

    (void)state;
    setup(&f);
    stream_reads_note(&f.reads, MIB, 5 * just_ns, true); /* nothing is reserved */
    answer_open(&f, 77, 3000, 0, NULL);
    for (unsigned i = 0; i < 3; i++) {
        env_virtual_advance_ms(&f.env, 1000);
        req =
            rozo__md_keep_alive_req__unpack(NULL, f.exportd.msg_len[0], f.exportd.msg[0]);
        assert_non_null(req);
        assert_int_equal(req->stream_reads, i == 0 ? 0 : 4);
        assert_int_equal(req->late_reads, i == 0 ? 0 : 2);
        rozo__md_keep_alive_req__free_unpacked(req, NULL);
        alive.now_ns = env_wall_ns(&f.env.env);
        alive.stream_rate = i == 0 ? RATE : 0;
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
        stream_reads_note(&f.reads, MIB, just_ns, true);
        stream_reads_note(&f.reads, MIB, just_ns + 1, true);
        stream_reads_note(&f.reads, MIB / 2, just_ns / 4, true);
        stream_reads_note(&f.reads, MIB, 0, false);
        stream_reads_note(&f.reads, STREAM_READ_MIN - 1, 5 * just_ns, true);
    }
    close_it(&f);
    teardown(&f);
}

static void test_refused_open_returns_its_error(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NOT_FOUND, NULL);
    assert_int_equal(f.n_first, 1);
    assert_int_equal(f.rc, -ENOENT);
    teardown(&f);
}

static void test_invalid_answers_do_not_open_the_session(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    answer_open(&f, 0, 3000, 0, NULL);
    assert_int_equal(f.rc, -EBADMSG);
    teardown(&f);
    setup(&f);
    answer_open(&f, 1, 1, 0, NULL);
    assert_int_equal(f.rc, -EBADMSG);
    teardown(&f);
    setup(&f);
    fake_exportd_answer_raw(&f.exportd, 0, ROZO__STATUS__OK, "\xff\xff\xff", 3);
    assert_int_equal(f.rc, -EBADMSG);
    teardown(&f);
}

static void test_a_bad_map_leaves_the_old_one(void **state)
{
    struct fixture f;
    Rozo__Storage s = ROZO__STORAGE__INIT;
    Rozo__Storage *list[] = { &s };
    char *many[MAP_ADDRS_MAX + 1];
    char long_addr[MAP_ADDR_TEXT_MAX + 1];
    Rozo__MdKeepAliveResp alive = ROZO__MD_KEEP_ALIVE_RESP__INIT;

    (void)state;
    setup(&f);
    s.id = 1;
    answer_open(&f, 77, 3000, 1, list);
    assert_int_equal(f.n_maps, 1);
    for (unsigned i = 0; i < 3; i++) {
        memset(long_addr, 'x', sizeof(long_addr) - 1);
        long_addr[sizeof(long_addr) - 1] = '\0';
        for (unsigned j = 0; j <= MAP_ADDRS_MAX; j++)
            many[j] = i == 1 ? long_addr : (char *)"h:1";
        s.id = i == 0 ? 0 : 1;
        s.n_addresses = i == 0 ? 0 : i == 1 ? 1 : MAP_ADDRS_MAX + 1;
        s.addresses = many;
        env_virtual_advance_ms(&f.env, 1000);
        alive.map_version = 100 + i;
        alive.n_storages = 1;
        alive.storages = list;
        alive.now_ns = env_wall_ns(&f.env.env);
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
        assert_int_equal(f.n_maps, 1);
    }
    close_it(&f);
    teardown(&f);
}

/* Dead sessions are reported at the start, and soon again: one may have been about to
 * end. */
static void test_dead_sessions_are_reported(void **state)
{
    struct fixture f;
    Rozo__MdOpenSessionReq *req;
    Rozo__MdKeepAliveReq *alive;

    (void)state;
    setup(&f);
    req = rozo__md_open_session_req__unpack(NULL, f.exportd.msg_len[0], f.exportd.msg[0]);
    assert_non_null(req);
    assert_int_equal(req->n_dead_sessions, 2);
    assert_true(req->dead_sessions[0] == 50 && req->dead_sessions[1] == 51);
    rozo__md_open_session_req__free_unpacked(req, NULL);
    assert_int_equal(f.n_reports, 0);
    answer_open(&f, 77, 60000, 0, NULL);
    assert_int_equal(f.n_reports, 1);
    env_virtual_advance_ms(&f.env, 2000);
    alive = rozo__md_keep_alive_req__unpack(NULL, f.exportd.msg_len[0], f.exportd.msg[0]);
    assert_non_null(alive);
    assert_int_equal(alive->n_dead_sessions, 1);
    assert_true(alive->dead_sessions[0] == 51);
    rozo__md_keep_alive_req__free_unpacked(alive, NULL);
    fake_exportd_fail(&f.exportd, 0, -ETIMEDOUT);
    assert_int_equal(f.n_reports, 1); /* exportd may not have received it */
    assert_false(mount_session_is_over(f.session));
    close_it(&f);
    assert_true(mount_session_is_over(f.session));
    teardown(&f);
}

static void test_session_is_reopened_with_its_id_and_inodes(void **state)
{
    struct fixture f;
    Rozo__MdOpenSessionReq *req;
    unsigned n = 0;

    (void)state;
    setup(&f);
    answer_open(&f, 77, 3000, 0, NULL);
    open_refs_add(f.refs, 42);
    open_refs_add(f.refs, 42);
    env_virtual_advance_ms(&f.env, 1000);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    mount_session_lost(f.session); /* noticed by another part of the mount, too */
    assert_int_equal(f.exportd.n_sent, 1);
    fake_exportd_fail(&f.exportd, 0, -ETIMEDOUT);
    while (f.exportd.n_sent == 0) {
        assert_true(n++ < 10);
        env_virtual_advance_ms(&f.env, 100);
    }
    req = rozo__md_open_session_req__unpack(NULL, f.exportd.msg_len[0], f.exportd.msg[0]);
    assert_non_null(req);
    assert_int_equal(req->session, 77);
    assert_int_equal(req->n_open_inodes, 1);
    assert_int_equal(req->open_inodes[0], 42);
    assert_int_equal(req->n_dead_sessions, 0);
    rozo__md_open_session_req__free_unpacked(req, NULL);
    answer_open(&f, 77, 3000, 0, NULL);
    assert_int_equal(f.n_opened, 2);
    assert_int_equal(f.n_first, 1);
    open_refs_remove(f.refs, 42, 2);
    close_it(&f);
    teardown(&f);
}

/* Goal: locks of a session that is over are lost, and so are locks that another client
 * got. */
static void test_another_session_has_no_locks(void **state)
{
    struct fixture f;
    struct table_lock lock = { .ino = 42, .owner = 7, .to = 10, .mode = 2 };

    (void)state;
    setup(&f);
    answer_open(&f, 77, 3000, 0, NULL);
    lock.era = lock_table_era(f.lock_table);
    assert_int_equal(lock_table_set(f.lock_table, &lock), 0);
    mount_session_lost(f.session);
    answer_open(&f, 77, 3000, 0, NULL);
    assert_int_equal(lock_table_look(f.lock_table, 42, 7),
                     LOCK_TABLE_SOME); /* the session came back */
    mount_session_lost(f.session);
    answer_open(&f, 78, 3000, 0, NULL);
    assert_int_equal(f.info.id, 78);
    assert_int_equal(lock_table_look(f.lock_table, 42, 7), LOCK_TABLE_LOST);
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.lost_ino, 42);
    mount_session_lost(f.session);
    answer_open(&f, 79, 3000, 0, NULL);
    assert_int_equal(f.n_lost, 1); /* reported only once */
    close_it(&f);
    teardown(&f);
}

/* ---- tokens ---- */

/* Returns the index of the oldest waiting request of this kind. */
static unsigned find_sent(struct fixture *f, uint16_t op)
{
    unsigned i = 0;

    while (i < f->exportd.n_sent && f->exportd.sent[i]->op != op)
        i++;
    if (i == f->exportd.n_sent)
        fail_msg("nobody has sent it");
    return i;
}

static void answer_open_with(struct fixture *f, uint64_t session, uint64_t grant,
                             bool tokens_lost, uint64_t events)
{
    static uint8_t cluster[16] = { 1 };
    Rozo__MdOpenSessionResp r = ROZO__MD_OPEN_SESSION_RESP__INIT;

    r.session = session;
    r.root_ino = 1;
    r.lease_ms = 3000;
    r.cluster_id.len = sizeof(cluster);
    r.cluster_id.data = cluster;
    r.now_ns = env_wall_ns(&f->env.env);
    r.grant = grant;
    r.tokens_lost = tokens_lost;
    r.events = events;
    fake_exportd_answer(&f->exportd, find_sent(f, ROZO__OP__MD_OPEN_SESSION),
                        ROZO__STATUS__OK, &r.base);
}

static void answer_events(struct fixture *f, Rozo__MdEventsResp__Event **events, size_t n)
{
    Rozo__MdEventsResp r = ROZO__MD_EVENTS_RESP__INIT;

    r.events = events;
    r.n_events = n;
    fake_exportd_answer(&f->exportd, find_sent(f, ROZO__OP__MD_EVENTS), ROZO__STATUS__OK,
                        &r.base);
}

static uint64_t seen_sent(struct fixture *f)
{
    unsigned i = find_sent(f, ROZO__OP__MD_EVENTS);
    Rozo__MdEventsReq *req =
        rozo__md_events_req__unpack(NULL, f->exportd.msg_len[i], f->exportd.msg[i]);
    uint64_t seen;

    assert_non_null(req);
    seen = req->seen;
    rozo__md_events_req__free_unpacked(req, NULL);
    return seen;
}

/* Checks the tokens claimed in MD_OPEN_SESSION: one of each kind, or none if 0. */
static void claims_sent_are(struct fixture *f, uint64_t shared, uint64_t exclusive)
{
    unsigned i = find_sent(f, ROZO__OP__MD_OPEN_SESSION);
    Rozo__MdOpenSessionReq *req =
        rozo__md_open_session_req__unpack(NULL, f->exportd.msg_len[i], f->exportd.msg[i]);

    assert_non_null(req);
    assert_int_equal(req->n_shared_tokens, shared != 0);
    assert_int_equal(req->n_exclusive_tokens, exclusive != 0);
    assert_true(shared == 0 || req->shared_tokens[0] == shared);
    assert_true(exclusive == 0 || req->exclusive_tokens[0] == exclusive);
    rozo__md_open_session_req__free_unpacked(req, NULL);
}

/* Goal: events are requested from the first one on if exportd gives tokens, and not at
 * all otherwise. */
static void test_events_are_asked_for_where_tokens_are_given(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    answer_open_with(&f, 77, 0, false, 0);
    assert_false(token_cache_are_given(f.tokens));
    assert_int_equal(f.exportd.n_sent, 0);
    close_it(&f);
    teardown(&f);
    setup(&f);
    claims_sent_are(&f, 0, 0);
    answer_open_with(&f, 77, 100, false, 0);
    assert_true(token_cache_are_given(f.tokens));
    assert_int_equal(f.n_tokens_lost, 0);
    assert_int_equal(seen_sent(&f), 0);
    close_it(&f);
    teardown(&f);
}

/* Goal: a recall is passed on once, however often exportd repeats it; an invalid one is
 * not. */
static void test_each_recall_is_passed_on_once(void **state)
{
    struct fixture f;
    Rozo__MdEventsResp__Event e[4];
    Rozo__MdEventsResp__Event *list[] = { &e[0], &e[1], &e[2], &e[3] };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        rozo__md_events_resp__event__init(&e[i]);
        e[i].number = i + 1;
        e[i].ino = 40 + i;
        e[i].grant = 100 + i;
        e[i].call = 7;
    }
    setup(&f);
    answer_open_with(&f, 77, 100, false, 0);
    e[0].keep = ROZO__TOKEN_MODE__SHARED;
    answer_events(&f, list, 1);
    assert_int_equal(f.recall.n, 1);
    assert_int_equal(f.recall.ino, 40);
    assert_int_equal(f.recall.keep, TOKEN_SHARED);
    assert_int_equal(f.recall.grant, 100);
    assert_int_equal(f.recall.call, 7);
    assert_int_equal(seen_sent(&f), 1);
    answer_events(&f, list, 2);
    assert_int_equal(f.recall.n, 2);
    assert_int_equal(f.recall.ino, 41);
    assert_int_equal(f.recall.keep, TOKEN_NONE);
    answer_events(&f, list, 2);
    assert_int_equal(f.recall.n, 2);
    e[2].keep = ROZO__TOKEN_MODE__EXCLUSIVE;
    e[3].ino = 0;
    answer_events(&f, list, 4);
    assert_int_equal(f.recall.n, 2);
    assert_int_equal(seen_sent(&f), 4);
    fake_exportd_answer_raw(&f.exportd, find_sent(&f, ROZO__OP__MD_EVENTS),
                            ROZO__STATUS__OK, "\xff\xff\xff", 3);
    assert_int_equal(f.recall.n, 2);
    fake_exportd_fail(&f.exportd, find_sent(&f, ROZO__OP__MD_EVENTS), -ETIMEDOUT);
    env_virtual_advance_ms(&f.env, 300);
    assert_int_equal(seen_sent(&f), 4); /* requested again */
    mount_session_lost(f.session);
    answer_open_with(&f, 77, 1000, false, 0); /* a new exportd counts from the start */
    e[0].number = 1;
    e[0].ino = 50;
    assert_int_equal(seen_sent(&f), 0);
    answer_events(&f, list, 1);
    assert_int_equal(f.recall.n, 3);
    assert_int_equal(f.recall.ino, 50);
    close_it(&f);
    teardown(&f);
}

/* Goal: a session that comes back claims the tokens that it holds, and keeps them if
 * exportd agrees. */
static void test_tokens_are_claimed(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    answer_open_with(&f, 77, 100, false, 0);
    token_cache_grant(f.tokens, 5, TOKEN_SHARED, 101);
    token_cache_grant(f.tokens, 6, TOKEN_EXCLUSIVE, 102);
    mount_session_lost(f.session);
    claims_sent_are(&f, 5, 6);
    fake_exportd_fail(&f.exportd, find_sent(&f, ROZO__OP__MD_OPEN_SESSION), -ETIMEDOUT);
    token_cache_gave_back(f.tokens, 6, TOKEN_SHARED, 0);
    token_cache_gave_back(f.tokens, 5, TOKEN_NONE, 0);
    env_virtual_advance_ms(&f.env, 300);
    claims_sent_are(&f, 6, 0); /* the tokens held now */
    answer_open_with(&f, 77, 1000, false, 0);
    assert_int_equal(f.n_tokens_lost, 0);
    assert_int_equal(token_cache_mode(f.tokens, 6), TOKEN_SHARED);
    close_it(&f);
    teardown(&f);
}

/* Goal: tokens are lost before any request of the new session reaches exportd. */
static void test_tokens_are_lost_before_the_session_is_open(void **state)
{
    static const struct {
        uint64_t session, grant;
        bool lost;
    } answers[] = { { 77, 1000, true }, { 78, 1000, false }, { 77, 0, false } };
    struct fixture f;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        setup(&f);
        answer_open_with(&f, 77, 100, false, 0);
        token_cache_grant(f.tokens, 5, TOKEN_SHARED, 101);
        mount_session_lost(f.session);
        answer_open_with(&f, answers[i].session, answers[i].grant, answers[i].lost, 0);
        assert_int_equal(f.n_tokens_lost, 1);
        assert_int_equal(f.n_opened_when_lost, 1);
        assert_int_equal(f.n_opened, 2);
        assert_int_equal(token_cache_mode(f.tokens, 5), TOKEN_NONE);
        assert_int_equal(token_cache_lost_one(f.tokens), 5);
        assert_int_equal(token_cache_are_given(f.tokens), answers[i].grant != 0);
        close_it(&f);
        teardown(&f);
    }
}

static bool is_sure(struct fixture *f)
{
    return mount_session_is_sure(f->session, env_now_ns(&f->env.env));
}

/* Goal: the mount knows by its own clock how long exportd cannot have ended the session:
 * the time counts from the sending of the last answered request. */
static void test_how_long_we_can_be_sure(void **state)
{
    struct fixture f;
    Rozo__MdKeepAliveResp alive = ROZO__MD_KEEP_ALIVE_RESP__INIT;

    (void)state;
    setup(&f);
    assert_false(is_sure(&f));
    env_virtual_advance_ms(&f.env, 500); /* the answer takes time */
    answer_open(&f, 77, 3000, 0, NULL);
    assert_true(is_sure(&f));
    env_virtual_advance_ms(&f.env, 2100);
    assert_true(is_sure(&f));
    assert_int_equal(f.n_unsure, 0);
    env_virtual_advance_ms(&f.env, 100);
    assert_false(is_sure(&f));
    assert_int_equal(f.n_unsure, 1);
    alive.now_ns = env_wall_ns(&f.env.env); /* sent at 1500 ms */
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
    env_virtual_advance_ms(&f.env, 1400);
    assert_true(is_sure(&f));
    env_virtual_advance_ms(&f.env, 100);
    assert_false(is_sure(&f));
    mount_session_heard(f.session, env_now_ns(&f.env.env) - 1000000000);
    mount_session_heard(f.session,
                        env_now_ns(&f.env.env) - 3000000000); /* arrives late */
    assert_true(is_sure(&f));
    env_virtual_advance_ms(&f.env, 1700);
    assert_false(is_sure(&f));
    /* found at the next check, since another loop got the answer */
    assert_int_equal(f.n_unsure, 2);
    fake_exportd_fail(&f.exportd, 0, -ETIMEDOUT);
    assert_false(is_sure(&f));
    mount_session_link_is_up(f.session); /* a request is sent at once */
    assert_int_equal(f.exportd.n_sent, 1);
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__NO_SESSION, NULL);
    mount_session_link_is_up(f.session); /* the session is being opened */
    assert_int_equal(f.exportd.n_sent, 1);
    answer_open(&f, 77, 3000, 0, NULL);
    assert_true(is_sure(&f));
    close_it(&f);
    teardown(&f);
}

static void test_close_while_reopening(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    answer_open(&f, 77, 3000, 0, NULL);
    mount_session_lost(f.session);
    assert_int_equal(f.exportd.n_sent, 1);
    close_it(&f);
    teardown(&f);
}

/* Goal: an attempt that began before another exportd took over is soon repeated. */
static void test_a_failed_attempt_is_repeated_sooner_at_another_exportd(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    answer_open(&f, 77, 3000, 0, NULL);
    for (unsigned moved = 0; moved < 2; moved++) {
        mount_session_lost(f.session);
        if (moved == 1)
            md_client_channel_is_up(&f.md);
        fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__IO_ERROR, NULL);
        env_virtual_advance_ms(&f.env, 19);
        assert_int_equal(f.exportd.n_sent, 0);
        env_virtual_advance_ms(&f.env, 1);
        assert_int_equal(f.exportd.n_sent, moved);
        env_virtual_advance_ms(&f.env, 180);
        answer_open(&f, 77, 3000, 0, NULL);
    }
    close_it(&f);
    teardown(&f);
}

static void test_exportds_clock_is_followed(void **state)
{
    struct fixture f;
    Rozo__MdKeepAliveResp alive = ROZO__MD_KEEP_ALIVE_RESP__INIT;

    (void)state;
    setup(&f);
    answer_open(&f, 77, 3000, 0, NULL);
    env_virtual_advance_ms(&f.env, 1000);
    alive.now_ns = env_wall_ns(&f.env.env) + 7000000000;
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
    assert_int_equal(f.ahead_ns, 7000000000);
    /* Requests that waited for a link were sent later: the way was shorter. */
    f.ahead_ns = 0;
    env_virtual_advance_ms(&f.env, 1000);
    assert_int_equal(f.exportd.n_sent, 1);
    env_virtual_advance_ms(&f.env, 500);
    mount_session_link_is_up(f.session);
    env_virtual_advance_ms(&f.env, 2);
    alive.now_ns = env_wall_ns(&f.env.env) - 1000000 + 5000000000;
    fake_exportd_answer(&f.exportd, 0, ROZO__STATUS__OK, &alive.base);
    assert_int_equal(f.ahead_ns, 5000000000);
    close_it(&f);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_keep_alive_close),
        cmocka_unit_test(test_reads_of_reserved_streams_are_counted),
        cmocka_unit_test(test_refused_open_returns_its_error),
        cmocka_unit_test(test_invalid_answers_do_not_open_the_session),
        cmocka_unit_test(test_a_bad_map_leaves_the_old_one),
        cmocka_unit_test(test_dead_sessions_are_reported),
        cmocka_unit_test(test_session_is_reopened_with_its_id_and_inodes),
        cmocka_unit_test(test_another_session_has_no_locks),
        cmocka_unit_test(test_events_are_asked_for_where_tokens_are_given),
        cmocka_unit_test(test_each_recall_is_passed_on_once),
        cmocka_unit_test(test_tokens_are_claimed),
        cmocka_unit_test(test_tokens_are_lost_before_the_session_is_open),
        cmocka_unit_test(test_how_long_we_can_be_sure),
        cmocka_unit_test(test_close_while_reopening),
        cmocka_unit_test(test_a_failed_attempt_is_repeated_sooner_at_another_exportd),
        cmocka_unit_test(test_exportds_clock_is_followed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
