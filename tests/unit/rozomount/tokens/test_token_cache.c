/*
 * Goal: the mount caches only what exportd lets it cache, whatever is in flight while a
 * token is given back, and when a session ends. Method: calls in a fixed order; then a
 * random exportd whose answers arrive late and in any order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "rozomount/session/md_decode.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/lib/env_virtual.h"
#include "tests/unit/unit.h"

enum { FOUND = 4711 }; /* inode of names that the kernel is given */

static struct token_cache *t;

static int setup(void **state)
{
    (void)state;
    t = token_cache_new();
    token_cache_opened(t, 10, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    token_cache_free(t);
    return 0;
}

/* ---- answers to the kernel ---- */

static bool tell_attr(uint64_t ino, uint64_t grant)
{
    bool told;

    token_cache_lock(t);
    told = token_cache_tell_attr(t, ino, grant);
    token_cache_unlock(t);
    return told;
}

static bool tell_name(uint64_t dir, const char *name, bool is_dir, uint64_t grant)
{
    bool told;

    token_cache_lock(t);
    told = token_cache_tell_name(t, dir, name, FOUND, is_dir, grant);
    token_cache_unlock(t);
    return told;
}

static bool tell_listing(uint64_t dir, bool *kept)
{
    bool told;

    token_cache_lock(t);
    told = token_cache_tell_listing(t, dir, kept);
    token_cache_unlock(t);
    return told;
}

static void keep_attr(uint64_t ino, uint64_t size, uint64_t grant)
{
    struct md_attr attr = { .ino = ino, .size = size };

    token_cache_lock(t);
    token_cache_keep_attr(t, &attr, grant, token_cache_changes(t));
    token_cache_unlock(t);
}

/* Takes the cached attributes and returns their size; 0 if there were none. */
static uint64_t take_attr(uint64_t ino)
{
    struct md_attr attr = { 0 };
    uint64_t grant = 0;

    return token_cache_take_attr(t, ino, &attr, &grant) && grant != 0 ? attr.size : 0;
}

/* Takes the names that the kernel got, and checks that there are n and this is one of
 * them. */
static bool names_are(uint64_t dir, unsigned n, const char *name, bool is_dir)
{
    struct kernel_name *names = token_cache_take_names(t, dir);
    unsigned n_all = 0, n_same = 0;

    for (const struct kernel_name *told = names; told != NULL; told = told->next) {
        n_all++;
        n_same += strcmp(told->name, name) == 0 && told->is_dir == is_dir;
    }
    kernel_names_free(names);
    return n_all == n && n_same == (n != 0);
}

static uint64_t give_back(uint64_t ino, enum token_mode keep, uint64_t grant)
{
    token_cache_recall(t, ino, keep);
    kernel_names_free(keep == TOKEN_NONE ? token_cache_take_names(t, ino) : NULL);
    return token_cache_gave_back(t, ino, keep, grant);
}

/* ---- grants ---- */

static void test_granted_token_is_held(void **state)
{
    (void)state;
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    token_cache_grant(t, 5, TOKEN_NONE, 11);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    assert_false(tell_attr(5, 11));
    token_cache_grant(t, 5, TOKEN_SHARED, 12);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_true(tell_attr(5, 12));
    assert_false(tell_attr(6, 12));
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 14);
    token_cache_grant(t, 5, TOKEN_SHARED, 13); /* an older answer, late */
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    token_cache_grant(t, 7, TOKEN_SHARED, 0);
    token_cache_grant(t, 7, TOKEN_SHARED, 9); /* from before the session was opened */
    assert_int_equal(token_cache_mode(t, 7), TOKEN_NONE);
    token_cache_note_others(t, true);
    assert_true(token_cache_has_others(t));
    token_cache_note_others(t, false);
    assert_false(token_cache_has_others(t));
}

static void test_an_exportd_that_gives_no_tokens(void **state)
{
    (void)state;
    assert_true(token_cache_are_given(t));
    token_cache_opened(t, 0, true);
    assert_false(token_cache_are_given(t));
    token_cache_grant(t, 5, TOKEN_SHARED, 12);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
}

/* Goal: an answer that exportd made before it got the token back grants nothing when it
 * arrives later. */
static void test_grants_that_come_after_they_were_given_back_are_void(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_int_equal(give_back(5, TOKEN_NONE, 13), 13); /* 12 and 13 are in flight */
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 12);
    token_cache_grant(t, 5, TOKEN_SHARED, 13);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    assert_false(tell_attr(5, 13));
    token_cache_grant(t, 6, TOKEN_SHARED, 12); /* for another inode */
    assert_int_equal(token_cache_mode(t, 6), TOKEN_SHARED);
    token_cache_grant(t, 5, TOKEN_SHARED, 14);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_false(tell_attr(5, 13)); /* attributes of that answer may be old */
    assert_true(tell_attr(5, 14));
    assert_int_equal(give_back(5, TOKEN_NONE, 0), 14);  /* given back without a recall */
    assert_int_equal(give_back(8, TOKEN_NONE, 20), 20); /* a grant that never arrived */
    token_cache_grant(t, 8, TOKEN_SHARED, 20);
    assert_int_equal(token_cache_mode(t, 8), TOKEN_NONE);
    assert_int_equal(give_back(9, TOKEN_SHARED, 21), 21);
    token_cache_grant(t, 9, TOKEN_EXCLUSIVE, 21);
    assert_int_equal(token_cache_mode(t, 9), TOKEN_NONE);
}

static void test_exclusive_is_lowered(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    assert_int_equal(give_back(5, TOKEN_SHARED, 12), 12);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 12); /* a late answer */
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_true(tell_attr(5, 12)); /* not changed by others since */
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 13);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    token_cache_grant(t, 6, TOKEN_SHARED, 14);
    give_back(6, TOKEN_SHARED, 14);
    assert_int_equal(token_cache_mode(t, 6), TOKEN_SHARED);
    token_cache_grant(t, 7, TOKEN_EXCLUSIVE, 15);
    assert_int_equal(give_back(7, TOKEN_SHARED, 16), 16);
    assert_int_equal(give_back(7, TOKEN_NONE, 0), 16);
    token_cache_grant(t, 7, TOKEN_EXCLUSIVE, 16); /* a late answer */
    assert_int_equal(token_cache_mode(t, 7), TOKEN_NONE);
}

