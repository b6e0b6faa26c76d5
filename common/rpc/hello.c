/*
 * hello.c - mutual proof of a key.
 *
 * In:     messages from a peer that may be anyone (I8).
 * Out:    messages to send; DONE with role, names and features, or FAILED with a text.
 * Keeps:  nothing that a peer says is believed before its proof was checked, in constant
 *         time.
 * Ask:    the bytes: 0 step, 1 role, 2 zero (6 bytes), 8 features, 16 cluster id, 32
 *         nonce, 64 proof, 96 name or text of a refusal, to the end of the message.
 *         CHALLENGE has no proof, but the server's incarnation in its place.
 */
#include "common/rpc/hello.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base/bytes.h"

enum hello_step {
    STEP_HELLO = 1,
    STEP_CHALLENGE = 2,
    STEP_PROOF = 3,
    STEP_WELCOME = 4,
    STEP_REFUSE = 5,
};

/* Features: the lower half may be missing on one side, the upper half must be
 * understood. */
static const uint64_t our_features = HELLO_STARTS;
static const uint64_t must_understand = 0xffffffff00000000;

/* Unpacked message. */
struct hello_msg {
    uint8_t step, role;
    uint64_t features;
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES];
    uint8_t nonce[HELLO_NONCE_BYTES];
    uint8_t proof[HELLO_PROOF_BYTES];
    const char *text; /* not terminated */
    size_t text_len;
};

static bool msg_parse(const uint8_t *p, size_t len, struct hello_msg *m)
{
    if (len < HELLO_FIXED_BYTES || len > HELLO_MSG_MAX)
        return false;
    m->step = p[0];
    m->role = p[1];
    for (unsigned i = 2; i < 8; i++) {
        if (p[i] != 0)
            return false;
    }
    m->features = get_le64(p + 8);
    memcpy(m->cluster_id, p + 16, sizeof(m->cluster_id));
    memcpy(m->nonce, p + 32, sizeof(m->nonce));
    memcpy(m->proof, p + 64, sizeof(m->proof));
    m->text = (const char *)p + HELLO_FIXED_BYTES;
    m->text_len = len - HELLO_FIXED_BYTES;
    return true;
}

static size_t msg_build(const struct hello_msg *m, uint8_t *p)
{
    memset(p, 0, HELLO_FIXED_BYTES);
    p[0] = m->step;
    p[1] = m->role;
    put_le64(p + 8, m->features);
    memcpy(p + 16, m->cluster_id, sizeof(m->cluster_id));
    memcpy(p + 32, m->nonce, sizeof(m->nonce));
    memcpy(p + 64, m->proof, sizeof(m->proof));
    memcpy(p + HELLO_FIXED_BYTES, m->text, m->text_len);
    return HELLO_FIXED_BYTES + m->text_len;
}

/* Copies a peer's text as printable ASCII, cut at size - 1. */
static void text_copy(char *dst, size_t size, const char *text, size_t len)
{
    size_t n = len < size - 1 ? len : size - 1;

    for (size_t i = 0; i < n; i++)
        dst[i] = text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?';
    dst[n] = '\0';
}

static void proof_make(const struct hello *h, const char *label,
                       uint8_t proof[HELLO_PROOF_BYTES])
{
    const uint8_t *key = h->role == RPC_ROLE_NODE ? h->keys->node : h->keys->client;
    uint8_t text[32 + sizeof(h->transcript)] = { 0 };
    unsigned len = 0;
    const uint8_t *ok;

    snprintf((char *)text, 32, "rozo hello %d %s", FRAME_PROTOCOL, label);
    memcpy(text + 32, h->transcript, h->transcript_len);
    ok =
        HMAC(EVP_sha256(), key, RPC_KEY_BYTES, text, 32 + h->transcript_len, proof, &len);
    assert(ok != NULL && len == HELLO_PROOF_BYTES);
}

static bool proof_is_right(const struct hello *h, const char *label, const uint8_t *proof)
{
    uint8_t right[HELLO_PROOF_BYTES];

    proof_make(h, label, right);
    return CRYPTO_memcmp(right, proof, sizeof(right)) == 0;
}

static void transcript_add(struct hello *h, const uint8_t *msg, size_t len)
{
    assert(h->transcript_len + len <= sizeof(h->transcript));
    memcpy(h->transcript + h->transcript_len, msg, len);
    h->transcript_len += len;
}

