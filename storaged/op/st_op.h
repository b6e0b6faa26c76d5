/*
 * st_op.h - common parts of all requests on a file: caller, object, lock, projection
 * files, mark pages.
 *
 * For storaged/op and storaged/ops. An op is one struct that begins with a struct st_op.
 * Its kind lists its steps, which st_op_run_next() calls one after the other; one of the
 * first is st_op_enter(), for the object and its lock.
 */
#ifndef ROZO_STORAGED_OP_ST_OP_H
#define ROZO_STORAGED_OP_ST_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bufpool.h"
#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"
#include "storaged/disk/bad_page_disk.h"
#include "storaged/journal/journal.h"
#include "storaged/object/object.h"
#include "storaged/op/storage_config.h"

enum {
    /* ms; how long a request waits for room in the journal before it is BUSY */
    ROOM_WAIT_MS = 5000,
};
enum {
    PROJECTION_ANY = 255,
    BLOCKS_PER_REQUEST_MAX = 128,
    READ_COPY_MAX = 16384,
    COPIES_MAX = 32 << 20, /* bytes, in all long answers together */
    COPIES_IDLE_MAX = 8 << 20,
};

enum {
    REMOVED_BITS = 9, /* bits of the hash that select a set */
    /* entries of a set: more removed files in one set are rare below thousands */
    REMOVED_WAYS = 8,
    REMOVED_MAX = REMOVED_WAYS << REMOVED_BITS,
};

struct storage {
    struct storage_config config;
    struct env *env;
    struct disk *disk; /* &bad_pages.disk */
    struct bad_page_disk bad_pages;
    struct objects objects;
    struct journal *journal; /* owned */
    struct bufpool copies;   /* bodies copied for answers */
    size_t copies_bytes;     /* bytes in answers under way */
    /* Files removed since the start: sets by hash, the newest of a set first. */
    struct file_id removed[REMOVED_MAX];
    unsigned n_ops;     /* all requests under way */
    unsigned n_sending; /* answered requests that wait for their bytes to be sent */
    struct st_op *ops;  /* list of all requests under way */
    bool serving;       /* storage_serve() was called */
    bool stopping;
    enum { STOP_REQUESTS, STOP_JOURNAL, STOP_SYNC, STOP_DONE } stop_state;
    bool admitting;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    struct env_task start_task;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct env_task stop_task;
    struct object *stop_object; /* object being synced */
    struct sync_wait stop_wait;

    bool space_known;
    uint64_t space_at_ns; /* ns, monotonic; time of the last DISK_SPACE */
    uint64_t space_total, space_free;
    uint64_t space_used_since; /* bytes granted to writers since space_at_ns */

    struct { /* requests of clients in this time span and in the one before */
        uint64_t from_ns;
        unsigned n, n_before;
    } clients;
};

/* The checked file reference of a request. */
struct file_ref {
    struct file_id id;
    const struct codec *codec;
    uint8_t kind, layout;
    uint8_t n_storages;
    uint32_t block_bytes;
    bool full_quorum;
    uint32_t dist_generation;
    uint32_t storages[DIST_MAX];
};

enum st_op_next {
    OP_WAIT,  /* the step is called again later */
    OP_GO,    /* the step is done */
    OP_BAD,   /* op->rc says why */
    OP_DONE,  /* the op is done; only a step of the list may say so, like OP_AGAIN */
    OP_AGAIN, /* object and lock are released, and st_op_enter() is the next step */
};

enum { OP_STEPS_MAX = 16 };

struct st_op;
typedef enum st_op_next st_op_step(struct st_op *op);

/* One kind of op: its steps, in order, and its ends. */
struct st_op_kind {
    size_t bytes; /* size of the whole struct */
    /** Frees what the op owns; NULL: nothing. */
    void (*free)(struct st_op *op);
    /** Answers and frees an op that is done. NULL: success, without a message. */
    void (*done)(struct st_op *op);
    /** Answers and frees an op after OP_BAD. NULL: st_op_fail(op, op->rc). */
    void (*failed)(struct st_op *op);
    st_op_step *steps[OP_STEPS_MAX + 1]; /* up to the first NULL */
};

