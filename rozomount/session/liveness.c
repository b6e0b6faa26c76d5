/*
 * liveness.c - see liveness.h.
 *
 * In:     mount_run.c. Out: files in /run/rozo, or in a user's runtime directory.
 * Keeps:  a file is locked before it gets its name, so an unlocked file belongs to a dead
 *         process. A search takes a shared lock and releases it at once, so mounts that
 *         start together all find the session. A file removed by its owner has no name
 *         left when another process gets its lock (st_nlink is checked). The first search
 *         that finds a session dead makes its file one byte long: the file's time is then
 *         the time of this search, whatever the age of the session. Errors are ignored,
 *         as if the directory did not exist: nothing here is essential.
 */
#include "rozomount/session/liveness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/system/boot_id.h"
#include "rozomount/options/xalloc.h"

enum {
    CLUSTER_DIGITS = 2 * PULSE_CLUSTER_BYTES,
    NAME_LEN = CLUSTER_DIGITS + 1 + 16 + 1 + 16, /* cluster-session-boot */
    OLD_S = 24 * 3600, /* found dead longer ago: the lease has ended since */
};

/* Session whose process is dead. */
struct dead_session {
    char name[NAME_LEN + 1]; /* name of its file */
    uint64_t found_ns;       /* since 1970; when a search first found it dead */
};

struct liveness {
    int dir; /* -1: none */
    uint64_t boot;
    int fd; /* own file, locked; -1: none */
    char name[NAME_LEN + 1];
    size_t n_dead;
    struct dead_session
        dead[PULSE_DEAD_MAX];     /* only PULSE_DEAD_MAX of them: the newest */
    uint64_t ids[PULSE_DEAD_MAX]; /* the sessions, in the same order */
};

/* ---- the directory ---- */

static bool dir_of_user(char out[PATH_MAX])
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    int n;

    if (geteuid() == 0)
        base = "/run";
    if (base == NULL || base[0] != '/')
        return false;
    n = snprintf(out, PATH_MAX, "%s/rozo", base);
    return n > 0 && n < PATH_MAX;
}

/* Opens the directory. No other user may be able to add files to it. */
static int dir_open(const char *path)
{
    struct stat st;
    int fd;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 022) == 0)
        return fd;
    close(fd);
    return -1;
}

/* ---- names ---- */

