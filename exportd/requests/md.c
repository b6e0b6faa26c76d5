/*
 * md.c - the metadata requests of clients: MD_*.
 *
 * In:     decoded messages; the dispatcher has checked role, session and read-only.
 * Out:    calls of namespace.h and session.h; answers packed into the op. Errors are
 *         errnos.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/range_map.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/storage_room.h"
#include "exportd/namespace/inode_ref.h"
#include "exportd/redistribution/redistribute.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/delayed_unlink.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_locks.h"
#include "exportd/sessions/session_store.h"
#include "exportd/sessions/session_takeover.h"
#include "exportd/sessions/token_wait.h"

enum {
    READDIR_ENTRIES_MAX = 4096,
    READDIR_XATTRS_BYTES = 1 << 20, /* xattrs in one answer; further ones are left out */
    STAT_BLOCK_BYTES = 512,
    DIR_BYTES = 4096, /* reported size of a directory */
    DEAD_SESSIONS_MAX = 256,
    CLOSES_MORE_MAX = 1024,
    ATIMES_READS_MAX = 1024, /* in one MD_ATIMES */
};

static struct namespace_name name_of(ProtobufCBinaryData b)
{
    return (struct namespace_name){ b.data, b.len };
}

/* ---- parts of answers ---- */

static void attr_fill(const struct md_op *op, const struct inode *in, Rozo__Attr *a)
{
    rozo__attr__init(a);
    a->ino = in->ino;
    a->generation = in->generation;
    a->mode = in->mode;
    a->nlink = in->nlink;
    a->uid = in->uid;
    a->gid = in->gid;
    a->rdev = in->rdev;
    a->size = inode_is_dir(in) ? DIR_BYTES : inode_final_size(in);
    a->atime_ns = (uint64_t)wide_ns_near(in->atime_ns);
    a->atime_more_s = wide_ns_more_s(in->atime_ns);
    a->mtime_ns = (uint64_t)wide_ns_near(in->mtime_ns);
    a->mtime_more_s = wide_ns_more_s(in->mtime_ns);
    a->ctime_ns = (uint64_t)in->ctime_ns;
    a->has_data = (in->flags & (INODE_HAS_DATA | INODE_INLINE)) != 0;
    if (inode_is_dir(in))
        a->blocks = DIR_BYTES / STAT_BLOCK_BYTES;
    else
        a->blocks = in->n_blocks * (in->block_bytes / STAT_BLOCK_BYTES);
    a->blocks_unsure = (in->flags & INODE_UNCOUNTED) != 0;
    a->change = in->change;
    a->xattrs = namespace_xattr_classes(op->ns, in);
    a->file_flags = namespace_file_flags(in);
}

/* FileData and everything that it points at. */
struct data_parts {
    Rozo__FileData msg;
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
    uint8_t capability[CAPABILITY_BYTES];
    uint8_t blocks[SPAN_PACKED_MAX];
};

/* Adds inline data, or where the data may be. The bytes belong to the store. */
static int inline_fill(struct md_op *op, const struct inode *in, Rozo__FileData *msg)
{
    const uint8_t *bytes;
    size_t len;
    int rc = 0;

    msg->inline_max = op->ns->inline_max;
    msg->on_storages = !namespace_may_be_inline(op->ns, in);
    if ((in->flags & INODE_INLINE) != 0)
        rc = namespace_inline_get(op->ns, in, &bytes, &len, &msg->inline_version);
    op->is_large |= msg->inline_version != 0;
    if (msg->inline_version != 0)
        msg->inline_data = (ProtobufCBinaryData){ len, (uint8_t *)bytes };
    return rc;
}

/* Adds the allocated blocks. They and inline data both borrow from the store, but no file
 * has both. */
static void blocks_fill(struct md_op *op, const struct inode *in, struct data_parts *d)
{
    const uint8_t *bytes;
    size_t len;

    namespace_blocks_get(op->ns, in, d->blocks, &bytes, &len);
    d->msg.blocks_known = true;
    d->msg.blocks = (ProtobufCBinaryData){ len, (uint8_t *)bytes };
    op->is_large |= len > SPAN_PACKED_MAX;
}

static int data_fill(struct md_op *op, struct inode *in, bool write, struct data_parts *d)
{
    struct file_id id = { op->export->id, in->generation, in->ino };
    unsigned rights = write ? CAPABILITY_READ | CAPABILITY_WRITE : CAPABILITY_READ;

    rozo__file_data__init(&d->msg);
    inode_ref_fill(op->export->id, in, d->id, &d->ref);
    capability_sign(op->x->config.capabilities, &id, rights, d->capability);
    d->ref.capability = (ProtobufCBinaryData){ sizeof(d->capability), d->capability };
    d->msg.ref = &d->ref;
    d->msg.epoch = write ? in->epoch : 0;
    d->msg.truncate_pending = (in->flags & INODE_TRUNCATE_PENDING) != 0;
    d->msg.truncate_version = in->truncate_version;
    if (d->msg.truncate_pending)
        d->msg.truncate_size = in->truncate_size;
    blocks_fill(op, in, d);
    return inline_fill(op, in, &d->msg);
}

/* Fills the attributes, and grants a token if possible. */
static void attr_give(struct md_op *op, const struct inode *in, enum token_mode mode,
                      Rozo__Attr *a)
{
    attr_fill(op, in, a);
    a->token = md_op_grant(op, in->ino, mode);
}

/* Fills the attributes of a directory whose names op has changed, since the client's
 * kernel needs them at once. Returns NULL without a token: the client must ask. */
static Rozo__Attr *dir_give(struct md_op *op, uint64_t dir, Rozo__TokenMode held,
                            Rozo__Attr *a)
{
    struct inode in;

    if (held == ROZO__TOKEN_MODE__TOKEN_NONE || namespace_getattr(op->ns, dir, &in) != 0)
        return NULL;
    attr_fill(op, &in, a);
    a->token = held;
    return a;
}

static bool has_others(const struct md_op *op)
{
    return op->export->n_sessions > 1;
}

