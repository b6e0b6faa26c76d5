/*
 * mend.c - the one healing state machine: its life, its fence, the order of its batches.
 *
 * In:     mend_start() by those who know what may be wrong. Thread: that of the env.
 * Out:    pieces and batches; ST_FENCE.
 * Keeps:  I7 and I9: memory is bounded by pieces over all mends; the callback comes once, and never
 *         inside mend_start().
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "storaged/heal/repair/mend_piece.h"

enum {
    DEADLINE_MS = 10000,
    EXTENTS_MAX = 8,
    POOL_IDLE_MAX = 32 << 20,
    AGAINS_MAX = 20,
    SMALL_BLOCKS =
        8 * EXTENT_BLOCKS, /* a range like that is gone through without asking */
};
static const uint64_t memory_max_default = 64 << 20;

int mender_new(const struct mender_config *config, struct mender **out)
{
    struct mender *mender = calloc(1, sizeof(*mender));

    if (mender == NULL)
        return -ENOMEM;
    mender->config = *config;
    if (mender->config.deadline_ms == 0)
        mender->config.deadline_ms = DEADLINE_MS;
    if (mender->config.extents_max == 0)
        mender->config.extents_max = EXTENTS_MAX;
    if (mender->config.memory_max == 0)
        mender->config.memory_max = memory_max_default;
    mender->pool.idle_max_bytes = POOL_IDLE_MAX;
    list_init(&mender->mends);
    *out = mender;
    return 0;
}

void mender_free(struct mender *mender)
{
    if (mender == NULL)
        return;
    assert(mender->n_mends == 0 && mender->memory_used == 0);
    free(mender);
}

void mend_problem(struct mend *mend, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(mend->result.problem, sizeof(mend->result.problem), format, ap);
    va_end(ap);
}

void mend_step_soon(struct mend *mend)
{
    if (!env_timer_is_running(&mend->timer))
        env_timer_start(mend->file.env, &mend->timer, 0);
}

void mend_again(struct mend *mend, uint64_t from)
{
    mend->pressure = true;
    if (from < mend->again_from)
        mend->again_from = from;
}

/* ---- our own storage ---- */

bool mend_own_refused(struct mend *mend)
{
    struct heal_file *file = &mend->file;
    uint64_t now = env_now_ns(file->env);

    if (mend->refused_ns == 0)
        mend->refused_ns = now;
    if (file->moved == 0 && heal_file_is_up(file, (unsigned)__builtin_ctz(mend->own)) &&
        now - mend->refused_ns < file->deadline_ms * UINT64_C(1000000)) {
        file->silent &= ~mend->own; /* not yet */
        return true;
    }
    mend->unseen |= (mend->own & ~file->lost) != 0;
    return false;
}

void mend_own_told(struct mend *mend)
{
    mend->refused_ns = 0;
}

/* ---- pieces ---- */

/* There is memory again: whoever waited for it goes on. */
static void wake_the_waiting(struct mender *mender)
{
    LIST_FOREACH(node, &mender->mends) {
        struct mend *mend = container_of(node, struct mend, link);

        if (mend->wants_memory)
            mend_step_soon(mend);
    }
}

void mend_piece_ended(struct mend_piece *piece)
{
    struct mend *mend = piece->mend;
    bool sparse = piece->sparse && !piece->flat;

    mend->reads_ahead = piece->whole;
    mend->n_dense = piece->sparse ? 0 : mend->n_dense + 1;
    if (piece->tail)
        mend->tail_healed = piece->holders[0] & ~piece->decided[0].holders;
    if (sparse && !mend->small && mend->look == WALK_EXTENTS)
        mend->look = WALK_NEXT;
    mend_piece_free(piece);
    wake_the_waiting(mend->mender);
    mend_step_soon(mend);
}

/* ---- the fence ---- */

static void fence_start(struct mend *mend);

