/*
 * cmd_salvage.c - `rozo salvage DIR...`: runs rozo-salvage, which can read the files of a
 * storage.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/verbs/verbs.h"

int cmd_salvage(struct cli *cli, int argc, char **argv)
{
    char program[] = "rozo-salvage";
    char **args = calloc((size_t)argc + 1, sizeof(*args));

    if (args == NULL)
        return cli_fail(cli, "%s", strerror(ENOMEM));
    memcpy(args, argv, (size_t)argc * sizeof(*args));
    args[0] = program;
    cli_exec(args);
    free(args);
    return cli_fail(cli, "cannot run rozo-salvage: %s. Install all of rozo",
                    strerror(errno));
}
