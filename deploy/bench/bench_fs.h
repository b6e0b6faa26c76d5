/*
 * bench_fs.h - measures a mounted file system; shared by the files of `rozo bench fs`.
 *
 * A load is a row of a table: its preparation, the work of its jobs while the clock runs,
 * and the check afterwards. A place is where it runs: a folder of our own in a file
 * system, seen through one mount or several. Each load runs at one place, then at the
 * other, then the other way around, round by round.
 */
#ifndef ROZO_DEPLOY_BENCH_BENCH_FS_H
#define ROZO_DEPLOY_BENCH_BENCH_FS_H

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "deploy/bench/bench_fs_stats.h"
#include "deploy/dev/dev_plan.h"

enum {
    FSB_MOUNTS_MAX = 4, /* one load runs on them at once */
    FSB_PLACE_MOUNTS_MAX = 16,
    FSB_JOBS_MAX = 32,
    FSB_FILES_MAX = 128,
    FSB_SETS_MAX = 16,
    FSB_ROUNDS_MAX = 101,
    FSB_LOADS_MAX = 96,
    FSB_ONLY_MAX = 32,
    FSB_NAME_MAX = 32,
    FSB_PAGE = 4096,
    FSB_RECORD_MAX = 1 << 20,
};

/* Tree that is copied in by default. If it is missing, these loads are left out. */
#define FSB_TREE "/usr/include"

enum fsb_unit { FSB_MIB, FSB_OPS }; /* unit of figures: MiB or operations per second */

/* Options of the user. Strings are borrowed from argv. */
struct fsb_wish {
    /* Streamed by all jobs of a load together; a quarter for random I/O. */
    uint64_t size_bytes;
    unsigned seconds;  /* for a load without an end of its own */
    unsigned n_files;  /* for a load of metadata, for all its jobs together */
    unsigned n_rounds; /* 1..FSB_ROUNDS_MAX */
    const char *tree;  /* tree that is copied in */
    const char *only[FSB_ONLY_MAX]; /* words, one of which is in the name or the group */
    unsigned n_only;                /* 0: all */
};

/* A file with contents. Every sector of 512 bytes identifies itself, its file and its
 * version. */
struct fsb_file {
    char name[FSB_NAME_MAX];
    uint64_t seed;
    uint64_t size_bytes; /* multiple of FSB_PAGE */
    uint8_t *versions;   /* owned; one per page, 0: never written */
};

/* Files without contents, or small ones, in one folder per job. */
struct fsb_set {
    char name[FSB_NAME_MAX];
    unsigned n_jobs, n_each; /* folders, and files in each */
    uint32_t file_bytes;
    char prefix; /* prefix of the current names; 0: there are none */
};

/* A file or folder below the tree that is copied in, by its relative path; parents come
 * first. */
struct fsb_entry {
    char *path; /* owned */
    mode_t mode;
    uint64_t size_bytes;
};

/* CPU seconds of the processes of a cluster, by kind. */
enum fsb_kind { FSB_EXPORTD, FSB_STORAGED, FSB_MOUNT, FSB_SELF, FSB_KINDS };
struct fsb_cpu {
    double user_s[FSB_KINDS], sys_s[FSB_KINDS];
    double total_s[FSB_KINDS]; /* measured separately, with finer resolution */
};

/* A place where loads run. Zero-initialise; fsb_place_open(), fsb_place_close(). */
struct fsb_place {
    const char *mount[FSB_PLACE_MOUNTS_MAX]; /* as the user named them, borrowed */
    unsigned n_mounts;
    /* Our folder, seen through each mount; "" before it is created. */
    char folder[FSB_PLACE_MOUNTS_MAX][PATH_MAX];
    struct dev_plan *cluster; /* owned; NULL: no CPU time is counted */
    struct fsb_file file[FSB_FILES_MAX];
    unsigned n_files;
    struct fsb_set set[FSB_SETS_MAX];
    unsigned n_sets;
    struct fsb_entry *tree; /* owned; content of the wish's tree */
    size_t n_entries;
    bool tree_is_there; /* a copy of the tree is here */
};

struct fsb_run;

/* One thread of a load. */
struct fsb_job {
    struct fsb_run *run; /* borrowed */
    unsigned index;      /* 0..n_jobs - 1 */
    const char *folder;  /* folder of the place, through the mount of this job */
    struct fsb_file *file;
    struct fsb_set *set;
    uint8_t *buf; /* owned; FSB_RECORD_MAX bytes, aligned and touched */
    int fd;       /* fd of file, or -1; closed after the work */
    uint64_t random, n_ops, n_bytes, end_ns;
    struct fsb_hist latency;
    int rc; /* 0 or -errno, with a message in err */
    struct err err;
};

