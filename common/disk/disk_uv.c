/*
 * disk_uv.c - disk requests as system calls, on the loop or on a worker.
 *
 * In:     disk_submit(), from the core. Thread: the storio loop, and libuv's workers.
 * Out:    files below the data directory; disk_names.c knows names that certainly do not
 *         exist.
 * Keeps:  a callback comes once and later; a name counts as synced when every directory
 *         above it is; the loop does not touch a file's size while a worker may change
 *         it.
 * Yours:  what counts as short enough for the loop (*_ON_LOOP_MAX, WARM_STEP), and as a
 *         stream that goes to the device early (STREAM_MIN, PUSH_BYTES) and has space
 *         ahead (disk_ahead.h).
 */
#include "common/disk/disk_uv.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/system/small_file.h"

#ifndef RWF_DONTCACHE
#    define RWF_DONTCACHE 0x80
#endif

#ifndef SYS_cachestat /* same number on all machines; newer than Debian's headers */
#    define SYS_cachestat 451
#endif

enum {
    /* Bytes punched, truncated or unlinked without a worker. */
    FREE_ON_LOOP_MAX = 16 << 20,
    PAGE_BYTES = 4096,
    WARM_STEP = 16384,           /* read-ahead brings at least this much at once */
    WARM_STEP_THERE = 128 << 10, /* step of checks that pages in memory are also read */
    STREAM_MIN = 64 << 10,       /* bytes of a write that counts as part of a stream */
    STREAM_GAP_MAX = 64 << 10,   /* gap for heads between bodies */
    PUSH_BYTES = 1 << 20,        /* bytes of a stream that are pushed out at a time */
    PUSHES_MAX = 2, /* pushes at a time: a slow device must not hold all workers */
    PATH_TEXT_MAX = 128,
};

struct disk_file {
    int fd;
    bool is_projection;
    uint64_t stream_from, stream_end; /* range of a stream not yet pushed out */
    uint64_t streamed;                /* bytes of that stream in total */
    struct ahead_file ahead;
    int direct_fd;         /* used by the worker that writes; -1: not open */
    atomic_bool no_direct; /* direct_fd does not work and must not be opened again */
};

struct disk_work {
    uv_work_t work;
    struct disk_uv *d;
    struct disk_req *req;
    bool chain;    /* for DISK_SYNC_NAME: also syncs the directories above the lowest */
    bool is_again; /* the second try, after it lacked a descriptor */
};

/* A request to the kernel to begin writing out, which no request waits for. */
struct disk_push {
    uv_work_t work;
    struct disk_uv *d;
    int fd; /* owned, so that the file may be closed meanwhile */
    uint64_t offset, len;
};

static struct disk_uv *disk_of(struct disk *disk)
{
    return (struct disk_uv *)disk;
}

static int disk_rc(int error)
{
    switch (error) {
    case 0:
        return 0;
    case ENOENT:
    case ENOTDIR:
        return -ENOENT;
    case ENOSPC:
    case EDQUOT:
        return -ENOSPC;
    case EFBIG:
        return -EFBIG;
    case ENOMEM:
        return -ENOMEM;
    case EMFILE:
    case ENFILE:
        return -EMFILE;
    default:
        return -EIO;
    }
}

/* ---- system calls; each returns disk_rc() ---- */

static int open_flags(const struct disk_req *req)
{
    return O_RDWR | O_CLOEXEC | O_NOFOLLOW | (req->create ? O_CREAT : 0);
}

