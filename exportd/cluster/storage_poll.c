/*
 * storage_poll.c - poll the identity and state of each storage every second.
 *
 * In:     the tick; answers to ST_INFO (checked: they come from the network).
 * Out:    up, space, addresses and error texts in struct cluster_storage; map_changed()
 *         if clients care.
 * Keeps:  a storage is up only if it identifies itself as the admitted one.
 */
#include "exportd/cluster/storage_poll.h"

#include <errno.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/wire/status.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/map_push.h"

/* Upper bound for one storage: sums over STORAGES_MAX fit into 64 bits. */
static const uint64_t storage_bytes_max = 1ull << 51;

static bool text_fits(const char *text, size_t max)
{
    return strlen(text) <= max;
}

Rozo__StInfoResp *info_unpack(const struct rpc_request *rq)
{
    Rozo__StInfoResp *info =
        rozo__st_info_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    bool ok = info != NULL && info->incarnation.len == INCARNATION_BYTES &&
              (info->cluster_id.len == 0 || info->cluster_id.len == CLUSTER_ID_BYTES) &&
              text_fits(info->host, HOST_MAX) && text_fits(info->rack, HOST_MAX);

    if (ok)
        return info;
    rozo__st_info_resp__free_unpacked(info, NULL);
    return NULL;
}

/* Rejects wildcards: "0.0.0.0:4711" is an address to listen at, not to connect to. */
static bool address_is_useful(const char *addr)
{
    return addr[0] != '\0' && text_fits(addr, ADDR_MAX) && strrchr(addr, ':') != NULL &&
           strncmp(addr, "0.0.0.0:", 8) != 0 && strncmp(addr, "[::]:", 5) != 0 &&
           addr[0] != ':' && addr[0] != '*';
}

void info_addresses(const Rozo__StInfoResp *info, struct storage_facts *facts)
{
    unsigned n = 0;

    for (size_t i = 0; i < info->n_addresses && n < ADDRS_MAX; i++) {
        if (!address_is_useful(info->addresses[i]))
            continue;
        snprintf(facts->addrs[n++], ADDR_MAX + 1, "%s", info->addresses[i]);
    }
    for (unsigned i = n; n > 0 && i < ADDRS_MAX; i++)
        facts->addrs[i][0] = '\0';
    if (n > 0)
        facts->n_addrs = n;
}

static void storage_is_down(struct cluster_storage *s, const char *why)
{
    if (strcmp(s->error, why) != 0) {
        log_warn("storage %u (%s): %s", s->facts.id, s->facts.host, why);
        snprintf(s->error, sizeof(s->error), "%s", why);
    }
    if (s->up)
        map_changed(s->x);
    s->up = false;
}

/* Returns NULL if this is still the admitted storage, else an error text. */
static const char *info_objection(const struct cluster_storage *s,
                                  const Rozo__StInfoResp *info)
{
    if (memcmp(info->incarnation.data, s->facts.incarnation, INCARNATION_BYTES) != 0)
        return "another data directory answers at its address, not the admitted one "
               "(if its disk was replaced: rozo storage replace)";
    if (info->cluster_id.len == 0 || info->storage_id == 0)
        return "it has no id of this cluster; run rozo storage add again";
    if (memcmp(info->cluster_id.data, s->x->cluster_id, CLUSTER_ID_BYTES) != 0)
        return "it belongs to another cluster";
    if (info->storage_id != s->facts.id)
        return "it has the id of another storage of this cluster";
    return NULL;
}

static void storage_is_up(struct cluster_storage *s, const Rozo__StInfoResp *info)
{
    struct storage_facts facts = s->facts;

    if (!s->up) {
        log_info("storage %u (%s) is up: %s", s->facts.id, info->host, s->facts.addrs[0]);
        map_changed(s->x);
    }
    if (!s->up) {
        map_push_forget(s);
        s->redist = REDIST_UNASKED; /* the build there may have changed */
    }
    s->up = true;
    s->knows_full_quorum = info->knows_full_quorum;
    s->knows_returns = info->knows_returns;
    s->error[0] = '\0';
    s->total_bytes =
        info->total_bytes < storage_bytes_max ? info->total_bytes : storage_bytes_max;
    s->free_bytes = info->free_bytes < s->total_bytes ? info->free_bytes : s->total_bytes;
    if (s->disk_id != info->disk_id) {
        s->disk_id = info->disk_id;
        storages_count_disks(s->x);
    }
    s->stream_bytes =
        info->stream_bytes < storage_bytes_max ? info->stream_bytes : storage_bytes_max;
    s->link_bytes =
        info->link_bytes < storage_bytes_max ? info->link_bytes : storage_bytes_max;
    snprintf(s->version, sizeof(s->version), "%s", info->version);
    storage_knows_map(s, info);
    info_addresses(info, &facts);
    snprintf(facts.host, sizeof(facts.host), "%s", info->host);
    snprintf(facts.rack, sizeof(facts.rack), "%s", info->rack);
    if (facts.lost)
        log_info("storage %u was declared lost and is back", facts.id);
    facts.lost = false;
    if (memcmp(&facts, &s->facts, sizeof(facts)) != 0)
        storage_change(s, &facts);
}

static void on_info(struct rpc_request *rq, int rc)
{
    struct cluster_storage *s = container_of(rq, struct cluster_storage, info);
    const struct exportd_peers *peers = &s->x->config.peers;
    Rozo__StInfoResp *info = NULL;
    const char *why;

    s->polling = false;
    s->asked = true;
    if (rc == 0)
        rc = status_to_errno(rq->status);
    if (rc == 0)
        info = info_unpack(rq);
    if (info != NULL) {
        why = info_objection(s, info);
    } else {
        why = rc == 0 ? "its answer is malformed"
                      : peers->last_error(peers->arg, s->channel);
        if (why[0] == '\0')
            why = rc == -ETIMEDOUT ? "it does not answer" : error_text(rc);
    }
    if (why != NULL)
        storage_is_down(s, why);
    else
        storage_is_up(s, info);
    rozo__st_info_resp__free_unpacked(info, NULL);
    if (s->up)
        storage_push_map(s);
}

void storage_poll_stop(struct cluster_storage *s)
{
    if (s->polling)
        rpc_cancel(&s->info);
    s->polling = false;
}

void storage_poll(struct cluster_storage *s)
{
    if (s->polling || s->x->stopping)
        return;
    storage_follow(s);
    if (s->channel == NULL) {
        s->asked = true;
        storage_is_down(s, "its addresses are not valid");
        return;
    }
    s->polling = true;
    s->info = (struct rpc_request){
        .op = ROZO__OP__ST_INFO,
        .deadline_ms = INFO_DEADLINE_MS,
        .done = on_info,
    };
    rpc_send(s->channel, &s->info);
}