/* Answers with an inode; resp holds the other fields. */
static int answer_with(struct md_op *op, const struct inode *in, Rozo__MdEntryResp resp)
{
    Rozo__Attr attr;

    attr_give(op, in, TOKEN_SHARED, &attr);
    resp.attr = &attr;
    resp.grant = op->grant;
    resp.others = has_others(op);
    return md_op_pack_inode(op, &resp.base);
}

static int answer_entry(struct md_op *op, struct inode *in, bool with_data)
{
    Rozo__MdEntryResp resp = ROZO__MD_ENTRY_RESP__INIT;
    struct data_parts data;

    if (with_data) {
        int rc = data_fill(op, in, true, &data);

        if (rc != 0)
            return rc;
        resp.data = &data.msg;
    }
    return answer_with(op, in, resp);
}

/* Answers with the inode of a name, and grants the directory. made: the name is new. */
static int answer_named(struct md_op *op, const struct inode *in, uint64_t dir, bool made)
{
    Rozo__MdEntryResp resp = ROZO__MD_ENTRY_RESP__INIT;
    Rozo__Attr attr;

    resp.dir_token = md_op_grant(op, dir, TOKEN_SHARED);
    if (made)
        resp.dir = dir_give(op, dir, resp.dir_token, &attr);
    return answer_with(op, in, resp);
}

/* Answers that a name does not exist, and grants the directory, so that the absence may
 * be kept. */
static int answer_no_name(struct md_op *op, uint64_t dir)
{
    Rozo__MdEntryResp resp = ROZO__MD_ENTRY_RESP__INIT;
    int rc;

    resp.dir_token = md_op_grant(op, dir, TOKEN_SHARED);
    resp.grant = op->grant;
    resp.others = has_others(op);
    rc = md_op_pack_inode(op, &resp.base);
    return rc == 0 ? -ENOENT : rc;
}

/* Answers a report. `losses` shows a client whether the power failed since its earlier
 * reports. */
static int answer_truncated(struct md_op *op, const struct inode *in, bool cut)
{
    Rozo__MdEntryResp resp = ROZO__MD_ENTRY_RESP__INIT;

    resp.losses = cluster_losses(op->x);
    resp.cut = cut;
    return answer_with(op, in, resp);
}

/* Answers with the removed and moved inodes; resp holds the tokens of the directories. */
static int answer_removed(struct md_op *op, const struct inode *in, uint64_t moved[2],
                          Rozo__MdRemovedResp resp)
{
    Rozo__Attr attr;

    if (in->ino != 0 && in->nlink == 0 && !export_is_open(op->export, in->ino)) {
        attr_fill(op, in, &attr);
        if (!export_needs(op->export, in->ino)) {
            tokens_inode_gone(&op->export->tokens, in->ino);
            tokens_inode_gone(&op->export->tokens, token_of_locks(in->ino));
        }
    } else if (in->ino != 0) {
        attr_give(op, in, TOKEN_SHARED, &attr);
    }
    if (in->ino != 0)
        resp.removed = &attr;
    resp.grant = op->grant;
    resp.moved = moved;
    resp.n_moved = moved == NULL ? 0 : moved[1] != 0 ? 2 : 1;
    delayed_unlink_removed(op->x);
    return md_op_pack_inode(op, &resp.base);
}

/* ---- sessions ---- */

/* Takes over the locks that a client held before this start. A new session gets none. */
static int claim_locks(struct session *s, const Rozo__MdOpenSessionReq *req,
                       Rozo__MdOpenSessionResp *resp)
{
    if (req->n_locks == 0)
        return 0;
    resp->locks_lost = malloc(req->n_locks * sizeof(*resp->locks_lost));
    if (resp->locks_lost == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < req->n_locks; i++) {
        if (s->id != req->session || session_claim_lock(s, req->locks[i]) != 0)
            resp->locks_lost[resp->n_locks_lost++] = (uint32_t)i;
    }
    return 0;
}

/* Ends sessions reported as dead, but not that of the reporter. */
static void end_dead_sessions(struct exportd *x, uint64_t reporter, size_t n_dead,
                              const uint64_t *dead)
{
    for (size_t i = 0; i < n_dead && i < DEAD_SESSIONS_MAX; i++) {
        if (dead[i] != reporter)
            session_is_dead(x, dead[i]);
    }
}

/* Opens the session, or gives the client that of a dead process. */
static int open_or_take_over(struct exportd *x, struct export *e,
                             const Rozo__MdOpenSessionReq *req, struct session **out)
{
    if (req->takes_over != 0)
        return session_take_over(x, e, req->takes_over, req->client, req->read_only, out);
    return session_open(x, e, req->session, req->client, req->read_only, out);
}

/* Adds what a session that was taken over holds. */
static int add_held(struct session *s, struct held_messages *h,
                    Rozo__MdOpenSessionResp *resp)
{
    int rc = held_messages_make(s, h);

    if (rc != 0)
        return rc;
    resp->n_held_inodes = h->n_inodes;
    resp->held_inodes = h->inode_list;
    resp->n_held_tokens = h->n_shared;
    resp->held_tokens = h->tokens;
    resp->n_held_exclusive = s->tokens.n - h->n_shared;
    resp->held_exclusive = h->tokens + h->n_shared;
    resp->n_held_locks = h->n_locks;
    resp->held_locks = h->lock_list;
    resp->took_over = true;
    return 0;
}

