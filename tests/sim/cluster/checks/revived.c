/*
 * revived.c - notes removals, and writes of healing to what was removed.
 *
 * In:     requests of nodes. Out: whether any file may have come back.
 * Keeps:  only inodes below INOS_MAX count, so that a run with more stays strict.
 */
#include "tests/sim/cluster/checks/revived.h"

#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/wire/record.h"
#include "tests/sim/cluster/world/metas.h"
#include "tests/sim/cluster/world/servers.h"

enum { INOS_MAX = 8192 };

static uint64_t removed_at[INOS_MAX]; /* bitmap of storages */
static bool any;

void revived_begin(void)
{
    memset(removed_at, 0, sizeof(removed_at));
    any = false;
}

bool revived_any(void)
{
    return any;
}

static uint64_t *removals_of(const ProtobufCBinaryData *file_id)
{
    static uint64_t other;
    struct file_id id;

    other = 0;
    if (file_id->len != FILE_ID_BYTES)
        return &other;
    file_id_get(file_id->data, &id);
    return id.ino < INOS_MAX ? &removed_at[id.ino] : &other;
}

static void on_remove(uint64_t storage, const struct rpc_call *call)
{
    Rozo__StRemoveReq *req = rozo__st_remove_req__unpack(NULL, call->msg_len, call->msg);

    if (req == NULL)
        return;
    *removals_of(&req->file_id) |= storage;
    for (size_t i = 0; i < req->n_more; i++)
        *removals_of(&req->more[i]) |= storage;
    rozo__st_remove_req__free_unpacked(req, NULL);
}

static void on_write(uint64_t storage, const struct rpc_call *call)
{
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, call->msg_len, call->msg);

    if (req != NULL && req->ref != NULL)
        any |= (*removals_of(&req->ref->file_id) & storage) != 0;
    rozo__st_write_req__free_unpacked(req, NULL);
}

static void on_mark(uint64_t storage, const struct rpc_call *call)
{
    Rozo__StMarkReq *req = rozo__st_mark_req__unpack(NULL, call->msg_len, call->msg);

    if (req != NULL && req->ref != NULL)
        any |= (*removals_of(&req->ref->file_id) & storage) != 0;
    rozo__st_mark_req__free_unpacked(req, NULL);
}

static bool is_exportd(const struct host *h)
{
    for (unsigned i = 0; i < metas.n; i++) {
        if (metas.list[i].host == h)
            return true;
    }
    return false;
}

void revived_note(const struct host *from, const struct host *to,
                  const struct rpc_call *call)
{
    struct proc *before = proc_enter(&world_clock.world);
    uint64_t storage = 0;

    for (unsigned i = 0; i < servers.n_storages; i++)
        storage |= servers.storages[i].host == to ? UINT64_C(1) << i : 0;
    if (call->op == ROZO__OP__ST_REMOVE && is_exportd(from))
        on_remove(storage, call);
    if (call->op == ROZO__OP__ST_WRITE)
        on_write(storage, call);
    if (call->op == ROZO__OP__ST_MARK)
        on_mark(storage, call);
    proc_leave(before);
}
