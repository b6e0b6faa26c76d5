/*
 * seed_store.c - jobs of seeding on the kv below.
 *
 * In:     jobs. Out: commits and syncs of the kv below, done.
 * Keeps:  keys that are a member's own are never copied. The mark is on stable storage
 *         before anything of the old store is removed, and is removed only together with
 *         the last word on what the kv holds.
 */
#include "exportd/quorum/seed_store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/env/key_map.h"
#include "common/rpc/rpc.h"
#include "exportd/store/key.h"
#include "exportd/store/store.h"

enum {
    CLEAR_KEYS = 1000, /* keys removed in one commit */
};

/* Each key and value of exportd fits into a chunk, and into an entry of the log. */
static_assert((int)KEY_BYTES_MAX <= (int)SEED_KEY_MAX, "a chunk takes each key");
static_assert((int)SEED_ITEM_BYTES + (int)KEY_BYTES_MAX + (int)STORE_VALUE_MAX <=
                  (int)SEED_PAYLOAD,
              "a chunk takes each value");

/* Commit under way. */
struct seed_commit {
    struct kv_done done; /* must stay first */
    struct seed_store *s;
};

void seed_job_free(struct seed_job *job)
{
    if (job == NULL)
        return;
    for (unsigned i = 0; i < job->n_entries; i++)
        quorum_entry_free(job->entries[i]);
    free(job->entries);
    free(job->bytes);
    free(job);
}

static void job_end(struct seed_store *s)
{
    struct seed_job *job = s->job;

    s->job = NULL;
    s->done(s->arg, job, s->rc);
}

static void clear_next(struct seed_store *s);

/* Goes on with the job, if nothing is under way any more. */
static void job_look(struct seed_store *s)
{
    if (s->n_commits > 0 || s->is_syncing)
        return;
    if (s->rc == 0 && s->job->kind == SEED_JOB_BEGIN && s->job->mark.index == 0)
        clear_next(s);
    else
        job_end(s);
}

static void on_committed(struct kv_done *done, int rc)
{
    struct seed_commit *c = (struct seed_commit *)done;
    struct seed_store *s = c->s;

    free(c);
    assert(s->n_commits > 0);
    s->n_commits--;
    if (rc != 0 && s->rc == 0)
        s->rc = rc;
    job_look(s);
}

static void commit(struct seed_store *s, const struct kv_item *items, size_t n_items)
{
    struct seed_commit *c = malloc(sizeof(*c));

    if (c == NULL) {
        s->rc = -ENOMEM;
        return;
    }
    c->done = (struct kv_done){ .fn = on_committed };
    c->s = s;
    s->n_commits++;
    kv_commit(s->below, items, n_items, &c->done);
}

static void on_synced(struct kv_done *done, int rc)
{
    struct seed_store *s = container_of(done, struct seed_store, sync);

    s->is_syncing = false;
    if (rc != 0 && s->rc == 0)
        s->rc = rc;
    job_look(s);
}

static void sync(struct seed_store *s)
{
    s->is_syncing = true;
    s->sync = (struct kv_done){ .fn = on_synced };
    kv_sync(s->below, &s->sync);
}

/* Passes over keys that are a member's own. */
static bool iter_is_at_key(struct kv_iter *it)
{
    for (; kv_iter_valid(it); kv_iter_next(it)) {
        size_t len;
        const void *key = kv_iter_key(it, &len);

        if (!key_is_of_member(key, len))
            return true;
    }
    return false;
}

/* ---- begin and end ---- */

/* Removes some of the keys of the old store. */
static void clear_next(struct seed_store *s)
{
    struct kv_item *items = calloc(CLEAR_KEYS, sizeof(*items));
    struct kv_iter *it = NULL;
    size_t n = 0;

    s->rc = items == NULL ? -ENOMEM : kv_iter_open(s->below, &it);
    if (s->rc == 0) {
        for (kv_iter_seek(it, "", 0); n < CLEAR_KEYS && iter_is_at_key(it);
             kv_iter_next(it), n++) {
            size_t len;
            const void *key = kv_iter_key(it, &len);
            void *copy = malloc(len);

            if (copy == NULL) {
                s->rc = -ENOMEM;
                break;
            }
            memcpy(copy, key, len);
            items[n] = (struct kv_item){ copy, len, NULL, 0 };
        }
        if (s->rc == 0)
            s->rc = kv_iter_error(it);
        kv_iter_close(it);
    }
    if (s->rc == 0 && n > 0)
        commit(s, items, n);
    for (size_t i = 0; i < n; i++)
        free((void *)items[i].key);
    free(items);
    if (s->n_commits == 0)
        job_end(s);
}

