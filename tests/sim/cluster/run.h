/*
 * run.h - one run of the simulated cluster: programs, faults, checks.
 */
#ifndef ROZO_SIM_RUN_H
#define ROZO_SIM_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* Faults that may occur, or'ed. */
enum run_fault {
    FAULT_WEATHER = 1,      /* delayed, lost and repeated messages */
    FAULT_CUT = 2,          /* partitions, also in one direction */
    FAULT_KILL_STORAGE = 4, /* kills of processes */
    FAULT_KILL_EXPORTD = 8,
    FAULT_KILL_CLIENT = 16,
    FAULT_HANG = 32,      /* SIGSTOP */
    FAULT_SLOW_DISK = 64, /* slow and hanging disks */
    FAULT_POWER_STORAGE = 128,
    FAULT_POWER_EXPORTD = 256,
    FAULT_POWER_ALL = 512,
    FAULT_ROT = 1024,      /* flips bits in projection files and journals */
    FAULT_FULL = 2048,     /* disks fill up */
    FAULT_LATE = 8192,     /* messages very late and twice, all the time */
    FAULT_ERRORS = 4096,   /* reads, writes and syncs fail for a while */
    FAULT_SPOIL = 16384,   /* pages of one disk become unreadable */
    FAULT_REPLACE = 32768, /* a disk is lost, and an empty one replaces it */
    FAULT_PAGES = 65536,   /* as FAULT_SPOIL, of journals and any files, some for good */
    FAULT_LOSE = 131072,   /* disks are lost one by one, a second one during a rebuild */
    FAULT_OLD_DISK = 262144, /* with FAULT_LOSE: a replaced disk returns for a while */
    FAULT_FEW = 524288,      /* any number of storages is down at a time */
    FAULT_LAST = FAULT_FEW,
};

/* Safety measures that are left out, or'ed:
 * storaged's (enum storage_mutant) and others. */
enum run_mutant {
    RUN_MUTANTS_OF_STORAGED = 255,
    RUN_MUTANT_NO_CRC = 256,     /* records are accepted with a wrong crc, everywhere */
    RUN_MUTANT_NO_MISSED = 512,  /* missed writes of homes are not recorded */
    RUN_MUTANT_DEAF = 1024,      /* Linux ignores a mount's invalidations */
    RUN_MUTANT_QUORUM_UP = 2048, /* a write needs a quorum of the running storages only */
    RUN_MUTANT_NO_STRAYS = 4096, /* exportd does not search files of deleted inodes */
    RUN_MUTANT_GROW_FIRST = 8192, /* files get more candidates without fence and proof */
    /* Mutants of a quorum of exportds. */
    RUN_MUTANT_META_EARLY = 16384,   /* answers leave before the quorum has the change */
    RUN_MUTANT_META_LEASE = 32768,   /* answers leave without a lease */
    RUN_MUTANT_META_STAYS = 65536,   /* a deposed core is not abandoned */
    RUN_MUTANT_META_SYNC = 131072,   /* logs and votes are not synced */
    RUN_MUTANT_META_VOTE = 262144,   /* votes are not synced */
    RUN_MUTANT_META_APPLY = 524288,  /* followers apply what they have not persisted */
    RUN_MUTANT_META_JOIN = 1048576,  /* a member that lost entries takes part at once */
    RUN_MUTANT_META_START = 2097152, /* a member votes at once after its start */
    /* ... with acknowledge: memory */
    RUN_MUTANT_META_SYNCED = 4194304, /* written entries count as synced */
    RUN_MUTANT_META_DOUBT = 8388608,  /* an uncertain member takes part at once */
    RUN_MUTANT_META_COUNT = 16777216, /* losses of power are not counted */
    /* Mutants of a witness. */
    RUN_MUTANT_WITNESS_SERVES = 33554432,  /* a witness opens a core */
    RUN_MUTANT_WITNESS_KEEPS = 67108864,   /* the kv of a witness takes all keys */
    RUN_MUTANT_WITNESS_STAYS = 134217728,  /* a witness that leads hands nothing over */
    RUN_MUTANT_WITNESS_DROPS = 268435456,  /* a witness keeps no entry for others */
    RUN_MUTANT_WITNESS_SEEDS = 536870912,  /* a witness tells members to copy */
    RUN_MUTANT_WITNESS_JOINS = 1073741824, /* after a loss it asks for no barrier */
};

