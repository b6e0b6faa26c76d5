/*
 * test_member.c - whole members, three of them: log, vote, links, kv. Whatever happens to
 * a minority, what was acknowledged is there on every later leader.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exportd/quorum/member_in.h"
#include "exportd/quorum/raft/raft_core.h"
#include "exportd/store/key.h"
#include "tests/unit/quorum/written_world.h"
#include "tests/unit/unit.h"

static void three_members_hold_what_one_commits(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n;

    (void)state;
    written_init(w, 1);
    n = member_world_wait_for_leader(&w->m);
    for (unsigned i = 0; i < 50; i++)
        written_write(w, n, 8);
    written_write(w, n, 3 << 20); /* in several entries */
    member_world_run_ms(&w->m, 500);
    assert_int_equal(w->n_acked, 51);
    written_leader_check(w, n);
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* The answer to the call with an entry says that the entry is written, or synced. */
static void a_change_costs_one_call_to_each_other_member(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (unsigned lazy = 0; lazy < 2; lazy++) {
        struct member_node *n;
        unsigned n_out = 0, n_back = 0;

        written_init_as(w, 3, lazy);
        w->m.is_lossless = true;
        n = member_world_wait_for_leader(&w->m);
        written_write(w, n, 8);
        member_world_run_ms(&w->m, 500);
        for (unsigned i = 0; i < MEMBERS; i++)
            w->m.links[n->i][i].n_calls = w->m.links[i][n->i].n_calls = 0;
        for (unsigned i = 0; i < 50; i++) {
            written_write(w, n, 8);
            member_world_run_ms(&w->m, 5);
        }
        for (unsigned i = 0; i < MEMBERS; i++) {
            n_out += w->m.links[n->i][i].n_calls;
            n_back += w->m.links[i][n->i].n_calls;
        }
        member_world_run_ms(&w->m, 300);
        assert_int_equal(w->n_acked, 51);
        assert_true(n_out >= 50 && n_back * 4 <= n_out);
        written_free(w);
    }
    free(w);
}

