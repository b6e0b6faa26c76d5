/*
 * object.h - the state of one file in the core: its projections here, open files, lock,
 * syncs.
 *
 * Objects are kept in a bounded cache; the least recently used idle one is evicted. For
 * the rooms that serve requests. One thread.
 */
#ifndef ROZO_STORAGED_OBJECT_OBJECT_H
#define ROZO_STORAGED_OBJECT_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/env/disk.h"
#include "common/env/env.h"
#include "storaged/format/generation.h"
#include "storaged/format/projfile.h"
#include "storaged/object/unstable_ranges.h"

enum proj_state {
    PROJ_UNKNOWN, /* file not looked up yet */
    PROJ_ABSENT,  /* file missing, or its creation is unfinished */
    PROJ_READY,
    PROJ_DAMAGED, /* header or marks are corrupt: no reading, no writing */
};

/* Records that were lost: their epochs went up to `last`. */
struct lost_epochs {
    bool known;
    uint32_t last;
};

/* One projection file on this storage. */
struct proj {
    struct disk_file *file; /* owned; NULL if damaged */
    uint8_t n_homes; /* distribution from its header: n_homes, homes, dist_generation */
    uint32_t homes[DIST_MAX];
    uint32_t dist_generation;
    struct geometry geo;
    uint64_t size;   /* bytes; upper bound of the file's end, behind which all is zeros */
    uint64_t newest; /* upper bound of the versions of records and marks here */
    uint32_t epoch;  /* upper bound of the epochs here, from mark page or header */
    uint64_t marks_sequence;
    int marks_slot; /* mark page written last, 0 or 1; -1: none */
    /* mark page that may be the newest stable one, so the next is written to the
     * other; or -1 */
    int synced_slot;
    unsigned n_pages;      /* mark pages written */
    struct marks *marks;   /* owned; NULL: none */
    struct marks *written; /* owned, with room for its n ranges only; NULL: none */
    bool unsaved;  /* the mark pages lack some of `written`, or the flag "partial" */
    bool partial;  /* blocks that were never written here are unknown, not holes */
    bool unsynced; /* partial, and nothing unknown was ever synced */
    struct lost_epochs lost; /* records of the lost file that this one replaces */
    /* owned; NULL: none. Bounds for the versions of records lost in these blocks */
    struct marks *floors;
    bool dirty;      /* written since the last sync began, or unknown */
    bool name_dirty; /* the directory entry may not be stable */
    bool promised;   /* a sync may have called the contents stable */
};

struct object;

/* One wait for the lock of an object. */
struct object_wait {
    struct env_task task; /* fn is called when the lock is held */
    struct object_wait *next;
    bool exclusive;
};

/* One wait until acknowledged changes are on stable storage. */
struct sync_wait {
    struct sync_wait *next;
    uint64_t want;        /* obj->n_changes to be synced */
    struct env_task task; /* posted after rc is set */
    int rc;
};

struct object {
    struct object *hash_next;
    struct object *lru_prev, *lru_next; /* links of objects.lru; NULL unless idle */
    struct objects *all;                /* borrowed */
    struct file_id id;
    uint32_t hash; /* file_id_hash() */
    unsigned n_refs;
    bool dead; /* removed: out of the table, not used for new requests */

    /* NULL until a request names it; may change while all are absent */
    const struct codec *codec;
    uint8_t state[CODEC_N_MAX];     /* enum proj_state */
    struct proj *proj[CODEC_N_MAX]; /* owned; NULL unless READY or DAMAGED */
    uint32_t foreign; /* bitmap of damaged ones of an unknown format: left alone */
    /* bitmap of damaged ones with unreadable pages: read again at unread_until_ns */
    uint32_t unread;
    uint64_t unread_until_ns;
    /* bitmap of absent ones: the file has no header, or is quarantined */
    uint32_t emptied;
    /* bitmap of absent and damaged ones whose header a power loss took before any sync
     * had ended */
    uint32_t unsynced;
    /* bitmap of unknown ones that object_forget() closed with unsynced changes */
    uint32_t closed;
    /* bitmap of absent ones for which a quarantined file was looked for */
    uint32_t sought;
    struct lost_epochs lost; /* records of damaged files */

    unsigned n_readers;
    bool writer;
    struct object_wait *wait_first, *wait_last;

