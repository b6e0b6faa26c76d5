/*
 * names.c - AD_NAMES: checks names against the keys and inodes that belong to them.
 *
 * In:     the call, from an administrator.
 * Out:    its answer, in the same turn of the loop; with `repair`, keys.
 * Keeps:  bounded in keys and in faults. A repair is stable before its answer leaves.
 */
#include <errno.h>
#include <string.h>

#include "exportd/cluster/cluster.h"
#include "exportd/cluster/metadata_room.h"
#include "exportd/namespace/namespace.h"
#include "exportd/requests/requests.h"

enum { FAULTS_MAX = NAMESPACE_CHECK_KEYS_MAX * NAMESPACE_FAULTS_OF_KEY_MAX };

/* One fault of the answer. */
struct fault_part {
    Rozo__AdNamesResp__Fault msg;
    uint8_t name[NAMESPACE_NAME_MAX];
};

struct names_answer {
    Rozo__AdNamesResp msg;
    struct key cursor;
    Rozo__AdNamesResp__Fault *list[FAULTS_MAX];
    struct fault_part parts[FAULTS_MAX];
};

static void on_fault(void *arg, const struct namespace_fault *f)
{
    struct names_answer *a = arg;
    struct fault_part *p = &a->parts[a->msg.n_faults];

    assert(a->msg.n_faults < FAULTS_MAX && f->name.len <= sizeof(p->name));
    rozo__ad_names_resp__fault__init(&p->msg);
    p->msg.kind = (Rozo__AdNamesResp__Kind)f->kind;
    p->msg.dir = f->dir;
    p->msg.ino = f->ino;
    p->msg.repaired = f->repaired;
    if (f->name.len > 0)
        memcpy(p->name, f->name.bytes, f->name.len);
    p->msg.name = (ProtobufCBinaryData){ f->name.len, p->name };
    a->list[a->msg.n_faults++] = &p->msg;
}

static int names_req_check(const struct exportd *x, const Rozo__AdNamesReq *req)
{
    if (req->max_keys < 1 || req->max_keys > NAMESPACE_CHECK_KEYS_MAX ||
        req->cursor.len > KEY_BYTES_MAX)
        return -EINVAL;
    if (req->repair && metadata_room_is_low(x))
        return -ENOSPC;
    return req->repair ? store_error(x->store) : 0;
}

int ad_names(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__AdNamesReq *req = (const Rozo__AdNamesReq *)msg;
    struct export *e = export_find(op->x, req->export_id);
    int rc = names_req_check(op->x, req);
    struct names_answer *a;

    if (rc == 0 && e == NULL)
        rc = -ENOENT;
    if (rc != 0)
        return rc;
    a = malloc(sizeof(*a));
    if (a == NULL)
        return -ENOMEM;
    rozo__ad_names_resp__init(&a->msg);
    a->msg.faults = a->list;
    a->cursor.len = req->cursor.len;
    if (req->cursor.len > 0)
        memcpy(a->cursor.bytes, req->cursor.data, req->cursor.len);
    op->sync = req->repair;
    rc = namespace_check(&e->ns, &a->cursor, req->max_keys, req->repair, on_fault, a,
                         &a->msg.n_names);
    a->msg.cursor = (ProtobufCBinaryData){ a->cursor.len, a->cursor.bytes };
    if (rc == 0)
        rc = md_op_pack(op, &a->msg.base);
    free(a);
    return rc;
}
