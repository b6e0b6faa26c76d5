/*
 * err.h - errors with words, for where a human will read them: start, config, disk.
 *
 * Functions return 0 or -errno; a struct err beside it carries the sentence. Each caller may
 * put what it was doing in front: "open device /srv/s1: read superblock: format 7, ...".
 */
#ifndef ROZO_COMMON_BASE_ERR_H
#define ROZO_COMMON_BASE_ERR_H

enum { ERR_TEXT_MAX = 1024 };

/* Plain data, on the caller's stack; zero-initialise it. Every function accepts err == NULL. */
struct err {
    char text[ERR_TEXT_MAX]; /* "" while nothing went wrong */
};

/** Set the text (replacing what was there). Returns rc, so that `return err_set(...)` works. */
int err_set(struct err *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Put "what: " before the text, or strerror(-rc) as the text when there was none. Returns rc. */
int err_wrap(struct err *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
