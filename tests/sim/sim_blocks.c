/*
 * sim_blocks.c - random work of several clients on one file, under faults, against a
 * model.
 *
 * Goal: invariants I1, I2 and I6 of the block engine. Every later read returns an
 * acknowledged write as long as its storages are up; a read returns nothing that was
 * never written, and nothing older than the newest acknowledged version; no call hangs;
 * synced data is stable. Method: clients write, mark, read and sync overlapping runs;
 * storages go down, hang, fill up, rot and lose power at random. The model knows every
 * version ever written to each block.
 *
 *     rozo-sim-blocks [--mode budget|calm|chaos|power|torn|wreck|late] [--layout L]
 *                     [--storages N] [--kind K] [--seed S] [--seeds N] [--steps N]
 *                     [--without journal|at-most]
 *
 * With --without, the program succeeds if the checks notice that the safety measure is
 * missing.
 *
 * Modes:
 * budget  at most n-k storages are down at a time: every call succeeds within 2 s.
 * calm    as budget, but a storage stays down for long: its return repairs nothing.
 * chaos   any fault; calls may fail, but no result is wrong, and all data is readable at
 *         the end.
 * power   machines lose unsynced data.
 * torn    clients die in the middle of calls, and nothing heals the blocks that they
 *         leave. All storages are up: all calls succeed, and no read returns an older
 *         version than a previous read did.
 * wreck   as torn, but storages go down and return: no result is wrong, and all data is
 *         readable at the end.
 * late    one storage at a time delays all answers by 100 ms: reads without a concurrent
 *         write do not wait for it.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"
#include "tests/sim/sim_net.h"

enum {
    CLIENTS = 2,
    OPS_MAX = 5,   /* concurrent calls of one client */
    RUN_MAX = 160, /* blocks of one call; a run may span extents */
    BLOCK_BYTES = 8192,
    CALL_MS_MAX = 2000,
    SYNC_MS_MAX = 8000, /* a sync also copies the data of lost storages */
    SYNC_CALM_MS_MAX = 2000,
    LATE_MS = 100,
    LATE_READ_MS_MAX = 60,
    SIM_HOLE = 0,
};

enum mode {
    MODE_BUDGET,
    MODE_CALM,
    MODE_CHAOS,
    MODE_POWER,
    MODE_TORN,
    MODE_WRECK,
    MODE_LATE,
};
static const char *const mode_names[] = { "budget", "calm",  "chaos", "power",
                                          "torn",   "wreck", "late" };

enum fate {
    FATE_STARTED,
    FATE_ACKED,
    FATE_UNKNOWN, /* failed, or lost with the power: either outcome is right */
};

/* One version of one block. */
struct entry {
    uint64_t version;
    uint16_t user_bytes; /* SIM_HOLE: a mark */
    uint8_t fate;
};

struct model_block {
    struct entry *entries; /* owned */
    unsigned n, n_max;
    uint64_t acked;             /* reads must return this version or a newer one */
    uint64_t seen;              /* newest version that a read has returned */
    uint64_t acked_by[CLIENTS]; /* newest version acknowledged to each client */
};

enum op_kind {
    OP_NONE,
    OP_WRITE,
    OP_MARK,
    OP_READ,
    OP_SYNC,
};

struct sim_op {
    struct sim *sim;
    struct client *owner;
    unsigned client; /* index of the owner while it lives */
    enum op_kind kind;
    uint64_t started_ns;
    uint64_t version;
    unsigned first, n;
    bool to_end;     /* OP_MARK only */
    bool keep_newer; /* OP_MARK only: a delayed mark, below newer writes */
    bool sync;       /* OP_WRITE only */
    bool power_cut;  /* a power cut happened during the call */
    bool contested;  /* OP_READ only: overlaps a write, or another storage became slow */
    uint8_t *data;   /* owned */
    uint16_t user_bytes[RUN_MAX];
    uint64_t versions[RUN_MAX];
    uint64_t floor[SIM_BLOCKS];
};

struct client {
    struct storcli *cli;
    struct storcli_file *file;
    uint32_t epoch, sequence;
    uint32_t late_epoch; /* epoch of a mark that the client makes later; 0: none */
    bool is_dead;        /* the engine runs on, but its answers are ignored */
    struct client *next; /* in the list of dead clients */
    struct sim_op ops[OPS_MAX];
};

struct sim {
    struct env_virtual v;
    struct sim_net net;
    enum mode mode;
    unsigned layout, kind, n_storages, steps;
    uint64_t seed;
    unsigned n, k, q;
    uint32_t last_epoch;
    uint32_t wiped; /* bitmap of storages that answer NOT_ADMITTED from now on */
    bool rotten;
    struct client *clients[CLIENTS]; /* owned */
    struct client *dead;             /* owned list */
    unsigned n_clients;              /* clients ever made */
    struct model_block blocks[SIM_BLOCKS];
    bool no_journal, no_at_most;
    unsigned n_done[OP_SYNC + 1], n_failed[OP_SYNC + 1];
    uint64_t longest_ms[OP_SYNC + 1];
};

