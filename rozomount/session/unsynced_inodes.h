/*
 * unsynced_inodes.h - inodes that this mount changed at exportd and that are not synced
 * there yet.
 *
 * A power failure of exportd may undo changes of names, attributes and sizes that it has
 * acknowledged, until something is synced there (any fsync, or a keep-alive). After such
 * a loss the next fsync of a changed inode must fail. Any thread; a call costs one
 * uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_UNSYNCED_INODES_H
#define ROZO_ROZOMOUNT_SESSION_UNSYNCED_INODES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* inodes noted; beyond that, any inode may have been changed */
    UNSTABLE_MAX = 1 << 17,
};

struct unsynced_inodes;

struct unsynced_inodes *unsynced_inodes_new(void);
void unsynced_inodes_free(struct unsynced_inodes *u);
/**
 * Notes that exportd has changed ino, or may have. losses: the number of power losses
 * that this loop knows.
 */
void unsynced_inodes_note(struct unsynced_inodes *u, uint64_t ino, uint32_t losses);
/** Notes that any inode may have been changed: by another process. */
void unsynced_inodes_note_any(struct unsynced_inodes *u);
/**
 * Returns the number for unsynced_inodes_synced(). Call it before a request that exportd
 * answers when its changes are durable.
 */
uint64_t unsynced_inodes_begin(struct unsynced_inodes *u);
/**
 * Notes that such a request was answered: changes noted before its beginning are durable,
 * unless they are lost already.
 */
void unsynced_inodes_synced(struct unsynced_inodes *u, uint64_t no);
/** Returns true if nothing is noted: all changes by this mount are durable or lost. */
bool unsynced_inodes_is_empty(struct unsynced_inodes *u);
/**
 * Notes the number of power losses of exportd. If it is new, all noted changes may be
 * lost.
 */
void unsynced_inodes_lost(struct unsynced_inodes *u, uint32_t losses);
/** Returns true once if a change of ino may be lost. */
bool unsynced_inodes_take_lost(struct unsynced_inodes *u, uint64_t ino);

#endif
