/*
 * resolve.c - what is the value of a block, given what some storages say of it?
 *
 * In:     answers of any storages, in any order. Any thread.
 * Out:    a version that is never older than the newest acknowledged one, or "ask on".
 * Keeps:  I2 and I6. An acknowledged version was taken by at least q storages, and each of them still
 *         has it, or a newer one that replaced it. So a version may be returned when those that have
 *         a newer one and those that are silent are, together, fewer than q.
 * Ask:    docs/ARCHITECTURE.md section 6; every read of every user depends on these rules.
 */
#include "storcli/core/resolve.h"

#include <assert.h>

static unsigned count(uint32_t bits)
{
    return (unsigned)__builtin_popcount(bits);
}

/* The newest version below `limit` (or of all); false when there is none. */
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

/* Storages that hold this version in whatever form. */
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

/* Do k distinct projections agree that the block has user_bytes at this version? For a hole
 * (0 bytes) any storage's mark counts as one, k distinct storages are wanted. */
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

enum resolve_result resolve_block(unsigned k, unsigned q, uint32_t candidates,
                                  uint32_t told, const struct resolve_answer *answers,
                                  unsigned n_answers, uint64_t *version,
                                  uint16_t *user_bytes)
{
    uint32_t silent = candidates & ~told, newer = 0;
    uint64_t v = 0;
    bool limited = false;

    assert(n_answers <= RESOLVE_ANSWERS_MAX);
    if (count(silent) >= q) /* a version nobody mentioned may have been acknowledged */
        return RESOLVE_UNCLEAR;
    while (next_version(answers, n_answers, limited, v, &v)) {
        for (unsigned i = 0; i < n_answers; i++) {
            if (answers[i].version != v ||
                !enough_agree(answers, n_answers, k, v, answers[i].user_bytes))
                continue;
            *version = v;
            *user_bytes = answers[i].user_bytes;
            return answers[i].user_bytes == 0 ? RESOLVE_HOLE : RESOLVE_DATA;
        }
        newer |= holders_of(answers, n_answers, v);
        if (count(newer | silent) >= q)
            return RESOLVE_UNCLEAR; /* something newer than the rest may have been acknowledged */
        limited = true;
    }
    return RESOLVE_UNCLEAR;
}