int md_open_session(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdOpenSessionReq *req = (const Rozo__MdOpenSessionReq *)msg;
    Rozo__MdOpenSessionResp resp = ROZO__MD_OPEN_SESSION_RESP__INIT;
    struct exportd *x = op->x;
    struct export *e = export_find_name(x, req->export_name);
    bool fresh = session_find(x, req->session) == NULL;
    struct storage_messages *storages;
    struct held_messages held = { 0 };
    struct session *s;
    struct inode in;
    int rc = e == NULL ? -ENOENT : 0;

    if (rc == 0 && ((e->ns.inline_max != 0 && !req->knows_inline) ||
                    (!req->full_quorum && !req->read_only)))
        rc = -EOPNOTSUPP;
    if (rc == 0) {
        /* first, to make room for the new one */
        end_dead_sessions(x, req->session, req->n_dead_sessions, req->dead_sessions);
        rc = open_or_take_over(x, e, req, &s);
    }

    if (rc == 0 && req->n_open_inodes > SESSION_REFS_MAX)
        rc = -EBUSY;
    for (size_t i = 0; rc == 0 && i < req->n_open_inodes; i++) {
        if (namespace_getattr(&e->ns, req->open_inodes[i], &in) == 0)
            rc = session_claim(s, req->open_inodes[i], 1);
    }
    if (rc == 0)
        rc = claim_locks(s, req, &resp);
    if (rc == 0 && req->takes_over != 0)
        rc = add_held(s, &held, &resp);
    if (rc == 0)
        rc = storage_messages_make(x, &storages);
    if (rc != 0) {
        held_messages_free(&held);
        free(resp.locks_lost);
        return rc;
    }
    if (req->takes_over != 0)
        resp.grant = session_keep_tokens(s);
    else
        resp.tokens_lost = !session_claim_tokens(s, req, fresh, &resp.grant);
    session_came_back(x, s->id);
    op->sync = store_error(x->store) == 0; /* the next start must know the session */
    resp.session = s->id;
    resp.export_id = e->id;
    resp.root_ino = NAMESPACE_ROOT_INO;
    resp.codec = e->codec;
    resp.layout = e->layout;
    resp.block_bytes = e->block_bytes;
    resp.lease_ms = x->config.lease_ms;
    resp.n_storages = storages->n;
    resp.storages = storages->list;
    resp.map_version = x->map_version;
    resp.cluster_id = (ProtobufCBinaryData){ CLUSTER_ID_BYTES, x->cluster_id };
    resp.now_ns = store_stamp_ns(x->store);
    resp.losses = cluster_losses(x);
    resp.events = s->last_event;
    resp.tokens_max = s->tokens_max;
    rc = md_op_pack(op, &resp.base);
    free(storages);
    held_messages_free(&held);
    free(resp.locks_lost);
    return rc;
}

int md_keep_alive(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdKeepAliveReq *req = (const Rozo__MdKeepAliveReq *)msg;
    Rozo__MdKeepAliveResp resp = ROZO__MD_KEEP_ALIVE_RESP__INIT;
    struct exportd *x = op->x;
    struct storage_messages *storages = NULL;
    int rc = 0;

    op->sync = true;
    end_dead_sessions(x, op->call->session, req->n_dead_sessions, req->dead_sessions);
    resp.map_version = x->map_version;
    resp.now_ns = store_stamp_ns(x->store);
    resp.losses = cluster_losses(x);
    op->session->n_stream_reads = req->stream_reads;
    op->session->n_late_reads = req->late_reads;
    resp.stream_rate = reservation_rate_of(op->session);
    if (req->map_version != x->map_version)
        rc = storage_messages_make(x, &storages);
    if (storages != NULL) {
        resp.n_storages = storages->n;
        resp.storages = storages->list;
    }
    if (rc == 0)
        rc = md_op_pack(op, &resp.base);
    free(storages);
    return rc;
}

/* Answers at once: who runs a core leads. */
int md_wait_leader(struct md_op *op, const ProtobufCMessage *req)
{
    struct exportd_list_answer a;

    exportd_list_answer(op->x->config.clients, (const Rozo__MdWaitLeaderReq *)req, &a);
    a.resp.start = cluster_start_number(cluster_returns(op->x), cluster_n_starts(op->x));
    return md_op_pack(op, &a.resp.base);
}

int md_close_session(struct md_op *op, const ProtobufCMessage *req)
{
    struct exportd *x = op->x;
    struct session *s = session_find(x, op->call->session);

    (void)req;
    if (s != NULL && !s->ends) {
        session_end(x, s, false);
        return 0;
    }
    if (!session_came_back(x, op->call->session))
        return -ROZO_ENO_SESSION;
    session_store_delete(x, op->call->session);
    return 0;
}

/* ---- inodes and names ---- */

/* Parks the call until no other session may be writing the inode, so that its attributes
 * are true. */
static int wants_see_when(struct md_op *op, const struct inode *in, enum when_asked when)
{
    const struct token_want want = { in->ino, WANT_SEE, { 0 } };

    return inode_is_file(in) ? md_op_wants(op, &want, 1, when) : 0;
}

static int wants_see(struct md_op *op, const struct inode *in)
{
    return wants_see_when(op, in, ASKED_WAITS);
}

/* Parks the call until no other session keeps the inode, for a change of its attributes.
 * The kernel locks a directory meanwhile, and giving back its names needs that lock. */
static int wants_change(struct md_op *op, uint64_t ino)
{
    const struct token_want want = { ino, WANT_CHANGE, { 0 } };
    struct inode in;
    int rc;

    if (md_op_is_alone(op))
        return 0;
    rc = namespace_getattr(op->ns, ino, &in);
    if (rc != 0)
        return rc;
    return md_op_wants(op, &want, 1, inode_is_dir(&in) ? ASKED_FAILS : ASKED_WAITS);
}

/* Parks the call until a name may be put into a directory, or removed; ino: its inode
 * before or after. */
static int wants_name(struct md_op *op, uint64_t dir, uint64_t ino)
{
    const struct token_want wants[] = { { dir, WANT_CHANGE, { 0 } },
                                        { ino, WANT_CHANGE, { 0 } } };

    return md_op_wants(op, wants, 2, ASKED_FAILS);
}

/* Fills a message with a set. parts: room for 2 * set->n, which the message points at. */
static void xattr_set_fill(const struct namespace_xattr_set *set,
                           ProtobufCBinaryData *parts, Rozo__XattrSet *msg)
{
    rozo__xattr_set__init(msg);
    msg->names = parts;
    msg->values = parts + set->n;
    msg->n_names = msg->n_values = set->n;
    for (unsigned i = 0; i < set->n; i++) {
        parts[i] =
            (ProtobufCBinaryData){ set->names[i].len, (uint8_t *)set->names[i].bytes };
        parts[set->n + i] =
            (ProtobufCBinaryData){ set->values[i].len, (uint8_t *)set->values[i].bytes };
    }
}