/* Goal: during a recall nothing new goes to the kernel that would have to be taken back;
 * the token is held until its end. */
static void test_kernel_gets_nothing_new_during_a_recall(void **state)
{
    bool kept;

    (void)state;
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    token_cache_recall(t, 5, TOKEN_SHARED);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    assert_true(tell_attr(5, 11));
    token_cache_recall(t, 5, TOKEN_NONE); /* a second recall asks for more */
    token_cache_recall(t, 5, TOKEN_SHARED);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 12);
    assert_false(tell_attr(5, 11));
    assert_false(tell_attr(5, 12));
    assert_false(tell_name(5, "a", false, 12));
    assert_false(tell_listing(5, &kept));
    keep_attr(5, 100, 12);
    assert_int_equal(take_attr(5), 0);
    assert_int_equal(give_back(5, TOKEN_NONE, 11), 12);
    token_cache_grant(t, 5, TOKEN_SHARED, 13);
    assert_true(tell_attr(5, 13));
}

/* ---- names and attributes ---- */

static void test_names_are_noted_until_they_are_taken(void **state)
{
    (void)state;
    assert_false(tell_name(5, "a", false, 11));
    token_cache_name_gone(t, 5, "a", token_cache_changes(t));
    assert_true(names_are(5, 0, NULL, false));
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_false(tell_name(5, "a", false, 9));
    assert_true(tell_name(5, "a", false, 11));
    assert_true(tell_name(5, "a", true, 11)); /* now it is a directory */
    assert_true(tell_name(5, "b", false, 11));
    assert_true(names_are(5, 2, "a", true));
    assert_true(names_are(5, 0, NULL, false));
    assert_true(tell_name(5, "a", false, 11));
    assert_true(tell_name(5, "b", false, 11));
    token_cache_name_gone(t, 5, "b", token_cache_changes(t));
    token_cache_name_gone(t, 5, "c", token_cache_changes(t));
    assert_true(names_are(5, 1, "a", false));
    assert_true(tell_name(5, "left", false, 11)); /* freed with the token */
    token_cache_gave_back(t, 5, TOKEN_NONE, 0);
    assert_true(names_are(5, 0, NULL, false));
}

/* ---- the names of a directory ---- */

static bool lacks(uint64_t dir, const char *name)
{
    uint64_t grant = 0;
    bool lacks;

    token_cache_lock(t);
    lacks = token_cache_name_absent(t, dir, name, &grant);
    token_cache_unlock(t);
    assert_true(!lacks || grant != 0);
    return lacks;
}

static void dir_is_new(uint64_t dir, uint64_t grant)
{
    token_cache_lock(t);
    token_cache_dir_is_new(t, dir, grant);
    token_cache_unlock(t);
}

/* Adds a part (after, to] of a listing, with one name. changes: token_cache_changes()
 * at the time of the request. */
static void listed(uint64_t after, uint64_t to, bool end, const char *name,
                   uint64_t changes)
{
    const struct listed_name names[] = { { name, strlen(name) } };
    const struct listed_names l = {
        .dir = 5,
        .grant = 11,
        .after = after,
        .to = to,
        .end = end,
        .changes = changes,
        .n = 1,
        .names = names,
    };

    token_cache_lock(t);
    token_cache_names_listed(t, &l);
    token_cache_unlock(t);
}

static void test_all_names_of_a_new_directory_are_known(void **state)
{
    (void)state;
    assert_false(lacks(5, "a"));
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_false(lacks(5, "a"));
    dir_is_new(5, 11);
    assert_true(lacks(5, "a"));
    token_cache_name_comes(t, 5, "a");
    assert_false(lacks(5, "a"));
    assert_true(lacks(5, "ab"));
    assert_true(tell_name(5, "b", false, 11));
    assert_false(lacks(5, "b"));
    assert_true(token_cache_name_gone(t, 5, "b", token_cache_changes(t)));
    /* the kernel did not get it */
    assert_false(token_cache_name_gone(t, 5, "a", token_cache_changes(t)));
    assert_true(lacks(5, "a"));
    assert_true(lacks(5, "b"));
    token_cache_recall(t, 5, TOKEN_NONE);
    assert_false(lacks(5, "a"));
    give_back(5, TOKEN_NONE, 11);
    token_cache_grant(t, 5, TOKEN_SHARED, 12);
    assert_false(lacks(5, "a"));
    dir_is_new(5, 11); /* a late answer: others may have made names since */
    assert_false(lacks(5, "a"));
}

static void test_a_name_that_moved_may_still_be_there(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_true(tell_name(5, "x", false, 11));
    assert_true(token_cache_name_moved(t, 5, "x"));
    assert_true(names_are(5, 0, "", false));
    dir_is_new(5, 11);
    assert_true(tell_name(5, "a", false, 11));
    assert_true(token_cache_name_moved(t, 5, "a"));
    assert_false(token_cache_name_moved(t, 5, "a"));
    assert_false(lacks(5, "a"));
    assert_true(lacks(5, "x"));
    assert_true(tell_name(5, "b", true, 11));
    assert_true(names_are(5, 1, "b", true)); /* only names that the kernel got */
    assert_false(lacks(5, "x"));
}

static void test_a_restart_of_exportd_may_bring_names(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    dir_is_new(5, 11);
    assert_true(lacks(5, "a"));
    token_cache_opened(t, 20, false);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_false(lacks(5, "a"));
}

/* After a restart of exportd, parts listed before do not count any more: all of the
 * directory must be listed again. */
