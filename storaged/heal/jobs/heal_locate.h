/*
 * heal_locate.h - searches for the distribution of a file. Inside storaged/heal only.
 *
 * Only heal_locate.c writes these members, but for done and min_generation.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_LOCATE_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_LOCATE_H

#include "storaged/heal/jobs/heal_ask.h"
#include "storcli/blocks.h"

/* A search for the distribution of a file at other storages. Embedded; zero-initialise,
 * set done and min_generation. */
struct heal_locate {
    struct heal_ask ask;
    struct healer *h;
    struct file_id id;
    uint32_t min_generation; /* earlier distributions do not count */
    bool is_elsewhere;       /* a peer knows its distribution, and we are not in it */
    uint32_t asked;          /* last peer asked */
    bool known;
    struct storcli_target target; /* if known; we are in it */
    /* Some peer has the file, or may have it, and does not know its distribution. */
    bool in_doubt;
    bool unsure; /* some peer may have had it, or a lost storage may */
    void (*done)(struct heal_locate *l);
};
/**
 * Starts a search. done() comes once, before this returns if there is no peer to ask; not
 * if the healer stops.
 */
void heal_locate_start(struct healer *h, struct heal_locate *l, const struct file_id *id);

#endif
