/*
 * Goal: the index of pending records knows the newest of every block, forgets records
 * that a commit or a drop makes unwanted, and releases each frame exactly when nothing in
 * it is wanted. Method: cases by hand, then thousands of random steps against a plain
 * table.
 */
#include <stdlib.h>
#include <string.h>

#include "storaged/journal/journal_index.h"
#include "tests/unit/storaged/world.h"

enum { BLOCKS = 40, VERSIONS = 12 };

#define V(epoch, n) ((uint64_t)(epoch) << 32 | (n))

static unsigned n_unwanted;

static void on_unwanted(void *arg, struct journal_frame *entry)
{
    (void)arg;
    assert_int_equal(entry->n_refs, 0);
    n_unwanted++;
}

static struct storage_file file_ref(uint64_t ino)
{
    return (struct storage_file){
        .id = { 1, 2, ino }, .codec = CODEC_MOJETTE, .n_storages = 4, .block_bytes = 8192
    };
}

static struct pending_file *file(struct journal_index *p, uint64_t ino)
{
    struct storage_file ref = file_ref(ino);

    return journal_index_get(p, &ref, codec_get(CODEC_MOJETTE, 0, 8192));
}

/* Adds a record in a frame of its own. */
static void add(struct journal_index *p, struct pending_file *f, uint64_t block,
                uint64_t version)
{
    static const uint8_t head[40];
    struct wal_place place = { .segment = 1, .len = 100 };
    struct journal_frame *e = journal_index_add_frame(p, &place);
    struct record_header h = { .version = version, .block = block };

    assert_int_equal(
        journal_index_add_record(p, f, e, 1, head, sizeof(head), &h, 40, 60, 5), 0);
    journal_index_put_frame(p, e);
}

static void add_mark(struct journal_index *p, struct pending_file *f, uint64_t first,
                     uint64_t end, uint64_t version)
{
    struct wal_place place = { .segment = 1, .len = 100 };
    struct journal_frame *e = journal_index_add_frame(p, &place);
    struct pending_mark m = { .first = first, .end = end, .version = version };

    assert_int_equal(journal_index_add_mark(p, f, e, &m), 0);
    journal_index_put_frame(p, e);
}

static uint64_t newest(struct journal_index *p, struct pending_file *f, uint64_t block,
                       uint64_t at_most)
{
    struct pending_record *r = journal_index_at_most(p, f, 1, block, at_most);

    return r == NULL ? 0 : r->version;
}

static void test_the_newest_is_found_and_a_commit_takes_the_older(void **state)
{
    struct journal_index p;
    struct pending_file *f;

    (void)state;
    n_unwanted = 0;
    assert_int_equal(journal_index_init(&p, on_unwanted, NULL), 0);
    f = file(&p, 300);
    assert_ptr_equal(f, journal_index_find(&p, &f->ref.id));
    add(&p, f, 7, V(1, 5));
    add(&p, f, 7, V(1, 9));
    add(&p, f, 7, V(1, 7));
    add(&p, f, 8, V(1, 7));
    assert_int_equal(newest(&p, f, 7, UINT64_MAX), V(1, 9));
    assert_int_equal(newest(&p, f, 7, V(1, 8)), V(1, 7));
    assert_int_equal(newest(&p, f, 7, V(1, 6)), V(1, 5));
    assert_int_equal(newest(&p, f, 7, V(1, 4)), 0);
    assert_null(journal_index_newest(&p, f, 2, 7));
    assert_int_equal(p.n_uncommitted, 4);
    assert_true(journal_index_commit(&p, f, V(1, 7), 1));
    assert_false(journal_index_commit(&p, f, V(1, 6), 1));
    assert_int_equal(newest(&p, f, 7, UINT64_MAX), V(1, 9));
    assert_int_equal(newest(&p, f, 7, V(1, 6)), 0); /* 5 was removed */
    assert_int_equal(n_unwanted, 1);
    assert_int_equal(f->n_committed, 2);
    assert_int_equal(p.n_uncommitted, 1);
    add(&p, f, 9, V(1, 3)); /* arrives late: committed at once */
    assert_int_equal(p.n_uncommitted, 1);
    add(&p, f, 7, V(1, 9)); /* again: replaces the old one */
    assert_int_equal(n_unwanted, 2);
    assert_int_equal(f->n_records, 4);
    assert_false(journal_index_commit(&p, f, V(2, 100), 1)); /* a later epoch */
    assert_int_equal(p.n_uncommitted, 1);
    journal_index_remove_all(&p, f);
    assert_int_equal(p.n_files, 0);
    assert_int_equal(n_unwanted, 6);
    assert_true(list_is_empty(&p.entries));
    journal_index_close(&p);
}

