/*
 * engine.c - the engine of one loop: files, operations under a memory bound, the state
 * kept of storages, and the tick that wakes waiting operations.
 *
 * In:     storcli_new(), storcli_file_open() and every operation. Thread: the env's.
 * Out:    op->run (posted) and watch->wake.
 * Keeps:  I9, operations hold at most memory_max bytes together, the others wait in
 *         order; a callback never comes before the call that asked for it has returned.
 * Yours:  the tick, how long a slow storage is avoided.
 */
#include "storcli/blocks/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/config/defaults.h"

enum {
    HEDGE_MS = 60,
    SPARE_MS = 400,
    AVOID_MIN_MS = 500,
    AVOID_MAX_MS = 8000,
    SCRATCH_IDLE_MAX = 8 << 20,
};
static const uint64_t memory_max_default = 256 << 20;
/* lent and idle bytes: up to this all buffers given back stay */
static const uint64_t scratch_max = 24 << 20;

/* ---- waking ---- */

static void on_tick(struct env_timer *timer)
{
    struct storcli *cli = container_of(timer, struct storcli, tick);
    uint64_t now_ns = engine_now_ns(cli);
    struct watch *watch = cli->watches.next;

    cli->ticking = true;
    while (watch != &cli->watches) {
        cli->tick_next = watch->next; /* watch_stop() moves it on if that one goes */
        if (watch->wake_ns <= now_ns)
            watch->wake(watch);
        watch = cli->tick_next;
    }
    cli->ticking = false;
    if (cli->watches.next != &cli->watches)
        env_timer_start(cli->env, &cli->tick, WATCH_TICK_MS);
}

void watch_start(struct storcli *cli, struct watch *watch,
                 void (*wake)(struct watch *watch))
{
    assert(!watch->listed);
    watch->wake = wake;
    watch->listed = true;
    watch->next = &cli->watches;
    watch->prev = cli->watches.prev;
    watch->prev->next = watch;
    cli->watches.prev = watch;
    if (!cli->ticking && !env_timer_is_running(&cli->tick))
        env_timer_start(cli->env, &cli->tick, WATCH_TICK_MS);
}

void watch_stop(struct storcli *cli, struct watch *watch)
{
    if (!watch->listed)
        return;
    if (cli->ticking && cli->tick_next == watch)
        cli->tick_next = watch->next;
    watch->prev->next = watch->next;
    watch->next->prev = watch->prev;
    watch->listed = false;
    if (!cli->ticking && cli->watches.next == &cli->watches)
        env_timer_stop(cli->env, &cli->tick);
}

/* ---- operations ---- */

static void on_op_task(struct env_task *task)
{
    struct blk_op *op = container_of(task, struct blk_op, task);

    op->run(op);
}

static void ops_admit(struct storcli *cli)
{
    while (cli->waiting != NULL) {
        struct blk_op *op = cli->waiting;

        if (cli->memory_used != 0 &&
            cli->memory_used + op->need_bytes > cli->config.memory_max)
            return;
        cli->waiting = op->next;
        if (cli->waiting == NULL)
            cli->waiting_tail = &cli->waiting;
        cli->memory_used += op->need_bytes;
        env_post(cli->env, &op->task);
    }
}

void *blk_op_new(struct storcli_file *file, size_t size_bytes, storcli_done_cb *done,
                 void *arg)
{
    struct blk_op *op = calloc(1, size_bytes);

    if (op == NULL)
        abort(); /* there is no way to report it */
    op->file = file;
    op->session = file->target.session;
    op->done = done;
    op->arg = arg;
    op->task.fn = on_op_task;
    file->n_ops++;
    file->cli->n_ops++;
    return op;
}

void engine_op_begin(struct blk_op *op, uint64_t need_bytes,
                     void (*run)(struct blk_op *op))
{
    struct storcli_file *file = op->file;

    if (!engine_is_relocating(file)) {
        blk_op_start(op, need_bytes, run);
        return;
    }
    op->run = run;
    op->need_bytes = need_bytes;
    op->next = NULL;
    *file->held_tail = op;
    file->held_tail = &op->next;
    file->n_held++;
}

void blk_op_start(struct blk_op *op, uint64_t need_bytes, void (*run)(struct blk_op *op))
{
    struct storcli *cli = op->file->cli;

    op->run = run;
    op->need_bytes = need_bytes;
    op->next = NULL;
    *cli->waiting_tail = op;
    cli->waiting_tail = &op->next;
    ops_admit(cli);
}

