/*
 * datadir.c - exportd's data directory.
 *
 * In:     the path from the config.
 * Out:    DATA/format, DATA/lock; an error text if the directory cannot be used.
 * Ask:    the text of DATA/format. Users' disks carry it.
 */
#include "exportd/datadir/datadir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/system/data_folder.h"
#include "common/system/small_file.h"

#define FORMAT_WORDS "rozo exportd format "

enum { PATH_BYTES = 4352 };

static int lock_take(int dir_fd, int *out, const char *path, struct err *err)
{
    int fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0)
        return err_set(err, -errno, "open %s/lock: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        rc = -errno;
        close(fd);
        if (rc == -EWOULDBLOCK)
            return err_set(err, rc, "%s is in use by another exportd", path);
        return err_set(err, rc, "lock %s/lock: %s", path, error_text(rc));
    }
    *out = fd;
    return 0;
}

/* Names of leftovers of an interrupted start, and of an interrupted load. */
static const char *const start_names[] = { "format.new", "kv", "quorum", NULL };
static const char *const load_names[] = { "format.new", DATADIR_LOAD_NAME, NULL };

static bool is_among(const char *name, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (strcmp(name, *names) == 0)
            return true;
    }
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           strcmp(name, "lock") == 0 || strcmp(name, "lost+found") == 0;
}

/* Returns 0 if the directory holds nothing except leftovers. */
static int empty_check(const char *path, const char *const *leftovers, struct err *err)
{
    DIR *dir = opendir(path);
    struct dirent *d;
    int rc = 0;

    if (dir == NULL)
        return err_set(err, -errno, "list %s: %s", path, strerror(errno));
    while (rc == 0 && (d = readdir(dir)) != NULL) {
        const char *name = d->d_name;

        if (is_among(name, leftovers))
            continue;
        if (strcmp(name, DATADIR_LOAD_NAME) == 0)
            rc = err_set(err, -ENOTEMPTY,
                         "%s holds a part of a dump: a load was interrupted; run exportd "
                         "--load again",
                         path);
        else if (is_among(name, start_names)) /* for a load */
            rc = err_set(err, -ENOTEMPTY,
                         "%s holds %s, of a start or a load that was interrupted at its "
                         "end, as it has no file `format`: if no exportd has ever run "
                         "there, remove %s/%s and run exportd --load again",
                         path, name, path, name);
        else
            rc = err_set(
                err, -ENOTEMPTY,
                "%s is not a data directory of exportd, and not empty (it holds %s): "
                "give it a directory of its own",
                path, name);
    }
    closedir(dir);
    return rc;
}

static int format_write(int dir_fd, const char *path, bool is_member, struct err *err)
{
    char text[64];
    int n = snprintf(text, sizeof(text), FORMAT_WORDS "%d\n",
                     is_member ? DATADIR_MEMBER_FORMAT : DATADIR_FORMAT);
    int rc = small_file_replace(dir_fd, "format", text, (size_t)n);

    return rc == 0 ? 0 : err_set(err, rc, "write %s/format: %s", path, error_text(rc));
}

/* Reads the format; *format 0: there is none yet. */
static int format_check(int dir_fd, const char *path, unsigned *format, struct err *err)
{
    char text[64] = "";
    int fd = openat(dir_fd, "format", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    *format = 0;
    if (fd < 0 && errno == ENOENT)
        return empty_check(path, start_names, err);
    if (fd < 0)
        return err_set(err, -errno, "open %s/format: %s", path, strerror(errno));
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0 || sscanf(text, FORMAT_WORDS "%u", format) != 1 || *format == 0)
        return err_set(err, -EINVAL, "%s/format is damaged, or not of exportd", path);
    if (*format > DATADIR_MEMBER_FORMAT)
        return err_set(
            err, -EINVAL,
            "%s has format %u, this build reads up to format %d: a newer rozo wrote it; "
            "install that one",
            path, *format, (int)DATADIR_MEMBER_FORMAT);
    return 0;
}