/* The lock that an op takes. */
enum op_access {
    OP_SHARES,
    OP_EXCLUSIVE,
    OP_LOOKS_AGAIN, /* exclusive; forgets all projections first */
};
/* The lock that an op has. */
enum op_held { OP_HOLDS_NOTHING, OP_HOLDS_SHARED, OP_HOLDS_EXCLUSIVE };

/* Progress of st_op_enter(). */
struct op_enter {
    enum {
        ENTER_OBJECT,
        ENTER_LOCK,
        ENTER_LOOK,
        ENTER_OPENED,
        ENTER_READ,
        ENTER_PARTIAL,
        ENTER_PARTIAL_SYNCED,
        ENTER_EMPTY,
        ENTER_QUARANTINED,
    } state;
    unsigned p;            /* the projection being looked up */
    bool none_quarantined; /* known, under this lock: no quarantined file exists */
};

/* Progress of st_op_create(), st_op_quarantine() and st_op_write_marks(). */
struct op_create {
    enum { CREATE_NONE, CREATE_OPENING, CREATE_WRITING, CREATE_UNDOING } state;
    int rc; /* error for which the creation is being undone */
    enum {
        QUARANTINE_NONE,
        QUARANTINE_SEEKING,
        QUARANTINE_LOOKING, /* looking up the other projections */
        QUARANTINE_RENAMING,
        QUARANTINE_SYNCING_NAME,
        QUARANTINE_DROPPING,
        QUARANTINE_SYNCING_DROP,
    } quarantined;
    enum { MARKS_NONE, MARKS_WRITING } marks;
    int marks_slot; /* slot of the mark page being written */
    /* files made by st_op_create(): complete, partial, or partial for a change that may
     * never take effect */
    enum { CREATES_COMPLETE, CREATES_PARTIAL, CREATES_PREPARED } what;
};

/* Requests of an op to the journal. */
struct op_journal {
    struct st_op_append *append; /* append under way; owned */
    struct journal_frame *entry; /* the appended frame; referenced */
    bool dropping_again;
    struct wal_wait wait;
    uint64_t number; /* number of the newest frame that `wait` covers */
    enum {
        WAL_SYNC_NONE,    /* no sync is under way */
        WAL_SYNC_RUNS,    /* a sync is under way; nobody waits for it */
        WAL_SYNC_AWAITED, /* a sync is under way, and the step waits for it */
        WAL_SYNC_JOINED,  /* rc is known */
    } sync;
    int rc;
    /* result of the projection files' sync, kept until the journal's has ended */
    int files_rc;
    struct journal_waiter room;
    uint64_t room_deadline_ns;
    bool waited_marks;
};

struct st_op {
    struct st_op *prev, *next; /* in st->ops */
    struct storage *st;        /* borrowed */
    struct rpc_call *call;     /* owned until the answer; NULL: an op of the journal */
    void (*internal_done)(void *arg, int rc); /* callback of an op of the journal */
    void *internal_arg;
    const struct st_op_kind *kind;
    unsigned step; /* index of the step under way */
    struct file_ref ref;
    uint32_t want; /* bitmap of projections to look up before OP_GO */
    enum op_access access;
    bool changes;   /* a client's request that is refused after its session has ended */
    bool any_homes; /* headers may have a distribution that differs from ref's */
    int rc;         /* result of the last disk request; after OP_BAD: the reason */

