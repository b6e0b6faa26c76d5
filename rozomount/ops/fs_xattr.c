/*
 * fs_xattr.c - extended attributes, with POSIX ACLs, and our own virtual ones.
 *
 * In:     the kernel's requests.
 * Out:    md calls, replies. Names beginning with "rozo." are never stored: rozo.locate
 *         (locate.c), rozo.fsid, rozo.export_id and rozo.process (this process and its
 *         holder, 0: none) are made on request, others do not exist. REAL_NAME and a name
 *         ask a directory for that name in another case (docs/internals/names.md).
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

/* Samba's module glusterfs_fuse asks for this and a name. */
static const char REAL_NAME[] = "glusterfs.get_real_filename:";

static bool name_is_virtual(const char *name)
{
    return strncmp(name, "rozo.", 5) == 0;
}

static bool name_is_capability(const char *name)
{
    return strcmp(name, XATTR_NAME_CAPS) == 0;
}

/* Answers with a value, or with its length if the caller asked only for that. */
enum step_end xattr_reply(struct xattr_op *x, const void *value, size_t len)
{
    fuse_req_t req = x->op.req;

    x->op.req = NULL;
    if (x->size == 0)
        fuse_reply_xattr(req, len);
    else if (len > x->size)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, len);
    return fuse_op_finish(&x->op);
}

/*
 * Begins an operation on the xattr of that name; NULL: the list of names. Returns NULL if
 * the name is invalid: answered.
 */
static struct xattr_op *xattr_begin(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct xattr_op *x = fuse_op_begin(req, sizeof(*x));
    int rc = name == NULL                    ? 0
             : name[0] == '\0'               ? -EINVAL
             : strlen(name) > XATTR_NAME_MAX ? -ERANGE
                                             : 0;

    x->op.ino = ino;
    if (rc != 0) {
        fuse_op_reply_err(&x->op, rc);
        return NULL;
    }
    return name == NULL || fuse_op_copy_name(&x->op, x->name, name) != NULL ? x : NULL;
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

/* Keeps the answer as long as our token of the inode lasts. */
static void xattr_keep(const struct xattr_op *x, const struct md_xattr *value,
                       bool is_there)
{
    struct token_cache *t = x->op.loop->mount->tokens;
    const struct cached_xattr cached = { is_there, value->len, value->value };

    token_cache_lock(t);
    token_cache_keep_xattr(t, x->op.ino, x->name, &cached, value->grant,
                           x->op.changes.entry);
    token_cache_unlock(t);
}

static enum step_end names_reply(struct xattr_op *x, uint8_t *names, size_t len)
{
    if (fuse_op_caller(&x->op)->uid != 0)
        len = names_hide_trusted(names, len);
    return xattr_reply(x, names, len);
}

/* Answers if a token covers the xattr, or the list of names. */
static enum step_end get_known(struct fuse_op *op)
{
    struct xattr_op *x = (struct xattr_op *)op;
    struct known_xattr known;

    if (!loop_may_tell(op->loop) ||
        !token_cache_find_xattr(op->loop->mount->tokens, op->ino, x->name, &known))
        return STEP_GO;
    if (!known.is_there)
        return fuse_op_end(op, -ENODATA);
    mount_note_xattrs_read(op->loop->mount, env_now_ns(&op->loop->env.env));
    return x->name[0] == '\0' ? names_reply(x, known.value, known.len)
                              : xattr_reply(x, known.value, known.len);
}

static enum step_end get_ask(struct fuse_op *op)
{
    const struct xattr_op *x = (struct xattr_op *)op;
    Rozo__MdGetxattrReq msg = ROZO__MD_GETXATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.name = bytes_of(x->name);
    mount_note_xattrs_read(op->loop->mount, env_now_ns(&op->loop->env.env));
    return fuse_op_ask(op, ROZO__OP__MD_GETXATTR, &msg.base);
}

static enum step_end get_answered(struct fuse_op *op)
{
    struct xattr_op *x = (struct xattr_op *)op;
    struct md_xattr value = { 0 };
    int rc = op->rc;

    if ((rc == 0 || (rc == -ENODATA && op->call.answered)) &&
        md_decode_xattr(&op->call, &value) != 0)
        rc = -EIO;
    if (rc == 0 || rc == -ENODATA)
        xattr_keep(x, &value, rc == 0);
    if (rc == 0)
        xattr_reply(x, value.value, value.len);
    md_xattr_drop(&value);
    return rc == 0 ? STEP_WAIT : fuse_op_end(op, rc);
}

/*
 * Writes the UUID of the export: the cluster's, with the number of the export in its last
 * four bytes. It is equal on every mount, for ever: file handles of NFS contain it.
 */
static void export_uuid(const struct mount_session_info *info, char text[37])
{
    const uint8_t *c = info->cluster_id;
    uint32_t id = info->export_id;
    uint8_t end[4] = { c[12] ^ (id >> 24), c[13] ^ (id >> 16 & 0xff),
                       c[14] ^ (id >> 8 & 0xff), c[15] ^ (id & 0xff) };

    snprintf(text, 37,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", c[0],
             c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11], end[0],
             end[1], end[2], end[3]);
}

