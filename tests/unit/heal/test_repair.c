/*
 * Goal: a repair heals what was missed, damaged, torn or cut off with no more requests
 * than needed, and leaves alone what cannot be known.
 * Method: storages in memory that keep versions below versions (fake.h), one case at a
 * time. Then random histories, interrupted drivers, two drivers at once, and storages
 * that come and go: at the end every home has the same version of every block, in
 * whatever order drivers worked.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "tests/unit/heal/fake.h"
#include "tests/unit/heal/run.h"

enum { ALL = REPAIR_ALL_HOMES, SETTLE = REPAIR_ALL_HOMES | REPAIR_FENCE };

static const uint64_t v1 = (uint64_t)1 << 32 | 1, v2 = (uint64_t)2 << 32 | 1,
                      v3 = (uint64_t)3 << 32 | 1;

/* limits of the repairers under test */
static struct repairer_config config;

/* Starts a repair of the target; the request needs no target. */
static void request_start(struct fake *f, struct run *run, unsigned driver, unsigned own,
                          struct repair_request request)
{
    config.env = &f->v.env;
    config.peers = fake_peers(f, driver);
    config.own_storage = own + 1;
    config.deadline_ms = 1000;
    request.target = f->target;
    run_begin(run, &config, &request);
}

static void run_start(struct fake *f, struct run *run, unsigned driver, unsigned own,
                      uint32_t flags, uint64_t first, uint64_t n)
{
    request_start(
        f, run, driver, own,
        (struct repair_request){ .first_block = first, .n_blocks = n, .flags = flags });
}

static struct repair_result request_now(struct fake *f, unsigned own,
                                        struct repair_request request)
{
    struct run run;

    request_start(f, &run, 0, own, request);
    assert_true(env_virtual_run_until_idle(&f->v, 600000));
    return run_end(&run);
}

static struct repair_result repair_now(struct fake *f, unsigned own, uint32_t flags,
                                       uint64_t first, uint64_t n)
{
    return request_now(
        f, own,
        (struct repair_request){ .first_block = first, .n_blocks = n, .flags = flags });
}

/* Writes at all homes except those in `but`. */
static void write_homes(struct fake *f, uint64_t first, uint64_t n, uint64_t version,
                        uint32_t but)
{
    for (uint64_t b = first; b < first + n; b++) {
        for (unsigned p = 0; p < f->n; p++) {
            if ((but >> p & 1) == 0)
                assert_true(fake_write(f, p, p, b, version, true));
        }
    }
}

static void commit_all(struct fake *f, uint64_t first, uint64_t n, uint64_t version)
{
    for (uint64_t b = first; b < first + n; b++) {
        for (unsigned i = 0; i < f->c; i++)
            fake_commit(f, i, b, version);
    }
}

static void expect_all(struct fake *f, uint64_t first, uint64_t n, uint64_t version)
{
    for (uint64_t b = first; b < first + n; b++)
        fake_expect(f, b, version, true);
}

static void a_home_gets_missed_blocks(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 1, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 300, v1, 0);
    write_homes(&f, 100, 100, v2, 1 << 2);
    commit_all(&f, 100, 100, v2);
    r = repair_now(&f, 2, 0, 100, 100);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.stale, 100);
    assert_int_equal(r.healed, 100);
    assert_int_equal(r.undecided + r.failed + r.missing + r.damaged, 0);
    assert_false(r.fenced);
    assert_int_equal(f.n_read_blocks, 4 * 100); /* k bodies for each block, not more */
    expect_all(&f, 100, 100, v2);
    expect_all(&f, 0, 100, v1);
    r = repair_now(&f, 2, 0, 0, 0);
    assert_int_equal(r.healed + r.stale, 0);
    assert_int_equal(r.looked_at, 300);
    assert_int_equal(f.n_read_blocks, 4 * 100);
    fake_close(&f);
}

/* A home missed a write and was repaired; a power failure took the bodies, but not the
 * heads. They count as missed again. */
static void what_is_left_of_what_it_missed_is_not_believed(void **state)
{
    (void)state;
    for (unsigned torn = 0; torn < 2; torn++) {
        struct fake f;
        struct repair_result r;
        struct repair_request request = { .n_blocks = 128,
                                          .passed_first = 20,
                                          .passed_end = 30 };

        fake_init(&f, 240, CODEC_MOJETTE, 1);
        write_homes(&f, 0, 100, v1, 0);
        write_homes(&f, 25, 5, v2, 1 << 2);
        commit_all(&f, 25, 5, v2);
        f.storages[2].may_be_torn = torn != 0;
        for (unsigned b = 20; b < 25; b++)
            fake_top(&f, 2, 2, b)->rotten = true;
        r = request_now(&f, 2, request);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.stale, 5);
        assert_int_equal(r.damaged, torn * 5);
        assert_int_equal(r.healed, 5 + torn * 5);
        /* no more bodies than that */
        assert_int_equal(f.n_read_blocks, 4 * 5 + torn * (5 + 4 * 5));
        for (unsigned b = 20; b < 30; b++)
            assert_int_equal(fake_top(&f, 2, 2, b)->rotten, torn == 0 && b < 25);
        fake_close(&f);
    }
}

/* Checks that the first n blocks of that projection are gone from the storage. */
static void expect_dropped(struct fake *f, unsigned storage, unsigned p, unsigned n)
{
    for (unsigned b = 0; b < n; b++)
        assert_null(fake_top(f, storage, p, b));
}

static void what_a_spare_took_is_copied_and_dropped(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 2, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 50, v1, 1 << 1);
    for (unsigned b = 0; b < 50; b++)
        assert_true(fake_write(&f, 3, 1, b, v1, true));
    r = repair_now(&f, 1, REPAIR_CLEAN_SPARES, 0, 50);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.missing, 50);
    assert_int_equal(r.healed, 50);
    assert_int_equal(f.n_read_blocks, 50);
    assert_int_equal(r.cleaned, 50);
    expect_all(&f, 0, 50, v1);
    expect_dropped(&f, 3, 1, 50);
    fake_close(&f);
}

/* Makes 20 blocks at all homes, and at a spare the projection of home 2, as after a
 * handoff. */
static void write_handoff(struct fake *f, unsigned seed)
{
    fake_init(f, seed, CODEC_MOJETTE, 0);
    write_homes(f, 0, 20, v1, 0);
    for (unsigned b = 0; b < 20; b++)
        assert_true(fake_write(f, 3, 2, b, v1, true));
}

static const uint32_t cleaning[] = { REPAIR_CLEAN_SPARES,
                                     REPAIR_CLEAN_SPARES | REPAIR_VERIFY_OWN,
                                     SETTLE | REPAIR_CLEAN_SPARES };

/* A power failure took a body from home 2 and left its head: no driver drops the spare's
 * copy until the home has the body again. */
static void a_spare_keeps_what_its_home_has_but_a_head_of(void **state)
{
    static const unsigned others[] = { 0, 1, 3 };

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake f;
        struct repair_result r;

        write_handoff(&f, 200 + i);
        fake_top(&f, 2, 2, 7)->rotten = true;
        for (unsigned j = 0; j < 3; j++) {
            r = repair_now(&f, others[j], cleaning[i], 0, 0);
            assert_int_equal(r.rc, 0);
            assert_int_equal(r.damaged + r.cleaned, 0);
            for (unsigned b = 0; b < 20; b++)
                assert_int_equal(fake_top(&f, 3, 2, b)->version, v1);
        }
        f.storages[3].up = false; /* made from the other homes */
        r = repair_now(&f, 2, cleaning[i] | REPAIR_VERIFY_OWN, 0, 0);
        assert_int_equal(r.healed, 1);
        assert_int_equal(r.cleaned, 0);
        f.storages[3].up = true;
        fake_top(&f, 2, 2, 7)->rotten = true;
        r = repair_now(&f, 2, cleaning[i], 0, 0);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.damaged, 1);
        assert_int_equal(r.healed, 1);
        assert_int_equal(r.cleaned, 20);
        expect_all(&f, 0, 20, v1);
        expect_dropped(&f, 3, 2, 20);
        fake_close(&f);
    }
}

/* Only the home itself drops its projection from spares: other drivers read no bodies for
 * that, and it reads only its own. */
