/*
 * recaller.h - rozomount's recaller as the simulator has it: no threads, and notices to the kernel's model.
 */
#ifndef ROZO_SIM_RECALLER_H
#define ROZO_SIM_RECALLER_H

#include "rozomount/kcache/kernel_notify.h"
#include "tests/sim/cluster/kernel.h"

struct proc;

/** In proc, with its memory. ages: the kernel can make names old. */
struct recaller *sim_recaller_new(struct proc *proc, struct kernel *kernel, bool expires,
                                  bool ages);
/** The kernel has not dropped yet all that it was told to. */
bool sim_recaller_is_busy(const struct recaller *r);

#endif
