/*
 * admission.c - AD_STORAGE_ADD and AD_STORAGE_REPLACE: identify a storage, admit it,
 * record it.
 *
 * In:     the call, from an administrator; answers of the storage (checked).
 * Out:    a new storage in the map, or another one in the place of a lost one; or an
 *         error text.
 * Keeps:  an id is on stable storage as taken before a storage gets it, and is never
 *         given twice; one admission at a time, so that one storage never gets two ids.
 *         If interrupted anywhere, the same command again completes it. A storage that
 *         takes another's place is empty, or was when it was chosen: its incarnation is
 *         recorded before it gets the request, so that a disk that had the place long ago
 *         is not taken for it (I6).
 */
#include "exportd/requests/admission.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/storage_poll.h"
#include "exportd/redistribution/redistribute.h"
#include "exportd/requests/requests.h"

enum {
    ADMISSIONS_MAX = 64,
    ADMIT_DEADLINE_MS = 5000,
    START_MS = 5000, /* a storage listens before it serves, and answers BUSY meanwhile */
    AGAIN_MS = 50,
};

enum admission_state {
    ADMISSION_PROBE,   /* ST_INFO under way */
    ADMISSION_RESERVE, /* the id is being made stable */
    ADMISSION_ADMIT,   /* ST_ADMIT under way */
    ADMISSION_DONE,
};

/* One AD_STORAGE_ADD or _REPLACE, from the request until the answer. PROBE -> (RESERVE ->
 * ADMIT ->) DONE. */
struct admission {
    struct list_node link; /* in the list of all */
    struct exportd *x;
    struct rpc_call *call; /* owned until answered */
    enum admission_state state;
    struct rpc_channel *channel; /* owned */
    struct rpc_request rq;
    enum { WAITS_FOR_NONE, WAITS_FOR_ANSWER, WAITS_FOR_STORE } waits;
    struct env_task task;    /* next step */
    struct env_timer again;  /* next request to a storage that is starting */
    uint64_t start_until_ns; /* ns, monotonic; a starting storage is asked until then */
    struct store_wait wait;
    char volume[NAMES_MAX + 1]; /* name from the request */
    uint32_t replace_id; /* lost storage whose place it takes; 0: none, it is added */
    bool same_place;     /* the addresses are those of the lost storage */
    struct storage_facts facts;
    struct cluster_storage *storage; /* result */
    int rc;
    bool is_sent; /* ST_ADMIT was sent */
    bool knows_returns;
    char
        message[MESSAGE_MAX + 1]; /* error text, or a remark if there was nothing to do */
};

static void admission_step(struct admission *a);

static void on_task(struct env_task *task)
{
    admission_step(container_of(task, struct admission, task));
}

static void on_again(struct env_timer *timer)
{
    admission_step(container_of(timer, struct admission, again));
}

static int refuse(struct admission *a, int rc, const char *message)
{
    a->rc = rc;
    snprintf(a->message, sizeof(a->message), "storage at %s: %s", a->facts.addrs[0],
             message);
    return rc;
}

static void answer(struct admission *a)
{
    Rozo__AdStorageReplaceResp replaced = ROZO__AD_STORAGE_REPLACE_RESP__INIT;
    Rozo__AdStorageAddResp added = ROZO__AD_STORAGE_ADD_RESP__INIT;
    Rozo__Storage msg;
    char *addrs[ADDRS_MAX];

    if (a->rc == 0) {
        storage_message(a->storage, &msg, addrs);
        added.storage = replaced.storage = &msg;
    }
    added.error = replaced.error = a->message;
    call_answer(a->x, a->call, a->rc, a->replace_id != 0 ? &replaced.base : &added.base,
                true);
}

static void admission_free(struct admission *a)
{
    const struct exportd_peers *peers = &a->x->config.peers;

    if (a->waits == WAITS_FOR_ANSWER)
        rpc_cancel(&a->rq);
    env_timer_stop(a->x->env, &a->again);
    if (a->channel != NULL)
        peers->close(peers->arg, a->channel);
    list_remove(&a->link);
    a->x->requests->admissions.n--;
    free(a);
}

