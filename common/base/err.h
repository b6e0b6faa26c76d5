/*
 * err.h - errors with a text, for places where a human will read them: start, config,
 * disk.
 *
 * Functions return 0 or -errno; a struct err beside it carries the sentence. Each caller
 * may put its own action in front: "open device /srv/s1: read superblock: format 7, ...".
 */
#ifndef ROZO_COMMON_BASE_ERR_H
#define ROZO_COMMON_BASE_ERR_H

enum { ERR_TEXT_MAX = 1024 };

/* Plain data, on the caller's stack; zero-initialise it. Every function accepts err ==
 * NULL. */
struct err {
    char text[ERR_TEXT_MAX]; /* "" while there is no error */
};

/**
 * Sets the text (replacing the old one). Returns rc, so that `return err_set(...)` works.
 */
int err_set(struct err *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/**
 * Puts "what: " before the text, or uses strerror(-rc) if there was no text. Returns rc.
 */
int err_wrap(struct err *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
