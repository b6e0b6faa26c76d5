/*
 * repair_decide.h - decides what a block is, given what its storages say about it.
 *
 * Pure: no I/O, no memory. All repairers, whenever they ask, come to decisions that fit
 * together:
 *   - *forward* at a version: k distinct projections of it were seen (for a hole: k
 *     storages);
 *   - *back*: fewer than k were seen, the storages that did not answer cannot make up for
 *     it, no write or mark of that epoch can arrive any more (the fence), and the version
 *     was never acknowledged.
 * Under the fence only decisions change which storages hold a version, so the first
 * decision stands: after "forward" k or more hold it, after "back" fewer than k, for all
 * that ask later.
 */
#ifndef ROZO_STORAGED_HEAL_DECIDE_REPAIR_DECIDE_H
#define ROZO_STORAGED_HEAL_DECIDE_REPAIR_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DECIDE_ANSWERS_MAX = 96, /* for one block */
};

enum decide_kind {
    DECIDE_DATA,
    DECIDE_HOLE,
    DECIDE_DAMAGED, /* unreadable or invalid; the version is unknown, but see below */
};

/* One storage's answer about one projection of a block. */
struct decide_answer {
    uint64_t version;
    uint16_t user_bytes; /* 0 unless data */
    uint8_t candidate;   /* place in the distribution */
    uint8_t projection;
    uint8_t kind;  /* enum decide_kind */
    uint8_t level; /* 0: newest version there; 1: version below it; ... */
    /* Damaged, but of this version: parts of it never reached the disk, and no sync of it
     * ended there. */
    bool torn;
    /* Damaged, and a mark of this version is pending over it. The damage may be newer, so
     * the version can be rolled back here, and counts for nothing else. */
    bool marked;
};

/* Circumstances of a decision. Bitmaps are of places in the distribution. */
struct decide_rules {
    unsigned k, n, c, q;
    /* Candidates that answered all they know; under a fence, only those that have it. One
     * with projections that were not asked for does not count. */
    uint32_t answered;
    /* Candidates that have no file of this id, and so never took any of it: one that may
     * have lost the file answers "damaged" instead. Disjoint from the first set. */
    uint32_t none;
    /* Candidates that answered, but may have lost their newest version, whatever it
     * was. */
    uint32_t doubt;
    uint32_t lost; /* storages lost for good: whatever they had does not count */
    /* n entries: candidate that must hold projection p, 255: none. NULL: candidate p. */
    const uint8_t *home;
    /* No write or mark of a client of fence_epoch or older can arrive any more. */
    bool fenced;
    uint32_t fence_epoch;
};

/* The kinds of decisions. */
enum decide_what {
    DECIDE_UNDECIDED, /* leave the block as it is */
    DECIDE_FORWARD,   /* the block has `version` */
    /* Ask the holders of `version` for the version below it, then decide again. */
    DECIDE_BELOW,
    DECIDE_NOTHING, /* no storage has anything: the block was never written */
};

struct decision {
    enum decide_what what;
    uint64_t version;    /* for FORWARD and BELOW */
    uint16_t user_bytes; /* for FORWARD; 0: a hole */
    /* For FORWARD: bitmap of projections whose homes lack the version and may be given
     * it. Homes that did not answer, or have a newer version, are not in it. */
    uint32_t lack;
    uint32_t damaged, stale, missing; /* disjoint parts of lack, by the reason */
    uint32_t holders; /* for FORWARD: candidates that have it, at any level */
    /* For FORWARD of data: its projections that any candidate has. */
    uint32_t projections;
    /* For FORWARD under a fence: candidates with a newer version, which is rolled
     * back. */
    uint32_t drop;
    /* Newest version that fewer than k have; 0: none. A fence of its epoch allows a
     * decision about it, unless this decision was made under one. */
    uint64_t torn;
    bool newest; /* for FORWARD: no candidate has a newer version */
    /* For UNDECIDED: no version was seen, and under any fence the block counts as never
     * written. */
    bool unwritten;
};

/**
 * Decides a block. The answers may be in any order. With fewer than k answers the
 * decision is UNDECIDED or NOTHING.
 */
void decide_block(const struct decide_rules *rules, const struct decide_answer *answers,
                  unsigned n_answers, struct decision *out);

#endif
