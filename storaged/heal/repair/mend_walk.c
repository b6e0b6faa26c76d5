/*
 * mend_walk.c - how a mend goes along its range: extent after extent where something may be, in one
 * leap where nobody has a head of his own.
 *
 * In:     mend_walk(), whenever there is room for another piece. Thread: that of the env.
 * Out:    pieces; ST_NEXT to all candidates.
 * Keeps:  between heads there are only large marks, the same over a whole stretch at every storage: one
 *         block of a stretch speaks for all of it, with the versions told. So the holes of a truncated file take one request.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/record.h"
#include "storaged/heal/repair/mend_piece.h"

enum {
    AHEAD_MIN = 4,
    CLIENTS_SHARE =
        8, /* of the memory, and so of what is under way, when clients are at work */
};
static const uint64_t CLIENTS_NS = 500000000;

/* A block behind everything: what is true of it is true to the end. */
static const uint64_t far_block = ((uint64_t)1 << 47) - 1;

/* Clients are waiting for the same disks and processors: they get most of them. */
static uint64_t memory_max(const struct mender *mender)
{
    uint64_t since_ns = env_now_ns(mender->config.env) - mender->clients_ns;

    return mender->clients_ns != 0 && since_ns < CLIENTS_NS
               ? mender->config.memory_max / CLIENTS_SHARE
               : mender->config.memory_max;
}

/* The longer it goes through data, the further ahead it looks: a small file has nothing there. */
static bool has_room(struct mend *mend)
{
    const struct mender *mender = mend->mender;
    unsigned ahead = AHEAD_MIN + mend->n_dense;

    if (mend->n_pieces >= mender->config.extents_max || mend->n_pieces >= ahead)
        return false;
    mend->wants_memory =
        mender->memory_used != 0 &&
        mender->memory_used + mend_piece_memory(mend) > memory_max(mender);
    return !mend->wants_memory;
}

static struct mend_piece *piece_new(struct mend *mend, uint64_t first, unsigned n)
{
    struct mend_piece *piece = mend_piece_new(mend, first, n);

    if (piece == NULL) {
        mend_problem(mend, "out of memory");
        mend->result.rc = -ENOMEM;
        mend->look = WALK_OVER;
    }
    return piece;
}

/* ---- where is something? ---- */

static void take_mark(struct mend *mend, unsigned candidate,
                      const Rozo__StCommitReq__Range *r)
{
    struct mend_mark *marks;

    if (mend->n_marks == MEND_MARKS_MAX) {
        mend->marks_lost = true;
        return;
    }
    if ((mend->n_marks & (mend->n_marks - 1)) == 0) { /* a power of two: it is full */
        marks =
            realloc(mend->marks, (mend->n_marks == 0 ? 1 : 2 * (size_t)mend->n_marks) *
                                     sizeof(*marks));
        if (marks == NULL) {
            mend->marks_lost = true;
            return;
        }
        mend->marks = marks;
    }
    mend->marks[mend->n_marks++] = (struct mend_mark){
        .first = r->first_block,
        .end = r->n_blocks == 0 || r->first_block + r->n_blocks < r->first_block
                   ? UINT64_MAX
                   : r->first_block + r->n_blocks,
        .version = r->version,
        .candidate = (uint8_t)candidate,
    };
}

/*
 * What it does not know shows where it is looked at; but nobody looks where nobody has a head. Of a rebuild's and a
 * scrub's own file that is known.
 */
static void take_partial(struct mend *mend, unsigned candidate, uint32_t partial)
{
    if ((mend->request.flags & MEND_PARTIAL) != 0 || mend->request.first_block != 0 ||
        mend->end != UINT64_MAX)
        return;
    for (unsigned p = 0; p < mend->file.n; p++) {
        if ((mend->scope & partial & 1u << p) != 0 && mend->file.home[p] == candidate)
            mend->unknown |= 1u << p;
    }
}

static void take_next(struct mend *mend, const struct ask *ask)
{
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    if (resp != NULL && resp->block >= mend->cursor) {
        mend->next_told |= 1u << ask->candidate;
        mend->next_block[ask->candidate] = resp->block;
        mend->seen_file = true;
        take_partial(mend, ask->candidate, resp->partial);
        for (size_t i = 0; i < resp->n_marks; i++)
            take_mark(mend, ask->candidate, resp->marks[i]);
    }
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void take_damage(struct mend *mend, const struct ask *ask)
{
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    mend->damaged |= 1u << ask->candidate;
    if (resp != NULL && resp->unsynced)
        mend->unsynced |= 1u << ask->candidate;
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void next_refused(struct mend *mend, unsigned candidate)
{
    mend->file.silent |= 1u << candidate;
    mend->next_refused |= 1u << candidate;
}

static void on_next(struct ask *ask, int rc)
{
    struct mend *mend = container_of(ask - ask->candidate, struct mend, next_asks[0]);

    mend->n_asked--;
    if (ask_is_ok(ask, rc))
        take_next(mend, ask);
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE)
        mend->none |= 1u << ask->candidate;
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__DAMAGED)
        take_damage(mend, ask);
    else
        next_refused(mend, ask->candidate);
    if (mend->n_asked == 0)
        mend_step_soon(mend);
}

