/*
 * Goal: marks, records, restarts and power cuts leave only states that the rules allow.
 * Method: random operations against a model of one version per block; the power is cut at
 * every disk request of a run in turn.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/storaged/world.h"

#define OK ROZO__STATUS__OK

enum { BLOCKS = 1400, STATES_MAX = 64 };

/* One possible state of a block: a version, and whether it is a record or a hole. */
struct value {
    uint64_t version;
    size_t user_bytes; /* 0: a hole */
};

/* Every value that a block had, or was asked to have, since the last sync, oldest
 * first. */
struct block {
    struct value values[STATES_MAX];
    unsigned n; /* the last value is the state unless the storage was stopped */
};

struct model {
    struct block blocks[BLOCKS];
    uint64_t version;
    bool made;   /* the projection file */
    bool synced; /* will survive a power cut */
};

static void model_init(struct model *m)
{
    memset(m, 0, sizeof(*m));
    for (unsigned b = 0; b < BLOCKS; b++)
        m->blocks[b].n = 1;
    m->version = UINT64_C(1) << 32;
}

static struct value model_now(const struct model *m, uint64_t b)
{
    return m->blocks[b].values[m->blocks[b].n - 1];
}

/* Adds the values of a request that was sent; its answer may be success or not. */
static void model_try(struct model *m, uint64_t first, uint64_t end, uint64_t version,
                      size_t user_bytes)
{
    for (uint64_t b = first; b < end && b < BLOCKS; b++) {
        struct block *x = &m->blocks[b];

        /* forgets a middle one, which allows less, never more */
        if (x->n == STATES_MAX) {
            memmove(&x->values[1], &x->values[2],
                    (STATES_MAX - 2) * sizeof(x->values[0]));
            x->n--;
        }
        x->values[x->n++] = (struct value){ version, user_bytes };
    }
}

static void model_sync(struct model *m)
{
    m->synced = m->made;
    for (unsigned b = 0; b < BLOCKS; b++) {
        m->blocks[b].values[0] = model_now(m, b);
        m->blocks[b].n = 1;
    }
}

static bool is_value(const struct seen *s, const struct value *v)
{
    if (s->version != v->version)
        return false;
    return v->user_bytes == 0 ? s->kind == SEEN_HOLE
                              : s->kind == SEEN_DATA && s->user_bytes == v->user_bytes;
}

static void check_all_now(struct world *w, struct model *m)
{
    struct seen seen[100];

    for (unsigned b = 0; m->made && b < BLOCKS; b += 100) {
        assert_int_equal(world_read(w, 0, b, 100, seen, NULL), OK);
        for (unsigned i = 0; i < 100; i++) {
            struct value v = model_now(m, b + i);

            if (!is_value(&seen[i], &v))
                print_message("block %u: kind %d version %llx, not %llx (%zu bytes)\n",
                              b + i, (int)seen[i].kind,
                              (unsigned long long)seen[i].version,
                              (unsigned long long)v.version, v.user_bytes);
            assert_true(is_value(&seen[i], &v));
        }
    }
}

/* Checks that each block, after a power cut, has a value since the last sync, or is
 * damaged if there were several. */
static void check_all_allowed(struct world *w, struct model *m)
{
    struct seen seen[100];
    uint16_t status = ROZO__STATUS__NO_FILE;

    for (unsigned b = 0; b < BLOCKS; b += 100) {
        status = world_read(w, 0, b, 100, seen, NULL);
        if (status != OK) {
            assert_true(status == ROZO__STATUS__NO_FILE ||
                        status == ROZO__STATUS__DAMAGED);
            assert_false(m->synced); /* a synced value is never refused */
            m->made = false;
            break;
        }
        m->made = true;
        for (unsigned i = 0; i < 100; i++) {
            struct block *x = &m->blocks[b + i];
            bool allowed = seen[i].kind == SEEN_DAMAGED && x->n > 1;

            for (unsigned k = 0; k < x->n; k++)
                allowed |= is_value(&seen[i], &x->values[k]);
            if (!allowed)
                print_message(
                    "block %u: kind %d version %llx of %u values, first %llx (%zu)\n",
                    b + i, (int)seen[i].kind, (unsigned long long)seen[i].version, x->n,
                    (unsigned long long)x->values[0].version, x->values[0].user_bytes);
            assert_true(allowed);
        }
    }
}

static uint64_t next_version(struct world *w, struct model *m)
{
    if (env_virtual_below(&w->v, 10) == 0) /* opened again */
        m->version = ((m->version >> 32) + 1) << 32;
    return ++m->version;
}

