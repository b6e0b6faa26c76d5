/*
 * redist_file.h - one file whose distribution changes, and the list of them. Private to
 * this room.
 *
 * redist_file.c has its life, its phases, and its one step function. redist_hold.c closes
 * the file for clients, and redist_ask.c asks storages.
 */
#ifndef ROZO_EXPORTD_REDISTRIBUTION_REDIST_FILE_H
#define ROZO_EXPORTD_REDISTRIBUTION_REDIST_FILE_H

#include "exportd/redistribution/redist_ask.h"
#include "exportd/redistribution/redist_hold.h"

enum redist_file_phase {
    PHASE_FIND,    /* adopted files only: storages send their headers */
    PHASE_FILL,    /* a home repairs the file while clients use it */
    PHASE_CLOSE,   /* no other session may hold anything of it */
    PHASE_FENCE,   /* no epoch given out before can write */
    PHASE_PROVE,   /* the file is sound, and stays so */
    PHASE_PREPARE, /* new homes get partial files: what they lack is unknown */
    PHASE_REHEAD,  /* old storages take the new distribution */
    PHASE_FLIP,    /* the inode takes it */
    PHASE_INFORM,  /* storages that were down take it */
    PHASE_REPAIR,  /* a home fills the new ones */
};

/* A file under way. Only redist_file.c writes it, but for its three parts, and for
 * `want`, which redist_find() replaces too. */
struct redist_file {
    struct list_node link; /* in x->redist->files.all */
    struct exportd *x;     /* borrowed, like export */
    struct export *export;
    struct inode in;              /* inode, or inode before the change */
    struct namespace_redist want; /* new distribution */
    uint32_t fresh;               /* bitmap of places: new storages */
    enum redist_file_phase phase;
    enum {
        PHASE_IS_NEW,  /* the next step begins it */
        PHASE_STORING, /* `stored` is queued */
        PHASE_IS_OPEN, /* waits for answers or time */
    } progress;
    uint64_t until_ns; /* ns, monotonic; end of the current wait */
    struct store_wait stored;
    bool counted; /* counted in export->n_few */
    bool adopts;  /* storages had the new distribution before us */
    struct redist_hold hold;
    struct redist_asks asks;
    struct redist_repair repair;
};

/* Files under way. Only redist_file.c writes these members. */
struct redist_files {
    struct list_node all; /* struct redist_file */
    unsigned n;
    bool put_off;         /* one was put off since redist_files_retry() */
    struct env_task task; /* steps all files */
};

/* Search for such files, or the pause before the next search. But for `files`, only
 * redistribute.c writes it. */
struct redistribution {
    struct exportd *x; /* borrowed */
    struct redist_files files;
    enum { SEARCH_IDLE, SEARCH_COUNT, SEARCH_RECORDS, SEARCH_FILES } state;
    uint32_t export_id; /* next export to look at */
    uint64_t ino;       /* last inode of it that was looked at */
    uint64_t next_ns;   /* ns, monotonic; earliest next search */
    uint64_t pause_ns;
};

void redist_files_init(struct exportd *x);
void redist_files_step(struct exportd *x);
/** Steps the files soon, unless exportd stops. */
void redist_files_soon(struct exportd *x);
/** Notes that a search begins, which will find the files that were put off. */
void redist_files_retry(struct exportd *x);
/** Cancels what is under way. */
void redist_files_stop(struct exportd *x);
void redist_files_free(struct exportd *x);

/** Returns true if the file has fewer candidates than it could have, or lost ones. */
bool redist_is_few(const struct export *e, const struct inode *in);
/** Returns the file if it is under way, or NULL. */
struct redist_file *redist_file_find(const struct export *e, uint64_t ino);
/**
 * Begins a file with too few candidates, or puts it off if no storage is available now.
 */
void redist_file_begin(struct export *e, const struct inode *in);
/** Begins a file of which storages have a later distribution. */
void redist_file_adopt(struct export *e, const struct inode *in);
/**
 * Resumes a change that had begun before this start. Returns 0, or -errno: it is put
 * off.
 */
int redist_file_resume(struct export *e, uint64_t ino, const struct namespace_redist *r);

#endif
