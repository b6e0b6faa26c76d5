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

struct unsynced_inodes;

struct unsynced_inodes *unsynced_inodes_new(void);
void unsynced_inodes_free(struct unsynced_inodes *u);
/** exportd has answered a change of ino, or may have done it. losses: as this loop last heard of it. */
void unsynced_inodes_note(struct unsynced_inodes *u, uint64_t ino, uint32_t losses);
/** Before a request that is answered when durable: the number for unsynced_inodes_settled(). */
uint64_t unsynced_inodes_begin(struct unsynced_inodes *u);
/** It was answered: what was noted before its beginning is safe, unless it is lost already. */
void unsynced_inodes_settled(struct unsynced_inodes *u, uint64_t no);
/** Is nothing noted? Then all that this mount has changed is safe, or lost. */
bool unsynced_inodes_is_empty(struct unsynced_inodes *u);
/** exportd has lost its power so often: all that is noted may be gone. Saying it again changes nothing. */
void unsynced_inodes_lost(struct unsynced_inodes *u, uint32_t losses);
/** May a change of ino be gone? True once. */
bool unsynced_inodes_take_lost(struct unsynced_inodes *u, uint64_t ino);

#endif
