/*
 * namespace_attr.c - setattr, epochs, sizes and truncates.
 *
 * In:     md.c, from requests.
 * Out:    the store's pending batch.
 * Keeps:  an epoch is given out once, even if a loss of power takes what was not synced.
 *         While a truncate is pending the size never grows beyond it: growth waits in
 *         wanted_size until the storages have dropped the old bytes (I2).
 *
 * A client that dies, or whose last report a loss of power took, may have left bytes on
 * storages beyond the known size. They must not show when the file grows, so a truncate
 * to the known size becomes pending, as if the file had shrunk. While another session may
 * be writing, and about to report such bytes, INODE_UNREPORTED only notes the need; the
 * truncate is made when the file is next opened for writing alone.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/range_map.h"
#include "common/wire/record.h"
#include "exportd/namespace/acl.h"
#include "exportd/namespace/namespace_int.h"

enum {
    EPOCHS_LOST_MAX = 1 << 14
}; /* epochs of one inode, between two syncs; 2^32 last for 262,144 starts */

static const uint32_t setattr_bits_all =
    ROZO__SETATTR_BITS__SET_MODE | ROZO__SETATTR_BITS__SET_UID |
    ROZO__SETATTR_BITS__SET_GID | ROZO__SETATTR_BITS__SET_SIZE |
    ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_MTIME |
    ROZO__SETATTR_BITS__SET_ATIME_NOW | ROZO__SETATTR_BITS__SET_MTIME_NOW |
    ROZO__SETATTR_BITS__SET_KILL_SUIDGID | ROZO__SETATTR_BITS__SET_SYNC |
    ROZO__SETATTR_BITS__SET_KILL_SGID | ROZO__SETATTR_BITS__SET_FLAGS |
    ROZO__SETATTR_BITS__SET_WRITTEN;

static bool wants(const struct namespace_setattr *req, uint32_t bit)
{
    return (req->valid & bit) != 0;
}

/* Returns in *out the next epoch. The newest epochs may be lost with the power while
 * storages have records of them, and two writes with one version leave a mixture. So it
 * lies above all that starts since the inode's last epoch may have given out. -EOVERFLOW:
 * none is left. */
static int epoch_next(const struct namespace *ns, const struct inode *in, uint32_t *out)
{
    uint64_t next = (uint64_t)in->epoch + 1 +
                    (uint64_t)(ns->start - in->epoch_start) * EPOCHS_LOST_MAX;

    if (next > UINT32_MAX)
        return -EOVERFLOW;
    if (out != NULL)
        *out = (uint32_t)next;
    return 0;
}

static void epoch_give(const struct namespace *ns, struct inode *in)
{
    int rc = epoch_next(ns, in, &in->epoch);

    assert(rc == 0); /* the caller has checked it */
    in->epoch_start = ns->start;
}

/* Returns true if a client may have left unreported bytes beyond the end: see the head of
 * this file. */
static bool is_unreported(const struct namespace *ns, const struct inode *in)
{
    if ((in->flags & INODE_UNREPORTED) != 0)
        return true;
    if (in->epoch_start == ns->start) /* all writers since are known */
        return false;
    /* the record of its opening may be lost, too */
    return inode_may_have_data(in) || in->epoch_start < ns->last_loss;
}

/* Gives a fresh epoch, and makes the truncate of unreported bytes pending if alone. */
static void epoch_give_to(struct namespace *ns, struct inode *in, bool alone)
{
    bool unreported = is_unreported(ns, in);

    assert(inode_is_file(in));
    epoch_give(ns, in);
    if (!unreported)
        return;
    if ((in->flags & INODE_UNREPORTED) == 0)
        namespace_blocks_doubt(in);
    if (!alone) {
        in->flags |= INODE_UNREPORTED;
        return;
    }
    in->flags &= ~(uint32_t)INODE_UNREPORTED;
    if ((in->flags & INODE_INLINE) != 0)
        in->truncate_size = 0; /* data on storages do not count for an inline file */
    else if ((in->flags & INODE_TRUNCATE_PENDING) == 0)
        in->truncate_size = in->size;
    in->flags |= INODE_TRUNCATE_PENDING;
    in->truncate_version = version_make(in->epoch, 0);
    if ((in->flags & INODE_INLINE) == 0)
        namespace_blocks_cut(ns, in, in->truncate_size);
}

