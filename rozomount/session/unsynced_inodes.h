/*
 * unsynced_inodes.h - which inodes this mount changed at exportd, and nobody has synced there since.
 *
 * Names, attributes, sizes of truncates: what a program did and exportd acknowledged, a loss of exportd's power may
 * take away until something is synced there (an fsync of anything, or a keep-alive). When that has happened, the next
 * fsync of such an inode must not say that all is well. Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_UNSYNCED_INODES_H
#define ROZO_ROZOMOUNT_SESSION_UNSYNCED_INODES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    UNSTABLE_MAX =
        1 << 17, /* inodes remembered; with more, any one may have been changed */
};

struct unstable;

struct unstable *unstable_new(void);
void unstable_free(struct unstable *u);
/** exportd has answered a change of ino, or may have done it. losses: as this loop last heard of it. */
void unstable_note(struct unstable *u, uint64_t ino, uint32_t losses);
/** Before a request that is answered when durable: the number for unstable_settled(). */
uint64_t unstable_begin(struct unstable *u);
/** It was answered: what was noted before its beginning is safe, unless it is lost already. */
void unstable_settled(struct unstable *u, uint64_t no);
/** Is nothing noted? Then all that this mount has changed is safe, or lost. */
bool unstable_is_empty(struct unstable *u);
/** exportd has lost its power so often: all that is noted may be gone. Saying it again changes nothing. */
void unstable_lost(struct unstable *u, uint32_t losses);
/** May a change of ino be gone? True once. */
bool unstable_take_lost(struct unstable *u, uint64_t ino);

#endif
