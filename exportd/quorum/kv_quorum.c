/*
 * kv_quorum.c - overlay, commits that wait for the quorum, entries for the kv below.
 *
 * In:     kv calls of exportd's store; committed entries and news of the member.
 * Out:    batches for the log, commits of the kv below, callbacks from a posted task.
 * Keeps:  the kv below changes only by entries of the log, in their order, each batch
 *         whole and in one write with the index of the newest one (so a restart goes on
 *         behind it), and only by entries that no loss of power takes back. I4: a commit
 *         is done only when its batch is committed.
 */
#include "exportd/quorum/kv_quorum.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/env/key_map.h"
#include "exportd/quorum/seed_store.h"
#include "exportd/store/key.h"

/* Commit that waits for the quorum. */
struct pending {
    struct list_node link;
    struct kv_done *done; /* borrowed */
    uint64_t number;      /* number of this commit */
    bool is_empty;        /* has no entries: it is done with the one before it */
};

/* Change of the kv below, from an entry that is committed: it waits until that is stable,
 * then it is part of a write. */
struct change {
    struct list_node link;
    uint64_t index, term;
    int64_t wall_ns;       /* clock of the newest entry up to this one */
    uint64_t number;       /* number of our user's commit; 0: not one of those */
    struct kv_item *items; /* owned */
    size_t n_items;
    size_t n_bytes;              /* bytes of its keys and values */
    struct quorum_entry *entry;  /* a use of it: items point into it, or into bytes */
    uint8_t *bytes;              /* owned */
    struct raft_config *members; /* owned; NULL: it is no list of members */
};

/* One commit of the kv below: changes that are stable, in their order. */
struct below_write {
    struct kv_done done; /* must stay first */
    struct kv_quorum *q;
    struct list_node changes; /* not empty */
    uint64_t index, term;     /* entry of the newest one */
    size_t n_items, n_bytes;  /* sums over the changes */
};

/* Bytes of a write of several changes: it holds up the core's thread. */
enum { WRITE_BYTES_MAX = 4 << 20 };

static const char in_the_log[] = "in the metadata log";

/* FIFO of callbacks. */
struct done_list {
    struct kv_done *first, **last;
};

struct kv_quorum {
    struct kv kv; /* must stay first */
    struct kv_quorum_config config;
    struct kv_quorum_place place;
    int64_t wall_ns;  /* clock of the newest entry applied */
    int64_t stamp_ns; /* newest time given to our user while it leads */
    uint64_t given;   /* newest entry given to kv_quorum_apply() */
    /* newest entry that reads of the kv below show; place.applied follows */
    uint64_t below_index, below_term;
    struct list_node changes; /* changes that are not in a write yet */
    uint64_t stable;          /* newest entry that is */
    uint64_t own_index;       /* newest entry of a commit of our user */
    struct seed_store store;
    int error; /* error of the kv below */
    bool leads;
    uint64_t reign;         /* random, in all batches from this kv_quorum_lead() on */
    struct key_map overlay; /* mark: number of the newest commit of the key */
    uint64_t n_commits;     /* commits of our user so far */
    struct list_node pendings;
    unsigned n_writes;      /* under way */
    struct list_node reads; /* jobs of seeding that wait until no write is under way */
    unsigned n_iters;
    uint64_t free_max;
    _Atomic uint64_t losses; /* value of KEY_LOSSES in the kv below */

    /* Parts of a batch whose last one has not come. */
    uint8_t *parts; /* owned */
    size_t parts_len;

    struct kv_done *sync_done; /* borrowed; NULL: no sync */
    uint64_t sync_number;      /* the sync ends with this commit */
    uint64_t sync_index;       /* newest entry of a commit up to that one */
    /* Confirmations: asked for at asked_ns; for the next question. */
    struct done_list asked, asking;
    uint64_t asked_ns;

    struct kv_done below_sync;
    bool is_syncing_below;
    uint64_t below_sync_index;

    struct done_list ended;
    struct env_task task; /* calls `ended` */
};

struct quorum_iter {
    struct kv_iter it; /* must stay first */
    struct kv_quorum *q;
    struct kv_iter *below; /* owned */
    struct key_map_node *over;
    bool is_over; /* the current key is that of the overlay */
};

static struct kv_quorum *of_kv(struct kv *kv)
{
    return (struct kv_quorum *)kv;
}

