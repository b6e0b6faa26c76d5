/*
 * quorum_log.c - the entries of the log: append, truncate, trim, read.
 *
 * In:     calls of the member; ends of appends, syncs and reads.
 * Out:    wal_append() for each entry, one wal_sync() at a time; hooks.
 * Keeps:  entries have consecutive indexes; an entry is reported as persisted only after
 *         a sync that covers it and all before it. After one that found no space, all
 *         behind it are written again, so those on disk have no gap.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/quorum/log/quorum_log_in.h"

/* Head: 0 index, 8 term, 16 kind, 20 bytes of data, 24 crc of the data, 28 zero. */
enum { AT_TERM = 8, AT_KIND = 16, AT_LEN = 20, AT_CRC = 24 };

enum { LINES_MIN = 1024 };

static void head_put(uint8_t p[QUORUM_LOG_HEAD_BYTES], const struct raft_log_entry *e)
{
    memset(p, 0, QUORUM_LOG_HEAD_BYTES);
    put_le64(p, e->index);
    put_le64(p + AT_TERM, e->term);
    put_le32(p + AT_KIND, (uint32_t)e->kind);
    put_le32(p + AT_LEN, e->len);
    put_le32(p + AT_CRC, codec_crc32c(0, e->data, e->len));
}

int quorum_log_head_get(const uint8_t *p, size_t len, struct raft_log_entry *e)
{
    if (len < QUORUM_LOG_HEAD_BYTES)
        return -ROZO_EDAMAGED;
    *e = (struct raft_log_entry){
        .index = get_le64(p),
        .term = get_le64(p + AT_TERM),
        .kind = (enum raft_entry_kind)get_le32(p + AT_KIND),
        .len = get_le32(p + AT_LEN),
    };
    if (e->index == 0 || e->index > RAFT_NUMBER_MAX || e->term == 0 ||
        e->term > RAFT_NUMBER_MAX || e->len == 0 || e->len > RAFT_ENTRY_BYTES_MAX ||
        e->kind < RAFT_ENTRY_BATCH || e->kind > RAFT_ENTRY_CONFIG)
        return -ROZO_EDAMAGED;
    return 0;
}

bool quorum_log_data_is_right(const uint8_t head[QUORUM_LOG_HEAD_BYTES], const void *data,
                              size_t len)
{
    return len == get_le32(head + AT_LEN) &&
           get_le32(head + AT_CRC) == codec_crc32c(0, data, len);
}

/* ---- lines ---- */

struct line *quorum_log_line(const struct quorum_log *log, uint64_t index)
{
    assert(index >= log->first && index < log->first + log->n);
    return &log->lines[(log->begin + (index - log->first)) % log->room];
}

int quorum_log_reserve(struct quorum_log *log)
{
    size_t room = log->room == 0 ? LINES_MIN : log->room * 2;
    struct line *lines;

    if (log->n < log->room)
        return 0;
    lines = malloc(room * sizeof(*lines));
    if (lines == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < log->n; i++)
        lines[i] = *quorum_log_line(log, log->first + i);
    free(log->lines);
    log->lines = lines;
    log->room = room;
    log->begin = 0;
    return 0;
}

static size_t line_bytes(const struct line *line)
{
    return sizeof(*line->entry) + line->len;
}

/* Returns whether the entry waits for space. */
static bool is_waiting(const struct quorum_log *log, uint64_t index)
{
    return log->full_from != 0 && index >= log->full_from;
}

/* Frees entries in memory, oldest first, that can be read from the disk. */
static void memory_trim(struct quorum_log *log)
{
    while (log->memory > log->config.memory_bytes) {
        struct line *line;

        if (log->in_memory < log->first)
            log->in_memory = log->first;
        if (log->in_memory >= log->first + log->n)
            return;
        line = quorum_log_line(log, log->in_memory);
        if (line->append != NULL || is_waiting(log, log->in_memory))
            return;
        quorum_log_line_clear(log, line);
        log->in_memory++;
    }
}

void quorum_log_line_clear(struct quorum_log *log, struct line *line)
{
    /* A start looks at the lists of members before it can read anything. */
    if (line->entry == NULL || line->kind == RAFT_ENTRY_CONFIG)
        return;
    log->memory -= line_bytes(line);
    quorum_entry_free(line->entry);
    line->entry = NULL;
}