static void test_directory_is_listed_again_after_a_restart_of_exportd(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    listed(0, 8, false, "a", token_cache_changes(t));
    /* removed, but a power cut undoes it */
    token_cache_name_gone(t, 5, "back", token_cache_changes(t));
    token_cache_opened(t, 11, false);
    listed(0, 2, false, "a", token_cache_changes(t));
    listed(8, 9, true, "z", token_cache_changes(t));
    assert_false(lacks(5, "back"));
    listed(2, 8, false, "back", token_cache_changes(t));
    listed(8, 9, true, "z", token_cache_changes(t));
    assert_true(lacks(5, "x"));
    assert_false(lacks(5, "back"));
}

static void test_complete_listing_gives_all_names(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    listed(4, 7, true, "late", token_cache_changes(t)); /* the beginning is missing */
    assert_false(lacks(5, "x"));
    listed(0, 4, false, "a", token_cache_changes(t));
    token_cache_name_comes(t, 5, "made");
    assert_false(lacks(5, "x"));
    listed(6, 9, true, "c", token_cache_changes(t)); /* a part between is missing */
    assert_false(lacks(5, "x"));
    listed(3, 6, false, "b", token_cache_changes(t));
    listed(6, 9, true, "c", token_cache_changes(t));
    assert_true(lacks(5, "x"));
    assert_false(lacks(5, "a") || lacks(5, "b") || lacks(5, "c") || lacks(5, "made"));
}

/* A name that was made while the beginning of the listing was in flight may be missing in
 * it. */
static void test_a_listing_from_before_our_change_is_not_begun_with(void **state)
{
    uint64_t changes = token_cache_changes(t);

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_name_comes(t, 5, "made");
    token_cache_forget_attr(t, 5, changes);
    listed(0, 4, true, "a", changes);
    assert_false(lacks(5, "made"));
    listed(0, 4, true, "a", token_cache_changes(t));
    assert_true(lacks(5, "x"));
}

/* A name that was made before the beginning was requested may be missing in a part that
 * was requested earlier. */
static void test_a_part_from_before_the_beginning_is_not_of_that_listing(void **state)
{
    uint64_t changes = token_cache_changes(t);

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_name_comes(t, 5, "made"); /* listed at cookie 6 later */
    token_cache_forget_attr(t, 5, changes);
    listed(0, 4, false, "a", token_cache_changes(t));
    listed(0, 8, false, "a", changes);
    listed(8, 9, true, "z", token_cache_changes(t));
    assert_false(lacks(5, "made"));
    listed(4, 8, false, "made", token_cache_changes(t));
    listed(8, 9, true, "z", token_cache_changes(t));
    assert_true(lacks(5, "x"));
}

/* The answer to a removal arrives late: others have made the name again since, and it was
 * listed. */
static void test_a_removal_from_before_the_listing_takes_nothing_from_it(void **state)
{
    uint64_t changes = token_cache_changes(t);

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    listed(0, 4, true, "a", token_cache_changes(t));
    assert_true(tell_name(5, "a", false, 11));
    assert_true(token_cache_name_gone(t, 5, "a", changes));
    assert_false(lacks(5, "a"));
    assert_true(names_are(5, 0, "", false)); /* the kernel does not believe it any more */
    listed(0, 4, true, "a", token_cache_changes(t));
    token_cache_name_gone(t, 5, "a", token_cache_changes(t));
    assert_true(lacks(5, "a"));
}

/* ---- lookup prefetch ---- */

static bool go_ahead(uint64_t dir, struct prefetch_answer *out)
{
    bool goes;

    token_cache_lock(t);
    goes = token_cache_prefetch_next(t, dir, out);
    token_cache_unlock(t);
    return goes;
}

/* Adds a prefetched name; the same grant gives a token for its inode. */
static void keep_ahead(const char *name, uint64_t ino, uint64_t size, uint64_t grant,
                       uint64_t changes)
{
    const struct listed_name listed = { name, strlen(name) };
    const struct md_attr attr = { .ino = ino, .size = size, .mode = S_IFREG };

    token_cache_lock(t);
    token_cache_grant_locked(t, ino, TOKEN_SHARED, grant);
    token_cache_keep_prefetched(t, 5, &listed, &attr, grant, changes);
    token_cache_unlock(t);
}

static uint64_t take_ahead(const char *name)
{
    struct md_attr attr = { 0 };
    uint64_t grant = 0;
    bool taken;

    token_cache_lock(t);
    taken = token_cache_take_prefetched(t, 5, name, &attr, &grant);
    token_cache_unlock(t);
    return taken && grant != 0 ? attr.size : 0;
}

static void test_prefetched_entry_is_good_for_one_lookup(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_int_equal(take_ahead("a"), 0);
    keep_ahead("a", 6, 100, 11, token_cache_changes(t));
    keep_ahead("b", 7, 200, 11, token_cache_changes(t));
    assert_int_equal(take_ahead("a"), 100);
    assert_int_equal(take_ahead("a"), 0);
    assert_true(names_are(5, 0, "", false)); /* the kernel got no name */
    assert_int_equal(take_ahead("b"), 0);
}

static void test_prefetched_entry_goes_with_either_token(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep_ahead("a", 6, 100, 11, token_cache_changes(t));
    keep_ahead("b", 7, 200, 11, token_cache_changes(t));
    token_cache_recall(t, 6, TOKEN_NONE);
    assert_int_equal(take_ahead("a"), 0);
    give_back(6, TOKEN_NONE, 12);
    keep_ahead("a", 6, 100, 11, token_cache_changes(t)); /* a late answer */
    assert_int_equal(take_ahead("a"), 0);
    token_cache_recall(t, 5, TOKEN_NONE);
    assert_int_equal(take_ahead("b"), 0);
    give_back(5, TOKEN_NONE, 12);
    token_cache_grant(t, 5, TOKEN_SHARED, 13);
    assert_int_equal(take_ahead("b"), 0);
}

/* A restart of exportd may have undone a name: its inode may have another one now,
 * whatever arrives later. */
static void test_no_name_is_known_of_before_a_restart(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep_ahead("a", 6, 100, 11, token_cache_changes(t));
    token_cache_opened(t, 12, false);
    keep_attr(6, 100, 12);
    assert_int_equal(take_ahead("a"), 0);
}

