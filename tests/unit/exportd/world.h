/*
 * world.h - an exportd for tests: virtual clock, kv in memory (or one given), fake storages, and
 * requests that come back with their answers.
 */
#ifndef ROZO_TEST_EXPORTD_WORLD_H
#define ROZO_TEST_EXPORTD_WORLD_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/base/record.h"
#include "common/base/wide_ns.h"
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

/* What a storage was told of one file. */
struct fake_moved {
    uint64_t ino;
    uint32_t fenced; /* epoch */
    uint32_t generation, n_storages;
    uint32_t storages[32];
    uint32_t partial; /* bitmap: projections that were made */
    bool prepared;    /* for a change that may never take effect */
};

/* A storage as far as exportd sees it. Address "sI:1" for the one at index I. */
struct fake_storage {
    struct world *w;
    char addr[32];
    uint8_t incarnation[16];
    uint8_t cluster_id[16];
    uint32_t id;          /* 0: not admitted */
    bool down, hung;      /* refuses; says nothing */
    unsigned starting;    /* answers still to be BUSY */
    bool no_removes;      /* answers ST_REMOVE with IO_ERROR */
    uint64_t removes_not; /* fails to remove this inode */
    unsigned n_loops;     /* 0: one */
    unsigned n_remove_requests;
    uint64_t total, free;
    uint64_t disk_id;
    char rack[32];
    char host[32];
    bool old;        /* knows neither ST_MAP nor ST_CHECK */
    bool says_map;   /* tells in ST_INFO which map it knows */
    bool no_checks;  /* answers ST_CHECK with BUSY */
    unsigned n_maps; /* told so often */
    uint64_t map_version;
    unsigned n_map_storages, n_map_up;
    unsigned n_fenced; /* sessions that are over */
    uint64_t fenced[SESSIONS_TOLD_MAX];
    bool no_maps; /* answers ST_MAP with IO_ERROR */
    unsigned n_checked;
    uint64_t checked[WORLD_CHECKED_MAX]; /* inode numbers, in order */
    bool replaces;                       /* it was admitted in place of another */
    uint64_t n_projections;
    unsigned n_listed, n_list_requests, list_page; /* list_page: files of an answer */
    struct file_id listed[WORLD_LISTED_MAX];       /* what it has, as ST_LIST tells it */
    bool lists_nonsense;
    unsigned n_removed;
    uint64_t removed[WORLD_REMOVED_MAX]; /* inode numbers, in order */
    /* redistribution */
    struct fake_moved moved[WORLD_MOVED_MAX];
    unsigned n_repairs, n_fences, n_redists, n_leaves;
    unsigned repairs_wait;      /* so many answers of ST_REPAIR are IN_PROGRESS */
    bool unsound;               /* as ST_REPAIR tells */
    bool no_repairs;            /* too old for it */
    bool no_fences, no_redists; /* answers them with IO_ERROR */
    bool hangs_redists;         /* BUSY to ST_REDIST of old storages */
};

/* A request; the answer is freed with answer_free(). */
struct answer_got {
    bool came;
    uint16_t status;
    uint8_t *msg;
    size_t len;
};

/* A session that gives back what it is asked for when somebody else has to wait. */
struct world_client {
    uint64_t session, seen;
    bool asks; /* for events */
    struct answer_got events;
};

struct world {
    struct env_virtual env;
    struct kv_memory *mem;
    struct world_disk *disk; /* LevelDB instead of mem, when ROZO_TEST_KV=leveldb */
    struct kv *kv;           /* of one of them */
    struct capability_key *capabilities;
    struct exportd *x;
    struct fake_storage storages[WORLD_STORAGES_MAX];
    struct list_node channels;
    struct world_client clients[WORLD_CLIENTS_MAX];
    bool disobeys; /* nothing is given back but by the test itself */
    uint64_t session, boot;
    uint32_t evict_ms, lease_ms;             /* as configured, from the next start on */
    uint32_t strays_s;                       /* the same; 0: the default */
    uint32_t session_tokens_max, tokens_max; /* the same */
    uint32_t lease_told_ms;                  /* to the last session that opened */
    uint64_t n_ids;                          /* each request has its own, ... */
    uint64_t again_id;                       /* ... but for this one, when it is not 0 */
    uint32_t inline_max;                     /* of exports that are made */
    bool damaged; /* the kv on purpose: world_close() does not check it */
    unsigned n_unanswered;
    void (*run)(struct world *w); /* let things happen until an answer comes */
    uint64_t moved[2];            /* of the last answer to a rename */
    uint32_t epochs_given;        /* to clients, of the file that is redistributed */
    unsigned n_first;             /* storages when the export was made */
};

