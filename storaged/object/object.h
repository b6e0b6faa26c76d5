/*
 * object.h - what the core knows of one file: its projections here, their open files, who works
 * on it. A bounded cache of them; the least recently used idle one makes room.
 *
 * For the rooms that serve requests. One thread.
 */
#ifndef ROZO_STORAGED_OBJECT_OBJECT_H
#define ROZO_STORAGED_OBJECT_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/env/env.h"
#include "storaged/disk/disk.h"
#include "storaged/format/generation.h"
#include "storaged/format/projfile.h"
#include "storaged/object/unstable_ranges.h"

enum proj_state {
    PROJ_UNKNOWN, /* nobody has looked */
    PROJ_ABSENT,  /* no projection file, or one whose creation did not get to its end */
    PROJ_READY,
    PROJ_DAMAGED, /* header or marks cannot be believed: no reading, no writing */
};

/* One projection file that is here. */
struct proj {
    struct disk_file *file; /* owned; NULL when damaged */
    uint8_t n_homes;        /* the distribution, as its header says */
    uint32_t homes[DIST_MAX];
    uint32_t dist_generation;
    struct geometry geo;
    uint64_t size;   /* the file ends here or before; what lies beyond reads as zeros */
    uint64_t newest; /* no record and no mark here is newer */
    uint32_t epoch;  /* what the mark page or the header says of that */
    uint64_t marks_sequence;
    int marks_slot;  /* where the newest mark page lies; -1: none written */
    int synced_slot; /* mark page that may be the newest on stable storage, so the next one
                               goes to the other; or -1 */
    unsigned n_pages;      /* mark pages written */
    struct marks *marks;   /* owned; NULL: none */
    struct marks *written; /* owned, only as long as its n ranges; NULL: none */
    bool unsaved;          /* the pages do not say all of `written`, or not "partial" */
    bool partial;          /* what was never written here is unknown, not a hole */
    bool unsynced;         /* and of what is unknown nothing was ever synced */
    bool
        floor_set; /* what the one had that it is in place of is of floor_epoch or before */
    uint32_t floor_epoch;
    struct marks
        *floors;     /* owned; NULL: none. What was lost in these blocks is not newer */
    bool dirty;      /* written since the last sync began, or not known */
    bool name_dirty; /* its directory entry may not be on stable storage */
    bool promised;   /* a sync may have promised what lies here */
};

struct object;

/* Somebody waiting for the lock of an object. */
struct object_wait {
    struct env_task task; /* its fn is called when the lock is held */
    struct object_wait *next;
    bool exclusive;
};

/* Somebody waiting until what was acknowledged is on stable storage. */
struct sync_wait {
    struct sync_wait *next;
    uint64_t want;        /* obj->n_changes that must be synced */
    struct env_task task; /* posted when rc is set */
    int rc;
};

struct object {
    struct object *hash_next;
    struct object *lru_prev, *lru_next; /* only while idle */
    struct objects *all;                /* borrowed */
    struct file_id id;
    uint32_t hash; /* file_id_hash() */
    unsigned n_refs;
    bool dead; /* removed: out of the table, not to be used any more */

    const struct codec *codec;  /* NULL until someone said; may change while all absent */
    uint8_t state[CODEC_N_MAX]; /* enum proj_state */
    struct proj *proj[CODEC_N_MAX]; /* owned; where READY or DAMAGED */
    uint32_t foreign; /* of the damaged: a format we do not know, to be left alone */
    uint32_t
        unread; /* of the damaged: pages could not be read; tried again when it is time */
    uint64_t unread_until_ns;
    uint32_t emptied; /* of the absent: there is a file, without a header, or put aside */
    uint32_t
        unsynced; /* of the absent and damaged: power took the header before any sync ended */
    uint32_t closed; /* of the unknown: what no sync had covered when it was forgotten */
    uint32_t sought; /* of the absent: we know whether one was put aside */
    bool floor_set;  /* records in damaged files are of floor_epoch or before */
    uint32_t floor_epoch;

    unsigned n_readers;
    bool writer;
    struct object_wait *wait_first, *wait_last;

