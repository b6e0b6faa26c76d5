/*
 * mend_commit.c - what a mend has seen and done is made stable, then committed; spares drop what they
 * need no more.
 *
 * In:     notes of the pieces; mend_sync_start(), mend_commit_next() in turn. Thread: that of the env.
 * Out:    ST_SYNC, ST_COMMIT, ST_DROP.
 * Keeps:  a version is committed only when at least q storages had it before a sync that ended well,
 *         with the verifier they had before anything was looked at: so none lost it in between. Of data each has
 *         a projection of its own: readers take what shows on fewer for what nobody acknowledged. A commit that
 *         does not arrive is made again by whoever settles next.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storaged/heal/repair/mend_int.h"

/* ---- notes ---- */

static void range_add(struct mend *mend, const struct mend_range *r)
{
    struct mend_range *last =
        mend->n_ranges == 0 ? NULL : &mend->ranges[mend->n_ranges - 1];

    if (last != NULL && last->n != 0 && last->first + last->n == r->first &&
        last->version == r->version && last->holders == r->holders &&
        last->projections == r->projections && last->clean == r->clean &&
        last->cleaner == r->cleaner) {
        last->n = r->n == 0 ? 0 : last->n + r->n;
        return;
    }
    if ((mend->n_ranges & (mend->n_ranges - 1)) == 0) {
        size_t n = mend->n_ranges == 0 ? 1 : 2 * (size_t)mend->n_ranges;
        struct mend_range *ranges = realloc(mend->ranges, n * sizeof(*ranges));

        if (ranges == NULL) {
            mend_problem(mend, "out of memory"); /* the next one who settles does it */
            return;
        }
        mend->ranges = ranges;
    }
    mend->ranges[mend->n_ranges++] = *r;
}

void mend_note_commit(struct mend *mend, uint64_t first, uint64_t n, uint64_t version,
                      uint32_t holders, uint32_t projections)
{
    range_add(mend, &(struct mend_range){ .first = first,
                                          .n = n,
                                          .version = version,
                                          .holders = holders,
                                          .projections = projections });
}

void mend_note_clean(struct mend *mend, uint64_t first, uint64_t n, uint64_t version,
                     uint32_t holders, unsigned candidate, uint32_t projections)
{
    range_add(mend, &(struct mend_range){ .first = first,
                                          .n = n,
                                          .version = version,
                                          .holders = holders,
                                          .clean = projections,
                                          .cleaner = (uint8_t)candidate });
}

void mend_note_verifier(struct mend *mend, unsigned candidate, uint64_t verifier)
{
    if ((mend->verified >> candidate & 1) == 0)
        mend->verifier[candidate] = verifier;
    mend->verified |= 1u << candidate;
}

bool mend_batch_is_due(const struct mend *mend)
{
    return mend->n_ranges >= MEND_RANGES_MAX || mend->batch_bytes >= MEND_BATCH_BYTES ||
           (mend->pressure && mend->batch_bytes > 0);
}

bool mend_batch_is_empty(const struct mend *mend)
{
    return mend->n_ranges == 0 && mend->to_sync == 0;
}

/* ---- syncing ---- */

static void take_verifier(struct mend *mend, const struct ask *ask)
{
    Rozo__StSyncResp *resp =
        rozo__st_sync_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);
    unsigned i = ask->candidate;

    if (resp == NULL)
        return;
    if ((mend->verified >> i & 1) != 0 && mend->verifier[i] == resp->verifier) {
        mend->synced |= 1u << i;
        mend->proved |= mend->first_synced & 1u << i;
    }
    if (mend->state == MEND_SYNC_FIRST)
        mend->first_synced |= 1u << i;
    else if (mend->verifier[i] != resp->verifier)
        mend->first_synced &= ~(1u << i);
    mend->verifier[i] = resp->verifier;
    mend->verified |= 1u << i;
    rozo__st_sync_resp__free_unpacked(resp, NULL);
}

static void on_batch_synced(struct ask *ask, int rc)
{
    struct mend *mend = container_of(ask - ask->candidate, struct mend, batch_asks[0]);

    mend->n_batch--;
    if (ask_is_ok(ask, rc))
        take_verifier(mend, ask);
    else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE)
        mend->proved |= 1u << ask->candidate; /* there is nothing to be lost */
    if (mend->n_batch == 0)
        mend_step_soon(mend);
}

