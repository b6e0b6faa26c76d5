/*
 * deletion.c - ask storages to remove files, until each has confirmed.
 *
 * In:     the tick; KEY_DELETION records that namespace.c puts when a file is removed.
 * Out:    ST_REMOVE to each storage of the file's distribution.
 * Keeps:  no storage removes anything before the removal of the file is on stable storage
 *         here. A storage that does not confirm gets a KEY_WAITING record, so that others
 *         need not wait for it, and is asked again when it is back, also after restarts.
 *         One request names many files, in the order of the keys, which is that of a
 *         storage's directories.
 * Yours:  DELETION_ROUND_MAX, the deadlines.
 */
#include "exportd/cluster/deletion.h"

#include <assert.h>
#include <errno.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"

enum {
    DELETION_FORMAT = 1,
    DELETION_HEAD_BYTES = 6,  /* format, n storages, generation; then the storages */
    DELETION_ROUND_MAX = 256, /* files in one round */
    REMOVE_DEADLINE_MS = 5000,
    RETRY_MS = 5000,
};

/* One file at one storage. */
struct target {
    struct deletion_item *item;
    uint32_t storage_id;
    bool confirmed;
};

/* Files in one request to one storage. */
struct deletion_batch {
    struct rpc_request rq;
    struct list_node link; /* in round->batches once sent */
    struct deletion_round *round;
    uint32_t storage_id;
    unsigned n;
    struct target *targets[REMOVE_FILES_MAX];
};

/* Removed file. */
struct deletion_item {
    struct list_node link; /* in round->items */
    struct deletion_round *round;
    struct key key;
    struct file_id id;
    unsigned n_targets, n_left;
    struct target targets[];
};

/* Some removed files, from the scan until all storages have answered. */
struct deletion_round {
    struct exportd *x;
    struct deletions *of;
    /* storage whose KEY_WAITING records are sent; NULL: new removals */
    struct cluster_storage *storage;
    struct list_node items;
    struct list_node batches; /* batches sent */
    unsigned n_items; /* items not finished; plus one while requests are being sent */
    bool failed;
    struct store_wait wait;
};

static void round_start(struct exportd *x, struct cluster_storage *storage);

static struct deletion_item *item_new(struct deletion_round *r, const uint8_t *key,
                                      size_t key_len, unsigned n_targets)
{
    struct deletion_item *item =
        calloc(1, sizeof(*item) + n_targets * sizeof(item->targets[0]));

    if (item == NULL)
        return NULL;
    item->round = r;
    item->n_targets = n_targets;
    key_start(&item->key, key[0]);
    key_add_bytes(&item->key, key + 1, key_len - 1);
    for (unsigned i = 0; i < n_targets; i++)
        item->targets[i].item = item;
    list_add_tail(&r->items, &item->link);
    r->n_items++;
    return item;
}

static struct key round_prefix(const struct deletion_round *r)
{
    struct key k;

    key_start(&k, r->storage == NULL ? KEY_DELETION : KEY_WAITING);
    if (r->storage != NULL)
        key_add_u32(&k, r->storage->facts.id);
    return k;
}

/* Loads a record from the kv. A corrupt one is dropped, since nothing can be done with
 * it. */
static int item_load(struct deletion_round *r, const uint8_t *key, size_t key_len,
                     const uint8_t *val, size_t len)
{
    size_t head = r->storage == NULL ? 1 : 5;
    unsigned n = r->storage == NULL && len >= DELETION_HEAD_BYTES ? val[1] : 1;
    bool sane = key_len == head + 12 && len >= DELETION_HEAD_BYTES &&
                val[0] == DELETION_FORMAT && n <= DIST_MAX &&
                (r->storage != NULL || len == DELETION_HEAD_BYTES + 4 * (size_t)n);
    struct deletion_item *item;

    if (key_len > KEY_BYTES_MAX)
        return 0;
    item = item_new(r, key, key_len, sane ? n : 0);
    if (item == NULL)
        return -ENOMEM;
    if (!sane) {
        log_error("a record of a removed file in the metadata store is corrupt: dropped");
        return 0;
    }
    item->id = (struct file_id){ key_get_u32(key + head), get_le32(val + 2),
                                 key_get_u64(key + head + 4) };
    for (unsigned i = 0; i < n; i++)
        item->targets[i].storage_id = r->storage != NULL
                                          ? r->storage->facts.id
                                          : get_le32(val + DELETION_HEAD_BYTES + 4 * i);
    return 0;
}

