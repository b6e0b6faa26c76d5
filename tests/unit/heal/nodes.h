/*
 * nodes.h - some storages of which only the healers are real: a network without delay,
 * disks in memory, and behind each healer a storage that does just enough to be healed.
 */
#ifndef ROZO_TEST_HEAL_NODES_H
#define ROZO_TEST_HEAL_NODES_H

#include "storaged/heal/healer.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/heal/fake_repair.h"
#include "tests/unit/unit.h"

enum { NODES = 5 }; /* storages 1..NODES */

struct node;

struct link {
    struct rpc_channel ch; /* must be the first member */
    struct node *from, *to;
};

struct node {
    uint32_t id;
    bool up;
    bool running; /* the healer runs */
    bool stopping, stopped;
    struct memdisk disk;
    struct kv_memory *mem;
    struct identity identity;
    struct revoked_sessions revoked;
    struct capability_key *key;
    struct healer_config config;
    struct healer *healer;
    struct link links[NODES + 1];  /* [i]: to storage i */
    uint8_t wanted[NODES + 1][16]; /* incarnation that the channel requires */
    unsigned n_open;               /* open channels */
    unsigned n_served[256];        /* requests served, by op */
    unsigned n_whole;
    uint32_t lacks_ino; /* ST_STAT answers NO_FILE for this inode */
    bool keeps;         /* answers a removal of a corrupt file with DAMAGED */
    struct heal_uncommitted uncommitted;
    bool has_uncommitted;
};

extern struct env_virtual nodes_env;
extern struct node nodes[NODES + 1]; /* [0] is not used */

void nodes_init(uint64_t seed);
void nodes_free(void);
/** Frees the nodes after a test. */
int nodes_teardown(void **state);
/** Lets time pass. */
void run_ms(uint64_t ms);
/** Starts the healer's process as the config says; stops it cleanly; kills it, with all
 * that it had in memory. */
void node_start(unsigned i);
/** Asks the healer to stop; node_stop() must follow. */
void node_stop_begin(unsigned i);
void node_stop(unsigned i);
void node_crash(unsigned i);
/** Starts all healers, and sends them the map. */
void nodes_start_all(void);
void node_map(unsigned i, uint64_t version, unsigned n_storages);
/* bitmap of ids that maps declare lost */
extern unsigned nodes_lost;
/* bytes per second that maps say are reserved for streams */
extern uint64_t nodes_reserved;
/* Session in the frames of node_ask(). */
extern uint64_t nodes_session;
/* incarnations in maps; zeros: unknown */
extern uint8_t nodes_incarnations[NODES + 1][16];

/** Sends a request to a healer. Returns the status; *answer is owned by the caller if it
 * is OK and answer is not NULL. */
uint16_t node_ask(unsigned i, enum rpc_role role, uint16_t op,
                  const ProtobufCMessage *msg, uint8_t **answer, size_t *answer_len);
Rozo__StHealthResp *node_health(unsigned i);

/** Returns the target of a file of layout 0, at storages first, first + 1, ... modulo
 * NODES. */
struct storcli_target target_make(uint64_t ino, unsigned first);
/** Makes projection p of the file on node i; partial false: complete. */
void projection_make(unsigned i, const struct storcli_target *t, unsigned p, bool partial,
                     uint64_t blocks);
/** Makes another file of the target on node i, all zeros: a projection named by its
 * number, or a quarantined file: "damaged". */
void leftover_make(unsigned i, const struct storcli_target *t, const char *name,
                   uint64_t size);
/** Returns whether the projection exists and is not partial. */
bool projection_is_whole(unsigned i, const struct storcli_target *t, unsigned p);

/** Sends ST_CHECK; then ST_HEAL with a scrub (1 starts one, 2 stops it) and, unless it is
 * 0, a rate, which must be answered OK. */
uint16_t node_check(unsigned i, const struct storcli_target *t, uint64_t first,
                    uint64_t n, bool abandoned);
void node_heal(unsigned i, unsigned scrub, uint64_t rate);
uint16_t node_missed(unsigned i, const struct storcli_target *t, uint64_t first,
                     uint64_t n, uint32_t candidates, uint64_t version);
unsigned node_n_missed(unsigned i);

#endif
