/*
 * disk_names.c - a filter of the names in a few directories of projection files.
 *
 * In:     disk_uv.c, on its loop.
 * Out:    readdir().
 * Keeps:  a name that exists, and was created through this disk or before its directory
 *         was read, is never called absent.
 * Yours:  the number of directories, bits and names. Change them, then count the system
 *         calls of a storage that removes files.
 */
#include "common/disk/disk_names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    NAME_AT = sizeof("objects/xx/yy/") - 1,
    NAMES_MAX = 2048, /* with more names in a directory the filter would be useless */
};

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns the number of path's directory, or -1. */
static int dir_of(const char *path)
{
    int dir = 0;

    if (strncmp(path, "objects/", 8) != 0 || strlen(path) <= NAME_AT || path[10] != '/' ||
        path[13] != '/')
        return -1;
    for (unsigned i = 8; i < 13; i += i == 9 ? 2 : 1) {
        int digit = hex(path[i]);

        if (digit < 0)
            return -1;
        dir = dir * 16 + digit;
    }
    return dir;
}

static unsigned bit_of(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

    for (; *name != '\0'; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    /* Makes the last character count, too. */
    h = (h ^ h >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned)(h >> 32) % NAMES_BITS;
}

static void bits_add(struct names_dir *d, const char *name)
{
    unsigned bit = bit_of(name);

    d->bits[bit / 64] |= UINT64_C(1) << bit % 64;
}

/* Returns the entry of path's directory, or NULL. */
static const struct names_dir *names_find(const struct disk_names *names,
                                          const char *path)
{
    int dir = dir_of(path);
    const struct names_dir *d = dir < 0 ? NULL : &names->dirs[dir % NAMES_DIRS];

    return d != NULL && d->known && d->dir == (uint32_t)dir ? d : NULL;
}

bool disk_names_lack(const struct disk_names *names, const char *path)
{
    const struct names_dir *d = names_find(names, path);
    unsigned bit = d == NULL ? 0 : bit_of(path + NAME_AT);

    return d != NULL && (d->bits[bit / 64] >> bit % 64 & 1) == 0;
}

void disk_names_add(struct disk_names *names, const char *path)
{
    if (names_find(names, path) != NULL)
        bits_add(&names->dirs[dir_of(path) % NAMES_DIRS], path + NAME_AT);
}

static DIR *dir_open(int dir_fd, unsigned number)
{
    char path[32];
    DIR *dir;
    int fd;

    snprintf(path, sizeof(path), "objects/%02x/%02x", number >> 8, number & 0xff);
    fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL && fd >= 0)
        close(fd);
    return dir;
}

/* Reads a directory into the filter. Returns false if it cannot be read or has too many
 * names. */
static bool dir_read(struct names_dir *d, int dir_fd)
{
    DIR *dir = dir_open(dir_fd, d->dir);
    unsigned n = 0;
    struct dirent *e;
    bool is_whole;

    if (dir == NULL)
        return false;
    memset(d->bits, 0, sizeof(d->bits));
    errno = 0;
    while (n <= NAMES_MAX && (e = readdir(dir)) != NULL) {
        bits_add(d, e->d_name);
        n++;
    }
    is_whole = e == NULL && errno == 0;
    closedir(dir);
    return is_whole;
}

void disk_names_learn(struct disk_names *names, int dir_fd, const char *path)
{
    int dir = dir_of(path);
    struct names_dir *d = dir < 0 ? NULL : &names->dirs[dir % NAMES_DIRS];

    if (d == NULL || (d->known && d->dir == (uint32_t)dir))
        return;
    if (d->asked != (uint32_t)dir + 1) {
        /* Not at the first query: random access would read many directories. */
        d->asked = (uint32_t)dir + 1;
        return;
    }
    d->dir = (uint32_t)dir;
    d->known = true;
    /* Any name may exist. */
    if (!dir_read(d, dir_fd))
        memset(d->bits, 0xff, sizeof(d->bits));
}
