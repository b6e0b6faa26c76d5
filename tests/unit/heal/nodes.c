/* nodes.c - see nodes.h. */
#include "tests/unit/heal/nodes.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/list.h"
#include "storaged/format/projfile.h"
#include "storaged/heal/list/proj_list.h"

struct env_virtual nodes_env;
struct node nodes[NODES + 1];
unsigned nodes_lost;
uint64_t nodes_reserved;
uint64_t nodes_session;
uint8_t nodes_incarnations[NODES + 1][16];

static const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES] = { 4, 5, 6 };

/* ---- requests between nodes ---- */

struct delivery {
    struct rpc_call call;   /* must be the first member */
    struct rpc_request *rq; /* NULL: cancelled, or sent by the test */
    struct node *to;
    struct env_timer timer;
    struct env_task task;
    bool answered;
    uint16_t status;
    uint8_t *msg, *answer;
    size_t answer_len;
    struct list_node link;
};
static struct list_node deliveries = { &deliveries, &deliveries };

static void delivery_free(struct delivery *d)
{
    list_remove(&d->link);
    free(d->msg);
    free(d->answer);
    free(d);
}

static void on_answer(struct env_task *task)
{
    struct delivery *d = container_of(task, struct delivery, task);
    struct rpc_request *rq = d->rq;

    if (rq != NULL) {
        rq->status = d->status;
        rq->answer_msg = d->answer;
        rq->answer_msg_len = d->answer_len;
        rq->impl = NULL;
        rq->done(rq, d->answered ? 0 : -ENOTCONN);
    }
    delivery_free(d);
}

static void delivery_reply(struct rpc_call *call, uint16_t status, const void *msg,
                           size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                           void (*sent)(void *arg), void *arg)
{
    struct delivery *d = (struct delivery *)call;

    (void)segs;
    (void)arg;
    assert(n_segs == 0 && sent == NULL && !d->answered);
    d->answered = true;
    d->status = status;
    d->answer = malloc(msg_len + 1);
    memcpy(d->answer, msg_len == 0 ? "" : msg, msg_len);
    d->answer_len = msg_len;
    d->task.fn = on_answer;
    env_post(&nodes_env.env, &d->task);
}

static const struct rpc_call_ops delivery_ops = { .reply = delivery_reply };

static void say(struct rpc_call *call, const ProtobufCMessage *msg)
{
    uint8_t buf[4096];

    rpc_reply(call, ROZO__STATUS__OK, buf, protobuf_c_message_pack(msg, buf), NULL, 0,
              NULL, NULL);
}

/* ---- the storage behind the healer ---- */

static void storage_commit(struct node *n, struct rpc_call *call)
{
    Rozo__StCommitReq *req = rozo__st_commit_req__unpack(NULL, call->msg_len, call->msg);
    struct storcli_target t;

    assert(heal_target_get(req->ref, &t) == 0 && req->to_storage == n->id);
    for (unsigned p = 0; p < 3; p++) {
        if ((req->whole >> p & 1) != 0) {
            n->n_whole++;
            projection_make(n->id, &t, p, false, 1);
        }
    }
    rpc_reply_status(call, ROZO__STATUS__OK);
    rozo__st_commit_req__free_unpacked(req, NULL);
}

static void storage_stat(struct node *n, struct rpc_call *call)
{
    Rozo__StStatReq *req = rozo__st_stat_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StStatResp resp = ROZO__ST_STAT_RESP__INIT;
    Rozo__StStatResp__Projection p = ROZO__ST_STAT_RESP__PROJECTION__INIT, *all = &p;
    struct storcli_target t;

    assert(heal_target_get(req->ref, &t) == 0);
    if (t.id.ino == n->lacks_ino) {
        rpc_reply_status(call, ROZO__STATUS__NO_FILE);
    } else {
        p.projection = heal_place(&t, n->id);
        resp.projections = &all;
        resp.n_projections = 1;
        say(call, &resp.base);
    }
    rozo__st_stat_req__free_unpacked(req, NULL);
}

/* Removes a corrupt file; a file whose creation was not finished does not exist here for
 * a healer. */