/* Answers a LOOKUP with all xattrs of the inode, if they are few and small. */
static int answer_with_xattrs(struct md_op *op, const struct inode *in, uint64_t dir)
{
    uint8_t room[NAMESPACE_XATTR_SET_BYTES * (NAMESPACE_XATTR_SET_MAX + 1)];
    ProtobufCBinaryData parts[2 * NAMESPACE_XATTR_SET_MAX];
    Rozo__MdEntryResp resp = ROZO__MD_ENTRY_RESP__INIT;
    struct namespace_xattr_set set;
    Rozo__XattrSet xattrs;

    resp.dir_token = md_op_grant(op, dir, TOKEN_SHARED);
    if ((in->flags & INODE_XATTRS) != 0 &&
        namespace_get_xattr_set(op->ns, in, room, sizeof(room), &set) == 0) {
        xattr_set_fill(&set, parts, &xattrs);
        resp.xattrs = &xattrs;
        op->is_large = true;
    }
    return answer_with(op, in, resp);
}

int md_lookup(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLookupReq *req = (const Rozo__MdLookupReq *)msg;
    struct inode in;
    int rc = namespace_lookup(op->ns, req->parent, name_of(req->name), &in);

    if (rc == -ENOENT)
        return answer_no_name(op, req->parent);
    if (rc == 0)
        rc = wants_see(op, &in);
    if (rc != 0)
        return rc;
    return req->xattrs ? answer_with_xattrs(op, &in, req->parent)
                       : answer_named(op, &in, req->parent, false);
}

int md_getattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdGetattrReq *req = (const Rozo__MdGetattrReq *)msg;
    struct inode in;
    int rc = namespace_getattr(op->ns, req->ino, &in);

    if (rc == 0)
        rc = wants_see(op, &in);
    return rc == 0 ? answer_entry(op, &in, false) : rc;
}

int md_setattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdSetattrReq *req = (const Rozo__MdSetattrReq *)msg;
    bool has_size = (req->valid & ROZO__SETATTR_BITS__SET_SIZE) != 0;
    struct namespace_setattr set = {
        .ino = req->ino,
        .valid = req->valid,
        .mode = req->mode,
        .uid = req->uid,
        .gid = req->gid,
        .file_flags = req->file_flags,
        .size = req->size,
        .atime_ns = wide_ns_join(req->atime_ns, req->atime_more_s),
        .mtime_ns = wide_ns_join(req->mtime_ns, req->mtime_more_s),
        .alone = has_size && session_is_alone(op->session, req->ino, true),
    };
    struct inode in;
    int rc = wants_change(op, req->ino);

    if (rc == 0)
        rc = namespace_setattr(op->ns, &set, &in);

    op->sync = (req->valid & ROZO__SETATTR_BITS__SET_SYNC) != 0;
    if (rc != 0)
        return rc;
    if (has_size && (in.flags & INODE_TRUNCATE_PENDING) != 0)
        session_writes(op->session, in.ino);
    return answer_entry(op, &in, has_size);
}

/* Returns -EPERM if the file's flags do not allow an open for writing. */
static int wants_writable(const struct inode *in, bool append)
{
    return (in->flags & INODE_APPEND) != 0 && !append ? -EPERM : inode_may_grow(in);
}

/* Takes a reference and, for writing, an epoch. *in is updated. */
static int open_inode(struct md_op *op, struct inode *in, bool write, bool reference)
{
    bool clean = !inode_may_have_data(in);
    bool alone = write && session_is_alone(op->session, in->ino, false);
    const uint8_t *bytes;
    uint64_t version;
    size_t len;
    int rc = 0;

    if (write && inode_is_dir(in))
        return -EISDIR;
    if (write && !inode_is_file(in))
        return -EINVAL;
    if ((in->flags & INODE_INLINE) != 0) /* the answer will hold the data */
        rc = namespace_inline_get(op->ns, in, &bytes, &len, &version);
    if (rc != 0)
        return rc;
    if (reference)
        rc = session_ref(op->session, in->ino, clean);
    if (rc == 0 && write) {
        rc = namespace_next_epoch(op->ns, in->ino, alone, in);
        if (rc != 0 && reference)
            session_unref(op->x, op->session, in->ino, 1, true);
        if (rc == 0 && reference)
            session_writes(op->session, in->ino);
    }
    return rc;
}

/* Parks a create until it may change the directory, or see the existing file. */
static int wants_create(struct md_op *op, const Rozo__MdCreateReq *req)
{
    struct inode in;
    int rc;

    if (md_op_is_alone(op) || req->nameless)
        return 0;
    rc = namespace_lookup(op->ns, req->parent, name_of(req->name), &in);
    if (rc == -ENOENT)
        return wants_name(op, req->parent, 0);
    return rc == 0 && req->open && !req->exclusive ? wants_see(op, &in) : 0;
}

int md_create(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdCreateReq *req = (const Rozo__MdCreateReq *)msg;
    Rozo__MdCreateResp resp = ROZO__MD_CREATE_RESP__INIT;
    struct namespace_create create = {
        .parent = req->parent,
        .name = name_of(req->name),
        .mode = req->mode,
        .umask = req->umask,
        .uid = req->uid,
        .gid = req->gid,
        .rdev = req->rdev,
        .target = name_of(req->target),
    };
    struct data_parts data;
    Rozo__Attr attr, dir;
    struct inode in = { 0 };
    int rc;

    if ((req->open && !S_ISREG(req->mode)) || (req->nameless && !req->open))
        return -EINVAL;
    if (req->open && !session_may_ref(op->session))
        return -ENOMEM; /* checked before anything is made */
    rc = wants_create(op, req);
    if (rc != 0)
        return rc;
    rc = req->nameless ? namespace_create_nameless(op->ns, &create, &in)
                       : namespace_create(op->ns, &create, &in);
    if (rc == -EEXIST && req->open && !req->exclusive && in.ino != 0) {
        rc = inode_is_file(&in)  ? wants_writable(&in, false)
             : inode_is_dir(&in) ? -EISDIR
                                 : -EEXIST;
        resp.existed = true;
    }
    if (rc == 0 && req->open) {
        rc = open_inode(op, &in, true, true);
        if (rc != 0 && req->nameless)
            export_reap(op->export, in.ino);
    }
    if (rc != 0)
        return rc;
    op->made_ino = in.ino;
    attr_give(op, &in, req->open ? TOKEN_EXCLUSIVE : TOKEN_SHARED, &attr);
    resp.attr = &attr;
    if (!req->nameless)
        resp.dir_token = md_op_grant(op, req->parent, TOKEN_SHARED);
    if (!resp.existed && !req->nameless)
        resp.dir = dir_give(op, req->parent, resp.dir_token, &dir);
    resp.grant = op->grant;
    resp.others = has_others(op);
    if (req->open) {
        rc = data_fill(op, &in, true, &data);
        if (rc != 0)
            return rc;
        resp.data = &data.msg;
    }
    return md_op_pack_inode(op, &resp.base);
}

