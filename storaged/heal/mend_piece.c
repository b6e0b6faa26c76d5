/*
 * mend_piece.c - one piece of a mend: blocks of one extent are looked at, decided, repaired.
 *
 * In:     mend_piece_start(); answers. Thread: that of the env.
 * Out:    ST_READ, ST_DROP, ST_WRITE, ST_MARK; notes for the mend's commits.
 * Keeps:  nothing is written that was not decided, or coded from bytes that are not of exactly the decided
 *         version with a right crc; what is written is to the byte what the client wrote.
 *
 * HEADS -> VERIFY -> DECIDE (-> HEADS for what lies below, -> FENCE -> all again) -> DROP -> UNTEAR -> one
 * group of blocks after the other: RATE, READ, WRITE, or MARK -> END, or all again when something got in between.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/record.h"
#include "common/status.h"
#include "storaged/heal/mend_int.h"

enum {
    ROUNDS_MAX = 8,
    BELOWS_MAX = 8,
    FENCES_MAX = 3,
    AGAIN_MS = 20,
    SMALL_MARK_BLOCKS = 256, /* storages write those as heads */
    SECTOR_BYTES = 512,
};

static void piece_step(struct mend_piece *piece);

static void piece_go(struct mend_piece *piece, enum piece_state state)
{
    piece->state = state;
}

static struct decide_answer *answers_of(struct mend_piece *piece, unsigned b, unsigned *n)
{
    *n = piece->heads.n_answers[b];
    return heads_of(&piece->heads, b);
}

/* How many blocks of the file `n` blocks of the piece are in a request; 0: to the end. */
static uint64_t blocks_of(const struct mend_piece *piece, unsigned n)
{
    return piece->flat ? piece->span : n;
}

static void bad_add(struct mend_piece *piece, unsigned b, unsigned candidate, unsigned p,
                    uint64_t version, bool torn)
{
    piece->again = true;
    if (piece->n_bad == MEND_BAD_MAX)
        return;
    piece->bad[piece->n_bad++] = (struct piece_bad){
        .version = version,
        .block = (uint16_t)b,
        .candidate = (uint8_t)candidate,
        .projection = (uint8_t)p,
        .torn = torn,
    };
}

/* ---- requests of a piece ---- */

static struct piece_ask *ask_for(struct mend_piece *piece, unsigned projection)
{
    struct piece_ask *pa = &piece->asks[projection];

    pa->piece = piece;
    pa->projection = (uint8_t)projection;
    return pa;
}

static bool piece_send(struct mend_piece *piece, struct piece_ask *pa, unsigned candidate,
                       uint16_t op, const ProtobufCMessage *msg, unsigned n_iov,
                       ask_done_cb *done)
{
    const struct iovec *iov = n_iov == 0 ? NULL : &piece->group.iov[pa->projection];

    if (ask_send(&pa->ask, &piece->mend->file, candidate, op, msg, iov, n_iov, done) != 0)
        return false;
    piece->n_asks++;
    return true;
}

static void refused(struct mend_piece *piece, const struct ask *ask, int rc,
                    const char *what)
{
    mend_problem(piece->mend, "%s at storage %u: %s", what,
                 piece->mend->file.target.storages[ask->candidate],
                 rc != 0 ? "no answer" : status_name(ask->rq.status));
}

/* ---- records as they come ---- */

/* The payload of a read of n records: heads to `heads`, bodies at full strides to `bodies`. */
static int take_records(const struct mend_piece *piece, unsigned at, unsigned n,
                        unsigned p, const struct ask *ask, uint8_t *heads,
                        uint8_t *bodies)
{
    const struct heal_file *file = &piece->mend->file;
    size_t head_bytes = heal_head_bytes(file, p), from = n * head_bytes;
    const uint8_t *payload = ask->rq.answer_payload;
    size_t len = ask->rq.answer_payload_len;

    if (len < from)
        return -EBADMSG;
    memcpy(heads, payload, from);
    for (unsigned i = 0; i < n; i++) {
        const uint8_t *head = heads + i * head_bytes;
        struct record_header h;
        size_t row;

        if ((head[6] & RECORD_DAMAGED) != 0 ||
            record_inspect(head, file->file_hash, piece->first + at + i, p,
                           file->target.block_bytes, &h) != RECORD_IS_DATA)
            continue;
        row = codec_row_bytes(file->codec, h.user_bytes);
        if (len - from < row)
            return -EBADMSG;
        memcpy(bodies + i * file->row_bytes, payload + from, row);
        from += row;
    }
    return from == len ? 0 : -EBADMSG;
}

enum look { LOOK_RIGHT, LOOK_OTHER, LOOK_WRONG };

/*
 * Of a record that is wrong: is a sector of it missing, where power was lost before it was synced? What cannot be
 * that is rot.
 */
