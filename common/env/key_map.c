/*
 * key_map.c - the skip list.
 *
 * Keeps:  next[h] of a node is the next node with more than h levels; keys grow.
 */
#include "common/env/key_map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int key_compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
    size_t len = a_len < b_len ? a_len : b_len;
    int d = len == 0 ? 0 : memcmp(a, b, len);

    return d != 0 ? d : a_len < b_len ? -1 : a_len > b_len;
}

static int node_compare(const struct key_map_node *n, const void *key, size_t key_len)
{
    return key_compare(n->key, n->key_len, key, key_len);
}

/* Returns the first node >= key. prev: unless NULL, set to the last node before it on
 * each level. */
static struct key_map_node *find(const struct key_map *m, const void *key, size_t key_len,
                                 struct key_map_node **prev)
{
    struct key_map_node *n = m->head;

    for (int h = KEY_MAP_HEIGHT_MAX - 1; h >= 0; h--) {
        while (n->next[h] != NULL && node_compare(n->next[h], key, key_len) < 0)
            n = n->next[h];
        if (prev != NULL)
            prev[h] = n;
    }
    return n->next[0];
}

/* A quarter of the nodes of a level is in the next one, too. */
static unsigned random_height(struct key_map *m)
{
    unsigned h = 1;

    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    for (uint64_t x = m->random >> 20; (x & 3) == 0 && h < KEY_MAP_HEIGHT_MAX; x >>= 2)
        h++;
    return h;
}

/* Copies bytes. The copy of nothing is not NULL, either. */
static uint8_t *copy(const void *p, size_t len)
{
    uint8_t *q = malloc(len + 1);

    if (q != NULL && len > 0)
        memcpy(q, p, len);
    return q;
}

static void node_free(struct key_map_node *n)
{
    free(n->key);
    free(n->val);
    free(n);
}

static struct key_map_node *node_insert(struct key_map *m, const void *key,
                                        size_t key_len, struct key_map_node **prev)
{
    unsigned height = random_height(m);
    struct key_map_node *n = calloc(1, sizeof(*n) + height * sizeof(n->next[0]));

    if (n == NULL)
        return NULL;
    n->key = copy(key, key_len);
    if (n->key == NULL) {
        free(n);
        return NULL;
    }
    n->key_len = key_len;
    for (unsigned h = 0; h < height; h++) {
        n->next[h] = prev[h]->next[h];
        prev[h]->next[h] = n;
    }
    m->n_keys++;
    return n;
}

int key_map_init(struct key_map *m)
{
    size_t bytes = sizeof(*m->head) + KEY_MAP_HEIGHT_MAX * sizeof(m->head->next[0]);

    *m = (struct key_map){ .head = calloc(1, bytes), .random = 1 };
    return m->head == NULL ? -ENOMEM : 0;
}

void key_map_free(struct key_map *m)
{
    for (struct key_map_node *n = m->head, *next; n != NULL; n = next) {
        next = n->next[0];
        node_free(n);
    }
    *m = (struct key_map){ 0 };
}

struct key_map_node *key_map_seek(const struct key_map *m, const void *key,
                                  size_t key_len)
{
    return find(m, key, key_len, NULL);
}

struct key_map_node *key_map_get(const struct key_map *m, const void *key, size_t key_len)
{
    struct key_map_node *n = find(m, key, key_len, NULL);

    return n != NULL && node_compare(n, key, key_len) == 0 ? n : NULL;
}

struct key_map_node *key_map_put(struct key_map *m, const void *key, size_t key_len,
                                 const void *val, size_t val_len)
{
    struct key_map_node *prev[KEY_MAP_HEIGHT_MAX];
    struct key_map_node *n = find(m, key, key_len, prev);
    uint8_t *copied = val == NULL ? NULL : copy(val, val_len);

    assert(key_len > 0 && (val != NULL || val_len == 0));
    if (val != NULL && copied == NULL)
        return NULL;
    if (n == NULL || node_compare(n, key, key_len) != 0)
        n = node_insert(m, key, key_len, prev);
    if (n == NULL) {
        free(copied);
        return NULL;
    }
    free(n->val);
    n->val = copied;
    n->val_len = val_len;
    return n;
}

void key_map_remove(struct key_map *m, struct key_map_node *n)
{
    struct key_map_node *prev[KEY_MAP_HEIGHT_MAX];
    struct key_map_node *found = find(m, n->key, n->key_len, prev);

    assert(found == n && m->n_keys > 0);
    for (unsigned h = 0; h < KEY_MAP_HEIGHT_MAX && prev[h]->next[h] == n; h++)
        prev[h]->next[h] = n->next[h];
    node_free(n);
    m->n_keys--;
}
