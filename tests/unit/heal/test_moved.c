/*
 * Goal: exportd gets the result of the check of a file that it asked for, and of no
 * other; healing goes on with the file's current distribution. Method: five healers on a
 * virtual clock (nodes.h); repairs are recorded, not made.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/wire/capability.h"
#include "storaged/heal/list/proj_list.h"
#include "tests/unit/heal/nodes.h"

enum { OK = ROZO__STATUS__OK, IN_PROGRESS = ROZO__STATUS__IN_PROGRESS };

static uint32_t newest; /* generation: repairs of an earlier one end with -ROZO_EMOVED */

static void on_repair(void *arg, uint32_t own, const struct repair_request *request,
                      struct repair_result *result)
{
    (void)arg;
    (void)own;
    if (request->target.dist_generation < newest)
        result->rc = -ROZO_EMOVED;
}

static int setup(void **state)
{
    (void)state;
    nodes_init(1);
    newest = 0;
    fake_repairs.fn = on_repair;
    nodes_start_all();
    return 0;
}

/* ---- ST_REPAIR ---- */

static char problem[160];

static uint16_t ask(unsigned i, enum rpc_role role, const struct storcli_target *t,
                    uint64_t run, bool *sound)
{
    Rozo__StRepairReq req = ROZO__ST_REPAIR_REQ__INIT;
    struct heal_ref ref;
    uint8_t *answer;
    size_t len;
    uint16_t status;

    heal_ref_put(t, &ref);
    req.ref = &ref.ref;
    req.to_storage = i;
    req.run = run;
    status = node_ask(i, role, ROZO__OP__ST_REPAIR, &req.base, &answer, &len);
    if (status == OK) {
        Rozo__StRepairResp *resp = rozo__st_repair_resp__unpack(NULL, len, answer);

        assert_non_null(resp);
        *sound = resp->sound;
        snprintf(problem, sizeof(problem), "%s", resp->problem);
        rozo__st_repair_resp__free_unpacked(resp, NULL);
    }
    free(answer);
    return status;
}

static uint16_t repair(const struct storcli_target *t, uint64_t run, bool *sound)
{
    return ask(1, RPC_ROLE_NODE, t, run, sound);
}

static void a_check_of_a_whole_file_is_answered(void **state)
{
    struct storcli_target t = target_make(10, 1);
    bool sound = false;

    (void)state;
    next_result.sound = true;
    assert_int_equal(repair(&t, 7, &sound), OK);
    assert_true(sound);
    assert_int_equal(n_seen, 1);
    assert_int_equal(seen[0].request.flags,
                     REPAIR_PROVE | REPAIR_ALL_HOMES | REPAIR_CLEAN_SPARES);
    assert_true(seen[0].request.first_block == 0 && seen[0].request.n_blocks == 0);
    assert_int_equal(repair(&t, 8, &sound), OK); /* a new check, not the last result */
    assert_int_equal(repair(&t, 8, &sound), OK); /* the last result was delivered */
    assert_int_equal(n_seen, 3);
}

static void it_takes_some_runs(void **state)
{
    struct storcli_target t = target_make(10, 1);
    bool sound = true;

    (void)state;
    next_result.undecided = 1;
    snprintf(next_result.problem, sizeof(next_result.problem), "torn");
    assert_int_equal(repair(&t, 1, &sound), OK);
    assert_false(sound);
    assert_string_equal(problem, "torn");
    assert_int_equal(n_seen, 5);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal((seen[i].request.flags & REPAIR_FENCE) != 0, i >= 2);
    next_result.unanswered = 2; /* no retry: a storage is down */
    assert_int_equal(repair(&t, 2, &sound), OK);
    assert_int_equal(n_seen, 6);
}

static void who_asks_again_waits_for_its_end(void **state)
{
    struct storcli_target t = target_make(10, 1);
    bool sound = false;

    (void)state;
    next_result.sound = true;
    fake_repairs.takes_ms = 10000;
    assert_int_equal(repair(&t, 1, &sound), IN_PROGRESS);
    assert_int_equal(repair(&t, 1, &sound), IN_PROGRESS);
    assert_int_equal(repair(&t, 1, &sound), OK);
    assert_true(sound);
    assert_int_equal(n_seen, 1);
    assert_int_equal(repair(&t, 2, &sound), IN_PROGRESS);
    run_ms(20000);
    assert_int_equal(n_seen, 2);
    /* a different check is in progress */
    assert_int_equal(repair(&t, 3, &sound), IN_PROGRESS);
    assert_int_equal(repair(&t, 2, &sound), OK); /* kept for its number */
    run_ms(20000);
    assert_int_equal(n_seen, 3);
    assert_int_equal(repair(&t, 2, &sound), IN_PROGRESS); /* only once */
}

