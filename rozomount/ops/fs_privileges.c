/*
 * fs_privileges.c - removal of privileges by a write: set-id bits and the file's
 * capability.
 *
 * In:     fuse_op_drop_privileges(), on the owner of the inode.
 * Out:    md calls, then the write.
 * Keeps:  data are accepted only if the file has no such privilege, as exportd said at
 *         most a second ago (or at last, while it is unreachable), and we know of no
 *         change since.
 */
#include "rozomount/ops/fs_privileges.h"

#include <errno.h>
#include <linux/xattr.h>
#include <stdlib.h>
#include <sys/xattr.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

/* Timeout of a request that renews a known fact: without an answer we go on. */
enum { ASK_AGAIN_MS = 1000 };

enum { GROUPS_FIRST = 64 }; /* more than most processes have */

static enum step_end drop_next(struct fuse_op *op);

bool fuse_op_is_in_group(struct fuse_op *op, gid_t gid)
{
    gid_t *groups = NULL;
    bool is_in = fuse_op_caller(op)->gid == gid;
    int room = 0, n = is_in ? 0 : GROUPS_FIRST;

    while (n > room) { /* exact count unknown: the process may join groups */
        room = n;
        groups = xrealloc(groups, (size_t)room * sizeof(*groups));
        n = fuse_req_getgroups(op->req, room, groups);
    }
    for (int i = 0; !is_in && i < n; i++)
        is_in = groups[i] == gid;
    free(groups);
    return is_in;
}

uint32_t fuse_op_kills_set_id(struct fuse_op *op, uint32_t mode, gid_t gid)
{
    /* set-gid without group execute means something else */
    const uint32_t set_gid = S_ISGID | S_IXGRP;
    uint32_t kills = 0;

    if (fuse_op_caller(op)->uid == 0 || S_ISDIR(mode))
        return 0;
    if ((mode & S_ISUID) != 0 || (mode & set_gid) == set_gid)
        kills |= ROZO__SETATTR_BITS__SET_KILL_SUIDGID;
    if ((mode & set_gid) == S_ISGID && !fuse_op_is_in_group(op, gid))
        kills |= ROZO__SETATTR_BITS__SET_KILL_SGID;
    return kills;
}

/* While exportd is unreachable nothing can change the file, as far as we know. */
bool fuse_op_still_knows(const struct fuse_op *op, uint64_t until_ns)
{
    return until_ns != 0 && (env_now_ns(&op->loop->env.env) < until_ns ||
                             rpc_channel_health(op->loop->md_channel) != RPC_UP);
}

/* until_ns: 0 if nothing was known. */
enum step_end fuse_op_ask_again(struct fuse_op *op, uint64_t until_ns, uint16_t code,
                                const ProtobufCMessage *msg)
{
    return fuse_op_ask_within(
        op, until_ns == 0 ? op->loop->mount->opt->meta_timeout_ms : ASK_AGAIN_MS, code,
        msg);
}

bool fuse_op_goes_on_knowing(const struct fuse_op *op, uint64_t until_ns)
{
    return op->rc == -EIO && !op->call.answered && until_ns != 0;
}

static bool answer_is_ours(struct fuse_op *op)
{
    return md_decode_entry(&op->call, &op->entry) == 0 &&
           op->entry.attr.ino == op->handle->node->ino;
}

static enum step_end drop_failed(struct fuse_op *op, int rc)
{
    return fuse_op_end(op, rc == -ENOENT ? -ESTALE : rc);
}

static enum step_end mode_answered(struct fuse_op *op)
{
    struct node *node = op->handle->node;

    if (fuse_op_goes_on_knowing(op, node->mode_until_ns)) {
        node_renew_mode(node);
        return drop_next(op);
    }
    if (op->rc != 0)
        return drop_failed(op, op->rc);
    if (!answer_is_ours(op))
        return fuse_op_end(op, -EIO);
    node_note_mode(node, &op->entry.attr);
    return drop_next(op);
}

static enum step_end capability_is_gone(struct fuse_op *op)
{
    node_note_no_capability(op->handle->node);
    return drop_next(op);
}

static enum step_end capability_removed(struct fuse_op *op)
{
    if (op->rc != 0 && op->rc != -ENODATA && !fuse_op_was_done(op))
        return drop_failed(op, op->rc);
    return capability_is_gone(op);
}

