/*
 * cmd_gateway_nfs.c - `rozo gateway nfs` and `rozo gateway run`: this machine exports a
 * mounted file system by NFS.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/ganesha/nfs_gateway.h"
#include "deploy/verbs/verbs.h"

struct nfs_args {
    const char *export_name, *mount, *pseudo, *clients, *squash, *dir;
    unsigned id, port, grace; /* 0: not given */
    bool read_only, v4_only, v3;
};

/* Returns whether a text may stand between quotes in ganesha.conf. */
static bool is_quotable(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == '"' || *c == '\\' || *c == 127)
            return false;
    }
    return true;
}

static void nfs_args_check(struct argp_state *state, void *arg)
{
    struct nfs_args *args = arg;
    const char *clients = args->clients == NULL ? "" : args->clients;

    if (args->squash == NULL)
        args->squash = "root";
    if (strchr(args->export_name, '/') != NULL || args->export_name[0] == '\0' ||
        strlen(args->export_name) > 254 || !is_quotable(args->export_name))
        argp_error(state, "'%s' cannot be the name of an export", args->export_name);
    if (args->pseudo != NULL &&
        (args->pseudo[0] != '/' || args->pseudo[1] == '\0' ||
         strlen(args->pseudo) > 254 || !is_quotable(args->pseudo)))
        argp_error(state, "'%s' is no path that clients can mount, such as /clips",
                   args->pseudo);
    if (strcmp(args->squash, "root") != 0 && strcmp(args->squash, "none") != 0 &&
        strcmp(args->squash, "all") != 0)
        argp_error(state, "--squash is root, none or all");
    if (args->v4_only && args->v3)
        argp_error(state, "--v4-only and --v3 exclude each other");
    if (strlen(clients) >= NFS_CLIENTS_MAX)
        argp_error(state, "the list of clients is too long; name networks");
    for (const char *c = clients; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && strchr(".:/*?@_-,", *c) == NULL)
            argp_error(state, "'%s' is no list of addresses, networks and names",
                       clients);
    }
}

/* Refuses what would clash with another export of the gateway. */
static int export_check(const struct nfs_gateway *g, const struct nfs_export *e,
                        struct err *err)
{
    if (!is_quotable(e->mount) || !is_quotable(g->dir))
        return err_set(err, -EINVAL, "ganesha.conf cannot name %s: it has \" or \\ in it",
                       is_quotable(g->dir) ? e->mount : g->dir);
    if (e->id == 0 || e->id > NFS_EXPORT_ID_MAX)
        return err_set(err, -ERANGE,
                       "the export has the number %u: choose one of 1 to %d by --id, "
                       "the same on every gateway",
                       e->id, NFS_EXPORT_ID_MAX);
    for (unsigned i = 0; i < g->n_exports; i++) {
        const struct nfs_export *other = &g->exports[i];

        if (strcmp(other->name, e->name) == 0)
            continue;
        if (other->id == e->id)
            return err_set(err, -EEXIST,
                           "export %s has the id %u already: choose another one by --id, "
                           "the same on every gateway",
                           other->name, e->id);
        if (strcmp(other->pseudo, e->pseudo) == 0)
            return err_set(err, -EEXIST, "clients mount export %s by the path %s already",
                           other->name, e->pseudo);
    }
    return 0;
}

