/*
 * servers.h - the daemons of the simulated cluster: exportd on a kv in memory, storages on simulated
 * disks. What the shells do in the real ones (start, settle generations, save identities) is here.
 */
#ifndef ROZO_SIM_SERVERS_H
#define ROZO_SIM_SERVERS_H

#include "common/base/capability.h"
#include "exportd/requests/exportd.h"
#include "storaged/ops/storage.h"
#include "tests/sim/cluster/disk.h"
#include "tests/sim/cluster/net.h"

enum { STORAGES_MAX = 20, LOOPS_MAX = 2 };

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
    uint32_t id; /* as it was admitted */
    uint64_t boot;
    unsigned mutant; /* enum storage_mutant */
    uint64_t journal_bytes;
    struct generations_file generations_saved; /* stable */
    bool has_generations;
    char addr[32], name[24];
    const char *addrs[1];
    struct capability_key *key; /* the world's */
    struct sim_kv *kv;          /* what healing keeps */
    struct sim_data old;        /* taken out */
    bool no_healer;
    struct env_timer settle, restart; /* the world's */
    unsigned settle_life;
    uint32_t settle_ms;
    /* Of the process. */
    struct storage_process *process;
    unsigned n_starts_failed; /* a start refused what lay on the disk */
    /* Starts that found that the journal had lost what nobody can name, how many such doubts ended while the process ran, and
     * questions of readers and repairers that were answered meanwhile. */
    unsigned n_doubts, n_doubts_ended, n_doubtful_reads;
};

struct sim_exportd {
    struct host *host;
    struct sim_kv *kv;
    struct capability_key *key;
    uint64_t boot;
    struct exportd *x; /* of the process */
    unsigned token_limit;
    bool grows_first; /* of each session; 0: exportd's own */
};

struct servers {
    unsigned n_storages;
    struct sim_storage storages[STORAGES_MAX];
    struct sim_exportd exportd;
};
extern struct servers servers;

void servers_begin(unsigned n_storages, unsigned n_loops, uint64_t disk_bytes);
void servers_end(void);

void storage_node_start(struct sim_storage *s);
/** kill -9; power: the machine, too. */
void storage_node_kill(struct sim_storage *s, bool power);
/** While it is down: an empty data directory in the place of what it had; keep: which may come back. */
void storage_node_wipe(struct sim_storage *s, bool keep);
/** While it is down: what was kept and what it has now change places. */
void storage_node_swap(struct sim_storage *s);
/** Is it the one that was chosen for a place, and has not all of it yet? */
bool storage_node_is_rebuilt(const struct sim_storage *s);
bool storage_node_is_up(const struct sim_storage *s);
/** Does it know that this session is over? */
bool storage_node_has_fenced(const struct sim_storage *s, uint64_t session);

void exportd_node_start(struct sim_exportd *e);
void exportd_node_kill(struct sim_exportd *e, bool power);
bool exportd_node_is_ready(const struct sim_exportd *e);
/** The kv below it, for checks while it is down; NULL ops are never called. */
uint64_t exportd_node_n_unsynced(const struct sim_exportd *e);
/** When the last sync of its store began. */
uint64_t exportd_node_synced_ns(const struct sim_exportd *e);

#endif