static void spares_drop_blocks_that_a_home_has_read(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t whole = (cleaning[i] & REPAIR_VERIFY_OWN) != 0 ? 40 : 0;
        struct fake f;
        struct repair_result r;

        write_handoff(&f, 210 + i);
        write_homes(&f, 20, 20, v1, 0);
        r = repair_now(&f, 0, cleaning[i], 0, 0);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.cleaned, 0);
        assert_int_equal(f.n_read_blocks, whole);
        f.n_read_blocks = 0;
        r = repair_now(&f, 2, cleaning[i], 0, 0);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.damaged + r.healed, 0);
        assert_int_equal(r.cleaned, 20);
        assert_int_equal(f.n_read_blocks, whole != 0 ? whole : 20);
        expect_dropped(&f, 3, 2, 20);
        r = repair_now(&f, 2, cleaning[i], 0, 0);
        assert_int_equal(r.cleaned, 0);
        fake_close(&f);
    }
}

/* Home 1 took the projection that home 2 lost, since a spare had its own: three
 * projections on three storages. By the head that is left at home 2 the spare does not
 * seem to be needed. */
static void a_spare_keeps_what_counts_beside_its_home(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 230 + i, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 20, v1, 0);
        for (unsigned b = 0; b < 20; b++) {
            assert_true(fake_write(&f, 3, 1, b, v1, true));
            assert_true(fake_write(&f, 1, 2, b, v1, true));
            fake_top(&f, 2, 2, b)->rotten = true;
        }
        for (unsigned own = 0; own < 2; own++) {
            r = repair_now(&f, own, cleaning[i], 0, 0);
            assert_int_equal(r.rc, 0);
            assert_int_equal(r.cleaned, 0);
        }
        r = repair_now(&f, 2, cleaning[i], 0, 0);
        assert_int_equal(r.healed, 20);
        assert_int_equal(r.cleaned, 20); /* copies of projection 2 */
        r = repair_now(&f, 1, cleaning[i], 0, 0);
        assert_int_equal(r.cleaned, 20); /* copies of projection 1 */
        expect_all(&f, 0, 20, v1);
        expect_dropped(&f, 3, 1, 20);
        expect_dropped(&f, 1, 2, 20);
        fake_close(&f);
    }
}

/* Makes 20 blocks of which n homes each hold the copy of the next one, in a circle. */
static void write_circle(struct fake *f, unsigned seed, unsigned n)
{
    fake_init(f, seed, CODEC_MOJETTE, 0);
    write_homes(f, 0, 20, v1, 0);
    for (unsigned b = 0; b < 20; b++) {
        for (unsigned i = 0; i < n; i++)
            assert_true(fake_write(f, i, (i + 1) % n, b, v1, true));
    }
}

/* Homes stand in for each other. Any of them reads what the others have and ends it, but
 * a storage that is in no circle reads nothing of others. */
static void homes_that_stand_in_for_each_other_drop_their_copies(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3 * 2; i++) {
        unsigned n = 2 + i % 2;
        uint32_t flags = cleaning[i / 2];
        struct fake f;
        struct repair_result r;

        write_circle(&f, 240 + i, n);
        if (n == 2) {
            r = repair_now(&f, 2, flags, 0, 0);
            assert_int_equal(f.n_read_blocks, (flags & REPAIR_VERIFY_OWN) != 0 ? 20 : 0);
            assert_int_equal(r.cleaned, 0);
        }
        f.n_read_blocks = 0;
        r = repair_now(&f, 1, flags, 0, 0);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.damaged + r.healed, 0);
        assert_int_equal(r.cleaned, 20 * n);
        assert_int_equal(f.n_read_blocks,
                         20 * n + ((flags & REPAIR_VERIFY_OWN) != 0 ? 20 : 0));
        expect_all(&f, 0, 20, v1);
        for (unsigned j = 0; j < n; j++)
            expect_dropped(&f, j, (j + 1) % n, 20);
        fake_close(&f);
    }
}

static bool is_readable(struct fake *f, unsigned storage, unsigned p, unsigned b)
{
    const struct fake_layer *top = fake_top(f, storage, p, b);

    return top != NULL && top->data && !top->rotten;
}

/* One of two homes that stand in for each other has but a head of its own. The copies
 * count then: they stay until it has its body again. */
static void copies_in_a_circle_stay_while_they_count(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake f;
        struct repair_result r;

        write_circle(&f, 250 + i, 2);
        for (unsigned b = 0; b < 20; b += 2)
            fake_top(&f, 1, 1, b)->rotten = true;
        f.storages[2].up = false; /* the file cannot be repaired as a whole */
        repair_now(&f, 0, cleaning[i], 0, 0);
        f.storages[2].up = true;
        repair_now(&f, 0, cleaning[i] & ~(uint32_t)REPAIR_ALL_HOMES, 0, 0);
        for (unsigned b = 0; b < 20; b++) {
            bool has_own = is_readable(&f, 1, 1, b);

            assert_int_equal(has_own, b % 2 != 0 || (cleaning[i] & REPAIR_ALL_HOMES));
            assert_true(has_own ||
                        (is_readable(&f, 0, 1, b) && is_readable(&f, 1, 0, b)));
        }
        r = repair_now(&f, 1, cleaning[i], 0, 0);
        assert_int_equal(r.rc, 0);
        expect_all(&f, 0, 20, v1);
        expect_dropped(&f, 0, 1, 20);
        expect_dropped(&f, 1, 0, 20);
        fake_close(&f);
    }
}

static unsigned n_syncs; /* syncs sent to storage 2 */

/* Refuses storage 2's first sync, so that its verifier is unknown; cuts its power just
 * before a write to it. */
static int refuse_the_first_sync(struct fake *f, unsigned storage, uint16_t op)
{
    if (storage == 2 && op == ROZO__OP__ST_WRITE)
        fake_power_cut(f, 2);
    return storage == 2 && op == ROZO__OP__ST_SYNC && n_syncs++ == 0 ? ROZO__STATUS__BUSY
                                                                     : ROZO__STATUS__OK;
}

/* The home's bodies were read, but were not stable and are lost when the spare would drop
 * its copies. The verifier from before is unknown, so they stay. */
static void a_spare_keeps_what_its_home_may_have_lost_since(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 220 + i, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 20, v1, 1 << 2);
        for (unsigned b = 0; b < 20; b++) {
            assert_true(fake_write(&f, 3, 2, b, v1, true));
            if (b != 9)
                assert_true(fake_write(&f, 2, 2, b, v1, false));
        }
        n_syncs = 0;
        f.refuse = refuse_the_first_sync;
        r = repair_now(&f, 2, cleaning[i], 0, 0);
        assert_int_equal(n_syncs, 2);
        assert_int_equal(r.healed, 1);
        assert_int_equal(r.cleaned, 1); /* written by the repair itself */
        f.refuse = NULL;
        for (unsigned b = 0; b < 20; b++) {
            unsigned holder = b == 9 ? 2 : 3;

            assert_int_equal(fake_top(&f, holder, 2, b)->version, v1);
        }
        fake_close(&f);
    }
}

static void own_projections_are_read_completely_and_rebuilt(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 3, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 128, v1, 0);
    fake_top(&f, 4, 4, 7)->rotten = true;
    fake_top(&f, 4, 4, 9)->damaged = true;
    /* damage of another home, whose body a repair of 7 may need */
    fake_top(&f, 5, 5, 7)->rotten = true;
    r = repair_now(&f, 4, 0, 0, 128);
    assert_int_equal(r.damaged, 1); /* heads show no more */
    f.storages[4].cut_bytes = 1;    /* bodies that were not read do not count as valid */
    assert_int_equal(repair_now(&f, 4, REPAIR_VERIFY_OWN, 0, 128).rc, -EIO);
    f.storages[4].cut_bytes = 0;
    r = repair_now(&f, 4, REPAIR_VERIFY_OWN, 0, 128);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.damaged, 1);
    assert_int_equal(r.healed, 1);
    r = repair_now(&f, 5, REPAIR_VERIFY_OWN, 0, 128);
    assert_int_equal(r.healed, 1);
    r = repair_now(&f, 5, REPAIR_FENCE, 0, 128);
    assert_false(r.fenced); /* nothing to resolve */
    expect_all(&f, 0, 128, v1);
    fake_close(&f);
}

