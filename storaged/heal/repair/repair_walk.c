/*
 * repair_walk.c - moves a repair along its range: extent by extent where something may
 * be, in one step over stretches without heads.
 *
 * In:     repair_walk(), whenever there is room for another piece. Thread: that of the
 *         env.
 * Out:    pieces; ST_NEXT to all candidates.
 * Keeps:  between heads there are only large marks, the same over a whole stretch at
 *         every storage: one block of a stretch stands for all of it, with the versions
 *         of these marks. So the holes of a truncated file take one request.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/record.h"
#include "storaged/heal/repair/repair_piece.h"

enum {
    AHEAD_MIN = 4,
    /* Divisor of the memory, and so of the work under way, while clients are active. */
    CLIENTS_SHARE = 8,
};
static const uint64_t CLIENTS_NS = 500000000;

/* A block beyond all data: what is true for it is true to the end. */
static const uint64_t far_block = ((uint64_t)1 << 47) - 1;

/* Bytes that repairs may use now. Clients that use the same disks and processors get most
 * of them. */
static uint64_t memory_max(const struct repairer *repairer)
{
    uint64_t since_ns = env_now_ns(repairer->config.env) - repairer->clients_ns;

    return repairer->clients_ns != 0 && since_ns < CLIENTS_NS
               ? repairer->config.memory_max / CLIENTS_SHARE
               : repairer->config.memory_max;
}

/* Returns whether another piece may start. The longer the walk goes through data, the
 * further ahead it looks; a small file has nothing there. */
static bool has_room(struct repair *repair)
{
    const struct repairer *repairer = repair->repairer;
    unsigned ahead = AHEAD_MIN + repair->n_dense;

    if (repair->n_pieces >= repairer->config.extents_max || repair->n_pieces >= ahead)
        return false;
    repair->wants_memory =
        repairer->memory_used != 0 &&
        repairer->memory_used + repair_piece_memory(repair) > memory_max(repairer);
    return !repair->wants_memory;
}

static struct repair_piece *piece_new(struct repair *repair, uint64_t first, unsigned n)
{
    struct repair_piece *piece = repair_piece_new(repair, first, n);

    if (piece == NULL) {
        repair_problem(repair, "out of memory");
        repair->result.rc = -ENOMEM;
        repair->look = WALK_OVER;
    }
    return piece;
}

/* ---- where is something? ---- */

static void take_mark(struct repair *repair, unsigned candidate,
                      const Rozo__StCommitReq__Range *r)
{
    struct repair_mark *marks;

    if (repair->n_marks == REPAIR_MARKS_MAX) {
        repair->marks_lost = true;
        return;
    }
    /* A power of two: the array is full. */
    if ((repair->n_marks & (repair->n_marks - 1)) == 0) {
        marks = realloc(repair->marks,
                        (repair->n_marks == 0 ? 1 : 2 * (size_t)repair->n_marks) *
                            sizeof(*marks));
        if (marks == NULL) {
            repair->marks_lost = true;
            return;
        }
        repair->marks = marks;
    }
    repair->marks[repair->n_marks++] = (struct repair_mark){
        .first = r->first_block,
        .end = r->n_blocks == 0 || r->first_block + r->n_blocks < r->first_block
                   ? UINT64_MAX
                   : r->first_block + r->n_blocks,
        .version = r->version,
        .candidate = (uint8_t)candidate,
    };
}

/* Notes homes whose file is partial. Reading a block shows that, but no block is read
 * where no storage has a head. The own file of a rebuild or a scrub is known to be
 * partial. */
static void take_partial(struct repair *repair, unsigned candidate, uint32_t partial)
{
    if ((repair->request.flags & REPAIR_PARTIAL) != 0 ||
        repair->request.first_block != 0 || repair->end != UINT64_MAX)
        return;
    for (unsigned p = 0; p < repair->file.n; p++) {
        if ((repair->scope & partial & 1u << p) != 0 && repair->file.home[p] == candidate)
            repair->unknown |= 1u << p;
    }
}

static void take_next(struct repair *repair, const struct repair_ask *ask)
{
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    if (resp != NULL && resp->block >= repair->cursor) {
        repair->next_told |= 1u << ask->candidate;
        repair->next_block[ask->candidate] = resp->block;
        repair->seen_file = true;
        take_partial(repair, ask->candidate, resp->partial);
        for (size_t i = 0; i < resp->n_marks; i++)
            take_mark(repair, ask->candidate, resp->marks[i]);
    }
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void take_damage(struct repair *repair, const struct repair_ask *ask)
{
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    repair->damaged |= 1u << ask->candidate;
    if (resp != NULL && resp->unsynced)
        repair->unsynced |= 1u << ask->candidate;
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void next_refused(struct repair *repair, unsigned candidate)
{
    repair->file.silent |= 1u << candidate;
    repair->next_refused |= 1u << candidate;
}

static void on_next(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, next_asks[0]);

    repair->n_asked--;
    if (repair_ask_is_ok(ask, rc))
        take_next(repair, ask);
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE)
        repair->none |= 1u << ask->candidate;
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__DAMAGED)
        take_damage(repair, ask);
    else
        next_refused(repair, ask->candidate);
    if (repair->n_asked == 0)
        repair_step_soon(repair);
}

