/*
 * repair_group.c - rebuilds blocks of a piece together, at the homes that lack them.
 *
 * In:     the plan of a piece; answers. Thread: that of the env.
 * Out:    ST_READ, ST_WRITE, ST_MARK, and ST_DROP where nothing was ever written.
 * Keeps:  records are coded only from bytes of exactly the decided version with a right
 *         crc; they are identical to those that the client wrote.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/record.h"
#include "common/wire/status.h"
#include "storaged/format/projfile.h"
#include "storaged/heal/repair/repair_piece.h"

enum { SMALL_MARK_BLOCKS = 256 }; /* storages write such marks as heads */

/* ---- the next group of blocks to be repaired ---- */

/* Returns the best answer that has projection p of block b as decided, our own storage
 * preferred; NULL: none. */
static const struct decide_answer *source_of(struct repair_piece *piece, unsigned b,
                                             unsigned p)
{
    const struct decision *d = &piece->plan.decided[b];
    const struct decide_answer *best = NULL;
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].projection != p || a[i].kind != DECIDE_DATA ||
            a[i].version != d->version || a[i].user_bytes != d->user_bytes)
            continue;
        if (best == NULL || a[i].level < best->level ||
            (a[i].level == best->level &&
             (piece->repair->own.bit >> a[i].candidate & 1) != 0))
            best = &a[i];
    }
    return best;
}

static void source_take(struct piece_group *g, const struct decide_answer *a)
{
    assert(a->kind == DECIDE_DATA && (g->sources >> a->projection & 1) == 0);
    g->sources |= 1u << a->projection;
    g->source[a->projection] = a->candidate;
    if (a->level > 0)
        g->at_most = a->version;
}

/* Rotates the first source by extent, so that all storages share the reads. */
static unsigned first_source(const struct repair_piece *piece, unsigned b)
{
    return (unsigned)((piece->first + b) / EXTENT_BLOCKS % piece->repair->file.n);
}

/* Selects the projections to read: those that are lacking, if copies of all of them
 * exist; otherwise any k, those at our own storage first. */
static bool group_sources(struct repair_piece *piece, struct piece_group *g)
{
    const struct heal_file *file = &piece->repair->file;
    unsigned turn = first_source(piece, g->at);

    assert(g->lack != 0 && g->sources == 0);
    for (unsigned p = 0; p < file->n; p++) {
        const struct decide_answer *a =
            (g->lack >> p & 1) != 0 ? source_of(piece, g->at, p) : NULL;

        if (a != NULL)
            source_take(g, a);
    }
    if (g->sources == g->lack)
        return true;
    g->sources = 0;
    g->at_most = 0;
    for (unsigned own = 2; own-- > 0;) {
        for (unsigned i = 0; i < file->n; i++) {
            unsigned p = (turn + i) % file->n;
            const struct decide_answer *a = source_of(piece, g->at, p);

            if ((unsigned)__builtin_popcount(g->sources) == file->k)
                return true;
            if (a != NULL && (g->sources >> p & 1) == 0 &&
                (piece->repair->own.bit >> a->candidate & 1) == own)
                source_take(g, a);
        }
    }
    return (unsigned)__builtin_popcount(g->sources) == file->k;
}

/* Returns whether both blocks have the same torn versions, since a drop of a never
 * written block names the torn version that was found. */
static bool same_torn(struct repair_piece *piece, const struct piece_group *g, unsigned b)
{
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((g->lack >> p & 1) != 0 &&
            piece_torn_version(piece, b, p) != piece_torn_version(piece, g->at, p))
            return false;
    }
    return true;
}

