/*
 * test_leader.c - cores on members of a quorum, of which one leads.
 *
 * Goal:   an acknowledged change is there on every later leader, and none is done twice;
 *         no member answers what a later leader has made stale. A call that waits for a
 *         leader is answered when there is one, or that this member is none.
 * Method: three whole members with cores, on a virtual clock. A client makes and removes
 *         directories through whichever member answers, and sends each request until it
 *         has an answer; members are killed, cut off, and their cores hang.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "common/base/units.h"
#include "exportd/leader/leader.h"
#include "exportd/quorum/raft/raft_core.h"
#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/fickle_kv.h"
#include "tests/unit/exportd/world.h"
#include "tests/unit/quorum/member_world.h"

enum { NAMES = 24, AGAIN_MS = 250, STEPS = 400 };

/* Directory of the client, and what it wants with it. */
struct name {
    bool exists; /* as the newest answer says */
    bool pends;  /* a change is under way, or must be sent again */
    uint64_t id; /* id of the change */
    uint64_t sent_ns;
    uint64_t version; /* grows with each change that begins */
};

struct group {
    struct world w; /* storages, env */
    struct member_world m;
    struct leader *leaders[MEMBERS]; /* NULL: down */
    bool stopped[MEMBERS];
    unsigned n_failed;
    struct name names[NAMES];
    bool opens;     /* MD_OPEN_SESSION is under way */
    unsigned guess; /* member that answered last */
    unsigned n_changed, n_read, n_repeated, n_calls;
};

/* Request of the client. Its answer is lost if the member has died, or by chance. */
struct asked {
    struct rpc_call call; /* must stay first */
    struct group *g;
    unsigned at;   /* member */
    uint64_t life; /* life of the member */
    unsigned name; /* NAMES: MD_OPEN_SESSION */
    bool reads;
    bool existed;
    uint64_t version;
    uint8_t msg[128];
};

static void group_failed(void *arg, int rc, const char *text)
{
    struct group *g = arg;

    (void)rc;
    (void)text;
    g->n_failed++;
}

static struct group *group_of(struct member_node *n)
{
    return container_of(n->w, struct group, m);
}

static void on_started(struct member_node *n)
{
    struct group *g = group_of(n);
    struct leader_config config = {
        .env = &g->w.env.env,
        .kv = kv_quorum_kv(n->kv),
        .exportd = world_config(&g->w),
        .failed = group_failed,
        .arg = g,
    };

    g->stopped[n->i] = false;
    assert_int_equal(leader_open(&config, &g->leaders[n->i]), 0);
}

static void on_leader_stopped(void *arg)
{
    *(bool *)arg = true;
}

/* The core of a process that has died may write nothing more: it is deposed already. */
static bool on_ended(struct member_node *n)
{
    struct group *g = group_of(n);
    struct leader *l = g->leaders[n->i];

    if (l == NULL)
        return true;
    if (g->stopped[n->i]) {
        leader_close(l);
        g->leaders[n->i] = NULL;
        g->stopped[n->i] = false;
        return true;
    }
    leader_depose(l);
    if (n->start_rc == 0)
        leader_stop(l, on_leader_stopped, &g->stopped[n->i]);
    n->start_rc = 1;
    return false;
}

static void on_lead(struct member_node *n)
{
    leader_lead(group_of(n)->leaders[n->i], n->term);
}

static void on_depose(struct member_node *n)
{
    leader_depose(group_of(n)->leaders[n->i]);
}

static void group_open(struct group *g, uint64_t seed)
{
    memset(g, 0, sizeof(*g));
    world_open(&g->w, seed);
    g->w.damaged = true; /* no kv_check() of its kv */
    g->m.started = on_started;
    g->m.ended = on_ended;
    g->m.lead = on_lead;
    g->m.depose = on_depose;
    member_world_init(&g->m, &g->w.env);
}

static void group_close(struct group *g)
{
    member_world_free(&g->m);
    assert_true(g->n_calls == 0 && g->w.n_unanswered == 0 && g->n_failed == 0);
    assert_true(list_is_empty(&g->w.channels));
    world_close(&g->w);
}

static int serving(const struct group *g)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        if (g->leaders[i] != NULL && leader_serves(g->leaders[i]) &&
            g->m.nodes[i].leads && !g->m.nodes[i].core_hangs)
            return (int)i;
    return -1;
}