/* Writes the value of a virtual xattr of the export. Returns false: no such name. */
static bool export_xattr(const struct mount *m, const char *name, char text[37])
{
    if (strcmp(name, "rozo.fsid") == 0)
        export_uuid(&m->info, text);
    else if (strcmp(name, "rozo.export_id") == 0)
        snprintf(text, 37, "%" PRIu32, m->info.export_id);
    else if (strcmp(name, "rozo.process") == 0)
        snprintf(text, 37, "%d %d", (int)getpid(),
                 mount_has_holder(m) ? (int)getppid() : 0);
    else
        return false;
    return true;
}

/*
 * Answers about the capability: the kernel asks before every write through its page
 * cache.
 */
static enum step_end capability_ask(struct fuse_op *op)
{
    const struct node *node = node_find(&op->loop->nodes, op->ino);
    uint64_t until_ns = node == NULL ? 0 : node->no_capability_until_ns;
    Rozo__MdGetxattrReq msg = ROZO__MD_GETXATTR_REQ__INIT;

    if (fuse_op_still_knows(op, until_ns))
        return fuse_op_end(op, -ENODATA);
    msg.ino = op->ino;
    msg.name = bytes_of(XATTR_NAME_CAPS);
    return fuse_op_ask_again(op, until_ns, ROZO__OP__MD_GETXATTR, &msg.base);
}

static enum step_end capability_answered(struct fuse_op *op)
{
    struct node *node = node_find(&op->loop->nodes, op->ino);

    if (node != NULL && fuse_op_goes_on_knowing(op, node->no_capability_until_ns))
        op->rc = -ENODATA;
    if (op->rc == -ENODATA && node != NULL)
        node_note_no_capability(node);
    return get_answered(op);
}

/* The answer is not kept: each name that is made or removed may change it. */
static enum step_end real_name_ask(struct fuse_op *op)
{
    const struct xattr_op *x = (struct xattr_op *)op;
    Rozo__MdRealNameReq msg = ROZO__MD_REAL_NAME_REQ__INIT;

    msg.ino = op->ino;
    msg.name = bytes_of(x->name + strlen(REAL_NAME));
    return fuse_op_ask(op, ROZO__OP__MD_REAL_NAME, &msg.base);
}

static enum step_end real_name_answered(struct fuse_op *op)
{
    struct md_xattr name = { 0 };

    if (op->rc == -ENOSYS) /* exportd is older: the caller reads the directory itself */
        return fuse_op_end(op, -EOPNOTSUPP);
    if (op->rc != 0)
        return STEP_END;
    if (md_decode_real_name(&op->call, &name) != 0)
        return fuse_op_end(op, -EIO);
    xattr_reply((struct xattr_op *)op, name.value, name.len);
    md_xattr_drop(&name);
    return STEP_WAIT;
}

void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    static fuse_op_step *const steps[] = { get_known, get_ask, get_answered, NULL };
    static fuse_op_step *const capability_steps[] = {
        get_known, fuse_op_goto_owner, capability_ask, capability_answered, NULL,
    };
    static fuse_op_step *const real_name_steps[] = { real_name_ask, real_name_answered,
                                                     NULL };
    struct xattr_op *x = xattr_begin(req, ino, name);
    char text[37];

    if (x == NULL)
        return;
    x->size = size;
    if (strcmp(name, "rozo.locate") == 0)
        fs_locate(x);
    else if (strncmp(name, REAL_NAME, strlen(REAL_NAME)) == 0)
        fuse_op_start(&x->op, real_name_steps);
    else if (export_xattr(x->op.loop->mount, name, text))
        xattr_reply(x, text, strlen(text));
    else if (name_is_virtual(name))
        fuse_op_reply_err(&x->op, -ENODATA);
    else
        fuse_op_start(&x->op, name_is_capability(name) ? capability_steps : steps);
}

static enum step_end list_ask(struct fuse_op *op)
{
    Rozo__MdListxattrReq msg = ROZO__MD_LISTXATTR_REQ__INIT;

