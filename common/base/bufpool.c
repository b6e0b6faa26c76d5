/*
 * bufpool.c - free lists of buffers by size.
 *
 * Keeps:  idle_bytes <= idle_max_bytes; a buffer goes back to the list of the size it was
 *         made for.
 * Note:   under AddressSanitizer no buffer is kept, so that it finds uses after the end.
 */
#include "common/base/bufpool.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) /* gcc */
#    define UNDER_ASAN 1
#elif defined(__has_feature) /* clang */
#    if __has_feature(address_sanitizer)
#        define UNDER_ASAN 1
#    endif
#endif

/* Returns the class of len, and the size of its buffers: 4, 5, 6, 7, 8, 10, 12, 14, 16
 * ... KiB. */
static unsigned class_of(size_t len, size_t *size)
{
    size_t step = 1024, base = 4096;
    unsigned class = 0;

    assert(len > 0 && len <= (size_t)1 << 24);
    while (base * 2 <= len) {
        base *= 2;
        step *= 2;
        class += 4;
    }
    if (len <= base) {
        *size = base;
        return class;
    }
    class += (unsigned)((len - base + step - 1) / step);
    *size = base + (len - base + step - 1) / step * step;
    return class;
}

void *bufpool_get(struct bufpool *pool, size_t len)
{
    size_t size;
    unsigned class = class_of(len, &size);
    void *buf = pool->idle[class];

    if (buf == NULL)
        return aligned_alloc(BUFPOOL_ALIGN,
                             (size + BUFPOOL_ALIGN - 1) & ~(size_t)(BUFPOOL_ALIGN - 1));
    memcpy(&pool->idle[class], buf, sizeof(void *));
    pool->idle_bytes -= size;
    return buf;
}

void bufpool_put(struct bufpool *pool, void *buf, size_t len)
{
    size_t size;
    unsigned class;

    if (buf == NULL)
        return;
    class = class_of(len, &size);
#ifdef UNDER_ASAN
    size = SIZE_MAX / 2;
#endif
    if (size > pool->idle_max_bytes || pool->idle_bytes > pool->idle_max_bytes - size) {
        free(buf);
        return;
    }
    memcpy(buf, &pool->idle[class], sizeof(void *));
    pool->idle[class] = buf;
    pool->idle_bytes += size;
}

void bufpool_trim(struct bufpool *pool)
{
    for (unsigned i = 0; i < BUFPOOL_CLASSES; i++) {
        while (pool->idle[i] != NULL) {
            void *buf = pool->idle[i];

            memcpy(&pool->idle[i], buf, sizeof(void *));
            free(buf);
        }
    }
    pool->idle_bytes = 0;
}
