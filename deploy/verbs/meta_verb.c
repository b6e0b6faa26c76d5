/*
 * meta_verb.c - the frame of the verbs of `rozo meta`.
 */
#include "deploy/verbs/meta_verb.h"

static int act(struct meta_verb *v, struct err *err)
{
    int rc = target_resolve(&v->conn, false, err);

    if (rc == 0)
        rc = meta_client_open(v->conn.exportd, v->conn.key, &v->client, err);
    if (rc != 0)
        return rc;
    progress_start(&v->progress, 1);
    progress_at(&v->progress, 0, "asking the members of the quorum");
    v->client->asks.progress = &v->progress;
    return v->act(v, err);
}

int meta_verb_run(struct cli *cli, int argc, char **argv,
                  const struct args_syntax *syntax, struct meta_verb *v)
{
    struct err err = { 0 };
    int rc;

    args_parse(syntax, argc, argv, v);
    rc = act(v, &err);
    progress_end(&v->progress);
    if (rc != 0) {
        rc = cli_fail(cli, "%s", err.text);
    } else if (v->json) {
        rc = cli_print_json(cli, v->to_json(v));
    } else {
        v->print(v);
        rc = cli_finish(cli);
    }
    meta_client_close(v->client);
    return rc;
}
