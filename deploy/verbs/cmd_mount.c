/*
 * cmd_mount.c - `rozo mount EXPORT MNT`: runs rozomount with the address and key of the
 * cluster.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/client/target_options.h"
#include "deploy/verbs/verbs.h"

struct mount_args {
    struct target_options conn;
    const char *export_name;
    const char *mount_point;
    const char *options;
    bool foreground;
};

static void check(struct argp_state *state, void *arg)
{
    const struct mount_args *args = arg;

    if (strchr(args->export_name, '/') != NULL)
        argp_error(state, "'%s' cannot be the name of an export", args->export_name);
}

int cmd_mount(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "options", 'o', "OPTS", "further options, as of rozomount -o",
          ARGS_TEXT(struct mount_args, options) },
        { "foreground", 'f', NULL, "stay in the foreground",
          ARGS_FLAG(struct mount_args, foreground) },
        { NULL, 0, "EXPORT", NULL, ARGS_TEXT(struct mount_args, export_name) },
        { NULL, 0, "MNT", "where to mount it",
          ARGS_TEXT(struct mount_args, mount_point) },
        { 0 },
    };
    static const struct argp_child children[] = { { &target_mount_argp, 0, NULL, 0 },
                                                  { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Mount an export. Done when it is mounted and serves; `umount MNT` ends it. "
            "For "
            "/etc/fstab write:\n\n"
            "  HOST:PORT/EXPORT MNT fuse.rozomount _netdev,key=/etc/rozo/client.key 0 0",
        .children = children,
        .check = check
    };
    struct mount_args args = { 0 };
    struct err err = { 0 };
    char source[1024], opts[PATH_MAX + 1024];
    char program[] = "rozomount", dash_o[] = "-o", dash_f[] = "-f";
    int n;

    args_parse(&syntax, argc, argv, &args);
    if (target_resolve(&args.conn, true, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    n = snprintf(source, sizeof(source), "%s/%s", args.conn.exportd, args.export_name);
    if (n < 0 || (size_t)n >= sizeof(source))
        return cli_usage(cli, "the name of the export is too long");
    n = snprintf(opts, sizeof(opts), "key=%s%s%s", args.conn.client_key,
                 args.options == NULL ? "" : ",",
                 args.options == NULL ? "" : args.options);
    if (n < 0 || (size_t)n >= sizeof(opts))
        return cli_usage(cli, "the options are too long");
    cli_exec((char *[]){ program, source, (char *)args.mount_point, dash_o, opts,
                         args.foreground ? dash_f : NULL, NULL });
    return cli_fail(cli, "cannot run rozomount: %s. Install all of rozo",
                    strerror(errno));
}
