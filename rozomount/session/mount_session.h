/*
 * mount_session.h - the mount's session at exportd: opens it, keeps it alive, reopens it.
 *
 * One per mount, on its first loop. After a restart of exportd the session is reopened
 * under its id with the inodes, locks and tokens that we hold, and continues. If exportd
 * gets no message from us for longer than the lease, it ends the session: we get a new
 * one, and all locks are lost. Core.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MOUNT_SESSION_H
#define ROZO_ROZOMOUNT_SESSION_MOUNT_SESSION_H

#include "rozomount/session/lock_table.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/open_refs.h"
#include "rozomount/session/stream_reads.h"
#include "rozomount/session/unsynced_inodes.h"
#include "rozomount/tokens/token_cache.h"

enum {
    MAP_STORAGES_MAX = 4096,
    MAP_ADDRS_MAX = 16,     /* addresses of one storage */
    MAP_ADDR_TEXT_MAX = 80, /* bytes, with the zero byte */
};

/* Addresses of one storage. */
struct map_storage {
    uint32_t id;
    uint8_t incarnation[16]; /* identity of its data; all zero: unknown */
    unsigned n_addrs;        /* 0..MAP_ADDRS_MAX */
    char addrs[MAP_ADDRS_MAX][MAP_ADDR_TEXT_MAX];
};
/* All storages of the cluster. One allocation; the caller frees it. */
struct cluster_map {
    uint64_t version;
    unsigned n_storages;
    struct map_storage storages[];
};
struct cluster_map *cluster_map_copy(const struct cluster_map *map);

/* Parameters that exportd sent when the session was opened. */
struct mount_session_info {
    uint64_t id; /* not 0 */
    uint32_t export_id;
    uint32_t codec, layout, block_bytes;
    uint32_t lease_ms;
    /* number of power losses of exportd, see unsynced_inodes.h */
    uint32_t losses;
    uint8_t cluster_id[16];
};

struct mount_session_config {
    const char *export_name;          /* borrowed */
    const char *client;               /* borrowed, "host:pid:mountpoint" */
    struct open_refs *refs;           /* borrowed */
    struct lock_table *lock_table;    /* borrowed */
    struct unsynced_inodes *unsynced; /* borrowed */
    struct stream_reads *reads;       /* borrowed */
    struct token_cache *tokens;       /* borrowed */
    uint32_t open_timeout_ms;
    uint64_t takes_over; /* session of a dead process that this one continues; 0: none */
    /**
     * Called when such a session is open, before `opened`: with what it holds. Its tokens
     * are in `tokens`, all as SHARED.
     */
    void (*inherited)(void *arg, const Rozo__MdOpenSessionResp *held);
    /**
     * Finds sessions whose processes have died, to report them when the session opens and
     * with each keep-alive. Returns them, borrowed until the next call. NULL: none are
     * looked for.
     */
    const uint64_t *(*find_dead)(void *arg, size_t *n);
    /** Called when exportd has received the report of the last find_dead(). */
    void (*dead_are_reported)(void *arg);
    /**
     * Called when the session is open, for the first time or again: info->id must be set
     * on all channels.
     */
    void (*opened)(void *arg, const struct mount_session_info *info);
    /** Called when there is a map, or a new one. Borrowed. */
    void (*map_changed)(void *arg, const struct cluster_map *map);
    /**
     * Called when the request for a lock with the number `waiter` has got the lock (rc 0)
     * or has failed.
     */
    void (*lock_event)(void *arg, uint64_t waiter, int rc);
    /**
     * Called when mount_session_is_sure() becomes false: data read before may be outdated
     * from now on. May be NULL.
     */
    void (*unsure)(void *arg);
    /**
     * Called when exportd recalls a token: the mount may keep the mode `keep`. call: the
     * MD_TOKEN that the token was granted to; 0: none.
     */
    void (*recall)(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                   uint64_t call);
    /** Called after token_cache_set_max(): there may be too many tokens. */
    void (*tokens_max)(void *arg);
    /** Called when all tokens are lost; before `opened`. */
    void (*tokens_lost)(void *arg);
    /** Called when a lock on this inode is lost; lock_table has it marked as lost. */
    void (*lock_lost)(void *arg, uint64_t ino);
    /**
     * Called with the offset of exportd's clock from env_wall_ns() (ns; positive: exportd
     * is ahead). The callee corrects the clock.
     */
    void (*clock_is_ahead)(void *arg, int64_t ns);
    void *arg;
};

struct mount_session;

/**
 * Creates a session. md: client of the same loop; its calls wait until the session is
 * open.
 */
struct mount_session *mount_session_new(struct env *env, struct md_client *md,
                                        const struct mount_session_config *config);
/** Frees a session that was never opened or is closed. */
void mount_session_free(struct mount_session *s);

/**
 * Opens the session for the first time. done: rc is 0, or -errno of the refusal (-ENOENT:
 * no such export, -EIO: exportd did not answer). After rc 0 the session is kept alive.
 */
void mount_session_open(struct mount_session *s, void (*done)(void *arg, int rc),
                        void *arg);
/** Aborts mount_session_open(): its done is not called. */
void mount_session_give_up(struct mount_session *s);
/** Reopens the session after an answer NO_SESSION. May be called repeatedly. */
void mount_session_lost(struct mount_session *s);
/**
 * Notes that exportd renewed our session at env_now_ns() sent_ns or later. Any thread.
 */
void mount_session_heard(struct mount_session *s, uint64_t sent_ns);
/**
 * Returns true if exportd cannot have ended our session yet. If false, others may have
 * got our locks and tokens, and the next answer shows that. Losses are recorded before
 * this is true again. Any thread.
 */
bool mount_session_is_sure(const struct mount_session *s, uint64_t now_ns);
/**
 * Notes that there is a link to exportd again. It may be another exportd that waits for
 * us to reopen.
 */
void mount_session_link_is_up(struct mount_session *s);
/**
 * Starts to receive events, because a request will wait for a lock. Needed only if
 * exportd grants no tokens.
 */
void mount_session_want_events(struct mount_session *s);
/** Closes the session at exportd, waits a short time for the answer, stops everything. */
void mount_session_close(struct mount_session *s, void (*done)(void *arg), void *arg);
/** Returns true if exportd has confirmed the close. */
bool mount_session_is_over(const struct mount_session *s);

#endif
