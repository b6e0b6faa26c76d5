/*
 * test_quorum_log.c - the log of a member: what is persisted is there after a restart or
 * a loss of power, and what is damaged is never passed over.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/quorum/log/quorum_log.h"
#include "exportd/quorum/log/quorum_vote.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum {
    ENTRIES_MAX = 4096,
    SEGMENTS = 6,
    LARGE_BYTES = 10000,
    /* frame header, head, entry, tail, copy of the head */
    LARGE_FRAME_BYTES = WAL_FRAME_HEADER_BYTES + 2 * QUORUM_LOG_HEAD_BYTES + LARGE_BYTES +
                        WAL_FRAME_TAIL_BYTES,
};

/* A member that notes what the log reports. */
struct world {
    struct env_virtual v;
    struct memdisk disk;
    struct quorum_log_hooks hooks;
    struct quorum_log_config config;
    struct quorum_log *log;
    int start_rc;
    bool is_started, is_stopped;
    int failed;
    bool is_full;
    unsigned n_full; /* tries that found no space */
    uint64_t written;
    bool has_begun;
    uint64_t persisted; /* highest index that is persisted and was not truncated since */
    struct quorum_ballot saved; /* newest one that was reported as saved */
    struct quorum_ballot asked; /* newest one that was to be saved */
    /* [i]: term of entry i as it was appended last; 0: none */
    uint64_t terms[ENTRIES_MAX];
    uint64_t last;
};

static void on_persisted(void *arg, uint64_t index, uint64_t term)
{
    struct world *w = arg;

    if (index <= w->last && w->terms[index] == term && index > w->persisted)
        w->persisted = index;
}

static void on_voted(void *arg, uint64_t term, uint64_t vote)
{
    ((struct world *)arg)->saved = (struct quorum_ballot){ term, vote };
}

static void on_failed(void *arg, int rc)
{
    ((struct world *)arg)->failed = rc;
}

static void on_full(void *arg, bool is_full)
{
    struct world *w = arg;

    w->is_full = is_full;
    w->n_full += is_full;
}

static void on_written(void *arg, uint64_t index, uint64_t term)
{
    struct world *w = arg;

    if (index <= w->last && w->terms[index] == term && index > w->written)
        w->written = index;
}

static void on_begun(void *arg)
{
    ((struct world *)arg)->has_begun = true;
}

static void on_started(void *arg, int rc)
{
    struct world *w = arg;

    w->start_rc = rc;
    w->is_started = true;
}

static void on_stopped(void *arg)
{
    ((struct world *)arg)->is_stopped = true;
}

static int start(struct world *w)
{
    w->is_started = false;
    w->failed = 0;
    assert_int_equal(quorum_log_open(&w->config, &w->log), 0);
    quorum_log_start(w->log, on_started, w);
    env_virtual_run_until_idle(&w->v, 1000);
    assert_true(w->is_started);
    return w->start_rc;
}

static void stop(struct world *w)
{
    w->is_stopped = false;
    quorum_log_stop(w->log, on_stopped, w);
    env_virtual_run_until_idle(&w->v, 1000);
    assert_true(w->is_stopped);
    quorum_log_free(w->log);
}

static void world_init(struct world *w, uint64_t seed)
{
    *w = (struct world){ 0 };
    env_virtual_init(&w->v, seed);
    memdisk_init(&w->disk, &w->v);
    w->hooks = (struct quorum_log_hooks){ on_persisted, on_voted,   on_failed, w,
                                          on_full,      on_written, on_begun };
    w->config = (struct quorum_log_config){
        .env = &w->v.env,
        .disk = &w->disk.disk,
        .hooks = &w->hooks,
        .segment_bytes = 2 << 20,
        .segments = SEGMENTS,
        .memory_bytes = 1 << 20,
    };
}

static void world_free(struct world *w)
{
    memdisk_free(&w->disk);
    env_virtual_close(&w->v);
}

/* The data of an entry follows from its index and term. */
static uint32_t data_len(uint64_t index, uint64_t term)
{
    return (uint32_t)(1 + (index * 7919 + term * 104729) % 3000);
}

static uint8_t data_byte(uint64_t index, uint64_t term, uint32_t i)
{
    return (uint8_t)(index * 31 + term * 17 + i * (2 * index + 1));
}

static struct quorum_entry *entry_new(uint64_t index, uint64_t term, uint32_t len)
{
    struct quorum_entry *e = quorum_entry_new(RAFT_ENTRY_BATCH, len);

    assert_non_null(e);
    for (uint32_t i = 0; i < len; i++)
        e->bytes[i] = data_byte(index, term, i);
    e->e.index = index;
    e->e.term = term;
    return e;
}

static void append_sized(struct world *w, uint64_t term, uint32_t len)
{
    struct quorum_entry *e = entry_new(w->last + 1, term, len);

    assert_true(w->last + 1 < ENTRIES_MAX);
    w->terms[++w->last] = term;
    quorum_log_append(w->log, &e, 1);
    quorum_entry_free(e);
}