static void wake_the_fenced(struct mend *mend)
{
    for (;;) {
        struct mend_piece *waits = NULL;

        LIST_FOREACH(node, &mend->pieces) {
            struct mend_piece *piece = container_of(node, struct mend_piece, link);

            if (piece->state == PIECE_FENCE)
                waits = piece;
        }
        if (waits == NULL)
            return;
        mend_piece_wake(waits);
    }
}

static void on_fenced(struct ask *ask, int rc)
{
    struct mend *mend = container_of(ask - ask->candidate, struct mend, fence_asks[0]);

    mend->n_fencing--;
    if (ask_is_ok(ask, rc))
        mend->fenced |= 1u << ask->candidate;
    if (mend->n_fencing > 0)
        return;
    mend->fence_up = true;
    mend->result.fenced = true;
    if (mend->fence_wanted > mend->fence_epoch)
        fence_start(mend);
    if (mend->fence_up)
        wake_the_fenced(mend);
}

static void fence_start(struct mend *mend)
{
    struct heal_file *file = &mend->file;

    mend->fence_up = false;
    mend->fence_epoch = mend->fence_wanted;
    mend->fenced = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StFenceReq req = ROZO__ST_FENCE_REQ__INIT;

        req.ref = &file->ref;
        req.epoch = mend->fence_epoch;
        req.to_storage = file->target.storages[i];
        if (ask_send(&mend->fence_asks[i], file, i, ROZO__OP__ST_FENCE, &req.base, NULL,
                     0, on_fenced) == 0)
            mend->n_fencing++;
    }
    if (mend->n_fencing == 0)
        mend->fence_up = true; /* nobody is there to be told */
}

bool mend_want_fence(struct mend *mend, uint32_t epoch)
{
    if (mend->n_fencing == 0 && mend->fence_up && mend->fence_epoch >= epoch)
        return true;
    if (epoch > mend->fence_wanted)
        mend->fence_wanted = epoch;
    if (mend->n_fencing == 0)
        fence_start(mend);
    return mend->fence_up;
}

/* ---- its life ---- */

/* What can be committed or dropped at the end needs to know what was there, unlost, from the start. */
static bool needs_verifiers(const struct mend *mend)
{
    uint32_t flags = mend->request.flags;

    return (flags & (MEND_FENCE | MEND_CLEAN_SPARES)) != 0 ||
           (flags & (MEND_PARTIAL | MEND_VERIFY_OWN)) == 0;
}

static uint32_t batch_candidates(const struct mend *mend)
{
    uint32_t candidates = mend->to_sync;

    if ((mend->request.flags & MEND_PROVE) != 0)
        return heal_file_all(&mend->file);
    for (unsigned i = 0; i < mend->n_ranges; i++)
        candidates |= mend->ranges[i].holders;
    return candidates;
}

static void mend_free(struct mend *mend)
{
    struct mender *mender = mend->mender;

    while (!list_is_empty(&mend->pieces))
        mend_piece_free(container_of(mend->pieces.next, struct mend_piece, link));
    for (unsigned i = 0; i < DIST_MAX; i++) {
        ask_cancel(&mend->next_asks[i]);
        ask_cancel(&mend->fence_asks[i]);
    }
    mend_commit_cancel(mend);
    env_timer_stop(mend->file.env, &mend->timer);
    free(mend->marks);
    list_remove(&mend->link);
    if (--mender->n_mends == 0)
        bufpool_trim(&mender->pool);
    free(mend);
    wake_the_waiting(mender);
}

/*
 * Whatever the others have: what lies here was not looked at. And k who are silent may have between them what was
 * never synced, and is lost where the power failed.
 */
static void note_silence(struct mend *mend)
{
    uint32_t silent = mend->file.silent & ~mend->file.lost;

    if (mend->removed ||
        (!mend->unseen && (unsigned)__builtin_popcount(silent) < mend->file.k))
        return;
    if (mend->result.problem[0] == '\0')
        mend_problem(mend, mend->unseen ? "our own storage does not answer"
                                        : "too many storages do not answer");
    mend->result.rc = -EIO;
}