struct fsb_load {
    const char *name, *group;
    enum fsb_unit unit;
    /* Runs untimed before the jobs: opens files, sets up caches. Returns 0 or -errno. */
    int (*prepare)(struct fsb_run *run, struct err *err);
    /* Runs timed; ends early once fsb_stopped(). Reports errors by fsb_job_fail(). */
    void (*work)(struct fsb_job *job);
    /* Runs untimed after success; NULL: no check. */
    int (*check)(struct fsb_run *run, struct err *err);
    unsigned n_jobs;       /* per mount */
    uint32_t record_bytes; /* bytes of one read or write, or of a small file */
    unsigned flags;
    unsigned n_mounts; /* mounts that take part; 0: one */
};

enum {
    FSB_READS = 1,       /* reads; otherwise writes */
    FSB_RANDOM = 2,      /* random records for `seconds`, all jobs in one file */
    FSB_NEW = 4,         /* in files that did not exist */
    FSB_DIRECT = 8,      /* O_DIRECT */
    FSB_WARM = 16,       /* reads data that were read just before */
    FSB_SYNC_EACH = 32,  /* fsync after each write, for `seconds`, one file per job */
    FSB_NO_LATENCY = 64, /* the latency of one operation has no meaning */
    /* Each record of a file of the wish's size once, also in random order. */
    FSB_ONCE = 128,
};

/* One run of one load at one place. */
struct fsb_run {
    const struct fsb_wish *wish; /* all pointers here are borrowed */
    const struct fsb_load *load;
    struct fsb_place *place;
    struct fsb_job *jobs;
    unsigned n_jobs;
    uint64_t start_ns, stop_ns;
    bool first;         /* first round: written data are read back */
    atomic_bool failed; /* one of the jobs failed: the others end */
};

/* The result of one run. */
struct fsb_sample {
    double figure, wall_s;
    uint64_t n_ops, n_bytes;
    double p50_us, p99_us, max_us; /* 0: not reported */
    struct fsb_cpu cpu;
};

enum { FSB_HERE, FSB_THERE, FSB_SIDES }; /* PATH and --vs PATH */

struct fsb_row {
    const struct fsb_load *load;
    struct fsb_sample *samples[FSB_SIDES]; /* owned */
    unsigned n_samples[FSB_SIDES];
    bool impossible[FSB_SIDES]; /* no O_DIRECT there, or no tree */
};

struct fsb_results {
    struct fsb_load loads[FSB_LOADS_MAX]; /* the wanted ones, one row each */
    struct fsb_row rows[FSB_LOADS_MAX];
    unsigned n_rows;
    uint64_t peak_bytes[FSB_SIDES][FSB_KINDS]; /* largest process of a kind */
    /* Not root, so cached names and inodes of the kernel could not be dropped. */
    bool warm_names;
};

/* bench_fs_loads.c */

/**
 * Selects the loads of the wish, for this number of mounts. Returns how many there are.
 */
unsigned fsb_loads(const struct fsb_wish *wish, unsigned n_mounts,
                   struct fsb_load out[FSB_LOADS_MAX]);

/* bench_fs.c */

/** Set by the handler of SIGINT and SIGTERM; the current run ends soon. */
extern volatile sig_atomic_t fsb_interrupted;

/**
 * Lets the first SIGINT or SIGTERM set fsb_interrupted, so that we can clean up; the
 * second one ends the program.
 */
void fsb_catch_signals(void);
/** Returns nanoseconds of the monotonic clock. */
uint64_t fsb_now_ns(void);
/**
 * Returns whether the job must end: its time is over, the user pressed ^C, or another job
 * failed.
 */
bool fsb_stopped(const struct fsb_job *job);
/**
 * Fails the job with a message, "WHAT: strerror". Only the first one counts. Returns rc.
 */
