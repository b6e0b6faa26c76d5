/*
 * cmd_mount.c - `rozo mount EXPORT MNT`: runs rozomount with the address and key of the
 * cluster; `rozo mount --upgrade MNT`: replaces it.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>

#include "deploy/client/target_options.h"
#include "deploy/verbs/verbs.h"

enum { UPGRADE_LOOKS_MAX = 150 }; /* each waits for the mount's answer, or 20 ms */

struct mount_args {
    struct target_options conn;
    const char *export_name;
    const char *mount_point;
    const char *options;
    bool foreground, upgrade;
};

static void check(struct argp_state *state, void *arg)
{
    struct mount_args *args = arg;

    if (args->upgrade && args->mount_point != NULL)
        argp_error(state, "--upgrade wants the mount point alone");
    if (args->upgrade)
        return;
    if (args->mount_point == NULL)
        argp_error(state, "where to mount it");
    if (strchr(args->export_name, '/') != NULL)
        argp_error(state, "'%s' cannot be the name of an export", args->export_name);
}

/* ---- upgrade ---- */

/* Reads the numbers of the processes of a mount; holder 0: none. */
static int processes_of(const char *mnt, int *server, int *holder)
{
    char text[64];
    ssize_t len = getxattr(mnt, "rozo.process", text, sizeof(text) - 1);

    if (len < 0)
        return -errno;
    text[len] = '\0';
    return sscanf(text, "%d %d", server, holder) == 2 ? 0 : -EBADMSG;
}

/* Waits until another process serves the mount. Returns it; 0: the old one goes on. */
static int wait_for_next(const char *mnt, int before)
{
    const struct timespec pause = { .tv_nsec = 20 * 1000000L };
    int server = before, holder = 0;

    for (unsigned i = 0; i < UPGRADE_LOOKS_MAX && server == before; i++) {
        nanosleep(&pause, NULL);
        if (processes_of(mnt, &server, &holder) != 0)
            server = before;
    }
    return server == before ? 0 : server;
}

static int mount_upgrade(struct cli *cli, const char *mnt)
{
    int server = 0, holder = 0, next;
    int rc = processes_of(mnt, &server, &holder);

    if (rc != 0)
        return cli_fail(cli, "%s is no rozo mount that can say who serves it: %s", mnt,
                        strerror(-rc));
    if (holder == 0)
        return cli_fail(cli,
                        "%s was mounted without -o hold: its process cannot be replaced. "
                        "Unmount it, and mount it again",
                        mnt);
    if (kill(holder, SIGUSR2) != 0)
        return cli_fail(cli, "signal process %d, which holds %s: %s", holder, mnt,
                        strerror(errno));
    next = wait_for_next(mnt, server);
    if (next == 0)
        return cli_fail(
            cli,
            "process %d still serves %s: its log says why (data that cannot be "
            "stored, mostly)",
            server, mnt);
    printf("%s: process %d has taken over from %d\n", mnt, next, server);
    return cli_finish(cli);
}

int cmd_mount(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "options", 'o', "OPTS", "further options, as of rozomount -o",
          ARGS_TEXT(struct mount_args, options) },
        { "foreground", 'f', NULL, "stay in the foreground",
          ARGS_FLAG(struct mount_args, foreground) },
        { "upgrade", 'u', NULL,
          "replace the process of the mount MNT, which has the option hold, by the "
          "program that is installed now",
          ARGS_FLAG(struct mount_args, upgrade) },
        { NULL, 0, "EXPORT", NULL, ARGS_TEXT(struct mount_args, export_name) },
        { NULL, 0, "MNT", NULL, ARGS_TEXT(struct mount_args, mount_point),
          .optional = true },
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
    if (args.upgrade)
        return mount_upgrade(cli, args.export_name);
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