    enum op_held held;
    struct object *obj; /* referenced */
    struct object_wait wait;
    struct sync_wait sync;
    bool syncing;         /* `sync` is under way */
    bool sending;         /* answered, see st_op_sending() */
    struct disk_req dr;   /* the disk request under way; one at a time */
    struct proj *dr_proj; /* the projection file that it changes */
    struct iovec iov;
    struct env_task task;
    struct op_enter enter;
    struct op_create create;
    struct op_journal journal;
    uint8_t *front; /* header and mark pages, PROJFILE_FRONT_BYTES; owned */
    char path[PROJFILE_PATH_MAX];
    char quarantined[PROJFILE_PATH_MAX];
};

/* ---- begin and end ---- */

/** True if the session of this call has ended: the request must not change anything. */
bool storage_has_fenced(const struct storage *st, const struct rpc_call *call);
/**
 * Checks the file and the rights of a request. Returns 0, -EBADMSG, -EACCES,
 * -ROZO_ENOT_ADMITTED, -ROZO_EWRONG_STORAGE, or -ROZO_EFENCED (a write after the end of
 * its session). rights 0: no capability is needed (never used for clients).
 */
int st_op_ref_check(struct storage *st, const struct rpc_call *call,
                    const Rozo__FileRef *ref, uint32_t to_storage, unsigned rights,
                    struct file_ref *out);
/** Checks the ref of a node's request to a storage that has no place in the file. */
int st_op_ref_check_elsewhere(struct storage *st, const Rozo__FileRef *ref,
                              uint32_t to_storage, struct file_ref *out);

/**
 * Makes an op for the journal's own work; it calls done(arg, rc) instead of answering.
 * NULL without memory.
 */
struct st_op *st_op_new_internal(struct storage *st, const struct pending_file *f,
                                 const struct st_op_kind *kind,
                                 void (*done)(void *arg, int rc), void *arg);
/** Ends an op of st_op_new_internal(). rc 0: success. */
void st_op_end_internal(struct st_op *op, int rc);
/**
 * True for requests of nodes and of the journal: the answers of all storages have decided
 * them.
 */
static inline bool st_op_is_decided(const struct st_op *op)
{
    return op->call == NULL || op->call->role == RPC_ROLE_NODE;
}
/** True if clients have sent more than a few requests lately. */
bool storage_serves_clients(struct storage *st);
/**
 * Makes an op of a kind, zeroed. Takes call. Without memory it answers and returns NULL.
 */
struct st_op *st_op_new(struct storage *st, struct rpc_call *call,
                        const struct st_op_kind *kind);
/** Posts the first step of an op; rc not 0: answers with that error instead. */
void st_op_start(struct st_op *op, int rc);
/** Calls the steps, from the one under way on, until one must wait, or the op ends. */
void st_op_run_next(struct st_op *op);
/** Takes the object and the lock, and looks up the projections of op->want. */
enum st_op_next st_op_enter(struct st_op *op);
/**
 * Enters like st_op_enter(), for requests that need a projection file. During a rebuild
 * most files are absent, which is no loss of anything that was ever acknowledged here.
 */
enum st_op_next st_op_enter_present(struct st_op *op);
/** Returns the file of the request, for entries of the journal. */
struct storage_file st_op_file(const struct st_op *op);
/** Sets op->rc and returns OP_BAD. */
enum st_op_next st_op_bad(struct st_op *op, int rc);
/** Waits until the acknowledged changes of requests to the object are stable. */
enum st_op_next st_op_sync(struct st_op *op);
/** Waits like st_op_sync(), also for the changes of the applier. */
enum st_op_next st_op_sync_all(struct st_op *op);
/** True if this loop serves the file. */
bool storage_owns(const struct storage *st, const struct file_id *id);
/** Returns the value for StWriteResp.verifier. */
uint64_t storage_verifier(const struct storage *st);
/** Releases the lock before the op ends; the object stays. */
void st_op_unlock(struct st_op *op);
/** Answers without message and payload, and frees the op. status: enum Rozo__Status. */
void st_op_finish(struct st_op *op, uint16_t status);
/** Answers with the status for an errno, and frees the op. */
void st_op_fail(struct st_op *op, int rc);
/** Fails an op of which a part may go to the journal: without space it is BUSY. */
void st_op_fail_busy(struct st_op *op);
/** Answers with a message and frees the op. */
void st_op_finish_message(struct st_op *op, uint16_t status, const ProtobufCMessage *msg);
/**
 * Marks an answered op that ends when its bytes are sent: storage_stop() does not wait
 * for it.
 */
