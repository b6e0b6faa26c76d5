/*
 * run.h - one repair under test, with a repairer of its own.
 */
#ifndef ROZO_TESTS_UNIT_HEAL_RUN_H
#define ROZO_TESTS_UNIT_HEAL_RUN_H

#include "storaged/heal/repair/repair.h"

struct run {
    struct repairer *repairer;
    struct repair *repair;
    struct repair_result result; /* valid once done */
    bool done;
};

/** Starts a repair. */
void run_begin(struct run *run, const struct repairer_config *config,
               const struct repair_request *request);
/** Starts another repair by the same repairer, after the one before ended. */
void run_again(struct run *run, const struct repair_request *request);
/** Frees the repairer of a repair that ended. Returns its result. */
struct repair_result run_end(struct run *run);

#endif
