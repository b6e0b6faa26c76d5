/*
 * strays.c - find and remove projection files whose inode is gone for good.
 *
 * In:     the tick; answers to ST_LIST (checked: they come from the network).
 * Out:    ST_LIST with `ids_only` to one storage after the other, a page a tick;
 *         KEY_WAITING records, which deletion.c sends to the storage.
 * Keeps:  a file goes only if its inode does not exist and its number was given out here
 *         with its generation. Numbers that were never given out, or by another history
 *         of this metadata before a restore from a backup, are left to the administrator.
 * Yours:  names per tick, length of the pause.
 *
 * A removal is sent once and confirmed before it is on the storage's disk. A loss of
 * power can bring the file back; healing may have made it again from what another storage
 * still had. Only this search would ever find it.
 */
#include "exportd/cluster/strays.h"

#include <errno.h>

#include "common/base/log.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/deletion.h"
#include "exportd/cluster/exportd_state.h"

enum {
    STRAYS_A_TICK = 256, /* files looked up, all storages together */
    FIRST_AFTER_S = 600, /* after the start storages are busy */
    /* unconfirmed removals; a storage with more gets no new ones */
    WAITING_ENOUGH = 4096,
    LIST_DEADLINE_MS = 10000, /* a storage that moves is followed only afterwards */
};

static uint64_t period_ns(const struct exportd *x)
{
    return x->config.strays_s * UINT64_C(1000000000);
}

void strays_begin(struct exportd *x)
{
    uint64_t first_ns = FIRST_AFTER_S * UINT64_C(1000000000);

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

/* Takes one page. Returns false if it is the last one or malformed. */
static bool page_take(struct storage *s, const Rozo__StListResp *resp)
{
    struct strays *st = &s->x->strays;

    for (size_t i = 0; i < resp->n_files && i < STRAYS_A_TICK; i++) {
        const Rozo__FileRef *ref = resp->files[i]->ref;
        struct file_id id;

        if (ref == NULL || ref->file_id.len != FILE_ID_BYTES)
            return false;
        file_id_get(ref->file_id.data, &id);
        if (is_gone(s->x, &id) && deletion_add(s, &id))
            st->n_found++;
    }
    if (resp->end || resp->after.len != FILE_ID_BYTES)
        return false;
    if (st->has_after && memcmp(st->after, resp->after.data, FILE_ID_BYTES) == 0)
        return false; /* no progress */
    memcpy(st->after, resp->after.data, FILE_ID_BYTES);
    st->has_after = true;
    return true;
}

static void on_listed(struct rpc_request *rq, int rc)
{
    struct strays *st = container_of(rq, struct strays, rq);
    struct storage *s = st->asked;
    Rozo__StListResp *resp = NULL;

    st->asked = NULL;
    s->n_out--;
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_list_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (resp == NULL || !page_take(s, resp))
        next_storage(st);
    rozo__st_list_resp__free_unpacked(resp, NULL);
}

static void page_ask(struct storage *s)
{
    struct strays *st = &s->x->strays;
    Rozo__StListReq msg = ROZO__ST_LIST_REQ__INIT;
    uint8_t buf[64];

    msg.to_storage = s->facts.id;
    msg.max_files = STRAYS_A_TICK;
    msg.ids_only = true;
    if (st->has_after)
        msg.after = (ProtobufCBinaryData){ FILE_ID_BYTES, st->after };
    assert(rozo__st_list_req__get_packed_size(&msg) <= sizeof(buf));
    st->rq = (struct rpc_request){
        .op = ROZO__OP__ST_LIST,
        .deadline_ms = LIST_DEADLINE_MS,
        .msg = buf,
        .msg_len = rozo__st_list_req__pack(&msg, buf),
        .done = on_listed,
    };
    st->asked = s;
    s->n_out++;
    rpc_send(s->channel, &st->rq);
}

/* Returns true if the storage can be asked now. */
static bool is_askable(const struct storage *s)
{
    return s->up && storage_is_reachable(s) && s->n_waiting < WAITING_ENOUGH;
}

/* Returns the storage whose turn it is; NULL: the sweep is complete. A storage that
 * cannot be asked is skipped until the next sweep. */
static struct storage *whose_turn(struct exportd *x)
{
    LIST_FOREACH(node, &x->storages) {
        struct storage *s = container_of(node, struct storage, link);

        if (s->facts.id < x->strays.storage_id || !is_askable(s))
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
    struct storage *s;

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
