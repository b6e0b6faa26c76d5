/*
 * cmd_gateway_smb.c - `rozo gateway smb`: this machine exports a mounted file system by
 * SMB.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/cli/mounts.h"
#include "deploy/samba/smb_service.h"
#include "deploy/verbs/verbs.h"

struct smb_args {
    const char *export_name;
    const char *share;
    const char *users;
    const char *mount;
    const char *listen;
    const char *dir;
    unsigned port;
    bool shared;
    bool exclusive;
};

/* ---- the mount ---- */

/* Tells whether openings of files move no access times. */
static bool mount_has_noatime(const struct mount_entry *m)
{
    const char *at = strstr(m->options, "noatime");

    return at != NULL && (at == m->options || at[-1] == ',') &&
           (at[strlen("noatime")] == ',' || at[strlen("noatime")] == '\0');
}

static int mount_fail(const struct smb_args *args, struct err *err)
{
    if (args->mount != NULL)
        return err_set(err, -ENOENT,
                       "on %s no rozo export \"%s\" is mounted. Mount it first: rozo "
                       "mount %s %s",
                       args->mount, args->export_name, args->export_name, args->mount);
    return err_set(err, -ENOENT,
                   "the export \"%s\" is not mounted on this machine. Mount it first: "
                   "rozo mount %s /srv/%s",
                   args->export_name, args->export_name, args->export_name);
}

/*
 * Finds where the export is mounted, or checks that it is mounted on --mount. *noatime is
 * set if it has that option.
 */
static int mount_search(const struct smb_args *args, char out[PATH_MAX], bool *noatime,
                        struct err *err)
{
    char wanted[PATH_MAX] = "", *text = mountinfo_read(err);
    int rc = text == NULL ? -EIO : 0;
    struct mount_entry m;
    unsigned n = 0;

    if (rc == 0 && args->mount != NULL)
        rc = path_absolute(args->mount, wanted, err);
    if (rc == 0)
        n = mounts_count(text, args->export_name, wanted, &m);
    if (n > 0) {
        strcpy(out, m.path);
        *noatime = mount_has_noatime(&m);
    }
    if (rc == 0 && n == 0)
        rc = mount_fail(args, err);
    if (rc == 0 && n > 1)
        rc = err_set(err, -EINVAL,
                     "the export \"%s\" is mounted %u times here; choose by --mount PATH",
                     args->export_name, n);
    if (rc == 0 && !smb_path_is_good(out))
        rc = err_set(err, -EINVAL,
                     "the mount point %s cannot be named in smb.conf; choose one of "
                     "letters, digits and /-_.+ only",
                     out);
    free(text);
    return rc;
}

/* Tells whether the machine mounts this again when it boots. */
static bool mount_is_permanent(const char *mount)
{
    char unit[PATH_MAX * 4 + 8], path[PATH_MAX], line[4096], at[4096];
    FILE *file = fopen("/etc/fstab", "re");
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = line[0] != '#' && sscanf(line, "%*s %4095s", at) == 1 &&
                strcmp(at, mount) == 0;
    if (file != NULL)
        fclose(file);
    smb_mount_unit(mount, unit);
    return found || (path_join(path, NULL, "/etc/systemd/system/%s", unit) == 0 &&
                     access(path, F_OK) == 0);
}

/* ---- users ---- */

