/*
 * wire.h - a private loop, the node key, and channels, by which the verbs talk to
 * daemons.
 */
#ifndef ROZO_DEPLOY_CLIENT_WIRE_H
#define ROZO_DEPLOY_CLIENT_WIRE_H

#include <stdbool.h>

#include "common/base/err.h"
#include "common/rpc/rpc_tcp.h"

enum { WIRE_TICK_MS = 100 };

/* The loop, from wire_open() to wire_close(). One thread, which runs it while it
 * waits. */
struct wire {
    uv_loop_t loop;
    struct env_uv env;
    uv_timer_t timer;
    struct rpc_keys keys;
    bool closed; /* the channel being closed has closed */
    void (*tick)(void *arg);
    void *tick_arg;
};

/** Opens a loop. @param node_key path of the node key file. */
int wire_open(const char *node_key, struct wire **out, struct err *err);
/** Closes the loop, whose channels are all closed. NULL is fine. */
void wire_close(struct wire *w);
/** Opens a channel to one daemon, in role NODE. Does not wait for the connection. */
int wire_connect(struct wire *w, const char *const *addrs, unsigned n_addrs,
                 struct rpc_channel **out, struct err *err);
/** Closes a channel and waits for that. NULL is fine. */
void wire_disconnect(struct wire *w, struct rpc_channel *ch);
/**
 * Runs the loop until *done. Calls tick(arg) every WIRE_TICK_MS meanwhile, which may set
 * *done.
 */
void wire_run(struct wire *w, const bool *done, void (*tick)(void *arg), void *arg);

#endif