static void name_make(const struct liveness *p, const uint8_t *cluster, uint64_t session,
                      char out[NAME_LEN + 1])
{
    for (unsigned i = 0; i < PULSE_CLUSTER_BYTES; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", cluster[i]);
    snprintf(out + CLUSTER_DIGITS, NAME_LEN + 1 - CLUSTER_DIGITS, "-%016llx-%016llx",
             (unsigned long long)session, (unsigned long long)p->boot);
}

/* Returns the session in a file name; 0: not a name of this boot and format. */
static uint64_t name_session(const struct liveness *p, const char *name)
{
    char text[17], again[NAME_LEN + 1];
    uint64_t session;

    if (strlen(name) != NAME_LEN || name[CLUSTER_DIGITS] != '-')
        return 0;
    memcpy(text, name + CLUSTER_DIGITS + 1, 16);
    text[16] = '\0';
    session = strtoull(text, NULL, 16);
    snprintf(again, sizeof(again), "-%016llx-%016llx", (unsigned long long)session,
             (unsigned long long)p->boot);
    return strcmp(name + CLUSTER_DIGITS, again) == 0 ? session : 0;
}

static bool is_of_own_cluster(const struct liveness *p, const char *name)
{
    return p->fd >= 0 && memcmp(name, p->name, CLUSTER_DIGITS) == 0;
}

/* ---- dead sessions ---- */

/* Looks at a file. Returns true if no process has locked it, so that its session is dead;
 * *found_ns: since when that is known. */
static bool file_is_dead(const struct liveness *p, const char *name, uint64_t now_ns,
                         uint64_t *found_ns)
{
    int fd = openat(p->dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    bool dead;

    if (fd < 0)
        return false;
    dead = flock(fd, LOCK_SH | LOCK_NB) == 0 && fstat(fd, &st) == 0 &&
           S_ISREG(st.st_mode) && st.st_nlink == 1;
    *found_ns = now_ns;
    if (dead && st.st_size != 0)
        *found_ns = timespec_to_ns(st.st_mtim);
    else if (dead && ftruncate(fd, 1) != 0)
        log_debug("note that %s is dead: %s", name, strerror(errno));
    close(fd);
    return dead;
}

static void dead_forget(struct liveness *p, size_t i)
{
    unlinkat(p->dir, p->dead[i].name, 0);
    p->n_dead--;
    p->dead[i] = p->dead[p->n_dead];
    p->ids[i] = p->ids[p->n_dead];
}

/* Returns the place for one more session: that of the one found first, if all are taken.
 * PULSE_DEAD_MAX: it has been found before all of them. */
static size_t dead_place(const struct liveness *p, uint64_t found_ns)
{
    size_t first = 0;

    if (p->n_dead < PULSE_DEAD_MAX)
        return p->n_dead;
    for (size_t i = 1; i < p->n_dead; i++) {
        if (p->dead[i].found_ns < p->dead[first].found_ns)
            first = i;
    }
    return p->dead[first].found_ns < found_ns ? first : PULSE_DEAD_MAX;
}

static void file_look(struct liveness *p, const char *name, uint64_t now_ns)
{
    uint64_t session = name_session(p, name);
    uint64_t found_ns;
    size_t i;

    if (session == 0 || (p->fd >= 0 && !is_of_own_cluster(p, name)) ||
        !file_is_dead(p, name, now_ns, &found_ns))
        return;
    if (found_ns + s_to_ns(OLD_S) < now_ns) {
        unlinkat(p->dir, name, 0);
        return;
    }
    i = dead_place(p, found_ns);
    if (i == PULSE_DEAD_MAX)
        return;
    p->n_dead += i == p->n_dead;
    p->ids[i] = session;
    p->dead[i].found_ns = found_ns;
    memcpy(p->dead[i].name, name, sizeof(p->dead[i].name));
}

const uint64_t *liveness_find_dead(struct liveness *p, size_t *n)
{
    int fd = openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct timespec now;
    struct dirent *e;

    p->n_dead = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    while (d != NULL && (e = readdir(d)) != NULL)
        file_look(p, e->d_name, timespec_to_ns(now));
    if (d != NULL)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    *n = p->n_dead;
    return p->ids;
}

struct liveness *liveness_new(const char *dir)
{
    struct liveness *p = xzalloc(sizeof(*p));
    char path[PATH_MAX];

    p->boot = boot_number();
    p->dir = p->fd = -1;
    if (dir == NULL && dir_of_user(path))
        dir = path;
    if (dir != NULL)
        p->dir = dir_open(dir);
    return p;
}

void liveness_dead_are_reported(struct liveness *p)
{
    for (size_t i = p->n_dead; i-- > 0;) {
        if (is_of_own_cluster(p, p->dead[i].name))
            dead_forget(p, i);
    }
    p->n_dead = 0; /* the others are left for mounts of their own clusters */
}

/* ---- own session ---- */

static void own_drop(struct liveness *p, bool over)
{
    if (p->fd < 0)
        return;
    if (over)
        unlinkat(p->dir, p->name, 0);
    close(p->fd);
    p->fd = -1;
}

void liveness_note(struct liveness *p, const uint8_t cluster[PULSE_CLUSTER_BYTES],
                   uint64_t session)
{
    char name[NAME_LEN + 1], draft[NAME_LEN + 5];
    int fd;

    if (p->dir < 0)
        return;
    name_make(p, cluster, session, name);
    if (p->fd >= 0 && strcmp(name, p->name) == 0)
        return;
    own_drop(p, true);
    /* not named after the process: containers with one /run have equal process ids */
    snprintf(draft, sizeof(draft), "new.%s", name);
    fd = openat(p->dir, draft, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ||
        renameat(p->dir, draft, p->dir, name) != 0) {
        log_info("no file for session %016llx: %s. If this mount is killed, others wait "
                 "for the end of its lease",
                 (unsigned long long)session, strerror(errno));
        if (fd >= 0) {
            unlinkat(p->dir, draft, 0);
            close(fd);
        }
        return;
    }
    p->fd = fd;
    memcpy(p->name, name, sizeof(name));
}

int liveness_fd(const struct liveness *p)
{
    return p->fd;
}

void liveness_free(struct liveness *p, bool over)
{
    if (p == NULL)
        return;
    own_drop(p, over);
    if (p->dir >= 0)
        close(p->dir);
    free(p);
}
