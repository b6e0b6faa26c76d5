/*
 * ports.c - TCP ports of 127.0.0.1 for private clusters.
 */
#include "deploy/cli/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Returns a listening socket on the port, or -1. */
static int port_hold(uint16_t port)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;

    if (fd < 0)
        return -1;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* as the daemons do */
    if (bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        listen(fd, 1) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool port_is_free(uint16_t port)
{
    int fd = port_hold(port);

    if (fd < 0)
        return false;
    close(fd);
    return true;
}

int ports_pick(uint16_t *ports, unsigned n, struct err *err)
{
    const unsigned n_all = PORTS_LAST - PORTS_FIRST + 1;
    unsigned at = 0, n_found = 0;

    if (getrandom(&at, sizeof(at), 0) != sizeof(at))
        at = (unsigned)getpid();
    /* Moving forward from one place, no port can come twice. */
    for (unsigned i = 0; i < n_all && n_found < n; i++) {
        uint16_t port = (uint16_t)(PORTS_FIRST + (at + i) % n_all);

        if (port_is_free(port))
            ports[n_found++] = port;
    }
    if (n_found < n)
        return err_set(err, -EADDRNOTAVAIL,
                       "only %u of the %u ports wanted on 127.0.0.1 (%d to %d) are free",
                       n_found, n, PORTS_FIRST, PORTS_LAST);
    return 0;
}
