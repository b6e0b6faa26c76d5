/*
 * quorum_entry.c - log entries in memory, and the bytes of batches.
 *
 * Keeps:  I8: a batch is checked as a whole before anything of it is given out.
 */
#include "exportd/quorum/log/quorum_entry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "exportd/store/key.h"

enum {
    MORE = 1,    /* flag of a part: another one follows */
    DELETED = 1, /* flag of an item: the key is deleted */
    PART_MAX = RAFT_ENTRY_BYTES_MAX - QUORUM_PART_HEAD_BYTES,
};

struct quorum_entry *quorum_entry_new(enum raft_entry_kind kind, size_t len)
{
    struct quorum_entry *entry;

    assert(len <= RAFT_ENTRY_BYTES_MAX);
    entry = malloc(sizeof(*entry) + len);
    if (entry == NULL)
        return NULL;
    atomic_init(&entry->n_users, 1);
    entry->e = (struct raft_log_entry){
        .kind = kind,
        .len = (uint32_t)len,
        .data = entry->bytes,
    };
    return entry;
}

struct quorum_entry *quorum_entry_use(struct quorum_entry *entry)
{
    atomic_fetch_add_explicit(&entry->n_users, 1, memory_order_relaxed);
    return entry;
}

void quorum_entry_free(struct quorum_entry *entry)
{
    if (entry != NULL &&
        atomic_fetch_sub_explicit(&entry->n_users, 1, memory_order_acq_rel) == 1)
        free(entry);
}

/* Returns whether a batch may have these keys. */
static bool keys_are_common(const struct kv_item *items, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        if (key_is_of_member(items[i].key, items[i].key_len))
            return false;
    }
    return true;
}

static size_t batch_bytes(const struct kv_item *items, size_t n_items)
{
    size_t bytes = QUORUM_BATCH_HEAD_BYTES + n_items * QUORUM_BATCH_ITEM_BYTES;

    for (size_t i = 0; i < n_items; i++)
        bytes += items[i].key_len + items[i].val_len;
    return bytes;
}

static void batch_put(const struct kv_item *items, size_t n_items,
                      const struct quorum_batch_head *head, uint8_t *p)
{
    put_le32(p, (uint32_t)n_items);
    put_le64(p + 4, (uint64_t)head->wall_ns);
    put_le64(p + 12, head->reign);
    put_le64(p + 20, head->number);
    p += QUORUM_BATCH_HEAD_BYTES;
    for (size_t i = 0; i < n_items; i++) {
        const struct kv_item *item = &items[i];

        assert(item->key_len > 0 && item->key_len <= QUORUM_BATCH_KEY_MAX);
        assert(item->val != NULL || item->val_len == 0);
        put_le16(p, (uint16_t)item->key_len);
        put_le16(p + 2, item->val == NULL ? DELETED : 0);
        put_le32(p + 4, (uint32_t)item->val_len);
        p += QUORUM_BATCH_ITEM_BYTES;
        memcpy(p, item->key, item->key_len);
        p += item->key_len;
        if (item->val_len > 0)
            memcpy(p, item->val, item->val_len);
        p += item->val_len;
    }
}

/* Returns the place for a part's bytes in a new entry, or NULL without memory. */
static uint8_t *part_new(size_t len, bool more, struct quorum_entry **out)
{
    *out = quorum_entry_new(RAFT_ENTRY_BATCH, QUORUM_PART_HEAD_BYTES + len);
    if (*out == NULL)
        return NULL;
    put_le16((*out)->bytes, QUORUM_BATCH_FORMAT);
    put_le16((*out)->bytes + 2, more ? MORE : 0);
    return (*out)->bytes + QUORUM_PART_HEAD_BYTES;
}

static int parts_cut(const uint8_t *batch, size_t len,
                     struct quorum_entry *parts[QUORUM_PARTS_MAX])
{
    int n = 0;