static bool is_torn(const struct mend_piece *piece, unsigned b, unsigned candidate,
                    unsigned p, uint64_t version, const uint8_t *head,
                    const uint8_t *body)
{
    const struct heal_file *file = &piece->mend->file;
    size_t overhang = heal_head_bytes(file, p) - RECORD_HEADER_BYTES, row;
    struct record_header h;

    if ((piece->heads.may_be_torn >> candidate & 1) == 0)
        return false;
    if ((head[6] & RECORD_DAMAGED) != 0) /* it says so itself; there is no body then */
        return (head[6] & RECORD_TORN) != 0;
    if (record_inspect(head, file->file_hash, piece->first + b, p,
                       file->target.block_bytes, &h) != RECORD_IS_DATA ||
        h.version != version)
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

/* Is this the record of block b at this version, whole? OTHER: something else got in between. */
static enum look look_at(const struct mend_piece *piece, unsigned b, unsigned p,
                         uint64_t version, uint16_t user_bytes, const uint8_t *head,
                         const uint8_t *body)
{
    const struct heal_file *file = &piece->mend->file;
    struct record_header h;

    if ((head[6] & RECORD_DAMAGED) != 0)
        return LOOK_WRONG;
    switch (record_inspect(head, file->file_hash, piece->first + b, p,
                           file->target.block_bytes, &h)) {
    case RECORD_IS_DAMAGED:
        return LOOK_WRONG;
    case RECORD_IS_HOLE:
        return LOOK_OTHER;
    case RECORD_IS_DATA:
        break;
    }
    if (h.version != version)
        return LOOK_OTHER;
    if (h.user_bytes != user_bytes ||
        record_crc(head, head + RECORD_HEADER_BYTES,
                   heal_head_bytes(file, p) - RECORD_HEADER_BYTES, body,
                   codec_row_bytes(file->codec, h.user_bytes)) != get_le32(head))
        return LOOK_WRONG;
    return LOOK_RIGHT;
}

/* ---- verifying our own ---- */

/* The version of what counts at our storage in projection p of block b; 0: no data. */
static const struct decide_answer *own_data(struct mend_piece *piece, unsigned b,
                                            unsigned p)
{
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].level == 0 && a[i].projection == p && a[i].kind == DECIDE_DATA &&
            (piece->mend->own >> a[i].candidate & 1) != 0)
            return &a[i];
    }
    return NULL;
}

static void verify_check(struct mend_piece *piece, const struct ask *ask, unsigned at,
                         unsigned n, unsigned p)
{
    const struct heal_file *file = &piece->mend->file;
    size_t head_bytes = heal_head_bytes(file, p);
    uint8_t *buf = malloc(n * (head_bytes + file->row_bytes));

    if (buf == NULL ||
        take_records(piece, at, n, p, ask, buf, buf + n * head_bytes) != 0) {
        free(buf);
        mend_problem(piece->mend, "cannot verify our own records");
        return;
    }
    piece->mend->result.read_bytes += ask->rq.answer_payload_len - n * head_bytes;
    for (unsigned i = 0; i < n; i++) {
        const struct decide_answer *a = own_data(piece, at + i, p);
        const uint8_t *head = buf + i * head_bytes;
        const uint8_t *body = buf + n * head_bytes + i * file->row_bytes;

        if (a != NULL && look_at(piece, at + i, p, a->version, a->user_bytes, head,
                                 body) == LOOK_WRONG) {
            bad_add(piece, at + i, ask->candidate, p, a->version,
                    is_torn(piece, at + i, ask->candidate, p, a->version, head, body));
            piece->again = false; /* what follows sees to it */
        }
    }
    free(buf);
}

static void on_verified(struct ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct mend_piece *piece = pa->piece;

    piece->n_asks--;
    if (ask_is_ok(ask, rc))
        verify_check(piece, ask, piece->group.at, piece->group.n, pa->projection);
    else
        refused(piece, ask, rc, "reading our own records");
    piece_step(piece);
}

static bool verify_send(struct mend_piece *piece)
{
    struct heal_file *file = &piece->mend->file;
    const struct piece_group *g = &piece->group;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    unsigned own = (unsigned)__builtin_ctz(piece->mend->own);
    unsigned p = (unsigned)__builtin_ctz(g->sources);

    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->first + g->at;
    req.n_blocks = g->n;
    req.to_storage = file->target.storages[own];
    return piece_send(piece, ask_for(piece, p), own, ROZO__OP__ST_READ, &req.base, 0,
                      on_verified);
}

/* The next run of our own records, as a group that is only read; false: all were read. */
static bool verify_next(struct mend_piece *piece)
{
    unsigned n_all = piece->mend->file.n * piece->n;

    while (piece->mend->own != 0 && piece->verify_at < n_all) {
        unsigned p = piece->verify_at / piece->n, at = piece->verify_at % piece->n;
        unsigned to = at;

        while (to < piece->n && own_data(piece, to, p) != NULL)
            to++;
        piece->verify_at += to > at ? to - at : 1;
        if (to == at)
            continue;
        piece->group = (struct piece_group){ .at = at, .n = to - at, .sources = 1u << p };
        return true;
    }
    return false;
}

/* What was found wrong by reading it whole counts as damaged. */
static void apply_bad(struct mend_piece *piece)
{
    for (unsigned i = 0; i < piece->n_bad; i++) {
        const struct piece_bad *bad = &piece->bad[i];
        unsigned n;
        struct decide_answer *a = answers_of(piece, bad->block, &n);

        for (unsigned j = 0; j < n; j++) {
            if (a[j].candidate == bad->candidate && a[j].projection == bad->projection &&
                a[j].version == bad->version && a[j].kind == DECIDE_DATA) {
                a[j].kind = DECIDE_DAMAGED;
                a[j].torn = bad->torn;
            }
        }
    }
}

/* ---- deciding ---- */

/* Is there anything but "never written"? */
static bool has_something(struct mend_piece *piece, unsigned b)
{
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].kind != DECIDE_HOLE || a[i].version != 0)
            return true;
    }
    return false;
}

static bool has_data(struct mend_piece *piece, unsigned b)
{
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].kind == DECIDE_DATA)
            return true;
    }
    return false;
}

static struct decide_rules rules_of(const struct mend_piece *piece)
{
    const struct heal_file *file = &piece->mend->file;
    uint32_t count = piece->under_fence ? piece->fenced : UINT32_MAX;

