/*
 * Goal: repairers and real storages work together: journal, commits, fences, drops,
 * marks, partial files, restarts.
 * Method: the core of storaged on disks in memory, for every storage of a file (real.h);
 * a client that dies from time to time; repairers that are stopped; storages that come,
 * go, are killed and lose power. At the end every home has the same version of every
 * block, to the byte, none older than what was acknowledged, and no journal has a record
 * that waits for a commit.
 */
#include <errno.h>
#include <stdlib.h>

#include "storaged/format/projfile.h"
#include "tests/unit/heal/real.h"

enum { OK = ROZO__STATUS__OK, SETTLE = REPAIR_ALL_HOMES | REPAIR_FENCE };

static const uint64_t v1 = (uint64_t)1 << 32 | 1, v2 = (uint64_t)2 << 32 | 1,
                      v3 = (uint64_t)3 << 32 | 1;

static void run_start(struct real *r, struct run *run, unsigned own, uint32_t flags,
                      uint64_t first, uint64_t n)
{
    real_repair(
        r, run, own,
        (struct repair_request){ .first_block = first, .n_blocks = n, .flags = flags });
}

static struct repair_result repair_now(struct real *r, unsigned own, uint32_t flags,
                                       uint64_t first, uint64_t n)
{
    struct run run;

    run_start(r, &run, own, flags, first, n);
    return real_run_end(r, &run);
}

static void write_homes(struct real *r, uint64_t first, unsigned n, uint64_t version,
                        uint32_t but)
{
    real_write_homes(r, first, n, version, but, true);
}

/* Returns the version of a block at home p. */
static uint64_t version_at(struct real *r, unsigned p, uint64_t block)
{
    uint64_t version = 0;
    uint16_t status = real_read(r, p, p, block, 1, &version);

    return status == OK ? version : status == ROZO__STATUS__NO_FILE ? 0 : UINT64_MAX;
}

static void expect(struct real *r, uint64_t block, uint64_t version)
{
    for (unsigned p = 0; p < r->n; p++) {
        if (version_at(r, p, block) != version)
            fail_msg("block %llu: home %u has %llx, not %llx", (unsigned long long)block,
                     p, (unsigned long long)version_at(r, p, block),
                     (unsigned long long)version);
    }
}

static void print_result(const struct repair_result *r)
{
    print_message(
        "rc %d looked %lu damaged %lu stale %lu missing %lu healed %lu dropped %lu "
        "undecided %lu failed %lu: %s\n",
        r->rc, r->looked_at, r->damaged, r->stale, r->missing, r->healed, r->dropped,
        r->undecided, r->failed, r->problem);
}

static void expect_clean(const struct repair_result *r)
{
    if (r->rc != 0 || r->undecided + r->failed > 0)
        print_result(r);
    assert_int_equal(r->rc, 0);
    assert_int_equal(r->undecided, 0);
    assert_int_equal(r->failed, 0);
}

static void overwrites_that_were_missed_and_torn(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    (void)state;
    real_init(r, 1, CODEC_MOJETTE, 0);
    write_homes(r, 0, 100, v1, 0);
    write_homes(r, 10, 20, v2, 1 << 2); /* missed by home 2 */
    /* torn: on one home of two */
    assert_int_equal(real_write(r, 1, 1, 50, 5, v3, true), OK);
    assert_int_equal(real_write(r, 0, 0, 200, 3, v3, false), OK); /* a first write */
    assert_true(real_uncommitted(r) > 0);
    m = repair_now(r, 2, SETTLE, 0, 0);
    expect_clean(&m);
    assert_int_equal(m.healed, 20);
    assert_int_equal(m.dropped, 8);
    for (unsigned b = 0; b < 100; b++)
        expect(r, b, b >= 10 && b < 30 ? v2 : v1);
    for (unsigned b = 200; b < 203; b++)
        expect(r, b, 0);
    assert_int_equal(real_uncommitted(r), 0);
    assert_int_equal(real_write(r, 0, 0, 50, 1, v3, false), ROZO__STATUS__STALE_VERSION);
    for (unsigned i = 0; i < r->c; i++)
        real_restart(r, i, true);
    m = repair_now(r, 0, SETTLE | REPAIR_VERIFY_OWN, 0, 0);
    expect_clean(&m);
    assert_int_equal(m.healed + m.dropped, 0);
    for (unsigned b = 0; b < 100; b++)
        expect(r, b, b >= 10 && b < 30 ? v2 : v1);
    real_close(r);
    free(r);
}

