/*
 * smb_config.c - an SMB gateway: its shares as JSON, and the texts that are made of them.
 *
 * In:     gateway.json, which a user may have damaged.
 * Out:    smb.conf and the unit, from the templates of this folder.
 * Keeps:  a folder that holds anything that is not ours is never written to.
 */
#include "deploy/samba/smb_config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "smb_templates.h"

enum { CONF_TEXT_MAX = 1 << 20, MARK_MAX = 64 };

/* ---- what is allowed ---- */

static bool letters_are(const char *text, const char *others)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && strchr(others, *p) == NULL)
            return false;
    }
    return true;
}

bool smb_name_is_good(const char *name)
{
    static const char *const taken[] = { "global", "homes", "printers",
                                         "print$", "ipc$",  "admin$" };
    size_t len = strlen(name);

    for (unsigned i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        if (strcasecmp(name, taken[i]) == 0)
            return false;
    }
    return len > 0 && len <= SMB_NAME_MAX && isalnum((unsigned char)name[0]) &&
           letters_are(name, "-_.$");
}

bool smb_path_is_good(const char *path)
{
    return path[0] == '/' && path[1] != '\0' && strlen(path) < PATH_MAX &&
           letters_are(path, "/-_.+,=@:");
}

bool smb_listen_is_good(const char *text)
{
    return strlen(text) < SMB_LISTEN_MAX && letters_are(text, ".:,/-_") &&
           (text[0] == '\0' || isxdigit((unsigned char)text[0]) ||
            isalpha((unsigned char)text[0]) || text[0] == ':');
}

/* ---- gateway.json ---- */

json_t *smb_gateway_json(const struct smb_gateway *g)
{
    json_t *shares = json_array();

    for (unsigned i = 0; i < g->n_shares; i++) {
        const struct smb_share *s = &g->shares[i];

        json_array_append_new(
            shares, json_pack("{s:s, s:s, s:s, s:s, s:s}", "share", s->name, "export",
                              s->export_name, "mount", s->mount, "users", s->users,
                              "profile", s->exclusive ? "exclusive" : "shared"));
    }
    return json_pack("{s:s, s:i, s:s, s:o}", "dir", g->dir, "port", (int)g->port,
                     "listen", g->listen, "shares", shares);
}

static bool text_copy(char *out, size_t size, const char *text)
{
    return (size_t)snprintf(out, size, "%s", text) < size;
}

static bool share_read(struct smb_share *s, json_t *json)
{
    const char *name, *export_name, *mount, *users, *profile;

    if (json_unpack(json, "{s:s, s:s, s:s, s:s, s:s}", "share", &name, "export",
                    &export_name, "mount", &mount, "users", &users, "profile",
                    &profile) != 0)
        return false;
    s->exclusive = strcmp(profile, "exclusive") == 0;
    return text_copy(s->name, sizeof(s->name), name) && smb_name_is_good(name) &&
           text_copy(s->export_name, sizeof(s->export_name), export_name) &&
           text_copy(s->mount, sizeof(s->mount), mount) && smb_path_is_good(mount) &&
           text_copy(s->users, sizeof(s->users), users);
}

static bool gateway_read(struct smb_gateway *g, json_t *json)
{
    const char *listen;
    json_t *shares;
    int port;

    if (json_unpack(json, "{s:i, s:s, s:o}", "port", &port, "listen", &listen, "shares",
                    &shares) != 0 ||
        port < 1 || port > 65535 || json_array_size(shares) > SMB_SHARES_MAX ||
        !smb_listen_is_good(listen) || !text_copy(g->listen, sizeof(g->listen), listen))
        return false;
    g->port = (unsigned)port;
    for (size_t i = 0; i < json_array_size(shares); i++) {
        if (!share_read(&g->shares[i], json_array_get(shares, i)))
            return false;
        g->n_shares++;
    }
    return true;
}

bool smb_conf_is_ours(const char *text)
{
    size_t len = strcspn(TEMPLATE_GLOBAL_CONF, ",");

    assert(len < MARK_MAX);
    return strncmp(text, TEMPLATE_GLOBAL_CONF, len) == 0;
}

