/*
 * bench_fs_loads.c - the loads of `rozo bench fs`, one line each.
 */
#include <string.h>

#include "deploy/bench/bench_fs.h"

#define DATA       fsb_data_prepare, fsb_data_work, fsb_data_check
#define CREATE     fsb_create_prepare, fsb_create_work, fsb_created_check
#define MAKE       fsb_create_prepare, fsb_mkdir_work, fsb_created_check
#define TAKE       fsb_folders_prepare, fsb_rmdir_work, fsb_gone_check
#define STAT       fsb_names_prepare, fsb_stat_work, NULL
#define LIST       fsb_names_prepare, fsb_list_work, NULL
#define LIST_STAT  fsb_names_prepare, fsb_list_stat_work, NULL
#define RENAME     fsb_names_prepare, fsb_rename_work, fsb_renamed_check
#define UNLINK     fsb_names_prepare, fsb_unlink_work, fsb_gone_check
#define SMALL_READ fsb_names_prepare, fsb_small_read_work, NULL
#define COPY       fsb_tree_away_prepare, fsb_tree_copy_work, NULL
#define READ_BACK  fsb_tree_there_prepare, fsb_tree_read_work, NULL
#define DELETE     fsb_tree_there_prepare, fsb_tree_delete_work, NULL

#define KIB 1024
#define MIB (1024 * 1024)

/* In this order: some loads leave files that later ones need and then need not create. */
static const struct fsb_load loads[] = {
    /* columns: name, group, unit, prepare, work and check, jobs, bytes, flags */
    { "write 1M", "stream", FSB_MIB, DATA, 1, MIB, FSB_NEW, 0 },
    { "overwrite 1M", "stream", FSB_MIB, DATA, 1, MIB, 0, 0 },
    { "read 1M", "stream", FSB_MIB, DATA, 1, MIB, FSB_READS, 0 },
    { "reread 1M", "cached", FSB_MIB, DATA, 1, MIB, FSB_READS | FSB_WARM, 0 },
    { "write 1M direct", "stream", FSB_MIB, DATA, 1, MIB, FSB_NEW | FSB_DIRECT, 0 },
    { "read 1M direct", "stream", FSB_MIB, DATA, 1, MIB, FSB_READS | FSB_DIRECT, 0 },
    { "write 128K", "stream", FSB_MIB, DATA, 1, 128 * KIB, FSB_NEW, 0 },
    { "read 128K", "stream", FSB_MIB, DATA, 1, 128 * KIB, FSB_READS, 0 },
    { "write 4K", "stream", FSB_MIB, DATA, 1, 4 * KIB, FSB_NEW, 0 },
    { "write 1M x5", "stream", FSB_MIB, DATA, 5, MIB, FSB_NEW, 0 },
    { "read 1M x5", "stream", FSB_MIB, DATA, 5, MIB, FSB_READS, 0 },

    { "rand read 4K d1", "random", FSB_OPS, DATA, 1, 4 * KIB,
      FSB_RANDOM | FSB_READS | FSB_DIRECT, 0 },
    { "rand read 4K d16", "random", FSB_OPS, DATA, 16, 4 * KIB,
      FSB_RANDOM | FSB_READS | FSB_DIRECT, 0 },
    { "rand read 8K d1", "random", FSB_OPS, DATA, 1, 8 * KIB,
      FSB_RANDOM | FSB_READS | FSB_DIRECT, 0 },
    { "rand read 8K d16", "random", FSB_OPS, DATA, 16, 8 * KIB,
      FSB_RANDOM | FSB_READS | FSB_DIRECT, 0 },
    { "rand read 8K buf", "cached", FSB_OPS, DATA, 1, 8 * KIB, FSB_RANDOM | FSB_READS,
      0 },
    { "rand write 4K d1", "random", FSB_OPS, DATA, 1, 4 * KIB, FSB_RANDOM | FSB_DIRECT,
      0 },
    { "rand write 4K d16", "random", FSB_OPS, DATA, 16, 4 * KIB, FSB_RANDOM | FSB_DIRECT,
      0 },
    { "rand write 8K d1", "random", FSB_OPS, DATA, 1, 8 * KIB, FSB_RANDOM | FSB_DIRECT,
      0 },
    { "rand write 8K d16", "random", FSB_OPS, DATA, 16, 8 * KIB, FSB_RANDOM | FSB_DIRECT,
      0 },
    { "rand write 8K buf", "random", FSB_OPS, DATA, 1, 8 * KIB, FSB_RANDOM, 0 },

    { "write 8K fsync", "fsync", FSB_OPS, DATA, 1, 8 * KIB, FSB_SYNC_EACH, 0 },
    { "write 8K fsync x16", "fsync", FSB_OPS, DATA, 16, 8 * KIB, FSB_SYNC_EACH, 0 },
    { "8K fsync one file", "fsync", FSB_OPS, DATA, 16, 8 * KIB,
      FSB_SYNC_EACH | FSB_RANDOM, 0 },

    { "create", "meta", FSB_OPS, CREATE, 1, 0, 0, 0 },
    { "stat", "meta", FSB_OPS, STAT, 1, 0, FSB_READS, 0 },
    { "ls -l", "list", FSB_OPS, LIST_STAT, 1, 0, FSB_READS, 0 },
    { "ls", "list", FSB_OPS, LIST, 1, 0, FSB_READS | FSB_NO_LATENCY, 0 },
    { "rename", "meta", FSB_OPS, RENAME, 1, 0, 0, 0 },
    { "unlink", "meta", FSB_OPS, UNLINK, 1, 0, 0, 0 },
    { "mkdir", "meta", FSB_OPS, MAKE, 1, 0, 0, 0 },
    { "rmdir", "meta", FSB_OPS, TAKE, 1, 0, 0, 0 },
    { "create x4", "meta", FSB_OPS, CREATE, 4, 0, 0, 0 },
    { "stat x4", "meta", FSB_OPS, STAT, 4, 0, FSB_READS, 0 },
    { "ls -l x4", "list", FSB_OPS, LIST_STAT, 4, 0, FSB_READS, 0 },
    { "ls x4", "list", FSB_OPS, LIST, 4, 0, FSB_READS | FSB_NO_LATENCY, 0 },
    { "rename x4", "meta", FSB_OPS, RENAME, 4, 0, 0, 0 },
    { "unlink x4", "meta", FSB_OPS, UNLINK, 4, 0, 0, 0 },
    { "mkdir x4", "meta", FSB_OPS, MAKE, 4, 0, 0, 0 },
    { "rmdir x4", "meta", FSB_OPS, TAKE, 4, 0, 0, 0 },

    { "4K file write", "small", FSB_OPS, CREATE, 1, 4 * KIB, 0, 0 },
    { "4K file read", "small", FSB_OPS, SMALL_READ, 1, 4 * KIB, FSB_READS, 0 },
    { "16K file write", "small", FSB_OPS, CREATE, 1, 16 * KIB, 0, 0 },
    { "16K file read", "small", FSB_OPS, SMALL_READ, 1, 16 * KIB, FSB_READS, 0 },

    { "tree copy", "tree", FSB_OPS, COPY, 1, 0, 0, 0 },
    { "tree read", "tree", FSB_OPS, READ_BACK, 1, 0, FSB_READS, 0 },
    { "tree delete", "tree", FSB_OPS, DELETE, 1, 0, 0, 0 },
};