/* A follower's core has nothing to do with entries that are not stable yet. */
static void a_follower_wakes_its_core_when_entries_are_stable(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n;

    (void)state;
    written_init_as(w, 3, true);
    w->m.is_lossless = true;
    n = member_world_wait_for_leader(&w->m);
    written_write(w, n, 8);
    member_world_run_ms(&w->m, 500);
    for (unsigned i = 0; i < MEMBERS; i++)
        w->m.nodes[i].n_wakes = 0;
    for (unsigned i = 0; i < 200; i++) {
        written_write(w, n, 8);
        member_world_run_ms(&w->m, 5);
    }
    for (unsigned i = 0; i < MEMBERS; i++)
        assert_true(i == n->i || w->m.nodes[i].n_wakes <= 200 / 10);
    member_world_run_ms(&w->m, 2000);
    assert_int_equal(w->n_acked, 201);
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* Entries that were committed and not stable reach the kv of a member that begins to
 * lead. */
static void a_new_leader_has_what_was_only_committed(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n;

    (void)state;
    written_init_as(w, 4, true);
    n = member_world_wait_for_leader(&w->m);
    for (unsigned i = 0; i < 20; i++)
        written_write(w, n, 8);
    while (w->n_acked < 20)
        member_world_run_ms(&w->m, 1);
    member_node_kill(n, false);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    member_node_start(n);
    member_world_run_ms(&w->m, 3000);
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

static void leadership_goes_over_when_asked(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *a, *b;
    uint64_t at_ns;

    (void)state;
    written_init(w, 2);
    a = member_world_wait_for_leader(&w->m);
    for (unsigned i = 0; i < 10; i++)
        written_write(w, a, 8);
    member_world_run_ms(&w->m, 200);
    at_ns = env_now_ns(&w->v.env);
    assert_int_equal(member_transfer(a->member, 0), 0);
    written_write(w, a, 8); /* refused, or never acknowledged */
    b = member_world_wait_for_leader(&w->m);
    assert_ptr_not_equal(a, b);
    assert_true(env_now_ns(&w->v.env) - at_ns <= ms_to_ns(300));
    written_leader_check(w, b);
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* A leader that is cut off answers nothing once its lease has ended. */
static void a_leader_that_is_cut_off_gives_up(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *a, *b;

    (void)state;
    written_init(w, 3);
    a = member_world_wait_for_leader(&w->m);
    member_world_cut_off(&w->m, a->i);
    written_write(w, a, 8);
    member_world_run_ms(&w->m, RAFT_ELECTION_MS);
    assert_true(member_lease_until_ns(a->member) <= env_now_ns(&w->v.env));
    b = member_world_wait_for_leader(&w->m);
    assert_ptr_not_equal(a, b);
    for (unsigned i = 0; i < 20; i++)
        written_write(w, b, 8);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_acked, 20);
    member_world_connect_all(&w->m);
    member_world_run_ms(&w->m, 2000);
    assert_false(a->leads);
    written_all_are_equal(w);
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    written_free(w);
    free(w);
}

/* The leader is dead, and its machine refuses links: mostly less than an election
 * timeout; now and then both others campaign at the same time. */
static void another_member_leads_soon_when_links_are_refused(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    unsigned n_soon = 0;

    (void)state;
    for (unsigned seed = 1; seed <= 10; seed++) {
        struct member_node *a, *b;
        uint64_t at_ns;

        written_init(w, seed);
        a = member_world_wait_for_leader(&w->m);
        for (unsigned i = 0; i < 10; i++)
            written_write(w, a, 8);
        member_world_run_ms(&w->m, 200);
        member_node_kill(a, false);
        at_ns = env_now_ns(&w->v.env);
        for (unsigned i = 0; i < MEMBERS; i++) {
            struct member_node *n = &w->m.nodes[i];

            if (n == a)
                continue;
            member_refused(n->member, &w->m.links[i][(a->i + 1) % MEMBERS].channel);
            member_refused(n->member, &w->m.links[i][a->i].channel);
        }
        b = member_world_wait_for_leader(&w->m);
        assert_ptr_not_equal(a, b);
        n_soon += env_now_ns(&w->v.env) - at_ns < ms_to_ns(RAFT_ELECTION_MS);
        written_leader_check(w, b);
        written_free(w);
    }
    assert_true(n_soon >= 8);
    free(w);
}

static void on_refused(struct kv_done *done, int rc)
{
    assert_int_equal(rc, -ROZO_ENOT_LEADER);
    done->rc = 1;
}

/* The member was deposed and leads again, while its core hung: what the core believes is
 * of its former reign. */
static void a_core_that_slept_through_a_reign_is_none(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    const struct kv_item item = { "K00", 3, "12345678", 8 };
    struct kv_done done = { .fn = on_refused };
    struct member_node *a, *b;

    (void)state;
    written_init(w, 5);
    a = member_world_wait_for_leader(&w->m);
    a->core_hangs = true;
    member_world_cut_off(&w->m, a->i);
    member_world_run_ms(&w->m, 2 * RAFT_ELECTION_MS);
    b = member_world_wait_for_leader(&w->m);
    for (unsigned i = 0; i < 20; i++)
        written_write(w, b, 8);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_acked, 20);
    member_world_connect_all(&w->m);
    member_world_run_ms(&w->m, 2 * RAFT_ELECTION_MS);
    assert_int_equal(member_transfer(b->member, 100 + a->i), 0);
    member_world_run_ms(&w->m, 2 * RAFT_ELECTION_MS);
    assert_false(b->leads);
    assert_false(kv_confirm(kv_quorum_kv(a->kv), NULL));
    kv_commit(kv_quorum_kv(a->kv), &item, 1, &done);
    member_world_run_ms(&w->m, 300);
    member_node_resume_core(a);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(done.rc, 1);
    assert_ptr_equal(member_world_wait_for_leader(&w->m), a);
    written_leader_check(w, a);
    written_write(w, a, 8);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_acked, 21);
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* The log is trimmed; entries that are not in memory are read for members that return. */
static void a_member_that_was_away_gets_what_it_missed(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_status s;
    struct member_node *n, *away;

    (void)state;
    written_init(w, 4);
    n = member_world_wait_for_leader(&w->m);
    away = &w->m.nodes[(n->i + 1) % MEMBERS];
    member_node_kill(away, false);
    for (unsigned i = 0; i < 40; i++) {
        written_write(w, n, 64 << 10);
        member_world_run_ms(&w->m, 20);
    }
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_acked, 40);
    member_node_start(away);
    written_all_are_equal(w);
    for (unsigned i = 0; i < 100; i++) { /* everybody is there: the log stays small */
        written_write(w, n, 256 << 10);
        member_world_run_ms(&w->m, 20);
    }
    written_all_are_equal(w);
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_status(w->m.nodes[i].member, &s);
        assert_true(s.first > 40 && s.log_bytes <= 12 << 20);
    }
    for (unsigned i = 0; i < MEMBERS; i++) {
        member_node_kill(&w->m.nodes[i], true);
        member_node_start(&w->m.nodes[i]);
    }
    written_leader_check(w, member_world_wait_for_leader(&w->m));
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

