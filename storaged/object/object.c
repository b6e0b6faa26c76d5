/*
 * object.c - the cache of objects, their locks, and the group commit of their syncs.
 *
 * In:     the requests (storaged/ops). Thread: the storio loop.
 * Out:    env_post(); DISK_SYNC and DISK_SYNC_NAME, disk_close().
 * Keeps:  a sync answers only for changes made before it began (I1); the number of open
 *         files and of objects is bounded (I9); locks are granted in order of arrival.
 * Yours:  which object is evicted.
 */
#include "storaged/object/object.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"

enum {
    FAILED_LOG_MS = 10000,
    CLOSED_AT_ONCE = 16,  /* objects; other callers need descriptors, too */
    LOOKED_AT_MAX = 4096, /* idle objects examined to find them */
};

static void lru_push(struct object *obj)
{
    struct object *head = &obj->all->lru;

    obj->lru_next = head->lru_next;
    obj->lru_prev = head;
    head->lru_next->lru_prev = obj;
    head->lru_next = obj;
}

static void lru_remove(struct object *obj)
{
    obj->lru_prev->lru_next = obj->lru_next;
    obj->lru_next->lru_prev = obj->lru_prev;
    obj->lru_prev = obj->lru_next = NULL;
}

static struct object **bucket_of(struct objects *all, const struct file_id *id)
{
    return &all->buckets[file_id_hash(id) & (all->n_buckets - 1)];
}

static void table_remove(struct object *obj)
{
    struct object **at = bucket_of(obj->all, &obj->id);

    while (*at != obj)
        at = &(*at)->hash_next;
    *at = obj->hash_next;
    obj->all->n--;
}

void object_drop_file(struct object *obj, unsigned p, enum proj_state state)
{
    struct proj *proj = obj->proj[p];

    obj->state[p] = (uint8_t)state;
    if (proj == NULL)
        return;
    if (proj->file != NULL) {
        disk_close(obj->all->disk, proj->file);
        obj->all->n_files--;
    }
    free(proj->marks);
    free(proj->written);
    free(proj->floors);
    free(proj);
    obj->proj[p] = NULL;
}

void object_forget(struct object *obj)
{
    if (obj->syncing || obj->n_sends > 0)
        return;
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = object_ready(obj, p);

        if (proj == NULL)
            continue;
        obj->closed &= ~(UINT32_C(1) << p);
        obj->closed |= (uint32_t)(proj->dirty || proj->name_dirty) << p;
        object_drop_file(obj, p, PROJ_UNKNOWN);
    }
}

static void object_free(struct object *obj)
{
    assert(obj->n_refs == 0 && obj->wait_first == NULL && !obj->syncing);
    for (unsigned p = 0; p < CODEC_N_MAX; p++)
        object_drop_file(obj, p, PROJ_UNKNOWN);
    free(obj);
}

static void evict(struct object *obj)
{
    lru_remove(obj);
    table_remove(obj);
    object_free(obj);
}

/* Evicts the least recently used idle object. Returns false if none is idle. */
static bool evict_one(struct objects *all)
{
    struct object *obj = all->lru.lru_prev;

    if (obj == &all->lru)
        return false;
    evict(obj);
    return true;
}

int objects_init(struct objects *all, struct env *env, struct disk *disk,
                 struct generations *generations, unsigned files_max)
{
    unsigned n_buckets = 64;

    while (n_buckets < files_max)
        n_buckets *= 2;
    *all = (struct objects){
        .env = env,
        .disk = disk,
        .generations = generations,
        .n_buckets = n_buckets,
        .n_max = 2 * files_max,
        .files_max = files_max,
    };
    all->lru.lru_next = all->lru.lru_prev = &all->lru;
    all->buckets = calloc(n_buckets, sizeof(all->buckets[0]));
    return all->buckets == NULL ? -ENOMEM : 0;
}

void objects_close(struct objects *all)
{
    while (evict_one(all))
        ;
    assert(all->n == 0 && all->n_files == 0);
    free(all->buckets);
    all->buckets = NULL;
}

int object_get(struct objects *all, const struct file_id *id, struct object **out)
{
    struct object *obj = *bucket_of(all, id);

    while (obj != NULL && !file_id_equal(&obj->id, id))
        obj = obj->hash_next;
    if (obj != NULL) {
        if (obj->n_refs++ == 0)
            lru_remove(obj);
        *out = obj;
        return 0;
    }
    if (all->n >= all->n_max && !evict_one(all))
        return -EBUSY;
    obj = calloc(1, sizeof(*obj));
    if (obj == NULL)
        return -ENOMEM;
    obj->all = all;
    obj->id = *id;
    obj->hash = file_id_hash(id);
    obj->n_refs = 1;
    obj->hash_next = *bucket_of(all, id);
    *bucket_of(all, id) = obj;
    all->n++;
    *out = obj;
    return 0;
}

void object_put(struct object *obj)
{
    assert(obj->n_refs > 0);
    if (--obj->n_refs > 0)
        return;
    assert(!obj->writer && obj->n_readers == 0);
    if (obj->dead)
        object_free(obj);
    else
        lru_push(obj);
}

