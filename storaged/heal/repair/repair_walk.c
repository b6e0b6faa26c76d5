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

#include "common/base/units.h"
#include "common/wire/record.h"
#include "storaged/heal/repair/repair_piece.h"

enum {
    AHEAD_MIN = 4,
    /* Divisor of the memory, and so of the work under way, while clients are active. */
    CLIENTS_SHARE = 8,
    AGAINS_MAX = 20,
    /* Ranges up to this size are walked without asking for heads. */
    SMALL_BLOCKS = 8 * EXTENT_BLOCKS,
    MARKS_MAX = 65536, /* large marks of a file that are kept in memory */
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
    struct repair_walk *w = &repair->walk;
    const struct repairer *repairer = repair->repairer;
    unsigned ahead = AHEAD_MIN + w->n_dense;

    if (w->n_pieces >= repairer->config.extents_max || w->n_pieces >= ahead)
        return false;
    w->wants_memory =
        repairer->memory_used != 0 &&
        repairer->memory_used + repair_piece_memory(repair) > memory_max(repairer);
    return !w->wants_memory;
}

static struct repair_piece *piece_new(struct repair *repair, enum piece_kind kind,
                                      uint64_t first, unsigned n)
{
    struct repair_walk *w = &repair->walk;
    struct repair_piece *piece;

    assert(w->n_pieces < repair->repairer->config.extents_max);
    piece = repair_piece_new(repair, kind, first, n);
    if (piece == NULL) {
        repair_problem(repair, "out of memory");
        repair->result.rc = -ENOMEM;
        w->step = WALK_OVER;
        return NULL;
    }
    list_add_tail(&w->pieces, &piece->link);
    w->n_pieces++;
    return piece;
}

static void piece_free(struct repair *repair, struct repair_piece *piece)
{
    assert(piece->repair == repair && repair->walk.n_pieces > 0);
    free(piece->stretch.answered);
    list_remove(&piece->link);
    repair->walk.n_pieces--;
    repair_piece_free(piece);
}

void repair_wake_waiting(struct repairer *repairer)
{
    LIST_FOREACH(node, &repairer->repairs) {
        struct repair *repair = container_of(node, struct repair, link);

        if (repair->walk.wants_memory)
            repair_step_soon(repair);
    }
}

void walk_narrow(struct repair_piece *piece)
{
    assert(piece->kind == PIECE_OF_STRETCH && piece->stretch.span != 1);
    piece->stretch.span = 1;
    if (piece->stretch.uneven)
        repair_again(piece->repair, piece->first + 1);
}

void repair_piece_ended(struct repair_piece *piece)
{
    const struct piece_plan *plan = &piece->plan;
    struct repair *repair = piece->repair;
    struct repair_walk *w = &repair->walk;
    bool sparse = !plan->has_data && piece_is_of_extent(piece);

    assert(piece->state == PIECE_END && piece->n_asks == 0);
    w->reads_ahead = piece->group.whole;
    w->n_dense = !plan->has_data ? 0 : w->n_dense + 1;
    if (piece_is_of_tail(piece))
        w->tail.healed = plan->holders[0] & ~plan->decided[0].holders;
    if (sparse && !w->small && w->step == WALK_EXTENTS)
        w->step = WALK_NEXT;
    piece_free(repair, piece);
    repair_wake_waiting(repair->repairer);
    repair_step_soon(repair);
}

/* ---- where is something? ---- */