/* Kills, losses of power of a minority, and partitions, while values are written. */
static void by_chance(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 100; seed < 100 + unit_seeds(80); seed += UNIT_STEP) {
        unsigned n_acked;

        written_init(w, seed);
        for (unsigned i = 0; i < 300; i++) {
            struct member_node *n = &w->m.nodes[env_virtual_below(&w->v, MEMBERS)];
            unsigned n_up = 0;

            for (unsigned j = 0; j < MEMBERS; j++)
                n_up += w->m.nodes[j].is_up;
            switch (env_virtual_below(&w->v, 40)) {
            case 0:
                if (n->is_up && n_up == MEMBERS)
                    member_node_kill(n, env_virtual_below(&w->v, 2) == 0);
                break;
            case 1:
            case 2:
            case 3:
                if (!n->is_up)
                    member_node_start(n);
                break;
            case 4:
                for (unsigned j = 0; j < MEMBERS; j++)
                    w->m.cut[n->i][j] = env_virtual_below(&w->v, 2) == 0;
                break;
            case 5:
            case 6:
            case 7:
                member_world_connect_all(&w->m);
                break;
            case 8:
                if (n->is_up)
                    member_transfer(n->member, 0);
                break;
            default:
                if (n->is_up && n->leads)
                    written_write(w, n, 8 + env_virtual_below(&w->v, 3000));
            }
            member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 60));
            if (member_world_leader(&w->m) != NULL)
                written_leader_check(w, member_world_leader(&w->m));
        }
        member_world_connect_all(&w->m);
        for (unsigned i = 0; i < MEMBERS; i++)
            if (!w->m.nodes[i].is_up)
                member_node_start(&w->m.nodes[i]);
        member_world_run_ms(&w->m, 3000);
        n_acked = w->n_acked;
        written_write(w, member_world_wait_for_leader(&w->m), 8);
        member_world_run_ms(&w->m, 1000);
        assert_true(w->n_acked > n_acked);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        written_all_are_equal(w);
        written_free(w);
    }
    free(w);
}

/* Processes of all members die at once, at any time, with nothing synced. */
static void what_is_written_outlives_all_processes(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        written_init_as(w, seed, true);
        for (unsigned round = 0; round < 5; round++) {
            struct member_node *n = member_world_wait_for_leader(&w->m);
            uint64_t n_acked = w->n_acked;

            written_leader_check(w, n);
            for (unsigned i = 0; i < 30; i++) {
                written_write(w, n, 8 + env_virtual_below(&w->v, 3000));
                if (env_virtual_below(&w->v, 30) == 0)
                    written_sync(w, n);
                member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 20));
            }
            assert_true(w->n_acked > n_acked);
            for (unsigned i = 0; i < MEMBERS; i++)
                member_node_kill(&w->m.nodes[i], false);
            for (unsigned i = 0; i < MEMBERS; i++)
                member_node_start(&w->m.nodes[i]);
        }
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        written_all_are_equal(w);
        written_free(w);
    }
    free(w);
}

static void write_some(struct written_world *w, struct member_node *n, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        written_write(w, n, 8 + env_virtual_below(&w->v, 3000));
        if (env_virtual_below(&w->v, 20) == 0)
            written_sync(w, n);
        member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 20));
    }
}

/* One member after the other loses its power: nothing is lost, and none is counted. */
static void a_minority_without_power_loses_nothing(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        written_init_as(w, seed, true);
        for (unsigned round = 0; round < 6; round++) {
            struct member_node *n = &w->m.nodes[env_virtual_below(&w->v, MEMBERS)];

            write_some(w, member_world_wait_for_leader(&w->m), 20);
            member_node_kill(n, true);
            if (env_virtual_below(&w->v, 2) == 0)
                member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 3000));
            member_node_start(n);
            written_leader_check(w, member_world_wait_for_leader(&w->m));
            written_all_are_equal(w); /* the member takes part again */
            assert_int_equal(written_losses(member_world_wait_for_leader(&w->m)), 0);
        }
        written_free(w);
    }
    free(w);
}

