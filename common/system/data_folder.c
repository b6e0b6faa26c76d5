/*
 * data_folder.c - makes the data directory of a daemon.
 */
#include "common/system/data_folder.h"

#include <errno.h>
#include <sys/stat.h>

int data_folder_make(const char *path, struct err *err)
{
    int rc = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : -errno;

    if (rc == -ENOENT)
        return err_set(err, rc,
                       "data directory %s: its parent is not there; is its disk mounted?",
                       path);
    return rc == 0 ? 0 : err_wrap(err, rc, "make data directory %s", path);
}
