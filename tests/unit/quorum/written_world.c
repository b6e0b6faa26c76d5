/* written_world.c - see written_world.h. */
#include "tests/unit/quorum/written_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exportd/store/key.h"
#include "tests/unit/unit.h"

/* Write of the program that tests. */
struct write {
    struct kv_done done; /* must stay first */
    struct written_world *w;
    unsigned key;
    uint64_t val;
};

static void world_init(struct written_world *w, uint64_t seed, bool is_lazy,
                       bool has_witness)
{
    memset(w, 0, sizeof(*w));
    w->m.is_lazy = is_lazy;
    w->m.has_witness = has_witness;
    env_virtual_init(&w->v, seed);
    w->next_val = 1;
    member_world_init(&w->m, &w->v);
}

void written_init_as(struct written_world *w, uint64_t seed, bool is_lazy)
{
    world_init(w, seed, is_lazy, false);
}

void written_init(struct written_world *w, uint64_t seed)
{
    world_init(w, seed, false, false);
}

void written_init_witness(struct written_world *w, uint64_t seed, bool is_lazy)
{
    world_init(w, seed, is_lazy, true);
}

void written_free(struct written_world *w)
{
    member_world_free(&w->m);
    env_virtual_close(&w->v);
}

static void on_written(struct kv_done *done, int rc)
{
    struct write *x = (struct write *)done;
    struct written_world *w = x->w;

    if (rc == 0) {
        w->n_acked++;
        if (x->val > w->acked[x->key])
            w->acked[x->key] = x->val;
    }
    free(x);
}

void written_write(struct written_world *w, struct member_node *n, size_t len)
{
    struct write *x = calloc(1, sizeof(*x));
    uint8_t *val = calloc(1, len);
    char key[8];
    struct kv_item item = { key, 3, val, len };

    assert_true(x != NULL && val != NULL && len >= 8);
    x->done.fn = on_written;
    x->w = w;
    x->key = (unsigned)env_virtual_below(&w->v, WRITTEN_KEYS);
    x->val = w->next_val++;
    w->written[x->key] = x->val;
    snprintf(key, sizeof(key), "K%02u", x->key);
    memcpy(val, &x->val, sizeof(x->val));
    kv_commit(kv_quorum_kv(n->kv), &item, 1, &x->done);
    free(val);
}

/* Sync of the program that tests. */
struct sync {
    struct kv_done done; /* must stay first */
    struct written_world *w;
    struct member_node *n;
    uint64_t acked[WRITTEN_KEYS];
};

static void on_synced(struct kv_done *done, int rc)
{
    struct sync *s = (struct sync *)done;

    s->n->syncs = false;
    if (rc == 0) {
        s->w->n_synced++;
        memcpy(s->w->synced, s->acked, sizeof(s->acked));
    }
    free(s);
}

void written_sync(struct written_world *w, struct member_node *n)
{
    struct sync *s;

    if (n->syncs)
        return; /* a kv takes one at a time */
    s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->done.fn = on_synced;
    s->w = w;
    s->n = n;
    n->syncs = true;
    memcpy(s->acked, w->acked, sizeof(s->acked));
    kv_sync(kv_quorum_kv(n->kv), &s->done);
}

uint64_t written_value(struct kv *kv, unsigned key)
{
    char name[8];
    void *val = NULL;
    size_t len;
    uint64_t v = 0;

    snprintf(name, sizeof(name), "K%02u", key);
    if (kv_get(kv, name, 3, &val, &len) == 0)
        memcpy(&v, val, sizeof(v));
    free(val);
    return v;
}

void written_leader_check(struct written_world *w, struct member_node *n)
{
    for (unsigned k = 0; k < WRITTEN_KEYS; k++) {
        uint64_t v = written_value(kv_quorum_kv(n->kv), k);

        assert_true(v >= w->acked[k] && v <= w->written[k]);
    }
}

uint64_t written_losses(struct member_node *n)
{
    const uint8_t key = KEY_LOSSES;
    uint64_t losses = 0;
    void *val;
    size_t len;

    if (kv_get(kv_quorum_kv(n->kv), &key, 1, &val, &len) != 0)
        return 0;
    assert_int_equal(len, sizeof(losses));
    memcpy(&losses, val, sizeof(losses));
    free(val);
    return losses;
}

unsigned written_losses_take(struct written_world *w, struct member_node *n)
{
    unsigned n_lost = 0;

    for (unsigned k = 0; k < WRITTEN_KEYS; k++) {
        uint64_t v = written_value(kv_quorum_kv(n->kv), k);

        assert_true(v >= w->synced[k] && v <= w->written[k]);
        n_lost += v < w->acked[k];
        w->acked[k] = v;
    }
    return n_lost;
}

static bool takes_part(const struct member_node *n)
{
    struct member_status s;

    if (!n->is_up)
        return false;
    member_status(n->member, &s);
    return s.seeding == SEED_NONE && !s.is_uncertain;
}

bool written_all_take_part(const struct written_world *w)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        if (!takes_part(&w->m.nodes[i]))
            return false;
    return true;
}

/* Returns how many members are unsound now. */
static unsigned unsound_count(struct written_world *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < MEMBERS; i++) {
        w->is_unsound[i] = w->is_unsound[i] && !takes_part(&w->m.nodes[i]);
        n += w->is_unsound[i];
    }
    return n;
}

void written_fault(struct written_world *w, struct member_node *n)
{
    assert_false(n->is_up);
    w->is_unsound[n->i] = true;
    if (!w->m.is_lazy || unsound_count(w) <= MEMBERS / 2)
        return;
    w->n_may_lose += !w->may_lose;
    w->may_lose = w->may_count = true;
}

void written_look(struct written_world *w)
{
    struct member_node *n = member_world_leader(&w->m);
    unsigned n_lost;
    uint64_t losses;

    if (n == NULL)
        return;
    losses = written_losses(n);
    if (!w->may_lose) {
        written_leader_check(w, n);
        assert_true(losses == w->losses || (losses > w->losses && w->may_count));
        w->losses = losses;
        return;
    }
    n_lost = written_losses_take(w, n);
    assert_true(n_lost == 0 || losses > w->losses);
    w->n_lost += n_lost;
    if (unsound_count(w) == 0) {
        w->may_lose = false;
        w->losses = losses;
    }
}

void written_all_are_equal(struct written_world *w)
{
    struct member_status a, b;

    for (unsigned ms = 0; ms < 60000; ms++) {
        bool same = true;

        member_status(w->m.nodes[0].member, &a);
        for (unsigned i = 0; i < MEMBERS; i++) {
            member_status(w->m.nodes[i].member, &b);
            same = same && a.applied == b.applied && b.applied == b.last;
        }
        if (same)
            break;
        member_world_run_ms(&w->m, 1);
    }
    for (unsigned i = 0; i < MEMBERS; i++)
        for (unsigned k = 0; k < WRITTEN_KEYS && !w->m.nodes[i].is_witness; k++)
            assert_int_equal(written_value(kv_memory_kv(w->m.nodes[i].below), k),
                             written_value(kv_memory_kv(w->m.nodes[0].below), k));
}
