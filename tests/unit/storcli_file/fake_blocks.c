/*
 * fake_blocks.c - a block engine and an exportd in memory, for tests of the file layer.
 */
#include "fake_blocks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

struct storcli {
    int unused;
};
struct storcli_file {
    struct fake *k;
    bool has_stored;
};

/* A request, from the call to its answer. */
struct request {
    struct list_node link;
    struct env_timer timer;
    struct fake *k;
    enum fake_kind kind;
    storcli_done_cb *done;
    void *arg;
    struct file_meta_call *call;
    uint64_t version, first, n_blocks; /* n_blocks UINT64_MAX: to the end */
    const uint8_t *data;
    uint8_t *copy; /* copy of lent data, or the data that a read will return */
    uint8_t *out;
    uint16_t *user_bytes, *user_copy;
    uint32_t last_user_bytes;
    uint64_t size, *found;
    int64_t mtime_ns;
    uint32_t epoch, generation;
    bool has_data, sync, want_hole, early, below, counted;
    struct range_map allocated, freed; /* for FAKE_WROTE; owned */
};

/* a global, since storcli_file_open() has no argument for it */
static struct fake *the_fake;

unsigned fake_below(struct fake *k, unsigned bound)
{
    return (unsigned)env_virtual_below(&k->v, bound);
}

bool fake_chance(struct fake *k, unsigned ppm)
{
    return ppm != 0 && fake_below(k, 1000000) < ppm;
}

void fake_init(struct fake *k, uint64_t seed)
{
    memset(k, 0, sizeof(*k));
    env_virtual_init(&k->v, seed);
    list_init(&k->requests);
    the_fake = k;
}

void fake_free(struct fake *k)
{
    assert(list_is_empty(&k->requests));
    for (unsigned i = 0; i < FAKE_BLOCKS; i++)
        free(k->s.blocks[i].data);
    env_virtual_close(&k->v);
}

/* ---- the storages' side ---- */

static void block_set(struct fake_block *b, uint64_t version, const uint8_t *data,
                      uint32_t user_bytes)
{
    if (b->data == NULL)
        b->data = malloc(FAKE_BS);
    memset(b->data, 0, FAKE_BS);
    if (user_bytes > 0)
        memcpy(b->data, data, user_bytes);
    b->version = version;
    b->user_bytes = (uint16_t)user_bytes;
}

static uint32_t user_bytes_of(const struct request *rq, uint64_t i)
{
    return i + 1 == rq->n_blocks ? rq->last_user_bytes : FAKE_BS;
}

static uint64_t request_end(const struct request *rq)
{
    return rq->n_blocks > FAKE_BLOCKS ? FAKE_BLOCKS : rq->first + rq->n_blocks;
}

/* Returns whether newer blocks in the range refuse the whole request, as storages do. */
static bool is_stale(const struct request *rq)
{
    const struct fake *k = rq->k;

    if (rq->kind == FAKE_WRITE && version_epoch(rq->version) < k->min_epoch)
        return true;
    for (uint64_t b = rq->first; b < request_end(rq); b++)
        if (k->s.blocks[b].version > rq->version)
            return true;
    return false;
}

/* Applies a write or mark. some: only to random blocks, as a failed request may. */
static void apply(struct request *rq, bool some)
{
    struct fake *k = rq->k;
    bool all = !some;

    if (rq->kind != FAKE_WRITE && rq->kind != FAKE_MARK)
        return;
    for (uint64_t b = rq->first; b < request_end(rq); b++) {
        struct fake_block *block = &k->s.blocks[b];

        if (block->version > rq->version || (!all && fake_chance(k, 500000)))
            continue;
        if (rq->kind == FAKE_MARK)
            k->s.reserved[b] = 0;
        if (rq->kind == FAKE_MARK)
            block_set(block, rq->version, NULL, 0);
        else
            block_set(block, rq->version, rq->copy + (b - rq->first) * FAKE_BS,
                      user_bytes_of(rq, b - rq->first));
    }
}

static void read_blocks(struct request *rq)
{
    for (uint64_t i = 0; i < rq->n_blocks; i++) {
        const struct fake_block *b = &rq->k->s.blocks[rq->first + i];

        if (b->data != NULL)
            memcpy(rq->copy + i * FAKE_BS, b->data, FAKE_BS);
        else
            memset(rq->copy + i * FAKE_BS, 0, FAKE_BS);
        rq->user_copy[i] = b->user_bytes;
    }
}

