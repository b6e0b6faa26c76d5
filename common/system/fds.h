/*
 * fds.h - the number of file descriptors this process may have, and their shares.
 *
 * Any thread; system calls.
 */
#ifndef ROZO_COMMON_SYSTEM_FDS_H
#define ROZO_COMMON_SYSTEM_FDS_H

#include <stdbool.h>

#include "common/base/err.h"

enum {
    FDS_PROCESS = 32, /* standard streams, event loops, keys, locks, signals */
    /* LevelDB keeps 64 tables and some other files open; kv_leveldb.c reserves 8 */
    FDS_KV_MIN = 96,
    FDS_KV_MAX = 512,
    FDS_MAX = 1 << 20, /* the count is cut here */
};

/* One kind of descriptors, summed over all loops. */
struct fds_part {
    unsigned least;   /* the process does not serve with fewer */
    unsigned eighths; /* share of the rest, in eighths; all parts together: at most 8 */
    unsigned most;    /* 0: no limit */
    unsigned share;   /* out */
};

/**
 * Raises the soft limit to the hard one and divides it: first `fixed`, then `least` of
 * each part, then the rest by `eighths`. The sum never exceeds the limit.
 *
 * @param who name of the program, for the error text
 * @return 0, or -EMFILE with a text that names the need and the limit.
 */
int fds_claim(const char *who, unsigned fixed, struct fds_part *parts, unsigned n_parts,
              struct err *err);

/** Does the division alone. Returns false, and sets no share, if n_fds is not enough. */
bool fds_divide(unsigned n_fds, unsigned fixed, struct fds_part *parts, unsigned n_parts);

/** Part for one LevelDB store: table files, mostly. */
#define FDS_KV_PART                                           \
    {                                                         \
        .least = FDS_KV_MIN, .eighths = 1, .most = FDS_KV_MAX \
    }

#endif
