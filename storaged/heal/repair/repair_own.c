/*
 * repair_own.c - our own storage in a repair: how long it is asked again.
 *
 * In:     answers of our own storage, or none. Thread: that of the env.
 * Out:    whether it is asked once more.
 * Keeps:  a repair that could not look at our own storage does not end well.
 */
#include "storaged/heal/repair/repair_own.h"

#include <assert.h>

#include "common/base/units.h"
#include "storaged/heal/repair/repair_int.h"

void repair_own_init(struct repair *repair)
{
    const struct heal_file *file = &repair->file;

    assert(repair->own.bit == 0);
    assert(file->c <= DIST_MAX);
    for (unsigned i = 0; i < file->c; i++) {
        if (file->target.storages[i] == repair->repairer->config.own_storage)
            repair->own.bit = 1u << i;
    }
}

bool repair_own_refused(struct repair *repair)
{
    struct repair_own *own = &repair->own;
    struct heal_file *file = &repair->file;
    uint64_t now = env_now_ns(file->env);

    assert(own->bit != 0);
    if (own->refused_ns == 0)
        own->refused_ns = now;
    if (file->moved == 0 && heal_file_is_up(file, (unsigned)__builtin_ctz(own->bit)) &&
        now - own->refused_ns < ms_to_ns(file->deadline_ms)) {
        file->unanswered &= ~own->bit; /* asked once more */
        return true;
    }
    own->unseen |= (own->bit & ~file->lost) != 0;
    return false;
}

void repair_own_told(struct repair *repair)
{
    repair->own.refused_ns = 0;
}