void st_op_sending(struct st_op *op);
/** Frees an op whose call was answered. */
void st_op_free(struct st_op *op);

/* ---- disk ---- */

/** Submits op->dr. When it is done the step is called with the result in op->rc. */
void st_op_submit(struct st_op *op);
void st_op_read(struct st_op *op, struct proj *proj, uint64_t offset, void *buf,
                uint64_t len);
void st_op_write(struct st_op *op, struct proj *proj, uint64_t offset,
                 const struct iovec *iov, unsigned n_iov, uint64_t len);
void st_op_disk(struct st_op *op, enum disk_op what, struct proj *proj, uint64_t offset,
                uint64_t len);

/** Reports blocks [first, end) as damaged here, so that they are healed. */
void st_op_tell_damaged(const struct st_op *op, uint64_t first, uint64_t end);

/**
 * Reads the heads of n blocks of one extent into buf; bytes beyond the end of the file
 * are zero. If the file ends before them nothing is submitted and it returns false.
 */
bool st_op_read_heads(struct st_op *op, struct proj *proj, uint64_t first, unsigned n,
                      uint8_t *buf);
/**
 * Zeroes the heads that were not read. Call it after st_op_read_heads() was true and
 * op->rc is 0.
 */
void st_op_read_heads_done(struct st_op *op, uint8_t *buf);

/* bytes of an extent's heads, of any projection */
enum { HEADS_MAX = EXTENT_BLOCKS * (RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX) };

/* A walk over the heads of [at, end) of one projection file, extent by extent. */
struct head_scan {
    uint64_t at, end;
    unsigned n;      /* blocks whose heads are in buf */
    uint8_t *buf;    /* owned by the caller; HEADS_MAX bytes */
    bool skip_holes; /* skip holes of the file system, and stop at the end of the file */
    enum { SCAN_OFF, SCAN_NEXT, SCAN_SEEKING, SCAN_READING, SCAN_WRITING } state;
};
void head_scan_start(struct head_scan *scan, uint64_t first, uint64_t end,
                     bool skip_holes);
/** Ends a walk before its end. */
void head_scan_stop(struct head_scan *scan);
static inline bool head_scan_is_on(const struct head_scan *scan)
{
    return scan->state != SCAN_OFF;
}
/**
 * Reads the heads of the next n blocks. OP_GO with n 0: the walk is over, and off.
 * Between two calls the caller may use op for other disk requests.
 */
enum st_op_next st_op_scan(struct st_op *op, struct proj *proj, struct head_scan *scan);
/** Writes the heads in buf, which the caller changed; the walk goes on behind them. */
enum st_op_next st_op_scan_write(struct st_op *op, struct proj *proj,
                                 struct head_scan *scan);

/**
 * Grants len bytes of space for new records; counts them without allocating. OP_BAD with
 * -ENOSPC if there is too little.
 */
enum st_op_next st_op_space(struct st_op *op, uint64_t len);

/** Returns the bytes that first writes may still take, as of the last DISK_SPACE. */
uint64_t storage_space_left(const struct storage *st);

/**
 * Remembers that the file is removed. A late request, or a repair that began before,
 * could otherwise create it again without an owner. Only the newest removals are
 * remembered; `rozo fsck` finds the other files.
 */
void st_op_note_removed(struct st_op *op);
bool st_op_was_removed(struct st_op *op);

/**
 * Creates projection file p, which is absent. The object is held exclusively. written:
 * blocks that the header announces; NULL: none. -ROZO_ENO_FILE: the file was removed.
 */
enum st_op_next st_op_create(struct st_op *op, unsigned p, uint32_t epoch,
                             const struct mark_range *written);