static void a_torn_version_is_resolved_only_under_a_fence(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 4, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 20, v1, 0);
    for (unsigned b = 5; b < 10; b++) { /* three of the four needed */
        for (unsigned p = 0; p < 3; p++)
            assert_true(fake_write(&f, p, p, b, v2, true));
    }
    for (unsigned b = 12; b < 15; b++) { /* four: can be completed */
        for (unsigned p = 1; p < 5; p++)
            assert_true(fake_write(&f, p, p, b, v2, true));
    }
    r = repair_now(&f, 0, 0, 0, 20);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.stale, 3); /* projection 0 of 12, 13, 14 */
    assert_int_equal(fake_top(&f, 0, 0, 5)->version, v2);
    assert_int_equal(fake_top(&f, 5, 5, 12)->version, v1);
    r = repair_now(&f, 3, SETTLE, 0, 20);
    assert_int_equal(r.rc, 0);
    assert_true(r.fenced);
    assert_int_equal(r.dropped, 5);
    assert_int_equal(r.undecided, 0);
    for (unsigned b = 0; b < 20; b++)
        fake_expect(&f, b, b >= 12 && b < 15 ? v2 : v1, true);
    assert_false(fake_write(&f, 0, 0, 5, v2, true)); /* too late: fenced */
    assert_true(fake_write(&f, 0, 0, 5, v3, true));
    fake_close(&f);
}

/* A home and a spare have the same projection: three storages have the version, but a
 * reader counts only two projections of three. */
static void two_copies_of_one_projection_are_not_committed(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 61, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 1, v1, 0);
    assert_true(fake_write(&f, 1, 1, 0, v2, true));
    assert_true(fake_write(&f, 3, 0, 0, v2, true));
    r = repair_now(&f, 0, 0, 0, 1); /* repairs projection 0 only */
    assert_int_equal(r.healed, 1);
    assert_int_equal(fake_top(&f, 0, 0, 0)->version, v2);
    assert_true(fake_top(&f, 0, 0, 0)->pending); /* the version below is still readable */
    assert_true(fake_top(&f, 1, 1, 0)->pending);
    r = repair_now(&f, 0, SETTLE, 0, 1);
    assert_int_equal(r.rc, 0);
    fake_expect(&f, 0, v2, true);
    fake_close(&f);
}

static unsigned n_told; /* storages that got the first fence */

static void all_go_away(struct fake *f, unsigned storage, uint16_t op)
{
    (void)storage;
    if (op != ROZO__OP__ST_FENCE || ++n_told < f->c)
        return;
    for (unsigned i = 0; i < f->c; i++)
        f->storages[i].up = false;
}

/* One extent waits for a fence, another one for a newer fence after it, and then no
 * storage is reachable any more. */
static void a_repair_ends_when_all_go_away_before_its_second_fence(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 10; seed++) { /* the order of answers differs */
        struct fake f;
        struct repair_result r;

        fake_init(&f, seed, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 1, v1, 0);
        write_homes(&f, 200, 1, v1, 0);
        assert_true(fake_write(&f, 0, 0, 0, v2, true));
        assert_true(fake_write(&f, 0, 0, 200, v3, true));
        f.before = all_go_away;
        f.delay_ms = 50;
        n_told = 0;
        r = repair_now(&f, 0, SETTLE, 0, 256);
        assert_int_equal(r.dropped, 0);
        assert_true(r.undecided > 0);
        fake_close(&f);
    }
}

/* A file of three candidates: a disk was replaced, and a torn write is on one storage. It
 * may have been acknowledged by two if that was enough when it was made, and never if the
 * layout's quorum was needed. */
static void a_torn_write_and_a_new_disk(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 9, CODEC_MOJETTE, 0);
        f.c = f.target.n_storages = 3;
        f.target.full_quorum = full != 0;
        write_homes(&f, 0, 4, v1, 0);
        assert_true(fake_write(&f, 1, 1, 2, v2, true));
        fake_replace(&f, 2);
        f.storages[2].projections[2].here = true;
        r = repair_now(&f, 0, SETTLE, 0, 4);
        assert_int_equal(r.undecided, full ? 0 : 1);
        assert_int_equal(r.dropped, full);
        assert_int_equal(fake_top(&f, 1, 1, 2)->version, full ? v1 : v2);
        if (full)
            expect_all(&f, 0, 4, v1);
        fake_close(&f);
    }
}

/* A repair that does not know full_quorum, since its target comes from the journal, must
 * not commit by the smaller quorum: after the loss of a disk a repair that knows it would
 * take the block for one that was never written. */
static void a_commit_needs_the_larger_quorum(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 9, CODEC_MOJETTE, 0);
    f.c = f.target.n_storages = 3;
    write_homes(&f, 0, 4, v1, 0);
    commit_all(&f, 0, 4, v1);
    f.storages[2].up = false;
    assert_true(fake_write(&f, 0, 0, 2, v2, true));
    assert_true(fake_write(&f, 1, 1, 2, v2, true));
    repair_now(&f, 0, SETTLE, 0, 4);
    assert_true(fake_top(&f, 0, 0, 2)->pending && fake_top(&f, 1, 1, 2)->pending);
    f.storages[2].up = true;
    fake_replace(&f, 1);
    f.storages[1].projections[1].here = true;
    f.target.full_quorum = true;
    r = repair_now(&f, 0, SETTLE, 0, 4);
    assert_int_equal(r.undecided, 0);
    expect_all(&f, 0, 4, v1);
    fake_close(&f);
}

/* A stop may leave half of a head: then the version has epoch 0. */
static void the_first_write_is_rolled_back_too(void **state)
{
    const uint64_t versions[] = { v1, 1 };
    struct repair_result r;
    struct fake f;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        fake_init(&f, 5, CODEC_MOJETTE, 0);
        assert_true(fake_write(&f, 1, 1, 77, v1, false));
        fake_top(&f, 1, 1, 77)->version = versions[i];
        r = repair_now(&f, 1, SETTLE, 0, 0);
        assert_int_equal(r.rc, 0);
        assert_true(r.fenced);
        assert_int_equal(r.dropped, 1);
        assert_int_equal(r.undecided, 0);
        assert_null(fake_top(&f, 1, 1, 77));
        fake_close(&f);
    }
}

static void versions_of_unanswered_storages_are_not_resolved(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 6, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 4, v1, 0);
    assert_true(fake_write(&f, 0, 0, 2, v2, true));
    f.storages[1].up = false;
    r = repair_now(&f, 0, SETTLE, 0, 4);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 1);
    assert_int_equal(r.unanswered, 2);
    assert_true(r.problem[0] != '\0');
    assert_int_equal(fake_top(&f, 0, 0, 2)->version, v2);
    f.storages[1].up = true;
    r = repair_now(&f, 2, SETTLE, 0, 4);
    assert_int_equal(r.undecided, 0);
    expect_all(&f, 0, 4, v1);
    fake_close(&f);
}

/* Our storage missed a write, and those that have it do not answer: that is not "nothing
 * is missing". */
static void unanswered_storages_are_not_counted_as_sound(void **state)
{
    static const struct {
        uint64_t first, n;
    } ranges[] = { { 100, 50 }, { 100, 0 } };

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 60 + i, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 10, v1, 0);
        write_homes(&f, 100, 50, v2, 1 << 0);
        for (uint64_t b = 100; b < 150; b++)
            assert_true(fake_write(&f, 3, 0, b, v2, true));
        for (unsigned s = 1; s < 4; s++)
            f.storages[s].up = false;
        r = repair_now(&f, 0, 0, ranges[i].first, ranges[i].n);
        assert_true(r.rc == -EIO || r.undecided > 0);
        f.storages[1].up = f.storages[3].up = true; /* home 2 stays down */
        r = repair_now(&f, 0, 0, ranges[i].first, ranges[i].n);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.healed, 50);
        assert_int_equal(r.undecided, 0);
        fake_close(&f);
    }
}

static uint16_t own_refuses; /* op that storage 0 refuses with BUSY */

static int refuse(struct fake *f, unsigned storage, uint16_t op)
{
    (void)f;
    return storage == 0 && op == own_refuses ? ROZO__STATUS__BUSY : ROZO__STATUS__OK;
}

/* Other storages answer, but our own does not: what it has is unknown, so the repair
 * fails. */
