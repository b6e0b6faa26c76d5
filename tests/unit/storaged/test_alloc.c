/* test_alloc.c - ST_ALLOC: granted space can be written on a full disk, space that was
 * refused is not kept, and released space is free. */
#include <stdlib.h>

#include "common/wire/record.h"
#include "tests/unit/storaged/world.h"

enum {
    OK = ROZO__STATUS__OK,
    GRANTED = 300,
    SLACK = 40 /* pages for heads, marks and the header */
};
static const uint64_t v1 = UINT64_C(1) << 32 | 1, v2 = UINT64_C(2) << 32 | 1,
                      v3 = UINT64_C(3) << 32 | 1;

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_init(&w, 5);
    w.disk.total = w.disk.free_reported = UINT64_C(1) << 32;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_free(&w);
    return 0;
}

static Rozo__StAllocResp *got;

/* Asks for space, and gives back what an earlier answer took (NULL: nothing). The answer
 * is in `got`. */
static uint16_t alloc(uint64_t first, uint64_t n, const Rozo__StAllocResp *give_back)
{
    Rozo__StAllocReq req = ROZO__ST_ALLOC_REQ__INIT;
    struct test_ref ref;
    struct test_call *c;
    uint16_t status;

    ref_init(&w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.first_block = first;
    req.n_blocks = n;
    if (give_back != NULL) {
        req.give_back = give_back->taken;
        req.n_give_back = give_back->n_taken;
    }
    status = call_run(&w, ROZO__OP__ST_ALLOC, &req.base, NULL, 0, &c);
    got = status == ROZO__STATUS__OK
              ? rozo__st_alloc_resp__unpack(NULL, c->msg_len, c->msg)
              : NULL;
    call_free(c);
    return status;
}

static void free_got(void)
{
    rozo__st_alloc_resp__free_unpacked(got, NULL);
    got = NULL;
}

static void granted(uint64_t first, uint64_t n)
{
    assert_int_equal(alloc(first, n, NULL), OK);
    free_got();
}

/* Fills the disk: no first write finds room from now on, though a few pages are left for
 * marks. */
static void fill(void)
{
    w.disk.free_reported = 0;
    w.disk.pages_max = w.disk.n_pages + 3;
    env_virtual_advance_ms(&w.v, 1000);
}

static uint64_t pages(void)
{
    return memdisk_allocated(world_file(&w, 0)) / MEM_PAGE;
}

static uint16_t write_some(uint64_t first, unsigned n, uint64_t version)
{
    return world_write(&w, 0, first, n, version, 8192, true, NULL);
}

static void test_reserved_space_can_be_written_on_a_full_disk(void **state)
{
    (void)state;
    granted(0, GRANTED);
    assert_in_range(pages(), GRANTED, GRANTED + SLACK);
    fill();
    assert_int_equal(write_some(0, 128, v1), OK);
    /* the unit of this block was granted, too */
    assert_int_equal(write_some(131, 1, v1), OK);
    /* half of it lies outside the grant */
    assert_int_equal(write_some(290, 20, v1), ROZO__STATUS__NO_SPACE);
    world_expect(&w, 0, 290, SEEN_HOLE, 0);
    assert_int_equal(write_some(400, 1, v1), ROZO__STATUS__NO_SPACE);
    world_restart(&w, false); /* the file system keeps the reservation */
    assert_int_equal(write_some(128, 128, v2), OK);
    assert_int_equal(write_some(256, GRANTED - 256, v1), OK);
    world_expect(&w, 0, 0, SEEN_DATA, v1);
    world_expect(&w, 0, 130, SEEN_DATA, v2);
    world_expect(&w, 0, GRANTED - 1, SEEN_DATA, v1);
}

/* A truncate that waits in the journal is older than the grant: it must not release the
 * grant. */
static void test_a_mark_that_waits_leaves_a_later_grant_alone(void **state)
{
    (void)state;
    assert_int_equal(write_some(0, 128, v1), OK);
    assert_int_equal(write_some(500, 100, v1), OK);
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), OK);
    granted(10, 300);
    assert_int_equal(world_commit(&w, v2), OK);
    world_apply(&w);
    assert_in_range(pages(), 300, 300 + SLACK); /* space outside the mark is free */
    world_expect(&w, 0, 20, SEEN_HOLE, v2);
    fill();
    assert_int_equal(write_some(10, 118, v3), OK);
    assert_int_equal(write_some(128, 128, v3), OK);
    assert_int_equal(write_some(500, 1, v3), ROZO__STATUS__NO_SPACE);
    assert_int_equal(world_commit(&w, v3), OK);
    world_apply(&w);
    world_expect(&w, 0, 10, SEEN_DATA, v3);
    world_expect(&w, 0, 255, SEEN_DATA, v3);
    world_expect(&w, 0, 300, SEEN_HOLE, v2);
}

