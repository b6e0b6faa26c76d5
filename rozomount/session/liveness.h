/*
 * liveness.h - finds sessions of this machine whose process has died.
 *
 * Each mount keeps an empty file in a directory of the machine. The file is named after
 * the session, and the mount process holds a lock (flock) on it. The kernel releases the
 * lock when the process ends, for whatever reason, and not before; so a process that gets
 * the lock knows that the mount is dead. File names contain the boot number, because the
 * file of another boot or machine proves nothing. Thread: the first loop.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_LIVENESS_H
#define ROZO_ROZOMOUNT_SESSION_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PULSE_DEAD_MAX = 256, /* sessions found at a time: those that died last */
    PULSE_CLUSTER_BYTES = 16,
};

struct liveness;

/**
 * Creates the object. dir: the directory, created if needed; NULL: the directory of this
 * machine for this user. Never returns NULL: without a directory no dead session is found
 * and no file is written.
 */
struct liveness *liveness_new(const char *dir);
/**
 * Finds dead sessions: of our own cluster, or of all clusters before liveness_note().
 * Returns them, borrowed until the next call.
 */
const uint64_t *liveness_find_dead(struct liveness *p, size_t *n);
/**
 * Removes the files of the sessions found last, as far as they are of our own cluster
 * (liveness_note()): its exportd knows now that they are dead.
 */
void liveness_dead_are_reported(struct liveness *p);
/** Notes the current session of this process; replaces the previous one. */
void liveness_note(struct liveness *p, const uint8_t cluster[PULSE_CLUSTER_BYTES],
                   uint64_t session);
/** Returns the descriptor that keeps the session alive, borrowed; -1: none. */
int liveness_fd(const struct liveness *p);
/**
 * Frees the object; p may be NULL. over: exportd knows that our session has ended, so the
 * file is removed; if not, a later mount reports the session.
 */
void liveness_free(struct liveness *p, bool over);

#endif