int fsb_job_fail(struct fsb_job *job, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Counts one operation, which began at begun_ns. Returns the current time. */
uint64_t fsb_job_did(struct fsb_job *job, uint64_t begun_ns, uint64_t n_bytes);

/**
 * Adds the mounts of a list "PATH,...", which is cut up in place (NULL: none).
 * @param n_max how many the place may have.
 * @return 0; -E2BIG with a message.
 */
int fsb_place_add(struct fsb_place *place, char *list, unsigned n_max, struct err *err);
/**
 * Creates our folder; path, further mounts and cluster are set before. Returns 0, or
 * -errno with a message.
 */
int fsb_place_open(struct fsb_place *place, struct err *err);
/**
 * Removes all that is ours; a place of zeros is fine. Returns 0, or -errno with a message
 * about what is left.
 */
int fsb_place_close(struct fsb_place *place, struct err *err);

/**
 * Runs all loads, round by round, at one place or two (place[FSB_THERE].n_mounts is 0:
 * none). Draws a bar.
 * @param results zeros with rows filled; freed by fsb_results_free().
 * @return 0; -EINTR: interrupted, samples so far are complete; -EIO: read other bytes
 * than were written; other -errno with a message.
 */
int fsb_measure(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish,
                struct fsb_results *results, struct err *err);
void fsb_results_free(struct fsb_results *results);

/**
 * Makes the kernel drop unused cached names and inodes; writes out those of this folder's
 * file system before, so that none is kept for that. Returns false if it is not
 * permitted.
 */
bool fsb_forget_names(const char *folder);

/* bench_fs_data.c: files with contents. */

int fsb_data_prepare(struct fsb_run *run, struct err *err);
void fsb_data_work(struct fsb_job *job);
int fsb_data_check(struct fsb_run *run, struct err *err);
/**
 * Returns the file of that name, created as all unwritten if new; NULL: out of memory.
 */
struct fsb_file *fsb_file_get(struct fsb_place *place, const char *name,
                              uint64_t size_bytes);
/** Fills buf with the next version of that range; multiples of 512. */
void fsb_file_fill(struct fsb_file *file, uint8_t *buf, uint64_t offset, size_t n_bytes);
/** Returns the offset of the first wrong sector, or n_bytes if all is as written. */
size_t fsb_file_compare(const struct fsb_file *file, const uint8_t *buf, uint64_t offset,
                        size_t n_bytes);
/**
 * Fills FSB_RECORD_MAX bytes with the part that all sectors share. Before each run, since
 * jobs leave other bytes there.
 */
void fsb_buffer_init(uint8_t *buf);

/* bench_fs_meta.c: names, and files of a few KiB. */

int fsb_create_prepare(struct fsb_run *run, struct err *err);
/* Files exist, their names are not cached. */
int fsb_names_prepare(struct fsb_run *run, struct err *err);
int fsb_folders_prepare(struct fsb_run *run, struct err *err);
void fsb_create_work(struct fsb_job *job);
void fsb_stat_work(struct fsb_job *job);
void fsb_list_work(struct fsb_job *job);
void fsb_list_stat_work(struct fsb_job *job);
void fsb_rename_work(struct fsb_job *job);
void fsb_unlink_work(struct fsb_job *job);
void fsb_mkdir_work(struct fsb_job *job);
void fsb_rmdir_work(struct fsb_job *job);
void fsb_small_read_work(struct fsb_job *job);
int fsb_created_check(struct fsb_run *run, struct err *err);
int fsb_renamed_check(struct fsb_run *run, struct err *err);
int fsb_gone_check(struct fsb_run *run, struct err *err);

/* bench_fs_tree.c: the user's tree. */

int fsb_tree_scan(struct fsb_place *place, const char *tree, struct err *err);
int fsb_tree_away_prepare(struct fsb_run *run, struct err *err);
int fsb_tree_there_prepare(struct fsb_run *run, struct err *err);
void fsb_tree_copy_work(struct fsb_job *job);
void fsb_tree_read_work(struct fsb_job *job);
void fsb_tree_delete_work(struct fsb_job *job);
/** Removes a folder and all in it; a missing one is fine. Returns 0 or -errno. */
int fsb_remove(const char *path);
/** Makes the kernel drop the cached contents of all files below. */
void fsb_forget_data_below(const char *path);

/* bench_fs_cpu.c: CPU time and memory of daemons. */

/**
 * Gets the CPU time used so far by the processes of the cluster (NULL: none) and by this
 * one.
 */
void fsb_cpu_now(const struct dev_plan *cluster, struct fsb_cpu *out);
/** Computes after - before, never below 0. */
void fsb_cpu_since(const struct fsb_cpu *before, const struct fsb_cpu *after,
                   struct fsb_cpu *out);
/** Gets the largest resident memory that a process of each kind ever had, in bytes. */
void fsb_peak_now(const struct dev_plan *cluster, uint64_t out[FSB_KINDS]);
const char *fsb_kind_name(enum fsb_kind kind);

/* bench_fs_report.c */

struct fsb_summary {
    double median, best, spread; /* spread: (most - least) / median */
    double p50_us, p99_us, max_us;
    /* Medians by kind; seconds per GiB, or microseconds per operation. */
    struct fsb_cpu cpu;
    double cpu_daemons; /* sum without this program; 0: not counted */
};
/** Summarises the samples of one side. n_samples is not 0. */
void fsb_summary(const struct fsb_row *row, unsigned side, struct fsb_summary *out);
/**
 * Returns the median over the rounds of the ratio here by there. The row must have both.
 */
double fsb_ratio(const struct fsb_row *row);
/** Prints tables, 80 columns wide, and notes about them. */
void fsb_print(const struct fsb_results *results, bool vs, bool cpu, FILE *to);
/** Returns all figures; docs/OPERATIONS.md has the form. NULL: out of memory. */
json_t *fsb_json(const struct fsb_results *results, const struct fsb_wish *wish,
                 const struct fsb_place place[FSB_SIDES]);

/* bench_fs_iozone.c */

/**
 * Measures files from 64 KiB to the size of the wish, records from 4 KiB to 1 MiB, and
 * prints a report like `iozone -R`; if interrupted, what is there. Errors as of
 * fsb_measure().
 */
int fsb_iozone(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish, FILE *to,
               struct err *err);

/* bench_fs_plot.c */

/** Returns the text of an SVG, to be freed; NULL: out of memory. */
char *fsb_plot(const struct fsb_results *results,
               const struct fsb_place place[FSB_SIDES]);

#endif