/* With --mounts: on 1, 2, .. of them at once, five jobs each, as in the papers. */
static const struct fsb_load scaled[] = {
    { "clients write 1M", "clients", FSB_MIB, DATA, 5, MIB, FSB_NEW, 1 },
    { "clients read 1M", "clients", FSB_MIB, DATA, 5, MIB, FSB_READS, 1 },
    { "clients create", "clients", FSB_OPS, CREATE, 5, 0, 0, 1 },
    { "clients stat", "clients", FSB_OPS, STAT, 5, 0, FSB_READS, 1 },
};

static bool is_wanted(const struct fsb_wish *wish, const struct fsb_load *load)
{
    for (unsigned i = 0; i < wish->n_only; i++) {
        if (strstr(load->name, wish->only[i]) != NULL ||
            strcmp(load->group, wish->only[i]) == 0)
            return true;
    }
    return wish->n_only == 0;
}

unsigned fsb_loads(const struct fsb_wish *wish, unsigned n_mounts,
                   struct fsb_load out[FSB_LOADS_MAX])
{
    unsigned n = 0;

    for (unsigned i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
        if (is_wanted(wish, &loads[i]))
            out[n++] = loads[i];
    }
    for (unsigned i = 0; i < sizeof(scaled) / sizeof(scaled[0]) && n_mounts > 1; i++) {
        for (unsigned m = 1; m <= n_mounts && is_wanted(wish, &scaled[i]); m++) {
            out[n] = scaled[i];
            out[n++].n_mounts = m;
        }
    }
    return n;
}
