/*
 * open_refs.h - inodes on which this mount holds references at exportd, over all loops.
 *
 * Needed when exportd no longer knows our session: it is then reopened with this list.
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_OPEN_REFS_H
#define ROZO_ROZOMOUNT_SESSION_OPEN_REFS_H

#include <stddef.h>
#include <stdint.h>

struct open_refs;

struct open_refs *open_refs_new(void);
void open_refs_free(struct open_refs *refs);
/** Adds a reference to ino. */
void open_refs_add(struct open_refs *refs, uint64_t ino);
/** Removes n references from ino, at most as many as were added. */
void open_refs_remove(struct open_refs *refs, uint64_t ino, uint32_t n);
/**
 * Returns all inodes with references, each once, as an array that the caller frees; *n is
 * its length (NULL if 0).
 */
uint64_t *open_refs_list(struct open_refs *refs, size_t *n);

#endif