/* Creates missing directories on the way to path. */
static void make_parents(int dir_fd, const char *path)
{
    char part[PATH_TEXT_MAX];

    for (const char *slash = strchr(path, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        size_t n = (size_t)(slash - path);

        assert(n < sizeof(part));
        memcpy(part, path, n);
        part[n] = '\0';
        mkdirat(dir_fd, part, 0700); /* EEXIST is usual; a real failure shows at open */
    }
}

/* Opens a file. A name known not to exist is created with O_EXCL: if it exists after all,
 * that is an error. */
static int open_file(struct disk_uv *d, const struct disk_req *req, bool is_new)
{
    int flags = open_flags(req) | (is_new ? O_EXCL : 0);
    int fd = openat(d->dir_fd, req->path, flags, 0600);

    if (fd < 0 && env_uv_frees_fds(d->env, errno))
        fd = openat(d->dir_fd, req->path, flags, 0600);
    if (fd < 0 && errno == ENOENT && req->create) {
        make_parents(d->dir_fd, req->path);
        fd = openat(d->dir_fd, req->path, flags, 0600);
    }
    if (fd < 0)
        return disk_rc(errno);
    if (req->create) {
        disk_names_learn(&d->names, d->dir_fd, req->path);
        disk_names_add(&d->names, req->path);
    }
    return fd;
}

/* Answers for a missing req->path: -ENOENT, with req->aside if req->to exists; another
 * error if that is uncertain. */
static int look_quarantined(struct disk_uv *d, struct disk_req *req)
{
    req->quarantined = false;
    if (req->to == NULL || disk_names_lack(&d->names, req->to))
        return -ENOENT;
    req->quarantined = faccessat(d->dir_fd, req->to, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    return req->quarantined ? -ENOENT : disk_rc(errno);
}

static int do_open(struct disk_uv *d, struct disk_req *req)
{
    bool is_new = disk_names_lack(&d->names, req->path);
    int fd = is_new && !req->create ? -ENOENT : open_file(d, req, is_new);
    struct disk_file *file;
    struct stat st = { .st_mode = S_IFREG };

    if (fd == -ENOENT)
        return look_quarantined(d, req);
    if (fd < 0)
        return fd;
    file = malloc(sizeof(*file));
    if (file == NULL || (!is_new && fstat(fd, &st) != 0) || !S_ISREG(st.st_mode)) {
        close(fd);
        free(file);
        return file == NULL ? -ENOMEM : -EIO;
    }
    *file = (struct disk_file){ .fd = fd,
                                .is_projection = strncmp(req->path, "objects/", 8) == 0,
                                .direct_fd = -1 };
    req->file = file;
    req->size = (uint64_t)st.st_size;
    return 0;
}

static uint64_t iov_len(const struct iovec *iov, unsigned n)
{
    uint64_t len = 0;

    for (unsigned i = 0; i < n; i++)
        len += iov[i].iov_len;
    return len;
}

/* Reads into one iovec. Returns -EAGAIN if flags forbid waiting and not all is in the
 * page cache. */
static int do_read(struct disk_req *req, int flags)
{
    const struct iovec *iov = req->iov;

    assert(req->n_iov == 1);
    req->n_read = 0;
    while (req->n_read < iov->iov_len) {
        struct iovec rest = { .iov_base = (uint8_t *)iov->iov_base + req->n_read,
                              .iov_len = iov->iov_len - req->n_read };
        ssize_t n =
            preadv2(req->file->fd, &rest, 1, (off_t)(req->offset + req->n_read), flags);

        if (n == 0)
            break;
        if (n > 0)
            req->n_read += (uint64_t)n;
        else if (flags != 0 && (errno == EAGAIN || errno == EOPNOTSUPP))
            return -EAGAIN;
        else if (errno != EINTR)
            return disk_rc(errno);
    }
    return 0;
}

/* Writes the rest after a short pwritev, one iovec at a time. */
static int write_rest(const struct disk_req *req, uint64_t done)
{
    uint64_t offset = req->offset + done;

    for (unsigned i = 0; i < req->n_iov; i++) {
        const struct iovec *iov = &req->iov[i];
        size_t at = done < iov->iov_len ? (size_t)done : iov->iov_len;

        done -= at;
        while (at < iov->iov_len) {
            ssize_t n = pwrite(req->file->fd, (const uint8_t *)iov->iov_base + at,
                               iov->iov_len - at, (off_t)offset);

            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return n == 0 ? -EIO : disk_rc(errno);
            at += (size_t)n;
            offset += (uint64_t)n;
        }
    }
    return 0;
}

static int do_write(struct disk_req *req)
{
    uint64_t len = iov_len(req->iov, req->n_iov);
    ssize_t n;

    do {
        n = pwritev(req->file->fd, req->iov, (int)req->n_iov, (off_t)req->offset);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return disk_rc(errno);
    return (uint64_t)n == len ? 0 : write_rest(req, (uint64_t)n);
}

/* Returns whether a worker writes this piece of a stream, as d->io demands. */
static bool is_for_worker(const struct disk_uv *d, const struct disk_req *req)
{
    bool never = d->io == DISK_IO_CACHED || !req->file->is_projection ||
                 iov_len(req->iov, req->n_iov) < STREAM_MIN;

    if (never || (d->io == DISK_IO_UNCACHED && atomic_load(&d->no_uncached)))
        return false;
    if (d->io == DISK_IO_UNCACHED)
        return true;
    for (unsigned i = 0; i < req->n_iov; i++) {
        if (((uintptr_t)req->iov[i].iov_base | req->iov[i].iov_len) % PAGE_BYTES != 0)
            return false;
    }
    return req->offset % PAGE_BYTES == 0 && !atomic_load(&req->file->no_direct);
}

/* Returns -EAGAIN if it must be written in the usual way. */
static int write_uncached(struct disk_uv *d, struct disk_req *req)
{
    uint64_t len = iov_len(req->iov, req->n_iov);
    ssize_t n = pwritev2(req->file->fd, req->iov, (int)req->n_iov, (off_t)req->offset,
                         RWF_DONTCACHE);

    if (n >= 0)
        return (uint64_t)n == len ? 0 : write_rest(req, (uint64_t)n);
    if (errno == EOPNOTSUPP || errno == EINVAL)
        atomic_store(&d->no_uncached, true);
    return errno == EOPNOTSUPP || errno == EINVAL || errno == EINTR ? -EAGAIN
                                                                    : disk_rc(errno);
}

static int write_direct(struct disk_req *req)
{
    struct disk_file *file = req->file;
    uint64_t len = iov_len(req->iov, req->n_iov);
    char path[32];
    ssize_t n = -1;
    bool is_short;

    if (file->direct_fd < 0) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
        file->direct_fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    }
    if (file->direct_fd >= 0)
        n = pwritev(file->direct_fd, req->iov, (int)req->n_iov, (off_t)req->offset);
    if (n >= 0)
        return (uint64_t)n == len ? 0 : write_rest(req, (uint64_t)n);
    if (file->direct_fd >= 0 && errno != EINVAL && errno != EINTR)
        return disk_rc(errno);
    is_short = file->direct_fd < 0 && disk_rc(errno) == -EMFILE; /* temporary */
    atomic_store(&file->no_direct, errno != EINTR && !is_short);
    return -EAGAIN;
}

static int write_on_worker(struct disk_uv *d, struct disk_req *req)
{
    int rc = d->io == DISK_IO_UNCACHED ? write_uncached(d, req) : write_direct(req);

    return rc == -EAGAIN ? do_write(req) : rc;
}

static void on_push(uv_work_t *work)
{
    struct disk_push *push = work->data;

    sync_file_range(push->fd, (off_t)push->offset, (off_t)push->len,
                    SYNC_FILE_RANGE_WRITE);
}

static void on_pushed(uv_work_t *work, int status)
{
    struct disk_push *push = work->data;

    (void)status;
    push->d->n_pushes--;
    close(push->fd);
    free(push);
}

static void push_start(struct disk_uv *d, struct disk_file *file)
{
    struct disk_push *push;
    int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);

    push = fd < 0 ? NULL : malloc(sizeof(*push));
    if (push == NULL) { /* a push only saves time */
        if (fd >= 0)
            close(fd);
        return;
    }
    *push = (struct disk_push){ .work.data = push,
                                .d = d,
                                .fd = fd,
                                .offset = file->stream_from,
                                .len = file->stream_end - file->stream_from };
    d->n_pushes++;
    uv_queue_work(d->env->loop, &push->work, on_push, on_pushed);
}

/* Pushes a stream to the device. The kernel would keep it in memory for seconds, and the
 * sync at its end would wait for all of it. A worker does it, since it waits when the
 * device is busy. */
static void push_out(struct disk_uv *d, const struct disk_req *req, bool by_worker)
{
    struct disk_file *file = req->file;
    uint64_t len = iov_len(req->iov, req->n_iov);

    if (len < STREAM_MIN)
        return;
    if (req->offset < file->stream_end ||
        req->offset - file->stream_end > STREAM_GAP_MAX) {
        file->stream_from = req->offset;
        file->streamed = 0;
    }
    file->stream_end = req->offset + len;
    file->streamed += len;
    if (file->is_projection)
        ahead_streamed(&d->ahead, &file->ahead, file->fd, file->stream_end,
                       file->streamed);
    if (by_worker) { /* already on the way to the device, or there */
        file->stream_from = file->stream_end;
        return;
    }
    if (file->stream_end - file->stream_from < PUSH_BYTES || d->n_pushes == PUSHES_MAX)
        return;
    push_start(d, file);
    file->stream_from = file->stream_end;
}

static int do_sync(const struct disk_req *req)
{
    return fdatasync(req->file->fd) == 0 ? 0 : disk_rc(errno);
}

/* Syncs a directory. Without a free descriptor it syncs the whole file system instead, so
 * that names cannot get lost. */
static int sync_directory(int dir_fd, const char *path)
{
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    if (fd < 0 && disk_rc(errno) == -EMFILE)
        return syncfs(dir_fd) == 0 ? 0 : disk_rc(errno);
    if (fd < 0)
        return disk_rc(errno);
    rc = fsync(fd) == 0 ? 0 : disk_rc(errno);
    close(fd);
    return rc;
}

/* Syncs bottom up: the directory of the name always, those above it unless they are known
 * to be synced. */
static int do_sync_name(struct disk_uv *d, const struct disk_req *req, bool chain)
{
    char path[PATH_TEXT_MAX];
    char *slash;
    int rc = 0;

    snprintf(path, sizeof(path), "%s", req->path);
    while (rc == 0 && (slash = strrchr(path, '/')) != NULL) {
        *slash = '\0';
        rc = sync_directory(d->dir_fd, path);
        if (!chain)
            return rc;
    }
    return rc == 0 ? sync_directory(d->dir_fd, ".") : rc;
}

static int do_fallocate(const struct disk_req *req, int mode)
{
    int rc;

    do {
        rc = fallocate(req->file->fd, mode, (off_t)req->offset, (off_t)req->len);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : disk_rc(errno);
}

/* Returns whether space is mapped at offset; *next is where that ends, `to` at most. */
static int find_mapped(int fd, uint64_t offset, uint64_t to, bool *mapped, uint64_t *next)
{
    struct {
        struct fiemap map;
        struct fiemap_extent extents[16];
    } of = { .map = {
                 .fm_start = offset, .fm_length = to - offset, .fm_extent_count = 16 } };

    if (ioctl(fd, FS_IOC_FIEMAP, &of.map) != 0)
        return disk_rc(errno);
    *next = to;
    *mapped = of.map.fm_mapped_extents > 0 && of.extents[0].fe_logical <= offset;
    if (!*mapped && of.map.fm_mapped_extents > 0)
        *next = of.extents[0].fe_logical;
    if (!*mapped)
        return 0;
    *next = offset;
    for (unsigned i = 0; i < of.map.fm_mapped_extents; i++) {
        if (of.extents[i].fe_logical > *next)
            break;
        *next = of.extents[i].fe_logical + of.extents[i].fe_length;
    }
    *next = *next < to ? *next : to;
    return 0;
}

static int do_mapped(struct disk_req *req)
{
    return find_mapped(req->file->fd, req->offset, req->offset + req->len, &req->mapped,
                       &req->next);
}

/* Stores the ranges of req that have no space yet in its iov. */
static int note_unmapped(struct disk_req *req)
{
    struct disk_range *ranges = req->iov->iov_base;
    uint64_t room = req->iov->iov_len / sizeof(*ranges), n = 0;
    uint64_t at = req->offset, end = req->offset + req->len;
    bool mapped;
    int rc = 0;

    while (rc == 0 && at < end && n < room) {
        uint64_t next = end;

        rc = find_mapped(req->file->fd, at, end, &mapped, &next);
        if (rc == 0 && !mapped)
            ranges[n++] = (struct disk_range){ .from = at, .to = next };
        at = next;
    }
    req->n_read = rc == 0 ? n * sizeof(*ranges) : 0;
    return rc;
}

static int do_allocate(struct disk_req *req)
{
    const struct disk_range *ranges = req->n_iov == 0 ? NULL : req->iov->iov_base;
    int rc;

    /* Without this information nothing is freed after an error. */
    if (ranges != NULL && note_unmapped(req) != 0)
        req->n_read = 0;
    rc = do_fallocate(req, req->grow ? 0 : FALLOC_FL_KEEP_SIZE);
    for (uint64_t i = 0; rc != 0 && ranges != NULL && i < req->n_read / sizeof(*ranges);
         i++)
        fallocate(req->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)ranges[i].from, (off_t)(ranges[i].to - ranges[i].from));
    return rc;
}

/* Frees the stretches between data. A page in memory that has not reached the disk yet
 * counts as data. */
static int do_give_back(struct disk_req *req)
{
    off_t at = (off_t)req->offset, end = (off_t)(req->offset + req->len);
    int fd = req->file->fd;

    while (at < end) {
        off_t data = lseek(fd, at, SEEK_DATA);

        if (data < 0 && errno != ENXIO)
            return disk_rc(errno);
        if (data < 0 || data > end)
            data = end;
        if (data > at &&
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, data - at) != 0)
            return disk_rc(errno);
        if (data == end)
            return 0;
        at = lseek(fd, data, SEEK_HOLE);
        if (at < 0)
            return disk_rc(errno);
    }
    return 0;
}

