/*
 * repair_plan.c - decides the blocks of a piece and plans the repair of each.
 *
 * In:     heads, as they came. Thread: that of the env.
 * Out:    decisions and the projections that homes lack; counts of the repair.
 * Keeps:  all decisions are those of repair_decide.h.
 */
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
        .told = piece->heads.told & count,
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
    const struct decide_rules rules = rules_of(piece);
    uint64_t below[EXTENT_BLOCKS] = { 0 };
    bool any = false;

    for (unsigned b = 0; b < piece->n; b++) {
        struct decision *d = &piece->decided[b];
        unsigned n;
        const struct decide_answer *a = piece_answers(piece, b, &n);

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
    repair_heads_below(&piece->heads, below);
    return true;
}

bool piece_wants_fence(const struct repair_piece *piece, uint32_t *epoch)
{
    bool wanted = false;

    *epoch = 0;
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];
        uint32_t e = version_epoch(d->torn);

        if (d->torn == 0 || (piece->fence.up && e <= piece->fence.epoch))
            continue;
        wanted = true;
        *epoch = e > *epoch ? e : *epoch;
    }
    return wanted && (piece->repair->request.flags & REPAIR_FENCE) != 0 &&
           piece->n_fences < FENCES_MAX;
}

static void count_lacks(struct repair_piece *piece, unsigned b)
{
    const struct decision *d = &piece->decided[b];
    struct repair_result *r = &piece->repair->result;
    uint32_t new = piece->lack[b] & ~piece->counted[b];

    if (d->version == 0)
        r->unknown += (unsigned)__builtin_popcount(new);
    else
        r->damaged += (unsigned)__builtin_popcount(new & d->damaged);
    r->stale += (unsigned)__builtin_popcount(new & d->stale);
    r->missing += (unsigned)__builtin_popcount(new & d->missing);
    piece->counted[b] |= piece->lack[b];
}

/* Handles damage in a block that was never written: either a rotten head, or a partial
 * file that does not know. Such homes hear that after all of the file was looked at;
 * before that, and in a rebuild, it does no harm. */
static void unwritten(struct repair_piece *piece, unsigned b)
{
    struct repair *repair = piece->repair;

    if ((repair->request.flags & REPAIR_PARTIAL) != 0 || !repair_is_of_all(repair))
        piece->lack[b] = 0;
    findings_unknown(&repair->findings, piece->lack[b]);
    /* A long stretch gets no heads: the file as a whole is declared complete. */
    if (piece->flat)
        piece->lack[b] = 0;
}

static bool was_told(const struct repair_piece *piece, uint64_t version)
{
    for (unsigned i = 0; i < piece->n_told; i++) {
        if (piece->told[i] == version)
            return true;
    }
    return false;
}

/* Limits a flat piece to one block if the decided version is not one that lies over the
 * whole stretch. That version came in later, so the stretch may have other content below
 * it elsewhere, which must be neither covered nor committed. */
static void narrow(struct repair_piece *piece)
{
    const struct decision *d = &piece->decided[0];

    if (!piece->flat || piece->tail || piece->span == 1 || d->what != DECIDE_FORWARD ||
        d->version == 0 || was_told(piece, d->version))
        return;
    piece->span = 1;
    if (piece->uneven)
        repair_again(piece->repair, piece->first + 1);
}

void piece_plan(struct repair_piece *piece)
{
    struct repair *repair = piece->repair;
    bool first = piece->n_rounds == 0 && piece->n_fences == 0 && !piece->tail &&
                 piece->first >= repair->walk.counted_to;

    narrow(piece);
    piece->sparse = true;
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &piece->decided[b];

        piece->skip[b] = false;
        piece->lack[b] = 0;
        piece->holders[b] = d->holders;
        piece->projections[b] = d->projections;
        if (has_data(piece, b))
            piece->sparse = false;
        if (first && has_something(piece, b))
            repair->result.looked_at++;
        /* for a tail, a version that is not the mark's: a truncate is under way and
         * begins at another block */
        if (d->what != DECIDE_FORWARD ||
            (piece->tail && d->version != piece->tail_version))
            continue;
        piece->lack[b] = d->lack & repair->scope;
        if (d->version == 0)
            unwritten(piece, b);
        count_lacks(piece, b);
    }
}

uint64_t piece_torn_version(struct repair_piece *piece, unsigned b, unsigned p)
{
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].candidate == piece->repair->file.home[p] && a[i].projection == p &&
            a[i].kind == DECIDE_DAMAGED && a[i].level == 0)
            return a[i].version;
    }
    return 0;
}
