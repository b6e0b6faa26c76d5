/*
 * hint_log.c - hints about writes that other storages missed, in a kv.
 *
 * In:     hint_log_note() and the like, from the healer. Thread: the healer's.
 * Out:    kv_commit(), kv_sync(); callbacks of waits.
 * Keeps:  a hint that changed since it was listed is not removed; joined hints cover all
 *         that they did before.
 * Ask:    the bytes of keys and values: users' disks carry them (docs/FORMATS.md).
 */
#include "storaged/heal/list/hint_log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"

enum {
    KEY_FILE = 'M',       /* storage, file id -> target, ranges */
    KEY_EVERYTHING = 'E', /* storage -> number */
    KEY_BYTES = 1 + 4 + FILE_ID_BYTES,
    VALUE_FORMAT = 1,
    VALUE_FORMAT_REDIST = 2, /* ends with a generation that is not 0 */
    VALUE_FORMAT_QUORUM = 3, /* full_quorum; ends with a generation */
    GENERATION_BYTES = 4,
    VALUE_FIXED = 8,
    RANGE_BYTES = 32,
    VALUE_MAX = VALUE_FIXED + 4 * DIST_MAX + 2 + (HINT_LOG_RANGES_MAX + 1) * RANGE_BYTES +
                GENERATION_BYTES,
    RANGES_MAX_DEFAULT = 65536,
    FILES_MAX_DEFAULT = 262144,
    SWEEP = 512, /* keys deleted in one commit */
};

/* Counters of one storage. */
struct account {
    uint32_t storage;
    uint64_t n_files, n_ranges;
    uint64_t everything; /* number of that hint; 0: none */
};

struct hint_log {
    struct hint_log_config config;
    struct account *accounts; /* owned */
    unsigned n_accounts;
    uint64_t next_note;
    uint64_t n_commits, n_sync_target;
    int failed; /* a commit or sync failed: all later calls fail */
    bool syncing;
    struct kv_done sync_done;
    struct hint_log_wait *waiting, **waiting_tail;
};

/* A file's hints as they are in the kv. */
struct notes {
    struct storcli_target target;
    unsigned n;
    struct hint_log_range ranges[HINT_LOG_RANGES_MAX + 1];
};

struct hint_commit {
    struct kv_done done;
    struct hint_log *l;
};

/* ---- bytes ---- */

