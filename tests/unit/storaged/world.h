/*
 * world.h - for tests: a storage with a disk in memory, and a client that knows the bytes
 * it wrote.
 */
#ifndef ROZO_TEST_STORAGED_WORLD_H
#define ROZO_TEST_STORAGED_WORLD_H

#include "common/proto/rozo.pb-c.h"

#include "common/wire/record.h"
#include "storaged/ops/storage.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum { US = 3, WORLD_BLOCKS = 128 };

struct world {
    struct env_virtual v;
    struct memdisk disk;
    struct identity identity;
    struct revoked_sessions revoked;
    struct generations generations;
    struct capability_key *key;
    struct storage_config config;
    struct storage *storage;
    /* the file that requests name */
    struct file_id id;
    unsigned kind, layout, block_bytes;
    /* storages of the distribution; 0: ids 1, 2, 3 ... up to the layout's safe count */
    unsigned n_storages;
    uint32_t storages[DIST_MAX], dist_generation;
    enum rpc_role role;
    uint64_t session;
    bool auto_apply; /* commit each write and mark at once, and let it be applied */
    bool doubt;      /* doubt flag of the last read answer */
    bool hold_sent;  /* sent() of answers is not called before call_free() */
};

/* A request and, once it is done, its answer. */
struct test_call {
    struct rpc_call call; /* must be the first member */
    struct world *w;
    bool done;
    uint16_t status;
    uint8_t *msg;
    size_t msg_len;
    uint8_t *payload;
    size_t payload_len;
    uint8_t *req_msg, *req_payload;
    void (*sent)(void *arg);
    void *sent_arg;
};

void world_init(struct world *w, uint64_t seed);
void world_free(struct world *w);
/** Lets w->storage, already open, take over the journal and serve requests. */
void world_start(struct world *w);
/** Starts another process on the same disk, after a power cut or after a kill (no clean
 * stop). */
void world_restart(struct world *w, bool power_cut);
/** Makes everything stable and ends a generation, as the daemon does from time to
 * time. */
void world_settle(struct world *w);
const struct codec *world_codec(const struct world *w);

/** Sends a request; its answer comes when the world runs. Takes no ownership: bytes are
 * copied. */
struct test_call *call_start(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                             const void *payload, size_t payload_len);
struct test_call *call_start_raw(struct world *w, uint16_t op, const void *msg,
                                 size_t msg_len, const void *payload, size_t payload_len);
void call_free(struct test_call *c);
/** Runs until the call is answered, frees it, and returns the status. */
uint16_t call_finish(struct test_call *c);
/** Starts a call, runs it, and returns the status. *out keeps the answer unless it is
 * NULL. */
uint16_t call_run(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                  const void *payload, size_t payload_len, struct test_call **out);

/* A FileRef of the world's file, with all that its pointers refer to. */
struct test_ref {
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
    uint32_t storages[DIST_MAX];
    uint8_t capability[CAPABILITY_BYTES];
};
void ref_init(struct world *w, struct test_ref *r);

/* ---- records whose contents follow from projection, block and version ---- */
void record_fill(struct world *w, uint8_t *head, uint8_t *body, unsigned projection,
                 uint64_t block, uint64_t version, size_t user_bytes);

/* One block as a read answer shows it. */
struct seen {
    enum { SEEN_DATA, SEEN_HOLE, SEEN_DAMAGED } kind;
    uint64_t version;
    size_t user_bytes;
};

/** Writes n records of one version and length. Returns the status. */
uint16_t world_write(struct world *w, unsigned projection, uint64_t first, unsigned n,
                     uint64_t version, size_t user_bytes, bool sync, uint64_t *newest);
/** Starts the request that world_write() sends, and does not wait for it. */
struct test_call *world_write_start(struct world *w, unsigned projection, uint64_t first,
                                    unsigned n, uint64_t version, size_t user_bytes,
                                    bool sync);
/**
 * Reads, and checks every byte against record_fill(). A torn record counts as damaged; a
 * wrong one fails the test.
 */
uint16_t world_read(struct world *w, unsigned projection, uint64_t first, unsigned n,
                    struct seen *seen, uint32_t *present);
/** Checks that a block is of this kind and, unless it is damaged, of this version. */
void world_expect(struct world *w, unsigned projection, uint64_t block, int kind,
                  uint64_t version);
/** Reads as world_read() does, with StReadReq.at_most. */
uint16_t world_read_at_most(struct world *w, unsigned projection, uint64_t first,
                            unsigned n, uint64_t at_most, struct seen *seen);
/** Starts the request of a mark, and does not wait for it. */
struct test_call *world_mark_start(struct world *w, unsigned projection, uint64_t first,
                                   uint64_t n, uint64_t version, bool keep_newer);
uint16_t world_mark(struct world *w, unsigned projection, uint64_t first, uint64_t n,
                    uint64_t version);
/** Sends a mark with keep_newer: newer records stay above it. */
uint16_t world_mark_below(struct world *w, unsigned projection, uint64_t first,
                          uint64_t n, uint64_t version);
struct test_call *world_sync_start(struct world *w);
uint16_t world_sync(struct world *w);
uint16_t world_remove(struct world *w);
/** Commits everything up to version, as a node does. */
uint16_t world_commit(struct world *w, uint64_t version);
/** Lets time pass until the applier has run. */
void world_apply(struct world *w);
/** Sends a client's statement that version is durable, as a commit of its own. */
uint16_t world_durable(struct world *w, uint64_t version);
uint16_t world_fence(struct world *w, uint32_t epoch);
uint16_t world_drop(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                    uint32_t epoch);
/** Removes from these projections all that is damaged, or not newer than keep. */
uint16_t world_clean(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                     uint32_t projections);
/** Declares that these projections are complete. */
uint16_t world_whole(struct world *w, uint32_t whole);
Rozo__StHealthResp world_health(struct world *w);
uint16_t world_next(struct world *w, uint64_t from, uint64_t *block);
/** Gives the world's file another distribution, and sends it to the storage
 * (ST_REDIST). */
uint16_t world_redist(struct world *w, uint32_t make_partial);
/** The distribution has no place for this storage. */
uint16_t world_leave(struct world *w);
/** Sends ST_REDIST for a change that may never take effect. */
uint16_t world_prepare(struct world *w, uint32_t make_partial);
struct disk_file *world_file(struct world *w, unsigned projection);

#endif
