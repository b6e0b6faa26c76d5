/*
 * resolve.h - decides the value of a block from the answers of some storages.
 *
 * Pure: no I/O, no memory. The rules are those of docs/internals/read-and-quorum.md: the
 * newest version on which k distinct projections agree, unless a newer one might have
 * been acknowledged. An acknowledged version that was being replaced when storages were
 * asked may show on few of them or none: each storage that has something newer may have
 * had it. Asked for the version below, a storage answers it; but a committed version has
 * dropped what it replaced, and the storage shows an even older version, or a hole: a
 * result that rests on such an answer is doubtful.
 */
#ifndef ROZO_STORCLI_RULES_RESOLVE_H
#define ROZO_STORCLI_RULES_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    RESOLVE_ANSWERS_MAX = 128, /* records of one block that are looked at */
};

/* Believable record (crc and identity are right) or hole of one block. */
struct resolve_answer {
    uint64_t version;
    uint16_t user_bytes; /* 0: a hole */
    uint8_t storage;     /* place in the distribution */
    uint8_t projection;
    bool below; /* lies below something newer on that storage */
};

enum resolve_result {
    RESOLVE_UNCLEAR, /* ask more storages */
    RESOLVE_DATA,
    RESOLVE_HOLE,
    RESOLVE_BELOW, /* ask those that have *version for the version below it */
};

/**
 * Decides one block.
 * @param k          projections that are needed to decode a block.
 * @param q          acknowledgements without which no write ever succeeded; q + k > c.
 * @param candidates bitmap of the distribution's c storages. The next parameter is a
 *                   subset: those that answered all they have of this block. A storage
 *                   that did not answer, is damaged, or has projections not asked for yet
 *                   is not in it; one without a file is.
 * @param answers    n_answers of them, any order; those of one (storage, projection) are
 *                   adjacent, newest first.
 * @param version    out, except with UNCLEAR: the version to return, or to look below.
 * @param user_bytes out, with DATA (holes: 0).
 * @param doubtful   out: DATA or HOLE holds only if nothing newer had been committed when
 *                   its holders were asked for the version below: ask all again, and see
 *                   an equal result.
 */
enum resolve_result resolve_block(unsigned k, unsigned q, uint32_t candidates,
                                  uint32_t answered, const struct resolve_answer *answers,
                                  unsigned n_answers, uint64_t *version,
                                  uint16_t *user_bytes, bool *doubtful);

#endif
