/*
 * sim_notify.h - rozomount's recaller in the simulator: no threads, notices go to the
 * kernel model.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_KERNEL_SIM_NOTIFY_H
#define ROZO_TESTS_SIM_CLUSTER_KERNEL_SIM_NOTIFY_H

#include "rozomount/kcache/kernel_notify.h"
#include "tests/sim/cluster/kernel/kernel.h"

struct proc;

/** Makes a recaller in proc, in its memory. ages:
 * the kernel supports FUSE_NOTIFY_INC_EPOCH. */
struct kernel_notify *sim_kernel_notify_new(struct proc *proc, struct kernel *kernel,
                                            bool expires, bool ages);
/** Tells whether the kernel still works on its notices. */
bool sim_recaller_is_busy(const struct kernel_notify *r);

#endif