/* Zeroes a sector of a record's body, as after a write that did not end. */
static void lose_a_sector(struct real *r, unsigned storage, uint64_t block)
{
    static const uint8_t zeros[512];
    const struct storcli_target *t = &r->target;
    char path[PROJFILE_PATH_MAX];
    struct geometry geo;

    projfile_path(path, &t->id, storage);
    geometry_init(&geo, codec_get(t->codec, t->layout, t->block_bytes), storage);
    memdisk_poke(&r->storages[storage].disk,
                 memdisk_find(&r->storages[storage].disk, path),
                 geometry_body_at(&geo, block) + 512, zeros, sizeof(zeros));
}

/* Too many records of a block have lost a sector. Without a power failure that is rot,
 * and stable data is not rolled back for it; after a power failure it counts as data that
 * was never stable. */
static void rot_is_not_taken_for_a_torn_write(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    (void)state;
    real_init(r, 8, CODEC_MOJETTE, 0);
    write_homes(r, 0, 10, v1, 0);
    lose_a_sector(r, 0, 5);
    lose_a_sector(r, 1, 5);
    for (unsigned i = 0; i < 3; i++) {
        m = repair_now(r, i % 2, SETTLE | REPAIR_VERIFY_OWN, 0, 0);
        assert_int_equal(m.undecided, 1);
        assert_int_equal(m.healed + m.dropped, 0);
    }
    assert_int_equal(version_at(r, 2, 5), v1);
    for (unsigned i = 0; i < r->c; i++)
        real_restart(r, i, true);
    m = repair_now(r, 0, SETTLE | REPAIR_VERIFY_OWN, 0, 0);
    if (m.undecided > 0)
        m = repair_now(r, 1, SETTLE | REPAIR_VERIFY_OWN, 0, 0);
    expect_clean(&m);
    for (unsigned b = 0; b < 10; b++)
        expect(r, b, b == 5 ? 0 : v1);
    real_close(r);
    free(r);
}

static struct disk_file *file_at(struct real *r, unsigned storage, unsigned projection)
{
    char path[PROJFILE_PATH_MAX];

    projfile_path(path, &r->target.id, projection);
    return memdisk_find(&r->storages[storage].disk, path);
}

/* The header rots, the file is quarantined, and the storage is killed before there is a
 * new one. */
static void put_aside_and_kill(struct real *r, unsigned storage, unsigned projection)
{
    const uint64_t block = 700; /* a block that no storage has */
    struct real_storage *s = &r->storages[storage];
    struct memdisk *d = &s->disk;

    memdisk_poke(d, file_at(r, storage, projection), 40, "rot", 3);
    real_restart(r, storage, false);
    real_run_ms(r, 10);
    assert_int_equal(real_write(r, storage, projection, block, 1, v2, false),
                     ROZO__STATUS__STALE_VERSION);
    d->fail_op = DISK_SYNC_NAME;
    d->fail_at = 1;
    d->fail_rc = -EIO;
    d->fail_path = "objects/";
    assert_int_equal(real_write(r, storage, projection, block, 1, v3, false),
                     ROZO__STATUS__IO_ERROR);
    assert_null(file_at(r, storage, projection));
    real_restart(r, storage, false);
    real_run_ms(r, 10);
}

