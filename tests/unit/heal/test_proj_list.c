/*
 * Goal: lists name every projection file once, in order, page by page, and believe no
 * invalid data.
 * Method: files on a disk in memory, as a storage writes them and as a bad disk leaves
 * them.
 */
#include <errno.h>
#include <stdlib.h>

#include "storaged/format/projfile.h"
#include "storaged/heal/list/proj_list.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

static struct env_virtual v;
static struct memdisk disk;

static int setup(void **state)
{
    (void)state;
    env_virtual_init(&v, 1);
    memdisk_init(&disk, &v);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    env_virtual_run_posted(&v);
    for (unsigned i = 0; i < disk.n_files; i++)
        assert_int_equal(disk.files[i]->n_open, 0);
    memdisk_free(&disk);
    env_virtual_close(&v);
    return 0;
}

static void on_file_open(struct disk_req *req, int rc)
{
    assert_int_equal(rc, 0);
    *(struct disk_file **)req->arg = req->file;
}

static struct disk_file *file_make(const char *path)
{
    struct disk_file *f = NULL;
    struct disk_req req = {
        .op = DISK_OPEN, .create = true, .path = path, .done = on_file_open, .arg = &f
    };

    disk_submit(&disk.disk, &req);
    env_virtual_run_posted(&v);
    disk_close(&disk.disk, f);
    return f;
}

/* Makes a projection file of layout 0 at storages 1..4, with so many bytes behind its
 * pages. */
static struct disk_file *projection_make(const struct file_id *id, unsigned p,
                                         bool partial, uint64_t more)
{
    struct projfile_header h = { .id = *id,
                                 .codec = CODEC_MOJETTE,
                                 .layout = 0,
                                 .projection = (uint8_t)p,
                                 .n_storages = 4,
                                 .block_bytes = 8192,
                                 .partial = partial,
                                 .storages = { 1, 2, 3, 4 + id->generation % 2 } };
    uint8_t page[PROJFILE_PAGE_BYTES], byte = 1;
    char path[PROJFILE_PATH_MAX];
    struct disk_file *f;

    projfile_path(path, id, p);
    f = file_make(path);
    projfile_header_put(page, &h);
    memdisk_poke(&disk, f, 0, page, sizeof(page));
    if (more > 0)
        memdisk_poke(&disk, f, PROJFILE_EXTENTS_AT + more - 1, &byte, 1);
    return f;
}

/* All pages of a list together. */
struct seen {
    struct proj_list_file files[600];
    unsigned n, pages;
    bool end, quarantined;
    struct file_id after;
    int rc;
};

static void on_listed(void *arg, const struct proj_list_result *result)
{
    struct seen *s = arg;

    s->rc = result->rc;
    s->pages++;
    for (unsigned i = 0; i < result->n_files; i++)
        s->files[s->n++] = result->files[i];
    s->end = result->end;
    s->quarantined = result->quarantined;
    s->after = result->after;
}

static void list_all(struct seen *s, unsigned max_files, uint32_t with)
{
    struct proj_list_request request = { .max_files = max_files, .with_storage = with };
    struct list_op *op;

    memset(s, 0, sizeof(*s));
    while (!s->end) {
        unsigned pages = s->pages;

        assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op),
                         0);
        assert_int_equal(s->pages, pages);
        env_virtual_run_posted(&v);
        assert_int_equal(s->pages, pages + 1);
        assert_int_equal(s->rc, 0);
        request.has_after = true;
        request.after = s->after;
    }
}

static void test_every_file_once_in_order(void **state)
{
    struct seen *s = malloc(sizeof(*s));
    unsigned n = 0;

    (void)state;
    list_all(s, 1, 0);
    assert_int_equal(s->n, 0);
    for (unsigned i = 0; i < 150; i++) {
        struct file_id id = { 1 + i % 2, i % 5, (uint64_t)i * 77 % 1000 + 1 };

        projection_make(&id, i % 3, false, 0);
        n++;
        if (i % 4 == 0)
            projection_make(&id, (i + 1) % 3, false, 0);
    }
    for (unsigned max = 1; max < 400; max = max * 3 + 1) {
        list_all(s, max, 0);
        assert_int_equal(s->n, n);
        for (unsigned i = 1; i < s->n; i++)
            assert_true(list_order(&s->files[i - 1].target.id, &s->files[i].target.id) <
                        0);
        for (unsigned i = 0; i < s->n; i++) {
            assert_true(s->files[i].known);
            assert_int_equal(s->files[i].target.n_storages, 4);
        }
    }
    list_all(s, 100, 5); /* only ids with an odd generation */
    assert_int_equal(s->n, 60);
    for (unsigned i = 0; i < s->n; i++)
        assert_int_equal(s->files[i].target.id.generation % 2, 1);
    free(s);
}