/* The first thing that keeps the file from being sound; NULL: it is. */
static const char *unsound(const struct mend *mend)
{
    const struct mend_result *r = &mend->result;
    const struct heal_file *file = &mend->file;
    uint32_t all = heal_file_all(file) & ~file->lost, spoiled = 0;
    bool is_nowhere = r->rc == -ENOENT && !mend->removed && (all & ~mend->none) == 0;

    for (unsigned i = 0; i < file->c; i++)
        spoiled |= mend->spoiled[i];
    if (mend->removed)
        return "it is removed";
    if ((file->silent & all) != 0)
        return "not all of its storages answer";
    if (r->rc != 0 && !is_nowhere)
        return "it could not be looked at as a whole";
    if (r->undecided + r->n_torn > 0)
        return "a version is on too few storages";
    if ((mend->doubt & all) != 0)
        return "a storage may have lost something, and has not compared all yet";
    if (r->damaged + r->stale + r->missing + r->unknown + r->healed + r->dropped +
                r->cleaned + r->failed >
            0 ||
        (mend->damaged & all) != 0 || mend->unknown != 0 || spoiled != 0)
        return "something was wrong, or still is";
    if (mend->uncommitted)
        return "a version is not committed";
    if ((all & ~(mend->next_told | mend->none)) != 0 || (all & ~mend->proved) != 0)
        return "not all storages say that it is stable";
    return NULL;
}

/* Whatever else is wrong: who says so has later words of the file than we. */
static void note_moved(struct mend *mend)
{
    mend->result.rc = -EREMOTE;
    mend_problem(mend, "storage %u says that it lies on other storages by now",
                 mend->file.target.storages[__builtin_ctz(mend->file.moved)]);
}

static void note_soundness(struct mend *mend)
{
    const char *why = unsound(mend);

    mend->result.sound = why == NULL;
    if (why != NULL && mend->result.problem[0] == '\0')
        mend_problem(mend, "%s", why);
}

static void mend_end(struct mend *mend)
{
    struct mend_result result;
    mend_done_cb *done = mend->done;
    void *arg = mend->arg;
    uint32_t maybe = heal_file_all(&mend->file) & ~(mend->none | mend->unsynced);

    if (mend->removed) {
        mend->result.rc = -ENOENT;
    } else if (mend->result.rc == 0 && !mend->seen_file) {
        bool removed = (unsigned)__builtin_popcount(maybe) < mend->file.k;

        mend->result.rc = removed ? -ENOENT : -EIO;
        if (!removed && mend->result.problem[0] == '\0')
            snprintf(mend->result.problem, sizeof(mend->result.problem),
                     "none of those who answer has it, and too many do not");
    }
    note_silence(mend);
    if (mend->file.moved != 0)
        note_moved(mend);
    if ((mend->request.flags & MEND_PROVE) != 0)
        note_soundness(mend);
    mend->result.silent = mend->file.silent;
    mend->result.none = mend->none;
    result = mend->result;
    mend_free(mend);
    done(arg, &result);
}

/* Storages had no room for all: begin again there, when they have had time. True: it does. */
static bool walk_again(struct mend *mend)
{
    if (mend->again_from == UINT64_MAX)
        return false;
    if (mend->n_agains++ == AGAINS_MAX) {
        mend_problem(mend, "storages stay busy");
        mend->result.rc = -EIO;
        return false;
    }
    if (mend->cursor > mend->counted_to)
        mend->counted_to = mend->cursor;
    if (mend->again_from < mend->cursor)
        mend->cursor = mend->again_from;
    mend->again_from = UINT64_MAX;
    mend->look = mend->small ? WALK_EXTENTS : WALK_NEXT;
    mend->tail_tried = false;
    mend->state = MEND_WALK;
    env_timer_start(mend->file.env, &mend->timer, MEND_AGAIN_MS);
    return true;
}