static void next_start(struct mend *mend)
{
    struct heal_file *file = &mend->file;

    mend->look = WALK_ASKED;
    mend->next_told = mend->none = mend->damaged = mend->unsynced = 0;
    mend->next_refused = 0;
    mend->next_epoch = mend->fence_up ? mend->fence_epoch : 0;
    mend->n_marks = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;

        req.ref = &file->ref;
        req.from_block = mend->cursor;
        req.to_storage = file->target.storages[i];
        req.heads = true;
        if (ask_send(&mend->next_asks[i], file, i, ROZO__OP__ST_NEXT, &req.base, NULL, 0,
                     on_next) == 0)
            mend->n_asked++;
        else
            next_refused(mend, i);
    }
}

/* True: our own storage did not tell, and all are asked once more, later. */
static bool next_again(struct mend *mend)
{
    if ((mend->next_refused & mend->own) == 0) {
        mend_own_told(mend);
        return false;
    }
    if (!mend_own_refused(mend))
        return false;
    mend->next_at_ns = env_now_ns(mend->file.env) + MEND_AGAIN_MS * UINT64_C(1000000);
    mend->look = WALK_NEXT;
    return true;
}

/* True: not yet. */
static bool next_waits(struct mend *mend)
{
    uint64_t now = env_now_ns(mend->file.env);

    if (now >= mend->next_at_ns)
        return false;
    if (!env_timer_is_running(&mend->timer))
        env_timer_start(mend->file.env, &mend->timer,
                        (uint32_t)((mend->next_at_ns - now + 999999) / 1000000));
    return true;
}

/* The nearest head of anybody. Who was given the mark to the end may show heads that it hides. */
static uint64_t nearest_head(const struct mend *mend)
{
    uint64_t head = UINT64_MAX;

    for (unsigned i = 0; i < mend->file.c; i++) {
        bool hidden =
            (mend->tail_healed >> i & 1) != 0 && mend->next_block[i] >= mend->tail_from;

        if ((mend->next_told >> i & 1) != 0 && !hidden && mend->next_block[i] < head)
            head = mend->next_block[i];
    }
    return head;
}

static uint32_t next_silent(const struct mend *mend)
{
    return heal_file_all(&mend->file) & ~(mend->next_told | mend->none);
}

/* What was asked for is here: how to go on. */
static void next_end(struct mend *mend)
{
    mend->head = nearest_head(mend);
    mend->look = mend->tail_tried ? WALK_FLATS : WALK_TAIL;
    if (mend->marks_lost) {
        mend_problem(mend, "no room for the marks of the file");
        mend->result.rc = -ENOMEM;
    }
    if (mend->next_told == 0 &&
        (unsigned)__builtin_popcount(next_silent(mend) & ~mend->unsynced) >=
            mend->file.k) {
        mend_problem(mend, "nobody tells where there is something");
        mend->result.rc = -EIO;
    }
    if (mend->marks_lost || mend->next_told == 0)
        mend->look = WALK_OVER;
}

/* ---- the mark to the end of everything ---- */

static const struct mend_mark *tail_of(const struct mend *mend, unsigned candidate)
{
    const struct mend_mark *best = NULL;

    for (unsigned i = 0; i < mend->n_marks; i++) {
        const struct mend_mark *m = &mend->marks[i];

        if (m->candidate == candidate && m->end == UINT64_MAX &&
            (best == NULL || m->version > best->version))
            best = m;
    }
    return best;
}

/* From which block on do k storages have the mark of this version to the end? UINT64_MAX: nowhere. */
static uint64_t tail_start(const struct mend *mend, uint64_t version)
{
    uint64_t starts[DIST_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < mend->file.c; i++) {
        const struct mend_mark *m = tail_of(mend, i);
        unsigned at = n;

        if (m == NULL || m->version != version)
            continue;
        for (; at > 0 && starts[at - 1] > m->first; at--)
            starts[at] = starts[at - 1];
        starts[at] = m->first;
        n++;
    }
    return n < mend->file.k ? UINT64_MAX : starts[mend->file.k - 1];
}

/*
 * A home that was away while a file was cut holds all that was cut off: one mark makes it forget that,
 * where k others have the mark. Not block by block.
 */
static bool tail_is_missed(struct mend *mend, uint64_t *from, uint64_t *version)
{
    for (unsigned i = 0; i < mend->file.c; i++) {
        const struct mend_mark *m = tail_of(mend, i);
        uint64_t start = m == NULL ? UINT64_MAX : tail_start(mend, m->version);

        if (start >= far_block)
            continue;
        for (unsigned p = 0; p < mend->file.n; p++) {
            unsigned home = mend->file.home[p];
            const struct mend_mark *has;

            if ((mend->scope >> p & 1) == 0 || (mend->next_told >> home & 1) == 0)
                continue;
            has = tail_of(mend, home);
            if (has != NULL && (has->version > m->version ||
                                (has->version == m->version && has->first <= start)))
                continue;
            *from = start > mend->request.first_block ? start : mend->request.first_block;
            *version = m->version;
            return true;
        }
    }
    return false;
}