/* A list of ids alone needs only the names: no page is read, so files without a valid
 * page are listed, too. */
static void test_ids_alone(void **state)
{
    struct seen *s = calloc(1, sizeof(*s));
    struct proj_list_request request = { .max_files = 2, .ids_only = true };
    const struct file_id begun = { 1, 2, 8 }, quarantined = { 1, 3, 9 };
    char path[PROJFILE_PATH_MAX];
    struct list_op *op;

    (void)state;
    for (unsigned p = 0; p < 3; p++)
        projection_make(&(struct file_id){ 1, 1, 7 }, p, false, 0);
    projfile_path(path, &begun, 4);
    file_make(path);
    projfile_path_quarantined(path, &quarantined);
    file_make(path);
    while (!s->end) {
        assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op),
                         0);
        env_virtual_run_posted(&v);
        assert_int_equal(s->rc, 0);
        request.has_after = true;
        request.after = s->after;
    }
    assert_true(s->n == 3 && s->pages > 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(s->files[i].target.id.ino, 7 + i);
        assert_int_equal(s->files[i].target.id.generation, 1 + i);
        assert_true(s->files[i].projections != 0 && !s->files[i].known);
    }
    free(s);
}

/* Goal: by a file that was made for a change of the distribution nobody heals before the
 * change takes effect; its name is listed, so that it is removed with the inode. */
static void test_prepared_file_is_in_lists_of_names_only(void **state)
{
    struct projfile_header h = { .id = { 1, 1, 9 },
                                 .codec = CODEC_MOJETTE,
                                 .projection = 2,
                                 .n_storages = 4,
                                 .block_bytes = 8192,
                                 .dist_generation = 1,
                                 .partial = true,
                                 .storages = { 1, 2, 9, 4 } };
    struct proj_list_request names = { .max_files = 9, .ids_only = true };
    struct seen *s = calloc(1, sizeof(*s));
    uint8_t page[PROJFILE_PAGE_BYTES];
    struct disk_file *f = projection_make(&h.id, 2, true, 0);
    struct list_op *op;

    (void)state;
    for (unsigned prepared = 0; prepared < 2; prepared++) {
        h.prepared = prepared != 0;
        projfile_header_put(page, &h);
        memdisk_poke(&disk, f, 0, page, sizeof(page));
        list_all(s, 10, 0);
        assert_int_equal(s->n, 1 - prepared);
    }
    memset(s, 0, sizeof(*s));
    assert_int_equal(proj_list_start(&v.env, &disk.disk, &names, on_listed, s, &op), 0);
    env_virtual_run_posted(&v);
    assert_int_equal(s->n, 1);
    free(s);
}

/* More names in one directory than one request of the disk gives. */
static void test_a_large_directory(void **state)
{
    struct seen *s = malloc(sizeof(*s));

    (void)state;
    for (unsigned i = 0; i < 500; i++)
        projection_make(&(struct file_id){ 1, i, 7 }, i % 3, false, 0);
    list_all(s, 1000, 0);
    assert_int_equal(s->n, 500);
    assert_true(s->pages > 1);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(s->files[i].target.id.generation, i);
    free(s);
}

static void test_partial_and_damaged_projections_are_listed_as_such(void **state)
{
    struct seen *s = malloc(sizeof(*s));
    struct file_id id = { 1, 1, 300 };
    struct projfile_header other = { .codec = CODEC_MOJETTE, .block_bytes = 8192 };
    struct marks_page page = { .sequence = 5, .projection = 1 };
    struct marks none = { 0 };
    uint8_t bytes[PROJFILE_PAGE_BYTES];
    struct disk_file *f;

    (void)state;
    projection_make(&id, 0, false, 1000);
    f = projection_make(&id, 1, true, 5000);
    list_all(s, 10, 0);
    assert_int_equal(s->n, 1);
    assert_int_equal(s->files[0].projections, 3);
    assert_int_equal(s->files[0].partial, 2);
    assert_int_equal(s->files[0].damaged, 0);
    assert_int_equal(s->files[0].blocks, EXTENT_BLOCKS);
    assert_int_equal(s->files[0].size, 2 * PROJFILE_EXTENTS_AT + 6000);
    projfile_marks_put(bytes, &page, &none, &none); /* complete now */
    memdisk_poke(&disk, f, PROJFILE_MARKS_AT, bytes, sizeof(bytes));
    list_all(s, 10, 0);
    assert_int_equal(s->files[0].partial, 0);
    memdisk_poke(&disk, f, 100, "x", 1);
    list_all(s, 10, 0);
    assert_int_equal(s->files[0].projections, 3);
    assert_int_equal(s->files[0].damaged, 2);
    other.id = (struct file_id){ 9, 9, 9 }; /* a valid page of another file */
    other.n_storages = 4;
    projfile_header_put(bytes, &other);
    memdisk_poke(&disk, f, 0, bytes, sizeof(bytes));
    list_all(s, 10, 0);
    assert_int_equal(s->files[0].damaged, 2);
    memset(bytes, 0, sizeof(bytes)); /* a creation that was not finished */
    memdisk_poke(&disk, f, 0, bytes, sizeof(bytes));
    list_all(s, 10, 0);
    assert_int_equal(s->files[0].projections, 1);
    free(s);
}

