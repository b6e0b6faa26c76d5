/*
 * capability.h - the right of a client to read or write one file, signed by exportd and
 * checked by storages without asking anyone. docs/FORMATS.md has the bytes.
 *
 * The signing key is derived from the node key, which clients do not know. A capability
 * has no end in time (no clocks decide, I11): it ends when the cluster's key generation
 * moves on, and a fenced session is refused before its capability is looked at.
 */
#ifndef ROZO_COMMON_WIRE_CAPABILITY_H
#define ROZO_COMMON_WIRE_CAPABILITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/wire/record.h"

enum {
    CAPABILITY_BYTES = 24,
    CAPABILITY_READ = 1,
    CAPABILITY_WRITE = 2,
    CAPABILITY_NODE_KEY_BYTES = 32,
};

/* Opaque; one per thread, as it holds the state of a running computation. */
struct capability_key;

/**
 * Makes a key. Returns 0 or -ENOMEM.
 * @param generation of the key; 0 until keys can be renewed.
 */
int capability_key_new(const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES],
                       uint32_t generation, struct capability_key **out);
/** Frees a key. NULL is fine. */
void capability_key_free(struct capability_key *key);

/**
 * Signs a capability. rights: CAPABILITY_READ and CAPABILITY_WRITE, or'ed. Costs about 1
 * us.
 */
void capability_sign(struct capability_key *key, const struct file_id *id,
                     unsigned rights, uint8_t out[CAPABILITY_BYTES]);
/**
 * Checks whether cap (len bytes, from a peer) gives all of `rights` on this file.
 * @return 0, or -EACCES: wrong length, format, file, rights, generation or signature.
 */
int capability_verify(struct capability_key *key, const struct file_id *id,
                      unsigned rights, const uint8_t *cap, size_t len);

#endif