static void take_mark(struct walk_marks *marks, unsigned candidate,
                      const Rozo__StCommitReq__Range *r)
{
    assert(candidate < DIST_MAX && marks->n <= MARKS_MAX);
    if (marks->n == MARKS_MAX) {
        marks->lost = true;
        return;
    }
    if ((marks->n & (marks->n - 1)) == 0) { /* a power of two: the array is full */
        size_t room = marks->n == 0 ? 1 : 2 * (size_t)marks->n;
        struct walk_mark *list = realloc(marks->list, room * sizeof(*list));

        if (list == NULL) {
            marks->lost = true;
            return;
        }
        marks->list = list;
    }
    marks->list[marks->n++] = (struct walk_mark){
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
    assert(candidate < repair->file.c);
    if ((repair->request.flags & REPAIR_PARTIAL) != 0 || !repair_is_of_all(repair))
        return;
    for (unsigned p = 0; p < repair->file.n; p++) {
        if ((repair->scope & partial & 1u << p) != 0 && repair->file.home[p] == candidate)
            findings_unknown(&repair->findings, 1u << p);
    }
}

static void take_next(struct repair *repair, const struct repair_ask *ask)
{
    struct repair_walk *w = &repair->walk;
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    if (resp != NULL && resp->block >= w->cursor) {
        w->next.answered |= 1u << ask->candidate;
        w->next.block[ask->candidate] = resp->block;
        findings_has_file(&repair->findings);
        take_partial(repair, ask->candidate, resp->partial);
        for (size_t i = 0; i < resp->n_marks; i++)
            take_mark(&w->marks, ask->candidate, resp->marks[i]);
    }
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void take_damage(struct repair *repair, const struct repair_ask *ask)
{
    Rozo__StNextResp *resp =
        rozo__st_next_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

    findings_unreadable(&repair->findings, ask->candidate,
                        resp != NULL && resp->unsynced);
    rozo__st_next_resp__free_unpacked(resp, NULL);
}

static void next_refused(struct repair *repair, unsigned candidate)
{
    repair->file.unanswered |= 1u << candidate;
    repair->walk.next.refused |= 1u << candidate;
}

static void on_next(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, walk.next.asks[0]);

    assert(repair->walk.step == WALK_ASKED && repair->walk.next.n_asks > 0);
    repair->walk.next.n_asks--;
    if (repair_ask_is_ok(ask, rc))
        take_next(repair, ask);
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE)
        findings_no_file(&repair->findings, ask->candidate);
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__DAMAGED)
        take_damage(repair, ask);
    else
        next_refused(repair, ask->candidate);
    if (repair->walk.next.n_asks == 0)
        repair_step_soon(repair);
}

static void next_start(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;
    struct heal_file *file = &repair->file;
    struct walk_next *next = &w->next;
    struct fence_view fence = fence_view(&repair->fence);

    assert(w->step == WALK_NEXT && next->n_asks == 0);
    w->step = WALK_ASKED;
    w->marks.n = 0;
    findings_ask(&repair->findings);
    next->answered = next->refused = 0;
    next->epoch = fence.up ? fence.epoch : 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;

        req.ref = &file->ref;
        req.from_block = w->cursor;
        req.to_storage = file->target.storages[i];
        req.heads = true;
        if (repair_ask_send(&next->asks[i], file, i, ROZO__OP__ST_NEXT, &req.base, NULL,
                            0, on_next) == 0)
            next->n_asks++;
        else
            next_refused(repair, i);
    }
}

/* Returns true if our own storage did not answer and all candidates are asked again
 * later. */
static bool next_again(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;

    if ((w->next.refused & repair->own.bit) == 0) {
        repair_own_told(repair);
        return false;
    }
    if (!repair_own_refused(repair))
        return false;
    w->next.at_ns = env_now_ns(repair->file.env) + ms_to_ns(REPAIR_AGAIN_MS);
    w->step = WALK_NEXT;
    return true;
}

/* Returns true if it is too early to ask again. */
static bool next_waits(struct repair *repair)
{
    uint64_t now = env_now_ns(repair->file.env);

    if (now >= repair->walk.next.at_ns)
        return false;
    if (!env_timer_is_running(&repair->timer))
        env_timer_start(repair->file.env, &repair->timer,
                        (uint32_t)ns_to_ms_up(repair->walk.next.at_ns - now));
    return true;
}

/* Returns the nearest head of any candidate, without heads hidden below the mark to the
 * end that was given to it. */
static uint64_t nearest_head(const struct repair *repair)
{
    const struct repair_walk *w = &repair->walk;
    uint64_t head = UINT64_MAX;

    for (unsigned i = 0; i < repair->file.c; i++) {
        bool hidden = (w->tail.healed >> i & 1) != 0 && w->next.block[i] >= w->tail.from;

        if ((w->next.answered >> i & 1) != 0 && !hidden && w->next.block[i] < head)
            head = w->next.block[i];
    }
    return head;
}