static void test_truncate_and_punch_give_back_what_was_granted(void **state)
{
    (void)state;
    w.auto_apply = true;
    granted(0, 1000);
    assert_int_equal(world_mark(&w, 0, 128, 512, v1), OK); /* a punch */
    assert_in_range(pages(), 1000 - 512, 1000 - 512 + SLACK);
    assert_int_equal(world_mark(&w, 0, 100, 0, v2), OK); /* a truncate */
    assert_in_range(pages(), 100, 100 + SLACK);
    assert_int_equal(world_mark(&w, 0, 0, 0, v3), OK);
    assert_true(pages() <= 3);
}

static void test_failed_reservation_leaves_nothing_reserved(void **state)
{
    uint64_t before;

    (void)state;
    granted(0, 10);
    assert_int_equal(write_some(20, 5, v1), OK);
    before = pages();
    /* the disk's own ENOSPC, at any page */
    for (unsigned room = 0; room < 110; room += 7) {
        w.disk.pages_max = w.disk.n_pages + room;
        assert_int_equal(alloc(0, 128, NULL), ROZO__STATUS__NO_SPACE);
        assert_int_equal(pages(), before);
    }
    w.disk.pages_max = 0;
    w.disk.free_reported = 1 << 20;
    env_virtual_advance_ms(&w.v, 1000);
    assert_int_equal(alloc(0, 128, NULL), ROZO__STATUS__NO_SPACE);
    assert_int_equal(alloc(0, 10, NULL), OK); /* already reserved */
    assert_int_equal(got->n_taken, 0);
    free_got();
    assert_int_equal(pages(), before);
}

/* One request gives back what it took, and nothing that was granted or written by
 * others. */
static void test_giving_back_takes_only_what_was_taken(void **state)
{
    Rozo__StAllocResp *first;
    uint64_t before;

    (void)state;
    granted(0, 64);
    assert_int_equal(write_some(70, 2, v1), OK);
    before = pages();
    assert_int_equal(alloc(32, 300, NULL), OK);
    first = got;
    assert_true(first->n_taken >= 4 && first->n_taken % 2 == 0);
    assert_true(pages() >= before + 200);
    assert_int_equal(write_some(100, 1, v1), OK); /* written in between */
    assert_int_equal(alloc(0, 0, first), OK);
    assert_true(got->left_bytes > 0);
    free_got();
    assert_in_range(pages(), before, before + 2);
    fill();
    assert_int_equal(write_some(0, 64, v1), OK);
    assert_int_equal(write_some(80, 1, v1), ROZO__STATUS__NO_SPACE);
    for (unsigned b = 70; b <= 100; b += 10) {
        bool was = b == 70 || b == 100;

        world_expect(&w, 0, b, was ? SEEN_DATA : SEEN_HOLE, was ? v1 : 0);
    }
    first->taken[1] = first->taken[0]; /* invalid: not sorted */
    assert_int_equal(alloc(0, 0, first), ROZO__STATUS__BAD_REQUEST);
    first->n_taken--;
    assert_int_equal(alloc(0, 0, first), ROZO__STATUS__BAD_REQUEST);
    rozo__st_alloc_resp__free_unpacked(first, NULL);
}

/* A record that waits in the journal will need its place, so that space is not given
 * back. */
static void test_space_that_a_journal_record_needs_is_not_freed(void **state)
{
    Rozo__StAllocResp *first;

    (void)state;
    assert_int_equal(write_some(0, 2, v1), OK);
    assert_int_equal(world_mark(&w, 0, 0, 0, v2), OK);
    assert_int_equal(alloc(0, 100, NULL), OK);
    first = got;
    /* over the mark: goes into the journal */
    assert_int_equal(write_some(50, 4, v3), OK);
    assert_int_equal(alloc(0, 0, first), OK);
    free_got();
    fill();
    assert_int_equal(world_commit(&w, v2), OK);
    assert_int_equal(world_commit(&w, v3), OK);
    world_apply(&w);
    world_expect(&w, 0, 53, SEEN_DATA, v3);
    assert_int_equal(world_health(&w).uncommitted, 0);
    rozo__st_alloc_resp__free_unpacked(first, NULL);
}

/* A request for no space returns the free space that is left, also for a file that is not
 * here. */
static void test_reservation_of_nothing_returns_the_free_space(void **state)
{
    (void)state;
    w.disk.free_reported = UINT64_C(100) << 20;
    assert_int_equal(alloc(0, 0, NULL), OK);
    assert_in_range(got->left_bytes, UINT64_C(50) << 20, UINT64_C(100) << 20);
    free_got();
    assert_null(world_file(&w, 0));
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_reserved_space_can_be_written_on_a_full_disk),
        T(test_a_mark_that_waits_leaves_a_later_grant_alone),
        T(test_truncate_and_punch_give_back_what_was_granted),
        T(test_failed_reservation_leaves_nothing_reserved),
        T(test_giving_back_takes_only_what_was_taken),
        T(test_space_that_a_journal_record_needs_is_not_freed),
        T(test_reservation_of_nothing_returns_the_free_space),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
