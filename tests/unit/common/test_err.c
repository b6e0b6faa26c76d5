/* test_err.c - err_set, err_wrap and log_level_parse. */
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/unit/unit.h"

static void wraps_from_inside_out(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(err_set(&err, -EINVAL, "format %d", 7), -EINVAL);
    assert_int_equal(err_wrap(&err, -EIO, "read superblock"), -EIO);
    err_wrap(&err, -EIO, "open device %s", "/srv/s1");
    assert_string_equal(err.text, "open device /srv/s1: read superblock: format 7");
}

static void wrap_of_nothing_says_what_errno_means(void **state)
{
    struct err err = { 0 };

    (void)state;
    err_wrap(&err, -ENOENT, "open x");
    assert_string_equal(err.text, "open x: No such file or directory");
}

/* Results of rozo's own have texts of their own; others are errno's. */
static void results_have_texts(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_string_equal(error_text(-ROZO_EDAMAGED), "damaged");
    assert_string_equal(error_text(-ROZO_EDONE_BEFORE), "done before a restart");
    assert_string_equal(error_text(-ENOSPC), strerror(ENOSPC));
    err_wrap(&err, -ROZO_EWRONG_STORAGE, "storage 3");
    assert_string_equal(err.text, "storage 3: meant for another storage");
}

static void set_may_quote_itself(void **state)
{
    struct err err = { 0 };

    (void)state;
    err_set(&err, -EIO, "a");
    err_set(&err, -EIO, "[%s]", err.text);
    assert_string_equal(err.text, "[a]");
}

static void long_texts_are_cut(void **state)
{
    struct err err = { 0 };

    (void)state;
    err_set(&err, -EIO, "%2000s", "x");
    assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
    err_wrap(&err, -EIO, "%1022s", "y");
    assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
    assert_int_equal(err.text[ERR_TEXT_MAX - 2], ':');
    assert_int_equal(err_set(NULL, -3, "nobody reads this"), -3);
    assert_int_equal(err_wrap(NULL, -3, "nor this"), -3);
}

static void levels_have_names(void **state)
{
    enum log_level level;

    (void)state;
    assert_int_equal(log_level_parse("debug", &level), 0);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_int_equal(log_level_parse("error", &level), 0);
    assert_int_equal(level, LOG_LEVEL_ERROR);
    assert_int_equal(log_level_parse("loud", &level), -EINVAL);
    assert_int_equal(level, LOG_LEVEL_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wraps_from_inside_out),
        cmocka_unit_test(wrap_of_nothing_says_what_errno_means),
        cmocka_unit_test(results_have_texts),
        cmocka_unit_test(set_may_quote_itself),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(levels_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
