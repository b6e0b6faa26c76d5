/*
 * world.h - an exportd for tests: virtual clock, kv, fake storages, requests and answers.
 *
 * The kv is in memory, or on LevelDB if ROZO_TEST_KV=leveldb.
 */
#ifndef ROZO_TEST_EXPORTD_WORLD_H
#define ROZO_TEST_EXPORTD_WORLD_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/wire/record.h"
#include "common/wire/wide_ns.h"
#include "exportd/requests/exportd.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/unit/unit.h"

enum {
    WORLD_STORAGES_MAX = 16,
    WORLD_REMOVED_MAX = 4096,
    WORLD_CHECKED_MAX = 256,
    WORLD_LISTED_MAX = 16,
    WORLD_CLIENTS_MAX = 16,
    SESSIONS_TOLD_MAX = 4096,
    WORLD_MOVED_MAX = 16,
};

/* Requests of a redistribution that a storage got for one file. */
struct fake_moved {
    uint64_t ino;
    uint32_t fenced; /* epoch */
    uint32_t generation, n_storages;
    uint32_t storages[32];
    uint32_t partial; /* bitmap: projections that were made */
    bool prepared;    /* for a change that may never take effect */
};

/* Storage as exportd sees it. The one at index I has the address "sI:1". */
struct fake_storage {
    bool old_quorum; /* answers as a build without full_quorum does */
    struct world *w;
    char addr[32];
    uint8_t incarnation[16];
    uint8_t cluster_id[16];
    uint32_t id;          /* 0: not admitted */
    bool down, hung;      /* down: refuses connections; hung: does not answer */
    unsigned starting;    /* number of answers that will still be BUSY */
    bool no_removes;      /* answers ST_REMOVE with IO_ERROR */
    uint64_t removes_not; /* inode of which ST_REMOVE fails */
    unsigned n_loops;     /* loops; 0: one */
    unsigned n_remove_requests;
    uint64_t total, free;
    uint64_t disk_id;
    uint64_t stream_bytes, link_bytes;
    uint64_t reserved; /* bytes per second for streams, of the newest map */
    char rack[32];
    char host[32];
    bool old;        /* older build: knows neither ST_MAP nor ST_CHECK */
    bool says_map;   /* reports its map version in ST_INFO */
    bool no_checks;  /* answers ST_CHECK with BUSY */
    unsigned n_maps; /* number of maps received */
    uint64_t map_version;
    uint32_t map_returns;
    unsigned n_map_storages, n_map_up;
    unsigned n_fenced; /* ended sessions in the newest map */
    uint64_t fenced[SESSIONS_TOLD_MAX];
    bool no_maps; /* answers ST_MAP with IO_ERROR */
    unsigned n_checked;
    uint64_t checked[WORLD_CHECKED_MAX]; /* inode numbers, in order */
    bool replaces;                       /* was admitted in place of another one */
    uint64_t n_projections;
    unsigned n_listed, n_list_requests, list_page; /* list_page: files in one answer */
    struct file_id listed[WORLD_LISTED_MAX];       /* files that ST_LIST names */
    bool lists_nonsense;
    unsigned n_removed;
    uint64_t removed[WORLD_REMOVED_MAX]; /* inode numbers, in order */
    /* -- redistribution -- */
    struct fake_moved moved[WORLD_MOVED_MAX];
    unsigned n_repairs, n_fences, n_redists, n_leaves;
    unsigned repairs_wait;      /* number of answers to ST_REPAIR that are IN_PROGRESS */
    bool unsound;               /* ST_REPAIR says that the file is not sound */
    bool no_repairs;            /* older build: does not know ST_REPAIR */
    bool no_fences, no_redists; /* answers them with IO_ERROR */
    bool hangs_redists;         /* BUSY to ST_REDIST of old storages */
};

/* Request; its answer is freed with answer_free(). */
struct answer_got {
    bool came;
    uint16_t status;
    uint8_t *msg;
    size_t len;
};

/* Session that gives back recalled tokens while another session waits. */
struct world_client {
    uint64_t session, seen;
    bool asks; /* an MD_EVENTS is under way */
    struct answer_got events;
};

