/*
 * st_op.h - what all requests on a file have in common: who asks, the object, its lock, looking up
 * and making projection files, writing mark pages. For storaged/ops.
 *
 * An op is one struct with a struct st_op first and one step function. A step calls st_op_enter() until
 * it says OP_GO, then does its own work, and ends with st_op_finish() or st_op_fail().
 */
#ifndef ROZO_STORAGED_OPS_ST_OP_H
#define ROZO_STORAGED_OPS_ST_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bufpool.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"
#include "storaged/disk/bad_page_disk.h"
#include "storaged/disk/disk.h"
#include "storaged/journal/journal.h"
#include "storaged/object/object.h"
#include "storaged/ops/storage.h"

enum {
    ROOM_WAIT_MS =
        5000, /* a request waits so long for room in the journal, then it is BUSY */
};
enum {
    PROJECTION_ANY = 255,
    BLOCKS_PER_REQUEST_MAX = 128,
    READ_COPY_MAX = 16384,
    COPIES_MAX = 32 << 20, /* over all long answers */
    COPIES_IDLE_MAX = 8 << 20,
};

enum {
    REMOVED_BITS = 9, /* sets, by hash */
    REMOVED_WAYS =
        8, /* of a set: more than that of one are rare before there are thousands */
    REMOVED_MAX = REMOVED_WAYS << REMOVED_BITS,
};

struct storage {
    struct storage_config config;
    struct env *env;
    struct disk *disk; /* = &patient.disk */
    struct bad_page_disk bad_pages;
    struct objects objects;
    struct journal *journal; /* owned */
    struct bufpool copies;   /* of bodies that go into answers */
    size_t copies_bytes;     /* of those under way */
    /* Files that were removed since the start: sets by hash, the newest of a set first. */
    struct file_id removed[REMOVED_MAX];
    unsigned n_ops;     /* all */
    unsigned n_sending; /* those answered, waiting for their bytes to be sent */
    struct st_op *ops;  /* all under way */
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
    struct object *stop_object; /* being synced */
    struct sync_wait stop_wait;

    bool space_known;
    uint64_t space_at_ns; /* when it was asked for */
    uint64_t space_total, space_free;
    uint64_t space_used_since; /* bytes promised to writers since then */

    struct { /* requests of clients: in this span of time, in the one before */
        uint64_t from_ns;
        unsigned n, n_before;
    } clients;
};

/* The file of a request, every field checked. */
struct file_ref {
    struct file_id id;
    const struct codec *codec;
    uint8_t kind, layout;
    uint8_t n_storages;
    uint32_t block_bytes;
    uint32_t dist_generation;
    uint32_t storages[DIST_MAX];
};

enum st_op_next {
    OP_WAIT, /* step will be called again */
    OP_GO,
    OP_BAD, /* op->rc says why; the caller's step fails the op */
};

struct st_op {
    struct st_op *prev, *next; /* in st->ops */
    struct storage *st;        /* borrowed */
    struct rpc_call *call;     /* owned until the answer; NULL: the journal's own */
    void (*internal_done)(void *arg, int rc); /* then */
    void *internal_arg;
    void (*step)(struct st_op *op);
    void (*free)(struct st_op *op);
    struct file_ref ref;
    uint32_t want;   /* projections to be looked up before OP_GO */
    bool exclusive;  /* wanted; what is held stands in `held` */
    bool changes;    /* for a client: not once its session is over */
    bool look_again; /* exclusive: what is known of the projections is read anew */
    bool any_homes;  /* the distribution of ref need not be that of the headers */
    bool
        makes_partial; /* what st_op_create() makes does not know what was never written */
    int rc;            /* of the last disk request; OP_BAD: why */
    int state;         /* of the op's own work */

    enum { OP_HOLDS_NOTHING, OP_HOLDS_SHARED, OP_HOLDS_EXCLUSIVE } held;
    struct object *obj; /* referenced */
    struct object_wait wait;
    struct sync_wait sync;
    struct disk_req dr;   /* one at a time */
    struct proj *dr_proj; /* which it changes */
    struct iovec iov;
    struct env_task task;
    int enter_state, create_state, marks_state;
    int aside_state; /* st_op_create.c's */
    int create_rc;   /* why a creation is being undone */
    int marks_slot;  /* where the page under way goes */
    bool syncing, sending;
    bool dropping_again;
    struct st_op_append *append; /* owned; under way */
    struct journal_frame *entry; /* referenced; what was appended */
    struct wal_wait wal_wait;
    uint64_t wal_number; /* of the newest frame that it covers */
    bool wal_waiting, wal_joined;
    int files_rc; /* of the projection files, while the journal is waited for */
    int wal_rc;
    struct journal_waiter room;
    uint64_t room_deadline_ns;
    bool waited_marks;
    bool none_aside; /* since it has the lock: no file of this one was put aside */
    unsigned p;      /* projection being looked up */
    uint8_t *front;  /* PROJFILE_FRONT_BYTES, owned; header and mark pages */
    char path[PROJFILE_PATH_MAX];
    char aside[PROJFILE_PATH_MAX];
};

