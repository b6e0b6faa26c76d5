/*
 * repair_commit.c - makes stable and commits the work of a repair, and lets spares drop
 * their copies.
 *
 * In:     notes of the pieces; repair_sync_start(), repair_commit_next() in turn. Thread:
 *         that of the env.
 * Out:    ST_SYNC, ST_COMMIT, ST_DROP; ST_REMOVE.
 * Keeps:  a version is committed only if at least q storages had it before a sync that
 *         succeeded, with the verifier they had before anything was looked at: so none
 *         lost it in between. For data each of them must have a different projection,
 *         because readers take a version with fewer distinct projections as never
 *         acknowledged. A commit that gets lost is repeated by the next repair that
 *         recovers the block.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storaged/heal/repair/repair_int.h"

enum {
    RANGES_MAX = 1024, /* in one batch */
    BATCH_BYTES = 32 << 20,
};

/* ---- notes ---- */

static void range_add(struct repair *repair, const struct repair_range *r)
{
    struct repair_batch *b = &repair->batch;
    struct repair_range *last = b->n_ranges == 0 ? NULL : &b->ranges[b->n_ranges - 1];

    assert(r->version != 0 && r->holders != 0);
    assert((r->holders & ~heal_file_all(&repair->file)) == 0);
    assert(r->n == 0 || r->first + r->n > r->first);
    assert(r->clean == 0 || r->cleaner < repair->file.c);
    if (last != NULL && last->n != 0 && last->first + last->n == r->first &&
        last->version == r->version && last->holders == r->holders &&
        last->projections == r->projections && last->clean == r->clean &&
        last->cleaner == r->cleaner) {
        last->n = r->n == 0 ? 0 : last->n + r->n;
        return;
    }
    if ((b->n_ranges & (b->n_ranges - 1)) == 0) {
        size_t n = b->n_ranges == 0 ? 1 : 2 * (size_t)b->n_ranges;
        struct repair_range *ranges = realloc(b->ranges, n * sizeof(*ranges));

        if (ranges == NULL) {
            /* The next repair of these blocks commits it. */
            repair_problem(repair, "out of memory");
            return;
        }
        b->ranges = ranges;
    }
    b->ranges[b->n_ranges++] = *r;
}

void repair_note_commit(struct repair *repair, uint64_t first, uint64_t n,
                        uint64_t version, uint32_t holders, uint32_t projections)
{
    range_add(repair, &(struct repair_range){ .first = first,
                                              .n = n,
                                              .version = version,
                                              .holders = holders,
                                              .projections = projections });
}

void repair_note_clean(struct repair *repair, uint64_t first, uint64_t n,
                       uint64_t version, uint32_t holders, unsigned candidate,
                       uint32_t projections)
{
    assert(projections != 0);
    range_add(repair, &(struct repair_range){ .first = first,
                                              .n = n,
                                              .version = version,
                                              .holders = holders,
                                              .clean = projections,
                                              .cleaner = (uint8_t)candidate });
}

void repair_note_verifier(struct repair *repair, unsigned candidate, uint64_t verifier)
{
    struct repair_batch *b = &repair->batch;

    assert(candidate < repair->file.c);
    if ((b->verified >> candidate & 1) == 0)
        b->verifier[candidate] = verifier;
    b->verified |= 1u << candidate;
}

void repair_note_unstable(struct repair *repair, unsigned candidate)
{
    assert(candidate < repair->file.c);
    repair->batch.to_sync |= 1u << candidate;
}

void repair_note_bytes(struct repair *repair, uint64_t bytes)
{
    repair->batch.bytes += bytes;
}

void repair_note_pressure(struct repair *repair)
{
    repair->batch.pressure = true;
}

bool repair_batch_is_due(const struct repair *repair)
{
    const struct repair_batch *b = &repair->batch;

    return b->n_ranges >= RANGES_MAX || b->bytes >= BATCH_BYTES ||
           (b->pressure && b->bytes > 0);
}

