/*
 * mount_session.h - the mount's session at exportd: open it, keep it alive, open it again.
 *
 * One per mount, on its first loop. When exportd restarts, the session is opened again under its id with the
 * inodes and locks we hold, and goes on. When exportd did not hear of us for longer than the lease, it is
 * over: we get another one, and all locks are lost. Core.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MOUNT_SESSION_H
#define ROZO_ROZOMOUNT_SESSION_MOUNT_SESSION_H

#include "rozomount/session/lock_table.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/open_refs.h"
#include "rozomount/session/unsynced_inodes.h"
#include "rozomount/tokens/token_cache.h"

enum {
    MAP_STORAGES_MAX = 4096,
    MAP_ADDRS_MAX = 16,     /* of one storage */
    MAP_ADDR_TEXT_MAX = 80, /* with the zero byte */
};

/* Where one storage is. */
struct map_storage {
    uint32_t id;
    uint8_t incarnation[16]; /* of its data; zero: not known */
    unsigned n_addrs;        /* 0..MAP_ADDRS_MAX */
    char addrs[MAP_ADDRS_MAX][MAP_ADDR_TEXT_MAX];
};
/* All storages of the cluster. One allocation; free() it. */
struct cluster_map {
    uint64_t version;
    unsigned n_storages;
    struct map_storage storages[];
};
struct cluster_map *cluster_map_copy(const struct cluster_map *map);

/* What exportd said when the session opened. */
struct session_info {
    uint64_t id; /* not 0 */
    uint32_t export_id;
    uint32_t codec, layout, block_bytes;
    uint32_t lease_ms;
    uint32_t
        losses; /* another number: exportd lost its power since, see unsynced_inodes.h */
    uint8_t cluster_id[16];
};

struct session_config {
    const char *export_name; /* borrowed */
    const char *client;      /* borrowed, "host:pid:mountpoint" */
    const uint64_t *dead;    /* borrowed, until open: sessions whose processes are gone */
    size_t n_dead;
    struct refs *refs;         /* borrowed */
    struct held *held;         /* borrowed */
    struct unstable *unstable; /* borrowed */
    struct tokens *tokens;     /* borrowed */
    uint32_t open_timeout_ms;
    /** The session is open, for the first time or again: put info->id on all channels. */
    void (*opened)(void *arg, const struct session_info *info);
    /** There is a (new) map. Borrowed. */
    void (*map_changed)(void *arg, const struct cluster_map *map);
    /** Somebody waits for a lock under this number: it has it (rc 0), or cannot. */
    void (*lock_event)(void *arg, uint64_t waiter, int rc);
    /** session_is_sure() is not any more: what was read before may be old from now on. May be NULL. */
    void (*unsure)(void *arg);
    /** exportd wants a token back: `keep` may be kept. call: the MD_TOKEN that it was granted to, 0: none. */
    void (*recall)(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                   uint64_t call);
    /** tokens_set_max() was called: there may be too many. */
    void (*tokens_max)(void *arg);
    /** None of our tokens is held any more; before `opened`. */
    void (*tokens_lost)(void *arg);
    /** A lock on this inode, noted as lost in `held`. */
    void (*lock_lost)(void *arg, uint64_t ino);
    /** exportd's clock is this far ahead of env_wall_ns(): from now on it should not be. */
    void (*clock_is_ahead)(void *arg, int64_t ns);
    void *arg;
};

struct session;

/** md: of the same loop; its calls wait until the session is open. */
struct session *session_new(struct env *env, struct md *md,
                            const struct session_config *config);
/** Not between session_open() / session_close() and their callbacks. */
void session_free(struct session *s);

/**
 * Open for the first time. done: 0, or the -errno of the refusal (-ENOENT: no such export,
 * -EIO: exportd did not answer); from 0 on the session is kept alive.
 */
void session_open(struct session *s, void (*done)(void *arg, int rc), void *arg);
/** Instead of waiting for session_open()'s done, which does not come any more. */
void session_give_up(struct session *s);
/** Some md heard NO_SESSION: open again. Calling it too often is fine. */
void session_lost(struct session *s);
/** exportd has heard our session, at this env_now_ns() or later. Any thread. */
void session_heard(struct session *s, uint64_t sent_ns);
/**
 * Can exportd not have ended our session yet? Else others may have what was ours, and the next answer tells. What
 * is lost is noted as lost before this is true again. Any thread.
 */
bool session_is_sure(const struct session *s, uint64_t now_ns);
/** There is a link to exportd again: it may be another exportd, that waits for us. */
void session_link_is_up(struct session *s);
/** From now on somebody may wait for a lock: hear of events, also when no tokens are given. */
void session_want_events(struct session *s);
/** Tell exportd that we go, wait a little for its answer, stop everything. */
void session_close(struct session *s, void (*done)(void *arg), void *arg);
/** exportd knows that it is closed. */
bool session_is_over(const struct session *s);

#endif
