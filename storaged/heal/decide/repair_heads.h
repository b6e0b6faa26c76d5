/*
 * repair_heads.h - collects what every storage has of a run of blocks.
 *
 * It reads heads only, of every projection that a storage has, and on request the heads
 * of older versions below them. The homes can be asked for bodies, too.
 */
#ifndef ROZO_STORAGED_HEAL_DECIDE_REPAIR_HEADS_H
#define ROZO_STORAGED_HEAL_DECIDE_REPAIR_HEADS_H

#include "common/wire/record.h"
#include "storaged/heal/decide/repair_ask.h"
#include "storaged/heal/decide/repair_decide.h"

struct head_ask;

/* One collection. Zero-initialise. Thread: that of the file's env. */
struct repair_heads {
    struct heal_file *file; /* borrowed */
    uint64_t first;
    unsigned n; /* blocks, 1..EXTENT_BLOCKS, of one extent */
    /* Valid once done: as in struct decide_rules, without regard to a fence. */
    uint32_t answered, none;
    uint32_t doubt; /* candidates that may have lost a newer version */
    /* By candidate: projections of which a spare has an unreadable file. */
    uint32_t spoiled[DIST_MAX];
    /* Candidates that lost unsynced bytes in a power failure once. */
    uint32_t may_be_torn;
    bool clients; /* some candidate is serving clients now */
    uint8_t n_answers[EXTENT_BLOCKS];
    bool too_many[EXTENT_BLOCKS];  /* there was no room for all answers */
    struct decide_answer *answers; /* owned; DECIDE_ANSWERS_MAX for each block */
    /* Projections whose bodies came as asked, and the bytes of these bodies. */
    uint32_t with_bodies;
    uint64_t body_bytes;
    /* Private. */
    struct head_ask *asks; /* owned; requests under way */
    uint32_t asked[DIST_MAX];
    uint32_t failed, has_file;
    bool busy;
    struct env_timer timer;
    void (*done)(struct repair_heads *heads);
};

/**
 * Asks all candidates that are up. done comes once, never inside this call. Returns 0 or
 * -ENOMEM.
 * @param bodies where not NULL, the home of that projection is asked for bodies, too: n
 *               heads, then n places of a full row are written there (borrowed until
 *               done or closed). Their crc is not checked.
 */
int repair_heads_start(struct repair_heads *heads, struct heal_file *file, uint64_t first,
                       unsigned n, uint8_t *const bodies[CODEC_N_MAX],
                       void (*done)(struct repair_heads *heads));
/**
 * Asks the holders of version[b] of block b for the version below it (0: skip this block)
 * and adds the answers. done comes as after repair_heads_start().
 */
void repair_heads_below(struct repair_heads *heads,
                        const uint64_t version[EXTENT_BLOCKS]);
/** Stops and frees. Fine at any time. */
void repair_heads_close(struct repair_heads *heads);

static inline struct decide_answer *repair_heads_of(const struct repair_heads *heads,
                                                    unsigned block)
{
    return heads->answers + (size_t)block * DECIDE_ANSWERS_MAX;
}

#endif