/* Tells whether a safety measure is switched off: the checks must notice. */
static bool is_without(const struct sim *sim)
{
    return sim->no_journal || sim->no_at_most;
}

static void sim_fail(const struct sim *sim, const char *what, uint64_t a, uint64_t b,
                     uint64_t c)
{
    fprintf(stderr, "FAILED: %s (%llx, %llx, %llx) at %llu ms\n", what,
            (unsigned long long)a, (unsigned long long)b, (unsigned long long)c,
            (unsigned long long)(sim->v.now_ns / 1000000));
    fprintf(stderr,
            "replay: rozo-sim-blocks --mode %s --layout %u --storages %u --kind %u "
            "--seed %llu --steps %u%s\n",
            mode_names[sim->mode], sim->layout, sim->n_storages, sim->kind,
            (unsigned long long)sim->seed, sim->steps,
            sim->no_journal   ? " --without journal"
            : sim->no_at_most ? " --without at-most"
                              : "");
    if (a < SIM_BLOCKS)
        sim_net_dump(&sim->net, (unsigned)a);
    if (is_without(sim)) /* the expected result */
        _exit(0);
    abort();
}

#define sim_check(sim, cond, what, a, b, c)                                   \
    do {                                                                      \
        if (!(cond))                                                          \
            sim_fail(sim, what, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c)); \
    } while (0)

static uint64_t below(struct sim *sim, uint64_t bound)
{
    return env_virtual_below(&sim->v, bound);
}

/* Tells whether the mode never takes more storages down than the code tolerates. */
static bool in_budget(const struct sim *sim)
{
    return sim->mode == MODE_BUDGET || sim->mode == MODE_CALM || sim->mode == MODE_TORN ||
           sim->mode == MODE_LATE;
}

/* Tells whether clients die in this mode. */
static bool is_deadly(const struct sim *sim)
{
    return sim->mode == MODE_TORN || sim->mode == MODE_WRECK;
}

/* Tells whether each storage that may be lost has a
 * spare. If not, fewer than n may accept a write. */
static bool has_spares(const struct sim *sim)
{
    return sim->n_storages >= 2 * sim->n - sim->k;
}

/* ---- content ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Fills a block with bytes that are unique to
 * (version, block); zeros beyond user_bytes. */
static void fill(uint8_t *data, uint64_t version, uint64_t block, size_t user_bytes)
{
    uint64_t x = mix(version * 0x9e3779b97f4a7c15 + block);

    memset(data, 0, BLOCK_BYTES);
    for (size_t i = 0; i < user_bytes; i += 8) {
        size_t n = user_bytes - i < 8 ? user_bytes - i : 8;

        x += 0x9e3779b97f4a7c15;
        memcpy(data + i, &x, n);
    }
}

/* ---- model ---- */

static struct entry *model_find(struct model_block *block, uint64_t version)
{
    for (unsigned i = 0; i < block->n; i++) {
        if (block->entries[i].version == version)
            return &block->entries[i];
    }
    return NULL;
}

static void model_add(struct sim *sim, unsigned index, uint64_t version,
                      uint16_t user_bytes)
{
    struct model_block *block = &sim->blocks[index];

    if (block->n == block->n_max) {
        block->n_max = block->n_max == 0 ? 8 : block->n_max * 2;
        block->entries = realloc(block->entries, block->n_max * sizeof(*block->entries));
        assert(block->entries != NULL);
    }
    block->entries[block->n++] =
        (struct entry){ .version = version, .user_bytes = user_bytes };
}

static unsigned op_end_block(const struct sim_op *op)
{
    return op->to_end ? SIM_BLOCKS : op->first + op->n;
}

/* ---- calls and their ends ---- */

static void check_time(struct sim *sim, const struct sim_op *op)
{
    uint64_t took_ms = (sim->v.now_ns - op->started_ns) / 1000000;
    uint64_t most_ms = op->kind != OP_SYNC      ? CALL_MS_MAX
                       : sim->mode == MODE_CALM ? SYNC_CALM_MS_MAX
                                                : SYNC_MS_MAX;

    if (took_ms > sim->longest_ms[op->kind] && !op->contested)
        sim->longest_ms[op->kind] = took_ms;
    if (sim->mode == MODE_LATE && op->kind == OP_READ && !op->contested)
        most_ms = LATE_READ_MS_MAX;
    if (in_budget(sim))
        sim_check(sim, took_ms <= most_ms, "a call took too long", op->kind, took_ms,
                  op->version);
    sim_check(sim, took_ms <= 60000, "a call took longer than 60 s", op->kind, took_ms,
              op->version);
}

