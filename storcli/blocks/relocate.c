/*
 * relocate.c - moves an open file to a new distribution.
 *
 * In:     storcli_file_update() with a ref of a higher generation. Thread: the env's.
 * Out:    the file's target and the fields that depend on it.
 * Keeps:  an operation sees one distribution from its beginning to its end. Operations
 *         that began with the old one end, most of them with -ROZO_EMOVED, before the
 *         new one is taken; those that begin meanwhile wait.
 * Ask:    docs/internals/redistribution.md.
 *
 * exportd changes a distribution when every block is complete and stable at the storages
 * that stay, and no client may write. So unsynced data of such a storage stay in the
 * lists by place; a storage that was replaced leaves the lists, and healing fills the one
 * in its place.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storcli/blocks/engine.h"

static bool is_same_file(const struct storcli_target *a, const struct storcli_target *b)
{
    return file_id_equal(&a->id, &b->id) && a->codec == b->codec &&
           a->layout == b->layout && a->block_bytes == b->block_bytes;
}

static bool is_same_place(const struct storcli_target *a, const struct storcli_target *b)
{
    return a->n_storages == b->n_storages &&
           memcmp(a->storages, b->storages, a->n_storages * sizeof(a->storages[0])) == 0;
}

/* ---- the change ---- */

/* Forgets a candidate whose place another storage has taken. */
static void candidate_is_replaced(struct storcli_file *file, unsigned candidate)
{
    background_replaced(file, candidate);
    commit_replaced(&file->commit, candidate);
    unsynced_replaced(&file->unsynced, candidate);
}

static void held_start(struct storcli_file *file)
{
    struct blk_op *held = file->held;

    file->held = NULL;
    file->held_tail = &file->held;
    file->n_held = 0;
    while (held != NULL) {
        struct blk_op *op = held;

        held = op->next;
        blk_op_start(op, op->need_bytes, op->run);
    }
}

static void relocate(struct storcli_file *file)
{
    struct storcli_target *next = file->next;
    int rc;

    for (unsigned i = 0; i < file->c; i++) {
        if (next->storages[i] != file->target.storages[i])
            candidate_is_replaced(file, i);
    }
    file->next = NULL;
    file->target = *next;
    free(next);
    engine_count_candidates(file);
    for (unsigned i = 0; i < file->c; i++) {
        file->peer[i] = engine_peer_get(file->cli, file->target.storages[i]);
        assert(file->peer[i] != NULL); /* relocate_begin() got it */
    }
    rc = engine_ref_pack(file);
    assert(rc == 0); /* relocate_begin() checked it */
    (void)rc;
    file->starved = false;
    background_relocated(file);
    held_start(file);
}

void engine_relocate_look(struct storcli_file *file)
{
    if (engine_is_relocating(file) && file->syncing == NULL &&
        file->n_ops == file->n_held)
        relocate(file);
}

/* ---- a new target from exportd ---- */

/* Prepares the change: every step that can fail is here. */
static int relocate_begin(struct storcli_file *file, const struct storcli_target *target)
{
    struct storcli_target *next = file->next;

    if (target->n_storages < file->c)
        return -EINVAL;
    for (unsigned i = 0; i < target->n_storages; i++) {
        if (engine_peer_get(file->cli, target->storages[i]) == NULL)
            return -ENOMEM;
    }
    if (next == NULL)
        next = malloc(sizeof(*next));
    if (next == NULL)
        return -ENOMEM;
    *next = *target;
    next->session = file->target.session;
    file->next = next;
    return 0;
}

static void rights_take(struct storcli_target *to, const struct storcli_target *from)
{
    memcpy(to->capability, from->capability, from->capability_len);
    to->capability_len = from->capability_len;
    if (from->session != 0)
        to->session = from->session;
}

int storcli_file_update(struct storcli_file *file, const struct storcli_target *target)
{
    const struct storcli_target *newest = file->next != NULL ? file->next : &file->target;
    int rc = engine_target_check(target);

    if (rc == 0 && (!is_same_file(target, newest) ||
                    (target->dist_generation == newest->dist_generation &&
                     !is_same_place(target, newest))))
        rc = -EINVAL;
    if (rc == 0 && target->dist_generation > newest->dist_generation)
        rc = relocate_begin(file, target);
    if (rc != 0)
        return rc;
    rights_take(&file->target, target);
    if (file->next != NULL)
        rights_take(file->next, target);
    rc = engine_ref_pack(file);
    if (engine_is_relocating(file) && file->syncing != NULL)
        engine_sync_relocates(file);
    engine_relocate_look(file);
    return rc;
}

uint32_t storcli_file_dist_generation(const struct storcli_file *file)
{
    return file->next != NULL ? file->next->dist_generation
                              : file->target.dist_generation;
}