void fake_peek(const struct fake *k, uint64_t offset, uint8_t *buf, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const struct fake_block *b = &k->s.blocks[(offset + i) / FAKE_BS];

        buf[i] = b->data != NULL ? b->data[(offset + i) % FAKE_BS] : 0;
    }
}

static uint64_t seek_blocks(const struct request *rq)
{
    uint64_t limit = rq->want_hole ? rq->n_blocks : FAKE_BLOCKS;

    for (uint64_t b = rq->first; b < limit; b++)
        if ((rq->k->s.blocks[b].user_bytes == 0) == rq->want_hole)
            return b;
    return rq->want_hole ? limit : UINT64_MAX;
}

/* Returns the highest size that may be reported: a file may remember for long what it
 * reserved. */
static uint64_t max_end(const struct fake *k)
{
    return k->acked_end > k->reserved_end ? k->acked_end : k->reserved_end;
}

/* ---- exportd's side ---- */

void fake_target(struct storcli_target *target)
{
    memset(target, 0, sizeof(*target));
    target->codec = CODEC_MOJETTE;
    target->block_bytes = FAKE_BS;
    target->n_storages = 4;
    target->dist_generation = the_fake->told_generation;
}

void fake_move(struct fake *k)
{
    k->told_generation = ++k->dist_generation;
    k->min_epoch = k->s.epoch + 1;
}

/* Returns the allocated blocks, borrowed until the next call. */
static struct range_map *allocated_now(const struct fake *k)
{
    static struct range_map map;
    int rc = 0;

    range_map_free(&map);
    for (uint64_t b = 0; b < FAKE_BLOCKS; b++)
        if (k->s.allocated[b] != 0)
            rc |= range_map_put(&map, b, b + 1, 1);
    assert(rc == 0);
    return &map;
}

void fake_attr(const struct fake *k, struct file_attr *attr)
{
    *attr = (struct file_attr){
        .blocks_known = k->s.uncounted ? BLOCKS_AT_LEAST : BLOCKS_ALL,
        .blocks = *allocated_now(k),
        .size = k->s.size,
        .has_data = k->s.has_data,
        .truncate_pending = k->s.truncate_pending,
        .truncate_size = k->s.truncate_size,
        .truncate_version = k->s.truncate_version,
        .inline_max = k->s.inline_max,
        .on_storages = k->s.on_storages,
        .inline_version = k->s.on_storages ? 0 : k->s.inline_version,
        .inline_data = k->s.on_storages ? NULL : k->s.inline_data,
        .inline_len = k->s.on_storages ? 0 : k->s.inline_len,
    };
}

void fake_setattr_size(struct fake *k, uint64_t size, struct file_attr *attr)
{
    k->s.epoch++;
    if (size < k->s.size && k->s.has_data) {
        if (!k->s.truncate_pending || size < k->s.truncate_size)
            k->s.truncate_size = size;
        k->s.truncate_pending = true;
        k->s.truncate_version = version_make(k->s.epoch, 0);
    }
    if (size < k->s.size && !k->s.has_data)
        memset(k->s.reserved + (size + FAKE_BS - 1) / FAKE_BS, 0,
               FAKE_BLOCKS - (size + FAKE_BS - 1) / FAKE_BS);
    if (size < k->s.size)
        memset(k->s.allocated + (size + FAKE_BS - 1) / FAKE_BS, 0,
               FAKE_BLOCKS - (size + FAKE_BS - 1) / FAKE_BS);
    k->s.size = size;
    if (k->acked_end > size)
        k->acked_end = size;
    if (k->reserved_end > size)
        k->reserved_end = size;
    fake_attr(k, attr);
    attr->epoch = k->s.epoch;
}

static void told_of_blocks(struct fake *k, const struct range_map *changes, uint8_t value)
{
    for (size_t i = 0; i < changes->n; i++)
        memset(k->s.allocated + changes->list[i].from, value,
               changes->list[i].to - changes->list[i].from);
}

