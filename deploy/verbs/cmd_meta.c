/*
 * cmd_meta.c - `rozo meta`: the exportds that are members of a quorum.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/text_table.h"
#include "deploy/verbs/meta_verb.h"
#include "deploy/verbs/verbs.h"

enum { SERVES_MAX_MS = 10000, SLOW_MAX_MS = 4000, NAME_MAX_BYTES = 128 };

/* Arguments and results of a verb. */
struct meta_args {
    struct meta_verb verb; /* must be the first member */
    unsigned to;
    uint64_t slow_ms; /* a hand-over that fails for lack of time is not repeated after */
    const char *address;            /* init; NULL: not given */
    struct meta_client_member *now; /* the one that serves */
    Rozo__AdMetaInitResp *made;     /* owned */
};

static struct meta_args *args_of(struct meta_verb *v)
{
    return (struct meta_args *)v;
}

static const char *role_name(const Rozo__AdMetaStatusResp *a)
{
    const Rozo__AdMetaStatusResp__Member *self = meta_client_listed(a, a->id);

    if (a->leads)
        return "leader";
    if (a->id == 0)
        return "waits";
    if (a->removed)
        return "removed";
    if (a->uncertain)
        return "uncertain";
    if (a->seeding)
        return "copies";
    if (self == NULL)
        return "none";
    if (self->role == META_VOTER && self->witness)
        return "witness";
    return self->role == META_VOTER     ? "follower"
           : self->role == META_STANDBY ? "stand-by"
           : self->role == META_SPARE   ? "spare"
                                        : "?";
}

/* Returns whether a member of the list has answered. */
static bool has_answered(const struct meta_client *c, uint64_t id)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].answer != NULL && c->members[i].answer->id == id)
            return true;
    }
    return false;
}

/* Writes "member 2 at HOST:PORT", where other members reach it. Returns buf. */
static const char *name_put(char buf[NAME_MAX_BYTES], const Rozo__AdMetaStatusResp *a,
                            uint64_t id)
{
    const Rozo__AdMetaStatusResp__Member *m = meta_client_listed(a, id);

    snprintf(buf, NAME_MAX_BYTES, "member %llu%s%.80s", (unsigned long long)id,
             m == NULL ? "" : " at ", m == NULL ? "" : m->address);
    return buf;
}

/* ---- JSON ---- */

static json_t *ids_json(const uint64_t *ids, size_t n)
{
    json_t *json = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(json, json_integer((json_int_t)ids[i]));
    return json;
}

static json_t *member_json(const struct meta_client_member *m)
{
    const Rozo__AdMetaStatusResp *a = m->answer;
    const Rozo__AdMetaStatusResp__Member *self;

    if (a == NULL)
        return json_pack("{s:n, s:s, s:b, s:o}", "id", "address", m->address, "answers",
                         0, "error", cli_json_text(m->ask.message));
    self = meta_client_listed(a, a->id);
    return json_pack(
        "{s:I, s:s, s:b, s:o, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:b, s:b, s:I, s:I, s:I, s:I, s:b, s:o, s:I, s:b, s:I, s:s}",
        "id", (json_int_t)a->id, "address", m->address, "answers", 1, "quorum_address",
        cli_json_text(self == NULL ? "" : self->address), "role", role_name(a), "leads",
        (int)a->leads, "serves", (int)a->serves, "term", (json_int_t)a->term, "leader",
        (json_int_t)a->leader, "first", (json_int_t)a->first, "last", (json_int_t)a->last,
        "commit", (json_int_t)a->commit, "stable", (json_int_t)a->stable, "applied",
        (json_int_t)a->applied, "log_bytes", (json_int_t)a->log_bytes, "uncertain",
        (int)a->uncertain, "seeding", (int)a->seeding, "seed_bytes",
        (json_int_t)a->seed_bytes, "seed_from", (json_int_t)a->seed_from, "seed_index",
        (json_int_t)a->seed_index, "seed_target", (json_int_t)a->seed_target,
        "seed_has_keys", (int)a->seed_has_keys, "waits_for",
        ids_json(a->silent, a->n_silent), "losses", (json_int_t)a->losses, "witness",
        self != NULL && self->witness, "covered", (json_int_t)a->covered, "error", "");
}