/* Enters the export that the user asked for. */
static int export_set(struct nfs_gateway *g, const struct nfs_args *args, struct err *err)
{
    struct nfs_export *e = calloc(1, sizeof(*e));
    struct nfs_export *old = nfs_export_find(g, args->export_name);
    int rc = e == NULL ? err_wrap(err, -ENOMEM, "set up the gateway") : 0;

    if (rc == 0) {
        snprintf(e->name, sizeof(e->name), "%s", args->export_name);
        snprintf(e->mount, sizeof(e->mount), "%s",
                 args->mount == NULL ? "" : args->mount);
        rc = nfs_export_locate(e, args->export_name, err);
    }
    if (rc == 0) {
        if (args->id != 0)
            e->id = args->id;
        if (args->pseudo != NULL)
            snprintf(e->pseudo, sizeof(e->pseudo), "%s", args->pseudo);
        else
            snprintf(e->pseudo, sizeof(e->pseudo), "/%.254s", args->export_name);
        snprintf(e->clients, sizeof(e->clients), "%s",
                 args->clients == NULL ? "" : args->clients);
        snprintf(e->squash, sizeof(e->squash), "%s", args->squash);
        e->read_only = args->read_only;
        rc = export_check(g, e, err);
    }
    if (rc == 0 && old == NULL && g->n_exports == NFS_EXPORTS_MAX)
        rc = err_set(err, -ENOSPC, "a gateway has %d exports at most", NFS_EXPORTS_MAX);
    if (rc == 0)
        *(old != NULL ? old : &g->exports[g->n_exports++]) = *e;
    free(e);
    return rc;
}

static void export_print(const struct nfs_gateway *g, const struct nfs_export *e)
{
    printf("Export %s on %s: clients mount HOST:%s\n", e->name, e->mount, e->pseudo);
    if (nfs_has_unit(g))
        printf("%s runs.\n", NFS_UNIT);
    else if (nfs_runs(g->dir))
        printf("It runs with its old settings: end it and start it again.\n");
    else
        printf("%s Start it: rozo gateway run nfs --dir %s\n",
               strcmp(g->dir, NFS_DIR) == 0
                   ? "No systemd runs here."
                   : "The gateway of another folder has no unit.",
               g->dir);
}

static int nfs_set_up(struct cli *cli, const struct nfs_args *args, struct nfs_gateway *g)
{
    struct err err = { 0 };
    int rc = nfs_gateway_load(g, nfs_dir(args->dir), &err);

    if (rc == 0)
        rc = nfs_program_check(&err);
    if (rc == 0)
        rc = nfs_folder_check(g, &err);
    if (rc == 0)
        rc = export_set(g, args, &err);
    if (rc == 0) {
        g->port = args->port != 0 ? args->port : g->port;
        g->grace_s = args->grace != 0 ? args->grace : g->grace_s;
        g->v4_only = args->v4_only || (g->v4_only && !args->v3);
        rc = nfs_apply(g, &err);
    }
    if (rc == 0 && nfs_has_unit(g))
        rc = nfs_unit_start(g, &err);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    export_print(g, nfs_export_find(g, args->export_name));
    return cli_finish(cli);
}

int cmd_gateway_nfs(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "mount", 0, "PATH", "where the export is mounted, if that is not clear",
          ARGS_TEXT(struct nfs_args, mount) },
        { "pseudo", 0, "/PATH", "the path that clients mount; default: /EXPORT",
          ARGS_TEXT(struct nfs_args, pseudo) },
        { "clients", 0, "ADDRESS,NETWORK,...", "who may mount it; default: everybody",
          ARGS_TEXT(struct nfs_args, clients) },
        { "squash", 0, "root|none|all",
          "users who become nobody: root (the default), none, or all",
          ARGS_TEXT(struct nfs_args, squash) },
        { "read-only", 0, NULL, "no client may write",
          ARGS_FLAG(struct nfs_args, read_only) },
        { "id", 0, "N",
          "the export's number in file handles, the same on every gateway; default: that "
          "of `rozo export list`",
          ARGS_NUMBER(struct nfs_args, id, 1, NFS_EXPORT_ID_MAX) },
        { "port", 0, "PORT", "instead of 2049",
          ARGS_NUMBER(struct nfs_args, port, 1, 65535) },
        { "grace", 0, "S",
          "seconds after a start in which clients claim their locks (default 30)",
          ARGS_NUMBER(struct nfs_args, grace, 3, 180) },
        { "v4-only", 0, NULL, "no NFS v3: rpcbind is not needed",
          ARGS_FLAG(struct nfs_args, v4_only) },
        { "v3", 0, NULL, "v3 as well (the default)", ARGS_FLAG(struct nfs_args, v3) },
        { "dir", 0, "DIR", "its folder, instead of " NFS_DIR,
          ARGS_TEXT(struct nfs_args, dir) },
        { NULL, 0, "EXPORT", NULL, ARGS_TEXT(struct nfs_args, export_name) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Export a mounted file system by NFS v3 and v4. Writes a configuration of "
            "ganesha.nfsd (package nfs-ganesha-vfs) in a folder of its own, and "
            "starts " NFS_UNIT " if systemd runs here. /etc/ganesha is neither read nor "
            "written. A file has the same handle on every gateway. Run again it changes "
            "the export, and those settings of the gateway that are given: --port, "
            "--grace, --v4-only, --v3.",
        .check = nfs_args_check,
    };
    struct nfs_args args = { 0 };
    struct nfs_gateway *g;
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (geteuid() != 0)
        return cli_fail(cli, "only root can set up a gateway; run it with sudo");
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return cli_fail(cli, "out of memory");
    rc = nfs_set_up(cli, &args, g);
    free(g);
    return rc;
}