static void meta_apply(struct request *rq)
{
    struct fake *k = rq->k;

    if (rq->kind == FAKE_RENEW) {
        k->s.epoch = k->s.epoch < k->min_epoch ? k->min_epoch : k->s.epoch + 1;
        k->denied = false;
        fake_attr(k, &rq->call->attr);
        rq->call->attr.epoch = k->s.epoch;
        fake_target(&rq->call->target);
        rq->call->target.session = UINT64_MAX; /* must be ignored by the file layer */
    } else if (rq->kind == FAKE_LOAD) {
        fake_attr(k, &rq->call->attr);
        fake_target(&rq->call->target);
        rq->call->target.session = UINT64_MAX; /* must be ignored, too */
    } else if (rq->kind == FAKE_WROTE) {
        assert(rq->size <= max_end(k) || rq->size <= k->s.size ||
               rq->call->inline_version != 0);
        assert(!k->s.truncate_pending || rq->size <= k->s.size);
        assert(rq->size <= k->s.size || rq->epoch != 0);
        rq->call->is_cut = rq->size > k->s.size && rq->epoch < k->cut_epoch;
        if (rq->size > k->s.truncate_size &&
            rq->epoch > version_epoch(k->s.truncate_version))
            /* a client that extends the file has finished the truncate */
            k->s.truncate_pending = false;
        k->s.size = rq->size > k->s.size && !rq->call->is_cut ? rq->size : k->s.size;
        k->s.has_data |= rq->has_data;
        k->s.on_storages |= rq->has_data;
        if (rq->call->inline_version != 0)
            k->s.inline_version = rq->call->inline_version;
        told_of_blocks(k, &rq->freed, 0);
        told_of_blocks(k, &rq->allocated, 1);
        k->s.uncounted &= !rq->counted;
        k->s.mtime_ns = rq->mtime_ns != 0 ? rq->mtime_ns : k->s.mtime_ns;
        k->n_wrote_sync += rq->sync;
        k->last_wrote_size = rq->size;
        rq->call->has_size = true;
        rq->call->attr.size = k->s.size;
    } else if (rq->kind == FAKE_TRUNCATED && rq->version == k->s.truncate_version) {
        k->s.truncate_pending = false;
    }
}

/* ---- requests ---- */

static int choose_failure(struct request *rq)
{
    struct fake *k = rq->k;
    int rc = k->fail_next[rq->kind] != 0 ? k->fail_next[rq->kind] : k->fail_all[rq->kind];
    bool to_storages = rq->kind <= FAKE_ALLOC;
    bool has_version = rq->kind == FAKE_WRITE || rq->kind == FAKE_MARK;

    k->fail_next[rq->kind] = 0;
    if (k->dead)
        return -EIO;
    if (rc == 0 && to_storages && fake_chance(k, k->moved_ppm))
        fake_move(k);
    if (rc == 0 && to_storages && rq->generation < k->dist_generation) {
        k->n_moved++;
        return -ROZO_EMOVED;
    }
    if (rc == 0 && has_version && !rq->below && fake_chance(k, k->stale_ppm)) {
        if (rq->kind == FAKE_WRITE)
            k->min_epoch = k->s.epoch + 1; /* as if another client had the file since */
        else
            rc = -ESTALE;
    }
    k->n_since_denied++;
    if (rc == 0 && to_storages && k->n_since_denied > 100 &&
        fake_chance(k, k->denied_ppm)) {
        k->denied = true; /* rarely enough for one renewal to help */
        k->n_since_denied = 0;
    }
    if (rc == 0 && has_version && !rq->below && is_stale(rq))
        rc = -ESTALE;
    if (rc == 0 && to_storages && k->denied)
        rc = -EACCES;
    if (rc == 0 && fake_chance(k, k->fail_ppm))
        rc = -EIO;
    return rc;
}

