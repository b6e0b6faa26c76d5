/*
 * meta_verb.c - the frame of the verbs of `rozo meta`.
 */
#include "deploy/verbs/meta_verb.h"

#include <errno.h>

#include "deploy/cli/interrupt.h"

enum { PAUSE_MS = 50 };

struct meta_client_member *meta_verb_serving(struct meta_verb *v, uint64_t end_ms,
                                             bool may_be_alone, struct err *err)
{
    struct meta_client *c = v->client;

    for (;;) {
        struct meta_client_member *m;

        meta_client_ask(c);
        m = meta_client_serving(c);
        if (m != NULL)
            return m;
        if (!may_be_alone && meta_client_alone_check(c, err) != 0)
            return NULL;
        if (interrupt_came()) {
            err_set(err, -EINTR, "interrupted");
            return NULL;
        }
        if (clock_ms() > end_ms) {
            err_set(
                err, -ROZO_ENOT_LEADER,
                "none of the exportds at %s serves: `rozo meta status` says why; name "
                "all members with --exportd",
                v->conn.exportd);
            return NULL;
        }
        interrupt_pause_ms(PAUSE_MS);
    }
}

bool meta_verb_rests_on_one(const Rozo__AdMetaStatusResp *a, uint64_t without)
{
    unsigned n_full = 0, n_witnesses = 0;

    for (size_t i = 0; i < a->n_members; i++) {
        const Rozo__AdMetaStatusResp__Member *m = a->members[i];

        if (m->role != META_VOTER || m->id == without)
            continue;
        n_full += !m->witness;
        n_witnesses += m->witness;
    }
    return n_full == 1 && n_witnesses > 0;
}

int meta_verb_hand_over(struct meta_verb *v, const struct meta_hand_over *h,
                        struct meta_client_member **m, struct err *err)
{
    for (;;) {
        uint64_t id = (*m)->answer->id;
        int rc;

        if (h->to == 0 ? id != h->from : id == h->to)
            return 0;
        if (clock_ms() > h->end_ms)
            return err_set(err, -ETIMEDOUT,
                           "member %llu leads, and %s: see `rozo meta status`",
                           (unsigned long long)id,
                           h->to == 0 ? "no other one takes over"
                                      : "the one that was to lead did not take over");
        rc = h->ask(v, *m, err);
        if (rc != 0 && rc != -EAGAIN)
            return rc;
        if (interrupt_came())
            return err_set(err, -EINTR, "interrupted");
        interrupt_pause_ms(PAUSE_MS);
        *m = meta_verb_serving(v, h->end_ms, true, err);
        if (*m == NULL)
            return interrupt_came() ? -EINTR : -ROZO_ENOT_LEADER;
    }
}

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
