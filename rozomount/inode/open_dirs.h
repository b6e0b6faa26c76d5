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
struct open_dirs;

struct open_dirs *open_dirs_new(void);
void open_dirs_free(struct open_dirs *dirs);

/** One more has it open. attr: of it; NULL: not known. */
void open_dirs_add(struct open_dirs *dirs, uint64_t ino, const struct md_attr *attr);
/** One less; as often as it was added. */
void open_dirs_remove(struct open_dirs *dirs, uint64_t ino);
/** exportd has told this: it is noted, if it is about a directory that is open. */
void open_dirs_note(struct open_dirs *dirs, const struct md_attr *attr);
/** exportd does not know the inode any more. True: it is open, and this is what it is now. */
bool open_dirs_last(struct open_dirs *dirs, uint64_t ino, struct md_attr *out);

#endif
