/*
 * cmd_meta_members.c - `rozo meta add`, `remove`, `replace`: members come and go.
 *
 * Keeps:  each may be ended at any time and repeated: the list of members says how far a
 *         change is, and the leader goes on with it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "deploy/cli/interrupt.h"
#include "deploy/cli/text_table.h"
#include "deploy/verbs/meta_verb.h"
#include "deploy/verbs/verbs.h"

enum { LEADER_MAX_MS = 60000, PAUSE_MS = 100, STEPS = 3 };

/* Arguments and results of a verb. */
struct members_args {
    struct meta_verb verb; /* must be the first member */
    bool force, witness;
    unsigned id;
    const char *address;
    uint64_t new_id;
    unsigned n_voters;
    bool rests_on_one; /* remove: see meta_verb_rests_on_one() */
};

#define OPTION_FORCE                                                                   \
    {                                                                                  \
        "force", 0, NULL,                                                              \
            "also if no majority of the others answers (metadata then wait until one " \
            "does), or too few members with metadata are left for its witnesses",      \
            ARGS_FLAG(struct members_args, force)                                      \
    }
#define OPTION_ID(words)                                                          \
    {                                                                             \
        NULL, 0, words, NULL, ARGS_NUMBER(struct members_args, id, 1, UINT32_MAX) \
    }
#define OPTION_ADDRESS                                                      \
    {                                                                       \
        NULL, 0, "HOST:PORT", NULL, ARGS_TEXT(struct members_args, address) \
    }

static struct members_args *args_of(struct meta_verb *v)
{
    return (struct members_args *)v;
}

/* Begins a verb, which a signal may interrupt. */
static struct members_args *begin(struct meta_verb *v)
{
    interrupt_catch();
    progress_start(&v->progress, STEPS);
    progress_at(&v->progress, 0, "asking the leader");
    return args_of(v);
}

/* ---- the leader ---- */

static bool is_worth_another(int rc)
{
    return rc == -ROZO_ENOT_LEADER || rc == -EBUSY || rc == -ETIMEDOUT ||
           rc == -ENOTCONN || rc == -ECONNRESET;
}

/* Waits until a member serves. Returns NULL with a text if none does for a long time. */
static struct meta_client_member *leader_wait(struct members_args *a, struct err *err)
{
    return meta_verb_serving(&a->verb, clock_ms() + LEADER_MAX_MS, false, err);
}

/* Asks the leader, whoever that is, until it has answered. */
static int leader_ask(struct members_args *a, bool is_add, uint64_t id, struct err *err)
{
    uint64_t end_ms = clock_ms() + LEADER_MAX_MS;
    bool was_asked = false;
    int rc;

    for (;;) {
        struct meta_client_member *m = leader_wait(a, err);

        if (m == NULL)
            return interrupt_came() ? -EINTR : -ROZO_ENOT_LEADER;
        rc = is_add ? meta_client_add(a->verb.client, m, a->address, id, a->witness,
                                      &a->new_id, err)
                    : meta_client_remove(a->verb.client, m, id, a->force, err);
        if (!is_add && rc == -ENOENT && was_asked)
            return 0; /* an answer was lost */
        if (!is_worth_another(rc) || clock_ms() > end_ms)
            return rc;
        if (interrupt_came())
            return err_set(err, -EINTR, "interrupted");
        was_asked = true;
        interrupt_pause_ms(PAUSE_MS);
    }
}

static unsigned n_voters(const struct meta_client_member *m)
{
    unsigned n = 0;

    for (size_t i = 0; i < m->answer->n_members; i++)
        n += m->answer->members[i]->role == META_VOTER;
    return n;
}

/* ---- add ---- */

static void copied_show(struct members_args *a, const Rozo__AdMetaStatusResp *answer)
{
    char what[64], bytes[HUMAN_BYTES_TEXT];

    if (answer == NULL || answer->id != a->new_id)
        snprintf(what, sizeof(what), "member %llu is in the list",
                 (unsigned long long)a->new_id);
    else if (answer->seeding)
        snprintf(what, sizeof(what), "member %llu has copied %s",
                 (unsigned long long)a->new_id, human_bytes(bytes, answer->seed_bytes));
    else
        snprintf(what, sizeof(what), "member %llu catches up",
                 (unsigned long long)a->new_id);
    progress_at(&a->verb.progress, answer != NULL && answer->id == a->new_id ? 2 : 1,
                what);
}

/* Checks that the exportd at the address, if one answers, waits or is the new member.
 * Returns 0 and shows how far it is; or -EEXIST with a text: it will never be. */
static int new_look(struct members_args *a, const struct meta_client_member *leader,
                    struct meta_client *new_one, struct err *err)
{
    const Rozo__AdMetaStatusResp *answer;

