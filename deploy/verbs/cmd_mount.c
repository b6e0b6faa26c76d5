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

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct mount_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->conn;
        return 0;
    case 'o':
        args->options = arg;
        return 0;
    case 'f':
        args->foreground = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            args->export_name = arg;
        else if (state->arg_num == 1)
            args->mount_point = arg;
        else
            argp_error(state, "EXPORT and MNT, please, and nothing after them");
        return 0;
    case ARGP_KEY_END:
        if (args->mount_point == NULL)
            argp_error(state, "%s is missing",
                       args->export_name == NULL ? "EXPORT" : "MNT, where to mount it,");
        if (args->export_name[0] == '\0' || strchr(args->export_name, '/') != NULL)
            argp_error(state, "'%s' cannot be the name of an export", args->export_name);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_mount(struct cli *cli, int argc, char **argv)
{
    static const struct argp_option options[] = {
        { "options", 'o', "OPTS", 0, "further options, as of rozomount -o", 0 },
        { "foreground", 'f', NULL, 0, "stay in the foreground", 0 },
        { 0 },
    };
    static const struct argp_child children[] = { { &target_mount_argp, 0, NULL, 0 },
                                                  { 0 } };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "EXPORT MNT",
        .doc =
            "Mount an export. Done when it is mounted and serves; `umount MNT` ends it. "
            "For "
            "/etc/fstab write:\n\n"
            "  HOST:PORT/EXPORT MNT fuse.rozomount _netdev,key=/etc/rozo/client.key 0 0",
        .children = children
    };
    struct mount_args args = { 0 };
    struct err err = { 0 };
    char source[1024], opts[PATH_MAX + 1024];
    char program[] = "rozomount", dash_o[] = "-o", dash_f[] = "-f";
    int n;

    cli_parse(&argp, argc, argv, &args);
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
