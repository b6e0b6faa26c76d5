/*
 * heal_walk.c - walks over files in the order of lists, page by page: those that peers
 * have with us in their distribution, merged, or those on our own disk.
 *
 * In:     heal_walk_begin(), heal_walk_next(); answers to ST_LIST. Thread: the healer's.
 * Out:    w->page().
 * Keeps:  no file of a peer that answered is skipped: a page reaches only as far as all
 *         lists do.
 */
#include "storaged/heal/jobs/heal_walk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/heal/jobs/heal_state.h"

enum {
    LIST_DEADLINE_MS = 60000,
    PAGE_FILES = 256, /* in one ST_LIST */
};

static int file_add(struct heal_walk *w, const struct proj_list_file *f, uint32_t by)
{
    bool own = by == w->h->us;

    assert(w->n_files <= w->files_room);
    if (w->n_files == w->files_room) {
        unsigned room = w->files_room * 2 + 64;
        void *files = realloc(w->files, room * sizeof(w->files[0]));

        if (files == NULL)
            return -ENOMEM;
        w->files = files;
        w->files_room = room;
    }
    w->files[w->n_files++] = (struct heal_walk_file){ .file = *f };
    if (own) {
        w->files[w->n_files - 1].own_projections = f->projections;
        w->files[w->n_files - 1].own_damaged = f->damaged;
        w->files[w->n_files - 1].own_partial = f->partial;
    }
    return 0;
}

static void page_post(struct heal_walk *w)
{
    env_post(w->h->env, &w->task);
}

static void on_page(struct env_task *task)
{
    struct heal_walk *w = container_of(task, struct heal_walk, task);

    if (w->under_way && !w->h->stopping)
        w->page(w, w->files, w->n_files, w->end);
}

/* ---- our own disk ---- */

static void on_own_list(void *arg, const struct proj_list_result *result)
{
    struct heal_walk *w = arg;
    struct healer *h = w->h;
    int rc = result->rc;

    if (!w->under_way) { /* the healer stops */
        healer_idle(h);
        return;
    }
    for (unsigned i = 0; rc == 0 && i < result->n_files; i++)
        rc = file_add(w, &result->files[i], h->us);
    if (rc != 0) {
        w->n_files = 0;
        w->incomplete = true;
    }
    w->end = rc != 0 || result->end;
    if (!w->end) {
        w->has_after = true;
        w->after = result->after;
    }
    page_post(w);
    healer_idle(h);
}

static void own_list(struct heal_walk *w)
{
    struct proj_list_request request = { .has_after = w->has_after,
                                         .after = w->after,
                                         .max_files = PAGE_FILES };
    struct list_op *op;

    assert(w->own);
    if (proj_list_start(w->h->env, w->h->config.disk, &request, on_own_list, w, &op) ==
        0) {
        w->h->n_busy++;
        return;
    }
    w->end = w->incomplete = true;
    page_post(w);
}

/* ---- lists of the peers ---- */

static int by_order(const void *a, const void *b)
{
    return list_order(&((const struct heal_walk_file *)a)->file.target.id,
                      &((const struct heal_walk_file *)b)->file.target.id);
}

/* Returns whether f has a later distribution than g, or more blocks. */
static bool is_better(const struct proj_list_file *f, const struct proj_list_file *g)
{
    if (!f->known || !g->known)
        return f->known;
    if (f->target.dist_generation != g->target.dist_generation)
        return f->target.dist_generation > g->target.dist_generation;
    return f->blocks > g->blocks;
}

/* Merges the entries of a file: the result is a known one, of the latest distribution,
 * with the most blocks. */
static void files_merge(struct heal_walk *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->n_files; i++) {
        struct heal_walk_file *last = n == 0 ? NULL : &w->files[n - 1];
        struct heal_walk_file *f = &w->files[i];
        bool full;

        if (last == NULL || by_order(last, f) != 0) {
            w->files[n++] = *f;
            continue;
        }
        last->own_projections |= f->own_projections;
        last->own_damaged |= f->own_damaged;
        last->own_partial |= f->own_partial;
        full = f->file.target.full_quorum || last->file.target.full_quorum;
        if (is_better(&f->file, &last->file))
            last->file = f->file;
        last->file.target.full_quorum = full;
    }
    w->n_files = n;
}

static void page_make(struct heal_walk *w)
{
    const struct file_id *limit = NULL;

    assert(w->n_waiting == 0);
    for (unsigned i = 0; i < w->n_peers; i++) {
        const struct heal_walk_peer *p = &w->peers[i];

        if (p->heard && !p->end && (limit == NULL || list_order(&p->after, limit) < 0))
            limit = &p->after;
    }
    if (w->n_files > 0)
        qsort(w->files, w->n_files, sizeof(w->files[0]), by_order);
    files_merge(w);
    while (limit != NULL && w->n_files > 0 &&
           list_order(&w->files[w->n_files - 1].file.target.id, limit) > 0)
        w->n_files--;
    w->end = limit == NULL;
    if (limit != NULL) {
        w->has_after = true;
        w->after = *limit;
    }
    page_post(w);
}