bool repair_batch_is_empty(const struct repair *repair)
{
    return repair->batch.n_ranges == 0 && repair->batch.to_sync == 0;
}

uint32_t repair_batch_candidates(const struct repair *repair)
{
    const struct repair_batch *b = &repair->batch;
    uint32_t candidates = b->to_sync;

    if ((repair->request.flags & REPAIR_PROVE) != 0)
        return heal_file_all(&repair->file);
    for (unsigned i = 0; i < b->n_ranges; i++)
        candidates |= b->ranges[i].holders;
    return candidates;
}

void repair_batch_skip(struct repair *repair)
{
    assert(repair_batch_is_empty(repair));
    repair->batch.bytes = 0;
}

/* ---- syncing ---- */

static void take_verifier(struct repair *repair, const struct repair_ask *ask)
{
    struct repair_batch *b = &repair->batch;
    Rozo__StSyncResp *resp =
        rozo__st_sync_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);
    unsigned i = ask->candidate;

    assert(repair->state == REPAIR_SYNC_FIRST || repair->state == REPAIR_BATCH_SYNC);
    if (resp == NULL)
        return;
    if ((b->verified >> i & 1) != 0 && b->verifier[i] == resp->verifier) {
        b->synced |= 1u << i;
        b->proved |= b->first_synced & 1u << i;
    }
    if (repair->state == REPAIR_SYNC_FIRST)
        b->first_synced |= 1u << i;
    else if (b->verifier[i] != resp->verifier)
        b->first_synced &= ~(1u << i);
    b->verifier[i] = resp->verifier;
    b->verified |= 1u << i;
    rozo__st_sync_resp__free_unpacked(resp, NULL);
}

static void on_batch_synced(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, batch.asks[0]);
    struct repair_batch *b = &repair->batch;

    assert(repair->batch.n_asks > 0);
    b->n_asks--;
    if (repair_ask_is_ok(ask, rc))
        take_verifier(repair, ask);
    /* A storage without the file has nothing to lose. */
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE)
        b->proved |= 1u << ask->candidate;
    if (b->n_asks == 0)
        repair_step_soon(repair);
}

void repair_sync_start(struct repair *repair, uint32_t candidates)
{
    struct repair_batch *b = &repair->batch;
    struct heal_file *file = &repair->file;

    assert(b->n_asks == 0);
    assert((candidates & ~heal_file_all(file)) == 0);
    b->synced = b->proved = 0;
    b->step = BATCH_COMMIT;
    b->at = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;

        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        if ((candidates >> i & 1) != 0 &&
            repair_ask_send(&b->asks[i], file, i, ROZO__OP__ST_SYNC, &req.base, NULL, 0,
                            on_batch_synced) == 0)
            b->n_asks++;
    }
    if (b->n_asks == 0)
        repair_step_soon(repair);
}

/* ---- committing ---- */

static void on_batch_done(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, batch.asks[0]);
    struct repair_batch *b = &repair->batch;

    assert(b->n_asks > 0);
    b->n_asks--;
    if (ask->rq.op == ROZO__OP__ST_DROP && repair->state == REPAIR_BATCH_COMMIT) {
        const struct repair_range *r = &b->ranges[b->at - 1];

        assert(b->step == BATCH_CLEAN && b->at > 0 && b->at <= b->n_ranges);
        if (repair_ask_is_ok(ask, rc))
            repair->result.cleaned += r->n * (unsigned)__builtin_popcount(r->clean);
        else
            repair_problem(repair, "storage %u did not drop its copies as a spare",
                           repair->file.target.storages[ask->candidate]);
    }
    if (repair->state == REPAIR_SPOILED && repair_ask_is_ok(ask, rc))
        b->unspoiled |= 1u << ask->candidate;
    if (ask->rq.op == ROZO__OP__ST_COMMIT && !repair_ask_is_ok(ask, rc))
        b->uncommitted = true;
    if (b->n_asks == 0)
        repair_step_soon(repair);
}