/* Removes the op from the memory queue. False: it has its memory, or had it. */
static bool waits_leave(struct storcli *cli, struct blk_op *op)
{
    for (struct blk_op **link = &cli->waiting; *link != NULL; link = &(*link)->next) {
        if (*link != op)
            continue;
        *link = op->next;
        if (op->next == NULL)
            cli->waiting_tail = link;
        return true;
    }
    return false;
}

static void op_free(struct blk_op *op)
{
    struct storcli_file *file = op->file;
    struct storcli *cli = file->cli;

    assert(!op->task.queued);
    assert(file->n_ops > 0 && cli->memory_used >= op->need_bytes);
    cli->memory_used -= op->need_bytes;
    file->n_ops--;
    cli->n_ops--;
    free(op);
    ops_admit(cli);
    engine_relocate_look(file);
}

void blk_op_drop(struct blk_op *op)
{
    if (waits_leave(op->file->cli, op))
        op->need_bytes = 0; /* still waiting: no memory was granted */
    op_free(op);
}

void blk_op_end(struct blk_op *op, int rc)
{
    storcli_done_cb *done = op->done;
    void *arg = op->arg;

    op_free(op);
    done(arg, rc);
}

/* ---- storages ---- */

struct peer *engine_peer_get(struct storcli *cli, uint32_t storage_id)
{
    struct peer *peer;

    for (peer = cli->peers; peer != NULL; peer = peer->next) {
        if (peer->storage_id == storage_id)
            return peer;
    }
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    peer->storage_id = storage_id;
    peer->next = cli->peers;
    cli->peers = peer;
    return peer;
}

struct rpc_channel *engine_channel(struct storcli_file *file, unsigned candidate)
{
    struct storcli_peers *where = &file->cli->where;

    return where->channel(where->arg, file->target.storages[candidate]);
}

static enum rpc_health health_of(struct storcli_file *file, unsigned candidate)
{
    struct rpc_channel *ch = engine_channel(file, candidate);

    return ch == NULL ? RPC_DOWN : rpc_channel_health(ch);
}

bool engine_is_up(struct storcli_file *file, unsigned candidate)
{
    return health_of(file, candidate) == RPC_UP;
}

enum peer_rank engine_rank(struct storcli_file *file, unsigned candidate)
{
    enum rpc_health health = health_of(file, candidate);

    if (health < RPC_SUSPECT)
        return PEER_DOWN;
    if (health == RPC_SUSPECT)
        return PEER_SUSPECT;
    if (file->peer[candidate]->avoid_until_ns > engine_now_ns(file->cli))
        return PEER_SLOW;
    return PEER_GOOD;
}

bool engine_is_connecting(struct storcli_file *file, unsigned candidate)
{
    return health_of(file, candidate) == RPC_CONNECTING &&
           !file->peer[candidate]->never_connected;
}

void engine_peer_never_connected(struct storcli_file *file, unsigned candidate)
{
    file->peer[candidate]->never_connected = true;
}

void engine_peer_slow(struct storcli_file *file, unsigned candidate)
{
    struct peer *peer = file->peer[candidate];
    uint64_t now_ns = engine_now_ns(file->cli);

    if (peer->avoid_until_ns > now_ns)
        return;
    peer->avoid_ms = peer->avoid_ms == 0 ? AVOID_MIN_MS : peer->avoid_ms * 2;
    if (peer->avoid_ms > AVOID_MAX_MS)
        peer->avoid_ms = AVOID_MAX_MS;
    peer->avoid_until_ns = now_ns + ms_to_ns(peer->avoid_ms);
}

void engine_peer_fine(struct storcli_file *file, unsigned candidate)
{
    struct peer *peer = file->peer[candidate];

    peer->avoid_ms = 0;
    peer->avoid_until_ns = 0;
    peer->never_connected = false;
}

/* ---- closed files that linger ---- */

static void file_free(struct storcli_file *file)
{
    background_stop(file);
    unsynced_free(&file->unsynced);
    free(file->next);
    reserve_forget(file);
    free(file);
}

/* Ends all closed files that can be ended now. */
static void lingering_end(struct storcli *cli)
{
    LIST_FOREACH_SAFE(node, &cli->lingering)
        engine_file_end(container_of(node, struct storcli_file, background.lingering));
}

