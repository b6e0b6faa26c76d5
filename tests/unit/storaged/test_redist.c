/*
 * test_redist.c
 * Goal:   a file's distribution changes on its storage as a whole, wherever the power is
 *         cut, and a client with an earlier one is refused.
 * Method: a storage on a disk in memory; the power is cut at every disk request of an
 *         ST_REDIST.
 * Trust:  this file; world.c; memdisk.c.
 */
#include <string.h>

#include "storaged/format/projfile.h"
#include "tests/unit/storaged/world.h"

#define V(epoch, seq) version_make(epoch, seq)

enum { OK = ROZO__STATUS__OK, STALE = ROZO__STATUS__STALE_DISTRIBUTION };

static const uint32_t before[] = { 1, 2, 3 }, after[] = { 1, 9, 3, 7 };

static void lies_at(struct world *w, const uint32_t *storages, unsigned n,
                    uint32_t generation)
{
    memcpy(w->storages, storages, n * sizeof(*storages));
    w->n_storages = n;
    w->dist_generation = generation;
}

static void old_ref(struct world *w)
{
    lies_at(w, before, 3, 0);
}

static void new_ref(struct world *w)
{
    lies_at(w, after, 4, 1);
}

/* Makes projection 2, which belongs here, and projection 0, held for a storage that was
 * down. */
static void begin(struct world *w, uint64_t seed)
{
    world_init(w, seed);
    w->role = RPC_ROLE_NODE;
    old_ref(w);
    assert_int_equal(world_write(w, 2, 0, 20, V(1, 1), 8192, true, NULL), OK);
    assert_int_equal(world_write(w, 0, 3, 2, V(1, 2), 8192, true, NULL), OK);
}

static void expect_data(struct world *w)
{
    world_expect(w, 2, 7, SEEN_DATA, V(1, 1));
    world_expect(w, 0, 4, SEEN_DATA, V(1, 2));
    world_expect(w, 2, 20, SEEN_HOLE, 0);
}

static struct projfile_header header(struct world *w, unsigned projection)
{
    uint8_t front[PROJFILE_FRONT_BYTES];
    struct projfile_header h;

    memdisk_peek(world_file(w, projection), 0, front, sizeof(front));
    assert_int_equal(projfile_front_get(front, &h), 0);
    return h;
}

static uint32_t page_format(struct world *w, unsigned projection, uint64_t at)
{
    uint8_t page[PROJFILE_PAGE_BYTES];

    memdisk_peek(world_file(w, projection), at, page, sizeof(page));
    return page[8];
}

/* Sends each kind of request on the file, with its ref. */
static uint16_t ask(struct world *w, unsigned what)
{
    Rozo__StStatReq stat = ROZO__ST_STAT_REQ__INIT;
    Rozo__StAllocReq alloc = ROZO__ST_ALLOC_REQ__INIT;
    struct seen seen[1];
    struct test_ref ref;
    uint64_t block;

    ref_init(w, &ref);
    stat.ref = alloc.ref = &ref.ref;
    stat.to_storage = alloc.to_storage = US;
    alloc.projection = 2;
    alloc.n_blocks = 1;
    switch (what) {
    case 0:
        return world_write(w, 2, 0, 1, V(5, 1), 8192, false, NULL);
    case 1:
        return world_read(w, 2, 0, 1, seen, NULL);
    case 2:
        return world_sync(w);
    case 3:
        return world_mark(w, 2, 0, 1, V(5, 2));
    case 4:
        return world_next(w, 0, &block);
    case 5:
        return call_run(w, ROZO__OP__ST_STAT, &stat.base, NULL, 0, NULL);
    case 6:
        return call_run(w, ROZO__OP__ST_ALLOC, &alloc.base, NULL, 0, NULL);
    case 7:
        return world_clean(w, 0, 0, V(1, 1), 1);
    default:
        return world_whole(w, 4);
    }
}

enum { ASKS = 9, CLIENT_ASKS = 7 };

