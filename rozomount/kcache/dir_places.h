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
struct dir_place {
    uint64_t ino;
    uint64_t dir;
    const char *name;
};

enum dir_place_verdict {
    DIR_PLACE_SAME,
    DIR_PLACE_UNKNOWN,
    DIR_PLACE_MOVED, /* it was somewhere else */
    DIR_PLACE_RETRY, /* moved and stuck, and the same thread looks it up again */
};

struct dir_places;
struct told_name;

struct dir_places *dir_places_new(void);
void dir_places_free(struct dir_places *p);

/** A lookup of thread `pid` found the directory here; noted. */
enum dir_place_verdict dir_places_found(struct dir_places *p, const struct dir_place *at,
                                        pid_t pid, uint64_t now_ns);
/** The kernel could not drop the old dentry before the answer to thread `pid`. */
void dir_places_stuck(struct dir_places *p, uint64_t ino, pid_t pid, uint64_t now_ns);
/** The kernel knows that the directory is here: it was made or listed. */
void dir_places_note(struct dir_places *p, const struct dir_place *at);
/** The kernel itself moved the inode here; nothing is noted unless it is a directory of the table. */
void dir_places_renamed(struct dir_places *p, const struct dir_place *to);

/**
 * The directory and those below it, as far as they are known, the deepest first: an array to free(); *n its length.
 */
uint64_t *dir_places_below(struct dir_places *p, uint64_t ino, size_t *n);

/**
 * The kernel was told this name, or that it is not there, without a token: it keeps a dentry all the same, and asks each time.
 * The newest of those that share a slot is remembered.
 */
void dir_places_loose_name(struct dir_places *p, uint64_t dir, const char *name,
                           bool is_dir);
/** Those of a directory, forgotten now: for told_names_free(). */
struct told_name *dir_places_take_loose(struct dir_places *p, uint64_t dir);

#endif
