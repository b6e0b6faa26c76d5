/*
 * repair.c - the life of a repair: the order of its walks and batches.
 *
 * In:     repair_start(), from the parts of the healer. Thread: that of the env.
 * Out:    the steps of repair_walk.c and repair_commit.c; the result.
 * Keeps:  I7 and I9: memory is bounded by pieces over all repairs; the callback comes
 *         once, and never inside repair_start().
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "storaged/heal/repair/repair_piece.h"

enum {
    DEADLINE_MS = 10000,
    EXTENTS_MAX = 8,
    POOL_IDLE_MAX = 32 << 20,
};
static const uint64_t memory_max_default = 64 << 20;

int repairer_new(const struct repairer_config *config, struct repairer **out)
{
    struct repairer *repairer = calloc(1, sizeof(*repairer));

    assert(config->env != NULL && config->peers.channel != NULL);
    if (repairer == NULL)
        return -ENOMEM;
    repairer->config = *config;
    if (repairer->config.deadline_ms == 0)
        repairer->config.deadline_ms = DEADLINE_MS;
    if (repairer->config.extents_max == 0)
        repairer->config.extents_max = EXTENTS_MAX;
    if (repairer->config.memory_max == 0)
        repairer->config.memory_max = memory_max_default;
    repairer->pool.idle_max_bytes = POOL_IDLE_MAX;
    list_init(&repairer->repairs);
    *out = repairer;
    return 0;
}

void repairer_free(struct repairer *repairer)
{
    if (repairer == NULL)
        return;
    assert(repairer->n_repairs == 0 && repairer->memory_used == 0);
    free(repairer);
}

void repair_problem(struct repair *repair, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(repair->result.problem, sizeof(repair->result.problem), format, ap);
    va_end(ap);
}

void repair_step_soon(struct repair *repair)
{
    if (!env_timer_is_running(&repair->timer))
        env_timer_start(repair->file.env, &repair->timer, 0);
}

/* ---- its life ---- */

/* Returns whether verifiers are needed from the start, to commit or drop at the end: only
 * they show that a storage lost nothing in between. */
static bool needs_verifiers(const struct repair *repair)
{
    uint32_t flags = repair->request.flags;

    return (flags & (REPAIR_FENCE | REPAIR_CLEAN_SPARES)) != 0 ||
           (flags & (REPAIR_PARTIAL | REPAIR_VERIFY_OWN)) == 0;
}

static void repair_free(struct repair *repair)
{
    struct repairer *repairer = repair->repairer;

    assert(repairer->n_repairs > 0);
    repair_walk_cancel(repair);
    repair_fence_cancel(repair);
    repair_commit_cancel(repair);
    env_timer_stop(repair->file.env, &repair->timer);
    list_remove(&repair->link);
    if (--repairer->n_repairs == 0)
        bufpool_trim(&repairer->pool);
    free(repair);
    repair_wake_waiting(repairer);
}

static void repair_end(struct repair *repair)
{
    struct repair_result result;
    repair_done_cb *done = repair->done;
    void *arg = repair->arg;

    assert(done != NULL);
    findings_conclude(repair);
    result = repair->result;
    repair_free(repair);
    done(arg, &result);
}

/* Returns true if it waits for homes to confirm that their files are complete. */
static bool whole_start(struct repair *repair)
{
    uint32_t homes = findings_complete_homes(repair);

    return homes != 0 && repair_whole_start(repair, homes);
}

/* Walks on. Returns true when the walk is over or a batch is due, and no piece is under
 * way. */
static bool walk(struct repair *repair)
{
    bool over = repair->walk.step == WALK_OVER;

    assert(repair->state == REPAIR_WALK);
    if (!over && !repair_batch_is_due(repair))
        over = repair_walk(repair);
    return repair->walk.n_pieces == 0 && (over || repair_batch_is_due(repair));
}

/* Returns whether a sync at all candidates is needed although nothing was changed. */
static bool is_to_be_proved(const struct repair *repair)
{
    return (repair->request.flags & REPAIR_PROVE) != 0 && repair->walk.step == WALK_OVER;
}