    msg.ino = op->ino;
    mount_note_xattrs_read(op->loop->mount, env_now_ns(&op->loop->env.env));
    return fuse_op_ask(op, ROZO__OP__MD_LISTXATTR, &msg.base);
}

static enum step_end list_answered(struct fuse_op *op)
{
    struct xattr_op *x = (struct xattr_op *)op;
    struct md_xattr names = { 0 };

    if (op->rc != 0)
        return STEP_END;
    if (md_decode_xattr_names(&op->call, &names) != 0)
        return fuse_op_end(op, -EIO);
    xattr_keep(x, &names, true);
    names_reply(x, names.value, names.len);
    md_xattr_drop(&names);
    return STEP_WAIT;
}

void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    static fuse_op_step *const steps[] = { get_known, list_ask, list_answered, NULL };
    struct xattr_op *x = xattr_begin(req, ino, NULL);

    x->size = size;
    fuse_op_start(&x->op, steps);
}

/* ---- set, remove ---- */

static enum step_end set_looked(struct fuse_op *op)
{
    struct xattr_op *x = (struct xattr_op *)op;

    if (op->rc != 0)
        return STEP_END;
    if (md_decode_entry(&op->call, &op->entry) != 0)
        return fuse_op_end(op, -EIO);
    x->kills_sgid = !fuse_op_is_in_group(op, op->entry.attr.gid);
    return STEP_GO;
}

/* Linux clears set-gid with a new ACL if the caller is outside the file's group. */
static enum step_end set_look(struct fuse_op *op)
{
    const struct xattr_op *x = (struct xattr_op *)op;
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    if (strcmp(x->name, "system.posix_acl_access") != 0 || fuse_op_caller(op)->uid == 0)
        return STEP_GO;
    msg.ino = op->ino;
    op->next = set_looked;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

/* A capability is changed on the owner loop, which knows whether there is one. */
static enum step_end set_goto_owner(struct fuse_op *op)
{
    return name_is_capability(((struct xattr_op *)op)->name) ? fuse_op_goto_owner(op)
                                                             : STEP_GO;
}

static enum step_end set_ask(struct fuse_op *op)
{
    const struct xattr_op *x = (struct xattr_op *)op;
    Rozo__MdSetxattrReq msg = ROZO__MD_SETXATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.name = bytes_of(x->name);
    msg.value = (ProtobufCBinaryData){ .len = x->size, .data = op->memory };
    msg.flags = (unsigned)x->flags;
    msg.kill_sgid = x->kills_sgid;
    fuse_op_changes_xattrs(op, op->ino);
    return fuse_op_ask(op, ROZO__OP__MD_SETXATTR, &msg.base);
}

static enum step_end xattr_changed(struct fuse_op *op)
{
    return fuse_op_end(op, fuse_op_was_done(op) ? 0 : op->rc);
}

static enum step_end set_answered(struct fuse_op *op)
{
    struct node *node = node_find(&op->loop->nodes, op->ino);

    if (node != NULL && name_is_capability(((struct xattr_op *)op)->name))
        node->no_capability_until_ns = 0;
    return xattr_changed(op);
}

void fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                 size_t size, int flags)
{
    static fuse_op_step *const steps[] = { set_look, set_goto_owner, set_ask,
                                           set_answered, NULL };
    struct xattr_op *x = xattr_begin(req, ino, name);

    if (x == NULL)
        return;
    if (name_is_virtual(name)) {
        fuse_op_reply_err(&x->op, -EPERM);
        return;
    }
    x->size = size;
    x->flags = flags;
    x->op.memory = xzalloc(size + 1);
    if (size != 0)
        memcpy(x->op.memory, value, size);
    fuse_op_start(&x->op, steps);
}

static enum step_end remove_ask(struct fuse_op *op)
{
    const struct xattr_op *x = (struct xattr_op *)op;
    Rozo__MdRemovexattrReq msg = ROZO__MD_REMOVEXATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.name = bytes_of(x->name);
    fuse_op_changes_xattrs(op, op->ino);
    return fuse_op_ask(op, ROZO__OP__MD_REMOVEXATTR, &msg.base);
}

static bool virtual_is_there(const struct fuse_op *op, const char *name)
{
    char text[37];

    return strcmp(name, "rozo.locate") == 0 || export_xattr(op->loop->mount, name, text);
}

void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    static fuse_op_step *const steps[] = { remove_ask, xattr_changed, NULL };
    struct xattr_op *x = xattr_begin(req, ino, name);

    if (x == NULL)
        return;
    if (name_is_virtual(name))
        fuse_op_reply_err(&x->op, virtual_is_there(&x->op, name) ? -EPERM : -ENODATA);
    else
        fuse_op_start(&x->op, steps);
}
