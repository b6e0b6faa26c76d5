/*
 * Goal: after overwrites, marks, commits, drops, applies, kills and power cuts in any
 * order, every block reads as the rules of the overwrite journal say, at any version.
 * Method: random operations against a model that keeps every version of every block; the
 * power is cut at every disk request of a run in turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/storaged/world.h"

#define OK ROZO__STATUS__OK

enum { BLOCKS = 600, VALUES_MAX = 80 };

enum { SEEDS = 8 };

struct value {
    uint64_t version;
    size_t user_bytes; /* 0: a hole */
};

/* Versions of a block, oldest first. The first one is committed: older versions are never
 * asked for. */
struct block {
    struct value values[VALUES_MAX];
    unsigned n;
    unsigned stable; /* index of the version that the last sync, or drop, made stable */
};

struct model {
    struct block blocks[BLOCKS];
    uint64_t version, synced, committed;
    bool made, stable; /* the projection file */
    bool is_small;     /* the smallest journal */
};

static void model_init(struct model *m)
{
    memset(m, 0, sizeof(*m));
    for (unsigned b = 0; b < BLOCKS; b++)
        m->blocks[b].n = 1;
    m->version = UINT64_C(1) << 32;
}

static struct value *model_now(struct model *m, uint64_t b)
{
    return &m->blocks[b].values[m->blocks[b].n - 1];
}

static void model_push(struct model *m, uint64_t first, uint64_t end, uint64_t version,
                       size_t user_bytes)
{
    for (uint64_t b = first; b < end && b < BLOCKS; b++) {
        struct block *x = &m->blocks[b];

        assert_true(x->n < VALUES_MAX);
        x->values[x->n++] = (struct value){ version, user_bytes };
    }
}

static void model_synced(struct model *m)
{
    m->stable = m->made;
    m->synced = m->version;
    for (unsigned b = 0; b < BLOCKS; b++)
        m->blocks[b].stable = m->blocks[b].n - 1;
}

/* Commits up to `version`: older versions are not asked for any more. */
static void model_commit(struct model *m, uint64_t version)
{
    m->committed = version > m->committed ? version : m->committed;
    for (unsigned b = 0; b < BLOCKS; b++) {
        struct block *x = &m->blocks[b];
        unsigned i = 0;

        while (i + 1 < x->n && x->values[i + 1].version <= version)
            i++;
        if (i == 0)
            continue;
        memmove(x->values, x->values + i, (x->n - i) * sizeof(x->values[0]));
        x->n -= i;
        x->stable = x->stable > i ? x->stable - i : 0;
    }
}

static bool is_value(const struct seen *s, const struct value *v)
{
    if (s->version != v->version)
        return false;
    return v->user_bytes == 0 ? s->kind == SEEN_HOLE
                              : s->kind == SEEN_DATA && s->user_bytes == v->user_bytes;
}

static void say(const char *what, unsigned b, const struct seen *s, const struct value *v)
{
    print_message("%s: block %u: kind %d version %llx (%zu), not %llx (%zu)\n", what, b,
                  (int)s->kind, (unsigned long long)s->version, s->user_bytes,
                  (unsigned long long)v->version, v->user_bytes);
}

static void check_now(struct world *w, struct model *m)
{
    struct seen seen[100];

    for (unsigned b = 0; m->made && b < BLOCKS; b += 100) {
        assert_int_equal(world_read(w, 0, b, 100, seen, NULL), OK);
        for (unsigned i = 0; i < 100; i++) {
            if (!is_value(&seen[i], model_now(m, b + i)))
                say("now", b + i, &seen[i], model_now(m, b + i));
            assert_true(is_value(&seen[i], model_now(m, b + i)));
        }
    }
}

/* Reads with at_most, at a version below which everything older is committed: it must
 * return that version. */
static void check_at_most(struct world *w, struct model *m)
{
    uint64_t at_most = m->committed + env_virtual_below(&w->v, 40);
    struct seen seen[100];
    unsigned b = (unsigned)env_virtual_below(&w->v, BLOCKS / 100) * 100;

    if (!m->made || at_most == 0)
        return;
    assert_int_equal(world_read_at_most(w, 0, b, 100, at_most, seen), OK);
    for (unsigned i = 0; i < 100; i++) {
        const struct block *x = &m->blocks[b + i];
        unsigned k = x->n - 1;

        while (k > 0 && x->values[k].version > at_most)
            k--;
        if (!is_value(&seen[i], &x->values[k]))
            say("at most", b + i, &seen[i], &x->values[k]);
        assert_true(is_value(&seen[i], &x->values[k]));
    }
}

/* Checks that no block, after a power cut, is older than its stable version, or is
 * damaged unless it had none before. */