/* Parks a removal until it may go on; without such a name it fails later. */
static int wants_removal(struct md_op *op, uint64_t parent, struct namespace_name name)
{
    struct inode in;

    if (md_op_is_alone(op) || namespace_lookup(op->ns, parent, name, &in) != 0)
        return 0;
    return wants_name(op, parent, in.ino);
}

static int answer_unnamed(struct md_op *op, const struct inode *in, uint64_t parent)
{
    Rozo__MdRemovedResp resp = ROZO__MD_REMOVED_RESP__INIT;
    Rozo__Attr dir;

    resp.dir_token = md_op_grant(op, parent, TOKEN_SHARED);
    resp.dir = dir_give(op, parent, resp.dir_token, &dir);
    return answer_removed(op, in, NULL, resp);
}

int md_unlink(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdUnlinkReq *req = (const Rozo__MdUnlinkReq *)msg;
    struct inode in;
    int rc = wants_removal(op, req->parent, name_of(req->name));

    if (rc == 0)
        rc = namespace_unlink(op->ns, req->parent, name_of(req->name), &in);
    return rc == 0 ? answer_unnamed(op, &in, req->parent) : rc;
}

int md_rmdir(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdRmdirReq *req = (const Rozo__MdRmdirReq *)msg;
    struct inode in;
    int rc = wants_removal(op, req->parent, name_of(req->name));

    if (rc == 0)
        rc = namespace_rmdir(op->ns, req->parent, name_of(req->name), &in);
    return rc == 0 ? answer_unnamed(op, &in, req->parent) : rc;
}

int md_link(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLinkReq *req = (const Rozo__MdLinkReq *)msg;
    struct inode in;
    int rc = wants_name(op, req->parent, req->ino);

    if (rc == 0)
        rc = namespace_link(op->ns, req->ino, req->parent, name_of(req->name), &in);
    return rc == 0 ? answer_named(op, &in, req->parent, true) : rc;
}

/* Parks a rename until it may go on, and makes sure that grant_renamed() can grant. */
static int wants_rename(struct md_op *op, const Rozo__MdRenameReq *req)
{
    struct token_want wants[TOKEN_WANTS_MAX] = {
        { req->parent, WANT_CHANGE, { 0 } },
        { req->new_parent == req->parent ? 0 : req->new_parent, WANT_CHANGE, { 0 } },
    };
    const struct token_holder *holder = &op->session->tokens;
    const struct tokens *t = &op->export->tokens;
    struct inode in;
    int rc;

    if (!tokens_have_room(t, holder, 2))
        return -EBUSY;
    if (md_op_is_alone(op))
        return 0;
    if (namespace_lookup(op->ns, req->parent, name_of(req->name), &in) != 0)
        return 0; /* the rename will fail */
    wants[2] = (struct token_want){ in.ino, WANT_CHANGE, { 0 } };
    if (namespace_lookup(op->ns, req->new_parent, name_of(req->new_name), &in) == 0)
        wants[3] = (struct token_want){ in.ino, WANT_CHANGE, { 0 } };
    rc = md_op_wants(op, wants, TOKEN_WANTS_MAX, ASKED_FAILS);
    if (rc == 0 && (tokens_is_recalled(t, holder, req->parent) ||
                    tokens_is_recalled(t, holder, req->new_parent)))
        rc = -ROZO_ERETRY;
    return rc;
}

/* Grants the new directory to a holder of the old one, since the kernel trusts the new
 * name as long as the old one. A client that holds nothing has nothing to trust: an
 * ordinary grant is enough. */
static Rozo__TokenMode grant_renamed(struct md_op *op, uint64_t dir, bool is_believed)
{
    return is_believed ? md_op_grant_asked(op, dir, TOKEN_SHARED, 0)
                       : md_op_grant(op, dir, TOKEN_SHARED);
}

static bool holds(const struct md_op *op, uint64_t ino)
{
    return tokens_held(&op->export->tokens, &op->session->tokens, ino) != TOKEN_NONE;
}

int md_rename(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdRenameReq *req = (const Rozo__MdRenameReq *)msg;
    Rozo__MdRemovedResp resp = ROZO__MD_REMOVED_RESP__INIT;
    bool moves = holds(op, req->parent);
    bool comes = (req->flags & RENAME_EXCHANGE) != 0 && holds(op, req->new_parent);
    const struct namespace_rename rename = {
        .parent = req->parent,
        .name = name_of(req->name),
        .new_parent = req->new_parent,
        .new_name = name_of(req->new_name),
        .flags = req->flags,
        .owner = { req->uid, req->gid },
    };
    struct namespace_renamed renamed;
    Rozo__Attr dir, new_dir;
    int rc = 0;

    if ((req->flags & RENAME_WHITEOUT) != 0 && metadata_room_is_low(op->x))
        return -ENOSPC; /* a whiteout is an inode */
    rc = wants_rename(op, req);
    if (rc == 0)
        rc = namespace_rename(op->ns, &rename, &renamed);
    if (rc != 0)
        return rc;
    resp.dir_token = grant_renamed(op, req->parent, comes);
    resp.new_dir_token = grant_renamed(op, req->new_parent, moves);
    resp.dir = dir_give(op, req->parent, resp.dir_token, &dir);
    if (req->new_parent != req->parent)
        resp.new_dir = dir_give(op, req->new_parent, resp.new_dir_token, &new_dir);
    return answer_removed(op, &renamed.removed, renamed.moved, resp);
}

