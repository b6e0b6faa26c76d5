/*
 * kv_leveldb.c - the kv on LevelDB.
 *
 * In:     kv ops, on the loop's thread.
 * Out:    LevelDB in DIR; fdatasync of its logs in uv's worker threads.
 * Keeps:  a sync covers every commit made before it: a commit that is in no log when the
 *         sync lists them is in a table that LevelDB has synced before it removed the
 *         log.
 * Yours:  sizes of buffers and caches.
 */
#include "common/kv/kv_leveldb.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <leveldb/c.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/system/fds.h"

enum {
    WRITE_BUFFER_BYTES = 16 << 20,
    MERGE_BYTES_MAX = 192 << 20, /* a dozen of the newest tables, each a write buffer */
    CACHE_BYTES = 64 << 20,
    BLOOM_BITS = 10,
    OWN_FDS = 4,           /* for this file: the directory, and a sync */
    RESERVE_FDS = 8,       /* LevelDB opens as many at a time to continue after EMFILE */
    RESERVE_MS = 1000,     /* pause between two tries to refill the reserve */
    REOPEN_MS = 200,       /* pause between two tries to open the store again */
    FAILED_LOG_MS = 10000, /* pause between two log lines about failures */
};

/* View of the store as it was. */
struct kv_frozen {
    struct kv kv; /* first */
    struct kv_leveldb *k;
    const leveldb_snapshot_t *at; /* NULL: it is gone */
    leveldb_readoptions_t *options;
};

struct kv_leveldb {
    struct kv kv;    /* first */
    struct env *env; /* borrowed */
    uv_loop_t *loop; /* borrowed */
    char *dir;       /* owned */
    int dir_fd;      /* owned */
    leveldb_t *db;
    leveldb_options_t *options;
    leveldb_cache_t *cache;
    leveldb_filterpolicy_t *bloom;
    leveldb_readoptions_t *get_options, *scan_options;
    leveldb_writeoptions_t *write_options;
    leveldb_writebatch_t *batch;
    int write_rc;         /* error of a commit that failed, until its callback has come */
    struct env_task task; /* calls the commits that are done */
    struct kv_done *done_head, *done_tail;
    uv_work_t work; /* the sync under way */
    struct kv_done *sync_done;
    int sync_rc;              /* the worker's */
    unsigned long named_log;  /* the worker's: names of logs up to this one are stable */
    int reserve[RESERVE_FDS]; /* owned; closed when LevelDB lacks descriptors; or -1 */
    uint64_t reserve_ns;      /* last release, or last try to refill; monotonic */
    unsigned n_iters;         /* open iterators */
    struct kv_frozen *frozen; /* owned; NULL: none */
    uint64_t opened_ns;       /* last try to open again; monotonic */
    uint64_t failed_ns;       /* last logged failure; monotonic; 0: never */
    unsigned n_failed;        /* failures since then */
};

struct leveldb_iter {
    struct kv_iter it; /* first */
    struct kv_leveldb *k;
    leveldb_iterator_t *at;
};

/* Logs a failure, but at most one line in 10 s: more would fill the disk of the log. */
static void failure_log(struct kv_leveldb *k, const char *what, const char *message)
{
    uint64_t now_ns = env_now_ns(k->env);

    if (k->failed_ns != 0 && now_ns - k->failed_ns < ms_to_ns(FAILED_LOG_MS)) {
        k->n_failed++;
        return;
    }
    log_error("metadata store: %s: %s; %u failures since the last such line", what,
              message, k->n_failed);
    k->failed_ns = now_ns;
    k->n_failed = 0;
}

static bool is_corruption(const char *message)
{
    return strncmp(message, "Corruption", 10) == 0;
}

/* Logs and frees an error text of LevelDB. Returns 0 if there is none, else
 * -ROZO_EDAMAGED, -ENOSPC, -EMFILE or -EIO. */
static int message_to_errno(struct kv_leveldb *k, char *message, const char *what)
{
    int rc = -EIO;

    if (message == NULL)
        return 0;
    failure_log(k, what, message);
    if (is_corruption(message))
        rc = -ROZO_EDAMAGED;
    else if (strstr(message, strerror(ENOSPC)) != NULL)
        rc = -ENOSPC;
    else if (strstr(message, strerror(EMFILE)) != NULL ||
             strstr(message, strerror(ENFILE)) != NULL)
        rc = -EMFILE;
    leveldb_free(message);
    return rc;
}

/* ---- when descriptors run out ---- */

/* Closes the reserve, so that LevelDB can open files. It sometimes opens one in the
 * middle of a write, and refuses all later writes if that fails. */
