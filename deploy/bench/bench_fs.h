/*
 * bench_fs.h - how fast a mounted file system is: what the files of `rozo bench fs` share.
 *
 * A load is a row of a table: what it prepares, what its jobs do while the clock runs, what is checked
 * afterwards. A place is where it is done: a folder of our own in a file system, seen through one mount or
 * several. Each load is done at one place, then at the other, then the other way around, round by round.
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
    FSB_MOUNTS_MAX = 4,
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

/* What is copied in unless the user says something else. Where it is not there that is left out. */
#define FSB_TREE "/usr/include"

enum fsb_unit { FSB_MIB, FSB_OPS }; /* figures are MiB or operations a second */

/* What the user wants. Strings are borrowed from argv. */
struct fsb_wish {
    uint64_t
        size_bytes; /* streamed by all jobs of a load together; a quarter for random I/O */
    unsigned seconds;               /* of a load that has no end of its own */
    unsigned n_files;               /* of a load of metadata, by all its jobs together */
    unsigned n_rounds;              /* 1..FSB_ROUNDS_MAX */
    const char *tree;               /* what is copied in */
    const char *only[FSB_ONLY_MAX]; /* words, one of which is in the name or the group */
    unsigned n_only;                /* 0: all */
};

/* What is in a file: every sector of 512 bytes tells which one it is, of which file and version. */
struct fsb_file {
    char name[FSB_NAME_MAX];
    uint64_t seed;
    uint64_t size_bytes; /* multiple of FSB_PAGE */
    uint8_t *versions;   /* owned; of each page, 0: never written */
};

/* Files without contents, or small ones, in one folder for each job. */
struct fsb_set {
    char name[FSB_NAME_MAX];
    unsigned n_jobs, n_each; /* folders, and files in each */
    uint32_t file_bytes;
    char prefix; /* of the names at hand; 0: there are none */
};

/* A file or folder below the tree that is copied in, by its path there; parents come first. */
struct fsb_entry {
    char *path; /* owned */
    mode_t mode;
    uint64_t size_bytes;
};

/* CPU seconds of the processes of a cluster, by kind. */
enum fsb_kind { FSB_EXPORTD, FSB_STORAGED, FSB_MOUNT, FSB_SELF, FSB_KINDS };
struct fsb_cpu {
    double user_s[FSB_KINDS], sys_s[FSB_KINDS];
    double total_s[FSB_KINDS]; /* measured by itself: finer than the other two */
};

/* Where loads are done. Zero-initialise; fsb_place_open(), fsb_place_close(). */
struct fsb_place {
    const char *mount[FSB_MOUNTS_MAX]; /* as the user named them, borrowed */
    unsigned n_mounts;
    char folder[FSB_MOUNTS_MAX]
               [PATH_MAX];    /* ours, seen through each; "" before it is made */
    struct dev_plan *cluster; /* owned; NULL: CPU of nobody is counted */
    struct fsb_file file[FSB_FILES_MAX];
    unsigned n_files;
    struct fsb_set set[FSB_SETS_MAX];
    unsigned n_sets;
    struct fsb_entry *tree; /* owned; what lies in the wish's tree */
    size_t n_entries;
    bool tree_is_there; /* a copy of it lies here */
};

struct fsb_run;

/* One thread of a load. */
struct fsb_job {
    struct fsb_run *run; /* borrowed */
    unsigned index;      /* 0..n_jobs - 1 */
    const char *folder;  /* of the place, through the mount of this job */
    struct fsb_file *file;
    struct fsb_set *set;
    uint8_t *buf; /* owned; FSB_RECORD_MAX, aligned and touched */
    int fd;       /* of file, or -1; closed after the work */
    uint64_t random, n_ops, n_bytes, end_ns;
    struct fsb_hist latency;
    int rc; /* 0 or -errno, with words in err */
    struct err err;
};