/* Refuses the directory of a member to an exportd that is none, and the other way
 * round. */
static int member_check(const char *path, unsigned format, bool is_member,
                        struct err *err)
{
    if (format == DATADIR_MEMBER_FORMAT && !is_member)
        return err_set(err, -EINVAL,
                       "%s belongs to a member of a quorum, and the config has no "
                       "section `quorum`: write it there, or give exportd another "
                       "data directory",
                       path);
    if (format != 0 && format != DATADIR_MEMBER_FORMAT && is_member)
        return err_set(err, -EINVAL,
                       "%s belongs to an exportd without a quorum, and the config has a "
                       "section `quorum` with `id` and `members`: remove these two and "
                       "run `rozo meta init` to make it the first member, or give the "
                       "member a new data directory",
                       path);
    return 0;
}

/* Returns the descriptor or -errno. */
static int dir_open(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd >= 0 ? fd
                   : err_set(err, -errno, "open the data directory %s: %s", path,
                             strerror(errno));
}

int datadir_open(const char *path, bool is_member, int *lock_fd, bool *is_new,
                 struct err *err)
{
    int dir_fd, fd = -1, rc;
    unsigned format;

    rc = data_folder_make(path, err);
    if (rc != 0)
        return rc;
    dir_fd = dir_open(path, err);
    if (dir_fd < 0)
        return dir_fd;
    rc = format_check(dir_fd, path, &format, err);
    if (rc == 0)
        rc = member_check(path, format, is_member, err);
    if (rc == 0)
        rc = lock_take(dir_fd, &fd, path, err);
    if (rc == 0 && format != 0 && format < DATADIR_FORMAT)
        rc = format_write(dir_fd, path, false, err);
    close(dir_fd);
    if (rc != 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *is_new = format == 0;
    *lock_fd = fd;
    return 0;
}

bool datadir_is_alone(const char *path)
{
    int dir_fd = dir_open(path, NULL);
    unsigned format = 0;
    int rc;

    if (dir_fd < 0)
        return false;
    rc = format_check(dir_fd, path, &format, NULL);
    close(dir_fd);
    return rc == 0 && format != 0 && format != DATADIR_MEMBER_FORMAT;
}

static int load_check(int dir_fd, const char *path, struct err *err)
{
    if (faccessat(dir_fd, "format", F_OK, 0) == 0)
        return err_set(err, -EEXIST,
                       "%s is the data directory of an exportd: a dump is loaded into an "
                       "empty one only",
                       path);
    return empty_check(path, load_names, err);
}

int datadir_open_empty(const char *path, int *lock_fd, struct err *err)
{
    int fd = -1, dir_fd, rc = data_folder_make(path, err);

    if (rc != 0)
        return rc;
    dir_fd = dir_open(path, err);
    if (dir_fd < 0)
        return dir_fd;
    rc = load_check(dir_fd, path, err); /* no lock is left where it has no business */
    if (rc == 0)
        rc = lock_take(dir_fd, &fd, path, err);
    if (rc == 0)
        rc = load_check(dir_fd, path, err); /* a second load may have ended meanwhile */
    close(dir_fd);
    if (rc == 0)
        *lock_fd = fd;
    else if (fd >= 0)
        close(fd);
    return rc;
}

int datadir_store_open(struct env_uv *env, const char *path, const char *name,
                       bool may_create, unsigned n_fds, struct kv_leveldb **out,
                       struct err *err)
{
    char dir[PATH_BYTES];

    snprintf(dir, sizeof(dir), "%s/%s", path, name);
    if (may_create && mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(err, -errno, "make %s: %s", dir, strerror(errno));
    return kv_leveldb_open(&env->env, env->loop, dir, may_create, n_fds, out, err);
}

int datadir_begin(const char *path, bool is_member, struct err *err)
{
    int dir_fd = dir_open(path, err);
    int rc;

    if (dir_fd < 0)
        return dir_fd;
    rc = format_write(dir_fd, path, is_member, err);
    close(dir_fd);
    return rc;
}