static void reserve_release(struct kv_leveldb *k)
{
    for (unsigned i = 0; i < RESERVE_FDS; i++) {
        if (k->reserve[i] >= 0)
            close(k->reserve[i]);
        k->reserve[i] = -1;
    }
    k->reserve_ns = env_now_ns(k->env);
}

/* Refills the reserve completely or not at all: unless twice as many descriptors are
 * free, other parts of the process need them more. */
static void reserve_fill(struct kv_leveldb *k)
{
    uint64_t now_ns = env_now_ns(k->env);
    int spare[RESERVE_FDS];
    bool all = true;

    if (k->reserve[0] >= 0 || now_ns - k->reserve_ns < ms_to_ns(RESERVE_MS))
        return;
    k->reserve_ns = now_ns;
    for (unsigned i = 0; i < RESERVE_FDS; i++) {
        k->reserve[i] = fcntl(k->dir_fd, F_DUPFD_CLOEXEC, 0);
        spare[i] = fcntl(k->dir_fd, F_DUPFD_CLOEXEC, 0);
        all &= k->reserve[i] >= 0 && spare[i] >= 0;
    }
    for (unsigned i = 0; i < RESERVE_FDS; i++) {
        if (spare[i] >= 0)
            close(spare[i]);
        if (!all && k->reserve[i] >= 0)
            close(k->reserve[i]);
        k->reserve[i] = all ? k->reserve[i] : -1;
    }
}

/* Returns true if the store is open. Tries to open it if not, unless that has just
 * failed. */
static bool is_open(struct kv_leveldb *k)
{
    uint64_t now_ns = env_now_ns(k->env);
    char *message = NULL;

    if (k->db != NULL)
        return true;
    if (now_ns - k->opened_ns < ms_to_ns(REOPEN_MS))
        return false;
    k->opened_ns = now_ns;
    k->db = leveldb_open(k->options, k->dir, &message);
    message_to_errno(k, message, "open");
    return k->db != NULL;
}

/* Ends a view; it stays, and is gone for its user. */
static void frozen_drop(struct kv_leveldb *k)
{
    if (k->frozen != NULL && k->frozen->at != NULL) {
        leveldb_release_snapshot(k->db, k->frozen->at);
        k->frozen->at = NULL;
    }
}

/* Opens the store again: after LevelDB failed to write a table it refuses all writes.
 * Commits are replayed from its logs. Returns false if an iterator is open, or if the
 * store did not open. */
static bool reopen(struct kv_leveldb *k)
{
    if (k->n_iters > 0)
        return false;
    frozen_drop(k);
    if (k->db != NULL)
        leveldb_close(k->db);
    k->db = NULL;
    k->opened_ns = 0;
    return is_open(k);
}

/* ---- kv calls ---- */

static int get_once(struct kv_leveldb *k, const leveldb_readoptions_t *options,
                    const void *key, size_t key_len, char **val, size_t *val_len)
{
    char *message = NULL;

    if (!is_open(k))
        return -EMFILE;
    *val = leveldb_get(k->db, options, key, key_len, val_len, &message);
    return message_to_errno(k, message, "read");
}

static int get_with(struct kv_leveldb *k, const leveldb_readoptions_t *options,
                    const void *key, size_t key_len, void **val, size_t *val_len)
{
    char *found = NULL;
    int rc = get_once(k, options, key, key_len, &found, val_len);

    if (rc == -EMFILE) {
        reserve_release(k);
        rc = get_once(k, options, key, key_len, &found, val_len);
    }
    if (rc != 0)
        return rc;
    if (found == NULL)
        return -ENOENT;
    *val = found;
    return 0;
}

static int ldb_get(struct kv *kv, const void *key, size_t key_len, void **val,
                   size_t *val_len)
{
    struct kv_leveldb *k = (struct kv_leveldb *)kv;

    return get_with(k, k->get_options, key, key_len, val, val_len);
}

static void on_done_task(struct env_task *task)
{
    struct kv_leveldb *k = container_of(task, struct kv_leveldb, task);

    while (k->done_head != NULL) {
        struct kv_done *done = k->done_head;

        k->done_head = done->next;
        if (k->done_head == NULL) {
            k->done_tail = NULL;
            k->write_rc = 0;
        }
        done->fn(done, done->rc);
    }
}

static int write_once(struct kv_leveldb *k)
{
    char *message = NULL;

    if (!is_open(k))
        return -EMFILE;
    leveldb_write(k->db, k->write_options, k->batch, &message);
    return message_to_errno(k, message, "write");
}