struct world {
    struct env_virtual env;
    struct kv_memory *mem;
    struct world_disk *disk; /* LevelDB in place of mem, if ROZO_TEST_KV=leveldb */
    struct kv *kv;           /* kv of `mem` or `disk` */
    struct capability_key *capabilities;
    struct exportd *x;
    struct fake_storage storages[WORLD_STORAGES_MAX];
    struct list_node channels;
    struct world_client clients[WORLD_CLIENTS_MAX];
    bool disobeys; /* tokens are given back only by the test itself */
    uint64_t session, boot;
    uint32_t evict_ms, lease_ms;             /* configured from the next start on */
    uint32_t strays_s;                       /* configured likewise; 0: the default */
    uint32_t session_tokens_max, tokens_max; /* configured likewise; 0: the default */
    uint32_t lease_told_ms; /* lease in the newest answer to MD_OPEN_SESSION */
    uint64_t n_ids;         /* newest id of a request */
    uint64_t again_id;      /* if not 0, the id of the next requests */
    uint32_t start;         /* rpc_call.start of the next requests */
    uint32_t inline_max;    /* bytes, for exports made from now on */
    bool fold;              /* exports made from now on have an index of folded names */
    bool in_quorum;         /* configured from the next start on */
    unsigned n_deposed;     /* times that exportd found a later start */
    bool damaged;           /* the test damaged the kv: world_close() does not check it */
    unsigned n_unanswered;
    unsigned n_sent;         /* requests to storages */
    rpc_handler_cb *handler; /* NULL: exportd_handle() of x */
    void *handler_arg;
    void (*run)(struct world *w); /* lets time pass until an answer comes */
    uint64_t moved[2];            /* from the newest answer to a rename */
    uint32_t epochs_given; /* newest epoch given to a client, of the redistributed file */
    unsigned n_first;      /* number of storages when the export was made */
};

void world_open(struct world *w, uint64_t seed);
/** Returns the number of keys in the kv, without records of executed requests. */
size_t world_n_keys(struct world *w);
/** Admits n storages, makes an export "main" of this layout, and opens a session. */
void world_make_export(struct world *w, unsigned n_storages, unsigned layout);
/** Returns the config of the next start. */
struct exportd_config world_config(struct world *w);
void world_start(struct world *w);
/** Starts exportd without waiting until it is ready. */
void world_begin_start(struct world *w);
/** Starts exportd. Returns false if it refuses the kv. */
bool world_try_start(struct world *w);
/** Puts one item into the kv while exportd is stopped. */
void world_put(struct world *w, const struct kv_item *item);
/** Opens session w->session again, or a new one; does nothing if none can be opened. */
void world_try_session(struct world *w);
/** Stops exportd cleanly. Returns 0 or its error. */
int world_stop(struct world *w);
/** Abandons exportd, which may be stopping. Returns the rc that it ends with. */
int world_abandon(struct world *w);
void world_close(struct world *w);
/** Kills the process: nothing more reaches the kv. Then starts it again. */
void world_kill(struct world *w);
/**
 * Kills the process and loses the newest n_lost unsynced commits. Then starts it again.
 */
void world_power_cut(struct world *w, uint64_t n_lost);
void world_reopen_session(struct world *w);
/** Opens the session again; it still holds this inode EXCLUSIVE. */
void world_reopen_writing(struct world *w, uint64_t ino);
/**
 * Lets sessions give back recalled tokens. To be repeated; world_call() does so while it
 * waits.
 */
void world_obey(struct world *w);
/** Opens a session that never comes back, so that the grace of the next start lasts. */
void world_absent_session(struct world *w);

void world_send(struct world *w, unsigned op, enum rpc_role role, uint64_t session,
                const void *msg, size_t len, struct answer_got *got);
/**
 * Sends a request and waits. Returns the status. out (may be NULL): the answer unpacked
 * as desc, NULL if none.
 */
unsigned world_call(struct world *w, unsigned op, const ProtobufCMessage *req,
                    const ProtobufCMessageDescriptor *desc, void *out);
unsigned world_call_node(struct world *w, unsigned op, const ProtobufCMessage *req,
                         const ProtobufCMessageDescriptor *desc, void *out);

