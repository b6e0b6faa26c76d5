/*
 * delayed_unlink.c - inodes that lost their last name, where several sessions share an
 * export.
 *
 * In:     the hook of the name space when a name goes; md.c after it; the tick.
 * Out:    orphans that are not open, removed a moment later.
 * Keeps:  I10: a delayed inode is an orphan in the store as well, so a start finds it.
 *         Memory is bounded (I9): without room, or when space is short (I12), inodes are
 *         removed at once.
 * Yours:  delay, limits.
 */
#include "exportd/sessions/delayed_unlink.h"

#include <assert.h>

#include "common/base/units.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/placement.h"
#include "exportd/sessions/sessions.h"

enum {
    /* A mount that looked up the name needs two messages and a busy kernel before it
     * opens the inode. A local file system would pin the name so long. */
    UNLINK_DELAY_MS = 2000,
    UNLINK_DELAY_MAX = 1 << 16, /* inodes, all exports */
    UNLINK_DELAY_A_TICK = 4096,
    /* many removals in a row leave little to the tick */
    UNLINK_DELAY_A_REMOVAL = 2,
};

/* Delayed removal of an inode. Owned by its export's table. */
struct delayed_unlink {
    uint64_t ino; /* key */
    struct export *export;
    uint64_t until_ns;
    struct list_node link; /* in the list of all */
    UT_hash_handle hh;
};

static void delayed_unlink_drop(struct delayed_unlink *l)
{
    assert(l->export->x->sessions->delayed.n > 0);
    l->export->x->sessions->delayed.n--;
    list_remove(&l->link);
    HASH_DEL(l->export->delayed, l);
    free(l);
}

/* Delays the removal if another session may have looked up the name just now. */
static bool delayed_unlink_begin(struct export *e, uint64_t ino)
{
    struct exportd *x = e->x;
    struct delayed_unlink *l;

    if (e->n_sessions < 2 || e->tight || metadata_room_is_low(x) ||
        x->sessions->delayed.n >= UNLINK_DELAY_MAX)
        return false;
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return false;
    l->ino = ino;
    l->export = e;
    l->until_ns = env_now_ns(x->env) + ms_to_ns(UNLINK_DELAY_MS);
    list_add_tail(&x->sessions->delayed.list, &l->link);
    hash_add(e->delayed, ino, l);
    x->sessions->delayed.n++;
    return true;
}

void delayed_unlinks_init(struct delayed_unlinks *delayed)
{
    list_init(&delayed->list);
}

bool export_keeps(void *arg, uint64_t ino)
{
    struct export *e = arg;
    bool lingers = delayed_unlink_begin(e, ino);

    return lingers || export_is_open(e, ino);
}

bool export_needs(struct export *e, uint64_t ino)
{
    return hash_find(e->delayed, ino) != NULL || export_is_open(e, ino);
}

static void delayed_unlink_let_go(struct exportd *x, unsigned n_max)
{
    uint64_t now_ns = env_now_ns(x->env);

    for (unsigned n = 0; n < n_max && !list_is_empty(&x->sessions->delayed.list); n++) {
        struct delayed_unlink *l =
            container_of(x->sessions->delayed.list.next, struct delayed_unlink, link);
        struct export *e = l->export;
        uint64_t ino = l->ino;

        if (now_ns < l->until_ns)
            return;
        delayed_unlink_drop(l);
        /* if open, the last reference or the end of the grace removes it */
        if (!export_is_open(e, ino))
            export_reap(e, ino);
    }
}

void delayed_unlink_removed(struct exportd *x)
{
    delayed_unlink_let_go(x, UNLINK_DELAY_A_REMOVAL);
}

void delayed_unlink_tick(struct exportd *x)
{
    if (x->stopping || store_error(x->store) != 0)
        return;
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        e->tight = export_is_tight(e);
    }
    delayed_unlink_let_go(x, UNLINK_DELAY_A_TICK);
}

void delayed_unlink_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->sessions->delayed.list)
        delayed_unlink_drop(container_of(node, struct delayed_unlink, link));
}
