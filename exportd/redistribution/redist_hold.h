/*
 * redist_hold.h - a file that is closed for clients while its distribution changes.
 *
 * Only redist_hold.c writes the members that are declared here.
 */
#ifndef ROZO_EXPORTD_REDISTRIBUTION_REDIST_HOLD_H
#define ROZO_EXPORTD_REDISTRIBUTION_REDIST_HOLD_H

#include "exportd/redistribution/redist_ask.h"

/* EXCLUSIVE token of a file, held by exportd itself. */
struct redist_hold {
    enum {
        HOLD_NONE,   /* the file is open */
        HOLD_CLOSED, /* no session waits for it */
        HOLD_WANTED, /* a session waits for it */
    } state;
    uint64_t wanted_ns; /* ns, monotonic; when HOLD_WANTED began */
    struct token_holder holder;
    struct token_waiter waiter;
};

void redist_hold_init(struct redist_file *f);
/** Opens the file; the hold must not be used after that. */
void redist_hold_end(struct redist_file *f);

/** Starts recalling what sessions hold of the file; fails only without memory. */
enum redist_result redist_hold_start(struct redist_file *f);
/** Returns REDIST_NEXT when no session holds anything of the file any more. */
enum redist_result redist_hold_look(struct redist_file *f);
/** Closes the file. Returns false if out of memory. */
bool redist_hold_take(struct redist_file *f);
/** Opens the file, or stops waiting for it. */
void redist_hold_release(struct redist_file *f);
/** Returns true if a session has waited for the file for this long. */
bool redist_hold_is_overdue(const struct redist_file *f, uint64_t ns);

#endif
