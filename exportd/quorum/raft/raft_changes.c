/*
 * raft_changes.c - which lists of members the log has, and which is committed.
 *
 * In:     entries as raft_core.c appends, truncates and commits them. Out: lists.
 * Keeps:  what is committed is not dropped by a truncation.
 */
#include "exportd/quorum/raft/raft_changes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

void raft_changes_free(struct raft_changes *c)
{
    free(c->later);
}

const struct raft_member_list *raft_changes_newest(const struct raft_changes *c)
{
    return c->n == 0 ? &c->base : &c->later[c->n - 1];
}

int raft_changes_add(struct raft_changes *c, uint64_t index, const void *data, size_t len)
{
    assert(index > raft_changes_newest(c)->index);
    if (c->n == c->max) {
        size_t max = c->max * 2 + 2;
        struct raft_member_list *later = realloc(c->later, max * sizeof(*later));

        if (later == NULL)
            return -ENOMEM;
        c->later = later;
        c->max = max;
    }
    if (raft_config_decode(data, len, &c->later[c->n].config) != 0)
        return -ROZO_EDAMAGED;
    c->later[c->n].index = index;
    c->n++;
    return 0;
}

void raft_changes_commit(struct raft_changes *c)
{
    assert(c->n > 0);
    c->base = c->later[0];
    c->n--;
    memmove(c->later, c->later + 1, c->n * sizeof(*c->later));
}

void raft_changes_truncate(struct raft_changes *c, uint64_t from)
{
    while (c->n > 0 && c->later[c->n - 1].index >= from)
        c->n--;
}

/* Returns true if a member may have this role next; was NULL: it is new. */
static bool role_may_follow(const struct raft_member *was, enum raft_role role)
{
    if (was == NULL)
        return role != RAFT_ROLE_VOTER;
    return role == was->role ||
           (was->role == RAFT_ROLE_SPARE && role == RAFT_ROLE_STANDBY) ||
           (was->role == RAFT_ROLE_STANDBY && role == RAFT_ROLE_VOTER);
}

bool raft_change_is_one_step(const struct raft_config *old, const struct raft_config *new)
{
    unsigned n_added = 0, n_changed = 0, n_kept = 0;

    for (unsigned i = 0; i < new->n; i++) {
        const struct raft_member *m = &new->members[i];
        const struct raft_member *was = raft_config_find(old, m->id);

        n_kept += was != NULL;
        n_added += was == NULL;
        n_changed += was != NULL &&
                     (was->role != m->role || strcmp(was->address, m->address) != 0);
        if (!role_may_follow(was, m->role) ||
            (was != NULL && was->is_witness != m->is_witness))
            return false;
    }
    return n_added + n_changed + (old->n - n_kept) == 1;
}
