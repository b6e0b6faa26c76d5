/*
 * members.c - check at the end: all members of a quorum hold the same, a witness nothing.
 *
 * In:     their stores. Out: an error message if two differ.
 */
#include <string.h>

#include "exportd/quorum/kv_place.h"
#include "exportd/store/key.h"
#include "tests/sim/cluster/state.h"
#include "tests/sim/cluster/world/kv.h"

enum { WHOLE_MS = 120000 };

/* Moves on to a key that all members have, not only this one. */
static void skip_own(struct kv_iter *i)
{
    size_t len;

    while (kv_iter_valid(i) && *(const uint8_t *)kv_iter_key(i, &len) == KEY_QUORUM)
        kv_iter_next(i);
}

static bool items_are_equal(struct kv_iter *a, struct kv_iter *b)
{
    size_t a_len, b_len;
    const void *p = kv_iter_key(a, &a_len), *q = kv_iter_key(b, &b_len);

    if (a_len != b_len || memcmp(p, q, a_len) != 0)
        return false;
    p = kv_iter_val(a, &a_len);
    q = kv_iter_val(b, &b_len);
    return a_len == b_len && memcmp(p, q, a_len) == 0;
}

static bool stores_are_equal(struct kv *a, struct kv *b)
{
    struct kv_iter *i, *j;
    bool equal;

    if (kv_iter_open(a, &i) != 0 || kv_iter_open(b, &j) != 0)
        wrong("a store cannot be read");
    kv_iter_seek(i, "", 0);
    kv_iter_seek(j, "", 0);
    for (;;) {
        skip_own(i);
        skip_own(j);
        equal = kv_iter_valid(i) == kv_iter_valid(j);
        if (!equal || !kv_iter_valid(i))
            break;
        equal = items_are_equal(i, j);
        if (!equal)
            break;
        kv_iter_next(i);
        kv_iter_next(j);
    }
    kv_iter_close(i);
    kv_iter_close(j);
    return equal;
}

/* Returns the entry up to which a store is complete; 0: it is being copied. */
static uint64_t applied(const struct sim_meta *e)
{
    struct kv_quorum_place place;
    int64_t wall_ns;

    if (kv_place_load(sim_kv_kv(e->kv), &place, &wall_ns) != 0)
        wrong("the store of %s has no place", e->host->proc->name);
    return place.applied;
}

static bool has_metadata(struct kv *kv)
{
    struct kv_iter *i;
    bool has;

    if (kv_iter_open(kv, &i) != 0)
        wrong("a store cannot be read");
    kv_iter_seek(i, "", 0);
    skip_own(i);
    has = kv_iter_valid(i);
    kv_iter_close(i);
    return has;
}

static bool all_have_applied_the_same(void)
{
    for (unsigned i = 1; i < metas.n; i++) {
        if (applied(&metas.list[i]) != applied(&metas.list[0]))
            return false;
    }
    return metas_are_whole();
}

void check_members(void)
{
    uint64_t until_ns = world_clock.now_ns + (uint64_t)WHOLE_MS * 1000000;
    const struct sim_meta *first = NULL;

    if (!metas_are_quorum())
        return;
    while (!all_have_applied_the_same()) {
        if (world_clock.now_ns > until_ns)
            wrong("a member does not come to what the others have");
        world_step();
    }
    for (unsigned i = 0; i < metas.n; i++) {
        const struct sim_meta *e = &metas.list[i];

        if (e->is_witness && has_metadata(sim_kv_kv(e->kv)))
            wrong("%s is a witness, and has metadata", e->host->proc->name);
        if (e->is_witness)
            continue;
        if (first == NULL)
            first = e;
        if (!stores_are_equal(sim_kv_kv(first->kv), sim_kv_kv(e->kv)))
            wrong("the stores of %s and %s differ", first->host->proc->name,
                  e->host->proc->name);
    }
}
