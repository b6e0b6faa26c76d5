/*
 * repair_decide.h - what is to become of a block, given what its storages say of it?
 *
 * Pure: no I/O, no memory. Whoever asks, whenever, comes to decisions that fit together:
 *   - *forward* at a version: k distinct projections of it were seen (of a hole: k storages);
 *   - *back*: fewer than k were seen, those who said nothing cannot make up for it, no write or mark of
 *     that epoch can arrive any more (the fence), and it was never acknowledged.
 * Under the fence the holders of a version change only by decisions, so the first one about it
 * stands: after "forward" it has k and more, after "back" fewer than k, for all who ask later.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_DECIDE_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DECIDE_ANSWERS_MAX = 96, /* of one block */
};

enum decide_kind {
    DECIDE_DATA,
    DECIDE_HOLE,
    DECIDE_DAMAGED, /* something that cannot be believed; version is not known */
};

/* What one storage said of one projection of a block. */
struct decide_answer {
    uint64_t version;
    uint16_t user_bytes; /* of data; 0 otherwise */
    uint8_t candidate;   /* its place in the distribution */
    uint8_t projection;
    uint8_t kind;  /* enum decide_kind */
    uint8_t level; /* 0: what counts there now; 1: what lies below that; ... */
    /* Damaged, of this version, and parts of it never reached the disk: no sync of it ended there. */
    bool torn;
};

/* The circumstances. Bitmaps are of places in the distribution. */
struct decide_rules {
    unsigned k, n, c, q;
    /* Answered, all that they know, and so far as `fenced` goes after their fence. One that is damaged
     * or holds projections not asked for is not among them. */
    uint32_t told;
    /* Answered that they have no file of it; disjoint from told. They never took any of it: a storage
     * that may have lost it says "damaged" instead. */
    uint32_t none;
    uint32_t
        doubt;     /* of those told: what was newest there may be lost, whatever it was */
    uint32_t lost; /* will not come back: what they had makes up for nothing */
    const uint8_t
        *home;   /* n: who is to hold projection p, 255: nobody. NULL: candidate p */
    bool fenced; /* no client's write or mark of fence_epoch or before arrives any more */
    uint32_t fence_epoch;
};

enum decide_what {
    DECIDE_UNDECIDED, /* leave it */
    DECIDE_FORWARD,   /* it has `version` */
    DECIDE_BELOW, /* ask those who have `version` what lies below it, then decide again */
    DECIDE_NOTHING, /* nobody has anything: never written */
};

struct decision {
    enum decide_what what;
    uint64_t version;    /* FORWARD, BELOW */
    uint16_t user_bytes; /* FORWARD: 0 is a hole */
    uint32_t lack; /* FORWARD: homes that do not have it and may be given it: bit i is
                            projection i at candidate i. Silent ones and those who have a newer one are not in it */
    uint32_t damaged, stale, missing; /* of those in lack: why; disjoint */
    uint32_t holders;                 /* FORWARD: candidates that have it, at any level */
    uint32_t projections;             /* FORWARD, data: those of it that anybody has */
    uint32_t
        drop; /* FORWARD, fenced: candidates that have something newer, settled back */
    uint64_t
        torn;    /* not 0: the newest version that fewer than k have; a fence of its epoch
                          lets it be settled, if this decision was not under one */
    bool newest; /* FORWARD: nobody has anything newer */
};

/** answers: any order. With fewer than k answers at all it is UNDECIDED (or NOTHING). */
void decide_block(const struct decide_rules *rules, const struct decide_answer *answers,
                  unsigned n_answers, struct decision *out);

#endif