/* Models a failed sync: the client knows that unstable
 * data may be lost. Equal projections count once. */
static void loss_is_known(struct sim *sim, unsigned client)
{
    for (unsigned b = 0; b < SIM_BLOCKS; b++) {
        uint64_t *acked = &sim->blocks[b].acked_by[client];

        if (sim->mode == MODE_POWER && sim_net_most_since(&sim->net, b, *acked) < sim->q)
            *acked = 0;
    }
}

static void check_failure(struct sim *sim, struct sim_op *op, int rc)
{
    bool newer = false;

    sim->n_failed[op->kind]++;
    if (op->kind == OP_SYNC)
        loss_is_known(sim, op->client);
    if (rc == -ESTALE) {
        for (unsigned b = op->first; b < op_end_block(op); b++)
            newer = newer || sim_net_newest(&sim->net, b) > op->version;
        sim_check(sim, newer || sim->mode == MODE_POWER, "ESTALE without a newer version",
                  op->kind, op->version, op->first);
        sim_check(sim, !op->keep_newer, "ESTALE for a mark below newer writes", op->kind,
                  op->version, op->first);
        if (version_epoch(op->version) == op->owner->epoch) {
            op->owner->epoch = ++sim->last_epoch;
            op->owner->sequence = 0;
        }
        return;
    }
    sim_check(sim, !in_budget(sim), "a call failed", op->kind, (uint64_t)-rc, op->first);
    sim_check(sim, rc == -EIO || rc == -ENOSPC, "an unexpected error", op->kind,
              (uint64_t)-rc, op->first);
}

/* Checks that acknowledged data is on enough storages. */
static void check_stored(struct sim *sim, const struct sim_op *op)
{
    for (unsigned b = op->first; b < op_end_block(op); b++) {
        unsigned count = sim_net_count(&sim->net, b, op->version, false, 0);

        if (sim->rotten || op->power_cut || sim_net_newest(&sim->net, b) > op->version)
            continue;
        sim_check(sim, count >= sim->q, "acknowledged below the quorum", b, op->version,
                  count);
        if (in_budget(sim) && has_spares(sim))
            sim_check(sim, count >= sim->n, "acknowledged by too few storages", b,
                      op->version, count);
    }
}

static void on_changed(struct sim_op *op, int rc)
{
    struct sim *sim = op->sim;

    for (unsigned b = op->first; b < op_end_block(op); b++) {
        struct model_block *block = &sim->blocks[b];
        struct entry *entry = model_find(block, op->version);

        assert(entry != NULL);
        entry->fate = rc == 0 ? FATE_ACKED : FATE_UNKNOWN;
        if (rc != 0)
            continue;
        if (op->version > block->acked && (!op->power_cut || op->sync))
            block->acked = op->version;
        if (op->version > block->acked_by[op->client])
            block->acked_by[op->client] = op->version;
    }
    if (rc == 0)
        check_stored(sim, op);
}

static void check_block(struct sim *sim, const struct sim_op *op, unsigned i)
{
    struct model_block *block = &sim->blocks[op->first + i];
    uint64_t version = op->versions[i];
    struct entry *entry = model_find(block, version);
    uint8_t expected[BLOCK_BYTES];

    sim_check(sim, version >= op->floor[op->first + i], "older than acknowledged",
              op->first + i, version, op->floor[op->first + i]);
    sim_check(sim, version == 0 || entry != NULL, "a version that was never written",
              op->first + i, version, 0);
    sim_check(sim, op->user_bytes[i] == (version == 0 ? 0 : entry->user_bytes),
              "length differs from the write", op->first + i, version, op->user_bytes[i]);
    if (version > block->seen)
        block->seen = version;
    fill(expected, version, op->first + i, op->user_bytes[i]);
    sim_check(sim, memcmp(expected, op->data + (size_t)i * BLOCK_BYTES, BLOCK_BYTES) == 0,
              "bytes differ from the write", op->first + i, version, op->user_bytes[i]);
}

static void check_synced(struct sim *sim, const struct sim_op *op)
{
    for (unsigned b = 0; b < SIM_BLOCKS; b++) {
        unsigned count = sim_net_count_since(&sim->net, b, op->floor[b]);

        if (op->floor[b] == 0)
            continue;
        sim_check(sim, count >= sim->q, "synced but not stable", b, op->floor[b], count);
        if (op->floor[b] > sim->blocks[b].acked)
            sim->blocks[b].acked = op->floor[b];
    }
}

static void begin_write(struct sim *sim, struct sim_op *op);
static void begin_mark(struct sim *sim, struct sim_op *op);

