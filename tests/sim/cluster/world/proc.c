/*
 * proc.c - simulated processes: scheduling and memory.
 *
 * In:     env calls and malloc() of the running process. Thread: one.
 * Out:    timers and tasks, in an order that depends only on the seed.
 * Keeps:  a killed process leaves nothing behind, and nothing of it runs again.
 */
#include "tests/sim/cluster/world/proc.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"

struct world_clock world_clock;
struct proc *proc_current;

/* ---- memory ---- */

/* Header right before the memory of a caller. */
struct proc_block {
    struct proc_block *prev, *next;
    struct proc *owner;
    void *raw; /* result of the real malloc */
    size_t len;
    uint64_t magic;
};
static_assert(sizeof(struct proc_block) % 16 == 0, "keeps malloc's alignment");

enum { BLOCK_MAGIC = 0x50524f43 };

void *__real_malloc(size_t len);
void __real_free(void *p);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__wrap_realloc(void *p, size_t len);
void __wrap_free(void *p);
int __wrap_posix_memalign(void **out, size_t align, size_t len);
void *__wrap_aligned_alloc(size_t align, size_t len);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
int __wrap_vasprintf(char **out, const char *fmt, va_list args);
int __wrap_asprintf(char **out, const char *fmt, ...);

static void *block_new(size_t align, size_t len)
{
    size_t extra = sizeof(struct proc_block) + (align > 16 ? align : 0);
    struct proc *owner = proc_current;
    struct proc_block *b;
    uint8_t *raw, *p;

    raw = len > SIZE_MAX - extra ? NULL : __real_malloc(len + extra);
    if (raw == NULL)
        return NULL;
    p = raw + sizeof(*b);
    if (align > 16)
        p = (uint8_t *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
    b = (struct proc_block *)(void *)(p - sizeof(*b));
    *b = (struct proc_block){
        .owner = owner, .raw = raw, .len = len, .magic = BLOCK_MAGIC
    };
    if (owner != NULL) {
        b->next = owner->blocks;
        if (b->next != NULL)
            b->next->prev = b;
        owner->blocks = b;
        owner->n_bytes += len;
        if (owner->n_bytes > owner->n_bytes_most)
            owner->n_bytes_most = owner->n_bytes;
    }
    return p;
}

static void block_free(struct proc_block *b)
{
    assert(b->magic == BLOCK_MAGIC);
    if (b->owner != NULL) {
        if (b->prev != NULL)
            b->prev->next = b->next;
        else
            b->owner->blocks = b->next;
        if (b->next != NULL)
            b->next->prev = b->prev;
        b->owner->n_bytes -= b->len;
    }
    b->magic = 0;
    __real_free(b->raw);
}

void *__wrap_malloc(size_t len)
{
    return block_new(16, len);
}

void *__wrap_calloc(size_t n, size_t len)
{
    void *p = len != 0 && n > SIZE_MAX / len ? NULL : block_new(16, n * len);

    return p == NULL ? NULL : memset(p, 0, n * len);
}

void *__wrap_realloc(void *p, size_t len)
{
    struct proc_block *b = p == NULL ? NULL : (struct proc_block *)p - 1;
    void *q = block_new(16, len);

    if (q == NULL || b == NULL)
        return q;
    memcpy(q, p, len < b->len ? len : b->len);
    block_free(b);
    return q;
}

void __wrap_free(void *p)
{
    if (p != NULL)
        block_free((struct proc_block *)p - 1);
}

int __wrap_posix_memalign(void **out, size_t align, size_t len)
{
    void *p = block_new(align, len);

    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

void *__wrap_aligned_alloc(size_t align, size_t len)
{
    return block_new(align, len);
}

char *__wrap_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *p = block_new(16, len + 1);

    if (p == NULL)
        return NULL;
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *__wrap_strdup(const char *s)
{
    return __wrap_strndup(s, strlen(s));
}

int __wrap_vasprintf(char **out, const char *fmt, va_list args)
{
    va_list again;
    int len;

    va_copy(again, args);
    len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    *out = block_new(16, (size_t)len + 1);
    return *out == NULL ? -1 : vsnprintf(*out, (size_t)len + 1, fmt, args);
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
    va_list args;
    int len;

    va_start(args, fmt);
    len = __wrap_vasprintf(out, fmt, args);
    va_end(args);
    return len;
}

static void memory_drop(struct proc *p)
{
    while (p->blocks != NULL)
        block_free(p->blocks);
    assert(p->n_bytes == 0);
}

/* ---- the env ---- */

/* Uses the running process, whatever struct env is passed. */
static uint64_t sim_now_ns(struct env *env)
{
    (void)env;
    return world_clock.now_ns;
}

static int64_t sim_wall_ns(struct env *env)
{
    (void)env;
    return (int64_t)1767225600 * 1000000000 + (int64_t)world_clock.now_ns +
           proc_current->wall_ns;
}

static void sim_timer_start(struct env *env, struct env_timer *timer, uint64_t after_ms)
{
    (void)env;
    timers_start(&proc_current->timers, timer, world_clock.now_ns + after_ms * 1000000);
}

static void sim_timer_stop(struct env *env, struct env_timer *timer)
{
    (void)env;
    timers_stop(&proc_current->timers, timer);
}

static void sim_post(struct env *env, struct env_task *task)
{
    (void)env;
    tasks_push(&proc_current->tasks, task);
}

static void sim_random(struct env *env, void *buf, size_t len_bytes)
{
    uint8_t *p = buf;

    (void)env;
    while (len_bytes > 0) {
        uint64_t x = world_random();
        size_t n = len_bytes < sizeof(x) ? len_bytes : sizeof(x);

        memcpy(p, &x, n);
        p += n;
        len_bytes -= n;
    }
}

static const struct env_ops sim_env_ops = {
    .now_ns = sim_now_ns,
    .wall_ns = sim_wall_ns,
    .timer_start = sim_timer_start,
    .timer_stop = sim_timer_stop,
    .post = sim_post,
    .random = sim_random,
};

/* A Weyl sequence through a 64-bit finaliser (Steele, Lea, Flood, OOPSLA 2014). */
uint64_t world_random(void)
{
    uint64_t x = world_clock.random_state += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

void world_timer_start_us(struct env_timer *timer, uint64_t after_us)
{
    struct proc *before = proc_enter(&world_clock.world);

    timers_start(&world_clock.world.timers, timer, world_clock.now_ns + after_us * 1000);
    proc_leave(before);
}

/* ---- processes ---- */

void world_begin(uint64_t seed)
{
    memset(&world_clock, 0, sizeof(world_clock));
    world_clock.now_ns = 1000000000;
    world_clock.random_state = seed * 0x2545f4914f6cdd1d + 1;
    world_clock.world.env.ops = &sim_env_ops;
    world_clock.world.alive = true;
    snprintf(world_clock.world.name, sizeof(world_clock.world.name), "world");
    world_clock.procs[world_clock.n_procs++] = &world_clock.world;
    proc_current = &world_clock.world;
}

void world_end(void)
{
    struct proc *world = &world_clock.world;

    assert(proc_current == world);
    for (unsigned i = 1; i < world_clock.n_procs; i++)
        proc_kill(world_clock.procs[i]);
    memory_drop(world);
    proc_current = NULL;
}

struct proc *proc_new(const char *name)
{
    struct proc *p = calloc(1, sizeof(*p));

    assert(p != NULL && world_clock.n_procs < PROCS_MAX && proc_current->index == 0);
    p->env.ops = &sim_env_ops;
    p->index = world_clock.n_procs;
    p->wall_ns = (int64_t)world_below(7200ull * 1000000000) - (int64_t)3600 * 1000000000;
    snprintf(p->name, sizeof(p->name), "%s", name);
    world_clock.procs[world_clock.n_procs++] = p;
    return p;
}

void proc_start(struct proc *p)
{
    assert(!p->alive && p->blocks == NULL);
    p->alive = true;
    p->hung = false;
    p->life++;
}

void proc_kill(struct proc *p)
{
    assert(proc_current != p);
    if (!p->alive)
        return;
    p->alive = p->hung = false;
    p->timers = (struct timers){ 0 };
    p->tasks = (struct tasks){ 0 };
    memory_drop(p);
}

static bool runs(const struct proc *p)
{
    return p->alive && !p->hung;
}

static struct proc *proc_with_task(void)
{
    struct proc *ready[PROCS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < world_clock.n_procs; i++) {
        if (runs(world_clock.procs[i]) && world_clock.procs[i]->tasks.head != NULL)
            ready[n++] = world_clock.procs[i];
    }
    if (n == 0)
        return NULL;
    return n == 1 ? ready[0] : ready[world_below(n)];
}

static struct proc *proc_with_timer(uint64_t *at_ns)
{
    struct proc *first = NULL;

    *at_ns = UINT64_MAX;
    for (unsigned i = 0; i < world_clock.n_procs; i++) {
        struct proc *p = world_clock.procs[i];
        uint64_t ns = runs(p) ? timers_next_ns(&p->timers) : UINT64_MAX;

        if (ns < *at_ns) {
            *at_ns = ns;
            first = p;
        }
    }
    return first;
}

uint64_t world_next_ns(void)
{
    uint64_t at_ns;

    for (unsigned i = 0; i < world_clock.n_procs; i++) {
        if (runs(world_clock.procs[i]) && world_clock.procs[i]->tasks.head != NULL)
            return world_clock.now_ns;
    }
    proc_with_timer(&at_ns);
    return at_ns;
}

static void run_task(struct proc *p)
{
    struct proc *before = proc_enter(p);
    struct env_task *task = tasks_pop(&p->tasks);

    world_clock.n_events++;
    world_trace(p->index);
    task->fn(task);
    proc_leave(before);
}

static void run_timer(struct proc *p)
{
    struct proc *before = proc_enter(p);
    struct env_timer *timer = timers_pop_due(&p->timers, world_clock.now_ns, UINT64_MAX);

    world_clock.n_events++;
    world_trace(world_clock.now_ns << 6 ^ p->index);
    timer->fn(timer);
    proc_leave(before);
}

bool world_step(void)
{
    struct proc *p = proc_with_task();
    uint64_t at_ns;

    if (p != NULL) {
        run_task(p);
        return true;
    }
    p = proc_with_timer(&at_ns);
    if (p == NULL)
        return false;
    if (at_ns > world_clock.now_ns) /* otherwise it was stopped when it was due */
        world_clock.now_ns = at_ns;
    run_timer(p);
    return true;
}

void world_run_until(uint64_t ns)
{
    while (world_next_ns() <= ns)
        world_step();
    if (ns > world_clock.now_ns)
        world_clock.now_ns = ns;
}
