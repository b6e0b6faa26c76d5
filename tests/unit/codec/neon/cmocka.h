/*
 * cmocka.h - the part of cmocka that test_any_kn.c uses, for a machine without the
 * library. The first assertion that fails ends the program. Only run.sh includes this
 * header.
 */
#ifndef ROZO_NEON_CMOCKA_H
#define ROZO_NEON_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

static jmp_buf test_skipped;

static inline void check(int is_true, const char *what, const char *file, int line)
{
    if (is_true)
        return;
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    exit(1);
}

static inline int run_tests(const struct CMUnitTest *tests, size_t n,
                            int (*setup)(void **state))
{
    void *state = NULL;

    check(setup(&state) == 0, "setup", __FILE__, __LINE__);
    for (size_t i = 0; i < n; i++) {
        if (setjmp(test_skipped) == 0) {
            tests[i].run(&state);
            printf("ok %s\n", tests[i].name);
        } else {
            printf("skipped %s\n", tests[i].name);
        }
    }
    return 0;
}

#define CHECK(condition)                 check(condition, #condition, __FILE__, __LINE__)
#define assert_true(a)                   CHECK(a)
#define assert_non_null(a)               CHECK((a) != NULL)
#define assert_int_equal(a, b)           CHECK((a) == (b))
#define assert_in_range(a, from, to)     CHECK((a) >= (from) && (a) <= (to))
#define assert_ptr_not_equal(a, b)       CHECK((const void *)(a) != (const void *)(b))
#define assert_memory_equal(a, b, n)     CHECK(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) CHECK(memcmp(a, b, n) != 0)
#define print_message                    printf
#define skip()                           longjmp(test_skipped, 1)
#define cmocka_unit_test(f) \
    {                       \
        #f, f               \
    }
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    run_tests(tests, sizeof(tests) / sizeof((tests)[0]), setup)

#endif
