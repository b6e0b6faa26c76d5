/*
 * exportd_state.h - the state shared by the parts of exportd.
 *
 * exportd.c starts, stops and dispatches; md.c and ad.c are the handlers; the head of
 * each other file says what it does. One thread.
 */
#ifndef ROZO_EXPORTD_CLUSTER_EXPORTD_STATE_H
#define ROZO_EXPORTD_CLUSTER_EXPORTD_STATE_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "exportd/cluster/exportd_config.h"
#include "exportd/namespace/namespace.h"
#include "exportd/tokens/hash.h"
#include "exportd/tokens/locks.h"
#include "exportd/tokens/tokens.h"

enum {
    CLUSTER_ID_BYTES = 16,
    INCARNATION_BYTES = 16,
    STORAGES_MAX = 4096,
    VOLUMES_MAX = 256,
    EXPORTS_MAX = 1024,
    SESSIONS_MAX = 4096,
    FENCES_MAX = SESSIONS_MAX, /* all sessions may end together, and come back later */
    /* inodes that a session may hold open; one MD_OPEN_SESSION names all */
    SESSION_REFS_MAX = 500000,
    REFS_MAX = 4 << 20,    /* inodes that all sessions together may hold open */
    ANSWERS_MAX = 1 << 16, /* calls waiting for a commit; more are answered BUSY */
    OPS_MAX = 256,         /* request counters; ops are below this */
    NAMES_MAX = 63,        /* bytes, name of a volume or export */
    HOST_MAX = 255,        /* bytes, name of a host or rack */
    WORDS_MAX = 255,       /* bytes, error text */
    ADDR_MAX = 80,         /* bytes, "host:port" */
    ADDRS_MAX = 16,        /* addresses of a storage */
    TICK_MS = 1000,
    ASLEEP_MS = 3000, /* a tick later than this means that exportd was suspended */
    INFO_DEADLINE_MS = 3000,
    /* bytes kept free under the kv; below that the tree may not grow */
    METADATA_RESERVE = 64 << 20,
};

struct exportd;
struct session;
struct open_file;
struct delayed_unlink;
struct awaited;
struct check;
struct deletion_round;
struct deletion_batch;
struct redistribution;
struct md_op;
struct parked;

/* Functions of higher rooms that lower rooms call. */
struct exportd_hooks {
    struct token_hooks tokens; /* hooks of the token tables of all exports */
    /**
     * Returns true if an inode that loses its last name stays for now. Hook of the name
     * space.
     */
    bool (*keeps)(void *export, uint64_t ino);
    /**
     * Lists the sessions, for ST_MAP, whose writes storages must refuse.
     *
     * @return their number.
     */
    size_t (*fenced)(const struct exportd *x, uint64_t sessions[FENCES_MAX]);
    /** Called when a storage has taken a map. */
    void (*map_taken)(struct exportd *x);
    /** A storage is lost, or is not lost any more. */
    void (*lost_changed)(struct exportd *x);
    /** Storages know a newer map than ours: what they confirmed before is void. */
    void (*map_outrun)(struct exportd *x);
    /** Runs a parked call again from its start; takes the call. */
    void (*run_call)(struct exportd *x, struct rpc_call *call, struct parked *parked);
};

/* Facts about a storage. A value: copied, compared, kept in the kv. */
struct storage_facts {
    uint32_t id;
    uint32_t volume;
    uint8_t incarnation[INCARNATION_BYTES];
    unsigned n_addrs;
    char addrs[ADDRS_MAX][ADDR_MAX + 1];
    char host[HOST_MAX + 1];
    char rack[HOST_MAX + 1];
    bool lost;    /* declared lost: does not come back */
    bool changes; /* next_incarnation has been asked to take its place */
    /* valid with `changes`; not known yet to have taken the place */
    uint8_t next_incarnation[INCARNATION_BYTES];
};

/* Storage of the cluster, from its admission on. */
struct cluster_storage {
    struct list_node link; /* in x->storages, by id */
    struct exportd *x;     /* borrowed */
    struct storage_facts facts;
    struct rpc_channel *channel; /* owned; NULL if the addresses are not valid */
    struct rpc_request info;     /* poll under way */
    bool polling;
    bool asked; /* a poll has ended since the start of exportd */
    bool up;    /* the last poll succeeded */
    uint64_t total_bytes, free_bytes;
    uint64_t disk_id; /* file system it is on; 0: unknown */
    /* storages on that file system, at least 1; they share its free space */
    unsigned n_on_disk;
    /* further files of which it should be a home, see storage_room.h */
    double credit;
    char version[NAMES_MAX + 1];
    char error[WORDS_MAX + 1]; /* reason for not being up */
    bool moved;     /* addresses changed: a new channel is due when this one is idle */
    unsigned n_out; /* requests outstanding on the channel, without the poll */
    struct rpc_request map_rq;
    bool map_out;                 /* map_rq is outstanding */
    uint64_t map_sent;            /* version of the map in map_rq */
    uint64_t map_told;            /* version of the last map it took; 0: none */
    uint64_t map_told_ns;         /* ns, monotonic; when it took that map */
    uint64_t map_known;           /* version that it reports; 0: it does not report one */
    struct deletion_round *round; /* round for removals it missed; NULL: none */
    struct key deletion_cursor;   /* place in those removals */
    struct deletion_batch *gathering; /* removals to be sent; NULL: none */
    uint64_t n_waiting;               /* removals it has not confirmed */
    uint64_t retry_ns;                /* not before: the last round failed */
    /* Whether it knows ST_REPAIR and ST_REDIST, since it is up. */
    enum { REDIST_UNASKED, REDIST_KNOWN, REDIST_TOO_OLD } redist;
};

