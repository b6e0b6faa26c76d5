/*
 * hello.h - the first four messages of a connection: both sides prove that they know the
 * key of the role that the client claims. A pure state machine: messages in, messages
 * out.
 *
 *  client                                server
 *  HELLO     role, nonce, name      ->
 *                                   <-   CHALLENGE  nonce, name
 *  PROOF     HMAC("client" ...)     ->
 *                                   <-   WELCOME    HMAC("server" ...)   or  REFUSE  text
 *
 * A proof is HMAC-SHA256(key, label | HELLO message | CHALLENGE message): it covers both
 * nonces, the role, both names and cluster ids. It cannot be replayed (nonces) nor
 * reflected (label).
 */
#ifndef ROZO_COMMON_RPC_HELLO_H
#define ROZO_COMMON_RPC_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"
#include "common/rpc/rpc_tcp.h"

enum {
    HELLO_NONCE_BYTES = 32,
    HELLO_PROOF_BYTES = 32,
    HELLO_NAME_MAX = 64,
    HELLO_TEXT_MAX = 200, /* bytes of a refusal's text */
    HELLO_FIXED_BYTES = 96,
    HELLO_MSG_MAX = HELLO_FIXED_BYTES + HELLO_TEXT_MAX,
};

/* Features that a peer may ignore. */
enum { HELLO_STARTS = 1 << 0 }; /* frame.start of requests may be set */

enum hello_state {
    HELLO_START,          /* client: nothing sent; server: nothing received */
    HELLO_WAIT_CHALLENGE, /* client */
    HELLO_WAIT_PROOF,     /* server */
    HELLO_WAIT_WELCOME,   /* client */
    HELLO_DONE,
    HELLO_FAILED, /* error says why */
};

/* One side of one handshake. Plain data, embedded in a connection. */
struct hello {
    bool is_server;
    enum hello_state state;
    const struct rpc_keys *keys; /* borrowed */
    enum rpc_role role;          /* client: ours; server: the peer's, proved when DONE */
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES]; /* ours; zero: not known yet */
    uint8_t peer_cluster_id[RPC_CLUSTER_ID_BYTES];
    /* server: ours; client: the wanted one; zero: none, any */
    uint8_t incarnation[RPC_INCARNATION_BYTES];
    uint8_t peer_incarnation[RPC_INCARNATION_BYTES]; /* client: the server's */
    uint8_t nonce[HELLO_NONCE_BYTES];                /* ours */
    char name[HELLO_NAME_MAX + 1];                   /* ours */
    char peer_name[HELLO_NAME_MAX + 1];
    uint64_t features; /* features of both sides; when DONE */
    bool is_wrong_key; /* when FAILED: because of the key */
    char error[HELLO_TEXT_MAX + 1];
    uint8_t transcript[2 * HELLO_MSG_MAX]; /* HELLO, then CHALLENGE, as sent */
    size_t transcript_len;
};

/**
 * Starts a handshake.
 * @param role       client: the role whose key is proved, it must be in keys. Servers
 *                   pass 0.
 * @param nonce      fresh and random.
 * @param name       cut at HELLO_NAME_MAX.
 * @param cluster_id, incarnation: NULL means zeros.
 */
void hello_init(struct hello *h, bool is_server, const struct rpc_keys *keys,
                enum rpc_role role, const char *name, const uint8_t *cluster_id,
                const uint8_t *incarnation, const uint8_t nonce[HELLO_NONCE_BYTES]);
/**
 * Takes a message (client, to begin: NULL, 0) and makes the next one to send. Afterwards
 * h->state is DONE, FAILED, or one that waits for the peer.
 * @param out     room for HELLO_MSG_MAX.
 * @param out_len out: 0 when there is nothing to send; a failed server may still send a
 *                REFUSE.
 */
void hello_step(struct hello *h, const uint8_t *msg, size_t len, uint8_t *out,
                size_t *out_len);
/**
 * Makes a server's REFUSE for reasons outside of Hello ("too many connections"); returns
 * its length.
 */
size_t hello_refusal(const char *text, uint8_t out[HELLO_MSG_MAX]);

#endif