static void test_own_changes_drop_prefetched_entries(void **state)
{
    uint64_t changes = token_cache_changes(t);

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep_ahead("a", 6, 100, 11, changes);
    keep_ahead("b", 7, 200, 11, changes);
    keep_ahead("c", 8, 300, 11, changes);
    keep_ahead("d", 9, 400, 11, changes);
    token_cache_forget_attr(t, 6, changes); /* the file was written */
    assert_int_equal(take_ahead("a"), 0);
    token_cache_name_comes(t, 5, "b"); /* replaced by a rename */
    assert_int_equal(take_ahead("b"), 0);
    token_cache_name_gone(t, 5, "c", token_cache_changes(t));
    assert_int_equal(take_ahead("c"), 0);
    token_cache_name_moved(t, 5, "d");
    assert_int_equal(take_ahead("d"), 0);
    token_cache_forget_attr(t, 5, changes);
    keep_ahead("e", 10, 500, 11, changes); /* listed before the last change */
    assert_int_equal(take_ahead("e"), 0);
    keep_ahead("e", 10, 500, 11, token_cache_changes(t));
    assert_int_equal(take_ahead("e"), 500);
}

/* Counts failed lookups until a prefetch starts; part describes it. */
static unsigned misses_until(struct prefetch_answer *part)
{
    unsigned n = 1;

    while (!go_ahead(5, part))
        n++;
    return n;
}

static void test_prefetch_begins_after_some_misses_and_becomes_larger(void **state)
{
    struct prefetch_answer part;
    unsigned misses, n;
    char name[16];

    (void)state;
    assert_false(go_ahead(5, &part)); /* without a token nothing can be cached */
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    misses = misses_until(&part);
    assert_true(misses > 1 && misses < 100);
    assert_true(part.dir == 5 && part.after == 0 && part.n > 1);
    for (unsigned i = 0; i < 10000; i++)
        assert_false(go_ahead(
            5, &(struct prefetch_answer){ 0 })); /* only one prefetch at a time */
    n = part.n;
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%u", i);
        keep_ahead(name, 100 + i, 1, 11, token_cache_changes(t));
    }
    token_cache_lock(t);
    token_cache_prefetch_came(t, &part, 77);
    token_cache_unlock(t);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%u", i);
        assert_int_equal(take_ahead(name), 1);
    }
    assert_int_equal(misses_until(&part), misses);
    assert_int_equal(part.after, 77);
    assert_true(part.n > n);
    for (unsigned i = 0; i < 2; i++) { /* none of the names was used */
        token_cache_lock(t);
        token_cache_prefetch_came(t, &part, 0);
        token_cache_unlock(t);
        n = misses_until(&part);
    }
    assert_true(n > misses);
}

static void test_prefetched_entries_are_bounded(void **state)
{
    unsigned n_taken = 0;
    char name[16];

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    for (unsigned i = 0; i < TOKENS_AHEAD_MAX + 100; i++) {
        snprintf(name, sizeof(name), "%u", i);
        keep_ahead(name, 100 + i, 1, 11, token_cache_changes(t));
    }
    assert_int_equal(take_ahead("99"), 0);
    assert_int_equal(take_ahead("100"), 1);
    for (unsigned i = 0; i < TOKENS_AHEAD_MAX + 100; i++) {
        snprintf(name, sizeof(name), "%u", i);
        n_taken += take_ahead(name) != 0;
    }
    assert_int_equal(n_taken, TOKENS_AHEAD_MAX - 1);
}

static void test_listings_last_as_long_as_the_token(void **state)
{
    bool kept = true;

    (void)state;
    assert_false(tell_listing(5, &kept));
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_true(tell_listing(5, &kept));
    assert_false(kept);
    assert_true(tell_listing(5, &kept));
    assert_true(kept);
    give_back(5, TOKEN_NONE, 11);
    token_cache_grant(t, 5, TOKEN_SHARED, 12);
    assert_true(tell_listing(5, &kept));
    assert_false(kept);
}

static void test_attributes_are_kept_for_one_question(void **state)
{
    (void)state;
    keep_attr(5, 100, 11); /* no token */
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    keep_attr(5, 100, 9);
    assert_int_equal(take_attr(5), 0);
    keep_attr(5, 100, 11);
    keep_attr(5, 200, 11);
    assert_int_equal(take_attr(5), 200);
    assert_int_equal(take_attr(5), 0);
    keep_attr(5, 100, 11);
    token_cache_forget_attr(t, 5, 0);
    token_cache_forget_attr(t, 6, 0);
    assert_int_equal(take_attr(5), 0);
    keep_attr(5, 100, 11);
    token_cache_recall(t, 5, TOKEN_SHARED);
    assert_int_equal(take_attr(5), 0);
    token_cache_grant(t, 5, TOKEN_SHARED, 13);
    keep_attr(5, 100, 12); /* an older answer, late */
    assert_int_equal(take_attr(5), 0);
    keep_attr(5, 100, 13); /* freed with the token */
}

static void test_attributes_of_a_directory_are_kept_for_all_questions(void **state)
{
    const struct md_attr dir = { .ino = 5, .size = 4096, .mode = S_IFDIR | 0755 };
    struct md_attr seen;
    uint64_t grant;

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_lock(t);
    token_cache_keep_attr(t, &dir, 11, token_cache_changes(t));
    token_cache_unlock(t);
    assert_int_equal(take_attr(5), 4096);
    assert_int_equal(take_attr(5), 4096);
    assert_false(tokens_have_data(t, 5) || tokens_have_data(t, 6));
    tokens_note_data(t, 5);
    tokens_note_data(t, 6); /* there is no token */
    assert_true(tokens_have_data(t, 5) && !tokens_have_data(t, 6));
    tokens_note_atime(t, 5, 77); /* known from a listing */
    tokens_note_atime(t, 6, 77);
    assert_true(token_cache_take_attr(t, 5, &seen, &grant) && seen.atime_ns == 77);
    token_cache_forget_attr(t, 5, 0);
    assert_int_equal(take_attr(5), 0);
}