static void an_unanswered_own_storage_is_not_counted_as_sound(void **state)
{
    static const uint16_t unanswered[] = { 0, ROZO__OP__ST_READ, ROZO__OP__ST_NEXT };
    static const uint32_t flags[] = { 0, REPAIR_CLEAN_SPARES, SETTLE };

    (void)state;
    for (unsigned i = 0; i < 9; i++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 70 + i, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 200, v1, 0);
        write_homes(&f, 0, 200, v2, 1 << 0);
        commit_all(&f, 0, 200, v2);
        f.storages[0].up = unanswered[i / 3] != 0;
        own_refuses = unanswered[i / 3];
        f.refuse = refuse;
        r = repair_now(&f, 0, flags[i % 3], 0, 0);
        assert_int_equal(r.rc, -EIO);
        assert_true(r.problem[0] != '\0');
        f.storages[0].up = true;
        f.refuse = NULL;
        r = repair_now(&f, 0, flags[i % 3], 0, 0);
        assert_int_equal(r.rc, 0);
        expect_all(&f, 0, 200, v2);
        fake_close(&f);
    }
}

static unsigned own_refuses_at; /* number of the request that is refused; 0: none */

static int refuse_one(struct fake *f, unsigned storage, uint16_t op)
{
    (void)f;
    return storage == 0 && op == own_refuses && own_refuses_at > 0 &&
                   --own_refuses_at == 0
               ? ROZO__STATUS__BUSY
               : ROZO__STATUS__OK;
}

/* Repairs three extents that our storage missed; it refuses one request. Returns the
 * number of read requests. */
static uint64_t repair_refused(unsigned seed, uint32_t flags, uint16_t op, unsigned at)
{
    struct fake f;
    struct repair_result r;
    uint64_t n;

    fake_init(&f, seed, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 300, v1, 0);
    write_homes(&f, 0, 300, v2, 1 << 0);
    commit_all(&f, 0, 300, v2);
    own_refuses = op;
    own_refuses_at = at;
    f.refuse = refuse_one;
    r = repair_now(&f, 0, flags, 0, 0);
    assert_int_equal(own_refuses_at, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.healed, 300);
    assert_int_equal(r.unanswered, 0);
    for (unsigned b = 0; b < 300; b++)
        assert_int_equal(fake_top(&f, 0, 0, b)->version, v2);
    n = f.n_of[ROZO__OP__ST_READ];
    fake_close(&f);
    return n;
}

/* A part that was refused is read again by itself; everything else is read and repaired
 * once. */
static void what_our_own_refuses_is_asked_for_once_more(void **state)
{
    static const uint32_t flags[] = { 0, REPAIR_CLEAN_SPARES, SETTLE, REPAIR_VERIFY_OWN };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t n = repair_refused(170 + i, flags[i], 0, 0);

        repair_refused(170 + i, flags[i], ROZO__OP__ST_NEXT, 1);
        for (unsigned at = 1; at <= 3; at++) /* one may be behind the end */
            assert_true(repair_refused(170 + i, flags[i], ROZO__OP__ST_READ, at) < 2 * n);
    }
    /* A read of our own bodies, which follow the heads, is repeated, too. */
    repair_refused(180, REPAIR_VERIFY_OWN, ROZO__OP__ST_READ, 4);
}

/* A power failure took unsynced data from our storage; the others that have it are
 * down. */
static void versions_that_unanswered_storages_may_complete_are_not_sound(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 81, CODEC_MOJETTE, 0);
    for (uint64_t b = 0; b < 4; b++) {
        for (unsigned p = 0; p < 3; p++)
            assert_true(fake_write(&f, p, p, b, v1, false));
    }
    fake_power_cut(&f, 0);
    f.storages[1].up = f.storages[2].up = false;
    r = repair_now(&f, 0, REPAIR_CLEAN_SPARES, 0, 0);
    assert_int_equal(r.rc, -EIO);
    f.storages[1].up = f.storages[2].up = true;
    r = repair_now(&f, 0, REPAIR_CLEAN_SPARES, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.healed, 4);
    fake_close(&f);
}

/* Only our storage may have the file, and it does not answer: the file does not count as
 * removed. */
static void what_our_own_alone_may_have_is_not_called_gone(void **state)
{
    struct fake f;

    (void)state;
    fake_init(&f, 80, CODEC_MOJETTE, 0);
    f.storages[0].up = false;
    assert_int_equal(repair_now(&f, 0, 0, 0, 0).rc, -EIO);
    fake_close(&f);
}

static void a_truncate_that_was_missed_is_one_mark(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 7, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 400, v1, 0);
    for (unsigned i = 0; i < f.c; i++) {
        if (i != 3)
            fake_mark(&f, i, i < f.n ? i : 0, 10, UINT64_MAX, v2, true);
    }
    for (unsigned i = 0; i < f.c; i++) { /* committed: what the mark covered is gone */
        for (unsigned b = 10; b <= FAKE_BLOCKS && i != 3; b++)
            fake_commit(&f, i, b, v2);
    }
    write_homes(&f, 20, 5, v3, 0);
    r = repair_now(&f, 3, 0, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(f.n_of[ROZO__OP__ST_MARK], 1);
    assert_int_equal(f.n_read_blocks, 0);
    expect_all(&f, 0, 10, v1);
    expect_all(&f, 10, 10, v2);
    for (unsigned b = 20; b < 25; b++)
        fake_expect(&f, b, v3, false);
    expect_all(&f, 25, FAKE_BLOCKS - 24, v2);
    fake_close(&f);
}

static void holes_are_healed_as_holes(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 8, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 40, v1, 0);
    for (unsigned i = 0; i < 2; i++)
        assert_true(fake_mark(&f, i, i, 10, 20, v2, true));
    r = repair_now(&f, 2, 0, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.stale, 10);
    assert_int_equal(f.n_of[ROZO__OP__ST_MARK], 1);
    for (unsigned b = 10; b < 20; b++)
        fake_expect(&f, b, v2, false);
    r = repair_now(&f, 0, SETTLE, 0, 0);
    expect_all(&f, 10, 10, v2);
    fake_close(&f);
}

static void a_torn_mark_to_the_end_is_rolled_back(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 9, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 200, v1, 0);
    assert_true(fake_mark(&f, 2, 2, 50, UINT64_MAX, v2, true));
    assert_true(fake_mark(&f, 4, 4, 50, UINT64_MAX, v2, true));
    r = repair_now(&f, 1, 0, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.torn_first, 50);
    assert_true(r.torn_end == UINT64_MAX); /* the range to resolve: all of it */
    assert_true(r.has_content);
    r = repair_now(&f, 1, SETTLE, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 0);
    expect_all(&f, 0, 200, v1);
    expect_all(&f, 200, FAKE_BLOCKS - 199, 0);
    fake_close(&f);
}

/* A truncated file was removed while one storage was down, which comes back with the
 * mark: no home lacks anything. */
static void a_torn_mark_is_no_content(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 10, CODEC_MOJETTE, 1);
    assert_true(fake_mark(&f, 2, 2, 50, UINT64_MAX, v2, true));
    fake_commit(&f, 2, 50, v2);
    r = repair_now(&f, 2, REPAIR_CLEAN_SPARES, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_true(r.looked_at > 0 && r.n_torn > 0);
    assert_false(r.has_content);
    fake_close(&f);
}

/* A partial home becomes complete also if no storage has heads in some ranges, since all
 * of the file was checked. */
static void a_partial_home_that_lacks_nothing_becomes_complete(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 190, CODEC_MOJETTE, 0);
    write_homes(&f, 100, FAKE_BLOCKS - 100, v1, 0);
    for (unsigned p = 0; p < f.n; p++)
        fake_mark(&f, p, p, FAKE_BLOCKS, UINT64_MAX, v1, true);
    commit_all(&f, 100, FAKE_BLOCKS - 99, v1);
    f.storages[0].projections[0].partial = true;
    r = repair_now(&f, 0, REPAIR_CLEAN_SPARES, 100, 20); /* a part only */
    assert_int_equal(r.rc, 0);
    assert_true(f.storages[0].projections[0].partial);
    r = repair_now(&f, 0, REPAIR_CLEAN_SPARES, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_false(f.storages[0].projections[0].partial);
    fake_close(&f);
}

/* Refuses one read of storage 1: it is busy at that moment, so what it lacks there is
 * unknown. */