/* A list that lacks a descriptor ends with an error, and reports no file as damaged. */
static void test_a_file_that_was_not_opened_is_not_damaged(void **state)
{
    struct seen s = { .n = 0 };
    struct proj_list_request request = { .max_files = 10 };
    struct list_op *op;

    (void)state;
    projection_make(&(struct file_id){ 1, 1, 300 }, 0, false, 1000);
    projection_make(&(struct file_id){ 1, 2, 300 }, 0, false, 1000);
    disk.fail_op = DISK_OPEN;
    disk.fail_at = 2;
    disk.fail_rc = -EMFILE;
    assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, &s, &op),
                     0);
    env_virtual_run_posted(&v);
    assert_int_equal(s.pages, 1);
    assert_int_equal(s.rc, -EMFILE);
}

static void test_foreign_names_are_passed_over(void **state)
{
    struct seen *s = malloc(sizeof(*s));
    struct file_id id = { 0, 1, 0x123456 };

    (void)state;
    projection_make(&id, 2, false, 0);
    file_make("objects/12/34/00000000000000010000000000123456.damaged");
    file_make("objects/12/34/00000000000000010000000000123456.99");
    file_make("objects/12/34/00000000000000010000000000123456.02");
    file_make("objects/12/34/junk");
    /* in the wrong directory */
    file_make("objects/77/34/00000000000000010000000000123456.1");
    file_make("storage.id");
    list_all(s, 10, 0);
    assert_int_equal(s->n, 1);
    assert_int_equal(s->files[0].projections, 4);
    free(s);
}

static void test_one_file_alone(void **state)
{
    struct seen *s = calloc(1, sizeof(*s));
    struct proj_list_request request = { .only = true, .after = { 1, 1, 5 } };
    struct list_op *op;

    (void)state;
    projection_make(&(struct file_id){ 1, 1, 4 }, 0, false, 0);
    projection_make(&(struct file_id){ 1, 1, 5 }, 0, false, 0);
    projection_make(&(struct file_id){ 1, 1, 5 }, 2, false, 0);
    projection_make(&(struct file_id){ 1, 1, 6 }, 0, false, 0);
    assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op), 0);
    env_virtual_run_posted(&v);
    assert_int_equal(s->n, 1);
    assert_int_equal(s->files[0].projections, 5);
    request.after.ino = 600;
    s->n = 0;
    assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op), 0);
    env_virtual_run_posted(&v);
    assert_int_equal(s->n, 0);
    assert_true(s->end);
    request.after.ino = 5;
    assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op), 0);
    proj_list_cancel(op);
    env_virtual_run_posted(&v);
    assert_int_equal(s->pages, 2);
    free(s);
}

/* A request for one file says whether a quarantined one exists, with or without a file in
 * its place. */
static void test_a_list_of_one_quarantined_file(void **state)
{
    static const struct {
        uint64_t ino;
        unsigned n;
        bool quarantined;
    } cases[] = { { 4, 0, true }, { 5, 1, true }, { 6, 1, false }, { 7, 0, false } };
    struct seen *s = calloc(1, sizeof(*s));
    struct list_op *op;

    (void)state;
    file_make("objects/9e/37/00000001000000010000000000000004.damaged");
    projection_make(&(struct file_id){ 1, 1, 5 }, 0, false, 0);
    file_make("objects/9e/37/00000001000000010000000000000005.damaged");
    projection_make(&(struct file_id){ 1, 1, 6 }, 0, false, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct proj_list_request request = { .only = true,
                                             .after = { 1, 1, cases[i].ino } };

        memset(s, 0, sizeof(*s));
        assert_int_equal(proj_list_start(&v.env, &disk.disk, &request, on_listed, s, &op),
                         0);
        env_virtual_run_posted(&v);
        assert_int_equal(s->n, cases[i].n);
        assert_int_equal(s->quarantined, cases[i].quarantined);
    }
    list_all(s, 10, 0);
    assert_false(s->quarantined);
    free(s);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_file_once_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ids_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prepared_file_is_in_lists_of_names_only,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_large_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_partial_and_damaged_projections_are_listed_as_such, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_was_not_opened_is_not_damaged,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_names_are_passed_over, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_one_file_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_list_of_one_quarantined_file, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