/* Repeats a call with a new epoch, as the file
 * layer does: a newer epoch has written there. */
static void repeat(struct sim *sim, struct sim_op *op)
{
    op->started_ns = sim->v.now_ns;
    op->power_cut = false;
    if (op->kind == OP_WRITE)
        begin_write(sim, op);
    else
        begin_mark(sim, op);
}

static void on_op_done(void *arg, int rc)
{
    struct sim_op *op = arg;
    struct sim *sim = op->sim;

    assert(op->kind != OP_NONE);
    if (op->owner->is_dead) {
        free(op->data);
        op->data = NULL;
        op->kind = OP_NONE;
        return;
    }
    check_time(sim, op);
    if (op->kind == OP_WRITE || op->kind == OP_MARK)
        on_changed(op, rc);
    if (rc != 0)
        check_failure(sim, op, rc);
    else if (op->kind == OP_READ)
        for (unsigned i = 0; i < op->n; i++)
            check_block(sim, op, i);
    else if (op->kind == OP_SYNC && !op->power_cut)
        check_synced(sim, op);
    sim->n_done[op->kind]++;
    if (rc == -ESTALE) {
        repeat(sim, op);
        return;
    }
    free(op->data);
    op->data = NULL;
    op->kind = OP_NONE;
}

/* Tells whether the client writes these blocks:
 * the file layer never overlaps its own writes. */
static bool is_busy(const struct client *client, unsigned first, unsigned end)
{
    for (unsigned i = 0; i < OPS_MAX; i++) {
        const struct sim_op *op = &client->ops[i];

        if ((op->kind == OP_WRITE || op->kind == OP_MARK) && op->first < end &&
            first < op_end_block(op))
            return true;
    }
    return false;
}

static bool overlap(const struct sim_op *a, const struct sim_op *b)
{
    return a->first < op_end_block(b) && b->first < op_end_block(a);
}

/* Marks reads that overlap a write or mark of any client as contested, and vice versa. */
static void note_contest(struct sim *sim, struct sim_op *op)
{
    for (unsigned c = 0; c < CLIENTS; c++) {
        for (unsigned i = 0; i < OPS_MAX; i++) {
            struct sim_op *other = &sim->clients[c]->ops[i];

            if (other->kind == OP_NONE || other->kind == OP_SYNC ||
                (other->kind == OP_READ) == (op->kind == OP_READ) || !overlap(op, other))
                continue;
            op->contested |= op->kind == OP_READ;
            other->contested |= other->kind == OP_READ;
        }
    }
}

static void begin_write(struct sim *sim, struct sim_op *op)
{
    struct client *client = op->owner;
    uint16_t last =
        below(sim, 3) == 0 ? (uint16_t)(1 + below(sim, BLOCK_BYTES)) : BLOCK_BYTES;

    note_contest(sim, op);
    op->version = version_make(client->epoch, ++client->sequence);
    for (unsigned i = 0; i < op->n; i++) {
        uint16_t user_bytes = i + 1 == op->n ? last : BLOCK_BYTES;

        fill(op->data + (size_t)i * BLOCK_BYTES, op->version, op->first + i, user_bytes);
        model_add(sim, op->first + i, op->version, user_bytes);
    }
    storcli_write(client->file, op->version, op->first, op->n, op->data, last, op->sync,
                  on_op_done, op);
}

static void start_write(struct sim *sim, struct sim_op *op)
{
    if (is_busy(op->owner, op->first, op->first + op->n))
        return;
    op->kind = OP_WRITE;
    op->sync = below(sim, 10) == 0;
    op->data = malloc((size_t)op->n * BLOCK_BYTES);
    assert(op->data != NULL);
    begin_write(sim, op);
}

static void begin_mark(struct sim *sim, struct sim_op *op)
{
    struct client *client = op->owner;

    note_contest(sim, op);
    op->version = version_make(client->epoch, ++client->sequence);
    if (op->keep_newer) {
        op->version = version_make(client->late_epoch, 0);
        client->late_epoch = 0;
    }
    for (unsigned b = op->first; b < op_end_block(op); b++)
        model_add(sim, b, op->version, SIM_HOLE);
    (op->keep_newer ? storcli_mark_below : storcli_mark)(
        client->file, op->version, op->first, op->to_end ? 0 : op->n, on_op_done, op);
}

static void start_mark(struct sim *sim, struct sim_op *op)
{
    op->to_end = below(sim, 4) == 0;
    if (is_busy(op->owner, op->first, op_end_block(op)))
        return;
    if (below(sim, 3) == 0) { /* a truncate that delayed its marks */
        op->keep_newer = op->owner->late_epoch != 0;
        if (!op->keep_newer) {
            op->owner->late_epoch = ++sim->last_epoch;
            return;
        }
    }
    op->kind = OP_MARK;
    begin_mark(sim, op);
}

