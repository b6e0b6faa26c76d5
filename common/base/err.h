/*
 * err.h - results of functions: names for those that errno has none for, and texts.
 *
 * Functions return 0 or a negative errno. A result of rozo's own has a ROZO_E name here;
 * its value is that of an errno that nothing else in rozo returns, so both fit into one
 * int. None reaches a user's program (md_client_user_errno()). On the wire they are enum
 * Rozo__Status (status.h).
 *
 * Where a human will read it (start, config, disk), a struct err beside the result has a
 * sentence. Each caller may put its own action in front: "open device /srv/s1: read
 * superblock: format 7, ...".
 */
#ifndef ROZO_COMMON_BASE_ERR_H
#define ROZO_COMMON_BASE_ERR_H

#include <errno.h>

enum {
    /* Stored bytes that cannot be believed: a wrong crc, an impossible value. */
    ROZO_EDAMAGED = EUCLEAN,
    /* Stored bytes of a format, or a frame of a protocol, that this build does not
     * know. */
    ROZO_EUNKNOWN_FORMAT = EPROTONOSUPPORT,
    ROZO_ESTALE_VERSION = EREMCHG, /* something newer than the version lies there */
    ROZO_ENO_FILE = ENOMEDIUM,     /* the storage has nothing of this file */
    ROZO_EMOVED = EREMOTE,         /* the file has a later distribution */
    ROZO_EFENCED = EKEYREVOKED,    /* a write of a session that has ended */
    ROZO_ENOT_ADMITTED = EUNATCH,  /* the storage belongs to no cluster yet */
    ROZO_EWRONG_STORAGE = EBADR,   /* the request is for another storage */
    ROZO_ENO_SESSION = EBADRQC,    /* exportd does not know the session */
    ROZO_ERETRY = ERESTART,        /* send the request again, from its start */
    ROZO_EDONE_BEFORE = EALREADY,  /* done before a restart; the first answer is lost */
    ROZO_ENOT_LEADER = ENOLINK,    /* this member of the quorum does not lead */
    ROZO_EDEPOSED = ESRMNT,        /* a request of an exportd that was replaced */
};

/**
 * Returns the text of 0 or a negative result, ROZO_E or errno. Static, or valid until the
 * thread's next call.
 */
const char *error_text(int rc);

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
 * Puts "what: " before the text, or uses error_text(rc) if there was no text. Returns rc.
 */
int err_wrap(struct err *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
