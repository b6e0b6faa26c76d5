/*
 * inode.c - inodes to bytes and back.
 *
 * In:     struct inode from operations, bytes from the kv (checked: disks lie).
 * Ask:    everything here. Users' disks carry these bytes.
 */
#include "exportd/core/inode.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/bytes.h"

size_t inode_encode(const struct inode *in, uint8_t buf[INODE_BYTES_MAX])
{
    bool dir = inode_is_dir(in);

    assert(in->n_storages <= DIST_MAX);
    buf[0] = INODE_FORMAT;
    buf[1] = in->codec;
    buf[2] = in->layout;
    buf[3] = in->n_storages > 0; /* distributions: one set so far */
    put_le16(buf + 4, in->block_bytes);
    put_le16(buf + 6, (uint16_t)in->n_storages);
    put_le32(buf + 8, in->flags);
    put_le32(buf + 12, in->generation);
    put_le32(buf + 16, in->mode);
    put_le32(buf + 20, in->nlink);
    put_le32(buf + 24, in->uid);
    put_le32(buf + 28, in->gid);
    put_le32(buf + 32, in->rdev);
    put_le32(buf + 36, in->epoch);
    put_le64(buf + 40, in->size);
    put_le64(buf + 48, (uint64_t)in->atime_ns);
    put_le64(buf + 56, (uint64_t)in->mtime_ns);
    put_le64(buf + 64, (uint64_t)in->ctime_ns);
    put_le64(buf + 72, in->change);
    put_le64(buf + 80, dir ? in->parent : in->truncate_size);
    put_le64(buf + 88, dir ? in->n_entries : in->truncate_version);
    put_le64(buf + 96, dir ? in->next_cookie : in->wanted_size);
    put_le64(buf + 104, 0); /* stripe unit in blocks; 0: not striped */
    put_le32(buf + 112, in->epoch_start);
    put_le32(buf + 116, 0);
    for (uint32_t i = 0; i < in->n_storages; i++)
        put_le32(buf + INODE_BYTES_MIN + 4 * i, in->storages[i]);
    return INODE_BYTES_MIN + 4 * (size_t)in->n_storages;
}

static bool inode_makes_sense(const struct inode *in, unsigned n_distributions)
{
    uint32_t type = in->mode & S_IFMT;

    if ((in->mode & ~(uint32_t)(S_IFMT | 07777)) != 0 ||
        (in->flags & ~(uint32_t)INODE_FLAGS_ALL) != 0)
        return false;
    if ((in->flags & INODE_INLINE) != 0 && type != S_IFREG)
        return false;
    if (type == S_IFREG)
        return n_distributions == 1 && in->n_storages > 0;
    return n_distributions == 0 && in->n_storages == 0 &&
           (type == S_IFDIR || type == S_IFLNK || type == S_IFCHR || type == S_IFBLK ||
            type == S_IFIFO || type == S_IFSOCK);
}

int inode_decode(struct inode *in, uint64_t ino, const uint8_t *buf, size_t len)
{
    bool dir;

    if (len < INODE_BYTES_MIN || buf[0] != INODE_FORMAT || get_le16(buf + 6) > DIST_MAX ||
        len != INODE_BYTES_MIN + 4 * (size_t)get_le16(buf + 6))
        return -EINVAL;
    *in = (struct inode){
        .ino = ino,
        .codec = buf[1],
        .layout = buf[2],
        .block_bytes = get_le16(buf + 4),
        .n_storages = get_le16(buf + 6),
        .flags = get_le32(buf + 8),
        .generation = get_le32(buf + 12),
        .mode = get_le32(buf + 16),
        .nlink = get_le32(buf + 20),
        .uid = get_le32(buf + 24),
        .gid = get_le32(buf + 28),
        .rdev = get_le32(buf + 32),
        .epoch = get_le32(buf + 36),
        .size = get_le64(buf + 40),
        .atime_ns = (int64_t)get_le64(buf + 48),
        .mtime_ns = (int64_t)get_le64(buf + 56),
        .ctime_ns = (int64_t)get_le64(buf + 64),
        .change = get_le64(buf + 72),
        .epoch_start = get_le32(buf + 112),
    };
    dir = inode_is_dir(in);
    *(dir ? &in->parent : &in->truncate_size) = get_le64(buf + 80);
    *(dir ? &in->n_entries : &in->truncate_version) = get_le64(buf + 88);
    *(dir ? &in->next_cookie : &in->wanted_size) = get_le64(buf + 96);
    for (uint32_t i = 0; i < in->n_storages; i++)
        in->storages[i] = get_le32(buf + INODE_BYTES_MIN + 4 * i);
    return inode_makes_sense(in, buf[3]) ? 0 : -EINVAL;
}
