/*
 * Goal: `rozo salvage` restores what was stored, from any k directories, and reports what
 * it cannot restore.
 * Method: data directories are written byte by byte as docs/FORMATS.md has them, from a
 * model of a file; then they are read.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec/codec.h"
#include "common/wal/wal_frame.h"
#include "storaged/format/identity.h"
#include "storaged/format/journal_record.h"
#include "storaged/format/projfile.h"
#include "storaged/salvage/salvage.h"
#include "tests/unit/unit.h"

enum {
    BLOCKS_MAX = 400,
    STORAGES_MAX = 16,
    FIRST_STORAGE = 101,
    BLOCK = 8192,
    V1 = 1, /* epochs */
    V2 = 2,
    V3 = 3,
};

/* A file on n storages, projection p on storage p. */
struct bench {
    char dir[64];
    struct file_id id;
    unsigned kind, layout, n_storages;
    const struct codec *codec;
    uint8_t *bytes; /* expected contents, owned */
    uint64_t size;
    struct salvage s;
    char paths[STORAGES_MAX][80];
    uint8_t *got;
    uint64_t got_end;
    uint64_t journal_at[STORAGES_MAX]; /* offset of the next frame */
    uint32_t n_frames[STORAGES_MAX];
    struct salvage_report report;
    /* bitmap of storages whose headers list a last storage that was added later */
    uint32_t redist;
};

