/*
 * test_member.c - whole members, three of them: log, vote, links, kv. Whatever happens to
 * a minority, what was acknowledged is there on every later leader.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "tests/unit/quorum/member_world.h"

static void three_members_hold_what_one_commits(void **state)
{
    struct members *w = malloc(sizeof(*w));
    struct member_node *n;

    (void)state;
    members_init(w, 1);
    n = members_wait_for_leader(w);
    for (unsigned i = 0; i < 50; i++)
        members_write(w, n, 8);
    members_write(w, n, 3 << 20); /* in several entries */
    members_run_ms(w, 500);
    assert_int_equal(w->n_acked, 51);
    members_leader_check(w, n);
    members_all_are_equal(w);
    members_free(w);
    free(w);
}

static void leadership_goes_over_when_asked(void **state)
{
    struct members *w = malloc(sizeof(*w));
    struct member_node *a, *b;
    uint64_t at_ns;

    (void)state;
    members_init(w, 2);
    a = members_wait_for_leader(w);
    for (unsigned i = 0; i < 10; i++)
        members_write(w, a, 8);
    members_run_ms(w, 200);
    at_ns = env_now_ns(&w->v.env);
    assert_int_equal(member_transfer(a->member, 0), 0);
    members_write(w, a, 8); /* refused, or never acknowledged */
    b = members_wait_for_leader(w);
    assert_ptr_not_equal(a, b);
    assert_true(env_now_ns(&w->v.env) - at_ns <= ms_to_ns(300));
    members_leader_check(w, b);
    members_all_are_equal(w);
    members_free(w);
    free(w);
}

/* A leader that is cut off answers nothing once its lease has ended. */
static void a_leader_that_is_cut_off_gives_up(void **state)
{
    struct members *w = malloc(sizeof(*w));
    struct member_node *a, *b;

    (void)state;
    members_init(w, 3);
    a = members_wait_for_leader(w);
    for (unsigned i = 0; i < MEMBERS_N; i++)
        w->cut[a->i][i] = w->cut[i][a->i] = true;
    members_write(w, a, 8);
    members_run_ms(w, RAFT_ELECTION_MS);
    assert_true(member_lease_until_ns(a->member) <= env_now_ns(&w->v.env));
    b = members_wait_for_leader(w);
    assert_ptr_not_equal(a, b);
    for (unsigned i = 0; i < 20; i++)
        members_write(w, b, 8);
    members_run_ms(w, 300);
    assert_int_equal(w->n_acked, 20);
    memset(w->cut, 0, sizeof(w->cut));
    members_run_ms(w, 2000);
    assert_false(a->leads);
    members_all_are_equal(w);
    members_leader_check(w, members_wait_for_leader(w));
    members_free(w);
    free(w);
}

/* The log is trimmed; entries that are not in memory are read for members that return. */
static void a_member_that_was_away_gets_what_it_missed(void **state)
{
    struct members *w = malloc(sizeof(*w));
    struct member_status s;
    struct member_node *n, *away;

    (void)state;
    members_init(w, 4);
    n = members_wait_for_leader(w);
    away = &w->nodes[(n->i + 1) % MEMBERS_N];
    member_node_kill(away, false);
    for (unsigned i = 0; i < 40; i++) {
        members_write(w, n, 64 << 10);
        members_run_ms(w, 20);
    }
    members_run_ms(w, 300);
    assert_int_equal(w->n_acked, 40);
    member_node_start(away);
    members_all_are_equal(w);
    for (unsigned i = 0; i < 100; i++) { /* everybody is there: the log stays small */
        members_write(w, n, 256 << 10);
        members_run_ms(w, 20);
    }
    members_all_are_equal(w);
    for (unsigned i = 0; i < MEMBERS_N; i++) {
        member_status(w->nodes[i].member, &s);
        assert_true(s.first > 40 && s.log_bytes <= 12 << 20);
    }
    for (unsigned i = 0; i < MEMBERS_N; i++) {
        member_node_kill(&w->nodes[i], true);
        member_node_start(&w->nodes[i]);
    }
    members_leader_check(w, members_wait_for_leader(w));
    members_all_are_equal(w);
    members_free(w);
    free(w);
}

/* Kills, losses of power of a minority, and partitions, while values are written. */
static void by_chance(void **state)
{
    struct members *w = malloc(sizeof(*w));

    (void)state;
    for (uint64_t seed = 100; seed < 100 + unit_seeds(80); seed++) {
        unsigned n_acked;

        members_init(w, seed);
        for (unsigned i = 0; i < 300; i++) {
            struct member_node *n = &w->nodes[env_virtual_below(&w->v, MEMBERS_N)];
            unsigned n_up = 0;

            for (unsigned j = 0; j < MEMBERS_N; j++)
                n_up += w->nodes[j].is_up;
            switch (env_virtual_below(&w->v, 40)) {
            case 0:
                if (n->is_up && n_up == MEMBERS_N)
                    member_node_kill(n, env_virtual_below(&w->v, 2) == 0);
                break;
            case 1:
            case 2:
            case 3:
                if (!n->is_up)
                    member_node_start(n);
                break;
            case 4:
                for (unsigned j = 0; j < MEMBERS_N; j++)
                    w->cut[n->i][j] = env_virtual_below(&w->v, 2) == 0;
                break;
            case 5:
            case 6:
            case 7:
                memset(w->cut, 0, sizeof(w->cut));
                break;
            case 8:
                if (n->is_up)
                    member_transfer(n->member, 0);
                break;
            default:
                if (n->is_up && n->leads)
                    members_write(w, n, 8 + env_virtual_below(&w->v, 3000));
            }
            members_run_ms(w, (unsigned)env_virtual_below(&w->v, 60));
            if (members_leader(w) != NULL)
                members_leader_check(w, members_leader(w));
        }
        memset(w->cut, 0, sizeof(w->cut));
        for (unsigned i = 0; i < MEMBERS_N; i++)
            if (!w->nodes[i].is_up)
                member_node_start(&w->nodes[i]);
        members_run_ms(w, 3000);
        n_acked = w->n_acked;
        members_write(w, members_wait_for_leader(w), 8);
        members_run_ms(w, 1000);
        assert_true(w->n_acked > n_acked);
        members_leader_check(w, members_wait_for_leader(w));
        members_all_are_equal(w);
        members_free(w);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_members_hold_what_one_commits),
        cmocka_unit_test(leadership_goes_over_when_asked),
        cmocka_unit_test(a_leader_that_is_cut_off_gives_up),
        cmocka_unit_test(a_member_that_was_away_gets_what_it_missed),
        cmocka_unit_test(by_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
