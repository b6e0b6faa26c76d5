/*
 * disk_names.h - which names are not in the directories of projection files that were used last.
 *
 * A new file is looked for before it is made, a removed one under every name it might have: all but one of these
 * are not there, and each would be a system call. So a directory in which files are made or removed is read once, and
 * a filter of its names is kept. A name that is taken away stays in the filter, which may always say "perhaps".
 *
 * One per loop, like the disk. It holds for the files that this loop owns: names of others may be missing. Who puts files
 * into a data directory must stop its daemon first.
 */
#ifndef ROZO_STORAGED_DAEMON_DISK_NAMES_H
#define ROZO_STORAGED_DAEMON_DISK_NAMES_H

#include <stdbool.h>
#include <stdint.h>

enum { NAMES_DIRS = 32, NAMES_BITS = 8192 };

struct disk_names {
    struct names_dir {
        bool known;
        uint32_t dir;                   /* of `bits`: the number of objects/xx/yy */
        uint32_t asked;                 /* the last one that was to be learned, + 1 */
        uint64_t bits[NAMES_BITS / 64]; /* by a hash of the name */
    } dirs[NAMES_DIRS];
};

/** Is it certain that path is not there? False also for what is no "objects/xx/yy/NAME". */
bool disk_names_lack(const struct disk_names *names, const char *path);
/** path is made now, or may be. */
void disk_names_add(struct disk_names *names, const char *path);
/** More names of path's directory are going to be asked for: it is read, at the second time in a row. */
void disk_names_learn(struct disk_names *names, int dir_fd, const char *path);

#endif
