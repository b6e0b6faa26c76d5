/*
 * quorum_laws.c - laws of a quorum.
 *
 * In:     news of members. Out: an error message if a law is broken.
 */
#include "tests/sim/cluster/world/quorum_laws.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "tests/sim/cluster/state.h"

/* Entry as the first member applied it. */
struct applied {
    uint64_t term; /* 0: nobody has applied it, as far as is known */
    uint32_t crc;
};

/* Terms of entries that a member reported as persisted, by index; 0: none. */
struct persisted {
    uint64_t *terms;
    uint64_t n;
};

struct quorum_laws {
    struct applied *entries; /* by index */
    uint64_t n_entries;
    const struct sim_meta **leaders; /* by term; NULL: none */
    uint64_t n_leaders;
    uint64_t newest_term; /* in which a core started */
    struct persisted persisted[METAS_MAX];
};

/* Makes an array longer, in the memory of the world; what is new is zero. */
static void *grown(void *list, uint64_t *n, uint64_t want, size_t size)
{
    struct proc *before;
    uint64_t more = *n == 0 ? 1024 : *n;

    if (want < *n)
        return list;
    while (more <= want)
        more *= 2;
    before = proc_enter(&world_clock.world);
    list = realloc(list, more * size);
    assert(list != NULL);
    memset((char *)list + *n * size, 0, (more - *n) * size);
    *n = more;
    proc_leave(before);
    return list;
}

struct quorum_laws *quorum_laws_new(void)
{
    struct quorum_laws *l = calloc(1, sizeof(*l));

    assert(l != NULL && proc_current == &world_clock.world);
    return l;
}

void quorum_law_leads(struct quorum_laws *l, const struct sim_meta *e, uint64_t term)
{
    l->leaders = grown(l->leaders, &l->n_leaders, term, sizeof(l->leaders[0]));
    if (l->leaders[term] != NULL && l->leaders[term] != e)
        wrong("%s leads in term %llu, as %s did", e->host->proc->name,
              (unsigned long long)term, l->leaders[term]->host->proc->name);
    l->leaders[term] = e;
    if (term > l->newest_term)
        l->newest_term = term;
}

void quorum_law_answers(const struct quorum_laws *l, const struct sim_meta *e,
                        uint64_t term)
{
    if (term < l->newest_term)
        wrong("%s answers by a lease of term %llu, and %s leads in term %llu",
              e->host->proc->name, (unsigned long long)term,
              l->leaders[l->newest_term]->host->proc->name,
              (unsigned long long)l->newest_term);
}

void quorum_law_applies(struct quorum_laws *l, const struct sim_meta *e,
                        const struct raft_log_entry *entry)
{
    uint32_t crc = codec_crc32c(0, entry->data, entry->len);
    struct applied *a;

    l->entries = grown(l->entries, &l->n_entries, entry->index, sizeof(l->entries[0]));
    a = &l->entries[entry->index];
    if (a->term != 0 && (a->term != entry->term || a->crc != crc))
        wrong("%s applies entry %llu of term %llu, and another member applied one of "
              "term %llu",
              e->host->proc->name, (unsigned long long)entry->index,
              (unsigned long long)entry->term, (unsigned long long)a->term);
    *a = (struct applied){ entry->term, crc };
}

void quorum_law_persisted(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                          uint64_t term)
{
    struct persisted *p = &l->persisted[e->index];

    p->terms = grown(p->terms, &p->n, index, sizeof(p->terms[0]));
    p->terms[index] = term;
}

void quorum_law_starts(const struct quorum_laws *l, const struct sim_meta *e,
                       uint64_t last)
{
    const struct persisted *p = &l->persisted[e->index];

    for (uint64_t i = last + 1; i < p->n && i < l->n_entries; i++) {
        if (p->terms[i] != 0 && p->terms[i] == l->entries[i].term)
            wrong("%s takes part with entries up to %llu, and had acknowledged entry "
                  "%llu, which is committed",
                  e->host->proc->name, (unsigned long long)last, (unsigned long long)i);
    }
}

void quorum_law_losses(const struct sim_meta *e, unsigned n_losses)
{
    if (n_losses != 0)
        wrong("%s counts %u losses of power", e->host->proc->name, n_losses);
}

void quorum_law_lost(const struct sim_meta *leader, uint64_t id)
{
    for (unsigned i = 0; i < metas.n; i++) {
        if (metas.list[i].ill_before_life != 0)
            return;
    }
    wrong("%s finds that member %llu has lost entries that it had acknowledged",
          leader->host->proc->name, (unsigned long long)id);
}