static void be32_put(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static uint32_t be32_get(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void key_put(uint8_t key[KEY_BYTES], uint32_t storage, const struct file_id *id)
{
    key[0] = KEY_FILE;
    be32_put(key + 1, storage);
    file_id_put(key + 5, id);
}

/* Returns the lowest format that has all of the target. */
static uint8_t value_format(const struct storcli_target *target)
{
    if (target->full_quorum)
        return VALUE_FORMAT_QUORUM;
    return target->dist_generation == 0 ? VALUE_FORMAT : VALUE_FORMAT_REDIST;
}

static size_t notes_put(const struct notes *n, uint8_t out[VALUE_MAX])
{
    uint8_t *p = out + VALUE_FIXED;

    out[0] = value_format(&n->target);
    out[1] = n->target.codec;
    out[2] = n->target.layout;
    out[3] = n->target.n_storages;
    put_le32(out + 4, n->target.block_bytes);
    for (unsigned i = 0; i < n->target.n_storages; i++, p += 4)
        put_le32(p, n->target.storages[i]);
    put_le16(p, (uint16_t)n->n);
    p += 2;
    for (unsigned i = 0; i < n->n; i++, p += RANGE_BYTES) {
        put_le64(p, n->ranges[i].first);
        put_le64(p + 8, n->ranges[i].end);
        put_le64(p + 16, n->ranges[i].version);
        put_le64(p + 24, n->ranges[i].note);
    }
    if (out[0] != VALUE_FORMAT) {
        put_le32(p, n->target.dist_generation);
        p += GENERATION_BYTES;
    }
    return (size_t)(p - out);
}

static bool ranges_get(const uint8_t *p, unsigned n, struct notes *out)
{
    uint64_t last = 0;

    for (unsigned i = 0; i < n; i++, p += RANGE_BYTES) {
        struct hint_log_range r = { get_le64(p), get_le64(p + 8), get_le64(p + 16),
                                    get_le64(p + 24) };

        if (r.first < last || r.end <= r.first || r.note == 0)
            return false;
        last = r.end;
        out->ranges[i] = r;
    }
    out->n = n;
    return true;
}

/* Decodes hints, with all checks, since the disk may be corrupt (I8). Returns 0 or
 * -ROZO_EDAMAGED. */
static int notes_get(const uint8_t *key, const uint8_t *val, size_t len,
                     struct notes *out)
{
    size_t fixed = len < VALUE_FIXED ? 0 : VALUE_FIXED + (size_t)4 * val[3] + 2;
    size_t behind = len > 0 && val[0] != VALUE_FORMAT ? GENERATION_BYTES : 0;
    unsigned n;

    if (fixed == 0 || len < fixed || val[0] == 0 || val[0] > VALUE_FORMAT_QUORUM ||
        val[3] == 0 || val[3] > DIST_MAX || get_le32(val + 4) > UINT16_MAX)
        return -ROZO_EDAMAGED;
    n = get_le16(val + fixed - 2);
    if (n == 0 || n > HINT_LOG_RANGES_MAX ||
        len != fixed + (size_t)n * RANGE_BYTES + behind ||
        (val[0] == VALUE_FORMAT_REDIST && get_le32(val + len - behind) == 0))
        return -ROZO_EDAMAGED;
    memset(&out->target, 0, sizeof(out->target));
    file_id_get(key + 5, &out->target.id);
    out->target.codec = val[1];
    out->target.layout = val[2];
    out->target.n_storages = val[3];
    out->target.block_bytes = (uint16_t)get_le32(val + 4);
    out->target.full_quorum = val[0] == VALUE_FORMAT_QUORUM;
    out->target.dist_generation = behind > 0 ? get_le32(val + len - behind) : 0;
    for (unsigned i = 0; i < val[3]; i++)
        out->target.storages[i] = get_le32(val + VALUE_FIXED + (size_t)4 * i);
    return ranges_get(val + fixed, n, out) ? 0 : -ROZO_EDAMAGED;
}

/* ---- commits ---- */

static void on_commit(struct kv_done *done, int rc)
{
    struct hint_commit *c = container_of(done, struct hint_commit, done);

    if (rc != 0 && c->l->failed == 0) {
        log_error("cannot write hints for other storages: %s", error_text(rc));
        c->l->failed = -EIO;
    }
    free(c);
}

int hint_log_commit(struct hint_log *l, const struct kv_item *items, size_t n_items)
{
    struct hint_commit *c;

    assert(n_items > 0);
    if (l->failed != 0)
        return l->failed;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->l = l;
    c->done.fn = on_commit;
    l->n_commits++;
    kv_commit(l->config.kv, items, n_items, &c->done);
    return 0;
}

static int commit_one(struct hint_log *l, const void *key, size_t key_len,
                      const void *val, size_t val_len)
{
    struct kv_item item = {
        .key = key, .key_len = key_len, .val = val, .val_len = val_len
    };

    return hint_log_commit(l, &item, 1);
}

static void sync_start(struct hint_log *l);

static void on_synced(struct kv_done *done, int rc)
{
    struct hint_log *l = container_of(done, struct hint_log, sync_done);
    struct hint_log_wait *ready = NULL, **tail = &ready, **at = &l->waiting;

    assert(l->syncing && l->n_sync_target <= l->n_commits);
    l->syncing = false;
    if (rc != 0)
        l->failed = -EIO;
    while (*at != NULL) { /* in order: earlier waits need no more than later ones */
        struct hint_log_wait *w = *at;

        if (l->failed == 0 && w->want > l->n_sync_target)
            break;
        *at = w->next;
        w->next = NULL;
        w->rc = l->failed;
        *tail = w;
        tail = &w->next;
    }
    if (l->waiting == NULL)
        l->waiting_tail = &l->waiting;
    else
        sync_start(l);
    while (ready != NULL) {
        struct hint_log_wait *w = ready;

        ready = w->next;
        w->done(w, w->rc);
    }
}

static void sync_start(struct hint_log *l)
{
    assert(!l->syncing);
    l->syncing = true;
    l->n_sync_target = l->n_commits;
    kv_sync(l->config.kv, &l->sync_done);
}

void hint_log_sync(struct hint_log *l, struct hint_log_wait *w)
{
    assert(w->done != NULL);
    w->want = l->n_commits;
    w->next = NULL;
    *l->waiting_tail = w;
    l->waiting_tail = &w->next;
    if (!l->syncing)
        sync_start(l);
}

/* ---- accounts ---- */

static struct account *account_find(const struct hint_log *l, uint32_t storage)
{
    for (unsigned i = 0; i < l->n_accounts; i++) {
        if (l->accounts[i].storage == storage)
            return &l->accounts[i];
    }
    return NULL;
}

static int account_make(struct hint_log *l, uint32_t storage, struct account **out)
{
    struct account *a = account_find(l, storage), *all;

    if (a == NULL) {
        if (l->n_accounts == HINT_LOG_STORAGES_MAX)
            return -ENOSPC;
        all = realloc(l->accounts, (l->n_accounts + 1) * sizeof(*all));
        if (all == NULL)
            return -ENOMEM;
        l->accounts = all;
        a = &all[l->n_accounts++];
        *a = (struct account){ .storage = storage };
    }
    *out = a;
    return 0;
}

uint64_t hint_log_everything(const struct hint_log *l, uint32_t storage)
{
    const struct account *a = account_find(l, storage);

    return a == NULL ? 0 : a->everything;
}

uint64_t hint_log_n_ranges(const struct hint_log *l)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < l->n_accounts; i++)
        n += l->accounts[i].n_ranges + (l->accounts[i].everything != 0);
    return n;
}