    return (struct decide_rules){
        .k = file->k,
        .n = file->n,
        .c = file->c,
        .q = file->q,
        .told = piece->heads.told & count,
        .none = piece->heads.none & count,
        .lost = file->lost,
        .home = file->home,
        .fenced = piece->under_fence,
        .fence_epoch = piece->fence_epoch,
    };
}

/* True: what lies below some version is being asked for. */
static bool decide_all(struct mend_piece *piece)
{
    const struct decide_rules rules = rules_of(piece);
    uint64_t below[EXTENT_BLOCKS] = { 0 };
    bool any = false;

    for (unsigned b = 0; b < piece->n; b++) {
        struct decision *d = &piece->decided[b];
        unsigned n;
        const struct decide_answer *a = answers_of(piece, b, &n);

        decide_block(&rules, a, n, d);
        if (piece->heads.too_many[b])
            d->what = DECIDE_UNDECIDED;
        if (d->what != DECIDE_BELOW)
            continue;
        if (piece->n_belows == BELOWS_MAX) {
            d->what = DECIDE_UNDECIDED;
            continue;
        }
        below[b] = d->version;
        any = true;
    }
    if (!any)
        return false;
    piece->n_belows++;
    piece_go(piece, PIECE_HEADS);
    heads_below(&piece->heads, below);
    return true;
}

/* The newest epoch that only a fence lets us settle; false: none. */
static bool wants_fence(const struct mend_piece *piece, uint32_t *epoch)
{
    bool wanted = false;

    *epoch = 0;
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];
        uint32_t e = version_epoch(d->torn);

        if (d->torn == 0 || (piece->under_fence && e <= piece->fence_epoch))
            continue;
        wanted = true;
        *epoch = e > *epoch ? e : *epoch;
    }
    return wanted && (piece->mend->request.flags & MEND_FENCE) != 0 &&
           piece->n_fences < FENCES_MAX;
}

static void count_lacks(struct mend_piece *piece, unsigned b)
{
    const struct decision *d = &piece->decided[b];
    struct mend_result *r = &piece->mend->result;
    uint32_t new = piece->lack[b] & ~piece->counted[b];

    r->damaged += (unsigned)__builtin_popcount(new & d->damaged);
    r->stale += (unsigned)__builtin_popcount(new & d->stale);
    r->missing += (unsigned)__builtin_popcount(new & d->missing);
    piece->counted[b] |= piece->lack[b];
}

/*
 * Damaged where nothing was ever written: a rotten head, or a file that is partial and does not know. That is
 * told when all of the file was looked at; until then, and in a rebuild, it is no harm.
 */
static void unwritten(struct mend_piece *piece, unsigned b)
{
    struct mend *mend = piece->mend;

    if ((mend->request.flags & MEND_PARTIAL) != 0 || mend->request.first_block != 0 ||
        mend->end != UINT64_MAX)
        piece->lack[b] = 0;
    mend->unknown |= piece->lack[b];
    if (piece
            ->flat) /* no heads are made in a long stretch: it becomes known as a whole */
        piece->lack[b] = 0;
}

/* All blocks are decided, as far as they can be: what is to be done? */
static void plan_round(struct mend_piece *piece)
{
    struct mend *mend = piece->mend;
    bool first = piece->n_rounds == 0 && piece->n_fences == 0 && !piece->tail &&
                 piece->first >= mend->counted_to;

    piece->sparse = true;
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];

        piece->skip[b] = false;
        piece->lack[b] = 0;
        piece->holders[b] = d->holders;
        if (has_data(piece, b))
            piece->sparse = false;
        if (first && has_something(piece, b))
            mend->result.looked_at++;
        if (d->what != DECIDE_FORWARD || (piece->tail && d->version == 0))
            continue;
        piece->lack[b] = d->lack & mend->scope;
        if (d->version == 0)
            unwritten(piece, b);
        count_lacks(piece, b);
    }
}

/* The version that the home of projection p believes in, of a record that is damaged; 0: none. */
static uint64_t torn_version(struct mend_piece *piece, unsigned b, unsigned p)
{
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].candidate == piece->mend->file.home[p] && a[i].projection == p &&
            a[i].kind == DECIDE_DAMAGED && a[i].level == 0)
            return a[i].version;
    }
    return 0;
}

/* ---- rolling back ---- */

static void on_dropped(struct ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct mend_piece *piece = pa->piece;

    piece->n_asks--;
    if (!ask_is_ok(ask, rc)) {
        refused(piece, ask, rc, "rolling back");
        piece->group.damaged = true;
    }
    piece_step(piece);
}

static void drop_send(struct mend_piece *piece, unsigned candidate, uint64_t keep)
{
    struct heal_file *file = &piece->mend->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

    req.ref = &file->ref;
    req.first_block = piece->first + piece->group.at;
    req.n_blocks = blocks_of(piece, piece->group.n);
    req.keep = keep;
    req.epoch = piece->fence_epoch;
    req.to_storage = file->target.storages[candidate];
    if (!piece_send(piece, ask_for(piece, candidate), candidate, ROZO__OP__ST_DROP,
                    &req.base, 0, on_dropped))
        piece->group.damaged = true;
}

/* What the drop before left undone must not be built upon. */
static void drop_done(struct mend_piece *piece)
{
    const struct piece_group *g = &piece->group;

    if (g->damaged) {
        piece->mend->result.rc = -EIO;
        for (unsigned b = g->at; b < g->at + g->n; b++)
            piece->skip[b] = true;
    } else {
        piece->mend->result.dropped += g->n;
    }
}

