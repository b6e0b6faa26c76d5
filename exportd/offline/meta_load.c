/*
 * meta_load.c - a data directory from a dump.
 *
 * In:     exportd --load: a file of `rozo meta dump`.
 * Out:    DATA/kv.load, which becomes DATA/kv when it is whole; DATA/quorum/identity;
 *         DATA/format, in this order.
 * Keeps:  no exportd starts on a part of a dump: DATA/kv.load without DATA/format is
 *         refused.
 */
#include "exportd/offline/meta_load.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "exportd/backup/dump_format.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/quorum_identity.h"
#include "exportd/offline/offline.h"
#include "exportd/quorum/kv_place.h"
#include "exportd/store/cluster_record.h"

/* Dump being read. */
struct dump_file {
    const char *path;
    FILE *file; /* owned */
    struct dump_head head;
    struct dump_place place;
    uint8_t *payload; /* owned; DUMP_PAYLOAD_MAX bytes */
};

/* ---- the dump ---- */

static int file_fail(const struct dump_file *f, int rc, struct err *err)
{
    if (ferror(f->file))
        return err_set(err, -EIO, "read %s: %s", f->path, strerror(errno));
    if (rc == -ROZO_EUNKNOWN_FORMAT)
        return err_set(err, rc,
                       "%s is a dump of a format that this build does not know: a newer "
                       "rozo wrote it; install that one",
                       f->path);
    if (rc == -EINVAL)
        return err_set(err, rc, "%s is not a file of `rozo meta dump`", f->path);
    if (rc == -ENOMEM)
        return err_set(err, rc, "out of memory");
    return err_set(err, -ROZO_EDAMAGED,
                   feof(f->file)
                       ? "%s ends too early, after %ld bytes: the dump is not complete; "
                         "nothing was loaded"
                       : "%s is damaged, at byte %ld or shortly before; nothing was "
                         "loaded",
                   f->path, ftell(f->file));
}

/* Reads the head, and stands behind it. */
static int file_rewind(struct dump_file *f, struct err *err)
{
    uint8_t head[DUMP_HEAD_BYTES];
    int rc;

    rewind(f->file);
    if (fread(head, 1, sizeof(head), f->file) != sizeof(head))
        return file_fail(f, -EINVAL, err);
    rc = dump_head_decode(head, &f->head);
    if (rc != 0)
        return file_fail(f, rc, err);
    dump_place_begin(&f->place, head);
    return 0;
}

/* Reads a frame. *items out: malloc'ed, NULL behind the last one. */
static int file_next(struct dump_file *f, struct kv_item **items, size_t *n,
                     struct err *err)
{
    uint8_t frame[DUMP_FRAME_BYTES];
    size_t len = 0;
    int rc = -ROZO_EDAMAGED;

    if (fread(frame, 1, sizeof(frame), f->file) == sizeof(frame))
        rc = dump_frame_size(frame, &len);
    if (rc == 0 && fread(f->payload, 1, len, f->file) != len)
        rc = -ROZO_EDAMAGED;
    if (rc == 0)
        rc = dump_frame_take(&f->place, frame, f->payload, len, items, n);
    if (rc == 0 && f->place.is_over && fgetc(f->file) != EOF)
        rc = -ROZO_EDAMAGED;
    return rc == 0 ? 0 : file_fail(f, rc, err);
}

/* Reads all of it once, so that a damaged dump changes nothing. */
static int file_check(struct dump_file *f, struct err *err)
{
    int rc = file_rewind(f, err);

    while (rc == 0 && !f->place.is_over) {
        struct kv_item *items = NULL;
        size_t n;

        rc = file_next(f, &items, &n, err);
        free(items);
    }
    return rc;
}

static void file_close(struct dump_file *f)
{
    if (f->file != NULL)
        fclose(f->file);
    free(f->payload);
}

static int file_open(const char *path, struct dump_file *f, struct err *err)
{
    struct stat st;
    int rc;

    *f = (struct dump_file){ .path = path };
    f->file = fopen(path, "rbe");
    if (f->file == NULL)
        return err_set(err, -errno, "open %s: %s", path, strerror(errno));
    f->payload = malloc(DUMP_PAYLOAD_MAX);
    if (f->payload == NULL)
        rc = err_set(err, -ENOMEM, "out of memory");
    else if (fstat(fileno(f->file), &st) != 0 || !S_ISREG(st.st_mode))
        rc = err_set(err, -EINVAL, "%s is not a file", path);
    else
        rc = file_check(f, err);
    if (rc != 0)
        file_close(f);
    return rc;
}

/* ---- the store ---- */

/* Removes what an interrupted load has left. */
static int old_remove(int dir_fd, const char *data, struct err *err)
{
    int fd = openat(dir_fd, DATADIR_LOAD_NAME, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *d;
    int rc = 0;

    if (fd < 0 && errno == ENOENT)
        return 0;
    if (dir == NULL) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, rc, "open %s/%s: %s", data, DATADIR_LOAD_NAME,
                       error_text(rc));
    }
    while (rc == 0 && (d = readdir(dir)) != NULL) {
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
            unlinkat(fd, d->d_name, 0) != 0)
            rc = -errno;
    }
    closedir(dir);
    if (rc == 0 && unlinkat(dir_fd, DATADIR_LOAD_NAME, AT_REMOVEDIR) != 0)
        rc = -errno;
    return rc == 0 ? 0
                   : err_set(err, rc, "remove %s/%s: %s", data, DATADIR_LOAD_NAME,
                             error_text(rc));
}