void object_kill(struct object *obj)
{
    assert(obj->n_refs > 0);
    if (!obj->dead)
        table_remove(obj);
    obj->dead = true;
}

struct object *objects_next_unsynced(struct objects *all)
{
    struct object *obj = all->lru.lru_next;

    while (obj != &all->lru && (obj->stop_tried || obj->n_synced == obj->n_changes))
        obj = obj->lru_next;
    if (obj == &all->lru)
        return NULL;
    obj->stop_tried = true;
    obj->n_refs++;
    lru_remove(obj);
    return obj;
}

static void grant_waiters(struct object *obj)
{
    while (obj->wait_first != NULL) {
        struct object_wait *w = obj->wait_first;

        if (obj->writer || (w->exclusive && obj->n_readers > 0))
            return;
        obj->wait_first = w->next;
        if (obj->wait_first == NULL)
            obj->wait_last = NULL;
        if (w->exclusive)
            obj->writer = true;
        else
            obj->n_readers++;
        env_post(obj->all->env, &w->task);
    }
}

bool object_lock(struct object *obj, struct object_wait *w, bool exclusive)
{
    bool is_free =
        obj->wait_first == NULL && !obj->writer && (!exclusive || obj->n_readers == 0);

    if (is_free && exclusive)
        obj->writer = true;
    else if (is_free)
        obj->n_readers++;
    if (is_free)
        return true;
    w->exclusive = exclusive;
    w->next = NULL;
    if (obj->wait_last == NULL)
        obj->wait_first = w;
    else
        obj->wait_last->next = w;
    obj->wait_last = w;
    return false;
}

void object_unlock(struct object *obj, bool exclusive)
{
    if (exclusive) {
        assert(obj->writer);
        obj->writer = false;
    } else {
        assert(obj->n_readers > 0);
        obj->n_readers--;
    }
    grant_waiters(obj);
}

void object_downgrade(struct object *obj)
{
    assert(obj->writer);
    obj->writer = false;
    obj->n_readers++;
    grant_waiters(obj);
}

bool object_knows(const struct object *obj, const struct codec *codec, uint32_t want)
{
    if (obj->codec != codec)
        return false;
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if ((want >> p & 1) != 0 && obj->state[p] == PROJ_UNKNOWN)
            return false;
    }
    return true;
}

int object_check_homes(const struct object *obj, uint32_t want, const uint32_t *storages,
                       unsigned n, uint32_t dist_generation)
{
    int rc = 0;

    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = (want >> p & 1) == 0 ? NULL : object_ready(obj, p);

        if (proj == NULL || dist_generation > proj->dist_generation)
            continue;
        if (dist_generation < proj->dist_generation)
            return -ROZO_EMOVED;
        if (proj->n_homes != n ||
            memcmp(proj->homes, storages, n * sizeof(*storages)) != 0)
            rc = -EBADMSG;
    }
    return rc;
}

bool object_recode(struct object *obj, const struct codec *codec)
{
    if (obj->codec == codec)
        return true;
    if (object_present(obj) != 0)
        return false;
    memset(obj->state, PROJ_UNKNOWN, sizeof(obj->state));
    obj->foreign = obj->emptied = obj->unsynced = obj->sought = 0;
    obj->codec = codec;
    return true;
}

static uint32_t in_state(const struct object *obj, enum proj_state state)
{
    uint32_t found = 0;

    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if (obj->state[p] == state)
            found |= UINT32_C(1) << p;
    }
    return found;
}

uint32_t object_present(const struct object *obj)
{
    return in_state(obj, PROJ_READY) | in_state(obj, PROJ_DAMAGED);
}

uint32_t object_damaged(const struct object *obj)
{
    return in_state(obj, PROJ_DAMAGED);
}

static bool has_fd_below(const struct object *obj, unsigned below)
{
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = obj->proj[p];

        if (proj != NULL && proj->file != NULL &&
            (unsigned)disk_fd(obj->all->disk, proj->file) < below)
            return true;
    }
    return false;
}

bool objects_close_idle(struct objects *all, unsigned below)
{
    struct object *obj = all->lru.lru_prev;
    unsigned n_closed = 0;

    for (unsigned n = 0; n < LOOKED_AT_MAX && n_closed < CLOSED_AT_ONCE; n++) {
        struct object *newer = obj->lru_prev;

        if (obj == &all->lru)
            break;
        if (has_fd_below(obj, below)) {
            evict(obj);
            n_closed++;
        }
        obj = newer;
    }
    return n_closed > 0;
}

int objects_room_for_file(struct objects *all)
{
    while (all->n_files >= all->files_max) {
        if (!evict_one(all))
            return -EBUSY;
    }
    return 0;
}

int object_add_file(struct object *obj, unsigned p, struct disk_file *file, uint64_t size)
{
    struct proj *proj = calloc(1, sizeof(*proj));

    assert(obj->proj[p] == NULL);
    if (proj == NULL) {
        disk_close(obj->all->disk, file);
        return -ENOMEM;
    }
    proj->file = file;
    proj->size = size;
    proj->marks_slot = proj->synced_slot = -1;
    geometry_init(&proj->geo, obj->codec, p);
    obj->proj[p] = proj;
    obj->all->n_files++;
    return 0;
}

