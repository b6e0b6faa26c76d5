/*
 * repair_look.c - checks records as they come, and reads our own records whole.
 *
 * In:     answers to ST_READ; pieces that verify records. Thread: that of the env.
 * Out:    ST_READ to our own storage, rarely to other homes; notes of wrong records,
 *         which count as damaged from then on.
 * Keeps:  I4 and I8, a record counts only with the right place, version and crc.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/wire/record.h"
#include "common/wire/status.h"
#include "storaged/heal/repair/repair_piece.h"

enum { SECTOR_BYTES = 512 };

/* Takes the answer to a read of n records from block `at` of the piece: heads to `heads`,
 * bodies at full strides to `bodies`. Returns 0 or -EBADMSG. */
static int records_take(const struct repair_piece *piece, unsigned at, unsigned n,
                        unsigned p, const struct repair_ask *ask, uint8_t *heads,
                        uint8_t *bodies)
{
    const struct heal_file *file = &piece->repair->file;
    size_t head_bytes = heal_head_bytes(file, p), from = n * head_bytes;
    const uint8_t *payload = ask->rq.answer_payload;
    size_t len = ask->rq.answer_payload_len;

    assert(at + n <= piece->n && p < file->n);
    if (len < from)
        return -EBADMSG;
    memcpy(heads, payload, from);
    for (unsigned i = 0; i < n; i++) {
        size_t row = heal_row(file, piece->first + at + i, p, heads + i * head_bytes);

        if (len - from < row)
            return -EBADMSG;
        memcpy(bodies + i * file->row_bytes, payload + from, row);
        from += row;
    }
    return from == len ? 0 : -EBADMSG;
}

/* Returns whether a wrong record misses a sector, at a storage whose power failed before
 * the record was synced. Any other fault is rot. */
static bool is_torn(const struct repair_piece *piece, const struct piece_bad *which,
                    const uint8_t *head, const uint8_t *body)
{
    const struct heal_file *file = &piece->repair->file;
    unsigned p = which->projection;
    size_t overhang = heal_head_bytes(file, p) - RECORD_HEADER_BYTES, row;
    struct record_header h;

    if ((piece->heads.may_be_torn >> which->candidate & 1) == 0)
        return false;
    /* The head itself says so, and no body follows. */
    if ((head[6] & RECORD_DAMAGED) != 0)
        return (head[6] & RECORD_TORN) != 0;
    if (record_inspect(head, file->file_hash, piece->first + which->block, p,
                       file->target.block_bytes, &h) != RECORD_IS_DATA ||
        h.version != which->version)
        return false;
    row = codec_row_bytes(file->codec, h.user_bytes);
    if (overhang > 0 && bytes_are_zero(head + RECORD_HEADER_BYTES, overhang))
        return true;
    for (size_t at = 0; at < row; at += SECTOR_BYTES) {
        if (bytes_are_zero(body + at, row - at < SECTOR_BYTES ? row - at : SECTOR_BYTES))
            return true;
    }
    return false;
}

static enum look look_at(const struct repair_piece *piece, const struct piece_bad *which,
                         uint16_t user_bytes, const uint8_t *head, const uint8_t *body)
{
    const struct heal_file *file = &piece->repair->file;
    unsigned p = which->projection;
    struct record_header h;

    if ((head[6] & RECORD_DAMAGED) != 0)
        return LOOK_WRONG;
    switch (record_inspect(head, file->file_hash, piece->first + which->block, p,
                           file->target.block_bytes, &h)) {
    case RECORD_IS_DAMAGED:
        return LOOK_WRONG;
    case RECORD_IS_HOLE:
        return LOOK_OTHER;
    case RECORD_IS_DATA:
        break;
    }
    if (h.version != which->version)
        return LOOK_OTHER;
    if (h.user_bytes != user_bytes ||
        record_crc(head, head + RECORD_HEADER_BYTES,
                   heal_head_bytes(file, p) - RECORD_HEADER_BYTES, body,
                   codec_row_bytes(file->codec, h.user_bytes)) != get_le32(head))
        return LOOK_WRONG;
    return LOOK_RIGHT;
}

static void bad_add(struct repair_piece *piece, const struct piece_bad *which,
                    const uint8_t *head, const uint8_t *body)
{
    struct piece_look *look = &piece->look;
    struct piece_bad *bad = &look->bad[look->n_bad];

    if (look->n_bad == REPAIR_BAD_MAX)
        return;
    *bad = *which;
    bad->torn = is_torn(piece, which, head, body);
    look->n_bad++;
}

enum look record_judge(struct repair_piece *piece, const struct piece_bad *which,
                       uint16_t user_bytes, const uint8_t *head, const uint8_t *body)
{
    enum look look;

    assert(which->block < piece->n && which->projection < piece->repair->file.n);
    look = look_at(piece, which, user_bytes, head, body);
    if (look == LOOK_WRONG)
        bad_add(piece, which, head, body);
    if (look == LOOK_RIGHT)
        piece_note_sound(piece, which->block, which->projection, which->version,
                         which->candidate);
    return look;
}

