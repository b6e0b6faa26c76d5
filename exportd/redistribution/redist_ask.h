/*
 * redist_ask.h - the requests to the storages of one file whose distribution changes.
 *
 * Only redist_ask.c writes the members that are declared here.
 */
#ifndef ROZO_EXPORTD_REDISTRIBUTION_REDIST_ASK_H
#define ROZO_EXPORTD_REDISTRIBUTION_REDIST_ASK_H

#include "exportd/cluster/exportd_state.h"

struct redist_file;

enum redist_result { REDIST_WAIT, REDIST_NEXT, REDIST_FAILED };

/* Requests that go to a set of places. */
enum redist_request {
    REQUEST_FENCE,   /* fence all epochs given out before */
    REQUEST_PREPARE, /* make partial files, which nobody uses yet */
    REQUEST_TAKE,    /* take the new distribution */
};

/* Request to one storage. */
struct redist_ask {
    struct rpc_request rq;
    struct redist_file *file;
    struct cluster_storage *storage; /* NULL: not outstanding */
    unsigned place;
};

/* Requests by place. */
struct redist_asks {
    struct redist_ask at[DIST_MAX];
    uint32_t acked; /* bitmap of places: answered OK in this phase */
    uint32_t found; /* bitmap of old places whose headers have file->want */
};

/* Repairs of the whole file by one home after the other. */
struct redist_repair {
    struct redist_ask ask;
    unsigned home;     /* place to ask */
    unsigned n_checks; /* answers in this phase; UINT_MAX: no home can be asked */
    uint64_t run;      /* 0: none */
    bool is_new;       /* the answer is not used yet */
    enum {
        REPAIR_NO_ANSWER, /* still under way, or never asked */
        REPAIR_SOUND,
        REPAIR_UNSOUND, /* no answer came, too */
        REPAIR_TOO_OLD, /* the home does not know the request */
        REPAIR_OUTDATED /* a storage has a later distribution */
    } answer;
};

void redist_asks_init(struct redist_file *f);
/** Cancels what is under way. */
void redist_asks_cancel(struct redist_file *f);
/** Begins a phase: nobody has answered yet. */
void redist_asks_begin(struct redist_file *f);
/** Forgets all answers, to begin with a search for a later distribution. */
void redist_asks_forget(struct redist_file *f);

/** Returns a storage that can be asked now, or NULL. */
struct cluster_storage *redist_storage_at(const struct redist_file *f, uint32_t id);

/** Asks those of the places that have not answered OK. Returns true if all have. */
bool redist_ask_all(struct redist_file *f, uint32_t places, enum redist_request what);
/**
 * Asks whether all storages of the new distribution know ST_REDIST: after the old ones
 * got it there is no way back. Fails if one is too old, or down.
 */
enum redist_result redist_probe(struct redist_file *f);
/**
 * Asks all old storages once for their headers. file->want gets the latest distribution
 * that fits the file. Returns false while answers are missing.
 */
bool redist_find(struct redist_file *f);
/**
 * Lets a home check and repair the whole file, before or after the change. Fails if it is
 * not sound, or no home answers.
 */
enum redist_result redist_repair(struct redist_file *f, bool after);

#endif