static void storage_remove(struct node *n, struct rpc_call *call)
{
    Rozo__StRemoveReq *req = rozo__st_remove_req__unpack(NULL, call->msg_len, call->msg);
    bool goes = req->ruined && !n->keeps;
    char prefix[PROJFILE_PATH_MAX];
    struct file_id id;

    assert(req->unfinished && req->to_storage == n->id);
    file_id_get(req->file_id.data, &id);
    projfile_path_prefix(prefix, &id);
    for (unsigned i = 0; goes && i < n->disk.n_files; i++) {
        if (strncmp(n->disk.files[i]->path, prefix, strlen(prefix)) == 0)
            n->disk.files[i]->linked = false;
    }
    rpc_reply_status(call,
                     req->ruined && n->keeps ? ROZO__STATUS__DAMAGED : ROZO__STATUS__OK);
    rozo__st_remove_req__free_unpacked(req, NULL);
}

static void storage_serve(struct node *n, struct rpc_call *call)
{
    Rozo__StInfoResp info = ROZO__ST_INFO_RESP__INIT;

    switch (call->op) {
    case ROZO__OP__ST_COMMIT:
        storage_commit(n, call);
        break;
    case ROZO__OP__ST_STAT:
        storage_stat(n, call);
        break;
    case ROZO__OP__ST_REMOVE:
        storage_remove(n, call);
        break;
    case ROZO__OP__ST_INFO:
        say(call, &info.base);
        break;
    default:
        fail_msg("a request that only repairs make: %u", call->op);
    }
}

static void on_arrival(struct env_timer *timer)
{
    struct delivery *d = container_of(timer, struct delivery, timer);

    if (d->rq == NULL || !d->to->up || !d->to->running) {
        d->task.fn = on_answer; /* no answer */
        env_post(&nodes_env.env, &d->task);
        return;
    }
    d->to->n_served[d->call.op]++;
    if (healer_serves(d->call.op))
        healer_handle(d->to->healer, &d->call);
    else
        storage_serve(d->to, &d->call);
}

static struct delivery *delivery_new(struct node *to, uint16_t op, const void *msg,
                                     size_t len)
{
    struct delivery *d = calloc(1, sizeof(*d));

    d->to = to;
    d->msg = malloc(len + 1);
    memcpy(d->msg, msg, len);
    d->call = (struct rpc_call){ .ops = &delivery_ops,
                                 .op = op,
                                 .role = RPC_ROLE_NODE,
                                 .msg = d->msg,
                                 .msg_len = len };
    list_add_tail(&deliveries, &d->link);
    return d;
}

static void link_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct link *l = (struct link *)ch;
    struct delivery *d = delivery_new(l->to, rq->op, rq->msg, rq->msg_len);

    assert(rq->n_payload == 0 && l->from->running);
    d->rq = rq;
    rq->impl = d;
    env_timer_init(&d->timer, on_arrival);
    env_timer_start(&nodes_env.env, &d->timer, 1);
}

static void link_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    (void)ch;
    ((struct delivery *)rq->impl)->rq = NULL;
}

static enum rpc_health link_health(struct rpc_channel *ch)
{
    struct link *l = (struct link *)ch;

    return l->to->up && l->to->running ? RPC_UP : RPC_DOWN;
}

static const struct rpc_channel_ops link_ops = {
    .send = link_send,
    .cancel = link_cancel,
    .health = link_health,
};

static struct rpc_channel *peer_open(void *arg, uint32_t id,
                                     const uint8_t incarnation[IDENTITY_ID_BYTES],
                                     const char *const *addrs, unsigned n_addrs)
{
    struct node *n = arg;
    char name[16];

    snprintf(name, sizeof(name), "node%u", (unsigned)id);
    assert(n_addrs == 1 && strcmp(addrs[0], name) == 0 && id <= NODES);
    memcpy(n->wanted[id], incarnation, sizeof(n->wanted[id]));
    n->n_open++;
    return &n->links[id].ch;
}

static void peer_close(void *arg, struct rpc_channel *ch)
{
    (void)ch;
    ((struct node *)arg)->n_open--;
}

/* ---- requests of the healers ---- */

struct answer {
    struct env_timer timer;
    struct heal_question *q;
};

static void on_answer_timer(struct env_timer *timer)
{
    struct answer *a = container_of(timer, struct answer, timer);
    struct heal_question *q = a->q;

    free(a);
    q->answered(q);
}

