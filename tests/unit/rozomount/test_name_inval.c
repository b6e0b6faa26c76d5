/*
 * Goal: no name counts as old while the kernel may still believe it, and a drop that is
 * not needed any more delays no caller.
 */
#include <string.h>

#include "rozomount/kcache/name_inval.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/unit/unit.h"

enum { DIR = 7, OTHER = 8, MS = 1000000, GRANT = 5 };

struct fixture {
    struct dropping *dropping;
    struct tokens *tokens;
    struct dropped_names dir, other;
};

static const uint64_t nothing[DROPPING_LOCKED_MAX] = { 0 };
static const uint64_t has_dir[DROPPING_LOCKED_MAX] = { 0, DIR };

static void tell(struct fixture *f, uint64_t dir, const char *name)
{
    tokens_grant(f->tokens, dir, TOKEN_SHARED, GRANT);
    tokens_lock(f->tokens);
    assert_true(tokens_tell_name(f->tokens, dir, name, false, GRANT));
    tokens_unlock(f->tokens);
}

static void make_old(struct fixture *f, const uint64_t *locked)
{
    tokens_lock(f->tokens);
    dropping_made_old(f->dropping, f->tokens, locked);
    tokens_unlock(f->tokens);
}

static void setup(struct fixture *f)
{
    f->dropping = dropping_new();
    f->tokens = tokens_new();
    tokens_opened(f->tokens, 1, false);
    dropping_begin(f->dropping, &f->dir, DIR, 1000 * (uint64_t)MS);
    dropping_begin(f->dropping, &f->other, OTHER, 1000 * (uint64_t)MS);
}

static void teardown(struct fixture *f)
{
    dropping_end(f->dropping, &f->dir);
    dropping_end(f->dropping, &f->other);
    dropping_free(f->dropping);
    tokens_free(f->tokens);
}

static void test_whose_lock_is_needed(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    assert_true(dropping_needs_lock(f.dropping, has_dir, 1000 * (uint64_t)MS));
    assert_false(dropping_needs_lock(f.dropping, nothing, 1000 * (uint64_t)MS));
    assert_true(dropping_needs_lock(f.dropping, nothing,
                                    (1000 + DROPPING_LONG_MS) * (uint64_t)MS));
    dropping_end(f.dropping, &f.dir);
    assert_false(dropping_needs_lock(f.dropping, has_dir, 1000 * (uint64_t)MS));
    teardown(&f);
}

static void test_old_names_need_no_lock(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    tell(&f, DIR, "name");
    make_old(&f, has_dir);
    assert_true(dropping_is_old(f.dropping, &f.dir));
    assert_true(dropping_is_old(f.dropping, &f.other));
    assert_false(dropping_needs_lock(f.dropping, has_dir, 9000 * (uint64_t)MS));
    assert_false(tokens_name_gone(f.tokens, DIR, "name", tokens_changes(f.tokens)));
    tell(&f, DIR, "name"); /* later names are recorded */
    assert_true(tokens_name_gone(f.tokens, DIR, "name", tokens_changes(f.tokens)));
    teardown(&f);
}

static void test_what_begins_later_is_not_old(void **state)
{
    struct dropped_names later;
    struct fixture f;

    (void)state;
    setup(&f);
    make_old(&f, nothing);
    dropping_begin(f.dropping, &later, DIR, 1000 * (uint64_t)MS);
    assert_false(dropping_is_old(f.dropping, &later));
    assert_true(dropping_needs_lock(f.dropping, has_dir, 1000 * (uint64_t)MS));
    dropping_end(f.dropping, &later);
    teardown(&f);
}

/* The kernel may use the answer of a listing at any time, and believes it from then
 * on. */
static void test_a_listing_on_its_way_is_not_old(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    tell(&f, OTHER, "name");
    dropping_listing_goes(f.dropping, OTHER);
    make_old(&f, has_dir);
    assert_true(dropping_is_old(f.dropping, &f.dir));
    assert_false(dropping_is_old(f.dropping, &f.other));
    assert_true(tokens_name_gone(f.tokens, OTHER, "name", tokens_changes(f.tokens)));
    dropping_listing_came(f.dropping, OTHER);
    make_old(&f, nothing);
    assert_true(dropping_is_old(f.dropping, &f.other));
    teardown(&f);
}

/* A caller that has locked a directory exclusively knows that no listing of it is in
 * progress. */
static void test_a_locked_directory_is_not_listed(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    dropping_listing_goes(f.dropping, DIR);
    make_old(&f, nothing);
    assert_false(dropping_is_old(f.dropping, &f.dir));
    make_old(&f, has_dir);
    assert_true(dropping_is_old(f.dropping, &f.dir));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whose_lock_is_needed),
        cmocka_unit_test(test_old_names_need_no_lock),
        cmocka_unit_test(test_what_begins_later_is_not_old),
        cmocka_unit_test(test_a_listing_on_its_way_is_not_old),
        cmocka_unit_test(test_a_locked_directory_is_not_listed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