static void too_many_are_refused(void **state)
{
    struct storcli_target t = target_make(10, 1);
    bool sound;

    (void)state;
    fake_repairs.takes_ms = 100000000;
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(repair(&t, i, &sound), IN_PROGRESS);
    assert_int_equal(repair(&t, 64, &sound), ROZO__STATUS__BUSY);
    assert_int_equal(repair(&t, 5, &sound), IN_PROGRESS);
    node_stop(1); /* no call is answered twice, or left */
}

static void nonsense_is_refused(void **state)
{
    struct storcli_target t = target_make(10, 1), others = target_make(11, 2);
    bool sound;

    (void)state;
    assert_int_equal(ask(1, RPC_ROLE_CLIENT, &t, 1, &sound), ROZO__STATUS__DENIED);
    assert_int_equal(repair(&others, 1, &sound), ROZO__STATUS__BAD_REQUEST);
    t.n_storages = 2;
    assert_int_equal(repair(&t, 1, &sound), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(n_seen, 0);
}

/* A check for one distribution does not change to another one: exportd knows the current
 * one. */
static void a_look_does_not_go_over_to_another_distribution(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;
    bool sound;

    (void)state;
    newest = 1;
    later.dist_generation = 1;
    projection_make(1, &later, 0, false, 1);
    assert_int_equal(repair(&t, 1, &sound), ROZO__STATUS__STALE_DISTRIBUTION);
    assert_int_equal(n_seen, 1);
    next_result.sound = true;
    assert_int_equal(repair(&later, 2, &sound), OK);
    assert_true(sound);
}

/* ---- healing with the current distribution ---- */

/* The hint has an earlier distribution; the storage finds the current one in its own
 * header, or asks its peers. */
static void missed_blocks_are_repaired_with_the_current_distribution(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct storcli_target t = target_make(10 + i, 1), later = t;

        newest = later.dist_generation = 2;
        later.storages[1] = 5;
        projection_make(i == 0 ? 1 : 4, &later, 0, false, 1);
        n_seen = 0;
        assert_int_equal(node_missed(2, &t, 10, 20, 1, 5), OK);
        run_ms(15000);
        assert_int_equal(n_seen, 2);
        assert_int_equal(seen[0].request.target.dist_generation, 0);
        assert_int_equal(seen[1].request.target.dist_generation, 2);
        assert_int_equal(seen[1].request.target.storages[1], 5);
        assert_int_equal(seen[1].request.first_block, seen[0].request.first_block);
        assert_int_equal(node_n_missed(2), 0);
    }
}

/* A file whose later distribution no storage knows yet cannot be healed, and its hint
 * stays. */
static void what_nobody_can_place_stays(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;

    (void)state;
    newest = 1;
    assert_int_equal(node_missed(2, &t, 10, 20, 1, 5), OK);
    run_ms(40000);
    assert_true(n_seen >= 2);
    assert_int_equal(node_n_missed(2), 1);
    later.dist_generation = 1;
    projection_make(3, &later, 2, false, 1);
    run_ms(30000);
    assert_int_equal(node_n_missed(2), 0);
    assert_int_equal(seen[n_seen - 1].request.target.dist_generation, 1);
}

/* A storage that was lost comes back when another one has its place in the file: there is
 * nothing to heal. */
static void who_is_not_in_it_any_more_has_nothing_to_heal(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;

    (void)state;
    newest = later.dist_generation = 1;
    later.storages[0] = 5;
    projection_make(1, &t, 0, false, 1);
    projection_make(3, &later, 2, false, 1);
    assert_int_equal(node_missed(2, &t, 10, 20, 1, 5), OK);
    run_ms(15000);
    assert_int_equal(n_seen, 1);
    assert_int_equal(node_n_missed(2), 0);
}

