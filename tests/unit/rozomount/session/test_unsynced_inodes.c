/*
 * Goal: an fsync succeeds only if no change that it covers may have been lost with
 * exportd's power.
 */
#include "rozomount/session/unsynced_inodes.h"
#include "tests/unit/unit.h"

static void test_synced_inodes_are_not_lost(void **state)
{
    struct unsynced_inodes *u = unsynced_inodes_new();
    uint64_t no;

    (void)state;
    unsynced_inodes_note(u, 1, 0);
    unsynced_inodes_note(u, 2, 0);
    unsynced_inodes_note(u, 1, 0);
    no = unsynced_inodes_begin(u);
    unsynced_inodes_note(u, 2, 0); /* while the sync is in flight */
    unsynced_inodes_note(u, 3, 0);
    unsynced_inodes_synced(u, no);
    assert_false(unsynced_inodes_is_empty(u));
    unsynced_inodes_lost(u, 5);
    assert_true(unsynced_inodes_is_empty(u));
    assert_false(unsynced_inodes_take_lost(u, 1));
    assert_true(unsynced_inodes_take_lost(u, 2));
    assert_false(unsynced_inodes_take_lost(u, 2)); /* reported once */
    assert_true(unsynced_inodes_take_lost(u, 3));
    assert_false(unsynced_inodes_take_lost(u, 4));
    unsynced_inodes_free(u);
}

static void test_a_sync_does_not_bring_back_what_is_lost(void **state)
{
    struct unsynced_inodes *u = unsynced_inodes_new();
    uint64_t no;

    (void)state;
    unsynced_inodes_note(u, 1, 0);
    unsynced_inodes_lost(u, 5);
    unsynced_inodes_note(u, 2, 5);
    unsynced_inodes_note(u, 3, 0); /* by a loop that does not know of the loss yet */
    no = unsynced_inodes_begin(u);
    unsynced_inodes_synced(u, no);
    unsynced_inodes_lost(u, 5);
    assert_true(unsynced_inodes_take_lost(u, 1));
    assert_false(unsynced_inodes_take_lost(u, 2));
    assert_true(unsynced_inodes_take_lost(u, 3));
    unsynced_inodes_free(u);
}

static void test_more_unsynced_inodes_than_the_bound(void **state)
{
    struct unsynced_inodes *u = unsynced_inodes_new();

    (void)state;
    for (uint64_t i = 0; i <= UNSTABLE_MAX; i++)
        unsynced_inodes_note(u, 100 + i, 0);
    unsynced_inodes_synced(u, UNSTABLE_MAX); /* all but changes to unknown inodes */
    assert_false(unsynced_inodes_is_empty(u));
    for (uint64_t i = 0; i <= UNSTABLE_MAX; i++)
        unsynced_inodes_note(u, 100 + i, 0);
    unsynced_inodes_lost(u, 1);
    assert_true(
        unsynced_inodes_take_lost(u, 7)); /* any inode may be among the unknown ones */
    assert_false(unsynced_inodes_take_lost(u, 7));
    assert_true(unsynced_inodes_take_lost(u, 100));
    unsynced_inodes_free(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synced_inodes_are_not_lost),
        cmocka_unit_test(test_a_sync_does_not_bring_back_what_is_lost),
        cmocka_unit_test(test_more_unsynced_inodes_than_the_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