/* The next run of blocks with the same version to be kept; false: all are done. */
static bool drop_next(struct mend_piece *piece)
{
    struct piece_group *g = &piece->group;
    uint32_t candidates = 0;
    uint64_t keep = 0;

    if (g->n > 0)
        drop_done(piece);
    *g = (struct piece_group){ .at = piece->drop_at };
    for (; g->at + g->n < piece->n; g->n++) {
        const struct decision *d = &piece->decided[g->at + g->n];
        bool drops = d->what == DECIDE_FORWARD && d->drop != 0 && !piece->tail;

        if (!drops && g->n == 0) {
            g->at++;
            g->n--; /* the loop counts it */
            continue;
        }
        if (!drops || (g->n > 0 && d->version != keep))
            break;
        keep = d->version;
        candidates |= d->drop;
    }
    piece->drop_at = g->at + g->n;
    for (unsigned i = 0; i < piece->mend->file.c; i++) {
        if ((candidates >> i & 1) != 0)
            drop_send(piece, i, keep);
    }
    return g->n > 0;
}

/*
 * A home takes nothing older than what it believes it has, and does not see that this is torn: it is told to let go of
 * it. One record after the other; they are few. False: none is left.
 */
static bool untorn_next(struct mend_piece *piece)
{
    struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;

    if (g->damaged) /* the one before */
        piece->skip[g->at] = true;
    for (; piece->untorn_at < piece->n * file->n; piece->untorn_at++) {
        unsigned b = piece->untorn_at / file->n, p = piece->untorn_at % file->n;
        const struct decision *d = &piece->decided[b];
        uint64_t torn = torn_version(piece, b, p);
        Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

        if ((piece->lack[b] & d->damaged & 1u << p) == 0 || d->version == 0 ||
            torn <= d->version || piece->skip[b] || piece->flat)
            continue;
        *g = (struct piece_group){ .at = b };
        req.ref = &file->ref;
        req.first_block = piece->first + b;
        req.n_blocks = 1;
        req.keep = torn;
        req.projections = 1u << p;
        req.to_storage = file->target.storages[file->home[p]];
        g->damaged = !piece_send(piece, ask_for(piece, p), file->home[p],
                                 ROZO__OP__ST_DROP, &req.base, 0, on_dropped);
        piece->untorn_at++;
        return true;
    }
    *g = (struct piece_group){ 0 };
    return false;
}

/* ---- the next group of blocks to be repaired ---- */

/* Who has projection p of block b as decided? Not the home that is to get it; ours first. */
static const struct decide_answer *source_of(struct mend_piece *piece, unsigned b,
                                             unsigned p)
{
    const struct decision *d = &piece->decided[b];
    const struct decide_answer *best = NULL;
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].projection != p || a[i].kind != DECIDE_DATA ||
            a[i].version != d->version || a[i].user_bytes != d->user_bytes)
            continue;
        if (best == NULL || a[i].level < best->level ||
            (a[i].level == best->level && (piece->mend->own >> a[i].candidate & 1) != 0))
            best = &a[i];
    }
    return best;
}

static void source_take(struct piece_group *g, const struct decide_answer *a)
{
    g->sources |= 1u << a->projection;
    g->source[a->projection] = a->candidate;
    if (a->level > 0)
        g->at_most = a->version;
}

/* What is lacking may lie somewhere as it is: then it is copied. Otherwise k projections, those
 * we have ourselves first, then in turn, so that all survivors work. */
static bool group_sources(struct mend_piece *piece, struct piece_group *g)
{
    const struct heal_file *file = &piece->mend->file;
    unsigned turn = (unsigned)(piece->first / EXTENT_BLOCKS % file->n);

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
                (piece->mend->own >> a->candidate & 1) == own)
                source_take(g, a);
        }
    }
    return (unsigned)__builtin_popcount(g->sources) == file->k;
}

/* What was never written is dropped where it is torn: of those versions that were found so, and no others. */
static bool same_torn(struct mend_piece *piece, const struct piece_group *g, unsigned b)
{
    for (unsigned p = 0; p < piece->mend->file.n; p++) {
        if ((g->lack >> p & 1) != 0 &&
            torn_version(piece, b, p) != torn_version(piece, g->at, p))
            return false;
    }
    return true;
}