static int refuse_a_read(struct fake *f, unsigned storage, uint16_t op)
{
    (void)f;
    return storage == 1 && op == ROZO__OP__ST_READ && own_refuses_at > 0 &&
                   --own_refuses_at == 0
               ? ROZO__STATUS__BUSY
               : ROZO__STATUS__OK;
}

static void a_partial_home_that_was_not_heard_stays_partial(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= 3; at++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 191, CODEC_MOJETTE, 1);
        write_homes(&f, 0, 300, v1, 1 << 1);
        assert_true(fake_write(&f, 1, 1, 0, v1, true));
        commit_all(&f, 0, 300, v1);
        f.storages[1].projections[1].partial = true;
        own_refuses_at = at;
        f.refuse = refuse_a_read;
        r = repair_now(&f, 0, REPAIR_ALL_HOMES, 0, 0);
        assert_int_equal(own_refuses_at, 0);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.unanswered, 1 << 1);
        assert_true(f.storages[1].projections[1].partial);
        r = repair_now(&f, 0, REPAIR_ALL_HOMES, 0, 0);
        assert_int_equal(r.unanswered, 0);
        assert_false(f.storages[1].projections[1].partial);
        expect_all(&f, 0, 300, v1);
        fake_close(&f);
    }
}

/* Three candidates: two homes do not know what they had beyond what all have, and the
 * third one was never given anything there, so nothing there was acknowledged. */
static void what_two_partial_homes_do_not_know_was_never_written(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 192, CODEC_MOJETTE, 0);
    f.c = f.target.n_storages = 3;
    f.target.full_quorum = true;
    write_homes(&f, 3, 10, v2, 0);
    commit_all(&f, 3, 10, v2);
    f.storages[0].projections[0].partial = f.storages[1].projections[1].partial = true;
    r = repair_now(&f, 0, REPAIR_ALL_HOMES, 0, 0);
    assert_int_not_equal(r.undecided, 0);
    assert_true(f.storages[0].projections[0].partial);
    r = repair_now(&f, 0, SETTLE, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 0);
    assert_int_equal(f.storages[2].fence_epoch, version_epoch(v2));
    assert_false(f.storages[0].projections[0].partial);
    assert_false(f.storages[1].projections[1].partial);
    expect_all(&f, 3, 10, v2);
    fake_close(&f);
}

/* With a storage down, ranges without heads are requested, too, but a partial home gets
 * no heads there. */
static void a_stretch_of_a_partial_home_stays_without_heads(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 64, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 128, v1, 0);
    write_homes(&f, 384, 128, v1, 0);
    fake_replace(&f, 2);
    assert_true(fake_write(&f, 2, 2, 0, v1, true));
    f.storages[1].up = false;
    r = repair_now(&f, 0, ALL, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 0);
    /* Behind each extent with data one extent is checked block by block */
    assert_int_equal(r.healed, 255 + 2 * 128);
    assert_int_equal(f.n_of[ROZO__OP__ST_DROP], 2);
    fake_close(&f);
}

static bool went_on;

/* The client with the torn mark writes into that range, on all homes, before the fence is
 * up. */
static void write_before_the_fence(struct fake *f, unsigned storage, uint16_t op)
{
    (void)storage;
    if (op != ROZO__OP__ST_FENCE || went_on)
        return;
    went_on = true;
    write_homes(f, 40, 1, v2 + 1, 0);
}

/* A truncate reaches all storages between the request for marks and the one for the range
 * behind all heads. */
static void cut_before_the_tail_is_read(struct fake *f, unsigned storage, uint16_t op)
{
    (void)storage;
    if (op != ROZO__OP__ST_READ || went_on)
        return;
    went_on = true;
    for (unsigned i = 0; i < f->n; i++)
        assert_true(i == 2 || fake_mark(f, i, i, 50, UINT64_MAX, v2, true));
}

static void a_tail_that_is_cut_meanwhile_begins_where_it_was_cut(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 65, CODEC_MOJETTE, 1);
    for (unsigned i = 0; i < f.n; i++)
        assert_true(i == 2 || fake_mark(&f, i, i, 0, UINT64_MAX, v1, true));
    write_homes(&f, 0, 10, v1 + 1, 0);
    went_on = false;
    f.before = cut_before_the_tail_is_read;
    r = repair_now(&f, 2, ALL, 0, 0);
    assert_true(went_on);
    assert_int_equal(r.undecided, 0);
    for (unsigned b = 0; b < 10; b++)
        fake_expect(&f, b, v1 + 1, false);
    f.before = NULL;
    r = repair_now(&f, 2, ALL, 0, 0);
    assert_int_equal(r.rc, 0);
    for (unsigned b = 0; b < 10; b++)
        fake_expect(&f, b, v1 + 1, false);
    fake_expect(&f, 60, v2, false);
    fake_close(&f);
}

static void what_was_written_into_a_torn_stretch_stays(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 63, CODEC_MOJETTE, 1);
    for (unsigned i = 0; i < f.n; i++)
        assert_true(fake_mark(&f, i, i, 0, UINT64_MAX, v1, true));
    for (unsigned i = 0; i < 3; i++)
        assert_true(fake_mark(&f, i, i, 0, UINT64_MAX, v2, true));
    went_on = false;
    f.before = write_before_the_fence;
    r = repair_now(&f, 0, SETTLE, 0, 0);
    assert_true(went_on && r.fenced);
    for (unsigned i = 0; i < f.n; i++) {
        const struct fake_layer *top = fake_top(&f, i, i, 40);

        assert_non_null(top);
        assert_true(top->version == v2 + 1);
    }
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 0);
    fake_close(&f);
}

/* Before the heads of a range are read, a client writes into it, begins another write
 * there, and then punches the range's first block. */
static unsigned n_began; /* homes that got the unfinished write */

static void punch_before_the_stretch_is_read(struct fake *f, unsigned storage,
                                             uint16_t op)
{
    (void)storage;
    if (op != ROZO__OP__ST_READ || went_on)
        return;
    went_on = true;
    write_homes(f, 40, 1, v2, 0);
    for (unsigned i = 0; i < n_began; i++)
        assert_true(fake_write(f, i, i, 40, v2 + 1, true));
    for (unsigned i = 0; i < f->n; i++)
        assert_true(i == 2 || fake_mark(f, i, i, 0, 1, v2 + 2, true));
}

static void a_punch_of_its_first_block_is_not_laid_over_a_stretch(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 66, CODEC_MOJETTE, 1);
    for (unsigned i = 0; i < f.n; i++)
        assert_true(i == 2 || fake_mark(&f, i, i, 0, 400, v1, true));
    went_on = false;
    n_began = 0;
    f.before = punch_before_the_stretch_is_read;
    r = repair_now(&f, 2, ALL, 0, 0);
    assert_true(went_on);
    assert_int_equal(r.rc, 0);
    fake_expect(&f, 0, v2 + 2, false);
    fake_expect(&f, 40, v2, false);
    for (unsigned b = 1; b < 400; b++) /* gets the rest of the range all the same */
        fake_expect(&f, b, b == 40 ? v2 : v1, false);
    fake_close(&f);
}

static void a_punch_of_its_first_block_commits_nothing_of_a_stretch(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 67, CODEC_MOJETTE, 1);
    for (unsigned i = 0; i < f.n; i++)
        assert_true(fake_mark(&f, i, i, 0, 400, v1, true));
    went_on = false;
    n_began = 3;
    f.before = punch_before_the_stretch_is_read;
    repair_now(&f, 0, SETTLE, 0, 0);
    assert_true(went_on);
    f.before = NULL;
    r = repair_now(&f, 0, SETTLE, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided, 0);
    fake_expect(&f, 0, v2 + 2, false);
    fake_expect(&f, 40, v2, false);
    fake_close(&f);
}

static void a_replacement_is_filled(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 10, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 300, v1, 0);
    for (unsigned i = 0; i < f.n; i++)
        assert_true(fake_mark(&f, i, i, 290, UINT64_MAX, v2, true));
    fake_replace(&f, 5);
    r = repair_now(&f, 5, REPAIR_PARTIAL, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided + r.failed, 0);
    for (unsigned b = 0; b < 290; b++)
        fake_expect(&f, b, v1, false);
    for (unsigned b = 290; b < FAKE_BLOCKS + 1; b++)
        fake_expect(&f, b, v2, false);
    assert_int_equal(f.n_read_blocks, 4 * 290);
    r = repair_now(&f, 5, REPAIR_PARTIAL, 0, 0);
    assert_int_equal(r.healed, 0);
    fake_close(&f);
}