int md_readlink(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdReadlinkReq *req = (const Rozo__MdReadlinkReq *)msg;
    Rozo__MdReadlinkResp resp = ROZO__MD_READLINK_RESP__INIT;
    const uint8_t *target;
    struct inode in;
    Rozo__Attr attr;
    size_t len;
    int rc = namespace_getattr(op->ns, req->ino, &in);

    if (rc != 0)
        return rc;
    attr_fill(op, &in, &attr);
    resp.attr = &attr;
    /* Last, because the next read of the store invalidates the target. */
    rc = namespace_readlink(op->ns, req->ino, &target, &len);
    if (rc != 0)
        return rc;
    resp.target = (ProtobufCBinaryData){ len, (uint8_t *)target };
    return md_op_pack(op, &resp.base);
}

/* ---- readdir ---- */

struct md_listed {
    Rozo__MdReaddirResp__Entry msg;
    Rozo__Attr attr;
    uint8_t name[NAMESPACE_NAME_MAX];
    Rozo__XattrSet xattrs;
};

/* Answer being filled. */
struct md_listing {
    struct md_op *op;
    bool plus;
    uint8_t *xattrs; /* owned, READDIR_XATTRS_BYTES; NULL: the answer has none */
    size_t xattrs_used;
    size_t n, n_max;
    struct md_listed *entries;
    Rozo__MdReaddirResp__Entry **list;
    int rc;
};

/* Returns true if another session knows newer attributes. */
static bool may_be_written(const struct md_op *op, const struct inode *in)
{
    const struct token_holder *holder = &op->session->tokens;
    const struct tokens *t = &op->export->tokens;
    enum token_mode held;

    if (md_op_is_alone(op) || !inode_is_file(in))
        return false;
    held = tokens_held(t, holder, in->ino);
    return grace_is_over(op->export) ? tokens_is_written(t, holder, in->ino)
                                     : held == TOKEN_NONE || held == TOKEN_RANGES;
}

/* Takes memory for the xattrs of an answer. Returns NULL if they have had their part. */
static void *listing_room(struct md_listing *l, size_t bytes)
{
    size_t align = alignof(ProtobufCBinaryData);
    size_t at = (l->xattrs_used + align - 1) / align * align;

    if (at + bytes > READDIR_XATTRS_BYTES)
        return NULL;
    l->xattrs_used = at + bytes;
    return l->xattrs + at;
}

/* Adds all xattrs of the inode, if they are few and small. If not, or after an error, the
 * mount asks for those that it needs. */
static void listed_add_xattrs(struct md_listing *l, const struct inode *in,
                              struct md_listed *to)
{
    struct namespace_xattr_set set;
    ProtobufCBinaryData *parts;

    if (l->xattrs == NULL || (in->flags & INODE_XATTRS) == 0 ||
        namespace_get_xattr_set(l->op->ns, in, l->xattrs + l->xattrs_used,
                                READDIR_XATTRS_BYTES - l->xattrs_used, &set) != 0)
        return;
    l->xattrs_used += set.used;
    parts = listing_room(l, 2 * set.n * sizeof(*parts));
    if (parts == NULL)
        return;
    xattr_set_fill(&set, parts, &to->xattrs);
    to->msg.xattrs = &to->xattrs;
}

static bool on_entry(void *arg, const struct namespace_entry *e)
{
    struct md_listing *l = arg;
    struct md_listed *to = &l->entries[l->n];
    struct inode in;

    if (l->n == l->n_max)
        return false;
    rozo__md_readdir_resp__entry__init(&to->msg);
    memcpy(to->name, e->name.bytes, e->name.len);
    to->msg.name = (ProtobufCBinaryData){ e->name.len, to->name };
    to->msg.ino = e->ino;
    to->msg.type = e->type;
    to->msg.cookie = e->cookie;
    if (l->plus) {
        l->rc = namespace_getattr(l->op->ns, e->ino, &in);
        if (l->rc != 0)
            return false;
        if (!may_be_written(l->op, &in)) {
            attr_give(l->op, &in, TOKEN_SHARED, &to->attr);
            to->msg.attr = &to->attr;
            listed_add_xattrs(l, &in, to);
        }
    }
    l->list[l->n++] = &to->msg;
    return true;
}

int md_readdir(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdReaddirReq *req = (const Rozo__MdReaddirReq *)msg;
    Rozo__MdReaddirResp resp = ROZO__MD_READDIR_RESP__INIT;
    struct md_listing l = { .op = op, .plus = req->plus, .n_max = req->max_entries };
    struct inode dir;
    bool end;
    int rc;

    if (req->max_entries < 1 || req->max_entries > READDIR_ENTRIES_MAX ||
        req->cookie > INT64_MAX)
        return -EINVAL;
    l.entries = malloc(l.n_max * sizeof(*l.entries));
    l.list = malloc(l.n_max * sizeof(*l.list));
    if (req->plus && req->xattrs)
        l.xattrs = malloc(READDIR_XATTRS_BYTES); /* without memory the answer has none */
    rc = l.entries == NULL || l.list == NULL ? -ENOMEM : 0;
    if (rc == 0)
        rc = namespace_readdir(op->ns, req->ino, req->cookie, on_entry, &l, &dir, &end);
    if (rc == 0)
        rc = l.rc == -ESTALE ? -EIO : l.rc;
    if (rc == 0) {
        resp.n_entries = l.n;
        resp.entries = l.list;
        resp.end = end;
        resp.parent = dir.parent;
        resp.dir_token = md_op_grant(op, req->ino, TOKEN_SHARED);
        resp.grant = op->grant;
        resp.others = has_others(op);
        resp.next_cookie = dir.next_cookie;
        rc = md_op_pack(op, &resp.base);
    }
    free(l.entries);
    free(l.list);
    free(l.xattrs);
    return rc;
}

/* ---- open files ---- */

static int answer_open(struct md_op *op, struct inode *in, bool write, Rozo__Attr *attr,
                       Rozo__MdOpenResp resp)
{
    struct data_parts data;

    resp.attr = attr;
    resp.grant = op->grant;
    if (inode_is_file(in)) {
        int rc = data_fill(op, in, write, &data);

        if (rc != 0)
            return rc;
        resp.data = &data.msg;
    }
    return md_op_pack_inode(op, &resp.base);
}

/* Returns true if the session holds RANGES. Its writes, and what they need, then wait for
 * no other session; a request for attributes takes the RANGES back. */
