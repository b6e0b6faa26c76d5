/*
 * capability.c - signs and checks capabilities.
 *
 * In:     file ids and rights from exportd; file ids and 24 bytes from clients (I8).
 * Out:    24 bytes; 0 or -EACCES. Thread: that of the owner of the struct capability_key.
 * Keeps:  compares signatures in constant time; a client without the node key cannot make
 *         one.
 * Yours:  KNOWN_MAX, how many good ones are remembered: else each request would compute a
 *         signature.
 * Ask:    the bytes: 0 format, 1 rights, 2 zero, 4 generation, 8 first 16 of
 *         HMAC-SHA256(key, file id | bytes 0..7).
 */
#include "common/wire/capability.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>

#include "common/base/bytes.h"

enum {
    CAPABILITY_FORMAT = 1,
    HEAD_BYTES = 8,
    MAC_BYTES = 16,
    SHA256_BYTES = 32,
    KNOWN_MAX = 256, /* a power of two */
};
static_assert(HEAD_BYTES + MAC_BYTES == CAPABILITY_BYTES, "on the wire since protocol 1");

/* Capability with a good signature; all zero: none, since its format would be 0. */
struct known {
    uint8_t cap[CAPABILITY_BYTES];
    uint8_t id[FILE_ID_BYTES];
};

struct capability_key {
    EVP_MAC_CTX *mac; /* keyed once; EVP_MAC_init() without a key starts over */
    uint32_t generation;
    struct known known[KNOWN_MAX]; /* by file; a newer one replaces an older one */
};

void capability_key_free(struct capability_key *key)
{
    if (key == NULL)
        return;
    EVP_MAC_CTX_free(key->mac);
    free(key);
}

int capability_key_new(const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES],
                       uint32_t generation, struct capability_key **out)
{
    static const uint8_t label[] = "rozo capability 1";
    struct capability_key *key = calloc(1, sizeof(*key));
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    uint8_t derived[SHA256_BYTES];
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    int rc = -ENOMEM;

    if (key == NULL || mac == NULL)
        goto out;
    key->generation = generation;
    key->mac = EVP_MAC_CTX_new(mac);
    if (key->mac == NULL ||
        HMAC(EVP_sha256(), node_key, CAPABILITY_NODE_KEY_BYTES, label, sizeof(label) - 1,
             derived, NULL) == NULL ||
        EVP_MAC_init(key->mac, derived, sizeof(derived), params) != 1)
        goto out;
    *out = key;
    key = NULL;
    rc = 0;
out:
    OPENSSL_cleanse(derived, sizeof(derived));
    EVP_MAC_free(mac);
    capability_key_free(key);
    return rc;
}

static void capability_mac(struct capability_key *key, const struct file_id *id,
                           const uint8_t head[HEAD_BYTES], uint8_t out[SHA256_BYTES])
{
    uint8_t text[FILE_ID_BYTES + HEAD_BYTES];
    size_t len = 0;
    int ok;

    file_id_put(text, id);
    memcpy(text + FILE_ID_BYTES, head, HEAD_BYTES);
    ok = EVP_MAC_init(key->mac, NULL, 0, NULL) == 1 &&
         EVP_MAC_update(key->mac, text, sizeof(text)) == 1 &&
         EVP_MAC_final(key->mac, out, &len, SHA256_BYTES) == 1 && len == SHA256_BYTES;
    assert(ok); /* sums over memory do not fail */
}

static void head_put(uint8_t head[HEAD_BYTES], unsigned rights, uint32_t generation)
{
    head[0] = CAPABILITY_FORMAT;
    head[1] = (uint8_t)rights;
    put_le16(head + 2, 0);
    put_le32(head + 4, generation);
}

void capability_sign(struct capability_key *key, const struct file_id *id,
                     unsigned rights, uint8_t out[CAPABILITY_BYTES])
{
    uint8_t mac[SHA256_BYTES];

    assert((rights & ~(unsigned)(CAPABILITY_READ | CAPABILITY_WRITE)) == 0);
    head_put(out, rights, key->generation);
    capability_mac(key, id, out, mac);
    memcpy(out + HEAD_BYTES, mac, MAC_BYTES);
}

static struct known *known_place(struct capability_key *key, const struct file_id *id)
{
    return &key->known[(id->ino ^ id->export_id) % KNOWN_MAX];
}

int capability_verify(struct capability_key *key, const struct file_id *id,
                      unsigned rights, const uint8_t *cap, size_t len)
{
    struct known *known = known_place(key, id), now;
    uint8_t head[HEAD_BYTES], mac[SHA256_BYTES];

    if (len != CAPABILITY_BYTES || (cap[1] & rights) != rights)
        return -EACCES;
    head_put(head, cap[1], key->generation);
    if (memcmp(head, cap, HEAD_BYTES) != 0)
        return -EACCES;
    memcpy(now.cap, cap, CAPABILITY_BYTES);
    file_id_put(now.id, id);
    if (CRYPTO_memcmp(known, &now, sizeof(now)) == 0)
        return 0;
    capability_mac(key, id, head, mac);
    if (CRYPTO_memcmp(mac, cap + HEAD_BYTES, MAC_BYTES) != 0)
        return -EACCES;
    *known = now;
    return 0;
}