/* Returns whether block b can be repaired together with the first block of the group. */
static bool group_takes(struct repair_piece *piece, const struct piece_group *g,
                        unsigned b)
{
    const struct decision *first = &piece->plan.decided[g->at],
                          *d = &piece->plan.decided[b];

    if (d->what != DECIDE_FORWARD || piece->plan.skip[b] ||
        piece->plan.lack[b] != g->lack ||
        (d->user_bytes == 0) != (first->user_bytes == 0))
        return false;
    if (d->user_bytes == 0)
        return d->version == first->version &&
               (d->version != 0 || same_torn(piece, g, b));
    if (g->at_most != 0 && d->version != first->version)
        return false;
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        const struct decide_answer *a;

        if ((g->sources >> p & 1) == 0)
            continue;
        a = source_of(piece, b, p);
        if (a == NULL || a->candidate != g->source[p] ||
            (a->level > 0 && g->at_most == 0))
            return false;
    }
    return true;
}

/* Bytes of the heads and full bodies of the group. */
static size_t group_bytes(const struct repair_piece *piece, unsigned p)
{
    const struct heal_file *file = &piece->repair->file;

    return piece->group.n * (heal_head_bytes(file, p) + file->row_bytes);
}

static uint8_t *group_buf(const struct repair_piece *piece, unsigned p)
{
    assert(piece->group.n > 0);
    return bufpool_get(&piece->repair->repairer->pool, group_bytes(piece, p));
}

void piece_group_free(struct repair_piece *piece)
{
    struct bufpool *pool = &piece->repair->repairer->pool;
    struct piece_group *g = &piece->group;

    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        bufpool_put(pool, g->read[p], group_bytes(piece, p));
        bufpool_put(pool, g->made[p], group_bytes(piece, p));
    }
    *g = (struct piece_group){ .whole = g->whole };
}

bool piece_group_next(struct repair_piece *piece)
{
    struct piece_group *g = &piece->group;
    unsigned at = 0;

    assert(piece->n_asks == 0);
    piece_group_free(piece);
    while (at < piece->n && (piece->plan.lack[at] == 0 || piece->plan.skip[at]))
        at++;
    if (at == piece->n)
        return false;
    g->at = at;
    g->lack = piece->plan.lack[at];
    if (piece->plan.decided[at].user_bytes != 0 && !group_sources(piece, g)) {
        piece_skip(piece, at, 1); /* decided, but its sources are gone */
        piece_again(piece);
        return true;
    }
    while (at < piece->n && group_takes(piece, g, at)) {
        g->damaged |= (piece->plan.decided[at].damaged & g->lack) != 0;
        g->n++;
        at++;
    }
    return true;
}

void piece_group_again(struct repair_piece *piece)
{
    piece_again(piece);
    piece_skip(piece, piece->group.at, piece->group.n);
}

void piece_group_end(struct repair_piece *piece)
{
    assert(piece->n_asks == 0);
    for (unsigned b = piece->group.at; b < piece->group.at + piece->group.n; b++) {
        if (piece->plan.lack[b] != 0)
            piece_skip(piece, b, 1);
    }
}

/* ---- reading ---- */

static void group_judge(struct repair_piece *piece, unsigned p, unsigned candidate)
{
    const struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;
    size_t head_bytes = heal_head_bytes(file, p);
    bool right = true;

    assert((g->sources >> p & 1) != 0 && g->read[p] != NULL);
    for (unsigned i = 0; i < g->n; i++) {
        const struct decision *d = &piece->plan.decided[g->at + i];
        const uint8_t *head = g->read[p] + i * head_bytes;
        const uint8_t *body = g->read[p] + g->n * head_bytes + i * file->row_bytes;
        enum look look =
            record_judge(piece,
                         &(struct piece_bad){ .version = d->version,
                                              .block = (uint16_t)(g->at + i),
                                              .candidate = (uint8_t)candidate,
                                              .projection = (uint8_t)p },
                         d->user_bytes, head, body);

        right = right && look == LOOK_RIGHT;
        if (look == LOOK_WRONG)
            piece_again(piece);
    }
    if (right)
        g->answered |= 1u << p;
}

