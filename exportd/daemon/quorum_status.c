/*
 * quorum_status.c - see quorum_status.h.
 *
 * In:     AD_META_STATUS of an administrator, on the port for clients or for members.
 * Out:    one answer.
 */
#include "exportd/daemon/quorum_status.h"

#include <assert.h>

#include "common/proto/rozo.pb-c.h"

/* Bytes of a packed member. */
enum {
    MEMBER_BYTES = RAFT_ADDRESS_MAX + 32 + MEMBER_CLIENTS_MAX * (EXPORTD_ADDR_BYTES + 2),
};

void quorum_status_answer(struct rpc_call *call, const struct member_status *s,
                          bool serves)
{
    Rozo__AdMetaStatusResp resp = ROZO__AD_META_STATUS_RESP__INIT;
    Rozo__AdMetaStatusResp__Member members[RAFT_SERVERS_MAX], *list[RAFT_SERVERS_MAX];
    char *clients[RAFT_SERVERS_MAX][MEMBER_CLIENTS_MAX];
    uint8_t msg[RAFT_SERVERS_MAX * MEMBER_BYTES + 512];

    if (call->role != RPC_ROLE_NODE) {
        rpc_reply_status(call, ROZO__STATUS__DENIED);
        return;
    }
    resp.id = s->id;
    resp.term = s->term;
    resp.leader = s->leader;
    resp.leads = s->leads;
    resp.serves = serves;
    resp.first = s->first;
    resp.last = s->last;
    resp.commit = s->commit;
    resp.applied = s->applied;
    resp.log_bytes = s->log_bytes;
    resp.seeding = s->seeding != SEED_NONE;
    resp.seed_bytes = s->seed_bytes;
    resp.seed_from = s->seed_from;
    resp.seed_has_keys = s->seed_has_keys;
    resp.seed_index = s->seed_index;
    resp.seed_target = s->seed_target;
    resp.stable = s->stable;
    resp.losses = s->losses;
    resp.uncertain = s->is_uncertain;
    resp.n_silent = s->n_silent;
    resp.silent = (uint64_t *)s->silent;
    resp.removed = s->is_removed;
    resp.covered = s->covered;
    for (unsigned i = 0; i < s->members.n; i++) {
        rozo__ad_meta_status_resp__member__init(&members[i]);
        members[i].id = s->members.members[i].id;
        members[i].role = s->members.members[i].role;
        members[i].witness = s->members.members[i].is_witness;
        members[i].address = (char *)s->members.members[i].address;
        for (unsigned k = 0; k < s->clients[i].n; k++)
            clients[i][k] = (char *)s->clients[i].addrs[k];
        members[i].clients = clients[i];
        members[i].n_clients = s->clients[i].n;
        list[i] = &members[i];
    }
    resp.n_members = s->members.n;
    resp.members = list;
    assert(rozo__ad_meta_status_resp__get_packed_size(&resp) <= sizeof(msg));
    rpc_reply(call, ROZO__STATUS__OK, msg, rozo__ad_meta_status_resp__pack(&resp, msg),
              NULL, 0, NULL, NULL);
}
