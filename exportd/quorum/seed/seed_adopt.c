/*
 * seed_adopt.c - see seed_adopt.h.
 *
 * Keeps:  a question is checked like anything from the network (I8): an id comes with a
 *         list that has it.
 */
#include "exportd/quorum/seed/seed_adopt.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/wire/status.h"

size_t seed_adopt_encode(const struct seed_adoption *a, uint8_t buf[SEED_ADOPT_BYTES_MAX])
{
    Rozo__RfAdoptReq req = ROZO__RF_ADOPT_REQ__INIT;
    uint8_t list[RAFT_CONFIG_BYTES_MAX];

    req.cluster_id.data = (uint8_t *)a->group.cluster_id;
    req.cluster_id.len = sizeof(a->group.cluster_id);
    req.group = a->group.number;
    req.member = a->id;
    req.witness = a->is_witness;
    if (a->id != 0) {
        req.list_index = a->list_index;
        req.list.data = list;
        req.list.len = raft_config_encode(&a->list, list);
    }
    assert(rozo__rf_adopt_req__get_packed_size(&req) <= SEED_ADOPT_BYTES_MAX);
    return rozo__rf_adopt_req__pack(&req, buf);
}

/* Returns whether the request is valid; takes its list. */
static bool is_valid(const Rozo__RfAdoptReq *req, struct raft_config *list)
{
    memset(list, 0, sizeof(*list));
    if (req->cluster_id.len != RAFT_MSG_CLUSTER_ID_BYTES)
        return false;
    if (req->member == 0)
        return req->list_index == 0 && req->list.len == 0;
    return req->member <= UINT32_MAX && req->list_index > 0 &&
           req->list_index <= RAFT_NUMBER_MAX &&
           raft_config_decode(req->list.data, req->list.len, list) == 0 &&
           raft_config_find(list, req->member) != NULL &&
           raft_config_is_witness(list, req->member) == (req->witness != 0);
}

int seed_adopt_decode(const void *buf, size_t len, struct seed_adoption *a)
{
    Rozo__RfAdoptReq *req = rozo__rf_adopt_req__unpack(NULL, len, buf);
    int rc = req != NULL && is_valid(req, &a->list) ? 0 : -EBADMSG;

    if (rc == 0) {
        memcpy(a->group.cluster_id, req->cluster_id.data, sizeof(a->group.cluster_id));
        a->group.number = req->group;
        a->id = req->member;
        a->is_witness = req->witness;
        a->list_index = req->list_index;
    }
    if (req != NULL)
        rozo__rf_adopt_req__free_unpacked(req, NULL);
    return rc;
}

void seed_adopt_answer(struct rpc_call *call, int rc, const char *error)
{
    Rozo__RfAdoptResp resp = ROZO__RF_ADOPT_RESP__INIT;
    uint8_t msg[ERR_TEXT_MAX + 16];

    resp.error = (char *)error;
    assert(rozo__rf_adopt_resp__get_packed_size(&resp) <= sizeof(msg));
    rpc_reply(call, status_from_errno(rc), msg, rozo__rf_adopt_resp__pack(&resp, msg),
              NULL, 0, NULL, NULL);
}