/* Returns the version that later reads of the block must at least return. */
static uint64_t read_floor(const struct sim *sim, unsigned block)
{
    const struct model_block *b = &sim->blocks[block];

    return sim->mode == MODE_TORN && b->seen > b->acked ? b->seen : b->acked;
}

static void start_read(struct sim *sim, struct sim_op *op)
{
    struct read_want want = { 0 };

    op->kind = OP_READ;
    note_contest(sim, op);
    op->data = malloc((size_t)op->n * BLOCK_BYTES);
    assert(op->data != NULL);
    memset(op->data, 0xee, (size_t)op->n * BLOCK_BYTES);
    for (unsigned i = 0; i < op->n; i++)
        op->floor[op->first + i] = read_floor(sim, op->first + i);
    want.data = op->data;
    want.user_bytes = op->user_bytes;
    want.versions = op->versions;
    engine_read(op->owner->file, op->first, op->n, &want, on_op_done, op);
}

static void start_sync(struct sim *sim, struct sim_op *op)
{
    op->kind = OP_SYNC;
    for (unsigned b = 0; b < SIM_BLOCKS; b++)
        op->floor[b] = sim->blocks[b].acked_by[op->client];
    storcli_sync(op->owner->file, on_op_done, op);
}

static void start_something(struct sim *sim)
{
    unsigned client = (unsigned)below(sim, CLIENTS), what = (unsigned)below(sim, 100);
    struct sim_op *op = &sim->clients[client]->ops[below(sim, OPS_MAX)];
    unsigned extent = below(sim, 4) == 0 ? RUN_MAX : 8;

    if (op->kind != OP_NONE)
        return;
    memset(op, 0, sizeof(*op));
    op->sim = sim;
    op->owner = sim->clients[client];
    op->client = client;
    op->started_ns = sim->v.now_ns;
    op->n = 1 + (unsigned)below(sim, extent);
    op->first = (unsigned)below(sim, SIM_BLOCKS - op->n);
    if (below(sim, 2) == 0) /* often the same blocks */
        op->first %= 40;
    if (what < 40)
        start_write(sim, op);
    else if (what < 85)
        start_read(sim, op);
    else if (what < 90)
        start_mark(sim, op);
    else
        start_sync(sim, op);
}

/* ---- faults ---- */

static unsigned n_away(const struct sim *sim)
{
    unsigned n = 0;

    for (unsigned i = 0; i < sim->n_storages; i++)
        n += sim->net.storages[i].state != SIM_UP;
    return n;
}

static void fault_state(struct sim *sim, unsigned storage)
{
    enum sim_state was = sim->net.storages[storage].state;
    unsigned lost_max = sim->n - sim->k, away_max = sim->n_storages - sim->q;
    unsigned budget = lost_max < away_max ? lost_max : away_max;
    unsigned most = sim->mode == MODE_CHAOS ? sim->n_storages : budget;

    if (was != SIM_UP)
        sim_storage_set(&sim->net, storage, SIM_UP);
    else if (n_away(sim) < most)
        sim_storage_set(&sim->net, storage, below(sim, 2) == 0 ? SIM_DOWN : SIM_HUNG);
}

static void fault_chaos(struct sim *sim, unsigned storage)
{
    static const uint16_t statuses[] = {
        0, ROZO__STATUS__NO_SPACE, 0, ROZO__STATUS__IO_ERROR, 0, ROZO__STATUS__BUSY,
    };
    struct sim_storage *s = &sim->net.storages[storage];

    switch (below(sim, 8)) {
    case 0:
        s->slow_ms = below(sim, 2) == 0 ? 0 : (uint32_t)below(sim, 3000);
        break;
    case 1:
        s->refuse_writes = statuses[below(sim, 6)];
        break;
    case 2:
        s->lossy_ppm = below(sim, 2) == 0 ? 0 : (uint32_t)below(sim, 200000);
        break;
    case 3:
        for (unsigned i = 0; i < 5; i++)
            sim->rotten |=
                sim_storage_rot(&sim->net, storage, (unsigned)below(sim, sim->n),
                                (unsigned)below(sim, SIM_BLOCKS));
        break;
    case 4:
        if (sim->wiped == 0 && below(sim, 4) == 0) { /* at most one storage, forever */
            s->refuse_all = ROZO__STATUS__NOT_ADMITTED;
            sim->wiped |= 1u << storage;
        }
        break;
    default:
        fault_state(sim, storage);
    }
}

/* Cuts the power of one machine or of all:
 * reads may return older, unsynced bytes again. */
