/*
 * repair.c - the life of a repair, its fence, and the order of its batches.
 *
 * In:     repair_start(), from the parts of the healer. Thread: that of the env.
 * Out:    pieces and batches; ST_FENCE.
 * Keeps:  I7 and I9: memory is bounded by pieces over all repairs; the callback comes
 *         once, and never inside repair_start().
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "storaged/heal/repair/repair_piece.h"

enum {
    DEADLINE_MS = 10000,
    EXTENTS_MAX = 8,
    POOL_IDLE_MAX = 32 << 20,
    AGAINS_MAX = 20,
    /* Ranges up to this size are walked without asking for heads. */
    SMALL_BLOCKS = 8 * EXTENT_BLOCKS,
};
static const uint64_t memory_max_default = 64 << 20;

int repairer_new(const struct repairer_config *config, struct repairer **out)
{
    struct repairer *repairer = calloc(1, sizeof(*repairer));

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

void repair_again(struct repair *repair, uint64_t from)
{
    repair->pressure = true;
    if (from < repair->again_from)
        repair->again_from = from;
}

/* ---- our own storage ---- */

bool repair_own_refused(struct repair *repair)
{
    struct heal_file *file = &repair->file;
    uint64_t now = env_now_ns(file->env);

    if (repair->refused_ns == 0)
        repair->refused_ns = now;
    if (file->moved == 0 && heal_file_is_up(file, (unsigned)__builtin_ctz(repair->own)) &&
        now - repair->refused_ns < file->deadline_ms * UINT64_C(1000000)) {
        file->silent &= ~repair->own; /* asked once more */
        return true;
    }
    repair->unseen |= (repair->own & ~file->lost) != 0;
    return false;
}

void repair_own_told(struct repair *repair)
{
    repair->refused_ns = 0;
}

/* ---- pieces ---- */

/* Continues repairs that wait for memory. */
static void wake_the_waiting(struct repairer *repairer)
{
    LIST_FOREACH(node, &repairer->repairs) {
        struct repair *repair = container_of(node, struct repair, link);

        if (repair->wants_memory)
            repair_step_soon(repair);
    }
}

void repair_piece_ended(struct repair_piece *piece)
{
    struct repair *repair = piece->repair;
    bool sparse = piece->sparse && !piece->flat;

    repair->reads_ahead = piece->whole;
    repair->n_dense = piece->sparse ? 0 : repair->n_dense + 1;
    if (piece->tail)
        repair->tail_healed = piece->holders[0] & ~piece->decided[0].holders;
    if (sparse && !repair->small && repair->look == WALK_EXTENTS)
        repair->look = WALK_NEXT;
    repair_piece_free(piece);
    wake_the_waiting(repair->repairer);
    repair_step_soon(repair);
}

/* ---- the fence ---- */

static void fence_start(struct repair *repair);

static void wake_the_fenced(struct repair *repair)
{
    for (;;) {
        struct repair_piece *waits = NULL;

        LIST_FOREACH(node, &repair->pieces) {
            struct repair_piece *piece = container_of(node, struct repair_piece, link);

            if (piece->state == PIECE_FENCE)
                waits = piece;
        }
        if (waits == NULL)
            return;
        repair_piece_wake(waits);
    }
}

static void on_fenced(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, fence_asks[0]);

    repair->n_fencing--;
    if (repair_ask_is_ok(ask, rc))
        repair->fenced |= 1u << ask->candidate;
    if (repair->n_fencing > 0)
        return;
    repair->fence_up = true;
    repair->result.fenced = true;
    if (repair->fence_wanted > repair->fence_epoch)
        fence_start(repair);
    if (repair->fence_up)
        wake_the_fenced(repair);
}

static void fence_start(struct repair *repair)
{
    struct heal_file *file = &repair->file;

    repair->fence_up = false;
    repair->fence_epoch = repair->fence_wanted;
    repair->fenced = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StFenceReq req = ROZO__ST_FENCE_REQ__INIT;

        req.ref = &file->ref;
        req.epoch = repair->fence_epoch;
        req.to_storage = file->target.storages[i];
        if (repair_ask_send(&repair->fence_asks[i], file, i, ROZO__OP__ST_FENCE,
                            &req.base, NULL, 0, on_fenced) == 0)
            repair->n_fencing++;
    }
    if (repair->n_fencing == 0)
        repair->fence_up = true; /* no storage is up to take the fence */
}