/*
 * Two homes of three have quarantined their files, and nothing is in their place yet: the
 * data of the third one was acknowledged, and stays, whichever storage heals.
 */
static void a_quarantined_file_gives_nothing_back(void **state)
{
    struct real *r = malloc(sizeof(*r));

    (void)state;
    real_init(r, 9, CODEC_MOJETTE, 0);
    write_homes(r, 0, 10, v1, 0);
    for (unsigned p = 0; p < 2; p++)
        put_aside_and_kill(r, p, p);
    for (unsigned i = 0; i < 6; i++) {
        repair_now(r, i % r->c, SETTLE | (i < 3 ? 0 : REPAIR_CLEAN_SPARES), 0, 0);
        for (unsigned b = 0; b < 10; b++) {
            assert_int_equal(version_at(r, 2, b), v1);
            assert_int_equal(version_at(r, i % 2, b), UINT64_MAX);
        }
    }
    real_close(r);
    free(r);
}

/* One home has quarantined its file: it gets all data again, and knows then which blocks
 * were never written, whatever the file contains. */
static void a_quarantined_file_is_rebuilt(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct real *r = malloc(sizeof(*r));
        struct repair_result m;

        real_init(r, 10 + how, CODEC_MOJETTE, 0);
        if (how == 0)
            write_homes(r, 0, 10, v1, 0);
        for (unsigned p = 0; how == 1 && p < r->n; p++) /* only holes */
            assert_int_equal(real_mark(r, p, p, 0, 0, v1), OK);
        for (unsigned p = 0; how == 2 && p < r->n; p++) { /* written, then punched */
            assert_int_equal(real_write(r, p, p, 5, 1, v1, true), OK);
            assert_int_equal(real_mark(r, p, p, 5, 1, v1 + 1), OK);
        }
        for (unsigned p = 0; p < r->n; p++) {
            real_sync(r, p);
            real_commit(r, p, 0, 0, v1 + 1);
        }
        real_run_ms(r, 10000);
        put_aside_and_kill(r, 1, 1);
        assert_int_equal(version_at(r, 1, 600), UINT64_MAX);
        for (unsigned i = 0; i < 3; i++)
            m = repair_now(r, 1, SETTLE | REPAIR_CLEAN_SPARES, 0, 0);
        expect_clean(&m);
        assert_int_equal(m.damaged + m.missing + m.healed, 0);
        expect(r, 5, how == 2 ? v1 + 1 : v1);
        expect(r, 600, how == 1 ? v1 : 0);
        real_close(r);
        free(r);
    }
}

/* A spare has quarantined its file: the homes have all of it, so the quarantined file is
 * removed. */
static void quarantined_copies_of_spares_are_removed(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    (void)state;
    real_init(r, 13, CODEC_MOJETTE, 0);
    write_homes(r, 0, 10, v1, 0);
    assert_int_equal(real_write(r, 3, 1, 0, 10, v1, true), OK);
    put_aside_and_kill(r, 3, 1);
    assert_int_equal(real_read(r, 3, 1, 0, 1, &(uint64_t){ 0 }), ROZO__STATUS__DAMAGED);
    m = repair_now(r, 0, SETTLE | REPAIR_CLEAN_SPARES, 0, 0);
    expect_clean(&m);
    real_restart(r, 3, false);
    real_run_ms(r, 10);
    assert_int_equal(real_read(r, 3, 1, 0, 1, &(uint64_t){ 0 }), ROZO__STATUS__NO_FILE);
    expect(r, 5, v1);
    real_close(r);
    free(r);
}

