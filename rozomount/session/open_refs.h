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

struct open_refs;

struct open_refs *open_refs_new(void);
void open_refs_free(struct open_refs *refs);
/** One more reason to hold ino. */
void open_refs_add(struct open_refs *refs, uint64_t ino);
/** n reasons less; n no more than were added. */
void open_refs_remove(struct open_refs *refs, uint64_t ino, uint32_t n);
/** All inodes held, each once, as an array to free(); *n its length (NULL when 0). */
uint64_t *open_refs_list(struct open_refs *refs, size_t *n);

#endif