/* Writes the batch, and again after a lack of descriptors. That is safe: a batch that
 * failed is not in the log, and a second write of it changes nothing. */
static int batch_write(struct kv_leveldb *k)
{
    int rc = write_once(k);

    if (rc == -EMFILE) {
        reserve_release(k);
        rc = write_once(k);
    }
    if (rc == -EMFILE && reopen(k))
        rc = write_once(k);
    return rc;
}

static void ldb_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                       struct kv_done *done)
{
    struct kv_leveldb *k = (struct kv_leveldb *)kv;

    leveldb_writebatch_clear(k->batch);
    for (size_t i = 0; i < n_items; i++) {
        if (items[i].val == NULL)
            leveldb_writebatch_delete(k->batch, items[i].key, items[i].key_len);
        else
            leveldb_writebatch_put(k->batch, items[i].key, items[i].key_len, items[i].val,
                                   items[i].val_len);
    }
    reserve_fill(k);
    if (k->write_rc == 0) /* LevelDB would go on, and keep a later one without this one */
        k->write_rc = batch_write(k);
    done->rc = k->write_rc;
    done->next = NULL;
    if (k->done_tail == NULL)
        k->done_head = done;
    else
        k->done_tail->next = done;
    k->done_tail = done;
    env_post(k->env, &k->task);
}

/* "000123.log" -> 123; 0 for anything else. */
static unsigned long log_number(const char *name)
{
    char *end;
    unsigned long n = strtoul(name, &end, 10);

    return end != name && strcmp(end, ".log") == 0 ? n : 0;
}

static int by_number(const void *a, const void *b)
{
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

    return x < y ? -1 : x > y;
}

/* Syncs one log. A log that has gone is in synced tables. */
static int log_sync(int dir_fd, unsigned long number)
{
    char name[32];
    int fd, rc = 0;

    snprintf(name, sizeof(name), "%06lu.log", number);
    fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fdatasync(fd) != 0)
        rc = -errno;
    close(fd);
    return rc;
}

/* Syncs the logs that the directory lists, oldest first, so that older data becomes
 * stable earlier. Syncs the directory only if a log has a name that it has not kept yet;
 * numbers only grow. */
static int logs_sync(const char *path, unsigned long *named)
{
    unsigned long numbers[64];
    size_t n = 0;
    struct dirent *d;
    DIR *dir = opendir(path);
    int rc = 0;

    if (dir == NULL)
        return -errno;
    while ((d = readdir(dir)) != NULL && rc == 0) {
        unsigned long number = log_number(d->d_name);

        if (number != 0 && n == sizeof(numbers) / sizeof(numbers[0]))
            rc = -EOVERFLOW; /* LevelDB keeps two */
        else if (number != 0)
            numbers[n++] = number;
    }
    qsort(numbers, n, sizeof(numbers[0]), by_number);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = log_sync(dirfd(dir), numbers[i]);
    if (rc == 0 && n > 0 && numbers[n - 1] > *named) {
        rc = fsync(dirfd(dir)) == 0 ? 0 : -errno;
        if (rc == 0)
            *named = numbers[n - 1];
    }
    closedir(dir);
    return rc;
}

static void sync_work(uv_work_t *work)
{
    struct kv_leveldb *k = work->data;

    k->sync_rc = logs_sync(k->dir, &k->named_log);
    if (k->sync_rc == -EMFILE || k->sync_rc == -ENFILE) /* syncfs() needs no descriptor */
        k->sync_rc = syncfs(k->dir_fd) == 0 ? 0 : -errno;
}

static void on_sync_work(uv_work_t *work, int status)
{
    struct kv_leveldb *k = work->data;
    struct kv_done *done = k->sync_done;
    int rc = status != 0 ? status : k->sync_rc;

    if (rc != 0)
        log_error("metadata store: sync %s: %s", k->dir, error_text(rc));
    k->sync_done = NULL;
    done->fn(done, rc);
}

static void ldb_sync(struct kv *kv, struct kv_done *done)
{
    struct kv_leveldb *k = (struct kv_leveldb *)kv;

    k->sync_done = done;
    k->work.data = k;
    uv_queue_work(k->loop, &k->work, sync_work, on_sync_work); /* fails on NULL only */
}

uint64_t kv_leveldb_bytes(struct kv_leveldb *k)
{
    const char *from = "", *to = "\xff";
    size_t from_len = 0, to_len = 1;
    uint64_t tables = 0;

    if (k->db == NULL)
        return 0;
    leveldb_approximate_sizes(k->db, 1, &from, &from_len, &to, &to_len, &tables);
    return tables;
}