static void a_truncate_that_was_missed(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    (void)state;
    real_init(r, 2, CODEC_MOJETTE, 0);
    for (unsigned b = 0; b < 1280; b += 128)
        write_homes(r, b, 128, v1, 0);
    for (unsigned i = 0; i < r->c; i++) {
        if (i != 1) {
            assert_int_equal(real_mark(r, i, i < r->n ? i : 255, 100, 0, v2), OK);
            real_sync(r, i);
            real_commit(r, i, 0, 0, v2);
        }
    }
    real_run_ms(r, 10000); /* applied: truncated data is gone there */
    write_homes(r, 300, 10, v3, 0);
    r->n_of[ROZO__OP__ST_MARK] = 0;
    m = repair_now(r, 1, 0, 0, 0);
    expect_clean(&m);
    assert_int_equal(r->n_of[ROZO__OP__ST_MARK], 1);
    for (unsigned b = 0; b < 1400; b += 7)
        expect(r, b, b < 100 ? v1 : b >= 300 && b < 310 ? v3 : v2);
    m = repair_now(r, 0, SETTLE, 0, 0);
    expect_clean(&m);
    assert_int_equal(real_uncommitted(r), 0);
    real_run_ms(r, 10000);
    m = repair_now(r, 2, SETTLE, 0, 0);
    expect_clean(&m);
    assert_int_equal(m.healed, 0);
    real_close(r);
    free(r);
}

static void a_lost_disk(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    (void)state;
    real_init(r, 3, CODEC_MOJETTE, 1);
    for (unsigned b = 0; b < 384; b += 128)
        write_homes(r, b, 100, v1, 0);
    write_homes(r, 130, 50, v2, 0);
    real_replace(r, 4);
    m = repair_now(r, 4, REPAIR_PARTIAL, 0, 0);
    expect_clean(&m);
    assert_int_equal(m.healed, 300);
    assert_int_equal(real_whole(r, 4, 1 << 4), OK);
    atomic_store(&r->storages[4].identity.rebuild, false);
    for (unsigned b = 0; b < 500; b++)
        expect(r, b, b % 128 >= 100 || b >= 384 ? 0 : b >= 130 && b < 180 ? v2 : v1);
    real_close(r);
    free(r);
}

static void what_a_spare_held(void **state)
{
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;
    uint64_t versions[100];

    (void)state;
    real_init(r, 4, CODEC_MOJETTE, 0);
    write_homes(r, 0, 100, v1, 0);
    write_homes(r, 0, 60, v2, 1 << 1);
    assert_int_equal(real_write(r, 3, 1, 0, 60, v2, true), OK);
    m = repair_now(r, 1, REPAIR_CLEAN_SPARES, 0, 0);
    expect_clean(&m);
    assert_int_equal(m.healed, 60);
    assert_int_equal(m.cleaned, 60);
    assert_int_equal(real_read(r, 3, 1, 0, 100, versions), OK);
    for (unsigned b = 0; b < 100; b++)
        assert_int_equal(versions[b], 0);
    for (unsigned b = 0; b < 100; b++)
        expect(r, b, b < 60 ? v2 : v1);
    real_close(r);
    free(r);
}

/* ---- random histories ---- */

enum { R_BLOCKS = 300, R_CHUNK = 16 };

struct history {
    uint64_t state;
    uint64_t acked[R_BLOCKS]; /* newest version that was acknowledged and synced */
    uint64_t written[R_BLOCKS];
    uint32_t epoch;
};

static unsigned dice(struct history *h, unsigned bound)
{
    h->state = h->state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(h->state >> 33) % bound;
}

static void write_reached(struct real *r, struct history *h, unsigned first, unsigned n,
                          uint64_t version, uint32_t holders, bool synced)
{
    bool acked = synced && (unsigned)__builtin_popcount(holders) >= r->q;

    for (unsigned b = first; b < first + n && b < R_BLOCKS && holders != 0; b++) {
        h->written[b] = version;
        if (acked)
            h->acked[b] = version;
    }
    for (unsigned i = 0; i < r->c && acked && dice(h, 2) == 0; i++) {
        if (r->storages[i].up)
            real_commit(r, i, first, n, version);
    }
}

