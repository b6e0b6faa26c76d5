/*
 * atimes.h - access times of the inodes that this mount has read, until exportd has them.
 *
 * A read asks exportd nothing. It is noted here, shown in the attributes that the kernel
 * asks for, and reported together with others after some seconds (atimes_report.c).
 * exportd decides once more, by the times that it has. Bounded: the oldest notes are
 * forgotten. Any thread.
 */
#ifndef ROZO_ATIMES_H
#define ROZO_ATIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/inode_times.h"
#include "rozomount/md_decode.h"

enum {
    ATIMES_REPORT_MAX = 256, /* reads in one message */
    ATIMES_MAX = 16384,      /* inodes noted */
};

enum atimes_mode {
    ATIMES_RELATIVE, /* relatime */
    ATIMES_STRICT,   /* each read counts */
    ATIMES_NONE,     /* no read counts */
};

/* A report of one inode. */
struct atime_note {
    uint64_t ino;
    struct noted_read read;
};

struct atimes;

/** no_directories: reads of directories do not count. */
struct atimes *atimes_new(enum atimes_mode mode, bool no_directories);
void atimes_free(struct atimes *a);
bool atimes_counts(const struct atimes *a, bool is_directory);
bool atimes_is_strict(const struct atimes *a);

/**
 * An inode was read, and such reads count. known: its times as far as they are known
 * here, or NULL. Their atime_ns becomes that of the read if true is returned: the access
 * time moves. others_change: other mounts may have changed the inode since: exportd
 * decides if it is due.
 */
bool atimes_note(struct atimes *a, uint64_t ino, int64_t now_ns,
                 struct inode_times *known, bool others_change);
/** Returns the access time to show with these attributes from exportd. */
wide_ns atimes_of(struct atimes *a, const struct md_attr *attr);
/** This mount sets the access time: reads before that do not count. */
void atimes_forget(struct atimes *a, uint64_t ino);

/** How many reads wait to be reported. */
unsigned atimes_waiting(struct atimes *a);
/**
 * Takes up to `max` of those, oldest first, but none of the last second. They count as
 * reported from now on. now_ns INT64_MAX: those, too.
 */
unsigned atimes_take(struct atimes *a, int64_t now_ns, struct atime_note *out,
                     unsigned max);
/** The report of these notes failed. */
void atimes_give_back(struct atimes *a, const struct atime_note *notes, unsigned n);
/** Stops counting: exportd takes no reports (an older one, or a read-only session). */
void atimes_refused(struct atimes *a);

#endif