void world_open(struct world *w, uint64_t seed);
/** Keys in the kv, but for those of requests that were done. */
size_t world_n_keys(struct world *w);
/** n storages admitted, an export "main" of this layout, a session. */
void world_make_export(struct world *w, unsigned n_storages, unsigned layout);
void world_start(struct world *w);
/** False when exportd refuses what lies in the kv. */
bool world_try_start(struct world *w);
/** Put one item into the kv behind the back of exportd, which is stopped. */
void world_put(struct world *w, const struct kv_item *item);
/** A session if one can be had; w->session again, if that is not over. */
void world_try_session(struct world *w);
/** Clean stop; 0 or what exportd said. */
int world_stop(struct world *w);
void world_close(struct world *w);
/** The process dies at this point: nothing more reaches the kv. Then started again. */
void world_kill(struct world *w);
/** The same with the newest n_lost unsynced commits lost. */
void world_power_cut(struct world *w, uint64_t n_lost);
void world_reopen_session(struct world *w);
/** The same, of one that still holds this inode EXCLUSIVE. */
void world_reopen_writing(struct world *w, uint64_t ino);
/** What sessions are asked for they give back; world_call() does so while it waits. To be repeated. */
void world_obey(struct world *w);
/** A session that is never heard of again: the grace of the next start lasts. */
void world_absent_session(struct world *w);

void world_send(struct world *w, unsigned op, enum rpc_role role, uint64_t session,
                const void *msg, size_t len, struct answer_got *got);
/** Send and wait; the status. out (may be NULL): the answer unpacked as desc, NULL if none. */
unsigned world_call(struct world *w, unsigned op, const ProtobufCMessage *req,
                    const ProtobufCMessageDescriptor *desc, void *out);
unsigned world_call_node(struct world *w, unsigned op, const ProtobufCMessage *req,
                         const ProtobufCMessageDescriptor *desc, void *out);

/* ---- the requests, short. Statuses; attributes through *attr where one is given. ---- */

/* An inode as answers tell of it. */
struct seen {
    uint64_t ino, size, change, blocks;
    uint32_t generation, mode, nlink, uid, gid, rdev;
    bool blocks_unsure;
    wide_ns atime_ns, mtime_ns;
    int64_t ctime_ns;
    bool has_data;
    uint32_t xattrs; /* XattrBits */
    uint32_t file_flags;
    /* of FileData, when there was one */
    bool with_data;
    uint32_t epoch, n_storages, dist_generation;
    uint32_t storages[32];
    bool truncate_pending;
    uint64_t truncate_size, truncate_version;
    bool existed;
    bool cut; /* WROTE */
};
unsigned t_lookup(struct world *w, uint64_t parent, const char *name, struct seen *out);
unsigned t_getattr(struct world *w, uint64_t ino, struct seen *out);
unsigned t_create(struct world *w, uint64_t parent, const char *name, uint32_t mode,
                  struct seen *out);
unsigned t_create_open(struct world *w, uint64_t parent, const char *name, bool exclusive,
                       struct seen *out);
/** As O_TMPFILE does; group 1001. */
unsigned t_create_nameless(struct world *w, uint64_t parent, uint32_t mode,
                           struct seen *out);
unsigned t_symlink(struct world *w, uint64_t parent, const char *name, const char *target,
                   struct seen *out);
unsigned t_unlink(struct world *w, uint64_t parent, const char *name,
                  struct seen *removed);
unsigned t_rmdir(struct world *w, uint64_t parent, const char *name);
unsigned t_link(struct world *w, uint64_t ino, uint64_t parent, const char *name);
unsigned t_rename(struct world *w, uint64_t parent, const char *name, uint64_t new_parent,
                  const char *new_name, uint32_t flags);
unsigned t_setattr(struct world *w, Rozo__MdSetattrReq req, struct seen *out);
unsigned t_truncate(struct world *w, uint64_t ino, uint64_t size, struct seen *out);
unsigned t_open(struct world *w, uint64_t ino, bool write, struct seen *out);
/** Of what it did not tell with t_wrote(), nothing has gone to storages; t_close_stored(): something may have. */
unsigned t_close(struct world *w, uint64_t ino, unsigned n);
unsigned t_close_stored(struct world *w, uint64_t ino, unsigned n);
unsigned t_wrote(struct world *w, uint64_t ino, uint64_t size, struct seen *out);
unsigned t_wrote_req(struct world *w, const Rozo__MdWroteReq *req, struct seen *out);
/** Of a write of this epoch; t_wrote(): nobody says. */
unsigned t_wrote_in(struct world *w, uint64_t ino, uint64_t size, uint32_t epoch,
                    struct seen *out);
unsigned t_truncated(struct world *w, uint64_t ino, uint64_t version, struct seen *out);
unsigned t_setxattr(struct world *w, uint64_t ino, const char *name, const void *val,
                    size_t len, uint32_t flags);
/** val: room for 65536; *len is its length. */
unsigned t_getxattr(struct world *w, uint64_t ino, const char *name, void *val,
                    size_t *len);
unsigned t_removexattr(struct world *w, uint64_t ino, const char *name);
unsigned t_storage_add(struct world *w, unsigned i, uint32_t *id, char error[256]);
unsigned t_export_create(struct world *w, const char *name, unsigned layout,
                         char error[256]);
uint64_t t_trash(struct world *w);

#define OK(call)         assert_int_equal(call, ROZO__STATUS__OK)
#define IS(status, call) assert_int_equal(call, ROZO__STATUS__##status)

#endif
