/*
 * handle.c - open files of programs, and the locks under which they are read and written.
 *
 * In:     fs_*.c, on the owner loop of the inode.
 * Out:    pins of nodes; errors of writes that failed in the background.
 */
#include "rozomount/op/handle.h"

#include <assert.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/options/xalloc.h"

enum { ROOT_INO = 1 };

struct handle *handle_new(struct loop *loop, struct node *node)
{
    struct handle *handle = xzalloc(sizeof(*handle));

    handle->node = node;
    handle->next = loop->handles;
    if (loop->handles != NULL)
        loop->handles->prev = handle;
    loop->handles = handle;
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
    free(handle->owners);
    free(handle);
    if (node_is_worth_keeping(loop, node))
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

void handle_locks(struct handle *handle, uint64_t owner)
{
    for (unsigned i = 0; i < handle->n_owners; i++) {
        if (handle->owners[i] == owner)
            return;
    }
    handle->owners =
        xrealloc(handle->owners, (handle->n_owners + 1) * sizeof(*handle->owners));
    handle->owners[handle->n_owners++] = owner;
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