struct volume {
    struct list_node link;
    uint32_t id;
    char name[NAMES_MAX + 1];
};

struct export
{
    struct list_node link;
    struct exportd *x; /* borrowed */
    uint32_t id;
    uint32_t volume;
    uint8_t codec;
    uint8_t layout;
    uint16_t block_bytes;
    bool sync;           /* answer changes only when stable */
    uint32_t inline_max; /* bytes; equal to ns.inline_max */
    char name[NAMES_MAX + 1];
    struct namespace ns;
    struct locks locks;
    struct tokens tokens;
    unsigned n_sessions;
    struct open_file *opens;        /* owned; over all sessions */
    struct delayed_unlink *delayed; /* owned by delayed_unlink.c */
    bool tight;                     /* a storage of the volume is nearly full */
    unsigned n_closed;              /* files that redistribute.c holds EXCLUSIVE */
    bool few_known;                 /* n_few is valid */
    uint64_t n_few;                 /* files with fewer candidates than they could have */
    uint64_t n_few_counting;
};

/* One sweep over all storages, or the pause before the next. */
enum { STRAYS_A_TICK = 256 }; /* files that are looked up, of all storages together */

struct strays {
    struct rpc_request rq;
    /* Files of the page in which the storage has no place any more. */
    struct file_id left[STRAYS_A_TICK];
    unsigned n_left, n_left_told;  /* files in left; sent of these */
    struct cluster_storage *asked; /* borrowed; NULL: no request outstanding */
    uint32_t storage_id;           /* the sweep continues at this id or a larger one */
    bool has_after;
    uint8_t after[FILE_ID_BYTES]; /* last file of its list that was looked at */
    uint64_t n_found;             /* strays found in this sweep */
    uint64_t next_ns;             /* ns, monotonic; earliest next sweep */
};

enum grace {
    GRACE_FOR_AWAITED, /* sessions that were open at the start may come back */
    GRACE_FOR_ANY,     /* any session may come back: no record of them was found */
    GRACE_ENDS,        /* none may come back; this is being made stable */
    GRACE_FOR_FENCES,  /* the end is stable, but storages may not know it yet */
    GRACE_OVER,
};

struct exportd {
    struct env *env; /* borrowed */
    const struct exportd_hooks *hooks;
    struct store *store; /* owned */
    struct exportd_config config;
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    uint64_t started_ns;
    enum grace grace;
    uint64_t grace_ends_ns; /* ns, monotonic; end of the time for sessions to come back */
    struct awaited *awaited; /* owned; sessions that have not come back yet */
    struct store_wait grace_wait;
    struct list_node fences;
    uint64_t last_fence; /* number of the newest fence */
    unsigned n_fences, n_unconfirmed;
    unsigned n_grace_fences;  /* fences among those that the grace waits for */
    uint64_t fence_words_ns;  /* ns, monotonic; earliest next log line about fences */
    uint32_t lease_before_ms; /* lease that mounts had before this start */
    uint64_t ticked_ns;       /* ns, monotonic; last tick */
    uint64_t map_version;
    uint32_t next_storage_id, next_volume_id, next_export_id;
    uint32_t n_starts;
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
    uint64_t last_boot; /* boot id when exportd last ran */
    bool stopped_well;  /* the last run stopped with everything stable */
    bool is_ready;      /* the number of this start is stable: epochs depend on it */
    struct store_wait ready_wait;
    struct list_node storages, volumes, exports;
    unsigned n_storages, n_volumes, n_exports;
    struct session *sessions;
    uint64_t n_refs;            /* open inodes, counted once for each session */
    unsigned n_cuts;            /* sum of struct session.cuts */
    bool orphans_seen;          /* orphans were looked at after the grace */
    uint64_t orphan_cursor_ino; /* place in the orphans */
    uint32_t orphan_cursor_export;
    uint64_t reply_log_cursor; /* session */
    /* ns, monotonic; earliest next search for old request records */
    uint64_t reply_log_look_ns;
    struct list_node delayed; /* delayed unlinks of all exports, oldest first */
    unsigned n_delayed;
    bool space_low;
    /* bytes of small files that fit until the space is looked at again */
    uint64_t inline_room;

    struct list_node checks; /* checks of writer_recovery.c, longest waiting first */
    struct check *checks_by_id;
    unsigned n_checks, n_checks_out;

    uint64_t n_deletions; /* removed files that no storage has been asked to remove yet */
    struct key deletion_cursor;
    struct deletion_round *round;
    struct strays strays;
    struct redistribution *redist; /* owned by redistribute.c */

    /* storage adds: the first is under way, the others wait */
    struct list_node admissions;
    unsigned n_admissions;
    struct list_node listings; /* listings of inodes.c under way */
    unsigned n_listings;

    uint64_t last_grant; /* newest serial of a grant; grows over restarts */
    size_t n_tokens;     /* tokens of all sessions */
    struct token_limits token_limits;
    bool tokens_scarce;     /* sessions have a lower limit than they would have alone */
    struct list_node ready; /* parked calls that may be able to go on */
    struct list_node news;  /* sessions with new recalls */
    struct env_task tokens_turn; /* works through `ready` and `news` */
    unsigned n_parked;

    uint64_t n_requests[OPS_MAX]; /* since the start, by op */
    unsigned n_answers;           /* answers waiting for a commit or sync */
    struct env_timer tick;
    bool stopping;
    struct store_wait stop_wait;
    struct env_task stop_task; /* checks whether everything has come to rest */
    void (*stopped)(void *arg, int rc);
    void *stopped_arg;
};

#endif