static uint64_t version(unsigned epoch)
{
    return version_make(epoch, 7);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void path_of(const struct bench *b, unsigned storage, const char *name,
                    char out[256])
{
    snprintf(out, 256, "%s/%s", b->paths[storage], name);
}

/* Opens a file, and creates all directories on the way to path. */
static int file_open(const char *path)
{
    char part[256];
    int fd;

    for (const char *slash = strchr(path + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        mkdir(part, 0700);
    }
    fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void file_write(int fd, const void *bytes, size_t len, uint64_t at)
{
    assert_int_equal(pwrite(fd, bytes, len, (off_t)at), (ssize_t)len);
}

static void storage_make(struct bench *b, unsigned i)
{
    uint8_t incarnation[16] = { 9, (uint8_t)i }, cluster[16] = { 4 };
    char text[IDENTITY_TEXT_MAX], path[256], dir[64];
    size_t len = identity_print(text, incarnation, cluster, FIRST_STORAGE + i, false);
    int fd;

    memcpy(dir, b->dir, sizeof(dir));
    snprintf(b->paths[i], sizeof(b->paths[i]), "%s/s%u", dir, i);
    path_of(b, i, "objects/.", path);
    mkdir(b->paths[i], 0700);
    path_of(b, i, "storage.id", path);
    fd = file_open(path);
    file_write(fd, text, len, 0);
    close(fd);
}

static void bench_init(struct bench *b, unsigned kind, unsigned layout)
{
    memset(b, 0, sizeof(*b));
    /* The test always runs in one directory, so that the next run removes what a failed
     * or killed one left. */
    snprintf(b->dir, sizeof(b->dir), "./salvage.tmp");
    nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(b->dir, 0700), 0);
    b->id = (struct file_id){ .export_id = 3, .generation = 1, .ino = 0x1234567 };
    b->kind = kind;
    b->layout = layout;
    b->codec = codec_get(kind, layout, BLOCK);
    assert_non_null(b->codec);
    b->n_storages = codec_layout(layout)->safe;
    b->bytes = calloc(BLOCKS_MAX, BLOCK);
    b->got = calloc(BLOCKS_MAX, BLOCK);
    assert_true(b->bytes != NULL && b->got != NULL);
    for (unsigned i = 0; i < b->n_storages; i++)
        storage_make(b, i);
}

static void bench_free(struct bench *b)
{
    salvage_free(&b->s);
    nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(b->bytes);
    free(b->got);
}

static int projfile_open(const struct bench *b, unsigned storage, unsigned projection)
{
    char name[PROJFILE_PATH_MAX], path[256];
    struct projfile_header h = { .id = b->id,
                                 .codec = (uint8_t)b->kind,
                                 .layout = (uint8_t)b->layout,
                                 .projection = (uint8_t)projection,
                                 .n_storages = (uint8_t)b->n_storages,
                                 .block_bytes = BLOCK,
                                 .epoch = V3 };
    struct marks_page mp = { .sequence = 1,
                             .epoch = V3,
                             .file_hash = file_id_hash(&b->id),
                             .projection = (uint8_t)projection };
    struct marks none = { .n = 0 };
    uint8_t page[PROJFILE_PAGE_BYTES];
    struct stat st;
    int fd;

    projfile_path(name, &b->id, projection);
    path_of(b, storage, name, path);
    fd = file_open(path);
    fstat(fd, &st);
    if (st.st_size > 0)
        return fd;
    h.dist_generation = b->redist >> storage & 1;
    h.n_storages -= b->redist != 0 && h.dist_generation == 0;
    for (unsigned i = 0; i < h.n_storages; i++)
        h.storages[i] = FIRST_STORAGE + i;
    projfile_header_put(page, &h);
    file_write(fd, page, sizeof(page), 0);
    projfile_marks_put(page, &mp, &none, &none);
    file_write(fd, page, sizeof(page), PROJFILE_MARKS_AT);
    memset(page, 0, sizeof(page));
    file_write(fd, page, sizeof(page), PROJFILE_EXTENTS_AT - sizeof(page));
    return fd;
}

/* All projections of one block of the model: heads with overhangs, and bodies. */
struct coded {
    size_t row;
    uint8_t heads[CODEC_N_MAX][RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX];
    uint8_t bodies[CODEC_N_MAX][CODEC_DATA_MAX];
};

static void block_code(const struct bench *b, const uint8_t *bytes, uint64_t block,
                       unsigned user_bytes, uint64_t v, struct coded *out)
{
    static uint8_t data[CODEC_DATA_MAX];
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];

    memset(data, 0, sizeof(data));
    memcpy(data, bytes, user_bytes);
    out->row = codec_row_bytes(b->codec, user_bytes);
    for (unsigned p = 0; p < codec_n(b->codec); p++) {
        body[p] = out->bodies[p];
        overhang[p] = out->heads[p] + RECORD_HEADER_BYTES;
    }
    codec_encode(b->codec, data, out->row, body, overhang);
    for (unsigned p = 0; p < codec_n(b->codec); p++) {
        struct record_header h = { .format = RECORD_FORMAT,
                                   .projection = (uint8_t)p,
                                   .user_bytes = (uint16_t)user_bytes,
                                   .file_hash = file_id_hash(&b->id),
                                   .version = v,
                                   .block = block };

        record_header_put(out->heads[p], &h);
        record_seal(out->heads[p], out->heads[p] + RECORD_HEADER_BYTES,
                    codec_overhang_bytes(b->codec, p), out->bodies[p], out->row);
    }
}

/* Fills the user bytes of a block; they follow from (block, epoch). */
static void block_fill(uint8_t *bytes, uint64_t block, unsigned epoch, unsigned len)
{
    for (unsigned i = 0; i < len; i++)
        bytes[i] = (uint8_t)(block * 31 + epoch * 101 + i * 7 + i / 251);
}

/* Stores a block in place on the storages whose bits are set; projection p on storage
 * p. */
static void block_store(const struct bench *b, uint64_t block, unsigned epoch,
                        unsigned user_bytes, uint32_t storages)
{
    static uint8_t bytes[BLOCK];
    static struct coded coded;

    block_fill(bytes, block, epoch, user_bytes);
    block_code(b, bytes, block, user_bytes, version(epoch), &coded);
    for (unsigned p = 0; p < codec_n(b->codec); p++) {
        struct geometry g;
        int fd;

        if ((storages >> p & 1) == 0)
            continue;
        geometry_init(&g, b->codec, p);
        fd = projfile_open(b, p, p);
        file_write(fd, coded.heads[p],
                   RECORD_HEADER_BYTES + codec_overhang_bytes(b->codec, p),
                   geometry_head_at(&g, block));
        file_write(fd, coded.bodies[p], coded.row, geometry_body_at(&g, block));
        close(fd);
    }
}

static void expect(struct bench *b, uint64_t block, unsigned epoch, unsigned user_bytes)
{
    memset(b->bytes + block * BLOCK, 0, BLOCK);
    if (user_bytes == 0)
        return;
    block_fill(b->bytes + block * BLOCK, block, epoch, user_bytes);
    if (block * BLOCK + user_bytes > b->size)
        b->size = block * BLOCK + user_bytes;
}

/* Appends a frame to the journal of a storage. */
static void journal_append(struct bench *b, unsigned storage, uint8_t kind,
                           const uint8_t *bytes, size_t len)
{
    struct segment_header h = { .number = 5, .salt = 77 + storage, .bytes = 2 << 20 };
    uint8_t header[SEGMENT_HEADER_BYTES], frame[WAL_FRAME_HEADER_BYTES];
    uint8_t tail[7 + WAL_FRAME_TAIL_BYTES + WAL_HEAD_MAX];
    struct frame_says says = { .sequence = ++b->n_frames[storage], .kind = kind };
    size_t tail_len;
    struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
    char path[256];
    int fd;

    path_of(b, storage, "journal/1.0", path);
    fd = file_open(path);
    if (b->journal_at[storage] == 0) {
        segment_header_put(header, &h);
        file_write(fd, header, sizeof(header), 0);
        file_write(fd, header, sizeof(header), h.bytes - SEGMENT_PAGE_BYTES);
        assert_int_equal(ftruncate(fd, (off_t)h.bytes), 0);
        b->journal_at[storage] = SEGMENT_PAGE_BYTES;
    }
    tail_len = wal_frame_put(frame, tail, &h, &says, &iov, 1, len,
                             journal_record_head_bytes(bytes));
    file_write(fd, frame, sizeof(frame), b->journal_at[storage]);
    file_write(fd, bytes, len, b->journal_at[storage] + sizeof(frame));
    file_write(fd, tail, tail_len, b->journal_at[storage] + sizeof(frame) + len);
    b->journal_at[storage] += wal_frame_bytes(len, journal_record_head_bytes(bytes));
    close(fd);
}

static struct journal_record some_entry(const struct bench *b, uint8_t kind)
{
    struct journal_record e = { .kind = kind,
                                .file = { .id = b->id,
                                          .codec = (uint8_t)b->kind,
                                          .layout = (uint8_t)b->layout,
                                          .n_storages = (uint8_t)b->n_storages,
                                          .block_bytes = BLOCK },
                                .codec = b->codec };

    for (unsigned i = 0; i < b->n_storages; i++)
        e.file.storages[i] = FIRST_STORAGE + i;
    return e;
}

/* Adds the block to the journals of these storages. */
static void block_wait(struct bench *b, uint64_t block, unsigned epoch,
                       unsigned user_bytes, uint32_t storages)
{
    static uint8_t bytes[BLOCK], buf[JOURNAL_RECORD_HEADER_BYTES + CODEC_DATA_MAX * 2];
    static struct coded coded;
    struct journal_record e = some_entry(b, JOURNAL_RECORDS);

    block_fill(bytes, block, epoch, user_bytes);
    block_code(b, bytes, block, user_bytes, version(epoch), &coded);
    e.first = block;
    e.blocks[0] = 1;
    for (unsigned p = 0; p < codec_n(b->codec); p++) {
        size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(b->codec, p);

        if ((storages >> p & 1) == 0)
            continue;
        e.projection = (uint8_t)p;
        journal_record_put(buf, &e);
        memcpy(buf + JOURNAL_RECORD_HEADER_BYTES, coded.heads[p], head);
        memcpy(buf + JOURNAL_RECORD_HEADER_BYTES + head, coded.bodies[p], coded.row);
        journal_append(b, p, JOURNAL_RECORDS, buf,
                       JOURNAL_RECORD_HEADER_BYTES + head + coded.row);
    }
}

static void mark_wait(struct bench *b, uint64_t first, uint64_t end, unsigned epoch,
                      uint32_t storages)
{
    uint8_t buf[JOURNAL_RECORD_HEADER_BYTES];
    struct journal_record e = some_entry(b, JOURNAL_MARK);

    e.projection = 255;
    e.first = first;
    e.end = end;
    e.version = version(epoch);
    journal_record_put(buf, &e);
    for (unsigned i = 0; i < b->n_storages; i++) {
        if ((storages >> i & 1) != 0)
            journal_append(b, i, JOURNAL_MARK, buf, sizeof(buf));
    }
}

/* Stores a mark in place. */
static void mark_store(struct bench *b, uint64_t first, uint64_t end, unsigned epoch,
                       uint32_t storages)
{
    for (unsigned p = 0; p < codec_n(b->codec); p++) {
        struct marks_page mp = { .sequence = 2,
                                 .epoch = V3,
                                 .file_hash = file_id_hash(&b->id),
                                 .projection = (uint8_t)p };
        struct marks marks = { .n = 0 }, none = { .n = 0 };
        uint8_t page[PROJFILE_PAGE_BYTES];
        int fd;

        if ((storages >> p & 1) == 0)
            continue;
        marks_apply(&marks, first, end, version(epoch));
        fd = projfile_open(b, p, p);
        projfile_marks_put(page, &mp, &marks, &none);
        file_write(fd, page, sizeof(page), PROJFILE_MARKS_AT + sizeof(page));
        close(fd);
    }
}

/* Changes a byte of a projection file. */
static void damage(struct bench *b, unsigned storage, uint64_t at)
{
    int fd = projfile_open(b, storage, storage);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x40;
    file_write(fd, &byte, 1, at);
    close(fd);
}

static uint64_t body_at(const struct bench *b, unsigned p, uint64_t block)
{
    struct geometry g;

    geometry_init(&g, b->codec, p);
    return geometry_body_at(&g, block);
}

static int on_bytes(void *arg, uint64_t offset, const uint8_t *bytes, size_t len)
{
    struct bench *b = arg;

    assert_true(offset >= b->got_end && len > 0);
    assert_true(offset + len <= (uint64_t)BLOCKS_MAX * BLOCK);
    memcpy(b->got + offset, bytes, len);
    b->got_end = offset + len;
    return 0;
}

/* Reads the file from these storages. */
static void bench_run(struct bench *b, uint32_t storages)
{
    struct salvage_file file;
    struct err err = { 0 };
    size_t cursor = 0;

    salvage_free(&b->s);
    salvage_init(&b->s);
    for (unsigned i = 0; i < b->n_storages; i++) {
        if ((storages >> i & 1) != 0)
            assert_int_equal(salvage_add_dir(&b->s, b->paths[i], &err), 0);
    }
    assert_int_equal(salvage_index(&b->s), 0);
    assert_true(salvage_next(&b->s, &cursor, &file));
    assert_int_equal(file.id.ino, b->id.ino);
    memset(b->got, 0, (size_t)BLOCKS_MAX * BLOCK);
    b->got_end = 0;
    assert_int_equal(
        salvage_run(&b->s, &file, SALVAGE_READ, on_bytes, NULL, b, &b->report), 0);
    assert_false(salvage_next(&b->s, &cursor, &file));
}

static void bench_check(struct bench *b, uint32_t storages)
{
    bench_run(b, storages);
    assert_int_equal(b->report.size, b->size);
    assert_memory_equal(b->got, b->bytes, (size_t)BLOCKS_MAX * BLOCK);
}

#define ALL UINT32_MAX

/* ---- tests ---- */

static void test_any_k_directories_will_do(void **state)
{
    static const unsigned kinds[] = { CODEC_MOJETTE, CODEC_MOJETTE_NONSYSTEMATIC,
                                      CODEC_MOJETTE_FINITE, CODEC_RS };

    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        struct bench b;
        unsigned n, k;

        bench_init(&b, kinds[i % 4], i / 4);
        n = codec_n(b.codec);
        k = codec_k(b.codec);
        for (uint64_t block = 0; block < 12; block++) {
            unsigned len = block == 11 ? 1234 : block == 4 ? 100 : BLOCK;

            block_store(&b, block * 13, V1, len, ALL);
            expect(&b, block * 13, V1, len);
        }
        bench_check(&b, ALL);
        assert_true(salvage_is_whole(&b.report));
        assert_int_equal(b.report.n_data, 12);
        for (unsigned first = 0; first < n; first++) { /* k in a row, modulo n */
            uint32_t some = 0;

            for (unsigned x = 0; x < k; x++)
                some |= 1u << (first + x) % n;
            bench_check(&b, some);
            assert_true(salvage_is_whole(&b.report));
            assert_int_equal(b.report.n_damaged + b.report.n_older, 0);
            bench_run(&b, some & (some - 1)); /* one storage fewer */
            assert_false(salvage_is_whole(&b.report));
            assert_int_equal(b.report.n_unreadable, 12);
            assert_int_equal(b.report.ranges[0].first, 0);
            assert_int_equal(b.report.ranges[1].first, 13);
            assert_int_equal(b.got_end, 0);
        }
        bench_free(&b);
    }
}

