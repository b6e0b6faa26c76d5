/*
 * dir_places.h - the name under which the kernel last found each directory.
 *
 * Linux keeps one dentry per directory. When another mount has moved the directory, a lookup of its new name moves the
 * dentry; inside a rename() it cannot, since the lock that this takes is held: ESTALE. The old dentry must then go first.
 * This table tells which lookups find a directory in another place than before. It is a cache: a slot that
 * another directory has taken only means that nothing is known.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_DIR_PLACES_H
#define ROZO_ROZOMOUNT_KCACHE_DIR_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    DIRPLACES_MAX = 65536,
    DIRPLACES_LOOSE_MAX = 4096,
    DIRPLACES_DEPTH_MAX = 256,
    DIRPLACES_RETRY_MS =
        1000, /* Linux retries at once after ESTALE; machines may be busy */
};

/* A directory is at this name. */
struct dirplace {
    uint64_t ino;
    uint64_t dir;
    const char *name;
};

enum dirplace_verdict {
    DIRPLACE_SAME,
    DIRPLACE_UNKNOWN,
    DIRPLACE_MOVED, /* it was somewhere else */
    DIRPLACE_RETRY, /* moved and stuck, and the same thread looks it up again */
};

struct dirplaces;
struct told_name;

struct dirplaces *dirplaces_new(void);
void dirplaces_free(struct dirplaces *p);

/** A lookup of thread `pid` found the directory here; noted. */
enum dirplace_verdict dirplaces_found(struct dirplaces *p, const struct dirplace *at,
                                      pid_t pid, uint64_t now_ns);
/** The kernel could not drop the old dentry before the answer to thread `pid`. */
void dirplaces_stuck(struct dirplaces *p, uint64_t ino, pid_t pid, uint64_t now_ns);
/** The kernel knows that the directory is here: it was made or listed. */
void dirplaces_note(struct dirplaces *p, const struct dirplace *at);
/** The kernel itself moved the inode here; nothing is noted unless it is a directory of the table. */
void dirplaces_renamed(struct dirplaces *p, const struct dirplace *to);

/**
 * The directory and those below it, as far as they are known, the deepest first: an array to free(); *n its length.
 */
uint64_t *dirplaces_below(struct dirplaces *p, uint64_t ino, size_t *n);

/**
 * The kernel was told this name, or that it is not there, without a token: it keeps a dentry all the same, and asks each time.
 * The newest of those that share a slot is remembered.
 */
void dirplaces_loose_name(struct dirplaces *p, uint64_t dir, const char *name,
                          bool is_dir);
/** Those of a directory, forgotten now: for told_names_free(). */
struct told_name *dirplaces_take_loose(struct dirplaces *p, uint64_t dir);

#endif
