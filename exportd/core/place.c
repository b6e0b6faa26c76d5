/*
 * place.c - choose the storages of a new file.
 *
 * In:     the hook of fs; the map as the polls left it; chance from env.
 * Out:    the distribution in the inode: first the optimal ones, then the spares.
 * Keeps:  distinct hosts, then racks, as long as there is a choice; homes as room.h has them,
 *         spares by free space.
 */
#include <errno.h>

#include "codec/codec.h"
#include "exportd/core/room.h"

struct candidate {
    struct storage *s;
    bool taken;
    bool home;                 /* it is to be one of the first: see room.h */
    unsigned on_host, on_rack; /* of those chosen, how many share its host and rack */
};

static bool storage_is_full(const struct storage *s)
{
    return s->total_bytes > 0 && storage_room(s) == 0;
}

/* Just after our start nobody has been asked: then hope. */
static bool storage_is_good(const struct storage *s)
{
    return !storage_is_full(s) && (storage_is_reachable(s) || !s->asked);
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
        return 1; /* whatever its order: the first rows are read most */
    return c->s->free_bytes / (1 << 20) + 1; /* MiB, so that sums fit */
}

/* The next one: least crowded host and rack first, among those by weight. */
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

/* Homes are chosen so that all storages fill evenly. If there is no room, or too few storages
 * are known, none is chosen, and chance decides. */
static void choose_homes(struct export *e, struct candidate *c, unsigned n)
{
    struct room_part *parts = calloc(n + 1, sizeof(*parts));

    if (parts == NULL)
        return; /* then chance chooses */
    for (unsigned i = 0; i < n; i++)
        parts[i] =
            (struct room_part){ .s = c[i].s, .room = storage_room(c[i].s), .order = i };
    room_choose_homes(e->x->env, parts, n, codec_layout(e->layout)->n);
    for (unsigned i = 0; i < n; i++)
        c[parts[i].order].home = parts[i].home;
    free(parts);
}

/* Add up to `wanted` storages of the volume that are as good as asked for. */
static void choose(struct export *e, struct inode *in, unsigned wanted, bool good)
{
    struct candidate *c = calloc(e->x->n_storages + 1, sizeof(*c));
    unsigned n = 0;

    if (c == NULL)
        return; /* the caller sees that there are too few */
    LIST_FOREACH(node, &e->x->storages) {
        struct storage *s = container_of(node, struct storage, link);

        if (s->facts.volume != e->volume || s->facts.lost || storage_is_full(s))
            continue;
        c[n].s = s;
        for (uint32_t i = 0; i < in->n_storages; i++)
            c[n].taken = c[n].taken || in->storages[i] == s->facts.id;
        n += storage_is_good(s) == good || c[n].taken;
    }
    for (unsigned i = 0; i < n; i++) {
        if (c[i].taken)
            take(&c[i], c, n);
    }
    if (in->n_storages == 0 && good)
        choose_homes(e, c, n);
    while (in->n_storages < wanted) {
        struct candidate *next = pick(e->x->env, c, n);

        if (next == NULL)
            break;
        in->storages[in->n_storages++] = next->s->facts.id;
        take(next, c, n);
    }
    free(c);
}

bool export_is_tight(const struct export *e)
{
    LIST_FOREACH(node, &e->x->storages) {
        const struct storage *s = container_of(node, struct storage, link);

        if (s->facts.volume == e->volume && !s->facts.lost && storage_is_full(s))
            return true;
    }
    return false;
}

int export_place(void *arg, struct inode *in)
{
    struct export *e = arg;
    const struct codec_layout *layout = codec_layout(e->layout);

    in->codec = e->codec;
    in->layout = e->layout;
    in->block_bytes = e->block_bytes;
    in->n_storages = 0;
    choose(e, in, layout->safe, true);
    if (in->n_storages < layout->n) /* a file that waits for them is better than none */
        choose(e, in, layout->n, false);
    return in->n_storages < layout->n ? -ENOSPC : 0;
}