static void repair_step(struct repair *repair)
{
    for (;;) {
        if (repair->file.moved != 0) {
            repair_end(repair);
            return;
        }
        switch (repair->state) {
        case REPAIR_BEGIN:
            repair->state = REPAIR_WALK;
            if (needs_verifiers(repair)) {
                repair->state = REPAIR_SYNC_FIRST;
                repair_sync_start(repair, heal_file_all(&repair->file));
                return;
            }
            break;
        case REPAIR_SYNC_FIRST:
            if (repair->batch.n_asks > 0)
                return;
            repair->state = REPAIR_WALK;
            break;
        case REPAIR_WALK:
            if (!walk(repair))
                return;
            repair->state = REPAIR_END;
            if (!repair_batch_is_empty(repair) || is_to_be_proved(repair)) {
                repair->state = REPAIR_BATCH_SYNC;
                repair_sync_start(repair, repair_batch_candidates(repair));
                return;
            }
            if (repair->walk.step != WALK_OVER) {
                repair_batch_skip(repair);
                repair->state = REPAIR_WALK;
            }
            break;
        case REPAIR_BATCH_SYNC:
            if (repair->batch.n_asks > 0)
                return;
            repair->state = REPAIR_BATCH_COMMIT;
            break;
        case REPAIR_BATCH_COMMIT:
            if (repair->batch.n_asks > 0 || repair_commit_next(repair))
                return;
            repair->state = repair->walk.step == WALK_OVER ? REPAIR_END : REPAIR_WALK;
            break;
        case REPAIR_END:
            if (repair_walk_again(repair)) {
                repair->state = REPAIR_WALK;
                env_timer_start(repair->file.env, &repair->timer, REPAIR_AGAIN_MS);
                return;
            }
            repair->state = REPAIR_SPOILED;
            if (findings_all_in_place(repair) && repair_spoiled_start(repair))
                return;
            break;
        case REPAIR_SPOILED:
            if (repair->batch.n_asks > 0)
                return;
            repair->state = REPAIR_WHOLE;
            if (whole_start(repair))
                return;
            break;
        case REPAIR_WHOLE:
            if (repair->batch.n_asks > 0)
                return;
            repair->state = REPAIR_REMOVE;
            if (repair->findings.seen == SEEN_REMOVED && repair_remove_start(repair))
                return;
            break;
        case REPAIR_REMOVE:
            if (repair->batch.n_asks == 0)
                repair_end(repair);
            return;
        }
    }
}

static void on_repair_timer(struct env_timer *timer)
{
    repair_step(container_of(timer, struct repair, timer));
}

static void set_scope(struct repair *repair)
{
    const struct heal_file *file = &repair->file;
    bool all = (repair->request.flags & REPAIR_ALL_HOMES) != 0;

    assert(repair->scope == 0);
    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home < file->c && (all || (repair->own.bit >> home & 1) != 0))
            repair->scope |= 1u << p;
    }
}

int repair_start(struct repairer *repairer, const struct repair_request *request,
                 repair_done_cb *done, void *arg, struct repair **out)
{
    struct repair *repair = calloc(1, sizeof(*repair));
    int rc;

    assert(done != NULL);
    assert(request->passed_first <= request->passed_end);
    if (repair == NULL)
        return -ENOMEM;
    rc = heal_file_init(&repair->file, repairer->config.env, &repairer->config.peers,
                        repairer->config.deadline_ms, &request->target, request->lost);
    if (rc != 0 || request->first_block + request->n_blocks < request->first_block) {
        free(repair);
        return rc != 0 ? rc : -EINVAL;
    }
    repair->repairer = repairer;
    repair->request = *request;
    repair->done = done;
    repair->arg = arg;
    repair_walk_init(&repair->walk, request);
    repair_own_init(repair);
    set_scope(repair);
    list_add_tail(&repairer->repairs, &repair->link);
    repairer->n_repairs++;
    env_timer_init(&repair->timer, on_repair_timer);
    env_timer_start(repairer->config.env, &repair->timer, 0);
    *out = repair;
    return 0;
}

void repair_cancel(struct repair *repair)
{
    repair_free(repair);
}

const struct repair_result *repair_progress(const struct repair *repair)
{
    return &repair->result;
}

uint64_t repair_position(const struct repair *repair)
{
    uint64_t position = repair->walk.cursor;

    LIST_FOREACH(node, &repair->walk.pieces) {
        const struct repair_piece *piece = container_of(node, struct repair_piece, link);

        if (!piece_is_of_tail(piece) && piece->first < position)
            position = piece->first;
    }
    return position;
}