    uint64_t n_changes, n_synced; /* changes that reached the disk; those synced */
    uint64_t
        n_asked; /* n_changes at the last one that somebody asked for: what the journal's applier
                         does is safe in the journal until it syncs by itself */
    struct unstable_ranges unstable;
    bool syncing;
    uint64_t sync_target;
    unsigned sync_at; /* 2 * projection, + 1 for its name */
    int sync_rc;
    unsigned sync_pages[CODEC_N_MAX]; /* n_pages when it began */
    struct disk_req sync_req;
    char sync_path[PROJFILE_PATH_MAX];
    struct sync_wait *sync_first, *sync_last;

    bool stop_tried;  /* objects_next_unsynced() gave it */
    unsigned n_sends; /* answers whose file segments may not be sent yet */
};

struct objects {
    struct env *env;
    struct disk *disk;
    struct object **buckets;
    unsigned n_buckets; /* power of two */
    unsigned n, n_max;
    unsigned n_files, files_max;
    uint64_t sync_failed_ns; /* when a sync that failed was last logged; 0: never */
    unsigned n_syncs_failed; /* since then */
    struct object lru;       /* head of the ring of idle ones, most recently used first */
    struct generations *generations; /* borrowed; told when a sync failed */
};

int objects_init(struct objects *all, struct env *env, struct disk *disk,
                 struct generations *generations, unsigned files_max);
/** All must be idle. */
void objects_close(struct objects *all);

/** Find or make; a reference is taken. -EBUSY when all are in use, -ENOMEM. */
int object_get(struct objects *all, const struct file_id *id, struct object **out);
void object_put(struct object *obj);
/** Removed: whoever holds it finishes, whoever asks anew gets another. */
void object_kill(struct object *obj);

/** An idle object with unsynced changes, referenced; NULL: none. Failed ones are not given again. */
struct object *objects_next_unsynced(struct objects *all);

/** True: held. False: w->task runs when it is. First come, first served. */
bool object_lock(struct object *obj, struct object_wait *w, bool exclusive);
void object_unlock(struct object *obj, bool exclusive);
/** From exclusive to shared. */
void object_downgrade(struct object *obj);

/** Are the projections of `want` looked up, under this codec? */
bool object_knows(const struct object *obj, const struct codec *codec, uint32_t want);
/**
 * Hold a distribution and its generation against the headers of those projections of `want`
 * that are here. 0, also for a later generation: only ST_REDIST changes headers. -EREMOTE: the
 * file lies elsewhere by now. -EBADMSG: this generation has other storages.
 */
int object_check_homes(const struct object *obj, uint32_t want, const uint32_t *storages,
                       unsigned n, uint32_t dist_generation);
/** Forget what is known of a file without projections, to look again under another codec. */
bool object_recode(struct object *obj, const struct codec *codec);
uint32_t object_present(const struct object *obj); /* READY or DAMAGED, a bitmap */
uint32_t object_damaged(const struct object *obj); /* DAMAGED, a bitmap */
static inline struct proj *object_ready(const struct object *obj, unsigned p)
{
    return obj->state[p] == PROJ_READY ? obj->proj[p] : NULL;
}

/** Close some files of objects that nobody uses, with descriptors smaller than `below`. False: there are none. */
bool objects_close_idle(struct objects *all, unsigned below);
/** May one more file be opened? Closes idle ones for it; -EBUSY. */
int objects_room_for_file(struct objects *all);
/** A file was opened: make its proj, state UNKNOWN still. Takes file; -ENOMEM closes it. */
int object_add_file(struct object *obj, unsigned p, struct disk_file *file,
                    uint64_t size);
/** What is known of the projections here is looked up anew, unless something is under way. Held exclusively. */
void object_forget(struct object *obj);
/** Throw the proj away again (closes its file). */
void object_drop_file(struct object *obj, unsigned p, enum proj_state state);

/**
 * Bring to stable storage what was acknowledged until now. True: it is. False: w->task runs with
 * w->rc. Those who ask while a sync runs share the next one. Hold a reference, no lock.
 */
bool object_sync(struct object *obj, struct sync_wait *w);

#endif