static void fault_power(struct sim *sim, unsigned storage)
{
    bool all = below(sim, 3) == 0;

    for (unsigned i = 0; i < sim->n_storages; i++) {
        if (all || i == storage)
            sim_storage_power_cut(&sim->net, i);
    }
    for (unsigned b = 0; b < SIM_BLOCKS; b++) {
        struct model_block *block = &sim->blocks[b];

        /* a version is stable if q distinct projections of it are */
        block->acked = 0;
        for (unsigned i = 0; i < block->n; i++) {
            struct entry *entry = &block->entries[i];

            if (sim_net_count(&sim->net, b, entry->version, true, 0) >= sim->q &&
                entry->fate == FATE_ACKED && entry->version > block->acked &&
                sim_net_newest(&sim->net, b) == entry->version)
                block->acked = entry->version;
        }
    }
    for (unsigned c = 0; c < CLIENTS; c++) {
        for (unsigned i = 0; i < OPS_MAX; i++) {
            struct sim_op *op = &sim->clients[c]->ops[i];

            op->power_cut = true;
            memset(op->floor, 0, op->kind == OP_READ ? sizeof(op->floor) : 0);
        }
    }
}

/* Moves the delay to another storage: a read in
 * flight may meet the old one and the new one. */
static void fault_late(struct sim *sim, unsigned storage)
{
    for (unsigned i = 0; i < sim->n_storages; i++)
        sim->net.storages[i].late_ms = 0;
    sim->net.storages[storage].late_ms = below(sim, 4) == 0 ? 0 : LATE_MS;
    for (unsigned c = 0; c < CLIENTS; c++) {
        for (unsigned i = 0; i < OPS_MAX; i++)
            sim->clients[c]->ops[i].contested |= sim->clients[c]->ops[i].kind == OP_READ;
    }
}

static void fault(struct sim *sim)
{
    unsigned storage = (unsigned)below(sim, sim->n_storages);

    if (sim->mode == MODE_TORN) { /* a little: no spare is asked instead */
        sim->net.storages[storage].slow_ms = (uint32_t)below(sim, 40);
        return;
    }
    if (sim->mode == MODE_LATE) {
        fault_late(sim, storage);
        return;
    }
    if (sim->mode == MODE_CHAOS)
        fault_chaos(sim, storage);
    else if (sim->mode == MODE_POWER && below(sim, 3) == 0)
        fault_power(sim, storage);
    else
        fault_state(sim, storage);
    if (in_budget(sim) && below(sim, 4) == 0)
        sim->net.storages[storage].slow_ms = (uint32_t)below(sim, 150);
}

static void stop_faults(struct sim *sim)
{
    for (unsigned i = 0; i < sim->n_storages; i++) {
        struct sim_storage *s = &sim->net.storages[i];

        sim_storage_set(&sim->net, i, SIM_UP);
        s->slow_ms = s->late_ms = s->lossy_ppm = s->refuse_writes = 0;
        if ((sim->wiped >> i & 1) == 0)
            s->refuse_all = 0;
    }
}

/* ---- a run ---- */

static unsigned n_under_way(const struct sim *sim)
{
    unsigned n = 0;

    for (unsigned c = 0; c < CLIENTS; c++) {
        for (unsigned i = 0; i < OPS_MAX; i++)
            n += sim->clients[c]->ops[i].kind != OP_NONE;
    }
    return n;
}

/* ---- clients come and go ---- */

static struct client *client_new(struct sim *sim)
{
    struct client *client = calloc(1, sizeof(*client));
    struct storcli_peers peers = sim_net_peers(&sim->net, sim->n_clients++);
    const struct storcli_config config = {
        .memory_max = 16 << 20,
        .read_deadline_ms = sim->mode == MODE_CHAOS || sim->mode == MODE_WRECK ? 5000 : 0,
        .write_deadline_ms =
            sim->mode == MODE_CHAOS || sim->mode == MODE_WRECK ? 5000 : 0,
    };

    assert(client != NULL);
    assert(storcli_new(&sim->v.env, &config, &peers, &client->cli) == 0);
    assert(storcli_file_open(client->cli, &sim->net.target, &client->file) == 0);
    client->epoch = ++sim->last_epoch;
    return client;
}

static unsigned n_ops(const struct client *client)
{
    unsigned n = 0;

    for (unsigned i = 0; i < OPS_MAX; i++)
        n += client->ops[i].kind != OP_NONE;
    return n;
}

