/*
 * repair_heads.h - what every storage says of a run of blocks: heads only, of every projection it has, and, where
 * that is wanted, of what lies below.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_HEADS_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_HEADS_H

#include "common/base/record.h"
#include "storaged/heal/repair/repair_ask.h"
#include "storaged/heal/repair/repair_decide.h"

struct head_ask;

/* Zero-initialise. Thread: that of the file's env. */
struct repair_heads {
    struct heal_file *file; /* borrowed */
    uint64_t first;
    unsigned n; /* 1..EXTENT_BLOCKS, of one extent */
    /* Valid once done: as in struct decide_rules, but for the fence. */
    uint32_t told, none;
    uint32_t doubt; /* candidates that may have had something newer */
    uint32_t
        spoiled[DIST_MAX]; /* projections whose files a spare cannot believe any more */
    uint32_t may_be_torn;  /* candidates whose unsynced bytes the power took once */
    bool clients;          /* some candidate has work of clients to do */
    uint8_t n_answers[EXTENT_BLOCKS];
    bool too_many[EXTENT_BLOCKS];  /* not all answers found room */
    struct decide_answer *answers; /* owned; DECIDE_ANSWERS_MAX for each block */
    /* Of the projections whose homes were asked for bodies, too: those that came, and their bytes. */
    uint32_t with_bodies;
    uint64_t body_bytes;
    /* Private. */
    struct head_ask *asks; /* owned; those under way */
    uint32_t asked[DIST_MAX];
    uint32_t failed, has_file;
    bool busy;
    struct env_timer timer;
    void (*done)(struct repair_heads *heads);
};

/**
 * Ask all candidates that are up. done comes once, never inside this call. 0 or -ENOMEM.
 * @param bodies where not NULL, the home of that projection is asked for bodies, too: n heads and n places of a full
 *               row go there (borrowed until done or closed). Whether they are right is not looked at.
 */
int repair_heads_start(struct repair_heads *heads, struct heal_file *file, uint64_t first,
                       unsigned n, uint8_t *const bodies[CODEC_N_MAX],
                       void (*done)(struct repair_heads *heads));
/**
 * Ask those who have version[b] of block b what lies below it (0: nobody, of this block); answers
 * are added. done as before.
 */
void repair_heads_below(struct repair_heads *heads,
                        const uint64_t version[EXTENT_BLOCKS]);
/** Stop and free. Fine at any time. */
void repair_heads_close(struct repair_heads *heads);

static inline struct decide_answer *repair_heads_of(const struct repair_heads *heads,
                                                    unsigned block)
{
    return heads->answers + (size_t)block * DECIDE_ANSWERS_MAX;
}

#endif