void namespace_unreported(struct namespace *ns, uint64_t ino)
{
    struct inode in;

    if (inode_get(ns, ino, &in) != 0 || !inode_is_file(&in) ||
        !inode_may_have_data(&in) || (in.flags & INODE_UNREPORTED) != 0)
        return;
    in.flags |= INODE_UNREPORTED;
    namespace_blocks_doubt(&in);
    inode_put(ns, &in);
}

/* Checks the flags of chattr. As on local file systems they do not protect set-id
 * bits. */
static int fixed_check(const struct namespace_setattr *req, const struct inode *in)
{
    const uint32_t now =
        ROZO__SETATTR_BITS__SET_ATIME_NOW | ROZO__SETATTR_BITS__SET_MTIME_NOW;
    const uint32_t others = ROZO__SETATTR_BITS__SET_MODE | ROZO__SETATTR_BITS__SET_UID |
                            ROZO__SETATTR_BITS__SET_GID | ROZO__SETATTR_BITS__SET_SIZE |
                            ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_MTIME;
    uint32_t valid = req->valid & (now | others);

    if (!inode_is_fixed(in) || valid == 0)
        return 0;
    if (wants(req, ROZO__SETATTR_BITS__SET_WRITTEN) &&
        valid == ROZO__SETATTR_BITS__SET_MTIME)
        return 0;
    return (in->flags & INODE_APPEND) != 0 && (in->flags & INODE_IMMUTABLE) == 0 &&
                   valid == now
               ? 0
               : -EPERM;
}

static int file_flags_check(const struct namespace_setattr *req, const struct inode *in)
{
    const uint32_t known =
        ROZO__FILE_FLAGS__FLAG_IMMUTABLE | ROZO__FILE_FLAGS__FLAG_APPEND;

    if (!wants(req, ROZO__SETATTR_BITS__SET_FLAGS))
        return 0;
    if ((req->file_flags & ~known) != 0 || (!inode_is_file(in) && !inode_is_dir(in)))
        return -EOPNOTSUPP;
    return 0;
}

static int setattr_check(const struct namespace *ns, const struct namespace_setattr *req,
                         const struct inode *in)
{
    int rc;

    if ((req->valid & ~setattr_bits_all) != 0)
        return -EINVAL;
    rc = fixed_check(req, in);
    if (rc == 0)
        rc = file_flags_check(req, in);
    if (rc != 0)
        return rc;
    if (wants(req, ROZO__SETATTR_BITS__SET_MODE) &&
        (req->mode & ~(uint32_t)(S_IFMT | 07777)) != 0)
        return -EINVAL;
    if ((wants(req, ROZO__SETATTR_BITS__SET_UID) && req->uid == UINT32_MAX) ||
        (wants(req, ROZO__SETATTR_BITS__SET_GID) && req->gid == UINT32_MAX))
        return -EINVAL;
    if (!wide_ns_is_fine(req->atime_ns) || !wide_ns_is_fine(req->mtime_ns))
        return -EINVAL;
    if (!wants(req, ROZO__SETATTR_BITS__SET_SIZE))
        return 0;
    if (inode_is_dir(in))
        return -EISDIR;
    if (!inode_is_file(in))
        return -EINVAL;
    if (req->size > INT64_MAX)
        return -EFBIG;
    return epoch_next(ns, in, NULL);
}

/* Removes set-id bits as the kernel does: set-gid counts only with group execute. */
static void kill_suidgid(struct inode *in)
{
    if (inode_is_dir(in))
        return;
    in->mode &= ~(uint32_t)S_ISUID;
    if ((in->mode & S_IXGRP) != 0)
        in->mode &= ~(uint32_t)S_ISGID;
}

/* Returns true if storages may have bytes that this cuts off. While a file is inline,
 * data on storages do not count; a cut to 0 ends that. */
static bool cuts_storages(const struct inode *in, uint64_t size)
{
    assert(inode_is_file(in));
    if ((in->flags & INODE_INLINE) != 0)
        return size == 0 && (in->flags & INODE_UNREPORTED) != 0;
    return size < inode_final_size(in) && inode_may_have_data(in);
}