/* Returns 0 if the storage answered OK; else refuses with an error text. */
static int rq_result(struct admission *a, int rc)
{
    const struct exportd_peers *peers = &a->x->config.peers;
    const char *why;

    if (rc == 0 && a->rq.status == ROZO__STATUS__OK)
        return 0;
    if (rc == 0 && a->rq.status == ROZO__STATUS__BUSY)
        return refuse(a, -EBUSY, "it is busy, maybe still starting: try again soon");
    if (rc == 0 && a->rq.status == ROZO__STATUS__UNKNOWN_OP)
        return refuse(a, -EINVAL, "it is not a storage (but exportd?)");
    if (rc == 0)
        return refuse(a, status_to_errno(a->rq.status), status_name(a->rq.status));
    why = peers->last_error(peers->arg, a->channel);
    if (why[0] == '\0')
        why = rc == -ETIMEDOUT ? "it does not answer" : error_text(rc);
    return refuse(a, rc, why);
}

/* Checks a storage whose incarnation is a member already. */
static int known_check(struct admission *a, struct cluster_storage *known,
                       const Rozo__StInfoResp *info)
{
    struct volume *v = volume_find_name(a->x, a->volume);

    if (a->volume[0] != '\0' && (v == NULL || v->id != known->facts.volume))
        return refuse(a, -EEXIST, "it is a member already, of another volume");
    if (info->storage_id != 0 && info->storage_id != known->facts.id)
        return refuse(a, -ROZO_EWRONG_STORAGE,
                      "it has the id of another storage of this cluster");
    a->storage = known;
    a->facts.id = known->facts.id;
    a->facts.volume = known->facts.volume;
    return 0;
}

/* Chooses the id and volume of a new member. */
static int new_check(struct admission *a, const Rozo__StInfoResp *info)
{
    struct exportd *x = a->x;
    struct volume *v;
    char message[MESSAGE_MAX + 1] = "";
    int rc;

    if (x->n_storages >= STORAGES_MAX)
        return refuse(a, -EBUSY,
                      "the cluster has as many storages as this build can hold");
    if (info->storage_id != 0 && storage_find(x, info->storage_id) != NULL)
        return refuse(a, -EEXIST, "its id belongs to another storage of this cluster");
    rc = volume_choose(x, a->volume, true, &v, message);
    if (rc != 0)
        return refuse(a, rc, message);
    a->facts.volume = v->id;
    a->facts.id = info->storage_id; /* 0: a new id follows */
    return 0;
}

/* Checks whether the storage may take the place of a lost one. */
static int replace_check(struct admission *a, struct cluster_storage *known,
                         const Rozo__StInfoResp *info)
{
    struct cluster_storage *old = storage_find(a->x, a->replace_id);
    bool chosen =
        old->facts.changes && memcmp(old->facts.next_incarnation, info->incarnation.data,
                                     INCARNATION_BYTES) == 0;

    if (known != NULL && known != old)
        return refuse(a, -EEXIST, "it is another storage of this cluster already");
    if (known == NULL && old->up && !storage_is_cut_off(old) && !a->same_place)
        return refuse(a, -EBUSY,
                      "the storage whose place it takes is up: stop that one first");
    if (info->storage_id != 0 && info->storage_id != a->replace_id)
        return refuse(a, -ROZO_EWRONG_STORAGE,
                      "it has the id of another storage of this cluster");
    if (known == NULL && info->storage_id != 0 && !chosen)
        return refuse(a, -EEXIST,
                      "its data are older than the present storage of this id: give it "
                      "an empty data directory");
    if (known == NULL && !chosen && info->n_projections > 0)
        return refuse(a, -ENOTEMPTY, "its data directory is not empty");
    a->storage = old;
    a->facts.id = old->facts.id;
    a->facts.volume = old->facts.volume;
    return 0;
}