/* Returns whether k synced projections are certain. A spare may have the same projection
 * as a home, so unless all holders are synced, only homes count. */
static bool can_be_read(const struct repair *repair, const struct repair_range *r)
{
    unsigned n = 0;

    for (unsigned p = 0; p < repair->file.n; p++) {
        unsigned home = repair->file.home[p];

        n += home < repair->file.c &&
             ((r->holders & repair->batch.synced) >> home & 1) != 0;
    }
    return (r->holders & ~repair->batch.synced) == 0 || n >= repair->file.k;
}

/* Returns how many synced holders have a projection that no other holder has, in the
 * worst case for the projections of holders that are not synced. */
static unsigned n_distinct(const struct repair *repair, const struct repair_range *r)
{
    unsigned n_synced = (unsigned)__builtin_popcount(r->holders & repair->batch.synced),
             n_lost = (unsigned)__builtin_popcount(r->holders & ~repair->batch.synced),
             n = (unsigned)__builtin_popcount(r->projections);

    if (r->projections == 0)
        return n_synced;
    n = n > n_lost ? n - n_lost : 0;
    return n < n_synced ? n : n_synced;
}

/* A commit makes storages forget what was before, so it needs the larger quorum, whether
 * this repair knows full_quorum or not: others may rely on it. */
static bool may_commit(const struct repair *repair, const struct repair_range *r)
{
    return r->clean == 0 && n_distinct(repair, r) >= repair->file.q_commit &&
           can_be_read(repair, r);
}

/* Returns whether a proof may do without the commit: so many candidates are lost that q
 * projections cannot be reached, and all live homes hold the version stably. It stays
 * uncommitted, so that storages keep what it replaced until it is on q: lost candidates
 * may come back, and with one away readers may then pass it over. */
static bool may_stay_uncommitted(const struct repair *repair,
                                 const struct repair_range *r)
{
    const struct heal_file *file = &repair->file;
    unsigned n_live = 0;

    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home >= file->c)
            continue;
        n_live++;
        if (((r->holders & repair->batch.synced) >> home & 1) == 0)
            return false;
    }
    return (repair->request.flags & REPAIR_PROVE) != 0 && n_live < file->q_commit &&
           n_distinct(repair, r) >= file->k && can_be_read(repair, r);
}

/* Returns whether all homes hold stably what the spare has. */
static bool may_clean(const struct repair *repair, const struct repair_range *r)
{
    for (unsigned p = 0; p < repair->file.n; p++) {
        unsigned home = repair->file.home[p];

        if (home >= repair->file.c || (r->holders & repair->batch.synced) >> home == 0 ||
            ((r->holders & repair->batch.synced) >> home & 1) == 0)
            return false;
    }
    return r->clean != 0;
}

static void commit_send(struct repair *repair, const Rozo__StCommitReq *what)
{
    struct heal_file *file = &repair->file;

    assert(what->n_ranges > 0);
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StCommitReq req = *what;

        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        if (repair_ask_send(&repair->batch.asks[i], file, i, ROZO__OP__ST_COMMIT,
                            &req.base, NULL, 0, on_batch_done) == 0)
            repair->batch.n_asks++;
    }
}

/* Commits all ranges that may be committed, at all candidates. */
static void commit_ranges(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    Rozo__StCommitReq__Range *ranges = calloc(b->n_ranges + 1, sizeof(*ranges));
    Rozo__StCommitReq__Range **list = calloc(b->n_ranges + 1, sizeof(*list));

    for (unsigned i = 0; ranges != NULL && list != NULL && i < b->n_ranges; i++) {
        Rozo__StCommitReq__Range *to = &ranges[req.n_ranges];

        if (!may_commit(repair, &b->ranges[i])) {
            b->uncommitted |=
                b->ranges[i].clean == 0 && !may_stay_uncommitted(repair, &b->ranges[i]);
            continue;
        }
        rozo__st_commit_req__range__init(to);
        to->first_block = b->ranges[i].first;
        to->n_blocks = b->ranges[i].n;
        to->version = b->ranges[i].version;
        list[req.n_ranges++] = to;
    }
    req.ranges = list;
    if (req.n_ranges > 0)
        commit_send(repair, &req);
    free(list);
    free(ranges);
}