struct fsb_load {
    const char *name, *group;
    enum fsb_unit unit;
    /* Untimed, before the jobs run: files opened, caches as they should be. 0 or -errno. */
    int (*prepare)(struct fsb_run *run, struct err *err);
    /* Timed; ends early once fsb_stopped(). Failures by fsb_job_fail(). */
    void (*work)(struct fsb_job *job);
    /* Untimed, when all went well; NULL: nothing. */
    int (*check)(struct fsb_run *run, struct err *err);
    unsigned n_jobs;       /* of each mount */
    uint32_t record_bytes; /* of one read or write, or of a small file */
    unsigned flags;
    unsigned n_mounts; /* that take part; 0: one */
};

enum {
    FSB_READS = 1,  /* else it writes */
    FSB_RANDOM = 2, /* for so many seconds, all jobs in one file */
    FSB_NEW = 4,    /* in files that were not there */
    FSB_DIRECT = 8, /* O_DIRECT */
    FSB_WARM = 16,  /* what is read has been read just before */
    FSB_SYNC_EACH =
        32, /* fsync after each write, for so many seconds, a file for each job */
    FSB_NO_LATENCY = 64, /* of one operation says nothing here */
    FSB_ONCE =
        128, /* each record of a file of the wish's size, also when they are taken at random */
};

/* One load at one place, once. */
struct fsb_run {
    const struct fsb_wish *wish; /* borrowed, as all here */
    const struct fsb_load *load;
    struct fsb_place *place;
    struct fsb_job *jobs;
    unsigned n_jobs;
    uint64_t start_ns, stop_ns;
    bool first;         /* round: what was written is read back */
    atomic_bool failed; /* one of the jobs: the others end */
};

/* What it came to. */
struct fsb_sample {
    double figure, wall_s;
    uint64_t n_ops, n_bytes;
    double p50_us, p99_us, max_us; /* 0: not told */
    struct fsb_cpu cpu;
};

enum { FSB_HERE, FSB_THERE, FSB_SIDES }; /* PATH and --vs PATH */

struct fsb_row {
    const struct fsb_load *load;
    struct fsb_sample *samples[FSB_SIDES]; /* owned */
    unsigned n_samples[FSB_SIDES];
    bool impossible[FSB_SIDES]; /* O_DIRECT where there is none, no tree */
};

struct fsb_results {
    struct fsb_load loads[FSB_LOADS_MAX]; /* those wanted, one row each */
    struct fsb_row rows[FSB_LOADS_MAX];
    unsigned n_rows;
    uint64_t peak_bytes[FSB_SIDES][FSB_KINDS]; /* the largest process of a kind */
    bool warm_names; /* the kernel's entries and inodes could not be dropped: not root */
};

/* bench_fs_loads.c */

/** The loads that the wish selects, for so many mounts. Returns how many. */
unsigned fsb_loads(const struct fsb_wish *wish, unsigned n_mounts,
                   struct fsb_load out[FSB_LOADS_MAX]);

/* bench_fs.c */

/** Set by the handler of SIGINT and SIGTERM; what runs ends soon. */
extern volatile sig_atomic_t fsb_interrupted;