/* All lose power at once, or a majority does; some crash again before they vote. */
static void a_majority_without_power_loses_nothing_synced_and_counts(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    unsigned n_lost = 0;

    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(40); seed += UNIT_STEP) {
        written_init_as(w, seed, true);
        for (unsigned round = 0; round < 4; round++) {
            struct member_node *n = member_world_wait_for_leader(&w->m);
            unsigned spared =
                (unsigned)env_virtual_below(&w->v, MEMBERS + 1); /* MEMBERS: none */
            uint64_t losses = written_losses(n);

            write_some(w, n, 30);
            for (unsigned i = 0; i < MEMBERS; i++)
                member_node_kill(&w->m.nodes[i], i != spared);
            for (unsigned i = 0; i < MEMBERS; i++) {
                n = &w->m.nodes[(i + seed) % MEMBERS];
                member_node_start(n);
                member_world_run_ms(&w->m, (unsigned)env_virtual_below(&w->v, 2000));
                assert_null(i + 1 < MEMBERS ? member_world_leader(&w->m) : NULL);
                if (env_virtual_below(&w->v, 4) == 0) {
                    member_node_kill(n, env_virtual_below(&w->v, 2) == 0);
                    member_node_start(n);
                }
            }
            n = member_world_wait_for_leader(&w->m);
            n_lost += written_losses_take(w, n);
            assert_true(written_losses(n) > losses);
            written_all_are_equal(w);
            member_world_run_ms(&w->m, 3000);
            losses = written_losses(member_world_wait_for_leader(&w->m));
            for (unsigned i = 0; i < MEMBERS; i++) { /* the loss is counted once */
                member_node_kill(&w->m.nodes[i], false);
                member_node_start(&w->m.nodes[i]);
            }
            assert_int_equal(written_losses(member_world_wait_for_leader(&w->m)), losses);
        }
        written_free(w);
    }
    assert_true(n_lost > 0);
    free(w);
}

/* All lose power. A member that leads hands over before it could count the loss: it
 * waits, and the loss is counted all the same. */
static void a_loss_is_counted_although_the_leader_hands_over(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    unsigned n_early = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct member_status s = { .leads = false };

        written_init_as(w, seed, true);
        write_some(w, member_world_wait_for_leader(&w->m), 10);
        for (unsigned i = 0; i < MEMBERS; i++)
            member_node_kill(&w->m.nodes[i], true);
        for (unsigned i = 0; i < MEMBERS; i++)
            member_node_start(&w->m.nodes[i]);
        for (unsigned ms = 0; ms < 20000 && !s.leads; ms++) {
            member_world_run_ms(&w->m, 1);
            for (unsigned i = 0; i < MEMBERS && !s.leads; i++) {
                member_status(w->m.nodes[i].member, &s);
                if (!s.leads)
                    continue;
                n_early += !s.is_ready;
                assert_int_equal(member_transfer(w->m.nodes[i].member, 0), 0);
            }
        }
        assert_true(s.leads);
        assert_true(written_losses(member_world_wait_for_leader(&w->m)) > 0);
        written_all_are_equal(w);
        written_free(w);
    }
    assert_int_equal(n_early, 4);
    free(w);
}

/* The leader goes on while all others lose power: it has all that was acknowledged, and
 * leads again although the others could elect each other. */
static void the_longest_log_leads_after_a_loss(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(20); seed += UNIT_STEP) {
        struct member_node *n;

        written_init_as(w, seed, true);
        n = member_world_wait_for_leader(&w->m);
        write_some(w, n, 20);
        for (unsigned i = 0; i < MEMBERS; i++)
            w->m.nodes[i].disk.hold_syncs = i != n->i;
        for (unsigned i = 0; i < 10; i++) {
            written_write(w, n, 8);
            member_world_run_ms(&w->m, 10);
        }
        for (unsigned i = 0; i < MEMBERS; i++) {
            if (i == n->i)
                continue;
            w->m.nodes[i].disk.hold_syncs = false;
            memdisk_release(&w->m.nodes[i].disk);
            member_node_kill(&w->m.nodes[i], true);
        }
        if (seed % 2 == 0) /* the leader steps down before they return, or not */
            member_world_run_ms(&w->m, 3000);
        for (unsigned i = 0; i < MEMBERS; i++)
            if (i != n->i)
                member_node_start(&w->m.nodes[i]);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        written_all_are_equal(w);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        written_free(w);
    }
    free(w);
}

/* Runs until the start of a member waits for its boot record, whose sync is held. */
static void wait_for_boot_record(struct written_world *w, struct member_node *n)
{
    struct memdisk *d = &n->disk;

    for (unsigned ms = 0; ms < 1000; ms++) {
        member_world_run_ms(&w->m, 1);
        if (d->n_held > 0 && strcmp(d->held[0]->file->path, "boot") == 0)
            return;
        memdisk_release(d);
    }
    fail_msg("no boot record is written");
}

/* One member loses power, and the process of another one starts meanwhile, which has
 * all: it is not uncertain, so the two others must wait for it. */
