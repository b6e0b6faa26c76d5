/*
 * ownerless.c - finds the distribution of an ownerless file: one with no readable header
 * on this storage.
 *
 * In:     ownerless_ask(), from the scrub. Thread: the healer's.
 * Out:    heal_locate.c; ST_REMOVE to our own storage.
 * Keeps:  a file without a complete header page here is removed only if every storage
 *         that may have a part of it answered that it has none: then fewer than k ever
 *         had it, and no sync of it ended here. If a header page was complete and is
 *         unreadable now, each of them must also be sure that it never had any: a file of
 *         a single storage was never acknowledged and cannot be rebuilt.
 */
#include <assert.h>

#include "storaged/heal/jobs/heal_state.h"
#include "storaged/heal/jobs/sweep.h"

static void on_removed(struct heal_ask *ask, int rc)
{
    struct sweep_file *f = container_of(ask, struct sweep_file, ask);

    f->done(f, rc == 0);
}

/* Removes our file, since no other storage has anything of it. */
static void remove_unfinished(struct sweep_file *f)
{
    Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];

    file_id_put(id, &f->f.file.target.id);
    req.file_id.data = id;
    req.file_id.len = sizeof(id);
    req.unfinished = true;
    req.ruined = f->f.file.projections != 0;
    req.to_storage = f->h->us;
    f->ask.done = on_removed;
    heal_ask_send(f->h, &f->ask, f->h->us, ROZO__OP__ST_REMOVE, &req.base,
                  ASK_DEADLINE_MS);
}

static void on_located(struct heal_locate *l)
{
    struct sweep_file *f = container_of(l, struct sweep_file, locate);

    assert(!f->f.file.known);
    if (l->known) {
        f->f.file.target = l->target;
        f->f.file.known = true;
        f->done(f, true);
    } else if (l->in_doubt || (l->unsure && f->f.file.projections != 0)) {
        f->done(f, false);
    } else {
        remove_unfinished(f);
    }
}

void ownerless_ask(struct sweep_file *f)
{
    assert(f->done != NULL && !f->f.file.known);
    f->was_unknown = true;
    f->locate.done = on_located;
    heal_locate_start(f->h, &f->locate, &f->f.file.target.id);
}