/* Waits until a member serves, and returns it. */
static unsigned wait_for_service(struct group *g)
{
    for (unsigned ms = 0; serving(g) < 0; ms++) {
        assert_true(ms < 20000);
        member_world_run_ms(&g->m, 1);
    }
    return (unsigned)serving(g);
}

/* Sends the requests of g->w to the member that serves. */
static unsigned use_service(struct group *g)
{
    unsigned at = wait_for_service(g);

    g->w.handler = leader_handle;
    g->w.handler_arg = g->leaders[at];
    g->guess = at;
    return at;
}

static void name_of(unsigned name, char out[8])
{
    snprintf(out, 8, "d%02u", name);
}

/* ---- answers ---- */

static void change_take(struct asked *a, uint16_t status)
{
    struct name *n = &a->g->names[a->name];

    if (!n->pends || n->version != a->version)
        return; /* an answer to a repetition */
    switch (status) {
    case ROZO__STATUS__OK:
    case ROZO__STATUS__DONE_BEFORE:
        n->pends = false;
        n->exists = !n->exists;
        a->g->n_changed++;
        a->g->guess = a->at;
        return;
    case ROZO__STATUS__NOT_LEADER:
    case ROZO__STATUS__BUSY:
    case ROZO__STATUS__NO_SESSION:
        n->sent_ns = 0;
        return;
    default:
        fail_msg("name %u: a change was answered %u", a->name, status);
    }
}

static void read_take(struct asked *a, uint16_t status)
{
    const struct name *n = &a->g->names[a->name];

    if (n->version != a->version ||
        (status != ROZO__STATUS__OK && status != ROZO__STATUS__NOT_FOUND))
        return;
    assert_int_equal(status == ROZO__STATUS__OK, a->existed);
    a->g->n_read++;
}

static void session_take(struct asked *a, uint16_t status, const void *msg, size_t len)
{
    Rozo__MdOpenSessionResp *resp;

    a->g->opens = false;
    if (status != ROZO__STATUS__OK)
        return;
    resp = rozo__md_open_session_resp__unpack(NULL, len, msg);
    assert_non_null(resp);
    assert_int_equal(resp->session, a->g->w.session); /* no session ends in this test */
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
}

static void session_ask(struct group *g, unsigned at);

static void on_reply(struct rpc_call *call, uint16_t status, const void *msg,
                     size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                     void (*sent)(void *arg), void *arg)
{
    struct asked *a = (struct asked *)call;
    struct group *g = a->g;
    bool is_lost =
        g->m.nodes[a->at].life != a->life || env_virtual_below(&g->w.env, 20) == 0;

    (void)segs, (void)n_segs, (void)sent, (void)arg;
    g->n_calls--;
    if (a->name == NAMES)
        session_take(a, is_lost ? ROZO__STATUS__BUSY : status, msg, msg_len);
    else if (!is_lost && a->reads)
        read_take(a, status);
    else if (!is_lost)
        change_take(a, status);
    if (!is_lost && status == ROZO__STATUS__NO_SESSION)
        session_ask(g, a->at);
    free(a);
}

static const struct rpc_call_ops call_ops = { on_reply };

/* ---- requests ---- */

static struct asked *asked_new(struct group *g, unsigned at, unsigned op, unsigned name,
                               const ProtobufCMessage *req)
{
    struct asked *a = calloc(1, sizeof(*a));

    assert_true(a != NULL && protobuf_c_message_get_packed_size(req) <= sizeof(a->msg));
    a->call = (struct rpc_call){
        .ops = &call_ops,
        .op = (uint16_t)op,
        .role = RPC_ROLE_CLIENT,
        .session = g->w.session,
        .id = ++g->w.n_ids,
        .msg = a->msg,
        .msg_len = protobuf_c_message_pack(req, a->msg),
    };
    a->g = g;
    a->at = at;
    a->life = g->m.nodes[at].life;
    a->name = name;
    if (name < NAMES)
        a->version = g->names[name].version;
    return a;
}

/* Sends a request, which is lost if the member is down. */
static void asked_send(struct asked *a)
{
    struct leader *l = a->g->leaders[a->at];

    if (l == NULL) {
        free(a);
        return;
    }
    a->g->n_calls++;
    leader_handle(l, &a->call);
}

