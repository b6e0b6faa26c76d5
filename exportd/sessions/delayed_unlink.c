/*
 * delayed_unlink.c - inodes that have just lost their last name, where several sessions share an export.
 *
 * In:     the hook of fs when a name goes; md.c after it; the tick.
 * Out:    orphans that nobody has open, removed a moment later.
 * Keeps:  I10: what lingers is an orphan in the store as well, so a start finds it. Memory is bounded (I9), and what
 *         there is no room for goes at once, as all does when space is short (I12).
 * Yours:  how long, how many.
 */
#include "exportd/sessions/delayed_unlink.h"

#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/placement.h"
#include "exportd/sessions/session.h"

enum {
    /* Between a mount's lookup of a name and its opening of what it found lie two ways over the network and a kernel that may be
     * busy. Locally the name would be pinned for as long. */
    LINGER_MS = 2000,
    LINGER_MAX = 1 << 16, /* of all exports */
    LINGER_A_TICK = 4096,
    LINGER_A_REMOVAL = 2, /* so that many removals in a row leave little to the tick */
};

/* Owned by its export's table. */
struct lingering {
    uint64_t ino; /* key */
    struct export *export;
    uint64_t until_ns;
    struct list_node link; /* in x->lingering, oldest first */
    UT_hash_handle hh;
};

static struct lingering *lingering_find(const struct export *e, uint64_t ino)
{
    struct lingering *l;

    HASH_FIND(hh, e->lingering, &ino, sizeof(ino), l);
    return l;
}

static void lingering_free(struct lingering *l)
{
    l->export->x->n_lingering--;
    list_remove(&l->link);
    HASH_DEL(l->export->lingering, l);
    free(l);
}

/* Whoever else is there may have looked it up just now. */
static bool linger_begin(struct export *e, uint64_t ino)
{
    struct exportd *x = e->x;
    struct lingering *l;

    if (e->n_sessions < 2 || e->tight || x->space_low || x->n_lingering >= LINGER_MAX)
        return false;
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return false;
    l->ino = ino;
    l->export = e;
    l->until_ns = env_now_ns(x->env) + LINGER_MS * 1000000ull;
    list_add_tail(&x->lingering, &l->link);
    HASH_ADD(hh, e->lingering, ino, sizeof(l->ino), l);
    x->n_lingering++;
    return true;
}

bool export_keeps(void *arg, uint64_t ino)
{
    struct export *e = arg;
    bool lingers = linger_begin(e, ino);

    return lingers || export_is_open(e, ino);
}

bool export_needs(struct export *e, uint64_t ino)
{
    return lingering_find(e, ino) != NULL || export_is_open(e, ino);
}

static void linger_let_go(struct exportd *x, unsigned n_max)
{
    uint64_t now_ns = env_now_ns(x->env);

    for (unsigned n = 0; n < n_max && !list_is_empty(&x->lingering); n++) {
        struct lingering *l = container_of(x->lingering.next, struct lingering, link);
        struct export *e = l->export;
        uint64_t ino = l->ino;

        if (now_ns < l->until_ns)
            return;
        lingering_free(l);
        if (!export_is_open(
                e, ino)) /* else it goes with the last reference, or after the grace */
            export_reap(e, ino);
    }
}

void linger_removed(struct exportd *x)
{
    linger_let_go(x, LINGER_A_REMOVAL);
}

void linger_tick(struct exportd *x)
{
    if (x->stopping || store_error(x->store) != 0)
        return;
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        e->tight = export_is_tight(e);
    }
    linger_let_go(x, LINGER_A_TICK);
}

void linger_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->lingering)
        lingering_free(container_of(node, struct lingering, link));
}