static void append(struct world *w, uint64_t term, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        append_sized(w, term, data_len(w->last + 1, term));
}

static void truncate_from(struct world *w, uint64_t from)
{
    quorum_log_truncate(w->log, from);
    w->last = from - 1;
    if (w->persisted > w->last)
        w->persisted = w->last;
}

struct reader {
    struct quorum_log_read r;
    int rc;
    struct quorum_entry *entry;
    bool is_done;
};

static void on_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry)
{
    struct reader *reader = (struct reader *)r;

    reader->rc = rc;
    reader->entry = entry;
    reader->is_done = true;
}

/* Asserts the data of an entry, which is read from the disk if it is not in memory. */
static void expect_data(struct world *w, uint64_t index)
{
    struct reader reader = { .r = { .index = index, .done = on_read } };
    struct quorum_entry *entry;
    struct raft_log_entry e = quorum_log_get(w->log, index, &entry);

    assert_int_equal(e.term, w->terms[index]);
    if (entry == NULL) {
        quorum_log_read(w->log, &reader.r);
        env_virtual_run_until_idle(&w->v, 1000);
        assert_true(reader.is_done);
        assert_int_equal(reader.rc, 0);
        entry = reader.entry;
    }
    assert_int_equal(entry->e.len, e.len);
    for (uint32_t i = 0; i < e.len; i++)
        assert_int_equal(entry->bytes[i], data_byte(index, e.term, i));
    quorum_entry_free(reader.entry);
}

static void expect_log(struct world *w, uint64_t first, uint64_t last)
{
    assert_int_equal(quorum_log_first(w->log), first);
    assert_int_equal(quorum_log_last(w->log), last);
    for (uint64_t i = first; i <= last; i++)
        expect_data(w, i);
}

static void a_restart_finds_entries_and_vote(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    assert_int_equal(start(&w), 0);
    assert_int_equal(quorum_log_found(w.log)->term, 0);
    expect_log(&w, 1, 0);
    quorum_log_vote(w.log, 3, 77);
    append(&w, 3, 20);
    env_virtual_run_until_idle(&w.v, 1000);
    assert_int_equal(w.persisted, 20);
    assert_int_equal(w.saved.term, 3);
    truncate_from(&w, 15);
    append(&w, 4, 3);
    quorum_log_vote(w.log, 4, 1);
    quorum_log_vote(w.log, 5, 2);
    stop(&w);
    assert_int_equal(w.persisted, 17);
    assert_true(w.saved.term == 5 && w.saved.vote == 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->term, 5);
        assert_int_equal(quorum_log_found(w.log)->vote, 2);
        assert_int_equal(quorum_log_found(w.log)->lost, 0);
        expect_log(&w, 1, 17);
        quorum_log_forget_old(w.log);
        stop(&w);
    }
    world_free(&w);
}

/* A process that was killed left entries unsynced: once they were found, they stay. */
static void entries_that_are_found_are_synced(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct world w;

        world_init(&w, seed);
        w.config.is_lazy = true;
        assert_int_equal(start(&w), 0);
        quorum_log_may_wait(w.log, true);
        append(&w, 1, 5);
        env_virtual_advance_ms(&w.v, 100);
        assert_int_equal(w.written, 5);
        assert_int_equal(w.persisted, 0);
        w.disk.is_cut = true; /* the process ends */
        stop(&w);
        w.disk.is_cut = false;
        assert_int_equal(start(&w), 0);
        expect_log(&w, 1, 5);
        w.disk.is_cut = true;
        stop(&w);
        memdisk_power_cut(&w.disk);
        assert_int_equal(start(&w), 0);
        expect_log(&w, 1, 5);
        stop(&w);
        world_free(&w);
    }
}

/* Syncs that may wait come after a second, after many entries, or when none may. */
static void a_sync_may_wait(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.config.is_lazy = true;
    assert_int_equal(start(&w), 0);
    quorum_log_may_wait(w.log, true);
    append(&w, 1, 3);
    env_virtual_advance_ms(&w.v, QUORUM_LOG_WAIT_MS - 10);
    assert_int_equal(w.written, 3);
    assert_int_equal(w.persisted, 0);
    env_virtual_advance_ms(&w.v, 20);
    assert_int_equal(w.persisted, 3);
    append(&w, 1, 2);
    env_virtual_advance_ms(&w.v, 20);
    assert_int_equal(w.persisted, 3);
    quorum_log_may_wait(w.log, false);
    env_virtual_advance_ms(&w.v, 20);
    assert_int_equal(w.persisted, 5);
    quorum_log_may_wait(w.log, true);
    append(&w, 1, QUORUM_LOG_WAIT_ENTRIES);
    env_virtual_advance_ms(&w.v, 20);
    assert_int_equal(w.persisted, w.last);
    append(&w, 1, 1);
    stop(&w);
    assert_int_equal(w.persisted, w.last);
    world_free(&w);
}

