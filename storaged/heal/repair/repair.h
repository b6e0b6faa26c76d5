/*
 * repair.h - the one healing state machine: look at blocks of a file at all its storages, decide
 * what they are, make again what is missing. Settling, return, rebuild, scrub and checks all use it.
 *
 *     struct repairer *m;
 *     repairer_new(&config, &m);
 *     repair_start(m, &request, on_repaired, me, &repair);
 *     ...
 *     repairer_free(m); after the last repair ended or was cancelled
 *
 * A repairer is a node client: it reaches every storage of the file, its own too, through channels
 * of role NODE. What it does is idempotent; several repairers may work on the same blocks at once, and
 * one that dies anywhere leaves nothing wrong: whatever it sends was decided by rules that every
 * other comes to as well (repair_decide.h). When in doubt it leaves a block alone and says so.
 *
 * Core: one thread, that of the env. Every callback comes exactly once and never before the call
 * that asked for it has returned.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/env.h"
#include "storcli/blocks.h"

struct repairer;
struct repair;

/* Zero-initialise; 0 takes the default in brackets. */
struct repairer_config {
    struct env *env; /* borrowed */
    struct storcli_peers
        peers;            /* borrowed; channels of role NODE, to our own storage too */
    uint32_t own_storage; /* its homes are what is repaired without REPAIR_ALL_HOMES */
    uint32_t deadline_ms; /* [10000] of one request */
    unsigned extents_max; /* [8] of one repair, under way at a time */
    uint64_t memory_max;  /* [64 MiB] bytes of blocks in memory, over all repairs */
    /**
     * So many bytes of bodies are going to be read or written, taken out of whatever is allowed.
     * The answer: milliseconds to wait before that. NULL: no limit.
     */
    uint32_t (*take)(void *arg, uint64_t bytes);
    void *arg;
};

/** 0 or -ENOMEM. The config is copied. */
int repairer_new(const struct repairer_config *config, struct repairer **out);
/** No repair may be under way. NULL is fine. */
void repairer_free(struct repairer *repairer);

enum repair_flags {
    REPAIR_ALL_HOMES =
        1, /* all homes get what they lack; otherwise only our own storage */
    /* Settle: what nobody can complete is rolled back, under a fence that keeps late writes of
     * its epoch out. A live client of the file then has to fetch a fresh epoch, once. Without it such
     * blocks are undecided or, where readers pass over it, repaired at the version below. */
    REPAIR_FENCE = 2,
    REPAIR_VERIFY_OWN = 4, /* read our own records whole and check their crc */
    /* Where all homes have it, spares drop theirs: of what its home was seen to have whole by this repair, body and all.
     * Our own records that a spare has, too, are read for that; those of the others are their own business. */
    REPAIR_CLEAN_SPARES = 8,
    /* Our own file is partial (a rebuild): what it does not know and the others call never
     * written is nothing that is missing. */
    REPAIR_PARTIAL = 16,
    /* Tell whether all of the file is where it should be: see repair_result.sound. Commits all that
     * was decided. With REPAIR_ALL_HOMES and REPAIR_CLEAN_SPARES, of all blocks. */
    REPAIR_PROVE = 32,
};

struct repair_request {
    struct storcli_target target; /* no capability needed */
    uint64_t first_block;
    uint64_t
        n_blocks;   /* 0: to the end of everything, what was cut off by a truncate too */
    uint32_t flags; /* enum repair_flags */
    /* Blocks [passed_first, passed_end) were noted as missed by us. What we got of them nonetheless may never have been
     * synced: where our power failed once, our records there are read whole, if they are the newest. */
    uint64_t passed_first, passed_end;
    /* Bitmap of places in the distribution whose storages will not come back (Storage.lost): the
     * first spare that is not lost is to hold what the first of them should, and so on. */
    uint32_t lost;
};

struct repair_result {
    /* 0: all of it was looked at and all that was found wrong and decided is healed; blocks that
     * are undecided do not count here. -ENOENT: nobody who answered has the file, and those
     * who were silent cannot have enough of it: it was removed; or a home that is to be written to says so: then
     * it is removed wherever it came back. -EIO: something went wrong on the way, or
     * nobody who answered has it but those who were silent may, or our own storage was silent, so that nobody knows what
     * lies here, or k others were: more is to be done; the counts tell what was done. -ENOMEM. -EREMOTE: a storage knows
     * of a later distribution than the request's; nothing more was done. */
    int rc;
    uint64_t looked_at; /* blocks with something in them at some storage */
    bool
        has_content; /* some of them were decided to be data or marks: every home has the file */
    uint64_t damaged, stale,
        missing; /* records of homes that were to be repaired, found so */
    uint64_t
        unknown; /* heads of homes where nothing was ever written, and that could not tell: no data is at stake */
    uint64_t healed;  /* records and holes (of a range of holes: 1) made again, durably */
    uint64_t dropped; /* blocks where a version was rolled back */
    uint64_t cleaned; /* records that spares need no more */
    uint64_t
        undecided; /* blocks left as they are: try again when storages have come back */
    /* Blocks, within [torn_first, torn_end), that are repaired below a version that too few have: one that is being
     * written just now, or that nobody completes. A fence tells. */
    uint64_t n_torn, torn_first, torn_end;
    uint64_t
        failed; /* records found wrong and decided, but not healed; rc is not 0 then */
    uint64_t read_bytes, written_bytes; /* of bodies */
    bool fenced;                        /* a fence was put up */
    uint32_t
        silent; /* bitmap of candidates that did not answer something, or refused to tell */
    uint32_t none; /* bitmap of candidates that said last that they have no file of it */
    /* REPAIR_PROVE: this repair found nothing to do. Every home that is not lost has the newest version of all, stable, and
     * committed; nothing is undecided; no candidate that is not lost was silent, in doubt, damaged or partial. */
    bool sound;
    char problem[160]; /* the newest, for people; empty: none */
};

/** result is gone when this returns; so is the repair. */
typedef void repair_done_cb(void *arg, const struct repair_result *result);

/** 0, -EINVAL (the target makes no sense) or -ENOMEM: no callback then. *out: for repair_cancel(). */
int repair_start(struct repairer *repairer, const struct repair_request *request,
                 repair_done_cb *done, void *arg, struct repair **out);
/** Stop where it is: no callback any more, nothing points at it. */
void repair_cancel(struct repair *repair);
/** What was done up to now, for progress; rc is not set yet. */
const struct repair_result *repair_progress(const struct repair *repair);
/** The block up to which everything was looked at. */
uint64_t repair_position(const struct repair *repair);

#endif
