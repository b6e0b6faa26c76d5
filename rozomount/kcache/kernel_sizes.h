/*
 * kernel_sizes.h - with writeback_cache: files whose size differs from the kernel's
 * belief.
 *
 * With writeback_cache the kernel uses its own size of a file, from the first answer
 * about it until it forgets the inode. A change of the size by another mount cannot be
 * passed on: reads would end too early or return zeros. Such a file is marked stale until
 * the kernel forgets it. Any thread; a call costs one lock.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_KERNEL_SIZES_H
#define ROZO_ROZOMOUNT_KCACHE_KERNEL_SIZES_H

#include <stdbool.h>
#include <stdint.h>

struct kernel_sizes;

/* Size and change counter of an inode, as exportd reported them. */
struct kernel_size {
    uint64_t ino, size, change;
};

struct kernel_sizes *kernel_sizes_new(void);
void kernel_sizes_free(struct kernel_sizes *sizes);
/**
 * Notes the size of a file that is about to be passed to the kernel. Only the first call
 * for a file counts.
 */
void kernel_sizes_note(struct kernel_sizes *sizes, const struct kernel_size *said);
/** Notes the answer to a change by this mount. */
void kernel_sizes_own(struct kernel_sizes *sizes, const struct kernel_size *said);
/**
 * Notes the answer to a report of written data. longest: end of all data that this mount
 * wrote to the file. Returns true if the file is stale.
 */
bool kernel_sizes_wrote(struct kernel_sizes *sizes, const struct kernel_size *said,
                        uint64_t longest);
/**
 * Notes a change by this mount with unknown outcome: accepts the next size from exportd.
 */
void kernel_sizes_unsure(struct kernel_sizes *sizes, uint64_t ino);
/**
 * Notes attributes that came while no change by this mount was under way. Returns true if
 * the file is stale.
 */
bool kernel_sizes_is_stale(struct kernel_sizes *sizes, const struct kernel_size *said);
/** Drops the entry, because the kernel has forgotten the inode. */
void kernel_sizes_forget(struct kernel_sizes *sizes, uint64_t ino);

#endif