static void test_damaged_records_are_left_out(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1);
    for (uint64_t block = 0; block < 300; block++) {
        block_store(&b, block, V1, BLOCK, ALL);
        expect(&b, block, V1, BLOCK);
    }
    damage(&b, 0, body_at(&b, 0, 150) + 5);
    damage(&b, 2, body_at(&b, 2, 150) + 5);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_data, 300);
    assert_int_equal(b.report.n_damaged, 1);
    bench_run(&b, 0x1f); /* five storages, two of them damaged at this block */
    assert_false(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_unreadable, 1);
    assert_int_equal(b.report.n_ranges, 1);
    assert_int_equal(b.report.ranges[0].first, 150);
    assert_int_equal(b.report.ranges[0].end, 151);
    memset(b.bytes + 150 * BLOCK, 0, BLOCK);
    assert_memory_equal(b.got, b.bytes, (size_t)BLOCKS_MAX * BLOCK);
    bench_free(&b);
}

static void test_marks_make_holes(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    for (uint64_t block = 0; block < 10; block++)
        block_store(&b, block, V1, BLOCK, ALL);
    mark_store(&b, 3, UINT64_MAX, V2, ALL);
    block_store(&b, 6, V3, 77, ALL);
    for (uint64_t block = 0; block < 3; block++)
        expect(&b, block, V1, BLOCK);
    expect(&b, 6, V3, 77);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_data, 4);
    bench_check(&b, 0x5);
    bench_free(&b);
}

