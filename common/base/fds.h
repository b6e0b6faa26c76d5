/*
 * fds.h - how many file descriptors this process may have, and how they are shared out.
 *
 * Any thread; system calls.
 */
#ifndef ROZO_COMMON_BASE_FDS_H
#define ROZO_COMMON_BASE_FDS_H

#include <stdbool.h>

#include "common/base/err.h"

enum {
    FDS_PROCESS = 32, /* standard streams, event loops, keys, locks, signals */
    FDS_KV_MIN =
        96, /* LevelDB has 64 tables open, and some files of its own; a reserve of 8 */
    FDS_KV_MAX = 512,
    FDS_MAX = 1 << 20, /* more are not counted */
};

/* One kind of descriptors, all loops together. */
struct fds_part {
    unsigned least; /* the process does not serve with fewer */
    unsigned
        eighths;    /* of what nobody needs at least; those of all parts are 8 at most */
    unsigned most;  /* 0: no limit */
    unsigned share; /* out */
};

/**
 * Raises the soft limit to the hard one, and shares it out: `fixed`, then what the parts need at least, then the rest.
 * All together are never more than the limit.
 *
 * @param who of a program, for words
 * @return 0, or -EMFILE with words that name what is needed and the limit.
 */
int fds_claim(const char *who, unsigned fixed, struct fds_part *parts, unsigned n_parts,
              struct err *err);

/** The division alone. False: n_fds is not enough, and no share is set. */
bool fds_divide(unsigned n_fds, unsigned fixed, struct fds_part *parts, unsigned n_parts);

/** What LevelDB may have: table files, mostly. */
#define FDS_KV_PART                                           \
    {                                                         \
        .least = FDS_KV_MIN, .eighths = 1, .most = FDS_KV_MAX \
    }

#endif