struct run_config {
    uint64_t seed;
    unsigned n_ops;
    unsigned layout, n_storages;
    unsigned faults;
    unsigned mutant;      /* enum run_mutant */
    bool verbose, tells;  /* print events; print every message */
    bool directories;     /* disk.h */
    bool heals;           /* storages heal, and at the end everything must be healed */
    bool names;           /* programs mostly use names */
    bool cuts;            /* programs mostly cut files, and read around their ends */
    bool direct;          /* programs mostly write with O_DIRECT */
    bool kernel;          /* a model of Linux stands before each mount: kernel.h */
    unsigned strict;      /* all mounts are equal: enum model_strictness */
    bool shared;          /* few names, and many writers per file; with strict only */
    bool inlined;         /* exportd keeps the data of small files */
    unsigned token_limit; /* per session; 0: exportd's default */
    bool locks;           /* programs take locks */
    bool xattrs;          /* programs change and read extended attributes */
    unsigned n_clients;   /* clients with programs; 0: all */
    bool old_acks;        /* until storages join, a write quorum is a read quorum */
    unsigned n_more;      /* storages that join during the run */
    unsigned n_metas;     /* exportds; more than one: a quorum */
    bool has_witness;     /* one of them is a witness */
    bool is_lazy;         /* acknowledge: memory */
    bool torn_is_fine;    /* unreadable blocks at the end are only counted */
};

struct run_result {
    unsigned n_ops, n_errors, n_torn;
    uint64_t n_events, n_units, virtual_ms, trace;
    unsigned n_faults, n_kills, n_power, n_client_deaths, n_replaced;
    unsigned n_fail_overs;       /* starts of exportd on members, but the first */
    unsigned n_behind, n_copies; /* copies of stores: entries trimmed; something lost */
    unsigned n_transfers;        /* transfers of leadership */
    /* Terms that a witness led; entries that the witness alone had for a member. */
    unsigned n_witness_terms, n_witness_fed;
    /* Starts of uncertain members; losses of power that were counted, and those that took
     * committed entries. */
    unsigned n_in_doubt, n_counted, n_lost;
    unsigned n_lost_more;       /* disks lost during the rebuild of another one */
    unsigned n_came_back;       /* replaced disks that returned */
    unsigned n_spoiled, n_worn; /* pages; n_worn: those that stay bad */
    unsigned n_doubts, n_doubts_ended, n_doubtful_reads; /* servers.h */
    uint64_t n_names;                                    /* found in listings */
    uint64_t n_peeked;           /* lookups while other programs may change the name */
    uint64_t n_ranges;           /* tokens of ranges at exportd, sum over all checks */
    uint64_t n_locks, n_signals; /* locks taken; signals to waiting programs */
    uint64_t n_xattrs, n_xattrs_asked; /* checked values; requests to exportd */
    uint64_t n_records;  /* complete and of one version at all homes, at the end */
    uint64_t bytes_most; /* largest memory of one process */
    /* Files whose data exportd got; repeated transfers; files that then outgrew it. */
    uint64_t n_inlined, n_inlined_again, n_outgrown;
    /* Answers from the kernel model's caches; and its statistics. */
    uint64_t n_kernel_names, n_kernel_attrs, n_kernel_pages, n_kernel_lists;
    uint64_t n_kernel_invalidated, n_kernel_forgotten, n_kernel_overtaken,
        n_kernel_beside;
};

/** Runs once. Prints a message and ends the process on a fault. */
void run_once(const struct run_config *config, struct run_result *out);

#endif
