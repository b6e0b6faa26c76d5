/*
 * cmd_gateway.c - `rozo gateway status` and `rozo gateway remove`, for all kinds.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "deploy/cli/fsutil.h"
#include "deploy/ganesha/nfs_gateway.h"
#include "deploy/samba/smb_service.h"
#include "deploy/verbs/verbs.h"

struct gateway_args {
    const char *kind, *share, *export_name, *dir;
    bool json;
};

#define OPTION_DIR                                                                     \
    {                                                                                  \
        "dir", 0, "DIR", "the folder of the gateway, instead of " SMB_DIR "," NFS_DIR, \
            ARGS_TEXT(struct gateway_args, dir)                                        \
    }

/* Returns whether to look for a gateway of one kind: in a folder that the user named not
 * if its settings have the list of the other kind. */
static bool may_be_of_kind(const struct gateway_args *args, const char *other_list)
{
    char path[PATH_MAX];
    json_t *json;
    bool is_other;

    if (args->dir == NULL)
        return true;
    if (path_join(path, NULL, "%s/gateway.json", args->dir) != 0 ||
        access(path, F_OK) != 0)
        return false;
    json = json_load_file(path, 0, NULL);
    is_other = json_object_get(json, other_list) != NULL;
    json_decref(json);
    return !is_other;
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
    json_t *smb, *nfs;

    args_parse(&syntax, argc, argv, &args);
    smb = may_be_of_kind(&args, "exports") ? smb_status_json(smb_dir(args.dir))
                                           : json_null();
    nfs = may_be_of_kind(&args, "shares") ? nfs_status_json(nfs_dir(args.dir))
                                          : json_null();
    if (args.json)
        return cli_print_json(cli, json_pack("{s:o, s:o}", "smb", smb, "nfs", nfs));
    if (json_is_null(smb) && json_is_null(nfs))
        printf(
            "This machine has no gateway. Set one up: rozo gateway smb EXPORT, or rozo "
            "gateway nfs EXPORT\n");
    if (!json_is_null(smb))
        smb_status_print(smb_dir(args.dir), "", stdout);
    if (!json_is_null(nfs))
        nfs_status_print(nfs_dir(args.dir), json_is_null(smb) ? "" : "\n", stdout);
    json_decref(smb);
    json_decref(nfs);
    return cli_finish(cli);
}

static void remove_args_check(struct argp_state *state, void *arg)
{
    const struct gateway_args *args = arg;
    bool is_smb = strcmp(args->kind, "smb") == 0;

    if (!is_smb && strcmp(args->kind, "nfs") != 0)
        argp_error(state, "there is no kind of gateway '%s'; say smb or nfs", args->kind);
    if (is_smb ? args->export_name != NULL : args->share != NULL)
        argp_error(state, is_smb ? "a gateway of SMB has shares: --share NAME"
                                 : "a gateway of NFS has exports: --export NAME");
}

int cmd_gateway_remove(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "share", 0, "NAME", "smb: only this share",
          ARGS_TEXT(struct gateway_args, share) },
        { "export", 0, "NAME", "nfs: only this export",
          ARGS_TEXT(struct gateway_args, export_name) },
        OPTION_DIR,
        { NULL, 0, "KIND", "the kind of gateway: smb or nfs",
          ARGS_TEXT(struct gateway_args, kind) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Stop a gateway and remove its configuration and unit, or one share or "
               "export. Files, the mount and passwords stay.",
        .check = remove_args_check
    };
    struct gateway_args args = { 0 };

    args_parse(&syntax, argc, argv, &args);
    if (geteuid() != 0)
        return cli_fail(cli, "only root can remove a gateway; run it with sudo");
    return strcmp(args.kind, "smb") == 0
               ? gateway_smb_remove(cli, args.dir, args.share)
               : gateway_nfs_remove(cli, args.dir, args.export_name);
}
