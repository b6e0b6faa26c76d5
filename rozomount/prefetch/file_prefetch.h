/*
 * file_prefetch.h - opens and reads small files before a program opens them.
 */
#ifndef ROZO_ROZOMOUNT_PREFETCH_FILE_PREFETCH_H
#define ROZO_ROZOMOUNT_PREFETCH_FILE_PREFETCH_H

#include "rozomount/op/mount.h"

/**
 * Notes the small files of a page of dir's listing that came with attributes. Call it
 * after the tokens of the page are noted. `after` is the cookie before the page.
 */
void file_prefetch_listed(struct mount *m, uint64_t dir, uint64_t after,
                          const Rozo__MdReaddirResp *page);
/**
 * Prefetches the files that the program will probably open next. Called on the loop that
 * owns ino, after its open for reading was answered.
 */
void file_prefetch_opened(struct loop *loop, uint64_t ino);

#endif
