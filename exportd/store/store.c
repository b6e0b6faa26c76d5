/*
 * store.c - cache, pending batch, group commit, shared syncs.
 *
 * In:     operations of the exportd loop; callbacks of the kv.
 * Out:    kv_commit() once a turn, kv_sync() one at a time, waiters' callbacks.
 * Keeps:  I4: a waiter gets 0 only after the commit that holds its changes. After a
 *         failed commit the cache holds nothing that the kv lacks, and no change is
 *         accepted.
 * Yours:  the cache: hash, size of the table, order of eviction.
 */
#include "exportd/store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/table.h"

enum {
    ENTRY_OVERHEAD = 96,
    BUCKETS_MIN = 1024,
    BYTES_PER_BUCKET = 256,
    SPARED_MAX = 64, /* recently used entries that one eviction passes over */
};

/* Cached state of one key. Always in one bucket and in the list of entries. */
struct store_entry {
    struct store_entry *bucket_next;
    uint64_t hash;
    uint8_t *val;     /* owned; NULL: the key does not exist */
    uint32_t val_len; /* bytes */
    uint16_t key_len;
    bool dirty;
    bool used;                      /* used since store_trim() last looked at it */
    struct list_node link;          /* in store->entries */
    struct store_entry *dirty_next; /* in the pending batch */
    uint8_t key[];
};

/* One kv_commit() under way and its waiters. */
struct store_commit {
    struct kv_done done; /* must stay first */
    struct store *store;
    struct list_node waits;
};

struct store {
    struct env *env;
    struct kv *kv;
    struct store_entry **buckets;
    size_t n_buckets;         /* a power of two */
    struct list_node entries; /* in order of eviction, unless used since */
    size_t cached_bytes, cache_max;
    struct store_entry *dirty; /* newest first; the order inside a batch has no meaning */
    size_t n_dirty, dirty_bytes;
    struct kv_item *items; /* room for one batch, owned */
    size_t items_room;
    struct env_task task;
    struct list_node commit_waits; /* waiters for the next commit */
    unsigned n_committing;
    struct kv_done sync_done;
    /* for the next sync; for this one */
    struct list_node sync_waits, syncing_waits;
    bool syncing;
    bool unsynced; /* true if there were commits since the last sync began */
    int error;
};

static const char in_a_change[] = "during a change of metadata";

static size_t entry_bytes(const struct store_entry *e)
{
    return ENTRY_OVERHEAD + e->key_len + e->val_len;
}

static struct store_entry *entry_find(struct store *s, const struct key *key,
                                      uint64_t hash)
{
    struct store_entry *e = s->buckets[hash & (s->n_buckets - 1)];

    while (e != NULL && (e->hash != hash || e->key_len != key->len ||
                         memcmp(e->key, key->bytes, key->len) != 0))
        e = e->bucket_next;
    return e;
}

/* Adds an entry and takes val. Returns NULL without memory; val is then freed. */
static struct store_entry *entry_add(struct store *s, const struct key *key,
                                     uint64_t hash, uint8_t *val, size_t val_len)
{
    struct store_entry *e = malloc(sizeof(*e) + key->len);
    struct store_entry **bucket = &s->buckets[hash & (s->n_buckets - 1)];

    assert(key->len > 0 && key->len <= KEY_BYTES_MAX);
    if (e == NULL) {
        free(val);
        return NULL;
    }
    *e = (struct store_entry){
        .bucket_next = *bucket,
        .hash = hash,
        .val = val,
        .val_len = (uint32_t)val_len,
        .key_len = (uint16_t)key->len,
    };
    memcpy(e->key, key->bytes, key->len);
    *bucket = e;
    list_add_tail(&s->entries, &e->link);
    s->cached_bytes += entry_bytes(e);
    return e;
}

static struct store_entry *entry_oldest(const struct store *s)
{
    return container_of(s->entries.next, struct store_entry, link);
}

static void entry_forget(struct store *s, struct store_entry *e)
{
    struct store_entry **p = &s->buckets[e->hash & (s->n_buckets - 1)];

    while (*p != e) {
        assert(*p != NULL);
        p = &(*p)->bucket_next;
    }
    *p = e->bucket_next;
    assert(s->cached_bytes >= entry_bytes(e));
    list_remove(&e->link);
    s->cached_bytes -= entry_bytes(e);
    free(e->val);
    free(e);
}

/* Finds the entry of the key; reads it from the kv if it is not cached. */
static int entry_load(struct store *s, const struct key *key, struct store_entry **out)
{
    uint64_t hash = table_hash(key->bytes, key->len);
    struct store_entry *e = entry_find(s, key, hash);
    void *val = NULL;
    size_t len = 0;
    int rc;

    if (e == NULL) {
        rc = kv_get(s->kv, key->bytes, key->len, &val, &len);
        if (rc != 0 && rc != -ENOENT)
            return rc;
        e = entry_add(s, key, hash, rc == 0 ? val : NULL, len);
        if (e == NULL)
            return -ENOMEM;
    } else {
        /* cheaper than moving it: no neighbour is touched */
        e->used = true;
    }
    *out = e;
    return 0;
}

