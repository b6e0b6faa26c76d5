/*
 * rebuild.h - the rebuild of this storage. Inside storaged/heal only.
 *
 * Only rebuild.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REBUILD_H
#define ROZO_STORAGED_HEAL_REBUILD_H

#include "common/env/disk.h"
#include "storaged/format/identity.h"
#include "storaged/heal/jobs/sweep.h"

enum rebuild_state {
    REBUILD_NONE,
    REBUILD_WAITS, /* for the timer: a pass begins then */
    REBUILD_RUNS,
    REBUILD_RESTARTS, /* runs; then it starts again from the beginning */
    REBUILD_DONE,
};

/* State of the rebuild of this storage. */
struct rebuild {
    enum rebuild_state state;
    bool forced; /* all files, complete ones too */
    bool lost;   /* files where we, a spare, replace a storage that is lost for good */
    bool first;  /* the first pass, whose place is kept */
    bool in_identity; /* storage.id says that a rebuild is under way */
    struct heal_walk walk;
    struct heal_walk count;   /* walk that counts files and bytes, for progress */
    struct sweep_file *files; /* owned, of the page */
    unsigned n_files_page;
    unsigned n_running;
    bool failed;       /* in this pass */
    uint64_t unhealed; /* blocks, in this pass */
    uint64_t files_done, n_files, bytes_done, n_bytes;
    uint64_t counted_files, counted_bytes;
    uint64_t began_ns, ran_s; /* ran_s: in earlier processes */
    struct env_timer timer;   /* starts the next pass */
    uint64_t gather_until_ns; /* limit of the wait for peers that are not up */
    struct disk_req dr;
    struct iovec iov;
    char text[IDENTITY_TEXT_MAX];
    struct heal_ask done_ask;
    unsigned n_notified;
    struct {
        uint32_t peer;
        uint64_t note;
    } everything[64]; /* peers whose hints say "everything" */
    unsigned n_everything;
};

int rebuild_load(struct healer *h);
void rebuild_start(struct healer *h);
/** Starts a rebuild from the beginning; of all files, complete ones too. */
void rebuild_force(struct healer *h);
/** Starts a rebuild if the new map has a storage that was not known to be lost. */
void rebuild_lost(struct healer *h);
/** Starts a rebuild because a peer reports that we missed too much to be listed. */
void rebuild_everything(struct healer *h, uint32_t peer, uint64_t note);
void rebuild_stop(struct healer *h);
void rebuild_health(struct healer *h, Rozo__StHealthResp *resp);

#endif
