/*
 * mountpoint.c - /proc/self/mountinfo, umount2(2) and the flags of mount(2).
 *
 * In:     paths. Out: the mount table, mount IDs, unmounted paths.
 * Keeps:  no call here waits for a dead FUSE process: stat(2) would, mountinfo does not.
 */
#include "rozomount/options/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rozomount/options/xalloc.h"

extern char **environ;

/* Decodes octal escapes such as \040 (blank) in place. */
static void unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; text++) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' &&
            text[2] <= '7' && text[3] >= '0' && text[3] <= '7') {
            *to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 3;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

/* Parses a line such as
 * "36 35 0:52 / /mnt rw,noatime shared:1 - fuse.rozomount source options". */
static bool line_parse(char *line, const char *path, struct mountpoint *out)
{
    struct mountpoint info = { 0 };
    char *type = strstr(line, " - ");
    char *save = NULL, *where = NULL;

    if (sscanf(line, "%u %*u %u:%u", &info.id, &info.dev_major, &info.dev_minor) != 3 ||
        type == NULL || sscanf(type, " - %63s", info.type) != 1)
        return false;
    for (unsigned i = 0; i < 5; i++)
        where = strtok_r(i == 0 ? line : NULL, " ", &save);
    if (where == NULL)
        return false;
    unescape(where);
    if (strcmp(where, path) != 0)
        return false;
    *out = info;
    return true;
}

bool mountpoint_find(FILE *f, const char *path, struct mountpoint *out)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;

    while (getline(&line, &room, f) > 0) /* the last match is the topmost mount */
        found |= line_parse(line, path, out);
    free(line);
    return found;
}

bool mountpoint_find_now(const char *path, struct mountpoint *out)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool found;

    if (f == NULL)
        return false;
    found = mountpoint_find(f, path, out);
    fclose(f);
    return found;
}

/* One line of the list: a mount and the place where it is mounted. */
struct mounted {
    unsigned id, on;
    bool is_it;
};

static bool any_on(const struct mounted *all, size_t n, unsigned id)
{
    for (size_t i = 0; i < n; i++) {
        if (all[i].on == id)
            return true;
    }
    return false;
}

bool mountpoint_is_covered(FILE *f, const struct mountpoint *at)
{
    struct mounted *all = NULL, m;
    unsigned dev_major, dev_minor;
    bool covered = false;
    char *line = NULL;
    size_t room = 0, n = 0;

    while (getline(&line, &room, f) > 0) {
        if (sscanf(line, "%u %u %u:%u", &m.id, &m.on, &dev_major, &dev_minor) != 4)
            continue;
        m.is_it = dev_major == at->dev_major && dev_minor == at->dev_minor;
        all = xrealloc(all, (n + 1) * sizeof(*all));
        all[n++] = m;
    }
    for (size_t i = 0; i < n && !covered; i++)
        covered = all[i].is_it && any_on(all, n, all[i].id);
    free(all);
    free(line);
    return covered;
}

bool mountpoint_is_covered_now(const struct mountpoint *at)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool covered;

    if (f == NULL)
        return true;
    covered = mountpoint_is_covered(f, at);
    fclose(f);
    return covered;
}

bool mountpoint_is_severed(int device)
{
    struct pollfd pfd = { .fd = device };

    return poll(&pfd, 1, 0) == 1 && (pfd.revents & POLLERR) != 0;
}

bool mountpoint_is_ours(const char *path)
{
    struct mountpoint at;

    return mountpoint_find_now(path, &at) && strcmp(at.type, "fuse.rozomount") == 0;
}

/* Joins dir, resolved, and base, which stays as it is. */
static char *join_resolved(const char *dir, const char *base)
{
    char *parent = realpath(dir, NULL), *out = NULL;
    size_t room;

    if (parent == NULL)
        return NULL;
    room = strlen(parent) + strlen(base) + 2;
    out = malloc(room);
    if (out != NULL)
        snprintf(out, room, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, base);
    free(parent);
    return out;
}

char *mountpoint_resolve(const char *path)
{
    char name[PATH_MAX], link[1];
    size_t len = strlen(path);
    char *base;

    while (len > 1 && path[len - 1] == '/') /* a trailing slash would enter the mount */
        len--;
    if (len >= sizeof(name)) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    memcpy(name, path, len);
    name[len] = '\0';
    base = strrchr(name, '/') == NULL ? name : strrchr(name, '/') + 1;
    if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0 ||
        readlink(name, link, sizeof(link)) >= 0 || errno != EINVAL)
        return realpath(path, NULL);
    if (base == name)
        return join_resolved(".", base);
    if (base == name + 1)
        return join_resolved("/", base);
    base[-1] = '\0';
    return join_resolved(name, base);
}

bool mountpoint_flag(const char *word, unsigned long *flags)
{
    static const struct {
        const char *on, *off;
        unsigned long flag;
    } table[] = {
        { "ro", "rw", MS_RDONLY },           { "nosuid", "suid", MS_NOSUID },
        { "nodev", "dev", MS_NODEV },        { "noexec", "exec", MS_NOEXEC },
        { "sync", "async", MS_SYNCHRONOUS }, { "dirsync", NULL, MS_DIRSYNC },
        { "noatime", "atime", MS_NOATIME },
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(word, table[i].on) == 0)
            *flags |= table[i].flag;
        else if (table[i].off != NULL && strcmp(word, table[i].off) == 0)
            *flags &= ~table[i].flag;
        else
            continue;
        return true;
    }
    return false;
}

static int run_fusermount(const char *path, bool lazy)
{
    char *argv[] = { (char *)"fusermount3", (char *)"-u", (char *)(lazy ? "-z" : "-q"),
                     (char *)"--",          (char *)path, NULL };
    int status = 0;
    pid_t pid;

    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
        return -ENOENT;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

int mountpoint_unmount(const char *path, bool lazy)
{
    if (geteuid() != 0)
        return run_fusermount(path, lazy);
    return umount2(path, (lazy ? MNT_DETACH : 0) | UMOUNT_NOFOLLOW) == 0 ? 0 : -errno;
}

/* ---- dead ones ---- */

/* Reads the ID of the mount that fd is on. Returns false if /proc is not as expected. */
static bool fd_mount_id(int fd, unsigned *id)
{
    char name[64], line[128];
    bool found = false;
    FILE *f;

    snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", fd);
    f = fopen(name, "re");
    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL)
        found = sscanf(line, "mnt_id: %u", id) == 1;
    fclose(f);
    return found;
}

/* Asks the FUSE process itself: attributes cached by the kernel outlive it. */
static bool fd_is_dead(int fd)
{
    struct statx st;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_TYPE, &st) != 0 &&
           errno == ENOTCONN;
}

static bool fd_is_on_dead_rozo(int fd, const char *path)
{
    struct mountpoint at;
    unsigned id;

    return fd_mount_id(fd, &id) && mountpoint_find_now(path, &at) && at.id == id &&
           strcmp(at.type, "fuse.rozomount") == 0 && fd_is_dead(fd);
}

/* Unmounts by fd, because the path may lead to another mount by now. */
static bool fd_unmount(int fd, const char *path)
{
    char name[64];

    if (geteuid() != 0)
        return mountpoint_unmount(path, true) == 0;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    return umount2(name, MNT_DETACH) == 0;
}

bool mountpoint_drop_dead(const char *path)
{
    /* O_PATH sends no FUSE request */
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool dropped;

    if (fd < 0)
        return false;
    dropped = fd_is_on_dead_rozo(fd, path) && fd_unmount(fd, path);
    close(fd);
    return dropped;
}