static int on_group_place(struct rpc_request *rq, size_t rest_len, struct iovec *iov)
{
    struct piece_ask *pa = container_of(rq, struct piece_ask, ask.rq);
    const struct repair_piece *piece = pa->piece;
    const struct piece_group *g = &piece->group;

    return heal_bodies_place(&piece->repair->file, piece->first + g->at, g->n,
                             pa->projection, g->read[pa->projection], rest_len, iov);
}

static void on_group_read(struct repair_ask *ask, int rc)
{
    const struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct repair_piece *piece = piece_answered(ask);
    struct piece_group *g = &piece->group;
    unsigned p = pa->projection;
    size_t heads_bytes = g->n * heal_head_bytes(&piece->repair->file, p);

    assert(piece->state == PIECE_READ);
    if (!repair_ask_is_ok(ask, rc)) {
        piece_refused(piece, ask, rc, "reading");
    } else if (ask->rq.answer_payload_len >= heads_bytes &&
               ask->rq.answer_payload_len - heads_bytes ==
                   heal_bodies(&piece->repair->file, piece->first + g->at, g->n, p,
                               g->read[p], NULL, NULL)) {
        piece->repair->result.read_bytes += ask->rq.answer_payload_len - heads_bytes;
        group_judge(piece, p, ask->candidate);
    }
    piece_step(piece);
}

static void read_send(struct repair_piece *piece, unsigned p)
{
    struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    struct piece_ask *pa = piece_ask_for(piece, p);

    assert(g->read[p] == NULL && g->source[p] < file->c);
    g->read[p] = group_buf(piece, p);
    if (g->read[p] == NULL)
        return;
    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->first + g->at;
    req.n_blocks = g->n;
    req.to_storage = file->target.storages[g->source[p]];
    req.at_most = g->at_most;
    pa->ask.recv_head = g->read[p];
    pa->ask.recv_head_len = g->n * heal_head_bytes(file, p);
    pa->ask.place = on_group_place;
    piece_send(piece, pa, g->source[p], ROZO__OP__ST_READ, &req.base, 0, on_group_read);
}

/* ---- bodies that came with the heads ---- */

static size_t ahead_bytes(const struct repair_piece *piece, unsigned p)
{
    const struct heal_file *file = &piece->repair->file;

    return piece->n * (heal_head_bytes(file, p) + file->row_bytes);
}

void piece_ahead_got(struct repair_piece *piece, uint32_t projections)
{
    piece->ahead.got = projections;
}

void piece_ahead_free(struct repair_piece *piece)
{
    for (unsigned p = 0; p < piece->repair->file.n; p++)
        bufpool_put(&piece->repair->repairer->pool, piece->ahead.read[p],
                    ahead_bytes(piece, p));
    piece->ahead = (struct piece_ahead){ 0 };
}

/* Returns whether bodies are requested with the heads: in a rebuild, if the piece before
 * was rebuilt as a whole. */
static bool is_ahead_wanted(const struct repair_piece *piece)
{
    const struct repair *repair = piece->repair;

    return repair->walk.reads_ahead && piece_is_of_extent(piece) &&
           piece->round.n_rounds == 0 && piece->round.n_fences == 0 &&
           (repair->request.flags & REPAIR_PARTIAL) != 0 &&
           (repair->request.flags & (REPAIR_FENCE | REPAIR_VERIFY_OWN)) == 0;
}

void piece_ahead_start(struct repair_piece *piece)
{
    const struct repair *repair = piece->repair;
    const struct heal_file *file = &repair->file;
    unsigned turn = first_source(piece, 0), n = 0;

    assert(piece->ahead.got == 0);
    for (unsigned i = 0; is_ahead_wanted(piece) && i < file->n && n < file->k; i++) {
        unsigned p = (turn + i) % file->n;

        if (file->home[p] != p || ((repair->scope | repair->own.bit) >> p & 1) != 0 ||
            !heal_file_is_up(file, p))
            continue;
        piece->ahead.read[p] =
            bufpool_get(&repair->repairer->pool, ahead_bytes(piece, p));
        n += piece->ahead.read[p] != NULL;
    }
    if (n < file->k)
        piece_ahead_free(piece);
}