bool repair_want_fence(struct repair *repair, uint32_t epoch)
{
    if (repair->n_fencing == 0 && repair->fence_up && repair->fence_epoch >= epoch)
        return true;
    if (epoch > repair->fence_wanted)
        repair->fence_wanted = epoch;
    if (repair->n_fencing == 0)
        fence_start(repair);
    return repair->fence_up;
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

static uint32_t batch_candidates(const struct repair *repair)
{
    uint32_t candidates = repair->to_sync;

    if ((repair->request.flags & REPAIR_PROVE) != 0)
        return heal_file_all(&repair->file);
    for (unsigned i = 0; i < repair->n_ranges; i++)
        candidates |= repair->ranges[i].holders;
    return candidates;
}

static void repair_free(struct repair *repair)
{
    struct repairer *repairer = repair->repairer;

    while (!list_is_empty(&repair->pieces))
        repair_piece_free(container_of(repair->pieces.next, struct repair_piece, link));
    for (unsigned i = 0; i < DIST_MAX; i++) {
        repair_ask_cancel(&repair->next_asks[i]);
        repair_ask_cancel(&repair->fence_asks[i]);
    }
    repair_commit_cancel(repair);
    env_timer_stop(repair->file.env, &repair->timer);
    free(repair->marks);
    list_remove(&repair->link);
    if (--repairer->n_repairs == 0)
        bufpool_trim(&repairer->pool);
    free(repair);
    wake_the_waiting(repairer);
}

/* Reports an error if our own storage or k others did not answer. Without ours, nothing
 * here was looked at. k others may hold between them versions that were never synced and
 * are lost after a power failure. */
static void note_silence(struct repair *repair)
{
    uint32_t silent = repair->file.silent & ~repair->file.lost;

    if (repair->removed ||
        (!repair->unseen && (unsigned)__builtin_popcount(silent) < repair->file.k))
        return;
    if (repair->result.problem[0] == '\0')
        repair_problem(repair, repair->unseen ? "our own storage does not answer"
                                              : "too many storages do not answer");
    repair->result.rc = -EIO;
}

/* Returns the first reason why the file is not sound; NULL: it is. */
static const char *unsound(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;
    const struct heal_file *file = &repair->file;
    uint32_t all = heal_file_all(file) & ~file->lost, spoiled = 0;
    bool is_nowhere = r->rc == -ENOENT && !repair->removed && (all & ~repair->none) == 0;

    for (unsigned i = 0; i < file->c; i++)
        spoiled |= repair->spoiled[i];
    if (repair->removed)
        return "the file is removed";
    if ((file->silent & all) != 0)
        return "not all storages of the file answer";
    if (r->rc != 0 && !is_nowhere)
        return "the file could not be looked at as a whole";
    if (r->undecided + r->n_torn > 0)
        return "a version is on too few storages";
    if ((repair->doubt & all) != 0)
        return "a storage may have lost data and has not compared all of it yet";
    if (r->damaged + r->stale + r->missing + r->unknown + r->healed + r->dropped +
                r->cleaned + r->failed >
            0 ||
        (repair->damaged & all) != 0 || repair->unknown != 0 || spoiled != 0)
        return "records were wrong, or still are";
    if (repair->uncommitted)
        return "a version is not committed";
    if ((all & ~(repair->next_told | repair->none)) != 0 || (all & ~repair->proved) != 0)
        return "not all storages confirm that all versions are stable";
    return NULL;
}

/* Overrides other results: the storage that reports it knows a later distribution than we
 * do. */
static void note_moved(struct repair *repair)
{
    repair->result.rc = -EREMOTE;
    repair_problem(repair, "storage %u knows a later distribution of the file",
                   repair->file.target.storages[__builtin_ctz(repair->file.moved)]);
}

static void note_soundness(struct repair *repair)
{
    const char *why = unsound(repair);

    repair->result.sound = why == NULL;
    if (why != NULL && repair->result.problem[0] == '\0')
        repair_problem(repair, "%s", why);
}

static void repair_end(struct repair *repair)
{
    struct repair_result result;
    repair_done_cb *done = repair->done;
    void *arg = repair->arg;
    uint32_t maybe = heal_file_all(&repair->file) & ~(repair->none | repair->unsynced);

    if (repair->removed) {
        repair->result.rc = -ENOENT;
    } else if (repair->result.rc == 0 && !repair->seen_file) {
        bool removed = (unsigned)__builtin_popcount(maybe) < repair->file.k;

        repair->result.rc = removed ? -ENOENT : -EIO;
        if (!removed && repair->result.problem[0] == '\0')
            snprintf(repair->result.problem, sizeof(repair->result.problem),
                     "no storage that answers has the file, and too many do not answer");
    }
    note_silence(repair);
    if (repair->file.moved != 0)
        note_moved(repair);
    if ((repair->request.flags & REPAIR_PROVE) != 0)
        note_soundness(repair);
    repair->result.silent = repair->file.silent;
    repair->result.none = repair->none;
    result = repair->result;
    repair_free(repair);
    done(arg, &result);
}

/* Walks again from the first place where storages had no room, after a pause. Returns
 * false if nothing is left to repeat, or it was repeated too often. */
static bool walk_again(struct repair *repair)
{
    if (repair->again_from == UINT64_MAX)
        return false;
    if (repair->n_agains++ == AGAINS_MAX) {
        repair_problem(repair, "storages stay busy");
        repair->result.rc = -EIO;
        return false;
    }
    if (repair->cursor > repair->counted_to)
        repair->counted_to = repair->cursor;
    if (repair->again_from < repair->cursor)
        repair->cursor = repair->again_from;
    repair->again_from = UINT64_MAX;
    repair->look = repair->small ? WALK_EXTENTS : WALK_NEXT;
    repair->tail_tried = false;
    repair->state = REPAIR_WALK;
    env_timer_start(repair->file.env, &repair->timer, REPAIR_AGAIN_MS);
    return true;
}

/* Projections with partial files whose homes answered all requests; other homes may still
 * lack something. */
static uint32_t unknown_and_heard(const struct repair *repair)
{
    const struct heal_file *file = &repair->file;
    uint32_t heard = repair->unknown;

    for (unsigned p = 0; p < file->n; p++) {
        if ((heard >> p & 1) != 0 && (file->silent >> file->home[p] & 1) != 0)
            heard &= ~(1u << p);
    }
    return heard;
}

/* Returns whether all of the file was seen and healed, and too few candidates did not
 * answer for an acknowledged version to be on them alone. */
static bool is_complete(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;
    uint32_t told = repair->next_told | repair->none;

    return r->rc == 0 && r->undecided == 0 && r->failed == 0 &&
           (unsigned)__builtin_popcount(heal_file_all(&repair->file) & ~told) <
               repair->file.q;
}

/* Returns whether every candidate confirms that all of the file is where it should be. */
static bool is_sound(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;
    uint32_t told = repair->next_told | repair->none;

    /* Candidates with unreadable files answer nothing more. */
    for (unsigned i = 0; i < repair->file.c; i++)
        told |= repair->spoiled[i] != 0 ? 1u << i : 0;
    return (repair->request.flags & REPAIR_CLEAN_SPARES) != 0 &&
           repair->request.first_block == 0 && repair->end == UINT64_MAX && r->rc == 0 &&
           r->undecided == 0 && r->failed == 0 && r->n_torn == 0 && r->silent == 0 &&
           told == heal_file_all(&repair->file);
}

/* Homes in scope with an unreadable file, if no other candidate has any of the file and
 * these are too few for an acknowledged write. They start again with an empty file. */
static uint32_t ruins(const struct repair *repair)
{
    uint32_t others = heal_file_all(&repair->file) & ~repair->damaged, homes = 0;

    if (repair->result.rc != 0 || repair->seen_file || repair->removed ||
        repair->request.first_block != 0 || repair->end != UINT64_MAX ||
        (others & ~repair->none) != 0 ||
        (unsigned)__builtin_popcount(repair->damaged & ~repair->unsynced) >=
            repair->file.k)
        return 0;
    for (unsigned p = 0; p < repair->file.n; p++) {
        if ((repair->scope >> p & 1) != 0 &&
            (repair->damaged >> repair->file.home[p] & 1) != 0)
            homes |= 1u << p;
    }
    return homes;
}

/* Returns true if it waits for homes to confirm that their files are complete. */
static bool whole_start(struct repair *repair)
{
    uint32_t homes = ruins(repair);

    repair->result.damaged += (unsigned)__builtin_popcount(homes);
    if (homes == 0 && is_complete(repair))
        homes = unknown_and_heard(repair);
    return homes != 0 && repair_whole_start(repair, homes);
}

/* Walks on. Returns true when the walk is over or a batch is due, and no piece is under
 * way. */
static bool walk(struct repair *repair)
{
    bool over = repair->look == WALK_OVER;

    if (!over && !repair_batch_is_due(repair))
        over = repair_walk(repair);
    return repair->n_pieces == 0 && (over || repair_batch_is_due(repair));
}

/* Returns whether a sync at all candidates is needed although nothing was changed. */
static bool is_to_be_proved(const struct repair *repair)
{
    return (repair->request.flags & REPAIR_PROVE) != 0 && repair->look == WALK_OVER;
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
            if (repair->n_batch > 0)
                return;
            repair->state = REPAIR_WALK;
            break;
        case REPAIR_WALK:
            if (!walk(repair))
                return;
            repair->state = REPAIR_END;
            if (!repair_batch_is_empty(repair) || is_to_be_proved(repair)) {
                repair->state = REPAIR_BATCH_SYNC;
                repair_sync_start(repair, batch_candidates(repair));
                return;
            }
            if (repair->look != WALK_OVER) {
                repair->batch_bytes = 0;
                repair->state = REPAIR_WALK;
            }
            break;
        case REPAIR_BATCH_SYNC:
            if (repair->n_batch > 0)
                return;
            repair->state = REPAIR_BATCH_COMMIT;
            break;
        case REPAIR_BATCH_COMMIT:
            if (repair->n_batch > 0 || repair_commit_next(repair))
                return;
            repair->state = repair->look == WALK_OVER ? REPAIR_END : REPAIR_WALK;
            break;
        case REPAIR_END:
            if (walk_again(repair))
                return;
            repair->state = REPAIR_SPOILED;
            if (is_sound(repair) && repair_spoiled_start(repair))
                return;
            break;
        case REPAIR_SPOILED:
            if (repair->n_batch > 0)
                return;
            repair->state = REPAIR_WHOLE;
            if (whole_start(repair))
                return;
            break;
        case REPAIR_WHOLE:
            if (repair->n_batch > 0)
                return;
            repair->state = REPAIR_REMOVE;
            if (repair->removed && repair_remove_start(repair))
                return;
            break;
        case REPAIR_REMOVE:
            if (repair->n_batch == 0)
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

    for (unsigned i = 0; i < file->c; i++) {
        if (file->target.storages[i] == repair->repairer->config.own_storage)
            repair->own = 1u << i;
    }
    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home < file->c && (all || (repair->own >> home & 1) != 0))
            repair->scope |= 1u << p;
    }
}

int repair_start(struct repairer *repairer, const struct repair_request *request,
                 repair_done_cb *done, void *arg, struct repair **out)
{
    struct repair *repair = calloc(1, sizeof(*repair));
    int rc;

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
    repair->cursor = request->first_block;
    repair->again_from = UINT64_MAX;
    repair->end =
        request->n_blocks == 0 ? UINT64_MAX : request->first_block + request->n_blocks;
    repair->small = request->n_blocks != 0 && request->n_blocks <= SMALL_BLOCKS;
    repair->look = repair->small ? WALK_EXTENTS : WALK_NEXT;
    list_init(&repair->pieces);
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
    uint64_t position = repair->cursor;

    LIST_FOREACH(node, &repair->pieces) {
        const struct repair_piece *piece = container_of(node, struct repair_piece, link);

        if (!piece->tail && piece->first < position)
            position = piece->first;
    }
    return position;
}