/* ---- callbacks ---- */

static void done_list_init(struct done_list *l)
{
    l->first = NULL;
    l->last = &l->first;
}

static void done_list_add(struct done_list *l, struct kv_done *done, int rc)
{
    done->rc = rc;
    done->next = NULL;
    *l->last = done;
    l->last = &done->next;
}

static struct kv_done *done_list_take(struct done_list *l)
{
    struct kv_done *done = l->first;

    l->first = done->next;
    if (l->first == NULL)
        l->last = &l->first;
    return done;
}

static void done_post(struct kv_quorum *q, struct kv_done *done, int rc)
{
    done_list_add(&q->ended, done, rc);
    env_post(q->config.env, &q->task);
}

static void done_post_all(struct kv_quorum *q, struct done_list *l, int rc)
{
    while (l->first != NULL)
        done_post(q, done_list_take(l), rc);
}

static void on_ended(struct env_task *task)
{
    struct kv_quorum *q = container_of(task, struct kv_quorum, task);

    while (q->ended.first != NULL) {
        struct kv_done *done = done_list_take(&q->ended);

        done->fn(done, done->rc);
    }
}

/* ---- commits of our user ---- */

static struct pending *pending_first(const struct kv_quorum *q)
{
    return list_is_empty(&q->pendings)
               ? NULL
               : container_of(q->pendings.next, struct pending, link);
}

static void pending_end(struct kv_quorum *q, struct pending *p, int rc)
{
    done_post(q, p->done, rc);
    free(p);
}

/* Ends what waits for commits that are done: the first pending one is not. */
static void pendings_look(struct kv_quorum *q)
{
    struct pending *p = pending_first(q);

    while (p != NULL && p->is_empty) {
        list_remove(&p->link);
        pending_end(q, p, 0);
        p = pending_first(q);
    }
    if (q->sync_done != NULL && q->stable >= q->sync_index &&
        (p == NULL || p->number > q->sync_number)) {
        done_post(q, q->sync_done, 0);
        q->sync_done = NULL;
    }
}

/* Ends everything that waits: others may commit it, or have committed it. */
static void waits_fail(struct kv_quorum *q)
{
    struct pending *p;

    while ((p = pending_first(q)) != NULL) {
        list_remove(&p->link);
        pending_end(q, p, -ROZO_ENOT_LEADER);
    }
    if (q->sync_done != NULL)
        done_post(q, q->sync_done, -ROZO_ENOT_LEADER);
    q->sync_done = NULL;
    done_post_all(q, &q->asked, -ROZO_ENOT_LEADER);
    done_post_all(q, &q->asking, -ROZO_ENOT_LEADER);
}

static void fail(struct kv_quorum *q, int rc, const char *what);

static void overlay_put(struct kv_quorum *q, const struct kv_item *items, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        struct key_map_node *n = key_map_put(&q->overlay, items[i].key, items[i].key_len,
                                             items[i].val, items[i].val_len);

        if (n == NULL)
            log_out_of_memory(in_the_log);
        n->mark = q->n_commits;
    }
}

static void overlay_clear(struct kv_quorum *q)
{
    struct key_map_node *n;

    while ((n = key_map_seek(&q->overlay, NULL, 0)) != NULL)
        key_map_remove(&q->overlay, n);
}

/* Keeps the times of a reign in order, and above those of earlier ones. */
static int64_t quorum_stamp_ns(struct kv *kv, int64_t wall_ns)
{
    struct kv_quorum *q = of_kv(kv);

    if (wall_ns > q->stamp_ns)
        q->stamp_ns = wall_ns;
    return q->stamp_ns;
}

