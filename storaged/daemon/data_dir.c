/*
 * data_dir.c - opens, locks and identifies the data directory.
 *
 * In:     the path of the config. Called once at the start.
 * Out:    DATA/storage.id, DATA/storage.generations.
 * Keeps:  two daemons never share a directory; a directory with anything in it that we
 *         did not make is left alone; the identity file is whole at any time.
 */
#include "storaged/daemon/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/system/data_folder.h"
#include "common/system/small_file.h"

static const char id_name[] = IDENTITY_FILE;
static const char id_new_name[] = IDENTITY_FILE ".new";
static const char generations_name[] = "storage.generations";

int data_dir_save_generations(int dir_fd, const char *text, size_t len)
{
    return small_file_replace(dir_fd, generations_name, text, len);
}

int data_dir_load_generations(int dir_fd, struct generations_file *out, struct err *err)
{
    char text[GENERATIONS_TEXT_MAX + 1];
    int fd = openat(dir_fd, generations_name, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    int rc;

    if (fd < 0 && errno == ENOENT) {
        memset(out, 0, sizeof(*out));
        return 0;
    }
    if (fd < 0)
        return err_wrap(err, -errno, "read %s", generations_name);
    n = read(fd, text, sizeof(text));
    rc = n < 0 ? -errno : 0;
    close(fd);
    if (rc != 0)
        return err_wrap(err, rc, "read %s", generations_name);
    rc = generations_parse(text, (size_t)n, out, err);
    return rc == 0 ? 0 : err_wrap(err, rc, "%s", generations_name);
}

/* Sets *out if the directory has only what a new file system or an interrupted start
 * leaves. */
static int is_empty(int dir_fd, bool *out)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (dir == NULL) {
        int rc = -errno;

        if (fd >= 0)
            close(fd);
        return rc;
    }
    *out = true;
    while ((entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;

        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
            strcmp(name, "lost+found") != 0 && strcmp(name, id_new_name) != 0)
            *out = false;
    }
    closedir(dir);
    return 0;
}

static int identity_make(int dir_fd, struct identity *out, struct err *err)
{
    char text[IDENTITY_TEXT_MAX];
    bool empty = false;
    size_t len;
    int rc = is_empty(dir_fd, &empty);

    if (rc != 0)
        return err_wrap(err, rc, "list the directory");
    if (!empty)
        return err_set(
            err, -ENOTEMPTY,
            "the directory is not empty and has no %s: not the directory of a storage",
            id_name);
    memset(out, 0, sizeof(*out));
    if (getrandom(out->incarnation, sizeof(out->incarnation), 0) !=
        (ssize_t)sizeof(out->incarnation))
        return err_set(err, -EIO, "no random numbers");
    len = identity_print(text, out->incarnation, out->cluster_id, 0, false);
    rc = small_file_replace(dir_fd, id_name, text, len);
    return rc == 0 ? 0 : err_wrap(err, rc, "write %s", id_name);
}

static int identity_load(int dir_fd, struct identity *out, struct err *err)
{
    char text[IDENTITY_TEXT_MAX + 1];
    int fd = openat(dir_fd, id_name, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    int rc;

    if (fd < 0 && errno == ENOENT)
        return identity_make(dir_fd, out, err);
    if (fd < 0)
        return err_wrap(err, -errno, "read %s", id_name);
    n = read(fd, text, sizeof(text));
    rc = n < 0 ? -errno : 0;
    close(fd);
    if (rc != 0)
        return err_wrap(err, rc, "read %s", id_name);
    rc = identity_parse(text, (size_t)n, out, err);
    return rc == 0 ? 0 : err_wrap(err, rc, "%s", id_name);
}

int data_dir_open(const char *path, struct identity *out, struct err *err)
{
    int fd, rc;

    rc = data_folder_make(path, err);
    if (rc != 0)
        return rc;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_wrap(err, -errno, "open data directory %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        rc = errno == EWOULDBLOCK
                 ? err_set(err, -EBUSY, "another storaged is using the directory")
                 : err_wrap(err, -errno, "lock the directory");
    else
        rc = identity_load(fd, out, err);
    if (rc == 0)
        return fd;
    close(fd);
    return err_wrap(err, rc, "data directory %s", path);
}