/* The boot record tells of the power, and of a loss that is not counted. */
static void the_log_knows_whether_the_power_failed(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.config.is_lazy = true;
    w.config.boot = 7;
    for (unsigned run = 0; run < 3; run++) { /* 0: killed, 1: stopped, 2: killed */
        assert_int_equal(start(&w), 0);
        assert_false(quorum_log_found(w.log)->in_doubt);
        assert_int_equal(quorum_log_found(w.log)->loss_term, 0);
        w.has_begun = false;
        assert_true(quorum_log_begin(w.log, 0));
        env_virtual_run_until_idle(&w.v, 1000);
        assert_true(w.has_begun);
        w.config.boot += run == 1;
        w.disk.is_cut = run != 1;
        stop(&w);
        w.disk.is_cut = false;
    }
    w.config.boot++;
    for (unsigned run = 0; run < 2; run++) { /* twice: nothing was noted meanwhile */
        assert_int_equal(start(&w), 0);
        assert_true(quorum_log_found(w.log)->in_doubt);
        if (run == 0)
            stop(&w);
    }
    assert_true(quorum_log_begin(w.log, 5));
    env_virtual_run_until_idle(&w.v, 1000);
    stop(&w);
    assert_int_equal(start(&w), 0);
    assert_false(quorum_log_found(w.log)->in_doubt);
    assert_int_equal(quorum_log_found(w.log)->loss_term, 5);
    assert_true(quorum_log_begin(w.log, 5));
    env_virtual_run_until_idle(&w.v, 1000);
    quorum_log_loss_counted(w.log);
    env_virtual_run_until_idle(&w.v, 1000);
    stop(&w);
    assert_int_equal(start(&w), 0);
    assert_int_equal(quorum_log_found(w.log)->loss_term, 0);
    stop(&w);
    world_free(&w);
}

/* A boot record that cannot be read says nothing: once that is dealt with a new one takes
 * its place, also if no entry is acknowledged any more before it is synced. */
static void a_damaged_boot_record_counts_once(void **state)
{
    const uint8_t junk[2 * QUORUM_VOTE_PAGE_BYTES] = { 1 };
    struct world w;

    (void)state;
    world_init(&w, 1);
    w.config.is_lazy = true;
    w.config.boot = 7;
    assert_int_equal(start(&w), 0);
    assert_true(quorum_log_begin(w.log, 0));
    stop(&w);
    memdisk_poke(&w.disk, memdisk_find(&w.disk, "boot"), 0, junk, sizeof(junk));
    w.config.is_lazy = false;
    assert_int_equal(start(&w), 0);
    assert_true(quorum_log_found(w.log)->in_doubt);
    assert_true(quorum_log_begin(w.log, 5));
    env_virtual_run_until_idle(&w.v, 1000);
    stop(&w);
    assert_int_equal(start(&w), 0);
    assert_false(quorum_log_found(w.log)->in_doubt);
    assert_int_equal(quorum_log_found(w.log)->loss_term, 5);
    stop(&w);
    world_free(&w);
}

static void space_is_used_again(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 2);
    assert_int_equal(start(&w), 0);
    quorum_log_forget_old(w.log);
    for (unsigned i = 0; i < 60; i++) {
        append_sized(&w, 1, 700 << 10);
        env_virtual_run_until_idle(&w.v, 1000);
        assert_int_equal(w.failed, 0);
        assert_int_equal(w.persisted, w.last);
        if (w.last > 6)
            quorum_log_trim(w.log, w.last - 5);
        env_virtual_run_until_idle(&w.v, 1000);
    }
    expect_log(&w, w.last - 5, w.last);
    stop(&w);
    assert_int_equal(start(&w), 0);
    assert_true(quorum_log_first(w.log) <= w.last - 5);
    assert_true(quorum_log_first(w.log) > 30);
    expect_log(&w, quorum_log_first(w.log), w.last);
    stop(&w);
    world_free(&w);
}

/* Without space, entries wait in memory; they are written, in order, once older ones have
 * left. A loss of power meanwhile takes none that was reported as persisted. */
