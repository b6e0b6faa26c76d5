/*
 * Goal: a file is called sound only when every home that is not lost has the newest
 * version of all of it, stable and committed, and no other storage can have anything
 * else. A distribution grows only from that state, and readers and repairers still find
 * all that was acknowledged before.
 * Method: real storages on disks in memory (real.h); a sound file survives a power cut of
 * all of them.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/unit/heal/real.h"

enum {
    OK = ROZO__STATUS__OK,
    PROVE = REPAIR_PROVE | REPAIR_ALL_HOMES | REPAIR_CLEAN_SPARES,
};

static const uint64_t v1 = (uint64_t)1 << 32 | 1, v2 = (uint64_t)2 << 32 | 1;

static void run_start(struct real *r, struct run *run, unsigned own, uint32_t flags,
                      uint32_t lost)
{
    real_repair(r, run, own, (struct repair_request){ .flags = flags, .lost = lost });
}

static struct repair_result prove_end(struct real *r, struct run *run)
{
    struct repair_result m = real_run_end(r, run);

    assert_int_equal(m.sound, m.problem[0] == '\0');
    return m;
}

static struct repair_result prove(struct real *r, unsigned own, uint32_t more,
                                  uint32_t lost)
{
    struct run run;

    run_start(r, &run, own, PROVE | more, lost);
    return prove_end(r, &run);
}

/* Repairs as ST_REPAIR does. Returns the number of repairs until the file was sound; 0:
 * it is not. */
static unsigned prove_long(struct real *r, unsigned own, uint32_t lost)
{
    for (unsigned i = 1; i <= 5; i++) {
        struct repair_result m = prove(r, own, i > 2 ? REPAIR_FENCE : 0, lost);

        if (m.sound)
            return i;
    }
    return 0;
}

static void expect(struct real *r, uint64_t block, uint64_t version, uint32_t but)
{
    for (unsigned p = 0; p < r->n; p++) {
        uint64_t has = 0;

        if ((but >> p & 1) != 0)
            continue;
        assert_int_equal(real_read(r, p, p, block, 1, &has), OK);
        assert_int_equal(has, version);
    }
}

static struct real *begin(unsigned layout, unsigned c)
{
    struct real *r = malloc(sizeof(*r));

    real_init(r, 1, CODEC_MOJETTE, layout);
    r->target.n_storages = (uint8_t)c;
    return r;
}

static void end(struct real *r)
{
    real_close(r);
    free(r);
}

static void power_cut_all(struct real *r)
{
    for (unsigned i = 0; i < r->c; i++)
        real_restart(r, i, true);
}

/* A write without a sync and without a commit of its writer is made stable and
 * committed. */
static void what_is_sound_is_stable_and_committed(void **state)
{
    struct real *r = begin(0, 4);

    (void)state;
    real_write_homes(r, 0, 50, v1, 0, false);
    real_write_homes(r, 10, 5, v2, 0, false);
    for (unsigned p = 0; p < 3; p++)
        assert_int_equal(real_mark(r, p, p, 30, 4, v2), OK);
    for (unsigned p = 0; p < 3; p++)
        assert_int_equal(real_mark(r, p, p, 45, 0, v2), OK);
    assert_true(real_uncommitted(r) > 0);
    assert_true(prove(r, 1, 0, 0).sound);
    assert_int_equal(real_uncommitted(r), 0);
    power_cut_all(r);
    expect(r, 9, v1, 0);
    expect(r, 12, v2, 0);
    expect(r, 31, v2, 0);
    expect(r, 49, v2, 0);
    assert_true(prove(r, 0, 0, 0).sound);
    end(r);
}

static void missed_blocks_are_repaired_first(void **state)
{
    struct real *r = begin(0, 4);
    struct repair_result m;

    (void)state;
    real_write_homes(r, 0, 50, v1, 0, true);
    real_write_homes(r, 10, 5, v2, 1 << 2, true);
    /* handoff: a spare took it */
    assert_int_equal(real_write(r, 3, 2, 12, 1, v2, true), OK);
    m = prove(r, 0, 0, 0);
    assert_false(m.sound);
    assert_int_equal(m.healed, 5);
    assert_in_range(prove_long(r, 2, 0), 1, 2); /* the spare's copy is dropped */
    power_cut_all(r);
    expect(r, 12, v2, 0);
    end(r);
}

static void nobody_may_be_silent_or_in_doubt(void **state)
{
    struct real *r = begin(0, 4);

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    for (unsigned i = 0; i < 4; i++) {
        r->storages[i].up = false;
        assert_false(prove(r, (i + 1) % 4, 0, 0).sound);
        /* If it is lost, a spare gets what it lacks, and the file is sound. */
        assert_int_not_equal(prove_long(r, (i + 1) % 4, 1u << i), 0);
        r->storages[i].up = true;
        atomic_store(&r->storages[i].identity.losses, 1);
        assert_false(prove_long(r, 0, 0) != 0);
        atomic_store(&r->storages[i].identity.losses_healed, 1);
    }
    assert_int_not_equal(prove_long(r, 0, 0), 0);
    end(r);
}