static int do_next_data(struct disk_req *req)
{
    off_t at = lseek(req->file->fd, (off_t)req->offset, SEEK_DATA);

    if (at < 0)
        return errno == ENXIO ? -ENODATA : disk_rc(errno);
    req->next = (uint64_t)at;
    return 0;
}

static int do_stat(struct disk_req *req)
{
    struct stat st;

    if (fstat(req->file->fd, &st) != 0)
        return disk_rc(errno);
    req->size = (uint64_t)st.st_size;
    req->allocated =
        (uint64_t)st.st_blocks * 512 - ahead_bytes(&req->file->ahead, req->size);
    return 0;
}

/* Returns the bytes between two checks of a range that must be in memory; 0: it is not.
 * One system call tells which pages are in memory (since Linux 6.5), but not whether they
 * have been read yet; reads under way end in order, so some pages are checked. */
static uint64_t warm_step(const struct disk_req *req)
{
    uint64_t first_page = req->offset / PAGE_BYTES;
    uint64_t end_page = (req->offset + req->len + PAGE_BYTES - 1) / PAGE_BYTES;
    struct {
        uint64_t offset, len;
    } range = { req->offset, req->len };
    struct {
        uint64_t n_cached, n_dirty, n_writeback, n_evicted, n_recently_evicted;
    } stat;

    if (syscall(SYS_cachestat, req->file->fd, &range, &stat, 0) != 0)
        return WARM_STEP;
    return stat.n_cached < end_page - first_page ? 0 : WARM_STEP_THERE;
}

