/*
 * dump_source.h - gives a dump of the metadata to a client, in pieces (AD_META_DUMP).
 *
 * The store is frozen when a dump begins, so the dump is exact although the store
 * changes, with or without a quorum: the store of a member holds its place in the log,
 * and changes only by whole batches. One dump at a time; one whose client is not heard of
 * for DUMP_IDLE_MS ends. Sans-I/O, one thread.
 */
#ifndef ROZO_EXPORTD_BACKUP_DUMP_SOURCE_H
#define ROZO_EXPORTD_BACKUP_DUMP_SOURCE_H

#include "common/env/env.h"
#include "common/env/kv.h"
#include "common/rpc/rpc.h"

enum { DUMP_IDLE_MS = 30000 };

struct dump_source_config {
    struct env *env; /* borrowed */
    /** Opens a view of the store as it is now. Returns 0 or -errno. */
    int (*freeze)(void *arg, struct kv **out);
    void (*thaw)(void *arg);
    /** Returns about how many bytes the store has. */
    uint64_t (*bytes)(void *arg);
    void *arg;
};

struct dump_source;
/** Makes a source. Returns 0 or -ENOMEM. */
int dump_source_open(const struct dump_source_config *config, struct dump_source **out);
/** Sets the number of the group, for the head of dumps; 0 before. */
void dump_source_set_group(struct dump_source *s, uint32_t group);
/** Handles AD_META_DUMP: takes the call. */
void dump_source_handle(struct dump_source *s, struct rpc_call *call);
/** Ends a dump under way. NULL is fine. */
void dump_source_close(struct dump_source *s);

#endif
