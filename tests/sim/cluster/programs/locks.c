/*
 * locks.c - fcntl locks of programs on their open files, with checks.
 *
 * In:     the seed, answers of mounts. Out: requests to mounts; an error message if two
 *         locks exclude each other.
 * Keeps:  from the answer that grants a lock until the request that releases it, no
 *         program on any mount holds a lock that excludes it, also over restarts of
 *         exportd. A client that dies, or may be taken for dead, holds none; a waiter for
 *         its lock waits no longer than its lease and eviction take.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tests/sim/cluster/state.h"

/* Lease, eviction, and some time for exportd and messages. */
#define LOCK_WAIT_NS UINT64_C(35000000000)

enum { RANGES = 4 };

/* Some of these ranges overlap, some do not. */
static const struct {
    uint64_t from, len;
} ranges[RANGES] = { { 0, 0 }, { 0, 100 }, { 50, 100 }, { 100, 1 } };

static uint64_t range_end(unsigned range)
{
    return ranges[range].len == 0 ? UINT64_MAX : ranges[range].from + ranges[range].len;
}

static bool ranges_meet(unsigned a, unsigned b)
{
    return ranges[a].from < range_end(b) && ranges[b].from < range_end(a);
}

/* ---- who has what ---- */

static const char *words_of(const struct program *p)
{
    return p->lock.writes ? "to write" : "to read";
}

static bool excludes(const struct program *p, const struct program *other)
{
    return other != p && other->file == p->file && other->lock.held &&
           (p->lock.asked_writes || other->lock.writes) &&
           ranges_meet(p->lock.asked_range, other->lock.range);
}

static void lock_note(struct program *p)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        const struct program *other = &run->programs[i];

        if (excludes(p, other))
            wrong("two programs have a lock of file %d: %s has range %u %s, "
                  "and %s gets range %u %s",
                  p->file, other->client->host->proc->name, other->lock.range,
                  words_of(other), p->client->host->proc->name, p->lock.asked_range,
                  p->lock.asked_writes ? "to write" : "to read");
    }
    p->lock.held = true;
    p->lock.range = p->lock.asked_range;
    p->lock.writes = p->lock.asked_writes;
    run->result.n_locks++;
}

/* Records that the lock is free: another program
 * may get it from now on, and should soon. */
void lock_drop(struct program *p)
{
    if (p->lock.held && p->file != NOBODY)
        model.files[p->file].unlocked_ns = world_clock.now_ns;
    p->lock.held = false;
    timers_stop(&world_clock.world.timers, &p->signal);
}

void locks_client_away(int client)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        struct program *p = &run->programs[i];

        if ((int)p->client->index != client || !p->lock.held)
            continue;
        lock_drop(p);
        p->lock.unsure = true;
    }
}

/* ---- taking ---- */

static bool somebody_is_in_the_way(const struct program *p)
{
    for (unsigned i = 0; i < CLIENTS * PROGRAMS; i++) {
        if (excludes(p, &run->programs[i]))
            return true;
    }
    return false;
}

static void check_wait(const struct program *p)
{
    uint64_t since_ns = p->started_ns;

    if (since_ns < model.files[p->file].unlocked_ns)
        since_ns = model.files[p->file].unlocked_ns;
    if (since_ns < run->exportd_started_ns)
        since_ns = run->exportd_started_ns;
    if (world_clock.now_ns - since_ns > LOCK_WAIT_NS && !somebody_is_in_the_way(p))
        wrong("%s waited %.1f s for a lock of file %d that was free",
              p->client->host->proc->name, (double)(world_clock.now_ns - since_ns) / 1e9,
              p->file);
}

static void on_locked(struct program *p)
{
    int rc = p->req.rc;

    timers_stop(&world_clock.world.timers, &p->signal);
    say("%s: file %d lock range %u %s: %s", p->client->host->proc->name, p->file,
        p->lock.asked_range, p->lock.asked_writes ? "to write" : "to read",
        strerror(-rc));
    check_wait(p);
    if (rc == 0 && !model_is_away(p->view.client, p->view.life)) {
        lock_note(p);
        p->view.opened_ns = world_clock.now_ns; /* sees earlier holders' writes */
    } else if (rc == 0) {
        p->lock.unsure = true;
    } else if (rc == -EDEADLK && !p->lock.held && !p->lock.unsure) {
        wrong("%s has no lock, but its wait is reported as a deadlock",
              p->client->host->proc->name);
    } else if (rc == -EINTR && !p->lock.signalled) {
        wrong("a wait for a lock ends with EINTR, but no signal was sent");
    } else if (rc != -EAGAIN && rc != -EDEADLK && rc != -EINTR) {
        program_fails(p, rc, "a lock");
    }
    data_again(p);
}

static void on_signal_timer(struct env_timer *timer)
{
    struct program *p = container_of(timer, struct program, signal);

    if (!client_is_up(p->client) || !p->req.under_way || p->on_answer != on_locked)
        return;
    p->lock.signalled = true;
    run->result.n_signals++;
    client_interrupt(p->client, &p->req);
}

static void lock_ask(struct program *p, unsigned range, bool writes)
{
    bool waits = world_chance(700000);

    p->lock.asked_range = range;
    p->lock.asked_writes = writes;
    p->lock.signalled = false;
    p->lock.writes &= writes; /* a weaker lock may replace it before the answer arrives */
    env_timer_init(&p->signal, on_signal_timer);
    if (waits && world_chance(300000))
        world_timer_start_us(&p->signal, world_below(1000000));
    client_setlk(p->client, program_asks(p, on_locked), model.files[p->file].ino, p->fh,
                 program_owner(p), writes ? F_WRLCK : F_RDLCK, ranges[range].from,
                 ranges[range].len, waits);
}

/* ---- releasing ---- */

static void on_unlocked(struct program *p)
{
    if (p->req.rc != 0)
        program_fails(p, p->req.rc, "an unlock");
    else if (p->writer)
        expect(model_stored(p->file, &p->view, false), p);
    data_again(p);
}

static void unlock_ask(struct program *p)
{
    unsigned range = p->lock.range;

    lock_drop(p);
    client_setlk(p->client, program_asks(p, on_unlocked), model.files[p->file].ino, p->fh,
                 program_owner(p), F_UNLCK, ranges[range].from, ranges[range].len, false);
}

bool locks_do(struct program *p)
{
    if (!p->lock.held) {
        if (!world_chance(300000))
            return false;
        lock_ask(p, (unsigned)world_below(RANGES), world_chance(500000));
    } else if (world_chance(300000)) {
        unlock_ask(p);
    } else if (world_chance(150000)) { /* change between read and write */
        lock_ask(p, p->lock.range, !p->lock.writes);
    } else {
        return false;
    }
    return true;
}
