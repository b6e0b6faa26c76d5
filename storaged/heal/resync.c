/*
 * resync.c - asks every peer for writes that we missed, repairs those blocks, and reports
 * that to the peers.
 *
 * In:     a timer; answers to ST_MISSED_LIST and ST_MISSED_DONE; the ends of jobs.
 *         Thread: the healer's.
 * Out:    jobs of RANK_RETURN.
 * Keeps:  "done" is reported only for hints that the peer had listed before their repair
 *         began; blocks that several peers list are repaired once; peers that are down
 *         are not asked.
 *
 * A round goes page by page: LIST from all -> repair the listed blocks up to the lowest
 * place that all lists reach -> DONE to all -> the next page from there.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/wire/record.h"
#include "storaged/heal/healer_int.h"

enum { ENTRIES_PER_ROUND = 4096, DONE_MAX = 512, FENCE_ROUNDS = 2 };

static void round_list(struct healer *h);

/* Starts the timer of the next round, with jitter: storages that came back together must
 * not always ask together. */
static void round_wait(struct healer *h)
{
    uint16_t jitter;

    env_random(h->env, &jitter, sizeof(jitter));
    env_timer_start(h->env, &h->parts->resync.timer,
                    h->config.return_ms * 3 / 4 + jitter % (h->config.return_ms / 2 + 1));
}

static void round_free(struct resync *r)
{
    free(r->peers);
    free(r->entries);
    free(r->groups);
    r->peers = NULL;
    r->entries = NULL;
    r->groups = NULL;
    r->n_peers = r->n_entries = r->entries_room = r->n_groups = 0;
}

static void round_end(struct healer *h)
{
    assert(h->parts->resync.n_waiting == 0 && h->parts->resync.n_running == 0);
    h->parts->resync.under_way = false;
    h->parts->resync.unhealed_before = h->parts->resync.unhealed;
    h->parts->resync.n_bad =
        h->parts->resync.unhealed > 0 ? h->parts->resync.n_bad + 1 : 0;
    round_free(&h->parts->resync);
    round_wait(h);
}

/* ---- DONE ---- */

static void round_next_page(struct healer *h);

static void on_told(struct heal_ask *ask, int rc)
{
    struct healer *h = ask->h;

    assert(h->parts->resync.n_waiting > 0);
    if (rc != 0)
        log_debug("cannot report healed blocks to storage %u: %s", (unsigned)ask->storage,
                  error_text(rc));
    if (--h->parts->resync.n_waiting == 0)
        round_next_page(h);
}

/* Collects the hints of a peer that are healed now, DONE_MAX at most; the rest comes in
 * another round. */
static unsigned told_collect(struct resync *r, unsigned peer, Rozo__Missed *missed,
                             Rozo__Missed **pointers, struct heal_ref *refs)
{
    unsigned n = 0;

    for (unsigned i = 0; i < r->n_entries && n < DONE_MAX; i++) {
        const struct hint *e = &r->entries[i];

        assert(e->group < r->n_groups);
        if (e->peer != peer || !r->groups[e->group].good)
            continue;
        rozo__missed__init(&missed[n]);
        heal_ref_put(&e->target, &refs[n]);
        missed[n].ref = &refs[n].ref;
        missed[n].first_block = e->first;
        missed[n].n_blocks = e->end == UINT64_MAX ? 0 : e->end - e->first;
        missed[n].version = e->version;
        missed[n].note = e->note;
        pointers[n] = &missed[n];
        n++;
    }
    return n;
}

static void tell_peer(struct healer *h, unsigned peer, Rozo__Missed *missed,
                      Rozo__Missed **pointers, struct heal_ref *refs)
{
    struct resync *r = &h->parts->resync;
    Rozo__StMissedDoneReq req = ROZO__ST_MISSED_DONE_REQ__INIT;

    assert(peer < r->n_peers);
    req.n_missed = told_collect(r, peer, missed, pointers, refs);
    if (req.n_missed == 0)
        return;
    req.storage = h->us;
    req.incarnation = healer_incarnation(h);
    req.missed = pointers;
    req.to_storage = r->peers[peer].id;
    r->peers[peer].ask.done = on_told;
    r->n_waiting++;
    heal_ask_send(h, &r->peers[peer].ask, r->peers[peer].id, ROZO__OP__ST_MISSED_DONE,
                  &req.base, ASK_DEADLINE_MS);
}