static void whoever_goes_by_an_earlier_one_is_sent_away(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 1);
    assert_int_equal(page_format(&w, 2, 0), PROJFILE_FORMAT);
    new_ref(&w);
    assert_int_equal(world_redist(&w, 0), OK);
    for (unsigned again = 0; again < 2; again++) {
        assert_int_equal(page_format(&w, 2, 0), PROJFILE_FORMAT_REDIST);
        assert_int_equal(page_format(&w, 0, PROJFILE_COPY_AT), PROJFILE_FORMAT_REDIST);
        old_ref(&w);
        for (unsigned i = 0; i < ASKS; i++) {
            w.role = RPC_ROLE_NODE;
            assert_int_equal(ask(&w, i), STALE);
            w.role = RPC_ROLE_CLIENT;
            if (i < CLIENT_ASKS)
                assert_int_equal(ask(&w, i), STALE);
        }
        new_ref(&w);
        expect_data(&w);
        world_restart(&w, again == 0);
    }
    for (unsigned i = 0; i < CLIENT_ASKS; i++)
        assert_int_equal(ask(&w, i), OK);
    world_free(&w);
}

/* Only ST_REDIST changes a header: another storage's file may have received the change
 * before ours. */
static void a_later_one_is_served_and_not_taken_over(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 2);
    new_ref(&w);
    expect_data(&w);
    assert_int_equal(world_write(&w, 2, 0, 1, V(5, 1), 8192, true, NULL), OK);
    assert_int_equal(header(&w, 2).dist_generation, 0);
    old_ref(&w);
    world_expect(&w, 2, 0, SEEN_DATA, V(5, 1));
    world_free(&w);
}

/* A file that is created by a request has the distribution of its ref, also when the
 * storage has older ones. */
static void what_is_made_later_has_the_later_one(void **state)
{
    struct world w;

    (void)state;
    begin(&w, 3);
    new_ref(&w);
    assert_int_equal(world_write(&w, 1, 0, 1, V(5, 1), 8192, true, NULL), OK);
    assert_int_equal(header(&w, 1).dist_generation, 1);
    assert_int_equal(header(&w, 1).storages[3], 7);
    assert_int_equal(world_redist(&w, 0), OK);
    assert_int_equal(header(&w, 2).dist_generation, 1);
    world_restart(&w, true);
    expect_data(&w);
    world_expect(&w, 1, 0, SEEN_DATA, V(5, 1));
    world_free(&w);
}

