/*
 * quorum_log_in.h - shared by the files of the log; private to them.
 *
 * quorum_log.c: entries. quorum_log_start.c: reading the disk.
 */
#ifndef ROZO_EXPORTD_QUORUM_QUORUM_LOG_IN_H
#define ROZO_EXPORTD_QUORUM_QUORUM_LOG_IN_H

#include "exportd/quorum/quorum_log.h"
#include "exportd/quorum/quorum_vote.h"

enum { QUORUM_LOG_KIND = 1 }; /* kind of an entry in the write-ahead log */

/* One append under way. */
struct log_append {
    struct wal_append append;
    struct quorum_log *log;
    struct quorum_entry *entry; /* a use of it */
    struct raft_log_entry head_of;
    bool is_dropped; /* truncated meanwhile */
    uint8_t head[QUORUM_LOG_HEAD_BYTES];
    struct iovec iov[2];
};

/* One entry of the log. Its place is valid when no append is under way, and the entry
 * does not wait for space. */
struct line {
    uint64_t term;
    uint32_t len;
    uint8_t kind;
    struct quorum_entry *entry; /* a use of it; NULL: on disk only */
    struct log_append *append;  /* under way; NULL: written */
    struct wal_place place;
};

struct quorum_log {
    struct quorum_log_config config;
    enum { LOG_NEW, LOG_STARTS, LOG_RUNS, LOG_STOPS, LOG_WAL_STOPS, LOG_STOPPED } state;
    struct wal *wal; /* owned */
    struct quorum_vote vote;
    struct quorum_log_found found;
    int error;

    /* Ring of lines: entry i of the log is in lines[(begin + i) % room]. */
    struct line *lines; /* owned */
    size_t room, begin;
    uint64_t first, n;
    uint64_t in_memory; /* no entry before this one is in memory */
    uint64_t memory;    /* bytes of entries in memory */

    unsigned n_appending;
    struct list_node reads; /* under way */
    struct wal_wait wait;
    bool is_syncing;
    struct raft_log_entry syncing; /* the newest one that the sync covers */
    struct raft_log_entry newest;  /* to be covered by the next sync; index 0: none */
    bool is_forgetting;

    /* Entries from this one on wait for space on the disk, in memory; 0: none. */
    uint64_t full_from;
    bool is_full; /* the hook has been called with true */
    struct env_timer retry;

    /* The start. */
    void (*started)(void *arg, int rc);
    void *started_arg;
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct env_task stop_task;
};

void quorum_log_head_put(uint8_t p[QUORUM_LOG_HEAD_BYTES],
                         const struct raft_log_entry *e);
/** Unpacks a head. Returns 0 or -ROZO_EDAMAGED. */
int quorum_log_head_get(const uint8_t *p, size_t len, struct raft_log_entry *e);
bool quorum_log_data_is_right(const uint8_t head[QUORUM_LOG_HEAD_BYTES], const void *data,
                              size_t len);
struct line *quorum_log_line(const struct quorum_log *log, uint64_t index);
/** Makes room for one more line. Returns 0 or -ENOMEM. */
int quorum_log_reserve(struct quorum_log *log);
void quorum_log_line_set(struct quorum_log *log, struct line *line,
                         struct quorum_entry *entry);
/** Goes on with a stop that waits, if nothing is under way any more. */
void quorum_log_stop_look(struct quorum_log *log);

#endif