static void entries_wait_for_space(void **state)
{
    (void)state;
    for (unsigned power = 0; power < 2; power++) {
        struct world w;

        world_init(&w, 3);
        assert_int_equal(start(&w), 0);
        quorum_log_forget_old(w.log);
        for (unsigned i = 0; i < 30; i++) {
            append_sized(&w, 1, i % 3 == 0 ? 1 << 20 : 300 << 10);
            env_virtual_run_posted(&w.v);
        }
        env_virtual_advance_ms(&w.v, 2 * QUORUM_LOG_RETRY_MS);
        assert_int_equal(w.failed, 0);
        assert_true(w.is_full && w.n_full >= 2);
        assert_true(w.persisted > 6 && w.persisted < w.last);
        assert_int_equal(w.written, w.persisted); /* no entry that waits */
        if (power == 0) {
            truncate_from(&w, w.last - 2); /* all three wait */
            append(&w, 2, 3);
            quorum_log_trim(w.log, w.persisted);
            env_virtual_advance_ms(&w.v, 20 * QUORUM_LOG_RETRY_MS);
            assert_false(w.is_full);
            assert_int_equal(w.failed, 0);
            assert_int_equal(w.persisted, w.last);
            expect_log(&w, quorum_log_first(w.log), w.last);
        } else {
            w.last = w.persisted;
        }
        stop(&w);
        if (power == 1)
            memdisk_power_cut(&w.disk);
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->lost, 0);
        assert_true(quorum_log_last(w.log) >= w.persisted);
        expect_log(&w, quorum_log_first(w.log), w.persisted);
        stop(&w);
        world_free(&w);
    }
}

/* All entries that wait are replaced by those of another leader. */
static void entries_that_wait_are_replaced(void **state)
{
    struct world w;
    uint64_t from;

    (void)state;
    world_init(&w, 4);
    assert_int_equal(start(&w), 0);
    quorum_log_forget_old(w.log);
    for (unsigned i = 0; i < 30; i++)
        append_sized(&w, 1, 1 << 20);
    env_virtual_advance_ms(&w.v, QUORUM_LOG_RETRY_MS);
    assert_true(w.is_full);
    from = w.persisted;
    truncate_from(&w, from);
    append(&w, 2, 40);
    quorum_log_trim(w.log, from - 1);
    env_virtual_advance_ms(&w.v, 20 * QUORUM_LOG_RETRY_MS);
    assert_false(w.is_full);
    assert_int_equal(w.persisted, w.last);
    stop(&w);
    assert_int_equal(start(&w), 0);
    expect_log(&w, quorum_log_first(w.log), w.last);
    stop(&w);
    world_free(&w);
}

/* Starts a log of four segments with four entries, of which memory holds the newest. */
static void world_with_large_entries(struct world *w)
{
    world_init(w, 4);
    assert_int_equal(start(w), 0);
    quorum_log_forget_old(w->log);
    for (unsigned i = 0; i < 4; i++)
        append_sized(w, 1, 600 << 10);
    env_virtual_run_until_idle(&w->v, 1000);
}

/* Appends and trims until each segment that is free has been used again. */
static void segments_go_round(struct world *w)
{
    for (unsigned i = 0; i < 12; i++) {
        append_sized(w, 1, 600 << 10);
        quorum_log_trim(w->log, w->last);
        env_virtual_run_until_idle(&w->v, 1000);
    }
}

/* The place of an entry must not be used again while it is read. */
static void an_entry_may_leave_while_it_is_read(void **state)
{
    struct reader reader = { .r = { .index = 1, .done = on_read } };
    struct quorum_entry *entry;
    struct world w;

    (void)state;
    world_with_large_entries(&w);
    quorum_log_get(w.log, 1, &entry);
    assert_null(entry); /* memory_bytes is 1 MiB */
    w.disk.hold_reads = true;
    quorum_log_read(w.log, &reader.r);
    env_virtual_run_until_idle(&w.v, 1000);
    quorum_log_trim(w.log, 4);
    segments_go_round(&w);
    assert_int_equal(w.failed, 0);
    w.disk.hold_reads = false;
    memdisk_release(&w.disk);
    env_virtual_run_until_idle(&w.v, 1000);
    assert_true(reader.is_done);
    assert_int_equal(reader.rc, -ENOENT);
    stop(&w);
    world_free(&w);
}

/* The last read of an entry frees its place, not the first one. */
static void an_entry_may_leave_while_it_is_read_twice(void **state)
{
    struct reader first = { .r = { .index = 1, .done = on_read } }, second = first;
    struct world w;

    (void)state;
    world_with_large_entries(&w);
    quorum_log_read(w.log, &first.r);
    w.disk.hold_reads = true;
    quorum_log_read(w.log, &second.r);
    quorum_log_trim(w.log, 4);
    segments_go_round(&w);
    assert_int_equal(w.failed, 0);
    assert_true(first.is_done && !second.is_done);
    assert_int_equal(first.rc, -ENOENT);
    w.disk.hold_reads = false;
    memdisk_release(&w.disk);
    env_virtual_run_until_idle(&w.v, 1000);
    assert_true(second.is_done);
    assert_int_equal(second.rc, -ENOENT);
    segments_go_round(&w); /* the place can be used again */
    assert_int_equal(w.persisted, w.last);
    stop(&w);
    world_free(&w);
}