/* Checks a list of users and @groups of this machine. */
static int users_check(const char *users, struct err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.";
    char all[SMB_USERS_MAX];

    if ((size_t)snprintf(all, sizeof(all), "%s", users) >= sizeof(all))
        return err_set(err, -EINVAL,
                       "the list of users is too long; name a group: @GROUP");
    for (char *save, *word = strtok_r(all, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        const char *name = word[0] == '@' ? word + 1 : word;

        if (name[0] == '\0' || name[strspn(name, allowed)] != '\0')
            return err_set(err, -EINVAL, "'%s' cannot be the name of a user", word);
        if (word[0] == '@' ? getgrnam(name) == NULL : getpwnam(name) == NULL)
            return err_set(err, -ENOENT,
                           "this machine has no %s %s. Make it first: %s %s",
                           word[0] == '@' ? "group" : "user", name,
                           word[0] == '@' ? "addgroup" : "adduser", name);
    }
    return 0;
}

/* Prints how users who have no password of Samba get one. */
static void passwords_print(const struct smb_gateway *g, const struct smb_programs *p,
                            const char *users)
{
    char all[SMB_USERS_MAX];

    snprintf(all, sizeof(all), "%s", users);
    for (char *save, *word = strtok_r(all, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        if (word[0] != '@' && !smb_user_has_password(g, p, word))
            printf("User %s has no password of Samba. Set one: smbpasswd -c %s/smb.conf "
                   "-a %s\n",
                   word, g->dir, word);
    }
    if (all[0] == '\0')
        printf("A user needs a password of Samba: smbpasswd -c %s/smb.conf -a USER\n",
               g->dir);
}

/* ---- rozo gateway smb ---- */

/* Enters the share that the user asked for. */
static int share_set(struct smb_gateway *g, const struct smb_args *args, bool *noatime,
                     struct err *err)
{
    const char *name = args->share == NULL ? args->export_name : args->share;
    const char *users = args->users == NULL ? "" : args->users;
    struct smb_share *s = smb_share_find(g, name);
    char mount[PATH_MAX];
    int rc = mount_search(args, mount, noatime, err);

    if (rc == 0)
        rc = users_check(users, err);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < g->n_shares; i++) {
        const struct smb_share *other = &g->shares[i];

        if (other != s && strcmp(other->mount, mount) == 0 &&
            other->exclusive != args->exclusive)
            return err_set(err, -EINVAL,
                           "share %s has the same mount and is %s: shares of one mount "
                           "have one profile",
                           other->name, other->exclusive ? "--exclusive" : "--shared");
    }
    if (s == NULL) {
        if (g->n_shares == SMB_SHARES_MAX)
            return err_set(err, -ENOSPC, "a gateway has %d shares at most",
                           SMB_SHARES_MAX);
        s = &g->shares[g->n_shares++];
    }
    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(s->export_name, sizeof(s->export_name), "%s", args->export_name);
    snprintf(s->mount, sizeof(s->mount), "%s", mount);
    snprintf(s->users, sizeof(s->users), "%s", users);
    s->exclusive = args->exclusive;
    return 0;
}

static void share_print(const struct smb_gateway *g, const struct smb_programs *p,
                        const struct smb_share *s, bool noatime)
{
    pid_t pid = smb_pid(g);

    printf("Share %s: export %s on %s, %s. testparm accepts %s/smb.conf.\n", s->name,
           s->export_name, s->mount, s->exclusive ? "exclusive" : "shared", g->dir);
    passwords_print(g, p, s->users);
    if (s->exclusive && !noatime)
        printf(
            "%s is mounted without noatime: Samba will refuse a client that comes back "
            "to a file it has written, since opening the file again moves its access "
            "time. Mount it with -o noatime.\n",
            s->mount);
    if (!mount_is_permanent(s->mount))
        printf("%s is not in /etc/fstab: it will not be mounted when this machine boots, "
               "and the gateway will not start. rozo mount --help shows the line.\n",
               s->mount);
    if (smb_has_systemd(g))
        printf("%s runs.\n", SMB_UNIT);
    else if (pid != 0)
        printf("smbd (pid %d) runs with the old configuration. Let it read the new one: "
               "smbcontrol -s %s/smb.conf all reload-config\n",
               (int)pid, g->dir);
    else
        printf("%s Start it: %s --foreground --no-process-group "
               "--configfile=%s/smb.conf\n",
               strcmp(g->dir, SMB_DIR) == 0
                   ? "No systemd runs here."
                   : "The gateway of another folder has no unit.",
               p->smbd, g->dir);
}

static int smb_run(struct cli *cli, const struct smb_args *args, struct smb_gateway *g)
{
    struct smb_programs programs;
    struct err err = { 0 };
    bool noatime = false;
    int rc = smb_programs_find(&programs, &err);

    if (rc == 0)
        rc = smb_gateway_load(g, smb_dir(args->dir), &err);
    if (rc == 0)
        rc = share_set(g, args, &noatime, &err);
    if (rc == 0) {
        if (args->port != 0)
            g->port = args->port;
        if (args->listen != NULL)
            snprintf(g->listen, sizeof(g->listen), "%s", args->listen);
        if (smb_pid(g) == 0)
            rc = smb_port_check(g, &err);
    }
    if (rc == 0)
        rc = smb_apply(g, &programs, &err);
    if (rc == 0 && smb_has_systemd(g))
        rc = smb_unit_start(g, &programs, &err);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    share_print(g, &programs,
                smb_share_find(g, args->share == NULL ? args->export_name : args->share),
                noatime);
    return cli_finish(cli);
}

static void smb_args_check(struct argp_state *state, void *arg)
{
    const struct smb_args *args = arg;
    const char *share = args->share == NULL ? args->export_name : args->share;

    if (strchr(args->export_name, '/') != NULL || args->export_name[0] == '\0' ||
        strlen(args->export_name) > SMB_NAME_MAX)
        argp_error(state, "'%s' cannot be the name of an export", args->export_name);
    if (!smb_name_is_good(share))
        argp_error(state,
                   "'%s' cannot be the name of a share: letters, digits, -_. and at most "
                   "%d of them; choose one by --share",
                   share, SMB_NAME_MAX);
    if (args->shared && args->exclusive)
        argp_error(state, "--shared and --exclusive exclude each other");
    if (args->listen != NULL && !smb_listen_is_good(args->listen))
        argp_error(state, "'%s' is no list of addresses", args->listen);
}

int cmd_gateway_smb(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "share", 0, "NAME", "the name that clients see; default: that of the export",
          ARGS_TEXT(struct smb_args, share) },
        { "users", 0, "USER,@GROUP,...",
          "who may connect; default: every user with a password of Samba",
          ARGS_TEXT(struct smb_args, users) },
        { "shared", 0, NULL,
          "other gateways, mounts or programs use the export, too: locks are seen by "
          "all, "
          "clients cache nothing (the default)",
          ARGS_FLAG(struct smb_args, shared) },
        { "exclusive", 0, NULL,
          "nothing else writes to the export: oplocks, leases and durable handles, locks "
          "that only this gateway sees",
          ARGS_FLAG(struct smb_args, exclusive) },
        { "mount", 0, "PATH", "where the export is mounted, if that is not clear",
          ARGS_TEXT(struct smb_args, mount) },
        { "listen", 0, "ADDRESS,...",
          "addresses or interfaces, as of smb.conf's interfaces; default: all",
          ARGS_TEXT(struct smb_args, listen) },
        { "port", 0, "PORT", "instead of 445",
          ARGS_NUMBER(struct smb_args, port, 1, 65535) },
        { "dir", 0, "DIR", "its folder, instead of " SMB_DIR,
          ARGS_TEXT(struct smb_args, dir) },
        { NULL, 0, "EXPORT", NULL, ARGS_TEXT(struct smb_args, export_name) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Export a mounted file system by SMB, for macOS and Windows. Writes a "
            "configuration of Samba in a folder of its own, has testparm check it, and "
            "starts " SMB_UNIT " if systemd runs here. /etc/samba is neither read nor "
            "written. Run again it changes the share.",
        .check = smb_args_check
    };
    struct smb_args args = { 0 };
    struct smb_gateway *g;
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (geteuid() != 0)
        return cli_fail(cli, "only root can set up a gateway; run it with sudo");
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return cli_fail(cli, "out of memory");
    rc = smb_run(cli, &args, g);
    free(g);
    return rc;
}