static void session_ask(struct group *g, unsigned at)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();

    if (g->opens || g->leaders[at] == NULL)
        return;
    g->opens = true;
    req.export_name = (char *)(uintptr_t) "main";
    req.client = (char *)(uintptr_t) "test:1:/mnt";
    req.session = g->w.session;
    asked_send(asked_new(g, at, ROZO__OP__MD_OPEN_SESSION, NAMES, &req.base));
}

static void read_ask(struct group *g, unsigned at, unsigned name)
{
    Rozo__MdLookupReq req = ROZO__MD_LOOKUP_REQ__INIT;
    char text[8];
    struct asked *a;

    name_of(name, text);
    req.parent = 1;
    req.name = (ProtobufCBinaryData){ 3, (uint8_t *)text };
    a = asked_new(g, at, ROZO__OP__MD_LOOKUP, name, &req.base);
    a->reads = true;
    a->existed = g->names[name].exists;
    asked_send(a);
}

static void change_ask(struct group *g, unsigned at, unsigned name)
{
    Rozo__MdCreateReq make = ROZO__MD_CREATE_REQ__INIT;
    Rozo__MdRmdirReq drop = ROZO__MD_RMDIR_REQ__INIT;
    struct name *n = &g->names[name];
    char text[8];
    struct asked *a;

    name_of(name, text);
    make.parent = drop.parent = 1;
    make.name = drop.name = (ProtobufCBinaryData){ 3, (uint8_t *)text };
    make.mode = S_IFDIR | 0755;
    make.exclusive = true;
    a = n->exists ? asked_new(g, at, ROZO__OP__MD_RMDIR, name, &drop.base)
                  : asked_new(g, at, ROZO__OP__MD_CREATE, name, &make.base);
    if (n->id == 0)
        n->id = a->call.id;
    else
        g->n_repeated++;
    a->call.id = n->id;
    n->sent_ns = env_now_ns(&g->w.env.env);
    asked_send(a);
}

static unsigned choose(struct group *g)
{
    return env_virtual_below(&g->w.env, 3) != 0
               ? g->guess
               : (unsigned)env_virtual_below(&g->w.env, MEMBERS);
}

/* Begins a change or a read of a name, or repeats what was not answered. */
static void client_act(struct group *g, unsigned name)
{
    struct name *n = &g->names[name];
    uint64_t now_ns = env_now_ns(&g->w.env.env);

    if (!n->pends && env_virtual_below(&g->w.env, 2) == 0) {
        read_ask(g, choose(g), name);
    } else if (!n->pends) {
        n->pends = true;
        n->id = 0;
        n->version++;
        change_ask(g, choose(g), name);
    } else if (now_ns - n->sent_ns >= ms_to_ns(AGAIN_MS) ||
               env_virtual_below(&g->w.env, 20) == 0) {
        g->guess = choose(g);
        change_ask(g, g->guess, name);
    }
}

/* ---- faults ---- */

static void fault(struct group *g)
{
    struct member_node *n = &g->m.nodes[env_virtual_below(&g->w.env, MEMBERS)];
    struct member_node *leader = member_world_leader(&g->m);
    unsigned n_up = 0;

    for (unsigned i = 0; i < MEMBERS; i++)
        n_up += g->m.nodes[i].is_up;
    if (leader != NULL && env_virtual_below(&g->w.env, 2) == 0)
        n = leader;
    switch (env_virtual_below(&g->w.env, 50)) {
    case 0:
        if (n->is_up && n_up == MEMBERS)
            member_node_kill(n, env_virtual_below(&g->w.env, 2) == 0);
        break;
    case 1:
        member_world_cut_off(&g->m, n->i);
        break;
    case 2:
        for (unsigned j = 0; j < MEMBERS; j++)
            g->m.cut[n->i][j] = env_virtual_below(&g->w.env, 2) == 0;
        break;
    case 3:
    case 4:
    case 5:
        n->core_hangs = n->is_up;
        break;
    case 6:
        if (n->is_up)
            member_transfer(n->member, 0);
        break;
    case 7: /* links to it are refused, whether it lives or not */
        for (unsigned j = 0; j < MEMBERS; j++)
            if (j != n->i && g->m.nodes[j].is_up)
                member_refused(g->m.nodes[j].member, &g->m.links[j][n->i].channel);
        break;
    default:
        if (env_virtual_below(&g->w.env, 10) == 0)
            member_world_connect_all(&g->m);
        if (n->core_hangs && env_virtual_below(&g->w.env, 10) == 0)
            member_node_resume_core(n);
        if (!n->is_up && env_virtual_below(&g->w.env, 5) == 0)
            member_node_start(n);
    }
}

