/*
 * takeover.h - a mount goes from one process to the next, see holder.h.
 */
#ifndef ROZO_ROZOMOUNT_DAEMON_TAKEOVER_H
#define ROZO_ROZOMOUNT_DAEMON_TAKEOVER_H

#include "rozomount/op/mount.h"

/** Notes what exportd's session holds, as mount_session_config.inherited. */
void mount_note_inherited(void *arg, const Rozo__MdOpenSessionResp *held);
/**
 * Goes on where the process before has ended. Before any request of the kernel is read.
 */
void mount_inherit(struct mount *m);
/**
 * Stores all data durably, then ends the process, so that the holder starts the next one.
 * If they cannot be stored, the process goes on. Loop 0's thread.
 */
void mount_hand_over(struct mount *m);

#endif
