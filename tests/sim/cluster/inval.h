/*
 * inval.h - rozomount's invalidator as the simulator has it: no thread, and notices to the kernel's model.
 */
#ifndef ROZO_SIM_INVAL_H
#define ROZO_SIM_INVAL_H

#include "rozomount/kcache/kernel_inval.h"
#include "tests/sim/cluster/kernel.h"

struct proc;

/** In proc, with its memory. */
struct invalidator *sim_invalidator_new(struct proc *proc, struct kernel *kernel,
                                        bool expires);

#endif