/* True: wait for it. */
static bool tail_next(struct mend *mend)
{
    struct mend_piece *piece;
    uint64_t from, version;

    if (mend->tail_tried) {
        if (mend->n_pieces > 0)
            return true;
        mend->look = WALK_NEXT; /* with what is there now */
        return false;
    }
    mend->tail_tried = true;
    if (mend->end != UINT64_MAX || !tail_is_missed(mend, &from, &version)) {
        mend->look = WALK_FLATS;
        return false;
    }
    piece = piece_new(mend, far_block, 1);
    if (piece == NULL)
        return false;
    piece->flat = piece->tail = true;
    piece->tail_from = mend->tail_from = from;
    piece->tail_version = version;
    return true;
}

/* ---- stretches without heads ---- */

/* Does it lie over the stretch that begins at the cursor? */
static bool is_over(const struct mend *mend, const struct mend_mark *m)
{
    return m->first <= mend->cursor && m->end > mend->cursor;
}

/* Where the stretch that begins at the cursor ends, at the latest at `limit`; *covered: somebody has
 * a mark over it. */
static uint64_t stretch_end(const struct mend *mend, uint64_t limit, bool *covered)
{
    uint64_t end = limit;

    *covered = false;
    for (unsigned i = 0; i < mend->n_marks; i++) {
        const struct mend_mark *m = &mend->marks[i];

        if (is_over(mend, m))
            *covered = true;
        if (m->first > mend->cursor && m->first < end)
            end = m->first;
        if (m->end > mend->cursor && m->end < end)
            end = m->end;
    }
    return end;
}

/* Without memory nothing counts as told, and the stretch is looked at again. */
static void stretch_told(const struct mend *mend, struct mend_piece *piece)
{
    uint64_t of[DIST_MAX] = { 0 }, newest = 0;
    unsigned n = 0;

    for (unsigned i = 0; i < mend->n_marks; i++)
        n += is_over(mend, &mend->marks[i]);
    piece->told = calloc(n + 1, sizeof(*piece->told));
    piece->uneven = piece->told == NULL;
    for (unsigned i = 0; piece->told != NULL && i < mend->n_marks; i++) {
        const struct mend_mark *m = &mend->marks[i];

        if (!is_over(mend, m))
            continue;
        piece->told[piece->n_told++] = m->version;
        if (m->version > of[m->candidate])
            of[m->candidate] = m->version;
        if (m->version > newest)
            newest = m->version;
    }
    for (unsigned p = 0; p < mend->file.n; p++) {
        unsigned home = mend->file.home[p];

        piece->uneven |= (mend->scope >> p & 1) != 0 && of[home] != newest;
    }
}

static void flat_next(struct mend *mend)
{
    uint64_t limit = mend->head < mend->end ? mend->head : mend->end, end;
    struct mend_piece *piece;
    bool covered;

    if (mend->cursor >= limit) {
        mend->look = mend->cursor >= mend->end ? WALK_OVER : WALK_EXTENTS;
        return;
    }
    end = stretch_end(mend, limit, &covered);
    /* those who do not say where they have something may have it here */
    if ((covered || next_silent(mend) != 0) && mend->cursor <= far_block) {
        piece = piece_new(mend, mend->cursor, 1);
        if (piece == NULL)
            return;
        piece->flat = true;
        piece->span = end == UINT64_MAX ? 0 : end - mend->cursor;
        piece->span_epoch = mend->next_epoch;
        stretch_told(mend, piece);
    }
    mend->cursor = end;
}

static void extent_next(struct mend *mend)
{
    uint64_t in_extent = EXTENT_BLOCKS - mend->cursor % EXTENT_BLOCKS;
    uint64_t left = mend->end - mend->cursor;
    unsigned n = (unsigned)(left < in_extent ? left : in_extent);

    if (mend->cursor >= mend->end || mend->cursor > far_block) {
        mend->look = WALK_OVER;
        return;
    }
    if (piece_new(mend, mend->cursor, n) != NULL)
        mend->cursor += n;
}

bool mend_walk(struct mend *mend)
{
    while (mend->look != WALK_OVER) {
        if (mend->look == WALK_ASKED && mend->n_asked > 0)
            return false;
        if (mend->look != WALK_ASKED && mend->look != WALK_NEXT && !has_room(mend))
            return false;
        switch (mend->look) {
        case WALK_NEXT:
            if (next_waits(mend))
                return false;
            next_start(mend);
            break;
        case WALK_ASKED:
            if (!next_again(mend))
                next_end(mend);
            break;
        case WALK_TAIL:
            if (tail_next(mend))
                return false;
            break;
        case WALK_FLATS:
            flat_next(mend);
            break;
        case WALK_EXTENTS:
            extent_next(mend);
            break;
        case WALK_OVER:
            break;
        }
    }
    return true;
}
