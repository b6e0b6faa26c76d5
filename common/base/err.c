/*
 * err.c - names and texts of errors.
 *
 * In:     rc and printf arguments. Any thread: a struct err is plain memory of its
 *         caller.
 * Out:    struct err, cut at ERR_TEXT_MAX - 1 bytes, always terminated.
 */
#include "common/base/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int error;
    const char *text;
} texts[] = {
    { ROZO_EDAMAGED, "damaged" },
    { ROZO_EUNKNOWN_FORMAT, "format not known to this build" },
    { ROZO_ESTALE_VERSION, "a newer version is stored" },
    { ROZO_ENO_FILE, "nothing of this file is stored" },
    { ROZO_EMOVED, "the file has moved to other storages" },
    { ROZO_EFENCED, "the session of this write has ended" },
    { ROZO_ENOT_ADMITTED, "not admitted to a cluster" },
    { ROZO_EWRONG_STORAGE, "meant for another storage" },
    { ROZO_ENO_SESSION, "session not known" },
    { ROZO_ERETRY, "to be sent again" },
    { ROZO_EDONE_BEFORE, "done before a restart" },
    { ROZO_ENOT_LEADER, "this member does not lead" },
    { ROZO_EDEPOSED, "a later start of exportd is known there" },
};

const char *error_text(int rc)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].error == -rc)
            return texts[i].text;
    }
    return strerror(-rc);
}

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
                err->text[0] != '\0' ? err->text : error_text(rc < 0 ? rc : -rc));
    memcpy(err->text, text, sizeof(text));
    return rc;
}
