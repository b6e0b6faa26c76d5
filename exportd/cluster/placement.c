/*
 * placement.c - choose the storages of a new file.
 *
 * In:     the hook of the name space; the map as the polls left it; random numbers from
 *         env.
 * Out:    the distribution in the inode: first the homes, then the spares.
 * Keeps:  all candidates of the layout, down or not, unless the volume has too few;
 *         distinct hosts, then racks, as far as possible; homes as in storage_room.h,
 *         spares by free space.
 */
#include "exportd/cluster/placement.h"

#include <errno.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/storage_room.h"

/* Suitability of a storage for a new file, best first. */
enum storage_rank {
    STORAGE_GOOD,
    STORAGE_AWAY, /* unreachable: writes go to others until it is back */
    STORAGE_FULL, /* nearly full, reachable or not: only as a spare */
};

struct candidate {
    struct cluster_storage *s;
    bool taken;
    bool home;                 /* one of the first n, see storage_room.h */
    unsigned on_host, on_rack; /* chosen ones that share its host; its rack */
};

static bool storage_is_full(const struct cluster_storage *s)
{
    return s->total_bytes > 0 && storage_room(s) == 0;
}

/* Ranks a storage. One that was not polled since the start counts as reachable. */
static enum storage_rank storage_rank(const struct cluster_storage *s)
{
    if (storage_is_full(s))
        return STORAGE_FULL;
    return storage_is_reachable(s) || !s->asked ? STORAGE_GOOD : STORAGE_AWAY;
}

static bool is_better_spread(const struct candidate *a, const struct candidate *b)
{
    if (a->home != b->home)
        return a->home;
    return a->on_host != b->on_host ? a->on_host < b->on_host : a->on_rack < b->on_rack;
}

static uint64_t weight(const struct candidate *c)
{
    if (c->home)
        return 1; /* equal chances: the first rows are read most */
    return c->s->free_bytes / (1 << 20) + 1; /* MiB, so that sums fit */
}

/* Picks the next one: least crowded host and rack first, among those by weight. */
static struct candidate *pick(struct env *env, struct candidate *c, unsigned n)
{
    const struct candidate *best = NULL;
    uint64_t sum = 0, at;

    for (unsigned i = 0; i < n; i++) {
        if (!c[i].taken && (best == NULL || is_better_spread(&c[i], best)))
            best = &c[i];
    }
    if (best == NULL)
        return NULL;
    for (unsigned i = 0; i < n; i++)
        sum += !c[i].taken && !is_better_spread(best, &c[i]) ? weight(&c[i]) : 0;
    env_random(env, &at, sizeof(at));
    at %= sum;
    for (unsigned i = 0; i < n; i++) {
        uint64_t w = !c[i].taken && !is_better_spread(best, &c[i]) ? weight(&c[i]) : 0;

        if (at < w)
            return &c[i];
        at -= w;
    }
    return NULL;
}

static void take(struct candidate *taken, struct candidate *c, unsigned n)
{
    const struct storage_facts *f = &taken->s->facts;

    taken->taken = true;
    for (unsigned i = 0; i < n; i++) {
        c[i].on_host += strcmp(c[i].s->facts.host, f->host) == 0;
        c[i].on_rack += strcmp(c[i].s->facts.rack, f->rack) == 0;
    }
}

/* Marks the homes, so that all storages fill evenly. If there is no room, or too few
 * storages are known, none is marked, and chance decides. */
static void choose_homes(struct export *e, struct candidate *c, unsigned n)
{
    struct room_part *parts = calloc(n + 1, sizeof(*parts));

    if (parts == NULL)
        return; /* chance decides then */
    for (unsigned i = 0; i < n; i++)
        parts[i] =
            (struct room_part){ .s = c[i].s, .room = storage_room(c[i].s), .order = i };
    room_choose_homes(e->x->env, parts, n, codec_layout(e->layout)->n);
    for (unsigned i = 0; i < n; i++)
        c[parts[i].order].home = parts[i].home;
    free(parts);
}

/* Adds storages of this rank until the file has `wanted` candidates. Returns 0 or
 * -ENOMEM. */
static int choose(struct export *e, struct inode *in, unsigned wanted,
                  enum storage_rank rank)
{
    struct candidate *c = calloc(e->x->n_storages + 1, sizeof(*c));
    unsigned n = 0;

    if (c == NULL)
        return -ENOMEM;
    LIST_FOREACH(node, &e->x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->facts.volume != e->volume || s->facts.lost)
            continue;
        c[n].s = s;
        for (uint32_t i = 0; i < in->n_storages; i++)
            c[n].taken = c[n].taken || in->storages[i] == s->facts.id;
        n += storage_rank(s) == rank || c[n].taken;
    }
    for (unsigned i = 0; i < n; i++) {
        if (c[i].taken)
            take(&c[i], c, n);
    }
    if (in->n_storages == 0 && rank == STORAGE_GOOD)
        choose_homes(e, c, n);
    while (in->n_storages < wanted) {
        struct candidate *next = pick(e->x->env, c, n);

        if (next == NULL)
            break;
        in->storages[in->n_storages++] = next->s->facts.id;
        take(next, c, n);
    }
    free(c);
    return 0;
}

