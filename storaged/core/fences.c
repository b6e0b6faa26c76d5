/*
 * fences.c - the sessions that are over, as a table that is read while it changes.
 *
 * In:     the healer, when a map came; op.c. Thread: one that changes it, any that reads.
 * Out:    memory only. The map that was kept brings the list back after a restart.
 * Keeps:  a session that is in the old list and in the new one is found at any moment between.
 */
#include "storaged/core/fences.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of a slot: nothing was ever here, and a search ends; or something was, and a search goes on. */
static const uint64_t slot_empty = 0, slot_left = UINT64_MAX;

static unsigned slot_first(uint64_t session)
{
    return (unsigned)((session * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % FENCED_SLOTS;
}

static unsigned slot_next(unsigned i)
{
    return (i + 1) % FENCED_SLOTS;
}

static uint64_t slot_get(const struct fences *f, unsigned i)
{
    return atomic_load_explicit(&f->slots[i], memory_order_acquire);
}

static void slot_set(struct fences *f, unsigned i, uint64_t value)
{
    atomic_store_explicit(&f->slots[i], value, memory_order_release);
}

bool fences_may_have(uint64_t session)
{
    return session != slot_empty && session != slot_left;
}

bool fences_have(const struct fences *f, uint64_t session)
{
    unsigned i = slot_first(session);

    if (!fences_may_have(session))
        return false;
    for (unsigned n = 0; n < FENCED_SLOTS; n++, i = slot_next(i)) {
        uint64_t at = slot_get(f, i);

        if (at == slot_empty || at == session)
            return at == session;
    }
    return false;
}

static void fences_add(struct fences *f, uint64_t session)
{
    unsigned i = slot_first(session);

    if (fences_have(f, session))
        return;
    while (fences_may_have(slot_get(f, i)))
        i = slot_next(i); /* half of them are free */
    slot_set(f, i, session);
}

/* Slots that no search for one of the list passes are empty again. */
static void fences_tidy(struct fences *f)
{
    bool passed[FENCED_SLOTS] = { false };

    for (unsigned i = 0; i < FENCED_SLOTS; i++) {
        uint64_t at = slot_get(f, i);

        for (unsigned j = slot_first(at); fences_may_have(at) && j != i; j = slot_next(j))
            passed[j] = true;
    }
    for (unsigned i = 0; i < FENCED_SLOTS; i++) {
        if (!passed[i] && slot_get(f, i) == slot_left)
            slot_set(f, i, slot_empty);
    }
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int fences_set(struct fences *f, const uint64_t *sessions, size_t n)
{
    uint64_t *sorted = malloc((n + 1) * sizeof(*sorted));

    assert(n <= FENCED_MAX);
    if (sorted == NULL)
        return -ENOMEM;
    if (n > 0)
        memcpy(sorted, sessions, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_number);
    for (unsigned i = 0; i < FENCED_SLOTS; i++) {
        uint64_t at = slot_get(f, i);

        if (fences_may_have(at) &&
            bsearch(&at, sorted, n, sizeof(*sorted), by_number) == NULL)
            slot_set(f, i, slot_left);
    }
    for (size_t i = 0; i < n; i++)
        fences_add(f, sessions[i]);
    fences_tidy(f);
    free(sorted);
    return 0;
}
