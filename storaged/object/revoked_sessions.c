/*
 * revoked_sessions.c - the table of revoked sessions; lock-free for its readers.
 *
 * In:     the healer, when a cluster map arrives; requests. One writer, any reader.
 * Out:    memory only. After a restart the stored cluster map brings the list back.
 * Keeps:  a session that is in the old and in the new list is found at any time.
 */
#include "storaged/object/revoked_sessions.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A search ends at a slot that was never used, and passes one whose session has left. */
static const uint64_t slot_empty = 0, slot_left = UINT64_MAX;

static unsigned slot_first(uint64_t session)
{
    return (unsigned)((session * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % REVOKED_SLOTS;
}

static unsigned slot_next(unsigned i)
{
    return (i + 1) % REVOKED_SLOTS;
}

static uint64_t slot_get(const struct revoked_sessions *r, unsigned i)
{
    return atomic_load_explicit(&r->slots[i], memory_order_acquire);
}

static void slot_set(struct revoked_sessions *r, unsigned i, uint64_t value)
{
    atomic_store_explicit(&r->slots[i], value, memory_order_release);
}

bool revoked_sessions_may_have(uint64_t session)
{
    return session != slot_empty && session != slot_left;
}

bool revoked_sessions_have(const struct revoked_sessions *r, uint64_t session)
{
    unsigned i = slot_first(session);

    if (!revoked_sessions_may_have(session))
        return false;
    for (unsigned n = 0; n < REVOKED_SLOTS; n++, i = slot_next(i)) {
        uint64_t at = slot_get(r, i);

        if (at == slot_empty || at == session)
            return at == session;
    }
    return false;
}

static void revoked_sessions_add(struct revoked_sessions *r, uint64_t session)
{
    unsigned i = slot_first(session);

    if (revoked_sessions_have(r, session))
        return;
    while (revoked_sessions_may_have(slot_get(r, i)))
        i = slot_next(i); /* half of the slots are free */
    slot_set(r, i, session);
}

/* Marks slots as never used when no search for a listed session passes them. */
static void revoked_sessions_tidy(struct revoked_sessions *r)
{
    bool passed[REVOKED_SLOTS] = { false };

    for (unsigned i = 0; i < REVOKED_SLOTS; i++) {
        uint64_t at = slot_get(r, i);

        for (unsigned j = slot_first(at); revoked_sessions_may_have(at) && j != i;
             j = slot_next(j))
            passed[j] = true;
    }
    for (unsigned i = 0; i < REVOKED_SLOTS; i++) {
        if (!passed[i] && slot_get(r, i) == slot_left)
            slot_set(r, i, slot_empty);
    }
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int revoked_sessions_set(struct revoked_sessions *r, const uint64_t *sessions, size_t n)
{
    uint64_t *sorted = malloc((n + 1) * sizeof(*sorted));

    assert(n <= REVOKED_MAX);
    if (sorted == NULL)
        return -ENOMEM;
    if (n > 0)
        memcpy(sorted, sessions, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_number);
    for (unsigned i = 0; i < REVOKED_SLOTS; i++) {
        uint64_t at = slot_get(r, i);

        if (revoked_sessions_may_have(at) &&
            bsearch(&at, sorted, n, sizeof(*sorted), by_number) == NULL)
            slot_set(r, i, slot_left);
    }
    for (size_t i = 0; i < n; i++)
        revoked_sessions_add(r, sessions[i]);
    revoked_sessions_tidy(r);
    free(sorted);
    return 0;
}
