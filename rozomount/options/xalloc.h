/*
 * xalloc.h - memory for the small structs of an operation: a few hundred bytes, never user data.
 *
 * A client that cannot get those cannot even say so to the kernel; it says why and stops.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_XALLOC_H
#define ROZO_ROZOMOUNT_OPTIONS_XALLOC_H

#include <stddef.h>

/** Zeroed; never NULL. free() it. */
void *xzalloc(size_t len_bytes);
/** realloc() that never fails. */
void *xrealloc(void *mem, size_t len_bytes);
char *xstrdup(const char *text);

#endif
