/*
 * open_dirs.h - directories that programs have open, over all loops, with their last
 * known attributes.
 *
 * exportd does not keep a removed directory for programs that have it open: it is gone,
 * about two seconds later if there are other mounts. A local file system would keep it,
 * empty and without a name, until the last close. A removed directory does not change any
 * more, so its last known attributes are enough to show it.
 *
 * Any thread; a call costs one uncontended lock, mostly just an atomic read if none is
 * open.
 */
#ifndef ROZO_ROZOMOUNT_INODE_OPEN_DIRS_H
#define ROZO_ROZOMOUNT_INODE_OPEN_DIRS_H

#include <stdbool.h>
#include <stdint.h>

struct md_attr;
struct open_dirs;

struct open_dirs *open_dirs_new(void);
void open_dirs_free(struct open_dirs *dirs);

/** Counts an open of a directory. attr: its attributes; NULL: unknown. */
void open_dirs_add(struct open_dirs *dirs, uint64_t ino, const struct md_attr *attr);
/** Counts a close; call it once per open_dirs_add(). */
void open_dirs_remove(struct open_dirs *dirs, uint64_t ino);
/** Notes attributes that exportd sent, if the inode is an open directory. */
void open_dirs_note(struct open_dirs *dirs, const struct md_attr *attr);
/**
 * Returns true if an inode that exportd no longer knows is an open directory, and its
 * attributes now.
 */
bool open_dirs_last(struct open_dirs *dirs, uint64_t ino, struct md_attr *out);

#endif