static void repeats_and_nonsense(void **state)
{
    static const uint32_t others[] = { 1, 8, 3, 7 };
    struct world w;

    (void)state;
    begin(&w, 4);
    /* generation 0 is invalid */
    assert_int_equal(world_redist(&w, 0), ROZO__STATUS__BAD_REQUEST);
    new_ref(&w);
    w.dist_generation = 3;
    assert_int_equal(world_redist(&w, 0), OK);
    assert_int_equal(world_redist(&w, 0), OK);
    lies_at(&w, others, 4, 3);
    assert_int_equal(world_redist(&w, 0), ROZO__STATUS__BAD_REQUEST);
    lies_at(&w, others, 4, 2);
    assert_int_equal(world_redist(&w, 1u << 1), OK); /* a late request changes nothing */
    assert_null(world_file(&w, 1));
    assert_int_equal(header(&w, 2).dist_generation, 3);
    assert_int_equal(header(&w, 2).storages[1], 9);
    lies_at(&w, before, 3, 4);
    /* fewer candidates */
    assert_int_equal(world_redist(&w, 0), ROZO__STATUS__BAD_REQUEST);
    new_ref(&w);
    w.dist_generation = 4;
    assert_int_equal(world_redist(&w, 1u << 3), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(world_remove(&w), OK); /* accepted with any generation */
    assert_int_equal(world_redist(&w, 1u << 1), ROZO__STATUS__NO_FILE);
    world_free(&w);
}

static void clients_may_not(void **state)
{
    Rozo__StRedistReq req = ROZO__ST_REDIST_REQ__INIT;
    struct test_ref ref;
    struct world w;

    (void)state;
    begin(&w, 5);
    new_ref(&w);
    w.role = RPC_ROLE_CLIENT;
    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    assert_int_equal(call_run(&w, ROZO__OP__ST_REDIST, &req.base, NULL, 0, NULL),
                     ROZO__STATUS__DENIED);
    world_free(&w);
}

/* A header that cannot be read cannot be changed: it may be readable again later. */
static void a_damaged_file_refuses(void **state)
{
    uint8_t byte = 0x55;
    struct world w;

    (void)state;
    begin(&w, 6);
    world_restart(&w, false);
    memdisk_poke(&w.disk, world_file(&w, 0), 40, &byte, 1);
    new_ref(&w);
    assert_int_equal(world_redist(&w, 0), ROZO__STATUS__DAMAGED);
    world_free(&w);
}

/* The power goes at the disk request number `cut`. False: there were fewer. */
static bool redist_is_cut(unsigned cut)
{
    struct world w;
    uint16_t status;
    bool is_cut;

    begin(&w, cut);
    new_ref(&w);
    w.disk.cut_at = w.disk.n_requests + cut;
    status = world_redist(&w, 0);
    is_cut = w.disk.is_cut;
    assert_int_equal(status == OK, !is_cut);
    world_restart(&w, true);
    expect_data(&w); /* a later distribution is served, whichever one the headers have */
    if (!is_cut) {
        assert_int_equal(header(&w, 2).dist_generation, 1);
        assert_int_equal(header(&w, 0).dist_generation, 1);
    }
    assert_int_equal(world_redist(&w, 0), OK);
    world_restart(&w, true);
    for (unsigned p = 0; p < 3; p += 2) {
        assert_int_equal(header(&w, p).dist_generation, 1);
        assert_int_equal(header(&w, p).n_storages, 4);
        assert_false(header(&w, p).partial);
    }
    expect_data(&w);
    world_free(&w);
    return is_cut;
}

static void the_power_goes_at_every_disk_request(void **state)
{
    unsigned n = 0;

    (void)state;
    for (unsigned cut = 1; redist_is_cut(cut); cut++)
        n++;
    assert_in_range(n, 8, 40);
}

/* The header page, or its copy, rots after the change. */
static void each_page_alone_is_enough(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t byte = 0x55;
        struct world w;

        begin(&w, 7 + i);
        new_ref(&w);
        assert_int_equal(world_redist(&w, 0), OK);
        world_restart(&w, false);
        memdisk_poke(&w.disk, world_file(&w, 2), i == 0 ? 40 : PROJFILE_COPY_AT + 40,
                     &byte, 1);
        expect_data(&w);
        old_ref(&w);
        assert_int_equal(ask(&w, 1), STALE);
        world_free(&w);
    }
}

/* A file in the place of a lost home is partial: blocks it lacks may have been
 * written. */
static void a_partial_file_is_made(void **state)
{
    struct seen seen[2];
    struct world w;

    (void)state;
    world_init(&w, 9);
    w.role = RPC_ROLE_NODE;
    new_ref(&w);
    assert_int_equal(world_redist(&w, 1u << 2), OK);
    for (unsigned again = 0; again < 3; again++) {
        assert_int_equal(world_read(&w, 2, 0, 2, seen, NULL), OK);
        assert_int_equal(seen[0].kind, SEEN_DAMAGED);
        assert_true(header(&w, 2).partial);
        if (again == 0)
            assert_int_equal(world_redist(&w, 1u << 2), OK);
        else
            world_restart(&w, again == 1);
    }
    assert_int_equal(world_write(&w, 2, 0, 1, V(5, 1), 8192, true, NULL), OK);
    assert_int_equal(world_read(&w, 2, 0, 2, seen, NULL), OK);
    assert_int_equal(seen[0].kind, SEEN_DATA);
    assert_int_equal(seen[1].kind, SEEN_DAMAGED);
    assert_int_equal(world_whole(&w, 1u << 2), OK);
    world_expect(&w, 2, 1, SEEN_HOLE, 0);
    old_ref(&w);
    assert_int_equal(ask(&w, 1), STALE);
    world_free(&w);
}