/* Loads the next records behind the cursor. */
static int round_scan(struct deletion_round *r)
{
    struct key prefix = round_prefix(r);
    struct key *cursor = &r->of->cursor;
    struct kv_iter *it;
    size_t key_len, len;
    int rc = store_scan(r->x->store, &it);

    if (rc != 0)
        return rc;
    if (cursor->len == 0)
        *cursor = prefix;
    kv_iter_seek(it, cursor->bytes, cursor->len);
    for (; rc == 0 && r->n_items < DELETION_ROUND_MAX && kv_iter_valid(it);
         kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len <= prefix.len || memcmp(key, prefix.bytes, prefix.len) != 0)
            break;
        rc = item_load(r, key, key_len, val, len);
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

/* Moves the cursor behind the last key of this round; after an empty round to the
 * start. */
static void cursor_move(struct deletion_round *r)
{
    struct key *cursor = &r->of->cursor;

    if (list_is_empty(&r->items)) {
        cursor->len = 0;
        return;
    }
    *cursor = container_of(r->items.prev, struct deletion_item, link)->key;
    if (cursor->len < sizeof(cursor->bytes))
        cursor->bytes[cursor->len++] = 0; /* smallest key behind it */
}

static void waiting_put(struct exportd *x, const struct file_id *id, uint32_t storage_id)
{
    struct cluster_storage *s = storage_find(x, storage_id);
    uint8_t val[DELETION_HEAD_BYTES] = { DELETION_FORMAT, 1 };
    struct key k;

    put_le32(val + 2, id->generation);
    key_waiting(&k, storage_id, id->export_id, id->ino);
    store_put(x->store, &k, val, sizeof(val));
    if (s != NULL)
        s->deletions.n++;
}

bool deletion_add(struct cluster_storage *s, const struct file_id *id)
{
    const uint8_t *val;
    struct key k;
    size_t len;

    key_ino(&k, KEY_DELETION, id->export_id, id->ino);
    if (store_get(s->x->store, &k, &val, &len) != -ENOENT)
        return false;
    key_waiting(&k, s->facts.id, id->export_id, id->ino);
    if (store_get(s->x->store, &k, &val, &len) != -ENOENT)
        return false;
    waiting_put(s->x, id, s->facts.id);
    return true;
}

static void round_free(struct deletion_round *r)
{
    r->of->round = NULL;
    LIST_FOREACH_SAFE(node, &r->items)
        free(container_of(node, struct deletion_item, link));
    assert(list_is_empty(&r->batches));
    free(r);
}

static void round_end(struct deletion_round *r)
{
    struct exportd *x = r->x;
    struct cluster_storage *s = r->storage;
    const struct deletions *of = r->of;
    bool failed = r->failed;

    round_free(r);
    if (s != NULL && failed)
        s->deletions.retry_ns = env_now_ns(x->env) + ms_to_ns(RETRY_MS);
    else if (of->n > 0)
        round_start(x, s);
}

static void item_end(struct deletion_item *item)
{
    struct deletion_round *r = item->round;
    struct exportd *x = r->x;
    bool confirmed = true;

    for (unsigned i = 0; i < item->n_targets; i++) {
        struct target *t = &item->targets[i];

        confirmed = confirmed && t->confirmed;
        if (!t->confirmed && r->storage == NULL)
            waiting_put(x, &item->id, t->storage_id);
    }
    if (r->storage == NULL || confirmed) {
        store_delete(x->store, &item->key);
        r->of->n -= r->of->n > 0;
    } else {
        r->failed = true;
    }
    list_remove(&item->link);
    free(item);
    if (--r->n_items == 0)
        round_end(r);
}

/* Ends a file at one storage, for this round. */
static void target_end(struct target *t)
{
    if (--t->item->n_left == 0)
        item_end(t->item);
}

static void on_removed(struct rpc_request *rq, int rc);

static void batch_send(struct cluster_storage *s)
{
    struct deletion_batch *b = s->deletions.gathering;
    Rozo__StRemoveReq msg = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t ids[REMOVE_FILES_MAX][FILE_ID_BYTES];
    uint8_t buf[REMOVE_FILES_MAX * (FILE_ID_BYTES + 2) + 16];
    ProtobufCBinaryData more[REMOVE_FILES_MAX];

    if (b == NULL)
        return;
    s->deletions.gathering = NULL;
    for (unsigned i = 0; i < b->n; i++) {
        file_id_put(ids[i], &b->targets[i]->item->id);
        more[i] = (ProtobufCBinaryData){ FILE_ID_BYTES, ids[i] };
    }
    msg.file_id = more[0];
    msg.n_more = b->n - 1;
    msg.more = more + 1;
    msg.to_storage = b->storage_id;
    assert(rozo__st_remove_req__get_packed_size(&msg) <= sizeof(buf));
    b->rq = (struct rpc_request){
        .op = ROZO__OP__ST_REMOVE,
        .deadline_ms = REMOVE_DEADLINE_MS,
        .msg = buf,
        .msg_len = rozo__st_remove_req__pack(&msg, buf),
        .done = on_removed,
    };
    list_add_tail(&b->round->batches, &b->link);
    storage_send(s, &b->rq);
}

/* Adds a file to the batch, which is sent when full or by batch_send(). */
static bool batch_add(struct cluster_storage *s, struct target *t)
{
    struct deletion_batch *b = s->deletions.gathering;

    if (b == NULL) {
        b = s->deletions.gathering = calloc(1, sizeof(*b));
        if (b == NULL)
            return false;
        b->round = t->item->round;
        b->storage_id = s->facts.id;
    }
    b->targets[b->n++] = t;
    if (b->n == REMOVE_FILES_MAX)
        batch_send(s);
    return true;
}

/* Asks again for files that belong to other loops of the storage, but not for the first
 * of the batch: the loop that answered owns it, so each request names fewer. */
static void batch_again(struct deletion_batch *b, struct cluster_storage *s,
                        const Rozo__StRemoveResp *resp)
{
    for (size_t i = 0; i < resp->n_elsewhere; i++) {
        uint32_t at = resp->elsewhere[i];
        struct target *t = at > 0 && at < b->n ? b->targets[at] : NULL;

        if (t == NULL)
            continue;
        t->confirmed = false;
        if (batch_add(s, t))
            b->targets[at] = NULL;
    }
    batch_send(s);
}

static void batch_take(struct deletion_batch *b, struct cluster_storage *s, int rc)
{
    Rozo__StRemoveResp *resp = NULL;

    if (rc == 0 && b->rq.status == ROZO__STATUS__OK)
        resp = rozo__st_remove_resp__unpack(NULL, b->rq.answer_msg_len, b->rq.answer_msg);
    if (resp == NULL)
        return; /* none is confirmed */
    for (unsigned i = 0; i < b->n; i++)
        b->targets[i]->confirmed = true;
    for (size_t i = 0; i < resp->n_failed; i++) {
        if (resp->failed[i] < b->n)
            b->targets[resp->failed[i]]->confirmed = false;
    }
    batch_again(b, s, resp);
    rozo__st_remove_resp__free_unpacked(resp, NULL);
}

static void on_removed(struct rpc_request *rq, int rc)
{
    struct deletion_batch *b = container_of(rq, struct deletion_batch, rq);
    struct cluster_storage *s = storage_find(b->round->x, b->storage_id);

    assert(s != NULL && s->n_out > 0);
    s->n_out--;
    list_remove(&b->link);
    batch_take(b, s, rc);
    for (unsigned i = 0; i < b->n; i++) {
        if (b->targets[i] != NULL)
            target_end(b->targets[i]); /* the round may end with the last one */
    }
    free(b);
}

static bool target_send(struct deletion_item *item, struct target *t)
{
    struct cluster_storage *s = storage_find(item->round->x, t->storage_id);

    if (s == NULL) {
        t->confirmed = true; /* the storage does not exist (any more) */
        return false;
    }
    return storage_is_reachable(s) && batch_add(s, t);
}

/* Sends the removals, which are on stable storage now. */
static void on_round_synced(struct store_wait *wait, int rc)
{
    struct deletion_round *r = container_of(wait, struct deletion_round, wait);

    if (rc != 0 || r->x->stopping) {
        round_free(r);
        return;
    }
    r->n_items++; /* keeps the round while requests are being sent */
    LIST_FOREACH_SAFE(node, &r->items) {
        struct deletion_item *item = container_of(node, struct deletion_item, link);

        item->n_left = 1;
        for (unsigned i = 0; i < item->n_targets; i++)
            item->n_left += target_send(item, &item->targets[i]);
        if (--item->n_left == 0)
            item_end(item);
    }
    LIST_FOREACH(node, &r->x->storages)
        batch_send(container_of(node, struct cluster_storage, link));
    if (--r->n_items == 0)
        round_end(r);
}

static void round_start(struct exportd *x, struct cluster_storage *storage)
{
    struct deletion_round *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return; /* tried again with the next tick */
    r->x = x;
    r->storage = storage;
    r->of = storage == NULL ? &x->deletions : &storage->deletions;
    r->wait.fn = on_round_synced;
    list_init(&r->items);
    list_init(&r->batches);
    assert(r->of->round == NULL);
    r->of->round = r;
    if (x->stopping || round_scan(r) != 0) {
        round_free(r);
        return;
    }
    cursor_move(r);
    if (r->n_items == 0)
        round_free(r); /* records before the cursor come with the next tick */
    else
        store_when_synced(x->store, &r->wait);
}

void export_deleted(void *arg, const struct inode *in)
{
    struct export *e = arg;

    (void)in;
    e->x->deletions.n++;
}

void deletion_tick(struct exportd *x)
{
    uint64_t now_ns = env_now_ns(x->env);

    if (store_error(x->store) != 0)
        return;
    if (x->deletions.round == NULL && x->deletions.n > 0)
        round_start(x, NULL);
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->deletions.round == NULL && s->deletions.n > 0 &&
            now_ns >= s->deletions.retry_ns && storage_is_reachable(s))
            round_start(x, s);
    }
}

