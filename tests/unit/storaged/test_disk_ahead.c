/*
 * Goal: space is reserved ahead of streams only, within bounds, and is given back, but
 * never space that a user has reserved. Method: real files; the file system is asked for
 * their blocks and lengths.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/disk/disk_ahead.h"
#include "tests/unit/unit.h"

enum { PIECE = 256 << 10, SLACK = 64 << 10 /* pages that the file system uses itself */ };

struct stream {
    int fd;
    uint64_t at;
    struct ahead_file ahead;
};

static uint8_t piece[PIECE];

static uint64_t blocks_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static uint64_t size_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_size;
}

static void stream_open(struct stream *s)
{
    char name[] = "ahead-XXXXXX";

    *s = (struct stream){ .fd = mkstemp(name) };
    assert_true(s->fd >= 0);
    unlink(name);
}

static void stream_write(struct disk_ahead *a, struct stream *s, unsigned n_pieces)
{
    for (unsigned i = 0; i < n_pieces; i++) {
        assert_int_equal(pwrite(s->fd, piece, PIECE, (off_t)s->at), PIECE);
        s->at += PIECE;
        ahead_streamed(a, &s->ahead, s->fd, s->at, s->at);
    }
}

/* Returns whether this file system reserves space ahead: some do not, and are left
 * alone. */
static bool is_done_here(void)
{
    struct disk_ahead a;
    struct stream s;
    struct statvfs st;
    bool done;

    ahead_init(&a);
    stream_open(&s);
    stream_write(&a, &s, 4);
    done = s.ahead.end != 0;
    assert_int_equal(fstatvfs(s.fd, &st), 0);
    assert_true(done || s.ahead.never ||
                (uint64_t)st.f_bavail * st.f_frsize >> 20 < AHEAD_FREE_MIN);
    ahead_give_back(&a, &s.ahead);
    close(s.fd);
    return done;
}

static void streams_have_space_ahead(void **state)
{
    struct disk_ahead a;
    struct stream s;

    (void)state;
    if (!is_done_here())
        skip();
    ahead_init(&a);
    stream_open(&s);
    stream_write(&a, &s, 3);
    assert_int_equal(s.ahead.end, 0); /* no stream yet */
    for (unsigned i = 0; i < 60; i++) {
        stream_write(&a, &s, 1);
        assert_true(s.ahead.end > s.at && s.ahead.end <= s.at + AHEAD_MAX + 4096);
        assert_int_equal(size_of(s.fd), s.at);
        assert_int_equal(ahead_bytes(&s.ahead, s.at), s.ahead.end - s.at);
    }
    assert_true(blocks_of(s.fd) >= s.ahead.end);
    ahead_give_back(&a, &s.ahead);
    assert_int_equal(a.n_files, 0);
    assert_int_equal(size_of(s.fd), s.at);
    assert_true(blocks_of(s.fd) <= s.at + SLACK);
    close(s.fd);
}

static void what_a_user_reserved_stays(void **state)
{
    struct disk_ahead a;
    struct stream before, after;

    (void)state;
    if (!is_done_here())
        skip();
    ahead_init(&a);
    stream_open(&before);
    assert_int_equal(fallocate(before.fd, FALLOC_FL_KEEP_SIZE, 0, 64 << 20), 0);
    stream_write(&a, &before, 16);
    ahead_give_back(&a, &before.ahead);
    assert_true(blocks_of(before.fd) >= 64 << 20);

    stream_open(&after);
    stream_write(&a, &after, 8);
    assert_true(after.ahead.end != 0);
    ahead_never(&a, &after.ahead);
    assert_int_equal(fallocate(after.fd, FALLOC_FL_KEEP_SIZE, 0, 64 << 20), 0);
    stream_write(&a, &after, 16);
    ahead_give_back_all(&a);
    ahead_give_back(&a, &after.ahead);
    assert_true(blocks_of(after.fd) >= 64 << 20);
    close(before.fd);
    close(after.fd);
}

static void there_is_a_bound(void **state)
{
    enum { STREAMS = 3 * AHEAD_FILES_MAX };
    struct disk_ahead a;
    struct stream s[STREAMS];
    uint64_t more = 0;

    (void)state;
    if (!is_done_here())
        skip();
    ahead_init(&a);
    for (unsigned i = 0; i < STREAMS; i++)
        stream_open(&s[i]);
    for (unsigned n = 0; n < 20; n++) {
        for (unsigned i = 0; i < STREAMS; i++)
            stream_write(&a, &s[i], 1);
    }
    assert_int_equal(a.n_files, AHEAD_FILES_MAX);
    for (unsigned i = 0; i < STREAMS; i++)
        more += blocks_of(s[i].fd) - size_of(s[i].fd);
    assert_true(more <= AHEAD_FILES_MAX * AHEAD_MAX + STREAMS * SLACK);

    stream_write(&a, &s[STREAMS - 1], 200); /* the other streams are idle now */
    assert_true(s[STREAMS - 1].ahead.end != 0);
    ahead_give_back_all(&a);
    for (unsigned i = 0; i < STREAMS; i++) {
        assert_true(blocks_of(s[i].fd) <= s[i].at + SLACK);
        assert_int_equal(size_of(s[i].fd), s[i].at);
        close(s[i].fd);
    }
}

/* A worker may be extending the file: cutting it to an earlier length would lose
 * bytes. */
static void nothing_is_cut_while_others_make_it_longer(void **state)
{
    struct disk_ahead a;
    struct stream s;

    (void)state;
    if (!is_done_here())
        skip();
    ahead_init(&a);
    stream_open(&s);
    stream_write(&a, &s, 8);
    s.ahead.n_sizing++;
    ahead_give_back_all(&a);
    assert_true(blocks_of(s.fd) > s.at + SLACK);
    s.ahead.n_sizing--;
    close(s.fd);
}

static void the_middle_of_a_file_is_no_end(void **state)
{
    struct disk_ahead a;
    struct stream s;

    (void)state;
    ahead_init(&a);
    stream_open(&s);
    assert_int_equal(ftruncate(s.fd, 64 << 20), 0);
    stream_write(&a, &s, 16);
    assert_int_equal(s.ahead.end, 0);
    assert_true(blocks_of(s.fd) <= s.at + SLACK);
    close(s.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_have_space_ahead),
        cmocka_unit_test(what_a_user_reserved_stays),
        cmocka_unit_test(there_is_a_bound),
        cmocka_unit_test(nothing_is_cut_while_others_make_it_longer),
        cmocka_unit_test(the_middle_of_a_file_is_no_end),
    };

    memset(piece, 'x', sizeof(piece));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