/* Uses the bodies that came with the heads if they are the sources of the group. They are
 * checked like bodies read for it. */
static bool ahead_take(struct repair_piece *piece)
{
    struct piece_ahead *ahead = &piece->ahead;
    struct piece_group *g = &piece->group;

    if (!piece->group.whole || g->at_most != 0 || (g->sources & ~ahead->got) != 0)
        return false;
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((g->sources >> p & 1) != 0 && g->source[p] != p)
            return false;
    }
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((g->sources >> p & 1) == 0)
            continue;
        g->read[p] = ahead->read[p];
        ahead->read[p] = NULL;
        group_judge(piece, p, p);
    }
    return true;
}

void piece_group_read(struct repair_piece *piece)
{
    bool taken;

    assert(piece->state == PIECE_READ && piece->group.sources != 0);
    piece->group.whole = piece->group.at == 0 && piece->group.n == piece->n;
    taken = ahead_take(piece);
    piece_ahead_free(piece);
    if (taken)
        return;
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((piece->group.sources >> p & 1) != 0)
            read_send(piece, p);
    }
}

/* ---- coding and writing ---- */

static void block_make(struct repair_piece *piece, const struct codec_plan *plan,
                       unsigned i, size_t body_at)
{
    const struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;
    const struct decision *d = &piece->plan.decided[g->at + i];
    size_t row = codec_row_bytes(file->codec, d->user_bytes);
    const uint8_t *body[CODEC_N_MAX] = { 0 }, *overhang[CODEC_N_MAX] = { 0 };
    uint8_t *out_body[CODEC_N_MAX] = { 0 }, *out_overhang[CODEC_N_MAX] = { 0 };

    for (unsigned p = 0; p < file->n; p++) {
        size_t head_bytes = heal_head_bytes(file, p);

        if ((g->sources >> p & 1) != 0) {
            body[p] = g->read[p] + g->n * head_bytes + i * file->row_bytes;
            overhang[p] = g->read[p] + i * head_bytes + RECORD_HEADER_BYTES;
        }
        if ((g->lack >> p & 1) != 0) {
            out_body[p] = g->made[p] + g->n * head_bytes + body_at;
            out_overhang[p] = g->made[p] + i * head_bytes + RECORD_HEADER_BYTES;
        }
    }
    codec_repair(plan, body, overhang, row, out_body, out_overhang);
    for (unsigned p = 0; p < file->n; p++) {
        const struct record_header h = {
            .format = RECORD_FORMAT,
            .projection = (uint8_t)p,
            .user_bytes = d->user_bytes,
            .file_hash = file->file_hash,
            .version = d->version,
            .block = piece->first + g->at + i,
        };

        if ((g->lack >> p & 1) == 0)
            continue;
        record_header_put(out_overhang[p] - RECORD_HEADER_BYTES, &h);
        record_seal(out_overhang[p] - RECORD_HEADER_BYTES, out_overhang[p],
                    codec_overhang_bytes(file->codec, p), out_body[p], row);
    }
}

/* Builds the lacking records from those read. Returns 0 or -ENOMEM. */
static int group_make(struct repair_piece *piece)
{
    const struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;
    struct codec_plan plan;
    size_t body_at = 0;
    int rc = codec_plan(file->codec, g->sources, g->lack, &plan);

    assert(rc == 0);
    for (unsigned p = 0; p < file->n; p++) {
        if ((g->lack >> p & 1) == 0)
            continue;
        g->made[p] = group_buf(piece, p);
        if (g->made[p] == NULL)
            return -ENOMEM;
        /* Bodies are filled later. */
        memset(g->made[p], 0, g->n * heal_head_bytes(file, p));
    }
    for (unsigned i = 0; i < g->n; i++) {
        block_make(piece, &plan, i, body_at);
        body_at +=
            codec_row_bytes(file->codec, piece->plan.decided[g->at + i].user_bytes);
    }
    for (unsigned p = 0; p < file->n; p++) {
        if (g->made[p] != NULL)
            g->iov[p] = (struct iovec){
                .iov_base = g->made[p],
                .iov_len = g->n * heal_head_bytes(file, p) + body_at,
            };
    }
    return 0;
}

