/*
 * fanout.c - one request to n storages of a file, with spares.
 *
 * In:     blk_write.c, blk_mark.c, blk_sync.c: the requests to send. Answers, and the
 *         tick. Thread: the env's.
 * Out:    rpc_send(); ops->ended once it is safe or impossible.
 * Keeps:  success means n projections on n storages, or at least the quorum once no
 *         reachable candidate is left to ask; a storage that hangs costs one wait, then
 *         spares are asked at once.
 * Yours:  the order of candidates and the waiting times.
 */
#include "storcli/blocks/fanout.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/units.h"

enum {
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 1000,
    /* times the patience without an answer: as if it were not there */
    ABSENT_TIMES = 3,
    EXTRAS_MS = 100,
    STRAGGLES_MS = 20, /* ms later than twice the median: the storage may be late */
};

static uint32_t all_projections(const struct fanout *s)
{
    return (1u << s->file->n) - 1;
}

static unsigned n_acked(const struct fanout *s)
{
    return (unsigned)__builtin_popcount(s->acked);
}

static void fanout_step(struct fanout *s);
static void fanout_end(struct fanout *s, int rc);

static int refusal_of(uint16_t status)
{
    switch (status) {
    case ROZO__STATUS__STALE_VERSION:
        return -ESTALE;
    case ROZO__STATUS__STALE_DISTRIBUTION:
        return -ROZO_EMOVED;
    case ROZO__STATUS__FENCED:
        return -ROZO_EFENCED;
    case ROZO__STATUS__DENIED:
        return -EACCES;
    case ROZO__STATUS__NO_SPACE:
        return -ENOSPC;
    case ROZO__STATUS__BUSY:
    case ROZO__STATUS__NO_MEMORY:
        return -EBUSY;
    default:
        return -EIO;
    }
}

static void try_refused(struct fanout_try *try, int refusal)
{
    try->state = TRY_REFUSED;
    try->refusal = refusal;
    try->backoff_ms = try->backoff_ms == 0 ? BACKOFF_MIN_MS : try->backoff_ms * 2;
    if (try->backoff_ms > BACKOFF_MAX_MS)
        try->backoff_ms = BACKOFF_MAX_MS;
    try->retry_ns = engine_now_ns(try->fanout->file->cli) + ms_to_ns(try->backoff_ms);
}

static void try_acked(struct fanout_try *try)
{
    struct fanout *s = try->fanout;

    try->state = TRY_ACKED;
    try->took_ns = engine_now_ns(s->file->cli) - try->sent_ns;
    if (!try->slow)
        engine_peer_fine(s->file, try->candidate);
    if (s->ops->reports)
        commit_confirmed(&s->file->commit, try->candidate, try->commit_no);
    s->outcome_unknown &= ~(1u << try->candidate);
    if (try->projection == PROJECTION_ANY) { /* perhaps nothing to mark: no holder */
        if (s->ops->acked != NULL)
            s->ops->acked(s, try->candidate, &try->rq);
        return;
    }
    s->acked |= 1u << try->projection;
    s->held.all |= 1u << try->candidate;
    s->held.any |= 1u << try->candidate;
    s->held.projection[try->candidate] = try->projection;
    if (s->ops->acked != NULL)
        s->ops->acked(s, try->candidate, &try->rq);
}

static void on_try_answer(struct rpc_request *rq, int rc)
{
    struct fanout_try *try = container_of(rq, struct fanout_try, rq);
    struct fanout *s = try->fanout;

    assert(s->running && try->state == TRY_SENT);
    if (rc != 0 || rq->status == ROZO__STATUS__NO_SPACE)
        s->outcome_unknown |= 1u << try->candidate;
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        try_acked(try);
    else
        try_refused(try, rc == 0 ? refusal_of(rq->status) : -EIO);
    fanout_step(s);
}

static void try_send(struct fanout *s, unsigned candidate, unsigned projection)
{
    struct fanout_try *try = &s->tries[candidate];
    uint64_t now_ns = engine_now_ns(s->file->cli);
    uint64_t left_ns = s->deadline_ns > now_ns ? s->deadline_ns - now_ns : 0;
    uint8_t msg[MSG_BYTES_MAX];

    if (try->state == TRY_SENT) { /* replaced: some candidate has done its part */
        rpc_cancel(&try->rq);
        s->outcome_unknown |= 1u << candidate;
    }
    try->commit_no = s->file->commit.no;
    try->state = TRY_SENT;
    try->disconnected = try->slow = false;
    try->projection = (uint8_t)projection;
    try->sent_ns = now_ns;
    try->rq = (struct rpc_request){
        .deadline_ms = (uint32_t)ns_to_ms(left_ns) + 1,
        .done = on_try_answer,
        .session = s->session,
        .msg = msg,
    };
    try->rq.msg_len = s->ops->fill(s, candidate, projection, &try->rq, msg);
    assert(try->rq.msg_len <= sizeof(msg));
    rpc_send(engine_channel(s->file, candidate), &try->rq);
    try->rq.msg = NULL; /* copied */
}

