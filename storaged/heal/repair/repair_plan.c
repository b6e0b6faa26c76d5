/*
 * repair_plan.c - decides the blocks of a piece and plans the repair of each.
 *
 * In:     heads, as they came. Thread: that of the env.
 * Out:    decisions and the projections that homes lack; counts of the repair.
 * Keeps:  all decisions are those of repair_decide.h.
 */
#include <assert.h>

#include "storaged/heal/repair/repair_piece.h"

enum { BELOWS_MAX = 8, FENCES_MAX = 3 };

static bool is_of_home(const struct repair_piece *piece, const struct decide_answer *a)
{
    const struct heal_file *file = &piece->repair->file;

    return a->projection < file->n && file->home[a->projection] == a->candidate;
}

/* Returns whether any answer is not "never written". Damage at a spare does not count: it
 * says nothing about what a home should have. */
static bool has_something(struct repair_piece *piece, unsigned b)
{
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].kind == DECIDE_DAMAGED ? is_of_home(piece, &a[i])
                                        : a[i].kind != DECIDE_HOLE || a[i].version != 0)
            return true;
    }
    return false;
}

static bool has_data(struct repair_piece *piece, unsigned b)
{
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].kind == DECIDE_DATA)
            return true;
    }
    return false;
}

static struct decide_rules rules_of(const struct repair_piece *piece)
{
    const struct heal_file *file = &piece->repair->file;
    uint32_t count = piece->fence.up ? piece->fence.holders : UINT32_MAX;

    return (struct decide_rules){
        .k = file->k,
        .n = file->n,
        .c = file->c,
        .q = file->q,
        .answered = piece->heads.answered & count,
        .none = piece->heads.none & count,
        .doubt = piece->heads.doubt,
        .lost = file->lost,
        .home = file->home,
        .fenced = piece->fence.up,
        .fence_epoch = piece->fence.epoch,
    };
}

bool piece_decide_all(struct repair_piece *piece)
{
    struct piece_plan *plan = &piece->plan;
    const struct decide_rules rules = rules_of(piece);
    uint64_t below[EXTENT_BLOCKS] = { 0 };
    bool any = false;

    assert(piece->heads.n == piece->n);
    assert(piece->n_asks == 0);
    for (unsigned b = 0; b < piece->n; b++) {
        struct decision *d = &plan->decided[b];
        unsigned n;
        const struct decide_answer *a = piece_answers(piece, b, &n);

        decide_block(&rules, a, n, d);
        if (piece->heads.too_many[b])
            d->what = DECIDE_UNDECIDED;
        if (d->what != DECIDE_BELOW)
            continue;
        if (plan->n_belows == BELOWS_MAX) {
            d->what = DECIDE_UNDECIDED;
            continue;
        }
        below[b] = d->version;
        any = true;
    }
    if (!any)
        return false;
    plan->n_belows++;
    repair_heads_below(&piece->heads, below);
    return true;
}

/* Returns the newest epoch that the repair saw so far, anywhere. */
static uint32_t newest_epoch(const struct repair_piece *piece)
{
    uint64_t newest = piece->repair->findings.newest;

    for (unsigned b = 0; b < piece->n; b++) {
        if (piece->plan.decided[b].version > newest)
            newest = piece->plan.decided[b].version;
    }
    return version_epoch(newest);
}

/* Returns the epoch of the fence that this decision needs; 0: none. Where no version was
 * seen, it keeps back the last writer that was seen elsewhere. A torn version of epoch 0,
 * such as a head of which only the first half was written, needs any fence. */
static uint32_t fence_epoch(const struct repair_piece *piece, const struct decision *d)
{
    uint32_t epoch;

    if (d->torn == 0 && !d->unwritten)
        return 0;
    epoch = d->unwritten ? newest_epoch(piece) : version_epoch(d->torn);
    return epoch != 0 ? epoch : 1;
}

bool piece_wants_fence(const struct repair_piece *piece, uint32_t *epoch)
{
    bool wanted = false;

    *epoch = 0;
    for (unsigned b = 0; b < piece->n; b++) {
        uint32_t e = fence_epoch(piece, &piece->plan.decided[b]);

        if (e == 0 || (piece->fence.up && e <= piece->fence.epoch))
            continue;
        wanted = true;
        *epoch = e > *epoch ? e : *epoch;
    }
    return wanted && (piece->repair->request.flags & REPAIR_FENCE) != 0 &&
           piece->round.n_fences < FENCES_MAX;
}

static unsigned n_bits(uint32_t bits)
{
    return (unsigned)__builtin_popcount(bits);
}

/* Counts what homes lack, once: it may be damaged in one round and stale in the next. */
static void count_lacks(struct repair_piece *piece, unsigned b)
{
    struct plan_counted *c = &piece->plan.counted[b];
    const struct decision *d = &piece->plan.decided[b];
    struct repair_result *r = &piece->repair->result;
    uint32_t new =
        piece->plan.lack[b] & ~(c->unknown | c->damaged | c->stale | c->missing);
    uint32_t damaged = new & d->damaged;

    assert((piece->plan.lack[b] & ~piece->repair->scope) == 0);
    c->unknown |= d->version == 0 ? damaged : 0;
    c->damaged |= d->version == 0 ? 0 : damaged;
    c->stale |= new & d->stale;
    c->missing |= new & d->missing;
    r->unknown += d->version == 0 ? n_bits(damaged) : 0;
    r->damaged += d->version == 0 ? 0 : n_bits(damaged);
    r->stale += n_bits(new & d->stale);
    r->missing += n_bits(new & d->missing);
}