/* Fills a replacement. Returns the number of bodies read; *n_requests: the number of read
 * requests. */
static uint64_t fill(unsigned n_blocks, uint64_t *n_requests, unsigned n_rotten)
{
    struct fake f;
    struct repair_result r;
    uint64_t n_bodies;

    fake_init(&f, 11, CODEC_MOJETTE, 1);
    write_homes(&f, 0, n_blocks, v1, 0);
    fake_replace(&f, 3);
    for (unsigned i = 0; i < n_rotten; i++)
        fake_top(&f, i % 2, i % 2, 200 + i)->rotten = true;
    r = repair_now(&f, 3, REPAIR_PARTIAL, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.undecided + r.failed, 0);
    assert_int_equal(r.healed, n_blocks);
    for (unsigned b = 0; b < n_blocks; b++) {
        if (b < 200 || b >= 200 + n_rotten)
            fake_expect(&f, b, v1, false);
    }
    *n_requests = f.n_of[ROZO__OP__ST_READ];
    n_bodies = f.n_read_blocks;
    fake_close(&f);
    return n_bodies;
}

static void bodies_come_with_the_heads(void **state)
{
    uint64_t n_few, n_many, n_rotten;

    (void)state;
    /* one piece at a time: each one after the first knows of former damage */
    config.memory_max = 1;
    assert_int_equal(fill(2 * EXTENT_BLOCKS, &n_few, 0), 4 * 2 * EXTENT_BLOCKS);
    assert_int_equal(fill(4 * EXTENT_BLOCKS, &n_many, 0), 4 * 4 * EXTENT_BLOCKS);
    assert_int_equal(n_many - n_few, 2 * 8); /* one request for each candidate */
    assert_true(fill(4 * EXTENT_BLOCKS, &n_rotten, 9) > 4 * 4 * EXTENT_BLOCKS);
    assert_true(n_rotten > n_many);
    config = (struct repairer_config){ 0 };
}

static bool lost_power;

/* The repaired home loses what it took, before a sync covers that. */
static void power_cut_before_the_sync(struct fake *f, unsigned storage, uint16_t op)
{
    if (op != ROZO__OP__ST_SYNC || storage != 2 || lost_power ||
        f->n_of[ROZO__OP__ST_WRITE] == 0)
        return;
    lost_power = true;
    fake_power_cut(f, storage);
}

static void what_is_lost_before_its_sync_is_not_called_healed(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 65, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 300, v1, 0);
    fake_replace(&f, 2);
    lost_power = false;
    f.before = power_cut_before_the_sync;
    r = repair_now(&f, 2, REPAIR_PARTIAL, 0, 0);
    assert_true(lost_power);
    assert_int_equal(r.rc, -EIO);
    r = repair_now(&f, 2, REPAIR_PARTIAL, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.healed, 300);
    fake_power_cut(&f, 2);
    for (unsigned b = 0; b < 300; b++)
        fake_expect(&f, b, v1, false);
    fake_close(&f);
}

static void a_spare_takes_the_place_of_the_lost(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 11, CODEC_MOJETTE, 1);
    write_homes(&f, 0, 40, v1, 0);
    f.storages[2].up = false;
    /* repaired by the first spare */
    r = request_now(&f, 6, (struct repair_request){ .lost = 1 << 2 });
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.healed, 40);
    for (unsigned b = 0; b < 40; b++)
        assert_int_equal(fake_top(&f, 6, 2, b)->version, v1);
    fake_close(&f);
}

static void a_file_without_projections_is_gone(void **state)
{
    struct fake f;

    (void)state;
    fake_init(&f, 12, CODEC_MOJETTE, 0);
    assert_int_equal(repair_now(&f, 0, 0, 0, 0).rc, -ENOENT);
    assert_int_equal(repair_now(&f, 0, 0, 5, 1).rc, -ENOENT);
    f.storages[1].up = f.storages[2].up = false;
    /* not known: two storages may have it */
    assert_int_equal(repair_now(&f, 0, 0, 0, 0).rc, -EIO);
    fake_close(&f);
}

static void a_full_home_is_reported(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 13, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 30, v1, 1 << 1);
    f.storages[1].full = true;
    r = repair_now(&f, 1, 0, 0, 0);
    assert_int_equal(r.rc, -EIO);
    assert_int_equal(r.failed, 30);
    assert_non_null(strstr(r.problem, "NO_SPACE"));
    fake_close(&f);
}

static uint64_t taken;
static uint32_t take(void *arg, uint64_t bytes)
{
    (void)arg;
    taken += bytes;
    return 100;
}

static void the_rate_is_kept_and_memory_is_bounded(void **state)
{
    struct fake f;
    struct repair_result r;
    uint64_t began;

    (void)state;
    fake_init(&f, 14, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 500, v1, 1 << 1);
    config.take = take;
    config.memory_max = 1; /* one piece at a time */
    began = f.v.now_ns;
    r = repair_now(&f, 1, 0, 0, 0);
    config = (struct repairer_config){ 0 };
    assert_int_equal(r.healed, 500);
    assert_true(taken >= r.read_bytes + r.written_bytes);
    assert_true(f.v.now_ns - began >= 4 * 100000000ull);
    fake_close(&f);
}

/* A repair after one that heard of clients takes longer: less of it is in
 * flight at a time, so that clients go first. */
static void clients_go_first(void **state)
{
    uint64_t took[2];

    (void)state;
    for (unsigned clients = 0; clients < 2; clients++) {
        struct repair_request request;
        struct fake f;
        struct run run;

        fake_init(&f, 17, CODEC_MOJETTE, 0);
        f.storages[2].serves_clients = clients;
        write_homes(&f, 0, 500, v1, 1 << 1);
        config.memory_max = 12 << 20;
        run_start(&f, &run, 0, 1, 0, 0, 1);
        config = (struct repairer_config){ 0 };
        while (!run.done)
            env_virtual_advance_ms(&f.v, 1);
        took[clients] = f.v.now_ns;
        request = (struct repair_request){ .target = f.target };
        run_again(&run, &request);
        while (!run.done)
            env_virtual_advance_ms(&f.v, 1);
        assert_int_equal(run.result.healed, 499);
        took[clients] = f.v.now_ns - took[clients];
        repairer_free(run.repairer);
        fake_close(&f);
    }
    assert_true(took[1] > took[0] * 3 / 2);
}

/* Bodies that are shorter than their heads say are not used. */
static void answers_that_are_cut_short_are_not_used(void **state)
{
    static const size_t cuts[] = { 8, 50000, SIZE_MAX };

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake f;
        struct repair_result r;

        fake_init(&f, 18, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 30, v1, 1 << 1);
        f.storages[2].cut_bytes = cuts[i];
        r = repair_now(&f, 1, 0, 0, 0);
        assert_int_equal(r.rc, -EIO);
        assert_int_equal(r.healed, 0);
        f.storages[2].cut_bytes = 0;
        assert_int_equal(repair_now(&f, 1, 0, 0, 0).healed, 30);
        fake_close(&f);
    }
}

static void a_busy_home_is_waited_for(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 16, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 500, v1, 0);
    write_homes(&f, 100, 300, v2, 1 << 1);
    f.storages[1].n_busy = 7;
    r = repair_now(&f, 1, 0, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.stale, 300);
    assert_int_equal(r.healed, 300);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.looked_at, 500);
    f.storages[0].n_busy = UINT32_MAX;
    write_homes(&f, 100, 10, v3, 1);
    r = repair_now(&f, 0, 0, 0, 0);
    assert_int_equal(r.rc, -EIO); /* the repair must not go on for ever */
    fake_close(&f);
}

/* A client writes while storage 1 is repaired, so that what it lacks is another thing at
 * the second look; then its journal is full, and the client writes there itself. */
static void write_in_between(struct fake *f, unsigned storage, uint16_t op)
{
    if (storage != 1)
        return;
    if (op == ROZO__OP__ST_WRITE && f->n_of[op] == 0) {
        write_homes(f, 0, 1, v3, 1 << 1);
        assert_true(fake_write(f, 1, 1, 0, v2, true));
    } else if (op == ROZO__OP__ST_WRITE) {
        f->storages[1].n_busy = 1;
    } else if (f->n_of[ROZO__OP__ST_WRITE] == 2) {
        assert_true(fake_write(f, 1, 1, 0, v3, true));
    }
}