/* Builds a message with our identity. */
static size_t identity_build(struct hello *h, enum hello_step step, uint8_t *out)
{
    struct hello_msg m = {
        .step = (uint8_t)step,
        .role = (uint8_t)h->role,
        .features = our_features,
        .text = h->name,
        .text_len = strlen(h->name),
    };
    size_t len;

    memcpy(m.cluster_id, h->cluster_id, sizeof(m.cluster_id));
    memcpy(m.nonce, h->nonce, sizeof(m.nonce));
    if (step == STEP_CHALLENGE)
        memcpy(m.proof, h->incarnation, sizeof(h->incarnation));
    len = msg_build(&m, out);
    transcript_add(h, out, len);
    return len;
}

static size_t proof_build(const struct hello *h, enum hello_step step, const char *label,
                          uint8_t *out)
{
    struct hello_msg m = { .step = (uint8_t)step, .role = (uint8_t)h->role, .text = "" };

    proof_make(h, label, m.proof);
    return msg_build(&m, out);
}

size_t hello_refusal(const char *text, uint8_t out[HELLO_MSG_MAX])
{
    struct hello_msg m = { .step = STEP_REFUSE, .text = text };

    m.text_len = strnlen(text, HELLO_TEXT_MAX);
    return msg_build(&m, out);
}

static void fail(struct hello *h, const char *text)
{
    h->state = HELLO_FAILED;
    snprintf(h->error, sizeof(h->error), "%s", text);
}

/* Fails, and makes a refusal that says why. */
static size_t refuse(struct hello *h, const char *text, uint8_t *out)
{
    fail(h, text);
    return hello_refusal(text, out);
}

static void peer_take(struct hello *h, const struct hello_msg *m)
{
    text_copy(h->peer_name, sizeof(h->peer_name), m->text, m->text_len);
    memcpy(h->peer_cluster_id, m->cluster_id, sizeof(h->peer_cluster_id));
    h->features = m->features & our_features;
}

/* Compares the cluster ids: "different clusters: 0123... here, 4567... there"; "" when
 * they go together. */
static void cluster_compare(const struct hello *h, char *text, size_t size)
{
    char ids[2][2 * RPC_CLUSTER_ID_BYTES + 1];

    text[0] = '\0';
    if (bytes_are_zero(h->cluster_id, RPC_CLUSTER_ID_BYTES) ||
        bytes_are_zero(h->peer_cluster_id, RPC_CLUSTER_ID_BYTES) ||
        memcmp(h->cluster_id, h->peer_cluster_id, RPC_CLUSTER_ID_BYTES) == 0)
        return;
    for (unsigned i = 0; i < RPC_CLUSTER_ID_BYTES; i++) {
        snprintf(ids[0] + 2 * i, 3, "%02x", h->cluster_id[i]);
        snprintf(ids[1] + 2 * i, 3, "%02x", h->peer_cluster_id[i]);
    }
    snprintf(text, size, "different clusters: %s here, %s there",
             h->is_server ? ids[1] : ids[0], h->is_server ? ids[0] : ids[1]);
}

/* Returns true if the peer's data directory is not the wanted one; a peer that sends no
 * incarnation is accepted. */
static bool is_other_incarnation(const struct hello *h)
{
    return !bytes_are_zero(h->incarnation, RPC_INCARNATION_BYTES) &&
           !bytes_are_zero(h->peer_incarnation, RPC_INCARNATION_BYTES) &&
           memcmp(h->incarnation, h->peer_incarnation, RPC_INCARNATION_BYTES) != 0;
}

static size_t server_on_hello(struct hello *h, const uint8_t *msg, size_t len,
                              const struct hello_msg *m, uint8_t *out)
{
    if (m->step != STEP_HELLO || m->text_len > HELLO_NAME_MAX ||
        (m->role != RPC_ROLE_CLIENT && m->role != RPC_ROLE_NODE))
        return refuse(h, "malformed Hello message", out);
    if ((m->features & must_understand & ~our_features) != 0)
        return refuse(h, "peer wants features this build does not know", out);
    h->role = (enum rpc_role)m->role;
    if (h->role == RPC_ROLE_NODE ? !h->keys->has_node : !h->keys->has_client)
        return refuse(h, "no key for that role on the server", out);
    peer_take(h, m);
    transcript_add(h, msg, len);
    h->state = HELLO_WAIT_PROOF;
    return identity_build(h, STEP_CHALLENGE, out);
}

