/*
 * run.h - one run of the simulated cluster: programs, faults, checks.
 */
#ifndef ROZO_SIM_RUN_H
#define ROZO_SIM_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* What may go wrong, or'ed. */
enum run_fault {
    FAULT_WEATHER = 1,      /* messages late, lost, twice */
    FAULT_CUT = 2,          /* partitions, also in one direction */
    FAULT_KILL_STORAGE = 4, /* processes */
    FAULT_KILL_EXPORTD = 8,
    FAULT_KILL_CLIENT = 16,
    FAULT_HANG = 32,      /* SIGSTOP */
    FAULT_SLOW_DISK = 64, /* also hanging ones */
    FAULT_POWER_STORAGE = 128,
    FAULT_POWER_EXPORTD = 256,
    FAULT_POWER_ALL = 512,
    FAULT_ROT = 1024,      /* bits of projection files and journals */
    FAULT_FULL = 2048,     /* disks fill up */
    FAULT_LATE = 8192,     /* messages very late and twice, all the time */
    FAULT_ERRORS = 4096,   /* reads, writes, syncs fail for a while */
    FAULT_SPOIL = 16384,   /* pages of one disk cannot be read any more */
    FAULT_REPLACE = 32768, /* a disk is lost, and an empty one takes its place */
    FAULT_PAGES =
        65536, /* as FAULT_SPOIL, of journals and any other file, some for good */
    FAULT_LOSE =
        131072, /* disks are lost one after the other, a second one during a rebuild */
    FAULT_OLD_DISK =
        262144, /* with FAULT_LOSE: one that was replaced comes back for a while */
    FAULT_FEW = 524288, /* any number of storages is away at a time */
    FAULT_LAST = FAULT_FEW,
};

/* Safety measures that are left out, or'ed: those of storaged (enum storage_mutant) and ours. */
enum run_mutant {
    RUN_MUTANTS_OF_STORAGED = 255,
    RUN_MUTANT_NO_CRC = 256,    /* records are believed with a wrong crc, everywhere */
    RUN_MUTANT_NO_MISSED = 512, /* what homes missed is noted nowhere */
    RUN_MUTANT_DEAF =
        1024, /* Linux drops nothing of what a mount says is not true any more */
    RUN_MUTANT_QUORUM_UP = 2048, /* a write needs a quorum of those that are up */
    RUN_MUTANT_NO_STRAYS =
        4096, /* exportd does not look for files of inodes that are gone */
    RUN_MUTANT_GROW_FIRST = 8192, /* files get more candidates unfenced and unproved */
};

struct run_config {
    uint64_t seed;
    unsigned n_ops;
    unsigned layout, n_storages;
    unsigned faults;
    unsigned mutant;      /* enum run_mutant */
    bool verbose, tells;  /* what happens; every message */
    bool directories;     /* disk.h */
    bool heals;           /* storages heal, and in the end everything must be healed */
    bool names;           /* programs mostly look at names */
    bool cuts;            /* they mostly cut files, and read around their ends */
    bool direct;          /* they open what they write with O_DIRECT, mostly */
    bool kernel;          /* a model of Linux before each mount: kernel.h */
    unsigned strict;      /* all mounts see the same: enum model_strictness */
    bool shared;          /* few names, and many writers of a file; with strict only */
    bool inlined;         /* exportd keeps the data of small files */
    unsigned token_limit; /* of each session; 0: exportd's own */
    bool locks;           /* programs take locks */
    bool xattrs;          /* they change and look at extended attributes */
    unsigned n_clients;   /* with programs; 0: all */
    bool old_acks;        /* until storages join, writes need no more than readers */
    unsigned n_more;      /* of the storages: the cluster gets them during the run */
    bool
        torn_is_fine; /* blocks that cannot be read after all is over are counted, no more */
};

struct run_result {
    unsigned n_ops, n_errors, n_torn;
    uint64_t n_events, n_units, virtual_ms, trace;
    unsigned n_faults, n_kills, n_power, n_client_deaths, n_replaced;
    unsigned n_lost_more,
        n_came_back; /* disks lost during the rebuild of another; that had been replaced */
    unsigned n_spoiled, n_worn;                          /* pages; of these for good */
    unsigned n_doubts, n_doubts_ended, n_doubtful_reads; /* servers.h */
    uint64_t n_names;                                    /* looked for in listings */
    uint64_t n_peeked;           /* looked at while others may change them */
    uint64_t n_ranges;           /* tokens of ranges at exportd, over all looks */
    uint64_t n_locks, n_signals; /* locks taken; signals to those who wait for one */
    uint64_t n_xattrs, n_xattrs_asked; /* looked at; questions to exportd */
    uint64_t n_records;  /* at all homes, whole and of one version, in the end */
    uint64_t bytes_most; /* memory of one process */
    /* Files whose data exportd was told, how often once more, and of how many then that storages have them. */
    uint64_t n_inlined, n_inlined_again, n_outgrown;
    /* It answered by itself. */
    uint64_t n_kernel_names, n_kernel_attrs, n_kernel_pages, n_kernel_lists;
    uint64_t n_kernel_invalidated, n_kernel_forgotten, n_kernel_overtaken,
        n_kernel_beside;
};

/** Ends the process with words when something is wrong. */
void run_once(const struct run_config *config, struct run_result *out);

#endif
