/*
 * fake_mend.h - a mend.h that does nothing but take its time and say what the test wants, so that what
 * makes mends can be watched.
 */
#ifndef ROZO_TEST_FAKE_MEND_H
#define ROZO_TEST_FAKE_MEND_H

#include "storaged/heal/repair/mend.h"

/* Called at the end of a mend: fill in the result (zero before). */
typedef void fake_mend_fn(void *arg, uint32_t own_storage,
                          const struct mend_request *request, struct mend_result *result);

struct fake_mends {
    fake_mend_fn *fn;
    void *arg;
    uint64_t takes_ms;
    unsigned n_started, n_ended, n_cancelled;
    unsigned n_running, n_running_most;
    uint64_t bytes; /* told to take() at the beginning of each */
    uint64_t waited_ms;
};
extern struct fake_mends fake_mends;

#endif
