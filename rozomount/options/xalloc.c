/*
 * xalloc.c - see xalloc.h.
 */
#include "rozomount/options/xalloc.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static void *must_be(void *p, size_t len_bytes)
{
    if (p == NULL) {
        log_error("out of memory for %zu bytes", len_bytes);
        abort();
    }
    return p;
}

void *xzalloc(size_t len_bytes)
{
    return must_be(calloc(1, len_bytes), len_bytes);
}

void *xrealloc(void *mem, size_t len_bytes)
{
    return must_be(realloc(mem, len_bytes), len_bytes);
}

char *xstrdup(const char *text)
{
    size_t len = strlen(text) + 1;

    return memcpy(xzalloc(len), text, len);
}