/* Goal: a file made for a change that may never take effect says so until the
 * storage hears that it did, whatever the power takes. */
static void a_prepared_file_says_so_until_it_counts(void **state)
{
    bool is_cut = true;

    (void)state;
    for (unsigned cut = 0; is_cut; cut++) {
        struct seen seen[1];
        uint16_t status;
        struct world w;

        world_init(&w, 60 + cut);
        w.role = RPC_ROLE_NODE;
        new_ref(&w);
        assert_int_equal(world_prepare(&w, 1u << 2), OK);
        assert_int_equal(world_prepare(&w, 1u << 2), OK);
        world_restart(&w, true);
        assert_true(header(&w, 2).prepared && header(&w, 2).partial);
        w.disk.cut_at = w.disk.n_requests + cut + 1;
        status = world_redist(&w, 1u << 2);
        is_cut = w.disk.is_cut;
        assert_int_equal(status == OK, !is_cut);
        world_restart(&w, true);
        if (is_cut)
            assert_int_equal(world_redist(&w, 0), OK); /* as to those that were away */
        assert_false(header(&w, 2).prepared);
        assert_int_equal(world_prepare(&w, 1u << 2), OK); /* late */
        assert_false(header(&w, 2).prepared);
        assert_int_equal(world_read(&w, 2, 0, 1, seen, NULL), OK);
        assert_int_equal(seen[0].kind, SEEN_DAMAGED);
        world_free(&w);
    }
}