static size_t server_on_proof(struct hello *h, const struct hello_msg *m, uint8_t *out)
{
    char text[HELLO_TEXT_MAX];

    if (m->step != STEP_PROOF)
        return refuse(h, "malformed Hello message", out);
    if (!proof_is_right(h, "client", m->proof)) {
        h->is_wrong_key = true;
        /* worded for the client, which reads it */
        return refuse(h, "peer refused our key", out);
    }
    cluster_compare(h, text, sizeof(text));
    if (text[0] != '\0')
        return refuse(h, text, out);
    h->state = HELLO_DONE;
    return proof_build(h, STEP_WELCOME, "server", out);
}

static size_t client_on_challenge(struct hello *h, const uint8_t *msg, size_t len,
                                  const struct hello_msg *m, uint8_t *out)
{
    if (m->text_len > HELLO_NAME_MAX || m->role != h->role) {
        fail(h, "the peer sent a malformed Hello message");
        return 0;
    }
    if ((m->features & must_understand & ~our_features) != 0) {
        fail(h, "peer wants features this build does not know");
        return 0;
    }
    peer_take(h, m);
    memcpy(h->peer_incarnation, m->proof, sizeof(h->peer_incarnation));
    transcript_add(h, msg, len);
    h->state = HELLO_WAIT_WELCOME;
    return proof_build(h, STEP_PROOF, "client", out);
}

static void client_on_welcome(struct hello *h, const struct hello_msg *m)
{
    char text[HELLO_TEXT_MAX];

    if (!proof_is_right(h, "server", m->proof)) {
        h->is_wrong_key = true;
        fail(h, "peer does not know our key");
        return;
    }
    cluster_compare(h, text, sizeof(text));
    if (text[0] != '\0')
        fail(h, text);
    else if (is_other_incarnation(h))
        fail(h, "another data directory answers there, not the one in the cluster map");
    else
        h->state = HELLO_DONE;
}

static size_t client_step(struct hello *h, const uint8_t *msg, size_t len,
                          const struct hello_msg *m, uint8_t *out)
{
    if (m->step == STEP_REFUSE) {
        h->state = HELLO_FAILED;
        text_copy(h->error, sizeof(h->error), m->text, m->text_len);
        h->is_wrong_key = strcmp(h->error, "peer refused our key") == 0;
        return 0;
    }
    if (h->state == HELLO_WAIT_CHALLENGE && m->step == STEP_CHALLENGE)
        return client_on_challenge(h, msg, len, m, out);
    if (h->state == HELLO_WAIT_WELCOME && m->step == STEP_WELCOME)
        client_on_welcome(h, m);
    else
        fail(h, "the peer sent a malformed Hello message");
    return 0;
}

void hello_init(struct hello *h, bool is_server, const struct rpc_keys *keys,
                enum rpc_role role, const char *name, const uint8_t *cluster_id,
                const uint8_t *incarnation, const uint8_t nonce[HELLO_NONCE_BYTES])
{
    memset(h, 0, sizeof(*h));
    h->is_server = is_server;
    h->keys = keys;
    h->role = role;
    if (cluster_id != NULL)
        memcpy(h->cluster_id, cluster_id, sizeof(h->cluster_id));
    if (incarnation != NULL)
        memcpy(h->incarnation, incarnation, sizeof(h->incarnation));
    memcpy(h->nonce, nonce, sizeof(h->nonce));
    text_copy(h->name, sizeof(h->name), name, strlen(name));
}

void hello_step(struct hello *h, const uint8_t *msg, size_t len, uint8_t *out,
                size_t *out_len)
{
    struct hello_msg m;

    *out_len = 0;
    assert(h->state < HELLO_DONE);
    if (!h->is_server && h->state == HELLO_START) {
        assert(h->role == RPC_ROLE_NODE ? h->keys->has_node : h->keys->has_client);
        h->state = HELLO_WAIT_CHALLENGE;
        *out_len = identity_build(h, STEP_HELLO, out);
        return;
    }
    if (!msg_parse(msg, len, &m)) {
        fail(h, "malformed Hello message");
        return;
    }
    if (!h->is_server)
        *out_len = client_step(h, msg, len, &m, out);
    else if (h->state == HELLO_START)
        *out_len = server_on_hello(h, msg, len, &m, out);
    else
        *out_len = server_on_proof(h, &m, out);
}
