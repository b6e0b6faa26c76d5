/*
 * kv_call.h - waits for calls of a kv, for code that has nothing else to do meanwhile.
 * Shell code.
 */
#ifndef ROZO_EXPORTD_DATADIR_KV_CALL_H
#define ROZO_EXPORTD_DATADIR_KV_CALL_H

#include <stdbool.h>

#include <uv.h>

#include "common/base/err.h"
#include "common/env/kv.h"

/* A call that ends with `done`. From kv_call_init() on it serves one call at a time. */
struct kv_call {
    struct kv_done done;
    uv_loop_t *loop; /* borrowed: that of the kv */
    bool is_done;
    int rc;
};

void kv_call_init(struct kv_call *c, uv_loop_t *loop);
/** Runs the loop until the call has ended. Returns 0, or its error with a text. */
int kv_call_wait(struct kv_call *c, struct err *err);
/** Syncs the kv, and waits for that. */
int kv_call_sync(struct kv_call *c, struct kv *kv, struct err *err);
/** Waits for the call, then syncs the kv. Returns the first error. */
int kv_call_wait_stable(struct kv_call *c, struct kv *kv, struct err *err);

#endif