static void what_a_busy_home_lacked_is_counted_back_as_it_was_counted(void **state)
{
    struct fake f;
    struct repair_result r;

    (void)state;
    fake_init(&f, 20, CODEC_MOJETTE, 0);
    write_homes(&f, 0, 1, v1, 1 << 1);
    f.before = write_in_between;
    r = repair_now(&f, 1, 0, 0, 0);
    assert_int_equal(r.rc, 0);
    assert_int_equal(f.n_of[ROZO__OP__ST_WRITE], 2);
    assert_int_equal(r.healed, 0);
    assert_int_equal(r.stale, 0);
    assert_int_equal(r.missing, 0);
    fake_close(&f);
}

/* The repair is stopped at every request; its unfinished changes do no harm. */
static void a_repair_may_be_stopped_anywhere(void **state)
{
    (void)state;
    for (unsigned ms = 0; ms < 60; ms++) {
        struct fake f;
        struct run run;

        fake_init(&f, 15 + ms, CODEC_MOJETTE, 0);
        write_homes(&f, 0, 140, v1, 0);
        write_homes(&f, 20, 50, v2, 1 << 2);
        assert_true(fake_write(&f, 1, 1, 130, v2, true));
        run_start(&f, &run, 0, 2, SETTLE, 0, 0);
        env_virtual_advance_ms(&f.v, ms);
        if (!run.done)
            repair_cancel(run.repair);
        env_virtual_run_until_idle(&f.v, 10000);
        repairer_free(run.repairer);
        repair_now(&f, 0, SETTLE, 0, 0);
        for (unsigned b = 0; b < 140; b++)
            fake_expect(&f, b, b >= 20 && b < 70 ? v2 : v1, true);
        fake_close(&f);
    }
}

/* ---- random histories ---- */

enum { R_BLOCKS = 300, R_CHUNK = 16 };

struct history {
    uint64_t state;             /* state of the random numbers */
    uint64_t acked[R_BLOCKS];   /* newest acknowledged version */
    uint64_t written[R_BLOCKS]; /* newest version of all */
    uint32_t epoch;
};

static unsigned dice(struct history *h, unsigned bound)
{
    h->state = h->state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(h->state >> 33) % bound;
}

/* Writes a run to homes that are up, and to spares for the others; a torn write ends
 * early. */
static void random_write(struct fake *f, struct history *h, bool torn)
{
    unsigned first = dice(h, R_BLOCKS), n = 1 + dice(h, R_CHUNK);
    uint64_t version = (uint64_t)++h->epoch << 32 | (1 + dice(h, 9));
    bool sync = !torn || dice(h, 2) == 0, hole = dice(h, 6) == 0;
    uint32_t reach = torn ? dice(h, 1u << f->n) : UINT32_MAX;

    for (unsigned b = first; b < first + n && b < R_BLOCKS; b++) {
        uint32_t holders = 0;

        for (unsigned p = 0; p < f->n; p++) {
            unsigned at = p;

            for (unsigned s = f->n; !f->storages[at].up && s < f->c; s++) {
                if (f->storages[s].up && (holders >> s & 1) == 0)
                    at = s;
            }
            if ((reach >> p & 1) == 0 || !f->storages[at].up)
                continue;
            if (hole ? fake_mark(f, at, p, b, b + 1, version, sync)
                     : fake_write(f, at, p, b, version, sync))
                holders |= 1u << at;
        }
        if (holders != 0)
            h->written[b] = version;
        if ((unsigned)__builtin_popcount(holders) >= f->q && sync) {
            h->acked[b] = version;
            for (unsigned i = 0; i < f->c && dice(h, 2) == 0; i++)
                fake_commit(f, i, b, version);
        }
    }
}

/* Truncates; a torn truncate ends early. */
static void random_cut(struct fake *f, struct history *h, bool torn)
{
    unsigned first = dice(h, R_BLOCKS + 50);
    uint64_t version = (uint64_t)++h->epoch << 32 | 1;
    unsigned n_holders = 0;

    for (unsigned i = 0; i < f->c; i++) {
        if (f->storages[i].up && !(torn && dice(h, 2) == 0) &&
            fake_mark(f, i, i < f->n ? i : 0, first, UINT64_MAX, version, true))
            n_holders++;
    }
    for (unsigned b = first; b < R_BLOCKS && n_holders > 0; b++) {
        h->written[b] = version;
        if (n_holders >= f->q)
            h->acked[b] = version;
    }
}

static void random_away(struct fake *f, struct history *h)
{
    unsigned away = 0, i = dice(h, f->c);

    for (unsigned j = 0; j < f->c; j++)
        away += !f->storages[j].up;
    if (!f->storages[i].up || away < f->n - f->k)
        f->storages[i].up = !f->storages[i].up;
}

static void random_history(struct fake *f, struct history *h, unsigned steps)
{
    for (unsigned i = 0; i < steps; i++) {
        switch (dice(h, 10)) {
        case 0:
            random_away(f, h);
            break;
        case 1:
            random_cut(f, h, dice(h, 2) == 0);
            break;
        case 2:
        case 3:
        case 4:
            random_write(f, h, true);
            break;
        default:
            random_write(f, h, false);
        }
    }
}

/* Repairers start, work, and are stopped, while storages come, go and lose power. */
static void random_drivers(struct fake *f, struct history *d, unsigned rounds)
{
    static const uint32_t flags[] = { 0,
                                      ALL,
                                      SETTLE,
                                      REPAIR_FENCE,
                                      SETTLE,
                                      ALL | REPAIR_VERIFY_OWN,
                                      SETTLE | REPAIR_CLEAN_SPARES };

    for (unsigned i = 0; i < rounds; i++) {
        struct run run[2];
        unsigned n = 1 + dice(d, 2);

        if (dice(d, 3) == 0)
            random_away(f, d);
        for (unsigned j = 0; j < n; j++) {
            bool all = dice(d, 2) == 0;

            run_start(f, &run[j], j, dice(d, f->c), flags[dice(d, 7)],
                      all ? 0 : dice(d, R_BLOCKS), all ? 0 : 1 + dice(d, 200));
        }
        env_virtual_advance_ms(&f->v, dice(d, 80));
        if (dice(d, 4) == 0)
            fake_power_cut(f, dice(d, f->c));
        if (dice(d, 4) == 0)
            random_away(f, d);
        if (dice(d, 2) == 0)
            env_virtual_run_until_idle(&f->v, 100000);
        for (unsigned j = 0; j < n; j++) {
            if (!run[j].done)
                repair_cancel(run[j].repair);
        }
        env_virtual_run_until_idle(&f->v, 100000);
        for (unsigned j = 0; j < n; j++)
            repairer_free(run[j].repairer);
    }
}

static void all_heal(struct fake *f)
{
    const uint32_t flags = SETTLE | REPAIR_VERIFY_OWN | REPAIR_CLEAN_SPARES;

    for (unsigned i = 0; i < f->c; i++)
        f->storages[i].up = true;
    for (unsigned i = 0; i < f->n; i++)
        repair_now(f, i, flags, 0, 0);
}

/* Checks that no storage but the homes has the block, since the homes have all of it. */
static void expect_no_spare(struct fake *f, unsigned b)
{
    const struct fake_layer *home = fake_top(f, 0, 0, b);

    for (unsigned i = 0; home != NULL && home->data && i < f->c; i++) {
        for (unsigned p = 0; p < f->n; p++) {
            const struct fake_layer *top = i == p ? NULL : fake_top(f, i, p, b);

            if (top != NULL && top->data) {
                fake_print(f, b);
                fail_msg("block %u: storage %u keeps projection %u", b, i, p);
            }
        }
    }
}

static void check_healed(struct fake *f, const struct history *h, uint64_t *final)
{
    struct repair_result r = repair_now(f, 0, SETTLE | REPAIR_CLEAN_SPARES, 0, 0);

    assert_int_equal(r.rc, 0);
    if (r.undecided != 0) {
        print_error("%s\n", r.problem);
        fake_print(f, strtoul(r.problem + 6, NULL, 10));
    }
    assert_int_equal(r.undecided, 0);
    assert_int_equal(r.failed + r.damaged + r.stale + r.missing + r.dropped, 0);
    for (unsigned b = 0; b < R_BLOCKS; b++) {
        const struct fake_layer *top = fake_top(f, 0, 0, b);

        final[b] = top == NULL ? 0 : top->version;
        assert_true(final[b] >= h->acked[b]);
        assert_true(final[b] <= h->written[b]);
        fake_expect(f, b, final[b], true);
        expect_no_spare(f, b);
    }
}