static void answer_later(struct heal_question *q)
{
    struct answer *a = calloc(1, sizeof(*a));

    a->q = q;
    env_timer_init(&a->timer, on_answer_timer);
    env_timer_start(&nodes_env.env, &a->timer, 1);
}

static void ask_uncommitted(void *arg, struct heal_question *q)
{
    struct node *n = arg;

    if (n->has_uncommitted && n->uncommitted.age_ns >= q->older_than_ns)
        q->uncommitted[q->n_uncommitted++] = n->uncommitted;
    answer_later(q);
}

static void ask_health(void *arg, struct heal_question *q)
{
    (void)arg;
    q->health.journal_bytes = 77;
    answer_later(q);
}

/* ---- nodes ---- */

void nodes_init(uint64_t seed)
{
    memset(nodes, 0, sizeof(nodes));
    nodes_lost = 0;
    nodes_reserved = 0;
    nodes_session = 0;
    memset(nodes_incarnations, 0, sizeof(nodes_incarnations));
    fake_repairs_init();
    env_virtual_init(&nodes_env, seed);
    for (unsigned i = 1; i <= NODES; i++) {
        struct node *n = &nodes[i];

        n->id = i;
        n->up = true;
        memdisk_init(&n->disk, &nodes_env);
        assert_int_equal(kv_memory_open(&nodes_env.env, &n->mem), 0);
        assert_int_equal(capability_key_new(node_key, 0, &n->key), 0);
        memset(n->identity.cluster_id, 7, sizeof(n->identity.cluster_id));
        atomic_store(&n->identity.storage_id, i);
        n->config = (struct healer_config){
            .env = &nodes_env.env,
            .disk = &n->disk.disk,
            .kv = kv_memory_kv(n->mem),
            .identity = &n->identity,
            .revoked = &n->revoked,
            .key = n->key,
            .peers = { .open = peer_open, .close = peer_close, .arg = n },
            .ask_uncommitted = ask_uncommitted,
            .ask_health = ask_health,
            .arg = n,
            .boot = 1,
        };
        for (unsigned j = 1; j <= NODES; j++)
            n->links[j] =
                (struct link){ .ch.ops = &link_ops, .from = n, .to = &nodes[j] };
    }
}

void node_start(unsigned i)
{
    struct err err = { 0 };

    assert_int_equal(healer_open(&nodes[i].config, &nodes[i].healer, &err), 0);
    nodes[i].running = true;
    healer_start(nodes[i].healer);
}

static void on_stopped(void *arg)
{
    *(bool *)arg = true;
}

void node_stop_begin(unsigned i)
{
    nodes[i].stopping = true;
    nodes[i].stopped = false;
    healer_stop(nodes[i].healer, on_stopped, &nodes[i].stopped);
    assert_false(nodes[i].stopped);
}

void node_stop(unsigned i)
{
    if (!nodes[i].stopping)
        node_stop_begin(i);
    for (unsigned ms = 0; !nodes[i].stopped && ms < 1000; ms++)
        env_virtual_advance_ms(&nodes_env, 1);
    assert_true(nodes[i].stopped);
    nodes[i].stopping = false;
    nodes[i].running = false;
    healer_close(nodes[i].healer);
    nodes[i].healer = NULL;
    assert_int_equal(nodes[i].n_open, 0);
    for (unsigned j = 0; j < nodes[i].disk.n_files; j++)
        assert_int_equal(nodes[i].disk.files[j]->n_open, 0);
}

void node_crash(unsigned i)
{
    kv_memory_kill(nodes[i].mem); /* later changes are not kept */
    node_stop(i);
    kv_memory_revive(nodes[i].mem);
}

int nodes_teardown(void **state)
{
    (void)state;
    nodes_free();
    return 0;
}

void run_ms(uint64_t ms)
{
    env_virtual_advance_ms(&nodes_env, ms);
}

void nodes_free(void)
{
    for (unsigned i = 1; i <= NODES; i++) {
        if (nodes[i].running)
            node_stop(i);
    }
    env_virtual_advance_ms(&nodes_env, 100);
    assert_true(list_is_empty(&deliveries));
    for (unsigned i = 1; i <= NODES; i++) {
        kv_memory_close(nodes[i].mem);
        memdisk_free(&nodes[i].disk);
        capability_key_free(nodes[i].key);
    }
    env_virtual_close(&nodes_env);
}

/* ---- tools for tests ---- */

