/*
 * err.c - errors with a text.
 *
 * In:     rc and printf arguments. Any thread: a struct err is plain memory of its
 *         caller.
 * Out:    struct err, cut at ERR_TEXT_MAX - 1 bytes, always terminated.
 */
#include "common/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *err, int rc, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX]; /* arguments may point into err itself */
    va_list ap;

    if (err == NULL)
        return rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    memcpy(err->text, text, sizeof(text));
    return rc;
}

/* Appends as much of text as fits after the present len bytes; returns the new length. */
static size_t text_append(char *dst, size_t len, const char *text)
{
    size_t n = strnlen(text, ERR_TEXT_MAX);

    if (n > ERR_TEXT_MAX - 1 - len)
        n = ERR_TEXT_MAX - 1 - len;
    memcpy(dst + len, text, n);
    dst[len + n] = '\0';
    return len + n;
}

int err_wrap(struct err *err, int rc, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    size_t len;

    if (err == NULL)
        return rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    len = text_append(text, strlen(text), ": ");
    text_append(text, len,
                err->text[0] != '\0' ? err->text : strerror(rc < 0 ? -rc : rc));
    memcpy(err->text, text, sizeof(text));
    return rc;
}