/* Projections that were partial, and whose homes told all they were asked for: the others may lack something still. */
static uint32_t unknown_and_heard(const struct mend *mend)
{
    const struct heal_file *file = &mend->file;
    uint32_t heard = mend->unknown;

    for (unsigned p = 0; p < file->n; p++) {
        if ((heard >> p & 1) != 0 && (file->silent >> file->home[p] & 1) != 0)
            heard &= ~(1u << p);
    }
    return heard;
}

/* Was all of the file seen and put right, with so few silent that nothing acknowledged is theirs alone? */
static bool is_complete(const struct mend *mend)
{
    const struct mend_result *r = &mend->result;
    uint32_t told = mend->next_told | mend->none;

    return r->rc == 0 && r->undecided == 0 && r->failed == 0 &&
           (unsigned)__builtin_popcount(heal_file_all(&mend->file) & ~told) <
               mend->file.q;
}

/* Is all of the file where it should be, by the word of everybody? */
static bool is_sound(const struct mend *mend)
{
    const struct mend_result *r = &mend->result;
    uint32_t told = mend->next_told | mend->none;

    for (unsigned i = 0; i < mend->file.c; i++) /* they tell nothing more */
        told |= mend->spoiled[i] != 0 ? 1u << i : 0;
    return (mend->request.flags & MEND_CLEAN_SPARES) != 0 &&
           mend->request.first_block == 0 && mend->end == UINT64_MAX && r->rc == 0 &&
           r->undecided == 0 && r->failed == 0 && r->n_torn == 0 && r->silent == 0 &&
           told == heal_file_all(&mend->file);
}

/*
 * Homes that have something of the file which cannot be believed, while nobody else has any of it: too few for
 * anything that was acknowledged. They begin anew.
 */
static uint32_t ruins(const struct mend *mend)
{
    uint32_t others = heal_file_all(&mend->file) & ~mend->damaged, homes = 0;

    if (mend->result.rc != 0 || mend->seen_file || mend->removed ||
        mend->request.first_block != 0 || mend->end != UINT64_MAX ||
        (others & ~mend->none) != 0 ||
        (unsigned)__builtin_popcount(mend->damaged & ~mend->unsynced) >= mend->file.k)
        return 0;
    for (unsigned p = 0; p < mend->file.n; p++) {
        if ((mend->scope >> p & 1) != 0 && (mend->damaged >> mend->file.home[p] & 1) != 0)
            homes |= 1u << p;
    }
    return homes;
}

/* True: wait for what homes are told. */
static bool whole_start(struct mend *mend)
{
    uint32_t homes = ruins(mend);

    mend->result.damaged += (unsigned)__builtin_popcount(homes);
    if (homes == 0 && is_complete(mend))
        homes = unknown_and_heard(mend);
    return homes != 0 && mend_whole_start(mend, homes);
}

/* Walk on; true: it is over, or a batch is due, and no piece is under way any more. */
static bool walk(struct mend *mend)
{
    bool over = mend->look == WALK_OVER;

    if (!over && !mend_batch_is_due(mend))
        over = mend_walk(mend);
    return mend->n_pieces == 0 && (over || mend_batch_is_due(mend));
}

/* Is a sync at all candidates wanted though nothing was changed? */
static bool is_to_be_proved(const struct mend *mend)
{
    return (mend->request.flags & MEND_PROVE) != 0 && mend->look == WALK_OVER;
}

