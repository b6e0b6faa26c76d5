/*
 * mounts.c - finds mounts, and unmounts without hanging.
 *
 * Keeps:  nothing here looks inside a mount: a stat() of a hung file system does not
 *         return. The unmount itself is done by a child process that can be abandoned.
 */
#include "deploy/cli/mounts.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOUNTINFO_MAX = 4 << 20, TICK_MS = 100 };

/* Takes the word at *p (up to a blank or the end of the line), with \ooo decoded; moves
 * *p past it. */
static bool word_take(const char **p, char *out, size_t size)
{
    size_t len = 0;
    const char *s = *p;

    while (*s == ' ')
        s++;
    for (; *s != '\0' && *s != ' ' && *s != '\n'; s++) {
        char c = *s;

        if (c == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            c = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        }
        if (len + 1 >= size)
            return false;
        out[len++] = c;
    }
    out[len] = '\0';
    *p = s;
    return len > 0;
}

bool mountinfo_next(const char **text, struct mount_entry *out)
{
    char word[PATH_MAX];

    assert(*text != NULL);
    while (**text != '\0') {
        const char *p = *text;
        const char *next = strchr(p, '\n');
        bool good = true;

        /* Format: "36 35 98:0 /root /mount/point options... - type source options". */
        for (unsigned i = 0; i < 5 && good; i++)
            good = word_take(&p, i == 4 ? out->path : word, sizeof(word));
        good = good && word_take(&p, out->options, sizeof(out->options));
        while (good && (good = word_take(&p, word, sizeof(word))) &&
               strcmp(word, "-") != 0)
            ;
        good = good && word_take(&p, out->type, sizeof(out->type));
        if (good && !word_take(&p, out->source, sizeof(out->source)))
            out->source[0] = '\0';
        *text = next == NULL ? p + strlen(p) : next + 1;
        if (good)
            return true;
    }
    return false;
}

bool mountinfo_find(const char *text, const char *path, char *type, size_t type_size)
{
    struct mount_entry entry;
    bool found = false;

    while (mountinfo_next(&text, &entry)) {
        if (strcmp(entry.path, path) == 0) {
            snprintf(type, type_size, "%s", entry.type);
            found = true; /* a later line covers it */
        }
    }
    return found;
}

static bool is_of_export(const struct mount_entry *m, const char *export_name)
{
    const char *at = strrchr(m->source, '/'); /* HOST:PORT/EXPORT */

    return strcmp(m->type, ROZO_MOUNT_TYPE) == 0 && at != NULL &&
           strcmp(at + 1, export_name) == 0;
}

unsigned mounts_count(const char *text, const char *export_name, const char *path,
                      struct mount_entry *last)
{
    struct mount_entry m;
    char type[sizeof(m.type)];
    unsigned n = 0;

    while (mountinfo_next(&text, &m)) {
        if (!is_of_export(&m, export_name) ||
            (path[0] != '\0' && strcmp(m.path, path) != 0) ||
            mountinfo_find(text, m.path, type, sizeof(type)))
            continue;
        *last = m;
        n++;
    }
    return n;
}

char *mountinfo_read(struct err *err)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *text = malloc(MOUNTINFO_MAX);

    if (file == NULL || text == NULL) {
        err_wrap(err, file == NULL ? -errno : -ENOMEM, "read /proc/self/mountinfo");
        free(text);
        text = NULL;
    } else {
        text[fread(text, 1, MOUNTINFO_MAX - 1, file)] = '\0';
    }
    if (file != NULL)
        fclose(file);
    return text;
}

int mount_find(const char *path, char *type, size_t type_size, struct err *err)
{
    char *text = mountinfo_read(err);
    int rc = text == NULL ? -EIO : mountinfo_find(text, path, type, type_size);

    free(text);
    return rc;
}

/* Unmounts, in the child. Its exit status is the errno. */
static void unmount_exec(const char *path, bool lazy)
{
    if (geteuid() == 0) {
        int rc = umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0));

        _exit(rc == 0 ? 0 : errno);
    }
    /* fusermount3 reports its errors only as text; EBUSY is by far the likeliest. */
    if (freopen("/dev/null", "w", stderr) == NULL)
        _exit(EIO);
    execlp("fusermount3", "fusermount3", "-u", lazy ? "-z" : "-q", path, (char *)NULL);
    _exit(ENOENT);
}

int mount_remove(const char *path, bool lazy, struct deadline *deadline,
                 struct progress *progress, struct err *err)
{
    struct pollfd pfd = { .events = POLLIN };
    pid_t child = fork();
    int status = 0, rc = 0;

    if (child < 0)
        return err_wrap(err, -errno, "unmount %s", path);
    if (child == 0)
        unmount_exec(path, lazy);
    pfd.fd = pidfd_open(child, 0);
    while (pfd.fd >= 0 && (rc = poll(&pfd, 1, TICK_MS)) <= 0 &&
           !deadline_is_over(deadline))
        progress_tick(progress);
    if (pfd.fd >= 0)
        close(pfd.fd);
    if (pfd.fd >= 0 && rc <= 0) {
        kill(child, SIGKILL); /* ends once the mount lets it; init reaps it */
        return err_set(err, -ETIMEDOUT, "unmounting %s takes too long", path);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    rc = !WIFEXITED(status) ? -EIO : geteuid() == 0 ? -WEXITSTATUS(status) : -EBUSY;
    if (rc == -EBUSY)
        return err_set(err, rc, "%s is in use (a shell or an open file in it)", path);
    return err_wrap(err, rc, "unmount %s", path);
}
