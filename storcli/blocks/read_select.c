/*
 * read_select.c - chooses the storages that a read asks next: the k best, others for
 * those that are slow, all for blocks that are unclear.
 *
 * In:     blk_read.c, while a piece lives. Thread: the env's.
 * Out:    read_ask_send().
 * Yours:  hedging, the order of candidates, how unclear blocks are asked for again.
 */
#include "storcli/blocks/blk_read.h"

enum { SLOW_MAX_MS = 400 };

uint32_t read_asked_candidates(const struct read_piece *piece)
{
    uint32_t asked = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next)
        asked |= 1u << ask->candidate;
    return asked;
}

/* Picks within one rank: homes that are not late, late homes, spares; of late ones the
 * least late. */
static int pick_of_rank(struct storcli_file *file, enum peer_rank rank, uint32_t asked)
{
    int straggler = -1;

    for (unsigned i = 0; i < file->c; i++) {
        if (i == file->n && straggler >= 0)
            return straggler;
        if ((asked >> i & 1) != 0 || engine_rank(file, i) != rank)
            continue;
        if (!file->peer[i]->straggler.is_straggler)
            return (int)i;
        if (straggler < 0 || file->peer[i]->straggler.excess_ns <
                                 file->peer[straggler]->straggler.excess_ns)
            straggler = (int)i;
    }
    return straggler;
}

int read_pick_candidate(const struct read_piece *piece, enum peer_rank worst)
{
    struct storcli_file *file = piece->op->op.file;
    uint32_t asked = read_asked_candidates(piece);

    for (unsigned rank = PEER_GOOD; rank <= worst; rank++) {
        int candidate = pick_of_rank(file, rank, asked);

        if (candidate >= 0)
            return candidate;
    }
    return -1;
}

bool read_ask_candidate(struct read_piece *piece, unsigned candidate, unsigned at,
                        unsigned n)
{
    struct storcli_file *file = piece->op->op.file;

    return read_ask_send(piece, candidate,
                         candidate < file->n ? candidate : PROJECTION_ANY, at, n, 0);
}

/* Returns the time after which an unanswered request is not waited for. */
static uint64_t slow_ns(const struct storcli *cli, const struct read_ask *ask)
{
    uint64_t least = ms_to_ns(cli->config.hedge_ms), most = ms_to_ns(SLOW_MAX_MS);
    /* when all are slow, haste makes it worse */
    uint64_t wanted = cli->read_latency_ns * 4;

    if (most < least)
        most = least;
    return (wanted < least ? least : wanted > most ? most : wanted) + ask->grace_ns;
}

/* Returns the time after which an unanswered request is hedged; its answer still
 * counts. */
static uint64_t straggler_wait_ns(const struct storcli *cli, const struct read_ask *ask)
{
    uint64_t hedge_ns = ms_to_ns(cli->config.hedge_ms);
    uint64_t grace_ns = ask->grace_ns < hedge_ns / 4 ? ask->grace_ns : hedge_ns / 4;

    return hedge_ns / 3 + cli->read_latency_ns * 2 + grace_ns;
}

void read_note_slow_ones(struct read_piece *piece, uint64_t now_ns)
{
    struct storcli_file *file = piece->op->op.file;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        uint64_t waited_ns = now_ns - ask->sent_ns;
        bool was_fine = ask->pace == PACE_FINE;

        if (ask->state != ASK_SENT || ask->pace == PACE_SLOW)
            continue;
        if (!engine_is_up(file, ask->candidate) || waited_ns >= slow_ns(file->cli, ask))
            ask->pace = PACE_SLOW;
        else if (waited_ns >= straggler_wait_ns(file->cli, ask))
            ask->pace = PACE_HEDGED;
        if (was_fine && ask->pace != PACE_FINE)
            file->cli->stats.hedges++;
    }
}

/* Counts the candidates that answered without doubt, or are expected to answer soon. */
static unsigned n_counted_on(const struct read_piece *piece)
{
    uint32_t counted = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if ((ask->state == ASK_ANSWERED && !ask->doubt) ||
            (ask->state == ASK_SENT && ask->pace == PACE_FINE))
            counted |= 1u << ask->candidate;
    }
    return (unsigned)__builtin_popcount(counted);
}

bool read_is_awaited(const struct read_piece *piece)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_SENT && ask->pace == PACE_FINE)
            return true;
    }
    return false;
}

/* Returns true if the request covers what the others cover, so that times can be
 * compared. */
static bool is_comparable(const struct read_piece *piece, const struct read_ask *ask)
{
    return ask->at == piece->at && ask->n == piece->n && ask->at_most == 0 &&
           (ask->state == ASK_ANSWERED ||
            (ask->state == ASK_SENT && ask->pace != PACE_SLOW));
}

