/*
 * memdisk.h - a struct disk in memory, for tests.
 *
 * Requests are counted; they can fail, and the disk can be full. A power cut drops
 * unsynced data page by page.
 */
#ifndef ROZO_TESTS_LIB_MEMDISK_H
#define ROZO_TESTS_LIB_MEMDISK_H

#include "common/env/disk.h"
#include "tests/lib/env_virtual.h"

enum { MEM_PAGE = 4096, MEM_BUCKETS = 256, MEM_FILES_MAX = 1024, MEM_OPS = 20 };

struct mem_page {
    struct mem_page *next;
    uint64_t index;
    bool here, here_durable; /* false: a hole */
    bool reserved;           /* a hole with reserved space */
    bool is_dirty;           /* `now` may differ from `durable` */
    bool is_bad;             /* not readable until the whole page is written */
    uint8_t now[MEM_PAGE], durable[MEM_PAGE];
};

struct disk_file {
    char path[64];
    uint64_t size, size_durable;
    uint64_t reserved; /* pages from the start with reserved space (DISK_ALLOCATE) */
    bool linked, name_durable; /* name_durable: the name survives a power cut */
    unsigned n_open;
    struct mem_page *buckets[MEM_BUCKETS];
};

struct memdisk {
    struct disk disk;      /* must be the first member */
    struct env_virtual *v; /* borrowed */
    struct disk_file *files[MEM_FILES_MAX];
    unsigned n_files;
    uint64_t total, free_reported; /* results of DISK_SPACE; total 0: 1 TiB, all free */
    uint64_t pages_max;            /* pages of real space; 0: no limit */
    uint64_t n_pages;
    unsigned n_requests; /* submitted so far */
    unsigned n_of[MEM_OPS];
    unsigned fail_at; /* number (from 1) of the request that fails; 0: none */
    int fail_rc;
    int fail_op;           /* fail_at counts only requests of this kind; -1: all */
    const char *fail_path; /* prefix of the paths that can fail; NULL: all files */
    unsigned fds_max;      /* most open files, else an open is -EMFILE; 0: no limit */
    unsigned n_fds;        /* open files now */
    bool (*close_idle)(void *arg); /* called once before -EMFILE; may be NULL */
    void *close_idle_arg;
    /* The power fails at this request; it and all later ones fail. */
    unsigned cut_at;
    bool is_cut;
    bool fails;                               /* every read and write fails */
    bool hold_syncs, hold_writes, hold_reads; /* held until memdisk_release() */
    struct disk_req *held[16];
    unsigned n_held;
    uint8_t identity[1024];
    size_t identity_len;
};

void memdisk_init(struct memdisk *d, struct env_virtual *v);
void memdisk_free(struct memdisk *d);
/** Ends the requests that are held back, in the order of their arrival. */
void memdisk_release(struct memdisk *d);
/** Cuts the power: each unsynced page is kept, lost or torn, by chance. */
void memdisk_power_cut(struct memdisk *d);
/** Makes everything durable. */
void memdisk_settle(struct memdisk *d);
/** Returns the linked file with this path, or NULL. */
struct disk_file *memdisk_find(struct memdisk *d, const char *path);
/** Makes the page at offset unreadable. */
void memdisk_spoil(struct disk_file *f, uint64_t offset);
/** Copies the current bytes; holes and bytes beyond the end are zeros. */
void memdisk_peek(const struct disk_file *f, uint64_t offset, void *buf, uint64_t len);
/** Writes bytes directly, and makes everything durable. */
void memdisk_poke(struct memdisk *d, struct disk_file *f, uint64_t offset,
                  const void *buf, uint64_t len);
/** Cuts the file to size, durably. */
void memdisk_cut_file(struct disk_file *f, uint64_t size);
/** Returns the allocated bytes of the file, with reserved pages. */
uint64_t memdisk_allocated(const struct disk_file *f);
/** Returns the file behind a number of disk_fd(), for file segments of answers. */
struct disk_file *memdisk_by_fd(struct memdisk *d, int fd);

#endif