static void next_start(struct repair *repair)
{
    struct heal_file *file = &repair->file;

    repair->look = WALK_ASKED;
    repair->next_told = repair->none = repair->damaged = repair->unsynced = 0;
    repair->next_refused = 0;
    repair->next_epoch = repair->fence_up ? repair->fence_epoch : 0;
    repair->n_marks = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;

        req.ref = &file->ref;
        req.from_block = repair->cursor;
        req.to_storage = file->target.storages[i];
        req.heads = true;
        if (repair_ask_send(&repair->next_asks[i], file, i, ROZO__OP__ST_NEXT, &req.base,
                            NULL, 0, on_next) == 0)
            repair->n_asked++;
        else
            next_refused(repair, i);
    }
}

/* Returns true if our own storage did not answer and all candidates are asked again
 * later. */
static bool next_again(struct repair *repair)
{
    if ((repair->next_refused & repair->own) == 0) {
        repair_own_told(repair);
        return false;
    }
    if (!repair_own_refused(repair))
        return false;
    repair->next_at_ns =
        env_now_ns(repair->file.env) + REPAIR_AGAIN_MS * UINT64_C(1000000);
    repair->look = WALK_NEXT;
    return true;
}

/* Returns true if it is too early to ask again. */
static bool next_waits(struct repair *repair)
{
    uint64_t now = env_now_ns(repair->file.env);

    if (now >= repair->next_at_ns)
        return false;
    if (!env_timer_is_running(&repair->timer))
        env_timer_start(repair->file.env, &repair->timer,
                        (uint32_t)((repair->next_at_ns - now + 999999) / 1000000));
    return true;
}

/* Returns the nearest head of any candidate, without heads hidden below the mark to the
 * end that was given to it. */
static uint64_t nearest_head(const struct repair *repair)
{
    uint64_t head = UINT64_MAX;

    for (unsigned i = 0; i < repair->file.c; i++) {
        bool hidden = (repair->tail_healed >> i & 1) != 0 &&
                      repair->next_block[i] >= repair->tail_from;

        if ((repair->next_told >> i & 1) != 0 && !hidden && repair->next_block[i] < head)
            head = repair->next_block[i];
    }
    return head;
}

static uint32_t next_silent(const struct repair *repair)
{
    return heal_file_all(&repair->file) & ~(repair->next_told | repair->none);
}

/* Evaluates the answers and selects the next step of the walk. */
static void next_end(struct repair *repair)
{
    repair->head = nearest_head(repair);
    repair->look = repair->tail_tried ? WALK_FLATS : WALK_TAIL;
    if (repair->marks_lost) {
        repair_problem(repair, "out of memory for the marks of the file");
        repair->result.rc = -ENOMEM;
    }
    if (repair->next_told == 0 &&
        (unsigned)__builtin_popcount(next_silent(repair) & ~repair->unsynced) >=
            repair->file.k) {
        repair_problem(repair, "no storage tells where the file has data");
        repair->result.rc = -EIO;
    }
    if (repair->marks_lost || repair->next_told == 0)
        repair->look = WALK_OVER;
}

/* ---- the mark to the end of everything ---- */

static const struct repair_mark *tail_of(const struct repair *repair, unsigned candidate)
{
    const struct repair_mark *best = NULL;

    for (unsigned i = 0; i < repair->n_marks; i++) {
        const struct repair_mark *m = &repair->marks[i];

        if (m->candidate == candidate && m->end == UINT64_MAX &&
            (best == NULL || m->version > best->version))
            best = m;
    }
    return best;
}

/* Returns the block from which on k storages have the mark of this version to the end;
 * UINT64_MAX: none. */
static uint64_t tail_start(const struct repair *repair, uint64_t version)
{
    uint64_t starts[DIST_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < repair->file.c; i++) {
        const struct repair_mark *m = tail_of(repair, i);
        unsigned at = n;

        if (m == NULL || m->version != version)
            continue;
        for (; at > 0 && starts[at - 1] > m->first; at--)
            starts[at] = starts[at - 1];
        starts[at] = m->first;
        n++;
    }
    return n < repair->file.k ? UINT64_MAX : starts[repair->file.k - 1];
}

/* Finds a home in scope that lacks a mark to the end which k others have, since it was
 * down during a truncate. One such mark hides all that was cut off there; without it that
 * takes one step per block. */
static bool tail_is_missed(struct repair *repair, uint64_t *from, uint64_t *version)
{
    for (unsigned i = 0; i < repair->file.c; i++) {
        const struct repair_mark *m = tail_of(repair, i);
        uint64_t start = m == NULL ? UINT64_MAX : tail_start(repair, m->version);

        if (start >= far_block)
            continue;
        for (unsigned p = 0; p < repair->file.n; p++) {
            unsigned home = repair->file.home[p];
            const struct repair_mark *has;

            if ((repair->scope >> p & 1) == 0 || (repair->next_told >> home & 1) == 0)
                continue;
            has = tail_of(repair, home);
            if (has != NULL && (has->version > m->version ||
                                (has->version == m->version && has->first <= start)))
                continue;
            *from =
                start > repair->request.first_block ? start : repair->request.first_block;
            *version = m->version;
            return true;
        }
    }
    return false;
}

