/*
 * scratch.c - reused buffers by size class.
 *
 * In:     operations of the engine's thread.
 * Out:    malloc'ed pages; at most SCRATCH_KEPT_MAX bytes kept idle.
 * Yours:  the classes and the bound.
 */
#include "storcli/core/scratch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CLASS_MIN_BYTES = 4096 };

static unsigned class_of(size_t size_bytes)
{
    unsigned cls = 0;

    assert(size_bytes != 0);
    while (((size_t)CLASS_MIN_BYTES << cls) < size_bytes)
        cls++;
    assert(cls < SCRATCH_CLASSES);
    return cls;
}

void *scratch_get(struct scratch *s, size_t size_bytes)
{
    unsigned cls = class_of(size_bytes);
    size_t class_bytes = (size_t)CLASS_MIN_BYTES << cls;
    void *buf = s->kept[cls];

    if (buf != NULL) {
        memcpy(&s->kept[cls], buf, sizeof(void *));
        s->kept_bytes -= class_bytes;
    } else {
        buf = aligned_alloc(4096, class_bytes);
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
    if (s->kept_bytes + class_bytes > SCRATCH_KEPT_MAX) {
        free(buf);
        return;
    }
    memcpy(buf, &s->kept[cls], sizeof(void *));
    s->kept[cls] = buf;
    s->kept_bytes += class_bytes;
}

void scratch_free(struct scratch *s)
{
    assert(s->lent_bytes == 0);
    for (unsigned cls = 0; cls < SCRATCH_CLASSES; cls++) {
        while (s->kept[cls] != NULL) {
            void *buf = s->kept[cls];

            memcpy(&s->kept[cls], buf, sizeof(void *));
            free(buf);
        }
    }
}
