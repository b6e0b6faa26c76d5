/*
 * wire.h - a loop of our own, the node key, and channels: how the verbs talk to daemons.
 */
#ifndef ROZO_DEPLOY_CLIENT_WIRE_H
#define ROZO_DEPLOY_CLIENT_WIRE_H

#include <stdbool.h>

#include "common/base/err.h"
#include "common/rpc/rpc_tcp.h"

enum { WIRE_TICK_MS = 100 };

/* From wire_open() to wire_close(). One thread, which runs it while it waits. */
struct wire {
    uv_loop_t loop;
    struct env_uv env;
    uv_timer_t timer;
    struct rpc_keys keys;
    bool closed; /* the channel being closed is */
    void (*tick)(void *arg);
    void *tick_arg;
};

/** @param node_key path of the node key file. */
int wire_open(const char *node_key, struct wire **out, struct err *err);
/** All its channels are closed. NULL is fine. */
void wire_close(struct wire *w);
/** A channel to one daemon, as a node. Does not wait for the connection. */
int wire_connect(struct wire *w, const char *const *addrs, unsigned n_addrs,
                 struct rpc_channel **out, struct err *err);
/** Waits until it is closed. NULL is fine. */
void wire_disconnect(struct wire *w, struct rpc_channel *ch);
/** Run the loop until *done; tick(arg) comes each WIRE_TICK_MS meanwhile, and may set *done. */
void wire_run(struct wire *w, const bool *done, void (*tick)(void *arg), void *arg);

#endif