static void random_write(struct real *r, struct history *h, bool torn)
{
    unsigned first = dice(h, R_BLOCKS - R_CHUNK), n = 1 + dice(h, R_CHUNK);
    uint64_t version = (uint64_t)++h->epoch << 32 | (1 + dice(h, 9));
    bool sync = !torn || dice(h, 2) == 0;
    uint32_t reach = torn ? dice(h, 1u << r->n) : UINT32_MAX, holders = 0;

    if (first / 128 != (first + n - 1) / 128)
        n = 128 - first % 128;
    for (unsigned p = 0; p < r->n; p++) {
        unsigned at = p;

        for (unsigned s = r->n; !r->storages[at].up && s < r->c; s++) {
            if (r->storages[s].up && (holders >> s & 1) == 0)
                at = s;
        }
        if ((reach >> p & 1) != 0 && r->storages[at].up &&
            real_write(r, at, p, first, n, version, sync) == OK)
            holders |= 1u << at;
    }
    write_reached(r, h, first, n, version, holders, sync);
}

static void random_mark(struct real *r, struct history *h, bool torn)
{
    unsigned first = dice(h, R_BLOCKS);
    uint64_t n = dice(h, 2) == 0 ? 0 : 1 + dice(h, 400), version;
    uint32_t holders = 0;

    version = (uint64_t)++h->epoch << 32 | 1;
    for (unsigned i = 0; i < r->c; i++) {
        if (r->storages[i].up && !(torn && dice(h, 2) == 0) &&
            real_mark(r, i, i < r->n ? i : 0, first, n, version) == OK &&
            real_sync(r, i) == OK)
            holders |= 1u << i;
    }
    for (unsigned b = first; b < R_BLOCKS && (n == 0 || b < first + n); b++) {
        h->written[b] = holders != 0 ? version : h->written[b];
        if ((unsigned)__builtin_popcount(holders) >= r->q)
            h->acked[b] = version;
    }
}

static void random_away(struct real *r, struct history *h)
{
    unsigned away = 0, i = dice(h, r->c);

    for (unsigned j = 0; j < r->c; j++)
        away += !r->storages[j].up;
    if (!r->storages[i].up || away < r->n - r->k)
        r->storages[i].up = !r->storages[i].up;
}

static void random_step(struct real *r, struct history *h)
{
    switch (dice(h, 12)) {
    case 0:
        random_away(r, h);
        break;
    case 1:
        random_mark(r, h, dice(h, 2) == 0);
        break;
    case 2:
    case 3:
    case 4:
        random_write(r, h, true);
        break;
    case 5:
        real_run_ms(r, dice(h, 5000));
        break;
    case 6:
        real_restart(r, dice(h, r->c), false);
        break;
    default:
        random_write(r, h, false);
    }
}

/* Runs a repairer for a while; in between the client goes on, and storages go down and
 * lose power. */
static void random_repair(struct real *r, struct history *h)
{
    static const uint32_t flags[] = { 0, REPAIR_ALL_HOMES, SETTLE, REPAIR_FENCE,
                                      SETTLE | REPAIR_CLEAN_SPARES };
    struct run run[2];
    unsigned n = 1 + dice(h, 2);

    for (unsigned j = 0; j < n; j++) {
        bool all = dice(h, 2) == 0;

        run_start(r, &run[j], dice(h, r->c), flags[dice(h, 5)],
                  all ? 0 : dice(h, R_BLOCKS), all ? 0 : 1 + dice(h, 200));
    }
    for (unsigned i = dice(h, 12); i > 0; i--) {
        real_run_ms(r, dice(h, 8));
        if (dice(h, 4) == 0)
            random_write(r, h, dice(h, 2) == 0);
        if (dice(h, 12) == 0)
            random_away(r, h);
        if (dice(h, 12) == 0)
            real_restart(r, dice(h, r->c), dice(h, 2) == 0);
    }
    if (dice(h, 2) == 0)
        real_run_ms(r, 20000);
    for (unsigned j = 0; j < n; j++) {
        if (!run[j].done)
            repair_cancel(run[j].repair);
        repairer_free(run[j].repairer);
    }
    real_run_ms(r, 50);
}

