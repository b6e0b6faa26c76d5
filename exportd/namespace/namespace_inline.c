/*
 * namespace_inline.c - data of small files, kept beside their inodes.
 *
 * In:     md.c: reports of writes, truncates, removals.
 * Out:    the store's pending batch, shared with the inode.
 * Keeps:  an inode is inline or on storages. Inline: its record has all of its data,
 *         zeros follow up to its size, and data on storages are never shown. On storages:
 *         there is no record. An inode goes from inline to storages and never back. Only
 *         a newer version of the newest epoch replaces a record, so its writer knew all
 *         that was written before.
 * Ask:    the record. Users' disks carry it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/wire/record.h"
#include "exportd/namespace/namespace_int.h"

enum {
    INLINE_FORMAT = 1,
    INLINE_HEAD = 1 + 8, /* format, version */
};

bool namespace_may_be_inline(const struct namespace *ns, const struct inode *in)
{
    const uint32_t not_new = INODE_HAS_DATA | INODE_UNREPORTED | INODE_TRUNCATE_PENDING;

    if (!inode_is_file(in))
        return false;
    return (in->flags & INODE_INLINE) != 0 ||
           (ns->inline_max != 0 && (in->flags & not_new) == 0);
}

int namespace_inline_get(struct namespace *ns, const struct inode *in,
                         const uint8_t **bytes, size_t *len, uint64_t *version)
{
    const uint8_t *val;
    struct key k;
    size_t n;
    int rc;

    key_ino(&k, KEY_INLINE, ns->export_id, in->ino);
    rc = store_get(ns->store, &k, &val, &n);
    if (rc != 0 && rc != -ENOENT)
        return rc;
    if (rc != 0 || n <= INLINE_HEAD || n > INLINE_HEAD + NAMESPACE_INLINE_MAX ||
        val[0] != INLINE_FORMAT) {
        log_error(
            "export %u: the data of inode %llu in the metadata store are missing or "
            "corrupt",
            ns->export_id, (unsigned long long)in->ino);
        return -EIO;
    }
    *version = get_le64(val + 1);
    *bytes = val + INLINE_HEAD;
    *len = n - INLINE_HEAD;
    return 0;
}

static void inline_put(struct namespace *ns, const struct inode *in, uint64_t version,
                       const uint8_t *bytes, size_t len)
{
    uint8_t val[INLINE_HEAD + NAMESPACE_INLINE_MAX];
    struct key k;

    assert(len > 0 && len <= NAMESPACE_INLINE_MAX && (in->flags & INODE_INLINE) != 0);
    val[0] = INLINE_FORMAT;
    put_le64(val + 1, version);
    memcpy(val + INLINE_HEAD, bytes, len);
    key_ino(&k, KEY_INLINE, ns->export_id, in->ino);
    store_put(ns->store, &k, val, INLINE_HEAD + len);
}

void inline_drop(struct namespace *ns, struct inode *in)
{
    struct key k;

    if ((in->flags & INODE_INLINE) == 0)
        return;
    in->flags &= ~(uint32_t)INODE_INLINE;
    key_ino(&k, KEY_INLINE, ns->export_id, in->ino);
    store_delete(ns->store, &k);
}

int inline_cut(struct namespace *ns, struct inode *in, uint64_t size)
{
    uint8_t kept[NAMESPACE_INLINE_MAX];
    const uint8_t *bytes;
    uint64_t version;
    size_t len;
    int rc;

    if ((in->flags & INODE_INLINE) == 0)
        return 0;
    rc = namespace_inline_get(ns, in, &bytes, &len, &version);
    if (rc != 0 || size >= len)
        return rc;
    if (size == 0) {
        inline_drop(ns, in);
        return 0;
    }
    memcpy(kept, bytes, size); /* the store's copy is about to change */
    inline_put(ns, in, version_make(in->epoch, 0), kept, size);
    return 0;
}

int inline_wrote(struct namespace *ns, const struct namespace_wrote *req,
                 struct inode *in)
{
    uint64_t version = 0;
    const uint8_t *bytes;
    size_t len;
    int rc;

    if (req->inline_version == 0) {
        if (req->has_data)
            inline_drop(ns, in);
        return 0;
    }
    if (req->has_data || req->inline_len == 0 || req->inline_len > req->size ||
        req->inline_len > NAMESPACE_INLINE_MAX)
        return -EINVAL;
    /*
     * A newer epoch than the inode's was given out before a loss of power; no other was
     * since.
     */
    if (!namespace_may_be_inline(ns, in) ||
        version_epoch(req->inline_version) < in->epoch ||
        (in->flags & INODE_TRUNCATE_PENDING) != 0)
        return -ROZO_ESTALE_VERSION;
    if ((in->flags & INODE_INLINE) == 0 && req->inline_len > ns->inline_max)
        return -EINVAL;
    rc = (in->flags & INODE_INLINE) == 0
             ? 0
             : namespace_inline_get(ns, in, &bytes, &len, &version);
    if (rc != 0 || version == req->inline_version) /* the request was repeated */
        return rc;
    if (version > req->inline_version)
        return -ROZO_ESTALE_VERSION;
    assert(in->block_bytes > 0); /* only files are inline */
    in->flags |= INODE_INLINE;
    namespace_blocks_drop(ns, in);
    in->n_blocks =
        req->inline_len / in->block_bytes + (req->inline_len % in->block_bytes != 0);
    inline_put(ns, in, req->inline_version, req->inline_data, req->inline_len);
    return 0;
}
