/*
 * fences.h - sessions that are over: nothing that their clients still send is written any more.
 *
 * The healer's thread has the list from the map of the cluster, all loops look it up. No locks: what is in it stays
 * where it is until the list has it no more.
 */
#ifndef ROZO_STORAGED_FENCES_H
#define ROZO_STORAGED_FENCES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FENCED_MAX = 4096, FENCED_SLOTS = 2 * FENCED_MAX };

/* All zero: none. */
struct fences {
    _Atomic uint64_t slots[FENCED_SLOTS];
};

/** Could it be the number of one? */
bool fences_may_have(uint64_t session);
/** The list is this one now: up to FENCED_MAX, each one that fences_may_have(). One thread. 0 or -ENOMEM. */
int fences_set(struct fences *f, const uint64_t *sessions, size_t n);
/** Any thread. */
bool fences_have(const struct fences *f, uint64_t session);

#endif