/* Returns the space that LevelDB may need to merge tables: it has the old and the new
 * ones for a while. */
static uint64_t merge_bytes(struct kv_leveldb *k)
{
    uint64_t tables = kv_leveldb_bytes(k);

    return tables < MERGE_BYTES_MAX ? tables : MERGE_BYTES_MAX;
}

static uint64_t ldb_free_bytes(struct kv *kv)
{
    struct kv_leveldb *k = (struct kv_leveldb *)kv;
    uint64_t merge = merge_bytes(k), free_bytes;
    struct statvfs st;

    if (statvfs(k->dir, &st) != 0)
        return UINT64_MAX;
    free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return free_bytes < merge ? 0 : free_bytes - merge;
}

static leveldb_iterator_t *iter_at(struct kv_iter *it)
{
    return ((struct leveldb_iter *)it)->at;
}

static void iter_seek(struct kv_iter *it, const void *key, size_t key_len)
{
    leveldb_iter_seek(iter_at(it), key, key_len);
}

static bool iter_valid(struct kv_iter *it)
{
    return leveldb_iter_valid(iter_at(it));
}

static void iter_next(struct kv_iter *it)
{
    leveldb_iter_next(iter_at(it));
}

static const void *iter_key(struct kv_iter *it, size_t *len_bytes)
{
    return leveldb_iter_key(iter_at(it), len_bytes);
}

static const void *iter_val(struct kv_iter *it, size_t *len_bytes)
{
    return leveldb_iter_value(iter_at(it), len_bytes);
}

static int iter_error(struct kv_iter *it)
{
    char *message = NULL;

    struct kv_leveldb *k = ((struct leveldb_iter *)it)->k;
    int rc;

    leveldb_iter_get_error(iter_at(it), &message);
    rc = message_to_errno(k, message, "scan");
    if (rc == -EMFILE) /* helps the next iterator */
        reserve_release(k);
    return rc;
}

