/*
 * fs_xattr.c - extended attributes, with POSIX ACLs, and our own virtual ones.
 *
 * In:     the kernel's requests.
 * Out:    md calls, replies. Names beginning with "rozo." are never stored: rozo.locate
 *         is made on request (locate.c), others do not exist.
 */
#include <errno.h>
#include <linux/xattr.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

static bool name_is_virtual(const char *name)
{
    return strncmp(name, "rozo.", 5) == 0;
}

static bool name_is_capability(const char *name)
{
    return strcmp(name, XATTR_NAME_CAPS) == 0;
}

/* Answers with a value, or with its length if the caller asked only for that. */
void fuse_op_reply_xattr(struct fuse_op *op, const void *value, size_t len)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    if (op->size == 0)
        fuse_reply_xattr(req, len);
    else if (len > op->size)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, len);
    fuse_op_finish(op);
}

/*
 * Returns false if the name is invalid: answered. An empty name, which no caller has,
 * stands for the list of names.
 */
static bool op_set_xattr_name(struct fuse_op *op, const char *name)
{
    int rc = name[0] == '\0' ? -EINVAL : strlen(name) > XATTR_NAME_MAX ? -ERANGE : 0;

    if (rc == 0)
        return fuse_op_set_name(op, op->name, name);
    fuse_op_reply_err(op, rc);
    return false;
}

/* Removes trusted names in place; returns the new length. */
static size_t names_hide_trusted(uint8_t *names, size_t len)
{
    size_t left = 0;

    for (size_t at = 0, n; at < len; at += n) {
        n = strlen((const char *)names + at) + 1;
        if (strncmp((const char *)names + at, XATTR_TRUSTED_PREFIX,
                    XATTR_TRUSTED_PREFIX_LEN) == 0)
            continue;
        memmove(names + left, names + at, n);
        left += n;
    }
    return left;
}

/* ---- get, list ---- */

/* Keeps the answer about the xattr op->name, or about the list of names, as long as our
 * token of the inode lasts. */
static void op_keep_xattr(struct fuse_op *op, const struct md_xattr *x, bool is_there)
{
    struct token_cache *t = op->loop->mount->tokens;
    const struct cached_xattr cached = { is_there, x->len, x->value };

    token_cache_lock(t);
    token_cache_keep_xattr(t, op->ino, op->name, &cached, x->grant, op->changes);
    token_cache_unlock(t);
}

static void op_reply_names(struct fuse_op *op, uint8_t *names, size_t len)
{
    if (op->uid != 0)
        len = names_hide_trusted(names, len);
    fuse_op_reply_xattr(op, names, len);
}

/*
 * Answers about op->name, or the list of names, if a token covers it. Returns false if
 * not.
 */
static bool op_knows_xattr(struct fuse_op *op)
{
    struct known_xattr x;

    if (!loop_may_tell(op->loop) ||
        !token_cache_find_xattr(op->loop->mount->tokens, op->ino, op->name, &x))
        return false;
    if (!x.is_there)
        fuse_op_reply_err(op, -ENODATA);
    else if (op->name[0] == '\0')
        op_reply_names(op, x.value, x.len);
    else
        fuse_op_reply_xattr(op, x.value, x.len);
    return true;
}

static void on_got_xattr(struct fuse_op *op, int rc)
{
    struct md_xattr x = { 0 };

    if ((rc == 0 || (rc == -ENODATA && op->call.answered)) &&
        md_decode_xattr(&op->call, &x) != 0)
        rc = -EIO;
    if (rc == 0 || rc == -ENODATA)
        op_keep_xattr(op, &x, rc == 0);
    if (rc != 0)
        fuse_op_reply_err(op, rc);
    else
        fuse_op_reply_xattr(op, x.value, x.len);
    md_xattr_drop(&x);
}

static void on_got_capability(struct fuse_op *op, int rc)
{
    struct node *node = node_find(&op->loop->nodes, op->ino);

    if (node != NULL && fuse_op_goes_on_knowing(op, node->no_capability_until_ns, rc))
        rc = -ENODATA;
    if (rc == -ENODATA && node != NULL)
        node_note_no_capability(node);
    on_got_xattr(op, rc);
}

/*
 * Answers about the capability: the kernel asks before every write through its page
 * cache.
 */