static void faults_end(struct group *g)
{
    member_world_connect_all(&g->m);
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct member_node *n = &g->m.nodes[i];

        if (n->core_hangs)
            member_node_resume_core(n);
        if (!n->is_up)
            member_node_start(n);
    }
}

static void begin(struct group *g, uint64_t seed)
{
    group_open(g, seed);
    use_service(g);
    world_make_export(&g->w, 4, 0);
}

/* ---- tests ---- */

static void a_change_outlives_its_leader(void **state)
{
    struct group *g = malloc(sizeof(*g));
    struct seen seen;
    unsigned at;

    (void)state;
    begin(g, 1);
    at = (unsigned)serving(g);
    OK(t_create(&g->w, 1, "file", S_IFREG | 0644, &seen));
    member_node_kill(&g->m.nodes[at], true);
    assert_int_not_equal(use_service(g), at);
    IS(NO_SESSION, t_lookup(&g->w, 1, "file", NULL));
    world_reopen_session(&g->w);
    OK(t_lookup(&g->w, 1, "file", &seen));
    member_node_start(&g->m.nodes[at]);
    member_world_run_ms(&g->m, 1000);
    group_close(g);
    free(g);
}

/* Sends MD_WAIT_LEADER to a member. */
static void wait_ask(struct group *g, unsigned at, struct answer_got *got)
{
    g->w.handler = leader_handle;
    g->w.handler_arg = g->leaders[at];
    world_send(&g->w, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, got);
}

static uint64_t start_of(struct answer_got *got)
{
    Rozo__MdWaitLeaderResp *r;
    uint64_t start;

    assert_true(got->came && got->status == ROZO__STATUS__OK);
    r = rozo__md_wait_leader_resp__unpack(NULL, got->len, got->msg);
    assert_non_null(r);
    start = r->start;
    rozo__md_wait_leader_resp__free_unpacked(r, NULL);
    free(got->msg);
    return start;
}

static void who_waits_for_a_leader_is_told(void **state)
{
    struct group *g = malloc(sizeof(*g));
    struct answer_got got[MEMBERS], late[MEMBERS];
    unsigned at, next;
    uint64_t first;

    (void)state;
    begin(g, 2);
    at = (unsigned)serving(g);
    for (unsigned i = 0; i < MEMBERS; i++)
        wait_ask(g, i, &got[i]);
    member_world_run_ms(&g->m, 10);
    first = start_of(&got[at]);
    member_world_run_ms(&g->m, LEADER_WAIT_MS / 2);
    for (unsigned i = 0; i < MEMBERS; i++)
        if (i != at)
            wait_ask(g, i, &late[i]);
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_int_equal(got[i].came, i == at);
    member_world_run_ms(&g->m, LEADER_WAIT_MS / 2 + 1);
    for (unsigned i = 0; i < MEMBERS; i++) {
        if (i == at)
            continue;
        assert_true(got[i].came && got[i].status == ROZO__STATUS__NOT_LEADER);
        assert_false(late[i].came);
        free(got[i].msg);
    }
    member_node_kill(&g->m.nodes[at], false);
    next = use_service(g);
    member_world_run_ms(&g->m, 10);
    assert_true(start_of(&late[next]) > first);
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_true(i == at || i == next || !late[i].came);
    group_close(g); /* NOT_LEADER to the one that is left */
    for (unsigned i = 0; i < MEMBERS; i++)
        if (i != at && i != next) {
            assert_int_equal(late[i].status, ROZO__STATUS__NOT_LEADER);
            free(late[i].msg);
        }
    free(g);
}

/* A leader that is cut off, and whose core has not heard that it does not lead. */
static void nobody_answers_what_is_stale(void **state)
{
    struct group *g = malloc(sizeof(*g));
    unsigned old, next;

    (void)state;
    begin(g, 3);
    old = (unsigned)serving(g);
    g->names[0].version++;
    read_ask(g, old, 0);
    member_world_run_ms(&g->m, 10);
    g->m.nodes[old].core_hangs = true;
    member_world_cut_off(&g->m, old);
    next = use_service(g);
    assert_int_not_equal(next, old);
    world_reopen_session(&g->w);
    OK(t_create(&g->w, 1, "d00", S_IFDIR | 0755, NULL));
    g->names[0].exists = true;
    for (unsigned i = 0; i < 10; i++)
        read_ask(g, old, 0); /* NOT_FOUND would be wrong */
    member_world_run_ms(&g->m, 1000);
    assert_int_equal(g->n_calls, 10);
    member_world_connect_all(&g->m);
    member_node_resume_core(&g->m.nodes[old]);
    member_world_run_ms(&g->m, 1000);
    assert_int_equal(g->n_calls, 0);
    group_close(g);
    free(g);
}