static enum step_end capability_answered(struct fuse_op *op)
{
    struct node *node = op->handle->node;
    Rozo__MdRemovexattrReq msg = ROZO__MD_REMOVEXATTR_REQ__INIT;

    if (op->rc != 0 && fuse_op_goes_on_knowing(op, node->no_capability_until_ns))
        return capability_is_gone(op);
    if (op->rc != 0)
        return capability_removed(op);
    msg.ino = node->ino;
    msg.name = bytes_of(XATTR_NAME_CAPS);
    fuse_op_changes_xattrs(op, msg.ino);
    op->next = capability_removed;
    return fuse_op_ask(op, ROZO__OP__MD_REMOVEXATTR, &msg.base);
}

/* Drops the old mode from the kernel's cache. */
static enum step_end set_id_removed(struct fuse_op *op)
{
    struct nodes *nodes = &op->loop->nodes;
    int rc = op->rc == 0 && !answer_is_ours(op) ? -EIO : op->rc;

    node_change_answered(op->handle->node, rc == 0 ? &op->entry.attr : NULL);
    if (rc != 0 && !fuse_op_was_done(op))
        return drop_failed(op, rc);
    if (rc == 0)
        node_note_mode(op->handle->node, &op->entry.attr);
    else
        op->handle->node->mode_until_ns = 0; /* asks exportd next time */
    if (nodes->config.invalidate != NULL)
        nodes->config.invalidate(nodes->config.arg, op->handle->node->ino);
    return drop_next(op);
}

static enum step_end drop_set_id(struct fuse_op *op, uint32_t kills)
{
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    msg.ino = op->handle->node->ino;
    msg.valid = kills;
    node_change_sent(op->handle->node);
    fuse_op_changes_xattrs(op, msg.ino);
    op->next = set_id_removed;
    return fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base);
}

/* Answers from what we keep under the inode's token. */
static bool lacks_capability(const struct fuse_op *op, struct node *node)
{
    struct known_xattr x;

    if (!loop_may_tell(op->loop) ||
        !token_cache_find_xattr(op->loop->mount->tokens, node->ino, XATTR_NAME_CAPS, &x))
        return false;
    /* used while exportd is unreachable */
    if (!x.is_there)
        node_note_no_capability(node);
    return !x.is_there;
}

static enum step_end ask_mode(struct fuse_op *op)
{
    const struct node *node = op->handle->node;
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = node->ino;
    op->next = mode_answered;
    return fuse_op_ask_again(op, node->mode_until_ns, ROZO__OP__MD_GETATTR, &msg.base);
}

static enum step_end ask_capability(struct fuse_op *op)
{
    const struct node *node = op->handle->node;
    Rozo__MdGetxattrReq msg = ROZO__MD_GETXATTR_REQ__INIT;

    msg.ino = node->ino;
    msg.name = bytes_of(XATTR_NAME_CAPS);
    op->next = capability_answered;
    return fuse_op_ask_again(op, node->no_capability_until_ns, ROZO__OP__MD_GETXATTR,
                             &msg.base);
}

/* Asks for the next unknown fact, or removes the next privilege. */
static enum step_end drop_next(struct fuse_op *op)
{
    struct node *node = op->handle->node;
    uint32_t kills;

    if (!fuse_op_still_knows(op, node->mode_until_ns))
        return ask_mode(op);
    if (!fuse_op_still_knows(op, node->no_capability_until_ns) &&
        !lacks_capability(op, node))
        return ask_capability(op);
    kills = fuse_op_kills_set_id(op, node->mode, node->gid);
    return kills != 0 ? drop_set_id(op, kills) : STEP_GO;
}

enum step_end fuse_op_drop_privileges(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;

    /* Files that have privileges get no range tokens. */
    return op->loop->mount->drops_privileges &&
                   token_cache_mode(t, op->handle->node->ino) != TOKEN_RANGES
               ? drop_next(op)
               : STEP_GO;
}

bool fuse_op_is_forbidden(const struct fuse_op *op, bool only_appends)
{
    uint32_t flags = op->handle->node->file_flags;

    return (flags & ROZO__FILE_FLAGS__FLAG_IMMUTABLE) != 0 ||
           ((flags & ROZO__FILE_FLAGS__FLAG_APPEND) != 0 && !only_appends);
}
