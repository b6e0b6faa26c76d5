/*
 * repair.h - the state machine that does all healing of a file's blocks.
 *
 * It looks at blocks of a file at all storages of the file, decides which version each
 * block has, and rebuilds the records that are missing or wrong. Recovery of incomplete
 * writes, resync, rebuild, scrub and checks all use it.
 *
 *     struct repairer *m;
 *     repairer_new(&config, &m);
 *     repair_start(m, &request, on_repaired, me, &repair);
 *     ...
 *     repairer_free(m); after the last repair ended or was cancelled
 *
 * A repairer is a client of role NODE: it reaches every storage of the file through
 * channels, its own storage too. All that it does is idempotent. Several repairers may
 * work on the same blocks at once, and one that stops anywhere does no harm, because
 * every repairer decides by the same rules (repair_decide.h). If it cannot decide, it
 * leaves a block alone and counts it as undecided.
 *
 * Core: one thread, that of the env. Every callback comes exactly once and never before
 * the call that asked for it has returned.
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
    /* Borrowed; channels of role NODE, to our own storage too. */
    struct storcli_peers peers;
    /* Id; without REPAIR_ALL_HOMES only its projections are repaired. */
    uint32_t own_storage;
    uint32_t deadline_ms; /* [10000] for one request */
    unsigned extents_max; /* [8] pieces of one repair under way at a time */
    uint64_t memory_max; /* [64 MiB] bytes of blocks in memory, of all repairs together */
    /**
     * Takes this many bytes of bodies, which will be read or written, out of the rate
     * limit. Returns the milliseconds to wait before that. NULL: no limit.
     */
    uint32_t (*take)(void *arg, uint64_t bytes);
    void *arg;
};

/** Creates a repairer. The config is copied. Returns 0 or -ENOMEM. */
int repairer_new(const struct repairer_config *config, struct repairer **out);
/** Frees a repairer, which has no repair under way. NULL is fine. */
void repairer_free(struct repairer *repairer);

/* Options of a repair; to be combined. */
enum repair_flags {
    /* Repairs all homes; without it, only those of our own storage. */
    REPAIR_ALL_HOMES = 1,
    /* Recovers incomplete writes: a version that cannot be completed is rolled back,
     * under a fence that rejects late writes of its epoch. A live client of the file then
     * has to fetch a new epoch, once. Without this flag such blocks stay undecided or,
     * where readers may pass over the version, are repaired at the version below it. */
    REPAIR_FENCE = 2,
    REPAIR_VERIFY_OWN = 4, /* reads our own records whole and checks their crc */
    /* Lets spares drop their copies when all homes have the version and this repair has
     * seen the home's record whole, with its body. For that it reads our own records that
     * a spare has, too; other storages read theirs themselves, unless homes stand in for
     * each other. */
    REPAIR_CLEAN_SPARES = 8,
    /* Our own file is partial (a rebuild): a block that it does not know, and that all
     * others call never written, does not count as missing. */
    REPAIR_PARTIAL = 16,
    /* Checks whether all of the file is where it should be (repair_result.sound) and
     * commits everything that was decided. Needs REPAIR_ALL_HOMES and
     * REPAIR_CLEAN_SPARES, and the range of all blocks. */
    REPAIR_PROVE = 32,
};

/* A range of a file to repair. */
struct repair_request {
    struct storcli_target target; /* needs no capability */
    uint64_t first_block;
    uint64_t n_blocks; /* 0: to the end, including blocks that a truncate cut off */
    uint32_t flags;    /* bits of enum repair_flags */
    /* Blocks [passed_first, passed_end) are noted as missed by our storage. Records of
     * them that it has nonetheless may never have been synced: if our power failed once,
     * those of the newest version are read whole. */
    uint64_t passed_first, passed_end;
    /* Bitmap of places in the distribution whose storages are lost for good
     * (Storage.lost). The first spare that is not lost becomes the home of the first lost
     * home's projection, and so on. */
    uint32_t lost;
};

/* The outcome of a repair, with counts. */
struct repair_result {
    /* Result code:
     * 0: all was looked at, and all that was wrong and could be decided is healed.
     * Undecided blocks do not count here.
     * -ENOENT: the file was removed. No storage that answered has it, and those that did
     * not are too few to hold enough of it; or a home that was to be written to refused,
     * and then the file is removed wherever it came back.
     * -EIO: something failed; or no storage that answered has the file but too many did
     * not answer; or our own storage or k others did not answer. Try again; the counts
     * tell what was done.
     * -ENOMEM.
     * -ROZO_EMOVED: a storage knows a later distribution than the request's; nothing
     * more was done. */
    int rc;
    uint64_t looked_at; /* blocks that have something at some storage */
    /* Some blocks were decided to be data or marks: every home has the file. */
    bool has_content;
    uint64_t damaged, stale, missing; /* records found so at homes in scope */
    /* Heads at homes that could not tell "never written"; no data is at risk. */
    uint64_t unknown;
    uint64_t healed;    /* records and holes (1 for a range of holes) rebuilt durably */
    uint64_t dropped;   /* blocks where a version was rolled back */
    uint64_t cleaned;   /* records that spares dropped, since all homes have them */
    uint64_t undecided; /* blocks left as they are; try again when storages are back */
    /* Number of blocks, all within [torn_first, torn_end), that are repaired below a
     * version that too few storages have: either it is being written now, or it will
     * never be completed. A fence finds out. */
    uint64_t n_torn, torn_first, torn_end;
    /* Records found wrong and decided, but not healed; then rc is not 0. */
    uint64_t failed;
    uint64_t read_bytes, written_bytes; /* bytes of bodies */
    bool fenced;                        /* a fence was set */
    /* Bitmap of candidates that left a request unanswered or refused it. */
    uint32_t unanswered;
    /* Bitmap of candidates whose last answer was that they have no such file. */
    uint32_t none;
    /* Bitmap of candidates that keep an unreadable file of a projection whose home is
     * another storage. */
    uint32_t spoiled;
    /* With REPAIR_PROVE: this repair found nothing to do. Every home that is not lost has
     * the newest version of all blocks, stable and, unless too many are lost for a
     * quorum, committed. Nothing is undecided, and all candidates that are not lost
     * answered; none has unknown losses, damage or a partial file. */
    bool sound;
    char problem[160]; /* newest problem, for people; empty: none */
};

/** Gets the outcome. The result and the repair are freed when it returns. */
typedef void repair_done_cb(void *arg, const struct repair_result *result);

/**
 * Starts a repair. *out is for repair_cancel(). Returns 0, -EINVAL (invalid target or
 * range) or -ENOMEM; if it is not 0, done is never called.
 */
int repair_start(struct repairer *repairer, const struct repair_request *request,
                 repair_done_cb *done, void *arg, struct repair **out);
/** Stops and frees the repair at once; done is not called. */
void repair_cancel(struct repair *repair);
/** Returns the counts up to now, for progress; rc is not set yet. */
const struct repair_result *repair_progress(const struct repair *repair);
/** Returns the block up to which all blocks were looked at. */
uint64_t repair_position(const struct repair *repair);

#endif