static void begin(struct seed_store *s)
{
    uint8_t buf[PLACE_SEED_BYTES_MAX];
    const struct kv_item items[2] = { kv_place_seed(buf, &s->job->mark),
                                      kv_place_no_applied() };

    seed_store_clear(s);
    commit(s, items, 2);
    sync(s);
}

static void end(struct seed_store *s)
{
    const struct seed_mark *mark = &s->job->mark;
    uint8_t buf[PLACE_APPLIED_BYTES], copied[PLACE_COPIED_BYTES];
    const struct kv_item items[3] = {
        kv_place_applied(buf, mark->index, mark->term, mark->wall_ns), kv_place_no_seed(),
        kv_place_copied(copied, mark->index, mark->term)
    };

    assert(mark->is_copied && mark->index >= mark->newest);
    seed_store_clear(s);
    commit(s, items, s->is_witness ? 3 : 2);
    sync(s);
}

/* ---- the list of members ---- */

/* Makes the item that raises the highest id, if it is below this one. */
static struct kv_item highest_item(struct seed_store *s, uint64_t id,
                                   uint8_t buf[PLACE_HIGHEST_BYTES])
{
    struct kv_quorum_place before;
    int64_t wall_ns;
    int rc = kv_place_load(s->below, &before, &wall_ns);

    if (rc != 0)
        s->rc = rc;
    return kv_place_highest(buf, before.highest_id > id ? before.highest_id : id);
}

/* ---- chunks ---- */

static void chunk(struct seed_store *s)
{
    struct seed_mark *mark = &s->job->mark;
    const struct seed_chunk *c = &s->job->chunk;
    uint8_t buf[PLACE_SEED_BYTES_MAX], members[PLACE_MEMBERS_BYTES_MAX];
    uint8_t list[RAFT_CONFIG_BYTES_MAX], highest[PLACE_HIGHEST_BYTES];
    struct kv_item *items;
    size_t n;

    assert(!mark->is_copied && c->applied >= mark->index);
    s->rc = seed_items_get(s->job->bytes, s->job->len, &mark->cursor, &items, &n);
    if (s->rc != 0) {
        job_end(s);
        return;
    }
    if (n > 0) {
        mark->cursor.len = (uint32_t)items[n - 1].key_len;
        memcpy(mark->cursor.bytes, items[n - 1].key, mark->cursor.len);
    }
    if (mark->index == 0) {
        mark->index = c->applied;
        mark->term = c->applied_term;
        mark->wall_ns = c->wall_ns;
        items[n++] = kv_place_members(members, c->members_index, list,
                                      raft_config_encode(&c->members, list));
        items[n++] = highest_item(s, c->highest_id, highest);
    }
    if (c->applied > mark->newest)
        mark->newest = c->applied;
    mark->is_copied = c->is_last;
    items[n++] = kv_place_seed(buf, mark);
    commit(s, items, n);
    free(items);
    if (s->n_commits == 0)
        job_end(s);
}

/* Adds a key to the chunk. Returns false if it is full. */
static bool chunk_add(struct seed_store *s, struct seed_job *job, struct kv_iter *it,
                      size_t *room)
{
    size_t key_len, val_len, size;
    const void *key = kv_iter_key(it, &key_len), *val = kv_iter_val(it, &val_len);

    size = SEED_ITEM_BYTES + key_len + val_len;
    if (job->len > 0 && job->len + size > SEED_PAYLOAD)
        return false;
    if (key_len > SEED_KEY_MAX || size > RPC_PAYLOAD_MAX) {
        s->rc = -EFBIG;
        return false;
    }
    if (job->len + size > *room) {
        size_t more = job->len + size > SEED_PAYLOAD ? size : SEED_PAYLOAD;
        uint8_t *bytes = realloc(job->bytes, more);

        if (bytes == NULL) {
            s->rc = -ENOMEM;
            return false;
        }
        job->bytes = bytes;
        *room = more;
    }
    job->len += seed_item_put(job->bytes + job->len, key, key_len, val, val_len);
    return true;
}

static int chunk_read(struct seed_store *s, struct seed_job *job)
{
    const struct seed_key *after = &job->mark.cursor;
    struct kv_iter *it;
    size_t room = 0;

    s->rc = kv_iter_open(s->below, &it);
    if (s->rc != 0)
        return s->rc;
    kv_iter_seek(it, after->bytes, after->len);
    if (after->len > 0 && iter_is_at_key(it)) {
        size_t len;
        const void *key = kv_iter_key(it, &len);

        if (key_compare(key, len, after->bytes, after->len) == 0)
            kv_iter_next(it);
    }
    while (iter_is_at_key(it) && chunk_add(s, job, it, &room))
        kv_iter_next(it);
    job->chunk.is_last = !iter_is_at_key(it);
    if (s->rc == 0)
        s->rc = kv_iter_error(it);
    kv_iter_close(it);
    return s->rc;
}

