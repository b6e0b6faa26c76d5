/*
 * cmd_replace.c - `rozo storage replace`, `rozo storage lost`: handle a lost storage or
 * disk.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "deploy/client/exportd_client.h"
#include "deploy/verbs/verbs.h"

enum { OPT_NO = 256 };

struct replace_args {
    struct target_options conn;
    bool json, no;
    uint32_t id;
    struct cli_addresses addresses;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct replace_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->conn;
        return 0;
    case 'j':
        args->json = true;
        return 0;
    case OPT_NO:
        args->no = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            args->id = (uint32_t)cli_number_arg(state, "ID", arg, 1, UINT32_MAX);
        else
            cli_addresses_arg(state, arg, &args->addresses);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state,
                   "ID is missing: the number of the storage, see rozo storage list");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Parses the arguments of `lost`, which takes no addresses. */
static error_t parse_lost(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG && state->arg_num > 0)
        argp_error(state, "one ID, please");
    return parse(key, arg, state);
}

static const struct argp_option json_option = { "json", 'j', NULL, 0, "print JSON", 0 };

static int print(struct cli *cli, const struct replace_args *args, const char *words,
                 bool lost)
{
    if (args->json)
        return cli_print_json(
            cli, json_pack("{s:I, s:b}", "id", (json_int_t)args->id, "lost", (int)lost));
    printf("storage %u %s\n", args->id, words);
    return cli_finish(cli);
}

int cmd_storage_replace(struct cli *cli, int argc, char **argv)
{
    const struct argp_option options[] = { json_option, { 0 } };
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "ID [HOST:PORT[,HOST:PORT...]]",
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

    cli_parse(&argp, argc, argv, &args);
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
    const struct argp_option options[] = {
        { "no", OPT_NO, NULL, 0, "it may come back after all", 0 },
        json_option,
        { 0 },
    };
    const struct argp argp = {
        .options = options,
        .parser = parse_lost,
        .args_doc = "ID",
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

    cli_parse(&argp, argc, argv, &args);
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
