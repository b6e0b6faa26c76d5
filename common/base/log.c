/*
 * log.c - one line per event, to stderr.
 *
 * In:     level and printf arguments, from any thread.
 * Out:    one write(2) per line, so that lines of threads and processes do not mix.
 * Keeps:  a text from outside (names of peers, of files) cannot forge a line: control
 *         characters become '?'.
 */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_MAX = 2048 };

static const char *log_component = "rozo";
static _Atomic int log_level = LOG_LEVEL_INFO;

static const char *const level_names[] = {
    [LOG_LEVEL_ERROR] = "error",
    [LOG_LEVEL_WARN] = "warn",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug",
};

void log_init(const char *component)
{
    log_component = component;
    log_set_level(LOG_LEVEL_INFO);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

int log_level_parse(const char *text, enum log_level *out)
{
    for (unsigned i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

/* Writes the start of a line; returns its length. */
static size_t log_head(char *line, size_t size, enum log_level level)
{
    struct timespec now;
    struct tm tm;
    size_t len;
    int n;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    len = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n = snprintf(line + len, size - len, ".%06ldZ %-5s %.64s: ", now.tv_nsec / 1000,
                 level_names[level], log_component);
    return len + (size_t)n;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    char line[LOG_LINE_MAX];
    int saved_errno = errno;
    size_t len;
    va_list ap;
    ssize_t written;

    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    len = log_head(line, sizeof(line), level);
    va_start(ap, fmt);
    vsnprintf(line + len, sizeof(line) - len, fmt, ap);
    va_end(ap);
    for (; line[len] != '\0'; len++) {
        if ((unsigned char)line[len] < ' ' || line[len] == 0x7f)
            line[len] = '?';
    }
    line[len++] = '\n'; /* over the terminator */
    do {
        written = write(STDERR_FILENO, line, len);
    } while (written < 0 && errno == EINTR);
    errno = saved_errno; /* no one to report to when stderr is gone */
}

void log_out_of_memory(const char *what)
{
    log_error("out of memory %s: stopping, so that no half of it is kept; give the "
              "daemon more memory",
              what);
    abort();
}