static void a_member_that_starts_is_not_uncertain(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 0; seed < unit_seeds(10); seed += UNIT_STEP) {
        struct member_node *n, *powerless, *last;

        written_init_as(w, seed, true);
        n = member_world_wait_for_leader(&w->m);
        powerless = &w->m.nodes[(n->i + 1) % MEMBERS];
        last = &w->m.nodes[(n->i + 2) % MEMBERS];
        write_some(w, n, 10);
        member_world_cut_off(&w->m, last->i);
        powerless->disk.hold_syncs = true;
        for (unsigned i = 0; i < 10; i++) {
            written_write(w, n, 8);
            member_world_run_ms(&w->m, 10);
        }
        member_node_kill(n, false);
        powerless->disk.hold_syncs = false;
        powerless->disk.is_cut = true;
        memdisk_release(&powerless->disk);
        member_node_kill(powerless, true);
        n->disk.hold_syncs = true;
        member_node_begin(n);
        wait_for_boot_record(w, n);
        member_world_connect_all(&w->m);
        member_node_start(powerless);
        member_world_run_ms(&w->m, 10000);
        n->disk.hold_syncs = false;
        memdisk_release(&n->disk);
        n = member_world_wait_for_leader(&w->m);
        written_leader_check(w, n);
        assert_int_equal(written_losses(n), 0);
        written_all_are_equal(w);
        written_free(w);
    }
    free(w);
}

/* Members that ended in order have synced all: no loss of power counts. */
static void an_orderly_end_leaves_no_doubt(void **state)
{
    struct written_world *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 0; seed < 10; seed += UNIT_STEP) {
        written_init_as(w, seed, true);
        write_some(w, member_world_wait_for_leader(&w->m), 30);
        for (unsigned i = 0; i < MEMBERS; i++) {
            member_node_stop(&w->m.nodes[i]);
            member_node_lose_power(&w->m.nodes[i]);
        }
        for (unsigned i = 0; i < MEMBERS; i++)
            member_node_start(&w->m.nodes[i]);
        written_leader_check(w, member_world_wait_for_leader(&w->m));
        assert_int_equal(written_losses(member_world_wait_for_leader(&w->m)), 0);
        written_all_are_equal(w);
        written_free(w);
    }
    free(w);
}

/* A sync ends when a majority has synced, long before the time of a sync that may wait;
 * a plain change does not wait for any disk. */
static void a_change_waits_for_no_disk_and_a_sync_does(void **state)
{
    struct written_world *w = malloc(sizeof(*w));
    struct member_node *n;

    (void)state;
    written_init_as(w, 1, true);
    n = member_world_wait_for_leader(&w->m);
    for (unsigned i = 0; i < MEMBERS; i++)
        w->m.nodes[i].disk.hold_syncs = true;
    written_write(w, n, 8);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_acked, 1);
    written_sync(w, n);
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_synced, 0);
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct memdisk *d = &w->m.nodes[i].disk;

        assert_true(d->n_held > 0);
        d->hold_syncs = i != n->i && i != (n->i + 1) % MEMBERS; /* one stays slow */
        if (!d->hold_syncs)
            memdisk_release(d);
    }
    member_world_run_ms(&w->m, 300);
    assert_int_equal(w->n_synced, 1);
    for (unsigned i = 0; i < MEMBERS; i++) {
        w->m.nodes[i].disk.hold_syncs = false;
        memdisk_release(&w->m.nodes[i].disk);
    }
    written_all_are_equal(w);
    written_free(w);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_members_hold_what_one_commits),
        cmocka_unit_test(a_change_costs_one_call_to_each_other_member),
        cmocka_unit_test(a_follower_wakes_its_core_when_entries_are_stable),
        cmocka_unit_test(a_new_leader_has_what_was_only_committed),
        cmocka_unit_test(leadership_goes_over_when_asked),
        cmocka_unit_test(a_leader_that_is_cut_off_gives_up),
        cmocka_unit_test(another_member_leads_soon_when_links_are_refused),
        cmocka_unit_test(a_core_that_slept_through_a_reign_is_none),
        cmocka_unit_test(a_member_that_was_away_gets_what_it_missed),
        cmocka_unit_test(by_chance),
        cmocka_unit_test(what_is_written_outlives_all_processes),
        cmocka_unit_test(a_minority_without_power_loses_nothing),
        cmocka_unit_test(a_majority_without_power_loses_nothing_synced_and_counts),
        cmocka_unit_test(a_loss_is_counted_although_the_leader_hands_over),
        cmocka_unit_test(the_longest_log_leads_after_a_loss),
        cmocka_unit_test(a_member_that_starts_is_not_uncertain),
        cmocka_unit_test(an_orderly_end_leaves_no_doubt),
        cmocka_unit_test(a_change_waits_for_no_disk_and_a_sync_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