static void test_a_mark_that_too_few_have_does_not_count(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1); /* k = 4, n = 6, 8 storages */
    for (uint64_t block = 0; block < 4; block++) {
        block_store(&b, block, V1, BLOCK, ALL);
        expect(&b, block, V1, BLOCK);
    }
    /* on three storages, one of which has no projection */
    mark_wait(&b, 2, UINT64_MAX, V2, 0x83);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_older, 2);
    bench_check(&b, 0x3f | 0x80); /* the storage that is missing may have it, too */
    assert_int_equal(b.report.n_outdated, 2);
    assert_false(salvage_is_whole(&b.report));
    mark_wait(&b, 2, UINT64_MAX, V2, 0x40); /* on four storages */
    b.size = 2 * BLOCK;
    expect(&b, 2, V2, 0);
    expect(&b, 3, V2, 0);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_older, 0);
    bench_free(&b);
}

static void test_records_in_journals_count(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1);
    for (uint64_t block = 0; block < 200; block++) {
        block_store(&b, block, V1, BLOCK, ALL);
        expect(&b, block, V1, BLOCK);
    }
    block_wait(&b, 5, V2, BLOCK, ALL);
    expect(&b, 5, V2, BLOCK);
    block_wait(&b, 199, V2, BLOCK, 0x3c); /* on k storages */
    expect(&b, 199, V2, BLOCK);
    block_wait(&b, 199, V3, BLOCK, 0x07); /* torn */
    block_wait(&b, 130, V2, BLOCK, 0x0f); /* one storage applied it in between */
    block_store(&b, 130, V2, BLOCK, 0x01);
    expect(&b, 130, V2, BLOCK);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_older, 1);
    assert_int_equal(b.report.n_data, 200);
    bench_check(&b, 0xff & ~0x40u);
    assert_int_equal(b.report.n_outdated, 1);
    bench_free(&b);
}

