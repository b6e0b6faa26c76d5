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

void *mem_new(size_t len_bytes)
{
    return must_be(calloc(1, len_bytes), len_bytes);
}

void *mem_grow(void *mem, size_t len_bytes)
{
    return must_be(realloc(mem, len_bytes), len_bytes);
}

char *mem_copy_text(const char *text)
{
    size_t len = strlen(text) + 1;

    return memcpy(mem_new(len), text, len);
}