int store_get(struct store *s, const struct key *key, const uint8_t **val, size_t *len)
{
    struct store_entry *e;
    int rc = entry_load(s, key, &e);

    if (rc != 0)
        return rc;
    if (e->val == NULL)
        return -ENOENT;
    *val = e->val;
    *len = e->val_len;
    return 0;
}

/* Changes an entry and takes val (NULL: deletes the key). */
static void entry_change(struct store *s, const struct key *key, uint8_t *val, size_t len)
{
    uint64_t hash = table_hash(key->bytes, key->len);
    struct store_entry *e = entry_find(s, key, hash);

    if (e == NULL) {
        e = entry_add(s, key, hash, val, len);
        if (e == NULL)
            log_out_of_memory(in_a_change);
    } else {
        assert(s->cached_bytes >= entry_bytes(e));
        s->cached_bytes -= entry_bytes(e);
        s->dirty_bytes -= e->dirty ? entry_bytes(e) : 0;
        free(e->val);
        e->val = val;
        e->val_len = (uint32_t)len;
        s->cached_bytes += entry_bytes(e);
        e->used = true;
    }
    s->dirty_bytes += entry_bytes(e);
    if (!e->dirty) {
        e->dirty = true;
        e->dirty_next = s->dirty;
        s->dirty = e;
        s->n_dirty++;
        env_post(s->env, &s->task);
    }
}

void store_put(struct store *s, const struct key *key, const void *val, size_t len)
{
    uint8_t *p = malloc(len + 1); /* not NULL for an empty value either */

    assert((val != NULL || len == 0) && len <= STORE_VALUE_MAX);
    if (p == NULL)
        log_out_of_memory(in_a_change);
    if (len > 0)
        memcpy(p, val, len);
    entry_change(s, key, p, len);
}

void store_delete(struct store *s, const struct key *key)
{
    entry_change(s, key, NULL, 0);
}

static void waits_call(struct list_node *waits, int rc)
{
    while (!list_is_empty(waits)) {
        struct store_wait *w = container_of(waits->next, struct store_wait, link);

        list_remove(&w->link);
        w->fn(w, rc);
    }
}

/* Moves all waiters from `from` to `to`, which is empty or not initialised. */
static void waits_move(struct list_node *from, struct list_node *to)
{
    list_add_after(from, to);
    list_remove(from);
    /* list_remove() left `to` as the head of the ring and `from` empty. */
}

static void cache_drop(struct store *s)
{
    while (!list_is_empty(&s->entries))
        entry_forget(s, entry_oldest(s));
    s->dirty = NULL;
    s->n_dirty = s->dirty_bytes = 0;
}

/* Drops the cache, which may hold what the kv lacks, and refuses changes from now on. */
static void store_fail(struct store *s, int rc)
{
    if (s->error != 0)
        return;
    s->error = rc;
    if (rc == -ROZO_ENOT_LEADER)
        log_info("metadata store: this member does not lead any more");
    else
        log_error("metadata store: cannot write: %s; serving what is there, changes are "
                  "refused until exportd is restarted",
                  error_text(rc));
    cache_drop(s);
}

static void on_sync_done(struct kv_done *done, int rc);

static void sync_start(struct store *s)
{
    assert(!s->syncing && list_is_empty(&s->syncing_waits));
    s->syncing = true;
    s->unsynced = false;
    waits_move(&s->sync_waits, &s->syncing_waits);
    kv_sync(s->kv, &s->sync_done);
}

static void on_sync_done(struct kv_done *done, int rc)
{
    struct store *s = container_of(done, struct store, sync_done);

    assert(s->syncing);
    s->syncing = false;
    if (rc != 0)
        store_fail(s, rc);
    waits_call(&s->syncing_waits, rc != 0 ? rc : s->error);
    if (!list_is_empty(&s->sync_waits))
        env_post(s->env, &s->task);
}

static void on_commit_done(struct kv_done *done, int rc)
{
    struct store_commit *c = (struct store_commit *)done;
    struct store *s = c->store;

    assert(s->n_committing > 0);
    s->n_committing--;
    if (rc != 0)
        store_fail(s, rc);
    waits_call(&c->waits, rc);
    free(c);
}

static void items_reserve(struct store *s, size_t n)
{
    if (n <= s->items_room)
        return;
    free(s->items);
    s->items_room = n * 2;
    s->items = malloc(s->items_room * sizeof(*s->items));
    if (s->items == NULL)
        log_out_of_memory(in_a_change);
}

/*
 * Evicts the keys that the batch deleted: few are read again, and all of them would fill
 * the cache.
 */
static void gone_forget(struct store *s, struct store_entry *batch)
{
    for (struct store_entry *e = batch, *next; e != NULL; e = next) {
        next = e->dirty_next;
        assert(!e->dirty);
        if (e->val == NULL)
            entry_forget(s, e);
    }
}