static void mend_step(struct mend *mend)
{
    for (;;) {
        if (mend->file.moved != 0) {
            mend_end(mend);
            return;
        }
        switch (mend->state) {
        case MEND_BEGIN:
            mend->state = MEND_WALK;
            if (needs_verifiers(mend)) {
                mend->state = MEND_SYNC_FIRST;
                mend_sync_start(mend, heal_file_all(&mend->file));
                return;
            }
            break;
        case MEND_SYNC_FIRST:
            if (mend->n_batch > 0)
                return;
            mend->state = MEND_WALK;
            break;
        case MEND_WALK:
            if (!walk(mend))
                return;
            mend->state = MEND_END;
            if (!mend_batch_is_empty(mend) || is_to_be_proved(mend)) {
                mend->state = MEND_BATCH_SYNC;
                mend_sync_start(mend, batch_candidates(mend));
                return;
            }
            if (mend->look != WALK_OVER) {
                mend->batch_bytes = 0;
                mend->state = MEND_WALK;
            }
            break;
        case MEND_BATCH_SYNC:
            if (mend->n_batch > 0)
                return;
            mend->state = MEND_BATCH_COMMIT;
            break;
        case MEND_BATCH_COMMIT:
            if (mend->n_batch > 0 || mend_commit_next(mend))
                return;
            mend->state = mend->look == WALK_OVER ? MEND_END : MEND_WALK;
            break;
        case MEND_END:
            if (walk_again(mend))
                return;
            mend->state = MEND_SPOILED;
            if (is_sound(mend) && mend_spoiled_start(mend))
                return;
            break;
        case MEND_SPOILED:
            if (mend->n_batch > 0)
                return;
            mend->state = MEND_WHOLE;
            if (whole_start(mend))
                return;
            break;
        case MEND_WHOLE:
            if (mend->n_batch > 0)
                return;
            mend->state = MEND_REMOVE;
            if (mend->removed && mend_remove_start(mend))
                return;
            break;
        case MEND_REMOVE:
            if (mend->n_batch == 0)
                mend_end(mend);
            return;
        }
    }
}

static void on_mend_timer(struct env_timer *timer)
{
    mend_step(container_of(timer, struct mend, timer));
}

static void set_scope(struct mend *mend)
{
    const struct heal_file *file = &mend->file;
    bool all = (mend->request.flags & MEND_ALL_HOMES) != 0;

    for (unsigned i = 0; i < file->c; i++) {
        if (file->target.storages[i] == mend->mender->config.own_storage)
            mend->own = 1u << i;
    }
    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home < file->c && (all || (mend->own >> home & 1) != 0))
            mend->scope |= 1u << p;
    }
}

int mend_start(struct mender *mender, const struct mend_request *request,
               mend_done_cb *done, void *arg, struct mend **out)
{
    struct mend *mend = calloc(1, sizeof(*mend));
    int rc;

    if (mend == NULL)
        return -ENOMEM;
    rc = heal_file_init(&mend->file, mender->config.env, &mender->config.peers,
                        mender->config.deadline_ms, &request->target, request->lost);
    if (rc != 0 || request->first_block + request->n_blocks < request->first_block) {
        free(mend);
        return rc != 0 ? rc : -EINVAL;
    }
    mend->mender = mender;
    mend->request = *request;
    mend->done = done;
    mend->arg = arg;
    mend->cursor = request->first_block;
    mend->again_from = UINT64_MAX;
    mend->end =
        request->n_blocks == 0 ? UINT64_MAX : request->first_block + request->n_blocks;
    mend->small = request->n_blocks != 0 && request->n_blocks <= SMALL_BLOCKS;
    mend->look = mend->small ? WALK_EXTENTS : WALK_NEXT;
    list_init(&mend->pieces);
    set_scope(mend);
    list_add_tail(&mender->mends, &mend->link);
    mender->n_mends++;
    env_timer_init(&mend->timer, on_mend_timer);
    env_timer_start(mender->config.env, &mend->timer, 0);
    *out = mend;
    return 0;
}

void mend_cancel(struct mend *mend)
{
    mend_free(mend);
}

const struct mend_result *mend_progress(const struct mend *mend)
{
    return &mend->result;
}

uint64_t mend_position(const struct mend *mend)
{
    uint64_t position = mend->cursor;

    LIST_FOREACH(node, &mend->pieces) {
        const struct mend_piece *piece = container_of(node, struct mend_piece, link);

        if (!piece->tail && piece->first < position)
            position = piece->first;
    }
    return position;
}