static void quorum_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                          struct kv_done *done)
{
    struct kv_quorum *q = of_kv(kv);
    struct quorum_entry *parts[QUORUM_PARTS_MAX];
    struct quorum_batch_head head;
    struct pending *p;
    int n;

    assert(q->n_iters == 0);
    if (!q->leads || q->error != 0) {
        done_post(q, done, -ROZO_ENOT_LEADER);
        return;
    }
    p = malloc(sizeof(*p));
    if (p == NULL)
        log_out_of_memory(in_the_log);
    *p = (struct pending){ .done = done,
                           .number = ++q->n_commits,
                           .is_empty = n_items == 0 };
    list_add_tail(&q->pendings, &p->link);
    if (p->is_empty) {
        pendings_look(q);
        return;
    }
    head = (struct quorum_batch_head){ quorum_stamp_ns(kv, env_wall_ns(q->config.env)),
                                       q->reign, p->number };
    n = quorum_batch_new(items, n_items, &head, parts);
    if (n == -ENOMEM)
        log_out_of_memory(in_the_log);
    if (n < 0) { /* the core has the change in its memory: neither can go on */
        fail(q, n,
             n == -EFBIG ? "a change that is too large for the metadata log"
                         : "a change of keys that are this member's own");
        return;
    }
    overlay_put(q, items, n_items);
    q->config.hooks->submit(q->config.hooks->arg, parts, (unsigned)n);
    while (n > 0)
        quorum_entry_free(parts[--n]);
}

static void quorum_sync(struct kv *kv, struct kv_done *done)
{
    struct kv_quorum *q = of_kv(kv);

    assert(q->sync_done == NULL);
    if (!q->leads || q->error != 0) {
        done_post(q, done, -ROZO_ENOT_LEADER);
        return;
    }
    q->sync_done = done;
    q->sync_number = q->n_commits;
    q->sync_index = q->own_index;
    pendings_look(q);
    if (q->sync_done != NULL)
        q->config.hooks->want_stable(q->config.hooks->arg);
}

/* ---- confirmations ---- */

static void confirm_ask(struct kv_quorum *q, uint64_t now_ns)
{
    assert(q->asked.first == NULL);
    q->asked = q->asking;
    if (q->asked.first == NULL)
        q->asked.last = &q->asked.first;
    done_list_init(&q->asking);
    q->asked_ns = now_ns;
    if (q->asked.first != NULL)
        q->config.hooks->confirm(q->config.hooks->arg, now_ns);
}

static bool quorum_confirm(struct kv *kv, struct kv_done *done)
{
    struct kv_quorum *q = of_kv(kv);
    const struct kv_quorum_hooks *hooks = q->config.hooks;
    uint64_t now_ns;

    if (!q->leads || q->error != 0) {
        if (done != NULL)
            done_post(q, done, -ROZO_ENOT_LEADER);
        return false;
    }
    now_ns = hooks->now_ns(hooks->arg);
    if (now_ns < hooks->lease_until_ns(hooks->arg))
        return true;
    if (done == NULL)
        return false;
    done_list_add(&q->asking, done, 0);
    if (q->asked.first == NULL)
        confirm_ask(q, now_ns);
    return false;
}

void kv_quorum_confirmed(struct kv_quorum *q, uint64_t at_ns)
{
    const struct kv_quorum_hooks *hooks = q->config.hooks;

    if (!q->leads || q->asked.first == NULL || at_ns < q->asked_ns)
        return;
    done_post_all(q, &q->asked, 0);
    confirm_ask(q, hooks->now_ns(hooks->arg));
}

/* ---- reading ---- */

/* A store that cannot be read ends the member, since others can read theirs. */
static void read_look(struct kv_quorum *q, int rc)
{
    if (rc == -EIO || rc == -ROZO_EDAMAGED)
        fail(q, rc, "read the metadata store");
}

static int quorum_get(struct kv *kv, const void *key, size_t key_len, void **val,
                      size_t *val_len)
{
    struct kv_quorum *q = of_kv(kv);
    const struct key_map_node *n = key_map_get(&q->overlay, key, key_len);

    if (key_is_of_member(key, key_len))
        return -ENOENT;
    if (n == NULL) {
        int rc = kv_get(q->config.below, key, key_len, val, val_len);

        read_look(q, rc);
        return rc;
    }
    if (n->val == NULL)
        return -ENOENT;
    *val = malloc(n->val_len + 1);
    if (*val == NULL)
        return -ENOMEM;
    memcpy(*val, n->val, n->val_len);
    *val_len = n->val_len;
    return 0;
}

static bool is_hidden(struct kv_iter *below)
{
    size_t len;
    const void *key = kv_iter_key(below, &len);

    return key_is_of_member(key, len);
}

/* Chooses the current key: the smaller one; the overlay's if both are equal. Passes over
 * deleted and hidden ones. */