    /* changes that reached the disk; those that are synced */
    uint64_t n_changes, n_synced;
    /* n_changes at the last one for a request; changes of the journal's applier are
     * safe in the journal until it syncs them */
    uint64_t n_asked;
    struct unstable_ranges unstable;
    bool syncing;
    uint64_t sync_target;
    unsigned sync_at; /* 2 * projection, + 1 for its name */
    int sync_rc;
    unsigned sync_pages[CODEC_N_MAX]; /* n_pages when the sync began */
    struct disk_req sync_req;
    char sync_path[PROJFILE_PATH_MAX];
    struct sync_wait *sync_first, *sync_last;

    bool stop_tried;  /* given by objects_next_unsynced() */
    unsigned n_sends; /* answers not sent yet whose file segments lie here */
};

struct objects {
    struct env *env;
    struct disk *disk;
    struct object **buckets;
    unsigned n_buckets; /* a power of two */
    unsigned n, n_max;
    unsigned n_files, files_max;
    /* ns, monotonic; when a failed sync was last logged; 0: never */
    uint64_t sync_failed_ns;
    unsigned n_syncs_failed; /* failed syncs since sync_failed_ns */
    struct object lru; /* head of the ring of idle objects, most recently used first */
    struct generations *generations; /* borrowed; informed when a sync failed */
};

int objects_init(struct objects *all, struct env *env, struct disk *disk,
                 struct generations *generations, unsigned files_max);
/** Frees the cache. All objects must be idle. */
void objects_close(struct objects *all);

/**
 * Finds or makes the object of a file and takes a reference. -EBUSY if all are in use;
 * -ENOMEM.
 */
int object_get(struct objects *all, const struct file_id *id, struct object **out);
void object_put(struct object *obj);
/**
 * Takes a removed file out of the table. Holders of a reference finish with it; later
 * requests get another object.
 */
void object_kill(struct object *obj);

/**
 * Returns an idle object with unsynced changes, referenced, or NULL. Each is given once.
 */
struct object *objects_next_unsynced(struct objects *all);

/**
 * Takes the lock. True: it is held. False: w->task runs when it is. First come, first
 * served.
 */
bool object_lock(struct object *obj, struct object_wait *w, bool exclusive);
void object_unlock(struct object *obj, bool exclusive);
/** Turns an exclusive lock into a shared one. */
void object_downgrade(struct object *obj);

/** True if the projections in the bitmap `want` are looked up with this codec. */
bool object_knows(const struct object *obj, const struct codec *codec, uint32_t want);
/**
 * Compares a distribution and its generation with the headers of those projections in
 * `want` that are here. Returns 0, also for a later generation, since only ST_REDIST
 * changes headers; -ROZO_EMOVED if the file has a later distribution; -EBADMSG if this
 * generation has other storages.
 */
int object_check_homes(const struct object *obj, uint32_t want, const uint32_t *storages,
                       unsigned n, uint32_t dist_generation);
/**
 * Forgets a file without projections here, to look it up with another codec. Returns
 * false if there are any.
 */
bool object_recode(struct object *obj, const struct codec *codec);
uint32_t object_present(const struct object *obj); /* bitmap of READY and DAMAGED */
uint32_t object_damaged(const struct object *obj); /* bitmap of DAMAGED */
static inline struct proj *object_ready(const struct object *obj, unsigned p)
{
    return obj->state[p] == PROJ_READY ? obj->proj[p] : NULL;
}

/**
 * Closes some files of idle objects, if their descriptors are smaller than `below`.
 * Returns false if there are none.
 */
bool objects_close_idle(struct objects *all, unsigned below);
/** Makes room for one more open file; closes idle ones. Returns 0 or -EBUSY. */
int objects_room_for_file(struct objects *all);
/**
 * Adds an opened file as projection p, still in state UNKNOWN. Takes file; -ENOMEM closes
 * it.
 */
int object_add_file(struct object *obj, unsigned p, struct disk_file *file,
                    uint64_t size);
/**
 * Makes the projections here unknown, to be looked up again, unless a sync or an answer
 * is under way. The object is held exclusively.
 */
void object_forget(struct object *obj);
/** Frees the proj, closes its file and sets the state. */
void object_drop_file(struct object *obj, unsigned p, enum proj_state state);

/**
 * Makes the changes acknowledged so far stable. True: they are. False: w->task runs with
 * w->rc. Callers that come while a sync runs share the next one. The caller holds a
 * reference and no lock.
 */
bool object_sync(struct object *obj, struct sync_wait *w);

#endif