/* ---- the beginning and the end ---- */

/** Is the session of this call over? Then it changes nothing any more. */
bool storage_has_fenced(const struct storage *st, const struct rpc_call *call);
/**
 * Check a request's file and right; -EBADMSG, -EACCES, -EUNATCH, -ENXIO; -EKEYREVOKED: to write, and its session is
 * over. rights 0: no capability is needed of nobody (never so for clients).
 */
int st_op_ref_check(struct storage *st, const struct rpc_call *call,
                    const Rozo__FileRef *ref, uint32_t to_storage, unsigned rights,
                    struct file_ref *out);

/** What the journal does itself: done(arg, rc) instead of an answer. NULL: no memory. */
struct st_op *st_op_new_internal(struct storage *st, const struct pending_file *f,
                                 size_t size_bytes, void (*step)(struct st_op *op),
                                 void (*free_more)(struct st_op *op),
                                 void (*done)(void *arg, int rc), void *arg);
/** The end of such an op: rc 0 is well. */
void st_op_end_internal(struct st_op *op, int rc);
/** From a node, or ourselves: what it wants was decided by what all storages say. */
static inline bool st_op_is_decided(const struct st_op *op)
{
    return op->call == NULL || op->call->role == RPC_ROLE_NODE;
}
/** Start op: its first step is posted. Takes call. size_bytes of the whole struct, zeroed. */
/** Have clients asked for something more than now and then, within the last moments? */
bool storage_serves_clients(struct storage *st);
struct st_op *st_op_new(struct storage *st, struct rpc_call *call, size_t size_bytes,
                        void (*step)(struct st_op *op),
                        void (*free_more)(struct st_op *op));
void st_op_start(struct st_op *op);
/** Object, lock, and the projections of op->want looked up. */
enum st_op_next st_op_enter(struct st_op *op);
/** The file of the request, as journal entries carry it. */
struct storage_file st_op_file(const struct st_op *op);
/** Set op->rc; returns OP_BAD. */
enum st_op_next st_op_bad(struct st_op *op, int rc);
/** Until what was acknowledged of the object is on stable storage. */
enum st_op_next st_op_sync(struct st_op *op);
/** The same, also of what the applier does. */
enum st_op_next st_op_sync_all(struct st_op *op);
/** Is the file one of this loop's? */
bool storage_owns(const struct storage *st, const struct file_id *id);
/** What StWriteResp.verifier tells. */
uint64_t storage_verifier(const struct storage *st);
/** Let go of the lock before the op ends; the object stays. */
void st_op_unlock(struct st_op *op);
/** Answer without message or payload, and free the op. status: enum Rozo__Status. */
void st_op_finish(struct st_op *op, uint16_t status);
/** The same for an errno of our own or a disk. */
void st_op_fail(struct st_op *op, int rc);
/** Answer with a message and free the op. */
void st_op_finish_message(struct st_op *op, uint16_t status, const ProtobufCMessage *msg);
/** The op was answered and ends when its bytes are sent: storage_stop() does not wait for it. */
void st_op_sending(struct st_op *op);
/** Free an op whose call was answered. */
void st_op_free(struct st_op *op);

/* ---- disk ---- */

/** Submit op->dr; step runs when it is done, op->rc tells. */
void st_op_submit(struct st_op *op);
void st_op_read(struct st_op *op, struct proj *proj, uint64_t offset, void *buf,
                uint64_t len);
void st_op_write(struct st_op *op, struct proj *proj, uint64_t offset,
                 const struct iovec *iov, unsigned n_iov, uint64_t len);
void st_op_disk(struct st_op *op, enum disk_op what, struct proj *proj, uint64_t offset,
                uint64_t len);

/** Blocks [first, end) are damaged here: somebody is to look at them. */
void st_op_tell_damaged(const struct st_op *op, uint64_t first, uint64_t end);

/**
 * Heads of n blocks from first, all of one extent, into buf: what lies beyond the end of the
 * file is zero. Submits nothing and returns false when the file does not reach there.
 */
