/*
 * holder.h - a process that keeps a mount while the process that serves it is replaced.
 *
 * The holder is the parent of the serving process. It keeps the FUSE descriptor of the
 * mount, so that the kernel does not end the mount when the serving process dies, and
 * the table of held.h. When that process dies of a signal, or ends to be replaced, the
 * holder starts the program again; the new process takes the mount over.
 *
 * The kernel ends requests that a dead process has read with the descriptor they were
 * read from. From Linux 6.9 on it can be asked to send them again, so the holder keeps
 * those descriptors as well until the next process serves.
 */
#ifndef ROZO_ROZOMOUNT_HOLD_HOLDER_H
#define ROZO_ROZOMOUNT_HOLD_HOLDER_H

#include <stdbool.h>

#include "common/base/err.h"

/* Descriptors of a serving process. */
struct holder_fds {
    int link;   /* to the holder; -1: there is no holder */
    int table;  /* memory, see held.h */
    int device; /* the mount that is taken over; -1: it makes the mount */
};

/* Exit statuses of a serving process that the holder knows. */
enum {
    HOLDER_EXIT_REPLACE = 70, /* start another process */
    HOLDER_EXIT_LOST = 71,    /* no process can: the session has ended */
};

/* Kinds of descriptors that a serving process gives to the holder. */
enum holder_gift {
    HOLDER_DEVICE,   /* /dev/fuse, mounted */
    HOLDER_CLONE,    /* requests are read from it */
    HOLDER_LIVENESS, /* the locked file by which others know that the session lives */
    N_HOLDER_GIFTS
};

struct holder_config {
    char *const *argv;                            /* command line; borrowed */
    int mountpoint_at;                            /* place of the mount point in it */
    const char *mountpoint, *key_file, *pid_file; /* for processes started later */
    int report;           /* descriptor that only the serving process needs; -1: none */
    void (*let_go)(void); /* called in the holder once the mount serves; may be NULL */
};

/**
 * Makes the holder. Returns in a child of it, the first serving process, with *fds;
 * in the holder it does not return. On failure returns -errno with a message in err.
 */
int holder_start(const struct holder_config *config, struct holder_fds *fds,
                 struct err *err);
/** Gives the holder a descriptor, which stays the caller's, too. */
void holder_give(const struct holder_fds *fds, enum holder_gift what, int fd);
/** Reports that the mount serves. Returns when the holder knows. */
void holder_serves(const struct holder_fds *fds);

#endif