static void getxattr_capability(struct fuse_op *op)
{
    const struct node *node = node_find(&op->loop->nodes, op->ino);
    Rozo__MdGetxattrReq msg = ROZO__MD_GETXATTR_REQ__INIT;

    if (node != NULL && fuse_op_still_knows(op, node->no_capability_until_ns)) {
        fuse_op_reply_err(op, -ENODATA);
        return;
    }
    msg.ino = op->ino;
    msg.name = bytes_of(XATTR_NAME_CAPS);
    fuse_op_ask_again(op, node == NULL ? 0 : node->no_capability_until_ns,
                      ROZO__OP__MD_GETXATTR, &msg.base, on_got_capability);
}

void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdGetxattrReq msg = ROZO__MD_GETXATTR_REQ__INIT;

    op->ino = ino;
    op->size = size;
    if (!op_set_xattr_name(op, name))
        return;
    if (strcmp(name, "rozo.locate") == 0) {
        fs_locate(op);
    } else if (name_is_virtual(name)) {
        fuse_op_reply_err(op, -ENODATA);
    } else if (op_knows_xattr(op)) {
        return;
    } else if (name_is_capability(name)) {
        fuse_op_goto_owner(op, ino, getxattr_capability);
    } else {
        msg.ino = ino;
        msg.name = bytes_of(op->name);
        fuse_op_ask(op, ROZO__OP__MD_GETXATTR, &msg.base, on_got_xattr);
    }
}

static void on_listed_xattr(struct fuse_op *op, int rc)
{
    struct md_xattr x = { 0 };

    if (rc == 0 && md_decode_xattr_names(&op->call, &x) != 0)
        rc = -EIO;
    if (rc == 0)
        op_keep_xattr(op, &x, true);
    if (rc != 0)
        fuse_op_reply_err(op, rc);
    else
        op_reply_names(op, x.value, x.len);
    md_xattr_drop(&x);
}

void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdListxattrReq msg = ROZO__MD_LISTXATTR_REQ__INIT;

    op->ino = ino;
    op->size = size;
    op->name[0] = '\0'; /* the list of names */
    if (op_knows_xattr(op))
        return;
    msg.ino = ino;
    fuse_op_ask(op, ROZO__OP__MD_LISTXATTR, &msg.base, on_listed_xattr);
}

/* ---- set, remove ---- */

static void on_set_xattr(struct fuse_op *op, int rc)
{
    fuse_op_reply_err(op, fuse_op_was_done(op) ? 0 : rc);
}

/* Runs on the owner loop. */
static void on_set_capability(struct fuse_op *op, int rc)
{
    struct node *node = node_find(&op->loop->nodes, op->ino);

    if (node != NULL)
        node->no_capability_until_ns = 0;
    on_set_xattr(op, rc);
}

/*
 * Sends MD_SETXATTR. op->memory: the value; op->size: its length; op->plus: clear
 * set-gid.
 */
static void setxattr_ask(struct fuse_op *op)
{
    Rozo__MdSetxattrReq msg = ROZO__MD_SETXATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.name = bytes_of(op->name);
    msg.value = (ProtobufCBinaryData){ .len = op->size, .data = op->memory };
    msg.flags = op->flags;
    msg.kill_sgid = op->plus;
    fuse_op_changes_xattrs(op, op->ino);
    fuse_op_ask(op, ROZO__OP__MD_SETXATTR, &msg.base,
                name_is_capability(op->name) ? on_set_capability : on_set_xattr);
}

static void on_attr_for_acl(struct fuse_op *op, int rc)
{
    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    op->plus = !fuse_op_is_in_group(op, op->entry.attr.gid);
    setxattr_ask(op);
}

void fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                 size_t size, int flags)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    if (!op_set_xattr_name(op, name))
        return;
    if (name_is_virtual(name)) {
        fuse_op_reply_err(op, -EPERM);
        return;
    }
    op->ino = ino;
    op->size = size;
    op->flags = (unsigned)flags;
    op->memory = xzalloc(size + 1);
    if (size != 0)
        memcpy(op->memory, value, size);
    if (strcmp(name, "system.posix_acl_access") == 0 && op->uid != 0) {
        msg.ino = ino;
        fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_attr_for_acl);
    } else if (name_is_capability(name)) {
        fuse_op_goto_owner(op, ino, setxattr_ask);
    } else {
        setxattr_ask(op);
    }
}

void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdRemovexattrReq msg = ROZO__MD_REMOVEXATTR_REQ__INIT;

    if (name_is_virtual(name)) {
        fuse_op_reply_err(op, strcmp(name, "rozo.locate") == 0 ? -EPERM : -ENODATA);
        return;
    }
    op->ino = msg.ino = ino;
    msg.name = bytes_of(name);
    fuse_op_changes_xattrs(op, ino);
    fuse_op_ask(op, ROZO__OP__MD_REMOVEXATTR, &msg.base, on_set_xattr);
}
