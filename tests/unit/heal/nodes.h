/*
 * nodes.h - some storages of which only the healers are real: a network without delay, disks in memory, and
 * a storage behind each healer that knows just enough to be healed.
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
    struct rpc_channel ch; /* first */
    struct node *from, *to;
};

struct node {
    uint32_t id;
    bool up;
    bool running; /* its healer is there */
    struct memdisk disk;
    struct kv_memory *mem;
    struct identity identity;
    struct revoked_sessions revoked;
    struct capability_key *key;
    struct healer_config config;
    struct healer *healer;
    struct link links[NODES + 1];  /* to storage i */
    uint8_t wanted[NODES + 1][16]; /* of what incarnation it is to be */
    unsigned n_open;               /* channels */
    unsigned n_served[256];        /* requests by op */
    unsigned n_whole;
    uint32_t lacks_ino; /* ST_STAT says NO_FILE of it */
    bool keeps;         /* a ruin that it is to remove: DAMAGED */
    struct heal_unsettled unsettled;
    bool has_unsettled;
};

extern struct env_virtual nodes_env;
extern struct node nodes[NODES + 1]; /* [0] is not used */

void nodes_init(uint64_t seed);
void nodes_free(void);
/** The healer's process begins, as the config says; ends cleanly; ends at once, with what it had in memory. */
void node_start(unsigned i);
void node_stop(unsigned i);
void node_crash(unsigned i);
/** All healers, with the map. */
void nodes_start_all(void);
void node_map(unsigned i, uint64_t version, unsigned n_storages);
extern unsigned nodes_lost;                       /* bitmap of ids that maps call lost */
extern uint8_t nodes_incarnations[NODES + 1][16]; /* in maps; zeros: not known */

/** Ask a healer something. The status; *answer to free() when not NULL and OK. */
uint16_t node_ask(unsigned i, enum rpc_role role, uint16_t op,
                  const ProtobufCMessage *msg, uint8_t **answer, size_t *answer_len);
Rozo__StHealthResp *node_health(unsigned i);

/** A file of layout 0 at storages first, first + 1, ... of the nodes, going round, c of them. */
struct storcli_target target_make(uint64_t ino, unsigned first);
/** Its projection p on node i; false partial: whole. */
void projection_make(unsigned i, const struct storcli_target *t, unsigned p, bool partial,
                     uint64_t blocks);
/** Another of its files on node i, all zeros: a projection by its number, or what was put aside: "damaged". */
void leftover_make(unsigned i, const struct storcli_target *t, const char *name,
                   uint64_t size);
/** Is it there, and not partial? */
bool projection_is_whole(unsigned i, const struct storcli_target *t, unsigned p);

/** ST_CHECK; ST_HEAL with a scrub (1 begins one, 2 stops it) and, unless 0, a rate: answered OK. */
uint16_t node_check(unsigned i, const struct storcli_target *t, uint64_t first,
                    uint64_t n, bool abandoned);
void node_heal(unsigned i, unsigned scrub, uint64_t rate);
uint16_t node_missed(unsigned i, const struct storcli_target *t, uint64_t first,
                     uint64_t n, uint32_t candidates, uint64_t version);
unsigned node_n_missed(unsigned i);

#endif