/* Sets a size and a fresh epoch. If the file lost bytes, a truncate is pending. */
static int set_size(struct namespace *ns, struct inode *in, uint64_t size, bool alone)
{
    bool pending;
    int rc;

    assert(inode_is_file(in) && size <= INT64_MAX);
    epoch_give_to(ns, in, alone);
    pending = (in->flags & INODE_TRUNCATE_PENDING) != 0;
    if (cuts_storages(in, size)) {
        if (!pending || size < in->truncate_size)
            in->truncate_size = size;
        in->truncate_version = version_make(in->epoch, 0);
        in->flags |= INODE_TRUNCATE_PENDING;
        pending = true;
    }
    if ((in->flags & INODE_INLINE) != 0 &&
        size < inode_final_size(in)) /* see namespace_wrote() */
        in->truncate_version = version_make(in->epoch, 0);
    rc = inline_cut(ns, in, size);
    if (rc != 0)
        return rc;
    if (size < inode_final_size(in))
        namespace_blocks_cut(ns, in, size);
    in->wanted_size = 0;
    if (pending && size > in->truncate_size) {
        in->size = in->truncate_size;
        in->wanted_size = size;
    } else {
        in->size = size;
    }
    return 0;
}

static void set_times(const struct namespace_setattr *req, struct inode *in,
                      int64_t now_ns)
{
    in->ctime_ns = now_ns;
    if (wants(req, ROZO__SETATTR_BITS__SET_SIZE))
        in->mtime_ns = now_ns;
    if (wants(req, ROZO__SETATTR_BITS__SET_ATIME))
        in->atime_ns = req->atime_ns;
    if (wants(req, ROZO__SETATTR_BITS__SET_MTIME))
        in->mtime_ns = req->mtime_ns;
    if (wants(req, ROZO__SETATTR_BITS__SET_ATIME_NOW))
        in->atime_ns = now_ns;
    if (wants(req, ROZO__SETATTR_BITS__SET_MTIME_NOW))
        in->mtime_ns = now_ns;
}

/* Computes the access ACL after chmod; *acl NULL: there is none. */
static int acl_for_chmod(struct namespace *ns, const struct inode *in, uint32_t mode,
                         uint8_t **acl, size_t *len)
{
    const uint8_t *old;
    int rc;

    *acl = NULL;
    if ((in->flags & INODE_ACL_ACCESS) == 0)
        return 0;
    rc = acl_get(ns, in, ACL_NAME_ACCESS, &old, len);
    if (rc != 0)
        return rc;
    *acl = malloc(*len);
    if (*acl == NULL)
        return -ENOMEM;
    memcpy(*acl, old, *len);
    acl_chmod(*acl, *len, mode);
    return 0;
}

uint32_t namespace_file_flags(const struct inode *in)
{
    uint32_t flags = 0;

    if ((in->flags & INODE_IMMUTABLE) != 0)
        flags |= ROZO__FILE_FLAGS__FLAG_IMMUTABLE;
    if ((in->flags & INODE_APPEND) != 0)
        flags |= ROZO__FILE_FLAGS__FLAG_APPEND;
    return flags;
}

static void set_file_flags(struct inode *in, uint32_t flags)
{
    in->flags &= ~(uint32_t)(INODE_IMMUTABLE | INODE_APPEND);
    if ((flags & ROZO__FILE_FLAGS__FLAG_IMMUTABLE) != 0)
        in->flags |= INODE_IMMUTABLE;
    if ((flags & ROZO__FILE_FLAGS__FLAG_APPEND) != 0)
        in->flags |= INODE_APPEND;
}

int namespace_setattr(struct namespace *ns, const struct namespace_setattr *req,
                      struct inode *out)
{
    uint8_t *acl = NULL;
    size_t acl_len = 0;
    struct inode in;
    int rc = inode_get(ns, req->ino, &in);

