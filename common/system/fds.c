/*
 * fds.c - the limit of open files: raised, and checked before anything depends on it.
 *
 * In:     starts of daemons and mounts. Out: getrlimit(), setrlimit().
 * Keeps:  a process that would run out of descriptors in the middle of its work says so
 *         at its start.
 */
#include "common/system/fds.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

int fds_claim(const char *who, unsigned need, unsigned *out, struct err *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(err, -errno, "getrlimit: %s", strerror(errno));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(err, -errno, "getrlimit: %s", strerror(errno));
    if (limit.rlim_cur < need)
        return err_set(err, -EMFILE,
                       "%s needs %u file descriptors, and its hard limit is %llu (see "
                       "ulimit -Hn; LimitNOFILE= of a systemd unit)",
                       who, need, (unsigned long long)limit.rlim_cur);
    *out = limit.rlim_cur < FDS_MAX ? (unsigned)limit.rlim_cur : FDS_MAX;
    return 0;
}

unsigned fds_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > FDS_MAX)
        return FDS_MAX;
    return (unsigned)limit.rlim_cur;
}

unsigned fds_of_kv(unsigned n_fds)
{
    unsigned n = n_fds / 8;

    n = n < FDS_KV_MAX ? n : FDS_KV_MAX;
    return n > FDS_KV_MIN ? n : FDS_KV_MIN;
}
