/*
 * test_cluster.c - groups of raft cores with random failures.
 *
 * Goal: at most one leader a term, log matching, committed entries stay, all stores apply
 * the same, no stale answer under a lease; and once failures end, the group goes on.
 * Method: quorum_world.h checks the first after each event, for some hundred seeds.
 */
#include <assert.h>
#include <stdio.h>

#include "tests/unit/quorum/quorum_world.h"
#include "tests/unit/unit.h"

enum { SEEDS = 300, STEPS = 60 };

static void failures_set(struct world *w)
{
    w->loss = (unsigned)world_below(w, 4) * 50;
    w->dup = (unsigned)world_below(w, 2) * 50;
    w->late = (unsigned)world_below(w, 2) * 20;
    w->delay_max_us = world_below(w, 3) == 0 ? 20000 : 1000;
    w->write_max_us = world_below(w, 4) == 0 ? 50000 : 2000;
}

/* A firewall refuses links to k, which lives. */
static void refuse_links_to(struct world *w, unsigned k)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        struct world_node *n = &w->nodes[i];

        if (i != k && n->core != NULL && n->paused_until_ns <= w->now_ns &&
            world_below(w, 3) != 0)
            world_take(w, i,
                       raft_core_refused(n->core, world_clock(w, i), w->nodes[k].id));
    }
}

static void one_failure(struct world *w)
{
    unsigned i = (unsigned)world_below(w, w->n_nodes);
    unsigned k = (unsigned)world_below(w, w->n_nodes);
    struct world_node *n = &w->nodes[i];

    switch (world_below(w, 10)) {
    case 0:
    case 1:
        if (n->core != NULL)
            world_stop(w, i, world_below(w, 2) == 0);
        break;
    case 2:
        w->cut[i][k] = i != k;
        break;
    case 3:
        for (unsigned j = 0; j < w->n_nodes; j++)
            w->cut[i][j] = w->cut[j][i] = j != i;
        break;
    case 4:
    case 5:
        memset(w->cut, 0, sizeof(w->cut));
        break;
    case 6:
        if (n->paused_until_ns <= w->now_ns)
            n->paused_until_ns = w->now_ns + world_below(w, 3000) * 1000000;
        break;
    case 7:
        if (n->core != NULL)
            world_trim(w, i, world_below(w, 20));
        break;
    case 9:
        refuse_links_to(w, k);
        break;
    case 8:
        if (n->core != NULL && n->out.role == RAFT_CORE_LEADER) {
            int rc = raft_core_transfer(n->core, world_clock(w, i), w->nodes[k].id);

            assert(rc == 0 || rc == -EINVAL || rc == -EBUSY);
            if (rc == 0)
                world_take(w, i, rc);
        }
        break;
    }
}

/* Changes one member of the list, as an operator would. */
static void one_change(struct world *w)
{
    int leader = world_leader(w);
    unsigned i = (unsigned)world_below(w, w->n_nodes);
    struct raft_config c;
    const struct raft_member *m;
    uint64_t match = 0;
    int rc;

    if (leader < 0)
        return;
    c = *raft_core_config(w->nodes[leader].core);
    m = raft_config_find(&c, w->nodes[i].id);
    if (m == NULL || m->role == RAFT_ROLE_SPARE) {
        rc = raft_config_set(&c, w->nodes[i].id,
                             m == NULL && world_below(w, 2) == 0 ? RAFT_ROLE_SPARE
                                                                 : RAFT_ROLE_STANDBY,
                             "new");
    } else if (m->role == RAFT_ROLE_STANDBY) {
        rc = raft_core_match(w->nodes[leader].core, m->id, &match);
        if (rc != 0 || match + 10 < w->nodes[leader].out.commit)
            return;
        rc = raft_config_set(&c, w->nodes[i].id, RAFT_ROLE_VOTER, m->address);
    } else if ((int)i == leader) {
        return;
    } else {
        rc = raft_config_remove(&c, w->nodes[i].id);
    }
    assert(rc == 0);
    rc = raft_core_change(w->nodes[leader].core, world_clock(w, (unsigned)leader), &c);
    if (rc == 0)
        world_take(w, (unsigned)leader, rc);
    else
        assert(rc == -EAGAIN || rc == -ROZO_ENOT_LEADER);
}

static void restart_some(struct world *w, bool all)
{
    for (unsigned i = 0; i < w->n_nodes; i++) {
        if (w->nodes[i].core == NULL && (all || world_below(w, 2) == 0))
            world_start(w, i);
    }
}

static bool leader_has_lease(struct world *w)
{
    int leader = world_leader(w);

    return leader >= 0 && w->nodes[leader].lease_until_ns > world_clock(w, leader);
}

/* Without failures the members go on, whatever has happened. */
static void run_end(struct world *w, uint64_t seed)
{
    world_mend(w);
    restart_some(w, true);
    if (!world_commit_one(w, 20000) || !leader_has_lease(w)) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        world_print(w);
        fail();
    }
    world_free(w);
}

static void run_seed(uint64_t seed, unsigned n, unsigned n_voters)
{
    struct world *w = world_new(seed, n, n_voters);

    for (unsigned i = 0; i < n; i++)
        w->nodes[i].rate = 960 + world_below(w, 81);
    if (seed % 3 != 0)
        w->promise_ms = RAFT_PROMISE_MS;
    restart_some(w, true);
    for (unsigned step = 0; step < STEPS; step++) {
        int leader;

        failures_set(w);
        if (world_below(w, 3) == 0)
            one_failure(w);
        if (world_below(w, 3) == 0)
            restart_some(w, false);
        if (n > n_voters && world_below(w, 3) == 0)
            one_change(w);
        world_run_ms(w, world_below(w, 400));
        leader = world_leader(w);
        for (uint64_t k = world_below(w, 6); leader >= 0 && k > 0; k--)
            world_submit(w, (unsigned)leader);
    }
    run_end(w, seed);
}

