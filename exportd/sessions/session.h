/*
 * session.h - sessions of mounts: their leases, and the inodes that they hold open.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_H
#define ROZO_EXPORTD_SESSIONS_SESSION_H

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/reply_cache.h"

/* References to an inode, of one session or of an export. */
struct open_file {
    uint64_t ino; /* key */
    uint32_t n_refs;
    uint32_t n_writers; /* in an export's table: sessions with `writes` */
    bool clean;         /* in an export's table: not written before it was opened */
    bool writes;        /* in a session's table: has, or may have, an epoch */
    UT_hash_handle hh;
};

struct session {
    uint64_t id;           /* key */
    struct export *export; /* borrowed */
    char client[MESSAGE_MAX + 1];
    bool read_only;
    bool ends; /* has ended; kept until storages refuse its writes */
    /* see session_takeover.c */
    bool has_heir, is_fenced;
    uint64_t id_before; /* session that it continues; 0: none */
    uint64_t expires_ns;
    struct open_file *refs; /* owned */
    struct open_file *cuts; /* owned: unfinished truncates begun without a reference */
    struct reply_cache replies;
    /* answers DONE_BEFORE: executed before this start, or in a former session */
    struct reply_cache before;
    uint64_t n_done; /* number of the next record of reply_log.c */
    struct lock_holder locks;
    struct lock_call *lock_calls; /* by waiter: locks it waits for */
    struct token_holder tokens;
    /* reads of reserved streams, as the client counts them; late ones among them */
    uint64_t n_stream_reads, n_late_reads;
    uint32_t tokens_max;     /* limit that the session knows */
    struct list_node parked; /* calls that wait for tokens of others */
    unsigned n_parked;
    struct list_node events; /* events not seen yet, ascending */
    unsigned n_events;
    struct list_node news_link; /* in turns.news while some events are new */
    uint64_t last_event;
    /* owned: MD_EVENTS held until there is an event; NULL: none */
    struct rpc_call *events_call;
    uint64_t events_held_ns; /* ns, monotonic; when it arrived */
    UT_hash_handle hh;
};

/* All sessions, and sums over them. */
struct session_table {
    struct session *by_id; /* owned */
    uint64_t n_refs;       /* open inodes, counted once for each session */
    unsigned n_cuts;       /* sum of struct session.cuts */
};

/** Makes the state of the room, with nothing loaded. Returns 0 or -ENOMEM. */
int sessions_new(struct exportd *x);
/** Returns true if no turn of waiting calls is due. */
bool sessions_are_idle(const struct exportd *x);
struct session *session_find(struct exportd *x, uint64_t id);
/** Finds the session with this id, or the one that continues it. */
struct session *session_find_continued(struct exportd *x, uint64_t id);
void session_take_new_id(struct session *s);
/**
 * Opens a session. id 0: a new one, with a record. If session `id` has ended: also a new
 * one, and *out has another id. Returns 0; -EBUSY: too many; -EEXIST: id belongs to
 * another export.
 */
int session_open(struct exportd *x, struct export *e, uint64_t id, const char *client,
                 bool read_only, struct session **out);
/** Returns whether its client, "host:pid:mountpoint", runs on this host. */
bool session_is_of_host(const struct session *s, const char *host);
/** Sums the reads of streams that open sessions of this host and export have counted. */
void sessions_count_reads(struct exportd *x, uint32_t export, const char *host,
                          uint64_t *n_reads, uint64_t *n_late);
void session_touch(struct exportd *x, struct session *s);
/** Returns true if the session may hold one more inode. */
bool session_may_ref(const struct session *s);
/**
 * Adds a reference. clean: see struct open_file. -ENOMEM: no memory, or it holds too
 * many.
 */
int session_ref(struct session *s, uint64_t ino, bool clean);
/** Raises the references to n, for a session that comes back. */
int session_claim(struct session *s, uint64_t ino, uint32_t n);
/**
 * Drops up to n references. The last one to an inode without names removes it.
 * nothing_stored: the client asked no storage to store anything of it.
 */
void session_unref(struct exportd *x, struct session *s, uint64_t ino, uint32_t n,
                   bool nothing_stored);
/** Notes that the session got an epoch of this inode, by opening it or to truncate it. */
void session_writes(struct session *s, uint64_t ino);
/**
 * Returns true if no session may be writing the inode; with own_too this one is not
 * counted. False for a lease after the start, since writers may still come back.
 */
bool session_is_alone(struct session *s, uint64_t ino, bool own_too);
/** Notes the end of a truncate. */
void session_has_cut(struct session *s, uint64_t ino);
/**
 * Ends the session of a process that is certainly dead, as if its lease were over. Does
 * nothing for an unknown id.
 */
void session_is_dead(struct exportd *x, uint64_t id);
/**
 * Ends the session of a dead process, but keeps what it holds for another one, until a
 * lease after s->is_fenced is set: no late write of the process can succeed then.
 */
void session_begin_takeover(struct session *s);
/** Queues checks of all files that the session did not finish writing. */
void session_abandon_files(struct session *s);
/**
 * Gives back everything the session holds and frees it. gone: it did not close, so its
 * files must be checked.
 */
void session_end(struct exportd *x, struct session *s, bool gone);
/** Extends leases and the grace by time in which exportd itself was suspended. */
void sessions_extend_leases(struct exportd *x, uint64_t slept_ns);
/**
 * Ends sessions whose lease is over; after the grace, removes orphans that no session
 * holds.
 */
void sessions_tick(struct exportd *x);
/** Answers BUSY to held calls: clients send them to the next start. */
void sessions_stop(struct exportd *x);
void sessions_free(struct exportd *x);
/**
 * Returns true if a session holds the inode open. During the grace any inode may be open.
 */
bool export_is_open(struct export *e, uint64_t ino);
/** Removes the inode if it has no name. No session may need it. */
void export_reap(struct export *e, uint64_t ino);

#endif
