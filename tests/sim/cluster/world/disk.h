/*
 * disk.h - a struct disk in simulated memory that outlives processes.
 *
 * The disk can be slow, hang, fail, be full or rot, and a power cut drops unsynced data.
 *
 * Unsynced bytes are kept or lost sector by sector, as if the writes had reached the
 * platter in any order; names likewise. The sync of one name covers no other name, or
 * (directories) all names in its directory, as file systems do. A failed sync leaves
 * pages that look good and are not stable. An unreadable page heals when the whole of it
 * is written; a worn one looks good after that, until the sync reports that the write
 * failed. Requests of a killed process may still be executed in part.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_DISK_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_DISK_H

#include "common/env/disk.h"
#include "tests/sim/cluster/world/proc.h"

enum {
    SECTOR = 512,
    PAGE = 4096,
    PATH_BYTES = 96,
    FILE_BYTES_MAX = 64 << 20,
    DISK_FDS_MAX = 4096,
    IDENTITY_BYTES_MAX = 1024,
};

struct sim_page {
    struct sim_page *next_dirty;
    uint32_t index;
    bool here;          /* false: a hole */
    bool reserved;      /* allocated, but never written */
    bool dirty;         /* `now` differs from the stable bytes */
    bool given_up;      /* a sync of it failed; later ones skip it until a new write */
    bool bad;           /* not readable until the whole page is written ... */
    bool worn;          /* ... which has no effect: bad for good */
    uint64_t stable_ns; /* time of the last sync that wrote it */
    uint8_t *stable;    /* owned; while dirty: the stable bytes, NULL: a hole */
    uint8_t now[PAGE];
};

/* A file that has a name or is open. */
struct disk_file {
    struct sim_disk *disk;
    struct disk_file *next, *prev; /* in the disk's list of files */
    struct sim_page **pages;
    uint32_t n_pages; /* length of `pages` */
    uint64_t size, size_stable;
    struct sim_page *dirty;
    unsigned n_open, n_names; /* n_names: current and stable names */
    bool failed;              /* a sync of the whole disk could not write all of it */
    bool lies;                /* mutant: syncs of it have no effect */
    int fd;                   /* descriptor, while open */
};

/* A name: its current file, and its file after a power cut. */
struct sim_name {
    struct sim_name *next; /* in its bucket */
    char path[PATH_BYTES];
    struct disk_file *now, *stable;
};

enum { NAME_BUCKETS = 256 };

/* A change of a name that is not stable yet. */
struct sim_name_change {
    struct sim_name *name, *to; /* to: new name of a rename */
    struct disk_file *file;     /* NULL: the name was removed */
    bool synced;
};

/* Current condition of a disk. */
struct disk_health {
    uint32_t delay_us;  /* upper bound of the time of a request */
    uint32_t error_ppm; /* share of reads, writes and syncs that fail with EIO */
    bool hangs;         /* no request is answered */
};

struct sim_disk {
    struct disk disk;  /* must be the first member */
    struct proc *proc; /* the process that sends the requests */
    struct disk_health health;
    struct disk_file *files;
    struct sim_name *names[NAME_BUCKETS];
    const char *lies; /* mutant: syncs of files with this in their path have no effect */
    bool directories; /* the sync of a name covers all names in its directory */
    struct sim_name_change *changes;
    unsigned n_changes, changes_room;
    struct disk_file *fds[DISK_FDS_MAX];
    struct sim_disk_wait *waits; /* requests in progress */
    uint64_t n_pages, pages_max; /* pages in use; real capacity */
    uint8_t identity[IDENTITY_BYTES_MAX];
    size_t identity_len;
    uint64_t n_requests, n_torn;
};

void sim_disk_init(struct sim_disk *d, struct proc *proc, uint64_t pages_max);
/** Ends the requests of a process that is about
 * to be killed: executed, dropped, or in part. */
void sim_disk_proc_died(struct sim_disk *d);
/** Cuts the power; call it after sim_disk_proc_died(). */
void sim_disk_power_cut(struct sim_disk *d);
/** Makes everything stable (syncfs). Returns false if a part failed. */
bool sim_disk_sync_all(struct sim_disk *d);
/** Puts an empty disk in its place; *old (unless NULL) gets the removed one. */
void sim_disk_wipe(struct sim_disk *d, struct sim_disk *old);
/** Swaps the contents of two disks. */
void sim_disk_swap(struct sim_disk *d, struct sim_disk *other);
/** Reads bytes of an open file, for file segments of answers. */
void sim_disk_read_fd(void *disk, int fd, uint64_t offset, void *buf, size_t len);
/** Flips a bit of a stable page in a file whose path
 * contains `what`. Returns false if there is none. */
bool sim_disk_rot(struct sim_disk *d, const char *what);
/** Likewise, of a page that has been stable for so long. */
bool sim_disk_rot_old(struct sim_disk *d, const char *what, uint64_t age_ns);
/** Flips a bit of the first bytes of such a page. */
bool sim_disk_rot_head(struct sim_disk *d, const char *what);
/** Makes such a page unreadable; worn: also unwritable, for good. */
bool sim_disk_spoil(struct sim_disk *d, const char *what, bool worn);
/** Damages all stable pages of files whose path contains `what`. */
void sim_disk_ruin(struct sim_disk *d, const char *what);
/** Makes all pages readable. */
void sim_disk_unspoil(struct sim_disk *d);
/** Makes all worn pages writable again. */
void sim_disk_unwear(struct sim_disk *d);
/** Calls visit for every name. */
void sim_disk_each(struct sim_disk *d,
                   void (*visit)(void *arg, const char *path, struct disk_file *f),
                   void *arg);
/** Copies current bytes; holes are zeros. */
void sim_disk_peek(const struct disk_file *f, uint64_t offset, void *buf, size_t len);

#endif