void mend_sync_start(struct mend *mend, uint32_t candidates)
{
    struct heal_file *file = &mend->file;

    mend->synced = mend->proved = 0;
    mend->batch_at = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;

        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        if ((candidates >> i & 1) != 0 &&
            ask_send(&mend->batch_asks[i], file, i, ROZO__OP__ST_SYNC, &req.base, NULL, 0,
                     on_batch_synced) == 0)
            mend->n_batch++;
    }
    if (mend->n_batch == 0)
        mend_step_soon(mend);
}

/* ---- committing ---- */

static void on_batch_done(struct ask *ask, int rc)
{
    struct mend *mend = container_of(ask - ask->candidate, struct mend, batch_asks[0]);

    mend->n_batch--;
    if (ask->rq.op == ROZO__OP__ST_DROP && mend->state == MEND_BATCH_COMMIT) {
        const struct mend_range *r = &mend->ranges[mend->batch_at - 1];

        if (ask_is_ok(ask, rc))
            mend->result.cleaned += r->n * (unsigned)__builtin_popcount(r->clean);
        else
            mend_problem(mend, "storage %u did not drop what it held as a spare",
                         mend->file.target.storages[ask->candidate]);
    }
    if (ask->rq.op == ROZO__OP__ST_COMMIT && !ask_is_ok(ask, rc))
        mend->uncommitted = true;
    if (mend->n_batch == 0)
        mend_step_soon(mend);
}

/* Spares may have the same projection as a home: with some not synced, only k homes are certain to be enough. */
static bool can_be_read(const struct mend *mend, const struct mend_range *r)
{
    unsigned n = 0;

    for (unsigned p = 0; p < mend->file.n; p++) {
        unsigned home = mend->file.home[p];

        n += home < mend->file.c && ((r->holders & mend->synced) >> home & 1) != 0;
    }
    return (r->holders & ~mend->synced) == 0 || n >= mend->file.k;
}

/* So many have a projection that nobody else here has, whichever those have who are not synced. */
static unsigned n_distinct(const struct mend *mend, const struct mend_range *r)
{
    unsigned n_synced = (unsigned)__builtin_popcount(r->holders & mend->synced),
             n_lost = (unsigned)__builtin_popcount(r->holders & ~mend->synced),
             n = (unsigned)__builtin_popcount(r->projections);

    if (r->projections == 0)
        return n_synced;
    n = n > n_lost ? n - n_lost : 0;
    return n < n_synced ? n : n_synced;
}

static bool may_commit(const struct mend *mend, const struct mend_range *r)
{
    return r->clean == 0 && n_distinct(mend, r) >= mend->file.q && can_be_read(mend, r);
}

/* Have all homes what the spare held, for good? */
static bool may_clean(const struct mend *mend, const struct mend_range *r)
{
    for (unsigned p = 0; p < mend->file.n; p++) {
        unsigned home = mend->file.home[p];

        if (home >= mend->file.c || (r->holders & mend->synced) >> home == 0 ||
            ((r->holders & mend->synced) >> home & 1) == 0)
            return false;
    }
    return r->clean != 0;
}

static void commit_send(struct mend *mend, const Rozo__StCommitReq *what)
{
    struct heal_file *file = &mend->file;

    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StCommitReq req = *what;

        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        if (ask_send(&mend->batch_asks[i], file, i, ROZO__OP__ST_COMMIT, &req.base, NULL,
                     0, on_batch_done) == 0)
            mend->n_batch++;
    }
}

