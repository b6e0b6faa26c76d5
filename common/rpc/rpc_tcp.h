/*
 * rpc_tcp.h - the rpc transport over TCP: frames, Hello with mutual proof of a key,
 * links.
 *
 * Shell code: libuv, one loop a thread. A server listens on any number of addresses and
 * turns frames into rpc_calls; a client makes one rpc_channel per peer out of `links` TCP
 * connections to each of its addresses. Frames and Hello are specified in
 * docs/FORMATS.md.
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

/* Secrets of a process. A node knows both, a client only its own. */
struct rpc_keys {
    bool has_node, has_client;
    uint8_t node[RPC_KEY_BYTES];
    uint8_t client[RPC_KEY_BYTES];
};

/**
 * Reads a key file: 64 hex digits and a newline, mode 0600 or stricter. May be called
 * twice to fill both.
 * @param node false: it holds the client key; true: it holds the node key.
 */
int rpc_keys_load(struct rpc_keys *keys, bool node, const char *path, struct err *err);

struct rpc_server;
struct rpc_server_config {
    const struct rpc_keys *keys; /* borrowed; both must be there */
    const char *name;            /* name of this process in Hello and in logs; borrowed */
    uint32_t conns_max;          /* further connections are refused; 0: 4096 */
    /* bytes of requests and unsent answers of all connections; above it reading pauses
     * (I9); 0: 256 MiB */
    uint64_t memory_max;
    rpc_handler_cb *handler;
    void *arg;
    /* A peer has proved its key; may be NULL. */
    void (*conn_opened)(void *arg, uint64_t conn_id);
    void (*conn_closed)(
        void *arg,
        uint64_t conn_id); /* may be NULL; calls of it may still be unanswered */
    /* RPC_CLUSTER_ID_BYTES, copied; NULL or zeros: not known yet */
    const uint8_t *cluster_id;
    /* RPC_INCARNATION_BYTES, copied: of its data; NULL: none */
    const uint8_t *incarnation;
};

/**
 * Listens on each of addrs ("host:port", port 0: any). A name stands for all its
 * addresses on this machine, with one port; "*" for all addresses, "[::]" for all, IPv4
 * included. err names the address that failed, and why.
 */
int rpc_server_open(struct env_uv *env, const struct rpc_server_config *config,
                    const char *const *addrs, unsigned n_addrs, struct rpc_server **out,
                    struct err *err);
/** Returns the port really listened on, equal for all addresses of a name. */
uint16_t rpc_server_port(const struct rpc_server *server, unsigned addr_index);
/**
 * Sets the cluster id for Hellos from now on (a storage learns it when it is admitted).
 */
void rpc_server_set_cluster_id(struct rpc_server *server, const uint8_t *cluster_id);
/** Sets the largest number of connections from now on; open ones stay. */
void rpc_server_set_conns_max(struct rpc_server *server, unsigned conns_max);
/**
 * Ends all connections that are open. Nothing more is read from them: requests that have
 * arrived and were not read never reach the handler. Each one closes when the calls that
 * the handler has of it are answered and the answers sent. Peers connect again.
 */
void rpc_server_end_conns(struct rpc_server *server);
/**
 * Stops listening, closes connections, then calls closed(arg). Unanswered calls may still
 * be replied to.
 */
void rpc_server_close(struct rpc_server *server, void (*closed)(void *arg), void *arg);

struct rpc_channel_config {
    const struct rpc_keys *keys; /* borrowed */
    enum rpc_role role;          /* role whose key is proved */
    const char *name;            /* name of this process; borrowed during the call */
    /* Copied. All addresses of a name are tried in turn, until one answers as it must. */
    const char *const *addrs;
    unsigned n_addrs;        /* 1..RPC_ADDR_MAX */
    unsigned links_per_addr; /* 0: 1 */
    uint32_t probe_ms;       /* [500] ms without a byte, with requests out: suspect */
    /* [64 MiB] bytes queued and not answered; above it requests wait in order of
     * arrival */
    uint64_t queue_max;
    /* RPC_CLUSTER_ID_BYTES, copied; NULL or zeros: not known yet */
    const uint8_t *cluster_id;
    /* RPC_INCARNATION_BYTES, copied: a peer with another one is treated as unreachable;
     * NULL or zeros: any will do. */
    const uint8_t *incarnation;
};

/**
 * Makes a channel; connecting starts at once, broken links are tried again for ever (50
 * ms, doubling to 2 s). health() is RPC_UP from the first link's Hello. A peer that sends
 * no byte while requests or probes are out turns RPC_SUSPECT after probe_ms, back RPC_UP
 * at its next byte. After 20 x probe_ms without a byte (4 x when another link of the
 * channel hears its peer) the link is closed and its requests move to others, or wait for
 * one until their deadline.
 */
int rpc_tcp_channel_open(struct env_uv *env, const struct rpc_channel_config *config,
                         struct rpc_channel **out, struct err *err);
/**
 * Checks addresses and key. Returns 0: rpc_tcp_channel_open() can only fail with -ENOMEM.
 */
int rpc_tcp_channel_check(const struct rpc_channel_config *config, struct err *err);
/**
 * Closes a channel. Outstanding requests end with -ENOTCONN (posted); then closed(arg).
 */
void rpc_tcp_channel_close(struct rpc_channel *ch, void (*closed)(void *arg), void *arg);
/** Sets the session of requests that name none, from now on. */
void rpc_tcp_channel_set_session(struct rpc_channel *ch, uint64_t session);
/**
 * Sets a function to be called with (arg) each time the first link of the channel comes
 * up.
 */
void rpc_tcp_channel_on_up(struct rpc_channel *ch, void (*fn)(void *arg), void *arg);
/** Sets a function to be called with (arg) each time the last link that was up ends. */
void rpc_tcp_channel_on_down(struct rpc_channel *ch, void (*fn)(void *arg), void *arg);
/**
 * Sets a function to be called with (arg) each time the peer's machine refuses a link at
 * all addresses of its name (ECONNREFUSED): nobody listens there.
 */
void rpc_tcp_channel_on_refused(struct rpc_channel *ch, void (*fn)(void *arg), void *arg);
/**
 * Returns why the last link failed, "" if none did: "connect to 127.0.0.1:1: Connection
 * refused", or "connect to NAME:1: 127.0.0.1:1: Connection refused; [::1]:1: ...".
 */
const char *rpc_tcp_channel_last_error(const struct rpc_channel *ch);
/** Returns the number of links that are up, and of all of them. */
void rpc_tcp_channel_links(const struct rpc_channel *ch, unsigned *n_up, unsigned *n_all);

#endif
