/*
 * strays.c - find and remove projection files whose inode is gone, or lies elsewhere now.
 *
 * In:     the tick; answers to ST_LIST (checked: they come from the network).
 * Out:    ST_LIST with `ids_only` to one storage after the other, a page a tick;
 *         KEY_WAITING records, which deletion.c sends to the storage; ST_REDIST to
 *         storages that have no place in the file any more.
 * Keeps:  a file goes only if its inode does not exist and its number was given out here
 *         with its generation. Numbers that were never given out, or by another history
 *         of this metadata before a restore from a backup, are left to the administrator.
 * Yours:  names per tick, length of the pause.
 */
#include "exportd/cluster/strays.h"

#include <assert.h>
#include <errno.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/deletion.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/namespace/inode_ref.h"

enum {
    FIRST_AFTER_S = 600, /* after our start, all storages are busy with it */
    WAITING_ENOUGH =
        4096, /* removals that a storage has not confirmed: it gets no more */
    LIST_DEADLINE_MS = 10000, /* a storage that moves is followed only after it */
};

static uint64_t period_ns(const struct exportd *x)
{
    return s_to_ns(x->config.strays_s);
}

void strays_begin(struct exportd *x)
{
    uint64_t first_ns = s_to_ns(FIRST_AFTER_S);

    if (period_ns(x) < first_ns)
        first_ns = period_ns(x);
    x->strays.next_ns = env_now_ns(x->env) + first_ns;
}

static void next_storage(struct strays *st)
{
    st->storage_id++;
    st->has_after = false;
}

static bool is_gone(struct exportd *x, const struct file_id *id)
{
    struct export *e = export_find(x, id->export_id);
    struct inode in;

    return e != NULL && namespace_getattr(&e->ns, id->ino, &in) == -ESTALE &&
           namespace_gave_out(&e->ns, id->ino, id->generation);
}

/* True if the file got another storage in the place of this one, and the change is
 * over. */
static bool is_elsewhere(const struct cluster_storage *s, const struct file_id *id,
                         struct inode *in)
{
    struct export *e = export_find(s->x, id->export_id);
    struct namespace_redist change;

    if (e == NULL || namespace_getattr(&e->ns, id->ino, in) != 0 ||
        in->generation != id->generation || !inode_is_file(in) ||
        in->dist_generation == 0 ||
        namespace_redist_get(&e->ns, id->ino, &change) != -ENOENT)
        return false;
    for (uint32_t i = 0; i < in->n_storages; i++) {
        if (in->storages[i] == s->facts.id)
            return false;
    }
    return true;
}

/* Takes one page. Returns false if it is the last one or malformed. */
static bool page_take(struct cluster_storage *s, const Rozo__StListResp *resp)
{
    struct strays *st = &s->x->strays;

    for (size_t i = 0; i < resp->n_files && i < STRAYS_A_TICK; i++) {
        const Rozo__FileRef *ref = resp->files[i]->ref;
        struct file_id id;
        struct inode in;

        if (ref == NULL || ref->file_id.len != FILE_ID_BYTES)
            return false;
        file_id_get(ref->file_id.data, &id);
        if (is_gone(s->x, &id) && deletion_add(s, &id))
            st->n_found++;
        else if (is_elsewhere(s, &id, &in))
            st->left[st->n_left++] = id;
    }
    if (resp->end || resp->after.len != FILE_ID_BYTES)
        return false;
    if (st->has_after && memcmp(st->after, resp->after.data, FILE_ID_BYTES) == 0)
        return false; /* no progress */
    memcpy(st->after, resp->after.data, FILE_ID_BYTES);
    st->has_after = true;
    return true;
}

/* Sends the one request that is out at a time. */
static void strays_send(struct cluster_storage *s, uint16_t op,
                        const ProtobufCMessage *msg,
                        void (*done)(struct rpc_request *rq, int rc))
{
    struct strays *st = &s->x->strays;
    uint8_t buf[128 + FILE_ID_BYTES + 5 * DIST_MAX];

    assert(protobuf_c_message_get_packed_size(msg) <= sizeof(buf));
    st->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = LIST_DEADLINE_MS,
        .msg = buf,
        .msg_len = protobuf_c_message_pack(msg, buf),
        .done = done,
    };
    st->asked = s;
    storage_send(s, &st->rq);
}