/* ---- everything ---- */

static int everything_put(struct hint_log *l, struct account *a)
{
    uint8_t key[5] = { KEY_EVERYTHING }, val[8];

    be32_put(key + 1, a->storage);
    a->everything = l->next_note++;
    put_le64(val, a->everything);
    return commit_one(l, key, sizeof(key), val, sizeof(val));
}

/* Deletes up to SWEEP files' hints for a storage. Returns their number or -errno. */
static int sweep_some(struct hint_log *l, uint32_t storage)
{
    static const struct file_id lowest;
    uint8_t first[KEY_BYTES], (*keys)[KEY_BYTES] = malloc(SWEEP * sizeof(*keys));
    struct kv_item *items = calloc(SWEEP, sizeof(*items));
    struct kv_iter *it = NULL;
    int n = 0, rc = keys == NULL || items == NULL ? -ENOMEM : 0;

    key_put(first, storage, &lowest);
    if (rc == 0)
        rc = kv_iter_open(l->config.kv, &it);
    if (rc == 0)
        kv_iter_seek(it, first, sizeof(first));
    for (; rc == 0 && n < SWEEP && kv_iter_valid(it); kv_iter_next(it)) {
        size_t len;
        const uint8_t *key = kv_iter_key(it, &len);

        if (len != KEY_BYTES || memcmp(key, first, 5) != 0)
            break;
        memcpy(keys[n], key, KEY_BYTES);
        items[n] = (struct kv_item){ .key = keys[n], .key_len = KEY_BYTES };
        n++;
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    if (rc == 0 && n > 0)
        rc = hint_log_commit(l, items, (size_t)n);
    free(items);
    free(keys);
    return rc != 0 ? rc : n;
}

static int sweep(struct hint_log *l, struct account *a)
{
    int n = SWEEP;

    while (n == SWEEP)
        n = sweep_some(l, a->storage);
    if (n < 0)
        return n;
    a->n_files = a->n_ranges = 0;
    return 0;
}

/* ---- notes ---- */

static int notes_load(struct hint_log *l, const uint8_t key[KEY_BYTES], struct notes *out)
{
    void *val;
    size_t len;
    int rc = kv_get(l->config.kv, key, KEY_BYTES, &val, &len);

    if (rc != 0)
        return rc;
    rc = notes_get(key, val, len, out);
    free(val);
    return rc;
}

static int notes_save(struct hint_log *l, const uint8_t key[KEY_BYTES],
                      const struct notes *n)
{
    uint8_t val[VALUE_MAX];

    assert(n->n <= HINT_LOG_RANGES_MAX);
    if (n->n == 0)
        return commit_one(l, key, KEY_BYTES, NULL, 0);
    return commit_one(l, key, KEY_BYTES, val, notes_put(n, val));
}

static void ranges_remove(struct notes *n, unsigned at, unsigned count)
{
    assert(at + count <= n->n);
    memmove(&n->ranges[at], &n->ranges[at + count],
            (n->n - at - count) * sizeof(n->ranges[0]));
    n->n -= count;
}

/* Joins range `at`, the next one, and the gap between them. */
static void ranges_join(struct notes *n, unsigned at, uint64_t note)
{
    struct hint_log_range *a = &n->ranges[at], *b = a + 1;

    assert(at + 1 < n->n && a->end <= b->first);
    a->end = b->end;
    a->version = a->version > b->version ? a->version : b->version;
    a->note = note;
    ranges_remove(n, at + 1, 1);
}

/* Joins the two ranges with the smallest gap between them. */
static void ranges_coarsen(struct notes *n, uint64_t note)
{
    unsigned best = 0;

    assert(n->n >= 2);
    for (unsigned i = 0; i + 1 < n->n; i++) {
        if (n->ranges[i + 1].first - n->ranges[i].end <
            n->ranges[best + 1].first - n->ranges[best].end)
            best = i;
    }
    ranges_join(n, best, note);
}

/* Adds a range. The array has room for one more than HINT_LOG_RANGES_MAX. */
static void ranges_add(struct notes *n, struct hint_log_range r)
{
    unsigned at = 0, count = 0;

    assert(n->n <= HINT_LOG_RANGES_MAX && r.first < r.end);
    while (at < n->n && n->ranges[at].end < r.first)
        at++;
    while (at + count < n->n && n->ranges[at + count].first <= r.end) {
        const struct hint_log_range *o = &n->ranges[at + count++];

        r.first = o->first < r.first ? o->first : r.first;
        r.end = o->end > r.end ? o->end : r.end;
        r.version = o->version > r.version ? o->version : r.version;
    }
    if (count > 0)
        ranges_remove(n, at, count);
    memmove(&n->ranges[at + 1], &n->ranges[at], (n->n - at) * sizeof(n->ranges[0]));
    n->ranges[at] = r;
    n->n++;
}

static int file_note(struct hint_log *l, struct account *a,
                     const struct storcli_target *target, uint64_t first, uint64_t end,
                     uint64_t version)
{
    uint8_t key[KEY_BYTES];
    struct notes notes;
    bool full_quorum;
    unsigned before;
    int rc;

    key_put(key, a->storage, &target->id);
    rc = notes_load(l, key, &notes);
    if (rc == -ENOENT || rc == -ROZO_EDAMAGED) {
        if (a->n_files >= l->config.files_max) {
            log_warn("storage %u missed more than is noted one by one: all of it is to "
                     "be looked at when it is back",
                     (unsigned)a->storage);
            rc = everything_put(l, a);
            return rc != 0 ? rc : sweep(l, a);
        }
        notes.n = 0;
        a->n_files += rc == -ENOENT;
    } else if (rc != 0) {
        return rc;
    }
    before = notes.n;
    full_quorum = target->full_quorum || (notes.n > 0 && notes.target.full_quorum);
    if (notes.n == 0 || target->dist_generation >= notes.target.dist_generation)
        notes.target = *target;
    notes.target.full_quorum = full_quorum; /* true for ever once it is true */
    ranges_add(&notes, (struct hint_log_range){ first, end, version, l->next_note++ });
    while (notes.n > HINT_LOG_RANGES_MAX ||
           (notes.n > 1 && a->n_ranges - before + notes.n > l->config.ranges_max))
        ranges_coarsen(&notes, l->next_note++);
    a->n_ranges += (uint64_t)notes.n - before;
    return notes_save(l, key, &notes);
}

int hint_log_note(struct hint_log *l, uint32_t storage,
                  const struct storcli_target *target, uint64_t first, uint64_t end,
                  uint64_t version)
{
    struct account *a;
    int rc = account_make(l, storage, &a);

    assert(first < end);
    if (rc != 0)
        return rc;
    if (a->everything != 0)
        return everything_put(l, a);
    return file_note(l, a, target, first, end, version);
}

bool hint_log_has(struct hint_log *l, uint32_t storage, const struct file_id *id,
                  uint64_t first, uint64_t end, uint64_t version)
{
    const struct account *a = account_find(l, storage);
    uint8_t key[KEY_BYTES];
    struct notes notes;

    assert(first < end);
    if (a != NULL && a->everything != 0)
        return true;
    key_put(key, storage, id);
    if (a == NULL || a->n_files == 0 || notes_load(l, key, &notes) != 0)
        return false;
    for (unsigned i = 0; i < notes.n && first < end; i++) {
        const struct hint_log_range *r = &notes.ranges[i];

        if (r->first > first)
            return false;
        if (r->end > first && r->version >= version)
            first = r->end;
    }
    return first >= end;
}

int hint_log_forget(struct hint_log *l, uint32_t storage, const struct file_id *id,
                    uint64_t note)
{
    struct account *a = account_find(l, storage);
    uint8_t key[KEY_BYTES];
    struct notes notes;
    unsigned i = 0;
    int rc;

    if (a == NULL)
        return 0;
    key_put(key, storage, id);
    rc = notes_load(l, key, &notes);
    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    while (i < notes.n && notes.ranges[i].note != note)
        i++;
    if (i == notes.n)
        return 0;
    ranges_remove(&notes, i, 1);
    a->n_ranges--;
    a->n_files -= notes.n == 0;
    return notes_save(l, key, &notes);
}

int hint_log_forget_everything(struct hint_log *l, uint32_t storage, uint64_t note)
{
    struct account *a = account_find(l, storage);
    uint8_t key[5] = { KEY_EVERYTHING };

    if (a == NULL || a->everything == 0 || a->everything != note)
        return 0;
    be32_put(key + 1, storage);
    a->everything = 0;
    return commit_one(l, key, sizeof(key), NULL, 0);
}

/* ---- scans ---- */

int hint_log_scan(struct hint_log *l, uint32_t storage, const uint8_t *after,
                  hint_log_file_cb *cb, void *arg)
{
    static const struct file_id lowest;
    uint8_t first[KEY_BYTES];
    struct kv_iter *it;
    int rc = kv_iter_open(l->config.kv, &it), all = 1;

    assert(cb != NULL);
    if (rc != 0)
        return rc;
    key_put(first, storage, &lowest);
    if (after != NULL)
        memcpy(first + 5, after, FILE_ID_BYTES);
    for (kv_iter_seek(it, first, sizeof(first)); all == 1 && kv_iter_valid(it);
         kv_iter_next(it)) {
        size_t key_len, val_len;
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &val_len);
        struct notes notes;

        if (key_len != KEY_BYTES || memcmp(key, first, 5) != 0)
            break;
        if (after != NULL && memcmp(key + 5, after, FILE_ID_BYTES) == 0)
            continue;
        if (notes_get(key, val, val_len, &notes) != 0)
            log_warn("a hint for storage %u is corrupt", (unsigned)storage);
        else if (!cb(arg, &notes.target, notes.ranges, notes.n))
            all = 0;
    }
    rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc != 0 ? rc : all;
}