    if (rc == 0)
        rc = setattr_check(ns, req, &in);
    if (rc == 0 && wants(req, ROZO__SETATTR_BITS__SET_MODE))
        rc = acl_for_chmod(ns, &in, req->mode, &acl, &acl_len);
    if (rc == 0 && wants(req, ROZO__SETATTR_BITS__SET_SIZE))
        rc = set_size(ns, &in, req->size, req->alone);
    if (rc != 0) {
        free(acl);
        return rc;
    }
    if (wants(req, ROZO__SETATTR_BITS__SET_MODE))
        in.mode = (in.mode & S_IFMT) | (req->mode & 07777);
    if (wants(req, ROZO__SETATTR_BITS__SET_UID))
        in.uid = req->uid;
    if (wants(req, ROZO__SETATTR_BITS__SET_GID))
        in.gid = req->gid;
    if (wants(req, ROZO__SETATTR_BITS__SET_KILL_SUIDGID))
        kill_suidgid(&in);
    if (wants(req, ROZO__SETATTR_BITS__SET_KILL_SGID) && !inode_is_dir(&in))
        in.mode &= ~(uint32_t)S_ISGID;
    if (wants(req, ROZO__SETATTR_BITS__SET_FLAGS))
        set_file_flags(&in, req->file_flags);
    if ((req->valid & ~(uint32_t)ROZO__SETATTR_BITS__SET_SYNC) != 0) {
        set_times(req, &in, store_stamp_ns(ns->store));
        if (acl != NULL)
            xattr_replace(ns, in.ino, ACL_NAME_ACCESS, acl, acl_len);
        inode_put(ns, &in);
    }
    free(acl);
    *out = in;
    return 0;
}

int namespace_next_epoch(struct namespace *ns, uint64_t ino, bool alone,
                         struct inode *out)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    if (rc != 0)
        return rc;
    if (inode_is_dir(&in))
        return -EISDIR;
    if (!inode_is_file(&in))
        return -EINVAL;
    rc = epoch_next(ns, &in, NULL);
    if (rc != 0)
        return rc;
    epoch_give_to(ns, &in, alone);
    in.flags |= INODE_MAY_HAVE_DATA;
    inode_put(ns, &in);
    *out = in;
    return 0;
}

int namespace_fence_epoch(struct namespace *ns, uint64_t ino, struct inode *out)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0)
        rc = epoch_next(ns, &in, NULL);
    if (rc != 0)
        return rc;
    /* The start that gave the last epoch will not be known any more. */
    if (is_unreported(ns, &in))
        in.flags |= INODE_UNREPORTED;
    epoch_give(ns, &in);
    inode_put(ns, &in);
    *out = in;
    return 0;
}

void namespace_forget_may_have_data(struct namespace *ns, uint64_t ino)
{
    /* Failed writes and unfinished truncates have reached some storages. */
    const uint32_t has_some = INODE_HAS_DATA | INODE_UNREPORTED | INODE_TRUNCATE_PENDING;
    struct inode in;

    if (inode_get(ns, ino, &in) != 0 || (in.flags & INODE_MAY_HAVE_DATA) == 0 ||
        (in.flags & has_some) != 0)
        return;
    in.flags &= ~(uint32_t)INODE_MAY_HAVE_DATA;
    inode_put(ns, &in);
}

/* Raises the size; growth beyond a pending truncate waits for its end. */
static bool grow(struct inode *in, uint64_t size)
{
    assert(size <= INT64_MAX);
    if (size <= inode_final_size(in))
        return false;
    if ((in->flags & INODE_TRUNCATE_PENDING) != 0 && size > in->truncate_size)
        in->wanted_size = size;
    else
        in->size = size;
    return true;
}

/* Ends a truncate. Storages have files with marks now, to be removed with the inode.
 * Clients had to take the file for one on storages, and may have written there, so the
 * inode is never inline again. */
static void truncate_end(struct inode *in)
{
    assert((in->flags & INODE_TRUNCATE_PENDING) != 0);
    in->flags &= ~(uint32_t)INODE_TRUNCATE_PENDING;
    in->flags |= INODE_HAS_DATA;
    in->size = inode_final_size(in);
    in->wanted_size = in->truncate_size = 0;
}

/* Returns true if the report ends the pending truncate: a client that grows a file has
 * finished the truncate pending at its epoch, or a later one whose record a loss of power
 * took. */
static bool is_behind_truncate(const struct inode *in, const struct namespace_wrote *req)
{
    return (in->flags & INODE_TRUNCATE_PENDING) != 0 && req->size > in->truncate_size &&
           req->epoch > version_epoch(in->truncate_version);
}

/* Takes the reported blocks. Frees map. Returns true if the set has changed. */
static bool blocks_counted(struct namespace *ns, const struct namespace_wrote *req,
                           struct inode *in, struct range_map *map)
{
    uint64_t size = inode_final_size(in), n_before = in->n_blocks;
    bool is_cut = req->epoch != 0 && req->epoch < version_epoch(in->truncate_version);

