/*
 * open_dirs.h - directories that programs have open, over all loops, and what was last known of each.
 *
 * exportd keeps no directory for who has it open: once removed it is gone, some two seconds later where there are other mounts. Locally it
 * would stay, empty and without a name, for who has it open, until the last close. It never changes any more, so what we last knew of it is
 * enough to say so.
 *
 * Any thread; a call costs one uncontended lock, most only a look when nothing is open.
 */
#ifndef ROZO_ROZOMOUNT_INODE_OPEN_DIRS_H
#define ROZO_ROZOMOUNT_INODE_OPEN_DIRS_H

#include <stdbool.h>
#include <stdint.h>

struct md_attr;
struct opendirs;

struct opendirs *opendirs_new(void);
void opendirs_free(struct opendirs *dirs);

/** One more has it open. attr: of it; NULL: not known. */
void opendirs_add(struct opendirs *dirs, uint64_t ino, const struct md_attr *attr);
/** One less; as often as it was added. */
void opendirs_remove(struct opendirs *dirs, uint64_t ino);
/** exportd has told this: it is noted, if it is about a directory that is open. */
void opendirs_note(struct opendirs *dirs, const struct md_attr *attr);
/** exportd does not know the inode any more. True: it is open, and this is what it is now. */
bool opendirs_last(struct opendirs *dirs, uint64_t ino, struct md_attr *out);

#endif
