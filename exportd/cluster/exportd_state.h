/*
 * exportd_state.h - the state shared by the parts of exportd.
 *
 * exportd.c starts, stops and dispatches; md.c and ad.c are the handlers; the head of
 * each other file says what it does. One thread.
 */
#ifndef ROZO_EXPORTD_CLUSTER_EXPORTD_STATE_H
#define ROZO_EXPORTD_CLUSTER_EXPORTD_STATE_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/hash.h"
#include "common/base/list.h"
#include "exportd/cluster/cluster_numbers.h"
#include "exportd/cluster/deletion.h"
#include "exportd/cluster/export_grace.h"
#include "exportd/cluster/exportd_config.h"
#include "exportd/cluster/map_push.h"
#include "exportd/cluster/metadata_room.h"
#include "exportd/cluster/strays.h"
#include "exportd/cluster/writer_recovery.h"
#include "exportd/namespace/namespace.h"
#include "exportd/store/cluster_record.h"
#include "exportd/tokens/locks.h"
#include "exportd/tokens/tokens.h"

enum {
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
    MESSAGE_MAX = 255,     /* bytes, error text */
    ADDR_MAX = 80,         /* bytes, "host:port" */
    ADDRS_MAX = 16,        /* addresses of a storage */
    TICK_MS = 1000,
    ASLEEP_MS = 3000, /* a tick later than this means that exportd was suspended */
    INFO_DEADLINE_MS = 3000,
};

struct exportd;
struct session;
struct open_file;
struct delayed_unlink;
struct redistribution;
struct requests;
struct sessions;
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
    /* as its last answer said; false until then */
    bool knows_full_quorum, knows_returns;
    uint64_t total_bytes, free_bytes;
    uint64_t disk_id; /* file system it is on; 0: unknown */
    /* storages on that file system, at least 1; they share its free space */
    unsigned n_on_disk;
    /* further files of which it should be a home, see storage_room.h */
    double credit;
    char version[NAMES_MAX + 1];
    char error[MESSAGE_MAX + 1]; /* reason for not being up */
    bool moved;     /* addresses changed: a new channel is due when this one is idle */
    unsigned n_out; /* requests outstanding on the channel, without the poll */
    struct map_push map;
    struct deletions deletions; /* removals that it missed */
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
    uint32_t fold_rules; /* equal to ns.fold_rules */
    char name[NAMES_MAX + 1];
    struct namespace ns;
    struct locks locks;
    struct tokens tokens;
    unsigned n_sessions;
    struct export_grace grace;
    struct open_file *opens;        /* owned; over all sessions */
    struct delayed_unlink *delayed; /* owned by delayed_unlink.c */
    bool tight;                     /* a storage of the volume is nearly full */
    unsigned n_closed;              /* files that redist_hold.c holds EXCLUSIVE */
    bool few_known;                 /* n_few is valid */
    uint64_t n_few;                 /* files with fewer candidates than they could have */
    uint64_t n_few_counting;
};

struct exportd {
    struct env *env; /* borrowed */
    const struct exportd_hooks *hooks;
    struct store *store; /* owned */
    struct exportd_config config;
    uint8_t cluster_id[CLUSTER_ID_BYTES];
    uint64_t map_version;
    struct cluster_numbers numbers;
    bool is_ready;        /* the number of this start is stable: epochs depend on it */
    bool is_deposed;      /* a storage knows a later start: no map is sent any more */
    uint64_t start_known; /* when deposed: the later start; 0: not known */
    struct list_node storages, volumes, exports;
    unsigned n_storages, n_volumes, n_exports;
    struct sessions *sessions; /* owned; of the room above */
    struct metadata_room room;
    struct writer_recovery writer_recovery;
    struct deletions deletions; /* new ones: no storage has been asked yet */
    struct strays strays;
    struct redistribution *redist; /* owned by redistribute.c */
    struct requests *requests;     /* owned by exportd.c */

    uint64_t last_grant; /* newest serial of a grant; grows over restarts */
    size_t n_tokens;     /* tokens of all sessions */
    struct token_limits token_limits;

    unsigned n_answers; /* answers waiting for a commit, sync or confirmation */
    bool stopping;
    bool abandoned; /* stopping, and every answer is NOT_LEADER */
};

#endif