/* Hands the pending batch and its waiters to the kv. */
static void commit_start(struct store *s)
{
    struct store_commit *c = malloc(sizeof(*c));
    struct store_entry *batch = s->dirty, *e = batch;
    size_t n = 0;

    if (c == NULL)
        log_out_of_memory(in_a_change);
    items_reserve(s, s->n_dirty);
    for (; e != NULL; e = e->dirty_next) {
        s->items[n++] = (struct kv_item){ e->key, e->key_len, e->val, e->val_len };
        e->dirty = false;
    }
    assert(n == s->n_dirty && s->error == 0);
    s->dirty = NULL;
    s->n_dirty = s->dirty_bytes = 0;
    c->done.fn = on_commit_done;
    c->store = s;
    waits_move(&s->commit_waits, &c->waits);
    s->n_committing++;
    s->unsynced = true;
    kv_commit(s->kv, s->items, n, &c->done);
    gone_forget(s, batch); /* from here on the kv knows them */
}

/* Runs once a turn. */
static void on_turn_end(struct env_task *task)
{
    struct store *s = container_of(task, struct store, task);

    if (s->error != 0) {
        cache_drop(s);
        waits_call(&s->commit_waits, s->error);
        waits_call(&s->sync_waits, s->error);
        return;
    }
    /* Without changes, waiters wait for the commit under way: an empty one follows it. */
    if (s->n_dirty > 0 || (!list_is_empty(&s->commit_waits) && s->n_committing > 0))
        commit_start(s);
    else
        waits_call(&s->commit_waits, 0);
    if (!list_is_empty(&s->sync_waits) && !s->syncing)
        sync_start(s);
}

int store_scan(struct store *s, struct kv_iter **out)
{
    if (s->error == 0 && s->n_dirty > 0)
        commit_start(s);
    return kv_iter_open(s->kv, out);
}

void store_end_operation(struct store *s)
{
    if (s->error == 0 && s->dirty_bytes >= STORE_BATCH_BYTES)
        commit_start(s);
}

void store_trim(struct store *s)
{
    unsigned n_spared = 0;

    store_end_operation(s);
    while (s->cached_bytes > s->cache_max && !list_is_empty(&s->entries)) {
        struct store_entry *e = entry_oldest(s);

        if (e->used && n_spared < SPARED_MAX) {
            e->used = false;
            list_remove(&e->link);
            list_add_tail(&s->entries, &e->link);
            n_spared++;
        } else if (e->dirty) {
            break;
        } else {
            entry_forget(s, e);
        }
    }
}

bool store_is_clean(const struct store *s)
{
    return s->n_dirty == 0 && s->n_committing == 0;
}

bool store_is_idle(const struct store *s)
{
    return store_is_clean(s) && !s->syncing && list_is_empty(&s->commit_waits) &&
           list_is_empty(&s->sync_waits) && !s->task.queued;
}

void store_when_committed(struct store *s, struct store_wait *wait)
{
    assert(wait->fn != NULL);
    list_add_tail(&s->commit_waits, &wait->link);
    env_post(s->env, &s->task);
}

void store_when_synced(struct store *s, struct store_wait *wait)
{
    assert(wait->fn != NULL);
    list_add_tail(&s->sync_waits, &wait->link);
    env_post(s->env, &s->task);
}

void store_sync_soon(struct store *s)
{
    if (s->error == 0 && s->unsynced && !s->syncing)
        sync_start(s);
}

bool store_confirm(struct store *s, struct kv_done *done)
{
    return kv_confirm(s->kv, done);
}

int64_t store_stamp_ns(struct store *s)
{
    return kv_stamp_ns(s->kv, env_wall_ns(s->env));
}

void store_abandon(struct store *s)
{
    store_fail(s, -ROZO_ENOT_LEADER);
    env_post(s->env, &s->task); /* ends the waits */
}

int store_error(const struct store *s)
{
    return s->error;
}

uint64_t store_free_bytes(struct store *s)
{
    return kv_free_bytes(s->kv);
}

int store_open(struct env *env, struct kv *kv, size_t cache_max, struct store **out)
{
    struct store *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return -ENOMEM;
    s->n_buckets = BUCKETS_MIN;
    while (s->n_buckets < cache_max / BYTES_PER_BUCKET)
        s->n_buckets *= 2;
    s->buckets = calloc(s->n_buckets, sizeof(*s->buckets));
    if (s->buckets == NULL) {
        free(s);
        return -ENOMEM;
    }
    s->env = env;
    s->kv = kv;
    s->cache_max = cache_max;
    s->task.fn = on_turn_end;
    list_init(&s->entries);
    list_init(&s->commit_waits);
    list_init(&s->sync_waits);
    list_init(&s->syncing_waits);
    s->sync_done.fn = on_sync_done;
    *out = s;
    return 0;
}

void store_close(struct store *s)
{
    if (s == NULL)
        return;
    assert(store_is_idle(s));
    while (!list_is_empty(&s->entries))
        entry_forget(s, entry_oldest(s));
    free(s->buckets);
    free(s->items);
    free(s);
}
