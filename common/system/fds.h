/*
 * fds.h - the number of file descriptors this process may have, and their shares.
 *
 * Any thread; system calls.
 */
#ifndef ROZO_COMMON_SYSTEM_FDS_H
#define ROZO_COMMON_SYSTEM_FDS_H

#include "common/base/err.h"

enum {
    FDS_PROCESS = 32, /* standard streams, event loops, keys, locks, signals */
    FDS_KV_MIN = 80,  /* LevelDB has 64 tables open, and some files of its own */
    FDS_KV_MAX = 512,
    FDS_MAX = 1 << 20, /* the count is cut here */
};

/**
 * Raises the soft limit to the hard one.
 *
 * @param who  name of the program, for the error text
 * @param need descriptors without which it does not serve
 * @param out  number it may have, at most FDS_MAX; unchanged on failure
 * @return 0, or -EMFILE with a text that names both numbers.
 */
int fds_claim(const char *who, unsigned need, unsigned *out, struct err *err);

/** Returns the number of descriptors this process may have now, at most FDS_MAX. */
unsigned fds_limit(void);

/** Returns the share of one LevelDB store in n_fds descriptors. */
unsigned fds_of_kv(unsigned n_fds);

#endif