/* A start looks at the lists of members that the store lacks; it cannot read them. */
static void lists_of_members_stay_in_memory(void **state)
{
    struct quorum_entry *entry;
    struct world w;

    (void)state;
    world_init(&w, 6);
    assert_int_equal(start(&w), 0);
    entry = entry_new(++w.last, 1, 100);
    entry->e.kind = RAFT_ENTRY_CONFIG;
    w.terms[w.last] = 1;
    quorum_log_append(w.log, &entry, 1);
    quorum_entry_free(entry);
    for (unsigned i = 0; i < 4; i++)
        append_sized(&w, 1, 600 << 10); /* memory_bytes is 1 MiB */
    env_virtual_run_until_idle(&w.v, 1000);
    for (unsigned run = 0; run < 2; run++) {
        assert_non_null(quorum_log_get(w.log, 1, NULL).data);
        assert_null(quorum_log_get(w.log, 2, NULL).data);
        expect_log(&w, 1, w.last);
        stop(&w);
        assert_int_equal(start(&w), 0);
    }
    stop(&w);
    world_free(&w);
}

/* Finds the first place of this text in a segment on the disk. Returns NULL if it is not
 * there. */
static struct disk_file *find(struct world *w, const uint8_t *text, size_t len,
                              size_t *at)
{
    uint8_t *bytes = malloc(2 << 20);
    struct disk_file *found = NULL;

    for (unsigned i = 0; i < w->disk.n_files && found == NULL; i++) {
        struct disk_file *f = w->disk.files[i];

        if (strncmp(f->path, "journal/", 8) != 0)
            continue;
        memdisk_peek(f, 0, bytes, 2 << 20);
        for (*at = 0; *at + len < 2 << 20 && found == NULL; ++*at)
            if (memcmp(bytes + *at, text, len) == 0)
                found = f;
    }
    free(bytes);
    --*at; /* the loop went on by one */
    return found;
}

/* Changes a byte of this text. Returns false if it is not there. */
static bool rot(struct world *w, const uint8_t *text, size_t len)
{
    size_t at;
    struct disk_file *f = find(w, text, len, &at);
    uint8_t byte;

    if (f == NULL)
        return false;
    byte = text[len - 1] ^ 1;
    memdisk_poke(&w->disk, f, at + len - 1, &byte, 1);
    return true;
}

/* Erases the frame of an entry of LARGE_BYTES, with both copies of its head. */
static void wipe(struct world *w, uint64_t index, uint64_t term)
{
    static const uint8_t zeros[LARGE_FRAME_BYTES];
    uint8_t head[16];
    struct disk_file *f;
    size_t at;

    put_le64(head, index);
    put_le64(head + 8, term);
    f = find(w, head, sizeof(head), &at);
    assert_non_null(f);
    memdisk_poke(&w->disk, f, at - WAL_FRAME_HEADER_BYTES, zeros, sizeof(zeros));
}

/* The power fails before the log has noted that its last sync has ended. */
static void power_fails(struct world *w)
{
    w->disk.is_cut = true;
    w->disk.hold_syncs = false;
    memdisk_release(&w->disk);
    stop(w);
    memdisk_power_cut(&w->disk);
}

/* Five entries; 4 and 5 are replaced, and the wal notes or does not note that this is
 * stable. */
static void world_with_replaced_entries(struct world *w, bool is_noted)
{
    world_init(w, 8);
    assert_int_equal(start(w), 0);
    for (unsigned i = 0; i < 5; i++)
        append_sized(w, 1, LARGE_BYTES);
    env_virtual_run_until_idle(&w->v, 1000);
    truncate_from(w, 4);
    for (unsigned i = 0; i < 2; i++)
        append_sized(w, 2, LARGE_BYTES);
    if (is_noted)
        env_virtual_run_until_idle(&w->v, 1000);
    else
        env_virtual_run_posted(&w->v);
    assert_int_equal(w->written, 5);
    power_fails(w);
}

/* The disk kept entry 5 of term 2 but nothing of the one before it. Entry 4 of term 1 is
 * no part of that log. */
static void entries_behind_a_hole_do_not_count(void **state)
{
    struct world w;

    (void)state;
    world_with_replaced_entries(&w, false);
    wipe(&w, 4, 2);
    w.terms[4] = w.terms[5] = 1;
    w.last = 5;
    for (unsigned i = 0; i < 3; i++) { /* entries of later runs count */
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->lost, 0);
        expect_log(&w, 1, w.last);
        quorum_log_forget_old(w.log);
        append_sized(&w, 3, LARGE_BYTES);
        env_virtual_run_until_idle(&w.v, 1000);
        stop(&w);
    }
    world_free(&w);
}

static void a_hole_in_what_was_stable_is_a_loss(void **state)
{
    struct world w;

    (void)state;
    world_with_replaced_entries(&w, true);
    wipe(&w, 4, 2);
    w.terms[4] = w.terms[5] = 1;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->lost, 6);
        expect_log(&w, 1, 5);
        stop(&w);
    }
    world_free(&w);
}

