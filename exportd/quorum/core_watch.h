/*
 * core_watch.h - whether the core of a member works, as the member's thread sees it.
 *
 * The member sends the core a question. A core whose loop turns answers; one that handles
 * many long calls in one turn does not, but counts the calls. Pure: no clock, no I/O.
 */
#ifndef ROZO_EXPORTD_QUORUM_CORE_WATCH_H
#define ROZO_EXPORTD_QUORUM_CORE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Zeroed: nothing was asked. Of the member's thread, but for the atomic members. */
struct core_watch {
    _Atomic uint64_t serves_since_ns; /* any thread; 0: the core does not serve */
    _Atomic uint64_t n_calls;         /* calls that the core has taken; core's thread */
    uint64_t n_seen;                  /* n_calls as of the last look */
    uint64_t alive_ns;                /* newest sign of life, or time of the question */
    bool is_asked;                    /* the question is at the core */
};

/** The question goes to the core. */
void core_watch_asked(struct core_watch *w, uint64_t now_ns);
/** The core has answered. */
void core_watch_answered(struct core_watch *w);
/** Returns how long the core has served without an answer and without a call, in ns. */
uint64_t core_watch_look(struct core_watch *w, uint64_t now_ns);

#endif
