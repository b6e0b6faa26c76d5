/*
 * fds.h - how many file descriptors this process may have, and how they are shared out.
 *
 * Any thread; system calls.
 */
#ifndef ROZO_COMMON_BASE_FDS_H
#define ROZO_COMMON_BASE_FDS_H

#include "common/base/err.h"

enum {
    FDS_PROCESS = 32, /* standard streams, event loops, keys, locks, signals */
    FDS_KV_MIN =
        96, /* LevelDB has 64 tables open, and some files of its own; a reserve of 8 */
    FDS_KV_MAX = 512,
    FDS_MAX = 1 << 20, /* more are not counted */
};

/**
 * Raises the soft limit to the hard one.
 *
 * @param who  of a program, for words
 * @param need descriptors without which it does not serve
 * @param out  how many it may have, at most FDS_MAX; unchanged on failure
 * @return 0, or -EMFILE with words that name both numbers.
 */
int fds_claim(const char *who, unsigned need, unsigned *out, struct err *err);

/** As many as this process may have now, at most FDS_MAX. */
unsigned fds_limit(void);

/** The share of one LevelDB store in so many. */
unsigned fds_of_kv(unsigned n_fds);

#endif