/* Copies the distribution without lost storages, in order. */
static void keep(const struct export *e, const struct inode *in, struct inode *out)
{
    *out = *in;
    out->n_storages = 0;
    for (uint32_t i = 0; i < in->n_storages; i++) {
        if (!storage_is_lost(e->x, in->storages[i]))
            out->storages[out->n_storages++] = in->storages[i];
    }
}

bool export_has_more_for(const struct export *e, const struct inode *in)
{
    const struct codec_layout *layout = codec_layout(in->layout);
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < in->n_storages; i++)
        n_kept += !storage_is_lost(e->x, in->storages[i]);
    return layout != NULL && n_kept >= layout->k && n_kept < layout->safe &&
           volume_n_candidates(e->x, e->volume) > n_kept;
}

/* Blocks are on n storages only if all homes are there. A lost home may have been passed
 * over by writes, and may come back and call what it missed "never written". */
static bool has_all_homes(const struct export *e, const struct inode *in)
{
    unsigned n = codec_layout(in->layout)->n;

    for (uint32_t i = 0; i < in->n_storages && i < n; i++) {
        if (storage_is_lost(e->x, in->storages[i]))
            return false;
    }
    return true;
}

/* Puts storages from number `next` of `all` on in the places of lost ones: homes
 * first, and none from number n_good on becomes a home, since it is nearly full. */
static unsigned replace_lost(const struct export *e, const struct inode *all,
                             uint32_t next, uint32_t n_good, struct inode *out,
                             unsigned *n_homes)
{
    const struct codec_layout *layout = codec_layout(out->layout);
    unsigned n_new = 0;

    for (uint32_t i = 0; i < out->n_storages && next < all->n_storages; i++) {
        if (!storage_is_lost(e->x, out->storages[i]) || (i < layout->n && next >= n_good))
            continue;
        out->storages[i] = all->storages[next++];
        n_new++;
        *n_homes += i < layout->n;
    }
    return n_new;
}

/* True if healing at all storages of the file relies on full_quorum as readers do. */
static bool all_know_full_quorum(const struct export *e, const struct inode *in)
{
    for (uint32_t i = 0; i < in->n_storages; i++) {
        const struct cluster_storage *s = storage_find(e->x, in->storages[i]);

        if (s == NULL || !s->knows_full_quorum)
            return false;
    }
    return true;
}

static int distribution_complete(struct export *e, const struct inode *in,
                                 struct inode *out, unsigned *n_new)
{
    const struct codec_layout *layout = codec_layout(in->layout);
    struct inode all;
    uint32_t n_kept, n_good;
    unsigned n_homes = 0;
    int rc;

    *n_new = 0;
    *out = *in;
    keep(e, in, &all);
    n_kept = all.n_storages;
    rc = choose(e, &all, layout->safe, STORAGE_GOOD);
    n_good = all.n_storages;
    if (rc == 0)
        rc = choose(e, &all, layout->safe, STORAGE_FULL);
    if (rc != 0)
        return rc;
    *n_new = replace_lost(e, &all, n_kept, n_good, out, &n_homes);
    if (!has_all_homes(e, in)) {
        /* Kept storages may be all that have a block. With the new homes, of which nobody
         * knows what they had, they must be a quorum. */
        if (n_kept + n_homes < inode_quorum_read(in))
            *n_new = 0;
        return 0;
    }
    for (n_kept += *n_new; out->n_storages < layout->safe && n_kept < all.n_storages;
         ++*n_new)
        out->storages[out->n_storages++] = all.storages[n_kept++];
    return 0;
}

int export_complete(struct export *e, const struct inode *in, struct inode *out,
                    unsigned *n_new)
{
    int rc = distribution_complete(e, in, out, n_new);

    if (rc == 0 && (in->flags & INODE_FULL_QUORUM) != 0 && !all_know_full_quorum(e, out))
        *n_new = 0;
    return rc;
}

bool export_is_tight(const struct export *e)
{
    LIST_FOREACH(node, &e->x->storages) {
        const struct cluster_storage *s =
            container_of(node, struct cluster_storage, link);

        if (s->facts.volume == e->volume && !s->facts.lost && storage_is_full(s))
            return true;
    }
    return false;
}

int export_place(void *arg, struct inode *in)
{
    struct export *e = arg;
    const struct codec_layout *layout = codec_layout(e->layout);
    int rc;

    in->codec = e->codec;
    in->layout = e->layout;
    in->block_bytes = e->block_bytes;
    in->n_storages = 0;
    rc = choose(e, in, layout->safe, STORAGE_GOOD);
    if (rc == 0)
        rc = choose(e, in, layout->safe, STORAGE_AWAY);
    if (rc == 0 && in->n_storages < layout->n)
        rc = -ENOSPC;
    if (rc == 0)
        rc = choose(e, in, layout->safe, STORAGE_FULL);
    /* With all candidates of the layout both quorums are one. */
    if (rc == 0 && all_know_full_quorum(e, in) &&
        quorum_write(layout, in->n_storages) !=
            quorum_read(layout, in->n_storages, false))
        in->flags |= INODE_FULL_QUORUM;
    return rc;
}