/* May block b be repaired together with the first of the group? */
static bool group_takes(struct mend_piece *piece, const struct piece_group *g, unsigned b)
{
    const struct decision *first = &piece->decided[g->at], *d = &piece->decided[b];

    if (d->what != DECIDE_FORWARD || piece->skip[b] || piece->lack[b] != g->lack ||
        (d->user_bytes == 0) != (first->user_bytes == 0))
        return false;
    if (d->user_bytes == 0)
        return d->version == first->version &&
               (d->version != 0 || same_torn(piece, g, b));
    if (g->at_most != 0 && d->version != first->version)
        return false;
    for (unsigned p = 0; p < piece->mend->file.n; p++) {
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

static void group_free(struct piece_group *g)
{
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        free(g->read[p]);
        free(g->made[p]);
    }
    *g = (struct piece_group){ 0 };
}

/* False: nothing is left to be repaired in this round. */
static bool group_next(struct mend_piece *piece)
{
    struct piece_group *g = &piece->group;
    unsigned at = 0;

    group_free(g);
    while (at < piece->n && (piece->lack[at] == 0 || piece->skip[at]))
        at++;
    if (at == piece->n)
        return false;
    g->at = at;
    g->lack = piece->lack[at];
    if (piece->decided[at].user_bytes != 0 && !group_sources(piece, g)) {
        piece->skip[at] = piece->again = true; /* decided, but what it took is gone */
        return true;
    }
    while (at < piece->n && group_takes(piece, g, at)) {
        g->damaged |= (piece->decided[at].damaged & g->lack) != 0;
        g->n++;
        at++;
    }
    return true;
}

static void group_skip(struct mend_piece *piece)
{
    for (unsigned i = 0; i < piece->group.n; i++)
        piece->skip[piece->group.at + i] = true;
}

/* Not now: look at everything again. */
static void group_again(struct mend_piece *piece)
{
    piece->again = true;
    group_skip(piece);
}

/* Whoever did not take it lacks it still: not again in this round. */
static void group_end(struct mend_piece *piece)
{
    for (unsigned b = piece->group.at; b < piece->group.at + piece->group.n; b++) {
        if (piece->lack[b] != 0)
            piece->skip[b] = true;
    }
    piece_go(piece, PIECE_GROUP);
}

/* ---- reading ---- */

static void group_judge(struct mend_piece *piece, unsigned p, unsigned candidate)
{
    const struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;
    size_t head_bytes = heal_head_bytes(file, p);
    bool right = true;

    for (unsigned i = 0; i < g->n; i++) {
        const struct decision *d = &piece->decided[g->at + i];
        const uint8_t *head = g->read[p] + i * head_bytes;
        const uint8_t *body = g->read[p] + g->n * head_bytes + i * file->row_bytes;
        enum look look =
            look_at(piece, g->at + i, p, d->version, d->user_bytes, head, body);

        right = right && look == LOOK_RIGHT;
        if (look == LOOK_WRONG)
            bad_add(piece, g->at + i, candidate, p, d->version,
                    is_torn(piece, g->at + i, candidate, p, d->version, head, body));
    }
    if (right)
        g->answered |= 1u << p;
}

static void on_group_read(struct ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct mend_piece *piece = pa->piece;
    struct piece_group *g = &piece->group;
    unsigned p = pa->projection;
    size_t heads_bytes = g->n * heal_head_bytes(&piece->mend->file, p);

    piece->n_asks--;
    if (!ask_is_ok(ask, rc)) {
        refused(piece, ask, rc, "reading");
    } else if (take_records(piece, g->at, g->n, p, ask, g->read[p],
                            g->read[p] + heads_bytes) == 0) {
        piece->mend->result.read_bytes += ask->rq.answer_payload_len - heads_bytes;
        group_judge(piece, p, ask->candidate);
    }
    piece_step(piece);
}

static void read_send(struct mend_piece *piece, unsigned p)
{
    struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;

    g->read[p] = malloc(g->n * (heal_head_bytes(file, p) + file->row_bytes));
    if (g->read[p] == NULL)
        return;
    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->first + g->at;
    req.n_blocks = g->n;
    req.to_storage = file->target.storages[g->source[p]];
    req.at_most = g->at_most;
    piece_send(piece, ask_for(piece, p), g->source[p], ROZO__OP__ST_READ, &req.base, 0,
               on_group_read);
}

static void group_read(struct mend_piece *piece)
{
    for (unsigned p = 0; p < piece->mend->file.n; p++) {
        if ((piece->group.sources >> p & 1) != 0)
            read_send(piece, p);
    }
}

/* ---- coding and writing ---- */

static void block_make(struct mend_piece *piece, const struct codec_plan *plan,
                       unsigned i, size_t body_at)
{
    const struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;
    const struct decision *d = &piece->decided[g->at + i];
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

/* Make what is lacking from what was read; -ENOMEM. */
static int group_make(struct mend_piece *piece)
{
    const struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;
    struct codec_plan plan;
    size_t body_at = 0;
    int rc = codec_plan(file->codec, g->sources, g->lack, &plan);

    assert(rc == 0);
    for (unsigned p = 0; p < file->n; p++) {
        if ((g->lack >> p & 1) == 0)
            continue;
        g->made[p] = malloc(g->n * (heal_head_bytes(file, p) + file->row_bytes));
        if (g->made[p] == NULL)
            return -ENOMEM;
        memset(g->made[p], 0, g->n * heal_head_bytes(file, p)); /* bodies are filled */
    }
    for (unsigned i = 0; i < g->n; i++) {
        block_make(piece, &plan, i, body_at);
        body_at += codec_row_bytes(file->codec, piece->decided[g->at + i].user_bytes);
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

/* Home of projection p has the group now, and the batch makes it stable. */
static void group_healed(struct mend_piece *piece, unsigned p, unsigned candidate,
                         bool pending, bool pressure)
{
    struct piece_group *g = &piece->group;

    piece->mend->result.healed += g->n;
    piece->mend->to_sync |= 1u << candidate;
    piece->mend->pressure |= pressure;
    for (unsigned b = g->at; b < g->at + g->n; b++) {
        piece->lack[b] &= ~(1u << p);
        piece->holders[b] |= 1u << candidate;
        piece->pending[b] |= pending;
    }
}

static void on_group_written(struct ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct mend_piece *piece = pa->piece;
    struct piece_group *g = &piece->group;
    unsigned p = pa->projection;
    Rozo__StWriteResp *resp = NULL;

    piece->n_asks--;
    if (ask_is_ok(ask, rc)) {
        size_t bytes = g->iov[p].iov_len - g->n * heal_head_bytes(&piece->mend->file, p);

        if (ask->rq.answer_msg_len > 0)
            resp = rozo__st_write_resp__unpack(NULL, ask->rq.answer_msg_len,
                                               ask->rq.answer_msg);
        piece->mend->result.written_bytes += bytes;
        piece->mend->batch_bytes += bytes;
        if (resp != NULL)
            mend_note_verifier(piece->mend, ask->candidate, resp->verifier);
        group_healed(piece, p, ask->candidate, resp != NULL && resp->pending,
                     resp != NULL && resp->pressure);
        rozo__st_write_resp__free_unpacked(resp, NULL);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__STALE_VERSION) {
        piece->again = true;
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__BUSY) {
        piece->busy = true;
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE) {
        piece->mend->removed = true;
    } else {
        refused(piece, ask, rc, "writing");
    }
    piece_step(piece);
}

static void write_send(struct mend_piece *piece, unsigned p)
{
    struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;

    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->first + g->at;
    req.n_records = g->n;
    req.to_storage = file->target.storages[file->home[p]];
    piece_send(piece, ask_for(piece, p), file->home[p], ROZO__OP__ST_WRITE, &req.base, 1,
               on_group_written);
}

static void group_write(struct mend_piece *piece)
{
    if (group_make(piece) != 0) {
        mend_problem(piece->mend, "out of memory");
        return;
    }
    for (unsigned p = 0; p < piece->mend->file.n; p++) {
        if ((piece->group.lack >> p & 1) != 0)
            write_send(piece, p);
    }
}

/* ---- holes ---- */

static void on_group_marked(struct ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct mend_piece *piece = pa->piece;
    Rozo__StMarkResp *resp = NULL;

    piece->n_asks--;
    if (ask_is_ok(ask, rc)) {
        if (ask->rq.op == ROZO__OP__ST_MARK && ask->rq.answer_msg_len > 0)
            resp = rozo__st_mark_resp__unpack(NULL, ask->rq.answer_msg_len,
                                              ask->rq.answer_msg);
        if (resp != NULL)
            mend_note_verifier(piece->mend, ask->candidate, resp->verifier);
        group_healed(piece, pa->projection, ask->candidate, resp != NULL && resp->pending,
                     resp != NULL && resp->pressure);
        rozo__st_mark_resp__free_unpacked(resp, NULL);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__STALE_VERSION) {
        piece->again = true;
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__BUSY) {
        piece->busy = true;
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE &&
               ask->rq.op == ROZO__OP__ST_MARK) {
        piece->mend->removed = true;
    } else {
        refused(piece, ask, rc, "marking holes");
    }
    piece_step(piece);
}

static void mark_send(struct mend_piece *piece, unsigned p, uint64_t version)
{
    struct heal_file *file = &piece->mend->file;
    const struct piece_group *g = &piece->group;
    uint64_t n_blocks = blocks_of(piece, g->n);
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;

    req.ref = &file->ref;
    req.projection = p;
    req.first_block = piece->tail ? piece->tail_from : piece->first + g->at;
    req.n_blocks = n_blocks;
    req.version = version;
    req.to_storage = file->target.storages[file->home[p]];
    /* where it is large, others may write meanwhile; what is damaged stays with that */
    req.keep_newer = (n_blocks == 0 || n_blocks > SMALL_MARK_BLOCKS) && !g->damaged;
    piece_send(piece, ask_for(piece, p), file->home[p], ROZO__OP__ST_MARK, &req.base, 0,
               on_group_marked);
}

/* Damaged where nothing was ever written: that is what it becomes again. */
static void unwrite_send(struct mend_piece *piece, unsigned p)
{
    struct heal_file *file = &piece->mend->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;
    uint64_t torn = torn_version(piece, piece->group.at, p);

    req.ref = &file->ref;
    req.first_block = piece->first + piece->group.at;
    req.n_blocks = blocks_of(piece, piece->group.n);
    req.keep = torn != 0 ? torn : 1; /* 1: no record has it */
    req.projections = 1u << p;
    req.to_storage = file->target.storages[file->home[p]];
    piece_send(piece, ask_for(piece, p), file->home[p], ROZO__OP__ST_DROP, &req.base, 0,
               on_group_marked);
}

/* A mark may leave what is damaged as it is, since that may be newer; a record of a hole does not. */
static void group_write_holes(struct mend_piece *piece)
{
    const struct heal_file *file = &piece->mend->file;
    struct piece_group *g = &piece->group;

    for (unsigned p = 0; p < file->n; p++) {
        size_t head_bytes = heal_head_bytes(file, p);

        if ((g->lack >> p & 1) == 0)
            continue;
        g->made[p] = calloc(g->n, head_bytes);
        for (unsigned i = 0; g->made[p] != NULL && i < g->n; i++) {
            const struct record_header h = {
                .format = RECORD_FORMAT,
                .projection = (uint8_t)p,
                .flags = RECORD_HOLE,
                .file_hash = file->file_hash,
                .version = piece->decided[g->at + i].version,
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

static void group_mark(struct mend_piece *piece)
{
    uint64_t version = piece->decided[piece->group.at].version;

    for (unsigned p = 0; p < piece->mend->file.n; p++) {
        if ((piece->group.lack >> p & 1) == 0)
            continue;
        if (version == 0)
            unwrite_send(piece, p);
        else
            mark_send(piece, p, version);
    }
}

/* ---- the end of a round ---- */

static bool is_settled(const struct mend_piece *piece, unsigned b)
{
    const struct decision *d = &piece->decided[b];

    return d->what == DECIDE_FORWARD && d->version != 0 && !piece->skip[b];
}

/* Does anybody have the file, as far as one can believe that? */
static bool has_file(struct mend_piece *piece)
{
    for (unsigned b = 0; b < piece->n; b++) {
        unsigned n;
        const struct decide_answer *a = answers_of(piece, b, &n);

        for (unsigned i = 0; i < n; i++) {
            if (a[i].kind != DECIDE_DAMAGED)
                return true;
        }
    }
    return false;
}

static void note_commits(struct mend_piece *piece)
{
    bool all = (piece->mend->request.flags & MEND_FENCE) != 0 && !piece->tail;

    for (unsigned b = 0; b < piece->n; b++) {
        if (is_settled(piece, b) && (all || piece->pending[b]))
            mend_note_commit(
                piece->mend, piece->tail ? piece->tail_from : piece->first + b,
                blocks_of(piece, 1), piece->decided[b].version, piece->holders[b]);
    }
}

/* Do all homes have what was decided, and nobody anything newer? */
static bool is_whole(const struct mend_piece *piece, unsigned b)
{
    const struct heal_file *file = &piece->mend->file;
    const struct decision *d = &piece->decided[b];

    if (!is_settled(piece, b) || !d->newest || d->user_bytes == 0)
        return false;
    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home >= file->c || (piece->holders[b] >> home & 1) == 0 ||
            ((piece->heads.told | piece->heads.none) >> home & 1) == 0)
            return false;
    }
    return (d->lack & (piece->lack[b] | ~piece->mend->scope)) == 0;
}

static void note_cleans(struct mend_piece *piece, unsigned b)
{
    struct mend *mend = piece->mend;
    uint32_t spare[DIST_MAX] = { 0 };
    unsigned n;
    const struct decide_answer *a = answers_of(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].level == 0 && a[i].kind == DECIDE_DATA &&
            a[i].version <= piece->decided[b].version &&
            mend->file.home[a[i].projection] != a[i].candidate)
            spare[a[i].candidate] |= 1u << a[i].projection;
    }
    for (unsigned i = 0; i < mend->file.c; i++) {
        if (spare[i] != 0)
            mend_note_clean(mend, piece->first + b, 1, piece->decided[b].version,
                            piece->holders[b], i, spare[i]);
    }
}

/* What it lacks waits for room in somebody's journal: it is done once more, and counted then. */
static void finish_busy(struct mend_piece *piece)
{
    struct mend_result *r = &piece->mend->result;

    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];

        r->damaged -= (unsigned)__builtin_popcount(piece->lack[b] & d->damaged);
        r->stale -= (unsigned)__builtin_popcount(piece->lack[b] & d->stale);
        r->missing -= (unsigned)__builtin_popcount(piece->lack[b] & d->missing);
    }
    note_commits(piece);
    mend_again(piece->mend, piece->tail ? piece->tail_from : piece->first);
}

static void torn_note(struct mend_result *r, uint64_t block)
{
    if (r->n_torn == 0 || block < r->torn_first)
        r->torn_first = block;
    if (r->n_torn == 0 || block >= r->torn_end)
        r->torn_end = block + 1;
    r->n_torn++;
}

static void piece_finish(struct mend_piece *piece)
{
    struct mend_result *r = &piece->mend->result;

    note_commits(piece);
    piece->mend->none = piece->heads.none;
    piece->mend->seen_file |= has_file(piece);
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];

        r->failed += (unsigned)__builtin_popcount(piece->lack[b]);
        if (piece->lack[b] != 0)
            r->rc = -EIO;
        if (d->what == DECIDE_UNDECIDED && !piece->tail) {
            r->undecided++;
            mend_problem(piece->mend, "block %llu is undecided",
                         (unsigned long long)(piece->first + b));
        }
        if (d->what == DECIDE_FORWARD && d->torn != 0 && !d->newest && d->drop == 0 &&
            !piece->tail)
            torn_note(r, piece->first + b);
        if ((piece->mend->request.flags & MEND_CLEAN_SPARES) != 0 && !piece->flat &&
            is_whole(piece, b))
            note_cleans(piece, b);
    }
}

