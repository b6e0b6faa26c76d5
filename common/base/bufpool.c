/*
 * bufpool.c - free lists of buffers by size.
 *
 * Keeps:  a buffer goes back to the list of the size it was made for, if there is room
 *         for it (idle_max_bytes, all_max_bytes).
 * Yours:  the sizes.
 * Note:   under AddressSanitizer no buffer is kept, so that it finds uses after the end.
 */
#include "common/base/bufpool.h"

#include <assert.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) /* gcc */
#    define UNDER_ASAN 1
#elif defined(__has_feature) /* clang */
#    if __has_feature(address_sanitizer)
#        define UNDER_ASAN 1
#    endif
#endif
#ifndef UNDER_ASAN
#    define UNDER_ASAN 0
#endif

enum {
    SIZE_MIN = 4096,
    SIZE_MAX_LOG2 = 24,
    /* in a dense pool smaller ones are not on pages of their own, which would cost one
     * more each */
    PAGES_FROM_BYTES = 32 << 10,
    HEAP_TRIM_BYTES = 8 << 20,
};

/* Returns the class of len, and the size of its buffers: 4, 5, 6, 7, 8, 10, 12, 14, 16
 * ... KiB; in a dense pool only every fourth of these. */
static unsigned class_of(const struct bufpool *pool, size_t len, size_t *size)
{
    size_t base = SIZE_MIN, step;
    unsigned class = 0, n;

    assert(len > 0 && len <= (size_t)1 << SIZE_MAX_LOG2);
    while (base * 2 <= len) {
        base *= 2;
        class += 4;
    }
    step = pool->dense ? base : base / 4;
    n = len <= base ? 0 : (unsigned)((len - base + step - 1) / step);
    *size = base + n * step;
    return class + (pool->dense ? 4 * n : n);
}

static size_t size_of(unsigned class)
{
    size_t base = (size_t)SIZE_MIN << class / 4;

    return base + class % 4 * (base / 4);
}

static bool is_of_heap(const struct bufpool *pool, size_t size)
{
    return pool->dense && size < PAGES_FROM_BYTES;
}

static void *idle_take(struct bufpool *pool, unsigned class, size_t size)
{
    void *buf = pool->idle[class];

    assert(pool->idle_bytes >= size);
    memcpy(&pool->idle[class], buf, sizeof(void *));
    pool->idle_bytes -= size;
    return buf;
}

void *bufpool_get(struct bufpool *pool, size_t len)
{
    size_t size, align;
    unsigned class = class_of(pool, len, &size);
    void *buf;

    pool->wanted[class] = ++pool->clock;
    if (pool->idle[class] != NULL) {
        buf = idle_take(pool, class, size);
    } else {
        align = is_of_heap(pool, size) ? BUFPOOL_DENSE_ALIGN : BUFPOOL_ALIGN;
        buf = aligned_alloc(align, (size + align - 1) & ~(align - 1));
    }
    if (buf != NULL)
        pool->lent_bytes += size;
    return buf;
}

static void buf_free(struct bufpool *pool, void *buf, size_t size)
{
    free(buf);
    if (!is_of_heap(pool, size))
        return;
    pool->freed_bytes += size;
    /* holes in the C library's heap still cost pages */
    if (pool->freed_bytes >= HEAP_TRIM_BYTES) {
        malloc_trim(0);
        pool->freed_bytes = 0;
    }
}

/* Frees an idle buffer of the size that was not wanted for longest. */
static void free_coldest(struct bufpool *pool)
{
    unsigned coldest = BUFPOOL_CLASSES;
    size_t size;

    for (unsigned i = 0; i < BUFPOOL_CLASSES; i++) {
        if (pool->idle[i] != NULL &&
            (coldest == BUFPOOL_CLASSES || pool->wanted[i] < pool->wanted[coldest]))
            coldest = i;
    }
    assert(coldest < BUFPOOL_CLASSES);
    size = size_of(coldest);
    buf_free(pool, idle_take(pool, coldest, size), size);
}

static bool has_room(const struct bufpool *pool, size_t size)
{
    return pool->idle_bytes + size <= pool->idle_max_bytes ||
           pool->lent_bytes + pool->idle_bytes + size <= pool->all_max_bytes;
}

void bufpool_put(struct bufpool *pool, void *buf, size_t len)
{
    size_t size;
    unsigned class;

    if (buf == NULL)
        return;
    class = class_of(pool, len, &size);
    assert(pool->lent_bytes >= size);
    pool->lent_bytes -= size;
    while (pool->idle_bytes > 0 && !has_room(pool, size))
        free_coldest(pool);
    if (UNDER_ASAN || !has_room(pool, size)) {
        buf_free(pool, buf, size);
        return;
    }
    memcpy(buf, &pool->idle[class], sizeof(void *));
    pool->idle[class] = buf;
    pool->idle_bytes += size;
}

void bufpool_trim(struct bufpool *pool)
{
    while (pool->idle_bytes > 0)
        free_coldest(pool);
}
