/*
 * fake_repair.h - a repair.h that only takes time and returns the result that the test
 * wants, for tests of the code that starts repairs.
 */
#ifndef ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H
#define ROZO_TESTS_UNIT_HEAL_FAKE_REPAIR_H

#include "storaged/heal/repair/repair.h"

/* Called at the end of a repair: may change the result, which is next_result before. */
typedef void fake_repair_fn(void *arg, uint32_t own_storage,
                            const struct repair_request *request,
                            struct repair_result *result);

struct fake_repairs {
    fake_repair_fn *fn; /* may be NULL */
    void *arg;
    uint64_t takes_ms;
    unsigned n_started, n_ended, n_cancelled;
    unsigned n_running, n_running_most;
    uint64_t bytes; /* passed to take() at the beginning of each repair */
    uint64_t waited_ms;
};
extern struct fake_repairs fake_repairs;

enum { SEEN_MAX = 4096 };

/* Repairs that ended, in order. */
extern struct repair_seen {
    uint32_t own;
    struct repair_request request;
} seen[SEEN_MAX];
extern unsigned n_seen;
extern struct repair_result next_result; /* result of repairs that end from now on */

/** Forgets all repairs; the next ones have a good result. */
void fake_repairs_init(void);

#endif
