/*
 * quorum_log.h - the log of a member on its disk, above the write-ahead log; and its term
 * and vote.
 *
 * The log is a run of entries with consecutive indexes. Its newest entries are also in
 * memory. Entries are replaced by appending others with the same indexes: what was found
 * later in the write-ahead log counts. docs/FORMATS.md, "Metadata log", has the bytes.
 *
 * Sans-I/O: disk requests, and callbacks on one thread, never inside the call that they
 * answer.
 */
#ifndef ROZO_EXPORTD_QUORUM_LOG_QUORUM_LOG_H
#define ROZO_EXPORTD_QUORUM_LOG_QUORUM_LOG_H

#include "common/base/list.h"
#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/wal/wal.h"
#include "exportd/quorum/log/quorum_entry.h"

enum {
    QUORUM_LOG_HEAD_BYTES = 32, /* bytes before the data of an entry */
    QUORUM_LOG_SEGMENT_BYTES = 64 << 20,
    QUORUM_LOG_MEMORY_BYTES = 64 << 20, /* bytes of the newest entries in memory */
    QUORUM_LOG_RETRY_MS = 100,
    /* A sync that may wait comes after so much time, or so many entries or bytes. */
    QUORUM_LOG_WAIT_MS = 1000,
    QUORUM_LOG_WAIT_ENTRIES = 256,
    QUORUM_LOG_WAIT_BYTES = 4 << 20,
};

struct quorum_log;

struct quorum_log_hooks {
    /** The log up to this entry is on stable storage, unless it was truncated since. */
    void (*persisted)(void *arg, uint64_t index, uint64_t term);
    /** This term and vote are on stable storage. */
    void (*voted)(void *arg, uint64_t term, uint64_t vote);
    /** The disk fails: the log cannot be relied on any more. */
    void (*failed)(void *arg, int rc);
    void *arg;
    /**
     * true: the disk has no space for the entries behind the newest one that is reported
     * as persisted. They wait in memory and are written again every QUORUM_LOG_RETRY_MS;
     * this is called after each try that failed. false: they are written.
     */
    void (*full)(void *arg, bool is_full);
    /** The entry is written, but perhaps not yet synced; so are all before it. */
    void (*written)(void *arg, uint64_t index, uint64_t term);
    /** The end of quorum_log_begin(). */
    void (*begun)(void *arg);
};

struct quorum_log_config {
    struct env *env;                      /* borrowed */
    struct disk *disk;                    /* borrowed; its paths are the log's alone */
    const struct quorum_log_hooks *hooks; /* borrowed */
    uint64_t segment_bytes;               /* 0: QUORUM_LOG_SEGMENT_BYTES */
    unsigned segments;                    /* at most; 0: as many as the WAL allows */
    uint64_t memory_bytes;                /* 0: QUORUM_LOG_MEMORY_BYTES */
    /* number that changes when the machine goes down, boot_number(); 0: the log does not
     * ask whether the power failed */
    uint64_t boot;
    bool is_lazy; /* entries may be acknowledged before they are synced */
};

/* State of the disk when the log was started. */
struct quorum_log_found {
    uint64_t term, vote; /* 0: never saved */
    bool vote_is_damaged;
    /* first index of entries that were on stable storage and are lost; 0: none */
    uint64_t lost;
    /* the power failed when entries may have been acknowledged that were not synced:
     * those may be missing */
    bool in_doubt;
    uint64_t loss_term; /* as given to quorum_log_begin(); 0: none, or counted */
};

/** Makes a log in memory; touches no disk. Returns 0 or -ENOMEM. */
int quorum_log_open(const struct quorum_log_config *config, struct quorum_log **out);
/**
 * Reads the disk. done(arg, rc): 0, -EIO, -ENOSPC, -ENOMEM, -ROZO_EUNKNOWN_FORMAT or
 * -ROZO_EDAMAGED (a frame that is no entry); the log takes entries only after 0. Entries
 * that are found are on stable storage then. What lies on the disk stays until
 * quorum_log_forget_old(): a loss is found again after a crash.
 */
void quorum_log_start(struct quorum_log *log, void (*done)(void *arg, int rc), void *arg);
const struct quorum_log_found *quorum_log_found(const struct quorum_log *log);
/**
 * Frees the disk space of entries that do not count any more. Call it once, when nothing
 * is lost, or when what was lost has been appended again and is persisted.
 */
void quorum_log_forget_old(struct quorum_log *log);
/**
 * Notes on stable storage that entries may be acknowledged from now on before they are
 * synced, and the term in which this member came back from a loss of power that is not
 * counted (0: none). Once, before anything is appended. Returns true if hooks.begun
 * comes; false: there is nothing to note.
 */
bool quorum_log_begin(struct quorum_log *log, uint64_t loss_term);
/** Notes that the loss is counted. */
void quorum_log_loss_counted(struct quorum_log *log);
/** Sets whether syncs may wait (QUORUM_LOG_WAIT_MS ...); at first they do not. */
void quorum_log_may_wait(struct quorum_log *log, bool may_wait);
/** Ends all writing with a sync, then calls done(arg). */
void quorum_log_stop(struct quorum_log *log, void (*done)(void *arg), void *arg);
/** Frees the log: after quorum_log_stop(), or before a start. NULL is fine. */
void quorum_log_free(struct quorum_log *log);

/** Returns the indexes of the first and last entry; first is last + 1 if it is empty. */
uint64_t quorum_log_first(const struct quorum_log *log);
uint64_t quorum_log_last(const struct quorum_log *log);
/**
 * Returns an entry of the log, without data unless it is in memory, as lists of members
 * always are. *entry (may be NULL): the entry in memory, or NULL; valid until the log
 * changes.
 */
struct raft_log_entry quorum_log_get(const struct quorum_log *log, uint64_t index,
                                     struct quorum_entry **entry);

/**
 * Appends entries: the first one follows the last, or any index if the log is empty.
 * Takes a use of each.
 */
void quorum_log_append(struct quorum_log *log, struct quorum_entry *const *entries,
                       unsigned n);
/** Drops this entry and all after it. */
void quorum_log_truncate(struct quorum_log *log, uint64_t from);
/** Drops all entries before this one; it is at most the last index + 1. */
void quorum_log_trim(struct quorum_log *log, uint64_t first);
/** Saves term and vote; later ones replace those that are not written yet. */
void quorum_log_vote(struct quorum_log *log, uint64_t term, uint64_t vote);

/* Reads entries from the disk. Embedded in its user's struct. */
struct quorum_log_read {
    uint64_t index; /* the entry to read; in the log, not in memory */
    /**
     * rc 0: the entry, with a use of the callback's. -ENOENT: it is not in the log any
     * more. -EIO or -ROZO_EDAMAGED: it cannot be read.
     */
    void (*done)(struct quorum_log_read *r, int rc, struct quorum_entry *entry);
    /* The rest is private. */
    struct list_node link;
    struct quorum_log *log;
    struct quorum_entry *entry;
    struct wal_place place;
    bool is_dropped; /* left the log meanwhile: the last read frees its place */
    uint8_t head[QUORUM_LOG_HEAD_BYTES];
    struct iovec iov[2];
    struct disk_req dr;
    struct env_task task;
};
void quorum_log_read(struct quorum_log *log, struct quorum_log_read *r);

/** Returns the bytes of disk space in use. */
uint64_t quorum_log_used_bytes(const struct quorum_log *log);

#endif
