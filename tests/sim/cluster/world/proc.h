/*
 * proc.h - simulated processes: an env, a common virtual clock, and memory that ends with
 * its process.
 *
 * Everything runs on one thread. A caller enters a process (proc_enter()) before it calls
 * its code, so that the process owns what its code allocates, starts and posts: a kill
 * removes all of that at once. The world itself (network, disks, checker) is process 0.
 *
 * The linker wraps malloc() and its family (CMakeLists.txt), for the rooms' code too.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_PROC_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/env/env.h"
#include "common/env/timers.h"

enum { PROCS_MAX = 40 };

struct proc_block; /* a piece of memory with its owner */

/* One process, or the place of a dead one. Its
 * successor uses it again; `life` tells them apart. */
struct proc {
    struct env env; /* env of its cores */
    unsigned index;
    bool alive;
    bool hung;       /* stopped as by SIGSTOP: nothing runs */
    unsigned life;   /* number of its starts */
    char name[24];   /* for messages */
    int64_t wall_ns; /* offset of its wall clock */
    struct timers timers;
    struct tasks tasks;
    struct proc_block *blocks;
    size_t n_bytes, n_bytes_most; /* bytes of memory: now, and the maximum */
};

/* Clock, random numbers and all processes. There is
 * only one, because malloc() has no argument for it. */
struct world_clock {
    uint64_t now_ns;
    uint64_t random_state;
    uint64_t trace; /* hash of all events */
    uint64_t n_events;
    unsigned n_procs;
    struct proc *procs[PROCS_MAX];
    struct proc world; /* index 0 */
};
extern struct world_clock world_clock;
extern struct proc *proc_current; /* running process; never NULL after world_begin() */

void world_begin(uint64_t seed);
/** Kills every process and frees the world's memory. */
void world_end(void);

/** Makes a place for processes, not alive; owned by the world. */
struct proc *proc_new(const char *name);
void proc_start(struct proc *p);
/** Kills a process other than the current one: drops its timers, tasks and memory. */
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

/** Runs one task, or else the next timer. Returns false if nothing is left. */
bool world_step(void);
/** Returns the time of the next event; UINT64_MAX: none. */
uint64_t world_next_ns(void);
/** Runs all events until then. */
void world_run_until(uint64_t ns);

uint64_t world_random(void);
/** Returns a random number in 0..bound - 1. */
static inline uint64_t world_below(uint64_t bound)
{
    return world_random() % bound;
}
static inline bool world_chance(uint32_t ppm)
{
    return ppm != 0 && world_below(1000000) < ppm;
}
/** Adds an event to the hash of the run. */
static inline void world_trace(uint64_t what)
{
    uint64_t x = (world_clock.trace ^ what) * 0x9e3779b97f4a7c15u;

    world_clock.trace = x ^ x >> 29;
}
/** Starts a timer of the world with a resolution of 1 us. */
void world_timer_start_us(struct env_timer *timer, uint64_t after_us);
static inline uint64_t world_now_ms(void)
{
    return world_clock.now_ns / 1000000;
}

#endif
