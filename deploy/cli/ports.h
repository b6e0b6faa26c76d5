/*
 * ports.h - TCP ports of 127.0.0.1 for private clusters.
 */
#ifndef ROZO_DEPLOY_CLI_PORTS_H
#define ROZO_DEPLOY_CLI_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* Below the ports that the kernel gives to connections, so that none of those is in our way. */
enum { PORTS_FIRST = 18000, PORTS_LAST = 31999 };

/** n different ports nobody listens on now. The search begins at a random place. */
int ports_pick(uint16_t *ports, unsigned n, struct err *err);
/** True when a daemon could listen on it now. */
bool port_is_free(uint16_t port);

#endif
