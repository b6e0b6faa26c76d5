/*
 * disk_names.h - remembers which names do not exist in the recently used directories of
 * projection files.
 *
 * A new file is searched before it is created, and a removed one under every name it
 * might have. Most of these names do not exist, and each search would be a system call.
 * So a directory in which files are created or removed is read once, and a filter of its
 * names is kept. A removed name stays in the filter, which may always say "perhaps".
 *
 * One per loop, like the disk. It is valid for the files that this loop owns: names of
 * other loops' files may be missing. The daemon must be stopped before files are put into
 * its data directory by hand.
 */
#ifndef ROZO_COMMON_DISK_DISK_NAMES_H
#define ROZO_COMMON_DISK_DISK_NAMES_H

#include <stdbool.h>
#include <stdint.h>

enum { NAMES_DIRS = 32, NAMES_BITS = 8192 };

struct disk_names {
    struct names_dir {
        bool known;
        uint32_t dir;   /* number of the directory objects/xx/yy that `bits` describes */
        uint32_t asked; /* number of the last directory to be learned, + 1 */
        uint64_t bits[NAMES_BITS / 64]; /* by a hash of the name */
    } dirs[NAMES_DIRS];
};

/**
 * Returns whether path certainly does not exist. Returns false also for a path that is
 * not "objects/xx/yy/NAME".
 */
bool disk_names_lack(const struct disk_names *names, const char *path);
/** Adds a path that is created now, or may be. */
void disk_names_add(struct disk_names *names, const char *path);
/**
 * Announces more queries in path's directory. The second announcement in a row reads the
 * directory.
 */
void disk_names_learn(struct disk_names *names, int dir_fd, const char *path);

#endif