/**
 * Removes a file that st_op_create() just made and that is still empty. Ends with the
 * op->rc with which it began.
 */
enum st_op_next st_op_create_undo(struct st_op *op, unsigned p);
/**
 * Writes the first mark page, an empty one, of a new file. Removes the file if that
 * fails.
 */
enum st_op_next st_op_first_page(struct st_op *op, unsigned p);
/**
 * Looks whether a damaged file was quarantined for p, which is absent, and not replaced.
 * If so p will be created as partial: see object.emptied.
 */
enum st_op_next st_op_seek_quarantined(struct st_op *op, unsigned p);
/**
 * Quarantines damaged projection file p, if it is damaged, to make way for a record or
 * mark of `version`; p is absent then. The first time it refuses with
 * -ROZO_ESTALE_VERSION, so that no late request replaces newer records that were lost:
 * a live client comes again with a fresh epoch. -ROZO_EDAMAGED: the file must be left
 * alone. Afterwards nothing that the journal has of p counts, nor its marks: the caller
 * must check versions again.
 */
enum st_op_next st_op_quarantine(struct st_op *op, unsigned p, uint64_t version);

/**
 * Writes a mark page with these marks and written blocks and at least this epoch, and
 * makes them proj's (copied). If the page is too small, the smallest ranges of written
 * are left out.
 */
enum st_op_next st_op_write_marks(struct st_op *op, unsigned p, const struct marks *marks,
                                  const struct marks *written, uint32_t epoch);
/** Returns the marks of proj, perhaps empty. */
const struct marks *proj_marks(const struct proj *proj);
/** Stores a copy of the marks. Returns 0 or -ENOMEM. */
int proj_marks_keep(struct proj *proj, const struct marks *marks);
/** Returns the blocks that are known to have heads: a zero head there was lost. */
const struct marks *proj_written(const struct proj *proj);
/** Copies proj_written() to a whole struct, to be changed. */
void proj_written_copy(const struct proj *proj, struct marks *out);
/**
 * Returns the end of the blocks about which proj knows anything, even if its file is
 * shorter.
 */
uint64_t proj_blocks(const struct proj *proj);
/**
 * Returns the whole pages of the file that hold nothing but bodies of n blocks of one
 * extent; from >= to: none.
 */
struct disk_range proj_body_pages(const struct proj *proj, uint64_t first, unsigned n);
/** Stores a copy of the written blocks. Returns 0 or -ENOMEM. */
int proj_written_keep(struct proj *proj, const struct marks *written);
/**
 * Returns the error for an absent file: -ROZO_ENO_FILE, by which readers and healers
 * conclude that this storage never had any of it; -ROZO_EDAMAGED if it may have been
 * lost.
 */
int st_op_no_file(const struct st_op *op);
/** True if all corrupt files here lost their header before any sync of them had ended. */
bool st_op_was_never_synced(const struct st_op *op);
/**
 * Sets *version to the newest version that the lost record of a damaged block may have
 * had. head: its head as it lies there. Returns false if only the bound of the whole file
 * is known, which for a partial file is not even certain.
 */
bool proj_lost_floor(const struct proj *proj, uint64_t block, const uint8_t *head,
                     uint64_t *version);
/**
 * Returns whether damage in place lies below a pending mark, and so is older: nothing is
 * written in place under a pending mark. Exceptions: a newer committed record may be in
 * place already; a mark that keeps newer records may lie below the damage; so may a mark
 * that a lost file had applied. head: the damaged head as it lies there.
 */
bool proj_is_under(const struct proj *proj, uint64_t block, const uint8_t *head,
                   const struct pending_mark *m);
/**
 * Bounds the versions of records lost in these blocks, because a request was refused for
 * them: a request of a later epoch may pass.
 */
void proj_set_floor(struct proj *proj, uint64_t first, uint64_t end);
/**
 * Removes the bounds of proj_set_floor() in these blocks, because a new record is written
 * in place: a later loss may be of that record.
 */