void piece_note_sound(struct repair_piece *piece, unsigned b, unsigned p,
                      uint64_t version, unsigned candidate)
{
    struct piece_look *look = &piece->look;
    const struct repair *repair = piece->repair;

    assert(b < piece->n && p < repair->file.n);
    if (repair->file.home[p] != candidate ||
        (repair->batch.verified >> candidate & 1) == 0 ||
        version < look->sound_version[b])
        return;
    if (version > look->sound_version[b])
        look->sound[b] = 0;
    look->sound_version[b] = version;
    look->sound[b] |= 1u << p;
}

uint32_t piece_sound(const struct repair_piece *piece, unsigned b)
{
    assert(b < piece->n);
    return piece->look.sound_version[b] == piece->plan.decided[b].version
               ? piece->look.sound[b]
               : 0;
}

/* ---- verifying our own ---- */

/* Returns the newest record of these candidates for projection p of block b; NULL: no
 * data. */
static const struct decide_answer *data_of(struct repair_piece *piece, unsigned b,
                                           unsigned p, uint32_t candidates)
{
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].level == 0 && a[i].projection == p && a[i].kind == DECIDE_DATA &&
            (candidates >> a[i].candidate & 1) != 0)
            return &a[i];
    }
    return NULL;
}

static const struct decide_answer *own_data(struct repair_piece *piece, unsigned b,
                                            unsigned p)
{
    return data_of(piece, b, p, piece->repair->own.bit);
}

static const struct decide_answer *home_data(struct repair_piece *piece, unsigned b,
                                             unsigned p)
{
    unsigned home = piece->repair->file.home[p];

    return home < piece->repair->file.c ? data_of(piece, b, p, 1u << home) : NULL;
}

/* Returns whether a spare has a copy, which it can drop, of a record whose home we
 * are. */
static bool is_at_spare(struct repair_piece *piece, unsigned b,
                        const struct decide_answer *own)
{
    uint8_t home = piece->repair->file.home[own->projection];
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n && own->candidate == home; i++) {
        if (a[i].projection == own->projection &&
            spares_is_copy(piece, &a[i], own->version))
            return true;
    }
    return false;
}

/* Returns whether our newest record of a block that we are noted to have missed may lack
 * parts that a power failure took. */
static bool may_be_missed(struct repair_piece *piece, unsigned b,
                          const struct decide_answer *own)
{
    const struct repair_request *r = &piece->repair->request;
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    if (!piece_is_of_extent(piece) || piece->first + b < r->passed_first ||
        piece->first + b >= r->passed_end ||
        (piece->heads.may_be_torn >> own->candidate & 1) == 0 ||
        piece->repair->file.home[own->projection] != own->candidate)
        return false;
    for (unsigned i = 0; i < n; i++) {
        if (a[i].level == 0 && a[i].version > own->version)
            return false;
    }
    return true;
}

/* Returns whether our record of projection p of block b must be read whole. */
static bool is_wanted(struct repair_piece *piece, unsigned b, unsigned p)
{
    uint32_t flags = piece->repair->request.flags;
    const struct decide_answer *own = own_data(piece, b, p);

    return own != NULL &&
           ((flags & REPAIR_VERIFY_OWN) != 0 || may_be_missed(piece, b, own) ||
            ((flags & REPAIR_CLEAN_SPARES) != 0 && is_at_spare(piece, b, own)));
}

/* Returns our record of the projection of block b whose home we are; NULL: none. */
static const struct decide_answer *own_home_data(struct repair_piece *piece, unsigned b)
{
    const struct heal_file *file = &piece->repair->file;

    for (unsigned p = 0; p < file->n; p++) {
        if (file->home[p] < file->c && (piece->repair->own.bit >> file->home[p] & 1) != 0)
            return own_data(piece, b, p);
    }
    return NULL;
}

/* Returns whether the record of projection p of block b must be read whole at its home,
 * another storage: none in a circle of homes can read all that its drops rest on. */
static bool is_wanted_at_home(struct repair_piece *piece, unsigned b, unsigned p)
{
    const struct decide_answer *own = own_home_data(piece, b);
    const struct decide_answer *other;

    if ((piece->repair->request.flags & REPAIR_CLEAN_SPARES) == 0 || own == NULL ||
        own->projection == p ||
        (spares_circle(piece, b, own->projection, own->version) >> p & 1) == 0)
        return false;
    other = home_data(piece, b, p);
    return other != NULL && other->version == own->version;
}

static bool wants_any(const struct repair_request *r)
{
    return (r->flags & (REPAIR_VERIFY_OWN | REPAIR_CLEAN_SPARES)) != 0 ||
           r->passed_end != 0;
}

/* Fails the repair, since records that could not be read must not count as good; the
 * caller tries again. */
static void unverified(struct repair_piece *piece, const char *why)
{
    repair_problem(piece->repair, "cannot verify our own records: %s", why);
    piece->repair->result.rc = -EIO;
}

