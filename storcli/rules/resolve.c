/*
 * resolve.c - decides the value of a block from the answers of some storages.
 *
 * In:     answers of any storages, in any order. Any thread.
 * Out:    a version that is never older than the newest acknowledged one, or "ask on".
 * Keeps:  I2 and I6. An acknowledged version was taken by at least q storages with a
 *         projection each, and each of them still has it, or a newer one that replaced
 *         it. So a version may be returned when the storages that have a newer one
 *         without having shown the version below it, and those that did not answer, are
 *         together fewer than q; and when no newer version that was seen can have had q.
 * Ask:    docs/internals/read-and-quorum.md; every read of every user depends on these
 *         rules.
 */
#include "storcli/rules/resolve.h"

#include <assert.h>

static unsigned count(uint32_t bits)
{
    return (unsigned)__builtin_popcount(bits);
}

/* Finds the newest version below `limit` (or the newest of all); false when there is
 * none. */
static bool next_version(const struct resolve_answer *answers, unsigned n_answers,
                         bool limited, uint64_t limit, uint64_t *version)
{
    bool found = false;

    for (unsigned i = 0; i < n_answers; i++) {
        uint64_t v = answers[i].version;

        if ((limited && v >= limit) || (found && v <= *version))
            continue;
        *version = v;
        found = true;
    }
    return found;
}

/* Returns the storages that hold this version in any form. */
static uint32_t holders_of(const struct resolve_answer *answers, unsigned n_answers,
                           uint64_t version)
{
    uint32_t holders = 0;

    for (unsigned i = 0; i < n_answers; i++) {
        if (answers[i].version == version)
            holders |= 1u << answers[i].storage;
    }
    return holders;
}

/* Returns true if k distinct projections agree that the block has user_bytes at this
 * version. For a hole (0 bytes) each storage's mark counts as one: k distinct storages
 * are needed. */
static bool enough_agree(const struct resolve_answer *answers, unsigned n_answers,
                         unsigned k, uint64_t version, uint16_t user_bytes)
{
    uint32_t agree = 0;

    for (unsigned i = 0; i < n_answers; i++) {
        const struct resolve_answer *a = &answers[i];

        if (a->version == version && a->user_bytes == user_bytes)
            agree |= 1u << (user_bytes == 0 ? a->storage : a->projection);
    }
    return count(agree) >= k;
}

/* Finds a length on which k agree at this version. */
static bool agreed_bytes(const struct resolve_answer *answers, unsigned n_answers,
                         unsigned k, uint64_t version, uint16_t *user_bytes)
{
    for (unsigned i = 0; i < n_answers; i++) {
        if (answers[i].version != version ||
            !enough_agree(answers, n_answers, k, version, answers[i].user_bytes))
            continue;
        *user_bytes = answers[i].user_bytes;
        return true;
    }
    return false;
}

/* Returns the storages that may hide something at or above `version`: the oldest version
 * they showed of one of their projections is newer. *newest: the newest of these. */
static uint32_t hiders_of(const struct resolve_answer *answers, unsigned n_answers,
                          uint64_t version, uint64_t *newest)
{
    uint32_t hiders = 0;

    *newest = 0;
    for (unsigned i = 0; i < n_answers; i++) {
        uint64_t oldest = answers[i].version;

        for (unsigned j = 0; j < n_answers; j++) {
            if (answers[j].storage == answers[i].storage &&
                answers[j].projection == answers[i].projection &&
                answers[j].version < oldest)
                oldest = answers[j].version;
        }
        if (oldest <= version)
            continue;
        hiders |= 1u << answers[i].storage;
        *newest = oldest > *newest ? oldest : *newest;
    }
    return hiders;
}

/* Returns how many storages at most can have acknowledged this version if those in
 * `unknown` may have: each with a projection of its own (of a mark: each). */
static unsigned acknowledged_most(const struct resolve_answer *answers,
                                  unsigned n_answers, uint64_t version, uint32_t unknown)
{
    uint32_t holders = holders_of(answers, n_answers, version), projections = 0;
    unsigned by_storage = count(holders | unknown), by_projection;

    for (unsigned i = 0; i < n_answers; i++) {
        if (answers[i].version != version)
            continue;
        if (answers[i].user_bytes == 0)
            return by_storage;
        projections |= 1u << answers[i].projection;
    }
    by_projection = count(projections) + count(unknown);
    return by_projection < by_storage ? by_projection : by_storage;
}

/* Decides, taking every answer as true. */
static enum resolve_result resolve_by(unsigned k, unsigned q, uint32_t unanswered,
                                      const struct resolve_answer *answers,
                                      unsigned n_answers, uint64_t *version,
                                      uint16_t *user_bytes)
{
    uint64_t v = 0, hidden;
    bool limited = false;

    if (count(unanswered) >= q) /* a version in no answer may have been acknowledged */
        return RESOLVE_UNCLEAR;
    while (next_version(answers, n_answers, limited, v, &v)) {
        uint32_t hiders = hiders_of(answers, n_answers, v, &hidden);

        if (agreed_bytes(answers, n_answers, k, v, user_bytes)) {
            if (count(hiders | unanswered) >= q)
                break; /* a version between may have been acknowledged */
            *version = v;
            return *user_bytes == 0 ? RESOLVE_HOLE : RESOLVE_DATA;
        }
        if (acknowledged_most(answers, n_answers, v, unanswered) >= q)
            return RESOLVE_UNCLEAR; /* this version, or one that it hides */
        if (acknowledged_most(answers, n_answers, v, hiders | unanswered) >= q)
            break; /* unless those that have something newer do not have it */
        limited = true;
    }
    hiders_of(answers, n_answers, 0, &hidden);
    if (hidden == 0)
        return RESOLVE_UNCLEAR;
    *version = hidden;
    return RESOLVE_BELOW;
}

enum resolve_result resolve_block(unsigned k, unsigned q, uint32_t candidates,
                                  uint32_t answered, const struct resolve_answer *answers,
                                  unsigned n_answers, uint64_t *version,
                                  uint16_t *user_bytes, bool *doubtful)
{
    struct resolve_answer sure[RESOLVE_ANSWERS_MAX];
    uint32_t unanswered = candidates & ~answered;
    enum resolve_result result;
    unsigned n_sure = 0;

    assert(n_answers <= RESOLVE_ANSWERS_MAX);
    *doubtful = false;
    sure[0] = (struct resolve_answer){ 0 };
    for (unsigned i = 0; i < n_answers; i++) {
        if (!answers[i].below)
            sure[n_sure++] = answers[i];
    }
    result = resolve_by(k, q, unanswered, sure, n_sure, version, user_bytes);
    if (n_sure == n_answers || result == RESOLVE_DATA || result == RESOLVE_HOLE)
        return result;
    *doubtful = true;
    return resolve_by(k, q, unanswered, answers, n_answers, version, user_bytes);
}