/* Identifies the storage that answered, and decides how to go on. */
static int info_check(struct admission *a, const Rozo__StInfoResp *info)
{
    struct cluster_storage *known =
        storage_find_incarnation(a->x, info->incarnation.data);

    if (info->cluster_id.len != 0 && info->storage_id != 0 &&
        memcmp(info->cluster_id.data, a->x->cluster_id, CLUSTER_ID_BYTES) != 0)
        return refuse(a, -ROZO_EWRONG_STORAGE, "it belongs to another cluster");
    if (info->cluster_id.len != 0)
        map_is_known(a->x, info->storage_id, info);
    a->knows_returns = info->knows_returns;
    memcpy(a->facts.incarnation, info->incarnation.data, INCARNATION_BYTES);
    snprintf(a->facts.host, sizeof(a->facts.host), "%s", info->host);
    snprintf(a->facts.rack, sizeof(a->facts.rack), "%s", info->rack);
    info_addresses(info, &a->facts);
    if (a->replace_id != 0)
        return replace_check(a, known, info);
    return known != NULL ? known_check(a, known, info) : new_check(a, info);
}

static void on_info(struct rpc_request *rq, int rc)
{
    struct admission *a = container_of(rq, struct admission, rq);
    Rozo__StInfoResp *info;

    a->waits = WAITS_FOR_NONE;
    if (rc == 0 && rq->status == ROZO__STATUS__BUSY &&
        env_now_ns(a->x->env) < a->start_until_ns) {
        env_timer_start(a->x->env, &a->again, AGAIN_MS);
        return;
    }
    a->state = ADMISSION_DONE;
    if (rq_result(a, rc) == 0) {
        info = info_unpack(rq);
        if (info == NULL)
            refuse(a, -EBADMSG, "its answer is malformed");
        else if (info_check(a, info) == 0 &&
                 (a->storage == NULL || info->storage_id == 0 ||
                  memcmp(a->storage->facts.incarnation, a->facts.incarnation,
                         INCARNATION_BYTES) != 0))
            a->state = ADMISSION_RESERVE;
        rozo__st_info_resp__free_unpacked(info, NULL);
    }
    env_post(a->x->env, &a->task);
}

static void on_reserved(struct store_wait *wait, int rc)
{
    struct admission *a = container_of(wait, struct admission, wait);

    a->waits = WAITS_FOR_NONE;
    a->state = rc == 0 ? ADMISSION_ADMIT : ADMISSION_DONE;
    if (rc != 0)
        refuse(a, rc, "its id could not be stored");
    env_post(a->x->env, &a->task);
}

static void on_admitted(struct rpc_request *rq, int rc)
{
    struct admission *a = container_of(rq, struct admission, rq);

    a->waits = WAITS_FOR_NONE;
    a->state = ADMISSION_DONE;
    rq_result(a, rc);
    env_post(a->x->env, &a->task);
}

static void rq_send(struct admission *a, unsigned op, const void *msg, size_t len,
                    rpc_done_cb *done)
{
    a->rq = (struct rpc_request){
        .op = (uint16_t)op,
        .deadline_ms = ADMIT_DEADLINE_MS,
        .msg = msg,
        .msg_len = len,
        .done = done,
        .session = op == ROZO__OP__ST_INFO ? 0 : cluster_start_at(a->x, a->knows_returns),
    };
    assert(a->waits == WAITS_FOR_NONE);
    a->waits = WAITS_FOR_ANSWER;
    rpc_send(a->channel, &a->rq);
}

static void admission_probe(struct admission *a)
{
    const struct exportd_peers *peers = &a->x->config.peers;
    const char *addrs[ADDRS_MAX];

    for (unsigned i = 0; i < a->facts.n_addrs; i++)
        addrs[i] = a->facts.addrs[i];
    if (a->channel == NULL)
        a->channel = peers->open(peers->arg, addrs, a->facts.n_addrs);
    if (a->channel == NULL) {
        refuse(a, -EINVAL, "not an address such as host:port");
        a->state = ADMISSION_DONE;
        env_post(a->x->env, &a->task);
        return;
    }
    rq_send(a, ROZO__OP__ST_INFO, NULL, 0, on_info);
}