static void verify_check(struct repair_piece *piece, const struct repair_ask *ask)
{
    struct piece_look *look = &piece->look;
    const struct heal_file *file = &piece->repair->file;
    unsigned at = look->at, n = look->n, p = look->projection;
    size_t head_bytes = heal_head_bytes(file, p);
    uint8_t *buf = malloc(n * (head_bytes + file->row_bytes));

    assert(n > 0 && at + n <= piece->n);
    if (buf == NULL ||
        records_take(piece, at, n, p, ask, buf, buf + n * head_bytes) != 0) {
        free(buf);
        if (!look->at_homes)
            unverified(piece, "the answer does not fit the request");
        return;
    }
    piece->repair->result.read_bytes += ask->rq.answer_payload_len - n * head_bytes;
    for (unsigned i = 0; i < n; i++) {
        const struct decide_answer *a = data_of(piece, at + i, p, 1u << ask->candidate);
        const uint8_t *head = buf + i * head_bytes;
        const uint8_t *body = buf + n * head_bytes + i * file->row_bytes;

        if (a != NULL)
            record_judge(piece,
                         &(struct piece_bad){ .version = a->version,
                                              .block = (uint16_t)(at + i),
                                              .candidate = ask->candidate,
                                              .projection = (uint8_t)p },
                         a->user_bytes, head, body);
    }
    free(buf);
}

static void on_own_refused(struct repair_piece *piece, const char *why)
{
    struct piece_look *look = &piece->look;

    if (repair_own_refused(piece->repair)) {
        look->next = look->projection * piece->n + look->at;
        piece_wait(piece, REPAIR_AGAIN_MS);
    } else {
        unverified(piece, why);
    }
}

/* Takes an answer. Another home's records that it does not answer are not seen whole, so
 * copies stay. */
static void on_verified(struct repair_ask *ask, int rc)
{
    struct repair_piece *piece = piece_answered(ask);
    bool is_own = !piece->look.at_homes;

    assert(piece->n_asks == 0);
    if (repair_ask_is_ok(ask, rc)) {
        if (is_own)
            repair_own_told(piece->repair);
        verify_check(piece, ask);
    } else if (is_own && rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE) {
        repair_own_told(piece->repair); /* the file was removed meanwhile */
    } else if (is_own) {
        on_own_refused(piece, rc != 0 ? "no answer" : status_name(ask->rq.status));
    }
    piece_step(piece);
}

void piece_verify_send(struct repair_piece *piece)
{
    const struct piece_look *look = &piece->look;
    struct heal_file *file = &piece->repair->file;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    unsigned from = look->at_homes ? file->home[look->projection]
                                   : (unsigned)__builtin_ctz(piece->repair->own.bit);

    assert(look->n > 0 && look->at + look->n <= piece->n);
    req.ref = &file->ref;
    req.projection = look->projection;
    req.first_block = piece->first + look->at;
    req.n_blocks = look->n;
    req.to_storage = file->target.storages[from];
    if (!piece_send(piece, piece_ask_for(piece, look->projection), from,
                    ROZO__OP__ST_READ, &req.base, 0, on_verified) &&
        !look->at_homes)
        unverified(piece, "our own storage is down");
}

/* Selects the next run of records, of our own storage or of other homes. Returns false
 * when all were read. */
static bool verify_select(struct repair_piece *piece,
                          bool (*wants)(struct repair_piece *piece, unsigned b,
                                        unsigned p))
{
    struct piece_look *look = &piece->look;

    while (look->next < piece->repair->file.n * piece->n) {
        unsigned p = look->next / piece->n, at = look->next % piece->n;
        unsigned to = at;

        while (to < piece->n && wants(piece, to, p))
            to++;
        look->next += to > at ? to - at : 1;
        if (to == at)
            continue;
        look->at = at;
        look->n = to - at;
        look->projection = p;
        return true;
    }
    return false;
}

bool piece_verify_next(struct repair_piece *piece)
{
    struct piece_look *look = &piece->look;
    bool wants = piece->repair->own.bit != 0 && wants_any(&piece->repair->request);

    assert(!look->verified);
    if (wants && !look->at_homes) {
        if (verify_select(piece, is_wanted))
            return true;
        look->at_homes = true;
        look->next = 0;
    }
    if (wants && verify_select(piece, is_wanted_at_home))
        return true;
    look->verified = true;
    return false;
}

void piece_apply_bad(struct repair_piece *piece)
{
    assert(piece->look.n_bad <= REPAIR_BAD_MAX);
    for (unsigned i = 0; i < piece->look.n_bad; i++) {
        const struct piece_bad *bad = &piece->look.bad[i];
        unsigned n;
        struct decide_answer *a = piece_answers(piece, bad->block, &n);

        for (unsigned j = 0; j < n; j++) {
            if (a[j].candidate == bad->candidate && a[j].projection == bad->projection &&
                a[j].version == bad->version && a[j].kind == DECIDE_DATA) {
                a[j].kind = DECIDE_DAMAGED;
                a[j].torn = bad->torn;
            }
        }
    }
}