static void test_a_torn_first_write_is_a_hole(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1);
    block_store(&b, 0, V1, BLOCK, ALL);
    expect(&b, 0, V1, BLOCK);
    block_store(&b, 1, V1, BLOCK, 0x07);
    bench_check(&b, ALL); /* three storages have a record, five say "never written" */
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_older, 1);
    bench_run(&b, 0x1f); /* two storages say so: too few, and so are the records */
    assert_int_equal(b.report.n_unreadable, 1);
    bench_free(&b);
}

/* Journals copy records that wait for long: several copies on one storage count once. */
static void test_entries_may_be_there_many_times(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V1, BLOCK, ALL);
    for (unsigned i = 0; i < 100; i++)
        mark_wait(&b, 0, UINT64_MAX, V2, ALL);
    for (unsigned i = 0; i < 3; i++)
        block_wait(&b, 0, V3, BLOCK, 0x3);
    expect(&b, 0, V3, BLOCK);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    for (unsigned epoch = V3 + 1; epoch < V3 + 400; epoch++)
        mark_wait(&b, 0, 1, epoch, 0x1); /* on one storage alone */
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_older, 1);
    bench_free(&b);
}

static void test_files_without_a_header_give_their_records(void **state)
{
    struct bench b;
    char from[256], to[256], name[PROJFILE_PATH_MAX];

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1);
    for (uint64_t block = 0; block < 130; block++) {
        block_store(&b, block, V1, BLOCK, ALL);
        expect(&b, block, V1, BLOCK);
    }
    damage(&b, 1, 40); /* header page */
    damage(&b, 3, PROJFILE_MARKS_AT + 40);
    projfile_path(name, &b.id, 2);
    path_of(&b, 2, name, from);
    projfile_path_quarantined(name, &b.id); /* this name does not show the projection */
    path_of(&b, 2, name, to);
    assert_int_equal(rename(from, to), 0);
    damage(&b, 4, 41);
    bench_check(&b, 0x1e);
    assert_true(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_headers_damaged, 2);
    assert_int_equal(b.report.projections, 0x1e);
    bench_free(&b);
}