static void test_three_members(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP)
        run_seed(seed, 3, 3);
}

static void test_five_members(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP)
        run_seed(seed, 5, 5);
}

static void test_members_come_and_go(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP)
        run_seed(seed, 6, 3);
}

/*
 * Members whose entries count when they are written. Processes die at any time; now and
 * then all lose power, and what was stable stays. The mode may differ between members.
 */
static void run_lazy_seed(uint64_t seed, unsigned n, bool is_mixed)
{
    struct world *w = world_new(seed, n, n);

    for (unsigned i = 0; i < n; i++) {
        w->nodes[i].rate = 960 + world_below(w, 81);
        w->nodes[i].is_lazy = !is_mixed || world_below(w, 2) == 0;
    }
    restart_some(w, true);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned)world_below(w, n);
        int leader;

        failures_set(w);
        switch (world_below(w, 12)) {
        case 0:
        case 1:
            if (w->nodes[i].core != NULL)
                world_stop(w, i, false);
            break;
        case 2:
            for (unsigned j = 0; j < n; j++)
                w->cut[i][j] = w->cut[j][i] = j != i;
            break;
        case 3:
        case 4:
            memset(w->cut, 0, sizeof(w->cut));
            break;
        case 5:
            if (w->nodes[i].core != NULL)
                world_trim(w, i, world_below(w, 20));
            break;
        case 6:
        case 7:
            world_power_cycle(w);
            break;
        }
        if (world_below(w, 3) == 0)
            restart_some(w, false);
        world_run_ms(w, world_below(w, 400));
        leader = world_leader(w);
        for (uint64_t k = world_below(w, 6); leader >= 0 && k > 0; k--)
            world_submit(w, (unsigned)leader);
        if (leader >= 0 && world_below(w, 3) == 0)
            world_take(w, (unsigned)leader,
                       raft_core_want_stable(w->nodes[leader].core,
                                             world_clock(w, (unsigned)leader)));
    }
    run_end(w, seed);
}

static void test_written_entries_outlive_processes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP)
        run_lazy_seed(seed, seed % 2 == 0 ? 3 : 5, false);
}

static void test_members_of_both_modes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < unit_seeds(SEEDS); seed += UNIT_STEP)
        run_lazy_seed(seed, seed % 2 == 0 ? 3 : 5, true);
}

/* A voter that restarts has promised its leader not to vote for others (R5). */
static void test_a_lease_outlives_the_restart_of_a_voter(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 50; seed += UNIT_STEP) {
        struct world *w = world_new(seed, 3, 3);
        unsigned leader, voter, other;

        leader = (unsigned)world_elect(w);
        voter = (leader + 1) % 3;
        other = (leader + 2) % 3;
        w->cut[leader][other] = w->cut[other][leader] = true;
        world_run_ms(w, 3000); /* the other one campaigns, the voter refuses */
        assert_int_equal(world_leader(w), leader);
        assert_true(leader_has_lease(w));
        for (unsigned i = 0; i < 10; i++) {
            world_stop(w, voter, world_below(w, 2) == 0);
            world_start(w, voter);
            world_run_ms(w, world_below(w, 300));
        }
        world_run_ms(w, 3000);
        world_mend(w);
        assert_true(world_commit_one(w, 10000));
        world_free(w);
    }
}

/*
 * The message that hands leadership over may be late: others vote for its receiver, while
 * the leader, cut off by then, knows nothing of it.
 */
static void test_a_late_transfer_meets_no_lease(void **state)
{
    unsigned n_late = 0, n_void = 0;

    (void)state;
    for (unsigned seed = 0; seed < 50; seed++) {
        struct world *w = world_new(seed, 3, 3);
        unsigned leader;
        uint64_t end_ns;

        leader = (unsigned)world_elect(w);
        world_run_ms(w, 200);
        w->handover_us = 1000000 + (unsigned)world_below(w, 300000);
        if (world_below(w, 2) == 0) /* nothing is committed after the failure */
            w->write_max_us = 10000000;
        world_take(w, leader,
                   raft_core_transfer(w->nodes[leader].core, world_clock(w, leader), 0));
        assert_false(leader_has_lease(w));
        world_run_ms(w, RAFT_ELECTION_MS - 50);
        for (unsigned i = 0; i < 3; i++) /* the receiver lacks what follows the failure */
            w->cut[leader][i] = world_below(w, 2) == 0 && i != leader;
        world_run_ms(w, 200);
        n_void += leader_has_lease(w);
        for (unsigned i = 0; i < 3; i++)
            w->cut[i][leader] = w->cut[leader][i] = i != leader;
        end_ns = w->now_ns + 450000000;
        while (w->now_ns < end_ns)
            world_run_ms(w, 1);
        n_late += w->nodes[(leader + 1) % 3].out.term > w->nodes[leader].out.term;
        world_mend(w);
        world_run_ms(w, 10000);
        assert_true(world_commit_one(w, 10000));
        assert_true(leader_has_lease(w));
        world_free(w);
    }
    assert_true(n_late > 0 && n_void > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_members),
        cmocka_unit_test(test_five_members),
        cmocka_unit_test(test_members_come_and_go),
        cmocka_unit_test(test_written_entries_outlive_processes),
        cmocka_unit_test(test_members_of_both_modes),
        cmocka_unit_test(test_a_lease_outlives_the_restart_of_a_voter),
        cmocka_unit_test(test_a_late_transfer_meets_no_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