static json_t *silent_json(const struct meta_client *c)
{
    const Rozo__AdMetaStatusResp *a = meta_client_newest(c);
    json_t *json = json_array();

    for (size_t i = 0; i < a->n_members; i++) {
        if (!has_answered(c, a->members[i]->id))
            json_array_append_new(json, json_integer((json_int_t)a->members[i]->id));
    }
    return json;
}

static json_t *status_json(struct meta_verb *v)
{
    struct meta_client *c = v->client;
    const struct meta_client_member *serving = meta_client_serving(c);
    json_t *members = json_array();

    for (unsigned i = 0; i < c->n; i++)
        json_array_append_new(members, member_json(&c->members[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:o}", "serving",
        serving == NULL ? json_null() : json_integer((json_int_t)serving->answer->id),
        "address", serving == NULL ? json_null() : json_string(serving->address),
        "silent", silent_json(c), "members", members);
}

/* ---- text ---- */

static void member_print(struct text_table *t, const struct meta_client_member *m)
{
    const Rozo__AdMetaStatusResp *a = m->answer;
    char bytes[HUMAN_BYTES_TEXT];

    if (a == NULL) {
        text_table_cell(t, "-");
        text_table_cell(t, "%s", m->address);
        text_table_cell(t, "NO ANSWER");
        for (unsigned i = 0; i < 7; i++)
            text_table_cell(t, "-");
        return;
    }
    text_table_cell(t, "%llu", (unsigned long long)a->id);
    text_table_cell(t, "%s", m->address);
    text_table_cell(t, "%s", role_name(a));
    text_table_cell(t, "%s", a->serves ? "yes" : "no");
    text_table_cell(t, "%llu", (unsigned long long)a->term);
    text_table_cell(t, "%llu", (unsigned long long)a->last);
    text_table_cell(t, "%llu", (unsigned long long)a->commit);
    text_table_cell(t, "%llu", (unsigned long long)a->stable);
    text_table_cell(t, "%llu", (unsigned long long)a->applied);
    text_table_cell(t, "%s", human_bytes(bytes, a->log_bytes));
}

/* Names the members that a member has asked without an answer. */
static void silent_print(const Rozo__AdMetaStatusResp *a)
{
    char name[NAME_MAX_BYTES];

    for (size_t i = 0; i < a->n_silent; i++)
        printf("%s does not answer member %llu\n", name_put(name, a, a->silent[i]),
               (unsigned long long)a->id);
}

/* Says what a member copies from another one, and how far it is. */
static void seeding_print(const Rozo__AdMetaStatusResp *a)
{
    char bytes[HUMAN_BYTES_TEXT], self[NAME_MAX_BYTES], from[NAME_MAX_BYTES];

    printf("%s copies the metadata of %s, %s so far", name_put(self, a, a->id),
           name_put(from, a, a->seed_from), human_bytes(bytes, a->seed_bytes));
    if (a->seed_has_keys)
        printf(", entries up to %llu", (unsigned long long)a->seed_index);
    if (a->seed_has_keys && a->seed_target != 0)
        printf(" of %llu", (unsigned long long)a->seed_target);
    printf(": it does not vote until it has them all\n");
    silent_print(a);
}

/* Says for what a member waits that may have lost something with its power. */
static void uncertain_print(const Rozo__AdMetaStatusResp *a)
{
    char self[NAME_MAX_BYTES];

    printf(
        "%s lost power, and may lack changes that it had acknowledged: it does not "
        "vote before another member leads, or enough of those that vote have answered\n",
        name_put(self, a, a->id));
    silent_print(a);
}

/* Says what a member lacks that answers but does not take part. */
static void member_lack_print(const Rozo__AdMetaStatusResp *a)
{
    if (a->uncertain)
        uncertain_print(a);
    else if (a->seeding)
        seeding_print(a);
}

/* Says what a witness lacks, or waits for. */
static void witness_print(const Rozo__AdMetaStatusResp *a)
{
    const Rozo__AdMetaStatusResp__Member *self = meta_client_listed(a, a->id);

    if (self == NULL || !self->witness)
        return;
    if (a->leads)
        printf("member %llu, a witness, has the longest log: it waits for a member with "
               "metadata that can take over\n",
               (unsigned long long)a->id);
    if (a->covered != 0 && a->first > a->covered + 1)
        printf("member %llu, a witness, has dropped entries %llu to %llu, which a member "
               "that is away lacks: until that is back, or replaced, the metadata are "
               "lost with the disk of the other one\n",
               (unsigned long long)a->id, (unsigned long long)(a->covered + 1),
               (unsigned long long)(a->first - 1));
}

/* Says what the list has that does not vote. */
static void roles_print(const Rozo__AdMetaStatusResp *a)
{
    for (size_t i = 0; i < a->n_members; i++) {
        const Rozo__AdMetaStatusResp__Member *m = a->members[i];

        if (m->role == META_SPARE)
            printf("member %llu at %.80s is being added: it does not know yet\n",
                   (unsigned long long)m->id, m->address);
        else if (m->role == META_STANDBY)
            printf("member %llu at %.80s is being added: it votes when it has all "
                   "metadata\n",
                   (unsigned long long)m->id, m->address);
    }
}

static void status_print(struct meta_verb *v)
{
    struct meta_client *c = v->client;
    static const char *const heads[] = { ">ID",      "ADDRESS", "ROLE",    "SERVES",
                                         ">TERM",    ">LAST",   ">COMMIT", ">STABLE",
                                         ">APPLIED", ">LOG" };
    const Rozo__AdMetaStatusResp *a = meta_client_newest(c);
    bool all_answer = true;
    struct text_table t;

    text_table_init(&t, heads, 10);
    for (unsigned i = 0; i < c->n; i++)
        member_print(&t, &c->members[i]);
    text_table_print(&t, stdout);
    text_table_free(&t);
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].answer != NULL) {
            member_lack_print(c->members[i].answer);
            witness_print(c->members[i].answer);
        } else {
            printf("%s: %.200s\n", c->members[i].address, c->members[i].ask.message);
        }
    }
    for (size_t i = 0; i < a->n_members; i++) {
        if (!has_answered(c, a->members[i]->id))
            printf("member %llu (%.80s for members) has not answered\n",
                   (unsigned long long)a->members[i]->id, a->members[i]->address);
    }
    roles_print(a);
    if (meta_verb_rests_on_one(a, 0))
        printf(META_RESTS_ON_ONE);
    if (a->losses != 0)
        printf("A majority of the members has lost power together: changes that were not "
               "synced may be lost (the newest loss was counted in term %llu)\n",
               (unsigned long long)a->losses);
    if (meta_client_serving(c) != NULL)
        return;
    for (unsigned i = 0; i < c->n; i++)
        all_answer = all_answer && c->members[i].answer != NULL;
    if (all_answer && a->leader != 0 && !has_answered(c, a->leader))
        printf("None of these serves: as they know, member %llu leads; name its address "
               "with --exportd, too\n",
               (unsigned long long)a->leader);
    else
        printf("No member serves: names and attributes wait until one leads\n");
}