/* Overwrites that wait in the journal, and marks, are applied by what it noted before. */
static void what_waits_in_the_journal_stays(void **state)
{
    (void)state;
    for (unsigned power = 0; power < 2; power++) {
        struct world w;

        begin(&w, 10 + power);
        assert_int_equal(world_write(&w, 2, 0, 5, V(2, 1), 8192, true, NULL), OK);
        assert_int_equal(world_mark(&w, 2, 10, 0, V(2, 2)), OK);
        assert_int_equal(world_sync(&w), OK);
        new_ref(&w);
        assert_int_equal(world_redist(&w, 0), OK);
        world_restart(&w, power == 1);
        assert_int_equal(world_commit(&w, V(2, 2)), OK);
        world_apply(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        world_expect(&w, 2, 4, SEEN_DATA, V(2, 1));
        world_expect(&w, 2, 10, SEEN_HOLE, V(2, 2));
        assert_int_equal(header(&w, 2).dist_generation, 1);
        world_free(&w);
    }
}

/* Files and journal records of an earlier time as a candidate: projection 2 as a
 * home, 0 as a spare, with records in place, committed, and pending. */
static void begin_with_leftovers(struct world *w, uint64_t seed)
{
    begin(w, seed);
    assert_int_equal(world_write(w, 2, 0, 5, V(2, 1), 8192, true, NULL), OK);
    assert_int_equal(world_commit(w, V(2, 1)), OK);
    world_apply(w);
    assert_int_equal(world_write(w, 2, 5, 5, V(2, 2), 8192, true, NULL), OK);
    assert_int_equal(world_write(w, 0, 3, 2, V(2, 3), 8192, true, NULL), OK);
    assert_int_equal(world_mark(w, 2, 15, 0, V(2, 4)), OK);
    assert_int_equal(world_sync(w), OK);
    new_ref(w);
}

static void expect_all_unknown(struct world *w)
{
    struct seen seen[30];

    assert_true(header(w, 2).partial);
    assert_int_equal(header(w, 2).dist_generation, 1);
    assert_null(world_file(w, 0));
    assert_int_equal(world_read(w, 2, 0, 30, seen, NULL), OK);
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(seen[i].kind, SEEN_DAMAGED);
}

/* Goal: a storage that gets a place in a file again answers nothing from what it had
 * of the file before: not old records, and above all not "never written". */
static void leftovers_of_an_earlier_distribution_go(void **state)
{
    (void)state;
    for (unsigned power = 0; power < 2; power++) {
        struct seen seen[2];
        struct world w;

        begin_with_leftovers(&w, 20 + power);
        assert_int_equal(world_redist(&w, 1u << 2), OK);
        expect_all_unknown(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        world_restart(&w, power == 1);
        expect_all_unknown(&w);
        assert_int_equal(world_health(&w).pending_records, 0);
        /* Records of the same generation stay when the request is repeated. */
        assert_int_equal(world_write(&w, 2, 0, 1, V(5, 1), 8192, true, NULL), OK);
        assert_int_equal(world_redist(&w, 1u << 2), OK);
        world_restart(&w, power == 1);
        assert_int_equal(world_read(&w, 2, 0, 2, seen, NULL), OK);
        assert_int_equal(seen[0].kind, SEEN_DATA);
        assert_int_equal(seen[1].kind, SEEN_DAMAGED);
        world_free(&w);
    }
}

/* Goal: a storage that has no place in the file any more gives back what it had, but not
 * what it has got by a later change, whose request may have overtaken this one. */
static void a_storage_without_a_place_gives_back_the_space(void **state)
{
    static const uint32_t elsewhere[] = { 1, 2, 9, 7 }, back[] = { 1, 2, 3, 7 };
    struct world w;

    (void)state;
    begin_with_leftovers(&w, 30);
    assert_int_equal(world_leave(&w),
                     ROZO__STATUS__BAD_REQUEST); /* the storage has a place there */
    lies_at(&w, elsewhere, 4, 2);
    assert_int_equal(world_leave(&w), OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_null(world_file(&w, 0));
        assert_null(world_file(&w, 2));
        world_restart(&w, i == 0);
    }
    assert_int_equal(world_health(&w).pending_records, 0);
    lies_at(&w, back, 4, 3);
    assert_int_equal(world_redist(&w, 1u << 2), OK);
    assert_int_equal(world_write(&w, 2, 0, 1, V(5, 1), 8192, true, NULL), OK);
    lies_at(&w, elsewhere, 4, 2);
    assert_int_equal(world_leave(&w), OK); /* late */
    lies_at(&w, back, 4, 3);
    world_expect(&w, 2, 0, SEEN_DATA, V(5, 1));
    world_free(&w);
}

static bool leftovers_are_cut(unsigned cut)
{
    struct world w;
    bool is_cut;

    begin_with_leftovers(&w, 40 + cut);
    w.disk.cut_at = w.disk.n_requests + cut;
    world_redist(&w, 1u << 2);
    is_cut = w.disk.is_cut;
    world_restart(&w, true);
    assert_int_equal(world_redist(&w, 1u << 2), OK);
    expect_all_unknown(&w);
    world_restart(&w, true);
    expect_all_unknown(&w);
    world_free(&w);
    return is_cut;
}

/* Goal: no power cut while leftovers are removed brings a part of them back. */
static void leftovers_go_whenever_the_power_fails(void **state)
{
    unsigned n = 0;

    (void)state;
    for (unsigned cut = 1; leftovers_are_cut(cut); cut++)
        n++;
    assert_in_range(n, 8, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_goes_by_an_earlier_one_is_sent_away),
        cmocka_unit_test(a_later_one_is_served_and_not_taken_over),
        cmocka_unit_test(what_is_made_later_has_the_later_one),
        cmocka_unit_test(repeats_and_nonsense),
        cmocka_unit_test(clients_may_not),
        cmocka_unit_test(a_damaged_file_refuses),
        cmocka_unit_test(the_power_goes_at_every_disk_request),
        cmocka_unit_test(each_page_alone_is_enough),
        cmocka_unit_test(a_partial_file_is_made),
        cmocka_unit_test(a_prepared_file_says_so_until_it_counts),
        cmocka_unit_test(what_waits_in_the_journal_stays),
        cmocka_unit_test(leftovers_of_an_earlier_distribution_go),
        cmocka_unit_test(leftovers_go_whenever_the_power_fails),
        cmocka_unit_test(a_storage_without_a_place_gives_back_the_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
