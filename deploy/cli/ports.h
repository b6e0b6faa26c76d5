/*
 * ports.h - TCP ports of 127.0.0.1 for private clusters.
 */
#ifndef ROZO_DEPLOY_CLI_PORTS_H
#define ROZO_DEPLOY_CLI_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* Below the ports that the kernel gives to outgoing connections, which so cannot take one
 * of these. */
enum { PORTS_FIRST = 18000, PORTS_LAST = 31999 };

/** Finds n different ports that are free now. The search begins at a random place. */
int ports_pick(uint16_t *ports, unsigned n, struct err *err);
/** Returns whether a daemon could listen on the port now. */
bool port_is_free(uint16_t port);

#endif