/* Changes and reads by chance, with faults. */
static void by_chance(void **state)
{
    struct group *g = malloc(sizeof(*g));
    unsigned n_changed = 0, n_read = 0, n_repeated = 0;

    (void)state;
    for (uint64_t seed = 500; seed < 500 + unit_seeds(120); seed += UNIT_STEP) {
        begin(g, seed);
        for (unsigned i = 0; i < STEPS; i++) {
            client_act(g, (unsigned)env_virtual_below(&g->w.env, NAMES));
            fault(g);
            member_world_run_ms(&g->m, (unsigned)env_virtual_below(&g->w.env, 30));
        }
        faults_end(g);
        for (unsigned i = 0; i < NAMES; i++) {
            for (unsigned ms = 0; g->names[i].pends; ms += 10) {
                assert_true(ms < 20000);
                client_act(g, i);
                member_world_run_ms(&g->m, 10);
            }
        }
        use_service(g);
        world_reopen_session(&g->w);
        for (unsigned i = 0; i < NAMES; i++) {
            char text[8];

            name_of(i, text);
            assert_int_equal(t_lookup(&g->w, 1, text, NULL),
                             g->names[i].exists ? ROZO__STATUS__OK
                                                : ROZO__STATUS__NOT_FOUND);
        }
        member_world_run_ms(&g->m, 100);
        kv_check(kv_quorum_kv(g->m.nodes[g->guess].kv));
        n_changed += g->n_changed;
        n_read += g->n_read;
        n_repeated += g->n_repeated;
        group_close(g);
    }
    print_message("%u changes, %u of them repeated; %u reads\n", n_changed, n_repeated,
                  n_read);
    assert_true(n_changed > 0 && n_repeated > 0 && n_read > 0);
    free(g);
}

/* ---- one leader on a kv that the test deposes ---- */

static struct world w1;
static struct fickle_kv kv1;
static struct leader *l1;
static unsigned n_failed1;
static bool alone1;

static void on_failed1(void *arg, int rc, const char *text)
{
    (void)arg;
    (void)rc;
    assert_non_null(text);
    n_failed1++;
}

/* The last news is what leader_serves() says, and each differs from the one before. */
static unsigned n_serves1;

static void on_serves1(void *arg, bool serves)
{
    (void)arg;
    assert_int_equal(serves, n_serves1 % 2 == 0);
    n_serves1++;
}

/* Connections end when all calls of an abandoned core are answered. */
static unsigned n_ended1;

static void on_end_conns1(void *arg)
{
    (void)arg;
    assert_int_equal(w1.n_unanswered, 0);
    assert_false(leader_serves(l1));
    n_ended1++;
}

static struct exportd_list clients1; /* where clients reach members */

static bool is_alone1(void *arg)
{
    (void)arg;
    return alone1;
}

static int setup1(void **state)
{
    struct leader_config config = { .failed = on_failed1,
                                    .is_alone = is_alone1,
                                    .serves = on_serves1,
                                    .end_conns = on_end_conns1,
                                    .clients = &clients1 };

    (void)state;
    alone1 = false;
    clients1.n = 0;
    world_open(&w1, 7);
    w1.damaged = true;
    fickle_kv_init(&kv1, &w1.env.env, w1.kv);
    n_failed1 = n_serves1 = n_ended1 = 0;
    config.env = &w1.env.env;
    config.kv = &kv1.kv;
    config.exportd = world_config(&w1);
    assert_int_equal(leader_open(&config, &l1), 0);
    w1.handler = leader_handle;
    w1.handler_arg = l1;
    return 0;
}

static int teardown1(void **state)
{
    bool stopped = false;

    (void)state;
    leader_stop(l1, on_leader_stopped, &stopped);
    env_virtual_advance_ms(&w1.env, 100);
    assert_true(stopped && w1.n_unanswered == 0 && list_is_empty(&w1.channels));
    assert_int_equal(n_serves1 % 2, 0);
    leader_close(l1);
    world_close(&w1);
    return 0;
}