/* A start makes stable what it finds, and notes that: the next start knows that the last
 * entry of the run before is missing, though no frame of that run says so. */
static void the_end_of_a_former_run_is_not_lost_in_silence(void **state)
{
    struct world w;

    (void)state;
    world_with_replaced_entries(&w, false);
    assert_int_equal(start(&w), 0);
    expect_log(&w, 1, 5);
    append_sized(&w, 3, LARGE_BYTES);
    env_virtual_run_until_idle(&w.v, 1000);
    stop(&w);
    wipe(&w, 5, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(start(&w), 0);
        assert_int_not_equal(quorum_log_found(w.log)->lost, 0);
        assert_true(quorum_log_last(w.log) <= 5);
        stop(&w);
    }
    world_free(&w);
}

static void a_segment_begins_when_those_before_are_stable(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 9);
    assert_int_equal(start(&w), 0);
    w.disk.hold_syncs = true;
    for (unsigned i = 0; i < 300; i++)
        append_sized(&w, 1, LARGE_BYTES);
    env_virtual_run_posted(&w.v);
    assert_true(w.written > 100 && w.written < (2 << 20) / LARGE_FRAME_BYTES);
    w.disk.hold_syncs = false;
    memdisk_release(&w.disk);
    env_virtual_run_until_idle(&w.v, 1000);
    assert_int_equal(w.persisted, 300);
    expect_log(&w, 1, 300);
    stop(&w);
    world_free(&w);
}

/* A read keeps the segment of an old entry; the newer ones are no longer wanted. A crash
 * then must not leave the old entries alone: a log that ends before the store has lost
 * something. */
static void trimmed_entries_leave_in_order(void **state)
{
    struct reader reader = { .r = { .index = 1, .done = on_read } };
    struct world w;

    (void)state;
    world_init(&w, 5);
    assert_int_equal(start(&w), 0);
    quorum_log_forget_old(w.log);
    for (unsigned i = 0; i < 12; i++)
        append_sized(&w, 1, 600 << 10);
    env_virtual_run_until_idle(&w.v, 1000);
    assert_int_equal(w.persisted, 12);
    w.disk.hold_reads = true;
    quorum_log_read(w.log, &reader.r);
    quorum_log_trim(w.log, 13);
    env_virtual_advance_ms(&w.v, 5000);
    w.disk.is_cut = true;
    w.disk.hold_reads = false;
    memdisk_release(&w.disk);
    stop(&w);
    memdisk_power_cut(&w.disk);
    assert_int_equal(start(&w), 0);
    assert_int_equal(quorum_log_found(w.log)->lost, 0);
    assert_int_equal(quorum_log_last(w.log), 12);
    stop(&w);
    world_free(&w);
}

static void lost_entries_are_told_until_they_are_there_again(void **state)
{
    uint8_t text[200];
    struct world w;

    (void)state;
    world_init(&w, 5);
    assert_int_equal(start(&w), 0);
    for (unsigned i = 0; i < 20; i++) {
        append_sized(&w, 1, 1000);
        env_virtual_run_until_idle(&w.v, 1000);
    }
    stop(&w);
    for (uint32_t i = 0; i < sizeof(text); i++)
        text[i] = data_byte(7, 1, i);
    assert_true(rot(&w, text, sizeof(text)));
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->lost, 7);
        expect_log(&w, 1, 6);
        if (i < 2)
            stop(&w);
    }
    w.last = 6;
    for (unsigned i = 7; i <= 20; i++)
        append_sized(&w, 1, 1000);
    env_virtual_run_until_idle(&w.v, 1000);
    quorum_log_forget_old(w.log);
    env_virtual_run_until_idle(&w.v, 1000);
    expect_log(&w, 1, 20);
    stop(&w);
    assert_int_equal(start(&w), 0);
    assert_int_equal(quorum_log_found(w.log)->lost, 0);
    expect_log(&w, 1, 20);
    stop(&w);
    world_free(&w);
}

/* The newest entries cannot be read, nor the note behind them that they were synced. */
static void pages_at_the_end_that_cannot_be_read_are_a_loss(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, 7);
    assert_int_equal(start(&w), 0);
    for (unsigned i = 0; i < 3; i++) {
        append_sized(&w, 1, 200);
        env_virtual_run_until_idle(&w.v, 1000);
    }
    stop(&w);
    for (uint64_t page = 3; page < 20; page++)
        memdisk_spoil(memdisk_find(&w.disk, "journal/0.0"), page * MEM_PAGE);
    assert_int_equal(start(&w), 0);
    assert_true(quorum_log_last(w.log) < 3);
    assert_int_equal(quorum_log_found(w.log)->lost, quorum_log_last(w.log) + 1);
    stop(&w);
    world_free(&w);
}

/* Damages copies of the vote, a bit for each: other bytes, or a page that cannot be
 * read. */
