/*
 * inode.c - inodes to bytes and back.
 *
 * In:     struct inode from operations, bytes from the kv (checked: disks lie).
 * Ask:    everything here. Users' disks carry these bytes.
 */
#include "exportd/namespace/inode.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/bytes.h"

/* Encodes a time as seconds, rounded down, and nanoseconds. */
static void put_time(uint8_t *seconds, uint8_t *rest, wide_ns t)
{
    put_le64(seconds, (uint64_t)wide_ns_seconds(t));
    put_le32(rest, wide_ns_rest(t));
}

/* Decodes a time. Returns false if it could not have been encoded. */
static bool get_time(const uint8_t *buf, size_t seconds_at, size_t rest_at, wide_ns *out)
{
    int64_t n = (int64_t)get_le64(buf + seconds_at);
    uint32_t rest = 0;

    if (buf[0] == INODE_FORMAT_NS) {
        *out = n;
        return true;
    }
    rest = get_le32(buf + rest_at);
    *out = wide_ns_make(n, rest);
    return rest < NS_PER_S;
}

static bool get_times(const uint8_t *buf, struct inode *in)
{
    wide_ns ctime_ns;

    if (!get_time(buf, 48, 116, &in->atime_ns) ||
        !get_time(buf, 56, 120, &in->mtime_ns) || !get_time(buf, 64, 124, &ctime_ns) ||
        wide_ns_more_s(ctime_ns) != 0)
        return false;
    in->ctime_ns = (int64_t)ctime_ns;
    return true;
}

static bool inode_makes_sense(const struct inode *in, unsigned n_distributions)
{
    uint32_t type = in->mode & S_IFMT;

    if ((in->mode & ~(uint32_t)(S_IFMT | 07777)) != 0 ||
        (in->flags & ~(uint32_t)INODE_FLAGS_ALL) != 0)
        return false;
    if ((in->flags & (INODE_INLINE | INODE_BLOCKS | INODE_MOVED | INODE_FULL_QUORUM)) !=
            0 &&
        type != S_IFREG)
        return false;
    if (in->dist_generation != 0 && (in->flags & INODE_MOVED) == 0)
        return false; /* a build that does not know generations must not read it */
    if (inode_is_fixed(in) && type != S_IFREG && type != S_IFDIR)
        return false;
    if ((in->flags & INODE_NAMELESS) != 0 && (type != S_IFREG || in->nlink != 0))
        return false;
    if (in->n_blocks > INODE_N_BLOCKS_MAX || (in->n_blocks > 0 && type != S_IFREG))
        return false;
    if (type == S_IFREG)
        return n_distributions == 1 && in->n_storages > 0 && in->block_bytes > 0;
    return n_distributions == 0 && in->n_storages == 0 &&
           (type == S_IFDIR || type == S_IFLNK || type == S_IFCHR || type == S_IFBLK ||
            type == S_IFIFO || type == S_IFSOCK);
}

size_t inode_encode(const struct inode *in, uint8_t buf[INODE_BYTES_MAX])
{
    bool dir = inode_is_dir(in);

    assert(in->n_storages <= DIST_MAX);
    /* The next start must be able to read it. */
    assert(inode_makes_sense(in, in->n_storages > 0));
    buf[0] = INODE_FORMAT;
    buf[1] = in->codec;
    buf[2] = in->layout;
    buf[3] = in->n_storages > 0; /* number of distributions: one set so far */
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
    put_time(buf + 48, buf + 116, in->atime_ns);
    put_time(buf + 56, buf + 120, in->mtime_ns);
    put_time(buf + 64, buf + 124, in->ctime_ns);
    put_le64(buf + 72, in->change);
    put_le64(buf + 80, dir ? in->parent : in->truncate_size);
    put_le64(buf + 88, dir ? in->n_entries : in->truncate_version);
    put_le64(buf + 96, dir ? in->next_cookie : in->wanted_size);
    put_le64(buf + 104, in->n_blocks);
    put_le32(buf + 112, in->epoch_start);
    put_le32(buf + 128, in->dist_generation);
    put_le32(buf + 132, 0);
    for (uint32_t i = 0; i < in->n_storages; i++)
        put_le32(buf + INODE_BYTES_MIN + 4 * i, in->storages[i]);
    return INODE_BYTES_MIN + 4 * (size_t)in->n_storages;
}

uint64_t inode_blocks_of_size(const struct inode *in)
{
    uint64_t size = inode_final_size(in), n;

    /* inode_decode() has not checked it yet */
    if (!inode_is_file(in) || in->block_bytes == 0 ||
        (in->flags & (INODE_HAS_DATA | INODE_INLINE)) == 0)
        return 0;
    n = size / in->block_bytes + (size % in->block_bytes != 0);
    return n < INODE_N_BLOCKS_MAX ? n : INODE_N_BLOCKS_MAX;
}

int inode_decode(struct inode *in, uint64_t ino, const uint8_t *buf, size_t len)
{
    size_t bytes_min = INODE_BYTES_MIN;
    bool dir;

    if (len < INODE_BYTES_MIN_NS || (buf[0] != INODE_FORMAT && buf[0] != INODE_FORMAT_NS))
        return -EINVAL;
    if (buf[0] == INODE_FORMAT_NS)
        bytes_min = INODE_BYTES_MIN_NS;
    if (get_le16(buf + 6) > DIST_MAX || len != bytes_min + 4 * (size_t)get_le16(buf + 6))
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
        .change = get_le64(buf + 72),
        .epoch_start = get_le32(buf + 112),
    };
    if (buf[0] == INODE_FORMAT)
        in->dist_generation = get_le32(buf + 128);
    dir = inode_is_dir(in);
    *(dir ? &in->parent : &in->truncate_size) = get_le64(buf + 80);
    *(dir ? &in->n_entries : &in->truncate_version) = get_le64(buf + 88);
    *(dir ? &in->next_cookie : &in->wanted_size) = get_le64(buf + 96);
    for (uint32_t i = 0; i < in->n_storages; i++)
        in->storages[i] = get_le32(buf + bytes_min + 4 * i);
    in->n_blocks =
        buf[0] == INODE_FORMAT_NS ? inode_blocks_of_size(in) : get_le64(buf + 104);
    return get_times(buf, in) && inode_makes_sense(in, buf[3]) ? 0 : -EINVAL;
}