static void round_tell(struct healer *h)
{
    struct resync *r = &h->parts->resync;
    Rozo__Missed *missed = calloc(DONE_MAX, sizeof(*missed));
    Rozo__Missed **pointers = calloc(DONE_MAX, sizeof(*pointers));
    struct heal_ref *refs = calloc(DONE_MAX, sizeof(*refs));

    assert(r->n_waiting == 0 && r->n_running == 0);
    r->n_waiting = 1; /* one for this function, until all is sent */
    for (unsigned i = 0; i < r->n_peers; i++) {
        if (missed != NULL && pointers != NULL && refs != NULL)
            tell_peer(h, i, missed, pointers, refs);
    }
    free(refs);
    free(pointers);
    free(missed);
    if (--r->n_waiting == 0)
        round_next_page(h);
}

/* ---- repairing ---- */

/* Recovers blocks that a failed or dead client left incomplete, under a fence. */
static void group_recover(struct healer *h, const struct hint_group *g)
{
    const struct repair_request *r = &g->job.request;

    heal_check_add(h, &r->target, r->first_block,
                   r->n_blocks == 0 ? UINT64_MAX : r->first_block + r->n_blocks,
                   REPAIR_FENCE | REPAIR_ALL_HOMES);
}

/* Returns how many blocks of a good result are torn, if any may be what we missed: a
 * storage that does not answer may have the rest of it. */
static uint64_t n_torn(const struct hint_group *g, const struct repair_result *result)
{
    const struct repair_request *r = &g->job.request;

    return repair_is_good(result) && result->torn_first < r->passed_end &&
                   result->torn_end > r->passed_first
               ? result->n_torn
               : 0;
}

static void on_group_repaired(struct heal_job *job, const struct repair_result *result)
{
    struct hint_group *g = container_of(job, struct hint_group, job);
    struct healer *h = g->h;
    uint64_t torn = n_torn(g, result);

    assert(h->parts->resync.n_running > 0);
    g->good = repair_is_good(result) && torn == 0;
    if (!g->good)
        h->parts->resync.unhealed += torn != 0 ? torn : repair_n_unhealed(result);
    if ((repair_wants_fence(result) || (torn != 0 && result->unanswered == 0)) &&
        h->parts->resync.n_bad >= FENCE_ROUNDS)
        group_recover(h, g);
    if (--h->parts->resync.n_running == 0)
        round_tell(h);
}

