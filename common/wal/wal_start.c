/*
 * wal_start.c - segments of the previous run, and those of loops that no longer exist.
 *
 * In:     wal_start(), wal_adopt(), wal_forget_old(). Thread: the storio loop.
 * Out:    disk requests, one at a time.
 * Keeps:  no old segment is erased before wal_forget_old(); oldest first.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/wal/wal_in.h"

static const uint8_t zeros[SEGMENT_PAGE_BYTES];

/* ---- segments of the previous run ---- */

static int slots_take(struct wal *wal, struct wal_list *l)
{
    assert(l->n <= WAL_FILES_MAX);
    for (unsigned i = 0; i < l->n; i++) {
        if (l->found[i].rc == -ROZO_EUNKNOWN_FORMAT)
            return -ROZO_EUNKNOWN_FORMAT;
    }
    for (unsigned i = 0; i < l->n; i++) {
        struct wal_found *f = &l->found[i];
        struct slot *s = &wal->slots[f->slot];

        s->has_file = true;
        if (f->rc == -ENODATA)
            continue; /* closed by the list */
        s->file = f->file;
        s->h = f->h;
        s->h.bytes = f->size;
        wal_slot_set(wal, s, SLOT_OLD);
        s->is_odd = f->rc != 0 || f->size != wal->config.segment_bytes;
        s->is_dirty = true; /* a killed process may have left it unsynced */
        wal->n_asked = wal->n_done = 1;
        if (s->h.number >= wal->next_number)
            wal->next_number = s->h.number + 1;
        f->file = NULL;
    }
    return 0;
}

static void on_list(struct wal_list *l, int rc)
{
    struct wal *wal = container_of(l, struct wal, left.list);

    assert(wal->life == WAL_LISTS);
    if (rc == 0)
        rc = slots_take(wal, l);
    wal_list_close(l);
    wal->life = rc == 0 ? WAL_STARTS : WAL_NEW;
    if (rc != 0) {
        wal->start_done(wal->start_arg, rc);
        wal_stop_check(wal);
        return;
    }
    wal_check_later(wal);
}

void wal_start(struct wal *wal, void (*done)(void *arg, int rc), void *arg)
{
    assert(wal->life == WAL_NEW);
    wal->start_done = done;
    wal->start_arg = arg;
    wal->life = WAL_LISTS;
    wal->left.list =
        (struct wal_list){ .disk = wal->config.disk, .loop = wal->config.loop };
    wal->left.list.done = on_list;
    wal_list_start(&wal->left.list);
}

int wal_adopt(struct wal *wal, struct wal_place *place)
{
    struct slot *s = wal_slot_of_number(wal, place->segment);

    assert(!wal_is_starting(wal));
    if (s == NULL || s->state != SLOT_OLD)
        return -ENOENT;
    s->wanted++;
    place->file = s->file;
    place->slot = (uint8_t)wal_slot_index(wal, s);
    return 0;
}

void wal_forget_old(struct wal *wal, void (*done)(void *arg, int rc), void *arg)
{
    assert(wal->life == WAL_RUNS);
    wal->forget_done = done;
    wal->forget_arg = arg;
    wal->forget_rc = 0;
    wal->life = WAL_FORGETS;
    wal->erase_retry_ns = 0;
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        if (wal->slots[i].state == SLOT_OLD)
            wal_slot_retire(wal, &wal->slots[i]);
    }
    wal_check_later(wal);
}

/* ---- segments of loops that no longer exist ---- */

static void leftovers_next_loop(struct wal *wal)
{
    struct wal_list *l = &wal->left.list;

    assert(wal->life == WAL_CLEARS);
    if (l->loop + 1 >= wal->config.n_loops_max || wal->is_stopping) {
        wal_forget_finish(wal, wal->forget_rc);
        wal_check_later(wal);
        return;
    }
    l->loop++;
    wal_list_start(l);
}

static void on_leftover(struct disk_req *dr, int rc);

/* Removes the next segment, oldest first: erases its header (stable), then removes the
 * name. If the header cannot be written, the removal of the name is made stable
 * instead. */
static void leftovers_next(struct wal *wal)
{
    struct leftovers *left = &wal->left;
    struct wal_list *l = &left->list;

    assert(left->index <= l->n);
    if (left->index == l->n) {
        wal_list_close(l);
        leftovers_next_loop(wal);
        return;
    }
    left->unwritten = false;
    wal_path(left->path, l->loop, l->found[left->index].slot);
    left->iov = (struct iovec){ .iov_base = (void *)(uintptr_t)zeros,
                                .iov_len = SEGMENT_PAGE_BYTES };
    left->dr = (struct disk_req){ .op = DISK_WRITE,
                                  .path = left->path,
                                  .file = l->found[left->index].file,
                                  .len = SEGMENT_PAGE_BYTES,
                                  .iov = &left->iov,
                                  .n_iov = 1,
                                  .done = on_leftover,
                                  .arg = wal };
    disk_submit(wal->config.disk, &left->dr);
}

static void on_leftover(struct disk_req *dr, int rc)
{
    struct wal *wal = dr->arg;
    struct leftovers *left = &wal->left;
    bool done = rc == 0 || rc == -ENOENT;

    assert(wal->life == WAL_CLEARS && dr == &left->dr);
    if (dr->op == DISK_WRITE || dr->op == DISK_SYNC) {
        left->unwritten |= !done;
        dr->op = dr->op == DISK_WRITE && done ? DISK_SYNC : DISK_REMOVE;
    } else if (!done) {
        wal_list_close(&left->list);
        wal_forget_finish(wal, rc);
        wal_check_later(wal);
        return;
    } else if (dr->op == DISK_REMOVE && left->unwritten) {
        dr->op = DISK_SYNC_NAME;
    } else {
        left->index++;
        leftovers_next(wal);
        return;
    }
    disk_submit(wal->config.disk, dr);
}

static void on_leftovers(struct wal_list *l, int rc)
{
    struct wal *wal = container_of(l, struct wal, left.list);

    assert(wal->life == WAL_CLEARS);
    if (rc != 0) {
        wal_forget_finish(wal, rc);
        wal_check_later(wal);
        return;
    }
    wal->left.index = 0;
    leftovers_next(wal);
}

void wal_leftovers_start(struct wal *wal)
{
    assert(wal->life == WAL_FORGETS);
    if (wal->config.loop != 0 || wal->config.n_loops >= wal->config.n_loops_max) {
        wal_forget_finish(wal, wal->forget_rc);
        return;
    }
    wal->life = WAL_CLEARS;
    wal->left.list =
        (struct wal_list){ .disk = wal->config.disk, .loop = wal->config.n_loops };
    wal->left.list.done = on_leftovers;
    wal_list_start(&wal->left.list);
}
