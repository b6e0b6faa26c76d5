/*
 * resolve.h - what is the value of a block, given what some storages say of it?
 *
 * Pure: no I/O, no memory. The rules are those of docs/internals/read-and-quorum.md: the newest
 * version on which k distinct projections agree, unless a newer one might have been acknowledged.
 * An acknowledged version that was being replaced when it was asked for may show on few storages or
 * none: whoever has something newer may have had it. Asked for what lies below the newer one, a
 * storage tells; but what is committed forgets what it replaced, and shows what lay there before that, or a
 * hole: whatever rests on such an answer is doubtful.
 */
#ifndef ROZO_STORCLI_BLOCKS_RESOLVE_H
#define ROZO_STORCLI_BLOCKS_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    RESOLVE_ANSWERS_MAX = 128, /* records of one block that are looked at */
};

/* One believable record (crc and identity were right) or hole of one block. */
struct resolve_answer {
    uint64_t version;
    uint16_t user_bytes; /* 0: a hole */
    uint8_t storage;     /* its place in the distribution */
    uint8_t projection;
    bool below; /* it lies below something newer, which is there too */
};

enum resolve_result {
    RESOLVE_UNCLEAR, /* ask on */
    RESOLVE_DATA,
    RESOLVE_HOLE,
    RESOLVE_BELOW, /* ask those who have *version what lies below it */
};

/**
 * @param k          projections that give a block back.
 * @param q          acknowledgements without which no write ever succeeded; q + k > c.
 * @param candidates bitmap of the distribution's c storages.
 * @param told       those of them that told all they know of this block. One that is silent,
 *                   damaged, or holds projections not yet asked is not in it; one without a file is.
 * @param answers    n_answers of them, any order; those of one (storage, projection) without a gap
 *                   between them: each is the next older one.
 * @param version    out, with all but UNCLEAR: the version to return, or to look below.
 * @param user_bytes out, with DATA (holes: 0).
 * @param doubtful   out: DATA or HOLE is true if nothing newer had been committed when those who have it
 *                   were asked what lies below: ask all again, and see the same.
 */
enum resolve_result resolve_block(unsigned k, unsigned q, uint32_t candidates,
                                  uint32_t told, const struct resolve_answer *answers,
                                  unsigned n_answers, uint64_t *version,
                                  uint16_t *user_bytes, bool *doubtful);

#endif