static void vote_damage(struct world *w, unsigned copies, bool is_unreadable)
{
    const uint8_t junk[QUORUM_VOTE_BYTES] = { 1 };
    struct disk_file *f = memdisk_find(&w->disk, "vote");

    assert_non_null(f);
    for (unsigned copy = 0; copy < 2; copy++) {
        uint64_t at = (uint64_t)copy * QUORUM_VOTE_PAGE_BYTES;

        if ((copies >> copy & 1) == 0)
            continue;
        if (is_unreadable)
            memdisk_spoil(f, at);
        else
            memdisk_poke(&w->disk, f, at, junk, sizeof(junk));
    }
}

static void one_copy_of_the_vote_is_enough(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        unsigned damaged = 1 + i % 3;
        struct world w;

        world_init(&w, 6);
        assert_int_equal(start(&w), 0);
        quorum_log_vote(w.log, 8, 4);
        env_virtual_run_until_idle(&w.v, 1000);
        quorum_log_vote(w.log, 9, 5);
        stop(&w);
        vote_damage(&w, damaged, i >= 3);
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->vote_is_damaged, damaged == 3);
        assert_int_equal(quorum_log_found(w.log)->term, damaged == 3 ? 0 : 9);
        assert_int_equal(quorum_log_found(w.log)->vote, damaged == 3 ? 0 : 5);
        quorum_log_vote(w.log, 10, 6); /* makes both whole */
        stop(&w);
        vote_damage(&w, 3 - damaged, i >= 3);
        assert_int_equal(start(&w), 0);
        assert_int_equal(quorum_log_found(w.log)->term, 10);
        stop(&w);
        world_free(&w);
    }
}

static void found_stays(struct world *w)
{
    uint64_t term;

    assert_int_equal(start(w), 0);
    term = quorum_log_found(w->log)->term;
    w->disk.is_cut = true;
    stop(w);
    memdisk_power_cut(&w->disk);
    assert_int_equal(start(w), 0);
    assert_int_equal(quorum_log_found(w->log)->term, term);
    stop(w);
    vote_damage(w, 1, false); /* the other copy has it, too */
    assert_int_equal(start(w), 0);
    assert_int_equal(quorum_log_found(w->log)->term, term);
    stop(w);
}

/* A process is killed while it saves a vote. The next one finds it in the page cache, and
 * may act on it. */
static void a_vote_that_a_start_finds_stays(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 80; i++) {
        struct world w;

        world_init(&w, i);
        assert_int_equal(start(&w), 0);
        quorum_log_vote(w.log, 8, 4);
        env_virtual_run_until_idle(&w.v, 1000);
        w.disk.cut_at =
            w.disk.n_requests + 1 + i % 4; /* before a write or sync of a copy */
        quorum_log_vote(w.log, 9, 5);
        env_virtual_run_until_idle(&w.v, 1000);
        stop(&w);
        w.disk.is_cut = false;
        w.disk.cut_at = 0;
        found_stays(&w);
        world_free(&w);
    }
}

static void vote(struct world *w, uint64_t term)
{
    w->asked = (struct quorum_ballot){ term, term * 10 };
    quorum_log_vote(w->log, term, term * 10);
}

/* One life of a member, until the power fails or the end. */
static void live(struct world *w, uint64_t term)
{
    vote(w, term);
    append(w, term, 3);
    env_virtual_run_posted(&w->v);
    vote(w, term + 1);
    append(w, term + 1, 2);
    env_virtual_run_until_idle(&w->v, 1000);
    if (w->last > 3 && !w->disk.is_cut)
        truncate_from(w, w->last - 1);
    append(w, term + 2, 3);
    vote(w, term + 2);
    env_virtual_run_until_idle(&w->v, 1000);
}

static void check_after_cut(struct world *w)
{
    const struct quorum_log_found *found = quorum_log_found(w->log);

    assert_int_equal(found->lost, 0);
    assert_false(found->vote_is_damaged);
    assert_true(found->term >= w->saved.term && found->term <= w->asked.term);
    assert_int_equal(found->vote, found->term * 10);
    assert_true(quorum_log_last(w->log) >= w->persisted);
    for (uint64_t i = 1; i <= w->persisted; i++)
        expect_data(w, i);
}

static void a_loss_of_power_takes_nothing_that_is_persisted(void **state)
{
    (void)state;
    for (unsigned cut = 1;; cut++) {
        struct world w;
        bool was_cut;

        world_init(&w, cut);
        w.disk.cut_at = cut;
        if (start(&w) == 0)
            live(&w, 1);
        was_cut = w.disk.is_cut;
        if (w.start_rc == 0 && !was_cut)
            stop(&w);
        else if (w.start_rc != 0)
            quorum_log_free(w.log);
        else
            stop(&w);
        memdisk_power_cut(&w.disk);
        assert_int_equal(start(&w), 0);
        check_after_cut(&w);
        w.last = quorum_log_last(w.log);
        for (uint64_t i = 1; i <= w.last; i++)
            w.terms[i] = quorum_log_get(w.log, i, NULL).term;
        quorum_log_forget_old(w.log);
        w.persisted = 0;
        live(&w, 10);
        assert_int_equal(w.persisted, w.last);
        stop(&w);
        assert_int_equal(start(&w), 0);
        check_after_cut(&w);
        stop(&w);
        world_free(&w);
        if (!was_cut)
            break;
    }
}

