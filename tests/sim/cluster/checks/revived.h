/*
 * revived.h - removed files that healing makes again.
 *
 * A storage remembers removals only until it stops. Healing may then make the file again
 * from one that was down and has not removed it yet (docs/internals/removal.md, Strays).
 * exportd finds such files in its sweeps, and a scrub may find them before.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_CHECKS_REVIVED_H
#define ROZO_TESTS_SIM_CLUSTER_CHECKS_REVIVED_H

#include <stdbool.h>

#include "common/rpc/rpc.h"
#include "tests/sim/cluster/world/net.h"

void revived_begin(void);
/** Takes a request of a node that arrives at a host. */
void revived_note(const struct host *from, const struct host *to,
                  const struct rpc_call *call);
/** Returns whether a node wrote to a storage what exportd had removed there. */
bool revived_any(void);

#endif
