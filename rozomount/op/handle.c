/*
 * handle.c - open files of programs, and the locks under which they are read and written.
 *
 * In:     fs_*.c, on the owner loop of the inode; takeover.c.
 * Out:    pins of nodes; errors of writes that failed in the background.
 */
#include "rozomount/op/handle.h"

#include <assert.h>
#include <fcntl.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/options/xalloc.h"

enum {
    ROOT_INO = 1,
    INHERITED_LOSSES = 1, /* node->n_abandoned, for handles that owe an error, at first */
};

struct handle *handle_of(fuse_req_t req, uint64_t ino, const struct fuse_file_info *fi)
{
    const struct loop *loop = fuse_req_userdata(req);

    return held_user(loop->mount->held, fi->fh, ino);
}

static void handle_add(struct loop *loop, struct handle *handle, struct node *node,
                       const struct held_handle *held)
{
    handle->node = node;
    handle->flags = (int)held->flags;
    handle->past_pages = held->past_pages != 0;
    handle->no_atime = (handle->flags & O_NOATIME) != 0;
    handle->sync = (handle->flags & O_DSYNC) != 0;
    handle->next = loop->handles;
    if (loop->handles != NULL)
        loop->handles->prev = handle;
    loop->handles = handle;
}

struct handle *handle_new(struct loop *loop, struct node *node, int flags,
                          bool past_pages)
{
    const struct held_handle held = { .ino = node->ino,
                                      .flags = (uint32_t)flags,
                                      .kind = HELD_FILE,
                                      .past_pages = past_pages };
    struct handle *handle = xzalloc(sizeof(*handle));

    handle->number = held_add(loop->mount->held, &held, handle);
    if (handle->number == 0) {
        free(handle);
        return NULL;
    }
    handle_add(loop, handle, node, &held);
    handle->losses = file_losses(node->file);
    handle->abandoned = handle->unlocked = node->n_abandoned;
    return handle;
}

/* Unpins the node: with its last pin the file is written out and closed. */
void handle_free(struct loop *loop, struct handle *handle)
{
    struct node *node = handle->node;

    if (handle->prev != NULL)
        handle->prev->next = handle->next;
    else
        loop->handles = handle->next;
    if (handle->next != NULL)
        handle->next->prev = handle->prev;
    held_remove(loop->mount->held, handle->number);
    free(handle->owners);
    free(handle);
    if (node->file != NULL && node_is_worth_keeping(loop, node))
        node_keep(node);
    node_put(node);
}

struct file *handle_file(const struct handle *handle)
{
    const struct node *node = handle->node;

    assert(node->file != NULL && !node->closing);
    return node->file;
}

int handle_has_lost(const struct handle *handle)
{
    const struct node *node = handle->node;

    return handle->abandoned == node->n_abandoned ? 0 : node->abandoned_rc;
}

static void owner_add(void *arg, uint64_t owner)
{
    struct handle *handle = arg;

    handle->owners =
        xrealloc(handle->owners, (handle->n_owners + 1) * sizeof(*handle->owners));
    handle->owners[handle->n_owners++] = owner;
}

bool handle_locks(const struct loop *loop, struct handle *handle, uint64_t owner)
{
    for (unsigned i = 0; i < handle->n_owners; i++) {
        if (handle->owners[i] == owner)
            return true;
    }
    if (!held_add_owner(loop->mount->held, handle->number, owner))
        return false;
    owner_add(handle, owner);
    return true;
}

/* ---- data for the next process ---- */

enum step_end fuse_op_store(struct fuse_op *op, const struct handle *handle)
{
    if (op->rc != 0 || !mount_has_holder(op->loop->mount))
        return STEP_GO;
    file_flush(handle_file(handle), fuse_op_file_done, op);
    return STEP_WAIT;
}

/* ---- handles of a process before ---- */

void handle_has_reported(struct loop *loop, struct handle *handle)
{
    held_owe_error(loop->mount->held, handle->number, false);
}

void handle_inherit(struct loop *loop, uint64_t number, const struct held_handle *held)
{
    struct handle *handle = xzalloc(sizeof(*handle));

    handle->number = number;
    handle->is_inherited = true;
    handle_add(loop, handle, node_get(&loop->nodes, held->ino), held);
    handle->node->n_abandoned = handle->abandoned = handle->unlocked = INHERITED_LOSSES;
    handle->node->abandoned_rc = -EIO;
    if (held->owes_error) /* the next fsync fails */
        handle->abandoned = handle->unlocked = 0;
    held_each_owner(loop->mount->held, number, owner_add, handle);
    held_give(loop->mount->held, number, handle);
}