/* Records that the home of projection p has the group now; the batch makes that stable.
 * Drops in never written blocks need no sync: if a power failure undoes one, the same
 * damage is found again, and a file with an unreadable header cannot be synced. */
static void group_healed(struct repair_piece *piece, unsigned p, unsigned candidate,
                         bool pending, bool pressure)
{
    struct piece_group *g = &piece->group;

    assert(candidate == piece->repair->file.home[p]);
    piece->repair->result.healed += g->n;
    if (piece->plan.decided[g->at].version != 0)
        repair_note_unstable(piece->repair, candidate);
    if (pressure)
        repair_note_pressure(piece->repair);
    for (unsigned b = g->at; b < g->at + g->n; b++) {
        piece_plan_healed(piece, b, p, candidate, pending);
        piece_note_sound(piece, b, p, piece->plan.decided[b].version, candidate);
    }
}

static void on_group_written(struct repair_ask *ask, int rc)
{
    const struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct repair_piece *piece = piece_answered(ask);
    struct piece_group *g = &piece->group;
    unsigned p = pa->projection;
    Rozo__StWriteResp *resp = NULL;

    assert(piece->state == PIECE_WRITE || piece->state == PIECE_MARK);
    if (repair_ask_is_ok(ask, rc)) {
        size_t bytes =
            g->iov[p].iov_len - g->n * heal_head_bytes(&piece->repair->file, p);

        if (ask->rq.answer_msg_len > 0)
            resp = rozo__st_write_resp__unpack(NULL, ask->rq.answer_msg_len,
                                               ask->rq.answer_msg);
        piece->repair->result.written_bytes += bytes;
        repair_note_bytes(piece->repair, bytes);
        if (resp != NULL)
            repair_note_verifier(piece->repair, ask->candidate, resp->verifier);
        group_healed(piece, p, ask->candidate, resp != NULL && resp->pending,
                     resp != NULL && resp->pressure);
        rozo__st_write_resp__free_unpacked(resp, NULL);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__STALE_VERSION) {
        piece_again(piece);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__BUSY) {
        piece_busy(piece);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE) {
        findings_removed(&piece->repair->findings);
    } else {
        piece_refused(piece, ask, rc, "writing");
    }
    piece_step(piece);
}

static void write_send(struct repair_piece *piece, unsigned p)
{
    struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;

    assert(g->made[p] != NULL);
    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->first + g->at;
    req.n_records = g->n;
    req.to_storage = file->target.storages[file->home[p]];
    piece_send(piece, piece_ask_for(piece, p), file->home[p], ROZO__OP__ST_WRITE,
               &req.base, 1, on_group_written);
}

void piece_group_write(struct repair_piece *piece)
{
    assert(piece->state == PIECE_WRITE);
    if (group_make(piece) != 0) {
        repair_problem(piece->repair, "out of memory");
        return;
    }
    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((piece->group.lack >> p & 1) != 0)
            write_send(piece, p);
    }
}

/* ---- holes ---- */

static void on_group_marked(struct repair_ask *ask, int rc)
{
    const struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct repair_piece *piece = piece_answered(ask);
    Rozo__StMarkResp *resp = NULL;

    assert(piece->state == PIECE_MARK);
    if (repair_ask_is_ok(ask, rc)) {
        if (ask->rq.op == ROZO__OP__ST_MARK && ask->rq.answer_msg_len > 0)
            resp = rozo__st_mark_resp__unpack(NULL, ask->rq.answer_msg_len,
                                              ask->rq.answer_msg);
        if (resp != NULL)
            repair_note_verifier(piece->repair, ask->candidate, resp->verifier);
        group_healed(piece, pa->projection, ask->candidate, resp != NULL && resp->pending,
                     resp != NULL && resp->pressure);
        rozo__st_mark_resp__free_unpacked(resp, NULL);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__STALE_VERSION) {
        piece_again(piece);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__BUSY) {
        piece_busy(piece);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE &&
               ask->rq.op == ROZO__OP__ST_MARK) {
        findings_removed(&piece->repair->findings);
    } else {
        piece_refused(piece, ask, rc, "marking holes");
    }
    piece_step(piece);
}

