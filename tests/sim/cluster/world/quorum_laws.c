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
    /* The witness leads: since then, or since the last time that its process stood still.
     * able_ns: since then this member can lead; 0: it cannot. */
    struct {
        uint64_t led_ns, seen_ns, term;
        uint64_t first, short_first; /* entry of its log; likewise when short */
        uint64_t had[METAS_MAX];     /* newest entry of each member when it began */
        unsigned life;
        uint64_t able_ns[METAS_MAX];
        unsigned able_life[METAS_MAX];
        unsigned n_terms, n_fed;
    } witness;
};

/* The witness feeds another member and hands over within that time; its process stood
 * still if nothing happened for that time. */
static const uint64_t hand_over_ns = 10000000000, still_ns = 500000000;

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

/* Returns the newest entry up to which a log has all that is committed. */
static uint64_t terms_held(const struct quorum_laws *l, const struct terms *t)
{
    uint64_t newest = l->last;

    while (newest > 0 && l->entries[newest].term == 0)
        newest--;
    for (uint64_t i = t->n; i > 1; i--) {
        uint64_t term = t->list[i - 1];

        if (term != 0 && (i - 1 <= newest ? term == l->entries[i - 1].term
                                          : term >= l->entries[newest].term))
            return i - 1;
    }
    return 0;
}

/* A store has all before the first entry that its member takes. */
static uint64_t held(const struct quorum_laws *l, const struct sim_meta *e,
                     const struct terms *t)
{
    uint64_t in_log = terms_held(l, t), first = l->members[e->index].first;

    return first > in_log + 1 ? first - 1 : in_log;
}

uint64_t quorum_law_held(const struct quorum_laws *l, const struct sim_meta *e)
{
    return held(l, e, &l->members[e->index].written);
}

void quorum_law_drops(const struct quorum_laws *l, const struct sim_meta *e,
                      uint64_t first)
{
    for (unsigned i = 0; i < metas.n; i++) {
        const struct sim_meta *other = &metas.list[i];

        if (!other->is_witness && held(l, other, &l->members[i].synced) < first - 1)
            wrong("%s drops entries before %llu, and %s has those up to %llu",
                  e->host->proc->name, (unsigned long long)first, other->host->proc->name,
                  (unsigned long long)held(l, other, &l->members[i].synced));
    }
}

void quorum_law_starts(struct quorum_laws *l, const struct sim_meta *e, uint64_t applied,
                       uint64_t last, uint64_t last_term)
{
    bool excused = loss_law_excuses(&metas.losses, e);
    const struct terms *acked =
        excused ? &l->members[e->index].synced : &l->members[e->index].written;

    if (e->is_witness && e->has_copied) {
        quorum_law_drops(l, e, applied + 1);
        quorum_law_begins(l, applied + 1, false);
    }
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
    if (last > applied)
        quorum_law_persisted(l, e, last, last_term);
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

/* Counts the entries that this member got from a witness before it could lead. */
static void fed_count(struct quorum_laws *l, const struct sim_meta *e)
{
    if (l->witness.led_ns != 0 &&
        l->witness.had[e->index] < l->witness.had[metas.witness->index])
        l->witness.n_fed +=
            (unsigned)(l->witness.had[metas.witness->index] - l->witness.had[e->index]);
    l->witness.led_ns = 0;
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
    fed_count(l, e);
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

/* ---- a witness ---- */

void quorum_law_begins(struct quorum_laws *l, uint64_t first, bool is_short)
{
    l->witness.first = first;
    if (is_short)
        l->witness.short_first = first;
}

/* The core of the witness must know the term of the last entry of the member, too. */
static bool is_fed(const struct quorum_laws *l, uint64_t last, uint64_t first)
{
    return last >= first || (last + 1 == first && first != l->witness.short_first);
}

bool quorum_law_lacks(const struct quorum_laws *l, const struct sim_meta *e)
{
    return !is_fed(l, quorum_law_held(l, e), l->witness.first);
}

bool quorum_law_feeds(const struct quorum_laws *l, uint64_t last)
{
    struct member_status s;

    return meta_status(metas.witness, &s) && s.seeding == SEED_NONE && !s.is_uncertain &&
           is_fed(l, last, s.first);
}

/* Returns whether nothing keeps two members from each other, or their disks. */
static bool is_well(const struct sim_meta *e)
{
    return e->host->power && e->host->proc->alive && !e->host->proc->hung &&
           !e->disk.health.hangs && e->disk.health.delay_us <= 300 &&
           e->disk.health.error_ppm == 0;
}

/* Returns whether a member can lead if the witness gives it what it lacks. */
static bool is_able(const struct quorum_laws *l, const struct sim_meta *e)
{
    const struct sim_meta *witness = metas.witness;
    struct member_status s;

    return !e->is_witness && is_well(e) && is_well(witness) &&
           !net.cut[e->host->index][witness->host->index] &&
           !net.cut[witness->host->index][e->host->index] && meta_status(e, &s) &&
           s.seeding == SEED_NONE && !s.is_uncertain && quorum_law_feeds(l, s.last);
}

static void able_look(struct quorum_laws *l, unsigned i)
{
    const struct sim_meta *other = &metas.list[i];
    unsigned life = other->host->proc->life;

    if (!is_able(l, other))
        l->witness.able_ns[i] = 0;
    else if (l->witness.able_ns[i] == 0 || l->witness.able_life[i] != life)
        l->witness.able_ns[i] = world_clock.now_ns;
    l->witness.able_life[i] = life;
}

void quorum_law_witness(struct quorum_laws *l, const struct sim_meta *e, bool leads,
                        uint64_t term)
{
    uint64_t now_ns = world_clock.now_ns;

    if (!leads && l->witness.led_ns == 0)
        return;
    for (unsigned i = 0; l->witness.led_ns == 0 && i < metas.n; i++)
        l->witness.had[i] = quorum_law_held(l, &metas.list[i]);
    if (l->witness.led_ns == 0 || l->witness.life != e->host->proc->life ||
        now_ns - l->witness.seen_ns > still_ns) {
        l->witness.led_ns = now_ns;
        l->witness.life = e->host->proc->life;
        memset(l->witness.able_ns, 0, sizeof(l->witness.able_ns));
    }
    l->witness.seen_ns = now_ns;
    l->witness.n_terms += leads && term != l->witness.term;
    if (leads)
        l->witness.term = term;
    for (unsigned i = 0; i < metas.n; i++) {
        able_look(l, i);
        if (leads && l->witness.able_ns[i] != 0 &&
            now_ns - l->witness.able_ns[i] > hand_over_ns)
            wrong("%s is a witness, and leads since %.4f s, and %s could",
                  e->host->proc->name, (double)l->witness.led_ns / 1e9,
                  metas.list[i].host->proc->name);
    }
}

void quorum_law_sends(const struct sim_meta *e, const struct raft_msg *msg)
{
    if (msg->kind == RAFT_MSG_TIMEOUT_NOW &&
        raft_config_is_witness(&metas.members, msg->to))
        wrong("%s hands leadership over to a witness", e->host->proc->name);
    if (e->is_witness && msg->kind == RAFT_MSG_SEED && (msg->flags & RAFT_MSG_LOST) == 0)
        wrong("%s is a witness, and tells member %llu to copy a store",
              e->host->proc->name, (unsigned long long)msg->to);
}

void quorum_law_count(const struct quorum_laws *l, unsigned *n_terms, unsigned *n_fed)
{
    *n_terms = l->witness.n_terms;
    *n_fed = l->witness.n_fed;
}