/* Kills a client; the outcome of its calls in flight is unknown. */
static void client_dies(struct sim *sim, unsigned index)
{
    struct client *client = sim->clients[index];

    if (sim->n_clients == SIM_CLIENTS_MAX)
        return;
    client->is_dead = true;
    for (unsigned i = 0; i < sim->n_clients; i++) {
        if (sim_net_peers(&sim->net, i).arg == client->cli->where.arg)
            sim_net_kill_client(&sim->net, i);
    }
    for (unsigned i = 0; i < OPS_MAX; i++) {
        struct sim_op *op = &client->ops[i];

        if (op->kind != OP_WRITE && op->kind != OP_MARK)
            continue;
        for (unsigned b = op->first; b < op_end_block(op); b++)
            model_find(&sim->blocks[b], op->version)->fate = FATE_UNKNOWN;
    }
    for (unsigned b = 0; b < SIM_BLOCKS; b++)
        sim->blocks[b].acked_by[index] = 0;
    client->next = sim->dead;
    sim->dead = client;
    sim->clients[index] = client_new(sim);
}

static void on_drained(void *arg, int rc)
{
    assert(rc == 0);
    *(bool *)arg = true;
}

static void client_free(struct sim *sim, struct client *client)
{
    bool drained = false;

    for (unsigned i = 0; n_ops(client) > 0; i++) {
        sim_check(sim, i < 200000, "calls of dead clients never end", SIM_BLOCKS,
                  n_ops(client), client->ops[0].kind);
        env_virtual_advance_ms(&sim->v, 1);
    }
    storcli_file_close(client->file);
    storcli_drain(client->cli, 5000, on_drained, &drained);
    while (!drained)
        env_virtual_advance_ms(&sim->v, 1);
    storcli_free(client->cli);
    free(client);
}

static void run_to_end(struct sim *sim)
{
    for (unsigned i = 0; n_under_way(sim) > 0; i++) {
        sim_check(sim, i < 70000, "calls never end", n_under_way(sim), 0, 0);
        env_virtual_advance_ms(&sim->v, 1);
    }
}

/* Reads blocks [first, first + n) in one call; must: it has to succeed. */
static void read_back(struct sim *sim, unsigned first, unsigned n, bool must)
{
    struct sim_op *op = &sim->clients[0]->ops[0];
    unsigned n_failed = sim->n_failed[OP_READ];

    memset(op, 0, sizeof(*op));
    op->sim = sim;
    op->owner = sim->clients[0];
    op->started_ns = sim->v.now_ns;
    op->first = first;
    op->n = n;
    start_read(sim, op);
    run_to_end(sim);
    sim_check(sim, !must || sim->n_failed[OP_READ] == n_failed, "unreadable", first, n,
              0);
}

/* Checks with every storage up that each complete block is readable and right. */
static void check_all(struct sim *sim)
{
    unsigned clear_from = 0, n_doubtful = 0;

    for (unsigned b = 0; b <= SIM_BLOCKS; b++) {
        uint64_t acked = b < SIM_BLOCKS ? sim->blocks[b].acked : 0;
        uint64_t newest = b < SIM_BLOCKS ? sim_net_newest(&sim->net, b) : 0;
        bool whole = b < SIM_BLOCKS && acked != 0 && newest == acked &&
                     sim_net_count(&sim->net, b, acked, false, sim->wiped) >= sim->k;

        if (in_budget(sim) && !is_deadly(sim) && b < SIM_BLOCKS && acked != 0)
            sim_check(sim, whole, "not complete although enough storages were up", b,
                      acked, newest);
        if (whole && b - clear_from < RUN_MAX)
            continue;
        if (b > clear_from)
            read_back(sim, clear_from, b - clear_from, true);
        clear_from = b;
        if (whole || b == SIM_BLOCKS)
            continue;
        if (is_deadly(sim))
            read_back(sim, b, 1, true); /* old or new, if a client died here */
        else if (++n_doubtful <= 10)
            read_back(sim, b, 1, false);
        clear_from = b + 1;
    }
}

/* Writes the first block: a file without any projection is not readable at all. */
static void write_first(struct sim *sim)
{
    struct sim_op *op = &sim->clients[0]->ops[0];

    op->sim = sim;
    op->owner = sim->clients[0];
    op->started_ns = sim->v.now_ns;
    op->n = 1;
    start_write(sim, op);
    run_to_end(sim);
}

static void sim_run(struct sim *sim)
{
    const struct codec_layout *layout = codec_layout(sim->layout);

    env_virtual_init(&sim->v, sim->seed);
    sim_net_init(&sim->net, &sim->v, sim->kind, sim->layout, sim->n_storages);
    sim->n = layout->n;
    sim->k = layout->k;
    sim->q = quorum_write(layout, sim->n_storages);
    sim->net.no_journal = sim->no_journal;
    sim->net.no_at_most = sim->no_at_most;
    if (is_deadly(sim))
        sim->net.delay_ms = 10;
    for (unsigned c = 0; c < CLIENTS; c++)
        sim->clients[c] = client_new(sim);
    write_first(sim);
    for (unsigned i = 0; i < sim->steps; i++) {
        for (unsigned j = 0; j < 3; j++)
            start_something(sim);
        if (is_deadly(sim) && below(sim, 4) == 0) { /* while calls are in flight */
            env_virtual_advance_ms(&sim->v, below(sim, 12));
            client_dies(sim, (unsigned)below(sim, CLIENTS));
        }
        if (below(sim, sim->mode == MODE_CALM   ? 120
                       : sim->mode == MODE_LATE ? 40
                                                : 12) == 0)
            fault(sim);
        env_virtual_advance_ms(&sim->v,
                               below(sim, 4) == 0 ? below(sim, 300) : below(sim, 10));
    }
    stop_faults(sim);
    run_to_end(sim);
    check_all(sim);
}