/* ---- short forms of requests; they return statuses and fill *out ---- */

/* Inode as an answer describes it. */
struct seen {
    uint64_t ino, size, change, blocks;
    uint32_t generation, mode, nlink, uid, gid, rdev;
    bool blocks_unsure;
    wide_ns atime_ns, mtime_ns;
    int64_t ctime_ns;
    bool has_data;
    uint32_t xattrs; /* XattrBits */
    uint32_t file_flags;
    /* from FileData, if with_data */
    bool with_data;
    uint32_t epoch, n_storages, dist_generation;
    uint32_t storages[32];
    bool full_quorum;
    bool truncate_pending;
    uint64_t truncate_size, truncate_version;
    bool existed;
    bool cut; /* from the answer to MD_WROTE */
};
/** Returns an empty request of a client of this build. */
Rozo__MdOpenSessionReq t_open_session_req(void);
unsigned t_lookup(struct world *w, uint64_t parent, const char *name, struct seen *out);
unsigned t_getattr(struct world *w, uint64_t ino, struct seen *out);
unsigned t_create(struct world *w, uint64_t parent, const char *name, uint32_t mode,
                  struct seen *out);
unsigned t_create_open(struct world *w, uint64_t parent, const char *name, bool exclusive,
                       struct seen *out);
/** Makes a file as O_TMPFILE does; group 1001. */
unsigned t_create_nameless(struct world *w, uint64_t parent, uint32_t mode,
                           struct seen *out);
unsigned t_symlink(struct world *w, uint64_t parent, const char *name, const char *target,
                   struct seen *out);
unsigned t_unlink(struct world *w, uint64_t parent, const char *name,
                  struct seen *removed);
unsigned t_rmdir(struct world *w, uint64_t parent, const char *name);
/** Returns whether the newest map of this storage fences the session. */
bool t_is_fenced(const struct world *w, unsigned storage, uint64_t session);
unsigned t_link(struct world *w, uint64_t ino, uint64_t parent, const char *name);
unsigned t_rename(struct world *w, uint64_t parent, const char *name, uint64_t new_parent,
                  const char *new_name, uint32_t flags);
unsigned t_setattr(struct world *w, Rozo__MdSetattrReq req, struct seen *out);
unsigned t_truncate(struct world *w, uint64_t ino, uint64_t size, struct seen *out);
unsigned t_open(struct world *w, uint64_t ino, bool write, struct seen *out);
/**
 * Closes a file; storages have nothing of it except writes reported by t_wrote(). After
 * t_close_stored() they may.
 */
unsigned t_close(struct world *w, uint64_t ino, unsigned n);
unsigned t_close_stored(struct world *w, uint64_t ino, unsigned n);
unsigned t_wrote(struct world *w, uint64_t ino, uint64_t size, struct seen *out);
unsigned t_wrote_req(struct world *w, const Rozo__MdWroteReq *req, struct seen *out);
/** Reports a write of this epoch; t_wrote() reports no epoch. */
unsigned t_wrote_in(struct world *w, uint64_t ino, uint64_t size, uint32_t epoch,
                    struct seen *out);
unsigned t_truncated(struct world *w, uint64_t ino, uint64_t version, struct seen *out);
unsigned t_setxattr(struct world *w, uint64_t ino, const char *name, const void *val,
                    size_t len, uint32_t flags);
/** Reads an xattr. val: room for 65536 bytes; *len: its length. */
unsigned t_getxattr(struct world *w, uint64_t ino, const char *name, void *val,
                    size_t *len);
/** Looks for a name in another case or normalisation. found: room for 256 bytes. */
unsigned t_real_name(struct world *w, uint64_t dir, const char *name, char *found);
unsigned t_removexattr(struct world *w, uint64_t ino, const char *name);
unsigned t_storage_add(struct world *w, unsigned i, uint32_t *id, char error[256]);
unsigned t_export_create(struct world *w, const char *name, unsigned layout,
                         char error[256]);
uint64_t t_trash(struct world *w);

#define OK(call)         assert_int_equal(call, ROZO__STATUS__OK)
#define IS(status, call) assert_int_equal(call, ROZO__STATUS__##status)

#endif