static bool check_cut(struct world *w, struct model *m)
{
    struct seen seen[100];

    for (unsigned b = 0; b < BLOCKS; b += 100) {
        uint16_t status = world_read(w, 0, b, 100, seen, NULL);

        if (status != OK) {
            assert_false(m->stable);
            return false;
        }
        for (unsigned i = 0; i < 100; i++) {
            struct block *x = &m->blocks[b + i];
            bool allowed = false;
            unsigned k;

            for (k = x->stable; k < x->n && !allowed; k++)
                allowed = is_value(&seen[i], &x->values[k]);
            if (seen[i].kind == SEEN_DAMAGED)
                allowed = x->values[x->stable].user_bytes == 0 && x->stable + 1 < x->n;
            if (!allowed)
                say("cut", b + i, &seen[i], &x->values[x->stable]);
            assert_true(allowed);
        }
    }
    return true;
}

static uint64_t next_version(struct world *w, struct model *m)
{
    if (env_virtual_below(&w->v, 20) == 0) /* opened again */
        m->version = ((m->version >> 32) + 1) << 32;
    return ++m->version;
}

static void random_range(struct world *w, uint64_t max, uint64_t *first, uint64_t *end)
{
    *first = env_virtual_below(&w->v, BLOCKS);
    *end = *first + 1 + env_virtual_below(&w->v, max);
    if (*end > BLOCKS)
        *end = BLOCKS;
}

static bool is_full(struct model *m)
{
    for (unsigned b = 0; b < BLOCKS; b++) {
        if (m->blocks[b].n + 2 > VALUES_MAX)
            return true;
    }
    return false;
}

/* Runs a call until it is answered; it may wait for room. */
static uint16_t finish(struct world *w, struct test_call *c)
{
    uint16_t status = UINT16_MAX;

    env_virtual_run_posted(&w->v);
    for (unsigned i = 0; i < 30 && !c->done; i++)
        env_virtual_advance_ms(&w->v, 1000);
    if (c->done)
        status = c->status;
    call_free(c);
    return status;
}

static bool random_write(struct world *w, struct model *m)
{
    static const size_t sizes[] = { 8192, 8192, 5000, 64, 0 };
    size_t size = sizes[env_virtual_below(&w->v, 5)];
    bool sync = env_virtual_below(&w->v, 8) == 0;
    uint64_t first, end, version = next_version(w, m);
    uint16_t status;

    random_range(w, env_virtual_below(&w->v, 2) == 0 ? 128 : 4, &first, &end);
    model_push(m, first, end, version, size);
    status = finish(
        w, world_write_start(w, 0, first, (unsigned)(end - first), version, size, sync));
    if (w->disk.is_cut)
        return false;
    if (status == ROZO__STATUS__BUSY) { /* nothing of it was stored */
        for (uint64_t b = first; b < end; b++)
            m->blocks[b].n--;
        assert_true(m->is_small);
        return true;
    }
    assert_int_equal(status, OK);
    m->made = true;
    if (sync) { /* makes stable what it wrote, and what was pending below it */
        m->stable = true;
        for (uint64_t b = first; b < end; b++)
            m->blocks[b].stable = m->blocks[b].n - 1;
    }
    return true;
}

static bool random_mark(struct world *w, struct model *m)
{
    uint64_t first, end, version = next_version(w, m);
    bool to_the_end = env_virtual_below(&w->v, 6) == 0;
    uint16_t status;

    random_range(w, env_virtual_below(&w->v, 2) == 0 ? 500 : 10, &first, &end);
    model_push(m, first, to_the_end ? BLOCKS : end, version, 0);
    status = finish(
        w, world_mark_start(w, 0, first, to_the_end ? 0 : end - first, version, false));
    if (w->disk.is_cut)
        return false;
    if (status == ROZO__STATUS__BUSY) {
        for (uint64_t b = first; b < (to_the_end ? BLOCKS : end); b++)
            m->blocks[b].n--;
        assert_true(m->is_small);
        return true;
    }
    assert_int_equal(status, OK);
    m->made = true;
    return true;
}

static bool random_sync(struct world *w, struct model *m)
{
    uint16_t status = world_sync(w);

    if (w->disk.is_cut)
        return false;
    assert_int_equal(status, m->made ? OK : ROZO__STATUS__NO_FILE);
    if (m->made)
        model_synced(m);
    return true;
}

static bool random_commit(struct world *w, struct model *m)
{
    if (m->synced <= m->committed)
        return true;
    assert_int_equal(world_commit(w, m->synced), OK);
    model_commit(m, m->synced);
    return true;
}

