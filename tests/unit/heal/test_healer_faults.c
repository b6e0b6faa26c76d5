/*
 * Goal: failures and requests during the work of the healer are neither forgotten nor
 * taken for success.
 * Method: healers on a virtual clock; a disk that holds back, or fails, requests of one
 * kind; repairs are recorded, not made.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "storaged/heal/list/proj_list.h"
#include "tests/unit/heal/nodes.h"

static struct env_task *at_repair; /* posted when a repair ends; NULL: none */

static void on_repair(void *arg, uint32_t own, const struct repair_request *request,
                      struct repair_result *result)
{
    (void)arg;
    (void)own;
    (void)request;
    (void)result;
    if (at_repair != NULL)
        env_post(&nodes_env.env, at_repair);
}

/* Returns whether a repair with all these flags covered this block of this file. */
static bool is_seen(const struct storcli_target *t, uint64_t block, uint32_t flags)
{
    for (unsigned i = 0; i < n_seen; i++) {
        const struct repair_request *r = &seen[i].request;

        if (r->target.id.ino == t->id.ino && r->first_block <= block &&
            (r->n_blocks == 0 || block - r->first_block < r->n_blocks) &&
            (r->flags & flags) == flags)
            return true;
    }
    return false;
}

/* ---- a disk that waits ---- */

static struct slow_disk {
    struct disk disk; /* must be the first member */
    struct disk *below;
    int op; /* kind that is held back; -1: none */
    struct disk_req *held[16];
    unsigned n_held;
} slow;

static void slow_submit(struct disk *disk, struct disk_req *req)
{
    (void)disk;
    if ((int)req->op == slow.op) {
        assert_true(slow.n_held < 16);
        slow.held[slow.n_held++] = req;
    } else {
        disk_submit(slow.below, req);
    }
}

static void slow_close(struct disk *disk, struct disk_file *file)
{
    (void)disk;
    disk_close(slow.below, file);
}

static int slow_fd(struct disk *disk, const struct disk_file *file)
{
    (void)disk;
    return disk_fd(slow.below, file);
}

static const struct disk_ops slow_ops = { slow_submit, slow_close, slow_fd };

static void slow_begin(unsigned node)
{
    slow = (struct slow_disk){ .disk.ops = &slow_ops,
                               .below = &nodes[node].disk.disk,
                               .op = -1 };
    nodes[node].config.disk = &slow.disk;
}

/* Passes n held requests on to the disk, starting at index `from`, oldest first. */
static void slow_release(unsigned from, unsigned n)
{
    for (; n > 0 && slow.n_held > from; n--) {
        struct disk_req *req = slow.held[from];

        slow.n_held--;
        for (unsigned i = from; i < slow.n_held; i++)
            slow.held[i] = slow.held[i + 1];
        disk_submit(slow.below, req);
    }
}

/* ---- helpers ---- */

static int setup(void **state)
{
    (void)state;
    nodes_init(1);
    at_repair = NULL;
    fake_repairs.fn = on_repair;
    return 0;
}

/* ---- the scrub ---- */

/* A scrub that cannot read a directory has not checked the files behind it: the doubt
 * stays. */
static void test_a_scrub_that_cannot_list_has_not_seen_everything(void **state)
{
    struct storcli_target t = target_make(50, 1);
    Rozo__StHealthResp *health;

    (void)state;
    projection_make(1, &t, 0, false, 1);
    atomic_store(&nodes[1].identity.losses, 2);
    next_result.looked_at = 1;
    nodes[1].disk.fail_at = 1;
    nodes[1].disk.fail_op = DISK_LIST;
    nodes[1].disk.fail_rc = -EIO;
    nodes_start_all();
    run_ms(5000);
    assert_int_equal(nodes[1].disk.fail_at, 0);
    assert_int_equal(n_seen, 0);
    health = node_health(1);
    assert_true(health->doubt);
    assert_true(health->scrub_unseen > 0);
    assert_int_equal(health->n_scrub_findings, 1);
    rozo__st_health_resp__free_unpacked(health, NULL);
    run_ms(900000);
    assert_false(identity_is_in_doubt(&nodes[1].identity));
}

/* The listing that counts files is still in progress when the scrub ends, and when the
 * next one starts. */