    for (size_t at = 0; at < len; at += PART_MAX) {
        size_t part_len = len - at < PART_MAX ? len - at : PART_MAX;
        uint8_t *p = part_new(part_len, at + part_len < len, &parts[n]);

        if (p == NULL) {
            while (n > 0)
                quorum_entry_free(parts[--n]);
            return -ENOMEM;
        }
        memcpy(p, batch + at, part_len);
        n++;
    }
    return n;
}

int quorum_batch_new(const struct kv_item *items, size_t n_items,
                     const struct quorum_batch_head *head,
                     struct quorum_entry *parts[QUORUM_PARTS_MAX])
{
    size_t len = batch_bytes(items, n_items);
    uint8_t *p;
    int n = 1;

    if (!keys_are_common(items, n_items))
        return -EINVAL;
    if (len > (size_t)PART_MAX * QUORUM_PARTS_MAX)
        return -EFBIG;
    p = len <= PART_MAX ? part_new(len, false, &parts[0]) : malloc(len);
    if (p == NULL)
        return -ENOMEM;
    batch_put(items, n_items, head, p);
    if (len > PART_MAX) {
        n = parts_cut(p, len, parts);
        free(p);
    }
    return n;
}

int quorum_part_get(const struct quorum_entry *entry, const uint8_t **part,
                    size_t *part_len, bool *more)
{
    const uint8_t *p = entry->e.data;

    if (entry->e.len < QUORUM_PART_HEAD_BYTES)
        return -ROZO_EDAMAGED;
    if (get_le16(p) != QUORUM_BATCH_FORMAT)
        return -ROZO_EUNKNOWN_FORMAT;
    if (get_le16(p + 2) > MORE)
        return -ROZO_EDAMAGED;
    *part = p + QUORUM_PART_HEAD_BYTES;
    *part_len = entry->e.len - QUORUM_PART_HEAD_BYTES;
    *more = get_le16(p + 2) == MORE;
    return 0;
}

/* Unpacks an item. Returns its bytes; 0: not valid. */
static size_t item_get(const uint8_t *p, size_t len, struct kv_item *item)
{
    uint16_t flags;

    if (len < QUORUM_BATCH_ITEM_BYTES)
        return 0;
    item->key_len = get_le16(p);
    flags = get_le16(p + 2);
    item->val_len = get_le32(p + 4);
    len -= QUORUM_BATCH_ITEM_BYTES;
    if (item->key_len == 0 || item->key_len > len || item->val_len > len - item->key_len)
        return 0;
    if (flags > DELETED || (flags == DELETED && item->val_len > 0))
        return 0;
    item->key = p + QUORUM_BATCH_ITEM_BYTES;
    if (key_is_of_member(item->key, item->key_len))
        return 0;
    item->val = flags == DELETED ? NULL : (const uint8_t *)item->key + item->key_len;
    return QUORUM_BATCH_ITEM_BYTES + item->key_len + item->val_len;
}

int quorum_batch_get(const uint8_t *p, size_t len, struct kv_item **items,
                     size_t *n_items, struct quorum_batch_head *head)
{
    size_t n, at = QUORUM_BATCH_HEAD_BYTES;
    struct kv_item *all;

    *items = NULL;
    if (len < QUORUM_BATCH_HEAD_BYTES)
        return -ROZO_EDAMAGED;
    n = get_le32(p);
    if (n > (len - at) / QUORUM_BATCH_ITEM_BYTES)
        return -ROZO_EDAMAGED;
    all = calloc(n + QUORUM_ITEMS_SPARE, sizeof(*all));
    if (all == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = item_get(p + at, len - at, &all[i]);

        if (bytes == 0) {
            free(all);
            return -ROZO_EDAMAGED;
        }
        at += bytes;
    }
    if (at != len) {
        free(all);
        return -ROZO_EDAMAGED;
    }
    *items = all;
    *n_items = n;
    *head = (struct quorum_batch_head){
        .wall_ns = (int64_t)get_le64(p + 4),
        .reign = get_le64(p + 12),
        .number = get_le64(p + 20),
    };
    return 0;
}