static void clean_send(struct repair *repair, const struct repair_range *r)
{
    struct heal_file *file = &repair->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

    assert(r->clean != 0 && r->cleaner < file->c);
    req.ref = &file->ref;
    req.first_block = r->first;
    req.n_blocks = r->n;
    req.keep = r->version;
    req.projections = r->clean;
    req.to_storage = file->target.storages[r->cleaner];
    if (repair_ask_send(&repair->batch.asks[r->cleaner], file, r->cleaner,
                        ROZO__OP__ST_DROP, &req.base, NULL, 0, on_batch_done) == 0)
        repair->batch.n_asks++;
}

static void batch_end(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;

    assert(b->at == b->n_ranges && b->n_asks == 0);
    if ((b->to_sync & ~b->synced) != 0) {
        repair_problem(repair, "rebuilt records could not be made stable");
        repair->result.rc = -EIO;
    }
    b->n_ranges = 0;
    b->bytes = 0;
    b->pressure = false;
    b->to_sync = 0;
}

bool repair_commit_next(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;

    assert(repair->state == REPAIR_BATCH_COMMIT);
    assert(b->n_asks == 0);
    if (b->step == BATCH_COMMIT) {
        b->step = BATCH_CLEAN;
        commit_ranges(repair);
        if (b->n_asks > 0)
            return true;
    }
    while (b->at < b->n_ranges) {
        const struct repair_range *r = &b->ranges[b->at++];

        if (!may_clean(repair, r))
            continue;
        clean_send(repair, r);
        if (b->n_asks > 0)
            return true;
    }
    batch_end(repair);
    return false;
}

bool repair_whole_start(struct repair *repair, uint32_t projections)
{
    struct repair_batch *b = &repair->batch;
    struct heal_file *file = &repair->file;

    assert(projections != 0 && repair->batch.n_asks == 0);
    for (unsigned p = 0; p < file->n; p++) {
        Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
        unsigned home = file->home[p];

        if ((projections >> p & 1) == 0)
            continue;
        assert(home < file->c);
        req.ref = &file->ref;
        req.to_storage = file->target.storages[home];
        req.whole = 1u << p;
        if (repair_ask_send(&b->asks[home], file, home, ROZO__OP__ST_COMMIT, &req.base,
                            NULL, 0, on_batch_done) == 0)
            b->n_asks++;
    }
    return b->n_asks > 0;
}

bool repair_spoiled_start(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;
    struct heal_file *file = &repair->file;

    assert(repair->batch.n_asks == 0);
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

        if (repair->findings.spoiled[i] == 0)
            continue;
        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        req.keep = repair->findings.newest;
        req.projections = repair->findings.spoiled[i];
        if (repair_ask_send(&b->asks[i], file, i, ROZO__OP__ST_DROP, &req.base, NULL, 0,
                            on_batch_done) == 0)
            b->n_asks++;
    }
    return b->n_asks > 0;
}

bool repair_remove_start(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;
    struct heal_file *file = &repair->file;

    assert(repair->batch.n_asks == 0);
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;

        req.file_id = file->ref.file_id;
        req.to_storage = file->target.storages[i];
        if (repair_ask_send(&b->asks[i], file, i, ROZO__OP__ST_REMOVE, &req.base, NULL, 0,
                            on_batch_done) == 0)
            b->n_asks++;
    }
    return b->n_asks > 0;
}

void repair_commit_cancel(struct repair *repair)
{
    struct repair_batch *b = &repair->batch;

    for (unsigned i = 0; i < DIST_MAX; i++)
        repair_ask_cancel(&b->asks[i]);
    free(b->ranges);
    b->ranges = NULL;
    b->n_ranges = 0;
}
