/*
 * atimes.h - access times of inodes that this mount has read and not yet reported.
 *
 * A read sends no request to exportd. A note of it is kept here, shows in the attributes
 * that the kernel gets, and is reported with others after some seconds (atimes_report.c).
 * exportd then decides by the times that it has. If there are too many notes the oldest
 * ones are dropped. Any thread.
 */
#ifndef ROZO_ROZOMOUNT_INODE_ATIMES_H
#define ROZO_ROZOMOUNT_INODE_ATIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/wire/inode_times.h"
#include "rozomount/options/options.h"
#include "rozomount/tokens/md_attr.h"

enum {
    ATIMES_REPORT_MAX = 256, /* reads in one message */
    ATIMES_MAX = 16384,      /* inodes noted */
};

/* Report of one inode. */
struct atime_note {
    uint64_t ino;
    struct noted_read read;
};

struct atimes;

/** Creates a table. no_directories: reads of directories do not count. */
struct atimes *atimes_new(enum atimes_mode mode, bool no_directories);
void atimes_free(struct atimes *a);
bool atimes_counts(const struct atimes *a, bool is_directory);
bool atimes_is_strict(const struct atimes *a);

/**
 * Notes a read that counts. Returns true if the access time moves, and then sets
 * known->atime_ns to the time of the read.
 *
 * @param known         times of the inode, or NULL if unknown
 * @param others_change other mounts may have changed the inode: exportd decides
 */
bool atimes_note(struct atimes *a, uint64_t ino, int64_t now_ns,
                 struct inode_times *known, bool others_change);
/** Returns the access time to show with attributes that came from exportd. */
wide_ns atimes_of(struct atimes *a, const struct md_attr *attr);
/** Drops the note of an inode, because this mount sets its access time. */
void atimes_forget(struct atimes *a, uint64_t ino);

/** Returns the number of notes that wait to be reported. */
unsigned atimes_waiting(struct atimes *a);
/**
 * Takes up to `max` waiting notes, oldest first, and marks them reported. Leaves notes of
 * the last second, unless now_ns is INT64_MAX. Returns their number.
 */
unsigned atimes_take(struct atimes *a, int64_t now_ns, struct atime_note *out,
                     unsigned max);
/** Takes back notes whose report failed; they wait again. */
void atimes_give_back(struct atimes *a, const struct atime_note *notes, unsigned n);
/** Stops counting, because exportd takes no reports: it is older than MD_ATIMES, or the
 * session is read-only. */
void atimes_refused(struct atimes *a);

#endif