/* Drops versions newer than a random one, in a random range, under a fence. */
static bool random_drop(struct world *w, struct model *m)
{
    uint64_t keep = m->committed + env_virtual_below(&w->v, 10), first, end;
    uint32_t epoch = version_epoch(m->version);
    uint16_t status;

    random_range(w, 300, &first, &end);
    if (world_fence(w, epoch) != OK || w->disk.is_cut)
        return false;
    status = world_drop(w, first, end - first, keep, epoch);
    if (w->disk.is_cut) { /* dropped or not: both are possible */
        m->version = UINT64_MAX;
        return false;
    }
    assert_int_equal(status, OK);
    for (uint64_t b = first; b < end; b++) {
        struct block *x = &m->blocks[b];

        while (x->n > 1 && x->values[x->n - 1].version > keep)
            x->n--;
        x->stable = x->stable < x->n ? x->stable : x->n - 1;
    }
    if (m->made) {
        status = world_write(w, 0, first, 1, m->version + 1, 8192, false, NULL);
        assert_true(w->disk.is_cut || status == ROZO__STATUS__STALE_VERSION);
    }
    m->version = (uint64_t)(epoch + 1) << 32;
    return !w->disk.is_cut;
}

static bool random_step(struct world *w, struct model *m)
{
    if (is_full(m)) {
        if (!random_sync(w, m) || !random_commit(w, m))
            return false;
        m->made = m->made; /* all older values were dropped */
    }
    if (env_virtual_below(&w->v, 20) == 0)
        world_settle(w);
    switch (env_virtual_below(&w->v, 16)) {
    case 0:
        return random_mark(w, m);
    case 1:
        return random_sync(w, m);
    case 2:
        return random_commit(w, m);
    case 3:
        return random_drop(w, m);
    case 4:
        env_virtual_advance_ms(&w->v, env_virtual_below(&w->v, 3000));
        return !w->disk.is_cut;
    default:
        return random_write(w, m);
    }
}

static void world_with_journal(struct world *w, struct model *m, uint64_t seed)
{
    world_init(w, seed);
    model_init(m);
    w->layout = seed % 3;
    m->is_small = seed % 2 == 0;
    if (m->is_small) {
        w->config.journal_bytes = 1;
        world_restart(w, false);
    }
}

static void test_random_steps(void **state)
{
    static struct model m;

    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP) {
        struct world w;

        world_with_journal(&w, &m, seed);
        for (unsigned i = 0; i < 600; i++) {
            assert_true(random_step(&w, &m));
            if (i % 10 == 0)
                check_now(&w, &m);
            check_at_most(&w, &m);
            if (env_virtual_below(&w.v, 40) == 0) {
                world_restart(&w, false);
                check_now(&w, &m);
            }
        }
        if (random_sync(&w, &m))
            assert_int_equal(world_commit(&w, UINT64_MAX), OK);
        env_virtual_advance_ms(&w.v, 60000);
        assert_int_equal(world_health(&w).pending_records, 0);
        check_now(&w, &m);
        world_free(&w);
    }
}

/* Makes one run up to its power cut; the remaining state is allowed, and writes go on. */
static void run_with_cut(uint64_t seed, unsigned cut_at)
{
    static struct model m;
    struct world w;
    unsigned i = 0;

    world_with_journal(&w, &m, seed);
    while (i++ < 30 && random_step(&w, &m))
        ;
    w.disk.cut_at = w.disk.n_requests + cut_at;
    for (i = 0; i < 200 && random_step(&w, &m); i++)
        ;
    env_virtual_advance_ms(&w.v, 10000); /* calls that wait get BUSY */
    world_restart(&w, true);
    if (m.version != UINT64_MAX && check_cut(&w, &m)) {
        struct seen seen[100];
        uint64_t fresh = UINT64_C(1000) << 32;

        /* Writes go on. */
        assert_int_equal(world_commit(&w, UINT64_MAX), OK);
        env_virtual_advance_ms(&w.v, 60000);
        assert_int_equal(world_health(&w).pending_records, 0);
        for (unsigned b = 0; b < BLOCKS; b += 100) {
            uint16_t status = world_write(&w, 0, b, 100, fresh, 8192, true, NULL);

            if (status == ROZO__STATUS__STALE_VERSION) { /* some block is damaged */
                fresh += UINT64_C(1) << 32;
                status = world_write(&w, 0, b, 100, fresh, 8192, true, NULL);
            }
            assert_int_equal(status, OK);
            assert_int_equal(world_read(&w, 0, b, 100, seen, NULL), OK);
            for (i = 0; i < 100; i++)
                assert_int_equal(seen[i].version, fresh);
        }
    }
    world_free(&w);
}

static void test_power_cuts(void **state)
{
    (void)state;
    for (unsigned cut_at = 1; cut_at < 300; cut_at += UNIT_STEP)
        run_with_cut(cut_at % 11, cut_at);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_power_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
