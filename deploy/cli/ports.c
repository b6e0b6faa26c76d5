/*
 * ports.c - TCP ports of 127.0.0.1 for private clusters.
 */
#include "deploy/cli/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OWNER_MADE_MAX_S = 60 }; /* time from a reservation to the folder of its owner */

/* Does not listen: at that moment a daemon could not. */
bool port_is_free(uint16_t port)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    bool is_free;

    if (fd < 0)
        return false;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* as the daemons do */
    is_free = bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0;
    close(fd);
    return is_free;
}

/* Opens and locks the folder of reservations. Returns -1 if it is not ours alone. */
static int reservations_open(void)
{
    const char *parent = getenv("XDG_RUNTIME_DIR");
    char path[PATH_MAX];
    struct stat st;
    int fd, n;

    if (parent == NULL || parent[0] != '/')
        parent = "/tmp";
    n = snprintf(path, sizeof(path), "%s/rozo-dev-ports-%u", parent, (unsigned)getuid());
    if (n < 0 || (size_t)n >= sizeof(path) || (mkdir(path, 0700) != 0 && errno != EEXIST))
        return -1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == getuid() && flock(fd, LOCK_EX) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Returns whether the cluster that has reserved the port exists, or may soon. */
static bool owner_exists(int folder, const char *name, const char *owner)
{
    struct stat st;

    if (stat(owner, &st) == 0)
        return true;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           time(NULL) - st.st_mtime < OWNER_MADE_MAX_S;
}

/* Reserves the port. Returns false if it is another cluster's. */
static bool port_reserve(int folder, uint16_t port, const char *owner)
{
    char name[8], other[PATH_MAX];
    ssize_t n;

    snprintf(name, sizeof(name), "%u", port);
    if (folder < 0 || symlinkat(owner, folder, name) == 0)
        return true;
    n = readlinkat(folder, name, other, sizeof(other) - 1);
    if (n < 0)
        return true;
    other[n] = '\0';
    if (strcmp(other, owner) != 0 && owner_exists(folder, name, other))
        return false;
    unlinkat(folder, name, 0);
    return symlinkat(owner, folder, name) == 0;
}

int ports_pick(const char *owner, uint16_t *ports, unsigned n, struct err *err)
{
    const unsigned n_all = PORTS_LAST - PORTS_FIRST + 1;
    unsigned at = 0, n_found = 0;
    int folder = reservations_open();

    if (getrandom(&at, sizeof(at), 0) != sizeof(at))
        at = (unsigned)getpid();
    /* Moving forward from one place, no port can come twice. */
    for (unsigned i = 0; i < n_all && n_found < n; i++) {
        uint16_t port = (uint16_t)(PORTS_FIRST + (at + i) % n_all);

        if (port_is_free(port) && port_reserve(folder, port, owner))
            ports[n_found++] = port;
    }
    if (folder >= 0)
        close(folder);
    if (n_found < n)
        return err_set(err, -EADDRNOTAVAIL,
                       "only %u of the %u ports wanted on 127.0.0.1 (%d to %d) are free",
                       n_found, n, PORTS_FIRST, PORTS_LAST);
    return 0;
}
