/*
 * memdisk.h - a struct disk in memory, for tests: it counts, fails, fills up, and on a power cut
 * forgets, page by page, what was not synced.
 */
#ifndef ROZO_TESTS_LIB_MEMDISK_H
#define ROZO_TESTS_LIB_MEMDISK_H

#include "storaged/disk/disk.h"
#include "tests/lib/env_virtual.h"

enum { MEM_PAGE = 4096, MEM_BUCKETS = 256, MEM_FILES_MAX = 1024, MEM_OPS = 20 };

struct mem_page {
    struct mem_page *next;
    uint64_t index;
    bool here, here_durable; /* else a hole */
    bool reserved;           /* a hole that has its room */
    bool is_dirty;           /* may differ from durable */
    bool is_bad;             /* cannot be read until all of it is written */
    uint8_t now[MEM_PAGE], durable[MEM_PAGE];
};

struct disk_file {
    char path[64];
    uint64_t size, size_durable;
    uint64_t
        reserved; /* pages from the start that have their room already (DISK_ALLOCATE) */
    bool linked, name_durable; /* name_durable: survives a power cut for sure */
    unsigned n_open;
    struct mem_page *buckets[MEM_BUCKETS];
};

struct memdisk {
    struct disk disk;      /* first */
    struct env_virtual *v; /* borrowed */
    struct disk_file *files[MEM_FILES_MAX];
    unsigned n_files;
    uint64_t total, free_reported; /* what DISK_SPACE says; total 0: 1 TiB, all free */
    uint64_t pages_max;            /* real space; 0: no limit */
    uint64_t n_pages;
    unsigned n_requests; /* all so far */
    unsigned n_of[MEM_OPS];
    unsigned fail_at; /* request number (from 1) that fails; 0: none */
    int fail_rc;
    int fail_op;           /* only requests of this kind count for fail_at; -1: all */
    const char *fail_path; /* only those on files whose path begins so; NULL: all */
    unsigned fds_max;      /* open files, else an open is -EMFILE; 0: no limit */
    unsigned n_fds;        /* open files now */
    bool (*close_idle)(void *arg); /* called once before -EMFILE; may be NULL */
    void *close_idle_arg;
    unsigned cut_at; /* the power goes at this request; all from then on fail */
    bool is_cut;
    bool fails; /* every read and write */
    bool hold_syncs, hold_writes,
        hold_reads; /* they are done only at memdisk_release() */
    struct disk_req *held[16];
    unsigned n_held;
    uint8_t identity[1024];
    size_t identity_len;
};

void memdisk_init(struct memdisk *d, struct env_virtual *v);
void memdisk_free(struct memdisk *d);
/** Answer what is held back, in the order it came. */
void memdisk_release(struct memdisk *d);
/** A power cut: each unsynced page is kept, lost or torn, by chance. */
void memdisk_power_cut(struct memdisk *d);
/** Everything is durable now, as after a long while. */
void memdisk_settle(struct memdisk *d);
struct disk_file *memdisk_find(struct memdisk *d, const char *path);
/** The page that holds offset cannot be read any more. */
void memdisk_spoil(struct disk_file *f, uint64_t offset);
/** What lies there; holes and what is beyond the end give zeros. */
void memdisk_peek(const struct disk_file *f, uint64_t offset, void *buf, uint64_t len);
void memdisk_poke(struct memdisk *d, struct disk_file *f, uint64_t offset,
                  const void *buf, uint64_t len);
void memdisk_cut_file(struct disk_file *f, uint64_t size);
uint64_t memdisk_allocated(const struct disk_file *f);
/** For file segments: the file behind memdisk's disk_fd(). */
struct disk_file *memdisk_by_fd(struct memdisk *d, int fd);

#endif