void proj_forget_floor(struct proj *proj, uint64_t first, uint64_t end);
/**
 * Inspects a head like record_inspect(); p may be absent. A head that was lost is
 * damaged.
 */
enum record_state st_op_inspect(const struct st_op *op, unsigned p, uint64_t block,
                                const uint8_t *head, struct record_header *h);

/* ---- the journal ---- */

/** Returns what is pending of the op's file, or NULL. */
struct pending_file *st_op_pending_file(const struct st_op *op);
/** True if the client should sync and commit soon. */
bool st_op_has_pressure(const struct st_op *op);
/**
 * Waits for room in the journal and, for a mark, among those of the file. OP_WAIT: the
 * lock was released; the step must then return OP_AGAIN. OP_BAD: -EBUSY, after a while.
 */
enum st_op_next st_op_journal_room(struct st_op *op, bool is_mark);
/** Releases object and lock; st_op_enter() takes them again. */
void st_op_enter_again(struct st_op *op);
/**
 * Waits until committed marks of the file are applied, before others are laid over them.
 * Call it before st_op_enter().
 */
enum st_op_next st_op_marks_first(struct st_op *op);
/**
 * Appends a frame; iov must stay until OP_GO. Then op->journal.entry is the frame. OP_BAD
 * with -EBUSY: the journal is full.
 */
enum st_op_next st_op_append(struct st_op *op, uint8_t kind, const struct iovec *iov,
                             unsigned n_iov, size_t len);
/**
 * Appends a frame that drops d, and a second one if a copy may lie behind the first; then
 * removes d from the index. header: JOURNAL_RECORD_HEADER_BYTES, which stay until OP_GO.
 * The caller syncs.
 */
enum st_op_next st_op_append_drop(struct st_op *op, const struct pending_drop *d,
                                  uint8_t *header);
/** True if no sync of the journal has failed since the frame was appended. */
bool st_op_frame_is_good(const struct st_op *op, const struct journal_frame *entry);
/** True if all that is pending of the op's file is on stable storage. */
bool st_op_file_is_synced(const struct st_op *op);
/** Starts a sync of the journal. st_op_wal_sync_join() waits for it. */
void st_op_wal_sync_start(struct st_op *op);
enum st_op_next st_op_wal_sync_join(struct st_op *op);
/** Waits like st_op_wal_sync_join(); another sync of the op may follow. */
enum st_op_next st_op_wal_sync_end(struct st_op *op);
/** True if st_op_wal_sync_join() was called. */
bool st_op_wal_is_joined(const struct st_op *op);
/**
 * Syncs the projection files (if `files`), then waits for the journal's sync. Both have
 * ended before it returns, even if one failed.
 */
enum st_op_next st_op_sync_both(struct st_op *op, bool files);

/** Returns the bitmap of all projections of a file. */
static inline uint32_t file_ref_projections(const struct file_ref *ref)
{
    return (UINT32_C(1) << codec_n(ref->codec)) - 1;
}
/**
 * Takes blocks [first, *end) of a request; n_blocks 0: no end. Returns false if they are
 * invalid.
 */
static inline bool blocks_take(uint64_t first, uint64_t n_blocks, uint64_t *end)
{
    if (first >= PROJFILE_BLOCKS_MAX || n_blocks > PROJFILE_BLOCKS_MAX - first)
        return false;
    *end = n_blocks == 0 ? UINT64_MAX : first + n_blocks;
    return true;
}
/** Returns how many blocks of [first, end) lie in the extent of first. */
static inline unsigned extent_part(uint64_t first, uint64_t end)
{
    uint64_t left = EXTENT_BLOCKS - first % EXTENT_BLOCKS;

    return (unsigned)(end - first < left ? end - first : left);
}

/** Answers with one packed message. */
void reply_message(struct rpc_call *call, uint16_t status, const ProtobufCMessage *msg);

#endif
