/*
 * first_member.c - the steps that make a data directory that of a first member.
 *
 * Out:    keys of kind KEY_QUORUM in DATA/kv, DATA/quorum/identity, DATA/format.
 * Keeps:  the format comes last: with the old one the directory is still what it was,
 *         and an exportd that is alone does not look at what the other steps wrote.
 */
#include "exportd/datadir/first_member.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "exportd/datadir/datadir.h"
#include "exportd/datadir/kv_call.h"
#include "exportd/quorum/kv_quorum.h"

enum { PATH_BYTES = 4352 };

static int keys_write(const struct first_member *m, struct err *err)
{
    struct kv_call call;

    kv_call_init(&call, m->loop);
    kv_quorum_begin(m->kv, m->members, &call.done);
    return kv_call_wait_stable(&call, m->kv, err);
}

static bool is_of_identity(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           strcmp(name, "identity") == 0 || strcmp(name, "identity.new") == 0;
}

int first_member_check(const char *data, struct err *err)
{
    char path[PATH_BYTES];
    struct dirent *d;
    int rc = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/quorum", data);
    dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT
                   ? 0
                   : err_set(err, -errno, "list %s: %s", path, strerror(errno));
    while (rc == 0 && (d = readdir(dir)) != NULL) {
        if (!is_of_identity(d->d_name))
            rc = err_set(err, -EEXIST,
                         "%s holds %s, of a quorum that this directory belonged to "
                         "before: move %s away",
                         path, d->d_name, path);
    }
    closedir(dir);
    return rc;
}

int first_member_step(const struct first_member *m, enum first_member_step step,
                      struct err *err)
{
    switch (step) {
    case FIRST_MEMBER_KEYS:
        return keys_write(m, err);
    case FIRST_MEMBER_IDENTITY:
        return quorum_identity_write(m->data, &m->identity, err);
    default:
        return datadir_begin(m->data, true, err);
    }
}

int first_member_make(const struct first_member *m, struct err *err)
{
    int rc = 0;

    for (unsigned step = 0; rc == 0 && step < FIRST_MEMBER_STEPS; step++)
        rc = first_member_step(m, (enum first_member_step)step, err);
    return rc;
}