/* Records which storage will take the place, while the old one still has it. */
static void admission_choose(struct admission *a)
{
    struct storage_facts facts = a->storage->facts;

    facts.changes = true;
    memcpy(facts.next_incarnation, a->facts.incarnation, INCARNATION_BYTES);
    storage_change(a->storage, &facts);
}

static void admission_reserve(struct admission *a)
{
    if (a->replace_id != 0)
        admission_choose(a);
    else if (a->facts.id == 0)
        a->facts.id = storage_new_id(a->x);
    else
        storage_id_is_taken(a->x, a->facts.id);
    assert(a->waits == WAITS_FOR_NONE);
    a->waits = WAITS_FOR_STORE;
    a->wait.fn = on_reserved;
    store_when_synced(a->x->store, &a->wait);
}

static void admission_admit(struct admission *a)
{
    Rozo__StAdmitReq msg = ROZO__ST_ADMIT_REQ__INIT;
    uint8_t buf[64];

    msg.cluster_id = (ProtobufCBinaryData){ CLUSTER_ID_BYTES, a->x->cluster_id };
    msg.storage_id = a->facts.id;
    msg.replaces = a->replace_id != 0;
    a->is_sent = true;
    assert(rozo__st_admit_req__get_packed_size(&msg) <= sizeof(buf));
    rq_send(a, ROZO__OP__ST_ADMIT, buf, rozo__st_admit_req__pack(&msg, buf), on_admitted);
}

static void admission_done(struct admission *a)
{
    struct exportd *x = a->x;

    if (a->rc == 0 && a->storage != NULL) {
        if (a->replace_id != 0 && !a->is_sent)
            snprintf(a->message, sizeof(a->message), "it has that place already");
        if (memcmp(a->storage->facts.incarnation, a->facts.incarnation,
                   INCARNATION_BYTES) != 0)
            log_info("storage %u (%s) has replaced the former one: %s", a->facts.id,
                     a->facts.host, a->facts.addrs[0]);
        storage_change(a->storage, &a->facts);
        storage_poll(a->storage); /* with the map it can begin to rebuild */
        redistribute_look(x);
    } else if (a->rc == 0) {
        a->storage = storage_add(x, &a->facts);
        if (a->storage == NULL)
            refuse(a, -ENOMEM, "out of memory");
        else
            log_info("storage %u (%s) added: %s", a->facts.id, a->facts.host,
                     a->facts.addrs[0]);
        redistribute_look(x);
    }
    answer(a);
    admission_free(a);
    if (!list_is_empty(&x->requests->admissions.list))
        env_post(x->env,
                 &container_of(x->requests->admissions.list.next, struct admission, link)
                      ->task);
}

static void admission_step(struct admission *a)
{
    if (a->x->stopping && a->state != ADMISSION_DONE) {
        refuse(a, -EBUSY, "exportd is stopping");
        a->state = ADMISSION_DONE;
    }
    switch (a->state) {
    case ADMISSION_PROBE:
        admission_probe(a);
        return;
    case ADMISSION_RESERVE:
        admission_reserve(a);
        return;
    case ADMISSION_ADMIT:
        admission_admit(a);
        return;
    case ADMISSION_DONE:
        admission_done(a);
        return;
    }
}

static int addresses_check(char *const *addresses, size_t n)
{
    if (n > ADDRS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(addresses[i]);

        if (len == 0 || len > ADDR_MAX)
            return -EINVAL;
    }
    return 0;
}

/* Makes an admission for this call, which it takes; addresses[0..n) are those of the
 * storage. */
static int admission_new(struct md_op *op, char *const *addresses, size_t n,
                         struct admission **out)
{
    struct exportd *x = op->x;
    struct admission *a;