/* A torn write whose writer may live is resolved only under a fence; then the file is
 * sound. */
static void a_torn_write_is_resolved_first(void **state)
{
    struct real *r = begin(0, 3);

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    assert_int_equal(real_write(r, 1, 1, 5, 2, v2, true), OK);
    for (unsigned i = 0; i < 3; i++)
        assert_false(prove(r, i, 0, 0).sound);
    assert_int_equal(prove_long(r, 0, 0), 4);
    expect(r, 5, v1, 0);
    power_cut_all(r);
    expect(r, 5, v1, 0);
    end(r);
}

static void an_empty_disk_is_filled_first(void **state)
{
    struct real *r = begin(0, 4);
    struct repair_result m;

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    assert_int_equal(real_mark(r, 0, 0, 15, 0, v2), OK);
    assert_int_equal(real_mark(r, 1, 1, 15, 0, v2), OK);
    real_replace(r, 2);
    m = prove(r, 0, 0, 0);
    assert_false(m.sound);
    assert_int_not_equal(prove_long(r, 0, 0), 0);
    power_cut_all(r);
    expect(r, 14, v1, 0);
    expect(r, 15, v2, 0);
    expect(r, 1000, v2, 0);
    end(r);
}

/* A file that was never written, as all storages say, is sound. */
static void a_file_without_projections_is_sound(void **state)
{
    struct real *r = begin(0, 3);

    (void)state;
    assert_true(prove(r, 0, 0, 0).sound);
    r->storages[1].up = false;
    assert_false(prove(r, 0, 0, 0).sound);
    r->storages[1].up = true;
    end(r);
}

/* A storage loses its power at any moment of the check: a file that is called sound stays
 * sound. */
static void a_loss_of_power_meanwhile(void **state)
{
    unsigned n_sound = 0;

    (void)state;
    for (unsigned ms = 0; ms < 60; ms += 2) {
        struct real *r = begin(0, 4);
        struct repair_result m;
        struct run run;

        real_write_homes(r, 0, 30, v1, 0, false);
        real_write_homes(r, 10, 5, v2, 0, false);
        run_start(r, &run, 0, PROVE, 0);
        real_run_ms(r, ms);
        real_restart(r, 1 + ms / 2 % 2, true);
        m = prove_end(r, &run);
        if (m.sound) {
            n_sound++;
            power_cut_all(r);
            expect(r, 12, v2, 0);
            expect(r, 20, v1, 0);
        }
        end(r);
    }
    assert_in_range(n_sound, 1, 29);
}

/* A home that was restarted after the proof is read at once, and it has all versions. */
static void a_restart_after_the_proof(void **state)
{
    (void)state;
    for (unsigned cut = 0; cut < 2; cut++) {
        struct real *r = begin(0, 4);

        real_write_homes(r, 0, 20, v1, 0, false);
        real_write_homes(r, 10, 5, v2, 0, false);
        assert_true(prove(r, 2, 0, 0).sound);
        for (unsigned i = 0; i < r->n; i++) {
            real_restart(r, i, cut == 1);
            expect(r, 5, v1, ~(1u << i));
            expect(r, 12, v2, ~(1u << i));
        }
        end(r);
    }
}

/* Storage X gets the place of a lost one, and another storage is appended. */
static void a_distribution_grows(void **state)
{
    (void)state;
    for (unsigned cut = 0; cut < 2; cut++) {
        struct real *r = begin(0, 3);
        struct storcli_target old;

        real_write_homes(r, 0, 50, v1, 0, false);
        real_write_homes(r, 10, 5, v2, 0, false);
        assert_int_equal(real_mark(r, 0, 0, 45, 0, v2), OK);
        assert_int_equal(real_mark(r, 1, 1, 45, 0, v2), OK);
        assert_int_equal(real_mark(r, 2, 2, 45, 0, v2), OK);
        r->storages[1].up = false; /* never comes back */
        assert_int_not_equal(prove_long(r, 0, 1 << 1), 0);
        old = r->target;
        r->target.storages[1] = 4;
        r->target.dist_generation = 1;
        assert_int_equal(real_redist(r, 0, 0), OK);
        assert_int_equal(real_redist(r, 3, 1 << 1), OK);
        if (cut == 1)
            power_cut_all(r);
        r->target = old;
        assert_int_equal(prove(r, 0, 0, 1 << 1).rc, -ROZO_EMOVED);
        assert_int_equal(prove(r, 2, 0, 1 << 1).rc,
                         -ROZO_EMOVED); /* without a new header */
        r->target.storages[1] = 4;
        r->target.dist_generation = 1;
        assert_false(prove(r, 0, 0, 0).sound);
        assert_int_not_equal(prove_long(r, 0, 0), 0);
        assert_int_equal(real_redist(r, 2, 0), OK);
        assert_true(prove(r, 2, 0, 0).sound);
        power_cut_all(r);
        for (unsigned i = 0; i < 4; i++) { /* home 1 is storage 3 now */
            uint64_t has = 0;

            if (i == 1)
                continue;
            assert_int_equal(real_read(r, i, i == 3 ? 1 : i, 12, 1, &has), OK);
            assert_int_equal(has, v2);
            assert_int_equal(real_read(r, i, i == 3 ? 1 : i, 49, 1, &has), OK);
            assert_int_equal(has, v2);
            assert_int_equal(real_read(r, i, i == 3 ? 1 : i, 20, 1, &has), OK);
            assert_int_equal(has, v1);
        }
        end(r);
    }
}