static void keep_attr_asked(uint64_t ino, uint64_t size, uint64_t changes)
{
    const struct md_attr attr = { .ino = ino, .size = size };

    token_cache_lock(t);
    token_cache_keep_attr(t, &attr, 11, changes);
    token_cache_unlock(t);
}

/* Goal: attributes from before a change of this mount that arrive after it are not
 * cached, also if there was no grant at that time. */
static void test_attributes_older_than_our_last_change_are_not_kept(void **state)
{
    uint64_t before, since;

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    before = token_cache_changes(t);
    token_cache_forget_attr(t, 5, before);
    keep_attr_asked(5, 100, before);
    assert_int_equal(take_attr(5), 0);
    keep_attr_asked(5, 200, token_cache_changes(t));
    assert_int_equal(take_attr(5), 200);
    before = token_cache_changes(t);
    token_cache_forget_attr(t, 7, before); /* before there is a token */
    token_cache_grant(t, 7, TOKEN_SHARED, 11);
    keep_attr_asked(7, 100, before);
    assert_int_equal(take_attr(7), 0);
    keep_attr_asked(5, 300, before); /* not the changed inode */
    assert_int_equal(take_attr(5), 300);
    since = token_cache_changes(t);
    assert_true(since > before);
}

/* Goal: attributes in the answer to a change are cached, unless another change that may
 * be later was answered first. */
static void test_attributes_that_come_with_our_own_change(void **state)
{
    uint64_t first, second, with_first, with_second;

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    first = token_cache_changes(t);
    with_first = token_cache_forget_attr(t, 5, first);
    keep_attr_asked(5, 100, with_first);
    assert_int_equal(take_attr(5), 100);
    first = second =
        token_cache_changes(t); /* two changes at once: their order is unknown */
    with_second = token_cache_forget_attr(t, 5, second);
    keep_attr_asked(5, 300, with_second);
    with_first = token_cache_forget_attr(t, 5, first);
    keep_attr_asked(5, 200, with_first);
    assert_int_equal(take_attr(5), 0);
    first = second = token_cache_changes(t);
    with_second = token_cache_forget_attr(t, 5, second);
    /* before the attributes of the other one are cached */
    with_first = token_cache_forget_attr(t, 5, first);
    keep_attr_asked(5, 300, with_second);
    keep_attr_asked(5, 200, with_first);
    assert_int_equal(take_attr(5), 0);
}

/* Goal: cached attributes are not used after a restart of exportd: a power failure may
 * have undone their change. */
static void test_attributes_are_not_kept_over_a_restart_of_exportd(void **state)
{
    const struct md_attr dir = { .ino = 6, .size = 4096, .mode = S_IFDIR | 0755 };

    (void)state;
    token_cache_grant(t, 5, TOKEN_EXCLUSIVE, 11);
    token_cache_grant(t, 6, TOKEN_SHARED, 11);
    keep_attr(5, 100, 11);
    token_cache_lock(t);
    token_cache_keep_attr(t, &dir, 11, token_cache_changes(t));
    token_cache_unlock(t);
    assert_int_equal(take_attr(5), 100);
    assert_int_equal(take_attr(6), 4096);
    token_cache_opened(t, 1000, false);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_EXCLUSIVE);
    assert_int_equal(take_attr(5), 0);
    assert_int_equal(take_attr(6), 0);
}

/* The guess lasts until this mount changes the name. */
static void test_inodes_of_names_are_guessed(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    assert_int_equal(token_cache_guess_inode(t, 5, "a"), 0);
    assert_true(tell_name(5, "a", false, 11));
    assert_true(tell_name(5, "b", false, 11));
    assert_int_equal(token_cache_guess_inode(t, 5, "a"), FOUND);
    assert_int_equal(token_cache_guess_inode(t, 6, "a"), 0);
    token_cache_name_comes(t, 5, "a"); /* a rename over it is asked for */
    assert_int_equal(token_cache_guess_inode(t, 5, "a"), 0);
    token_cache_name_gone(t, 5, "b", 0);
    assert_int_equal(token_cache_guess_inode(t, 5, "b"), 0);
}

/* ---- sessions ---- */

static void claim_is(uint64_t shared, uint64_t exclusive)
{
    struct token_cache_claim c;

    token_cache_claim(t, &c);
    assert_int_equal(c.n_shared, shared != 0);
    assert_int_equal(c.n_exclusive, exclusive != 0);
    assert_true(shared == 0 || c.shared[0] == shared);
    assert_true(exclusive == 0 || c.exclusive[0] == exclusive);
    free(c.shared);
    free(c.exclusive);
}

static void test_held_tokens_are_claimed(void **state)
{
    uint64_t *list;
    size_t n;

    (void)state;
    claim_is(0, 0);
    token_cache_opened(t, 10, false);
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_grant(t, 6, TOKEN_EXCLUSIVE, 12);
    list = token_cache_list(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(list[0] + list[1], 11);
    free(list);
    claim_is(5, 6);
    token_cache_grant(t, 7, TOKEN_SHARED,
                      13); /* older answer: not claimed, so not held */
    token_cache_opened(t, 1000, false);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_int_equal(token_cache_mode(t, 6), TOKEN_EXCLUSIVE);
    assert_int_equal(token_cache_mode(t, 7), TOKEN_NONE);
    assert_int_equal(token_cache_lost_one(t), 0);
    token_cache_grant(t, 8, TOKEN_SHARED, 999);
    assert_int_equal(token_cache_mode(t, 8), TOKEN_NONE);
    assert_false(tell_attr(5, 11)); /* may be old: the token was claimed since */
    assert_int_equal(give_back(5, TOKEN_NONE, 0), 1000);
}

static void test_lost_tokens_are_dropped_one_by_one(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_grant(t, 6, TOKEN_EXCLUSIVE, 12);
    assert_true(tell_name(5, "a", false, 11));
    keep_attr(5, 100, 11);
    claim_is(5, 6);
    token_cache_opened(t, 1000, true);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    assert_int_equal(token_cache_mode(t, 6), TOKEN_NONE);
    assert_int_equal(token_cache_lost_one(t) + token_cache_lost_one(t), 11);
    assert_int_equal(token_cache_lost_one(t), 0);
    assert_true(token_cache_is_lost(t, 5) && token_cache_is_lost(t, 6) &&
                !token_cache_is_lost(t, 7));
    /* granted by the new session, but cached data is from the old one */
    token_cache_grant(t, 5, TOKEN_SHARED, 1001);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_NONE);
    assert_false(tell_attr(5, 1001));
    assert_int_equal(take_attr(5), 0);
    assert_true(names_are(5, 1, "a", false));
    assert_int_equal(give_back(5, TOKEN_NONE, 0), 1001);
    assert_false(token_cache_is_lost(t, 5));
    token_cache_grant(t, 5, TOKEN_SHARED, 1002);
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    claim_is(5, 0);
    token_cache_opened(t, 2000, true); /* before 6 was given back */
    assert_int_equal(token_cache_lost_one(t) + token_cache_lost_one(t), 11);
    assert_int_equal(token_cache_lost_one(t), 0);
}

