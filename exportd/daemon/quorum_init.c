/*
 * quorum_init.c - checks and disk work of `rozo meta init`.
 *
 * In:     AD_META_INIT of an administrator.
 * Out:    the data directory of a member; one answer.
 * Keeps:  what can be checked is checked while the core still serves: the address, the
 *         port, what lies in DATA/quorum.
 */
#include "exportd/daemon/quorum_init.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/wire/status.h"
#include "exportd/datadir/first_member.h"

enum { HOST_BYTES = 80 };

/* ---- the address ---- */

/* Copies the host of HOST:PORT, without brackets. */
static void host_of(const char *address, char out[HOST_BYTES])
{
    size_t len = (size_t)(strrchr(address, ':') - address);

    if (address[0] == '[' && len >= 2) {
        address++;
        len -= 2;
    }
    snprintf(out, HOST_BYTES, "%.*s", (int)len, address);
}

static bool is_loopback(const char *host)
{
    struct in_addr v4;

    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

int quorum_init_members(const struct quorum_section *section, const char *wished,
                        struct raft_config *out, struct err *err)
{
    bool is_wished = wished[0] != '\0';
    const char *address = is_wished ? wished : section->listen[0];
    char host[HOST_BYTES];

    memset(out, 0, sizeof(*out));
    if (quorum_section_is_wildcard(address))
        return err_set(err, -EINVAL,
                       "%s stands for all addresses of this machine, and other members "
                       "need one by which they reach it: --address HOST:PORT",
                       address);
    if (!quorum_section_is_address(address) ||
        raft_config_set(out, QUORUM_INIT_ID, RAFT_ROLE_VOTER, address) != 0)
        return err_set(err, -EINVAL,
                       "\"%.80s\" is no HOST:PORT by which other members reach this one",
                       address);
    host_of(address, host);
    if (!is_wished && is_loopback(host))
        return err_set(err, -EINVAL,
                       "no other machine reaches %s, the first address of quorum: "
                       "listen. Add one of the network to it and restart exportd, or "
                       "name it with --address HOST:PORT",
                       address);
    return 0;
}

/* ---- the request ---- */

static void answer(struct rpc_call *call, int rc, const char *error, const char *address)
{
    Rozo__AdMetaInitResp resp = ROZO__AD_META_INIT_RESP__INIT;
    uint8_t msg[sizeof(((struct err *)NULL)->text) + RAFT_ADDRESS_MAX + 32];

    resp.error = (char *)(rc == 0 ? "" : error);
    resp.address = (char *)address;
    resp.id = rc == 0 ? QUORUM_INIT_ID : 0;
    assert(rozo__ad_meta_init_resp__get_packed_size(&resp) <= sizeof(msg));
    rpc_reply(call, status_from_errno(rc), msg, rozo__ad_meta_init_resp__pack(&resp, msg),
              NULL, 0, NULL, NULL);
}

static void refuse_call(void *arg, struct rpc_call *call)
{
    (void)arg;
    rpc_reply_status(call, ROZO__STATUS__BUSY);
}

static void on_listen_closed(void *arg)
{
    ((struct quorum_init *)arg)->listen = NULL;
}

/* Checks that the member will be able to listen. */
static int listen_check(struct quorum_init *i, struct err *err)
{
    const struct quorum_section *section = i->config->quorum;
    struct rpc_server_config config = { .keys = i->keys,
                                        .name = "exportd",
                                        .conns_max = 1,
                                        .handler = refuse_call,
                                        .arg = i };
    int rc = rpc_server_open(i->env, &config, (const char *const *)section->listen,
                             section->listen_count, &i->listen, err);

    if (rc != 0)
        return err_wrap(err, rc, "quorum");
    rpc_server_close(i->listen, on_listen_closed, i);
    return 0;
}

static int request_check(struct quorum_init *i, const char *wished, bool is_member,
                         struct err *err)
{
    int rc;

    if (is_member)
        return err_set(err, -EEXIST, "this exportd is a member of a quorum already");
    if (i->config->quorum == NULL)
        return err_set(err, -EOPNOTSUPP,
                       "the config of this exportd has no section `quorum`: write "
                       "\"quorum: {listen: [HOST:PORT]}\" there, with an address for "
                       "other members, restart exportd (mounts stay), and repeat this");
    if (i->config->quorum->witness)
        return err_set(err, -EINVAL,
                       "the config of this exportd says `quorum: witness: true`, and a "
                       "quorum begins with a member that keeps metadata");
    if (i->call != NULL || i->listen != NULL)
        return err_set(err, -EBUSY, "another request to do this is under way");
    rc = quorum_init_members(i->config->quorum, wished, &i->members, err);
    if (rc == 0)
        rc = first_member_check(i->config->exportd.data, err);
    return rc != 0 ? rc : listen_check(i, err);
}

bool quorum_init_take(struct quorum_init *i, struct rpc_call *call, bool is_member)
{
    Rozo__AdMetaInitReq *req;
    struct err err = { 0 };
    int rc;

    if (call->role != RPC_ROLE_NODE) {
        rpc_reply_status(call, ROZO__STATUS__DENIED);
        return false;
    }
    req = rozo__ad_meta_init_req__unpack(NULL, call->msg_len, call->msg);
    if (req == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
        return false;
    }
    rc = request_check(i, req->address, is_member, &err);
    rozo__ad_meta_init_req__free_unpacked(req, NULL);
    if (rc != 0) {
        answer(call, rc, err.text, "");
        return false;
    }
    i->call = call;
    return true;
}

int quorum_init_data(struct quorum_init *i, struct kv *kv, const uint8_t *cluster_id,
                     struct err *err)
{
    struct first_member m = { .loop = i->env->loop,
                              .kv = kv,
                              .data = i->config->exportd.data,
                              .members = &i->members,
                              .identity.member = QUORUM_INIT_ID };

    while (i->listen != NULL) /* the member needs its port */
        uv_run(i->env->loop, UV_RUN_ONCE);
    memcpy(m.identity.cluster_id, cluster_id, sizeof(m.identity.cluster_id));
    return first_member_make(&m, err);
}

void quorum_init_answer(struct quorum_init *i, int rc, const struct err *err)
{
    struct rpc_call *call = i->call;

    i->call = NULL;
    answer(call, rc, err->text[0] != '\0' ? err->text : error_text(rc),
           i->members.members[0].address);
}