/* Returns -EEXIST for a folder in which an smb.conf, or anything else, is not ours. */
static int folder_is_ours(const char *dir, struct err *err)
{
    char path[PATH_MAX], mark[MARK_MAX] = "", *text;
    ssize_t len;
    int rc = path_join(path, err, "%s/smb.conf", dir);

    if (rc != 0)
        return rc;
    text = malloc(CONF_TEXT_MAX);
    if (text == NULL)
        return err_wrap(err, -ENOMEM, "read %s", path);
    len = file_read_text(path, text, CONF_TEXT_MAX, err);
    if (len >= 0)
        snprintf(mark, sizeof(mark), "%s", text);
    free(text);
    if (len >= 0 && !smb_conf_is_ours(mark))
        return err_set(err, -EEXIST,
                       "%s was not written by rozo gateway, so it stays as it is. Name "
                       "an empty folder by --dir",
                       path);
    if (len != -ENOENT)
        return len < 0 ? (int)len : 0;
    rc = path_join(path, err, "%s/gateway.json", dir);
    if (rc != 0 || access(path, F_OK) == 0)
        return rc;
    /* A gateway that was removed leaves its state. */
    rc = path_join(path, err, "%s/local.conf", dir);
    if (rc != 0 || access(path, F_OK) == 0)
        return rc;
    rc = folder_is_empty(dir, err);
    return rc < 0    ? rc
           : rc == 1 ? 0
                     : err_set(err, -EEXIST,
                               "%s is not empty and holds no SMB gateway. Name an empty "
                               "folder by --dir",
                               dir);
}

int smb_gateway_load(struct smb_gateway *g, const char *dir, struct err *err)
{
    char path[PATH_MAX];
    json_error_t wrong;
    json_t *json;
    int rc;

    memset(g, 0, sizeof(*g));
    g->port = SMB_PORT;
    rc = path_absolute(dir, g->dir, err);
    if (rc == 0 && !smb_path_is_good(g->dir))
        rc = err_set(err, -EINVAL,
                     "the folder %s cannot be named in smb.conf; choose one of letters, "
                     "digits and /-_.+ only",
                     g->dir);
    if (rc == 0)
        rc = folder_is_ours(g->dir, err);
    if (rc == 0)
        rc = path_join(path, err, "%s/gateway.json", g->dir);
    if (rc != 0 || access(path, F_OK) != 0)
        return rc;
    json = json_load_file(path, 0, &wrong);
    if (json == NULL)
        return err_set(err, -EINVAL, "%s is damaged (line %d: %s)", path, wrong.line,
                       wrong.text);
    if (!gateway_read(g, json))
        rc = err_set(err, -EINVAL,
                     "%s is damaged. Remove it, and make its shares again by rozo "
                     "gateway smb",
                     path);
    json_decref(json);
    return rc;
}

int smb_gateway_store(const struct smb_gateway *g, struct err *err)
{
    json_t *json = smb_gateway_json(g);
    char path[PATH_MAX];
    char *text = json == NULL ? NULL : json_dumps(json, JSON_INDENT(2));
    int rc = path_join(path, err, "%s/gateway.json", g->dir);

    if (rc == 0 && text == NULL)
        rc = err_wrap(err, -ENOMEM, "write %s", path);
    if (rc == 0)
        rc = file_replace(path, 0644, text, strlen(text), err);
    free(text);
    json_decref(json);
    return rc;
}

struct smb_share *smb_share_find(struct smb_gateway *g, const char *name)
{
    for (unsigned i = 0; i < g->n_shares; i++) {
        if (strcasecmp(g->shares[i].name, name) == 0)
            return &g->shares[i];
    }
    return NULL;
}

void smb_share_remove(struct smb_gateway *g, struct smb_share *share)
{
    assert(share >= g->shares && share < g->shares + g->n_shares);
    g->n_shares--;
    memmove(share, share + 1,
            (size_t)(g->shares + g->n_shares - share) * sizeof(g->shares[0]));
}

/* ---- texts ---- */

struct word {
    const char *mark; /* "@DIR@" */
    const char *text;
};