/* ---- room ---- */

enum { LIMIT = 64, HIGH = 48, LOW = 40 }; /* HIGH: three quarters; LOW: five eighths */

/* Returns one token that should be given back; 0: none. */
static uint64_t surplus(void)
{
    struct token_surplus s;

    return token_cache_surplus(t, &s, 1) == 0 ? 0 : s.ino;
}

static void hold(uint64_t first, uint64_t last)
{
    for (uint64_t ino = first; ino <= last; ino++)
        token_cache_grant(t, ino, TOKEN_SHARED, 11);
}

static void test_the_longest_unused_go_early(void **state)
{
    struct token_surplus list[LIMIT];

    (void)state;
    token_cache_set_max(t, LIMIT);
    hold(1, HIGH);
    assert_int_equal(surplus(), 0);
    assert_true(tell_attr(1, 11)); /* used now */
    hold(HIGH + 1, HIGH + 1);
    assert_int_equal(surplus(), 2);
    assert_int_equal(surplus(), 3); /* 2 is being given back */
    assert_int_equal(token_cache_surplus(t, list, LIMIT), HIGH + 1 - LOW - 2);
    assert_true(list[0].ino == 4 && list[0].is_plain);
    assert_int_equal(surplus(), 0); /* enough are being given back */
    for (uint64_t ino = 2; ino < 2 + HIGH + 1 - LOW; ino++)
        give_back(ino, TOKEN_NONE, 0);
    assert_int_equal(surplus(), 0);
    hold(100, 100 + HIGH - LOW - 1);
    assert_int_equal(surplus(), 0); /* below the upper mark again */
    hold(200, 200);
    assert_true(surplus() != 0);
}

/* exportd sets the limit; it is lower when all sessions together hold too many. */
static void test_limit_of_tokens_is_set_by_exportd(void **state)
{
    struct token_surplus list[LIMIT];

    (void)state;
    hold(1, HIGH);
    assert_int_equal(surplus(), 0); /* far below the default limit */
    token_cache_set_max(t, LIMIT / 2);
    assert_int_equal(token_cache_surplus(t, list, LIMIT), HIGH - LOW / 2);
    token_cache_set_max(t, 0);
    assert_int_equal(surplus(), 0);
}

/* A token that is lowered instead of given back is held again; a forgotten one does not
 * count as being given back. */
static void test_token_that_is_lowered_counts_as_held_again(void **state)
{
    (void)state;
    token_cache_set_max(t, LIMIT);
    for (uint64_t ino = 1; ino <= HIGH + 1; ino++)
        token_cache_grant(t, ino, TOKEN_EXCLUSIVE, 11);
    assert_int_equal(surplus(), 1);
    give_back(1, TOKEN_SHARED, 0);
    for (uint64_t ino = 2; ino <= HIGH + 2 - LOW; ino++)
        assert_int_equal(surplus(), ino);
    assert_int_equal(surplus(), 0);
    token_cache_inode_gone(t, 2); /* no other client has it open */
    assert_int_equal(surplus(), 0);
}

static bool is_plain(uint64_t ino)
{
    bool plain = token_cache_recall_plain(t, ino);

    if (plain)
        assert_false(tell_attr(ino, 11)); /* being given back */
    return plain;
}

/* Tokens by which the kernel caches names or pages are not plain: giving them back takes
 * longer. */
static void test_tokens_by_which_the_kernel_caches_are_not_plain(void **state)
{
    const struct token_need read = { .mode = TOKEN_SHARED };
    bool kept;

    (void)state;
    hold(1, 5);
    assert_true(token_cache_cover(t, 2, &read));
    assert_true(tell_name(3, "name", false, 11));
    assert_true(tell_listing(4, &kept));
    token_cache_grant(t, 6, TOKEN_EXCLUSIVE, 11);
    token_cache_grant(t, 7, TOKEN_EXCLUSIVE, 11);
    give_back(7, TOKEN_SHARED, 0); /* the pages stay */
    assert_true(is_plain(1));
    assert_false(is_plain(1) || is_plain(2) || is_plain(3) || is_plain(4));
    assert_true(is_plain(5));
    assert_false(is_plain(6) || is_plain(7) || is_plain(8));
}

/* Only some of the tokens that are not plain are given back at a time. */
static void test_only_some_tokens_that_are_not_plain_leave_at_a_time(void **state)
{
    struct token_surplus list[2 * TOKENS_LEAVING_HEAVY_MAX];
    const struct token_need read = { .mode = TOKEN_SHARED };

    (void)state;
    token_cache_set_max(t, 8 * TOKENS_LEAVING_HEAVY_MAX);
    hold(1, 8 * TOKENS_LEAVING_HEAVY_MAX);
    for (uint64_t ino = 1; ino <= 8 * TOKENS_LEAVING_HEAVY_MAX; ino++)
        assert_true(token_cache_cover(t, ino, &read));
    assert_int_equal(token_cache_surplus(t, list, 2 * TOKENS_LEAVING_HEAVY_MAX),
                     TOKENS_LEAVING_HEAVY_MAX);
    assert_int_equal(surplus(), 0);
    give_back(list[0].ino, TOKEN_NONE, 0);
    assert_true(surplus() != 0);
    assert_int_equal(surplus(), 0);
}

