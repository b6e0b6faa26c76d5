/*
 * test_space.c - members whose disks are full: what is acknowledged stays, a minority
 * holds nobody up, and the leader is one with space.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

enum { ENTRY_BYTES = 900 << 10, FREE_LOW = 1 << 20, SYNC_MS = 10000 };
static const uint64_t free_high = UINT64_C(1) << 40;

static struct written_world *world_make(uint64_t seed)
{
    struct written_world *w = malloc(sizeof(*w));

    assert_non_null(w);
    written_init(w, seed);
    w->m.keep_bytes = UINT64_C(1) << 30; /* only a full disk trims logs */
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&w->m.nodes[i], false);
        member_node_start(&w->m.nodes[i]);
    }
    member_world_wait_for_leader(&w->m);
    return w;
}

static void world_end(struct written_world *w)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_false(w->m.nodes[i].has_failed);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* Lets the disk of a member take no more than it has. */
static void fill(struct member_node *n)
{
    n->disk.pages_max = n->disk.n_pages;
    n->disk.total = free_high;
    n->disk.free_reported = 0;
}

/* ... and waits until a sync of its store that was under way has ended. */
static void make_room(struct written_world *w, struct member_node *n)
{
    kv_memory_set_sync_ms(n->below, 0);
    member_world_run_ms(&w->m, SYNC_MS);
    n->disk.pages_max = 0;
    n->disk.free_reported = free_high;
}

static void write_some(struct written_world *w, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        written_write(w, member_world_wait_for_leader(&w->m), ENTRY_BYTES);
        member_world_run_ms(&w->m, 50);
    }
}

static uint64_t log_first(const struct member_node *n)
{
    struct member_status s;

    member_status(n->member, &s);
    return s.first;
}

/* The log drops what the store has, long before it reaches keep_bytes. */
static void a_full_disk_trims_the_log(void **state)
{
    struct written_world *w = world_make(1);

    (void)state;
    for (unsigned i = 0; i < MEMBERS; i++) {
        fill(&w->m.nodes[i]);
        w->m.nodes[i].disk.free_reported = free_high; /* the leader stays */
    }
    write_some(w, 24);
    member_world_run_ms(&w->m, 5000);
    assert_int_equal(w->n_acked, 24);
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_true(log_first(&w->m.nodes[i]) > 8);
    world_end(w);
}

/* A store that does not get stable keeps its log from dropping anything. */
static void a_full_follower_holds_nobody_up(void **state)
{
    struct written_world *w = world_make(2);
    struct member_node *leader = member_world_wait_for_leader(&w->m);
    struct member_node *n = &w->m.nodes[(leader->i + 1) % MEMBERS];
    struct member_status s;

    (void)state;
    kv_memory_set_sync_ms(n->below, SYNC_MS);
    fill(n);
    write_some(w, 20);
    for (unsigned ms = 0; ms < 1000 && w->n_acked < 20; ms++) /* a message may be lost */
        member_world_run_ms(&w->m, 1);
    assert_int_equal(w->n_acked, 20);
    member_status(n->member, &s);
    assert_true(s.applied < 15); /* the log has stopped */
    make_room(w, n);
    world_end(w);
}

static void a_full_leader_hands_over(void **state)
{
    struct written_world *w = world_make(3);
    struct member_node *n = member_world_wait_for_leader(&w->m);

    (void)state;
    kv_memory_set_sync_ms(n->below, SYNC_MS);
    fill(n);
    n->disk.free_reported = free_high; /* only its log shows it */
    write_some(w, 12);
    member_world_run_ms(&w->m, 3000);
    assert_ptr_not_equal(member_world_wait_for_leader(&w->m), n);
    write_some(w, 12);
    make_room(w, n);
    world_end(w);
}

/* Waits until the leader's kv says that so many bytes are free. */
static void wait_for_free(struct written_world *w, uint64_t bytes)
{
    for (unsigned ms = 0; ms < 20000; ms++) {
        struct member_node *n = member_world_wait_for_leader(&w->m);

        if (kv_free_bytes(kv_quorum_kv(n->kv)) == bytes)
            return;
        member_world_run_ms(&w->m, 1);
    }
    fail_msg("another number of free bytes");
}

static void free_bytes_are_those_of_a_majority(void **state)
{
    struct written_world *w = world_make(4);
    struct member_node *leader = member_world_wait_for_leader(&w->m);
    struct member_node *a = &w->m.nodes[(leader->i + 1) % MEMBERS];
    struct member_node *b = &w->m.nodes[(leader->i + 2) % MEMBERS];

    (void)state;
    for (unsigned i = 0; i < MEMBERS; i++) {
        kv_memory_set_free(w->m.nodes[i].below, free_high);
        w->m.nodes[i].disk.total = w->m.nodes[i].disk.free_reported = free_high;
    }
    wait_for_free(w, free_high);
    a->disk.free_reported = FREE_LOW;
    member_world_run_ms(&w->m, 3000);
    wait_for_free(w, free_high); /* two others have space */
    b->disk.free_reported = FREE_LOW + 1;
    wait_for_free(w, FREE_LOW + 1);
    a->disk.free_reported = free_high;
    wait_for_free(w, free_high);
    member_node_kill(b, false); /* one that does not answer has no space */
    a->disk.free_reported = FREE_LOW;
    wait_for_free(w, FREE_LOW);
    member_node_start(b);
    world_end(w);
}

/* All machines were suspended: nothing was heard of the others for long, and the leader
 * may look at its space before that changes. */
static void a_leader_that_was_suspended_has_space(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        struct written_world *w = world_make(100 + seed);
        struct member_node *leader;

        for (unsigned i = 0; i < MEMBERS; i++) {
            kv_memory_set_free(w->m.nodes[i].below, free_high);
            w->m.nodes[i].disk.total = w->m.nodes[i].disk.free_reported = free_high;
        }
        wait_for_free(w, free_high);
        member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 1000));
        leader = member_world_wait_for_leader(&w->m);
        w->v.now_ns += UINT64_C(10000000000);
        for (unsigned ms = 0; ms < 2000 && leader->leads; ms++) {
            member_world_run_ms(&w->m, 1);
            assert_int_equal(kv_free_bytes(kv_quorum_kv(leader->kv)), free_high);
        }
        world_end(w);
    }
}

static void a_nearly_full_leader_lets_one_with_space_lead(void **state)
{
    struct written_world *w = world_make(5);
    struct member_node *n = member_world_wait_for_leader(&w->m);
    struct member_node *to = &w->m.nodes[(n->i + 1) % MEMBERS];

    (void)state;
    for (unsigned i = 0; i < MEMBERS; i++) {
        w->m.nodes[i].disk.total = free_high;
        w->m.nodes[i].disk.free_reported = &w->m.nodes[i] == to ? free_high : FREE_LOW;
    }
    for (unsigned ms = 0; ms < 20000 && member_world_leader(&w->m) != to; ms++)
        member_world_run_ms(&w->m, 1);
    member_world_run_ms(&w->m, 5000);
    assert_ptr_equal(member_world_wait_for_leader(&w->m), to);
    world_end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_trims_the_log),
        cmocka_unit_test(a_full_follower_holds_nobody_up),
        cmocka_unit_test(a_full_leader_hands_over),
        cmocka_unit_test(free_bytes_are_those_of_a_majority),
        cmocka_unit_test(a_leader_that_was_suspended_has_space),
        cmocka_unit_test(a_nearly_full_leader_lets_one_with_space_lead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