static bool has_ranges(const struct md_op *op, uint64_t ino)
{
    return tokens_held(&op->export->tokens, &op->session->tokens, ino) == TOKEN_RANGES;
}

int md_open(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdOpenReq *req = (const Rozo__MdOpenReq *)msg;
    Rozo__Attr attr;
    struct inode in;
    int rc = namespace_getattr(op->ns, req->ino, &in);

    if (rc == 0 && req->moved && inode_is_file(&in) &&
        in.dist_generation <= req->dist_generation)
        redistribute_adopt(op->export, &in);
    if (rc == 0 && req->write && op->session->read_only)
        rc = -EROFS;
    if (rc == 0 && req->write)
        rc = store_error(op->x->store);
    /* Data written before a flag was set may have to be stored once more. */
    if (rc == 0 && req->write && !req->no_reference)
        rc = wants_writable(&in, req->append);
    if (rc == 0 && !(req->no_reference && has_ranges(op, req->ino)))
        /* giving back waits for the read that is under way */
        rc = wants_see_when(
            op, &in, req->no_reference && !req->write ? ASKED_PASSES : ASKED_WAITS);
    if (rc == 0)
        rc = open_inode(op, &in, req->write, !req->no_reference);
    if (rc != 0)
        return rc;
    attr_give(op, &in, req->write ? TOKEN_EXCLUSIVE : TOKEN_SHARED, &attr);
    return answer_open(op, &in, req->write, &attr,
                       (Rozo__MdOpenResp)ROZO__MD_OPEN_RESP__INIT);
}

/* Returns true if this is the newest epoch, given out by this start, and the inode says
 * that storages may have data. */
static bool epoch_is_good(const struct md_op *op, const struct inode *in, uint32_t epoch)
{
    return in->epoch == epoch && in->epoch_start == op->ns->start &&
           inode_may_have_data(in);
}

/* Returns true if a write removes set-id bits or a capability: no write checks for those
 * under RANGES. */
static bool has_privileges(struct md_op *op, const struct inode *in)
{
    const char name[] = "security.capability";
    const struct namespace_name capability = { (const uint8_t *)name, sizeof(name) - 1 };
    const uint8_t *val;
    size_t len;

    return (in->mode & (S_ISUID | S_ISGID)) != 0 ||
           namespace_getxattr(op->ns, in->ino, capability, &val, &len) != -ENODATA;
}

/* Returns the range of blocks that is needed, if no more is: only data, below a size that
 * stays. */
static struct token_range range_needed(struct md_op *op, const Rozo__MdTokenReq *req,
                                       const struct inode *in)
{
    uint64_t size = inode_final_size(in), from = req->offset, to = from + req->length;

    if (req->length == 0 || md_op_is_alone(op) || !inode_is_file(in) || to < from ||
        from >= size || (in->flags & INODE_TRUNCATE_PENDING) != 0 ||
        namespace_may_be_inline(op->ns, in) ||
        (to > size && req->mode == ROZO__TOKEN_MODE__EXCLUSIVE) || has_privileges(op, in))
        return (struct token_range){ 0 };
    if (to > size)
        to = size;
    from -= from % in->block_bytes;
    to += (in->block_bytes - to % in->block_bytes) % in->block_bytes;
    return (struct token_range){ from, to };
}

int md_token(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdTokenReq *req = (const Rozo__MdTokenReq *)msg;
    bool write = req->mode == ROZO__TOKEN_MODE__EXCLUSIVE;
    struct token_want want = { req->ino, write ? WANT_CHANGE : WANT_SHARE, { 0 } };
    Rozo__MdOpenResp resp = ROZO__MD_OPEN_RESP__INIT;
    struct token_range range = { 0 };
    Rozo__Attr attr;
    struct inode in;
    int rc;

    if ((!write && req->mode != ROZO__TOKEN_MODE__SHARED) || req->call == 0)
        return -EINVAL;
    if (write && op->session->read_only)
        return -EROFS;
    rc = write ? store_error(op->x->store) : 0;
    if (rc == 0)
        rc = namespace_getattr(op->ns, req->ino, &in);
    if (rc == 0 && write && !inode_is_file(&in))
        rc = inode_is_dir(&in) ? -EISDIR : -EINVAL;
    if (rc == 0 && write && !req->knows_flags && inode_is_fixed(&in))
        rc = -EPERM;
    if (rc == 0 && !tokens_have_room(&op->export->tokens, &op->session->tokens, 1))
        rc = -EBUSY;
    if (rc == 0)
        range = want.range = range_needed(op, req, &in);
    if (range.to != 0 && op->parked == NULL)
        tokens_note_work(&op->export->tokens, &op->session->tokens, req->ino, &range);
    if (rc == 0)
        rc = md_op_wants(op, &want, 1, ASKED_WAITS);
    if (rc == 0 && write && !epoch_is_good(op, &in, req->epoch))
        rc = open_inode(op, &in, true, false);
    if (rc != 0)
        return rc;
    attr_fill(op, &in, &attr);
    attr.token =
        md_op_grant_range(op, req->ino, (enum token_mode)req->mode, req->call, &range);
    if (attr.token < req->mode && range.to == 0)
        return -ENOMEM;
    resp.range_from = range.from;
    resp.range_to = range.to;
    return answer_open(op, &in, write, &attr, resp);
}

static void close_one(struct md_op *op, uint64_t ino, uint32_t n_references,
                      bool unreported, bool nothing_stored)
{
    if (unreported)
        namespace_unreported(op->ns, ino);
    session_unref(op->x, op->session, ino, n_references, nothing_stored);
}

int md_close(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdCloseReq *req = (const Rozo__MdCloseReq *)msg;

    if (req->n_more > CLOSES_MORE_MAX)
        return -EINVAL;
    close_one(op, req->ino, req->n_references, req->unreported, req->nothing_stored);
    for (size_t i = 0; i < req->n_more; i++)
        close_one(op, req->more[i]->ino, req->more[i]->n_references,
                  req->more[i]->unreported, req->more[i]->nothing_stored);
    return 0;
}

int md_atimes(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdAtimesReq *req = (const Rozo__MdAtimesReq *)msg;

    if (req->n_reads > ATIMES_READS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < req->n_reads; i++) {
        const Rozo__MdAtimesReq__Read *r = req->reads[i];

        namespace_accessed(op->ns, r->ino,
                           &(struct noted_read){ r->at_ns,
                                                 wide_ns_join(r->seen_ns, r->seen_more_s),
                                                 r->has_seen },
                           req->strict);
    }
    return 0;
}