static bool goes_round(struct mend_piece *piece)
{
    bool found = piece->n_bad > piece->n_bad_before;

    if (!piece->again || (piece->n_rounds >= ROUNDS_MAX && !found))
        return false;
    note_commits(piece); /* of what was done */
    piece->n_bad_before = piece->n_bad;
    piece->n_rounds++;
    piece->again = piece->busy = false;
    piece_go(piece, PIECE_BEGIN);
    env_timer_start(piece->mend->file.env, &piece->timer, AGAIN_MS);
    return true;
}

/* ---- the machine ---- */

static void on_piece_heads(struct heads *heads)
{
    struct mend_piece *piece = container_of(heads, struct mend_piece, heads);

    apply_bad(piece);
    piece_go(piece, piece->verified ? PIECE_DECIDE : PIECE_VERIFY);
    piece_step(piece);
}

static bool piece_begin(struct mend_piece *piece)
{
    struct mend *mend = piece->mend;

    piece->under_fence = mend->fence_up;
    piece->fence_epoch = mend->fence_epoch;
    piece->fenced = mend->fenced;
    piece->n_belows = 0;
    piece->drop_at = piece->untorn_at = 0;
    piece_go(piece, PIECE_HEADS);
    if (heads_start(&piece->heads, &mend->file, piece->first, piece->n, on_piece_heads) ==
        0)
        return true;
    mend_problem(mend, "out of memory");
    mend->result.rc = -ENOMEM;
    return false;
}