bool st_op_read_heads(struct st_op *op, struct proj *proj, uint64_t first, unsigned n,
                      uint8_t *buf);
/** After st_op_read_heads() was true and op->rc is 0: zero what was not read. */
void st_op_read_heads_done(struct st_op *op, uint8_t *buf);

/* A walk over the heads of [at, end) of one projection file, extent by extent. */
struct head_scan {
    uint64_t at, end;
    unsigned n;   /* blocks whose heads are in buf now */
    uint8_t *buf; /* owned by the scan's user; room for EXTENT_BLOCKS heads */
    bool
        skip_holes; /* pass over what the file system knows to be holes, and stop at the end */
    int state;
};
/**
 * The heads of the next n blocks; OP_GO with n 0: the walk is over. Between calls that say OP_GO
 * the caller may use op for other requests.
 */
enum st_op_next st_op_scan(struct st_op *op, struct proj *proj, struct head_scan *scan);

/** Is there room for len bytes of new records? Else OP_BAD, -ENOSPC. */
enum st_op_next st_op_space(struct st_op *op, uint64_t len);

/** Bytes that first writes may still take, as of the last look. */
uint64_t storage_space_left(const struct storage *st);

/**
 * The file is removed. A request that is late, or a repair that began before, would make again what nobody owns
 * any more; of the newest removals we know that. Others `rozo fsck` finds.
 */
void st_op_note_removed(struct st_op *op);
bool st_op_was_removed(struct st_op *op);

/**
 * Make projection file p, which is absent. The object is held exclusively. written: what the
 * header says is about to be; NULL: nothing. -ENOMEDIUM: the file was removed.
 */
enum st_op_next st_op_create(struct st_op *op, unsigned p, uint32_t epoch,
                             const struct mark_range *written);
/**
 * Right after st_op_create(), before anything is in it: the file goes again, and this ends with the
 * op->rc it began with.
 */
enum st_op_next st_op_create_undo(struct st_op *op, unsigned p);
/** The page of a file that was just made with nothing in it. When it cannot be written the file goes again. */
enum st_op_next st_op_first_page(struct st_op *op, unsigned p);
/**
 * Was a damaged file put aside for p, which is absent, by somebody who then did not get to make the new
 * one? Then that is to be partial: see object.emptied.
 */
enum st_op_next st_op_seek_aside(struct st_op *op, unsigned p);
/**
 * A damaged projection file p is in the way of a new record or mark of `version`. It goes aside, and
 * p is absent then; but the first time it refuses with -EREMCHG, so that nobody's late request takes
 * the place of newer ones that were in it: whoever still lives comes again with a fresh epoch.
 * -EUCLEAN when it is to be left alone. OP_GO at once for those not damaged. What the journal had of p does not count
 * any more then, pending or not, and of the marks neither: what was judged by it is to be judged anew.
 */
enum st_op_next st_op_put_aside(struct st_op *op, unsigned p, uint64_t version);

/**
 * Write a mark page with these marks, these written blocks and, at least, this epoch, and make them
 * proj's (copied). Where the page is too small the smallest of written are left out.
 */
enum st_op_next st_op_write_marks(struct st_op *op, unsigned p, const struct marks *marks,
                                  const struct marks *written, uint32_t epoch);
/** The marks of proj, or none. */
const struct marks *proj_marks(const struct proj *proj);
/** Keep a copy of them; 0 or -ENOMEM. */
int proj_marks_keep(struct proj *proj, const struct marks *marks);
/** The blocks that are known to have heads, or none. Of those a zero head is a lost one. */
const struct marks *proj_written(const struct proj *proj);
/** The same as a whole struct, to be changed. */
void proj_written_copy(const struct proj *proj, struct marks *out);
/** Behind the last block that proj can say anything of, also when its file is shorter. */
uint64_t proj_blocks(const struct proj *proj);
/** Keep a copy of it; 0 or -ENOMEM. */
int proj_written_keep(struct proj *proj, const struct marks *written);
/**
 * Readers and healers take "no file" for "never took anything": -ENOMEDIUM, but -EUCLEAN where what was here was
 * lost.
 */
int st_op_no_file(const struct st_op *op);
/** All that cannot be believed of the file here lost its header before any sync of it had ended. */
bool st_op_was_never_synced(const struct st_op *op);
/**
 * Of a damaged block, and its head as it lies there: the record that was lost is not newer than *version. False: that is
 * all that is in the file, or, of one that is partial, not even certain.
 */