static void iter_choose(struct quorum_iter *i)
{
    for (;;) {
        int d = i->over == NULL ? 1 : -1;

        while (kv_iter_valid(i->below) && is_hidden(i->below))
            kv_iter_next(i->below);
        if (i->over != NULL && kv_iter_valid(i->below)) {
            size_t len;
            const void *key = kv_iter_key(i->below, &len);

            d = key_compare(i->over->key, i->over->key_len, key, len);
        }
        i->is_over = d <= 0;
        if (d == 0)
            kv_iter_next(i->below);
        if (!i->is_over || i->over->val != NULL)
            return;
        i->over = i->over->next[0];
    }
}

static void iter_seek(struct kv_iter *it, const void *key, size_t key_len)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    kv_iter_seek(i->below, key, key_len);
    i->over = key_map_seek(&i->q->overlay, key, key_len);
    iter_choose(i);
}

static bool iter_valid(struct kv_iter *it)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    return i->is_over ? kv_iter_error(i->below) == 0 : kv_iter_valid(i->below);
}

static void iter_next(struct kv_iter *it)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    if (i->is_over)
        i->over = i->over->next[0];
    else
        kv_iter_next(i->below);
    iter_choose(i);
}

static const void *iter_key(struct kv_iter *it, size_t *len_bytes)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    if (!i->is_over)
        return kv_iter_key(i->below, len_bytes);
    *len_bytes = i->over->key_len;
    return i->over->key;
}

static const void *iter_val(struct kv_iter *it, size_t *len_bytes)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    if (!i->is_over)
        return kv_iter_val(i->below, len_bytes);
    *len_bytes = i->over->val_len;
    return i->over->val;
}

static int iter_error(struct kv_iter *it)
{
    struct quorum_iter *i = (struct quorum_iter *)it;
    int rc = kv_iter_error(i->below);

    read_look(i->q, rc);
    return rc;
}

static void iter_close(struct kv_iter *it)
{
    struct quorum_iter *i = (struct quorum_iter *)it;

    kv_iter_close(i->below);
    i->q->n_iters--;
    free(i);
}

static const struct kv_iter_ops iter_ops = {
    .seek = iter_seek,
    .valid = iter_valid,
    .next = iter_next,
    .key = iter_key,
    .val = iter_val,
    .error = iter_error,
    .close = iter_close,
};

static int quorum_iter_open(struct kv *kv, struct kv_iter **out)
{
    struct kv_quorum *q = of_kv(kv);
    struct quorum_iter *i = calloc(1, sizeof(*i));
    int rc;

    if (i == NULL)
        return -ENOMEM;
    rc = kv_iter_open(q->config.below, &i->below);
    if (rc != 0) {
        free(i);
        return rc;
    }
    i->it.ops = &iter_ops;
    i->q = q;
    q->n_iters++;
    *out = &i->it;
    return 0;
}

static uint64_t quorum_free_bytes(struct kv *kv)
{
    struct kv_quorum *q = of_kv(kv);
    uint64_t below = kv_free_bytes(q->config.below);

    return below < q->free_max ? below : q->free_max;
}

static const struct kv_ops quorum_ops = {
    .get = quorum_get,
    .iter_open = quorum_iter_open,
    .commit = quorum_commit,
    .sync = quorum_sync,
    .confirm = quorum_confirm,
    .stamp_ns = quorum_stamp_ns,
    .free_bytes = quorum_free_bytes,
};

/* ---- entries of the log ---- */

static void fail(struct kv_quorum *q, int rc, const char *what)
{
    if (q->error != 0)
        return;
    log_error("%s: %s; this member stops", what, error_text(rc));
    q->error = rc;
    waits_fail(q);
    q->config.hooks->failed(q->config.hooks->arg, rc, what);
}

static void change_free(struct change *c)
{
    if (c == NULL)
        return;
    quorum_entry_free(c->entry);
    free(c->bytes);
    free(c->members);
    free(c->items);
    free(c);
}

/* Forgets changes that are not under way: they will come again. */
static void changes_drop(struct kv_quorum *q)
{
    LIST_FOREACH_SAFE(node, &q->changes) {
        struct change *c = container_of(node, struct change, link);

        list_remove(&c->link);
        change_free(c);
    }
}

/* Removes from the overlay what the kv below has now. */
static void overlay_drop(struct kv_quorum *q, const struct change *c)
{
    for (size_t i = 0; i < c->n_items && c->number != 0; i++) {
        struct key_map_node *n =
            key_map_get(&q->overlay, c->items[i].key, c->items[i].key_len);

        if (n != NULL && n->mark == c->number)
            key_map_remove(&q->overlay, n);
    }
}

