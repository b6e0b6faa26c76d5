/*
 * blk_commit.c - how far the writes of one file are durable, and which storages wait to
 * be notified.
 *
 * In:     the beginnings and ends of writes, marks (blk_write.c, blk_mark.c) and syncs
 *         (blk_sync.c).
 * Out:    watermarks for messages. Thread: the engine's.
 * Keeps:  a watermark never covers a version that is in flight, has failed, or was
 *         acknowledged and not synced since: a storage may throw away what was before it.
 * Yours:  how many epochs are remembered.
 */
#include "storcli/blocks/blk_commit.h"

#include <assert.h>
#include <string.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void commit_init(struct commit *c)
{
    memset(c, 0, sizeof(*c));
    list_init(&c->flights);
}

static struct commit_epoch *epoch_find(struct commit *c, uint32_t epoch)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        if (c->epochs[i].used && c->epochs[i].epoch == epoch)
            return &c->epochs[i];
    }
    return NULL;
}

/* Returns a free slot, or that of the oldest epoch. */
static struct commit_epoch *epoch_slot(struct commit *c)
{
    struct commit_epoch *oldest = &c->epochs[0];

    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        if (!c->epochs[i].used)
            return &c->epochs[i];
        if (c->epochs[i].epoch < oldest->epoch)
            oldest = &c->epochs[i];
    }
    return oldest;
}

/* Returns the state of an epoch. NULL: it is so old that its writes are forgotten. */
static struct commit_epoch *epoch_get(struct commit *c, uint32_t epoch)
{
    struct commit_epoch *e = epoch_find(c, epoch);

    if (e != NULL || (c->dropped && epoch <= c->dropped_epoch))
        return e;
    e = epoch_slot(c);
    if (e->used && e->epoch > epoch) { /* itself the oldest: it never gets a slot */
        c->dropped = true;
        c->dropped_epoch = epoch;
        return NULL;
    }
    if (e->used) {
        c->dropped = true;
        c->dropped_epoch = e->epoch;
    }
    memset(e, 0, sizeof(*e));
    e->used = true;
    e->epoch = epoch;
    e->oldest = e->unsynced = e->syncing = e->failed = UINT64_MAX;
    return e;
}

static void epoch_recount(struct commit *c, struct commit_epoch *e)
{
    uint64_t low = min_u64(e->failed, min_u64(e->unsynced, e->syncing)), durable;

    LIST_FOREACH(node, &c->flights) {
        const struct commit_flight *flight =
            container_of(node, struct commit_flight, link);

        if (version_epoch(flight->version) == e->epoch)
            low = min_u64(low, flight->version);
    }
    durable = low == 0 ? 0 : min_u64(e->newest, low - 1);
    if (durable < e->oldest) /* no acknowledged version is covered */
        durable = 0;
    if (durable == e->durable)
        return;
    e->durable = durable;
    e->durable_no = ++c->no;
}

static void recount_all(struct commit *c)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        if (c->epochs[i].used)
            epoch_recount(c, &c->epochs[i]);
    }
}

void commit_begin(struct commit *c, struct commit_flight *flight, uint64_t version)
{
    struct commit_epoch *e = epoch_get(c, version_epoch(version));

    flight->version = version;
    list_add_tail(&c->flights, &flight->link);
    if (e != NULL && version <= e->durable) /* a mark that is repeated */
        epoch_recount(c, e);
}

void commit_end(struct commit *c, struct commit_flight *flight, bool acknowledged,
                bool stable)
{
    struct commit_epoch *e = epoch_find(c, version_epoch(flight->version));

    list_remove(&flight->link);
    if (e == NULL)
        return;
    if (!acknowledged)
        e->failed = min_u64(e->failed, flight->version);
    if (acknowledged) {
        e->oldest = min_u64(e->oldest, flight->version);
        e->newest = flight->version > e->newest ? flight->version : e->newest;
    }
    if (acknowledged && !stable)
        e->unsynced = min_u64(e->unsynced, flight->version);
    epoch_recount(c, e);
}

void commit_sync_begin(struct commit *c)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        struct commit_epoch *e = &c->epochs[i];

        assert(!e->used || e->syncing == UINT64_MAX);
        e->syncing = e->unsynced;
        e->unsynced = UINT64_MAX;
    }
}

void commit_sync_end(struct commit *c, enum commit_sync how)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        struct commit_epoch *e = &c->epochs[i];

        if (how == COMMIT_SYNC_FAILED)
            e->unsynced = min_u64(e->unsynced, e->syncing);
        if (how == COMMIT_SYNC_LOST)
            e->failed = min_u64(e->failed, e->syncing);
        e->syncing = UINT64_MAX;
    }
    recount_all(c);
}

/* Returns how far the watermark has to rise for this candidate, and ever may. */
static uint64_t awaited(const struct commit_epoch *e, unsigned candidate)
{
    return min_u64(e->pending_to[candidate], e->failed - 1);
}

void commit_pending(struct commit *c, unsigned candidate, uint64_t version)
{
    struct commit_epoch *e = epoch_find(c, version_epoch(version));
    uint32_t bit = 1u << candidate;

    if (e == NULL)
        return;
    if ((e->pending & bit) == 0 || e->pending_to[candidate] < version)
        e->pending_to[candidate] = version;
    e->pending |= bit;
}

unsigned commit_durable(const struct commit *c, uint64_t durable[COMMIT_EPOCHS_MAX])
{
    unsigned n = 0;

    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        const struct commit_epoch *e = &c->epochs[i];

        if (e->used && e->pending != 0 && e->durable != 0)
            durable[n++] = e->durable;
    }
    return n;
}

void commit_confirmed(struct commit *c, unsigned candidate, uint32_t no)
{
    uint32_t bit = 1u << candidate;

    if (no > c->confirmed_no[candidate])
        c->confirmed_no[candidate] = no;
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        struct commit_epoch *e = &c->epochs[i];

        if ((e->pending & bit) != 0 && e->durable_no <= no &&
            e->durable >= awaited(e, candidate))
            e->pending &= ~bit;
    }
}

void commit_forget(struct commit *c, unsigned candidate)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++)
        c->epochs[i].pending &= ~(1u << candidate);
}

void commit_replaced(struct commit *c, unsigned candidate)
{
    commit_forget(c, candidate);
    c->confirmed_no[candidate] = 0;
}

uint64_t commit_newest(const struct commit *c)
{
    uint64_t newest = 0;

    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        if (c->epochs[i].used && c->epochs[i].newest > newest)
            newest = c->epochs[i].newest;
    }
    return newest;
}

uint32_t commit_due(const struct commit *c)
{
    uint32_t due = 0;

    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        const struct commit_epoch *e = &c->epochs[i];

        for (unsigned j = 0; e->pending != 0 && e->durable != 0 && j < DIST_MAX; j++) {
            if ((e->pending >> j & 1) != 0 &&
                (e->durable >= awaited(e, j) || e->durable_no > c->confirmed_no[j]))
                due |= 1u << j;
        }
    }
    return due;
}

bool commit_wants_sync(const struct commit *c)
{
    for (unsigned i = 0; i < COMMIT_EPOCHS_MAX; i++) {
        const struct commit_epoch *e = &c->epochs[i];

        for (unsigned j = 0; e->pending != 0 && j < DIST_MAX; j++) {
            if ((e->pending >> j & 1) != 0 && e->durable < awaited(e, j) &&
                min_u64(e->unsynced, e->syncing) <= awaited(e, j))
                return true;
        }
    }
    return false;
}