/* Milliseconds to wait before the group's bodies may be read and written. */
static uint32_t group_wait(const struct mend_piece *piece)
{
    const struct mender_config *config = &piece->mend->mender->config;
    const struct piece_group *g = &piece->group;
    int rows = __builtin_popcount(g->sources) + __builtin_popcount(g->lack);

    if (config->take == NULL)
        return 0;
    return config->take(config->arg, (uint64_t)rows * g->n * piece->mend->file.row_bytes);
}

/* After the first look: whole records, where that is wanted. */
static void piece_verify(struct mend_piece *piece)
{
    if ((piece->mend->request.flags & MEND_VERIFY_OWN) != 0 && verify_next(piece)) {
        uint32_t wait_ms = group_wait(piece);

        piece_go(piece, PIECE_VERIFY_READ);
        if (wait_ms > 0)
            env_timer_start(piece->mend->file.env, &piece->timer, wait_ms);
        return;
    }
    piece->verified = true;
    piece->group = (struct piece_group){ 0 };
    apply_bad(piece);
    piece_go(piece, PIECE_DECIDE);
}

/*
 * True: wait. Of a stretch nothing is rolled back before a walk that began under the fence has found that there are no
 * heads in it: what a client wrote there before the fence, and had acknowledged, is not what its first block shows.
 */
