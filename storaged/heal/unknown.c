/*
 * unknown.c - a projection file here that does not say where its file lies: all peers are asked for it.
 *
 * In:     unknown_ask(), from the scrub. Thread: the healer's.
 * Out:    ST_LIST to one peer after the other; ST_REMOVE to our own storage.
 * Keeps:  what cannot be read is taken for nothing only when every storage that may have a part of the file
 *         has said that it has none, and no header page of it ever got to our disk: then fewer than k ever had it, and
 *         no sync of it ended here.
 */
#include <errno.h>

#include "storaged/heal/healer_int.h"

static void ask_next(struct sweep_file *f);

static void on_own(struct heal_ask *ask, int rc)
{
    struct sweep_file *f = container_of(ask, struct sweep_file, ask);

    f->done(f, rc == 0);
}

/* Nobody else has anything of it. */
static void remove_unfinished(struct sweep_file *f)
{
    Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];

    file_id_put(id, &f->f.file.target.id);
    req.file_id.data = id;
    req.file_id.len = sizeof(id);
    req.unfinished = true;
    req.to_storage = f->h->us;
    f->ask.done = on_own;
    heal_ask_send(f->h, &f->ask, f->h->us, ROZO__OP__ST_REMOVE, &req.base,
                  ASK_DEADLINE_MS);
}

static void on_looked(struct heal_ask *ask, int rc)
{
    struct sweep_file *f = container_of(ask, struct sweep_file, ask);

    (void)rc; /* the mend sees what there is */
    f->done(f, true);
}

/* True: the peer says where the file lies, and that is with us, too. */
static bool take_target(struct sweep_file *f, const Rozo__StListResp__File *in)
{
    const struct file_id *id = &f->f.file.target.id;
    struct storcli_target target;

    if (heal_target_get(in->ref, &target) != 0 || list_order(&target.id, id) != 0 ||
        heal_place(&target, f->h->us) == DIST_MAX)
        return false;
    f->f.file.target = target;
    f->f.file.known = true;
    return true;
}

static void on_listed(struct heal_ask *ask, int rc)
{
    struct sweep_file *f = container_of(ask, struct sweep_file, ask);
    Rozo__StListResp *resp =
        rc != 0 ? NULL
                : rozo__st_list_resp__unpack(NULL, ask->rq.answer_msg_len,
                                             ask->rq.answer_msg);
    bool known = false;

    if (resp == NULL || resp->n_files > 0 || !resp->end)
        f->in_doubt = true;
    for (size_t i = 0; resp != NULL && i < resp->n_files; i++)
        known = known || take_target(f, resp->files[i]);
    rozo__st_list_resp__free_unpacked(resp, NULL);
    if (known)
        sweep_look_again(f, on_looked);
    else
        ask_next(f);
}

/* The map may change between two questions. */
static const struct heal_peer *peer_next(const struct healer *h, uint32_t behind)
{
    for (unsigned i = 0; i < h->n_peers; i++) {
        const struct heal_peer *peer = &h->peers[i];

        if (peer->id > behind && peer->id != h->us && !peer->lost)
            return peer;
    }
    return NULL;
}

static void ask_next(struct sweep_file *f)
{
    struct healer *h = f->h;
    Rozo__StListReq req = ROZO__ST_LIST_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];

    const struct heal_peer *peer = peer_next(h, f->asked);

    if (peer == NULL && !f->in_doubt && f->asked != 0) {
        remove_unfinished(f);
        return;
    }
    if (peer == NULL) {
        f->done(f, false);
        return;
    }
    file_id_put(id, &f->f.file.target.id);
    req.after.data = id;
    req.after.len = sizeof(id);
    req.only = true;
    req.max_files = 1;
    req.to_storage = f->asked = peer->id;
    f->ask.done = on_listed;
    heal_ask_send(h, &f->ask, req.to_storage, ROZO__OP__ST_LIST, &req.base,
                  ASK_DEADLINE_MS);
}

void unknown_ask(struct sweep_file *f)
{
    f->asked = 0;
    f->in_doubt = false;
    ask_next(f);
}