/* All ranges that may be committed, to all. */
static void commit_ranges(struct mend *mend)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    Rozo__StCommitReq__Range *ranges = calloc(mend->n_ranges + 1, sizeof(*ranges));
    Rozo__StCommitReq__Range **list = calloc(mend->n_ranges + 1, sizeof(*list));

    for (unsigned i = 0; ranges != NULL && list != NULL && i < mend->n_ranges; i++) {
        Rozo__StCommitReq__Range *to = &ranges[req.n_ranges];

        if (!may_commit(mend, &mend->ranges[i])) {
            mend->uncommitted |= mend->ranges[i].clean == 0;
            continue;
        }
        rozo__st_commit_req__range__init(to);
        to->first_block = mend->ranges[i].first;
        to->n_blocks = mend->ranges[i].n;
        to->version = mend->ranges[i].version;
        list[req.n_ranges++] = to;
    }
    req.ranges = list;
    if (req.n_ranges > 0)
        commit_send(mend, &req);
    free(list);
    free(ranges);
}

static void clean_send(struct mend *mend, const struct mend_range *r)
{
    struct heal_file *file = &mend->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

    req.ref = &file->ref;
    req.first_block = r->first;
    req.n_blocks = r->n;
    req.keep = r->version;
    req.projections = r->clean;
    req.to_storage = file->target.storages[r->cleaner];
    if (ask_send(&mend->batch_asks[r->cleaner], file, r->cleaner, ROZO__OP__ST_DROP,
                 &req.base, NULL, 0, on_batch_done) == 0)
        mend->n_batch++;
}

static void batch_end(struct mend *mend)
{
    if ((mend->to_sync & ~mend->synced) != 0) {
        mend_problem(mend, "what was made again could not be made stable");
        mend->result.rc = -EIO;
    }
    mend->n_ranges = 0;
    mend->batch_bytes = 0;
    mend->pressure = false;
    mend->to_sync = 0;
}

bool mend_commit_next(struct mend *mend)
{
    assert(mend->n_batch == 0);
    if (mend->batch_at == 0) {
        commit_ranges(mend);
        mend->batch_at = 1; /* from here on: behind the range that is looked at */
        if (mend->n_batch > 0)
            return true;
    }
    while (mend->batch_at <= mend->n_ranges) {
        const struct mend_range *r = &mend->ranges[mend->batch_at - 1];

        if (r->clean != 0 && may_clean(mend, r) && !mend->cleaning) {
            clean_send(mend, r);
            mend->cleaning = mend->n_batch > 0;
            if (mend->n_batch > 0)
                return true;
        }
        mend->cleaning = false;
        mend->batch_at++;
    }
    batch_end(mend);
    return false;
}

bool mend_whole_start(struct mend *mend, uint32_t projections)
{
    struct heal_file *file = &mend->file;

    for (unsigned p = 0; p < file->n; p++) {
        Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
        unsigned home = file->home[p];

        if ((projections >> p & 1) == 0)
            continue;
        req.ref = &file->ref;
        req.to_storage = file->target.storages[home];
        req.whole = 1u << p;
        if (ask_send(&mend->batch_asks[home], file, home, ROZO__OP__ST_COMMIT, &req.base,
                     NULL, 0, on_batch_done) == 0)
            mend->n_batch++;
    }
    return mend->n_batch > 0;
}

bool mend_spoiled_start(struct mend *mend)
{
    struct heal_file *file = &mend->file;

    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

        if (mend->spoiled[i] == 0)
            continue;
        req.ref = &file->ref;
        req.to_storage = file->target.storages[i];
        req.keep = mend->newest;
        req.projections = mend->spoiled[i];
        if (ask_send(&mend->batch_asks[i], file, i, ROZO__OP__ST_DROP, &req.base, NULL, 0,
                     on_batch_done) == 0)
            mend->n_batch++;
    }
    return mend->n_batch > 0;
}

bool mend_remove_start(struct mend *mend)
{
    struct heal_file *file = &mend->file;

    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;

        req.file_id = file->ref.file_id;
        req.to_storage = file->target.storages[i];
        if (ask_send(&mend->batch_asks[i], file, i, ROZO__OP__ST_REMOVE, &req.base, NULL,
                     0, on_batch_done) == 0)
            mend->n_batch++;
    }
    return mend->n_batch > 0;
}

void mend_commit_cancel(struct mend *mend)
{
    for (unsigned i = 0; i < DIST_MAX; i++)
        ask_cancel(&mend->batch_asks[i]);
    free(mend->ranges);
    mend->ranges = NULL;
    mend->n_ranges = 0;
}
