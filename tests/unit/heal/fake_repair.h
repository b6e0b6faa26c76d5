/*
 * fake_repair.h - a repair.h that does nothing but take its time and say what the test wants, so that what
 * makes repairs can be watched.
 */
#ifndef ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H
#define ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H

#include "storaged/heal/repair/repair.h"

/* Called at the end of a repair: fill in the result (zero before). */
typedef void fake_repair_fn(void *arg, uint32_t own_storage,
                            const struct repair_request *request,
                            struct repair_result *result);

struct fake_repairs {
    fake_repair_fn *fn;
    void *arg;
    uint64_t takes_ms;
    unsigned n_started, n_ended, n_cancelled;
    unsigned n_running, n_running_most;
    uint64_t bytes; /* told to take() at the beginning of each */
    uint64_t waited_ms;
};
extern struct fake_repairs fake_repairs;

#endif