/** Monotonic. */
uint64_t fsb_now_ns(void);
/** Is the job's time over, or has somebody pressed ^C, or has another job failed? */
bool fsb_stopped(const struct fsb_job *job);
/** End the job with words: "WHAT: strerror". The first one counts. Returns rc. */
int fsb_job_fail(struct fsb_job *job, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** One operation is done, begun then. Returns now. */
uint64_t fsb_job_did(struct fsb_job *job, uint64_t begun_ns, uint64_t n_bytes);

/** Make our folder; path, further mounts and cluster are set. -errno with words. */
int fsb_place_open(struct fsb_place *place, struct err *err);
/** Remove all that is ours; one of zeros is fine. Returns 0, or -errno with words: what is left. */
int fsb_place_close(struct fsb_place *place, struct err *err);

/**
 * Do all loads, round by round, at one place or two (place[FSB_THERE].n_mounts is 0: none). Draws a bar.
 * @param results zeros with rows filled; freed by fsb_results_free().
 * @return 0; -EINTR: interrupted, samples so far are whole; -EIO: other bytes than were written;
 *         -errno of what failed, with words.
 */
int fsb_measure(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish,
                struct fsb_results *results, struct err *err);
void fsb_results_free(struct fsb_results *results);

/**
 * Let the kernel forget entries and inodes that nobody uses; those of the file system of this folder are
 * written out before, so that none is kept for that. False: we may not.
 */
bool fsb_forget_names(const char *folder);

/* bench_fs_data.c: files with contents. */

int fsb_data_prepare(struct fsb_run *run, struct err *err);
void fsb_data_work(struct fsb_job *job);
int fsb_data_check(struct fsb_run *run, struct err *err);
/** The file of that name, made up when unknown; NULL: no memory. All of it is unwritten then. */
struct fsb_file *fsb_file_get(struct fsb_place *place, const char *name,
                              uint64_t size_bytes);
/** The bytes of that range, whose versions are one higher from now on; multiples of 512. */
void fsb_file_fill(struct fsb_file *file, uint8_t *buf, uint64_t offset, size_t n_bytes);
/** Where the first wrong sector is, or n_bytes: all is as it was written. */
size_t fsb_file_compare(const struct fsb_file *file, const uint8_t *buf, uint64_t offset,
                        size_t n_bytes);
/** Put into FSB_RECORD_MAX bytes what all sectors share. Before each run: jobs leave other bytes there. */
void fsb_buffer_init(uint8_t *buf);

/* bench_fs_meta.c: names, and files of a few KiB. */

int fsb_create_prepare(struct fsb_run *run, struct err *err);
int fsb_names_prepare(struct fsb_run *run,
                      struct err *err); /* files are there, unknown */
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

/* bench_fs_tree.c: a tree of somebody else's. */

int fsb_tree_scan(struct fsb_place *place, const char *tree, struct err *err);
int fsb_tree_away_prepare(struct fsb_run *run, struct err *err);
int fsb_tree_there_prepare(struct fsb_run *run, struct err *err);
void fsb_tree_copy_work(struct fsb_job *job);
void fsb_tree_read_work(struct fsb_job *job);
void fsb_tree_delete_work(struct fsb_job *job);
/** Remove a folder and all in it; fine when it is not there. 0 or -errno. */
int fsb_remove(const char *path);
/** Have the kernel forget the contents of all files below. */
void fsb_forget_data_below(const char *path);

/* bench_fs_cpu.c: what daemons take. */

/** Used so far by the processes of the cluster (NULL: none) and by this one. */
void fsb_cpu_now(const struct dev_plan *cluster, struct fsb_cpu *out);
/** after - before, never below 0. */
void fsb_cpu_since(const struct fsb_cpu *before, const struct fsb_cpu *after,
                   struct fsb_cpu *out);
/** The most memory that a process of each kind ever had resident, in bytes. */
void fsb_peak_now(const struct dev_plan *cluster, uint64_t out[FSB_KINDS]);
const char *fsb_kind_name(enum fsb_kind kind);

/* bench_fs_report.c */

struct fsb_summary {
    double median, best, spread; /* spread: (most - least) / median */
    double p50_us, p99_us, max_us;
    struct fsb_cpu cpu; /* medians by kind; seconds a GiB, or microseconds an operation */
    double cpu_daemons; /* their sum without this program; 0: not counted */
};
/** Of the samples of one side. n_samples is not 0. */
void fsb_summary(const struct fsb_row *row, unsigned side, struct fsb_summary *out);
/** Of the rows that have both: the median of the ratios of rounds, here by there. */
double fsb_ratio(const struct fsb_row *row);
/** Tables, 80 columns wide, and what has to be said about them. */
void fsb_print(const struct fsb_results *results, bool vs, bool cpu, FILE *to);
/** All figures; docs/OPERATIONS.md tells the form. NULL: no memory. */
json_t *fsb_json(const struct fsb_results *results, const struct fsb_wish *wish,
                 const struct fsb_place place[FSB_SIDES]);

/* bench_fs_iozone.c */

/**
 * Measure files from 64 KiB to the size of the wish, records from 4 KiB to 1 MiB, and print what `iozone -R`
 * prints; when interrupted what there is. Errors as of fsb_measure().
 */
int fsb_iozone(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish, FILE *to,
               struct err *err);

/* bench_fs_plot.c */

/** The text of an SVG; free() it. NULL: no memory. */
char *fsb_plot(const struct fsb_results *results,
               const struct fsb_place place[FSB_SIDES]);

#endif