/* ---- fewer live candidates than a quorum ---- */

/* Storages 5 and 6 get the places of two lost candidates. */
static void two_are_replaced(struct real *r, unsigned a, unsigned b)
{
    unsigned fresh = 4;

    real_more(r, 2);
    r->target.dist_generation = 1;
    r->target.storages[a] = 5;
    r->target.storages[b] = 6;
    for (unsigned i = 0; i < 4; i++) {
        if (i != a && i != b)
            assert_int_equal(real_redist(r, i, 0), OK);
        else if (i < r->n)
            assert_int_equal(real_redist(r, fresh, 1u << i), OK);
        fresh += i == a || i == b;
    }
}

/* Goal: two of four candidates are lost for good. The other two are fewer than the
 * quorum, so nothing can be committed; yet the file is sound, and gets others in
 * their places. */
static void too_few_for_a_quorum_are_sound_uncommitted(void **state)
{
    struct real *r = begin(0, 4);
    uint64_t has = 0;

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    assert_true(prove(r, 0, 0, 0).sound); /* all is committed */
    real_write_homes(r, 5, 2, v2, 1 << 2, true);
    r->storages[2].up = r->storages[3].up = false;
    assert_int_not_equal(prove_long(r, 0, 12), 0);
    /* A storage that knows of a commit forgets v1, which the lost ones may bring back. */
    assert_int_equal(real_uncommitted(r), 4);
    power_cut_all(r);
    expect(r, 5, v2, 12);
    two_are_replaced(r, 2, 3);
    assert_false(prove(r, 0, 0, 0).sound);
    assert_int_not_equal(prove_long(r, 0, 0), 0);
    assert_int_equal(real_uncommitted(r), 0);
    assert_int_equal(real_read(r, 4, 2, 5, 1, &has), OK);
    assert_int_equal(has, v2);
    end(r);
}

/* Goal: the same with one home and a spare that stood in for another one. */
static void a_spare_that_stood_in_is_one_of_them(void **state)
{
    struct real *r = begin(0, 4);

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    r->storages[0].up = false;
    assert_int_not_equal(prove_long(r, 1, 1), 0);
    r->storages[1].up = false;
    assert_int_not_equal(prove_long(r, 2, 3), 0);
    two_are_replaced(r, 0, 1);
    assert_int_not_equal(prove_long(r, 2, 0), 0);
    power_cut_all(r);
    for (unsigned p = 0; p < 3; p++) {
        uint64_t has = 0;

        assert_int_equal(real_read(r, p == 2 ? 2 : p + 4, p, 7, 1, &has), OK);
        assert_int_equal(has, v1);
    }
    end(r);
}

/* Goal: what the live ones do not all have, or what the lost ones may have
 * acknowledged with one of them, is not sound; nor is a file of which fewer than k
 * are left. */
static void fewer_than_k_or_unlike_are_not_sound(void **state)
{
    struct real *r = begin(0, 4);

    (void)state;
    real_write_homes(r, 0, 20, v1, 0, true);
    assert_int_equal(real_write(r, 0, 0, 5, 2, v2, true), OK);
    r->storages[2].up = r->storages[3].up = false;
    assert_int_equal(prove_long(r, 0, 12), 0);
    end(r);
    r = begin(0, 4);
    real_write_homes(r, 0, 20, v1, 0, true);
    r->storages[1].up = r->storages[2].up = r->storages[3].up = false;
    assert_int_equal(prove_long(r, 0, 14), 0);
    end(r);
}

/* ---- by chance ---- */

enum { BLOCKS = 12, STEPS = 25 };