/* ---- open and close ---- */

static int count_file(struct hint_log *l, const uint8_t *key, size_t key_len,
                      const uint8_t *val, size_t val_len)
{
    struct notes notes;
    struct account *a;
    int rc;

    if (key_len != KEY_BYTES)
        return -ROZO_EDAMAGED;
    rc = account_make(l, be32_get(key + 1), &a);
    if (rc == 0)
        a->n_files++;
    if (rc == 0 && notes_get(key, val, val_len, &notes) == 0)
        a->n_ranges += notes.n;
    return rc;
}

static int count_everything(struct hint_log *l, const uint8_t *key, size_t key_len,
                            const uint8_t *val, size_t val_len)
{
    struct account *a;
    int rc;

    if (key_len != 5 || val_len != 8 || get_le64(val) == 0)
        return -ROZO_EDAMAGED;
    rc = account_make(l, be32_get(key + 1), &a);
    if (rc == 0)
        a->everything = get_le64(val);
    return rc;
}

static int count_kind(struct hint_log *l, uint8_t kind,
                      int (*count)(struct hint_log *l, const uint8_t *key, size_t key_len,
                                   const uint8_t *val, size_t val_len))
{
    struct kv_iter *it;
    int rc = kv_iter_open(l->config.kv, &it);

    if (rc != 0)
        return rc;
    for (kv_iter_seek(it, &kind, 1); rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        size_t key_len, val_len;
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &val_len);

        if (key[0] != kind)
            break;
        rc = count(l, key, key_len, val, val_len);
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

/* Continues sweeps that a crash cut short. */
static int sweep_leftovers(struct hint_log *l)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < l->n_accounts; i++) {
        if (l->accounts[i].everything != 0 && l->accounts[i].n_files > 0)
            rc = sweep(l, &l->accounts[i]);
    }
    return rc;
}

