/*
 * small_file.c - replaces a small file atomically.
 *
 * Keeps:  the name has the whole old or the whole new text, also after a loss of power.
 */
#include "common/system/small_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

int small_file_replace(int dir_fd, const char *name, const char *text, size_t len)
{
    char new_name[SMALL_FILE_NAME_MAX];
    int n = snprintf(new_name, sizeof(new_name), "%s.new", name);
    int fd = openat(dir_fd, new_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc;

    assert(n > 0 && (size_t)n < sizeof(new_name));
    if (fd < 0)
        return -errno;
    rc = write_all(fd, text, len);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    close(fd);
    if (rc == 0 && renameat(dir_fd, new_name, dir_fd, name) != 0)
        rc = -errno;
    if (rc == 0 && fsync(dir_fd) != 0)
        rc = -errno;
    return rc;
}