static void lead1(void)
{
    kv1.deposed = false;
    leader_lead(l1, 1);
}

static void depose1(void)
{
    fickle_kv_depose(&kv1);
    leader_depose(l1);
}

static uint64_t start1(void)
{
    struct answer_got got;

    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &got);
    env_virtual_advance_ms(&w1.env, 5);
    return start_of(&got);
}

static void each_term_is_a_start(void **state)
{
    (void)state;
    assert_false(leader_serves(l1));
    lead1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_true(leader_serves(l1));
    assert_int_equal(start1(), 1);
    depose1();
    assert_false(leader_serves(l1));
    lead1(); /* before the former core is freed */
    assert_false(leader_serves(l1));
    env_virtual_advance_ms(&w1.env, 5);
    assert_int_equal(start1(), 2);
    depose1();
    lead1();
    depose1();
    depose1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_false(leader_serves(l1));
    lead1();
    assert_int_equal(start1(), 3);
    assert_int_equal(n_serves1, 5); /* twice for a while, and now again */
}

/* A start that never becomes stable ends when the member is deposed. */
static void a_start_that_hangs_ends_when_deposed(void **state)
{
    struct answer_got got;

    (void)state;
    kv1.holds = true;
    lead1();
    env_virtual_advance_ms(&w1.env, 3000);
    assert_false(leader_serves(l1));
    world_send(&w1, ROZO__OP__MD_LOOKUP, RPC_ROLE_CLIENT, 5, NULL, 0, &got);
    assert_int_equal(got.status, ROZO__STATUS__NOT_LEADER);
    free(got.msg);
    depose1();
    env_virtual_advance_ms(&w1.env, 5);
    kv1.holds = false;
    lead1();
    assert_int_equal(start1(), 1); /* the first one was not written */
}

static void a_stop_that_hangs_ends_when_deposed(void **state)
{
    struct leader_config config = { .env = &w1.env.env,
                                    .kv = &kv1.kv,
                                    .exportd = world_config(&w1),
                                    .failed = on_failed1 };
    struct answer_got got;
    struct leader *l;
    bool stopped = false;

    (void)state;
    lead1();
    assert_int_equal(start1(), 1);
    l = l1;
    kv1.holds = true;
    leader_stop(l, on_leader_stopped, &stopped);
    env_virtual_advance_ms(&w1.env, 3000);
    assert_false(stopped || leader_serves(l));
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &got);
    assert_int_equal(got.status, ROZO__STATUS__NOT_LEADER);
    free(got.msg);
    depose1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_true(stopped);
    lead1(); /* too late: the mail was on its way */
    env_virtual_advance_ms(&w1.env, 5);
    assert_false(leader_serves(l));
    leader_close(l);
    assert_int_equal(leader_open(&config, &l1), 0);
}

/* Metadata from a backup: storages know later starts. Each start gets nearer to them. */
static void storages_may_know_later_starts(void **state)
{
    (void)state;
    lead1();
    assert_int_equal(start1(), 1);
    world_make_export(&w1, 4, 0);
    w1.storages[2].says_map = true;
    w1.storages[2].map_version = UINT64_C(5) << 32;
    for (unsigned ms = 0; start1() < 5 || !leader_serves(l1); ms += 100) {
        assert_true(ms < 60000);
        env_virtual_advance_ms(&w1.env, 100);
    }
    env_virtual_advance_ms(&w1.env, 5000);
    assert_int_equal(start1(), 5);
}

static void connections_end_after_a_core_was_abandoned(void **state)
{
    struct answer_got held, waits;

    (void)state;
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &held);
    lead1();
    assert_int_equal(start1(), 1);
    assert_int_equal(start_of(&held), 1);
    assert_int_equal(n_ended1, 0);
    depose1();
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &waits);
    lead1(); /* before its loop has turned */
    while (!leader_serves(l1)) {
        assert_int_equal(n_ended1, 0);
        env_virtual_advance_ms(&w1.env, 1);
    }
    assert_int_equal(n_ended1, 1);
    assert_int_equal(waits.status, ROZO__STATUS__NOT_LEADER);
    free(waits.msg);
    kv1.holds = true;
    depose1();
    lead1();
    env_virtual_advance_ms(&w1.env, 100);
    assert_int_equal(n_ended1, 2);
    depose1(); /* a core that never served: requests of an earlier reign may be there */
    env_virtual_advance_ms(&w1.env, 100);
    assert_int_equal(n_ended1, 3);
    kv1.holds = false;
}