static void random_range(struct world *w, uint64_t max, uint64_t *first, uint64_t *end)
{
    *first = env_virtual_below(&w->v, BLOCKS);
    if (env_virtual_below(&w->v, 3) == 0)
        *first = *first / 128 * 128;
    *end = *first + 1 + env_virtual_below(&w->v, max);
    if (*end > BLOCKS)
        *end = BLOCKS;
}

/* Writes at random. Returns false when the power was cut. */
static bool random_write(struct world *w, struct model *m)
{
    static const size_t sizes[] = { 8192, 8192, 5000, 64, 0 };
    size_t size = sizes[env_virtual_below(&w->v, 5)];
    uint64_t first, end, version = next_version(w, m);
    bool sync = env_virtual_below(&w->v, 8) == 0;
    uint16_t status;

    random_range(w, 128, &first, &end);
    model_try(m, first, end, version, size);
    status = world_write(w, 0, first, (unsigned)(end - first), version, size, sync, NULL);
    if (w->disk.is_cut)
        return false;
    assert_int_equal(status, OK);
    m->made = true;
    if (sync)
        model_sync(m);
    return true;
}

static bool random_mark(struct world *w, struct model *m)
{
    uint64_t first, end, version = next_version(w, m);
    bool to_the_end = env_virtual_below(&w->v, 6) == 0;
    uint16_t status;

    random_range(w, env_virtual_below(&w->v, 2) == 0 ? 1000 : 10, &first, &end);
    model_try(m, first, to_the_end ? BLOCKS : end, version, 0);
    status = world_mark(w, 0, first, to_the_end ? 0 : end - first, version);
    if (w->disk.is_cut)
        return false;
    assert_int_equal(status, OK);
    m->made = true;
    return true;
}

/* Writes an older version than the one in place: it is refused, and nothing changes. */
static bool random_stale(struct world *w, struct model *m)
{
    uint64_t first, end, newest = 0;
    uint16_t status;

    random_range(w, 128, &first, &end);
    for (uint64_t b = first; b < end; b++)
        newest = model_now(m, b).version > newest ? model_now(m, b).version : newest;
    if (newest < 2 || !m->made)
        return true;
    if (env_virtual_below(&w->v, 2) == 0)
        status = world_write(w, 0, first, (unsigned)(end - first), newest - 1, 8192,
                             false, NULL);
    else
        status = world_mark(w, 0, first, end - first, newest - 1);
    if (w->disk.is_cut)
        return false;
    assert_int_equal(status, ROZO__STATUS__STALE_VERSION);
    return true;
}

/* Sends a late mark: newer records stay, older ones between them become holes. */
static bool random_mark_below(struct world *w, struct model *m)
{
    uint64_t first, end, version = m->version - env_virtual_below(&w->v, 20);
    bool to_the_end = env_virtual_below(&w->v, 6) == 0;
    uint16_t status;

    random_range(w, env_virtual_below(&w->v, 2) == 0 ? 1000 : 10, &first, &end);
    for (uint64_t b = first; b < (to_the_end ? BLOCKS : end); b++) {
        if (model_now(m, b).version == version)
            return true; /* each version is used once, for a record or a mark */
    }
    for (uint64_t b = first; b < (to_the_end ? BLOCKS : end); b++) {
        if (model_now(m, b).version < version)
            model_try(m, b, b + 1, version, 0);
    }
    status = world_mark_below(w, 0, first, to_the_end ? 0 : end - first, version);
    if (w->disk.is_cut)
        return false;
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
        model_sync(m);
    return true;
}

static void random_next(struct world *w, struct model *m)
{
    uint64_t from = env_virtual_below(&w->v, BLOCKS), b = from, block;

    if (!m->made || world_next(w, from, &block) != OK)
        return;
    while (b < BLOCKS && model_now(m, b).version == 0)
        b++;
    assert_true(b == BLOCKS ? block >= BLOCKS : block == b);
}

static bool random_step(struct world *w, struct model *m, bool with_next)
{
    if (env_virtual_below(&w->v, 12) == 0)
        world_settle(w);
    switch (env_virtual_below(&w->v, 10)) {
    case 0:
    case 1:
    case 2:
    case 3:
        return random_write(w, m);
    case 4:
    case 5:
        return random_mark(w, m);
    case 6:
        return random_mark_below(w, m);
    case 7:
        return random_stale(w, m);
    case 8:
        return random_sync(w, m);
    default:
        if (with_next)
            random_next(w, m);
        return true;
    }
}