static void test_nothing_tells_how_a_file_is_coded(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_RS, 0);
    block_store(&b, 0, V1, BLOCK, ALL);
    for (unsigned p = 0; p < 3; p++)
        damage(&b, p, 40);
    bench_run(&b, ALL);
    assert_null(b.report.codec);
    assert_false(salvage_is_whole(&b.report));
    block_wait(&b, 0, V2, BLOCK, ALL); /* the journal shows it */
    expect(&b, 0, V2, BLOCK);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    bench_free(&b);
}

static int on_far_bytes(void *arg, uint64_t offset, const uint8_t *bytes, size_t len)
{
    uint64_t *end = arg;

    (void)bytes;
    *end = offset + len;
    return 0;
}

static void test_a_file_far_apart_is_read_quickly(void **state)
{
    uint64_t far = (UINT64_C(1) << 40) / BLOCK - 1, end = 0; /* 1 TiB */
    struct salvage_file file;
    struct err err = { 0 };
    struct bench b;
    size_t cursor = 0;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V1, BLOCK, ALL);
    block_store(&b, far, V1, 10, ALL);
    salvage_init(&b.s);
    for (unsigned i = 0; i < b.n_storages; i++)
        assert_int_equal(salvage_add_dir(&b.s, b.paths[i], &err), 0);
    assert_int_equal(salvage_index(&b.s), 0);
    assert_true(salvage_next(&b.s, &cursor, &file));
    assert_int_equal(
        salvage_run(&b.s, &file, SALVAGE_READ, on_far_bytes, NULL, &end, &b.report), 0);
    assert_int_equal(end, far * BLOCK + 10);
    assert_int_equal(b.report.size, end);
    assert_int_equal(b.report.n_data, 2);
    bench_free(&b);
}

static void test_a_storage_is_not_taken_twice(void **state)
{
    struct bench b;
    struct err err = { 0 };
    char link[256];

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    salvage_init(&b.s);
    path_of(&b, 0, "../copy", link);
    assert_int_equal(symlink("s0", link), 0);
    assert_int_equal(salvage_add_dir(&b.s, b.paths[0], &err), 0);
    assert_int_equal(salvage_add_dir(&b.s, link, &err), -EEXIST);
    assert_int_equal(salvage_add_dir(&b.s, b.dir, &err), -ENOTDIR);
    assert_int_equal(salvage_add_dir(&b.s, "/nowhere", &err), -ENOENT);
    bench_free(&b);
}

/* Zeroes some bytes of a projection file, or all of its front. */
static void wipe(struct bench *b, unsigned storage, uint64_t at, size_t len)
{
    int fd = projfile_open(b, storage, storage);
    uint8_t *zeros = calloc(1, len);

    assert_non_null(zeros);
    file_write(fd, zeros, len, at);
    free(zeros);
    close(fd);
}

static uint64_t head_at(const struct bench *b, unsigned p, uint64_t block)
{
    struct geometry g;

    geometry_init(&g, b->codec, p);
    return geometry_head_at(&g, block);
}

/* A version that was replaced but is still in journals is not taken for the newest when
 * the heads of the newest cannot be read. */
static void test_old_bytes_are_not_called_whole(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0); /* k = 2, n = 3, 4 storages */
    block_store(&b, 0, V2, BLOCK, ALL);
    block_wait(&b, 0, V1, BLOCK, ALL);     /* applied and replaced since then */
    damage(&b, 1, head_at(&b, 1, 0) + 12); /* not recognisable as a record any more */
    damage(&b, 2, head_at(&b, 2, 0) + 12);
    bench_run(&b, ALL);
    assert_false(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_outdated, 1);
    damage(&b, 0, head_at(&b, 0, 0) + 12); /* no storage shows a newer version */
    bench_run(&b, ALL);
    assert_false(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_outdated, 1);
    bench_free(&b);
}

