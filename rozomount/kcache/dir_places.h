/*
 * dir_places.h - the name under which the kernel last found each directory.
 *
 * Linux keeps one dentry per directory. After another mount has moved the directory, a
 * lookup of its new name moves the dentry. Inside a rename() the lookup cannot take the
 * lock for that and fails with ESTALE, so the old dentry must be dropped first. This
 * table shows which lookups find a directory in another place than before. It is a cache:
 * if another directory has taken the slot, the place is unknown.
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
    DIRPLACES_UNTOKENED_MAX = 4096,
    DIRPLACES_DEPTH_MAX = 256,
    /* Linux retries at once after ESTALE; slow machines need some time */
    DIRPLACES_RETRY_MS = 1000,
};

/* The place of a directory: a name in another directory. */
struct dir_place {
    uint64_t ino;
    uint64_t dir;
    const char *name;
};

enum dir_place_verdict {
    DIR_PLACE_SAME,
    DIR_PLACE_UNKNOWN,
    DIR_PLACE_MOVED, /* found in another place than before */
    DIR_PLACE_RETRY, /* moved and stuck; the same thread looks it up again */
};

struct dir_places;
struct kernel_name;

struct dir_places *dir_places_new(void);
void dir_places_free(struct dir_places *p);

/**
 * Notes that a lookup by thread `pid` found the directory at `at`. Returns how that
 * compares to the place noted before.
 */
enum dir_place_verdict dir_places_found(struct dir_places *p, const struct dir_place *at,
                                        pid_t pid, uint64_t now_ns);
/**
 * Notes that the kernel could not drop the old dentry before the answer to thread `pid`.
 */
void dir_places_stuck(struct dir_places *p, uint64_t ino, pid_t pid, uint64_t now_ns);
/**
 * Notes that the kernel has the directory in this place: it was created or listed there.
 */
void dir_places_note(struct dir_places *p, const struct dir_place *at);
/** Notes a rename by the kernel. Ignores inodes that are not in the table. */
void dir_places_renamed(struct dir_places *p, const struct dir_place *to);

/**
 * Returns the directory and all known directories below it, deepest first, as an array
 * that the caller frees; *n is its length.
 */
uint64_t *dir_places_below(struct dir_places *p, uint64_t ino, size_t *n);

/**
 * Notes a name, or its absence, that the kernel got without a token. The kernel keeps a
 * dentry for it and revalidates that each time. Of names that share a slot the newest is
 * kept.
 */
void dir_places_note_untokened(struct dir_places *p, uint64_t dir, const char *name,
                               bool is_dir);
/**
 * Takes such names of a directory out of the table; the caller frees them with
 * kernel_names_free().
 */
struct kernel_name *dir_places_take_untokened(struct dir_places *p, uint64_t dir);

#endif
