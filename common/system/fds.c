/*
 * fds.c - the limit of open files: raised, and checked before anything depends on it.
 *
 * In:     starts of daemons and mounts. Out: getrlimit(), setrlimit().
 * Keeps:  a process that would run out of descriptors in the middle of its work says so
 *         at its start.
 */
#include "common/system/fds.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

static unsigned needed(unsigned fixed, const struct fds_part *parts, unsigned n_parts)
{
    unsigned need = fixed;

    for (unsigned i = 0; i < n_parts; i++)
        need += parts[i].least;
    return need;
}

bool fds_divide(unsigned n_fds, unsigned fixed, struct fds_part *parts, unsigned n_parts)
{
    unsigned need = needed(fixed, parts, n_parts), eighths = 0;

    if (n_fds < need)
        return false;
    for (unsigned i = 0; i < n_parts; i++) {
        struct fds_part *part = &parts[i];

        eighths += part->eighths;
        part->share = part->least + (n_fds - need) / 8 * part->eighths;
        if (part->most != 0 && part->share > part->most)
            part->share = part->most > part->least ? part->most : part->least;
    }
    assert(eighths <= 8);
    return true;
}

int fds_claim(const char *who, unsigned fixed, struct fds_part *parts, unsigned n_parts,
              struct err *err)
{
    struct rlimit limit;
    unsigned n_fds;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(err, -errno, "getrlimit: %s", strerror(errno));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return err_set(err, -errno, "getrlimit: %s", strerror(errno));
    n_fds = limit.rlim_cur < FDS_MAX ? (unsigned)limit.rlim_cur : FDS_MAX;
    if (fds_divide(n_fds, fixed, parts, n_parts))
        return 0;
    return err_set(err, -EMFILE,
                   "%s needs %u file descriptors, and its hard limit is %u (see "
                   "ulimit -Hn; LimitNOFILE= of a systemd unit)",
                   who, needed(fixed, parts, n_parts), n_fds);
}
