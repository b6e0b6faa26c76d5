/*
 * cmd_replace.c - `rozo storage replace`, `rozo storage lost`: handle a lost storage or
 * disk.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "deploy/client/exportd_client.h"
#include "deploy/verbs/verbs.h"

struct replace_args {
    struct target_options conn;
    bool json, no;
    unsigned id;
    struct cli_addresses addresses;
};

#define OPTION_ID                                                          \
    {                                                                      \
        NULL, 0, "ID", "the number of the storage, see rozo storage list", \
            ARGS_NUMBER(struct replace_args, id, 1, UINT32_MAX)            \
    }
#define OPTION_JSON                                                           \
    {                                                                         \
        "json", 'j', NULL, "print JSON", ARGS_FLAG(struct replace_args, json) \
    }

static int print(struct cli *cli, const struct replace_args *args, const char *outcome,
                 bool lost)
{
    if (args->json)
        return cli_print_json(
            cli, json_pack("{s:I, s:b}", "id", (json_int_t)args->id, "lost", (int)lost));
    printf("storage %u %s\n", args->id, outcome);
    return cli_finish(cli);
}

int cmd_storage_replace(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_JSON,
        OPTION_ID,
        { NULL, 0, "[HOST:PORT[,HOST:PORT...]]", NULL,
          ARGS_CALL(struct replace_args, addresses, cli_addresses_arg),
          .optional = true },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Let a storage with a new and empty data directory take the place of "
               "storage ID, which is gone or has lost its disk. It keeps the number; all "
               "that should lie there is rebuilt from the others (`rozo rebuild status "
               "--watch`). Without addresses it is looked for where the old one was. A "
               "storage that is up is not replaced: stop it first. Repeating it is "
               "harmless.",
        .children = target_children
    };
    struct replace_args args = { 0 };
    Rozo__AdStorageReplaceReq question = ROZO__AD_STORAGE_REPLACE_REQ__INIT;
    Rozo__AdStorageReplaceResp *answer = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    question.id = args.id;
    question.addresses = args.addresses.all;
    question.n_addresses = args.addresses.n;
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0)
        rc =
            admin_storage_replace(asked.admin, &question, &asked.progress, &answer, &err);
    exportd_client_close(&asked);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    rc = print(cli, &args,
               answer->error[0] != '\0'
                   ? "has its place already; see rozo rebuild status"
                   : "has its new disk, which is being filled: rozo rebuild status",
               false);
    rozo__ad_storage_replace_resp__free_unpacked(answer, NULL);
    return rc;
}

int cmd_storage_lost(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "no", 0, NULL, "it may come back after all",
          ARGS_FLAG(struct replace_args, no) },
        OPTION_JSON,
        OPTION_ID,
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Mark storage ID as lost: it will not come back, and nothing takes its "
            "place for now. "
            "The spares of its files rebuild what it held (`rozo rebuild status`). New "
            "files are "
            "not put there, its space does not count. It is no longer marked once it is "
            "replaced, or answers again.",
        .children = target_children
    };
    struct replace_args args = { 0 };
    Rozo__AdStorageLostResp *answer = NULL;
    struct exportd_client asked;
    struct err err = { 0 };
    int rc;

    args_parse(&syntax, argc, argv, &args);
    rc = exportd_client_open(&args.conn, &asked, &err);
    if (rc == 0)
        rc = admin_storage_lost(asked.admin, args.id, !args.no, &asked.progress, &answer,
                                &err);
    exportd_client_close(&asked);
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    rozo__ad_storage_lost_resp__free_unpacked(answer, NULL);
    return print(cli, &args, args.no ? "is waited for again" : "is marked as lost",
                 !args.no);
}
