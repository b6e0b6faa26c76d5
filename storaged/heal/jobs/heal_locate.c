/*
 * heal_locate.c - finds the distribution of a file: asks all peers, one after the other,
 * until one knows it.
 *
 * In:     heal_locate_start(), from the scrub and from checks. Thread: the healer's.
 * Out:    ST_LIST of one file.
 * Keeps:  only answers of storages count, and only a distribution in which we have a
 *         place.
 */
#include "storaged/heal/jobs/heal_locate.h"

#include <assert.h>

#include "storaged/heal/jobs/heal_state.h"

static void ask_next(struct heal_locate *l);

/* Takes a distribution from an answer. Returns false if it is invalid, too old, or
 * without us. */
static bool take_target(struct heal_locate *l, const Rozo__StListResp__File *in)
{
    struct storcli_target target;

    assert(!l->known);
    if (heal_target_get(in->ref, &target) != 0 || list_order(&target.id, &l->id) != 0 ||
        target.dist_generation < l->min_generation)
        return false;
    if (heal_place(&target, l->h->us) == DIST_MAX) {
        l->is_elsewhere = true;
        return false;
    }
    l->target = target;
    return true;
}

static void on_listed(struct heal_ask *ask, int rc)
{
    struct heal_locate *l = container_of(ask, struct heal_locate, ask);
    Rozo__StListResp *resp =
        rc != 0 ? NULL
                : rozo__st_list_resp__unpack(NULL, ask->rq.answer_msg_len,
                                             ask->rq.answer_msg);

    if (resp == NULL || resp->n_files > 0 || !resp->end)
        l->in_doubt = true;
    l->unsure |= resp == NULL || !resp->never_had;
    for (size_t i = 0; resp != NULL && i < resp->n_files; i++)
        l->known = l->known || take_target(l, resp->files[i]);
    rozo__st_list_resp__free_unpacked(resp, NULL);
    ask_next(l);
}

/* Returns the peer to ask next, by id, since the map may change between two requests. */
static const struct heal_peer *peer_next(struct heal_locate *l)
{
    const struct healer *h = l->h;

    for (unsigned i = 0; i < h->n_peers; i++) {
        const struct heal_peer *peer = &h->peers[i];

        l->unsure |= peer->lost;
        if (peer->id > l->asked && peer->id != h->us && !peer->lost)
            return peer;
    }
    return NULL;
}

static void ask_next(struct heal_locate *l)
{
    Rozo__StListReq req = ROZO__ST_LIST_REQ__INIT;
    const struct heal_peer *peer = l->known ? NULL : peer_next(l);
    uint8_t id[FILE_ID_BYTES];

    assert(l->ask.state == ASK_IDLE);
    if (peer == NULL) {
        l->in_doubt |= l->asked == 0;
        l->done(l);
        return;
    }
    file_id_put(id, &l->id);
    req.after.data = id;
    req.after.len = sizeof(id);
    req.only = true;
    req.max_files = 1;
    req.to_storage = l->asked = peer->id;
    l->ask.done = on_listed;
    heal_ask_send(l->h, &l->ask, req.to_storage, ROZO__OP__ST_LIST, &req.base,
                  ASK_DEADLINE_MS);
}

void heal_locate_start(struct healer *h, struct heal_locate *l, const struct file_id *id)
{
    assert(l->done != NULL && l->ask.state == ASK_IDLE);
    l->h = h;
    l->id = *id;
    l->asked = 0;
    l->known = l->in_doubt = l->unsure = l->is_elsewhere = false;
    ask_next(l);
}
