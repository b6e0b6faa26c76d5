/*
 * liveness.h - which sessions of this machine have no process any more.
 *
 * A mount keeps an empty file in a directory of the machine, named after its session and locked (flock) as long as its process
 * lives. The kernel lets go of the lock when the process is gone, however it ended, and not before: who gets the lock knows.
 * Names have the boot, so that nothing is concluded from a file that another kernel's process may have locked. Thread: the first loop.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_LIVENESS_H
#define ROZO_ROZOMOUNT_SESSION_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PULSE_DEAD_MAX = 256, /* found at a time */
    PULSE_CLUSTER_BYTES = 16,
};

struct liveness;

/**
 * Look who is dead. dir: made if it is not there; NULL: that of the machine for this user. Never NULL: without a directory
 * nobody is found dead, and nothing is noted.
 */
struct liveness *liveness_new(const char *dir);
/** Those that were found, of any cluster. Borrowed. */
const uint64_t *liveness_dead(const struct liveness *p, size_t *n);
/** This cluster's exportd has heard of them: their files go. */
void liveness_dead_are_told(struct liveness *p,
                            const uint8_t cluster[PULSE_CLUSTER_BYTES]);
/** The session of our process, instead of the one before. */
void liveness_note(struct liveness *p, const uint8_t cluster[PULSE_CLUSTER_BYTES],
                   uint64_t session);
/** over: exportd knows that our session is; else whoever comes after us tells it. NULL is fine. */
void liveness_free(struct liveness *p, bool over);

#endif