static void drain_look(struct storcli *cli)
{
    storcli_done_cb *drained = cli->drained;

    if (drained == NULL || cli->n_lingering != 0)
        return;
    cli->drained = NULL;
    env_timer_stop(cli->env, &cli->drain_timer);
    drained(cli->drained_arg, 0);
}

/* Handles the deadline; from then on runs repeatedly until the last of them has ended. */
static void on_drain_timer(struct env_timer *timer)
{
    struct storcli *cli = container_of(timer, struct storcli, drain_timer);

    env_timer_start(cli->env, timer, WATCH_POLL_MS);
    lingering_end(cli);
    drain_look(cli);
}

void storcli_drain(struct storcli *cli, uint32_t deadline_ms, storcli_done_cb *done,
                   void *arg)
{
    assert(cli->drained == NULL);
    cli->drained = done;
    cli->drained_arg = arg;
    env_timer_start(cli->env, &cli->drain_timer, cli->n_lingering == 0 ? 0 : deadline_ms);
    LIST_FOREACH(node, &cli->lingering)
        background_flush(container_of(node, struct storcli_file, background.lingering));
}

bool engine_file_end(struct storcli_file *file)
{
    struct storcli *cli = file->cli;

    if (file->syncing != NULL && !engine_sync_abandon(file))
        return false;
    file_free(file);
    /* not from inside the call that ended it */
    if (cli->drained != NULL && cli->n_lingering == 0)
        env_timer_start(cli->env, &cli->drain_timer, 0);
    return true;
}

/* ---- engine and files ---- */

int storcli_new(struct env *env, const struct storcli_config *config,
                const struct storcli_peers *peers, struct storcli **out)
{
    struct storcli *cli = calloc(1, sizeof(*cli));

    if (cli == NULL)
        return -ENOMEM;
    cli->env = env;
    cli->config = *config;
    if (cli->config.hedge_ms == 0)
        cli->config.hedge_ms = HEDGE_MS;
    if (cli->config.spare_ms == 0)
        cli->config.spare_ms = SPARE_MS;
    if (cli->config.read_deadline_ms == 0)
        cli->config.read_deadline_ms = DEFAULT_IO_TIMEOUT_MS;
    if (cli->config.write_deadline_ms == 0)
        cli->config.write_deadline_ms = DEFAULT_IO_TIMEOUT_MS;
    cli->scratch.idle_max_bytes = SCRATCH_IDLE_MAX;
    cli->scratch.all_max_bytes = scratch_max;
    cli->scratch.dense = true;
    if (cli->config.memory_max == 0)
        cli->config.memory_max = memory_max_default;
    cli->where = *peers;
    cli->watches.next = cli->watches.prev = &cli->watches;
    cli->waiting_tail = &cli->waiting;
    list_init(&cli->lingering);
    env_timer_init(&cli->tick, on_tick);
    env_timer_init(&cli->drain_timer, on_drain_timer);
    *out = cli;
    return 0;
}

void storcli_free(struct storcli *cli)
{
    if (cli == NULL)
        return;
    lingering_end(cli);
    assert(cli->n_lingering == 0 && cli->drained == NULL);
    assert(cli->n_ops == 0 && cli->n_files == 0 && cli->memory_used == 0);
    env_timer_stop(cli->env, &cli->tick);
    while (cli->peers != NULL) {
        struct peer *peer = cli->peers;

        cli->peers = peer->next;
        straggler_stop(peer);
        free(peer);
    }
    assert(cli->scratch.lent_bytes == 0);
    bufpool_trim(&cli->scratch);
    free(cli);
}

/* Messages begin with the packed FileRef: protobuf fields may simply be concatenated. */
int engine_ref_pack(struct storcli_file *file)
{
    const struct storcli_target *target = &file->target;
    Rozo__FileRef ref = ROZO__FILE_REF__INIT;
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    uint32_t storages[DIST_MAX];

    file_id_put(id, &target->id);
    memcpy(storages, target->storages, sizeof(storages));
    ref.file_id.data = id;
    ref.file_id.len = sizeof(id);
    ref.codec = target->codec;
    ref.layout = target->layout;
    ref.block_bytes = target->block_bytes;
    ref.n_storages = target->n_storages;
    ref.storages = storages;
    ref.full_quorum = target->full_quorum;
    ref.dist_generation = target->dist_generation;
    ref.capability.data = file->target.capability;
    ref.capability.len = target->capability_len;
    req.ref = &ref;
    if (rozo__st_sync_req__get_packed_size(&req) > sizeof(file->ref))
        return -EINVAL;
    file->ref_len = rozo__st_sync_req__pack(&req, file->ref);
    return 0;
}