static void a_stop_at_any_time(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;

    (void)state;
    newest = later.dist_generation = 1;
    projection_make(4, &later, 1, false, 1);
    for (unsigned ms = 0; ms < 40; ms++) {
        assert_int_equal(node_missed(2, &t, 10, 20, 1, 5 + ms), OK);
        n_seen = 0;
        while (n_seen == 0)
            run_ms(1);
        run_ms(ms);
        node_stop(1);
        node_start(1);
    }
    run_ms(30000);
    assert_int_equal(node_n_missed(2), 0);
}

/* A check that waits takes the later distribution of a request; a request with an earlier
 * one is not refused. */
static void checks_go_by_the_later_one(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;

    (void)state;
    next_result.rc = -EIO;
    later.dist_generation = 1;
    later.storages[1] = 5;
    assert_int_equal(node_check(1, &t, 0, 1, false), OK);
    run_ms(1000);
    assert_int_equal(node_check(1, &later, 3, 1, false), OK);
    run_ms(1000);
    assert_int_equal(node_check(1, &t, 5, 1, false), OK);
    run_ms(1000);
    assert_int_equal(n_seen, 3);
    assert_int_equal(seen[2].request.target.dist_generation, 1);
    assert_int_equal(seen[2].request.n_blocks, 6);
}

static void a_client_is_told_that_its_distribution_is_an_earlier_one(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;
    Rozo__StCheckReq req = ROZO__ST_CHECK_REQ__INIT;
    uint8_t capability[CAPABILITY_BYTES];
    struct heal_ref ref;

    (void)state;
    later.dist_generation = 1;
    projection_make(1, &later, 0, false, 1);
    heal_ref_put(&t, &ref);
    capability_sign(nodes[1].key, &t.id, CAPABILITY_READ, capability);
    ref.ref.capability.data = capability;
    ref.ref.capability.len = sizeof(capability);
    req.ref = &ref.ref;
    req.n_blocks = 1;
    req.to_storage = 1;
    assert_int_equal(
        node_ask(1, RPC_ROLE_CLIENT, ROZO__OP__ST_CHECK, &req.base, NULL, NULL),
        ROZO__STATUS__STALE_DISTRIBUTION);
    ref.ref.dist_generation = 2; /* a later one is checked as our header says */
    assert_int_equal(
        node_ask(1, RPC_ROLE_CLIENT, ROZO__OP__ST_CHECK, &req.base, NULL, NULL), OK);
    run_ms(1000);
    assert_int_equal(n_seen, 1);
    assert_int_equal(seen[0].request.target.dist_generation, 1);
}

/* The rebuild takes the latest of the distributions in the headers of peers. */
static void a_rebuild_goes_by_the_later_one(void **state)
{
    struct storcli_target t = target_make(10, 1), later = t;

    (void)state;
    later.dist_generation = 1;
    later.storages[1] = 5;
    projection_make(3, &t, 2, false, 50);
    projection_make(5, &later, 1, false, 1);
    node_stop(1);
    atomic_store(&nodes[1].identity.rebuild, true);
    node_start(1);
    run_ms(60000);
    assert_true(n_seen > 0);
    assert_int_equal(seen[0].request.target.dist_generation, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_check_of_a_whole_file_is_answered, setup,
                                        nodes_teardown),
        cmocka_unit_test_setup_teardown(it_takes_some_runs, setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(who_asks_again_waits_for_its_end, setup,
                                        nodes_teardown),
        cmocka_unit_test_setup_teardown(too_many_are_refused, setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(nonsense_is_refused, setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(a_look_does_not_go_over_to_another_distribution,
                                        setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(
            missed_blocks_are_repaired_with_the_current_distribution, setup,
            nodes_teardown),
        cmocka_unit_test_setup_teardown(what_nobody_can_place_stays, setup,
                                        nodes_teardown),
        cmocka_unit_test_setup_teardown(who_is_not_in_it_any_more_has_nothing_to_heal,
                                        setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(a_stop_at_any_time, setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(checks_go_by_the_later_one, setup,
                                        nodes_teardown),
        cmocka_unit_test_setup_teardown(
            a_client_is_told_that_its_distribution_is_an_earlier_one, setup,
            nodes_teardown),
        cmocka_unit_test_setup_teardown(a_rebuild_goes_by_the_later_one, setup,
                                        nodes_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