static void calls_end_with_their_connection(void **state)
{
    struct answer_got a, b;

    (void)state;
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &a);
    leader_conn_closed(l1, 1);
    assert_false(a.came);
    leader_conn_closed(l1, 0);
    assert_true(a.came);
    free(a.msg);
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &b);
    lead1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_int_equal(start_of(&b), 1);
}

/* An only member serves in start 1, then finds a storage that has this map. Returns when
 * it serves in another start. */
static void meets_map(uint64_t version, uint32_t returns)
{
    alone1 = true;
    lead1();
    assert_int_equal(start1(), 1);
    world_make_export(&w1, 4, 0);
    w1.storages[2].says_map = true;
    w1.storages[2].map_version = version;
    w1.storages[2].map_returns = returns;
    for (unsigned ms = 0; start1() == 1 || !leader_serves(l1); ms += 100) {
        assert_true(ms < 60000);
        env_virtual_advance_ms(&w1.env, 100);
    }
    env_virtual_advance_ms(&w1.env, 5000);
}

/* With one member the second start is above all. */
static void an_only_member_skips_starts_that_storages_know(void **state)
{
    (void)state;
    meets_map(UINT64_C(4500) << 32 | 7, 0);
    assert_int_equal(start1(), 4501);
}

/* An only member with metadata from before a return that storages know of: no start of
 * its own would ever be high enough. */
static void an_only_member_takes_over_the_returns_of_storages(void **state)
{
    struct answer_got got;

    (void)state;
    meets_map(UINT64_C(1) << 32 | 7, 3);
    assert_int_equal(w1.storages[2].map_returns, 3);
    assert_true(w1.storages[2].map_version >> 32 == 2);
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &got);
    env_virtual_advance_ms(&w1.env, 5);
    assert_true(start_of(&got) == (UINT64_C(3) << 32 | 2)); /* for mounts, too */
    depose1();
    env_virtual_advance_ms(&w1.env, 100);
    lead1();
    env_virtual_advance_ms(&w1.env, 5000);
    assert_true(start1() == (UINT64_C(3) << 32 | 3)); /* from its own store */
    assert_int_equal(w1.storages[2].map_returns, 3);
}

/* A member that does not know of the return is deposed, whatever its start. */
static void a_member_from_before_a_return_is_deposed(void **state)
{
    (void)state;
    lead1();
    assert_int_equal(start1(), 1);
    world_make_export(&w1, 4, 0);
    depose1();
    env_virtual_advance_ms(&w1.env, 100);
    for (unsigned i = 0; i < 4; i++) {
        w1.storages[i].says_map = true;
        w1.storages[i].map_version = UINT64_C(1) << 32 | 1;
        w1.storages[i].map_returns = 1;
        w1.storages[i].n_maps = 0;
    }
    lead1();
    env_virtual_advance_ms(&w1.env, 10000); /* start after start */
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(w1.storages[i].map_returns, 1);
    assert_true(w1.storages[0].map_version == (UINT64_C(1) << 32 | 1));
}

static void a_request_for_another_start_is_refused(void **state)
{
    struct answer_got got;

    (void)state;
    lead1();
    assert_int_equal(start1(), 1);
    world_make_export(&w1, 4, 0);
    depose1();
    env_virtual_advance_ms(&w1.env, 100);
    lead1();
    assert_int_equal(start1(), 2);
    for (uint32_t start = 0; start < 4; start++) {
        w1.start = start;
        world_send(&w1, ROZO__OP__MD_STATFS, RPC_ROLE_CLIENT, w1.session, NULL, 0, &got);
        w1.start = 0;
        env_virtual_advance_ms(&w1.env, 5);
        assert_true(got.came);
        assert_int_equal(got.status == ROZO__STATUS__NOT_LEADER,
                         start != 0 && start != 2);
        free(got.msg);
    }
}