/* ---- answers to MD_OPEN ---- */

int fuse_op_hear_open(struct fuse_op *op)
{
    bool asked = op->rc != -EIO || op->call.answered;
    int rc = op->rc;

    if (rc == 0 && (md_decode_open(&op->call, &op->entry) != 0 ||
                    op->entry.attr.ino != op->node->ino || !op->entry.has_target)) {
        rc = -EIO;
        asked = false; /* exportd counts the reference all the same */
    }
    if (!asked)
        node_count_unanswered(op->node);
    return rc;
}

int fuse_op_take_open(struct fuse_op *op, bool *fresh)
{
    struct node *node = op->node;

    fuse_op_take_grant(op, 0);
    fuse_op_take_data_grant(op);
    token_cache_forget_attr(op->loop->mount->tokens, node->ino, op->changes.entry);
    *fresh = node_cache_is_fresh(node, &op->entry.attr);
    node_note_mode(node, &op->entry.attr);
    node_note_nlink(node, &op->entry.attr);
    return md_client_user_errno(node_adopt(node, &op->entry, true));
}

static enum step_end reopen_answered(struct fuse_op *op)
{
    struct handle *handle = op->handle;
    bool fresh;
    int rc = fuse_op_hear_open(op);

    if (rc == 0)
        rc = fuse_op_take_open(op, &fresh);
    if (rc == 0 && handle->is_inherited) {
        handle->is_inherited = false;
        handle->losses = file_losses(op->node->file);
    }
    node_put(op->node);
    op->node = NULL;
    return rc == 0 ? STEP_GO : fuse_op_end(op, rc == -ENOENT ? -ESTALE : rc);
}

static enum step_end reopen_ask(struct fuse_op *op)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    msg.ino = op->handle->node->ino;
    msg.write = (op->handle->flags & O_ACCMODE) != O_RDONLY;
    msg.append = (op->handle->flags & O_APPEND) != 0;
    op->next = reopen_answered;
    return fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base);
}

enum step_end fuse_op_use_handle(struct fuse_op *op)
{
    if (op->handle == NULL)
        return fuse_op_end(op, -EBADF);
    if (!op->handle->is_inherited)
        return STEP_GO;
    assert(op->node == NULL);
    op->node = op->handle->node;
    node_pin(op->node);
    op->next = reopen_ask;
    return fuse_op_wait_for_node(op);
}

/* ---- reading and writing under a lock ---- */

static enum step_end under_lock_look(struct fuse_op *op);

/* Continues after exportd has answered: locks lost until then are recorded. */
static enum step_end under_lock_heard(struct fuse_op *op)
{
    return op->rc != 0 /* timeout */ ? STEP_END : under_lock_look(op);
}

/* Returns LOCK_TABLE_* bits of all its owners. */
static unsigned handle_has(const struct mount *m, const struct handle *handle)
{
    unsigned has = 0;

    for (unsigned i = 0; i < handle->n_owners; i++)
        has |= lock_table_look(m->lock_table, handle->node->ino, handle->owners[i]);
    return has;
}

static enum step_end under_lock_look(struct fuse_op *op)
{
    const struct mount *m = op->loop->mount;
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;
    /* The order matters: losses are recorded before the session can be sure again. */
    bool sure = mount_session_is_sure(m->session, env_now_ns(&op->loop->env.env));
    unsigned has = handle_has(m, op->locked);

    if ((has & LOCK_TABLE_LOST) != 0)
        return fuse_op_end(op, -EIO);
    if (has == 0 || sure)
        return STEP_GO;
    msg.ino = ROOT_INO; /* always exists */
    op->next = under_lock_heard;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

enum step_end fuse_op_under_lock(struct fuse_op *op)
{
    op->locked = op->handle == NULL || op->handle->n_owners == 0 ? NULL : op->handle;
    return op->locked == NULL ? STEP_GO : under_lock_look(op);
}

bool fuse_op_has_lost_its_lock(const struct fuse_op *op)
{
    return op->locked != NULL &&
           (handle_has(op->loop->mount, op->locked) & LOCK_TABLE_LOST) != 0;
}
