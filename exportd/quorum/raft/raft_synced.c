/* raft_synced.c - see raft_synced.h. */
#include "exportd/quorum/raft/raft_synced.h"

void raft_synced_truncate(struct raft_synced *s, uint64_t from)
{
    if (s->written >= from)
        s->written = from - 1;
    if (s->synced >= from)
        s->synced = from - 1;
}

void raft_synced_lead(struct raft_synced *s)
{
    s->n_peers = 0;
}

/* Forgets those that are not in the list any more. */
static void former_drop(struct raft_synced *s, const struct raft_config *config)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n_peers; i++)
        if (raft_config_find(config, s->peers[i].id) != NULL)
            s->peers[n++] = s->peers[i];
    s->n_peers = n;
}

void raft_synced_peer(struct raft_synced *s, const struct raft_config *config,
                      uint64_t id, uint64_t index)
{
    unsigned i = 0;

    if (raft_config_find(config, id) == NULL)
        return;
    while (i < s->n_peers && s->peers[i].id != id)
        i++;
    if (i == RAFT_SERVERS_MAX) {
        former_drop(s, config); /* at least one: the list has the new one, too */
        i = s->n_peers;
    }
    if (i == s->n_peers) {
        s->n_peers++;
        s->peers[i].id = id;
        s->peers[i].index = 0;
    }
    if (index > s->peers[i].index)
        s->peers[i].index = index;
}

uint64_t raft_synced_of(const struct raft_synced *s, uint64_t self, uint64_t id)
{
    if (id == self)
        return s->synced;
    for (unsigned i = 0; i < s->n_peers; i++)
        if (s->peers[i].id == id)
            return s->peers[i].index;
    return 0;
}

uint64_t raft_synced_majority(const struct raft_synced *s,
                              const struct raft_config *config, uint64_t self)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < config->n; i++) {
        uint64_t index = raft_synced_of(s, self, config->members[i].id);
        unsigned n = 0;

        for (unsigned k = 0; k < config->n; k++)
            n += config->members[k].role == RAFT_ROLE_VOTER &&
                 raft_synced_of(s, self, config->members[k].id) >= index;
        if (n > raft_config_n_voters(config) / 2 && index > best)
            best = index;
    }
    return best;
}
