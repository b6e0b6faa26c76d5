/*
 * kernel_sizes.h - with writeback_cache: which files have another size than the kernel believes.
 *
 * The kernel then goes by its own size of a file from the first answer about it until it forgets the inode. So a change of
 * the size by another mount cannot be told to it: what it read would end too early, or in zeros. Such a file is known as
 * stale, until the kernel forgets it. Any thread; a call costs one lock.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_KERNEL_SIZES_H
#define ROZO_ROZOMOUNT_KCACHE_KERNEL_SIZES_H

#include <stdbool.h>
#include <stdint.h>

struct kernel_sizes;

/* What exportd says of an inode. */
struct kernel_size {
    uint64_t ino, size, change;
};

struct kernel_sizes *kernel_sizes_new(void);
void kernel_sizes_free(struct kernel_sizes *sizes);
/** The kernel is told of a file, perhaps for the first time. */
void kernel_sizes_told(struct kernel_sizes *sizes, const struct kernel_size *said);
/** exportd answered to a change of ours. */
void kernel_sizes_own(struct kernel_sizes *sizes, const struct kernel_size *said);
/** The same for a report of what was written; longest: as long as the file is by all that we wrote. Is it stale? */
bool kernel_sizes_wrote(struct kernel_sizes *sizes, const struct kernel_size *said,
                        uint64_t longest);
/** A change of ours may have happened, or not: what exportd says next is believed. */
void kernel_sizes_unsure(struct kernel_sizes *sizes, uint64_t ino);
/** exportd answered a question while no change of ours was under way. Is it stale? */
bool kernel_sizes_is_stale(struct kernel_sizes *sizes, const struct kernel_size *said);
/** The kernel has forgotten it. */
void kernel_sizes_forget(struct kernel_sizes *sizes, uint64_t ino);

#endif