static void test_a_scrub_begins_while_the_last_one_still_counts(void **state)
{
    struct storcli_target t = target_make(50, 1);
    Rozo__StHealthResp *health;

    (void)state;
    projection_make(1, &t, 0, false, 1);
    slow_begin(1);
    nodes_start_all();
    slow.op = DISK_LIST;
    node_heal(1, 1, 0);
    run_ms(1100); /* some peers are still unreachable */
    assert_int_equal(slow.n_held, 2);
    slow_release(0, 1);
    run_ms(10);
    slow_release(slow.n_held - 1, 1); /* all but the counting one */
    run_ms(100);
    assert_int_equal(n_seen, 1);
    assert_int_equal(slow.n_held, 1);
    node_heal(1, 1, 0);
    run_ms(10);
    slow.op = -1;
    slow_release(0, 16);
    run_ms(5000);
    assert_int_equal(n_seen, 2);
    health = node_health(1);
    assert_int_equal(health->scrub_state, 2);
    assert_int_equal(health->scrub_files, 1);
    rozo__st_health_resp__free_unpacked(health, NULL);
}

/* ---- the rebuild ---- */

/* A storage is declared lost while storage.id is written at the end of a rebuild. */
static void test_storage_is_declared_lost_at_the_end_of_a_rebuild(void **state)
{
    struct storcli_target t = target_make(50, 1); /* 4 is its spare */

    (void)state;
    for (unsigned p = 0; p < 3; p++)
        projection_make(t.storages[p], &t, p, false, 1);
    slow_begin(4);
    slow.op = DISK_REPLACE;
    atomic_store(&nodes[4].identity.rebuild, true);
    nodes_start_all();
    run_ms(5000);
    assert_int_equal(slow.n_held, 1);
    n_seen = 0;
    node_stop(3);
    nodes_lost = 1 << 3;
    node_map(4, 2, NODES);
    slow.op = -1;
    slow_release(0, 1);
    run_ms(5000);
    assert_int_equal(n_seen, 1);
    assert_int_equal(seen[0].own, 4);
    assert_int_equal(seen[0].request.lost, 1 << 2);
}

/* A second storage is declared lost while a spare walks through all files for the first
 * one; then the spare crashes. */
static void test_rebuild_begun_again_for_a_second_loss_survives_a_crash(void **state)
{
    static bool done[400];

    (void)state;
    for (unsigned i = 0; i < 400; i++) {
        struct storcli_target t = target_make(50 + i, 1);

        projection_make(2, &t, 1, false, 1);
    }
    nodes_start_all();
    run_ms(3000);
    node_stop(3);
    nodes_lost = 1 << 3;
    node_map(4, 2, NODES);
    while (n_seen < 300)
        run_ms(1);
    node_stop(1);
    nodes_lost |= 1 << 1;
    n_seen = 0;
    node_map(4, 3, NODES);
    while (fake_repairs.n_running > 0)
        run_ms(1);
    node_crash(4);
    node_start(4);
    run_ms(60000);
    memset(done, 0, sizeof(done));
    for (unsigned i = 0; i < n_seen; i++) {
        if (seen[i].request.lost == (1 << 0 | 1 << 2))
            done[seen[i].request.target.id.ino - 50] = true;
    }
    for (unsigned i = 0; i < 400; i++)
        assert_true(done[i]);
}

/* ---- checks ---- */

/* A block is requested twice while the check waits for its turn. */
static void test_block_requested_twice_while_its_check_waits_is_checked(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 1000;
    for (unsigned i = 0; i < 6; i++) {
        struct storcli_target other = target_make(100 + i, 1);

        assert_int_equal(node_check(1, &other, 0, 1, false), ROZO__STATUS__OK);
    }
    run_ms(10);
    assert_int_equal(fake_repairs.n_running, 6);
    assert_int_equal(node_check(1, &t, 5, 1, false), ROZO__STATUS__OK);
    assert_int_equal(node_check(1, &t, 9, 1, false), ROZO__STATUS__OK);
    assert_int_equal(node_check(1, &t, 9, 1, false), ROZO__STATUS__OK);
    run_ms(10000);
    assert_true(is_seen(&t, 5, REPAIR_VERIFY_OWN));
    assert_true(is_seen(&t, 9, REPAIR_VERIFY_OWN));
}

