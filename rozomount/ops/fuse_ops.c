/*
 * fuse_ops.c - the table of FUSE operations, and the features negotiated with the kernel.
 */
#include "rozomount/ops/fuse_ops.h"

#include "common/base/log.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"

enum {
    BACKGROUND_MAX = 256, /* asynchronous requests (read-ahead, AIO) in progress */
    CONGESTED = 192,
    /* FUSE of Linux 6.14: from then on a direct write leaves no older pages behind. */
    MINOR_DIRECT_WRITE = 42,
};

static enum mount_cache cache_of(const struct mount *m, const struct fuse_conn_info *conn)
{
    if ((conn->want & FUSE_CAP_WRITEBACK_CACHE) != 0)
        return CACHE_WRITEBACK;
    if (m->opt->cache == OPTIONS_CACHE_DIRECT)
        return CACHE_NONE;
    return m->opt->cache != OPTIONS_CACHE_PAGE && m->drops_privileges &&
                   conn->proto_minor >= MINOR_DIRECT_WRITE
               ? CACHE_READS
               : CACHE_PAGES;
}

static void fs_init(void *userdata, struct fuse_conn_info *conn)
{
    const unsigned wanted =
        FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_DONT_MASK |
        FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO |
        FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_POSIX_ACL | FUSE_CAP_CACHE_SYMLINKS |
        FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_IOCTL_DIR;
    struct mount *m = ((struct loop *)userdata)->mount;

    /* AUTO_INVAL_DATA is off: it would drop pages at every write of our own; node.c drops
     * them when others write. WRITEBACK_CACHE only on request, because it weakens
     * consistency. */
    conn->want = conn->capable & wanted;
    /*
     * READDIRPLUS is off then: each file that the kernel knows must be looked up, see
     * kernel_sizes.h.
     */
    if (m->opt->writeback_cache) {
        conn->want |= conn->capable & FUSE_CAP_WRITEBACK_CACHE;
        conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    }
    m->names_expire = (conn->capable & FUSE_CAP_EXPIRE_ONLY) != 0;
    m->cache = cache_of(m, conn);
    if (m->cache == CACHE_NONE && !m->maps_direct)
        log_warn("before Linux 6.6 files cannot be mapped shared with cache=direct");
    conn->max_write = IO_MAX;
    conn->max_read = IO_MAX;
    conn->max_readahead = IO_MAX;
    conn->max_background = BACKGROUND_MAX;
    conn->congestion_threshold = CONGESTED;
    conn->time_gran = 1;
    if ((conn->want & FUSE_CAP_POSIX_ACL) == 0)
        log_warn("this kernel's FUSE does not support POSIX ACLs");
    if (mount_writes_back(m) != m->opt->writeback_cache)
        log_warn("this kernel's FUSE has no write-back cache; writes are sent at once");
}

const struct fuse_lowlevel_ops face_ops = {
    .init = fs_init,
    .lookup = fs_lookup,
    .forget = fs_forget,
    .forget_multi = fs_forget_multi,
    .getattr = fs_getattr,
    .setattr = fs_setattr,
    .readlink = fs_readlink,
    .mknod = fs_mknod,
    .mkdir = fs_mkdir,
    .unlink = fs_unlink,
    .rmdir = fs_rmdir,
    .symlink = fs_symlink,
    .rename = fs_rename,
    .link = fs_link,
    .open = fs_open,
    .create = fs_create,
    .read = fs_read,
    .write_buf = fs_write_buf,
    .flush = fs_flush,
    .release = fs_release,
    .fsync = fs_fsync,
    .opendir = fs_opendir,
    .readdir = fs_readdir,
    .readdirplus = fs_readdirplus,
    .releasedir = fs_releasedir,
    .fsyncdir = fs_fsyncdir,
    .statfs = fs_statfs,
    .setxattr = fs_setxattr,
    .getxattr = fs_getxattr,
    .listxattr = fs_listxattr,
    .removexattr = fs_removexattr,
    .fallocate = fs_fallocate,
    .lseek = fs_lseek,
    .getlk = fs_getlk,
    .setlk = fs_setlk,
    .flock = fs_flock,
    .copy_file_range = fs_copy_file_range,
    .ioctl = fs_ioctl,
};
