/*
 * fake_repair.h - a repair.h that only takes time and returns the result that the test
 * wants, for tests of the code that starts repairs.
 */
#ifndef ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H
#define ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H

#include "storaged/heal/repair/repair.h"

/* Called at the end of a repair: fills in the result, which is zero before. */
typedef void fake_repair_fn(void *arg, uint32_t own_storage,
                            const struct repair_request *request,
                            struct repair_result *result);

struct fake_repairs {
    fake_repair_fn *fn;
    void *arg;
    uint64_t takes_ms;
    unsigned n_started, n_ended, n_cancelled;
    unsigned n_running, n_running_most;
    uint64_t bytes; /* passed to take() at the beginning of each repair */
    uint64_t waited_ms;
};
extern struct fake_repairs fake_repairs;

#endif
