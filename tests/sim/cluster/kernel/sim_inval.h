/*
 * sim_inval.h - rozomount's invalidator without a thread: notices go to the kernel model.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_KERNEL_SIM_INVAL_H
#define ROZO_TESTS_SIM_CLUSTER_KERNEL_SIM_INVAL_H

#include "rozomount/kcache/kernel_inval.h"
#include "tests/sim/cluster/kernel/kernel.h"

struct proc;

/** Makes an invalidator in proc, in its memory. */
struct kernel_inval *sim_kernel_inval_new(struct proc *proc, struct kernel *kernel,
                                          bool expires);

#endif
