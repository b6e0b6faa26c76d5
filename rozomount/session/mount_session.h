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
struct mount_session_info {
    uint64_t id; /* not 0 */
    uint32_t export_id;
    uint32_t codec, layout, block_bytes;
    uint32_t lease_ms;
    uint32_t
        losses; /* another number: exportd lost its power since, see unsynced_inodes.h */
    uint8_t cluster_id[16];
};

struct mount_session_config {
    const char *export_name; /* borrowed */
    const char *client;      /* borrowed, "host:pid:mountpoint" */
    const uint64_t *dead;    /* borrowed, until open: sessions whose processes are gone */
    size_t n_dead;
    struct open_refs *refs;           /* borrowed */
    struct lock_table *lock_table;    /* borrowed */
    struct unsynced_inodes *unsynced; /* borrowed */
    struct token_cache *tokens;       /* borrowed */
    uint32_t open_timeout_ms;
    /** The session is open, for the first time or again: put info->id on all channels. */
    void (*opened)(void *arg, const struct mount_session_info *info);
    /** There is a (new) map. Borrowed. */
    void (*map_changed)(void *arg, const struct cluster_map *map);
    /** Somebody waits for a lock under this number: it has it (rc 0), or cannot. */
    void (*lock_event)(void *arg, uint64_t waiter, int rc);
    /** mount_session_is_sure() is not any more: what was read before may be old from now on. May be NULL. */
    void (*unsure)(void *arg);
    /** exportd wants a token back: `keep` may be kept. call: the MD_TOKEN that it was granted to, 0: none. */
    void (*recall)(void *arg, uint64_t ino, enum token_mode keep, uint64_t grant,
                   uint64_t call);
    /** token_cache_set_max() was called: there may be too many. */
    void (*tokens_max)(void *arg);
    /** None of our tokens is held any more; before `opened`. */
    void (*tokens_lost)(void *arg);
    /** A lock on this inode, noted as lost in `held`. */
    void (*lock_lost)(void *arg, uint64_t ino);
    /** exportd's clock is this far ahead of env_wall_ns(): from now on it should not be. */
    void (*clock_is_ahead)(void *arg, int64_t ns);
    void *arg;
};

struct mount_session;

/** md: of the same loop; its calls wait until the session is open. */
struct mount_session *mount_session_new(struct env *env, struct md_client *md,
                                        const struct mount_session_config *config);
/** Not between mount_session_open() / mount_session_close() and their callbacks. */
void mount_session_free(struct mount_session *s);

/**
 * Open for the first time. done: 0, or the -errno of the refusal (-ENOENT: no such export,
 * -EIO: exportd did not answer); from 0 on the session is kept alive.
 */
void mount_session_open(struct mount_session *s, void (*done)(void *arg, int rc),
                        void *arg);
/** Instead of waiting for mount_session_open()'s done, which does not come any more. */
void mount_session_give_up(struct mount_session *s);
/** Some md heard NO_SESSION: open again. Calling it too often is fine. */
void mount_session_lost(struct mount_session *s);
/** exportd has heard our session, at this env_now_ns() or later. Any thread. */
void mount_session_heard(struct mount_session *s, uint64_t sent_ns);
/**
 * Can exportd not have ended our session yet? Else others may have what was ours, and the next answer tells. What
 * is lost is noted as lost before this is true again. Any thread.
 */
bool mount_session_is_sure(const struct mount_session *s, uint64_t now_ns);
/** There is a link to exportd again: it may be another exportd, that waits for us. */
void mount_session_link_is_up(struct mount_session *s);
/** From now on somebody may wait for a lock: hear of events, also when no tokens are given. */
void mount_session_want_events(struct mount_session *s);
/** Tell exportd that we go, wait a little for its answer, stop everything. */
void mount_session_close(struct mount_session *s, void (*done)(void *arg), void *arg);
/** exportd knows that it is closed. */
bool mount_session_is_over(const struct mount_session *s);

#endif
