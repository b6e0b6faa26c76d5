/*
 * exportd_state.h - what the parts of exportd's state machine share.
 *
 * exportd.c holds it together and dispatches; md.c and ad.c are the handlers; the others do what their
 * heads say. One thread.
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
    FENCES_MAX =
        SESSIONS_MAX, /* all sessions may end in one night, and come back as late */
    SESSION_REFS_MAX =
        500000, /* inodes a session may hold open: one MD_OPEN_SESSION names all */
    REFS_MAX = 4 << 20,    /* of all sessions together */
    ANSWERS_MAX = 1 << 16, /* calls waiting for a commit; more are told BUSY */
    OPS_MAX = 256,         /* requests are counted by op below this */
    NAMES_MAX = 63,        /* bytes of a volume's or export's name */
    HOST_MAX = 255,        /* bytes of a host or rack */
    WORDS_MAX = 255,       /* bytes of an error for people */
    ADDR_MAX = 80,         /* bytes of "host:port" */
    ADDRS_MAX = 16,        /* addresses of a storage */
    TICK_MS = 1000,
    ASLEEP_MS = 3000, /* no tick for so long: we were not running */
    INFO_DEADLINE_MS = 3000,
    METADATA_RESERVE =
        64 << 20, /* bytes kept free below the kv: the tree may shrink, not grow */
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

/* Calls from lower rooms to higher ones. */
struct exportd_hooks {
    struct token_hooks tokens; /* of the token tables of all exports */
    /** A hook of fs: an inode loses its last name. True: it stays for now. */
    bool (*keeps)(void *export, uint64_t ino);
    /** Sessions for ST_MAP from which storages must take no more writes. @return how many. */
    size_t (*fenced)(const struct exportd *x, uint64_t sessions[FENCES_MAX]);
    /** A storage has taken a map. */
    void (*map_taken)(struct exportd *x);
    /** A storage is lost, or is not lost any more. */
    void (*lost_changed)(struct exportd *x);
    /** Storages know a newer map than ours: what they confirmed before is void. */
    void (*map_outrun)(struct exportd *x);
    /** Runs a call that waited once more from its start; takes the call. */
    void (*run_call)(struct exportd *x, struct rpc_call *call, struct parked *parked);
};

/* What a storage is. A value: copied, compared, kept in the kv. */
struct storage_facts {
    uint32_t id;
    uint32_t volume;
    uint8_t incarnation[INCARNATION_BYTES];
    unsigned n_addrs;
    char addrs[ADDRS_MAX][ADDR_MAX + 1];
    char host[HOST_MAX + 1];
    char rack[HOST_MAX + 1];
    bool lost;    /* it will not come back */
    bool changes; /* next_incarnation was told that it takes this one's place ... */
    uint8_t
        next_incarnation[INCARNATION_BYTES]; /* ... and we do not know yet that it did */
};

/* One storage of the cluster, from its admission on. */
struct storage {
    struct list_node link; /* in x->storages, by id */
    struct exportd *x;     /* borrowed */
    struct storage_facts facts;
    struct rpc_channel *channel; /* owned; NULL when its addresses make no sense */
    struct rpc_request info;     /* the poll under way */
    bool polling;
    bool asked; /* since our start, one poll has ended */
    bool up;    /* the last one ended well */
    uint64_t total_bytes, free_bytes;
    uint64_t disk_id;   /* the file system that it is on; 0: it does not say */
    unsigned n_on_disk; /* storages on that, not less than 1: they share what is free */
    double credit; /* in files: how many more it should be a home of (storage_room.h) */
    char version[NAMES_MAX + 1];
    char error[WORDS_MAX + 1]; /* why it is not up */
    bool moved;     /* its addresses changed: a new channel when this one is idle */
    unsigned n_out; /* requests but the poll that are out on the channel */
    struct rpc_request map_rq;
    bool map_out;                     /* it is */
    uint64_t map_sent;                /* the version in it */
    uint64_t map_told;                /* the last one it took; 0: none */
    uint64_t map_told_ns;             /* when */
    uint64_t map_known;               /* what it says it knows; 0: it does not say */
    struct deletion_round *round;     /* removals it missed, when some are being sent */
    struct key deletion_cursor;       /* how far */
    struct deletion_batch *gathering; /* removals about to be sent; NULL: none */
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
    bool sync;           /* changes are answered when durable */
    uint32_t inline_max; /* as fs.inline_max */
    char name[NAMES_MAX + 1];
    struct namespace ns;
    struct locks locks;
    struct tokens tokens;
    unsigned n_sessions;
    struct open_file *opens;        /* owned; over all sessions */
    struct delayed_unlink *delayed; /* owned; of delayed_unlink.c */
    bool tight;                     /* a storage of the volume is nearly full */
    unsigned n_closed;              /* files that redistribute.c holds EXCLUSIVE */
    bool few_known;                 /* n_few was counted */
    uint64_t n_few;                 /* files with fewer candidates than they could have */
    uint64_t n_few_counting;
};