    if (x->requests->admissions.n >= ADMISSIONS_MAX)
        return -EBUSY;
    a = calloc(1, sizeof(*a));
    if (a == NULL)
        return -ENOMEM;
    a->x = x;
    a->call = op->call;
    op->call = NULL;
    a->task.fn = on_task;
    env_timer_init(&a->again, on_again);
    a->start_until_ns = env_now_ns(x->env) + ms_to_ns(START_MS);
    a->facts.n_addrs = (unsigned)n;
    for (unsigned i = 0; i < a->facts.n_addrs; i++)
        snprintf(a->facts.addrs[i], sizeof(a->facts.addrs[i]), "%s", addresses[i]);
    if (x->requests->admissions.n++ == 0)
        env_post(x->env, &a->task);
    list_add_tail(&x->requests->admissions.list, &a->link);
    *out = a;
    return 0;
}

int ad_storage_add(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdStorageAddReq *req = (const Rozo__AdStorageAddReq *)msg;
    struct admission *a;
    int rc = req->n_addresses < 1 || strlen(req->volume) > NAMES_MAX
                 ? -EINVAL
                 : addresses_check(req->addresses, req->n_addresses);

    if (rc == 0)
        rc = admission_new(op, req->addresses, req->n_addresses, &a);
    if (rc == 0)
        snprintf(a->volume, sizeof(a->volume), "%s", req->volume);
    return rc;
}

static int replace_unknown(struct md_op *op, uint32_t id)
{
    Rozo__AdStorageReplaceResp resp = ROZO__AD_STORAGE_REPLACE_RESP__INIT;
    char message[MESSAGE_MAX + 1];
    int packed;

    snprintf(message, sizeof(message), "there is no storage %u", id);
    resp.error = message;
    packed = md_op_pack(op, &resp.base);
    return packed != 0 ? packed : -ENOENT;
}

/* Returns true if the request names an address of the old storage, which then is not
 * there any more. */
static bool addresses_meet(const struct cluster_storage *old,
                           const Rozo__AdStorageReplaceReq *req)
{
    for (size_t i = 0; i < req->n_addresses; i++)
        for (unsigned j = 0; j < old->facts.n_addrs; j++)
            if (strcmp(req->addresses[i], old->facts.addrs[j]) == 0)
                return true;
    return false;
}

int ad_storage_replace(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdStorageReplaceReq *req = (const Rozo__AdStorageReplaceReq *)msg;
    struct cluster_storage *old = storage_find(op->x, req->id);
    struct admission *a;
    char *addrs[ADDRS_MAX];
    int rc = addresses_check(req->addresses, req->n_addresses);

    if (rc != 0)
        return rc;
    if (old == NULL)
        return replace_unknown(op, req->id);
    for (unsigned i = 0; i < old->facts.n_addrs; i++)
        addrs[i] = old->facts.addrs[i];
    if (req->n_addresses > 0)
        rc = admission_new(op, req->addresses, req->n_addresses, &a);
    else
        rc = admission_new(op, addrs, old->facts.n_addrs, &a);
    if (rc == 0) {
        a->replace_id = req->id;
        a->same_place = req->n_addresses == 0 || addresses_meet(old, req);
    }
    return rc;
}

void admissions_init(struct admissions *all)
{
    list_init(&all->list);
}

bool admissions_are_over(const struct admissions *all)
{
    assert((all->n == 0) == list_is_empty(&all->list));
    return all->n == 0;
}

void admissions_stop(struct exportd *x)
{
    LIST_FOREACH(node, &x->requests->admissions.list) {
        struct admission *a = container_of(node, struct admission, link);

        if (a->waits == WAITS_FOR_STORE)
            continue;
        if (a->waits == WAITS_FOR_ANSWER)
            rpc_cancel(&a->rq);
        a->waits = WAITS_FOR_NONE;
        env_post(x->env, &a->task);
    }
}