bool proj_lost_floor(const struct proj *proj, uint64_t block, const uint8_t *head,
                     uint64_t *version);
/** A request was refused for what may have been lost in these blocks: a later epoch may pass. */
void proj_set_floor(struct proj *proj, uint64_t first, uint64_t end);
/** Something is going in place there: what is lost from now on may be that. */
void proj_forget_floor(struct proj *proj, uint64_t first, uint64_t end);
/** record_inspect() of a head of projection p, which may be absent; a lost one is damaged. */
enum record_state st_op_inspect(const struct st_op *op, unsigned p, uint64_t block,
                                const uint8_t *head, struct record_header *h);

/* ---- the journal ---- */

/** What is pending of the op's file; NULL: nothing. */
struct pending_file *st_op_pending_file(const struct st_op *op);
/** Should who asked sync and commit soon? */
bool st_op_has_pressure(const struct st_op *op);
/**
 * Is there room for another request in the journal, and, of a mark, among those of the file? OP_WAIT: the lock was let go, and the step comes again when
 * there may be: begin from st_op_enter() then. OP_BAD: -EBUSY, after a while.
 */
enum st_op_next st_op_journal_room(struct st_op *op, bool is_mark);
/** Begin again from st_op_enter(): the lock was let go. */
void st_op_enter_again(struct st_op *op);
/** Committed marks of the file are applied before anything is laid over them; before st_op_enter(). */
enum st_op_next st_op_marks_first(struct st_op *op);
/** Append a frame; what iov points at stays until OP_GO, then op->entry is it. */
enum st_op_next st_op_append(struct st_op *op, uint8_t kind, const struct iovec *iov,
                             unsigned n_iov, size_t len);
/**
 * Append a frame that takes d away, one more where a copy may have got behind it, and then from what is pending. header:
 * JOURNAL_RECORD_HEADER_BYTES that stay until OP_GO. A sync is the caller's.
 */
enum st_op_next st_op_append_drop(struct st_op *op, const struct pending_drop *d,
                                  uint8_t *header);
/** Is it as safe as one appended now? Not when a sync of the journal failed since. */
bool st_op_frame_is_good(const struct st_op *op, const struct journal_frame *entry);
/** Is all that is pending of its file on stable storage already? */
bool st_op_file_is_synced(const struct st_op *op);
/** Begin a sync of the journal, and wait for it. */
void st_op_wal_sync_start(struct st_op *op);
enum st_op_next st_op_wal_sync_join(struct st_op *op);
/** st_op_sync() of the projection files, if wanted, and then the same: both have answered, whichever fails. */
enum st_op_next st_op_sync_both(struct st_op *op, bool files);

/* The journal's hooks, see struct journal_hooks. */
int storage_apply_records(void *storage, struct pending_file *f, unsigned projection,
                          uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                          void *arg);
int storage_apply_mark(void *storage, struct pending_file *f,
                       const struct pending_mark *mark, void (*done)(void *arg, int rc),
                       void *arg);
int storage_resolve(void *storage, struct pending_file *f,
                    void (*done)(void *arg, int rc), void *arg);

/** Blocks of [first, end) that are in the extent of first. */
static inline unsigned extent_part(uint64_t first, uint64_t end)
{
    uint64_t left = EXTENT_BLOCKS - first % EXTENT_BLOCKS;

    return (unsigned)(end - first < left ? end - first : left);
}

/* ---- the ops ---- */
void storage_handle_write(struct storage *st, struct rpc_call *call);
void storage_handle_read(struct storage *st, struct rpc_call *call);
void storage_handle_mark(struct storage *st, struct rpc_call *call);
void storage_handle_sync(struct storage *st, struct rpc_call *call);
void storage_handle_remove(struct storage *st, struct rpc_call *call);
void storage_handle_stat(struct storage *st, struct rpc_call *call);
void storage_handle_next(struct storage *st, struct rpc_call *call);
void storage_handle_alloc(struct storage *st, struct rpc_call *call);
void storage_handle_commit(struct storage *st, struct rpc_call *call);
void storage_handle_fence(struct storage *st, struct rpc_call *call);
void storage_handle_drop(struct storage *st, struct rpc_call *call);
void storage_handle_redist(struct storage *st, struct rpc_call *call);
void storage_handle_info(struct storage *st, struct rpc_call *call);
void storage_handle_admit(struct storage *st, struct rpc_call *call);

/** Answer with one packed message. */
void reply_message(struct rpc_call *call, uint16_t status, const ProtobufCMessage *msg);

#endif