static bool piece_decide(struct mend_piece *piece)
{
    uint32_t epoch;

    if (decide_all(piece))
        return true;
    plan_round(piece);
    if (!piece->tail && wants_fence(piece, &epoch)) {
        piece->n_fences++;
        piece_go(piece, PIECE_FENCE);
        if (!mend_want_fence(piece->mend, epoch))
            return true;
        piece_go(piece, PIECE_BEGIN);
        return false;
    }
    if (piece->flat && !piece->tail && piece->decided[0].drop != 0 &&
        piece->fence_epoch > piece->span_epoch) {
        piece->skip[0] = piece->busy = true;
        piece_go(piece, PIECE_END);
        return false;
    }
    piece_go(piece, PIECE_DROP);
    return false;
}

static void piece_rate(struct mend_piece *piece)
{
    uint32_t wait_ms = group_wait(piece);

    piece_go(piece, PIECE_RATE);
    if (wait_ms > 0)
        env_timer_start(piece->mend->file.env, &piece->timer, wait_ms);
}

static void piece_group(struct mend_piece *piece)
{
    if (!group_next(piece)) {
        if (!goes_round(piece))
            piece_go(piece, PIECE_END);
        return;
    }
    if (piece->group.n == 0)
        return; /* the next one */
    if (piece->decided[piece->group.at].user_bytes != 0) {
        piece_rate(piece);
        return;
    }
    piece_go(piece, PIECE_MARK);
    if (piece->group.damaged && !piece->flat &&
        piece->decided[piece->group.at].version != 0)
        group_write_holes(piece);
    else
        group_mark(piece);
}

static void piece_step(struct mend_piece *piece)
{
    for (;;) {
        if (piece->n_asks > 0 || env_timer_is_running(&piece->timer))
            return;
        switch (piece->state) {
        case PIECE_BEGIN:
            if (piece_begin(piece))
                return;
            piece_go(piece, PIECE_END);
            break;
        case PIECE_HEADS:
        case PIECE_FENCE:
            return;
        case PIECE_VERIFY:
            piece_verify(piece);
            break;
        case PIECE_VERIFY_READ:
            piece_go(piece, PIECE_VERIFY);
            verify_send(piece);
            break;
        case PIECE_DECIDE:
            if (piece_decide(piece))
                return;
            break;
        case PIECE_DROP:
            if (!drop_next(piece))
                piece_go(piece, PIECE_UNTEAR);
            break;
        case PIECE_UNTEAR:
            if (!untorn_next(piece))
                piece_go(piece, PIECE_GROUP);
            break;
        case PIECE_GROUP:
            piece_group(piece);
            break;
        case PIECE_RATE:
            piece_go(piece, PIECE_READ);
            group_read(piece);
            break;
        case PIECE_READ:
            if (piece->group.answered == piece->group.sources) {
                piece_go(piece, PIECE_WRITE);
                group_write(piece);
            } else {
                group_again(piece);
                piece_go(piece, PIECE_GROUP);
            }
            break;
        case PIECE_WRITE:
        case PIECE_MARK:
            group_end(piece);
            break;
        case PIECE_END:
            if (piece->busy)
                finish_busy(piece);
            else if (piece->heads.answers != NULL)
                piece_finish(piece);
            mend_piece_ended(piece);
            return;
        }
    }
}

static void on_piece_timer(struct env_timer *timer)
{
    piece_step(container_of(timer, struct mend_piece, timer));
}

void mend_piece_wake(struct mend_piece *piece)
{
    if (piece->state != PIECE_FENCE)
        return;
    piece_go(piece, PIECE_BEGIN);
    piece_step(piece);
}

uint64_t mend_piece_memory(const struct mend *mend)
{
    const struct heal_file *file = &mend->file;
    uint64_t rows = file->k + (unsigned)__builtin_popcount(mend->scope);

    return EXTENT_BLOCKS * (rows * 2 * (file->row_bytes + RECORD_HEADER_BYTES) +
                            DECIDE_ANSWERS_MAX * sizeof(struct decide_answer)) +
           sizeof(struct mend_piece);
}

struct mend_piece *mend_piece_new(struct mend *mend, uint64_t first, unsigned n)
{
    struct mend_piece *piece = calloc(1, sizeof(*piece));

    if (piece == NULL)
        return NULL;
    assert(n >= 1 && n <= EXTENT_BLOCKS);
    piece->mend = mend;
    piece->first = first;
    piece->n = n;
    piece->sparse = true;
    piece->memory = mend_piece_memory(mend);
    mend->mender->memory_used += piece->memory;
    list_add_tail(&mend->pieces, &piece->link);
    mend->n_pieces++;
    env_timer_init(&piece->timer, on_piece_timer);
    env_timer_start(mend->file.env, &piece->timer, 0);
    return piece;
}

void mend_piece_free(struct mend_piece *piece)
{
    struct mend *mend = piece->mend;

    for (unsigned i = 0; i < DIST_MAX; i++)
        ask_cancel(&piece->asks[i].ask);
    env_timer_stop(mend->file.env, &piece->timer);
    heads_close(&piece->heads);
    group_free(&piece->group);
    list_remove(&piece->link);
    mend->n_pieces--;
    mend->mender->memory_used -= piece->memory;
    free(piece);
}
