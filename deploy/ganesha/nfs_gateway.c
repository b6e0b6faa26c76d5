/*
 * nfs_gateway.c - settings of the gateway of NFS, the mounts that it serves, its state.
 */
#include "deploy/ganesha/nfs_gateway.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/cli/mounts.h"
#include "deploy/cli/text_table.h"

enum { SETTINGS_MAX = 1 << 20 };

const char *nfs_dir(const char *dir)
{
    const char *env = getenv("ROZO_NFS_DIR");

    return dir != NULL ? dir : env != NULL && env[0] != '\0' ? env : NFS_DIR;
}

/* ---- settings ---- */

/* Takes a string member that must be there and fit. */
static bool text_take(const json_t *json, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text != NULL && (size_t)snprintf(out, size, "%s", text) < size;
}

static bool number_take(const json_t *json, const char *key, unsigned max, unsigned *out)
{
    json_int_t n = json_integer_value(json_object_get(json, key)); /* 0: no number */

    *out = (unsigned)n;
    return n >= 1 && n <= max;
}

static bool export_take(const json_t *json, struct nfs_export *e)
{
    e->read_only = json_is_true(json_object_get(json, "read_only"));
    return text_take(json, "export", e->name, sizeof(e->name)) &&
           text_take(json, "mount", e->mount, sizeof(e->mount)) &&
           text_take(json, "fsid", e->fsid, sizeof(e->fsid)) &&
           number_take(json, "id", NFS_EXPORT_ID_MAX, &e->id) &&
           text_take(json, "pseudo", e->pseudo, sizeof(e->pseudo)) &&
           text_take(json, "clients", e->clients, sizeof(e->clients)) &&
           text_take(json, "squash", e->squash, sizeof(e->squash));
}

static bool settings_take(const json_t *json, struct nfs_gateway *g)
{
    const json_t *exports = json_object_get(json, "exports");
    size_t i, n = json_array_size(exports);

    g->v4_only = json_is_true(json_object_get(json, "v4_only"));
    if (n > NFS_EXPORTS_MAX || !number_take(json, "port", 65535, &g->port) ||
        !number_take(json, "grace_s", 180, &g->grace_s))
        return false;
    for (i = 0; i < n; i++) {
        if (!export_take(json_array_get(exports, i), &g->exports[i]))
            return false;
    }
    g->n_exports = (unsigned)n;
    return true;
}

int nfs_gateway_load(struct nfs_gateway *g, const char *dir, struct err *err)
{
    char path[PATH_MAX], *text = malloc(SETTINGS_MAX);
    json_t *json = NULL;
    json_error_t why;
    ssize_t len = -ENOMEM;
    int rc = 0;

    *g = (struct nfs_gateway){ .port = NFS_PORT, .grace_s = NFS_GRACE_S };
    if (text == NULL)
        return err_wrap(err, -ENOMEM, "read the settings");
    len = dir[0] == '/' ? path_join(g->dir, err, "%s", dir)
                        : path_absolute(dir, g->dir, err);
    if (len == 0)
        len = path_join(path, err, "%s/gateway.json", g->dir);
    if (len == 0)
        len = file_read_text(path, text, SETTINGS_MAX, err);
    if (len >= 0) {
        json = json_loads(text, JSON_REJECT_DUPLICATES, &why);
        if (json == NULL)
            rc = err_set(err, -EBADMSG, "%s, line %d: %s", path, why.line, why.text);
        else if (!settings_take(json, g))
            rc = err_set(err, -EBADMSG,
                         "%s does not hold the settings of a gateway of NFS", path);
    } else if (len != -ENOENT) {
        rc = (int)len;
    }
    json_decref(json);
    free(text);
    return rc;
}