static int by_place(const void *a, const void *b)
{
    const struct hint *x = a, *y = b;
    uint8_t ix[FILE_ID_BYTES], iy[FILE_ID_BYTES];
    int d;

    file_id_put(ix, &x->target.id);
    file_id_put(iy, &y->target.id);
    d = memcmp(ix, iy, FILE_ID_BYTES);
    if (d != 0)
        return d;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Returns the lowest place that an unfinished list has reached; NULL: all lists are
 * complete. */
static const uint8_t *round_limit(const struct resync *r)
{
    const uint8_t *limit = NULL;

    for (unsigned i = 0; i < r->n_peers; i++) {
        const struct resync_peer *p = &r->peers[i];

        if (p->heard && !p->end &&
            (limit == NULL || memcmp(p->after, limit, FILE_ID_BYTES) < 0))
            limit = p->after;
    }
    return limit;
}

/* Drops hints beyond the limit, which the next page lists again. */
static void entries_cut(struct resync *r, const uint8_t *limit)
{
    while (limit != NULL && r->n_entries > 0) {
        uint8_t id[FILE_ID_BYTES];

        file_id_put(id, &r->entries[r->n_entries - 1].target.id);
        if (memcmp(id, limit, FILE_ID_BYTES) <= 0)
            break;
        r->peers[r->entries[--r->n_entries].peer].end = false;
    }
}

/* Extends a range to whole extents: a crash in the middle of a missed write may have left
 * other data of the same page half old, half new. */
static uint64_t extent_first(const struct hint *e)
{
    return e->first - e->first % EXTENT_BLOCKS;
}

static uint64_t extent_end(const struct hint *e)
{
    uint64_t over = e->end % EXTENT_BLOCKS;

    return e->end == UINT64_MAX || over == 0 ? e->end : e->end - over + EXTENT_BLOCKS;
}

static bool joins(const struct hint *e, const struct hint *last, uint64_t last_end)
{
    return last != NULL && file_id_equal(&last->target.id, &e->target.id) &&
           extent_first(e) <= last_end;
}

/* Joins hints of the same extents into groups. */
static int groups_make(struct healer *h)
{
    struct resync *r = &h->parts->resync;
    const struct hint *last = NULL;
    uint64_t end = 0;

    assert(r->n_running == 0);
    free(r->groups);
    r->n_groups = 0;
    r->groups = calloc(r->n_entries + 1, sizeof(*r->groups));
    if (r->groups == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < r->n_entries; i++) {
        struct hint *e = &r->entries[i];
        struct repair_request *request;

        if (!joins(e, last, end)) {
            struct hint_group *g = &r->groups[r->n_groups++];

            g->h = h;
            g->job.request = (struct repair_request){ .target = e->target,
                                                      .first_block = extent_first(e),
                                                      .passed_first = e->first };
            end = extent_end(e);
        }
        if (e->end > end)
            end = extent_end(e);
        e->group = r->n_groups - 1;
        request = &r->groups[e->group].job.request;
        request->n_blocks = end == UINT64_MAX ? 0 : end - request->first_block;
        if (e->end > request->passed_end)
            request->passed_end = e->end;
        last = e;
    }
    return 0;
}

static void resync_repair(struct healer *h)
{
    struct resync *r = &h->parts->resync;
    const uint8_t *limit = round_limit(r);
    uint8_t at[FILE_ID_BYTES] = { 0 };

    assert(r->n_waiting == 0 && r->n_running == 0);
    if (limit != NULL)
        memcpy(at, limit, sizeof(at));
    if (r->n_entries > 0)
        qsort(r->entries, r->n_entries, sizeof(r->entries[0]), by_place);
    entries_cut(r, limit);
    for (unsigned i = 0; limit != NULL && i < r->n_peers; i++) {
        r->peers[i].has_after = true;
        memcpy(r->peers[i].after, at, sizeof(at));
    }
    if (groups_make(h) != 0 || r->n_groups == 0) {
        round_next_page(h);
        return;
    }
    r->n_running = r->n_groups;
    for (unsigned i = 0; i < r->n_groups; i++) {
        r->groups[i].job.done = on_group_repaired;
        heal_job_submit(h, &r->groups[i].job, RANK_RETURN);
    }
}

/* ---- LIST ---- */

static int entry_add(struct healer *h, unsigned peer, const Rozo__Missed *m)
{
    struct resync *r = &h->parts->resync;
    struct hint *e;
    struct storcli_target target;

    assert(peer < r->n_peers && r->n_entries <= r->entries_room);
    if (heal_target_get(m->ref, &target) != 0 ||
        !heal_range_is_good(m->first_block, m->n_blocks))
        return 0; /* an invalid hint must not block the others */
    if (r->n_entries == r->entries_room) {
        unsigned room = r->entries_room * 2 + 64;
        void *entries = realloc(r->entries, room * sizeof(*e));

        if (entries == NULL)
            return -ENOMEM;
        r->entries = entries;
        r->entries_room = room;
    }
    e = &r->entries[r->n_entries++];
    *e = (struct hint){
        .target = target,
        .first = m->first_block,
        .end = m->n_blocks == 0 ? UINT64_MAX : m->first_block + m->n_blocks,
        .version = m->version,
        .note = m->note,
        .peer = peer,
    };
    return 0;
}

static int list_take(struct healer *h, unsigned peer, const Rozo__StMissedListResp *resp)
{
    struct resync_peer *p = &h->parts->resync.peers[peer];
    int rc = 0;

    if (resp == NULL || resp->n_missed > 2048 ||
        (!resp->end && resp->after.len != FILE_ID_BYTES))
        return -EBADMSG;
    if (!resp->end && p->has_after &&
        memcmp(resp->after.data, p->after, FILE_ID_BYTES) <= 0)
        return -EBADMSG; /* would never end */
    for (size_t i = 0; rc == 0 && i < resp->n_missed; i++)
        rc = entry_add(h, peer, resp->missed[i]);
    if (rc != 0)
        return rc;
    if (resp->everything != 0)
        rebuild_everything(h, p->id, resp->everything);
    p->end = resp->end;
    if (!p->end)
        memcpy(p->after, resp->after.data, FILE_ID_BYTES);
    return 0;
}

static void on_listed(struct heal_ask *ask, int rc)
{
    struct healer *h = ask->h;
    struct resync_peer *p = container_of(ask, struct resync_peer, ask);
    Rozo__StMissedListResp *resp = NULL;

    assert(h->parts->resync.n_waiting > 0);
    if (rc == 0) {
        resp = rozo__st_missed_list_resp__unpack(NULL, ask->rq.answer_msg_len,
                                                 ask->rq.answer_msg);
        rc = list_take(h, (unsigned)(p - h->parts->resync.peers), resp);
        rozo__st_missed_list_resp__free_unpacked(resp, NULL);
    }
    p->heard = rc == 0;
    if (rc != 0)
        log_debug("storage %u does not list the writes that we missed: %s",
                  (unsigned)p->id, error_text(rc));
    if (--h->parts->resync.n_waiting == 0)
        resync_repair(h);
}

static void round_list(struct healer *h)
{
    struct resync *r = &h->parts->resync;

    assert(r->under_way && r->n_waiting == 0);
    r->n_entries = 0;
    r->n_waiting = 1; /* one for this function, until all is sent */
    for (unsigned i = 0; i < r->n_peers; i++) {
        struct resync_peer *p = &r->peers[i];
        Rozo__StMissedListReq req = ROZO__ST_MISSED_LIST_REQ__INIT;

        if (!p->heard || p->end)
            continue;
        req.storage = h->us;
        req.incarnation = healer_incarnation(h);
        req.max_ranges = r->max_ranges;
        req.to_storage = p->id;
        if (p->has_after) {
            req.after.data = p->after;
            req.after.len = FILE_ID_BYTES;
        }
        p->ask.done = on_listed;
        r->n_waiting++;
        heal_ask_send(h, &p->ask, p->id, ROZO__OP__ST_MISSED_LIST, &req.base,
                      ASK_DEADLINE_MS);
    }
    if (--r->n_waiting == 0)
        round_end(h);
}

static void round_next_page(struct healer *h)
{
    round_list(h);
}

static void round_begin(struct healer *h)
{
    struct resync *r = &h->parts->resync;

    assert(!r->under_way && r->peers == NULL);
    r->peers = calloc(h->n_peers + 1, sizeof(*r->peers));
    if (r->peers == NULL || h->us == 0) {
        round_end(h);
        return;
    }
    for (unsigned i = 0; i < h->n_peers; i++) {
        /* Our own storage is asked, too: it may have hints for us. */
        if (!healer_peer_is_up(&h->peers[i]))
            continue;
        r->peers[r->n_peers].id = h->peers[i].id;
        r->peers[r->n_peers++].heard = true;
    }
    r->max_ranges = ENTRIES_PER_ROUND / (r->n_peers + 1);
    if (r->max_ranges > DONE_MAX)
        r->max_ranges = DONE_MAX;
    if (r->max_ranges < 16)
        r->max_ranges = 16;
    r->under_way = true;
    r->unhealed = 0;
    round_list(h);
}

static void on_timer(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, resync.timer)->h;

    if (!h->parts->resync.under_way)
        round_begin(h);
}

void resync_start(struct healer *h)
{
    env_timer_init(&h->parts->resync.timer, on_timer);
    env_timer_start(h->env, &h->parts->resync.timer, h->config.return_ms / 10 + 1);
}

/* Stops. Requests and jobs were cancelled before. */
void resync_stop(struct healer *h)
{
    if (h->started)
        env_timer_stop(h->env, &h->parts->resync.timer);
    round_free(&h->parts->resync);
}