static void test_marks_cover_commit_and_split(void **state)
{
    struct journal_index p;
    struct pending_file *f;
    struct pending_drop d = { .first = 20, .end = 30, .keep = V(1, 2), .epoch = 1 };

    (void)state;
    n_unwanted = 0;
    assert_int_equal(journal_index_init(&p, on_unwanted, NULL), 0);
    f = file(&p, 300);
    add(&p, f, 12, V(1, 1));
    add(&p, f, 50, V(1, 1));
    add_mark(&p, f, 10, UINT64_MAX, V(1, 4));
    add_mark(&p, f, 10, 15, V(1, 3));
    assert_int_equal(pending_file_mark_over(f, 12, UINT64_MAX), V(1, 4));
    assert_int_equal(pending_file_mark_over(f, 12, V(1, 3)), V(1, 3));
    assert_int_equal(pending_file_mark_over(f, 9, UINT64_MAX), 0);
    assert_int_equal(journal_index_drop(&p, f, &d), 1);
    assert_int_equal(pending_file_mark_over(f, 19, UINT64_MAX), V(1, 4));
    assert_int_equal(pending_file_mark_over(f, 20, UINT64_MAX), 0);
    assert_int_equal(pending_file_mark_over(f, 29, UINT64_MAX), 0);
    assert_int_equal(pending_file_mark_over(f, 30, UINT64_MAX), V(1, 4));
    assert_int_equal(f->n_marks, 3);
    assert_true(journal_index_commit_range(&p, f, 0, 40, V(1, 4), 1));
    assert_int_equal(newest(&p, f, 12, UINT64_MAX), 0); /* under a committed mark */
    assert_int_equal(newest(&p, f, 50, UINT64_MAX), V(1, 1));
    assert_int_equal(pending_file_mark_over(f, 60, UINT64_MAX), V(1, 4));
    assert_int_equal(f->n_marks, 4);
    assert_int_equal(p.n_uncommitted, 2); /* the record at 50 and the mark from 40 on */
    journal_index_remove_all(&p, f);
    assert_int_equal(n_unwanted, 4);
    journal_index_close(&p);
}

/* The plain table: whether a version is pending, and committed. */
struct model {
    bool here[BLOCKS][VERSIONS], committed[BLOCKS][VERSIONS];
};

static void model_commit(struct model *m, unsigned b, unsigned v)
{
    m->committed[b][v] = true;
    for (unsigned older = 0; older < v; older++)
        m->here[b][older] = false;
}

static void test_random_steps_against_a_table(void **state)
{
    struct env_virtual v;
    struct journal_index p;
    struct model m;

    (void)state;
    for (unsigned seed = 0; seed < 20; seed++) {
        uint64_t n_added = 0;
        unsigned durable = 0;

        memset(&m, 0, sizeof(m));
        env_virtual_init(&v, seed);
        n_unwanted = 0;
        assert_int_equal(journal_index_init(&p, on_unwanted, NULL), 0);
        for (unsigned i = 0; i < 3000; i++) {
            struct pending_file *f = file(&p, 7);
            unsigned b = (unsigned)env_virtual_below(&v, BLOCKS);
            unsigned n = (unsigned)env_virtual_below(&v, VERSIONS);
            unsigned end = b + 1 + (unsigned)env_virtual_below(&v, 10);
            bool newer_committed = false;

            end = end < BLOCKS ? end : BLOCKS;
            pending_file_hold(f);
            for (unsigned k = n + 1; k < VERSIONS; k++)
                newer_committed |= m.here[b][k] && m.committed[b][k];
            switch (env_virtual_below(&v, 8)) {
            case 0:
                if (journal_index_commit_range(&p, f, b, end, V(1, n), 1) || true) {
                    for (unsigned x = b; x < end; x++)
                        for (unsigned k = 0; k <= n; k++)
                            if (m.here[x][k])
                                model_commit(&m, x, k);
                }
                break;
            case 1: {
                struct pending_drop d = { b, end, V(1, n), 1, 0 };

                journal_index_drop(&p, f, &d);
                for (unsigned x = b; x < end; x++)
                    for (unsigned k = n + 1; k < VERSIONS; k++)
                        m.here[x][k] = false;
                break;
            }
            default:
                if (newer_committed || n <= durable)
                    break;
                add(&p, f, b, V(1, n));
                n_added++;
                if (!m.here[b][n])
                    m.committed[b][n] = false;
                m.here[b][n] = true;
            }
            for (unsigned x = 0; x < BLOCKS; x++) {
                struct pending_record *r = journal_index_newest(&p, f, 1, x);

                for (unsigned k = VERSIONS; k-- > 0;) {
                    if (!m.here[x][k])
                        continue;
                    assert_non_null(r);
                    assert_int_equal(r->version, V(1, k));
                    assert_int_equal(r->committed, m.committed[x][k]);
                    r = r->older;
                }
                assert_null(r);
            }
            assert_int_equal(n_added - n_unwanted, f->n_records);
            journal_index_put(&p, f);
        }
        journal_index_close(&p);
        env_virtual_close(&v);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_newest_is_found_and_a_commit_takes_the_older),
        cmocka_unit_test(test_marks_cover_commit_and_split),
        cmocka_unit_test(test_random_steps_against_a_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