/* A lost part of a journal may have been newer than what is in place. */
static void test_damaged_journals_are_not_overlooked(void **state)
{
    struct bench b;
    char path[256];
    int fd;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    for (uint64_t block = 0; block < 2; block++) {
        block_store(&b, block, V1, BLOCK, ALL);
        block_wait(&b, block, V2, BLOCK, ALL);
        expect(&b, block, V2, BLOCK);
    }
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    for (unsigned i = 1; i < 3; i++) { /* the first of two frames */
        path_of(&b, i, "journal/1.0", path);
        fd = file_open(path);
        file_write(fd, "rot", 3, SEGMENT_PAGE_BYTES + WAL_FRAME_HEADER_BYTES + 400);
        close(fd);
    }
    bench_run(&b, ALL);
    assert_int_equal(b.s.n_entries_damaged, 2);
    assert_int_equal(b.report.n_data, 2);
    assert_int_equal(b.report.n_outdated, 1);
    assert_false(salvage_is_whole(&b.report));
    bench_free(&b);
}

/* The version in the head of a damaged record may be any other. */
static void test_version_of_a_damaged_record_does_not_count(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V2, BLOCK, 0x3);
    block_store(&b, 0, V1, BLOCK, 0x4);
    block_wait(&b, 0, V1, BLOCK, 0x1);
    damage(&b, 1, head_at(&b, 1, 0) + 20);
    bench_run(&b, ALL);
    expect(&b, 0, V1, BLOCK);
    assert_memory_equal(b.got, b.bytes, BLOCK);
    assert_int_equal(b.report.n_outdated, 1);
    assert_false(salvage_is_whole(&b.report));
    bench_free(&b);
}

/* Only one storage was down while everything was written. */
static void test_too_few_directories_do_not_make_holes(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V1, BLOCK, 0x3);
    close(projfile_open(&b, 2, 2)); /* empty file */
    bench_run(&b, 0x4);
    assert_int_equal(b.report.size, 0);
    assert_true(b.report.is_unsure);
    assert_false(salvage_is_whole(&b.report));
    expect(&b, 0, V1, BLOCK);
    bench_check(&b, ALL);
    assert_true(salvage_is_whole(&b.report));
    bench_free(&b);
}

/*
 * Headers of two generations: the later one tells where the file is, but earlier
 * acknowledged writes may be on as few storages as the earlier one required.
 */
static void test_headers_of_two_generations(void **state)
{
    (void)state;
    for (uint32_t redist = 1; redist <= 3; redist++) {
        struct bench b;

        bench_init(&b, CODEC_MOJETTE, 0);
        b.redist = redist;
        block_store(&b, 0, V1, BLOCK, 0x3);
        expect(&b, 0, V1, BLOCK);
        bench_check(&b, 0x3);
        assert_int_equal(b.report.ref.n_storages, 4);
        assert_int_equal(b.report.ref.dist_generation, 1);
        assert_int_equal(b.report.n_absent_storages, 2);
        assert_int_equal(b.report.is_unsure, redist != 3);
        bench_check(&b, 0xb); /* the added storage has nothing */
        assert_int_equal(b.report.n_absent_storages, 1);
        assert_true(salvage_is_whole(&b.report));
        bench_free(&b);
    }
}

static void dir_hide(const struct bench *b, unsigned storage, bool hide)
{
    char path[256];

    path_of(b, storage, "objects", path);
    assert_int_equal(unlink(path) == 0 || rmdir(path) == 0 || errno == ENOENT ? 0 : 1, 0);
    if (hide) /* a symlink loop: it cannot be opened */
        assert_int_equal(symlink("objects", path), 0);
}

/* A storage whose object directory cannot be read does not count as "never written". */
static void test_directories_that_cannot_be_read_are_no_holes(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V1, BLOCK, 0x1);
    bench_run(&b, ALL); /* left by a torn first write: a hole */
    assert_true(salvage_is_whole(&b.report));
    dir_hide(&b, 1, true);
    bench_run(&b, ALL);
    assert_false(salvage_is_whole(&b.report));
    dir_hide(&b, 3, true);
    bench_run(&b, ALL);
    assert_false(salvage_is_whole(&b.report));
    assert_int_equal(b.report.n_unreadable, 1);
    bench_free(&b);
}