/* A client reads a torn block again and again, and requests a check each time. */
static void test_block_that_is_requested_all_the_time_is_recovered(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 300;
    next_result.undecided = 1;
    for (unsigned i = 0; i < 120; i++) {
        assert_int_equal(node_check(1, &t, 7, 1, false), ROZO__STATUS__OK);
        run_ms(250);
    }
    assert_true(is_seen(&t, 7, REPAIR_FENCE | REPAIR_ALL_HOMES));
    next_result.undecided = 0;
}

/* One block of a file cannot be healed: a recovery of other blocks takes place all the
 * same. */
static void test_file_with_a_failing_check_is_recovered_too(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    next_result = (struct repair_result){ .rc = -EIO, .failed = 1 };
    assert_int_equal(node_check(1, &t, 100, 1, false), ROZO__STATUS__OK);
    run_ms(1000);
    nodes[1].uncommitted = (struct heal_uncommitted){
        .target = t, .first = 3, .end = 5, .age_ns = UINT64_C(11000000000)
    };
    nodes[1].has_uncommitted = true;
    run_ms(20000);
    assert_true(is_seen(&t, 3, REPAIR_FENCE | REPAIR_ALL_HOMES));
    assert_true(n_seen < 20); /* not again and again */
    next_result = (struct repair_result){ 0 };
}

/* Invalid requests are refused: they could never be healed, and would be tried for
 * ever. */
