/*
 * heal_walk.h - walks over files in the order of lists. Inside storaged/heal only.
 *
 * Only heal_walk.c writes these members; the part that made a walk sets own, page and the
 * place where it begins.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_WALK_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_WALK_H

#include "storaged/heal/jobs/heal_ask.h"
#include "storaged/heal/list/proj_list.h"

/* A walk over files, of all peers (with us in their distribution) or of our own disk. A
 * page ends when its user calls heal_walk_next(). */
struct heal_walk_file {
    struct proj_list_file file;
    /* Bitmaps of our own projection files. */
    uint32_t own_projections, own_damaged, own_partial;
};
struct heal_walk;
/**
 * Gets a page, later; files are valid until heal_walk_next(). end: this is the last page.
 */
typedef void heal_walk_page_cb(struct heal_walk *w, struct heal_walk_file *files,
                               unsigned n, bool end);

/* One peer's list in a walk. */
struct heal_walk_peer {
    struct heal_ask ask;
    struct heal_walk *w;
    bool heard, end;
    struct file_id after;
};
struct heal_walk {
    struct healer *h;
    bool own; /* our own disk instead of the peers */
    heal_walk_page_cb *page;
    bool has_after;
    struct file_id after;         /* all files up to this one were given */
    bool incomplete;              /* a peer that is not lost did not answer for a page */
    struct heal_walk_peer *peers; /* owned */
    unsigned n_peers, n_waiting;
    struct heal_walk_file *files; /* owned */
    unsigned n_files, files_room;
    bool under_way, end;
    struct env_task task;
};
/** Starts a walk after w->after (if has_after). Set own and page before. */
void heal_walk_begin(struct healer *h, struct heal_walk *w);
/** Ends the page and asks for the next. */
void heal_walk_next(struct heal_walk *w);
/** Frees the memory of a walk; no page comes any more. */
void heal_walk_end(struct heal_walk *w);

#endif