static uint32_t spare_after_ms(const struct fanout *s, const struct fanout_try *try)
{
    return try->candidate < s->file->n ? s->spare_after_ms : s->spare_after_ms / 2;
}

/* Returns true if it is worth sending to and waiting for. The first connection of a new
 * mount counts. */
static bool is_there(const struct fanout *s, unsigned candidate)
{
    return engine_is_up(s->file, candidate) || engine_is_connecting(s->file, candidate);
}

/* Stops waiting for candidates that are unanswered too long, or are said to hang. */
static void note_slow_ones(struct fanout *s, uint64_t now_ns)
{
    for (unsigned i = 0; i < s->file->c; i++) {
        struct fanout_try *try = &s->tries[i];
        bool waited;

        if (try->state != TRY_SENT)
            continue;
        /* reachable again, and has our request */
        if (try->disconnected && engine_is_up(s->file, i)) {
            try->disconnected = try->slow = false;
            try->sent_ns = now_ns;
        }
        if (try->slow)
            continue;
        waited = now_ns - try->sent_ns >= ms_to_ns(spare_after_ms(s, try));
        if (waited && engine_is_connecting(s->file, i))
            engine_peer_never_connected(s->file, i);
        if (!is_there(s, i)) {
            try->disconnected = try->slow = true;
        } else if (waited) {
            try->slow = true;
            engine_peer_slow(s->file, i);
        }
    }
}

static bool is_free(const struct fanout_try *try, uint64_t now_ns)
{
    return try->state == TRY_IDLE ||
           (try->state == TRY_REFUSED && now_ns >= try->retry_ns);
}

/* Returns true if another candidate has acknowledged its projection, too: a slow one
 * answered after all. */
static bool is_redundant(const struct fanout *s, unsigned candidate)
{
    const struct fanout_try *try = &s->tries[candidate];

    if (try->state != TRY_ACKED && try->state != TRY_SENT)
        return false;
    for (unsigned i = 0; i < s->file->c; i++) {
        if (i != candidate && s->tries[i].state == TRY_ACKED &&
            s->tries[i].projection == try->projection)
            return true;
    }
    return false;
}

/* Returns the best candidate for a projection among those of at most this rank; -1:
 * none. */
static int pick_candidate(struct fanout *s, unsigned projection, enum peer_rank worst,
                          uint64_t now_ns)
{
    struct storcli_file *file = s->file;

    for (unsigned rank = PEER_GOOD; rank <= worst; rank++) {
        if (is_free(&s->tries[projection], now_ns) &&
            (engine_rank(file, projection) == rank ||
             engine_is_connecting(file, projection)))
            return (int)projection;
        for (unsigned i = file->n; i < file->c; i++) {
            if (is_free(&s->tries[i], now_ns) && engine_rank(file, i) == rank)
                return (int)i;
        }
        for (unsigned i = 0; i < file->n; i++) { /* came back too late for its own */
            if ((s->acked >> i & 1) != 0 && is_free(&s->tries[i], now_ns) &&
                engine_rank(file, i) == rank)
                return (int)i;
        }
        for (unsigned i = 0; i < file->c; i++) {
            if (engine_rank(file, i) == rank && is_redundant(s, i))
                return (int)i;
        }
    }
    return -1;
}

/* Returns true if an answer for this projection is expected soon. */
static bool is_awaited(const struct fanout *s, unsigned projection)
{
    for (unsigned i = 0; i < s->file->c; i++) {
        const struct fanout_try *try = &s->tries[i];

        if (try->state == TRY_SENT && !try->slow && try->projection == projection)
            return true;
    }
    return false;
}

static bool is_any_awaited(const struct fanout *s)
{
    for (unsigned p = 0; p < s->file->n; p++) {
        if (is_awaited(s, p))
            return true;
    }
    return false;
}

