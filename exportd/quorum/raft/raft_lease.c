/*
 * raft_lease.c - which heartbeats a majority has acknowledged.
 *
 * In:     acknowledgements from raft_core.c. Out: times.
 * Keeps:  a time counts only if the peer said it, for this term and within it.
 */
#include "exportd/quorum/raft/raft_lease.h"

#include <string.h>

static struct raft_lease_peer *peer_find(const struct raft_lease *lease, uint64_t id)
{
    for (unsigned i = 0; i < lease->n; i++) {
        if (lease->peers[i].id == id)
            return (struct raft_lease_peer *)&lease->peers[i];
    }
    return NULL;
}

void raft_lease_begin(struct raft_lease *lease, uint64_t now_ns)
{
    memset(lease, 0, sizeof(*lease));
    lease->since_ns = now_ns;
}

void raft_lease_members(struct raft_lease *lease, const struct raft_config *config)
{
    struct raft_lease old = *lease;

    lease->n = config->n;
    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_lease_peer *had = peer_find(&old, config->members[i].id);

        lease->peers[i] =
            had != NULL ? *had : (struct raft_lease_peer){ .id = config->members[i].id };
    }
}

void raft_lease_acked(struct raft_lease *lease, uint64_t id, uint64_t echo_ns,
                      uint64_t now_ns)
{
    struct raft_lease_peer *peer = peer_find(lease, id);

    if (peer != NULL && echo_ns >= lease->since_ns && echo_ns <= now_ns &&
        echo_ns > peer->acked_ns)
        peer->acked_ns = echo_ns;
}

uint64_t raft_lease_acked_ns(const struct raft_lease *lease, uint64_t id)
{
    const struct raft_lease_peer *peer = peer_find(lease, id);

    return peer == NULL ? 0 : peer->acked_ns;
}

void raft_lease_whole(struct raft_lease *lease, uint64_t id, uint64_t echo_ns)
{
    struct raft_lease_peer *peer = peer_find(lease, id);

    if (peer != NULL && echo_ns > peer->whole_ns)
        peer->whole_ns = echo_ns;
}

bool raft_lease_is_after_whole(const struct raft_lease *lease, uint64_t id,
                               uint64_t echo_ns)
{
    const struct raft_lease_peer *peer = peer_find(lease, id);

    return peer != NULL && echo_ns > peer->whole_ns;
}

/* Returns how many voters other than self have acknowledged ns or later. */
static unsigned n_acked(const struct raft_lease *lease, const struct raft_config *config,
                        uint64_t self, uint64_t ns)
{
    unsigned n = 0;

    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *m = &config->members[i];
        const struct raft_lease_peer *peer = peer_find(lease, m->id);

        n += m->role == RAFT_ROLE_VOTER && m->id != self && peer != NULL &&
             peer->acked_ns >= ns;
    }
    return n;
}

uint64_t raft_lease_confirmed(const struct raft_lease *lease,
                              const struct raft_config *config, uint64_t self,
                              uint64_t now_ns)
{
    const struct raft_member *own = raft_config_find(config, self);
    unsigned need = raft_config_n_voters(config) / 2 + 1;
    uint64_t best = 0;

    if (own != NULL && own->role == RAFT_ROLE_VOTER)
        need--;
    if (need == 0)
        return now_ns;
    for (unsigned i = 0; i < lease->n; i++) {
        uint64_t ns = lease->peers[i].acked_ns;

        if (ns > best && n_acked(lease, config, self, ns) >= need)
            best = ns;
    }
    return best;
}