static int keys_load(struct offline *o, struct kv *kv, struct dump_file *f,
                     struct err *err)
{
    int rc = file_rewind(f, err);

    while (rc == 0 && !f->place.is_over) {
        struct kv_item *items = NULL;
        size_t n = 0;

        rc = file_next(f, &items, &n, err);
        if (rc == 0 && items != NULL)
            rc = offline_commit(o, kv, items, n, err);
        free(items);
    }
    return rc;
}

/* Fills *members with this member alone. */
static int members_make(const struct quorum_section *q, struct raft_config *members,
                        struct err *err)
{
    struct raft_config all;
    const struct raft_member *self;

    quorum_section_members(q, &all);
    self = raft_config_find(&all, q->id);
    assert(self != NULL); /* the config was checked */
    members->n = 0;
    return raft_config_set(members, self->id, RAFT_ROLE_VOTER, self->address) == 0
               ? 0
               : err_set(err, -EINVAL, "quorum: members: the address of %u", q->id);
}

/* Says what the store is now: the next start, and a place in the log of a member. */
static int place_put(struct offline *o, struct kv *kv, const struct raft_config *members,
                     struct cluster_return *back, struct err *err)
{
    uint8_t applied[PLACE_APPLIED_BYTES], val[PLACE_MEMBERS_BYTES_MAX];
    uint8_t list[RAFT_CONFIG_BYTES_MAX];
    struct kv_item items[4];
    size_t n = 2;
    int rc = cluster_return_make(kv, offline_chance(o), back, err);

    if (rc != 0)
        return rc;
    memcpy(items, back->items, sizeof(back->items));
    if (members->n > 0) {
        items[n++] = kv_place_members(val, 1, list, raft_config_encode(members, list));
        items[n++] = kv_place_applied(applied, 1, 1, 0);
    }
    return offline_commit(o, kv, items, n, err);
}

static int store_make(struct offline *o, struct dump_file *f,
                      const struct raft_config *members, struct cluster_return *back,
                      struct err *err)
{
    struct kv_leveldb *kv;
    int rc = offline_store_open(o, DATADIR_LOAD_NAME, true, &kv, err);

    if (rc != 0)
        return rc;
    rc = keys_load(o, kv_leveldb_kv(kv), f, err);
    if (rc == 0)
        rc = place_put(o, kv_leveldb_kv(kv), members, back, err);
    if (rc == 0)
        rc = offline_sync(o, kv_leveldb_kv(kv), err);
    kv_leveldb_close(kv);
    return rc;
}

/* ---- the directory ---- */

/* Gives the store its name, and says whose it is. */
static int folder_finish(struct offline *o, int dir_fd, const struct dump_file *f,
                         const struct cluster_return *back, struct err *err)
{
    const struct quorum_section *q = o->config->quorum;
    const char *data = o->config->exportd.data;
    bool is_member = q != NULL && q->id != 0;
    struct quorum_identity id;
    int rc = 0;

    if (renameat(dir_fd, DATADIR_LOAD_NAME, dir_fd, "kv") != 0 || fsync(dir_fd) != 0)
        return err_set(err, -errno, "rename %s/%s: %s", data, DATADIR_LOAD_NAME,
                       strerror(errno));
    if (is_member) {
        memcpy(id.cluster_id, back->cluster.cluster_id, sizeof(id.cluster_id));
        id.member = q->id;
        rc = raft_group_next(f->head.group, offline_chance(o), &id.group);
        rc = rc != 0 ? err_set(err, rc, "no numbers are left for this quorum")
                     : quorum_identity_write(data, &id, err);
    }
    return rc == 0 ? datadir_begin(data, is_member, err) : rc;
}

static int folder_load(struct offline *o, struct dump_file *f, struct err *err)
{
    const struct quorum_section *q = o->config->quorum;
    const char *data = o->config->exportd.data;
    struct raft_config members = { .n = 0 };
    struct cluster_return back;
    int lock_fd, dir_fd, rc = datadir_open_empty(data, &lock_fd, err);

    if (rc != 0)
        return rc;
    dir_fd = open(data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        rc = err_set(err, -errno, "open %s: %s", data, strerror(errno));
    if (rc == 0)
        rc = old_remove(dir_fd, data, err);
    if (rc == 0 && q != NULL && q->id != 0)
        rc = members_make(q, &members, err);
    if (rc == 0)
        rc = store_make(o, f, &members, &back, err);
    if (rc == 0)
        rc = folder_finish(o, dir_fd, f, &back, err);
    if (dir_fd >= 0)
        close(dir_fd);
    close(lock_fd);
    if (rc == 0)
        log_info("%s has the metadata of the dump, %" PRIu64 " keys; %s", data,
                 f->place.n_keys,
                 members.n == 0 ? "start exportd"
                                : "start this member, a quorum of itself alone, and add "
                                  "others to it");
    return rc;
}

int meta_load(const struct exportd_settings *c, const char *path, struct err *err)
{
    struct dump_file f;
    struct offline o;
    int rc;

    if (c->quorum != NULL && c->quorum->witness)
        return err_set(err, -EINVAL,
                       "the config says `quorum: witness: true`: a witness keeps no "
                       "metadata");
    rc = offline_open(&o, c, err);
    if (rc != 0)
        return rc;
    rc = file_open(path, &f, err);
    if (rc == 0) {
        rc = folder_load(&o, &f, err);
        file_close(&f);
    }
    offline_close(&o);
    return rc;
}