/* Returns the commit that this batch is, if it is one of ours that waits. Batches come
 * back in their order. */
static struct pending *pending_take(struct kv_quorum *q,
                                    const struct quorum_batch_head *head)
{
    if (!q->leads || head->reign != q->reign)
        return NULL;
    LIST_FOREACH(node, &q->pendings) {
        struct pending *p = container_of(node, struct pending, link);

        if (p->is_empty)
            continue; /* ends together with this one */
        assert(p->number == head->number);
        list_remove(&p->link);
        return p;
    }
    return NULL;
}

/* Makes a change that waits for its entry to be stable. */
static struct change *change_add(struct kv_quorum *q, const struct raft_log_entry *e,
                                 struct kv_item *items, size_t n_items)
{
    struct change *c = calloc(1, sizeof(*c));

    if (c == NULL)
        log_out_of_memory(in_the_log);
    c->index = e->index;
    c->term = e->term;
    c->wall_ns = q->wall_ns;
    c->items = items;
    c->n_items = n_items;
    for (size_t i = 0; i < n_items; i++)
        c->n_bytes += items[i].key_len + items[i].val_len;
    list_add_tail(&q->changes, &c->link);
    return c;
}

static struct kv_item *items_new(size_t n)
{
    struct kv_item *items = calloc(n, sizeof(*items));

    if (items == NULL)
        log_out_of_memory(in_the_log);
    return items;
}

/* Ends the commit of our user that this batch is. Returns its number; 0: it is none. */
static uint64_t own_end(struct kv_quorum *q, const struct quorum_batch_head *head,
                        uint64_t index)
{
    struct pending *p = pending_take(q, head);
    uint64_t number = p == NULL ? 0 : p->number;

    if (p == NULL)
        return 0;
    q->own_index = index;
    if (number <= q->sync_number) /* not a later one: there may always be one */
        q->sync_index = index;
    pending_end(q, p, 0);
    pendings_look(q);
    return number;
}

/* Takes a batch. Returns the change, or NULL after a failure. */
static struct change *batch_take(struct kv_quorum *q, const struct raft_log_entry *e,
                                 const uint8_t *batch, size_t len)
{
    struct kv_item *items;
    struct quorum_batch_head head;
    struct change *c;
    size_t n_items;
    int rc = quorum_batch_get(batch, len, &items, &n_items, &head);

    if (rc != 0) {
        fail(q, rc, "an entry of the metadata log");
        return NULL;
    }
    if (head.wall_ns > q->wall_ns)
        q->wall_ns = head.wall_ns;
    c = change_add(q, e, items, q->config.is_witness ? 0 : n_items);
    c->number = own_end(q, &head, e->index);
    return c;
}

/* Adds a part to those before it. */
static void part_add(struct kv_quorum *q, const uint8_t *part, size_t len)
{
    uint8_t *all = realloc(q->parts, q->parts_len + len + 1);

    if (all == NULL)
        log_out_of_memory(in_the_log);
    memcpy(all + q->parts_len, part, len);
    q->parts = all;
    q->parts_len += len;
}

static void parts_drop(struct kv_quorum *q)
{
    free(q->parts);
    q->parts = NULL;
    q->parts_len = 0;
}

static void part_take(struct kv_quorum *q, struct quorum_entry *entry)
{
    const uint8_t *part;
    struct change *c;
    size_t len;
    bool more;
    int rc = quorum_part_get(entry, &part, &len, &more);

    if (rc != 0) {
        fail(q, rc, "an entry of the metadata log");
    } else if (!more && q->parts_len == 0) {
        c = batch_take(q, &entry->e, part, len);
        if (c != NULL)
            c->entry = quorum_entry_use(entry);
    } else {
        part_add(q, part, len);
        if (more)
            return;
        c = batch_take(q, &entry->e, q->parts, q->parts_len);
        if (c == NULL)
            return;
        c->bytes = q->parts;
        q->parts = NULL;
        q->parts_len = 0;
    }
}

