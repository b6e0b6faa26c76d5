/*
 * disk.h - a struct disk in simulated memory that outlives processes: slow, hanging, failing, full,
 * rotting, and forgetful of what was not synced when its power goes.
 *
 * Unsynced bytes are kept or lost sector by sector, each as if the writes had reached the platter in
 * any order; names likewise; a sync of one
 * covers no other, or (directories) all that lie in its directory, too, as file systems do. A sync that fails leaves pages
 * behind that look well and are not stable. A page that cannot be read heals when the whole of it is written; one
 * that is worn looks well then, until the sync says that it did not get there. Requests of a process that is killed
 * may still be carried out, in part.
 */
#ifndef ROZO_SIM_DISK_H
#define ROZO_SIM_DISK_H

#include "storaged/disk/disk.h"
#include "tests/sim/cluster/proc.h"

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
    bool here;     /* else a hole */
    bool reserved; /* but nothing was written there yet */
    bool dirty;    /* differs from what is stable */
    bool
        given_up; /* a sync of it failed: no later one takes it along, unless it is written again */
    bool bad;        /* cannot be read, until the whole of it is written ... */
    bool worn;       /* ... which takes no effect: bad for good */
    uint8_t *stable; /* while dirty: NULL is a hole */
    uint8_t now[PAGE];
};

/* A file, named or only open. */
struct disk_file {
    struct sim_disk *disk;
    struct disk_file *next, *prev; /* all of the disk */
    struct sim_page **pages;
    uint32_t n_pages; /* room */
    uint64_t size, size_stable;
    struct sim_page *dirty;
    unsigned n_open, n_names; /* names: now and stable ones */
    bool failed;              /* a sync of the whole disk could not write some of it */
    int fd;                   /* while open */
};

/* A name, as everybody sees it and as it would be after a power cut. */
struct sim_name {
    struct sim_name *next; /* in its bucket */
    char path[PATH_BYTES];
    struct disk_file *now, *stable;
};

enum { NAME_BUCKETS = 256 };

/* A change of names that is not on stable storage. */
struct sim_name_change {
    struct sim_name *name, *to; /* to: of a rename */
    struct disk_file *file;     /* NULL: removed */
    bool synced;
};

/* How it is doing. */
struct disk_health {
    uint32_t delay_us;  /* a request takes up to this long */
    uint32_t error_ppm; /* of requests fail with EIO (reads, writes, syncs) */
    bool hangs;         /* nothing is answered */
};

struct sim_disk {
    struct disk disk;  /* first */
    struct proc *proc; /* whose requests these are */
    struct disk_health health;
    struct disk_file *files;
    struct sim_name *names[NAME_BUCKETS];
    bool directories; /* a sync of a name covers all in its directory */
    struct sim_name_change *changes;
    unsigned n_changes, changes_room;
    struct disk_file *fds[DISK_FDS_MAX];
    struct sim_disk_wait *waits; /* requests under way */
    uint64_t n_pages, pages_max; /* in use; real room */
    uint8_t identity[IDENTITY_BYTES_MAX];
    size_t identity_len;
    uint64_t n_requests, n_torn;
};

void sim_disk_init(struct sim_disk *d, struct proc *proc, uint64_t pages_max);
/** The process is about to be killed: what it asked for happens, or not, or in part. */
void sim_disk_proc_died(struct sim_disk *d);
/** The power failed: after sim_disk_proc_died(). */
void sim_disk_power_cut(struct sim_disk *d);
/** Everything is stable (syncfs). False: not everything. */
bool sim_disk_sync_all(struct sim_disk *d);
/** An empty disk in its place; *old, if not NULL: what was taken out. */
void sim_disk_wipe(struct sim_disk *d, struct sim_disk *old);
/** Each takes the place of the other. */
void sim_disk_swap(struct sim_disk *d, struct sim_disk *other);
/** For file segments of answers. */
void sim_disk_read_fd(void *disk, int fd, uint64_t offset, void *buf, size_t len);
/** Flip a bit of a page that is stable, in a file whose path contains `what`; false: none there. */
bool sim_disk_rot(struct sim_disk *d, const char *what);
/** A page like that cannot be read any more; worn: nor ever be written again. */
bool sim_disk_spoil(struct sim_disk *d, const char *what, bool worn);
/** What is worn can be written again. */
void sim_disk_unwear(struct sim_disk *d);
/** Call visit for every name. */
void sim_disk_each(struct sim_disk *d,
                   void (*visit)(void *arg, const char *path, struct disk_file *f),
                   void *arg);
/** Zeros where nothing is. */
void sim_disk_peek(const struct disk_file *f, uint64_t offset, void *buf, size_t len);

#endif