/* The states of a log, from the one that its last start found on. */
struct states {
    unsigned n, stable; /* number of states; the newest one that was persisted */
    uint64_t last[64];
    uint64_t terms[64][64];
};

static void state_add(struct states *s, const struct world *w)
{
    assert_true(s->n < 64 && w->last < 64);
    s->last[s->n] = w->last;
    memcpy(s->terms[s->n], w->terms, sizeof(s->terms[0]));
    s->n++;
}

/* Appends and replaces entries of all sizes, and lets some of it become stable. */
static void write_some(struct world *w, struct states *s, uint64_t term)
{
    unsigned n = 4 + (unsigned)env_virtual_below(&w->v, 8);
    unsigned n_stable = (unsigned)env_virtual_below(&w->v, n);

    for (unsigned i = 0; i < n; i++) {
        uint64_t back = env_virtual_below(&w->v, 4);

        w->disk.hold_syncs = i >= n_stable;

        if (back > 0 && back < w->last) {
            truncate_from(w, w->last - back + 1);
            state_add(s, w);
        }
        append_sized(w, term + i, 1 + (uint32_t)env_virtual_below(&w->v, 9000));
        state_add(s, w);
        if (env_virtual_below(&w->v, 4) == 0) {
            env_virtual_run_until_idle(&w->v, env_virtual_below(&w->v, 3) * 100);
            if (w->persisted == w->last)
                s->stable = s->n - 1;
        }
    }
    env_virtual_run_posted(&w->v);
}

/* The log that is found is a state that the log had, not before the newest stable one. */
static void expect_a_state(struct world *w, const struct states *s)
{
    uint64_t last = quorum_log_last(w->log);
    bool is_found = false;

    assert_int_equal(quorum_log_found(w->log)->lost, 0);
    for (uint64_t i = 1; i <= last; i++)
        w->terms[i] = quorum_log_get(w->log, i, NULL).term;
    for (unsigned k = s->stable; k < s->n; k++)
        is_found |= s->last[k] == last && memcmp(s->terms[k] + 1, w->terms + 1,
                                                 last * sizeof(w->terms[0])) == 0;
    assert_true(is_found);
    w->last = w->persisted = last;
    expect_log(w, 1, last);
}

static void a_loss_of_power_leaves_a_log_that_was(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 300; seed += UNIT_STEP) {
        struct states *s = calloc(1, sizeof(*s));
        struct world w;

        world_init(&w, seed);
        for (uint64_t life = 0; life < 4; life++) {
            assert_int_equal(start(&w), 0);
            if (life > 0)
                expect_a_state(&w, s);
            if (life % 2 == 1)
                quorum_log_forget_old(w.log);
            s->n = s->stable = 0;
            state_add(s, &w);
            write_some(&w, s, 1 + life * 100);
            power_fails(&w);
        }
        free(s);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_finds_entries_and_vote),
        cmocka_unit_test(entries_that_are_found_are_synced),
        cmocka_unit_test(a_sync_may_wait),
        cmocka_unit_test(the_log_knows_whether_the_power_failed),
        cmocka_unit_test(a_damaged_boot_record_counts_once),
        cmocka_unit_test(space_is_used_again),
        cmocka_unit_test(entries_wait_for_space),
        cmocka_unit_test(entries_that_wait_are_replaced),
        cmocka_unit_test(an_entry_may_leave_while_it_is_read),
        cmocka_unit_test(an_entry_may_leave_while_it_is_read_twice),
        cmocka_unit_test(lists_of_members_stay_in_memory),
        cmocka_unit_test(trimmed_entries_leave_in_order),
        cmocka_unit_test(lost_entries_are_told_until_they_are_there_again),
        cmocka_unit_test(pages_at_the_end_that_cannot_be_read_are_a_loss),
        cmocka_unit_test(entries_behind_a_hole_do_not_count),
        cmocka_unit_test(a_hole_in_what_was_stable_is_a_loss),
        cmocka_unit_test(the_end_of_a_former_run_is_not_lost_in_silence),
        cmocka_unit_test(a_segment_begins_when_those_before_are_stable),
        cmocka_unit_test(one_copy_of_the_vote_is_enough),
        cmocka_unit_test(a_vote_that_a_start_finds_stays),
        cmocka_unit_test(a_loss_of_power_takes_nothing_that_is_persisted),
        cmocka_unit_test(a_loss_of_power_leaves_a_log_that_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
