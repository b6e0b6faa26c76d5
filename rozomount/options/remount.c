/*
 * remount.c - translates flags of mount(8) to flags of mount(2) for an existing mount.
 *
 * In:     struct options of `mount -o remount,...`. Out: mount(2).
 */
#include "rozomount/options/remount.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"

/* Parses a comma-separated list of options; a later one overrides an earlier one. */
static unsigned long flags_of(const char *list)
{
    char *copy = xstrdup(list == NULL ? "" : list);
    char *save = NULL;
    unsigned long flags = 0;

    for (char *word = strtok_r(copy, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save))
        mountpoint_flag(word, &flags);
    free(copy);
    return flags;
}

int remount(struct options *opt, struct err *err)
{
    char *path = mountpoint_resolve(opt->mountpoint);

    if (path == NULL)
        return err_set(err, -errno, "mount point %s: %s", opt->mountpoint,
                       strerror(errno));
    free(opt->mountpoint);
    opt->mountpoint = path;
    if (!mountpoint_is_ours(path))
        return err_set(err, -EINVAL, "%s has no rozo export mounted", path);
    if (mount("none", path, NULL, MS_REMOUNT | flags_of(opt->kernel_opts), NULL) == 0)
        return 0;
    if (errno == EBUSY)
        return err_set(err, -EBUSY, "%s: files are open for writing", path);
    return err_set(err, -errno, "remount %s: %s", path, strerror(errno));
}
