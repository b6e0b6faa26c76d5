/*
 * file_prefetch.h - small files are opened and read before a program comes to them.
 */
#ifndef ROZO_ROZOMOUNT_PREFETCH_FILE_PREFETCH_H
#define ROZO_ROZOMOUNT_PREFETCH_FILE_PREFETCH_H

#include "rozomount/op/mount.h"

/** A page of the listing of dir, of which `after` is the cookie before, came with attributes; its tokens are noted. */
void file_prefetch_listed(struct mount *m, uint64_t dir, uint64_t after,
                          const Rozo__MdReaddirResp *page);
/** A program has opened ino to read it, and is answered: those that it will probably open next are read. On ino's owner. */
void file_prefetch_opened(struct loop *loop, uint64_t ino);

#endif