static void iter_close(struct kv_iter *it)
{
    leveldb_iter_destroy(iter_at(it));
    ((struct leveldb_iter *)it)->k->n_iters--;
    free(it);
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

static int iter_with(struct kv_leveldb *k, const leveldb_readoptions_t *options,
                     struct kv_iter **out)
{
    struct leveldb_iter *li;

    if (!is_open(k))
        return -EMFILE;
    li = calloc(1, sizeof(*li));
    if (li == NULL)
        return -ENOMEM;
    li->it.ops = &iter_ops;
    li->k = k;
    k->n_iters++;
    li->at = leveldb_create_iterator(k->db, options);
    *out = &li->it;
    return 0;
}

static int ldb_iter_open(struct kv *kv, struct kv_iter **out)
{
    struct kv_leveldb *k = (struct kv_leveldb *)kv;

    return iter_with(k, k->scan_options, out);
}

static const struct kv_ops ldb_ops = {
    .get = ldb_get,
    .iter_open = ldb_iter_open,
    .commit = ldb_commit,
    .sync = ldb_sync,
    .free_bytes = ldb_free_bytes,
};

/* ---- a view of the store as it was ---- */

static int frozen_get(struct kv *kv, const void *key, size_t key_len, void **val,
                      size_t *val_len)
{
    struct kv_frozen *f = (struct kv_frozen *)kv;

    return f->at == NULL ? -ESTALE
                         : get_with(f->k, f->options, key, key_len, val, val_len);
}

static int frozen_iter_open(struct kv *kv, struct kv_iter **out)
{
    struct kv_frozen *f = (struct kv_frozen *)kv;

    return f->at == NULL ? -ESTALE : iter_with(f->k, f->options, out);
}

static const struct kv_ops frozen_ops = {
    .get = frozen_get,
    .iter_open = frozen_iter_open,
};

int kv_leveldb_freeze(struct kv_leveldb *k, struct kv **out)
{
    struct kv_frozen *f;

    if (k->frozen != NULL)
        return -EBUSY;
    if (!is_open(k))
        return -EMFILE;
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    f->kv.ops = &frozen_ops;
    f->k = k;
    f->at = leveldb_create_snapshot(k->db);
    f->options = leveldb_readoptions_create();
    leveldb_readoptions_set_verify_checksums(f->options, 1);
    leveldb_readoptions_set_fill_cache(f->options, 0);
    leveldb_readoptions_set_snapshot(f->options, f->at);
    k->frozen = f;
    *out = &f->kv;
    return 0;
}

void kv_leveldb_thaw(struct kv_leveldb *k)
{
    assert(k->frozen != NULL);
    frozen_drop(k);
    leveldb_readoptions_destroy(k->frozen->options);
    free(k->frozen);
    k->frozen = NULL;
}

static void options_make(struct kv_leveldb *k, bool may_create, unsigned n_fds)
{
    k->options = leveldb_options_create();
    k->cache = leveldb_cache_create_lru(CACHE_BYTES);
    k->bloom = leveldb_filterpolicy_create_bloom(BLOOM_BITS);
    leveldb_options_set_create_if_missing(k->options, may_create);
    leveldb_options_set_paranoid_checks(k->options, 1);
    leveldb_options_set_write_buffer_size(k->options, WRITE_BUFFER_BYTES);
    leveldb_options_set_cache(k->options, k->cache);
    leveldb_options_set_filter_policy(k->options, k->bloom);
    leveldb_options_set_max_open_files(k->options, (int)(n_fds - RESERVE_FDS - OWN_FDS));
    k->get_options = leveldb_readoptions_create();
    leveldb_readoptions_set_verify_checksums(k->get_options, 1);
    k->scan_options = leveldb_readoptions_create();
    leveldb_readoptions_set_verify_checksums(k->scan_options, 1);
    leveldb_readoptions_set_fill_cache(k->scan_options, 0);
    k->write_options = leveldb_writeoptions_create(); /* sync is done by us */
    k->batch = leveldb_writebatch_create();
}

/* Explains why LevelDB did not open the store. */
static int open_refusal(const char *dir, char *message, struct err *err)
{
    char current[4096];
    int rc = -EIO;

    snprintf(current, sizeof(current), "%s/CURRENT", dir);
    if (is_corruption(message))
        rc = err_set(err, -ROZO_EDAMAGED,
                     "the metadata store %s is damaged (%s); nothing was changed: check "
                     "its disk, and restore it from a backup",
                     dir, message);
    else if (access(current, F_OK) != 0 && errno == ENOENT)
        rc =
            err_set(err, -ENOENT,
                    "the metadata store %s is not there, or not whole (no %s), but this "
                    "data directory was in use: is its disk mounted? A new store is made "
                    "only in an empty data directory",
                    dir, current);
    else
        err_set(err, rc, "open the metadata store %s: %s", dir, message);
    leveldb_free(message);
    return rc;
}

int kv_leveldb_open(struct env *env, uv_loop_t *loop, const char *dir, bool may_create,
                    unsigned n_fds, struct kv_leveldb **out, struct err *err)
{
    struct kv_leveldb *k = calloc(1, sizeof(*k));
    char *message = NULL;
    int rc;

    assert(n_fds >= FDS_KV_MIN);
    if (k == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    k->kv.ops = &ldb_ops;
    k->env = env;
    k->loop = loop;
    k->task.fn = on_done_task;
    k->dir_fd = -1;
    memset(k->reserve, 0xff, sizeof(k->reserve)); /* -1 */
    k->dir = strdup(dir);
    if (k->dir == NULL) {
        kv_leveldb_close(k);
        return err_set(err, -ENOMEM, "out of memory");
    }
    options_make(k, may_create, n_fds);
    k->db = leveldb_open(k->options, dir, &message);
    if (k->db == NULL) {
        rc = open_refusal(dir, message, err);
        kv_leveldb_close(k);
        return rc;
    }
    k->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->dir_fd < 0) {
        rc = err_set(err, -errno, "open %s: %s", dir, strerror(errno));
        kv_leveldb_close(k);
        return rc;
    }
    k->reserve_ns = env_now_ns(env) - ms_to_ns(RESERVE_MS);
    reserve_fill(k);
    *out = k;
    return 0;
}

void kv_leveldb_close(struct kv_leveldb *k)
{
    if (k == NULL)
        return;
    if (k->frozen != NULL)
        kv_leveldb_thaw(k);
    if (k->db != NULL)
        leveldb_close(k->db);
    if (k->options != NULL) {
        leveldb_writebatch_destroy(k->batch);
        leveldb_writeoptions_destroy(k->write_options);
        leveldb_readoptions_destroy(k->scan_options);
        leveldb_readoptions_destroy(k->get_options);
        leveldb_options_destroy(k->options);
        leveldb_filterpolicy_destroy(k->bloom);
        leveldb_cache_destroy(k->cache);
    }
    for (unsigned i = 0; i < RESERVE_FDS; i++) {
        if (k->reserve[i] >= 0)
            close(k->reserve[i]);
    }
    if (k->dir_fd >= 0)
        close(k->dir_fd);
    free(k->dir);
    free(k);
}

struct kv *kv_leveldb_kv(struct kv_leveldb *k)
{
    return &k->kv;
}
