/*
 * quorum_store.c - opens the store of a member, and moves a damaged one aside.
 *
 * In:     DATA/kv; DATA/quorum/store-damaged, the note of a run that found damage.
 * Out:    DATA/kv; DATA/kv.damaged-N, the damaged one; DATA/quorum/members; messages for
 *         people.
 * Keeps:  a new store has the mark of a copy that has not begun, on stable storage,
 *         before it gets the name kv: it is never taken for a store that is complete. A
 *         crash at any time leaves what the next start goes on with.
 */
#include "exportd/datadir/quorum_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/system/fds.h"
#include "common/system/small_file.h"
#include "exportd/datadir/kv_call.h"
#include "exportd/quorum/kv_quorum.h"

enum { PATH_BYTES = 4352, DAMAGED_MAX = 10000 };

static const char note_name[] = "store-damaged";
static const char members_name[] = "members";

struct store_paths {
    char kv[PATH_BYTES];
    char made[PATH_BYTES]; /* the new store, until it is renamed */
    char note[PATH_BYTES];
};

static void paths_make(struct store_paths *p, const char *data)
{
    snprintf(p->kv, sizeof(p->kv), "%s/kv", data);
    snprintf(p->made, sizeof(p->made), "%s/kv.new", data);
    snprintf(p->note, sizeof(p->note), "%s/quorum/%s", data, note_name);
}

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static int folder_sync(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    if (fd < 0 || fsync(fd) != 0)
        rc = err_set(err, -errno, "sync %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

static int rename_to(const char *from, const char *to, struct err *err)
{
    return rename(from, to) == 0
               ? 0
               : err_set(err, -errno, "rename %s to %s: %s", from, to, strerror(errno));
}

/* Removes what an interrupted run has made. A store has no folders in it. */
static int folder_remove(const char *path, struct err *err)
{
    DIR *dir = opendir(path);
    struct dirent *d;

    if (dir == NULL && errno == ENOENT)
        return 0;
    while (dir != NULL && (d = readdir(dir)) != NULL)
        unlinkat(dirfd(dir), d->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    if (rmdir(path) != 0)
        return err_set(err, -errno, "remove %s: %s", path, strerror(errno));
    return 0;
}

/* ---- the new store ---- */

static int made_fill(struct env_uv *env, struct kv *kv)
{
    struct kv_call call;

    kv_call_init(&call, env->loop);
    kv_quorum_begin_copy(kv, &call.done);
    return kv_call_wait_stable(&call, kv, NULL);
}

/* Makes an empty store with the mark of a copy, under another name. */
static int store_make(struct env_uv *env, const struct store_paths *p, unsigned n_fds,
                      struct err *err)
{
    struct kv_leveldb *kv;
    int rc = folder_remove(p->made, err);

    if (rc == 0 && mkdir(p->made, 0700) != 0)
        rc = err_set(err, -errno, "make %s: %s", p->made, strerror(errno));
    if (rc == 0)
        rc = kv_leveldb_open(&env->env, env->loop, p->made, true, n_fds, &kv, err);
    if (rc != 0)
        return rc;
    rc = made_fill(env, kv_leveldb_kv(kv));
    kv_leveldb_close(kv);
    return rc == 0 ? 0 : err_set(err, rc, "write %s: %s", p->made, error_text(rc));
}

/* ---- moving aside ---- */

static int damaged_path(const char *data, char path[PATH_BYTES], struct err *err)
{
    for (unsigned i = 1; i < DAMAGED_MAX; i++) {
        snprintf(path, PATH_BYTES, "%s/kv.damaged-%u", data, i);
        if (!exists(path))
            return 0;
    }
    return err_set(err, -EEXIST, "%s has too many folders kv.damaged-N: remove them",
                   data);
}

/* The new store has its name, on stable storage: the note is done with. */
static void note_remove(const struct store_paths *p)
{
    if (unlink(p->note) != 0 && errno != ENOENT)
        log_warn("remove %s: %s", p->note, strerror(errno));
}

static int store_replace(struct env_uv *env, const char *data,
                         const struct store_paths *p, unsigned n_fds, struct err *err)
{
    char damaged[PATH_BYTES];
    int rc = damaged_path(data, damaged, err);

    if (rc == 0)
        rc = store_make(env, p, n_fds, err);
    if (rc == 0)
        rc = rename_to(p->kv, damaged, err);
    if (rc == 0)
        rc = rename_to(p->made, p->kv, err);
    if (rc == 0)
        rc = folder_sync(data, err);
    if (rc != 0)
        return rc;
    note_remove(p);
    log_error("the metadata store is damaged and is kept as %s: this member copies the "
              "store of another one; check its disk, and remove that folder later",
              damaged);
    return 0;
}

/* Goes on after a crash between the two renames: the new store is complete then. */
static int replace_resume(const char *data, const struct store_paths *p, struct err *err)
{
    int rc;

    if (exists(p->kv) || !exists(p->made))
        return 0;
    rc = rename_to(p->made, p->kv, err);
    if (rc == 0)
        rc = folder_sync(data, err);
    if (rc == 0)
        note_remove(p);
    return rc;
}

int quorum_store_open(struct env_uv *env, const char *data, unsigned n_fds,
                      struct kv_leveldb **out, struct err *err)
{
    struct store_paths p;
    int rc;

    paths_make(&p, data);
    rc = replace_resume(data, &p, err);
    if (rc != 0)
        return rc;
    if (!exists(p.note)) {
        rc = kv_leveldb_open(&env->env, env->loop, p.kv, false, n_fds, out, err);
        if (rc != -ROZO_EDAMAGED)
            return rc;
        log_error("%s", err->text);
    }
    rc = store_replace(env, data, &p, n_fds, err);
    return rc != 0 ? rc
                   : kv_leveldb_open(&env->env, env->loop, p.kv, false, n_fds, out, err);
}

/* ---- members to ask ---- */

/* Reads the list that was kept. Returns its bytes; 0: there is none. */
static size_t members_read(int dir_fd, uint8_t list[RAFT_CONFIG_BYTES_MAX])
{
    int fd = openat(dir_fd, members_name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, list, RAFT_CONFIG_BYTES_MAX);

    if (fd >= 0)
        close(fd);
    return n > 0 && raft_config_decode(list, (size_t)n, NULL) == 0 ? (size_t)n : 0;
}

void quorum_store_sources(int dir_fd, const struct quorum_section *section,
                          struct raft_config *members)
{
    uint8_t list[RAFT_CONFIG_BYTES_MAX], kept[RAFT_CONFIG_BYTES_MAX];
    size_t len, kept_len = members_read(dir_fd, kept);
    int rc = 0;

    if (members->n == 0 && kept_len > 0) {
        raft_config_decode(kept, kept_len, members);
    } else if (members->n == 0) {
        quorum_section_members(section, members);
    } else {
        len = raft_config_encode(members, list);
        if (len != kept_len || memcmp(list, kept, len) != 0)
            rc = small_file_replace(dir_fd, members_name, (const char *)list, len);
    }
    if (rc != 0)
        log_warn("write the list of members for a copy: %s", error_text(rc));
}

void quorum_store_is_damaged(int dir_fd)
{
    int fd = openat(dir_fd, note_name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0 || fsync(fd) != 0 || fsync(dir_fd) != 0)
        log_error("note that the metadata store is damaged: %s", strerror(errno));
    else
        log_error("the metadata store is damaged: the next start moves it aside");
    if (fd >= 0)
        close(fd);
}