/* Tokens of removed files neither fill the table nor push out tokens that are useful. */
static void test_inodes_without_names_make_room(void **state)
{
    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    token_cache_grant(t, 6, TOKEN_EXCLUSIVE, 11);
    assert_true(tell_attr(6, 11));
    token_cache_inode_gone(t, 6);
    token_cache_inode_gone(t, 7); /* had no token */
    assert_int_equal(token_cache_mode(t, 5), TOKEN_SHARED);
    assert_int_equal(token_cache_mode(t, 6), TOKEN_NONE);
    token_cache_set_max(t, LIMIT);
    hold(6, HIGH + 5);
    assert_int_equal(surplus(), 5);
    token_cache_note_others(t, true); /* other mounts may have 9 open, and change it */
    assert_true(tell_attr(9, 11));
    token_cache_inode_gone(t, 9);
    assert_int_equal(token_cache_mode(t, 9), TOKEN_SHARED);
    assert_int_equal(surplus(), 9);
    token_cache_note_others(t, false);
    for (uint64_t ino = 10; ino < 10 + HIGH + 1 - LOW; ino++)
        token_cache_inode_gone(t, ino);
    assert_int_equal(surplus(), 0);
}

/* Goal: whichever name is removed, the others stay, and names that come later are
 * recorded, too. */
static void test_names_go_one_by_one(void **state)
{
    static const char *const orders[] = { "abc", "acb", "bac", "bca", "cab", "cba" };

    (void)state;
    token_cache_grant(t, 5, TOKEN_SHARED, 11);
    for (unsigned i = 0; i < 6; i++) {
        assert_true(tell_name(5, "a", false, 11) && tell_name(5, "b", false, 11) &&
                    tell_name(5, "c", false, 11));
        for (unsigned k = 0; k < 3; k++) {
            const char name[] = { orders[i][k], '\0' };

            assert_true(token_cache_name_gone(t, 5, name, token_cache_changes(t)));
            assert_false(token_cache_name_gone(t, 5, name, token_cache_changes(t)));
            assert_true(tell_name(5, "new", true, 11));
            assert_true(names_are(5, 3 - k, "new", true));
            for (unsigned j = k + 1; j < 3; j++) {
                const char left[] = { orders[i][j], '\0' };

                assert_true(tell_name(5, left, false, 11));
            }
        }
    }
    give_back(5, TOKEN_NONE, 0);
}

/* Too many names make directories go, however many tokens without names are older. */
static void test_too_many_names(void **state)
{
    struct token_surplus one;
    char name[32];

    (void)state;
    token_cache_set_max(t, LIMIT);
    hold(1, 9);
    for (unsigned i = 0; i < HIGH * TOKENS_NAMES_PER; i++) {
        assert_int_equal(surplus(), 0);
        snprintf(name, sizeof(name), "%u", i);
        assert_true(tell_name(5 + i % 2, name, false, 11));
    }
    assert_int_equal(surplus(), 0);
    assert_true(tell_name(6, "one more", false, 11));
    assert_int_equal(token_cache_surplus(t, &one, 1), 1);
    assert_true(one.ino == 5 && !one.is_plain);
    assert_int_equal(surplus(), 0); /* half of them are enough */
    kernel_names_free(token_cache_take_names(t, 5));
    give_back(5, TOKEN_NONE, 0);
    assert_int_equal(surplus(), 0);
}

/* ---- a random exportd ---- */

enum { INODES = 3, ANSWERS_MAX = 6, STEPS = 200000 };

/* State of exportd and of the kernel. */
struct world {
    struct env_virtual env;
    uint64_t counter;
    struct holder {
        enum token_mode mode;
        uint64_t grant;
        /* mode of the recall in flight; not below `mode`: no recall */
        enum token_mode asked;
        bool begun; /* the mount has received the recall */
        bool told;  /* the kernel believes attributes */
    } of[INODES];
    struct answer {
        unsigned i;
        enum token_mode mode;
        uint64_t grant;
    } answers[ANSWERS_MAX]; /* in flight */
    unsigned n_answers;
};

static unsigned pick(struct world *w, unsigned n)
{
    return (unsigned)env_virtual_below(&w->env, n);
}

static bool is_recalled(const struct holder *h)
{
    return h->asked < h->mode;
}

static void exportd_answers(struct world *w)
{
    unsigned i = pick(w, INODES);
    struct holder *h = &w->of[i];
    enum token_mode mode = 1 + pick(w, 2);

    if (w->n_answers == ANSWERS_MAX || is_recalled(h))
        return;
    h->mode = mode > h->mode ? mode : h->mode;
    h->asked = h->mode;
    h->grant = ++w->counter;
    w->answers[w->n_answers++] = (struct answer){ i, h->mode, h->grant };
}

static void an_answer_arrives(struct world *w)
{
    unsigned n;
    struct answer a;

    if (w->n_answers == 0)
        return;
    n = pick(w, w->n_answers);
    a = w->answers[n];
    w->answers[n] = w->answers[--w->n_answers];
    token_cache_grant(t, a.i + 1, a.mode, a.grant);
    if (tell_attr(a.i + 1, a.grant))
        w->of[a.i].told = true;
}

static void exportd_recalls(struct world *w)
{
    struct holder *h = &w->of[pick(w, INODES)];

    if (h->asked > TOKEN_NONE)
        h->asked = pick(w, (unsigned)h->asked);
}

