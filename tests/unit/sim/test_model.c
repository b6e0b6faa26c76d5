/*
 * test_model.c - the checker of the simulator allows exactly what POSIX allows; with
 * --strict also across mounts.
 */
#include "tests/sim/cluster/programs/model.h"
#include "tests/sim/cluster/world/proc.h"
#include "tests/unit/unit.h"

enum { A, B, PAGE = 4096 };

static int file;

static void tick(void)
{
    world_clock.now_ns += 1000;
}

static uint32_t begin_write(int client, uint64_t off, uint64_t end)
{
    tick();
    return model_write_begin(file, off, end, end == UINT64_MAX, client, 1);
}

static void end_write(uint32_t no, int rc)
{
    tick();
    model_write_done(file, no, rc);
}

static uint32_t write_now(int client, uint64_t off, uint64_t end)
{
    uint32_t no = begin_write(client, off, end);

    end_write(no, 0);
    return no;
}

/* Returns the view of a client that asks now, with the file open since the start. */
static struct model_view view_of(int client)
{
    tick();
    return (struct model_view){ .client = client,
                                .life = 1,
                                .opened_ns = 1000000000,
                                .started_ns = world_clock.now_ns,
                                .started_no = model_moment() };
}

/* Returns whether client may read the bytes that write `no` left in the first unit; 0:
 * zeros. */
static bool may_read(int client, uint32_t no)
{
    const struct model_view view = view_of(client);
    uint8_t data[UNIT] = { 0 };

    if (no != 0)
        model_fill(file, no, data, 0, UNIT);
    return model_check_read(file, &view, 0, UNIT, data, UNIT) == NULL;
}

static bool may_be_long(int client, uint64_t size)
{
    const struct model_view view = view_of(client);

    return model_check_size(file, &view, size) == NULL;
}

static int begin(void **state)
{
    world_begin(1);
    model_begin(*state == NULL ? MODEL_LENIENT : *(enum model_strictness *)*state);
    file = model_file_new();
    return 0;
}

static int end(void **state)
{
    (void)state;
    model_end();
    world_end();
    return 0;
}

static void test_answered_write_shows_on_all_mounts(void **state)
{
    uint32_t first = write_now(A, 0, PAGE), second = write_now(A, 0, PAGE);

    (void)state;
    assert_true(may_read(B, second));
    assert_false(may_read(B, first));
    assert_false(may_read(B, 0));
    assert_true(may_be_long(B, PAGE));
    assert_false(may_be_long(B, 0));
}

static void test_without_strict_another_mount_may_be_late(void **state)
{
    uint32_t first = write_now(A, 0, PAGE), second = write_now(A, 0, PAGE);

    (void)state;
    assert_true(may_read(B, first) && may_read(B, second));
    assert_true(may_be_long(B, 0));
    assert_false(may_read(A, first));
}

static void test_of_two_at_the_same_time_either_is_last(void **state)
{
    uint32_t a = begin_write(A, 0, PAGE), b = begin_write(B, 0, PAGE), later;

    (void)state;
    assert_true(may_read(A, 0) && may_read(A, a) && may_read(A, b));
    end_write(a, 0);
    assert_true(may_read(A, a) && may_read(A, b));
    assert_false(may_read(A, 0));
    end_write(b, 0);
    assert_true(may_read(B, a) && may_read(B, b));
    later = write_now(A, 0, PAGE);
    assert_false(may_read(B, a) || may_read(B, b));
    assert_true(may_read(B, later));
}

static void test_failed_write_may_show_but_not_after_a_later_one(void **state)
{
    uint32_t a = begin_write(A, 0, PAGE), b;

    (void)state;
    end_write(a, -5);
    assert_true(may_read(B, 0) && may_read(B, a));
    b = write_now(B, 0, PAGE);
    assert_true(may_read(A, b));
    assert_false(may_read(A, a));
}

static void test_unstable_write_of_a_dead_client_may_be_lost(void **state)
{
    uint32_t a = write_now(A, 0, PAGE);

    (void)state;
    assert_false(may_read(B, 0));
    model_client_died(A, 1);
    assert_true(may_read(B, 0) && may_read(B, a));
}

static void test_writes_of_a_client_that_may_lose_its_session_may_be_lost(void **state)
{
    uint32_t a = write_now(A, 0, PAGE), b;

    (void)state;
    model_client_away(A, 1, world_clock.now_ns + 1000000);
    assert_true(may_read(B, 0) && may_read(B, a));
    b = write_now(A, 0, PAGE);
    assert_true(may_read(B, a) && may_read(B, b) && may_read(B, 0));
    world_clock.now_ns += 2000000;
    b = write_now(A, 0, PAGE);
    assert_false(may_read(B, a));
    assert_true(may_read(B, b));
}

static void test_sizes_of_writers_at_the_same_time(void **state)
{
    uint32_t cut, grow;

    (void)state;
    write_now(A, 0, 2 * PAGE);
    cut = begin_write(A, PAGE, UINT64_MAX);
    grow = begin_write(B, 0, 3 * PAGE);
    end_write(cut, 0);
    end_write(grow, 0);
    assert_true(may_be_long(A, PAGE) && may_be_long(A, 3 * PAGE));
    assert_false(may_be_long(A, 4 * PAGE));
    end_write(begin_write(B, PAGE / 2, UINT64_MAX), 0);
    assert_true(may_be_long(A, PAGE / 2));
    assert_false(may_be_long(A, PAGE) || may_be_long(A, 3 * PAGE));
}

static void test_sizes_alone_may_be_strict(void **state)
{
    uint32_t first = write_now(A, 0, PAGE), second = write_now(A, 0, 2 * PAGE);

    (void)state;
    assert_true(may_read(B, first) && may_read(B, second));
    assert_true(may_be_long(B, 2 * PAGE));
    assert_false(may_be_long(B, PAGE) || may_be_long(B, 0));
}

int main(void)
{
    static enum model_strictness strict[] = { MODEL_STRICT },
                                 sizes[] = { MODEL_STRICT_SIZES };
#define T(name, state) cmocka_unit_test_prestate_setup_teardown(name, begin, end, state)
    const struct CMUnitTest tests[] = {
        T(test_answered_write_shows_on_all_mounts, strict),
        T(test_without_strict_another_mount_may_be_late, NULL),
        T(test_of_two_at_the_same_time_either_is_last, strict),
        T(test_failed_write_may_show_but_not_after_a_later_one, strict),
        T(test_unstable_write_of_a_dead_client_may_be_lost, strict),
        T(test_writes_of_a_client_that_may_lose_its_session_may_be_lost, strict),
        T(test_sizes_of_writers_at_the_same_time, strict),
        T(test_sizes_of_writers_at_the_same_time, sizes),
        T(test_sizes_alone_may_be_strict, sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
