/*
 * servers.h - the storages of the simulated cluster, on simulated disks; metas.h has
 * exportd.
 *
 * It does the work of the real daemons' shells (start, saving of generations and
 * identities).
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_SERVERS_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_SERVERS_H

#include "common/wire/capability.h"
#include "storaged/ops/storage.h"
#include "tests/sim/cluster/world/disk.h"
#include "tests/sim/cluster/world/net.h"

enum { STORAGES_MAX = 20, LOOPS_MAX = 2 };

/* Key that all daemons share: 32 bytes. */
#define SIM_NODE_KEY \
    {                \
        9, 8, 7      \
    }

/* A data directory that is not in use. */
struct sim_data {
    bool here;
    struct sim_disk disk;
    struct generations_file generations_saved;
    bool has_generations;
    struct sim_kv *kv;
};

/* A storage daemon and its machine. */
struct sim_storage {
    struct host *host;
    struct sim_disk disk;
    unsigned index, n_loops;
    uint32_t id; /* as exportd admitted it */
    uint64_t boot;
    unsigned mutant; /* enum storage_mutant */
    uint64_t journal_bytes;
    struct generations_file generations_saved; /* saved durably */
    bool has_generations;
    char addr[32], name[24];
    const char *addrs[1];
    struct capability_key *key; /* owned by the world */
    struct sim_kv *kv;          /* state of healing */
    struct sim_data old;        /* contents of the removed disk */
    bool no_healer;
    struct env_timer stable_timer, restart; /* owned by the world */
    unsigned stable_life; /* process life in which stable_timer was started */
    uint32_t uncommitted_ms;
    /* State of the process. */
    struct storage_process *process;
    unsigned n_starts_failed; /* starts that refused the contents of the disk */
    /* Starts with a journal that had lost unknown records; those resolved while the
     * process ran; requests of readers and repairers answered before that. */
    unsigned n_doubts, n_doubts_ended, n_doubtful_reads;
};

struct servers {
    unsigned n_storages;
    struct sim_storage storages[STORAGES_MAX];
};
extern struct servers servers;

void servers_begin(unsigned n_storages, unsigned n_loops, uint64_t disk_bytes);
void servers_end(void);

void storage_node_start(struct sim_storage *s);
/** Kills the process as kill -9; power: cuts the machine's power as well. */
void storage_node_kill(struct sim_storage *s, bool power);
/** Replaces the data directory of a stopped storage
 * by an empty one; keep: the old one can return. */
void storage_node_wipe(struct sim_storage *s, bool keep);
/** Swaps the kept data directory of a stopped storage with its current one. */
void storage_node_swap(struct sim_storage *s);
/** Takes the id that exportd gave the storage, from its answer to AD_STORAGE_ADD. */
void storage_node_added(struct sim_storage *s, const uint8_t *msg, size_t len);
/** Tells whether the storage was chosen as a replacement and is not fully rebuilt yet. */
bool storage_node_is_rebuilt(const struct sim_storage *s);
bool storage_node_is_up(const struct sim_storage *s);
/** Tells whether the storage knows that this session is over. */
bool storage_node_has_fenced(const struct sim_storage *s, uint64_t session);

#endif