static void test_invalid_checks_and_hints_are_refused(void **state)
{
    struct storcli_target t = target_make(10, 1), twice = target_make(11, 1);

    (void)state;
    nodes_start_all();
    twice.storages[1] = twice.storages[2];
    assert_int_equal(node_check(1, &twice, 0, 1, false), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(node_check(1, &t, UINT64_C(1) << 60, 1, false),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(node_check(1, &t, 5, UINT64_C(1) << 60, false),
                     ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(node_missed(1, &twice, 0, 1, 2, 5), ROZO__STATUS__BAD_REQUEST);
    assert_int_equal(node_missed(1, &t, UINT64_C(1) << 60, 1, 2, 5),
                     ROZO__STATUS__BAD_REQUEST);
    run_ms(1000);
    assert_int_equal(n_seen, 0);
}

/* Many checks that never end do not delay the repair of missed writes, or a rebuild. */
static void test_checks_do_not_delay_other_repairs(void **state)
{
    struct storcli_target t = target_make(10, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.takes_ms = 1000000;
    for (unsigned i = 0; i < 40; i++) {
        struct storcli_target other = target_make(100 + i, 1);

        assert_int_equal(node_check(1, &other, 0, 1, false), ROZO__STATUS__OK);
    }
    run_ms(10);
    assert_int_equal(fake_repairs.n_running, 6);
    fake_repairs.takes_ms = 5;
    assert_int_equal(node_missed(2, &t, 5, 1, 1, 5), ROZO__STATUS__OK);
    run_ms(20000);
    assert_true(is_seen(&t, 5, 0));
}

/* A rate that was far too low is raised: a wait at the old rate does not delay later
 * work. */
static void test_a_rate_that_is_raised_counts_at_once(void **state)
{
    Rozo__StHealReq req = ROZO__ST_HEAL_REQ__INIT;
    struct storcli_target a = target_make(10, 1), b = target_make(11, 1);

    (void)state;
    nodes_start_all();
    fake_repairs.bytes = 1 << 20;
    req.to_storage = 1;
    req.set_rate = true;
    for (unsigned i = 0; i < 2; i++) {
        req.rate_bytes = i == 0 ? 1000 : 100 << 20;
        assert_int_equal(
            node_ask(1, RPC_ROLE_NODE, ROZO__OP__ST_HEAL, &req.base, NULL, NULL),
            ROZO__STATUS__OK);
        assert_int_equal(node_check(1, i == 0 ? &a : &b, 0, 1, false), ROZO__STATUS__OK);
        assert_int_equal(node_check(1, i == 0 ? &a : &b, 0, 1, false), ROZO__STATUS__OK);
        run_ms(1000);
    }
    assert_true(is_seen(&b, 0, REPAIR_VERIFY_OWN));
    fake_repairs.bytes = 0;
}

static uint64_t health_rate(unsigned i)
{
    Rozo__StHealthResp *resp = node_health(i);
    uint64_t rate = resp->rate_bytes;

    rozo__st_health_resp__free_unpacked(resp, NULL);
    return rate;
}

/* Healing gets what reserved streams leave free, and 1 MB/s at least, also after a
 * restart. The lower one of that and of the configured rate counts. */
static void test_reserved_streams_limit_healing(void **state)
{
    struct storcli_target a = target_make(10, 1), b = target_make(11, 1);

    (void)state;
    nodes[1].config.stream_bytes = 50000000;
    nodes_start_all();
    assert_int_equal(health_rate(1), 0);
    nodes_reserved = 45000000;
    node_map(1, 2, NODES);
    node_map(2, 2, NODES);
    assert_int_equal(health_rate(1), 5000000);
    assert_int_equal(health_rate(2), 0); /* no stream_bytes are configured */
    node_heal(1, 0, 100 << 20);
    assert_int_equal(health_rate(1), 5000000);
    node_heal(1, 0, 1000000);
    assert_int_equal(health_rate(1), 1000000);
    node_heal(1, 0, 100 << 20);
    node_crash(1);
    node_start(1);
    assert_int_equal(health_rate(1), 5000000);

    /* 10 MB take 2 s. */
    fake_repairs.bytes = 10000000;
    assert_int_equal(node_check(1, &a, 0, 1, false), ROZO__STATUS__OK);
    run_ms(100);
    assert_int_equal(node_check(1, &b, 0, 1, false), ROZO__STATUS__OK);
    run_ms(1500);
    assert_true(is_seen(&a, 0, REPAIR_VERIFY_OWN));
    assert_false(is_seen(&b, 0, REPAIR_VERIFY_OWN));
    run_ms(600);
    assert_true(is_seen(&b, 0, REPAIR_VERIFY_OWN));

    nodes_reserved = 60000000;
    node_map(1, 3, NODES);
    assert_int_equal(health_rate(1), 1000000);
    nodes_reserved = 0;
    node_map(1, 4, NODES);
    assert_int_equal(health_rate(1), 0);
    fake_repairs.bytes = 0;
}

/* ---- the end ---- */

static bool stopped;

static void on_stopped(void *arg)
{
    (void)arg;
    stopped = true;
}

static void stop_now(struct env_task *task)
{
    (void)task;
    at_repair = NULL;
    healer_stop(nodes[1].healer, on_stopped, NULL);
}

/* A home that the map does not name is asked, and the request fails in a later turn; the
 * healer stops in between. */
static void test_stop_before_a_request_to_an_unknown_storage_fails(void **state)
{
    struct storcli_target t = target_make(50, 1);
    struct env_task stop = { .fn = stop_now };

    (void)state;
    t.storages[1] = 99;
    projection_make(1, &t, 0, false, 1);
    nodes_start_all();
    next_result.looked_at = 1;
    at_repair = &stop;
    stopped = false;
    node_heal(1, 1, 0);
    for (unsigned ms = 0; !stopped && ms < 1000; ms++)
        run_ms(1);
    assert_true(stopped);
    nodes[1].running = false;
    healer_close(nodes[1].healer);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, nodes_teardown)
    static const struct CMUnitTest tests[] = {
        T(test_a_scrub_that_cannot_list_has_not_seen_everything),
        T(test_a_scrub_begins_while_the_last_one_still_counts),
        T(test_storage_is_declared_lost_at_the_end_of_a_rebuild),
        T(test_rebuild_begun_again_for_a_second_loss_survives_a_crash),
        T(test_block_requested_twice_while_its_check_waits_is_checked),
        T(test_block_that_is_requested_all_the_time_is_recovered),
        T(test_file_with_a_failing_check_is_recovered_too),
        T(test_invalid_checks_and_hints_are_refused),
        T(test_checks_do_not_delay_other_repairs),
        T(test_a_rate_that_is_raised_counts_at_once),
        T(test_reserved_streams_limit_healing),
        T(test_stop_before_a_request_to_an_unknown_storage_fails),
    };
#undef T

    return cmocka_run_group_tests(tests, NULL, NULL);
}
