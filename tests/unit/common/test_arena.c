/*
 * Goal: a piece that an arena returns is aligned, overlaps no other piece, and is freed
 * with the arena.
 */
#include <stdalign.h>
#include <string.h>

#include "common/base/arena.h"
#include "tests/unit/unit.h"

enum { ROOM_BYTES = 256, N = 200 };

static void *get(struct arena *a, size_t size)
{
    return a->allocator.alloc(a->allocator.allocator_data, size);
}

/* Takes pieces of all sizes, each filled with a byte of its own. */
static void fill(struct arena *a)
{
    uint8_t *at[N];

    for (unsigned i = 0; i < N; i++) {
        at[i] = get(a, i);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % ARENA_ALIGN, 0);
        memset(at[i], (int)i, i);
    }
    for (unsigned i = 0; i < N; i++) {
        for (unsigned k = 0; k < i; k++)
            assert_int_equal(at[i][k], i);
    }
}

static void test_room_first(void **state)
{
    alignas(ARENA_ALIGN) uint8_t room[ROOM_BYTES];
    struct arena a;

    (void)state;
    arena_init(&a, room, sizeof(room), 0);
    assert_ptr_equal(get(&a, 1), room);
    assert_ptr_equal(get(&a, ROOM_BYTES - ARENA_ALIGN), room + ARENA_ALIGN);
    assert_null(a.pieces);
    assert_non_null(get(&a, 1));
    assert_non_null(a.pieces);
    arena_free(&a);
    assert_null(a.pieces);
    arena_free(&a);
}

static void test_pieces_are_apart(void **state)
{
    alignas(ARENA_ALIGN) uint8_t room[ROOM_BYTES];
    struct arena a;

    (void)state;
    arena_init(&a, room, sizeof(room), 0);
    fill(&a);
    arena_free(&a);
    arena_init(&a, NULL, 0, 100000);
    fill(&a);
    assert_non_null(get(&a, 1 << 20));
    fill(&a);
    arena_free(&a);
}

static void test_too_much_is_refused(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, NULL, 0, 0);
    assert_null(get(&a, SIZE_MAX));
    assert_null(get(&a, SIZE_MAX - ARENA_ALIGN));
    assert_non_null(get(&a, 1));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_first),
        cmocka_unit_test(test_pieces_are_apart),
        cmocka_unit_test(test_too_much_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
