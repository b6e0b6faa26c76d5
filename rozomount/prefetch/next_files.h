/*
 * next_files.h - predicts which small files a program will open next.
 *
 * Programs that read a tree (copies, archives, searches, compilers) mostly open files in
 * the order of the listing. Each open costs a round trip to exportd and to k storages,
 * unless the next files are opened and read together in advance (file_prefetch.c). This
 * table only predicts the files.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_PREFETCH_NEXT_FILES_H
#define ROZO_ROZOMOUNT_PREFETCH_NEXT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NEXT_FILES_MAX = 32,           /* files returned by one call */
    NEXT_FILE_BYTES_MAX = 65536,   /* size of a small file */
    NEXT_FILES_NOTED_MAX = 16384,  /* files noted; the oldest are evicted */
    NEXT_FILES_RUN_MIN = 2,        /* run_min that a mount uses */
    NEXT_FILES_BYTES_MAX = 1 << 20 /* bytes of the files ahead of a reader */
};

struct next_files;

/**
 * Creates a table. run_min: files that must be opened in listing order before prefetch
 * starts.
 */
struct next_files *next_files_new(unsigned run_min);
void next_files_free(struct next_files *all);

struct next_file {
    uint64_t ino;
    uint64_t size; /* 1..NEXT_FILE_BYTES_MAX */
};
/**
 * Notes a part of the listing of dir: the small files behind the cookie `after`, up to
 * the cookie `to`, in order.
 */
void next_files_listed(struct next_files *all, uint64_t dir, uint64_t after, uint64_t to,
                       const struct next_file *files, size_t n);
/**
 * Notes that a program has opened ino for reading. Returns the number of files to read
 * now, and their inode numbers in inos. Each file is returned once while the program
 * keeps following the listing.
 */
unsigned next_files_opened(struct next_files *all, uint64_t ino,
                           uint64_t inos[NEXT_FILES_MAX]);

#endif