static void members_take(struct kv_quorum *q, const struct raft_log_entry *e)
{
    struct kv_item *items = items_new(2);
    uint8_t *val = malloc(PLACE_MEMBERS_BYTES_MAX + PLACE_HIGHEST_BYTES);
    struct raft_config *members = malloc(sizeof(*members));
    struct change *c;
    int rc;

    if (val == NULL || members == NULL)
        log_out_of_memory(in_the_log);
    rc = raft_config_decode(e->data, e->len, members);
    if (rc == 0) {
        items[0] = kv_place_members(val, e->index, e->data, e->len);
        items[1] = kv_place_highest(val + PLACE_MEMBERS_BYTES_MAX, 0); /* set later */
    }
    c = change_add(q, e, items, 2);
    c->bytes = val;
    c->members = members;
    if (rc != 0)
        fail(q, rc, "a list of members in the metadata log");
}

/* Takes over a list of members, and notes the highest id so far with it. */
static void members_apply(struct kv_quorum *q, struct change *c)
{
    struct kv_quorum_place *p = &q->place;

    p->members = *c->members;
    p->members_index = c->index;
    if (p->highest_id < raft_config_highest(&p->members))
        p->highest_id = raft_config_highest(&p->members);
    c->items[1] = kv_place_highest(c->bytes + PLACE_MEMBERS_BYTES_MAX, p->highest_id);
}

void kv_quorum_apply(struct kv_quorum *q, struct quorum_entry *entry)
{
    assert(entry->e.index == q->given + 1 && q->n_iters == 0);
    q->given = entry->e.index;
    if (q->error != 0)
        return;
    if (entry->e.kind == RAFT_ENTRY_BATCH) {
        part_take(q, entry);
        return;
    }
    /* Parts of one batch lie together: a leader ended between them. */
    parts_drop(q);
    if (entry->e.kind == RAFT_ENTRY_CONFIG)
        members_take(q, &entry->e);
    else
        change_add(q, &entry->e, NULL, 0);
}

/* Takes note of a loss of power that a leader has counted. */
static void losses_look(struct kv_quorum *q, const struct change *c)
{
    for (size_t i = 0; i < c->n_items; i++) {
        const struct kv_item *item = &c->items[i];

        if (item->key_len == 1 && *(const uint8_t *)item->key == KEY_LOSSES &&
            item->val_len == sizeof(q->losses))
            q->losses = get_le64(item->val);
    }
}

static void reads_run(struct kv_quorum *q);

static void on_written(struct kv_done *done, int rc)
{
    struct below_write *w = (struct below_write *)done;
    struct kv_quorum *q = w->q;

    assert(q->n_writes > 0 && q->n_iters == 0);
    q->n_writes--;
    if (rc != 0)
        fail(q, rc, "write to the metadata store");
    LIST_FOREACH_SAFE(node, &w->changes) {
        struct change *c = container_of(node, struct change, link);

        if (rc == 0)
            overlay_drop(q, c);
        change_free(c);
    }
    if (rc == 0) {
        q->place.applied = w->index;
        q->place.applied_term = w->term;
        q->config.hooks->applied(q->config.hooks->arg, w->index, w->term);
    }
    free(w);
    reads_run(q);
}

/* Returns the oldest change that is stable and not in a write; NULL: there is none. */
static struct change *change_next(const struct kv_quorum *q)
{
    struct change *c = list_is_empty(&q->changes)
                           ? NULL
                           : container_of(q->changes.next, struct change, link);

    return c == NULL || c->index > q->stable ? NULL : c;
}

/* Makes a write of the next changes: at least one, and all that fit. */
static struct below_write *write_new(struct kv_quorum *q)
{
    struct below_write *w = calloc(1, sizeof(*w));
    struct change *c = change_next(q);

    if (w == NULL)
        log_out_of_memory(in_the_log);
    w->done.fn = on_written;
    w->q = q;
    list_init(&w->changes);
    do {
        list_remove(&c->link);
        list_add_tail(&w->changes, &c->link);
        w->index = c->index;
        w->term = c->term;
        w->n_items += c->n_items;
        w->n_bytes += c->n_bytes;
        c = change_next(q);
    } while (c != NULL && w->n_bytes + c->n_bytes <= WRITE_BYTES_MAX);
    return w;
}

