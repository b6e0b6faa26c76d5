/*
 * open_refs.h - which inodes this mount holds references on at exportd, over all loops.
 *
 * Kept for the day exportd does not know our session any more: it is then opened again with
 * this list. Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_OPEN_REFS_H
#define ROZO_ROZOMOUNT_SESSION_OPEN_REFS_H

#include <stddef.h>
#include <stdint.h>

struct refs;

struct refs *refs_new(void);
void refs_free(struct refs *refs);
/** One more reason to hold ino. */
void refs_add(struct refs *refs, uint64_t ino);
/** n reasons less; n no more than were added. */
void refs_remove(struct refs *refs, uint64_t ino, uint32_t n);
/** All inodes held, each once, as an array to free(); *n its length (NULL when 0). */
uint64_t *refs_list(struct refs *refs, size_t *n);

#endif