/* Sends every projection that is neither acknowledged nor expected to a candidate. */
static void fill_slots(struct fanout *s, enum peer_rank worst, uint64_t now_ns)
{
    struct storcli_file *file = s->file;

    for (unsigned p = 0; p < file->n; p++) {
        int candidate;

        if ((s->acked >> p & 1) != 0 || is_awaited(s, p))
            continue;
        candidate = pick_candidate(s, p, worst, now_ns);
        if (candidate < 0)
            continue;
        if ((unsigned)candidate >= file->n)
            file->cli->stats.spares++;
        try_send(s, (unsigned)candidate, p);
    }
}

/* Returns true if its own projection is on its way to this home, which has been late for
 * long. */
static bool is_straggling(const struct fanout *s, unsigned p)
{
    return s->tries[p].state == TRY_SENT && s->tries[p].projection == p &&
           straggler_for_long(s->file->cli, s->file->peer[p]);
}

/* Sends the projection of a home that has been late for long to a spare, too, so that n
 * storages have it without waiting for the home. Usually the home has it as well; healing
 * finds that out, as for every home that was passed over. */
static void pass_stragglers(struct fanout *s, uint64_t now_ns)
{
    struct storcli_file *file = s->file;
    unsigned spare = file->n;

    for (unsigned p = 0; p < file->n && !s->ops->stop_at_no_space; p++) {
        if (!is_straggling(s, p))
            continue;
        while (spare < file->c && (!is_free(&s->tries[spare], now_ns) ||
                                   file->peer[spare]->straggler.is_straggler ||
                                   engine_rank(file, spare) != PEER_GOOD))
            spare++;
        if (spare == file->c)
            return;
        file->cli->stats.spares++;
        try_send(s, spare, p);
    }
}

/* Probes storages whose acknowledgement came much later than the median: they may be
 * late. */
static void note_stragglers(struct fanout *s)
{
    struct straggler_times times = { .n = 0 };
    uint64_t limit_ns;

    for (unsigned i = 0; i < s->file->c; i++) {
        if (s->tries[i].state == TRY_ACKED && s->tries[i].projection != PROJECTION_ANY)
            straggler_times_add(&times, s->tries[i].took_ns);
    }
    if (times.n == 0)
        return;
    limit_ns = straggler_times_middle(&times) * 2 + ms_to_ns(STRAGGLES_MS);
    for (unsigned i = 0; times.took_ns[times.n - 1] > limit_ns && i < s->file->c; i++) {
        if (s->tries[i].state == TRY_ACKED && s->tries[i].took_ns > limit_ns)
            straggler_suspect(s->file, i, 0);
    }
}

/* Returns true if a reachable candidate is worth waiting for, although the quorum is
 * reached. */
static bool worth_waiting(struct fanout *s, uint64_t now_ns)
{
    uint64_t absent_ns = ms_to_ns((uint64_t)s->spare_after_ms * ABSENT_TIMES);

    for (unsigned i = 0; i < s->file->c; i++) {
        const struct fanout_try *try = &s->tries[i];

        if (try->state == TRY_SENT) {
            if (!try->slow)
                return true;
            if ((s->acked >> try->projection & 1) == 0 && engine_is_up(s->file, i) &&
                now_ns - try->sent_ns < absent_ns)
                return true;
        }
        if (try->state == TRY_REFUSED && try->refusal == -EBUSY &&
            now_ns - s->started_ns < absent_ns)
            return true;
    }
    return false;
}

static unsigned n_refused(const struct fanout *s, int refusal)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->file->c; i++) {
        if (s->tries[i].state == TRY_REFUSED && s->tries[i].refusal == refusal)
            n++;
    }
    return n;
}

/* Returns the error of a spread that cannot succeed: a refusal if there is one, else
 * -EIO. */
static int failure_of(const struct fanout *s)
{
    if (n_refused(s, -EACCES) > 0)
        return -EACCES;
    if (n_refused(s, -ENOSPC) > 0)
        return -ENOSPC;
    return -EIO;
}

/* Returns true if only another capability or more space would help. */
static bool is_hopeless(const struct fanout *s)
{
    unsigned n_never = n_refused(s, -EACCES) + n_refused(s, -ENOSPC);

    return s->file->c - n_never < s->file->q_write;
}

static void send_extras(struct fanout *s)
{
    s->extras_sent = true;
    s->deadline_ns = engine_now_ns(s->file->cli) + ms_to_ns(EXTRAS_MS);
    for (unsigned i = 0; i < s->file->c; i++) {
        if (s->tries[i].state == TRY_IDLE && engine_rank(s->file, i) == PEER_GOOD)
            try_send(s, i, PROJECTION_ANY);
    }
}

static bool extras_under_way(const struct fanout *s, uint64_t now_ns)
{
    if (now_ns >= s->deadline_ns)
        return false;
    for (unsigned i = 0; i < s->file->c; i++) {
        const struct fanout_try *try = &s->tries[i];

        if (try->state == TRY_SENT && try->projection == PROJECTION_ANY)
            return true;
    }
    return false;
}

