/*
 * next_files.h - which small files follow one another in the listings of directories, and who reads them in that order.
 *
 * Programs that read a tree (copies, archives, searches, compilers) mostly open files in the order in which they were listed. Each
 * of them costs a trip to exportd and to k storages, unless those that will follow are opened and read together, before anybody asks
 * for them (file_prefetch.c). This only says which.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_PREFETCH_NEXT_FILES_H
#define ROZO_ROZOMOUNT_PREFETCH_NEXT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NEXT_FILES_MAX = 32,           /* at a time */
    NEXT_FILE_BYTES_MAX = 65536,   /* of a file that is small */
    NEXT_FILES_NOTED_MAX = 16384,  /* the oldest are forgotten */
    NEXT_FILES_RUN_MIN = 2,        /* of a mount */
    NEXT_FILES_BYTES_MAX = 1 << 20 /* of all that are ahead of a reader */
};

struct next_files;

/** run_min: so many must have been opened one after the other before any is read ahead. */
struct next_files *next_files_new(unsigned run_min);
void next_files_free(struct next_files *all);

struct next_file {
    uint64_t ino;
    uint64_t size; /* 1..NEXT_FILE_BYTES_MAX */
};
/** Part of the listing of dir: what is behind the cookie `after`, up to `to`, small files only, in order. */
void next_files_listed(struct next_files *all, uint64_t dir, uint64_t after, uint64_t to,
                       const struct next_file *files, size_t n);
/**
 * A program has opened ino to read it. Returns how many files, whose numbers are in inos, are to be read now: as long as it goes on so, each
 * once.
 */
unsigned next_files_opened(struct next_files *all, uint64_t ino,
                           uint64_t inos[NEXT_FILES_MAX]);

#endif