static void succeed(struct request *rq)
{
    struct fake *k = rq->k;

    if (rq->kind == FAKE_WRITE) {
        uint64_t end = (rq->first + rq->n_blocks - 1) * FAKE_BS + rq->last_user_bytes;

        k->acked_end = end > k->acked_end ? end : k->acked_end;
        k->unsynced |= !rq->sync;
    } else if (rq->kind == FAKE_MARK) {
        k->unsynced = true;
    } else if (rq->kind == FAKE_ALLOC) {
        uint64_t end = (rq->first + rq->n_blocks) * FAKE_BS;

        k->reserved_end = end > k->reserved_end ? end : k->reserved_end;
        memset(k->s.reserved + rq->first, 1, rq->n_blocks);
    } else if (rq->kind == FAKE_READ) {
        if (!rq->early)
            read_blocks(rq);
        memcpy(rq->out, rq->copy, rq->n_blocks * FAKE_BS);
        if (rq->user_bytes != NULL)
            memcpy(rq->user_bytes, rq->user_copy, rq->n_blocks * sizeof(uint16_t));
    } else if (rq->kind == FAKE_SYNC) {
        k->unsynced = false;
    } else if (rq->kind == FAKE_SEEK) {
        *rq->found = seek_blocks(rq);
    }
    apply(rq, false);
    meta_apply(rq);
}

static void answer(struct request *rq)
{
    struct fake *k = rq->k;
    int rc = choose_failure(rq);

    if (rq->kind == FAKE_WRITE) /* lent data must not change */
        assert(memcmp(rq->data, rq->copy, rq->n_blocks * FAKE_BS) == 0);
    list_remove(&rq->link);
    if (rc == 0)
        succeed(rq);
    else if (rc != -ESTALE && rc != -EACCES && rc != -ROZO_EMOVED && !k->dead)
        apply(rq, true);
    if (rq->call != NULL)
        rq->call->done(rq->call, rc);
    else
        rq->done(rq->arg, rc);
    free(rq->copy);
    free(rq->user_copy);
    range_map_free(&rq->allocated);
    range_map_free(&rq->freed);
    free(rq);
}

static void on_timer(struct env_timer *timer)
{
    struct request *rq = container_of(timer, struct request, timer);

    if (!rq->k->held[rq->kind])
        answer(rq);
}

static void start(struct request *rq)
{
    env_timer_init(&rq->timer, on_timer);
    env_timer_start(&rq->k->v.env, &rq->timer,
                    rq->k->in_order ? 0 : fake_below(rq->k, FAKE_DELAY_MS));
}

static struct request *request_new(struct fake *k, enum fake_kind kind,
                                   storcli_done_cb *done, void *arg)
{
    struct request *rq = calloc(1, sizeof(*rq));

    rq->k = k;
    rq->generation = k->file_generation;
    rq->kind = kind;
    rq->done = done;
    rq->arg = arg;
    list_add_tail(&k->requests, &rq->link);
    k->n[kind]++;
    start(rq);
    return rq;
}

void fake_release(struct fake *k, enum fake_kind kind)
{
    k->held[kind] = false;
    LIST_FOREACH(node, &k->requests) {
        struct request *rq = container_of(node, struct request, link);

        if (rq->kind == kind && !env_timer_is_running(&rq->timer))
            start(rq);
    }
}

void fake_kill(struct fake *k)
{
    LIST_FOREACH(node, &k->requests)
        apply(container_of(node, struct request, link), true);
    k->dead = true;
    for (unsigned i = 0; i < FAKE_KINDS; i++)
        fake_release(k, i);
}

void fake_revive(struct fake *k)
{
    assert(list_is_empty(&k->requests));
    k->dead = k->denied = false;
    k->acked_end = k->s.size;
    k->reserved_end = 0; /* the client that reserved it is gone */
    k->s.uncounted = true;
    k->last_version = 0;
}

/* Checks that no other request in flight touches the same blocks. */
static void check_alone(const struct request *rq)
{
    LIST_FOREACH(node, &rq->k->requests) {
        const struct request *o = container_of(node, struct request, link);

        if (o != rq && (o->kind == FAKE_WRITE || o->kind == FAKE_MARK))
            assert(rq->first >= request_end(o) || o->first >= request_end(rq));
    }
}

/* ---- storcli/blocks.h ---- */

int storcli_file_open(struct storcli *cli, const struct storcli_target *target,
                      struct storcli_file **out)
{
    (void)cli;
    assert(target->block_bytes == FAKE_BS);
    *out = calloc(1, sizeof(**out));
    (*out)->k = the_fake;
    the_fake->file_generation = target->dist_generation;
    return 0;
}

int storcli_file_update(struct storcli_file *file, const struct storcli_target *target)
{
    assert(target->block_bytes == FAKE_BS);
    file->k->n_updates++;
    if (target->session != 0)
        file->k->session = target->session;
    if (target->dist_generation > file->k->file_generation)
        file->k->file_generation = target->dist_generation;
    return 0;
}

