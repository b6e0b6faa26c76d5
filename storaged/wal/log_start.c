/*
 * log_start.c - what a log finds of before: its own segments, and those of loops that are not there any more.
 *
 * In:     log_start(), log_adopt(), log_forget_old(). Thread: the storio loop.
 * Out:    disk requests, one at a time.
 * Keeps:  nothing of before is erased until log_forget_old(); oldest first.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/wal/log_in.h"

static const uint8_t zeros[SEGMENT_PAGE_BYTES];

/* ---- what lies there from before ---- */

static int slots_take(struct log *log, struct log_list *l)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (l->found[i].rc == -EPROTONOSUPPORT)
            return -EPROTONOSUPPORT;
    }
    for (unsigned i = 0; i < l->n; i++) {
        struct log_found *f = &l->found[i];
        struct slot *s = &log->slots[f->slot];

        s->has_file = true;
        if (f->rc == -ENODATA)
            continue; /* the list closes it */
        s->file = f->file;
        s->h = f->h;
        s->h.bytes = f->size;
        log_slot_set(log, s, SLOT_OLD);
        s->is_odd = f->rc != 0 || f->size != log->config.segment_bytes;
        s->is_dirty = true; /* a process that was killed may have left it unsynced */
        log->n_asked = log->n_done = 1;
        if (s->h.number >= log->next_number)
            log->next_number = s->h.number + 1;
        f->file = NULL;
    }
    return 0;
}

static void on_list(struct log_list *l, int rc)
{
    struct log *log = (struct log *)((char *)l - offsetof(struct log, left.list));

    log->is_listing = false;
    if (rc == 0)
        rc = slots_take(log, l);
    log_list_close(l);
    if (rc != 0) {
        log->is_starting = false;
        log->start_done(log->start_arg, rc);
        log_stop_check(log);
        return;
    }
    log_check_later(log);
}

void log_start(struct log *log, void (*done)(void *arg, int rc), void *arg)
{
    log->start_done = done;
    log->start_arg = arg;
    log->is_starting = log->is_listing = true;
    log->left.list =
        (struct log_list){ .disk = log->config.disk, .loop = log->config.loop };
    log->left.list.done = on_list;
    log_list_start(&log->left.list);
}

int log_adopt(struct log *log, struct log_place *place)
{
    struct slot *s = log_slot_of_number(log, place->segment);

    if (s == NULL || s->state != SLOT_OLD)
        return -ENOENT;
    s->wanted++;
    place->file = s->file;
    place->slot = (uint8_t)log_slot_index(log, s);
    return 0;
}

void log_forget_old(struct log *log, void (*done)(void *arg, int rc), void *arg)
{
    assert(!log->is_starting && !log->is_forgetting);
    log->forget_done = done;
    log->forget_arg = arg;
    log->forget_rc = 0;
    log->is_forgetting = true;
    log->erase_retry_ns = 0;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        if (log->slots[i].state == SLOT_OLD)
            log_slot_retire(log, &log->slots[i]);
    }
    log_check_later(log);
}

/* ---- segments of loops that are not there any more ---- */

static void leftovers_next_loop(struct log *log)
{
    struct log_list *l = &log->left.list;

    if (l->loop + 1 >= log->config.n_loops_max || log->is_stopping) {
        log->is_listing = false;
        log_forget_finish(log, log->forget_rc);
        log_check_later(log);
        return;
    }
    l->loop++;
    log_list_start(l);
}

static void on_leftover(struct disk_req *dr, int rc);

/* One after the other, oldest first: header away for good, then the name. Where the header cannot be written, the name
 * goes for good. */
static void leftovers_next(struct log *log)
{
    struct leftovers *left = &log->left;
    struct log_list *l = &left->list;

    if (left->index == l->n) {
        log_list_close(l);
        leftovers_next_loop(log);
        return;
    }
    left->unwritten = false;
    log_path(left->path, l->loop, l->found[left->index].slot);
    left->iov = (struct iovec){ .iov_base = (void *)(uintptr_t)zeros,
                                .iov_len = SEGMENT_PAGE_BYTES };
    left->dr = (struct disk_req){ .op = DISK_WRITE,
                                  .path = left->path,
                                  .file = l->found[left->index].file,
                                  .len = SEGMENT_PAGE_BYTES,
                                  .iov = &left->iov,
                                  .n_iov = 1,
                                  .done = on_leftover,
                                  .arg = log };
    disk_submit(log->config.disk, &left->dr);
}

static void on_leftover(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;
    struct leftovers *left = &log->left;
    bool done = rc == 0 || rc == -ENOENT;

    if (dr->op == DISK_WRITE || dr->op == DISK_SYNC) {
        left->unwritten |= !done;
        dr->op = dr->op == DISK_WRITE && done ? DISK_SYNC : DISK_REMOVE;
    } else if (!done) {
        log_list_close(&left->list);
        log->is_listing = false;
        log_forget_finish(log, rc);
        log_check_later(log);
        return;
    } else if (dr->op == DISK_REMOVE && left->unwritten) {
        dr->op = DISK_SYNC_NAME;
    } else {
        left->index++;
        leftovers_next(log);
        return;
    }
    disk_submit(log->config.disk, dr);
}

static void on_leftovers(struct log_list *l, int rc)
{
    struct log *log = (struct log *)((char *)l - offsetof(struct log, left.list));

    if (rc != 0) {
        log->is_listing = false;
        log_forget_finish(log, rc);
        log_check_later(log);
        return;
    }
    log->left.index = 0;
    leftovers_next(log);
}

void log_leftovers_start(struct log *log)
{
    if (log->config.loop != 0 || log->config.n_loops >= log->config.n_loops_max) {
        log_forget_finish(log, log->forget_rc);
        return;
    }
    log->is_listing = true;
    log->left.list =
        (struct log_list){ .disk = log->config.disk, .loop = log->config.n_loops };
    log->left.list.done = on_leftovers;
    log_list_start(&log->left.list);
}