/* Counts the records of one kind. */
static int deletion_count(struct exportd *x, enum key_kind kind)
{
    struct kv_iter *it;
    struct key prefix;
    size_t len;
    int rc = store_scan(x->store, &it);

    if (rc != 0)
        return rc;
    key_start(&prefix, kind);
    for (kv_iter_seek(it, prefix.bytes, prefix.len); kv_iter_valid(it);
         kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &len);
        struct cluster_storage *s;

        if (len < 5 || key[0] != kind)
            break;
        x->deletions.n += kind == KEY_DELETION;
        s = kind == KEY_WAITING ? storage_find(x, key_get_u32(key + 1)) : NULL;
        if (s != NULL)
            s->deletions.n++;
    }
    rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

int deletion_load(struct exportd *x)
{
    int rc = deletion_count(x, KEY_DELETION);

    return rc == 0 ? deletion_count(x, KEY_WAITING) : rc;
}

bool deletions_are_over(const struct deletions *d)
{
    assert(d->round != NULL || d->gathering == NULL);
    return d->round == NULL;
}

uint64_t deletions_missed(const struct cluster_storage *s)
{
    return s->deletions.n;
}

uint64_t deletions_waiting(const struct exportd *x)
{
    uint64_t n = x->deletions.n;

    LIST_FOREACH(node, &x->storages)
        n += deletions_missed(container_of(node, struct cluster_storage, link));
    return n;
}

static void round_cancel(struct deletion_round *r)
{
    bool sent = r != NULL && !list_is_empty(&r->batches);

    if (r == NULL)
        return;
    LIST_FOREACH_SAFE(node, &r->batches) {
        struct deletion_batch *b = container_of(node, struct deletion_batch, link);

        rpc_cancel(&b->rq);
        storage_find(r->x, b->storage_id)->n_out--;
        list_remove(&b->link);
        free(b);
    }
    if (sent)
        round_free(r); /* if not sent, the round waits for a sync and ends then */
}

void deletion_free(struct exportd *x)
{
    round_cancel(x->deletions.round);
    LIST_FOREACH(node, &x->storages)
        round_cancel(container_of(node, struct cluster_storage, link)->deletions.round);
}