/* Asks for the leader, and for the list if it is not the one with this number. */
static void wait_for_list(uint64_t number, struct answer_got *got)
{
    Rozo__MdWaitLeaderReq req = ROZO__MD_WAIT_LEADER_REQ__INIT;
    uint8_t msg[32];
    size_t len;

    req.wants_list = true;
    req.list = number;
    len = rozo__md_wait_leader_req__pack(&req, msg);
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, msg, len, got);
    env_virtual_advance_ms(&w1.env, 1);
}

/* Returns the number of addresses in an answer. */
static unsigned addresses_in(struct answer_got *got, uint16_t status)
{
    Rozo__MdWaitLeaderResp *r;
    unsigned n;

    assert_true(got->came && got->status == status);
    r = rozo__md_wait_leader_resp__unpack(NULL, got->len, got->msg);
    assert_non_null(r);
    assert_true(r->list == exportd_list_number(&clients1));
    n = (unsigned)r->n_addresses;
    rozo__md_wait_leader_resp__free_unpacked(r, NULL);
    free(got->msg);
    return n;
}

static void clients_are_told_where_members_are(void **state)
{
    struct answer_got a, b, old;
    uint64_t number;

    (void)state;
    wait_for_list(0, &a);
    assert_false(a.came); /* there is no list yet */
    world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &old);
    exportd_list_add(&clients1, "a:1");
    exportd_list_add(&clients1, "b:1");
    leader_clients(l1);
    assert_int_equal(addresses_in(&a, ROZO__STATUS__NOT_LEADER), 2);
    assert_false(old.came); /* an earlier build */
    wait_for_list(0, &a);
    assert_int_equal(addresses_in(&a, ROZO__STATUS__NOT_LEADER), 2);
    wait_for_list(exportd_list_number(&clients1), &a);
    leader_clients(l1); /* nothing new */
    assert_false(a.came);
    lead1();
    assert_int_equal(start1(), 1);
    assert_int_equal(addresses_in(&a, ROZO__STATUS__OK), 0);
    assert_int_equal(start_of(&old), 1);
    number = exportd_list_number(&clients1);
    exportd_list_add(&clients1, "c:1");
    wait_for_list(number, &b);
    assert_int_equal(addresses_in(&b, ROZO__STATUS__OK), 3);
}

static void too_many_are_not_held(void **state)
{
    static struct answer_got got[LEADER_HELD_MAX + 1];

    (void)state;
    for (unsigned i = 0; i <= LEADER_HELD_MAX; i++) {
        world_send(&w1, ROZO__OP__MD_WAIT_LEADER, RPC_ROLE_CLIENT, 0, NULL, 0, &got[i]);
        assert_int_equal(got[i].came, i == LEADER_HELD_MAX);
    }
    assert_int_equal(got[LEADER_HELD_MAX].status, ROZO__STATUS__BUSY);
    lead1();
    env_virtual_advance_ms(&w1.env, 5);
    for (unsigned i = 0; i < LEADER_HELD_MAX; i++)
        assert_int_equal(start_of(&got[i]), 1);
    free(got[LEADER_HELD_MAX].msg);
}

static void a_damaged_store_ends_the_process(void **state)
{
    const struct kv_item item = { "Xyz", 3, "1", 1 };

    (void)state;
    world_put(&w1, &item); /* keys, but no cluster */
    lead1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_int_equal(n_failed1, 1);
    assert_false(leader_serves(l1));
    depose1();
    lead1();
    env_virtual_advance_ms(&w1.env, 5);
    assert_int_equal(n_failed1, 1);
}

#define TEST1(name) cmocka_unit_test_setup_teardown(name, setup1, teardown1)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST1(each_term_is_a_start),
        TEST1(connections_end_after_a_core_was_abandoned),
        TEST1(calls_end_with_their_connection),
        TEST1(a_start_that_hangs_ends_when_deposed),
        TEST1(a_stop_that_hangs_ends_when_deposed),
        TEST1(storages_may_know_later_starts),
        TEST1(an_only_member_skips_starts_that_storages_know),
        TEST1(an_only_member_takes_over_the_returns_of_storages),
        TEST1(a_member_from_before_a_return_is_deposed),
        TEST1(a_request_for_another_start_is_refused),
        TEST1(clients_are_told_where_members_are),
        TEST1(too_many_are_not_held),
        TEST1(a_damaged_store_ends_the_process),
        cmocka_unit_test(a_change_outlives_its_leader),
        cmocka_unit_test(who_waits_for_a_leader_is_told),
        cmocka_unit_test(nobody_answers_what_is_stale),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