void quorum_log_line_set(struct quorum_log *log, struct line *line,
                         struct quorum_entry *entry)
{
    line->entry = entry;
    log->memory += line_bytes(line);
}

/* Lets the reads of this entry that are under way free its place. Returns false if there
 * are none. */
static bool reads_drop(const struct quorum_log *log, uint64_t index)
{
    bool is_read = false;

    LIST_FOREACH(node, &log->reads) {
        struct quorum_log_read *r = container_of(node, struct quorum_log_read, link);

        if (r->index != index || r->is_dropped)
            continue;
        r->is_dropped = is_read = true;
    }
    return is_read;
}

/* Returns whether another read of the same place is under way. */
static bool is_read_again(const struct quorum_log *log, const struct wal_place *place)
{
    LIST_FOREACH(node, &log->reads) {
        const struct wal_place *other =
            &container_of(node, struct quorum_log_read, link)->place;

        if (other->segment == place->segment && other->offset == place->offset)
            return true;
    }
    return false;
}

/* Frees what the line of an entry holds. An append or a read under way frees its place
 * when it ends. */
static void line_drop(struct quorum_log *log, uint64_t index)
{
    struct line *line = quorum_log_line(log, index);

    if (line->entry != NULL) {
        assert(log->memory >= line_bytes(line));
        log->memory -= line_bytes(line);
        quorum_entry_free(line->entry);
    }
    if (line->append != NULL)
        line->append->is_dropped = true;
    else if (!reads_drop(log, index) && !is_waiting(log, index))
        wal_release(log->wal, &line->place);
}

/* ---- writing ---- */

static void fail(struct quorum_log *log, int rc)
{
    if (log->error != 0)
        return;
    log->error = rc;
    log->config.hooks->failed(log->config.hooks->arg, rc);
}

/* Lets a sync report no entry from this one on. */
static void sync_cut(const struct quorum_log *log, struct raft_log_entry *e,
                     uint64_t from)
{
    if (e->index < from)
        return;
    *e = from > log->first ? quorum_log_get(log, from - 1, NULL)
                           : (struct raft_log_entry){ .index = 0 };
}

/* The entry found no space: it waits, and all behind it. */
static void wait_for_space(struct quorum_log *log, uint64_t index)
{
    bool is_first = log->full_from == 0;

    if (is_waiting(log, index))
        return;
    log->full_from = index;
    sync_cut(log, &log->newest, index);
    sync_cut(log, &log->syncing, index);
    if (!is_first || log->state != LOG_RUNS)
        return;
    log->is_full = true;
    env_timer_start(log->config.env, &log->retry, QUORUM_LOG_RETRY_MS);
    log->config.hooks->full(log->config.hooks->arg, true);
}

/* The append of an entry that is in the log has ended. */
static void line_written(struct quorum_log *log, struct log_append *op, int rc)
{
    uint64_t index = op->head_of.index;
    struct line *line = quorum_log_line(log, index);

    assert(line->append == op);
    line->append = NULL;
    if (rc == -ENOSPC) {
        wait_for_space(log, index);
    } else if (rc != 0) {
        fail(log, rc);
    } else if (is_waiting(log, index)) { /* lies behind a gap */
        wal_release(log->wal, &op->append.place);
    } else {
        line->place = op->append.place;
        memory_trim(log);
        if (log->is_full && log->full_from == 0) {
            log->is_full = false;
            log->config.hooks->full(log->config.hooks->arg, false);
        }
        if (log->error == 0)
            log->config.hooks->written(log->config.hooks->arg, op->head_of.index,
                                       op->head_of.term);
    }
}

static void on_appended(struct wal_append *a, int rc)
{
    struct log_append *op = container_of(a, struct log_append, append);
    struct quorum_log *log = op->log;

    assert(log->n_appending > 0);
    log->n_appending--;
    if (!op->is_dropped)
        line_written(log, op, rc);
    else if (rc == 0)
        wal_release(log->wal, &a->place);
    else if (rc != -ENOSPC)
        fail(log, rc);
    quorum_entry_free(op->entry);
    free(op);
    quorum_log_stop_look(log);
}

static void sync_next(struct quorum_log *log);