/* ---- sync: one at a time per object, shared by all that waited when it began ---- */

static void sync_step(struct object *obj);

static void on_sync_done(struct disk_req *req, int rc)
{
    struct object *obj = req->arg;

    if (rc != 0) {
        struct proj *proj = obj->proj[(obj->sync_at - 1) / 2];

        proj->dirty = proj->name_dirty = true;
        obj->sync_rc = -EIO;
    }
    sync_step(obj);
}

/* Submits one of the two requests of a projection if it needs it; else returns false. */
static bool sync_submit(struct object *obj, unsigned p, bool name)
{
    struct proj *proj = object_ready(obj, p);
    struct disk_req *req = &obj->sync_req;

    if (proj == NULL || !(name ? proj->name_dirty : proj->dirty))
        return false;
    *req = (struct disk_req){ .done = on_sync_done, .arg = obj };
    if (name) {
        proj->name_dirty = false;
        projfile_path(obj->sync_path, &obj->id, p);
        req->op = DISK_SYNC_NAME;
        req->path = obj->sync_path;
    } else {
        proj->dirty = false; /* a write from now on waits for the next sync */
        obj->sync_pages[p] = proj->n_pages;
        req->op = DISK_SYNC;
        req->file = proj->file;
    }
    disk_submit(obj->all->disk, req);
    return true;
}

/* Submits the next request of this sync. Returns false if there is none. */
static bool sync_submit_next(struct object *obj)
{
    while (obj->sync_rc == 0 && obj->sync_at < 2 * CODEC_N_MAX) {
        unsigned at = obj->sync_at++;

        if (sync_submit(obj, at / 2, at % 2 == 1))
            return true;
    }
    return false;
}

static void sync_begin(struct object *obj)
{
    obj->syncing = true;
    obj->n_refs++;
    obj->sync_target = obj->n_changes;
    obj->sync_at = 0;
    obj->sync_rc = 0;
    for (unsigned p = 0; p < CODEC_N_MAX; p++)
        obj->sync_pages[p] = UINT_MAX;
}

/* Posts the waits that this sync covers. */
static void sync_wake(struct object *obj)
{
    struct sync_wait **at = &obj->sync_first;

    obj->sync_last = NULL;
    while (*at != NULL) {
        struct sync_wait *w = *at;

        if (w->want > obj->sync_target) {
            obj->sync_last = w;
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->rc = obj->sync_rc;
        env_post(obj->all->env, &w->task);
    }
}

/* True if a closed file has unsynced changes. A request that opens it again can sync
 * them; this one cannot. */
static bool is_closed_unsynced(const struct object *obj)
{
    return (obj->closed & in_state(obj, PROJ_UNKNOWN)) != 0;
}

/* Logs a failed sync. One line for each file could fill the disk of the log when the
 * device fails. */
static void sync_failed_log(struct object *obj)
{
    struct objects *all = obj->all;
    uint64_t now_ns = env_now_ns(all->env);

    if (all->sync_failed_ns != 0 &&
        now_ns - all->sync_failed_ns < ms_to_ns(FAILED_LOG_MS)) {
        all->n_syncs_failed++;
        return;
    }
    log_error("sync of file %08x%08x%016llx failed: acknowledged bytes may be lost; %u "
              "syncs failed since the last message like this",
              obj->id.export_id, obj->id.generation, (unsigned long long)obj->id.ino,
              all->n_syncs_failed);
    all->sync_failed_ns = now_ns;
    all->n_syncs_failed = 0;
}

static void sync_end(struct object *obj)
{
    if (is_closed_unsynced(obj))
        obj->sync_rc = -EIO;
    if (obj->sync_rc == 0) {
        obj->n_synced = obj->sync_target;
        for (unsigned p = 0; p < CODEC_N_MAX; p++) {
            struct proj *proj = object_ready(obj, p);

            if (proj == NULL)
                continue;
            proj->promised = true;
            if (obj->sync_pages[p] == proj->n_pages)
                proj->synced_slot = proj->marks_slot;
        }
    } else {
        sync_failed_log(obj);
        generations_lost_bytes(obj->all->generations);
    }
    sync_wake(obj);
    obj->syncing = false;
}

static void sync_step(struct object *obj)
{
    for (;;) {
        if (sync_submit_next(obj))
            return;
        sync_end(obj);
        if (obj->sync_first == NULL)
            break;
        obj->n_refs--; /* taken again by sync_begin() */
        sync_begin(obj);
    }
    object_put(obj);
}

bool object_sync(struct object *obj, struct sync_wait *w)
{
    if (obj->n_synced == obj->n_changes)
        return true;
    w->want = obj->n_changes;
    w->next = NULL;
    if (obj->sync_last == NULL)
        obj->sync_first = w;
    else
        obj->sync_last->next = w;
    obj->sync_last = w;
    if (!obj->syncing) {
        sync_begin(obj);
        sync_step(obj);
    }
    return false;
}