static void one_random(unsigned seed, unsigned kind, unsigned layout)
{
    uint64_t final[2][R_BLOCKS];

    for (unsigned order = 0; order < 2; order++) {
        struct history h = { .state = seed * 7919 + 1 }, d;
        struct fake *f = malloc(sizeof(*f));

        fake_init(f, seed + order * 1000, kind, layout);
        random_history(f, &h, 10 + dice(&h, 60));
        for (unsigned i = 0; i < f->c; i++)
            fake_sync(f, i); /* otherwise power cuts decide, and not the order */
        d = (struct history){ .state = seed * 104729 + order };
        random_drivers(f, &d, 1 + dice(&d, 6));
        all_heal(f);
        check_healed(f, &h, final[order]);
        fake_close(f);
        free(f);
    }
    assert_memory_equal(final[0], final[1], sizeof(final[0]));
}

static struct history *live;

/* A client that writes from time to time, in the middle of repairs. */
static void live_client(struct fake *f, unsigned storage, uint16_t op)
{
    (void)storage;
    (void)op;
    if (dice(live, 12) == 0)
        random_write(f, live, dice(live, 4) == 0);
    if (dice(live, 200) == 0)
        random_cut(f, live, dice(live, 4) == 0);
}

/* Damages a record at one home, if all homes have the same version: a repair that reads
 * it must find that. */
static void random_rot(struct fake *f, struct history *h)
{
    unsigned b = dice(h, R_BLOCKS), p = dice(h, f->n);
    struct fake_layer *top = fake_top(f, p, p, b);

    for (unsigned i = 0; i < f->n; i++) {
        const struct fake_layer *other = fake_top(f, i, i, b);

        if (top == NULL || other == NULL || !top->data || other->rotten ||
            other->damaged || other->version != top->version)
            return;
    }
    if (dice(h, 2) == 0)
        top->rotten = true;
    else
        top->damaged = true;
}

static void one_live(unsigned seed, unsigned kind, unsigned layout)
{
    struct history h = { .state = seed * 7919 + 5, .epoch = 1 }, d;
    struct fake *f = malloc(sizeof(*f));
    uint64_t final[R_BLOCKS];

    fake_init(f, seed, kind, layout);
    random_history(f, &h, 10 + dice(&h, 30));
    d = (struct history){ .state = seed * 15485863 };
    live = &h;
    f->before = live_client;
    random_drivers(f, &d, 1 + dice(&d, 5));
    f->before = NULL;
    all_heal(f);
    for (unsigned i = 0; i < 20; i++)
        random_rot(f, &h);
    all_heal(f);
    check_healed(f, &h, final);
    fake_close(f);
    free(f);
}

static void clients_go_on_meanwhile(void **state)
{
    static const unsigned kinds[] = { CODEC_MOJETTE, CODEC_MOJETTE_FINITE, CODEC_RS };
    const char *n = getenv("REPAIR_SEEDS"), *from = getenv("REPAIR_SEED");
    unsigned first = from == NULL ? 1 : (unsigned)atoi(from);
    unsigned n_seeds = n == NULL ? from == NULL ? 30 : 1 : (unsigned)atoi(n);

    (void)state;
    for (unsigned seed = first; seed < first + n_seeds; seed += UNIT_STEP) {
        if (n != NULL || from != NULL)
            print_message("replay: REPAIR_SEED=%u\n", seed);
        one_live(seed, kinds[seed % 3], seed / 3 % 3);
    }
}

static void by_chance(void **state)
{
    static const unsigned kinds[] = { CODEC_MOJETTE, CODEC_MOJETTE_NONSYSTEMATIC,
                                      CODEC_RS };
    const char *n = getenv("REPAIR_SEEDS"), *from = getenv("REPAIR_SEED");
    unsigned first = from == NULL ? 1 : (unsigned)atoi(from);
    unsigned n_seeds = n == NULL ? from == NULL ? 40 : 1 : (unsigned)atoi(n);

    (void)state;
    for (unsigned seed = first; seed < first + n_seeds; seed += UNIT_STEP) {
        if (n != NULL || from != NULL)
            print_message("replay: REPAIR_SEED=%u\n", seed);
        one_random(seed, kinds[seed % 3], seed / 3 % 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_home_gets_missed_blocks),
        cmocka_unit_test(what_is_left_of_what_it_missed_is_not_believed),
        cmocka_unit_test(what_a_spare_took_is_copied_and_dropped),
        cmocka_unit_test(a_spare_keeps_what_its_home_has_but_a_head_of),
        cmocka_unit_test(spares_drop_blocks_that_a_home_has_read),
        cmocka_unit_test(a_spare_keeps_what_counts_beside_its_home),
        cmocka_unit_test(homes_that_stand_in_for_each_other_drop_their_copies),
        cmocka_unit_test(copies_in_a_circle_stay_while_they_count),
        cmocka_unit_test(a_spare_keeps_what_its_home_may_have_lost_since),
        cmocka_unit_test(own_projections_are_read_completely_and_rebuilt),
        cmocka_unit_test(two_copies_of_one_projection_are_not_committed),
        cmocka_unit_test(a_torn_version_is_resolved_only_under_a_fence),
        cmocka_unit_test(a_repair_ends_when_all_go_away_before_its_second_fence),
        cmocka_unit_test(a_torn_write_and_a_new_disk),
        cmocka_unit_test(a_commit_needs_the_larger_quorum),
        cmocka_unit_test(the_first_write_is_rolled_back_too),
        cmocka_unit_test(versions_of_unanswered_storages_are_not_resolved),
        cmocka_unit_test(unanswered_storages_are_not_counted_as_sound),
        cmocka_unit_test(an_unanswered_own_storage_is_not_counted_as_sound),
        cmocka_unit_test(what_our_own_refuses_is_asked_for_once_more),
        cmocka_unit_test(versions_that_unanswered_storages_may_complete_are_not_sound),
        cmocka_unit_test(what_our_own_alone_may_have_is_not_called_gone),
        cmocka_unit_test(a_truncate_that_was_missed_is_one_mark),
        cmocka_unit_test(holes_are_healed_as_holes),
        cmocka_unit_test(a_torn_mark_to_the_end_is_rolled_back),
        cmocka_unit_test(a_torn_mark_is_no_content),
        cmocka_unit_test(a_partial_home_that_lacks_nothing_becomes_complete),
        cmocka_unit_test(a_partial_home_that_was_not_heard_stays_partial),
        cmocka_unit_test(what_two_partial_homes_do_not_know_was_never_written),
        cmocka_unit_test(a_stretch_of_a_partial_home_stays_without_heads),
        cmocka_unit_test(what_was_written_into_a_torn_stretch_stays),
        cmocka_unit_test(a_tail_that_is_cut_meanwhile_begins_where_it_was_cut),
        cmocka_unit_test(a_punch_of_its_first_block_is_not_laid_over_a_stretch),
        cmocka_unit_test(a_punch_of_its_first_block_commits_nothing_of_a_stretch),
        cmocka_unit_test(a_replacement_is_filled),
        cmocka_unit_test(bodies_come_with_the_heads),
        cmocka_unit_test(what_is_lost_before_its_sync_is_not_called_healed),
        cmocka_unit_test(a_spare_takes_the_place_of_the_lost),
        cmocka_unit_test(a_file_without_projections_is_gone),
        cmocka_unit_test(a_full_home_is_reported),
        cmocka_unit_test(the_rate_is_kept_and_memory_is_bounded),
        cmocka_unit_test(clients_go_first),
        cmocka_unit_test(answers_that_are_cut_short_are_not_used),
        cmocka_unit_test(a_busy_home_is_waited_for),
        cmocka_unit_test(what_a_busy_home_lacked_is_counted_back_as_it_was_counted),
        cmocka_unit_test(a_repair_may_be_stopped_anywhere),
        cmocka_unit_test(clients_go_on_meanwhile),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