size_t engine_msg_begin(const struct storcli_file *file, uint8_t msg[MSG_BYTES_MAX])
{
    memcpy(msg, file->ref, file->ref_len);
    return file->ref_len;
}

int engine_target_check(const struct storcli_target *target)
{
    const struct codec_layout *layout = codec_layout(target->layout);

    if (layout == NULL ||
        codec_get(target->codec, target->layout, target->block_bytes) == NULL)
        return -EINVAL;
    if (target->n_storages < layout->n || target->n_storages > DIST_MAX)
        return -EINVAL;
    /* n acknowledgements must be a quorum, else an acknowledged write could be
     * overlooked */
    if (quorum_write(layout, target->n_storages) > layout->n)
        return -EINVAL;
    if (target->capability_len > sizeof(target->capability))
        return -EINVAL;
    for (unsigned i = 0; i < target->n_storages; i++) {
        for (unsigned j = 0; j < i; j++) {
            if (target->storages[i] == target->storages[j])
                return -EINVAL;
        }
    }
    return 0;
}

void engine_count_candidates(struct storcli_file *file)
{
    const struct codec_layout *layout = codec_layout(file->target.layout);

    file->c = file->target.n_storages;
    file->q_read = quorum_read(layout, file->c, file->target.full_quorum);
    file->q_write = quorum_write(layout, file->c);
}

int storcli_file_open(struct storcli *cli, const struct storcli_target *target,
                      struct storcli_file **out)
{
    const struct codec_layout *layout = codec_layout(target->layout);
    struct storcli_file *file;
    int rc = engine_target_check(target);

    if (rc != 0)
        return rc;
    file = calloc(1, sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    file->cli = cli;
    file->target = *target;
    file->codec = codec_get(target->codec, target->layout, target->block_bytes);
    file->k = layout->k;
    file->n = layout->n;
    file->held_tail = &file->held;
    engine_count_candidates(file);
    file->file_hash = file_id_hash(&target->id);
    file->row_bytes = codec_row_bytes(file->codec, target->block_bytes);
    commit_init(&file->commit);
    background_init(file);
    rc = engine_ref_pack(file);
    for (unsigned i = 0; rc == 0 && i < file->c; i++) {
        file->peer[i] = engine_peer_get(cli, target->storages[i]);
        if (file->peer[i] == NULL)
            rc = -ENOMEM;
    }
    if (rc != 0) {
        free(file);
        return rc;
    }
    cli->n_files++;
    *out = file;
    return 0;
}

void storcli_file_close(struct storcli_file *file)
{
    if (file == NULL)
        return;
    assert(file->sync_waiting == NULL);
    assert(file->n_ops == 0 || file->syncing != NULL); /* which reads for a rebuild */
    file->cli->n_files--;
    if (background_is_needed(file))
        background_delay(file);
    else
        file_free(file);
}

const struct codec *storcli_file_codec(const struct storcli_file *file)
{
    return file->codec;
}

void storcli_file_others_wrote(struct storcli_file *file)
{
    file->others_wrote = true;
}

bool storcli_file_has_stored(const struct storcli_file *file)
{
    return file->has_stored;
}

void storcli_file_completes(struct storcli_file *file, uint64_t block)
{
    if (unsynced_is_empty(&file->unsynced))
        file->n_completed = 0;
    if (!unsynced_has(&file->unsynced, block) || file->n_completed > COMPLETED_MAX)
        return;
    for (unsigned i = 0; i < file->n_completed && i < COMPLETED_MAX; i++) {
        if (file->completed[i] == block)
            return;
    }
    if (file->n_completed < COMPLETED_MAX)
        file->completed[file->n_completed] = block;
    file->n_completed++;
}

bool storcli_file_is_unsynced(const struct storcli_file *file)
{
    return !unsynced_is_empty(&file->unsynced) || file->syncing != NULL ||
           file->others_wrote || file->lost || background_has_unsent(file);
}

uint64_t storcli_file_losses(const struct storcli_file *file)
{
    return file->n_losses;
}

void storcli_get_stats(const struct storcli *cli, struct storcli_stats *out)
{
    *out = cli->stats;
}