/* Writes changes to the kv below, in one commit with the place of the newest one. */
static void write_start(struct kv_quorum *q, struct below_write *w)
{
    struct kv_item *items = calloc(w->n_items + 1, sizeof(*items));
    uint8_t applied[PLACE_APPLIED_BYTES];
    int64_t wall_ns = 0;
    size_t n = 0;

    if (items == NULL)
        log_out_of_memory(in_the_log);
    LIST_FOREACH(node, &w->changes) {
        struct change *c = container_of(node, struct change, link);

        losses_look(q, c);
        if (c->members != NULL)
            members_apply(q, c);
        for (size_t i = 0; i < c->n_items; i++)
            items[n++] = c->items[i];
        wall_ns = c->wall_ns;
    }
    items[n++] = kv_place_applied(applied, w->index, w->term, wall_ns);
    q->below_index = w->index;
    q->below_term = w->term;
    q->n_writes++;
    kv_commit(q->config.below, items, n, &w->done);
    free(items);
}

void kv_quorum_stable(struct kv_quorum *q, uint64_t index)
{
    assert(index >= q->stable && index <= q->given && q->n_iters == 0);
    q->stable = index;
    while (q->error == 0 && change_next(q) != NULL)
        write_start(q, write_new(q));
    if (q->error == 0)
        pendings_look(q);
}

/* ---- the member's news ---- */

void kv_quorum_lead(struct kv_quorum *q)
{
    assert(!q->leads && list_is_empty(&q->pendings) && q->overlay.n_keys == 0);
    assert(q->asked.first == NULL && q->asking.first == NULL && q->sync_done == NULL);
    q->leads = true;
    q->free_max = UINT64_MAX; /* not known yet */
    q->own_index = 0;
    q->stamp_ns = q->wall_ns;
    env_random(q->config.env, &q->reign, sizeof(q->reign));
}

void kv_quorum_depose(struct kv_quorum *q)
{
    q->leads = false;
    waits_fail(q);
    overlay_clear(q);
}

void kv_quorum_set_free(struct kv_quorum *q, uint64_t free_bytes)
{
    q->free_max = free_bytes;
}

static void on_below_synced(struct kv_done *done, int rc)
{
    struct kv_quorum *q = container_of(done, struct kv_quorum, below_sync);

    q->is_syncing_below = false;
    if (rc != 0)
        fail(q, rc, "sync the metadata store");
    else
        q->config.hooks->synced(q->config.hooks->arg, q->below_sync_index);
}

void kv_quorum_sync_below(struct kv_quorum *q)
{
    if (q->is_syncing_below || q->error != 0)
        return;
    q->is_syncing_below = true;
    q->below_sync_index = q->place.applied;
    kv_sync(q->config.below, &q->below_sync);
}

int kv_quorum_error(const struct kv_quorum *q)
{
    return q->error;
}

int64_t kv_quorum_wall_ns(const struct kv_quorum *q)
{
    return q->wall_ns;
}

uint64_t kv_quorum_losses(const struct kv_quorum *q)
{
    return q->losses;
}

/* ---- seeding ---- */

static int losses_load(struct kv_quorum *q)
{
    const uint8_t key = KEY_LOSSES;
    void *val;
    size_t len;
    int rc = kv_get(q->config.below, &key, 1, &val, &len);

    q->losses = 0;
    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    if (len == sizeof(q->losses))
        q->losses = get_le64(val);
    free(val);
    return 0;
}

static int place_load(struct kv_quorum *q)
{
    int rc = kv_place_load(q->config.below, &q->place, &q->wall_ns);

    if (rc == 0)
        rc = losses_load(q);
    parts_drop(q);
    changes_drop(q);
    q->given = q->below_index = q->stable = q->place.applied;
    q->below_term = q->place.applied_term;
    return rc;
}

static void seeded(struct kv_quorum *q, struct seed_job *job, int rc)
{
    job->rc = rc;
    job->place = q->place;
    q->config.hooks->seeded(q->config.hooks->arg, job);
}

/* The store has carried out a job. */
static void on_seeded(void *arg, struct seed_job *job, int rc)
{
    struct kv_quorum *q = arg;

    if (rc == 0 && job->kind != SEED_JOB_READ)
        rc = place_load(q);
    if (job->kind == SEED_JOB_READ)
        read_look(q, rc);
    else if (rc != 0)
        fail(q, rc, "copy the metadata store of another member");
    seeded(q, job, rc);
}