static bool is_ours(const struct heal_walk_peer *p)
{
    return p->ask.storage == p->w->h->us;
}

static int list_take(struct heal_walk_peer *p, const Rozo__StListResp *resp)
{
    int rc = 0;

    if (resp == NULL || resp->n_files > LIST_FILES_MAX ||
        (!resp->end && resp->after.len != FILE_ID_BYTES))
        return -EBADMSG;
    for (size_t i = 0; rc == 0 && i < resp->n_files; i++) {
        const Rozo__StListResp__File *in = resp->files[i];
        struct proj_list_file f = { .projections = in->projections,
                                    .damaged = in->damaged,
                                    .partial = in->partial,
                                    .size = in->size,
                                    .allocated = in->allocated,
                                    .blocks = in->blocks };

        f.known = heal_target_get(in->ref, &f.target) == 0;
        if (!f.known && in->ref != NULL && in->ref->file_id.len == FILE_ID_BYTES)
            file_id_get(in->ref->file_id.data, &f.target.id);
        else if (!f.known)
            continue;
        if (f.known || is_ours(p))
            rc = file_add(p->w, &f, p->ask.storage);
    }
    p->end = resp->end;
    if (!p->end)
        file_id_get(resp->after.data, &p->after);
    if (!p->end && p->w->has_after && list_order(&p->after, &p->w->after) <= 0)
        return -EBADMSG; /* would never end */
    return rc;
}

static void on_peer_list(struct heal_ask *ask, int rc)
{
    struct heal_walk_peer *p = container_of(ask, struct heal_walk_peer, ask);
    struct heal_walk *w = p->w;

    assert(w->under_way && w->n_waiting > 0);
    if (rc == 0) {
        Rozo__StListResp *resp =
            rozo__st_list_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);

        rc = list_take(p, resp);
        rozo__st_list_resp__free_unpacked(resp, NULL);
    }
    p->heard = rc == 0;
    if (rc != 0)
        w->incomplete = true;
    if (--w->n_waiting == 0)
        page_make(w);
}

static void peer_list(struct heal_walk *w, struct heal_walk_peer *p, uint32_t id)
{
    Rozo__StListReq req = ROZO__ST_LIST_REQ__INIT;
    uint8_t after[FILE_ID_BYTES];

    assert(w->n_peers <= w->h->n_peers);
    p->w = w;
    p->heard = p->end = false;
    req.to_storage = id;
    req.max_files = PAGE_FILES;
    req.with_storage = w->h->us;
    if (w->has_after) {
        file_id_put(after, &w->after);
        req.after.data = after;
        req.after.len = sizeof(after);
    }
    p->ask.done = on_peer_list;
    w->n_waiting++;
    heal_ask_send(w->h, &p->ask, id, ROZO__OP__ST_LIST, &req.base, LIST_DEADLINE_MS);
}

/* Asks all storages that may have files, ours included, each from the same place. */
static void peers_list(struct heal_walk *w)
{
    struct healer *h = w->h;

    assert(!w->own && w->n_waiting == 0);
    free(w->peers);
    w->n_peers = 0;
    w->peers = calloc(h->n_peers + 1, sizeof(w->peers[0]));
    if (w->peers == NULL || h->n_peers < 2) { /* no peer to ask: the list is incomplete */
        w->end = w->incomplete = true;
        page_post(w);
        return;
    }
    w->n_waiting = 1; /* one for this function, until all is sent */
    for (unsigned i = 0; i < h->n_peers; i++) {
        const struct heal_peer *peer = &h->peers[i];

        if (peer->lost && peer->id != h->us)
            continue;
        if (peer->channel == NULL || rpc_channel_health(peer->channel) < RPC_SUSPECT)
            w->incomplete = true;
        else
            peer_list(w, &w->peers[w->n_peers++], peer->id);
    }
    if (--w->n_waiting == 0)
        page_make(w);
}

/* ---- the walk ---- */

void heal_walk_next(struct heal_walk *w)
{
    assert(w->under_way && !w->h->stopping);
    w->n_files = 0;
    w->end = false;
    if (w->own)
        own_list(w);
    else
        peers_list(w);
}

void heal_walk_begin(struct healer *h, struct heal_walk *w)
{
    assert(w->page != NULL && !w->under_way);
    w->h = h;
    w->task.fn = on_page;
    w->under_way = true;
    w->incomplete = false;
    heal_walk_next(w);
}

void heal_walk_end(struct heal_walk *w)
{
    free(w->peers);
    free(w->files);
    w->peers = NULL;
    w->files = NULL;
    w->n_files = w->files_room = w->n_peers = 0;
    w->under_way = false;
}