/* Takes thousands of steps with restarts, and checks every block after every few of
 * them. */
static void test_random_steps_against_the_model(void **state)
{
    static struct model m;

    (void)state;
    for (unsigned seed = 0; seed < 3; seed++) {
        struct world w;

        world_init(&w, seed);
        w.layout = seed % 3;
        model_init(&m);
        for (unsigned i = 0; i < 500; i++) {
            assert_true(random_step(&w, &m, true));
            if (i % 25 == 0)
                check_all_now(&w, &m);
            if (env_virtual_below(&w.v, 60) == 0)
                world_restart(&w, false);
        }
        check_all_now(&w, &m);
        world_free(&w);
    }
}

/* Writes mark i of a row of ranges that do not touch; a page cannot hold all of them. */
static uint16_t mark_in_row(struct world *w, unsigned i)
{
    return world_mark(w, 0, 1000 + 260 * (uint64_t)i, 257 + i % 2,
                      (UINT64_C(5) << 32) + i);
}

static void check_marks_in_row(struct world *w, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t first = 1000 + 260 * (uint64_t)i, end = first + 257 + i % 2;
        struct seen seen[2];

        assert_int_equal(world_read(w, 0, first, 1, seen, NULL), OK);
        assert_int_equal(seen[0].version, (UINT64_C(5) << 32) + i);
        assert_int_equal(world_read(w, 0, end - 1, 2, seen, NULL), OK);
        assert_int_equal(seen[0].kind, SEEN_HOLE);
        assert_int_equal(seen[0].version, (UINT64_C(5) << 32) + i);
        assert_int_equal(seen[1].version, 0);
    }
}

/* The smallest marks go into heads when the mark page is full, and survive there, too. */
static void test_marks_overflow_into_heads(void **state)
{
    struct world w;
    unsigned n_before;

    (void)state;
    world_init(&w, 3);
    w.auto_apply = true;
    for (unsigned i = 0; i < 250; i++)
        assert_int_equal(mark_in_row(&w, i), OK);
    check_marks_in_row(&w, 250);
    assert_true(w.disk.n_of[DISK_SYNC] >= 250 - 169);
    world_restart(&w, false);
    check_marks_in_row(&w, 250);
    world_free(&w);

    for (unsigned seed = 0; seed < unit_seeds(60); seed += UNIT_STEP) {
        world_init(&w, seed);
        w.auto_apply = true;
        for (unsigned i = 0; i < 168; i++)
            assert_int_equal(mark_in_row(&w, i), OK);
        assert_int_equal(world_sync(&w), OK);
        n_before = w.disk.n_requests;
        w.disk.cut_at = n_before + 1 + seed % 40;
        for (unsigned i = 168; !w.disk.is_cut; i++)
            mark_in_row(&w, i);
        world_restart(&w, true);
        check_marks_in_row(&w, 168);
        world_free(&w);
    }
}

/* Checks that the file accepts new records everywhere, unless it is damaged as a
 * whole. */
static void check_still_serves(struct world *w, struct model *m)
{
    uint64_t version = UINT64_C(1000) << 32;

    for (unsigned b = 0; b < BLOCKS; b += 100) {
        uint16_t status = world_write(w, 0, b, 100, version, 8192, true, NULL);

        if (status ==
            ROZO__STATUS__STALE_VERSION) { /* some block is damaged: take a new epoch */
            version += UINT64_C(1) << 32;
            status = world_write(w, 0, b, 100, version, 8192, true, NULL);
        }
        assert_int_equal(status, OK);
        model_try(m, b, b + 100, version, 8192);
    }
    m->made = true;
    check_all_now(w, m);
}

/* Makes one run up to its power cut; the remaining state is allowed, and writes go on. */
static void run_with_cut(uint64_t seed, unsigned cut_at)
{
    static struct model m;
    struct world w;
    unsigned i = 0;

    world_init(&w, seed);
    model_init(&m);
    w.disk.cut_at = cut_at;
    while (i++ < 40 && random_step(&w, &m, false))
        ;
    world_restart(&w, true);
    check_all_allowed(&w, &m);
    check_still_serves(&w, &m);
    world_free(&w);
}

static void test_power_cuts_at_every_disk_request(void **state)
{
    (void)state;
    for (unsigned cut_at = 1; cut_at < 160; cut_at += UNIT_STEP)
        run_with_cut(cut_at % 7, cut_at);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps_against_the_model),
        cmocka_unit_test(test_marks_overflow_into_heads),
        cmocka_unit_test(test_power_cuts_at_every_disk_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