static void left_ask(struct cluster_storage *s);

static void on_listed(struct rpc_request *rq, int rc)
{
    struct strays *st = container_of(rq, struct strays, rq);
    struct cluster_storage *s = st->asked;
    Rozo__StListResp *resp = NULL;

    st->asked = NULL;
    s->n_out--;
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_list_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (resp == NULL || !page_take(s, resp))
        next_storage(st);
    rozo__st_list_resp__free_unpacked(resp, NULL);
    left_ask(s);
}

static void page_ask(struct cluster_storage *s)
{
    struct strays *st = &s->x->strays;
    Rozo__StListReq msg = ROZO__ST_LIST_REQ__INIT;

    msg.to_storage = s->facts.id;
    msg.max_files = STRAYS_A_TICK;
    msg.ids_only = true;
    if (st->has_after)
        msg.after = (ProtobufCBinaryData){ FILE_ID_BYTES, st->after };
    strays_send(s, ROZO__OP__ST_LIST, &msg.base, on_listed);
}

static void on_left(struct rpc_request *rq, int rc)
{
    struct strays *st = container_of(rq, struct strays, rq);
    struct cluster_storage *s = st->asked;

    (void)rc; /* after an error the next sweep finds it again */
    st->asked = NULL;
    s->n_out--;
    if (!s->x->stopping)
        left_ask(s);
}

/* Sends the next file of the page that the storage must drop, if any is left. */
static void left_ask(struct cluster_storage *s)
{
    struct strays *st = &s->x->strays;
    Rozo__StRedistReq msg = ROZO__ST_REDIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    Rozo__FileRef ref;
    struct inode in;

    while (st->n_left_sent < st->n_left) {
        const struct file_id *file = &st->left[st->n_left_sent++];

        if (!is_elsewhere(s, file, &in))
            continue; /* changed meanwhile */
        inode_ref_fill(file->export_id, &in, id, &ref);
        msg.ref = &ref;
        msg.to_storage = s->facts.id;
        msg.leave = true;
        strays_send(s, ROZO__OP__ST_REDIST, &msg.base, on_left);
        return;
    }
    st->n_left = st->n_left_sent = 0;
}

/* Returns true if the storage can be asked now. */
static bool has_time(const struct cluster_storage *s)
{
    return storage_is_askable(s) && deletions_missed(s) < WAITING_ENOUGH;
}

/* Returns the storage whose turn it is; NULL: the sweep is complete. A storage that
 * cannot be asked is skipped until the next sweep. */
static struct cluster_storage *whose_turn(struct exportd *x)
{
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->facts.id < x->strays.storage_id || !has_time(s))
            continue;
        if (s->facts.id != x->strays.storage_id)
            x->strays.has_after = false;
        x->strays.storage_id = s->facts.id;
        return s;
    }
    return NULL;
}

static void sweep_end(struct exportd *x)
{
    struct strays *st = &x->strays;

    if (st->n_found > 0)
        log_warn("%llu projection files belong to inodes that are gone: removing them",
                 (unsigned long long)st->n_found);
    *st = (struct strays){ .next_ns = env_now_ns(x->env) + period_ns(x) };
}

void strays_tick(struct exportd *x)
{
    struct cluster_storage *s;

    if (x->stopping || !x->is_ready || store_error(x->store) != 0 ||
        x->strays.asked != NULL || env_now_ns(x->env) < x->strays.next_ns)
        return;
    s = whose_turn(x);
    if (s != NULL)
        page_ask(s);
    else
        sweep_end(x);
}

void strays_stop(struct exportd *x)
{
    if (x->strays.asked == NULL)
        return;
    rpc_cancel(&x->strays.rq);
    x->strays.asked->n_out--;
    x->strays.asked = NULL;
}