/* Does a random step of a client, or a failure of a storage; versions only grow. */
static void step_by_chance(struct real *r, unsigned epoch)
{
    unsigned p = (unsigned)env_virtual_below(&r->v, r->n);
    unsigned i = env_virtual_below(&r->v, 4) == 0 ? r->target.n_storages - 1u : p;
    uint64_t first = env_virtual_below(&r->v, BLOCKS - 3),
             version = version_make(epoch, 1);
    unsigned what = (unsigned)env_virtual_below(&r->v, 10);

    if (what < 5) { /* complete, or torn */
        for (p = 0; p < r->n; p++) {
            if (env_virtual_below(&r->v, 8) > 0 && r->storages[p].up)
                real_write(r, p, p, first, 3, version, env_virtual_below(&r->v, 2) == 0);
        }
    } else if (what == 5) {
        for (p = 0; p < r->n; p++) {
            if (env_virtual_below(&r->v, 8) > 0 && r->storages[p].up)
                real_mark(r, p, p, first, env_virtual_below(&r->v, 2) == 0 ? 0 : 3,
                          version);
        }
    } else if (what == 6 && r->storages[i].up) {
        real_write(r, i, p, first, 3, version, true);
    } else if (what == 7) {
        r->storages[i].up = !r->storages[i].up;
    } else if (what == 8) {
        real_restart(r, i, env_virtual_below(&r->v, 2) == 0);
    } else if (r->storages[i].up) {
        real_commit(r, i, 0, 0, version);
    }
}

/* Returns the version of a block at home p; 0: it has none, or no file. */
static uint64_t version_at(struct real *r, unsigned p, uint64_t block)
{
    uint64_t version = 0;
    uint16_t status = real_read(r, p, p, block, 1, &version);

    if (status == ROZO__STATUS__NO_FILE)
        return 0;
    assert_int_equal(status, OK);
    assert_true(version != UINT64_MAX); /* damaged */
    return version;
}

/* Checks that all homes that are not lost have the same, before and after a power cut. */
static void expect_alike(struct real *r, uint32_t lost)
{
    uint64_t has[2][BLOCKS + 1] = { 0 };

    for (unsigned again = 0; again < 2; again++) {
        for (unsigned b = 0; b <= BLOCKS; b++) {
            bool first = true;

            for (unsigned p = 0; p < r->n; p++) {
                uint64_t version;

                if ((lost >> p & 1) != 0)
                    continue;
                version = version_at(r, p, b < BLOCKS ? b : 1000);
                assert_true(first || has[again][b] == version);
                has[again][b] = version;
                first = false;
            }
        }
        if (again == 0)
            power_cut_all(r);
    }
    assert_memory_equal(has[0], has[1], sizeof(has[0]));
}

static void histories_by_chance(void **state)
{
    unsigned n_sound = 0, n_not = 0;

    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(60); seed += UNIT_STEP) {
        struct real *r = malloc(sizeof(*r));
        unsigned layout = seed % 4 == 3;

        real_init(r, seed, CODEC_MOJETTE, layout);
        r->target.n_storages = (uint8_t)(r->c - seed / 4 % 2);
        for (unsigned i = 0; i < STEPS; i++) {
            struct run run;
            unsigned own = (unsigned)env_virtual_below(&r->v, r->n);
            uint32_t lost = seed % 5 == 0 ? 1u << (own + 1) % r->n : 0;
            bool kill = env_virtual_below(&r->v, 3) == 0;

            step_by_chance(r, i + 2);
            if (env_virtual_below(&r->v, 3) > 0)
                continue;
            run_start(r, &run, own,
                      PROVE | (env_virtual_below(&r->v, 2) == 0 ? REPAIR_FENCE : 0),
                      lost);
            real_run_ms(r, env_virtual_below(&r->v, 40));
            if (kill)
                real_restart(r, (own + 1) % r->n, true);
            if (prove_end(r, &run).sound) {
                n_sound++;
                expect_alike(r, lost);
            } else {
                n_not++;
            }
        }
        for (unsigned i = 0; i < r->c; i++)
            r->storages[i].up = true;
        end(r);
    }
    assert_true(n_sound > 0 && n_not > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sound_is_stable_and_committed),
        cmocka_unit_test(missed_blocks_are_repaired_first),
        cmocka_unit_test(nobody_may_be_silent_or_in_doubt),
        cmocka_unit_test(a_torn_write_is_resolved_first),
        cmocka_unit_test(an_empty_disk_is_filled_first),
        cmocka_unit_test(a_file_without_projections_is_sound),
        cmocka_unit_test(a_loss_of_power_meanwhile),
        cmocka_unit_test(a_restart_after_the_proof),
        cmocka_unit_test(a_distribution_grows),
        cmocka_unit_test(too_few_for_a_quorum_are_sound_uncommitted),
        cmocka_unit_test(a_spare_that_stood_in_is_one_of_them),
        cmocka_unit_test(fewer_than_k_or_unlike_are_not_sound),
        cmocka_unit_test(histories_by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