static void on_synced(struct wal_wait *w, int rc)
{
    struct quorum_log *log = container_of(w, struct quorum_log, wait);

    assert(log->is_syncing);
    log->is_syncing = false;
    if (wal_failures(log->wal) > 0) /* a sync of the wal itself failed before */
        rc = -EIO;
    if (rc != 0)
        fail(log, rc);
    else if (log->error == 0 && log->syncing.index != 0)
        log->config.hooks->persisted(log->config.hooks->arg, log->syncing.index,
                                     log->syncing.term);
    sync_next(log);
    quorum_log_stop_look(log);
}

static void on_stable_already(struct env_task *task)
{
    on_synced(container_of(task, struct wal_wait, task), 0);
}

/* Returns whether the next sync begins now; otherwise a timer begins it. */
static bool sync_is_due(struct quorum_log *log)
{
    if (!log->may_wait || log->is_due || log->n_waiting >= QUORUM_LOG_WAIT_ENTRIES ||
        log->waiting_bytes >= QUORUM_LOG_WAIT_BYTES)
        return true;
    if (!env_timer_is_running(&log->wait_timer))
        env_timer_start(log->config.env, &log->wait_timer, QUORUM_LOG_WAIT_MS);
    return false;
}

static void sync_next(struct quorum_log *log)
{
    if (log->is_syncing || log->error != 0 || log->newest.index == 0 || !sync_is_due(log))
        return;
    env_timer_stop(log->config.env, &log->wait_timer);
    log->is_due = false;
    log->n_waiting = 0;
    log->waiting_bytes = 0;
    log->syncing = log->newest;
    log->newest.index = 0;
    log->is_syncing = true;
    if (wal_sync(log->wal, &log->wait)) { /* all is stable already */
        log->wait.task = (struct env_task){ .fn = on_stable_already };
        env_post(log->config.env, &log->wait.task);
    }
}

static void on_wait_timer(struct env_timer *timer)
{
    struct quorum_log *log = container_of(timer, struct quorum_log, wait_timer);

    log->is_due = true;
    sync_next(log);
}

void quorum_log_may_wait(struct quorum_log *log, bool may_wait)
{
    log->may_wait = may_wait && log->config.is_lazy;
    sync_next(log);
}

/* Writes an entry of the log, which is in memory. */
static void line_write(struct quorum_log *log, struct line *line)
{
    struct log_append *op = calloc(1, sizeof(*op));
    struct quorum_entry *entry = line->entry;

    if (op == NULL) {
        fail(log, -ENOMEM);
        return;
    }
    line->append = op;
    op->log = log;
    op->entry = quorum_entry_use(entry);
    op->head_of = entry->e;
    head_put(op->head, &entry->e);
    op->iov[0] = (struct iovec){ op->head, QUORUM_LOG_HEAD_BYTES };
    op->iov[1] = (struct iovec){ entry->bytes, entry->e.len };
    op->append = (struct wal_append){
        .kind = QUORUM_LOG_KIND,
        .iov = op->iov,
        .n_iov = 2,
        .len = QUORUM_LOG_HEAD_BYTES + entry->e.len,
        .head_len = QUORUM_LOG_HEAD_BYTES,
        .done = on_appended,
    };
    log->n_appending++;
    log->n_waiting++;
    log->waiting_bytes += op->append.len;
    log->newest = entry->e;
    wal_append(log->wal, &op->append);
}

/* Writes the entries that wait, once the writes behind the gap have ended. */
static void on_retry(struct env_timer *timer)
{
    struct quorum_log *log = container_of(timer, struct quorum_log, retry);
    uint64_t from = log->full_from;

    if (log->state != LOG_RUNS || log->error != 0 || from == 0)
        return;
    if (log->n_appending > 0) {
        env_timer_start(log->config.env, &log->retry, QUORUM_LOG_RETRY_MS);
        return;
    }
    log->full_from = 0;
    for (; from < log->first + log->n && log->error == 0; from++)
        line_write(log, quorum_log_line(log, from));
    sync_next(log);
}

