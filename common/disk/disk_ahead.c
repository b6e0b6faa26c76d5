/*
 * disk_ahead.c - reserves space ahead of streams.
 *
 * Keeps:  space that a user has reserved beyond the end of a file is never freed: a file
 *         that has anything there at the first look is left alone. At most
 *         AHEAD_FILES_MAX * AHEAD_MAX bytes are reserved, even after a crash, when they
 *         are not freed.
 * Yours:  the sizes in disk_ahead.h, and when a file counts as idle (IDLE_WRITES).
 */
#include "common/disk/disk_ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    AHEAD_LOW = 512 << 10, /* with less reserved space left, more is reserved */
    IDLE_WRITES = 64,      /* writes of other streams */
    BLOCK_BYTES = 4096,
};

static uint64_t block_past(uint64_t at)
{
    return (at + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

void ahead_init(struct disk_ahead *a)
{
    *a = (struct disk_ahead){ 0 };
    list_init(&a->files);
}

void ahead_forget(struct disk_ahead *a, struct ahead_file *f)
{
    if (f->end == 0)
        return;
    list_remove(&f->link);
    f->end = 0;
    a->n_files--;
}

void ahead_never(struct disk_ahead *a, struct ahead_file *f)
{
    f->never = true;
    ahead_forget(a, f);
}

void ahead_give_back(struct disk_ahead *a, struct ahead_file *f)
{
    struct stat st;
    uint64_t end = f->end;

    ahead_forget(a, f);
    if (end == 0 || f->n_sizing > 0 || fstat(f->fd, &st) != 0 ||
        end <= block_past((uint64_t)st.st_size))
        return;
    while (ftruncate(f->fd, st.st_size) != 0 && errno == EINTR)
        ;
}

void ahead_give_back_all(struct disk_ahead *a)
{
    LIST_FOREACH_SAFE(node, &a->files)
        ahead_give_back(a, container_of(node, struct ahead_file, link));
}

uint64_t ahead_bytes(const struct ahead_file *f, uint64_t size)
{
    return f->end > block_past(size) ? f->end - block_past(size) : 0;
}

/* Returns whether there is space beyond the end of the file; true if that is unknown. */
static bool has_more(int fd, uint64_t size)
{
    struct fiemap map = { .fm_start = block_past(size) };

    map.fm_length = FIEMAP_MAX_OFFSET - map.fm_start;
    return ioctl(fd, FS_IOC_FIEMAP, &map) != 0 || map.fm_mapped_extents > 0;
}

static bool has_plenty(int fd)
{
    struct statvfs st;

    return fstatvfs(fd, &st) == 0 &&
           (uint64_t)st.f_bavail * st.f_frsize >> 20 >= AHEAD_FREE_MIN;
}

/* Makes room by freeing the space of the file not written to for longest, if it is
 * idle. */
static bool make_room(struct disk_ahead *a)
{
    struct ahead_file *oldest;

    if (a->n_files < AHEAD_FILES_MAX)
        return true;
    oldest = container_of(a->files.prev, struct ahead_file, link);
    if (a->clock - oldest->used < IDLE_WRITES)
        return false;
    ahead_give_back(a, oldest);
    return true;
}

static void reserve(struct disk_ahead *a, struct ahead_file *f, int fd, uint64_t to,
                    uint64_t len)
{
    uint64_t from = f->end > to ? f->end : to, end = block_past(to + len);
    struct stat st;

    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size > to || !has_plenty(fd))
        return;
    f->never = !f->looked && has_more(fd, (uint64_t)st.st_size);
    f->looked = true;
    if (f->never || (f->end == 0 && !make_room(a)))
        return;
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(end - from)) != 0) {
        f->never = errno != EINTR;
        return;
    }
    if (f->end == 0) {
        list_add_after(&a->files, &f->link);
        a->n_files++;
    }
    f->fd = fd;
    f->end = end;
}

void ahead_streamed(struct disk_ahead *a, struct ahead_file *f, int fd, uint64_t to,
                    uint64_t streamed)
{
    a->clock++;
    f->used = a->clock;
    if (f->end != 0) {
        list_remove(&f->link);
        list_add_after(&a->files, &f->link);
    }
    if (!f->never && streamed >= AHEAD_FROM && f->end < to + AHEAD_LOW)
        reserve(a, f, fd, to, streamed < AHEAD_MAX ? streamed : AHEAD_MAX);
}