/* Returns 0, -EIO if the file is shorter, or -EAGAIN if a worker must do it. */
static int warm_now(const struct disk_req *req)
{
    uint8_t byte;
    struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
    uint64_t step = warm_step(req);

    if (step == 0)
        return -EAGAIN;
    for (uint64_t at = 0; at < req->len; at += step) {
        if (preadv2(req->file->fd, &iov, 1, (off_t)(req->offset + at), RWF_NOWAIT) < 0)
            return -EAGAIN;
    }
    switch (preadv2(req->file->fd, &iov, 1, (off_t)(req->offset + req->len - 1),
                    RWF_NOWAIT)) {
    case 1:
        return 0;
    case 0:
        return -EIO;
    default:
        return -EAGAIN;
    }
}

/* Reads a range into memory, on a worker: requests all of it, then waits page by page,
 * since any page may be unreadable. */
static int do_warm(const struct disk_req *req)
{
    uint8_t byte;

    posix_fadvise(req->file->fd, (off_t)req->offset, (off_t)req->len,
                  POSIX_FADV_WILLNEED);
    for (uint64_t at = 0; at < req->len; at += PAGE_BYTES) {
        if (pread(req->file->fd, &byte, 1, (off_t)(req->offset + at)) < 0)
            return disk_rc(errno);
    }
    switch (pread(req->file->fd, &byte, 1, (off_t)(req->offset + req->len - 1))) {
    case 1:
        return 0;
    case 0:
        return -EIO; /* the file is shorter */
    default:
        return disk_rc(errno);
    }
}

