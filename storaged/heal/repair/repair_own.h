/*
 * repair_own.h - our own storage in a repair. Private to repair*.c.
 *
 * Without it nothing here was looked at, so it is asked again while it does not answer.
 * Only repair_own.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_OWN_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_OWN_H

#include <stdbool.h>
#include <stdint.h>

struct repair;

struct repair_own {
    uint32_t bit;        /* bitmap: our place in the distribution; 0: none */
    uint64_t refused_ns; /* since when it has not answered; 0: it answers */
    bool unseen;         /* part of the range could not be looked at there */
};

/** Finds our place in the distribution. */
void repair_own_init(struct repair *repair);
/**
 * Notes that our own storage left a request unanswered. Returns true: ask once more, in
 * REPAIR_AGAIN_MS. Returns false if it is down or did not answer for too long: then the
 * repair ends with an error.
 */
bool repair_own_refused(struct repair *repair);
/** Notes that our own storage answered: resets the timer of repair_own_refused(). */
void repair_own_told(struct repair *repair);

#endif
