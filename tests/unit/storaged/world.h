/*
 * world.h - a storage with a disk in memory and a client that knows what it wrote, for tests.
 */
#ifndef ROZO_TEST_STORAGED_WORLD_H
#define ROZO_TEST_STORAGED_WORLD_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/record.h"
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
    /* The file requests are about. */
    struct file_id id;
    unsigned kind, layout, block_bytes;
    unsigned n_storages; /* 0: 1, 2, 3 ... up to what is safe */
    uint32_t storages[DIST_MAX], dist_generation;
    enum rpc_role role;
    uint64_t session;
    bool auto_apply; /* after each write and mark: commit it, and let it be applied */
    bool doubt;      /* what the last read said */
    bool hold_sent; /* answers with file segments are not sent before world_send_held() */
};

/* A request and, once done, its answer. */
struct test_call {
    struct rpc_call call; /* first */
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
/** w->storage was opened: it takes over the journal and serves. */
void world_start(struct world *w);
/** Another process on the same disk; with a power cut in between, or a kill (no clean stop). */
void world_restart(struct world *w, bool power_cut);
/** Everything is on stable storage and a generation ends, as the daemon does now and then. */
void world_settle(struct world *w);
const struct codec *world_codec(const struct world *w);

/** Send; the answer comes when the world runs. Takes nothing; bytes are copied. */
struct test_call *call_start(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                             const void *payload, size_t payload_len);
struct test_call *call_start_raw(struct world *w, uint16_t op, const void *msg,
                                 size_t msg_len, const void *payload, size_t payload_len);
void call_free(struct test_call *c);
/** Run until it is answered, give the status, free it. */
uint16_t call_finish(struct test_call *c);
/** Start, run, give the status; *out keeps the answer when not NULL. */
uint16_t call_run(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                  const void *payload, size_t payload_len, struct test_call **out);

/* A FileRef of the world's file with everything it points at. */
struct test_ref {
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
    uint32_t storages[DIST_MAX];
    uint8_t capability[CAPABILITY_BYTES];
};
void ref_init(struct world *w, struct test_ref *r);

/* ---- one record's contents follow from what it is ---- */
void record_fill(struct world *w, uint8_t *head, uint8_t *body, unsigned projection,
                 uint64_t block, uint64_t version, size_t user_bytes);

/* What a read said of one block. */
struct seen {
    enum { SEEN_DATA, SEEN_HOLE, SEEN_DAMAGED } kind;
    uint64_t version;
    size_t user_bytes;
};

/** n records of one version and length. Returns the status. */
uint16_t world_write(struct world *w, unsigned projection, uint64_t first, unsigned n,
                     uint64_t version, size_t user_bytes, bool sync, uint64_t *newest);
/** The request of that, to be started by hand. */
struct test_call *world_write_start(struct world *w, unsigned projection, uint64_t first,
                                    unsigned n, uint64_t version, size_t user_bytes,
                                    bool sync);
/**
 * Read and check every byte against what record_fill() made; a torn record counts as damaged,
 * a wrong one fails the test.
 */
uint16_t world_read(struct world *w, unsigned projection, uint64_t first, unsigned n,
                    struct seen *seen, uint32_t *present);
/** One block is of this kind and, unless it is damaged, of this version. */
void world_expect(struct world *w, unsigned projection, uint64_t block, int kind,
                  uint64_t version);
/** The same with StReadReq.at_most. */
uint16_t world_read_at_most(struct world *w, unsigned projection, uint64_t first,
                            unsigned n, uint64_t at_most, struct seen *seen);
/** The request of a mark, to be started by hand. */
struct test_call *world_mark_start(struct world *w, unsigned projection, uint64_t first,
                                   uint64_t n, uint64_t version, bool keep_newer);
uint16_t world_mark(struct world *w, unsigned projection, uint64_t first, uint64_t n,
                    uint64_t version);
/** keep_newer: a mark that goes below what is newer. */
uint16_t world_mark_below(struct world *w, unsigned projection, uint64_t first,
                          uint64_t n, uint64_t version);
struct test_call *world_sync_start(struct world *w);
uint16_t world_sync(struct world *w);
uint16_t world_remove(struct world *w);
/** Everything up to version is durable: as a node says it. */
uint16_t world_commit(struct world *w, uint64_t version);
/** Time for the applier. */
void world_apply(struct world *w);
/** What a client says is durable, in a commit of its own. */
uint16_t world_durable(struct world *w, uint64_t version);
uint16_t world_fence(struct world *w, uint32_t epoch);
uint16_t world_drop(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                    uint32_t epoch);
/** Of these projections, what is not newer than keep, or damaged. */
uint16_t world_clean(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                     uint32_t projections);
/** These projections have all that they should. */
uint16_t world_whole(struct world *w, uint32_t whole);
Rozo__StHealthResp world_health(struct world *w);
uint16_t world_next(struct world *w, uint64_t from, uint64_t *block);
/** The distribution of the world's file is another one from now on; so it is told to the storage. */
uint16_t world_redist(struct world *w, uint32_t make_partial);
/** The distribution has no place for this storage. */
uint16_t world_leave(struct world *w);
/** The same for a change that may never take effect. */
uint16_t world_prepare(struct world *w, uint32_t make_partial);
struct disk_file *world_file(struct world *w, unsigned projection);

#endif