/* Returns the median time of the storages that answered; 0: too few did. */
static uint64_t middle_time(const struct read_piece *piece)
{
    struct straggler_times times = { .n = 0 };

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_ANSWERED && is_comparable(piece, ask) && times.n < DIST_MAX)
            straggler_times_add(&times, ask->took_ns);
    }
    return times.n < piece->op->op.file->k ? 0 : straggler_times_middle(&times);
}

void read_note_times(struct read_piece *piece, uint64_t now_ns)
{
    struct storcli_file *file = piece->op->op.file;
    uint64_t middle_ns = middle_time(piece);

    if (middle_ns == 0)
        return;
    straggler_note_typical(file->cli, middle_ns);
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        bool answered = ask->state == ASK_ANSWERED;
        uint64_t took_ns = answered ? ask->took_ns : now_ns - ask->sent_ns;

        if (is_comparable(piece, ask))
            straggler_note(file->cli, file->peer[ask->candidate],
                           took_ns > middle_ns ? took_ns - middle_ns : 0, !answered);
    }
}

unsigned read_n_in_state(const struct read_piece *piece, enum ask_state state,
                         bool slow_too)
{
    unsigned n = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == state && (slow_too || ask->pace != PACE_SLOW))
            n++;
    }
    return n;
}

void read_ask_until_k(struct read_piece *piece)
{
    unsigned k = piece->op->op.file->k;

    while (n_counted_on(piece) < k) {
        int candidate = read_pick_candidate(piece, PEER_SLOW);

        if (candidate < 0)
            candidate = read_pick_candidate(piece, PEER_SUSPECT);
        if (candidate < 0 ||
            !read_ask_candidate(piece, (unsigned)candidate, piece->at, piece->n))
            return;
    }
}

static bool was_asked(const struct read_piece *piece, unsigned candidate,
                      unsigned projection)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->candidate == candidate && ask->projection == projection)
            return true;
    }
    return false;
}

bool read_ask_beside(struct read_piece *piece, unsigned at, unsigned n)
{
    unsigned n_projections = piece->op->op.file->n;
    bool any = false;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        /* a home that lacks its own projection may hold another one */
        if (ask->state == ASK_FAILED && ask->lack == LACK_OTHERS_UNASKED) {
            ask->lack = LACK_OTHERS_ASKED;
            any = read_ask_send(piece, ask->candidate, PROJECTION_ANY, at, n, 0) || any;
        }
        for (unsigned p = 0; ask->state == ASK_ANSWERED && p < n_projections; p++) {
            if ((ask->present >> p & 1) != 0 && !was_asked(piece, ask->candidate, p))
                any = read_ask_send(piece, ask->candidate, p, at, n, 0) || any;
        }
    }
    return any;
}

bool read_ask_the_rest(struct read_piece *piece)
{
    unsigned first = piece->at, end = piece->at + piece->n;
    bool any;
    int candidate;

    while (first < end && piece->blocks[first].clear)
        first++;
    while (end > first && piece->blocks[end - 1].clear)
        end--;
    if (first == end)
        return false;
    any = read_ask_beside(piece, first, end - first);
    while ((candidate = read_pick_candidate(piece, any ? PEER_SLOW : PEER_SUSPECT)) >=
           0) {
        if (!read_ask_candidate(piece, (unsigned)candidate, first, end - first))
            break;
        any = true;
    }
    return any;
}

/* Returns true if all of these blocks were asked for already. */
static bool was_asked_below(const struct read_piece *piece, const struct read_ask *as,
                            unsigned at, unsigned n, uint64_t at_most)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->candidate == as->candidate && ask->projection == as->projection &&
            ask->at_most == at_most && ask->at <= at && ask->at + ask->n >= at + n)
            return true;
    }
    return false;
}

/* Asks the storages that have `version` of blocks [first, end) for the version below
 * it. */
static bool ask_below_run(struct read_piece *piece, unsigned first, unsigned end,
                          uint64_t version)
{
    bool any = false;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        unsigned at = ask->at > first ? ask->at : first, b;
        unsigned past = ask->at + ask->n < end ? ask->at + ask->n : end;

        if (ask->state != ASK_ANSWERED || at >= past)
            continue;
        for (b = at; b < past; b++) {
            if (ask->judged[b - ask->at] != JUDGED_BAD &&
                read_head_version(read_ask_head(ask, b)) == version)
                break;
        }
        if (b < past && !was_asked_below(piece, ask, at, past - at, version - 1))
            any = read_ask_send(piece, ask->candidate, ask->projection, at, past - at,
                                version - 1) ||
                  any;
    }
    return any;
}

bool read_ask_below(struct read_piece *piece)
{
    unsigned end = piece->at + piece->n, past;
    bool any = false;

    for (unsigned b = piece->at; b < end; b = past) {
        uint64_t version = piece->blocks[b].below;

        past = b + 1;
        if (version == 0)
            continue;
        while (past < end && piece->blocks[past].below == version)
            past++;
        any = ask_below_run(piece, b, past, version) || any;
    }
    return any;
}