    meta_client_ask(new_one);
    answer = new_one->members[0].answer;
    if (answer != NULL && answer->id != 0 && answer->id != a->new_id)
        return err_set(err, -EEXIST,
                       "the exportd at %s has the data directory of member %llu%s, and "
                       "does not become member %llu: stop it, give it an empty data "
                       "directory, start it and repeat this; or `rozo meta remove %llu`",
                       a->address, (unsigned long long)answer->id,
                       meta_client_listed(leader->answer, answer->id) == NULL
                           ? ", which this quorum does not have"
                           : "",
                       (unsigned long long)a->new_id, (unsigned long long)a->new_id);
    copied_show(a, answer);
    return 0;
}

/* Returns 0 if the new member votes; -EAGAIN: not yet; -EINTR; or -errno with a text. */
static int vote_look(struct members_args *a, struct meta_client *new_one, struct err *err)
{
    struct meta_client_member *m = leader_wait(a, err);
    const Rozo__AdMetaStatusResp__Member *self;
    int rc;

    if (m == NULL)
        return interrupt_came() ? -EINTR : -ROZO_ENOT_LEADER;
    a->n_voters = n_voters(m);
    self = meta_client_listed(m->answer, a->new_id);
    if (self == NULL)
        return err_set(err, -ENOENT, "member %llu was removed meanwhile",
                       (unsigned long long)a->new_id);
    if (self->role == META_VOTER)
        return 0;
    rc = new_look(a, m, new_one, err);
    return rc != 0 ? rc : interrupt_came() ? -EINTR : -EAGAIN;
}

/* Waits until the new member votes. */
static int vote_wait(struct members_args *a, struct err *err)
{
    struct meta_client *new_one; /* on its port for members */
    int rc = meta_client_open(a->address, a->verb.conn.key, &new_one, err);

    if (rc != 0)
        return rc;
    while ((rc = vote_look(a, new_one, err)) == -EAGAIN)
        interrupt_pause_ms(PAUSE_MS);
    meta_client_close(new_one);
    if (rc == -EINTR)
        return err_set(err, rc,
                       "interrupted, but member %llu goes on being added: `rozo meta "
                       "status` shows it, repeating this waits for it, `rozo meta remove "
                       "%llu` ends it",
                       (unsigned long long)a->new_id, (unsigned long long)a->new_id);
    return rc;
}

/* Adds the member and waits until it votes. */
static int new_add(struct members_args *a, uint64_t replaces, struct err *err)
{
    int rc = leader_ask(a, true, replaces, err);

    if (rc == -EINTR)
        return err_set(
            err, rc,
            "interrupted; if `rozo meta status` shows the new member it goes on "
            "being added: repeating this waits for it, `rozo meta remove` ends "
            "it");
    if (rc == 0)
        progress_at(&a->verb.progress, 1, "it is in the list of members");
    return rc != 0 ? rc : vote_wait(a, err);
}

static int add(struct meta_verb *v, struct err *err)
{
    return new_add(begin(v), 0, err);
}

static json_t *added_json(struct meta_verb *v)
{
    const struct members_args *a = args_of(v);

    return json_pack("{s:I, s:s, s:I, s:b}", "id", (json_int_t)a->new_id, "address",
                     a->address, "voters", (json_int_t)a->n_voters, "witness",
                     (int)a->witness);
}

static void added_print(struct meta_verb *v)
{
    const struct members_args *a = args_of(v);

    printf(a->witness
               ? "member %llu at %s votes now, as a witness: it never serves, so mounts "
                 "need not name it; name its address for clients in rozo.yaml, so that "
                 "`rozo meta status` asks it\n"
               : "member %llu at %s votes now. Name its address for clients "
                 "(exportd.listen) in mounts and rozo.yaml, too\n",
           (unsigned long long)a->new_id, a->address);
    if (a->n_voters % 2 == 0)
        printf(
            "%u members survive the loss of %u, as %u do, and each change waits for %u "
            "of them: add one more (a witness will do), or remove one\n",
            a->n_voters, (a->n_voters - 1) / 2, a->n_voters - 1, a->n_voters / 2 + 1);
}

int cmd_meta_add(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "witness", 0, NULL,
          "as a witness: it votes and keeps the log of changes, but no metadata, and "
          "never serves (its config says quorum: witness: true)",
          ARGS_FLAG(struct members_args, witness) },
        META_OPTION_JSON,
        OPTION_ADDRESS,
        { 0 }
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Add an exportd to a quorum: one that runs with an empty data directory "
            "and a section `quorum` with `listen` only, and listens for members at "
            "HOST:PORT. It copies all metadata from the others, and votes when it has "
            "them; clients go on meanwhile. Ends when it votes. Interrupting it leaves "
            "the addition going on; repeating it is harmless.",
        .children = target_children
    };
    struct members_args args = {
        .verb = { .act = add, .to_json = added_json, .print = added_print }
    };

    return meta_verb_run(cli, argc, argv, &syntax, &args.verb);
}

/* ---- remove ---- */

