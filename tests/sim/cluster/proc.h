/*
 * proc.h - simulated processes: an env, a virtual clock they share, and memory that dies with them.
 *
 * Everything runs on one thread. Whoever calls into a process enters it first (proc_enter()), so
 * that what its code allocates, starts and posts is its own: when it is killed all of that is gone
 * at once, whatever it was about. The world itself (network, disks, checker) is process 0.
 *
 * malloc() and its family are wrapped by the linker (CMakeLists.txt), for the rooms' code too.
 */
#ifndef ROZO_SIM_PROC_H
#define ROZO_SIM_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/env/env.h"
#include "common/env/timers.h"

enum { PROCS_MAX = 40 };

struct proc_block; /* a piece of memory with its owner */

/* One process, or where one was. Reused by its successor; `life` tells them apart. */
struct proc {
    struct env env; /* what its cores get */
    unsigned index;
    bool alive;
    bool hung;       /* SIGSTOP: nothing of it runs */
    unsigned life;   /* counts its starts */
    char name[24];   /* for people */
    int64_t wall_ns; /* its wall clock is this far off */
    struct timers timers;
    struct tasks tasks;
    struct proc_block *blocks;
    size_t n_bytes, n_bytes_most; /* of its memory: now, and ever */
};

/* The clock, chance, and all processes. There is one: malloc() has no argument for it. */
struct world_clock {
    uint64_t now_ns;
    uint64_t random_state;
    uint64_t trace; /* a hash of everything that happened */
    uint64_t n_events;
    unsigned n_procs;
    struct proc *procs[PROCS_MAX];
    struct proc world; /* index 0 */
};
extern struct world_clock world_clock;
extern struct proc *proc_current; /* who runs; never NULL after world_begin() */

void world_begin(uint64_t seed);
/** Every process must be dead or is killed; the world's own memory goes, too. */
void world_end(void);

/** A place for processes, not alive. Owned by the world. */
struct proc *proc_new(const char *name);
void proc_start(struct proc *p);
/** Not from inside it. Its timers, tasks and memory are gone. */
void proc_kill(struct proc *p);

static inline struct proc *proc_enter(struct proc *p)
{
    struct proc *before = proc_current;

    proc_current = p;
    return before;
}
static inline void proc_leave(struct proc *before)
{
    proc_current = before;
}

/** Run one task, or else the next timer; false: nothing will ever happen again. */
bool world_step(void);
/** When the next thing happens; UINT64_MAX: never. */
uint64_t world_next_ns(void);
/** Run everything that happens until then. */
void world_run_until(uint64_t ns);

uint64_t world_random(void);
/** 0..bound - 1 */
static inline uint64_t world_below(uint64_t bound)
{
    return world_random() % bound;
}
static inline bool world_chance(uint32_t ppm)
{
    return ppm != 0 && world_below(1000000) < ppm;
}
/** Something happened: it becomes part of the run's hash. */
static inline void world_trace(uint64_t what)
{
    uint64_t x = (world_clock.trace ^ what) * 0x9e3779b97f4a7c15u;

    world_clock.trace = x ^ x >> 29;
}
/** A timer of the world's, at a moment finer than milliseconds. */
void world_timer_start_us(struct env_timer *timer, uint64_t after_us);
static inline uint64_t world_now_ms(void)
{
    return world_clock.now_ns / 1000000;
}

#endif
