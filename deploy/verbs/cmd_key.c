/*
 * cmd_key.c - `rozo key new FILE`.
 */
#include <stdio.h>

#include "common/rpc/keys.h"
#include "deploy/verbs/verbs.h"

struct key_args {
    const char *path;
};

int cmd_key_new(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { NULL, 0, "FILE", "where the key is to lie", ARGS_TEXT(struct key_args, path) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Make a key file, readable by its owner only. A cluster has two: the node "
            "key, "
            "for daemons and administrators, and the client key, for mounts. Copy them "
            "to "
            "the machines that need them; an existing file is never replaced."
    };
    struct key_args args = { 0 };
    struct err err = { 0 };

    args_parse(&syntax, argc, argv, &args);
    if (rpc_key_generate(args.path, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    printf("%s\n", args.path);
    return cli_finish(cli);
}