/* Returns whether a power cut broke a spare's file: what of it waits in the journal is
 * unknown then. */
static bool has_broken_spare(struct real *r)
{
    for (unsigned i = 0; i < r->c; i++) {
        for (unsigned p = 0; p < r->n; p++) {
            uint64_t version;

            if (i != p && real_read(r, i, p, 0, 1, &version) == ROZO__STATUS__DAMAGED)
                return true;
        }
    }
    return false;
}

static void check_healed(struct real *r, const struct history *h)
{
    for (unsigned b = 0; b < R_BLOCKS; b++) {
        uint64_t version = version_at(r, 0, b);

        if (version < h->acked[b] || version > h->written[b])
            fail_msg("block %u has %llx; acknowledged %llx, newest %llx", b,
                     (unsigned long long)version, (unsigned long long)h->acked[b],
                     (unsigned long long)h->written[b]);
        expect(r, b, version);
    }
    if (!has_broken_spare(r))
        assert_int_equal(real_uncommitted(r), 0);
}

static void one_random(unsigned seed)
{
    static const unsigned kinds[] = { CODEC_MOJETTE, CODEC_RS,
                                      CODEC_MOJETTE_NONSYSTEMATIC };
    struct history h = { .state = seed * 7919 + 1, .epoch = 1 };
    struct real *r = malloc(sizeof(*r));
    struct repair_result m;

    real_init(r, seed, kinds[seed % 3], seed % 5 == 4 ? 2 : seed % 5 / 2);
    for (unsigned i = 5 + dice(&h, 25); i > 0; i--)
        random_step(r, &h);
    for (unsigned i = dice(&h, 4); i > 0; i--)
        random_repair(r, &h);
    for (unsigned i = 0; i < r->c; i++)
        r->storages[i].up = true;
    for (unsigned i = 0; i < r->c; i++) {
        if (dice(&h, 3) == 0)
            real_restart(r, i, dice(&h, 2) == 0);
    }
    for (unsigned i = 0; i < r->n; i++) /* power cuts leave heads without bodies */
        m = repair_now(r, i, SETTLE | REPAIR_VERIFY_OWN, 0, 0);
    if (dice(&h, 2) == 0)
        real_run_ms(r, 10000);
    m = repair_now(r, dice(&h, r->c), SETTLE, 0, 0);
    m = repair_now(r, dice(&h, r->c), SETTLE | REPAIR_CLEAN_SPARES, 0, 0);
    expect_clean(&m);
    if (m.damaged + m.stale + m.missing + m.dropped > 0)
        print_result(&m);
    assert_int_equal(m.damaged + m.stale + m.missing + m.dropped, 0);
    check_healed(r, &h);
    real_close(r);
    free(r);
}

static void by_chance(void **state)
{
    const char *n = getenv("REPAIR_SEEDS"), *from = getenv("REPAIR_SEED");
    unsigned first = from == NULL ? 1 : (unsigned)atoi(from);
    unsigned n_seeds = n == NULL ? from == NULL ? 15 : 1 : (unsigned)atoi(n);

    (void)state;
    for (unsigned seed = first; seed < first + n_seeds; seed += UNIT_STEP) {
        print_message("replay: REPAIR_SEED=%u\n", seed);
        one_random(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overwrites_that_were_missed_and_torn),
        cmocka_unit_test(rot_is_not_taken_for_a_torn_write),
        cmocka_unit_test(a_quarantined_file_gives_nothing_back),
        cmocka_unit_test(a_quarantined_file_is_rebuilt),
        cmocka_unit_test(quarantined_copies_of_spares_are_removed),
        cmocka_unit_test(a_truncate_that_was_missed),
        cmocka_unit_test(a_lost_disk),
        cmocka_unit_test(what_a_spare_held),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
