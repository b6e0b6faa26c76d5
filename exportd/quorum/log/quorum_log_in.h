/*
 * quorum_log_in.h - shared by the files of the log; private to them.
 *
 * quorum_log.c: entries. quorum_log_start.c: reading the disk. quorum_boot.c: the boot
 * record.
 */
#ifndef ROZO_EXPORTD_QUORUM_LOG_QUORUM_LOG_IN_H
#define ROZO_EXPORTD_QUORUM_LOG_QUORUM_LOG_IN_H

#include "exportd/quorum/log/quorum_log.h"
#include "exportd/quorum/log/quorum_vote.h"

enum { QUORUM_LOG_KIND = 1 }; /* kind of an entry in the write-ahead log */

/* ---- quorum_boot.c: may a loss of power have taken what was acknowledged? ----
 *
 * A member that acknowledges what is not synced notes the boot of its machine before, and
 * at an orderly end that all is synced. It may have lost something if it starts in
 * another boot, and did not end in order.
 */

/* Embedded; zero-initialise, set boot, is_lazy, saved and arg. */
struct quorum_boot {
    uint64_t boot; /* changes when the machine goes down; 0: not asked */
    bool is_lazy;  /* this run acknowledges what is not synced */
    /** A record is on stable storage, or cannot be saved (rc). */
    void (*saved)(void *arg, int rc);
    void *arg;
    /* after the start: something may be lost */
    bool in_doubt;
    uint64_t loss_term; /* term of quorum_boot_begin(); 0: none, or counted */

    /* The rest is private. */
    struct quorum_vote file;
    void (*started)(void *arg, int rc);
    bool is_open; /* this run has noted that it may lose something */
    bool is_noted;
};

/** Reads the record; started(arg, rc) comes. */
void quorum_boot_start(struct quorum_boot *b, struct disk *disk,
                       void (*started)(void *arg, int rc));
/**
 * Notes that this run may acknowledge what is not synced, and the term in which the
 * member came back from a loss that is not counted (0: none). Returns whether saved
 * comes.
 */
bool quorum_boot_begin(struct quorum_boot *b, uint64_t loss_term);
/** Notes that the loss is counted. */
void quorum_boot_counted(struct quorum_boot *b);
/** Notes that all is synced, if the run had begun. Returns whether saved comes. */
bool quorum_boot_end(struct quorum_boot *b);
bool quorum_boot_is_idle(const struct quorum_boot *b);
/** Closes the file. Nothing may be under way. */
void quorum_boot_close(struct quorum_boot *b);

/* ---- the log ---- */

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
    struct quorum_boot boot;
    bool is_beginning; /* hooks.begun comes */
    struct quorum_log_found found;
    int error;

    /* Ring of lines: entry i of the log is in lines[(begin + i) % room]. */
    struct line *lines; /* owned */
    size_t room, begin;
    uint64_t first, n;
    uint64_t in_memory; /* no entry before this one is in memory, but lists of members */
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
    /* Syncs that may wait. */
    bool may_wait, is_due;
    unsigned n_waiting; /* entries, and their bytes, that wait for a sync */
    uint64_t waiting_bytes;
    struct env_timer wait_timer;

    /* The start. */
    void (*started)(void *arg, int rc);
    void *started_arg;
    struct wal_wait start_wait;
    /* where the scan met the first gap, the log ended before this entry; 0: no gap */
    uint64_t gap_at;
    uint8_t note_bytes[WAL_SYNCED_MAX];
    struct iovec note_iov;
    struct wal_append note; /* says that all that was found is synced */
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct env_task stop_task;
};

/** Unpacks a head. Returns 0 or -ROZO_EDAMAGED. */
int quorum_log_head_get(const uint8_t *p, size_t len, struct raft_log_entry *e);
bool quorum_log_data_is_right(const uint8_t head[QUORUM_LOG_HEAD_BYTES], const void *data,
                              size_t len);
struct line *quorum_log_line(const struct quorum_log *log, uint64_t index);
/** Makes room for one more line. Returns 0 or -ENOMEM. */
int quorum_log_reserve(struct quorum_log *log);
void quorum_log_line_set(struct quorum_log *log, struct line *line,
                         struct quorum_entry *entry);
/** Lets go of the entry in memory, if it can be read from the disk when it is needed. */
void quorum_log_line_clear(struct quorum_log *log, struct line *line);
/** Goes on with a stop that waits, if nothing is under way any more. */
void quorum_log_stop_look(struct quorum_log *log);
/** A boot record is saved, or cannot be. */
void quorum_log_boot_saved(void *arg, int rc);

#endif