/* Returns the first number for hints; random, so that numbers of earlier processes do not
 * come again. */
static uint64_t first_note(struct env *env)
{
    uint8_t bytes[4];

    env_random(env, bytes, sizeof(bytes));
    return (uint64_t)get_le32(bytes) << 32 | 1;
}

int hint_log_open(const struct hint_log_config *config, struct hint_log **out)
{
    struct hint_log *l = calloc(1, sizeof(*l));
    int rc;

    assert(config->env != NULL && config->kv != NULL);
    if (l == NULL)
        return -ENOMEM;
    l->config = *config;
    if (l->config.ranges_max == 0)
        l->config.ranges_max = RANGES_MAX_DEFAULT;
    if (l->config.files_max == 0)
        l->config.files_max = FILES_MAX_DEFAULT;
    l->waiting_tail = &l->waiting;
    l->sync_done.fn = on_synced;
    l->next_note = first_note(config->env);
    rc = count_kind(l, KEY_FILE, count_file);
    if (rc == 0)
        rc = count_kind(l, KEY_EVERYTHING, count_everything);
    if (rc == 0)
        rc = sweep_leftovers(l);
    if (rc != 0) {
        hint_log_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void hint_log_close(struct hint_log *l)
{
    if (l == NULL)
        return;
    assert(!l->syncing && l->waiting == NULL);
    free(l->accounts);
    free(l);
}
