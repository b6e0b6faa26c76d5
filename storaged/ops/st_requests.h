/*
 * st_requests.h - the entrances of storaged/ops: a handler of each request, and the hooks
 * of the journal.
 *
 * For storage.c. Handlers take the call. Thread: the storio loop.
 */
#ifndef ROZO_STORAGED_OPS_ST_REQUESTS_H
#define ROZO_STORAGED_OPS_ST_REQUESTS_H

#include "storaged/op/st_op.h"

/* The hooks of the journal, see struct journal_hooks. */
int storage_apply_records(void *storage, struct pending_file *f, unsigned projection,
                          uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                          void *arg);
int storage_apply_mark(void *storage, struct pending_file *f,
                       const struct pending_mark *mark, void (*done)(void *arg, int rc),
                       void *arg);
int storage_resolve(void *storage, struct pending_file *f,
                    void (*done)(void *arg, int rc), void *arg);

void storage_handle_write(struct storage *st, struct rpc_call *call);
void storage_handle_read(struct storage *st, struct rpc_call *call);
void storage_handle_mark(struct storage *st, struct rpc_call *call);
void storage_handle_sync(struct storage *st, struct rpc_call *call);
void storage_handle_remove(struct storage *st, struct rpc_call *call);
void storage_handle_stat(struct storage *st, struct rpc_call *call);
void storage_handle_next(struct storage *st, struct rpc_call *call);
void storage_handle_alloc(struct storage *st, struct rpc_call *call);
void storage_handle_commit(struct storage *st, struct rpc_call *call);
void storage_handle_fence(struct storage *st, struct rpc_call *call);
void storage_handle_drop(struct storage *st, struct rpc_call *call);
void storage_handle_redist(struct storage *st, struct rpc_call *call);
void storage_handle_info(struct storage *st, struct rpc_call *call);
void storage_handle_admit(struct storage *st, struct rpc_call *call);

#endif
