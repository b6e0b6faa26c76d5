/*
 * ports.h - TCP ports of 127.0.0.1 for private clusters.
 *
 * A port that was picked is reserved for its cluster for as long as the cluster's folder
 * exists: a daemon that is being restarted finds its port again, however many clusters
 * are made meanwhile. A reservation is a symbolic link PORT -> folder of the cluster in
 * rozo-dev-ports-UID, in $XDG_RUNTIME_DIR or /tmp. Where that folder cannot be used
 * nothing is reserved.
 */
#ifndef ROZO_DEPLOY_CLI_PORTS_H
#define ROZO_DEPLOY_CLI_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

/* Below the ports that the kernel gives to outgoing connections, which so cannot take one
 * of these. */
enum { PORTS_FIRST = 18000, PORTS_LAST = 31999 };

/**
 * Finds n different ports that are free now and reserves them. The search begins at a
 * random place.
 *
 * @param owner absolute path of the cluster's folder; it may be made a minute later.
 */
int ports_pick(const char *owner, uint16_t *ports, unsigned n, struct err *err);
/** Returns whether a daemon could listen on the port now. */
bool port_is_free(uint16_t port);

#endif