uint32_t storcli_file_dist_generation(const struct storcli_file *file)
{
    return file->k->file_generation;
}

void storcli_file_close(struct storcli_file *file)
{
    free(file);
}

void storcli_file_others_wrote(struct storcli_file *file)
{
    (void)file;
}

bool storcli_file_has_stored(const struct storcli_file *file)
{
    return file->has_stored;
}

void storcli_file_completes(struct storcli_file *file, uint64_t block)
{
    file->k->n_completes++;
    file->k->last_completed = block;
}

bool storcli_file_is_unsynced(const struct storcli_file *file)
{
    return file->k->unsynced;
}

void storcli_write(struct storcli_file *file, uint64_t version, uint64_t first_block,
                   uint32_t n_blocks, const uint8_t *data, size_t last_user_bytes,
                   bool sync, storcli_done_cb *done, void *arg)
{
    struct fake *k = file->k;
    struct request *rq = request_new(k, FAKE_WRITE, done, arg);
    size_t bytes = (size_t)n_blocks * FAKE_BS;

    assert(n_blocks > 0 && n_blocks <= STORCLI_RUN_MAX);
    assert(last_user_bytes > 0 && last_user_bytes <= FAKE_BS);
    assert(first_block + n_blocks <= FAKE_BLOCKS);
    assert(version > k->last_version && (version & UINT32_MAX) != 0);
    for (size_t i = bytes - FAKE_BS + last_user_bytes; i < bytes; i++)
        assert(data[i] == 0);
    k->last_version = version;
    rq->version = version;
    rq->first = first_block;
    rq->n_blocks = n_blocks;
    rq->last_user_bytes = (uint32_t)last_user_bytes;
    rq->data = data;
    rq->copy = malloc(bytes);
    memcpy(rq->copy, data, bytes);
    rq->sync = sync;
    check_alone(rq);
    k->n_write_sync += sync;
    k->blocks_written += n_blocks;
    k->last_write_data = data;
    k->last_write_blocks = n_blocks;
    k->last_write_first = first_block;
    k->last_user_bytes = rq->last_user_bytes;
    k->max_write_blocks = n_blocks > k->max_write_blocks ? n_blocks : k->max_write_blocks;
}

void storcli_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                  uint8_t *data, uint16_t *user_bytes, storcli_done_cb *done, void *arg)
{
    struct fake *k = file->k;
    struct request *rq = request_new(k, FAKE_READ, done, arg);

    assert(n_blocks > 0 && n_blocks <= STORCLI_RUN_MAX);
    assert(first_block + n_blocks <= FAKE_BLOCKS);
    rq->first = first_block;
    rq->n_blocks = n_blocks;
    rq->out = data;
    rq->user_bytes = user_bytes;
    rq->copy = malloc((size_t)n_blocks * FAKE_BS);
    rq->user_copy = malloc(n_blocks * sizeof(uint16_t));
    /* reads the storages now; otherwise when it ends */
    rq->early = fake_chance(k, 500000);
    if (rq->early)
        read_blocks(rq);
    memset(data, 0xee, (size_t)n_blocks * FAKE_BS);
    k->blocks_read += n_blocks;
    k->max_read_blocks = n_blocks > k->max_read_blocks ? n_blocks : k->max_read_blocks;
}

static void mark(struct storcli_file *file, uint64_t version, uint64_t first_block,
                 uint64_t n_blocks, bool below, storcli_done_cb *done, void *arg)
{
    struct fake *k = file->k;
    struct request *rq = request_new(k, FAKE_MARK, done, arg);

    rq->below = below;
    rq->version = version;
    rq->first = first_block;
    rq->n_blocks = n_blocks == 0 ? UINT64_MAX : n_blocks;
    check_alone(rq);
    k->last_mark_version = version;
    k->last_mark_first = first_block;
    k->last_mark_blocks = n_blocks;
    if (version > k->last_version)
        k->last_version = version;
}

void storcli_mark(struct storcli_file *file, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, storcli_done_cb *done, void *arg)
{
    mark(file, version, first_block, n_blocks, false, done, arg);
}

