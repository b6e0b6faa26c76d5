/*
 * kernel_list.c - open directories and their listings in the kernel.
 *
 * In:     operations of programs, answers of the mount, invalidations.
 * Out:    behaviour of listings as kernel.h says.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster/kernel/kernel_int.h"
#include "tests/sim/cluster/world/proc.h"

enum { LIST_NAMES_MAX = 5 }; /* names in one answer */

/* ---- cached listings ---- */

void klisting_drop(struct kernel *k, struct kinode *i)
{
    struct klisting *l = &i->listing;

    k->counts.n_invalidated += l->n;
    l->n = 0;
    l->end = 0;
    l->is_whole = false;
}

void klisting_free(struct kinode *i)
{
    free(i->listing.names);
}

static void klisting_add(struct klisting *l, const struct sim_dirent *d)
{
    l->names = realloc(l->names, (l->n + 1) * sizeof(*d));
    assert(l->names != NULL);
    l->names[l->n++] = *d;
    l->end = d->next;
}

/* Appends an answer for op->r.off to the listing, if it continues there. */
static void klisting_learn(struct kop *op)
{
    struct klisting *l = &op->inode->listing;
    size_t n = op->req->data_len / sizeof(struct sim_dirent);
    uint64_t at = op->r.off;
    struct sim_dirent d;

    for (size_t i = 0; i < n; i++) {
        memcpy(&d, op->req->data + i * sizeof(d), sizeof(d));
        if (!l->is_whole && at == l->end)
            klisting_add(l, &d);
        at = d.next;
    }
    if (n == 0 && at == l->end)
        l->is_whole = true;
}

/* Starts a listing: drops the cached one if the directory has changed since. */
static void klisting_begin(struct kop *op)
{
    struct kinode *i = op->inode;
    struct klisting *l = &i->listing;

    if (l->is_whole && (l->epoch != op->k->epoch || l->n_changes != i->n_changes ||
                        l->mtime.tv_sec != i->st.st_mtim.tv_sec ||
                        l->mtime.tv_nsec != i->st.st_mtim.tv_nsec))
        klisting_drop(op->k, i);
    if (l->n == 0) {
        l->epoch = op->k->epoch;
        l->n_changes = i->n_changes;
        l->mtime = i->st.st_mtim;
    }
}

/* Returns the index of the name at this offset; -1: unknown. */
static int klisting_find(const struct klisting *l, uint64_t off)
{
    if (!l->is_whole)
        return -1;
    if (off == 0)
        return 0;
    for (unsigned i = 0; i < l->n; i++) {
        if (l->names[i].next == off)
            return (int)i + 1;
    }
    return -1;
}

/* ---- readdir ---- */

static void list_end(struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);

    if (op->below.rc == 0 && f != NULL && f->keeps_names)
        klisting_learn(op);
    kop_end(op, op->below.rc);
}

static void plus_answered(struct kop *op)
{
    const struct sim_direntplus *p =
        (const struct sim_direntplus *)(const void *)op->memory;
    size_t n = op->below.rc == 0 ? op->below.data_len / sizeof(*p) : 0;

    for (size_t i = 0; i < n; i++) {
        kname_learn(op, p[i].d.name, &p[i].entry);
        memcpy(op->req->data + i * sizeof(p->d), &p[i].d, sizeof(p->d));
    }
    op->req->data_len = n * sizeof(p->d);
    list_end(op);
}

static void listed(struct kop *op)
{
    op->req->data_len = op->below.data_len;
    list_end(op);
}

static void list_ask(struct kop *op)
{
    struct request plus = op->r;

    if (!op->k->config.plus || !world_chance(500000)) {
        kop_ask(op, &op->r, listed);
        return;
    }
    plus.kind = REQUEST_READDIRPLUS;
    op->memory = malloc(MOUNT_READ_MAX);
    assert(op->memory != NULL);
    op->below.data = op->memory;
    kop_ask(op, &plus, plus_answered);
}

static void list_from_memory(struct kop *op, unsigned at)
{
    const struct klisting *l = &op->inode->listing;
    unsigned n = l->n - at < LIST_NAMES_MAX ? l->n - at : LIST_NAMES_MAX;

    op->k->counts.n_lists++;
    op->req->data_len = n * sizeof(l->names[0]);
    if (n > 0)
        memcpy(op->req->data, &l->names[at], op->req->data_len);
    kop_end(op, 0);
}

static void list_locked(struct kop *op)
{
    const struct kfile *f = kfile_find(op->k, op->r.fh);
    int at = -1;

    if (f != NULL && f->keeps_names) {
        if (op->r.off == 0)
            klisting_begin(op);
        at = klisting_find(&op->inode->listing, op->r.off);
    }
    if (at >= 0)
        list_from_memory(op, (unsigned)at);
    else
        list_ask(op);
}

static void do_list(struct kop *op)
{
    kop_lock(op, op->inode, false);
    kop_locked(op, list_locked);
}

/* ---- opendir, releasedir ---- */

static void dir_opened(struct kop *op)
{
    if (op->below.rc == 0) {
        kfile_add(op);
        if (!op->below.keeps_cache && !op->k->config.deaf)
            klisting_drop(op->k, op->inode);
    }
    kop_end(op, op->below.rc);
}

void klist_ask(struct kop *op)
{
    kop_pin(op, op->r.ino);
    if (op->r.kind == REQUEST_OPENDIR)
        kop_ask(op, &op->r, dir_opened);
    else
        do_list(op);
}