/* ---- rozo gateway remove smb ---- */

/* Removes one share, or with the last one the gateway. */
static int smb_take_away(struct cli *cli, const char *dir, const char *share,
                         struct smb_gateway *g)
{
    struct smb_programs programs;
    struct err err = { 0 };
    struct smb_share *s = NULL;
    int rc = smb_gateway_load(g, smb_dir(dir), &err);

    if (rc == 0 && g->n_shares == 0)
        return cli_fail(cli, "there is no SMB gateway in %s", g->dir);
    if (rc == 0 && share != NULL) {
        s = smb_share_find(g, share);
        if (s == NULL)
            return cli_fail(cli, "the gateway has no share %s; see rozo gateway status",
                            share);
        smb_share_remove(g, s);
    }
    if (rc == 0 && (s == NULL || g->n_shares == 0)) {
        rc = smb_remove(g, &err);
        if (rc == 0)
            printf("Removed. Passwords, Samba's state and local.conf stay in %s.\n",
                   g->dir);
    } else if (rc == 0) {
        rc = smb_programs_find(&programs, &err);
        if (rc == 0)
            rc = smb_apply(g, &programs, &err);
        if (rc == 0 && smb_has_systemd(g))
            rc = smb_unit_start(g, &programs, &err);
        if (rc == 0)
            printf("Removed share %s. Clients that have it open keep it until they "
                   "disconnect.\n",
                   share);
    }
    return rc != 0 ? cli_fail(cli, "%s", err.text) : cli_finish(cli);
}

int gateway_smb_remove(struct cli *cli, const char *dir, const char *share)
{
    struct smb_gateway *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return cli_fail(cli, "out of memory");
    rc = smb_take_away(cli, dir, share, g);
    free(g);
    return rc;
}
