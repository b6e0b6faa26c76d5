/*
 * status.h - errno inside a process, enum Rozo__Status on the wire: one table, both ways.
 */
#ifndef ROZO_COMMON_WIRE_STATUS_H
#define ROZO_COMMON_WIRE_STATUS_H

#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

/** Returns 0 for OK, else -errno. A number this build does not know gives -EIO. */
int status_to_errno(unsigned status);
/**
 * Returns OK for 0; an errno that is not in the table gives IO_ERROR. rc is 0 or -errno.
 */
uint16_t status_from_errno(int rc);
/**
 * Returns "OK", "NO_SPACE" ...; "UNKNOWN" for a number this build does not know. Static.
 */
const char *status_name(unsigned status);

#endif