static void append_one(struct quorum_log *log, struct quorum_entry *entry)
{
    struct line *line;

    if (quorum_log_reserve(log) != 0) {
        fail(log, -ENOMEM);
        return;
    }
    if (log->n == 0)
        log->first = log->in_memory = entry->e.index;
    assert(entry->e.index == log->first + log->n);
    log->n++;
    line = quorum_log_line(log, entry->e.index);
    *line = (struct line){
        .term = entry->e.term,
        .len = entry->e.len,
        .kind = (uint8_t)entry->e.kind,
    };
    quorum_log_line_set(log, line, quorum_entry_use(entry));
    if (!is_waiting(log, entry->e.index))
        line_write(log, line);
}

void quorum_log_append(struct quorum_log *log, struct quorum_entry *const *entries,
                       unsigned n)
{
    assert(log->state == LOG_RUNS && n > 0);
    for (unsigned i = 0; i < n && log->error == 0; i++)
        append_one(log, entries[i]);
    sync_next(log);
}

void quorum_log_truncate(struct quorum_log *log, uint64_t from)
{
    assert(from >= log->first);
    while (log->n > 0 && log->first + log->n > from) {
        line_drop(log, log->first + log->n - 1);
        log->n--;
    }
    if (log->in_memory > from)
        log->in_memory = from;
    if (log->full_from >= from)
        log->full_from = 0; /* none of those that wait is left */
}

void quorum_log_trim(struct quorum_log *log, uint64_t first)
{
    assert(first <= log->first + log->n);
    while (log->n > 0 && log->first < first) {
        line_drop(log, log->first);
        log->begin = (log->begin + 1) % log->room;
        log->first++;
        log->n--;
    }
}

void quorum_log_vote(struct quorum_log *log, uint64_t term, uint64_t vote)
{
    assert(log->state == LOG_RUNS);
    quorum_vote_save(&log->vote, (struct quorum_ballot){ term, vote });
}

/* ---- reading ---- */

uint64_t quorum_log_first(const struct quorum_log *log)
{
    return log->first;
}

uint64_t quorum_log_last(const struct quorum_log *log)
{
    return log->first + log->n - 1;
}

struct raft_log_entry quorum_log_get(const struct quorum_log *log, uint64_t index,
                                     struct quorum_entry **entry)
{
    const struct line *line = quorum_log_line(log, index);

    if (entry != NULL)
        *entry = line->entry;
    return (struct raft_log_entry){
        .index = index,
        .term = line->term,
        .kind = (enum raft_entry_kind)line->kind,
        .len = line->len,
        .data = line->entry == NULL ? NULL : line->entry->bytes,
    };
}

static void read_end(struct quorum_log_read *r, int rc)
{
    struct quorum_log *log = r->log;
    struct quorum_entry *entry = rc == 0 ? r->entry : NULL;

    if (rc != 0)
        quorum_entry_free(r->entry);
    r->entry = NULL;
    list_remove(&r->link);
    if (r->is_dropped && !is_read_again(log, &r->place))
        wal_release(log->wal, &r->place);
    r->done(r, rc, entry);
    quorum_log_stop_look(log);
}

static void on_read(struct disk_req *dr, int rc)
{
    struct quorum_log_read *r = dr->arg;
    struct raft_log_entry e;

    if (r->is_dropped)
        rc = -ENOENT;
    if (rc == 0 && dr->n_read != QUORUM_LOG_HEAD_BYTES + r->entry->e.len)
        rc = -ROZO_EDAMAGED;
    if (rc == 0)
        rc = quorum_log_head_get(r->head, sizeof(r->head), &e);
    if (rc == 0 && (e.index != r->index || e.term != r->entry->e.term ||
                    e.kind != r->entry->e.kind ||
                    !quorum_log_data_is_right(r->head, r->entry->bytes, e.len)))
        rc = -ROZO_EDAMAGED;
    read_end(r, rc);
}

static void on_no_memory(struct env_task *task)
{
    read_end(container_of(task, struct quorum_log_read, task), -ENOMEM);
}

