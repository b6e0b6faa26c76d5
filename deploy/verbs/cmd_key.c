/*
 * cmd_key.c - `rozo key new FILE`.
 */
#include <stdio.h>

#include "common/rpc/keys.h"
#include "deploy/verbs/verbs.h"

static error_t parse(int key, char *arg, struct argp_state *state)
{
    const char **path = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        if (*path != NULL || arg[0] == '\0')
            argp_error(state, "one FILE, please");
        *path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "FILE is missing: where the key is to lie");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_key_new(struct cli *cli, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "FILE",
        .doc =
            "Make a key file, readable by its owner only. A cluster has two: the node "
            "key, "
            "for daemons and administrators, and the client key, for mounts. Copy them "
            "to "
            "the machines that need them; an existing file is never replaced."
    };
    const char *path = NULL;
    struct err err = { 0 };

    cli_parse(&argp, argc, argv, &path);
    if (rpc_key_generate(path, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    printf("%s\n", path);
    return cli_finish(cli);
}