/* ---- the verbs ---- */

static int status(struct meta_verb *v, struct err *err)
{
    meta_client_ask(v->client);
    return meta_client_answers_check(v->client, err);
}

int cmd_meta_status(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = { META_OPTION_JSON, { 0 } };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Show the exportds that are members of a quorum, each as it sees itself: "
            "whether it leads and serves clients, its term, the last entry of its log, "
            "the last one that is committed, that a majority has on stable storage and "
            "that its store has, and the disk space of the log; what a member lacks that "
            "copies or may have lost something, and for whom it waits. A witness has no "
            "store. Asks every address of --exportd.",
        .children = target_children
    };
    struct meta_verb v = { .act = status, .to_json = status_json, .print = status_print };

    return meta_verb_run(cli, argc, argv, &syntax, &v);
}

/* A member that is to lead may be slow, or down. */
static int transfer_ask(struct meta_verb *v, struct meta_client_member *m,
                        struct err *err)
{
    struct meta_args *args = args_of(v);
    int rc = meta_client_transfer(v->client, m, args->to, err);
    bool is_worth_another =
        rc == -ETIMEDOUT ? clock_ms() <= args->slow_ms : rc == -ROZO_ENOT_LEADER;

    return is_worth_another ? -EAGAIN : rc;
}

static int transfer(struct meta_verb *v, struct err *err)
{
    struct meta_args *args = args_of(v);
    struct meta_client *c = v->client;
    struct meta_hand_over h = { .to = args->to, .ask = transfer_ask };
    int rc;

    meta_client_ask(c);
    rc = meta_client_answers_check(c, err);
    if (rc != 0)
        return rc;
    args->now = meta_client_serving(c);
    if (args->now == NULL)
        return err_set(err, -ROZO_ENOT_LEADER,
                       "no member serves that could hand over; see `rozo meta status`");
    h.from = args->now->answer->id;
    h.end_ms = clock_ms() + SERVES_MAX_MS;
    args->slow_ms = clock_ms() + SLOW_MAX_MS;
    rc = meta_verb_hand_over(v, &h, &args->now, err);
    if (rc == -ROZO_ENOT_LEADER)
        return err_set(err, -ETIMEDOUT,
                       "member %llu does not lead any more, but no other one of the list "
                       "serves; see `rozo meta status`",
                       (unsigned long long)h.from);
    return rc;
}

