/*
 * cmd_gateway.c - `rozo gateway status` and `rozo gateway remove`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/ganesha/nfs_gateway.h"
#include "deploy/verbs/verbs.h"

struct gateway_args {
    const char *kind, *export_name, *dir;
    bool json;
};

#define OPTION_DIR                                          \
    {                                                       \
        "dir", 0, "DIR", "its folder, instead of " NFS_DIR, \
            ARGS_TEXT(struct gateway_args, dir)             \
    }

int cmd_gateway_status(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "json", 'j', NULL, "print JSON", ARGS_FLAG(struct gateway_args, json) },
        OPTION_DIR,
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Show the gateways of this machine: whether they run, and what they export."
    };
    struct gateway_args args = { 0 };
    json_t *json;

    args_parse(&syntax, argc, argv, &args);
    json = nfs_status_json(nfs_dir(args.dir));
    if (args.json)
        return cli_print_json(cli, json_pack("{s:o}", "nfs", json));
    if (json_is_null(json))
        printf("This machine has no gateway. Set one up: rozo gateway nfs EXPORT\n");
    else
        nfs_status_print(nfs_dir(args.dir), "", stdout);
    json_decref(json);
    return cli_finish(cli);
}

/* Removes one export, or with the last one the gateway. */
static int nfs_take_away(struct cli *cli, const struct gateway_args *args,
                         struct nfs_gateway *g)
{
    struct err err = { 0 };
    struct nfs_export *e = NULL;
    int rc = nfs_gateway_load(g, nfs_dir(args->dir), &err);

    if (rc == 0 && g->n_exports == 0)
        return cli_fail(cli, "there is no gateway of NFS in %s", g->dir);
    if (rc == 0 && args->export_name != NULL) {
        e = nfs_export_find(g, args->export_name);
        if (e == NULL)
            return cli_fail(cli, "the gateway has no export %s; see rozo gateway status",
                            args->export_name);
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
            printf("Removed export %s.%s\n", args->export_name,
                   nfs_has_unit(g) || !nfs_runs(g->dir)
                       ? ""
                       : " The gateway serves it until it is started again.");
    }
    return rc != 0 ? cli_fail(cli, "%s", err.text) : cli_finish(cli);
}

static void remove_args_check(struct argp_state *state, void *arg)
{
    const struct gateway_args *args = arg;

    if (strcmp(args->kind, "nfs") != 0)
        argp_error(state, "there is no kind of gateway '%s'; say nfs", args->kind);
}

int cmd_gateway_remove(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "export", 0, "NAME", "only this export",
          ARGS_TEXT(struct gateway_args, export_name) },
        OPTION_DIR,
        { NULL, 0, "KIND", "the kind of gateway: nfs",
          ARGS_TEXT(struct gateway_args, kind) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Stop a gateway and remove its configuration and unit, or one export. Files "
            "and the mount stay.",
        .check = remove_args_check
    };
    struct gateway_args args = { 0 };
    struct nfs_gateway *g;
    int rc;

    args_parse(&syntax, argc, argv, &args);
    if (geteuid() != 0)
        return cli_fail(cli, "only root can remove a gateway; run it with sudo");
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return cli_fail(cli, "out of memory");
    rc = nfs_take_away(cli, &args, g);
    free(g);
    return rc;
}