/* Returns whether a gateway that was removed leaves a file of that name. */
static bool is_left_over(const char *name)
{
    static const char *const names[] = { ".",    "..",          "local.conf",
                                         "lock", "ganesha.pid", "v4recov" };

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

int nfs_folder_check(const struct nfs_gateway *g, struct err *err)
{
    DIR *dir = g->n_exports != 0 ? NULL : opendir(g->dir);
    const struct dirent *entry;
    int rc = 0;

    if (dir == NULL)
        return 0; /* a gateway's, or not made yet */
    while (rc == 0 && (entry = readdir(dir)) != NULL) {
        if (!is_left_over(entry->d_name))
            rc = err_set(err, -EEXIST,
                         "%s is not the folder of a gateway of NFS: it has %s in it. "
                         "Choose another one by --dir",
                         g->dir, entry->d_name);
    }
    closedir(dir);
    return rc;
}

struct nfs_export *nfs_export_find(struct nfs_gateway *g, const char *name)
{
    for (unsigned i = 0; i < g->n_exports; i++) {
        if (strcmp(g->exports[i].name, name) == 0)
            return &g->exports[i];
    }
    return NULL;
}

static json_t *export_json(const struct nfs_export *e)
{
    return json_pack("{s:o, s:o, s:s, s:i, s:o, s:s, s:s, s:b}", "export",
                     cli_json_text(e->name), "mount", cli_json_text(e->mount), "fsid",
                     e->fsid, "id", (int)e->id, "pseudo", cli_json_text(e->pseudo),
                     "clients", e->clients, "squash", e->squash, "read_only",
                     e->read_only);
}

static json_t *settings_json(const struct nfs_gateway *g)
{
    json_t *exports = json_array();

    for (unsigned i = 0; i < g->n_exports; i++)
        json_array_append_new(exports, export_json(&g->exports[i]));
    return json_pack("{s:i, s:i, s:b, s:o}", "port", (int)g->port, "grace_s",
                     (int)g->grace_s, "v4_only", g->v4_only, "exports", exports);
}

static int text_write(const struct nfs_gateway *g, const char *name, char *text,
                      struct err *err)
{
    char path[PATH_MAX];
    int rc = text == NULL ? err_wrap(err, -ENOMEM, "write %s", name)
                          : path_join(path, err, "%s/%s", g->dir, name);

    if (rc == 0)
        rc = file_replace(path, 0644, text, strlen(text), err);
    free(text);
    return rc;
}

int nfs_apply(const struct nfs_gateway *g, struct err *err)
{
    json_t *json = settings_json(g);
    int rc = folder_make(g->dir, 0755, err);

    if (rc == 0)
        rc = text_write(g, "gateway.json",
                        json == NULL ? NULL : json_dumps(json, JSON_INDENT(2)), err);
    if (rc == 0)
        rc = text_write(g, "ganesha.conf", nfs_config_text(g), err);
    json_decref(json);
    return rc;
}

/* ---- mounts ---- */

/* Asks a mount for a virtual xattr. */
static int mount_ask(const char *path, const char *name, char *out, size_t size,
                     struct err *err)
{
    ssize_t len = getxattr(path, name, out, size - 1);

    if (len < 0 && (errno == ENODATA || errno == EOPNOTSUPP))
        return err_set(err, -ENODATA,
                       "the mount %s is of an older rozomount: mount again", path);
    if (len < 0)
        return err_wrap(err, -errno, "ask the mount %s", path);
    out[len] = '\0';
    return 0;
}

int nfs_export_locate(struct nfs_export *e, const char *name, struct err *err)
{
    char wanted[PATH_MAX] = "", id[16];
    char *text = mountinfo_read(err);
    int rc = text == NULL ? -EIO : 0;
    struct mount_entry m;
    unsigned n = 0;

    if (rc == 0 && e->mount[0] != '\0')
        rc = path_absolute(e->mount, wanted, err);
    if (rc == 0)
        n = mounts_count(text, name, wanted, &m);
    if (n > 0)
        strcpy(e->mount, m.path);
    free(text);
    if (rc == 0 && n == 0)
        rc =
            err_set(err, -ENOENT,
                    "the export %s is not mounted %s%s. Mount it first: rozo mount %s %s",
                    name, wanted[0] == '\0' ? "on this machine" : "at ", wanted, name,
                    wanted[0] == '\0' ? "MNT" : wanted);
    if (rc == 0 && n > 1)
        rc = err_set(err, -EINVAL,
                     "the export %s is mounted at %u places here: choose by --mount PATH",
                     name, n);
    if (rc == 0)
        rc = mount_ask(e->mount, "rozo.fsid", e->fsid, sizeof(e->fsid), err);
    if (rc == 0)
        rc = mount_ask(e->mount, "rozo.export_id", id, sizeof(id), err);
    if (rc == 0)
        e->id = (uint32_t)strtoul(id, NULL, 10);
    return rc;
}

int nfs_export_check(const struct nfs_export *e, struct err *err)
{
    char type[64] = "", found[NFS_FSID_TEXT];
    int rc = mount_find(e->mount, type, sizeof(type), err);

    if (rc < 0)
        return rc;
    if (rc == 0 || strcmp(type, ROZO_MOUNT_TYPE) != 0)
        return err_set(err, -ENOENT, "%s is not mounted at %s", e->name, e->mount);
    rc = mount_ask(e->mount, "rozo.fsid", found, sizeof(found), err);
    if (rc == 0 && strcmp(found, e->fsid) != 0)
        rc = err_set(err, -EXDEV,
                     "at %s another export than %s is mounted: its fsid is %s and not %s",
                     e->mount, e->name, found, e->fsid);
    return rc;
}

bool nfs_mount_has_ended(int rc)
{
    switch (-rc) {
    case ENOTCONN: /* rozomount is dead */
    case ECONNABORTED:
    case ENOENT: /* unmounted */
    case EXDEV:
    case ENODATA: /* replaced by another file system */
        return true;
    default:
        return false;
    }
}

/* ---- does it run? ---- */

static int lock_open(const char *dir, int flags)
{
    char path[PATH_MAX];
    struct err err;

    return path_join(path, &err, "%s/lock", dir) != 0 ? -1 : open(path, flags, 0644);
}

int nfs_lock(const struct nfs_gateway *g, struct err *err)
{
    int fd = lock_open(g->dir, O_RDWR | O_CREAT); /* stays open in ganesha, too */

    if (fd < 0)
        return err_wrap(err, -errno, "open %s/lock", g->dir);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(err, -EBUSY, "the gateway of %s runs already", g->dir);
    return 0;
}

bool nfs_runs(const char *dir)
{
    int fd = lock_open(dir, O_RDWR | O_CLOEXEC);
    bool runs = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;

    if (fd >= 0)
        close(fd);
    return runs;
}

/* ---- status ---- */

/* Loads the settings. Returns NULL if there is no gateway, or an error: err has it. */
static struct nfs_gateway *gateway_needed(const char *dir, struct err *err)
{
    struct nfs_gateway *g = malloc(sizeof(*g));

    if (g == NULL)
        err_wrap(err, -ENOMEM, "read the settings");
    else if (nfs_gateway_load(g, dir, err) == 0 && g->n_exports != 0)
        return g;
    free(g);
    return NULL;
}

json_t *nfs_status_json(const char *dir)
{
    struct err err = { 0 };
    struct nfs_gateway *g = gateway_needed(dir, &err);
    json_t *json;

    if (g == NULL)
        return err.text[0] == '\0'
                   ? json_null()
                   : json_pack("{s:o}", "problem", cli_json_text(err.text));
    json = settings_json(g);
    json_object_set_new(json, "running", json_boolean(nfs_runs(g->dir)));
    for (unsigned i = 0; i < g->n_exports; i++) {
        json_t *each = json_array_get(json_object_get(json, "exports"), i);

        err.text[0] = '\0';
        json_object_set_new(each, "problem",
                            nfs_export_check(&g->exports[i], &err) == 0
                                ? json_null()
                                : cli_json_text(err.text));
    }
    free(g);
    return json;
}

void nfs_status_print(const char *dir, const char *before, FILE *to)
{
    static const char *const heads[] = { "NFS", "EXPORT", "MOUNT", "CLIENTS", "PROBLEM" };
    struct err err = { 0 };
    struct nfs_gateway *g = gateway_needed(dir, &err);
    struct text_table t;

    if (g == NULL) {
        if (err.text[0] != '\0')
            fprintf(to, "%sGateway of NFS: %s\n", before, err.text);
        return;
    }
    fputs(before, to);
    text_table_init(&t, heads, 5);
    for (unsigned i = 0; i < g->n_exports; i++) {
        const struct nfs_export *e = &g->exports[i];

        err.text[0] = '\0';
        nfs_export_check(e, &err);
        text_table_cell(&t, "%s", nfs_runs(g->dir) ? "runs" : "DOWN");
        text_table_cell(&t, "%s", e->name);
        text_table_cell(&t, "%s", e->mount);
        text_table_cell(&t, "%s", e->clients[0] == '\0' ? "all" : e->clients);
        text_table_cell(&t, "%s", err.text[0] == '\0' ? "-" : err.text);
    }
    text_table_print(&t, to);
    text_table_free(&t);
    free(g);
}