/* Returns a voter that answers and does not lead, or 0. */
static uint64_t other_voter(const struct members_args *a,
                            const struct meta_client_member *leader)
{
    for (unsigned i = 0; i < a->verb.client->n; i++) {
        const struct meta_client_member *m = &a->verb.client->members[i];
        const Rozo__AdMetaStatusResp__Member *self;

        if (m->answer == NULL || m->answer->leads || m->answer->seeding)
            continue;
        self = meta_client_listed(leader->answer, m->answer->id);
        if (self != NULL && self->role == META_VOTER && !self->witness)
            return self->id;
    }
    return 0;
}

/* Asks the leader, which will be removed, to hand over. */
static int hand_over_ask(struct meta_verb *v, struct meta_client_member *m,
                         struct err *err)
{
    struct members_args *a = args_of(v);
    int rc;

    if (n_voters(m) == 1)
        return err_set(err, -EPERM,
                       "member %llu is the only one that votes: a quorum without members "
                       "would have no metadata",
                       (unsigned long long)m->answer->id);
    progress_at(&v->progress, 1, "another member is to lead");
    rc = meta_client_transfer(v->client, m, other_voter(a, m), err);
    return is_worth_another(rc) || rc == -ENOENT ? -EAGAIN : rc;
}

/* Makes another member lead, if this one does. */
static int other_leads(struct members_args *a, uint64_t id, struct err *err)
{
    const struct meta_hand_over h = { .from = id,
                                      .end_ms = clock_ms() + LEADER_MAX_MS,
                                      .ask = hand_over_ask };
    struct meta_client_member *m = leader_wait(a, err);
    int rc = m == NULL ? -ROZO_ENOT_LEADER : meta_verb_hand_over(&a->verb, &h, &m, err);

    if (rc == 0)
        a->rests_on_one = meta_verb_rests_on_one(m->answer, id);
    return rc;
}

/* Removes a member, which may lead. */
static int remove_member(struct members_args *a, uint64_t id, struct err *err)
{
    int rc;

    do {
        rc = other_leads(a, id, err);
        if (rc == 0)
            rc = leader_ask(a, false, id, err);
    } while (rc == -EDEADLK); /* this member leads again */
    return rc;
}

static int remove_one(struct meta_verb *v, struct err *err)
{
    struct members_args *a = begin(v);

    return remove_member(a, a->id, err);
}

static json_t *removed_json(struct meta_verb *v)
{
    return json_pack("{s:I}", "id", (json_int_t)args_of(v)->id);
}

static void removed_print(struct meta_verb *v)
{
    printf("member %u is removed: stop it, and take its address out of mounts and "
           "rozo.yaml. Its data directory is of no use any more\n",
           args_of(v)->id);
    if (args_of(v)->rests_on_one)
        printf(META_RESTS_ON_ONE);
}

int cmd_meta_remove(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_FORCE, META_OPTION_JSON, OPTION_ID("ID"), { 0 }
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Remove member ID from a quorum, see rozo meta status. It takes no part "
               "any more and cannot come back with its data. If it leads, another one "
               "does first.",
        .children = target_children
    };
    struct members_args args = {
        .verb = { .act = remove_one, .to_json = removed_json, .print = removed_print }
    };

    return meta_verb_run(cli, argc, argv, &syntax, &args.verb);
}

/* ---- replace ---- */

/* Checks that there is a member to replace, or that it is done already. */
static int replace_check(struct members_args *a, struct err *err)
{
    struct meta_client_member *m = leader_wait(a, err);
    const Rozo__AdMetaStatusResp__Member *self;

    if (m == NULL)
        return -ROZO_ENOT_LEADER;
    self = meta_client_listed(m->answer, a->id);
    if (self != NULL) {
        a->witness = self->witness;
        return 0;
    }
    for (size_t i = 0; i < m->answer->n_members; i++) {
        if (strcmp(m->answer->members[i]->address, a->address) == 0)
            return 0; /* repeated */
    }
    return err_set(err, -ENOENT, "the quorum has no member %u: see `rozo meta status`",
                   a->id);
}

static int replace(struct meta_verb *v, struct err *err)
{
    struct members_args *a = begin(v);
    const struct meta_client_member *m;
    int rc = replace_check(a, err);

    if (rc == 0)
        rc = new_add(a, a->id, err);
    if (rc != 0)
        return rc;
    rc = remove_member(a, a->id, err);
    if (rc != 0 && rc != -ENOENT)
        return rc;
    m = leader_wait(a, err);
    if (m != NULL)
        a->n_voters = n_voters(m);
    return 0;
}

int cmd_meta_replace(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        OPTION_FORCE, META_OPTION_JSON, OPTION_ID("OLD"), OPTION_ADDRESS, { 0 }
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Put a new exportd in the place of member OLD of a quorum, which is gone "
            "or has lost its disk: rozo meta add HOST:PORT, then rozo meta remove OLD. "
            "The new one gets a number of its own; it may have the address of the old "
            "one, and is a witness if that was one. Ends when that is removed. Repeating "
            "it is harmless.",
        .children = target_children
    };
    struct members_args args = {
        .verb = { .act = replace, .to_json = added_json, .print = added_print }
    };

    return meta_verb_run(cli, argc, argv, &syntax, &args.verb);
}