void storcli_mark_below(struct storcli_file *file, uint64_t version, uint64_t first_block,
                        uint64_t n_blocks, storcli_done_cb *done, void *arg)
{
    mark(file, version, first_block, n_blocks, true, done, arg);
}

uint64_t storcli_file_losses(const struct storcli_file *file)
{
    return file->k->losses;
}

void storcli_sync_layer(struct storcli_file *file, storcli_done_cb *done, void *arg)
{
    storcli_sync(file, done, arg);
}

void storcli_sync(struct storcli_file *file, storcli_done_cb *done, void *arg)
{
    request_new(file->k, FAKE_SYNC, done, arg);
}

void storcli_seek(struct storcli_file *file, uint64_t from_block, uint64_t limit_block,
                  bool want_hole, uint64_t *found_block, storcli_done_cb *done, void *arg)
{
    struct request *rq = request_new(file->k, FAKE_SEEK, done, arg);

    rq->first = from_block;
    rq->n_blocks = limit_block;
    rq->want_hole = want_hole;
    rq->found = found_block;
}

void storcli_alloc(struct storcli_file *file, uint64_t first_block, uint64_t n_blocks,
                   bool again, storcli_done_cb *done, void *arg)
{
    struct request *rq = request_new(file->k, FAKE_ALLOC, done, arg);

    file->has_stored = true;
    rq->first = first_block;
    rq->n_blocks = n_blocks;
    file->k->n_allocs++;
    file->k->n_allocs_again += again;
    file->k->last_alloc_first = first_block;
    file->k->last_alloc_blocks = n_blocks;
}

/* ---- struct file_meta ---- */

static void fake_renew(void *arg, struct file_meta_call *call)
{
    ((struct fake *)arg)->n_told_moved += call->moved;
    request_new(arg, FAKE_RENEW, NULL, NULL)->call = call;
}

static void fake_load(void *arg, struct file_meta_call *call)
{
    ((struct fake *)arg)->n_told_moved += call->moved;
    request_new(arg, FAKE_LOAD, NULL, NULL)->call = call;
}

static void fake_wrote(void *arg, struct file_meta_call *call, uint64_t size,
                       uint32_t epoch, bool has_data, int64_t mtime_ns, int64_t atime_ns,
                       bool sync)
{
    struct fake *k = arg;
    struct request *rq = request_new(k, FAKE_WROTE, NULL, NULL);
    int rc;

    assert(atime_ns == 0);
    assert(size <= max_end(k) || size <= k->s.size || call->inline_version != 0);
    rq->call = call;
    rq->size = size;
    rq->epoch = epoch;
    rq->has_data = has_data;
    rq->mtime_ns = mtime_ns;
    rq->sync = sync;
    assert(call->reports_blocks || call->inline_version != 0);
    rq->counted = call->blocks_counted;
    rc = range_map_unpack(&rq->allocated, call->allocated, call->allocated_len,
                          FAKE_BLOCKS, FILE_RANGES_REPORTED_MAX, 1);
    if (rc == 0)
        rc = range_map_unpack(&rq->freed, call->freed, call->freed_len, FAKE_BLOCKS,
                              FILE_RANGES_REPORTED_MAX, 1);
    assert(rc == 0);
}

static void fake_truncated(void *arg, struct file_meta_call *call, uint64_t version)
{
    struct fake *k = arg;
    struct request *rq = request_new(k, FAKE_TRUNCATED, NULL, NULL);

    /* exportd will forget the truncate: a power cut of the storages must not bring old
     * bytes back */
    assert(!k->unsynced || k->dead);
    rq->call = call;
    rq->version = version;
}

struct file *fake_open(struct fake *k, const struct file_config *config, uint32_t epoch)
{
    struct file_meta meta = { .renew = fake_renew,
                              .load = fake_load,
                              .wrote = fake_wrote,
                              .truncated = fake_truncated,
                              .arg = k };
    struct storcli_target target;
    struct file_attr attr;
    struct file *f = NULL;
    int rc;

    fake_target(&target);
    fake_attr(k, &attr);
    attr.epoch = epoch;
    if (epoch > k->s.epoch)
        k->s.epoch = epoch;
    rc = file_open(&k->v.env, NULL, config, &meta, &target, &attr, &f);
    assert(rc == 0);
    return f;
}
