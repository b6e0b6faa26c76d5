/*
 * repair_findings.h - what a repair finds out about the file as a whole, and what follows
 * from it. Private to repair*.c.
 *
 * Only repair_findings.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_FINDINGS_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_FINDINGS_H

#include <stdbool.h>

#include "storaged/heal/decide/repair_heads.h"

struct repair;

enum file_seen {
    SEEN_NOWHERE,
    SEEN_SOMEWHERE, /* some storage has the file */
    SEEN_REMOVED,   /* a home refuses to take the file: it was asked to remove it */
};

struct repair_findings {
    enum file_seen seen;
    /* Projections whose homes did not know about never written blocks. */
    uint32_t unknown;
    uint32_t spoiled[DIST_MAX]; /* see struct repair_heads */
    uint64_t newest;            /* newest version that any storage has */
    uint32_t none;     /* candidates whose last answer was that they have no such file */
    uint32_t damaged;  /* candidates whose file is unreadable */
    uint32_t unsynced; /* subset of damaged: no sync of the file ever ended there */
    uint32_t doubt;    /* candidates that may have lost something unknown */
};

/** Forgets which candidates have no file or an unreadable one, since all are asked. */
void findings_ask(struct repair_findings *f);
void findings_no_file(struct repair_findings *f, unsigned candidate);
void findings_unreadable(struct repair_findings *f, unsigned candidate, bool unsynced);
void findings_has_file(struct repair_findings *f);
void findings_removed(struct repair_findings *f);
/** Notes projections whose homes do not know about never written blocks. */
void findings_unknown(struct repair_findings *f, uint32_t projections);
/** Takes over what the heads of a piece say about the file. */
void findings_take(struct repair_findings *f, const struct repair_heads *heads);

/** Returns the projections whose homes must hear that their files are complete. */
uint32_t findings_complete_homes(struct repair *repair);
/**
 * Returns whether every candidate confirms that all of the file is where it should be.
 */
bool findings_all_in_place(const struct repair *repair);
/** Completes the result at the end of the repair. */
void findings_conclude(struct repair *repair);

#endif
