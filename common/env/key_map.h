/*
 * key_map.h - an ordered map from keys to values in memory: a skip list.
 *
 * Keys are compared as unsigned bytes, as in kv.h. One thread.
 *
 * Source: W. Pugh, Skip Lists: A Probabilistic Alternative to Balanced Trees, CACM 1990.
 */
#ifndef ROZO_COMMON_ENV_KEY_MAP_H
#define ROZO_COMMON_ENV_KEY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEY_MAP_HEIGHT_MAX = 20 };

/* One key. Valid until it is removed; its address does not change. */
struct key_map_node {
    uint8_t *key;
    size_t key_len;
    uint8_t *val; /* NULL: a value that says "deleted", if the user wants that */
    size_t val_len;
    uint64_t mark;               /* the user's; 0 in a new node */
    struct key_map_node *next[]; /* [0]: the next greater key; the rest is private */
};

struct key_map {
    struct key_map_node *head; /* private; owned */
    uint64_t random;           /* private */
    size_t n_keys;
};

/** Compares keys: negative, 0 or positive, as memcmp(). Lengths may be 0. */
int key_compare(const void *a, size_t a_len, const void *b, size_t b_len);

/** Makes an empty map. Returns 0 or -ENOMEM. */
int key_map_init(struct key_map *m);
/** Frees all nodes. A map of zeros is fine. */
void key_map_free(struct key_map *m);

/** Returns the first node with a key >= this one; NULL: none. key_len may be 0. */
struct key_map_node *key_map_seek(const struct key_map *m, const void *key,
                                  size_t key_len);
/** Returns the node of the key; NULL: none. */
struct key_map_node *key_map_get(const struct key_map *m, const void *key,
                                 size_t key_len);
/**
 * Sets the value of a key (copied; val NULL: a node without a value).
 * @return the node, or NULL without memory: nothing has changed then.
 */
struct key_map_node *key_map_put(struct key_map *m, const void *key, size_t key_len,
                                 const void *val, size_t val_len);
/** Removes a node and frees it. */
void key_map_remove(struct key_map *m, struct key_map_node *n);

#endif
