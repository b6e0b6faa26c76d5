/*
 * fsutil.c - small files and folders, with error messages.
 */
#include "deploy/cli/fsutil.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int path_join(char *out, struct err *err, const char *fmt, ...)
{
    va_list ap;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    if (len < 0 || len >= PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "the path %.80s... is too long", out);
    return 0;
}

int folder_make(const char *path, mode_t mode, struct err *err)
{
    char part[PATH_MAX];
    struct stat st;

    if (path_join(part, err, "%s", path) != 0)
        return -ENAMETOOLONG;
    for (char *p = part + 1;; p++) {
        char was = *p;

        if (was != '/' && was != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, mode) != 0 && errno != EEXIST)
            return err_wrap(err, -errno, "make folder %s", part);
        *p = was;
        if (was == '\0')
            break;
    }
    if (stat(path, &st) != 0)
        return err_wrap(err, -errno, "look at %s", path);
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "%s is there and is no folder", path);
    return 0;
}

int folder_is_empty(const char *path, struct err *err)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    int empty = 1;

    if (dir == NULL)
        return errno == ENOENT ? 1 : err_wrap(err, -errno, "list %s", path);
    while (empty && (entry = readdir(dir)) != NULL)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(dir);
    return empty;
}

static int write_bytes(int fd, const char *data, size_t len_bytes)
{
    while (len_bytes > 0) {
        ssize_t n = write(fd, data, len_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        len_bytes -= (size_t)n;
    }
    return 0;
}

static int write_all(int fd, const char *data, size_t len_bytes)
{
    int rc = write_bytes(fd, data, len_bytes);

    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    return rc;
}

/* Returns whether path is a device or a pipe, as /dev/null or /dev/stdout, which no file
 * may replace. */
static bool is_written_to(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static int write_to(const char *path, const void *data, size_t len_bytes, struct err *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    int rc = fd < 0 ? -errno : write_bytes(fd, data, len_bytes);

    if (fd >= 0)
        close(fd);
    return rc == 0 ? 0 : err_wrap(err, rc, "write %s", path);
}

int file_replace(const char *path, mode_t mode, const void *data, size_t len_bytes,
                 struct err *err)
{
    char temp[PATH_MAX];
    int rc = path_join(temp, err, "%s.new", path);
    int fd;

    if (rc != 0)
        return rc;
    if (is_written_to(path))
        return write_to(path, data, len_bytes, err);
    unlink(temp); /* left by an interrupted run; the folder is ours alone */
    fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return err_wrap(err, -errno, "write %s", temp);
    rc = write_all(fd, data, len_bytes);
    close(fd);
    if (rc == 0 && rename(temp, path) != 0)
        rc = -errno;
    if (rc != 0) {
        unlink(temp);
        return err_wrap(err, rc, "write %s", path);
    }
    return 0;
}

ssize_t file_read_text(const char *path, char *out, size_t size, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    size_t len = 0;
    ssize_t n = 1;

    if (fd < 0)
        return errno == ENOENT ? -ENOENT : err_wrap(err, -errno, "read %s", path);
    while (len < size && n > 0) {
        n = read(fd, out + len, size - len);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            len += (size_t)n;
    }
    if (n < 0) {
        err_wrap(err, -errno, "read %s", path);
        len = 0;
    }
    close(fd);
    if (n < 0)
        return -EIO;
    if (len == size)
        return err_set(err, -EFBIG, "%s is larger than the %zu bytes it may have", path,
                       size - 1);
    out[len] = '\0';
    return (ssize_t)len;
}

int path_absolute(const char *path, char *out, struct err *err)
{
    char parent[PATH_MAX], real[PATH_MAX];
    size_t len = strlen(path);
    const char *last;

    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0 || len >= PATH_MAX)
        return err_set(err, -EINVAL, "'%s' is no path", len == 0 ? "" : "(too long)");
    memcpy(parent, path, len);
    parent[len] = '\0';
    last = strrchr(parent, '/');
    last = last == NULL ? parent : last + 1;
    if (*last == '\0')
        return path_join(out, err, "/");
    if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
        if (realpath(parent, out) == NULL)
            return err_wrap(err, -errno, "find %s", path);
        return 0;
    }
    if (last == parent) {
        if (realpath(".", real) == NULL)
            return err_wrap(err, -errno, "find the current folder");
        return path_join(out, err, "%s/%s", strcmp(real, "/") == 0 ? "" : real, parent);
    }
    parent[last - parent - 1] = '\0';
    if (parent[0] == '\0')
        return path_join(out, err, "/%s", last);
    if (realpath(parent, real) == NULL)
        return err_wrap(err, -errno, "find the folder %s", parent);
    return path_join(out, err, "%s/%s", strcmp(real, "/") == 0 ? "" : real, last);
}