/* Answers a recall in two steps, so that other answers can arrive between them. */
static void the_mount_answers_a_recall(struct world *w)
{
    unsigned i = pick(w, INODES);
    struct holder *h = &w->of[i];
    uint64_t number;

    if (!is_recalled(h))
        return;
    token_cache_recall(t, i + 1, h->asked);
    if (h->asked == TOKEN_NONE)
        h->told = false;
    if (!h->begun) {
        h->begun = true;
        return;
    }
    h->begun = false;
    number = token_cache_gave_back(t, i + 1, h->asked, h->grant);
    if (h->grant <= number)
        h->mode = h->asked;
    h->asked = h->mode;
}

static void the_mount_has_too_many(struct world *w)
{
    unsigned i = pick(w, INODES);
    struct holder *h = &w->of[i];

    if (is_recalled(h))
        return;
    token_cache_recall(t, i + 1, TOKEN_NONE);
    h->told = false;
    if (h->grant <= token_cache_gave_back(t, i + 1, TOKEN_NONE, 0))
        h->mode = h->asked = TOKEN_NONE;
}

static void claims_are_taken(struct world *w, const uint64_t *inos, size_t n,
                             enum token_mode mode)
{
    for (size_t i = 0; i < n; i++)
        w->of[inos[i] - 1].mode = mode;
}

static void give_up_lost(struct world *w)
{
    uint64_t ino;

    while ((ino = token_cache_lost_one(t)) != 0) {
        assert_true(token_cache_is_lost(t, ino));
        w->of[ino - 1].told = false;
        token_cache_gave_back(t, ino, TOKEN_NONE, 0);
    }
}

/* Restarts exportd; answers of the old one still arrive. */
static void exportd_restarts(struct world *w)
{
    bool lost = pick(w, 3) == 0;
    struct token_cache_claim c;

    token_cache_claim(t, &c);
    an_answer_arrives(w);
    for (unsigned i = 0; i < INODES; i++)
        w->of[i].mode = TOKEN_NONE;
    if (!lost) {
        claims_are_taken(w, c.shared, c.n_shared, TOKEN_SHARED);
        claims_are_taken(w, c.exclusive, c.n_exclusive, TOKEN_EXCLUSIVE);
    }
    free(c.shared);
    free(c.exclusive);
    w->counter = ((w->counter >> 40) + 1) << 40;
    w->counter++;
    for (unsigned i = 0; i < INODES; i++) {
        w->of[i].grant = w->counter;
        w->of[i].asked = w->of[i].mode;
        w->of[i].begun = false;
    }
    token_cache_opened(t, w->counter, lost);
    give_up_lost(w);
}

static void check_world(const struct world *w)
{
    for (unsigned i = 0; i < INODES; i++) {
        if (token_cache_mode(t, i + 1) > w->of[i].mode)
            fail_msg("more is held than exportd knows");
        if (w->of[i].told && w->of[i].mode == TOKEN_NONE)
            fail_msg("the kernel believes what nobody lets it");
    }
}

static void test_nothing_is_kept_that_exportd_does_not_know_of(void **state)
{
    struct world w = { .counter = 11 };
    unsigned n_told = 0;

    (void)state;
    env_virtual_init(&w.env, 7);
    for (unsigned step = 0; step < STEPS; step++) {
        switch (pick(&w, 16)) {
        case 0:
            the_mount_has_too_many(&w);
            break;
        case 1:
            if (pick(&w, 8) == 0)
                exportd_restarts(&w);
            break;
        case 2:
        case 3:
        case 4:
            exportd_recalls(&w);
            break;
        case 5:
        case 6:
        case 7:
        case 8:
            the_mount_answers_a_recall(&w);
            break;
        case 9:
        case 10:
        case 11:
        case 12:
            exportd_answers(&w);
            break;
        default:
            an_answer_arrives(&w);
            break;
        }
        check_world(&w);
        n_told += w.of[0].told;
    }
    assert_true(n_told > STEPS / 20 && n_told < STEPS);
    env_virtual_close(&w.env);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_granted_token_is_held),
        T(test_an_exportd_that_gives_no_tokens),
        T(test_grants_that_come_after_they_were_given_back_are_void),
        T(test_exclusive_is_lowered),
        T(test_kernel_gets_nothing_new_during_a_recall),
        T(test_names_are_noted_until_they_are_taken),
        T(test_names_go_one_by_one),
        T(test_all_names_of_a_new_directory_are_known),
        T(test_a_name_that_moved_may_still_be_there),
        T(test_a_restart_of_exportd_may_bring_names),
        T(test_directory_is_listed_again_after_a_restart_of_exportd),
        T(test_complete_listing_gives_all_names),
        T(test_a_listing_from_before_our_change_is_not_begun_with),
        T(test_a_part_from_before_the_beginning_is_not_of_that_listing),
        T(test_a_removal_from_before_the_listing_takes_nothing_from_it),
        T(test_prefetched_entry_is_good_for_one_lookup),
        T(test_prefetched_entry_goes_with_either_token),
        T(test_no_name_is_known_of_before_a_restart),
        T(test_own_changes_drop_prefetched_entries),
        T(test_prefetch_begins_after_some_misses_and_becomes_larger),
        T(test_prefetched_entries_are_bounded),
        T(test_listings_last_as_long_as_the_token),
        T(test_attributes_are_kept_for_one_question),
        T(test_attributes_of_a_directory_are_kept_for_all_questions),
        T(test_attributes_older_than_our_last_change_are_not_kept),
        T(test_attributes_that_come_with_our_own_change),
        T(test_attributes_are_not_kept_over_a_restart_of_exportd),
        T(test_inodes_of_names_are_guessed),
        T(test_held_tokens_are_claimed),
        T(test_lost_tokens_are_dropped_one_by_one),
        T(test_the_longest_unused_go_early),
        T(test_limit_of_tokens_is_set_by_exportd),
        T(test_token_that_is_lowered_counts_as_held_again),
        T(test_tokens_by_which_the_kernel_caches_are_not_plain),
        T(test_only_some_tokens_that_are_not_plain_leave_at_a_time),
        T(test_inodes_without_names_make_room),
        T(test_too_many_names),
        T(test_nothing_is_kept_that_exportd_does_not_know_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