static void sim_report_and_free(struct sim *sim, bool verbose)
{
    struct storcli_stats stats;

    storcli_get_stats(sim->clients[0]->cli, &stats);
    if (verbose)
        printf("seed %llu: %u+%u writes, %u+%u marks, %u+%u reads, %u+%u syncs (done, of "
               "these failed), longest %llu, %llu, %llu, %llu ms; client 0: decoded %llu "
               "hedges %llu spares %llu damaged %llu stale %llu below %llu syncs %llu "
               "commits %llu, %u clients\n",
               (unsigned long long)sim->seed, sim->n_done[OP_WRITE],
               sim->n_failed[OP_WRITE], sim->n_done[OP_MARK], sim->n_failed[OP_MARK],
               sim->n_done[OP_READ], sim->n_failed[OP_READ], sim->n_done[OP_SYNC],
               sim->n_failed[OP_SYNC], (unsigned long long)sim->longest_ms[OP_WRITE],
               (unsigned long long)sim->longest_ms[OP_MARK],
               (unsigned long long)sim->longest_ms[OP_READ],
               (unsigned long long)sim->longest_ms[OP_SYNC],
               (unsigned long long)stats.blocks_decoded, (unsigned long long)stats.hedges,
               (unsigned long long)stats.spares, (unsigned long long)stats.damaged,
               (unsigned long long)stats.stale, (unsigned long long)stats.below,
               (unsigned long long)stats.background_syncs,
               (unsigned long long)stats.commits, sim->n_clients);
    for (unsigned c = 0; c < CLIENTS; c++)
        client_free(sim, sim->clients[c]);
    while (sim->dead != NULL) {
        struct client *client = sim->dead;

        sim->dead = client->next;
        client_free(sim, client);
    }
    for (unsigned b = 0; b < SIM_BLOCKS; b++)
        free(sim->blocks[b].entries);
    sim_net_close(&sim->net);
    env_virtual_close(&sim->v);
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: rozo-sim-blocks [--mode budget|calm|chaos|power|torn|wreck|late]\n"
        "                       [--layout L] [--storages N] [--kind K] [--seed S]\n"
        "                       [--seeds N] [--steps N] [--without journal|at-most]\n");
    return 2;
}

static bool parse_mode(const char *text, enum mode *mode)
{
    for (unsigned i = 0; i < sizeof(mode_names) / sizeof(mode_names[0]); i++) {
        if (strcmp(text, mode_names[i]) == 0) {
            *mode = (enum mode)i;
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    enum mode mode = MODE_BUDGET;
    unsigned layout = 1, storages = 0, kind = CODEC_MOJETTE, steps = 400;
    uint64_t seed = 1, seeds = 1;
    const char *without = "";

    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (value == NULL)
            return usage();
        if (strcmp(key, "--mode") == 0 && parse_mode(value, &mode))
            continue;
        if (strcmp(key, "--layout") == 0)
            layout = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(key, "--storages") == 0)
            storages = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(key, "--kind") == 0)
            kind = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(key, "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (strcmp(key, "--seeds") == 0)
            seeds = strtoull(value, NULL, 10);
        else if (strcmp(key, "--steps") == 0)
            steps = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(key, "--without") == 0)
            without = value;
        else
            return usage();
    }
    if (codec_get(kind, layout, BLOCK_BYTES) == NULL)
        return usage();
    for (uint64_t s = seed; s < seed + seeds; s++) {
        struct sim *sim = calloc(1, sizeof(*sim));

        assert(sim != NULL);
        sim->mode = mode;
        sim->layout = layout;
        sim->kind = kind;
        sim->n_storages = storages != 0 ? storages : codec_layout(layout)->safe;
        sim->seed = s;
        sim->steps = steps;
        sim->no_journal = strcmp(without, "journal") == 0;
        sim->no_at_most = strcmp(without, "at-most") == 0;
        sim_run(sim);
        sim_report_and_free(sim, true);
        free(sim);
    }
    return without[0] == 0 ? 0 : 1; /* the checks should have failed */
}
