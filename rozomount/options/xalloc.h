/*
 * xalloc.h - memory for the small structs of an operation: a few hundred bytes, no user
 * data.
 *
 * A client without that much memory cannot even answer the kernel. It logs an error and
 * aborts.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_XALLOC_H
#define ROZO_ROZOMOUNT_OPTIONS_XALLOC_H

#include <stddef.h>

/** Returns zeroed memory, never NULL. The caller frees it. */
void *xzalloc(size_t len_bytes);
/** Resizes memory as realloc() does, never returns NULL. */
void *xrealloc(void *mem, size_t len_bytes);
char *xstrdup(const char *text);

#endif
