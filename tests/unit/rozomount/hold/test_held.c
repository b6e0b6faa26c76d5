/*
 * test_held.c - the table of open files that a process leaves to the next one.
 */
#include <stdlib.h>
#include <unistd.h>

#include "rozomount/hold/held.h"
#include "tests/unit/unit.h"

static const struct held_room room = { 4, 3 };

static struct held_files *table(int fd)
{
    struct err err = { 0 };
    struct held_files *h;

    assert_int_equal(held_open(fd, &room, &h, &err), 0);
    return h;
}

static uint64_t add(struct held_files *h, uint64_t ino, void *user)
{
    const struct held_handle handle = { .ino = ino, .flags = 2, .kind = HELD_FILE };

    return held_add(h, &handle, user);
}

static void test_a_number_leads_to_its_user_until_it_is_removed(void **state)
{
    struct held_files *h = table(-1);
    int a, b;
    uint64_t first = add(h, 7, &a), second;

    (void)state;
    assert_true(first != 0);
    assert_ptr_equal(held_user(h, first, 7), &a);
    assert_null(held_user(h, first, 8)); /* the number of another file */
    assert_null(held_user(h, 0, 7));
    held_remove(h, first);
    assert_null(held_user(h, first, 7));
    second = add(h, 7, &b);
    assert_true(second != first); /* a late request for the first finds nothing */
    assert_null(held_user(h, first, 7));
    assert_ptr_equal(held_user(h, second, 7), &b);
    held_close(h);
}

static void test_a_full_table_refuses(void **state)
{
    struct held_files *h = table(-1);
    uint64_t numbers[4];
    int user;

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        numbers[i] = add(h, i + 1, &user);
    assert_true(numbers[3] != 0);
    assert_true(add(h, 9, &user) == 0);
    held_remove(h, numbers[1]);
    assert_true(add(h, 9, &user) != 0);
    held_close(h);
}

static void take(void *arg, uint64_t owner)
{
    *(uint64_t *)arg += owner;
}

static uint64_t owners_of(struct held_files *h, uint64_t number)
{
    uint64_t sum = 0;

    held_each_owner(h, number, take, &sum);
    return sum;
}

static void test_the_next_process_finds_handles_and_owners(void **state)
{
    int fd = held_memory(&room), user, other;
    struct held_files *h = table(fd);
    uint64_t gone = add(h, 5, &user), left = add(h, 6, &user), next;
    struct held_handle found;

    (void)state;
    assert_true(held_add_owner(h, left, 100) && held_add_owner(h, gone, 1) &&
                held_add_owner(h, left, 20));
    assert_false(held_add_owner(h, left, 3)); /* no room */
    held_remove(h, gone);
    held_mount(h)->session = 42;
    held_close(h);

    h = table(fd);
    assert_true(held_mount(h)->session == 42);
    next = held_next(h, 0, &found);
    assert_true(next == left && found.ino == 6 && found.flags == 2);
    assert_int_equal(found.kind, HELD_FILE);
    held_give(h, next, &other);
    assert_ptr_equal(held_user(h, left, 6), &other);
    assert_true(owners_of(h, left) == 120);
    assert_true(held_next(h, next, &found) == 0);
    assert_true(held_add_owner(h, left, 3)); /* the place of the removed handle */
    assert_true(owners_of(h, left) == 123);
    assert_true(add(h, 8, &user) != left);
    held_close(h);
    close(fd);
}

static void test_a_table_of_another_size_is_refused(void **state)
{
    const struct held_room other = { 4, 4 };
    int fd = held_memory(&room);
    struct err err = { 0 };
    struct held_files *h = table(fd);

    (void)state;
    held_close(h);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_equal(held_open(fd, &other, &h, &err), -EINVAL);
    held_close(h);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_number_leads_to_its_user_until_it_is_removed),
        cmocka_unit_test(test_a_full_table_refuses),
        cmocka_unit_test(test_the_next_process_finds_handles_and_owners),
        cmocka_unit_test(test_a_table_of_another_size_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