static void mark_send(struct repair_piece *piece, unsigned p, uint64_t version)
{
    struct heal_file *file = &piece->repair->file;
    const struct piece_group *g = &piece->group;
    uint64_t n_blocks = piece_blocks(piece, g->n);
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;

    assert(version != 0);
    req.ref = &file->ref;
    req.projection = p;
    req.first_block =
        piece_is_of_tail(piece) ? piece->stretch.tail_from : piece->first + g->at;
    req.n_blocks = n_blocks;
    req.version = version;
    req.to_storage = file->target.storages[file->home[p]];
    /* A large mark must spare newer writes that happen meanwhile; with a damaged head
     * that would keep the damage. */
    req.keep_newer = (n_blocks == 0 || n_blocks > SMALL_MARK_BLOCKS) && !g->damaged;
    piece_send(piece, piece_ask_for(piece, p), file->home[p], ROZO__OP__ST_MARK,
               &req.base, 0, on_group_marked);
}

/* Drops a damaged head in a block that was never written, which makes it "never written"
 * again. */
static void unwrite_send(struct repair_piece *piece, unsigned p)
{
    uint64_t torn = piece_torn_version(piece, piece->group.at, p);

    assert(piece_is_of_extent(piece));
    piece_drop_send(piece, piece_ask_for(piece, p), piece->group.at, piece->group.n,
                    piece->repair->file.home[p], torn != 0 ? torn : PROJFILE_NO_VERSION,
                    0, 1u << p, on_group_marked);
}

/* Writes records of holes. A mark may leave a damaged record in place, since that may be
 * newer; a record of a hole replaces it. */
static void group_write_holes(struct repair_piece *piece)
{
    const struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;

    for (unsigned p = 0; p < file->n; p++) {
        size_t head_bytes = heal_head_bytes(file, p);

        if ((g->lack >> p & 1) == 0)
            continue;
        g->made[p] = group_buf(piece, p);
        if (g->made[p] != NULL)
            memset(g->made[p], 0, g->n * head_bytes);
        for (unsigned i = 0; g->made[p] != NULL && i < g->n; i++) {
            const struct record_header h = {
                .format = RECORD_FORMAT,
                .projection = (uint8_t)p,
                .flags = RECORD_HOLE,
                .file_hash = file->file_hash,
                .version = piece->plan.decided[g->at + i].version,
                .block = piece->first + g->at + i,
            };

            record_header_put(g->made[p] + i * head_bytes, &h);
            record_seal(g->made[p] + i * head_bytes, NULL, 0, NULL, 0);
        }
        g->iov[p] =
            (struct iovec){ .iov_base = g->made[p], .iov_len = g->n * head_bytes };
        if (g->made[p] != NULL)
            write_send(piece, p);
    }
}

static void group_mark_holes(struct repair_piece *piece)
{
    uint64_t version = piece->plan.decided[piece->group.at].version;

    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((piece->group.lack >> p & 1) == 0)
            continue;
        if (version == 0)
            unwrite_send(piece, p);
        else
            mark_send(piece, p, version);
    }
}

void piece_group_mark(struct repair_piece *piece)
{
    const struct piece_group *g = &piece->group;

    assert(piece->state == PIECE_MARK && g->n > 0);
    if (g->damaged && piece_is_of_extent(piece) &&
        piece->plan.decided[g->at].version != 0)
        group_write_holes(piece);
    else
        group_mark_holes(piece);
}