static json_t *transfer_json(struct meta_verb *v)
{
    const struct meta_client_member *now = args_of(v)->now;

    return json_pack("{s:I, s:s}", "serving", (json_int_t)now->answer->id, "address",
                     now->address);
}

static void transfer_print(struct meta_verb *v)
{
    const struct meta_client_member *now = args_of(v)->now;

    printf("member %llu serves now, at %s\n", (unsigned long long)now->answer->id,
           now->address);
}

int cmd_meta_transfer(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        META_OPTION_JSON,
        { NULL, 0, "[ID]", NULL, ARGS_NUMBER(struct meta_args, to, 1, UINT32_MAX),
          .optional = true },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Hand leadership over to member ID of a quorum, or to the one that is "
               "furthest: before its machine is stopped. A witness is refused. Ends when "
               "another one serves. Nothing is lost, and clients notice a short pause.",
        .children = target_children
    };
    struct meta_args args = {
        .verb = { .act = transfer, .to_json = transfer_json, .print = transfer_print }
    };

    return meta_verb_run(cli, argc, argv, &syntax, &args.verb);
}

/* Returns the exportd that becomes a member: the first that answers and is alone. */
static int alone_find(struct meta_client *c, struct meta_client_member **out,
                      struct err *err)
{
    meta_client_ask(c);
    *out = NULL;
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (m->answer != NULL)
            return err_set(err, -EEXIST,
                           "exportd at %s is member %llu of a quorum already", m->address,
                           (unsigned long long)m->answer->id);
        if (m->has_no_quorum && *out == NULL)
            *out = m;
    }
    return *out != NULL ? 0 : meta_client_answers_check(c, err);
}

static int init(struct meta_verb *v, struct err *err)
{
    struct meta_args *args = args_of(v);
    struct meta_client_member *m;
    int rc = alone_find(v->client, &m, err);

    if (rc == 0)
        rc = meta_client_init(v->client, m, args->address, &args->made, err);
    if (rc != 0)
        return rc;
    args->now = meta_verb_serving(v, clock_ms() + SERVES_MAX_MS, true, err);
    return args->now != NULL
               ? 0
               : err_set(err, -ETIMEDOUT,
                         "exportd at %s is a member now, but does not serve yet; "
                         "see `rozo meta status` and its log",
                         m->address);
}

static json_t *init_json(struct meta_verb *v)
{
    const struct meta_args *args = args_of(v);

    return json_pack("{s:I, s:s, s:o}", "id", (json_int_t)args->made->id, "address",
                     args->now->address, "quorum_address",
                     cli_json_text(args->made->address));
}

static void init_print(struct meta_verb *v)
{
    const struct meta_args *args = args_of(v);

    printf("exportd at %s is member %llu of a quorum now, the only one; other members "
           "reach it at %.255s\n",
           args->now->address, (unsigned long long)args->made->id, args->made->address);
}

int cmd_meta_init(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        META_OPTION_JSON,
        { "address", 'a', "HOST:PORT",
          "where other members will reach it (default: its first address of quorum: "
          "listen)",
          ARGS_TEXT(struct meta_args, address) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Make a running exportd, with all its metadata, the first member of a "
               "quorum, to which others can be added. Its config needs a section "
               "`quorum` with `listen`. It ends when that member serves. Nothing is "
               "unmounted or lost, and clients notice a short pause. Changes are "
               "answered when a majority has them in memory, or on disk if its config "
               "says `acknowledge: disk`. There is no way back.",
        .children = target_children
    };
    struct meta_args args = {
        .verb = { .act = init, .to_json = init_json, .print = init_print },
        .address = "",
    };
    int rc = meta_verb_run(cli, argc, argv, &syntax, &args.verb);

    if (args.made != NULL)
        rozo__ad_meta_init_resp__free_unpacked(args.made, NULL);
    return rc;
}