/* Waits until no other session holds what this report changes. *beside_others: RANGES are
 * enough for it. They are not for a growing file: others rely on its end. */
static int wrote_wants(struct md_op *op, const Rozo__MdWroteReq *req, bool *beside_others)
{
    const struct token_want want = { req->ino, WANT_CHANGE, { 0 } };
    struct inode in;

    *beside_others = has_ranges(op, req->ino) &&
                     namespace_getattr(op->ns, req->ino, &in) == 0 &&
                     req->size <= inode_final_size(&in);
    return *beside_others ? 0 : md_op_wants(op, &want, 1, ASKED_PASSES);
}

int md_wrote(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdWroteReq *req = (const Rozo__MdWroteReq *)msg;
    struct namespace_wrote wrote = {
        .ino = req->ino,
        .has_data = req->has_data,
        .size = req->size,
        .mtime_ns = req->mtime_ns,
        .atime_ns = req->atime_ns,
        .epoch = req->epoch,
        .blocks_counted = req->blocks_counted,
        .reports_blocks = req->reports_blocks,
        .allocated = req->allocated.data,
        .allocated_len = req->allocated.len,
        .freed = req->freed.data,
        .freed_len = req->freed.len,
        .inline_version = req->inline_version,
        .inline_data = req->inline_data.data,
        .inline_len = req->inline_data.len,
    };
    struct inode in;
    bool cut;
    int rc = wrote_wants(op, req, &wrote.beside_others);

    if (rc == 0 && !metadata_room_fits(op->x, wrote.inline_len))
        rc = -ENOSPC;
    if (rc == 0)
        rc = namespace_wrote(op->ns, &wrote, &in, &cut);
    if (rc == 0)
        metadata_room_take(op->x, wrote.inline_len);
    op->sync = req->sync;
    return rc == 0 ? answer_truncated(op, &in, cut) : rc;
}

int md_truncated(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdTruncatedReq *req = (const Rozo__MdTruncatedReq *)msg;
    struct inode in;
    int rc = namespace_truncated(op->ns, req->ino, req->version, &in);

    /* If a loss of power took it, later writes would be hidden until the truncate was
     * done again. */
    op->sync = true;
    if (rc == 0 && (in.flags & INODE_TRUNCATE_PENDING) == 0)
        session_has_cut(op->session, req->ino);
    return rc == 0 ? answer_truncated(op, &in, false) : rc;
}

/* ---- xattrs ---- */

/* Returns the newest grant: an answer without attributes grants nothing, since a token
 * goes with the attributes that came with it. */
static uint64_t held_grant(const struct md_op *op, uint64_t ino)
{
    return tokens_held_grant(&op->export->tokens, &op->session->tokens, ino);
}

int md_getxattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdGetxattrReq *req = (const Rozo__MdGetxattrReq *)msg;
    Rozo__MdGetxattrResp resp = ROZO__MD_GETXATTR_RESP__INIT;
    const uint8_t *val;
    size_t len;
    int rc = namespace_getxattr(op->ns, req->ino, name_of(req->name), &val, &len);
    int packed;

    if (rc != 0 && rc != -ENODATA)
        return rc;
    if (rc == 0)
        resp.value = (ProtobufCBinaryData){ len, (uint8_t *)val };
    resp.grant = held_grant(op, req->ino); /* the absence may be kept, too */
    packed = md_op_pack(op, &resp.base);
    return packed == 0 ? rc : packed;
}

int md_setxattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdSetxattrReq *req = (const Rozo__MdSetxattrReq *)msg;
    int rc = wants_change(op, req->ino);

    if (rc != 0)
        return rc;
    return namespace_setxattr(op->ns, req->ino, name_of(req->name), req->value.data,
                              req->value.len, req->flags, req->kill_sgid);
}

int md_listxattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdListxattrReq *req = (const Rozo__MdListxattrReq *)msg;
    Rozo__MdListxattrResp resp = ROZO__MD_LISTXATTR_RESP__INIT;
    const uint8_t *names;
    size_t len;
    int rc = namespace_listxattr(op->ns, req->ino, &names, &len);

    if (rc != 0)
        return rc;
    resp.names = (ProtobufCBinaryData){ len, (uint8_t *)names };
    resp.grant = held_grant(op, req->ino);
    return md_op_pack(op, &resp.base);
}

int md_removexattr(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdRemovexattrReq *req = (const Rozo__MdRemovexattrReq *)msg;
    int rc = wants_change(op, req->ino);

    return rc == 0 ? namespace_removexattr(op->ns, req->ino, name_of(req->name)) : rc;
}

/* A name only changes here, in the order of requests, so no token is asked for. */
int md_real_name(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdRealNameReq *req = (const Rozo__MdRealNameReq *)msg;
    Rozo__MdRealNameResp resp = ROZO__MD_REAL_NAME_RESP__INIT;
    struct namespace_name found;
    int rc = namespace_real_name(op->ns, req->ino, name_of(req->name), &found);

    if (rc != 0)
        return rc;
    resp.name = (ProtobufCBinaryData){ found.len, (uint8_t *)found.bytes };
    return md_op_pack(op, &resp.base);
}

/* ---- the whole export ---- */

int md_statfs(struct md_op *op, const ProtobufCMessage *req)
{
    Rozo__MdStatfsResp resp = ROZO__MD_STATFS_RESP__INIT;
    struct room room;
    int rc = export_room(op->export, &room);

    (void)req;
    if (rc != 0)
        return rc;
    resp.total_bytes = room.total;
    resp.free_bytes = room.available;
    resp.unused_bytes = room.unused;
    resp.files = op->ns->n_inodes;
    return md_op_pack(op, &resp.base);
}

int md_sync(struct md_op *op, const ProtobufCMessage *req)
{
    Rozo__MdSyncResp resp = ROZO__MD_SYNC_RESP__INIT;

    (void)req;
    op->sync = true;
    resp.losses = cluster_losses(op->x);
    return md_op_pack(op, &resp.base);
}