struct asked {
    struct rpc_request rq; /* must be the first member */
    bool done;
    uint16_t status;
    uint8_t *answer;
    size_t answer_len;
};

static void on_asked(struct rpc_request *rq, int rc)
{
    struct asked *a = (struct asked *)rq;

    assert(rc == 0);
    a->done = true;
    a->status = rq->status;
    a->answer = malloc(rq->answer_msg_len + 1);
    memcpy(a->answer, rq->answer_msg, rq->answer_msg_len);
    a->answer_len = rq->answer_msg_len;
}

uint16_t node_ask(unsigned i, enum rpc_role role, uint16_t op,
                  const ProtobufCMessage *msg, uint8_t **answer, size_t *answer_len)
{
    static uint8_t buf[1 << 20];
    struct asked a = { .rq.done = on_asked };
    struct delivery *d;

    assert(protobuf_c_message_get_packed_size(msg) <= sizeof(buf));
    d = delivery_new(&nodes[i], op, buf, protobuf_c_message_pack(msg, buf));
    d->call.role = role;
    d->call.session = nodes_session;
    d->rq = &a.rq;
    healer_handle(nodes[i].healer, &d->call);
    for (unsigned ms = 0; !a.done && ms < 10000; ms++)
        env_virtual_advance_ms(&nodes_env, 1);
    assert_true(a.done);
    if (answer != NULL) {
        *answer = a.answer;
        *answer_len = a.answer_len;
    } else {
        free(a.answer);
    }
    return a.status;
}

Rozo__StHealthResp *node_health(unsigned i)
{
    Rozo__StHealthReq req = ROZO__ST_HEALTH_REQ__INIT;
    Rozo__StHealthResp *resp;
    uint8_t *answer;
    size_t len;

    req.to_storage = i;
    assert_int_equal(
        node_ask(i, RPC_ROLE_CLIENT, ROZO__OP__ST_HEALTH, &req.base, &answer, &len),
        ROZO__STATUS__OK);
    resp = rozo__st_health_resp__unpack(NULL, len, answer);
    free(answer);
    assert_non_null(resp);
    return resp;
}

void node_map(unsigned i, uint64_t version, unsigned n_storages)
{
    Rozo__StMapReq req = ROZO__ST_MAP_REQ__INIT;
    Rozo__Storage storages[NODES], *pointers[NODES];
    char names[NODES][16], *addrs[NODES];

    for (unsigned j = 0; j < n_storages; j++) {
        rozo__storage__init(&storages[j]);
        snprintf(names[j], sizeof(names[j]), "node%u", j + 1);
        addrs[j] = names[j];
        storages[j].id = j + 1;
        storages[j].lost = (nodes_lost >> (j + 1) & 1) != 0;
        storages[j].addresses = &addrs[j];
        storages[j].n_addresses = 1;
        storages[j].incarnation.data = nodes_incarnations[j + 1];
        storages[j].incarnation.len =
            bytes_are_zero(nodes_incarnations[j + 1], IDENTITY_ID_BYTES)
                ? 0
                : IDENTITY_ID_BYTES;
        pointers[j] = &storages[j];
    }
    req.version = version;
    req.storages = pointers;
    req.n_storages = n_storages;
    req.to_storage = i;
    req.reserved_bytes = nodes_reserved;
    assert_int_equal(node_ask(i, RPC_ROLE_NODE, ROZO__OP__ST_MAP, &req.base, NULL, NULL),
                     ROZO__STATUS__OK);
}

void nodes_start_all(void)
{
    for (unsigned i = 1; i <= NODES; i++)
        node_start(i);
    for (unsigned i = 1; i <= NODES; i++)
        node_map(i, 1, NODES);
}

struct storcli_target target_make(uint64_t ino, unsigned first)
{
    struct storcli_target t = { .id = { 1, 2, ino },
                                .codec = CODEC_MOJETTE,
                                .layout = 0,
                                .block_bytes = 8192,
                                .n_storages = 4 };

    for (unsigned i = 0; i < 4; i++)
        t.storages[i] = (first - 1 + i) % NODES + 1;
    return t;
}

/* Makes the file directly, so that the clock does not run. */
static struct disk_file *file_make(unsigned i, const char *path)
{
    struct disk_file *f = memdisk_find(&nodes[i].disk, path);