static void test_records_behind_a_wiped_front_are_used(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    for (uint64_t block = 0; block < 5; block++) {
        block_store(&b, block, V1, BLOCK, 0x7);
        expect(&b, block, V1, BLOCK);
    }
    wipe(&b, 0, 0, PROJFILE_EXTENTS_AT);
    bench_check(&b, 0x3);
    assert_int_equal(b.report.n_data, 5);
    assert_int_equal(b.report.n_headers_damaged, 1);
    assert_true(salvage_is_whole(&b.report));
    bench_free(&b);
}

/* The directory may hold names of any kind. */
static void test_more_files_than_there_can_be(void **state)
{
    char name[PROJFILE_PATH_MAX], path[256];
    struct bench b;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 1);
    for (unsigned i = 0; i < b.n_storages; i++) {
        for (unsigned p = 0; p < CODEC_N_MAX; p++) {
            projfile_path(name, &b.id, p);
            path_of(&b, i, name, path);
            close(file_open(path));
        }
    }
    for (unsigned p = 0; p < 4; p++) {
        projfile_path(name, &b.id, p);
        path_of(&b, p, name, path);
        assert_int_equal(unlink(path), 0);
    }
    block_store(&b, 0, V1, BLOCK, 0xf);
    expect(&b, 0, V1, BLOCK);
    bench_run(&b, ALL);
    assert_int_equal(b.report.n_files, b.n_storages * CODEC_N_MAX);
    bench_free(&b);
}

/* A block that a database writes all day has one frame in the journal for each write. */
static void test_a_block_with_very_many_entries(void **state)
{
    enum { N = 60000, DIRS = 4 };
    struct salvage_file file;
    struct err err = { 0 };
    struct bench b;
    size_t cursor = 0;

    (void)state;
    bench_init(&b, CODEC_MOJETTE, 0);
    block_store(&b, 0, V3, BLOCK, ALL);
    salvage_init(&b.s);
    for (unsigned i = 0; i < b.n_storages; i++)
        assert_int_equal(salvage_add_dir(&b.s, b.paths[i], &err), 0);
    assert_int_equal(salvage_index(&b.s), 0);
    b.s.waiting = calloc(DIRS * N, sizeof(*b.s.waiting));
    assert_non_null(b.s.waiting);
    b.s.n_waiting = b.s.room_waiting = DIRS * N;
    /* newest first, in the order of salvage_index() */
    for (unsigned i = 0; i < DIRS * N; i++) {
        b.s.waiting[i] =
            (struct salvage_waiting){ .id = b.id,
                                      .end = 1,
                                      .version = version(V3) - 1 - i / DIRS,
                                      .body_len = BLOCK / 2,
                                      .user_bytes = BLOCK,
                                      .dir = (uint8_t)(i % DIRS),
                                      .projection = (uint8_t)(i % DIRS % 3) };
    }
    assert_true(salvage_next(&b.s, &cursor, &file));
    assert_int_equal(salvage_run(&b.s, &file, SALVAGE_LOOK, NULL, NULL, NULL, &b.report),
                     0);
    assert_int_equal(b.report.n_data, 1);
    assert_true(salvage_is_whole(&b.report));
    bench_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_k_directories_will_do),
        cmocka_unit_test(test_damaged_records_are_left_out),
        cmocka_unit_test(test_marks_make_holes),
        cmocka_unit_test(test_a_mark_that_too_few_have_does_not_count),
        cmocka_unit_test(test_records_in_journals_count),
        cmocka_unit_test(test_a_torn_first_write_is_a_hole),
        cmocka_unit_test(test_entries_may_be_there_many_times),
        cmocka_unit_test(test_files_without_a_header_give_their_records),
        cmocka_unit_test(test_nothing_tells_how_a_file_is_coded),
        cmocka_unit_test(test_a_file_far_apart_is_read_quickly),
        cmocka_unit_test(test_a_storage_is_not_taken_twice),
        cmocka_unit_test(test_old_bytes_are_not_called_whole),
        cmocka_unit_test(test_damaged_journals_are_not_overlooked),
        cmocka_unit_test(test_version_of_a_damaged_record_does_not_count),
        cmocka_unit_test(test_too_few_directories_do_not_make_holes),
        cmocka_unit_test(test_headers_of_two_generations),
        cmocka_unit_test(test_directories_that_cannot_be_read_are_no_holes),
        cmocka_unit_test(test_records_behind_a_wiped_front_are_used),
        cmocka_unit_test(test_more_files_than_there_can_be),
        cmocka_unit_test(test_a_block_with_very_many_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
