/*
 * scratch.c - reused buffers by size class.
 *
 * In:     operations of the engine's thread.
 * Out:    malloc'ed pages; idle ones are kept up to SCRATCH_KEPT_MAX bytes, or while lent
 *         and kept bytes together are below all_max.
 * Yours:  the classes and the bound.
 */
#include "storcli/rules/scratch.h"

#include <assert.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIM_BYTES = 8 << 20,
    CLASS_MIN_BYTES = 4096,
    /* smaller ones on pages of their own would cost one more each */
    PAGES_FROM_BYTES = 32 << 10,
};

static_assert((size_t)CLASS_MIN_BYTES << (SCRATCH_CLASSES - 1) <= SCRATCH_KEPT_MAX,
              "a buffer that is given back has room");

static unsigned class_of(size_t size_bytes)
{
    unsigned cls = 0;

    assert(size_bytes != 0);
    while (((size_t)CLASS_MIN_BYTES << cls) < size_bytes)
        cls++;
    assert(cls < SCRATCH_CLASSES);
    return cls;
}

static void unlink_first(struct scratch *s, unsigned cls)
{
    memcpy(&s->kept[cls], s->kept[cls], sizeof(void *));
    s->kept_bytes -= (uint64_t)CLASS_MIN_BYTES << cls;
}

/* Returns the class that was not wanted for longest, of those that keep something. */
static unsigned coldest_class(const struct scratch *s)
{
    unsigned coldest = SCRATCH_CLASSES;

    for (unsigned cls = 0; cls < SCRATCH_CLASSES; cls++)
        if (s->kept[cls] != NULL &&
            (coldest == SCRATCH_CLASSES || s->wanted[cls] < s->wanted[coldest]))
            coldest = cls;
    assert(coldest < SCRATCH_CLASSES);
    return coldest;
}

static void free_first(struct scratch *s, unsigned cls)
{
    void *buf = s->kept[cls];

    unlink_first(s, cls);
    free(buf);
    if (cls >= class_of(PAGES_FROM_BYTES))
        return;
    s->freed_bytes += (uint64_t)CLASS_MIN_BYTES << cls;
    /* holes in the C library's heap still cost pages */
    if (s->freed_bytes >= TRIM_BYTES) {
        malloc_trim(0);
        s->freed_bytes = 0;
    }
}

void *scratch_get(struct scratch *s, size_t size_bytes)
{
    unsigned cls = class_of(size_bytes);
    size_t class_bytes = (size_t)CLASS_MIN_BYTES << cls;
    void *buf = s->kept[cls];

    s->wanted[cls] = ++s->clock;
    if (buf != NULL) {
        unlink_first(s, cls);
    } else {
        buf = aligned_alloc(class_bytes < PAGES_FROM_BYTES ? SCRATCH_ALIGN : 4096,
                            class_bytes);
    }
    if (buf != NULL)
        s->lent_bytes += class_bytes;
    return buf;
}

void scratch_put(struct scratch *s, void *buf, size_t size_bytes)
{
    unsigned cls;
    size_t class_bytes;

    if (buf == NULL)
        return;
    cls = class_of(size_bytes);
    class_bytes = (size_t)CLASS_MIN_BYTES << cls;
    assert(s->lent_bytes >= class_bytes);
    s->lent_bytes -= class_bytes;
    while (s->kept_bytes + class_bytes > SCRATCH_KEPT_MAX &&
           s->lent_bytes + s->kept_bytes + class_bytes > s->all_max)
        free_first(s, coldest_class(s));
    memcpy(buf, &s->kept[cls], sizeof(void *));
    s->kept[cls] = buf;
    s->kept_bytes += class_bytes;
}

void scratch_free(struct scratch *s)
{
    assert(s->lent_bytes == 0);
    for (unsigned cls = 0; cls < SCRATCH_CLASSES; cls++) {
        while (s->kept[cls] != NULL)
            free_first(s, cls);
    }
}
