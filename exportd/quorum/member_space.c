/*
 * member_space.c - a member whose disk is full, or nearly so.
 *
 * In:     the log finds no space, or has some again; free bytes, asked of the disk and
 *         heard from other members.
 * Out:    the log is trimmed; leadership goes to a member with space; the free bytes that
 *         a majority has, for the kv's side.
 * Keeps:  an entry that is not on stable storage is never acknowledged. A leader takes no
 *         growth that a majority could not keep.
 */
#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

/* ---- the log finds no space ---- */

/* Asks the kv's side for a sync: then the log can drop all that the store has. */
static void room_make(struct member *m)
{
    if (m->state != MEMBER_RUNS || m->is_syncing_below)
        return;
    m->is_syncing_below = true;
    m->config.hooks.sync_below(m->config.hooks.arg);
}

void member_log_full(struct member *m, bool is_full)
{
    enum { LONG = SPACE_FULL_MS / QUORUM_LOG_RETRY_MS };
    struct member_space *s = &m->space;

    if (!is_full) {
        if (s->n_full >= LONG)
            log_info("quorum: the disk has space for the metadata log again");
        s->n_full = 0;
        return;
    }
    room_make(m);
    if (++s->n_full == LONG) /* trimming did not help */
        log_warn("quorum: the disk has no space for the metadata log: this member "
                 "acknowledges nothing until it has; free some on its disk");
    if (s->n_full >= LONG && m->role == RAFT_CORE_LEADER)
        member_transfer(m, 0);
}

/* ---- free bytes ---- */

void member_space_put(const struct member *m, uint8_t buf[MEMBER_FREE_BYTES])
{
    put_le64(buf, m->space.free_bytes);
}

void member_space_heard(struct member *m, struct member_peer *p, const void *msg,
                        size_t len)
{
    if (len < MEMBER_FREE_BYTES)
        return; /* an older build */
    p->free_bytes = get_le64(msg);
    p->free_ns = member_now_ns(m);
}

static bool was_heard(const struct member *m, uint64_t id)
{
    const struct member_peer *p = member_peer_find(m, id);

    return id == m->config.id ||
           (p != NULL && p->free_ns != 0 &&
            member_now_ns(m) - p->free_ns <= ms_to_ns(SPACE_OLD_MS));
}

/* Returns what a voter has; 0: nothing was heard of it lately. */
static uint64_t free_of(const struct member *m, uint64_t id)
{
    if (id == m->config.id)
        return m->space.free_bytes;
    return was_heard(m, id) ? member_peer_find(m, id)->free_bytes : 0;
}

/* Finds the largest number of bytes that a majority of the voters has. Returns false if
 * no majority was heard lately, as after a suspension. */
static bool free_of_majority(const struct member *m, uint64_t *free_bytes)
{
    uint64_t sorted[RAFT_SERVERS_MAX];
    unsigned n = 0, n_heard = 0;

    for (unsigned i = 0; i < m->members.n; i++) {
        uint64_t v = free_of(m, m->members.members[i].id);
        unsigned at = n;

        if (m->members.members[i].role != RAFT_ROLE_VOTER)
            continue;
        n_heard += was_heard(m, m->members.members[i].id);
        for (; at > 0 && sorted[at - 1] < v; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = v;
        n++;
    }
    *free_bytes = n == 0 ? UINT64_MAX : sorted[n / 2];
    return n == 0 || n_heard > n / 2;
}

/* Lets the voter with the most space lead, if this member has too little. */
static void space_hand_over(struct member *m)
{
    char name[MEMBER_NAME_MAX];
    uint64_t best = 0, to = 0;

    if (m->space.free_bytes >= SPACE_LOW_BYTES)
        return;
    for (unsigned i = 0; i < m->members.n; i++) {
        const struct raft_member *other = &m->members.members[i];
        uint64_t v = free_of(m, other->id);

        if (raft_member_can_serve(other) && other->id != m->config.id && v > best &&
            v != UINT64_MAX) {
            best = v;
            to = other->id;
        }
    }
    if (best < 2 * SPACE_LOW_BYTES)
        return;
    log_warn("quorum: the disk of this member is nearly full: %s takes over",
             member_name(m, to, name));
    member_transfer(m, to);
}

static void on_space(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;
    struct member_space *s = &m->space;
    uint64_t majority;

    s->is_asking = false;
    if (m->state != MEMBER_RUNS) {
        member_stop_look(m);
        return;
    }
    s->free_bytes = rc == 0 ? dr->free : UINT64_MAX;
    env_timer_start(m->config.env, &s->timer, SPACE_LOOK_MS);
    if (!m->leads || !free_of_majority(m, &majority))
        return;
    if (majority != s->sent || m->n_leads != s->sent_in)
        m->config.hooks.space(m->config.hooks.arg, majority);
    s->sent = majority;
    s->sent_in = m->n_leads;
    space_hand_over(m);
}

static void on_timer(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, space.timer);

    if (m->state != MEMBER_RUNS || m->space.is_asking)
        return;
    m->space.is_asking = true;
    m->space.dr = (struct disk_req){ .op = DISK_SPACE, .done = on_space, .arg = m };
    disk_submit(m->config.disk, &m->space.dr);
}

void member_space_start(struct member *m)
{
    if (m->space.timer.fn == NULL)
        env_timer_init(&m->space.timer, on_timer);
    m->space.free_bytes = UINT64_MAX;
    env_timer_start(m->config.env, &m->space.timer, SPACE_LOOK_MS);
}

void member_space_stop(struct member *m)
{
    if (m->space.timer.fn != NULL)
        env_timer_stop(m->config.env, &m->space.timer);
}