static void read_run(struct kv_quorum *q, struct seed_job *job)
{
    if (q->error != 0) {
        seeded(q, job, q->error);
        return;
    }
    job->chunk = (struct seed_chunk){ .applied = q->below_index,
                                      .applied_term = q->below_term,
                                      .wall_ns = q->wall_ns,
                                      .members_index = q->place.members_index,
                                      .highest_id = q->place.highest_id,
                                      .members = q->place.members };
    seed_store_run(&q->store, job);
}

/* Reads chunks for other members. Until a write has ended nobody knows whether the kv has
 * what a chunk would say. */
static void reads_run(struct kv_quorum *q)
{
    while (q->n_writes == 0 && !list_is_empty(&q->reads)) {
        struct seed_job *job = container_of(q->reads.next, struct seed_job, link);

        list_remove(&job->link);
        read_run(q, job);
    }
}

void kv_quorum_seed(struct kv_quorum *q, struct seed_job *job)
{
    if (job->kind == SEED_JOB_READ) {
        list_add_tail(&q->reads, &job->link);
        reads_run(q);
        return;
    }
    if (q->error != 0) {
        seeded(q, job, q->error);
        return;
    }
    assert(!q->leads && !q->is_syncing_below);
    if (job->kind == SEED_JOB_BEGIN && job->mark.is_copied && job->mark.index == 0) {
        job->mark.index = job->mark.newest = q->below_index;
        job->mark.term = q->below_term;
        job->mark.wall_ns = q->wall_ns;
        job->mark.is_copied = q->below_index != 0;
    }
    seed_store_run(&q->store, job);
}

/* ---- life ---- */

void kv_quorum_begin(struct kv *below, const struct raft_config *members,
                     struct kv_done *done)
{
    uint8_t list[RAFT_CONFIG_BYTES_MAX], applied[PLACE_APPLIED_BYTES];
    uint8_t val[PLACE_MEMBERS_BYTES_MAX];
    const struct kv_item items[2] = {
        kv_place_members(val, 1, list, raft_config_encode(members, list)),
        kv_place_applied(applied, 1, 1, 0),
    };

    kv_commit(below, items, 2, done);
}

void kv_quorum_begin_copy(struct kv *below, struct kv_done *done)
{
    const struct seed_mark mark = { .doubt = SEED_LOG_LOST };
    uint8_t buf[PLACE_SEED_BYTES_MAX];
    const struct kv_item item = kv_place_seed(buf, &mark);

    kv_commit(below, &item, 1, done);
}

int kv_quorum_open(const struct kv_quorum_config *config, struct kv_quorum **out,
                   struct err *err)
{
    struct kv_quorum *q = calloc(1, sizeof(*q));
    int rc = q == NULL ? -ENOMEM : key_map_init(&q->overlay);

    if (rc == 0) {
        q->kv.ops = &quorum_ops;
        q->config = *config;
        q->free_max = UINT64_MAX;
        list_init(&q->pendings);
        list_init(&q->changes);
        list_init(&q->reads);
        done_list_init(&q->asked);
        done_list_init(&q->asking);
        done_list_init(&q->ended);
        q->task.fn = on_ended;
        q->below_sync.fn = on_below_synced;
        q->store = (struct seed_store){ .below = config->below,
                                        .done = on_seeded,
                                        .arg = q,
                                        .is_witness = config->is_witness };
        rc = place_load(q);
    }
    if (rc != 0) {
        if (q != NULL)
            key_map_free(&q->overlay);
        free(q);
        return err_set(err, rc, "read the place in the metadata log: %s", error_text(rc));
    }
    *out = q;
    return 0;
}

void kv_quorum_close(struct kv_quorum *q)
{
    if (q == NULL)
        return;
    assert(kv_quorum_is_idle(q) && q->n_iters == 0);
    seed_store_clear(&q->store);
    parts_drop(q);
    changes_drop(q);
    key_map_free(&q->overlay);
    free(q);
}

bool kv_quorum_is_idle(const struct kv_quorum *q)
{
    return list_is_empty(&q->pendings) && q->n_writes == 0 && list_is_empty(&q->reads) &&
           !q->is_syncing_below && q->sync_done == NULL && q->asked.first == NULL &&
           q->asking.first == NULL && q->ended.first == NULL && q->store.job == NULL;
}

struct kv *kv_quorum_kv(struct kv_quorum *q)
{
    return &q->kv;
}

const struct kv_quorum_place *kv_quorum_place(const struct kv_quorum *q)
{
    return &q->place;
}