static uint32_t next_unanswered(const struct repair *repair)
{
    return heal_file_all(&repair->file) &
           ~(repair->walk.next.answered | repair->findings.none);
}

/* Evaluates the answers and selects the next step of the walk. */
static void next_end(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;

    assert(w->step == WALK_ASKED && w->next.n_asks == 0);
    w->head = nearest_head(repair);
    w->step = w->tail.tried ? WALK_FLATS : WALK_TAIL;
    if (w->marks.lost) {
        repair_problem(repair, "out of memory for the marks of the file");
        repair->result.rc = -ENOMEM;
    }
    if (w->next.answered == 0 &&
        (unsigned)__builtin_popcount(next_unanswered(repair) &
                                     ~repair->findings.unsynced) >= repair->file.k) {
        repair_problem(repair, "no storage tells where the file has data");
        repair->result.rc = -EIO;
    }
    if (w->marks.lost || w->next.answered == 0)
        w->step = WALK_OVER;
}

/* ---- the mark to the end of everything ---- */

static const struct walk_mark *tail_of(const struct repair *repair, unsigned candidate)
{
    const struct walk_mark *best = NULL;

    for (unsigned i = 0; i < repair->walk.marks.n; i++) {
        const struct walk_mark *m = &repair->walk.marks.list[i];

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
        const struct walk_mark *m = tail_of(repair, i);
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
        const struct walk_mark *m = tail_of(repair, i);
        uint64_t start = m == NULL ? UINT64_MAX : tail_start(repair, m->version);

        if (start >= far_block)
            continue;
        for (unsigned p = 0; p < repair->file.n; p++) {
            unsigned home = repair->file.home[p];
            const struct walk_mark *has;

            if ((repair->scope >> p & 1) == 0 ||
                (repair->walk.next.answered >> home & 1) == 0)
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
    struct repair_walk *w = &repair->walk;
    struct repair_piece *piece;
    uint64_t from, version;

    assert(w->step == WALK_TAIL);
    if (w->tail.tried) {
        if (w->n_pieces > 0)
            return true;
        w->step = WALK_NEXT; /* asks again, since the mark changed the heads */
        return false;
    }
    w->tail.tried = true;
    if (w->end != UINT64_MAX || !tail_is_missed(repair, &from, &version)) {
        w->step = WALK_FLATS;
        return false;
    }
    piece = piece_new(repair, PIECE_OF_TAIL, far_block, 1);
    if (piece == NULL)
        return false;
    piece->stretch.tail_from = w->tail.from = from;
    piece->stretch.tail_version = version;
    return true;
}

/* ---- stretches without heads ---- */

/* Returns whether the mark lies over the stretch that begins at the cursor. */
static bool is_over(const struct repair *repair, const struct walk_mark *m)
{
    return m->first <= repair->walk.cursor && m->end > repair->walk.cursor;
}

/* Returns the end of the stretch that begins at the cursor, `limit` at most. *covered:
 * some storage has a mark over it. */
static uint64_t stretch_end(const struct repair *repair, uint64_t limit, bool *covered)
{
    const struct repair_walk *w = &repair->walk;
    uint64_t end = limit;

    *covered = false;
    for (unsigned i = 0; i < w->marks.n; i++) {
        const struct walk_mark *m = &w->marks.list[i];

        if (is_over(repair, m))
            *covered = true;
        if (m->first > w->cursor && m->first < end)
            end = m->first;
        if (m->end > w->cursor && m->end < end)
            end = m->end;
    }
    return end;
}

/* Collects the marks that lie over the stretch. Without memory there are none, and the
 * stretch is walked again. */
static void stretch_told(const struct repair *repair, struct repair_piece *piece)
{
    const struct repair_walk *w = &repair->walk;
    uint64_t of[DIST_MAX] = { 0 }, newest = 0;
    unsigned n = 0;

    assert(piece->kind == PIECE_OF_STRETCH && piece->stretch.answered == NULL);
    for (unsigned i = 0; i < w->marks.n; i++)
        n += is_over(repair, &w->marks.list[i]);
    piece->stretch.answered = calloc(n + 1, sizeof(*piece->stretch.answered));
    piece->stretch.uneven = piece->stretch.answered == NULL;
    for (unsigned i = 0; piece->stretch.answered != NULL && i < w->marks.n; i++) {
        const struct walk_mark *m = &w->marks.list[i];

        if (!is_over(repair, m))
            continue;
        piece->stretch.answered[piece->stretch.n_answered++] = m->version;
        if (m->version > of[m->candidate])
            of[m->candidate] = m->version;
        if (m->version > newest)
            newest = m->version;
    }
    for (unsigned p = 0; p < repair->file.n; p++) {
        unsigned home = repair->file.home[p];

        piece->stretch.uneven |= (repair->scope >> p & 1) != 0 && of[home] != newest;
    }
}

static void flat_next(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;
    uint64_t limit = w->head < w->end ? w->head : w->end, end;
    struct repair_piece *piece;
    bool covered;

    assert(w->step == WALK_FLATS);
    if (w->cursor >= limit) {
        w->step = w->cursor >= w->end ? WALK_OVER : WALK_EXTENTS;
        return;
    }
    end = stretch_end(repair, limit, &covered);
    /* candidates that did not tell where they have heads may have some here */
    if ((covered || next_unanswered(repair) != 0) && w->cursor <= far_block) {
        piece = piece_new(repair, PIECE_OF_STRETCH, w->cursor, 1);
        if (piece == NULL)
            return;
        piece->stretch.span = end == UINT64_MAX ? 0 : end - w->cursor;
        piece->stretch.epoch = w->next.epoch;
        stretch_told(repair, piece);
    }
    w->cursor = end;
}

static void extent_next(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;
    uint64_t in_extent = EXTENT_BLOCKS - w->cursor % EXTENT_BLOCKS;
    uint64_t left = w->end - w->cursor;
    unsigned n = (unsigned)(left < in_extent ? left : in_extent);

    if (w->cursor >= w->end || w->cursor > far_block) {
        w->step = WALK_OVER;
        return;
    }
    assert(n >= 1 && n <= EXTENT_BLOCKS);
    if (piece_new(repair, PIECE_OF_EXTENT, w->cursor, n) != NULL)
        w->cursor += n;
}

bool repair_walk(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;

    while (w->step != WALK_OVER) {
        if (w->step == WALK_ASKED && w->next.n_asks > 0)
            return false;
        if (w->step != WALK_ASKED && w->step != WALK_NEXT && !has_room(repair))
            return false;
        switch (w->step) {
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

void repair_walk_init(struct repair_walk *w, const struct repair_request *request)
{
    assert(request->first_block + request->n_blocks >= request->first_block);
    w->cursor = request->first_block;
    w->end =
        request->n_blocks == 0 ? UINT64_MAX : request->first_block + request->n_blocks;
    w->again_from = UINT64_MAX;
    w->small = request->n_blocks != 0 && request->n_blocks <= SMALL_BLOCKS;
    w->step = w->small ? WALK_EXTENTS : WALK_NEXT;
    list_init(&w->pieces);
}

void repair_again(struct repair *repair, uint64_t from)
{
    repair_note_pressure(repair);
    if (from < repair->walk.again_from)
        repair->walk.again_from = from;
}

bool repair_walk_again(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;

    assert(w->step == WALK_OVER && w->n_pieces == 0);
    if (w->again_from == UINT64_MAX)
        return false;
    if (w->n_agains++ == AGAINS_MAX) {
        repair_problem(repair, "storages stay busy");
        repair->result.rc = -EIO;
        return false;
    }
    if (w->cursor > w->counted_to)
        w->counted_to = w->cursor;
    if (w->again_from < w->cursor)
        w->cursor = w->again_from;
    w->again_from = UINT64_MAX;
    w->step = w->small ? WALK_EXTENTS : WALK_NEXT;
    w->tail.tried = false;
    return true;
}

void repair_walk_cancel(struct repair *repair)
{
    struct repair_walk *w = &repair->walk;

    while (!list_is_empty(&w->pieces))
        piece_free(repair, container_of(w->pieces.next, struct repair_piece, link));
    assert(w->n_pieces == 0);
    for (unsigned i = 0; i < DIST_MAX; i++)
        repair_ask_cancel(&w->next.asks[i]);
    free(w->marks.list);
}