/* Returns true if it waits for the piece that sends the mark. */
static bool tail_next(struct repair *repair)
{
    struct repair_piece *piece;
    uint64_t from, version;

    if (repair->tail_tried) {
        if (repair->n_pieces > 0)
            return true;
        repair->look = WALK_NEXT; /* asks again, since the mark changed the heads */
        return false;
    }
    repair->tail_tried = true;
    if (repair->end != UINT64_MAX || !tail_is_missed(repair, &from, &version)) {
        repair->look = WALK_FLATS;
        return false;
    }
    piece = piece_new(repair, far_block, 1);
    if (piece == NULL)
        return false;
    piece->flat = piece->tail = true;
    piece->tail_from = repair->tail_from = from;
    piece->tail_version = version;
    return true;
}

/* ---- stretches without heads ---- */

/* Returns whether the mark lies over the stretch that begins at the cursor. */
static bool is_over(const struct repair *repair, const struct repair_mark *m)
{
    return m->first <= repair->cursor && m->end > repair->cursor;
}

/* Returns the end of the stretch that begins at the cursor, `limit` at most. *covered:
 * some storage has a mark over it. */
static uint64_t stretch_end(const struct repair *repair, uint64_t limit, bool *covered)
{
    uint64_t end = limit;

    *covered = false;
    for (unsigned i = 0; i < repair->n_marks; i++) {
        const struct repair_mark *m = &repair->marks[i];

        if (is_over(repair, m))
            *covered = true;
        if (m->first > repair->cursor && m->first < end)
            end = m->first;
        if (m->end > repair->cursor && m->end < end)
            end = m->end;
    }
    return end;
}

/* Collects the marks that lie over the stretch. Without memory there are none, and the
 * stretch is walked again. */
static void stretch_told(const struct repair *repair, struct repair_piece *piece)
{
    uint64_t of[DIST_MAX] = { 0 }, newest = 0;
    unsigned n = 0;

    for (unsigned i = 0; i < repair->n_marks; i++)
        n += is_over(repair, &repair->marks[i]);
    piece->told = calloc(n + 1, sizeof(*piece->told));
    piece->uneven = piece->told == NULL;
    for (unsigned i = 0; piece->told != NULL && i < repair->n_marks; i++) {
        const struct repair_mark *m = &repair->marks[i];

        if (!is_over(repair, m))
            continue;
        piece->told[piece->n_told++] = m->version;
        if (m->version > of[m->candidate])
            of[m->candidate] = m->version;
        if (m->version > newest)
            newest = m->version;
    }
    for (unsigned p = 0; p < repair->file.n; p++) {
        unsigned home = repair->file.home[p];

        piece->uneven |= (repair->scope >> p & 1) != 0 && of[home] != newest;
    }
}

static void flat_next(struct repair *repair)
{
    uint64_t limit = repair->head < repair->end ? repair->head : repair->end, end;
    struct repair_piece *piece;
    bool covered;

    if (repair->cursor >= limit) {
        repair->look = repair->cursor >= repair->end ? WALK_OVER : WALK_EXTENTS;
        return;
    }
    end = stretch_end(repair, limit, &covered);
    /* candidates that did not tell where they have heads may have some here */
    if ((covered || next_silent(repair) != 0) && repair->cursor <= far_block) {
        piece = piece_new(repair, repair->cursor, 1);
        if (piece == NULL)
            return;
        piece->flat = true;
        piece->span = end == UINT64_MAX ? 0 : end - repair->cursor;
        piece->span_epoch = repair->next_epoch;
        stretch_told(repair, piece);
    }
    repair->cursor = end;
}

static void extent_next(struct repair *repair)
{
    uint64_t in_extent = EXTENT_BLOCKS - repair->cursor % EXTENT_BLOCKS;
    uint64_t left = repair->end - repair->cursor;
    unsigned n = (unsigned)(left < in_extent ? left : in_extent);

    if (repair->cursor >= repair->end || repair->cursor > far_block) {
        repair->look = WALK_OVER;
        return;
    }
    if (piece_new(repair, repair->cursor, n) != NULL)
        repair->cursor += n;
}

bool repair_walk(struct repair *repair)
{
    while (repair->look != WALK_OVER) {
        if (repair->look == WALK_ASKED && repair->n_asked > 0)
            return false;
        if (repair->look != WALK_ASKED && repair->look != WALK_NEXT && !has_room(repair))
            return false;
        switch (repair->look) {
        case WALK_NEXT:
            if (next_waits(repair))
                return false;
            next_start(repair);
            break;
        case WALK_ASKED:
            if (!next_again(repair))
                next_end(repair);
            break;
        case WALK_TAIL:
            if (tail_next(repair))
                return false;
            break;
        case WALK_FLATS:
            flat_next(repair);
            break;
        case WALK_EXTENTS:
            extent_next(repair);
            break;
        case WALK_OVER:
            break;
        }
    }
    return true;
}