/* Writes a template with its marks replaced. A line that becomes empty so is left out. */
static void template_write(FILE *to, const char *template, const struct word *words)
{
    for (const char *p = template; *p != '\0';) {
        const struct word *w = words;

        while (w->mark != NULL && strncmp(p, w->mark, strlen(w->mark)) != 0)
            w++;
        if (w->mark == NULL) {
            fputc(*p++, to);
            continue;
        }
        fputs(w->text, to);
        p += strlen(w->mark);
        if (w->text[0] == '\0' && *p == '\n')
            p++;
    }
}

/* Closes a stream of open_memstream(). Returns its text, never NULL. */
static char *text_end(FILE *stream, char **text)
{
    if (stream == NULL || fclose(stream) != 0)
        abort();
    return *text;
}

/* Writes a list with commas as smb.conf wants lists. */
static void list_line(char *out, size_t size, const char *key, const char *list,
                      const char *more)
{
    int len = snprintf(out, size, "    %s = ", key);

    assert(len > 0 && (size_t)len + strlen(list) + strlen(more) < size);
    for (const char *p = list; *p != '\0'; p++)
        out[len++] = *p == ',' ? ' ' : *p;
    snprintf(out + len, size - (size_t)len, "%s", more);
}

char *smb_conf_text(const struct smb_gateway *g, const char *findmnt)
{
    char *text = NULL, port[16], line[SMB_USERS_MAX + 64] = "";
    FILE *to = open_memstream(&text, &(size_t){ 0 });

    if (to == NULL)
        abort();
    snprintf(port, sizeof(port), "%u", g->port);
    if (g->listen[0] != '\0')
        list_line(line, sizeof(line), "interfaces", g->listen,
                  "\n    bind interfaces only = yes");
    template_write(to, TEMPLATE_GLOBAL_CONF,
                   (struct word[]){ { "@DIR@", g->dir },
                                    { "@PORT@", port },
                                    { "@LISTEN@", line },
                                    { NULL, NULL } });
    for (unsigned i = 0; i < g->n_shares; i++) {
        const struct smb_share *s = &g->shares[i];

        line[0] = '\0';
        if (s->users[0] != '\0')
            list_line(line, sizeof(line), "valid users", s->users, "");
        template_write(to, TEMPLATE_SHARE_CONF,
                       (struct word[]){ { "@SHARE@", s->name },
                                        { "@EXPORT@", s->export_name },
                                        { "@MOUNT@", s->mount },
                                        { "@USERS@", line },
                                        { "@FINDMNT@", findmnt },
                                        { NULL, NULL } });
        fputs(s->exclusive ? TEMPLATE_EXCLUSIVE_CONF : TEMPLATE_SHARED_CONF, to);
    }
    fprintf(to, "\ninclude = %s/local.conf\n", g->dir);
    return text_end(to, &text);
}

const char *smb_local_text(void)
{
    return TEMPLATE_LOCAL_CONF;
}

void smb_mount_unit(const char *path, char out[PATH_MAX * 4 + 8])
{
    size_t len = 0;

    while (*path == '/')
        path++;
    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '/')
            out[len++] = '-';
        else if (isalnum((unsigned char)*p) || *p == ':' || *p == '_' ||
                 (*p == '.' && p > path))
            out[len++] = *p;
        else
            len += (size_t)sprintf(out + len, "\\x%02x", (unsigned char)*p);
    }
    strcpy(out + len, ".mount");
}

char *smb_unit_text(const struct smb_gateway *g, const char *smbd)
{
    char *text = NULL, *mounts = NULL, name[PATH_MAX * 4 + 8];
    FILE *list = open_memstream(&mounts, &(size_t){ 0 });
    FILE *to = open_memstream(&text, &(size_t){ 0 });

    if (to == NULL || list == NULL)
        abort();
    for (unsigned i = 0; i < g->n_shares; i++) {
        const char *mount = g->shares[i].mount;

        smb_mount_unit(mount, name);
        fprintf(list, "%sBindsTo=%s\nAfter=%s\nAssertPathIsMountPoint=%s",
                i == 0 ? "" : "\n", name, name, mount);
    }
    text_end(list, &mounts);
    template_write(to, TEMPLATE_ROZO_SMB_SERVICE,
                   (struct word[]){ { "@DIR@", g->dir },
                                    { "@SMBD@", smbd },
                                    { "@MOUNTS@", mounts },
                                    { NULL, NULL } });
    free(mounts);
    return text_end(to, &text);
}
