/*
 * rpc_tcp.h - the rpc transport over TCP: frames, Hello with mutual proof of a key, links.
 *
 * Shell code: libuv, one loop a thread. A server listens on any number of addresses and turns
 * frames into rpc_calls; a client makes one rpc_channel per peer out of `links` TCP connections
 * to each of its addresses. Frames and Hello are specified in docs/FORMATS.md.
 */
#ifndef ROZO_COMMON_RPC_RPC_TCP_H
#define ROZO_COMMON_RPC_RPC_TCP_H

#include <uv.h>

#include "common/base/err.h"
#include "common/env/env_uv.h"
#include "common/rpc/rpc.h"

enum {
    RPC_KEY_BYTES = 32,
    RPC_CLUSTER_ID_BYTES = 16,
    RPC_INCARNATION_BYTES = 16,
    RPC_ADDR_MAX = 16,      /* addresses of one peer */
    RPC_ADDR_TEXT_MAX = 80, /* "host:port", "[v6]:port" */
};

/* The secrets a process knows. A node knows both, a client only its own. */
struct rpc_keys {
    bool has_node, has_client;
    uint8_t node[RPC_KEY_BYTES];
    uint8_t client[RPC_KEY_BYTES];
};

/**
 * Read a key file: 64 hex digits and a newline, mode 0600 or stricter.
 * @param node false: it holds the client key; true: it holds the node key.
 * May be called twice to fill both.
 */
int rpc_keys_load(struct rpc_keys *keys, bool node, const char *path, struct err *err);

struct rpc_server;
struct rpc_server_config {
    const struct rpc_keys *keys; /* borrowed; both must be there */
    const char *name;   /* who we are in Hello and in logs, "storaged"; borrowed */
    uint32_t conns_max; /* further connections are refused; 0: 4096 */
    uint64_t
        memory_max; /* bytes of requests and unsent answers, all connections; above it reading pauses (I9); 0: 256 MiB */
    rpc_handler_cb *handler;
    void *arg;
    void (*conn_closed)(
        void *arg,
        uint64_t conn_id); /* may be NULL; calls of it may still be unanswered */
    const uint8_t
        *cluster_id; /* RPC_CLUSTER_ID_BYTES, copied; NULL or zeros: not known yet */
    const uint8_t
        *incarnation; /* RPC_INCARNATION_BYTES, copied: of its data; NULL: it has none */
};

/**
 * Listens on each of addrs ("host:port", port 0: any). A name stands for all its addresses that
 * this machine has, with one port; "*" for all addresses, "[::]" for all, IPv4 included.
 * err names the address that failed, and why.
 */
int rpc_server_open(struct env_uv *env, const struct rpc_server_config *config,
                    const char *const *addrs, unsigned n_addrs, struct rpc_server **out,
                    struct err *err);
/** The port really listened on, the same for all that a name stands for. */
uint16_t rpc_server_port(const struct rpc_server *server, unsigned addr_index);
/** The cluster id for Hellos from now on (a storage learns it when it is admitted). */
void rpc_server_set_cluster_id(struct rpc_server *server, const uint8_t *cluster_id);
/** At most so many connections from now on; those that are open stay. */
void rpc_server_set_conns_max(struct rpc_server *server, unsigned conns_max);
/** Stop listening, close connections, then closed(arg). Unanswered calls may still be replied to. */
void rpc_server_close(struct rpc_server *server, void (*closed)(void *arg), void *arg);

struct rpc_channel_config {
    const struct rpc_keys *keys; /* borrowed */
    enum rpc_role role;          /* which key we prove */
    const char *name;            /* who we are */
    /* Copied. Of a name all addresses are tried in turn, until one answers as it must. */
    const char *const *addrs;
    unsigned n_addrs;        /* 1..RPC_ADDR_MAX */
    unsigned links_per_addr; /* 0: 1 */
    uint32_t probe_ms; /* a silent link with requests out is suspect after this; 0: 500 */
    uint64_t queue_max; /* bytes queued and not answered; above it requests wait in
                                    order of arrival; 0: 64 MiB */
    const uint8_t
        *cluster_id; /* RPC_CLUSTER_ID_BYTES, copied; NULL or zeros: not known yet */
    /* RPC_INCARNATION_BYTES, copied: a peer that says it has another one is as good as none; NULL or
     * zeros: any will do. */
    const uint8_t *incarnation;
};

/**
 * Make a channel; connecting starts at once, broken links are tried again for ever (50 ms,
 * doubling to 2 s). health() is RPC_UP from the first link's Hello. A peer that stays silent
 * while requests or probes are out turns RPC_SUSPECT after probe_ms, back RPC_UP at its next
 * byte; silent for 20 x probe_ms (4 x when another link of the channel hears its peer): the link
 * is closed and its requests move to others, or wait for one until their deadline.
 */
int rpc_tcp_channel_open(struct env_uv *env, const struct rpc_channel_config *config,
                         struct rpc_channel **out, struct err *err);
/** Outstanding requests end with -ENOTCONN (posted); then closed(arg). */
void rpc_tcp_channel_close(struct rpc_channel *ch, void (*closed)(void *arg), void *arg);
/** The session of requests that name none, from now on. */
void rpc_tcp_channel_set_session(struct rpc_channel *ch, uint64_t session);
/** Called with (arg) each time the first link of the channel comes up. */
void rpc_tcp_channel_on_up(struct rpc_channel *ch, void (*fn)(void *arg), void *arg);
/**
 * Why the last link failed, "" if none did: "connect to 127.0.0.1:1: Connection refused", or
 * "connect to NAME:1: 127.0.0.1:1: Connection refused; [::1]:1: ...".
 */
const char *rpc_tcp_channel_last_error(const struct rpc_channel *ch);
/** Links that are up, and all of them. */
void rpc_tcp_channel_links(const struct rpc_channel *ch, unsigned *n_up, unsigned *n_all);

#endif
