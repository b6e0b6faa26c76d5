/*
 * rpc_loop.h - a private loop, the node key, and channels, by which the verbs talk to
 * daemons.
 */
#ifndef ROZO_DEPLOY_CLIENT_RPC_LOOP_H
#define ROZO_DEPLOY_CLIENT_RPC_LOOP_H

#include <stdbool.h>

#include "common/base/err.h"
#include "common/exportd_link/exportd_link.h"
#include "common/rpc/rpc_tcp.h"

enum { RPC_LOOP_TICK_MS = 100 };

/* The loop, from rpc_loop_open() to rpc_loop_close(). One thread, which runs it while it
 * waits. */
struct rpc_loop {
    uv_loop_t loop;
    struct env_uv env;
    uv_timer_t timer;
    struct rpc_keys keys;
    bool closed; /* the channel being closed has closed */
    void (*tick)(void *arg);
    void *tick_arg;
};

/** Opens a loop. @param node_key path of the node key file. */
int rpc_loop_open(const char *node_key, struct rpc_loop **out, struct err *err);
/** Closes the loop, whose channels are all closed. NULL is fine. */
void rpc_loop_close(struct rpc_loop *w);
/** Opens a channel to one daemon, in role NODE. Does not wait for the connection. */
int rpc_loop_connect(struct rpc_loop *w, const char *const *addrs, unsigned n_addrs,
                     struct rpc_channel **out, struct err *err);
/** Closes a channel and waits for that. NULL is fine. */
void rpc_loop_disconnect(struct rpc_loop *w, struct rpc_channel *ch);
/** Opens links to exportd, in role NODE; addrs: "HOST:PORT[,HOST:PORT...]". */
int rpc_loop_link(struct rpc_loop *w, const char *addrs, struct exportd_link **out,
                  struct err *err);
/** Closes them and waits for that. NULL is fine. */
void rpc_loop_unlink(struct rpc_loop *w, struct exportd_link *l);
/**
 * Runs the loop until *done. Calls tick(arg) every RPC_LOOP_TICK_MS meanwhile, which
 * may set *done.
 */
void rpc_loop_run(struct rpc_loop *w, const bool *done, void (*tick)(void *arg),
                  void *arg);

#endif