/* One sweep over all storages, or the pause before the next. */
enum { STRAYS_A_TICK = 256 }; /* files that are looked up, of all storages together */

struct strays {
    struct rpc_request rq;
    /* Files of the page in which the storage has no place any more, and those told. */
    struct file_id left[STRAYS_A_TICK];
    unsigned n_left, n_left_told;
    struct storage *asked; /* borrowed; NULL: nothing is out */
    uint32_t storage_id;   /* whose turn it is, or the next one's behind it */
    bool has_after;
    uint8_t after[FILE_ID_BYTES]; /* of its list: looked at up to here */
    uint64_t n_found;             /* in this sweep */
    uint64_t next_ns;             /* not before */
};

enum grace {
    GRACE_FOR_AWAITED, /* those that were open at our start may come back, */
    GRACE_FOR_ANY,     /* as anybody may: who ran before us remembered none */
    GRACE_ENDS,        /* nobody may any more; this is on its way to stable storage, */
    GRACE_FOR_FENCES,  /* or was, and storages may not know it yet */
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
    uint64_t grace_ends_ns;  /* until then clients from before our start may come back */
    struct awaited *awaited; /* owned: the sessions of those that have not */
    struct store_wait grace_wait;
    struct list_node fences;
    uint64_t last_fence; /* number */
    unsigned n_fences, n_unconfirmed;
    unsigned n_grace_fences;  /* of those */
    uint64_t fence_words_ns;  /* not before then another line about them */
    uint32_t lease_before_ms; /* what mounts were told before our start */
    uint64_t ticked_ns;       /* when the tick last ran */
    uint64_t map_version;
    uint32_t next_storage_id, next_volume_id, next_export_id;
    uint32_t n_starts;
    uint32_t
        last_loss; /* number of the last start that found the power had been lost; 0: none */
    uint64_t last_boot; /* the machine's, when we ran before */
    bool stopped_well;  /* and stopped then with all on stable storage */
    bool is_ready;      /* that is on stable storage: epochs depend on it */
    struct store_wait ready_wait;
    struct list_node storages, volumes, exports;
    unsigned n_storages, n_volumes, n_exports;
    struct session *sessions;
    uint64_t n_refs;            /* inodes held open, once for each session that does */
    unsigned n_cuts;            /* struct session.cuts of all */
    bool orphans_seen;          /* the grace is over and they were looked at */
    uint64_t orphan_cursor_ino; /* how far */
    uint32_t orphan_cursor_export;
    uint64_t reply_log_cursor;  /* session */
    uint64_t reply_log_look_ns; /* not before then is it looked whose requests are kept */
    struct list_node delayed;   /* of all exports, oldest first */
    unsigned n_delayed;
    bool space_low;
    uint64_t
        inline_room; /* bytes of small files that there is room for until it is looked again */

    struct list_node checks; /* of writer_recovery.c, longest waiting first */
    struct check *checks_by_id;
    unsigned n_checks, n_checks_out;

    uint64_t n_deletions; /* removed files of which no storage was told yet */
    struct key deletion_cursor;
    struct deletion_round *round;
    struct strays strays;
    struct redistribution *redist; /* owned; of redistribute.c */

    struct list_node
        admissions; /* storage adds: the first is under way, the others wait */
    unsigned n_admissions;
    struct list_node listings; /* of inodes.c, under way */
    unsigned n_listings;

    uint64_t last_grant; /* serials grow over our restarts */
    size_t n_tokens;     /* of all sessions */
    struct token_limits token_limits;
    bool tokens_scarce;          /* sessions are told to hold less than they may alone */
    struct list_node ready;      /* parked calls that may be able to go on */
    struct list_node news;       /* sessions that have been asked for tokens */
    struct env_task tokens_turn; /* sees to both */
    unsigned n_parked;

    uint64_t n_requests[OPS_MAX]; /* since our start, by op */
    unsigned n_answers;           /* waiting for a commit or sync */
    struct env_timer tick;
    bool stopping;
    struct store_wait stop_wait;
    struct env_task stop_task; /* looks whether all has come to rest */
    void (*stopped)(void *arg, int rc);
    void *stopped_arg;
};

#endif
