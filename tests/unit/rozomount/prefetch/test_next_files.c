/*
 * Goal: a reader that opens files in the order of the listing has the next ones
 * prefetched, each once, and no other reader causes a prefetch.
 */
#include "rozomount/prefetch/next_files.h"
#include "tests/unit/unit.h"

enum { DIR = 1, OTHER = 2, MANY = 100 };

/* Lists files first .. first + n - 1, of `size` bytes, as the part of the listing behind
 * the cookie `after`. */
static void list(struct next_files *all, uint64_t dir, uint64_t first, size_t n,
                 uint64_t after, uint64_t size)
{
    struct next_file files[MANY];

    assert_true(n <= MANY);
    for (size_t i = 0; i < n; i++)
        files[i] = (struct next_file){ first + i, size };
    next_files_listed(all, dir, after, after + n, files, n);
}

/* All files are opened in order; after the first few the prefetch stays ahead of the
 * reader. */
static void test_files_that_are_opened_in_order_are_prefetched(void **state)
{
    struct next_files *all = next_files_new(2);
    uint64_t inos[NEXT_FILES_MAX], begun = 102;
    unsigned n_turns = 0;

    (void)state;
    list(all, DIR, 100, 50, 0, 4096);
    list(all, DIR, 150, 50, 50, 4096); /* follows the first part */
    for (uint64_t ino = 100; ino < 200; ino++) {
        unsigned n = next_files_opened(all, ino, inos);

        assert_true(ino <= begun || ino <= 102);
        assert_true(ino > 101 || n == 0);
        for (unsigned i = 0; i < n; i++)
            assert_true(inos[i] == ++begun); /* each once, none left out */
        assert_true(begun <= ino + NEXT_FILES_MAX || ino < 102);
        n_turns += n != 0;
    }
    assert_true(begun == 199);
    assert_true(n_turns < 15); /* many at a time */
    next_files_free(all);
}

static void test_out_of_order(void **state)
{
    struct next_files *all = next_files_new(2);
    uint64_t inos[NEXT_FILES_MAX];

    (void)state;
    list(all, DIR, 100, 50, 0, 4096);
    list(all, OTHER, 300, 2, 0, 4096);
    list(all, DIR, 200, 2, 50, 4096); /* not joined: another directory came between */
    for (uint64_t ino = 149; ino >= 100; ino--)
        assert_int_equal(next_files_opened(all, ino, inos), 0);
    for (uint64_t ino = 101; ino < 150; ino += 2)
        assert_int_equal(next_files_opened(all, ino, inos), 0);
    assert_int_equal(next_files_opened(all, 200, inos), 0);
    assert_int_equal(next_files_opened(all, 201, inos), 0);
    assert_int_equal(next_files_opened(all, 999, inos), 0); /* never listed */
    next_files_free(all);
}

static void test_bounds(void **state)
{
    struct next_files *all = next_files_new(0);
    uint64_t inos[NEXT_FILES_MAX], last = 0;
    unsigned n = 0;

    (void)state;
    for (uint64_t i = 0; i < NEXT_FILES_NOTED_MAX / MANY + 2; i++)
        list(all, DIR, 1000 + i * MANY, MANY, i * MANY, NEXT_FILE_BYTES_MAX);
    assert_int_equal(next_files_opened(all, 1000, inos), 0); /* forgotten by now */
    for (uint64_t ino = 5000; ino < 5060; ino++) {
        n = next_files_opened(all, ino, inos);
        if (n > 0)
            last = inos[n - 1];
        assert_true((last - ino) * NEXT_FILE_BYTES_MAX <= NEXT_FILES_BYTES_MAX);
    }
    next_files_free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_are_opened_in_order_are_prefetched),
        cmocka_unit_test(test_out_of_order),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