/* ---- rozo gateway remove nfs ---- */

/* Removes one export, or with the last one the gateway. */
static int nfs_take_away(struct cli *cli, const char *dir, const char *export_name,
                         struct nfs_gateway *g)
{
    struct err err = { 0 };
    struct nfs_export *e = NULL;
    int rc = nfs_gateway_load(g, nfs_dir(dir), &err);

    if (rc == 0 && g->n_exports == 0)
        return cli_fail(cli, "there is no gateway of NFS in %s", g->dir);
    if (rc == 0 && export_name != NULL) {
        e = nfs_export_find(g, export_name);
        if (e == NULL)
            return cli_fail(cli, "the gateway has no export %s; see rozo gateway status",
                            export_name);
    }
    if (rc == 0 && (e == NULL || g->n_exports == 1)) {
        rc = nfs_remove(g, &err);
        if (rc == 0)
            printf("Removed. local.conf and what ganesha remembers stay in %s.\n",
                   g->dir);
    } else if (rc == 0) {
        *e = g->exports[--g->n_exports];
        rc = nfs_apply(g, &err);
        if (rc == 0 && nfs_has_unit(g))
            rc = nfs_unit_start(g, &err);
        if (rc == 0)
            printf("Removed export %s.%s\n", export_name,
                   nfs_has_unit(g) || !nfs_runs(g->dir)
                       ? ""
                       : " The gateway serves it until it is started again.");
    }
    return rc != 0 ? cli_fail(cli, "%s", err.text) : cli_finish(cli);
}

int gateway_nfs_remove(struct cli *cli, const char *dir, const char *export_name)
{
    struct nfs_gateway *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return cli_fail(cli, "out of memory");
    rc = nfs_take_away(cli, dir, export_name, g);
    free(g);
    return rc;
}

/* ---- rozo gateway run ---- */

struct run_args {
    const char *kind, *dir;
};

static void run_args_check(struct argp_state *state, void *arg)
{
    const struct run_args *args = arg;

    if (strcmp(args->kind, "nfs") != 0)
        argp_error(state, "there is no gateway '%s' to run; say nfs", args->kind);
}

int cmd_gateway_run(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "dir", 0, "DIR", "its folder, instead of " NFS_DIR,
          ARGS_TEXT(struct run_args, dir) },
        { NULL, 0, "KIND", "the kind of gateway: nfs", ARGS_TEXT(struct run_args, kind) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Run the server of a gateway that is set up, in the foreground, as " NFS_UNIT
            " does. Fails unless each of its exports is mounted where it was, and ends "
            "when one is not any more or its rozomount has died: clients wait then until "
            "the gateway runs again.",
        .check = run_args_check,
    };
    static struct nfs_gateway g; /* a thread of nfs_run() may look at it until the end */
    struct run_args args = { 0 };
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = nfs_gateway_load(&g, nfs_dir(args.dir), &err);
    if (rc == 0 && g.n_exports == 0)
        return cli_fail(cli, "no gateway is set up in %s: rozo gateway nfs EXPORT",
                        g.dir);
    if (rc == 0)
        rc = nfs_run(&g, &err);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : CLI_DONE;
}
