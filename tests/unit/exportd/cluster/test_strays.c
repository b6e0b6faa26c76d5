/*
 * test_strays.c - projection files of inodes that are gone for good.
 *
 * Goal:   they are found and removed; no other file ever is.
 */
#include "tests/unit/exportd/world.h"

enum { PERIOD_S = 5, AN_EXPORT = 1 };

static struct world w;

static int setup(void **state)
{
    (void)state;
    world_open(&w, 21);
    w.strays_s = PERIOD_S;
    world_start(&w);
    world_make_export(&w, 4, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

static void pass(unsigned seconds)
{
    struct seen s;

    for (; seconds > 0; seconds--) {
        env_virtual_advance_ms(&w.env, 1000);
        OK(t_getattr(&w, 1, &s));
    }
}

/* Makes a file that was on all storages and is on none any more. */
static struct file_id removed_file(const char *name)
{
    struct seen s;

    OK(t_create_open(&w, 1, name, true, &s));
    OK(t_wrote(&w, s.ino, 10, NULL));
    OK(t_close(&w, s.ino, 1));
    OK(t_unlink(&w, 1, name, NULL));
    pass(3);
    assert_int_equal(t_trash(&w), 0);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(w.storages[i].removed[w.storages[i].n_removed - 1], s.ino);
        w.storages[i].n_removed = 0;
    }
    return (struct file_id){ AN_EXPORT, s.generation, s.ino };
}

static void has(unsigned storage, struct file_id id)
{
    struct fake_storage *s = &w.storages[storage];

    assert_true(s->n_listed < WORLD_LISTED_MAX);
    s->listed[s->n_listed++] = id;
}

/* Waits until all storages were asked for all their files. */
static void sweep(void)
{
    unsigned before = w.storages[3].n_list_requests;

    w.storages[3].list_page = 0;
    pass(2 * PERIOD_S + 3 * WORLD_LISTED_MAX);
    assert_true(w.storages[3].n_list_requests > before);
}

static void nothing_is_removed(void)
{
    sweep();
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(w.storages[i].n_removed, 0);
}

static void test_stray_is_removed_only_where_it_is(void **state)
{
    struct file_id id = removed_file("f");

    (void)state;
    has(2, id); /* as after a loss of its power */
    sweep();
    assert_true(w.storages[2].n_removed > 0 && w.storages[2].removed[0] == id.ino);
    for (unsigned i = 0; i < 4; i++)
        assert_true(i == 2 || w.storages[i].n_removed == 0);
}

static void test_lists_of_several_pages_are_looked_at_whole(void **state)
{
    struct file_id a = removed_file("a"), b = removed_file("b");
    struct seen s;

    (void)state;
    OK(t_create_open(&w, 1, "there", true, &s));
    has(0, a);
    for (unsigned i = 0; i < 5; i++)
        has(0, (struct file_id){ AN_EXPORT, s.generation, s.ino });
    has(0, b);
    w.storages[0].list_page = 2;
    sweep();
    assert_true(w.storages[0].n_removed >= 2);
    assert_int_equal(w.storages[0].removed[0] + w.storages[0].removed[1], a.ino + b.ino);
}

static void test_named_and_open_files_are_no_strays(void **state)
{
    struct seen named, open;

    (void)state;
    OK(t_create_open(&w, 1, "named", true, &named));
    OK(t_close_stored(&w, named.ino, 1));
    OK(t_create_open(&w, 1, "open", true, &open));
    OK(t_unlink(&w, 1, "open", NULL));
    for (unsigned i = 0; i < 4; i++) {
        has(i, (struct file_id){ AN_EXPORT, named.generation, named.ino });
        has(i, (struct file_id){ AN_EXPORT, open.generation, open.ino });
    }
    nothing_is_removed();
}

/* After a restore from a backup, exportd does not know newer inodes, and may give their
 * numbers out again. */
static void test_files_newer_than_a_backup_are_no_strays(void **state)
{
    struct file_id gone = removed_file("f");
    struct seen s;

    (void)state;
    has(0, (struct file_id){ AN_EXPORT, gone.generation + 1, gone.ino });
    has(0, (struct file_id){ AN_EXPORT, gone.generation, gone.ino + 1000 });
    has(0, (struct file_id){ AN_EXPORT + 7, gone.generation, gone.ino });
    world_kill(&w); /* numbers that may have been given out before are skipped */
    world_reopen_session(&w);
    OK(t_create_open(&w, 1, "g", true, &s));
    assert_true(s.ino > gone.ino + 1000);
    nothing_is_removed();
    has(0, gone); /* exportd also knows the numbers that it gave out before the start */
    sweep();
    assert_int_equal(w.storages[0].removed[0], gone.ino);
}

static void test_storage_that_is_down_does_not_delay_others(void **state)
{
    struct file_id id = removed_file("f");

    (void)state;
    w.storages[0].down = true;
    has(0, id);
    has(1, id);
    sweep();
    assert_true(w.storages[1].n_removed > 0 && w.storages[0].n_removed == 0);
    w.storages[0].down = false;
    sweep();
    assert_true(w.storages[0].n_removed > 0);
}

static void test_nonsense_ends_the_list_of_that_storage(void **state)
{
    struct file_id id = removed_file("f");

    (void)state;
    has(0, id);
    has(1, id);
    w.storages[0].lists_nonsense = true;
    sweep();
    assert_true(w.storages[1].n_removed > 0 && w.storages[0].n_removed == 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_stray_is_removed_only_where_it_is),
        T(test_lists_of_several_pages_are_looked_at_whole),
        T(test_named_and_open_files_are_no_strays),
        T(test_files_newer_than_a_backup_are_no_strays),
        T(test_storage_that_is_down_does_not_delay_others),
        T(test_nonsense_ends_the_list_of_that_storage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
