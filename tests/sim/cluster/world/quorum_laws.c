/*
 * quorum_laws.c - laws of a quorum.
 *
 * In:     news of members. Out: an error message if a law is broken.
 * Keeps:  what was committed is a run of entries: if one is lost, all behind it are.
 */
#include "tests/sim/cluster/world/quorum_laws.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "tests/sim/cluster/state.h"

/* Entry that is committed, as the first member took it. */
struct committed {
    uint64_t term; /* 0: nobody has taken it, as far as is known, or it is lost */
    uint64_t ns;   /* when */
    uint32_t crc;
};

/* Terms of entries, by index; 0: none. */
struct terms {
    uint64_t *list;
    uint64_t n;
};

struct quorum_laws {
    struct committed *entries; /* by index */
    uint64_t n_entries;
    uint64_t last;                   /* newest index ever committed */
    uint64_t stable;                 /* newest entry that is stable */
    const struct sim_meta **leaders; /* by term; NULL: none */
    uint64_t n_leaders;
    uint64_t newest_term; /* in which a core started */
    uint64_t loss_term;   /* ... the first one after entries were lost; 0: none */
    struct {
        /* entries that it had written; synced; took as committed */
        struct terms written, synced, taken;
        uint64_t first, last; /* entries taken since its start */
    } members[METAS_MAX];
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

static void term_set(struct terms *t, uint64_t index, uint64_t term)
{
    t->list = grown(t->list, &t->n, index, sizeof(t->list[0]));
    t->list[index] = term;
}

/* ---- entries ---- */

/* Drops committed entries from this one on: they are lost. */
static void committed_drop(struct quorum_laws *l, uint64_t from)
{
    uint64_t oldest_ns = 0;

    for (uint64_t i = from; i <= l->last; i++) {
        struct committed *c = &l->entries[i];

        if (c->term == 0)
            continue;
        if (i <= l->stable)
            wrong("entry %llu of term %llu is lost, and it was stable",
                  (unsigned long long)i, (unsigned long long)c->term);
        if (oldest_ns == 0 || c->ns < oldest_ns)
            oldest_ns = c->ns;
        c->term = 0;
    }
    if (oldest_ns != 0)
        loss_law_lost(&metas.losses, oldest_ns);
}

/* A member takes another entry than one that a member took before. Returns whether the
 * new one takes its place; otherwise that member has not heard yet that it is lost. */
static bool committed_replace(struct quorum_laws *l, const struct sim_meta *e,
                              const struct committed *old,
                              const struct raft_log_entry *entry)
{
    if (!metas.is_lazy || entry->term == old->term ||
        (entry->term > old->term && entry->index <= l->stable) ||
        (entry->term < old->term && old->term <= l->newest_term &&
         l->loss_term <= entry->term))
        wrong("%s takes entry %llu of term %llu, and another member took one of term "
              "%llu",
              e->host->proc->name, (unsigned long long)entry->index,
              (unsigned long long)entry->term, (unsigned long long)old->term);
    if (entry->term > old->term) {
        committed_drop(l, entry->index);
        return true;
    }
    if (old->term > l->newest_term) /* the core of the new leader starts later */
        loss_law_lost(&metas.losses, world_clock.now_ns);
    return false;
}

void quorum_law_applies(struct quorum_laws *l, const struct sim_meta *e,
                        const struct raft_log_entry *entry)
{
    uint32_t crc = codec_crc32c(0, entry->data, entry->len);
    struct committed *c;

    term_set(&l->members[e->index].taken, entry->index, entry->term);
    l->members[e->index].last = entry->index;
    l->entries = grown(l->entries, &l->n_entries, entry->index, sizeof(l->entries[0]));
    c = &l->entries[entry->index];
    if (c->term == entry->term && c->crc == crc)
        return;
    if (c->term != 0 && !committed_replace(l, e, c, entry))
        return;
    *c = (struct committed){ entry->term, world_clock.now_ns, crc };
    if (entry->index > l->last)
        l->last = entry->index;
}

void quorum_law_stable(struct quorum_laws *l, const struct sim_meta *e, uint64_t index)
{
    const struct terms *taken = &l->members[e->index].taken;

    for (uint64_t i = l->stable + 1; i <= index; i++) {
        if (i >= l->members[e->index].first && l->entries[i].term != taken->list[i])
            wrong("%s takes entry %llu of term %llu for stable, and one of term %llu is "
                  "committed",
                  e->host->proc->name, (unsigned long long)i,
                  (unsigned long long)taken->list[i],
                  (unsigned long long)l->entries[i].term);
    }
    if (index > l->stable)
        l->stable = index;
}

uint64_t quorum_stable_ns(const struct quorum_laws *l)
{
    for (uint64_t i = l->stable + 1; i <= l->last; i++)
        if (l->entries[i].term != 0)
            return l->entries[i].ns;
    return world_clock.now_ns;
}

void quorum_law_written(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                        uint64_t term)
{
    term_set(&l->members[e->index].written, index, term);
}

void quorum_law_persisted(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                          uint64_t term)
{
    term_set(&l->members[e->index].written, index, term);
    term_set(&l->members[e->index].synced, index, term);
}

void quorum_law_starts(struct quorum_laws *l, const struct sim_meta *e, uint64_t applied,
                       uint64_t last)
{
    bool excused = loss_law_excuses(&metas.losses, e);
    const struct terms *acked =
        excused ? &l->members[e->index].synced : &l->members[e->index].written;

    l->members[e->index].first = applied + 1;
    l->members[e->index].last = applied;
    for (uint64_t i = last + 1; excused && i < l->members[e->index].written.n; i++)
        l->members[e->index].written.list[i] = 0;
    for (uint64_t i = last + 1; i < acked->n && i <= l->last; i++) {
        if (acked->list[i] != 0 && acked->list[i] == l->entries[i].term)
            wrong("%s takes part with entries up to %llu, and had acknowledged entry "
                  "%llu, which is committed",
                  e->host->proc->name, (unsigned long long)last, (unsigned long long)i);
    }
}

/* ---- leaders ---- */

/* Drops the committed entries that this leader does not have. Those that it took are not
 * all: others may have heard of a commit that it cannot count before it has synced. */
static void unknown_drop(struct quorum_laws *l, const struct sim_meta *e)
{
    uint64_t i = l->members[e->index].last + 1;

    while (i <= l->last && l->entries[i].term != 0 &&
           l->entries[i].term == meta_log_term(e, i))
        i++;
    committed_drop(l, i);
}

uint64_t quorum_law_leads(struct quorum_laws *l, const struct sim_meta *e, uint64_t term,
                          uint64_t counted)
{
    uint64_t lost_ns;

    l->leaders = grown(l->leaders, &l->n_leaders, term, sizeof(l->leaders[0]));
    if (l->leaders[term] != NULL && l->leaders[term] != e)
        wrong("%s leads in term %llu, as %s did", e->host->proc->name,
              (unsigned long long)term, l->leaders[term]->host->proc->name);
    l->leaders[term] = e;
    unknown_drop(l, e);
    lost_ns = loss_law_leads(&metas.losses, e, counted);
    if (lost_ns != 0)
        l->loss_term = term;
    if (term > l->newest_term)
        l->newest_term = term;
    return lost_ns;
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

void quorum_law_lost(const struct sim_meta *leader, uint64_t id)
{
    for (unsigned i = 0; i < metas.n; i++) {
        if (metas.list[i].ill_before_life != 0)
            return;
    }
    wrong("%s finds that member %llu has lost entries that it had acknowledged",
          leader->host->proc->name, (unsigned long long)id);
}