    assert(inode_is_file(in) || map->n == 0);
    if ((in->flags & INODE_INLINE) != 0) { /* inline_wrote() has updated the set */
        range_map_free(map);
        return false;
    }
    if (!req->reports_blocks) {
        if (!req->has_data)
            return false;
        namespace_blocks_drop(ns, in);
        in->n_blocks = inode_blocks_of_size(in);
        return in->n_blocks != n_before;
    }
    if (is_cut && map->n > 0 && map->list[map->n - 1].to * in->block_bytes > size)
        (void)range_map_put(map, size / in->block_bytes + (size % in->block_bytes != 0),
                            SPAN_END, 0); /* cannot fail, since the set gets smaller */
    if (req->blocks_counted)
        in->flags &= ~(uint32_t)INODE_UNCOUNTED;
    return namespace_blocks_put(ns, in, map) || req->blocks_counted;
}

int namespace_wrote(struct namespace *ns, const struct namespace_wrote *req,
                    struct inode *out, bool *cut)
{
    int64_t now_ns = store_stamp_ns(ns->store);
    bool changed, data, ended, was_inline, counted;
    struct range_map map = { 0 };
    struct inode in;
    int rc = inode_get(ns, req->ino, &in);

    was_inline = rc == 0 && (in.flags & INODE_INLINE) != 0;
    if (rc == 0 && !inode_is_file(&in) &&
        (req->has_data || req->size > 0 ||
         (req->reports_blocks && req->allocated_len > 0)))
        rc = inode_is_dir(&in) ? -EISDIR : -EINVAL;
    if (rc == 0 && req->size > INT64_MAX)
        rc = -EFBIG;
    if (rc == 0 && req->reports_blocks)
        rc = namespace_blocks_wrote(ns, req, &in, &map);
    if (rc == 0)
        rc = inline_wrote(ns, req, &in);
    if (rc != 0) {
        range_map_free(&map);
        return rc;
    }
    data = req->has_data && (in.flags & INODE_HAS_DATA) == 0;
    if (data)
        in.flags |= INODE_HAS_DATA;
    *cut = req->epoch != 0 && req->size > inode_final_size(&in) &&
           req->epoch < version_epoch(in.truncate_version);
    ended = is_behind_truncate(&in, req);
    if (ended)
        truncate_end(&in);
    changed = !*cut && grow(&in, req->size);
    counted = blocks_counted(ns, req, &in, &map);
    changed |= counted && !req->blocks_counted;
    if (req->mtime_ns != 0 &&
        !(req->beside_others && req->mtime_ns < in.mtime_ns && in.mtime_ns <= now_ns)) {
        changed = changed || req->mtime_ns != in.mtime_ns;
        in.mtime_ns = req->mtime_ns;
        if (req->mtime_ns < now_ns)
            /* ctime is the time of the write, not of its report */
            now_ns = req->mtime_ns;
    }
    if (changed && in.ctime_ns < now_ns)
        in.ctime_ns = now_ns;
    if (req->atime_ns != 0 && req->atime_ns != in.atime_ns) {
        in.atime_ns = req->atime_ns;
        changed = true;
    }
    if (changed || data || ended || was_inline || counted || req->inline_version != 0)
        inode_put(ns, &in);
    *out = in;
    return 0;
}

void namespace_accessed(struct namespace *ns, uint64_t ino, const struct noted_read *read,
                        bool strict)
{
    int64_t now_ns = store_stamp_ns(ns->store);
    struct noted_read r = *read;
    struct inode in;

    if (r.at_ns > now_ns)
        r.at_ns = now_ns;
    if (inode_get(ns, ino, &in) != 0 ||
        !atime_moves(&(struct inode_times){ in.atime_ns, in.mtime_ns, in.ctime_ns }, &r,
                     strict))
        return;
    in.atime_ns = r.at_ns;
    in.change--; /* inode_put() adds one */
    inode_put(ns, &in);
}

int namespace_truncated(struct namespace *ns, uint64_t ino, uint64_t version,
                        struct inode *out)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    if (rc != 0)
        return rc;
    if ((in.flags & INODE_TRUNCATE_PENDING) != 0 && in.truncate_version == version) {
        truncate_end(&in);
        inode_put(ns, &in);
    }
    *out = in;
    return 0;
}