void quorum_log_read(struct quorum_log *log, struct quorum_log_read *r)
{
    const struct line *line = quorum_log_line(log, r->index);

    assert(line->entry == NULL && line->append == NULL && log->state == LOG_RUNS);
    r->log = log;
    r->place = line->place;
    r->is_dropped = false;
    list_add_tail(&log->reads, &r->link);
    r->entry = quorum_entry_new((enum raft_entry_kind)line->kind, line->len);
    if (r->entry == NULL) {
        r->task = (struct env_task){ .fn = on_no_memory };
        env_post(log->config.env, &r->task);
        return;
    }
    r->entry->e.index = r->index;
    r->entry->e.term = line->term;
    r->iov[0] = (struct iovec){ r->head, QUORUM_LOG_HEAD_BYTES };
    r->iov[1] = (struct iovec){ r->entry->bytes, line->len };
    r->dr = (struct disk_req){
        .op = DISK_READ,
        .file = r->place.file,
        .offset = r->place.offset,
        .len = QUORUM_LOG_HEAD_BYTES + line->len,
        .iov = r->iov,
        .n_iov = 2,
        .done = on_read,
        .arg = r,
    };
    disk_submit(log->config.disk, &r->dr);
}

uint64_t quorum_log_used_bytes(const struct quorum_log *log)
{
    return wal_used_bytes(log->wal);
}

/* ---- the end ---- */

static void on_wal_stopped(void *arg)
{
    struct quorum_log *log = arg;

    log->state = LOG_STOPPED;
    log->stopped(log->stopped_arg);
}

void quorum_log_stop_look(struct quorum_log *log)
{
    if (log->state != LOG_STOPS || log->n_appending > 0 || log->is_syncing ||
        !list_is_empty(&log->reads) || log->is_forgetting ||
        !quorum_vote_is_idle(&log->vote) || !quorum_boot_is_idle(&log->boot))
        return;
    if (log->error == 0 && quorum_boot_end(&log->boot))
        return;
    log->state = LOG_WAL_STOPS;
    wal_stop(log->wal, on_wal_stopped, log);
}

static void on_stop_task(struct env_task *task)
{
    struct quorum_log *log = container_of(task, struct quorum_log, stop_task);

    quorum_log_may_wait(log, false);
    quorum_log_stop_look(log);
}

void quorum_log_boot_saved(void *arg, int rc)
{
    struct quorum_log *log = arg;

    if (rc != 0)
        fail(log, rc);
    else if (log->state == LOG_RUNS && log->is_beginning)
        log->config.hooks->begun(log->config.hooks->arg);
    log->is_beginning = false;
    quorum_log_stop_look(log);
}

bool quorum_log_begin(struct quorum_log *log, uint64_t loss_term)
{
    assert(log->state == LOG_RUNS);
    log->is_beginning = quorum_boot_begin(&log->boot, loss_term);
    return log->is_beginning;
}

void quorum_log_loss_counted(struct quorum_log *log)
{
    quorum_boot_counted(&log->boot);
}

void quorum_log_stop(struct quorum_log *log, void (*done)(void *arg), void *arg)
{
    assert(log->state == LOG_RUNS);
    log->state = LOG_STOPS;
    env_timer_stop(log->config.env, &log->retry);
    log->stopped = done;
    log->stopped_arg = arg;
    env_post(log->config.env, &log->stop_task);
}

int quorum_log_open(const struct quorum_log_config *config, struct quorum_log **out)
{
    struct quorum_log *log = calloc(1, sizeof(*log));

    if (log == NULL)
        return -ENOMEM;
    log->config = *config;
    if (log->config.memory_bytes == 0)
        log->config.memory_bytes = QUORUM_LOG_MEMORY_BYTES;
    if (log->config.segment_bytes == 0)
        log->config.segment_bytes = QUORUM_LOG_SEGMENT_BYTES;
    if (log->config.segments == 0)
        log->config.segments = WAL_SLOTS_MAX;
    log->first = 1;
    list_init(&log->reads);
    log->wait.done = on_synced;
    env_timer_init(&log->retry, on_retry);
    env_timer_init(&log->wait_timer, on_wait_timer);
    log->stop_task.fn = on_stop_task;
    *out = log;
    return 0;
}

void quorum_log_free(struct quorum_log *log)
{
    if (log == NULL)
        return;
    assert(log->n_appending == 0 && list_is_empty(&log->reads) && !log->is_syncing);
    for (uint64_t i = 0; i < log->n; i++)
        quorum_entry_free(quorum_log_line(log, log->first + i)->entry);
    free(log->lines);
    wal_close(log->wal);
    quorum_vote_close(&log->vote);
    quorum_boot_close(&log->boot);
    env_timer_stop(log->config.env, &log->wait_timer);
    free(log);
}