    if (f != NULL)
        return f;
    f = calloc(1, sizeof(*f));
    snprintf(f->path, sizeof(f->path), "%s", path);
    f->linked = f->name_durable = true;
    assert(nodes[i].disk.n_files < MEM_FILES_MAX);
    nodes[i].disk.files[nodes[i].disk.n_files++] = f;
    return f;
}

void leftover_make(unsigned i, const struct storcli_target *t, const char *name,
                   uint64_t size)
{
    char path[PROJFILE_PATH_MAX + 16];
    struct disk_file *f;

    projfile_path_prefix(path, &t->id);
    strcat(path, name);
    f = file_make(i, path);
    if (size > 0)
        memdisk_poke(&nodes[i].disk, f, size - 1, "", 1);
}

void projection_make(unsigned i, const struct storcli_target *t, unsigned p, bool partial,
                     uint64_t blocks)
{
    struct projfile_header h = { .id = t->id,
                                 .codec = t->codec,
                                 .layout = t->layout,
                                 .projection = (uint8_t)p,
                                 .n_storages = t->n_storages,
                                 .block_bytes = t->block_bytes,
                                 .dist_generation = t->dist_generation,
                                 .partial = partial };
    uint8_t page[PROJFILE_PAGE_BYTES];
    char path[PROJFILE_PATH_MAX];
    struct disk_file *f;

    memcpy(h.storages, t->storages, sizeof(h.storages));
    projfile_path(path, &t->id, p);
    f = file_make(i, path);
    projfile_header_put(page, &h);
    memdisk_poke(&nodes[i].disk, f, 0, page, sizeof(page));
    if (blocks > 0)
        memdisk_poke(&nodes[i].disk, f, PROJFILE_EXTENTS_AT + 1, "x", 1);
}

bool projection_is_whole(unsigned i, const struct storcli_target *t, unsigned p)
{
    struct projfile_header h;
    uint8_t page[PROJFILE_PAGE_BYTES];
    char path[PROJFILE_PATH_MAX];
    struct disk_file *f;

    projfile_path(path, &t->id, p);
    f = memdisk_find(&nodes[i].disk, path);
    if (f == NULL)
        return false;
    memdisk_peek(f, 0, page, sizeof(page));
    return projfile_header_get(page, &h) == 0 && !h.partial;
}

uint16_t node_check(unsigned i, const struct storcli_target *t, uint64_t first,
                    uint64_t n, bool abandoned)
{
    Rozo__StCheckReq req = ROZO__ST_CHECK_REQ__INIT;
    struct heal_ref ref;

    heal_ref_put(t, &ref);
    req.ref = &ref.ref;
    req.first_block = first;
    req.n_blocks = n;
    req.to_storage = i;
    req.abandoned = abandoned;
    return node_ask(i, RPC_ROLE_NODE, ROZO__OP__ST_CHECK, &req.base, NULL, NULL);
}

void node_heal(unsigned i, unsigned scrub, uint64_t rate)
{
    Rozo__StHealReq req = ROZO__ST_HEAL_REQ__INIT;

    req.to_storage = i;
    req.scrub = scrub;
    req.set_rate = rate != 0;
    req.rate_bytes = rate;
    assert_int_equal(node_ask(i, RPC_ROLE_NODE, ROZO__OP__ST_HEAL, &req.base, NULL, NULL),
                     ROZO__STATUS__OK);
}

uint16_t node_missed(unsigned i, const struct storcli_target *t, uint64_t first,
                     uint64_t n, uint32_t candidates, uint64_t version)
{
    Rozo__StMissedReq req = ROZO__ST_MISSED_REQ__INIT;
    Rozo__Missed m = ROZO__MISSED__INIT, *missed = &m;
    struct heal_ref ref;

    heal_ref_put(t, &ref);
    m.ref = &ref.ref;
    m.first_block = first;
    m.n_blocks = n;
    m.candidates = candidates;
    m.version = version;
    req.missed = &missed;
    req.n_missed = 1;
    req.to_storage = i;
    return node_ask(i, RPC_ROLE_NODE, ROZO__OP__ST_MISSED, &req.base, NULL, NULL);
}

unsigned node_n_missed(unsigned i)
{
    Rozo__StHealthResp *resp = node_health(i);
    unsigned n = (unsigned)resp->missed_ranges;

    rozo__st_health_resp__free_unpacked(resp, NULL);
    return n;
}