static void uncount(uint64_t *count, uint32_t projections)
{
    assert(*count >= n_bits(projections));
    *count -= n_bits(projections);
}

void piece_plan_uncount(struct repair_piece *piece)
{
    struct repair_result *r = &piece->repair->result;

    for (unsigned b = 0; b < piece->n; b++) {
        const struct plan_counted *c = &piece->plan.counted[b];
        uint32_t lack = piece->plan.lack[b];

        assert((lack & ~(c->unknown | c->damaged | c->stale | c->missing)) == 0);
        uncount(&r->unknown, lack & c->unknown);
        uncount(&r->damaged, lack & c->damaged);
        uncount(&r->stale, lack & c->stale);
        uncount(&r->missing, lack & c->missing);
    }
}

/* Handles damage in a block that was never written: either a rotten head, or a partial
 * file that does not know. Such homes hear that after all of the file was looked at;
 * before that, and in a rebuild, it does no harm. */
static void unwritten(struct repair_piece *piece, unsigned b)
{
    struct piece_plan *plan = &piece->plan;
    struct repair *repair = piece->repair;

    assert(piece->plan.decided[b].version == 0);
    if ((repair->request.flags & REPAIR_PARTIAL) != 0 || !repair_is_of_all(repair))
        plan->lack[b] = 0;
    findings_unknown(&repair->findings, plan->lack[b]);
    /* A long stretch gets no heads: the file as a whole is declared complete. */
    if (!piece_is_of_extent(piece))
        plan->lack[b] = 0;
}

/* Returns whether marks of this version lie over the whole stretch. */
static bool is_all_over(const struct walk_stretch *stretch, uint64_t version)
{
    for (unsigned i = 0; i < stretch->n_answered; i++) {
        if (stretch->answered[i] == version)
            return true;
    }
    return false;
}

/* Limits a piece to one block if the decided version is not one that lies over the whole
 * stretch. That version came in later, so the stretch may have other content below it
 * elsewhere, which must be neither covered nor committed. */
static void narrow(struct repair_piece *piece)
{
    const struct decision *d = &piece->plan.decided[0];

    if (piece->kind == PIECE_OF_STRETCH && piece->stretch.span != 1 &&
        d->what == DECIDE_FORWARD && d->version != 0 &&
        !is_all_over(&piece->stretch, d->version))
        walk_narrow(piece);
}

void piece_plan(struct repair_piece *piece)
{
    struct repair *repair = piece->repair;
    struct piece_plan *plan = &piece->plan;
    bool first = piece->round.n_rounds == 0 && piece->round.n_fences == 0 &&
                 !piece_is_of_tail(piece) && piece->first >= repair->walk.counted_to;

    assert(piece->heads.n == piece->n);
    narrow(piece);
    plan->has_data = false;
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &plan->decided[b];

        plan->skip[b] = false;
        plan->lack[b] = 0;
        plan->holders[b] = d->holders;
        plan->projections[b] = d->projections;
        plan->has_data |= has_data(piece, b);
        if (first && has_something(piece, b))
            repair->result.looked_at++;
        /* for a tail, a version that is not the mark's: a truncate is under way and
         * begins at another block */
        if (d->what != DECIDE_FORWARD ||
            (piece_is_of_tail(piece) && d->version != piece->stretch.tail_version))
            continue;
        plan->lack[b] = d->lack & repair->scope;
        if (d->version == 0)
            unwritten(piece, b);
        count_lacks(piece, b);
    }
}

void piece_plan_begin(struct repair_piece *piece)
{
    piece->plan.n_belows = 0;
}

void piece_skip(struct repair_piece *piece, unsigned at, unsigned n)
{
    assert(at + n <= piece->n);
    for (unsigned b = at; b < at + n; b++)
        piece->plan.skip[b] = true;
}

void piece_plan_healed(struct repair_piece *piece, unsigned b, unsigned p,
                       unsigned candidate, bool pending)
{
    struct piece_plan *plan = &piece->plan;

    assert(b < piece->n && candidate < piece->repair->file.c);
    assert((plan->lack[b] >> p & 1) != 0);
    plan->lack[b] &= ~(1u << p);
    plan->holders[b] |= 1u << candidate;
    if (plan->projections[b] != 0)
        plan->projections[b] |= 1u << p;
    plan->pending[b] |= pending;
}

uint64_t piece_torn_version(struct repair_piece *piece, unsigned b, unsigned p)
{
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    assert(p < piece->repair->file.n);
    for (unsigned i = 0; i < n; i++) {
        if (a[i].candidate == piece->repair->file.home[p] && a[i].projection == p &&
            a[i].kind == DECIDE_DAMAGED && a[i].level == 0)
            return a[i].version;
    }
    return 0;
}