static int do_space(struct disk_uv *d, struct disk_req *req)
{
    struct statvfs st;

    if (fstatvfs(d->dir_fd, &st) != 0)
        return disk_rc(errno);
    req->total = (uint64_t)st.f_blocks * st.f_frsize;
    req->free = (uint64_t)st.f_bavail * st.f_frsize;
    if (d->ahead.n_files > 0 && req->free >> 20 < AHEAD_FREE_MIN) {
        /* Other files need it. */
        ahead_give_back_all(&d->ahead);
        return do_space(d, req);
    }
    return 0;
}

/* Removes one name. On the loop returns -EAGAIN if the file is big. */
static int remove_name(struct disk_uv *d, const char *path, bool on_loop)
{
    struct stat st;

    if (fstatat(d->dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return disk_rc(errno);
    if (on_loop && st.st_blocks > FREE_ON_LOOP_MAX / 512)
        return -EAGAIN;
    return unlinkat(d->dir_fd, path, 0) == 0 ? 0 : disk_rc(errno);
}

static int do_remove(struct disk_uv *d, const struct disk_req *req, bool on_loop)
{
    char path[PATH_TEXT_MAX];
    int all = -ENOENT;

    if (req->n_names == 0)
        return remove_name(d, req->path, on_loop);
    if (on_loop)
        disk_names_learn(&d->names, d->dir_fd, req->path);
    for (unsigned i = 0; i <= req->n_names; i++) {
        int rc;

        if (i < req->n_names)
            snprintf(path, sizeof(path), "%s%u", req->path, i);
        else
            snprintf(path, sizeof(path), "%sdamaged", req->path);
        if (on_loop && disk_names_lack(&d->names, path))
            continue;
        rc = remove_name(d, path, on_loop);
        if (rc != 0 && rc != -ENOENT)
            return rc;
        if (rc == 0)
            all = 0;
    }
    return all;
}

/* ---- names of a directory ---- */

struct names {
    char (*all)[DISK_NAME_MAX]; /* owned */
    size_t n, room;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Adds a name of len bytes, below DISK_NAME_MAX. */
static int names_add(struct names *names, const char *name, size_t len)
{
    if (names->n == names->room) {
        size_t room = names->room * 2 + 512;
        void *all = realloc(names->all, room * sizeof(names->all[0]));

        if (all == NULL)
            return -ENOMEM;
        names->all = all;
        names->room = room;
    }
    memcpy(names->all[names->n], name, len);
    names->all[names->n++][len] = '\0';
    return 0;
}

/* Reads the names of a directory, sorted. Skips names longer than any of ours. A missing
 * directory counts as empty. */
static int names_read(int dir_fd, const char *path, const char *after,
                      struct names *names)
{
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *d;

    if (dir == NULL) {
        rc = disk_rc(errno);
        if (fd >= 0)
            close(fd);
        return rc == -ENOENT ? 0 : rc;
    }
    errno = 0;
    while (rc == 0 && (d = readdir(dir)) != NULL) {
        size_t len = strlen(d->d_name);

        if (d->d_name[0] != '.' && len < DISK_NAME_MAX &&
            (after == NULL || strcmp(d->d_name, after) > 0))
            rc = names_add(names, d->d_name, len);
        errno = 0;
    }
    if (rc == 0)
        rc = disk_rc(errno);
    closedir(dir);
    if (names->n > 0)
        qsort(names->all, names->n, sizeof(names->all[0]), by_name);
    return rc;
}

static void names_give(const struct names *names, struct disk_req *req)
{
    char *to = req->iov->iov_base;
    size_t left = req->iov->iov_len;

    for (size_t i = 0; i < names->n; i++) {
        size_t len = strlen(names->all[i]) + 1;

        req->more = len > left;
        if (req->more)
            break;
        memcpy(to, names->all[i], len);
        to += len;
        left -= len;
    }
    req->n_read = req->iov->iov_len - left;
}

/* Sets bit i if objects/HI/i exists, or objects/i if hi is below 0. */
static int subdirectories(int dir_fd, int hi, uint8_t there[32])
{
    struct names names = { 0 };
    char path[PATH_TEXT_MAX];
    int rc;

    snprintf(path, sizeof(path), hi < 0 ? "objects" : "objects/%02x", (unsigned)hi);
    rc = names_read(dir_fd, path, NULL, &names);
    memset(there, 0, 32);
    for (size_t i = 0; i < names.n; i++) {
        char *end;
        unsigned long x = strtoul(names.all[i], &end, 16);

        if (*end == '\0' && end == names.all[i] + 2)
            there[x / 8] |= (uint8_t)(1u << x % 8);
    }
    free(names.all);
    return rc;
}

static int list_one(int dir_fd, unsigned dir, const char *after, struct disk_req *req)
{
    struct names names = { 0 };
    char path[PATH_TEXT_MAX];
    int rc;

    snprintf(path, sizeof(path), "objects/%02x/%02x", dir >> 8, dir & 0xff);
    rc = names_read(dir_fd, path, after, &names);
    if (rc == 0 && names.n > 0) {
        names_give(&names, req);
        req->directory = dir;
        rc = 1;
    }
    free(names.all);
    return rc;
}

/* Lists the next directory that has names. Missing directories are skipped 256 at a
 * time. */
static int do_list(struct disk_uv *d, struct disk_req *req)
{
    uint8_t upper[32], lower[32];
    int rc = subdirectories(d->dir_fd, -1, upper);

    req->more = false;
    for (uint64_t dir = req->offset; rc == 0 && dir < DISK_DIRECTORIES; dir++) {
        unsigned hi = (unsigned)dir >> 8, lo = (unsigned)dir & 0xff;

        if ((upper[hi / 8] >> hi % 8 & 1) == 0) {
            dir |= 0xff;
            continue;
        }
        if (dir == req->offset || lo == 0)
            rc = subdirectories(d->dir_fd, (int)hi, lower);
        if (rc == 0 && (lower[lo / 8] >> lo % 8 & 1) != 0)
            rc = list_one(d->dir_fd, (unsigned)dir, dir == req->offset ? req->path : NULL,
                          req);
    }
    if (rc == 0)
        return -ENODATA;
    return rc > 0 ? 0 : rc;
}

/* ---- on the loop or on a worker ---- */

/* Returns the number of the directory in "objects/xx/yy/...", as in projfile_path(). */
static unsigned dir_index(const char *path)
{
    unsigned hi = 0, lo = 0;

    if (sscanf(path, "objects/%2x/%2x/", &hi, &lo) != 2)
        return 0;
    return (hi << 8 | lo) % DISK_DIRS;
}

static bool dir_is_synced(const struct disk_uv *d, unsigned dir)
{
    return (d->dir_synced[dir / 8] >> dir % 8 & 1) != 0;
}

static void on_done(struct env_task *task)
{
    struct disk_req *req = container_of(task, struct disk_req, task);

    req->done(req, req->rc);
}

static void disk_finish(struct disk_uv *d, struct disk_req *req, int rc)
{
    req->rc = rc;
    req->task = (struct env_task){ .fn = on_done };
    d->n_inflight--;
    env_post(&d->env->env, &req->task);
}

/* Writes; if space is short, frees the space reserved ahead of other files and tries
 * again. */
static int write_on_loop(struct disk_uv *d, struct disk_req *req)
{
    int rc = do_write(req);

    if (rc != -ENOSPC || d->ahead.n_files == 0)
        return rc;
    ahead_give_back_all(&d->ahead);
    return do_write(req);
}

/* Handles a request without waiting for a device, as far as can be known. Returns -EAGAIN
 * if a worker must do it. */
static int try_on_loop(struct disk_uv *d, struct disk_req *req)
{
    switch (req->op) {
    case DISK_OPEN:
        return do_open(d, req);
    case DISK_READ:
        return do_read(req, RWF_NOWAIT);
    case DISK_WRITE:
        return is_for_worker(d, req) ? -EAGAIN : write_on_loop(d, req);
    case DISK_TRUNCATE:
        ahead_forget(&d->ahead, &req->file->ahead);
        if (req->len > FREE_ON_LOOP_MAX)
            return -EAGAIN;
        return ftruncate(req->file->fd, (off_t)req->offset) == 0 ? 0 : disk_rc(errno);
    case DISK_PUNCH:
        if (req->len > FREE_ON_LOOP_MAX)
            return -EAGAIN;
        return do_fallocate(req, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
    case DISK_NEXT_DATA:
        return do_next_data(req);
    case DISK_STAT:
        return do_stat(req);
    case DISK_WARM:
        return warm_now(req);
    case DISK_REMOVE:
        return do_remove(d, req, true);
    case DISK_RENAME:
        disk_names_add(&d->names, req->to);
        return renameat(d->dir_fd, req->path, d->dir_fd, req->to) == 0 ? 0
                                                                       : disk_rc(errno);
    case DISK_SPACE:
        return do_space(d, req);
    case DISK_ALLOCATE:
        ahead_never(&d->ahead, &req->file->ahead);
        ahead_give_back_all(&d->ahead);
        break;
    case DISK_GIVE_BACK:
    case DISK_MAPPED:
    case DISK_SYNC:
    case DISK_SYNC_NAME:
    case DISK_REPLACE:
    case DISK_LIST:
        break;
    }
    return -EAGAIN;
}

static int on_worker(struct disk_work *w)
{
    struct disk_req *req = w->req;
    int rc;

    switch (req->op) {
    case DISK_READ:
        return do_read(req, 0);
    case DISK_WRITE:
        return write_on_worker(w->d, req);
    case DISK_SYNC:
        return do_sync(req);
    case DISK_SYNC_NAME:
        return do_sync_name(w->d, req, w->chain);
    case DISK_TRUNCATE:
        return ftruncate(req->file->fd, (off_t)req->offset) == 0 ? 0 : disk_rc(errno);
    case DISK_ALLOCATE:
        return do_allocate(req);
    case DISK_GIVE_BACK:
        return do_give_back(req);
    case DISK_MAPPED:
        return do_mapped(req);
    case DISK_PUNCH:
        return do_fallocate(req, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
    case DISK_WARM:
        return do_warm(req);
    case DISK_REMOVE:
        rc = do_remove(w->d, req, false);
        return rc == -ENOENT ? 0 : rc; /* the loop may have removed the first names */
    case DISK_REPLACE:
        rc = small_file_replace(w->d->dir_fd, req->path, req->iov->iov_base,
                                req->iov->iov_len);
        return disk_rc(-rc);
    case DISK_LIST:
        return do_list(w->d, req);
    case DISK_OPEN:
    case DISK_NEXT_DATA:
    case DISK_STAT:
    case DISK_RENAME:
    case DISK_SPACE:
        break;
    }
    assert(!"a request that never waits");
    return -EIO;
}

static void on_work(uv_work_t *work)
{
    struct disk_work *w = work->data;

    w->req->rc = on_worker(w);
}

/* Returns whether a worker may change the size of the file meanwhile. */
static bool may_size(const struct disk_req *req)
{
    return req->op == DISK_WRITE || req->op == DISK_TRUNCATE || req->op == DISK_ALLOCATE;
}

static void on_work_done(uv_work_t *work, int status)
{
    struct disk_work *w = work->data;
    struct disk_uv *d = w->d;
    struct disk_req *req = w->req;
    int rc = status == 0 ? req->rc : -EIO;

    if (rc == -EMFILE && !w->is_again && env_uv_frees_fds(d->env, EMFILE)) {
        w->is_again = true;
        uv_queue_work(d->env->loop, &w->work, on_work, on_work_done);
        return;
    }
    free(w);
    if (may_size(req))
        req->file->ahead.n_sizing--;
    /* Once more, with the space that was reserved ahead. */
    if (req->op == DISK_WRITE && rc == -ENOSPC)
        rc = write_on_loop(d, req);
    if (req->op == DISK_WRITE && rc == 0)
        push_out(d, req, true);
    if (req->op == DISK_SYNC_NAME && rc == 0) {
        unsigned dir = dir_index(req->path);

        d->dir_synced[dir / 8] |= (uint8_t)(1u << dir % 8);
    }
    disk_finish(d, req, rc);
}

static void disk_uv_submit(struct disk *disk, struct disk_req *req)
{
    struct disk_uv *d = disk_of(disk);
    int rc = try_on_loop(d, req);
    struct disk_work *w;

    d->n_inflight++;
    if (rc == 0 && req->op == DISK_WRITE)
        push_out(d, req, false);
    if (rc != -EAGAIN) {
        disk_finish(d, req, rc);
        return;
    }
    w = malloc(sizeof(*w));
    if (w == NULL) {
        disk_finish(d, req, -ENOMEM);
        return;
    }
    *w = (struct disk_work){ .work.data = w, .d = d, .req = req };
    w->chain = req->op == DISK_SYNC_NAME && !dir_is_synced(d, dir_index(req->path));
    if (may_size(req))
        req->file->ahead.n_sizing++;
    uv_queue_work(d->env->loop, &w->work, on_work, on_work_done);
}

static void disk_uv_close(struct disk *disk, struct disk_file *file)
{
    ahead_give_back(&disk_of(disk)->ahead, &file->ahead);
    if (file->direct_fd >= 0)
        close(file->direct_fd);
    close(file->fd);
    free(file);
}

static int disk_uv_fd(struct disk *disk, const struct disk_file *file)
{
    (void)disk;
    return file->fd;
}

static const struct disk_ops disk_uv_ops = {
    .submit = disk_uv_submit,
    .close = disk_uv_close,
    .fd = disk_uv_fd,
};

void disk_uv_init(struct disk_uv *d, struct env_uv *env, int dir_fd)
{
    memset(d, 0, sizeof(*d));
    d->disk.ops = &disk_uv_ops;
    d->env = env;
    d->dir_fd = dir_fd;
    ahead_init(&d->ahead);
}