/* ---- entries ---- */

static bool is_copied(const struct seed_mark *mark, const struct kv_item *item)
{
    return mark->is_copied || key_compare(item->key, item->key_len, mark->cursor.bytes,
                                          mark->cursor.len) <= 0;
}

/* Writes items, with room for SEED_ITEMS_SPARE - 1 more, and the mark. */
static void entry_commit(struct seed_store *s, const struct raft_log_entry *e,
                         struct kv_item *items, size_t n)
{
    struct seed_mark *mark = &s->job->mark;
    uint8_t buf[PLACE_SEED_BYTES_MAX];

    mark->index = e->index;
    mark->term = e->term;
    items[n] = kv_place_seed(buf, mark);
    commit(s, items, n + 1);
}

static void batch_apply(struct seed_store *s, const struct raft_log_entry *e,
                        const uint8_t *batch, size_t len)
{
    struct seed_mark *mark = &s->job->mark;
    struct quorum_batch_head head;
    struct kv_item *items;
    size_t n_items, n = 0;

    s->rc = quorum_batch_get(batch, len, &items, &n_items, &head);
    if (s->rc != 0)
        return;
    if (head.wall_ns > mark->wall_ns)
        mark->wall_ns = head.wall_ns;
    for (size_t i = 0; i < n_items; i++)
        if (!s->is_witness && is_copied(mark, &items[i]))
            items[n++] = items[i];
    entry_commit(s, e, items, n);
    free(items);
}

static void part_apply(struct seed_store *s, const struct quorum_entry *entry)
{
    const uint8_t *part;
    uint8_t *all;
    size_t len;
    bool more;

    s->rc = quorum_part_get(entry, &part, &len, &more);
    if (s->rc != 0)
        return;
    all = realloc(s->parts, s->parts_len + len + 1);
    if (all == NULL) {
        s->rc = -ENOMEM;
        return;
    }
    memcpy(all + s->parts_len, part, len);
    s->parts = all;
    s->parts_len += len;
    if (more)
        return;
    batch_apply(s, &entry->e, s->parts, s->parts_len);
    seed_store_clear(s);
}

static void entry_apply(struct seed_store *s, const struct quorum_entry *entry)
{
    uint8_t members[PLACE_MEMBERS_BYTES_MAX], highest[PLACE_HIGHEST_BYTES];
    struct kv_item items[1 + SEED_ITEMS_SPARE];
    struct raft_config config;
    size_t n = 0;

    if (entry->e.kind == RAFT_ENTRY_BATCH) {
        part_apply(s, entry);
        return;
    }
    /* Parts of one batch lie together: a leader ended between them. */
    seed_store_clear(s);
    if (entry->e.kind == RAFT_ENTRY_CONFIG) {
        s->rc = raft_config_decode(entry->e.data, entry->e.len, &config);
        if (s->rc != 0)
            return;
        items[n++] =
            kv_place_members(members, entry->e.index, entry->e.data, entry->e.len);
        items[n++] = highest_item(s, raft_config_highest(&config), highest);
    }
    entry_commit(s, &entry->e, items, n);
}

static void entries(struct seed_store *s)
{
    struct seed_job *job = s->job;

    for (unsigned i = 0; i < job->n_entries && s->rc == 0; i++)
        entry_apply(s, job->entries[i]);
    if (s->n_commits == 0)
        job_end(s);
}

void seed_store_run(struct seed_store *s, struct seed_job *job)
{
    s->rc = 0;
    if (job->kind == SEED_JOB_READ) {
        int rc = chunk_read(s, job);

        s->done(s->arg, job, rc);
        return;
    }
    assert(s->job == NULL);
    s->job = job;
    if (job->kind == SEED_JOB_BEGIN)
        begin(s);
    else if (job->kind == SEED_JOB_CHUNK)
        chunk(s);
    else if (job->kind == SEED_JOB_ENTRIES)
        entries(s);
    else
        end(s);
}

void seed_store_clear(struct seed_store *s)
{
    free(s->parts);
    s->parts = NULL;
    s->parts_len = 0;
}

void seed_store_adopt(struct kv *below, const struct seed_adoption *a,
                      struct kv_done *done)
{
    const struct seed_mark mark = { .doubt = SEED_VOTE_LOST };
    uint8_t seed[PLACE_SEED_BYTES_MAX], members[PLACE_MEMBERS_BYTES_MAX];
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    const struct kv_item items[2] = {
        kv_place_seed(seed, &mark),
        kv_place_members(members, a->list_index, list,
                         raft_config_encode(&a->list, list)),
    };

    kv_commit(below, items, 2, done);
}
