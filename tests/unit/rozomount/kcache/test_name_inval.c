/*
 * Goal: no name counts as old while the kernel may still believe it, and a drop that is
 * not needed any more delays no caller.
 */
#include <string.h>

#include "common/base/units.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/tokens/token_cache.h"
#include "tests/unit/unit.h"

enum { DIR = 7, OTHER = 8, GRANT = 5 };

struct fixture {
    struct name_inval *name_inval;
    struct token_cache *tokens;
    struct dropped_names dir, other;
};

static const uint64_t nothing[NAME_INVAL_LOCKED_MAX] = { 0 };
static const uint64_t has_dir[NAME_INVAL_LOCKED_MAX] = { 0, DIR };

static void tell(struct fixture *f, uint64_t dir, const char *name)
{
    token_cache_grant(f->tokens, dir, TOKEN_SHARED, GRANT);
    token_cache_lock(f->tokens);
    assert_true(token_cache_tell_name(f->tokens, dir, name, 0, false, GRANT));
    token_cache_unlock(f->tokens);
}

static void make_old(struct fixture *f, const uint64_t *locked)
{
    token_cache_lock(f->tokens);
    name_inval_made_old(f->name_inval, f->tokens, locked);
    token_cache_unlock(f->tokens);
}

static void setup(struct fixture *f)
{
    f->name_inval = name_inval_new();
    f->tokens = token_cache_new();
    token_cache_opened(f->tokens, 1, false);
    name_inval_begin(f->name_inval, &f->dir, DIR, ms_to_ns(1000));
    name_inval_begin(f->name_inval, &f->other, OTHER, ms_to_ns(1000));
}

static void teardown(struct fixture *f)
{
    name_inval_end(f->name_inval, &f->dir);
    name_inval_end(f->name_inval, &f->other);
    name_inval_free(f->name_inval);
    token_cache_free(f->tokens);
}

static void test_lock_is_needed_for_locked_directories_and_long_waits(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    assert_true(name_inval_needs_lock(f.name_inval, has_dir, ms_to_ns(1000)));
    assert_false(name_inval_needs_lock(f.name_inval, nothing, ms_to_ns(1000)));
    assert_true(name_inval_needs_lock(f.name_inval, nothing,
                                      ms_to_ns(1000 + NAME_INVAL_LONG_MS)));
    name_inval_end(f.name_inval, &f.dir);
    assert_false(name_inval_needs_lock(f.name_inval, has_dir, ms_to_ns(1000)));
    teardown(&f);
}

static void test_old_names_need_no_lock(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    tell(&f, DIR, "name");
    make_old(&f, has_dir);
    assert_true(name_inval_is_old(f.name_inval, &f.dir));
    assert_true(name_inval_is_old(f.name_inval, &f.other));
    assert_false(name_inval_needs_lock(f.name_inval, has_dir, ms_to_ns(9000)));
    assert_false(
        token_cache_name_gone(f.tokens, DIR, "name", token_cache_changes(f.tokens)));
    tell(&f, DIR, "name"); /* later names are recorded */
    assert_true(
        token_cache_name_gone(f.tokens, DIR, "name", token_cache_changes(f.tokens)));
    teardown(&f);
}

static void test_drop_that_begins_after_the_names_were_aged_is_needed(void **state)
{
    struct dropped_names later;
    struct fixture f;

    (void)state;
    setup(&f);
    make_old(&f, nothing);
    name_inval_begin(f.name_inval, &later, DIR, ms_to_ns(1000));
    assert_false(name_inval_is_old(f.name_inval, &later));
    assert_true(name_inval_needs_lock(f.name_inval, has_dir, ms_to_ns(1000)));
    name_inval_end(f.name_inval, &later);
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
    name_inval_listing_goes(f.name_inval, OTHER);
    make_old(&f, has_dir);
    assert_true(name_inval_is_old(f.name_inval, &f.dir));
    assert_false(name_inval_is_old(f.name_inval, &f.other));
    assert_true(
        token_cache_name_gone(f.tokens, OTHER, "name", token_cache_changes(f.tokens)));
    name_inval_listing_came(f.name_inval, OTHER);
    make_old(&f, nothing);
    assert_true(name_inval_is_old(f.name_inval, &f.other));
    teardown(&f);
}

/* A caller that has locked a directory exclusively knows that no listing of it is in
 * progress. */
static void test_a_locked_directory_is_not_listed(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    name_inval_listing_goes(f.name_inval, DIR);
    make_old(&f, nothing);
    assert_false(name_inval_is_old(f.name_inval, &f.dir));
    make_old(&f, has_dir);
    assert_true(name_inval_is_old(f.name_inval, &f.dir));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_is_needed_for_locked_directories_and_long_waits),
        cmocka_unit_test(test_old_names_need_no_lock),
        cmocka_unit_test(test_drop_that_begins_after_the_names_were_aged_is_needed),
        cmocka_unit_test(test_a_listing_on_its_way_is_not_old),
        cmocka_unit_test(test_a_locked_directory_is_not_listed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
