/*
 * repair_int.h - declarations shared by the parts of a repair. Private to repair*.c.
 *
 * A repair walks over its range (repair_walk.h) in pieces of at most one extent, several
 * at a time. A piece looks, decides and repairs (repair_piece.h), under a fence where
 * nothing else helps (repair_fence.h). The work of the pieces is made durable and
 * committed in batches (repair_commit.h). Each part has its members in a struct that only
 * its own .c file writes.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H

#include "common/base/bufpool.h"
#include "common/base/list.h"
#include "storaged/heal/repair/repair.h"
#include "storaged/heal/repair/repair_commit.h"
#include "storaged/heal/repair/repair_fence.h"
#include "storaged/heal/repair/repair_findings.h"
#include "storaged/heal/repair/repair_own.h"
#include "storaged/heal/repair/repair_walk.h"

enum { REPAIR_AGAIN_MS = 500 };

/* Settings and memory shared by all repairs of one user. */
struct repairer {
    struct repairer_config config;
    uint64_t memory_used;
    struct bufpool pool; /* buffers of pieces; empty when there is no repair */
    uint64_t clients_ns; /* when a storage last said that it serves clients; 0: never */
    struct list_node repairs;
    unsigned n_repairs;
};

/* Steps of a repair, in this order; batches alternate with the walk. */
enum repair_state {
    REPAIR_BEGIN,
    REPAIR_SYNC_FIRST, /* fetches verifiers before anything is looked at */
    REPAIR_WALK,
    REPAIR_BATCH_SYNC,   /* makes stable what the pieces saw and did */
    REPAIR_BATCH_COMMIT, /* commits it, and lets spares drop their copies */
    REPAIR_END,
    REPAIR_SPOILED, /* lets spares drop unreadable files that are not needed */
    REPAIR_WHOLE,   /* tells homes with partial files that they have everything */
    /* Removes files of a removed file id that a power failure brought back. */
    REPAIR_REMOVE,
};

/* One repair of a range of a file. */
struct repair {
    struct list_node link;
    struct repairer *repairer; /* borrowed */
    struct heal_file file;
    struct repair_request request;
    repair_done_cb *done;
    void *arg;
    struct repair_result result; /* all parts count here */
    enum repair_state state;
    struct env_timer timer; /* next step, soon */
    uint32_t scope;         /* projections that are repaired */
    struct repair_own own;
    struct repair_findings findings;
    struct repair_walk walk;
    struct repair_fence fence;
    struct repair_batch batch;
};

/** Does the next step of the repair, later, from its timer. */
void repair_step_soon(struct repair *repair);
/** Sets the text of result.problem. */
void repair_problem(struct repair *repair, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Returns whether the range is all of the file, with what a truncate cut off. */
static inline bool repair_is_of_all(const struct repair *repair)
{
    return repair->request.first_block == 0 && repair->walk.end == UINT64_MAX;
}

#endif