/* Ends with success; before that waits briefly for the extra requests. */
static void fanout_safe(struct fanout *s, uint64_t now_ns)
{
    if (!s->extras_sent)
        note_stragglers(s);
    if (s->ops->extras && !s->extras_sent)
        send_extras(s);
    if (!s->ops->extras || !extras_under_way(s, now_ns))
        fanout_end(s, 0);
}

/* Ends with an error. Reservations at other storages must be known before that, so that
 * they can be given back. */
static void fanout_fails(struct fanout *s, int rc)
{
    if (!s->ops->stop_at_no_space || !is_any_awaited(s))
        fanout_end(s, rc);
}

static void fanout_step(struct fanout *s)
{
    uint64_t now_ns = engine_now_ns(s->file->cli);

    s->watch.wake_ns = now_ns + ms_to_ns(WATCH_POLL_MS);
    if (s->extras_sent) {
        fanout_safe(s, now_ns);
        return;
    }
    if (n_refused(s, -ESTALE) > 0) {
        fanout_end(s, -ESTALE);
        return;
    }
    note_slow_ones(s, now_ns);
    if (n_refused(s, -ROZO_EMOVED) > 0 ||
        (engine_is_relocating(s->file) && s->acked != all_projections(s))) {
        fanout_fails(s, -ROZO_EMOVED);
        return;
    }
    /* others may not know it yet: the less they get, the better */
    if (n_refused(s, -ROZO_EFENCED) > 0) {
        fanout_end(s, -EIO);
        return;
    }
    if (is_hopeless(s) || (s->ops->stop_at_no_space && n_refused(s, -ENOSPC) > 0)) {
        fanout_fails(s, failure_of(s));
        return;
    }
    if (s->acked != all_projections(s))
        fill_slots(s, PEER_SLOW, now_ns);
    if (s->acked == all_projections(s) ||
        (n_acked(s) >= s->file->q_write && !worth_waiting(s, now_ns))) {
        fanout_safe(s, now_ns);
        return;
    }
    if (n_acked(s) < s->file->q_write && !worth_waiting(s, now_ns))
        fill_slots(s, PEER_SUSPECT, now_ns); /* perhaps none of them really hangs */
    if (now_ns >= s->deadline_ns)
        fanout_end(s, n_acked(s) >= s->file->q_write ? 0 : failure_of(s));
}

static void on_spread_wake(struct watch *watch)
{
    fanout_step(container_of(watch, struct fanout, watch));
}

void fanout_cancel(struct fanout *s)
{
    if (!s->running)
        return;
    for (unsigned i = 0; i < s->file->c; i++) {
        if (s->tries[i].state != TRY_SENT)
            continue;
        rpc_cancel(&s->tries[i].rq);
        s->outcome_unknown |= 1u << i;
        if (!s->tries[i].slow && is_straggling(s, i))
            s->in_flight |= 1u << i;
    }
    watch_stop(s->file->cli, &s->watch);
    free(s->tries);
    s->tries = NULL;
    s->running = false;
}

static void fanout_end(struct fanout *s, int rc)
{
    fanout_cancel(s);
    s->ops->ended(s, rc);
}

int fanout_start(struct fanout *s, const struct blk_op *op, const struct fanout_ops *ops,
                 bool sync)
{
    struct storcli_file *file = op->file;
    struct storcli *cli = file->cli;
    uint64_t now_ns = engine_now_ns(cli);

    s->tries = calloc(file->c, sizeof(*s->tries));
    if (s->tries == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < file->c; i++) {
        s->tries[i].fanout = s;
        s->tries[i].candidate = (uint8_t)i;
    }
    s->file = file;
    s->session = op->session;
    s->ops = ops;
    s->started_ns = now_ns;
    s->deadline_ns = now_ns + ms_to_ns(cli->config.write_deadline_ms);
    s->spare_after_ms = cli->config.spare_ms * (sync ? 2 : 1);
    memset(s->held.projection, UNSYNCED_NO_PROJECTION, sizeof(s->held.projection));
    s->running = true;
    watch_start(cli, &s->watch, on_spread_wake);
    s->watch.wake_ns = now_ns + ms_to_ns(WATCH_POLL_MS);
    fill_slots(s, PEER_SLOW, now_ns);
    if (cli->n_stragglers != 0) {
        straggler_probe(file, 0);
        pass_stragglers(s, now_ns);
    }
    return 0;
}
